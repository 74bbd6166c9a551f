/* One run of the simulated cluster, from a seed to its end. */
#ifndef KELP_TESTS_SIM_RUN_H
#define KELP_TESTS_SIM_RUN_H

#include "tests/sim/world.h"

/* True: the run ended as it should, its counts are added to counts. False: *ret_failure (512 bytes)
 * says which invariant is broken; memory of the run is not given back then. */
bool sim_run(uint64_t seed, struct sim_story *story, uint64_t counts[SIM_COUNT_COUNT],
             char ret_failure[512]);

#endif
