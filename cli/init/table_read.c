#include "cli/init/table_read.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/value.h"
#include "worker/data/limits.h"
#include "worker/data/text/calendar.h"
#include "worker/data/text/csv.h"

/* A file that is being read, and what is kept besides the facts. */
struct reading {
    struct kelp_table_facts *facts;
    struct kelp_csv *csv;
    uint32_t *columns; /* of this file, for each of the first file's; owned */
    int64_t *dates;    /* of the rows that were looked at; owned */
    uint64_t date_room;
};

void kelp_table_facts_fini(struct kelp_table_facts *facts)
{
    for (uint32_t i = 0; i < facts->column_count; i++) {
        kelp_column_fini(&facts->columns[i]);
    }
    free(facts->columns);
    *facts = (struct kelp_table_facts){0};
}

static bool is_missing(const char *text)
{
    static const char *const words[] = {"", "na", "n/a", "nan", "null", "none"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(words); i++) {
        if (strcasecmp(text, words[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- one file -------------------------------------------------------------------------------- */

/* A row where the names should be: it begins with a date, has a fraction, or numbers in no order.
 */
static const char *value_in_header(const struct kelp_csv *csv)
{
    const char *first = kelp_csv_column(csv, 0);
    uint32_t count = kelp_csv_column_count(csv);
    double last = -HUGE_VAL, number = 0.0;
    bool numbers = true, ascends = true;
    int64_t seconds = 0;
    if (kelp_calendar_parse(first, strlen(first), &seconds)) {
        return first;
    }
    for (uint32_t i = 0; i < count; i++) {
        const char *name = kelp_csv_column(csv, i);
        bool is_number = kelp_value_double(name, -HUGE_VAL, HUGE_VAL, &number, NULL) == KELP_OK;
        if (is_number && strchr(name, '.')) {
            return name;
        }
        numbers = numbers && is_number;
        ascends = ascends && is_number && number > last;
        last = number;
    }
    return numbers && !ascends ? first : NULL;
}

/* The first file gives the columns. */
static kelp_status read_columns(struct reading *reading, struct kelp_error *reterr)
{
    struct kelp_table_facts *facts = reading->facts;
    uint32_t count = kelp_csv_column_count(reading->csv);
    const char *only = kelp_csv_column(reading->csv, 0);
    if (count == 1 && strpbrk(only, ";\t|")) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "%s:1: the header has one column, '%.63s'; columns must be separated by "
                         "commas, and numbers written with a point",
                         kelp_csv_name(reading->csv), only);
    }
    const char *value = value_in_header(reading->csv);
    if (value) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "%s:1: '%.63s' is a value, but the first line must name the columns",
                         kelp_csv_name(reading->csv), value);
    }
    facts->columns = calloc(count, sizeof(*facts->columns));
    reading->columns = calloc(count, sizeof(*reading->columns));
    if (!facts->columns || !reading->columns) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %u columns", count);
    }
    facts->column_count = count;
    for (uint32_t i = 0; i < count; i++) {
        const char *name = kelp_csv_column(reading->csv, i);
        memcpy(facts->columns[i].name, name, strlen(name) + 1);
    }
    return KELP_OK;
}

static bool is_repeated(const struct kelp_table_facts *facts, uint32_t column)
{
    for (uint32_t i = 0; i < facts->column_count; i++) {
        if (i != column && strcmp(facts->columns[i].name, facts->columns[column].name) == 0) {
            return true;
        }
    }
    return false;
}

static kelp_status find_columns(struct reading *reading, bool first, struct kelp_error *reterr)
{
    struct kelp_table_facts *facts = reading->facts;
    if (first) {
        kelp_status status = read_columns(reading, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i < facts->column_count; i++) {
        const char *name = facts->columns[i].name;
        if (is_repeated(facts, i)) {
            reading->columns[i] = first ? i : UINT32_MAX;
        } else if (kelp_csv_find(reading->csv, name, name, &reading->columns[i], NULL) != KELP_OK) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "%s: column %s: no such column, which the files before it have; put "
                             "files with other columns in another folder",
                             kelp_csv_name(reading->csv), name);
        }
    }
    return KELP_OK;
}

static void look_at(struct reading *reading, const struct kelp_csv_field *csv_field,
                    uint32_t column, char word[KELP_TABLE_WORD_MAX + 1], struct kelp_field *field)
{
    bool fits = kelp_csv_text(reading->csv, column, word, KELP_TABLE_WORD_MAX + 1, NULL) == KELP_OK;
    field->word = fits ? word : NULL;
    field->missing = fits && is_missing(word);
    field->is_number =
        !field->missing && kelp_csv_number(reading->csv, column, &field->number, NULL) == KELP_OK;
    field->is_date = !field->missing && !field->is_number &&
                     kelp_calendar_parse(csv_field->start, csv_field->bytes, &field->seconds);
}

