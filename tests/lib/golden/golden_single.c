/* Fixtures of single operations, losses, metrics and optimizers, through the CPU device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/training/metrics.h"
#include "kernels/optimizer.h"
#include "tests/lib/golden/golden_single.h"
#include "worker/model/graph/graph.h"

/* "param", "gradients" [steps, n], "<optimizer>/step<k>", "<optimizer>/state<k>/<slot>" */
static void check_updates(struct kelp_golden_report *report, struct kelp_stream *stream,
                          const char *optimizer)
{
    (void)stream; /* optimizers run on the host */
    char prefix[KELP_GOLDEN_NAME_SIZE], name[KELP_GOLDEN_NAME_SIZE * 2];
    struct kelp_job job = {.seed = 0};
    kelp_golden_print(prefix, "%.120s/", optimizer);
    kelp_golden_case_begin(report, optimizer);
    if (!kelp_golden_optimizer(optimizer, &job)) {
        kelp_golden_fail(report, "no such optimizer");
        kelp_golden_case_end(report, "");
        return;
    }
    uint64_t count = 0, gradient_count = 0;
    float *weights = kelp_golden_floats(report->file, "param", &count);
    float *gradients = kelp_golden_floats(report->file, "gradients", &gradient_count);
    float *next = kelp_golden_allocate(count, sizeof(*next));
    float *slots[KELP_OPTIMIZER_SLOTS_MAX];
    for (uint32_t s = 0; s < KELP_OPTIMIZER_SLOTS_MAX; s++) {
        slots[s] = kelp_golden_allocate(count, sizeof(float));
        for (uint64_t i = 0; s < kelp_optimizer_slot_count(&job) && i < count; i++) {
            slots[s][i] = kelp_optimizer_slot_start(&job, s);
        }
    }
    for (uint32_t k = 1; count != 0 && k <= gradient_count / count; k++) {
        struct kelp_optimizer_step step;
        struct kelp_optimizer_buffers buffers = {
            .weights = weights, .gradient = gradients + (k - 1) * count, .weights_next = next};
        memcpy(buffers.slots, slots, sizeof(slots));
        kelp_optimizer_prepare(&step, &job, job.train.lr, k);
        (void)kelp_optimizer_apply(&step, &buffers, count);
        next = weights;
        weights = buffers.weights_next;
        (void)snprintf(name, sizeof(name), "%sstep%u", prefix, k);
        kelp_golden_check(report, name, weights, count, &kelp_golden_updates);
        for (uint32_t s = 0; s < kelp_optimizer_slot_count(&job); s++) {
            (void)snprintf(name, sizeof(name), "%sstate%u/%s", prefix, k,
                           kelp_optimizer_slot_name(&job, s));
            kelp_golden_check(report, name, slots[s], count, &kelp_golden_updates);
        }
        (void)snprintf(name, sizeof(name), "%sstate%u/step", prefix, k);
        kelp_golden_check_scalar(report, name, k);
    }
    for (uint32_t s = 0; s < KELP_OPTIMIZER_SLOTS_MAX; s++) {
        free(slots[s]);
    }
    free(next);
    free(gradients);
    free(weights);
    kelp_golden_case_end(report, "");
}

/* `samples` samples of two tensors of equal size. */
struct pair {
    float *output, *target;
    uint64_t count;
    uint32_t samples;
};

static bool pair_read(struct pair *pair, const struct kelp_golden_file *file, const char *output,
                      const char *target)
{
    uint64_t target_count = 0;
    const struct kelp_safetensors_tensor *tensor = kelp_safetensors_find(file->tensors, output);
    *pair = (struct pair){.count = 0};
    pair->output = kelp_golden_floats(file, output, &pair->count);
    pair->target = kelp_golden_floats(file, target, &target_count);
    if (pair->output == NULL || pair->target == NULL || pair->count != target_count ||
        pair->count == 0) {
        return false;
    }
    pair->samples = tensor->rank > 0 ? (uint32_t)tensor->shape[0] : 1;
    return true;
}

