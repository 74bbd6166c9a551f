/* Keys of a job that must fit together: the source of samples. What depends on the files
 * themselves is checked when they are read (worker/data/dataset.h). */
#include <inttypes.h>

#include "common/job/job_options.h"

static kelp_status check_series(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;
    uint64_t window = (uint64_t)job->data.seq_len + job->data.pred_len;
    const uint64_t *split = job->data.split;
    uint64_t rows = split[0] + split[1] + split[2]; /* each at most 2^40 */

    if (split[0] < window) {
        return kelp__job_refuse(file, "data.split", reterr,
                                "the training split has %" PRIu64
                                " rows, but one window takes %" PRIu64
                                " (data.seq_len + data.pred_len)",
                                split[0], window);
    }
    for (int part = 1; part < 3; part++) {
        if (split[part] > 0 && split[part] < job->data.pred_len) {
            return kelp__job_refuse(file, "data.split", reterr,
                                    "the %s split has %" PRIu64
                                    " rows; it needs 0, or at least %" PRIu32 " (data.pred_len)",
                                    part == 1 ? "validation" : "test", split[part],
                                    job->data.pred_len);
        }
    }
    if (job->data.kind == KELP_DATA_SYNTHETIC && rows > job->data.rows) {
        return kelp__job_refuse(file, "data.split", reterr,
                                "the splits have %" PRIu64 " rows, over data.rows (%" PRIu64 ")",
                                rows, job->data.rows);
    }
    if (job->data.kind != KELP_DATA_PANEL && job->train.drop_last &&
        split[0] - window + 1 < job->train.batch_size) {
        return kelp__job_refuse(file, "train.batch_size", reterr,
                                "an epoch has %" PRIu64 " samples, fewer than one batch of %" PRIu32
                                ", and train.drop_last drops an incomplete batch",
                                split[0] - window + 1, job->train.batch_size);
    }
    return KELP_OK;
}

static kelp_status check_columns(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;

    if (job->data.targets[0] == '\0') {
        return kelp__job_refuse(file, "data.targets", reterr,
                                "is empty; it must name the columns to learn");
    }
    if (job->data.kind == KELP_DATA_TABLE && job->data.columns[0] == '\0' &&
        job->data.categories[0] == '\0') {
        return kelp__job_refuse(file, "data.columns", reterr,
                                "is empty, and data.categories too; name the columns to learn "
                                "from");
    }
    if (job->data.kind == KELP_DATA_PANEL && job->data.time[0] == '\0') {
        return kelp__job_refuse(file, "data.time", reterr,
                                "is empty; it must name the column that orders the rows");
    }
    return KELP_OK;
}

/* Only samples to predict may have no targets. */
static kelp_status check_arrays(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;
    bool predicts = job->run.mode == KELP_RUN_PREDICT && job->run.part == KELP_RUN_PART_TEST;

    if (job->data.target_path[0] == '\0' && job->data.path[0] != '\0') {
        return kelp__job_refuse(file, "data.target_path", reterr,
                                "is empty; data.kind npy needs the targets of data.path");
    }
    if (job->data.val_path[0] != '\0' && job->data.val_target_path[0] == '\0') {
        return kelp__job_refuse(file, "data.val_target_path", reterr,
                                "is empty; data.val_path needs targets");
    }
    if (job->data.test_path[0] != '\0' && job->data.test_target_path[0] == '\0' && !predicts) {
        return kelp__job_refuse(file, "data.test_target_path", reterr,
                                "is empty; data.test_path needs targets, except for predictions");
    }
    return KELP_OK;
}

static kelp_status check_binary(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;

    if (job->data.input_shape_count == 0) {
        return kelp__job_refuse(file, "data.input_shape", reterr,
                                "is empty; it must be the shape of a row's input, such as "
                                "[28, 28]");
    }
    if (job->data.test_rows != KELP_TEST_ROWS_LABELLED && job->run.mode == KELP_RUN_TRAIN) {
        return kelp__job_refuse(file, "data.test_rows", reterr,
                                "must be labelled, because training needs targets; kelp predict "
                                "takes rows without them");
    }
    return KELP_OK;
}

static kelp_status check_kind(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;

    switch (job->data.kind) {
    case KELP_DATA_TABLE:
    case KELP_DATA_PANEL:
        return check_columns(file, reterr);
    case KELP_DATA_NPY:
        return check_arrays(file, reterr);
    case KELP_DATA_BINARY:
        return check_binary(file, reterr);
    case KELP_DATA_CSV:
    case KELP_DATA_SYNTHETIC:
    case KELP_DATA_TENSORS:
    case KELP_DATA_IDX:
    case KELP_DATA_PROGRAM:
        break;
    }
    return KELP_OK;
}

/* To use a model, data.test_path may be all the data. */
static kelp_status check_path(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;
    bool rows = job->data.kind == KELP_DATA_TABLE || job->data.kind == KELP_DATA_NPY ||
                job->data.kind == KELP_DATA_BINARY;
    bool trains = job->run.mode == KELP_RUN_TRAIN;
    char kind[32];

    kelp__job_key_chosen("data.kind", job, kind, sizeof(kind));
    if (job->data.kind == KELP_DATA_PROGRAM) {
        return KELP_OK;
    }
    if (job->data.kind != KELP_DATA_SYNTHETIC && job->data.path[0] == '\0' &&
        (trains || (job->data.test_path[0] == '\0' && job->data.val_path[0] == '\0'))) {
        return kelp__job_refuse(file, "data.path", reterr, "is empty; data.kind %s needs a file",
                                kind);
    }
    if (job->data.test_path[0] != '\0' && trains && !rows) {
        return kelp__job_refuse(file, "data.test_path", reterr,
                                "data.kind %s takes its test split from data.path; another file "
                                "is for kelp predict and kelp evaluate",
                                kind);
    }
    return KELP_OK;
}

kelp_status kelp__job_check_data(const struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = &file->job;
    bool series = job->data.kind == KELP_DATA_CSV || job->data.kind == KELP_DATA_SYNTHETIC ||
                  job->data.kind == KELP_DATA_PANEL;

    kelp_status status = check_path(file, reterr);
    if (status == KELP_OK) {
        status = check_kind(file, reterr);
    }
    return status == KELP_OK && series ? check_series(file, reterr) : status;
}
