/*
 * A window of the text slides over the file: a line lies in it whole, and what follows is read when
 * no line end is left. Rows are cut into fields where they lie; nothing is copied.
 */
#include "worker/data/text/csv.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "worker/data/text/decimal.h"
#include "worker/data/text/input_file.h"

/* Bytes of a bad field that an error shows. */
#define SHOWN_MAX 32
/* A line of the largest size and its end always fit. */
#define WINDOW_BYTES (4u * KELP_CSV_LINE_MAX)

struct kelp_csv {
    char *name;
    struct kelp_input_file *file; /* NULL: the text is in memory */
    const char *memory;
    size_t memory_bytes; /* that were not taken yet */
    char *window;
    size_t first; /* of the window: what was not taken yet */
    size_t end;
    bool ended; /* nothing follows the window */
    char *line; /* the current line, without its end */
    size_t line_bytes;
    uint64_t line_number;
    locale_t locale; /* "C": the decimal point does not depend on the user */
    char (*columns)[KELP_CSV_COLUMN_NAME_MAX + 1];
    struct kelp_csv_field *fields; /* of the current row */
    uint32_t column_count;
};

/* ---- lines ----------------------------------------------------------------------------------- */

/* Read more text behind what is left of the window. */
static kelp_status slide(struct kelp_csv *csv, struct kelp_error *reterr)
{
    memmove(csv->window, csv->window + csv->first, csv->end - csv->first);
    csv->end -= csv->first;
    csv->first = 0;
    size_t room = WINDOW_BYTES - csv->end;
    size_t count = 0;
    if (csv->file) {
        kelp_status status =
            kelp_input_file_read(csv->file, csv->window + csv->end, room, &count, reterr);
        if (status != KELP_OK) {
            return status;
        }
    } else {
        count = csv->memory_bytes < room ? csv->memory_bytes : room;
        memcpy(csv->window + csv->end, csv->memory, count);
        csv->memory += count;
        csv->memory_bytes -= count;
    }
    csv->end += count;
    csv->ended = count < room;
    return KELP_OK;
}

static kelp_status check_line(const struct kelp_csv *csv, struct kelp_error *reterr)
{
    if (memchr(csv->line, '\0', csv->line_bytes)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "%s:%" PRIu64 ": the line holds a zero byte; save the file as UTF-8 text",
                         csv->name, csv->line_number);
    }
    if (csv->line_number == 1 && memchr(csv->line, '\r', csv->line_bytes)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "%s:1: the lines end with carriage returns (CR) alone; save the file with "
                         "LF or CR LF at the end of each line",
                         csv->name);
    }
    if (csv->line_bytes > KELP_CSV_LINE_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "%s:%" PRIu64
                         ": the line is longer than %u bytes; a row is one line of text",
                         csv->name, csv->line_number, KELP_CSV_LINE_MAX);
    }
    return KELP_OK;
}

/* Take the next line; *ret_found is false at the end of the text. */
static kelp_status next_line(struct kelp_csv *csv, bool *ret_found, struct kelp_error *reterr)
{
    char *newline = memchr(csv->window + csv->first, '\n', csv->end - csv->first);
    if (!newline && !csv->ended && csv->end - csv->first <= KELP_CSV_LINE_MAX + 1) {
        kelp_status status = slide(csv, reterr);
        if (status != KELP_OK) {
            return status;
        }
        newline = memchr(csv->window + csv->first, '\n', csv->end - csv->first);
    }
    *ret_found = csv->first < csv->end;
    if (!*ret_found) {
        return KELP_OK;
    }
    csv->line = csv->window + csv->first;
    csv->line_bytes = newline ? (size_t)(newline - csv->line) : csv->end - csv->first;
    csv->first += csv->line_bytes + (newline ? 1 : 0);
    csv->line_number++;
    if (csv->line_bytes > 0 && csv->line[csv->line_bytes - 1] == '\r') {
        csv->line_bytes--;
    }
    return check_line(csv, reterr);
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] != ' ' && text[i] != '\t') {
            return false;
        }
    }
    return true;
}

/* ---- fields ---------------------------------------------------------------------------------- */

static kelp_status bad_quote(const struct kelp_csv *csv, uint32_t column, const char *what,
                             struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_FORMAT,
                     "%s:%" PRIu64
                     ": field %u: %s; a quoted field is \"...\" on one line, with \"\" for "
                     "a quote in it",
                     csv->name, csv->line_number, column + 1, what);
}

