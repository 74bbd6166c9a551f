/*
 * `kelp doctor JOB --etcd URL --certs FOLDER` of a cluster with certificates: whose are wrong, and
 * how, its own among them.
 */
#include <curl/curl.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/commands/run_doctor.h"
#include "tests/lib/etcd/etcd_certified.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls/test_certificates.h"

#define DEADLINE_MS  5000
#define SHORT_LIFE_S 5 /* of a certificate that ends while its process serves */

static const char job_text[] = "name: hosts\nseed: 3\n"
                               "model: {kind: dlinear}\n"
                               "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                               "       seq_len: 48, pred_len: 24}\n"
                               "train: {epochs: 100000, batch_size: 32}\n"
                               "cluster: {workers: 1, shards: 1, lanes: 4}\n"
                               "checkpoint: {digest_steps: 5}\n";

static struct kelp_test_folder folder;
static struct kelp_process *etcd;
static char etcd_url[64];
static struct kelp_etcd *client;
static struct kelp_test_command node, doctor;
static struct kelp_error error;

static const char *in_folder(const char *name, char path[300])
{
    (void)snprintf(path, 300, "%s/%s", folder.path, name);
    return path;
}

static void issue(const char *authority, const char *out, const char *name, int days, int seconds)
{
    kelp_test_issue_for(&(struct kelp_test_issue){folder.path, authority, out, name,
                                                  strcmp(name, "etcd") == 0 ? "127.0.0.1" : NULL,
                                                  days},
                        seconds);
}

/* The authority of `from` is believed in `to` as well. */
static void believe(const char *from, const char *to)
{
    char from_name[200], to_name[200], both[8192];

    (void)snprintf(from_name, sizeof(from_name), "%s/ca.pem", from);
    (void)snprintf(to_name, sizeof(to_name), "%s/ca.pem", to);
    char *added = kelp_test_read(folder.path, from_name, NULL);
    char *before = kelp_test_read(folder.path, to_name, NULL);
    (void)snprintf(both, sizeof(both), "%s%s", before, added);
    (void)kelp_test_write(folder.path, to_name, both);
    free(added);
    free(before);
}

static bool has_key(const char *key)
{
    struct kelp_etcd_range range = {0};
    kelp_status status = kelp_etcd_get(client, key, DEADLINE_MS, &range, NULL);
    bool has = status == KELP_OK && range.count > 0;

    kelp_etcd_range_fini(&range);
    return has;
}

/* etcd believes both authorities, the others one of them. */
static void setup(void)
{
    char path[300];

    etcd_fixture_require();
    ck_assert_int_eq(curl_global_init(CURL_GLOBAL_ALL), CURLE_OK);
    kelp_test_folder_init(&folder);
    ck_assert_int_eq(setenv("XDG_CACHE_HOME", folder.path, 1), 0);
    memset(&node, 0, sizeof(node));
    memset(&doctor, 0, sizeof(doctor));
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
    kelp_test_authority(folder.path, "authority");
    kelp_test_authority(folder.path, "foreign");
    ck_assert_int_eq(mkdir(in_folder("certs", path), 0700), 0);
    issue("authority", "certs/etcd", "etcd", 5, 0);
    issue("authority", "certs/coordinator", "hosts/coordinator", 5, 0);
    issue("authority", "certs/shard", "hosts/shard", 5, 0);
    issue("authority", "certs/worker", "hosts/worker", 5, 0);
    issue("authority", "certs/operator", "hosts/operator", 5, 0);
    believe("foreign", "certs/etcd");
    etcd = etcd_certified_start(folder.path, "certs/etcd", "127.0.0.1", etcd_url);
    ck_assert_msg(kelp_etcd_open_certified(etcd_url, in_folder("certs/operator", path), &client,
                                           &error) == KELP_OK,
                  "%s", error.text);
    KELP_TEST_AWAIT(kelp_etcd_put(client, "/up", "x", 0, DEADLINE_MS, NULL) == KELP_OK,
                    "etcd does not answer");
    kelp_test_command_says(folder.path,
                           (const char *[]){"submit", "job.yaml", "--etcd", etcd_url, "--certs",
                                            "certs/operator", "--run", "run", NULL},
                           0, "\nsha256 ");
}

