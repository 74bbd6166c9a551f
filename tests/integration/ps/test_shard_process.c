/* The life of a kelp-ps process: its end, its entry in etcd, what waiting costs. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ps/etcd_build.h"
#include "tests/lib/cluster/shard_worker.h"
#include "tests/lib/suite.h"

#define ELEMENTS 5000 /* four partitions, the last one shorter */
#define SAMPLES  16   /* two steps of 8 an epoch */

static struct shard_fixture fixture;
static struct shard_stream control;

static void set_up(void)
{
    static const char *const settings[] = {"train.epochs", "1", NULL};

    shard_fixture_start(&fixture, settings, ELEMENTS, SAMPLES);
    shard_stream_open(&control, &fixture, "Control");
}

/* The same with several threads in the shard. */
static void set_up_threads(void)
{
    ck_assert_int_eq(setenv("KELP_THREADS", "4", 1), 0);
    set_up();
}

static void tear_down(void)
{
    shard_stream_close(&control);
    shard_fixture_stop(&fixture);
}

KELP_SUITE(.before = etcd_fixture_require)

static void assert_exit_within(struct kelp_process *process, int code, uint32_t wait_ms)
{
    int status = 0;

    ck_assert_int_eq(kelp_process_wait(process, wait_ms, &status), KELP_OK);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), code);
}

static void assert_exit(struct kelp_process *process, int code)
{
    assert_exit_within(process, code, SHARD_WAIT_MS);
}

KELP_CASE("process", .timeout_s = 90, .setup = set_up, .teardown = tear_down)

/* A heartbeat; is the shard leaving, by its answer? */
static bool beat(uint64_t heartbeat)
{
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    command.heartbeat = heartbeat;
    shard_stream_send(&control, &command.base, NULL, 0);
    for (;;) {
        Kelp__V1__ShardReport *report = shard_take_report(&control);
        bool answers = report->heartbeat == heartbeat;
        bool leaving = report->leaving;
        kelp__v1__shard_report__free_unpacked(report, NULL);
        if (answers) {
            return leaving;
        }
    }
}

/* SIGTERM: it says so to its leader, and stays until that lets it go. */
KELP_TEST(is_drained_on_sigterm)
{
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    uint64_t heartbeat = 1;

    shard_load(&control, 1);
    ck_assert(!beat(heartbeat));
    kelp_process_signal(fixture.process, SIGTERM);
    while (!beat(++heartbeat)) {
    }
    ck_assert_int_eq(kelp_process_wait(fixture.process, 0, NULL), KELP_ERR_TIMEOUT);
    command.leave = (char *)"you may";
    shard_stream_send(&control, &command.base, NULL, 0);
    assert_exit(fixture.process, 0);
}

/* A leader may let go one that did not ask. */
KELP_TEST(goes_when_it_is_let_go)
{
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;

    shard_load(&control, 1);
    command.leave = (char *)"you may";
    shard_stream_send(&control, &command.base, NULL, 0);
    assert_exit(fixture.process, 0);
}

/* Nobody lets it go: a second signal ends it at once. */
KELP_TEST(a_second_signal_does_not_wait)
{
    uint64_t heartbeat = 1;

    shard_load(&control, 1);
    kelp_process_signal(fixture.process, SIGTERM);
    while (!beat(++heartbeat)) {
    }
    kelp_process_signal(fixture.process, SIGTERM);
    assert_exit(fixture.process, 0);
}

/* SIGINT: exit 0, and the entry in etcd is gone. Streams that are open do not hold it up. */
KELP_TEST(stops_on_sigint)
{
    struct kelp_etcd_range range;
    struct shard_stream worker;
    struct kelp_control_word word;
    float *weights = shard_worker_new_flat(&fixture);

    shard_load(&control, 1);
    shard_worker_open(&worker, &fixture, 1, weights, &word);
    shard_worker_push_lane(&worker, &word, 0, true);
    kelp_process_signal(fixture.process, SIGINT);
    assert_exit(fixture.process, 0);
    ck_assert_int_eq(kelp_etcd_get(fixture.client, "/kelp/shards/ps/shard-0", 2000, &range, NULL),
                     KELP_OK);
    ck_assert_uint_eq(range.count, 0);
    kelp_etcd_range_fini(&range);
    shard_stream_close(&worker);
    free(weights);
}

