/*
 * `kelp doctor JOB --etcd URL`: what is wrong with a cluster, each thing made wrong for real, is
 * said by name; and of a cluster that is well nothing is.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/hello.h"
#include "proto/wire.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_doctor.h"
#include "tests/lib/etcd/etcd_cluster.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/etcd/tcp_double.h"
#include "tests/lib/rpc_process.h"
#include "tests/lib/suite.h"

#define LONG      "60s" /* whatever else the machine does */
#define FAR_COUNT 200   /* more than are asked within some seconds */

/* Longer than any test. */
static const char job_text[] = "name: hosts\nseed: 3\n"
                               "model: {kind: dlinear}\n"
                               "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                               "       seq_len: 48, pred_len: 24}\n"
                               "train: {epochs: 100000, batch_size: 32, optimizer: adam}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "checkpoint: {digest_steps: 5}\n";

static struct kelp_test_folder folder;
static struct etcd_fixture etcd;
static struct kelp_test_command hosts[2];
static struct kelp_test_command doctor; /* the last one */

/* ---- the cluster --------------------------------------------------------------------------- */

static void submit(const char *url)
{
    kelp_test_command_says(
        folder.path, (const char *[]){"submit", "job.yaml", "--etcd", url, "--run", "run", NULL}, 0,
        "\nsha256 ");
}

static void setup_files(void)
{
    kelp_test_folder_init(&folder);
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", folder.path, 1), 0);
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
    memset(hosts, 0, sizeof(hosts));
    memset(&doctor, 0, sizeof(doctor));
}

static void setup(void)
{
    etcd_fixture_start(&etcd);
    setup_files();
    submit(etcd.url);
}

static void teardown_files(void)
{
    kelp_test_command_fini(&doctor);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(hosts); i++) {
        kelp_test_command_fini(&hosts[i]);
    }
    kelp_test_folder_fini(&folder);
}

static void teardown(void)
{
    teardown_files();
    etcd_fixture_stop(&etcd);
}

static void start_host(size_t host)
{
    static const char *const names[] = {"a", "b"};
    const char *args[] = {"node",      "--etcd",        etcd.url,   "--job", "hosts",     "--host",
                          names[host], "--coordinator", "--shards", "1",     "--workers", "1",
                          NULL};

    kelp_test_command_start(&hosts[host], folder.path, args);
}

static bool has_begun(void)
{
    char path[300];
    struct stat about;

    (void)snprintf(path, sizeof(path), "%s/run/digests.jsonl", folder.path);
    return stat(path, &about) == 0 && about.st_size > 0;
}

/* What is registered under a name. */
static void put(const char *name, const char *value)
{
    char key[128];
    struct kelp_error error;
    struct kelp_etcd *client = etcd_fixture_client(&etcd);

    (void)snprintf(key, sizeof(key), "/kelp/hosts/%s", name);
    ck_assert_msg(kelp_etcd_put(client, key, value, 0, 5000, &error) == KELP_OK, "%s", error.text);
    kelp_etcd_close(client);
}

static void put_shard(const char *id, const char *host, unsigned port)
{
    char key[96], value[160];

    (void)snprintf(key, sizeof(key), "ps/%s", id);
    (void)snprintf(value, sizeof(value),
                   "{\"address\":\"%s:%u\",\"incarnation\":\"7\",\"build\":\"x\"}", host, port);
    put(key, value);
}

/* ---- the doctor ---------------------------------------------------------------------------- */

/* With these options behind its first ones. */
static void examine_at(const char *url, const char *const *more, int exit_code)
{
    kelp_test_doctor_run(&doctor, folder.path, "hosts", url, more, exit_code);
}

static void examine(int exit_code)
{
    examine_at(etcd.url, (const char *[]){"--timeout", LONG, NULL}, exit_code);
}

#define ck_found(check, state, words) KELP_TEST_DOCTOR_FOUND(&doctor, check, state, words)
#define ck_no_problem()               ck_assert_msg(!strstr(doctor.out, " PROBLEM "), "%s", doctor.out)

