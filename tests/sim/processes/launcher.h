/* Starts and ends processes as `kelp scale` asks for (cli/launch/launch_size.c). */
#ifndef KELP_TESTS_SIM_PROCESSES_LAUNCHER_H
#define KELP_TESTS_SIM_PROCESSES_LAUNCHER_H

#include "tests/sim/world.h"

/* It looks at what the leader says now and then, in runs whose size changes. */
void sim_launcher_begin(struct sim *sim);

#endif
