/* Checkpoints: which step is ordered, requests, who must answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cores/checkpoint_bench.h"
#include "tests/lib/suite.h"

/* ---- when and which step --------------------------------------------------------------------- */

KELP_CASE("checkpoints", .teardown = checkpoint_teardown)

/* Multiples of checkpoint.steps, ordered before training gets there, and not long before. */
KELP_TEST(by_steps)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    ck_assert_uint_eq(checkpoint_run_to(20, 100) & DID(ORDER), 0);
    ck_assert_uint_ne(checkpoint_run_to(49, 100) & DID(ORDER), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.order.step, 50);
    ck_assert_uint_eq(checkpoint_bench.machine.order.generation, 1);
    ck_assert_uint_eq(checkpoint_bench.machine.order.serial, SERIAL + 1);
    ck_assert_str_eq(checkpoint_bench.machine.order.folder, "step-50.g1");
    checkpoint_make();
    ck_assert_uint_eq(checkpoint_bench.machine.list.count, 1);
    ck_assert_uint_eq(checkpoint_bench.machine.list.entries[0].version, 50);
    ck_assert_uint_ne(checkpoint_run_to(99, 100) & DID(ORDER), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.order.step, 100);
}

/* A fast job: the step is as far ahead as it runs while the order travels; while one is being
 * written, multiples are left out. */
KELP_TEST(fast_steps)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 10});
    checkpoint_bench.machine.schedule.total_steps = 100000;
    for (int i = 0; i < 10; i++) {
        checkpoint_bench.now += 50;
        (void)checkpoint_progress(checkpoint_bench.word.step +
                                  25); /* 500 a second: 75 in the lead time */
    }
    ck_assert_int_eq(checkpoint_bench.machine.state, KELP_CHECKPOINTER_ORDERED);
    (void)checkpoint_report(
        0, KELP_CHECKPOINTER_ANSWER_PAST); /* the first one came before there was a rate */
    ck_assert_int_eq(checkpoint_bench.machine.state, KELP_CHECKPOINTER_ORDERED);
    uint64_t step = checkpoint_bench.machine.order.step;
    ck_assert_uint_ge(step, checkpoint_bench.word.step + 75);
    ck_assert_uint_eq(step % 10, 0);
    checkpoint_bench.now += 50;
    (void)checkpoint_progress(step + 35);
    ck_assert_uint_ne(checkpoint_all_durable() & DID(COMMIT), 0);
    (void)checkpoint_committed(KELP_CHECKPOINTER_OK);
    ck_assert_uint_ge(checkpoint_bench.machine.order.step, step + 35 + 75);
}

/* A partition is past the step: at once again, with twice the margin, in another folder; that is no
 * failure. */
KELP_TEST(past_doubles_the_margin)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 0});
    (void)checkpoint_run_to(20, 100);
    ck_assert_uint_ne(checkpoint_request(false) & DID(ORDER), 0);
    uint64_t first = checkpoint_bench.machine.order.step - checkpoint_bench.word.step;
    uint32_t actions = checkpoint_report(1, KELP_CHECKPOINTER_ANSWER_PAST);
    ck_assert_uint_ne(actions & DID(DISCARD), 0);
    ck_assert_uint_ne(actions & DID(ORDER), 0);
    ck_assert_uint_eq(actions & DID(SAY), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.order.step,
                      checkpoint_bench.word.step + 3 + 2 * first);
    ck_assert_str_ne(checkpoint_bench.machine.order.folder, checkpoint_bench.machine.discarded);
    ck_assert_uint_eq(checkpoint_bench.machine.failed, 0);
}

KELP_TEST(by_time)
{
    checkpoint_begin((struct kelp_checkpointer_options){.interval_ms = 5000});
    ck_assert_uint_eq(checkpoint_run_to(40, 100) & DID(ORDER), 0);
    ck_assert_uint_ne(checkpoint_run_to(55, 100) & DID(ORDER), 0);
    checkpoint_make();
    uint64_t step = checkpoint_bench.word.step;
    ck_assert_uint_eq(checkpoint_run_to(step + 45, 100) & DID(ORDER), 0);
    ck_assert_uint_ne(checkpoint_run_to(step + 55, 100) & DID(ORDER), 0);
}