/* Both hosts' processes answer, and the job runs. */
static bool is_well(void)
{
    examine(KELP_TEST_DOCTOR_ANY);
    return kelp_test_doctor_found(&doctor, "processes", "OK", "shard a.shard-0 ") &&
           kelp_test_doctor_found(&doctor, "processes", "OK", "shard b.shard-0 ") &&
           kelp_test_doctor_found(&doctor, "job", "OK", "running, step ");
}

static void start_two(void)
{
    start_host(0);
    start_host(1);
    KELP_TEST_AWAIT_FROM(&hosts[0], has_begun(), "training does not begin");
    KELP_TEST_AWAIT_FROM(&hosts[0], is_well(), "not well: %s", doctor.out);
}

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("cluster", .timeout_s = KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

/* A cluster that is well: every process answers, and nothing is wrong; as JSON too. */
KELP_TEST(well)
{
    start_two();
    examine(0);
    ck_no_problem();
    ck_found("etcd", "OK", " answers in ");
    ck_found("etcd", "OK", "it has no users");
    ck_found("clock", "OK", "within 3 s of etcd's");
    ck_found("processes", "OK", "coordinator ");
    ck_found("versions", "OK", "3 processes are of ");
    ck_found("processes", "OK", "shard a.shard-0 (zone a) at unix:");
    ck_found("processes", "OK", "shard b.shard-0 (zone b) at unix:");
    ck_found("folder", "OK", "/run is the run's folder, and can be written");
    ck_found("space", "OK", "enough for a checkpoint, which takes 27.8 KiB");
    ck_found("job", "OK", "running, step ");
    examine_at(etcd.url, (const char *[]){"-o", "json", NULL}, 0);
    cJSON *json = kelp_test_json(doctor.out);
    ck_assert_str_eq(kelp_test_text(json, "job"), "hosts");
    ck_assert(cJSON_IsFalse(kelp_test_member(json, "problem")));
    const cJSON *first = cJSON_GetArrayItem(kelp_test_member(json, "findings"), 0);
    ck_assert_str_eq(kelp_test_text(first, "check"), "etcd");
    ck_assert_str_eq(kelp_test_text(first, "state"), "ok");
    ck_assert_ptr_nonnull(strstr(kelp_test_text(first, "text"), etcd.url));
    cJSON_Delete(json);
}

/* The folder goes from a host that has shards, as a mount does. */
KELP_TEST(folder_is_gone)
{
    char from[300], to[300];

    start_two();
    (void)snprintf(from, sizeof(from), "%s/run", folder.path);
    (void)snprintf(to, sizeof(to), "%s/moved", folder.path);
    ck_assert_int_eq(rename(from, to), 0);
    examine(1);
    ck_found("folder", "PROBLEM", "/run is not on this host, but ");
    ck_found("folder", "PROBLEM", " runs here: mount it");
}

/* Nobody runs it yet; it is paused; there is no such job. */
KELP_TEST(nobody)
{
    examine(0);
    ck_found("processes", "warning", "none has registered: no host runs kelp node");
    ck_found("job", "warning", "submitted but not begun");
    ck_found("folder", "OK", "is the run's folder");
    start_two();
    kelp_test_command_says(folder.path, (const char *[]){"stop", "hosts", "--etcd", etcd.url, NULL},
                           0, "paused at step ");
    (void)kelp_test_command_wait(&hosts[0], KELP_TEST_HANG_MS);
    (void)kelp_test_command_wait(&hosts[1], KELP_TEST_HANG_MS);
    examine(0);
    ck_found("processes", "warning", "none has registered: the job is paused");
    ck_found("job", "warning", "paused");
    kelp_test_command_says(folder.path,
                           (const char *[]){"doctor", "other", "--etcd", etcd.url, NULL}, 2,
                           "has no job 'other'; it has hosts");
    kelp_test_command_says(folder.path, (const char *[]){"doctor", "--etcd", etcd.url, NULL}, 2,
                           "--etcd needs the name of a job");
}

/* A shard, and then the leader, that stand still: connected, and silent. */
KELP_TEST(stopped)
{
    start_two();
    kelp_test_command_signal(&hosts[1], "kelp-ps", "b.shard-0", SIGSTOP);
    examine_at(etcd.url, (const char *[]){"--timeout", "8s", NULL}, 1);
    ck_found("processes", "PROBLEM", "shard b.shard-0 (zone b) at unix:");
    ck_found("processes", "PROBLEM", "connected, but it does not answer: it is stopped");
    ck_found("processes", "OK", "shard a.shard-0");
    kelp_test_command_signal(&hosts[1], "kelp-ps", "b.shard-0", SIGCONT);
    KELP_TEST_AWAIT_FROM(&hosts[0], is_well(), "not well again: %s", doctor.out);
}

/* Entries in etcd whose process died, hangs behind a firewall, or takes connections and says
 * nothing; and one that is damaged. */
static void say_nothing(struct tcp_double *server, int fd, void *user)
{
    (void)user;
    while (tcp_double_readable(server, fd, -1)) {
        char bytes[512];
        if (recv(fd, bytes, sizeof(bytes), 0) <= 0) {
            return;
        }
    }
}

KELP_TEST(unreached)
{
    struct tcp_double mute;

    tcp_double_start(&mute, say_nothing, NULL);
    put_shard("dead", "127.0.0.1", tcp_double_closed_port());
    put_shard("mute", "127.0.0.1", mute.port);
    put_shard("named", "localhost", mute.port);
    put("ps/torn", "{\"address\":");
    put("ps/socket", "{\"address\":\"unix:/nowhere/kelp.sock\",\"incarnation\":\"7\"}");
    examine_at(etcd.url, (const char *[]){"--timeout", "8s", NULL}, 1);
    ck_found("processes", "PROBLEM", "shard dead at 127.0.0.1:");
    ck_found("processes", "PROBLEM", ": connection refused: nothing listens there");
    ck_found("processes", "PROBLEM", "connected, but it does not answer");
    ck_found("processes", "PROBLEM", "shard named at localhost:");
    ck_found("processes", "PROBLEM", "shard torn at ?: its entry in etcd is damaged");
    ck_found("processes", "PROBLEM", "nothing listens on that socket");
    ck_found("processes", "PROBLEM", "no coordinator leads");
    tcp_double_stop(&mute);
}

/* A port at loopback of which the kernel answers no connection any more, as behind a firewall: its
 * queue is full. The descriptors are open until the test ends. */
static uint16_t deaf_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    ck_assert_int_eq(listen(fd, 0), 0);
    for (int i = 0; i < 4; i++) {
        int other = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)connect(other, (struct sockaddr *)&address, length);
    }
    return ntohs(address.sin_port);
}

