/*
 * `kelp predict` and `kelp evaluate`: every sample exactly once and in order, the same file however
 * many workers there are and whoever dies, and the numbers that training itself reports.
 */
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/tensors/safetensors.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/commands/test_files.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

#define TIMEOUT_MS KELP_TEST_HANG_MS
#define SAMPLES    389u /* windows of the test split: 400 - 12 + 1 */
#define AHEAD      12u

/* Two columns' worth of everything would be the same: one target, several steps ahead. The block of
 * 64 samples makes seven entries. */
static const char job_text[] =
    "name: forecast\n"
    "seed: 5\n"
    "run: {private: true}\n"
    "model: {kind: dlinear}\n"
    "data: {kind: synthetic, features: M, seq_len: 24, pred_len: 12, rows: 1400,"
    " split: [700, 300, 400]}\n"
    "train: {epochs: 2, batch_size: 32, optimizer: adam, lr: 0.005}\n"
    "cluster: {workers: 2, shards: 1, lanes: 4}\n";

/* One training for all tests, which only read it. */
static struct kelp_run trained;

static void train_once(void)
{
    kelp_run_prepare(&trained);
    kelp_run_train(&trained, kelp_test_write(trained.folder, "job.yaml", job_text), NULL,
                   TIMEOUT_MS / 1000);
    ck_assert_msg(trained.exit_code == 0, "exit %d; output:\n%s", trained.exit_code,
                  trained.output);
}

static void remove_training(void)
{
    kelp_run_fini(&trained);
}

/* `kelp ARGS` to its end; what it printed on standard output is owned by the caller. */
static char *run_or_fail(const char *const *args)
{
    struct kelp_test_command command;
    kelp_test_command_run(&command, trained.folder, args, TIMEOUT_MS);
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
    char *out = strdup(command.out);
    ck_assert_ptr_nonnull(out);
    kelp_test_command_gone(&command);
    kelp_test_command_fini(&command);
    return out;
}

static void predict(const char *const *args)
{
    free(run_or_fail(args));
}

/* The permissions of a folder there. */
static unsigned mode_of(const char *name)
{
    char path[512];
    struct stat about;

    (void)snprintf(path, sizeof(path), "%s/%s", trained.folder, name);
    ck_assert_int_eq(stat(path, &about), 0);
    return about.st_mode & 07777;
}

/* ---- what is in the file ------------------------------------------------------------------- */

/* The next number of a line, up to a comma or the line's end. */
static double next_number(char **at)
{
    char *end = NULL;
    double number = strtod(*at, &end);
    ck_assert_ptr_ne(end, *at);
    ck_assert(*end == ',' || *end == '\n');
    *at = end + 1;
    return number;
}

KELP_CASE("runs", .timeout_s = 2 * KELP_TEST_HANG_S, .begin = train_once, .end = remove_training)

/* Every sample once, in order, with all its steps; and the errors are those that training reports
 * for these weights. */
KELP_TEST(each_sample_once_and_in_order)
{
    static const char header[] = "sample,ahead,time,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT,HUFL_target,"
                                 "HULL_target,MUFL_target,MULL_target,LUFL_target,LULL_target,"
                                 "OT_target\n";
    const char *const args[] = {
        "predict",      "run",   "--out", "all.csv", "--targets", "--set", "train.batch_size=64",
        "--normalized", "--run", "p1",    NULL};
    double squared = 0.0, absolute = 0.0;
    size_t count = 0;
    predict(args);
    ck_assert_uint_eq(mode_of("run"), 0700); /* run.private */
    ck_assert_uint_eq(mode_of("p1"), 0700);
    char *text = kelp_test_read(trained.folder, "all.csv", &count), *at = text + strlen(header);
    ck_assert_int_eq(strncmp(text, header, strlen(header)), 0);
    for (uint32_t line = 0; line < SAMPLES * AHEAD; line++) {
        double forecast[7];
        ck_assert_double_eq(next_number(&at), line / AHEAD);
        ck_assert_double_eq(next_number(&at), line % AHEAD + 1);
        at = strchr(at, ',') + 1; /* the time */
        for (int i = 0; i < 7; i++) {
            forecast[i] = next_number(&at);
        }
        for (int i = 0; i < 7; i++) {
            double error = forecast[i] - next_number(&at);
            squared += error * error;
            absolute += fabs(error);
        }
    }
    ck_assert_int_eq(*at, '\0');
    free(text);
    const double elements = (double)SAMPLES * AHEAD * 7;
    ck_assert_double_eq_tol(squared / elements, kelp_run_metric(&trained, "test/mse"), 1e-6);
    ck_assert_double_eq_tol(absolute / elements, kelp_run_metric(&trained, "test/mae"), 1e-6);
    char folder[512];
    (void)snprintf(folder, sizeof(folder), "%s/p1/predict", trained.folder);
    ck_assert_int_ne(access(folder, F_OK), 0); /* the parts are gone */
    (void)snprintf(folder, sizeof(folder), "%s/p1/etcd", trained.folder);
    ck_assert_int_ne(access(folder, F_OK), 0); /* and nothing of etcd is left */
}

