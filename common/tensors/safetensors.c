#include "common/tensors/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/base/limits.h"
#include "common/base/text.h"

#define HEADER_LENGTH_BYTES 8

struct kelp_safetensors {
    char *path;
    const unsigned char *bytes;
    size_t byte_count;
    void *mapping; /* ours to unmap: the same bytes; NULL when they are borrowed */
    cJSON *json;   /* the header; names and metadata point into it */
    struct kelp_safetensors_tensor *tensors;
    size_t tensor_count;
    const cJSON **metadata;
    size_t metadata_count;
};

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [KELP_DTYPE_F32] = {"F32", 4}, [KELP_DTYPE_F64] = {"F64", 8},   [KELP_DTYPE_I64] = {"I64", 8},
    [KELP_DTYPE_F16] = {"F16", 2}, [KELP_DTYPE_BF16] = {"BF16", 2},
};

const char *kelp_dtype_name(enum kelp_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t kelp_dtype_bytes(enum kelp_dtype dtype)
{
    return dtypes[dtype].bytes;
}

static kelp_status parse_dtype(const cJSON *item, enum kelp_dtype *ret_dtype,
                               struct kelp_error *reterr)
{
    char name[16];
    kelp_status status = kelp_json_string(item, "dtype", name, sizeof(name), reterr);

    if (status != KELP_OK) {
        return status;
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(dtypes); i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            *ret_dtype = (enum kelp_dtype)i;
            return KELP_OK;
        }
    }
    return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                     "dtype %s: supported are F32, F64, F16, BF16 and I64", name);
}

static kelp_status parse_shape(const cJSON *item, struct kelp_safetensors_tensor *tensor,
                               struct kelp_error *reterr)
{
    const cJSON *shape, *element;
    kelp_status status = kelp_json_array(item, "shape", SIZE_MAX, &shape, reterr);

    if (status != KELP_OK) {
        return status;
    }
    if (cJSON_GetArraySize(shape) > KELP_SAFETENSORS_RANK_MAX) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "rank is over %d",
                         KELP_SAFETENSORS_RANK_MAX);
    }
    tensor->elem_count = 1;
    cJSON_ArrayForEach(element, shape)
    {
        uint64_t *dimension = &tensor->shape[tensor->rank++];
        status = kelp_json_element_u64(element, KELP_JSON_INTEGER_MAX, dimension, reterr);
        if (status != KELP_OK) {
            kelp_error_prefix(reterr, "shape");
            return status;
        }
        if (__builtin_mul_overflow(tensor->elem_count, *dimension, &tensor->elem_count)) {
            return kelp_fail(reterr, KELP_ERR_FORMAT, "shape overflows");
        }
    }
    return KELP_OK;
}

static kelp_status parse_offsets(const cJSON *item, const unsigned char *data, uint64_t data_bytes,
                                 struct kelp_safetensors_tensor *tensor, struct kelp_error *reterr)
{
    const cJSON *offsets;
    uint64_t begin = 0, end = 0, bytes = 0;
    kelp_status status = kelp_json_array(item, "data_offsets", 2, &offsets, reterr);

    if (status != KELP_OK) {
        return status;
    }
    status = kelp_json_element_u64(cJSON_GetArrayItem(offsets, 0), data_bytes, &begin, reterr);
    if (status == KELP_OK) {
        status = kelp_json_element_u64(cJSON_GetArrayItem(offsets, 1), data_bytes, &end, reterr);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "data_offsets (is the file cut off?)");
        return status;
    }
    if (begin > end ||
        __builtin_mul_overflow(tensor->elem_count, kelp_dtype_bytes(tensor->dtype), &bytes) ||
        end - begin != bytes) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "data_offsets do not fit dtype and shape");
    }
    tensor->data = data + begin;
    tensor->data_bytes = bytes;
    return KELP_OK;
}

static kelp_status parse_tensor(struct kelp_safetensors *file, const cJSON *item,
                                uint64_t data_offset, struct kelp_error *reterr)
{
    struct kelp_safetensors_tensor tensor = {.name = item->string};
    kelp_status status = parse_dtype(item, &tensor.dtype, reterr);

    if (status == KELP_OK) {
        status = parse_shape(item, &tensor, reterr);
    }
    if (status == KELP_OK) {
        status = parse_offsets(item, file->bytes + data_offset, file->byte_count - data_offset,
                               &tensor, reterr);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "tensor %.127s", item->string);
        return status;
    }
    file->tensors[file->tensor_count++] = tensor;
    return KELP_OK;
}

