/* Checkpoints: which step is ordered, who must answer, what a commit's answer means, the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/core/checkpoints.h"
#include "tests/lib/suite.h"

#define SERIAL 1000

static struct kelp_checkpointer checkpoints;
static struct kelp_map map;
static struct kelp_control_word word;
static uint64_t now;
static char digest[KELP_DIGEST_HEX_BYTES];
static char digests[4][KELP_DIGEST_HEX_BYTES] = {
    "00000000000000000000000000000000", "11111111111111111111111111111111",
    "22222222222222222222222222222222", "33333333333333333333333333333333"};

/* The bit of an action's kind. */
#define DID(kind) (1u << KELP_CHECKPOINTER_DO_##kind)

/* Bits of what is to be done; the actions come in the order of their kinds. */
static uint32_t apply(struct kelp_checkpointer_event event)
{
    struct kelp_checkpointer_actions actions;
    uint32_t done = 0;
    event.now_ms = now;
    ck_assert_int_eq(kelp_checkpointer_apply(&checkpoints, &event, &actions, NULL), KELP_OK);
    for (uint32_t i = 0; i < actions.count; i++) {
        ck_assert_uint_lt(done, 1u << actions.items[i].kind);
        done |= 1u << actions.items[i].kind;
    }
    return done;
}

static bool undecided(void)
{
    return kelp_checkpointer_restores(&checkpoints).undecided;
}

static uint32_t simple(enum kelp_checkpointer_event_kind kind)
{
    struct kelp_checkpointer_event event = {.kind = kind};
    if (kind == KELP_CHECKPOINTER_STOPPED) {
        event.stopped = "shard-1 is lost";
    }
    return apply(event);
}

static uint32_t tick(uint64_t ms)
{
    now += ms;
    return simple(KELP_CHECKPOINTER_TICK);
}

/* Two shards with two partitions each. */
static void make_map(uint64_t generation, uint64_t restore_version)
{
    struct kelp_map before = {.generation = generation - 1};
    struct kelp_map_shard shards[2] = {{.id = "shard-0", .address = "a:1", .incarnation = 10},
                                       {.id = "shard-1", .address = "a:2", .incarnation = 11}};
    kelp_map_fini(&map);
    ck_assert_int_eq(kelp_map_spread(&before, shards, 2, 4, &map, NULL), KELP_OK);
    map.restore_version = restore_version;
}

static uint32_t open_generation(uint64_t generation, uint64_t restore_version)
{
    make_map(generation, restore_version);
    uint32_t actions = apply(
        (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_GENERATION,
                                         .generation = {.map = &map,
                                                        .opened = true,
                                                        .schedule = {.steps_per_epoch = 100,
                                                                     .total_steps = 1000,
                                                                     .evaluate_steps = {0, 100}}}});
    return actions | simple(KELP_CHECKPOINTER_RUNNING);
}

static void begin(struct kelp_checkpointer_options options)
{
    options.first_serial = SERIAL;
    if (options.policy.keep_last == 0) {
        options.policy.keep_last = 2;
    }
    now = 1000;
    memset(&word, 0, sizeof(word));
    word.kind = KELP_STEP_TRAIN;
    ck_assert_int_eq(kelp_checkpointer_init(&checkpoints, &options, NULL), KELP_OK);
    (void)simple(KELP_CHECKPOINTER_LISTED);
    (void)open_generation(1, 0);
}

static void teardown(void)
{
    kelp_checkpointer_fini(&checkpoints);
    kelp_map_fini(&map);
}

static uint32_t progress(uint64_t step)
{
    word.step = step;
    word.version = step + step / 100;
    return apply(
        (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_PROGRESS, .progress = &word});
}

/* Steps up to that one, at so many milliseconds each; actions of all of them. */
static uint32_t run_to(uint64_t step, uint64_t step_ms)
{
    uint32_t actions = 0;
    while (word.step < step) {
        now += step_ms;
        actions |= progress(word.step + 1);
    }
    return actions;
}

static uint32_t report(int shard, enum kelp_checkpointer_answer answer)
{
    const char *names[] = {"shard-0", "shard-1"};
    const char *storages[] = {"shard-0.a", "shard-1.b"};
    struct kelp_control_word saved = word;
    struct kelp_checkpointer_part parts[2];
    saved.step = checkpoints.order.step;
    saved.version = saved.step + saved.step / 100;
    for (uint32_t i = 0; i < 2; i++) {
        parts[i] = (struct kelp_checkpointer_part){.partition = (uint32_t)shard * 2 + i,
                                                   .bytes = 7,
                                                   .digest = digests[shard * 2 + (int)i]};
    }
    struct kelp_checkpointer_report from = {
        .shard = names[shard],
        .incarnation = 10 + (uint64_t)shard,
        .serial = checkpoints.order.serial,
        .answer = answer,
        .error = "disk full",
        .storage = storages[shard],
        .parts = parts,
        .part_count = 2,
        .word = shard == 0 ? &saved : NULL,
        .current_step = word.step + 3,
    };
    return apply(
        (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_REPORT, .report = &from});
}

