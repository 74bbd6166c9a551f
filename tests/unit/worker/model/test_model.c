/* Models: parameters as PyTorch has them, errors that name what is wrong, and sums and gradients
 * that add up over lanes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "tests/lib/suite.h"
#include "worker/model/model.h"

#define BATCH 12

static struct kelp_job job;
static struct kelp_sample_shape shape;
static struct kelp_model *model;
static struct kelp_plan plan;
static struct kelp_error error;
static float *input, *target, *weights, *gradient;

static void setup(void)
{
    job = (struct kelp_job){.cluster = {.lane_threads = 1}, .model = {.kernel_size = 5}};
    shape = (struct kelp_sample_shape){.input_count = 1,
                                       .inputs[0] = {.rank = 2, .dims = {12, 3}},
                                       .target = {.rank = 2, .dims = {4, 3}}};
    error = (struct kelp_error){KELP_OK, ""};
}

static void teardown(void)
{
    kelp_model_destroy(model);
    kelp_plan_fini(&plan);
    free(input);
    free(target);
    free(weights);
    free(gradient);
    model = NULL;
    input = target = weights = gradient = NULL;
}

static float *random_floats(uint64_t count, uint32_t use)
{
    float *values = malloc((size_t)(count + 1) * sizeof(*values));
    ck_assert_ptr_nonnull(values);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t words[4];
        kelp_philox(5, KELP_PHILOX_TEST, use, i, words);
        values[i] = 2.0f * kelp_philox_float(words[0]) - 1.0f;
    }
    return values;
}

/* The model of job and shape, with random samples, weights, and a plan. */
static void build(uint32_t batch_max)
{
    const kelp_status status = kelp_model_create(&job, &shape, batch_max, &model, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    const struct kelp_tensor *tensors = kelp_model_tensors(model, &plan.tensor_count);
    plan.tensors = malloc(plan.tensor_count * sizeof(*tensors));
    ck_assert_ptr_nonnull(plan.tensors);
    memcpy(plan.tensors, tensors, plan.tensor_count * sizeof(*tensors));
    ck_assert_int_eq(kelp_plan_lay_out(&plan, 4, &error), KELP_OK);
    input = random_floats(BATCH * kelp_sample_input_count(&shape), 1);
    target = random_floats(BATCH * kelp_sample_target_count(&shape), 2);
    weights = random_floats(plan.flat_count, 3);
    gradient = calloc((size_t)plan.flat_count, sizeof(*gradient));
    ck_assert_ptr_nonnull(gradient);
}

/* The gradient of samples [first, first + count) as a part of the whole batch's. */
static kelp_status train(uint32_t first, uint32_t count, double sums[KELP_METRIC_SUM_COUNT])
{
    const struct kelp_model_piece piece = {.input = input + first * kelp_sample_input_count(&shape),
                                           .target =
                                               target + first * kelp_sample_target_count(&shape),
                                           .count = count,
                                           .batch_total = BATCH};
    return kelp_model_train(model, &piece, sums, &error);
}

static kelp_status evaluate(uint32_t first, uint32_t count, double sums[KELP_METRIC_SUM_COUNT])
{
    const struct kelp_model_evaluation what = {
        .input = input + first * kelp_sample_input_count(&shape),
        .target = target + first * kelp_sample_target_count(&shape),
        .count = count};
    return kelp_model_evaluate(model, &what, sums, &error);
}

struct expected_tensor {
    const char *name;
    uint32_t rank;
    uint64_t shape[2];
    uint64_t fan_in;
};

static void expect_tensors(const struct expected_tensor *expected, uint32_t count)
{
    ck_assert_uint_eq(plan.tensor_count, count);
    for (uint32_t i = 0; i < count; i++) {
        const struct kelp_tensor *tensor = &plan.tensors[i];
        ck_assert_str_eq(tensor->name, expected[i].name);
        ck_assert_uint_eq(tensor->rank, expected[i].rank);
        ck_assert_mem_eq(tensor->shape, expected[i].shape, tensor->rank * sizeof(uint64_t));
        ck_assert_int_eq(tensor->init, KELP_INIT_UNIFORM);
        ck_assert_float_eq(tensor->init_a, (float)(1.0 / sqrt((double)expected[i].fan_in)));
    }
}

KELP_CASE("model", .setup = setup, .teardown = teardown)

/* fc1 ... fcN over the flattened sample. */
KELP_TEST(test_mlp_tensors)
{
    const struct expected_tensor expected[] = {
        {"fc1.weight", 2, {7, 36}, 36}, {"fc1.bias", 1, {7, 0}, 36},   {"fc2.weight", 2, {5, 7}, 7},
        {"fc2.bias", 1, {5, 0}, 7},     {"fc3.weight", 2, {12, 5}, 5}, {"fc3.bias", 1, {12, 0}, 5},
    };
    job.model.kind = KELP_MODEL_MLP;
    job.model.hidden[0] = 7;
    job.model.hidden[1] = 5;
    job.model.hidden_count = 2;
    build(BATCH);
    expect_tensors(expected, KELP_ARRAY_COUNT(expected));
}

KELP_TEST(test_dlinear_tensors)
{
    const struct expected_tensor expected[] = {
        {"linear_seasonal.weight", 2, {4, 12}, 12},
        {"linear_seasonal.bias", 1, {4, 0}, 12},
        {"linear_trend.weight", 2, {4, 12}, 12},
        {"linear_trend.bias", 1, {4, 0}, 12},
    };
    job.model.kind = KELP_MODEL_DLINEAR;
    build(BATCH);
    expect_tensors(expected, KELP_ARRAY_COUNT(expected));
}

/* PyTorch numbers the layers of a ModuleList; all of the first list come before the second. */
KELP_TEST(test_individual_tensors)
{
    const struct expected_tensor expected[] = {
        {"linear_seasonal.0.weight", 2, {4, 12}, 12}, {"linear_seasonal.0.bias", 1, {4, 0}, 12},
        {"linear_seasonal.1.weight", 2, {4, 12}, 12}, {"linear_seasonal.1.bias", 1, {4, 0}, 12},
        {"linear_seasonal.2.weight", 2, {4, 12}, 12}, {"linear_seasonal.2.bias", 1, {4, 0}, 12},
        {"linear_trend.0.weight", 2, {4, 12}, 12},    {"linear_trend.0.bias", 1, {4, 0}, 12},
        {"linear_trend.1.weight", 2, {4, 12}, 12},    {"linear_trend.1.bias", 1, {4, 0}, 12},
        {"linear_trend.2.weight", 2, {4, 12}, 12},    {"linear_trend.2.bias", 1, {4, 0}, 12},
    };
    job.model.kind = KELP_MODEL_DLINEAR;
    job.model.individual = true;
    build(BATCH);
    expect_tensors(expected, KELP_ARRAY_COUNT(expected));
}

/* With model.init all initial values come from the file. */
KELP_TEST(test_init_file)
{
    job.model.kind = KELP_MODEL_DLINEAR;
    (void)snprintf(job.model.init, sizeof(job.model.init), "start.safetensors");
    build(BATCH);
    for (uint32_t i = 0; i < plan.tensor_count; i++) {
        ck_assert_int_eq(plan.tensors[i].init, KELP_INIT_FILE);
    }
}

/* Samples that a model cannot take are told with both shapes. */
KELP_TEST(test_dlinear_shapes)
{
    job.model.kind = KELP_MODEL_DLINEAR;
    shape.target.dims[1] = 2;
    ck_assert_int_eq(kelp_model_create(&job, &shape, BATCH, &model, &error), KELP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, "[12, 3] to [4, 2]") != NULL, "%s", error.text);
    shape.inputs[0].rank = 1;
    ck_assert_int_eq(kelp_model_create(&job, &shape, BATCH, &model, &error), KELP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, "[12] to [4, 2]") != NULL, "%s", error.text);
    ck_assert_ptr_null(model);
}