/* One worker; three workers of which one dies with a lane computed and another while it sends it,
 * and three shards; a worker that hangs: the same bytes. */
KELP_TEST(same_file_whoever_dies)
{
    const char *const alone[] = {"predict",   "run", "--out", "one.csv",
                                 "--workers", "1",   "--set", "train.batch_size=64",
                                 "--run",     "q1",  NULL};
    const char *const dying[] = {"predict",   "run",
                                 "--out",     "dying.csv",
                                 "--workers", "3",
                                 "--shards",  "3",
                                 "--set",     "train.batch_size=64",
                                 "--fault",   "worker-1:kill@version=2",
                                 "--fault",   "worker-0:kill-pushing@version=4",
                                 "--run",     "q2",
                                 NULL};
    const char *const late[] = {"predict",   "run",
                                "--out",     "late.csv",
                                "--workers", "2:2",
                                "--fault",   "worker-0:stall@version=3",
                                "--set",     "train.batch_size=64",
                                "--run",     "q3",
                                NULL};
    predict(alone);
    predict(dying);
    kelp_test_expect_same(trained.folder, "one.csv", "dying.csv");
    predict(late);
    kelp_test_expect_same(trained.folder, "one.csv", "late.csv");
}

/* How many parts are there. */
static uint32_t count_parts(const char *run)
{
    char path[512];
    uint32_t count = 0;
    (void)snprintf(path, sizeof(path), "%s/%s/predict", trained.folder, run);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    if (folder) {
        ck_assert_int_eq(closedir(folder), 0);
    }
    return count;
}

/* The only worker and the only shard are killed from outside in the middle, where the worker stands
 * still: the job goes back to its beginning, where parts of it lie already. */
KELP_TEST(killed_from_outside)
{
    static const char *const victims[] = {"kelp-worker", "kelp-ps"};
    struct kelp_test_command command;
    const char *const quiet[] = {
        "predict", "run", "--out", "quiet.csv", "--set", "train.batch_size=4", "--run", "k1", NULL};
    const char *const args[] = {"predict",   "run",
                                "--out",     "killed.csv",
                                "--set",     "train.batch_size=4",
                                "--workers", "1",
                                "--fault",   "worker-0:hang@version=20",
                                "--run",     "k2",
                                NULL};
    predict(quiet);
    kelp_test_command_start(&command, trained.folder, args);
    KELP_TEST_AWAIT_FROM(&command, count_parts("k2") >= 10, "no parts are left to be computed");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(victims); i++) {
        (void)kelp_test_command_signal(&command, victims[i], "-0", SIGKILL);
    }
    (void)kelp_test_command_wait(&command, TIMEOUT_MS);
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
    kelp_test_command_fini(&command);
    kelp_test_expect_same(trained.folder, "quiet.csv", "killed.csv");
}

static bool left(const char *name)
{
    char path[400];
    (void)snprintf(path, sizeof(path), "%s/k3/%s", trained.folder, name);
    return access(path, F_OK) == 0;
}

/* Where the sockets of that run are; the text is owned by the caller. */
static char *sockets(void)
{
    cJSON *json = kelp_test_read_json(trained.folder, "k3/cluster.json");
    char *found = strdup(kelp_test_text(json, "sockets"));
    ck_assert(found && found[0] == '/');
    cJSON_Delete(json);
    return found;
}

/* `kelp` itself is killed, and nobody comes back for what it worked with: the next command clears
 * that, though not while it may be needed. */
