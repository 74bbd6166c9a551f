/* Whoever starts processes again when they have died: kelp train, systemd, a person. */
#ifndef KELP_TESTS_SIM_PROCESSES_SUPERVISOR_H
#define KELP_TESTS_SIM_PROCESSES_SUPERVISOR_H

#include "tests/sim/world.h"

/* Start it as a new incarnation. */
void sim_supervisor_start(struct sim *sim, struct sim_process *process);
/* The process has ended by itself; unless it is over, it is started again. */
void sim_supervisor_ended(struct sim *sim, struct sim_process *process);
/* Kill it; it is started again after so long. silent: its host is gone with it. */
void sim_supervisor_kill(struct sim *sim, struct sim_process *process, bool silent,
                         uint64_t back_after_us);
/* Free what the process has in memory; nothing is started again. */
void sim_supervisor_forget(struct sim *sim, struct sim_process *process);

#endif
