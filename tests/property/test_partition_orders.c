/*
 * Three partitions under random orders: nodes of any size, lost, doubled and late, merges and
 * applies that finish when they like, pulls and requesters that come and go. Whatever happens, each
 * lane counts once, sums associate as in the tree, and steps and versions go up one by one. Steps
 * whose gradient is not finite somewhere are left out everywhere, in the worlds that decide; lanes
 * that are late are offered, and nothing else is.
 *
 * A failure prints its seed; KELP_SEED runs that one alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/core/partition.h"
#include "tests/lib/suite.h"

#define SEEDS_EACH  60
#define TESTS       10
#define PARTITIONS  3
#define LANES_MAX   16
#define HANDLES_MAX 4096
#define WORKS_MAX   512
#define REQUESTERS  6
#define TEXT_MAX    256
#define HISTORY_MAX 64
#define GENERATION  5
#define MAP_EPOCH   2
#define HELPERS     2 /* the last requesters of all take offers without waiting */
#define ROUNDS_MAX  200000

/* A merge or an apply that the shell has not finished yet. */
struct work {
    uint32_t partition;
    struct kelp_action action;
};

struct expectation {
    bool waiting;
    uint64_t step;
};

struct world {
    uint64_t seed;
    uint64_t state; /* of the random numbers */
    struct kelp_job job;
    struct kelp_plan plan;
    uint32_t lanes;
    struct kelp_partition *partitions[PARTITIONS];
    struct kelp_actions actions;
    char *texts[HANDLES_MAX]; /* gradients by handle; NULL: free */
    struct work works[WORKS_MAX];
    size_t work_count;
    struct kelp_control_word history[HISTORY_MAX]; /* words of completed entries, newest last */
    size_t history_count;
    uint64_t records;
    uint64_t steps[PARTITIONS];
    struct expectation expected[PARTITIONS][REQUESTERS];
    struct kelp_snapshot_order orders[PARTITIONS]; /* that wait */
    uint64_t serial;
    uint64_t snapshots;
    uint64_t pasts;
    uint64_t now_us;
    bool offered; /* `offer` is new */
    uint32_t offer_partition;
    struct kelp_offer offer;
    uint64_t offers;
    uint64_t comparisons; /* of sums of duplicates */
    uint64_t skips;
    uint64_t decisions; /* values that partitions applied */
};

static struct world world;

static uint64_t next_random(void)
{
    world.state ^= world.state << 13;
    world.state ^= world.state >> 7;
    world.state ^= world.state << 17;
    return world.state;
}

static uint64_t pick(uint64_t below)
{
    return next_random() % below;
}

/* ck_assert() writes to a file each time that it holds; this is called millions of times. */
#define must(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            ck_abort_msg("seed %llu: %s", (unsigned long long)world.seed, #condition);             \
        }                                                                                          \
    } while (0)

/* ---- the tree ----------------------------------------------------------------------------------
 */

static uint64_t samples_of(const struct kelp_control_word *word, uint32_t first, uint32_t end)
{
    return end * word->sample_count / world.lanes - first * word->sample_count / world.lanes;
}

/* What the node must be worth: "" when it has no samples. */
static void expression(const struct kelp_control_word *word, uint32_t first, uint32_t count,
                       char *text)
{
    char left[TEXT_MAX];
    char right[TEXT_MAX];

    if (count == 1) {
        text[0] = '\0';
        if (samples_of(word, first, first + 1) > 0) {
            (void)snprintf(text, TEXT_MAX, "%u", first);
        }
        return;
    }
    expression(word, first, count / 2, left);
    expression(word, first + count / 2, count / 2, right);
    bool both = left[0] != '\0' && right[0] != '\0';
    int length = snprintf(text, TEXT_MAX, both ? "(%s+%s)" : "%s%s", left, right);
    must(length < TEXT_MAX);
}

