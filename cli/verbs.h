/*
 * The subcommands of `kelp`: argv[0] is the verb. Each returns the exit status of the command
 * (common/options.h) and prints what it has to say.
 */
#ifndef KELP_CLI_VERBS_H
#define KELP_CLI_VERBS_H

#include <stdio.h>

#include "common/status.h"

struct kelp_verb {
    const char *name;
    const char *summary; /* one phrase for `kelp --help` */
    int (*run)(int argc, char **argv);
};

/* The table, ending with an empty entry. */
extern const struct kelp_verb kelp_verbs[];

int kelp_verb_train(int argc, char **argv);
int kelp_verb_status(int argc, char **argv);
int kelp_verb_checkpoint(int argc, char **argv);
int kelp_verb_plot(int argc, char **argv);
int kelp_verb_digest(int argc, char **argv);
int kelp_verb_export(int argc, char **argv);
int kelp_verb_verify(int argc, char **argv);
int kelp_verb_diff(int argc, char **argv);
int kelp_verb_chaos(int argc, char **argv);
int kelp_verb_predict(int argc, char **argv);
int kelp_verb_evaluate(int argc, char **argv);
int kelp_verb_data(int argc, char **argv);
int kelp_verb_model(int argc, char **argv);

/* `kelp ARGS`: find the verb and run it; --help and --version; the nearest verb for a typo. */
int kelp_command(int argc, char **argv);

/* `kelp checkpoint VERB`, each in a file of its own; ends with an empty entry. */
extern const struct kelp_verb kelp_checkpoint_verbs[];

/* "kelp: TEXT" to standard error; returns exit_status, so that failing is one line. */
int kelp_complain(int exit_status, const char *format, ...) KELP_PRINTF(2, 3);

#endif
