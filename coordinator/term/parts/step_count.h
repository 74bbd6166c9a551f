/*
 * How far training is known to be, and the steps that a restore makes it compute a second time.
 * Pure; a part of a leader's term.
 */
#ifndef KELP_COORDINATOR_TERM_PARTS_STEP_COUNT_H
#define KELP_COORDINATOR_TERM_PARTS_STEP_COUNT_H

#include <stdbool.h>
#include <stdint.h>

struct kelp_step_count {
    uint64_t restored;   /* where the current generation began */
    uint64_t found;      /* where training was, as the leader before us left it */
    bool known;          /* where training is, in the current generation */
    uint64_t at;         /* there */
    uint64_t recomputed; /* over the run */
};

/* What etcd's state said when the term began. */
void kelp_step_count_read(struct kelp_step_count *count, uint64_t step, uint64_t recomputed);
/* Training is at this step, in the current generation. */
void kelp_step_count_progress(struct kelp_step_count *count, uint64_t step);
/* A generation that an earlier leader opened at this step is taken over. */
void kelp_step_count_restored(struct kelp_step_count *count, uint64_t restored);
/* We have opened a generation at this step; recorded: how far the files know training to have been.
 * Returns the step that it goes back from; 0: it does not go back. */
uint64_t kelp_step_count_restore(struct kelp_step_count *count, uint64_t restored,
                                 uint64_t recorded);

#endif