static uint64_t new_handle(const char *text)
{
    for (uint64_t handle = 1; handle < HANDLES_MAX; handle++) {
        if (!world.texts[handle]) {
            world.texts[handle] = strdup(text);
            return handle;
        }
    }
    ck_abort_msg("gradients are not released");
    return 0;
}

static void release(uint64_t handle)
{
    must(handle > 0 && handle < HANDLES_MAX);
    must(world.texts[handle]);
    free(world.texts[handle]);
    world.texts[handle] = NULL;
}

/* ---- the shell ---------------------------------------------------------------------------------
 */

static struct kelp_partition_view view(uint32_t partition)
{
    struct kelp_partition_view result;
    kelp_partition_view(world.partitions[partition], &result);
    return result;
}

/* By nature, so to speak: the same whenever it is computed. */
static bool finite_at(uint32_t partition, uint64_t step)
{
    if (world.job.failure.on_nan != KELP_NAN_SKIP) {
        return true; /* the job would fail */
    }
    /* Never more than half of the steps, or the job would fail at an epoch's end. */
    return step % 2 == 0 || (step * 2654435761u + partition * 40503u + world.seed) % 5 > 1;
}

static bool skipped_at(uint64_t step)
{
    bool finite = true;
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        finite = finite && finite_at(p, step);
    }
    return !finite && world.job.failure.on_nan == KELP_NAN_SKIP;
}

/* What a partition tells of a step: as many numbers as its slice has nodes. */
static void share_at(uint32_t partition, uint64_t step, struct kelp_decision_share *ret_share)
{
    must(kelp_decision_share_count(&world.job, &world.plan, partition, &ret_share->count, NULL) ==
         KELP_OK);
    ret_share->values[KELP_DECISION_SHARE_FINITE] = finite_at(partition, step) ? 1 : 0;
    for (uint32_t i = 1; i < ret_share->count; i++) {
        ret_share->values[i] = (double)((step * 31 + partition * 7 + i) % 97) / 7.0;
    }
}

/* What they decide about a step that is not left out: `count` values. */
static uint32_t decided_at(uint64_t step, double *values)
{
    struct kelp_decision_share parts[PARTITIONS];
    const struct kelp_decision_share *pointers[PARTITIONS];

    for (uint32_t p = 0; p < PARTITIONS; p++) {
        share_at(p, step, &parts[p]);
        pointers[p] = &parts[p];
    }
    bool skip = kelp_step_decide(&world.job, &world.plan, pointers, values);
    must(skip == skipped_at(step));
    return skip ? 0 : kelp_step_decision_count(&world.job, &world.plan);
}

/* The decision about the step before it goes with a word of partition 0. */
static void check_decision(const struct kelp_control_word *word, const double *values,
                           uint32_t count)
{
    double decided[1];

    if (count > 0) {
        must(word->step > 0 && count == decided_at(word->step - 1, decided));
        must(memcmp(values, decided, sizeof(decided)) == 0);
    }
}

static void check_apply(const struct kelp_action *action)
{
    char text[TEXT_MAX];
    double decided[1];

    must(action->kind == KELP_ACTION_MEASURE || !skipped_at(action->apply.word.step));
    if (action->kind == KELP_ACTION_APPLY && kelp_control_decides(&world.job)) {
        uint32_t count = decided_at(action->apply.word.step, decided);
        must(action->apply.decision.count == count);
        must(count == 0 || action->apply.decision.values[0] == decided[0]);
        world.decisions += count;
    }

    expression(&action->apply.word, 0, world.lanes, text);
    must(world.texts[action->apply.root]);
    if (strcmp(world.texts[action->apply.root], text) != 0) {
        ck_abort_msg("seed %llu: applied %s, not %s", (unsigned long long)world.seed,
                     world.texts[action->apply.root], text);
    }
}

