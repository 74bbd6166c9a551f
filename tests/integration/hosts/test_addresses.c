/*
 * Which address daemons register when etcd is on another machine, and what becomes of them when
 * their host gets another one. The machines are two network namespaces that a cable joins: this one
 * (10.77.0.5, later 10.77.0.6) and etcd's (10.77.0.9).
 *
 * It takes root, for the namespaces, and ip of iproute2.
 */
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/process/process.h"
#include "common/program/serving.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/etcd/etcd_certified.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls/test_certificates.h"

#define JOB         "addresses"
#define ETCD_HOST   "10.77.0.9"
#define HOST        "10.77.0.5"
#define NEW_HOST    "10.77.0.6"
#define DEADLINE_MS 10000

static int here = -1, there = -1; /* namespaces */
static struct kelp_test_folder folder;
static struct kelp_process *etcd;
static struct kelp_etcd *client; /* its thread is on etcd's side */
static char etcd_url[64];
static struct kelp_error error;

/* ---- two machines ---------------------------------------------------------------------------- */

static void stand(int namespace)
{
    ck_assert_int_eq(setns(namespace, CLONE_NEWNET), 0);
}

/* `ip WORDS`, blanks between them; true: it succeeded. */
static bool ip(const char *words)
{
    char program[KELP_PROCESS_PATH_MAX], text[200], *rest = text;
    const char *argv[16] = {program};
    struct kelp_process *process = NULL;
    int count = 1, wait_status = -1;

    if (kelp_process_find("ip", program, NULL) != KELP_OK) {
        (void)snprintf(program, sizeof(program), "/usr/sbin/ip");
    }
    (void)snprintf(text, sizeof(text), "%s", words);
    while (count < 15 && (argv[count] = strsep(&rest, " ")) != NULL) {
        count++;
    }
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    struct kelp_process_options options = {.argv = argv, .stdout_fd = fd, .stderr_fd = fd};
    kelp_status status = kelp_process_start(&options, &process, NULL);
    if (status == KELP_OK) {
        status = kelp_process_wait(process, DEADLINE_MS, &wait_status);
    }
    kelp_process_destroy(process);
    (void)close(fd);
    return status == KELP_OK && wait_status == 0;
}

static int new_namespace(void)
{
    if (unshare(CLONE_NEWNET) != 0) {
        kelp_suite_skip("cannot make a network namespace, which needs root: %s", strerror(errno));
    }
    if (!ip("link set lo up")) {
        kelp_suite_skip("ip of iproute2 is not here");
    }
    return open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

/* Before any test: this process stays on this side. */
static void prepare(void)
{
    char move[100];

    etcd_fixture_require();
    here = new_namespace();
    there = new_namespace();
    (void)snprintf(move, sizeof(move), "link set v0 netns /proc/%ld/fd/%d", (long)getpid(), here);
    if (here < 0 || there < 0 || !ip("link add v1 type veth peer name v0") || !ip(move)) {
        kelp_suite_skip("a pair of network interfaces is not to be had");
    }
    if (!ip("addr add " ETCD_HOST "/24 dev v1") || !ip("link set v1 up")) {
        kelp_suite_skip("an address is not to be had");
    }
    if (setns(here, CLONE_NEWNET) != 0) {
        kelp_suite_skip("the other namespace cannot be entered: %s", strerror(errno));
    }
}

/* ---- daemons --------------------------------------------------------------------------------- */

struct daemon {
    struct kelp_process *process;
    char log[32];
};

static void start(struct daemon *daemon, const char *program_name, const char *id,
                  const char *listen)
{
    char program[512], path[300], certs[300], run[300];
    bool shard = strcmp(program_name, "kelp-ps") == 0;
    const char *argv[] = {program, "--etcd",  etcd_url, "--job", JOB, "--id",
                          id,      "--certs", certs,    "--run", run, listen ? "--listen" : NULL,
                          listen,  NULL};

    kelp_test_program(program_name, program, sizeof(program));
    (void)snprintf(run, sizeof(run), "%s/run", folder.path);
    (void)snprintf(certs, sizeof(certs), "%s/certs/%s", folder.path,
                   shard ? "shard" : "coordinator");
    (void)snprintf(daemon->log, sizeof(daemon->log), "%s.log", id);
    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, daemon->log);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    struct kelp_process_options options = {.argv = argv, .stdout_fd = fd, .stderr_fd = fd};
    ck_assert_msg(kelp_process_start(&options, &daemon->process, &error) == KELP_OK, "%s",
                  error.text);
    (void)close(fd);
}

