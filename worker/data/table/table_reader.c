#include "worker/data/table/table_reader.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "worker/data/text/calendar.h"
#include "worker/data/text/csv.h"

struct kelp_table_reader {
    const struct kelp_table_schema *schema;
    const struct kelp_table_files *files;
    enum kelp_missing_policy missing;
    struct kelp_csv *csv;                /* NULL: before the first file, and behind the last one */
    const struct kelp_csv_field *fields; /* of the row; borrowed of csv */
    bool saw_dates;
    uint32_t file;                            /* of csv; behind the last one: files->count */
    uint32_t columns[KELP_TABLE_COLUMNS_MAX]; /* of the sources in csv */
    double slots[KELP_TABLE_SLOTS_MAX];
    double numbers[KELP_TABLE_COLUMNS_MAX];
    struct kelp_table_class class_field;
    char words[KELP_TABLE_WORDS_MAX][KELP_TABLE_WORD_MAX + 1];
};

/* ---- files ----------------------------------------------------------------------------------- */

void kelp_table_files_fini(struct kelp_table_files *files)
{
    for (uint32_t i = 0; i < files->count; i++) {
        free(files->paths[i]);
    }
    free(files->paths);
    *files = (struct kelp_table_files){0};
}

/* By bytes: glob() would sort as the user's language does. */
static int by_bytes(const void *a, const void *b)
{
    const char *const *left = a;
    const char *const *right = b;
    return strcmp(*left, *right);
}

static kelp_status copy_paths(char *const *paths, size_t count, struct kelp_table_files *files,
                              struct kelp_error *reterr)
{
    files->paths = calloc(count, sizeof(*files->paths));
    for (size_t i = 0; files->paths && i < count; i++) {
        files->paths[i] = strdup(paths[i]);
        if (!files->paths[i]) {
            break;
        }
        files->count++;
    }
    if (files->count < count) {
        kelp_table_files_fini(files);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %zu paths", count);
    }
    qsort(files->paths, files->count, sizeof(*files->paths), by_bytes);
    return KELP_OK;
}

/* The folder of a pattern that is there by its name, however that looks: only what follows it is a
 * pattern. A job file's own folder stands before each of its paths. */
static size_t plain_bytes(const char *path)
{
    char folder[KELP_JOB_PATH_MAX + 1];
    size_t plain = 0;
    for (size_t i = 1; path[i] != '\0' && i < sizeof(folder); i++) {
        if (path[i] != '/') {
            continue;
        }
        memcpy(folder, path, i);
        folder[i] = '\0';
        if (access(folder, F_OK) != 0) {
            break;
        }
        plain = i;
    }
    return plain;
}

/* The path as glob() takes it. */
static void print_pattern(const char *path, char pattern[2 * KELP_JOB_PATH_MAX + 1])
{
    size_t plain = plain_bytes(path), used = 0;
    for (size_t i = 0; path[i] != '\0'; i++) {
        if (i < plain && strchr("*?[\\", path[i])) {
            pattern[used++] = '\\';
        }
        pattern[used++] = path[i];
    }
    pattern[used] = '\0';
}

static kelp_status find_pattern(const char *key, const char *path, struct kelp_table_files *files,
                                struct kelp_error *reterr)
{
    char pattern[2 * KELP_JOB_PATH_MAX + 1];
    glob_t found = {0};
    print_pattern(path, pattern);
    int result = glob(pattern, GLOB_NOSORT, NULL, &found);
    kelp_status status;
    if (result == GLOB_NOMATCH) {
        status = kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                           "%s: %s: no such file, and as a pattern it matches none", key, path);
    } else if (result != 0) {
        status =
            kelp_fail(reterr, KELP_ERR_IO, "%s: %s: the pattern cannot be looked up", key, path);
    } else if (found.gl_pathc > KELP_TABLE_FILES_MAX) {
        status = kelp_fail(reterr, KELP_ERR_LIMIT, "%s: %s: matches more than %d files", key, path,
                           KELP_TABLE_FILES_MAX);
    } else {
        status = copy_paths(found.gl_pathv, found.gl_pathc, files, reterr);
    }
    globfree(&found);
    return status;
}

kelp_status kelp_table_files_find(const char *key, const char *path,
                                  struct kelp_table_files *ret_files, struct kelp_error *reterr)
{
    struct kelp_table_files files = {0};
    struct stat about;
    kelp_status status;
    if (stat(path, &about) == 0) {
        char *paths[] = {(char *)path};
        status = copy_paths(paths, 1, &files, reterr);
    } else if (!strpbrk(path, "*?[")) {
        status = kelp_files_error(errno, "open", path, reterr);
        kelp_error_prefix(reterr, "%s", key);
    } else {
        status = find_pattern(key, path, &files, reterr);
    }
    if (status == KELP_OK) {
        *ret_files = files;
    }
    return status;
}

