#include <stdio.h>
#include <string.h>

#include "cli/chaos/report/chaos_judge.h"
#include "tests/lib/suite.h"

#define QUIET "0123456789abcdef0123456789abcdef"

static struct kelp_chaos_report report;
static struct kelp_error error;

/* A run with one fault, and a restore after it. */
static void setup(void)
{
    const struct kelp_chaos_fault kill = {
        .kind = KELP_CHAOS_KILL, .role = KELP_CHAOS_HOST, .for_ms = 500};

    ck_assert_int_eq(kelp_chaos_report_init(&report, &error), KELP_OK);
    report.planned = 1;
    report.checkpoint_step = 40;
    (void)snprintf(report.quiet_digest, sizeof(report.quiet_digest), QUIET);
    (void)kelp_chaos_report_look(
        &report,
        &(struct kelp_chaos_look){.at_ms = 10, .generation = 1, .version = 50, .step = 50});
    kelp_chaos_report_fault(&report, &kill, "host-1", false, 20);
}

static void go_back_to(uint64_t step)
{
    (void)kelp_chaos_report_look(
        &report,
        &(struct kelp_chaos_look){.at_ms = 90, .generation = 2, .version = step, .step = step});
    kelp_chaos_report_restored(&report, 2, step);
}

static void teardown(void)
{
    kelp_chaos_report_fini(&report);
}

KELP_CASE("judge", .setup = setup, .teardown = teardown)

KELP_TEST(test_equal)
{
    ck_assert(kelp_chaos_judge(&report, QUIET, "", 2));
    ck_assert(report.equal);
    ck_assert_str_eq(report.verdict, "equal: both runs end with " QUIET "; 1 fault");
}

/* Another digest, or other records on the way to the same one. */
KELP_TEST(test_different)
{
    ck_assert(!kelp_chaos_judge(&report, "ff", "; first different at step 5", 2));
    ck_assert(!report.equal);
    ck_assert_str_eq(report.verdict, "DIFFERENT: the quiet run ends with " QUIET
                                     ", the run with 1 fault with ff; first different at step 5");
    ck_assert(!kelp_chaos_judge(&report, QUIET, "; first different at step 5", 2));
    ck_assert(!report.equal);
}

/* Going back is right without a backup, as far as the newest checkpoint. */
KELP_TEST(test_restores)
{
    go_back_to(40);
    ck_assert(kelp_chaos_judge(&report, QUIET, "", 1));
    ck_assert(!kelp_chaos_judge(&report, QUIET, "", 2));
    ck_assert_str_eq(report.verdict, "equal, but generation 2 went back to step 40 though each "
                                     "partition had a replica that lived");
    report.events[0].alone = true;
    ck_assert(kelp_chaos_judge(&report, QUIET, "", 2));
    kelp_chaos_report_restored(&report, 2, 30);
    ck_assert(!kelp_chaos_judge(&report, QUIET, "", 1));
    ck_assert_str_eq(report.verdict, "equal, but generation 2 went back to step 30 where the "
                                     "checkpoint of step 40 was committed");
}

/* Steps that were lost without a restore that was seen. */
KELP_TEST(test_steps_again)
{
    report.steps_recomputed = 7;
    ck_assert(kelp_chaos_judge(&report, QUIET, "", 1));
    ck_assert(!kelp_chaos_judge(&report, QUIET, "", 2));
    ck_assert_str_eq(report.verdict, "equal, but 7 steps were computed again though each partition "
                                     "had a replica that lived");
}

/* A run that ended before its faults were done proves too little. */
KELP_TEST(test_too_short)
{
    report.planned = 3;
    ck_assert(!kelp_chaos_judge(&report, QUIET, "", 2));
    ck_assert_str_eq(report.verdict,
                     "equal, but the run ended before 2 of 3 faults found something "
                     "to hit: give it more --epochs");
}
