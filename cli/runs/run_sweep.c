#include "cli/runs/run_sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/files.h"

#define NEW_DEAD_S 3600 /* a half-written file that nobody has written to for so long is dead */

/* ---- which runs ---------------------------------------------------------------------------- */

/* The youngest run that is done; list->count when there is none. */
static size_t newest_done(const struct kelp_run_list *list)
{
    size_t found = list->count;

    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].state == KELP_RUN_STATE_DONE &&
            (found == list->count || list->items[i].age_s < list->items[found].age_s)) {
            found = i;
        }
    }
    return found;
}

/* How many runs that ended are younger; of equal ones the first by name counts as younger. */
static uint32_t younger(const struct kelp_run_list *list, const struct kelp_run_info *info)
{
    uint32_t count = 0;

    for (size_t i = 0; i < list->count; i++) {
        const struct kelp_run_info *other = &list->items[i];
        if (other != info && other->state != KELP_RUN_STATE_RUNNING &&
            (other->age_s < info->age_s ||
             (other->age_s == info->age_s && strcmp(other->path, info->path) > 0))) {
            count++;
        }
    }
    return count;
}

void kelp_sweep_mark_runs(const struct kelp_run_list *list, const struct kelp_sweep_rule *rule,
                          bool *ret_marks)
{
    size_t stays = rule->newest ? list->count : newest_done(list);

    for (size_t i = 0; i < list->count; i++) {
        const struct kelp_run_info *info = &list->items[i];
        bool beyond = rule->by_count && younger(list, info) >= rule->keep;
        bool old = rule->by_age && info->age_s > rule->older_s;
        ret_marks[i] = info->state != KELP_RUN_STATE_RUNNING && i != stays && (beyond || old);
    }
}

/* ---- what it holds ------------------------------------------------------------------------- */

/* Bytes that the tree takes on disk. */
static uint64_t bytes_of(const char *path)
{
    char *roots[2] = {(char *)path, NULL};
    uint64_t bytes = 0;
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);

    if (!tree) {
        return 0;
    }
    for (FTSENT *entry = fts_read(tree); entry; entry = fts_read(tree)) {
        if (entry->fts_info == FTS_F || entry->fts_info == FTS_D) {
            bytes += (uint64_t)entry->fts_statp->st_blocks * 512;
        }
    }
    (void)fts_close(tree);
    return bytes;
}

static kelp_status add(struct kelp_sweep *sweep, const struct kelp_sweep_item *item,
                       struct kelp_error *reterr)
{
    if (sweep->count == sweep->capacity) {
        size_t capacity = sweep->capacity == 0 ? 16 : 2 * sweep->capacity;
        struct kelp_sweep_item *items = realloc(sweep->items, capacity * sizeof(*items));
        if (!items) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        }
        sweep->items = items;
        sweep->capacity = capacity;
    }
    sweep->items[sweep->count] = *item;
    sweep->items[sweep->count].bytes = bytes_of(item->path);
    sweep->count++;
    return KELP_OK;
}

kelp_status kelp_sweep_add_runs(struct kelp_sweep *sweep, const struct kelp_run_list *list,
                                const bool *marks, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (size_t i = 0; i < list->count && status == KELP_OK; i++) {
        if (marks[i]) {
            struct kelp_sweep_item item = {.kind = KELP_SWEEP_RUN, .age_s = list->items[i].age_s};
            (void)snprintf(item.path, sizeof(item.path), "%s", list->items[i].path);
            status = add(sweep, &item, reterr);
        }
    }
    return status;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text);
    size_t end_length = strlen(end);

    return length > end_length && strcmp(text + length - end_length, end) == 0;
}

static kelp_status add_cache(struct kelp_sweep *sweep, const char *path, double older_s, time_t now,
                             struct kelp_error *reterr)
{
    struct kelp_sweep_item item = {.kind = KELP_SWEEP_CACHE};
    struct stat info;
    bool dead = ends_with(path, ".new");

    if (lstat(path, &info) != 0 || !S_ISREG(info.st_mode) ||
        !(dead || ends_with(path, ".prepared"))) {
        return KELP_OK;
    }
    time_t used = info.st_atime > info.st_mtime ? info.st_atime : info.st_mtime;
    item.kind = dead ? KELP_SWEEP_SCRATCH : KELP_SWEEP_CACHE;
    item.age_s = used < now ? difftime(now, used) : 0;
    if (item.age_s <= (dead ? NEW_DEAD_S : older_s)) {
        return KELP_OK;
    }
    (void)snprintf(item.path, sizeof(item.path), "%.*s", KELP_RUN_PATH_MAX, path);
    return add(sweep, &item, reterr);
}

kelp_status kelp_sweep_add_caches(struct kelp_sweep *sweep, const char *folder, double older_s,
                                  time_t now, struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 1];
    DIR *stream = opendir(folder);
    kelp_status status = KELP_OK;

    if (!stream) {
        return errno == ENOENT ? KELP_OK : kelp_files_error(errno, "open folder", folder, reterr);
    }
    for (struct dirent *entry = readdir(stream); entry && status == KELP_OK;
         entry = readdir(stream)) {
        status = kelp_run_dir_path(folder, entry->d_name, path, sizeof(path), reterr);
        if (status == KELP_OK) {
            status = add_cache(sweep, path, older_s, now, reterr);
        }
    }
    (void)closedir(stream);
    return status;
}

void kelp_sweep_fini(struct kelp_sweep *sweep)
{
    free(sweep->items);
    memset(sweep, 0, sizeof(*sweep));
}

/* ---- removing ------------------------------------------------------------------------------ */

/* The lock is held until the tree is gone: nobody goes on with half a run. */
static kelp_status remove_run(const char *path, struct kelp_error *reterr)
{
    struct kelp_run_dir run;

    kelp_status status = kelp_run_dir_resume(path, &run, reterr);
    if (status == KELP_OK) {
        status = kelp_files_remove(path, reterr);
        kelp_run_dir_close(&run);
    }
    return status;
}

kelp_status kelp_sweep_remove(const struct kelp_sweep_item *item, struct kelp_error *reterr)
{
    return item->kind == KELP_SWEEP_RUN ? remove_run(item->path, reterr)
                                        : kelp_files_remove(item->path, reterr);
}
