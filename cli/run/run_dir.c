#include "cli/run/run_dir.h"

#include <assert.h>
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
#include "common/base/value.h"

#define NUMBERED_MAX 1000 /* runs of one name begun in one second */
/* A command that only looks whether the run goes on holds the lock for a moment: so many tries, of
 * a run that is there, and of one that has just been made. */
#define LOCK_TRIES     20
#define LOCK_TRIES_NEW 3
#define LOCK_TRY_MS    10

kelp_status kelp_run_dir_default(const char *name, time_t now, char ret_path[KELP_RUN_PATH_MAX + 1],
                                 struct kelp_error *reterr)
{
    struct tm utc;
    char when[32];

    if (!gmtime_r(&now, &utc) || strftime(when, sizeof(when), "%Y%m%d-%H%M%S", &utc) == 0) {
        return kelp_fail(reterr, KELP_ERR_INTERNAL, "cannot tell the time");
    }
    int length = snprintf(ret_path, KELP_RUN_PATH_MAX + 1, "runs/%s-%s", name, when);
    if (length < 0 || length > KELP_RUN_PATH_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "job name '%s' is too long for a folder", name);
    }
    return KELP_OK;
}

kelp_status kelp_run_dir_path(const char *run_path, const char *name, char *ret_path,
                              size_t path_bytes, struct kelp_error *reterr)
{
    int length = snprintf(ret_path, path_bytes, "%s/%s", run_path, name);

    if (length < 0 || (size_t)length >= path_bytes) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "path '%s/%s' is longer than %zu bytes", run_path,
                         name, path_bytes - 1);
    }
    return KELP_OK;
}

/* A new folder is there after a loss of power too: what lies in it is worth nothing otherwise. */
static kelp_status make_folder(const char *path, struct kelp_error *reterr)
{
    if (mkdir(path, 0777) == 0) {
        return kelp_files_sync_above(path, 1, reterr);
    }
    if (errno != EEXIST) {
        return kelp_fail(reterr, errno == ENOSPC ? KELP_ERR_NO_SPACE : KELP_ERR_IO,
                         "cannot make folder '%s': %s", path, strerror(errno));
    }
    return KELP_OK;
}

static kelp_status make_parents(const char *path, struct kelp_error *reterr)
{
    char parent[KELP_RUN_PATH_MAX + 1];
    size_t length = strlen(path);

    assert(length <= KELP_RUN_PATH_MAX);
    for (size_t i = 1; i < length; i++) {
        if (path[i] != '/') {
            continue;
        }
        memcpy(parent, path, i);
        parent[i] = '\0';
        kelp_status status = make_folder(parent, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

/* Holds anything besides "." and ".."? False also when it cannot be read: later steps report it. */
static bool folder_has_content(const char *path)
{
    DIR *folder = opendir(path);
    bool content = false;

    if (!folder) {
        return false;
    }
    for (struct dirent *entry = readdir(folder); entry && !content; entry = readdir(folder)) {
        content = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    (void)closedir(folder);
    return content;
}

static int lock_file(int fd, int tries)
{
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK || --tries == 0) {
            return -1;
        }
        (void)usleep(LOCK_TRY_MS * 1000);
    }
    return 0;
}

static kelp_status lock_folder(struct kelp_run_dir *run, int tries, struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 16];

    kelp_status status = kelp_run_dir_path(run->path, KELP_RUN_LOCK, path, sizeof(path), reterr);
    if (status != KELP_OK) {
        return status;
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    }
    if (lock_file(fd, tries) < 0) {
        int error = errno;
        (void)close(fd);
        if (error == EWOULDBLOCK) {
            return kelp_fail(reterr, KELP_ERR_BUSY,
                             "run folder '%s' is in use by a running command; choose another one "
                             "with --run",
                             run->path);
        }
        return kelp_fail(reterr, KELP_ERR_IO, "cannot lock '%s': %s", path, strerror(error));
    }
    /* Who holds it, for kelp stop; that it is held does not depend on it. */
    if (ftruncate(fd, 0) == 0) {
        (void)dprintf(fd, "%ld\n", (long)getpid());
    }
    run->lock_fd = fd;
    return KELP_OK;
}

static kelp_status make_logs(const struct kelp_run_dir *run, struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 16];

    kelp_status status = kelp_run_dir_path(run->path, "logs", path, sizeof(path), reterr);
    return status != KELP_OK ? status : make_folder(path, reterr);
}

/* Daemons and job.yaml have its absolute path. */
static kelp_status check_above(const char *path, struct kelp_error *reterr)
{
    char above[PATH_MAX];

    if (path[0] == '/' || !getcwd(above, sizeof(above))) {
        return KELP_OK; /* where there is none, no folder can be made */
    }
    return kelp_value_text(above, sizeof(above), NULL) == KELP_OK
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "the path of this folder, '%.200s', is not printable UTF-8 (line breaks "
                           "and control characters are not allowed)",
                           above);
}

