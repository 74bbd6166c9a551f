#include "ps/core/snapshot/snapshot_work.h"

#include <assert.h>

void kelp_snapshot_work_begin(struct kelp_snapshot_work *work, uint64_t ticket)
{
    assert(ticket > work->ticket);
    work->unwanted = ticket - 1;
    work->ticket = ticket;
    work->job = KELP_SNAPSHOT_JOB_PREPARE;
}

void kelp_snapshot_work_want(struct kelp_snapshot_work *work, uint64_t ticket,
                             enum kelp_snapshot_job job, uint32_t partition)
{
    if (work->ticket == ticket && work->unwanted < ticket) {
        work->job = job;
        work->partition = partition;
    }
}

void kelp_snapshot_work_discard(struct kelp_snapshot_work *work, uint64_t ticket)
{
    if (work->unwanted < ticket) {
        work->unwanted = ticket;
    }
    if (work->ticket <= ticket) {
        work->job = KELP_SNAPSHOT_JOB_NONE;
    }
}

bool kelp_snapshot_work_next(struct kelp_snapshot_work *work, struct kelp_snapshot_task *ret_task)
{
    if (work->job == KELP_SNAPSHOT_JOB_NONE && work->unwanted == work->discarded) {
        return false;
    }
    *ret_task = (struct kelp_snapshot_task){
        .discard = work->unwanted == work->discarded ? 0 : work->unwanted,
        .job = work->job,
        .ticket = work->ticket,
        .partition = work->partition};
    work->discarded = work->unwanted;
    work->job = KELP_SNAPSHOT_JOB_NONE;
    return true;
}
