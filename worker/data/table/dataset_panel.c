/*
 * Windows over a panel: observed and known values of seq_len rows, and known values of the pred_len
 * rows that follow, whose targets are forecast. All series have the same windows. Samples go
 * through all series before the next window, so that a limited number of them (data.limit) covers
 * all series.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/dataset_internal.h"
#include "worker/data/dataset_split.h"
#include "worker/data/table/panel_arrange.h"
#include "worker/data/table/table_card.h"
#include "worker/data/text/calendar.h"

struct panel_set {
    struct kelp_spool spool;
    struct kelp_prepared prepared;
    uint64_t first[KELP_SPLIT_COUNT]; /* first row of a split's first window */
    uint32_t *numbers;                /* categories of the series; owned */
    uint32_t seq_len;
    uint32_t pred_len;
};

/* ---- reading --------------------------------------------------------------------------------- */

static uint64_t series_of(const struct panel_set *panel, uint64_t index)
{
    return index % panel->prepared.shape->series_count;
}

/* The row of the planes at which a sample begins. */
static uint64_t row_of(const struct panel_set *panel, enum kelp_split split, uint64_t index)
{
    const struct kelp_prepared_shape *shape = panel->prepared.shape;
    return panel->prepared.series[series_of(panel, index)].first_row + panel->first[split] +
           index / shape->series_count;
}

static float *copy_floats(float *to, const float *from, uint64_t count)
{
    memcpy(to, from, (size_t)count * sizeof(*to));
    return to + count;
}

static void read_input(const struct panel_set *panel, uint64_t series, uint64_t row, float *input)
{
    const struct kelp_prepared_shape *shape = panel->prepared.shape;
    const float *observed = panel->prepared.planes[0] + row * shape->widths[0];
    const float *known = panel->prepared.planes[1] + row * shape->widths[1];
    *input++ = (float)panel->numbers[series];
    input = copy_floats(input, known, panel->seq_len * shape->widths[1]);
    input = copy_floats(input, observed, panel->seq_len * shape->widths[0]);
    (void)copy_floats(input, known + panel->seq_len * shape->widths[1],
                      panel->pred_len * shape->widths[1]);
}

static void read_target(const struct panel_set *panel, uint64_t row, float *target)
{
    const struct kelp_prepared_shape *shape = panel->prepared.shape;
    const float *observed = panel->prepared.planes[0] + (row + panel->seq_len) * shape->widths[0];
    for (uint32_t i = 0; i < panel->pred_len; i++) {
        target = copy_floats(target, observed + i * shape->widths[0], shape->target_count);
    }
}

static kelp_status read_panel(const struct kelp_dataset *dataset, enum kelp_split split,
                              const uint64_t *indices, uint32_t count, float *input, float *target)
{
    const struct panel_set *panel = dataset->state;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t row = row_of(panel, split, indices[i]);
        read_input(panel, series_of(panel, indices[i]), row, input + i * dataset->input_count);
        read_target(panel, row, target + i * dataset->target_count);
    }
    return KELP_OK;
}

static void read_scales(const struct kelp_dataset *dataset, enum kelp_split split, uint64_t index,
                        struct kelp_target_scale *ret_scales)
{
    (void)split; /* a series has one scale for all splits */
    const struct panel_set *panel = dataset->state;
    uint64_t targets = panel->prepared.shape->target_count;
    memcpy(ret_scales, panel->prepared.scales + series_of(panel, index) * targets,
           (size_t)targets * sizeof(*ret_scales));
}

static void read_time(const struct kelp_dataset *dataset, enum kelp_split split, uint64_t index,
                      uint32_t row, char ret_text[KELP_DATASET_LABEL_BYTES])
{
    const struct panel_set *panel = dataset->state;
    const struct kelp_prepared_series *series = &panel->prepared.series[series_of(panel, index)];
    uint64_t at = row_of(panel, split, index) - series->first_row + panel->seq_len + row;
    double time = series->first_time + series->time_step * (double)at;
    if (panel->prepared.shape->has_dates != 0 && time >= (double)KELP_CALENDAR_MIN &&
        time <= (double)KELP_CALENDAR_MAX) {
        kelp_calendar_print((int64_t)time, ret_text);
    } else {
        (void)snprintf(ret_text, KELP_DATASET_LABEL_BYTES, "%.9g", time);
    }
}

