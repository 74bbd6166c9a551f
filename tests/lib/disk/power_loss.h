/*
 * Losses of power, played for programs under kelp-faultdisk.so (cli/faultdisk/faultdisk.h):
 * kelp-shadowdisk.so, preloaded beside it, keeps a record (the shadow) of what has become durable,
 * from which the root is rebuilt as it would be after a loss of power.
 *
 * What counts as durable is what POSIX promises and no more: the bytes of a file as of its last
 * fsync() or fdatasync(), the entries of a folder as of the folder's last fsync(). So a new file, a
 * link, a rename, a removal counts once the folder was synced, and sync_file_range(), O_DIRECT and
 * O_SYNC alone do not count. The record outlives the program (kill -9), and several programs may
 * share root and shadow. What programs write that do not use the C library's calls (etcd is written
 * in Go) is kept by name, see kelp_power_loss.
 *
 * Everything needs birth times of files (statx); ext4, xfs, btrfs and tmpfs of today have them.
 */
#ifndef KELP_TESTS_LIB_DISK_POWER_LOSS_H
#define KELP_TESTS_LIB_DISK_POWER_LOSS_H

#include "cli/faultdisk/faultdisk.h"

/* "NAME=value" each, to be added to a program's environment. */
struct kelp_power_environment {
    char preload[3 * KELP_FAULTDISK_PATH_MAX + 32];
    char control[KELP_FAULTDISK_PATH_MAX + 32];
    char root[KELP_FAULTDISK_PATH_MAX + 32];
    char shadow[KELP_FAULTDISK_PATH_MAX + 32];
};

/* As kelp_faultdisk_environment(), with the record in shadow, which does not lie under the root. */
kelp_status kelp_power_environment(const struct kelp_faultdisk_paths *paths, const char *shadow,
                                   struct kelp_power_environment *ret_environment,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* Begin a record: everything under root counts as durable now. The shadow is made; what was in it
 * is removed. No program may be writing under root. Errors: KELP_ERR_UNSUPPORTED (a file system
 * without birth times), KELP_ERR_NO_SPACE, KELP_ERR_NO_MEMORY, KELP_ERR_IO. */
kelp_status kelp_power_begin(const char *shadow, const char *root,
                             struct kelp_error *reterr) KELP_MUST_USE;

struct kelp_power_loss {
    /* 0: all that was not synced is gone. Otherwise by chance for each folder and file: the entries
     * of a folder are those of the last sync or those of the end; the pages of a file those of the
     * last sync, those of the end, or zero. */
    uint64_t seed;
    const char *const *keep; /* folders of the root that are left as they are, by name */
    uint32_t keep_count;
};

/* Make of root what a loss of power would have left, after all programs were killed, and begin
 * another record. Errors: as above. */
kelp_status kelp_power_lose(const char *shadow, const char *root,
                            const struct kelp_power_loss *loss,
                            struct kelp_error *reterr) KELP_MUST_USE;

#endif
