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
#include "worker/model/model.h"

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

static const char *flag(bool value)
{
    return value ? "true" : "false";
}

static void add_list(struct text *text, const char *key, const uint32_t *values, uint32_t count)
{
    add(text, "  %s: [", key);
    for (uint32_t i = 0; i < count; i++) {
        add(text, "%s%u", i ? ", " : "", values[i]);
    }
    add(text, "]\n");
}

static void add_model(struct text *text, const struct kelp_job *job)
{
    switch (job->model.kind) {
    case KELP_MODEL_MLP:
        add(text, "  kind: mlp\n");
        add_list(text, "hidden", job->model.hidden, job->model.hidden_count);
        break;
    case KELP_MODEL_DLINEAR:
        add(text, "  kind: dlinear\n  kernel_size: %u\n  individual: %s\n", job->model.kernel_size,
            flag(job->model.individual));
        break;
    case KELP_MODEL_FARE:
        add(text, "  kind: fare\n");
        break;
    case KELP_MODEL_CONVNET:
        add(text, "  kind: convnet\n  classes: %u\n  dropout: [0, 0]\n", job->model.classes);
        break;
    case KELP_MODEL_RESNET18:
        add(text, "  kind: resnet18\n  classes: %u\n", job->model.classes);
        break;
    case KELP_MODEL_DEEPFM:
        add(text, "  kind: deepfm\n  embedding_dim: %u\n", job->model.embedding_dim);
        add_list(text, "hidden", job->model.hidden, job->model.hidden_count);
        break;
    case KELP_MODEL_TFT:
        add(text, "  kind: tft\n  d_model: %u\n  heads: %u\n", job->model.d_model,
            job->model.heads);
        break;
    case KELP_MODEL_PLUGIN:
        add(text, "  plugin: \"%s\"\n  params: [\"%s\"]\n", job->model.plugin, job->model.params);
        break;
    case KELP_MODEL_NLINEAR:
        ck_abort_msg("no fixture of this kind");
    }
}

static void add_data(struct text *text, const struct kelp_golden_file *file,
                     const struct kelp_golden_model *model)
{
    add(text, "data:\n  kind: tensors\n  path: \"%s\"\n  target_name: target\n", file->path);
    add(text, "  shuffle: false\n  input_name: [");
    for (uint32_t i = 0; i < model->shape.input_count; i++) {
        add(text, "%sinput/%u", i ? ", " : "", i);
    }
    add(text, "]\n");
    add_list(text, "vocab", model->job.data.vocab, model->job.data.vocab_count);
}

