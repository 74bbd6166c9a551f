/* What a data set is inside: what it says of itself, and its kind's functions and state. */
#ifndef KELP_WORKER_DATA_DATASET_INTERNAL_H
#define KELP_WORKER_DATA_DATASET_INTERNAL_H

#include "worker/data/dataset.h"
#include "worker/data/limits.h"
#include "worker/data/model_card.h"

/* One table for each way of keeping samples. */
struct kelp_dataset_functions {
    /*
     * kelp_dataset_read() with indices that were checked; any number of threads at once. The
     * arrays lie behind one another sample by sample: input_count and target_count floats each.
     */
    kelp_status (*read)(const struct kelp_dataset *dataset, enum kelp_split split,
                        const uint64_t *indices, uint32_t count, float *input, float *target);
    /* Of the functions of the same names; NULL for what the data does not have. */
    void (*target_scales)(const struct kelp_dataset *dataset, enum kelp_split split, uint64_t index,
                          struct kelp_target_scale *ret_scales); /* NULL: dataset->scales */
    void (*time)(const struct kelp_dataset *dataset, enum kelp_split split, uint64_t index,
                 uint32_t row, char ret_text[KELP_DATASET_LABEL_BYTES]);
    void (*group)(const struct kelp_dataset *dataset, enum kelp_split split, uint64_t index,
                  char ret_text[KELP_DATASET_LABEL_BYTES]);
    /* Fill in what was fitted: inputs, known, targets, categories, series. NULL: nothing is. */
    kelp_status (*describe)(const struct kelp_dataset *dataset, struct kelp_model_card *card,
                            struct kelp_error *reterr);
    /* Free the state, which may be half built or NULL. */
    void (*close)(void *state);
};

struct kelp_dataset {
    struct kelp_dataset_info info;
    const struct kelp_dataset_functions *functions; /* NULL until there is a state to close */
    void *state;                                    /* of the kind; owned */
    char (*names)[KELP_CSV_COLUMN_NAME_MAX + 1];    /* of the target columns; owned; NULL: none */
    struct kelp_target_scale *scales; /* of the target columns; owned; NULL: as they are */
    /* Of the model that the job uses: its fit is taken instead of one of these data. Owned; NULL:
     * the data are fitted. */
    struct kelp_model_card *card;
    uint64_t card_digest;                   /* XXH3-64 of its text */
    struct kelp_words classes;              /* names by number, where there is no card; owned */
    struct kelp_words untrained_classes;    /* those that no training sample has; owned */
    const struct kelp_dataset_watch *watch; /* while it is opened; borrowed; NULL: nobody */
    uint64_t input_count;  /* elements of a sample's record; both are set by kelp_dataset_open() */
    uint64_t target_count; /* from info.shape */
};

/*
 * Fill an empty data set: info, functions and state. It keeps what it got also on an error, for
 * kelp_dataset_close(). Errors: those of kelp_dataset_open().
 */
typedef kelp_status kelp_dataset_opener(struct kelp_dataset *dataset, const struct kelp_job *job,
                                        struct kelp_error *reterr);
/*
 * Set info.target_columns, and give the columns names and scales, both empty for the opener to
 * fill. Errors: KELP_ERR_NO_MEMORY.
 */
kelp_status kelp__dataset_name_targets(struct kelp_dataset *dataset, uint32_t column_count,
                                       struct kelp_error *reterr) KELP_MUST_USE;

/* Is the loss one over classes (cross_entropy, nll)? */
bool kelp__dataset_learns_classes(const struct kelp_job *job);
/* Does the loss take targets from 0 to 1 alone (bce, bce_with_logits)? */
bool kelp__dataset_targets_are_probabilities(const struct kelp_job *job);

struct kelp_target_place {
    const char *path;
    uint64_t row;
    const char *of;     /* what the row is counted in: " of the test split", or "" */
    const char *column; /* "": it has no name */
    bool scaled;        /* the value is not the one of the file */
};
/* KELP_ERR_INVALID: a target that the loss cannot take. */
kelp_status kelp__dataset_check_probability(const struct kelp_job *job,
                                            const struct kelp_target_place *place, double value,
                                            struct kelp_error *reterr) KELP_MUST_USE;
/* All of a data set's. Arrays have looked at theirs before. */
kelp_status kelp__dataset_check_targets(const struct kelp_dataset *dataset,
                                        const struct kelp_job *job,
                                        struct kelp_error *reterr) KELP_MUST_USE;
/* Whether the job reads samples of a split: one that uses a model (dataset->card) may not. */
bool kelp__dataset_wants(const struct kelp_dataset *dataset, const struct kelp_job *job,
                         enum kelp_split split);
/* Whether the file of data.path is needed: not where all wanted splits have files of their own. */
bool kelp__dataset_wants_path(const struct kelp_dataset *dataset, const struct kelp_job *job);
/* Whether a model is used on all rows of data.test_path, without other splits. For the kinds that
 * cut their splits out of data.path. */
bool kelp__dataset_is_whole(const struct kelp_job *job);

kelp_dataset_opener kelp__dataset_open_csv;
kelp_dataset_opener kelp__dataset_open_synthetic;
kelp_dataset_opener kelp__dataset_open_tensors;
kelp_dataset_opener kelp__dataset_open_table;
kelp_dataset_opener kelp__dataset_open_panel;
kelp_dataset_opener kelp__dataset_open_idx;
kelp_dataset_opener kelp__dataset_open_npy;
kelp_dataset_opener kelp__dataset_open_binary;

#endif
