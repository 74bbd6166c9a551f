/*
 * The reference fixtures through the operators, models and optimizers of this process. Every
 * *.safetensors of the folder is looked at; what it holds is decided by metadata, names and shapes.
 * Prints one line per case: checks that passed and that were skipped, because Kelp has no such
 * thing yet. Fails when a check fails or nothing at all could be checked; 77 without the folder.
 */
#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/plan.h"
#include "kernels/device.h"
#include "kernels/optimizer.h"
#include "tests/lib/golden.h"
#include "worker/model.h"

struct report {
    const struct kelp_golden_file *file;
    const char *case_name;
    uint32_t passed, skipped, failed;
    uint32_t total_passed, total_skipped, total_failed;
    uint32_t files_checked;
};

static void case_begin(struct report *report, const char *case_name)
{
    report->case_name = case_name;
    report->passed = report->skipped = report->failed = 0;
}

static void case_end(struct report *report, const char *note)
{
    if (report->passed + report->skipped + report->failed == 0) {
        return;
    }
    printf("%-32s %-38s %4u passed %4u skipped%s%s\n", report->file->name, report->case_name,
           report->passed, report->skipped, note[0] != '\0' ? "  " : "", note);
    report->total_passed += report->passed;
    report->total_skipped += report->skipped;
    report->total_failed += report->failed;
}

static void fail_case(struct report *report, const char *text)
{
    printf("FAILED %s, %s: %s\n", report->file->name, report->case_name, text);
    report->failed++;
}

/* Compare with the named tensor; one that is not in the file is no check. */
static void check(struct report *report, const char *name, const float *values, uint64_t count,
                  const struct kelp_golden_tolerance *tolerance)
{
    char text[KELP_GOLDEN_TEXT_SIZE];
    switch (kelp_golden_compare(report->file, name, values, count, tolerance, text)) {
    case KELP_GOLDEN_EQUAL:
        report->passed++;
        break;
    case KELP_GOLDEN_ABSENT:
        break;
    case KELP_GOLDEN_DIFFERS:
        fail_case(report, text);
        break;
    }
}

static void check_scalar(struct report *report, const char *name, double value)
{
    const float single = (float)value;
    check(report, name, &single, 1, &kelp_golden_values);
}

