/*
 * The cluster of a run under chaos: who is there, whom a fault would hit, and the doing and undoing
 * of a single fault.
 *
 * Threads: one, which lives as long as the process.
 */
#ifndef KELP_CLI_CHAOS_CHAOS_TARGET_H
#define KELP_CLI_CHAOS_CHAOS_TARGET_H

#include "cli/chaos/chaos_ask.h"
#include "cli/chaos/chaos_child.h"
#include "cli/chaos/chaos_etcd.h"
#include "cli/chaos/chaos_net.h"
#include "cli/chaos/chaos_process.h"
#include "cli/chaos/plan/chaos_plan.h"
#include "cli/chaos/report/chaos_replicas.h"
#include "cli/faultdisk/faultdisk.h"
#include "proto/kelp.pb-c.h"

#define KELP_CHAOS_UNDO_MAX     64    /* faults that last, at one time */
#define KELP_CHAOS_SLOW_MS      30    /* of each write and sync on a slow disk */
#define KELP_CHAOS_RENEW_MS     25    /* between two looks at the connections of who is split off */
#define KELP_CHAOS_DISK_MORE_MS 15000 /* how long a disk's fault waits for a call to hit */

enum kelp_chaos_undo_kind {
    KELP_CHAOS_UNDO_RESUME, /* SIGCONT */
    KELP_CHAOS_UNDO_GONE,   /* nothing: a process that was asked to end is watched until it has */
    KELP_CHAOS_UNDO_DISK,   /* let it work again */
    KELP_CHAOS_UNDO_SPLIT,  /* let everything through again */
    KELP_CHAOS_UNDO_LOSS    /* the same */
};

struct kelp_chaos_undo {
    enum kelp_chaos_undo_kind kind;
    uint64_t at_ms;
    uint64_t renew_ms;                 /* SPLIT, LOSS: next look */
    struct kelp_chaos_process process; /* RESUME, GONE, SPLIT, LOSS */
    struct kelp_chaos_split *split;    /* SPLIT, LOSS; owned */
    uint32_t event;                    /* GONE: the caller's number of the fault */
};

struct kelp_chaos_target {
    struct kelp_chaos_child train;
    struct kelp_chaos_etcd *etcd; /* owned */
    struct kelp_faultdisk *disk;  /* NULL: the plan has no faults of it; owned */
    uint32_t coordinators;
    uint32_t shards;
    uint32_t workers;
    uint32_t replicas;
    struct kelp_chaos_asks asks;
    const Kelp__V1__StatusReply *status; /* newest of the coordinator; borrowed, may be NULL */
    uint64_t status_ms;
    uint64_t progress_ms; /* CLOCK_MONOTONIC of the last step seen */
    struct kelp_chaos_undo undos[KELP_CHAOS_UNDO_MAX];
    uint32_t undo_count;
    struct kelp_chaos_hits hits;        /* shards that were hit */
    uint32_t gone[KELP_CHAOS_UNDO_MAX]; /* events whose process has ended since they were taken */
    uint32_t gone_count;
};

/* One fault, tried now. */
struct kelp_chaos_try {
    const struct kelp_chaos_fault *fault;
    uint64_t now_ms;
    uint32_t event; /* comes back in target->gone when a process that was asked to end has ended */
    bool done;      /* the answer: it hit something */
    bool alone;     /* the answer: no replica of some partition is left by it */
    bool leaves;    /* the answer: a process was asked to end, and will be in target->gone */
    char name[32];  /* the answer: which process */
};

/*
 * Do one fault, if there is live, unfinished work for it to hit: a process that has been there
 * while steps were made. EVERYTHING is not done here (kelp_chaos_target_kill_all()). An error ends
 * the run.
 */
kelp_status kelp_chaos_target_do(struct kelp_chaos_target *target, struct kelp_chaos_try *attempt,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Undo what is due. */
kelp_status kelp_chaos_target_tend(struct kelp_chaos_target *target, uint64_t now_ms,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* Milliseconds until something is due; `most` when nothing is before that. */
int kelp_chaos_target_wait_ms(const struct kelp_chaos_target *target, uint64_t now_ms, int most);

/* Are coordinator's and processes' lives old enough that killing all of them hits work? */
bool kelp_chaos_target_works(const struct kelp_chaos_target *target, uint64_t now_ms);
/* SIGKILL to everything at once: `kelp train`, its children, etcd; they are gone when it returns.
 * What was to be undone is forgotten. */
kelp_status kelp_chaos_target_kill_all(struct kelp_chaos_target *target,
                                       struct kelp_error *reterr) KELP_MUST_USE;

/* Kill what is left and free. */
void kelp_chaos_target_fini(struct kelp_chaos_target *target);

#endif
