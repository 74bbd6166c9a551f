/*
 * A job that kelp node runs on several hosts: each is a process here, with processes of its own,
 * and etcd is none of theirs. Whatever happens to the hosts, the digest is that of kelp train.
 */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/etcd/tcp_double.h"
#include "tests/lib/http_raw.h"
#include "tests/lib/suite.h"

#define HOSTS_MAX    3
#define EXIT_PAUSED  75
#define DIGEST_CHARS 32

/* Some seconds: time for things to happen to it. */
static const char job_text[] = "name: hosts\nseed: 3\n"
                               "model: {kind: dlinear}\n"
                               "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                               "       seq_len: 48, pred_len: 24}\n"
                               "train: {epochs: 200, batch_size: 32, schedule: constant}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "checkpoint: {digest_steps: 5}\n";

static struct kelp_test_folder folder;
static struct etcd_fixture etcd;
static struct kelp_test_command hosts[HOSTS_MAX];
static char quiet[DIGEST_CHARS + 1]; /* of kelp train; computed once, before the tests fork */

/* The digest that a summary shows. */
static void read_digest(const char *summary, char digest[DIGEST_CHARS + 1])
{
    const char *line = strstr(summary, "\ndigest ");

    ck_assert_msg(line != NULL, "no digest in: %s", summary);
    line += strlen("\ndigest ");
    line += strspn(line, " ");
    (void)snprintf(digest, DIGEST_CHARS + 1, "%s", line);
    ck_assert_uint_eq(strlen(digest), DIGEST_CHARS);
}

static void verb(struct kelp_test_command *command, const char *const *args)
{
    memset(command, 0, sizeof(*command));
    kelp_test_command_run(command, folder.path, args, KELP_TEST_HANG_MS);
}

static void train_quietly(void)
{
    struct kelp_test_command train;

    kelp_test_folder_init(&folder);
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
    verb(&train, (const char *[]){"train", "job.yaml", "--run", "quiet", NULL});
    ck_assert_msg(train.exit_code == 0, "exit %d: %s", train.exit_code, train.err);
    read_digest(train.out, quiet);
    kelp_test_command_fini(&train);
    kelp_test_folder_fini(&folder);
}

static void submit(void)
{
    kelp_test_command_says(
        folder.path,
        (const char *[]){"submit", "job.yaml", "--etcd", etcd.url, "--run", "run", NULL}, 0,
        "\nsha256 ");
}

static void setup(void)
{
    etcd_fixture_require();
    etcd_fixture_start(&etcd);
    kelp_test_folder_init(&folder);
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", folder.path, 1), 0);
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
    memset(hosts, 0, sizeof(hosts));
    submit();
}

static void teardown(void)
{
    for (size_t i = 0; i < HOSTS_MAX; i++) {
        kelp_test_command_fini(&hosts[i]);
    }
    kelp_test_folder_fini(&folder);
    etcd_fixture_stop(&etcd);
}

/* A host of that number, with a coordinator (or NULL instead of "--coordinator"). */
static void start(size_t host, const char *shards, const char *workers, const char *coordinator)
{
    static const char *const names[HOSTS_MAX] = {"a", "b", "c"};
    const char *args[] = {"node",   "--etcd",    etcd.url,   "--job", "hosts",
                          "--host", names[host], "--shards", shards,  "--workers",
                          workers,  coordinator, NULL};

    kelp_test_command_fini(&hosts[host]); /* of an earlier start */
    memset(&hosts[host], 0, sizeof(hosts[host]));
    kelp_test_command_start(&hosts[host], folder.path, args);
}

static void start_two(void)
{
    start(0, "1", "1", "--coordinator");
    start(1, "1", "1", "--coordinator");
}

static void ends(size_t host, int exit_code)
{
    (void)kelp_test_command_wait(&hosts[host], KELP_TEST_HANG_MS);
    ck_assert_msg(hosts[host].exit_code == exit_code, "host %zu: exit %d: %s%s", host,
                  hosts[host].exit_code, hosts[host].out, hosts[host].err);
    kelp_test_command_gone(&hosts[host]);
}

static double step_now(void)
{
    char path[300];
    (void)snprintf(path, sizeof(path), "%s/run/digests.jsonl", folder.path);
    return kelp_run_step_in(path);
}