/* Ends of epochs; the commit waits for the evaluation of its step, but not for ever. */
KELP_LOOP_TEST(by_epochs, 0, 2)
{
    double metric[KELP_CHECKPOINT_METRICS] = {0.5, 0.25, 0.125, 0.75, 0.875};
    checkpoint_begin((struct kelp_checkpointer_options){.epochs = 2});
    (void)checkpoint_run_to(200, 10);
    ck_assert_uint_eq(checkpoint_bench.machine.order.step, 200);
    ck_assert_uint_eq(checkpoint_all_durable() & DID(COMMIT), 0);
    if (_i == 0) {
        struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_EVALUATED,
                                                .evaluated = {.step = 200}};
        memcpy(event.evaluated.metric, metric, sizeof(metric));
        ck_assert_uint_ne(checkpoint_apply(event) & DID(COMMIT), 0);
    } else {
        ck_assert_uint_ne(checkpoint_tick(KELP_COORDINATOR_EVALUATION_MS) & DID(COMMIT), 0);
    }
    (void)checkpoint_committed(KELP_CHECKPOINTER_OK);
    ck_assert_uint_eq(checkpoint_bench.machine.list.entries[0].version, 202);
    ck_assert(checkpoint_bench.machine.list.entries[0].has_metric == (_i == 0));
    if (_i == 0) {
        ck_assert_double_eq(checkpoint_bench.machine.list.entries[0].metric[1], 0.25);
    }
}

/* Training ends early: an order for a step that it never comes to is given up, for the end's. */
KELP_TEST(early_end)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 200, .at_end = true});
    (void)checkpoint_run_to(195, 10);
    ck_assert_uint_eq(checkpoint_bench.machine.order.step, 200);
    uint64_t serial = checkpoint_bench.machine.order.serial;
    checkpoint_bench.word.kind = KELP_STEP_FINISH;
    checkpoint_bench.word.version++;
    uint32_t actions = checkpoint_apply((struct kelp_checkpointer_event){
        .kind = KELP_CHECKPOINTER_PROGRESS, .progress = &checkpoint_bench.word});
    ck_assert_uint_ne(actions & DID(ORDER), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.given_up, serial);
    ck_assert_uint_eq(checkpoint_bench.machine.order.serial, 0);
    ck_assert_uint_eq(checkpoint_tick(60000) & DID(ORDER), 0); /* nothing is ahead */
    checkpoint_bench.word.kind = KELP_STEP_DONE;
    checkpoint_bench.word.version++;
    (void)checkpoint_apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_PROGRESS,
                                                            .progress = &checkpoint_bench.word});
    ck_assert_uint_ne(checkpoint_simple(KELP_CHECKPOINTER_FINISHED) & DID(ORDER), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.order.step, 195);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Answered by the commit; a request that comes while its step is ahead is answered by the same. */
KELP_TEST(requests)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 0});
    (void)checkpoint_run_to(10, 100);
    (void)checkpoint_request(false);
    (void)checkpoint_request(false);
    ck_assert_uint_eq(checkpoint_bench.machine.requested, SERIAL + 2);
    checkpoint_make();
    ck_assert_uint_eq(checkpoint_bench.machine.answered, SERIAL + 2);
    ck_assert_int_eq(checkpoint_bench.machine.state, KELP_CHECKPOINTER_IDLE);
}

/* Nothing was completed since the newest one: that is it. */
KELP_TEST(request_found)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 0});
    (void)checkpoint_run_to(10, 100);
    (void)checkpoint_request(false);
    checkpoint_make();
    ck_assert_uint_eq(checkpoint_request(false) & DID(ORDER), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.answered, SERIAL + 2);
}

/* Training stands still (no worker is there): what there is, is saved. */
KELP_TEST(request_at_a_standstill)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 0});
    (void)checkpoint_run_to(10, 100);
    (void)checkpoint_request(true);
    ck_assert_uint_gt(checkpoint_bench.machine.order.step, 10);
    (void)checkpoint_tick(500);
    ck_assert_uint_gt(checkpoint_bench.machine.order.step, 10);
    ck_assert_uint_ne(checkpoint_tick(600) & DID(ORDER), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.order.step, 10);
    (void)checkpoint_all_durable();
    uint32_t actions = checkpoint_committed(KELP_CHECKPOINTER_OK);
    ck_assert_uint_ne(actions & DID(PAUSE), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.paused_step, 10);
    ck_assert_uint_eq(checkpoint_run_to(100, 100) & DID(ORDER), 0);
}