static kelp_status parse_metadata(struct kelp_safetensors *file, const cJSON *object,
                                  struct kelp_error *reterr)
{
    const cJSON *entry;
    int count = cJSON_GetArraySize(object);

    if (!cJSON_IsObject(object) || file->metadata) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "__metadata__ is not one object");
    }
    if (count > KELP_SAFETENSORS_METADATA_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "more than %d metadata entries",
                         KELP_SAFETENSORS_METADATA_MAX);
    }
    file->metadata = calloc((size_t)count + 1, sizeof(cJSON *));
    if (!file->metadata) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    cJSON_ArrayForEach(entry, object)
    {
        if (!cJSON_IsString(entry)) {
            return kelp_fail(reterr, KELP_ERR_FORMAT, "metadata %.127s is not a string",
                             entry->string);
        }
        file->metadata[file->metadata_count++] = entry;
    }
    return KELP_OK;
}

static int compare_data(const void *a, const void *b)
{
    const struct kelp_safetensors_tensor *left = a;
    const struct kelp_safetensors_tensor *right = b;

    if (left->data != right->data) {
        return left->data < right->data ? -1 : 1;
    }
    if (left->data_bytes != right->data_bytes) {
        return left->data_bytes < right->data_bytes ? -1 : 1; /* empty ones share an offset */
    }
    return strcmp(left->name, right->name);
}

static int compare_tensor_names(const void *a, const void *b)
{
    const struct kelp_safetensors_tensor *left = a;
    const struct kelp_safetensors_tensor *right = b;

    return strcmp(left->name, right->name);
}

/* Check that names differ and data ranges are adjacent: nothing is hidden between tensors, and
 * nothing is shared. */
static kelp_status check_tensors(struct kelp_safetensors *file, uint64_t data_offset,
                                 struct kelp_error *reterr)
{
    const unsigned char *expected = file->bytes + data_offset;

    qsort(file->tensors, file->tensor_count, sizeof(*file->tensors), compare_tensor_names);
    for (size_t i = 1; i < file->tensor_count; i++) {
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0) {
            return kelp_fail(reterr, KELP_ERR_FORMAT, "tensor %.127s appears twice",
                             file->tensors[i].name);
        }
    }
    qsort(file->tensors, file->tensor_count, sizeof(*file->tensors), compare_data);
    for (size_t i = 0; i < file->tensor_count; i++) {
        if (file->tensors[i].data != expected) {
            return kelp_fail(reterr, KELP_ERR_FORMAT, "data of tensor %.127s overlaps or has a gap",
                             file->tensors[i].name);
        }
        expected += file->tensors[i].data_bytes;
    }
    if (expected != file->bytes + file->byte_count) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%zu bytes follow the last tensor",
                         (size_t)(file->bytes + file->byte_count - expected));
    }
    return KELP_OK;
}

static kelp_status parse_entries(struct kelp_safetensors *file, uint64_t data_offset,
                                 struct kelp_error *reterr)
{
    const cJSON *item;
    size_t count;

