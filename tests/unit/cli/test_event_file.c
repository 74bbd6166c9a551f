/* Event files for TensorBoard, read back by a reader of TFRecords with a CRC of its own. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/run/event_file.h"
#include "common/base/files.h"
#include "tests/lib/suite.h"

static char folder[64];
static struct kelp_error error;

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-event-file-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void teardown(void)
{
    ck_assert_int_eq(kelp_files_remove(folder, NULL), KELP_OK);
}

/* ---- the reader ---------------------------------------------------------------------------- */

/* By a table, from the highest bit down: not as the writer does it. */
static uint32_t reflected(uint32_t value, int bits)
{
    uint32_t result = 0;

    for (int i = 0; i < bits; i++) {
        result |= (value >> i & 1) << (bits - 1 - i);
    }
    return result;
}

static uint32_t table_crc(const unsigned char *bytes, size_t count)
{
    uint32_t table[256];
    uint32_t crc = UINT32_MAX;

    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i << 24;
        for (int bit = 0; bit < 8; bit++) {
            table[i] = table[i] << 1 ^ (table[i] >> 31 ? UINT32_C(0x1edc6f41) : 0);
        }
    }
    for (size_t i = 0; i < count; i++) {
        crc = crc << 8 ^ table[crc >> 24 ^ reflected(bytes[i], 8)];
    }
    return reflected(~crc, 32);
}

static uint64_t little(const unsigned char *bytes, int count)
{
    uint64_t value = 0;

    for (int i = count - 1; i >= 0; i--) {
        value = value << 8 | bytes[i];
    }
    return value;
}

static void check_crc(const unsigned char *bytes, size_t count, const unsigned char *stored)
{
    uint32_t masked = (uint32_t)little(stored, 4) - UINT32_C(0xa282ead8);

    ck_assert_uint_eq(masked >> 17 | masked << 15, table_crc(bytes, count));
}

static uint64_t varint(const unsigned char **at)
{
    uint64_t value = 0;
    int shift = 0;

    do {
        value |= (uint64_t)(**at & 0x7f) << shift;
        shift += 7;
    } while (*(*at)++ & 0x80);
    return value;
}

/* "step=4 train/loss=1.5", "version=brain.Event:2" behind what text has. */
static void read_value(const unsigned char *at, const unsigned char *end, char *text, size_t room)
{
    char tag[64] = "";
    float value = (float)NAN;

    while (at < end) {
        uint64_t key = varint(&at);
        if (key == (1 << 3 | 2)) {
            uint64_t bytes = varint(&at);
            (void)snprintf(tag, sizeof(tag), "%.*s", (int)bytes, (const char *)at);
            at += bytes;
        } else {
            ck_assert_uint_eq(key, 2 << 3 | 5);
            uint32_t bits = (uint32_t)little(at, 4);
            memcpy(&value, &bits, sizeof(value));
            at += 4;
        }
    }
    size_t used = strlen(text);
    (void)snprintf(text + used, room - used, " %s=%g", tag, (double)value);
}

static void read_event(const unsigned char *at, const unsigned char *end, char *text, size_t room)
{
    size_t used = strlen(text);

    while (at < end) {
        uint64_t key = varint(&at);
        if (key == (1 << 3 | 1)) {
            uint64_t bits = little(at, 8);
            double wall = 0;
            memcpy(&wall, &bits, sizeof(wall));
            ck_assert_double_gt(wall, 1e9);
            at += 8;
        } else if (key == (2 << 3 | 0)) {
            (void)snprintf(text + used, room - used, "step=%u", (unsigned)varint(&at));
        } else if (key == (3 << 3 | 2)) {
            uint64_t bytes = varint(&at);
            used = strlen(text);
            (void)snprintf(text + used, room - used, " version=%.*s", (int)bytes, (const char *)at);
            at += bytes;
        } else {
            ck_assert_uint_eq(key, 5 << 3 | 2);
            uint64_t bytes = varint(&at);
            for (const unsigned char *stop = at + bytes; at < stop;) {
                ck_assert_uint_eq(varint(&at), 1 << 3 | 2);
                uint64_t own = varint(&at);
                read_value(at, at + own, text, room);
                at += own;
            }
        }
    }
    ck_assert_ptr_eq(at, end);
}

