/*
 * The reference fixtures through a running cluster of two workers and two shards: losses,
 * parameters after each number of steps that a fixture has, and gradients (one step of plain SGD
 * moves the weights by exactly the gradient times the learning rate). Which files, models, sizes
 * and optimizers is read from the fixtures. A file with parameters and a batch fails when no run
 * comes of it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/job/job_options.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/golden/golden_report.h"
#include "tests/lib/suite.h"
#include "worker/model/model.h"

#define RUN_TIMEOUT_S 60
#define STEPS_MAX     8
/* A large rate keeps the rounding of w - rate * g small beside the gradient; a power of two is
 * exact. */
#define GRADIENT_RATE 512.0

static unsigned checked, runs, skipped;

/* Keys of a section whose values a fixture decides: of the model, the loss and the optimizer. */
static void print_keys(FILE *out, const char *section, const struct kelp_job *job)
{
    static const struct {
        size_t first, end;
    } decided[] = {
        {offsetof(struct kelp_job, model), offsetof(struct kelp_job, model.init)},
        {offsetof(struct kelp_job, data.vocab), offsetof(struct kelp_job, data.vocab_count)},
        {offsetof(struct kelp_job, train.loss), offsetof(struct kelp_job, train.clip_norm)}};
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        const struct kelp_job_key *key = &kelp__job_keys[i];
        bool print = false;
        for (size_t k = 0; k < KELP_ARRAY_COUNT(decided); k++) {
            print = print || (key->offset >= decided[k].first && key->offset < decided[k].end);
        }
        if (print && strncmp(key->name, section, strlen(section)) == 0 &&
            kelp__job_key_applies(key, job)) {
            (void)fprintf(out, "  %s: ", strchr(key->name, '.') + 1);
            kelp__job_key_print(out, key, job);
            (void)fputc('\n', out);
        }
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

/* A job of so many epochs of one step with the fixture's batch. */
static void write_job(const char *path, const struct fixture *fixture, const struct kelp_job *job,
                      const char *initial, uint32_t lanes, uint32_t steps)
{
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    (void)fprintf(out, "name: golden\nmodel:\n  init: \"%s\"\n", initial);
    print_keys(out, "model.", job);
    (void)fprintf(out,
                  "data:\n  kind: tensors\n  path: \"%s\"\n  target_name: target\n"
                  "  shuffle: false\n  input_name: [",
                  fixture->file->path);
    for (uint32_t i = 0; i < fixture->golden.shape.input_count; i++) {
        (void)fprintf(out, "%sinput/%u", i > 0 ? ", " : "", i);
    }
    (void)fputs("]\n", out);
    print_keys(out, "data.", job);
    (void)fprintf(out,
                  "train:\n  epochs: %u\n  batch_size: %u\n  schedule: constant\n"
                  "  evaluate: false\n",
                  steps, fixture->golden.samples);
    print_keys(out, "train.", job);
    (void)fprintf(out, "cluster:\n  workers: 2\n  shards: 2\n  lanes: %u\n", lanes);
    ck_assert_int_eq(fclose(out), 0);
}

/* Batch statistics are of a lane: PyTorch's are those of one lane. */
static uint32_t lanes_for(const struct kelp_golden_model *golden, uint32_t number)
{
    return golden->statistics ? 1 : number % 2 ? 4 : 2;
}

/* Train the fixture's batch for so many steps; number chooses the lanes. */
static void train(struct kelp_run *run, const struct fixture *fixture, const struct kelp_job *job,
                  uint32_t number, uint32_t steps)
{
    char initial[400], path[400];
    kelp_run_prepare(run);
    (void)snprintf(initial, sizeof(initial), "%s/initial.safetensors", run->folder);
    (void)snprintf(path, sizeof(path), "%s/job.yaml", run->folder);
    write_initial(fixture, initial);
    write_job(path, fixture, job, initial, lanes_for(&fixture->golden, number), steps);
    kelp_run_train(run, path, NULL, RUN_TIMEOUT_S);
    ck_assert_msg(run->exit_code == 0, "%s: exit %d; output:\n%s", fixture->file->name,
                  run->exit_code, run->output);
    runs++;
}

/* What a run's tensors are compared with. */
struct expected {
    char parameters[KELP_GOLDEN_NAME_SIZE], statistics[KELP_GOLDEN_NAME_SIZE]; /* prefixes */
    struct kelp_golden_tolerances tolerances;
    bool gradients; /* of the one step that was made */
};

/* What the step has subtracted from the initial values, over the rate. */
static void to_gradient(float *values, const float *initial, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)(((double)initial[i] - (double)values[i]) / GRADIENT_RATE);
    }
}

