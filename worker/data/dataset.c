#include "worker/data/dataset.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/digest.h"
#include "common/tensors/safetensors.h"
#include "worker/data/dataset_internal.h"
#include "worker/data/model_card_internal.h"

static kelp_dataset_opener *const openers[] = {
    [KELP_DATA_CSV] = kelp__dataset_open_csv,
    [KELP_DATA_SYNTHETIC] = kelp__dataset_open_synthetic,
    [KELP_DATA_TENSORS] = kelp__dataset_open_tensors,
    [KELP_DATA_TABLE] = kelp__dataset_open_table,
    [KELP_DATA_PANEL] = kelp__dataset_open_panel,
    [KELP_DATA_IDX] = kelp__dataset_open_idx,
    [KELP_DATA_NPY] = kelp__dataset_open_npy,
    [KELP_DATA_BINARY] = kelp__dataset_open_binary,
};

/* ---- with a model's fit ---------------------------------------------------------------------- */

kelp_status kelp_model_card_text_of(const char *safetensors_path, char **ret_text,
                                    struct kelp_error *reterr)
{
    struct kelp_safetensors *file = NULL;
    kelp_status status = kelp_safetensors_open(safetensors_path, &file, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const char *text = kelp_safetensors_metadata(file, KELP_MODEL_CARD_KEY);
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    } else {
        *ret_text = copy;
    }
    kelp_safetensors_close(file);
    return status;
}

static kelp_status load_card(struct kelp_dataset *dataset, const struct kelp_job *job,
                             struct kelp_error *reterr)
{
    char *text = NULL;
    if (job->model.init[0] == '\0') {
        return KELP_OK;
    }
    kelp_status status = kelp_model_card_text_of(job->model.init, &text, reterr);
    if (status != KELP_OK || !text) {
        return status;
    }
    dataset->card = calloc(1, sizeof(*dataset->card));
    status = dataset->card ? kelp_model_card_parse(text, strlen(text), dataset->card, reterr)
                           : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    dataset->card_digest = kelp_digest_bytes(text, strlen(text));
    free(text);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s: " KELP_MODEL_CARD_KEY, job->model.init);
    }
    return status;
}

bool kelp__dataset_wants(const struct kelp_dataset *dataset, const struct kelp_job *job,
                         enum kelp_split split)
{
    static const enum kelp_split parts[] = {[KELP_RUN_PART_TRAIN] = KELP_SPLIT_TRAIN,
                                            [KELP_RUN_PART_VAL] = KELP_SPLIT_VAL,
                                            [KELP_RUN_PART_TEST] = KELP_SPLIT_TEST};
    if (!dataset->card) {
        return true;
    }
    return job->run.mode == KELP_RUN_PREDICT ? split == parts[job->run.part]
                                             : split != KELP_SPLIT_TRAIN;
}

bool kelp__dataset_wants_path(const struct kelp_dataset *dataset, const struct kelp_job *job)
{
    const char *const own[KELP_SPLIT_COUNT] = {"", job->data.val_path, job->data.test_path};
    bool wanted = !dataset->card;
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        wanted |=
            kelp__dataset_wants(dataset, job, (enum kelp_split)split) && own[split][0] == '\0';
    }
    /* A model evaluated on another file does not need data.path. */
    return wanted && (!dataset->card || job->data.path[0] != '\0');
}

bool kelp__dataset_is_whole(const struct kelp_job *job)
{
    return job->run.mode != KELP_RUN_TRAIN && job->data.test_path[0] != '\0';
}

/* Both kinds are series: a model trained on a generated series may read a CSV file. */
static bool is_series(enum kelp_data_kind kind)
{
    return kind == KELP_DATA_CSV || kind == KELP_DATA_SYNTHETIC;
}

static kelp_status check_kind(const struct kelp_dataset *dataset, const struct kelp_job *job,
                              struct kelp_error *reterr)
{
    if (dataset->card && dataset->card->kind != job->data.kind &&
        !(is_series(dataset->card->kind) && is_series(job->data.kind))) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "%s: the model was trained on data.kind %s, the job has %s; give the "
                         "job that it was trained with",
                         job->model.init, kelp__card_kinds[dataset->card->kind],
                         kelp__card_kinds[job->data.kind]);
    }
    return KELP_OK;
}

/* Scales are fitted to the training split of data.path. Another file has no such split, so the
 * model must bring them. */
