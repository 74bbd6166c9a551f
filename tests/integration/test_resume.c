/*
 * A run that was stopped goes on from its newest checkpoint, whatever stopped it, and ends with the
 * digest and the records of a run that nothing disturbed; so it does as a longer job, with other
 * numbers of processes, in another place. Stops are placed by step, as the run's records show it.
 */
#include <check.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "common/base/files.h"
#include "tests/lib/run_command.h"
#include "tests/lib/run_train.h"

#define RUN_MS   60000
#define STEPS_MS 20000
#define PIDS_MAX 64

#define BETWEEN 20 /* steps between two records: nobody outside sees more than these */

#define EPOCHS       40
#define EPOCHS_LONG  46
#define EPOCHS_TEXT  "40"
#define LONGER       "train.epochs=46"
#define FILE_MAX     (1 << 20)
#define STEPS(count) (67.0 * (count)) /* of epochs */

static const char job_text[] = "name: resume\nseed: 11\n"
                               "model: {kind: mlp, hidden: [256]}\n"
                               "data: {kind: synthetic}\n"
                               "train: {epochs: " EPOCHS_TEXT ", batch_size: 128}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "checkpoint: {digest_steps: 20, steps: 100, interval: 0s}\n";

/* What undisturbed runs of both lengths leave; made once, before the tests are forked. */
static struct kelp_test_folder quiet;
static char quiet_digest[2][33];

static struct kelp_test_folder folder;
static struct kelp_test_command train;

static cJSON *result_of(const char *run)
{
    char path[256];
    char *text = NULL;
    size_t bytes = 0;
    struct kelp_error error;
    (void)snprintf(path, sizeof(path), "%s/result.json", run);
    ck_assert_msg(kelp_files_read(path, FILE_MAX, &text, &bytes, &error) == KELP_OK, "%s",
                  error.text);
    cJSON *json = cJSON_Parse(text);
    ck_assert_ptr_nonnull(json);
    free(text);
    return json;
}

static double number_of(const char *run, const char *name)
{
    cJSON *json = result_of(run);
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, name);
    ck_assert_msg(cJSON_IsNumber(value), "no number '%s' in result.json", name);
    double number = value->valuedouble;
    cJSON_Delete(json);
    return number;
}

static void text_of(const char *run, const char *name, char *text, size_t text_bytes)
{
    cJSON *json = result_of(run);
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, name);
    ck_assert_msg(cJSON_IsString(value), "no text '%s' in result.json", name);
    (void)snprintf(text, text_bytes, "%s", value->valuestring);
    cJSON_Delete(json);
}

static void setup(void)
{
    kelp_test_folder_init(&folder);
    memset(&train, 0, sizeof(train));
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
}

static void teardown(void)
{
    kelp_test_command_fini(&train);
    kelp_test_folder_fini(&folder);
}

static void run_path(char path[256])
{
    (void)snprintf(path, 256, "%s/run", folder.path);
}

static void start(const char *first, const char *const *more)
{
    const char *args[24] = {"train", first, "--run", "run"};
    size_t count = 4;
    for (; more && *more; more++) {
        args[count++] = *more;
    }
    args[count] = NULL;
    kelp_test_command_fini(&train);
    kelp_test_command_start(&train, folder.path, args);
}

static void finish(int exit_code)
{
    (void)kelp_test_command_wait(&train, RUN_MS);
    ck_assert_msg(train.exit_code == exit_code, "exit %d, not %d; it said:\n%s", train.exit_code,
                  exit_code, train.err);
}

static void resume(const char *const *more, int exit_code)
{
    start("--resume", more);
    finish(exit_code);
}

/* ---- where a run is ---------------------------------------------------------------------------
 */

static void sleep_ms(long ms)
{
    struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&wait, NULL);
}

static double newest_step(void)
{
    char path[256];
    char line[512];
    double step = 0;
    (void)snprintf(path, sizeof(path), "%s/run/digests.jsonl", folder.path);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        cJSON *object = cJSON_Parse(line);
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, "step");
        step = cJSON_IsNumber(value) ? value->valuedouble : step;
        cJSON_Delete(object);
    }
    if (file) {
        (void)fclose(file);
    }
    return step;
}