static void check_answer(uint32_t partition, const struct kelp_answer *answer)
{
    struct expectation *expected = &world.expected[partition][answer->requester];
    struct kelp_partition_view now = view(partition);

    if (answer->is_share) {
        must(answer->status == KELP_OK && answer->step <= now.step);
        struct kelp_decision_share share;
        share_at(partition, answer->step, &share);
        must(answer->value_count == 0 || answer->value_count == share.count);
        must(memcmp(answer->values, share.values, answer->value_count * sizeof(double)) == 0 ||
             answer->value_count == 0);
        return;
    }
    must(answer->has_word || answer->value_count == 0);
    if (answer->has_word) {
        check_decision(&answer->word, answer->values, answer->value_count);
    }
    must(expected->waiting); /* one answer for each pull */
    expected->waiting = false;
    if (answer->status == KELP_ERR_NOT_FOUND) {
        must(expected->step < now.step);
        must(answer->current_step == now.step);
        return;
    }
    must(answer->status == KELP_OK);
    must(answer->step == expected->step);
    must(answer->step == now.step || answer->step + 1 == now.step);
    must((answer->send == KELP_WEIGHTS_OLDER) == (answer->step != now.step));
}

static void check_record(const struct kelp_record *record)
{
    double lanes_once = (double)((UINT64_C(1) << world.lanes) - 1);

    must(record->word.version == world.records); /* versions go up one by one */
    must(record->skipped ==
         (record->word.kind == KELP_STEP_TRAIN && skipped_at(record->word.step)));
    world.skips += record->skipped;
    world.records++;
    if (record->word.sample_count > 0) { /* each lane's bit was added once */
        must(record->metrics.of[KELP_METRIC_LOSS] ==
             lanes_once / (double)record->word.sample_count);
    }
    if (world.history_count == HISTORY_MAX) {
        memmove(world.history, world.history + 1, sizeof(world.history) - sizeof(world.history[0]));
        world.history_count--;
    }
    world.history[world.history_count++] = record->word;
}

/* Exactly at the boundary: `step` training steps are complete, the next is not applied. */
static void check_snapshot(uint32_t partition, const struct kelp_action *action)
{
    struct kelp_snapshot_order *order = &world.orders[partition];

    must(order->serial == action->snapshot.serial);
    must(order->step == action->snapshot.step);
    must(action->snapshot.step == view(partition).step);
    must(view(partition).phase != KELP_PARTITION_APPLYING);
    must(action->snapshot.has_control == (partition == 0));
    if (partition == 0) {
        must(action->snapshot.control.step == order->step);
        must(action->snapshot.control.version == action->snapshot.version);
        must(action->snapshot.word.version == action->snapshot.version);
        must(action->snapshot.version == world.records);
    }
    order->serial = 0;
    world.snapshots++;
}

/* Only what is missing, and only to those who wait for what follows, is offered. */
static void take_offer(uint32_t partition, const struct kelp_offer *offer)
{
    must(offer->lane_count > 0 && offer->lane_first % offer->lane_count == 0);
    must(offer->lane_first + offer->lane_count <= world.lanes);
    must(offer->word.step == view(partition).step);
    must(partition == 0 || offer->word.kind == KELP_STEP_TRAIN);
    bool spare = offer->requester >= REQUESTERS && offer->requester < REQUESTERS + HELPERS;
    must(spare || (world.expected[partition][offer->requester].waiting &&
                   world.expected[partition][offer->requester].step == offer->word.step + 1));
    must(spare || view(partition).phase == KELP_PARTITION_COLLECTING);
    world.offers++;
    world.offered = true;
    world.offer_partition = partition;
    world.offer = *offer;
}

static struct kelp_content content_of(const char *text)
{
    struct kelp_content content = {.low = UINT64_C(0xcbf29ce484222325), .high = 1};

