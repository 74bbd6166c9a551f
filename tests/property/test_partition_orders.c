/*
 * Three partitions under random orders: nodes of any size, lost, doubled and late, merges and
 * applies that finish when they like, pulls and requesters that come and go. Whatever happens, each
 * lane counts once, sums associate as in the tree, and steps and versions go up one by one. Steps
 * whose gradient is not finite somewhere are skipped everywhere, in the worlds that decide; lanes
 * that are late are offered, and nothing else is.
 *
 * A failure prints its seed; KELP_SEED runs that one alone.
 */
#include <string.h>

#include "tests/lib/cores/partition_world.h"
#include "tests/lib/suite.h"

#define SEEDS_EACH 60
#define TESTS      10
#define GENERATION 5
#define MAP_EPOCH  2
#define ROUNDS_MAX 200000

/* ---- workers -----------------------------------------------------------------------------------
 */

static void push(uint32_t partition, const struct kelp_control_word *word, uint32_t first,
                 uint32_t count)
{
    char text[WORLD_TEXT_MAX] = "";
    double sums[KELP_METRIC_SUM_COUNT] = {0};
    struct kelp_push push = {.generation = GENERATION,
                             .map_epoch = MAP_EPOCH,
                             .word = word,
                             .lane_first = first,
                             .lane_count = count,
                             .sums = partition == 0 ? sums : NULL,
                             .digest = "0123456789abcdef0123456789abcdef"};

    if (word->kind == KELP_STEP_TRAIN) {
        world_expression(word, first, count, text);
    }
    if (text[0] != '\0') {
        push.handle = world_new_handle(text);
        push.content = world_content_of(text);
    }
    for (uint32_t lane = first; lane < first + count; lane++) {
        sums[KELP_METRIC_SUM_LOSS] += (double)(UINT64_C(1) << lane);
    }
    sums[KELP_METRIC_SUM_SAMPLES] = (double)world_samples_of(word, first, first + count);
    push.sum_count = partition == 0 ? kelp_metric_sum_trim(sums, KELP_METRIC_SUM_COUNT) : 0;
    world_must(kelp_partition_push(orders_world.partitions[partition], &push,
                                   &orders_world.actions) == KELP_OK);
    world_take_actions(partition);
}

/* A node of any level, of the entry in progress or of one long gone, to any partition. */
static void random_push(void)
{
    struct kelp_control_word word = world_view(0).word;
    uint32_t partition = (uint32_t)world_pick(WORLD_PARTITIONS);
    uint32_t count = 1;

    if (orders_world.history_count > 0 && world_pick(3) == 0) {
        /* A late one. Partition 0 may be one entry ahead of the others, which still need it. */
        word =
            orders_world
                .history[orders_world.history_count - 1 - world_pick(orders_world.history_count)];
    }
    if (word.kind == KELP_STEP_DONE || (word.kind != KELP_STEP_TRAIN && partition != 0)) {
        return;
    }
    for (uint32_t p = 0; p < WORLD_PARTITIONS; p++) {
        if (world_view(p).step < word.step) {
            return; /* nobody can have computed it yet: some weights are missing */
        }
    }
    while (count < orders_world.lanes && world_pick(2) == 0) {
        count *= 2;
    }
    push(partition, &word, (uint32_t)world_pick(orders_world.lanes / count) * count, count);
}

static void random_pull(void)
{
    uint32_t partition = (uint32_t)world_pick(WORLD_PARTITIONS);
    uint64_t requester = world_pick(WORLD_REQUESTERS);
    uint64_t step = world_view(partition).step + world_pick(4);
    struct kelp_control_word word = world_view(0).word;
    struct kelp_pull pull = {.requester = requester,
                             .generation = GENERATION,
                             .map_epoch = MAP_EPOCH,
                             .word = world_pick(2) == 0 ? &word : NULL,
                             .mode = KELP_PULL_STEP,
                             .step = step < 2 ? step : step - 2};
    double decided[1];
    if (pull.word && word.step > 0 && world_pick(4) > 0) { /* a word alone tells no factor */
        pull.decision.count = world_decided_at(word.step - 1, decided);
        pull.decision.values = decided;
    }

    orders_world.expected[partition][requester] =
        (struct world_expectation){.waiting = true, .step = pull.step};
    world_must(kelp_partition_pull(orders_world.partitions[partition], &pull,
                                   &orders_world.actions) == KELP_OK);
    world_take_actions(partition);
}

