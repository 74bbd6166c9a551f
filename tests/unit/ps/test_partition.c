#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/core/partition.h"
#include "tests/lib/suite.h"

/*
 * The shell of these tests: gradients are texts such as "((0+1)+(2+3))", so that association is
 * visible. Merges and applies are carried out when the test says so.
 */
#define HANDLES_MAX 256
#define LANES       4
#define BATCH       8
#define OFFERS_MAX  32

struct bench {
    struct kelp_job job;
    struct kelp_plan plan;
    struct kelp_partition *partition;
    struct kelp_actions actions;
    uint32_t index;
    bool hollow;
    bool skips;                   /* failure.on_nan */
    char *gradients[HANDLES_MAX]; /* by handle; NULL: free */
    uint64_t handle_count;
    struct kelp_action merges[32];
    size_t merge_count;
    struct kelp_action apply; /* the latest */
    size_t apply_count;
    struct kelp_action measure; /* the latest */
    size_t metric_count;
    size_t repeat_count;
    struct kelp_answer answers[32];
    size_t answer_count;
    struct kelp_refusal refusal; /* the latest */
    size_t refusal_count;
    struct kelp_record record; /* the latest */
    size_t record_count;
    struct kelp_action give_up; /* the latest */
    size_t give_up_count;
    struct kelp_action snapshot; /* the latest */
    size_t snapshot_count;
    struct kelp_action past; /* the latest */
    size_t past_count;
    struct kelp_offer offers[OFFERS_MAX];
    size_t offer_count;
};

static struct bench bench;

static uint64_t new_handle(const char *text)
{
    ck_assert_uint_lt(bench.handle_count + 1, HANDLES_MAX);
    uint64_t handle = ++bench.handle_count;
    bench.gradients[handle] = strdup(text);
    ck_assert_ptr_nonnull(bench.gradients[handle]);
    return handle;
}

static void free_handle(uint64_t handle)
{
    ck_assert_uint_ge(handle, 1);
    ck_assert_uint_le(handle, bench.handle_count);
    ck_assert_msg(bench.gradients[handle], "handle %d is released twice", (int)handle);
    free(bench.gradients[handle]);
    bench.gradients[handle] = NULL;
}

static size_t live_handles(void)
{
    size_t live = 0;
    for (uint64_t i = 1; i <= bench.handle_count; i++) {
        live += bench.gradients[i] != NULL;
    }
    return live;
}

static struct kelp_partition_view view(void)
{
    struct kelp_partition_view result;
    kelp_partition_view(bench.partition, &result);
    return result;
}

/* Sort what the partition asked for into the bench. */
static void take_actions(void)
{
    for (size_t i = 0; i < bench.actions.count; i++) {
        const struct kelp_action *action = &bench.actions.items[i];
        switch (action->kind) {
        case KELP_ACTION_MERGE:
            bench.merges[bench.merge_count++] = *action;
            break;
        case KELP_ACTION_MEASURE:
            bench.measure = *action;
            bench.metric_count++;
            break;
        case KELP_ACTION_REPEAT:
            bench.repeat_count++;
            break;
        case KELP_ACTION_APPLY:
            bench.apply = *action;
            bench.apply_count++;
            break;
        case KELP_ACTION_ANSWER:
            bench.answers[bench.answer_count++] = action->answer;
            break;
        case KELP_ACTION_REFUSE:
            bench.refusal = action->refuse;
            bench.refusal_count++;
            break;
        case KELP_ACTION_RELEASE:
            free_handle(action->release);
            break;
        case KELP_ACTION_RECORD:
            bench.record = action->record;
            bench.record_count++;
            break;
        case KELP_ACTION_GIVE_UP:
            bench.give_up = *action;
            bench.give_up_count++;
            break;
        case KELP_ACTION_SNAPSHOT:
            ck_assert_uint_eq(action->snapshot.step, view().step);
            bench.snapshot = *action;
            bench.snapshot_count++;
            break;
        case KELP_ACTION_PAST:
            bench.past = *action;
            bench.past_count++;
            break;
        case KELP_ACTION_OFFER:
            ck_assert_uint_lt(bench.offer_count, OFFERS_MAX);
            bench.offers[bench.offer_count++] = action->offer;
            break;
        }
    }
    bench.actions.count = 0;
}

static void finish_merge(size_t which)
{
    struct kelp_action merge = bench.merges[which];
    char text[512];

    bench.merges[which] = bench.merges[--bench.merge_count];
    (void)snprintf(text, sizeof(text), "(%s+%s)", bench.gradients[merge.merge.left],
                   bench.gradients[merge.merge.right]);
    free_handle(merge.merge.left);
    free_handle(merge.merge.right);
    ck_assert_int_eq(
        kelp_partition_merged(bench.partition, merge.merge.token, new_handle(text), &bench.actions),
        KELP_OK);
    take_actions();
}

static void finish_merges(void)
{
    while (bench.merge_count > 0) {
        finish_merge(0);
    }
}

static void finish_apply(bool finite)
{
    ck_assert_int_eq(
        kelp_partition_applied(bench.partition, bench.apply.apply.token, finite, &bench.actions),
        KELP_OK);
    take_actions();
}