static uint32_t all_durable(void)
{
    (void)report(0, KELP_CHECKPOINTER_ANSWER_DURABLE);
    return report(1, KELP_CHECKPOINTER_ANSWER_DURABLE);
}

/* The answer to the commit of that order. */
static uint32_t committed_order(uint64_t serial, enum kelp_checkpointer_result result)
{
    struct kelp_committed checkpoint = {.unix_ms = 5, .revision = 6, .manifest = strdup("{}")};
    ck_assert_ptr_nonnull(checkpoint.manifest);
    (void)snprintf(checkpoint.state_digest, sizeof(checkpoint.state_digest), "%s", digest);
    uint32_t actions =
        apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_COMMITTED,
                                               .committed = {.serial = serial,
                                                             .result = result,
                                                             .text = "the map has changed",
                                                             .checkpoint = &checkpoint}});
    free(checkpoint.manifest);
    return actions;
}

static uint32_t committed(enum kelp_checkpointer_result result)
{
    return committed_order(checkpoints.order.serial, result);
}

/* From an order to the committed checkpoint. */
static void make(void)
{
    ck_assert_int_eq(checkpoints.state, KELP_CHECKPOINTER_ORDERED);
    (void)run_to(checkpoints.order.step, 10);
    ck_assert_uint_ne(all_durable() & DID(COMMIT), 0);
    (void)committed(KELP_CHECKPOINTER_OK);
    ck_assert_int_eq(checkpoints.state, KELP_CHECKPOINTER_IDLE);
}

/* Training goes on until one is ordered. */
static void make_due(void)
{
    while (checkpoints.state == KELP_CHECKPOINTER_IDLE) {
        ck_assert_uint_lt(word.step, 1000);
        (void)run_to(word.step + 1, 10);
    }
}

static uint32_t request(bool pause)
{
    return apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_REQUEST,
                                                  .request = {.pause = pause}});
}

/* ---- when and which step ----------------------------------------------------------------------
 */

KELP_CASE("checkpoints", .teardown = teardown)

/* Multiples of checkpoint.steps, ordered before training gets there, and not long before. */
KELP_TEST(by_steps)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    ck_assert_uint_eq(run_to(20, 100) & DID(ORDER), 0);
    ck_assert_uint_ne(run_to(49, 100) & DID(ORDER), 0);
    ck_assert_uint_eq(checkpoints.order.step, 50);
    ck_assert_uint_eq(checkpoints.order.generation, 1);
    ck_assert_uint_eq(checkpoints.order.serial, SERIAL + 1);
    ck_assert_str_eq(checkpoints.order.folder, "step-50.g1");
    make();
    ck_assert_uint_eq(checkpoints.list.count, 1);
    ck_assert_uint_eq(checkpoints.list.entries[0].version, 50);
    ck_assert_uint_ne(run_to(99, 100) & DID(ORDER), 0);
    ck_assert_uint_eq(checkpoints.order.step, 100);
}

/* A fast job: the step is as far ahead as it runs while the order travels; while one is being
 * written, multiples are left out. */
KELP_TEST(fast_steps)
{
    begin((struct kelp_checkpointer_options){.steps = 10});
    checkpoints.schedule.total_steps = 100000;
    for (int i = 0; i < 10; i++) {
        now += 50;
        (void)progress(word.step + 25); /* 500 a second: 75 in the lead time */
    }
    ck_assert_int_eq(checkpoints.state, KELP_CHECKPOINTER_ORDERED);
    (void)report(0, KELP_CHECKPOINTER_ANSWER_PAST); /* the first one came before there was a rate */
    ck_assert_int_eq(checkpoints.state, KELP_CHECKPOINTER_ORDERED);
    uint64_t step = checkpoints.order.step;
    ck_assert_uint_ge(step, word.step + 75);
    ck_assert_uint_eq(step % 10, 0);
    now += 50;
    (void)progress(step + 35);
    ck_assert_uint_ne(all_durable() & DID(COMMIT), 0);
    (void)committed(KELP_CHECKPOINTER_OK);
    ck_assert_uint_ge(checkpoints.order.step, step + 35 + 75);
}

/* A partition is past the step: at once again, with twice the margin, in another folder; that is no
 * failure. */
KELP_TEST(past_doubles_the_margin)
{
    begin((struct kelp_checkpointer_options){.steps = 0});
    (void)run_to(20, 100);
    ck_assert_uint_ne(request(false) & DID(ORDER), 0);
    uint64_t first = checkpoints.order.step - word.step;
    uint32_t actions = report(1, KELP_CHECKPOINTER_ANSWER_PAST);
    ck_assert_uint_ne(actions & DID(DISCARD), 0);
    ck_assert_uint_ne(actions & DID(ORDER), 0);
    ck_assert_uint_eq(actions & DID(SAY), 0);
    ck_assert_uint_eq(checkpoints.order.step, word.step + 3 + 2 * first);
    ck_assert_str_ne(checkpoints.order.folder, checkpoints.discarded);
    ck_assert_uint_eq(checkpoints.failed, 0);
}