/* Each tensor of the trained model, where the fixture has it. */
static void check_tensors(const struct kelp_run *run, const struct fixture *fixture,
                          const struct expected *expected)
{
    char path[400];
    struct kelp_error error = {.text = ""};
    struct kelp_safetensors *tensors = NULL;
    const unsigned before = checked;
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", run->run_folder);
    const kelp_status status = kelp_safetensors_open(path, &tensors, &error);
    ck_assert_msg(status == KELP_OK, "%s: %s", path, error.text);
    ck_assert_uint_eq(kelp_safetensors_count(tensors), fixture->count);
    for (uint32_t i = 0; i < fixture->count; i++) {
        char name[KELP_GOLDEN_NAME_SIZE], text[KELP_GOLDEN_TEXT_SIZE] = "";
        const struct kelp_tensor *tensor = &fixture->tensors[i];
        const struct kelp_safetensors_tensor *entry = kelp_safetensors_at(tensors, i);
        float *values = calloc(tensor->elem_count, sizeof(*values));
        ck_assert_ptr_nonnull(values);
        ck_assert_str_eq(entry->name, tensor->name);
        ck_assert_int_eq(kelp_safetensors_floats(entry, 0, tensor->elem_count, values, NULL),
                         KELP_OK);
        if (expected->gradients) {
            to_gradient(values, fixture->initial[i], tensor->elem_count);
        }
        kelp_golden_print(name, "%s%s",
                          tensor->statistic ? expected->statistics : expected->parameters,
                          tensor->name);
        const enum kelp_golden_result result = kelp_golden_compare(
            fixture->file, name, values, tensor->elem_count,
            tensor->statistic ? &expected->tolerances.statistics : &expected->tolerances.parameters,
            text);
        ck_assert_msg(result != KELP_GOLDEN_DIFFERS, "%s: %s", fixture->file->name, text);
        checked += result == KELP_GOLDEN_EQUAL;
        free(values);
    }
    ck_assert_msg(checked > before, "%s: no %s to compare", fixture->file->name,
                  expected->parameters);
    kelp_safetensors_close(tensors);
}

/* The loss of epoch e is the loss before step e: "opt/<optimizer>/losses". */
static void check_losses(const struct kelp_run *run, const struct kelp_golden_file *file,
                         const struct kelp_golden_tolerance *tolerance, const char *optimizer,
                         uint32_t steps)
{
    char name[KELP_GOLDEN_NAME_SIZE];
    uint64_t count = 0;
    kelp_golden_print(name, "opt/%s/losses", optimizer);
    float *losses = kelp_golden_floats(file, name, &count);
    for (uint64_t i = 0; losses != NULL && i < count && i < steps; i++) {
        const double expected = (double)losses[i];
        const double loss =
            kelp_run_line_number(run, "metrics.jsonl", "epoch", (double)(i + 1), "train/loss");
        ck_assert_msg(fabs(loss - expected) <= tolerance->atol + tolerance->rtol * fabs(expected),
                      "%s: loss %u of %s is %g, not %g", file->name, (unsigned)i, optimizer, loss,
                      expected);
        checked++;
    }
    free(losses);
}

/* The numbers k of "opt/<optimizer>/step<k>/", as the file has them; the largest is returned. */
static uint32_t step_numbers(const struct kelp_golden_file *file, const char *optimizer,
                             uint32_t steps[STEPS_MAX], uint32_t *ret_count)
{
    char prefix[KELP_GOLDEN_NAME_SIZE];
    char cases[KELP_GOLDEN_CASES_MAX][KELP_GOLDEN_NAME_SIZE];
    uint32_t largest = 0;
    *ret_count = 0;
    kelp_golden_print(prefix, "opt/%s/", optimizer);
    const uint32_t case_count = kelp_golden_cases(file, prefix, cases);
    for (uint32_t i = 0; i < case_count; i++) {
        uint32_t number = 0;
        if (kelp_golden_number(cases[i], "step", &number)) {
            ck_assert_uint_lt(*ret_count, STEPS_MAX);
            steps[(*ret_count)++] = number;
            largest = number > largest ? number : largest;
        }
    }
    ck_assert_msg(largest > 0, "%s: no steps of %s", file->name, optimizer);
    return largest;
}

/* The largest number of steps holds the others; all of them are run for the first optimizer, and
 * for the others when KELP_GOLDEN_ALL is set. */
static void check_optimizer(const struct fixture *fixture, const char *name, bool all)
{
    uint32_t steps[STEPS_MAX], step_count;
    struct kelp_job job = fixture->golden.job;
    const unsigned runs_before = runs;
    ck_assert_msg(kelp_golden_optimizer(name, &job), "%s: no optimizer %s", fixture->file->name,
                  name);
    const uint32_t largest = step_numbers(fixture->file, name, steps, &step_count);
    for (uint32_t i = 0; i < step_count; i++) {
        struct kelp_run run;
        struct expected expected = {.tolerances =
                                        kelp_golden_after(fixture->file, &job, name, steps[i])};
        char prefix[KELP_GOLDEN_NAME_SIZE];
        if (!all && steps[i] != largest) {
            continue;
        }
        kelp_golden_print(prefix, "opt/%s/step%u/", name, steps[i]);
        kelp_golden_print(expected.parameters, "%sparam/", prefix);
        kelp_golden_print(expected.statistics, "%sbuffer/", prefix);
        train(&run, fixture, &job, i, steps[i]);
        check_tensors(&run, fixture, &expected);
        check_losses(&run, fixture->file, &expected.tolerances.losses, name, steps[i]);
        kelp_run_fini(&run);
    }
    printf("%-32s %-40s %u runs\n", fixture->file->name, name, runs - runs_before);
    (void)fflush(stdout);
}

