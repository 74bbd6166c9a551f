/*
 * The reference fixtures through a running cluster of two workers and two shards: losses,
 * parameters after each number of steps that a fixture has, and gradients (one step of plain SGD
 * moves the weights by exactly the gradient times the learning rate). Which files, models, sizes
 * and optimizers is read from the fixtures.
 */
#include <check.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/golden.h"
#include "tests/lib/run_train.h"

#define RUN_TIMEOUT_S 60
#define JOB_TEXT_MAX  8192
/* A large rate keeps the rounding of w - rate * g small beside the gradient; a power of two is
 * exact. */
#define GRADIENT_RATE 512.0

static unsigned checked;
static unsigned skipped;

struct text {
    char bytes[JOB_TEXT_MAX];
    size_t length;
};

static void add(struct text *text, const char *format, ...) KELP_PRINTF(2, 3);
static void add(struct text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length =
        vsnprintf(text->bytes + text->length, sizeof(text->bytes) - text->length, format, args);
    va_end(args);
    ck_assert(length >= 0 && text->length + (size_t)length < sizeof(text->bytes));
    text->length += (size_t)length;
}

static void add_model(struct text *text, const struct kelp_golden_file *file,
                      const struct kelp_job *job)
{
    add(text, "model:\n  init: \"%s\"\n  init_prefix: param/\n", file->path);
    if (job->model.kind == KELP_MODEL_DLINEAR) {
        add(text, "  kind: dlinear\n  kernel_size: %u\n  individual: %s\n", job->model.kernel_size,
            job->model.individual ? "true" : "false");
        return;
    }
    add(text, "  kind: mlp\n  hidden: [");
    for (uint32_t i = 0; i < job->model.hidden_count; i++) {
        add(text, "%s%u", i ? ", " : "", job->model.hidden[i]);
    }
    add(text, "]\n");
}

static const char *flag(bool value)
{
    return value ? "true" : "false";
}

static void add_optimizer(struct text *text, const struct kelp_job *job)
{
    static const char *const names[] = {
        [KELP_OPTIMIZER_SGD] = "sgd",         [KELP_OPTIMIZER_ADAM] = "adam",
        [KELP_OPTIMIZER_ADAMW] = "adamw",     [KELP_OPTIMIZER_ADAGRAD] = "adagrad",
        [KELP_OPTIMIZER_RMSPROP] = "rmsprop", [KELP_OPTIMIZER_ADADELTA] = "adadelta"};
    add(text, "  optimizer: %s\n  lr: %.17g\n  weight_decay: %.17g\n", names[job->train.optimizer],
        job->train.lr, job->train.weight_decay);
    if (job->train.optimizer != KELP_OPTIMIZER_SGD) {
        add(text, "  eps: %.17g\n", job->train.eps);
    }
    switch (job->train.optimizer) {
    case KELP_OPTIMIZER_SGD:
        add(text, "  momentum: %.17g\n  dampening: %.17g\n  nesterov: %s\n", job->train.momentum,
            job->train.dampening, flag(job->train.nesterov));
        break;
    case KELP_OPTIMIZER_ADAM:
    case KELP_OPTIMIZER_ADAMW:
        add(text, "  beta1: %.17g\n  beta2: %.17g\n  amsgrad: %s\n", job->train.beta1,
            job->train.beta2, flag(job->train.amsgrad));
        break;
    case KELP_OPTIMIZER_ADAGRAD:
        add(text, "  lr_decay: %.17g\n  initial_accumulator: %.17g\n", job->train.lr_decay,
            job->train.initial_accumulator);
        break;
    case KELP_OPTIMIZER_RMSPROP:
        add(text, "  alpha: %.17g\n  momentum: %.17g\n  centered: %s\n", job->train.alpha,
            job->train.momentum, flag(job->train.centered));
        break;
    case KELP_OPTIMIZER_ADADELTA:
        add(text, "  rho: %.17g\n", job->train.rho);
        break;
    case KELP_OPTIMIZER_LAMB: /* no fixture names it */
        break;
    }
}

/* Train the fixture's batch for so many steps, one epoch each. */
static void train(struct kelp_run *run, const struct kelp_golden_file *file,
                  const struct kelp_golden_model *model, uint32_t lanes, uint32_t steps)
{
    struct text text = {.length = 0};
    add(&text, "name: golden\n");
    add_model(&text, file, &model->job);
    add(&text,
        "data:\n  kind: tensors\n  path: \"%s\"\n  input_name: input/0\n  target_name: target\n",
        file->path);
    add(&text,
        "  shuffle: false\ntrain:\n  epochs: %u\n  batch_size: %u\n  schedule: constant\n  "
        "evaluate: false\n",
        steps, model->samples);
    add(&text, "  loss: %s\n", model->job.train.loss == KELP_LOSS_MAE ? "mae" : "mse");
    add_optimizer(&text, &model->job);
    add(&text, "cluster:\n  workers: 2\n  shards: 2\n  lanes: %u\n", lanes);
    kelp_run_prepare(run);
    kelp_run_train(run, kelp_test_write(run->folder, "job.yaml", text.bytes), NULL, RUN_TIMEOUT_S);
    ck_assert_msg(run->exit_code == 0, "%s: exit %d; job:\n%s\noutput:\n%s", file->name,
                  run->exit_code, text.bytes, run->output);
}

