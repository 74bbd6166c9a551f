/*
 * Results on real data: each setting reaches what PyTorch reaches with it (RESULTS.md beside the
 * reference fixtures), as the median over seeds, where 1 % counts as equal. Settings that take
 * minutes run when KELP_RESULTS is "long", or when it is their name.
 */
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/shared_files.h"
#include "tests/lib/suite.h"

#define SEEDS_MAX  5
#define LIMITS_MAX 2
#define SLACK      1.01

/* A measure and the bound on its median: from above, or for accuracy and the like from below.
 * "rides" is the error of the forecast that `kelp predict` makes. */
struct limit {
    const char *measure;
    double bound;
    bool at_least;
};

#define SETS_MAX 2

/*
 * One kind of run. `best` names a measure of the validation split: the epoch where it is lowest is
 * looked at, else the last one. The job is a text, or the file of examples/ by that name, else by
 * the setting's. Its data.path is the file `data` of the data folder.
 */
struct setting {
    const char *name, *example;
    bool is_long;
    int seeds;
    unsigned timeout_s;
    int epochs;
    const char *best;
    struct limit limits[LIMITS_MAX];
    const char *data;
    const char *job;           /* without name, seed and data.path, which are set from here */
    const char *set[SETS_MAX]; /* further keys */
};

static const struct setting settings[] = {
    {.name = "etth1-s-96",
     .seeds = 3,
     .timeout_s = 120,
     .epochs = 10,
     .limits = {{"test/mse", 0.0618, false}, {"test/mae", 0.184, false}},
     .data = "ett/ETTh1.csv",
     .job = "model: {kind: dlinear}\n"
            "data: {kind: csv, features: S, target: OT, seq_len: 96, pred_len: 96}\n"
            "train: {epochs: 10, batch_size: 32, optimizer: adam, lr: 0.005, schedule: type1}\n"
            "cluster: {workers: 2, shards: 1, lanes: 2}\n"},
    {.name = "etth1-m-336",
     .seeds = 3,
     .timeout_s = 240,
     .epochs = 10,
     .limits = {{"test/mse", 0.3710, false}, {"test/mae", 0.3925, false}},
     .data = "ett/ETTh1.csv",
     .job = "model: {kind: dlinear}\n"
            "data: {kind: csv, features: M, target: OT, seq_len: 336, pred_len: 96}\n"
            "train: {epochs: 10, batch_size: 32, optimizer: adam, lr: 0.005, schedule: type1}\n"
            "cluster: {workers: 2, shards: 1, lanes: 2}\n"},
    {.name = "etth1-s-336",
     .is_long = true,
     .seeds = 3,
     .timeout_s = 120,
     .epochs = 10,
     .best = "val/mse",
     .limits = {{"test/mse", 0.0567, false}, {"test/mae", 0.180, false}},
     .data = "ett/ETTh1.csv",
     .job = "model: {kind: dlinear}\n"
            "data: {kind: csv, features: S, target: OT, seq_len: 336, pred_len: 96}\n"
            "train: {epochs: 10, batch_size: 32, optimizer: adam, lr: 0.005, schedule: type1}\n"
            "cluster: {workers: 2, shards: 1, lanes: 2}\n"},
    {.name = "etth2-m-336",
     .is_long = true,
     .seeds = 3,
     .timeout_s = 240,
     .epochs = 10,
     .best = "val/mse",
     .limits = {{"test/mse", 0.2913, false}, {"test/mae", 0.3570, false}},
     .data = "ett/ETTh2.csv",
     .job = "model: {kind: dlinear}\n"
            "data: {kind: csv, features: M, target: OT, seq_len: 336, pred_len: 96}\n"
            "train: {epochs: 10, batch_size: 32, optimizer: adam, lr: 0.005, schedule: type1}\n"
            "cluster: {workers: 2, shards: 1, lanes: 2}\n"},
    {.name = "taxi-fare",
     .seeds = 3,
     .timeout_s = 60,
     .epochs = 3,
     .limits = {{"test/loss", 0.1253, false}, {"train/loss", 0.1247, false}},
     .data = "nyc-taxi/yellow_trips_train.csv.gz"},
    {.name = "taxi-deepfm",
     .seeds = 3,
     .timeout_s = 60,
     .epochs = 3,
     .limits = {{"test/auc", 0.575, true}, {"test/loss", 0.680, false}},
     .data = "nyc-taxi/yellow_trips_train.csv.gz"},
    {.name = "mnist-convnet",
     .is_long = true,
     .seeds = 3,
     .timeout_s = 1200,
     .epochs = 2,
     .limits = {{"test/accuracy", 0.987, true}},
     .data = "mnist"},
    {.name = "fashion-resnet18",
     .is_long = true,
     .seeds = 3,
     .timeout_s = 1200,
     .epochs = 1,
     .limits = {{"test/accuracy", 0.83, true}, {"test/loss", 0.464, false}},
     .data = "fashion-mnist"},
    {.name = "taxi-hourly-tft-120",
     .example = "taxi-hourly-tft",
     .is_long = true,
     .seeds = 1,
     .timeout_s = 600,
     .epochs = 1,
     .limits = {{"val/loss", 0.135, false}},
     .data = "nyc-taxi/hourly/2017-0?_1H_zone.csv",
     .set = {"train.max_steps=120", "train.schedule=constant"}},
    {.name = "taxi-hourly-tft", /* better than the same hour of the week before */
     .is_long = true,
     .seeds = 1,
     .timeout_s = 1800,
     .epochs = 1,
     .limits = {{"val/loss", 0.135, false}, {"rides", 38.8, false}},
     .data = "nyc-taxi/hourly/2017-0?_1H_zone.csv"},
};
#define SETTING_COUNT ((int)KELP_ARRAY_COUNT(settings))

