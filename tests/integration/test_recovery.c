/*
 * Checkpoints at work in whole clusters: a shard that is killed goes back to the newest checkpoint
 * and no further; a damaged one is left for the one before it; storage that is not there is waited
 * for; and when everything was killed at once, the run goes on from where it can. Always with the
 * digest of the quiet run, which alone would prove little: a run that starts over has it too.
 */
#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "common/base/files.h"
#include "tests/lib/run_command.h"
#include "tests/lib/run_train.h"

#define RUN_MS   60000
#define INTERVAL 100 /* steps */

static const char job_text[] = "name: recovery\nseed: 11\n"
                               "data: {kind: synthetic}\n"
                               "train: {epochs: 20, batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "failure: {restart_backoff: 100ms}\n"
                               "checkpoint: {digest_steps: 50, keep_last: 3}\n";

static struct kelp_test_folder folder;
static struct kelp_test_command train;
static char quiet_digest[33];

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

static void pause_ms(long ms)
{
    struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&wait, NULL);
}

/* ---- what the run's folder says ---------------------------------------------------------------
 */

static char *run_file(const char *name)
{
    char path[512];
    char *text = NULL;
    size_t bytes = 0;
    (void)snprintf(path, sizeof(path), "%s/run/%s", folder.path, name);
    if (kelp_files_read(path, 64u << 20, &text, &bytes, NULL) != KELP_OK) {
        text = strdup("");
    }
    ck_assert_ptr_nonnull(text);
    return text;
}

static bool logged(const char *text)
{
    char *log = run_file("logs/coordinator-0.log");
    bool found = strstr(log, text) != NULL;
    free(log);
    return found;
}

static void await_log(const char *text)
{
    for (int waited = 0; !logged(text); waited += 5) {
        ck_assert_msg(waited < RUN_MS / 2, "the coordinator never said: %s", text);
        pause_ms(5); /* the file is the event's only trace outside the job */
    }
}

/* The number after `name` in the last line that holds text, of those before the first line that
 * holds `until` (NULL: of all); -1: there is none. */
static double number_before(const char *until, const char *text, const char *name)
{
    char *log = run_file("logs/coordinator-0.log");
    char *end = until == NULL ? NULL : strstr(log, until);
    const char *line = NULL;
    if (end != NULL) {
        *end = '\0';
    }
    for (const char *at = strstr(log, text); at != NULL; at = strstr(at + 1, text)) {
        line = at;
    }
    const char *number = line == NULL ? NULL : strstr(line, name);
    double value = number == NULL ? -1 : strtod(number + strlen(name), NULL);
    free(log);
    return value;
}

static double last_number(const char *text, const char *name)
{
    return number_before(NULL, text, name);
}

/* Of result.json; fails the test when it is missing. */
static double result_number(const char *name)
{
    char *text = run_file("result.json");
    cJSON *object = cJSON_Parse(text);
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    ck_assert_msg(cJSON_IsNumber(value), "result.json has no number %s:\n%s", name, text);
    double number = value->valuedouble;
    cJSON_Delete(object);
    free(text);
    return number;
}

/* The highest step that has a manifest.json, its path and its name; -1: none. */
static long newest_checkpoint(char path[512], char name[256])
{
    char parent[256];
    long newest = -1;
    (void)snprintf(parent, sizeof(parent), "%s/run/checkpoints", folder.path);
    DIR *found = opendir(parent);
    for (const struct dirent *entry = found == NULL ? NULL : readdir(found); entry != NULL;
         entry = readdir(found)) {
        char manifest[600];
        struct stat info;
        (void)snprintf(manifest, sizeof(manifest), "%s/%s/manifest.json", parent, entry->d_name);
        if (strncmp(entry->d_name, "step-", 5) == 0 && stat(manifest, &info) == 0 &&
            strtol(entry->d_name + 5, NULL, 10) > newest) {
            newest = strtol(entry->d_name + 5, NULL, 10);
            (void)snprintf(path, 512, "%s/%s", parent, entry->d_name);
            (void)snprintf(name, 256, "%s", entry->d_name);
        }
    }
    if (found != NULL) {
        (void)closedir(found);
    }
    return newest;
}