/* However many do not answer, it ends in time, and says whom it did not ask. */
KELP_TEST(many_are_silent)
{
    const uint16_t port = deaf_port();
    char id[32];

    for (unsigned i = 0; i < FAR_COUNT; i++) {
        (void)snprintf(id, sizeof(id), "far-%03u", i);
        put_shard(id, "127.0.0.1", port);
    }
    examine_at(etcd.url, (const char *[]){"--timeout", "4s", NULL}, 1);
    ck_found("processes", "PROBLEM", "timed out: a firewall drops it");
    ck_found("processes", "warning", "not asked: the time was up");
    ck_found("folder", "OK", "is the run's folder");
}

/* Another process than the registered one answers at its address. */
KELP_TEST(another_process)
{
    char value[512];
    struct kelp_etcd_range range = {0};

    start_two();
    struct kelp_etcd *client = etcd_fixture_client(&etcd);
    ck_assert_int_eq(kelp_etcd_get(client, "/kelp/hosts/ps/a.shard-0", 5000, &range, NULL),
                     KELP_OK);
    ck_assert_uint_eq(range.count, 1);
    (void)snprintf(value, sizeof(value), "%s", range.pairs[0].value);
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(client);
    put("ps/twin", value);
    char *digits = strstr(value, "\"incarnation\":\"") + strlen("\"incarnation\":\"");
    digits[0] = digits[0] == '1' ? '2' : '1';
    put("ps/b.shard-0", value); /* of whom the address is not either */
    examine(1);
    ck_found("processes", "PROBLEM", "a.shard-0 of job hosts answers there in its place");
    ck_found("processes", "PROBLEM", "shard twin");
}

