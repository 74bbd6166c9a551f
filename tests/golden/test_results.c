/*
 * Results on real data: each setting reaches what PyTorch reaches with it (RESULTS.md beside the
 * reference fixtures), as the median over seeds, where 1 % counts as equal. Settings that take
 * minutes run when KELP_RESULTS is "long", or when it is their name.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/run_train.h"
#include "tests/lib/shared_files.h"

#define SEEDS_MAX  5
#define LIMITS_MAX 2
#define SLACK      1.01

/* A measure and the bound on its median: from above, or for accuracy and the like from below. */
struct limit {
    const char *measure;
    double bound;
    bool at_least;
};

/*
 * One kind of run. `best` names a measure of the validation part: the epoch where it is lowest is
 * looked at, else the last one. The job's data.path is the file `data` of the data folder.
 */
struct setting {
    const char *name;
    bool is_long;
    int seeds;
    unsigned timeout_s;
    int epochs;
    const char *best;
    struct limit limits[LIMITS_MAX];
    const char *data;
    const char *job; /* without name, seed and data.path, which are set from here */
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
     .best = "val/mse",
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
    {.name = "mnist-convnet",
     .is_long = true,
     .seeds = 3,
     .timeout_s = 1200,
     .epochs = 2,
     .limits = {{"test/accuracy", 0.987, true}},
     .data = "mnist",
     .job = "model: {kind: convnet}\n"
            "data: {kind: idx, mean: 0.1307, std: 0.3081}\n"
            "train: {epochs: 2, batch_size: 128, loss: nll, optimizer: adadelta, lr: 1,\n"
            "        schedule: step, schedule_step: 1, gamma: 0.7}\n"
            "cluster: {workers: 2, shards: 1, lanes: 2}\n"},
    {.name = "fashion-resnet18",
     .is_long = true,
     .seeds = 1,
     .timeout_s = 2400,
     .epochs = 1,
     .limits = {{"test/accuracy", 0.83, true}},
     .data = "fashion-mnist",
     .job = "model: {kind: resnet18}\n"
            "data: {kind: idx, limit: 20000, mean: 0.5, std: 0.5}\n"
            "train: {epochs: 1, batch_size: 128, loss: cross_entropy, optimizer: adam, lr: 0.001}\n"
            "cluster: {workers: 2, shards: 1, lanes: 2}\n"},
};
#define SETTING_COUNT ((int)KELP_ARRAY_COUNT(settings))

static void train(struct kelp_run *run, const struct setting *setting, int seed)
{
    char path[KELP_TEST_PATH_MAX], data[KELP_TEST_PATH_MAX + 16], seed_text[32];
    const char *args[] = {"--set", data, "--set", seed_text, NULL};
    (void)kelp_test_data_file(setting->data, path);
    (void)snprintf(data, sizeof(data), "data.path=%s", path);
    (void)snprintf(seed_text, sizeof(seed_text), "seed=%d", seed);
    kelp_run_prepare(run);
    kelp_run_train(run, kelp_test_write(run->folder, "job.yaml", setting->job), args,
                   setting->timeout_s);
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

START_TEST(results)
{
    const struct setting *setting = &settings[_i];
    double values[LIMITS_MAX][SEEDS_MAX];
    char path[KELP_TEST_PATH_MAX];
    if (!is_wanted(setting)) {
        return;
    }
    if (!kelp_test_data_file(setting->data, path)) {
        printf("%-18s skipped: %s is missing (KELP_DATA names another folder)\n", setting->name,
               path);
        return;
    }
    for (int seed = 0; seed < setting->seeds; seed++) {
        struct kelp_run run;
        train(&run, setting, seed + 1);
        const int epoch = epoch_to_look_at(&run, setting);
        for (int i = 0; i < LIMITS_MAX && setting->limits[i].measure != NULL; i++) {
            values[i][seed] = kelp_run_line_number(&run, "metrics.jsonl", "epoch", epoch,
                                                   setting->limits[i].measure);
        }
        kelp_run_fini(&run);
    }
    for (int i = 0; i < LIMITS_MAX && setting->limits[i].measure != NULL; i++) {
        check_limit(setting, &setting->limits[i], values[i]);
    }
}
END_TEST

int main(void)
{
    char path[KELP_TEST_PATH_MAX];
    if (!kelp_test_data_file("ett/ETTh1.csv", path)) {
        printf("skipped: %s is missing (KELP_DATA names another folder)\n", path);
        return 77;
    }
    Suite *suite = suite_create("results");
    TCase *tcase = tcase_create("settings");
    tcase_set_timeout(tcase, 7200);
    tcase_add_loop_test(tcase, results, 0, SETTING_COUNT);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