static void train(struct kelp_run *run, const struct setting *setting, int seed)
{
    char path[KELP_TEST_PATH_MAX], data[KELP_TEST_PATH_MAX + 16], seed_text[32];
    char example[KELP_TEST_PATH_MAX];
    const char *source = getenv("KELP_SOURCE");
    const char *args[5 + 2 * SETS_MAX] = {"--set", data, "--set", seed_text};
    for (int i = 0; i < SETS_MAX && setting->set[i] != NULL; i++) {
        args[4 + 2 * i] = "--set";
        args[5 + 2 * i] = setting->set[i];
    }
    (void)kelp_test_data_file(setting->data, path);
    (void)snprintf(data, sizeof(data), "data.path=%s", path);
    (void)snprintf(seed_text, sizeof(seed_text), "seed=%d", seed);
    (void)snprintf(example, sizeof(example), "%s/examples/%s.yaml", source != NULL ? source : ".",
                   setting->example != NULL ? setting->example : setting->name);
    kelp_run_prepare(run);
    kelp_run_train(run,
                   setting->job != NULL ? kelp_test_write(run->folder, "job.yaml", setting->job)
                                        : example,
                   args, setting->timeout_s);
    ck_assert_msg(run->exit_code == 0, "%s: exit %d; output:\n%s", setting->name, run->exit_code,
                  run->output);
}

/* The epoch of the lowest value, or the last one. */
static int epoch_to_look_at(const struct kelp_run *run, const struct setting *setting)
{
    int best = setting->epochs;
    double lowest = INFINITY;
    for (int epoch = 1; setting->best != NULL && epoch <= setting->epochs; epoch++) {
        const double value =
            kelp_run_line_number(run, "metrics.jsonl", "epoch", epoch, setting->best);
        if (value < lowest) {
            lowest = value;
            best = epoch;
        }
    }
    return best;
}

/* Mean distance of the forecasts of the validation split (Count_q0.5) from what came (Count_target,
 * the last column), in rides. */
