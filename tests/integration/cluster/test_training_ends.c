/*
 * Where training ends and what was measured on the way, through a cluster: early stopping, steps
 * at most, evaluations by turns, a longer job behind an end that it does not have, a result that
 * was lost, and measuring alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"

#define RUN_MS KELP_TEST_HANG_MS

/* 62 steps an epoch. The rate is so high that the validation loss soon gets no better. */
static const char job_text[] =
    "name: ends\nseed: 3\n"
    "model: {kind: dlinear}\n"
    "data: {kind: synthetic, rows: 3000, seq_len: 24, pred_len: 8, split: [2000, 500, 500]}\n"
    "train: {epochs: 5, lr: 0.03, schedule: constant, evaluate_epochs: 2, evaluate_steps: 40}\n"
    "cluster: {workers: 2, shards: 2, lanes: 4}\n"
    "checkpoint: {interval: 0s}\n";

static struct kelp_test_folder folder;
static struct kelp_test_command command;

static void setup(void)
{
    kelp_test_folder_init(&folder);
    memset(&command, 0, sizeof(command));
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
}

static void teardown(void)
{
    kelp_test_command_fini(&command);
    kelp_test_folder_fini(&folder);
}

/* `kelp train WHAT --run NAME`, with these keys set. */
static void run(const char *what, const char *name, const char *const *keys)
{
    const char *args[32] = {"train", what, "--run", name};
    size_t count = 4;

    for (; keys && *keys; keys++) {
        args[count++] = "--set";
        args[count++] = *keys;
    }
    args[count] = NULL;
    kelp_test_command_fini(&command);
    kelp_test_command_start(&command, folder.path, args);
    (void)kelp_test_command_wait(&command, RUN_MS);
    ck_assert_msg(command.exit_code == 0, "exit %d; it said:\n%s", command.exit_code, command.err);
}

static char *read_file(const char *name, const char *file)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", name, file);
    return kelp_test_read(folder.path, path, NULL);
}

static cJSON *result_of(const char *name)
{
    char *text = read_file(name, "result.json");
    cJSON *json = kelp_test_json(text);

    free(text);
    return json;
}

/* How often a text stands in a file of the run. */
static unsigned count_in(const char *name, const char *file, const char *text)
{
    char *all = read_file(name, file);
    unsigned count = 0;

    for (const char *at = all; (at = strstr(at, text)) != NULL; at++) {
        count++;
    }
    free(all);
    return count;
}

static void expect_same_file(const char *a, const char *b, const char *file)
{
    char *texts[2] = {read_file(a, file), read_file(b, file)};

    ck_assert_str_eq(texts[0], texts[1]);
    free(texts[0]);
    free(texts[1]);
}

