/*
 * Writes a snapshot. Sorted files grow in "<path>.writing/sorted". finish() makes a database beside
 * them, moves them into it (by hard links, without copying bytes), removes what only a running
 * database needs, describes and syncs every file, and renames the folder. If anything fails, there
 * is no folder under the final name.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/files.h"
#include "ps/core/limits.h"
#include "ps/storage/rocksdb_adapter.h"
#include "ps/storage/snapshot_contents.h"

/* Levels at which the entry of a new folder must be durable: the checkpoint's folder, the folder
 * of checkpoints, the run's folder. Another shard may have made them without syncing them yet. */
#define LEVELS_ABOVE 3
#define SORTED_NAME  "sorted"

struct kelp_snapshot_writer {
    struct kelp_snapshot_id id;
    char *path;
    char *writing; /* "<path>.writing" */
    char *sorted;  /* "<path>.writing/sorted" */
    rocksdb_options_t *options;
    rocksdb_envoptions_t *env_options;
    rocksdb_sstfilewriter_t *file; /* NULL: none is open */
    uint64_t file_bytes;
    uint32_t file_count; /* begun so far; the open file is the last */
    bool has_part;
    uint32_t partition;
    uint32_t kind; /* of the item written last, 0: none */
    uint64_t part_bytes;
    struct kelp_digest digest;
};

/* ---- beginning ---- */

static void free_writer(struct kelp_snapshot_writer *writer)
{
    if (writer->file) {
        rocksdb_sstfilewriter_destroy(writer->file);
    }
    if (writer->env_options) {
        rocksdb_envoptions_destroy(writer->env_options);
    }
    kelp__rocksdb_options_destroy(writer->options);
    free(writer->path);
    free(writer->writing);
    free(writer->sorted);
    free(writer);
}

static struct kelp_snapshot_writer *create_writer(const char *path,
                                                  const struct kelp_snapshot_id *id)
{
    struct kelp_snapshot_writer *writer = calloc(1, sizeof(*writer));
    if (!writer) {
        return NULL;
    }
    writer->id = *id;
    writer->path = strdup(path);
    if (asprintf(&writer->writing, "%s.writing", path) < 0) {
        writer->writing = NULL;
    }
    if (asprintf(&writer->sorted, "%s.writing/" SORTED_NAME, path) < 0) {
        writer->sorted = NULL;
    }
    writer->options = kelp__rocksdb_options_create();
    writer->env_options = rocksdb_envoptions_create();
    if (!writer->path || !writer->writing || !writer->sorted || !writer->options ||
        !writer->env_options) {
        free_writer(writer);
        return NULL;
    }
    return writer;
}

kelp_status kelp_snapshot_writer_open(const char *path, const struct kelp_snapshot_id *id,
                                      struct kelp_snapshot_writer **ret_writer,
                                      struct kelp_error *reterr)
{
    struct kelp_snapshot_writer *writer = create_writer(path, id);
    if (!writer) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory to write '%s'", path);
    }
    kelp_status status = kelp_files_remove(writer->writing, reterr);
    if (status == KELP_OK) {
        status = kelp_files_make_folder(writer->sorted, reterr);
    }
    if (status != KELP_OK) {
        kelp_snapshot_writer_abandon(writer);
        /* Do not wait for a path that cannot be made. */
        return status == KELP_ERR_NOT_FOUND ? KELP_ERR_IO : status;
    }
    *ret_writer = writer;
    return KELP_OK;
}

void kelp_snapshot_writer_abandon(struct kelp_snapshot_writer *writer)
{
    if (!writer) {
        return;
    }
    if (writer->file) {
        rocksdb_sstfilewriter_destroy(writer->file);
        writer->file = NULL;
    }
    (void)kelp_files_remove(writer->writing, NULL); /* the next writer of this path removes it */
    free_writer(writer);
}

/* A leader that takes over moves away uncommitted checkpoints while shards may still write
 * there; the error of the next file operation does not say so. */
static kelp_status explain(const struct kelp_snapshot_writer *writer, kelp_status status,
                           struct kelp_error *reterr)
{
    if (status != KELP_OK && access(writer->writing, F_OK) != 0 && errno == ENOENT) {
        kelp_error_prefix(reterr, "its folder was removed meanwhile, as a leader that takes over "
                                  "does; that one takes the next checkpoint");
    }
    return status == KELP_ERR_NOT_FOUND ? KELP_ERR_IO : status;
}

/* ---- sorted files ---- */

