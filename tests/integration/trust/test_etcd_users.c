/*
 * An etcd with users: each role of a job writes its own keys there and nothing else, whoever has no
 * login does nothing, and a job trains with it.
 */
#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/etcd/etcd.h"
#include "common/program/etcd_server.h"
#include "common/program/socket_folder.h"
#include "common/tls/login.h"
#include "tests/lib/commands/run_doctor.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls/test_certificates.h"

#define JOB         "doors"
#define DEADLINE_MS 60000 /* only reached by a failure */
#define PATH_BYTES  400

static const char job_text[] = "name: " JOB "\nseed: 3\n"
                               "model: {kind: dlinear}\n"
                               "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                               "       seq_len: 48, pred_len: 24}\n"
                               "train: {epochs: 2, batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "checkpoint: {steps: 50}\n";

static struct kelp_run run;
static struct kelp_etcd_server *etcd;
static char sockets[KELP_SOCKET_FOLDER_MAX + 1];
static int sockets_held;
static struct kelp_error error;

static const char *in_folder(const char *name, char path[PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "%s/%s", run.folder, name);
    return path;
}

static void issue(const char *out, const char *name)
{
    kelp_test_issue(&(struct kelp_test_issue){run.folder, "authority", out, name,
                                              strcmp(name, "etcd") == 0 ? "127.0.0.1" : NULL, 5});
}

/* kelp certs users, for all certificates of two jobs. */
static void make_users(void)
{
    const char *args[] = {"certs",
                          "users",
                          "certs/coordinator",
                          "certs/shard",
                          "certs/worker",
                          "certs/operator",
                          "certs/reader",
                          "certs/shard-0",
                          "other/operator",
                          "--etcd",
                          kelp_etcd_server_url(etcd),
                          NULL};

    kelp_test_command_says(run.folder, args, 0,
                           "user kelp/" JOB "/shard/shard-0 writes its own key");
}

