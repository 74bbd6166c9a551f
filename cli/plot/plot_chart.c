#include "cli/plot/plot_chart.h"

#include <assert.h>
#include <cairo.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PANEL_WIDTH   460.0
#define PANEL_HEIGHT  300.0
#define TITLE_HEIGHT  34.0
#define MARGIN_LEFT   66.0
#define MARGIN_RIGHT  18.0
#define MARGIN_TOP    46.0
#define MARGIN_BOTTOM 44.0
#define TICKS_MAX     16

/* Apart for people who see few colours, too (Okabe and Ito). */
static const uint32_t palette[] = {0x0073b3, 0xe69e00, 0x009e73, 0xd65e00, 0xcc78a6, 0x57b5e8};
static const uint32_t ink = 0x262626;
static const uint32_t faint = 0xdedede;

/* ---- axes ---------------------------------------------------------------------------------- */

size_t kelp_chart_ticks(double low, double high, size_t most, double *ret_ticks)
{
    double span = high - low;
    size_t count = 0;

    if (!(span > 0) || !isfinite(span) || most == 0) {
        return 0;
    }
    double power = pow(10, floor(log10(span / (double)most)));
    double rest = span / (double)most / power;
    double step = power * (rest <= 1 ? 1 : rest <= 2 ? 2 : rest <= 5 ? 5 : 10);
    if (!(step > 0) || !isfinite(step)) {
        return 0;
    }
    for (double i = ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && count < most; i++) {
        ret_ticks[count++] = i * step;
    }
    return count;
}

static void widen(double value, double *low, double *high)
{
    if (isfinite(value)) {
        *low = value < *low ? value : *low;
        *high = value > *high ? value : *high;
    }
}

/* Room around the values; a line that never changes gets some, too. */
static void pad(double *low, double *high, double share)
{
    if (!(*low <= *high)) {
        *low = 0;
        *high = 1;
    }
    double span = *high - *low;
    double room = span > 0 ? span * share : fabs(*high) > 0 ? fabs(*high) * 0.1 : 1;
    *low -= room;
    *high += room;
}

static struct kelp_chart_frame frame_of(const struct kelp_chart_panel *panel, double left,
                                        double top)
{
    struct kelp_chart_frame frame = {.left = left + MARGIN_LEFT,
                                     .top = top + MARGIN_TOP,
                                     .width = PANEL_WIDTH - MARGIN_LEFT - MARGIN_RIGHT,
                                     .height = PANEL_HEIGHT - MARGIN_TOP - MARGIN_BOTTOM,
                                     .x_low = INFINITY,
                                     .x_high = -INFINITY,
                                     .y_low = INFINITY,
                                     .y_high = -INFINITY};

    for (size_t l = 0; l < panel->line_count; l++) {
        const struct kelp_chart_line *line = &panel->lines[l];
        for (size_t i = 0; i < line->count; i++) {
            widen(line->x[i], &frame.x_low, &frame.x_high);
            widen(line->y[i], &frame.y_low, &frame.y_high);
            if (line->low) {
                widen(line->low[i], &frame.y_low, &frame.y_high);
                widen(line->high[i], &frame.y_low, &frame.y_high);
            }
        }
    }
    pad(&frame.x_low, &frame.x_high, 0.02);
    pad(&frame.y_low, &frame.y_high, 0.06);
    return frame;
}

double kelp_chart_x(const struct kelp_chart_frame *frame, double x)
{
    return frame->left + (x - frame->x_low) / (frame->x_high - frame->x_low) * frame->width;
}

double kelp_chart_y(const struct kelp_chart_frame *frame, double y)
{
    return frame->top + (frame->y_high - y) / (frame->y_high - frame->y_low) * frame->height;
}

/* ---- drawing ------------------------------------------------------------------------------- */

void kelp_chart_tick_text(double tick, double step, char *text, size_t text_bytes)
{
    if (fabs(tick) <= step / 2) {
        (void)snprintf(text, text_bytes, "0"); /* a sum that was to be zero, or -0 */
        return;
    }
    int digits = (int)(floor(log10(fabs(tick))) - floor(log10(step))) + 1;
    (void)snprintf(text, text_bytes, "%.*g", digits < 6 ? 6 : (digits > 12 ? 12 : digits), tick);
}

