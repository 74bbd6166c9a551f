/*
 * The rows of a job's CSV files one after the other: read, derived, filtered, in bounded memory.
 *
 * What counts as missing: of a number or time an empty field, NA, N/A, NaN, null or None in any
 * case of letters, of a category an empty field, and what an expression has no value for. A row
 * whose filters are not all met (a missing one is not) is left out before data.missing is asked
 * about the values that the job takes from it.
 */
#ifndef KELP_WORKER_DATA_TABLE_TABLE_READER_H
#define KELP_WORKER_DATA_TABLE_TABLE_READER_H

#include "worker/data/table/table_classes.h"
#include "worker/data/table/table_schema.h"
#include "worker/data/text/csv.h"

/* Of a number, time or class. */
bool kelp_table_field_is_missing(const struct kelp_csv_field *field);

struct kelp_table_files {
    char **paths; /* sorted by their bytes; owned */
    uint32_t count;
};

/*
 * The files that path names: itself when there is such a file, else those that match it as a
 * pattern. key names it in errors. Freed with kelp_table_files_fini().
 * Errors: KELP_ERR_NOT_FOUND, KELP_ERR_LIMIT, KELP_ERR_IO, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_table_files_find(const char *key, const char *path,
                                  struct kelp_table_files *ret_files,
                                  struct kelp_error *reterr) KELP_MUST_USE;
void kelp_table_files_fini(struct kelp_table_files *files);

/* Borrowed until the next one is taken. */
struct kelp_table_row {
    const double *numbers; /* [schema->number_count]; NaN: missing, with policy mean alone */
    const char (*words)[KELP_TABLE_WORD_MAX + 1]; /* [schema->word_count] */
    const struct kelp_table_class *class_field;   /* where schema->has_class */
    double time;
};

struct kelp_table_reader;

/* files and schema are borrowed until the close. */
kelp_status kelp_table_reader_open(const struct kelp_table_schema *schema,
                                   const struct kelp_table_files *files,
                                   enum kelp_missing_policy missing,
                                   struct kelp_table_reader **ret_reader,
                                   struct kelp_error *reterr) KELP_MUST_USE;
void kelp_table_reader_close(struct kelp_table_reader *reader); /* NULL is ignored */

/* *ret_found is false behind the last row of the last file. The error text begins with
 * "FILE:LINE: ". Errors: those of worker/data/text/csv.h, KELP_ERR_INVALID. */
kelp_status kelp_table_reader_next(struct kelp_table_reader *reader, struct kelp_table_row *ret_row,
                                   bool *ret_found, struct kelp_error *reterr) KELP_MUST_USE;

/* Where the row stands that was taken last: its file's index, and the line. */
uint32_t kelp_table_reader_file(const struct kelp_table_reader *reader);
uint64_t kelp_table_reader_line(const struct kelp_table_reader *reader);
/* Whether any time so far was a date, not a plain number. */
bool kelp_table_reader_saw_dates(const struct kelp_table_reader *reader);

#endif
