/*
 * Data sets: the samples of a job, read by index.
 *
 * csv        windows of a time series in the ETT protocol. Training rows come first, then
 *            validation, then test (data.split); the last two start seq_len rows earlier, for the
 *            input of their first window. Each column is scaled by the mean and the population
 *            standard deviation of its training rows, in double. data.features S uses only the
 *            target column; M all columns but the first (the date), in file order; MS these as
 *            inputs, with the target moved to the end, and only the target as target.
 * synthetic  the same windows over a series that is generated from data.rows and the seed, with the
 *            same bits on every machine.
 * table      rows of CSV files: columns of them or derived from them, filtered, filled, numbered
 *            and scaled as docs/DATA.md says.
 * panel      windows over one or many series in such files, with inputs known ahead.
 * idx        images of the four IDX files of a folder, as (x / 255 - data.mean) / data.std in
 *            float32, and their classes; the t10k files are the test split.
 * tensors    rows of tensors of a safetensors file, as they are, int64 ones as categories; all are
 *            training samples.
 * npy        rows of two NumPy arrays.
 * binary     rows of plain numbers in a file.
 */
#ifndef KELP_WORKER_DATA_DATASET_H
#define KELP_WORKER_DATA_DATASET_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/training/plan.h"
#include "worker/data/sample.h"

struct kelp_dataset;
struct kelp_model_card;

struct kelp_dataset_info {
    uint64_t samples[KELP_SPLIT_COUNT];
    struct kelp_sample_shape shape;
    uint64_t fingerprint;  /* XXH3-64 over the values in use and the borders of the splits */
    uint64_t memory_bytes; /* that the samples take in memory */
    /* Element e of a sample's target belongs to column e % target_columns (at least 1), and to row
     * e / target_columns of the sample. */
    uint32_t target_columns;
    bool no_targets[KELP_SPLIT_COUNT]; /* the split has no targets, to predict: they read as 0 */
    bool streamed; /* samples come from files that are not in memory: reading may be slow */
};

/* The target in the data's own unit is value * factor + shift, for a value of kelp_dataset_read().
 */
struct kelp_target_scale {
    double factor;
    double shift;
};

#define KELP_DATASET_LABEL_BYTES 128

/*
 * Read the data that job->data names. A job that uses a model (run.mode predict, evaluate) takes
 * scales and numbers of categories from the card in the metadata of model.init
 * (worker/data/model_card.h), if there is one, and reads only the files of its splits.
 * *ret_dataset is owned by the caller (kelp_dataset_close()).
 * The error text is one line, "FILE:LINE: column NAME: what is wrong; what is right" as far as it
 * applies.
 * Errors: KELP_ERR_NOT_FOUND (no such file), KELP_ERR_IO, KELP_ERR_FORMAT (the file is malformed),
 *         KELP_ERR_INVALID (the data does not have what the job needs), KELP_ERR_LIMIT,
 *         KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_dataset_open(const struct kelp_job *job, struct kelp_dataset **ret_dataset,
                              struct kelp_error *reterr) KELP_MUST_USE;

#define KELP_DATASET_WATCH_ROWS (1u << 16) /* between two calls of a watch */

/* Progress of slow reading: rows of tables and panels that are not in the cache. Called on the
 * thread that opens the data set. */
struct kelp_dataset_watch {
    void (*rows)(void *user, const char *path, uint64_t rows); /* of all files, so far */
    void *user;
};
/* The same, with progress. watch is borrowed for the call; NULL: none. */
kelp_status kelp_dataset_open_watched(const struct kelp_job *job,
                                      const struct kelp_dataset_watch *watch,
                                      struct kelp_dataset **ret_dataset,
                                      struct kelp_error *reterr) KELP_MUST_USE;
void kelp_dataset_close(struct kelp_dataset *dataset); /* NULL does nothing */

/*
 * The card's text in the metadata of a safetensors file, NULL if there is none; owned (free()).
 * Errors: those of kelp_safetensors_open(), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_model_card_text_of(const char *safetensors_path, char **ret_text,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The card of a model that is trained on these data, without its job. *ret_card is owned
 * (kelp_model_card_fini()). The data set must belong to a training job.
 * Errors: KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_dataset_describe(const struct kelp_dataset *dataset, const struct kelp_job *job,
                                  struct kelp_model_card *ret_card,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* Borrowed until the data set is closed. */
const struct kelp_dataset_info *kelp_dataset_info(const struct kelp_dataset *dataset);

/*
 * Copy samples into input, float32[count, record of all inputs], and target, float32[count,
 * target dims...]. Allocates nothing; any number of threads may read at once.
 * Errors: KELP_ERR_INVALID when an index is not below info->samples[split]; nothing is written
 * then.
 */
kelp_status kelp_dataset_read(const struct kelp_dataset *dataset, enum kelp_split split,
                              const uint64_t *indices, uint32_t count, float *input,
                              float *target) KELP_MUST_USE;

/* For converting and labelling predictions: the name of a target column, "" if it has none. index
 * is below info->samples[split], column below info->target_columns. Borrowed until the close. */
const char *kelp_dataset_target_name(const struct kelp_dataset *dataset, uint32_t column);
/* The name of a class, "" if classes are numbers only; borrowed until the close. */
const char *kelp_dataset_class_name(const struct kelp_dataset *dataset, uint64_t number);
/* The name of the index-th class that no training sample has; "" past the last one, and for a job
 * that uses a model. */
const char *kelp_dataset_untrained_class(const struct kelp_dataset *dataset, uint64_t index);
/* ret_scales has info->target_columns entries. */
void kelp_dataset_target_scales(const struct kelp_dataset *dataset, enum kelp_split split,
                                uint64_t index, struct kelp_target_scale *ret_scales);
/* The time stamp of a row of a sample's target, and the name of its series; "" if there are none.
 */
void kelp_dataset_time(const struct kelp_dataset *dataset, enum kelp_split split, uint64_t index,
                       uint32_t row, char ret_text[KELP_DATASET_LABEL_BYTES]);
void kelp_dataset_group(const struct kelp_dataset *dataset, enum kelp_split split, uint64_t index,
                        char ret_text[KELP_DATASET_LABEL_BYTES]);

/*
 * Write the synthetic series as a CSV file in the ETT layout (date, HUFL, HULL, MUFL, MULL, LUFL,
 * LULL, OT; hourly from 2016-07-01 00:00:00). Reading it as data.kind csv gives the same samples
 * and fingerprint as data.kind synthetic with the same rows and seed.
 * An existing file is replaced; a write that fails leaves none behind under that name.
 * Errors: KELP_ERR_INVALID (rows), KELP_ERR_IO, KELP_ERR_NO_SPACE, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_dataset_write_synthetic(const char *path, uint64_t rows, uint64_t seed,
                                         struct kelp_error *reterr) KELP_MUST_USE;

#endif