static struct kelp_safetensors *open_model(const struct kelp_run *run)
{
    char path[400];
    struct kelp_error error = {.text = ""};
    struct kelp_safetensors *tensors = NULL;
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", run->run_folder);
    kelp_status status = kelp_safetensors_open(path, &tensors, &error);
    ck_assert_msg(status == KELP_OK, "%s: %s", path, error.text);
    return tensors;
}

static float *tensor_values(const struct kelp_safetensors_tensor *entry)
{
    struct kelp_error error = {.text = ""};
    float *values = calloc(entry->elem_count ? entry->elem_count : 1, sizeof(*values));
    ck_assert_ptr_nonnull(values);
    kelp_status status = kelp_safetensors_floats(entry, 0, entry->elem_count, values, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return values;
}

static void check(const struct kelp_golden_file *file, const char *name, const float *values,
                  uint64_t count, const struct kelp_golden_tolerance *tolerance)
{
    char text[KELP_GOLDEN_TEXT_SIZE] = "";
    enum kelp_golden_result result =
        kelp_golden_compare(file, name, values, count, tolerance, text);
    ck_assert_msg(result != KELP_GOLDEN_DIFFERS, "%s: %s: %s", file->name, name, text);
    checked += result == KELP_GOLDEN_EQUAL;
}

/* Each tensor of the trained model against "opt/<optimizer>/step<k>/param/<name>". */
static void check_parameters(const struct kelp_run *run, const struct kelp_golden_file *file,
                             const struct kelp_job *job, const char *optimizer, uint32_t steps)
{
    struct kelp_golden_tolerance tolerance = kelp_golden_after_steps(job, steps);
    struct kelp_safetensors *tensors = open_model(run);
    unsigned before = checked;
    for (size_t i = 0; i < kelp_safetensors_count(tensors); i++) {
        char name[KELP_GOLDEN_NAME_SIZE + 128];
        const struct kelp_safetensors_tensor *entry = kelp_safetensors_at(tensors, i);
        float *values = tensor_values(entry);
        (void)snprintf(name, sizeof(name), "opt/%s/step%u/param/%s", optimizer, steps, entry->name);
        check(file, name, values, entry->elem_count, &tolerance);
        free(values);
    }
    ck_assert_msg(checked > before, "%s: no parameter after %u steps of %s to compare", file->name,
                  steps, optimizer);
    kelp_safetensors_close(tensors);
}

/* The loss of epoch e is the loss before step e: "opt/<optimizer>/losses". */
static void check_losses(const struct kelp_run *run, const struct kelp_golden_file *file,
                         const char *optimizer, uint32_t steps)
{
    char name[KELP_GOLDEN_NAME_SIZE + 32];
    uint64_t count = 0;
    (void)snprintf(name, sizeof(name), "opt/%s/losses", optimizer);
    float *losses = kelp_golden_floats(file, name, &count);
    if (!losses) {
        return;
    }
    struct kelp_golden_tolerance tolerance = kelp_golden_losses(steps);
    for (uint64_t i = 0; i < count && i < steps; i++) {
        double loss =
            kelp_run_line_number(run, "metrics.jsonl", "epoch", (double)(i + 1), "train/loss");
        double allowed = tolerance.atol + tolerance.rtol * fabs((double)losses[i]);
        ck_assert_msg(fabs(loss - (double)losses[i]) <= allowed,
                      "%s: loss %llu of %s is %g, not %g", file->name, (unsigned long long)i,
                      optimizer, loss, (double)losses[i]);
        checked++;
    }
    free(losses);
}

/* The numbers k of "opt/<optimizer>/step<k>/", as the file has them. */
static uint32_t step_numbers(const struct kelp_golden_file *file, const char *optimizer,
                             uint32_t *ret_steps, uint32_t max)
{
    char prefix[KELP_GOLDEN_NAME_SIZE + 8];
    char(*cases)[KELP_GOLDEN_NAME_SIZE] = calloc(KELP_GOLDEN_CASES_MAX, sizeof(*cases));
    uint32_t count = 0;
    ck_assert_ptr_nonnull(cases);
    (void)snprintf(prefix, sizeof(prefix), "opt/%s/", optimizer);
    uint32_t case_count = kelp_golden_cases(file, prefix, cases);
    for (uint32_t i = 0; i < case_count && count < max; i++) {
        if (strncmp(cases[i], "step", 4) == 0) {
            ret_steps[count++] = (uint32_t)strtoul(cases[i] + 4, NULL, 10);
        }
    }
    free(cases);
    return count;
}

static void check_optimizer(const struct kelp_golden_file *file,
                            const struct kelp_golden_model *model, const char *name)
{
    uint32_t steps[8];
    uint32_t step_count = step_numbers(file, name, steps, KELP_ARRAY_COUNT(steps));
    for (uint32_t i = 0; i < step_count; i++) {
        struct kelp_run run;
        train(&run, file, model, i % 2 ? 4 : 2, steps[i]);
        check_parameters(&run, file, &model->job, name, steps[i]);
        check_losses(&run, file, name, steps[i]);
        kelp_run_fini(&run);
    }
    printf("%-32s %-40s %u runs\n", file->name, name, step_count);
    (void)fflush(stdout);
}

/* w_0 - w_1 of one step of plain SGD is the gradient times the rate. */
static void check_gradients(const struct kelp_golden_file *file,
                            const struct kelp_golden_model *model)
{
    struct kelp_golden_model plain = *model;
    struct kelp_run run;
    plain.job.train.optimizer = KELP_OPTIMIZER_SGD;
    plain.job.train.lr = GRADIENT_RATE;
    plain.job.train.weight_decay = 0;
    plain.job.train.momentum = 0;
    plain.job.train.dampening = 0;
    plain.job.train.nesterov = false;
    train(&run, file, &plain, 2, 1);
    struct kelp_safetensors *tensors = open_model(&run);
    unsigned before = checked;
    for (size_t i = 0; i < kelp_safetensors_count(tensors); i++) {
        char name[KELP_GOLDEN_NAME_SIZE + 128];
        uint64_t count = 0;
        const struct kelp_safetensors_tensor *entry = kelp_safetensors_at(tensors, i);
        float *values = tensor_values(entry);
        (void)snprintf(name, sizeof(name), "param/%s", entry->name);
        float *initial = kelp_golden_floats(file, name, &count);
        if (initial) {
            ck_assert_uint_eq(count, entry->elem_count);
            for (uint64_t k = 0; k < count; k++) {
                values[k] = (float)(((double)initial[k] - (double)values[k]) / GRADIENT_RATE);
            }
            (void)snprintf(name, sizeof(name), "grad/%s", entry->name);
            check(file, name, values, count, &kelp_golden_gradients);
        }
        free(initial);
        free(values);
    }
    ck_assert_msg(checked > before, "%s: no gradient to compare", file->name);
    kelp_safetensors_close(tensors);
    kelp_run_fini(&run);
}

static void check_file(const struct kelp_golden_file *file)
{
    struct kelp_golden_model model;
    char reason[KELP_GOLDEN_TEXT_SIZE];
    if (!kelp_golden_model_read(file, &model, reason)) {
        printf("%-32s skipped: %s\n", file->name, reason);
        skipped++;
        return;
    }
    char(*cases)[KELP_GOLDEN_NAME_SIZE] = calloc(KELP_GOLDEN_CASES_MAX, sizeof(*cases));
    ck_assert_ptr_nonnull(cases);
    uint32_t case_count = kelp_golden_cases(file, "opt/", cases);
    for (uint32_t i = 0; i < case_count; i++) {
        struct kelp_golden_model with_optimizer = model;
        if (!kelp_golden_optimizer(cases[i], &with_optimizer.job)) {
            printf("%-32s %-40s skipped: no such optimizer\n", file->name, cases[i]);
            skipped++;
            continue;
        }
        check_optimizer(file, &with_optimizer, cases[i]);
    }
    if (kelp_golden_cases(file, "grad/", cases) > 0) {
        check_gradients(file, &model);
    }
    free(cases);
}

START_TEST(fixtures_through_a_cluster)
{
    struct kelp_golden_set set;
    struct kelp_error error = {.text = ""};
    ck_assert(kelp_golden_set_open(&set));
    for (uint32_t i = 0; i < set.count; i++) {
        struct kelp_golden_file file;
        kelp_status status = kelp_golden_file_open(&set, i, &file, &error);
        ck_assert_msg(status == KELP_OK, "%s", error.text);
        check_file(&file);
        kelp_golden_file_close(&file);
    }
    kelp_golden_set_close(&set);
    printf("%u values or tensors checked, %u files or optimizers skipped\n", checked, skipped);
    ck_assert_uint_gt(checked, 0);
}
END_TEST

int main(void)
{
    struct kelp_golden_set set;
    if (!kelp_golden_set_open(&set)) {
        printf("skipped: no reference fixtures in %s (KELP_REFERENCE names another folder)\n",
               set.folder);
        return 77;
    }
    kelp_golden_set_close(&set);
    Suite *suite = suite_create("golden_cluster");
    TCase *tcase = tcase_create("fixtures");
    tcase_set_timeout(tcase, 900);
    tcase_add_test(tcase, fixtures_through_a_cluster);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
