/* Checkpoints: what a commit's answer means, the end of the job, removal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cores/checkpoint_bench.h"
#include "tests/lib/suite.h"

KELP_CASE("checkpoints", .teardown = checkpoint_teardown)

/* ---- the answer to a commit ------------------------------------------------------------------ */

/* Lost answers: the same one is sent again, and no data is touched before it is decided. */
KELP_TEST(lost_answers)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(50, 100);
    (void)checkpoint_all_durable();
    (void)checkpoint_simple(KELP_CHECKPOINTER_SENT);
    ck_assert(checkpoint_undecided());
    uint64_t serial = checkpoint_bench.machine.order.serial;
    for (int i = 0; i < 3; i++) {
        uint32_t actions =
            checkpoint_committed(i == 1 ? KELP_CHECKPOINTER_AWAY : KELP_CHECKPOINTER_UNKNOWN);
        actions |= checkpoint_tick(100);
        ck_assert_uint_eq(actions & (DID(COMMIT) | DID(DISCARD)), 0);
        ck_assert(checkpoint_undecided());
        actions = checkpoint_tick(KELP_COORDINATOR_RETRY_MS);
        ck_assert_uint_ne(actions & DID(COMMIT), 0);
        ck_assert_uint_eq(checkpoint_bench.machine.order.serial, serial);
        (void)checkpoint_simple(KELP_CHECKPOINTER_SENT);
    }
    uint32_t actions = checkpoint_simple(KELP_CHECKPOINTER_STOPPED); /* a shard is lost meanwhile */
    ck_assert_uint_eq(actions & DID(DISCARD), 0);
    actions = checkpoint_committed(KELP_CHECKPOINTER_OK);
    ck_assert_uint_ne(actions & DID(RESTORE), 0);
    ck_assert(!checkpoint_undecided());
    ck_assert_uint_eq(kelp_committed_list_newest(&checkpoint_bench.machine.list)->step, 50);
}

/* A generation that was decided on while a commit was under way takes it back: nobody restores it.
 */
KELP_TEST(committed_and_taken_back)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(50, 100);
    (void)checkpoint_all_durable();
    ck_assert_uint_ne(checkpoint_committed(KELP_CHECKPOINTER_OK) & DID(RESTORE), 0);
    ck_assert_ptr_nonnull(kelp_committed_list_newest(&checkpoint_bench.machine.list));
    ck_assert_uint_ne(checkpoint_open_generation(2, 0) & DID(RESTORE), 0);
    ck_assert_ptr_null(kelp_committed_list_newest(&checkpoint_bench.machine.list));
}

/* Elected again, perhaps with another leader in between: serials go on above all of its orders. */
KELP_TEST(elected_again)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    checkpoint_make_due();
    uint64_t serial = checkpoint_bench.machine.order.serial;
    (void)checkpoint_apply((struct kelp_checkpointer_event){
        .kind = KELP_CHECKPOINTER_LISTED, .listed = {.first_serial = serial + 500}});
    ck_assert_uint_eq(checkpoint_bench.machine.order.serial, serial);
    (void)checkpoint_report(0, KELP_CHECKPOINTER_ANSWER_FAILED);
    checkpoint_make_due();
    ck_assert_uint_eq(checkpoint_bench.machine.order.serial, serial + 501);
    (void)checkpoint_apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_LISTED,
                                                            .listed = {.first_serial = SERIAL}});
    (void)checkpoint_report(0, KELP_CHECKPOINTER_ANSWER_FAILED);
    checkpoint_make_due();
    ck_assert_uint_eq(checkpoint_bench.machine.order.serial, serial + 502);
}

/* Another leader ordered one while we were away: no shard will answer ours. The serials that follow
 * are that leader's: nothing is ordered until we are elected again, then at once. A report of an
 * older order changes nothing. */
