/* The end of the job in etcd, and the steps that are computed again. */
#include <stdio.h>
#include <string.h>

#include "coordinator/term/parts/job_end.h"
#include "coordinator/term/parts/step_count.h"
#include "tests/lib/suite.h"

static struct kelp_job_end end;
static struct kelp_placement placement;

static void setup(void)
{
    memset(&end, 0, sizeof(end));
    memset(&placement, 0, sizeof(placement));
}

static struct kelp_job_state state_of(const char *name)
{
    struct kelp_job_state state = {.reason = "a reason"};
    (void)snprintf(state.state, sizeof(state.state), "%s", name);
    return state;
}

static void report(const char *name, bool settled)
{
    struct kelp_job_state state = state_of(name);
    kelp_job_end_report(&end, &state, settled);
}

/* What goes to etcd now; "": nothing. */
static const char *send(uint64_t now_ms)
{
    const struct kelp_job_state *due = kelp_job_end_due(&end, now_ms);
    if (due == NULL) {
        return "";
    }
    kelp_job_end_sent(&end);
    return end.writing.state;
}

KELP_CASE("job_end", .setup = setup)

/* One write at a time; one that was not taken is tried again, as the newest state. */
KELP_TEST(written_until_taken)
{
    report("starting", false);
    ck_assert_str_eq(send(1000), "starting");
    report("running", false);
    ck_assert_str_eq(send(1000), "");
    ck_assert(!kelp_job_end_written(&end, false, 1000));
    ck_assert_str_eq(send(999 + KELP_COORDINATOR_RETRY_MS), "");
    ck_assert_str_eq(send(1000 + KELP_COORDINATOR_RETRY_MS), "running");
    ck_assert(!kelp_job_end_written(&end, true, 2000));
    ck_assert_str_eq(send(9000), "");
    ck_assert(!end.ended);
}

/* The end is on record once etcd has it, and nothing is written over it: not what comes later, and
 * not what came while it was on its way. */
KELP_TEST(an_end_stays)
{
    report("done", true);
    ck_assert_str_eq(send(1000), "done");
    report("starting", false); /* a shard is lost meanwhile */
    ck_assert(kelp_job_end_written(&end, true, 1000));
    ck_assert(end.ended);
    ck_assert_str_eq(send(9000), "");
    report("running", false);
    ck_assert_str_eq(send(9000), "");
}

/* An end of an earlier leader: final if its generation runs, void if a newer one is opened. */
KELP_LOOP_TEST(found, 0, 2)
{
    struct kelp_job_state state = state_of("failed");
    kelp_job_end_read(&end, &state, 4);
    ck_assert(end.found);
    placement.map.generation = 4;
    placement.state = KELP_PLACEMENT_LOADING;
    ck_assert_int_eq(kelp_job_end_judge(&end, &placement, false, &state), KELP_VERDICT_NONE);
    report("starting", false); /* it stays on record until it is judged */
    ck_assert_str_eq(send(1000), "");
    placement.map.generation = _i == 0 ? 4 : 5;
    placement.state = KELP_PLACEMENT_RUNNING;
    ck_assert_int_eq(kelp_job_end_judge(&end, &placement, false, &state),
                     _i == 0 ? KELP_VERDICT_FINAL : KELP_VERDICT_AGAIN);
    ck_assert_str_eq(state.reason, "a reason");
    ck_assert_int_eq(end.ended, _i == 0);
    ck_assert_int_eq(kelp_job_end_judge(&end, &placement, false, &state), KELP_VERDICT_NONE);
    report("running", false);
    ck_assert_str_eq(send(1000), _i == 0 ? "" : "running");
}

/* Done: final once the last record has come from the shards, and not before. */
KELP_TEST(found_done)
{
    struct kelp_job_state state = state_of("done");
    kelp_job_end_read(&end, &state, 4);
    placement.map.generation = 4;
    placement.state = KELP_PLACEMENT_RUNNING;
    ck_assert_int_eq(kelp_job_end_judge(&end, &placement, false, &state), KELP_VERDICT_NONE);
    ck_assert(!end.ended);
    ck_assert_int_eq(kelp_job_end_judge(&end, &placement, true, &state), KELP_VERDICT_FINAL);
    ck_assert(end.ended);
}

/* A state that is no end, and an end without a map, mean nothing. */
KELP_TEST(not_found)
{
    struct kelp_job_state state = state_of("running");
    kelp_job_end_read(&end, &state, 4);
    ck_assert(!end.found);
    state = state_of("done");
    kelp_job_end_read(&end, &state, 0);
    ck_assert(!end.found);
}

/* By the shards, if they have said where training is; else by etcd and the files. */
KELP_TEST(steps_computed_again)
{
    struct kelp_step_count count = {.recomputed = 0};
    kelp_step_count_read(&count, 20, 3);
    ck_assert_uint_eq(kelp_step_count_restore(&count, 15, 18), 20);
    ck_assert_uint_eq(count.recomputed, 8);
    /* Lost before it reported anything: it was not further than its beginning. */
    ck_assert_uint_eq(kelp_step_count_restore(&count, 15, 18), 0);
    kelp_step_count_progress(&count, 17);
    ck_assert_uint_eq(kelp_step_count_restore(&count, 10, 18), 17);
    ck_assert_uint_eq(count.recomputed, 15);
    kelp_step_count_restored(&count, 12);
    ck_assert_uint_eq(count.restored, 12);
    ck_assert_uint_eq(count.recomputed, 15);
}
