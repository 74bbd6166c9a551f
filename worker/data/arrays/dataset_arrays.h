/*
 * Samples that are rows of arrays in files: what idx, npy and binary have in common. A sample's
 * input and target are parts of a row each, of the same file or of two with the same number of
 * rows; the files of data.path, data.val_path and data.test_path stand end to end.
 *
 * All rows are looked through once, when the data set is opened: for the fingerprint, for numbers
 * that are not finite and classes that do not exist, and for the statistics of the training split.
 */
#ifndef KELP_WORKER_DATA_ARRAYS_DATASET_ARRAYS_H
#define KELP_WORKER_DATA_ARRAYS_DATASET_ARRAYS_H

#include "worker/data/arrays/array_file.h"
#include "worker/data/dataset_internal.h"
#include "worker/data/dataset_split.h"

/* Elements [first, first + count) of each row; file is NULL where there is none. */
struct kelp_array_view {
    const struct kelp_array_file *file;
    uint64_t first;
    uint64_t count;
};

struct kelp_array_source {
    struct kelp_array_file *files[2]; /* owned */
    struct kelp_array_view input;
    struct kelp_array_view target; /* without a file: all zero */
    uint64_t rows;
};

/* The state of such a data set. An opener fills in what stands above the line, then calls
 * kelp__dataset_survey_arrays(). */
struct kelp_arrays {
    struct kelp_array_source sources[KELP_SPLIT_COUNT]; /* rows 0: there is none */
    struct kelp_splits splits;
    bool classes;       /* targets are classes */
    uint32_t class_max; /* how many there may be; 0: as many as the data have */
    bool images;        /* inputs become (x / 255 - mean) / std */
    float mean, std;    /* of images */
    enum kelp_normalize_kind normalize;
    uint64_t columns; /* inputs with the same index of the last dimension are scaled together */
    /* ---- */
    float byte_values[256]; /* of images of bytes */
    double *shift;          /* [columns], or NULL: inputs are (x - shift) * factor */
    double *factor;
};

/* Make an empty data set one of arrays; *ret_arrays is its state. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp__dataset_make_arrays(struct kelp_dataset *dataset, const struct kelp_job *job,
                                      struct kelp_arrays **ret_arrays,
                                      struct kelp_error *reterr) KELP_MUST_USE;

/* How many classes the model has, where it or the job says so; 0: as many as the data have. */
uint32_t kelp__dataset_class_max(const struct kelp_dataset *dataset, const struct kelp_job *job);

/*
 * The rest of npy and binary, once the sources and info.shape are set: which rows make the splits,
 * classes where the loss wants them, scaling; then the look through all rows.
 */
kelp_status kelp__dataset_finish_rows(struct kelp_dataset *dataset, const struct kelp_job *job,
                                      struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Look through all rows; set info.fingerprint, info.samples and the classes of info.shape.target.
 * info.shape is set before. Errors: KELP_ERR_FORMAT, KELP_ERR_INVALID (naming file and row),
 * KELP_ERR_IO, KELP_ERR_CORRUPT, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp__dataset_survey_arrays(struct kelp_dataset *dataset, const struct kelp_job *job,
                                        struct kelp_error *reterr) KELP_MUST_USE;

#endif
