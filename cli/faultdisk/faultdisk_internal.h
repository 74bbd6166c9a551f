/*
 * What kelp-faultdisk.so and the programs that steer it share: the control file's layout and the
 * record of what is durable.
 *
 * The shadow holds, for each inode, "f.<id>" (a regular file's bytes as of the last sync) or
 * "d.<id>" (a folder's entries: type, id, a blank, the name, NUL, and the target of a symbolic link
 * with another NUL). An id is the inode's number, its birth time and its file handle where there is
 * one: numbers are used again.
 */
#ifndef KELP_CLI_FAULTDISK_FAULTDISK_INTERNAL_H
#define KELP_CLI_FAULTDISK_FAULTDISK_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli/faultdisk/faultdisk.h"

#define KELP_FAULTDISK_MAGIC UINT64_C(0x6b656c7064697331)

/* Not KELP_…: `kelp train` keeps what begins so from its daemons. */
#define KELP_FAULTDISK_ENV_CONTROL "KELPDISK_CONTROL"
#define KELP_FAULTDISK_ENV_ROOT    "KELPDISK_ROOT"
#define KELP_FAULTDISK_ENV_SHADOW  "KELPDISK_SHADOW"

/* Mapped by all: every member is read and written on its own. */
struct kelp_faultdisk_control {
    uint64_t magic;
    _Atomic uint32_t mode;
    _Atomic uint32_t slow_ms;
    _Atomic uint64_t after;
    _Atomic uint64_t count;
    _Atomic uint64_t calls;
    _Atomic uint64_t hits;
};

#define KELP_FAULTDISK_ID_BYTES 64

/* Id and type ('f', 'd', 'l', '?' for what is not recorded) of name in folder_fd (links are not
 * followed), or of folder_fd itself when name is "". False: errno says why; EOPNOTSUPP: no birth
 * times. */
bool kelp__faultdisk_id(int folder_fd, const char *name, char ret_id[KELP_FAULTDISK_ID_BYTES],
                        char *ret_type);

/* Record what fd is now as durable. Safe against being killed, and against others who record the
 * same. False: errno says why. */
bool kelp__faultdisk_record(const char *shadow, int fd);

#endif
