/*
 * Lanes of a worker that is slow, stopped or cut off are computed by the others at once, without
 * the coordinator: the steps go on, and nothing that the worker does when it wakes up changes a
 * bit.
 */
#include <check.h>
#include <curl/curl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cjson/cJSON.h>

#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "tests/lib/run_command.h"
#include "tests/lib/run_train.h"
#include "tests/lib/step_watch.h"

#define RUN_MS   60000
#define STEPS_MS 20000
#define STOP_AT  300 /* step */

/* Steps of about a millisecond: late after 12 ms, covered after 20 on a machine that has time for
 * it (what it was is printed). A busy one may take much longer; without offers nothing happens for
 * 30 seconds, or for one where that is the limit. */
#define GAP_US    2000000
#define DETECT_US 950000
#define STOPPED_S 3
#define WINDOW_US 1500000
#define STEPS_MIN 5 /* in a window; 75 would be one each 20 ms */

static const char job_text[] = "name: cover\nseed: 11\n"
                               "data: {kind: synthetic}\n"
                               "train: {epochs: 12, batch_size: 32}\n"
                               "cluster: {workers: 3, shards: 2, lanes: 4}\n"
                               "failure: {detect: 30s}\n"
                               "checkpoint: {at_end: false}\n";

static struct kelp_test_folder folder;
static struct kelp_test_command train;
static struct kelp_step_watch *watch;
static char quiet_digest[33];
static char run_path[256];

static void setup(void)
{
    kelp_test_folder_init(&folder);
    memset(&train, 0, sizeof(train));
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
    (void)snprintf(run_path, sizeof(run_path), "%s/run", folder.path);
}

static void teardown(void)
{
    kelp_step_watch_close(watch);
    watch = NULL;
    kelp_test_command_fini(&train);
    kelp_test_folder_fini(&folder);
}

static void start(const char *const *more)
{
    const char *args[24] = {"train", "job.yaml", "--run", "run"};
    size_t count = 4;
    for (; more && *more; more++) {
        args[count++] = *more;
    }
    args[count] = NULL;
    kelp_test_command_start(&train, folder.path, args);
    watch = kelp_step_watch_open(run_path);
}