    for (; *text != '\0'; text++) {
        content.low = (content.low ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    }
    return content;
}

static void compare(uint32_t partition, const struct kelp_action *action)
{
    must(world.texts[action->compare.handle]);
    const struct kelp_content content = content_of(world.texts[action->compare.handle]);
    must(kelp_partition_compared(world.partitions[partition], action->compare.token, &content,
                                 &world.actions) == KELP_OK);
    world.comparisons++;
}

static void take_actions(uint32_t partition)
{
    for (size_t i = 0; i < world.actions.count; i++) {
        const struct kelp_action copy = world.actions.items[i]; /* the list may move */
        const struct kelp_action *action = &copy;
        switch (action->kind) {
        case KELP_ACTION_REPEAT:
            must(skipped_at(world.steps[partition]));
            break;
        case KELP_ACTION_MEASURE:
        case KELP_ACTION_APPLY:
            check_apply(action);
            /* fall through */
        case KELP_ACTION_MERGE:
            must(world.work_count < WORKS_MAX);
            world.works[world.work_count++] =
                (struct work){.partition = partition, .action = *action};
            break;
        case KELP_ACTION_ANSWER:
            check_answer(partition, &action->answer);
            break;
        case KELP_ACTION_REFUSE:
            ck_abort_msg("seed %llu: refused: %s", (unsigned long long)world.seed,
                         action->refuse.why);
            break;
        case KELP_ACTION_RELEASE:
            release(action->release);
            break;
        case KELP_ACTION_RECORD:
            must(partition == 0);
            check_record(&action->record);
            break;
        case KELP_ACTION_GIVE_UP:
            must(false);
            break;
        case KELP_ACTION_SNAPSHOT:
            check_snapshot(partition, action);
            break;
        case KELP_ACTION_PAST:
            must(world.orders[partition].serial == action->past.serial);
            must(world.orders[partition].step < action->past.step);
            world.orders[partition].serial = 0;
            world.pasts++;
            break;
        case KELP_ACTION_OFFER:
            take_offer(partition, &action->offer);
            break;
        case KELP_ACTION_COMPARE:
            compare(partition, action);
            break;
        case KELP_ACTION_CONFLICT: /* whoever is honest never differs, in whatever order */
            must(false);
            break;
        case KELP_ACTION_FORWARD:
        case KELP_ACTION_ASK:
        case KELP_ACTION_ACKNOWLEDGE:
        case KELP_ACTION_WANT_COPY:
        case KELP_ACTION_COPY:
        case KELP_ACTION_IN_SYNC:
        case KELP_ACTION_DIVERGES:
        case KELP_ACTION_DIFFERS:
            must(false); /* nobody follows */
            break;
        }
    }
    world.actions.count = 0;
    uint64_t step = view(partition).step;
    must(step == world.steps[partition] || step == world.steps[partition] + 1);
    world.steps[partition] = step;
    /* An order waits for a step to come, never for one that is there. */
    const struct kelp_snapshot_order *order = &world.orders[partition];
    must(order->serial == 0 || order->step > step);
}

static void finish_work(size_t which)
{
    struct work work = world.works[which];
    struct kelp_partition *partition = world.partitions[work.partition];
    char text[TEXT_MAX];

    world.works[which] = world.works[--world.work_count];
    if (work.action.kind == KELP_ACTION_APPLY) {
        must(kelp_partition_applied(partition, work.action.apply.token, true, &world.actions) ==
             KELP_OK);
    } else if (work.action.kind == KELP_ACTION_MEASURE) {
        struct kelp_decision_share share;
        share_at(work.partition, work.action.apply.word.step, &share);
        must(kelp_partition_measured(partition, work.action.apply.token, &share, &world.actions) ==
             KELP_OK);
    } else {
        uint64_t left = work.action.merge.left;
        uint64_t right = work.action.merge.right;
        must(world.texts[left] && world.texts[right]);
        int length = snprintf(text, sizeof(text), "(%s+%s)", world.texts[left], world.texts[right]);
        must(length < TEXT_MAX);
        release(left);
        release(right);
        must(kelp_partition_merged(partition, work.action.merge.token, new_handle(text),
                                   &world.actions) == KELP_OK);
    }
    take_actions(work.partition);
}

/* ---- workers -----------------------------------------------------------------------------------
 */

static void push(uint32_t partition, const struct kelp_control_word *word, uint32_t first,
                 uint32_t count)
{
    char text[TEXT_MAX] = "";
    double sums[KELP_METRIC_SUM_COUNT] = {0};
    struct kelp_push push = {.generation = GENERATION,
                             .map_epoch = MAP_EPOCH,
                             .word = word,
                             .lane_first = first,
                             .lane_count = count,
                             .sums = partition == 0 ? sums : NULL,
                             .digest = "0123456789abcdef0123456789abcdef"};

    if (word->kind == KELP_STEP_TRAIN) {
        expression(word, first, count, text);
    }
    if (text[0] != '\0') {
        push.handle = new_handle(text);
        push.content = content_of(text);
    }
    for (uint32_t lane = first; lane < first + count; lane++) {
        sums[KELP_METRIC_SUM_LOSS] += (double)(UINT64_C(1) << lane);
    }
    sums[KELP_METRIC_SUM_SAMPLES] = (double)samples_of(word, first, first + count);
    push.sum_count = partition == 0 ? kelp_metric_sum_trim(sums, KELP_METRIC_SUM_COUNT) : 0;
    must(kelp_partition_push(world.partitions[partition], &push, &world.actions) == KELP_OK);
    take_actions(partition);
}

/* A node of any level, of the entry in progress or of one long gone, to any partition. */
static void random_push(void)
{
    struct kelp_control_word word = view(0).word;
    uint32_t partition = (uint32_t)pick(PARTITIONS);
    uint32_t count = 1;

    if (world.history_count > 0 && pick(3) == 0) {
        /* A late one. Partition 0 may be one entry ahead of the others, which still need it. */
        word = world.history[world.history_count - 1 - pick(world.history_count)];
    }
    if (word.kind == KELP_STEP_DONE || (word.kind != KELP_STEP_TRAIN && partition != 0)) {
        return;
    }
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        if (view(p).step < word.step) {
            return; /* nobody can have computed it yet: some weights are missing */
        }
    }
    while (count < world.lanes && pick(2) == 0) {
        count *= 2;
    }
    push(partition, &word, (uint32_t)pick(world.lanes / count) * count, count);
}

