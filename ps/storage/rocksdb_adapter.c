#include "ps/storage/rocksdb_adapter.h"

#include <assert.h>
#include <string.h>

#include "ps/core/limits.h"

/* Blocks of up to one chunk: a sorted file has few blocks and a short index. */
#define BLOCK_BYTES KELP_SNAPSHOT_CHUNK_BYTES
/* A chunk of small items is read once for each item, so it is cached. */
#define CACHE_BYTES (16u << 20)
/* The manifest of a database that is written once has a few hundred bytes. */
#define MANIFEST_BYTES (64u << 10)
/* The memtable is not used. */
#define MEMTABLE_BYTES (64u << 10)
/* rocksdb/table.h: kXXH3. */
#define CHECKSUM_XXH3 4
/* rocksdb/env.h: FATAL_LEVEL. */
#define LOG_FATAL 4

kelp_status kelp__rocksdb_status(char *errptr, const char *what, const char *path,
                                 struct kelp_error *reterr)
{
    static const struct {
        const char *text;
        kelp_status status;
    } meanings[] = {
        {"No space left on device", KELP_ERR_NO_SPACE},
        {"Disk quota exceeded", KELP_ERR_NO_SPACE},
        {"Corruption", KELP_ERR_CORRUPT},
        {"No such file or directory", KELP_ERR_NOT_FOUND},
        {"Cannot allocate memory", KELP_ERR_NO_MEMORY},
    };
    if (!errptr) {
        return KELP_OK;
    }
    kelp_status status = KELP_ERR_IO;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(meanings); i++) {
        if (strstr(errptr, meanings[i].text)) {
            status = meanings[i].status;
            break;
        }
    }
    status = kelp_fail(reterr, status, "cannot %s '%s': %s", what, path, errptr);
    rocksdb_free(errptr);
    return status;
}

static void set_table(rocksdb_options_t *options)
{
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_cache_t *cache = rocksdb_cache_create_lru(CACHE_BYTES);
    rocksdb_block_based_options_set_block_size(table, BLOCK_BYTES);
    rocksdb_block_based_options_set_checksum(table, CHECKSUM_XXH3);
    rocksdb_block_based_options_set_format_version(table, 5);
    rocksdb_block_based_options_set_block_cache(table, cache);
    rocksdb_options_set_block_based_table_factory(options, table);
    /* The options keep references to both. */
    rocksdb_cache_destroy(cache);
    rocksdb_block_based_options_destroy(table);
}

rocksdb_options_t *kelp__rocksdb_options_create(void)
{
    rocksdb_options_t *options = rocksdb_options_create();
    if (!options) {
        return NULL;
    }
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_error_if_exists(options, 1);
    rocksdb_options_set_paranoid_checks(options, 1);
    rocksdb_options_set_compression(options, rocksdb_no_compression);
    rocksdb_options_set_disable_auto_compactions(options, 1);
    rocksdb_options_set_max_background_jobs(options, 1);
    rocksdb_options_set_max_file_opening_threads(options, 1);
    rocksdb_options_set_write_buffer_size(options, MEMTABLE_BYTES);
    rocksdb_options_set_manifest_preallocation_size(options, MANIFEST_BYTES);
    rocksdb_options_set_info_log_level(options, LOG_FATAL);
    rocksdb_options_set_stats_dump_period_sec(options, 0);
    rocksdb_options_set_stats_persist_period_sec(options, 0);
    rocksdb_options_set_skip_stats_update_on_db_open(options, 1);
    /* Parts are read from beginning to end: let the kernel read ahead. */
    rocksdb_options_set_advise_random_on_open(options, 0);
    set_table(options);
    return options;
}

void kelp__rocksdb_options_destroy(rocksdb_options_t *options)
{
    if (options) {
        rocksdb_options_destroy(options);
    }
}

static char *put_big_endian(char *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) {
        *at++ = (char)(unsigned char)(value >> (8 * (bytes - 1 - i)));
    }
    return at;
}

void kelp__rocksdb_key(const struct kelp_snapshot_id *id, uint32_t partition, uint32_t kind,
                       uint32_t chunk, char ret_key[KELP_ROCKSDB_KEY_BYTES])
{
    char *at = put_big_endian(ret_key, id->generation, 8);
    at = put_big_endian(at, id->step, 8);
    at = put_big_endian(at, partition, 4);
    at = put_big_endian(at, kind, 4);
    at = put_big_endian(at, chunk, 4);
    assert(at == ret_key + KELP_ROCKSDB_KEY_BYTES);
}

void kelp_snapshot_digest_item(struct kelp_digest *digest, uint32_t kind, uint64_t bytes)
{
    kelp_digest_update(digest, &kind, sizeof(kind));
    kelp_digest_update(digest, &bytes, sizeof(bytes));
}

uint32_t kelp__snapshot_chunks(size_t bytes)
{
    assert(bytes / KELP_SNAPSHOT_CHUNK_BYTES < UINT32_MAX);
    return bytes == 0 ? 1 : (uint32_t)((bytes - 1) / KELP_SNAPSHOT_CHUNK_BYTES + 1);
}
