/* Reads a snapshot: the files are compared with CONTENTS before RocksDB opens them; then RocksDB
 * checks every block, and digests check every part. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ps/storage/rocksdb_adapter.h"
#include "ps/storage/snapshot_contents.h"

struct kelp_snapshot_reader {
    struct kelp_snapshot_id id;
    char *path;
    rocksdb_options_t *options;
    rocksdb_readoptions_t *read_options;
    rocksdb_t *database;
    bool has_part;
    uint32_t partition;
    uint32_t kind; /* of the item read last, 0: none */
    struct kelp_digest digest;
};

static struct kelp_snapshot_reader *create_reader(const char *path,
                                                  const struct kelp_snapshot_id *id)
{
    struct kelp_snapshot_reader *reader = calloc(1, sizeof(*reader));
    if (!reader) {
        return NULL;
    }
    reader->id = *id;
    reader->path = strdup(path);
    reader->options = kelp__rocksdb_options_create();
    reader->read_options = rocksdb_readoptions_create();
    if (!reader->path || !reader->options || !reader->read_options) {
        kelp_snapshot_reader_close(reader);
        return NULL;
    }
    rocksdb_readoptions_set_verify_checksums(reader->read_options, 1);
    return reader;
}

kelp_status kelp_snapshot_reader_open(const char *path, const struct kelp_snapshot_id *id,
                                      struct kelp_snapshot_reader **ret_reader,
                                      struct kelp_error *reterr)
{
    kelp_status status = kelp__snapshot_contents_check(path, id, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_snapshot_reader *reader = create_reader(path, id);
    if (!reader) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory to read '%s'", path);
    }
    char *errptr = NULL;
    reader->database = rocksdb_open_for_read_only(reader->options, path, 0, &errptr);
    status = kelp__rocksdb_status(errptr, "open", path, reterr);
    if (status != KELP_OK) {
        reader->database = NULL;
        kelp_snapshot_reader_close(reader);
        return status;
    }
    *ret_reader = reader;
    return KELP_OK;
}

void kelp_snapshot_reader_close(struct kelp_snapshot_reader *reader)
{
    if (!reader) {
        return;
    }
    if (reader->database) {
        rocksdb_close(reader->database);
    }
    if (reader->read_options) {
        rocksdb_readoptions_destroy(reader->read_options);
    }
    kelp__rocksdb_options_destroy(reader->options);
    free(reader->path);
    free(reader);
}

kelp_status kelp_snapshot_reader_part(struct kelp_snapshot_reader *reader, uint32_t partition,
                                      struct kelp_error *reterr)
{
    (void)reterr; /* nothing is read yet */
    reader->has_part = true;
    reader->partition = partition;
    reader->kind = 0;
    kelp_digest_init(&reader->digest);
    return KELP_OK;
}

static kelp_status get_chunk(struct kelp_snapshot_reader *reader, uint32_t chunk, char *bytes,
                             size_t count, struct kelp_error *reterr)
{
    char key[KELP_ROCKSDB_KEY_BYTES];
    char *errptr = NULL;
    kelp__rocksdb_key(&reader->id, reader->partition, reader->kind, chunk, key);
    rocksdb_pinnableslice_t *slice =
        rocksdb_get_pinned(reader->database, reader->read_options, key, sizeof(key), &errptr);
    kelp_status status = kelp__rocksdb_status(errptr, "read", reader->path, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (!slice) {
        return kelp_fail(reterr, KELP_ERR_CORRUPT,
                         "'%s' is damaged: partition %u lacks chunk %u of item %u", reader->path,
                         reader->partition, chunk, reader->kind);
    }
    size_t held = 0;
    const char *value = rocksdb_pinnableslice_value(slice, &held);
    if (held != count) {
        status = kelp_fail(reterr, KELP_ERR_CORRUPT,
                           "'%s' is damaged: chunk %u of item %u of partition %u has %zu bytes "
                           "instead of %zu",
                           reader->path, chunk, reader->kind, reader->partition, held, count);
    } else if (count > 0) {
        assert(bytes);
        memcpy(bytes, value, count);
    }
    rocksdb_pinnableslice_destroy(slice);
    return status;
}

kelp_status kelp_snapshot_reader_item(struct kelp_snapshot_reader *reader, uint32_t kind,
                                      void *data, size_t bytes, struct kelp_error *reterr)
{
    assert(reader->has_part);
    assert(kind > reader->kind);
    assert(data || bytes == 0);
    reader->kind = kind;
    char *at = data;
    size_t left = bytes;
    uint32_t chunks = kelp__snapshot_chunks(bytes);
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        size_t count = left < KELP_SNAPSHOT_CHUNK_BYTES ? left : KELP_SNAPSHOT_CHUNK_BYTES;
        kelp_status status = get_chunk(reader, chunk, at, count, reterr);
        if (status != KELP_OK) {
            return status;
        }
        at = at ? at + count : NULL;
        left -= count;
    }
    kelp_snapshot_digest_item(&reader->digest, kind, bytes);
    kelp_digest_update(&reader->digest, data, bytes);
    return KELP_OK;
}

kelp_status kelp_snapshot_reader_check(struct kelp_snapshot_reader *reader, const char *digest,
                                       struct kelp_error *reterr)
{
    char found[KELP_DIGEST_HEX_BYTES];
    assert(reader->has_part);
    kelp_digest_hex(&reader->digest, found);
    if (strcmp(found, digest) != 0) {
        return kelp_fail(reterr, KELP_ERR_CORRUPT,
                         "'%s' is damaged: partition %u has digest %s, %s was written",
                         reader->path, reader->partition, found, digest);
    }
    return KELP_OK;
}