static kelp_status sorted_path(const struct kelp_snapshot_writer *writer, uint32_t index,
                               char **ret_path, struct kelp_error *reterr)
{
    if (asprintf(ret_path, "%s/%06u", writer->sorted, index) < 0) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory to write '%s'", writer->path);
    }
    return KELP_OK;
}

static kelp_status begin_file(struct kelp_snapshot_writer *writer, struct kelp_error *reterr)
{
    char *path = NULL;
    char *errptr = NULL;
    kelp_status status = sorted_path(writer, writer->file_count, &path, reterr);
    if (status != KELP_OK) {
        return status;
    }
    writer->file = rocksdb_sstfilewriter_create(writer->env_options, writer->options);
    rocksdb_sstfilewriter_open(writer->file, path, &errptr);
    status = kelp__rocksdb_status(errptr, "open", path, reterr);
    if (status != KELP_OK) {
        rocksdb_sstfilewriter_destroy(writer->file);
        writer->file = NULL;
    }
    free(path);
    writer->file_count++;
    writer->file_bytes = 0;
    return status;
}

static kelp_status end_file(struct kelp_snapshot_writer *writer, struct kelp_error *reterr)
{
    char *errptr = NULL;
    if (!writer->file) {
        return KELP_OK;
    }
    rocksdb_sstfilewriter_finish(writer->file, &errptr);
    rocksdb_sstfilewriter_destroy(writer->file);
    writer->file = NULL;
    return kelp__rocksdb_status(errptr, "finish a file of", writer->path, reterr);
}

kelp_status kelp_snapshot_writer_part(struct kelp_snapshot_writer *writer, uint32_t partition,
                                      struct kelp_error *reterr)
{
    /* A file holds only consecutive partitions, so that the ranges of two files never overlap,
     * whatever the order of the parts. */
    bool adjacent = writer->has_part && partition == writer->partition + 1;
    kelp_status status = adjacent ? KELP_OK : end_file(writer, reterr);
    writer->has_part = true;
    writer->partition = partition;
    writer->kind = 0;
    writer->part_bytes = 0;
    kelp_digest_init(&writer->digest);
    return explain(writer, status, reterr);
}

