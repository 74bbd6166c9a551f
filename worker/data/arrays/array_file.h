/*
 * An array in a file, read row by row. Small files (KELP_ARRAY_RESIDENT_MAX) and compressed ones
 * are in memory; of others each read fetches what it needs, so that a file may be larger than
 * memory: what the system keeps of it in its cache is no memory of this process, all workers of a
 * host share it, and a file that is shortened meanwhile is an error instead of a signal, as it
 * would be with a mapping.
 *
 * Threads: any number may read at once.
 */
#ifndef KELP_WORKER_DATA_ARRAYS_ARRAY_FILE_H
#define KELP_WORKER_DATA_ARRAYS_ARRAY_FILE_H

#include "common/tensors/digest.h"
#include "worker/data/arrays/array_format.h"

struct kelp_array_file;

/*
 * Open path, an IDX file (may be compressed with gzip), or an NPY file. *ret_file is owned by the
 * caller. Errors: those of the format, KELP_ERR_NOT_FOUND, KELP_ERR_INVALID (not a file),
 * KELP_ERR_LIMIT (a compressed file that is too large), KELP_ERR_IO, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_array_file_open_idx(const char *path, struct kelp_array_file **ret_file,
                                     struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_array_file_open_npy(const char *path, struct kelp_array_file **ret_file,
                                     struct kelp_error *reterr) KELP_MUST_USE;
/* Rows without a header: layout gives the element and row_elems; the size of the file says how many
 * rows there are. Errors: KELP_ERR_FORMAT when that is no whole number of them, too. */
kelp_status kelp_array_file_open_rows(const char *path, const struct kelp_array *layout,
                                      struct kelp_array_file **ret_file,
                                      struct kelp_error *reterr) KELP_MUST_USE;
void kelp_array_file_close(struct kelp_array_file *file); /* NULL is ignored */

/* Borrowed until the file is closed. */
const char *kelp_array_file_path(const struct kelp_array_file *file);
const struct kelp_array *kelp_array_file_array(const struct kelp_array_file *file);
/* Bytes of memory that it holds. */
uint64_t kelp_array_file_resident_bytes(const struct kelp_array_file *file);

/*
 * What tells this file from another one, or from itself after a change, without reading it: where
 * it lies, its size and when it was written; the content of a compressed one. False when it was
 * written so recently that the time of the next change may be the same one.
 */
bool kelp_array_file_identify(const struct kelp_array_file *file, struct kelp_digest *digest);

/*
 * `count` bytes from byte `first` of row `row` on, within the rows. *ret_bytes points into the
 * file's memory, or to scratch, which has room for them. Errors: KELP_ERR_IO, KELP_ERR_CORRUPT (the
 * file has become shorter).
 */
kelp_status kelp_array_file_read(const struct kelp_array_file *file, uint64_t row, uint64_t first,
                                 size_t count, uint8_t *scratch,
                                 const uint8_t **ret_bytes) KELP_MUST_USE;

#endif
