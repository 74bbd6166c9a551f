/*
 * The reference fixtures through the operators, models and optimizers of this process. Every
 * *.safetensors of the folder is looked at; what it holds is decided by metadata, names and shapes.
 * Prints one line per case. Fails when a check fails, and when a file or one of its tensors is
 * checked by nothing and not named here as one to skip; 77 without the folder.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/training/plan.h"
#include "kernels/device.h"
#include "kernels/optimizer.h"
#include "kernels/update.h"
#include "tests/lib/golden/golden_report.h"
#include "worker/model/model.h"

/* A model with its flat vectors. */
struct trainer {
    struct kelp_golden_model golden;
    struct kelp_model *model;
    struct kelp_plan plan;
    float *input, *target, *output;
    float *initial, *weights, *weights_next, *gradient;
    float *slots[KELP_OPTIMIZER_SLOTS_MAX];
    uint64_t output_count; /* of the whole batch */
};

static bool trainer_plan(struct trainer *trainer, const struct kelp_golden_file *file,
                         struct kelp_error *error)
{
    const struct kelp_tensor *tensors =
        kelp_model_tensors(trainer->model, &trainer->plan.tensor_count);
    trainer->plan.tensors = kelp_golden_allocate(trainer->plan.tensor_count, sizeof(*tensors));
    memcpy(trainer->plan.tensors, tensors, trainer->plan.tensor_count * sizeof(*tensors));
    if (kelp_plan_lay_out(&trainer->plan, 4, error) != KELP_OK) {
        return false;
    }
    trainer->initial = kelp_golden_allocate(trainer->plan.flat_count, sizeof(float));
    uint32_t parameter = 0; /* statistics do not count */
    for (uint32_t i = 0; i < trainer->plan.tensor_count; i++) {
        const struct kelp_tensor *tensor = &trainer->plan.tensors[i];
        if (!kelp_golden_initial(file, tensor, &parameter, trainer->initial + tensor->offset)) {
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
    const struct kelp_safetensors_tensor *output = kelp_safetensors_find(file->tensors, "output");
    if (kelp_model_create(&golden->job, &golden->shape, golden->samples, &trainer->model, error) !=
            KELP_OK ||
        !trainer_plan(trainer, file, error)) {
        return false;
    }
    trainer->input = kelp_golden_inputs(file, golden);
    trainer->target = kelp_golden_floats(file, "target", &count);
    assert(trainer->input != NULL && trainer->target != NULL);
    trainer->output_count = output != NULL
                                ? output->elem_count
                                : kelp_sample_target_count(&golden->shape) * golden->samples;
    trainer->output = kelp_golden_allocate(trainer->output_count, sizeof(*trainer->output));
    const uint64_t flat_count = trainer->plan.flat_count;
    trainer->weights = kelp_golden_allocate(flat_count, sizeof(float));
    trainer->weights_next = kelp_golden_allocate(flat_count, sizeof(float));
    trainer->gradient = kelp_golden_allocate(flat_count, sizeof(float));
    for (uint32_t s = 0; s < KELP_OPTIMIZER_SLOTS_MAX; s++) {
        trainer->slots[s] = kelp_golden_allocate(flat_count, sizeof(float));
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

/* Initial weights, slots as the optimizer starts with. */
static void trainer_reset(struct trainer *trainer, const struct kelp_job *job)
{
    memcpy(trainer->weights, trainer->initial, (size_t)trainer->plan.flat_count * sizeof(float));
    for (uint32_t s = 0; s < kelp_optimizer_slot_count(job); s++) {
        for (uint64_t i = 0; i < trainer->plan.flat_count; i++) {
            trainer->slots[s][i] = kelp_optimizer_slot_start(job, s);
        }
    }
}

/* The gradient of samples [first, first + count) over batch_total, and their mean loss. */
static double trainer_gradient(struct trainer *trainer, uint32_t first, uint32_t count,
                               double batch_total, float *gradient)
{
    const struct kelp_sample_shape *shape = &trainer->golden.shape;
    double sums[KELP_METRIC_SUM_COUNT];
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_model_piece piece = {
        .input = trainer->input + first * kelp_sample_input_count(shape),
        .target = trainer->target + first * kelp_sample_target_count(shape),
        .count = count,
        .batch_total = batch_total,
        .output = trainer->output};
    kelp_model_bind(trainer->model, &trainer->plan, trainer->weights, gradient);
    if (kelp_model_train(trainer->model, &piece, sums, &error) != KELP_OK) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    return sums[KELP_METRIC_SUM_LOSS] / sums[KELP_METRIC_SUM_SAMPLES];
}

static void trainer_update(struct trainer *trainer, const struct kelp_job *job,
                           uint32_t step_number)
{
    struct kelp_optimizer_step step;
    struct kelp_optimizer_buffers buffers = {.weights = trainer->weights,
                                             .gradient = trainer->gradient,
                                             .weights_next = trainer->weights_next};
    memcpy(buffers.slots, trainer->slots, sizeof(buffers.slots));
    const struct kelp_slice_range all = {.count = trainer->plan.flat_count};
    struct kelp_update update = {.count = 0};
    struct kelp_error error = {KELP_OK, ""};
    kelp_optimizer_prepare(&step, job, job->train.lr, step_number);
    if (kelp_plan_mark_decays(&trainer->plan, job, &error) != KELP_OK ||
        kelp_update_init(&update, job, &trainer->plan, all, &error) != KELP_OK) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    (void)kelp_update_apply(&update, &step, &(struct kelp_step_decision){.count = 0}, &buffers);
    kelp_update_fini(&update);
    trainer->weights_next = trainer->weights;
    trainer->weights = buffers.weights_next;
}

/* Each tensor's part of a flat vector against "<prefix><name>", where the file has that. */
static void check_flat(struct kelp_golden_report *report, const struct trainer *trainer,
                       const char *prefix, const float *flat,
                       const struct kelp_golden_tolerance *tolerance)
{
    for (uint32_t i = 0; i < trainer->plan.tensor_count; i++) {
        const struct kelp_tensor *tensor = &trainer->plan.tensors[i];
        char name[KELP_GOLDEN_NAME_SIZE];
        kelp_golden_print(name, "%s%s", prefix, tensor->name);
        kelp_golden_check(report, name, flat + tensor->offset, tensor->elem_count, tolerance);
    }
}

/* After one forward pass in training: running statistics have moved, and nothing else. */
static void check_statistics(struct kelp_golden_report *report, struct trainer *trainer)
{
    struct kelp_job still = trainer->golden.job;
    still.train.optimizer = KELP_OPTIMIZER_SGD;
    trainer_update(trainer, &still, 1); /* with a learning rate of 0 */
    check_flat(report, trainer, "buffer_after_forward/", trainer->weights,
               kelp_golden_outputs(&trainer->golden.job));
}

/* The output in evaluation. */
static void check_output(struct kelp_golden_report *report, struct trainer *trainer,
                         const char *name, const struct kelp_golden_tolerance *tolerance)
{
    struct kelp_error error = {KELP_OK, ""};
    kelp_model_bind(trainer->model, &trainer->plan, trainer->weights, NULL);
    if (kelp_model_forward(trainer->model, trainer->input, trainer->golden.samples, trainer->output,
                           &error) != KELP_OK) {
        kelp_golden_fail(report, error.text);
    }
    kelp_golden_check(report, name, trainer->output, trainer->output_count, tolerance);
}

static void check_forward(struct kelp_golden_report *report, struct trainer *trainer)
{
    const uint32_t samples = trainer->golden.samples;
    const struct kelp_golden_tolerance *tolerance = kelp_golden_outputs(&trainer->golden.job);
    trainer_reset(trainer, &trainer->golden.job);
    kelp_golden_case_begin(report, "forward and gradients");
    check_flat(report, trainer, "param/", trainer->initial, &kelp_golden_updates);
    kelp_golden_check_scalar(report, "loss",
                             trainer_gradient(trainer, 0, samples, samples, trainer->gradient));
    kelp_golden_check(report, "output", trainer->output, trainer->output_count, tolerance);
    check_flat(report, trainer, "grad/", trainer->gradient, &kelp_golden_gradients);
    kelp_golden_case_end(report, "");

    kelp_golden_case_begin(report, "evaluation");
    if (trainer->golden.statistics) {
        check_statistics(report, trainer);
    }
    check_output(report, trainer, "output_eval_after_one_train_forward", tolerance);
    kelp_golden_case_end(report, "");
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

static void check_optimizer(struct kelp_golden_report *report, struct trainer *trainer,
                            const char *optimizer)
{
    char prefix[KELP_GOLDEN_NAME_SIZE], name[KELP_GOLDEN_NAME_SIZE * 2];
    kelp_golden_print(prefix, "opt/%.120s/", optimizer);
    struct kelp_job job = trainer->golden.job;
    kelp_golden_case_begin(report, optimizer);
    if (!kelp_golden_optimizer(optimizer, &job)) {
        kelp_golden_fail(report, "no such optimizer");
        kelp_golden_case_end(report, "");
        return;
    }
    const uint32_t samples = trainer->golden.samples, steps = last_step(report->file, prefix);
    float *losses = kelp_golden_allocate(steps, sizeof(*losses));
    trainer_reset(trainer, &job);
    for (uint32_t k = 1; k <= steps; k++) {
        losses[k - 1] = (float)trainer_gradient(trainer, 0, samples, samples, trainer->gradient);
        trainer_update(trainer, &job, k);
        (void)snprintf(name, sizeof(name), "%sstep%u/param/", prefix, k);
        const struct kelp_golden_tolerances tolerances =
            kelp_golden_after(report->file, &job, optimizer, k);
        check_flat(report, trainer, name, trainer->weights, &tolerances.parameters);
        (void)snprintf(name, sizeof(name), "%sstep%u/buffer/", prefix, k);
        check_flat(report, trainer, name, trainer->weights, &tolerances.statistics);
    }
    (void)snprintf(name, sizeof(name), "%slosses", prefix);
    const struct kelp_golden_tolerances tolerances =
        kelp_golden_after(report->file, &job, optimizer, steps);
    kelp_golden_check(report, name, losses, steps, &tolerances.losses);
    free(losses);
    kelp_golden_case_end(report, "");
}

/* The mean over shards of their gradients; "shard<s>/loss" and "shard<s>/grad/" on the way. */
static void check_each_shard(struct kelp_golden_report *report, struct trainer *trainer,
                             const uint32_t *rows, uint32_t shard_count)
{
    float *mean = kelp_golden_allocate(trainer->plan.flat_count, sizeof(*mean));
    char name[KELP_GOLDEN_NAME_SIZE];
    trainer_reset(trainer, &trainer->golden.job);
    for (uint32_t s = 0, first = 0; s < shard_count; first += rows[s++]) {
        const double loss = trainer_gradient(trainer, first, rows[s], rows[s], trainer->gradient);
        kelp_golden_print(name, "shard%u/loss", s);
        kelp_golden_check_scalar(report, name, loss);
        kelp_golden_print(name, "shard%u/grad/", s);
        check_flat(report, trainer, name, trainer->gradient, &kelp_golden_gradients);
        (void)trainer_gradient(trainer, first, rows[s], (double)rows[s] * shard_count,
                               trainer->gradient);
        kelp_vector_add(mean, trainer->gradient, trainer->plan.flat_count);
    }
    check_flat(report, trainer, "ddp_mean_grad/", mean, &kelp_golden_gradients);
    memcpy(trainer->gradient, mean, (size_t)trainer->plan.flat_count * sizeof(*mean));
    free(mean);
}

/* The gradient of each shard of the batch, their mean, and "ddp_<optimizer>_step1/" with it. */
static void check_shards(struct kelp_golden_report *report, struct trainer *trainer)
{
    char cases[KELP_GOLDEN_CASES_MAX][KELP_GOLDEN_NAME_SIZE], name[KELP_GOLDEN_NAME_SIZE];
    uint32_t rows[KELP_GOLDEN_CASES_MAX], total = 0;
    const uint32_t shard_count = kelp_golden_shards(report->file, rows);
    for (uint32_t s = 0; s < shard_count; s++) {
        total += rows[s];
    }
    if (shard_count == 0) {
        return;
    }
    kelp_golden_case_begin(report, "shards and their mean");
    if (total == trainer->golden.samples) {
        check_each_shard(report, trainer, rows, shard_count);
    } else {
        kelp_golden_fail(report, "shard_rows are not the rows of the input");
    }
    kelp_golden_case_end(report, "");

    const uint32_t case_count = kelp_golden_cases(report->file, "ddp_", cases);
    for (uint32_t c = 0; c < case_count; c++) {
        struct kelp_job job = trainer->golden.job;
        char *step = strstr(cases[c], "_step1");
        if (step == NULL || strcmp(step, "_step1") != 0) {
            continue; /* the mean, or what is left over then */
        }
        kelp_golden_print(name, "ddp_%.140s/", cases[c]);
        kelp_golden_case_begin(report, "one step with the mean");
        *step = '\0';
        if (kelp_golden_optimizer(cases[c], &job)) {
            trainer_reset(trainer, &job);
            trainer_update(trainer, &job, 1);
            const struct kelp_golden_tolerance tolerance = kelp_golden_after_steps(&job, 1);
            check_flat(report, trainer, name, trainer->weights, &tolerance);
        } else {
            kelp_golden_fail(report, "no such optimizer");
        }
        kelp_golden_case_end(report, "");
    }
}

static void check_model(struct kelp_golden_report *report, const struct kelp_golden_model *golden)
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
        kelp_golden_case_begin(report, "model");
        kelp_golden_fail(report, error.text);
        kelp_golden_case_end(report, "");
    }
    trainer_fini(&trainer);
}

/* False when the file is none that Kelp knows. */
static bool check_file(struct kelp_golden_report *report, struct kelp_stream *stream,
                       char reason[KELP_GOLDEN_TEXT_SIZE])
{
    struct kelp_golden_model model;
    if (kelp_golden_check_single(report, stream) || kelp_golden_check_piece(report, stream) ||
        kelp_golden_check_activations(report, stream)) {
        return true;
    }
    if (!kelp_golden_is_model(report->file) ||
        !kelp_golden_model_read(report->file, &model, reason)) {
        return false;
    }
    check_model(report, &model);
    return true;
}

/* What the text of a file says that may be skipped, and why. */
static const struct {
    const char *words, *reason;
} skipped[] = {
    {"nn.Embedding(sparse=True)", "Kelp updates all rows of a table"},
    {"full initial parameters of", "the file that it names reads it"},
    {"standardised with mean", "test_dataset_etth1 compares it"},
};

static void skip_or_fail(struct kelp_golden_report *report, const char *reason)
{
    kelp_golden_case_begin(report, "file");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(skipped) && report->skipped == 0; i++) {
        if (strstr(report->file->model, skipped[i].words) != NULL) {
            report->skipped = (uint32_t)kelp_safetensors_count(report->file->tensors);
            reason = skipped[i].reason;
        }
    }
    if (report->skipped == 0) {
        kelp_golden_fail(report, reason);
    }
    kelp_golden_case_end(report, reason);
}

/* What no case has read. Kelp's batch norm counts no batches, and notes are for the reader. */
static void check_rest(struct kelp_golden_report *report)
{
    uint32_t left = 0;
    const char *first = "";
    kelp_golden_case_begin(report, "what is left");
    for (size_t i = 0; i < kelp_safetensors_count(report->file->tensors); i++) {
        const char *name = kelp_safetensors_at(report->file->tensors, i)->name;
        if (report->file->read[i] || strstr(name, "/note_") != NULL) {
            continue;
        }
        if (strstr(name, ".num_batches_tracked") != NULL) {
            report->skipped++;
        } else if (left++ == 0) {
            first = name;
        }
    }
    if (left > 0) {
        char text[KELP_GOLDEN_TEXT_SIZE];
        (void)snprintf(text, sizeof(text), "%u tensors are compared with nothing, first %s", left,
                       first);
        kelp_golden_fail(report, text);
    }
    kelp_golden_case_end(report, "");
}

static void run_file(struct kelp_golden_report *report, const struct kelp_golden_set *set,
                     uint32_t index, struct kelp_stream *stream)
{
    struct kelp_golden_file file;
    struct kelp_error error = {KELP_OK, ""};
    char reason[KELP_GOLDEN_TEXT_SIZE] = "another kind of file";
    report->file = &file;
    const uint32_t passed_before = report->total_passed;
    if (kelp_golden_file_open(set, index, &file, &error) != KELP_OK) {
        kelp_golden_case_begin(report, "file");
        kelp_golden_fail(report, error.text);
        kelp_golden_case_end(report, "");
    } else if (!check_file(report, stream, reason)) {
        skip_or_fail(report, reason);
    } else {
        check_rest(report);
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
    struct kelp_golden_report report = {.file = NULL};
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
