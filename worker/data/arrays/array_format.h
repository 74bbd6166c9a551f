/*
 * Arrays of numbers as files keep them: IDX (MNIST's form), NPY (NumPy's), or plain rows. What
 * follows a header is dims[0] rows of equal size, end to end. Pure: bytes in, descriptions and
 * numbers out.
 */
#ifndef KELP_WORKER_DATA_ARRAYS_ARRAY_FORMAT_H
#define KELP_WORKER_DATA_ARRAYS_ARRAY_FORMAT_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "worker/data/sample.h"

/* The first dimension counts rows; the others are a sample's. */
#define KELP_ARRAY_RANK_MAX (KELP_SAMPLE_RANK_MAX + 1)

enum kelp_element {
    KELP_ELEMENT_BOOL,
    KELP_ELEMENT_UINT8,
    KELP_ELEMENT_INT8,
    KELP_ELEMENT_UINT16,
    KELP_ELEMENT_INT16,
    KELP_ELEMENT_UINT32,
    KELP_ELEMENT_INT32,
    KELP_ELEMENT_UINT64,
    KELP_ELEMENT_INT64,
    KELP_ELEMENT_FLOAT32,
    KELP_ELEMENT_FLOAT64,
};
#define KELP_ELEMENT_BYTES_MAX 8u

/* Sizes do not overflow, and data_at + dims[0] * row_bytes is the size of the file. */
struct kelp_array {
    enum kelp_element element;
    bool big_endian;
    uint32_t rank; /* at least 1 */
    uint64_t dims[KELP_ARRAY_RANK_MAX];
    uint64_t data_at;   /* bytes before the first row */
    uint64_t row_elems; /* at least 1 */
    uint64_t row_bytes;
};

uint32_t kelp_element_bytes(enum kelp_element element);
const char *kelp_element_name(enum kelp_element element); /* as NumPy calls it */
bool kelp_element_is_float(enum kelp_element element);

/* A file of which `bytes` are the first `count`, at most, and file_bytes all there are; name stands
 * for it in errors. */
struct kelp_array_text {
    const char *name;
    const uint8_t *bytes;
    size_t count;
    uint64_t file_bytes;
};
#define KELP_ARRAY_SIZE_UNKNOWN UINT64_MAX /* file_bytes of a file that is compressed */
/* Bytes that hold any header that is taken. */
#define KELP_ARRAY_HEADER_MAX 8192u

/*
 * Read a header. *ret_array is set on success only.
 * Errors: KELP_ERR_FORMAT (not such a file, cut off, or longer than its header says),
 *         KELP_ERR_LIMIT (rank), KELP_ERR_INVALID (NPY of objects, of columns first, ...).
 */
kelp_status kelp_idx_parse(const struct kelp_array_text *text, struct kelp_array *ret_array,
                           struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_npy_parse(const struct kelp_array_text *text, struct kelp_array *ret_array,
                           struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Set sizes from element, rank, dims and data_at, and check them against the file.
 * Errors: KELP_ERR_FORMAT.
 */
kelp_status kelp_array_measure(struct kelp_array *array, const char *name, uint64_t file_bytes,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* count elements at bytes, of any alignment, as doubles: exact but for 64-bit integers over 2^53.
 */
void kelp_array_doubles(const struct kelp_array *array, const uint8_t *bytes, size_t count,
                        double *ret_values);

#endif
