/* What whoever watches the coordinator is told (common/scrape/figures.h). */
#ifndef KELP_COORDINATOR_LOOK_H
#define KELP_COORDINATOR_LOOK_H

#include "coordinator/term/term.h"

struct kelp_coordinator;

/* Set the figures, and whether it takes part; every KELP_COORDINATOR_TICK_MS. */
void kelp_coordinator_look(struct kelp_coordinator *coordinator);
/* Something changed in the job, while it leads. */
void kelp_coordinator_look_at(struct kelp_coordinator *coordinator, const struct kelp_event *event);

#endif
