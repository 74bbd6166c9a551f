/*
 * Lanes of a worker that is slow, stopped or cut off are computed by the others at once, without
 * the coordinator: the steps go on, and nothing that the worker does when it wakes up changes a
 * bit.
 */
#include <curl/curl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"
#include "common/program/daemon.h"
#include "common/rpc/rpc.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/commands/step_watch.h"
#include "tests/lib/suite.h"

#define STOP_AT 300 /* step */
#define LOG_MAX (16u << 20)
#define GO_ON   50 /* steps without the worker; its computing late is noticed at each */

/* The coordinator takes a silent worker's lanes away after failure.detect: not in these tests,
 * where steps go on by offers of the shards or not at all. */
static const char job_text[] = "name: cover\nseed: 11\n"
                               "model: {kind: dlinear}\ndata: {kind: synthetic}\n"
                               "train: {epochs: 12, batch_size: 32}\n"
                               "cluster: {workers: 3, shards: 2, lanes: 4}\n"
                               "failure: {detect: 10m}\n"
                               "checkpoint: {at_end: false}\n";

static struct kelp_run run;
static struct kelp_step_watch *watch;
static char quiet_digest[33];

static void setup(void)
{
    kelp_run_prepare_job(&run, job_text);
}

static void teardown(void)
{
    kelp_step_watch_close(watch);
    watch = NULL;
    kelp_run_fini(&run);
}

/* A job that is not over before the test has asked everything, however slow the machine is; the
 * test ends it by end(). */
#define ENDLESS "--set", "train.epochs=100000"

/* Until `step` steps are complete. */
static void start(const char *const *more, uint64_t step)
{
    kelp_run_start(&run, "job.yaml", more);
    watch = kelp_step_watch_open(&run);
    kelp_step_watch_await(watch, step);
}

static void finish(const char *what)
{
    kelp_run_finish(&run, 0);
    kelp_run_expect_digest(&run, what, quiet_digest);
}

/* Everybody runs again: steps go on, and nothing of the run is left behind. */
static void end(void)
{
    kelp_step_watch_await(watch, kelp_step_watch_step(watch) + GO_ON);
    kelp_test_command_kill_all(&run.command);
}

static pid_t signal_to(const char *program, const char *id, int signal_number)
{
    return kelp_test_command_signal(&run.command, program, id, signal_number);
}

/* Steps go on, because lanes were offered. */
static void steps_go_on(void)
{
    kelp_step_watch_await(watch, kelp_step_watch_step(watch) + GO_ON);
    KELP_TEST_AWAIT(kelp_step_watch_offers(watch) > 0, "no lane was offered");
}

/* What `kelp status` says; owned. */
static cJSON *ask_status(void)
{
    struct kelp_test_command status = {.process = NULL};
    const char *args[] = {"status", "run", "-o", "json", "--timeout", "60s", NULL};

    kelp_test_command_run(&status, run.folder, args, KELP_TEST_HANG_MS);
    ck_assert_msg(status.exit_code == 0, "%s", status.err);
    cJSON *json = kelp_test_json(status.out);
    kelp_test_command_fini(&status);
    return json;
}

/* NULL: it is not there. */
static const cJSON *member_of(const cJSON *status, const char *list, const char *key,
                              const char *id)
{
    const cJSON *member = NULL;
    cJSON_ArrayForEach(member, kelp_test_member(status, list))
    {
        if (strcmp(kelp_test_text(member, key), id) == 0) {
            return member;
        }
    }
    return NULL;
}

/* Of the worker by `kelp status`; -1: it is not a member. */
static int lanes_of(const char *id)
{
    cJSON *status = ask_status();
    const cJSON *worker = member_of(status, "workers", "id", id);
    int lanes = worker ? (int)kelp_test_number(worker, "lane_count") : -1;
    cJSON_Delete(status);
    return lanes;
}

/* It is a member, its trouble begins with text, and it has lanes or none. */
static bool is_in_trouble(const char *id, const char *text, bool has_lanes)
{
    cJSON *status = ask_status();
    const cJSON *worker = member_of(status, "workers", "id", id);
    bool is = worker && strncmp(kelp_test_text(worker, "trouble"), text, strlen(text)) == 0 &&
              (text[0] != '\0' || kelp_test_text(worker, "trouble")[0] == '\0') &&
              (kelp_test_number(worker, "lane_count") > 0) == has_lanes;
    cJSON_Delete(status);
    return is;
}

/* Why the job waits. */
static bool has_reason(const char *expected)
{
    cJSON *status = ask_status();
    bool has = strcmp(kelp_test_text(status, "reason"), expected) == 0;
    cJSON_Delete(status);
    return has;
}

