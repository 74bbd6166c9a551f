/* Placement: from which checkpoint it restores, storage that is not there, shards that are silent.
 */
#include <stdio.h>
#include <string.h>

#include "tests/lib/cores/placement_bench.h"
#include "tests/lib/suite.h"

KELP_CASE("machine", .setup = placement_setup, .teardown = placement_teardown)

static uint32_t restore_from(uint64_t version, uint64_t generation, bool final)
{
    return placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_RESTORE,
        .restore = {.version = version, .generation = generation, .final = final}});
}

static uint32_t load_failed(const char *id, uint64_t incarnation, kelp_status status)
{
    return placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_LOAD_FAILED,
        .load_failed = {.id = id, .incarnation = incarnation, .status = status, .text = "chunk 3"},
        .hint = "it was at step 7"});
}

static uint32_t disconnected(const char *id, bool broken)
{
    return placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_DISCONNECTED, .disconnected = {.id = id, .broken = broken}});
}

/* shard-1 is another process now, and generation 2 is being loaded from that version. */
static void restore(uint64_t version)
{
    placement_start();
    (void)restore_from(version, 1, false);
    uint32_t actions = placement_appear("shard-1", 12);
    ck_assert_uint_ne(actions & DID(WRITE_MAP), 0);
    ck_assert_uint_ne(placement_written(KELP_WRITTEN_OK) & DID(MAP_TO_SHARDS), 0);
    ck_assert_uint_eq(placement_bench.machine.map.restore_version, version);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_LOADING);
}

/* Damage is never taken for the end: the shell says which one is next; another shard's complaint
 * about the same checkpoint changes nothing. */
KELP_TEST(damaged_checkpoint)
{
    restore(20);
    uint32_t actions = load_failed("shard-1", 12, KELP_ERR_CORRUPT);
    ck_assert_uint_ne(actions & DID(DAMAGED), 0);
    ck_assert_uint_eq(actions & DID(WRITE_MAP), 0); /* not the same again */
    ck_assert_str_eq(placement_bench.machine.reason,
                     "the checkpoint of version 20 is damaged: shard-1: chunk 3");
    ck_assert_uint_eq(load_failed("shard-0", 10, KELP_ERR_CORRUPT) & DID(DAMAGED), 0);
    ck_assert_uint_ne(restore_from(10, 1, false) & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement_bench.machine.next.restore_version, 10);
    ck_assert_uint_eq(placement_bench.machine.next.generation, 3);
}

/* The file that tells of which job a checkpoint is may not be there yet either. */
KELP_LOOP_TEST(waits_for_a_job, 0, 2)
{
    struct kelp_placement_event event = {.kind = KELP_PLACEMENT_MISSING,
                                         .missing = "storage checkpoints/step-9.g1/job.yaml"};
    placement_bench.machine.options.storage_wait_ms = _i == 0 ? 0 : 5000;
    (void)placement_apply(event);
    ck_assert_str_eq(placement_bench.machine.reason,
                     "waiting for storage checkpoints/step-9.g1/job.yaml");
    (void)placement_tick(4900);
    (void)placement_apply(event);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_WAITING);
    (void)placement_tick(_i == 0 ? 1000000 : 100);
    ck_assert_int_eq(placement_bench.machine.state,
                     _i == 0 ? KELP_PLACEMENT_WAITING : KELP_PLACEMENT_FAILED);
    if (_i == 1) {
        ck_assert_ptr_nonnull(
            strstr(placement_bench.machine.reason, "waited 5 s for storage checkpoints/"));
        return;
    }
    (void)placement_none_read();
    ck_assert_str_eq(placement_bench.machine.reason, "waiting for 2 of 2 workers");
}

/* A disk that cannot be read is tried again, later each time, and then its checkpoint is left; a
 * host without memory says nothing about the checkpoint. */
KELP_LOOP_TEST(unreadable_checkpoint, 0, 2)
{
    kelp_status status = _i == 0 ? KELP_ERR_IO : KELP_ERR_NO_MEMORY;
    restore(20);
    for (uint32_t i = 1; i < KELP_COORDINATOR_LOAD_TRIES; i++) {
        uint64_t pause_ms = (uint64_t)KELP_COORDINATOR_LOAD_RETRY_MS << (i - 1);
        ck_assert_uint_eq(load_failed("shard-1", 12, status) & DID(DAMAGED), 0);
        ck_assert_uint_eq(placement_tick(pause_ms - 1) & DID(WRITE_MAP), 0);
        ck_assert_uint_ne(placement_tick(1) & DID(WRITE_MAP), 0);
        ck_assert_uint_eq(placement_bench.machine.next.restore_version, 20);
        (void)placement_written(KELP_WRITTEN_OK);
    }
    uint32_t actions = load_failed("shard-1", 12, status);
    if (_i == 1) {
        ck_assert_uint_eq(actions & DID(DAMAGED), 0);
        return;
    }
    ck_assert_uint_ne(actions & DID(DAMAGED), 0);
    ck_assert_str_eq(placement_bench.machine.reason,
                     "the checkpoint of version 20 cannot be read: shard-1: chunk 3");
    ck_assert_uint_ne(restore_from(10, 1, false) & DID(WRITE_MAP), 0);
    (void)placement_written(KELP_WRITTEN_OK); /* the one before it has tries of its own */
    ck_assert_uint_eq(load_failed("shard-1", 12, status) & DID(DAMAGED), 0);
}