static void open_bench(uint32_t index)
{
    bool hollow = bench.hollow;
    bool skips = bench.skips;

    memset(&bench, 0, sizeof(bench));
    bench.hollow = hollow;
    bench.skips = skips;
    bench.index = index;
    bench.job.cluster.lanes = LANES;
    bench.job.train.epochs = 2;
    bench.job.train.batch_size = BATCH;
    bench.job.train.evaluate = true;
    bench.job.train.evaluate_epochs = 1;
    bench.job.train.lr = 0.5;
    bench.job.failure.on_nan = skips ? KELP_NAN_SKIP : KELP_NAN_STOP;
    bench.plan.partition_count = 1;
    bench.plan.samples[KELP_SPLIT_TRAIN] = BATCH + 1; /* two steps an epoch, the second of 1 */
    bench.plan.samples[KELP_SPLIT_VAL] = 3;
    bench.plan.samples[KELP_SPLIT_TEST] = 3;
    struct kelp_partition_config config = {
        .index = index, .hollow = bench.hollow, .job = &bench.job, .plan = &bench.plan};
    ck_assert_int_eq(kelp_partition_create(&config, &bench.partition, NULL), KELP_OK);
    struct kelp_partition_start start = {.generation = 3, .map_epoch = 7};
    kelp_partition_load(bench.partition, &start);
}

static void open_hollow(void)
{
    bench.hollow = true;
    open_bench(2);
}

static void open_control(void)
{
    open_bench(0);
}

static void open_skipping(void)
{
    bench.skips = true;
    open_bench(0);
    bench.skips = false;
}

static void open_other(void)
{
    open_bench(1);
}

static void close_bench(void)
{
    finish_merges();
    ck_assert_int_eq(
        kelp_partition_unload(bench.partition, KELP_ERR_OLD_GENERATION, &bench.actions), KELP_OK);
    take_actions();
    ck_assert_uint_eq(live_handles(), 0); /* every handle was given back exactly once */
    kelp_partition_destroy(bench.partition);
    kelp_actions_fini(&bench.actions);
}

static struct kelp_control_word train_word(uint64_t version, uint64_t step)
{
    return (struct kelp_control_word){.version = version,
                                      .step = step,
                                      .kind = KELP_STEP_TRAIN,
                                      .sample_count = BATCH,
                                      .lr = 0.5};
}

static void push_as(const struct kelp_control_word *word, uint32_t first, uint32_t count,
                    const char *text, double loss)
{
    double sums[KELP_METRIC_SUM_COUNT] = {
        [KELP_METRIC_SUM_LOSS] = loss, [KELP_METRIC_SUM_SAMPLES] = count};
    struct kelp_push push = {
        .requester = 11,
        .generation = 3,
        .map_epoch = 7,
        .word = word,
        .lane_first = first,
        .lane_count = count,
        .handle = text ? new_handle(text) : KELP_HANDLE_NONE,
        .sums = bench.index == 0 ? sums : NULL,
        .sum_count = bench.index == 0 ? kelp_metric_sum_trim(sums, KELP_METRIC_SUM_COUNT) : 0,
        .digest = word->digest_due && first == 0 ? "00112233445566778899aabbccddeeff" : ""};
    ck_assert_int_eq(kelp_partition_push(bench.partition, &push, &bench.actions), KELP_OK);
    take_actions();
}

static void push(uint32_t first, uint32_t count, const char *text)
{
    struct kelp_control_word word = bench.index == 0 ? view().word : train_word(0, view().step);
    if (bench.index != 0) {
        word.version = view().version;
    }
    push_as(&word, first, count, text, 1);
}

static void pull(uint64_t requester, enum kelp_pull_mode mode, uint64_t target, bool holds,
                 uint64_t held)
{
    struct kelp_pull request = {.requester = requester,
                                .generation = 3,
                                .map_epoch = 7,
                                .mode = mode,
                                .step = target,
                                .version = target,
                                .holds = holds,
                                .held_step = held};
    ck_assert_int_eq(kelp_partition_pull(bench.partition, &request, &bench.actions), KELP_OK);
    take_actions();
}

/* One whole training step by four lanes. */
static void train_step(void)
{
    push(0, 4, "r");
    ck_assert_uint_eq(view().phase, KELP_PARTITION_APPLYING);
    finish_apply(true);
}

KELP_CASE("other partitions", .setup = open_other, .teardown = close_bench)

/* The order in which lanes come does not change how they are associated. */
KELP_LOOP_TEST(association_is_by_position, 0, 4)
{
    static const uint32_t orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}, {1, 3, 0, 2}};
    static const char *const names[] = {"0", "1", "2", "3"};

    for (size_t i = 0; i < 4; i++) {
        push(orders[_i][i], 1, names[orders[_i][i]]);
    }
    finish_merges();
    ck_assert_uint_eq(bench.apply_count, 1);
    ck_assert_str_eq(bench.gradients[bench.apply.apply.root], "((0+1)+(2+3))");
    finish_apply(true);
    ck_assert_uint_eq(view().step, 1);
}

