/*
 * Lanes that a device computes beside each other, and ahead of those that are awaited: whatever the
 * number of streams, and whatever runs when, the CPU's bits. On the fake device
 * (tests/lib/fake/fake_device.h), which finds two streams that share memory in no order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/training/control.h"
#include "tests/lib/fake/fake_device.h"
#include "tests/lib/suite.h"
#include "worker/compute/lanes.h"
#include "worker/compute/node_sum.h"
#include "worker/core/schedule.h"
#include "worker/model/model.h"

#define SEEDS   6 /* 0: nothing runs before it is waited for */
#define STREAMS 4
#define STEPS   3
#define LANES   16
#define NODES   (2 * STEPS * KELP_SCHEDULE_NODES_MAX)

static struct kelp_error error;

/* ---- the device ---- */

static const struct kelp_device_table *fakes;
static struct kelp_device_table changed; /* fakes, but for what a test plants */
static bool is_without_after;

static void no_after(struct kelp_stream *stream, struct kelp_stream *other, uint64_t mark)
{
    (void)stream;
    (void)other;
    (void)mark;
}

static kelp_status changed_stream(struct kelp_device *device, struct kelp_stream **ret,
                                  struct kelp_error *reterr)
{
    const kelp_status status = fakes->stream_create(device, ret, reterr);
    if (status == KELP_OK) {
        (*ret)->table = &changed;
    }
    return status;
}

/* In the place of those that load a library. */
kelp_status kelp_device_cuda_create(uint32_t index, struct kelp_device **ret,
                                    struct kelp_error *reterr)
{
    (void)index;
    const kelp_status status = fake_device_create(ret, reterr);
    if (status == KELP_OK && is_without_after) {
        fakes = (*ret)->table;
        changed = *fakes;
        changed.after = no_after;
        changed.stream_create = changed_stream;
        (*ret)->table = &changed;
    }
    return status;
}
void kelp_device_cuda_leave(void)
{
}

/* ---- a worker ---- */

struct worker {
    struct kelp_job_file *file;
    struct kelp_lanes *lanes;
    struct kelp_gradient_pool *pool;
    float *weights; /* of the step */
    uint64_t count; /* elements */
    /* What came of it: nodes in their order. */
    float *values;                             /* [NODES][count] */
    double sums[NODES][KELP_METRIC_SUM_COUNT]; /* of training the scalars alone */
    uint32_t nodes;
    /* The node in work, and its last lane. */
    struct kelp_node_sum sum;
    struct kelp_gradient *last;
    uint64_t last_first; /* elements of it from here on were told of */
};