    if (!cJSON_IsObject(file->json)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "the header is not a JSON object");
    }
    count = (size_t)cJSON_GetArraySize(file->json);
    if (count > KELP_SAFETENSORS_TENSORS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "more than %d tensors",
                         KELP_SAFETENSORS_TENSORS_MAX);
    }
    file->tensors = calloc(count + 1, sizeof(*file->tensors));
    if (!file->tensors) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    cJSON_ArrayForEach(item, file->json)
    {
        kelp_status status = strcmp(item->string, "__metadata__") == 0
                                 ? parse_metadata(file, item, reterr)
                                 : parse_tensor(file, item, data_offset, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return check_tensors(file, data_offset, reterr);
}

/* What the file really is, and what to do; NULL if that is not known. */
static const char *other_format(const struct kelp_safetensors *file)
{
    static const struct {
        const char *begins, *text;
    } formats[] = {
        {"PK\003\004",
         "it is a zip archive, as torch.save() and numpy.savez() write; "
         "safetensors.torch.save_file(model.state_dict(), FILE) writes the right one"},
        {"\200\002", "it is a pickle of Python; safetensors.torch.save_file(model.state_dict(), "
                     "FILE) writes the right one"},
        {"\223NUMPY", "it is an array of NumPy (data.kind npy)"},
        {"\211HDF", "it is an HDF5 file; safetensors.numpy.save_file(tensors, FILE) writes the "
                    "right one"},
    };

    for (size_t i = 0; i < KELP_ARRAY_COUNT(formats); i++) {
        if (memcmp(file->bytes, formats[i].begins, strlen(formats[i].begins)) == 0) {
            return formats[i].text;
        }
    }
    return NULL;
}

static kelp_status parse_file(struct kelp_safetensors *file, struct kelp_error *reterr)
{
    uint64_t header_bytes;

    if (file->byte_count < HEADER_LENGTH_BYTES) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "is cut off, or not a safetensors file: it has %zu bytes",
                         file->byte_count);
    }
    memcpy(&header_bytes, file->bytes, sizeof(header_bytes));
    if (header_bytes > KELP_SAFETENSORS_HEADER_MAX) {
        const char *other = other_format(file);
        return other ? kelp_fail(reterr, KELP_ERR_LIMIT, "is not a safetensors file: %s", other)
                     : kelp_fail(reterr, KELP_ERR_LIMIT,
                                 "is not a safetensors file: its first 8 bytes, the length of a "
                                 "header, are over %u",
                                 KELP_SAFETENSORS_HEADER_MAX);
    }
    if (header_bytes > file->byte_count - HEADER_LENGTH_BYTES) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "is cut off: its header alone has %" PRIu64 " bytes", header_bytes);
    }
    kelp_status status = kelp_json_parse((const char *)file->bytes + HEADER_LENGTH_BYTES,
                                         (size_t)header_bytes, &file->json, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "header");
        return status;
    }
    return parse_entries(file, HEADER_LENGTH_BYTES + header_bytes, reterr);
}