/* What a shard of another version says of itself; gRPC is begun in its process. */
static void answer_as_other(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                            void *server_user)
{
    static const struct kelp_hello ours = {.job = "hosts", .id = "other", .incarnation = 7};
    Kelp__V1__ShardStatusReply reply = KELP__V1__SHARD_STATUS_REPLY__INIT;
    Kelp__V1__Hello hello;
    struct kelp_rpc_message *answer = NULL;
    static char version[] = "9.9.9", commit[] = "fffffff";

    (void)message;
    (void)server_user;
    kelp_hello_write(&ours, &hello);
    hello.version = version;
    hello.commit = commit;
    reply.hello = &hello;
    if (kelp_wire_encode(&reply.base, &answer, NULL) == KELP_OK) {
        kelp_rpc_request_answer(request, answer);
    }
}

/* Another version answers; and shards of two builds have registered. */
KELP_TEST(another_version)
{
    static const struct kelp_rpc_method methods[] = {
        {.path = "/kelp.v1.ParameterServer/Status", .unary = answer_as_other}};
    const struct kelp_rpc_server_options options = {
        .message_bytes_max = 65536, .methods = methods, .method_count = 1};
    struct kelp_test_rpc_process process = {.pid = 0};

    kelp_test_rpc_fork(&process, &options, NULL);
    kelp_test_rpc_serve(&process, "127.0.0.1:0");
    put_shard("other", "127.0.0.1", process.port);
    put("ps/third", "{\"address\":\"127.0.0.1:1\",\"incarnation\":\"7\",\"build\":\"y\"}");
    examine(1);
    ck_found("processes", "OK", "shard other at 127.0.0.1:");
    ck_found("versions", "PROBLEM", "other is of 9.9.9 (fffffff), and this command of ");
    ck_found("versions", "PROBLEM", "other is of build x, but third is of build y");
    kelp_test_rpc_end(&process);
}

/* What stands at that key of the job also stands at another one. */
static void copy_key(const char *from, const char *to)
{
    char key[128];
    struct kelp_etcd_range range = {0};
    struct kelp_etcd *client = etcd_fixture_client(&etcd);

    (void)snprintf(key, sizeof(key), "/kelp/hosts/%s", from);
    ck_assert_int_eq(kelp_etcd_get(client, key, 5000, &range, NULL), KELP_OK);
    ck_assert_uint_eq(range.count, 1);
    ck_assert_int_eq(kelp_etcd_put(client, to, range.pairs[0].value, 0, 5000, NULL), KELP_OK);
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(client);
}

static void examine_bare(int exit_code)
{
    kelp_test_doctor_run(&doctor, folder.path, "bare", etcd.url, (const char *[]){NULL}, exit_code);
}

/* A job that was not submitted, whose daemons are started by hand; and one without a plan. */
KELP_TEST(by_hand)
{
    copy_key("spec", "/kelp/bare/spec");
    examine_bare(0);
    ck_found("folder", "warning", "not looked at: job 'bare' was not put into etcd by kelp submit");
    copy_key("run", "/kelp/bare/run");
    examine_bare(0);
    ck_found("space", "OK", "free; the size of a checkpoint is known once a worker has joined");
}

