/*
 * `kelp bench` measures clusters of its own: what it prints is whole, what limits it stands first,
 * and no process or file of it is left, however it ends.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

KELP_SUITE(.before = etcd_fixture_require)

static struct kelp_test_folder folder;
static struct kelp_test_command command;
static char places[160]; /* TMPDIR: where a bench has its folder */

static void setup(void)
{
    kelp_test_folder_init(&folder);
    memset(&command, 0, sizeof(command));
    (void)snprintf(places, sizeof(places), "%s", folder.path);
    ck_assert_int_eq(setenv("TMPDIR", places, 1), 0);
}

static void teardown(void)
{
    kelp_test_command_fini(&command);
    kelp_test_folder_fini(&folder);
}

/* Entries of TMPDIR that are a bench's own. */
static unsigned folders_left(void)
{
    unsigned count = 0;
    DIR *dir = opendir(places);

    ck_assert_ptr_nonnull(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        count += strncmp(entry->d_name, "kelp-", 5) == 0 ? 1 : 0;
    }
    (void)closedir(dir);
    return count;
}

static void nothing_is_left(void)
{
    kelp_test_command_gone(&command);
    ck_assert_uint_eq(folders_left(), 0);
}

static cJSON *bench(const char *const *args)
{
    kelp_test_command_run(&command, folder.path, args, KELP_TEST_HANG_MS);
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    nothing_is_left();
    return kelp_test_json(command.out);
}