KELP_TEST(by_time)
{
    begin((struct kelp_checkpointer_options){.interval_ms = 5000});
    ck_assert_uint_eq(run_to(40, 100) & DID(ORDER), 0);
    ck_assert_uint_ne(run_to(55, 100) & DID(ORDER), 0);
    make();
    uint64_t step = word.step;
    ck_assert_uint_eq(run_to(step + 45, 100) & DID(ORDER), 0);
    ck_assert_uint_ne(run_to(step + 55, 100) & DID(ORDER), 0);
}

/* Ends of epochs; the commit waits for the evaluation of its step, but not for ever. */
KELP_LOOP_TEST(by_epochs, 0, 2)
{
    double metric[KELP_CHECKPOINT_METRICS] = {0.5, 0.25, 0.125, 0.75, 0.875};
    begin((struct kelp_checkpointer_options){.epochs = 2});
    (void)run_to(200, 10);
    ck_assert_uint_eq(checkpoints.order.step, 200);
    ck_assert_uint_eq(all_durable() & DID(COMMIT), 0);
    if (_i == 0) {
        struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_EVALUATED,
                                                .evaluated = {.step = 200}};
        memcpy(event.evaluated.metric, metric, sizeof(metric));
        ck_assert_uint_ne(apply(event) & DID(COMMIT), 0);
    } else {
        ck_assert_uint_ne(tick(KELP_COORDINATOR_EVALUATION_MS) & DID(COMMIT), 0);
    }
    (void)committed(KELP_CHECKPOINTER_OK);
    ck_assert_uint_eq(checkpoints.list.entries[0].version, 202);
    ck_assert(checkpoints.list.entries[0].has_metric == (_i == 0));
    if (_i == 0) {
        ck_assert_double_eq(checkpoints.list.entries[0].metric[1], 0.25);
    }
}

/* Training ends early: an order for a step that it never comes to is given up, for the end's. */
KELP_TEST(early_end)
{
    begin((struct kelp_checkpointer_options){.steps = 200, .at_end = true});
    (void)run_to(195, 10);
    ck_assert_uint_eq(checkpoints.order.step, 200);
    uint64_t serial = checkpoints.order.serial;
    word.kind = KELP_STEP_FINISH;
    word.version++;
    uint32_t actions = apply(
        (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_PROGRESS, .progress = &word});
    ck_assert_uint_ne(actions & DID(ORDER), 0);
    ck_assert_uint_eq(checkpoints.given_up, serial);
    ck_assert_uint_eq(checkpoints.order.serial, 0);
    ck_assert_uint_eq(tick(60000) & DID(ORDER), 0); /* nothing is ahead */
    word.kind = KELP_STEP_DONE;
    word.version++;
    (void)apply(
        (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_PROGRESS, .progress = &word});
    ck_assert_uint_ne(simple(KELP_CHECKPOINTER_FINISHED) & DID(ORDER), 0);
    ck_assert_uint_eq(checkpoints.order.step, 195);
}

/* ---- requests ---------------------------------------------------------------------------------
 */

/* Answered by the commit; a request that comes while its step is ahead is answered by the same. */
KELP_TEST(requests)
{
    begin((struct kelp_checkpointer_options){.steps = 0});
    (void)run_to(10, 100);
    (void)request(false);
    (void)request(false);
    ck_assert_uint_eq(checkpoints.requested, SERIAL + 2);
    make();
    ck_assert_uint_eq(checkpoints.answered, SERIAL + 2);
    ck_assert_int_eq(checkpoints.state, KELP_CHECKPOINTER_IDLE);
}

/* Nothing was completed since the newest one: that is it. */
KELP_TEST(request_found)
{
    begin((struct kelp_checkpointer_options){.steps = 0});
    (void)run_to(10, 100);
    (void)request(false);
    make();
    ck_assert_uint_eq(request(false) & DID(ORDER), 0);
    ck_assert_uint_eq(checkpoints.answered, SERIAL + 2);
}

/* Training stands still (no worker is there): what there is, is saved. */
KELP_TEST(request_at_a_standstill)
{
    begin((struct kelp_checkpointer_options){.steps = 0});
    (void)run_to(10, 100);
    (void)request(true);
    ck_assert_uint_gt(checkpoints.order.step, 10);
    (void)tick(500);
    ck_assert_uint_gt(checkpoints.order.step, 10);
    ck_assert_uint_ne(tick(600) & DID(ORDER), 0);
    ck_assert_uint_eq(checkpoints.order.step, 10);
    (void)all_durable();
    uint32_t actions = committed(KELP_CHECKPOINTER_OK);
    ck_assert_uint_ne(actions & DID(PAUSE), 0);
    ck_assert_uint_eq(checkpoints.paused_step, 10);
    ck_assert_uint_eq(run_to(100, 100) & DID(ORDER), 0);
}

