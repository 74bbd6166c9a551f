/*
 * `kelp init`: the jobs that it writes train as they are, and do better on the held-out rows than
 * the mean of the training rows does.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/verb/job_load.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/test_files.h"
#include "tests/lib/shared_files.h"
#include "tests/lib/suite.h"
#include "worker/data/dataset.h"
#include "worker/data/sample.h"

#define CLASSES_MAX 32
#define TIMEOUT_MS  KELP_TEST_HANG_MS

static struct kelp_test_folder folder;

static void begin(void)
{
    kelp_test_folder_init(&folder);
}

static void end(void)
{
    kelp_test_folder_fini(&folder);
}

/* ---- what the mean predicts ---------------------------------------------------------------- */

/* Of all targets of a split, in the model's scale: their sum, how many, and of each class. */
struct targets {
    float *values; /* owned */
    uint64_t samples, count;
};

static struct targets read_targets(const struct kelp_dataset *dataset, enum kelp_split split)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    uint64_t each = kelp_sample_target_count(&info->shape);
    struct targets targets = {.samples = info->samples[split],
                              .count = info->samples[split] * each};
    float *input = malloc(kelp_sample_input_count(&info->shape) * sizeof(*input));
    targets.values = malloc((targets.count + 1) * sizeof(*targets.values));
    ck_assert(input && targets.values);
    for (uint64_t i = 0; i < targets.samples; i++) {
        ck_assert_int_eq(kelp_dataset_read(dataset, split, &i, 1, input, targets.values + i * each),
                         KELP_OK);
    }
    free(input);
    return targets;
}

/* The loss on some targets of a model that always says what is best for the training targets. */
static double constant_loss(const struct targets *train, const struct targets *targets,
                            enum kelp_loss_kind loss)
{
    double sum = 0.0, total = 0.0, share[CLASSES_MAX] = {0};
    for (uint64_t i = 0; i < train->count; i++) {
        sum += (double)train->values[i];
        if (loss == KELP_LOSS_CROSS_ENTROPY) {
            share[(uint32_t)train->values[i]] += 1.0 / (double)train->count;
        }
    }
    double mean = sum / (double)train->count;
    for (uint64_t i = 0; i < targets->count; i++) {
        double value = (double)targets->values[i];
        if (loss == KELP_LOSS_CROSS_ENTROPY) {
            total -= log(share[(uint32_t)value]);
        } else if (loss == KELP_LOSS_BCE_WITH_LOGITS) {
            total -= value * log(mean) + (1.0 - value) * log(1.0 - mean);
        } else {
            total += (value - mean) * (value - mean);
        }
    }
    return total / (double)targets->count;
}

/* Validation and test rows together: of a small table either alone is luck. */
static void expect_better_than_mean(const char *job_name)
{
    char path[256];
    struct kelp_error error;
    struct kelp_job_file *file = NULL;
    struct kelp_dataset *dataset = NULL;
    (void)snprintf(path, sizeof(path), "%s/%s.yaml", folder.path, job_name);
    const struct kelp_job_source source = {.path = path};
    ck_assert_msg(kelp_job_load(&source, &file, &error) == KELP_OK, "%s", error.text);
    const struct kelp_job *job = kelp_job_file_job(file);
    ck_assert_msg(kelp_dataset_open(job, &dataset, &error) == KELP_OK, "%s", error.text);

    cJSON *result = kelp_test_read_json(folder.path, "run/result.json");
    const cJSON *metrics = kelp_test_member(result, "metrics");
    bool shares =
        job->train.loss == KELP_LOSS_BCE_WITH_LOGITS || job->train.loss == KELP_LOSS_CROSS_ENTROPY;
    struct targets train = read_targets(dataset, KELP_SPLIT_TRAIN);
    double ours = 0.0, of_mean = 0.0, count = 0.0;
    for (int split = KELP_SPLIT_VAL; split <= KELP_SPLIT_TEST; split++) {
        static const char *const names[KELP_SPLIT_COUNT][2] = {
            [KELP_SPLIT_VAL] = {"val/mse", "val/loss"},
            [KELP_SPLIT_TEST] = {"test/mse", "test/loss"}};
        struct targets held = read_targets(dataset, (enum kelp_split)split);
        ours += (double)held.samples * kelp_test_number(metrics, names[split][shares]);
        of_mean += (double)held.samples * constant_loss(&train, &held, job->train.loss);
        count += (double)held.samples;
        free(held.values);
    }
    (void)printf("%s: %.4f, of the mean %.4f, %.0f samples\n", job_name, ours / count,
                 of_mean / count, count);
    ck_assert_msg(ours < of_mean, "%s: loss %g, that of the mean is %g", job_name, ours / count,
                  of_mean / count);
    free(train.values);
    cJSON_Delete(result);
    kelp_dataset_close(dataset);
    kelp_job_file_destroy(file);
}

