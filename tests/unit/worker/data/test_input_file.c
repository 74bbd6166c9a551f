/* Files read from front to end: plain and gzip give the same bytes, and damage is told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"
#include "worker/data/text/input_file.h"

#define TEXT_BYTES 900000u /* several reads of the file, plain or compressed */

static struct kelp_test_folder folder;
static char path[160];
static uint8_t *text;
static uint8_t *packed; /* room for two members */
static size_t packed_count;

static size_t pack(const uint8_t *bytes, size_t count, uint8_t *ret, size_t room)
{
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)bytes, .avail_in = (uInt)count};
    stream.next_out = ret;
    stream.avail_out = (uInt)room;
    ck_assert_int_eq(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY),
                     Z_OK);
    ck_assert_int_eq(deflate(&stream, Z_FINISH), Z_STREAM_END);
    size_t used = room - stream.avail_out;
    ck_assert_int_eq(deflateEnd(&stream), Z_OK);
    return used;
}

static void setup(void)
{
    kelp_test_folder_init(&folder);
    (void)snprintf(path, sizeof(path), "%s/data", folder.path);
    text = malloc(TEXT_BYTES);
    packed = malloc(2 * TEXT_BYTES);
    ck_assert_ptr_nonnull(text);
    ck_assert_ptr_nonnull(packed);
    uint32_t state = 1;
    for (size_t i = 0; i < TEXT_BYTES; i++) {
        state = state * 1664525u + 1013904223u; /* little to compress */
        text[i] = (uint8_t)(state >> 25);
    }
    packed_count = pack(text, TEXT_BYTES, packed, 2 * TEXT_BYTES);
}

static void teardown(void)
{
    free(text);
    free(packed);
    kelp_test_folder_fini(&folder);
}

static void write_file(const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
    ck_assert_int_eq(fclose(file), 0);
}

/* All of the file, `piece` bytes at a time. */
static kelp_status read_all(size_t piece, uint8_t *bytes, size_t room, size_t *ret_count,
                            struct kelp_error *error)
{
    struct kelp_input_file *file = NULL;
    kelp_status status = kelp_input_file_open(path, &file, error);
    size_t done = 0, got = piece;
    while (status == KELP_OK && got == piece) {
        ck_assert_uint_le(done + piece, room);
        status = kelp_input_file_read(file, bytes + done, piece, &got, error);
        done += status == KELP_OK ? got : 0;
    }
    kelp_input_file_close(file);
    *ret_count = done;
    return status;
}

static void expect_text(size_t piece, size_t copies)
{
    size_t room = copies * TEXT_BYTES + piece, count = 0;
    uint8_t *bytes = malloc(room);
    struct kelp_error error = {0};
    ck_assert_ptr_nonnull(bytes);
    ck_assert_msg(read_all(piece, bytes, room, &count, &error) == KELP_OK, "%s", error.text);
    ck_assert_uint_eq(count, copies * TEXT_BYTES);
    for (size_t i = 0; i < copies; i++) {
        ck_assert_mem_eq(bytes + i * TEXT_BYTES, text, TEXT_BYTES);
    }
    free(bytes);
}

static const size_t pieces[] = {1, 1000, 65536, 1u << 21};

KELP_CASE("read", .setup = setup, .teardown = teardown)

/* The size of a read does not matter. */
KELP_LOOP_TEST(plain, 0, KELP_ARRAY_COUNT(pieces))
{
    write_file(text, TEXT_BYTES);
    expect_text(pieces[_i], 1);
}

KELP_LOOP_TEST(gzip, 0, KELP_ARRAY_COUNT(pieces))
{
    write_file(packed, packed_count);
    expect_text(pieces[_i], 1);
}

/* Two members are one text, and zeros behind the last are padding. */
KELP_LOOP_TEST(members, 0, KELP_ARRAY_COUNT(pieces))
{
    uint8_t *two = calloc(1, 2 * packed_count + 512);
    ck_assert_ptr_nonnull(two);
    memcpy(two, packed, packed_count);
    memcpy(two + packed_count, packed, packed_count);
    write_file(two, 2 * packed_count);
    expect_text(pieces[_i], 2);
    write_file(two, 2 * packed_count + 512);
    expect_text(pieces[_i], 2);
    free(two);
}

KELP_TEST(empty_and_short_files_are_plain)
{
    static const uint8_t bytes[] = {0x1f, 0x8a};
    for (size_t count = 0; count <= sizeof(bytes); count++) {
        uint8_t got[16];
        size_t got_count = 99;
        struct kelp_error error = {0};
        write_file(bytes, count);
        ck_assert_int_eq(read_all(8, got, sizeof(got), &got_count, &error), KELP_OK);
        ck_assert_uint_eq(got_count, count);
        ck_assert_mem_eq(got, bytes, count);
    }
}

/* A gzip file that is cut off anywhere, or has a wrong bit in its data, is an error. */
KELP_TEST(damage)
{
    uint8_t small[200], got[65536];
    size_t refused = 0, count = 0, small_count = pack(text, 40, small, sizeof(small));
    for (size_t length = 2; length < small_count; length++) {
        struct kelp_error error = {0};
        write_file(small, length);
        ck_assert_int_eq(read_all(64, got, sizeof(got), &count, &error), KELP_ERR_FORMAT);
        ck_assert_ptr_nonnull(strstr(error.text, "is cut off"));
        ck_assert_ptr_eq(strstr(error.text, path), error.text);
    }
    for (size_t bit = 10 * 8; bit < small_count * 8; bit++) { /* the header has free fields */
        struct kelp_error error = {0};
        small[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        write_file(small, small_count);
        if (read_all(64, got, sizeof(got), &count, &error) == KELP_OK) {
            ck_assert_uint_eq(count, 40); /* a bit that fills up the last byte of the data */
            ck_assert_mem_eq(got, text, 40);
        } else {
            ck_assert_ptr_nonnull(strstr(error.text, "gzip data"));
            refused++;
        }
        small[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    ck_assert_uint_ge(refused, (small_count - 10) * 8 - 7);
    small[small_count] = 'x';
    struct kelp_error error = {0};
    write_file(small, small_count + 1);
    ck_assert_int_eq(read_all(64, got, sizeof(got), &count, &error), KELP_ERR_FORMAT);
}

KELP_TEST(what_is_no_file)
{
    struct kelp_input_file *file = NULL;
    struct kelp_error error = {0};
    ck_assert_int_eq(kelp_input_file_open(folder.path, &file, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "is a folder"));
    ck_assert_int_eq(kelp_input_file_open("/dev/null", &file, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "not a regular file"));
    ck_assert_int_eq(kelp_input_file_open(path, &file, &error), KELP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    ck_assert_ptr_null(file);
}
