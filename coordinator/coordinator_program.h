/*
 * The command line of kelp-coordinator: its table, for its main() and for pages made of it.
 */
#ifndef KELP_COORDINATOR_COORDINATOR_PROGRAM_H
#define KELP_COORDINATOR_COORDINATOR_PROGRAM_H

#include "common/program/options/options.h"

extern const struct kelp_program kelp_coordinator_program;

#endif
