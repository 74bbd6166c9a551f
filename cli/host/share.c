#include "cli/host/share.h"

/* The host that gets the next one; count: there is no room. */
static size_t find_next(const struct kelp_room *rooms, size_t count, const uint32_t *shares)
{
    size_t next = count;

    for (size_t i = 0; i < count; i++) {
        if (shares[i] < rooms[i].most && (next == count || shares[i] < shares[next])) {
            next = i;
        }
    }
    return next;
}

uint32_t kelp_share_out(const struct kelp_room *rooms, size_t count, uint32_t wanted,
                        uint32_t *shares)
{
    uint32_t total = 0;

    for (size_t i = 0; i < count; i++) {
        shares[i] = rooms[i].least;
        total += shares[i];
    }
    while (total < wanted) {
        size_t next = find_next(rooms, count, shares);
        if (next == count) {
            break;
        }
        shares[next]++;
        total++;
    }
    return total;
}
