#include "cli/plot/plot_curves.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/training/metrics.h"

#define POINTS_DOTS 40 /* so few are marked */

static kelp_status make_room(struct kelp_curve *curve, size_t points, struct kelp_error *reterr)
{
    curve->x = calloc(points, sizeof(*curve->x));
    curve->y = calloc(points, sizeof(*curve->y));
    return curve->x && curve->y ? KELP_OK : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

static kelp_status begin_curves(const struct kelp_metrics_log *log, struct kelp_curves *curves,
                                struct kelp_error *reterr)
{
    size_t points[KELP_METRICS_LOG_NAMES_MAX] = {0};
    kelp_status status = KELP_OK;

    for (size_t i = 0; i < log->cell_count; i++) {
        points[log->cells[i].name]++;
    }
    for (uint32_t i = 0; status == KELP_OK && i < log->name_count; i++) {
        struct kelp_curve *curve = &curves->items[curves->count++];
        (void)snprintf(curve->name, sizeof(curve->name), "%s", log->names[i]);
        status = make_room(curve, points[i], reterr);
    }
    return status;
}

static void add_points(const struct kelp_metrics_log *log, const struct kelp_metrics_row *row,
                       struct kelp_curves *curves)
{
    for (uint32_t i = 0; i < row->cell_count; i++) {
        const struct kelp_metrics_cell *cell = &log->cells[row->cell_first + i];
        struct kelp_curve *curve = &curves->items[cell->name];
        curve->x[curve->count] = (double)row->step;
        curve->y[curve->count] = cell->value;
        curve->count++;
    }
}

kelp_status kelp_curves_read(const char *run_path, struct kelp_curves *ret_curves,
                             struct kelp_error *reterr)
{
    struct kelp_metrics_log log;

    memset(ret_curves, 0, sizeof(*ret_curves));
    kelp_status status = kelp_metrics_log_read(run_path, &log, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = begin_curves(&log, ret_curves, reterr);
    if (status == KELP_OK) {
        for (size_t i = 0; i < log.row_count; i++) {
            add_points(&log, &log.rows[i], ret_curves);
        }
    } else {
        kelp_curves_fini(ret_curves);
    }
    kelp_metrics_log_fini(&log);
    return status;
}

void kelp_curves_fini(struct kelp_curves *curves)
{
    for (size_t i = 0; i < curves->count; i++) {
        free(curves->items[i].x);
        free(curves->items[i].y);
    }
    memset(curves, 0, sizeof(*curves));
}

/* ---- panels -------------------------------------------------------------------------------- */

static void add_line(const struct kelp_curves *curves, const char *name, unsigned color,
                     struct kelp_chart_panel *panel)
{
    for (size_t i = 0; i < curves->count; i++) {
        const struct kelp_curve *curve = &curves->items[i];
        if (strcmp(curve->name, name) == 0 && panel->line_count < KELP_CHART_LINES_MAX) {
            struct kelp_chart_line *line = &panel->lines[panel->line_count++];
            *line = (struct kelp_chart_line){.x = curve->x,
                                             .y = curve->y,
                                             .count = curve->count,
                                             .color = color,
                                             .dots = curve->count <= POINTS_DOTS};
            (void)snprintf(line->name, sizeof(line->name), "%s", name);
        }
    }
}

static void begin_panel(struct kelp_chart_panel *panel, const char *title)
{
    memset(panel, 0, sizeof(*panel));
    (void)snprintf(panel->title, sizeof(panel->title), "%s", title);
    (void)snprintf(panel->x_label, sizeof(panel->x_label), "training step");
}

static bool is_metric(const char *name)
{
    for (enum kelp_metric i = 0; i < KELP_METRIC_COUNT; i++) {
        if (strcmp(name, kelp_metric_name(i)) == 0) {
            return true;
        }
    }
    return false;
}

/* Panels of sums that the job's program adds up; returns how many, at most `room`. */
static size_t add_others(const struct kelp_curves *curves, struct kelp_chart_panel *panels,
                         size_t room)
{
    static const char *const splits[] = {"val", "test"};
    size_t count = 0;

    for (size_t i = 0; i < curves->count && count < room; i++) {
        const char *name = curves->items[i].name;
        if (strncmp(name, "val/", 4) != 0 || is_metric(name + 4)) {
            continue;
        }
        begin_panel(&panels[count], name + 4);
        for (unsigned split = 0; split < KELP_ARRAY_COUNT(splits); split++) {
            char own[64];
            (void)snprintf(own, sizeof(own), "%s/%.40s", splits[split], name + 4);
            add_line(curves, own, split + 1, &panels[count]);
        }
        count += panels[count].line_count > 0;
    }
    return count;
}

size_t kelp_curves_panels(const struct kelp_curves *curves, struct kelp_chart_panel *panels)
{
    static const char *const splits[] = {"train", "val", "test"};
    size_t count = 0;

    _Static_assert(KELP_METRIC_COUNT + 1 <= KELP_CHART_PANELS_MAX, "each metric has a panel");
    for (enum kelp_metric i = 0; i < KELP_METRIC_COUNT; i++) {
        struct kelp_chart_panel *panel = &panels[count];
        begin_panel(panel, kelp_metric_name(i));
        for (unsigned split = 0; split < KELP_ARRAY_COUNT(splits); split++) {
            char name[32];
            (void)snprintf(name, sizeof(name), "%s/%s", splits[split], kelp_metric_name(i));
            add_line(curves, name, split, panel);
        }
        if (i == KELP_METRIC_LOSS) { /* between the ends of epochs (metrics.every) */
            add_line(curves, "train/step_loss", 4, panel);
        }
        count += panel->line_count > 0;
    }
    count += add_others(curves, panels + count, KELP_CHART_PANELS_MAX - count - 1);
    begin_panel(&panels[count], "learning rate");
    add_line(curves, "lr", 3, &panels[count]);
    return count + (panels[count].line_count > 0);
}
