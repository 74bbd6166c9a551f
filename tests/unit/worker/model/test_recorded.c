/* Steps that are recorded and replayed, on the fake device: as if each were enqueued anew. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/fake/fake_device.h"
#include "tests/lib/suite.h"
#include "worker/model/graph/graph_internal.h"

#define SEEDS    8
#define BATCH    24u
#define IN       5u
#define OUT      4u
#define WEIGHTS  (OUT * IN)
#define ELEMENTS (WEIGHTS + OUT)

/* One device with a graph, and what is bound to it. */
struct side {
    struct kelp_device *device;
    struct kelp_stream *stream, *copies;
    struct kelp_graph *graph;
    float *weights[2], *gradient[2]; /* device memory, float32[ELEMENTS] */
    float results[ELEMENTS];
    double sums[KELP_METRIC_SUM_COUNT];
    float output[BATCH * OUT];
};
static struct side cpu, fake;
static float samples[BATCH * IN], targets[BATCH * OUT], weights[ELEMENTS];
static struct kelp_error error;

/* ---- a layer that breaks the rule ---- */

static float planted_scale; /* the host's, and another one at each step */

static void planted_forward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    const struct graph_node *x = graph_operand(graph, node, 0);
    const struct kelp_copy copy = {.rank = 1,
                                   .dims = {x->elem_count * count},
                                   .x = x->value,
                                   .x_strides = {1},
                                   .y = node->buffer,
                                   .y_strides = {1},
                                   .scale = planted_scale};
    graph->stream->table->copy(graph->stream, &copy);
}

static void planted_backward(struct kelp_graph *graph, struct graph_node *node, uint32_t count)
{
    kelp__graph_add_gradient(graph, node, 0, planted_scale, count);
}

static const struct graph_operator planted = {
    .name = "planted", .forward = planted_forward, .backward = planted_backward};

/* ---- sides ---- */

static float *allocate(const struct side *side)
{
    void *memory = NULL;
    ck_assert_int_eq(
        side->device->table->alloc(side->device, ELEMENTS * sizeof(float), &memory, &error),
        KELP_OK);
    return memory;
}

static void open_side(struct side *side, bool with_planted)
{
    static const struct kelp_graph_loss mse = {.kind = KELP_LOSS_MSE};
    const struct kelp_shape in = {.rank = 1, .dims = {IN}}, out = {.rank = 1, .dims = {OUT}};
    const struct kelp_shape weight = {.rank = 2, .dims = {OUT, IN}};
    const struct kelp_graph_init init = {.kind = KELP_INIT_CONSTANT};
    ck_assert_int_eq(side->device->table->stream_create(side->device, &side->stream, &error),
                     KELP_OK);
    ck_assert_int_eq(side->device->table->stream_create(side->device, &side->copies, &error),
                     KELP_OK);
    side->graph = kelp_graph_create(side->stream, BATCH);
    ck_assert_ptr_nonnull(side->graph);
    kelp_graph_copies(side->graph, side->copies);
    uint32_t x = kelp_graph_input(side->graph, "x", &in);
    x = kelp_graph_dropout(side->graph, "dropout", x, 0.3f);
    const uint32_t matrix = kelp_graph_parameter(side->graph, "weight", &weight, init);
    const uint32_t bias = kelp_graph_parameter(side->graph, "bias", &out, init);
    x = kelp_graph_linear(side->graph, "linear", x, matrix, bias);
    x = kelp_graph_tanh(side->graph, "tanh", x);
    if (with_planted) {
        x = kelp__graph_add_like(side->graph, &planted, "planted", x);
    }
    ck_assert_msg(kelp_graph_finish(side->graph, x, &out, &mse, &error) == KELP_OK, "%s",
                  error.text);
    for (uint32_t i = 0; i < 2; i++) {
        side->weights[i] = allocate(side);
        side->gradient[i] = allocate(side);
    }
}

static void close_side(struct side *side)
{
    const struct kelp_device_table *table = side->device->table;
    kelp_graph_destroy(side->graph);
    for (uint32_t i = 0; i < 2; i++) {
        table->free(side->device, side->weights[i]);
        table->free(side->device, side->gradient[i]);
    }
    table->stream_destroy(side->copies);
    table->stream_destroy(side->stream);
    table->destroy(side->device);
}

static void open_sides(bool with_planted)
{
    error = (struct kelp_error){KELP_OK, ""};
    ck_assert_int_eq(kelp_device_cpu_create(1, &cpu.device, &error), KELP_OK);
    ck_assert_int_eq(fake_device_create(&fake.device, &error), KELP_OK);
    open_side(&cpu, with_planted);
    open_side(&fake, with_planted);
    for (uint32_t i = 0; i < BATCH * IN; i++) {
        samples[i] = (float)(i * 7 % 11) * 0.1f - 0.5f;
    }
    for (uint32_t i = 0; i < BATCH * OUT; i++) {
        targets[i] = (float)(i * 5 % 13) * 0.1f - 0.6f;
    }
}

