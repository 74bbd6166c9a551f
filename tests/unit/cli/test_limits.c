/* The limits of a process that a run meets sooner or later. */
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/preflight/limits.h"
#include "tests/lib/suite.h"

static struct kelp_job job;
static struct kelp_error error;
static struct rlimit processes_before, size_before;
static uid_t user_before;

static void setup(void)
{
    job = (struct kelp_job){.cluster = {.workers = {.min = 2, .max = 2}, .shards = 1}};
    user_before = geteuid();
    ck_assert_int_eq(getrlimit(RLIMIT_NPROC, &processes_before), 0);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &size_before), 0);
}

/* With sanitizers all tests run in one process, which LeakSanitizer attaches to at its end: what
 * changes its user forbids that. */
static void teardown(void)
{
    ck_assert_int_eq(seteuid(user_before), 0);
    ck_assert_int_eq(prctl(PR_SET_DUMPABLE, 1), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_NPROC, &processes_before), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &size_before), 0);
}

static void set_limit(int resource, rlim_t now)
{
    struct rlimit limit;

    ck_assert_int_eq(getrlimit((__rlimit_resource_t)resource, &limit), 0);
    limit.rlim_cur = now;
    ck_assert_int_eq(setrlimit((__rlimit_resource_t)resource, &limit), 0);
}

static void ck_refused(const char *text, bool own_etcd)
{
    ck_assert_int_eq(kelp_limits_allow(&job, own_etcd, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, text));
}

KELP_CASE("limits", .setup = setup, .teardown = teardown)

/* A user's threads count, but root's are not bound. */
KELP_TEST(processes)
{
    set_limit(RLIMIT_NPROC, 40);
    if (geteuid() == 0) {
        ck_assert_int_eq(kelp_limits_allow(&job, true, &error), KELP_OK);
        ck_assert_int_eq(seteuid(65534), 0);
    }
    ck_refused("the limit on this user's processes and threads is 40, and this run alone takes 72",
               true);
    ck_refused("this run alone takes 60 or more", false);
    job.cluster.workers.max = 1;
    job.cluster.shards = 0;
    ck_assert_int_eq(kelp_limits_allow(&job, false, &error), KELP_OK);
}

/* What is etcd's does not count where it is another's. */
KELP_TEST(another_etcd)
{
    set_limit(RLIMIT_FSIZE, 1 << 20);
    ck_refused("the limit on the size of a file is 1024 KiB, and etcd needs 65536", true);
    ck_assert_int_eq(kelp_limits_allow(&job, false, &error), KELP_OK);
}