/* It ends by itself, as one that is to be started again, and its log says why. */
static void expect_end(struct daemon *daemon, const char *words)
{
    int wait_status = 0;
    kelp_status status = kelp_process_wait(daemon->process, KELP_TEST_HANG_MS, &wait_status);
    char *said = kelp_test_read(folder.path, daemon->log, NULL);

    ck_assert_msg(status == KELP_OK, "%s does not end: %s", daemon->log, said);
    ck_assert_msg(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 1, "%d: %s", wait_status,
                  said);
    ck_assert_msg(strstr(said, words) != NULL, "no '%s': %s", words, said);
    free(said);
    kelp_process_destroy(daemon->process);
    daemon->process = NULL;
}

static void stop(struct daemon *daemon)
{
    kelp_process_destroy(daemon->process);
}

/* The address in that key of the job; "": there is none. */
static void read_address(const char *name, char address[256])
{
    struct kelp_etcd_range range = {0};
    char key[128];
    cJSON *json = NULL;

    (void)snprintf(key, sizeof(key), "/kelp/" JOB "/%s", name);
    ck_assert_msg(kelp_etcd_get(client, key, DEADLINE_MS, &range, &error) == KELP_OK, "%s",
                  error.text);
    address[0] = '\0';
    if (range.count > 0) {
        ck_assert_int_eq(
            kelp_json_parse(range.pairs[0].value, range.pairs[0].value_bytes, &json, NULL),
            KELP_OK);
        ck_assert_int_eq(kelp_json_string(json, "address", address, 256, NULL), KELP_OK);
        cJSON_Delete(json);
    }
    kelp_etcd_range_fini(&range);
}

/* It is at a port of that host; "": at none. */
static bool is_at(const char *name, const char *host)
{
    char address[256];

    read_address(name, address);
    return host[0] == '\0' ? address[0] == '\0'
                           : strncmp(address, host, strlen(host)) == 0 &&
                                 address[strlen(host)] == ':' && address[strlen(host) + 1] != '0';
}

static void expect_at(const char *name, const char *host)
{
    KELP_TEST_AWAIT(is_at(name, host), "%s is not at '%s'", name, host);
}

/* ---- the job --------------------------------------------------------------------------------- */

static void issue(const char *out, const char *name, const char *host)
{
    kelp_test_issue(&(struct kelp_test_issue){folder.path, "authority", out, name, host, 5});
}

static bool answers(void)
{
    struct kelp_etcd_range range = {0};
    kelp_status status = kelp_etcd_get(client, "/kelp", 1000, &range, NULL);

    kelp_etcd_range_fini(&range);
    return status == KELP_OK;
}