static void *allocate(uint64_t count, size_t elem_bytes)
{
    void *memory = calloc((size_t)count + 1, elem_bytes);
    if (memory == NULL) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

KELP_PRINTF(2, 3) static void print_to(char name[KELP_GOLDEN_NAME_SIZE], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(name, KELP_GOLDEN_NAME_SIZE, format, args);
    va_end(args);
}

/* ---- models ---------------------------------------------------------------------------------- */

/* A model with its flat vectors. */
struct trainer {
    struct kelp_golden_model golden;
    struct kelp_model *model;
    struct kelp_plan plan;
    float *input, *target, *output;
    float *initial, *weights, *weights_next, *gradient;
    float *slots[KELP_OPTIMIZER_SLOTS_MAX];
};

static bool trainer_plan(struct trainer *trainer, const struct kelp_golden_file *file,
                         struct kelp_error *error)
{
    const struct kelp_tensor *tensors =
        kelp_model_tensors(trainer->model, &trainer->plan.tensor_count);
    trainer->plan.tensors = allocate(trainer->plan.tensor_count, sizeof(*tensors));
    memcpy(trainer->plan.tensors, tensors, trainer->plan.tensor_count * sizeof(*tensors));
    if (kelp_plan_lay_out(&trainer->plan, 4, error) != KELP_OK) {
        return false;
    }
    trainer->initial = allocate(trainer->plan.flat_count, sizeof(float));
    for (uint32_t i = 0; i < trainer->plan.tensor_count; i++) {
        const struct kelp_tensor *tensor = &trainer->plan.tensors[i];
        if (!kelp_golden_parameter(file, tensor->name, i, tensor->shape, tensor->rank,
                                   trainer->initial + tensor->offset, tensor->elem_count)) {
            (void)kelp_fail(error, KELP_ERR_NOT_FOUND, "no initial values of %s", tensor->name);
            return false;
        }
    }
    return true;
}

static bool trainer_init(struct trainer *trainer, const struct kelp_golden_file *file,
                         struct kelp_error *error)
{
    const struct kelp_golden_model *golden = &trainer->golden;
    uint64_t count;
    if (kelp_model_create(&golden->job, &golden->shape, golden->samples, &trainer->model, error) !=
            KELP_OK ||
        !trainer_plan(trainer, file, error)) {
        return false;
    }
    trainer->input = kelp_golden_floats(file, "input/0", &count);
    trainer->target = kelp_golden_floats(file, "target", &count);
    assert(trainer->input != NULL && trainer->target != NULL);
    trainer->output = allocate(kelp_sample_target_count(&golden->shape) * golden->samples,
                               sizeof(*trainer->output));
    const uint64_t flat_count = trainer->plan.flat_count;
    trainer->weights = allocate(flat_count, sizeof(float));
    trainer->weights_next = allocate(flat_count, sizeof(float));
    trainer->gradient = allocate(flat_count, sizeof(float));
    for (uint32_t s = 0; s < KELP_OPTIMIZER_SLOTS_MAX; s++) {
        trainer->slots[s] = allocate(flat_count, sizeof(float));
    }
    return true;
}

static void trainer_fini(struct trainer *trainer)
{
    kelp_model_destroy(trainer->model);
    kelp_plan_fini(&trainer->plan);
    float *buffers[] = {trainer->input,   trainer->target,       trainer->output,  trainer->initial,
                        trainer->weights, trainer->weights_next, trainer->gradient};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(buffers); i++) {
        free(buffers[i]);
    }
    for (uint32_t s = 0; s < KELP_OPTIMIZER_SLOTS_MAX; s++) {
        free(trainer->slots[s]);
    }
}

/* Initial weights, slots zero. */
static void trainer_reset(struct trainer *trainer)
{
    const size_t bytes = (size_t)trainer->plan.flat_count * sizeof(float);
    memcpy(trainer->weights, trainer->initial, bytes);
    for (uint32_t s = 0; s < KELP_OPTIMIZER_SLOTS_MAX; s++) {
        memset(trainer->slots[s], 0, bytes);
    }
}

/* The gradient of samples [first, first + count) over batch_total, and their mean loss. */
static double trainer_gradient(struct trainer *trainer, uint32_t first, uint32_t count,
                               double batch_total, float *gradient)
{
    const struct kelp_sample_shape *shape = &trainer->golden.shape;
    double sums[KELP_METRIC_COUNT];
    struct kelp_error error = {KELP_OK, ""};
    kelp_model_bind(trainer->model, &trainer->plan, trainer->weights, gradient);
    if (kelp_model_train(trainer->model, trainer->input + first * kelp_sample_input_count(shape),
                         trainer->target + first * kelp_sample_target_count(shape), count,
                         batch_total, sums, &error) != KELP_OK) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    return sums[KELP_METRIC_LOSS] / sums[KELP_METRIC_SAMPLES];
}

static void trainer_update(struct trainer *trainer, const struct kelp_job *job,
                           uint32_t step_number)
{
    struct kelp_optimizer_step step;
    struct kelp_optimizer_buffers buffers = {.weights = trainer->weights,
                                             .gradient = trainer->gradient,
                                             .weights_next = trainer->weights_next};
    memcpy(buffers.slots, trainer->slots, sizeof(buffers.slots));
    kelp_optimizer_prepare(&step, job, job->train.lr, step_number);
    (void)kelp_optimizer_apply(&step, &buffers, trainer->plan.flat_count);
    trainer->weights = buffers.weights_next;
    trainer->weights_next = (float *)(uintptr_t)buffers.weights;
}

