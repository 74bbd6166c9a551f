/* The folder with a process's certificate: what is refused, and what a replaced file changes. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/log/log.h"
#include "common/program/expiry_watch.h"
#include "common/tls/authority.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/test_files.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls/test_certificates.h"

static struct kelp_test_folder folder;

static void issue(const char *out, const char *name, int days)
{
    kelp_test_issue(&(struct kelp_test_issue){folder.path, "authority", out, name, NULL, days});
}

static void setup(void)
{
    kelp_test_folder_init(&folder);
    kelp_test_authority(folder.path, "authority");
    issue("own", "j/worker/worker-0", 5);
}

static void teardown(void)
{
    kelp_test_folder_fini(&folder);
}

static void path_of(const char *name, char path[300])
{
    (void)snprintf(path, 300, "%s/%s", folder.path, name);
}

/* The folder `own` is refused, with these words. */
static void expect_refused(const char *text)
{
    struct kelp_credentials *credentials = NULL;
    struct kelp_error error;
    char path[300];

    path_of("own", path);
    ck_assert_int_ne(kelp_credentials_open(path, &credentials, &error), KELP_OK);
    ck_assert_msg(strstr(error.text, text) != NULL, "%s", error.text);
}

static mode_t mode_of(const char *name)
{
    struct stat info;
    char path[300];

    path_of(name, path);
    ck_assert_int_eq(stat(path, &info), 0);
    return info.st_mode & 07777;
}

KELP_CASE("credentials", .setup = setup, .teardown = teardown)

/* Keys and their folders are for their owner alone, whatever the umask. */
KELP_TEST(modes)
{
    (void)umask(0);
    issue("open", "j/worker", 1);
    ck_assert_uint_eq(mode_of("authority"), 0700);
    ck_assert_uint_eq(mode_of("authority/ca-key.pem"), 0600);
    ck_assert_uint_eq(mode_of("open"), 0700);
    ck_assert_uint_eq(mode_of("open/key.pem"), 0600);
}

/* Who has read a key leaves no core file, in a folder or by a program. */
KELP_TEST(no_core_files)
{
    struct rlimit limit;

    ck_assert_int_eq(getrlimit(RLIMIT_CORE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_CORE, &limit), 0);
    struct kelp_credentials *credentials = kelp_test_credentials(folder.path, "own");
    ck_assert_int_eq(getrlimit(RLIMIT_CORE, &limit), 0);
    ck_assert_uint_eq(limit.rlim_cur, limit.rlim_max == 0 ? 0 : 1);
    kelp_credentials_close(credentials);
}

/* What a certificate says is what was asked for. */
KELP_TEST(says)
{
    struct kelp_credentials *credentials = kelp_test_credentials(folder.path, "own");
    const struct kelp_spiffe *name = kelp_credentials_name(credentials);
    struct kelp_credential_texts texts;
    struct kelp_certificate certificate;

    ck_assert_int_eq(name->role, KELP_ROLE_WORKER);
    ck_assert_str_eq(name->job, "j");
    ck_assert_str_eq(name->id, "worker-0");
    ck_assert_int_eq(kelp_credentials_take(credentials, &texts, NULL), KELP_OK);
    ck_assert_int_eq(kelp_certificate_read(texts.certificate, &certificate, NULL), KELP_OK);
    ck_assert_str_eq(certificate.subject, "O = kelp"); /* no common name: etcd refuses those */
    ck_assert(!certificate.is_authority);
    ck_assert_int_eq(kelp_certificate_read(texts.ca, &certificate, NULL), KELP_OK);
    ck_assert(certificate.is_authority && !certificate.has_name);
    kelp_credential_texts_fini(&texts);
    kelp_credentials_close(credentials);
}

KELP_TEST(others_may_read_the_key)
{
    char path[300];

    path_of("own/key.pem", path);
    ck_assert_int_eq(chmod(path, 0644), 0);
    expect_refused("others may read the key");
}

KELP_TEST(another_key)
{
    issue("other", "j/worker", 1);
    kelp_test_move(folder.path, "other/key.pem", "own/key.pem");
    expect_refused("key.pem is not the key of cert.pem");
}

KELP_TEST(no_certificate)
{
    (void)kelp_test_write(folder.path, "own/cert.pem", "-----BEGIN CERTIFICATE-----\nnone\n");
    expect_refused("own/cert.pem: holds no PEM certificate");
}

KELP_TEST(no_name)
{
    kelp_test_move(folder.path, "authority/ca.pem", "own/cert.pem");
    expect_refused("it has no name spiffe://kelp/JOB/ROLE[/ID]");
}

KELP_TEST(missing)
{
    kelp_test_remove(folder.path, "own/ca.pem");
    expect_refused("own/ca.pem");
}