static void random_pull(void)
{
    uint32_t partition = (uint32_t)pick(PARTITIONS);
    uint64_t requester = pick(REQUESTERS);
    uint64_t step = view(partition).step + pick(4);
    struct kelp_control_word word = view(0).word;
    struct kelp_pull pull = {.requester = requester,
                             .generation = GENERATION,
                             .map_epoch = MAP_EPOCH,
                             .word = pick(2) == 0 ? &word : NULL,
                             .mode = KELP_PULL_STEP,
                             .step = step < 2 ? step : step - 2};
    double decided[1];
    if (pull.word && word.step > 0 && pick(4) > 0) { /* a word alone tells no factor */
        pull.decision.count = decided_at(word.step - 1, decided);
        pull.decision.values = decided;
    }

    world.expected[partition][requester] = (struct expectation){.waiting = true, .step = pull.step};
    must(kelp_partition_pull(world.partitions[partition], &pull, &world.actions) == KELP_OK);
    take_actions(partition);
}

static void random_drop(void)
{
    uint64_t requester = pick(REQUESTERS);

    for (uint32_t p = 0; p < PARTITIONS; p++) {
        kelp_partition_drop(world.partitions[p], requester);
        world.expected[p][requester].waiting = false;
    }
}

/* Somebody asks for a share, or carries one that it got, late or not, to partition 0. */
static void random_share(void)
{
    uint32_t partition = 1 + (uint32_t)pick(PARTITIONS - 1);
    struct kelp_partition_view there = view(partition);
    struct kelp_control_word word = view(0).word;
    bool known = there.step > word.step || there.phase == KELP_PARTITION_DECIDING;

    if (!kelp_control_decides(&world.job) || word.kind != KELP_STEP_TRAIN) {
        return;
    }
    if (!known || pick(2) == 0) {
        struct kelp_pull pull = {.requester = pick(REQUESTERS),
                                 .generation = GENERATION,
                                 .map_epoch = MAP_EPOCH,
                                 .mode = KELP_PULL_SHARE,
                                 .step = word.step};
        must(kelp_partition_pull(world.partitions[partition], &pull, &world.actions) == KELP_OK);
        take_actions(partition);
        return;
    }
    struct kelp_share_push push = {
        .generation = GENERATION, .map_epoch = MAP_EPOCH, .word = &word, .partition = partition};
    share_at(partition, word.step, &push.share);
    must(kelp_partition_share(world.partitions[0], &push, &world.actions) == KELP_OK);
    take_actions(0);
}

