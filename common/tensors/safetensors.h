/*
 * Safetensors files: a bounded, checked reader over mapped memory, and a writer that never leaves
 * half a file under the final name.
 *
 * Format: 8 bytes of header length (little-endian), a JSON object (name to dtype, shape and
 * data_offsets, and "__metadata__" with strings), then the data, without holes or overlaps.
 */
#ifndef KELP_COMMON_TENSORS_SAFETENSORS_H
#define KELP_COMMON_TENSORS_SAFETENSORS_H

#include <stdint.h>

#include "common/base/status.h"

#define KELP_SAFETENSORS_RANK_MAX 8

enum kelp_dtype { KELP_DTYPE_F32, KELP_DTYPE_F64, KELP_DTYPE_I64, KELP_DTYPE_F16, KELP_DTYPE_BF16 };

/* One tensor of an opened file; borrowed until the file is closed. */
struct kelp_safetensors_tensor {
    const char *name;
    enum kelp_dtype dtype;
    uint32_t rank;
    uint64_t shape[KELP_SAFETENSORS_RANK_MAX]; /* a dimension may be zero */
    uint64_t elem_count;
    const unsigned char *data; /* any alignment: copy out, do not cast */
    uint64_t data_bytes;
};

struct kelp_safetensors;

/*
 * Map path and check the whole header. Errors: KELP_ERR_NOT_FOUND, KELP_ERR_IO, KELP_ERR_INVALID
 * (no regular file), KELP_ERR_FORMAT (damaged or truncated), KELP_ERR_LIMIT (header over 64 MiB,
 * more than 16384 tensors), KELP_ERR_UNSUPPORTED (another dtype, rank over 8); the text names the
 * file.
 */
kelp_status kelp_safetensors_open(const char *path, struct kelp_safetensors **ret_file,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* The same from memory, which is borrowed until the close; name stands for the file in errors. */
kelp_status kelp_safetensors_open_memory(const char *name, const void *bytes, size_t byte_count,
                                         struct kelp_safetensors **ret_file,
                                         struct kelp_error *reterr) KELP_MUST_USE;
/* NULL does nothing. */
void kelp_safetensors_close(struct kelp_safetensors *file);

/* The name it was opened by. */
const char *kelp_safetensors_path(const struct kelp_safetensors *file);

/* Tensors in the order of their data in the file. */
size_t kelp_safetensors_count(const struct kelp_safetensors *file);
const struct kelp_safetensors_tensor *kelp_safetensors_at(const struct kelp_safetensors *file,
                                                          size_t index);
/* NULL when there is none of that name. */
const struct kelp_safetensors_tensor *kelp_safetensors_find(const struct kelp_safetensors *file,
                                                            const char *name);

/* "a, b, c, …": the names of as many tensors as text has room for. */
void kelp_safetensors_names(const struct kelp_safetensors *file, char *text, size_t text_bytes);

/* Metadata, in the order of the header. */
size_t kelp_safetensors_metadata_count(const struct kelp_safetensors *file);
const char *kelp_safetensors_metadata_key(const struct kelp_safetensors *file, size_t index);
const char *kelp_safetensors_metadata_value(const struct kelp_safetensors *file, size_t index);
/* The value of key, or NULL. */
const char *kelp_safetensors_metadata(const struct kelp_safetensors *file, const char *key);

/*
 * Copy elements [first, first + count) of a tensor of floats to values, as float32: F32, F16 and
 * BF16 exactly (a NaN keeps its sign and leading bits), F64 rounded. Errors: KELP_ERR_UNSUPPORTED
 * (I64), KELP_ERR_INVALID (beyond its end).
 */
kelp_status kelp_safetensors_floats(const struct kelp_safetensors_tensor *tensor, uint64_t first,
                                    uint64_t count, float *values,
                                    struct kelp_error *reterr) KELP_MUST_USE;

const char *kelp_dtype_name(enum kelp_dtype dtype);
size_t kelp_dtype_bytes(enum kelp_dtype dtype);

/* ---- writer ---- */

/* What the writer writes: data is borrowed until the call returns. */
struct kelp_safetensors_item {
    const char *name;
    enum kelp_dtype dtype;
    uint32_t rank;
    const uint64_t *shape;
    const void *data;
};
struct kelp_safetensors_pair {
    const char *key;
    const char *value;
};

/*
 * Write items in the order given to a temporary file beside path, sync it, and rename it to path;
 * on an error path is as it was. Errors: KELP_ERR_IO, KELP_ERR_NO_SPACE, KELP_ERR_NO_MEMORY,
 * KELP_ERR_LIMIT (too many elements or tensors, rank over 8).
 */
kelp_status kelp_safetensors_write(const char *path, const struct kelp_safetensors_item *items,
                                   size_t item_count, const struct kelp_safetensors_pair *metadata,
                                   size_t metadata_count, struct kelp_error *reterr) KELP_MUST_USE;

#endif
