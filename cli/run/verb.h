/*
 * What every verb of `kelp` shares: the shape of a table of verbs, and how one complains.
 */
#ifndef KELP_CLI_RUN_VERB_H
#define KELP_CLI_RUN_VERB_H

#include "common/base/status.h"

/* run: argv[0] is the verb; returns the exit status of the command (common/program/options.h). */
struct kelp_verb {
    const char *name;
    const char *summary; /* one phrase for `kelp --help` */
    int (*run)(int argc, char **argv);
};

/* "kelp: TEXT" to standard error; returns exit_status, so that failing is one line. */
int kelp_complain(int exit_status, const char *format, ...) KELP_PRINTF(2, 3);

#endif
