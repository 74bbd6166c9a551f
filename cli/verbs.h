/*
 * The subcommands of `kelp`: one file of this folder each.
 */
#ifndef KELP_CLI_VERBS_H
#define KELP_CLI_VERBS_H

#include "cli/run/verb.h"

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

#endif
