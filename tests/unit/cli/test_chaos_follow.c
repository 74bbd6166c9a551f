/* When kelp chaos takes a run to hang: time in which workers start does not count. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/chaos/chaos_follow.h"
#include "common/base/clock.h"
#include "common/process/process.h"
#include "tests/lib/suite.h"

#define LIMIT_MS 20000
#define LOOK_MS  1000 /* between two looks */
#define BUSY     "while :; do :; done"
#define HAS_BUSY "(while kill -0 $$; do :; done) & wait" /* which ends with sh */
#define WAITS    "sleep 60; :" /* as the last command it would take the place of sh */
#define AWAIT_MS 20000         /* far beyond what the slowest machine needs */

static struct kelp_chaos_report report;
static struct kelp_chaos_follow follow;
static struct kelp_process *child;
static struct kelp_error error;

static Kelp__V1__WorkerStatus worker;
static Kelp__V1__WorkerStatus *workers[] = {&worker};
static Kelp__V1__Targets targets;
static Kelp__V1__StatusReply reply;

static void setup(void)
{
    const uint64_t now = kelp_clock_ms();

    memset(&report, 0, sizeof(report));
    follow = (struct kelp_chaos_follow){.report = &report, .alive_ms = now, .status_ms = now};
    worker = (Kelp__V1__WorkerStatus)KELP__V1__WORKER_STATUS__INIT;
    worker.id = "worker-0";
    targets = (Kelp__V1__Targets)KELP__V1__TARGETS__INIT;
    targets.workers_min = 1;
    reply = (Kelp__V1__StatusReply)KELP__V1__STATUS_REPLY__INIT;
    reply.workers = workers;
    reply.n_workers = 1;
    reply.targets = &targets;
    reply.reason = "training rests";
}

static void teardown(void)
{
    kelp_process_destroy(child);
    child = NULL;
}

static void start(const char *id, const char *script)
{
    const char *const argv[] = {"sh", "-c", script, "--id", id, NULL};
    const struct kelp_process_options options = {
        .argv = argv, .stdout_fd = KELP_PROCESS_NULL, .stderr_fd = KELP_PROCESS_INHERIT};
    kelp_status status = kelp_process_start(&options, &child, &error);

    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

static kelp_status look(void)
{
    const pid_t parent = getpid();
    const struct kelp_chaos_stall stall = {
        .limit_ms = LIMIT_MS, .run_path = "run", .parents = &parent, .parent_count = 1};

    return kelp_chaos_follow_stall(&follow, &stall, &error);
}

/* As if so much time had passed since the last look. */
static kelp_status look_after(uint64_t elapsed_ms)
{
    follow.still_until_ms = kelp_clock_ms() - elapsed_ms;
    return look();
}

/* For so long without a step. */
static kelp_status look_for(uint64_t ms)
{
    kelp_status status = look();

    for (uint64_t looks = ms / LOOK_MS; status == KELP_OK && looks > 0; looks--) {
        status = look_after(LOOK_MS);
    }
    return status;
}

static void end_child(void)
{
    kelp_process_destroy(child);
    child = NULL;
}

/* Until it computes, or until it does not: a process computes for a moment when it starts. */
static void await(bool computes)
{
    const uint64_t end = kelp_clock_ms() + AWAIT_MS;

    do {
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        follow.still_ms = 0;
        ck_assert_int_eq(look_after(LOOK_MS), KELP_OK);
        ck_assert_uint_lt(kelp_clock_ms(), end);
    } while ((follow.still_ms == 0) != computes);
    follow.still_ms = 0;
}

KELP_CASE("chaos_follow", .timeout_s = 300, .setup = setup, .teardown = teardown)

/* Nobody but a shard computes: the line says since when and why. */
KELP_TEST(hangs_without_a_worker)
{
    follow.status = &reply;
    start("shard-0", BUSY);
    ck_assert_int_eq(look_for(LIMIT_MS / 2), KELP_OK);
    ck_assert_int_eq(look_for(LIMIT_MS), KELP_ERR_TIMEOUT);
    ck_assert_str_eq(error.text,
                     "no step was made for 20 s after step 0: training rests; see run/logs");
}

/* One that imports a framework, itself or in a process that it has started; on a host too. */
KELP_TEST(goes_on_while_a_worker_starts)
{
    static const struct {
        const char *id;
        const char *script;
    } cases[] = {{"worker-0", BUSY}, {"host-1.worker-0", BUSY}, {"worker-3", HAS_BUSY}};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        start(cases[i].id, cases[i].script);
        await(true);
        ck_assert_int_eq(look_for(LIMIT_MS), KELP_OK);
        ck_assert_uint_lt(follow.still_ms, LIMIT_MS / 2); /* sh starts the other one */
        end_child();
    }
}

/* One that waits, for a leader that never comes, is what hangs. */
KELP_TEST(hangs_while_a_worker_waits)
{
    start("worker-0", WAITS);
    await(false);
    ck_assert_int_eq(look_for(LIMIT_MS), KELP_ERR_TIMEOUT);
    ck_assert_str_eq(
        error.text, "no step was made for 20 s after step 0: no coordinator answers; see run/logs");
}

/* One that has joined has lanes to compute; another one is not waited for, unless it is needed. */
KELP_TEST(enough_have_joined)
{
    follow.status = &reply;
    start("worker-0", BUSY);
    ck_assert_int_eq(look_for(LIMIT_MS), KELP_ERR_TIMEOUT);
    end_child();
    start("worker-1", BUSY);
    ck_assert_int_eq(look_after(LOOK_MS), KELP_ERR_TIMEOUT);
    follow.still_ms = 0;
    targets.workers_min = 2;
    ck_assert_int_eq(look_for(LIMIT_MS), KELP_OK);
}

/* An answer from before everything was killed says nothing. */
KELP_TEST(old_answers_do_not_count)
{
    follow.status = &reply;
    follow.status_ms -= 10000;
    start("worker-0", BUSY);
    ck_assert_int_eq(look_for(LIMIT_MS), KELP_OK);
}

/* What was left out stays out: the time counts from the worker's wait on. A step begins anew. */
KELP_TEST(counts_from_where_it_hangs)
{
    start("worker-0", BUSY);
    await(true);
    ck_assert_int_eq(look_for(LIMIT_MS), KELP_OK);
    end_child();
    follow.still_ms = 0;
    ck_assert_int_eq(look_for(LIMIT_MS / 2), KELP_OK);
    ck_assert_uint_ge(follow.still_ms, LIMIT_MS / 2);
    follow.alive_ms++;
    ck_assert_int_eq(look_for(LIMIT_MS / 2), KELP_OK);
    ck_assert_int_eq(look_for(LIMIT_MS), KELP_ERR_TIMEOUT);
}

/* Time in which kelp chaos was stopped, maybe with all the others, says nothing of the run. */
KELP_TEST(its_own_stop_does_not_count)
{
    ck_assert_int_eq(look(), KELP_OK);
    follow.still_ms = 0;
    ck_assert_int_eq(look_after(2 * LIMIT_MS), KELP_OK);
    ck_assert_uint_eq(follow.still_ms, KELP_CHAOS_STILL_MOST_MS);
}

/* A fault that lasts is no stall before its end. */
KELP_TEST(a_fault_lasts)
{
    follow.alive_ms = kelp_clock_ms() + 5000;
    ck_assert_int_eq(look(), KELP_OK);
    ck_assert_uint_eq(follow.still_until_ms, follow.alive_ms);
    ck_assert_uint_eq(follow.still_ms, 0);
}