KELP_TEST(killed_for_good)
{
    static const char *const names[] = {"etcd", "predict", "weights.safetensors"};
    struct kelp_test_command command;
    const char *const args[] = {"predict",
                                "run",
                                "--out",
                                "never.csv",
                                "--set",
                                "train.batch_size=4",
                                "--workers",
                                "1",
                                "--fault",
                                "worker-0:hang@version=20",
                                "--run",
                                "k3",
                                "--checkpoint",
                                "newest",
                                NULL};
    kelp_test_command_start(&command, trained.folder, args);
    KELP_TEST_AWAIT_FROM(&command, count_parts("k3") >= 10, "no parts are left to be computed");
    free(run_or_fail((const char *[]){"evaluate", "run", "--run", "e4", NULL}));
    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        ck_assert_msg(left(names[i]), "%s was taken from a run that goes on", names[i]);
    }
    char *folder = sockets();
    ck_assert_int_eq(access(folder, F_OK), 0);
    kelp_process_signal(command.process, SIGKILL);
    (void)kelp_test_command_wait(&command, TIMEOUT_MS);
    kelp_test_command_gone(&command);
    kelp_test_command_fini(&command);
    free(run_or_fail((const char *[]){"evaluate", "run", "--run", "e5", NULL}));
    ck_assert_int_ne(access(folder, F_OK), 0);
    free(folder);
    kelp_test_command_says(trained.folder,
                           (const char *[]){"train", "--resume", "--run", "k3", NULL}, 2,
                           "'k3' is a run of kelp predict, which is not resumed");
    char *text = run_or_fail((const char *[]){"status", "k3", NULL});
    ck_assert_ptr_null(strstr(text, "continue"));
    free(text);
    text = run_or_fail((const char *[]){"ls", "k3", "-o", "json", NULL});
    ck_assert_ptr_nonnull(strstr(text, "\"inference\":true"));
    free(text);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        ck_assert_msg(!left(names[i]), "%s stays for ever", names[i]);
    }
    ck_assert(left("job.yaml"));
}

/* ---- forms --------------------------------------------------------------------------------- */

/* The run's model, its newest checkpoint, and the exported file under a job file: the same. An
 * earlier checkpoint is another. NPY has the numbers of the CSV file. */
KELP_TEST(weights_from_anywhere)
{
    const char *const final[] = {"predict", "run", "--out", "final.csv", "--run", "w1", NULL};
    const char *const newest[] = {"predict", "run",   "--out", "newest.csv", "--checkpoint",
                                  "newest",  "--run", "w2",    NULL};
    const char *const file[] = {"predict", "job.yaml", "--weights", "run/model.safetensors",
                                "--out",   "file.csv", "--run",     "w3",
                                NULL};
    const char *const npy[] = {"predict", "run", "--out", "final.npy", "--run", "w4", NULL};
    predict(final);
    predict(newest);
    kelp_test_expect_same(trained.folder, "final.csv", "newest.csv");
    predict(file);
    kelp_test_expect_same(trained.folder, "final.csv", "file.csv");
    predict(npy);

    size_t count = 0, csv_count = 0;
    char *npy_bytes = kelp_test_read(trained.folder, "final.npy", &count),
         *text = kelp_test_read(trained.folder, "final.csv", &csv_count);
    ck_assert_uint_eq(count, 128 + SAMPLES * AHEAD * 7 * sizeof(float));
    ck_assert_ptr_nonnull(memmem(npy_bytes, 128, "'shape': (389, 12, 7,), }", 25));
    char *at = strchr(text, '\n') + 1;
    for (size_t i = 0; i < SAMPLES * AHEAD * 7; i++) {
        float value;
        memcpy(&value, npy_bytes + 128 + i * sizeof(value), sizeof(value));
        if (i % 7 == 0) {
            (void)next_number(&at);
            (void)next_number(&at);
            at = strchr(at, ',') + 1; /* the time */
        }
        ck_assert_float_eq(value, (float)next_number(&at));
    }
    free(npy_bytes);
    free(text);

    const char *const shorter[] = {"train", "job.yaml", "--set", "train.epochs=1",
                                   "--run", "short",    NULL};
    const char *const before[] = {"predict",     "run",          "--out",
                                  "earlier.csv", "--checkpoint", "short/checkpoints/step-21.g1",
                                  "--run",       "w5",           NULL};
    free(run_or_fail(shorter));
    predict(before);
    char *earlier_text = kelp_test_read(trained.folder, "earlier.csv", &count),
         *final_text = kelp_test_read(trained.folder, "final.csv", &csv_count);
    ck_assert(count != csv_count || memcmp(earlier_text, final_text, count) != 0);
    free(earlier_text);
    free(final_text);
}

/* All columns to the target alone. The error that training tells in the target's own unit is that
 * of the predictions, which are in it; the summary names it. */
