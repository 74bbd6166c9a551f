/* What each daemon tells while a job trains pleases promtool, which comes with Prometheus. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/commands/watched.h"
#include "tests/lib/suite.h"

static char promtool[KELP_PROCESS_PATH_MAX];
static struct watched cluster;

static void before(void)
{
    etcd_fixture_require();
    if (kelp_process_find("promtool", promtool, NULL) != KELP_OK) {
        kelp_suite_skip("promtool is not installed (Debian's package prometheus has it)");
    }
}
KELP_SUITE(.before = before)

static void setup(void)
{
    watched_start(&cluster);
}

static void teardown(void)
{
    watched_stop(&cluster);
}

/* `promtool check metrics` reads standard input. Its status, with what it says in the log. */
static int check(const char *path)
{
    static const char script[] = "\"$0\" check metrics <\"$1\" 2>&1";
    const char *argv[] = {"/bin/sh", "-c", script, promtool, path, NULL};
    const struct kelp_process_options options = {
        .argv = argv, .stdout_fd = STDERR_FILENO, .stderr_fd = STDERR_FILENO};
    struct kelp_process *process = NULL;
    int wait_status = -1;

    ck_assert_int_eq(kelp_process_start(&options, &process, NULL), KELP_OK);
    ck_assert_int_eq(kelp_process_wait(process, KELP_TEST_HANG_MS, &wait_status), KELP_OK);
    kelp_process_destroy(process);
    return wait_status;
}

KELP_CASE("promtool", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

/* Names, types, help and the format of each daemon, also of a coordinator that stands by. */
KELP_TEST(check_metrics)
{
    static const char *const everybody[] = {"coordinator-0", "coordinator-1", "shard-0",
                                            "worker-0"};

    watched_put_job(&cluster, 100000);
    watched_daemons(&cluster);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(everybody); i++) {
        KELP_TEST_AWAIT(watched_status(&cluster, everybody[i], "/readyz") == 200, "%s is not ready",
                        everybody[i]);
        const char *path = kelp_test_write(cluster.folder.path, "metrics.txt",
                                           watched_ask(&cluster, everybody[i], "/metrics"));
        ck_assert_msg(check(path) == 0, "promtool complains about %s", everybody[i]);
    }
    /* It would complain. */
    ck_assert_int_ne(check(kelp_test_write(cluster.folder.path, "metrics.txt", "a b c\n")), 0);
}