static void set(struct worker *worker, const char *key, const char *value)
{
    const kelp_status status =
        kelp_job_file_set(worker->file, key, value, KELP_ORIGIN_FLAG, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

/* Lanes of some steps; of a large model weights arrive and gradients leave while they run. */
struct plan {
    const char *model, *accumulate;
    uint32_t first, count; /* lanes */
    bool large, rounded;
};

static void open_worker(struct worker *worker, const struct plan *plan, uint32_t streams)
{
    char text[600], number[12];
    *worker = (struct worker){.file = kelp_job_file_create()};
    ck_assert_ptr_nonnull(worker->file);
    (void)snprintf(text, sizeof(text),
                   "name: streams\nmodel: {%s}\n"
                   "data: {kind: synthetic, features: M, rows: 400, seq_len: 12, pred_len: 4, "
                   "split: [200, 50, 50]}\n"
                   "train: {epochs: 1, batch_size: 45}\ncluster: {lanes: %d}\n",
                   plan->model, LANES);
    ck_assert_msg(kelp_job_file_parse(worker->file, "job", text, strlen(text), &error) == KELP_OK,
                  "%s", error.text);
    set(worker, "train.accumulate", plan->accumulate);
    set(worker, "transport.precision", plan->rounded ? "bfloat16" : "float32");
    if (streams != 0) {
        (void)snprintf(number, sizeof(number), "%u", streams);
        set(worker, "cluster.device", "cuda");
        set(worker, "cluster.streams", number);
    }
    ck_assert_msg(kelp_job_file_finish(worker->file, &error) == KELP_OK, "%s", error.text);
    const struct kelp_job *job = kelp_job_file_job(worker->file);
    ck_assert_msg(kelp_lanes_create(job, &worker->lanes, &error) == KELP_OK, "%s", error.text);
    ck_assert_uint_eq(kelp_lanes_ahead(worker->lanes), streams == 0 ? 1 : streams + 1);
    worker->count = kelp_lanes_plan(worker->lanes)->flat_count;
    worker->pool = kelp_gradient_pool_create(worker->count, job->transport.precision);
    worker->weights = kelp_lanes_host_alloc(worker->lanes, worker->count * sizeof(float));
    worker->values = calloc(NODES * worker->count, sizeof(float));
    ck_assert(worker->pool && worker->weights && worker->values);
}

static void close_worker(struct worker *worker)
{
    kelp_lanes_host_free(worker->lanes, worker->weights);
    kelp_gradient_pool_destroy(worker->pool);
    kelp_lanes_destroy(worker->lanes);
    kelp_job_file_destroy(worker->file);
    free(worker->values);
}

/* ---- lanes ---- */

/* A lane's last parts, as they come. */
static void take_ready(void *user, uint64_t first)
{
    struct worker *worker = user;
    ck_assert_uint_le(first, worker->last_first);
    ck_assert_uint_eq(worker->sum.done + 1, worker->sum.lane_count);
    (void)kelp_node_sum_add_values(&worker->sum, worker->last, first, worker->last_first - first);
    worker->last_first = first;
}

static void take_node(struct worker *worker, struct kelp_gradient *whole)
{
    ck_assert_uint_lt(worker->nodes, NODES);
    if (whole->present) {
        memcpy(worker->values + worker->nodes * worker->count, whole->values,
               (size_t)worker->count * sizeof(float));
    }
    memcpy(worker->sums[worker->nodes], whole->sums, whole->sum_count * sizeof(double));
    worker->nodes++;
    kelp_gradient_unref(whole);
}

/* Lanes [first, first + count) of a step, as a worker computes them. */
static kelp_status compute_lanes(struct worker *worker, uint32_t first, uint32_t count, bool early)
{
    const struct kelp_lanes_ready ready = {.tell = take_ready, .user = worker};
    struct kelp_schedule_node nodes[KELP_SCHEDULE_NODES_MAX];
    struct kelp_gradient *gradients[LANES];
    uint32_t started = 0, finished = 0, node = 0, ends = 0;
    kelp_status status = KELP_OK;

    (void)kelp_schedule_split(first, count, nodes);
    kelp_node_sum_begin(&worker->sum, nodes[0].first, nodes[0].count);
    while (status == KELP_OK && finished < count) {
        if (started < count && started - finished < kelp_lanes_ahead(worker->lanes)) {
            const bool last = started + 1 == count;
            node += first + started == nodes[node].first + nodes[node].count;
            kelp_lanes_within(worker->lanes, &nodes[node]);
            gradients[started] = kelp_gradient_get(worker->pool);
            ck_assert_ptr_nonnull(gradients[started]);
            worker->last = gradients[started];
            worker->last_first = worker->count;
            status = kelp_lanes_start(worker->lanes, first + started, gradients[started],
                                      early && last ? &ready : NULL, &error);
            started++;
            continue;
        }
        status = kelp_lanes_finish(worker->lanes, &error);
        if (status != KELP_OK) {
            break;
        }
        struct kelp_gradient *whole =
            kelp_node_sum_add_rest(&worker->sum, gradients[finished],
                                   finished + 1 == count ? worker->last_first : worker->count);
        finished++;
        if (whole) {
            take_node(worker, whole);
            ends++;
            if (finished < count) {
                kelp_node_sum_begin(&worker->sum, nodes[ends].first, nodes[ends].count);
            }
        }
    }
    if (status != KELP_OK) {
        kelp_lanes_drop(worker->lanes);
        kelp_node_sum_drop(&worker->sum);
        while (finished < started) {
            kelp_gradient_unref(gradients[finished++]);
        }
    }
    return status;
}

static bool await_all(void *user, uint64_t first, uint64_t count)
{
    (void)user;
    (void)first;
    (void)count;
    return true;
}

/* Between two steps: what was brought ahead for the next one is not lost, nor in the way. */
static kelp_status evaluate(struct worker *worker, const struct kelp_control_word *before,
                            uint64_t samples)
{
    struct kelp_control_word word = *before;
    word.kind = KELP_STEP_EVALUATE_VAL;
    word.sample_first = 0;
    word.sample_count = samples;
    ck_assert_msg(kelp_lanes_begin(worker->lanes, &word, worker->weights, &error) == KELP_OK, "%s",
                  error.text);
    return compute_lanes(worker, 0, LANES, false);
}

static kelp_status compute_steps(struct worker *worker, const struct plan *plan)
{
    const struct kelp_job *job = kelp_job_file_job(worker->file);
    const struct kelp_plan *of = kelp_lanes_plan(worker->lanes);
    struct kelp_control_state state;
    struct kelp_control_word word;
    kelp_status status = KELP_OK;
    if (plan->large) {
        kelp_lanes_await(worker->lanes, await_all, NULL);
    }
    kelp_control_init(&state, job, of);
    for (uint32_t step = 0; step < STEPS && status == KELP_OK; step++) {
        kelp_control_word(&state, job, of, &word);
        ck_assert_int_eq(word.kind, KELP_STEP_TRAIN);
        word.step += step;
        word.sample_first += step * word.sample_count;
        for (uint64_t i = 0; i < worker->count; i++) {
            worker->weights[i] = (float)((i * 7 + step) % 31) * 0.01f - 0.15f;
        }
        ck_assert_msg(kelp_lanes_begin(worker->lanes, &word, worker->weights, &error) == KELP_OK,
                      "%s", error.text);
        status = compute_lanes(worker, plan->first, plan->count, plan->large);
        if (status == KELP_OK && step > 0) {
            status = evaluate(worker, &word, of->samples[KELP_SPLIT_VAL]);
        }
    }
    return status;
}

static const struct plan plans[] = {
    {"kind: dlinear, kernel_size: 5", "1", 0, LANES, false, false},
    {"kind: dlinear, kernel_size: 5", "3", 0, LANES, false, false},
    {"kind: mlp, hidden: [9]", "2", 3, 12, false, false}, /* lanes 3, 4-7, 8-11, 12-13, 14 */
    {"kind: mlp, hidden: [9]", "2", 0, LANES, false, true},
    {"kind: mlp, hidden: [300, 1000]", "1", 1, LANES - 1, true, false},
};
#define LARGE 4

KELP_SUITE(.fork_each = true)
KELP_CASE("streams", .timeout_s = 120)

static void expect_same(const struct worker *worker, const struct worker *cpu, const char *what)
{
    ck_assert_msg(worker->nodes == cpu->nodes, "%s: %u nodes, %u are expected", what, worker->nodes,
                  cpu->nodes);
    for (uint32_t i = 0; i < cpu->nodes; i++) {
        const uint64_t at = i * cpu->count;
        ck_assert_msg(memcmp(worker->sums[i], cpu->sums[i], sizeof(cpu->sums[i])) == 0,
                      "%s: the sums of node %u", what, i);
        ck_assert_msg(
            memcmp(worker->values + at, cpu->values + at, (size_t)cpu->count * sizeof(float)) == 0,
            "%s: the gradient of node %u", what, i);
    }
}

KELP_LOOP_TEST(any_number_gives_the_same_bits, 0, KELP_ARRAY_COUNT(plans))
{
    const struct plan *plan = &plans[_i];
    struct worker cpu, fake;
    open_worker(&cpu, plan, 0);
    ck_assert_msg(compute_steps(&cpu, plan) == KELP_OK, "%s", error.text);
    for (uint32_t streams = 1; streams <= STREAMS; streams++) {
        for (uint64_t seed = 0; seed < (plan->large ? 2 : SEEDS); seed++) {
            char what[100];
            (void)snprintf(what, sizeof(what), "%s, %u streams, seed %u", plan->model, streams,
                           (unsigned)seed);
            fake_device_seed(seed);
            open_worker(&fake, plan, streams);
            ck_assert_msg(compute_steps(&fake, plan) == KELP_OK, "%s: %s", what, error.text);
            expect_same(&fake, &cpu, what);
            close_worker(&fake);
        }
    }
    close_worker(&cpu);
}

/* ---- blocks ---- */

/* A worker whose lanes have several blocks of an evaluation each. */
static void open_evaluator(struct worker *worker, bool device, const char *streams,
                           const char *pred_len)
{
    char text[600];
    *worker = (struct worker){.file = kelp_job_file_create()};
    ck_assert_ptr_nonnull(worker->file);
    (void)snprintf(text, sizeof(text),
                   "name: blocks\nmodel: {kind: mlp, hidden: [9]}\n"
                   "data: {kind: synthetic, rows: 8200, seq_len: 12, pred_len: %s, "
                   "split: [200, 7900, 50]}\n"
                   "train: {epochs: 1, batch_size: 32}\ncluster: {lanes: 4}\n",
                   pred_len);
    ck_assert_msg(kelp_job_file_parse(worker->file, "job", text, strlen(text), &error) == KELP_OK,
                  "%s", error.text);
    if (device) {
        set(worker, "cluster.device", "cuda");
        set(worker, "cluster.streams", streams);
    }
    ck_assert_msg(kelp_job_file_finish(worker->file, &error) == KELP_OK, "%s", error.text);
    ck_assert_msg(kelp_lanes_create(kelp_job_file_job(worker->file), &worker->lanes, &error) ==
                      KELP_OK,
                  "%s", error.text);
    worker->count = kelp_lanes_plan(worker->lanes)->flat_count;
    worker->pool = kelp_gradient_pool_create(worker->count, KELP_PRECISION_FLOAT32);
    worker->weights = kelp_lanes_host_alloc(worker->lanes, worker->count * sizeof(float));
    worker->values = calloc(NODES * worker->count, sizeof(float));
    ck_assert(worker->pool && worker->weights && worker->values);
    for (uint64_t i = 0; i < worker->count; i++) {
        worker->weights[i] = (float)(i * 7 % 31) * 0.01f - 0.15f;
    }
}

/* An evaluation of all there is, twice: recorded, and replayed. */
static void evaluate_twice(struct worker *worker)
{
    const struct kelp_plan *plan = kelp_lanes_plan(worker->lanes);
    struct kelp_control_word word = {.kind = KELP_STEP_EVALUATE_VAL,
                                     .sample_count = plan->samples[KELP_SPLIT_VAL]};
    for (int round = 0; round < 2; round++) {
        word.version = (uint64_t)round;
        ck_assert_msg(kelp_lanes_begin(worker->lanes, &word, worker->weights, &error) == KELP_OK,
                      "%s", error.text);
        ck_assert_msg(compute_lanes(worker, 0, 4, false) == KELP_OK, "%s", error.text);
    }
}

/* Blocks overlap, are read in their order, and give the CPU's sums, the histogram of scores too.
 * The GPU has nothing to do at the end of the evaluation alone, and not after each of its blocks.
 */
KELP_LOOP_TEST(blocks_of_an_evaluation, 0, SEEDS)
{
    static const char *const streams[] = {"1", "2", "3"}, *const lengths[] = {"1", "4"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(streams) * KELP_ARRAY_COUNT(lengths); i++) {
        const char *stream = streams[i / 2], *length = lengths[i % 2];
        struct worker cpu, fake;
        open_evaluator(&cpu, false, NULL, length);
        evaluate_twice(&cpu);
        fake_device_seed((uint64_t)_i);
        open_evaluator(&fake, true, stream, length);
        const uint64_t before = fake_device_counts().idle;
        evaluate_twice(&fake);
        const uint64_t idle = fake_device_counts().idle - before;
        expect_same(&fake, &cpu, "blocks");
        if (_i == 0) { /* other seeds let it run on its own */
            ck_assert_msg(idle == 2, "%s streams: idle %u times", stream, (unsigned)idle);
        }
        close_worker(&fake);
        close_worker(&cpu);
    }
}

/* Streams that do not wait for each other where they should are found, in any order. */
KELP_LOOP_TEST(without_after, 0, SEEDS)
{
    struct worker fake;
    is_without_after = true;
    fake_device_seed((uint64_t)_i);
    open_worker(&fake, &plans[0], 2);
    ck_assert_int_eq(compute_steps(&fake, &plans[0]), KELP_ERR_DEVICE);
    ck_assert_msg(strstr(error.text, "on another stream too, and neither comes after the other") !=
                      NULL,
                  "%s", error.text);
    close_worker(&fake);
    is_without_after = false;
}

static uint32_t awaited, awaited_most;

static bool await_some(void *user, uint64_t first, uint64_t count)
{
    (void)user;
    (void)first;
    (void)count;
    return awaited++ < awaited_most;
}

/* Weights that are not to come: what was started is dropped, and the same worker goes on with
 * others. */
KELP_LOOP_TEST(weights_that_do_not_come, 0, SEEDS)
{
    const struct plan *plan = &plans[LARGE];
    struct kelp_control_state state;
    struct kelp_control_word word;
    struct worker cpu, fake;
    fake_device_seed((uint64_t)_i);
    open_worker(&cpu, plan, 0);
    open_worker(&fake, plan, 2);
    ck_assert_int_eq(compute_steps(&cpu, plan), KELP_OK);
    const struct kelp_job *job = kelp_job_file_job(fake.file);
    kelp_control_init(&state, job, kelp_lanes_plan(fake.lanes));
    kelp_control_word(&state, job, kelp_lanes_plan(fake.lanes), &word);
    for (awaited_most = 0; awaited_most < 6; awaited_most++) {
        awaited = 0;
        kelp_lanes_await(fake.lanes, await_some, NULL);
        ck_assert_int_eq(kelp_lanes_begin(fake.lanes, &word, fake.weights, &error), KELP_OK);
        ck_assert_int_eq(compute_lanes(&fake, plan->first, plan->count, true), KELP_ERR_BUSY);
        ck_assert_str_eq(error.text, "the weights of this step will not come");
    }
    fake.nodes = 0;
    ck_assert_msg(compute_steps(&fake, plan) == KELP_OK, "%s", error.text);
    expect_same(&fake, &cpu, "after weights that did not come");
    close_worker(&fake);
    close_worker(&cpu);
}

/* A GPU that is lost: the lanes that are on their way fail, and nothing waits for ever. */
KELP_LOOP_TEST(the_gpu_is_lost, 0, SEEDS)
{
    struct worker fake;
    fake_device_seed((uint64_t)_i);
    open_worker(&fake, &plans[0], 2);
    fake_device_lose(3, NULL);
    ck_assert_int_eq(compute_steps(&fake, &plans[0]), KELP_ERR_DEVICE);
    ck_assert_str_eq(error.text, "the GPU does not answer any more");
    close_worker(&fake);
}