/* A checkpoint of that step or later is committed, and says so beside its data. */
static void await_checkpoint(long step, char path[512], char name[256])
{
    for (int waited = 0; newest_checkpoint(path, name) < step; waited += 5) {
        ck_assert_msg(waited < RUN_MS / 2, "no checkpoint of step %ld or later", step);
        pause_ms(5);
    }
}

/* The storage of a shard in a checkpoint. */
static void storage_of(const char *checkpoint, const char *shard, char path[1024])
{
    DIR *found = opendir(checkpoint);
    ck_assert_ptr_nonnull(found);
    path[0] = '\0';
    for (const struct dirent *entry = readdir(found); entry != NULL; entry = readdir(found)) {
        if (strncmp(entry->d_name, shard, strlen(shard)) == 0) {
            (void)snprintf(path, 1024, "%s/%s", checkpoint, entry->d_name);
        }
    }
    (void)closedir(found);
    ck_assert_msg(path[0] != '\0', "%s has no storage of %s", checkpoint, shard);
}

/* Flip one bit in the middle of the largest file of a storage. */
static void damage(const char *storage)
{
    char path[1400] = "";
    off_t largest = 0;
    DIR *found = opendir(storage);
    ck_assert_ptr_nonnull(found);
    for (const struct dirent *entry = readdir(found); entry != NULL; entry = readdir(found)) {
        char file[1300];
        struct stat info;
        (void)snprintf(file, sizeof(file), "%s/%s", storage, entry->d_name);
        if (stat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > largest) {
            largest = info.st_size;
            (void)snprintf(path, sizeof(path), "%s", file);
        }
    }
    (void)closedir(found);
    ck_assert_int_gt(largest, 0);
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, (long)(largest / 2), SEEK_SET), 0);
    int byte = fgetc(file);
    ck_assert_int_ne(byte, EOF);
    ck_assert_int_eq(fseek(file, (long)(largest / 2), SEEK_SET), 0);
    ck_assert_int_ne(fputc(byte ^ 16, file), EOF);
    ck_assert_int_eq(fclose(file), 0);
}

/* ---- running ----------------------------------------------------------------------------------
 */

static void start(bool resume, const char *const *more)
{
    const char *args[24] = {"train"};
    size_t count = 1;
    args[count++] = resume ? "--resume" : "job.yaml";
    args[count++] = "--run";
    args[count++] = "run";
    for (; more && *more; more++) {
        args[count++] = *more;
    }
    args[count] = NULL;
    kelp_test_command_fini(&train);
    memset(&train, 0, sizeof(train));
    kelp_test_command_start(&train, folder.path, args);
}

static const char *const by_steps[] = {"--set", "checkpoint.steps=100", NULL};
static const char *const on_request[] = {"--set", "checkpoint.interval=0s", NULL};

/* The end of what was written to standard error: Check bounds its messages. */
static const char *last_words(void)
{
    size_t length = strlen(train.err);
    return length > 2000 ? train.err + length - 2000 : train.err;
}

static void finish(const char *what)
{
    char digest[64];
    (void)kelp_test_command_wait(&train, RUN_MS);
    ck_assert_msg(train.exit_code == 0, "%s: exit %d; it said:\n%s", what, train.exit_code,
                  last_words());
    char *text = run_file("result.json");
    const char *at = strstr(text, "\"digest\":\"");
    ck_assert_msg(at != NULL, "%s", text);
    (void)snprintf(digest, sizeof(digest), "%.32s", at + 10);
    free(text);
    if (quiet_digest[0] == '\0') {
        (void)snprintf(quiet_digest, sizeof(quiet_digest), "%.32s", digest);
    }
    printf("%-44s %s\n", what, digest);
    (void)fflush(stdout);
    ck_assert_str_eq(digest, quiet_digest);
}

