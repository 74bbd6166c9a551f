/*
 * Who can reach a run on one machine: nobody but its user. No process of it listens at a port; all
 * meet in a folder that other users cannot open, and that goes with the run.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

#define PROCESSES_MAX 64
#define NOBODY        65534

/* Longer than any test. */
static const char job_text[] = "name: long\nseed: 3\n"
                               "model: {kind: dlinear}\n"
                               "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                               "       seq_len: 48, pred_len: 24}\n"
                               "train: {epochs: 100000, batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "checkpoint: {digest_steps: 5}\n";

static struct kelp_test_folder folder;
static struct kelp_test_command train;
static char sockets[108];

static void setup(void)
{
    (void)umask(022);
    kelp_test_folder_init(&folder);
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", folder.path, 1), 0);
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
    memset(&train, 0, sizeof(train));
}

static void teardown(void)
{
    kelp_test_command_fini(&train);
    kelp_test_folder_fini(&folder);
}

/* What cluster.json says of the run, into text. */
static void read_cluster(const char *name, char *text, size_t bytes)
{
    char *json = kelp_test_read(folder.path, "run/cluster.json", NULL);
    cJSON *cluster = cJSON_Parse(json);
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(cluster, name));

    ck_assert_msg(value != NULL, "cluster.json has no %s: %s", name, json);
    (void)snprintf(text, bytes, "%s", value);
    cJSON_Delete(cluster);
    free(json);
}

static bool has_begun(void)
{
    char path[300];
    struct stat about;

    (void)snprintf(path, sizeof(path), "%s/run/digests.jsonl", folder.path);
    return stat(path, &about) == 0 && about.st_size > 0;
}

static void start_training(const char *const *args)
{
    kelp_test_command_start(&train, folder.path, args);
    KELP_TEST_AWAIT_FROM(&train, has_begun(), "training does not begin");
    read_cluster("sockets", sockets, sizeof(sockets));
}

/* Does the run serve in another folder now? */
static bool has_moved(const char *before)
{
    read_cluster("sockets", sockets, sizeof(sockets));
    return strcmp(before, sockets) != 0;
}

/* ---- ports --------------------------------------------------------------------------------- */

static bool is_socket_of(pid_t pid, unsigned long inode)
{
    char path[64], target[64], wanted[64];

    (void)snprintf(wanted, sizeof(wanted), "socket:[%lu]", inode);
    for (int fd = 0; fd < 256; fd++) {
        (void)snprintf(path, sizeof(path), "/proc/%ld/fd/%d", (long)pid, fd);
        ssize_t length = readlink(path, target, sizeof(target) - 1);
        target[length < 0 ? 0 : length] = '\0';
        if (strcmp(target, wanted) == 0) {
            return true;
        }
    }
    return false;
}

/* Listening sockets of these processes in that table of the kernel. */
static unsigned listening_in(const char *table, const pid_t *pids, size_t count)
{
    char line[512];
    unsigned found = 0;
    FILE *in = fopen(table, "re");

    while (in && fgets(line, sizeof(line), in)) {
        unsigned state = 0;
        unsigned long inode = 0;
        if (sscanf(line, " %*d: %*s %*s %x %*s %*s %*s %*s %*s %lu", &state, &inode) != 2 ||
            state != 0x0a) {
            continue;
        }
        for (size_t i = 0; i < count; i++) {
            found += is_socket_of(pids[i], inode);
        }
    }
    ck_assert_msg(in && fclose(in) == 0, "%s", table);
    return found;
}

static unsigned listening(void)
{
    pid_t pids[PROCESSES_MAX];
    size_t count = kelp_test_command_processes(&train, pids, PROCESSES_MAX);

    ck_assert_uint_ge(count, 7); /* kelp, etcd, the coordinator, two shards, two workers */
    return listening_in("/proc/self/net/tcp", pids, count) +
           listening_in("/proc/self/net/tcp6", pids, count);
}

static void set_run_mode(mode_t mode)
{
    char path[300];

    (void)snprintf(path, sizeof(path), "%s/run", folder.path);
    ck_assert_int_eq(chmod(path, mode), 0);
}

/* ---- other users --------------------------------------------------------------------------- */

