#include "cli/plot/plot_curves.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/run/run_dir.h"
#include "common/base/files.h"
#include "common/base/json.h"
#include "common/training/metrics.h"

#define FILE_MAX    (256u << 20) /* bytes of metrics.jsonl */
#define POINTS_MAX  (1u << 22)   /* of one curve */
#define POINTS_DOTS 40           /* so few are marked */

static struct kelp_curve *curve_of(struct kelp_curves *curves, const char *name)
{
    for (size_t i = 0; i < curves->count; i++) {
        if (strcmp(curves->items[i].name, name) == 0) {
            return &curves->items[i];
        }
    }
    if (curves->count == KELP_CURVES_MAX || strlen(name) >= sizeof(curves->items[0].name)) {
        return NULL;
    }
    struct kelp_curve *curve = &curves->items[curves->count++];
    (void)snprintf(curve->name, sizeof(curve->name), "%s", name);
    return curve;
}

static kelp_status add_point(struct kelp_curve *curve, double x, double y,
                             struct kelp_error *reterr)
{
    if (curve->count == curve->capacity) {
        size_t capacity = curve->capacity == 0 ? 64 : 2 * curve->capacity;
        double *xs = capacity > POINTS_MAX ? NULL : realloc(curve->x, capacity * sizeof(*xs));
        curve->x = xs ? xs : curve->x;
        double *ys = xs ? realloc(curve->y, capacity * sizeof(*ys)) : NULL;
        curve->y = ys ? ys : curve->y;
        if (!xs || !ys) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "too many values of %s", curve->name);
        }
        curve->capacity = capacity;
    }
    curve->x[curve->count] = x;
    curve->y[curve->count] = y;
    curve->count++;
    return KELP_OK;
}

static bool is_place(const char *name)
{
    return strcmp(name, "version") == 0 || strcmp(name, "step") == 0 || strcmp(name, "epoch") == 0;
}

static kelp_status read_line(struct kelp_curves *curves, const char *text, size_t bytes,
                             struct kelp_error *reterr)
{
    cJSON *json = NULL;
    uint64_t step = 0;
    kelp_status status = kelp_json_parse(text, bytes, &json, reterr);

    if (status == KELP_OK) {
        status = kelp_json_u64(json, "step", KELP_JSON_INTEGER_MAX, &step, reterr);
    }
    for (const cJSON *item = json ? json->child : NULL; status == KELP_OK && item;
         item = item->next) {
        bool value = cJSON_IsNumber(item) || cJSON_IsNull(item);
        struct kelp_curve *curve =
            value && !is_place(item->string) ? curve_of(curves, item->string) : NULL;
        if (curve) {
            status = add_point(curve, (double)step,
                               cJSON_IsNumber(item) ? item->valuedouble : (double)NAN, reterr);
        }
    }
    cJSON_Delete(json);
    return status;
}

static kelp_status read_text(struct kelp_curves *curves, const char *path, const char *text,
                             struct kelp_error *reterr)
{
    unsigned number = 1;

    for (const char *end; (end = strchr(text, '\n')) != NULL; text = end + 1, number++) {
        kelp_status status = read_line(curves, text, (size_t)(end - text), reterr);
        if (status != KELP_OK) {
            kelp_error_prefix(reterr, "%s:%u", path, number);
            return status == KELP_ERR_NO_MEMORY || status == KELP_ERR_LIMIT ? status
                                                                            : KELP_ERR_CORRUPT;
        }
    }
    return KELP_OK;
}

kelp_status kelp_curves_read(const char *run_path, struct kelp_curves *ret_curves,
                             struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64], *text = NULL;
    size_t bytes = 0;

    memset(ret_curves, 0, sizeof(*ret_curves));
    kelp_status status = kelp_run_dir_path(run_path, "metrics.jsonl", path, sizeof(path), reterr);
    if (status == KELP_OK) {
        status = kelp_files_read(path, FILE_MAX, &text, &bytes, reterr);
    }
    if (status == KELP_OK) {
        status = read_text(ret_curves, path, text, reterr);
    }
    free(text);
    if (status != KELP_OK) {
        kelp_curves_fini(ret_curves);
    }
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
        count += panel->line_count > 0;
    }
    begin_panel(&panels[count], "learning rate");
    add_line(curves, "lr", 3, &panels[count]);
    return count + (panels[count].line_count > 0);
}
