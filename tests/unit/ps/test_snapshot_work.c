#include "ps/core/snapshot/snapshot_work.h"
#include "tests/lib/suite.h"

static struct kelp_snapshot_work work;

static void reset(void)
{
    work = (struct kelp_snapshot_work){0};
}

static void expect(uint64_t discard, enum kelp_snapshot_job job, uint64_t ticket,
                   uint32_t partition)
{
    struct kelp_snapshot_task task;

    ck_assert(kelp_snapshot_work_next(&work, &task));
    ck_assert_uint_eq(task.discard, discard);
    ck_assert_int_eq((int)task.job, (int)job);
    ck_assert_uint_eq(task.ticket, ticket);
    if (job == KELP_SNAPSHOT_JOB_WRITE) {
        ck_assert_uint_eq(task.partition, partition);
    }
}

static void expect_nothing(void)
{
    struct kelp_snapshot_task task;

    ck_assert(!kelp_snapshot_work_next(&work, &task));
}

KELP_CASE("snapshot work", .setup = reset)

KELP_TEST(one_job_at_a_time)
{
    expect_nothing();
    kelp_snapshot_work_begin(&work, 1);
    expect(0, KELP_SNAPSHOT_JOB_PREPARE, 1, 0);
    expect_nothing();
    kelp_snapshot_work_want(&work, 1, KELP_SNAPSHOT_JOB_WRITE, 4);
    expect(0, KELP_SNAPSHOT_JOB_WRITE, 1, 4);
    kelp_snapshot_work_want(&work, 1, KELP_SNAPSHOT_JOB_SYNC, 0);
    expect(0, KELP_SNAPSHOT_JOB_SYNC, 1, 0);
    expect_nothing();
}

/* What a former ticket left is removed before anything of the next one is done. */
KELP_TEST(a_new_ticket_ends_those_before_it)
{
    kelp_snapshot_work_begin(&work, 1);
    kelp_snapshot_work_want(&work, 1, KELP_SNAPSHOT_JOB_WRITE, 4);
    kelp_snapshot_work_begin(&work, 2);
    kelp_snapshot_work_want(&work, 1, KELP_SNAPSHOT_JOB_SYNC, 0); /* late */
    expect(1, KELP_SNAPSHOT_JOB_PREPARE, 2, 0);
    kelp_snapshot_work_discard(&work, 1);
    expect_nothing();
}

KELP_TEST(what_is_discarded_is_not_written)
{
    kelp_snapshot_work_begin(&work, 3);
    expect(2, KELP_SNAPSHOT_JOB_PREPARE, 3, 0);
    kelp_snapshot_work_want(&work, 3, KELP_SNAPSHOT_JOB_WRITE, 1);
    kelp_snapshot_work_discard(&work, 3);
    expect(3, KELP_SNAPSHOT_JOB_NONE, 3, 1);
    kelp_snapshot_work_want(&work, 3, KELP_SNAPSHOT_JOB_WRITE, 1);
    expect_nothing();
}
