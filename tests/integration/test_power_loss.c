/*
 * The power goes while a job runs: every process is killed, and the run's folder becomes what the
 * disk would hold (cli/faultdisk/faultdisk.h). `kelp train --resume` goes on from a checkpoint and
 * ends with the digest of the quiet run. And a disk that is full or broken while checkpoints are
 * written stops no step: the checkpoint fails, is said to have failed, and a later one works.
 */
#include <check.h>
#include <dirent.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "cli/faultdisk/faultdisk.h"
#include "common/base/files.h"
#include "tests/lib/run_command.h"
#include "tests/lib/run_train.h"

#define RUN_MS   240000 /* far more than anything takes; under sanitizers, on a busy machine */
#define STEPS_MS 90000

static const char job_text[] = "name: power\nseed: 11\n"
                               "data: {kind: synthetic}\n"
                               "train: {epochs: 16, batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "failure: {restart_backoff: 100ms}\n"
                               "checkpoint: {steps: 200, keep_last: 2, digest_steps: 50}\n";

static struct kelp_test_folder folder;
static struct kelp_test_command train;
static struct kelp_faultdisk *disk;
static char quiet_digest[33];
static struct kelp_error error;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        kelp_status status_of_call = (call);                                                       \
        ck_assert_msg(status_of_call == KELP_OK, "%s: %s", #call, error.text);                     \
    } while (0)

static void setup(void)
{
    kelp_test_folder_init(&folder);
    memset(&train, 0, sizeof(train));
    ck_assert_int_eq(chdir(folder.path), 0);
    MUST(kelp_files_make_folder("disk", &error));
    (void)kelp_test_write(folder.path, "disk/job.yaml", job_text);
    MUST(kelp_faultdisk_open("control", &disk, &error));
    MUST(kelp_faultdisk_begin("shadow", "disk", &error));
}

static void teardown(void)
{
    kelp_test_command_fini(&train);
    kelp_faultdisk_close(disk);
    ck_assert_int_eq(chdir("/"), 0);
    kelp_test_folder_fini(&folder);
}

/* ---- runs -------------------------------------------------------------------------------------
 */

static char library[1024];
static struct kelp_faultdisk_environment environment;

/* `name=value` into the environment of what is started from now on, or out of it. */
static void set_variable(char *variable, bool set)
{
    char *equals = strchr(variable, '=');
    *equals = '\0';
    (void)(set ? setenv(variable, equals + 1, 1) : unsetenv(variable));
    *equals = '=';
}

static void set_variables(bool set)
{
    set_variable(environment.preload, set);
    set_variable(environment.control, set);
    set_variable(environment.root, set);
    set_variable(environment.shadow, set);
}

/* `kelp train ARGS` in the folder, everything in it on the disk that may fail. */
static void start(const char *const *args)
{
    const struct kelp_faultdisk_paths paths = {
        .library = library, .control = "control", .root = "disk", .shadow = "shadow"};
    kelp_test_program("kelp-faultdisk.so", library, sizeof(library));
    MUST(kelp_faultdisk_environment(&paths, &environment, &error));
    set_variables(true);
    kelp_test_command_start(&train, folder.path, args);
    set_variables(false);
}

static void start_new(void)
{
    static const char *const args[] = {"train", "disk/job.yaml", "--run", "disk/run", NULL};
    start(args);
}

static void start_again(void)
{
    static const char *const args[] = {"train", "--resume", "--run", "disk/run", NULL};
    start(args);
}

static cJSON *read_json(const char *path)
{
    char *text = NULL;
    size_t count = 0;
    MUST(kelp_files_read(path, 1u << 20, &text, &count, &error));
    cJSON *json = cJSON_Parse(text);
    ck_assert_msg(json != NULL, "%s is not JSON:\n%s", path, text);
    free(text);
    return json;
}

static void finish_with_quiet_digest(const char *what)
{
    (void)kelp_test_command_wait(&train, RUN_MS);
    ck_assert_msg(train.exit_code == 0, "%s: exit %d; it said:\n%s", what, train.exit_code,
                  train.err);
    cJSON *result = read_json("disk/run/result.json");
    const char *digest = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(result, "digest"));
    ck_assert_msg(digest != NULL, "no digest in result.json");
    if (quiet_digest[0] == '\0') {
        (void)snprintf(quiet_digest, sizeof(quiet_digest), "%s", digest);
    }
    (void)printf("%-44s %s\n", what, digest);
    (void)fflush(stdout);
    ck_assert_str_eq(digest, quiet_digest);
    cJSON_Delete(result);
}

static double result_number(const char *name)
{
    cJSON *result = read_json("disk/run/result.json");
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(result, name);
    ck_assert_msg(cJSON_IsNumber(number), "no %s in result.json", name);
    double value = number->valuedouble;
    cJSON_Delete(result);
    return value;
}

static void pause_ms(long ms)
{
    struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&wait, NULL);
}

/* Where a checkpoint stands: folders are called step-<step>.g<generation>. */
struct place {
    long step;
    unsigned generation;
};

static bool holds_file(const char *checkpoint, const char *pattern)
{
    char path[600];
    bool there = false;
    (void)snprintf(path, sizeof(path), "disk/run/checkpoints/%s", checkpoint);
    DIR *files = opendir(path);
    for (const struct dirent *file; files && !there && (file = readdir(files));) {
        there = fnmatch(pattern, file->d_name, 0) == 0;
    }
    if (files) {
        (void)closedir(files);
    }
    return there;
}

/* The largest step and the latest generation of the folders under checkpoints/ in which a file of
 * that pattern is; 0 and 0: there is none. */