static kelp_status set_path(struct kelp_run_dir *run, const char *path, struct kelp_error *reterr)
{
    size_t length = strlen(path);

    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    if (length == 0 || length > KELP_RUN_PATH_MAX - 64) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "run folder '%.40s…': 1 to %d bytes are allowed",
                         path, KELP_RUN_PATH_MAX - 64);
    }
    memcpy(run->path, path, length);
    run->path[length] = '\0';
    run->lock_fd = -1;
    return check_above(path, reterr);
}

/* Make the folder itself: KELP_ERR_EXISTS when it is there with content or is no folder. */
static kelp_status make_leaf(const char *path, struct kelp_error *reterr)
{
    struct stat info;

    if (mkdir(path, 0750) == 0) { /* logs and weights are not for everybody; umask takes more */
        return kelp_files_sync_above(path, 1, reterr);
    }
    if (errno != EEXIST) {
        return kelp_fail(reterr, errno == ENOSPC ? KELP_ERR_NO_SPACE : KELP_ERR_IO,
                         "cannot make run folder '%s': %s", path, strerror(errno));
    }
    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) {
        return kelp_fail(reterr, KELP_ERR_EXISTS,
                         "run folder '%s' is a file; choose another name with --run", path);
    }
    if (!folder_has_content(path)) {
        return KELP_OK;
    }
    return kelp_fail(
        reterr, KELP_ERR_EXISTS,
        "run folder '%s' exists; continue it with --resume, or choose another one with "
        "--run",
        path);
}

/* Make the folder and lock it: another run may have found it empty at the same moment. */
static kelp_status claim(struct kelp_run_dir *run, struct kelp_error *reterr)
{
    kelp_status status = make_leaf(run->path, reterr);

    return status == KELP_OK ? lock_folder(run, LOCK_TRIES_NEW, reterr) : status;
}

/* A folder that was locked, or not, by status. */
static kelp_status hand_out(struct kelp_run_dir *run, kelp_status status,
                            struct kelp_run_dir *ret_run, struct kelp_error *reterr)
{
    if (status == KELP_OK) {
        status = make_logs(run, reterr);
    }
    if (status != KELP_OK) {
        kelp_run_dir_close(run);
        return status;
    }
    *ret_run = *run;
    return KELP_OK;
}

kelp_status kelp_run_dir_create(const char *path, bool numbered, struct kelp_run_dir *ret_run,
                                struct kelp_error *reterr)
{
    struct kelp_run_dir run;
    struct kelp_run_dir first;

    kelp_status status = set_path(&first, path, reterr);
    if (status == KELP_OK) {
        status = make_parents(first.path, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    run = first;
    status = claim(&run, reterr);
    for (int number = 2; (status == KELP_ERR_EXISTS || status == KELP_ERR_BUSY) && numbered &&
                         number < NUMBERED_MAX;
         number++) {
        (void)snprintf(run.path, sizeof(run.path), "%.*s-%d", KELP_RUN_PATH_MAX - 16, first.path,
                       number);
        status = claim(&run, reterr);
    }
    return hand_out(&run, status, ret_run, reterr);
}

kelp_status kelp_run_dir_protect(const struct kelp_run_dir *run, bool closed,
                                 struct kelp_error *reterr)
{
    if (!closed || chmod(run->path, 0700) == 0) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_IO, "run.private: cannot make '%s' private: %s", run->path,
                     strerror(errno));
}

kelp_status kelp_run_dir_resume(const char *path, struct kelp_run_dir *ret_run,
                                struct kelp_error *reterr)
{
    struct kelp_run_dir run;

    kelp_status status = set_path(&run, path, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (kelp_run_dir_is_closed(run.path)) {
        return kelp_fail(reterr, KELP_ERR_DENIED, "this user may not look into '%s': %s", run.path,
                         strerror(EACCES));
    }
    if (!kelp_run_dir_is_run(run.path)) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "nothing to resume in '%s': there is no job.yaml of a run; kelp ls shows "
                         "the runs",
                         run.path);
    }
    status = lock_folder(&run, LOCK_TRIES, reterr);
    if (status == KELP_ERR_BUSY) {
        status = kelp_fail(reterr, KELP_ERR_BUSY,
                           "run folder '%s' is in use by a running command; kelp status %.200s "
                           "shows it, kelp stop ends it",
                           run.path, run.path);
    }
    return hand_out(&run, status, ret_run, reterr);
}

void kelp_run_dir_close(struct kelp_run_dir *run)
{
    if (run->lock_fd >= 0) {
        (void)close(run->lock_fd);
        run->lock_fd = -1;
    }
}

kelp_status kelp_run_dir_resolve(const char *path, char ret_path[KELP_RUN_PATH_MAX + 1],
                                 struct kelp_error *reterr)
{
    char target[KELP_RUN_PATH_MAX + 1];
    ssize_t length = -1;
    int written;