static void kill_now(const char *text, const char *other)
{
    pid_t pid = kelp_test_command_find(&train, text, other);
    ck_assert_msg(pid > 0, "no process %s %s; it said:\n%s", text, other, last_words());
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
}

/* Everything at once: launcher, etcd, coordinator, shards, workers. */
static void kill_all(void)
{
    pid_t pids[32];
    size_t count = kelp_test_command_processes(&train, pids, KELP_ARRAY_COUNT(pids));
    ck_assert_uint_ge(count, 6);
    for (size_t i = 0; i < count && i < KELP_ARRAY_COUNT(pids); i++) {
        (void)kill(pids[i], SIGKILL); /* some end because others do */
    }
    (void)kelp_test_command_wait(&train, RUN_MS);
    kelp_test_command_gone(&train, 5000);
}

/* Ask for a checkpoint, wait for it; its folder. */
static void checkpoint_now(char path[512], char name[256])
{
    struct kelp_test_command command = {.process = NULL};
    const char *args[] = {"checkpoint", "run", NULL};
    char unused[512];
    char unused_name[256];
    long before = newest_checkpoint(unused, unused_name);
    await_log("job state=running");
    kelp_test_command_run(&command, folder.path, args, RUN_MS);
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    kelp_test_command_fini(&command);
    await_checkpoint(before + 1, path, name);
}

START_TEST(quiet)
{
    start(false, NULL);
    finish("quiet");
    ck_assert(logged("checkpoint committed")); /* of the final state */
}
END_TEST

/* It goes back to the newest checkpoint that was committed by then. What is computed again is the
 * interval at most, and what was in flight: the steps made while checkpoints were on their way, the
 * committed one and perhaps the next, which the loss ended. */
START_TEST(shard_killed)
{
    char path[512];
    char name[256];
    start(false, by_steps);
    await_checkpoint(2 * INTERVAL, path, name);
    kill_now("kelp-ps", "shard-1");
    finish("a shard killed, restored");
    double restored = last_number("restoring", "step=");
    double from = last_number("going back", "from_step=");
    ck_assert_double_ge(restored, 2 * INTERVAL);
    ck_assert_double_eq(restored, number_before("shard lost", "checkpoint committed", " step="));
    ck_assert_double_eq(result_number("restores"), 1);
    ck_assert_double_eq(result_number("steps_recomputed"), from - restored);
    /* Since the newest commit, or since the next one was ordered, no more than the interval. */
    double committed_at = number_before("shard lost", "checkpoint committed", "at_step=");
    double ordered = number_before("shard lost", "checkpoint ordered", " step=");
    double ordered_at = number_before("shard lost", "checkpoint ordered", "at_step=");
    double idle = (ordered > restored ? ordered_at : from) - committed_at;
    double lead =
        result_number("steps_per_s") * 0.4; /* orders go out so far ahead, on a busy host */
    ck_assert_msg(idle <= INTERVAL + lead, "no order from step %g to %g, at %g steps/s",
                  committed_at, committed_at + idle, result_number("steps_per_s"));
}
END_TEST

/* A flipped bit in the newest checkpoint: said, and the one before it is used. */
START_TEST(newest_is_damaged)
{
    char first[512];
    char second[512];
    char name[256];
    char storage[1024];
    char expected[300];
    start(false, on_request);
    checkpoint_now(first, name);
    (void)snprintf(expected, sizeof(expected), "folder=%s ", name);
    checkpoint_now(second, name);
    ck_assert_str_ne(first, second);
    storage_of(second, "shard-0", storage);
    damage(storage);
    kill_now("kelp-ps", "shard-1");
    finish("the newest checkpoint damaged");
    ck_assert(logged("is damaged: shard-"));
    double step = last_number("restoring", "step=");
    ck_assert_double_eq(step, strtod(strstr(expected, "step-") + 5, NULL));
    struct stat info;
    ck_assert_int_ne(stat(second, &info), 0); /* taken out of the list, then removed */
}
END_TEST