KELP_CASE("training ends", .timeout_s = 2 * KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

/* Training stops once the validation split has got no better twice; the best is told with what the
 * test split had; more epochs change nothing. */
KELP_TEST(early_stopping)
{
    static const char *const keys[] = {"train.patience=2", "train.epochs=60",
                                       "checkpoint.steps=1000", NULL};
    static const char *const more[] = {"train.epochs=80", NULL};

    run("job.yaml", "run", keys);
    cJSON *result = result_of("run");
    const cJSON *best = cJSON_GetObjectItemCaseSensitive(result, "best");
    double step = kelp_test_number(result, "step");
    ck_assert_double_lt(step, 3000);
    ck_assert_double_lt(kelp_test_number(best, "step"), step);
    const cJSON *metrics = cJSON_GetObjectItemCaseSensitive(best, "metrics");
    ck_assert_double_lt(
        kelp_test_number(metrics, "val/loss"),
        kelp_test_number(cJSON_GetObjectItemCaseSensitive(result, "metrics"), "val/loss"));
    ck_assert_double_gt(kelp_test_number(metrics, "test/rmse"), 0);
    ck_assert_double_gt(kelp_test_number(metrics, "test/rse"), 0);
    ck_assert_ptr_nonnull(strstr(command.out, "\nbest test "));
    run("--resume", "run", more);
    cJSON *again = result_of("run");
    ck_assert_double_eq(kelp_test_number(again, "step"), step);
    ck_assert_str_eq(cJSON_GetObjectItemCaseSensitive(again, "digest")->valuestring,
                     cJSON_GetObjectItemCaseSensitive(result, "digest")->valuestring);
    cJSON_Delete(again);
    cJSON_Delete(result);
}

/* A job of three epochs measures at its end, which is nobody's turn in one of five: gone on with,
 * it leaves what a run of five epochs leaves. Then the result is lost and told again. */
KELP_TEST(longer)
{
    static const char *const three[] = {"train.epochs=3", NULL};
    static const char *const five[] = {"train.epochs=5", NULL};

    run("job.yaml", "quiet", five);
    run("job.yaml", "run", three);
    /* by 40 steps and 2 epochs: 40, 80, 120, 124, 160, and the end: 186 */
    ck_assert_uint_eq(count_in("run", "metrics.jsonl", "\"val/loss\""), 6);
    run("--resume", "run", five);
    expect_same_file("run", "quiet", "metrics.jsonl");
    expect_same_file("run", "quiet", "digests.jsonl");
    cJSON *result = result_of("run");
    ck_assert_double_eq(kelp_test_number(result, "steps_recomputed"), 0);
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/run/result.json", folder.path);
    ck_assert_int_eq(remove(path), 0);
    run("--resume", "run", NULL);
    cJSON *again = result_of("run");
    ck_assert(cJSON_Compare(cJSON_GetObjectItemCaseSensitive(result, "metrics"),
                            cJSON_GetObjectItemCaseSensitive(again, "metrics"), true));
    ck_assert(cJSON_Compare(cJSON_GetObjectItemCaseSensitive(result, "best"),
                            cJSON_GetObjectItemCaseSensitive(again, "best"), true));
    ck_assert(cJSON_Compare(cJSON_GetObjectItemCaseSensitive(result, "digest"),
                            cJSON_GetObjectItemCaseSensitive(again, "digest"), true));
    cJSON_Delete(again);
    cJSON_Delete(result);
}

/* train.max_steps ends in the middle of an epoch; run.mode evaluate measures its model alike. */
KELP_TEST(measuring)
{
    static const char *const steps[] = {"train.max_steps=70", "train.schedule_unit=step",
                                        "train.schedule=cosine", "train.warmup=5", NULL};
    static const char *const measure[] = {"run.mode=evaluate", "model.init=run/model.safetensors",
                                          NULL};

    run("job.yaml", "run", steps);
    cJSON *trained = result_of("run");
    ck_assert_double_eq(kelp_test_number(trained, "step"), 70);
    const cJSON *metrics = cJSON_GetObjectItemCaseSensitive(trained, "metrics");
    ck_assert_double_gt(kelp_test_number(metrics, "train/loss"), 0);
    run("job.yaml", "measured", measure);
    cJSON *measured = result_of("measured");
    const cJSON *same = cJSON_GetObjectItemCaseSensitive(measured, "metrics");
    static const char *const names[] = {"val/loss", "val/mse", "test/mae", "test/rse"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        ck_assert_double_eq(kelp_test_number(same, names[i]), kelp_test_number(metrics, names[i]));
    }
    ck_assert_double_eq(kelp_test_number(measured, "checkpoints"), 0);
    cJSON_Delete(measured);
    cJSON_Delete(trained);
}

static void expect_picture(const char *name, const char *file, const char *begin)
{
    char *bytes = read_file(name, file);
    ck_assert_msg(strncmp(bytes, begin, strlen(begin)) == 0, "%s begins otherwise", file);
    free(bytes);
}

/* Pictures are drawn when a run ends, and by kelp plot; a folder without a run is refused. */
KELP_TEST(plots)
{
    static const char *const keys[] = {"train.epochs=2", NULL};
    static const char *const missing[] = {"plot", "nothing", NULL};
    static const char *const again[] = {"plot", "run", "--out", "other/folder", NULL};
    static const char *const files[][2] = {{"plots/metrics.svg", "<?xml"},
                                           {"plots/metrics.png", "\x89PNG"},
                                           {"plots/forecast.svg", "<?xml"},
                                           {"plots/forecast.png", "\x89PNG"}};

    (void)unsetenv("KELP_NO_PLOTS");
    run("job.yaml", "run", keys);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(files); i++) {
        expect_picture("run", files[i][0], files[i][1]);
    }
    kelp_test_command_fini(&command);
    kelp_test_command_run(&command, folder.path, again, RUN_MS);
    ck_assert_int_eq(command.exit_code, 0);
    expect_picture("other", "folder/forecast.svg", "<?xml");
    kelp_test_command_says(folder.path, missing, 2, "nothing");
}