/* ---- fields ---------------------------------------------------------------------------------- */

bool kelp_table_field_is_missing(const struct kelp_csv_field *field)
{
    static const char *const words[] = {"", "na", "n/a", "nan", "null", "none"};
    const char *start = field->start;
    size_t bytes = field->bytes;
    while (bytes > 0 && (*start == ' ' || *start == '\t')) {
        start++;
        bytes--;
    }
    while (bytes > 0 && (start[bytes - 1] == ' ' || start[bytes - 1] == '\t')) {
        bytes--;
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(words) && bytes <= 4; i++) {
        if (strlen(words[i]) == bytes && strncasecmp(words[i], start, bytes) == 0) {
            return true;
        }
    }
    return false;
}

static kelp_status read_time(struct kelp_table_reader *reader, const struct kelp_csv_field *field,
                             uint32_t column, double *ret_value, struct kelp_error *reterr)
{
    int64_t seconds = 0;
    if (kelp_calendar_parse(field->start, field->bytes, &seconds)) {
        *ret_value = (double)seconds;
        reader->saw_dates = true;
        return KELP_OK;
    }
    if (kelp_csv_number(reader->csv, column, ret_value, NULL) == KELP_OK) {
        return KELP_OK;
    }
    return kelp_csv_bad_field(reader->csv, column,
                              "is not a time; times are YYYY-MM-DD HH:MM:SS, or numbers", reterr);
}

static kelp_status read_number(struct kelp_table_reader *reader,
                               const struct kelp_table_source *source, uint32_t column,
                               double *ret_value, struct kelp_error *reterr)
{
    bool may_be_name = strcmp(source->key, "data.targets") == 0 && !reader->schema->has_time;
    kelp_status status = kelp_csv_number(reader->csv, column, ret_value, reterr);
    if (status == KELP_OK || !may_be_name) {
        return status;
    }
    return kelp_csv_bad_field(reader->csv, column,
                              "is not a number; it must be a finite decimal number such as -12.5, "
                              "or with train.loss cross_entropy the name of a class",
                              reterr);
}

static kelp_status fill_slot(struct kelp_table_reader *reader,
                             const struct kelp_table_source *source, uint32_t column,
                             const struct kelp_csv_field *field, struct kelp_error *reterr)
{
    double *slot = &reader->slots[source->slot];
    if (kelp_table_field_is_missing(field)) {
        *slot = (double)NAN;
        return KELP_OK;
    }
    switch (source->view) {
    case KELP_VIEW_NUMBER:
        return read_number(reader, source, column, slot, reterr);
    case KELP_VIEW_TIME:
        return read_time(reader, field, column, slot, reterr);
    case KELP_VIEW_ANY:
        *slot = 0.0;
        return KELP_OK;
    case KELP_VIEW_TEXT: {
        char text[KELP_CSV_COLUMN_NAME_MAX + 1];
        /* What is longer than the literal may be is another text. */
        bool fits = kelp_csv_text(reader->csv, column, text, sizeof(text), NULL) == KELP_OK;
        *slot = fits && strcmp(text, source->literal) == 0 ? 1.0 : 0.0;
        return KELP_OK;
    }
    }
    return KELP_ERR_INTERNAL;
}

static kelp_status fill_slots(struct kelp_table_reader *reader, const struct kelp_csv_field *fields,
                              struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = reader->schema;
    for (uint32_t i = 0; i < schema->source_count; i++) {
        const struct kelp_table_source *source = &schema->sources[i];
        uint32_t column = reader->columns[i];
        if (source->is_word || source->absent) {
            continue;
        }
        kelp_status status = fill_slot(reader, source, column, &fields[column], reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i < schema->derived_count; i++) {
        reader->slots[schema->derived[i].slot] =
            kelp_expression_value(schema->derived[i].expression, reader->slots);
    }
    return KELP_OK;
}

static bool passes_filters(const struct kelp_table_reader *reader)
{
    for (uint32_t i = 0; i < reader->schema->filter_count; i++) {
        double met = kelp_expression_value(reader->schema->filters[i], reader->slots);
        if (isnan(met) || met == 0.0) {
            return false;
        }
    }
    return true;
}

/* ---- missing values -------------------------------------------------------------------------- */

static kelp_status no_value(const struct kelp_table_reader *reader, const char *name, bool is_class,
                            struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_FORMAT,
                     "%s:%" PRIu64 ": column %s: has no value in this row; fill it in, or set "
                     "data.missing to drop%s",
                     kelp_csv_name(reader->csv), kelp_csv_line(reader->csv), name,
                     is_class ? "" : ", zero or mean");
}