/* Each parameter's part of a flat vector against "<prefix><name>". */
static void check_flat(struct report *report, const struct trainer *trainer, const char *prefix,
                       const float *flat, const struct kelp_golden_tolerance *tolerance)
{
    for (uint32_t i = 0; i < trainer->plan.tensor_count; i++) {
        const struct kelp_tensor *tensor = &trainer->plan.tensors[i];
        char name[KELP_GOLDEN_NAME_SIZE];
        print_to(name, "%s%s", prefix, tensor->name);
        check(report, name, flat + tensor->offset, tensor->elem_count, tolerance);
    }
}

static void check_forward(struct report *report, struct trainer *trainer)
{
    const uint32_t samples = trainer->golden.samples;
    const uint64_t count = kelp_sample_target_count(&trainer->golden.shape) * samples;
    trainer_reset(trainer);
    case_begin(report, "forward");
    kelp_model_bind(trainer->model, &trainer->plan, trainer->weights, NULL);
    struct kelp_error error = {KELP_OK, ""};
    if (kelp_model_forward(trainer->model, trainer->input, samples, trainer->output, &error) !=
        KELP_OK) {
        fail_case(report, error.text);
    }
    check(report, "output", trainer->output, count, &kelp_golden_values);
    check(report, "output_eval_after_one_train_forward", trainer->output, count,
          &kelp_golden_values);
    case_end(report, "");

    case_begin(report, "loss and gradients");
    check_scalar(report, "loss", trainer_gradient(trainer, 0, samples, samples, trainer->gradient));
    check_flat(report, trainer, "grad/", trainer->gradient, &kelp_golden_gradients);
    case_end(report, "");
}

/* The largest k of "<prefix><case>/step<k>/" in the file. */
static uint32_t last_step(const struct kelp_golden_file *file, const char *prefix)
{
    uint32_t last = 0;
    for (size_t i = 0; i < kelp_safetensors_count(file->tensors); i++) {
        const char *name = kelp_safetensors_at(file->tensors, i)->name;
        uint32_t step = 0;
        if (strncmp(name, prefix, strlen(prefix)) == 0 &&
            strncmp(name + strlen(prefix), "step", strlen("step")) == 0 &&
            kelp_golden_number(name + strlen(prefix), "step", &step) && step > last) {
            last = step;
        }
    }
    return last;
}

/* How many tensors of the file begin with prefix: what skipping a case leaves out. */
static uint32_t count_tensors(const struct kelp_golden_file *file, const char *prefix)
{
    uint32_t count = 0;
    for (size_t i = 0; i < kelp_safetensors_count(file->tensors); i++) {
        const char *name = kelp_safetensors_at(file->tensors, i)->name;
        count += strncmp(name, prefix, strlen(prefix)) == 0 ? 1 : 0;
    }
    return count;
}

static void check_optimizer(struct report *report, struct trainer *trainer, const char *optimizer)
{
    char prefix[KELP_GOLDEN_NAME_SIZE], name[KELP_GOLDEN_NAME_SIZE * 2];
    print_to(prefix, "opt/%.120s/", optimizer);
    struct kelp_job job = trainer->golden.job;
    case_begin(report, optimizer);
    if (!kelp_golden_optimizer(optimizer, &job)) {
        report->skipped = count_tensors(report->file, prefix);
        case_end(report, "no such optimizer yet");
        return;
    }
    const uint32_t samples = trainer->golden.samples, steps = last_step(report->file, prefix);
    float *losses = allocate(steps, sizeof(*losses));
    trainer_reset(trainer);
    for (uint32_t k = 1; k <= steps; k++) {
        losses[k - 1] = (float)trainer_gradient(trainer, 0, samples, samples, trainer->gradient);
        trainer_update(trainer, &job, k);
        (void)snprintf(name, sizeof(name), "%sstep%u/param/", prefix, k);
        const struct kelp_golden_tolerance tolerance = kelp_golden_after_steps(&job, k);
        check_flat(report, trainer, name, trainer->weights, &tolerance);
    }
    (void)snprintf(name, sizeof(name), "%slosses", prefix);
    const struct kelp_golden_tolerance tolerance = kelp_golden_losses(steps);
    check(report, name, losses, steps, &tolerance);
    free(losses);
    case_end(report, "");
}