static void await_step(double step)
{
    for (int waited = 0; newest_step() < step; waited += 5) {
        ck_assert_msg(waited < STEPS_MS, "step %g was not reached", step);
        sleep_ms(5); /* the file is the event's only trace outside the job */
    }
}

/* The step of the newest checkpoint whose commit is on record beside it; -1: there is none. */
static double newest_checkpoint(void)
{
    char pattern[256];
    glob_t found;
    double newest = -1;
    (void)snprintf(pattern, sizeof(pattern), "%s/run/checkpoints/step-*/manifest.json",
                   folder.path);
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            double step = strtod(strstr(found.gl_pathv[i], "/step-") + strlen("/step-"), NULL);
            newest = step > newest ? step : newest;
        }
        globfree(&found);
    }
    return newest;
}

/* Training has got so far, and a checkpoint of it is there. */
static void await_progress(double step)
{
    await_step(step);
    for (int waited = 0; newest_checkpoint() < 0; waited += 5) {
        ck_assert_msg(waited < STEPS_MS, "no checkpoint was committed");
        sleep_ms(5);
    }
}

static void kill_everything(void)
{
    pid_t pids[PIDS_MAX];
    size_t count = kelp_test_command_processes(&train, pids, PIDS_MAX);
    ck_assert_uint_ge(count, 6); /* kelp, etcd, a coordinator, shards, workers */
    for (size_t i = 0; i < count; i++) {
        (void)kill(pids[i], SIGKILL); /* one that is gone already is as well */
    }
    (void)kelp_test_command_wait(&train, RUN_MS);
    ck_assert_int_eq(train.exit_code, -1);
    kelp_test_command_gone(&train, 1000);
}

static pid_t find(const char *program, const char *id)
{
    pid_t pid = kelp_test_command_find(&train, program, id);
    ck_assert_msg(pid > 0, "no process %s %s", program, id);
    return pid;
}

/* ---- what it left -----------------------------------------------------------------------------
 */

static void same_file(const char *name, const char *quiet_run)
{
    char paths[2][256];
    char *texts[2] = {NULL, NULL};
    size_t bytes = 0;
    (void)snprintf(paths[0], sizeof(paths[0]), "%s/run/%s", folder.path, name);
    (void)snprintf(paths[1], sizeof(paths[1]), "%s/%s/%s", quiet.path, quiet_run, name);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(kelp_files_read(paths[i], FILE_MAX, &texts[i], &bytes, NULL), KELP_OK);
    }
    ck_assert_str_eq(texts[0], texts[1]);
    free(texts[0]);
    free(texts[1]);
}

/* The end is that of a run that nothing disturbed: digest, metrics, and each line of the records.
 */
static void as_if_quiet(int longer)
{
    static const char *const quiet_runs[] = {"short", "long"};
    char path[256];
    char digest[33];
    run_path(path);
    text_of(path, "digest", digest, sizeof(digest));
    ck_assert_str_eq(digest, quiet_digest[longer]);
    ck_assert_double_eq(number_of(path, "step"), STEPS(longer ? EPOCHS_LONG : EPOCHS));
    same_file("metrics.jsonl", quiet_runs[longer]);
    same_file("digests.jsonl", quiet_runs[longer]);
}

static double result_number(const char *name)
{
    char path[256];
    run_path(path);
    return number_of(path, name);
}

static void check_status(const char *expected)
{
    char path[256];
    char status[32];
    run_path(path);
    text_of(path, "status", status, sizeof(status));
    ck_assert_str_eq(status, expected);
}

/* ---- tests ------------------------------------------------------------------------------------
 */