/* Steps that would be made again are not made: workers may leave once all partitions have stood at
 * the step of a pause, not earlier, not for other checkpoints, and not when it has
 * failed. */
KELP_TEST(pause_holds)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(52, 10);
    (void)checkpoint_request(true); /* the one under way is of an earlier step */
    (void)checkpoint_run_to(55, 10);
    ck_assert(!kelp_checkpointer_holds(&checkpoint_bench.machine));
    (void)checkpoint_all_durable();
    (void)checkpoint_committed(KELP_CHECKPOINTER_OK);
    ck_assert(!kelp_checkpointer_holds(&checkpoint_bench.machine));
    while (checkpoint_bench.word.step <
           checkpoint_bench.machine.order.step) { /* which may come to be an earlier one */
        (void)checkpoint_run_to(checkpoint_bench.word.step + 1, 1);
    }
    ck_assert(!kelp_checkpointer_holds(&checkpoint_bench.machine));
    (void)checkpoint_run_to(checkpoint_bench.word.step + 1, 1);
    ck_assert(kelp_checkpointer_holds(&checkpoint_bench.machine));
    (void)checkpoint_report(1, KELP_CHECKPOINTER_ANSWER_FAILED);
    ck_assert(!kelp_checkpointer_holds(&checkpoint_bench.machine));
    (void)checkpoint_request(true);
    while (checkpoint_bench.machine.order.serial == 0 ||
           checkpoint_bench.word.step <= checkpoint_bench.machine.order.step) {
        (void)checkpoint_run_to(checkpoint_bench.word.step + 1, 1);
    }
    (void)checkpoint_all_durable();
    ck_assert_int_eq(checkpoint_bench.machine.state, KELP_CHECKPOINTER_WRITING);
    ck_assert(kelp_checkpointer_holds(&checkpoint_bench.machine));
}

/* A shard was lost while a pause was being committed, so that nothing was paused: the generation
 * after it makes checkpoints as any other one, and the next request to pause is heard.
 */
KELP_TEST(pause_overtaken)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(10, 100);
    (void)checkpoint_request(true);
    (void)checkpoint_run_to(checkpoint_bench.machine.order.step, 10);
    (void)checkpoint_all_durable();
    (void)checkpoint_simple(KELP_CHECKPOINTER_STOPPED);
    ck_assert_uint_ne(checkpoint_committed(KELP_CHECKPOINTER_OK) & DID(PAUSE), 0);
    (void)checkpoint_open_generation(2, checkpoint_bench.machine.list.entries[0].version);
    checkpoint_make_due();
    (void)checkpoint_request(true); /* it comes before the step: answered by that one */
    (void)checkpoint_run_to(checkpoint_bench.machine.order.step, 10);
    (void)checkpoint_all_durable();
    ck_assert_uint_ne(checkpoint_committed(KELP_CHECKPOINTER_OK) & DID(PAUSE), 0);
    ck_assert_uint_eq(checkpoint_bench.machine.paused_step, 50);
}

/* The disk is full: the request is refused, with the reason; the next one is tried. */
KELP_TEST(failure)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(10, 100);
    (void)checkpoint_request(true);
    uint32_t actions = checkpoint_report(1, KELP_CHECKPOINTER_ANSWER_FAILED);
    ck_assert_uint_ne(actions & DID(SAY), 0);
    ck_assert_uint_ne(actions & DID(DISCARD), 0);
    ck_assert_ptr_nonnull(strstr(checkpoint_bench.machine.trouble, "shard-1: disk full"));
    ck_assert_uint_eq(checkpoint_bench.machine.refused, SERIAL + 1);
    ck_assert_uint_eq(checkpoint_bench.machine.failed, 1);
    ck_assert_uint_eq(checkpoint_bench.machine.order.serial, 0);
    (void)checkpoint_run_to(49, 100);
    ck_assert_uint_eq(checkpoint_bench.machine.order.step, 50);
    checkpoint_make();
    ck_assert_str_eq(checkpoint_bench.machine.trouble, "");
    ck_assert_uint_eq(checkpoint_bench.machine.paused, false);
}

