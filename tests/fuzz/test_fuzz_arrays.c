/*
 * Arrays in files, damaged: IDX and NPY headers, and gzip data. Each input is refused in one line
 * that names the file, or what it gives lies inside it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/lib/fuzz.h"
#include "tests/lib/suite.h"
#include "worker/data/arrays/array_file.h"
#include "worker/data/text/input_file.h"

#define ROUNDS       20
#define ROUND_INPUTS 2000

static bool named(const struct kelp_error *error, kelp_status status, const char *name)
{
    return error->status == status && strncmp(error->text, name, strlen(name)) == 0 &&
           strchr(error->text, '\n') == NULL;
}

/* ---- headers ------------------------------------------------------------------------------- */

static const char *check_array(const struct kelp_array *array, const uint8_t *bytes, size_t count)
{
    uint64_t elems = 1;
    if (array->rank == 0 || array->rank > KELP_ARRAY_RANK_MAX) {
        return "the rank is out of range";
    }
    for (uint32_t i = 0; i < array->rank; i++) {
        elems *= array->dims[i];
    }
    if (array->row_bytes != array->row_elems * kelp_element_bytes(array->element) ||
        elems != array->row_elems * array->dims[0]) {
        return "sizes do not fit the shape";
    }
    if (array->data_at + array->dims[0] * array->row_bytes != count) {
        return "the rows do not end with the file";
    }
    double value = 0.0;
    for (uint64_t i = 0; i < elems; i++) { /* the sanitizers watch */
        kelp_array_doubles(array, bytes + array->data_at + i * kelp_element_bytes(array->element),
                           1, &value);
    }
    return NULL;
}

static const char *header_target(const uint8_t *bytes, size_t count, bool idx)
{
    struct kelp_error error = {.status = KELP_OK};
    struct kelp_array array;
    const struct kelp_array_text text = {
        .name = "m", .bytes = bytes, .count = count, .file_bytes = count};
    kelp_status status =
        idx ? kelp_idx_parse(&text, &array, &error) : kelp_npy_parse(&text, &array, &error);
    if (status != KELP_OK) {
        return named(&error, status, "m: ") ? NULL : "the error does not name the file";
    }
    return check_array(&array, bytes, count);
}

static const char *idx_target(const uint8_t *bytes, size_t count)
{
    return header_target(bytes, count, true);
}

static const char *npy_target(const uint8_t *bytes, size_t count)
{
    return header_target(bytes, count, false);
}

static const struct kelp_fuzz_seed idx_seeds[] = {
    KELP_FUZZ_TEXT("\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x02"
                   "abcd"),
    KELP_FUZZ_TEXT("\0\0\x0d\x01\0\0\0\x02"
                   "abcdefgh"),
    KELP_FUZZ_TEXT("\0\0\x0b\x02\0\0\0\x01\0\0\0\x01"
                   "ab"),
};
static const char *const idx_words[] = {"\x01\x01\x01\x01", "\xff\xff\xff\xff", "\x08", "\x0e",
                                        "\x7f"};

#define NPY_SEED(text, data) KELP_FUZZ_TEXT("\x93NUMPY\x01\0\x40\0" text "\n" data)

static const struct kelp_fuzz_seed npy_seeds[] = {
    NPY_SEED("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }    ", "abcdefgh"),
    NPY_SEED("{'descr': '|u1', 'fortran_order': True, 'shape': (3,), }       ", "abc"),
    NPY_SEED("{\"shape\":(1,1,2),\"descr\":\">i8\",\"fortran_order\":False}          ",
             "abcdefghijklmnop"),
};
static const char *const npy_words[] = {"'descr': ",
                                        "'shape': (",
                                        "'fortran_order': ",
                                        "True",
                                        "False",
                                        "'<f8'",
                                        "'>i2'",
                                        "[('a', ",
                                        "(4294967296,",
                                        "{",
                                        "}",
                                        "(",
                                        ")",
                                        ",",
                                        ":",
                                        "'",
                                        "\"",
                                        "0",
                                        "18446744073",
                                        "1,1,1,1,1,1,1,1,"};

static const struct kelp_fuzz header_fuzz[] = {
    {.name = "idx",
     .seeds = idx_seeds,
     .seed_count = KELP_ARRAY_COUNT(idx_seeds),
     .words = idx_words,
     .word_count = KELP_ARRAY_COUNT(idx_words),
     .target = idx_target},
    {.name = "npy",
     .seeds = npy_seeds,
     .seed_count = KELP_ARRAY_COUNT(npy_seeds),
     .words = npy_words,
     .word_count = KELP_ARRAY_COUNT(npy_words),
     .target = npy_target},
};

KELP_CASE("headers", .timeout_s = 120)

KELP_LOOP_TEST(test_headers, 0, ROUNDS)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(header_fuzz); i++) {
        (void)kelp_fuzz_run(&header_fuzz[i], (uint64_t)_i * ROUND_INPUTS, ROUND_INPUTS);
    }
}