KELP_TEST(in_the_unit_of_the_target)
{
    const char *const train[] = {"train", "job.yaml", "--set", "data.features=MS",
                                 "--run", "ms",       NULL};
    const char *const args[] = {"predict",   "ms",    "--out", "ms.csv",
                                "--targets", "--run", "ms1",   NULL};
    double absolute = 0.0;
    size_t count = 0;

    char *out = run_or_fail(train);
    ck_assert_msg(strstr(out, "mae (OT)") != NULL, "%s", out);
    free(out);
    predict(args);
    char *text = kelp_test_read(trained.folder, "ms.csv", &count);
    ck_assert_int_eq(strncmp(text, "sample,ahead,time,OT,OT_target\n", 31), 0);
    char *at = text + 31;
    for (unsigned i = 0; i < SAMPLES * AHEAD; i++) {
        (void)next_number(&at);
        (void)next_number(&at);
        at = strchr(at, ',') + 1; /* the time */
        double forecast = next_number(&at);
        absolute += fabs(forecast - next_number(&at));
    }
    ck_assert_int_eq(*at, '\0');
    free(text);
    cJSON *result = kelp_test_read_json(trained.folder, "ms/result.json");
    ck_assert_str_eq(kelp_test_text(result, "unit"), "OT");
    ck_assert_uint_eq(strlen(kelp_test_text(result, "started")), 20);
    ck_assert_uint_eq(strlen(kelp_test_text(result, "ended")), 20);
    ck_assert_str_ne(kelp_test_text(result, "host"), "");
    const cJSON *metrics = cJSON_GetObjectItemCaseSensitive(result, "metrics");
    ck_assert_double_eq_tol(kelp_test_number(metrics, "test/mae_unscaled"),
                            absolute / (SAMPLES * AHEAD), 1e-5);
    ck_assert(kelp_test_number(metrics, "test/mae") <
              kelp_test_number(metrics, "test/mae_unscaled"));
    cJSON_Delete(result);
    text = kelp_test_read(trained.folder, "ms/history.jsonl", &count);
    ck_assert_ptr_nonnull(strstr(text, "\"status\":\"done\""));
    free(text);
}

/* The checkpoint with the best weights: named in the result, found by "best", and not replaced by
 * another one when it is not there. */
KELP_TEST(best_checkpoint)
{
    static const char better[] = "{\"version\":999,\"step\":7,\"epoch\":1,\"val/loss\":0.0001}\n";
    const char *const train[] = {"train", "job.yaml", "--set", "train.epochs=1",
                                 "--run", "kept",     NULL};
    const char *const best[] = {"predict", "kept",  "--out", "best.csv", "--checkpoint",
                                "best",    "--run", "b1",    NULL};
    const char *const export[] = {"checkpoint", "export", "best", "best.safetensors",
                                  "--run",      "kept",   NULL};
    char name[128], path[512];

    free(run_or_fail(train));
    cJSON *result = kelp_test_read_json(trained.folder, "kept/result.json");
    const cJSON *told = cJSON_GetObjectItemCaseSensitive(result, "best");
    (void)snprintf(name, sizeof(name), "step-%.0f.g1", kelp_test_number(told, "step"));
    ck_assert_str_eq(kelp_test_text(told, "checkpoint"), name);
    cJSON_Delete(result);
    predict(best);
    const char *const by_name[] = {"predict", "kept",  "--out", "named.csv", "--checkpoint",
                                   name,      "--run", "b2",    NULL};
    predict(by_name);
    kelp_test_expect_same(trained.folder, "best.csv", "named.csv");
    free(run_or_fail(export));
    (void)snprintf(path, sizeof(path), "%s/kept/metrics.jsonl", trained.folder);
    FILE *lines = fopen(path, "ae");
    ck_assert_ptr_nonnull(lines);
    ck_assert_int_ge(fputs(better, lines), 0);
    ck_assert_int_eq(fclose(lines), 0);
    kelp_test_command_says(trained.folder, best, 2,
                           "was that of step 7, of which there is no checkpoint");
}