/* Of a tick alone: its own size. */
static double step_of(const double *ticks, size_t count)
{
    return count > 1 ? ticks[1] - ticks[0] : fabs(ticks[0]);
}

void kelp_chart_axes(cairo_t *cairo, const struct kelp_chart_frame *frame, const char *x_label)
{
    static const struct kelp_picture_font right = {.size = 10, .anchor = 1};
    static const struct kelp_picture_font middle = {.size = 10, .anchor = 0.5};
    static const struct kelp_picture_font label = {.size = 11, .anchor = 0.5};
    double ticks[TICKS_MAX];
    char text[32];

    cairo_set_line_width(cairo, 1);
    size_t count = kelp_chart_ticks(frame->y_low, frame->y_high, 6, ticks);
    for (size_t i = 0; i < count; i++) {
        double y = kelp_chart_y(frame, ticks[i]);
        kelp_picture_use(cairo, faint, 1);
        kelp_picture_line(cairo, frame->left, y, frame->left + frame->width, y);
        kelp_picture_use(cairo, ink, 1);
        kelp_chart_tick_text(ticks[i], step_of(ticks, count), text, sizeof(text));
        kelp_picture_text(cairo, &right, frame->left - 6, y + 3.5, text);
    }
    count = kelp_chart_ticks(frame->x_low, frame->x_high, 6, ticks);
    for (size_t i = 0; i < count; i++) {
        double x = kelp_chart_x(frame, ticks[i]);
        kelp_picture_use(cairo, faint, 1);
        kelp_picture_line(cairo, x, frame->top, x, frame->top + frame->height);
        kelp_picture_use(cairo, ink, 1);
        kelp_chart_tick_text(ticks[i], step_of(ticks, count), text, sizeof(text));
        kelp_picture_text(cairo, &middle, x, frame->top + frame->height + 14, text);
    }
    kelp_picture_use(cairo, ink, 1);
    cairo_rectangle(cairo, frame->left, frame->top, frame->width, frame->height);
    cairo_stroke(cairo);
    kelp_picture_text(cairo, &label, frame->left + frame->width / 2,
                      frame->top + frame->height + 30, x_label);
}

static bool point(const struct kelp_chart_line *line, size_t i)
{
    return isfinite(line->x[i]) && isfinite(line->y[i]);
}

static void draw_band(cairo_t *cairo, const struct kelp_chart_frame *frame,
                      const struct kelp_chart_line *line)
{
    for (size_t i = 0; i < line->count; i++) {
        cairo_line_to(cairo, kelp_chart_x(frame, line->x[i]), kelp_chart_y(frame, line->high[i]));
    }
    for (size_t i = line->count; i-- > 0;) {
        cairo_line_to(cairo, kelp_chart_x(frame, line->x[i]), kelp_chart_y(frame, line->low[i]));
    }
    cairo_close_path(cairo);
    kelp_picture_use(cairo, palette[line->color % KELP_ARRAY_COUNT(palette)], 0.18);
    cairo_fill(cairo);
}

static void draw_line(cairo_t *cairo, const struct kelp_chart_frame *frame,
                      const struct kelp_chart_line *line)
{
    const double tau = 6.283185307179586;

    kelp_picture_use(cairo, palette[line->color % KELP_ARRAY_COUNT(palette)], 1);
    cairo_set_line_width(cairo, 1.6);
    cairo_set_line_join(cairo, CAIRO_LINE_JOIN_ROUND);
    for (size_t i = 0; i < line->count; i++) {
        if (!point(line, i)) {
            continue;
        }
        double x = kelp_chart_x(frame, line->x[i]), y = kelp_chart_y(frame, line->y[i]);
        if (i > 0 && point(line, i - 1)) {
            cairo_line_to(cairo, x, y);
        } else {
            cairo_move_to(cairo, x, y);
        }
    }
    cairo_stroke(cairo);
    for (size_t i = 0; line->dots && i < line->count; i++) {
        if (point(line, i)) {
            cairo_arc(cairo, kelp_chart_x(frame, line->x[i]), kelp_chart_y(frame, line->y[i]), 2.4,
                      0, tau);
            cairo_fill(cairo);
        }
    }
}

