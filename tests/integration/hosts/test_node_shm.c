/*
 * Hosts that serve at ports with certificates, here all on one machine: where they meet for shared
 * memory, and what is said where a job demands it and they do not.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cluster/certified_hosts.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

#define JOB          "meeting"
#define HOSTS        2
#define DIGEST_CHARS 32

static const char job_text[] = "name: " JOB "\nseed: 4\n"
                               "model: {kind: dlinear}\n"
                               "data: {kind: synthetic, rows: 1500, split: [1000, 200, 200],\n"
                               "       seq_len: 48, pred_len: 24}\n"
                               "train: {epochs: 4, batch_size: 32, schedule: constant}\n"
                               "cluster: {workers: %d, shards: %d, replicas: %d, lanes: 4}\n"
                               "transport: {kind: %s}\n";

static struct kelp_certified_hosts cluster;
static char meet[HOSTS][80]; /* one folder, at a path for each host */

static void setup(void)
{
    etcd_fixture_require();
    kelp_certified_hosts_init(&cluster, JOB);
    for (size_t i = 0; i < HOSTS; i++) {
        (void)snprintf(meet[i], sizeof(meet[i]), "/tmp/kelp-meet-%ld-%zu", (long)getpid(), i);
    }
    ck_assert_int_eq(mkdir(meet[0], 0700), 0);
    ck_assert_int_eq(symlink(meet[0], meet[1]), 0);
}

static void teardown(void)
{
    kelp_certified_hosts_fini(&cluster);
    ck_assert_int_eq(unlink(meet[1]), 0);
    ck_assert_int_eq(rmdir(meet[0]), 0); /* all of its sockets are gone */
}

static void submit(int count, int replicas, const char *transport)
{
    char text[1024];

    (void)snprintf(text, sizeof(text), job_text, count, count, replicas, transport);
    (void)kelp_test_write(cluster.folder.path, "job.yaml", text);
    kelp_certified_hosts_submit(&cluster, "job.yaml", "run", NULL);
}

/* meets: NULL for a folder of its own. */
static void start(size_t host, const char *meets)
{
    kelp_certified_hosts_start(&cluster, host, "1",
                               (const char *[]){meets ? "--shm-folder" : NULL, meets, NULL});
}

/* How often the logs of workers and shards say it. */
static unsigned said(const char *words)
{
    static const char *const ids[] = {"a.worker-0", "b.worker-0", "a.shard-0", "b.shard-0"};
    unsigned count = 0;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(ids); i++) {
        count += kelp_certified_hosts_said(&cluster, "run", ids[i], words);
    }
    return count;
}

static void expect_digest_of_one_machine(void)
{
    char digest[DIGEST_CHARS + 1];
    struct kelp_test_command train = {0};

    kelp_test_command_run(&train, cluster.folder.path,
                          (const char *[]){"train", "job.yaml", "--run", "quiet", "--set",
                                           "transport.kind=grpc", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_msg(train.exit_code == 0, "exit %d: %s", train.exit_code, train.err);
    const char *line = strstr(train.out, "\ndigest ");
    ck_assert_ptr_nonnull(line);
    line += strlen("\ndigest ");
    (void)snprintf(digest, sizeof(digest), "%s", line + strspn(line, " "));
    ck_assert_uint_eq(strlen(digest), DIGEST_CHARS);
    ck_assert_msg(strstr(cluster.hosts[0].out, digest) != NULL, "%s is not in: %s", digest,
                  cluster.hosts[0].out);
    kelp_test_command_fini(&train);
}

KELP_CASE("meeting", .timeout_s = 2 * KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

/* One host needs no option for it. */
KELP_TEST(processes_of_a_host_share_memory)
{
    submit(1, 1, "auto");
    start(0, NULL);
    kelp_certified_hosts_end(&cluster, 0, 0);
    ck_assert_uint_gt(said(" transport=shm"), 0);
    ck_assert_uint_eq(said(" transport=grpc"), 0);
    expect_digest_of_one_machine();
}

/* Two on one machine meet in a folder that each has at a path of its own, as containers do; also
 * shards and their backups. */
KELP_TEST(hosts_share_memory_where_they_meet)
{
    submit(2, 2, "shm");
    start(0, meet[0]);
    start(1, meet[1]);
    kelp_certified_hosts_end(&cluster, 0, 0);
    kelp_certified_hosts_end(&cluster, 1, 0);
    ck_assert_uint_ge(said("shard answers"), 4); /* two workers, two shards */
    ck_assert_uint_gt(said("follower connected"), 0);
    ck_assert_uint_eq(said(" transport=grpc"), 0);
    expect_digest_of_one_machine();
}

/* Where they do not meet it is gRPC between them, and shared memory within each. */
KELP_TEST(hosts_that_do_not_meet)
{
    submit(2, 1, "auto");
    start(0, NULL);
    start(1, NULL);
    kelp_certified_hosts_end(&cluster, 0, 0);
    kelp_certified_hosts_end(&cluster, 1, 0);
    ck_assert_uint_ge(said(" transport=shm"), 2);
    ck_assert_uint_ge(said(" transport=grpc"), 2);
    expect_digest_of_one_machine();
}

/* A job that demands it ends at once where they do not meet, and says why: with backups a shard may
 * be the first to find out. */
KELP_LOOP_TEST(demanded_where_they_do_not_meet, 1, 3)
{
    submit(2, _i, "shm");
    start(0, NULL);
    start(1, NULL);
    KELP_TEST_AWAIT(kelp_test_command_ended(&cluster.hosts[0]) ||
                        kelp_test_command_ended(&cluster.hosts[1]),
                    "the hosts go on");
    const size_t first = kelp_test_command_ended(&cluster.hosts[0]) ? 0 : 1;
    struct kelp_test_command *other = &cluster.hosts[1 - first];
    kelp_certified_hosts_end(&cluster, first, 2);
    ck_assert_msg(strstr(cluster.hosts[first].err, "transport.kind: shm: no shared memory with ") !=
                      NULL,
                  "%s", cluster.hosts[first].err);
    ck_assert_msg(strstr(cluster.hosts[first].err,
                         "which must be of this host and user, with the same --shm-folder: cannot "
                         "reach '/tmp/kelp-") != NULL,
                  "%s", cluster.hosts[first].err);
    const pid_t pid = kelp_test_command_find(other, "node", JOB);
    if (pid > 0) { /* else it has ended too */
        (void)kill(pid, SIGTERM);
    }
    (void)kelp_test_command_wait(other, KELP_TEST_HANG_MS);
}
