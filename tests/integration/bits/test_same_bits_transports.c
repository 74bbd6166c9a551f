/*
 * The transport changes no bit: a job of examples/, made short, has one digest by gRPC, by shared
 * memory, and where one worker has the one and another worker the other. Those are trained that
 * make their own data; with KELP_EXAMPLES=all those in the data folder too (minutes).
 */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/job/job.h"
#include "tests/lib/cluster/certified_hosts.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/shared_files.h"
#include "tests/lib/suite.h"

#define JOB         "transports"
#define STEPS       "12" /* of training */
#define TIMEOUT_S   (KELP_TEST_HANG_MS / 1000)
#define EXAMPLE_MAX 64

static bool all; /* those too whose data are files */
static struct kelp_certified_hosts cluster;
static glob_t examples;

static void begin(void)
{
    const char *wanted = getenv("KELP_EXAMPLES");
    const char *source = getenv("KELP_SOURCE");
    char pattern[1024];

    etcd_fixture_require();
    all = wanted && strcmp(wanted, "all") == 0;
    (void)snprintf(pattern, sizeof(pattern), "%s/examples/*.yaml", source ? source : ".");
    if (glob(pattern, 0, NULL, &examples) != 0 || examples.gl_pathc > EXAMPLE_MAX) {
        kelp_suite_skip("no jobs in %s", pattern);
    }
}

static void setup(void)
{
    kelp_certified_hosts_init(&cluster, JOB);
}

static void teardown(void)
{
    kelp_certified_hosts_fini(&cluster);
}

/* What makes it short, and lets each of two workers meet both of two shards. */
struct settings {
    char data[KELP_TEST_PATH_MAX + 16];
    const char *args[24];
};

/* False: its data are not here, or not asked for. */
static bool make_short(const char *path, const char *transport, struct settings *settings)
{
    struct kelp_job_file *file = kelp_job_file_create();
    struct kelp_error error;
    char data[KELP_TEST_PATH_MAX] = "";

    ck_assert_msg(kelp_job_file_read(file, path, &error) == KELP_OK, "%s", error.text);
    const char *named = kelp_job_file_job(file)->data.path; /* beside the job's file */
    const size_t folder = (size_t)(strrchr(path, '/') + 1 - path);
    const bool made = named[0] == '\0';
    bool here = made;
    if (!made && all) {
        glob_t found;
        named += strncmp(named, path, folder) == 0 ? folder : 0;
        (void)kelp_test_data_file(named, data);
        here = glob(data, 0, NULL, &found) == 0;
        globfree(&found);
    }
    (void)snprintf(settings->data, sizeof(settings->data), "data.path=%s", data);
    const char *const args[] = {"--set",
                                transport,
                                "--set",
                                "name=" JOB,
                                "--set",
                                "train.max_steps=" STEPS,
                                "--set",
                                "train.evaluate=false",
                                "--set",
                                "cluster.workers=2",
                                "--set",
                                "cluster.shards=2",
                                made ? NULL : "--set",
                                settings->data,
                                NULL};
    memcpy(settings->args, args, sizeof(args));
    kelp_job_file_destroy(file);
    return here;
}

static void train(const char *path, const char *transport, char ret_digest[33])
{
    struct kelp_run run;
    struct settings settings;

    (void)make_short(path, transport, &settings);
    kelp_run_prepare(&run);
    kelp_run_train(&run, path, settings.args, TIMEOUT_S);
    ck_assert_msg(run.exit_code == 0, "%s, %s: exit %d: %s", path, transport, run.exit_code,
                  run.output);
    (void)snprintf(ret_digest, 33, "%s", kelp_run_digest(&run));
    kelp_run_fini(&run);
}

/* Both shards are on host a; the worker there shares their memory, and that of host b cannot. */
static void train_mixed(const char *path, const char *run, const char *digest)
{
    static const char *const ids[] = {"a.worker-0", "b.worker-0"};
    struct settings settings;

    (void)make_short(path, "transport.kind=auto", &settings);
    kelp_certified_hosts_submit(&cluster, path, run, settings.args);
    kelp_certified_hosts_start(&cluster, 0, "2", NULL);
    kelp_certified_hosts_start(&cluster, 1, "0", NULL);
    kelp_certified_hosts_end(&cluster, 0, 0);
    kelp_certified_hosts_end(&cluster, 1, 0);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(ids); i++) {
        ck_assert_uint_eq(kelp_certified_hosts_said(&cluster, run, ids[i],
                                                    i == 0 ? " transport=shm" : " transport=grpc"),
                          2);
        ck_assert_uint_eq(kelp_certified_hosts_said(&cluster, run, ids[i], " transport="), 2);
    }
    ck_assert_msg(strstr(cluster.hosts[0].out, digest) != NULL, "%s, mixed: not %s: %s", path,
                  digest, cluster.hosts[0].out);
    kelp_certified_hosts_free(&cluster);
}

KELP_SUITE(.before = begin)
KELP_CASE("examples", .timeout_s = 20 * KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

KELP_TEST(one_digest_by_any_transport)
{
    unsigned trained = 0;

    for (size_t i = 0; i < examples.gl_pathc; i++) {
        const char *path = examples.gl_pathv[i];
        struct settings settings;
        char by_grpc[33], by_memory[33], run[32];
        if (!make_short(path, "transport.kind=grpc", &settings)) {
            printf("%s: left out, its data are files\n", strrchr(path, '/') + 1);
            continue;
        }
        train(path, "transport.kind=grpc", by_grpc);
        train(path, "transport.kind=shm", by_memory);
        ck_assert_msg(strcmp(by_grpc, by_memory) == 0, "%s: %s, by shared memory %s", path, by_grpc,
                      by_memory);
        (void)snprintf(run, sizeof(run), "run-%zu", i);
        train_mixed(path, run, by_grpc);
        printf("%s: %s by grpc, shm and both\n", strrchr(path, '/') + 1, by_grpc);
        (void)fflush(stdout);
        trained++;
    }
    ck_assert_uint_ge(trained, 2);
}
