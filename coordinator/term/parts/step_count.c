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

/* As far as we know how far training was: from the shards, or from what was on file when nobody was
 * left to say. */
uint64_t kelp_step_count_restore(struct kelp_step_count *count, uint64_t restored,
                                 uint64_t recorded)
{
    uint64_t from = count->found > recorded ? count->found : recorded;
    from = count->known ? count->at : from;
    /* A generation that is lost before it reports anything was not further than its beginning. */
    count->restored = restored;
    count->known = true;
    count->at = restored;
    if (from <= restored) {
        return 0;
    }
    count->recomputed += from - restored;
    return from;
}
