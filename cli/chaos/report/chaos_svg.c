/*
 * The picture of a run under chaos: steps a second over time as a filled curve, a numbered line for
 * each fault in the colour of its kind, and below it the list of the faults.
 */
#include <cairo.h>
#include <inttypes.h>
#include <string.h>

#include "cli/chaos/report/chaos_report.h"
#include "cli/plot/plot_chart.h"

#define WIDTH      1000
#define LEFT       64
#define RIGHT      980
#define TOP        56
#define BOTTOM     320
#define LIST_TOP   (BOTTOM + 66)
#define LIST_LINE  16
#define LIST_PLACE 490 /* columns of the list */
#define BINS       240
#define BIN_MIN_MS 100 /* looks are 20 ms apart */

static const uint32_t kind_colors[KELP_CHAOS_KIND_COUNT] = {0xc0392b, 0xd68910, 0x2471a3, 0x7d6608,
                                                            0x943126, 0x6c3483, 0xa569bd, 0x1e8449,
                                                            0x117864, 0xb9770e, 0x1a5276, 0x884ea0};
static const uint32_t ink = 0x2c3e50;

struct chart {
    const struct kelp_chaos_report *report;
    double rates[BINS]; /* steps a second */
    uint32_t count;
    double bin_ms;
    struct kelp_chart_frame frame; /* seconds, steps a second */
};

/* Steps that were made between two looks: going back makes none. */
static double steps_between(const struct kelp_chaos_look *before,
                            const struct kelp_chaos_look *after)
{
    if (after->generation != before->generation || after->step < before->step) {
        return 0;
    }
    return (double)(after->step - before->step);
}

/* Steps between two looks belong to all bins in between, by time. */
static void spread(struct chart *chart, double from_ms, double to_ms, double steps)
{
    double span = to_ms > from_ms ? to_ms - from_ms : 1;

    for (double at = from_ms; at < to_ms;) {
        uint32_t bin = (uint32_t)(at / chart->bin_ms);
        double end = (bin + 1) * chart->bin_ms;
        end = end < to_ms ? end : to_ms;
        if (bin >= chart->count || end <= at) {
            return;
        }
        chart->rates[bin] += steps * (end - at) / span;
        at = end;
    }
}

static void fill_chart(const struct kelp_chaos_report *report, struct chart *chart)
{
    double end_ms = report->wall_s * 1000;
    double top = 1;

    memset(chart, 0, sizeof(*chart));
    chart->report = report;
    if (report->any && (double)report->newest.at_ms > end_ms) {
        end_ms = (double)report->newest.at_ms;
    }
    end_ms = end_ms < BIN_MIN_MS ? BIN_MIN_MS : end_ms;
    chart->bin_ms = end_ms / BINS < BIN_MIN_MS ? BIN_MIN_MS : end_ms / BINS;
    chart->count = (uint32_t)(end_ms / chart->bin_ms);
    chart->count = chart->count > BINS ? BINS : chart->count;
    for (uint32_t i = 1; i < report->look_count; i++) {
        const struct kelp_chaos_look *before = &report->looks[i - 1];
        const struct kelp_chaos_look *after = &report->looks[i];
        spread(chart, (double)before->at_ms, (double)after->at_ms, steps_between(before, after));
    }
    for (uint32_t i = 0; i < chart->count; i++) {
        chart->rates[i] *= 1000 / chart->bin_ms;
        top = chart->rates[i] > top ? chart->rates[i] : top;
    }
    chart->frame = (struct kelp_chart_frame){.left = LEFT,
                                             .top = TOP,
                                             .width = RIGHT - LEFT,
                                             .height = BOTTOM - TOP,
                                             .x_high = end_ms / 1000,
                                             .y_high = 1.08 * top};
}

/* In two columns. */
static uint32_t list_rows(const struct kelp_chaos_report *report)
{
    return (report->event_count + 1) / 2;
}

static void draw_curve(cairo_t *cairo, const struct chart *chart)
{
    const struct kelp_chart_frame *frame = &chart->frame;
    double bin_s = chart->bin_ms / 1000;

    cairo_move_to(cairo, LEFT, BOTTOM);
    for (uint32_t i = 0; i < chart->count; i++) {
        double y = kelp_chart_y(frame, chart->rates[i]);
        cairo_line_to(cairo, kelp_chart_x(frame, i * bin_s), y);
        cairo_line_to(cairo, kelp_chart_x(frame, (i + 1) * bin_s), y);
    }
    cairo_line_to(cairo, kelp_chart_x(frame, chart->count * bin_s), BOTTOM);
    cairo_close_path(cairo);
    kelp_picture_use(cairo, 0xaed6f1, 1);
    cairo_fill_preserve(cairo);
    kelp_picture_use(cairo, 0x5499c7, 1);
    cairo_stroke(cairo);
}

