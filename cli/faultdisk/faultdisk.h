/*
 * Disks that fail, for tests and `kelp chaos`: kelp-faultdisk.so, preloaded into a program
 * (LD_PRELOAD), stands between it and the C library for all files under one folder, the root. It
 * makes calls fail or wait, by a control file that may be changed while the program runs. Several
 * programs may share control file and root.
 *
 * Programs that do not use the C library's calls (etcd is written in Go) are not seen.
 */
#ifndef KELP_CLI_FAULTDISK_FAULTDISK_H
#define KELP_CLI_FAULTDISK_FAULTDISK_H

#include <stdint.h>

#include "common/base/status.h"

#define KELP_FAULTDISK_PATH_MAX 1024 /* bytes of each path */

/* ---- the control file ---------------------------------------------------------------------- */

enum kelp_faultdisk_mode {
    KELP_FAULTDISK_OK,
    KELP_FAULTDISK_COUNT,      /* nothing fails, calls are counted */
    KELP_FAULTDISK_FULL,       /* ENOSPC for what writes or takes room: new files, folders, writes,
                                * renames, links, syncs */
    KELP_FAULTDISK_ERROR,      /* EIO for the same, and for removals */
    KELP_FAULTDISK_UNREADABLE, /* EIO for reads */
    KELP_FAULTDISK_SLOW,       /* writes and syncs wait first, as long as the disk is slow */
    KELP_FAULTDISK_POWER       /* the program is killed (SIGKILL) before the call takes effect */
};

struct kelp_faultdisk_fault {
    enum kelp_faultdisk_mode mode;
    uint64_t after;   /* calls that pass first, counted over all programs */
    uint64_t count;   /* calls that are hit then; 0: all */
    uint32_t slow_ms; /* of each write and sync, at most */
};

struct kelp_faultdisk;

/* Map the control file, made (mode OK) when it is not there. Threads: any. Errors:
 * KELP_ERR_NO_MEMORY, KELP_ERR_NO_SPACE, KELP_ERR_FORMAT (another file), KELP_ERR_IO. */
kelp_status kelp_faultdisk_open(const char *path, struct kelp_faultdisk **ret_disk,
                                struct kelp_error *reterr) KELP_MUST_USE;
void kelp_faultdisk_close(struct kelp_faultdisk *disk);

/* From now on, in every program that uses the control file. Counts begin again. */
void kelp_faultdisk_set(struct kelp_faultdisk *disk, const struct kelp_faultdisk_fault *fault);
/* Since the last set: calls that could have been hit, and that were. 0 in mode OK. */
uint64_t kelp_faultdisk_calls(const struct kelp_faultdisk *disk);
uint64_t kelp_faultdisk_hits(const struct kelp_faultdisk *disk);

/* ---- programs under it --------------------------------------------------------------------- */

/* "NAME=value" each, to be added to a program's environment. */
struct kelp_faultdisk_environment {
    char preload[2 * KELP_FAULTDISK_PATH_MAX + 16];
    char control[KELP_FAULTDISK_PATH_MAX + 32];
    char root[KELP_FAULTDISK_PATH_MAX + 32];
};

struct kelp_faultdisk_paths {
    const char *library; /* kelp-faultdisk.so */
    const char *control; /* of kelp_faultdisk_open() */
    const char *root;    /* a folder that is there */
};

/* A sanitizer's library that this process has is preloaded before ours: programs of the same build
 * need it so. Errors: KELP_ERR_NOT_FOUND, KELP_ERR_LIMIT, KELP_ERR_INVALID (the control
 * file lies under the root). */
kelp_status kelp_faultdisk_environment(const struct kelp_faultdisk_paths *paths,
                                       struct kelp_faultdisk_environment *ret_environment,
                                       struct kelp_error *reterr) KELP_MUST_USE;

#endif