/* A node under one that is there, or the same again, is dropped and counted. */
KELP_TEST(covered_nodes_are_duplicates)
{
    push(0, 2, "01");
    push(0, 1, "0");
    push(1, 1, "1");
    push(0, 2, "01");
    ck_assert_uint_eq(view().duplicates, 3);
    ck_assert_uint_eq(view().pending, 1);
    push(2, 2, "23");
    push(2, 1, "2"); /* while the root is being merged */
    ck_assert_uint_eq(view().duplicates, 4);
    finish_merges();
    push(3, 1, "3"); /* while it is being applied */
    ck_assert_uint_eq(view().duplicates, 5);
    ck_assert_str_eq(bench.gradients[bench.apply.apply.root], "(01+23)");
    finish_apply(true);
}

/* A larger node takes the place of what it contains, merges under way included. */
KELP_TEST(superset_replaces_what_it_contains)
{
    push(0, 1, "0");
    push(1, 1, "1"); /* asks for 0+1 */
    push(2, 1, "2");
    ck_assert_uint_eq(bench.merge_count, 1);
    push(0, 4, "all");
    ck_assert_uint_eq(view().phase, KELP_PARTITION_APPLYING);
    finish_merges(); /* the late result is released */
    ck_assert_str_eq(bench.gradients[bench.apply.apply.root], "all");
    ck_assert_uint_eq(live_handles(), 1);
    finish_apply(true);
    ck_assert_uint_eq(live_handles(), 0);
}

/* A late merge result of a replaced node never lands in a newer merge of the same place. */
KELP_TEST(late_merge_of_an_older_entry_is_released)
{
    push(0, 1, "0");
    push(1, 1, "1");
    push(0, 4, "all");
    finish_apply(true);
    push(0, 1, "a");
    push(1, 1, "b"); /* same place, next step */
    ck_assert_uint_eq(bench.merge_count, 2);
    finish_merge(0); /* 0+1, of the step before */
    ck_assert_uint_eq(view().pending, 1);
    push(2, 2, "cd");
    finish_merges();
    ck_assert_str_eq(bench.gradients[bench.apply.apply.root], "((a+b)+cd)");
    finish_apply(true);
}

/* Empty nodes are the identity: what they meet moves up untouched, without a merge. */
KELP_TEST(empty_nodes_are_the_identity)
{
    struct kelp_control_word word = train_word(0, 0);

    word.sample_count = 1; /* lane 3 alone has it */
    push_as(&word, 0, 1, NULL, 0);
    push_as(&word, 1, 1, NULL, 0);
    push_as(&word, 3, 1, "3", 1);
    push_as(&word, 2, 1, NULL, 0);
    ck_assert_uint_eq(bench.merge_count, 0);
    ck_assert_uint_eq(view().phase, KELP_PARTITION_APPLYING);
    ck_assert_str_eq(bench.gradients[bench.apply.apply.root], "3");
    finish_apply(true);
}

/* Nodes whose gradient is missing, or there without samples, are refused: a root is never empty. */
KELP_TEST(gradient_must_match_the_samples)
{
    struct kelp_control_word word = train_word(0, 0);

    push_as(&word, 0, 2, NULL, 0);
    ck_assert_uint_eq(bench.refusal_count, 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_INVALID);
    word = train_word(0, 0);
    word.sample_count = 0;
    push_as(&word, 0, 4, NULL, 0);
    ck_assert_uint_eq(bench.refusal_count, 2);
}

KELP_LOOP_TEST(lane_ranges_are_checked, 0, 8)
{
    static const uint32_t bad[][2] = {{1, 2}, {0, 3}, {0, 0},          {4, 1},
                                      {0, 8}, {3, 2}, {UINT32_MAX, 1}, {0, UINT32_MAX}};

    push(bad[_i][0], bad[_i][1], "x");
    ck_assert_uint_eq(bench.refusal_count, 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_INVALID);
    ck_assert_uint_eq(live_handles(), 0);
}

/* Fences: older is refused by name, newer waits for the map. */
KELP_LOOP_TEST(fences, 0, 5)
{
    struct kelp_control_word word = train_word(0, 0);
    static const struct {
        uint64_t generation, map_epoch;
        kelp_status status;
    } cases[] = {{2, 7, KELP_ERR_OLD_GENERATION},
                 {4, 7, KELP_ERR_BUSY},
                 {3, 6, KELP_ERR_OLD_MAP_EPOCH},
                 {3, 8, KELP_ERR_BUSY},
                 {0, 0, KELP_ERR_OLD_GENERATION}};
    struct kelp_push request = {.requester = 5,
                                .generation = cases[_i].generation,
                                .map_epoch = cases[_i].map_epoch,
                                .word = &word,
                                .lane_count = 4,
                                .handle = new_handle("x")};
    ck_assert_int_eq(kelp_partition_push(bench.partition, &request, &bench.actions), KELP_OK);
    take_actions();
    ck_assert_int_eq(bench.refusal.status, cases[_i].status);
    ck_assert_uint_eq(bench.refusal.map_epoch, 7);
    ck_assert_uint_eq(bench.refusal.requester, 5);

    struct kelp_pull asked = {.requester = 6,
                              .generation = cases[_i].generation,
                              .map_epoch = cases[_i].map_epoch,
                              .mode = KELP_PULL_CURRENT};
    ck_assert_int_eq(kelp_partition_pull(bench.partition, &asked, &bench.actions), KELP_OK);
    take_actions();
    ck_assert_uint_eq(bench.answer_count, 1);
    ck_assert_int_eq(bench.answers[0].status, cases[_i].status);
    ck_assert_uint_eq(bench.answers[0].requester, 6);
    ck_assert_uint_eq(view().pending, 0);
}