/* Everything dies at once, three times: each time what a checkpoint holds is not computed again. */
START_TEST(killed_three_times)
{
    double recomputed = 0;
    for (size_t i = 0; i < 3; i++) {
        double before = i == 0 ? 0 : newest_step();
        start(i == 0 ? "job.yaml" : "--resume", NULL);
        await_progress(before + 200); /* further than the start before it */
        kill_everything();
        recomputed += newest_step() - newest_checkpoint();
    }
    resume(NULL, 0);
    as_if_quiet(0);
    ck_assert_double_eq(result_number("restores"), 3);
    ck_assert_double_gt(result_number("steps_recomputed"), 0);
    ck_assert_double_le(result_number("steps_recomputed"), recomputed + 3 * BETWEEN);
}
END_TEST

/* SIGTERM: a checkpoint, exit status 0, and what it holds is not computed again. */
START_TEST(paused)
{
    char path[256];
    start("job.yaml", NULL);
    await_step(500);
    kelp_process_signal(train.process, SIGTERM);
    finish(0);
    kelp_test_command_gone(&train, 500);
    ck_assert_ptr_nonnull(strstr(train.err, "kelp: pausing: "));
    ck_assert_ptr_nonnull(strstr(train.err, "kelp: paused at step "));
    ck_assert_ptr_nonnull(strstr(train.err, "kelp train --resume --run run"));
    check_status("paused");
    run_path(path);
    double paused_at = number_of(path, "step");
    ck_assert_double_ge(paused_at, 500);
    ck_assert_double_lt(paused_at, STEPS(EPOCHS));
    ck_assert_double_eq(paused_at, newest_checkpoint());
    double in_flight = newest_step() - paused_at;
    resume(NULL, 0);
    as_if_quiet(0);
    ck_assert_double_eq(result_number("restores"), 1);
    ck_assert_double_le(result_number("steps_recomputed"), in_flight + BETWEEN);
    ck_assert_double_le(result_number("steps_recomputed"), 200); /* while word of it got around */
}
END_TEST

/* A second SIGTERM does not wait for the checkpoint: no shard answers, so that none can be made. */
START_TEST(terminated_twice)
{
    start("job.yaml", (const char *[]){"--no-restart", NULL});
    await_step(300);
    ck_assert_int_eq(kill(find("kelp-ps", "shard-0"), SIGSTOP), 0);
    kelp_process_signal(train.process, SIGTERM);
    kelp_test_command_await(&train, "kelp: pausing: ", RUN_MS);
    kelp_process_signal(train.process, SIGTERM);
    ck_assert_uint_lt(kelp_test_command_wait(&train, RUN_MS), 2000);
    ck_assert_int_eq(train.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(train.err, "kelp: stopped at step "));
    kelp_test_command_gone(&train, 500);
    check_status("stopped");
    resume(NULL, 0);
    as_if_quiet(0);
}
END_TEST

/* The wait for the checkpoint ends when it was said to. */
START_TEST(pause_timeout)
{
    start("job.yaml", (const char *[]){"--no-restart", "--pause-timeout", "1s", NULL});
    await_progress(200);
    ck_assert_int_eq(kill(find("kelp-ps", "shard-0"), SIGSTOP), 0);
    kelp_process_signal(train.process, SIGTERM);
    uint64_t waited_ms = kelp_test_command_wait(&train, RUN_MS);
    ck_assert_msg(waited_ms >= 900 && waited_ms < 3200, "%llu ms", (unsigned long long)waited_ms);
    ck_assert_int_eq(train.exit_code, 0);
    ck_assert_msg(strstr(train.err, "the newest checkpoint is of step ") != NULL, "it said:\n%s",
                  train.err);
}
END_TEST

/* Another number of shards and workers restores what the others left. */
START_TEST(other_numbers)
{
    static const char *const numbers[][2] = {{"3", "3"}, {"1", "1"}};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(numbers); i++) {
        double before = newest_step();
        start(i == 0 ? "job.yaml" : "--resume",
              (const char *[]){"--workers", numbers[i][0], "--shards", numbers[i][1], NULL});
        await_step(before + 100);
        kelp_process_signal(train.process, SIGTERM);
        finish(0);
        check_status("paused");
    }
    resume((const char *[]){"--workers", "2", "--shards", "4", NULL}, 0);
    as_if_quiet(0);
    ck_assert_double_eq(result_number("restores"), 2);
}
END_TEST

