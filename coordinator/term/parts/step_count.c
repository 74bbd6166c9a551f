#include "coordinator/term/parts/step_count.h"

void kelp_step_count_read(struct kelp_step_count *count, uint64_t step, uint64_t recomputed)
{
    count->found = step;
    count->recomputed = recomputed;
}

void kelp_step_count_progress(struct kelp_step_count *count, uint64_t step)
{
    count->known = true;
    count->at = step;
}

void kelp_step_count_restored(struct kelp_step_count *count, uint64_t restored)
{
    count->restored = restored;
}

/* How far training was, as far as is known: from the shards, or from the records on file if no
 * shard is left to tell. */
uint64_t kelp_step_count_restore(struct kelp_step_count *count, uint64_t restored,
                                 uint64_t recorded)
{
    uint64_t from = count->found > recorded ? count->found : recorded;
    from = count->known ? count->at : from;
    /* A generation lost before its first report counts as no further than its start. */
    count->restored = restored;
    count->known = true;
    count->at = restored;
    if (from <= restored) {
        return 0;
    }
    count->recomputed += from - restored;
    return from;
}
