/*
 * How the processes of a job are shared out to its hosts. Pure: every host reckons it for itself,
 * from the same list, and comes to the same.
 */
#ifndef KELP_CLI_HOST_SHARE_H
#define KELP_CLI_HOST_SHARE_H

#include <stddef.h>
#include <stdint.h>

/* Of one kind of process, on one host; least <= most. */
struct kelp_room {
    uint32_t least; /* run in any case */
    uint32_t most;
};

/*
 * Each host runs its least. Of what is wanted beyond that, the next one always goes to the host
 * that has the fewest and room for more; of equals, to the first. shares[i] is for rooms[i].
 * Returns how many that are in all: fewer than wanted where there is no more room.
 */
uint32_t kelp_share_out(const struct kelp_room *rooms, size_t count, uint32_t wanted,
                        uint32_t *shares);

#endif
