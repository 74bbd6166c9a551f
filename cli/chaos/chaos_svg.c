/*
 * The picture of a run under chaos: steps a second over time as a filled curve, a numbered line for
 * each fault in the colour of its kind, and below it the list of the faults.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chaos/chaos_report.h"

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

static const char *const kind_colours[KELP_CHAOS_KIND_COUNT] = {
    "#c0392b", "#d68910", "#2471a3", "#7d6608", "#943126", "#6c3483", "#a569bd"};

struct chart {
    double rates[BINS]; /* steps a second */
    uint32_t count;
    double bin_ms;
    double end_ms;
    double top; /* of the scale */
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

/* 1, 2 or 5 times a power of ten: the distance of about `count` marks up to `most`. */
static double nice_distance(double most, int count)
{
    double distance = 1;
    static const double factors[] = {2, 2.5, 2};

    while (distance * count > most && distance > 1e-3) {
        distance /= 10;
    }
    for (size_t i = 0; distance * count < most; i = (i + 1) % 3) {
        distance *= factors[i];
    }
    return distance;
}

static void fill_chart(const struct kelp_chaos_report *report, struct chart *chart)
{
    memset(chart, 0, sizeof(*chart));
    chart->end_ms = report->wall_s * 1000;
    if (report->any && (double)report->newest.at_ms > chart->end_ms) {
        chart->end_ms = (double)report->newest.at_ms;
    }
    chart->end_ms = chart->end_ms < BIN_MIN_MS ? BIN_MIN_MS : chart->end_ms;
    chart->bin_ms = chart->end_ms / BINS < BIN_MIN_MS ? BIN_MIN_MS : chart->end_ms / BINS;
    chart->count = (uint32_t)(chart->end_ms / chart->bin_ms);
    chart->count = chart->count > BINS ? BINS : chart->count;
    for (uint32_t i = 1; i < report->look_count; i++) {
        const struct kelp_chaos_look *before = &report->looks[i - 1];
        const struct kelp_chaos_look *after = &report->looks[i];
        spread(chart, (double)before->at_ms, (double)after->at_ms, steps_between(before, after));
    }
    chart->top = 1;
    for (uint32_t i = 0; i < chart->count; i++) {
        chart->rates[i] *= 1000 / chart->bin_ms;
        chart->top = chart->rates[i] > chart->top ? chart->rates[i] : chart->top;
    }
    chart->top *= 1.08;
}

static double x_of(const struct chart *chart, double ms)
{
    double share = ms / chart->end_ms;

    return LEFT + (RIGHT - LEFT) * (share > 1 ? 1 : share);
}

static double y_of(const struct chart *chart, double rate)
{
    return BOTTOM - (BOTTOM - TOP) * rate / chart->top;
}

/* In two columns. */
static uint32_t list_rows(const struct kelp_chaos_report *report)
{
    return (report->event_count + 1) / 2;
}

static void print_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<':
            (void)fputs("&lt;", out);
            break;
        case '>':
            (void)fputs("&gt;", out);
            break;
        case '&':
            (void)fputs("&amp;", out);
            break;
        default:
            (void)fputc((unsigned char)*text < 0x20 ? ' ' : *text, out);
            break;
        }
    }
}

