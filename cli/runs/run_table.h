/*
 * Runs as a table for people, as JSON and as CSV (docs/CLI.md, "kelp ls"). Pure but for the stream.
 */
#ifndef KELP_CLI_RUNS_RUN_TABLE_H
#define KELP_CLI_RUNS_RUN_TABLE_H

#include <stdio.h>

#include "cli/runs/run_list.h"

void kelp_run_table_text(const struct kelp_run_list *list, FILE *out);
void kelp_run_table_json(const struct kelp_run_list *list, FILE *out);
/* One of the objects in it. */
void kelp_run_table_json_run(const struct kelp_run_info *info, FILE *out);
void kelp_run_table_csv(const struct kelp_run_list *list, FILE *out);

/* "12 s", "3 min", "5 h", "12 d": the largest unit that fits. */
void kelp_run_table_age(double seconds, char *text, size_t text_bytes);

#endif