/* New files are seen and taken; a file alone, or another name, leaves what was there, said once. */
KELP_TEST(replaced)
{
    struct kelp_credentials *credentials = kelp_test_credentials(folder.path, "own");
    struct kelp_error error;

    ck_assert_uint_eq(kelp_credentials_refresh(credentials, &error), 1);
    issue("own", "j/worker/worker-0", 6);
    ck_assert_uint_eq(kelp_credentials_refresh(credentials, &error), 2);
    ck_assert_int_eq(error.status, KELP_OK);

    issue("other", "j/worker/worker-0", 6);
    kelp_test_move(folder.path, "other/cert.pem", "own/cert.pem");
    ck_assert_uint_eq(kelp_credentials_refresh(credentials, &error), 2);
    ck_assert_int_eq(error.status, KELP_ERR_INVALID);
    ck_assert_uint_eq(kelp_credentials_refresh(credentials, &error), 2);
    ck_assert_int_eq(error.status, KELP_OK);
    kelp_test_move(folder.path, "other/key.pem", "own/key.pem");
    ck_assert_uint_eq(kelp_credentials_refresh(credentials, &error), 3);
    ck_assert_int_eq(error.status, KELP_OK);

    issue("own", "j/operator", 6);
    ck_assert_uint_eq(kelp_credentials_refresh(credentials, &error), 3);
    ck_assert_ptr_nonnull(strstr(error.text, "has another name now: spiffe://kelp/j/operator"));
    kelp_test_remove(folder.path, "own");
    ck_assert_uint_eq(kelp_credentials_refresh(credentials, &error), 3);
    ck_assert_int_eq(error.status, KELP_ERR_NOT_FOUND);
    kelp_credentials_close(credentials);
}

/* A tenth of a life, thirty days at most. */
KELP_TEST(ends_soon)
{
    const int64_t day_s = 86400;
    struct kelp_certificate certificate = {.from_s = 0, .until_s = 90 * day_s};

    ck_assert(!kelp_certificate_ends_soon(&certificate, 0));
    ck_assert(!kelp_certificate_ends_soon(&certificate, 81 * day_s));
    ck_assert(kelp_certificate_ends_soon(&certificate, 81 * day_s + 1));
    ck_assert(kelp_certificate_ends_soon(&certificate, 91 * day_s));
    certificate.until_s = 3650 * day_s;
    ck_assert(!kelp_certificate_ends_soon(&certificate, 3620 * day_s));
    ck_assert(kelp_certificate_ends_soon(&certificate, 3620 * day_s + 1));
}

/* What the log has so far. */
static bool log_says(const char *words)
{
    char *text = kelp_test_read(folder.path, "log", NULL);
    bool says = strstr(text, words) != NULL;

    free(text);
    return says;
}

/* So does an authority, which takes all that it issued with it. */
KELP_TEST(end_of_the_authority)
{
    const int64_t now_s = (int64_t)time(NULL);
    struct kelp_expiry_watch *watch = NULL;
    struct kelp_error error;
    char path[300];

    path_of("short", path);
    ck_assert_int_eq(kelp_authority_init(path, now_s - 86400, now_s + 3600, &error), KELP_OK);
    issue("lasting", "j/shard", 9);
    kelp_test_move(folder.path, "short/ca.pem", "lasting/ca.pem");
    path_of("log", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    kelp_log_init("ps", "shard-0", KELP_LOG_INFO, fd);
    struct kelp_credentials *lasting = kelp_test_credentials(folder.path, "lasting");
    ck_assert_int_eq(kelp_expiry_watch_start(lasting, &watch, &error), KELP_OK);
    KELP_TEST_AWAIT(log_says("the authority ends soon: write a new one over it until="),
                    "the log does not say it");
    kelp_expiry_watch_stop(watch);
    ck_assert(!log_says("the certificate"));
    kelp_credentials_close(lasting);
    ck_assert_int_eq(close(fd), 0);
}

/* A daemon says at its start that its certificate has ended, and of one that has not nothing. */
KELP_TEST(end_is_logged)
{
    struct kelp_expiry_watch *watches[2] = {NULL, NULL};
    struct kelp_credentials *good = kelp_test_credentials(folder.path, "own");
    struct kelp_error error;
    char path[300];

    path_of("log", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    kelp_log_init("worker", "worker-0", KELP_LOG_INFO, fd);
    issue("over", "j/worker/worker-0", -1);
    struct kelp_credentials *ended = kelp_test_credentials(folder.path, "over");
    ck_assert_int_eq(kelp_expiry_watch_start(good, &watches[0], &error), KELP_OK);
    kelp_expiry_watch_stop(watches[0]);
    ck_assert(!log_says("the certificate"));
    ck_assert_int_eq(kelp_expiry_watch_start(ended, &watches[1], &error), KELP_OK);
    KELP_TEST_AWAIT(log_says("the certificate has ended: no new connection is accepted until="),
                    "the log does not say it");
    kelp_expiry_watch_stop(watches[1]);
    ck_assert(!log_says("the authority"));
    kelp_credentials_close(good);
    kelp_credentials_close(ended);
    ck_assert_int_eq(close(fd), 0);
}