static void draw_mark(cairo_t *cairo, const struct kelp_chart_frame *frame,
                      const struct kelp_chart_panel *panel)
{
    static const double dashes[] = {4, 3};
    double x = kelp_chart_x(frame, panel->mark);

    if (!panel->has_mark || panel->mark < frame->x_low || panel->mark > frame->x_high) {
        return;
    }
    kelp_picture_use(cairo, ink, 0.7);
    cairo_set_line_width(cairo, 1);
    cairo_set_dash(cairo, dashes, KELP_ARRAY_COUNT(dashes), 0);
    kelp_picture_line(cairo, x, frame->top, x, frame->top + frame->height);
    cairo_set_dash(cairo, NULL, 0, 0);
    bool right = x > frame->left + frame->width / 2;
    const struct kelp_picture_font font = {.size = 10, .anchor = right ? 1 : 0};
    kelp_picture_text(cairo, &font, x + (right ? -4 : 4), frame->top + 12, panel->mark_text);
}

/* Names in their colours, in a row below the title. */
static void draw_legend(cairo_t *cairo, const struct kelp_chart_frame *frame,
                        const struct kelp_chart_panel *panel)
{
    double x = frame->left, y = frame->top - 8;
    static const struct kelp_picture_font font = {.size = 10.5};

    for (size_t i = 0; i < panel->line_count; i++) {
        const struct kelp_chart_line *line = &panel->lines[i];
        kelp_picture_use(cairo, palette[line->color % KELP_ARRAY_COUNT(palette)], 1);
        cairo_set_line_width(cairo, 2.4);
        kelp_picture_line(cairo, x, y - 3.5, x + 14, y - 3.5);
        kelp_picture_use(cairo, ink, 1);
        x += 18 + kelp_picture_text(cairo, &font, x + 18, y, line->name) + 14;
    }
}

static void draw_panel(cairo_t *cairo, const struct kelp_chart_panel *panel, double left,
                       double top)
{
    static const struct kelp_picture_font font = {.size = 13, .bold = true};
    struct kelp_chart_frame frame = frame_of(panel, left, top);

    kelp_picture_use(cairo, ink, 1);
    kelp_picture_text(cairo, &font, frame.left, top + 20, panel->title);
    kelp_chart_axes(cairo, &frame, panel->x_label);
    cairo_save(cairo);
    cairo_rectangle(cairo, frame.left, frame.top, frame.width, frame.height);
    cairo_clip(cairo);
    for (size_t i = 0; i < panel->line_count; i++) {
        if (panel->lines[i].low && panel->lines[i].count > 1) {
            draw_band(cairo, &frame, &panel->lines[i]);
        }
    }
    for (size_t i = 0; i < panel->line_count; i++) {
        draw_line(cairo, &frame, &panel->lines[i]);
    }
    draw_mark(cairo, &frame, panel);
    cairo_restore(cairo);
    draw_legend(cairo, &frame, panel);
}

static size_t columns_of(const struct kelp_chart *chart)
{
    return chart->panel_count > 1 ? 2 : 1;
}

static double width_of(const struct kelp_chart *chart)
{
    return PANEL_WIDTH * (double)columns_of(chart);
}

static double height_of(const struct kelp_chart *chart)
{
    size_t rows = (chart->panel_count + columns_of(chart) - 1) / columns_of(chart);
    return TITLE_HEIGHT + PANEL_HEIGHT * (double)rows;
}

static void draw(cairo_t *cairo, const void *user)
{
    static const struct kelp_picture_font font = {.size = 15, .anchor = 0.5, .bold = true};
    const struct kelp_chart *chart = user;

    kelp_picture_use(cairo, ink, 1);
    kelp_picture_text(cairo, &font, width_of(chart) / 2, 22, chart->title);
    for (size_t i = 0; i < chart->panel_count; i++) {
        draw_panel(cairo, &chart->panels[i], PANEL_WIDTH * (double)(i % columns_of(chart)),
                   TITLE_HEIGHT + PANEL_HEIGHT * (double)(i / columns_of(chart)));
    }
}

struct kelp_picture kelp_chart_picture(const struct kelp_chart *chart)
{
    assert(chart->panel_count > 0);
    assert(chart->panel_count <= KELP_CHART_PANELS_MAX);
    return (struct kelp_picture){
        .width = width_of(chart), .height = height_of(chart), .draw = draw, .user = chart};
}
