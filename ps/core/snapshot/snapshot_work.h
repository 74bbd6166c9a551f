/*
 * What the thread that writes snapshots does next. It does one job at a time, for the newest
 * ticket of ps/core/snapshot/snapshot.h. Pure.
 *
 * Of each kind only the newest wish is kept, never a queue: orders that replace each other while
 * the disk hangs take no memory.
 *
 * Threads: one caller at a time.
 */
#ifndef KELP_PS_CORE_SNAPSHOT_SNAPSHOT_WORK_H
#define KELP_PS_CORE_SNAPSHOT_SNAPSHOT_WORK_H

#include <stdbool.h>
#include <stdint.h>

enum kelp_snapshot_job {
    KELP_SNAPSHOT_JOB_NONE,
    KELP_SNAPSHOT_JOB_PREPARE, /* get memory ready for what partitions will have to copy */
    KELP_SNAPSHOT_JOB_WRITE,   /* one partition */
    KELP_SNAPSHOT_JOB_SYNC,
};

/* All zero: nothing is wanted. */
struct kelp_snapshot_work {
    uint64_t ticket;
    uint64_t unwanted;  /* this ticket and those before it */
    uint64_t discarded; /* likewise, and the thread knows */
    enum kelp_snapshot_job job;
    uint32_t partition;
};

struct kelp_snapshot_task {
    uint64_t discard; /* first remove what is left of this ticket and those before it; 0: of none */
    enum kelp_snapshot_job job;
    uint64_t ticket;
    uint32_t partition; /* WRITE */
};

/* A new ticket, larger than any before it: those are not wanted any more. */
void kelp_snapshot_work_begin(struct kelp_snapshot_work *work, uint64_t ticket);
/* WRITE or SYNC; ignored unless the ticket is the newest and still wanted. */
void kelp_snapshot_work_want(struct kelp_snapshot_work *work, uint64_t ticket,
                             enum kelp_snapshot_job job, uint32_t partition);
/* This ticket and those before it are not wanted any more. */
void kelp_snapshot_work_discard(struct kelp_snapshot_work *work, uint64_t ticket);
/* The next task, which counts as begun; false: there is nothing to do. */
bool kelp_snapshot_work_next(struct kelp_snapshot_work *work, struct kelp_snapshot_task *ret_task);

#endif
