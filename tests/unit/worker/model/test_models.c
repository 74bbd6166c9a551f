/* The models: how many parameters they have, what they do with a sample that does not fit, and what
 * holds for their outputs whatever the weights are. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/model/graph/graph.h"
#include "worker/model/model.h"

static struct kelp_sample_tensor numbers(uint32_t rank, uint64_t a, uint64_t b, uint64_t c)
{
    return (struct kelp_sample_tensor){.rank = rank, .dims = {a, b, c}};
}

static struct kelp_sample_tensor category(uint32_t vocab)
{
    return (struct kelp_sample_tensor){.vocab_count = 1, .vocab = {vocab}};
}

static struct kelp_job job_of(enum kelp_model_kind kind, enum kelp_loss_kind loss)
{
    struct kelp_job job = {.seed = 3};
    job.cluster.lane_threads = 1;
    job.model.kind = kind;
    job.model.classes = 10;
    job.model.kernel_size = 25;
    job.model.embedding_dim = 4;
    job.model.d_model = 16;
    job.model.heads = 4;
    job.model.hidden[0] = 8;
    job.model.hidden_count = 1;
    job.train.loss = loss;
    return job;
}

static struct kelp_model *create(const struct kelp_job *job, const struct kelp_sample_shape *shape)
{
    struct kelp_error error = {.text = ""};
    struct kelp_model *model = NULL;
    const kelp_status status = kelp_model_create(job, shape, 4, &model, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return model;
}

/* Elements of all parameters, running statistics left out. */
static uint64_t count_parameters(const struct kelp_job *job, const struct kelp_sample_shape *shape)
{
    uint32_t tensor_count = 0;
    uint64_t total = 0;
    struct kelp_model *model = create(job, shape);
    const struct kelp_tensor *tensors = kelp_model_tensors(model, &tensor_count);
    for (uint32_t i = 0; i < tensor_count; i++) {
        total += tensors[i].statistic ? 0 : tensors[i].elem_count;
    }
    kelp_model_destroy(model);
    return total;
}

static void check_refused(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                          const char *text)
{
    struct kelp_error error = {.text = ""};
    struct kelp_model *model = NULL;
    ck_assert_int_eq(kelp_model_create(job, shape, 4, &model, &error), KELP_ERR_INVALID);
    ck_assert_ptr_null(model);
    ck_assert_str_eq(error.text, text);
}

/* The same numbers of parameters as PyTorch's. */
KELP_TEST(parameter_counts)
{
    struct kelp_job job = job_of(KELP_MODEL_FARE, KELP_LOSS_SMOOTH_L1);
    struct kelp_sample_shape shape = {
        .input_count = 1, .inputs = {numbers(1, 6, 0, 0)}, .target = numbers(0, 0, 0, 0)};
    ck_assert_uint_eq(count_parameters(&job, &shape),
                      6 * 256 + 256 + 2 * 256 + 256 * 16 + 16 + 2 * 16 + 16 + 1);

    job = job_of(KELP_MODEL_CONVNET, KELP_LOSS_NLL);
    shape = (struct kelp_sample_shape){
        .input_count = 1, .inputs = {numbers(3, 1, 28, 28)}, .target = category(10)};
    ck_assert_uint_eq(count_parameters(&job, &shape), 1199882);

    job = job_of(KELP_MODEL_RESNET18, KELP_LOSS_CROSS_ENTROPY);
    ck_assert_uint_eq(count_parameters(&job, &shape), 11175370);

    job = job_of(KELP_MODEL_NLINEAR, KELP_LOSS_MSE);
    shape = (struct kelp_sample_shape){
        .input_count = 1, .inputs = {numbers(2, 36, 3, 0)}, .target = numbers(2, 24, 3, 0)};
    ck_assert_uint_eq(count_parameters(&job, &shape), 36 * 24 + 24);
    job.model.individual = true;
    ck_assert_uint_eq(count_parameters(&job, &shape), 3 * (36 * 24 + 24));
}

/* What goes by AUC needs a score. */
KELP_TEST(auc_of_two_classes)
{
    struct kelp_job job = job_of(KELP_MODEL_CONVNET, KELP_LOSS_NLL);
    struct kelp_sample_shape shape = {
        .input_count = 1, .inputs = {numbers(3, 1, 28, 28)}, .target = category(2)};
    job.train.monitor = KELP_MONITOR_AUC;
    check_refused(&job, &shape,
                  "train.monitor: val/auc is of two classes, but the model puts out 10 numbers a "
                  "sample; take val/loss or val/accuracy");
    job.model.classes = 2;
    ck_assert_uint_gt(count_parameters(&job, &shape), 0);

    job.train.monitor = KELP_MONITOR_LOSS;
    job.checkpoint.metric = KELP_CHECKPOINT_VAL_AUC;
    job.model.classes = 3;
    ck_assert_uint_gt(count_parameters(&job, &shape), 0); /* nothing goes by it */
    job.checkpoint.keep_best = 1;
    check_refused(&job, &shape,
                  "checkpoint.metric: val/auc is of two classes, but the model puts out 3 numbers "
                  "a sample; take val/loss or val/accuracy");
}