static void close_sides(void)
{
    close_side(&cpu);
    close_side(&fake);
}

static void setup(void)
{
    open_sides(false);
}

/* ---- steps ---- */

struct step {
    enum kelp_graph_mode mode;
    uint32_t count;
    uint64_t number;
    uint32_t buffers; /* which of the two */
    bool accumulate, outputs, completes;
};

/* What leaves while the rest is computed: all, in the last call. */
static void on_complete(void *user, uint32_t index)
{
    struct side *side = user;
    if (index == 0) {
        kelp_graph_pause(side->graph);
        side->stream->table->copy_out(side->stream, side->results, side->gradient[0],
                                      sizeof(side->results));
    }
}

static void run(struct side *side, const struct step *step)
{
    const struct kelp_device_table *table = side->stream->table;
    float *bound[2] = {side->weights[step->buffers], side->gradient[step->buffers]};
    const struct kelp_graph_run run = {.mode = step->mode,
                                       .input = samples,
                                       .target = targets,
                                       .count = step->count,
                                       .output = step->outputs ? side->output : NULL,
                                       .sums = side->sums,
                                       .batch_total = (double)BATCH,
                                       .accumulate = step->accumulate,
                                       .seed = 3,
                                       .step = step->number,
                                       .position = step->number % 3,
                                       .complete = step->completes ? on_complete : NULL,
                                       .user = side};
    table->copy_in(side->stream, bound[0], weights, sizeof(weights));
    for (uint32_t i = 0; i < 2; i++) {
        const uint64_t offset = i == 0 ? 0 : WEIGHTS;
        kelp_graph_bind(side->graph, i, bound[0] + offset, bound[1] + offset);
    }
    ck_assert_msg(kelp_graph_run(side->graph, &run, &error) == KELP_OK, "%s", error.text);
    if (!step->completes && step->mode == KELP_GRAPH_TRAIN) {
        table->copy_out(side->stream, side->results, bound[1], sizeof(side->results));
        ck_assert_int_eq(table->wait(side->stream, &error), KELP_OK);
    }
}

/* On both: are the results the same bytes? */
static bool is_same(const struct step *step)
{
    const uint32_t sums =
        step->mode == KELP_GRAPH_TRAIN ? KELP_METRIC_SUM_SCALARS : KELP_METRIC_SUM_COUNT;
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        weights[i] = (float)((i * 3 + step->number) % 17) * 0.1f - 0.8f;
    }
    samples[step->number % (BATCH * IN)] += 0.25f;
    planted_scale = 1.0f + (float)step->number;
    memset(cpu.output, 0, sizeof(cpu.output));
    memset(fake.output, 0, sizeof(fake.output));
    run(&cpu, step);
    run(&fake, step);
    return memcmp(cpu.results, fake.results, sizeof(cpu.results)) == 0 &&
           (step->mode == KELP_GRAPH_FORWARD ||
            memcmp(cpu.sums, fake.sums, sums * sizeof(cpu.sums[0])) == 0) &&
           memcmp(cpu.output, fake.output, sizeof(cpu.output)) == 0;
}

KELP_SUITE(.fork_each = true)
KELP_CASE("recorded", .timeout_s = 60, .setup = setup, .teardown = close_sides)

/* Modes, numbers of samples, buffers and callbacks take turns. */
KELP_LOOP_TEST(steps_are_as_if_enqueued, 0, SEEDS)
{
    static const struct step kinds[] = {
        {.mode = KELP_GRAPH_TRAIN, .count = BATCH},
        {.mode = KELP_GRAPH_TRAIN, .count = BATCH, .buffers = 1},
        {.mode = KELP_GRAPH_TRAIN, .count = 3, .buffers = 1, .accumulate = true},
        {.mode = KELP_GRAPH_TRAIN, .count = BATCH, .outputs = true},
        {.mode = KELP_GRAPH_TRAIN, .count = BATCH, .completes = true},
        {.mode = KELP_GRAPH_EVALUATE, .count = 7},
        {.mode = KELP_GRAPH_FORWARD, .count = 7, .outputs = true},
    };
    const struct fake_device_counts before = fake_device_counts();
    fake_device_seed((uint64_t)_i);
    for (uint32_t round = 0; round < 5; round++) {
        for (uint32_t i = 0; i < KELP_ARRAY_COUNT(kinds); i++) {
            struct step step = kinds[i];
            step.number = round * 10 + i;
            ck_assert_msg(is_same(&step), "round %u, kind %u", round, i);
        }
    }
    /* A piece more for an output that leaves before the backward pass, and none behind the last
     * that is complete. */
    const struct fake_device_counts after = fake_device_counts();
    ck_assert_uint_eq(after.recordings - before.recordings, KELP_ARRAY_COUNT(kinds) + 1);
    ck_assert_uint_eq(after.replays - before.replays, 4 * (KELP_ARRAY_COUNT(kinds) + 1));
}

