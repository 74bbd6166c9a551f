#include "worker/compute/sample_reader.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "worker/compute/prefetch.h"

struct kelp_sample_reader {
    const struct kelp_job *job;
    const struct kelp_dataset *dataset;
    uint32_t count_max;
    struct kelp_control_word word;
    struct kelp_schedule schedule;
    struct kelp_prefetch *prefetch; /* NULL: samples are in memory */
    uint64_t *indices;              /* [count_max], as the next ones */
    uint64_t *guessed;
    float *input;
    float *target;
    /* For the guess: lanes [lane_first, lane_end) were read of this entry, and the entry before. */
    bool lane_known;
    uint32_t lane_first, lane_end;
    uint32_t lane_end_before;
    uint64_t guessed_count;
};

uint64_t kelp_sample_reader_guessed(const struct kelp_sample_reader *reader)
{
    return reader->guessed_count;
}

const struct kelp_schedule *kelp_sample_reader_schedule(const struct kelp_sample_reader *reader)
{
    return &reader->schedule;
}

kelp_status kelp_sample_reader_begin(struct kelp_sample_reader *reader,
                                     const struct kelp_control_word *word,
                                     struct kelp_error *reterr)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(reader->dataset);
    if (reader->lane_known) {
        reader->lane_end_before = reader->lane_end;
        reader->lane_known = false;
    }
    reader->word = *word;
    return kelp_schedule_init(&reader->schedule, reader->job, info->samples, word, reterr);
}

/* ---- what comes next ------------------------------------------------------------------------- */

struct kelp_schedule_range kelp_sample_reader_piece(const struct kelp_sample_reader *reader,
                                                    const struct kelp_schedule *schedule,
                                                    uint32_t lane, uint64_t first)
{
    const struct kelp_schedule_cut cut = {.pieces = reader->job->train.accumulate,
                                          .block = reader->count_max};
    return kelp_schedule_next_piece(schedule, lane, first, &cut);
}

/* The word of the entry after this one, if training or predicting simply goes on. */
static bool guess_word(const struct kelp_sample_reader *reader, struct kelp_control_word *ret_word)
{
    const struct kelp_control_word *word = &reader->word;
    bool training = word->kind == KELP_STEP_TRAIN;
    uint64_t batch = reader->job->train.batch_size;
    if (!training && word->kind != KELP_STEP_PREDICT) {
        return false;
    }
    uint64_t samples = kelp_dataset_info(reader->dataset)->samples[reader->schedule.split];
    struct kelp_control_word next = *word;
    next.sample_first += word->sample_count;
    uint64_t rest = samples > next.sample_first ? samples - next.sample_first : 0;
    if (training && (rest == 0 || (rest < batch && reader->job->train.drop_last))) {
        next.epoch++;
        next.sample_first = 0;
        rest = samples;
    }
    next.sample_count = rest < batch ? rest : batch;
    *ret_word = next;
    return next.sample_count > 0;
}

static void ask(struct kelp_sample_reader *reader, const struct kelp_schedule *schedule,
                struct kelp_schedule_range range)
{
    assert(range.count <= reader->count_max);
    kelp_schedule_indices(schedule, range, reader->guessed);
    const struct kelp_prefetch_batch batch = {
        .split = schedule->split, .indices = reader->guessed, .count = (uint32_t)range.count};
    kelp_prefetch_ask(reader->prefetch, &batch);
}