static void read_group(const struct kelp_dataset *dataset, enum kelp_split split, uint64_t index,
                       char ret_text[KELP_DATASET_LABEL_BYTES])
{
    (void)split; /* all splits have all series */
    const struct panel_set *panel = dataset->state;
    (void)snprintf(ret_text, KELP_DATASET_LABEL_BYTES, "%s",
                   panel->prepared.series[series_of(panel, index)].name);
}

static kelp_status describe_panel(const struct kelp_dataset *dataset, struct kelp_model_card *card,
                                  struct kelp_error *reterr)
{
    const struct panel_set *panel = dataset->state;
    return kelp_table_card_of(&panel->prepared, card, reterr);
}

static void close_panel(void *state)
{
    struct panel_set *panel = state;
    kelp_spool_fini(&panel->spool);
    free(panel->numbers);
    free(panel);
}

/* ---- opening --------------------------------------------------------------------------------- */

static kelp_status check_split(const struct kelp_job *job, struct kelp_error *reterr)
{
    uint64_t sum;
    if (kelp__dataset_is_whole(job)) {
        return KELP_OK; /* all rows of the file: nothing is split */
    }
    kelp_status status = kelp_windows_check(job, " of each series", &sum, reterr);
    if (status == KELP_OK && sum > KELP_PANEL_ROWS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "data.split: more than %" PRIu64 " rows",
                         (uint64_t)KELP_PANEL_ROWS_MAX);
    }
    return status;
}

static struct kelp_sample_tensor *add_input(struct kelp_sample_shape *shape, uint64_t rows,
                                            uint64_t width)
{
    struct kelp_sample_tensor *tensor = &shape->inputs[shape->input_count++];
    *tensor = (struct kelp_sample_tensor){.rank = 2, .dims = {rows, width}};
    return tensor;
}

static kelp_status set_shape(struct kelp_dataset *dataset, const struct panel_set *panel,
                             const struct kelp_job *job, struct kelp_error *reterr)
{
    const struct kelp_prepared_shape *prepared = panel->prepared.shape;
    struct kelp_sample_shape *shape = &dataset->info.shape;
    uint32_t vocab = dataset->card ? dataset->card->series.count : (uint32_t)prepared->series_count;
    if (job->data.vocab_count > 1 || (job->data.vocab_count == 1 && job->data.vocab[0] < vocab)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.vocab: a panel has one category, its series, and here %u of them; "
                         "give one size of at least that",
                         vocab);
    }
    shape->inputs[shape->input_count++] = (struct kelp_sample_tensor){
        .vocab_count = 1, .vocab = {job->data.vocab_count == 1 ? job->data.vocab[0] : vocab}};
    if (prepared->widths[1] > 0) {
        (void)add_input(shape, panel->seq_len, prepared->widths[1]);
    }
    add_input(shape, panel->seq_len, prepared->widths[0])->rank = prepared->widths[0] > 1 ? 2 : 1;
    if (prepared->widths[1] > 0) {
        (void)add_input(shape, panel->pred_len, prepared->widths[1]);
    }
    shape->target = (struct kelp_sample_tensor){.rank = prepared->target_count > 1 ? 2 : 1,
                                                .dims = {panel->pred_len, prepared->target_count}};
    return KELP_OK;
}

static void set_splits(struct kelp_dataset *dataset, struct panel_set *panel,
                       const struct kelp_job *job)
{
    if (kelp__dataset_is_whole(job)) {
        dataset->info.samples[KELP_SPLIT_TEST] =
            panel->prepared.series[0].row_count - panel->seq_len - panel->pred_len + 1;
    } else {
        kelp_windows_place(job, panel->first, dataset->info.samples);
    }
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        dataset->info.samples[split] *= panel->prepared.shape->series_count;
    }
}

static void compute_fingerprint(struct kelp_dataset *dataset, const struct panel_set *panel)
{
    struct kelp_digest digest;
    kelp_digest_init(&digest);
    kelp_digest_update(&digest, &panel->prepared.digest, sizeof(panel->prepared.digest));
    kelp_digest_update(&digest, panel->first, sizeof(panel->first));
    kelp_digest_update(&digest, dataset->info.samples, sizeof(dataset->info.samples));
    dataset->info.fingerprint = kelp_digest_short(&digest);
}

