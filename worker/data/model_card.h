/*
 * What a model must carry to be used without the data that it was trained on: how data become
 * samples, with what was fitted on the training split, and the job that builds the model.
 *
 * It is JSON: model.json in the folder of a run and of a checkpoint, and the metadata entry
 * "kelp.model" of a safetensors file (common/training/manifest.h). docs/MODELS.md, "What a model
 * carries", has its keys. Pure.
 */
#ifndef KELP_WORKER_DATA_MODEL_CARD_H
#define KELP_WORKER_DATA_MODEL_CARD_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/training/manifest.h"
#include "worker/data/limits.h"
#include "worker/data/sample.h"
#include "worker/data/words.h"

/* A number in a sample is (value - shift) / factor; of arrays (npy, binary) it is
 * (value - shift) * factor. */
struct kelp_card_number {
    double shift;
    double factor; /* finite, above 0 */
    double fill;   /* stands for a missing value with data.missing mean; NaN: there is none */
};

struct kelp_card_column {
    char name[KELP_CSV_COLUMN_NAME_MAX + 1]; /* "" where the data have no names */
    struct kelp_card_number number;
};

struct kelp_card_columns {
    struct kelp_card_column *items; /* owned */
    uint32_t count;
};

struct kelp_card_category {
    char name[KELP_CSV_COLUMN_NAME_MAX + 1];
    uint32_t size;           /* at least that of words; the rest is for words never seen */
    struct kelp_words words; /* in the order of their numbers */
};

struct kelp_model_card {
    char *job; /* kelp_job_file_print_model(); owned; NULL: not known yet */
    enum kelp_data_kind kind;
    uint64_t fingerprint; /* of the data that was trained on */
    struct kelp_sample_shape shape;
    uint32_t seq_len, pred_len;          /* csv, synthetic, panel */
    double mean, std;                    /* idx: (x / 255 - mean) / std */
    double quantiles[KELP_JOB_LIST_MAX]; /* of the model's output; none: a value each */
    uint32_t quantile_count;
    struct kelp_card_columns inputs;  /* numbers, in the order of the sample */
    struct kelp_card_columns known;   /* panel */
    struct kelp_card_columns targets; /* their numbers are of no meaning where there are series */
    struct kelp_card_category *categories; /* owned */
    uint32_t category_count;
    struct kelp_words classes; /* table: names of the target's classes by number; none: numbers */
    struct kelp_words series;  /* panel; a single one without a name is "" */
    struct kelp_card_number *series_targets; /* [series.count][targets.count]; owned */
};

/* An empty one is all zero. */
void kelp_model_card_fini(struct kelp_model_card *card);

/* Give an empty list so many columns, without names and not scaled. Errors: KELP_ERR_LIMIT (too
 * many), KELP_ERR_NO_MEMORY. */
kelp_status kelp_card_columns_init(struct kelp_card_columns *columns, uint64_t count,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* Room for the targets of series.count series, all zero. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_model_card_add_series_targets(struct kelp_model_card *card,
                                               struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The text: doubles in 17 significant digits, so that they come back exactly. ret_text is owned by
 * the caller (free()). Errors: KELP_ERR_LIMIT (over KELP_MODEL_CARD_BYTES_MAX, as millions of
 * words are), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_model_card_print(const struct kelp_model_card *card, char **ret_text,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Everything is bounded and checked: counts agree with the shape of a sample, numbers are finite.
 * *ret_card is owned (kelp_model_card_fini()), set on success only. Errors: KELP_ERR_FORMAT,
 * KELP_ERR_LIMIT, KELP_ERR_UNSUPPORTED (of a newer Kelp), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_model_card_parse(const char *text, size_t text_bytes,
                                  struct kelp_model_card *ret_card,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* The same of a text that has what was fitted alone: columns, categories, series. */
kelp_status kelp_model_card_parse_fit(const char *text, size_t text_bytes,
                                      struct kelp_model_card *ret_card,
                                      struct kelp_error *reterr) KELP_MUST_USE;

/* Are both samples of one shape? If not, the text says where: "input 2 has 7 numbers, not 9". */
bool kelp_sample_shape_same(const struct kelp_sample_shape *have,
                            const struct kelp_sample_shape *want, char *text, size_t text_bytes);

#endif