static void random_drop(void)
{
    uint64_t requester = world_pick(WORLD_REQUESTERS);

    for (uint32_t p = 0; p < WORLD_PARTITIONS; p++) {
        kelp_partition_drop(orders_world.partitions[p], requester);
        orders_world.expected[p][requester].waiting = false;
    }
}

/* Somebody asks for a share, or carries one that it got, late or not, to partition 0. */
static void random_share(void)
{
    uint32_t partition = 1 + (uint32_t)world_pick(WORLD_PARTITIONS - 1);
    struct kelp_partition_view there = world_view(partition);
    struct kelp_control_word word = world_view(0).word;
    bool known = there.step > word.step || there.phase == KELP_PARTITION_DECIDING;

    if (!kelp_control_decides(&orders_world.job) || word.kind != KELP_STEP_TRAIN) {
        return;
    }
    if (!known || world_pick(2) == 0) {
        struct kelp_pull pull = {.requester = world_pick(WORLD_REQUESTERS),
                                 .generation = GENERATION,
                                 .map_epoch = MAP_EPOCH,
                                 .mode = KELP_PULL_SHARE,
                                 .step = word.step};
        world_must(kelp_partition_pull(orders_world.partitions[partition], &pull,
                                       &orders_world.actions) == KELP_OK);
        world_take_actions(partition);
        return;
    }
    struct kelp_share_push push = {
        .generation = GENERATION, .map_epoch = MAP_EPOCH, .word = &word, .partition = partition};
    world_share_at(partition, word.step, &push.share);
    world_must(kelp_partition_share(orders_world.partitions[0], &push, &orders_world.actions) ==
               KELP_OK);
    world_take_actions(0);
}

/* Time goes on, and what is late is offered. What is offered while nodes come in is missing. */
static void random_tick(void)
{
    static const struct kelp_cover_candidate spares[WORLD_HELPERS] = {
        {.requester = WORLD_REQUESTERS}, {.requester = WORLD_REQUESTERS + 1}};
    uint32_t partition = (uint32_t)world_pick(WORLD_PARTITIONS);
    uint64_t next_us;

    orders_world.now_us += world_pick(40000);
    orders_world.offered = false;
    kelp_partition_clock(orders_world.partitions[partition], orders_world.now_us);
    world_must(kelp_partition_tick(orders_world.partitions[partition], spares,
                                   world_pick(WORLD_HELPERS + 1), &orders_world.actions,
                                   &next_us) == KELP_OK);
    world_take_actions(partition);
    world_must(next_us >= orders_world.now_us);
    if (orders_world.offered && world_view(partition).phase == KELP_PARTITION_COLLECTING &&
        world_pick(2) == 0) {
        for (uint32_t p = 0; p < WORLD_PARTITIONS; p++) {
            if (world_view(p).step < orders_world.offer.word.step) {
                return; /* it cannot have the weights yet */
            }
        }
        uint64_t duplicates = world_view(partition).duplicates;
        push(partition, &orders_world.offer.word, orders_world.offer.lane_first,
             orders_world.offer.lane_count);
        world_must(world_view(partition).duplicates == duplicates);
    }
}

/* Around the step that the partition is at: behind it, there, or ahead. */
static void random_snapshot(void)
{
    uint32_t partition = (uint32_t)world_pick(WORLD_PARTITIONS);
    uint64_t step = world_view(partition).step + world_pick(4);
    struct kelp_snapshot_order order = {
        .serial = ++orders_world.serial, .generation = GENERATION, .step = step > 0 ? step - 1 : 0};

    if (world_pick(8) == 0) {
        order.serial = 0; /* give up */
    }
    orders_world.orders[partition] = order;
    world_must(kelp_partition_snapshot(orders_world.partitions[partition], &order,
                                       &orders_world.actions) == KELP_OK);
    world_take_actions(partition);
}

/* ---- runs --------------------------------------------------------------------------------------
 */

