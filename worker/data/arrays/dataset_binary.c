/* Samples that are rows of numbers without a header: the input, then the target. */
#include "worker/data/arrays/dataset_arrays.h"

/* A shape from the job file. Its elements are few enough for sizes not to overflow. */
static kelp_status set_shape(struct kelp_sample_tensor *shape, const char *key,
                             const uint32_t *dims, uint32_t rank, struct kelp_error *reterr)
{
    uint64_t count = 1;
    if (rank > KELP_SAMPLE_RANK_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%s: has %u dimensions; at most %d are taken", key,
                         rank, KELP_SAMPLE_RANK_MAX);
    }
    shape->rank = rank;
    for (uint32_t i = 0; i < rank; i++) {
        shape->dims[i] = dims[i];
        count *= dims[i]; /* each and the product before are at most ROW_ELEMS_MAX */
        if (count > KELP_ARRAY_ROW_ELEMS_MAX) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "%s: makes over %u elements", key,
                             KELP_ARRAY_ROW_ELEMS_MAX);
        }
    }
    return KELP_OK;
}

static enum kelp_element element_of(enum kelp_number_kind kind)
{
    switch (kind) {
    case KELP_NUMBER_FLOAT32:
        return KELP_ELEMENT_FLOAT32;
    case KELP_NUMBER_FLOAT64:
        return KELP_ELEMENT_FLOAT64;
    case KELP_NUMBER_UINT8:
        return KELP_ELEMENT_UINT8;
    case KELP_NUMBER_INT32:
        return KELP_ELEMENT_INT32;
    }
    return KELP_ELEMENT_FLOAT32;
}

static kelp_status open_split(struct kelp_dataset *dataset, const struct kelp_job *job,
                              struct kelp_array_source *source, const char *path,
                              struct kelp_error *reterr)
{
    uint64_t input = kelp_sample_input_count(&dataset->info.shape);
    uint64_t target = kelp_sample_target_count(&dataset->info.shape);
    const struct kelp_array layout = {.element = element_of(job->data.dtype),
                                      .row_elems = input + target};
    kelp_status status = kelp_array_file_open_rows(path, &layout, &source->files[0], reterr);
    if (status != KELP_OK) {
        return status;
    }
    source->rows = kelp_array_file_array(source->files[0])->dims[0];
    source->input = (struct kelp_array_view){.file = source->files[0], .count = input};
    source->target =
        (struct kelp_array_view){.file = source->files[0], .first = input, .count = target};
    return KELP_OK;
}

kelp_status kelp__dataset_open_binary(struct kelp_dataset *dataset, const struct kelp_job *job,
                                      struct kelp_error *reterr)
{
    const char *const paths[KELP_SPLIT_COUNT] = {job->data.path, job->data.val_path,
                                                 job->data.test_path};
    struct kelp_sample_shape *shape = &dataset->info.shape;
    struct kelp_arrays *arrays = NULL;
    if (job->data.input_shape_count == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.input_shape: is empty; data.kind binary needs the shape of a row's "
                         "input, as [28, 28]");
    }
    shape->input_count = 1;
    kelp_status status = set_shape(&shape->inputs[0], "data.input_shape", job->data.input_shape,
                                   job->data.input_shape_count, reterr);
    if (status == KELP_OK) {
        status = set_shape(&shape->target, "data.target_shape", job->data.target_shape,
                           job->data.target_shape_count, reterr);
    }
    if (status == KELP_OK) {
        status = kelp__dataset_make_arrays(dataset, job, &arrays, reterr);
    }
    for (int split = 0; split < KELP_SPLIT_COUNT && status == KELP_OK; split++) {
        if (split == 0 ? kelp__dataset_wants_path(dataset, job)
                       : paths[split][0] != '\0' &&
                             kelp__dataset_wants(dataset, job, (enum kelp_split)split)) {
            status = open_split(dataset, job, &arrays->sources[split], paths[split], reterr);
        }
    }
    return status == KELP_OK ? kelp__dataset_finish_rows(dataset, job, reterr) : status;
}