/* All of them are damaged: from version 0, which is said. */
START_TEST(all_are_damaged)
{
    char path[512];
    char name[256];
    char storage[1024];
    start(false, on_request);
    checkpoint_now(path, name);
    storage_of(path, "shard-1", storage);
    damage(storage);
    kill_now("kelp-ps", "shard-0");
    finish("the only checkpoint damaged");
    ck_assert(logged("no checkpoint can be restored: starting again from version 0"));
    ck_assert_double_ge(result_number("steps_recomputed"), strtod(name + 5, NULL));
}
END_TEST

/* Everything is killed at once; resumed with the etcd that it had, or with an empty one. */
START_TEST(all_killed)
{
    char path[512];
    char name[256];
    struct kelp_error error = {.text = ""};
    start(false, by_steps);
    await_checkpoint(3 * INTERVAL, path, name);
    kill_all();
    if (_i == 1) {
        (void)snprintf(path, sizeof(path), "%s/run/etcd", folder.path);
        ck_assert_msg(kelp_files_remove(path, &error) == KELP_OK, "%s", error.text);
    }
    start(true, NULL);
    finish(_i == 0 ? "all killed, resumed" : "all killed, etcd lost, resumed");
    ck_assert_double_ge(last_number("restoring", "step="), 3 * INTERVAL);
    ck_assert(logged("checkpoints taken from the run's folder") == (_i == 1));
}
END_TEST

/* A storage is not there at the start: waited for by name, and used when it comes; or, with a
 * limit, the job fails and says how to go on. */
START_TEST(storage_is_away)
{
    static const char *const limited[] = {"--set", "failure.storage_wait=1s", NULL};
    char path[512];
    char name[256];
    char storage[1024];
    char away[1100];
    start(false, by_steps);
    await_checkpoint(2 * INTERVAL, path, name);
    kill_all();
    (void)newest_checkpoint(path, name); /* perhaps there is a newer one by now */
    storage_of(path, "shard-1", storage);
    (void)snprintf(away, sizeof(away), "%s/away", folder.path);
    ck_assert_int_eq(rename(storage, away), 0);
    start(true, _i == 0 ? NULL : limited);
    if (_i == 0) {
        await_log("shard waits shard=");
        ck_assert(logged(name));
        ck_assert_int_eq(rename(away, storage), 0);
        finish("storage that came later");
        ck_assert_double_ge(last_number("restoring", "step="), 2 * INTERVAL);
        return;
    }
    (void)kelp_test_command_wait(&train, RUN_MS);
    ck_assert_msg(train.exit_code == 4, "exit %d; it said:\n%s", train.exit_code, last_words());
    ck_assert_msg(strstr(train.err, "failure.storage_wait") != NULL, "%s", last_words());
    ck_assert_msg(strstr(train.err, "--resume") != NULL, "%s", last_words());
}
END_TEST

/* SIGTERM: a checkpoint, exit 0; going on from exactly there. */
START_TEST(paused)
{
    start(false, on_request);
    await_log("epoch completed epoch=1 ");
    pid_t pid = kelp_test_command_find(&train, "train", "job.yaml");
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    (void)kelp_test_command_wait(&train, RUN_MS);
    ck_assert_msg(train.exit_code == 0, "exit %d; it said:\n%s", train.exit_code, last_words());
    double step = last_number("checkpoint committed", "step=");
    ck_assert_double_gt(step, 0);
    ck_assert(logged("job state=paused"));
    start(true, NULL);
    finish("paused, resumed");
    ck_assert_double_eq(last_number("restoring", "step="), step);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("recovery");
    TCase *tcase = tcase_create("recovery");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 200);
    tcase_add_test(tcase, quiet);
    tcase_add_test(tcase, shard_killed);
    tcase_add_test(tcase, newest_is_damaged);
    tcase_add_test(tcase, all_are_damaged);
    tcase_add_loop_test(tcase, all_killed, 0, 2);
    tcase_add_loop_test(tcase, storage_is_away, 0, 2);
    tcase_add_test(tcase, paused);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK); /* the quiet digest is shared */
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
