#include "worker/data/arrays/array_format.h"

#include <assert.h>
#include <endian.h>
#include <inttypes.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t bytes;
} elements[] = {
    [KELP_ELEMENT_BOOL] = {"bool", 1},       [KELP_ELEMENT_UINT8] = {"uint8", 1},
    [KELP_ELEMENT_INT8] = {"int8", 1},       [KELP_ELEMENT_UINT16] = {"uint16", 2},
    [KELP_ELEMENT_INT16] = {"int16", 2},     [KELP_ELEMENT_UINT32] = {"uint32", 4},
    [KELP_ELEMENT_INT32] = {"int32", 4},     [KELP_ELEMENT_UINT64] = {"uint64", 8},
    [KELP_ELEMENT_INT64] = {"int64", 8},     [KELP_ELEMENT_FLOAT32] = {"float32", 4},
    [KELP_ELEMENT_FLOAT64] = {"float64", 8},
};

uint32_t kelp_element_bytes(enum kelp_element element)
{
    return elements[element].bytes;
}

const char *kelp_element_name(enum kelp_element element)
{
    return elements[element].name;
}

bool kelp_element_is_float(enum kelp_element element)
{
    return element == KELP_ELEMENT_FLOAT32 || element == KELP_ELEMENT_FLOAT64;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

kelp_status kelp_array_measure(struct kelp_array *array, const char *name, uint64_t file_bytes,
                               struct kelp_error *reterr)
{
    assert(array->rank > 0);
    uint64_t elems = 1, bytes = 0, end = 0;
    bool fits = true;
    for (uint32_t i = 1; i < array->rank && fits; i++) {
        fits = !__builtin_mul_overflow(elems, array->dims[i], &elems);
    }
    uint64_t size = kelp_element_bytes(array->element);
    fits = fits && !__builtin_mul_overflow(elems, size, &array->row_bytes) &&
           !__builtin_mul_overflow(array->row_bytes, array->dims[0], &bytes) &&
           !__builtin_add_overflow(bytes, array->data_at, &end);
    if (!fits || elems == 0 || array->dims[0] == 0) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: has %s", name,
                         fits ? "no numbers: a dimension is 0" : "dimensions that are too large");
    }
    array->row_elems = elems;
    if (end != file_bytes && file_bytes != KELP_ARRAY_SIZE_UNKNOWN) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "%s: %s: %" PRIu64 " rows of %" PRIu64 " %s elements need %" PRIu64
                         " bytes, but there are "
                         "%" PRIu64,
                         name, file_bytes < end ? "is cut off" : "is longer than its header says",
                         array->dims[0], elems, kelp_element_name(array->element), end, file_bytes);
    }
    return KELP_OK;
}

/* ---- IDX ------------------------------------------------------------------------------------- */

static bool idx_element(uint8_t code, enum kelp_element *ret_element)
{
    switch (code) {
    case 0x08:
        *ret_element = KELP_ELEMENT_UINT8;
        return true;
    case 0x09:
        *ret_element = KELP_ELEMENT_INT8;
        return true;
    case 0x0b:
        *ret_element = KELP_ELEMENT_INT16;
        return true;
    case 0x0c:
        *ret_element = KELP_ELEMENT_INT32;
        return true;
    case 0x0d:
        *ret_element = KELP_ELEMENT_FLOAT32;
        return true;
    case 0x0e:
        *ret_element = KELP_ELEMENT_FLOAT64;
        return true;
    default:
        return false;
    }
}

kelp_status kelp_idx_parse(const struct kelp_array_text *text, struct kelp_array *ret_array,
                           struct kelp_error *reterr)
{
    struct kelp_array array = {.big_endian = true};
    const uint8_t *bytes = text->bytes;
    if (text->count < 4 || bytes[0] != 0 || bytes[1] != 0 ||
        !idx_element(bytes[2], &array.element)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "%s: is not an IDX file: it must begin with two zero bytes, a type and "
                         "the number of dimensions",
                         text->name);
    }
    array.rank = bytes[3];
    array.data_at = 4 + 4 * (uint64_t)array.rank;
    if (array.rank == 0 || array.rank > KELP_ARRAY_RANK_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%s: has %u dimensions; 1 to %d are read",
                         text->name, array.rank, KELP_ARRAY_RANK_MAX);
    }
    if (text->count < array.data_at) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: is cut off in its header", text->name);
    }
    for (uint32_t i = 0; i < array.rank; i++) {
        uint32_t dim;
        memcpy(&dim, bytes + 4 + 4 * (size_t)i, sizeof(dim));
        array.dims[i] = be32toh(dim);
    }
    kelp_status status = kelp_array_measure(&array, text->name, text->file_bytes, reterr);
    if (status == KELP_OK) {
        *ret_array = array;
    }
    return status;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static uint16_t load16(const struct kelp_array *array, const uint8_t *bytes)
{
    uint16_t value;
    memcpy(&value, bytes, sizeof(value));
    return array->big_endian ? be16toh(value) : le16toh(value);
}

static uint32_t load32(const struct kelp_array *array, const uint8_t *bytes)
{
    uint32_t value;
    memcpy(&value, bytes, sizeof(value));
    return array->big_endian ? be32toh(value) : le32toh(value);
}

static uint64_t load64(const struct kelp_array *array, const uint8_t *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof(value));
    return array->big_endian ? be64toh(value) : le64toh(value);
}

static double float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

static double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

void kelp_array_doubles(const struct kelp_array *array, const uint8_t *bytes, size_t count,
                        double *ret_values)
{
#define KELP_EACH(size, value)                                                                     \
    for (size_t i = 0; i < count; i++) {                                                           \
        const uint8_t *at = bytes + i * (size);                                                    \
        ret_values[i] = (value);                                                                   \
    }                                                                                              \
    return
    switch (array->element) {
    case KELP_ELEMENT_BOOL:
        KELP_EACH(1, *at != 0 ? 1.0 : 0.0);
    case KELP_ELEMENT_UINT8:
        KELP_EACH(1, (double)*at);
    case KELP_ELEMENT_INT8:
        KELP_EACH(1, (double)(int8_t)*at);
    case KELP_ELEMENT_UINT16:
        KELP_EACH(2, (double)load16(array, at));
    case KELP_ELEMENT_INT16:
        KELP_EACH(2, (double)(int16_t)load16(array, at));
    case KELP_ELEMENT_UINT32:
        KELP_EACH(4, (double)load32(array, at));
    case KELP_ELEMENT_INT32:
        KELP_EACH(4, (double)(int32_t)load32(array, at));
    case KELP_ELEMENT_UINT64:
        KELP_EACH(8, (double)load64(array, at));
    case KELP_ELEMENT_INT64:
        KELP_EACH(8, (double)(int64_t)load64(array, at));
    case KELP_ELEMENT_FLOAT32:
        KELP_EACH(4, float_of(load32(array, at)));
    case KELP_ELEMENT_FLOAT64:
        KELP_EACH(8, double_of(load64(array, at)));
    }
#undef KELP_EACH
}
