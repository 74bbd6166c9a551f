/*
 * What kelp-faultdisk.so and the programs that steer it share: the control file's layout.
 */
#ifndef KELP_CLI_FAULTDISK_FAULTDISK_INTERNAL_H
#define KELP_CLI_FAULTDISK_FAULTDISK_INTERNAL_H

#include <stdatomic.h>
#include <stdint.h>

#include "cli/faultdisk/faultdisk.h"

#define KELP_FAULTDISK_MAGIC UINT64_C(0x6b656c7064697331)

/* Not KELP_…: `kelp train` keeps what begins so from its daemons. */
#define KELP_FAULTDISK_ENV_CONTROL "KELPDISK_CONTROL"
#define KELP_FAULTDISK_ENV_ROOT    "KELPDISK_ROOT"

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

#endif
