#include "worker/data/table/panel_arrange.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where a row belongs. */
struct place {
    uint64_t row; /* of the raw rows */
    double time;
    uint32_t series;
};

struct panel {
    const struct kelp_table_input *input;
    struct place *places;                /* [raw->row_count], by series and time; owned */
    struct kelp_prepared_series *series; /* owned; first_row is into places */
    uint32_t series_count;
    uint64_t used_rows; /* of each series: the sum of data.split */
    uint64_t train_rows;
    struct kelp_fit fits[KELP_TABLE_COLUMNS_MAX]; /* of columns and known ones, over all series */
    struct kelp_target_scale scales[KELP_TABLE_COLUMNS_MAX];
    struct kelp_fit *target_fits;            /* [series_count][target_count], owned */
    struct kelp_target_scale *target_scales; /* likewise */
};

/* ---- order ----------------------------------------------------------------------------------- */

static int by_series_and_time(const void *a, const void *b)
{
    const struct place *left = a;
    const struct place *right = b;
    if (left->series != right->series) {
        return left->series < right->series ? -1 : 1;
    }
    if (left->time != right->time) {
        return left->time < right->time ? -1 : 1;
    }
    return left->row < right->row ? -1 : left->row > right->row ? 1 : 0;
}

static kelp_status allocate(struct panel *panel, struct kelp_error *reterr)
{
    const struct kelp_table_raw *raw = panel->input->raw;
    size_t targets = panel->input->schema->target_count;
    panel->series_count = panel->input->schema->word_count > 0 ? raw->words[0].count : 1;
    size_t count = panel->series_count;
    panel->places = calloc((size_t)raw->row_count, sizeof(*panel->places));
    panel->series = calloc(count, sizeof(*panel->series));
    panel->target_fits = calloc(count * targets, sizeof(*panel->target_fits));
    panel->target_scales = calloc(count * targets, sizeof(*panel->target_scales));
    if (!panel->places || !panel->series || !panel->target_fits || !panel->target_scales) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %" PRIu64 " rows",
                         raw->row_count);
    }
    return KELP_OK;
}

static void put_in_order(struct panel *panel)
{
    const struct kelp_table_raw *raw = panel->input->raw;
    bool grouped = panel->input->schema->word_count > 0;
    for (uint64_t row = 0; row < raw->row_count; row++) {
        panel->places[row] =
            (struct place){.row = row,
                           .time = kelp_table_raw_time(raw, row),
                           .series = grouped ? kelp_table_raw_word(raw, row, 0) : 0};
    }
    qsort(panel->places, (size_t)raw->row_count, sizeof(*panel->places), by_series_and_time);
    for (uint64_t i = raw->row_count; i > 0; i--) {
        struct kelp_prepared_series *series = &panel->series[panel->places[i - 1].series];
        series->first_row = i - 1;
        series->row_count++;
    }
    for (uint32_t i = 0; grouped && i < panel->series_count; i++) {
        const char *name = kelp_words_at(&raw->words[0], i);
        memcpy(panel->series[i].name, name, strlen(name) + 1); /* no longer than a row's word */
    }
}

/* ---- checks ---------------------------------------------------------------------------------- */

static const char *series_name(const struct kelp_prepared_series *series)
{
    return series->name[0] != '\0' ? series->name : "(all rows)";
}

static kelp_status bad_step(const struct panel *panel, const struct kelp_prepared_series *series,
                            uint64_t at, const char *what, struct kelp_error *reterr)
{
    char before[160];
    char here[160];
    const struct kelp_table_input *input = panel->input;
    kelp_table_raw_place(input->raw, input->files, panel->places[at - 1].row, before,
                         sizeof(before));
    kelp_table_raw_place(input->raw, input->files, panel->places[at].row, here, sizeof(here));
    return kelp_fail(reterr, KELP_ERR_FORMAT,
                     "%s: series %s: %s (%s); the rows of a series must be evenly spaced in time, "
                     "one for each",
                     here, series_name(series), what, before);
}

/* Times are sums of steps in a file, so that fractions of them may be off in the last digits. */
static bool is_step(double step, double expected)
{
    return fabs(step - expected) <= 1e-6 * expected;
}

