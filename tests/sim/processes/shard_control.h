/* The control side of a simulated shard: does what ps/core/control/shard_control.h decides. */
#ifndef KELP_TESTS_SIM_PROCESSES_SHARD_CONTROL_H
#define KELP_TESTS_SIM_PROCESSES_SHARD_CONTROL_H

#include "tests/sim/processes/shard.h"

void sim_control_open(struct sim_shard *shard);
void sim_control_close(struct sim_shard *shard);
/* Something happened: carry out what follows. The result is the event's. */
kelp_status sim_control_apply(struct sim_shard *shard, const struct kelp_shard_event *event);

#endif