static void print_axes(const struct chart *chart, FILE *out)
{
    double seconds = chart->end_ms / 1000;
    double across = nice_distance(seconds, 10);
    double up = nice_distance(chart->top, 5);

    for (int i = 0; i * up <= chart->top; i++) {
        double y = y_of(chart, i * up);
        (void)fprintf(out,
                      "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#e5e7e9\"/>\n"
                      "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                      LEFT, y, RIGHT, y, LEFT - 8, y + 4, i * up);
    }
    for (int i = 0; i * across <= seconds; i++) {
        double x = x_of(chart, i * across * 1000);
        (void)fprintf(out,
                      "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#909497\"/>\n"
                      "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n",
                      x, BOTTOM, x, BOTTOM + 5, x, BOTTOM + 20, i * across);
    }
    (void)fprintf(out,
                  "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#909497\"/>\n"
                  "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">seconds</text>\n"
                  "<text x=\"%d\" y=\"%d\">steps a second</text>\n",
                  LEFT, BOTTOM, RIGHT, BOTTOM, RIGHT, BOTTOM + 38, LEFT, TOP - 8);
}

static void print_curve(const struct chart *chart, FILE *out)
{
    (void)fprintf(out, "<path d=\"M%d %d", LEFT, BOTTOM);
    for (uint32_t i = 0; i < chart->count; i++) {
        double from = x_of(chart, i * chart->bin_ms);
        double to = x_of(chart, (i + 1) * chart->bin_ms);
        double y = y_of(chart, chart->rates[i]);
        (void)fprintf(out, "L%.1f %.1fL%.1f %.1f", from, y, to, y);
    }
    (void)fprintf(out, "L%.1f %dZ\" fill=\"#aed6f1\" stroke=\"#5499c7\"/>\n",
                  x_of(chart, chart->count * chart->bin_ms), BOTTOM);
}

static void print_faults(const struct kelp_chaos_report *report, const struct chart *chart,
                         FILE *out)
{
    for (uint32_t i = 0; i < report->event_count; i++) {
        const struct kelp_chaos_event *event = &report->events[i];
        double x = x_of(chart, (double)event->at_ms);
        const char *colour = kind_colours[event->fault.kind];
        (void)fprintf(out,
                      "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"%s\"/>\n"
                      "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" font-size=\"9\" "
                      "fill=\"%s\">%" PRIu32 "</text>\n",
                      x, TOP, x, BOTTOM, colour, x, BOTTOM - 4 - (int)(i % 4) * 10, colour, i + 1);
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

static void print_row(FILE *out, uint32_t column, uint32_t row, const char *colour,
                      const char *number, const char *line)
{
    (void)fprintf(out,
                  "<text x=\"%" PRIu32 "\" y=\"%" PRIu32 "\" font-size=\"10\" fill=\"%s\" "
                  "xml:space=\"preserve\" font-family=\"monospace\">%3s ",
                  16 + column * LIST_PLACE, LIST_TOP + row * LIST_LINE, colour, number);
    print_escaped(out, line);
    (void)fputs("</text>\n", out);
}

static void print_list(const struct kelp_chaos_report *report, FILE *out)
{
    static const char heading[] =
        "   time  step    fault                    lasts recovered  again";
    char line[KELP_CHAOS_LINE_MAX];
    char number[16];
    uint32_t rows = list_rows(report);

    for (uint32_t i = 0; i < report->event_count; i++) {
        const struct kelp_chaos_event *event = &report->events[i];
        if (i % rows == 0) {
            print_row(out, i / rows, 0, "#707b7c", "", heading);
        }
        list_line(event, line);
        (void)snprintf(number, sizeof(number), "%" PRIu32, i + 1);
        print_row(out, i / rows, i % rows + 1, kind_colours[event->fault.kind], number, line);
    }
}

void kelp_chaos_report_svg(const struct kelp_chaos_report *report, FILE *out)
{
    struct chart chart;

    fill_chart(report, &chart);
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %" PRIu32 "\" "
                  "font-family=\"sans-serif\" font-size=\"12\" fill=\"#2c3e50\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n"
                  "<text x=\"16\" y=\"24\" font-size=\"15\">",
                  WIDTH, LIST_TOP + (list_rows(report) + 1) * LIST_LINE);
    print_escaped(out, report->job);
    (void)fprintf(out, ": %" PRIu32 " faults, plan ", report->event_count);
    print_escaped(out, report->plan);
    (void)fprintf(out, ", seed %" PRIu64 ": %s</text>\n", report->seed,
                  report->equal ? "the digest of the quiet run"
                                : "NOT the digest of the quiet run");
    print_axes(&chart, out);
    print_curve(&chart, out);
    print_faults(report, &chart, out);
    print_list(report, out);
    (void)fputs("</svg>\n", out);
}