/* Time goes on, and what is late is offered. What is offered while nodes come in is missing. */
static void random_tick(void)
{
    static const struct kelp_cover_candidate spares[HELPERS] = {{.requester = REQUESTERS},
                                                                {.requester = REQUESTERS + 1}};
    uint32_t partition = (uint32_t)pick(PARTITIONS);
    uint64_t next_us;

    world.now_us += pick(40000);
    world.offered = false;
    kelp_partition_clock(world.partitions[partition], world.now_us);
    must(kelp_partition_tick(world.partitions[partition], spares, pick(HELPERS + 1), &world.actions,
                             &next_us) == KELP_OK);
    take_actions(partition);
    must(next_us >= world.now_us);
    if (world.offered && view(partition).phase == KELP_PARTITION_COLLECTING && pick(2) == 0) {
        for (uint32_t p = 0; p < PARTITIONS; p++) {
            if (view(p).step < world.offer.word.step) {
                return; /* it cannot have the weights yet */
            }
        }
        uint64_t duplicates = view(partition).duplicates;
        push(partition, &world.offer.word, world.offer.lane_first, world.offer.lane_count);
        must(view(partition).duplicates == duplicates);
    }
}

/* Around the step that the partition is at: behind it, there, or ahead. */
static void random_snapshot(void)
{
    uint32_t partition = (uint32_t)pick(PARTITIONS);
    uint64_t step = view(partition).step + pick(4);
    struct kelp_snapshot_order order = {
        .serial = ++world.serial, .generation = GENERATION, .step = step > 0 ? step - 1 : 0};

    if (pick(8) == 0) {
        order.serial = 0; /* give up */
    }
    world.orders[partition] = order;
    must(kelp_partition_snapshot(world.partitions[partition], &order, &world.actions) == KELP_OK);
    take_actions(partition);
}

/* ---- runs --------------------------------------------------------------------------------------
 */

static void open_world(uint64_t seed)
{
    memset(&world, 0, sizeof(world));
    world.seed = seed;
    world.state = seed * 0x9e3779b97f4a7c15u + 1;
    world.lanes = 1u << pick(5);
    world.job.cluster.lanes = world.lanes;
    world.job.train.epochs = 1 + (uint32_t)pick(3);
    world.job.train.batch_size = 1 + (uint32_t)pick(2 * world.lanes);
    world.job.train.evaluate = pick(2) == 0;
    world.job.train.evaluate_epochs = (uint32_t)pick(3);
    world.job.train.evaluate_steps = (uint32_t)pick(4);
    world.job.train.lr = 0.5;
    world.job.checkpoint.digest_steps = (uint32_t)pick(3);
    world.job.failure.on_nan = pick(2) == 0 ? KELP_NAN_SKIP : KELP_NAN_STOP;
    world.job.train.clip_norm = pick(2) == 0 ? 2.5 : 0;
    world.plan.samples[KELP_SPLIT_TRAIN] = 1 + pick(5 * world.job.train.batch_size);
    world.plan.partition_count = PARTITIONS;
    world.plan.flat_count = 16 * (1 + pick(40)); /* the last partitions may have nothing */
    world.plan.samples[KELP_SPLIT_VAL] = pick(3);
    world.plan.samples[KELP_SPLIT_TEST] = pick(3);
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        struct kelp_partition_config config = {.index = p, .job = &world.job, .plan = &world.plan};
        struct kelp_partition_start start = {.generation = GENERATION, .map_epoch = MAP_EPOCH};
        must(kelp_partition_create(&config, &world.partitions[p], NULL) == KELP_OK);
        kelp_partition_load(world.partitions[p], &start);
    }
}

