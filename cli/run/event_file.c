#include "cli/run/event_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/run/run_dir.h"
#include "common/base/files.h"
#include "common/base/json.h"

#define VERSION    "brain.Event:2"
#define READ_BYTES 65536 /* a line is shorter */

/* ---- records ------------------------------------------------------------------------------- */

uint32_t kelp_crc32c(const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < count; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
        }
    }
    return ~crc;
}

/* As TFRecords have it. */
static uint32_t masked_crc32c(const void *bytes, size_t count)
{
    uint32_t crc = kelp_crc32c(bytes, count);

    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

struct writer {
    unsigned char *bytes;
    size_t used;
};

static void put_bytes(struct writer *writer, const void *bytes, size_t count)
{
    assert(writer->used + count <= KELP_EVENT_BYTES_MAX);
    memcpy(writer->bytes + writer->used, bytes, count);
    writer->used += count;
}

static void put_little(struct writer *writer, uint64_t value, unsigned count)
{
    unsigned char bytes[8];

    for (unsigned i = 0; i < count; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
    put_bytes(writer, bytes, count);
}

static void put_varint(struct writer *writer, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) {
        put_little(writer, (value & 0x7f) | 0x80, 1);
    }
    put_little(writer, value, 1);
}

static size_t varint_bytes(uint64_t value)
{
    size_t count = 1;

    for (; value >= 0x80; value >>= 7) {
        count++;
    }
    return count;
}

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void put_key(struct writer *writer, unsigned field, enum wire wire)
{
    put_varint(writer, field << 3 | (unsigned)wire);
}

static void put_text(struct writer *writer, unsigned field, const char *text)
{
    put_key(writer, field, WIRE_BYTES);
    put_varint(writer, strlen(text));
    put_bytes(writer, text, strlen(text));
}

/* Bytes of a Value without its own head: the tag with head and length (below 128), the float. */
static size_t value_bytes(const struct kelp_event_value *value)
{
    return 2 + strlen(value->tag) + 5;
}

static bool fits(const struct kelp_event_value *value)
{
    return strlen(value->tag) <= KELP_EVENT_TAG_MAX;
}

static void put_summary(struct writer *writer, const struct kelp_event_value *values, size_t count)
{
    size_t bytes = 0;

    for (size_t i = 0; i < count; i++) {
        size_t own = value_bytes(&values[i]);
        bytes += fits(&values[i]) ? 1 + varint_bytes(own) + own : 0;
    }
    put_key(writer, 5, WIRE_BYTES);
    put_varint(writer, bytes);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = 0;
        if (!fits(&values[i])) {
            continue;
        }
        memcpy(&bits, &values[i].value, sizeof(bits));
        put_key(writer, 1, WIRE_BYTES);
        put_varint(writer, value_bytes(&values[i]));
        put_text(writer, 1, values[i].tag);
        put_key(writer, 2, WIRE_32);
        put_little(writer, bits, 4);
    }
}

size_t kelp_event_encode(double wall_time, uint64_t step, const struct kelp_event_value *values,
                         size_t count, unsigned char ret_record[KELP_EVENT_BYTES_MAX])
{
    struct writer writer = {.bytes = ret_record, .used = 12}; /* the head comes last */
    struct writer head = {.bytes = ret_record};
    uint64_t bits = 0;

    assert(count <= KELP_EVENT_VALUES_MAX);
    memcpy(&bits, &wall_time, sizeof(bits));
    put_key(&writer, 1, WIRE_64);
    put_little(&writer, bits, 8);
    put_key(&writer, 2, WIRE_VARINT);
    put_varint(&writer, step);
    if (count == 0) {
        put_text(&writer, 3, VERSION);
    } else {
        put_summary(&writer, values, count);
    }
    size_t length = writer.used - 12;
    put_little(&head, length, 8);
    put_little(&head, masked_crc32c(ret_record, 8), 4);
    put_little(&writer, masked_crc32c(ret_record + 12, length), 4);
    return writer.used;
}

/* ---- the file ------------------------------------------------------------------------------ */

