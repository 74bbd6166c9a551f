/*
 * The subcommands of `kelp`: one file of this folder each.
 */
#ifndef KELP_CLI_VERBS_H
#define KELP_CLI_VERBS_H

#include "cli/verb/verb.h"

/* The table, ending with NULL. */
extern const struct kelp_verb *const kelp_verbs[];

extern const struct kelp_verb kelp_verb_train;
extern const struct kelp_verb kelp_verb_run_script;
extern const struct kelp_verb kelp_verb_submit;
extern const struct kelp_verb kelp_verb_node;
extern const struct kelp_verb kelp_verb_wait;
extern const struct kelp_verb kelp_verb_status;
extern const struct kelp_verb kelp_verb_stop;
extern const struct kelp_verb kelp_verb_scale;
extern const struct kelp_verb kelp_verb_drain;
extern const struct kelp_verb kelp_verb_gc;
extern const struct kelp_verb kelp_verb_free;
extern const struct kelp_verb kelp_verb_metrics;
extern const struct kelp_verb kelp_verb_ls;
extern const struct kelp_verb kelp_verb_logs;
extern const struct kelp_verb kelp_verb_events;
extern const struct kelp_verb kelp_verb_checkpoint;
extern const struct kelp_verb kelp_verb_digest;
extern const struct kelp_verb kelp_verb_export;
extern const struct kelp_verb kelp_verb_predict;
extern const struct kelp_verb kelp_verb_evaluate;
extern const struct kelp_verb kelp_verb_plot;
extern const struct kelp_verb kelp_verb_verify;
extern const struct kelp_verb kelp_verb_diff;
extern const struct kelp_verb kelp_verb_chaos;
extern const struct kelp_verb kelp_verb_init;
extern const struct kelp_verb kelp_verb_model;
extern const struct kelp_verb kelp_verb_data;
extern const struct kelp_verb kelp_verb_certs;
extern const struct kelp_verb kelp_verb_explain;
extern const struct kelp_verb kelp_verb_doctor;
extern const struct kelp_verb kelp_verb_bench;

/* `kelp` itself, for its help and its man page: no options of its own. */
extern const struct kelp_program kelp_command_program;
/* What its exit statuses mean: lines of text for both. */
extern const char kelp_command_exit_statuses[];

/* `kelp ARGS`: find the verb and run it; --help and --version; the nearest verb for a typo. */
int kelp_command(int argc, char **argv);

#endif