static void pair_fini(struct pair *pair)
{
    free(pair->output);
    free(pair->target);
}

/* Sums of a graph that returns its input. */
static bool sum_forecast(struct kelp_golden_report *report, struct kelp_stream *stream,
                         const struct pair *pair, double sums[KELP_METRIC_SUM_COUNT])
{
    const uint64_t width = pair->count / pair->samples;
    const struct kelp_shape shape = {.rank = 1, .dims = {width}};
    const struct kelp_shape square = {.rank = 2, .dims = {width, width}};
    const struct kelp_graph_loss loss = {.kind = KELP_LOSS_MSE};
    struct kelp_error error = {KELP_OK, ""};
    float *identity = kelp_golden_allocate(width * width, sizeof(*identity));
    for (uint64_t i = 0; i < width; i++) {
        identity[i * width + i] = 1.0f;
    }
    struct kelp_graph *graph = kelp_graph_create(stream, pair->samples);
    const uint32_t x = kelp_graph_input(graph, "forecast", &shape);
    const uint32_t weight = kelp_graph_parameter(graph, "identity", &square,
                                                 (struct kelp_graph_init){KELP_INIT_UNIFORM, 1.0f});
    const uint32_t y = kelp_graph_linear(graph, "output", x, weight, KELP_GRAPH_NO_BIAS);
    const struct kelp_graph_run run = {.mode = KELP_GRAPH_EVALUATE,
                                       .input = pair->output,
                                       .target = pair->target,
                                       .count = pair->samples,
                                       .sums = sums};
    kelp_status status = kelp_graph_finish(graph, y, &shape, &loss, &error);
    if (status == KELP_OK) {
        kelp_graph_bind(graph, 0, identity, NULL);
        status = kelp_graph_run(graph, &run, &error);
    }
    if (status != KELP_OK) {
        kelp_golden_fail(report, error.text);
    }
    kelp_graph_destroy(graph);
    free(identity);
    return status == KELP_OK;
}

/* "<prefix>pred", "<prefix>true", and each metric of them in the file. */
static void check_forecast(struct kelp_golden_report *report, struct kelp_stream *stream,
                           const char *prefix)
{
    char output[KELP_GOLDEN_NAME_SIZE], name[KELP_GOLDEN_NAME_SIZE];
    struct pair pair;
    double sums[KELP_METRIC_SUM_COUNT];
    struct kelp_metrics metrics = {.present = 0};
    kelp_golden_print(output, "%.120spred", prefix);
    kelp_golden_print(name, "%.120strue", prefix);
    kelp_golden_case_begin(report, output);
    if (!pair_read(&pair, report->file, output, name)) {
        kelp_golden_fail(report, "the forecast and what came are not of one size");
    } else if (sum_forecast(report, stream, &pair, sums)) {
        kelp_metrics_of_sums(sums, KELP_LOSS_MSE, &metrics);
    }
    pair_fini(&pair);
    for (enum kelp_metric i = 0; i < KELP_METRIC_COUNT; i++) {
        if (kelp_metrics_have(&metrics, i)) {
            kelp_golden_print(name, "%.120s%s", prefix, kelp_metric_name(i));
            kelp_golden_check_scalar(report, name, metrics.of[i]);
        }
    }
    kelp_golden_case_end(report, "");
}

static void check_forecast_case(struct kelp_golden_report *report, struct kelp_stream *stream,
                                const char *case_name)
{
    char prefix[KELP_GOLDEN_NAME_SIZE];
    kelp_golden_print(prefix, "%.120s/", case_name);
    check_forecast(report, stream, prefix);
}