/* All channels in, the last one out: its forecast is that of the model of all, for the same
 * weights, and learning it leaves the own maps of the others alone. */
KELP_LOOP_TEST(test_last_channel_alone, 0, 4)
{
    float *all = calloc(BATCH * 12, sizeof(*all)), *alone = calloc(BATCH * 4, sizeof(*alone));
    double sums[KELP_METRIC_SUM_COUNT];

    ck_assert(all != NULL && alone != NULL);
    job.model.kind = _i < 2 ? KELP_MODEL_DLINEAR : KELP_MODEL_NLINEAR;
    job.model.individual = _i % 2 == 1;
    build(BATCH);
    kelp_model_bind(model, &plan, weights, gradient);
    ck_assert_int_eq(kelp_model_forward(model, input, BATCH, all, &error), KELP_OK);
    kelp_model_destroy(model);
    shape.target.dims[1] = 1;
    ck_assert_msg(kelp_model_create(&job, &shape, BATCH, &model, &error) == KELP_OK, "%s",
                  error.text);
    kelp_model_bind(model, &plan, weights, gradient);
    ck_assert_int_eq(kelp_model_forward(model, input, BATCH, alone, &error), KELP_OK);
    for (uint32_t i = 0; i < BATCH * 4; i++) {
        ck_assert_float_eq(alone[i], all[3 * i + 2]);
    }
    ck_assert_int_eq(train(0, BATCH, sums), KELP_OK);
    ck_assert_double_eq(sums[KELP_METRIC_SUM_ELEMENTS], BATCH * 4);
    for (uint32_t t = 0; job.model.individual && t < plan.tensor_count; t++) {
        bool last = strstr(plan.tensors[t].name, ".2.") != NULL;
        ck_assert_int_eq(gradient[plan.tensors[t].offset] != 0.0f, last);
    }
    free(all);
    free(alone);
}