static void open_world(uint64_t seed)
{
    memset(&orders_world, 0, sizeof(orders_world));
    orders_world.seed = seed;
    orders_world.state = seed * 0x9e3779b97f4a7c15u + 1;
    orders_world.lanes = 1u << world_pick(5);
    orders_world.job.cluster.lanes = orders_world.lanes;
    orders_world.job.train.epochs = 1 + (uint32_t)world_pick(3);
    orders_world.job.train.batch_size = 1 + (uint32_t)world_pick(2 * orders_world.lanes);
    orders_world.job.train.evaluate = world_pick(2) == 0;
    orders_world.job.train.evaluate_epochs = (uint32_t)world_pick(3);
    orders_world.job.train.evaluate_steps = (uint32_t)world_pick(4);
    orders_world.job.train.lr = 0.5;
    orders_world.job.checkpoint.digest_steps = (uint32_t)world_pick(3);
    orders_world.job.failure.on_nan = world_pick(2) == 0 ? KELP_NAN_SKIP : KELP_NAN_STOP;
    orders_world.job.train.clip_norm = world_pick(2) == 0 ? 2.5 : 0;
    orders_world.plan.samples[KELP_SPLIT_TRAIN] =
        1 + world_pick(5 * orders_world.job.train.batch_size);
    orders_world.plan.partition_count = WORLD_PARTITIONS;
    orders_world.plan.flat_count =
        16 * (1 + world_pick(40)); /* the last partitions may have nothing */
    orders_world.plan.samples[KELP_SPLIT_VAL] = world_pick(3);
    orders_world.plan.samples[KELP_SPLIT_TEST] = world_pick(3);
    for (uint32_t p = 0; p < WORLD_PARTITIONS; p++) {
        struct kelp_partition_config config = {
            .index = p, .job = &orders_world.job, .plan = &orders_world.plan};
        struct kelp_partition_start start = {.generation = GENERATION, .map_epoch = MAP_EPOCH};
        world_must(kelp_partition_create(&config, &orders_world.partitions[p], NULL) == KELP_OK);
        kelp_partition_load(orders_world.partitions[p], &start);
    }
}

static void close_world(void)
{
    for (uint32_t p = 0; p < WORLD_PARTITIONS; p++) {
        for (uint32_t r = 0; r < WORLD_REQUESTERS; r++) {
            kelp_partition_drop(orders_world.partitions[p], r);
        }
    }
    while (orders_world.work_count > 0) {
        world_finish_work(0);
    }
    for (uint32_t p = 0; p < WORLD_PARTITIONS; p++) {
        world_must(kelp_partition_unload(orders_world.partitions[p], KELP_ERR_OLD_GENERATION,
                                         &orders_world.actions) == KELP_OK);
        world_take_actions(p);
        kelp_partition_destroy(orders_world.partitions[p]);
    }
    for (uint64_t handle = 1; handle < WORLD_HANDLES_MAX; handle++) {
        world_must(!orders_world.texts[handle]); /* every gradient was given back */
    }
    kelp_actions_fini(&orders_world.actions);
}

static bool done(void)
{
    for (uint32_t p = 1; p < WORLD_PARTITIONS; p++) {
        if (world_view(p).step != world_view(0).step) {
            return false;
        }
    }
    return world_view(0).word.kind == KELP_STEP_DONE;
}

static void check_apart(void)
{
    for (uint32_t p = 1; p < WORLD_PARTITIONS; p++) {
        uint64_t ours = world_view(p).step;
        uint64_t its = world_view(0).step;
        world_must(ours <= its + 1 && its <= ours + 1);
        world_must(world_view(p).version <= world_view(0).version + 1);
        /* w_v exists everywhere while any lane of v is missing. */
        world_must(its <= ours || world_view(0).has_older ||
                   world_view(0).phase == KELP_PARTITION_APPLYING);
    }
}

static void run_seed(uint64_t seed)
{
    unsigned rounds = 0;

    open_world(seed);
    for (; rounds < ROUNDS_MAX && !done(); rounds++) {
        uint64_t what = world_pick(26);
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
        } else if (orders_world.work_count > 0) {
            world_finish_work(world_pick(orders_world.work_count));
        }
        check_apart();
    }
    world_must(rounds < ROUNDS_MAX); /* it gets to the end */
    world_must(orders_world.steps[0] ==
               kelp_control_total_steps(&orders_world.job, &orders_world.plan));
    close_world();
}

KELP_CASE("orders", .timeout_s = 250)

/* Many seeds in one test: a process for each would take longer than the runs. */
KELP_LOOP_TEST(random_orders, 0, kelp_suite_seed() < 0 ? TESTS : 0)
{
    uint64_t offers = 0, skips = 0, decisions = 0, comparisons = 0;

    for (uint64_t i = 0; i < SEEDS_EACH; i++) {
        run_seed((uint64_t)_i * SEEDS_EACH + i + 1);
        offers += orders_world.offers;
        skips += orders_world.skips;
        decisions += orders_world.decisions;
        comparisons += orders_world.comparisons;
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
