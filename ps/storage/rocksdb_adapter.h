/*
 * What the writer and the reader of snapshots share of RocksDB (ps/storage/snapshot_store.h):
 * options, keys, and the one place where its errors become ours. Nothing outside
 * ps/storage/rocksdb_*.c knows RocksDB.
 */
#ifndef KELP_PS_STORAGE_ROCKSDB_ADAPTER_H
#define KELP_PS_STORAGE_ROCKSDB_ADAPTER_H

#include <rocksdb/c.h>
#include <stdint.h>

#include "common/base/status.h"
#include "ps/storage/snapshot_store.h"

#define KELP_ROCKSDB_KEY_BYTES 28

/*
 * Turn what a call left in errptr into a status, and free it: KELP_OK when it is NULL. The text is
 * prefixed with what was done to which path. KELP_ERR_CORRUPT, KELP_ERR_NO_SPACE,
 * KELP_ERR_NOT_FOUND (a file is missing), KELP_ERR_NO_MEMORY, KELP_ERR_IO (all others).
 */
kelp_status kelp__rocksdb_status(char *errptr, const char *what, const char *path,
                                 struct kelp_error *reterr);

/* Options for a database that is written once: nothing is compacted, compressed or logged. NULL:
 * no memory. Freed with kelp__rocksdb_options_destroy(). */
rocksdb_options_t *kelp__rocksdb_options_create(void);
void kelp__rocksdb_options_destroy(rocksdb_options_t *options);

void kelp__rocksdb_key(const struct kelp_snapshot_id *id, uint32_t partition, uint32_t kind,
                       uint32_t chunk, char ret_key[KELP_ROCKSDB_KEY_BYTES]);

/* Number of chunks of an item; an empty one has one, so that its being there is on record. */
uint32_t kelp__snapshot_chunks(size_t bytes);

#endif