/* A second process of the same name takes over; the first one ends with 1. */
KELP_TEST(is_replaced)
{
    uint64_t before = fixture.incarnation;
    struct kelp_process *second = shard_fixture_spawn(&fixture);

    assert_exit(fixture.process, 1);
    shard_fixture_await_entry(&fixture, before);
    ck_assert_int_eq(kelp_process_wait(second, 0, NULL), KELP_ERR_TIMEOUT);
    kelp_process_signal(second, SIGTERM);
    assert_exit(second, 0);
    kelp_process_destroy(second);
}

#define OTHER_SHARD "/kelp/shards/ps/other"
#define OTHER_BUILD "0.0.9+0123456789abcdef"

/* Somebody has registered who computes with other software. */
static void register_other_build(void)
{
    ck_assert_int_eq(kelp_etcd_put(fixture.client, OTHER_SHARD,
                                   "{\"address\":\"127.0.0.1:1\",\"incarnation\":\"7\","
                                   "\"build\":\"" OTHER_BUILD "\"}",
                                   0, 5000, NULL),
                     KELP_OK);
}

static void assert_not_registered(const char *key)
{
    struct kelp_etcd_range range;
    ck_assert_int_eq(kelp_etcd_get(fixture.client, key, 5000, &range, NULL), KELP_OK);
    ck_assert_uint_eq(range.count, 0);
    kelp_etcd_range_fini(&range);
}

/* A shard of another build than those that are there: one line that names both, exit 2, and it was
 * never in etcd. The others go on. */
KELP_TEST(another_build_is_refused)
{
    struct shard_fixture second = fixture;
    FILE *log = tmpfile();
    char text[4096];

    ck_assert_ptr_nonnull(log);
    register_other_build();
    (void)snprintf(second.id, sizeof(second.id), "shard-1");
    second.process = shard_fixture_spawn_logged(&second, fileno(log));
    assert_exit_within(second.process, 2, 3 * SHARD_WAIT_MS); /* it waits for a while itself */
    kelp_process_destroy(second.process);
    rewind(log);
    text[fread(text, 1, sizeof(text) - 1, log)] = '\0';
    (void)fclose(log);
    ck_assert_msg(strstr(text, "of job shards is of build 0.0.9+0123456789abcdef: start the same "
                               "kelp-ps for all shards of a job, or end them all first") != NULL,
                  "%s", text);
    ck_assert_ptr_nonnull(strstr(text, "shard-1 is of build "));
    assert_not_registered("/kelp/shards/ps/shard-1");
    ck_assert_int_eq(kelp_process_wait(fixture.process, 0, NULL), KELP_ERR_TIMEOUT);
}

static kelp_status check_build(const char *shard, const char *text, bool mixed, bool earlier)
{
    const struct kelp_build build = {.job = "shards", .shard = shard, .text = text, .mixed = mixed};
    return kelp_build_check(fixture.client, &build, earlier, 5000, NULL);
}

/* Of two that registered at once the later one goes, whatever their names are. */
KELP_TEST(the_later_build_goes)
{
    char ours[KELP_BUILD_MAX + 1];

    kelp_build_print(ours);
    ck_assert_int_eq(check_build("shard-0", ours, false, false), KELP_OK);
    register_other_build();
    ck_assert_int_eq(check_build("shard-0", ours, false, false), KELP_ERR_MISMATCH);
    ck_assert_int_eq(check_build("shard-0", ours, false, true), KELP_OK);
    ck_assert_int_eq(check_build("other", OTHER_BUILD, false, true), KELP_ERR_MISMATCH);
}

/* cluster.mixed lets in who computes otherwise, and no other version. */
KELP_TEST(builds_may_be_mixed)
{
    char text[KELP_BUILD_MAX + 1];

    kelp_build_print(text);
    ck_assert_int_eq(check_build("other", text, false, false), KELP_OK);
    text[strlen(text) - 1] ^= 1;
    ck_assert_int_eq(check_build("other", text, false, false), KELP_ERR_MISMATCH);
    ck_assert_int_eq(check_build("other", text, true, false), KELP_OK);
    ck_assert_int_eq(check_build("other", OTHER_BUILD, true, false), KELP_ERR_MISMATCH);
}

