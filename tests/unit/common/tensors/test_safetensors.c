#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/tensors/safetensors.h"
#include "tests/lib/suite.h"

static char folder[64];
static char path[128];
static struct kelp_error error;

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-test-safetensors-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", folder);
}

static void teardown(void)
{
    (void)unlink(path); /* not every test makes it */
    ck_assert_int_eq(rmdir(folder), 0);
}

/* A file in memory from a header; returns its bytes. */
static size_t build(unsigned char *bytes, const char *header, size_t data_bytes)
{
    uint64_t header_bytes = strlen(header);

    memcpy(bytes, &header_bytes, 8);
    memcpy(bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) {
        bytes[8 + header_bytes + i] = (unsigned char)i;
    }
    return 8 + header_bytes + data_bytes;
}

KELP_SUITE(.fork_each = true)
KELP_CASE("safetensors", .setup = setup, .teardown = teardown)

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Every float16 and bfloat16 as the float32 of the same value, bit by bit: known patterns, and all
 * others against their definition. */
KELP_TEST(test_half_floats)
{
    static const struct {
        uint16_t half;
        uint32_t bits;
    } halves[] = {{0x0000, 0x00000000}, {0x8000, 0x80000000}, {0x3c00, 0x3f800000},
                  {0xc000, 0xc0000000}, {0x3555, 0x3eaaa000}, {0x7bff, 0x477fe000},
                  {0x0400, 0x38800000}, {0x03ff, 0x387fc000}, {0x0001, 0x33800000},
                  {0x8001, 0xb3800000}, {0x0200, 0x38000000}, {0x7c00, 0x7f800000},
                  {0xfc00, 0xff800000}, {0x7e00, 0x7fc00000}, {0xfe01, 0xffc02000}},
      brains[] = {{0x0000, 0x00000000}, {0x8000, 0x80000000}, {0x3f80, 0x3f800000},
                  {0x0001, 0x00010000}, {0x7f7f, 0x7f7f0000}, {0x7f80, 0x7f800000},
                  {0xff80, 0xff800000}, {0x7fc0, 0x7fc00000}};
    static unsigned char bytes[4 * 65536 + 256];
    static float values[65536];
    struct kelp_safetensors *file;
    size_t count = build(bytes,
                         "{\"h\":{\"dtype\":\"F16\",\"shape\":[65536],"
                         "\"data_offsets\":[0,131072]},"
                         "\"b\":{\"dtype\":\"BF16\",\"shape\":[65536],"
                         "\"data_offsets\":[131072,262144]}}",
                         262144);
    for (uint32_t i = 0; i < 2 * 65536; i++) {
        bytes[count - 262144 + 2 * i] = (unsigned char)i;
        bytes[count - 262144 + 2 * i + 1] = (unsigned char)(i >> 8);
    }
    ck_assert_msg(kelp_safetensors_open_memory("m", bytes, count, &file, &error) == KELP_OK, "%s",
                  error.text);
    const struct kelp_safetensors_tensor *half = kelp_safetensors_find(file, "h");
    const struct kelp_safetensors_tensor *brain = kelp_safetensors_find(file, "b");
    ck_assert_int_eq(kelp_safetensors_floats(half, 0, 65536, values, NULL), KELP_OK);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(halves); i++) {
        const float expected = float_of(halves[i].bits);
        ck_assert_mem_eq(&values[halves[i].half], &expected, sizeof(expected));
    }
    for (uint32_t i = 0; i < 65536; i++) {
        int exponent = (int)(i >> 10 & 0x1f);
        double fraction = (double)(i & 0x3ff);
        double value = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
        if (exponent < 31) {
            ck_assert_double_eq((double)values[i], i >> 15 ? -value : value);
        } else {
            ck_assert(fraction > 0 ? isnan(values[i]) : isinf(values[i]) != 0);
        }
    }
    ck_assert_int_eq(kelp_safetensors_floats(brain, 0, 65536, values, NULL), KELP_OK);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(brains); i++) {
        const float expected = float_of(brains[i].bits);
        ck_assert_mem_eq(&values[brains[i].half], &expected, sizeof(expected));
    }
    ck_assert_int_eq(kelp_safetensors_floats(half, 65535, 2, values, NULL), KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_safetensors_floats(half, 65535, 1, values, NULL), KELP_OK);
    kelp_safetensors_close(file);
    count = build(bytes, "{\"h\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,5]}}", 5);
    ck_assert_int_eq(kelp_safetensors_open_memory("m", bytes, count, &file, &error),
                     KELP_ERR_FORMAT);
}

