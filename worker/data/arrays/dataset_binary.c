/* Samples that are rows of numbers without a header: the input, then the target. */
#include <assert.h>
#include <inttypes.h>
#include <sys/stat.h>

#include "worker/data/arrays/dataset_arrays.h"

/* Set a shape from the job file. Its elements are few enough that sizes do not overflow. */
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
        count *= dims[i]; /* no overflow: both factors are at most ROW_ELEMS_MAX */
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

/* Do the file's rows have targets? Only its size can tell. */
static kelp_status choose_rows(const struct kelp_dataset *dataset, const struct kelp_job *job,
                               const char *path, bool *ret_labelled, struct kelp_error *reterr)
{
    uint64_t size = kelp_element_bytes(element_of(job->data.dtype));
    uint64_t input = size * kelp_sample_input_count(&dataset->info.shape);
    uint64_t row = input + size * kelp_sample_target_count(&dataset->info.shape);
    struct stat about;
    assert(input > 0 && row > 0); /* a job's shapes have no dimension of 0 */
    *ret_labelled = job->data.test_rows != KELP_TEST_ROWS_UNLABELLED;
    if (job->data.test_rows != KELP_TEST_ROWS_EITHER || stat(path, &about) != 0 ||
        !S_ISREG(about.st_mode)) { /* opening reports what is wrong with it */
        return KELP_OK;
    }
    uint64_t bytes = (uint64_t)about.st_size;
    *ret_labelled = bytes % row == 0;
    if (bytes % input != 0 && bytes % row != 0) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "%s: has %" PRIu64
                         " bytes, which is not a whole number of rows: a row of %s "
                         "has %" PRIu64 " bytes, %" PRIu64 " without its target",
                         path, bytes, kelp_element_name(element_of(job->data.dtype)), row, input);
    }
    if (bytes > 0 && bytes % input == 0 && bytes % row == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: has %" PRIu64 " bytes, either %" PRIu64
                         " rows with targets or %" PRIu64
                         " without; set data.test_rows to labelled or unlabelled",
                         path, bytes, bytes / row, bytes / input);
    }
    return KELP_OK;
}

static kelp_status open_split(struct kelp_dataset *dataset, const struct kelp_job *job,
                              enum kelp_split split, const char *path, struct kelp_error *reterr)
{
    struct kelp_arrays *arrays = dataset->state;
    struct kelp_array_source *source = &arrays->sources[split];
    uint64_t input = kelp_sample_input_count(&dataset->info.shape);
    uint64_t target = kelp_sample_target_count(&dataset->info.shape);
    bool labelled = true;
    kelp_status status =
        split == KELP_SPLIT_TEST ? choose_rows(dataset, job, path, &labelled, reterr) : KELP_OK;
    const struct kelp_array layout = {.element = element_of(job->data.dtype),
                                      .row_elems = labelled ? input + target : input};
    if (status == KELP_OK) {
        status = kelp_array_file_open_rows(path, &layout, &source->files[0], reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    source->rows = kelp_array_file_array(source->files[0])->dims[0];
    source->input = (struct kelp_array_view){.file = source->files[0], .count = input};
    if (labelled) {
        source->target =
            (struct kelp_array_view){.file = source->files[0], .first = input, .count = target};
    }
    dataset->info.no_targets[split] = !labelled;
    if (!labelled && job->run.mode != KELP_RUN_PREDICT) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: its rows have no targets, so there is nothing to compare with; kelp "
                         "predict needs none",
                         path);
    }
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
                         "input, such as [28, 28]");
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
            status = open_split(dataset, job, (enum kelp_split)split, paths[split], reterr);
        }
    }
    return status == KELP_OK ? kelp__dataset_finish_rows(dataset, job, reterr) : status;
}