KELP_TEST(test_bad_hyperparameters)
{
    job.model.kind = KELP_MODEL_DLINEAR;
    job.model.kernel_size = 4;
    ck_assert_int_eq(kelp_model_create(&job, &shape, BATCH, &model, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "kernel size 4"));
    job.model.kind = KELP_MODEL_MLP;
    job.model.hidden_count = 1; /* of width 0 */
    ck_assert_int_eq(kelp_model_create(&job, &shape, BATCH, &model, &error), KELP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, "fc1.weight") != NULL, "%s", error.text);
    job.model.hidden_count = 0;
    ck_assert_int_eq(kelp_model_create(&job, &shape, 0, &model, &error), KELP_ERR_INVALID);
    job.cluster.lane_threads = 0;
    ck_assert_int_eq(kelp_model_create(&job, &shape, BATCH, &model, &error), KELP_ERR_INVALID);
}

static void choose_model(int index)
{
    job.model.kind = index % 3 == 0 ? KELP_MODEL_MLP : KELP_MODEL_DLINEAR;
    job.model.individual = index % 3 == 2;
    job.model.hidden[0] = 6;
    job.model.hidden_count = 1;
    job.train.loss = index < 3 ? KELP_LOSS_MSE : KELP_LOSS_MAE;
}

/* Sums are the plain ones over the model's own output. */
KELP_LOOP_TEST(test_sums, 0, 6)
{
    double sums[KELP_METRIC_SUM_COUNT], squared = 0.0, absolute = 0.0;
    choose_model(_i);
    build(BATCH);
    const uint64_t count = BATCH * kelp_sample_target_count(&shape);
    float *output = random_floats(count, 9);
    kelp_model_bind(model, &plan, weights, NULL);
    ck_assert_int_eq(kelp_model_forward(model, input, BATCH, output, &error), KELP_OK);
    for (uint64_t i = 0; i < count; i++) {
        const double d = (double)output[i] - (double)target[i];
        squared += d * d;
        absolute += fabs(d);
    }
    ck_assert_int_eq(evaluate(0, BATCH, sums), KELP_OK);
    ck_assert_double_eq_tol(sums[KELP_METRIC_SUM_SQUARED], squared, 1e-4);
    ck_assert_double_eq_tol(sums[KELP_METRIC_SUM_ABSOLUTE], absolute, 1e-4);
    ck_assert_double_eq(sums[KELP_METRIC_SUM_SAMPLES], BATCH);
    ck_assert_double_eq(sums[KELP_METRIC_SUM_ELEMENTS], (double)count);
    ck_assert_double_eq_tol(
        sums[KELP_METRIC_SUM_LOSS],
        sums[job.train.loss == KELP_LOSS_MSE ? KELP_METRIC_SUM_SQUARED : KELP_METRIC_SUM_ABSOLUTE] /
            (double)kelp_sample_target_count(&shape),
        1e-9);
    for (uint32_t i = KELP_METRIC_SUM_CORRECT + 1; i < KELP_METRIC_SUM_COUNT; i++) {
        ck_assert_double_eq(sums[i], 0.0);
    }
    free(output);
}

/* Lanes of any size, each divided by the whole batch, add up to the whole batch's gradient. */
KELP_LOOP_TEST(test_lanes_add_up, 0, 6)
{
    static const uint32_t lanes[] = {5, 1, 0, 4, 2};
    double sums[KELP_METRIC_SUM_COUNT], lane_sums[KELP_METRIC_SUM_COUNT], total = 0.0;
    choose_model(_i);
    build(BATCH);
    kelp_model_bind(model, &plan, weights, gradient);
    ck_assert_int_eq(train(0, BATCH, sums), KELP_OK);
    float *lane_gradient = calloc((size_t)plan.flat_count, sizeof(float));
    double *added = calloc((size_t)plan.flat_count, sizeof(double));
    ck_assert(lane_gradient != NULL && added != NULL);
    kelp_model_bind(model, &plan, weights, lane_gradient);
    for (uint32_t lane = 0, first = 0; lane < KELP_ARRAY_COUNT(lanes); first += lanes[lane++]) {
        ck_assert_int_eq(train(first, lanes[lane], lane_sums), KELP_OK);
        total += lane_sums[KELP_METRIC_SUM_LOSS];
        for (uint64_t i = 0; i < plan.flat_count; i++) {
            added[i] += (double)lane_gradient[i];
        }
    }
    ck_assert_double_eq_tol(total, sums[KELP_METRIC_SUM_LOSS], 1e-9 * fabs(total));
    for (uint64_t i = 0; i < plan.flat_count; i++) {
        ck_assert_double_eq_tol(added[i], (double)gradient[i], 1e-6);
    }
    free(lane_gradient);
    free(added);
}

