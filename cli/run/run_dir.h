/*
 * The folder of one run: job.yaml, cluster.json, logs/, etcd/, metrics.jsonl, digests.jsonl,
 * model.safetensors, result.json.
 *
 * Whoever runs it holds an advisory lock on `<run>/lock` that ends with the process, however that
 * ends: two runs never share a folder, and "is it running" needs no process number.
 */
#ifndef KELP_CLI_RUN_RUN_DIR_H
#define KELP_CLI_RUN_RUN_DIR_H

#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "common/base/status.h"

#define KELP_RUN_PATH_MAX 1023      /* bytes */
#define KELP_RUN_FILE_MAX (4 << 20) /* bytes of a file read back: result.json and such */
#define KELP_RUN_LATEST   "runs/latest"
#define KELP_RUN_TRACE    "trace" /* folder of the parts of a trace, while they are written */
#define KELP_RUN_LOCK     "lock"  /* holds the number of the process that has it */

struct kelp_run_dir {
    char path[KELP_RUN_PATH_MAX + 1];
    int lock_fd; /* -1: not held */
};

/* "runs/<name>-20260131-120000" (UTC). Errors: KELP_ERR_LIMIT. */
kelp_status kelp_run_dir_default(const char *name, time_t now, char ret_path[KELP_RUN_PATH_MAX + 1],
                                 struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Make the folder (its parents too), lock it, and make logs/ in it. An existing folder is taken
 * when it is empty. With numbered set, "-2", "-3", … is added while the name is taken.
 * Errors: KELP_ERR_EXISTS (it holds something, or another run has it), KELP_ERR_IO, KELP_ERR_LIMIT.
 */
kelp_status kelp_run_dir_create(const char *path, bool numbered, struct kelp_run_dir *ret_run,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Lock a folder that kelp_run_dir_create() made earlier.
 * Errors: KELP_ERR_NOT_FOUND (no job.yaml there), KELP_ERR_BUSY (another run has it). */
kelp_status kelp_run_dir_resume(const char *path, struct kelp_run_dir *ret_run,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* With closed set (job key run.private) only its user may open the folder from now on. Errors:
 * KELP_ERR_IO (it is another user's). */
kelp_status kelp_run_dir_protect(const struct kelp_run_dir *run, bool closed,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Give up the lock. Safe on one that was never opened with lock_fd = -1. */
void kelp_run_dir_close(struct kelp_run_dir *run);

/* Does a living process hold the lock of the folder? */
bool kelp_run_dir_running(const char *path);

/* Is there a run in the folder? */
bool kelp_run_dir_is_run(const char *path);

/* Is the folder closed to this user, so that nobody can tell whether a run is in it? */
bool kelp_run_dir_is_closed(const char *path);

/* Is the folder still the one that was locked? False once it was removed, or another one has its
 * name. True for a run that holds no lock. */
bool kelp_run_dir_is_held(const struct kelp_run_dir *run);

/*
 * The folder that runs/latest stands for now, when path is that link; else path itself. Whoever
 * goes on working in the folder must use this name: the link moves with the next run. Errors:
 * KELP_ERR_LIMIT.
 */
kelp_status kelp_run_dir_resolve(const char *path, char ret_path[KELP_RUN_PATH_MAX + 1],
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* "<run>/<name>". Errors: KELP_ERR_LIMIT. */
kelp_status kelp_run_dir_path(const char *run_path, const char *name, char *ret_path,
                              size_t path_bytes, struct kelp_error *reterr) KELP_MUST_USE;

/* Replace a file of the folder as a whole: readers see the old text or the new one, also after a
 * crash. Errors: KELP_ERR_IO, KELP_ERR_NO_SPACE, KELP_ERR_LIMIT. */
kelp_status kelp_run_dir_write(const struct kelp_run_dir *run, const char *name, const char *text,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* The same with what print() puts out. Errors: also KELP_ERR_NO_MEMORY. */
kelp_status kelp_run_dir_print(const struct kelp_run_dir *run, const char *name,
                               void (*print)(const void *what, FILE *out), const void *what,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* Remove a file of the folder, durably; a missing file is no error. Errors: KELP_ERR_IO,
 * KELP_ERR_LIMIT. */
kelp_status kelp_run_dir_remove(const struct kelp_run_dir *run, const char *name,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* A file of the folder, NUL-terminated; *ret_text is owned (free()).
 * Errors: KELP_ERR_NOT_FOUND, KELP_ERR_IO, KELP_ERR_INVALID (no file), KELP_ERR_LIMIT (over
 * KELP_RUN_FILE_MAX). */
kelp_status kelp_run_dir_read(const char *run_path, const char *name, char **ret_text,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* Point runs/latest (in the current folder) at the run, in one atomic step. */
kelp_status kelp_run_dir_link_latest(const struct kelp_run_dir *run,
                                     struct kelp_error *reterr) KELP_MUST_USE;

#endif
