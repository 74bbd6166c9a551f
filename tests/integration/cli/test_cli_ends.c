/*
 * How a run of the kelp command ends: signals at any moment, children that die, an etcd that goes.
 * No process outlives it.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/etcd/etcd.h"
#include "tests/lib/commands/cli_runs.h"
#include "tests/lib/suite.h"

static void sleep_ms(unsigned ms)
{
    struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    while (nanosleep(&wait, &wait) != 0) {
    }
}

KELP_CASE("ends", .timeout_s = 2 * KELP_TEST_HANG_S, .setup = runs_setup, .teardown = runs_teardown)

static const unsigned moments_ms[] = {0, 30, 100, 200, 300, 450, 700, 1500};

/* Ctrl-C at any moment: it ends, with one line that says how to go on, nothing left. */
KELP_LOOP_TEST(test_interrupt, 0, KELP_ARRAY_COUNT(moments_ms))
{
    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    sleep_ms(moments_ms[_i]);
    runs_stop(SIGINT);
    kelp_test_command_gone(&runs.train);
    if (strstr(runs.train.err, "kelp: run ")) {
        ck_assert_msg(runs.train.exit_code == 130, "exit %d: %s", runs.train.exit_code,
                      runs.train.err);
    } else {
        ck_assert_int_eq(runs.train.exit_code, -1); /* before there was anything to stop */
    }
}

/* SIGTERM is a stop in order, without a checkpoint when none is waited for, and the run can go on
 * afterwards. */
KELP_TEST(test_terminate)
{
    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", "--pause-timeout",
                                             "0s", "--set", "checkpoint.interval=0s", NULL});
    kelp_test_command_await(&runs.train, "step ");
    runs_stop(SIGTERM);
    ck_assert_int_eq(runs.train.exit_code, 128 + SIGTERM);
    ck_assert_ptr_nonnull(
        strstr(runs.train.err, "no checkpoint yet, so it begins again at step 0"));
    ck_assert_ptr_nonnull(strstr(runs.train.err, "--resume --run r"));
    kelp_test_command_gone(&runs.train);
    cJSON *result = kelp_test_read_json(runs.folder.path, "r/result.json");
    ck_assert_str_eq(kelp_test_text(result, "status"), "stopped");
    cJSON_Delete(result);
    runs_verb((const char *[]){"status", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(runs.verb.out, "--resume"));
}

/* A daemon that does not end by itself does not keep the run from ending. */
KELP_TEST(test_interrupt_with_a_stopped_child)
{
    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    kelp_test_command_await(&runs.train, "step ");
    (void)kelp_test_command_signal(&runs.train, "kelp-ps", "shard-0", SIGSTOP);
    (void)kelp_test_command_signal(&runs.train, "etcd", "--data-dir", SIGSTOP);
    kelp_process_signal(runs.train.process, SIGINT);
    kelp_test_command_await(&runs.train, "kelp: pausing: "); /* which it cannot */
    runs_stop(SIGINT);
    kelp_test_command_gone(&runs.train);
}

/* SIGKILL of the launcher at any moment leaves no process. */
KELP_LOOP_TEST(test_kill, 0, KELP_ARRAY_COUNT(moments_ms))
{
    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    sleep_ms(moments_ms[_i]);
    kelp_process_signal(runs.train.process, SIGKILL);
    (void)kelp_test_command_wait(&runs.train, KELP_TEST_HANG_MS);
    ck_assert_int_eq(runs.train.exit_code, -1);
    kelp_test_command_gone(&runs.train);
}