/* ---- tables -------------------------------------------------------------------------------- */

static uint32_t mixed(uint32_t i)
{
    uint32_t x = i * 2654435761u;
    x ^= x >> 15;
    return x * 2246822519u >> 7;
}

/* Flats: rents from size and district, with all that real tables have. */
static void write_flats(const char *name, uint32_t count)
{
    static const char *const districts[] = {"north", "south", "old \"town\"", "Caf\xc3\xa9"};
    struct kelp_test_text table = {.text = calloc(1, KELP_TEST_TEXT_BYTES)};
    ck_assert_ptr_nonnull(table.text);
    kelp_test_add(&table, "id,size (m2),district,built,empty,country,furnished,rent class,rent\n");
    for (uint32_t i = 0; i < count; i++) {
        uint32_t size = 20 + mixed(i) % 100, district = mixed(i + 7777) % 4;
        double rent = 10.0 * size + 150.0 * district;
        kelp_test_add(&table, "%u,%u,%s,%u-%02u-01,,IT,%s,%s,%.2f\n", i + 1, size,
                      district == 2 ? "\"old \"\"town\"\"\"" : districts[district],
                      1950 + mixed(i + 5) % 70, 1 + mixed(i + 3) % 12,
                      i % 17 == 0 ? ""
                      : size > 70 ? "yes"
                                  : "no",
                      rent < 700    ? "low"
                      : rent < 1000 ? "mid"
                                    : "high",
                      rent);
    }
    (void)kelp_test_write(folder.path, name, table.text);
    free(table.text);
}

static void train(const char *job)
{
    const char *const args[] = {"train", job, "--run", "run", NULL};
    kelp_test_run_ok(folder.path, args);
}

KELP_CASE("made tables", .timeout_s = KELP_TEST_HANG_S, .setup = begin, .teardown = end)

/* A number, a chance and classes of one table; its columns need no hand, new rows no target. */
KELP_LOOP_TEST(targets_of_one_table, 0, 3)
{
    static const char *const targets[] = {"rent", "furnished", "rent class"};
    static const char *const rows[] = {
        "size (m2),district,built,furnished,rent class\n50,north,1980-03-01,yes,mid\n",
        "size (m2),district,built,rent,rent class\n50,north,1980-03-01,650,low\n",
        "size (m2),district,built,furnished,rent\n50,north,1980-03-01,yes,650\n"};
    const char *const predict[] = {"predict", "run", "--data", "new.csv", "--out", "p.csv", NULL};
    write_flats("flats.csv", 600);
    const char *const args[] = {"init", "flats.csv", "--target", targets[_i], NULL};
    kelp_test_run_ok(folder.path, args);
    train("flats.yaml");
    expect_better_than_mean("flats");
    (void)kelp_test_write(folder.path, "new.csv", rows[_i]);
    kelp_test_run_ok(folder.path, predict);
}

/* Several files, a job in another folder, and predictions for rows without a target. */
KELP_TEST(folder_of_tables)
{
    kelp_test_make_folder(folder.path, "data");
    kelp_test_make_folder(folder.path, "jobs");
    write_flats("data/a.csv", 300);
    write_flats("data/b.csv", 200);
    const char *const args[] = {"init", "data", "--out", "jobs/rents.yaml", NULL};
    kelp_test_run_ok(folder.path, args);
    train("jobs/rents.yaml");
    (void)kelp_test_write(
        folder.path, "new.csv",
        "size (m2),district,built,furnished,rent class\n50,north,1980-03-01,yes,mid\n"
        "90,nowhere,1990-04-01,,high\n");
    const char *const predict[] = {"predict", "run", "--data", "new.csv", "--out", "p.csv", NULL};
    struct kelp_test_command command;
    kelp_test_command_run(&command, folder.path, predict, TIMEOUT_MS);
    ck_assert_ptr_nonnull(strstr(command.out, "p.csv: 2 samples of new.csv, weights "));
    kelp_test_command_fini(&command);
    char *text = kelp_test_read(folder.path, "p.csv", NULL);
    ck_assert_msg(strncmp(text, "sample,rent\n0,", 14) == 0, "%s", text);
    free(text);
}