/* What is written is read back: order, names, shapes, types, values, metadata. */
KELP_TEST(test_round_trip)
{
    const float weights[6] = {1, 2, 3, 4, 5, -0.0f};
    const double scale = 1.0 / 3;
    const int64_t steps[2] = {-1, INT64_MAX};
    const struct kelp_safetensors_item items[] = {
        {.name = "z.weight",
         .dtype = KELP_DTYPE_F32,
         .rank = 2,
         .shape = (const uint64_t[]){2, 3},
         .data = weights},
        {.name = "a \"quoted\" \\ é", .dtype = KELP_DTYPE_F64, .rank = 0, .data = &scale},
        {.name = "empty", .rank = 1, .shape = (const uint64_t[]){0}, .data = NULL},
        {.name = "steps",
         .dtype = KELP_DTYPE_I64,
         .rank = 1,
         .shape = (const uint64_t[]){2},
         .data = steps},
    };
    const struct kelp_safetensors_pair metadata[] = {{"format", "pt"}, {"digest", "0\n1"}};
    struct kelp_safetensors *file;
    float values[6];

    ck_assert_msg(kelp_safetensors_write(path, items, 4, metadata, 2, &error) == KELP_OK, "%s",
                  error.text);
    ck_assert_msg(kelp_safetensors_open(path, &file, &error) == KELP_OK, "%s", error.text);
    ck_assert_uint_eq(kelp_safetensors_count(file), 4);
    for (size_t i = 0; i < 4; i++) {
        ck_assert_str_eq(kelp_safetensors_at(file, i)->name, items[i].name);
        ck_assert_int_eq(kelp_safetensors_at(file, i)->dtype, items[i].dtype);
        ck_assert_uint_eq(kelp_safetensors_at(file, i)->rank, items[i].rank);
    }
    ck_assert_mem_eq(kelp_safetensors_find(file, "z.weight")->data, weights, sizeof(weights));
    ck_assert_mem_eq(kelp_safetensors_find(file, "steps")->data, steps, sizeof(steps));
    ck_assert_uint_eq(kelp_safetensors_find(file, "empty")->elem_count, 0);
    ck_assert_ptr_null(kelp_safetensors_find(file, "weight"));
    ck_assert_str_eq(kelp_safetensors_metadata(file, "digest"), "0\n1");
    ck_assert_uint_eq(kelp_safetensors_metadata_count(file), 2);
    ck_assert_str_eq(kelp_safetensors_metadata_key(file, 0), "format");
    ck_assert_ptr_null(kelp_safetensors_metadata(file, "none"));
    ck_assert_int_eq(kelp_safetensors_floats(kelp_safetensors_at(file, 0), 4, 2, values, &error),
                     KELP_OK);
    ck_assert_float_eq(values[0], 5);
    ck_assert_int_eq(kelp_safetensors_floats(kelp_safetensors_at(file, 1), 0, 1, values, &error),
                     KELP_OK);
    ck_assert_float_eq(values[0], (float)scale);
    ck_assert_int_eq(kelp_safetensors_floats(kelp_safetensors_at(file, 0), 4, 3, values, &error),
                     KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_safetensors_floats(kelp_safetensors_at(file, 3), 0, 1, values, &error),
                     KELP_ERR_UNSUPPORTED);
    kelp_safetensors_close(file);
}

/* Floats that lie at an odd address are read all the same. */
KELP_TEST(test_unaligned)
{
    unsigned char bytes[256];
    struct kelp_safetensors *file;
    float value, expected;

    size_t count =
        build(bytes + 1, "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    ck_assert_int_eq(kelp_safetensors_open_memory("m", bytes + 1, count, &file, &error), KELP_OK);
    ck_assert_int_eq(kelp_safetensors_floats(kelp_safetensors_at(file, 0), 0, 1, &value, &error),
                     KELP_OK);
    memcpy(&expected, bytes + 1 + count - 4, 4);
    ck_assert_float_eq(value, expected);
    kelp_safetensors_close(file);
}

static const struct {
    const char *header;
    size_t data_bytes;
    kelp_status status;
    const char *expected;
} damaged[] = {
    {"{}", 1, KELP_ERR_FORMAT, "m: 1 bytes follow the last tensor"},
    {"[]", 0, KELP_ERR_FORMAT, "m: the header is not a JSON object"},
    {"{} x", 0, KELP_ERR_FORMAT, "m: header: something follows the JSON (byte 3)"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}", 4, KELP_ERR_FORMAT,
     "m: header: not JSON"},
    {"{\"x\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, KELP_ERR_UNSUPPORTED,
     "m: tensor x: dtype BOOL: supported are F32, F64, F16, BF16 and I64"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, KELP_ERR_FORMAT,
     "m: tensor x: data_offsets do not fit dtype and shape"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, KELP_ERR_FORMAT,
     "m: tensor x: data_offsets (is the file cut off?): not an integer from 0 to 3"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, KELP_ERR_FORMAT,
     "m: tensor x: data_offsets do not fit dtype and shape"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, KELP_ERR_FORMAT,
     "m: tensor x: shape: not an integer"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, KELP_ERR_FORMAT,
     "m: tensor x: shape: not an integer"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
     KELP_ERR_FORMAT, "m: tensor x: shape overflows"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
     KELP_ERR_UNSUPPORTED, "m: tensor x: rank is over 8"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, KELP_ERR_FORMAT,
     "m: tensor x: data_offsets (is the file cut off?): not an integer"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
     4, KELP_ERR_FORMAT, "m: data of tensor y overlaps or has a gap"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, KELP_ERR_FORMAT,
     "m: data of tensor x overlaps or has a gap"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
     8, KELP_ERR_FORMAT, "m: tensor x appears twice"},
    {"{\"__metadata__\":{\"a\":1}}", 0, KELP_ERR_FORMAT, "m: metadata a is not a string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, KELP_ERR_FORMAT,
     "m: __metadata__ is not one object"},
    {"{\"x\":5}", 0, KELP_ERR_FORMAT, "m: tensor x: dtype: not a string"},
};

