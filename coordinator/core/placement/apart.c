#include "coordinator/core/placement/apart.h"

/* The weights of the step before can be read, too. */
#define READABLE_STEPS 2

bool kelp_apart_hear(struct kelp_apart *apart, struct kelp_apart_behind *behind,
                     const struct kelp_apart_said *said)
{
    const uint64_t step = said->lowest.step;

    if (apart->generation != said->generation || said->highest.step > apart->highest.step) {
        *apart = (struct kelp_apart){.generation = said->generation, .highest = said->highest};
    }
    if (apart->highest.step < step || apart->highest.step - step < READABLE_STEPS) {
        behind->generation = 0;
        return false;
    }
    if (behind->generation != said->generation || behind->step != step ||
        behind->partition != said->lowest.partition) {
        *behind = (struct kelp_apart_behind){.generation = said->generation,
                                             .since = said->next,
                                             .partition = said->lowest.partition,
                                             .step = step};
        return false;
    }
    return said->heartbeat >= behind->since &&
           said->heartbeat - behind->since >= KELP_COORDINATOR_APART_BEATS;
}
