/*
 * Simulated losses of power, for programs under kelp-faultdisk.so (cli/faultdisk/faultdisk.h):
 * kelp-shadowdisk.so, which is also preloaded, keeps a record (the shadow) of what is durable. From
 * it the root is restored to a state that a loss of power could leave.
 *
 * Only what POSIX promises counts as durable: the bytes of a file as of its last fsync() or
 * fdatasync(), and the entries of a folder as of the folder's last fsync(). So a new file, a link,
 * a rename or a removal counts only after the folder was synced, and sync_file_range(), O_DIRECT
 * and O_SYNC do not count. The record outlives the program (kill -9), and several programs may
 * share root and shadow. Folders of programs that do not use the C library's calls (etcd is written
 * in Go) are kept by name, see kelp_power_loss.
 *
 * File birth times (statx) are required; current ext4, xfs, btrfs and tmpfs have them.
 */
#ifndef KELP_TESTS_LIB_DISK_POWER_LOSS_H
#define KELP_TESTS_LIB_DISK_POWER_LOSS_H

#include "cli/faultdisk/faultdisk.h"

/* Each is "NAME=value", to be added to a program's environment. */
struct kelp_power_environment {
    char preload[3 * KELP_FAULTDISK_PATH_MAX + 32];
    char control[KELP_FAULTDISK_PATH_MAX + 32];
    char root[KELP_FAULTDISK_PATH_MAX + 32];
    char shadow[KELP_FAULTDISK_PATH_MAX + 32];
};

/* As kelp_faultdisk_environment(), with the record in shadow, which must not be under the root. */
kelp_status kelp_power_environment(const struct kelp_faultdisk_paths *paths, const char *shadow,
                                   struct kelp_power_environment *ret_environment,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* Begin a record: everything under root counts as durable now. The shadow is created, after
 * removing an old one. No program may be writing under root. Errors: KELP_ERR_UNSUPPORTED (a
 * file system without birth times), KELP_ERR_NO_SPACE, KELP_ERR_NO_MEMORY, KELP_ERR_IO. */
kelp_status kelp_power_begin(const char *shadow, const char *root,
                             struct kelp_error *reterr) KELP_MUST_USE;

struct kelp_power_loss {
    /* 0: everything not synced is lost. Otherwise random for each folder and file: the entries
     * of a folder are those of its last sync or the final ones; the pages of a file are those of
     * its last sync, the final ones, or zero. */
    uint64_t seed;
    const char *const *keep; /* names of folders under the root that stay unchanged */
    uint32_t keep_count;
};

/* Turn root into what a loss of power would have left, after all programs were killed, and begin
 * a new record. Errors: as above. */
kelp_status kelp_power_lose(const char *shadow, const char *root,
                            const struct kelp_power_loss *loss,
                            struct kelp_error *reterr) KELP_MUST_USE;

#endif