static double wall_time(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail with this clock */
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static kelp_status append(const struct kelp_event_file *file, uint64_t step,
                          const struct kelp_event_value *values, size_t count,
                          struct kelp_error *reterr)
{
    unsigned char record[KELP_EVENT_BYTES_MAX];
    size_t bytes = kelp_event_encode(wall_time(), step, values, count, record);

    if (write(file->fd, record, bytes) != (ssize_t)bytes) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot write the event file: %s", strerror(errno));
    }
    return KELP_OK;
}

static uint64_t size_of(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && info.st_size > 0 ? (uint64_t)info.st_size : 0;
}

kelp_status kelp_event_file_open(const char *run_path, struct kelp_event_file *ret_file,
                                 struct kelp_error *reterr)
{
    struct kelp_event_file file = {.fd = -1};
    char path[KELP_RUN_PATH_MAX + 96];
    char name[64];

    (void)snprintf(name, sizeof(name), "events.out.tfevents.%lld.%ld", (long long)time(NULL),
                   (long)getpid());
    kelp_status status = kelp_run_dir_path(run_path, name, path, sizeof(path), reterr);
    if (status == KELP_OK) {
        status = kelp_run_dir_path(run_path, "metrics.jsonl", file.log, sizeof(file.log), reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    file.offset = size_of(file.log);
    file.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file.fd < 0) {
        return kelp_files_error(errno, "open", path, reterr);
    }
    status = append(&file, 0, NULL, 0, reterr);
    if (status != KELP_OK) {
        kelp_event_file_close(&file);
        return status;
    }
    *ret_file = file;
    return KELP_OK;
}

static bool is_place(const char *name)
{
    return strcmp(name, "version") == 0 || strcmp(name, "step") == 0;
}

static kelp_status add_line(const struct kelp_event_file *file, const char *line, size_t bytes,
                            struct kelp_error *reterr)
{
    struct kelp_event_value values[KELP_EVENT_VALUES_MAX];
    size_t count = 0;
    uint64_t step = 0;
    cJSON *json = NULL;
    kelp_status status = KELP_OK;

    if (kelp_json_parse(line, bytes, &json, NULL) == KELP_OK &&
        kelp_json_u64(json, "step", KELP_JSON_INTEGER_MAX, &step, NULL) == KELP_OK) {
        for (const cJSON *item = json->child; item && count < KELP_EVENT_VALUES_MAX;
             item = item->next) {
            if (cJSON_IsNumber(item) && !is_place(item->string)) {
                values[count++] = (struct kelp_event_value){.tag = item->string,
                                                            .value = (float)item->valuedouble};
            }
        }
        status = count > 0 ? append(file, step, values, count, reterr) : KELP_OK;
    }
    cJSON_Delete(json);
    return status;
}

/* The lines in text; *ret_taken is how many bytes they have. */
static kelp_status add_lines(const struct kelp_event_file *file, const char *text, size_t bytes,
                             size_t *ret_taken, struct kelp_error *reterr)
{
    const char *at = text;
    kelp_status status = KELP_OK;

    for (const char *end;
         status == KELP_OK && (end = memchr(at, '\n', (size_t)(text + bytes - at))) != NULL;
         at = end + 1) {
        status = add_line(file, at, (size_t)(end - at), reterr);
    }
    *ret_taken = (size_t)(at - text);
    return status;
}

kelp_status kelp_event_file_follow(struct kelp_event_file *file, struct kelp_error *reterr)
{
    char text[READ_BYTES];
    uint64_t size = size_of(file->log);
    size_t taken = 1;
    kelp_status status = KELP_OK;

    if (size <= file->offset) { /* nothing new; or lines were taken back, and come again */
        file->offset = size;
        return KELP_OK;
    }
    int fd = open(file->log, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && status == KELP_OK && taken > 0) {
        ssize_t got = pread(fd, text, sizeof(text), (off_t)file->offset);
        taken = 0;
        if (got > 0) {
            status = add_lines(file, text, (size_t)got, &taken, reterr);
            file->offset += taken;
        }
    }
    if (fd >= 0) {
        (void)close(fd); /* only read from */
    }
    return status;
}

void kelp_event_file_close(struct kelp_event_file *file)
{
    if (file->fd >= 0) {
        (void)close(file->fd);
        file->fd = -1;
    }
}
