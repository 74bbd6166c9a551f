/*
 * Training is a pure function of the job: the digest after three epochs of the ETTh1 job with eight
 * lanes is one and the same for any number of workers and shards, and when workers join or are
 * killed on the way. Runs on ETTh1.csv where it is there, else on the generated series.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/shared_files.h"
#include "tests/lib/suite.h"

#define RUN_TIMEOUT_S (KELP_TEST_HANG_MS / 1000)
#define LANES         8

static char reference[33]; /* digest of one worker, one shard */

static const char job_text[] = "name: same-bits\n"
                               "seed: 7\n"
                               "model: {kind: dlinear}\n"
                               "data: {kind: synthetic, seq_len: 96, pred_len: 96}\n"
                               "train: {epochs: 3, batch_size: 32, optimizer: adam, lr: 0.005}\n"
                               "cluster: {lanes: 8}\n"
                               "checkpoint: {digest_steps: 50}\n";

/* result.json names at least so many workers, and each of them has computed a lane. */
static void check_contributions(const struct kelp_run *run, int worker_count)
{
    const cJSON *workers = cJSON_GetObjectItemCaseSensitive(run->result, "workers");
    const cJSON *worker;
    ck_assert_msg(cJSON_GetArraySize(workers) >= worker_count,
                  "%d of %d workers are named; output:\n%s", cJSON_GetArraySize(workers),
                  worker_count, run->output);
    cJSON_ArrayForEach(worker, workers)
    {
        const cJSON *lanes = cJSON_GetObjectItemCaseSensitive(worker, "lanes_computed");
        ck_assert(cJSON_IsNumber(lanes));
        ck_assert_msg(lanes->valuedouble > 0, "a worker computed nothing; output:\n%s",
                      run->output);
    }
}

/* A worker that was killed had computed the lanes of the step it died at: that is where faults
 * happen. */
static void check_killed(const struct kelp_run *run, const char *worker)
{
    char text[64];
    (void)snprintf(text, sizeof(text), "kelp: %s killed by signal 9", worker);
    ck_assert_msg(strstr(run->output, text) != NULL, "%s was not killed; output:\n%s", worker,
                  run->output);
}

static void run_job(struct kelp_run *run, const char *workers, const char *shards,
                    const char *const *more)
{
    char csv[KELP_TEST_PATH_MAX];
    char csv_option[KELP_TEST_PATH_MAX + 16];
    const char *args[KELP_TEST_ARGS_MAX];
    size_t count = 0;

    kelp_run_prepare(run);
    args[count++] = "--workers";
    args[count++] = workers;
    args[count++] = "--shards";
    args[count++] = shards;
    if (kelp_test_data_file("ett/ETTh1.csv", csv)) {
        (void)snprintf(csv_option, sizeof(csv_option), "data.path=%s", csv);
        args[count++] = "--set";
        args[count++] = "data.kind=csv";
        args[count++] = "--set";
        args[count++] = csv_option;
    } else {
        printf("ETTh1.csv is missing (%s): the generated series takes its place\n", csv);
    }
    for (size_t i = 0; more && more[i]; i++) {
        args[count++] = more[i];
    }
    args[count] = NULL;
    kelp_run_train(run, kelp_test_write(run->folder, "job.yaml", job_text), args, RUN_TIMEOUT_S);
    ck_assert_msg(run->exit_code == 0, "exit %d; output:\n%s", run->exit_code, run->output);
}

static void check_digest(const struct kelp_run *run, const char *what)
{
    if (reference[0] == '\0') {
        (void)snprintf(reference, sizeof(reference), "%s", kelp_run_digest(run));
    }
    printf("%-28s %s\n", what, kelp_run_digest(run));
    (void)fflush(stdout);
    ck_assert_str_eq(kelp_run_digest(run), reference);
}

KELP_SUITE(.no_fork = true)
KELP_CASE("etth1", .timeout_s = 1200)