/* Keys that another version wrote, or nobody of Kelp. */
KELP_TEST(damaged_keys)
{
    char leader[160];

    (void)snprintf(leader, sizeof(leader),
                   "{\"id\":\"gone\",\"address\":\"127.0.0.1:%u\",\"incarnation\":\"7\"}",
                   tcp_double_closed_port());
    put("coordinator", leader);
    put("state", "{\"state\":\"failed\",\"reason\":\"loss is nan\"}");
    examine(1);
    ck_found("processes", "PROBLEM", "coordinator gone at 127.0.0.1:");
    ck_found("processes", "PROBLEM", "no shard has registered");
    ck_found("job", "PROBLEM", "failed, as etcd has it without asking its leader: loss is nan");
    put("spec", "colour: blue");
    put("state", "{");
    examine(1);
    ck_found("job", "PROBLEM", "this kelp cannot read the job's text: ");
    ck_found("job", "PROBLEM", "its state in etcd cannot be read");
}

/* The folder of --run: another one, none, and the right one by another path. */
KELP_TEST(other_folder)
{
    char from[300], to[300];

    (void)snprintf(to, sizeof(to), "%s/other", folder.path);
    ck_assert_int_eq(mkdir(to, 0700), 0);
    examine_at(etcd.url, (const char *[]){"--run", "other", NULL}, 1);
    ck_found("folder", "PROBLEM", "'other' is not the run's folder: it has no file 'token'");
    (void)kelp_test_write(folder.path, "other/token", "0123456789abcdef");
    examine_at(etcd.url, (const char *[]){"--run", "other", NULL}, 1);
    ck_found("folder", "PROBLEM", "it is that of another run");
    (void)snprintf(from, sizeof(from), "%s/run", folder.path);
    (void)snprintf(to, sizeof(to), "%s/moved", folder.path);
    ck_assert_int_eq(rename(from, to), 0);
    examine(0);
    ck_found("folder", "warning", "is not on this host: fine if only workers run here");
    examine_at(etcd.url, (const char *[]){"--run", "moved", NULL}, 0);
    ck_found("folder", "OK", "moved is the run's folder, and can be written");
}

/* A file system with less room than a checkpoint takes; and one that is there to be read. */
KELP_TEST(little_room)
{
    char *token = kelp_test_read(folder.path, "run/token", NULL);
    char small[300];

    (void)snprintf(small, sizeof(small), "%s/small", folder.path);
    ck_assert_int_eq(mkdir(small, 0700), 0);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("small", small, "tmpfs", 0, "size=16k") != 0) {
        (void)printf("skipped: little_room: a file system of its own takes root\n");
        free(token);
        return;
    }
    (void)kelp_test_write(folder.path, "small/token", token);
    free(token);
    examine_at(etcd.url, (const char *[]){"--run", "small", NULL}, 1);
    ck_found("space", "PROBLEM", "too little for a checkpoint, which takes 27.8 KiB");
    ck_assert_int_eq(mount("small", small, "tmpfs", MS_REMOUNT, "size=44k"), 0);
    examine_at(etcd.url, (const char *[]){"--run", "small", NULL}, 0);
    ck_found("space", "warning", "hardly enough for a checkpoint, which takes 27.8 KiB");
    ck_assert_int_eq(mount("small", small, "tmpfs", MS_REMOUNT, "size=1m,nr_inodes=2"), 0);
    examine_at(etcd.url, (const char *[]){"--run", "small", NULL}, 1);
    ck_found("space", "PROBLEM", "its file system has no inodes left");
    ck_assert_int_eq(mount("small", small, "tmpfs", MS_REMOUNT | MS_RDONLY, "size=1m,nr_inodes=0"),
                     0);
    examine_at(etcd.url, (const char *[]){"--run", "small", NULL}, 1);
    ck_found("folder", "PROBLEM", "but you cannot write in it: Read-only file system");
    ck_found("space", "OK", "enough for a checkpoint");
    ck_assert_int_eq(umount(small), 0);
}

/* The detector of leaks waits for all threads when a process ends: for the one that hangs too. */
static void ignore_leaks(void)
{
    const char *options = getenv("ASAN_OPTIONS");
    char all[1024];

    (void)snprintf(all, sizeof(all), "%s%sdetect_leaks=0", options ? options : "",
                   options && options[0] ? ":" : "");
    ck_assert_int_eq(setenv("ASAN_OPTIONS", all, 1), 0);
}