static void add_loss(struct text *text, const struct kelp_job *job)
{
    static const char *const names[] = {[KELP_LOSS_MSE] = "mse",
                                        [KELP_LOSS_MAE] = "mae",
                                        [KELP_LOSS_SMOOTH_L1] = "smooth_l1",
                                        [KELP_LOSS_HUBER] = "huber",
                                        [KELP_LOSS_CROSS_ENTROPY] = "cross_entropy",
                                        [KELP_LOSS_NLL] = "nll",
                                        [KELP_LOSS_BCE] = "bce",
                                        [KELP_LOSS_BCE_WITH_LOGITS] = "bce_with_logits",
                                        [KELP_LOSS_QUANTILE] = "quantile"};
    add(text, "  loss: %s\n", names[job->train.loss]);
    if (job->train.loss == KELP_LOSS_SMOOTH_L1 || job->train.loss == KELP_LOSS_HUBER) {
        add(text, "  loss_beta: %.17g\n", job->train.loss_beta);
    }
    if (job->train.loss == KELP_LOSS_QUANTILE) {
        add(text, "  quantiles: [");
        for (uint32_t i = 0; i < job->train.quantile_count; i++) {
            add(text, "%s%.17g", i ? ", " : "", job->train.quantiles[i]);
        }
        add(text, "]\n");
    }
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

/* A model that a file holds, with the initial values of all its tensors. */
struct fixture {
    const struct kelp_golden_file *file;
    struct kelp_golden_model golden;
    uint32_t count;
    struct kelp_tensor *tensors;
    float **initial;
};

static void fixture_init(struct fixture *fixture, const struct kelp_golden_file *file,
                         const struct kelp_golden_model *golden)
{
    struct kelp_error error = {.text = ""};
    struct kelp_model *model = NULL;
    uint32_t count = 0, parameter = 0;
    *fixture = (struct fixture){.file = file, .golden = *golden};
    const kelp_status status =
        kelp_model_create(&golden->job, &golden->shape, golden->samples, &model, &error);
    ck_assert_msg(status == KELP_OK, "%s: %s", file->name, error.text);
    const struct kelp_tensor *tensors = kelp_model_tensors(model, &count);
    fixture->count = count;
    fixture->tensors = calloc(count, sizeof(*tensors));
    fixture->initial = calloc(count, sizeof(*fixture->initial));
    ck_assert(fixture->tensors != NULL && fixture->initial != NULL);
    for (uint32_t i = 0; i < count; i++) {
        fixture->tensors[i] = tensors[i];
        fixture->initial[i] = calloc(tensors[i].elem_count, sizeof(float));
        ck_assert_ptr_nonnull(fixture->initial[i]);
        ck_assert_msg(kelp_golden_initial(file, &tensors[i], &parameter, fixture->initial[i]),
                      "%s: no initial values of %s", file->name, tensors[i].name);
    }
    kelp_model_destroy(model);
}

static void fixture_fini(struct fixture *fixture)
{
    for (uint32_t i = 0; i < fixture->count; i++) {
        free(fixture->initial[i]);
    }
    free(fixture->initial);
    free(fixture->tensors);
}

/* All initial values as one file, which a job can start from. */
static void write_initial(const struct fixture *fixture, const char *path)
{
    struct kelp_error error = {.text = ""};
    struct kelp_safetensors_item *items = calloc(fixture->count, sizeof(*items));
    ck_assert_ptr_nonnull(items);
    for (uint32_t i = 0; i < fixture->count; i++) {
        items[i] = (struct kelp_safetensors_item){.name = fixture->tensors[i].name,
                                                  .dtype = KELP_DTYPE_F32,
                                                  .rank = fixture->tensors[i].rank,
                                                  .shape = fixture->tensors[i].shape,
                                                  .data = fixture->initial[i]};
    }
    const kelp_status status = kelp_safetensors_write(path, items, fixture->count, NULL, 0, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    free(items);
}

/* Train the fixture's batch for so many steps, one epoch each. */
static void train(struct kelp_run *run, const struct fixture *fixture, const struct kelp_job *job,
                  uint32_t lanes, uint32_t steps)
{
    struct text text = {.length = 0};
    char initial[400];
    kelp_run_prepare(run);
    (void)snprintf(initial, sizeof(initial), "%s/initial.safetensors", run->folder);
    write_initial(fixture, initial);
    add(&text, "name: golden\nmodel:\n  init: \"%s\"\n", initial);
    add_model(&text, job);
    add_data(&text, fixture->file, &fixture->golden);
    add(&text, "train:\n  epochs: %u\n  batch_size: %u\n  schedule: constant\n", steps,
        fixture->golden.samples);
    add(&text, "  evaluate: false\n");
    add_loss(&text, job);
    add_optimizer(&text, job);
    add(&text, "cluster:\n  workers: 2\n  shards: 2\n  lanes: %u\n", lanes);
    kelp_run_train(run, kelp_test_write(run->folder, "job.yaml", text.bytes), NULL, RUN_TIMEOUT_S);
    ck_assert_msg(run->exit_code == 0, "%s: exit %d; job:\n%s\noutput:\n%s", fixture->file->name,
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

/* Each tensor of the trained model against "opt/<optimizer>/step<k>/param/<name>", running
 * statistics against "…/buffer/<name>". */
static void check_parameters(const struct kelp_run *run, const struct fixture *fixture,
                             const struct kelp_job *job, const char *optimizer, uint32_t steps)
{
    const struct kelp_golden_file *file = fixture->file;
    const struct kelp_golden_tolerances tolerances = kelp_golden_after(file, job, optimizer, steps);
    struct kelp_safetensors *tensors = open_model(run);
    unsigned before = checked;
    for (size_t i = 0; i < kelp_safetensors_count(tensors); i++) {
        char name[KELP_GOLDEN_NAME_SIZE + 128];
        const struct kelp_safetensors_tensor *entry = kelp_safetensors_at(tensors, i);
        float *values = tensor_values(entry);
        const bool statistic = fixture->tensors[i].statistic;
        (void)snprintf(name, sizeof(name), "opt/%s/step%u/%s/%s", optimizer, steps,
                       statistic ? "buffer" : "param", entry->name);
        ck_assert_str_eq(entry->name, fixture->tensors[i].name);
        check(file, name, values, entry->elem_count,
              statistic ? &tolerances.statistics : &tolerances.parameters);
        free(values);
    }
    ck_assert_msg(checked > before, "%s: no parameter after %u steps of %s to compare", file->name,
                  steps, optimizer);
    kelp_safetensors_close(tensors);
}

/* The loss of epoch e is the loss before step e: "opt/<optimizer>/losses". */
static void check_losses(const struct kelp_run *run, const struct kelp_golden_file *file,
                         const struct kelp_job *job, const char *optimizer, uint32_t steps)
{
    char name[KELP_GOLDEN_NAME_SIZE + 32];
    uint64_t count = 0;
    (void)snprintf(name, sizeof(name), "opt/%s/losses", optimizer);
    float *losses = kelp_golden_floats(file, name, &count);
    if (!losses) {
        return;
    }
    const struct kelp_golden_tolerance tolerance =
        kelp_golden_after(file, job, optimizer, steps).losses;
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

/* Batch statistics are of a lane: PyTorch's are those of one lane. */
static uint32_t lanes_for(const struct kelp_golden_model *golden, uint32_t number)
{
    return golden->statistics ? 1 : number % 2 ? 4 : 2;
}

/* The largest number of steps holds the others; all of them are run for the first optimizer, and
 * for the others when KELP_GOLDEN_ALL is set. */
static void check_optimizer(const struct fixture *fixture, const char *name, bool all)
{
    uint32_t steps[8];
    struct kelp_job job = fixture->golden.job;
    ck_assert(kelp_golden_optimizer(name, &job));
    const uint32_t step_count = step_numbers(fixture->file, name, steps, KELP_ARRAY_COUNT(steps));
    const uint32_t first = all || step_count == 0 ? 0 : step_count - 1;
    for (uint32_t i = first; i < step_count; i++) {
        struct kelp_run run;
        train(&run, fixture, &job, lanes_for(&fixture->golden, i), steps[i]);
        check_parameters(&run, fixture, &job, name, steps[i]);
        check_losses(&run, fixture->file, &job, name, steps[i]);
        kelp_run_fini(&run);
    }
    printf("%-32s %-40s %u runs\n", fixture->file->name, name, step_count - first);
    (void)fflush(stdout);
}

/* w_0 - w_1 of one step of plain SGD is the gradient times the rate. */
static void check_gradients(const struct fixture *fixture)
{
    struct kelp_run run;
    struct kelp_job plain = fixture->golden.job;
    ck_assert(kelp_golden_optimizer("sgd_lr1", &plain));
    plain.train.lr = GRADIENT_RATE;
    train(&run, fixture, &plain, lanes_for(&fixture->golden, 0), 1);
    struct kelp_safetensors *tensors = open_model(&run);
    unsigned before = checked;
    for (uint32_t i = 0; i < fixture->count; i++) {
        char name[KELP_GOLDEN_NAME_SIZE + 128];
        const struct kelp_safetensors_tensor *entry = kelp_safetensors_at(tensors, i);
        if (fixture->tensors[i].statistic) {
            continue;
        }
        float *values = tensor_values(entry);
        ck_assert_uint_eq(entry->elem_count, fixture->tensors[i].elem_count);
        for (uint64_t k = 0; k < entry->elem_count; k++) {
            values[k] =
                (float)(((double)fixture->initial[i][k] - (double)values[k]) / GRADIENT_RATE);
        }
        (void)snprintf(name, sizeof(name), "grad/%s", entry->name);
        check(fixture->file, name, values, entry->elem_count, &kelp_golden_gradients);
        free(values);
    }
    ck_assert_msg(checked > before, "%s: no gradient to compare", fixture->file->name);
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
    const char *all = getenv("KELP_GOLDEN_ALL");
    struct fixture fixture;
    fixture_init(&fixture, file, &model);
    char(*cases)[KELP_GOLDEN_NAME_SIZE] = calloc(KELP_GOLDEN_CASES_MAX, sizeof(*cases));
    ck_assert_ptr_nonnull(cases);
    uint32_t case_count = kelp_golden_cases(file, "opt/", cases);
    for (uint32_t i = 0; i < case_count; i++) {
        check_optimizer(&fixture, cases[i], i == 0 || (all != NULL && all[0] != '\0'));
    }
    if (kelp_safetensors_find(file->tensors, "loss") != NULL) {
        check_gradients(&fixture);
    }
    free(cases);
    fixture_fini(&fixture);
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
