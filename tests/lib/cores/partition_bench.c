#include "tests/lib/cores/partition_bench.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

struct bench bench;

uint64_t bench_new_handle(const char *text)
{
    ck_assert_uint_lt(bench.handle_count + 1, BENCH_HANDLES_MAX);
    uint64_t handle = ++bench.handle_count;
    bench.gradients[handle] = strdup(text);
    ck_assert_ptr_nonnull(bench.gradients[handle]);
    return handle;
}

struct kelp_content bench_content(const char *text)
{
    struct kelp_content content = {.low = UINT64_C(0xcbf29ce484222325), .high = 1};

    for (; *text != '\0'; text++) {
        if (isalnum((unsigned char)*text)) {
            content.low = (content.low ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
        }
    }
    return content;
}

static struct kelp_content content_of(const char *text)
{
    return bench.compares && text ? bench_content(text) : (struct kelp_content){0};
}

static void bench_free_handle(uint64_t handle)
{
    ck_assert_uint_ge(handle, 1);
    ck_assert_uint_le(handle, bench.handle_count);
    ck_assert_msg(bench.gradients[handle], "handle %d is released twice", (int)handle);
    free(bench.gradients[handle]);
    bench.gradients[handle] = NULL;
}

size_t bench_live_handles(void)
{
    size_t live = 0;
    for (uint64_t i = 1; i <= bench.handle_count; i++) {
        live += bench.gradients[i] != NULL;
    }
    return live;
}

struct kelp_partition_view bench_view(void)
{
    struct kelp_partition_view result;
    kelp_partition_view(bench.partition, &result);
    return result;
}

void bench_take_actions(void)
{
    for (size_t i = 0; i < bench.actions.count; i++) {
        const struct kelp_action copy = bench.actions.items[i]; /* the list may move */
        const struct kelp_action *action = &copy;
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
            bench_free_handle(action->release);
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
            ck_assert_uint_eq(action->snapshot.step, bench_view().step);
            bench.snapshot = *action;
            bench.snapshot_count++;
            break;
        case KELP_ACTION_PAST:
            bench.past = *action;
            bench.past_count++;
            break;
        case KELP_ACTION_OFFER:
            ck_assert_uint_lt(bench.offer_count, BENCH_OFFERS_MAX);
            bench.offers[bench.offer_count++] = action->offer;
            break;
        case KELP_ACTION_COMPARE: {
            const struct kelp_content content = content_of(bench.gradients[action->compare.handle]);
            ck_assert_int_eq(kelp_partition_compared(bench.partition, action->compare.token,
                                                     &content, &bench.actions),
                             KELP_OK);
            break;
        }
        case KELP_ACTION_CONFLICT:
            bench.conflict = action->conflict;
            bench.conflict_count++;
            break;
        case KELP_ACTION_FORWARD:
        case KELP_ACTION_ASK:
        case KELP_ACTION_ACKNOWLEDGE:
        case KELP_ACTION_WANT_COPY:
        case KELP_ACTION_COPY:
        case KELP_ACTION_IN_SYNC:
        case KELP_ACTION_DIVERGES:
        case KELP_ACTION_DIFFERS:
            ck_assert_uint_lt(bench.replicated_count, BENCH_REPLICATED_MAX);
            bench.replicated[bench.replicated_count++] = *action;
            break;
        }
    }
    bench.actions.count = 0;
}

void bench_finish_merge(size_t which)
{
    struct kelp_action merge = bench.merges[which];
    char text[512];

    bench.merges[which] = bench.merges[--bench.merge_count];
    (void)snprintf(text, sizeof(text), "(%s+%s)", bench.gradients[merge.merge.left],
                   bench.gradients[merge.merge.right]);
    bench_free_handle(merge.merge.left);
    bench_free_handle(merge.merge.right);
    ck_assert_int_eq(kelp_partition_merged(bench.partition, merge.merge.token,
                                           bench_new_handle(text), &bench.actions),
                     KELP_OK);
    bench_take_actions();
}

void bench_finish_merges(void)
{
    while (bench.merge_count > 0) {
        bench_finish_merge(0);
    }
}

void bench_finish_apply(bool finite)
{
    ck_assert_int_eq(
        kelp_partition_applied(bench.partition, bench.apply.apply.token, finite, &bench.actions),
        KELP_OK);
    bench_take_actions();
}

static uint32_t partition_count = 1;

struct kelp_action bench_replicated(enum kelp_action_kind kind)
{
    ck_assert_uint_gt(bench.replicated_count, 0);
    struct kelp_action action = bench.replicated[0];
    ck_assert_int_eq((int)action.kind, (int)kind);
    memmove(&bench.replicated[0], &bench.replicated[1],
            --bench.replicated_count * sizeof(bench.replicated[0]));
    return action;
}