/* Steps that would be made again are not made: workers may leave once all partitions have stood at
 * the step of a pause, not earlier, not for other checkpoints, and not when it has failed. */
KELP_TEST(pause_holds)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    (void)run_to(52, 10);
    (void)request(true); /* the one under way is of an earlier step */
    (void)run_to(55, 10);
    ck_assert(!kelp_checkpointer_holds(&checkpoints));
    (void)all_durable();
    (void)committed(KELP_CHECKPOINTER_OK);
    ck_assert(!kelp_checkpointer_holds(&checkpoints));
    while (word.step < checkpoints.order.step) { /* which may come to be an earlier one */
        (void)run_to(word.step + 1, 1);
    }
    ck_assert(!kelp_checkpointer_holds(&checkpoints));
    (void)run_to(word.step + 1, 1);
    ck_assert(kelp_checkpointer_holds(&checkpoints));
    (void)report(1, KELP_CHECKPOINTER_ANSWER_FAILED);
    ck_assert(!kelp_checkpointer_holds(&checkpoints));
    (void)request(true);
    while (checkpoints.order.serial == 0 || word.step <= checkpoints.order.step) {
        (void)run_to(word.step + 1, 1);
    }
    (void)all_durable();
    ck_assert_int_eq(checkpoints.state, KELP_CHECKPOINTER_WRITING);
    ck_assert(kelp_checkpointer_holds(&checkpoints));
}

/* A shard was lost while a pause was being committed, so that nothing was paused: the generation
 * after it makes checkpoints as any other one, and the next request to pause is heard. */
KELP_TEST(pause_overtaken)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    (void)run_to(10, 100);
    (void)request(true);
    (void)run_to(checkpoints.order.step, 10);
    (void)all_durable();
    (void)simple(KELP_CHECKPOINTER_STOPPED);
    ck_assert_uint_ne(committed(KELP_CHECKPOINTER_OK) & DID(PAUSE), 0);
    (void)open_generation(2, checkpoints.list.entries[0].version);
    make_due();
    (void)request(true); /* it comes before the step: answered by that one */
    (void)run_to(checkpoints.order.step, 10);
    (void)all_durable();
    ck_assert_uint_ne(committed(KELP_CHECKPOINTER_OK) & DID(PAUSE), 0);
    ck_assert_uint_eq(checkpoints.paused_step, 50);
}

/* The disk is full: the request is refused, with the reason; the next one is tried. */
KELP_TEST(failure)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    (void)run_to(10, 100);
    (void)request(true);
    uint32_t actions = report(1, KELP_CHECKPOINTER_ANSWER_FAILED);
    ck_assert_uint_ne(actions & DID(SAY), 0);
    ck_assert_uint_ne(actions & DID(DISCARD), 0);
    ck_assert_ptr_nonnull(strstr(checkpoints.trouble, "shard-1: disk full"));
    ck_assert_uint_eq(checkpoints.refused, SERIAL + 1);
    ck_assert_uint_eq(checkpoints.failed, 1);
    ck_assert_uint_eq(checkpoints.order.serial, 0);
    (void)run_to(49, 100);
    ck_assert_uint_eq(checkpoints.order.step, 50);
    make();
    ck_assert_str_eq(checkpoints.trouble, "");
    ck_assert_uint_eq(checkpoints.paused, false);
}

/* ---- who must answer --------------------------------------------------------------------------
 */

/* One shard is not enough, twice the same one neither. */
KELP_TEST(needs_all_shards)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    (void)run_to(50, 100);
    ck_assert_uint_eq(report(1, KELP_CHECKPOINTER_ANSWER_DURABLE) & DID(COMMIT), 0);
    ck_assert_uint_eq(report(1, KELP_CHECKPOINTER_ANSWER_DURABLE) & DID(COMMIT), 0);
    ck_assert_uint_ne(report(0, KELP_CHECKPOINTER_ANSWER_DURABLE) & DID(COMMIT), 0);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(checkpoints.parts[i].shard, i / 2);
        ck_assert_str_eq(checkpoints.parts[i].digest, digests[i]);
    }
    ck_assert_str_eq(checkpoints.shards[1].storage, "shard-1.b");
}