/* A run that is done goes on for more epochs; the end of before is not taken for the new one. */
START_TEST(more_epochs)
{
    start("job.yaml", NULL);
    finish(0);
    as_if_quiet(0);
    resume(NULL, 0); /* nothing to do */
    ck_assert_ptr_nonnull(strstr(train.out, "done after 2680 steps"));
    resume((const char *[]){"--set", LONGER, NULL}, 0);
    as_if_quiet(1);
    ck_assert_double_le(result_number("steps_recomputed"), 0);
    resume(NULL, 0);
    ck_assert_ptr_nonnull(strstr(train.out, "done after 3082 steps"));
}
END_TEST

/* The same of a run that was killed on its way: also while it became the longer one. */
START_TEST(more_epochs_after_kill)
{
    start("job.yaml", NULL);
    await_step(1000);
    kill_everything();
    start("--resume", (const char *[]){"--set", LONGER, NULL});
    await_step(STEPS(EPOCHS) + 100);
    kill_everything();
    resume(NULL, 0);
    as_if_quiet(1);
}
END_TEST

/* What shapes the result may not change: each key is named with both values; --force takes it. */
START_TEST(refused_keys)
{
    start("job.yaml", NULL);
    await_progress(300);
    kill_everything();
    resume((const char *[]){"--set", "train.lr=0.01", "--set", "train.epochs=5", NULL}, 2);
    ck_assert_ptr_nonnull(strstr(train.err, "train.lr 0.005 -> 0.01"));
    ck_assert_ptr_nonnull(strstr(train.err, "train.epochs " EPOCHS_TEXT " -> 5"));
    ck_assert_ptr_nonnull(strstr(train.err, "--force"));
    resume((const char *[]){"--set", "train.lr=0.01", "--force", NULL}, 0);
    check_status("done");
    ck_assert_double_gt(result_number("restores"), 0);
}
END_TEST

/* The run's folder holds everything: it goes on elsewhere, without etcd's part of it. */
START_TEST(moved_without_etcd)
{
    char from[256], etcd[300], to[256];
    start("job.yaml", NULL);
    await_progress(600);
    kill_everything();
    double recomputed = newest_step() - newest_checkpoint();
    run_path(from);
    (void)snprintf(etcd, sizeof(etcd), "%s/etcd", from);
    (void)snprintf(to, sizeof(to), "%s/elsewhere", folder.path);
    ck_assert_int_eq(kelp_files_remove(etcd, NULL), KELP_OK);
    ck_assert_int_eq(rename(from, to), 0);
    const char *args[] = {"train", "--resume", "--run", "elsewhere", NULL};
    kelp_test_command_fini(&train);
    kelp_test_command_run(&train, folder.path, args, RUN_MS);
    ck_assert_msg(train.exit_code == 0, "it said:\n%s", train.err);
    ck_assert_int_eq(rename(to, from), 0);
    as_if_quiet(0);
    ck_assert_double_le(result_number("steps_recomputed"), recomputed + BETWEEN);
}
END_TEST

/* A shard that hangs is killed and started again, and its partitions restored. */
START_TEST(fenced_shard)
{
    start("job.yaml", (const char *[]){"--set", "failure.detect=300ms", "--set",
                                       "failure.shard_wait=1s", NULL});
    await_step(300);
    pid_t hanging = find("kelp-ps", "shard-1");
    ck_assert_int_eq(kill(hanging, SIGSTOP), 0);
    kelp_test_command_await(&train, "shard-1 has been silent for ", RUN_MS);
    kelp_test_command_await(&train, "shard-1 killed by signal 9", RUN_MS);
    finish(0);
    as_if_quiet(0);
    ck_assert_double_eq(result_number("restarts"), 1);
    ck_assert_double_eq(result_number("restores"), 1);
}
END_TEST