/* "shard0/...": the gradient of each shard of the batch, their mean, and a step with it. */
static void check_shards(struct report *report, struct trainer *trainer)
{
    const char *rows_text = kelp_safetensors_metadata(report->file->tensors, "shard_rows");
    if (rows_text == NULL) {
        return;
    }
    case_begin(report, "shards and their mean");
    uint32_t rows[KELP_GOLDEN_CASES_MAX], shard_count = 0, total = 0;
    for (const char *at = rows_text; shard_count < KELP_GOLDEN_CASES_MAX && *at != '\0';) {
        char *end = NULL;
        rows[shard_count] = (uint32_t)strtoul(at, &end, 10);
        total += rows[shard_count++];
        at = *end == ',' ? end + 1 : "";
    }
    if (total > trainer->golden.samples) {
        fail_case(report, "shard_rows has more rows than the input");
        case_end(report, "");
        return;
    }
    float *mean = allocate(trainer->plan.flat_count, sizeof(*mean));
    char name[KELP_GOLDEN_NAME_SIZE];
    trainer_reset(trainer);
    for (uint32_t s = 0, first = 0; s < shard_count; first += rows[s++]) {
        const double loss = trainer_gradient(trainer, first, rows[s], rows[s], trainer->gradient);
        print_to(name, "shard%u/loss", s);
        check_scalar(report, name, loss);
        print_to(name, "shard%u/grad/", s);
        check_flat(report, trainer, name, trainer->gradient, &kelp_golden_gradients);
        (void)trainer_gradient(trainer, first, rows[s], (double)rows[s] * shard_count,
                               trainer->gradient);
        kelp_vector_add(mean, trainer->gradient, trainer->plan.flat_count);
    }
    check_flat(report, trainer, "ddp_mean_grad/", mean, &kelp_golden_gradients);
    memcpy(trainer->gradient, mean, (size_t)trainer->plan.flat_count * sizeof(*mean));
    free(mean);
    case_end(report, "");

    char cases[KELP_GOLDEN_CASES_MAX][KELP_GOLDEN_NAME_SIZE];
    const uint32_t case_count = kelp_golden_cases(report->file, "ddp_", cases);
    for (uint32_t c = 0; c < case_count; c++) {
        struct kelp_job job = trainer->golden.job;
        char *step = strstr(cases[c], "_step1");
        if (step == NULL || strcmp(step, "_step1") != 0) {
            continue;
        }
        print_to(name, "ddp_%.140s/", cases[c]);
        case_begin(report, "one step with the mean");
        *step = '\0';
        if (kelp_golden_optimizer(cases[c], &job)) {
            trainer_reset(trainer);
            trainer_update(trainer, &job, 1);
            const struct kelp_golden_tolerance tolerance = kelp_golden_after_steps(&job, 1);
            check_flat(report, trainer, name, trainer->weights, &tolerance);
        } else {
            report->skipped = count_tensors(report->file, name);
        }
        case_end(report, "");
    }
}

static void check_model(struct report *report, const struct kelp_golden_model *golden)
{
    struct trainer trainer = {.golden = *golden};
    struct kelp_error error = {KELP_OK, ""};
    if (trainer_init(&trainer, report->file, &error)) {
        char cases[KELP_GOLDEN_CASES_MAX][KELP_GOLDEN_NAME_SIZE];
        check_forward(report, &trainer);
        const uint32_t count = kelp_golden_cases(report->file, "opt/", cases);
        for (uint32_t c = 0; c < count; c++) {
            check_optimizer(report, &trainer, cases[c]);
        }
        check_shards(report, &trainer);
    } else {
        case_begin(report, "model");
        if (error.status == KELP_ERR_NOT_FOUND) { /* nothing to start from */
            report->skipped = (uint32_t)kelp_safetensors_count(report->file->tensors);
        } else {
            fail_case(report, error.text);
        }
        case_end(report, error.text);
    }
    trainer_fini(&trainer);
}