/* Reports of another order, another incarnation, a stranger, and parts that are not theirs. */
KELP_LOOP_TEST(wrong_reports, 0, 6)
{
    struct kelp_checkpointer_part parts[2] = {{.partition = 2, .digest = digests[0]},
                                              {.partition = 3, .digest = digests[1]}};
    begin((struct kelp_checkpointer_options){.steps = 50});
    (void)run_to(50, 100);
    (void)report(0, KELP_CHECKPOINTER_ANSWER_DURABLE);
    struct kelp_checkpointer_report good = {.shard = "shard-1",
                                            .incarnation = 11,
                                            .serial = checkpoints.order.serial,
                                            .answer = KELP_CHECKPOINTER_ANSWER_DURABLE,
                                            .storage = "x",
                                            .parts = parts,
                                            .part_count = 2};
    struct kelp_checkpointer_report from = good;
    struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_REPORT, .report = &from};
    from.serial--;
    (void)apply(event);
    from = good;
    from.incarnation = 12;
    (void)apply(event);
    from = good;
    from.shard = "shard-7";
    (void)apply(event);
    ck_assert_int_eq(checkpoints.state, KELP_CHECKPOINTER_ORDERED);
    ck_assert_uint_eq(checkpoints.failed, 0);
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
    uint32_t actions = apply(event);
    ck_assert_uint_eq(actions & DID(COMMIT), 0);
    ck_assert_uint_ne(actions & DID(SAY), 0);
    ck_assert_int_eq(checkpoints.state, KELP_CHECKPOINTER_IDLE);
}

/* Who does not answer is named. */
KELP_LOOP_TEST(no_answer, 0, 2)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    (void)run_to(50, 100);
    (void)report(0, KELP_CHECKPOINTER_ANSWER_DURABLE);
    if (_i == 1) {
        (void)report(1, KELP_CHECKPOINTER_ANSWER_TAKING);
        ck_assert_uint_eq(tick(KELP_COORDINATOR_ANSWER_MS) & DID(SAY), 0);
    }
    uint64_t limit_ms = _i == 0 ? KELP_COORDINATOR_ANSWER_MS : KELP_COORDINATOR_WRITE_MS;
    ck_assert_uint_ne(tick(limit_ms) & DID(SAY), 0);
    ck_assert_ptr_nonnull(strstr(checkpoints.trouble, _i == 0 ? "shard-1 did not take the order"
                                                              : "shard-1 did not finish writing"));
}

/* A shard is lost, or another generation comes: what is not committed is abandoned. */
KELP_TEST(interrupted)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    (void)run_to(50, 100);
    (void)report(0, KELP_CHECKPOINTER_ANSWER_DURABLE);
    uint64_t serial = checkpoints.order.serial;
    ck_assert_uint_ne(simple(KELP_CHECKPOINTER_STOPPED) & DID(DISCARD), 0);
    ck_assert_str_eq(checkpoints.discarded, "step-50.g1");
    ck_assert_ptr_nonnull(strstr(checkpoints.trouble, "shard-1 is lost"));
    word.step = 0;
    (void)open_generation(2, 0);
    (void)run_to(50, 100);
    ck_assert_str_eq(checkpoints.order.folder, "step-50.g2");
    ck_assert_uint_gt(checkpoints.order.serial, serial);
    make();
}

/* ---- the answer to a commit -------------------------------------------------------------------
 */

/* Lost answers: the same one is sent again, and no data is touched before it is decided. */
KELP_TEST(lost_answers)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    (void)run_to(50, 100);
    (void)all_durable();
    (void)simple(KELP_CHECKPOINTER_SENT);
    ck_assert(undecided());
    uint64_t serial = checkpoints.order.serial;
    for (int i = 0; i < 3; i++) {
        uint32_t actions = committed(i == 1 ? KELP_CHECKPOINTER_AWAY : KELP_CHECKPOINTER_UNKNOWN);
        actions |= tick(100);
        ck_assert_uint_eq(actions & (DID(COMMIT) | DID(DISCARD)), 0);
        ck_assert(undecided());
        actions = tick(KELP_COORDINATOR_RETRY_MS);
        ck_assert_uint_ne(actions & DID(COMMIT), 0);
        ck_assert_uint_eq(checkpoints.order.serial, serial);
        (void)simple(KELP_CHECKPOINTER_SENT);
    }
    uint32_t actions = simple(KELP_CHECKPOINTER_STOPPED); /* a shard is lost meanwhile */
    ck_assert_uint_eq(actions & DID(DISCARD), 0);
    actions = committed(KELP_CHECKPOINTER_OK);
    ck_assert_uint_ne(actions & DID(RESTORE), 0);
    ck_assert(!undecided());
    ck_assert_uint_eq(kelp_committed_list_newest(&checkpoints.list)->step, 50);
}

/* A generation that was decided on while a commit was under way takes it back: nobody restores it.
 */
KELP_TEST(committed_and_taken_back)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    (void)run_to(50, 100);
    (void)all_durable();
    ck_assert_uint_ne(committed(KELP_CHECKPOINTER_OK) & DID(RESTORE), 0);
    ck_assert_ptr_nonnull(kelp_committed_list_newest(&checkpoints.list));
    ck_assert_uint_ne(open_generation(2, 0) & DID(RESTORE), 0);
    ck_assert_ptr_null(kelp_committed_list_newest(&checkpoints.list));
}

