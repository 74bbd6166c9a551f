#include "cli/plot/plot_forecast.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/checkpoint/model_state.h"
#include "common/tensors/safetensors.h"
#include "worker/data/dataset.h"
#include "worker/model/derive.h"
#include "worker/model/graph/graph.h"
#include "worker/model/model.h"

enum { HISTORY, TRUTH, FORECAST, LOW, HIGH, AT_HISTORY, AT_FORECAST, ARRAYS };

/* What one window is computed with. */
struct work {
    struct kelp_job job; /* with the weights as model.init */
    struct kelp_dataset *dataset;
    struct kelp_model *model;
    struct kelp_plan plan;
    float *weights;
    float *input, *target, *output;
    struct kelp_target_scale *scales;
    enum kelp_split split;
    uint64_t rows;    /* of the target */
    uint64_t history; /* rows of the past that are shown */
    uint32_t columns, column;
    uint32_t quantiles; /* of each element of the output; 1 without them */
};

bool kelp_forecasts_apply(const struct kelp_job *job)
{
    return job->data.kind == KELP_DATA_CSV || job->data.kind == KELP_DATA_SYNTHETIC ||
           job->data.kind == KELP_DATA_PANEL;
}

/* The input that holds the target's past (worker/data/sample.h), where its first row begins in the
 * record, and how many columns it has: the targets first, or last with data.features MS. */
static const struct kelp_sample_tensor *past_of(const struct work *work,
                                                const struct kelp_sample_shape *shape,
                                                uint64_t *ret_first, uint64_t *ret_columns)
{
    uint32_t index = work->job.data.kind == KELP_DATA_PANEL ? 2 : 0;
    uint64_t first = 0;

    if (index >= shape->input_count) {
        return NULL;
    }
    for (uint32_t i = 0; i < index; i++) {
        first += kelp_sample_tensor_count(&shape->inputs[i]);
    }
    const struct kelp_sample_tensor *past = &shape->inputs[index];
    *ret_first = first;
    *ret_columns = past->rank > 1 ? past->dims[1] : 1;
    return past->rank > 0 && *ret_columns > work->column ? past : NULL;
}

static kelp_status load_weights(struct work *work, struct kelp_error *reterr)
{
    struct kelp_safetensors *file = NULL;

    work->weights = kelp_model_state_vector(&work->plan);
    if (!work->weights) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the weights");
    }
    kelp_status status = kelp_safetensors_open(work->job.model.init, &file, reterr);
    if (status == KELP_OK) {
        status = kelp_plan_initialise(&work->plan, &work->job, file,
                                      (struct kelp_slice_range){0, work->plan.flat_count},
                                      work->weights, reterr);
    }
    kelp_safetensors_close(file);
    if (status == KELP_OK) {
        kelp_model_bind(work->model, &work->plan, work->weights, NULL);
    }
    return status;
}

static kelp_status make_room(struct work *work, const struct kelp_dataset_info *info,
                             struct kelp_error *reterr)
{
    const struct kelp_shape *output = kelp_model_output(work->model);
    uint64_t outputs = 1, targets = kelp_sample_target_count(&info->shape);

    for (uint32_t i = 0; i < output->rank; i++) {
        outputs *= output->dims[i];
    }
    work->columns = info->target_columns;
    work->rows = targets / work->columns;
    work->quantiles = (uint32_t)(outputs / targets);
    work->input = calloc(kelp_sample_input_count(&info->shape), sizeof(float));
    work->target = calloc(targets, sizeof(float));
    work->output = calloc(outputs, sizeof(float));
    work->scales = calloc(work->columns, sizeof(*work->scales));
    if (!work->input || !work->target || !work->output || !work->scales) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a forecast");
    }
    return KELP_OK;
}