/* A mount whose server does not answer, as of a file server that is away: whoever asks it waits. */
KELP_TEST(folder_hangs)
{
    char hung[300], options[100];
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

    (void)snprintf(hung, sizeof(hung), "%s/hung", folder.path);
    ck_assert_int_eq(mkdir(hung, 0700), 0);
    (void)snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
    if (fd < 0 || unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("hung", hung, "fuse", 0, options) != 0) {
        (void)printf("skipped: folder_hangs: a mount by /dev/fuse takes root\n");
        return;
    }
    ignore_leaks();
    examine_at(etcd.url, (const char *[]){"--run", "hung", "--timeout", "8s", NULL}, 1);
    ck_found("folder", "PROBLEM", "hung does not answer: its file system hangs");
    ck_assert_int_eq(umount2(hung, MNT_DETACH), 0);
    ck_assert_int_eq(close(fd), 0);
}

/* etcd's store is full: it answers reads, and no write. */
KELP_TEST(full_store)
{
    etcd_fixture_fill(&etcd);
    examine(1);
    ck_found("etcd", "PROBLEM", "NOSPACE");
}

/* ---- answers of etcd ----------------------------------------------------------------------- */

/* What a double in front of the real etcd does to its answers. */
struct odd_etcd {
    int64_t off_s;      /* added to their date */
    bool undated;       /* they have none */
    int delay_ms;       /* of each */
    const char *refuse; /* requests that begin so are answered with 404; NULL: none */
};

/* The answer of the real one; false: there is none. */
static bool ask_real(struct tcp_double *server, char text[65536])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(etcd.port)};
    int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bool answered = connect(to, (struct sockaddr *)&address, sizeof(address)) == 0 &&
                    tcp_double_write(to, text, strlen(text)) &&
                    tcp_double_read_request(server, to, text, 65536);
    (void)close(to);
    return answered;
}

static void change_date(const struct odd_etcd *odd, char *text)
{
    static const char name[] = "\r\nDate: ";
    char *date = strstr(text, name);
    time_t then = time(NULL) + (time_t)odd->off_s;
    struct tm parts;
    char wrong[32];

    ck_assert_ptr_nonnull(date);
    (void)strftime(wrong, sizeof(wrong), "%a, %d %b %Y %H:%M:%S", gmtime_r(&then, &parts));
    for (size_t i = 0; wrong[i] != '\0'; i++) { /* as long as the one before */
        date[strlen(name) + i] = wrong[i];
    }
    if (odd->undated) {
        date[2] = 'X';
    }
}

static void serve_odd(struct tcp_double *server, int fd, void *user)
{
    static const char refusal[] = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    const struct odd_etcd *odd = user;
    char text[65536];

    while (tcp_double_read_request(server, fd, text, sizeof(text))) {
        bool refused = odd->refuse && strncmp(text, odd->refuse, strlen(odd->refuse)) == 0;
        if (!refused && !ask_real(server, text)) {
            return;
        }
        if (refused) {
            (void)snprintf(text, sizeof(text), "%s", refusal);
        } else {
            change_date(odd, text);
        }
        /* As long as a far network takes; it ends earlier with the test. */
        (void)tcp_double_readable(server, server->stop_fd, odd->delay_ms);
        if (!tcp_double_write(fd, text, strlen(text))) {
            return;
        }
    }
}

static const struct {
    struct odd_etcd odd;
    int exit_code;
    const char *check, *state, *words;
} odd_etcds[] = {
    {{.off_s = 121}, 1, "clock", "PROBLEM", " s behind etcd's host http://"},
    {{.off_s = -3600}, 1, "clock", "PROBLEM", " s ahead of etcd's host http://"},
    {{.off_s = 20}, 0, "clock", "warning", " s behind etcd's host http://"},
    {{.undated = true}, 0, "clock", "warning", "not known: etcd's answers have no date"},
    {{.delay_ms = 320}, 0, "etcd", "warning", " ms: over 300 ms, a tenth of the leader's lease"},
    {{.refuse = "POST /v3/cluster/member/list"},
     0,
     "etcd",
     "warning",
     "its members are not known: etcd at http://"},
};

