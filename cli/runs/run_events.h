/*
 * What happened to a run, as its leaders kept it in events.jsonl (coordinator/files/event_log.h),
 * and before that in events.jsonl.1.
 */
#ifndef KELP_CLI_RUNS_RUN_EVENTS_H
#define KELP_CLI_RUNS_RUN_EVENTS_H

#include <stdint.h>
#include <stdio.h>

#include "cli/run/run_dir.h"
#include "common/base/status.h"

#define KELP_RUN_EVENT_MAX     4096 /* bytes of a line; longer ones are passed over */
#define KELP_RUN_EVENTS_LAST   1000000
#define KELP_RUN_EVENT_COLUMNS 18 /* of an event's name */

struct kelp_run_events {
    char older[KELP_RUN_PATH_MAX + 32]; /* events.jsonl.1 */
    char path[KELP_RUN_PATH_MAX + 32];
    uint64_t inode;  /* of the file that was read last; 0: none */
    uint64_t offset; /* bytes of it that are printed */
    bool json;       /* lines as they are; else for people */
};

/* Errors: KELP_ERR_LIMIT. */
kelp_status kelp_run_events_open(struct kelp_run_events *events, const char *run_path, bool json,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* Print the newest `lines` of all that is there, 0: everything; later calls of _more() print what
 * came since. Without any files nothing is printed. Errors: KELP_ERR_IO, KELP_ERR_NO_MEMORY. */
kelp_status kelp_run_events_print(struct kelp_run_events *events, uint32_t lines, FILE *out,
                                  struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_run_events_more(struct kelp_run_events *events, FILE *out,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* One line for people, of a line of the file. False: that is none. Pure. */
bool kelp_run_event_text(const char *line, size_t line_bytes, FILE *out);

#endif
