/*
 * The samples of lanes, read into buffers: by the caller, or, where they come from a disk, ahead of
 * it by a thread (worker/compute/prefetch.h). Which samples come next is a guess from the schedule:
 * the next piece of the lane, the next lane, the first lane of the next step.
 *
 * Threads: one at a time.
 */
#ifndef KELP_WORKER_COMPUTE_SAMPLE_READER_H
#define KELP_WORKER_COMPUTE_SAMPLE_READER_H

#include "worker/compute/prefetch.h"
#include "worker/core/schedule.h"
#include "worker/data/dataset.h"

struct kelp_sample_reader;

/* job, dataset and what memory->user is are borrowed; count_max: samples of one read.
 * Errors: KELP_ERR_NO_MEMORY, KELP_ERR_IO. */
kelp_status kelp_sample_reader_create(const struct kelp_job *job,
                                      const struct kelp_dataset *dataset, uint32_t count_max,
                                      const struct kelp_sample_memory *memory,
                                      struct kelp_sample_reader **ret_reader,
                                      struct kelp_error *reterr) KELP_MUST_USE;
void kelp_sample_reader_destroy(struct kelp_sample_reader *reader); /* NULL does nothing */

/* The entry that the next reads belong to. Errors: KELP_ERR_INVALID (kelp_schedule_init()). */
kelp_status kelp_sample_reader_begin(struct kelp_sample_reader *reader,
                                     const struct kelp_control_word *word,
                                     struct kelp_error *reterr) KELP_MUST_USE;
/* Of that entry; borrowed until the next begin. */
const struct kelp_schedule *kelp_sample_reader_schedule(const struct kelp_sample_reader *reader);

/* What was read: float32[count][record], float32[count][target]; borrowed until the next read, and
 * beyond that while memory->release() waits. */
struct kelp_sample_batch {
    const float *input;
    const float *target;
    uint32_t count;
    enum kelp_split split;
    const uint64_t *indices; /* of the samples in their split */
};

/* Samples at positions range, of at most count_max, of a lane. Errors: those of
 * kelp_dataset_read(). */
kelp_status kelp_sample_reader_read(struct kelp_sample_reader *reader, uint32_t lane,
                                    struct kelp_schedule_range range,
                                    struct kelp_sample_batch *ret_batch,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/*
 * After a read, while its batch is still used: read what will probably be asked for next, into
 * other buffers. If it is asked for, the next read gives these buffers. False: it is not known, not
 * read from the disk yet, or cannot be read. *ret_batch is borrowed until the second read from now.
 * Errors: none; memory that is missing, and samples that cannot be read, show at the next read.
 */
bool kelp_sample_reader_ahead(struct kelp_sample_reader *reader,
                              struct kelp_sample_batch *ret_batch);

/* How many reads so far were those that the thread had been told to do. */
uint64_t kelp_sample_reader_guessed(const struct kelp_sample_reader *reader);

/* The split of a lane that is computed at once, from position `first` of the entry on, which is a
 * border of such pieces: a piece of a training step, a block of an evaluation. Count 0 at the
 * lane's end. */
struct kelp_schedule_range kelp_sample_reader_piece(const struct kelp_sample_reader *reader,
                                                    const struct kelp_schedule *schedule,
                                                    uint32_t lane, uint64_t first);

#endif