/* Late pushes are dropped silently; pushes from the future cannot be and are refused. */
KELP_TEST(steps_before_and_after)
{
    train_step();
    struct kelp_control_word word = train_word(0, 0);
    push_as(&word, 0, 4, "late", 1);
    ck_assert_uint_eq(bench.refusal_count, 0);
    ck_assert_uint_eq(view().duplicates, 1);
    word = train_word(9, 9);
    push_as(&word, 0, 4, "early", 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_INVALID);
}

/* Two words for one version: the second is refused. */
KELP_TEST(words_must_agree)
{
    struct kelp_control_word word = train_word(4, 0);
    push_as(&word, 0, 1, "0", 1);
    ck_assert_uint_eq(view().version, 4);
    word.lr = 0.25;
    push_as(&word, 1, 1, "1", 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_CONTROL_WORD);
    word = train_word(5, 0); /* another training entry for the same weights */
    push_as(&word, 1, 1, "1", 1);
    ck_assert_uint_eq(bench.refusal_count, 2);
    word = train_word(3, 0);
    push_as(&word, 1, 1, "1", 1);
    ck_assert_uint_eq(bench.refusal_count, 3);
    word = train_word(4, 0);
    push_as(&word, 1, 1, "1", 1);
    ck_assert_uint_eq(bench.refusal_count, 3);
}

KELP_CASE("what is left out", .setup = open_skipping, .teardown = close_bench)

/* One step that is left out; the partition is the only one. */
static void skip_step(void)
{
    static const struct kelp_decision_share bad = {.count = 1, .values = {0}};
    struct kelp_control_word word = view().word;

    push_as(&word, 0, 4, "nan", 1);
    ck_assert_int_eq(
        kelp_partition_measured(bench.partition, bench.measure.apply.token, &bad, &bench.actions),
        KELP_OK);
    take_actions();
}

/* At the end of an epoch of which more was left out than made nothing goes on, and no snapshot is
 * taken. */
KELP_TEST(gives_up)
{
    skip_step();
    ck_assert_uint_eq(view().phase, KELP_PARTITION_COLLECTING);
    ck_assert_uint_eq(bench.repeat_count, 1);
    ck_assert_uint_eq(bench.give_up_count, 0);
    pull(1, KELP_PULL_VERSION, 2, false, 0);
    skip_step();
    ck_assert_uint_eq(bench.record_count, 2);
    ck_assert(bench.record.epoch_end);
    ck_assert_uint_eq(bench.give_up_count, 1);
    ck_assert_uint_eq(bench.give_up.give_up.steps, 2);
    ck_assert_uint_eq(bench.give_up.give_up.skipped, 2);
    ck_assert_uint_eq(view().phase, KELP_PARTITION_FAILED);
    ck_assert_uint_eq(bench.answer_count, 0);
    struct kelp_snapshot_order order = {.serial = 1, .generation = 3, .step = 2};
    ck_assert_int_eq(kelp_partition_snapshot(bench.partition, &order, &bench.actions), KELP_OK);
    take_actions();
    ck_assert_uint_eq(bench.snapshot_count, 0);
}

KELP_CASE("partition 0", .setup = open_control, .teardown = close_bench)

/* Partition 0 compares with its own word. */
KELP_TEST(control_checks_the_word)
{
    struct kelp_control_word word = view().word;
    word.sample_count--;
    push_as(&word, 0, 4, "x", 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_CONTROL_WORD);
    word = view().word;
    word.version++;
    push_as(&word, 0, 4, "x", 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_INVALID);
    ck_assert_uint_eq(bench.refusal_count, 2);
}

KELP_CASE("other partitions", .setup = open_other, .teardown = close_bench)