    if (strcmp(path, KELP_RUN_LATEST) == 0 || strcmp(path, KELP_RUN_LATEST "/") == 0) {
        length = readlink(KELP_RUN_LATEST, target, sizeof(target) - 1);
    }
    if (length < 0) { /* no link, or another folder */
        written = snprintf(ret_path, KELP_RUN_PATH_MAX + 1, "%s", path);
    } else {
        target[length] = '\0';
        written = snprintf(ret_path, KELP_RUN_PATH_MAX + 1, "%s%s", target[0] == '/' ? "" : "runs/",
                           target);
    }
    if (written < 0 || written > KELP_RUN_PATH_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the run folder's name is longer than %d bytes",
                         KELP_RUN_PATH_MAX);
    }
    return KELP_OK;
}

bool kelp_run_dir_running(const char *path)
{
    char lock[KELP_RUN_PATH_MAX + 16];

    if (kelp_run_dir_path(path, KELP_RUN_LOCK, lock, sizeof(lock), NULL) != KELP_OK) {
        return false;
    }
    int fd = open(lock, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    bool held = flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
    (void)close(fd);
    return held;
}

bool kelp_run_dir_is_run(const char *path)
{
    char job[KELP_RUN_PATH_MAX + 16];

    return kelp_run_dir_path(path, "job.yaml", job, sizeof(job), NULL) == KELP_OK &&
           access(job, F_OK) == 0;
}

bool kelp_run_dir_is_closed(const char *path)
{
    char job[KELP_RUN_PATH_MAX + 16];

    return kelp_run_dir_path(path, "job.yaml", job, sizeof(job), NULL) == KELP_OK &&
           access(job, F_OK) != 0 && errno == EACCES;
}

bool kelp_run_dir_is_held(const struct kelp_run_dir *run)
{
    char lock[KELP_RUN_PATH_MAX + 16];
    struct stat locked, there;

    return run->lock_fd < 0 ||
           (kelp_run_dir_path(run->path, KELP_RUN_LOCK, lock, sizeof(lock), NULL) == KELP_OK &&
            fstat(run->lock_fd, &locked) == 0 && stat(lock, &there) == 0 &&
            locked.st_dev == there.st_dev && locked.st_ino == there.st_ino);
}

kelp_status kelp_run_dir_write(const struct kelp_run_dir *run, const char *name, const char *text,
                               struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];

    kelp_status status = kelp_run_dir_path(run->path, name, path, sizeof(path), reterr);
    return status != KELP_OK ? status : kelp_files_write(path, text, strlen(text), reterr);
}

kelp_status kelp_run_dir_print(const struct kelp_run_dir *run, const char *name,
                               void (*print)(const void *what, FILE *out), const void *what,
                               struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];

    kelp_status status = kelp_run_dir_path(run->path, name, path, sizeof(path), reterr);
    return status != KELP_OK ? status : kelp_files_print(path, print, what, reterr);
}

kelp_status kelp_run_dir_remove(const struct kelp_run_dir *run, const char *name,
                                struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];

    kelp_status status = kelp_run_dir_path(run->path, name, path, sizeof(path), reterr);
    if (status == KELP_OK) {
        status = kelp_files_remove(path, reterr);
    }
    return status != KELP_OK ? status : kelp_files_sync_above(path, 1, reterr);
}

kelp_status kelp_run_dir_read(const char *run_path, const char *name, char **ret_text,
                              struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    size_t count = 0;

    kelp_status status = kelp_run_dir_path(run_path, name, path, sizeof(path), reterr);
    return status != KELP_OK ? status
                             : kelp_files_read(path, KELP_RUN_FILE_MAX, ret_text, &count, reterr);
}

kelp_status kelp_run_dir_link_latest(const struct kelp_run_dir *run, struct kelp_error *reterr)
{
    char target[PATH_MAX];
    char temporary[64];
    const char *name = target;
    const char *beside = run->path;

    kelp_status status = make_folder("runs", reterr);
    if (status != KELP_OK) {
        return status;
    }
    /* A run in runs/ gets a relative link, so that the folder can be moved as a whole. */
    while (strncmp(beside, "./", 2) == 0) {
        beside += 2;
    }
    if (strncmp(beside, "runs/", 5) == 0 && !strchr(beside + 5, '/') && beside[5] != '\0') {
        name = beside + 5;
    } else if (!realpath(run->path, target)) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot resolve '%s': %s", run->path,
                         strerror(errno));
    }
    (void)snprintf(temporary, sizeof(temporary), "runs/.latest-%ld", (long)getpid());
    (void)unlink(temporary); /* left by a run of the same process number that was killed here */
    if (symlink(name, temporary) < 0 || rename(temporary, KELP_RUN_LATEST) < 0) {
        status = kelp_fail(reterr, KELP_ERR_IO, "cannot point %s at '%s': %s", KELP_RUN_LATEST,
                           name, strerror(errno));
        (void)unlink(temporary);
    }
    return status;
}
