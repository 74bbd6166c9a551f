#include "worker/compute/sample_reader.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct kelp_sample_reader {
    const struct kelp_job *job;
    const struct kelp_dataset *dataset;
    uint32_t count_max;
    struct kelp_control_word word;
    struct kelp_schedule schedule;
    struct kelp_prefetch *prefetch; /* NULL: samples are in memory */
    struct kelp_sample_memory memory;
    uint64_t *indices; /* [count_max], like guessed and ahead.indices */
    uint64_t *guessed;
    float *input;
    float *target;
    struct {
        bool there;
        enum kelp_split split;
        uint32_t count;
        uint64_t *indices;
        float *input, *target; /* NULL until needed */
    } ahead;
    uint32_t lane; /* of the last read */
    struct kelp_schedule_range range;
    /* For the guess: lanes [lane_first, lane_end) of this entry were read; lane_end_before
     * belongs to the entry before. */
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

/* ---- the next samples ------------------------------------------------------------------------ */

struct kelp_schedule_range kelp_sample_reader_piece(const struct kelp_sample_reader *reader,
                                                    const struct kelp_schedule *schedule,
                                                    uint32_t lane, uint64_t first)
{
    const struct kelp_schedule_cut cut = {.pieces = reader->job->train.accumulate,
                                          .block = reader->count_max};
    return kelp_schedule_next_piece(schedule, lane, first, &cut);
}

/* Guess the word of the next entry: training or predicting goes on. */
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

/* Guess the samples that follow the last read; their indices go to reader->guessed. False:
 * unknown. */
static bool guess(struct kelp_sample_reader *reader, struct kelp_prefetch_batch *ret_batch)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(reader->dataset);
    struct kelp_schedule schedule = reader->schedule;
    struct kelp_control_word word;
    struct kelp_schedule_range next = kelp_sample_reader_piece(
        reader, &schedule, reader->lane, reader->range.first + reader->range.count);
    for (uint32_t other = reader->lane + 1; next.count == 0 && other < reader->lane_end_before;
         other++) {
        next = kelp_sample_reader_piece(reader, &schedule, other,
                                        kelp_schedule_lane(&schedule, other).first);
    }
    if (next.count == 0 && guess_word(reader, &word) &&
        kelp_schedule_init(&schedule, reader->job, info->samples, &word, NULL) == KELP_OK) {
        next = kelp_sample_reader_piece(reader, &schedule, reader->lane_first,
                                        kelp_schedule_lane(&schedule, reader->lane_first).first);
    }
    assert(next.count <= reader->count_max);
    kelp_schedule_indices(&schedule, next, reader->guessed);
    *ret_batch = (struct kelp_prefetch_batch){
        .split = schedule.split, .indices = reader->guessed, .count = (uint32_t)next.count};
    return next.count > 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Allocate for count_max samples. */
static bool allocate_pair(const struct kelp_sample_reader *reader, float **input, float **target)
{
    const struct kelp_sample_shape *shape = &kelp_dataset_info(reader->dataset)->shape;
    const struct kelp_sample_memory *memory = &reader->memory;
    *input = memory->alloc(
        memory->user, reader->count_max * (size_t)kelp_sample_input_count(shape) * sizeof(float));
    *target = memory->alloc(
        memory->user, reader->count_max * (size_t)kelp_sample_target_count(shape) * sizeof(float));
    if (*input && *target) {
        return true;
    }
    memory->free(memory->user, *input);
    memory->free(memory->user, *target);
    *input = *target = NULL;
    return false;
}

/* The buffers will be overwritten: nothing may read them any more. */
static void release_pair(const struct kelp_sample_reader *reader, const float *input,
                         const float *target)
{
    if (reader->memory.release) {
        reader->memory.release(reader->memory.user, input);
        reader->memory.release(reader->memory.user, target);
    }
}

static bool is_ahead(const struct kelp_sample_reader *reader,
                     const struct kelp_prefetch_batch *batch)
{
    return reader->ahead.there && reader->ahead.split == batch->split &&
           reader->ahead.count == batch->count &&
           memcmp(reader->ahead.indices, batch->indices, batch->count * sizeof(*batch->indices)) ==
               0;
}