static kelp_status keep_date(struct reading *reading, int64_t seconds, struct kelp_error *reterr)
{
    struct kelp_table_facts *facts = reading->facts;
    if (facts->date_count == reading->date_room) {
        uint64_t room = reading->date_room > 0 ? 2 * reading->date_room : 4096;
        int64_t *dates = realloc(reading->dates, room * sizeof(*dates));
        if (!dates) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for dates");
        }
        reading->dates = dates;
        reading->date_room = room;
    }
    reading->dates[facts->date_count++] = seconds;
    return KELP_OK;
}

/* The first column with dates keeps them; the others' are seen from there. */
static kelp_status relate_date(struct reading *reading, uint32_t column, struct kelp_field *field,
                               const struct kelp_field *first, struct kelp_error *reterr)
{
    struct kelp_table_facts *facts = reading->facts;
    if (!field->is_date) {
        return KELP_OK;
    }
    if (!facts->has_dates) {
        facts->has_dates = true;
        facts->date_column = column;
    }
    if (facts->date_column == column) {
        return keep_date(reading, field->seconds, reterr);
    }
    field->has_since = first->is_date;
    field->since = first->is_date ? (double)(field->seconds - first->seconds) : 0.0;
    return KELP_OK;
}

static kelp_status read_row(struct reading *reading, const struct kelp_csv_field *fields,
                            struct kelp_error *reterr)
{
    struct kelp_table_facts *facts = reading->facts;
    struct kelp_field first = {.row = facts->rows};
    kelp_status status = KELP_OK;
    for (uint32_t i = 0; i < facts->column_count && status == KELP_OK; i++) {
        char word[KELP_TABLE_WORD_MAX + 1];
        struct kelp_field field = {.row = facts->rows};
        if (reading->columns[i] == UINT32_MAX) {
            continue;
        }
        look_at(reading, &fields[reading->columns[i]], reading->columns[i], word, &field);
        status = relate_date(reading, i, &field, &first, reterr);
        first = facts->has_dates && facts->date_column == i ? field : first;
        if (status == KELP_OK) {
            status = kelp_column_add(&facts->columns[i], &field, reterr);
        }
    }
    return status;
}

static kelp_status read_file(struct reading *reading, const char *path, bool first,
                             struct kelp_error *reterr)
{
    struct kelp_table_facts *facts = reading->facts;
    kelp_status status = kelp_csv_open(path, &reading->csv, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = find_columns(reading, first, reterr);
    while (status == KELP_OK) {
        const struct kelp_csv_field *fields = NULL;
        status = kelp_csv_next(reading->csv, &fields, reterr);
        if (status != KELP_OK || !fields) {
            break;
        }
        if (facts->rows < KELP_INIT_ROWS_MAX) {
            status = read_row(reading, fields, reterr);
            facts->looked++;
        }
        facts->rows++;
    }
    kelp_csv_close(reading->csv);
    return status;
}

/* ---- all ------------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
    const int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

/* How many different dates there are, and whether they are evenly spaced. */
static void measure_dates(struct reading *reading)
{
    struct kelp_table_facts *facts = reading->facts;
    int64_t *dates = reading->dates;
    uint64_t count = 0;
    bool even = true;
    if (facts->date_count == 0) {
        return;
    }
    qsort(dates, facts->date_count, sizeof(*dates), by_time);
    for (uint64_t i = 0; i < facts->date_count; i++) {
        if (count == 0 || dates[i] != dates[count - 1]) {
            dates[count++] = dates[i];
        }
    }
    for (uint64_t i = 2; i < count; i++) {
        even = even && dates[i] - dates[i - 1] == dates[1] - dates[0];
    }
    facts->date_count = count;
    facts->date_step = even && count > 2 ? dates[1] - dates[0] : 0;
}

kelp_status kelp_table_read(char *const *paths, uint32_t count, struct kelp_table_facts *ret_facts,
                            struct kelp_error *reterr)
{
    struct kelp_table_facts facts = {.file_count = count};
    struct reading reading = {.facts = &facts};
    kelp_status status = KELP_OK;
    for (uint32_t i = 0; i < count && status == KELP_OK; i++) {
        status = read_file(&reading, paths[i], i == 0, reterr);
    }
    if (status == KELP_OK && facts.rows == 0) {
        status = kelp_fail(reterr, KELP_ERR_INVALID, "%s: has no rows after its header", paths[0]);
    }
    measure_dates(&reading);
    free(reading.dates);
    free(reading.columns);
    if (status == KELP_OK) {
        *ret_facts = facts;
    } else {
        kelp_table_facts_fini(&facts);
    }
    return status;
}
