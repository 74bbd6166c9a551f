#include "worker/data/dataset.h"

#include <assert.h>
#include <stdlib.h>

#include "worker/data/dataset_internal.h"

/* NULL: the kind is not built yet. */
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

static kelp_status open_kind(struct kelp_dataset *dataset, const struct kelp_job *job,
                             struct kelp_error *reterr)
{
    if ((unsigned)job->data.kind >= KELP_ARRAY_COUNT(openers) || !openers[job->data.kind]) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "data.kind: %d is not known",
                         (int)job->data.kind);
    }
    kelp_status status = openers[job->data.kind](dataset, job, reterr);
    if (status != KELP_OK) {
        return status;
    }
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
    return KELP_OK;
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
    struct kelp_dataset *dataset = calloc(1, sizeof(*dataset));
    if (!dataset) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = open_kind(dataset, job, reterr);
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
    free(dataset->names);
    free(dataset->scales);
    free(dataset);
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