static void setup(void)
{
    char path[300];

    ck_assert_int_eq(curl_global_init(CURL_GLOBAL_ALL), CURLE_OK);
    ck_assert(ip("addr flush dev v0")); /* of the test before */
    ck_assert(ip("addr add " HOST "/24 dev v0"));
    ck_assert(ip("link set v0 up"));
    kelp_test_folder_init(&folder);
    (void)snprintf(path, sizeof(path), "%s/run", folder.path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    kelp_test_authority(folder.path, "authority");
    issue("certs/shard", JOB "/shard", NULL);
    issue("certs/coordinator", JOB "/coordinator", NULL);
    issue("certs/operator", JOB "/operator", NULL);
    issue("certs/etcd", "etcd", ETCD_HOST);
    stand(there);
    etcd = etcd_certified_start(folder.path, "certs/etcd", ETCD_HOST, etcd_url);
    (void)snprintf(path, sizeof(path), "%s/certs/operator", folder.path);
    ck_assert_msg(kelp_etcd_open_certified(etcd_url, path, &client, &error) == KELP_OK, "%s",
                  error.text);
    stand(here);
    KELP_TEST_AWAIT(answers(), "etcd does not answer");
    ck_assert_int_eq(kelp_etcd_put(client, "/kelp/" JOB "/spec",
                                   "name: " JOB "\nmodel: {kind: dlinear}\n"
                                   "data: {kind: synthetic}\ncluster: {workers: 1, shards: 4}\n",
                                   0, DEADLINE_MS, &error),
                     KELP_OK);
}

static void teardown(void)
{
    kelp_etcd_close(client);
    kelp_process_destroy(etcd);
    kelp_test_folder_fini(&folder);
}

/* The leases of all that is registered under these names run out, and the host has another address.
 * One that lived on would not be registered again. */
static void change_address(const char *const *names)
{
    ck_assert(ip("link set v0 down"));
    for (size_t i = 0; names[i]; i++) {
        expect_at(names[i], "");
    }
    ck_assert(ip("addr del " HOST "/24 dev v0"));
    ck_assert(ip("addr add " NEW_HOST "/24 dev v0"));
    ck_assert(ip("link set v0 up"));
}

KELP_SUITE(.before = prepare)
KELP_CASE("addresses", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

/* Without --listen, and at every address, what is registered is what this host uses towards etcd.
 * Numbers in --listen are registered as they are. */
KELP_TEST(source_address)
{
    struct daemon daemons[4];

    start(&daemons[0], "kelp-ps", "shard-0", NULL);
    start(&daemons[1], "kelp-ps", "shard-1", "0.0.0.0:0");
    start(&daemons[2], "kelp-ps", "shard-2", HOST ":7002");
    start(&daemons[3], "kelp-coordinator", "coordinator-0", NULL);
    expect_at("ps/shard-0", HOST);
    expect_at("ps/shard-1", HOST);
    expect_at("ps/shard-2", HOST);
    expect_at("coordinator", HOST);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(daemons); i++) {
        stop(&daemons[i]);
    }
}

/* IPv6 alike: nothing has to answer there. */
KELP_TEST(source_address_6)
{
    struct kelp_serving serving;
    const struct kelp_serving_options options = {.etcd = "https://[fd77::9]:2379",
                                                 .certified = true};

    if (!ip("-6 addr add fd77::5/64 dev v0 nodad")) {
        (void)printf("skipped: this kernel has no IPv6\n");
        return;
    }
    ck_assert_int_eq(kelp_serving_init(&serving, &options, &error), KELP_OK);
    KELP_TEST_AWAIT(kelp_serving_find(&serving, &error) == KELP_OK, "%s", error.text);
    ck_assert_str_eq(serving.source, "[fd77::5]");
    ck_assert_str_eq(serving.listen, "[fd77::5]:0");
}

/* A way to etcd is waited for. */
KELP_TEST(no_way_yet)
{
    struct daemon shard;

    ck_assert(ip("link set v0 down"));
    start(&shard, "kelp-coordinator", "coordinator-0", NULL);
    char *said = NULL;
    do {
        free(said);
        kelp_test_look_later();
        said = kelp_test_read(folder.path, shard.log, NULL);
    } while (!strstr(
        said, "waiting for a route to etcd reason=\"no route to etcd at https://" ETCD_HOST));
    free(said);
    ck_assert(ip("link set v0 up"));
    expect_at("coordinator", HOST);
    stop(&shard);
}

/* The host has lost the address that it listens at: it ends, and its successor has the new one. */
KELP_TEST(listens_at_an_old_address)
{
    struct daemon shard, fixed, coordinator;

    start(&shard, "kelp-ps", "shard-0", NULL);
    start(&fixed, "kelp-ps", "shard-1", HOST ":7001");
    start(&coordinator, "kelp-coordinator", "coordinator-0", NULL);
    expect_at("ps/shard-0", HOST);
    expect_at("ps/shard-1", HOST);
    expect_at("coordinator", HOST);
    change_address((const char *[]){"ps/shard-0", "ps/shard-1", "coordinator", NULL});
    expect_end(&shard, ", which this host no longer has: it ends, to be restarted");
    expect_end(&fixed, "it listens at " HOST ":7001, which this host no longer has: it ends");
    expect_end(&coordinator, ", which this host no longer has: it ends, to be restarted");
    start(&shard, "kelp-ps", "shard-0", NULL);
    expect_at("ps/shard-0", NEW_HOST);
    stop(&shard);
}

/* One that listens everywhere: a coordinator registers the new address. A shard, which others know
 * by its incarnation, ends, so that the next one has it. */
KELP_TEST(listens_everywhere)
{
    struct daemon shard, coordinator;

    start(&shard, "kelp-ps", "shard-0", "0.0.0.0:0");
    start(&coordinator, "kelp-coordinator", "coordinator-0", "0.0.0.0:0");
    expect_at("ps/shard-0", HOST);
    expect_at("coordinator", HOST);
    change_address((const char *[]){"ps/shard-0", "coordinator", NULL});
    expect_at("coordinator", NEW_HOST);
    expect_end(&shard, "it is registered as " HOST ", but this host now reaches etcd from " NEW_HOST
                       ": it ends, to be restarted");
    stop(&coordinator);
}