static void draw_faults(cairo_t *cairo, const struct chart *chart)
{
    static const struct kelp_picture_font font = {.size = 9, .anchor = 0.5};
    char number[16];

    for (uint32_t i = 0; i < chart->report->event_count; i++) {
        const struct kelp_chaos_event *event = &chart->report->events[i];
        double at_ms = (double)event->at_ms;
        double x = kelp_chart_x(
            &chart->frame, at_ms < chart->frame.x_high * 1000 ? at_ms / 1000 : chart->frame.x_high);
        (void)snprintf(number, sizeof(number), "%" PRIu32, i + 1);
        kelp_picture_use(cairo, kind_colors[event->fault.kind], 1);
        kelp_picture_line(cairo, x, TOP, x, BOTTOM);
        kelp_picture_text(cairo, &font, x, BOTTOM - 4 - (int)(i % 4) * 10, number);
    }
}

/* "  12.34 s  812     kill shard-1                  0.84 s     112": as in the timeline, closer. */
static void list_line(const struct kelp_chaos_event *event, char text[KELP_CHAOS_LINE_MAX])
{
    char what[KELP_CHAOS_TEXT_MAX];
    char lasts[16] = "";
    char recovery[16] = "-";
    char again[24] = "";

    (void)snprintf(what, sizeof(what), "%s %s", kelp_chaos_kind_name(event->fault.kind),
                   event->target);
    if (event->fault.for_ms > 0) {
        (void)snprintf(lasts, sizeof(lasts), "%.1f s", event->fault.for_ms / 1000.0);
    }
    if (event->recovered) {
        (void)snprintf(recovery, sizeof(recovery), "%.2f s", (double)event->recovery_ms / 1000);
    }
    if (event->steps_again > 0) {
        (void)snprintf(again, sizeof(again), "%" PRIu64, event->steps_again);
    }
    (void)snprintf(text, KELP_CHAOS_LINE_MAX, "%7.2f s %-7" PRIu64 " %-22s %6s %9s %6s",
                   (double)event->at_ms / 1000, event->step, what, lasts, recovery, again);
}

static void draw_row(cairo_t *cairo, uint32_t column, uint32_t row, uint32_t color,
                     const char *text)
{
    static const struct kelp_picture_font font = {.size = 10, .monospace = true};

    kelp_picture_use(cairo, color, 1);
    kelp_picture_text(cairo, &font, 16 + column * LIST_PLACE, LIST_TOP + row * LIST_LINE, text);
}

static void draw_list(cairo_t *cairo, const struct kelp_chaos_report *report)
{
    static const char heading[] =
        "       time  step    fault                    lasts recovered  again";
    char line[KELP_CHAOS_LINE_MAX];
    char text[KELP_CHAOS_LINE_MAX + 16];
    uint32_t rows = list_rows(report);

    for (uint32_t i = 0; i < report->event_count; i++) {
        const struct kelp_chaos_event *event = &report->events[i];
        if (i % rows == 0) {
            draw_row(cairo, i / rows, 0, 0x707b7c, heading);
        }
        list_line(event, line);
        (void)snprintf(text, sizeof(text), "%3" PRIu32 " %s", i + 1, line);
        draw_row(cairo, i / rows, i % rows + 1, kind_colors[event->fault.kind], text);
    }
}

static void draw(cairo_t *cairo, const void *user)
{
    static const struct kelp_picture_font font = {.size = 15};
    static const struct kelp_picture_font small = {.size = 12};
    const struct chart *chart = user;
    const struct kelp_chaos_report *report = chart->report;
    char title[512];

    (void)snprintf(title, sizeof(title), "%s: %" PRIu32 " faults, plan %s, seed %" PRIu64 ": %s",
                   report->job, report->event_count, report->plan, report->seed,
                   report->equal ? "the digest of the quiet run"
                                 : "NOT the digest of the quiet run");
    kelp_picture_use(cairo, ink, 1);
    kelp_picture_text(cairo, &font, 16, 24, title);
    cairo_set_line_width(cairo, 1);
    kelp_picture_text(cairo, &small, LEFT, TOP - 8, "steps a second");
    kelp_chart_axes(cairo, &chart->frame, "seconds");
    draw_curve(cairo, chart);
    draw_faults(cairo, chart);
    draw_list(cairo, report);
}

kelp_status kelp_chaos_report_svg(const struct kelp_chaos_report *report, char **ret_bytes,
                                  size_t *ret_count, struct kelp_error *reterr)
{
    struct chart chart;
    const struct kelp_picture picture = {.width = WIDTH,
                                         .height = LIST_TOP + (list_rows(report) + 1) * LIST_LINE,
                                         .draw = draw,
                                         .user = &chart};

    fill_chart(report, &chart);
    return kelp_picture_svg(&picture, ret_bytes, ret_count, reterr);
}
