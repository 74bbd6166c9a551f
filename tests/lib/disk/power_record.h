/*
 * The record of what is durable, which kelp-shadowdisk.so keeps and tests/lib/disk/power_loss.h
 * reads.
 *
 * The shadow holds for each inode "f.<id>" (a regular file's bytes as of the last sync) or "d.<id>"
 * (a folder's entries: type, id, a blank, the name, NUL, and for a symbolic link its target and
 * another NUL). An id has the inode's number, its birth time and its file handle, if there is one,
 * because inode numbers are reused.
 */
#ifndef KELP_TESTS_LIB_DISK_POWER_RECORD_H
#define KELP_TESTS_LIB_DISK_POWER_RECORD_H

#include <stdbool.h>

#define KELP_POWER_ENV_SHADOW "KELPDISK_SHADOW"
#define KELP_POWER_ID_BYTES   64

/* Id and type ('f', 'd', 'l', '?' for types not recorded) of name in folder_fd (links are not
 * followed), or of folder_fd itself if name is "". False: see errno; EOPNOTSUPP: no birth times. */
bool kelp_power_id(int folder_fd, const char *name, char ret_id[KELP_POWER_ID_BYTES],
                   char *ret_type);

/* Record the present state of fd as durable. Safe if the process is killed, and if other
 * processes record the same inode. False: see errno. */
bool kelp_power_record(const char *shadow, int fd);

#endif
