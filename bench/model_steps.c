/*
 * model_steps: times a step (forward, loss, backward) and an evaluation of the models that have
 * targets, on the CPU device.
 *
 *     usage: model_steps [THREADS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/measure.h"
#include "common/training/plan.h"
#include "worker/model/model.h"

struct training {
    struct kelp_model *model;
    const float *input, *target;
    uint32_t batch;
};

static void run_training(void *argument)
{
    struct training *training = argument;
    double sums[KELP_METRIC_SUM_COUNT];
    struct kelp_error error = {KELP_OK, ""};
    if (kelp_model_train(training->model,
                         &(struct kelp_model_piece){.input = training->input,
                                                    .target = training->target,
                                                    .count = training->batch,
                                                    .batch_total = training->batch},
                         sums, &error) != KELP_OK) {
        fail(&error);
    }
}

static void run_evaluation(void *argument)
{
    struct training *training = argument;
    double sums[KELP_METRIC_SUM_COUNT];
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_model_evaluation what = {
        .input = training->input, .target = training->target, .count = training->batch};
    if (kelp_model_evaluate(training->model, &what, sums, &error) != KELP_OK) {
        fail(&error);
    }
}

static void bench_model(const char *name, const struct kelp_job *job,
                        const struct kelp_sample_shape *shape, uint32_t batch)
{
    struct training training = {.batch = batch};
    struct kelp_plan plan = {.tensor_count = 0};
    struct kelp_error error = {KELP_OK, ""};
    if (kelp_model_create(job, shape, batch, &training.model, &error) != KELP_OK) {
        fail(&error);
    }
    const struct kelp_tensor *tensors = kelp_model_tensors(training.model, &plan.tensor_count);
    plan.tensors = malloc(plan.tensor_count * sizeof(*tensors));
    if (plan.tensors == NULL) {
        fail(&error);
    }
    memcpy(plan.tensors, tensors, plan.tensor_count * sizeof(*tensors));
    if (kelp_plan_lay_out(&plan, 4, &error) != KELP_OK) {
        fail(&error);
    }
    float *weights = floats(plan.flat_count), *gradient = floats(plan.flat_count);
    float *input = floats(kelp_sample_input_count(shape) * batch);
    float *target = floats(kelp_sample_target_count(shape) * batch);
    training.input = input;
    training.target = target;
    kelp_model_bind(training.model, &plan, weights, gradient);
    const double train = measure(run_training, &training);
    const double evaluate = measure(run_evaluation, &training);
    printf("%-38s %10.1f us a step %10.1f us evaluation\n", name, train * 1e6, evaluate * 1e6);
    kelp_model_destroy(training.model);
    kelp_plan_fini(&plan);
    free(weights);
    free(gradient);
    free(input);
    free(target);
}

static void bench_models(uint32_t threads)
{
    struct kelp_job job = {.model = {.kind = KELP_MODEL_DLINEAR, .kernel_size = 25},
                           .cluster = {.lane_threads = threads}};
    struct kelp_sample_shape shape = {.input_count = 1,
                                      .inputs[0] = {.rank = 2, .dims = {96, 1}},
                                      .target = {.rank = 2, .dims = {96, 1}}};
    bench_model("dlinear 96 to 96, 1 channel, batch 32", &job, &shape, 32);
    shape.inputs[0].dims[0] = 336;
    shape.inputs[0].dims[1] = shape.target.dims[1] = 7;
    bench_model("dlinear 336 to 96, 7 channels, batch 32", &job, &shape, 32);
    job.model.individual = true;
    bench_model("the same, a map per channel", &job, &shape, 32);
    job.model.kind = KELP_MODEL_MLP;
    job.model.hidden_count = 2;
    job.model.hidden[0] = job.model.hidden[1] = 256;
    shape = (struct kelp_sample_shape){.input_count = 1,
                                       .inputs[0] = {.rank = 1, .dims = {96}},
                                       .target = {.rank = 1, .dims = {96}}};
    bench_model("mlp 96, 256, 256, 96, batch 32", &job, &shape, 32);
}

int main(int argc, char **argv)
{
    char *end = NULL;
    const unsigned long threads = argc > 1 ? strtoul(argv[1], &end, 10) : 1;
    if (argc > 2 || (end != NULL && *end != '\0') || threads == 0 || threads > 1024) {
        fprintf(stderr, "usage: model_steps [THREADS]\n");
        return 2;
    }
    bench_models((uint32_t)threads);
    return 0;
}
