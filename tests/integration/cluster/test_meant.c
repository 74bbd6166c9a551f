/*
 * What runs is what was meant: whoever writes into a run's etcd makes no process of it take another
 * job, nor a worker load a library.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/sha256.h"
#include "common/process/process.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

#define ETCD_MS 10000
#define NO_JOB  "0000000000000000000000000000000000000000000000000000000000000000"

/* Longer than any test. */
#define JOB                                                                                        \
    "name: meant\nseed: 3\n"                                                                       \
    "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"                               \
    "       seq_len: 48, pred_len: 24}\n"                                                          \
    "train: {epochs: 100000, batch_size: 32}\n"                                                    \
    "cluster: {workers: 2, shards: 1, lanes: 4}\n"                                                 \
    "checkpoint: {digest_steps: 5}\n"

static struct kelp_test_folder folder;
static struct kelp_test_command train;
static struct etcd_fixture etcd;
static struct kelp_error error;

static void setup(void)
{
    kelp_test_folder_init(&folder);
    memset(&train, 0, sizeof(train));
    etcd_fixture_start(&etcd);
    (void)kelp_test_write(folder.path, "job.yaml", JOB "model: {kind: dlinear}\n");
}

static void teardown(void)
{
    kelp_test_command_fini(&train);
    etcd_fixture_stop(&etcd);
    kelp_test_folder_fini(&folder);
}

/* A job whose library says so, and ends the worker, once it is loaded; owned. */
static char *other_job(void)
{
    const char *programs = getenv("KELP_TEST_PROGRAMS");
    char *text = NULL;

    ck_assert_ptr_nonnull(programs);
    ck_assert_int_gt(asprintf(&text,
                              "%smodel: {kind: plugin, plugin: \"%s/plugins/unruly.so\", params: "
                              "[how=worker]}\n",
                              JOB, programs),
                     0);
    return text;
}

static void put_spec(const char *text)
{
    struct kelp_etcd *client = etcd_fixture_client(&etcd);

    ck_assert_msg(kelp_etcd_put(client, "/kelp/meant/spec", text, 0, ETCD_MS, &error) == KELP_OK,
                  "%s", error.text);
    kelp_etcd_close(client);
}

static bool has_begun(void)
{
    char path[300];
    struct stat about;

    (void)snprintf(path, sizeof(path), "%s/run/digests.jsonl", folder.path);
    return stat(path, &about) == 0 && about.st_size > 0;
}

static bool log_says(const char *name, const char *words)
{
    char *text = kelp_test_read(folder.path, name, NULL);
    bool says = strstr(text, words) != NULL;

    free(text);
    return says;
}

/* A daemon to its end, which comes by itself: it says these words, and exits as one that was given
 * something wrong. */
static void daemon_says(const char *name, const char *const *more, const char *words)
{
    char program[512], path[300];
    const char *argv[24] = {program, "--etcd", etcd.url, "--job", "meant", "--id", "x"};
    struct kelp_process *process = NULL;
    int wait_status = 0;

    kelp_test_program(name, program, sizeof(program));
    for (size_t i = 0; more[i]; i++) {
        argv[7 + i] = more[i];
    }
    (void)snprintf(path, sizeof(path), "%s/daemon.log", folder.path);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    struct kelp_process_options options = {.argv = argv, .stdout_fd = fd, .stderr_fd = fd};
    ck_assert_msg(kelp_process_start(&options, &process, &error) == KELP_OK, "%s", error.text);
    (void)close(fd);
    kelp_status status = kelp_process_wait(process, KELP_TEST_HANG_MS, &wait_status);
    char *said = kelp_test_read(folder.path, "daemon.log", NULL);
    ck_assert_msg(status == KELP_OK, "%s does not end: %s", name, said);
    ck_assert_msg(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 2, "%s: %s", name, said);
    ck_assert_msg(strstr(said, words) != NULL, "%s does not say '%s': %s", name, words, said);
    ck_assert_ptr_null(strstr(said, "unruly gives up"));
    kelp_process_destroy(process);
    free(said);
}

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("meant", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

/* Two writes into etcd: processes that run go on with the job that they have, and one that starts
 * refuses the other before it does anything with it. */
KELP_TEST(another_job_in_etcd)
{
    char *other = other_job();

    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "job.yaml", "--run", "run", "--etcd",
                                             etcd.url, "--workers", "2", NULL});
    KELP_TEST_AWAIT_FROM(&train, has_begun(), "training does not begin");
    put_spec(other);
    (void)kelp_test_command_signal(&train, "kelp-worker", "worker-1", SIGKILL);
    (void)kelp_test_command_wait(&train, KELP_TEST_HANG_MS);
    ck_assert_msg(train.exit_code == 2, "exit %d: %s", train.exit_code, train.err);
    ck_assert_msg(
        strstr(train.err,
               "worker-1: /kelp/meant/spec in etcd is not the expected job: its SHA-256 is ") !=
            NULL,
        "%s", train.err);
    ck_assert(!log_says("run/logs/worker-1.log", "unruly gives up"));
    free(other);
}