/* In the log of a process of the run. */
static bool has_logged(const char *id, const char *text)
{
    char path[400];
    char *log = NULL;
    size_t bytes = 0;
    (void)snprintf(path, sizeof(path), "%s/logs/%s.log", run.run_folder, id);
    bool found = kelp_files_read(path, LOG_MAX, &log, &bytes, NULL) == KELP_OK && strstr(log, text);
    free(log);
    return found;
}

static void await_log(const char *id, const char *text)
{
    KELP_TEST_AWAIT_FROM(&run.command, has_logged(id, text), "%s never said: %s", id, text);
}

static void begin_libraries(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    kelp_rpc_global_init();
}

static void end_libraries(void)
{
    kelp_rpc_global_fini();
    curl_global_cleanup();
}

/* One process: the quiet digest is shared. */
KELP_SUITE(.no_fork = true, .before = begin_libraries, .after = end_libraries)
KELP_CASE("late workers", .timeout_s = 2 * KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

KELP_TEST(quiet)
{
    start(NULL, 1);
    finish("quiet");
}

/* It computes for three seconds, and reports meanwhile: the coordinator sees nothing. */
KELP_TEST(slow_worker)
{
    static const char *const more[] = {"--fault", "worker-1:stall@step=300", NULL};
    start(more, STOP_AT);
    steps_go_on();
    finish("a worker that is slow once");
}

/* Worker and coordinator at the same time: nobody else than the shards can do anything. */
KELP_TEST(stopped_with_the_coordinator)
{
    start(NULL, STOP_AT);
    pid_t coordinator = signal_to("kelp-coordinator", "coordinator-0", SIGSTOP);
    pid_t worker = signal_to("kelp-worker", "worker-1", SIGSTOP);
    steps_go_on();
    ck_assert_int_eq(kill(worker, SIGCONT), 0);
    ck_assert_int_eq(kill(coordinator, SIGCONT), 0);
    finish("a worker and the coordinator stopped");
}

/* Two workers have all the lanes; the third, which waits at the shards without pulling, does all.
 */
KELP_TEST(spare_covers_everything)
{
    static const char *const more[] = {"--set", "cluster.lanes=2", ENDLESS, NULL};
    static const char *const ids[] = {"worker-0", "worker-1", "worker-2"};
    int lanes[KELP_ARRAY_COUNT(ids)];
    pid_t stopped[KELP_ARRAY_COUNT(ids)];
    size_t count = 0;

    start(more, 50);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(ids); i++) {
        lanes[i] = lanes_of(ids[i]); /* all of them before the first one is stopped */
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(ids); i++) {
        if (lanes[i] > 0) {
            stopped[count++] = signal_to("kelp-worker", ids[i], SIGSTOP);
        }
    }
    ck_assert_uint_eq(count, 2);
    stopped[count++] = signal_to("kelp-coordinator", "coordinator-0", SIGSTOP);
    steps_go_on();
    for (size_t i = 0; i < count; i++) {
        ck_assert_int_eq(kill(stopped[i], SIGCONT), 0);
    }
    end();
}

/* The coordinator gives its lanes away after a second; when it wakes up it is let in again. */
KELP_TEST(woken_worker_comes_back)
{
    static const char *const more[] = {"--set", "failure.detect=1s", ENDLESS, NULL};
    start(more, STOP_AT);
    KELP_TEST_AWAIT_FROM(&run.command, lanes_of("worker-1") > 0, "it has no lanes");
    pid_t worker = signal_to("kelp-worker", "worker-1", SIGSTOP);
    KELP_TEST_AWAIT_FROM(&run.command, lanes_of("worker-1") == -1, "it keeps its lanes");
    steps_go_on();
    ck_assert_int_eq(kill(worker, SIGCONT), 0);
    KELP_TEST_AWAIT_FROM(&run.command, lanes_of("worker-1") > 0, "it did not come back");
    /* the same process */
    ck_assert_int_eq(kelp_test_command_find(&run.command, "kelp-worker", "worker-1"), worker);
    end();
}

/* ---- lanes that take long ---------------------------------------------------------------------
 */

/* A lane that does not end: the worker follows the map meanwhile. Asked to end, it gives up. */
KELP_TEST(hung_worker)
{
    static const char *const more[] = {"--fault", "worker-1:hang@step=300", ENDLESS, NULL};
    ck_assert_int_eq(setenv("KELP_GRACE", "300ms", 1), 0);
    start(more, STOP_AT);
    ck_assert_int_eq(unsetenv("KELP_GRACE"), 0);
    steps_go_on();
    await_log("worker-1", "newer map generation=1");
    (void)signal_to("kelp-ps", "shard-0", SIGKILL);
    await_log("worker-1", "newer map generation=2");
    (void)signal_to("kelp-worker", "worker-1", SIGTERM);
    await_log("worker-1", "gives up after its grace period");
    end();
}

