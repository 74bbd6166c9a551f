/*
 * kelp train --detach: the same command once more, in a session of its own, and what it reports
 * until training has started. Reports are lines on a pipe:
 *
 *     run PATH     the run's folder is there; from here on it writes to PATH/logs/train.log
 *     started      training has started
 *
 * The pipe's end without them means that the command has ended: its exit status is ours.
 */
#ifndef KELP_CLI_LAUNCH_DETACH_H
#define KELP_CLI_LAUNCH_DETACH_H

#include <stdbool.h>

#include "common/base/status.h"

/* ---- by the command that people gave ---- */

/* Start it and wait. keep_input: its standard input is ours, else it has none. Prints the run's
 * folder to standard output once training has started. Returns the exit status of the command. */
int kelp_detach_start(bool keep_input);

/* ---- by the one in the background ---- */

/* The descriptor of the pipe, which no child of ours gets; -1: this command is in the foreground.
 * Call it once. */
int kelp_detach_take(void);
/* Undo it for this program, executed again (common/process/process_again.h). */
void kelp_detach_leave(int fd);
/* Report the folder and write to its log from now on. Errors: KELP_ERR_IO, KELP_ERR_LIMIT. */
kelp_status kelp_detach_report_run(int fd, const char *run_path,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* Report that training has started, and close the pipe. */
void kelp_detach_report_started(int fd);

#endif
