#include "worker/compute/predictions.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/base/random_id.h"
#include "common/tensors/digest.h"
#include "worker/compute/limits.h"

#define MAGIC  "KELPPRED"
#define LAYOUT 1u

struct header {
    char magic[8];
    uint32_t layout;
    uint32_t lane;
    uint64_t version;
    uint64_t first;
    uint64_t count;
    uint64_t values;
    uint64_t digest;
};
_Static_assert(sizeof(struct header) == KELP_PREDICTION_HEADER_BYTES, "the header has no padding");
_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "floats are written as they are in memory");

struct kelp_prediction_writer {
    struct kelp_prediction_part part;
    uint64_t done; /* samples written */
    struct kelp_digest digest;
    int fd;
    char path[KELP_PREDICTION_PATH_MAX];
    char temporary[KELP_PREDICTION_PATH_MAX];
};

static kelp_status part_path(const char *folder, const struct kelp_prediction_part *part,
                             char path[KELP_PREDICTION_PATH_MAX], struct kelp_error *reterr)
{
    int length = snprintf(path, KELP_PREDICTION_PATH_MAX, "%s/part-%" PRIu64 "-%" PRIu32, folder,
                          part->version, part->lane);
    if (length < 0 || length >= KELP_PREDICTION_PATH_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path of folder '%.80s…' is too long", folder);
    }
    return KELP_OK;
}

static struct header make_header(const struct kelp_prediction_part *part, uint64_t digest)
{
    struct header header = {
        .layout = htole32(LAYOUT),
        .lane = htole32(part->lane),
        .version = htole64(part->version),
        .first = htole64(part->first),
        .count = htole64(part->count),
        .values = htole64(part->values),
        .digest = htole64(digest),
    };
    memcpy(header.magic, MAGIC, sizeof(header.magic));
    return header;
}

/* ---- writing --------------------------------------------------------------------------------- */

static kelp_status write_at(const struct kelp_prediction_writer *writer, const void *bytes,
                            size_t count, uint64_t at, struct kelp_error *reterr)
{
    size_t done = 0;
    while (done < count) {
        ssize_t written =
            pwrite(writer->fd, (const uint8_t *)bytes + done, count - done, (off_t)(at + done));
        if (written < 0 && errno != EINTR) {
            return kelp_files_error(errno, "write", writer->temporary, reterr);
        }
        done += written > 0 ? (size_t)written : 0;
    }
    return KELP_OK;
}

/* The name is unique to this worker. */
static kelp_status create_file(struct kelp_prediction_writer *writer, struct kelp_error *reterr)
{
    uint64_t id = 0;
    kelp_status status = kelp_random_id(&id, reterr);
    if (status != KELP_OK) {
        return status;
    }
    int length =
        snprintf(writer->temporary, sizeof(writer->temporary), "%s.%016" PRIx64, writer->path, id);
    if (length < 0 || (size_t)length >= sizeof(writer->temporary)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path '%.80s…' is too long", writer->path);
    }
    writer->fd = open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return writer->fd >= 0 ? KELP_OK : kelp_files_error(errno, "create", writer->temporary, reterr);
}

kelp_status kelp_prediction_begin(const char *folder, const struct kelp_prediction_part *part,
                                  struct kelp_prediction_writer **ret_writer,
                                  struct kelp_error *reterr)
{
    assert(part->count > 0);
    assert(part->values > 0);
    struct kelp_prediction_writer *writer = calloc(1, sizeof(*writer));
    if (!writer) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    writer->part = *part;
    writer->fd = -1;
    kelp_digest_init(&writer->digest);
    kelp_status status = part_path(folder, part, writer->path, reterr);
    if (status == KELP_OK) {
        status = kelp_files_make_folder(folder, reterr);
    }
    if (status == KELP_OK) {
        status = create_file(writer, reterr);
    }
    if (status != KELP_OK) {
        kelp_prediction_drop(writer);
        return status;
    }
    *ret_writer = writer;
    return KELP_OK;
}

kelp_status kelp_prediction_add(struct kelp_prediction_writer *writer, const float *values,
                                uint64_t count, struct kelp_error *reterr)
{
    assert(count <= writer->part.count - writer->done);
    uint64_t sample_bytes = writer->part.values * sizeof(float);
    size_t bytes = (size_t)(count * sample_bytes);
    kelp_digest_update(&writer->digest, values, bytes);
    kelp_status status = write_at(writer, values, bytes,
                                  sizeof(struct header) + writer->done * sample_bytes, reterr);
    if (status == KELP_OK) {
        writer->done += count;
    }
    return status;
}

