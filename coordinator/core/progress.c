#include "coordinator/core/progress.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/core/limits.h"

void kelp_progress_fini(struct kelp_progress *progress)
{
    free(progress->queue);
    *progress = (struct kelp_progress){.word_known = false};
}

bool kelp_progress_stand(struct kelp_progress *progress, uint64_t generation,
                         const struct kelp_control_word *word, const struct kelp_best *best)
{
    if (progress->word_known &&
        (generation < progress->word_generation ||
         (generation == progress->word_generation && word->version < progress->word.version))) {
        return false;
    }
    progress->word_generation = generation;
    progress->word_known = true;
    progress->word = *word;
    progress->best.known = false;
    if (best) {
        progress->best = *best;
    }
    return true;
}

void kelp_progress_latest(struct kelp_progress *progress, const struct kelp_record *record)
{
    progress->latest[KELP_SPLIT_TRAIN] = *record;
    progress->known[KELP_SPLIT_TRAIN] = true;
}

void kelp_progress_restart(struct kelp_progress *progress, uint64_t generation)
{
    if (generation != progress->generation) {
        progress->generation = generation;
        progress->records_after = 0;
    }
}

void kelp_progress_go_back(struct kelp_progress *progress)
{
    progress->told_after = 0;
}

static kelp_status make_room(struct kelp_progress *progress)
{
    if (progress->queue_count >= KELP_COORDINATOR_RECORDS_MAX) {
        return KELP_ERR_LIMIT;
    }
    if (progress->queue_first + progress->queue_count < progress->queue_capacity) {
        return KELP_OK;
    }
    if (progress->queue_count > 0 && progress->queue_first >= progress->queue_count) {
        memcpy(progress->queue, &progress->queue[progress->queue_first],
               progress->queue_count * sizeof(*progress->queue));
        progress->queue_first = 0;
        return KELP_OK;
    }
    size_t capacity = progress->queue_capacity == 0 ? 64 : 2 * progress->queue_capacity;
    struct kelp_record *queue = realloc(progress->queue, capacity * sizeof(*queue));
    if (!queue) {
        return KELP_ERR_NO_MEMORY;
    }
    progress->queue = queue;
    progress->queue_capacity = capacity;
    return KELP_OK;
}

static void note(struct kelp_progress *progress, const struct kelp_record *record)
{
    enum kelp_split part = KELP_SPLIT_COUNT;
    if (record->word.version < progress->told_after) {
        return;
    }
    progress->told_after = record->word.version + 1;
    if (record->word.kind == KELP_STEP_TRAIN) {
        part = KELP_SPLIT_TRAIN;
    } else if (record->word.kind == KELP_STEP_EVALUATE_VAL) {
        part = KELP_SPLIT_VAL;
    } else if (record->word.kind == KELP_STEP_EVALUATE_TEST) {
        part = KELP_SPLIT_TEST;
    }
    if (part != KELP_SPLIT_COUNT) {
        progress->known[part] = true;
        progress->latest[part] = *record;
    }
    if (record->epoch_end) {
        progress->epoch_known = true;
        progress->epoch_loss = record->epoch_loss;
    }
    if (record->digest[0] != '\0') {
        memcpy(progress->digest, record->digest, sizeof(progress->digest));
        progress->digest_step = record->word.step;
    }
}

void kelp_progress_note(struct kelp_progress *progress, const struct kelp_record *record,
                        enum kelp_split part)
{
    progress->known[part] = true;
    progress->latest[part] = *record;
    if (part == KELP_SPLIT_TRAIN) {
        progress->epoch_known = true;
        progress->epoch_loss = record->epoch_loss;
    }
}

void kelp_progress_recall(struct kelp_progress *progress, const char *digest, uint64_t step)
{
    if (progress->digest[0] == '\0' || step > progress->digest_step) {
        (void)snprintf(progress->digest, sizeof(progress->digest), "%s", digest);
        progress->digest_step = step;
    }
}

kelp_status kelp_progress_record(struct kelp_progress *progress, const struct kelp_record *record)
{
    if (record->word.version < progress->records_after) {
        return KELP_OK;
    }
    kelp_status status = make_room(progress);
    if (status != KELP_OK) {
        return status;
    }
    progress->queue[progress->queue_first + progress->queue_count++] = *record;
    progress->records_after = record->word.version + 1;
    note(progress, record);
    return KELP_OK;
}

const struct kelp_record *kelp_progress_waiting(const struct kelp_progress *progress,
                                                size_t *ret_count)
{
    *ret_count = progress->queue_count;
    return kelp_progress_peek(progress);
}

const struct kelp_record *kelp_progress_peek(const struct kelp_progress *progress)
{
    return progress->queue_count == 0 ? NULL : &progress->queue[progress->queue_first];
}

void kelp_progress_pop(struct kelp_progress *progress)
{
    assert(progress->queue_count > 0);
    progress->queue_count--;
    progress->queue_first = progress->queue_count == 0 ? 0 : progress->queue_first + 1;
}

void kelp_progress_forget(struct kelp_progress *progress, uint64_t version, size_t begun)
{
    while (progress->queue_count > begun &&
           progress->queue[progress->queue_first + progress->queue_count - 1].word.version >=
               version) {
        progress->queue_count--;
    }
}
