/* Images and labels in the files of MNIST: a folder of four IDX files, compressed with gzip or
 * not. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "worker/data/arrays/dataset_arrays.h"

struct idx_split {
    enum kelp_split split;
    const char *prefix; /* of the file names */
};

/* Find one of the four files under any of its usual names; false: there is none. */
static bool find_file(const char *folder, const char *prefix, const char *what, uint32_t rank,
                      char *ret_path, size_t path_bytes)
{
    static const char separators[] = {'-', '.'};
    static const char *const endings[] = {"", ".gz"};
    for (size_t s = 0; s < KELP_ARRAY_COUNT(separators); s++) {
        for (size_t e = 0; e < KELP_ARRAY_COUNT(endings); e++) {
            int length = snprintf(ret_path, path_bytes, "%s/%s-%s%cidx%u-ubyte%s", folder, prefix,
                                  what, separators[s], rank, endings[e]);
            if (length > 0 && (size_t)length < path_bytes && access(ret_path, F_OK) == 0) {
                return true;
            }
        }
    }
    return false;
}

static kelp_status check_images(const struct kelp_array_source *source,
                                const struct kelp_dataset *dataset, struct kelp_error *reterr)
{
    const struct kelp_array *images = kelp_array_file_array(source->files[0]);
    const struct kelp_array *labels =
        source->files[1] ? kelp_array_file_array(source->files[1]) : NULL;
    const uint64_t *wanted = dataset->info.shape.inputs[0].dims;
    const char *path = kelp_array_file_path(source->files[0]);
    if (images->rank != 3) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: has %u dimensions; images need 3: how many, height, width", path,
                         images->rank);
    }
    if (labels && (labels->rank != 1 || kelp_element_is_float(labels->element))) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: has %u dimensions of %s; labels need 1 of whole numbers",
                         kelp_array_file_path(source->files[1]), labels->rank,
                         kelp_element_name(labels->element));
    }
    if (labels && images->dims[0] != labels->dims[0]) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: has %" PRIu64 " images, but %s has %" PRIu64 " labels", path,
                         images->dims[0], kelp_array_file_path(source->files[1]), labels->dims[0]);
    }
    if (wanted[1] != 0 && (images->dims[1] != wanted[1] || images->dims[2] != wanted[2])) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: has images of %" PRIu64 " x %" PRIu64
                         ", but those of the training split have "
                         "%" PRIu64 " x %" PRIu64,
                         path, images->dims[1], images->dims[2], wanted[1], wanted[2]);
    }
    return KELP_OK;
}