static kelp_status prepare(struct work *work, struct kelp_error *reterr)
{
    /* As a job that uses the model: with the scales that it carries, whatever the data are now. */
    work->job.run.mode = KELP_RUN_EVALUATE;
    kelp_status status = kelp_dataset_open(&work->job, &work->dataset, reterr);
    work->job.run.mode = KELP_RUN_TRAIN;
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_dataset_info *info = kelp_dataset_info(work->dataset);
    work->split = info->samples[KELP_SPLIT_TEST] > 0  ? KELP_SPLIT_TEST
                  : info->samples[KELP_SPLIT_VAL] > 0 ? KELP_SPLIT_VAL
                                                      : KELP_SPLIT_TRAIN;
    status = kelp_model_create(&work->job, &info->shape, 1, &work->model, reterr);
    if (status == KELP_OK) {
        status = kelp_derive_plan(&work->job, work->dataset, work->model, &work->plan, reterr);
    }
    if (status == KELP_OK) {
        status = load_weights(work, reterr);
    }
    if (status == KELP_OK) {
        status = make_room(work, info, reterr);
    }
    for (uint32_t c = 0; status == KELP_OK && c < work->columns; c++) {
        if (strcmp(kelp_dataset_target_name(work->dataset, c), work->job.data.target) == 0) {
            work->column = c;
        }
    }
    /* As much of the past as of the future, twice. */
    work->history =
        2 * work->rows < work->job.data.seq_len ? 2 * work->rows : work->job.data.seq_len;
    return status;
}

static void fini(struct work *work)
{
    free(work->input);
    free(work->target);
    free(work->output);
    free(work->scales);
    free(work->weights);
    kelp_plan_fini(&work->plan);
    kelp_model_destroy(work->model);
    kelp_dataset_close(work->dataset);
}

static double scaled(const struct work *work, float value)
{
    const struct kelp_target_scale *scale = &work->scales[work->column];
    return (double)value * scale->factor + scale->shift;
}

static void fill_future(const struct work *work, double *const arrays[ARRAYS])
{
    for (uint64_t row = 0; row < work->rows; row++) {
        uint64_t at = row * work->columns + work->column;
        const float *output = &work->output[at * work->quantiles];
        arrays[AT_FORECAST][row] = (double)row;
        arrays[TRUTH][row] = scaled(work, work->target[at]);
        arrays[FORECAST][row] = scaled(work, output[work->quantiles / 2]);
        arrays[LOW][row] = scaled(work, output[0]);
        arrays[HIGH][row] = scaled(work, output[work->quantiles - 1]);
    }
}

/* Returns the rows of the past that there are. */
static uint64_t fill_past(const struct work *work, double *const arrays[ARRAYS])
{
    uint64_t first = 0, columns = 0;
    bool last = work->job.data.features == KELP_FEATURES_MS;
    const struct kelp_sample_tensor *past =
        past_of(work, &kelp_dataset_info(work->dataset)->shape, &first, &columns);

    if (!past || past->dims[0] < work->history) {
        return 0;
    }
    for (uint64_t i = 0; i < work->history; i++) {
        uint64_t row = past->dims[0] - work->history + i;
        arrays[AT_HISTORY][i] = (double)i - (double)work->history;
        uint64_t column = work->column + (last ? columns - work->columns : 0);
        arrays[HISTORY][i] = scaled(work, work->input[first + row * columns + column]);
    }
    return work->history;
}

static void add_line(struct kelp_chart_panel *panel, const char *name, unsigned color,
                     const double *x, const double *y, uint64_t count)
{
    struct kelp_chart_line *line = &panel->lines[panel->line_count++];

    *line = (struct kelp_chart_line){.x = x, .y = y, .count = (size_t)count, .color = color};
    (void)snprintf(line->name, sizeof(line->name), "%s", name);
}

static void fill_panel(const struct work *work, uint64_t index, double *const arrays[ARRAYS],
                       struct kelp_chart_panel *panel)
{
    static const char *const splits[] = {"training", "validation", "test"};
    char when[KELP_DATASET_LABEL_BYTES], group[KELP_DATASET_LABEL_BYTES], place[64];
    const char *name = kelp_dataset_target_name(work->dataset, work->column);