/* Whole numbers have one spelling: 7, 7.0 and 07 are the same category. */
static void print_number(double value, char word[KELP_TABLE_WORD_MAX + 1])
{
    (void)snprintf(word, KELP_TABLE_WORD_MAX + 1, "%.17g", value);
}

static bool is_printable(const char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || *text == 127) {
            return false;
        }
    }
    return true;
}

/* *ret_value is NaN where it is missing. */
static kelp_status read_class(struct kelp_table_reader *reader, double *ret_value,
                              struct kelp_error *reterr)
{
    struct kelp_table_class *class_field = &reader->class_field;
    uint32_t column = reader->columns[reader->schema->numbers[reader->schema->class_number].index];
    *class_field = (struct kelp_table_class){.value = 0.0};
    *ret_value = (double)NAN;
    if (kelp_table_field_is_missing(&reader->fields[column])) {
        return KELP_OK;
    }
    *ret_value = 0.0;
    class_field->is_name = kelp_csv_number(reader->csv, column, ret_value, NULL) != KELP_OK;
    if (!class_field->is_name && floor(*ret_value) == *ret_value) {
        print_number(*ret_value, class_field->text);
        return KELP_OK;
    }
    kelp_status status =
        kelp_csv_text(reader->csv, column, class_field->text, sizeof(class_field->text), reterr);
    return status == KELP_OK && !is_printable(class_field->text)
               ? kelp_csv_bad_field(reader->csv, column,
                                    "cannot name a class: it has a control character", reterr)
               : status;
}

/* *ret_keep is false for a row that the policy drops. */
static kelp_status read_numbers(struct kelp_table_reader *reader, bool *ret_keep,
                                struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = reader->schema;
    uint32_t first_target = schema->column_count + schema->known_count;
    for (uint32_t i = 0; i < schema->number_count; i++) {
        bool is_class = schema->numbers[i].is_source && !schema->unlabelled;
        double value = schema->numbers[i].is_source ? 0.0 : reader->slots[schema->numbers[i].index];
        kelp_status status = is_class ? read_class(reader, &value, reterr) : KELP_OK;
        if (status != KELP_OK) {
            return status;
        }
        if (schema->unlabelled && i >= first_target) {
            value = 0.0;
        } else if (isnan(value)) {
            switch (reader->missing) {
            case KELP_MISSING_ERROR:
                return no_value(reader, schema->numbers[i].name, is_class, reterr);
            case KELP_MISSING_DROP:
                *ret_keep = false;
                return KELP_OK;
            case KELP_MISSING_ZERO:
                value = 0.0;
                break;
            case KELP_MISSING_MEAN:
                break;
            }
        }
        reader->numbers[i] = value;
        if (is_class) {
            reader->class_field.value = value;
        }
    }
    return KELP_OK;
}

static kelp_status read_word(struct kelp_table_reader *reader,
                             const struct kelp_table_output *output, char *word, bool *ret_missing,
                             struct kelp_error *reterr)
{
    if (!output->is_source) {
        double value = reader->slots[output->index];
        *ret_missing = isnan(value);
        print_number(isnan(value) ? 0.0 : value, word);
        return KELP_OK;
    }
    uint32_t column = reader->columns[output->index];
    double value = 0.0;
    *ret_missing = kelp_csv_is_empty(reader->csv, column);
    if (kelp_csv_number(reader->csv, column, &value, NULL) == KELP_OK && floor(value) == value) {
        print_number(value, word);
        return KELP_OK;
    }
    return kelp_csv_text(reader->csv, column, word, KELP_TABLE_WORD_MAX + 1, reterr);
}

/* A missing category is one of its own, the empty word, where missing numbers are filled. */
static kelp_status read_words(struct kelp_table_reader *reader, bool *ret_keep,
                              struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = reader->schema;
    for (uint32_t i = 0; i < schema->word_count; i++) {
        bool missing = false;
        kelp_status status =
            read_word(reader, &schema->words[i], reader->words[i], &missing, reterr);
        if (status != KELP_OK) {
            return status;
        }
        if (missing) {
            reader->words[i][0] = '\0';
            if (reader->missing == KELP_MISSING_ERROR) {
                return no_value(reader, schema->words[i].name, false, reterr);
            }
            *ret_keep = *ret_keep && reader->missing != KELP_MISSING_DROP;
        }
    }
    return KELP_OK;
}

