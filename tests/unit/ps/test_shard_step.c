/* A step of one shard without rpc, from the last push to the new weights: bits, what is compared,
 * and what it takes of memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/update.h"
#include "tests/lib/lone_shard.h"
#include "tests/lib/suite.h"

#define STEPS 3
#define BYTES (LONE_SHARD_ELEMENTS * sizeof(float))

static void set_up(void)
{
    kelp_rpc_global_init();
    lone_shard_init();
}

static void tear_down(void)
{
    lone_shard_close();
    kelp_rpc_global_fini();
}

/* What another run of the same steps has come to: additions first, then updates. */
static struct {
    float weights[2][LONE_SHARD_ELEMENTS];
    float slots[KELP_OPTIMIZER_SLOTS_MAX][LONE_SHARD_ELEMENTS];
    uint64_t step;
} other;

static void other_begin(void)
{
    memset(&other, 0, sizeof(other));
    for (uint32_t i = 0; i < LONE_SHARD_ELEMENTS; i++) {
        other.weights[0][i] = 0.25f;
    }
}

static const float *other_step(const float *left, const float *right)
{
    struct kelp_optimizer_step step;
    struct kelp_update update;
    struct kelp_decision_share share;
    const struct kelp_decision_share *shares[] = {&share};
    double decided[KELP_STEP_DECISION_MAX];
    float sum[LONE_SHARD_ELEMENTS];
    const struct kelp_job *job = &lone_shard.job;
    const struct kelp_optimizer_buffers buffers = {
        .weights = other.weights[other.step % 2],
        .weights_next = other.weights[(other.step + 1) % 2],
        .gradient = sum,
        .slots = {other.slots[0], other.slots[1], other.slots[2]}};

    memcpy(sum, left, BYTES);
    if (right) {
        kelp_vector_add(sum, right, LONE_SHARD_ELEMENTS);
    }
    ck_assert_int_eq(kelp_update_init(&update, job, &lone_shard.plan,
                                      (struct kelp_slice_range){.count = LONE_SHARD_ELEMENTS},
                                      NULL),
                     KELP_OK);
    kelp_optimizer_prepare(&step, job, job->train.lr, ++other.step);
    kelp_update_measure(&update, &step, &buffers, &share);
    ck_assert(!kelp_step_decide(job, &lone_shard.plan, shares, decided));
    ck_assert(kelp_update_apply(
        &update, &step,
        &(struct kelp_step_decision){.count = kelp_step_decision_count(job, &lone_shard.plan),
                                     .values = decided},
        &buffers));
    kelp_update_fini(&update);
    return buffers.weights_next;
}

/* Lane `lane` of the step under way; returns its values. */
static const float *push_lane(uint32_t lane, uint32_t lanes, uint32_t pieces)
{
    static float values[2][LONE_SHARD_ELEMENTS];

    lone_shard_values((uint32_t)lone_shard.word.step * 2 + lane, values[lane]);
    struct kelp_rpc_message *message = lone_shard_message(values[lane], pieces);
    lone_shard_push(lane + 1, &lone_shard.word, lane, lanes, message);
    kelp_rpc_message_unref(message);
    return values[lane];
}

KELP_CASE("bits", .setup = set_up, .teardown = tear_down)

/* Ways to a step: what follows the last push differs. */
static const struct {
    enum kelp_optimizer_kind optimizer;
    double clip_norm;
    bool mixed; /* nothing is compared */
    bool skips; /* steps that are not finite */
    uint32_t lanes, pieces;
} ways[] = {{.optimizer = KELP_OPTIMIZER_ADAM, .lanes = 2, .pieces = 1},
            {.optimizer = KELP_OPTIMIZER_ADAM, .lanes = 2, .pieces = 3},
            {.optimizer = KELP_OPTIMIZER_ADAM, .lanes = 1, .pieces = 1},
            {.optimizer = KELP_OPTIMIZER_SGD, .mixed = true, .lanes = 2, .pieces = 1},
            {.optimizer = KELP_OPTIMIZER_SGD, .clip_norm = 0.5, .lanes = 2, .pieces = 1},
            {.optimizer = KELP_OPTIMIZER_SGD, .clip_norm = 0.5, .lanes = 2, .pieces = 4},
            {.optimizer = KELP_OPTIMIZER_ADAM, .clip_norm = 0.5, .lanes = 1, .pieces = 1},
            {.optimizer = KELP_OPTIMIZER_ADAM, .skips = true, .lanes = 2, .pieces = 1},
            {.optimizer = KELP_OPTIMIZER_LAMB, .lanes = 2, .pieces = 1},
            {.optimizer = KELP_OPTIMIZER_LAMB, .skips = true, .lanes = 2, .pieces = 1}};