    memset(panel, 0, sizeof(*panel));
    kelp_dataset_time(work->dataset, work->split, index, 0, when);
    kelp_dataset_group(work->dataset, work->split, index, group);
    if (when[0]) {
        (void)snprintf(place, sizeof(place), "from %.40s", when);
    } else {
        (void)snprintf(place, sizeof(place), "sample %" PRIu64 " of the %s split", index,
                       splits[work->split]);
    }
    (void)snprintf(panel->title, sizeof(panel->title), "%.24s%s%.24s, %s",
                   name[0] ? name : "target", group[0] ? " of " : "", group, place);
    (void)snprintf(panel->x_label, sizeof(panel->x_label), "rows, the forecast begins at 0");
    uint64_t history = fill_past(work, arrays);
    fill_future(work, arrays);
    if (history > 0) {
        add_line(panel, "past", 5, arrays[AT_HISTORY], arrays[HISTORY], history);
    }
    add_line(panel, "truth", 0, arrays[AT_FORECAST], arrays[TRUTH], work->rows);
    add_line(panel, "forecast", 3, arrays[AT_FORECAST], arrays[FORECAST], work->rows);
    if (work->quantiles > 1) {
        panel->lines[panel->line_count - 1].low = arrays[LOW];
        panel->lines[panel->line_count - 1].high = arrays[HIGH];
    }
}

/* Windows that are spread evenly over the split. */
static kelp_status fill_panels(struct work *work, struct kelp_forecasts *forecasts,
                               struct kelp_error *reterr)
{
    uint64_t samples = kelp_dataset_info(work->dataset)->samples[work->split];
    size_t length = (size_t)(work->rows > work->history ? work->rows : work->history);
    size_t count = samples < KELP_FORECASTS_MAX ? (size_t)samples : KELP_FORECASTS_MAX;

    forecasts->values = calloc((count * ARRAYS + 1) * length, sizeof(double));
    if (!forecasts->values) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for forecasts");
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t index = count > 1 ? (samples - 1) / (count - 1) * i : 0;
        double *arrays[ARRAYS];
        for (size_t a = 0; a < ARRAYS; a++) {
            arrays[a] = forecasts->values + (i * ARRAYS + a) * length;
        }
        kelp_status status =
            kelp_dataset_read(work->dataset, work->split, &index, 1, work->input, work->target);
        if (status == KELP_OK) {
            status = kelp_model_forward(work->model, work->input, 1, work->output, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
        kelp_dataset_target_scales(work->dataset, work->split, index, work->scales);
        fill_panel(work, index, arrays, &forecasts->panels[i]);
        forecasts->count = i + 1;
    }
    return KELP_OK;
}

kelp_status kelp_forecasts_make(const struct kelp_job *job, const char *weights_path,
                                struct kelp_forecasts *ret_forecasts, struct kelp_error *reterr)
{
    struct work *work = calloc(1, sizeof(*work));

    memset(ret_forecasts, 0, sizeof(*ret_forecasts));
    if (!work) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    work->job = *job;
    work->job.model.init_prefix[0] = '\0';
    work->job.model.init_map[0] = '\0';
    (void)snprintf(work->job.model.init, sizeof(work->job.model.init), "%s", weights_path);
    kelp_status status = prepare(work, reterr);
    if (status == KELP_OK) {
        status = fill_panels(work, ret_forecasts, reterr);
    }
    fini(work);
    free(work);
    if (status != KELP_OK) {
        kelp_forecasts_fini(ret_forecasts);
    }
    return status;
}

void kelp_forecasts_fini(struct kelp_forecasts *forecasts)
{
    free(forecasts->values);
    memset(forecasts, 0, sizeof(*forecasts));
}
