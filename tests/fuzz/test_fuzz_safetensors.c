/*
 * Safetensors files, damaged: each input is refused, or all its tensors lie inside it, end to end.
 */
#include <stdlib.h>
#include <string.h>

#include "common/tensors/safetensors.h"
#include "tests/lib/fuzz.h"
#include "tests/lib/suite.h"

#define INPUTS 40000

/* The header's length, little-endian, goes in front of each text. */
static const struct kelp_fuzz_seed seeds[] = {
    KELP_FUZZ_TEXT("\x70\0\0\0\0\0\0\0"
                   "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                   "\"b\":{\"dtype\":\"F64\",\"shape\":[1,1],\"data_offsets\":[8,16]}}  "
                   "0123456789abcdef"),
    KELP_FUZZ_TEXT("\x58\0\0\0\0\0\0\0"
                   "{\"__metadata__\":{\"format\":\"pt\"},"
                   "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}    "
                   "01234567"),
    KELP_FUZZ_TEXT("\x08\0\0\0\0\0\0\0{}      "),
};
static const char *const words[] = {
    "\"dtype\":\"F32\"",
    "\"dtype\":\"I64\"",
    "\"shape\":[",
    "\"data_offsets\":[",
    "\"__metadata__\":",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "0",
    "4",
    "8",
    "16",
    "-1",
    "1e9",
    "0.5",
    "4294967296,4294967296",
    "9007199254740993",
    "[[[[[[[[[[[[[[[[",
    "\\u0000",
    "null",
    "\xff\xff",
};

static const char *check_file(const struct kelp_safetensors *file, const uint8_t *bytes,
                              size_t count)
{
    const uint8_t *expected = NULL;

    for (size_t i = 0; i < kelp_safetensors_count(file); i++) {
        const struct kelp_safetensors_tensor *tensor = kelp_safetensors_at(file, i);
        if (tensor->data < bytes || tensor->data + tensor->data_bytes > bytes + count) {
            return "a tensor lies outside the file";
        }
        if (expected && tensor->data != expected) {
            return "tensors do not lie end to end";
        }
        expected = tensor->data + tensor->data_bytes;
        if (tensor->data_bytes != tensor->elem_count * kelp_dtype_bytes(tensor->dtype)) {
            return "a tensor has another size than its shape";
        }
        float value;
        struct kelp_error error;
        kelp_status status = kelp_safetensors_floats(tensor, tensor->elem_count, 1, &value, &error);
        if (status != KELP_ERR_INVALID) {
            return "an element beyond the end is read";
        }
        if (kelp_safetensors_find(file, tensor->name) != tensor) {
            return "a tensor is not found by its name";
        }
    }
    return NULL;
}

static const char *target(const uint8_t *bytes, size_t count)
{
    struct kelp_error error = {.status = KELP_OK};
    struct kelp_safetensors *file;
    kelp_status status = kelp_safetensors_open_memory("m", bytes, count, &file, &error);

    if (status != KELP_OK) {
        return error.status == status && strncmp(error.text, "m: ", 3) == 0
                   ? NULL
                   : "the error does not name the file";
    }
    const char *wrong = check_file(file, bytes, count);
    kelp_safetensors_close(file);
    return wrong;
}

KELP_CASE("fuzz safetensors", .timeout_s = 120)

KELP_FUZZ_TEST(test_damaged, INPUTS, seeds, words, target)

/* The seeds are files, so that damage starts from what is right. */
KELP_LOOP_TEST(test_seeds, 0, KELP_ARRAY_COUNT(seeds))
{
    struct kelp_error error;
    struct kelp_safetensors *file;

    ck_assert_msg(kelp_safetensors_open_memory("m", seeds[_i].bytes, seeds[_i].count, &file,
                                               &error) == KELP_OK,
                  "%s", error.text);
    kelp_safetensors_close(file);
}
