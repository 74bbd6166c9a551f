/*
 * A file of data that is read from front to end, decompressed on the way where it is gzip (RFC
 * 1952; its first bytes say so, not its name). Several members one after the other are one text, as
 * gzip(1) has it.
 *
 * Error texts name the file and the place. Threads: one per file at a time.
 */
#ifndef KELP_WORKER_DATA_TEXT_INPUT_FILE_H
#define KELP_WORKER_DATA_TEXT_INPUT_FILE_H

#include <stdint.h>

#include "common/base/status.h"

struct kelp_input_file;

/* *ret_file is owned by the caller (kelp_input_file_close()).
 * Errors: KELP_ERR_NOT_FOUND, KELP_ERR_INVALID (not a regular file), KELP_ERR_IO,
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp_input_file_open(const char *path, struct kelp_input_file **ret_file,
                                 struct kelp_error *reterr) KELP_MUST_USE;
void kelp_input_file_close(struct kelp_input_file *file); /* NULL is ignored */

bool kelp_input_file_is_gzip(const struct kelp_input_file *file);

/*
 * The next bytes: *ret_count is below count only at the end of the data. A gzip file has been
 * checked as a whole (length and checksum of each member) once that is so.
 * Errors: KELP_ERR_FORMAT (gzip data are damaged or end too early), KELP_ERR_IO,
 * KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_input_file_read(struct kelp_input_file *file, void *bytes, size_t count,
                                 size_t *ret_count, struct kelp_error *reterr) KELP_MUST_USE;

#endif