/* The other partitions pass evaluation entries when a word of a later version arrives. */
KELP_TEST(evaluation_entries_pass)
{
    train_step(); /* version 0; the next it hears of is 3: 1 and 2 were evaluations */
    ck_assert_uint_eq(view().version, 1);
    ck_assert(!view().has_word);

    struct kelp_control_word seen = {.version = 2, .step = 1, .kind = KELP_STEP_EVALUATE_TEST};
    struct kelp_pull asked = {
        .requester = 1, .generation = 3, .map_epoch = 7, .word = &seen, .mode = KELP_PULL_CURRENT};
    ck_assert_int_eq(kelp_partition_pull(bench.partition, &asked, &bench.actions), KELP_OK);
    take_actions();
    ck_assert_uint_eq(view().version, 2);
    seen.version = 1; /* a late one */
    seen.kind = KELP_STEP_EVALUATE_VAL;
    ck_assert_int_eq(kelp_partition_pull(bench.partition, &asked, &bench.actions), KELP_OK);
    take_actions();
    ck_assert_uint_eq(view().version, 2);
    ck_assert_int_eq(bench.answers[1].status, KELP_OK);
    seen.kind = KELP_STEP_FINISH; /* another word for version 2 */
    seen.version = 2;
    ck_assert_int_eq(kelp_partition_pull(bench.partition, &asked, &bench.actions), KELP_OK);
    take_actions();
    ck_assert_int_eq(bench.answers[2].status, KELP_ERR_CONTROL_WORD);

    struct kelp_control_word word = train_word(3, 1);
    push_as(&word, 0, 4, "r", 1);
    ck_assert_uint_eq(view().phase, KELP_PARTITION_APPLYING);
    finish_apply(true);
    ck_assert_uint_eq(view().version, 4);
    ck_assert_uint_eq(view().step, 2);

    seen.version = 4; /* they carry no gradient anywhere but on partition 0 */
    seen.step = 2;
    push_as(&seen, 0, 4, NULL, 0);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_INVALID);
}

/* Pulls by step: current and older at once, later ones wait, older ones are gone. */
KELP_TEST(pulls_by_step)
{
    pull(1, KELP_PULL_STEP, 0, false, 0);
    ck_assert_uint_eq(bench.answers[0].send, KELP_WEIGHTS_CURRENT);
    pull(2, KELP_PULL_STEP, 1, false, 0);
    ck_assert_uint_eq(bench.answer_count, 1);
    ck_assert_uint_eq(view().waiting, 1);
    train_step();
    ck_assert_uint_eq(bench.answer_count, 2);
    ck_assert_uint_eq(bench.answers[1].requester, 2);
    ck_assert_uint_eq(bench.answers[1].step, 1);
    pull(3, KELP_PULL_STEP, 0, false, 0);
    ck_assert_uint_eq(bench.answers[2].send, KELP_WEIGHTS_OLDER);
    ck_assert_uint_eq(bench.answers[2].step, 0);
    ck_assert_uint_eq(bench.answers[2].current_step, 1);
    train_step();
    pull(4, KELP_PULL_STEP, 0, false, 0);
    ck_assert_int_eq(bench.answers[3].status, KELP_ERR_NOT_FOUND);
    ck_assert_uint_eq(bench.answers[3].current_step, 2);
    pull(5, KELP_PULL_CURRENT, 0, true, 2);
    ck_assert_uint_eq(bench.answers[4].send, KELP_WEIGHTS_NONE);
    ck_assert_uint_eq(bench.answers[4].step, 2);
    ck_assert(!bench.answers[4].has_word);
}

/* The older weights go when the apply begins: their buffer takes the next ones. */
KELP_TEST(older_weights_end_with_the_apply)
{
    train_step();
    push(0, 4, "r");
    pull(1, KELP_PULL_STEP, 0, false, 0);
    ck_assert_int_eq(bench.answers[0].status, KELP_ERR_NOT_FOUND);
    pull(1, KELP_PULL_STEP, 1, false, 0);
    ck_assert_int_eq(bench.answers[1].status, KELP_OK);
    finish_apply(true);
    pull(1, KELP_PULL_STEP, 1, false, 0);
    ck_assert_uint_eq(bench.answers[2].send, KELP_WEIGHTS_OLDER);
}

/* One waiting pull for each requester and mode; a requester that left is not answered. */
KELP_TEST(waiting_pulls)
{
    pull(1, KELP_PULL_STEP, 1, false, 0);
    pull(1, KELP_PULL_STEP, 1, true, 0);
    pull(2, KELP_PULL_STEP, 1, false, 0);
    pull(3, KELP_PULL_STEP, 2, false, 0);
    ck_assert_uint_eq(view().waiting, 3);
    kelp_partition_drop(bench.partition, 2);
    ck_assert_uint_eq(view().waiting, 2);
    train_step();
    ck_assert_uint_eq(bench.answer_count, 1);
    ck_assert_uint_eq(bench.answers[0].requester, 1);
    train_step();
    ck_assert_uint_eq(bench.answer_count, 2);
    ck_assert_uint_eq(bench.answers[1].requester, 3);
    pull(4, KELP_PULL_VERSION, 1, false, 0);
    ck_assert_int_eq(bench.answers[2].status, KELP_ERR_INVALID); /* not partition 0 */
    pull(4, (enum kelp_pull_mode)9, 1, false, 0);
    ck_assert_int_eq(bench.answers[3].status, KELP_ERR_INVALID);
}

/* A generation's end answers those who wait, and releases what is pending. */
KELP_TEST(unload_and_load)
{
    pull(1, KELP_PULL_STEP, 1, false, 0);
    push(0, 1, "0");
    push(2, 1, "2");
    push(3, 1, "3"); /* merge under way */
    ck_assert_int_eq(
        kelp_partition_unload(bench.partition, KELP_ERR_OLD_GENERATION, &bench.actions), KELP_OK);
    take_actions();
    ck_assert_int_eq(bench.answers[0].status, KELP_ERR_OLD_GENERATION);
    struct kelp_partition_start start = {.generation = 4, .map_epoch = 8};
    kelp_partition_load(bench.partition, &start);
    finish_merges();
    ck_assert_uint_eq(live_handles(), 0);
    ck_assert_uint_eq(view().pending, 0);
    ck_assert_uint_eq(view().generation, 4);
    push(0, 4, "x");
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_OLD_GENERATION);
}