static void bench_open_at(uint32_t index, const struct kelp_partition_start *start)
{
    bool hollow = bench.hollow;
    bool skips = bench.skips;
    bool clips = bench.clips;

    memset(&bench, 0, sizeof(bench));
    bench.hollow = hollow;
    bench.skips = skips;
    bench.clips = clips;
    bench.index = index;
    bench.job.cluster.lanes = BENCH_LANES;
    bench.job.train.epochs = 2;
    bench.job.train.batch_size = BENCH_BATCH;
    bench.job.train.evaluate = true;
    bench.job.train.evaluate_epochs = 1;
    bench.job.train.lr = 0.5;
    bench.job.failure.on_nan = skips ? KELP_NAN_SKIP : KELP_NAN_STOP;
    bench.job.train.clip_norm = clips ? 1.0 : 0.0;
    bench.plan.partition_count = partition_count;
    bench.plan.samples[KELP_SPLIT_TRAIN] =
        BENCH_BATCH + 1; /* two steps in an epoch, the second with 1 sample */
    bench.plan.samples[KELP_SPLIT_VAL] = 3;
    bench.plan.samples[KELP_SPLIT_TEST] = 3;
    struct kelp_partition_config config = {.index = index,
                                           .replicated = start->place != KELP_REPLICA_PRIMARY ||
                                                         start->backup != 0 || start->joiner != 0,
                                           .hollow = bench.hollow,
                                           .job = &bench.job,
                                           .plan = &bench.plan};
    ck_assert_int_eq(kelp_partition_create(&config, &bench.partition, NULL), KELP_OK);
    kelp_partition_load(bench.partition, start);
}

static void bench_open(uint32_t index)
{
    bench_open_at(index, &(struct kelp_partition_start){.generation = 3, .map_epoch = 7});
}

void bench_open_replica(uint32_t index, const struct kelp_partition_start *start)
{
    bench_open_at(index, start);
}

void bench_open_hollow(void)
{
    bench.hollow = true;
    bench_open(2);
}

void bench_open_control(void)
{
    bench_open(0);
}

void bench_open_skipping(void)
{
    bench.skips = true;
    bench_open(0);
    bench.skips = false;
}

void bench_open_other(void)
{
    bench_open(1);
}

void bench_open_deciding(uint32_t index)
{
    bench.skips = true;
    partition_count = 2;
    bench_open(index);
    partition_count = 1;
    bench.skips = false;
}

void bench_close(void)
{
    bench_finish_merges();
    ck_assert_int_eq(
        kelp_partition_unload(bench.partition, KELP_ERR_OLD_GENERATION, &bench.actions), KELP_OK);
    bench_take_actions();
    ck_assert_uint_eq(bench_live_handles(), 0); /* every handle was released exactly once */
    kelp_partition_destroy(bench.partition);
    kelp_actions_fini(&bench.actions);
}

struct kelp_control_word bench_train_word(uint64_t version, uint64_t step)
{
    return (struct kelp_control_word){.version = version,
                                      .step = step,
                                      .kind = KELP_STEP_TRAIN,
                                      .sample_count = BENCH_BATCH,
                                      .lr = 0.5};
}

void bench_push_as(const struct kelp_control_word *word, uint32_t first, uint32_t count,
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
        .author = bench.author,
        .handle = text ? bench_new_handle(text) : KELP_HANDLE_NONE,
        .content = content_of(text),
        .sums = bench.index == 0 ? sums : NULL,
        .sum_count = bench.index == 0 ? kelp_metric_sum_trim(sums, KELP_METRIC_SUM_COUNT) : 0,
        .digest = word->digest_due && first == 0 ? "00112233445566778899aabbccddeeff" : ""};
    ck_assert_int_eq(kelp_partition_push(bench.partition, &push, &bench.actions), KELP_OK);
    bench_take_actions();
}

void bench_push(uint32_t first, uint32_t count, const char *text)
{
    struct kelp_control_word word =
        bench.index == 0 ? bench_view().word : bench_train_word(0, bench_view().step);
    if (bench.index != 0) {
        word.version = bench_view().version;
    }
    bench_push_as(&word, first, count, text, 1);
}

void bench_pull(uint64_t requester, enum kelp_pull_mode mode, uint64_t target, bool holds,
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
    bench_take_actions();
}

void bench_train_step(void)
{
    bench_push(0, 4, "r");
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_APPLYING);
    bench_finish_apply(true);
}