/* Damage is refused, and named. */
KELP_LOOP_TEST(test_damaged, 0, KELP_ARRAY_COUNT(damaged))
{
    unsigned char bytes[512];
    struct kelp_safetensors *file;
    size_t count = build(bytes, damaged[_i].header, damaged[_i].data_bytes);

    ck_assert_int_eq(kelp_safetensors_open_memory("m", bytes, count, &file, &error),
                     damaged[_i].status);
    ck_assert_msg(strstr(error.text, damaged[_i].expected) == error.text, "%s", error.text);
}

/* Each cut of a good file is refused. */
KELP_TEST(test_truncated)
{
    unsigned char bytes[512];
    struct kelp_safetensors *file;
    size_t count =
        build(bytes, "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);

    for (size_t cut = 0; cut < count; cut++) {
        ck_assert_int_eq(kelp_safetensors_open_memory("m", bytes, cut, &file, &error),
                         KELP_ERR_FORMAT);
    }
    memset(bytes, 0xff, 8);
    ck_assert_int_eq(kelp_safetensors_open_memory("m", bytes, count, &file, &error),
                     KELP_ERR_LIMIT);
}

/* Files that are missing, empty, or none are named. */
KELP_TEST(test_open_errors)
{
    struct kelp_safetensors *file;

    ck_assert_int_eq(kelp_safetensors_open(path, &file, &error), KELP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, path));
    ck_assert_int_eq(kelp_safetensors_open(folder, &file, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "is a folder"));
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* without a writer: it must not be waited for */
    ck_assert_int_eq(kelp_safetensors_open(path, &file, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "not a regular file"));
    ck_assert_int_eq(unlink(path), 0);
    FILE *out = fopen(path, "we");
    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_int_eq(kelp_safetensors_open(path, &file, &error), KELP_ERR_FORMAT);
}

static size_t entries(void)
{
    DIR *directory = opendir(folder);
    size_t count = 0;

    ck_assert_ptr_nonnull(directory);
    while (readdir(directory)) {
        count++;
    }
    ck_assert_int_eq(closedir(directory), 0);
    return count - 2;
}

/* A write that fails leaves nothing behind; one that succeeds replaces the file whole. */
KELP_TEST(test_write)
{
    const float value = 1;
    struct kelp_safetensors_item item = {.name = "x", .rank = 0, .data = &value};
    char missing[192];
    struct stat info;

    (void)snprintf(missing, sizeof(missing), "%s/none/model.safetensors", folder);
    ck_assert_int_eq(kelp_safetensors_write(missing, &item, 1, NULL, 0, &error), KELP_ERR_IO);
    ck_assert_ptr_nonnull(strstr(error.text, "none/model.safetensors: No such file"));
    item.rank = 2;
    item.shape = (const uint64_t[]){UINT64_MAX, 8};
    ck_assert_int_eq(kelp_safetensors_write(path, &item, 1, NULL, 0, &error), KELP_ERR_LIMIT);
    ck_assert_uint_eq(entries(), 0);
    item.rank = 0;
    ck_assert_int_eq(kelp_safetensors_write(path, &item, 1, NULL, 0, &error), KELP_OK);
    ck_assert_int_eq(kelp_safetensors_write(path, &item, 1, NULL, 0, &error), KELP_OK);
    ck_assert_uint_eq(entries(), 1);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0644);
}

/* A file-size limit stands for a full disk: an error, and nothing is left behind. */
KELP_TEST(test_no_space)
{
    static float values[4096];
    const struct kelp_safetensors_item item = {
        .name = "x", .rank = 1, .shape = (const uint64_t[]){4096}, .data = values};
    const struct rlimit limit = {.rlim_cur = 8192, .rlim_max = RLIM_INFINITY};

    ck_assert_ptr_ne(signal(SIGXFSZ, SIG_IGN), SIG_ERR);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(kelp_safetensors_write(path, &item, 1, NULL, 0, &error), KELP_ERR_IO);
    ck_assert_uint_eq(entries(), 0);
}
