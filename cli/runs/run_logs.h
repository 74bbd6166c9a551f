/*
 * The logs of a run's processes as one: their lines by time. Memory does not grow with the logs.
 */
#ifndef KELP_CLI_RUNS_RUN_LOGS_H
#define KELP_CLI_RUNS_RUN_LOGS_H

#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"

#define KELP_RUN_LOGS_MAX      4200  /* processes of a run */
#define KELP_RUN_LOG_LINE_MAX  16384 /* bytes; longer lines come in pieces */
#define KELP_RUN_LOG_TIME_MAX  23    /* bytes of "2026-01-31T12:00:00.123" */
#define KELP_RUN_LOGS_LAST_MAX 1000000

/*
 * When the line was written, as text that sorts by time: at its beginning, or the "ts" of a line of
 * etcd, which are JSON. False when it does not say. Pure.
 */
bool kelp_run_log_time(const char *line, size_t line_bytes,
                       char ret_time[KELP_RUN_LOG_TIME_MAX + 1]);

struct kelp_run_logs;

/*
 * names   processes ("worker-0") or kinds of them ("worker"); none: all whose lines begin with a
 *         time, which those of etcd and of train do not.
 * Errors: KELP_ERR_NOT_FOUND (no logs, or none of that name; the text says which there are),
 *         KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_run_logs_open(const char *run_path, const char *const *names, size_t name_count,
                               struct kelp_run_logs **ret_logs,
                               struct kelp_error *reterr) KELP_MUST_USE;
void kelp_run_logs_close(struct kelp_run_logs *logs); /* NULL is fine */

/*
 * Print what has come since the last call, and take in logs that are new. A line that is not
 * complete waits, unless last is set. Lines of one process stay in their order; one that says no
 * time goes with the line before it. Errors: KELP_ERR_IO.
 */
kelp_status kelp_run_logs_print(struct kelp_run_logs *logs, bool last, FILE *out,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* The same of the newest `count` lines alone (1 to KELP_RUN_LOGS_LAST_MAX). Errors: also
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp_run_logs_print_last(struct kelp_run_logs *logs, uint32_t count, bool last,
                                     FILE *out, struct kelp_error *reterr) KELP_MUST_USE;

#endif
