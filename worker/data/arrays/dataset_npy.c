/* Samples from NumPy arrays: row i of one file is the input of sample i, row i of another its
 * target. */
#include "worker/data/arrays/dataset_arrays.h"

#include <inttypes.h>

/* The files of a split; input is empty if it has no file of its own. */
struct npy_split {
    const char *input;
    const char *target;
    const char *target_key; /* of the job file */
};

/* The training split gives the shape of a sample; the other splits must have the same. */
static kelp_status set_shape(struct kelp_sample_tensor *shape, const struct kelp_array_file *file,
                             bool first, struct kelp_error *reterr)
{
    const struct kelp_array *array = kelp_array_file_array(file);
    bool same = shape->rank == array->rank - 1;
    for (uint32_t i = 0; i + 1 < array->rank; i++) {
        same = same && shape->dims[i] == array->dims[i + 1];
        if (first) {
            shape->dims[i] = array->dims[i + 1];
        }
    }
    if (first) {
        shape->rank = array->rank - 1;
    } else if (!same) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: its rows have another shape than those of the training split",
                         kelp_array_file_path(file));
    }
    return KELP_OK;
}

static kelp_status open_target(struct kelp_dataset *dataset, struct kelp_array_source *source,
                               const char *path, bool first, struct kelp_error *reterr)
{
    kelp_status status = kelp_array_file_open_npy(path, &source->files[1], reterr);
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_array *array = kelp_array_file_array(source->files[1]);
    if (array->dims[0] != source->rows) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: has %" PRIu64 " rows, but %s has %" PRIu64
                         "; row i of one belongs to row i of the "
                         "other",
                         path, array->dims[0], kelp_array_file_path(source->files[0]),
                         source->rows);
    }
    source->target = (struct kelp_array_view){.file = source->files[1], .count = array->row_elems};
    return set_shape(&dataset->info.shape.target, source->files[1], first, reterr);
}

static kelp_status open_split(struct kelp_dataset *dataset, struct kelp_array_source *source,
                              const struct npy_split *files, bool first, struct kelp_error *reterr)
{
    kelp_status status = kelp_array_file_open_npy(files->input, &source->files[0], reterr);
    if (status == KELP_OK) {
        status = set_shape(&dataset->info.shape.inputs[0], source->files[0], first, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_array *array = kelp_array_file_array(source->files[0]);
    source->rows = array->dims[0];
    source->input = (struct kelp_array_view){.file = source->files[0], .count = array->row_elems};
    return files->target[0] != '\0' ? open_target(dataset, source, files->target, first, reterr)
                                    : KELP_OK;
}

/* Only samples to predict may have no targets. */
static bool may_lack_target(const struct kelp_job *job, int split)
{
    return split == KELP_SPLIT_TEST && job->run.mode == KELP_RUN_PREDICT &&
           job->run.part == KELP_RUN_PART_TEST;
}

kelp_status kelp__dataset_open_npy(struct kelp_dataset *dataset, const struct kelp_job *job,
                                   struct kelp_error *reterr)
{
    const struct npy_split splits[KELP_SPLIT_COUNT] = {
        {job->data.path, job->data.target_path, "data.target_path"},
        {job->data.val_path, job->data.val_target_path, "data.val_target_path"},
        {job->data.test_path, job->data.test_target_path, "data.test_target_path"},
    };
    struct kelp_arrays *arrays = NULL;
    kelp_status status = kelp__dataset_make_arrays(dataset, job, &arrays, reterr);
    dataset->info.shape.input_count = 1;
    bool shaped = dataset->card; /* the model gives the shapes */
    if (shaped) {
        dataset->info.shape = dataset->card->shape;
        dataset->info.shape.target.vocab_count = 0; /* found in the survey */
    }
    for (int i = 0; i < KELP_SPLIT_COUNT && status == KELP_OK; i++) {
        bool opened = i == 0 ? kelp__dataset_wants_path(dataset, job)
                             : splits[i].input[0] != '\0' &&
                                   kelp__dataset_wants(dataset, job, (enum kelp_split)i);
        if (!opened) {
            continue;
        }
        if (splits[i].target[0] == '\0' && !may_lack_target(job, i)) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "%s: is not set; data.kind npy needs the targets of %s",
                             splits[i].target_key, i == 0 ? "data.path" : splits[i].input);
        }
        status = open_split(dataset, &arrays->sources[i], &splits[i], i == 0 && !shaped, reterr);
        dataset->info.no_targets[i] = splits[i].target[0] == '\0';
    }
    return status == KELP_OK ? kelp__dataset_finish_rows(dataset, job, reterr) : status;
}
