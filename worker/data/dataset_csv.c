/* A time series from a CSV file: the target column, or all but the first. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "worker/data/dataset_series.h"
#include "worker/data/text/calendar.h"
#include "worker/data/text/csv.h"

/* Which columns of the file belong to the series, in the series' order. */
struct selection {
    uint32_t *columns; /* owned */
    uint32_t count;
};

static kelp_status select_columns(const struct kelp_csv *csv, const char *target,
                                  struct selection *selection, struct kelp_error *reterr)
{
    uint32_t all = kelp_csv_column_count(csv);
    selection->columns = calloc(all, sizeof(*selection->columns));
    if (!selection->columns) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", kelp_csv_name(csv));
    }
    if (target) {
        selection->count = 1;
        return kelp_csv_find(csv, "data.target", target, &selection->columns[0], reterr);
    }
    if (all == 1) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "%s:1: the header has one column; data.features M and MS take all but the "
                         "first, separated by commas",
                         kelp_csv_name(csv));
    }
    kelp_status status = KELP_OK;
    for (uint32_t i = 1; i < all && status == KELP_OK; i++) {
        status = kelp_csv_find(csv, "data.target", kelp_csv_column(csv, i),
                               &selection->columns[selection->count++], reterr);
    }
    return status;
}

static kelp_status lacks_column(const struct kelp_csv *csv, const char *name,
                                const struct kelp_card_columns *columns, struct kelp_error *reterr)
{
    char list[256] = "";
    for (uint32_t i = 0; i < columns->count; i++) {
        kelp_text_list_add(list, sizeof(list), columns->items[i].name);
    }
    return kelp_csv_lacks(csv, name, list, reterr);
}

static kelp_status select_these(const struct kelp_csv *csv, const struct kelp_card_columns *columns,
                                struct selection *selection, struct kelp_error *reterr)
{
    selection->columns = calloc((size_t)columns->count + 1, sizeof(*selection->columns));
    if (!selection->columns) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", kelp_csv_name(csv));
    }
    for (uint32_t i = 0; i < columns->count; i++) {
        const char *name = columns->items[i].name;
        kelp_status status =
            kelp_csv_find(csv, "data.target", name, &selection->columns[selection->count++], NULL);
        if (status != KELP_OK) {
            return lacks_column(csv, name, columns, reterr);
        }
    }
    return KELP_OK;
}

static kelp_status grow(const struct kelp_csv *csv, struct kelp_series *series, uint64_t *capacity,
                        struct kelp_error *reterr)
{
    uint64_t larger = *capacity > 0 ? 2 * *capacity : 4096;
    double *values = NULL;
    if (larger <= KELP_CSV_VALUES_MAX / series->column_count) {
        values = realloc(series->values,
                         (size_t)(larger * series->column_count) * sizeof(*series->values));
    }
    if (!values) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%s:%" PRIu64 ": more rows than fit in memory",
                         kelp_csv_name(csv), kelp_csv_line(csv));
    }
    series->values = values;
    *capacity = larger;
    if (!series->times && series->row_count > 0) {
        return KELP_OK; /* earlier rows had no dates */
    }
    int64_t *times = realloc(series->times, (size_t)larger * sizeof(*times));
    if (!times) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", kelp_csv_name(csv));
    }
    series->times = times;
    return KELP_OK;
}

/* Times only label forecasts. If the first column is not a date in some row, it is not a time. */
static void read_time(struct kelp_series *series, const struct kelp_csv_field *field)
{
    if (series->times &&
        !kelp_calendar_parse(field->start, field->bytes, &series->times[series->row_count])) {
        free(series->times);
        series->times = NULL;
    }
}

static kelp_status read_rows(struct kelp_csv *csv, const struct selection *selection,
                             struct kelp_series *series, struct kelp_error *reterr)
{
    uint64_t capacity = 0;
    for (;;) {
        const struct kelp_csv_field *fields = NULL;
        kelp_status status = kelp_csv_next(csv, &fields, reterr);
        if (status != KELP_OK || !fields) {
            return status;
        }
        if (series->row_count == capacity) {
            status = grow(csv, series, &capacity, reterr);
        }
        double *row = series->values + series->row_count * series->column_count;
        for (uint32_t i = 0; i < selection->count && status == KELP_OK; i++) {
            status = kelp_csv_number(csv, selection->columns[i], &row[i], reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
        read_time(series, &fields[0]);
        series->row_count++;
    }
}

/* columns: those of a model; NULL: the target, or all but the first. */
static kelp_status read_series(struct kelp_csv *csv, const char *target,
                               const struct kelp_card_columns *columns,
                               struct kelp_series *ret_series, struct kelp_error *reterr)
{
    struct selection selection = {0};
    struct kelp_series series = {0};
    kelp_status status = columns ? select_these(csv, columns, &selection, reterr)
                                 : select_columns(csv, target, &selection, reterr);
    if (status == KELP_OK) {
        status = kelp_series_init(&series, 0, selection.count, reterr);
    }
    for (uint32_t i = 0; i < series.column_count; i++) {
        const char *name = kelp_csv_column(csv, selection.columns[i]);
        memcpy(series.column_names[i], name, strlen(name) + 1);
    }
    if (status == KELP_OK) {
        status = read_rows(csv, &selection, &series, reterr);
    }
    free(selection.columns);
    if (status != KELP_OK) {
        kelp_series_fini(&series);
        return status;
    }
    *ret_series = series;
    return KELP_OK;
}

kelp_status kelp_series_parse(const char *name, const char *text, size_t text_bytes,
                              const char *target, struct kelp_series *ret_series,
                              struct kelp_error *reterr)
{
    struct kelp_csv *csv = NULL;
    kelp_status status = kelp_csv_open_memory(name, text, text_bytes, &csv, reterr);
    if (status == KELP_OK) {
        status = read_series(csv, target, NULL, ret_series, reterr);
    }
    kelp_csv_close(csv);
    return status;
}

kelp_status kelp_series_read(const char *path, const char *target,
                             const struct kelp_card_columns *columns,
                             struct kelp_series *ret_series, struct kelp_error *reterr)
{
    struct kelp_csv *csv = NULL;
    kelp_status status = kelp_csv_open(path, &csv, reterr);
    if (status == KELP_OK) {
        status = read_series(csv, target, columns, ret_series, reterr);
    }
    kelp_csv_close(csv);
    return status;
}