/* The metrics of training's last evaluation, with a worker that dies; and of the other parts. */
KELP_TEST(evaluate)
{
    static const char *const names[] = {"val/loss",  "val/mse",  "val/mae",
                                        "test/loss", "test/mse", "test/mae"};
    const char *const args[] = {"evaluate",  "run", "-o",      "json",
                                "--workers", "2",   "--fault", "worker-1:kill@version=1",
                                "--run",     "e1",  NULL};
    char *text = run_or_fail(args);
    cJSON *result = cJSON_Parse(text);
    ck_assert_ptr_nonnull(result);
    const cJSON *metrics = cJSON_GetObjectItemCaseSensitive(result, "metrics");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(metrics, names[i]);
        ck_assert_msg(cJSON_IsNumber(value), "%s is missing: %s", names[i], text);
        ck_assert_double_eq(value->valuedouble, kelp_run_metric(&trained, names[i]));
    }
    cJSON_Delete(result);
    free(text);
}

/* A model that does not fit this machine is refused before anything starts, and no folder is left.
 */
KELP_TEST(too_large_for_this_machine)
{
    char text[sizeof(job_text) + 64], path[512];
    (void)snprintf(text, sizeof(text), "model: {kind: mlp, hidden: [1048576, 65536]}\n%s",
                   strstr(job_text, "data:"));
    const char *job = kelp_test_write(trained.folder, "large.yaml", text);
    const char *const verbs[] = {"predict", "evaluate"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(verbs); i++) {
        struct kelp_test_command command;
        const char *const args[] = {verbs[i],
                                    job,
                                    "--weights",
                                    "run/model.safetensors",
                                    "--run",
                                    "l1",
                                    i == 0 ? "--out" : NULL,
                                    "l.csv",
                                    NULL};
        kelp_test_command_run(&command, trained.folder, args, TIMEOUT_MS);
        ck_assert_msg(command.exit_code == 2, "exit %d: %s", command.exit_code, command.err);
        ck_assert_ptr_nonnull(strstr(command.err, "GiB of memory on this machine (2 workers of "));
        ck_assert_ptr_nonnull(strstr(command.err, "--set train.batch_size"));
        kelp_test_command_fini(&command);
        (void)snprintf(path, sizeof(path), "%s/l1", trained.folder);
        ck_assert_int_ne(access(path, F_OK), 0);
    }
}

/* ---- weights of published code --------------------------------------------------------------- */

#define CHANNELS 7u
#define LAYERS   4u

/* The trained model's tensors, as `individual: True` of DLinear's published code has them: each
 * channel its own, here with equal numbers. */
static void write_individual(const char *name, const char *const *layers)
{
    static const char *const ours[LAYERS] = {"linear_seasonal.weight", "linear_seasonal.bias",
                                             "linear_trend.weight", "linear_trend.bias"};
    struct kelp_safetensors_item items[LAYERS * CHANNELS];
    char names[LAYERS * CHANNELS][64], path[512];
    struct kelp_safetensors *file = NULL;
    (void)snprintf(path, sizeof(path), "%s/run/model.safetensors", trained.folder);
    ck_assert_int_eq(kelp_safetensors_open(path, &file, NULL), KELP_OK);
    for (size_t i = 0; i < LAYERS * CHANNELS; i++) {
        const struct kelp_safetensors_tensor *tensor =
            kelp_safetensors_find(file, ours[i / CHANNELS]);
        ck_assert_ptr_nonnull(tensor);
        (void)snprintf(names[i], sizeof(names[i]), "%s.%zu.%s", layers[i / CHANNELS / 2],
                       i % CHANNELS, i / CHANNELS % 2 == 0 ? "weight" : "bias");
        items[i] = (struct kelp_safetensors_item){.name = names[i],
                                                  .dtype = tensor->dtype,
                                                  .rank = tensor->rank,
                                                  .shape = tensor->shape,
                                                  .data = tensor->data};
    }
    (void)snprintf(path, sizeof(path), "%s/%s", trained.folder, name);
    ck_assert_int_eq(kelp_safetensors_write(path, items, KELP_ARRAY_COUNT(items), NULL, 0, NULL),
                     KELP_OK);
    kelp_safetensors_close(file);
}

/* `kelp predict` with such a file, into a CSV file. */
static void predict_individual(const char *weights, const char *out, const char *run,
                               const char *map)
{
    const char *const args[] = {"predict",
                                "job.yaml",
                                "--weights",
                                weights,
                                "--out",
                                out,
                                "--run",
                                run,
                                "--set",
                                "model.individual=true",
                                map ? "--set" : NULL,
                                map,
                                NULL};
    predict(args);
}

/* A linear map for each channel under the names of the published code, within DataParallel, and
 * under names that model.init_map explains: the same forecasts as under Kelp's own names. */
