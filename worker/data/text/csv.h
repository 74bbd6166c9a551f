/*
 * A CSV file row by row, in bounded memory: a header line with the columns' names, then rows of as
 * many fields. The file may be compressed with gzip.
 *
 * Accepted: fields in double quotes (a doubled quote is one), LF or CRLF line ends, a UTF-8 byte
 * order mark, blank lines at the end. A quoted field may not hold a line end, so that line numbers
 * mean what an editor shows.
 *
 * Errors of all: KELP_ERR_FORMAT, KELP_ERR_LIMIT, KELP_ERR_IO, KELP_ERR_NO_MEMORY; the text begins
 * with "FILE:LINE: ". Threads: one per reader at a time.
 */
#ifndef KELP_WORKER_DATA_TEXT_CSV_H
#define KELP_WORKER_DATA_TEXT_CSV_H

#include <stdint.h>

#include "common/base/status.h"
#include "worker/data/text/limits.h"

struct kelp_csv;

struct kelp_csv_field {
    const char *start; /* between the quotes, when quoted */
    size_t bytes;
    bool escaped; /* holds doubled quotes */
};

/*
 * Open a file and read its header. *ret_csv is owned by the caller (kelp_csv_close()).
 * Errors: also KELP_ERR_NOT_FOUND, KELP_ERR_INVALID (not a regular file).
 */
kelp_status kelp_csv_open(const char *path, struct kelp_csv **ret_csv,
                          struct kelp_error *reterr) KELP_MUST_USE;
/* The same from memory, borrowed until the close; name stands for the file in errors. */
kelp_status kelp_csv_open_memory(const char *name, const char *text, size_t text_bytes,
                                 struct kelp_csv **ret_csv,
                                 struct kelp_error *reterr) KELP_MUST_USE;
void kelp_csv_close(struct kelp_csv *csv); /* NULL is ignored */

/* What the file is called in errors; borrowed until the close, as the names. */
const char *kelp_csv_name(const struct kelp_csv *csv);
uint32_t kelp_csv_column_count(const struct kelp_csv *csv); /* at least 1 */
const char *kelp_csv_column(const struct kelp_csv *csv, uint32_t column);

/*
 * Find a column by name. Errors: KELP_ERR_INVALID when there is none (the text lists those that
 * there are, and begins with key, the part of the job file that asks), KELP_ERR_FORMAT when there
 * are two.
 */
kelp_status kelp_csv_find(const struct kelp_csv *csv, const char *key, const char *name,
                          uint32_t *ret_column, struct kelp_error *reterr) KELP_MUST_USE;
/* Fail: the file has no column `name`; `wanted` lists all that the model takes. */
kelp_status kelp_csv_lacks(const struct kelp_csv *csv, const char *name, const char *wanted,
                           struct kelp_error *reterr);

/*
 * Take the next row. *ret_fields, one per column, is borrowed until the next call; NULL at the end.
 */
kelp_status kelp_csv_next(struct kelp_csv *csv, const struct kelp_csv_field **ret_fields,
                          struct kelp_error *reterr) KELP_MUST_USE;
/* The line of the row that was taken last, counted from 1. */
uint64_t kelp_csv_line(const struct kelp_csv *csv);

/* A field of the current row as a finite number. */
kelp_status kelp_csv_number(const struct kelp_csv *csv, uint32_t column, double *ret_value,
                            struct kelp_error *reterr) KELP_MUST_USE;
/* Whether a field is empty or blank. */
bool kelp_csv_is_empty(const struct kelp_csv *csv, uint32_t column);
/* A field as text: blanks around it cut off, doubled quotes made one. Longer than text_bytes - 1 is
 * KELP_ERR_LIMIT. */
kelp_status kelp_csv_text(const struct kelp_csv *csv, uint32_t column, char *text,
                          size_t text_bytes, struct kelp_error *reterr) KELP_MUST_USE;
/* Say that a field of the current row is wrong: "FILE:LINE: column NAME: 'FIELD' WHAT". */
kelp_status kelp_csv_bad_field(const struct kelp_csv *csv, uint32_t column, const char *what,
                               struct kelp_error *reterr);

#endif