/* ---- single operators and optimizers ----------------------------------------------------------
 */

static bool has(const struct kelp_golden_file *file, const char *name)
{
    return kelp_safetensors_find(file->tensors, name) != NULL;
}

/* "param", "gradients" [steps, n], "<optimizer>/step<k>", "<optimizer>/state<k>/<slot>" */
static void check_updates(struct report *report, const char *optimizer)
{
    char prefix[KELP_GOLDEN_NAME_SIZE], name[KELP_GOLDEN_NAME_SIZE * 2];
    struct kelp_job job = {.seed = 0};
    print_to(prefix, "%.120s/", optimizer);
    case_begin(report, optimizer);
    if (!kelp_golden_optimizer(optimizer, &job)) {
        report->skipped = count_tensors(report->file, prefix);
        case_end(report, "no such optimizer yet");
        return;
    }
    uint64_t count = 0, gradient_count = 0;
    float *weights = kelp_golden_floats(report->file, "param", &count);
    float *gradients = kelp_golden_floats(report->file, "gradients", &gradient_count);
    float *next = allocate(count, sizeof(*next));
    float *slots[KELP_OPTIMIZER_SLOTS_MAX];
    for (uint32_t s = 0; s < KELP_OPTIMIZER_SLOTS_MAX; s++) {
        slots[s] = allocate(count, sizeof(float));
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
        check(report, name, weights, count, &kelp_golden_updates);
        for (uint32_t s = 0; s < kelp_optimizer_slot_count(&job); s++) {
            (void)snprintf(name, sizeof(name), "%sstate%u/%s", prefix, k,
                           kelp_optimizer_slot_name(&job, s));
            check(report, name, slots[s], count, &kelp_golden_updates);
        }
    }
    for (uint32_t s = 0; s < KELP_OPTIMIZER_SLOTS_MAX; s++) {
        free(slots[s]);
    }
    free(next);
    free(gradients);
    free(weights);
    case_end(report, "");
}

/* `samples` samples of two tensors that are equally large, for the loss operator. */
struct pair {
    float *output, *target, *gradient;
    double *sums;
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
    pair->gradient = allocate(pair->count, sizeof(*pair->gradient));
    pair->sums = allocate(2ull * pair->samples, sizeof(*pair->sums));
    return true;
}

static void pair_fini(struct pair *pair)
{
    free(pair->output);
    free(pair->target);
    free(pair->gradient);
    free(pair->sums);
}

/* Sum of squared or absolute differences over everything; fills the gradient. */
static double pair_loss(struct kelp_stream *stream, struct pair *pair, bool absolute, float scale)
{
    const struct kelp_loss loss = {.output = pair->output,
                                   .target = pair->target,
                                   .samples = pair->samples,
                                   .elements = pair->count / pair->samples,
                                   .absolute = absolute,
                                   .gradient_scale = &scale,
                                   .gradient = pair->gradient,
                                   .sums = pair->sums};
    stream->table->loss(stream, &loss);
    double sum = 0.0;
    for (uint32_t s = 0; s < pair->samples; s++) {
        sum += pair->sums[2 * s + (absolute ? 1 : 0)];
    }
    return sum;
}