/* Any number of workers and shards gives the digest of one worker and one shard. */
KELP_TEST(size_does_not_matter)
{
    static const int workers[] = {1, 2, 3, 5, 8};
    for (int shards = 1; shards <= 3; shards++) {
        for (size_t i = 0; i < KELP_ARRAY_COUNT(workers); i++) {
            struct kelp_run run;
            char worker_text[16];
            char shard_text[16];
            char what[64];
            (void)snprintf(worker_text, sizeof(worker_text), "%d", workers[i]);
            (void)snprintf(shard_text, sizeof(shard_text), "%d", shards);
            (void)snprintf(what, sizeof(what), "%d workers, %d shards", workers[i], shards);
            run_job(&run, worker_text, shard_text, NULL);
            check_digest(&run, what);
            check_contributions(&run, workers[i]);
            kelp_run_fini(&run);
        }
    }
}

/* Workers that join half-way change nothing but the speed. The first one stalls for three seconds,
 * so that the others are there before the run is over. */
KELP_TEST(workers_join)
{
    static const char *const more[] = {
        "--fault", "worker-0:stall@step=300", "--at", "step=290:add-worker",
        "--at",    "step=295:add-worker",     NULL};
    struct kelp_run run;
    run_job(&run, "1:3", "2", more);
    check_digest(&run, "1 worker, 2 join");
    check_contributions(&run, 3);
    kelp_run_fini(&run);
}

/* kill -9 with a step computed but not pushed, and with a step pushed to one shard of two: the run
 * goes on with the others. */
KELP_TEST(workers_die)
{
    static const char *const more[] = {"--no-restart",
                                       "--fault",
                                       "worker-1:kill@step=200",
                                       "--fault",
                                       "worker-2:kill-pushing@step=401",
                                       NULL};
    struct kelp_run run;
    run_job(&run, "3", "2", more);
    check_digest(&run, "3 workers, 2 killed");
    check_killed(&run, "worker-1");
    check_killed(&run, "worker-2");
    kelp_run_fini(&run);
}

/* The same with the dead being started again. */
KELP_TEST(workers_die_and_return)
{
    static const char *const more[] = {"--fault", "worker-0:kill-pushing@step=250", "--fault",
                                       "worker-1:kill@step=251", NULL};
    struct kelp_run run;
    run_job(&run, "2", "3", more);
    check_digest(&run, "2 workers killed, restarted");
    check_killed(&run, "worker-0");
    check_killed(&run, "worker-1");
    kelp_run_fini(&run);
}

/* All workers of the run say so once for each shard, and again when they return. */
static void check_transport(const struct kelp_run *run, const char *transport)
{
    static const char *const workers[] = {"worker-0", "worker-1"};
    char line[64];

    (void)snprintf(line, sizeof(line), "transport=%s\n", transport);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(workers); i++) {
        char path[KELP_TEST_PATH_MAX];
        char *text = NULL;
        size_t length = 0;
        (void)snprintf(path, sizeof(path), "%s/logs/%s.log", run->run_folder, workers[i]);
        ck_assert_int_eq(kelp_files_read(path, 16u << 20, &text, &length, NULL), KELP_OK);
        const char *first = strstr(text, " transport=");
        ck_assert_msg(first != NULL, "%s says nothing of a transport", path);
        for (const char *at = first; at; at = strstr(at + 1, " transport=")) {
            ck_assert_msg(strncmp(at + 1, line, strlen(line)) == 0,
                          "%s has another transport than "
                          "%s",
                          path, transport);
        }
        free(text);
    }
}

/* Through shared memory, by gRPC, or whichever is there: the same bits, also when workers are
 * killed with a push half sent, and when a message has a partition alone. Ports are not for shared
 * memory.
 */
KELP_TEST(any_transport)
{
    static const struct {
        const char *kind, *listen, *used;
    } cases[] = {{"auto", NULL, "shm"},
                 {"shm", NULL, "shm"},
                 {"grpc", NULL, "grpc"},
                 {"auto", "--listen=127.0.0.1", "grpc"}};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        char kind[32], what[64];
        (void)snprintf(kind, sizeof(kind), "transport.kind=%s", cases[i].kind);
        (void)snprintf(what, sizeof(what), "transport %s: %s, 1 killed", cases[i].kind,
                       cases[i].used);
        const char *const more[] = {"--set",         kind,
                                    "--set",         "transport.piece=4KiB",
                                    "--fault",       "worker-1:kill-pushing@step=150",
                                    cases[i].listen, NULL};
        struct kelp_run run;
        run_job(&run, "2", "3", more);
        check_digest(&run, what);
        check_killed(&run, "worker-1");
        check_transport(&run, cases[i].used);
        kelp_run_fini(&run);
    }
}
