#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/launch/children/supervise.h"
#include "cli/launch/children/trial.h"
#include "cli/run/log_tail.h"
#include "tests/lib/suite.h"

static struct kelp_error error;

static const struct kelp_supervise_policy policy = {
    .max_failures = 3, .backoff_ms = 100, .restart = true};

static const struct kelp_supervise_end killed = {.exited = false, .lived_ms = 50};

/* A child that dies of a signal is started again, later each time it dies young. */
KELP_TEST(test_backoff_doubles)
{
    struct kelp_supervise_policy endless = policy;
    struct kelp_supervise_child child = {.worker = true};
    struct kelp_failures failures = {.capacity = 0};
    uint32_t delay_ms = 0;
    uint32_t expected = 0; /* at once the first time */

    endless.max_failures = -1;
    for (int i = 0; i < 30; i++) {
        ck_assert_int_eq(kelp_supervise(&endless, &killed, &child, &failures, &delay_ms),
                         KELP_SUPERVISE_RESTART);
        ck_assert_uint_eq(delay_ms, expected);
        expected = expected == 0 ? 100 : expected * 2;
        if (expected > KELP_SUPERVISE_BACKOFF_MAX_MS) {
            expected = KELP_SUPERVISE_BACKOFF_MAX_MS;
        }
    }
    ck_assert_uint_eq(failures.total, 30);
}

/* Young ends for one reason, in a row, are enough at some point; another reason, a long life or an
 * end from outside begin anew, and endless restarts are endless. */
KELP_TEST(test_stuck)
{
    struct kelp_supervise_policy patient = policy;
    struct kelp_supervise_child child = {.worker = true};
    struct kelp_failures failures = {.capacity = 0};
    struct kelp_supervise_end end = {.exited = true, .exit_status = 1, .lived_ms = 50, .cause = 7};
    uint32_t delay_ms = 0;

    patient.max_failures = 1000;
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < KELP_SUPERVISE_SAME_MAX - 1; i++) {
            ck_assert_int_eq(kelp_supervise(&patient, &end, &child, &failures, &delay_ms),
                             KELP_SUPERVISE_RESTART);
        }
        struct kelp_supervise_end other = end;
        other.cause = round == 0 ? 8 : round == 1 ? 0 : end.cause;
        other.lived_ms = round == 2 ? KELP_SUPERVISE_SETTLED_MS : end.lived_ms;
        patient.max_failures = round == 3 ? -1 : 1000;
        ck_assert_int_eq(kelp_supervise(&patient, &other, &child, &failures, &delay_ms),
                         KELP_SUPERVISE_RESTART);
        child.same = 0;
    }
    patient.max_failures = 1000;
    child.same = KELP_SUPERVISE_SAME_MAX - 1;
    ck_assert_int_eq(kelp_supervise(&patient, &end, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_STUCK);
}

/* A worker whose GPU failed is started again, and stays away when that fails, whatever its status,
 * if others take its lanes. */
