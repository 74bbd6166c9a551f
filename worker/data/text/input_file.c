#include "worker/data/text/input_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "common/base/files.h"

#define STORED_BYTES (256u * 1024) /* bytes read at once */
#define GZIP_ONLY    (16 + MAX_WBITS)

struct kelp_input_file {
    char *path;
    int fd;
    uint64_t file_bytes;
    bool gzip;
    bool ended;     /* the whole file was read */
    bool in_member; /* gzip: between a header and its checksum */
    bool has_stream;
    z_stream stream;
    uint64_t fetched; /* bytes read from the file */
    size_t first;     /* first byte of stored that is not used yet */
    size_t count;     /* bytes in stored */
    uint8_t stored[STORED_BYTES];
};

bool kelp_input_file_is_gzip(const struct kelp_input_file *file)
{
    return file->gzip;
}

/* Refill `stored` when it is used up. */
static kelp_status fetch(struct kelp_input_file *file, struct kelp_error *reterr)
{
    if (file->first < file->count || file->ended) {
        return KELP_OK;
    }
    ssize_t got;
    do {
        got = read(file->fd, file->stored, sizeof(file->stored));
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return kelp_files_error(errno, "read", file->path, reterr);
    }
    file->first = 0;
    file->count = (size_t)got;
    file->fetched += (uint64_t)got;
    file->ended = got == 0;
    return KELP_OK;
}

/* ---- gzip ------------------------------------------------------------------------------------ */

static kelp_status damaged(const struct kelp_input_file *file, struct kelp_error *reterr)
{
    uint64_t at = file->fetched - (file->count - file->first);
    return kelp_fail(reterr, KELP_ERR_FORMAT,
                     "%s: the gzip data are damaged near byte %" PRIu64 "%s%s%s", file->path, at,
                     file->stream.msg ? " (" : "", file->stream.msg ? file->stream.msg : "",
                     file->stream.msg ? ")" : "");
}

static kelp_status truncated(const struct kelp_input_file *file, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_FORMAT,
                     "%s: is cut off: it ends at byte %" PRIu64 ", inside its gzip data",
                     file->path, file->fetched);
}

/* What may follow a gzip member: another one, or zero padding to the end, as on tapes. */
static kelp_status begin_member(struct kelp_input_file *file, struct kelp_error *reterr)
{
    while (file->first < file->count && file->stored[file->first] == 0) {
        file->first++;
    }
    if (file->first == file->count) {
        return KELP_OK; /* continue after the next fetch */
    }
    if (inflateReset(&file->stream) != Z_OK) {
        return kelp_fail(reterr, KELP_ERR_INTERNAL, "%s: zlib cannot begin again", file->path);
    }
    file->in_member = true;
    return KELP_OK;
}

static kelp_status inflate_some(struct kelp_input_file *file, uint8_t *bytes, size_t count,
                                size_t *ret_count, struct kelp_error *reterr)
{
    z_stream *stream = &file->stream;
    stream->next_in = file->stored + file->first;
    stream->avail_in = (uInt)(file->count - file->first);
    stream->next_out = bytes;
    stream->avail_out = count < UINT_MAX ? (uInt)count : UINT_MAX;
    int result = inflate(stream, Z_NO_FLUSH);
    *ret_count = (size_t)(stream->next_out - bytes);
    file->first = file->count - stream->avail_in;
    switch (result) {
    case Z_STREAM_END:
        file->in_member = false;
        return KELP_OK;
    case Z_OK:
    case Z_BUF_ERROR: /* needs more input or room, and gets it */
        return KELP_OK;
    case Z_MEM_ERROR:
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", file->path);
    default:
        return damaged(file, reterr);
    }
}

static kelp_status read_gzip(struct kelp_input_file *file, uint8_t *bytes, size_t count,
                             size_t *ret_count, struct kelp_error *reterr)
{
    size_t done = 0;
    while (done < count) {
        kelp_status status = fetch(file, reterr);
        if (status == KELP_OK && file->ended) {
            *ret_count = done;
            return file->in_member ? truncated(file, reterr) : KELP_OK;
        }
        if (status == KELP_OK && !file->in_member) {
            status = begin_member(file, reterr);
        }
        size_t some = 0;
        if (status == KELP_OK && file->in_member) {
            status = inflate_some(file, bytes + done, count - done, &some, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
        done += some;
    }
    *ret_count = done;
    return KELP_OK;
}

/* ---- plain ----------------------------------------------------------------------------------- */

static kelp_status read_plain(struct kelp_input_file *file, uint8_t *bytes, size_t count,
                              size_t *ret_count, struct kelp_error *reterr)
{
    size_t done = 0;
    while (done < count) {
        kelp_status status = fetch(file, reterr);
        if (status != KELP_OK) {
            return status;
        }
        if (file->ended) {
            break;
        }
        size_t some = file->count - file->first;
        some = some < count - done ? some : count - done;
        memcpy(bytes + done, file->stored + file->first, some);
        file->first += some;
        done += some;
    }
    *ret_count = done;
    return KELP_OK;
}

kelp_status kelp_input_file_read(struct kelp_input_file *file, void *bytes, size_t count,
                                 size_t *ret_count, struct kelp_error *reterr)
{
    size_t done = 0;
    kelp_status status = file->gzip ? read_gzip(file, bytes, count, &done, reterr)
                                    : read_plain(file, bytes, count, &done, reterr);
    if (status == KELP_OK) {
        *ret_count = done;
    }
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

static kelp_status open_path(struct kelp_input_file *file, const char *path,
                             struct kelp_error *reterr)
{
    struct stat about;
    file->path = strdup(path);
    if (!file->path) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    kelp_status status = kelp_files_open(path, 0, &file->fd, &about, reterr);
    if (status != KELP_OK) {
        return status;
    }
    file->file_bytes = (uint64_t)about.st_size;
    return KELP_OK;
}

static kelp_status begin(struct kelp_input_file *file, struct kelp_error *reterr)
{
    kelp_status status = fetch(file, reterr);
    if (status != KELP_OK) {
        return status;
    }
    file->gzip = file->count >= 2 && file->stored[0] == 0x1f && file->stored[1] == 0x8b;
    if (!file->gzip) {
        return KELP_OK;
    }
    if (inflateInit2(&file->stream, GZIP_ONLY) != Z_OK) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: no memory to decompress it", file->path);
    }
    file->has_stream = true;
    file->in_member = true;
    return KELP_OK;
}

kelp_status kelp_input_file_open(const char *path, struct kelp_input_file **ret_file,
                                 struct kelp_error *reterr)
{
    struct kelp_input_file *file = calloc(1, sizeof(*file));
    if (!file) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    file->fd = -1;
    kelp_status status = open_path(file, path, reterr);
    if (status == KELP_OK) {
        status = begin(file, reterr);
    }
    if (status != KELP_OK) {
        kelp_input_file_close(file);
        return status;
    }
    *ret_file = file;
    return KELP_OK;
}

void kelp_input_file_close(struct kelp_input_file *file)
{
    if (!file) {
        return;
    }
    if (file->has_stream) {
        (void)inflateEnd(&file->stream); /* only frees; its result is not needed */
    }
    if (file->fd >= 0) {
        (void)close(file->fd); /* it was only read */
    }
    free(file->path);
    free(file);
}
