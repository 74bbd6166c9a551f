#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/base/json.h"
#include "common/base/limits.h"
#include "common/base/text.h"
#include "common/tensors/safetensors.h"

#define HEADER_ALIGN 8 /* so that float64 data is aligned for readers that map the file */

static kelp_status io_error(const char *path, struct kelp_error *reterr)
{
    return kelp_fail(reterr, errno == ENOSPC || errno == EDQUOT ? KELP_ERR_NO_SPACE : KELP_ERR_IO,
                     "%.255s: %s", path, strerror(errno));
}

static kelp_status item_bytes(const struct kelp_safetensors_item *item, uint64_t *ret_bytes,
                              struct kelp_error *reterr)
{
    uint64_t bytes = kelp_dtype_bytes(item->dtype);

    if (item->rank > KELP_SAFETENSORS_RANK_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "tensor %.127s: rank is over %d", item->name,
                         KELP_SAFETENSORS_RANK_MAX);
    }
    for (uint32_t i = 0; i < item->rank; i++) {
        if (__builtin_mul_overflow(bytes, item->shape[i], &bytes) ||
            bytes > KELP_JSON_INTEGER_MAX) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "tensor %.127s: too many elements",
                             item->name);
        }
    }
    *ret_bytes = bytes;
    return KELP_OK;
}

static void print_item(FILE *out, const struct kelp_safetensors_item *item, uint64_t begin,
                       uint64_t end)
{
    kelp_json_print_string(out, item->name);
    (void)fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", kelp_dtype_name(item->dtype));
    for (uint32_t i = 0; i < item->rank; i++) {
        (void)fprintf(out, "%s%" PRIu64, i > 0 ? "," : "", item->shape[i]);
    }
    (void)fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, end);
}

static void print_metadata(FILE *out, const struct kelp_safetensors_pair *metadata, size_t count)
{
    (void)fputs("\"__metadata__\":{", out);
    for (size_t i = 0; i < count; i++) {
        if (i > 0) {
            (void)fputc(',', out);
        }
        kelp_json_print_string(out, metadata[i].key);
        (void)fputc(':', out);
        kelp_json_print_string(out, metadata[i].value);
    }
    (void)fputc('}', out);
}

static kelp_status print_items(FILE *out, const struct kelp_safetensors_item *items,
                               size_t item_count, bool comma, struct kelp_error *reterr)
{
    uint64_t offset = 0;

    for (size_t i = 0; i < item_count; i++) {
        uint64_t bytes = 0;
        kelp_status status = item_bytes(&items[i], &bytes, reterr);
        if (status != KELP_OK) {
            return status;
        }
        if (bytes > KELP_JSON_INTEGER_MAX - offset) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "more than 2^53 bytes of tensors");
        }
        if (comma || i > 0) {
            (void)fputc(',', out);
        }
        print_item(out, &items[i], offset, offset + bytes);
        offset += bytes;
    }
    return KELP_OK;
}

/* The content of a file. */
struct contents {
    const struct kelp_safetensors_item *items;
    size_t item_count;
    const struct kelp_safetensors_pair *metadata;
    size_t metadata_count;
    char *header; /* JSON; owned */
    size_t header_bytes;
};

static kelp_status print_header(struct contents *contents, struct kelp_error *reterr)
{
    struct kelp_text text;
    kelp_status status = kelp_text_open(&text, reterr);

    if (status != KELP_OK) {
        return status;
    }
    (void)fputc('{', text.out);
    if (contents->metadata_count > 0) {
        print_metadata(text.out, contents->metadata, contents->metadata_count);
    }
    status = print_items(text.out, contents->items, contents->item_count,
                         contents->metadata_count > 0, reterr);
    if (status != KELP_OK) {
        kelp_text_discard(&text);
        return status;
    }
    (void)fputc('}', text.out);
    return kelp_text_close(&text, &contents->header, &contents->header_bytes, reterr);
}

static bool write_contents(int fd, const struct contents *contents)
{
    static const char blanks[HEADER_ALIGN] = "        ";
    size_t padding = (HEADER_ALIGN - contents->header_bytes % HEADER_ALIGN) % HEADER_ALIGN;
    uint64_t length = contents->header_bytes + padding;

    if (!kelp_files_write_all(fd, &length, sizeof(length)) ||
        !kelp_files_write_all(fd, contents->header, contents->header_bytes) ||
        !kelp_files_write_all(fd, blanks, padding)) {
        return false;
    }
    for (size_t i = 0; i < contents->item_count; i++) {
        const struct kelp_safetensors_item *item = &contents->items[i];
        uint64_t bytes = 0;
        if (item_bytes(item, &bytes, NULL) != KELP_OK ||
            !kelp_files_write_all(fd, item->data, (size_t)bytes)) {
            return false;
        }
    }
    return true;
}

/* A renamed entry is durable only after its folder is synced. */
static bool sync_folder_of(const char *path)
{
    char *copy = strdup(path);
    int fd = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    bool done = fd >= 0 && fsync(fd) == 0;
    int saved_errno = errno;

    free(copy);
    if (fd >= 0) {
        (void)close(fd); /* it was only read */
    }
    errno = saved_errno;
    return done;
}

static kelp_status write_file(const char *path, char *temporary, const struct contents *contents,
                              struct kelp_error *reterr)
{
    int fd = mkostemp(temporary, O_CLOEXEC);

    if (fd < 0) {
        return io_error(path, reterr);
    }
    /* mkostemp() makes the file private, but a model should be as readable as other files. */
    bool done = fchmod(fd, 0644) == 0 && write_contents(fd, contents) && fsync(fd) == 0;
    int saved_errno = errno;
    if (close(fd) != 0 && done) {
        done = false;
        saved_errno = errno;
    }
    errno = saved_errno;
    if (!done || rename(temporary, path) != 0) {
        kelp_status status = io_error(path, reterr);
        (void)unlink(temporary); /* the first error counts */
        return status;
    }
    return sync_folder_of(path) ? KELP_OK : io_error(path, reterr);
}

kelp_status kelp_safetensors_write(const char *path, const struct kelp_safetensors_item *items,
                                   size_t item_count, const struct kelp_safetensors_pair *metadata,
                                   size_t metadata_count, struct kelp_error *reterr)
{
    struct contents contents = {.items = items,
                                .item_count = item_count,
                                .metadata = metadata,
                                .metadata_count = metadata_count};
    char *temporary = NULL;

    if (item_count > KELP_SAFETENSORS_TENSORS_MAX ||
        metadata_count > KELP_SAFETENSORS_METADATA_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%.255s: over %d tensors or %d metadata entries",
                         path, KELP_SAFETENSORS_TENSORS_MAX, KELP_SAFETENSORS_METADATA_MAX);
    }
    kelp_status status = print_header(&contents, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%.255s", path);
        return status;
    }
    if (contents.header_bytes > KELP_SAFETENSORS_HEADER_MAX - HEADER_ALIGN) {
        status = kelp_fail(reterr, KELP_ERR_LIMIT, "%.255s: the header has %zu bytes, over %u",
                           path, contents.header_bytes, KELP_SAFETENSORS_HEADER_MAX - HEADER_ALIGN);
        goto err_free_header;
    }
    size_t temporary_bytes = strlen(path) + sizeof(".XXXXXX");
    temporary = malloc(temporary_bytes);
    if (!temporary) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%.255s: out of memory", path);
        goto err_free_header;
    }
    (void)snprintf(temporary, temporary_bytes, "%s.XXXXXX", path);
    status = write_file(path, temporary, &contents, reterr);
    free(temporary);
err_free_header:
    free(contents.header);
    return status;
}
