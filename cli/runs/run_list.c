#include "cli/runs/run_list.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/files.h"

/* ---- finding ------------------------------------------------------------------------------- */

static kelp_status add_run(struct kelp_run_list *list, const char *path,
                           const struct kelp_run_look *look, struct kelp_error *reterr)
{
    if (list->count == KELP_RUN_LIST_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "more than %d runs; name fewer folders",
                         KELP_RUN_LIST_MAX);
    }
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 16 : 2 * list->capacity;
        struct kelp_run_info *items = realloc(list->items, capacity * sizeof(*items));
        if (!items) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        }
        list->items = items;
        list->capacity = capacity;
    }
    kelp_run_info_read(path, look, &list->items[list->count++]);
    return KELP_OK;
}

static bool is_folder(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static kelp_status add_entry(struct kelp_run_list *list, const char *folder, const char *name,
                             const struct kelp_run_look *look, struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 1];

    kelp_status status = kelp_run_dir_path(folder, name, path, sizeof(path), reterr);
    if (status == KELP_OK && is_folder(path) && kelp_run_info_is_run(path)) {
        status = add_run(list, path, look, reterr);
    }
    return status;
}

kelp_status kelp_run_list_add(struct kelp_run_list *list, const char *folder,
                              const struct kelp_run_look *look, struct kelp_error *reterr)
{
    char resolved[KELP_RUN_PATH_MAX + 1];
    kelp_status status = kelp_run_dir_resolve(folder, resolved, reterr);

    if (status != KELP_OK) {
        return status;
    }
    for (size_t end = strlen(resolved); end > 1 && resolved[end - 1] == '/'; end--) {
        resolved[end - 1] = '\0';
    }
    if (kelp_run_info_is_run(resolved)) {
        return add_run(list, resolved, look, reterr);
    }
    DIR *stream = opendir(resolved);
    if (!stream) {
        return kelp_files_error(errno, "open folder", resolved, reterr);
    }
    for (struct dirent *entry = readdir(stream); entry && status == KELP_OK;
         entry = readdir(stream)) {
        if (entry->d_name[0] != '.') {
            status = add_entry(list, resolved, entry->d_name, look, reterr);
        }
    }
    (void)closedir(stream);
    return status;
}

kelp_status kelp_run_list_find(struct kelp_run_list *list, const struct kelp_options *given,
                               const struct kelp_run_look *look, struct kelp_error *reterr)
{
    size_t count = kelp_options_positional_count(given);
    kelp_status status = KELP_OK;

    if (count == 0) {
        status = kelp_run_list_add(list, "runs", look, reterr);
        return status == KELP_ERR_NOT_FOUND ? KELP_OK : status;
    }
    for (size_t i = 0; i < count && status == KELP_OK; i++) {
        status = kelp_run_list_add(list, kelp_options_positional(given, i), look, reterr);
    }
    return status;
}

void kelp_run_list_fini(struct kelp_run_list *list)
{
    free(list->items);
    memset(list, 0, sizeof(*list));
}

const char *kelp_run_list_name(const struct kelp_run_info *info)
{
    return strncmp(info->path, "runs/", 5) == 0 && info->path[5] != '\0' ? info->path + 5
                                                                         : info->path;
}

uint32_t kelp_run_list_metrics(const struct kelp_run_list *list, bool best,
                               const char *ret_names[KELP_RUN_LIST_METRICS_MAX])
{
    uint32_t count = 0;

    for (size_t i = 0; i < list->count; i++) {
        const struct kelp_run_info *info = &list->items[i];
        const struct kelp_result_metric *metrics = best ? info->best : info->metrics;
        uint32_t own = best ? info->best_count : info->metric_count;
        for (uint32_t m = 0; m < own; m++) {
            uint32_t at = 0;
            while (at < count && strcmp(ret_names[at], metrics[m].name) != 0) {
                at++;
            }
            if (at == count && count < KELP_RUN_LIST_METRICS_MAX) {
                ret_names[count++] = metrics[m].name;
            }
        }
    }
    return count;
}

/* ---- sorting ------------------------------------------------------------------------------- */

struct sorting {
    const char *key;
    bool reverse;
};

static int by_number(double a, double b)
{
    return a < b ? -1 : a > b;
}

static int by_metric(const struct sorting *sorting, const struct kelp_run_info *a,
                     const struct kelp_run_info *b)
{
    double values[2] = {0, 0};
    bool there[2] = {kelp_run_info_metric(a, sorting->key, &values[0]) && !isnan(values[0]),
                     kelp_run_info_metric(b, sorting->key, &values[1]) && !isnan(values[1])};

    if (!there[0] || !there[1]) { /* last in both directions */
        int order = there[0] ? -1 : there[1];
        return sorting->reverse ? -order : order;
    }
    return by_number(values[0], values[1]);
}

static int by_key(const struct sorting *sorting, const struct kelp_run_info *a,
                  const struct kelp_run_info *b)
{
    if (strcmp(sorting->key, "name") == 0) {
        return strcmp(a->path, b->path);
    }
    if (strcmp(sorting->key, "status") == 0) {
        return (int)a->state - (int)b->state;
    }
    if (strcmp(sorting->key, "age") == 0) {
        return by_number(a->age_s, b->age_s);
    }
    if (strcmp(sorting->key, "step") == 0) {
        return by_number((double)a->step, (double)b->step);
    }
    if (strcmp(sorting->key, "epoch") == 0) {
        return by_number(a->epoch, b->epoch);
    }
    return by_metric(sorting, a, b);
}

static int compare(const void *a, const void *b, void *user)
{
    const struct sorting *sorting = user;
    int order = by_key(sorting, a, b);

    if (order != 0) {
        return sorting->reverse ? -order : order;
    }
    return strcmp(((const struct kelp_run_info *)a)->path, ((const struct kelp_run_info *)b)->path);
}

static const char *const keys[] = {"name", "status", "age", "step", "epoch"};

static bool has_metric(const struct kelp_run_list *list, const char *name)
{
    double value;

    for (size_t i = 0; i < list->count; i++) {
        if (kelp_run_info_metric(&list->items[i], name, &value)) {
            return true;
        }
    }
    return false;
}

static kelp_status check_key(const struct kelp_run_list *list, const char *key,
                             struct kelp_error *reterr)
{
    const char *known[KELP_ARRAY_COUNT(keys) + KELP_RUN_LIST_METRICS_MAX];
    uint32_t count = kelp_run_list_metrics(list, false, known);

    for (size_t i = 0; i < KELP_ARRAY_COUNT(keys); i++) {
        if (strcmp(keys[i], key) == 0) {
            return KELP_OK;
        }
        known[count++] = keys[i];
    }
    if (has_metric(list, key)) {
        return KELP_OK;
    }
    const char *nearest = kelp_options_nearest(key, known, count);
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "cannot sort runs by '%.40s'; %s%s%sname, status, age, step, epoch and "
                     "metrics of the runs (such as val/loss) are allowed",
                     key, nearest ? "did you mean '" : "", nearest ? nearest : "",
                     nearest ? "'? " : "");
}

kelp_status kelp_run_list_sort(struct kelp_run_list *list, const struct kelp_run_order *order,
                               struct kelp_error *reterr)
{
    struct sorting sorting = {.key = order->key, .reverse = order->reverse};
    kelp_status status = list->count > 0 ? check_key(list, order->key, reterr) : KELP_OK;

    if (status == KELP_OK && list->count > 0) {
        qsort_r(list->items, list->count, sizeof(*list->items), compare, &sorting);
    }
    return status;
}