static kelp_status check_file(const struct kelp_dataset *dataset, const struct kelp_job *job,
                              struct kelp_error *reterr)
{
    bool rows = job->data.kind == KELP_DATA_TABLE || job->data.kind == KELP_DATA_NPY ||
                job->data.kind == KELP_DATA_BINARY;
    if (dataset->card || rows || !kelp__dataset_is_whole(job)) {
        return KELP_OK;
    }
    return kelp_fail(
        reterr, KELP_ERR_INVALID,
        "data.test_path: the model in %s does not carry its scales (it has no " KELP_MODEL_CARD_KEY
        "), so that it can be used on data.path alone",
        job->model.init);
}

static kelp_status check_shape(const struct kelp_dataset *dataset, const struct kelp_job *job,
                               struct kelp_error *reterr)
{
    char difference[320];
    if (!dataset->card || kelp_sample_shape_same(&dataset->info.shape, &dataset->card->shape,
                                                 difference, sizeof(difference))) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_MISMATCH,
                     "the data do not fit the model in %s: samples have %s as in training",
                     job->model.init, difference);
}

/* ---- kinds ----------------------------------------------------------------------------------- */

/* Derive sizes from the kind's info, and check targets that were not surveyed yet. */
static kelp_status settle(struct kelp_dataset *dataset, const struct kelp_job *job,
                          struct kelp_error *reterr)
{
    assert(dataset->functions);
    dataset->input_count = kelp_sample_input_count(&dataset->info.shape);
    dataset->target_count = kelp_sample_target_count(&dataset->info.shape);
    if (dataset->info.target_columns == 0) {
        dataset->info.target_columns = 1;
    }
    uint64_t *samples = &dataset->info.samples[KELP_SPLIT_TRAIN];
    if (job->data.limit > 0 && job->data.limit < *samples) {
        *samples = job->data.limit;
    }
    bool surveyed = job->data.kind == KELP_DATA_IDX || job->data.kind == KELP_DATA_NPY ||
                    job->data.kind == KELP_DATA_BINARY;
    bool predicts = job->run.mode == KELP_RUN_PREDICT; /* targets are not used */
    return surveyed || predicts ? KELP_OK : kelp__dataset_check_targets(dataset, job, reterr);
}

static kelp_status open_kind(struct kelp_dataset *dataset, const struct kelp_job *job,
                             struct kelp_error *reterr)
{
    if ((unsigned)job->data.kind >= KELP_ARRAY_COUNT(openers)) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "data.kind: %d is not known",
                         (int)job->data.kind);
    }
    kelp_status status =
        job->run.mode == KELP_RUN_TRAIN ? KELP_OK : load_card(dataset, job, reterr);
    if (status == KELP_OK) {
        status = check_kind(dataset, job, reterr);
    }
    if (status == KELP_OK) {
        status = check_file(dataset, job, reterr);
    }
    if (status == KELP_OK) {
        status = openers[job->data.kind](dataset, job, reterr);
    }
    if (status == KELP_OK) {
        status = check_shape(dataset, job, reterr);
    }
    return status == KELP_OK ? settle(dataset, job, reterr) : status;
}

kelp_status kelp__dataset_name_targets(struct kelp_dataset *dataset, uint32_t column_count,
                                       struct kelp_error *reterr)
{
    assert(column_count > 0);
    dataset->names = calloc(column_count, sizeof(*dataset->names));
    dataset->scales = calloc(column_count, sizeof(*dataset->scales));
    if (!dataset->names || !dataset->scales) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %u columns", column_count);
    }
    for (uint32_t i = 0; i < column_count; i++) {
        dataset->scales[i].factor = 1.0;
    }
    dataset->info.target_columns = column_count;
    return KELP_OK;
}

kelp_status kelp_dataset_open(const struct kelp_job *job, struct kelp_dataset **ret_dataset,
                              struct kelp_error *reterr)
{
    return kelp_dataset_open_watched(job, NULL, ret_dataset, reterr);
}

kelp_status kelp_dataset_open_watched(const struct kelp_job *job,
                                      const struct kelp_dataset_watch *watch,
                                      struct kelp_dataset **ret_dataset, struct kelp_error *reterr)
{
    struct kelp_dataset *dataset = calloc(1, sizeof(*dataset));
    if (!dataset) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    dataset->watch = watch;
    kelp_status status = open_kind(dataset, job, reterr);
    dataset->watch = NULL;
    if (status != KELP_OK) {
        kelp_dataset_close(dataset);
        return status;
    }
    *ret_dataset = dataset;
    return KELP_OK;
}

