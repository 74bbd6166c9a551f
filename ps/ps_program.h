/*
 * The command line of kelp-ps: its table, for its main() and for pages made of it.
 */
#ifndef KELP_PS_PS_PROGRAM_H
#define KELP_PS_PS_PROGRAM_H

#include "common/program/options/options.h"

extern const struct kelp_program kelp_ps_program;

#endif