static kelp_status check_series(const struct panel *panel, struct kelp_prepared_series *series,
                                struct kelp_error *reterr)
{
    const struct place *places = panel->places + series->first_row;
    if (series->row_count < panel->used_rows) {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "%s: series %s has %" PRIu64 " rows, too few for data.split, which needs %" PRIu64 "; "
            "give a smaller split, or leave the series out (data.filter)",
            panel->input->job->data.path, series_name(series), series->row_count, panel->used_rows);
    }
    series->first_time = places[0].time;
    series->time_step = places[1].time - places[0].time;
    for (uint64_t i = 1; i < series->row_count; i++) {
        double step = places[i].time - places[i - 1].time;
        uint64_t at = series->first_row + i;
        if (!(step > 0.0)) {
            return bad_step(panel, series, at, "has the same time as another row", reterr);
        }
        if (!is_step(step, panel->series[0].time_step)) {
            return bad_step(panel, series, at,
                            "does not follow the row before it in the steps of the others", reterr);
        }
    }
    return KELP_OK;
}

static kelp_status check(struct panel *panel, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    for (uint32_t i = 0; i < panel->series_count && status == KELP_OK; i++) {
        status = check_series(panel, &panel->series[i], reterr);
    }
    return status;
}

/* ---- scaling --------------------------------------------------------------------------------- */

static uint64_t training_row(const void *context, uint64_t index)
{
    const struct panel *panel = context;
    const struct kelp_prepared_series *series = &panel->series[index / panel->train_rows];
    return panel->places[series->first_row + index % panel->train_rows].row;
}

struct series_rows {
    const struct panel *panel;
    uint64_t first; /* of places */
};

static uint64_t series_row(const void *context, uint64_t index)
{
    const struct series_rows *rows = context;
    return rows->panel->places[rows->first + index].row;
}