/* 73 series, six known inputs, seven quantiles: the model of the hourly taxi rides. */
KELP_TEST(tft_parameters)
{
    struct kelp_job job = job_of(KELP_MODEL_TFT, KELP_LOSS_QUANTILE);
    const double quantiles[] = {0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98};
    memcpy(job.train.quantiles, quantiles, sizeof(quantiles));
    job.train.quantile_count = 7;
    struct kelp_sample_shape shape = {
        .input_count = 4,
        .inputs = {category(73), numbers(2, 63, 6, 0), numbers(1, 63, 0, 0), numbers(2, 168, 6, 0)},
        .target = numbers(1, 168, 0, 0)};
    ck_assert_uint_eq(count_parameters(&job, &shape), 36060);
    struct kelp_model *model = create(&job, &shape);
    const struct kelp_shape *output = kelp_model_output(model);
    ck_assert_uint_eq(output->rank, 2);
    ck_assert_uint_eq(output->dims[0], 168);
    ck_assert_uint_eq(output->dims[1], 7);
    kelp_model_destroy(model);

    /* Two targets and one more observed column; without quantiles one number for each target. */
    shape.inputs[2] = numbers(2, 63, 3, 0);
    shape.target = numbers(2, 168, 2, 0);
    model = create(&job, &shape);
    output = kelp_model_output(model);
    ck_assert_uint_eq(output->rank, 3);
    ck_assert_uint_eq(output->dims[1], 2);
    ck_assert_uint_eq(output->dims[2], 7);
    kelp_model_destroy(model);
    job.train.loss = KELP_LOSS_MSE;
    model = create(&job, &shape);
    output = kelp_model_output(model);
    ck_assert_uint_eq(output->rank, 2);
    ck_assert_uint_eq(output->dims[1], 2);
    kelp_model_destroy(model);
}

KELP_TEST(samples_that_do_not_fit)
{
    const struct kelp_sample_shape image = {
        .input_count = 1, .inputs = {numbers(3, 1, 28, 28)}, .target = category(11)};
    const struct kelp_sample_shape row = {.input_count = 2,
                                          .inputs = {category(7), numbers(1, 3, 0, 0)},
                                          .target = numbers(1, 2, 0, 0)};
    struct kelp_job job = job_of(KELP_MODEL_CONVNET, KELP_LOSS_NLL);
    check_refused(&job, &image,
                  "convnet takes an image [channels, height, width] to one of model.classes "
                  "classes, but the data has [1, 28, 28] to one of 11 classes");
    job = job_of(KELP_MODEL_RESNET18, KELP_LOSS_CROSS_ENTROPY);
    check_refused(&job, &row,
                  "resnet18 takes an image [channels, height, width] to one of model.classes "
                  "classes, but the data has one category and [3] to [2]");
    job = job_of(KELP_MODEL_FARE, KELP_LOSS_MSE);
    check_refused(&job, &row,
                  "fare takes numbers [n] to one number, but the data has one category and [3] "
                  "to [2]");
    job = job_of(KELP_MODEL_DEEPFM, KELP_LOSS_BCE_WITH_LOGITS);
    check_refused(&job, &row,
                  "deepfm takes categories [m], then numbers [n] or none, to one number, but the "
                  "data has one category and [3] to [2]");
    job = job_of(KELP_MODEL_TFT, KELP_LOSS_MSE);
    check_refused(&job, &image,
                  "tft takes one category, known inputs [seq_len, n], observed ones [seq_len, m] "
                  "and known ones ahead [pred_len, n] to targets [pred_len, t], but the data has "
                  "[1, 28, 28] to one of 11 classes");
    job = job_of(KELP_MODEL_NLINEAR, KELP_LOSS_MSE);
    check_refused(&job, &image,
                  "nlinear takes [seq_len, channels] to [pred_len, channels] or [pred_len, 1] with "
                  "at most 16384 "
                  "channels, but the data has [1, 28, 28] to one of 11 classes");
    job = job_of(KELP_MODEL_MLP, KELP_LOSS_CROSS_ENTROPY);
    check_refused(&job, &row,
                  "mlp takes numbers to numbers, or with a loss of classes to a class of a known "
                  "number of them, but the data has one category and [3] to [2]");
}

/* An image that is too small is an error of the layer that it does not fit. */
KELP_TEST(image_too_small)
{
    const struct kelp_sample_shape shape = {
        .input_count = 1, .inputs = {numbers(3, 1, 4, 2)}, .target = category(10)};
    struct kelp_error error = {.text = ""};
    struct kelp_model *model = NULL;
    const struct kelp_job job = job_of(KELP_MODEL_CONVNET, KELP_LOSS_NLL);
    ck_assert_int_eq(kelp_model_create(&job, &shape, 4, &model, &error), KELP_ERR_INVALID);
    ck_assert_msg(strstr(error.text, "conv1") != NULL, "%s", error.text);
}

/* ---- running one ----------------------------------------------------------------------------- */

