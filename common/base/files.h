/*
 * Files and folders that must survive a loss of power: a change counts once the file, and the
 * folder that names it, were synced.
 *
 * Errors of all: KELP_ERR_NO_SPACE (disk full, quota), KELP_ERR_NOT_FOUND (where absence is not
 * allowed), KELP_ERR_NO_MEMORY, KELP_ERR_IO. Threads: any.
 */
#ifndef KELP_COMMON_BASE_FILES_H
#define KELP_COMMON_BASE_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

#include "common/base/status.h"

/* The status that errno's `error` means, and "cannot <what> '<path>': <why>". */
kelp_status kelp_files_error(int error, const char *what, const char *path,
                             struct kelp_error *reterr);

/* Make a folder and what is missing above it; one that is there is no error. Not synced. */
kelp_status kelp_files_make_folder(const char *path, struct kelp_error *reterr) KELP_MUST_USE;

/* Sync one file, or the entries of one folder. */
kelp_status kelp_files_sync(const char *path, struct kelp_error *reterr) KELP_MUST_USE;
/* Sync `levels` folders above path: its parent, the parent of that, and so on (not beyond "/"). */
kelp_status kelp_files_sync_above(const char *path, unsigned levels,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* Sync every file and folder of a tree, the root too. */
kelp_status kelp_files_sync_tree(const char *path, struct kelp_error *reterr) KELP_MUST_USE;

/* Remove a file or a tree; symbolic links are not followed. Absence is no error. Goes on after an
 * error and reports the first one. */
kelp_status kelp_files_remove(const char *path, struct kelp_error *reterr);

/* Replace path by these bytes: written beside it as "<path>.new", synced, renamed, the folder
 * synced. After a loss of power path is the one before or the new one, whole. */
kelp_status kelp_files_write(const char *path, const void *bytes, size_t count,
                             struct kelp_error *reterr) KELP_MUST_USE;
/* The same with what print() puts out. */
kelp_status kelp_files_print(const char *path, void (*print)(const void *what, FILE *out),
                             const void *what, struct kelp_error *reterr) KELP_MUST_USE;

/* All of the bytes; false: errno says why not. */
bool kelp_files_write_all(int fd, const void *bytes, size_t count) KELP_MUST_USE;
/* Copy what is left of an open file to another one; the paths are for errors. Not synced. */
kelp_status kelp_files_pour(int from, const char *from_path, int to, const char *to_path,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* Open a file to read it; *ret_about (NULL is fine) is what fstat(2) says. What is no file is not
 * waited for, as a fifo without a writer would be: KELP_ERR_INVALID. flags: 0 or O_NOFOLLOW, for
 * what somebody else put there. */
kelp_status kelp_files_open(const char *path, int flags, int *ret_fd, struct stat *ret_about,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* Read a whole file. *ret_bytes is owned by the caller (free()) and has a NUL behind it. More than
 * count_max bytes: KELP_ERR_LIMIT. */
kelp_status kelp_files_read(const char *path, size_t count_max, char **ret_bytes, size_t *ret_count,
                            struct kelp_error *reterr) KELP_MUST_USE;

#endif
