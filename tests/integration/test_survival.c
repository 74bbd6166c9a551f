/*
 * Whatever process of a running job is killed, the run ends by itself with the digest of the quiet
 * run; and a worker that has other data than the rest is refused in one line. Kills are placed by
 * step: a digest of the run's trail shows that training has come so far, and much is left.
 */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cjson/cJSON.h>

#include "tests/lib/run_command.h"
#include "tests/lib/run_train.h"

#define RUN_MS   60000
#define KILL_AT  600 /* step */
#define STEPS_MS 20000

static const char job_text[] = "name: survival\nseed: 11\n"
                               "data: {kind: synthetic}\n"
                               "train: {epochs: 12, batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "failure: {restart_backoff: 100ms}\n"
                               "checkpoint: {digest_steps: 50}\n";

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

/* The newest step in FOLDER/run/digests.jsonl; 0 when there is none. */
static double newest_step(void)
{
    char path[256];
    char line[512];
    double step = 0;
    (void)snprintf(path, sizeof(path), "%s/run/digests.jsonl", folder.path);
    FILE *file = fopen(path, "r");
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
        pause_ms(5); /* the file is the event's only trace outside the job */
    }
}

static void final_digest(char ret_digest[33])
{
    char path[256];
    char text[4096];
    (void)snprintf(path, sizeof(path), "%s/run/result.json", folder.path);
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "no result.json; it said:\n%s", train.err);
    size_t length = fread(text, 1, sizeof(text) - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    cJSON *object = cJSON_Parse(text);
    const cJSON *digest = cJSON_GetObjectItemCaseSensitive(object, "digest");
    ck_assert(cJSON_IsString(digest));
    (void)snprintf(ret_digest, 33, "%s", digest->valuestring);
    cJSON_Delete(object);
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
}

static void finish_with_quiet_digest(const char *what)
{
    char digest[33];
    (void)kelp_test_command_wait(&train, RUN_MS);
    ck_assert_msg(train.exit_code == 0, "%s: exit %d; it said:\n%s", what, train.exit_code,
                  train.err);
    final_digest(digest);
    if (quiet_digest[0] == '\0') {
        memcpy(quiet_digest, digest, sizeof(digest));
    }
    printf("%-44s %s\n", what, digest);
    (void)fflush(stdout);
    ck_assert_str_eq(digest, quiet_digest);
}

static void kill_now(const char *text, const char *other)
{
    pid_t pid = kelp_test_command_find(&train, text, other);
    ck_assert_msg(pid > 0, "no process %s %s; it said:\n%s", text, other, train.err);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
}

START_TEST(quiet)
{
    start(NULL);
    finish_with_quiet_digest("quiet");
}
END_TEST

/* All partitions start over, on the restarted shard and on the one that stayed. */
START_TEST(shard_killed)
{
    start(NULL);
    await_step(KILL_AT);
    kill_now("kelp-ps", "shard-1");
    finish_with_quiet_digest("a shard killed, restarted");
}
END_TEST

/* Its partitions move to the shard that is left. */
START_TEST(shard_lost_for_good)
{
    static const char *const more[] = {"--no-restart", "--set", "failure.shard_wait=1s", NULL};
    start(more);
    await_step(KILL_AT);
    kill_now("kelp-ps", "shard-0");
    finish_with_quiet_digest("a shard killed, its partitions moved");
}
END_TEST

START_TEST(coordinator_killed)
{
    start(NULL);
    await_step(KILL_AT);
    kill_now("kelp-coordinator", "coordinator-0");
    finish_with_quiet_digest("the coordinator killed, restarted");
}
END_TEST

START_TEST(standby_takes_over)
{
    static const char *const more[] = {"--coordinators", "2", "--no-restart", NULL};
    start(more);
    await_step(KILL_AT);
    kill_now("kelp-coordinator", "coordinator-0");
    finish_with_quiet_digest("one coordinator of two killed");
}
END_TEST

START_TEST(etcd_killed)
{
    start(NULL);
    await_step(KILL_AT);
    kill_now("etcd", "--data-dir");
    finish_with_quiet_digest("etcd killed, restarted");
}
END_TEST

START_TEST(worker_and_shard_killed)
{
    start(NULL);
    await_step(KILL_AT);
    kill_now("kelp-worker", "worker-0");
    kill_now("kelp-ps", "shard-0");
    finish_with_quiet_digest("a worker and a shard killed");
}
END_TEST

/* So many small partitions that the last one is empty: nobody waits for it. */
START_TEST(empty_partition)
{
    static const char *const more[] = {
        "--set", "model.kind=mlp", "--set", "model.hidden=[679]", "--set", "cluster.max_shards=32",
        "--set", "train.epochs=1", NULL};
    start(more);
    (void)kelp_test_command_wait(&train, RUN_MS);
    ck_assert_msg(train.exit_code == 0, "exit %d; it said:\n%s", train.exit_code, train.err);
}
END_TEST

static void generate(const char *seed)
{
    struct kelp_test_command command = {.process = NULL};
    const char *args[] = {"data", "generate", "--out", "data.csv", "--seed", seed, NULL};
    kelp_test_command_run(&command, folder.path, args, RUN_MS);
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    kelp_test_command_fini(&command);
}

/* The file changes between the start of two workers: the later one is refused by the fingerprint.
 */
START_TEST(worker_with_other_data)
{
    static const char *const more[] = {"--workers", "1:2",
                                       "--set",     "data.kind=csv",
                                       "--set",     "data.path=data.csv",
                                       "--set",     "train.epochs=200",
                                       "--at",      "step=600:add-worker",
                                       NULL};
    generate("1");
    start(more);
    await_step(50);
    generate("2");
    (void)kelp_test_command_wait(&train, RUN_MS);
    ck_assert_int_eq(train.exit_code, 2);
    ck_assert_msg(strstr(train.err, "fingerprint") != NULL, "it said:\n%s", train.err);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("survival");
    TCase *tcase = tcase_create("kills");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 200);
    tcase_add_test(tcase, quiet);
    tcase_add_test(tcase, shard_killed);
    tcase_add_test(tcase, shard_lost_for_good);
    tcase_add_test(tcase, coordinator_killed);
    tcase_add_test(tcase, standby_takes_over);
    tcase_add_test(tcase, etcd_killed);
    tcase_add_test(tcase, worker_and_shard_killed);
    tcase_add_test(tcase, empty_partition);
    tcase_add_test(tcase, worker_with_other_data);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK); /* the quiet digest is shared */
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
