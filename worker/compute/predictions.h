/*
 * The model's output for the samples of one lane of an entry, as a file: what run.mode predict
 * writes. The folder is shared by all hosts of the job. Whoever computes a lane writes the same
 * bytes under the same name, so that a lane that is computed twice is there once; a file appears
 * whole or not at all.
 *
 * Layout, little-endian: "KELPPRED", layout number (u32), lane (u32), version, first, count, values
 * (u64 each), XXH3-64 of what follows (u64), then float32[count][values].
 *
 * Threads: one per file at a time.
 */
#ifndef KELP_WORKER_COMPUTE_PREDICTIONS_H
#define KELP_WORKER_COMPUTE_PREDICTIONS_H

#include <stdint.h>

#include "common/base/status.h"

#define KELP_PREDICTIONS_FOLDER "predict" /* in the run's folder */

/* Which file it is, and what must be in it. */
struct kelp_prediction_part {
    uint64_t version; /* of the entry */
    uint32_t lane;
    uint64_t first;  /* position of its first sample in run.part */
    uint64_t count;  /* at least 1 */
    uint64_t values; /* floats of each sample */
};

struct kelp_prediction_writer;

/* Make the folder where it is missing, and begin a file under a name of its own. *ret_writer is
 * owned by the caller until it is ended or dropped.
 * Errors: KELP_ERR_IO, KELP_ERR_NO_SPACE, KELP_ERR_NO_MEMORY, KELP_ERR_LIMIT (the path). */
kelp_status kelp_prediction_begin(const char *folder, const struct kelp_prediction_part *part,
                                  struct kelp_prediction_writer **ret_writer,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* The next samples, in order: float32[count][values]. */
kelp_status kelp_prediction_add(struct kelp_prediction_writer *writer, const float *values,
                                uint64_t count, struct kelp_error *reterr) KELP_MUST_USE;
/* All samples of the part are there: give the file its name. Frees the writer in every case. */
kelp_status kelp_prediction_end(struct kelp_prediction_writer *writer,
                                struct kelp_error *reterr) KELP_MUST_USE;
/* Leave no file behind. NULL is ignored. */
void kelp_prediction_drop(struct kelp_prediction_writer *writer);

/*
 * Read a file back. part->values may be 0: taken from the file. *ret_values is
 * float32[count][values], owned by the caller (free()). Errors: KELP_ERR_NOT_FOUND,
 * KELP_ERR_CORRUPT (another part, or damaged), KELP_ERR_IO, KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_prediction_read(const char *folder, struct kelp_prediction_part *part,
                                 float **ret_values, struct kelp_error *reterr) KELP_MUST_USE;
/*
 * Is that such a file, and this part's? path is for messages. part->values may be 0, and is set.
 * The values begin at KELP_PREDICTION_HEADER_BYTES. Errors: KELP_ERR_CORRUPT.
 */
#define KELP_PREDICTION_HEADER_BYTES 56
kelp_status kelp_prediction_check(const char *path, const void *bytes, size_t count,
                                  struct kelp_prediction_part *part,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* Remove it. Errors: KELP_ERR_IO. */
kelp_status kelp_prediction_remove(const char *folder, const struct kelp_prediction_part *part,
                                   struct kelp_error *reterr);

#endif
