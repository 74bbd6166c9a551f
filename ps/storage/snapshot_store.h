/*
 * One shard's storage of one checkpoint: a RocksDB database of its own, written once and read many
 * times. Only ps/storage/rocksdb_*.c know RocksDB; its errors stop there. Beside the database lies
 * CONTENTS (ps/storage/snapshot_contents.h), by which a reader knows what has to be there.
 *
 * Key:   generation u64 | step u64 | partition u32 | kind u32 | chunk u32, big-endian, so that keys
 *        are in order. Value: up to KELP_SNAPSHOT_CHUNK_BYTES of the item's bytes.
 *
 * Writing: parts go to sorted files directly (not through the memtable), which are ingested by
 * moving. finish() syncs everything, renames "<path>.writing" to path, and syncs the parent folder:
 * a folder without ".writing" is whole, also after a loss of power. Nothing is compacted, the
 * write-ahead log is not used.
 *
 * Part digest: XXH3-128 over, for each item of the partition in the order of kinds: kind (u32),
 * length in bytes (u64), the bytes; little-endian. It depends on the state alone, not on who wrote
 * it or into how many chunks.
 */
#ifndef KELP_PS_STORAGE_SNAPSHOT_STORE_H
#define KELP_PS_STORAGE_SNAPSHOT_STORE_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/tensors/digest.h"

#define KELP_SNAPSHOT_CHUNK_BYTES (256u << 10)

/* Items of a partition; slot n is KELP_SNAPSHOT_SLOT + n. Written and read in this order. */
enum kelp_snapshot_kind {
    KELP_SNAPSHOT_CONTROL = 1, /* partition 0 only: kelp_control_pack() */
    KELP_SNAPSHOT_WEIGHTS = 2,
    KELP_SNAPSHOT_SLOT = 16
};

/* Which state: part of every key. */
struct kelp_snapshot_id {
    uint64_t generation;
    uint64_t step;
};

/* Add to a part's digest what stands before an item's bytes, which the caller adds next. */
void kelp_snapshot_digest_item(struct kelp_digest *digest, uint32_t kind, uint64_t bytes);

/* ---- writing ---- */

struct kelp_snapshot_writer;

/* Begin path (its parent is made if need be). What an earlier attempt left under "<path>.writing"
 * is removed first. Threads: one at a time. Errors of all calls: KELP_ERR_NO_SPACE, KELP_ERR_IO,
 * KELP_ERR_NO_MEMORY; after an error only abandon() is of use. */
kelp_status kelp_snapshot_writer_open(const char *path, const struct kelp_snapshot_id *id,
                                      struct kelp_snapshot_writer **ret_writer,
                                      struct kelp_error *reterr) KELP_MUST_USE;

/* Parts in ascending order of partitions (another order costs files), each with its items in
 * ascending order of kinds. bytes may be 0. */
kelp_status kelp_snapshot_writer_part(struct kelp_snapshot_writer *writer, uint32_t partition,
                                      struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_snapshot_writer_item(struct kelp_snapshot_writer *writer, uint32_t kind,
                                      const void *data, size_t bytes,
                                      struct kelp_error *reterr) KELP_MUST_USE;
/* Of the part begun last: its digest and bytes so far. */
void kelp_snapshot_writer_digest(const struct kelp_snapshot_writer *writer,
                                 char ret_hex[KELP_DIGEST_HEX_BYTES], uint64_t *ret_bytes);

/* Everything is durable under path when it returns KELP_OK. The writer is used up in any case; on
 * an error nothing is left. An older path of this name is replaced. */
kelp_status kelp_snapshot_writer_finish(struct kelp_snapshot_writer *writer,
                                        struct kelp_error *reterr) KELP_MUST_USE;
/* Remove what was written. NULL does nothing. */
void kelp_snapshot_writer_abandon(struct kelp_snapshot_writer *writer);

/* ---- reading ---- */

struct kelp_snapshot_reader;

/*
 * Opens read-only: any number of readers, none changes anything. Errors: KELP_ERR_NOT_FOUND (the
 * folder, or a file in it, is not there: perhaps not yet), KELP_ERR_CORRUPT (what is there is not
 * what was written), KELP_ERR_IO, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_snapshot_reader_open(const char *path, const struct kelp_snapshot_id *id,
                                      struct kelp_snapshot_reader **ret_reader,
                                      struct kelp_error *reterr) KELP_MUST_USE;
void kelp_snapshot_reader_close(struct kelp_snapshot_reader *reader);

/* Begin a part; then its items in ascending order of kinds, all of them; then check the digest.
 * item() fills exactly `bytes`: another length is KELP_ERR_CORRUPT, of item() or of check().
 * Nothing is to be used before check(). Threads: one at a time. */
kelp_status kelp_snapshot_reader_part(struct kelp_snapshot_reader *reader, uint32_t partition,
                                      struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_snapshot_reader_item(struct kelp_snapshot_reader *reader, uint32_t kind,
                                      void *data, size_t bytes,
                                      struct kelp_error *reterr) KELP_MUST_USE;
/* KELP_ERR_CORRUPT unless what was read of this part has this digest. */
kelp_status kelp_snapshot_reader_check(struct kelp_snapshot_reader *reader, const char *digest,
                                       struct kelp_error *reterr) KELP_MUST_USE;

#endif