static void check_loss(struct report *report, struct kelp_stream *stream, const char *case_name)
{
    static const struct {
        const char *name;
        bool absolute, mean;
    } known[] = {{"mse_mean", false, true},
                 {"mse_sum", false, false},
                 {"l1_mean", true, true},
                 {"l1_sum", true, false}};
    char name[KELP_GOLDEN_NAME_SIZE], target[KELP_GOLDEN_NAME_SIZE];
    case_begin(report, case_name);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(known); i++) {
        struct pair pair;
        if (strcmp(case_name, known[i].name) != 0) {
            continue;
        }
        print_to(name, "%.120s/input", case_name);
        print_to(target, "%.120s/target", case_name);
        if (pair_read(&pair, report->file, name, target)) {
            const double divisor = known[i].mean ? (double)pair.count : 1.0;
            const double scale = (known[i].absolute ? 1.0 : 2.0) / divisor;
            print_to(name, "%.120s/loss", case_name);
            check_scalar(report, name,
                         pair_loss(stream, &pair, known[i].absolute, (float)scale) / divisor);
            print_to(name, "%.120s/grad_input", case_name);
            check(report, name, pair.gradient, pair.count, &kelp_golden_values);
        }
        pair_fini(&pair);
    }
    if (report->passed + report->failed == 0) {
        print_to(name, "%.120s/", case_name);
        report->skipped = count_tensors(report->file, name);
    }
    case_end(report, report->skipped != 0 ? "no such loss yet" : "");
}

static void check_metrics(struct report *report, struct kelp_stream *stream)
{
    static const char *const others[] = {"rmse", "mape", "mspe", "rse"};
    struct pair pair;
    case_begin(report, "mse and mae");
    if (pair_read(&pair, report->file, "pred", "true")) {
        const double count = (double)pair.count;
        check_scalar(report, "mse", pair_loss(stream, &pair, false, 0.0f) / count);
        check_scalar(report, "mae", pair_loss(stream, &pair, true, 0.0f) / count);
    }
    pair_fini(&pair);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(others); i++) {
        report->skipped += has(report->file, others[i]) ? 1 : 0;
    }
    case_end(report, "");
}

/* "input", "trend", "seasonal" [n, time, channels], with the width in the model's text. */
static void check_decomposition(struct report *report, struct kelp_stream *stream)
{
    uint32_t kernel_size = 0;
    uint64_t count = 0;
    const struct kelp_safetensors_tensor *shape =
        kelp_safetensors_find(report->file->tensors, "input");
    case_begin(report, "moving average");
    float *input = kelp_golden_floats(report->file, "input", &count);
    if (input == NULL || shape->rank != 3 || count == 0 ||
        !kelp_golden_number(report->file->model, "kernel ", &kernel_size)) {
        fail_case(report, "no input [n, time, channels], or no width in the metadata");
        free(input);
        case_end(report, "");
        return;
    }
    const uint32_t batch = (uint32_t)shape->shape[0], length = (uint32_t)shape->shape[1];
    const uint32_t channels = (uint32_t)shape->shape[2];
    float *by_channel = allocate(count, sizeof(float)), *trend = allocate(count, sizeof(float));
    float *result = allocate(count, sizeof(float));
    float *workspace =
        allocate(kelp_moving_average_workspace(length, kernel_size), sizeof(*workspace));
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
    check(report, "trend", result, count, &kelp_golden_values);
    stream->table->subtract(stream, result, input, result, count);
    check(report, "seasonal", result, count, &kelp_golden_values);
    free(workspace);
    free(result);
    free(trend);
    free(by_channel);
    free(input);
    case_end(report, "");
}

/* The tensors of one case of single operations, those of an operand missing where it has none. */
struct operation {
    float *input[3], *output, *grad_output;
    uint64_t input_count[3], output_count;
};

static bool operation_read(struct operation *operation, const struct kelp_golden_file *file,
                           const char *case_name, uint32_t inputs)
{
    char name[KELP_GOLDEN_NAME_SIZE];
    uint64_t count = 0;
    *operation = (struct operation){.output_count = 0};
    for (uint32_t i = 0; i < inputs; i++) {
        print_to(name, "%.120s/input/%u", case_name, i);
        operation->input[i] = kelp_golden_floats(file, name, &operation->input_count[i]);
        if (operation->input[i] == NULL) {
            return false;
        }
    }
    print_to(name, "%.120s/grad_output", case_name);
    operation->grad_output = kelp_golden_floats(file, name, &count);
    print_to(name, "%.120s/output", case_name);
    operation->output = kelp_golden_floats(file, name, &operation->output_count);
    return operation->output != NULL && operation->grad_output != NULL &&
           operation->output_count == count;
}