/* What kelp train puts there is what its children are told, and cluster.json tells others. */
KELP_TEST(the_digest_is_that_of_the_text)
{
    char sha256[KELP_SHA256_HEX_BYTES];
    struct kelp_etcd_range range = {0};

    kelp_test_command_start(
        &train, folder.path,
        (const char *[]){"train", "job.yaml", "--run", "run", "--etcd", etcd.url, NULL});
    KELP_TEST_AWAIT_FROM(&train, has_begun(), "training does not begin");
    struct kelp_etcd *client = etcd_fixture_client(&etcd);
    ck_assert_int_eq(kelp_etcd_get(client, "/kelp/meant/spec", ETCD_MS, &range, &error), KELP_OK);
    ck_assert_uint_eq(range.count, 1);
    ck_assert_int_eq(
        kelp_sha256(range.pairs[0].value, strlen(range.pairs[0].value), sha256, &error), KELP_OK);
    ck_assert(log_says("run/cluster.json", sha256));
    ck_assert(log_says("run/logs/worker-0.log", sha256));
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(client);
    kelp_test_command_says(folder.path, (const char *[]){"stop", "run", "--now", NULL}, 0, "");
}

static int64_t created(const char *key)
{
    struct kelp_etcd *client = etcd_fixture_client(&etcd);
    struct kelp_etcd_range range = {0};

    ck_assert_int_eq(kelp_etcd_get(client, key, ETCD_MS, &range, &error), KELP_OK);
    int64_t revision = range.count == 1 ? range.pairs[0].create_revision : 0;
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(client);
    return revision;
}

/* The plan is that of kelp train: it stands there with the job's text, before anybody can join. */
KELP_TEST(the_plan_is_not_a_workers)
{
    kelp_test_command_start(
        &train, folder.path,
        (const char *[]){"train", "job.yaml", "--run", "run", "--etcd", etcd.url, NULL});
    KELP_TEST_AWAIT_FROM(&train, has_begun(), "training does not begin");
    ck_assert_int_gt(created("/kelp/meant/plan"), 0);
    ck_assert_int_eq(created("/kelp/meant/plan"), created("/kelp/meant/spec"));
    ck_assert_int_lt(created("/kelp/meant/plan"), created("/kelp/meant/coordinator"));
    ck_assert(!log_says("run/logs/coordinator-0.log", "plan offered"));
    kelp_test_command_says(folder.path, (const char *[]){"stop", "run", "--now", NULL}, 0, "");
}

/* Daemons by hand: each takes the job that it is told, and a worker loads a library only then. */
KELP_TEST(by_hand)
{
    char *other = other_job(), sha256[KELP_SHA256_HEX_BYTES];
    const char *const another[] = {"--spec-sha256", NO_JOB, NULL};
    char listen[200];
    const char *const serving[] = {"--spec-sha256", NO_JOB,      "--listen", listen,
                                   "--run",         folder.path, NULL};

    (void)snprintf(listen, sizeof(listen), "unix:%s/socket", folder.path);

    put_spec(other);
    daemon_says("kelp-worker", another, "in etcd is not the expected job");
    daemon_says("kelp-ps", serving, "in etcd is not the expected job");
    daemon_says("kelp-coordinator", serving, "in etcd is not the expected job");
    daemon_says("kelp-ps", (const char *[]){"--spec-sha256", "12", NULL},
                "--spec-sha256 must be 64 hexadecimal digits");
    daemon_says("kelp-worker", (const char *[]){NULL}, "start the worker with --spec-sha256");
    ck_assert_int_eq(kelp_sha256(other, strlen(other), sha256, &error), KELP_OK);
    daemon_says("kelp-worker", (const char *[]){"--spec-sha256", sha256, NULL},
                "it must also have model.plugin_sha256");
    free(other);
}

/* A worker of the job, which says that sooner or later. */
static void worker_says(const char *words)
{
    char program[512], path[300];
    const char *argv[] = {program, "--etcd", etcd.url, "--job", "meant", "--id", "x", NULL};
    struct kelp_process *process = NULL;

    kelp_test_program("kelp-worker", program, sizeof(program));
    (void)snprintf(path, sizeof(path), "%s/daemon.log", folder.path);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    struct kelp_process_options options = {.argv = argv, .stdout_fd = fd, .stderr_fd = fd};
    ck_assert_msg(kelp_process_start(&options, &process, &error) == KELP_OK, "%s", error.text);
    (void)close(fd);
    KELP_TEST_AWAIT(log_says("daemon.log", words), "the worker does not say '%s'", words);
    kelp_process_destroy(process);
}

/* Who writes a name where the leader's address should be makes nobody ask a resolver for it. */
KELP_TEST(a_name_is_not_dialled)
{
    struct kelp_etcd *client = etcd_fixture_client(&etcd);

    ck_assert_int_eq(kelp_etcd_put(client, "/kelp/meant/coordinator",
                                   "{\"id\":\"c\",\"address\":\"c.example.org:7000\"}", 0, ETCD_MS,
                                   &error),
                     KELP_OK);
    kelp_etcd_close(client);
    put_spec(JOB "model: {kind: dlinear}\n");
    kelp_test_command_says(
        folder.path,
        (const char *[]){"checkpoint", "meant", "--etcd", etcd.url, "--timeout", "3s", NULL}, 3,
        "address 'c.example.org:7000' is not HOST:PORT in numbers, or unix:/PATH");
    worker_says("coordinator's key is malformed: HOST:PORT in numbers, or unix:/PATH, is expected "
                "key=/kelp/meant/coordinator address=c.example.org:7000");
}