KELP_TEST(overtaken)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    checkpoint_make_due();
    uint64_t serial = checkpoint_bench.machine.order.serial;
    struct kelp_checkpointer_report from = {.shard = "shard-0",
                                            .incarnation = 10,
                                            .serial = serial - 1,
                                            .answer = KELP_CHECKPOINTER_ANSWER_TAKING};
    const struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_REPORT,
                                                  .report = &from};
    ck_assert_uint_eq(checkpoint_apply(event), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.order.serial, serial);
    from.serial = serial + 500;
    uint32_t actions = checkpoint_apply(event);
    ck_assert_uint_ne(actions & DID(DISCARD), 0);
    ck_assert_str_eq(checkpoint_bench.machine.discarded, "step-50.g1");
    ck_assert_uint_eq(checkpoint_bench.machine.given_up, serial);
    (void)checkpoint_run_to(checkpoint_bench.word.step + 200, 10);
    ck_assert_uint_eq(checkpoint_bench.machine.order.serial, 0);
    (void)checkpoint_apply((struct kelp_checkpointer_event){
        .kind = KELP_CHECKPOINTER_LISTED, .listed = {.first_serial = serial + 499}});
    ck_assert_uint_eq(checkpoint_bench.machine.order.serial, 0); /* not above the other leader's */
    (void)checkpoint_apply((struct kelp_checkpointer_event){
        .kind = KELP_CHECKPOINTER_LISTED, .listed = {.first_serial = serial + 1000}});
    checkpoint_make_due();
    ck_assert_uint_eq(checkpoint_bench.machine.order.serial, serial + 1001);
    ck_assert_str_ne(checkpoint_bench.machine.order.folder, "step-50.g1");
    (void)checkpoint_apply((struct kelp_checkpointer_event){
        .kind = KELP_CHECKPOINTER_LISTED, .listed = {.first_serial = serial + 3000}});
    from.serial = serial + 2000; /* of a leader before this election of ours */
    (void)checkpoint_apply(event);
    checkpoint_make_due();
    ck_assert_uint_eq(checkpoint_bench.machine.order.serial, serial + 3001);
}

/* Never reached etcd: it is not undecided. Refused: abandoned. A new generation decides. */
KELP_LOOP_TEST(not_committed, 0, 3)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(50, 100);
    (void)checkpoint_all_durable();
    (void)checkpoint_simple(KELP_CHECKPOINTER_SENT);
    uint32_t actions = 0;
    if (_i == 0) {
        (void)checkpoint_committed(KELP_CHECKPOINTER_AWAY);
        ck_assert(!checkpoint_undecided());
        return;
    }
    if (_i == 1) {
        actions = checkpoint_committed(KELP_CHECKPOINTER_REFUSED);
        ck_assert_ptr_nonnull(
            strstr(checkpoint_bench.machine.trouble, "the checkpoint_bench.map has changed"));
    } else {
        (void)checkpoint_committed(KELP_CHECKPOINTER_UNKNOWN);
        (void)checkpoint_simple(KELP_CHECKPOINTER_STOPPED);
        actions = checkpoint_open_generation(2, 0);
    }
    ck_assert_uint_ne(actions & DID(DISCARD), 0);
    ck_assert_str_eq(checkpoint_bench.machine.discarded, "step-50.g1");
    ck_assert(!checkpoint_undecided());
    ck_assert_uint_eq(checkpoint_committed(KELP_CHECKPOINTER_OK), 0); /* one that came late */
    ck_assert_uint_eq(checkpoint_bench.machine.list.count, 0);
}

static const enum kelp_checkpointer_result results[] = {
    KELP_CHECKPOINTER_OK, KELP_CHECKPOINTER_AWAY, KELP_CHECKPOINTER_REFUSED,
    KELP_CHECKPOINTER_UNKNOWN};

/* A commit of the generation before is answered only now: the order of this one goes on, and its
 * data stays. Its own answer decides. */