KELP_TEST(published_weights)
{
    write_individual("own.st", (const char *[]){"linear_seasonal", "linear_trend"});
    write_individual("published.st",
                     (const char *[]){"module.Linear_Seasonal", "module.Linear_Trend"});
    write_individual("other.st", (const char *[]){"decoder.remainder", "decoder.trend"});
    predict_individual("own.st", "own.csv", "i1", NULL);
    predict_individual("published.st", "published.csv", "i2", NULL);
    kelp_test_expect_same(trained.folder, "own.csv", "published.csv");
    predict_individual("other.st", "other.csv", "i3",
                       "model.init_map=[decoder.remainder=linear_seasonal, decoder.=linear_]");
    kelp_test_expect_same(trained.folder, "own.csv", "other.csv");
}

/* An etcd that others use: it has nothing of the job afterwards, so that the next one can be. */
KELP_TEST(another_etcd)
{
    struct etcd_fixture fixture;
    struct kelp_etcd_range range = {0};
    etcd_fixture_start(&fixture);
    for (int i = 0; i < 2; i++) {
        char name[8];
        (void)snprintf(name, sizeof(name), "x%d", i);
        const char *const args[] = {"evaluate",  "run",   "-o", "json", "--etcd",
                                    fixture.url, "--run", name, NULL};
        free(run_or_fail(args));
    }
    struct kelp_etcd *etcd = etcd_fixture_client(&fixture);
    ck_assert_int_eq(kelp_etcd_get_prefix(etcd, "/kelp/", 5000, &range, NULL), KELP_OK);
    ck_assert_uint_eq(range.count, 0);
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(etcd);
    etcd_fixture_stop(&fixture);
}

/* ---- mistakes ------------------------------------------------------------------------------ */

static const struct {
    const char *args[12];
    const char *says;
} mistakes[] = {
    {{"predict", "run"}, "--out"},
    {{"predict", "run", "--out", "p.txt"}, "must end in .csv or .npy"},
    {{"predict", "run", "--out", "nowhere/p.csv"}, "no file can be made in 'nowhere'"},
    {{"predict", "run", "--out", "/dev/null/p.csv"}, "no file can be made in '/dev/null'"},
    {{"predict", "run", "--out", "p.npy", "--targets"}, "--targets is for .csv files"},
    {{"predict", "nowhere", "--out", "p.csv"}, "'nowhere' is not a run folder"},
    {{"predict", "job.yaml", "--out", "p.csv"}, "no weights: name a run's folder"},
    {{"predict", "job.yaml", "--checkpoint", "newest", "--out", "p.csv"}, "give the run's folder"},
    {{"predict", "run", "--checkpoint", "step-9.g1", "--out", "p.csv"}, "step-9.g1"},
    {{"predict", "run", "--weights", "none", "--out", "p.csv"}, "cannot open 'none'"},
    {{"predict", "run", "--weights", "job.yaml", "--out", "p.csv"}, "job.yaml"},
    {{"predict", "run", "--set", "data.split=[700, 300, 0]", "--out", "p.csv"},
     "run.part: predict needs samples, but the test split has none"},
    {{"predict", "run", "--set", "data.seq_len=25", "--out", "p.csv"},
     "an input of [25, 7], not [24, 7] as in training"},
    {{"evaluate", "run", "--set", "data.split=[700, 0, 0]"}, "run.mode: evaluate needs"},
    {{"evaluate", "run", "--weights", "a", "--checkpoint", "b"}, "give one of them"},
    {{"evaluate", "run", "--set", "run.mode=train"}, "kelp evaluate sets it"},
    {{"predict", "run", "--set", "run.part=val", "--out", "p.csv"}, "give --part instead"},
    {{"predict", "run", "--set", "model.init=a", "--out", "p.csv"}, "give --weights instead"},
};

/* One line and exit code 2 before anything runs; no folder is left behind. */
KELP_LOOP_TEST(mistake, 0, KELP_ARRAY_COUNT(mistakes))
{
    char runs[512];
    kelp_test_command_says(trained.folder, mistakes[_i].args, 2, mistakes[_i].says);
    (void)snprintf(runs, sizeof(runs), "%s/runs", trained.folder);
    DIR *open_folder = opendir(runs);
    for (struct dirent *entry; open_folder && (entry = readdir(open_folder)) != NULL;) {
        ck_assert_msg(entry->d_name[0] == '.' || strcmp(entry->d_name, "latest") == 0, "%s",
                      entry->d_name);
    }
    if (open_folder) {
        ck_assert_int_eq(closedir(open_folder), 0);
    }
}