struct bound {
    struct kelp_model *model;
    struct kelp_plan plan;
    float *weights;
};

static void bind_initial(struct bound *bound, const struct kelp_job *job,
                         const struct kelp_sample_shape *shape)
{
    struct kelp_error error = {.text = ""};
    *bound = (struct bound){.model = create(job, shape)};
    const struct kelp_tensor *tensors = kelp_model_tensors(bound->model, &bound->plan.tensor_count);
    bound->plan.tensors = calloc(bound->plan.tensor_count, sizeof(*tensors));
    ck_assert_ptr_nonnull(bound->plan.tensors);
    memcpy(bound->plan.tensors, tensors, bound->plan.tensor_count * sizeof(*tensors));
    ck_assert_int_eq(kelp_plan_lay_out(&bound->plan, 4, &error), KELP_OK);
    bound->weights = calloc(bound->plan.flat_count, sizeof(float));
    ck_assert_ptr_nonnull(bound->weights);
    ck_assert_int_eq(kelp_plan_initialise(&bound->plan, job, NULL,
                                          (struct kelp_slice_range){0, bound->plan.flat_count},
                                          bound->weights, &error),
                     KELP_OK);
    kelp_model_bind(bound->model, &bound->plan, bound->weights, NULL);
}

static void forward(const struct bound *bound, const float *input, uint32_t count, float *output)
{
    struct kelp_error error = {.text = ""};
    const kelp_status status = kelp_model_forward(bound->model, input, count, output, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

static void unbind(struct bound *bound)
{
    kelp_model_destroy(bound->model);
    kelp_plan_fini(&bound->plan);
    free(bound->weights);
}

/* NLinear forecasts differences from the last value: a series that is higher by ten has a forecast
 * that is higher by ten, each channel by itself. */
KELP_LOOP_TEST(nlinear_follows_the_level, 0, 2)
{
    const struct kelp_sample_shape shape = {
        .input_count = 1, .inputs = {numbers(2, 6, 2, 0)}, .target = numbers(2, 3, 2, 0)};
    struct kelp_job job = job_of(KELP_MODEL_NLINEAR, KELP_LOSS_MSE);
    job.model.individual = _i == 1;
    struct bound bound;
    bind_initial(&bound, &job, &shape);
    float input[24], output[12];
    for (int i = 0; i < 12; i++) {
        input[i] = (float)((i * 7) % 5) / 4.0f;
        input[12 + i] = input[i] + (i % 2 == 0 ? 10.0f : 0.0f);
    }
    forward(&bound, input, 2, output);
    for (int i = 0; i < 6; i++) {
        ck_assert_float_eq_tol(output[6 + i] - output[i], i % 2 == 0 ? 10.0f : 0.0f, 1e-4f);
    }
    unbind(&bound);
}

/* The Temporal Fusion Transformer does not look ahead: a known input of the last position changes
 * the forecast of that position alone. */
KELP_TEST(tft_is_causal)
{
    const struct kelp_sample_shape shape = {
        .input_count = 4,
        .inputs = {category(3), numbers(2, 5, 2, 0), numbers(1, 5, 0, 0), numbers(2, 4, 2, 0)},
        .target = numbers(1, 4, 0, 0)};
    const struct kelp_job job = job_of(KELP_MODEL_TFT, KELP_LOSS_MSE);
    struct bound bound;
    bind_initial(&bound, &job, &shape);
    float input[2 * 24], output[8];
    for (int i = 0; i < 24; i++) {
        input[i] = input[24 + i] = i == 0 ? 1.0f : (float)((i * 5) % 7) / 3.0f;
    }
    input[47] += 1.0f; /* the last known value ahead of the second sample */
    forward(&bound, input, 2, output);
    for (int t = 0; t < 3; t++) {
        ck_assert_float_eq_tol(output[t], output[4 + t], 1e-5f);
    }
    ck_assert_float_gt(fabsf(output[3] - output[7]), 1e-3f);
    unbind(&bound);
}

/* Another category in any field gives another logit. */
KELP_TEST(deepfm_uses_every_field)
{
    struct kelp_sample_shape shape = {.input_count = 2,
                                      .inputs = {numbers(1, 3, 0, 0), numbers(1, 2, 0, 0)},
                                      .target = numbers(0, 0, 0, 0)};
    shape.inputs[0].vocab_count = 3;
    for (int f = 0; f < 3; f++) {
        shape.inputs[0].vocab[f] = 4;
    }
    const struct kelp_job job = job_of(KELP_MODEL_DEEPFM, KELP_LOSS_BCE_WITH_LOGITS);
    struct bound bound;
    bind_initial(&bound, &job, &shape);
    float output[4];
    float input[4 * 5] = {1, 2, 3, 0.5f, -0.5f, 2, 2, 3, 0.5f, -0.5f,
                          1, 0, 3, 0.5f, -0.5f, 1, 2, 0, 0.5f, -0.5f};
    forward(&bound, input, 4, output);
    for (int i = 1; i < 4; i++) {
        ck_assert_float_ne(output[i], output[0]);
    }
    unbind(&bound);
}