static kelp_status put_chunk(struct kelp_snapshot_writer *writer, uint32_t chunk, const char *bytes,
                             size_t count, struct kelp_error *reterr)
{
    char key[KELP_ROCKSDB_KEY_BYTES];
    char *errptr = NULL;
    kelp_status status = KELP_OK;
    if (writer->file_bytes >= KELP_PS_SNAPSHOT_FILE_BYTES) {
        status = end_file(writer, reterr);
    }
    if (status == KELP_OK && !writer->file) {
        status = begin_file(writer, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    kelp__rocksdb_key(&writer->id, writer->partition, writer->kind, chunk, key);
    rocksdb_sstfilewriter_put(writer->file, key, sizeof(key), bytes, count, &errptr);
    writer->file_bytes += count + sizeof(key);
    return kelp__rocksdb_status(errptr, "write to", writer->path, reterr);
}

kelp_status kelp_snapshot_writer_item(struct kelp_snapshot_writer *writer, uint32_t kind,
                                      const void *data, size_t bytes, struct kelp_error *reterr)
{
    assert(writer->has_part);
    assert(kind > writer->kind);
    writer->kind = kind;
    writer->part_bytes += bytes;
    kelp_snapshot_digest_item(&writer->digest, kind, bytes);
    kelp_digest_update(&writer->digest, data, bytes);
    const char *at = data ? data : "";
    size_t left = bytes;
    uint32_t chunks = kelp__snapshot_chunks(bytes);
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        size_t count = left < KELP_SNAPSHOT_CHUNK_BYTES ? left : KELP_SNAPSHOT_CHUNK_BYTES;
        kelp_status status = put_chunk(writer, chunk, at, count, reterr);
        if (status != KELP_OK) {
            return explain(writer, status, reterr);
        }
        at += count;
        left -= count;
    }
    assert(left == 0);
    return KELP_OK;
}

void kelp_snapshot_writer_digest(const struct kelp_snapshot_writer *writer,
                                 char ret_hex[KELP_DIGEST_HEX_BYTES], uint64_t *ret_bytes)
{
    assert(writer->has_part);
    kelp_digest_hex(&writer->digest, ret_hex);
    *ret_bytes = writer->part_bytes;
}

/* ---- the end ---- */

static kelp_status ingest(const struct kelp_snapshot_writer *writer, rocksdb_t *database,
                          char **paths, struct kelp_error *reterr)
{
    char *errptr = NULL;
    for (uint32_t i = 0; i < writer->file_count; i++) {
        kelp_status status = sorted_path(writer, i, &paths[i], reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    rocksdb_ingestexternalfileoptions_t *options = rocksdb_ingestexternalfileoptions_create();
    rocksdb_ingestexternalfileoptions_set_move_files(options, 1);
    rocksdb_ingest_external_file(database, (const char *const *)paths, writer->file_count, options,
                                 &errptr);
    rocksdb_ingestexternalfileoptions_destroy(options);
    return kelp__rocksdb_status(errptr, "move files into", writer->writing, reterr);
}

static kelp_status make_database(const struct kelp_snapshot_writer *writer,
                                 struct kelp_error *reterr)
{
    char *errptr = NULL;
    rocksdb_t *database = rocksdb_open(writer->options, writer->writing, &errptr);
    kelp_status status = kelp__rocksdb_status(errptr, "make", writer->writing, reterr);
    if (status != KELP_OK) {
        return status;
    }
    char **paths = calloc(writer->file_count + 1u, sizeof(*paths));
    if (!paths) {
        status =
            kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the files of '%s'", writer->path);
    } else if (writer->file_count > 0) {
        status = ingest(writer, database, paths, reterr);
    }
    rocksdb_close(database);
    for (uint32_t i = 0; paths && i < writer->file_count; i++) {
        free(paths[i]);
    }
    free(paths);
    return status;
}

/* Files needed only while a database is open for writing: its lock, its log, the empty
 * write-ahead log, and the folder of sorted files. */
static int is_leftover(const struct dirent *entry)
{
    const char *name = entry->d_name;
    size_t length = strlen(name);
    return strcmp(name, "LOCK") == 0 || strncmp(name, "LOG", 3) == 0 ||
           strcmp(name, SORTED_NAME) == 0 || (length > 4 && strcmp(name + length - 4, ".log") == 0);
}

static kelp_status remove_leftovers(const struct kelp_snapshot_writer *writer,
                                    struct kelp_error *reterr)
{
    struct dirent **entries = NULL;
    int count = scandir(writer->writing, &entries, is_leftover, alphasort);
    if (count < 0) {
        return kelp_files_error(errno, "list", writer->writing, reterr);
    }
    kelp_status status = KELP_OK;
    for (int i = 0; i < count; i++) {
        char *path = NULL;
        if (status == KELP_OK &&
            asprintf(&path, "%s/%s", writer->writing, entries[i]->d_name) < 0) {
            status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory to write '%s'", writer->path);
        } else if (status == KELP_OK) {
            status = kelp_files_remove(path, reterr);
            free(path);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* An older folder of this name is exchanged, so that there is a whole one at every moment; if
 * the file system cannot exchange, it is removed first. */
static kelp_status rename_folder(const struct kelp_snapshot_writer *writer,
                                 struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    if (access(writer->path, F_OK) == 0) {
        if (renameat2(AT_FDCWD, writer->writing, AT_FDCWD, writer->path, RENAME_EXCHANGE) == 0) {
            return KELP_OK;
        }
        if (errno != EINVAL && errno != ENOSYS) {
            return kelp_files_error(errno, "exchange", writer->path, reterr);
        }
        status = kelp_files_remove(writer->path, reterr);
    }
    if (status == KELP_OK && rename(writer->writing, writer->path) != 0) {
        status = kelp_files_error(errno, "rename", writer->writing, reterr);
    }
    return status;
}

/* Put everything in place under the final name; it is not durable there yet. */
static kelp_status make_whole(struct kelp_snapshot_writer *writer, struct kelp_error *reterr)
{
    kelp_status status = end_file(writer, reterr);

    if (status == KELP_OK) {
        status = make_database(writer, reterr);
    }
    if (status == KELP_OK) {
        status = remove_leftovers(writer, reterr);
    }
    if (status == KELP_OK) {
        status = kelp__snapshot_contents_write(writer->writing, &writer->id, reterr);
    }
    return status == KELP_OK ? rename_folder(writer, reterr) : status;
}

kelp_status kelp_snapshot_writer_finish(struct kelp_snapshot_writer *writer,
                                        struct kelp_error *reterr)
{
    kelp_status status = explain(writer, make_whole(writer, reterr), reterr);

    if (status == KELP_OK) {
        status = kelp_files_sync_above(writer->path, LEVELS_ABOVE, reterr);
        if (status != KELP_OK) {
            (void)kelp_files_remove(writer->path, NULL); /* the first error is the one to report */
        }
    }
    kelp_snapshot_writer_abandon(writer); /* removes what is left of ".writing" */
    return status == KELP_ERR_NOT_FOUND ? KELP_ERR_IO : status;
}