static void teardown(void)
{
    kelp_test_command_fini(&doctor);
    kelp_test_command_fini(&node);
    kelp_etcd_close(client);
    kelp_process_destroy(etcd);
    kelp_test_folder_fini(&folder);
}

static void examine(const char *certs, int exit_code)
{
    kelp_test_doctor_run(&doctor, folder.path, "hosts", etcd_url,
                         (const char *[]){"--certs", certs, "--timeout", "12s", NULL}, exit_code);
}

#define ck_found(check, state, words) KELP_TEST_DOCTOR_FOUND(&doctor, check, state, words)

/* A shard that serves at loopback with the certificates of that folder. Its end is the caller's. */
static struct kelp_process *start_shard(const char *id, const char *certs)
{
    char program[512], certs_path[300], run[300], log[300], key[128], name[64];
    struct kelp_process *process = NULL;
    const char *argv[] = {program, "--etcd",   etcd_url,      "--job",    "hosts",
                          "--id",  id,         "--certs",     certs_path, "--run",
                          run,     "--listen", "127.0.0.1:0", NULL};

    kelp_test_program("kelp-ps", program, sizeof(program));
    (void)in_folder(certs, certs_path);
    (void)in_folder("run", run);
    (void)snprintf(name, sizeof(name), "%s.log", id);
    int fd = open(in_folder(name, log), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    struct kelp_process_options options = {.argv = argv, .stdout_fd = fd, .stderr_fd = fd};
    ck_assert_msg(kelp_process_start(&options, &process, &error) == KELP_OK, "%s", error.text);
    (void)close(fd);
    (void)snprintf(key, sizeof(key), "/kelp/hosts/ps/%s", id);
    KELP_TEST_AWAIT(has_key(key), "shard %s does not register", id);
    return process;
}

/* What stands at a key of the job also stands at another one, without a lease. */
static void copy_key(const char *from, const char *to)
{
    char from_key[128], to_key[128];
    struct kelp_etcd_range range = {0};

    (void)snprintf(from_key, sizeof(from_key), "/kelp/hosts/%s", from);
    (void)snprintf(to_key, sizeof(to_key), "/kelp/hosts/%s", to);
    ck_assert_int_eq(kelp_etcd_get(client, from_key, DEADLINE_MS, &range, NULL), KELP_OK);
    ck_assert_uint_eq(range.count, 1);
    ck_assert_int_eq(kelp_etcd_put(client, to_key, range.pairs[0].value, 0, DEADLINE_MS, NULL),
                     KELP_OK);
    kelp_etcd_range_fini(&range);
}

static bool has_begun(void)
{
    char path[300];
    struct stat about;

    return stat(in_folder("run/digests.jsonl", path), &about) == 0 && about.st_size > 0;
}

KELP_CASE("certified", .timeout_s = KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

/* All is well; then the leader is registered as a shard too. */
KELP_TEST(wrong_role)
{
    const char *const args[] = {
        "node",  "--etcd",   etcd_url, "--job",         "hosts",     "--host", "a", "--certs",
        "certs", "--shards", "1",      "--coordinator", "--workers", "1",      NULL};

    kelp_test_command_start(&node, folder.path, args);
    KELP_TEST_AWAIT_FROM(&node, has_begun(), "training does not begin");
    examine("certs/operator", 0);
    ck_assert_msg(!strstr(doctor.out, " PROBLEM "), "%s", doctor.out);
    ck_found("certificates", "OK", "that of --certs lasts ");
    ck_found("certificates", "OK", "that of the authority lasts ");
    ck_found("certificates", "OK", "that of shard lasts ");
    ck_found("etcd", "OK", "encrypted, and both sides show a certificate");
    ck_found("processes", "OK", "coordinator a.coordinator-0 at 127.0.0.1:");
    ck_found("processes", "OK", "shard a.shard-0 (zone a) at 127.0.0.1:");
    copy_key("coordinator", "ps/swapped");
    examine("certs/operator", 1);
    ck_found("processes", "PROBLEM",
             "its certificate names spiffe://kelp/hosts/coordinator, not a shard of job hosts");
}

/* A shard that stands still before its handshake, and then is killed. */
KELP_TEST(stopped)
{
    struct kelp_process *shard = start_shard("still", "certs/shard");

    copy_key("ps/still", "ps/standing"); /* its own entry goes with its lease */
    kelp_process_signal(shard, SIGSTOP);
    examine("certs/operator", 1);
    ck_found("processes", "PROBLEM", "connected, but it does not answer: it is stopped");
    kelp_process_destroy(shard); /* SIGKILL */
    examine("certs/operator", 1);
    ck_found("processes", "PROBLEM", "shard standing at 127.0.0.1:");
    ck_found("processes", "PROBLEM", ": connection refused: nothing listens there");
}

/* A shard that etcd lets in has a certificate of an authority that we do not believe. */
KELP_TEST(wrong_authority)
{
    char path[300];

    ck_assert_int_eq(mkdir(in_folder("odd", path), 0700), 0);
    issue("foreign", "odd/shard", "hosts/shard", 5, 0);
    believe("authority", "odd/shard");
    struct kelp_process *shard = start_shard("odd", "odd/shard");
    examine("certs/operator", 1);
    ck_found("processes", "PROBLEM",
             "its certificate is of another authority than ca.pem of --certs");
    kelp_process_destroy(shard);
}

/* Its certificate has ended while it serves. */
KELP_TEST(ended)
{
    const time_t end_s = time(NULL) + SHORT_LIFE_S;

    issue("authority", "certs/shard", "hosts/shard", 0, SHORT_LIFE_S);
    struct kelp_process *shard = start_shard("late", "certs/shard");
    copy_key("ps/late", "ps/lasting"); /* its own entry goes with the certificate */
    KELP_TEST_AWAIT(time(NULL) > end_s + 1, "the clock stands still");
    examine("certs/operator", 1);
    ck_found("processes", "PROBLEM", "its certificate has ended by this host's clock: ");
    ck_found("certificates", "PROBLEM", "that of shard has ended: ");
    kelp_process_destroy(shard);
}

/* What --certs has: soon over, over, of another authority; and folders beside it of another job and
 * authority. */
KELP_TEST(own)
{
    issue("authority", "certs/operator", "hosts/operator", 0, 43200);
    issue("authority", "certs/worker", "other/worker", 5, 0);
    issue("foreign", "certs/shard", "hosts/shard", 5, 0);
    examine("certs/operator", 1);
    ck_found("certificates", "warning", "that of --certs ends soon: ");
    ck_found("certificates", "PROBLEM",
             "is for spiffe://kelp/other/worker, not for a worker of job hosts");
    ck_found("certificates", "warning", "/shard/ca.pem differs from that of --certs");
    issue("authority", "certs/operator", "hosts/operator", -1, 0);
    examine("certs/operator", 3);
    ck_found("certificates", "PROBLEM", "that of --certs has ended: ");
    ck_found("etcd", "PROBLEM", "it refuses our certificate: it is over, or of another authority");
    issue("foreign", "certs/operator", "hosts/operator", 5, 0);
    examine("certs/operator", 3);
    ck_assert_ptr_nonnull(strstr(doctor.err, "kelp: job 'hosts' cannot be reached: etcd at https"));
    ck_found("etcd", "PROBLEM", "SSL certificate problem: ");
    issue("authority", "certs/operator", "other/operator", 5, 0);
    examine("certs/operator", 2);
    ck_assert_ptr_nonnull(strstr(doctor.err, "not an operator or reader of job hosts"));
}
