#include "common/program/run_next.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"

#define JOB "job.yaml"

/* "<folder>/<name>" */
static kelp_status join(const char *folder, const char *name, char path[PATH_MAX],
                        struct kelp_error *reterr)
{
    int length = snprintf(path, PATH_MAX, "%s/%s", folder, name);

    return length > 0 && length < PATH_MAX
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_LIMIT, "the path '%.60s…' is too long", folder);
}

/* The paths of a file in one folder and of a file of that name in another. */
static kelp_status join_both(const char *folder, const char *other, const char *name,
                             char path[PATH_MAX], char other_path[PATH_MAX],
                             struct kelp_error *reterr)
{
    kelp_status status = join(folder, name, path, reterr);

    return status == KELP_OK ? join(other, name, other_path, reterr) : status;
}

bool kelp_run_next_waits(const char *run)
{
    char path[PATH_MAX];

    return join(run, KELP_RUN_NEXT "/" JOB, path, NULL) == KELP_OK && access(path, F_OK) == 0;
}

kelp_status kelp_run_next_drop(const char *run, struct kelp_error *reterr)
{
    char path[PATH_MAX];

    kelp_status status = join(run, KELP_RUN_NEXT "/" JOB, path, reterr);
    if (status == KELP_OK) {
        status = kelp_files_remove(path, reterr); /* first the file that makes next/ valid */
    }
    if (status == KELP_OK) {
        status = join(run, KELP_RUN_NEXT, path, reterr);
    }
    return status == KELP_OK ? kelp_files_remove(path, reterr) : status;
}

static kelp_status make_folder(const char *path, struct kelp_error *reterr)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        return kelp_files_error(errno, "make folder", path, reterr);
    }
    return kelp_files_sync_above(path, 1, reterr);
}

kelp_status kelp_run_next_make(const char *run, struct kelp_error *reterr)
{
    char path[PATH_MAX];

    kelp_status status = kelp_run_next_drop(run, reterr);
    if (status == KELP_OK) {
        status = join(run, KELP_RUN_NEXT, path, reterr);
    }
    return status == KELP_OK ? make_folder(path, reterr) : status;
}

/* ---- keeping ---- */