KELP_LOOP_TEST(answer_of_an_order_before, 0, KELP_ARRAY_COUNT(results))
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(50, 100);
    (void)checkpoint_all_durable();
    uint64_t before = checkpoint_bench.machine.order.serial;
    (void)checkpoint_committed(KELP_CHECKPOINTER_AWAY);
    ck_assert_uint_ne(checkpoint_tick(KELP_COORDINATOR_RETRY_MS) & DID(COMMIT), 0);
    ck_assert(kelp_checkpointer_awaits(&checkpoint_bench.machine, before));
    (void)checkpoint_simple(KELP_CHECKPOINTER_STOPPED);
    (void)checkpoint_open_generation(2, 0);
    checkpoint_bench.word.step = 0;
    (void)checkpoint_run_to(50, 100);
    ck_assert_uint_ne(checkpoint_all_durable() & DID(COMMIT), 0);
    uint64_t serial = checkpoint_bench.machine.order.serial;
    ck_assert(!kelp_checkpointer_awaits(&checkpoint_bench.machine, before));
    ck_assert(kelp_checkpointer_awaits(&checkpoint_bench.machine, serial));
    ck_assert_uint_eq(checkpoint_committed_order(before, results[_i]), 0);
    ck_assert_int_eq(checkpoint_bench.machine.state, KELP_CHECKPOINTER_WRITING);
    ck_assert_uint_eq(checkpoint_bench.machine.order.serial, serial);
    ck_assert_uint_eq(checkpoint_bench.machine.list.count, 0);
    (void)checkpoint_committed_order(serial, KELP_CHECKPOINTER_OK);
    ck_assert_int_eq(checkpoint_bench.machine.state, KELP_CHECKPOINTER_IDLE);
    ck_assert_uint_eq(kelp_committed_list_newest(&checkpoint_bench.machine.list)->step, 50);
}

/* What the transaction needs is still being written by a slow disk: it is not undecided, so that
 * the generation after the loss of a shard need not wait for that disk. */
KELP_LOOP_TEST(not_sent_yet, 0, 2)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(50, 100);
    ck_assert_uint_ne(checkpoint_all_durable() & DID(COMMIT), 0);
    ck_assert(!checkpoint_undecided());
    (void)checkpoint_simple(KELP_CHECKPOINTER_STOPPED);
    ck_assert(!checkpoint_undecided());
    if (_i == 0) {
        ck_assert_uint_ne(checkpoint_open_generation(2, 0) & DID(DISCARD), 0);
        ck_assert_str_eq(checkpoint_bench.machine.discarded, "step-50.g1");
        ck_assert_uint_eq(checkpoint_simple(KELP_CHECKPOINTER_SENT), 0); /* too late */
        ck_assert(!checkpoint_undecided());
    } else {
        ck_assert_uint_ne(checkpoint_simple(KELP_CHECKPOINTER_SENT) & DID(RESTORE), 0);
        ck_assert(checkpoint_undecided());
        ck_assert_uint_ne(checkpoint_committed(KELP_CHECKPOINTER_OK) & DID(RESTORE), 0);
        ck_assert(!checkpoint_undecided());
    }
}

