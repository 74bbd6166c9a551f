/*
 * The command line of kelp-worker: its table, for its main() and for pages made of it.
 */
#ifndef KELP_WORKER_WORKER_PROGRAM_H
#define KELP_WORKER_WORKER_PROGRAM_H

#include "common/program/options/options.h"

extern const struct kelp_program kelp_worker_program;

#endif
