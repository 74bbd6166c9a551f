/*
 * The end of the job: what etcd is told of the job's state, and what an end that an earlier leader
 * wrote there means. Pure; a part of a leader's term.
 *
 * A found end is final once the shards of its generation turn out to be alive, and, of a job that
 * is done, once its last record has come from them: a new leader hears all records from the first
 * one on, and what the job came to is in the last. If the shards are gone, so is the model, and the
 * job is computed again.
 */
#ifndef KELP_COORDINATOR_TERM_PARTS_JOB_END_H
#define KELP_COORDINATOR_TERM_PARTS_JOB_END_H

#include "coordinator/term/outside/term_effects.h"

struct kelp_job_end {
    bool ended; /* done, paused or failed, and etcd has that: workers leave */
    bool found; /* an end that is not judged yet */
    struct kelp_job_state found_state;
    uint64_t found_generation;

    /* The write of the state. */
    struct kelp_job_state state; /* newest */
    bool dirty;                  /* etcd does not have it, and no write of it is in progress */
    bool in_flight;
    struct kelp_job_state writing; /* while in_flight */
    uint64_t retry_ms;
};

enum kelp_verdict {
    KELP_VERDICT_NONE,  /* nothing to judge, or not known yet */
    KELP_VERDICT_AGAIN, /* the model is lost: the job is computed again */
    KELP_VERDICT_FINAL
};

/* etcd had this state and a map of this generation when the term began. */
void kelp_job_end_read(struct kelp_job_end *end, const struct kelp_job_state *state,
                       uint64_t generation);
/* Judge a found end by the placement. finished: its generation's last record has come. With AGAIN
 * and FINAL it is judged from now on, and *ret_state says what it was. */
enum kelp_verdict kelp_job_end_judge(struct kelp_job_end *end,
                                     const struct kelp_placement *placement, bool finished,
                                     struct kelp_job_state *ret_state);

/* The job's state is this now; it goes to etcd unless an end stands there. settled: it is an end.
 */
void kelp_job_end_report(struct kelp_job_end *end, const struct kelp_job_state *state,
                         bool settled);
/* The state to write now, or NULL. Borrowed. */
const struct kelp_job_state *kelp_job_end_due(const struct kelp_job_end *end, uint64_t now_ms);
/* It was handed to etcd. */
void kelp_job_end_sent(struct kelp_job_end *end);
/* Etcd's answer to the write. True: the job has ended with it. */
bool kelp_job_end_written(struct kelp_job_end *end, bool taken, uint64_t now_ms);

#endif