/* All records, one a line; owned. */
static char *read_records(const unsigned char *bytes, size_t count)
{
    enum { ROOM = 65536 };
    char *text = calloc(1, ROOM);

    for (size_t at = 0; at < count;) {
        ck_assert_uint_ge(count - at, 16);
        uint64_t length = little(bytes + at, 8);
        check_crc(bytes + at, 8, bytes + at + 8);
        ck_assert_uint_ge(count - at - 16, length);
        check_crc(bytes + at + 12, length, bytes + at + 12 + length);
        read_event(bytes + at + 12, bytes + at + 12 + length, text, ROOM);
        (void)strncat(text, "\n", ROOM - strlen(text) - 1);
        at += 16 + length;
    }
    return text;
}

/* ---- tests --------------------------------------------------------------------------------- */

KELP_CASE("event_file", .setup = setup, .teardown = teardown)

/* The value that RFC 3720 and its kin give for the CRC; both ways of computing it agree. */
KELP_TEST(crc)
{
    static const unsigned char zeros[32];

    ck_assert_uint_eq(kelp_crc32c("123456789", 9), 0xe3069283);
    ck_assert_uint_eq(kelp_crc32c(zeros, sizeof(zeros)), 0x8a9136aa);
    ck_assert_uint_eq(table_crc((const unsigned char *)"123456789", 9), 0xe3069283);
}

/* The longest tags fit; one that is longer is left out, the others stay. */
KELP_TEST(largest_record)
{
    static unsigned char record[KELP_EVENT_BYTES_MAX];
    struct kelp_event_value values[KELP_EVENT_VALUES_MAX];
    char tag[KELP_EVENT_TAG_MAX + 1];
    char longer[KELP_EVENT_TAG_MAX + 2];

    memset(tag, 't', sizeof(tag) - 1);
    tag[sizeof(tag) - 1] = '\0';
    memset(longer, 'l', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    for (size_t i = 0; i < KELP_EVENT_VALUES_MAX; i++) {
        values[i] = (struct kelp_event_value){.tag = i == 3 ? longer : tag, .value = (float)i};
    }
    size_t bytes = kelp_event_encode(2e9, UINT64_C(1) << 40, values, KELP_EVENT_VALUES_MAX, record);
    char *text = read_records(record, bytes);
    ck_assert_ptr_nonnull(strstr(text, "t=63"));
    ck_assert_ptr_null(strstr(text, "l=3"));
    free(text);
}

static void add_lines(const char *text)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    FILE *file = fopen(path, "ae");
    ck_assert_ptr_nonnull(file);
    (void)fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

/* The one event file of the folder; owned. */
static char *events(void)
{
    char path[400] = "";
    char *bytes = NULL;
    size_t count = 0;
    DIR *stream = opendir(folder);

    ck_assert_ptr_nonnull(stream);
    for (struct dirent *entry = readdir(stream); entry; entry = readdir(stream)) {
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            (void)snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        }
    }
    (void)closedir(stream);
    ck_assert_int_eq(kelp_files_read(path, 1 << 20, &bytes, &count, NULL), KELP_OK);
    char *text = read_records((const unsigned char *)bytes, count);
    free(bytes);
    return text;
}

/* Each line is an event once it is complete; what was there before is left out, and so are null and
 * lines that say nothing. */
KELP_TEST(follows_metrics)
{
    struct kelp_event_file file;

    add_lines("{\"version\":1,\"step\":2,\"epoch\":1,\"train/loss\":9}\n");
    ck_assert_int_eq(kelp_event_file_open(folder, &file, &error), KELP_OK);
    ck_assert_int_eq(kelp_event_file_follow(&file, &error), KELP_OK);
    add_lines("{\"version\":3,\"step\":4,\"epoch\":1,\"train/loss\":1.5,\"lr\":0.5}\nnonsense\n"
              "{\"version\":4,\"step\":4,\"val/loss\":2,\"val/auc\":null}\n{\"version\":9,\"st");
    ck_assert_int_eq(kelp_event_file_follow(&file, &error), KELP_OK);
    ck_assert_int_eq(kelp_event_file_follow(&file, &error), KELP_OK);
    add_lines("ep\":300,\"val/loss\":0.25}\n");
    ck_assert_int_eq(kelp_event_file_follow(&file, &error), KELP_OK);
    kelp_event_file_close(&file);
    char *text = events();
    ck_assert_str_eq(text, "step=0 version=brain.Event:2\n"
                           "step=4 epoch=1 train/loss=1.5 lr=0.5\n"
                           "step=4 val/loss=2\n"
                           "step=300 val/loss=0.25\n");
    free(text);
    ck_assert_int_ne(kelp_event_file_open("/nowhere", &file, &error), KELP_OK);
}