/* A run whose launcher was killed is not running, says so, and goes on to the same bits. */
KELP_TEST(test_resume_after_kill)
{
    struct kelp_test_command quiet = {0};
    char digest[64];

    kelp_test_command_run(&quiet, runs.folder.path,
                          (const char *[]){"train", "medium.yaml", "--run", "quiet", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_int_eq(quiet.exit_code, 0);
    const char *found = strstr(quiet.out, "digest ");
    ck_assert_ptr_nonnull(found);
    (void)snprintf(digest, sizeof(digest), "%.*s", (int)strcspn(found, "\n"), found);
    kelp_test_command_fini(&quiet);

    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "medium.yaml", "--run", "r", NULL});
    /* Any line of progress with a loss: which epochs it names depends on the machine. */
    kelp_test_command_await(&runs.train, "/60 loss 0.");
    kelp_process_signal(runs.train.process, SIGKILL);
    (void)kelp_test_command_wait(&runs.train, KELP_TEST_HANG_MS);
    runs_verb((const char *[]){"status", "r", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(runs.verb.out, "not running"));
    runs_verb((const char *[]){"digest", "r", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 2);
    runs_verb((const char *[]){"train", "medium.yaml", "--resume", "--run", "r", "--set",
                               "train.lr=0.1", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(runs.verb.err, "differs"));

    kelp_test_command_fini(&runs.verb);
    kelp_test_command_run(
        &runs.verb, runs.folder.path,
        (const char *[]){"train", "--resume", "--run", "r", "--workers", "3", NULL},
        KELP_TEST_HANG_MS);
    ck_assert_msg(runs.verb.exit_code == 0, "exit %d: %s", runs.verb.exit_code, runs.verb.err);
    ck_assert_msg(strstr(runs.verb.out, digest) != NULL, "not %s: %s", digest, runs.verb.out);
    ck_assert_uint_eq(runs_each_line("r/metrics.jsonl", runs_look_at_metrics), 3 * 60);
}

static const struct {
    const char *program;
    const char *id;
} victims[] = {{"kelp-worker", "worker-1"},
               {"kelp-ps", "shard-0"},
               {"kelp-coordinator", "coordinator-0"},
               {"etcd", "--data-dir"}};

/* A child that is killed is started again, and training goes on. */
KELP_LOOP_TEST(test_child_restarts, 0, KELP_ARRAY_COUNT(victims))
{
    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    kelp_test_command_await(&runs.train, "step ");
    pid_t pid = kelp_test_command_signal(&runs.train, victims[_i].program, victims[_i].id, SIGKILL);
    pid_t again = 0;
    kelp_test_command_await(&runs.train, "started again");
    KELP_TEST_AWAIT_FROM(
        &runs.train,
        (again = kelp_test_command_find(&runs.train, victims[_i].program, victims[_i].id)) > 0 &&
            again != pid,
        "it is not started again");
    runs_await_training();
    runs_stop(SIGINT);
    kelp_test_command_gone(&runs.train);
}

/* An etcd that dies, and then does not start for a while, costs a run nothing but restarts. */
KELP_TEST(test_etcd_starts_late)
{
    char script[512];
    (void)snprintf(script, sizeof(script),
                   "#!/bin/sh\n"
                   "echo started >> '%s/starts'\n"
                   "case $(wc -l < '%s/starts') in 2|3) echo no such luck; exit 1;; esac\n"
                   "PATH=$PATH:/usr/bin exec etcd \"$@\"\n",
                   runs.folder.path, runs.folder.path);
    const char *path = kelp_test_write(runs.folder.path, "etcd.sh", script);
    ck_assert_int_eq(chmod(path, 0700), 0);
    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", "--etcd-program",
                                             "./etcd.sh", "--set", "failure.restart_backoff=100ms",
                                             NULL});
    kelp_test_command_await(&runs.train, "step ");
    (void)kelp_test_command_signal(&runs.train, "etcd", "--data-dir", SIGKILL);
    kelp_test_command_await(&runs.train, "no such luck; it is started again in 100 ms");
    kelp_test_command_await(&runs.train, "no such luck; it is started again in 200 ms");
    runs_await_training();
    runs_stop(SIGINT);
    cJSON *result = kelp_test_read_json(runs.folder.path, "r/result.json");
    ck_assert_double_eq(cJSON_GetObjectItemCaseSensitive(result, "restarts")->valuedouble, 3);
    cJSON_Delete(result);
}

/* When the restarts are used up the run ends and says what failed, when, and how to go on; so does
 * the job's state in etcd, for whoever looks there. */
KELP_TEST(test_restarts_used_up)
{
    struct kelp_etcd_server *server = runs_start_etcd();
    const char *url = kelp_etcd_server_url(server);
    struct kelp_etcd *etcd = NULL;
    struct kelp_etcd_range range = {0};

    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", "--etcd", url,
                                             "--set", "failure.max_failures=0", NULL});
    kelp_test_command_await(&runs.train, "step ");
    (void)kelp_test_command_signal(&runs.train, "kelp-worker", "worker-0", SIGKILL);
    (void)kelp_test_command_wait(&runs.train, KELP_TEST_HANG_MS);
    ck_assert_int_eq(runs.train.exit_code, 4);
    ck_assert_ptr_nonnull(strstr(runs.train.err, "kelp: worker-0 killed by signal 9"));
    ck_assert_ptr_nonnull(strstr(runs.train.err, "failure.max_failures=0"));
    ck_assert_ptr_nonnull(strstr(runs.train.err, "kelp train --resume --run r"));
    kelp_test_command_gone(&runs.train);
    cJSON *result = kelp_test_read_json(runs.folder.path, "r/result.json");
    ck_assert_str_eq(kelp_test_text(result, "status"), "failed");
    ck_assert_int_eq(kelp_etcd_open(url, &etcd, NULL), KELP_OK);
    ck_assert_int_eq(kelp_etcd_get(etcd, "/kelp/long/state", 5000, &range, NULL), KELP_OK);
    ck_assert_uint_eq(range.count, 1);
    cJSON *state = cJSON_Parse(range.pairs[0].value);
    ck_assert_str_eq(kelp_test_text(state, "state"), "failed");
    ck_assert_str_eq(kelp_test_text(state, "reason"), kelp_test_text(result, "reason"));
    cJSON_Delete(state);
    cJSON_Delete(result);
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(etcd);
    kelp_etcd_server_stop(server, 1000);
}

/* A third signal ends everything at once, or the time for a stop is over: the exit status names the
 * newest one. Nobody reads the result that the run wants to write, so that it cannot end before. */
KELP_TEST(test_third_signal)
{
    char path[300];

    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    kelp_test_command_await(&runs.train, "step ");
    (void)snprintf(path, sizeof(path), "%s/r/result.json.new", runs.folder.path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    (void)kelp_test_command_signal(&runs.train, "kelp-ps", "shard-0", SIGSTOP);
    kelp_process_signal(runs.train.process, SIGHUP);
    kelp_test_command_await(&runs.train, "kelp: pausing: ");
    kelp_process_signal(runs.train.process, SIGINT);
    runs_stop(SIGINT);
    ck_assert_int_eq(runs.train.exit_code, 128 + SIGINT);
    ck_assert_ptr_nonnull(strstr(runs.train.err, "ended at once"));
    kelp_test_command_gone(&runs.train);
}
