#include "worker/data/arrays/array_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/files.h"
#include "worker/data/limits.h"
#include "worker/data/text/input_file.h"

struct kelp_array_file {
    char *path;
    struct kelp_array array;
    uint8_t *rows; /* all rows, or NULL: they are read from fd */
    int fd;
    bool has_about; /* false: the file is compressed */
    struct stat about;
};

const char *kelp_array_file_path(const struct kelp_array_file *file)
{
    return file->path;
}

const struct kelp_array *kelp_array_file_array(const struct kelp_array_file *file)
{
    return &file->array;
}

static uint64_t data_bytes(const struct kelp_array *array)
{
    return array->dims[0] * array->row_bytes;
}

uint64_t kelp_array_file_resident_bytes(const struct kelp_array_file *file)
{
    return file->rows ? data_bytes(&file->array) : 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

static kelp_status read_at(int fd, uint64_t at, size_t count, uint8_t *bytes)
{
    size_t done = 0;
    while (done < count) {
        ssize_t got = pread(fd, bytes + done, count - done, (off_t)(at + done));
        if (got == 0) {
            return KELP_ERR_CORRUPT;
        }
        if (got < 0 && errno != EINTR) {
            return KELP_ERR_IO;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return KELP_OK;
}

kelp_status kelp_array_file_read(const struct kelp_array_file *file, uint64_t row, uint64_t first,
                                 size_t count, uint8_t *scratch, const uint8_t **ret_bytes)
{
    assert(row < file->array.dims[0]);
    assert(first < file->array.row_bytes);
    uint64_t at = row * file->array.row_bytes + first;
    assert(count <= data_bytes(&file->array) - at);
    if (file->rows) {
        *ret_bytes = file->rows + at;
        return KELP_OK;
    }
    *ret_bytes = scratch;
    return read_at(file->fd, file->array.data_at + at, count, scratch);
}

bool kelp_array_file_identify(const struct kelp_array_file *file, struct kelp_digest *digest)
{
    const struct stat *about = &file->about;
    if (!file->has_about) {
        kelp_digest_update(digest, file->rows, (size_t)data_bytes(&file->array));
        return true;
    }
    const uint64_t values[] = {(uint64_t)about->st_dev, (uint64_t)about->st_ino,
                               (uint64_t)about->st_size, (uint64_t)about->st_mtim.tv_sec,
                               (uint64_t)about->st_mtim.tv_nsec};
    kelp_digest_update(digest, file->path, strlen(file->path) + 1);
    kelp_digest_update(digest, values, sizeof(values));
    time_t now = time(NULL);
    return now - about->st_mtim.tv_sec > KELP_SURVEY_SETTLED_S;
}

/* ---- opening --------------------------------------------------------------------------------- */

static kelp_status allocate_rows(struct kelp_array_file *file, struct kelp_error *reterr)
{
    file->rows = malloc((size_t)data_bytes(&file->array));
    if (!file->rows) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: no memory for its %" PRIu64 " bytes",
                         file->path, data_bytes(&file->array));
    }
    return KELP_OK;
}

static kelp_status open_plain(struct kelp_array_file *file, uint64_t *ret_bytes,
                              struct kelp_error *reterr)
{
    kelp_status status = kelp_files_open(file->path, 0, &file->fd, &file->about, reterr);
    if (status != KELP_OK) {
        return status;
    }
    file->has_about = true;
    *ret_bytes = (uint64_t)file->about.st_size;
    return KELP_OK;
}

/* A small file is read at once; a large one stays open. The system should not read ahead in a
 * file whose rows are read in random order. */
static kelp_status keep_rows(struct kelp_array_file *file, struct kelp_error *reterr)
{
    if (data_bytes(&file->array) > KELP_ARRAY_RESIDENT_MAX) {
        return KELP_OK;
    }
    kelp_status status = allocate_rows(file, reterr);
    if (status == KELP_OK) {
        status =
            read_at(file->fd, file->array.data_at, (size_t)data_bytes(&file->array), file->rows);
        if (status != KELP_OK) {
            status = kelp_fail(reterr, status, "%s: cannot be read: %s", file->path,
                               kelp_status_text(status));
        }
    }
    (void)close(file->fd); /* it was only read */
    file->fd = -1;
    return status;
}

typedef kelp_status array_parser(const struct kelp_array_text *text, struct kelp_array *ret_array,
                                 struct kelp_error *reterr);

static kelp_status open_stored(struct kelp_array_file *file, array_parser *parse,
                               struct kelp_error *reterr)
{
    uint8_t header[KELP_ARRAY_HEADER_MAX];
    struct kelp_array_text text = {.name = file->path, .bytes = header};
    kelp_status status = open_plain(file, &text.file_bytes, reterr);
    if (status != KELP_OK) {
        return status;
    }
    text.count = text.file_bytes < sizeof(header) ? (size_t)text.file_bytes : sizeof(header);
    status = read_at(file->fd, 0, text.count, header);
    if (status != KELP_OK) {
        return kelp_fail(reterr, status, "%s: cannot be read: %s", file->path,
                         kelp_status_text(status));
    }
    status = parse(&text, &file->array, reterr);
    return status == KELP_OK ? keep_rows(file, reterr) : status;
}

/* The length comes from the header, and is bounded before memory is allocated. */
static kelp_status inflate_rows(struct kelp_array_file *file, struct kelp_input_file *input,
                                struct kelp_error *reterr)
{
    uint8_t header[4 + 4 * KELP_ARRAY_RANK_MAX] = {0};
    struct kelp_array_text text = {
        .name = file->path, .bytes = header, .file_bytes = KELP_ARRAY_SIZE_UNKNOWN};
    kelp_status status = kelp_input_file_read(input, header, 4, &text.count, reterr);
    size_t dims_bytes = 4 * (size_t)header[3];
    if (status == KELP_OK && text.count == 4 && dims_bytes <= sizeof(header) - 4) {
        size_t more = 0;
        status = kelp_input_file_read(input, header + 4, dims_bytes, &more, reterr);
        text.count += more;
    }
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_idx_parse(&text, &file->array, reterr);
    if (status != KELP_OK) {
        return status;
    }
    uint64_t expected = data_bytes(&file->array);
    if (expected > KELP_ARRAY_INFLATED_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "%s: has %" PRIu64 " bytes of data when decompressed, over %" PRIu64
                         "; decompress it into a file",
                         file->path, expected, (uint64_t)KELP_ARRAY_INFLATED_MAX);
    }
    status = allocate_rows(file, reterr);
    size_t got = 0, behind = 0;
    uint8_t byte;
    if (status == KELP_OK) {
        status = kelp_input_file_read(input, file->rows, (size_t)expected, &got, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_input_file_read(input, &byte, 1, &behind, reterr);
    }
    if (status == KELP_OK && (got < expected || behind > 0)) {
        status = kelp_array_measure(&file->array, file->path, file->array.data_at + got + behind,
                                    reterr);
    }
    return status;
}

/* What to open: a format, or rows of a given layout. */
struct array_source {
    array_parser *parse; /* NULL: rows */
    const struct kelp_array *layout;
    bool may_be_gzip;
};

/* Otherwise the whole NPY file, with its header, would be read as numbers. */
static kelp_status refuse_npy(const struct kelp_array_file *file, struct kelp_error *reterr)
{
    static const uint8_t magic[] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
    uint8_t head[sizeof(magic)];
    if (read_at(file->fd, 0, sizeof(head), head) != KELP_OK ||
        memcmp(head, magic, sizeof(head)) != 0) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_FORMAT,
                     "%s: is a NumPy file, and data.kind binary takes plain numbers; use data.kind "
                     "npy, or write the array with tofile()",
                     file->path);
}

