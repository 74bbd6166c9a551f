/* Pictures of a run: ticks, what is read, which panels there are, forecasts in the data's scale. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cluster/model_file.h"
#include "cli/plot/plot_curves.h"
#include "cli/plot/plot_forecast.h"
#include "common/base/files.h"
#include "common/training/plan.h"
#include "tests/lib/suite.h"
#include "worker/data/dataset.h"
#include "worker/model/derive.h"
#include "worker/model/model.h"

static char folder[64];
static struct kelp_error error;

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-plot-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    memset(&error, 0, sizeof(error));
}

static void teardown(void)
{
    ck_assert_int_eq(kelp_files_remove(folder, NULL), KELP_OK);
}

static kelp_status read_curves(const char *text, struct kelp_curves *curves)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    ck_assert_int_eq(kelp_files_write(path, text, strlen(text), NULL), KELP_OK);
    return kelp_curves_read(folder, curves, &error);
}

KELP_CASE("plot", .setup = setup, .teardown = teardown)

/* Round numbers that lie inside, for any size; none where there is no range. */
KELP_TEST(tick_texts)
{
    static const struct {
        double tick, step;
        const char *text;
    } cases[] = {{-0.0, 200, "0"},           {1e-17, 0.2, "0"},          {600, 200, "600"},
                 {1.0002, 0.0002, "1.0002"}, {0.9998, 0.0002, "0.9998"}, {-2.5, 0.5, "-2.5"},
                 {12345678, 1, "12345678"},  {1e9, 5e8, "1e+09"}};
    char text[32];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        kelp_chart_tick_text(cases[i].tick, cases[i].step, text, sizeof(text));
        ck_assert_str_eq(text, cases[i].text);
    }
}

KELP_TEST(ticks)
{
    static const double ranges[][2] = {{0, 1},       {-3.7, 12},      {1e-9, 1.1e-9},
                                       {0.14, 0.22}, {-1e300, 1e300}, {1000000, 1000001},
                                       {5, 6e7}};
    double at[16];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(ranges); i++) {
        double span = ranges[i][1] - ranges[i][0];
        size_t count = kelp_chart_ticks(ranges[i][0], ranges[i][1], 6, at);
        ck_assert_uint_ge(count, 2);
        ck_assert_uint_le(count, 6);
        for (size_t t = 0; t < count; t++) {
            ck_assert_double_ge(at[t], ranges[i][0] - span * 1e-6);
            ck_assert_double_le(at[t], ranges[i][1] + span * 1e-6);
            ck_assert(t == 0 || at[t] > at[t - 1]);
        }
    }
    ck_assert_uint_eq(kelp_chart_ticks(0, 1, 6, at), 6); /* 0, 0.2 … 1 */
    ck_assert_double_eq_tol(at[1], 0.2, 1e-12);
    ck_assert_uint_eq(kelp_chart_ticks(1, 1, 6, at), 0);
    ck_assert_uint_eq(kelp_chart_ticks(0, (double)NAN, 6, at), 0);
    ck_assert_uint_eq(kelp_chart_ticks(-INFINITY, INFINITY, 6, at), 0);
}

static const char lines[] =
    "{\"version\":3,\"step\":4,\"epoch\":1,\"train/loss\":1.5,\"lr\":0.5}\n"
    "{\"version\":4,\"step\":4,\"epoch\":1,\"val/loss\":2,\"val/auc\":null}\n"
    "{\"version\":9,\"step\":8,\"epoch\":2,\"train/loss\":1,\"lr\":0.25}\n"
    "{\"version\":10,\"step\":8,\"epoch\":2,\"val/loss\":1.75,\"val/auc\":0.75}\n";

/* Each measure is a panel with its parts, the loss first and the rate last; null is a gap; a line
 * that is being written is not there yet. */
KELP_TEST(panels)
{
    static struct kelp_chart_panel panel[KELP_CHART_PANELS_MAX];
    static struct kelp_curves curves;
    char text[sizeof(lines) + 16];

    (void)snprintf(text, sizeof(text), "%s{\"version\":1", lines);
    ck_assert_msg(read_curves(text, &curves) == KELP_OK, "%s", error.text);
    ck_assert_uint_eq(kelp_curves_panels(&curves, panel), 3);
    ck_assert_str_eq(panel[0].title, "loss");
    ck_assert_uint_eq(panel[0].line_count, 2);
    ck_assert_str_eq(panel[0].lines[1].name, "val/loss");
    ck_assert_double_eq(panel[0].lines[0].x[1], 8);
    ck_assert_double_eq(panel[0].lines[1].y[1], 1.75);
    ck_assert_str_eq(panel[1].title, "auc");
    ck_assert(isnan(panel[1].lines[0].y[0]));
    ck_assert_str_eq(panel[2].title, "learning rate");
    kelp_curves_fini(&curves);
}

KELP_TEST(damaged)
{
    static struct kelp_curves curves;
    char text[sizeof(lines) + 16];

    (void)snprintf(text, sizeof(text), "%s{\"step\"}\n", lines);
    ck_assert_int_eq(read_curves(text, &curves), KELP_ERR_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, "metrics.jsonl:5: "));
    (void)snprintf(text, sizeof(text), "%s{\"a\":1}\n", lines);
    ck_assert_int_eq(read_curves(text, &curves), KELP_ERR_CORRUPT);
    ck_assert_int_eq(kelp_curves_read("/nowhere", &curves, &error), KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(read_curves("", &curves), KELP_OK);
    ck_assert_uint_eq(curves.count, 0);
}