/* "input", "trend", "seasonal" [n, time, channels], with the width in the model's text. */
static void check_decomposition(struct kelp_golden_report *report, struct kelp_stream *stream)
{
    uint32_t kernel_size = 0;
    uint64_t count = 0;
    const struct kelp_safetensors_tensor *shape =
        kelp_safetensors_find(report->file->tensors, "input");
    kelp_golden_case_begin(report, "moving average");
    float *input = kelp_golden_floats(report->file, "input", &count);
    if (input == NULL || shape->rank != 3 || count == 0 ||
        !kelp_golden_number(report->file->model, "kernel ", &kernel_size)) {
        kelp_golden_fail(report, "no input [n, time, channels], or no width in the metadata");
        free(input);
        kelp_golden_case_end(report, "");
        return;
    }
    const uint32_t batch = (uint32_t)shape->shape[0], length = (uint32_t)shape->shape[1];
    const uint32_t channels = (uint32_t)shape->shape[2];
    float *by_channel = kelp_golden_allocate(count, sizeof(float)),
          *trend = kelp_golden_allocate(count, sizeof(float));
    float *result = kelp_golden_allocate(count, sizeof(float));
    float *workspace = kelp_golden_allocate(kelp_moving_average_workspace(length, kernel_size),
                                            sizeof(*workspace));
    const struct kelp_transpose to_channels = {
        .x = input, .y = by_channel, .batch = batch, .rows = length, .columns = channels};
    const struct kelp_moving_average average = {.x = by_channel,
                                                .y = trend,
                                                .rows = batch * channels,
                                                .length = length,
                                                .kernel_size = kernel_size,
                                                .workspace = workspace};
    const struct kelp_transpose to_time = {
        .x = trend, .y = result, .batch = batch, .rows = channels, .columns = length};
    stream->table->transpose(stream, &to_channels);
    stream->table->moving_average(stream, &average);
    stream->table->transpose(stream, &to_time);
    kelp_golden_check(report, "trend", result, count, &kelp_golden_values);
    stream->table->subtract(stream, result, input, result, count);
    kelp_golden_check(report, "seasonal", result, count, &kelp_golden_values);
    free(workspace);
    free(result);
    free(trend);
    free(by_channel);
    free(input);
    kelp_golden_case_end(report, "");
}

/* Each case of the file, one after the other. */
static void check_cases(struct kelp_golden_report *report, struct kelp_stream *stream,
                        void (*check_case)(struct kelp_golden_report *report,
                                           struct kelp_stream *stream, const char *case_name))
{
    char cases[KELP_GOLDEN_CASES_MAX][KELP_GOLDEN_NAME_SIZE];
    const uint32_t count = kelp_golden_cases(report->file, "", cases);
    for (uint32_t c = 0; c < count; c++) {
        check_case(report, stream, cases[c]);
    }
}

static void check_clip(struct kelp_golden_report *report, struct kelp_stream *stream,
                       const char *case_name)
{
    (void)stream; /* updates run on the host */
    kelp_golden_check_clip(report, case_name);
}

bool kelp_golden_check_single(struct kelp_golden_report *report, struct kelp_stream *stream)
{
    const struct kelp_golden_file *file = report->file;
    if (kelp_golden_has(file, "param") && kelp_golden_has(file, "gradients")) {
        check_cases(report, stream, check_updates);
    } else if (kelp_golden_has(file, "input") && kelp_golden_has(file, "trend") &&
               kelp_golden_has(file, "seasonal")) {
        check_decomposition(report, stream);
    } else if (kelp_golden_has(file, "total_norm")) {
        check_cases(report, stream, check_clip);
    } else if (kelp_golden_has(file, "pred") && kelp_golden_has(file, "true")) {
        check_forecast(report, stream, "");
        check_cases(report, stream, check_forecast_case);
    } else if (kelp_golden_has(file, "input/0")) {
        return false;
    } else if (strstr(file->model, "loss") != NULL) {
        check_cases(report, stream, kelp_golden_check_loss);
    } else if (strstr(file->model, "single operations") != NULL) {
        check_cases(report, stream, kelp_golden_check_operation);
    } else {
        return false;
    }
    return true;
}
