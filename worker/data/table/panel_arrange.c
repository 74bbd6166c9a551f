#include "worker/data/table/panel_arrange.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/table/table_card.h"

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
    uint64_t used_rows;  /* of each series: the sum of data.split, or all of a file of its own */
    uint64_t known_rows; /* of them, those whose observations must be there */
    bool no_targets;     /* some are missing in the others */
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
    if (kelp__dataset_is_whole(panel->input->job) && series->row_count != panel->used_rows) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: series %s has %" PRIu64 " rows, the first series %" PRIu64 "; all "
                         "series to forecast need as many",
                         panel->input->job->data.test_path, series_name(series), series->row_count,
                         panel->used_rows);
    }
    if (series->row_count < panel->used_rows) {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "%s: series %s has %" PRIu64 " rows, too few for data.split, which needs %" PRIu64 "; "
            "give a smaller split, or leave the series out (data.filter)",
            panel->input->job->data.path, series_name(series), series->row_count, panel->used_rows);
    }
    series->first_time = places[0].time;
    series->time_step = series->row_count > 1 ? places[1].time - places[0].time : 1.0;
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

/* The scales of the model that is used, for the series of this name. */
static kelp_status copy_card_targets(struct panel *panel, uint32_t index, struct kelp_error *reterr)
{
    const struct kelp_model_card *card = panel->input->dataset->card;
    uint32_t targets = card->targets.count;
    uint32_t number = 0;
    if (!kelp_words_find(&card->series, panel->series[index].name, &number)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "series %s: is none of the %u that the model was trained on; leave out "
                         "its rows (data.filter)",
                         series_name(&panel->series[index]), card->series.count);
    }
    for (uint32_t i = 0; i < targets; i++) {
        kelp_table_card_fit(&card->series_targets[(size_t)number * targets + i],
                            &panel->target_fits[(size_t)index * targets + i],
                            &panel->target_scales[(size_t)index * targets + i]);
    }
    return KELP_OK;
}