/* What a process of that user gets that connects to the etcd of the run; 0: a connection. */
static int connect_as(uid_t user)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int wait_status = 0;

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%.80s/localhost:1", sockets);
    pid_t child = fork();
    if (child == 0) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool refused = (user != geteuid() && setuid(user) != 0) || fd < 0;
        _exit(refused                                                          ? EPROTO
              : connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 ? 0
                                                                               : errno);
    }
    ck_assert_int_eq(waitpid(child, &wait_status, 0), child);
    return WEXITSTATUS(wait_status);
}

/* ---- ports --------------------------------------------------------------------------------- */

/* It serves with a certificate, by its log. */
static void expect_closed(const char *name)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "run/logs/%s.log", name);
    char *log = kelp_test_read(folder.path, path, NULL);
    ck_assert_msg(strstr(log, "serving with a certificate") && !strstr(log, "insecure"), "%s", log);
    free(log);
}

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("exposure", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

/* No port, a folder of its own for the run's user alone, and nothing left of it. */
KELP_TEST(no_port_is_open)
{
    char etcd[200];
    struct stat about;

    start_training((const char *[]){"train", "job.yaml", "--run", "run", NULL});
    ck_assert_uint_eq(listening(), 0);
    ck_assert_int_eq(stat(sockets, &about), 0);
    ck_assert_uint_eq(about.st_mode & 07777, 0700);
    read_cluster("etcd", etcd, sizeof(etcd));
    ck_assert_int_eq(strncmp(etcd, "unix:", 5), 0);
    ck_assert_int_eq(connect_as(geteuid()), 0);
    if (geteuid() == 0) {
        ck_assert_int_eq(connect_as(NOBODY), EACCES);
    }
    kelp_test_command_says(folder.path, (const char *[]){"status", "run", NULL}, 0, "running");
    kelp_test_command_says(folder.path, (const char *[]){"doctor", "run", NULL}, 0,
                           "processes listens on a port");
    set_run_mode(0707);
    kelp_test_command_says(folder.path, (const char *[]){"doctor", "run", "-o", "json", NULL}, 1,
                           "\"open\":true");
    set_run_mode(0750);
    kelp_test_command_says(folder.path, (const char *[]){"stop", "run", NULL}, 0, "");
    (void)kelp_test_command_wait(&train, KELP_TEST_HANG_MS);
    ck_assert_int_ne(access(sockets, F_OK), 0);
}

/* What a run that was killed left goes when it is gone on with. */
KELP_TEST(killed_and_resumed)
{
    char before[sizeof(sockets)];

    start_training((const char *[]){"train", "job.yaml", "--run", "run", NULL});
    memcpy(before, sockets, sizeof(before));
    kelp_test_command_kill_all(&train);
    kelp_test_command_fini(&train);
    ck_assert_int_eq(access(before, F_OK), 0);
    start_training((const char *[]){"train", "--resume", "--run", "run", NULL});
    KELP_TEST_AWAIT_FROM(&train, has_moved(before), "the run still serves in %s", before);
    ck_assert_int_ne(access(before, F_OK), 0);
}

/* Ports are there for who asks for them, at loopback alone, and for nobody without a certificate
 * that was made for the run. */
KELP_TEST(ports_on_request)
{
    char etcd[200], certs[300];

    start_training(
        (const char *[]){"train", "job.yaml", "--run", "run", "--listen", "127.0.0.1", NULL});
    ck_assert_uint_eq(listening(), 3); /* the coordinator, two shards; etcd has its socket */
    read_cluster("etcd", etcd, sizeof(etcd));
    ck_assert_int_eq(strncmp(etcd, "unix:", 5), 0);
    read_cluster("certs", certs, sizeof(certs));
    ck_assert_int_eq(strncmp(certs, sockets, strlen(sockets)), 0);
    expect_closed("shard-0");
    expect_closed("coordinator-0");
    kelp_test_command_says(folder.path, (const char *[]){"doctor", "run", NULL}, 0,
                           ": clients need a certificate");
    kelp_test_command_says(folder.path, (const char *[]){"status", "run", NULL}, 0, "running");
    kelp_test_command_says(folder.path, (const char *[]){"stop", "run", NULL}, 0, "");
    (void)kelp_test_command_wait(&train, KELP_TEST_HANG_MS);
    ck_assert_int_ne(access(sockets, F_OK), 0);
    kelp_test_command_says(folder.path, (const char *[]){"status", "run", NULL}, 0, "paused");
    kelp_test_command_says(folder.path,
                           (const char *[]){"train", "job.yaml", "--listen", "0.0.0.0", NULL}, 2,
                           "--listen 0.0.0.0: not a loopback address, such as 127.0.0.1 or [::1]");
}