/* Asked to end in the middle of its lanes, it sends them. Nobody else could have computed them: it
 * is alone, and who would start another worker is stopped. */
KELP_TEST(asked_to_end)
{
    static const char *const more[] = {
        "--fault", "worker-0:stall@step=300", "--set", "cluster.workers=1", ENDLESS, NULL};
    start(more, STOP_AT);
    await_log("worker-0", KELP_WORKER_FAILING);
    pid_t launcher = signal_to("kelp", "train", SIGSTOP);
    (void)signal_to("kelp-worker", "worker-0", SIGTERM);
    kelp_step_watch_await(watch, STOP_AT + 1);
    await_log("worker-0", "ends peak_memory");
    ck_assert(!has_logged("worker-0", "gives up"));
    ck_assert_uint_eq(kelp_step_watch_step(watch), STOP_AT + 1);
    ck_assert_int_eq(kill(launcher, SIGCONT), 0);
    end();
}

/* Both of a shard's sockets, its own and the one beside it for shared memory, go elsewhere or come
 * back. Streams that are open stay. */
static void move_sockets(const char *socket, const char *from, const char *to)
{
    static const char *const kinds[] = {"", ".shm"};
    char before[320], after[320];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(kinds); i++) {
        (void)snprintf(before, sizeof(before), "%s%s%s", socket, kinds[i], from);
        (void)snprintf(after, sizeof(after), "%s%s%s", socket, kinds[i], to);
        ck_assert_int_eq(rename(before, after), 0);
    }
}

/* A worker that cannot reach a shard says so, and has no lanes until that is over. */
KELP_TEST(shard_out_of_reach)
{
    static const char *const more[] = {ENDLESS, NULL};
    char socket[300];
    char expected[400];

    start(more, 50);
    cJSON *status = ask_status();
    const cJSON *shard = member_of(status, "shards", "id", "shard-1");
    ck_assert_ptr_nonnull(shard);
    (void)snprintf(socket, sizeof(socket), "%s", kelp_test_text(shard, "address"));
    cJSON_Delete(status);
    ck_assert(strncmp(socket, "unix:", 5) == 0);
    (void)snprintf(expected, sizeof(expected), "cannot reach shard-1 at %s: its socket is gone",
                   socket);
    move_sockets(socket + 5, "", ".away");
    (void)signal_to("kelp-worker", "worker-1", SIGKILL);
    KELP_TEST_AWAIT_FROM(&run.command, is_in_trouble("worker-1", expected, false),
                         "it did not say that it cannot reach the shard");
    cJSON *still = ask_status(); /* the other worker computes: nothing waits */
    ck_assert_str_eq(kelp_test_text(still, "reason"), "");
    cJSON_Delete(still);
    kelp_step_watch_await(watch, kelp_step_watch_step(watch) + GO_ON);
    move_sockets(socket + 5, ".away", "");
    KELP_TEST_AWAIT_FROM(&run.command, is_in_trouble("worker-1", "", true), "it has no lanes");
    end();
}

/* When no worker reaches a shard, the job waits, and says for what. */
KELP_TEST(nobody_reaches_the_shard)
{
    static const char *const more[] = {"--set", "cluster.workers=1", ENDLESS, NULL};
    char socket[300];
    char expected[400];

    start(more, 50);
    cJSON *status = ask_status();
    const cJSON *shard = member_of(status, "shards", "id", "shard-1");
    ck_assert_ptr_nonnull(shard);
    (void)snprintf(socket, sizeof(socket), "%s", kelp_test_text(shard, "address"));
    cJSON_Delete(status);
    (void)snprintf(expected, sizeof(expected),
                   "worker-0 cannot reach shard-1 at %s: its socket is gone", socket);
    move_sockets(socket + 5, "", ".away");
    (void)signal_to("kelp-worker", "worker-0", SIGKILL);
    KELP_TEST_AWAIT_FROM(&run.command, has_reason(expected), "it does not say why it waits");
    move_sockets(socket + 5, ".away", "");
    KELP_TEST_AWAIT_FROM(&run.command, has_reason(""), "it still waits");
    kelp_step_watch_await(watch, kelp_step_watch_step(watch) + GO_ON);
    end();
}
