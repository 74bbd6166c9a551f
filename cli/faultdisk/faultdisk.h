/*
 * Disks that fail, for tests and `kelp chaos`: kelp-faultdisk.so, preloaded into a program
 * (LD_PRELOAD), stands between it and the C library for all files under one folder, the root. It
 * makes calls fail or wait, by a control file that may be changed while the program runs, and it
 * keeps a record (the shadow) of what has become durable, from which the root is rebuilt as it
 * would be after a loss of power.
 *
 * What counts as durable is what POSIX promises and no more: the bytes of a file as of its last
 * fsync() or fdatasync(), the entries of a folder as of the folder's last fsync(). So a new file, a
 * link, a rename, a removal counts once the folder was synced, and sync_file_range(), O_DIRECT and
 * O_SYNC alone do not count. The record outlives the program (kill -9), and several programs may
 * share control file, root and shadow.
 *
 * Programs that do not use the C library's calls (etcd is written in Go) are not seen: what they
 * write is kept by name, see kelp_faultdisk_loss.
 *
 * Everything needs birth times of files (statx); ext4, xfs, btrfs and tmpfs of today have them.
 */
#ifndef KELP_CLI_FAULTDISK_FAULTDISK_H
#define KELP_CLI_FAULTDISK_FAULTDISK_H

#include <stdint.h>

#include "common/base/status.h"

#define KELP_FAULTDISK_PATH_MAX 1024 /* bytes of each path */

/* ---- the control file -------------------------------------------------------------------------
 */

enum kelp_faultdisk_mode {
    KELP_FAULTDISK_OK,
    KELP_FAULTDISK_COUNT,      /* nothing fails, calls are counted */
    KELP_FAULTDISK_FULL,       /* ENOSPC for what writes or takes room: new files, folders, writes,
                                * renames, links, syncs */
    KELP_FAULTDISK_ERROR,      /* EIO for the same, and for removals */
    KELP_FAULTDISK_UNREADABLE, /* EIO for reads */
    KELP_FAULTDISK_SLOW,       /* writes and syncs wait first */
    KELP_FAULTDISK_POWER       /* the program is killed (SIGKILL) before the call takes effect */
};

struct kelp_faultdisk_fault {
    enum kelp_faultdisk_mode mode;
    uint64_t after;   /* calls that pass first, counted over all programs */
    uint64_t count;   /* calls that are hit then; 0: all */
    uint32_t slow_ms; /* of each write and sync */
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

/* ---- programs under it ------------------------------------------------------------------------
 */

/* "NAME=value" each, to be added to a program's environment. */
struct kelp_faultdisk_environment {
    char preload[2 * KELP_FAULTDISK_PATH_MAX + 16];
    char control[KELP_FAULTDISK_PATH_MAX + 32];
    char root[KELP_FAULTDISK_PATH_MAX + 32];
    char shadow[KELP_FAULTDISK_PATH_MAX + 32];
};

struct kelp_faultdisk_paths {
    const char *library; /* kelp-faultdisk.so */
    const char *control; /* of kelp_faultdisk_open() */
    const char *root;    /* a folder that is there */
    const char *shadow;  /* of kelp_faultdisk_begin(); NULL: losses of power are not to be played */
};

/* A sanitizer's library that this process has is preloaded before ours: programs of the same build
 * need it so. Errors: KELP_ERR_NOT_FOUND, KELP_ERR_LIMIT, KELP_ERR_INVALID (control or shadow lie
 * under the root). */
kelp_status kelp_faultdisk_environment(const struct kelp_faultdisk_paths *paths,
                                       struct kelp_faultdisk_environment *ret_environment,
                                       struct kelp_error *reterr) KELP_MUST_USE;

/* ---- loss of power ----------------------------------------------------------------------------
 */

/* Begin a record: everything under root counts as durable now. The shadow is made; what was in it
 * is removed. No program may be writing under root. Errors: KELP_ERR_UNSUPPORTED (a file system
 * without birth times), KELP_ERR_NO_SPACE, KELP_ERR_NO_MEMORY, KELP_ERR_IO. */
kelp_status kelp_faultdisk_begin(const char *shadow, const char *root,
                                 struct kelp_error *reterr) KELP_MUST_USE;

struct kelp_faultdisk_loss {
    /* 0: all that was not synced is gone. Otherwise by chance for each folder and file: the entries
     * of a folder are those of the last sync or those of the end; the pages of a file those of the
     * last sync, those of the end, or zero. */
    uint64_t seed;
    const char *const *keep; /* folders of the root that are left as they are, by name */
    uint32_t keep_count;
};

/* Make of root what a loss of power would have left, after all programs were killed, and begin
 * another record. Errors: as above. */
kelp_status kelp_faultdisk_lose_power(const char *shadow, const char *root,
                                      const struct kelp_faultdisk_loss *loss,
                                      struct kelp_error *reterr) KELP_MUST_USE;

#endif
