/*
 * What partition 0's shard reports, on its way to the run's files.
 */
#ifndef KELP_COORDINATOR_RECORDS_H
#define KELP_COORDINATOR_RECORDS_H

#include "coordinator/coordinator.h"

/* A shard's report: completed entries, and where partition 0 stands; generation: it has loaded. */
void kelp_records_take(struct kelp_coordinator *coordinator, const Kelp__V1__ShardReport *report,
                       uint64_t generation);
/* Put what waits on file, as far as the disk takes it. */
void kelp_records_tick(struct kelp_coordinator *coordinator);
/* Sync and close the journal, if it is open. */
void kelp_records_close(struct kelp_coordinator *coordinator);

#endif
