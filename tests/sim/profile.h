/* What a seed stands for: the job, the cluster, and how unkind the world is. */
#ifndef KELP_TESTS_SIM_PROFILE_H
#define KELP_TESTS_SIM_PROFILE_H

#include "tests/sim/world.h"

/* Fill sim->job, sim->plan, sim->profile and the processes. */
void sim_profile_draw(struct sim *sim);
void sim_profile_say(struct sim *sim);

#endif