static kelp_status open_pair(struct kelp_dataset *dataset, struct kelp_array_source *source,
                             const char *images, const char *labels, struct kelp_error *reterr)
{
    kelp_status status = kelp_array_file_open_idx(images, &source->files[0], reterr);
    if (status == KELP_OK && labels) {
        status = kelp_array_file_open_idx(labels, &source->files[1], reterr);
    }
    if (status == KELP_OK) {
        status = check_images(source, dataset, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_array *array = kelp_array_file_array(source->files[0]);
    dataset->info.shape.inputs[0] =
        (struct kelp_sample_tensor){.rank = 3, .dims = {1, array->dims[1], array->dims[2]}};
    source->rows = array->dims[0];
    source->input = (struct kelp_array_view){.file = source->files[0], .count = array->row_elems};
    source->target = (struct kelp_array_view){.file = source->files[1], .count = labels ? 1 : 0};
    return KELP_OK;
}

/* data.test_path: a folder with the images of a test split, or their file. Labels are needed to
 * evaluate, not to predict. */
static kelp_status open_whole(struct kelp_dataset *dataset, const struct kelp_job *job,
                              struct kelp_error *reterr)
{
    struct kelp_arrays *arrays = dataset->state;
    const char *path = job->data.test_path;
    char images[KELP_JOB_PATH_MAX + 64], labels[KELP_JOB_PATH_MAX + 64];
    bool folder = find_file(path, "t10k", "images", 3, images, sizeof(images));
    bool labelled = folder && find_file(path, "t10k", "labels", 1, labels, sizeof(labels));
    if (!labelled && job->run.mode != KELP_RUN_PREDICT) {
        return kelp_fail(
            reterr, KELP_ERR_NOT_FOUND,
            "%s: is not a folder with t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte "
            "(.gz); without labels there is nothing to compare with",
            path);
    }
    dataset->info.no_targets[KELP_SPLIT_TEST] = !labelled;
    return open_pair(dataset, &arrays->sources[KELP_SPLIT_TEST], folder ? images : path,
                     labelled ? labels : NULL, reterr);
}

/* The whole test split may be missing. */
static kelp_status open_split(struct kelp_dataset *dataset, const struct kelp_job *job,
                              const struct idx_split *files, struct kelp_error *reterr)
{
    struct kelp_arrays *arrays = dataset->state;
    char images[KELP_JOB_PATH_MAX + 64], labels[KELP_JOB_PATH_MAX + 64];
    bool has_images = find_file(job->data.path, files->prefix, "images", 3, images, sizeof(images));
    bool has_labels = find_file(job->data.path, files->prefix, "labels", 1, labels, sizeof(labels));
    if (!has_images && !has_labels && files->split != KELP_SPLIT_TRAIN) {
        return KELP_OK;
    }
    if (!has_images || !has_labels) {
        const char *missing = has_images ? "labels-idx1" : "images-idx3";
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "%s: has no %s-%s-ubyte or %s-%s-ubyte.gz; data.path must be a folder "
                         "with the images and labels",
                         job->data.path, files->prefix, missing, files->prefix, missing);
    }
    return open_pair(dataset, &arrays->sources[files->split], images, labels, reterr);
}

/* data.fractions divides the training images into training and validation; test images have
 * their own files. */
static kelp_status set_splits(struct kelp_dataset *dataset, const struct kelp_job *job,
                              struct kelp_error *reterr)
{
    struct kelp_arrays *arrays = dataset->state;
    struct kelp_splits *splits = &arrays->splits;
    const uint64_t rows[KELP_SPLIT_COUNT] = {arrays->sources[KELP_SPLIT_TRAIN].rows};
    if (job->data.fraction_count > KELP_SPLIT_TEST && job->data.fractions[KELP_SPLIT_TEST] > 0.0) {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "data.fractions: with data.kind idx the test split is the t10k files; give "
            "the shares of training and validation only, such as [0.9, 0.1]");
    }
    kelp_status status = kelp_splits_init(splits, job, rows, reterr);
    splits->rows[KELP_SPLIT_TEST] =
        (struct kelp_split_rows){.count = arrays->sources[KELP_SPLIT_TEST].rows,
                                 .first = rows[KELP_SPLIT_TRAIN],
                                 .stride = 1};
    return status;
}

/* Training and validation images share files. */
static bool wants_files(const struct kelp_dataset *dataset, const struct kelp_job *job,
                        enum kelp_split split)
{
    bool has_val =
        job->data.fraction_count > KELP_SPLIT_VAL && job->data.fractions[KELP_SPLIT_VAL] > 0.0;
    return kelp__dataset_wants(dataset, job, split) ||
           (split == KELP_SPLIT_TRAIN && has_val &&
            kelp__dataset_wants(dataset, job, KELP_SPLIT_VAL));
}

kelp_status kelp__dataset_open_idx(struct kelp_dataset *dataset, const struct kelp_job *job,
                                   struct kelp_error *reterr)
{
    static const struct idx_split splits[] = {{KELP_SPLIT_TRAIN, "train"},
                                              {KELP_SPLIT_TEST, "t10k"}};
    struct kelp_arrays *arrays = NULL;
    kelp_status status = kelp__dataset_make_arrays(dataset, job, &arrays, reterr);
    dataset->info.shape.input_count = 1;
    bool whole = kelp__dataset_is_whole(job);
    if (dataset->card) {
        dataset->info.shape.inputs[0] = dataset->card->shape.inputs[0];
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(splits) && status == KELP_OK && !whole; i++) {
        if (wants_files(dataset, job, splits[i].split)) {
            status = open_split(dataset, job, &splits[i], reterr);
        }
    }
    if (status == KELP_OK && whole) {
        status = open_whole(dataset, job, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    arrays->images = true;
    arrays->classes = true;
    arrays->class_max = kelp__dataset_class_max(dataset, job);
    status = set_splits(dataset, job, reterr);
    return status == KELP_OK ? kelp__dataset_survey_arrays(dataset, job, reterr) : status;
}
