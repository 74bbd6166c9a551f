/*
 * Line charts with axes, drawn by cli/plot/picture.h. Pure.
 */
#ifndef KELP_CLI_PLOT_PLOT_CHART_H
#define KELP_CLI_PLOT_PLOT_CHART_H

#include <stddef.h>

#include "cli/plot/picture.h"

#define KELP_CHART_LINES_MAX  8
#define KELP_CHART_TEXT_MAX   128
#define KELP_CHART_PANELS_MAX 24

/* Points in the order of x; one that is not finite is a gap. Borrowed. */
struct kelp_chart_line {
    char name[KELP_CHART_TEXT_MAX];
    const double *x, *y;
    const double *low, *high; /* a band around it, or NULL */
    size_t count;
    unsigned color; /* of the palette */
    bool dots;      /* each point is marked: where they are few */
};

struct kelp_chart_panel {
    char title[KELP_CHART_TEXT_MAX];
    char x_label[KELP_CHART_TEXT_MAX];
    struct kelp_chart_line lines[KELP_CHART_LINES_MAX];
    size_t line_count;
    bool has_mark; /* a dashed line at this x */
    double mark;
    char mark_text[KELP_CHART_TEXT_MAX];
};

struct kelp_chart {
    char title[KELP_CHART_TEXT_MAX];
    struct kelp_chart_panel *panels; /* borrowed */
    size_t panel_count;              /* 1 to KELP_CHART_PANELS_MAX, two in a row */
};

/* Round ticks within [low, high], at most `most`; returns how many. The step is 1, 2 or 5 times a
 * power of ten. */
size_t kelp_chart_ticks(double low, double high, size_t most, double *ret_ticks);

/* A tick as text, with the digits that tell it from its neighbours, a step away. */
void kelp_chart_tick_text(double tick, double step, char *text, size_t text_bytes);

/* Where a panel's curves are drawn, and what they are drawn for. */
struct kelp_chart_frame {
    double left, top, width, height; /* in the picture */
    double x_low, x_high, y_low, y_high;
};
double kelp_chart_x(const struct kelp_chart_frame *frame, double x);
double kelp_chart_y(const struct kelp_chart_frame *frame, double y);
/* A box, ticks with their numbers, a grid. */
void kelp_chart_axes(cairo_t *cairo, const struct kelp_chart_frame *frame, const char *x_label);

/* Of this size, drawn as this; the chart is borrowed. */
struct kelp_picture kelp_chart_picture(const struct kelp_chart *chart);

#endif
