#include "cli/runs/run_sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fts.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cluster/leftovers.h"
#include "common/base/files.h"
#include "common/program/run_next.h"

#define HALF_DEAD_S   3600 /* half a cache that nobody has written to for so long is dead */
#define DIGEST_DIGITS 32

const char *kelp_sweep_kind_name(enum kelp_sweep_kind kind)
{
    static const char *const names[] = {[KELP_SWEEP_RUN] = "run",
                                        [KELP_SWEEP_REPLACED] = "replaced",
                                        [KELP_SWEEP_LEFTOVER] = "leftover",
                                        [KELP_SWEEP_CACHE] = "cache",
                                        [KELP_SWEEP_SCRATCH] = "scratch"};
    return names[kind];
}

/* ---- which runs ---------------------------------------------------------------------------- */

/* The youngest training that is done; list->count when there is none. */
static size_t newest_done(const struct kelp_run_list *list)
{
    size_t found = list->count;

    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].state == KELP_RUN_STATE_DONE && !list->items[i].inference &&
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

/* ---- in runs ------------------------------------------------------------------------------- */

/* Whether it is needed is decided under the run's lock, when it is removed. */
static bool stays_still(const struct kelp_run_info *info, bool marked)
{
    return !marked && info->state != KELP_RUN_STATE_RUNNING;
}

static double age_of(const char *path, time_t now)
{
    struct stat info;

    return lstat(path, &info) == 0 && info.st_mtime < now ? difftime(now, info.st_mtime) : 0;
}

static kelp_status add_part(struct kelp_sweep *sweep, enum kelp_sweep_kind kind,
                            const struct kelp_run_info *info, const char *name, time_t now,
                            struct kelp_error *reterr)
{
    struct kelp_sweep_item item = {.kind = kind, .run_bytes = strlen(info->path)};

    kelp_status status = kelp_run_dir_path(info->path, name, item.path, sizeof(item.path), reterr);
    if (status != KELP_OK) {
        return status;
    }
    item.age_s = age_of(item.path, now);
    return add(sweep, &item, reterr);
}

kelp_status kelp_sweep_add_leftovers(struct kelp_sweep *sweep, const struct kelp_run_list *list,
                                     const bool *marks, time_t now, struct kelp_error *reterr)
{
    struct kelp_leftovers leftovers;
    kelp_status status = KELP_OK;

    for (size_t i = 0; i < list->count && status == KELP_OK; i++) {
        const struct kelp_run_info *info = &list->items[i];
        leftovers.count = 0;
        if (stays_still(info, marks[i])) {
            kelp_leftovers_find(info->path, &leftovers);
        }
        for (size_t n = 0; n < leftovers.count && status == KELP_OK; n++) {
            status = add_part(sweep, KELP_SWEEP_LEFTOVER, info, leftovers.names[n], now, reterr);
        }
    }
    return status;
}

static bool is_number(const char *name)
{
    return name[0] != '\0' && name[strspn(name, "0123456789")] == '\0';
}

static kelp_status add_if_old(struct kelp_sweep *sweep, const struct kelp_run_info *info,
                              const char *number, double older_s, time_t now,
                              struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    char name[64];

    (void)snprintf(name, sizeof(name), KELP_RUN_PREVIOUS "/%.40s", number);
    kelp_status status = kelp_run_dir_path(info->path, name, path, sizeof(path), reterr);
    return status == KELP_OK && age_of(path, now) > older_s
               ? add_part(sweep, KELP_SWEEP_REPLACED, info, name, now, reterr)
               : status;
}

static kelp_status add_replaced(struct kelp_sweep *sweep, const struct kelp_run_info *info,
                                double older_s, time_t now, struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];

    kelp_status status =
        kelp_run_dir_path(info->path, KELP_RUN_PREVIOUS, path, sizeof(path), reterr);
    DIR *stream = status == KELP_OK ? opendir(path) : NULL;
    if (!stream) {
        return status == KELP_OK && errno != ENOENT
                   ? kelp_files_error(errno, "open folder", path, reterr)
                   : status;
    }
    for (struct dirent *entry = readdir(stream); entry && status == KELP_OK;
         entry = readdir(stream)) {
        if (is_number(entry->d_name)) {
            status = add_if_old(sweep, info, entry->d_name, older_s, now, reterr);
        }
    }
    (void)closedir(stream);
    return status;
}

kelp_status kelp_sweep_add_replaced(struct kelp_sweep *sweep, const struct kelp_run_list *list,
                                    const bool *marks, double older_s, time_t now,
                                    struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (size_t i = 0; i < list->count && status == KELP_OK; i++) {
        if (stays_still(&list->items[i], marks[i])) {
            status = add_replaced(sweep, &list->items[i], older_s, now, reterr);
        }
    }
    return status;
}

