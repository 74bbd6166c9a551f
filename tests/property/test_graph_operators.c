/*
 * Every operator of the graph against differences of the loss, over random shapes: each with
 * operands that are computed, some of which go elsewhere too, before or behind it, so that
 * gradients are written and added to. In training, since some operators do other things there.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cuda/emulated_device.h"
#include "tests/lib/models/channels_last.h"
#include "tests/lib/models/graph_builders.h"
#include "tests/lib/suite.h"

#define SEEDS_DEFAULT  80
#define CHECKED_MAX    80 /* elements of a graph's parameters */
#define PARAMETERS_MAX (1u << 16)

/* The sum of what was given out, as the loss takes it. */
static void finish(struct built *b)
{
    static const double quantiles[] = {0.1, 0.7};
    static const enum kelp_loss_kind kinds[] = {KELP_LOSS_MSE,           KELP_LOSS_MAE,
                                                KELP_LOSS_SMOOTH_L1,     KELP_LOSS_HUBER,
                                                KELP_LOSS_CROSS_ENTROPY, KELP_LOSS_BCE_WITH_LOGITS,
                                                KELP_LOSS_QUANTILE};
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_graph_loss loss = {.kind = kinds[b->loss_kind % KELP_ARRAY_COUNT(kinds)],
                                         .beta = 0.7,
                                         .label_smoothing = 0.1,
                                         .quantiles = quantiles,
                                         .quantile_count = 2};
    uint32_t output = b->outputs[0];
    for (uint32_t i = 1; i < b->output_count; i++) {
        output = kelp_graph_add(b->graph, "output", output, b->outputs[i]);
    }
    const bool one = loss.kind == KELP_LOSS_CROSS_ENTROPY || loss.kind == KELP_LOSS_QUANTILE;
    const struct kelp_shape target = {.rank = one ? 0 : 1, .dims = {2}};
    const kelp_status status = kelp_graph_finish(b->graph, output, &target, &loss, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

typedef kelp_status device_create(struct kelp_device **ret, struct kelp_error *reterr);

static kelp_status cpu_create(struct kelp_device **ret, struct kelp_error *reterr)
{
    return kelp_device_cpu_create(1, ret, reterr);
}

static void built_init(struct built *b, device_create *create, struct source *source,
                       const struct graph_builder *builder)
{
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_shape numbers = built_shape1(GRAPH_NUMBERS),
                            categories = built_shape1(GRAPH_CATEGORIES);
    *b = (struct built){.source = source, .batch = 1 + source_below(source, GRAPH_BATCH_MAX)};
    b->loss_kind = built_below(b, 64);
    ck_assert_int_eq(create(&b->device, &error), KELP_OK);
    ck_assert_int_eq(b->device->table->stream_create(b->device, &b->stream, &error), KELP_OK);
    b->graph = kelp_graph_create(b->stream, GRAPH_BATCH_MAX);
    ck_assert_ptr_nonnull(b->graph);
    b->numbers = kelp_graph_input(b->graph, "numbers", &numbers);
    b->categories = kelp_graph_input(b->graph, "categories", &categories);
    const uint32_t y = builder->build(b);
    if (y != KELP_GRAPH_NONE) { /* else finish() says why */
        built_give_out(b, y);
    }
    for (uint32_t i = 0; i < b->late_count; i++) {
        built_give_out(b, b->late[i]);
    }
    finish(b);
}

static void built_fini(struct built *b)
{
    kelp_graph_destroy(b->graph);
    b->device->table->stream_destroy(b->stream);
    b->device->table->destroy(b->device);
}

/* Samples, weights and gradients of one graph, and runs of it. */
struct trial {
    struct built *b;
    float *input, *target, *weights, *gradient, *scratch;
    float *shown;    /* the weights that a run sees: not a number until it has asked for them */
    float *finished; /* gradients as they were when they were complete */
    float *written;  /* where the run writes them */
    uint64_t count;  /* elements of all parameters and statistics */
    bool accumulate;
    uint32_t complete_next; /* the index that the next call of complete() must be below */
    uint32_t complete_calls;
};

static void bind(struct trial *trial, float *gradient)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < kelp_graph_parameter_count(trial->b->graph); i++) {
        struct kelp_tensor tensor;
        kelp_graph_parameter_tensor(trial->b->graph, i, &tensor);
        kelp_graph_bind(trial->b->graph, i, trial->shown + offset, gradient + offset);
        offset += tensor.elem_count;
    }
}

static uint64_t offset_of(const struct trial *trial, uint32_t index)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < index && i < kelp_graph_parameter_count(trial->b->graph); i++) {
        struct kelp_tensor tensor;
        kelp_graph_parameter_tensor(trial->b->graph, i, &tensor);
        offset += tensor.elem_count;
    }
    return offset;
}