static kelp_status read_row_time(struct kelp_table_reader *reader, struct kelp_table_row *row,
                                 bool *ret_keep, struct kelp_error *reterr)
{
    if (!reader->schema->has_time) {
        return KELP_OK;
    }
    row->time = reader->slots[reader->schema->time_slot];
    if (!isnan(row->time)) {
        return KELP_OK;
    }
    *ret_keep = false;
    if (reader->missing == KELP_MISSING_DROP) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_FORMAT,
                     "%s:%" PRIu64
                     ": the row has no time (data.time); fill it in, or set data.missing to "
                     "drop",
                     kelp_csv_name(reader->csv), kelp_csv_line(reader->csv));
}

/* ---- rows ------------------------------------------------------------------------------------ */

static kelp_status open_file(struct kelp_table_reader *reader, struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = reader->schema;
    kelp_status status = kelp_csv_open(reader->files->paths[reader->file], &reader->csv, reterr);
    for (uint32_t i = 0; i < schema->source_count && status == KELP_OK; i++) {
        const struct kelp_table_source *source = &schema->sources[i];
        if (!source->absent) {
            status =
                kelp_csv_find(reader->csv, source->key, source->name, &reader->columns[i], reterr);
        } else if (!source->is_word) {
            reader->slots[source->slot] = (double)NAN;
        }
    }
    return status;
}

/* The next row of the file; *ret_found is false at its end, *ret_keep for a row that is left out.
 */
static kelp_status read_row(struct kelp_table_reader *reader, struct kelp_table_row *row,
                            bool *ret_found, bool *ret_keep, struct kelp_error *reterr)
{
    const struct kelp_csv_field *fields = NULL;
    kelp_status status = kelp_csv_next(reader->csv, &fields, reterr);
    *ret_found = fields;
    *ret_keep = false;
    if (status != KELP_OK || !fields) {
        return status;
    }
    reader->fields = fields;
    status = fill_slots(reader, fields, reterr);
    if (status != KELP_OK || !passes_filters(reader)) {
        return status;
    }
    *ret_keep = true;
    status = read_numbers(reader, ret_keep, reterr);
    if (status == KELP_OK && *ret_keep) {
        status = read_words(reader, ret_keep, reterr);
    }
    if (status == KELP_OK && *ret_keep) {
        status = read_row_time(reader, row, ret_keep, reterr);
    }
    return status;
}

kelp_status kelp_table_reader_next(struct kelp_table_reader *reader, struct kelp_table_row *ret_row,
                                   bool *ret_found, struct kelp_error *reterr)
{
    struct kelp_table_row row = {.numbers = reader->numbers,
                                 .words = (const char(*)[KELP_TABLE_WORD_MAX + 1]) reader->words,
                                 .class_field = &reader->class_field};
    while (reader->file < reader->files->count) {
        bool found = false;
        bool keep = false;
        kelp_status status = KELP_OK;
        if (!reader->csv) {
            status = open_file(reader, reterr);
        }
        if (status == KELP_OK) {
            status = read_row(reader, &row, &found, &keep, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
        if (keep) {
            *ret_row = row;
            *ret_found = true;
            return KELP_OK;
        }
        if (!found) {
            kelp_csv_close(reader->csv);
            reader->csv = NULL;
            reader->file++;
        }
    }
    *ret_found = false;
    return KELP_OK;
}

uint32_t kelp_table_reader_file(const struct kelp_table_reader *reader)
{
    return reader->file;
}

uint64_t kelp_table_reader_line(const struct kelp_table_reader *reader)
{
    return reader->csv ? kelp_csv_line(reader->csv) : 0;
}

bool kelp_table_reader_saw_dates(const struct kelp_table_reader *reader)
{
    return reader->saw_dates;
}

kelp_status kelp_table_reader_open(const struct kelp_table_schema *schema,
                                   const struct kelp_table_files *files,
                                   enum kelp_missing_policy missing,
                                   struct kelp_table_reader **ret_reader, struct kelp_error *reterr)
{
    struct kelp_table_reader *reader = calloc(1, sizeof(*reader));
    if (!reader) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    reader->schema = schema;
    reader->files = files;
    reader->missing = missing;
    *ret_reader = reader;
    return KELP_OK;
}

void kelp_table_reader_close(struct kelp_table_reader *reader)
{
    if (!reader) {
        return;
    }
    kelp_csv_close(reader->csv);
    free(reader);
}