/* More kinds of steps than are kept: the one that was not used for longest is forgotten, and
 * recorded again when it comes back. */
KELP_LOOP_TEST(the_oldest_one_goes, 0, SEEDS)
{
    struct step step = {.mode = KELP_GRAPH_TRAIN};
    ck_assert_uint_gt(BATCH, KELP_GRAPH_STEPS_KEPT);
    fake_device_seed((uint64_t)_i);
    const struct fake_device_counts before = fake_device_counts();
    for (step.number = 0; step.number < 3 * (KELP_GRAPH_STEPS_KEPT + 1); step.number++) {
        step.count = 1 + (uint32_t)(step.number / 3); /* three times each */
        ck_assert(is_same(&step));
    }
    struct fake_device_counts now = fake_device_counts();
    ck_assert_uint_eq(now.recordings - before.recordings, KELP_GRAPH_STEPS_KEPT + 1);
    ck_assert_uint_eq(now.replays - before.replays, 2 * (KELP_GRAPH_STEPS_KEPT + 1));
    step.count = 2; /* the oldest that is left */
    ck_assert(is_same(&step));
    ck_assert_uint_eq(fake_device_counts().replays, now.replays + 1);
    step.count = 1; /* forgotten: 3 goes for it */
    ck_assert(is_same(&step));
    ck_assert_uint_eq(fake_device_counts().replays, now.replays + 1);
    step.count = 2;
    ck_assert(is_same(&step));
    ck_assert_uint_eq(fake_device_counts().replays, now.replays + 2);
    step.count = 3;
    ck_assert(is_same(&step));
    ck_assert(is_same(&step));
    ck_assert_uint_eq(fake_device_counts().recordings, now.recordings + 1);
}

/* Without recordings the same steps are the same too. */
KELP_TEST(where_they_are_not_offered)
{
    const struct step step = {.mode = KELP_GRAPH_TRAIN, .count = BATCH};
    close_sides();
    fake_device_offer_recordings(false);
    open_sides(false);
    const struct fake_device_counts before = fake_device_counts();
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert(is_same(&step));
    }
    ck_assert_uint_eq(fake_device_counts().recordings, before.recordings);
    fake_device_offer_recordings(true);
}

/* An operator whose arguments depend on the step is found by whoever compares. */
KELP_TEST(an_argument_that_depends_on_the_step)
{
    struct step step = {.mode = KELP_GRAPH_TRAIN, .count = BATCH};
    close_sides();
    open_sides(true);
    ck_assert(is_same(&step));
    step.number = 1; /* recorded */
    ck_assert(is_same(&step));
    step.number = 2;
    ck_assert(!is_same(&step));
}

/* A device that does not record says why, and the step fails. */
static kelp_status failing_record_end(struct kelp_stream *on, struct kelp_recording **ret,
                                      struct kelp_error *reterr)
{
    struct kelp_recording *made = NULL;
    ck_assert_int_eq(fake.device->table->record_end(on, &made, &error), KELP_OK);
    fake.device->table->recording_destroy(made);
    (void)ret;
    return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a recording");
}

KELP_TEST(a_device_that_fails_to_record)
{
    struct kelp_device_table table = *fake.device->table;
    const struct step step = {.mode = KELP_GRAPH_EVALUATE, .count = BATCH};
    double sums[KELP_METRIC_SUM_COUNT];
    const struct kelp_graph_run run = {
        .mode = step.mode, .input = samples, .target = targets, .count = BATCH, .sums = sums};
    ck_assert(is_same(&step));
    table.record_end = failing_record_end;
    fake.stream->table = &table;
    ck_assert_int_eq(kelp_graph_run(fake.graph, &run, &error), KELP_ERR_NO_MEMORY);
    ck_assert_str_eq(error.text, "no memory for a recording");
    fake.stream->table = fake.device->table;
    ck_assert(is_same(&step)); /* as if it came for the first time */
    ck_assert(is_same(&step));
    ck_assert(is_same(&step));
}