static void setup(void)
{
    char data[PATH_BYTES], log[PATH_BYTES], certs[PATH_BYTES];

    etcd_fixture_require();
    ck_assert_int_eq(curl_global_init(CURL_GLOBAL_ALL), CURLE_OK);
    kelp_run_prepare(&run);
    kelp_test_authority(run.folder, "authority");
    issue("certs/coordinator", JOB "/coordinator");
    issue("certs/shard", JOB "/shard");
    issue("certs/worker", JOB "/worker");
    issue("certs/operator", JOB "/operator");
    issue("certs/reader", JOB "/reader");
    issue("certs/shard-0", JOB "/shard/shard-0");
    issue("certs/stranger", JOB "/operator");
    issue("other/operator", "other/operator");
    issue("certs/etcd", "etcd");
    ck_assert_int_eq(kelp_socket_folder_make(sockets, &sockets_held, &error), KELP_OK);
    struct kelp_etcd_server_options options = {.data_folder = in_folder("etcd-data", data),
                                               .log_path = in_folder("etcd.log", log),
                                               .socket_folder = sockets,
                                               .certs = in_folder("certs/etcd", certs)};
    kelp_status status = kelp_etcd_server_start(&options, &etcd, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    make_users();
}

static void teardown(void)
{
    kelp_etcd_server_stop(etcd, 2000);
    ck_assert_int_eq(close(sockets_held), 0);
    kelp_socket_folder_remove(sockets);
    kelp_run_fini(&run);
}

static struct kelp_etcd *open_as(const char *certs)
{
    char path[PATH_BYTES];
    struct kelp_etcd *client = NULL;

    kelp_status status = kelp_etcd_open_certified(kelp_etcd_server_url(etcd),
                                                  in_folder(certs, path), &client, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return client;
}

static kelp_status put(struct kelp_etcd *client, const char *name)
{
    char key[128];

    (void)snprintf(key, sizeof(key), "/kelp/" JOB "/%s", name);
    return kelp_etcd_put(client, key, "{}", 0, DEADLINE_MS, &error);
}

static kelp_status get(struct kelp_etcd *client, const char *name)
{
    struct kelp_etcd_range range = {0};
    char key[128];

    (void)snprintf(key, sizeof(key), "/kelp/" JOB "/%s", name);
    kelp_status status = kelp_etcd_get(client, key, DEADLINE_MS, &range, &error);
    kelp_etcd_range_fini(&range);
    return status;
}

/* The first `may` of all keys may be written, the others not; all may be read. */
static void expect_rights(const char *certs, const char *const *may)
{
    static const char *const all[] = {"spec",       "coordinator", "plan",
                                      "map",        "state",       "checkpoint/7",
                                      "ps/shard-0", "ps/shard-1",  "checkpoint_fence"};
    struct kelp_etcd *client = open_as(certs);

    for (size_t i = 0; i < KELP_ARRAY_COUNT(all); i++) {
        bool allowed = false;
        for (size_t j = 0; may[j]; j++) {
            allowed = allowed || strcmp(may[j], all[i]) == 0;
        }
        kelp_status status = put(client, all[i]);
        ck_assert_msg(status == (allowed ? KELP_OK : KELP_ERR_DENIED), "%s writes %s: %s", certs,
                      all[i], kelp_status_name(status));
        ck_assert_int_eq(get(client, all[i]), KELP_OK);
    }
    kelp_etcd_close(client);
}

KELP_CASE("etcd users", .timeout_s = KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

/* What a stolen certificate with its login is good for in etcd. */
KELP_TEST(each_role_writes_its_own)
{
    struct kelp_etcd *client = NULL;

    expect_rights("certs/worker", (const char *[]){NULL});
    expect_rights("certs/reader", (const char *[]){NULL});
    expect_rights("certs/shard-0", (const char *[]){"ps/shard-0", NULL});
    expect_rights("certs/shard", (const char *[]){"ps/shard-0", "ps/shard-1", NULL});
    expect_rights("certs/coordinator", (const char *[]){"coordinator", "plan", "map", "state",
                                                        "checkpoint/7", "checkpoint_fence", NULL});
    expect_rights("certs/operator",
                  (const char *[]){"spec", "coordinator", "plan", "map", "state", "checkpoint/7",
                                   "ps/shard-0", "ps/shard-1", "checkpoint_fence", NULL});

    client = open_as("certs/worker");
    ck_assert_int_eq(kelp_etcd_delete_prefix(client, "/kelp/" JOB "/", DEADLINE_MS, &error),
                     KELP_ERR_DENIED);
    kelp_etcd_close(client);
    client = open_as("other/operator");
    ck_assert_int_eq(get(client, "spec"), KELP_ERR_DENIED);
    ck_assert_int_eq(put(client, "spec"), KELP_ERR_DENIED);
    kelp_etcd_close(client);
}

/* A certificate alone does nothing, nor does a wrong password; the reason names the file. One that
 * is put right counts at once. */
KELP_TEST(no_login)
{
    char path[PATH_BYTES], from[PATH_BYTES];
    char *text = NULL;
    size_t count = 0;
    struct kelp_login wrong;
    struct kelp_etcd *client = open_as("certs/stranger");

    ck_assert_int_eq(get(client, "spec"), KELP_ERR_DENIED);
    ck_assert_ptr_nonnull(
        strstr(error.text, "/certs/stranger/etcd-login'; kelp certs users makes it"));
    ck_assert_int_eq(put(client, "spec"), KELP_ERR_DENIED);
    ck_assert_int_eq(
        kelp_login_make(in_folder("certs/stranger", path), "kelp/" JOB "/operator", &wrong, &error),
        KELP_OK);
    ck_assert_int_eq(get(client, "spec"), KELP_ERR_DENIED);
    ck_assert_ptr_nonnull(strstr(error.text, "/certs/stranger/etcd-login: "));

    ck_assert_int_eq(
        kelp_files_read(in_folder("certs/operator/etcd-login", from), 4096, &text, &count, &error),
        KELP_OK);
    (void)kelp_test_write(run.folder, "certs/stranger/etcd-login", text);
    free(text);
    ck_assert_int_eq(put(client, "spec"), KELP_OK);
    ck_assert_int_eq(chmod(in_folder("certs/stranger/etcd-login", path), 0644), 0);
    make_users(); /* passwords that are set again end all tokens */
    ck_assert_int_eq(get(client, "spec"), KELP_ERR_DENIED);
    ck_assert_ptr_nonnull(strstr(error.text, "others may read the password"));
    kelp_etcd_close(client);
}

static void note_lost(void *user)
{
    (void)user;
}

struct seen {
    pthread_mutex_t lock;
    unsigned changes;
};

static void note_change(const struct kelp_etcd_pair *pair, void *user)
{
    struct seen *seen = user;

    (void)pair;
    (void)pthread_mutex_lock(&seen->lock);
    seen->changes++;
    (void)pthread_mutex_unlock(&seen->lock);
}

static void note_removed(const char *key, void *user)
{
    (void)key;
    (void)user;
}

static unsigned changes(struct seen *seen)
{
    (void)pthread_mutex_lock(&seen->lock);
    unsigned count = seen->changes;
    (void)pthread_mutex_unlock(&seen->lock);
    return count;
}

/* Tokens end: clients log in again by themselves, with watches and leases. */
KELP_TEST(tokens_are_renewed)
{
    const struct kelp_etcd_watch_events events = {.changed = note_change, .removed = note_removed};
    struct seen seen = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const struct kelp_etcd_lease_options lease_options = {
        .ttl_s = 60, .deadline_ms = DEADLINE_MS, .lost = note_lost};
    struct kelp_etcd *client = open_as("certs/shard-0");
    struct kelp_etcd *reader = open_as("certs/reader");
    struct kelp_etcd_watch *watch = NULL;
    struct kelp_etcd_lease *lease = NULL;

    ck_assert_int_eq(
        kelp_etcd_watch_open(reader, "/kelp/" JOB "/ps/", &events, &seen, &watch, &error), KELP_OK);
    ck_assert_int_eq(put(client, "ps/shard-0"), KELP_OK);
    KELP_TEST_AWAIT(changes(&seen) == 1, "the watch does not see the key");
    make_users();
    ck_assert_int_eq(kelp_etcd_lease_open(client, &lease_options, &lease, &error), KELP_OK);
    ck_assert_int_eq(kelp_etcd_put(client, "/kelp/" JOB "/ps/shard-0", "2",
                                   kelp_etcd_lease_id(lease), DEADLINE_MS, &error),
                     KELP_OK);
    KELP_TEST_AWAIT(changes(&seen) == 2, "the watch does not see the change");
    ck_assert_int_eq(get(reader, "spec"), KELP_OK);
    kelp_etcd_lease_close(lease, true);
    kelp_etcd_watch_close(watch);
    kelp_etcd_close(client);
    kelp_etcd_close(reader);
}

/* kelp doctor as a reader: it is let in, and says that there are users; without a login it says why
 * it is not. */
static bool doctor_says(const char *certs, const char *state, const char *words)
{
    struct kelp_test_command doctor;

    memset(&doctor, 0, sizeof(doctor));
    kelp_test_doctor_run(&doctor, run.folder, JOB, kelp_etcd_server_url(etcd),
                         (const char *[]){"--certs", certs, NULL}, KELP_TEST_DOCTOR_ANY);
    bool says =
        kelp_test_doctor_found(&doctor, strcmp(state, "OK") == 0 ? "etcd" : "job", state, words);
    kelp_test_command_fini(&doctor);
    return says;
}

/* A whole job with users that may do no more than that, whose launcher is an operator. */
KELP_TEST(trains)
{
    char certs[PATH_BYTES];
    const char *args[] = {"--etcd", kelp_etcd_server_url(etcd), "--certs",
                          in_folder("certs", certs), NULL};
    static const char *const status_args[] = {"status", "run", NULL};

    (void)kelp_test_write(run.folder, "job.yaml", job_text);
    kelp_run_start(&run, "job.yaml", args);
    KELP_TEST_AWAIT(doctor_says("certs/reader", "OK", "it has users, and accepted this one"),
                    "kelp doctor does not see the users");
    ck_assert(doctor_says("certs/stranger", "PROBLEM", "its keys cannot be read: etcd at "));
    kelp_run_finish(&run, 0);
    kelp_test_command_says(run.folder, status_args, 0, "done after");
}