static bool belongs(const struct panel_set *panel, const struct kelp_job *job,
                    const struct kelp_table_schema *schema)
{
    const struct kelp_prepared_shape *shape = panel->prepared.shape;
    bool whole = kelp__dataset_is_whole(job);
    uint64_t rows = job->data.split[0] + job->data.split[1] + job->data.split[2];
    rows = whole && shape->series_count > 0 ? panel->prepared.series[0].row_count : rows;
    bool same = rows >= (uint64_t)panel->seq_len + panel->pred_len &&
                shape->widths[0] == schema->target_count + schema->column_count &&
                shape->widths[1] == schema->known_count &&
                shape->target_count == schema->target_count && shape->series_count > 0 &&
                shape->scale_rows == shape->series_count &&
                shape->series_count <= KELP_PANEL_SERIES_MAX;
    for (uint64_t i = 0; same && i < shape->series_count; i++) {
        same = panel->prepared.series[i].row_count == rows;
    }
    return same;
}

/* The category of each series: its position, or its number in the model in use. */
static kelp_status number_series(const struct kelp_dataset *dataset, struct panel_set *panel,
                                 const struct kelp_job *job, struct kelp_error *reterr)
{
    uint64_t count = panel->prepared.shape->series_count;
    panel->numbers = calloc((size_t)count, sizeof(*panel->numbers));
    if (!panel->numbers) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %" PRIu64 " series", count);
    }
    for (uint64_t i = 0; i < count; i++) {
        panel->numbers[i] = (uint32_t)i;
        if (dataset->card && !kelp_words_find(&dataset->card->series,
                                              panel->prepared.series[i].name, &panel->numbers[i])) {
            return kelp_table_foreign(job, reterr);
        }
    }
    return KELP_OK;
}

static kelp_status name_targets(struct kelp_dataset *dataset,
                                const struct kelp_table_schema *schema, struct kelp_error *reterr)
{
    kelp_status status = kelp__dataset_name_targets(dataset, schema->target_count, reterr);
    for (uint32_t i = 0; i < schema->target_count && status == KELP_OK; i++) {
        const char *name = kelp_table_schema_target(schema, i);
        memcpy(dataset->names[i], name, strlen(name) + 1);
    }
    return status;
}

static kelp_status open_prepared(struct kelp_dataset *dataset, struct panel_set *panel,
                                 const struct kelp_job *job, struct kelp_table_schema *schema,
                                 struct kelp_error *reterr)
{
    panel->seq_len = job->data.seq_len;
    panel->pred_len = job->data.pred_len;
    const struct kelp_table_input source = {.dataset = dataset, .job = job, .schema = schema};
    kelp_status status =
        kelp_table_prepare(&source, kelp__panel_arrange, &panel->spool, &panel->prepared, reterr);
    if (status == KELP_OK && !belongs(panel, job, schema)) {
        return kelp_table_foreign(job, reterr);
    }
    if (status == KELP_OK) {
        status = number_series(dataset, panel, job, reterr);
    }
    if (status == KELP_OK) {
        status = set_shape(dataset, panel, job, reterr);
    }
    if (status == KELP_OK) {
        status = name_targets(dataset, schema, reterr);
    }
    if (status == KELP_OK) {
        dataset->info.memory_bytes = panel->spool.count; /* mapped, and all of it was read */
        dataset->info.no_targets[KELP_SPLIT_TEST] = dataset->card && panel->prepared.card_bytes > 0;
        dataset->info.streamed = panel->spool.count > KELP_ARRAY_RESIDENT_MAX;
        set_splits(dataset, panel, job);
        compute_fingerprint(dataset, panel);
    }
    return status;
}

kelp_status kelp__dataset_open_panel(struct kelp_dataset *dataset, const struct kelp_job *job,
                                     struct kelp_error *reterr)
{
    static const struct kelp_dataset_functions functions = {.read = read_panel,
                                                            .target_scales = read_scales,
                                                            .time = read_time,
                                                            .group = read_group,
                                                            .describe = describe_panel,
                                                            .close = close_panel};
    struct kelp_table_schema *schema = NULL;
    kelp_status status = check_split(job, reterr);
    if (status == KELP_OK) {
        status = kelp_table_schema_create(job, &schema, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    struct panel_set *panel = calloc(1, sizeof(*panel));
    if (!panel) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    } else {
        dataset->functions = &functions;
        dataset->state = panel;
        status = open_prepared(dataset, panel, job, schema, reterr);
    }
    kelp_table_schema_destroy(schema);
    return status;
}