/* Restarts are used up: exit status 4, and the run goes on when it is resumed. */
START_TEST(gave_up)
{
    start("job.yaml", (const char *[]){"--set", "failure.max_failures=1", NULL});
    await_step(200);
    ck_assert_int_eq(kill(find("kelp-worker", "worker-0"), SIGKILL), 0);
    kelp_test_command_await(&train, "started again", RUN_MS);
    await_step(newest_step() + 100);
    ck_assert_int_eq(kill(find("kelp-worker", "worker-1"), SIGKILL), 0);
    finish(4);
    check_status("failed");
    ck_assert_ptr_nonnull(strstr(train.err, "worker-1 killed by signal 9"));
    ck_assert_ptr_nonnull(strstr(train.err, "failure.window=60m are used up"));
    ck_assert_ptr_nonnull(strstr(train.err, "go on by kelp train --resume --run run"));
    resume(NULL, 0);
    as_if_quiet(0);
}
END_TEST

/* kelp checkpoint makes one where none is due, and the run goes on from it. */
START_TEST(asked_for)
{
    struct kelp_test_command ask = {.process = NULL};
    double step = 0;
    start("job.yaml", (const char *[]){"--set", "checkpoint.steps=0", NULL});
    await_step(300);
    kelp_test_command_run(&ask, folder.path, (const char *[]){"checkpoint", "run", NULL}, RUN_MS);
    ck_assert_msg(ask.exit_code == 0, "exit %d: %s", ask.exit_code, ask.err);
    ck_assert_msg(sscanf(ask.out, "checkpoint at step %lf: ", &step) == 1, "%s", ask.out);
    ck_assert_double_ge(step, 300);
    kelp_test_command_fini(&ask);
    kill_everything();
    kelp_test_command_run(&ask, folder.path, (const char *[]){"checkpoint", "run", NULL}, RUN_MS);
    ck_assert_int_eq(ask.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(ask.err, "does not run"));
    kelp_test_command_fini(&ask);
    resume(NULL, 0);
    as_if_quiet(0);
    ck_assert_double_le(result_number("steps_recomputed"), STEPS(EPOCHS) - step);
}
END_TEST

static void run_quiet(void)
{
    static const char *const names[] = {"short", "long"};
    const char *args[] = {"train", "job.yaml", "--run", NULL, "--set", NULL, NULL};
    char path[256];
    kelp_test_folder_init(&quiet);
    (void)kelp_test_write(quiet.path, "job.yaml", job_text);
    for (int longer = 0; longer < 2; longer++) {
        args[3] = names[longer];
        args[4] = longer ? "--set" : NULL;
        args[5] = LONGER;
        kelp_test_command_run(&train, quiet.path, args, RUN_MS);
        ck_assert_msg(train.exit_code == 0, "it said:\n%s", train.err);
        kelp_test_command_fini(&train);
        (void)snprintf(path, sizeof(path), "%s/%s", quiet.path, names[longer]);
        text_of(path, "digest", quiet_digest[longer], sizeof(quiet_digest[longer]));
    }
}

static void remove_quiet(void)
{
    kelp_test_folder_fini(&quiet);
}

int main(void)
{
    Suite *suite = suite_create("resume");
    TCase *tcase = tcase_create("resume");
    tcase_add_unchecked_fixture(tcase, run_quiet, remove_quiet);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 200);
    tcase_add_test(tcase, killed_three_times);
    tcase_add_test(tcase, paused);
    tcase_add_test(tcase, terminated_twice);
    tcase_add_test(tcase, pause_timeout);
    tcase_add_test(tcase, other_numbers);
    tcase_add_test(tcase, more_epochs);
    tcase_add_test(tcase, more_epochs_after_kill);
    tcase_add_test(tcase, refused_keys);
    tcase_add_test(tcase, moved_without_etcd);
    tcase_add_test(tcase, fenced_shard);
    tcase_add_test(tcase, gave_up);
    tcase_add_test(tcase, asked_for);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
