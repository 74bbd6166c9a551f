#include "worker/dataset.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "worker/dataset_internal.h"

static kelp_status open_csv(struct kelp_dataset *dataset, const struct kelp_job *job,
                            struct kelp_error *reterr)
{
    if (job->data.path[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.path: is not set; data.kind csv needs the path of a CSV file");
    }
    struct kelp_series series = {0};
    const char *target = job->data.features == KELP_FEATURES_S ? job->data.target : NULL;
    kelp_status status = kelp_csv_read(job->data.path, target, &series, reterr);
    if (status == KELP_OK) {
        const struct kelp_series_source source = {.name = job->data.path, .is_file = true};
        status = kelp__dataset_open_series(dataset, job, &series, &source, reterr);
    }
    kelp_series_fini(&series);
    return status;
}

static kelp_status open_synthetic(struct kelp_dataset *dataset, const struct kelp_job *job,
                                  struct kelp_error *reterr)
{
    struct kelp_series series = {0};
    const char *target = job->data.features == KELP_FEATURES_S ? job->data.target : NULL;
    kelp_status status =
        kelp_synthetic_generate(job->data.rows, job->seed, target, &series, reterr);
    if (status == KELP_OK) {
        const struct kelp_series_source source = {.name = "data.rows"};
        status = kelp__dataset_open_series(dataset, job, &series, &source, reterr);
    }
    kelp_series_fini(&series);
    return status;
}

static kelp_status open_kind(struct kelp_dataset *dataset, const struct kelp_job *job,
                             struct kelp_error *reterr)
{
    switch (job->data.kind) {
    case KELP_DATA_CSV:
        return open_csv(dataset, job, reterr);
    case KELP_DATA_SYNTHETIC:
        return open_synthetic(dataset, job, reterr);
    case KELP_DATA_TENSORS:
        return kelp__dataset_open_tensors(dataset, job, reterr);
    case KELP_DATA_TABLE:
    case KELP_DATA_PANEL:
    case KELP_DATA_IDX:
    case KELP_DATA_NPY:
    case KELP_DATA_BINARY:
        break;
    }
    return kelp_fail(reterr, KELP_ERR_INVALID, "data.kind: %d is not known", (int)job->data.kind);
}

kelp_status kelp_dataset_open(const struct kelp_job *job, struct kelp_dataset **ret_dataset,
                              struct kelp_error *reterr)
{
    struct kelp_dataset *dataset = calloc(1, sizeof(*dataset));
    if (dataset == NULL) {
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
    if (dataset == NULL) {
        return;
    }
    free(dataset->values);
    free(dataset);
}

const struct kelp_dataset_info *kelp_dataset_info(const struct kelp_dataset *dataset)
{
    return &dataset->info;
}

kelp_status kelp_dataset_read(const struct kelp_dataset *dataset, enum kelp_part part,
                              const uint64_t *indices, uint32_t count, float *input, float *target)
{
    assert((unsigned)part < KELP_PART_COUNT);
    for (uint32_t i = 0; i < count; i++) {
        if (indices[i] >= dataset->info.samples[part]) {
            return KELP_ERR_INVALID;
        }
    }
    size_t input_bytes = (size_t)dataset->input_count * sizeof(float);
    size_t target_bytes = (size_t)dataset->target_count * sizeof(float);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = dataset->first[part] + indices[i];
        memcpy(input + i * dataset->input_count, dataset->input + at * dataset->input_stride,
               input_bytes);
        memcpy(target + i * dataset->target_count, dataset->target + at * dataset->target_stride,
               target_bytes);
    }
    return KELP_OK;
}