static kelp_status fit_inputs(struct panel *panel, struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = panel->input->schema;
    const struct kelp_model_card *card = panel->input->dataset->card;
    uint32_t count = schema->column_count + schema->known_count;
    if (card) {
        kelp_table_card_take(&card->inputs, panel->fits, panel->scales);
        kelp_table_card_take(&card->known, panel->fits + schema->column_count,
                             panel->scales + schema->column_count);
        return KELP_OK;
    }
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
    if (panel->input->dataset->card) {
        return copy_card_targets(panel, index, reterr);
    }
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

/* The card of what was fitted. */
static kelp_status describe_fit(const struct panel *panel, struct kelp_model_card *card,
                                struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = panel->input->schema;
    uint32_t known = schema->column_count, targets = known + schema->known_count;
    const struct {
        struct kelp_table_numbers numbers;
        struct kelp_card_columns *columns;
    } lists[] = {
        {{0, schema->column_count, panel->fits, panel->scales}, &card->inputs},
        {{known, schema->known_count, panel->fits + known, panel->scales + known}, &card->known},
        {{targets, schema->target_count, NULL, NULL}, &card->targets},
    };
    card->kind = KELP_DATA_PANEL;
    kelp_status status = KELP_OK;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(lists) && status == KELP_OK; i++) {
        status = kelp_table_card_put(&lists[i].numbers, schema, lists[i].columns, reterr);
    }
    for (uint32_t i = 0; i < panel->series_count && status == KELP_OK; i++) {
        uint32_t number = 0;
        status = kelp_words_add(&card->series, panel->series[i].name, &number, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_model_card_add_series_targets(card, reterr);
    }
    size_t count = (size_t)panel->series_count * schema->target_count;
    for (size_t i = 0; i < count && status == KELP_OK; i++) {
        card->series_targets[i] =
            kelp_table_card_number(&panel->target_fits[i], &panel->target_scales[i]);
    }
    return status;
}

/* What prepared data keep beside the rows. */
static kelp_status print_fit(const struct panel *panel, char **ret_text, struct kelp_error *reterr)
{
    struct kelp_model_card card = {.job = NULL};
    if (panel->input->dataset->card) {
        *ret_text = strdup(panel->no_targets ? KELP_PANEL_NO_TARGETS : "");
        return *ret_text ? KELP_OK : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = describe_fit(panel, &card, reterr);
    if (status == KELP_OK) {
        status = kelp_table_card_text(&card, ret_text, reterr);
    }
    kelp_model_card_fini(&card);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Where a row of a series stands. */
struct row_place {
    uint32_t series;
    uint64_t row; /* of the raw rows */
    bool ahead;   /* to be forecast: its observations may be missing */
};

static kelp_status no_value(const struct panel *panel, const struct row_place *place,
                            const char *name, struct kelp_error *reterr)
{
    char text[160];
    kelp_table_raw_place(panel->input->raw, panel->input->files, place->row, text, sizeof(text));
    return kelp_fail(reterr, KELP_ERR_FORMAT,
                     "%s: column %s: has no value in this row; only the last data.pred_len rows of "
                     "a series, which are forecast, may lack what is observed",
                     text, name);
}

/* Numbers of a row. What is missing ahead reads as 0 once it is scaled. */
static kelp_status read_values(struct panel *panel, const struct row_place *place,
                               const struct kelp_table_numbers *numbers, bool observed,
                               float *ret_values, struct kelp_error *reterr)
{
    const struct kelp_table_input *input = panel->input;
    bool strict = kelp_table_missing(input) != input->job->data.missing;
    if (!strict) {
        return kelp_table_values(input, place->row, numbers, ret_values, reterr);
    }
    struct kelp_table_numbers taken = *numbers;
    struct kelp_fit fits[KELP_TABLE_COLUMNS_MAX];
    memcpy(fits, numbers->fits, numbers->count * sizeof(*fits));
    taken.fits = fits;
    for (uint32_t i = 0; i < numbers->count; i++) {
        if (!isnan(kelp_table_raw_number(input->raw, place->row, numbers->first + i))) {
            continue;
        }
        if (!place->ahead || !observed) {
            return no_value(panel, place, input->schema->numbers[numbers->first + i].name, reterr);
        }
        fits[i].mean = numbers->scales[i].shift;
        panel->no_targets = true;
    }
    return kelp_table_values(input, place->row, &taken, ret_values, reterr);
}

static kelp_status write_observed(struct panel *panel, const struct row_place *place,
                                  struct kelp_prepared_writer *writer, struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = panel->input->schema;
    const size_t first = (size_t)place->series * schema->target_count;
    const struct kelp_table_numbers targets = {.first = schema->column_count + schema->known_count,
                                               .count = schema->target_count,
                                               .fits = panel->target_fits + first,
                                               .scales = panel->target_scales + first};
    const struct kelp_table_numbers columns = {
        .count = schema->column_count, .fits = panel->fits, .scales = panel->scales};
    float values[KELP_TABLE_COLUMNS_MAX];
    kelp_status status = read_values(panel, place, &targets, true, values, reterr);
    if (status == KELP_OK) {
        status = read_values(panel, place, &columns, true, values + schema->target_count, reterr);
    }
    return status == KELP_OK
               ? kelp_prepared_floats(writer, values, schema->target_count + schema->column_count,
                                      reterr)
               : status;
}

/* Known inputs are scaled over all series. */
static kelp_status write_known(struct panel *panel, const struct row_place *place,
                               struct kelp_prepared_writer *writer, struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = panel->input->schema;
    const struct kelp_table_numbers known = {.first = schema->column_count,
                                             .count = schema->known_count,
                                             .fits = panel->fits + schema->column_count,
                                             .scales = panel->scales + schema->column_count};
    float values[KELP_TABLE_COLUMNS_MAX];
    kelp_status status = read_values(panel, place, &known, false, values, reterr);
    return status == KELP_OK ? kelp_prepared_floats(writer, values, schema->known_count, reterr)
                             : status;
}

typedef kelp_status row_writer(struct panel *panel, const struct row_place *place,
                               struct kelp_prepared_writer *writer, struct kelp_error *reterr);

static kelp_status write_plane(struct panel *panel, row_writer *write,
                               struct kelp_prepared_writer *writer, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    for (uint32_t s = 0; s < panel->series_count; s++) {
        for (uint64_t i = 0; i < panel->used_rows && status == KELP_OK; i++) {
            const struct row_place place = {.series = s,
                                            .row =
                                                panel->places[panel->series[s].first_row + i].row,
                                            .ahead = i >= panel->known_rows};
            status = write(panel, &place, writer, reterr);
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
    char *card = NULL;
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
    status = print_fit(panel, &card, reterr);
    if (status != KELP_OK) {
        goto out;
    }
    status = kelp_prepared_end(&writer, card, ret_prepared, reterr);

out:
    free(card);
    free(series);
    return status;
}

/* A model is used on another file: all its rows. */
static kelp_status use_whole(struct panel *panel, struct kelp_error *reterr)
{
    const struct kelp_job *job = panel->input->job;
    uint64_t rows = panel->series[0].row_count;
    if (!kelp__dataset_is_whole(job)) {
        return KELP_OK;
    }
    if (rows < (uint64_t)job->data.seq_len + job->data.pred_len) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: series %s has %" PRIu64 " rows; a window of the model takes %u and "
                         "the %u to forecast",
                         job->data.test_path, series_name(&panel->series[0]), rows,
                         job->data.seq_len, job->data.pred_len);
    }
    panel->used_rows = rows;
    panel->known_rows = rows - job->data.pred_len;
    return KELP_OK;
}

static kelp_status arrange(struct panel *panel, struct kelp_spool *spool,
                           struct kelp_prepared *ret_prepared, struct kelp_error *reterr)
{
    const uint64_t *split = panel->input->job->data.split;
    panel->train_rows = split[KELP_SPLIT_TRAIN];
    panel->used_rows = split[KELP_SPLIT_TRAIN] + split[KELP_SPLIT_VAL] + split[KELP_SPLIT_TEST];
    panel->known_rows = panel->used_rows;
    kelp_status status = allocate(panel, reterr);
    if (status == KELP_OK) {
        put_in_order(panel);
        status = use_whole(panel, reterr);
    }
    if (status == KELP_OK) {
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
