/*
 * CONTENTS, the file that says what a snapshot's folder holds: which state, and each file's name,
 * length, and a digest of its end. It is what tells "not there yet" from "damaged", and what
 * RocksDB reads without a checksum of its own (the ends of its files, the small files whole) is
 * proven before RocksDB sees it. Text, its own digest in the last line:
 *
 *     kelp snapshot 1
 *     state generation=2 step=1500
 *     file 000008.sst bytes=67123456 end=0123456789abcdef
 *     ...
 *     sum 0123456789abcdef
 */
#ifndef KELP_PS_STORAGE_SNAPSHOT_CONTENTS_H
#define KELP_PS_STORAGE_SNAPSHOT_CONTENTS_H

#include "ps/storage/snapshot_store.h"

/* Describe and sync every file of the folder; the folder's own entries are synced last. Errors:
 * KELP_ERR_NO_SPACE, KELP_ERR_IO, KELP_ERR_NO_MEMORY. */
kelp_status kelp__snapshot_contents_write(const char *folder, const struct kelp_snapshot_id *id,
                                          struct kelp_error *reterr) KELP_MUST_USE;

/* Errors: KELP_ERR_NOT_FOUND (the folder, CONTENTS or a file that it names is not there),
 * KELP_ERR_CORRUPT (something is not what was written, or another state), KELP_ERR_IO,
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp__snapshot_contents_check(const char *folder, const struct kelp_snapshot_id *id,
                                          struct kelp_error *reterr) KELP_MUST_USE;

#endif