static kelp_status fit_inputs(struct panel *panel, struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = panel->input->schema;
    uint32_t count = schema->column_count + schema->known_count;
    const struct kelp_table_rows rows = {
        .at = training_row, .context = panel, .count = panel->series_count * panel->train_rows};
    kelp_table_fit(panel->input, &rows, 0, count, panel->fits);
    for (uint32_t i = 0; i < count; i++) {
        kelp_status status =
            kelp_table_scale(panel->input, i, &panel->fits[i], panel->input->job->data.normalize,
                             &panel->scales[i], reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

/* A series that stands still in the training split is only shifted: others may tell what it does.
 */
static kelp_status fit_targets(struct panel *panel, uint32_t index, struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = panel->input->schema;
    uint32_t first = schema->column_count + schema->known_count;
    const struct series_rows context = {.panel = panel, .first = panel->series[index].first_row};
    const struct kelp_table_rows rows = {
        .at = series_row, .context = &context, .count = panel->train_rows};
    struct kelp_fit *fits = panel->target_fits + (size_t)index * schema->target_count;
    struct kelp_target_scale *scales = panel->target_scales + (size_t)index * schema->target_count;
    kelp_table_fit(panel->input, &rows, first, schema->target_count, fits);
    for (uint32_t i = 0; i < schema->target_count; i++) {
        if (fits[i].present == 0) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "%s: series %s: column %s has no value in the training split",
                             panel->input->job->data.path, series_name(&panel->series[index]),
                             kelp_table_schema_target(schema, i));
        }
        (void)kelp_fit_scale(&fits[i], panel->input->job->data.normalize_target, &scales[i]);
    }
    return KELP_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static kelp_status write_observed(const struct panel *panel, uint32_t series, uint64_t row,
                                  struct kelp_prepared_writer *writer, struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = panel->input->schema;
    const size_t first = (size_t)series * schema->target_count;
    const struct kelp_table_numbers targets = {.first = schema->column_count + schema->known_count,
                                               .count = schema->target_count,
                                               .fits = panel->target_fits + first,
                                               .scales = panel->target_scales + first};
    const struct kelp_table_numbers columns = {
        .count = schema->column_count, .fits = panel->fits, .scales = panel->scales};
    float values[KELP_TABLE_COLUMNS_MAX];
    kelp_status status = kelp_table_values(panel->input, row, &targets, values, reterr);
    if (status == KELP_OK) {
        status =
            kelp_table_values(panel->input, row, &columns, values + schema->target_count, reterr);
    }
    return status == KELP_OK
               ? kelp_prepared_floats(writer, values, schema->target_count + schema->column_count,
                                      reterr)
               : status;
}

static kelp_status write_known(const struct panel *panel, uint32_t series, uint64_t row,
                               struct kelp_prepared_writer *writer, struct kelp_error *reterr)
{
    (void)series; /* known inputs are scaled over all series */
    const struct kelp_table_schema *schema = panel->input->schema;
    const struct kelp_table_numbers known = {.first = schema->column_count,
                                             .count = schema->known_count,
                                             .fits = panel->fits + schema->column_count,
                                             .scales = panel->scales + schema->column_count};
    float values[KELP_TABLE_COLUMNS_MAX];
    kelp_status status = kelp_table_values(panel->input, row, &known, values, reterr);
    return status == KELP_OK ? kelp_prepared_floats(writer, values, schema->known_count, reterr)
                             : status;
}

typedef kelp_status row_writer(const struct panel *panel, uint32_t series, uint64_t row,
                               struct kelp_prepared_writer *writer, struct kelp_error *reterr);

static kelp_status write_plane(const struct panel *panel, row_writer *write,
                               struct kelp_prepared_writer *writer, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    for (uint32_t s = 0; s < panel->series_count; s++) {
        for (uint64_t i = 0; i < panel->used_rows && status == KELP_OK; i++) {
            uint64_t row = panel->places[panel->series[s].first_row + i].row;
            status = write(panel, s, row, writer, reterr);
        }
    }
    return status;
}

static kelp_status write_all(struct panel *panel, struct kelp_spool *spool,
                             struct kelp_prepared *ret_prepared, struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = panel->input->schema;
    struct kelp_prepared_series *series = calloc(panel->series_count, sizeof(*series));
    if (!series) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < panel->series_count; i++) {
        series[i] = panel->series[i];
        series[i].first_row = i * panel->used_rows;
        series[i].row_count = panel->used_rows;
    }
    const struct kelp_prepared_parts parts = {
        .shape = {.rows = panel->series_count * panel->used_rows,
                  .file_rows = {panel->series_count * panel->used_rows, 0, 0},
                  .widths = {schema->target_count + schema->column_count, schema->known_count},
                  .series_count = panel->series_count,
                  .target_count = schema->target_count,
                  .scale_rows = panel->series_count,
                  .has_dates = panel->input->raw->has_dates ? 1 : 0},
        .series = series,
        .scales = panel->target_scales};
    struct kelp_prepared_writer writer;
    kelp_status status = kelp_prepared_begin(&writer, spool, &parts, reterr);
    if (status != KELP_OK) {
        goto out;
    }
    status = write_plane(panel, write_observed, &writer, reterr);
    if (status != KELP_OK) {
        goto out;
    }
    status = write_plane(panel, write_known, &writer, reterr);
    if (status != KELP_OK) {
        goto out;
    }
    status = kelp_prepared_end(&writer, "", ret_prepared, reterr);

out:
    free(series);
    return status;
}

static kelp_status arrange(struct panel *panel, struct kelp_spool *spool,
                           struct kelp_prepared *ret_prepared, struct kelp_error *reterr)
{
    const uint64_t *split = panel->input->job->data.split;
    panel->train_rows = split[KELP_SPLIT_TRAIN];
    panel->used_rows = split[KELP_SPLIT_TRAIN] + split[KELP_SPLIT_VAL] + split[KELP_SPLIT_TEST];
    kelp_status status = allocate(panel, reterr);
    if (status == KELP_OK) {
        put_in_order(panel);
        status = check(panel, reterr);
    }
    if (status == KELP_OK) {
        status = fit_inputs(panel, reterr);
    }
    for (uint32_t i = 0; i < panel->series_count && status == KELP_OK; i++) {
        status = fit_targets(panel, i, reterr);
    }
    return status == KELP_OK ? write_all(panel, spool, ret_prepared, reterr) : status;
}

kelp_status kelp__panel_arrange(const struct kelp_table_input *input, struct kelp_spool *spool,
                                struct kelp_prepared *ret_prepared, struct kelp_error *reterr)
{
    struct panel *panel = calloc(1, sizeof(*panel));
    if (!panel) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    panel->input = input;
    kelp_status status = arrange(panel, spool, ret_prepared, reterr);
    free(panel->places);
    free(panel->series);
    free(panel->target_fits);
    free(panel->target_scales);
    free(panel);
    return status;
}