/* Nothing is loaded: everyone is asked to come back. */
KELP_TEST(absent_is_busy)
{
    ck_assert_int_eq(
        kelp_partition_unload(bench.partition, KELP_ERR_OLD_GENERATION, &bench.actions), KELP_OK);
    struct kelp_control_word word = train_word(0, 0);
    push_as(&word, 0, 4, "x", 1);
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_BUSY);
    pull(1, KELP_PULL_CURRENT, 0, false, 0);
    ck_assert_int_eq(bench.answers[0].status, KELP_ERR_BUSY);
}

/* A gradient that is not finite: nothing is applied, and nothing more is. */
KELP_TEST(not_finite_stops)
{
    pull(1, KELP_PULL_STEP, 1, false, 0);
    push(0, 4, "nan");
    finish_apply(false);
    ck_assert_uint_eq(view().phase, KELP_PARTITION_FAILED);
    ck_assert_uint_eq(view().step, 0);
    ck_assert_uint_eq(view().waiting, 1);
    ck_assert_uint_eq(live_handles(), 0);
    push(0, 4, "again");
    ck_assert_uint_eq(bench.apply_count, 1);
    pull(2, KELP_PULL_CURRENT, 0, false, 0);
    ck_assert_int_eq(bench.answers[0].status, KELP_OK);
}

/* The apply of a generation that ended meanwhile changes nothing. */
KELP_TEST(late_apply_is_ignored)
{
    push(0, 4, "r");
    ck_assert_int_eq(
        kelp_partition_unload(bench.partition, KELP_ERR_OLD_GENERATION, &bench.actions), KELP_OK);
    take_actions();
    struct kelp_partition_start start = {.generation = 4, .map_epoch = 7};
    kelp_partition_load(bench.partition, &start);
    finish_apply(true);
    ck_assert_uint_eq(view().step, 0);
    ck_assert_uint_eq(view().phase, KELP_PARTITION_COLLECTING);
}

static void complete_control(double loss)
{
    struct kelp_control_word word = view().word;
    push_as(&word, 0, 4, word.kind == KELP_STEP_TRAIN ? "r" : NULL, loss);
    if (word.kind == KELP_STEP_TRAIN) {
        finish_apply(true);
    }
}

KELP_CASE("partition 0", .setup = open_control, .teardown = close_bench)

/* Partition 0 walks through the whole schedule; versions count entries, steps training steps. */
KELP_TEST(whole_schedule)
{
    static const enum kelp_step_kind kinds[] = {
        KELP_STEP_TRAIN,  KELP_STEP_TRAIN, KELP_STEP_EVALUATE_VAL, KELP_STEP_EVALUATE_TEST,
        KELP_STEP_TRAIN,  KELP_STEP_TRAIN, KELP_STEP_EVALUATE_VAL, KELP_STEP_EVALUATE_TEST,
        KELP_STEP_FINISH, KELP_STEP_DONE};
    static const uint64_t steps[] = {0, 1, 2, 2, 2, 3, 4, 4, 4, 4};

    for (uint64_t v = 0; v < KELP_ARRAY_COUNT(kinds); v++) {
        ck_assert_uint_eq(view().version, v);
        ck_assert_uint_eq(view().word.kind, kinds[v]);
        ck_assert_uint_eq(view().step, steps[v]);
        bench.answer_count = 0;
        if (kinds[v] == KELP_STEP_DONE) {
            complete_control(0);
            ck_assert_int_eq(bench.refusal.status, KELP_ERR_INVALID);
            break;
        }
        pull(1, KELP_PULL_VERSION, v + 1, true, steps[v]);
        ck_assert_uint_eq(bench.answer_count, 0);
        if (kinds[v] == KELP_STEP_TRAIN && view().word.step_in_epoch == 1) {
            struct kelp_control_word word = view().word; /* one sample, lane 3's */
            push_as(&word, 0, 2, NULL, 0);
            push_as(&word, 2, 1, NULL, 0);
            push_as(&word, 3, 1, "3", 1);
            finish_apply(true);
        } else {
            complete_control(1);
        }
        ck_assert_uint_eq(bench.record_count, v + 1);
        ck_assert_uint_eq(bench.record.word.version, v);
        ck_assert_uint_eq(bench.answer_count, 1);
        ck_assert_uint_eq(bench.answers[0].word.version, v + 1);
        ck_assert_uint_eq(bench.answers[0].send,
                          kinds[v] == KELP_STEP_TRAIN ? KELP_WEIGHTS_CURRENT : KELP_WEIGHTS_NONE);
    }
    ck_assert_uint_eq(bench.refusal_count, 1);
}

