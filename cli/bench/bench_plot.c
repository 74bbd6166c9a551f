#include "cli/bench/bench_plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/plot/plot_chart.h"

enum { SPEED, EFFORT, PANELS };

/* Of a way: its points, in the order of measuring. */
struct points {
    double size[KELP_BENCH_ROWS_MAX];
    double values[PANELS][KELP_BENCH_ROWS_MAX];
    size_t count;
};

struct plot {
    struct points points[KELP_CHART_LINES_MAX];
    struct kelp_chart_panel panels[PANELS];
};

/* The way's place among the lines; KELP_CHART_LINES_MAX: there is no room for another one. */
static size_t line_of(struct plot *plot, const char *way)
{
    size_t line = 0;

    while (line < plot->panels[SPEED].line_count &&
           strcmp(plot->panels[SPEED].lines[line].name, way) != 0) {
        line++;
    }
    if (line == plot->panels[SPEED].line_count && line < KELP_CHART_LINES_MAX) {
        for (int i = 0; i < PANELS; i++) {
            struct kelp_chart_line *made = &plot->panels[i].lines[plot->panels[i].line_count++];
            (void)snprintf(made->name, sizeof(made->name), "%s", way);
            made->x = plot->points[line].size;
            made->y = plot->points[line].values[i];
            made->color = (unsigned)line;
            made->dots = true;
        }
    }
    return line;
}

/* Sizes may have any order; lines go from the smallest to the largest. */
static void add_point(struct points *points, const struct kelp_bench_rate *rate)
{
    const double size = log2((double)rate->bytes / 1024);
    size_t at = points->count++;

    for (; at > 0 && points->size[at - 1] > size; at--) {
        points->size[at] = points->size[at - 1];
        for (int i = 0; i < PANELS; i++) {
            points->values[i][at] = points->values[i][at - 1];
        }
    }
    points->size[at] = size;
    points->values[SPEED][at] = rate->gb_per_s;
    points->values[EFFORT][at] = rate->cpu_s_per_gb;
}

static void fill(struct plot *plot, const struct kelp_bench_rate *rates, uint32_t count)
{
    static const char *const titles[PANELS] = {"GB/s, both ways", "processor seconds for a GB"};

    for (int i = 0; i < PANELS; i++) {
        (void)snprintf(plot->panels[i].title, sizeof(plot->panels[i].title), "%s", titles[i]);
        (void)snprintf(plot->panels[i].x_label, sizeof(plot->panels[i].x_label),
                       "size: powers of two, in KiB");
    }
    for (uint32_t i = 0; i < count && i < KELP_BENCH_ROWS_MAX; i++) {
        const size_t line = line_of(plot, rates[i].way);
        if (line < KELP_CHART_LINES_MAX) {
            add_point(&plot->points[line], &rates[i]);
        }
    }
    for (int i = 0; i < PANELS; i++) {
        for (size_t line = 0; line < plot->panels[i].line_count; line++) {
            plot->panels[i].lines[line].count = plot->points[line].count;
        }
    }
}

kelp_status kelp_bench_plot(const struct kelp_bench_rate *rates, uint32_t count, const char *title,
                            char **ret_bytes, size_t *ret_count, struct kelp_error *reterr)
{
    struct plot *plot = calloc(1, sizeof(*plot));
    struct kelp_chart chart = {.panel_count = PANELS};

    if (!plot) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    fill(plot, rates, count);
    (void)snprintf(chart.title, sizeof(chart.title), "%s", title);
    chart.panels = plot->panels;
    const struct kelp_picture picture = kelp_chart_picture(&chart);
    kelp_status status = kelp_picture_svg(&picture, ret_bytes, ret_count, reterr);
    free(plot);
    return status;
}