/* Entries of the dead go with their leases: it waits for that. */
KELP_TEST(another_build_goes)
{
    register_other_build();
    struct kelp_process *waits = shard_fixture_spawn(&fixture); /* under its own name: it differs */
    ck_assert_int_eq(kelp_process_wait(waits, 1500, NULL), KELP_ERR_TIMEOUT);
    ck_assert_int_eq(kelp_etcd_delete_prefix(fixture.client, OTHER_SHARD, 5000, NULL), KELP_OK);
    assert_exit(fixture.process, 1); /* replaced */
    kelp_process_signal(waits, SIGTERM);
    assert_exit(waits, 0);
    kelp_process_destroy(waits);
}

/* etcd goes away and comes back: steps go on, the entry comes back. */
KELP_TEST(etcd_goes_away)
{
    struct shard_stream worker;
    struct kelp_control_word word;
    float *weights = shard_worker_new_flat(&fixture);

    shard_load(&control, 1);
    shard_worker_open(&worker, &fixture, 1, weights, &word);
    etcd_fixture_kill(&fixture.etcd);
    for (uint32_t lane = 0; lane < 4; lane++) {
        shard_worker_push_lane(&worker, &word, lane, lane == 3);
    }
    (void)shard_worker_take_weights(&worker, 1, weights, &word);
    shard_stream_pass(&worker, 6000); /* longer than the lease lives */
    etcd_fixture_restart(&fixture.etcd);
    uint64_t incarnation = fixture.incarnation;
    ck_assert_int_eq(kelp_etcd_delete_prefix(fixture.client, "/kelp/shards/ps/", 10000, NULL),
                     KELP_OK); /* what is left of the old lease */
    shard_fixture_await_entry(&fixture, 0);
    ck_assert_uint_eq(fixture.incarnation, incarnation);
    shard_stream_close(&worker);
    free(weights);
}

/* An address that is taken: exit 2, and who serves there goes on. */
KELP_TEST(address_in_use)
{
    ck_assert_int_eq(setenv("KELP_LISTEN", fixture.address, 1), 0);
    struct kelp_process *second = shard_fixture_spawn(&fixture);
    assert_exit(second, 2);
    kelp_process_destroy(second);
    shard_load(&control, 1);
}

/* The end does not wait for an etcd that is away. */
KELP_TEST(stops_without_etcd)
{
    shard_load(&control, 1);
    etcd_fixture_kill(&fixture.etcd);
    kelp_process_signal(fixture.process, SIGINT);
    assert_exit(fixture.process, 0);
}

static double processor_seconds(pid_t pid)
{
    char path[64];
    char text[1024] = "";
    unsigned long user = 0, kernel = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(text, sizeof(text), file));
    (void)fclose(file);
    const char *fields = strrchr(text, ')');
    ck_assert_ptr_nonnull(fields);
    ck_assert_int_eq(
        sscanf(fields, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel), 2);
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

/* Waiting costs nothing, heartbeats aside. */
KELP_TEST(waiting_is_free)
{
    struct shard_stream worker;
    struct kelp_control_word word;
    float *weights = shard_worker_new_flat(&fixture);

    shard_load(&control, 1);
    shard_worker_open(&worker, &fixture, 1, weights, &word);
    shard_worker_push_lane(&worker, &word, 0, true);
    shard_stream_pass(&worker, 500);
    double before = processor_seconds(kelp_process_pid(fixture.process));
    shard_stream_pass(&worker, 3000);
    double used = processor_seconds(kelp_process_pid(fixture.process)) - before;
    ck_assert_double_le(used, 0.03); /* 1 % */
    shard_stream_close(&worker);
    free(weights);
}

KELP_CASE("threads", .timeout_s = 60, .setup = set_up_threads, .teardown = tear_down)

KELP_TEST_AGAIN(stops_on_sigint)
KELP_TEST_AGAIN(is_drained_on_sigterm)

static void set_up_grace(void)
{
    ck_assert_int_eq(setenv("KELP_GRACE", "200ms", 1), 0);
    set_up();
}

KELP_CASE("grace", .timeout_s = 60, .setup = set_up_grace, .teardown = tear_down)

/* Its leader does not let it go, or there is none: it ends with what it has. */
KELP_TEST(gives_up_after_its_grace)
{
    shard_load(&control, 1);
    kelp_process_signal(fixture.process, SIGTERM);
    assert_exit(fixture.process, 0);
}

/* It has nothing that anybody could take over: it does not ask. */
KELP_TEST(has_nothing_to_give_away)
{
    kelp_process_signal(fixture.process, SIGTERM);
    assert_exit(fixture.process, 0);
}