/* The older weights go with the TRAIN word that consumed them, also across evaluations. */
KELP_TEST(older_weights_have_their_word)
{
    struct kelp_control_word word = view().word;
    complete_control(1);
    pull(1, KELP_PULL_STEP, 0, false, 0);
    ck_assert(bench.answers[0].has_word);
    ck_assert(kelp_control_word_equal(&bench.answers[0].word, &word));
    word = view().word;
    push_as(&word, 0, 2, NULL, 0);
    push_as(&word, 2, 2, "23", 1);
    finish_apply(true);
    complete_control(1); /* an evaluation: the weights stay, and so does what can be read */
    pull(1, KELP_PULL_STEP, 1, false, 0);
    ck_assert_int_eq(bench.answers[1].status, KELP_OK);
    ck_assert(kelp_control_word_equal(&bench.answers[1].word, &word));
    pull(1, KELP_PULL_VERSION, 1, true, 2); /* long passed: answered with the current word */
    ck_assert_uint_eq(bench.answers[2].word.version, 3);
    ck_assert_uint_eq(bench.answers[2].send, KELP_WEIGHTS_NONE);
}

/* Sums are added along the tree; the record of an entry is made of them. */
KELP_TEST(sums_go_along_the_tree)
{
    struct kelp_control_word word = view().word;
    push_as(&word, 3, 1, "3", 1e-17);
    push_as(&word, 0, 1, "0", 1.0);
    push_as(&word, 2, 1, "2", 1e-17);
    push_as(&word, 1, 1, "1", -1.0);
    finish_merges();
    finish_apply(true);
    /* ((1 - 1) + (1e-17 + 1e-17)) / 4 samples; any other association loses the small ones */
    ck_assert_double_eq(bench.record.metrics.of[KELP_METRIC_LOSS], 2e-17 / 4);
}

/* An evaluation node with a gradient, sums missing, a digest missing: refused. */
KELP_TEST(control_content_is_checked)
{
    struct kelp_control_word word = view().word;
    struct kelp_push request = {
        .generation = 3, .map_epoch = 7, .word = &word, .lane_count = 4, .handle = new_handle("x")};
    ck_assert_int_eq(kelp_partition_push(bench.partition, &request, &bench.actions), KELP_OK);
    take_actions();
    ck_assert_uint_eq(bench.refusal_count, 1); /* no sums */

    complete_control(1);
    word = view().word;
    push_as(&word, 0, 2, NULL, 0);
    push_as(&word, 2, 2, "23", 1);
    finish_apply(true);
    word = view().word;
    ck_assert_uint_eq(word.kind, KELP_STEP_EVALUATE_VAL);
    push_as(&word, 0, 4, "gradient", 1);
    ck_assert_uint_eq(bench.refusal_count, 2);

    while (view().word.kind != KELP_STEP_FINISH) {
        word = view().word;
        if (word.kind == KELP_STEP_TRAIN && word.sample_count == 1) {
            push_as(&word, 0, 2, NULL, 0);
            push_as(&word, 2, 2, "23", 1);
            finish_apply(true);
        } else {
            complete_control(1);
        }
    }
    word = view().word;
    ck_assert(word.digest_due);
    double sums[KELP_METRIC_SUM_COUNT] = {0};
    static const char *const digests[] = {NULL, "", "0011", "00112233445566778899AABBCCDDEEFF",
                                          "00112233445566778899aabbccddeefff"};
    request = (struct kelp_push){
        .generation = 3, .map_epoch = 7, .word = &word, .lane_count = 4, .sums = sums};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(digests); i++) {
        request.digest = digests[i];
        ck_assert_int_eq(kelp_partition_push(bench.partition, &request, &bench.actions), KELP_OK);
        take_actions();
        ck_assert_uint_eq(bench.refusal_count, 3 + i);
    }
    complete_control(0);
    ck_assert_str_eq(bench.record.digest, "00112233445566778899aabbccddeeff");
    ck_assert_uint_eq(view().word.kind, KELP_STEP_DONE);
}

KELP_CASE("hollow", .setup = open_hollow, .teardown = close_bench)

/* A partition without elements goes along with the others, without gradients. */
KELP_TEST(hollow_partition_steps)
{
    push(0, 2, "something");
    ck_assert_uint_eq(bench.refusal_count, 1);
    push(0, 2, NULL);
    push(2, 1, NULL);
    push(3, 1, NULL);
    ck_assert_uint_eq(bench.merge_count, 0);
    ck_assert_uint_eq(bench.apply.apply.root, KELP_HANDLE_NONE);
    finish_apply(true);
    ck_assert_uint_eq(view().step, 1);
}

/* ---- snapshots ---------------------------------------------------------------------------------
 */

static void order_snapshot(uint64_t serial, uint64_t step)
{
    struct kelp_snapshot_order order = {.serial = serial, .generation = 3, .step = step};

    ck_assert_int_eq(kelp_partition_snapshot(bench.partition, &order, &bench.actions), KELP_OK);
    take_actions();
}

KELP_CASE("other partitions", .setup = open_other, .teardown = close_bench)

/* At once where it stands; when it gets there, before anything of the next step is applied; PAST
 * behind it. Each order ends once. */