/* ---- who must answer ------------------------------------------------------------------------- */

/* One shard is not enough, twice the same one neither. */
KELP_TEST(needs_all_shards)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(50, 100);
    ck_assert_uint_eq(checkpoint_report(1, KELP_CHECKPOINTER_ANSWER_DURABLE) & DID(COMMIT), 0);
    ck_assert_uint_eq(checkpoint_report(1, KELP_CHECKPOINTER_ANSWER_DURABLE) & DID(COMMIT), 0);
    ck_assert_uint_ne(checkpoint_report(0, KELP_CHECKPOINTER_ANSWER_DURABLE) & DID(COMMIT), 0);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(checkpoint_bench.machine.parts[i].shard, i / 2);
        ck_assert_str_eq(checkpoint_bench.machine.parts[i].digest, checkpoint_bench.digests[i]);
    }
    ck_assert_str_eq(checkpoint_bench.machine.shards[1].storage, "shard-1.b");
}

/* The map changes within its generation: who followed or follows now has nothing to save, and the
 * order goes on by the map that it was made for. A primary that was lost takes it along. */
KELP_LOOP_TEST(changed_map, 0, 2)
{
    bool fails_over = _i == 1;
    struct kelp_map changed;
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(49, 100);
    uint64_t serial = checkpoint_bench.machine.order.serial;
    ck_assert_uint_ne(serial, 0);
    ck_assert_int_eq(kelp_map_copy(&checkpoint_bench.map, &changed), KELP_OK);
    changed.serial++;
    for (uint32_t i = 0; i < 4; i++) {
        changed.partitions[i].map_epoch++;
        changed.partitions[i].primary = fails_over ? 0 : changed.partitions[i].primary;
        changed.partitions[i].backup =
            fails_over ? KELP_MAP_NOBODY : 1 - changed.partitions[i].primary;
    }
    uint32_t actions = checkpoint_apply((struct kelp_checkpointer_event){
        .kind = KELP_CHECKPOINTER_CHANGED, .changed = {.map = &changed, .fails_over = fails_over}});
    kelp_map_fini(&changed);
    ck_assert_int_eq((actions & DID(DISCARD)) != 0, fails_over);
    ck_assert_int_eq((actions & DID(SAY)) != 0, fails_over);
    ck_assert_uint_eq(checkpoint_bench.machine.given_up, fails_over ? serial : 0);
    ck_assert_uint_eq(checkpoint_bench.machine.map.serial, fails_over ? 2 : 1);
    if (fails_over) { /* what was scheduled is ordered anew, not left out */
        ck_assert_uint_gt(checkpoint_bench.machine.order.serial, serial);
        ck_assert_uint_lt(checkpoint_bench.machine.order.step, 60);
        return;
    }
    ck_assert_uint_eq(checkpoint_bench.machine.order.serial, serial);
    (void)checkpoint_run_to(50, 100);
    (void)checkpoint_report(0, KELP_CHECKPOINTER_ANSWER_DURABLE);
    ck_assert_uint_ne(checkpoint_report(1, KELP_CHECKPOINTER_ANSWER_DURABLE) & DID(COMMIT), 0);
    (void)checkpoint_committed(KELP_CHECKPOINTER_OK);
    ck_assert_uint_eq(checkpoint_bench.machine.map.serial, 2);
}

static uint32_t change(struct kelp_map *changed, bool loses)
{
    changed->serial++;
    return checkpoint_apply((struct kelp_checkpointer_event){
        .kind = KELP_CHECKPOINTER_CHANGED, .changed = {.map = changed, .loses = loses}});
}