KELP_TEST(test_lost_gpu)
{
    const struct kelp_supervise_end lost = {
        .exited = true, .exit_status = 5, .lived_ms = 50, .goes_on = true};
    struct kelp_supervise_end gone = lost, settled = lost, alone = lost;
    struct kelp_failures failures = {.capacity = 0};
    uint32_t delay_ms = 0;

    gone.exit_status = 2;
    settled.lived_ms = KELP_SUPERVISE_SETTLED_MS;
    alone.goes_on = false;
    for (int second = 0; second < 2; second++) {
        struct kelp_supervise_child child = {.worker = true};
        ck_assert_int_eq(kelp_supervise(&policy, &lost, &child, &failures, &delay_ms),
                         KELP_SUPERVISE_RESTART);
        ck_assert_int_eq(
            kelp_supervise(&policy, second ? &gone : &lost, &child, &failures, &delay_ms),
            KELP_SUPERVISE_LEAVE);
    }
    failures.total = 0;
    struct kelp_supervise_child child = {.worker = true};
    for (int i = 0; i < policy.max_failures; i++) { /* where the job needs it, or it had settled */
        ck_assert_int_eq(
            kelp_supervise(&policy, i % 2 ? &settled : &alone, &child, &failures, &delay_ms),
            KELP_SUPERVISE_RESTART);
    }
    ck_assert_int_eq(kelp_supervise(&policy, &alone, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_GIVE_UP);
    failures.total = 0;
    struct kelp_supervise_child fresh = {.worker = true}, shard = {.shard = true, .lost = true};
    ck_assert_int_eq(kelp_supervise(&policy, &gone, &fresh, &failures, &delay_ms),
                     KELP_SUPERVISE_FAIL);
    ck_assert_int_eq(kelp_supervise(&policy, &gone, &shard, &failures, &delay_ms),
                     KELP_SUPERVISE_FAIL);
}

/* A back-off that is longer than ours at its longest is kept as it is. */
KELP_TEST(test_long_backoff)
{
    struct kelp_supervise_policy slow = {.max_failures = -1, .backoff_ms = 600000, .restart = true};
    struct kelp_supervise_child child = {.young_deaths = 7};
    struct kelp_failures failures = {.capacity = 0};
    uint32_t delay_ms = 0;

    ck_assert_int_eq(kelp_supervise(&slow, &killed, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_RESTART);
    ck_assert_uint_eq(delay_ms, 600000);
}

/* Having lived long, a child is started at once again. */
KELP_TEST(test_backoff_resets)
{
    struct kelp_supervise_child child = {.worker = true, .young_deaths = 5};
    struct kelp_supervise_end old = {.lived_ms = KELP_SUPERVISE_SETTLED_MS};
    struct kelp_failures failures = {.capacity = 0};
    uint32_t delay_ms = 0;

    ck_assert_int_eq(kelp_supervise(&policy, &old, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_RESTART);
    ck_assert_uint_eq(delay_ms, 0);
    ck_assert_int_eq(kelp_supervise(&policy, &killed, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_RESTART);
    ck_assert_uint_eq(delay_ms, 100);
}

/* When the restarts are used up the run ends; with max_failures 0 at the first death. */
KELP_TEST(test_gives_up)
{
    struct kelp_supervise_policy none = policy;
    struct kelp_supervise_child child = {0};
    struct kelp_failures failures = {.capacity = 0};
    uint32_t delay_ms = 0;

    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(kelp_supervise(&policy, &killed, &child, &failures, &delay_ms),
                         KELP_SUPERVISE_RESTART);
    }
    ck_assert_int_eq(kelp_supervise(&policy, &killed, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_GIVE_UP);
    failures.total = 0;
    none.max_failures = 0;
    ck_assert_int_eq(kelp_supervise(&none, &killed, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_GIVE_UP);
}

/* Failures count for as long as the window is: three in any 1000 ms, of all children together. */
KELP_TEST(test_window)
{
    static const struct {
        uint64_t at_ms;
        enum kelp_supervise_verdict verdict;
    } ends[] = {
        {100, KELP_SUPERVISE_RESTART},  {200, KELP_SUPERVISE_RESTART},
        {900, KELP_SUPERVISE_RESTART},  {1099, KELP_SUPERVISE_GIVE_UP},
        {1100, KELP_SUPERVISE_RESTART}, {1199, KELP_SUPERVISE_GIVE_UP},
        {1200, KELP_SUPERVISE_RESTART}, {1899, KELP_SUPERVISE_GIVE_UP},
        {1900, KELP_SUPERVISE_RESTART}, {9000, KELP_SUPERVISE_RESTART},
        {9000, KELP_SUPERVISE_RESTART}, {9000, KELP_SUPERVISE_RESTART},
        {9999, KELP_SUPERVISE_GIVE_UP},
    };
    struct kelp_supervise_policy windowed = policy;
    struct kelp_supervise_child children[2] = {{.worker = true}, {.worker = false}};
    struct kelp_failures failures;
    uint32_t delay_ms = 0;
    char text[128];

    windowed.window_ms = 1000;
    ck_assert_int_eq(kelp_failures_init(&failures, &windowed, &error), KELP_OK);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(ends); i++) {
        struct kelp_supervise_end end = {.now_ms = ends[i].at_ms, .lived_ms = 50};
        ck_assert_msg(kelp_supervise(&windowed, &end, &children[i % 2], &failures, &delay_ms) ==
                          ends[i].verdict,
                      "end %zu", i);
    }
    ck_assert_uint_eq(failures.total, 9);
    kelp_failures_fini(&failures);
    kelp_supervise_limit_text(&windowed, text, sizeof(text));
    ck_assert_str_eq(text, "failure.max_failures=3 restarts within failure.window=1s are used up");
    kelp_supervise_limit_text(&policy, text, sizeof(text));
    ck_assert_str_eq(text, "failure.max_failures=3 restarts are used up");
}

/* Bad input is not tried again, even when dead children are to stay dead. */
KELP_TEST(test_bad_input)
{
    struct kelp_supervise_policy dead = policy;
    struct kelp_supervise_child child = {.worker = true};
    struct kelp_supervise_end end = {.exited = true, .exit_status = 2};
    struct kelp_failures failures = {.capacity = 0};
    uint32_t delay_ms = 0;

    ck_assert_int_eq(kelp_supervise(&policy, &end, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_FAIL);
    dead.restart = false;
    ck_assert_int_eq(kelp_supervise(&dead, &end, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_FAIL);
    ck_assert_int_eq(kelp_supervise(&dead, &killed, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_LEAVE);
    ck_assert_uint_eq(failures.total, 0);
}

/* A program of the user's own that does nothing before training is not tried for long: it cannot be
 * executed, ends for one reason, or ends as if all were done. Once something was trained it may be
 * anything. */
KELP_TEST(test_program_before_training)
{
    static const struct {
        int exit_status;
        bool early;
        enum kelp_supervise_verdict verdicts[2];
    } ends[] = {
        {127, false, {KELP_SUPERVISE_FAIL, KELP_SUPERVISE_FAIL}},
        {126, true, {KELP_SUPERVISE_FAIL, KELP_SUPERVISE_FAIL}},
        {1, true, {KELP_SUPERVISE_RESTART, KELP_SUPERVISE_FAIL}},
        {1, false, {KELP_SUPERVISE_RESTART, KELP_SUPERVISE_RESTART}},
        {0, true, {KELP_SUPERVISE_RESTART, KELP_SUPERVISE_FAIL}},
        {0, false, {KELP_SUPERVISE_RESTART, KELP_SUPERVISE_RESTART}},
    };
    uint32_t delay_ms = 0;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(ends); i++) {
        struct kelp_supervise_child child = {.worker = true};
        struct kelp_failures failures = {.capacity = 0};
        struct kelp_supervise_end end = {.exited = true,
                                         .exit_status = ends[i].exit_status,
                                         .program = true,
                                         .early = ends[i].early,
                                         .cause = (uint64_t)ends[i].exit_status};
        for (int time = 0; time < 2; time++) {
            ck_assert_msg(kelp_supervise(&policy, &end, &child, &failures, &delay_ms) ==
                              ends[i].verdicts[time],
                          "end %zu, time %d", i, time);
        }
        /* kelp-worker itself is started again. */
        end.program = false;
        ck_assert(kelp_supervise(&policy, &end, &child, &failures, &delay_ms) !=
                  KELP_SUPERVISE_FAIL);
    }
}

/* A worker that leaves in order may go while enough stay; shards and coordinators may not. What a
 * shard leaves was given to others before: that is no failure. */
KELP_TEST(test_leaving_in_order)
{
    struct kelp_supervise_child worker = {.worker = true};
    struct kelp_supervise_child shard = {.shard = true};
    struct kelp_supervise_child coordinator = {.worker = false};
    struct kelp_supervise_end end = {.exited = true, .exit_status = 0, .enough_left = true};
    struct kelp_failures failures = {.capacity = 0};
    uint32_t delay_ms = 0;

    ck_assert_int_eq(kelp_supervise(&policy, &end, &worker, &failures, &delay_ms),
                     KELP_SUPERVISE_LEAVE);
    ck_assert_int_eq(kelp_supervise(&policy, &end, &coordinator, &failures, &delay_ms),
                     KELP_SUPERVISE_RESTART);
    ck_assert_int_eq(kelp_supervise(&policy, &end, &shard, &failures, &delay_ms),
                     KELP_SUPERVISE_RESTART);
    ck_assert_uint_eq(delay_ms, KELP_SUPERVISE_LEFT_MS);
    end.lived_ms = KELP_SUPERVISE_SETTLED_MS;
    ck_assert_int_eq(kelp_supervise(&policy, &end, &shard, &failures, &delay_ms),
                     KELP_SUPERVISE_RESTART);
    ck_assert_uint_eq(delay_ms, 0);
    end.enough_left = false;
    ck_assert_int_eq(kelp_supervise(&policy, &end, &worker, &failures, &delay_ms),
                     KELP_SUPERVISE_RESTART);
    ck_assert_uint_eq(delay_ms, KELP_SUPERVISE_LEFT_MS);
    ck_assert_uint_eq(failures.total, 1); /* the coordinator's alone */
}

KELP_TEST(test_trials)
{
    static const char *const wrong_faults[] = {"",
                                               "worker-1",
                                               "worker-1:",
                                               ":kill@step=1",
                                               "worker:kill@step=1",
                                               "worker-x:kill@step=1",
                                               "etcd-0:kill@step=1",
                                               "worker-99999999999999999999999999999:kill"};
    static const char *const wrong_timed[] = {"",
                                              "step=:add-worker",
                                              "step=-1:add-worker",
                                              "step=1:remove-worker",
                                              "step=1:kill=",
                                              "step=1:kill=etcd",
                                              "epoch=1:add-worker",
                                              "step=99999999999999999999:add-worker",
                                              "step=5 :add-worker"};
    struct kelp_trials trials = {0};

    ck_assert_int_eq(kelp_trials_add_fault(&trials, "worker-1:kill@step=120", &error), KELP_OK);
    ck_assert_str_eq(trials.faults[0].id, "worker-1");
    ck_assert_str_eq(trials.faults[0].spec, "kill@step=120");
    ck_assert_int_eq(kelp_trials_add_timed(&trials, "step=100:add-worker", &error), KELP_OK);
    ck_assert_int_eq(kelp_trials_add_timed(&trials, "step=7:kill=shard-0", &error), KELP_OK);
    ck_assert_uint_eq(trials.timed[0].step, 100);
    ck_assert_int_eq(trials.timed[0].action, KELP_TIMED_ADD_WORKER);
    ck_assert_int_eq(trials.timed[1].action, KELP_TIMED_KILL);
    ck_assert_str_eq(trials.timed[1].id, "shard-0");
    ck_assert_uint_eq(kelp_trials_added_workers(&trials), 1);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(wrong_faults); i++) {
        ck_assert_msg(kelp_trials_add_fault(&trials, wrong_faults[i], &error) == KELP_ERR_INVALID,
                      "'%s'", wrong_faults[i]);
    }
    ck_assert_int_eq(kelp_trials_add_fault(&trials, "worker-1:stall@step=7", &error),
                     KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "worker-1 has the fault kill@step=120 already"));
    for (size_t i = 0; i < KELP_ARRAY_COUNT(wrong_timed); i++) {
        ck_assert_msg(kelp_trials_add_timed(&trials, wrong_timed[i], &error) == KELP_ERR_INVALID,
                      "'%s'", wrong_timed[i]);
    }
    ck_assert_uint_eq(trials.fault_count, 1);
    ck_assert_uint_eq(trials.timed_count, 2);
    for (uint32_t i = 2; i < KELP_TRIALS_MAX; i++) {
        ck_assert_int_eq(kelp_trials_add_timed(&trials, "step=1:add-worker", &error), KELP_OK);
    }
    ck_assert_int_eq(kelp_trials_add_timed(&trials, "step=1:add-worker", &error), KELP_ERR_LIMIT);
}

/* The newest error is what is told, else what a program printed itself, else the last line; time,
 * level and role are left out. */
KELP_TEST(test_log_tail)
{
    static const struct {
        const char *log;
        const char *message;
    } cases[] = {
        {"", ""},
        {"\n\n", ""},
        {"Segmentation fault", "Segmentation fault"},
        {"2026-01-31T12:00:00.123Z info  worker/worker-0 joined\n", "joined"},
        {"2026-01-31T12:00:00.123Z error worker/worker-0 data fingerprint differs step=3\n"
         "2026-01-31T12:00:00.124Z info  worker/worker-0 leaves\n",
         "data fingerprint differs step=3"},
        {"2026-01-31T12:00:00.123Z error ps/shard-0 first\n"
         "2026-01-31T12:00:00.124Z error ps/shard-0 second\nplain words\n",
         "second"},
        {"2026-01-31T12:00:00.123Z info  worker/worker-0 joined\nmine: no such column\n"
         "2026-01-31T12:00:00.124Z info  worker/worker-0 leaves\n",
         "mine: no such column"},
        {"2026-01-31T12:00:00.123Z error\n", "2026-01-31T12:00:00.123Z error"},
    };
    char message[64];
    char small[8];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        kelp_log_tail_message(cases[i].log, strlen(cases[i].log), message, sizeof(message));
        ck_assert_str_eq(message, cases[i].message);
    }
    kelp_log_tail_message("a long line without end", 23, small, sizeof(small));
    ck_assert_str_eq(small, "a long ");
}

/* What came last, and from a program: how it ended says more than a line of Kelp's log. */
KELP_TEST(test_log_tail_printed)
{
    static const char *const logs[][2] = {
        {"", ""},
        {"mine: no such column\n2026-01-31T12:00:00.124Z info  worker/worker-0 leaves\n", ""},
        {"2026-01-31T12:00:00.124Z info  worker/worker-0 leaves\nfirst\nmine: no such column\n",
         "mine: no such column"},
        {"a line that is longer than there is room for", "a line that is longer t"},
    };
    char path[] = "/tmp/kelp-test-log-XXXXXX";
    char message[24];
    const int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(logs); i++) {
        const size_t bytes = strlen(logs[i][0]);
        ck_assert_int_eq(ftruncate(fd, 0), 0);
        ck_assert_int_eq(pwrite(fd, logs[i][0], bytes, 0), (ssize_t)bytes);
        kelp_log_tail_printed(path, 0, message, sizeof(message));
        ck_assert_str_eq(message, logs[i][1]);
    }
    ck_assert_int_eq(close(fd), 0);
    ck_assert_int_eq(unlink(path), 0);
}

/* Python ends with 1 after an exception: before it took part that is a mistake, later anything. */
KELP_TEST(test_python)
{
    struct kelp_supervise_child child = {.worker = true};
    struct kelp_failures failures = {.capacity = 0};
    struct kelp_supervise_end end = {
        .exited = true, .exit_status = 1, .lived_ms = 50, .program = true, .python = true};
    uint32_t delay_ms = 0;

    ck_assert_int_eq(kelp_supervise(&policy, &end, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_FAIL);
    end.joined = true;
    ck_assert_int_eq(kelp_supervise(&policy, &end, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_RESTART);
    end.joined = false;
    end.exit_status = 75;
    ck_assert_int_eq(kelp_supervise(&policy, &end, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_RESTART);
    end.exit_status = 1;
    end.python = false;
    ck_assert_int_eq(kelp_supervise(&policy, &end, &child, &failures, &delay_ms),
                     KELP_SUPERVISE_RESTART);
}

/* Once the job is over for it, a program's exit status is no matter of the run. */
KELP_TEST(test_over)
{
    static const int statuses[] = {0, 1, 2, 3, 127};
    struct kelp_supervise_child child = {.worker = true};
    struct kelp_failures failures = {.capacity = 0};
    uint32_t delay_ms = 0;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(statuses); i++) {
        struct kelp_supervise_end end = {.exited = true,
                                         .exit_status = statuses[i],
                                         .program = true,
                                         .over = true,
                                         .enough_left = true};
        ck_assert_int_eq(kelp_supervise(&policy, &end, &child, &failures, &delay_ms),
                         KELP_SUPERVISE_LEAVE);
        end.enough_left = false; /* another generation may need it */
        ck_assert_int_eq(kelp_supervise(&policy, &end, &child, &failures, &delay_ms),
                         KELP_SUPERVISE_RESTART);
        ck_assert_uint_eq(delay_ms, KELP_SUPERVISE_LEFT_MS);
    }
    ck_assert_uint_eq(failures.total, 0);
}