KELP_CASE("pushpull", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

static void check_rate(const cJSON *row, const char *way, bool limit, double bytes)
{
    ck_assert_str_eq(kelp_test_text(row, "way"), way);
    ck_assert_int_eq(cJSON_IsTrue(kelp_test_member(row, "limit")), limit);
    ck_assert_double_eq(kelp_test_number(row, "bytes"), bytes);
    const double per_s = kelp_test_number(row, "operations_per_s");
    const double gb_per_s = kelp_test_number(row, "gb_per_s");
    ck_assert_double_gt(per_s, 0);
    ck_assert_double_ge(gb_per_s * 1e9, per_s * 2 * bytes * 0.999);
    ck_assert_double_le(gb_per_s * 1e9,
                        per_s * 3 * bytes * 1.001); /* a worker may have two lanes */
    ck_assert_double_gt(kelp_test_number(row, "p50_us"), 0);
    ck_assert_double_ge(kelp_test_number(row, "p99_us"), kelp_test_number(row, "p50_us"));
    ck_assert_double_gt(kelp_test_number(row, "cpu_s_per_gb"), 0);
    if (!limit) {
        ck_assert_double_gt(kelp_test_number(row, "thread_s_per_gb"), 0);
        ck_assert_double_lt(kelp_test_number(row, "thread_s_per_gb") * gb_per_s, 1.1);
    }
}

/* Copy, sockets and memory of each size, then each size by each transport. */
KELP_TEST(limits_come_first)
{
    static const struct {
        const char *way;
        bool limit;
        double bytes;
    } expected[] = {{"copy", true, 4096},  {"sockets", true, 4096},  {"memory", true, 4096},
                    {"copy", true, 16384}, {"sockets", true, 16384}, {"memory", true, 16384},
                    {"grpc", false, 4096}, {"shm", false, 4096},     {"grpc", false, 16384},
                    {"shm", false, 16384}};
    cJSON *json = bench((const char *[]){"bench", "pushpull", "--size", "4KiB,16KiB", "--workers",
                                         "3", "--shards", "2", "--optimizer", "adam", "--time",
                                         "20ms", "-o", "json", NULL});
    const cJSON *rows = kelp_test_member(json, "rows");

    ck_assert_str_eq(kelp_test_member(json, "optimizer")->valuestring, "adam");
    ck_assert_double_eq(kelp_test_number(json, "workers"), 3);
    ck_assert_double_eq(kelp_test_number(json, "shards"), 2);
    ck_assert_double_gt(kelp_test_number(json, "processors"), 0);
    ck_assert_int_eq(cJSON_GetArraySize(rows), KELP_ARRAY_COUNT(expected));
    for (int i = 0; i < (int)KELP_ARRAY_COUNT(expected); i++) {
        check_rate(cJSON_GetArrayItem(rows, i), expected[i].way, expected[i].limit,
                   expected[i].bytes);
    }
    cJSON_Delete(json);
}

KELP_TEST(one_transport_as_a_table)
{
    kelp_test_command_run(&command, folder.path,
                          (const char *[]){"bench", "pushpull", "--size", "4KiB", "--transport",
                                           "auto", "--time", "20ms", "--plot", "bench.svg", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    char *picture = kelp_test_read(folder.path, "bench.svg", NULL);
    ck_assert_ptr_nonnull(strstr(picture, "<svg"));
    free(picture);
    const char *limits = strstr(command.out, "\nLIMIT ");
    const char *kelp = strstr(command.out, "\nKELP ");
    ck_assert_ptr_nonnull(limits);
    ck_assert_ptr_nonnull(kelp);
    ck_assert(limits < kelp);
    ck_assert_ptr_nonnull(strstr(kelp, "\nauto "));
    ck_assert_ptr_null(strstr(kelp, "\ngrpc "));
}

/* So many clusters, one after the other, that the first does not see the end of all. */
static void start_clusters(void)
{
    kelp_test_command_start(&command, folder.path,
                            (const char *[]){"bench", "pushpull", "--size",
                                             "4KiB,5KiB,6KiB,7KiB,8KiB,9KiB,10KiB,11KiB",
                                             "--transport", "shm", "--time", "10ms", NULL});
    KELP_TEST_AWAIT_FROM(&command, kelp_test_command_find(&command, "kelp-ps", "shard-0") > 0,
                         "it starts no shard");
    ck_assert_uint_eq(folders_left(), 1);
}

static void ends_with(int exit_code, const char *text)
{
    (void)kelp_test_command_wait(&command, KELP_TEST_HANG_MS);
    ck_assert_msg(command.exit_code == exit_code, "%d: %s", command.exit_code, command.err);
    ck_assert_msg(strstr(command.err, text) != NULL, "%s", command.err);
    nothing_is_left();
}

/* A signal ends it, and its processes and folder with it, while a cluster runs ... */
KELP_TEST(a_signal_leaves_nothing)
{
    start_clusters();
    (void)kelp_test_command_signal(&command, "bench", "pushpull", SIGTERM);
    ends_with(128 + SIGTERM, "stopped by a signal");
}

/* ... and before there is one. */
KELP_TEST(a_signal_ends_the_limits)
{
    kelp_test_command_start(&command, folder.path,
                            (const char *[]){"bench", "pushpull", "--time", "10m", NULL});
    KELP_TEST_AWAIT_FROM(&command, kelp_test_command_find(&command, "etcd", "kelp-") > 0,
                         "it starts no etcd");
    (void)kelp_test_command_signal(&command, "bench", "pushpull", SIGINT);
    ends_with(128 + SIGINT, "stopped by a signal");
}

/* What ends on its own is named, with how. */
KELP_TEST(a_lost_shard_is_told)
{
    start_clusters();
    (void)kelp_test_command_signal(&command, "kelp-ps", "shard-0", SIGKILL);
    ends_with(1, "shard-0 killed by signal 9");
}

KELP_CASE("optimizer", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

/* Bytes of all arrays that are read and written, for each element, follow from the optimizer. */
KELP_LOOP_TEST(every_optimizer_elementwise, 1, 4)
{
    const char threads[] = {(char)('0' + _i), '\0'}; /* three share no even number of elements */
    static const struct {
        const char *way;
        double bytes;
    } expected[] = {{"copy", 8},   {"sum", 12},     {"sgd", 12},     {"momentum", 20}, {"adam", 28},
                    {"adamw", 28}, {"adagrad", 20}, {"rmsprop", 20}, {"adadelta", 28}};
    cJSON *json = bench((const char *[]){"bench", "optimizer", "--size", "4KiB", "--time", "10ms",
                                         "--threads", threads, "-o", "json", NULL});
    const cJSON *rows = kelp_test_member(json, "rows");

    ck_assert_double_eq(kelp_test_number(json, "threads"), _i);
    ck_assert_int_eq(cJSON_GetArraySize(rows), KELP_ARRAY_COUNT(expected));
    for (int i = 0; i < (int)KELP_ARRAY_COUNT(expected); i++) {
        const cJSON *row = cJSON_GetArrayItem(rows, i);
        const double per_s = kelp_test_number(row, "elements_per_s");
        ck_assert_str_eq(kelp_test_text(row, "way"), expected[i].way);
        ck_assert_int_eq(cJSON_IsTrue(kelp_test_member(row, "limit")), i < 2);
        ck_assert_double_eq(kelp_test_number(row, "bytes"), 4096);
        ck_assert_double_eq_tol(per_s * kelp_test_number(row, "p50_us"), 1024e6, 1);
        ck_assert_double_eq_tol(kelp_test_number(row, "gb_per_s") * 1e9 / per_s, expected[i].bytes,
                                1e-6);
    }
    cJSON_Delete(json);
}

KELP_CASE("steps", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

KELP_TEST(steps_of_one_transport)
{
    static const char *const ways[] = {"copy", "sockets", "memory", "shm"};
    cJSON *json = bench((const char *[]){"bench", "steps", "--workers", "1", "--epochs", "2",
                                         "--transport", "shm", "-o", "json", NULL});
    const cJSON *rows = kelp_test_member(json, "rows");

    ck_assert_str_eq(kelp_test_text(json, "bench"), "steps");
    ck_assert_double_eq(kelp_test_number(json, "workers"), 1);
    ck_assert_int_eq(cJSON_GetArraySize(rows), KELP_ARRAY_COUNT(ways));
    for (int i = 0; i < (int)KELP_ARRAY_COUNT(ways); i++) {
        const cJSON *row = cJSON_GetArrayItem(rows, i);
        ck_assert_str_eq(kelp_test_text(row, "way"), ways[i]);
        ck_assert_int_eq(cJSON_IsTrue(kelp_test_member(row, "limit")), i < 3);
        ck_assert_double_gt(kelp_test_number(row, "steps_per_s"), 0);
    }
    cJSON_Delete(json);
}

/* The folders of the job too. */
KELP_TEST(a_signal_ends_the_job)
{
    kelp_test_command_start(&command, folder.path,
                            (const char *[]){"bench", "steps", "--epochs", "10000", NULL});
    KELP_TEST_AWAIT_FROM(&command, kelp_test_command_find(&command, "kelp-worker", "worker-0") > 0,
                         "it trains nothing");
    (void)kelp_test_command_signal(&command, "bench", "steps", SIGTERM);
    ends_with(128 + SIGTERM, "stopped by a signal");
}

KELP_CASE("scale", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

static void check_daemon(const cJSON *json, const char *name)
{
    const cJSON *daemon = kelp_test_member(json, name);

    ck_assert_double_lt(kelp_test_number(daemon, "kib_per_worker"), 100000);
    ck_assert_double_ge(kelp_test_number(daemon, "idle_percent"), 0);
}

static void check_loss(const cJSON *json, const char *name, double least_ms)
{
    const cJSON *loss = kelp_test_member(json, name);

    ck_assert_double_gt(kelp_test_number(loss, "noticed_ms"), least_ms);
    ck_assert_double_ge(kelp_test_number(loss, "assigned_ms"),
                        kelp_test_number(loss, "noticed_ms"));
}

/* A worker that falls silent is noticed when its last report is failure.detect ago. */
KELP_TEST(lost_workers_are_noticed)
{
    cJSON *json = bench((const char *[]){"bench", "scale", "--workers", "6", "--time", "20ms",
                                         "--detect", "600ms", "-o", "json", NULL});

    ck_assert_double_eq(kelp_test_number(json, "workers"), 6);
    ck_assert_double_eq(kelp_test_number(json, "lanes"), 8);
    ck_assert_double_eq(kelp_test_number(json, "detect_ms"), 600);
    ck_assert_double_gt(kelp_test_number(json, "open_files"), 0);
    ck_assert_double_ge(kelp_test_number(json, "dropped"), 0);
    ck_assert_double_gt(kelp_test_number(json, "joined_ms"), 0);
    ck_assert_double_gt(kelp_test_number(json, "assigned_ms"), 0);
    check_daemon(json, "coordinator");
    check_daemon(json, "shard");
    check_loss(json, "killed", 0);
    check_loss(json, "silent", 300);
    cJSON_Delete(json);
}

/* A connection costs the coordinator no more than it needs for small messages. */
KELP_TEST(workers_cost_the_coordinator_little)
{
    cJSON *json = bench((const char *[]){"bench", "scale", "--workers", "64", "--time", "20ms",
                                         "--detect", "600ms", "-o", "json", NULL});

    ck_assert_double_eq(kelp_test_number(json, "workers"), 64);
    ck_assert_double_eq(kelp_test_number(json, "lanes"), 64);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const cJSON *coordinator = kelp_test_member(json, "coordinator");
    ck_assert_double_lt(kelp_test_number(coordinator, "kib_per_worker"), 70);
#endif
    cJSON_Delete(json);
}

KELP_TEST(too_few_files_are_told)
{
    struct rlimit limit = {.rlim_cur = 256, .rlim_max = 256};

    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    kelp_test_command_says(folder.path, (const char *[]){"bench", "scale", NULL}, 2,
                           "1000 workers take 2128 open files, and a process may have 256; use "
                           "fewer workers, or raise the limit (ulimit -Hn)");
}