/* Any values make a picture: none that is finite, one alone, huge ones, a band. */
KELP_TEST(pictures)
{
    static const double x[] = {1, 2, 3, 4};
    static const double values[][4] = {{(double)NAN, INFINITY, -INFINITY, (double)NAN},
                                       {1, 1, 1, 1},
                                       {-1e308, 1e308, 0, 1e-308},
                                       {1, (double)NAN, 2, 3}};
    struct kelp_chart_panel panel = {.title = "title <&>", .line_count = 1, .has_mark = true};
    struct kelp_chart chart = {.panels = &panel, .panel_count = 1};
    const struct kelp_picture picture = kelp_chart_picture(&chart);
    char *bytes = NULL;
    size_t count = 0;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(values); i++) {
        for (size_t points = 0; points <= 4; points += points > 0 ? 3 : 1) {
            panel.lines[0] = (struct kelp_chart_line){
                .name = "a", .x = x, .y = values[i], .count = points, .dots = true};
            panel.lines[0].low = i == 3 ? x : NULL;
            panel.lines[0].high = i == 3 ? x : NULL;
            ck_assert_msg(kelp_picture_svg(&picture, &bytes, &count, &error) == KELP_OK, "%s",
                          error.text);
            ck_assert_int_eq(strncmp(bytes, "<?xml", 5), 0);
            ck_assert_ptr_nonnull(strstr(bytes, "</svg>"));
            free(bytes);
        }
    }
    ck_assert_int_eq(kelp_picture_png(&picture, &bytes, &count, &error), KELP_OK);
    ck_assert_uint_gt(count, 1000);
    ck_assert_mem_eq(bytes, "\x89PNG", 4);
    free(bytes);
}

/* The initial weights of a job as a file. */
static void write_weights(const struct kelp_job *job, const char *path)
{
    struct kelp_dataset *dataset = NULL;
    struct kelp_model *model = NULL;
    struct kelp_plan plan;

    ck_assert_msg(kelp_dataset_open(job, &dataset, &error) == KELP_OK, "%s", error.text);
    ck_assert_int_eq(kelp_model_create(job, &kelp_dataset_info(dataset)->shape, 1, &model, &error),
                     KELP_OK);
    ck_assert_int_eq(kelp_derive_plan(job, dataset, model, &plan, &error), KELP_OK);
    float *flat = calloc(plan.flat_count, sizeof(*flat));
    ck_assert_ptr_nonnull(flat);
    ck_assert_int_eq(kelp_plan_initialise(&plan, job, NULL,
                                          (struct kelp_slice_range){0, plan.flat_count}, flat,
                                          &error),
                     KELP_OK);
    ck_assert_int_eq(
        kelp_model_write(path, &plan, flat, &(struct kelp_model_about){job->name, 0, NULL}, &error),
        KELP_OK);
    free(flat);
    kelp_plan_fini(&plan);
    kelp_model_destroy(model);
    kelp_dataset_close(dataset);
}

/* Four windows of the test split: the past ends where the truth begins, in the data's own numbers,
 * of which the generated temperatures are tens; both kinds of features. */
KELP_LOOP_TEST(forecasts, 0, 2)
{
    struct kelp_job_file *file = kelp_job_file_create();
    struct kelp_forecasts drawn;
    char path[128];

    static const char *const keys[][2] = {
        {"model.kind", "dlinear"}, {"data.kind", "synthetic"},
        {"data.rows", "1000"},     {"data.split", "[600, 200, 200]"},
        {"data.seq_len", "48"},    {"data.pred_len", "12"},
        {"data.features", "M"}};
    for (size_t i = 0; i < 6 + (size_t)_i; i++) {
        ck_assert_msg(kelp_job_file_set(file, keys[i][0], keys[i][1], KELP_ORIGIN_FLAG, &error) ==
                          KELP_OK,
                      "%s", error.text);
    }
    ck_assert_msg(kelp_job_file_finish(file, &error) == KELP_OK, "%s", error.text);
    const struct kelp_job *job = kelp_job_file_job(file);
    ck_assert(kelp_forecasts_apply(job));
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    write_weights(job, path);
    ck_assert_msg(kelp_forecasts_make(job, path, &drawn, &error) == KELP_OK, "%s", error.text);
    ck_assert_uint_eq(drawn.count, 4);
    for (size_t i = 0; i < drawn.count; i++) {
        const struct kelp_chart_panel *panel = &drawn.panels[i];
        ck_assert_uint_eq(panel->line_count, 3);
        ck_assert_int_eq(strncmp(panel->title, "OT, ", 4), 0);
        const struct kelp_chart_line *past = &panel->lines[0], *truth = &panel->lines[1];
        const struct kelp_chart_line *forecast = &panel->lines[2];
        ck_assert_uint_eq(past->count, 24);
        ck_assert_uint_eq(truth->count, 12);
        ck_assert_double_eq(past->x[23], -1);
        ck_assert_double_eq(truth->x[0], 0);
        double mean = 0;
        for (size_t t = 0; t < 24; t++) {
            mean += past->y[t] / 24;
        }
        ck_assert_double_lt(fabs(truth->y[0] - past->y[23]), fabs(mean) / 2);
        ck_assert(isfinite(forecast->y[11]));
        ck_assert_double_gt(fabs(mean), 5); /* standardised it would be about 0 */
    }
    kelp_forecasts_fini(&drawn);
    ck_assert_int_eq(kelp_forecasts_make(job, "/nowhere", &drawn, &error), KELP_ERR_NOT_FOUND);
    kelp_job_file_destroy(file);
}