/* Elected again, perhaps with another leader in between: serials go on above all of its orders. */
KELP_TEST(elected_again)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    make_due();
    uint64_t serial = checkpoints.order.serial;
    (void)apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_LISTED,
                                                 .listed = {.first_serial = serial + 500}});
    ck_assert_uint_eq(checkpoints.order.serial, serial);
    (void)report(0, KELP_CHECKPOINTER_ANSWER_FAILED);
    make_due();
    ck_assert_uint_eq(checkpoints.order.serial, serial + 501);
    (void)apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_LISTED,
                                                 .listed = {.first_serial = SERIAL}});
    (void)report(0, KELP_CHECKPOINTER_ANSWER_FAILED);
    make_due();
    ck_assert_uint_eq(checkpoints.order.serial, serial + 502);
}

/* Another leader ordered one while we were away: no shard will answer ours. The serials that follow
 * are that leader's: nothing is ordered until we are elected again, then at once. A report of an
 * older order changes nothing. */
KELP_TEST(overtaken)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    make_due();
    uint64_t serial = checkpoints.order.serial;
    struct kelp_checkpointer_report from = {.shard = "shard-0",
                                            .incarnation = 10,
                                            .serial = serial - 1,
                                            .answer = KELP_CHECKPOINTER_ANSWER_TAKING};
    const struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_REPORT,
                                                  .report = &from};
    ck_assert_uint_eq(apply(event), 0);
    ck_assert_uint_eq(checkpoints.order.serial, serial);
    from.serial = serial + 500;
    uint32_t actions = apply(event);
    ck_assert_uint_ne(actions & DID(DISCARD), 0);
    ck_assert_str_eq(checkpoints.discarded, "step-50.g1");
    ck_assert_uint_eq(checkpoints.given_up, serial);
    (void)run_to(word.step + 200, 10);
    ck_assert_uint_eq(checkpoints.order.serial, 0);
    (void)apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_LISTED,
                                                 .listed = {.first_serial = serial + 499}});
    ck_assert_uint_eq(checkpoints.order.serial, 0); /* not above the other leader's */
    (void)apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_LISTED,
                                                 .listed = {.first_serial = serial + 1000}});
    make_due();
    ck_assert_uint_eq(checkpoints.order.serial, serial + 1001);
    ck_assert_str_ne(checkpoints.order.folder, "step-50.g1");
    (void)apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_LISTED,
                                                 .listed = {.first_serial = serial + 3000}});
    from.serial = serial + 2000; /* of a leader before this election of ours */
    (void)apply(event);
    make_due();
    ck_assert_uint_eq(checkpoints.order.serial, serial + 3001);
}

/* Never reached etcd: it is not undecided. Refused: abandoned. A new generation decides. */
KELP_LOOP_TEST(not_committed, 0, 3)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    (void)run_to(50, 100);
    (void)all_durable();
    (void)simple(KELP_CHECKPOINTER_SENT);
    uint32_t actions = 0;
    if (_i == 0) {
        (void)committed(KELP_CHECKPOINTER_AWAY);
        ck_assert(!undecided());
        return;
    }
    if (_i == 1) {
        actions = committed(KELP_CHECKPOINTER_REFUSED);
        ck_assert_ptr_nonnull(strstr(checkpoints.trouble, "the map has changed"));
    } else {
        (void)committed(KELP_CHECKPOINTER_UNKNOWN);
        (void)simple(KELP_CHECKPOINTER_STOPPED);
        actions = open_generation(2, 0);
    }
    ck_assert_uint_ne(actions & DID(DISCARD), 0);
    ck_assert_str_eq(checkpoints.discarded, "step-50.g1");
    ck_assert(!undecided());
    ck_assert_uint_eq(committed(KELP_CHECKPOINTER_OK), 0); /* one that came late */
    ck_assert_uint_eq(checkpoints.list.count, 0);
}

static const enum kelp_checkpointer_result results[] = {
    KELP_CHECKPOINTER_OK, KELP_CHECKPOINTER_AWAY, KELP_CHECKPOINTER_REFUSED,
    KELP_CHECKPOINTER_UNKNOWN};

/* A commit of the generation before is answered only now: the order of this one goes on, and its
 * data stays. Its own answer decides. */
