/*
 * The run folder, on a disk that all hosts share: what is written is read back by everybody, but
 * only what was synced survives when everything loses power.
 */
#ifndef KELP_TESTS_SIM_DISK_H
#define KELP_TESTS_SIM_DISK_H

#include "tests/sim/world.h"

struct sim_disk *sim_disk_create(void);
void sim_disk_destroy(struct sim_disk *disk);

/* The whole cluster is without power: forgets what was not synced. */
void sim_disk_power_loss(struct sim *sim);

/* ---- the journal: records of completed entries -------------------------------------------------
 */

/* A version that is there already must carry the same record. */
void sim_journal_append(struct sim *sim, const struct kelp_record *record);
void sim_journal_sync(struct sim *sim);
/* Is the job's last record on file, and synced? */
bool sim_journal_finished(const struct sim *sim);

#endif