kelp_status kelp_run_next_keep(const char *path, const char *folder, struct kelp_error *reterr)
{
    char copy[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int from = open(path, O_RDONLY | O_CLOEXEC);

    if (from < 0) {
        return errno == ENOENT ? KELP_OK : kelp_files_error(errno, "open", path, reterr);
    }
    kelp_status status = join(folder, slash ? slash + 1 : path, copy, reterr);
    int to = status == KELP_OK ? open(copy, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    if (status == KELP_OK && to < 0) {
        status = kelp_files_error(errno, "open", copy, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_files_pour(from, path, to, copy, reterr);
    }
    if (status == KELP_OK && fsync(to) != 0) {
        status = kelp_files_error(errno, "sync", copy, reterr);
    }
    if (to >= 0 && close(to) != 0 && status == KELP_OK) {
        status = kelp_files_error(errno, "close", copy, reterr);
    }
    (void)close(from); /* it was only read */
    return status == KELP_OK ? kelp_files_sync_above(copy, 1, reterr) : status;
}

/* previous/N with the first free N. */
static kelp_status make_previous(const char *run, char path[PATH_MAX], struct kelp_error *reterr)
{
    char name[48];

    kelp_status status = join(run, KELP_RUN_PREVIOUS, path, reterr);
    if (status == KELP_OK) {
        status = make_folder(path, reterr);
    }
    for (unsigned number = 1; status == KELP_OK; number++) {
        (void)snprintf(name, sizeof(name), KELP_RUN_PREVIOUS "/%u", number);
        status = join(run, name, path, reterr);
        if (status == KELP_OK && mkdir(path, 0777) == 0) {
            return kelp_files_sync_above(path, 1, reterr);
        }
        if (status == KELP_OK && errno != EEXIST) {
            status = kelp_files_error(errno, "make folder", path, reterr);
        }
    }
    return status;
}

/* If nothing was replaced, remove the folder again. */
static void remove_if_empty(const char *run, const char *previous)
{
    char path[PATH_MAX];

    if (rmdir(previous) == 0 && join(run, KELP_RUN_PREVIOUS, path, NULL) == KELP_OK) {
        (void)rmdir(path); /* fails if earlier ones exist */
    }
}

/* ---- putting in place ---- */

static kelp_status move_away(const char *run, const char *name, const char *previous,
                             struct kelp_error *reterr)
{
    char from[PATH_MAX];
    char to[PATH_MAX];

    kelp_status status = join_both(run, previous, name, from, to, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (rename(from, to) != 0) {
        return errno == ENOENT ? KELP_OK : kelp_files_error(errno, "rename", from, reterr);
    }
    status = kelp_files_sync_above(to, 1, reterr);
    return status == KELP_OK ? kelp_files_sync_above(from, 1, reterr) : status;
}

static bool same_bytes(const char *path, const char *other)
{
    FILE *files[2] = {fopen(path, "re"), fopen(other, "re")};
    int bytes[2] = {EOF, EOF};

    bool same = files[0] && files[1];
    while (same) {
        bytes[0] = getc_unlocked(files[0]);
        bytes[1] = getc_unlocked(files[1]);
        same = bytes[0] == bytes[1];
        if (same && bytes[0] == EOF) {
            break;
        }
    }
    for (int i = 0; i < 2; i++) {
        if (files[i]) {
            (void)fclose(files[i]);
        }
    }
    return same;
}

static kelp_status replace(const char *run, const char *name, const char *previous,
                           struct kelp_error *reterr)
{
    char next[PATH_MAX];
    char from[PATH_MAX];
    char to[PATH_MAX];

    kelp_status status = join(run, KELP_RUN_NEXT, next, reterr);
    if (status == KELP_OK) {
        status = join_both(next, run, name, from, to, reterr);
    }
    if (status == KELP_OK && !same_bytes(from, to)) {
        status = kelp_run_next_keep(to, previous, reterr);
    }
    if (status == KELP_OK && rename(from, to) != 0) {
        status = kelp_files_error(errno, "rename", from, reterr);
    }
    return status == KELP_OK ? kelp_files_sync_above(to, 1, reterr) : status;
}

/* Replace everything of next/ except the job. */
static kelp_status replace_others(const char *run, DIR *next, const char *previous,
                                  struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (struct dirent *entry = readdir(next); entry && status == KELP_OK; entry = readdir(next)) {
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, JOB) != 0) {
            status = replace(run, entry->d_name, previous, reterr);
        }
    }
    return status;
}

static kelp_status take(const char *run, DIR *next, kelp_run_next_cut *cut, void *user,
                        struct kelp_error *reterr)
{
    char previous[PATH_MAX];

    kelp_status status = make_previous(run, previous, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (cut) {
        status = cut(previous, reterr, user);
    }
    /* In this order, so that an old result never counts as the new job's. */
    if (status == KELP_OK) {
        status = move_away(run, "result.json", previous, reterr);
    }
    if (status == KELP_OK) {
        status = move_away(run, "model.safetensors", previous, reterr);
    }
    if (status == KELP_OK) {
        status = replace_others(run, next, previous, reterr);
    }
    if (status == KELP_OK) {
        status = replace(run, JOB, previous, reterr);
    }
    remove_if_empty(run, previous);
    return status;
}

kelp_status kelp_run_next_take(const char *run, kelp_run_next_cut *cut, void *user,
                               struct kelp_error *reterr)
{
    char path[PATH_MAX];

    kelp_status status = join(run, KELP_RUN_NEXT, path, reterr);
    if (status != KELP_OK) {
        return status;
    }
    DIR *next = opendir(path);
    if (!next) {
        return cut ? cut(NULL, reterr, user) : KELP_OK;
    }
    while (flock(dirfd(next), LOCK_EX) != 0 && errno == EINTR) {
    }
    if (kelp_run_next_waits(run)) {
        status = take(run, next, cut, user, reterr);
    } else {
        status = cut ? cut(NULL, reterr, user) : KELP_OK;
    }
    (void)closedir(next);
    return status == KELP_OK ? kelp_run_next_drop(run, reterr) : status;
}
