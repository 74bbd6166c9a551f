/*
 * Runs of the kelp command in their own folder, and the verbs that inspect them.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_CLI_RUNS_H
#define KELP_TESTS_LIB_COMMANDS_CLI_RUNS_H

#include "common/program/etcd_server.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_command.h"

/* A stop takes 1.8 s (cli/launch/guard.h), longer on a busy machine; this is far more. */
#define STOP_MS 30000

/* The folder has short.yaml (about a second of training), medium.yaml (long enough to be killed
 * in between) and long.yaml (longer than any test). */
extern struct cli_runs {
    struct kelp_test_folder folder;
    struct kelp_test_command train;
    struct kelp_test_command verb; /* the last one */
} runs;

void runs_setup(void);
void runs_teardown(void);
/* Ask the run to end, and wait for it. */
void runs_stop(int signal_number);
void runs_verb(const char *const *args);

/* Check that each line of a file is a JSON object. Returns how many lines `look` accepts. */
unsigned runs_each_line(const char *name, bool (*look)(const cJSON *line));
/* True for lines of epochs and evaluations, false for those of metrics.every. */
bool runs_look_at_metrics(const cJSON *line);

/* The step of the run in the folder r. */
double runs_step_now(void);
void runs_await_training(void);
/* Start an etcd besides that of the run. Owned (kelp_etcd_server_stop()). */
struct kelp_etcd_server *runs_start_etcd(void);

#endif