KELP_LOOP_TEST(odd_etcd, 0, KELP_ARRAY_COUNT(odd_etcds))
{
    struct tcp_double server;
    struct odd_etcd odd = odd_etcds[_i].odd;

    tcp_double_start(&server, serve_odd, &odd);
    examine_at(server.url, (const char *[]){"--timeout", "20s", NULL}, odd_etcds[_i].exit_code);
    ck_found(odd_etcds[_i].check, odd_etcds[_i].state, odd_etcds[_i].words);
    const char *line = strstr(doctor.out, "clock of this host is ");
    if (odd.off_s != 0) { /* so many seconds, give or take the one that passes meanwhile */
        const long said = strtol(line + strlen("clock of this host is "), NULL, 10);
        ck_assert_msg(labs(said - labs((long)odd.off_s)) <= 2, "%s", doctor.out);
    }
    tcp_double_stop(&server);
}

/* ---- etcd ---------------------------------------------------------------------------------- */

/* Nobody there: status 3, and one line on standard error. */
KELP_TEST(no_etcd)
{
    char url[64];

    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u", tcp_double_closed_port());
    examine_at(url, (const char *[]){"--timeout", "1s", NULL}, 3);
    ck_assert_ptr_nonnull(strstr(doctor.err, "kelp: job 'hosts' cannot be reached: etcd at http"));
    ck_assert_ptr_eq(strchr(doctor.err, '\n') + 1, doctor.err + strlen(doctor.err));
    ck_found("etcd", "PROBLEM", url);
}

KELP_CASE("members", .timeout_s = KELP_TEST_HANG_S, .setup = setup_files,
          .teardown = teardown_files)

/* Does the member know of no leader? */
static bool is_led_by_nobody(const char *url)
{
    struct kelp_etcd *client = NULL;
    struct kelp_etcd_health health = {.leader = 1};

    ck_assert_int_eq(kelp_etcd_open(url, &client, NULL), KELP_OK);
    kelp_status status = kelp_etcd_health(client, 2000, &health, NULL);
    kelp_etcd_close(client);
    return status == KELP_OK && health.leader == 0;
}

/* The addresses of members that were not named are known by the one that was. One has not started.
 */
KELP_TEST(members)
{
    struct etcd_cluster cluster;

    etcd_cluster_start(&cluster);
    submit(cluster.urls);
    examine_at(cluster.members[0].url, (const char *[]){NULL}, 0);
    ck_found("etcd", "OK", "3 of 3 members answer, and ");
    ck_found("etcd", "OK", cluster.members[2].url);
    etcd_cluster_expect_member(&cluster);
    examine_at(cluster.members[0].url, (const char *[]){NULL}, 0);
    ck_found("etcd", "OK", "3 of 4 members answer, and ");
    ck_found("etcd", "warning", "a member has not started: it has no address");
    etcd_cluster_stop(&cluster);
}

/* Of three members one is gone, which harms nobody; two are, and nothing can be read or written. */
KELP_TEST(members_are_lost)
{
    struct etcd_cluster cluster;

    etcd_cluster_start(&cluster);
    submit(cluster.urls);
    etcd_cluster_kill(&cluster, 2);
    KELP_TEST_AWAIT(etcd_cluster_leader(&cluster) != 2, "nobody else leads");
    examine_at(cluster.urls, (const char *[]){NULL}, 0);
    ck_found("etcd", "warning", cluster.members[2].url);
    ck_found("etcd", "OK", "2 of 3 members answer, and ");
    etcd_cluster_kill(&cluster, 1);
    KELP_TEST_AWAIT(is_led_by_nobody(cluster.members[0].url), "somebody leads");
    examine_at(cluster.members[0].url, (const char *[]){"--timeout", "8s", NULL}, 1);
    ck_found("etcd", "PROBLEM", "it has no leader, so nothing can be read or written: 1 of 3");
    ck_found("job", "PROBLEM", "its keys cannot be read: etcd at ");
    etcd_cluster_stop(&cluster);
}