static void open_way(int index)
{
    struct kelp_job *job = &lone_shard.job;

    job->train.optimizer = ways[index].optimizer;
    job->train.clip_norm = ways[index].clip_norm;
    job->train.weight_decay = 0.01;
    job->cluster.mixed = ways[index].mixed;
    job->cluster.lanes = ways[index].lanes;
    job->failure.on_nan = ways[index].skips ? KELP_NAN_SKIP : KELP_NAN_STOP;
    lone_shard_open();
    other_begin();
}

/* The weights are those of an addition and of an update after it. */
KELP_LOOP_TEST(steps, 0, KELP_ARRAY_COUNT(ways))
{
    open_way(_i);
    for (uint32_t k = 0; k < STEPS; k++) {
        const float *left = push_lane(0, 1, ways[_i].pieces);
        const float *right = ways[_i].lanes > 1 ? push_lane(1, 1, ways[_i].pieces) : NULL;
        const float *expected = other_step(left, right);
        lone_shard_pull();
        ck_assert_uint_eq(lone_shard.step, k + 1);
        ck_assert_mem_eq(lone_shard.weights, expected, BYTES);
    }
    ck_assert_uint_eq(
        lone_shard.errors + lone_shard.refusals + lone_shard.conflicts + lone_shard.failures, 0);
}

/* A sum that overflows is noticed before anything is applied; where steps may be skipped, the next
 * one goes on. */
KELP_LOOP_TEST(sums_that_are_not_finite, 0, KELP_ARRAY_COUNT(ways))
{
    float values[LONE_SHARD_ELEMENTS] = {0};

    open_way(_i);
    values[LONE_SHARD_ELEMENTS - 1] = ways[_i].lanes > 1 ? 3e38f : INFINITY;
    for (uint32_t lane = 0; lane < ways[_i].lanes; lane++) {
        struct kelp_rpc_message *message = lone_shard_message(values, ways[_i].pieces);
        lone_shard_push(lane + 1, &lone_shard.word, lane, 1, message);
        kelp_rpc_message_unref(message);
    }
    ck_assert_uint_eq(lone_shard.failures, ways[_i].skips ? 0 : 1);
    if (ways[_i].skips) {
        lone_shard_pull();
        ck_assert_uint_eq(lone_shard.step, 1);
        ck_assert_float_eq(lone_shard.weights[0], 0.25f);
    }
}

KELP_CASE("comparisons", .setup = set_up, .teardown = tear_down)

/* Somebody else's sum of all lanes, in time or late, is compared with that of the tree, which is
 * never in memory: the same values agree, others do not. */
KELP_LOOP_TEST(the_sum_is_compared, 0, 4)
{
    const bool differs = _i % 2 == 1;
    float sum[LONE_SHARD_ELEMENTS];

    lone_shard.job.train.clip_norm = _i < 2 ? 0.0 : 0.5;
    lone_shard_open();
    const struct kelp_control_word word = lone_shard.word;
    const float *left = push_lane(0, 1, 1);
    memcpy(sum, left, BYTES);
    kelp_vector_add(sum, push_lane(1, 1, 1), LONE_SHARD_ELEMENTS);
    lone_shard_pull();
    ck_assert_uint_eq(lone_shard.step, 1);
    sum[LONE_SHARD_ELEMENTS / 2] += differs ? 1.0f : 0.0f;
    struct kelp_rpc_message *message = lone_shard_message(sum, 1);
    lone_shard_push(3, &word, 0, 2, message);
    kelp_rpc_message_unref(message);
    ck_assert_uint_eq(lone_shard.conflicts, differs ? 1 : 0);
    if (differs) {
        ck_assert_int_eq(lone_shard.conflict.kind, KELP_CONFLICT_GRADIENT);
        ck_assert_uint_eq(lone_shard.conflict.lane_count, 2);
    }
}