/* The same version from two generations must have the same digest. */
KELP_LOOP_TEST(digests_agree, 0, 2)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)snprintf(checkpoint_bench.digest, sizeof(checkpoint_bench.digest), "%s",
                   checkpoint_bench.digests[0]);
    (void)checkpoint_run_to(49, 100);
    checkpoint_make();
    (void)checkpoint_simple(KELP_CHECKPOINTER_STOPPED);
    checkpoint_bench.word.step = 0;
    (void)checkpoint_open_generation(2, 0);
    ck_assert_uint_eq(checkpoint_bench.machine.list.count, 0); /* above the restored version */
    (void)checkpoint_run_to(50, 100);
    (void)checkpoint_all_durable();
    (void)snprintf(checkpoint_bench.digest, sizeof(checkpoint_bench.digest), "%s",
                   checkpoint_bench.digests[_i]);
    uint32_t actions = checkpoint_committed(KELP_CHECKPOINTER_OK);
    ck_assert((actions & DID(FAIL)) == (_i == 0 ? 0 : DID(FAIL)));
    if (_i == 1) {
        ck_assert_ptr_nonnull(strstr(checkpoint_bench.machine.trouble, "different bits"));
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static uint32_t finish(void)
{
    (void)checkpoint_run_to(1000, 10);
    checkpoint_bench.word.kind = KELP_STEP_DONE;
    checkpoint_bench.word.version++;
    uint32_t actions = checkpoint_apply((struct kelp_checkpointer_event){
        .kind = KELP_CHECKPOINTER_PROGRESS, .progress = &checkpoint_bench.word});
    ck_assert_uint_eq(actions & (DID(ORDER) | DID(END)), 0);
    return checkpoint_simple(KELP_CHECKPOINTER_FINISHED);
}

static uint32_t final_durable(void)
{
    checkpoint_bench.word.version = 1010; /* as checkpoint_report() says it */
    (void)checkpoint_progress(1000);
    return checkpoint_all_durable();
}

/* The final state is saved, then the end is said once. */
KELP_TEST(final_checkpoint)
{
    checkpoint_begin((struct kelp_checkpointer_options){.at_end = true, .steps = 550});
    uint32_t actions = checkpoint_run_to(549, 10);
    checkpoint_make();
    actions = finish();
    ck_assert_uint_ne(actions & DID(ORDER), 0);
    ck_assert_uint_eq(actions & DID(END), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.order.step, 1000);
    ck_assert_uint_ne(final_durable() & DID(COMMIT), 0);
    actions = checkpoint_committed(KELP_CHECKPOINTER_OK);
    ck_assert_uint_ne(actions & DID(END), 0);
    ck_assert_uint_eq(checkpoint_tick(100000), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.list.count, 2);
}

/* It fails for good: said, and the job is done all the same. */
KELP_TEST(final_checkpoint_fails)
{
    checkpoint_begin((struct kelp_checkpointer_options){.at_end = true});
    (void)finish();
    uint32_t actions = 0;
    int tries = 0;
    while ((actions & DID(END)) == 0) {
        ck_assert_int_lt(++tries, 10);
        if (checkpoint_bench.machine.state == KELP_CHECKPOINTER_IDLE) {
            ck_assert_uint_ne(checkpoint_tick(KELP_COORDINATOR_PAUSE_MAX_MS) & DID(ORDER), 0);
        }
        actions = checkpoint_report(0, KELP_CHECKPOINTER_ANSWER_FAILED);
    }
    ck_assert_int_eq(tries, KELP_COORDINATOR_END_TRIES);
    ck_assert_ptr_nonnull(strstr(checkpoint_bench.machine.trouble, "disk full"));
    ck_assert_uint_eq(checkpoint_tick(100000), 0);
}

KELP_TEST(no_final_checkpoint_wanted)
{
    checkpoint_begin((struct kelp_checkpointer_options){.at_end = false});
    ck_assert_uint_eq(finish(), DID(END));
}

/* A job that was done at step 100 gets more epochs: FINISH is no entry of it, so that the version
 * of the final checkpoint comes again one step later. That one is not what is saved there. */
KELP_LOOP_TEST(more_epochs, 0, 2)
{
    struct kelp_committed final = {.version = 102, .step = 100, .generation = 1};
    final.manifest = strdup("{}");
    (void)snprintf(final.state_digest, sizeof(final.state_digest), "%s",
                   checkpoint_bench.digests[0]);
    (void)snprintf(final.folder, sizeof(final.folder), "step-100.g1");
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 0});
    (void)checkpoint_apply((struct kelp_checkpointer_event){
        .kind = KELP_CHECKPOINTER_LISTED, .listed = {.entries = &final, .count = 1}});
    (void)checkpoint_open_generation(2, 102);
    (void)checkpoint_run_to(100, 0);
    (void)checkpoint_run_to(101, 10);
    ck_assert_uint_eq(checkpoint_bench.word.version, 102);
    if (_i == 1) {
        checkpoint_bench.now += KELP_COORDINATOR_STILL_MS + 1;
    }
    (void)checkpoint_request(true);
    ck_assert_uint_eq(checkpoint_bench.machine.answered, 0);
    ck_assert_int_eq(checkpoint_bench.machine.state, KELP_CHECKPOINTER_ORDERED);
    checkpoint_bench.machine.order.step = 101;
    uint64_t serial = checkpoint_bench.machine.order.serial;
    uint32_t actions = checkpoint_all_durable();
    ck_assert_uint_ne(actions & DID(DISCARD), 0);
    ck_assert_uint_eq(actions & (DID(COMMIT) | DID(PAUSE)), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.answered, 0);
    if (_i == 1) {
        ck_assert_uint_eq(checkpoint_bench.machine.refused, checkpoint_bench.machine.requested);
        ck_assert_int_eq(checkpoint_bench.machine.state, KELP_CHECKPOINTER_IDLE);
        return;
    }
    ck_assert_uint_gt(checkpoint_bench.machine.order.serial, serial); /* at once again */
    (void)checkpoint_run_to(checkpoint_bench.machine.order.step, 10);
    (void)snprintf(checkpoint_bench.digest, sizeof(checkpoint_bench.digest), "%s",
                   checkpoint_bench.digests[1]);
    (void)checkpoint_all_durable();
    actions = checkpoint_committed(KELP_CHECKPOINTER_OK);
    ck_assert_uint_ne(actions & DID(PAUSE), 0);
    ck_assert_uint_eq(actions & DID(FAIL), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.paused_step, checkpoint_bench.word.step);
}