static kelp_status open_rows(struct kelp_array_file *file, const struct kelp_array *layout,
                             struct kelp_error *reterr)
{
    uint64_t bytes = 0;
    uint64_t row_bytes = layout->row_elems * kelp_element_bytes(layout->element);
    kelp_status status = open_plain(file, &bytes, reterr);
    if (status == KELP_OK) {
        status = refuse_npy(file, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (bytes == 0 || bytes % row_bytes != 0) {
        return kelp_fail(
            reterr, KELP_ERR_FORMAT,
            "%s: has %" PRIu64 " bytes, which is not a whole number of rows: a row has %" PRIu64 " "
            "%s elements, %" PRIu64 " bytes",
            file->path, bytes, layout->row_elems, kelp_element_name(layout->element), row_bytes);
    }
    file->array = (struct kelp_array){
        .element = layout->element,
        .rank = 2,
        .dims = {bytes / row_bytes, layout->row_elems},
        .row_elems = layout->row_elems,
        .row_bytes = row_bytes,
    };
    return keep_rows(file, reterr);
}

static kelp_status open_packed(struct kelp_array_file *file, array_parser *parse,
                               struct kelp_error *reterr)
{
    struct kelp_input_file *input = NULL;
    kelp_status status = kelp_input_file_open(file->path, &input, reterr);
    if (status == KELP_OK) {
        status = kelp_input_file_is_gzip(input) ? inflate_rows(file, input, reterr)
                                                : open_stored(file, parse, reterr);
    }
    kelp_input_file_close(input);
    return status;
}

static kelp_status open_any(const char *path, const struct array_source *source,
                            struct kelp_array_file **ret_file, struct kelp_error *reterr)
{
    kelp_status status = KELP_ERR_NO_MEMORY;
    struct kelp_array_file *file = calloc(1, sizeof(*file));
    if (!file) {
        return kelp_fail(reterr, status, "%s: out of memory", path);
    }
    file->fd = -1;
    file->path = strdup(path);
    if (!file->path) {
        (void)kelp_fail(reterr, status, "%s: out of memory", path);
    } else if (!source->parse) {
        status = open_rows(file, source->layout, reterr);
    } else if (source->may_be_gzip) {
        status = open_packed(file, source->parse, reterr);
    } else {
        status = open_stored(file, source->parse, reterr);
    }
    if (status != KELP_OK) {
        kelp_array_file_close(file);
        return status;
    }
    *ret_file = file;
    return KELP_OK;
}

kelp_status kelp_array_file_open_idx(const char *path, struct kelp_array_file **ret_file,
                                     struct kelp_error *reterr)
{
    const struct array_source source = {.parse = kelp_idx_parse, .may_be_gzip = true};
    return open_any(path, &source, ret_file, reterr);
}

kelp_status kelp_array_file_open_npy(const char *path, struct kelp_array_file **ret_file,
                                     struct kelp_error *reterr)
{
    return open_any(path, &(struct array_source){.parse = kelp_npy_parse}, ret_file, reterr);
}

kelp_status kelp_array_file_open_rows(const char *path, const struct kelp_array *layout,
                                      struct kelp_array_file **ret_file, struct kelp_error *reterr)
{
    assert(layout->row_elems > 0);
    return open_any(path, &(struct array_source){.layout = layout}, ret_file, reterr);
}

void kelp_array_file_close(struct kelp_array_file *file)
{
    if (!file) {
        return;
    }
    if (file->fd >= 0) {
        (void)close(file->fd); /* it was only read */
    }
    free(file->rows);
    free(file->path);
    free(file);
}