/* What is captured may be led by others, and its writing is waited for all the same. */
KELP_TEST(captured_is_not_owed)
{
    bool owes[KELP_PARTITIONS_MAX];
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    ck_assert(!kelp_checkpointer_owes(&checkpoint_bench.machine, owes));
    (void)checkpoint_run_to(50, 100);
    ck_assert(kelp_checkpointer_owes(&checkpoint_bench.machine, owes));
    (void)checkpoint_report(0, KELP_CHECKPOINTER_ANSWER_TAKING);
    ck_assert(owes[0] && owes[1] && owes[2] && owes[3]);
    (void)checkpoint_report(0, KELP_CHECKPOINTER_ANSWER_CAPTURED);
    ck_assert(kelp_checkpointer_owes(&checkpoint_bench.machine, owes));
    ck_assert(!owes[0] && !owes[1] && owes[2] && owes[3]);
    (void)checkpoint_report(1, KELP_CHECKPOINTER_ANSWER_CAPTURED);
    ck_assert(!kelp_checkpointer_owes(&checkpoint_bench.machine, owes));
    ck_assert_int_eq(checkpoint_bench.machine.state, KELP_CHECKPOINTER_ORDERED);
    ck_assert_uint_ne(checkpoint_all_durable() & DID(COMMIT), 0);
}

/* Of the second shard: it follows, or is in the map no more. */
static void demote(struct kelp_map *map, bool stays)
{
    for (uint32_t i = 0; i < map->partition_count; i++) {
        map->partitions[i].primary = 0;
        map->partitions[i].backup = stays ? 1 : KELP_MAP_NOBODY;
    }
    kelp_map_drop_idle(map);
}

/* A process that leads no more still writes what it captured. Lost before that, as a follower (0)
 * or outside of the map (1), it takes the order along, and another one is made at once. Once it
 * has written all, or where another process of its name ends, nothing is lost (2, 3). */
KELP_LOOP_TEST(lost_with_what_it_captured, 0, 4)
{
    struct kelp_map changed;
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(50, 100);
    uint64_t serial = checkpoint_bench.machine.order.serial;
    (void)checkpoint_report(0, KELP_CHECKPOINTER_ANSWER_DURABLE);
    (void)checkpoint_report(1, KELP_CHECKPOINTER_ANSWER_CAPTURED);
    ck_assert_int_eq(kelp_map_copy(&checkpoint_bench.map, &changed), KELP_OK);
    demote(&changed, _i == 0);
    ck_assert_uint_eq(change(&changed, false) & DID(DISCARD), 0);
    ck_assert(!kelp_checkpointer_needs(&checkpoint_bench.machine, "shard-0", 10));
    ck_assert(kelp_checkpointer_needs(&checkpoint_bench.machine, "shard-1", 11));
    ck_assert(!kelp_checkpointer_needs(&checkpoint_bench.machine, "shard-1", 12));
    uint32_t actions = 0;
    if (_i == 0) {
        demote(&changed, false);
        actions = change(&changed, true);
    } else {
        (void)checkpoint_report(1, _i == 2 ? KELP_CHECKPOINTER_ANSWER_DURABLE
                                           : KELP_CHECKPOINTER_ANSWER_CAPTURED);
        actions = checkpoint_apply((struct kelp_checkpointer_event){
            .kind = KELP_CHECKPOINTER_GONE,
            .gone = {.id = "shard-1", .incarnation = _i == 3 ? 12 : 11}});
    }
    kelp_map_fini(&changed);
    ck_assert_int_eq((actions & DID(DISCARD)) != 0, _i < 2);
    if (_i < 2) {
        ck_assert_uint_eq(checkpoint_bench.machine.given_up, serial);
        ck_assert_uint_gt(checkpoint_bench.machine.order.serial, serial);
        ck_assert_uint_gt(checkpoint_bench.machine.order.step, 50);
        ck_assert_uint_lt(checkpoint_bench.machine.order.step, 100);
    }
}

/* A shard that leads nothing is not waited for, and has no storage in the manifest. */
KELP_TEST(followers_save_nothing)
{
    struct kelp_map changed;
    uint32_t places[KELP_COORDINATOR_SHARDS_MAX];
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    ck_assert_int_eq(kelp_map_copy(&checkpoint_bench.map, &changed), KELP_OK);
    changed.serial++;
    for (uint32_t i = 0; i < 4; i++) {
        changed.partitions[i].primary = 1;
        changed.partitions[i].backup = 0;
    }
    (void)checkpoint_apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_CHANGED,
                                                            .changed = {.map = &changed}});
    kelp_map_fini(&changed);
    ck_assert_uint_eq(kelp_checkpointer_storages(&checkpoint_bench.machine, places), 1);
    ck_assert_uint_eq(places[0], KELP_MAP_NOBODY);
    ck_assert_uint_eq(places[1], 0);
}