/* Take a field whose opening quote is at *at; leave *at behind the closing one. */
static kelp_status next_quoted(const struct kelp_csv *csv, uint32_t column, const char **at,
                               struct kelp_csv_field *field, struct kelp_error *reterr)
{
    const char *end = csv->line + csv->line_bytes;
    const char *p = *at + 1;
    *field = (struct kelp_csv_field){.start = p};
    for (;;) {
        p = memchr(p, '"', (size_t)(end - p));
        if (!p) {
            return bad_quote(csv, column, "the quote is not closed", reterr);
        }
        if (p + 1 == end || p[1] != '"') {
            break;
        }
        field->escaped = true;
        p += 2;
    }
    field->bytes = (size_t)(p - field->start);
    *at = p + 1;
    return KELP_OK;
}

/*
 * Take the field at *at and the comma behind it. *at becomes NULL behind the last field of the
 * line, so that "a," is two fields.
 */
static kelp_status next_field(const struct kelp_csv *csv, uint32_t column, const char **at,
                              struct kelp_csv_field *field, struct kelp_error *reterr)
{
    const char *end = csv->line + csv->line_bytes;
    if (*at < end && **at == '"') {
        kelp_status status = next_quoted(csv, column, at, field, reterr);
        if (status != KELP_OK) {
            return status;
        }
        if (*at < end && **at != ',') {
            return bad_quote(csv, column, "text follows the closing quote", reterr);
        }
    } else {
        const char *comma = memchr(*at, ',', (size_t)(end - *at));
        *field =
            (struct kelp_csv_field){.start = *at, .bytes = (size_t)((comma ? comma : end) - *at)};
        if (memchr(field->start, '"', field->bytes)) {
            return bad_quote(csv, column, "a quote stands inside an unquoted field", reterr);
        }
        *at += field->bytes;
    }
    *at = *at < end ? *at + 1 : NULL;
    return KELP_OK;
}

/* Copy a field with doubled quotes made one; false when it does not fit. */
static bool unescape(const struct kelp_csv_field *field, char *text, size_t text_bytes)
{
    size_t bytes = 0;
    for (size_t i = 0; i < field->bytes; i++) {
        if (bytes + 1 >= text_bytes) {
            return false;
        }
        text[bytes++] = field->start[i];
        i += field->escaped && field->start[i] == '"' ? 1 : 0;
    }
    text[bytes] = '\0';
    return true;
}

/* ---- header ---------------------------------------------------------------------------------- */

static kelp_status read_name(struct kelp_csv *csv, const struct kelp_csv_field *field,
                             struct kelp_error *reterr)
{
    uint32_t column = csv->column_count;
    if (column == KELP_CSV_COLUMNS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%s:1: the header names more than %d columns",
                         csv->name, KELP_CSV_COLUMNS_MAX);
    }
    if (!unescape(field, csv->columns[column], sizeof(csv->columns[column]))) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "%s:1: the name of column %u is longer than %d bytes; the first line must "
                         "name the columns",
                         csv->name, column + 1, KELP_CSV_COLUMN_NAME_MAX);
    }
    csv->column_count++;
    return KELP_OK;
}

static kelp_status skip_byte_order_mark(struct kelp_csv *csv, struct kelp_error *reterr)
{
    static const char byte_order_mark[3] = {'\xef', '\xbb', '\xbf'};
    kelp_status status = slide(csv, reterr);
    if (status == KELP_OK && csv->end >= sizeof(byte_order_mark) &&
        memcmp(csv->window, byte_order_mark, sizeof(byte_order_mark)) == 0) {
        csv->first = sizeof(byte_order_mark);
    }
    return status;
}

