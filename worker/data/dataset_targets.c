/* Finds targets that the loss cannot use before training starts. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "worker/data/dataset_internal.h"

#define PIECE_SAMPLES 256

bool kelp__dataset_learns_classes(const struct kelp_job *job)
{
    return job->train.loss == KELP_LOSS_CROSS_ENTROPY || job->train.loss == KELP_LOSS_NLL;
}

bool kelp__dataset_targets_are_probabilities(const struct kelp_job *job)
{
    return job->train.loss == KELP_LOSS_BCE || job->train.loss == KELP_LOSS_BCE_WITH_LOGITS;
}

kelp_status kelp__dataset_check_probability(const struct kelp_job *job,
                                            const struct kelp_target_place *place, double value,
                                            struct kelp_error *reterr)
{
    char column[KELP_CSV_COLUMN_NAME_MAX + 16] = "";

    if (value >= 0.0 && value <= 1.0) {
        return KELP_OK;
    }
    if (place->column[0] != '\0') {
        (void)snprintf(column, sizeof(column), "column %s: ", place->column);
    }
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "%s: row %" PRIu64 "%s: %starget %.9g%s; train.loss %s takes targets from 0 "
                     "to 1",
                     place->path, place->row, place->of, column, value,
                     place->scaled ? " (scaled)" : "",
                     job->train.loss == KELP_LOSS_BCE ? "bce" : "bce_with_logits");
}

static const char *path_of(const struct kelp_job *job, enum kelp_split split)
{
    const char *path = split == KELP_SPLIT_VAL    ? job->data.val_path
                       : split == KELP_SPLIT_TEST ? job->data.test_path
                                                  : "";
    return path[0] != '\0'             ? path
           : job->data.path[0] != '\0' ? job->data.path
                                       : "data.kind synthetic";
}

/* Samples [first, first + count) of a split, with their targets. */
struct piece {
    enum kelp_split split;
    uint64_t first;
    uint32_t count;
};

static kelp_status check_piece(const struct kelp_dataset *dataset, const struct kelp_job *job,
                               const struct piece *piece, const float *targets,
                               struct kelp_error *reterr)
{
    static const char *const of[KELP_SPLIT_COUNT] = {
        " of the training split", " of the validation split", " of the test split"};
    kelp_status status = KELP_OK;
    for (uint64_t i = 0; i < piece->count * dataset->target_count && status == KELP_OK; i++) {
        uint32_t column = (uint32_t)(i % dataset->info.target_columns);
        const struct kelp_target_place place = {.path = path_of(job, piece->split),
                                                .row = piece->first + i / dataset->target_count,
                                                .of = of[piece->split],
                                                .column = kelp_dataset_target_name(dataset, column),
                                                .scaled = dataset->scales &&
                                                          (dataset->scales[column].factor != 1.0 ||
                                                           dataset->scales[column].shift != 0.0)};
        status = kelp__dataset_check_probability(job, &place, (double)targets[i], reterr);
    }
    return status;
}

static kelp_status check_split(const struct kelp_dataset *dataset, const struct kelp_job *job,
                               enum kelp_split split, float *input, float *targets,
                               struct kelp_error *reterr)
{
    uint64_t indices[PIECE_SAMPLES];
    uint64_t samples = dataset->info.samples[split];
    kelp_status status = KELP_OK;
    for (uint64_t first = 0; first < samples && status == KELP_OK; first += PIECE_SAMPLES) {
        struct piece piece = {.split = split, .first = first, .count = PIECE_SAMPLES};
        if (samples - first < PIECE_SAMPLES) {
            piece.count = (uint32_t)(samples - first);
        }
        for (uint32_t i = 0; i < piece.count; i++) {
            indices[i] = first + i;
        }
        status = kelp_dataset_read(dataset, split, indices, piece.count, input, targets);
        if (status != KELP_OK) {
            return kelp_fail(reterr, status, "%s: cannot be read: %s", path_of(job, split),
                             kelp_status_text(status));
        }
        status = check_piece(dataset, job, &piece, targets, reterr);
    }
    return status;
}

kelp_status kelp__dataset_check_targets(const struct kelp_dataset *dataset,
                                        const struct kelp_job *job, struct kelp_error *reterr)
{
    if (!kelp__dataset_targets_are_probabilities(job)) {
        return KELP_OK;
    }
    float *input = calloc((size_t)(PIECE_SAMPLES * dataset->input_count), sizeof(*input));
    float *targets = calloc((size_t)(PIECE_SAMPLES * dataset->target_count), sizeof(*targets));
    kelp_status status = KELP_OK;
    if (!input || !targets) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (enum kelp_split split = 0; split < KELP_SPLIT_COUNT && status == KELP_OK; split++) {
        if (!dataset->info.no_targets[split]) {
            status = check_split(dataset, job, split, input, targets, reterr);
        }
    }
    free(input);
    free(targets);
    return status;
}