kelp_status kelp_prediction_end(struct kelp_prediction_writer *writer, struct kelp_error *reterr)
{
    assert(writer->done == writer->part.count);
    const struct header header = make_header(&writer->part, kelp_digest_short(&writer->digest));
    kelp_status status = write_at(writer, &header, sizeof(header), 0, reterr);
    if (status == KELP_OK && close(writer->fd) != 0) { /* some systems report a quota */
        status = kelp_files_error(errno, "write", writer->temporary, reterr);
    }
    if (status == KELP_OK) {
        writer->fd = -1;
        if (rename(writer->temporary, writer->path) != 0) {
            status = kelp_files_error(errno, "rename", writer->temporary, reterr);
        }
    }
    if (status != KELP_OK) {
        kelp_prediction_drop(writer);
        return status;
    }
    free(writer);
    return KELP_OK;
}

void kelp_prediction_drop(struct kelp_prediction_writer *writer)
{
    if (!writer) {
        return;
    }
    if (writer->fd >= 0) {
        (void)close(writer->fd); /* the file is removed */
    }
    if (writer->temporary[0] != '\0') {
        (void)unlink(writer->temporary); /* a leftover is ignored because of its name */
    }
    free(writer);
}

/* ---- reading --------------------------------------------------------------------------------- */

static kelp_status corrupt(const char *path, const char *what, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_CORRUPT, "%s: %s", path, what);
}

static kelp_status check_header(const struct header *header, const char *path,
                                const struct kelp_prediction_part *part, struct kelp_error *reterr)
{
    uint64_t values = le64toh(header->values);
    if (memcmp(header->magic, MAGIC, sizeof(header->magic)) != 0 ||
        le32toh(header->layout) != LAYOUT) {
        return corrupt(path, "holds no predictions", reterr);
    }
    if (le32toh(header->lane) != part->lane || le64toh(header->version) != part->version ||
        le64toh(header->first) != part->first || le64toh(header->count) != part->count ||
        values == 0 || (part->values != 0 && part->values != values)) {
        return corrupt(path, "holds the predictions of other samples", reterr);
    }
    return KELP_OK;
}

/* The bytes behind the header; their number must be the one in the header. */
static kelp_status check_values(const struct header *header, const char *path, const uint8_t *bytes,
                                size_t count, struct kelp_error *reterr)
{
    uint64_t expected = 0;
    if (__builtin_mul_overflow(le64toh(header->count), le64toh(header->values), &expected) ||
        __builtin_mul_overflow(expected, sizeof(float), &expected) || expected != count) {
        return corrupt(path, "is cut off or too long", reterr);
    }
    return kelp_digest_bytes(bytes, count) == le64toh(header->digest)
               ? KELP_OK
               : corrupt(path, "is damaged: its digest differs", reterr);
}

kelp_status kelp_prediction_check(const char *path, const void *bytes, size_t count,
                                  struct kelp_prediction_part *part, struct kelp_error *reterr)
{
    struct header header;
    if (count < sizeof(header)) {
        return corrupt(path, "is cut off or too long", reterr);
    }
    memcpy(&header, bytes, sizeof(header));
    kelp_status status = check_header(&header, path, part, reterr);
    if (status == KELP_OK) {
        status = check_values(&header, path, (const uint8_t *)bytes + sizeof(header),
                              count - sizeof(header), reterr);
    }
    if (status == KELP_OK) {
        part->values = le64toh(header.values);
    }
    return status;
}

kelp_status kelp_prediction_read(const char *folder, struct kelp_prediction_part *part,
                                 float **ret_values, struct kelp_error *reterr)
{
    char path[KELP_PREDICTION_PATH_MAX];
    char *bytes = NULL;
    size_t count = 0;
    kelp_status status = part_path(folder, part, path, reterr);
    if (status == KELP_OK) {
        status = kelp_files_read(path, KELP_PREDICTION_BYTES_MAX, &bytes, &count, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_prediction_check(path, bytes, count, part, reterr);
    if (status != KELP_OK) {
        free(bytes);
        return status;
    }
    memmove(bytes, bytes + sizeof(struct header), count - sizeof(struct header));
    *ret_values = (float *)(void *)bytes; /* malloc aligns for any type */
    return KELP_OK;
}

kelp_status kelp_prediction_remove(const char *folder, const struct kelp_prediction_part *part,
                                   struct kelp_error *reterr)
{
    char path[KELP_PREDICTION_PATH_MAX];
    kelp_status status = part_path(folder, part, path, reterr);
    return status == KELP_OK ? kelp_files_remove(path, reterr) : status;
}