static void operation_fini(struct operation *operation)
{
    for (uint32_t i = 0; i < 3; i++) {
        free(operation->input[i]);
    }
    free(operation->output);
    free(operation->grad_output);
}

static void check_relu(struct report *report, struct kelp_stream *stream, const char *case_name,
                       struct operation *op)
{
    char name[KELP_GOLDEN_NAME_SIZE];
    stream->table->relu(stream, op->output, op->input[0], op->output_count);
    print_to(name, "%.120s/output", case_name);
    check(report, name, op->output, op->output_count, &kelp_golden_values);
    stream->table->relu_gradient(stream, op->input[0], op->output, op->grad_output,
                                 op->output_count, KELP_OVERWRITE);
    print_to(name, "%.120s/grad_input/0", case_name);
    check(report, name, op->input[0], op->output_count, &kelp_golden_values);
}

/* y [rows, out] = x [rows, in] W^T + b */
static void check_linear(struct report *report, struct kelp_stream *stream, const char *case_name,
                         struct operation *op)
{
    char name[KELP_GOLDEN_NAME_SIZE];
    const uint32_t out = (uint32_t)op->input_count[2], in = (uint32_t)op->input_count[1] / out;
    const uint32_t rows = (uint32_t)op->input_count[0] / in;
    float *dx = allocate(op->input_count[0], sizeof(*dx));
    float *dw = allocate(op->input_count[1], sizeof(*dw));
    const struct kelp_matmul forward = {.transpose_b = true,
                                        .m = rows,
                                        .n = out,
                                        .k = in,
                                        .a = op->input[0],
                                        .lda = in,
                                        .b = op->input[1],
                                        .ldb = in,
                                        .c = op->output,
                                        .ldc = out};
    const struct kelp_matmul input_gradient = {.m = rows,
                                               .n = in,
                                               .k = out,
                                               .a = op->grad_output,
                                               .lda = out,
                                               .b = op->input[1],
                                               .ldb = in,
                                               .c = dx,
                                               .ldc = in};
    const struct kelp_matmul weight_gradient = {.transpose_a = true,
                                                .m = out,
                                                .n = in,
                                                .k = rows,
                                                .a = op->grad_output,
                                                .lda = out,
                                                .b = op->input[0],
                                                .ldb = in,
                                                .c = dw,
                                                .ldc = in};
    const struct kelp_bias bias = {
        .matrix = op->output, .ld = out, .rows = rows, .columns = out, .bias = op->input[2]};
    const struct kelp_bias_gradient bias_gradient = {
        .matrix = op->grad_output, .ld = out, .rows = rows, .columns = out, .bias = op->input[2]};
    stream->table->matmul(stream, &forward);
    stream->table->bias_add(stream, &bias);
    print_to(name, "%.120s/output", case_name);
    check(report, name, op->output, op->output_count, &kelp_golden_values);
    stream->table->matmul(stream, &input_gradient);
    print_to(name, "%.120s/grad_input/0", case_name);
    check(report, name, dx, op->input_count[0], &kelp_golden_values);
    stream->table->matmul(stream, &weight_gradient);
    print_to(name, "%.120s/grad_input/1", case_name);
    check(report, name, dw, op->input_count[1], &kelp_golden_values);
    stream->table->bias_gradient(stream, &bias_gradient);
    print_to(name, "%.120s/grad_input/2", case_name);
    check(report, name, op->input[2], out, &kelp_golden_values);
    free(dx);
    free(dw);
}