/* Each device's own buffers are where its operators are fast. */
KELP_TEST(buffers_are_aligned)
{
    const struct side *const sides[] = {&cpu, &fake};
    uint32_t buffers = 0;
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t alignment = sides[i]->device->table->alignment;
        for (uint32_t j = 0; j < sides[i]->graph->node_count; j++) {
            const struct graph_node *node = &sides[i]->graph->nodes[j];
            ck_assert_uint_eq((uintptr_t)node->buffer % alignment, 0);
            buffers += node->buffer != NULL;
        }
        ck_assert_uint_eq((uintptr_t)sides[i]->graph->input_buffer[1] % alignment, 0);
        ck_assert_uint_eq((uintptr_t)sides[i]->graph->loss_workspace % alignment, 0);
    }
    ck_assert_uint_gt(buffers, 2);
}

KELP_CASE("staged", .timeout_s = 60, .setup = setup, .teardown = close_sides)

/* Samples of run i, in one of two pieces of the host's memory. */
static float staged_input[2][BATCH * IN], staged_target[2][BATCH * OUT];

static void draw_samples(uint32_t i)
{
    for (uint32_t j = 0; j < BATCH * IN; j++) {
        staged_input[i % 2][j] = (float)((j * 7 + i * 3) % 11) * 0.1f - 0.5f;
    }
    for (uint32_t j = 0; j < BATCH * OUT; j++) {
        staged_target[i % 2][j] = (float)((j * 5 + i) % 13) * 0.1f - 0.6f;
    }
}

/* Run i; meanwhile the samples of the next one are brought, or others that nobody takes. */
static kelp_status run_staged(struct side *side, uint32_t i, bool right)
{
    const struct kelp_graph_run run = {.mode = i % 5 == 4 ? KELP_GRAPH_EVALUATE : KELP_GRAPH_TRAIN,
                                       .input = staged_input[i % 2],
                                       .target = staged_target[i % 2],
                                       .count = BATCH,
                                       .sums = side->sums,
                                       .batch_total = (double)BATCH,
                                       .step = i};
    float *bound[2] = {side->weights[0], side->gradient[0]};
    side->stream->table->copy_in(side->stream, bound[0], weights, sizeof(weights));
    for (uint32_t j = 0; j < 2; j++) {
        const uint64_t offset = j == 0 ? 0 : WEIGHTS;
        kelp_graph_bind(side->graph, j, bound[0] + offset, bound[1] + offset);
    }
    ck_assert_int_eq(kelp_graph_begin(side->graph, &run, &error), KELP_OK);
    draw_samples(i + 1);
    kelp_graph_stage(side->graph, staged_input[(i + 1) % 2], staged_target[(i + 1) % 2],
                     right ? BATCH : BATCH - 1);
    const kelp_status status = kelp_graph_end(side->graph, &run, &error);
    side->stream->table->copy_out(side->stream, side->results, bound[1], sizeof(side->results));
    const kelp_status copied = side->stream->table->wait(side->stream, &error);
    return status == KELP_OK ? copied : status;
}

/* Taken or forgotten: the results are the same. */
KELP_LOOP_TEST(samples_of_the_next_run, 0, SEEDS)
{
    fake_device_seed((uint64_t)_i);
    draw_samples(0);
    for (uint32_t i = 0; i < 20; i++) {
        const bool right = i % 7 != 3;
        ck_assert_msg(run_staged(&cpu, i, right) == KELP_OK, "%s", error.text);
        ck_assert_msg(run_staged(&fake, i, right) == KELP_OK, "%s", error.text);
        ck_assert_mem_eq(fake.sums, cpu.sums, KELP_METRIC_SUM_SCALARS * sizeof(cpu.sums[0]));
        ck_assert(i % 5 == 4 || memcmp(fake.results, cpu.results, sizeof(cpu.results)) == 0);
    }
    draw_samples(20); /* what is brought to nobody */
    kelp_graph_stage(fake.graph, NULL, NULL, 0);
    draw_samples(21);
}

static void no_after(struct kelp_stream *on, struct kelp_stream *of, uint64_t mark)
{
    (void)on;
    (void)of;
    (void)mark;
}

/* Whoever computes without waiting for the copies is found out, whatever the order. */
KELP_LOOP_TEST(without_after, 0, SEEDS)
{
    struct kelp_device_table table = *fake.device->table;
    fake_device_seed((uint64_t)_i);
    table.after = no_after;
    draw_samples(0);
    ck_assert_int_eq(run_staged(&fake, 0, true), KELP_OK);
    fake.stream->table = &table;
    ck_assert_int_eq(run_staged(&fake, 1, true), KELP_ERR_DEVICE);
    ck_assert_msg(strstr(error.text, "is of copy_in on another stream too") != NULL, "%s",
                  error.text);
    fake.stream->table = fake.device->table;
}