/* w_0 - w_1 of one step of plain SGD is the gradient times the rate. */
static void check_gradients(const struct fixture *fixture, const char *prefix)
{
    struct kelp_run run;
    struct kelp_job plain = fixture->golden.job;
    struct expected expected = {.tolerances = {.parameters = kelp_golden_gradients},
                                .gradients = true};
    kelp_golden_print(expected.parameters, "%s", prefix);
    ck_assert(kelp_golden_optimizer("sgd_lr1", &plain));
    plain.train.lr = GRADIENT_RATE;
    train(&run, fixture, &plain, 0, 1);
    check_tensors(&run, fixture, &expected);
    kelp_run_fini(&run);
}

/* "ddp_<optimizer>_step<k>/": steps with the mean of the gradients of two shards of the batch. */
static void check_shards(const struct fixture *fixture, const char *name)
{
    struct kelp_run run;
    struct expected expected = {.gradients = false};
    struct kelp_job job = fixture->golden.job;
    char optimizer[KELP_GOLDEN_NAME_SIZE];
    uint32_t steps = 0;
    const char *end = strstr(name, "_step");
    ck_assert_msg(end != NULL && kelp_golden_number(end, "_step", &steps), "ddp_%s", name);
    kelp_golden_print(optimizer, "%.*s", (int)(end - name), name);
    kelp_golden_print(expected.parameters, "ddp_%s/", name);
    ck_assert_msg(kelp_golden_optimizer(optimizer, &job), "no optimizer %s", optimizer);
    expected.tolerances = kelp_golden_after(fixture->file, &job, optimizer, steps);
    train(&run, fixture, &job, 0, steps);
    check_tensors(&run, fixture, &expected);
    kelp_run_fini(&run);
}

/* Gradients and steps of the batch, or of its shards: with as many rows in each, that is the same.
 */
static void check_steps(const struct fixture *fixture)
{
    const struct kelp_golden_file *file = fixture->file;
    char cases[KELP_GOLDEN_CASES_MAX][KELP_GOLDEN_NAME_SIZE];
    uint32_t rows[KELP_GOLDEN_CASES_MAX];
    const uint32_t shard_count = kelp_golden_shards(file, rows);
    const uint32_t case_count = kelp_golden_cases(file, "ddp_", cases);
    if (kelp_golden_has_any(file, "grad/")) {
        check_gradients(fixture, "grad/");
    }
    for (uint32_t s = 1; s < shard_count; s++) {
        if (rows[s] != rows[0]) {
            printf("%-32s skipped: the mean of unequal shards is no cluster's\n", file->name);
            skipped++;
            return;
        }
    }
    for (uint32_t i = 0; i < case_count; i++) {
        if (strcmp(cases[i], "mean_grad") == 0) {
            check_gradients(fixture, "ddp_mean_grad/");
        } else {
            check_shards(fixture, cases[i]);
        }
    }
}

static void check_file(const struct kelp_golden_file *file)
{
    struct kelp_golden_model model;
    struct fixture fixture;
    char reason[KELP_GOLDEN_TEXT_SIZE], cases[KELP_GOLDEN_CASES_MAX][KELP_GOLDEN_NAME_SIZE];
    const char *all = getenv("KELP_GOLDEN_ALL");
    const unsigned before = runs + skipped;
    if (!kelp_golden_is_model(file)) {
        printf("%-32s skipped: no model with a batch\n", file->name);
        skipped++;
        return;
    }
    ck_assert_msg(kelp_golden_model_read(file, &model, reason), "%s: %s", file->name, reason);
    fixture_init(&fixture, file, &model);
    const uint32_t case_count = kelp_golden_cases(file, "opt/", cases);
    for (uint32_t i = 0; i < case_count; i++) {
        check_optimizer(&fixture, cases[i], i == 0 || (all != NULL && all[0] != '\0'));
    }
    check_steps(&fixture);
    ck_assert_msg(runs + skipped > before, "%s: nothing to run", file->name);
    fixture_fini(&fixture);
}

static void require_files(void)
{
    struct kelp_golden_set set;
    if (!kelp_golden_set_open(&set)) {
        kelp_suite_skip("no reference fixtures in %s (KELP_REFERENCE names another folder)",
                        set.folder);
    }
    kelp_golden_set_close(&set);
}

KELP_SUITE(.no_fork = true, .before = require_files)
KELP_CASE("fixtures", .timeout_s = 900)

KELP_TEST(fixtures_through_a_cluster)
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
    printf("%u runs, %u values or tensors checked, %u files skipped\n", runs, checked, skipped);
    ck_assert_uint_gt(checked, 0);
}