/* Without a checkpoint there is nothing before it: the job fails, and says where it stood. */
KELP_TEST(damage_without_checkpoint)
{
    restore(0);
    (void)load_failed("shard-1", 12, KELP_ERR_CORRUPT);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_FAILED);
    ck_assert_str_eq(placement_bench.machine.reason, "shard-1: chunk 3; it was at step 7");
}

/* Storage is waited for by name: for ever, or as long as the job says. */
KELP_LOOP_TEST(waits_for_storage, 0, 2)
{
    placement_bench.machine.options.storage_wait_ms = _i == 0 ? 0 : 5000;
    restore(20);
    (void)placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_STORAGE,
        .storage = {.id = "shard-0", .incarnation = 10, .text = "storage step-9.g1/shard-1.b"}});
    ck_assert_str_eq(placement_bench.machine.reason,
                     "waiting for storage step-9.g1/shard-1.b (shard-0)");
    (void)placement_tick(4900);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_LOADING);
    (void)placement_tick(1000000);
    ck_assert_int_eq(placement_bench.machine.state,
                     _i == 0 ? KELP_PLACEMENT_LOADING : KELP_PLACEMENT_FAILED);
    if (_i == 1) {
        ck_assert_ptr_nonnull(
            strstr(placement_bench.machine.reason, "waited 5 s for storage step-9.g1"));
    }
}

/* While nobody knows whether a commit took effect, no generation is opened. */
KELP_TEST(undecided_commit)
{
    placement_start();
    (void)placement_apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_RESTORE,
                                                        .restore = {.undecided = true}});
    ck_assert_uint_eq(placement_appear("shard-1", 12) & DID(WRITE_MAP), 0);
    ck_assert_uint_ne(restore_from(9, 1, false) & DID(WRITE_MAP), 0);
    ck_assert_uint_eq(placement_bench.machine.next.restore_version, 9);
}

/* Names of imported checkpoints hold generations: the next one is above all of them. */
KELP_TEST(generations_go_on)
{
    (void)placement_none_read();
    (void)restore_from(9, 7, false);
    (void)placement_plan(5);
    (void)placement_workers(2);
    (void)placement_appear("shard-0", 10);
    (void)placement_appear("shard-1", 11);
    ck_assert_uint_eq(placement_bench.machine.next.generation, 8);
}

/* The shard's side ended the stream and it stays away: lost, though its lease lives; its process is
 * gone. Mere silence: not lost, but named, until somebody has started it again. */
KELP_LOOP_TEST(broken_or_silent, 0, 2)
{
    placement_start();
    (void)disconnected("shard-1", _i == 0);
    const struct kelp_placement_shard *shard =
        kelp_placement_find(&placement_bench.machine, "shard-1");
    ck_assert(!kelp_placement_silent(&placement_bench.machine, shard, placement_bench.now));
    uint32_t actions = placement_tick(3000);
    ck_assert((actions & DID(COUNT_LOSS)) == (_i == 0 ? DID(COUNT_LOSS) : 0));
    shard = kelp_placement_find(&placement_bench.machine, "shard-1");
    ck_assert(!kelp_placement_silent(&placement_bench.machine, shard, placement_bench.now));
    (void)placement_tick(KELP_COORDINATOR_HANG_MS - 3000);
    shard = kelp_placement_find(&placement_bench.machine, "shard-1");
    ck_assert(kelp_placement_silent(&placement_bench.machine, shard, placement_bench.now) ==
              (_i == 1));
    if (_i == 1) {
        actions = placement_say(KELP_PLACEMENT_UNREGISTERED, "shard-1", 11);
        ck_assert_uint_ne(actions & DID(COUNT_LOSS), 0);
        shard = kelp_placement_find(&placement_bench.machine, "shard-1");
        ck_assert(kelp_placement_silent(&placement_bench.machine, shard, placement_bench.now));
        (void)placement_registered("shard-1", 12);
        shard = kelp_placement_find(&placement_bench.machine, "shard-1");
        ck_assert(!kelp_placement_silent(&placement_bench.machine, shard, placement_bench.now));
    }
}

/* While training goes on, each shard takes part: neither a broken stream nor silence is a loss.
 * Once it stands, they are. */
KELP_LOOP_TEST(progress_speaks_for_shards, 0, 2)
{
    placement_start();
    (void)disconnected("shard-1", _i == 0);
    for (int i = 0; i < 20; i++) {
        kelp_placement_progressed(&placement_bench.machine, placement_bench.now);
        ck_assert_uint_eq(placement_tick(1000) & DID(COUNT_LOSS), 0);
        const struct kelp_placement_shard *shard =
            kelp_placement_find(&placement_bench.machine, "shard-1");
        ck_assert(!kelp_placement_silent(&placement_bench.machine, shard, placement_bench.now));
    }
    uint32_t actions = placement_tick(3000);
    ck_assert((actions & DID(COUNT_LOSS)) == (_i == 0 ? DID(COUNT_LOSS) : 0));
    const struct kelp_placement_shard *shard =
        kelp_placement_find(&placement_bench.machine, "shard-1");
    ck_assert(kelp_placement_silent(&placement_bench.machine, shard, placement_bench.now) ==
              (_i == 1));
}

