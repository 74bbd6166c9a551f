/* The control side of a simulated shard: maps in, reports out (ps/service/service_control.c). */
#ifndef KELP_TESTS_SIM_SHARD_CONTROL_H
#define KELP_TESTS_SIM_SHARD_CONTROL_H

#include "tests/sim/shard.h"

/* Leaders are to hear of it soon. */
void sim_shard_mark_dirty(struct sim_shard *shard);

/* Leaders hear of it now. */
void sim_shard_report_all(struct sim_shard *shard);

#endif
