/* Predictions of a lane, for kelp predict. */
#include <inttypes.h>
#include <stdio.h>

#include "worker/client/client_internal.h"
#include "worker/compute/limits.h"
#include "worker/compute/predictions.h"

static int check_predictions(const struct kelp_worker *worker, uint64_t first, uint64_t count,
                             uint64_t width)
{
    if (!worker->lane || worker->work->word.kind != KELP_STEP_PREDICT) {
        return kelp__client_invalid("kelp_worker_predict(): there is no lane to predict");
    }
    const uint64_t samples = worker->lane->samples.count;
    const uint64_t done = worker->predictions.done;
    if (first != done || count == 0 || count > samples - done) {
        return kelp__client_invalid("kelp_worker_predict(): samples [%" PRIu64 ", +%" PRIu64
                                    ") come after %" PRIu64 " of %" PRIu64 " of the lane",
                                    first, count, done, samples);
    }
    if (worker->predictions.width != 0 && width != worker->predictions.width) {
        return kelp__client_invalid("kelp_worker_predict(): %" PRIu64
                                    " numbers for a sample, and %" PRIu64
                                    " for those before; each sample has the same",
                                    width, worker->predictions.width);
    }
    const uint64_t most =
        (KELP_PREDICTION_BYTES_MAX - KELP_PREDICTION_HEADER_BYTES) / sizeof(float) / samples;
    return width == 0 || width > most
               ? kelp__client_invalid("kelp_worker_predict(): %" PRIu64
                                      " numbers for a sample; 1 to %" PRIu64 " go with %" PRIu64
                                      " samples in a lane (train.batch_size)",
                                      width, most, samples)
               : KELP_WORKER_OK;
}

static kelp_status begin_predictions(struct kelp_worker *worker, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_link_job(worker->job_link);
    const struct kelp_control_word *word = &worker->work->word;
    char folder[sizeof(job->run.dir) + sizeof(KELP_PREDICTIONS_FOLDER) + 1];
    const struct kelp_prediction_part part = {
        .version = word->version,
        .lane = worker->lane->number,
        .first = word->sample_first + worker->lane->samples.first,
        .count = worker->lane->samples.count,
        .values = worker->predictions.width,
    };

    (void)snprintf(folder, sizeof(folder), "%s/%s", job->run.dir, KELP_PREDICTIONS_FOLDER);
    return kelp_prediction_begin(folder, &part, &worker->predictions.writer, reterr);
}

int kelp_worker_predict(struct kelp_worker *worker, uint64_t first, uint64_t count,
                        const float *values, uint64_t width)
{
    struct kelp_error error;
    kelp_status status = KELP_OK;
    const int result = check_predictions(worker, first, count, width);

    if (result != KELP_WORKER_OK) {
        return result;
    }
    worker->predictions.width = width;
    if (!worker->predictions.writer) {
        status = begin_predictions(worker, &error);
    }
    if (status == KELP_OK) {
        status = kelp_prediction_add(worker->predictions.writer, values, count, &error);
    }
    if (status == KELP_OK) {
        worker->predictions.done += count;
    }
    return kelp__client_result(status, &error);
}

int kelp__client_end_predictions(struct kelp_worker *worker)
{
    struct kelp_error error;

    if (worker->work->word.kind != KELP_STEP_PREDICT) {
        return KELP_WORKER_OK;
    }
    if (worker->predictions.done != worker->lane->samples.count) {
        return kelp__client_invalid(
            "kelp_worker_submit(): %" PRIu64 " of the lane's %" PRIu64
            " samples have a prediction; a program that kelp predict can use calls "
            "kelp_worker_predict() for them",
            worker->predictions.done, worker->lane->samples.count);
    }
    const kelp_status status = kelp_prediction_end(worker->predictions.writer, &error);
    worker->predictions.writer = NULL;
    worker->predictions.done = 0;
    return kelp__client_result(status, &error);
}