/* Reports of another order, another incarnation, a stranger, and parts that are not theirs. */
KELP_LOOP_TEST(wrong_reports, 0, 6)
{
    struct kelp_checkpointer_part parts[2] = {
        {.partition = 2, .digest = checkpoint_bench.digests[0]},
        {.partition = 3, .digest = checkpoint_bench.digests[1]}};
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(50, 100);
    (void)checkpoint_report(0, KELP_CHECKPOINTER_ANSWER_DURABLE);
    struct kelp_checkpointer_report good = {.shard = "shard-1",
                                            .incarnation = 11,
                                            .serial = checkpoint_bench.machine.order.serial,
                                            .answer = KELP_CHECKPOINTER_ANSWER_DURABLE,
                                            .storage = "x",
                                            .parts = parts,
                                            .part_count = 2};
    struct kelp_checkpointer_report from = good;
    struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_REPORT, .report = &from};
    from.serial--;
    (void)checkpoint_apply(event);
    from = good;
    from.incarnation = 12;
    (void)checkpoint_apply(event);
    from = good;
    from.shard = "shard-7";
    (void)checkpoint_apply(event);
    ck_assert_int_eq(checkpoint_bench.machine.state, KELP_CHECKPOINTER_ORDERED);
    ck_assert_uint_eq(checkpoint_bench.machine.failed, 0);
    from = good;
    if (_i == 0) {
        from.part_count = 1;
    } else if (_i == 1) {
        parts[1].partition = 1;
    } else if (_i == 2) {
        parts[1].partition = 2;
    } else if (_i == 3) {
        parts[1].digest = "zz";
    } else if (_i == 4) {
        from.storage = "../x";
    } else {
        parts[0].partition = 4000000000;
    }
    uint32_t actions = checkpoint_apply(event);
    ck_assert_uint_eq(actions & DID(COMMIT), 0);
    ck_assert_uint_ne(actions & DID(SAY), 0);
    ck_assert_int_eq(checkpoint_bench.machine.state, KELP_CHECKPOINTER_IDLE);
}

/* Who does not answer is named. */
KELP_LOOP_TEST(no_answer, 0, 2)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(50, 100);
    (void)checkpoint_report(0, KELP_CHECKPOINTER_ANSWER_DURABLE);
    if (_i == 1) {
        (void)checkpoint_report(1, KELP_CHECKPOINTER_ANSWER_TAKING);
        ck_assert_uint_eq(checkpoint_tick(KELP_COORDINATOR_ANSWER_MS) & DID(SAY), 0);
    }
    uint64_t limit_ms = _i == 0 ? KELP_COORDINATOR_ANSWER_MS : KELP_COORDINATOR_WRITE_MS;
    ck_assert_uint_ne(checkpoint_tick(limit_ms) & DID(SAY), 0);
    ck_assert_ptr_nonnull(
        strstr(checkpoint_bench.machine.trouble,
               _i == 0 ? "shard-1 did not take the order" : "shard-1 did not finish writing"));
}

/* A shard is lost, or another generation comes: what is not committed is abandoned. */
KELP_TEST(interrupted)
{
    checkpoint_begin((struct kelp_checkpointer_options){.steps = 50});
    (void)checkpoint_run_to(50, 100);
    (void)checkpoint_report(0, KELP_CHECKPOINTER_ANSWER_DURABLE);
    uint64_t serial = checkpoint_bench.machine.order.serial;
    ck_assert_uint_ne(checkpoint_simple(KELP_CHECKPOINTER_STOPPED) & DID(DISCARD), 0);
    ck_assert_str_eq(checkpoint_bench.machine.discarded, "step-50.g1");
    ck_assert_ptr_nonnull(strstr(checkpoint_bench.machine.trouble, "shard-1 is lost"));
    checkpoint_bench.word.step = 0;
    (void)checkpoint_open_generation(2, 0);
    (void)checkpoint_run_to(50, 100);
    ck_assert_str_eq(checkpoint_bench.machine.order.folder, "step-50.g2");
    ck_assert_uint_gt(checkpoint_bench.machine.order.serial, serial);
    checkpoint_make();
}
