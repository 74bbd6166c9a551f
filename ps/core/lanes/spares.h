/*
 * Who takes offers of lanes although it waits for nothing (ps/core/lanes/cover.h). Pure.
 *
 * Threads: one caller at a time.
 */
#ifndef KELP_PS_CORE_LANES_SPARES_H
#define KELP_PS_CORE_LANES_SPARES_H

#include "ps/core/lanes/cover.h"

/* All zero: nobody. */
struct kelp_spares {
    struct kelp_cover_candidate *items;
    size_t count;
    size_t capacity;
};

/* Errors: KELP_ERR_NO_MEMORY, and it is not among them then. */
kelp_status kelp_spares_add(struct kelp_spares *spares,
                            const struct kelp_cover_candidate *candidate) KELP_MUST_USE;
/* One that is not there is ignored. */
void kelp_spares_remove(struct kelp_spares *spares, uint64_t requester);
void kelp_spares_fini(struct kelp_spares *spares);

#endif