KELP_LOOP_TEST(answer_of_an_order_before, 0, KELP_ARRAY_COUNT(results))
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    (void)run_to(50, 100);
    (void)all_durable();
    uint64_t before = checkpoints.order.serial;
    (void)committed(KELP_CHECKPOINTER_AWAY);
    ck_assert_uint_ne(tick(KELP_COORDINATOR_RETRY_MS) & DID(COMMIT), 0);
    ck_assert(kelp_checkpointer_awaits(&checkpoints, before));
    (void)simple(KELP_CHECKPOINTER_STOPPED);
    (void)open_generation(2, 0);
    word.step = 0;
    (void)run_to(50, 100);
    ck_assert_uint_ne(all_durable() & DID(COMMIT), 0);
    uint64_t serial = checkpoints.order.serial;
    ck_assert(!kelp_checkpointer_awaits(&checkpoints, before));
    ck_assert(kelp_checkpointer_awaits(&checkpoints, serial));
    ck_assert_uint_eq(committed_order(before, results[_i]), 0);
    ck_assert_int_eq(checkpoints.state, KELP_CHECKPOINTER_WRITING);
    ck_assert_uint_eq(checkpoints.order.serial, serial);
    ck_assert_uint_eq(checkpoints.list.count, 0);
    (void)committed_order(serial, KELP_CHECKPOINTER_OK);
    ck_assert_int_eq(checkpoints.state, KELP_CHECKPOINTER_IDLE);
    ck_assert_uint_eq(kelp_committed_list_newest(&checkpoints.list)->step, 50);
}

/* What the transaction needs is still being written by a slow disk: it is not undecided, so that
 * the generation after the loss of a shard need not wait for that disk. */
KELP_LOOP_TEST(not_sent_yet, 0, 2)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    (void)run_to(50, 100);
    ck_assert_uint_ne(all_durable() & DID(COMMIT), 0);
    ck_assert(!undecided());
    (void)simple(KELP_CHECKPOINTER_STOPPED);
    ck_assert(!undecided());
    if (_i == 0) {
        ck_assert_uint_ne(open_generation(2, 0) & DID(DISCARD), 0);
        ck_assert_str_eq(checkpoints.discarded, "step-50.g1");
        ck_assert_uint_eq(simple(KELP_CHECKPOINTER_SENT), 0); /* too late */
        ck_assert(!undecided());
    } else {
        ck_assert_uint_ne(simple(KELP_CHECKPOINTER_SENT) & DID(RESTORE), 0);
        ck_assert(undecided());
        ck_assert_uint_ne(committed(KELP_CHECKPOINTER_OK) & DID(RESTORE), 0);
        ck_assert(!undecided());
    }
}

/* The same version from two generations must have the same digest. */
KELP_LOOP_TEST(digests_agree, 0, 2)
{
    begin((struct kelp_checkpointer_options){.steps = 50});
    (void)snprintf(digest, sizeof(digest), "%s", digests[0]);
    (void)run_to(49, 100);
    make();
    (void)simple(KELP_CHECKPOINTER_STOPPED);
    word.step = 0;
    (void)open_generation(2, 0);
    ck_assert_uint_eq(checkpoints.list.count, 0); /* above the restored version */
    (void)run_to(50, 100);
    (void)all_durable();
    (void)snprintf(digest, sizeof(digest), "%s", digests[_i]);
    uint32_t actions = committed(KELP_CHECKPOINTER_OK);
    ck_assert((actions & DID(FAIL)) == (_i == 0 ? 0 : DID(FAIL)));
    if (_i == 1) {
        ck_assert_ptr_nonnull(strstr(checkpoints.trouble, "other bits"));
    }
}

/* ---- the end ----------------------------------------------------------------------------------
 */

static uint32_t finish(void)
{
    (void)run_to(1000, 10);
    word.kind = KELP_STEP_DONE;
    word.version++;
    uint32_t actions = apply(
        (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_PROGRESS, .progress = &word});
    ck_assert_uint_eq(actions & (DID(ORDER) | DID(END)), 0);
    return simple(KELP_CHECKPOINTER_FINISHED);
}

static uint32_t final_durable(void)
{
    word.version = 1010; /* as report() says it */
    (void)progress(1000);
    return all_durable();
}

/* The final state is saved, then the end is said once. */
KELP_TEST(final_checkpoint)
{
    begin((struct kelp_checkpointer_options){.at_end = true, .steps = 550});
    uint32_t actions = run_to(549, 10);
    make();
    actions = finish();
    ck_assert_uint_ne(actions & DID(ORDER), 0);
    ck_assert_uint_eq(actions & DID(END), 0);
    ck_assert_uint_eq(checkpoints.order.step, 1000);
    ck_assert_uint_ne(final_durable() & DID(COMMIT), 0);
    actions = committed(KELP_CHECKPOINTER_OK);
    ck_assert_uint_ne(actions & DID(END), 0);
    ck_assert_uint_eq(tick(100000), 0);
    ck_assert_uint_eq(checkpoints.list.count, 2);
}

/* It fails for good: said, and the job is done all the same. */
KELP_TEST(final_checkpoint_fails)
{
    begin((struct kelp_checkpointer_options){.at_end = true});
    (void)finish();
    uint32_t actions = 0;
    int tries = 0;
    while ((actions & DID(END)) == 0) {
        ck_assert_int_lt(++tries, 10);
        if (checkpoints.state == KELP_CHECKPOINTER_IDLE) {
            ck_assert_uint_ne(tick(KELP_COORDINATOR_PAUSE_MAX_MS) & DID(ORDER), 0);
        }
        actions = report(0, KELP_CHECKPOINTER_ANSWER_FAILED);
    }
    ck_assert_int_eq(tries, KELP_COORDINATOR_END_TRIES);
    ck_assert_ptr_nonnull(strstr(checkpoints.trouble, "disk full"));
    ck_assert_uint_eq(tick(100000), 0);
}