void kelp_dataset_close(struct kelp_dataset *dataset)
{
    if (!dataset) {
        return;
    }
    if (dataset->state) {
        dataset->functions->close(dataset->state);
    }
    if (dataset->card) {
        kelp_model_card_fini(dataset->card);
        free(dataset->card);
    }
    kelp_words_fini(&dataset->classes);
    kelp_words_fini(&dataset->untrained_classes);
    free(dataset->names);
    free(dataset->scales);
    free(dataset);
}

static void set_settings(struct kelp_model_card *card, const struct kelp_job *job)
{
    if (is_series(card->kind) || card->kind == KELP_DATA_PANEL) {
        card->seq_len = job->data.seq_len;
        card->pred_len = job->data.pred_len;
    }
    if (card->kind == KELP_DATA_IDX) {
        card->mean = job->data.mean;
        card->std = job->data.std;
    }
    if (job->train.loss == KELP_LOSS_QUANTILE) {
        card->quantile_count = job->train.quantile_count;
        memcpy(card->quantiles, job->train.quantiles, sizeof(card->quantiles));
    }
}

kelp_status kelp_dataset_describe(const struct kelp_dataset *dataset, const struct kelp_job *job,
                                  struct kelp_model_card *ret_card, struct kelp_error *reterr)
{
    assert(!dataset->card);
    struct kelp_model_card card = {.job = NULL};
    kelp_status status = KELP_OK;
    if (dataset->functions->describe) {
        status = dataset->functions->describe(dataset, &card, reterr);
    }
    if (status != KELP_OK) {
        kelp_model_card_fini(&card);
        return status;
    }
    card.kind = job->data.kind;
    card.fingerprint = dataset->info.fingerprint;
    card.shape = dataset->info.shape;
    set_settings(&card, job);
    *ret_card = card;
    return KELP_OK;
}

const struct kelp_dataset_info *kelp_dataset_info(const struct kelp_dataset *dataset)
{
    return &dataset->info;
}

kelp_status kelp_dataset_read(const struct kelp_dataset *dataset, enum kelp_split split,
                              const uint64_t *indices, uint32_t count, float *input, float *target)
{
    assert((unsigned)split < KELP_SPLIT_COUNT);
    for (uint32_t i = 0; i < count; i++) {
        if (indices[i] >= dataset->info.samples[split]) {
            return KELP_ERR_INVALID;
        }
    }
    return dataset->functions->read(dataset, split, indices, count, input, target);
}

const char *kelp_dataset_target_name(const struct kelp_dataset *dataset, uint32_t column)
{
    assert(column < dataset->info.target_columns);
    return dataset->names ? dataset->names[column] : "";
}

const char *kelp_dataset_class_name(const struct kelp_dataset *dataset, uint64_t number)
{
    const struct kelp_words *names = dataset->card ? &dataset->card->classes : &dataset->classes;
    return number < names->count ? kelp_words_at(names, (uint32_t)number) : "";
}

const char *kelp_dataset_untrained_class(const struct kelp_dataset *dataset, uint64_t index)
{
    const struct kelp_words *names = &dataset->untrained_classes;
    return index < names->count ? kelp_words_at(names, (uint32_t)index) : "";
}

void kelp_dataset_target_scales(const struct kelp_dataset *dataset, enum kelp_split split,
                                uint64_t index, struct kelp_target_scale *ret_scales)
{
    assert(index < dataset->info.samples[split]);
    if (dataset->functions->target_scales) {
        dataset->functions->target_scales(dataset, split, index, ret_scales);
        return;
    }
    for (uint32_t i = 0; i < dataset->info.target_columns; i++) {
        ret_scales[i] =
            dataset->scales ? dataset->scales[i] : (struct kelp_target_scale){.factor = 1.0};
    }
}

void kelp_dataset_time(const struct kelp_dataset *dataset, enum kelp_split split, uint64_t index,
                       uint32_t row, char ret_text[KELP_DATASET_LABEL_BYTES])
{
    assert(index < dataset->info.samples[split]);
    ret_text[0] = '\0';
    if (dataset->functions->time) {
        dataset->functions->time(dataset, split, index, row, ret_text);
    }
}

void kelp_dataset_group(const struct kelp_dataset *dataset, enum kelp_split split, uint64_t index,
                        char ret_text[KELP_DATASET_LABEL_BYTES])
{
    assert(index < dataset->info.samples[split]);
    ret_text[0] = '\0';
    if (dataset->functions->group) {
        dataset->functions->group(dataset, split, index, ret_text);
    }
}
