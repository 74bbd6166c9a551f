#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "cli/log_tail.h"
#include "cli/supervise.h"
#include "cli/trial.h"

static struct kelp_error error;

static const struct kelp_supervise_policy policy = {
    .max_failures = 3, .backoff_ms = 100, .restart = true};

static const struct kelp_supervise_end killed = {.exited = false, .lived_ms = 50};

/* A child that dies of a signal is started again, later each time it dies young. */
START_TEST(test_backoff_doubles)
{
    struct kelp_supervise_policy endless = policy;
    struct kelp_supervise_child child = {.worker = true};
    uint32_t failures = 0;
    uint32_t delay_ms = 0;
    uint32_t expected = 100;

    endless.max_failures = -1;
    for (int i = 0; i < 30; i++) {
        ck_assert_int_eq(kelp_supervise(&endless, &killed, &child, &failures, &delay_ms),
                         KELP_VERDICT_RESTART);
        ck_assert_uint_eq(delay_ms, expected);
        expected = expected * 2 > KELP_SUPERVISE_BACKOFF_MAX_MS ? KELP_SUPERVISE_BACKOFF_MAX_MS
                                                                : expected * 2;
    }
    ck_assert_uint_eq(failures, 30);
}
END_TEST

/* Having lived long, a child starts with the shortest back-off again. */
START_TEST(test_backoff_resets)
{
    struct kelp_supervise_child child = {.worker = true, .young_deaths = 5};
    struct kelp_supervise_end old = {.lived_ms = KELP_SUPERVISE_SETTLED_MS};
    uint32_t failures = 0;
    uint32_t delay_ms = 0;

    ck_assert_int_eq(kelp_supervise(&policy, &old, &child, &failures, &delay_ms),
                     KELP_VERDICT_RESTART);
    ck_assert_uint_eq(delay_ms, 100);
}
END_TEST

/* When the restarts are used up the run ends; with max_failures 0 at the first death. */
START_TEST(test_gives_up)
{
    struct kelp_supervise_policy none = policy;
    struct kelp_supervise_child child = {0};
    uint32_t failures = 0;
    uint32_t delay_ms = 0;

    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(kelp_supervise(&policy, &killed, &child, &failures, &delay_ms),
                         KELP_VERDICT_RESTART);
    }
    ck_assert_int_eq(kelp_supervise(&policy, &killed, &child, &failures, &delay_ms),
                     KELP_VERDICT_GIVE_UP);
    failures = 0;
    none.max_failures = 0;
    ck_assert_int_eq(kelp_supervise(&none, &killed, &child, &failures, &delay_ms),
                     KELP_VERDICT_GIVE_UP);
}
END_TEST

/* Bad input is not tried again, even when dead children are to stay dead. */
START_TEST(test_bad_input)
{
    struct kelp_supervise_policy dead = policy;
    struct kelp_supervise_child child = {.worker = true};
    struct kelp_supervise_end end = {.exited = true, .exit_status = 2};
    uint32_t failures = 0;
    uint32_t delay_ms = 0;

    ck_assert_int_eq(kelp_supervise(&policy, &end, &child, &failures, &delay_ms),
                     KELP_VERDICT_FAIL);
    dead.restart = false;
    ck_assert_int_eq(kelp_supervise(&dead, &end, &child, &failures, &delay_ms), KELP_VERDICT_FAIL);
    ck_assert_int_eq(kelp_supervise(&dead, &killed, &child, &failures, &delay_ms),
                     KELP_VERDICT_LEAVE);
    ck_assert_uint_eq(failures, 0);
}
END_TEST

/* A worker that leaves in order may go while enough stay; shards and coordinators may not. */
START_TEST(test_leaving_in_order)
{
    struct kelp_supervise_child worker = {.worker = true};
    struct kelp_supervise_child shard = {.worker = false};
    struct kelp_supervise_end end = {.exited = true, .exit_status = 0, .enough_left = true};
    uint32_t failures = 0;
    uint32_t delay_ms = 0;

    ck_assert_int_eq(kelp_supervise(&policy, &end, &worker, &failures, &delay_ms),
                     KELP_VERDICT_LEAVE);
    ck_assert_int_eq(kelp_supervise(&policy, &end, &shard, &failures, &delay_ms),
                     KELP_VERDICT_RESTART);
    end.enough_left = false;
    ck_assert_int_eq(kelp_supervise(&policy, &end, &worker, &failures, &delay_ms),
                     KELP_VERDICT_RESTART);
    ck_assert_uint_eq(delay_ms, KELP_SUPERVISE_LEFT_MS);
    ck_assert_uint_eq(failures, 1); /* the shard's alone */
}
END_TEST

START_TEST(test_trials)
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
END_TEST

/* The newest error is what is told, else the last line; time, level and role are left out. */
START_TEST(test_log_tail)
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
END_TEST

int main(void)
{
    Suite *suite = suite_create("supervise");
    TCase *tests = tcase_create("supervise");
    SRunner *runner = srunner_create(suite);

    tcase_add_test(tests, test_backoff_doubles);
    tcase_add_test(tests, test_backoff_resets);
    tcase_add_test(tests, test_gives_up);
    tcase_add_test(tests, test_bad_input);
    tcase_add_test(tests, test_leaving_in_order);
    tcase_add_test(tests, test_trials);
    tcase_add_test(tests, test_log_tail);
    suite_add_tcase(suite, tests);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