KELP_TEST(no_final_checkpoint_wanted)
{
    begin((struct kelp_checkpointer_options){.at_end = false});
    ck_assert_uint_eq(finish(), DID(END));
}

/* A job that was done at step 100 gets more epochs: FINISH is no entry of it, so that the version
 * of the final checkpoint comes again one step later. That one is not what is saved there. */
KELP_LOOP_TEST(more_epochs, 0, 2)
{
    struct kelp_committed final = {.version = 102, .step = 100, .generation = 1};
    final.manifest = strdup("{}");
    (void)snprintf(final.state_digest, sizeof(final.state_digest), "%s", digests[0]);
    (void)snprintf(final.folder, sizeof(final.folder), "step-100.g1");
    begin((struct kelp_checkpointer_options){.steps = 0});
    (void)apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_LISTED,
                                                 .listed = {.entries = &final, .count = 1}});
    (void)open_generation(2, 102);
    (void)run_to(100, 0);
    (void)run_to(101, 10);
    ck_assert_uint_eq(word.version, 102);
    if (_i == 1) {
        now += KELP_COORDINATOR_STILL_MS + 1;
    }
    (void)request(true);
    ck_assert_uint_eq(checkpoints.answered, 0);
    ck_assert_int_eq(checkpoints.state, KELP_CHECKPOINTER_ORDERED);
    checkpoints.order.step = 101;
    uint64_t serial = checkpoints.order.serial;
    uint32_t actions = all_durable();
    ck_assert_uint_ne(actions & DID(DISCARD), 0);
    ck_assert_uint_eq(actions & (DID(COMMIT) | DID(PAUSE)), 0);
    ck_assert_uint_eq(checkpoints.answered, 0);
    if (_i == 1) {
        ck_assert_uint_eq(checkpoints.refused, checkpoints.requested);
        ck_assert_int_eq(checkpoints.state, KELP_CHECKPOINTER_IDLE);
        return;
    }
    ck_assert_uint_gt(checkpoints.order.serial, serial); /* at once again */
    (void)run_to(checkpoints.order.step, 10);
    (void)snprintf(digest, sizeof(digest), "%s", digests[1]);
    (void)all_durable();
    actions = committed(KELP_CHECKPOINTER_OK);
    ck_assert_uint_ne(actions & DID(PAUSE), 0);
    ck_assert_uint_eq(actions & DID(FAIL), 0);
    ck_assert_uint_eq(checkpoints.paused_step, word.step);
}

/* It is gone, damaged perhaps, and its version is committed as a step's: no broken promise. */
KELP_TEST(more_epochs_from_before)
{
    struct kelp_committed final = {.version = 51, .step = 49, .generation = 1};
    final.manifest = strdup("{}");
    (void)snprintf(final.state_digest, sizeof(final.state_digest), "%s", digests[0]);
    begin((struct kelp_checkpointer_options){.steps = 51});
    (void)apply((struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_LISTED,
                                                 .listed = {.entries = &final, .count = 1}});
    (void)open_generation(2, 0);
    ck_assert_uint_eq(checkpoints.list.count, 0);
    (void)run_to(51, 10);
    (void)snprintf(digest, sizeof(digest), "%s", digests[1]);
    (void)all_durable();
    ck_assert_uint_eq(committed(KELP_CHECKPOINTER_OK) & DID(FAIL), 0);
    ck_assert_uint_eq(checkpoints.list.entries[0].version, 51);
}

/* ---- removal ----------------------------------------------------------------------------------
 */

/* One after the other, oldest first, and only what etcd said is gone leaves the list. */
KELP_TEST(retention)
{
    begin((struct kelp_checkpointer_options){.steps = 30});
    (void)run_to(29, 100);
    make();
    (void)run_to(59, 100);
    make();
    ck_assert(!checkpoints.removing_now);
    (void)run_to(89, 100);
    make();
    ck_assert(checkpoints.removing_now);
    ck_assert_uint_eq(checkpoints.removing, 30);
    ck_assert_str_eq(checkpoints.removing_folder, "step-30.g1");
    struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_REMOVED,
                                            .removed = KELP_CHECKPOINTER_UNKNOWN};
    ck_assert_uint_eq(apply(event) & DID(REMOVE), 0);
    ck_assert_uint_eq(checkpoints.list.count, 3);
    ck_assert_uint_ne(tick(KELP_COORDINATOR_PAUSE_MS) & DID(REMOVE), 0);
    event.removed = KELP_CHECKPOINTER_OK;
    (void)apply(event);
    ck_assert_uint_eq(checkpoints.list.count, 2);
    ck_assert_uint_eq(checkpoints.list.entries[0].step, 60);
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