static void close_world(void)
{
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        for (uint32_t r = 0; r < REQUESTERS; r++) {
            kelp_partition_drop(world.partitions[p], r);
        }
    }
    while (world.work_count > 0) {
        finish_work(0);
    }
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        must(kelp_partition_unload(world.partitions[p], KELP_ERR_OLD_GENERATION, &world.actions) ==
             KELP_OK);
        take_actions(p);
        kelp_partition_destroy(world.partitions[p]);
    }
    for (uint64_t handle = 1; handle < HANDLES_MAX; handle++) {
        must(!world.texts[handle]); /* every gradient was given back */
    }
    kelp_actions_fini(&world.actions);
}

static bool done(void)
{
    for (uint32_t p = 1; p < PARTITIONS; p++) {
        if (view(p).step != view(0).step) {
            return false;
        }
    }
    return view(0).word.kind == KELP_STEP_DONE;
}

static void check_apart(void)
{
    for (uint32_t p = 1; p < PARTITIONS; p++) {
        uint64_t ours = view(p).step;
        uint64_t its = view(0).step;
        must(ours <= its + 1 && its <= ours + 1);
        must(view(p).version <= view(0).version + 1);
        /* w_v exists everywhere while any lane of v is missing. */
        must(its <= ours || view(0).has_older || view(0).phase == KELP_PARTITION_APPLYING);
    }
}

static void run_seed(uint64_t seed)
{
    unsigned rounds = 0;

    open_world(seed);
    for (; rounds < ROUNDS_MAX && !done(); rounds++) {
        uint64_t what = pick(26);
        if (what < 12) {
            random_push();
        } else if (what < 15) {
            random_pull();
        } else if (what < 16) {
            random_drop();
        } else if (what < 17) {
            random_snapshot();
        } else if (what < 20) {
            random_share();
        } else if (what < 22) {
            random_tick();
        } else if (world.work_count > 0) {
            finish_work(pick(world.work_count));
        }
        check_apart();
    }
    must(rounds < ROUNDS_MAX); /* it gets to the end */
    must(world.steps[0] == kelp_control_total_steps(&world.job, &world.plan));
    close_world();
}

KELP_CASE("orders", .timeout_s = 250)

/* Many seeds in one test: a process for each would take longer than the runs. */
KELP_LOOP_TEST(random_orders, 0, kelp_suite_seed() < 0 ? TESTS : 0)
{
    uint64_t offers = 0, skips = 0, decisions = 0, comparisons = 0;

    for (uint64_t i = 0; i < SEEDS_EACH; i++) {
        run_seed((uint64_t)_i * SEEDS_EACH + i + 1);
        offers += world.offers;
        skips += world.skips;
        decisions += world.decisions;
        comparisons += world.comparisons;
    }
    ck_assert_uint_gt(offers, 200); /* else these worlds are too quiet to show anything */
    ck_assert_uint_gt(skips, 50);
    ck_assert_uint_gt(decisions, 100);
    ck_assert_uint_gt(comparisons, 100);
}

KELP_LOOP_TEST(one_seed, kelp_suite_seed(), kelp_suite_seed() < 0 ? -1 : kelp_suite_seed() + 1)
{
    run_seed((uint64_t)_i);
}