/* ---- caches -------------------------------------------------------------------------------- */

#define PREPARED ".prepared"

/* "<digest>.prepared" is one, and "<digest>.prepared.<pid>.<number>.new" half of one. A folder that
 * a job names may hold files of others. */
static bool is_prepared(const char *name, bool *ret_half)
{
    size_t digits = strspn(name, "0123456789abcdef");
    const char *rest = name + digits;

    if (digits != DIGEST_DIGITS || strncmp(rest, PREPARED, strlen(PREPARED)) != 0) {
        return false;
    }
    rest += strlen(PREPARED);
    size_t length = strlen(rest);
    *ret_half = length > 0;
    return length == 0 || (length > 4 && rest[0] == '.' && strcmp(rest + length - 4, ".new") == 0);
}

static kelp_status add_cache(struct kelp_sweep *sweep, const char *folder, const char *name,
                             double older_s, time_t now, struct kelp_error *reterr)
{
    struct kelp_sweep_item item = {.kind = KELP_SWEEP_CACHE};
    struct stat info;
    bool half = false;

    if (!is_prepared(name, &half)) {
        return KELP_OK;
    }
    kelp_status status = kelp_run_dir_path(folder, name, item.path, sizeof(item.path), reterr);
    if (status != KELP_OK || lstat(item.path, &info) != 0 || !S_ISREG(info.st_mode)) {
        return status;
    }
    time_t used = info.st_atime > info.st_mtime ? info.st_atime : info.st_mtime;
    item.kind = half ? KELP_SWEEP_SCRATCH : KELP_SWEEP_CACHE;
    item.age_s = used < now ? difftime(now, used) : 0;
    return item.age_s > (half ? HALF_DEAD_S : older_s) ? add(sweep, &item, reterr) : KELP_OK;
}

/* Is something of that folder in the list? */
static bool is_added(const struct kelp_sweep *sweep, const char *folder)
{
    size_t length = strlen(folder);

    for (size_t i = 0; i < sweep->count; i++) {
        const struct kelp_sweep_item *item = &sweep->items[i];
        if ((item->kind == KELP_SWEEP_CACHE || item->kind == KELP_SWEEP_SCRATCH) &&
            strncmp(item->path, folder, length) == 0 && item->path[length] == '/') {
            return true;
        }
    }
    return false;
}

kelp_status kelp_sweep_add_caches(struct kelp_sweep *sweep, const char *folder, double older_s,
                                  time_t now, struct kelp_error *reterr)
{
    char path[PATH_MAX];
    DIR *stream = realpath(folder, path) ? opendir(path) : NULL;
    kelp_status status = KELP_OK;

    if (!stream) {
        return errno == ENOENT ? KELP_OK : kelp_files_error(errno, "open folder", folder, reterr);
    }
    bool added = is_added(sweep, path);
    for (struct dirent *entry = readdir(stream); entry && status == KELP_OK && !added;
         entry = readdir(stream)) {
        status = add_cache(sweep, path, entry->d_name, older_s, now, reterr);
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

/* The lock is held until the tree is gone: nobody goes on with half a run. name: of a part of the
 * run, or NULL. */
static kelp_status remove_held(const char *run_path, const char *name, struct kelp_error *reterr)
{
    struct kelp_run_dir run;

    kelp_status status = kelp_run_dir_resume(run_path, &run, reterr);
    if (status == KELP_OK) {
        kelp_leftovers_remove_sockets(run_path);
        status =
            name ? kelp_run_dir_remove(&run, name, reterr) : kelp_files_remove(run_path, reterr);
        kelp_run_dir_close(&run);
    }
    return status;
}

kelp_status kelp_sweep_remove(struct kelp_sweep_item *item, struct kelp_error *reterr)
{
    char run[KELP_RUN_PATH_MAX + 1];
    const char *name = item->path + item->run_bytes + 1; /* of a run's part */
    kelp_status status = KELP_OK;

    (void)snprintf(run, sizeof(run), "%.*s", (int)item->run_bytes, item->path);
    switch (item->kind) {
    case KELP_SWEEP_RUN:
        status = remove_held(item->path, NULL, reterr);
        break;
    case KELP_SWEEP_REPLACED:
        status = remove_held(run, name, reterr);
        break;
    case KELP_SWEEP_LEFTOVER:
        status = kelp_leftovers_remove(run, name, reterr);
        break;
    case KELP_SWEEP_CACHE:
    case KELP_SWEEP_SCRATCH:
        status = kelp_files_remove(item->path, reterr);
        break;
    }
    item->removed = status == KELP_OK && access(item->path, F_OK) != 0;
    return status;
}