/* No shard is heard, and all their leases live: it is us. One that was broken off, or whose lease
 * is gone, speaks against it. */
KELP_LOOP_TEST(cut_off, 0, 3)
{
    placement_start();
    (void)disconnected("shard-0", false);
    (void)disconnected("shard-1", _i == 1);
    if (_i == 2) {
        (void)placement_say(KELP_PLACEMENT_UNREGISTERED, "shard-1", 11);
    }
    uint32_t actions = placement_tick(100);
    for (int i = 0; i < 100; i++) {
        actions |= placement_tick(100);
    }
    ck_assert((actions & DID(RESIGN)) == (_i == 0 ? DID(RESIGN) : 0));
}

/* Who left for good, and is in no map, is forgotten. */
KELP_TEST(forgets_names)
{
    placement_start();
    (void)placement_appear("shard-7", 70);
    ck_assert_ptr_nonnull(kelp_placement_find(&placement_bench.machine, "shard-7"));
    (void)disconnected("shard-7", true);
    ck_assert_ptr_nonnull(kelp_placement_find(&placement_bench.machine, "shard-7"));
    (void)placement_say(KELP_PLACEMENT_UNREGISTERED, "shard-7", 70);
    ck_assert_ptr_null(kelp_placement_find(&placement_bench.machine, "shard-7"));
    ck_assert_uint_eq(placement_bench.machine.shard_count, 2);
}

/* A finish does not count while a shard is not reached: it may be dead. */
KELP_TEST(finish_needs_all_shards)
{
    placement_start();
    (void)disconnected("shard-1", true);
    (void)placement_finished(1);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
    (void)placement_say(KELP_PLACEMENT_CONNECTED, "shard-1", 11);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_DONE);
}

/* After the end a shard is lost: with a checkpoint of the final state it is loaded once more. */
KELP_LOOP_TEST(lost_after_the_end, 0, 2)
{
    placement_start();
    (void)placement_finished(1);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_DONE);
    (void)restore_from(99, 1, _i == 1);
    uint32_t actions = placement_appear("shard-1", 12);
    if (_i == 0) {
        ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_DONE);
        return;
    }
    ck_assert_uint_ne(actions & DID(WRITE_MAP), 0);
    (void)placement_written(KELP_WRITTEN_OK);
    (void)placement_say(KELP_PLACEMENT_LOADED, "shard-0", 10);
    (void)placement_say(KELP_PLACEMENT_LOADED, "shard-1", 12);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
    (void)placement_finished(2);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_DONE);
}

KELP_TEST(rests_when_paused)
{
    placement_start();
    struct kelp_placement_event event = {.kind = KELP_PLACEMENT_PAUSE, .pause = "paused at step 9"};
    (void)placement_apply(event);
    ck_assert_str_eq(kelp_placement_state_text(placement_bench.machine.state), "paused");
    ck_assert_str_eq(placement_bench.machine.reason, "paused at step 9");
    ck_assert_uint_eq(placement_appear("shard-1", 12) & DID(WRITE_MAP), 0);
    ck_assert(kelp_placement_settled(&placement_bench.machine));
}

static uint32_t blocked(const char *id, uint64_t incarnation)
{
    return placement_apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_BLOCKED,
                                      .load_failed = {.id = id,
                                                      .incarnation = incarnation,
                                                      .status = KELP_ERR_CONTROL_WORD,
                                                      .text = "worker-7 and worker-1 differ"}});
}

/* Two workers sent a shard different words: it goes on with another generation, a few times. */
KELP_TEST(blocked_shard)
{
    placement_start();
    ck_assert_uint_eq(blocked("shard-1", 99), 0); /* of one that is gone */
    for (uint64_t generation = 2; generation < 5; generation++) {
        (void)blocked("shard-1", 11);
        ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_WAITING);
        ck_assert_str_eq(placement_bench.machine.reason, "shard-1: worker-7 and worker-1 differ");
        (void)blocked("shard-0", 10); /* it says so too */
        ck_assert_uint_ne(placement_tick(1000) & DID(WRITE_MAP), 0);
        ck_assert_uint_eq(placement_bench.machine.next.generation, generation);
        (void)placement_written(KELP_WRITTEN_OK);
        (void)placement_apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_LOADED,
                                                            .loaded = {"shard-0", 10, generation}});
        (void)placement_apply((struct kelp_placement_event){.kind = KELP_PLACEMENT_LOADED,
                                                            .loaded = {"shard-1", 11, generation}});
        ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_RUNNING);
    }
    (void)blocked("shard-1", 11);
    ck_assert_int_eq(placement_bench.machine.state, KELP_PLACEMENT_FAILED);
    ck_assert_str_eq(placement_bench.machine.reason, "shard-1: worker-7 and worker-1 differ");
}
