/* Fixtures of losses: "<case>/input", "target", "loss", "grad_input". */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/golden/golden_single.h"

/* The function between the model's output and the loss, for losses that do not take raw outputs. */
enum front { FRONT_NONE, FRONT_SIGMOID, FRONT_LOG_SOFTMAX };

static const struct loss_name {
    const char *prefix; /* of the case's name; longer ones first */
    enum kelp_loss_kind kind;
    enum front front;
} loss_names[] = {
    {"bce_with_logits", KELP_LOSS_BCE_WITH_LOGITS, FRONT_NONE},
    {"bce_on_sigmoid", KELP_LOSS_BCE, FRONT_SIGMOID},
    {"cross_entropy", KELP_LOSS_CROSS_ENTROPY, FRONT_NONE},
    {"nll_on_log_softmax", KELP_LOSS_NLL, FRONT_LOG_SOFTMAX},
    {"mse", KELP_LOSS_MSE, FRONT_NONE},
    {"l1", KELP_LOSS_MAE, FRONT_NONE},
    {"smooth_l1", KELP_LOSS_SMOOTH_L1, FRONT_NONE},
    {"huber", KELP_LOSS_HUBER, FRONT_NONE},
    {"quantile", KELP_LOSS_QUANTILE, FRONT_NONE},
};

static const struct loss_name *find_loss(const char *case_name)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(loss_names); i++) {
        if (strncmp(case_name, loss_names[i].prefix, strlen(loss_names[i].prefix)) == 0) {
            return &loss_names[i];
        }
    }
    return NULL;
}

/* Read ".1_.5_.9" after the loss's name. */
static uint32_t read_quantiles(const char *case_name, double *quantiles, uint32_t most)
{
    uint32_t count = 0;
    for (const char *at = strchr(case_name, '_'); at != NULL && count < most;
         at = strchr(at + 1, '_')) {
        quantiles[count++] = strtod(at + 1, NULL);
    }
    return count;
}

/* One case in memory; it owns the criterion's arrays. */
struct loss_case {
    struct kelp_criterion criterion;
    double quantiles[8];
    float *input, *output, *target, *gradient, *workspace;
    float scale;
    double *sums;
    uint64_t count;
};

static bool loss_case_read(struct loss_case *loss, const struct kelp_golden_file *file,
                           const char *case_name, const struct loss_name *known)
{
    char name[KELP_GOLDEN_NAME_SIZE];
    uint64_t target_count = 0;
    kelp_golden_print(name, "%.120s/input", case_name);
    const struct kelp_safetensors_tensor *tensor = kelp_safetensors_find(file->tensors, name);
    loss->input = kelp_golden_floats(file, name, &loss->count);
    kelp_golden_print(name, "%.120s/target", case_name);
    loss->target = kelp_golden_floats(file, name, &target_count);
    if (loss->input == NULL || loss->target == NULL || loss->count == 0 || tensor->rank == 0) {
        return false;
    }
    const uint32_t samples = (uint32_t)tensor->shape[0];
    loss->output = kelp_golden_allocate(loss->count, sizeof(float));
    loss->gradient = kelp_golden_allocate(loss->count, sizeof(float));
    loss->workspace = kelp_golden_allocate(loss->count, sizeof(float));
    loss->sums = kelp_golden_allocate((uint64_t)samples * KELP_LOSS_SUMS, sizeof(double));
    memcpy(loss->output, loss->input, loss->count * sizeof(float));
    loss->criterion = (struct kelp_criterion){
        .kind = known->kind,
        .output = loss->output,
        .target = loss->target,
        .samples = samples,
        .elements = loss->count / samples,
        .target_elements = target_count / samples,
        .beta = kelp_golden_real(case_name, "_beta", kelp_golden_real(case_name, "_delta", 1.0)),
        .label_smoothing = kelp_golden_real(case_name, "_smoothing", 0.0),
        .quantiles = loss->quantiles,
        .quantile_count =
            known->kind == KELP_LOSS_QUANTILE
                ? read_quantiles(case_name, loss->quantiles, KELP_ARRAY_COUNT(loss->quantiles))
                : 0,
        .gradient_scale = &loss->scale,
        .gradient = loss->gradient,
        .sums = loss->sums,
        .workspace = loss->workspace,
    };
    return true;
}

static void loss_case_fini(struct loss_case *loss)
{
    free(loss->input);
    free(loss->output);
    free(loss->target);
    free(loss->gradient);
    free(loss->workspace);
    free(loss->sums);
}

static void run_loss(struct kelp_stream *stream, const struct loss_case *loss, enum front front)
{
    struct kelp_softmax softmax = {.x = loss->input,
                                   .y = loss->output,
                                   .rows = loss->criterion.samples,
                                   .columns = (uint32_t)loss->criterion.elements,
                                   .logarithm = true,
                                   .dy = loss->gradient,
                                   .dx = loss->gradient};
    const struct kelp_unary sigmoid = {
        .kind = KELP_UNARY_SIGMOID, .x = loss->input, .y = loss->output, .count = loss->count};
    const struct kelp_unary_gradient sigmoid_gradient = {.kind = KELP_UNARY_SIGMOID,
                                                         .y = loss->output,
                                                         .dy = loss->gradient,
                                                         .dx = loss->gradient,
                                                         .count = loss->count};
    if (front == FRONT_LOG_SOFTMAX) {
        stream->table->softmax(stream, &softmax);
    } else if (front == FRONT_SIGMOID) {
        stream->table->unary(stream, &sigmoid);
    }
    stream->table->criterion(stream, &loss->criterion);
    if (front == FRONT_LOG_SOFTMAX) {
        stream->table->softmax_gradient(stream, &softmax);
    } else if (front == FRONT_SIGMOID) {
        stream->table->unary_gradient(stream, &sigmoid_gradient);
    }
}

void kelp_golden_check_loss(struct kelp_golden_report *report, struct kelp_stream *stream,
                            const char *case_name)
{
    char name[KELP_GOLDEN_NAME_SIZE];
    struct loss_case loss = {.count = 0};
    const struct loss_name *known = find_loss(case_name);
    kelp_golden_case_begin(report, case_name);
    if (known == NULL) {
        kelp_golden_fail(report, "no such loss");
        kelp_golden_case_end(report, "");
        return;
    }
    if (loss_case_read(&loss, report->file, case_name, known)) {
        const bool sum = strstr(case_name, "_sum") != NULL;
        const double samples = loss.criterion.samples;
        /* A mean over everything, or the sum. */
        const double factor = sum ? (double)loss.criterion.elements : 1.0 / samples;
        double total = 0.0;
        loss.scale = (float)factor;
        run_loss(stream, &loss, known->front);
        for (uint32_t s = 0; s < loss.criterion.samples; s++) {
            total += loss.sums[s * (uint32_t)KELP_LOSS_SUMS + KELP_LOSS_SUM_LOSS];
        }
        kelp_golden_print(name, "%.120s/loss", case_name);
        kelp_golden_check_scalar(report, name, total * factor);
        kelp_golden_print(name, "%.120s/grad_input", case_name);
        kelp_golden_check(report, name, loss.gradient, loss.count, &kelp_golden_values);
    } else {
        kelp_golden_fail(report, "no input [samples, ...] and target");
    }
    if (stream->table->wait(stream, NULL) != KELP_OK) {
        kelp_golden_fail(report, "the stream has failed");
    }
    loss_case_fini(&loss);
    kelp_golden_case_end(report, "");
}