/* Have the samples read that will be asked for after these. */
static void ask_next(struct kelp_sample_reader *reader, uint32_t lane,
                     struct kelp_schedule_range range)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(reader->dataset);
    struct kelp_schedule schedule = reader->schedule;
    struct kelp_control_word word;
    struct kelp_schedule_range next =
        kelp_sample_reader_piece(reader, &schedule, lane, range.first + range.count);
    for (uint32_t other = lane + 1; next.count == 0 && other < reader->lane_end_before; other++) {
        next = kelp_sample_reader_piece(reader, &schedule, other,
                                        kelp_schedule_lane(&schedule, other).first);
    }
    if (next.count == 0 && guess_word(reader, &word) &&
        kelp_schedule_init(&schedule, reader->job, info->samples, &word, NULL) == KELP_OK) {
        next = kelp_sample_reader_piece(reader, &schedule, reader->lane_first,
                                        kelp_schedule_lane(&schedule, reader->lane_first).first);
    }
    if (next.count > 0) {
        ask(reader, &schedule, next);
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

static kelp_status read_batch(struct kelp_sample_reader *reader,
                              const struct kelp_prefetch_batch *batch)
{
    kelp_status status;
    if (reader->prefetch &&
        kelp_prefetch_take(reader->prefetch, batch, &reader->input, &reader->target, &status)) {
        reader->guessed_count++;
        return status;
    }
    return kelp_dataset_read(reader->dataset, batch->split, batch->indices, batch->count,
                             reader->input, reader->target);
}

kelp_status kelp_sample_reader_read(struct kelp_sample_reader *reader, uint32_t lane,
                                    struct kelp_schedule_range range,
                                    struct kelp_sample_batch *ret_batch, struct kelp_error *reterr)
{
    assert(range.count <= reader->count_max);
    const struct kelp_prefetch_batch batch = {.split = reader->schedule.split,
                                              .indices = reader->indices,
                                              .count = (uint32_t)range.count};
    kelp_schedule_indices(&reader->schedule, range, reader->indices);
    kelp_status status = read_batch(reader, &batch);
    if (status != KELP_OK) {
        return kelp_fail(reterr, status,
                         "samples [%" PRIu64 ", +%" PRIu64 ") of split %d cannot be read: %s",
                         reader->word.sample_first + range.first, range.count, (int)batch.split,
                         kelp_status_text(status));
    }
    reader->lane_first = reader->lane_known ? reader->lane_first : lane;
    reader->lane_end = lane + 1;
    reader->lane_known = true;
    if (reader->prefetch) {
        ask_next(reader, lane, range);
    }
    *ret_batch = (struct kelp_sample_batch){.input = reader->input,
                                            .target = reader->target,
                                            .split = batch.split,
                                            .indices = reader->indices};
    return KELP_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static kelp_status allocate(struct kelp_sample_reader *reader, struct kelp_error *reterr)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(reader->dataset);
    size_t input_bytes = (size_t)kelp_sample_input_count(&info->shape) * sizeof(float);
    size_t target_bytes = (size_t)kelp_sample_target_count(&info->shape) * sizeof(float);
    reader->indices = calloc(reader->count_max, sizeof(*reader->indices));
    reader->guessed = calloc(reader->count_max, sizeof(*reader->guessed));
    reader->input = calloc(reader->count_max, input_bytes);
    reader->target = calloc(reader->count_max, target_bytes);
    if (!reader->indices || !reader->guessed || !reader->input || !reader->target) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for batches of %u samples",
                         reader->count_max);
    }
    return info->streamed
               ? kelp_prefetch_create(reader->dataset, reader->count_max, &reader->prefetch, reterr)
               : KELP_OK;
}

kelp_status kelp_sample_reader_create(const struct kelp_job *job,
                                      const struct kelp_dataset *dataset, uint32_t count_max,
                                      struct kelp_sample_reader **ret_reader,
                                      struct kelp_error *reterr)
{
    struct kelp_sample_reader *reader = calloc(1, sizeof(*reader));
    if (!reader) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    reader->job = job;
    reader->dataset = dataset;
    reader->count_max = count_max;
    kelp_status status = allocate(reader, reterr);
    if (status != KELP_OK) {
        kelp_sample_reader_destroy(reader);
        return status;
    }
    *ret_reader = reader;
    return KELP_OK;
}

void kelp_sample_reader_destroy(struct kelp_sample_reader *reader)
{
    if (!reader) {
        return;
    }
    kelp_prefetch_destroy(reader->prefetch);
    free(reader->indices);
    free(reader->guessed);
    free(reader->input);
    free(reader->target);
    free(reader);
}
