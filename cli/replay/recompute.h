/*
 * The last steps of a run computed again: from one of its states to a later one, with what the run
 * has on record compared on the way, and the state at the end.
 *
 * Threads: one.
 */
#ifndef KELP_CLI_REPLAY_RECOMPUTE_H
#define KELP_CLI_REPLAY_RECOMPUTE_H

#include "cli/checkpoint/checkpoint_read.h"
#include "cli/replay/digest_log.h"

struct kelp_recompute {
    const char *run_path;
    const struct kelp_checkpoint *from; /* NULL: version 0 */
    /* NULL: as far as digests are on record; of a run that failed, to the step at which it did. The
     * job is the one that made this checkpoint, or the run's. */
    const struct kelp_checkpoint *to;
    uint64_t steps_max; /* training steps, at most */
    bool allow_plugin;  /* cli/run/plugin_consent.h */
};

struct kelp_recomputed {
    bool equal;        /* whatever was compared */
    bool whole;        /* it came to the end; false after steps_max */
    uint64_t steps;    /* training steps computed again */
    uint64_t step;     /* where it stands */
    uint32_t digests;  /* on record, compared */
    char text[640];    /* what differs, when not equal; how a run fails, when it is */
    char compute[400]; /* how the compute kinds differ; "" when they do not, or are not known */
};

/*
 * Errors: those of reading the job, its data, the checkpoints and digests.jsonl; KELP_ERR_MISMATCH
 * (the data or the model is not what it was).
 */
kelp_status kelp_recompute(const struct kelp_recompute *what, struct kelp_recomputed *ret_result,
                           struct kelp_error *reterr) KELP_MUST_USE;

#endif