static double mean_error(const char *csv_path)
{
    char line[4096];
    double sum = 0.0;
    unsigned count = 0;
    int median_column = -1, columns = 0;
    FILE *file = fopen(csv_path, "r");
    ck_assert_msg(file != NULL, "%s is not there", csv_path);
    while (fgets(line, sizeof(line), file) != NULL) {
        double median = NAN, target = NAN;
        int column = 0;
        char *rest = line;
        for (char *field; (field = strsep(&rest, ",\n")) != NULL && field[0] != '\0'; column++) {
            if (strcmp(field, "Count_q0.5") == 0) {
                median_column = column;
            }
            median = column == median_column ? strtod(field, NULL) : median;
            target = strtod(field, NULL);
        }
        if (columns == 0) { /* the header */
            columns = column;
            continue;
        }
        ck_assert_int_eq(column, columns);
        sum += fabs(median - target);
        count++;
    }
    (void)fclose(file);
    ck_assert_uint_eq(count, 73 * 168);
    return sum / count;
}

static double predict_error(const struct kelp_run *run)
{
    char path[400];
    struct kelp_test_command command;
    const char *args[] = {"predict",   run->run_folder, "--part", "val",
                          "--targets", "--out",         path,     NULL};
    (void)snprintf(path, sizeof(path), "%s/forecast.csv", run->folder);
    kelp_test_command_run(&command, run->folder, args, 120000);
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
    kelp_test_command_fini(&command);
    return mean_error(path);
}

static double measure(const struct kelp_run *run, int epoch, const char *name)
{
    if (strcmp(name, "rides") == 0) {
        return predict_error(run);
    }
    return kelp_run_line_number(run, "metrics.jsonl", "epoch", epoch, name);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void check_limit(const struct setting *setting, const struct limit *limit, double *values)
{
    qsort(values, (size_t)setting->seeds, sizeof(*values), by_value);
    const double median = values[setting->seeds / 2];
    printf("%-18s %s median %.4f of %.4f to %.4f, %s %.4f\n", setting->name, limit->measure, median,
           values[0], values[setting->seeds - 1], limit->at_least ? "at least" : "at most",
           limit->bound);
    (void)fflush(stdout);
    if (limit->at_least) {
        ck_assert_double_ge(median, limit->bound);
    } else {
        ck_assert_double_le(median, limit->bound * SLACK);
    }
}

static bool is_wanted(const struct setting *setting)
{
    const char *which = getenv("KELP_RESULTS");
    if (which == NULL || which[0] == '\0') {
        return !setting->is_long;
    }
    return strcmp(which, "long") == 0 || strcmp(which, setting->name) == 0;
}

/* A file, a folder or a pattern. */
static bool has_data(const char *name, char path[KELP_TEST_PATH_MAX])
{
    glob_t found;
    (void)kelp_test_data_file(name, path);
    const bool any = glob(path, 0, NULL, &found) == 0;
    globfree(&found);
    return any;
}

static void require_files(void)
{
    char path[KELP_TEST_PATH_MAX];
    if (!kelp_test_data_file("ett/ETTh1.csv", path)) {
        kelp_suite_skip("%s is missing (KELP_DATA names another folder)", path);
    }
}

KELP_SUITE(.before = require_files)
KELP_CASE("settings", .timeout_s = 7200)

KELP_LOOP_TEST(results, 0, SETTING_COUNT)
{
    const struct setting *setting = &settings[_i];
    double values[LIMITS_MAX][SEEDS_MAX];
    char path[KELP_TEST_PATH_MAX];
    if (!is_wanted(setting)) {
        return;
    }
    if (!has_data(setting->data, path)) {
        printf("%-18s skipped: %s is missing (KELP_DATA names another folder)\n", setting->name,
               path);
        return;
    }
    for (int seed = 0; seed < setting->seeds; seed++) {
        struct kelp_run run;
        train(&run, setting, seed + 1);
        const int epoch = epoch_to_look_at(&run, setting);
        for (int i = 0; i < LIMITS_MAX && setting->limits[i].measure != NULL; i++) {
            values[i][seed] = measure(&run, epoch, setting->limits[i].measure);
        }
        kelp_run_fini(&run);
    }
    for (int i = 0; i < LIMITS_MAX && setting->limits[i].measure != NULL; i++) {
        check_limit(setting, &setting->limits[i], values[i]);
    }
}
