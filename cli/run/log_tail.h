/*
 * Why a child ended, in its own words: the newest error of its log.
 */
#ifndef KELP_CLI_RUN_LOG_TAIL_H
#define KELP_CLI_RUN_LOG_TAIL_H

#include <stddef.h>

#include "common/base/status.h"

#define KELP_LOG_TAIL_BYTES 16384 /* of the log's end that are read */

/*
 * The message of the last line of level error in text, without time, level and role; else the last
 * line that is none of Kelp's log, as a program of the user's own prints it before the library says
 * that it leaves; else the last one that is not empty; "" when there is none. Pure.
 */
void kelp_log_tail_message(const char *text, size_t text_bytes, char *message,
                           size_t message_bytes);

/* The same of the end of a file from byte `from` on; "" when it cannot be read. */
void kelp_log_tail_read(const char *path, long from, char *message, size_t message_bytes);

/* The last lines of that, at most `lines` of them, each with its line feed; "" when it cannot be
 * read. */
void kelp_log_tail_lines(const char *path, long from, unsigned lines, char *text,
                         size_t text_bytes);

/* The last of them, if a program has printed it; "" where it is one of Kelp's log. */
void kelp_log_tail_printed(const char *path, long from, char *message, size_t message_bytes);

/* Is there a line with that text behind byte `from`? False when the file cannot be read. */
bool kelp_log_has(const char *path, long from, const char *text);

/* Open a log to append to; *ret_from is how long it is. *ret_fd is owned. Errors: KELP_ERR_IO. */
kelp_status kelp_log_open(const char *path, int *ret_fd, long *ret_from,
                          struct kelp_error *reterr) KELP_MUST_USE;

#endif