static bool on_need(void *user, uint32_t index)
{
    struct trial *trial = user;
    const uint64_t first = offset_of(trial, index), end = offset_of(trial, index + 1);
    memcpy(trial->shown + first, trial->weights + first, (size_t)(end - first) * sizeof(float));
    return true;
}

static void on_complete(void *user, uint32_t index)
{
    struct trial *trial = user;
    const uint64_t first = offset_of(trial, index), end = offset_of(trial, trial->complete_next);
    ck_assert_uint_lt(index, trial->complete_next);
    memcpy(trial->finished + first, trial->written + first, (size_t)(end - first) * sizeof(float));
    trial->complete_next = index;
    trial->complete_calls++;
}

static double train(struct trial *trial, float *gradient)
{
    double sums[KELP_METRIC_SUM_COUNT];
    struct kelp_error error = {KELP_OK, ""};
    bind(trial, gradient);
    trial->written = gradient;
    for (uint64_t i = 0; i < trial->count; i++) {
        trial->shown[i] = NAN;
    }
    trial->complete_next = UINT32_MAX;
    const struct kelp_graph_run run = {.mode = KELP_GRAPH_TRAIN,
                                       .input = trial->input,
                                       .target = trial->target,
                                       .count = trial->b->batch,
                                       .batch_total = 1.0,
                                       .accumulate = trial->accumulate,
                                       .sums = sums,
                                       .seed = 5,
                                       .step = 77,
                                       .position = 3,
                                       .need = on_need,
                                       .complete = on_complete,
                                       .user = trial};
    const kelp_status status = kelp_graph_run(trial->b->graph, &run, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    ck_assert_uint_eq(trial->complete_next, 0);
    ck_assert_mem_eq(trial->finished, gradient, (size_t)trial->count * sizeof(float));
    return sums[KELP_METRIC_SUM_LOSS];
}

static double trial_loss(void *context)
{
    struct trial *trial = context;
    return train(trial, trial->scratch);
}

static void trial_init(struct trial *trial, struct built *b)
{
    *trial = (struct trial){.b = b};
    for (uint32_t i = 0; i < kelp_graph_parameter_count(b->graph); i++) {
        struct kelp_tensor tensor;
        kelp_graph_parameter_tensor(b->graph, i, &tensor);
        trial->count += tensor.elem_count;
    }
    ck_assert_uint_lt(trial->count, PARAMETERS_MAX);
    trial->input =
        source_floats(b->source, (uint64_t)b->batch * (GRAPH_NUMBERS + GRAPH_CATEGORIES));
    trial->target = source_floats(b->source, (uint64_t)b->batch * 2);
    trial->weights = source_floats(b->source, trial->count);
    trial->gradient = source_floats(b->source, trial->count);
    trial->scratch = source_floats(b->source, trial->count);
    trial->shown = calloc((size_t)trial->count, sizeof(*trial->shown));
    trial->finished = calloc((size_t)trial->count, sizeof(*trial->finished));
    ck_assert_ptr_nonnull(trial->shown);
    ck_assert_ptr_nonnull(trial->finished);
    for (uint32_t s = 0; s < b->batch; s++) {
        for (uint32_t i = 0; i < GRAPH_CATEGORIES; i++) {
            trial->input[s * (GRAPH_NUMBERS + GRAPH_CATEGORIES) + GRAPH_NUMBERS + i] =
                (float)built_below(b, GRAPH_VOCAB);
        }
    }
    for (uint32_t i = 0; i < b->batch * 2; i++) { /* classes, and probabilities too */
        trial->target[i] = b->loss_kind % 7 < 4 ? trial->target[i] : (float)built_below(b, 2);
    }
}

static void trial_fini(struct trial *trial)
{
    free(trial->input);
    free(trial->target);
    free(trial->weights);
    free(trial->gradient);
    free(trial->scratch);
    free(trial->shown);
    free(trial->finished);
}

static uint32_t seeds(void)
{
    const char *text = getenv("KELP_GRADIENT_SEEDS");
    const unsigned long count = text == NULL ? SEEDS_DEFAULT : strtoul(text, NULL, 10);
    return count == 0 || count > 1000000 ? SEEDS_DEFAULT : (uint32_t)count;
}

/* Derivatives by what is no statistic, at random places. */
static void check_some(struct trial *trial, const char *what, uint64_t seed)
{
    const struct objective objective = {.loss = trial_loss,
                                        .context = trial,
                                        .scale = gradient_scale(trial->gradient, trial->count),
                                        .seed = seed};
    uint64_t offset = 0;
    for (uint32_t i = 0; i < kelp_graph_parameter_count(trial->b->graph); i++) {
        struct kelp_tensor tensor;
        kelp_graph_parameter_tensor(trial->b->graph, i, &tensor);
        for (uint64_t e = 0; !tensor.statistic && e < tensor.elem_count; e++) {
            if (trial->count <= CHECKED_MAX ||
                source_below(trial->b->source, (uint32_t)trial->count) < CHECKED_MAX) {
                gradient_check(&objective, &trial->weights[offset + e],
                               (double)trial->gradient[offset + e], what, offset + e);
            }
        }
        offset += tensor.elem_count;
    }
}

KELP_CASE("operators", .timeout_s = 600)

/* Gradients are those of the loss; a second pass is the same bits, and added up it is twice as
 * much. */
KELP_LOOP_TEST(test_operator, 0, KELP_ARRAY_COUNT(graph_builders))
{
    for (uint32_t seed = 0; seed < seeds(); seed++) {
        struct source source = {.seed = (uint64_t)_i << 32 | seed};
        struct built b;
        struct trial trial;
        built_init(&b, cpu_create, &source, &graph_builders[_i]);
        trial_init(&trial, &b);
        const double loss = train(&trial, trial.gradient);
        ck_assert_double_eq(train(&trial, trial.scratch), loss);
        ck_assert_mem_eq(trial.gradient, trial.scratch, (size_t)trial.count * sizeof(float));
        ck_assert_uint_gt(trial.complete_calls, 1);
        check_some(&trial, graph_builders[_i].name, seed);

        const double scale = gradient_scale(trial.gradient, trial.count);
        trial.accumulate = true;
        (void)train(&trial, trial.gradient);
        trial.accumulate = false;
        (void)train(&trial, trial.scratch);
        for (uint64_t i = 0; i < trial.count; i++) {
            ck_assert_double_eq_tol((double)trial.gradient[i], 2.0 * (double)trial.scratch[i],
                                    1e-4 * scale);
        }
        trial_fini(&trial);
        built_fini(&b);
    }
}

/* The same on the CPU and on another device, whose gradients may differ by a share of the largest
 * one. exact: its values may not. */
static void compare_devices(device_create *create, int builder, uint32_t seed, double tolerance,
                            bool exact)
{
    struct source source = {.seed = (uint64_t)builder << 32 | seed}, same = source;
    struct built b, other;
    struct trial trial, other_trial;
    built_init(&b, cpu_create, &source, &graph_builders[builder]);
    trial_init(&trial, &b);
    built_init(&other, create, &same, &graph_builders[builder]);
    trial_init(&other_trial, &other);
    for (uint32_t pass = 0; pass < 2; pass++) { /* the second one adds to the first */
        const double loss = train(&trial, trial.gradient);
        const double other_loss = train(&other_trial, other_trial.gradient);
        const double scale = gradient_scale(trial.gradient, trial.count);
        const double limit = exact ? 0.0 : tolerance * (1.0 + fabs(loss));
        ck_assert_msg(fabs(loss - other_loss) <= limit, "%s, seed %u: loss %g and %g",
                      graph_builders[builder].name, seed, loss, other_loss);
        for (uint64_t i = 0; i < trial.count; i++) {
            const float left = trial.gradient[i], right = other_trial.gradient[i];
            ck_assert_msg(fabs((double)(left - right)) <= tolerance * scale,
                          "%s, seed %u, element %llu: %g and %g", graph_builders[builder].name,
                          seed, (unsigned long long)i, (double)left, (double)right);
        }
        trial.accumulate = other_trial.accumulate = true;
    }
    trial_fini(&trial);
    trial_fini(&other_trial);
    built_fini(&b);
    built_fini(&other);
}

/* Where images stand the other way: the same values, and gradients that are added up in another
 * order at most. */
KELP_LOOP_TEST(test_channels_last, GRAPH_IMAGES, GRAPH_BUILDERS)
{
    for (uint32_t seed = 0; seed < 4 * seeds(); seed++) {
        compare_devices(channels_last_cpu_create, _i, seed, 1e-5, true);
    }
}

#ifdef KELP_EMULATED_GPU
static kelp_status emulated_create(struct kelp_device **ret, struct kelp_error *reterr)
{
    return kelp_device_cuda_create_emulated(ret, reterr);
}

/* Its memory is the host's here. */
KELP_LOOP_TEST(test_emulated_gpu, 0, GRAPH_BUILDERS)
{
    for (uint32_t seed = 0; seed < seeds() / 16; seed++) {
        compare_devices(emulated_create, _i, seed, 1e-4, false);
    }
}
#endif