static void await_step(double step)
{
    KELP_TEST_AWAIT(step_now() >= step, "step %g was not reached: %s", step,
                    kelp_test_command_peek(&hosts[0]));
}

/* kelp wait, on whatever machine: the digest is the quiet one. */
static void expect_quiet(void)
{
    struct kelp_test_command wait;
    char digest[DIGEST_CHARS + 1];

    verb(&wait, (const char *[]){"wait", "hosts", "--etcd", etcd.url, NULL});
    ck_assert_msg(wait.exit_code == 0, "exit %d: %s%s", wait.exit_code, wait.out, wait.err);
    read_digest(wait.out, digest);
    kelp_test_command_fini(&wait);
    ck_assert_str_eq(digest, quiet);
}

/* A service manager's socket, and in the environment what it says of it. */
static int manager_open(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval patience = {.tv_sec = KELP_TEST_HANG_MS / 1000};

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%.90s/manager", folder.path);
    int manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(manager, 0);
    ck_assert_int_eq(bind(manager, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(setsockopt(manager, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
    ck_assert_int_eq(setenv("NOTIFY_SOCKET", address.sun_path, 1), 0);
    ck_assert_int_eq(setenv("WATCHDOG_USEC", "400000", 1), 0);
    return manager;
}

/* Whatever else it is told before. */
static void manager_hears(int manager, const char *wanted)
{
    char message[2048] = "";

    while (!strstr(message, wanted)) {
        ssize_t bytes = recv(manager, message, sizeof(message) - 1, 0);
        ck_assert_msg(bytes > 0, "the manager does not hear '%s'", wanted);
        message[bytes] = '\0';
    }
}

KELP_CASE("node", .timeout_s = 2 * KELP_TEST_HANG_S, .begin = train_quietly, .setup = setup,
          .teardown = teardown)

/* Two hosts and a third one of workers alone; every host ends with the job, and says the same. */
KELP_TEST(trains)
{
    char digest[DIGEST_CHARS + 1];

    start_two();
    start(2, "0", "1", NULL);
    expect_quiet();
    for (size_t i = 0; i < HOSTS_MAX; i++) {
        ends(i, 0);
        read_digest(hosts[i].out, digest);
        ck_assert_str_eq(digest, quiet);
    }
    kelp_test_command_says(folder.path, (const char *[]){"digest", "run", NULL}, 0, quiet);
    kelp_test_command_says(folder.path,
                           (const char *[]){"status", "hosts", "--etcd", etcd.url, NULL}, 0, quiet);
    start(0, "1", "1", "--coordinator"); /* the job needs nobody any more */
    ends(0, 0);
}

/* Its weights and logs, while it goes on and afterwards, from wherever the run's folder is. */
KELP_TEST(is_exported)
{
    const char *const logs[] = {"logs", "-f", "--job", "hosts", "--etcd", etcd.url, NULL};
    const char *const export[] = {"export",           "hosts", "--etcd", etcd.url, "--out",
                                  "live.safetensors", NULL};
    struct kelp_test_command follow;

    kelp_test_command_says(folder.path,
                           (const char *[]){"export", "hosts", "--etcd", etcd.url, "--run", "other",
                                            "--out", "x", NULL},
                           2, "it has no file 'token'");
    start_two();
    await_step(50);
    memset(&follow, 0, sizeof(follow));
    kelp_test_command_start(&follow, folder.path, logs);
    kelp_test_command_says(folder.path, export, 0, "live.safetensors: step ");
    expect_quiet();
    ends(0, 0);
    ends(1, 0);
    (void)kelp_test_command_wait(&follow, KELP_TEST_HANG_MS);
    ck_assert_int_eq(follow.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(follow.out, "a.coordinator-0"));
    ck_assert_ptr_nonnull(strstr(follow.out, "b.worker-0"));
    kelp_test_command_fini(&follow);
    kelp_test_command_says(folder.path, export, 0, quiet); /* of the whole */
}

/* SIGTERM: its shard is drained, no step is made again, and the others go on. */
KELP_TEST(leaves)
{
    start_two();
    await_step(50);
    kelp_test_command_signal(&hosts[1], "node", "hosts", SIGTERM);
    ends(1, 0);
    ck_assert_ptr_nonnull(strstr(hosts[1].err, "left"));
    expect_quiet();
    ends(0, 0);
    cJSON *result = kelp_test_read_json(folder.path, "run/result.json");
    ck_assert(kelp_test_number(result, "steps_recomputed") == 0);
    cJSON_Delete(result);
}

/* A supervisor that takes 0 for the job's end is told that this host is wanted again: also when it
 * was told to end before the job was there. */
KELP_TEST(leaves_with_status)
{
    const char *waiting[] = {"node", "--etcd",    etcd.url, "--job",         "none", "--host",
                             "b",    "--workers", "1",      "--left-status", "75",   NULL};
    const char *args[] = {"node", "--etcd",    etcd.url, "--job",         "hosts", "--host",
                          "c",    "--workers", "1",      "--left-status", "75",    NULL};

    kelp_test_command_start(&hosts[1], folder.path, waiting);
    start(0, "2", "1", "--coordinator");
    kelp_test_command_start(&hosts[2], folder.path, args);
    await_step(50);
    kelp_test_command_await(&hosts[1], "waiting for the job");
    kelp_test_command_signal(&hosts[1], "node", "none", SIGTERM);
    ends(1, 75);
    kelp_test_command_signal(&hosts[2], "node", "hosts", SIGTERM);
    ends(2, 75);
    expect_quiet();
    ends(0, 0);
}

/* The host of the leader is lost with all that is on it; it comes back as another one. */
KELP_TEST(is_lost)
{
    start_two();
    await_step(50);
    kelp_test_command_signal(&hosts[0], "node", "hosts", SIGKILL); /* takes its processes along */
    ends(0, -1);
    start(2, "1", "1", "--coordinator");
    expect_quiet();
    ends(1, 0);
    ends(2, 0);
}

/* How many processes with such a name the job has, as kelp status says. */
static unsigned count_processes(const char *job, const char *name)
{
    struct kelp_test_command status;
    char text[64];
    unsigned count = 0;

    (void)snprintf(text, sizeof(text), "\"%s", name);
    verb(&status, (const char *[]){"status", job, "--etcd", etcd.url, "-o", "json", NULL});
    for (const char *at = strstr(status.out, text); at; at = strstr(at + 1, text)) {
        count++;
    }
    kelp_test_command_fini(&status);
    return count;
}

static void start_shared(size_t host, const char *name, const char *shards)
{
    kelp_test_command_start(&hosts[host], folder.path,
                            (const char *[]){"node", "--etcd", etcd.url, "--job", "shared",
                                             "--host", name, "--shards", shards, "--workers", "0:3",
                                             "--coordinator", NULL});
}

static void await_shared(const char *name, unsigned count)
{
    KELP_TEST_AWAIT_FROM(&hosts[0], count_processes("shared", name) == count,
                         "%u of %s are not there: %.2000s", count, name,
                         kelp_test_command_peek(&hosts[0]));
}

/* Hosts share out what is wanted, what a lost one had, and what kelp scale wants. The job rests
 * while fewer than four workers are there, so that it does not end before. */
KELP_TEST(shares)
{
    const char *const more[] = {"scale", "shared", "--etcd", etcd.url, "--shards", "4", NULL};
    const char *const less[] = {"scale", "shared",   "--etcd", etcd.url, "--workers",
                                "2",     "--shards", "2",      NULL};
    struct kelp_test_command train;
    char digest[DIGEST_CHARS + 1], shared[DIGEST_CHARS + 1];

    kelp_test_command_says(folder.path,
                           (const char *[]){"submit", "job.yaml", "--etcd", etcd.url, "--run",
                                            "shared", "--set", "name=shared", "--set",
                                            "train.epochs=600", "--workers", "4", NULL},
                           0, "\nsha256 ");
    start_shared(0, "a", "1:2");
    await_shared("a.worker-", 3);
    kelp_test_command_says(folder.path, more, 0,
                           "shards     4 (the hosts have room for 2: start kelp node");
    start_shared(1, "b", "1");
    await_shared("b.worker-", 2);
    await_shared("a.worker-", 2);
    await_shared("a.shard-", 2);
    kelp_test_command_signal(&hosts[1], "node", "shared", SIGKILL);
    ends(1, -1);
    start_shared(2, "c", "1"); /* b's entry is gone after its lease */
    await_shared("c.worker-", 2);
    kelp_test_command_says(folder.path, less, 0, "shards     2");
    await_shared("a.worker-", 1);
    await_shared("c.worker-", 1);
    verb(&train, (const char *[]){"train", "job.yaml", "--run", "quiet-shared", "--set",
                                  "train.epochs=600", NULL});
    read_digest(train.out, digest);
    kelp_test_command_fini(&train);
    ends(0, 0);
    ends(2, 0);
    read_digest(hosts[0].out, shared);
    ck_assert_str_eq(shared, digest);
}

/* A host has one kelp node for a job, and a job that hosts run is not for kelp train. */
KELP_TEST(one_for_a_host)
{
    start(0, "2", "2", "--coordinator");
    await_step(10);
    const char *again[] = {"node",   "--etcd", etcd.url,    "--job", "hosts",
                           "--host", "a",      "--workers", "1",     NULL};
    kelp_test_command_says(folder.path, again, 2, "host 'a' runs job 'hosts' already");
    char copy[300];

    (void)snprintf(copy, sizeof(copy), "%s/copy", folder.path);
    ck_assert_int_eq(mkdir(copy, 0700), 0);
    (void)kelp_test_write(folder.path, "copy/job.yaml", job_text);
    const char *train[] = {"train", "--resume", "--run", "copy", "--etcd", etcd.url, NULL};
    kelp_test_command_says(folder.path, train, 2, "job 'hosts' is already run by a, train: end");
    expect_quiet();
    ends(0, 0);
}

/* Paused from elsewhere: every host says "run me again"; fewer hosts go on. */
KELP_TEST(pauses)
{
    start_two();
    start(2, "1", "1", "--coordinator");
    await_step(50);
    kelp_test_command_says(folder.path, (const char *[]){"stop", "run", NULL}, 2,
                           "kelp stop hosts --etcd");
    kelp_test_command_says(folder.path, (const char *[]){"stop", "hosts", "--etcd", etcd.url, NULL},
                           0, "paused at step ");
    kelp_test_command_says(
        folder.path,
        (const char *[]){"export", "hosts", "--etcd", etcd.url, "--out", "x.safetensors", NULL}, 2,
        "job 'hosts' is paused: start kelp node again");
    ends(0, EXIT_PAUSED);
    ends(1, EXIT_PAUSED);
    ends(2, EXIT_PAUSED);
    kelp_test_command_says(folder.path, (const char *[]){"wait", "hosts", "--etcd", etcd.url, NULL},
                           EXIT_PAUSED, "paused at step ");
    double paused = step_now();
    start_two();
    await_step(paused + 50); /* until then the job is paused */
    expect_quiet();
    ends(0, 0);
    ends(1, 0);
}

/* etcd has lost the job, and its text is put there again from the run's folder: it goes on from its
 * newest checkpoint. Twice is once too often, and a run that is done stays so. */
KELP_TEST(is_submitted_again)
{
    const char *const again[] = {"submit", "--resume", "--run", "run", "--etcd", etcd.url, NULL};

    start_two();
    await_step(50);
    kelp_test_command_says(folder.path, again, 2, "job 'hosts' is run by kelp node on a, b");
    kelp_test_command_says(folder.path, (const char *[]){"stop", "hosts", "--etcd", etcd.url, NULL},
                           0, "paused at step ");
    ends(0, EXIT_PAUSED);
    ends(1, EXIT_PAUSED);
    double paused = step_now();
    kelp_test_command_says(folder.path, (const char *[]){"free", "hosts", "--etcd", etcd.url, NULL},
                           0, "paused at step ");
    kelp_test_command_says(folder.path, again, 0, "\nsha256 ");
    start_two();
    await_step(paused + 50);
    expect_quiet();
    ends(0, 0);
    ends(1, 0);
    cJSON *result = kelp_test_read_json(folder.path, "run/result.json");
    ck_assert(kelp_test_number(result, "steps_recomputed") < paused); /* not from its beginning */
    cJSON_Delete(result);
    kelp_test_command_says(folder.path, (const char *[]){"free", "hosts", "--etcd", etcd.url, NULL},
                           0, "done at step ");
    kelp_test_command_says(folder.path, again, 2, "is done");
}

/* A job that is at rest goes on as another text of it, where that does not shape the result: also
 * when it was done, and has more to do now. */
KELP_TEST(goes_on_changed)
{
    const char *const longer[] = {"submit", "--resume",         "--run", "run", "--etcd", etcd.url,
                                  "--set",  "train.epochs=215", NULL};
    const char *const other[] = {"submit", "--resume", "--run",        "run", "--etcd",
                                 etcd.url, "--set",    "train.lr=0.5", NULL};
    struct kelp_test_command train;
    char digest[DIGEST_CHARS + 1], changed[DIGEST_CHARS + 1], path[300], other_text[1024];

    (void)snprintf(other_text, sizeof(other_text), "%s", job_text);
    *strstr(other_text, "seed: 3") = '#'; /* the seed is the default one then */

    start_two();
    await_step(50);
    kelp_test_command_says(folder.path, longer, 2, "job 'hosts' is run by kelp node on a, b");
    expect_quiet();
    ends(0, 0);
    ends(1, 0);
    kelp_test_command_says(folder.path, other, 2, "differs in keys that shape the result");
    (void)snprintf(path, sizeof(path), "%s/copy", folder.path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    (void)kelp_test_write(folder.path, "copy/job.yaml", other_text);
    kelp_test_command_says(
        folder.path,
        (const char *[]){"submit", "--resume", "--run", "copy", "--etcd", etcd.url, NULL}, 2,
        "the job in etcd differs in keys that shape the result");
    (void)snprintf(path, sizeof(path), "%s/copy/next", folder.path);
    ck_assert_int_ne(access(path, F_OK), 0); /* nothing waits there */
    kelp_test_command_says(folder.path, longer, 0, "\nsha256 ");
    start_two();
    ends(0, 0);
    ends(1, 0);
    read_digest(hosts[0].out, changed);
    verb(&train, (const char *[]){"train", "job.yaml", "--run", "quiet-longer", "--set",
                                  "train.epochs=215", NULL});
    read_digest(train.out, digest);
    kelp_test_command_fini(&train);
    ck_assert_str_eq(changed, digest);
    kelp_test_command_says(folder.path, (const char *[]){"digest", "run", NULL}, 0, digest);
    kelp_test_command_says(folder.path, longer, 2, "is done");
}

/* A folder of another run, and one that is none, are refused before anything starts in them. */
KELP_TEST(wrong_folder)
{
    struct kelp_test_command node;

    const char *const args[] = {"node",  "--etcd", etcd.url,   "--job", "hosts",
                                "--run", "other",  "--shards", "1",     NULL};
    verb(&node, args);
    ck_assert_int_eq(node.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(node.err, "it has no file 'token'"));
    kelp_test_command_fini(&node);
    kelp_test_command_says(folder.path,
                           (const char *[]){"submit", "job.yaml", "--etcd", etcd.url, "--run",
                                            "other", "--set", "name=another", NULL},
                           0, "\nsha256 ");
    verb(&node, args);
    ck_assert_int_eq(node.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(node.err, "it is that of another run"));
    kelp_test_command_fini(&node);
}

/* One name, one job; and what is not meant is not run. */
KELP_TEST(another_job)
{
    kelp_test_command_says(
        folder.path,
        (const char *[]){"submit", "job.yaml", "--etcd", etcd.url, "--run", "again", NULL}, 2,
        "etcd has a job 'hosts' already");
    kelp_test_command_says(
        folder.path,
        (const char *[]){"node", "--etcd", etcd.url, "--job", "hosts", "--workers", "1",
                         "--spec-sha256",
                         "0000000000000000000000000000000000000000000000000000000000000000", NULL},
        2, "is not the expected one");
}

static bool is_free(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    bool is = bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    (void)close(fd);
    return is;
}

/* As many free ports in a row, of those that the kernel gives to nobody by itself. */
static uint16_t free_ports(uint16_t count)
{
    uint16_t first = (uint16_t)(20000 + getpid() % 10000);

    for (uint16_t i = 0; i < count; i++) {
        if (!is_free((uint16_t)(first + i))) {
            first = (uint16_t)(first + i + 1);
            i = UINT16_MAX; /* from the beginning */
        }
    }
    return first;
}

/* How often a process has said that it can be watched there. */
static unsigned times_watched(const char *id, const char *address)
{
    char name[96], said[64];
    unsigned times = 0;

    (void)snprintf(name, sizeof(name), "long/logs/%s.log", id);
    (void)snprintf(said, sizeof(said), "may be watched metrics=%s", address);
    char *log = kelp_test_read(folder.path, name, NULL);
    for (const char *at = log; (at = strstr(at, said)) != NULL; at++) {
        times++;
    }
    free(log);
    return times;
}

/* An answer of etcd takes half a second: no host waits for the end of a job that has ended. */
KELP_TEST(etcd_far_away)
{
    struct tcp_proxy proxy;

    tcp_proxy_start(&proxy, etcd.port, "/");
    tcp_proxy_delay(&proxy, 500);
    (void)snprintf(etcd.url, sizeof(etcd.url), "%s", proxy.server.url);
    start_two();
    await_step(1);
    kelp_test_command_signal(&hosts[1], "kelp-ps", "b.shard-0", SIGKILL);
    expect_quiet();
    ends(0, 0);
    ends(1, 0);
    tcp_proxy_stop(&proxy);
}

/* Each process at a port of its own, in the order of --help; a restart leaves it there. */
KELP_TEST(can_be_watched)
{
    static const char *const ids[] = {"w.coordinator-0", "w.shard-0", "w.shard-1", "w.worker-0",
                                      "w.worker-1"};
    const uint16_t first = free_ports(KELP_ARRAY_COUNT(ids));
    char address[32], id[64];

    kelp_test_command_says(folder.path,
                           (const char *[]){"submit", "job.yaml", "--etcd", etcd.url, "--set",
                                            "name=long", "--run", "long", "--set",
                                            "train.epochs=6000", NULL},
                           0, "\nsha256 ");
    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)first);
    kelp_test_command_start(&hosts[0], folder.path,
                            (const char *[]){"node", "--etcd", etcd.url, "--job", "long", "--host",
                                             "w", "--coordinator", "--shards", "2", "--workers",
                                             "2", "--metrics", address, NULL});
    for (size_t i = 0; i < KELP_ARRAY_COUNT(ids); i++) {
        (void)snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)(first + i));
        KELP_TEST_AWAIT_FROM(
            &hosts[0], kelp_test_http_status(kelp_test_http_ask(address, "GET", "/readyz")) == 200,
            "%s is not ready: %s", ids[i], kelp_test_command_peek(&hosts[0]));
        (void)snprintf(id, sizeof(id), "\"%s\"", ids[i]);
        ck_assert_ptr_nonnull(strstr(kelp_test_http_ask(address, "GET", "/metrics"), id));
    }
    kelp_test_command_signal(&hosts[0], "kelp-worker", "w.worker-1", SIGKILL);
    KELP_TEST_AWAIT_FROM(&hosts[0], times_watched("w.worker-1", address) == 2,
                         "the worker does not begin again at %s: %s", address,
                         kelp_test_command_peek(&hosts[0]));
    kelp_test_command_says(folder.path, (const char *[]){"stop", "long", "--etcd", etcd.url, NULL},
                           0, "paused at step ");
    ends(0, EXIT_PAUSED);
}

/* A service manager hears when a host begins, how far the job is, and what takes longer. */
KELP_TEST(tells_its_manager)
{
    int manager = manager_open();

    start_two();
    ck_assert_int_eq(unsetenv("NOTIFY_SOCKET"), 0);
    manager_hears(manager, "READY=1");
    manager_hears(manager, "WATCHDOG=1\nSTATUS=step ");
    kelp_test_command_signal(&hosts[1], "node", "hosts", SIGTERM);
    manager_hears(manager, "STOPPING=1\nEXTEND_TIMEOUT_USEC=35000000");
    manager_hears(manager, "WATCHDOG_USEC=3600000000\nWATCHDOG=1\nSTATUS=");
    ends(1, 0);
    expect_quiet();
    ends(0, 0);
    ck_assert_int_eq(close(manager), 0);
    ck_assert_int_eq(unsetenv("WATCHDOG_USEC"), 0);
}

KELP_CASE("ends", .timeout_s = 2 * KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

/* kelp wait has heard that the job is over, and etcd is slow to say where its run is. */
KELP_TEST(etcd_is_slow_at_the_end)
{
    struct tcp_proxy proxy;
    struct kelp_test_command wait;

    start_two();
    ends(0, 0);
    ends(1, 0);
    tcp_proxy_start(&proxy, etcd.port, "/v3/kv/range");
    tcp_proxy_hold_after(&proxy, 3); /* the job, whose it is, and its result */
    memset(&wait, 0, sizeof(wait));
    kelp_test_command_start(&wait, folder.path,
                            (const char *[]){"wait", "hosts", "--etcd", proxy.server.url, NULL});
    tcp_proxy_wait_held(&proxy, 2); /* it asks again */
    tcp_proxy_hold(&proxy, false);
    (void)kelp_test_command_wait(&wait, KELP_TEST_HANG_MS);
    ck_assert_msg(wait.exit_code == 0, "exit %d: %s", wait.exit_code, wait.err);
    kelp_test_command_fini(&wait);
    tcp_proxy_stop(&proxy);
}

static void expect_missing(const char *const *args)
{
    struct kelp_test_command command;
    char line[300];

    (void)snprintf(line, sizeof(line), "kelp: etcd at %s has no job 'host'; it has hosts, other\n",
                   etcd.url);
    verb(&command, args);
    ck_assert_msg(command.exit_code == 2, "%s: exit %d: %s", args[0], command.exit_code,
                  command.err);
    ck_assert_str_eq(command.err, line);
    kelp_test_command_fini(&command);
}

/* A job's name that is mistyped: every verb says so at once, and which names would be right. A host
 * that waits for that job is none. */
KELP_TEST(mistyped)
{
    kelp_test_command_says(folder.path,
                           (const char *[]){"submit", "job.yaml", "--etcd", etcd.url, "--run",
                                            "second", "--set", "name=other", NULL},
                           0, "\nsha256 ");
    memset(&hosts[0], 0, sizeof(hosts[0]));
    kelp_test_command_start(&hosts[0], folder.path,
                            (const char *[]){"node", "--etcd", etcd.url, "--job", "host", "--host",
                                             "a", "--workers", "1", NULL});
    kelp_test_command_await(&hosts[0], "has no job 'host'; it has hosts, other\n");
    expect_missing((const char *[]){"wait", "host", "--etcd", etcd.url, NULL});
    expect_missing((const char *[]){"status", "host", "--etcd", etcd.url, NULL});
    expect_missing((const char *[]){"stop", "host", "--etcd", etcd.url, NULL});
    expect_missing((const char *[]){"scale", "host", "--workers", "2", "--etcd", etcd.url, NULL});
    expect_missing((const char *[]){"drain", "shard-0", "host", "--etcd", etcd.url, NULL});
    expect_missing((const char *[]){"checkpoint", "host", "--etcd", etcd.url, NULL});
    expect_missing(
        (const char *[]){"export", "host", "--etcd", etcd.url, "--out", "x.safetensors", NULL});
    expect_missing((const char *[]){"logs", "--job", "host", "--etcd", etcd.url, NULL});
    expect_missing((const char *[]){"free", "host", "--etcd", etcd.url, NULL});
}

/* A script may wait before the job is submitted. A job that is removed then does not come to an
 * end. */
KELP_TEST(submitted_later)
{
    const char *const free_job[] = {"free", "hosts", "--etcd", etcd.url, NULL};
    struct kelp_test_command wait;

    kelp_test_command_says(folder.path, free_job, 0, "never began");
    memset(&wait, 0, sizeof(wait));
    kelp_test_command_start(
        &wait, folder.path,
        (const char *[]){"wait", "hosts", "--etcd", etcd.url, "--submit-timeout", "10m", NULL});
    kelp_test_command_await(&wait, "has no job 'hosts'; kelp submit puts one there");
    kelp_test_command_says(
        folder.path,
        (const char *[]){"submit", "job.yaml", "--etcd", etcd.url, "--run", "second", NULL}, 0,
        "\nsha256 ");
    kelp_test_command_await(&wait, "no coordinator leads job 'hosts'");
    kelp_test_command_says(folder.path, free_job, 0, "never began");
    (void)kelp_test_command_wait(&wait, KELP_TEST_HANG_MS);
    ck_assert_msg(wait.exit_code == 2, "exit %d: %s", wait.exit_code, wait.err);
    kelp_test_command_fini(&wait);
}
