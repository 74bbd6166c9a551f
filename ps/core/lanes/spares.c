#include "ps/core/lanes/spares.h"

#include <stdlib.h>

void kelp_spares_remove(struct kelp_spares *spares, uint64_t requester)
{
    size_t kept = 0;

    for (size_t i = 0; i < spares->count; i++) {
        if (spares->items[i].requester != requester) {
            spares->items[kept++] = spares->items[i];
        }
    }
    spares->count = kept;
}

kelp_status kelp_spares_add(struct kelp_spares *spares,
                            const struct kelp_cover_candidate *candidate)
{
    kelp_spares_remove(spares, candidate->requester);
    if (spares->count == spares->capacity) {
        size_t capacity = spares->capacity ? 2 * spares->capacity : 8;
        struct kelp_cover_candidate *items =
            realloc(spares->items, capacity * sizeof(*spares->items));
        if (!items) {
            return KELP_ERR_NO_MEMORY;
        }
        spares->items = items;
        spares->capacity = capacity;
    }
    spares->items[spares->count++] = *candidate;
    return KELP_OK;
}

void kelp_spares_fini(struct kelp_spares *spares)
{
    free(spares->items);
    *spares = (struct kelp_spares){0};
}
