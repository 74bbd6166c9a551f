/*
 * Data as a data set hands them out: parsed, filled, numbered, scaled and in order, in one file
 * that is mapped. It is kept in a cache and made again when it is not there or damaged, so its
 * layout is nobody else's business: native numbers, a digest over everything at the end.
 *
 *   magic | shape | series[series_count] | scales[scale_rows][target_count] | floats | digest
 *   count | text of that many bytes | digest
 *
 * The text is the card of what was fitted (worker/data/model_card.h). It follows from the same data
 * as what is before it, whose digest is that of the data. The floats are one or two planes of
 * `rows` rows each, plane p with widths[p] floats in a row.
 */
#ifndef KELP_WORKER_DATA_TABLE_PREPARED_H
#define KELP_WORKER_DATA_TABLE_PREPARED_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/tensors/digest.h"
#include "worker/data/dataset.h"
#include "worker/data/limits.h"
#include "worker/data/table/spool.h"

#define KELP_PREPARED_PLANES 2

struct kelp_prepared_shape {
    uint64_t rows;
    uint64_t file_rows[KELP_SPLIT_COUNT]; /* of data.path, data.val_path, data.test_path */
    uint64_t widths[KELP_PREPARED_PLANES];
    uint64_t series_count;
    uint64_t target_count;
    uint64_t scale_rows; /* one for all, or one for each series */
    uint64_t has_dates;  /* 1: times of series are seconds since 1970 */
    uint32_t vocab_count;
    uint32_t vocab[KELP_SAMPLE_VOCAB_MAX];
    uint32_t zero; /* what would be padding, of which a digest must not know */
};

struct kelp_prepared_series {
    char name[KELP_TABLE_WORD_MAX + 1];
    uint64_t first_row;
    uint64_t row_count;
    double first_time;
    double time_step;
};

struct kelp_prepared {
    const struct kelp_prepared_shape *shape;
    const struct kelp_prepared_series *series;
    const struct kelp_target_scale *scales;
    const float *planes[KELP_PREPARED_PLANES];
    uint64_t digest;  /* XXH3-64 over all of it but the text */
    const char *card; /* not terminated */
    size_t card_bytes;
};

/*
 * Look at what a writer made; *ret_prepared points into the bytes.
 * Errors: KELP_ERR_CORRUPT (cut off, changed, of another version of Kelp).
 */
kelp_status kelp_prepared_look(const void *bytes, size_t count, struct kelp_prepared *ret_prepared,
                               struct kelp_error *reterr) KELP_MUST_USE;

struct kelp_prepared_parts {
    struct kelp_prepared_shape shape;
    const struct kelp_prepared_series *series; /* [shape.series_count] */
    const struct kelp_target_scale *scales;    /* [shape.scale_rows][shape.target_count] */
};

struct kelp_prepared_writer {
    struct kelp_spool *spool; /* borrowed */
    struct kelp_digest digest;
    uint64_t written;
};

/*
 * Write into an open spool: what stands before the floats, then the floats of one plane after the
 * other in any number of calls, then the end, which maps the spool. Errors: those of the spool.
 */
kelp_status kelp_prepared_begin(struct kelp_prepared_writer *writer, struct kelp_spool *spool,
                                const struct kelp_prepared_parts *parts,
                                struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_prepared_floats(struct kelp_prepared_writer *writer, const float *values,
                                 uint64_t count, struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_prepared_end(struct kelp_prepared_writer *writer, const char *card,
                              struct kelp_prepared *ret_prepared,
                              struct kelp_error *reterr) KELP_MUST_USE;

#endif