static kelp_status map_file(struct kelp_safetensors *file, struct kelp_error *reterr)
{
    struct stat info;
    /* Non-blocking, since opening a fifo without a writer would wait. */
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    kelp_status status = KELP_OK;

    if (fd < 0) {
        return kelp_fail(reterr, errno == ENOENT ? KELP_ERR_NOT_FOUND : KELP_ERR_IO, "%s",
                         strerror(errno));
    }
    if (fstat(fd, &info) != 0) {
        status = kelp_fail(reterr, KELP_ERR_IO, "%s", strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = kelp_fail(reterr, KELP_ERR_INVALID, "is %s; give a file",
                           S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
    } else if (info.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) {
            status = kelp_fail(reterr, KELP_ERR_IO, "%s", strerror(errno));
        } else {
            file->bytes = bytes;
            file->byte_count = (size_t)info.st_size;
            file->mapping = bytes;
        }
    }
    (void)close(fd); /* the mapping stays */
    return status;
}

static kelp_status open_any(const char *path, const void *bytes, size_t byte_count,
                            struct kelp_safetensors **ret_file, struct kelp_error *reterr)
{
    struct kelp_safetensors *file = calloc(1, sizeof(*file));
    kelp_status status = KELP_OK;

    if (!file || !(file->path = strdup(path))) {
        free(file);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", path);
    }
    if (bytes) {
        file->bytes = bytes;
        file->byte_count = byte_count;
    } else {
        status = map_file(file, reterr);
    }
    if (status == KELP_OK) {
        status = parse_file(file, reterr);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s", path);
        kelp_safetensors_close(file);
        return status;
    }
    *ret_file = file;
    return KELP_OK;
}

kelp_status kelp_safetensors_open(const char *path, struct kelp_safetensors **ret_file,
                                  struct kelp_error *reterr)
{
    return open_any(path, NULL, 0, ret_file, reterr);
}

kelp_status kelp_safetensors_open_memory(const char *name, const void *bytes, size_t byte_count,
                                         struct kelp_safetensors **ret_file,
                                         struct kelp_error *reterr)
{
    return open_any(name, bytes ? bytes : "", bytes ? byte_count : 0, ret_file, reterr);
}

void kelp_safetensors_close(struct kelp_safetensors *file)
{
    if (!file) {
        return;
    }
    cJSON_Delete(file->json);
    free(file->tensors);
    free(file->metadata);
    if (file->mapping) {
        (void)munmap(file->mapping, file->byte_count); /* ours: cannot fail */
    }
    free(file->path);
    free(file);
}

const char *kelp_safetensors_path(const struct kelp_safetensors *file)
{
    return file->path;
}

size_t kelp_safetensors_count(const struct kelp_safetensors *file)
{
    return file->tensor_count;
}

const struct kelp_safetensors_tensor *kelp_safetensors_at(const struct kelp_safetensors *file,
                                                          size_t index)
{
    return &file->tensors[index];
}

const struct kelp_safetensors_tensor *kelp_safetensors_find(const struct kelp_safetensors *file,
                                                            const char *name)
{
    for (size_t i = 0; i < file->tensor_count; i++) {
        if (strcmp(file->tensors[i].name, name) == 0) {
            return &file->tensors[i];
        }
    }
    return NULL;
}

void kelp_safetensors_names(const struct kelp_safetensors *file, char *text, size_t text_bytes)
{
    text[0] = '\0';
    for (size_t i = 0; i < kelp_safetensors_count(file); i++) {
        kelp_text_list_add(text, text_bytes, kelp_safetensors_at(file, i)->name);
    }
}

size_t kelp_safetensors_metadata_count(const struct kelp_safetensors *file)
{
    return file->metadata_count;
}

const char *kelp_safetensors_metadata_key(const struct kelp_safetensors *file, size_t index)
{
    return file->metadata[index]->string;
}

const char *kelp_safetensors_metadata_value(const struct kelp_safetensors *file, size_t index)
{
    return file->metadata[index]->valuestring;
}

const char *kelp_safetensors_metadata(const struct kelp_safetensors *file, const char *key)
{
    for (size_t i = 0; i < file->metadata_count; i++) {
        if (strcmp(file->metadata[i]->string, key) == 0) {
            return file->metadata[i]->valuestring;
        }
    }
    return NULL;
}

/* The upper half of a float32. */
static uint32_t bfloat_bits(uint16_t bits)
{
    return (uint32_t)bits << 16;
}

/* IEEE 754 binary16: 1 bit sign, 5 bits exponent with bias 15, 10 bits fraction. */
static uint32_t half_bits(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = bits >> 10 & 0x1fu;
    uint32_t fraction = bits & 0x3ffu;
    if (exponent == 0x1f) {
        return sign | 0x7f800000u | fraction << 13;
    }
    if (exponent > 0) {
        return sign | (exponent + 127 - 15) << 23 | fraction << 13;
    }
    if (fraction == 0) {
        return sign;
    }
    uint32_t shift = 0; /* a subnormal one is a normal float32: its leading 1 goes to bit 10 */
    while ((fraction & 0x400u) == 0) {
        fraction <<= 1;
        shift++;
    }
    return sign | (127 - 14 - shift) << 23 | (fraction & 0x3ffu) << 13;
}

/* In little-endian files the lower byte comes first. */
static void widen(const struct kelp_safetensors_tensor *tensor, uint64_t first, uint64_t count,
                  float *values)
{
    for (uint64_t i = 0; i < count; i++) {
        const unsigned char *at = tensor->data + 2 * (first + i);
        uint16_t bits = (uint16_t)(at[0] | at[1] << 8);
        uint32_t wide = tensor->dtype == KELP_DTYPE_F16 ? half_bits(bits) : bfloat_bits(bits);
        memcpy(&values[i], &wide, sizeof(wide));
    }
}

kelp_status kelp_safetensors_floats(const struct kelp_safetensors_tensor *tensor, uint64_t first,
                                    uint64_t count, float *values, struct kelp_error *reterr)
{
    if (first > tensor->elem_count || count > tensor->elem_count - first) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "tensor %.127s has %" PRIu64 " elements, not %" PRIu64, tensor->name,
                         tensor->elem_count, first + count);
    }
    if (tensor->dtype == KELP_DTYPE_I64) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "tensor %.127s: dtype %s is not a float",
                         tensor->name, kelp_dtype_name(tensor->dtype));
    }
    if (count == 0) {
        return KELP_OK;
    }
    if (tensor->dtype == KELP_DTYPE_F32) {
        memcpy(values, tensor->data + first * sizeof(float), count * sizeof(float));
        return KELP_OK;
    }
    if (tensor->dtype != KELP_DTYPE_F64) {
        widen(tensor, first, count, values);
        return KELP_OK;
    }
    for (uint64_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, tensor->data + (first + i) * sizeof(value), sizeof(value));
        values[i] = (float)value;
    }
    return KELP_OK;
}