/* It is gone, damaged perhaps, and its version is committed as a step's: no broken promise. */
KELP_TEST(more_epochs_from_before)
{
    struct kelp_committed final = {.version = 51, .step = 49, .generation = 1};
    final.manifest = strdup("{}");
    (void)snprintf(final.state_digest, sizeof(final.state_digest), "%s",
                   checkpoint_bench.digests[0]);
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 51});
    (void)checkpoint_apply((struct kelp_checkpointer_event){
        .kind = KELP_CHECKPOINTER_LISTED, .listed = {.entries = &final, .count = 1}});
    (void)checkpoint_open_generation(2, 0);
    ck_assert_uint_eq(checkpoint_bench.machine.list.count, 0);
    (void)checkpoint_run_to(51, 10);
    (void)snprintf(checkpoint_bench.digest, sizeof(checkpoint_bench.digest), "%s",
                   checkpoint_bench.digests[1]);
    (void)checkpoint_all_durable();
    ck_assert_uint_eq(checkpoint_committed(KELP_CHECKPOINTER_OK) & DID(FAIL), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.list.entries[0].version, 51);
}

/* ---- removal --------------------------------------------------------------------------------- */

/* One after the other, oldest first, and only what etcd said is gone leaves the list. */
KELP_TEST(retention)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 30});
    (void)checkpoint_run_to(29, 100);
    checkpoint_make();
    (void)checkpoint_run_to(59, 100);
    checkpoint_make();
    ck_assert(!checkpoint_bench.machine.removing_now);
    (void)checkpoint_run_to(89, 100);
    checkpoint_make();
    ck_assert(checkpoint_bench.machine.removing_now);
    ck_assert_uint_eq(checkpoint_bench.machine.removing, 30);
    ck_assert_str_eq(checkpoint_bench.machine.removing_folder, "step-30.g1");
    struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_REMOVED,
                                            .removed = KELP_CHECKPOINTER_UNKNOWN};
    ck_assert_uint_eq(checkpoint_apply(event) & DID(REMOVE), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.list.count, 3);
    ck_assert_uint_ne(checkpoint_tick(KELP_COORDINATOR_PAUSE_MS) & DID(REMOVE), 0);
    event.removed = KELP_CHECKPOINTER_OK;
    (void)checkpoint_apply(event);
    ck_assert_uint_eq(checkpoint_bench.machine.list.count, 2);
    ck_assert_uint_eq(checkpoint_bench.machine.list.entries[0].step, 60);
}

/* Taken out of etcd by a transaction whose answer was lost: known by the next list. What is listed
 * again, cannot be read, or lies in a folder that is still named, is there. */
KELP_TEST(gone)
{
    struct kelp_committed entry = {.version = 30, .folder = "step-30.g1"};
    struct kelp_committed now_there[3] = {{.version = 20, .folder = "step-20.g1"},
                                          {.version = 30, .folder = "step-30.g1"},
                                          {.version = 40, .folder = "step-40.g1"}};
    ck_assert(!kelp_committed_gone(&entry, now_there, 3));
    ck_assert(kelp_committed_gone(&entry, now_there, 1));
    ck_assert(kelp_committed_gone(&entry, NULL, 0));
    now_there[1].folder[0] = '\0';
    ck_assert(!kelp_committed_gone(&entry, now_there, 3));
    (void)snprintf(now_there[1].folder, sizeof(now_there[1].folder), "step-30.g2");
    ck_assert(kelp_committed_gone(&entry, now_there, 3)); /* of another generation */
    now_there[1] = (struct kelp_committed){.version = 31, .folder = "step-30.g1"};
    ck_assert(!kelp_committed_gone(&entry, now_there, 3));
}