/* Mistakes end with one line, and nothing is replaced unasked. */
KELP_TEST(mistakes)
{
    static const struct {
        const char *args[6];
        const char *text;
    } cases[] = {
        {{"init", "none.csv", NULL}, "none.csv"},
        {{"init", "flats.csv", "--target", "rnet", NULL}, "did you mean 'rent'?"},
        {{"init", "flats.csv", "--out", "there.yaml", NULL}, "exists; --force replaces it"},
        {{"init", "x.npy", NULL}, "data.kind npy"},
        {{"init", "x.safetensors", NULL}, "data.kind tensors"},
        {{"init", "x.bin", NULL}, "data.kind binary"},
        {{"init", "nothing", NULL}, "has neither tables"},
        {{"init", "mixed", NULL}, "column b: no such column"},
        {{"init", "semicolons.csv", NULL}, "separated by commas"},
        {{"init", "late.csv", NULL}, "column x is left out: it has dates or numbers"},
    };
    write_flats("flats.csv", 100);
    kelp_test_make_folder(folder.path, "nothing");
    kelp_test_make_folder(folder.path, "mixed");
    (void)kelp_test_write(folder.path, "mixed/a.csv", "a,b\n1,2\n");
    (void)kelp_test_write(folder.path, "mixed/b.csv", "a,c\n1,2\n");
    (void)kelp_test_write(folder.path, "there.yaml", "mine\n");
    (void)kelp_test_write(folder.path, "semicolons.csv", "a;b\n1;2\n");
    struct kelp_test_text late = {.text = calloc(1, KELP_TEST_TEXT_BYTES)};
    ck_assert_ptr_nonnull(late.text);
    kelp_test_add(&late, "x,y\n");
    for (int i = 0; i < 100; i++) {
        kelp_test_add(&late, "%s%d,%d\n", i == 99 ? "oops" : "", i % 9, i * 7 % 13);
    }
    (void)kelp_test_write(folder.path, "late.csv", late.text);
    free(late.text);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        kelp_test_command_says(folder.path, cases[i].args, 2, cases[i].text);
    }
    char *text = kelp_test_read(folder.path, "there.yaml", NULL);
    ck_assert_str_eq(text, "mine\n");
    free(text);
    const char *const force[] = {"init", "flats.csv", "--out", "there.yaml", "--force", NULL};
    kelp_test_command_says(folder.path, force, 0, "there.yaml: written");
    const char *const print[] = {"init", "flats.csv", "--out", "-", NULL};
    kelp_test_command_says(folder.path, print, 0, "targets: [rent]");
}

KELP_CASE("real data", .timeout_s = KELP_TEST_HANG_S, .setup = begin, .teardown = end)

static const char *const real[] = {"ett/ETTh1.csv", "nyc-taxi/yellow_trips_train.csv.gz",
                                   "criteo/criteo_sample.txt", "movielens/movielens_sample.txt"};

KELP_LOOP_TEST(real_tables, 0, KELP_ARRAY_COUNT(real))
{
    char path[KELP_TEST_PATH_MAX];
    if (!kelp_test_data_file(real[_i], path)) {
        (void)printf("left out: %s is not there\n", path);
        return;
    }
    const char *const args[] = {"init", path, "--out", "job.yaml", NULL};
    kelp_test_run_ok(folder.path, args);
    train("job.yaml");
    expect_better_than_mean("job");
}

/* Images: the job loads its data, and one step of it trains. */
KELP_TEST(real_images)
{
    char path[KELP_TEST_PATH_MAX];
    if (!kelp_test_data_file("mnist", path)) {
        (void)printf("left out: %s is not there\n", path);
        return;
    }
    const char *const args[] = {"init", path, NULL};
    kelp_test_run_ok(folder.path, args);
    const char *const train_args[] = {"train", "mnist.yaml",        "--run", "run",
                                      "--set", "train.max_steps=2", "--set", "train.evaluate=false",
                                      NULL};
    kelp_test_run_ok(folder.path, train_args);
}