static kelp_status read_batch(struct kelp_sample_reader *reader,
                              const struct kelp_prefetch_batch *batch)
{
    kelp_status status;
    if (is_ahead(reader, batch)) {
        float *input = reader->input, *target = reader->target;
        reader->input = reader->ahead.input;
        reader->target = reader->ahead.target;
        reader->ahead.input = input;
        reader->ahead.target = target;
        return KELP_OK;
    }
    release_pair(reader, reader->input, reader->target);
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
    struct kelp_prefetch_batch next;
    const struct kelp_prefetch_batch batch = {.split = reader->schedule.split,
                                              .indices = reader->indices,
                                              .count = (uint32_t)range.count};
    kelp_schedule_indices(&reader->schedule, range, reader->indices);
    const kelp_status status = read_batch(reader, &batch);
    reader->ahead.there = false;
    if (status != KELP_OK) {
        return kelp_fail(reterr, status,
                         "samples [%" PRIu64 ", +%" PRIu64 ") of split %d cannot be read: %s",
                         reader->word.sample_first + range.first, range.count, (int)batch.split,
                         kelp_status_text(status));
    }
    reader->lane_first = reader->lane_known ? reader->lane_first : lane;
    reader->lane_end = lane + 1;
    reader->lane_known = true;
    reader->lane = lane;
    reader->range = range;
    if (reader->prefetch && guess(reader, &next)) {
        kelp_prefetch_ask(reader->prefetch, &next);
    }
    *ret_batch = (struct kelp_sample_batch){.input = reader->input,
                                            .target = reader->target,
                                            .count = batch.count,
                                            .split = batch.split,
                                            .indices = reader->indices};
    return KELP_OK;
}

static bool read_ahead(struct kelp_sample_reader *reader, const struct kelp_prefetch_batch *batch)
{
    kelp_status status;
    if (!reader->prefetch) {
        return kelp_dataset_read(reader->dataset, batch->split, batch->indices, batch->count,
                                 reader->ahead.input, reader->ahead.target) == KELP_OK;
    }
    if (!kelp_prefetch_is_read(reader->prefetch, batch) ||
        !kelp_prefetch_take(reader->prefetch, batch, &reader->ahead.input, &reader->ahead.target,
                            &status)) {
        return false;
    }
    reader->guessed_count++;
    return status == KELP_OK;
}

bool kelp_sample_reader_ahead(struct kelp_sample_reader *reader,
                              struct kelp_sample_batch *ret_batch)
{
    struct kelp_prefetch_batch next;
    assert(reader->lane_known);
    if (!reader->ahead.input &&
        !allocate_pair(reader, &reader->ahead.input, &reader->ahead.target)) {
        return false;
    }
    release_pair(reader, reader->ahead.input, reader->ahead.target);
    reader->ahead.there = guess(reader, &next) && read_ahead(reader, &next);
    if (!reader->ahead.there) {
        return false;
    }
    reader->ahead.split = next.split;
    reader->ahead.count = next.count;
    memcpy(reader->ahead.indices, next.indices, next.count * sizeof(*next.indices));
    *ret_batch = (struct kelp_sample_batch){.input = reader->ahead.input,
                                            .target = reader->ahead.target,
                                            .count = next.count,
                                            .split = next.split,
                                            .indices = reader->ahead.indices};
    return true;
}

/* ---- life ------------------------------------------------------------------------------------ */

static kelp_status allocate(struct kelp_sample_reader *reader, struct kelp_error *reterr)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(reader->dataset);
    reader->indices = calloc(reader->count_max, sizeof(*reader->indices));
    reader->guessed = calloc(reader->count_max, sizeof(*reader->guessed));
    reader->ahead.indices = calloc(reader->count_max, sizeof(*reader->ahead.indices));
    if (!reader->indices || !reader->guessed || !reader->ahead.indices ||
        !allocate_pair(reader, &reader->input, &reader->target)) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for batches of %u samples",
                         reader->count_max);
    }
    return info->streamed ? kelp_prefetch_create(reader->dataset, reader->count_max,
                                                 &reader->memory, &reader->prefetch, reterr)
                          : KELP_OK;
}

kelp_status kelp_sample_reader_create(const struct kelp_job *job,
                                      const struct kelp_dataset *dataset, uint32_t count_max,
                                      const struct kelp_sample_memory *memory,
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
    reader->memory = *memory;
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
    free(reader->ahead.indices);
    float *const buffers[] = {reader->input, reader->target, reader->ahead.input,
                              reader->ahead.target};
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(buffers); i++) {
        reader->memory.free(reader->memory.user, buffers[i]);
    }
    free(reader);
}