static void finish(const char *what)
{
    char path[300];
    char text[4096];

    (void)kelp_test_command_wait(&train, RUN_MS);
    ck_assert_msg(train.exit_code == 0, "%s: exit %d; it said:\n%s", what, train.exit_code,
                  train.err);
    (void)snprintf(path, sizeof(path), "%s/result.json", run_path);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    size_t length = fread(text, 1, sizeof(text) - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    cJSON *result = cJSON_Parse(text);
    const char *digest = cJSON_GetObjectItemCaseSensitive(result, "digest")->valuestring;
    printf("%-50s %s\n", what, digest);
    (void)fflush(stdout);
    if (quiet_digest[0] == '\0') {
        (void)snprintf(quiet_digest, sizeof(quiet_digest), "%s", digest);
    }
    ck_assert_str_eq(digest, quiet_digest);
    cJSON_Delete(result);
}

static pid_t find(const char *program, const char *id)
{
    pid_t pid = kelp_test_command_find(&train, program, id);
    ck_assert_msg(pid > 0, "no process %s %s", program, id);
    return pid;
}

static void pause_s(int seconds)
{
    struct timespec wait = {.tv_sec = seconds};
    (void)nanosleep(&wait, NULL);
}

/* From from_us on for WINDOW_US the steps go on, because lanes were offered. */
static void steps_go_on(uint64_t from_us)
{
    uint64_t to_us = from_us + WINDOW_US;
    while (kelp_clock_us() < to_us) {
        struct timespec wait = {.tv_nsec = 20000000};
        (void)nanosleep(&wait, NULL);
    }
    uint64_t gap_us = kelp_step_watch_gap_us(watch, from_us, to_us);
    uint64_t count = kelp_step_watch_count(watch, from_us, to_us);
    printf("  %llu steps in %.1f s, longest pause %.0f ms, %llu lanes offered\n",
           (unsigned long long)count, (double)WINDOW_US / 1e6, (double)gap_us / 1e3,
           (unsigned long long)kelp_step_watch_offers(watch));
    ck_assert_uint_lt(gap_us, GAP_US);
    ck_assert_uint_ge(count, STEPS_MIN);
    ck_assert_uint_gt(kelp_step_watch_offers(watch), 0);
}

/* Of the worker by `kelp status`; -1: it is not a member. */
static int lanes_of(const char *id)
{
    struct kelp_test_command status = {.process = NULL};
    const char *args[] = {"status", "run", "-o", "json", NULL};
    int lanes = -1;

    kelp_test_command_run(&status, folder.path, args, STEPS_MS);
    ck_assert_msg(status.exit_code == 0, "%s", status.err);
    cJSON *json = cJSON_Parse(status.out);
    const cJSON *worker = NULL;
    cJSON_ArrayForEach(worker, cJSON_GetObjectItemCaseSensitive(json, "workers"))
    {
        if (strcmp(cJSON_GetObjectItemCaseSensitive(worker, "id")->valuestring, id) == 0) {
            lanes = cJSON_GetObjectItemCaseSensitive(worker, "lane_count")->valueint;
        }
    }
    cJSON_Delete(json);
    kelp_test_command_fini(&status);
    return lanes;
}

START_TEST(quiet)
{
    start(NULL);
    finish("quiet");
}
END_TEST

/* It computes for three seconds, and answers heartbeats meanwhile: the coordinator sees nothing. */
START_TEST(slow_worker)
{
    static const char *const more[] = {"--fault", "worker-1:stall@step=300", NULL};
    start(more);
    kelp_step_watch_await(watch, STOP_AT, STEPS_MS);
    steps_go_on(kelp_clock_us());
    finish("a worker that is slow once");
}
END_TEST

/* Worker and coordinator at the same time: nobody else than the shards can do anything. */
START_TEST(stopped_with_the_coordinator)
{
    start(NULL);
    kelp_step_watch_await(watch, STOP_AT, STEPS_MS);
    pid_t coordinator = find("kelp-coordinator", "coordinator-0");
    pid_t worker = find("kelp-worker", "worker-1");
    ck_assert_int_eq(kill(coordinator, SIGSTOP), 0);
    ck_assert_int_eq(kill(worker, SIGSTOP), 0);
    steps_go_on(kelp_clock_us());
    ck_assert_int_eq(kill(worker, SIGCONT), 0);
    ck_assert_int_eq(kill(coordinator, SIGCONT), 0);
    finish("a worker and the coordinator stopped");
}
END_TEST

/* Two workers have all the lanes; the third, which waits at the shards without pulling, does all.
 */
START_TEST(spare_covers_everything)
{
    static const char *const more[] = {"--set", "cluster.lanes=2", "--set", "train.epochs=4", NULL};
    static const char *const ids[] = {"worker-0", "worker-1", "worker-2"};
    pid_t stopped[KELP_ARRAY_COUNT(ids)];
    size_t count = 0;

    start(more);
    kelp_step_watch_await(watch, 50, STEPS_MS);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(ids); i++) {
        if (lanes_of(ids[i]) > 0) {
            stopped[count++] = find("kelp-worker", ids[i]);
        }
    }
    ck_assert_uint_eq(count, 2);
    stopped[count++] = find("kelp-coordinator", "coordinator-0");
    for (size_t i = 0; i < count; i++) {
        ck_assert_int_eq(kill(stopped[i], SIGSTOP), 0);
    }
    steps_go_on(kelp_clock_us());
    for (size_t i = 0; i < count; i++) {
        ck_assert_int_eq(kill(stopped[i], SIGCONT), 0);
    }
    (void)kelp_test_command_wait(&train, RUN_MS);
    ck_assert_msg(train.exit_code == 0, "exit %d; it said:\n%s", train.exit_code, train.err);
}
END_TEST

/* The coordinator gives its lanes away after a second; when it wakes up it is let in again. */
START_TEST(woken_worker_comes_back)
{
    static const char *const more[] = {"--set", "failure.detect=1s", "--set", "train.epochs=60",
                                       NULL};
    start(more);
    kelp_step_watch_await(watch, STOP_AT, STEPS_MS);
    pid_t worker = find("kelp-worker", "worker-1");
    ck_assert_int_gt(lanes_of("worker-1"), 0);
    uint64_t from_us = kelp_clock_us();
    ck_assert_int_eq(kill(worker, SIGSTOP), 0);
    pause_s(STOPPED_S);
    ck_assert_int_eq(lanes_of("worker-1"), -1);
    ck_assert_uint_lt(kelp_step_watch_gap_us(watch, from_us, kelp_clock_us()), DETECT_US);
    ck_assert_int_eq(kill(worker, SIGCONT), 0);
    for (int waited = 0; lanes_of("worker-1") <= 0; waited++) {
        ck_assert_msg(waited < 50, "it did not come back");
        struct timespec wait = {.tv_nsec = 50000000};
        (void)nanosleep(&wait, NULL);
    }
    ck_assert_int_eq(find("kelp-worker", "worker-1"), worker); /* the same process */
    (void)kelp_test_command_wait(&train, RUN_MS);
    ck_assert_msg(train.exit_code == 0, "exit %d; it said:\n%s", train.exit_code, train.err);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cover");
    TCase *tcase = tcase_create("late workers");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 200);
    tcase_add_test(tcase, quiet);
    tcase_add_test(tcase, slow_worker);
    tcase_add_test(tcase, stopped_with_the_coordinator);
    tcase_add_test(tcase, spare_covers_everything);
    tcase_add_test(tcase, woken_worker_comes_back);
    suite_add_tcase(suite, tcase);
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    kelp_rpc_global_init();
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK); /* the quiet digest is shared */
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    kelp_rpc_global_fini();
    curl_global_cleanup();
    return failed == 0 ? 0 : 1;
}