static kelp_status read_header(struct kelp_csv *csv, struct kelp_error *reterr)
{
    bool found = false;
    kelp_status status = skip_byte_order_mark(csv, reterr);
    if (status == KELP_OK) {
        status = next_line(csv, &found, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (!found || is_blank(csv->line, csv->line_bytes)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%s:1: %s; the first line must name the columns",
                         csv->name, found ? "the first line is blank" : "the file is empty");
    }
    const char *at = csv->line;
    while (at) {
        struct kelp_csv_field field;
        status = next_field(csv, csv->column_count, &at, &field, reterr);
        if (status == KELP_OK) {
            status = read_name(csv, &field, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

uint32_t kelp_csv_column_count(const struct kelp_csv *csv)
{
    return csv->column_count;
}

const char *kelp_csv_column(const struct kelp_csv *csv, uint32_t column)
{
    assert(column < csv->column_count);
    return csv->columns[column];
}

static kelp_status no_such_column(const struct kelp_csv *csv, const char *key, const char *name,
                                  struct kelp_error *reterr)
{
    char list[256] = "";
    for (uint32_t i = 0; i < csv->column_count; i++) {
        kelp_text_list_add(list, sizeof(list), csv->columns[i]);
    }
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "%s:1: column %s: no such column; set %s to one of: %s", csv->name, name, key,
                     list);
}

kelp_status kelp_csv_lacks(const struct kelp_csv *csv, const char *name, const char *wanted,
                           struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "%s:1: column %s: no such column; the model takes these: %s", csv->name, name,
                     wanted);
}

kelp_status kelp_csv_find(const struct kelp_csv *csv, const char *key, const char *name,
                          uint32_t *ret_column, struct kelp_error *reterr)
{
    uint32_t found = csv->column_count;
    for (uint32_t i = 0; i < csv->column_count; i++) {
        if (strcmp(csv->columns[i], name) != 0) {
            continue;
        }
        if (found < csv->column_count) {
            return kelp_fail(reterr, KELP_ERR_FORMAT,
                             "%s:1: column %s: stands twice, as columns %u and %u; each name must "
                             "be unique",
                             csv->name, name, found + 1, i + 1);
        }
        found = i;
    }
    if (found == csv->column_count) {
        return no_such_column(csv, key, name, reterr);
    }
    *ret_column = found;
    return KELP_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static kelp_status bad_field_count(const struct kelp_csv *csv, uint32_t count,
                                   struct kelp_error *reterr)
{
    if (count < csv->column_count) {
        return kelp_fail(
            reterr, KELP_ERR_FORMAT,
            "%s:%" PRIu64 ": column %s: missing, the row has %u of %u fields; every row "
            "needs one field per column of the header",
            csv->name, csv->line_number, csv->columns[count], count, csv->column_count);
    }
    return kelp_fail(reterr, KELP_ERR_FORMAT,
                     "%s:%" PRIu64
                     ": the row has more than the %u fields of the header; every row needs "
                     "one field per column",
                     csv->name, csv->line_number, csv->column_count);
}

static kelp_status cut_row(struct kelp_csv *csv, struct kelp_error *reterr)
{
    const char *at = csv->line;
    for (uint32_t column = 0; column < csv->column_count; column++) {
        if (!at) {
            return bad_field_count(csv, column, reterr);
        }
        kelp_status status = next_field(csv, column, &at, &csv->fields[column], reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return !at ? KELP_OK : bad_field_count(csv, csv->column_count + 1, reterr);
}

/* Blank lines are let pass at the end alone. */
static kelp_status check_rest_blank(struct kelp_csv *csv, struct kelp_error *reterr)
{
    uint64_t blank = csv->line_number;
    for (;;) {
        bool found = false;
        kelp_status status = next_line(csv, &found, reterr);
        if (status != KELP_OK || !found) {
            return status;
        }
        if (!is_blank(csv->line, csv->line_bytes)) {
            return kelp_fail(reterr, KELP_ERR_FORMAT,
                             "%s:%" PRIu64
                             ": the line is blank; every line between header and end of "
                             "file must hold one row",
                             csv->name, blank);
        }
    }
}

kelp_status kelp_csv_next(struct kelp_csv *csv, const struct kelp_csv_field **ret_fields,
                          struct kelp_error *reterr)
{
    bool found = false;
    kelp_status status = next_line(csv, &found, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (found && is_blank(csv->line, csv->line_bytes)) {
        status = check_rest_blank(csv, reterr);
        found = false;
    } else if (found) {
        status = cut_row(csv, reterr);
    }
    if (status == KELP_OK) {
        *ret_fields = found ? csv->fields : NULL;
    }
    return status;
}

uint64_t kelp_csv_line(const struct kelp_csv *csv)
{
    return csv->line_number;
}

/* ---- values ---------------------------------------------------------------------------------- */

kelp_status kelp_csv_bad_field(const struct kelp_csv *csv, uint32_t column, const char *what,
                               struct kelp_error *reterr)
{
    const struct kelp_csv_field *field = &csv->fields[column];
    char shown[SHOWN_MAX + 1];
    size_t bytes = field->bytes < SHOWN_MAX ? field->bytes : SHOWN_MAX;
    for (size_t i = 0; i < bytes; i++) {
        shown[i] = (char)(isprint((unsigned char)field->start[i]) ? field->start[i] : '?');
    }
    shown[bytes] = '\0';
    return kelp_fail(reterr, KELP_ERR_FORMAT, "%s:%" PRIu64 ": column %s: '%s%s' %s", csv->name,
                     csv->line_number, csv->columns[column], shown,
                     bytes < field->bytes ? "..." : "", what);
}

kelp_status kelp_csv_number(const struct kelp_csv *csv, uint32_t column, double *ret_value,
                            struct kelp_error *reterr)
{
    const struct kelp_csv_field *field = &csv->fields[column];
    enum kelp_decimal result =
        kelp_decimal_parse(field->start, field->bytes, csv->locale, ret_value);
    if (result == KELP_DECIMAL_OK) {
        return KELP_OK;
    }
    char what[96];
    (void)snprintf(what, sizeof(what),
                   "%s; each value must be a finite decimal number such as -12.5",
                   kelp_decimal_problem(result));
    return kelp_csv_bad_field(csv, column, what, reterr);
}

bool kelp_csv_is_empty(const struct kelp_csv *csv, uint32_t column)
{
    return is_blank(csv->fields[column].start, csv->fields[column].bytes);
}

kelp_status kelp_csv_text(const struct kelp_csv *csv, uint32_t column, char *text,
                          size_t text_bytes, struct kelp_error *reterr)
{
    struct kelp_csv_field field = csv->fields[column];
    while (field.bytes > 0 && is_blank(field.start, 1)) {
        field.start++;
        field.bytes--;
    }
    while (field.bytes > 0 && is_blank(field.start + field.bytes - 1, 1)) {
        field.bytes--;
    }
    if (!unescape(&field, text, text_bytes)) {
        char what[64];
        (void)snprintf(what, sizeof(what), "is too long; at most %zu bytes fit", text_bytes - 1);
        (void)kelp_csv_bad_field(csv, column, what, reterr);
        if (reterr) {
            reterr->status = KELP_ERR_LIMIT;
        }
        return KELP_ERR_LIMIT;
    }
    return KELP_OK;
}

const char *kelp_csv_name(const struct kelp_csv *csv)
{
    return csv->name;
}

/* ---- life ------------------------------------------------------------------------------------ */

static kelp_status begin(struct kelp_csv *csv, const char *name, struct kelp_error *reterr)
{
    csv->name = strdup(name);
    csv->window = malloc(WINDOW_BYTES);
    csv->columns = calloc(KELP_CSV_COLUMNS_MAX, sizeof(*csv->columns));
    csv->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!csv->name || !csv->window || !csv->columns || csv->locale == (locale_t)0) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", name);
    }
    kelp_status status = read_header(csv, reterr);
    if (status != KELP_OK) {
        return status;
    }
    csv->fields = calloc(csv->column_count, sizeof(*csv->fields));
    return csv->fields ? KELP_OK : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", name);
}

kelp_status kelp_csv_open_memory(const char *name, const char *text, size_t text_bytes,
                                 struct kelp_csv **ret_csv, struct kelp_error *reterr)
{
    struct kelp_csv *csv = calloc(1, sizeof(*csv));
    if (!csv) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", name);
    }
    csv->memory = text;
    csv->memory_bytes = text_bytes;
    kelp_status status = begin(csv, name, reterr);
    if (status != KELP_OK) {
        kelp_csv_close(csv);
        return status;
    }
    *ret_csv = csv;
    return KELP_OK;
}

kelp_status kelp_csv_open(const char *path, struct kelp_csv **ret_csv, struct kelp_error *reterr)
{
    struct kelp_csv *csv = calloc(1, sizeof(*csv));
    if (!csv) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    kelp_status status = kelp_input_file_open(path, &csv->file, reterr);
    if (status == KELP_OK) {
        status = begin(csv, path, reterr);
    }
    if (status != KELP_OK) {
        kelp_csv_close(csv);
        return status;
    }
    *ret_csv = csv;
    return KELP_OK;
}

void kelp_csv_close(struct kelp_csv *csv)
{
    if (!csv) {
        return;
    }
    kelp_input_file_close(csv->file);
    if (csv->locale != (locale_t)0) {
        freelocale(csv->locale);
    }
    free(csv->fields);
    free(csv->columns);
    free(csv->window);
    free(csv->name);
    free(csv);
}
