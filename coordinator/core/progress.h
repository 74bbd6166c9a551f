/*
 * How far the job is, as partition 0's shard reports it, and the records that are still to be put
 * on file. Pure.
 */
#ifndef KELP_COORDINATOR_CORE_PROGRESS_H
#define KELP_COORDINATOR_CORE_PROGRESS_H

#include "common/training/control.h"

struct kelp_progress {
    bool word_known;
    struct kelp_control_word word; /* partition 0's current one */
    uint64_t word_generation;
    bool known[KELP_SPLIT_COUNT];
    struct kelp_record latest[KELP_SPLIT_COUNT]; /* train, validation, test */
    struct kelp_best best;                       /* as partition 0's shard said last, when known */
    bool epoch_known;
    double epoch_loss; /* of the last complete epoch */
    char digest[33];   /* newest reported */
    uint64_t digest_step;

    /* Which records have come, so that a new stream goes on behind them. */
    uint64_t generation;
    uint64_t records_after; /* version of the last one plus 1; 0: none */
    /* Of these, version of the newest one that is told of above, plus 1: a shard that partition 0
     * moves to sends them all once more. */
    uint64_t told_after;

    /* Came, but not on file yet. */
    struct kelp_record *queue; /* owned */
    size_t queue_first;
    size_t queue_count; /* from queue_first */
    size_t queue_capacity;
};

void kelp_progress_fini(struct kelp_progress *progress);

/* Partition 0 stands here; best: what its shard says with that, or NULL. False: it was further
 * already, so this comes from who led it before and has not heard of that. Nothing is taken. */
bool kelp_progress_stand(struct kelp_progress *progress, uint64_t generation,
                         const struct kelp_control_word *word, const struct kelp_best *best);
/* The newest training record that its shard has made, perhaps not reported yet. */
void kelp_progress_latest(struct kelp_progress *progress, const struct kelp_record *record);

/* A generation starts: its records come from the beginning. */
void kelp_progress_restart(struct kelp_progress *progress, uint64_t generation);
/* It goes back in training, and what is told goes back with it. */
void kelp_progress_go_back(struct kelp_progress *progress);

/* A record came: note it and queue it; one that came before is dropped. Errors:
 * KELP_ERR_LIMIT (KELP_COORDINATOR_RECORDS_MAX wait), KELP_ERR_NO_MEMORY: not taken. */
kelp_status kelp_progress_record(struct kelp_progress *progress,
                                 const struct kelp_record *record) KELP_MUST_USE;

/* The newest one of a part, known from the files alone. */
void kelp_progress_note(struct kelp_progress *progress, const struct kelp_record *record,
                        enum kelp_split part);

/* The newest digest of the files: it counts unless one of a later step has come. */
void kelp_progress_recall(struct kelp_progress *progress, const char *digest, uint64_t step);

/* All that wait for the file, in order; borrowed until kelp_progress_pop() or the next record. */
const struct kelp_record *kelp_progress_waiting(const struct kelp_progress *progress,
                                                size_t *ret_count);
/* The next one for the file, or NULL; borrowed until kelp_progress_pop() or the next record. */
const struct kelp_record *kelp_progress_peek(const struct kelp_progress *progress);
void kelp_progress_pop(struct kelp_progress *progress);
/* Those of `version` and of all after it need not be on file, but for the first `begun`, which are
 * on their way. */
void kelp_progress_forget(struct kelp_progress *progress, uint64_t version, size_t begun);

#endif