/* Padding between tensors is left alone: what was there stays. */
KELP_LOOP_TEST(test_padding_stays, 0, 6)
{
    double sums[KELP_METRIC_SUM_COUNT];
    choose_model(_i);
    build(BATCH);
    for (uint64_t i = 0; i < plan.flat_count; i++) {
        gradient[i] = 77.0f;
    }
    kelp_model_bind(model, &plan, weights, gradient);
    ck_assert_int_eq(train(0, BATCH, sums), KELP_OK);
    uint64_t padding = 0, end = 0;
    for (uint32_t t = 0; t <= plan.tensor_count; t++) {
        const bool last = t == plan.tensor_count;
        for (uint64_t i = end; i < (last ? plan.flat_count : plan.tensors[t].offset); i++) {
            ck_assert_float_eq(gradient[i], 77.0f);
            padding++;
        }
        end = last ? 0 : plan.tensors[t].offset + plan.tensors[t].elem_count;
    }
    ck_assert_uint_gt(padding, 0);
}

/* Evaluating more samples than fit at once is the same as doing it in pieces. */
KELP_LOOP_TEST(test_pieces, 0, 6)
{
    double whole[KELP_METRIC_SUM_COUNT], pieces[KELP_METRIC_SUM_COUNT];
    choose_model(_i);
    build(5);
    kelp_model_bind(model, &plan, weights, gradient);
    ck_assert_int_eq(evaluate(0, BATCH, whole), KELP_OK);
    memset(pieces, 0, sizeof(pieces));
    for (uint32_t first = 0; first < BATCH; first += 5) {
        double piece[KELP_METRIC_SUM_COUNT];
        const uint32_t count = BATCH - first < 5 ? BATCH - first : 5;
        ck_assert_int_eq(evaluate(first, count, piece), KELP_OK);
        for (uint32_t i = 0; i < KELP_METRIC_SUM_COUNT; i++) {
            pieces[i] += piece[i];
        }
    }
    ck_assert_mem_eq(whole, pieces, sizeof(whole));
    ck_assert_int_eq(train(0, BATCH, whole), KELP_ERR_LIMIT);
    ck_assert_mem_eq(whole, pieces, sizeof(whole));
}

/* Weights are read where they were bound last: they are double-buffered. */
KELP_LOOP_TEST(test_bind_again, 0, 6)
{
    double first[KELP_METRIC_SUM_COUNT], second[KELP_METRIC_SUM_COUNT];
    choose_model(_i);
    build(BATCH);
    float *other = random_floats(plan.flat_count, 8);
    kelp_model_bind(model, &plan, weights, NULL);
    ck_assert_int_eq(evaluate(0, BATCH, first), KELP_OK);
    kelp_model_bind(model, &plan, other, NULL);
    ck_assert_int_eq(evaluate(0, BATCH, second), KELP_OK);
    ck_assert_double_ne(first[KELP_METRIC_SUM_LOSS], second[KELP_METRIC_SUM_LOSS]);
    memcpy(other, weights, (size_t)plan.flat_count * sizeof(float));
    ck_assert_int_eq(evaluate(0, BATCH, second), KELP_OK);
    ck_assert_mem_eq(first, second, sizeof(first));
    free(other);
}

KELP_TEST(test_compute_kind)
{
    char text[128], short_text[8];
    uint64_t answer = 0, again = 1;
    job.model.kind = KELP_MODEL_DLINEAR;
    build(BATCH);
    ck_assert_int_eq(kelp_model_compute_kind(model, text, sizeof(text), &answer, &error), KELP_OK);
    ck_assert_int_eq(kelp_model_compute_kind(model, short_text, sizeof(short_text), &again, &error),
                     KELP_OK);
    ck_assert_int_eq(strncmp(text, short_text, sizeof(short_text) - 1), 0);
    ck_assert_uint_eq(answer, again);
}