/* The seeds are files, so that damage starts from what is right. */
KELP_TEST(test_seeds)
{
    struct kelp_error error;
    struct kelp_array array;
    for (size_t i = 0; i < 2 * KELP_ARRAY_COUNT(idx_seeds); i++) {
        bool idx = i < KELP_ARRAY_COUNT(idx_seeds);
        const struct kelp_fuzz_seed *seed = &(idx ? idx_seeds : npy_seeds)[i % 3];
        const struct kelp_array_text text = {
            .name = "m", .bytes = seed->bytes, .count = seed->count, .file_bytes = seed->count};
        kelp_status status =
            idx ? kelp_idx_parse(&text, &array, &error) : kelp_npy_parse(&text, &array, &error);
        ck_assert_msg(status == KELP_OK, "%s", error.text);
    }
}

/* ---- files --------------------------------------------------------------------------------- */

static int memory = -1; /* a file in memory, and its path */
static char path[64];

static void open_memory(void)
{
    memory = memfd_create("fuzz", MFD_CLOEXEC);
    ck_assert_int_ge(memory, 0);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", memory);
}

static void close_memory(void)
{
    ck_assert_int_eq(close(memory), 0);
}

static void fill_memory(const uint8_t *bytes, size_t count)
{
    ck_assert_int_eq(ftruncate(memory, 0), 0);
    ck_assert_int_eq(pwrite(memory, bytes, count, 0), (ssize_t)count);
}

/* Reads all; what comes out of a small input is bounded here. */
static const char *stream_target(const uint8_t *bytes, size_t count)
{
    struct kelp_error error = {.status = KELP_OK};
    struct kelp_input_file *file = NULL;
    uint8_t text[4096];
    size_t got = sizeof(text);
    fill_memory(bytes, count);
    kelp_status status = kelp_input_file_open(path, &file, &error);
    for (int reads = 0; status == KELP_OK && got == sizeof(text); reads++) {
        if (reads > 4096) {
            kelp_input_file_close(file);
            return "it does not end";
        }
        status = kelp_input_file_read(file, text, sizeof(text), &got, &error);
    }
    kelp_input_file_close(file);
    return status == KELP_OK || named(&error, status, path) ? NULL
                                                            : "the error does not name the file";
}

/* A whole IDX file, compressed or not: opened, and each row read. */
static const char *file_target(const uint8_t *bytes, size_t count)
{
    struct kelp_error error = {.status = KELP_OK};
    struct kelp_array_file *file = NULL;
    fill_memory(bytes, count);
    kelp_status status = kelp_array_file_open_idx(path, &file, &error);
    if (status != KELP_OK) {
        return named(&error, status, path) ? NULL : "the error does not name the file";
    }
    const struct kelp_array *array = kelp_array_file_array(file);
    const char *wrong = NULL;
    for (uint64_t row = 0; row < array->dims[0] && wrong == NULL; row++) {
        const uint8_t *row_bytes = NULL;
        uint8_t scratch[1];
        double value = 0.0;
        if (kelp_array_file_read(file, row, 0, (size_t)array->row_bytes, scratch, &row_bytes) !=
            KELP_OK) {
            wrong = "a row cannot be read";
        } else {
            kelp_array_doubles(array,
                               row_bytes + array->row_bytes - kelp_element_bytes(array->element), 1,
                               &value);
        }
    }
    kelp_array_file_close(file);
    return wrong;
}

static size_t pack(const void *bytes, size_t count, uint8_t *ret, size_t room)
{
    z_stream stream = {.next_in = (Bytef *)(uintptr_t)bytes, .avail_in = (uInt)count};
    stream.next_out = ret;
    stream.avail_out = (uInt)room;
    ck_assert_int_eq(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY),
                     Z_OK);
    ck_assert_int_eq(deflate(&stream, Z_FINISH), Z_STREAM_END);
    ck_assert_int_eq(deflateEnd(&stream), Z_OK);
    return room - stream.avail_out;
}

KELP_CASE("files", .timeout_s = 120, .setup = open_memory, .teardown = close_memory)

KELP_LOOP_TEST(test_files, 0, ROUNDS / 4)
{
    static const char *const words[] = {"\x1f\x8b\x08", "\x01", "\xff\xff", "\x03\x03"};
    uint8_t packed[4][512];
    struct kelp_fuzz_seed seeds[4];
    struct kelp_fuzz fuzz = {.seeds = seeds,
                             .seed_count = KELP_ARRAY_COUNT(seeds),
                             .words = words,
                             .word_count = KELP_ARRAY_COUNT(words)};
    for (size_t i = 0; i < 3; i++) {
        seeds[i].bytes = packed[i];
        seeds[i].count = pack(idx_seeds[i].bytes, idx_seeds[i].count, packed[i], sizeof(packed[i]));
    }
    seeds[3] = idx_seeds[0];
    fuzz.name = "files";
    fuzz.target = file_target;
    (void)kelp_fuzz_run(&fuzz, (uint64_t)_i * ROUND_INPUTS, ROUND_INPUTS);
    /* Two members, and one that grows. */
    memcpy(packed[3], packed[0], seeds[0].count);
    memcpy(packed[3] + seeds[0].count, packed[1], seeds[1].count);
    seeds[3] = (struct kelp_fuzz_seed){packed[3], seeds[0].count + seeds[1].count};
    static uint8_t zeros[200000];
    seeds[2].count = pack(zeros, sizeof(zeros), packed[2], sizeof(packed[2]));
    fuzz.name = "streams";
    fuzz.target = stream_target;
    (void)kelp_fuzz_run(&fuzz, (uint64_t)_i * ROUND_INPUTS, ROUND_INPUTS);
}