static void check_operator(struct report *report, struct kelp_stream *stream, const char *case_name)
{
    char prefix[KELP_GOLDEN_NAME_SIZE];
    struct operation operation = {.output_count = 0};
    case_begin(report, case_name);
    if (strcmp(case_name, "relu") == 0 && operation_read(&operation, report->file, case_name, 1)) {
        check_relu(report, stream, case_name, &operation);
    } else if (strcmp(case_name, "linear") == 0 &&
               operation_read(&operation, report->file, case_name, 3)) {
        check_linear(report, stream, case_name, &operation);
    } else {
        print_to(prefix, "%.120s/", case_name);
        report->skipped = count_tensors(report->file, prefix);
    }
    operation_fini(&operation);
    case_end(report, report->skipped != 0 ? "no such operator yet" : "");
}

/* ---- files ------------------------------------------------------------------------------------
 */

/* False when the file is none that Kelp knows. */
static bool check_file(struct report *report, struct kelp_stream *stream,
                       char reason[KELP_GOLDEN_TEXT_SIZE])
{
    const struct kelp_golden_file *file = report->file;
    char cases[KELP_GOLDEN_CASES_MAX][KELP_GOLDEN_NAME_SIZE];
    struct kelp_golden_model model;
    if (has(file, "param") && has(file, "gradients")) {
        const uint32_t count = kelp_golden_cases(file, "", cases);
        for (uint32_t c = 0; c < count; c++) {
            check_updates(report, cases[c]);
        }
    } else if (has(file, "input") && has(file, "trend") && has(file, "seasonal")) {
        check_decomposition(report, stream);
    } else if (has(file, "pred") && has(file, "true")) {
        check_metrics(report, stream);
    } else if (has(file, "input/0")) {
        if (!kelp_golden_model_read(file, &model, reason)) {
            return false;
        }
        check_model(report, &model);
    } else if (strstr(file->model, "loss") != NULL) {
        const uint32_t count = kelp_golden_cases(file, "", cases);
        for (uint32_t c = 0; c < count; c++) {
            check_loss(report, stream, cases[c]);
        }
    } else if (strstr(file->model, "single operations") != NULL) {
        const uint32_t count = kelp_golden_cases(file, "", cases);
        for (uint32_t c = 0; c < count; c++) {
            check_operator(report, stream, cases[c]);
        }
    } else {
        return false;
    }
    return true;
}

static void run_file(struct report *report, const struct kelp_golden_set *set, uint32_t index,
                     struct kelp_stream *stream)
{
    struct kelp_golden_file file;
    struct kelp_error error = {KELP_OK, ""};
    char reason[KELP_GOLDEN_TEXT_SIZE] = "another kind of file";
    report->file = &file;
    const uint32_t passed_before = report->total_passed;
    if (kelp_golden_file_open(set, index, &file, &error) != KELP_OK) {
        case_begin(report, "file");
        fail_case(report, error.text);
        case_end(report, "");
    } else if (!check_file(report, stream, reason)) {
        case_begin(report, "file");
        report->skipped = (uint32_t)kelp_safetensors_count(file.tensors);
        case_end(report, reason);
    }
    report->files_checked += report->total_passed > passed_before ? 1 : 0;
    kelp_golden_file_close(&file);
}

int main(void)
{
    struct kelp_golden_set set;
    struct kelp_device *device = NULL;
    struct kelp_stream *stream = NULL;
    struct kelp_error error = {KELP_OK, ""};
    if (!kelp_golden_set_open(&set)) {
        printf("skipped: no *.safetensors in %s (set KELP_REFERENCE)\n", set.folder);
        return 77;
    }
    if (kelp_device_cpu_create(1, &device, &error) != KELP_OK ||
        device->table->stream_create(device, &stream, &error) != KELP_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    struct report report = {.file = NULL};
    for (uint32_t i = 0; i < set.count; i++) {
        run_file(&report, &set, i, stream);
    }
    printf("%u of %u files checked: %u checks passed, %u skipped, %u failed\n",
           report.files_checked, set.count, report.total_passed, report.total_skipped,
           report.total_failed);
    device->table->stream_destroy(stream);
    device->table->destroy(device);
    kelp_golden_set_close(&set);
    return report.total_failed == 0 && report.files_checked > 0 ? 0 : 1;
}
