/* A run that does not end: who waits for whom. */
#ifndef KELP_TESTS_SIM_WAITING_H
#define KELP_TESTS_SIM_WAITING_H

#include "tests/sim/world.h"

_Noreturn void sim_waiting_fail(struct sim *sim);

#endif