static struct place newest_checkpoint(const char *pattern)
{
    struct place newest = {0};
    DIR *entries = opendir("disk/run/checkpoints");
    for (const struct dirent *entry; entries && (entry = readdir(entries));) {
        struct place place = {0};
        /* NOLINTNEXTLINE(cert-err34-c): the count is checked */
        if (sscanf(entry->d_name, "step-%ld.g%u", &place.step, &place.generation) == 2 &&
            holds_file(entry->d_name, pattern)) {
            newest.step = place.step > newest.step ? place.step : newest.step;
            newest.generation =
                place.generation > newest.generation ? place.generation : newest.generation;
        }
    }
    if (entries) {
        (void)closedir(entries);
    }
    return newest;
}

/* Until there is such a checkpoint of that step or later and of that generation or later. The
 * folder is its only trace outside the job. */
static struct place await_checkpoint(const char *pattern, struct place from)
{
    struct place newest = {0};
    for (int waited = 0;; waited += 2) {
        newest = newest_checkpoint(pattern);
        if (newest.step >= from.step && newest.generation >= from.generation) {
            return newest;
        }
        if (waited >= STEPS_MS) {
            char *said = kelp_test_command_peek(&train);
            ck_abort_msg("no %s of step %ld, generation %u; it said:\n%s", pattern, from.step,
                         from.generation, said);
        }
        pause_ms(2);
    }
}

/* Every process at once, then what the disk holds. */
static void lose_power(uint64_t seed)
{
    static const char *const keep[] = {"run/etcd"}; /* written in Go: not seen, and synced */
    const struct kelp_faultdisk_loss loss = {.seed = seed, .keep = keep, .keep_count = 1};
    pid_t pids[64];
    size_t count = kelp_test_command_processes(&train, pids, 64);
    ck_assert_uint_ge(count, 1);
    for (size_t i = 0; i < count; i++) {
        (void)kill(pids[i], SIGKILL);
    }
    kelp_test_command_gone(&train, 10000);
    kelp_test_command_fini(&train);
    MUST(kelp_faultdisk_lose_power("shadow", "disk", &loss, &error));
}

static void set(enum kelp_faultdisk_mode mode, uint32_t slow_ms)
{
    const struct kelp_faultdisk_fault fault = {.mode = mode, .slow_ms = slow_ms};
    kelp_faultdisk_set(disk, &fault);
}

/* ---- tests ------------------------------------------------------------------------------------
 */

START_TEST(quiet)
{
    start_new();
    finish_with_quiet_digest("quiet");
}
END_TEST

/* Three times in one run, once for each way of losing what was not synced; a checkpoint that was
 * committed is there each time. What is waited for is a checkpoint of a generation that began after
 * the loss. A resumed job first writes the manifest.json that the loss took from a checkpoint, and
 * only then opens a generation, which is what counts as a restore. */
START_TEST(power_three_times)
{
    struct place committed = {.generation = 0};
    start_new();
    for (int round = 0; round < 3; round++) {
        const struct place next = {.generation = committed.generation + 1};
        committed = await_checkpoint("manifest.json", next);
        lose_power((uint64_t)round);
        ck_assert_int_ge(newest_checkpoint("shard-*").step, committed.step);
        start_again();
    }
    finish_with_quiet_digest("the power lost three times");
    ck_assert_int_ge((int)result_number("restores"), 3);
}
END_TEST

/* While a checkpoint is being written: it is never used, and the one before it is whole. */
START_TEST(power_while_writing)
{
    start_new();
    struct place committed = await_checkpoint("manifest.json", (struct place){.step = 200});
    set(KELP_FAULTDISK_SLOW, 10);
    (void)await_checkpoint("*.writing", (struct place){.step = committed.step + 1});
    lose_power((uint64_t)_i);
    set(KELP_FAULTDISK_OK, 0);
    start_again();
    finish_with_quiet_digest("the power lost while a checkpoint is written");
}
END_TEST

/* The disk fails for a while: checkpoints fail meanwhile, and the reason is said; no process is
 * lost by it, and when the disk works again, so do checkpoints. */
static void disk_fails(enum kelp_faultdisk_mode mode, const char *reason, const char *what)
{
    start_new();
    struct place committed = await_checkpoint("manifest.json", (struct place){.step = 200});
    set(mode, 0);
    kelp_test_command_await(&train, "a checkpoint failed", STEPS_MS);
    char *said = kelp_test_command_peek(&train);
    ck_assert_msg(strstr(strstr(said, "a checkpoint failed"), reason) != NULL, "it said:\n%s",
                  said);
    free(said);
    set(KELP_FAULTDISK_OK, 0);
    (void)await_checkpoint("manifest.json", (struct place){.step = committed.step + 1});
    finish_with_quiet_digest(what);
    ck_assert_int_eq((int)result_number("restores"), 0);
    ck_assert_int_eq((int)result_number("restarts"), 0);
}

START_TEST(full_disk)
{
    disk_fails(KELP_FAULTDISK_FULL, "No space left", "the disk full for a while");
}
END_TEST

START_TEST(broken_disk)
{
    disk_fails(KELP_FAULTDISK_ERROR, "Input/output error", "the disk broken for a while");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("power_loss");
    TCase *tcase = tcase_create("disk");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 300);
    tcase_add_test(tcase, quiet);
    tcase_add_test(tcase, power_three_times);
    tcase_add_loop_test(tcase, power_while_writing, 0, 2);
    tcase_add_test(tcase, full_disk);
    tcase_add_test(tcase, broken_disk);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK); /* the quiet digest is shared */
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