KELP_TEST(snapshot_at_its_step)
{
    order_snapshot(5, 0);
    ck_assert_uint_eq(bench.snapshot_count, 1);
    ck_assert_uint_eq(bench.snapshot.snapshot.serial, 5);
    ck_assert(!bench.snapshot.snapshot.has_control);
    order_snapshot(6, 2);
    train_step();
    ck_assert_uint_eq(bench.snapshot_count, 1);
    train_step();
    ck_assert_uint_eq(bench.snapshot_count, 2);
    ck_assert_uint_eq(bench.snapshot.snapshot.serial, 6);
    ck_assert_uint_eq(bench.snapshot.snapshot.step, 2);
    train_step();
    ck_assert_uint_eq(bench.snapshot_count, 2);
    order_snapshot(7, 2);
    ck_assert_uint_eq(bench.past_count, 1);
    ck_assert_uint_eq(bench.past.past.serial, 7);
    ck_assert_uint_eq(bench.past.past.step, 3);
    train_step();
    ck_assert_uint_eq(bench.past_count, 1);
}

/* While a step is applied its weights are half old, half new: too late for them, in time for the
 * next ones. */
KELP_TEST(snapshot_while_applying)
{
    push(0, 4, "r");
    order_snapshot(1, 0);
    ck_assert_uint_eq(bench.snapshot_count, 0);
    ck_assert_uint_eq(bench.past_count, 1);
    ck_assert_uint_eq(bench.past.past.step, 1);
    order_snapshot(2, 1);
    ck_assert_uint_eq(bench.snapshot_count, 0);
    finish_apply(true);
    ck_assert_uint_eq(bench.snapshot_count, 1);
    ck_assert_uint_eq(bench.snapshot.snapshot.step, 1);
}

/* A later order takes the place of one that waits, serial 0 too; other generations are ignored. */
KELP_TEST(snapshot_orders_replace_each_other)
{
    struct kelp_snapshot_order older = {.serial = 9, .generation = 2, .step = 1};

    order_snapshot(1, 1);
    order_snapshot(2, 2);
    ck_assert_int_eq(kelp_partition_snapshot(bench.partition, &older, &bench.actions), KELP_OK);
    train_step();
    ck_assert_uint_eq(bench.snapshot_count, 0);
    train_step();
    ck_assert_uint_eq(bench.snapshot_count, 1);
    ck_assert_uint_eq(bench.snapshot.snapshot.serial, 2);
    order_snapshot(3, 3);
    order_snapshot(0, 0);
    train_step();
    ck_assert_uint_eq(bench.snapshot_count, 1);
    ck_assert_uint_eq(bench.past_count, 0);
}

/* Unloading forgets an order: the next generation knows nothing of it. */
KELP_TEST(snapshot_ends_with_the_generation)
{
    struct kelp_partition_start start = {.generation = 3, .map_epoch = 7};

    order_snapshot(1, 1);
    ck_assert_int_eq(
        kelp_partition_unload(bench.partition, KELP_ERR_OLD_GENERATION, &bench.actions), KELP_OK);
    order_snapshot(2, 1); /* ABSENT */
    take_actions();
    kelp_partition_load(bench.partition, &start);
    train_step();
    ck_assert_uint_eq(bench.snapshot_count, 0);
    ck_assert_uint_eq(bench.past_count, 0);
}

/* A gradient that is not finite was not applied: the state before it is whole, and can be saved. */
KELP_TEST(snapshot_of_a_failed_partition)
{
    push(0, 4, "r");
    finish_apply(false);
    order_snapshot(1, 0);
    ck_assert_uint_eq(bench.snapshot_count, 1);
    order_snapshot(2, 1);
    ck_assert_uint_eq(bench.snapshot_count, 1);
    ck_assert_uint_eq(bench.past_count, 0);
}

KELP_CASE("partition 0", .setup = open_control, .teardown = close_bench)

/* Partition 0 hands out its control state: between evaluations, and when the job is done. */
KELP_TEST(snapshot_has_the_control_state)
{
    order_snapshot(1, 2);
    train_step();
    push(0, 4, "r");
    finish_apply(true);
    ck_assert_uint_eq(bench.snapshot_count, 1);
    ck_assert(bench.snapshot.snapshot.has_control);
    ck_assert_uint_eq(bench.snapshot.snapshot.version, 2);
    ck_assert_int_eq((int)bench.snapshot.snapshot.control.kind, KELP_STEP_EVALUATE_VAL);
    push(0, 4, NULL);
    order_snapshot(2, 2);
    ck_assert_uint_eq(bench.snapshot.snapshot.version, 3);
    ck_assert_int_eq((int)bench.snapshot.snapshot.control.kind, KELP_STEP_EVALUATE_TEST);
    ck_assert_uint_eq(bench.snapshot.snapshot.word.version, 3);
    while (view().word.kind != KELP_STEP_DONE) {
        bool training = view().word.kind == KELP_STEP_TRAIN;
        push(0, 4, training ? "r" : NULL);
        if (training) {
            finish_apply(true);
        }
    }
    order_snapshot(3, 4);
    ck_assert_uint_eq(bench.snapshot_count, 3);
    ck_assert_int_eq((int)bench.snapshot.snapshot.control.kind, KELP_STEP_DONE);
}
