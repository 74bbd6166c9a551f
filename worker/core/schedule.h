/*
 * Which samples a lane computes in an entry of the schedule. Pure: a function of the job, the
 * number of samples of each split, and the entry's control word; nobody's assignment, clock or
 * history has a say, so any worker may compute any lane.
 *
 * The samples of an entry stand in positions [0, word->sample_count); lane i of L takes
 * [floor(i n / L), floor((i + 1) n / L)) of n. A training step's positions are
 * those of its batch in the epoch's order, a keyed permutation of (seed, epoch) when data.shuffle
 * is set; an evaluation goes through its split in order.
 */
#ifndef KELP_WORKER_CORE_SCHEDULE_H
#define KELP_WORKER_CORE_SCHEDULE_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/tensors/philox.h"
#include "common/training/control.h"
#include "common/training/plan.h"

/* Aligned nodes that a range of lanes splits into at most: two of each size below the whole. */
#define KELP_SCHEDULE_NODES_MAX 20

/* Positions [first, first + count) of an entry. */
struct kelp_schedule_range {
    uint64_t first;
    uint64_t count;
};

/* A node of the reduction tree: lanes [first, first + count), count a power of two that divides
 * first. */
struct kelp_schedule_node {
    uint32_t first;
    uint32_t count;
};

/* One entry, ready to be asked for samples. In the caller's memory, nothing to free. */
struct kelp_schedule {
    enum kelp_split split; /* where the samples come from */
    uint32_t lanes;
    uint64_t sample_first; /* position of the entry's first sample in the epoch's order */
    uint64_t sample_count;
    bool training;
    bool shuffled;
    struct kelp_permutation permutation; /* when shuffled */
};

/*
 * Prepare the entry that word names. The word came over the wire: it is checked against the job and
 * samples, the number of samples of each split. FINISH and DONE have no samples.
 * Errors: KELP_ERR_INVALID (the word asks for samples that are not there).
 */
kelp_status kelp_schedule_init(struct kelp_schedule *schedule, const struct kelp_job *job,
                               const uint64_t samples[KELP_SPLIT_COUNT],
                               const struct kelp_control_word *word,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* The positions of a lane below schedule->lanes; count is 0 for an empty lane. */
struct kelp_schedule_range kelp_schedule_lane(const struct kelp_schedule *schedule, uint32_t lane);

/*
 * The samples at positions range, which lies within the entry: indices of schedule->split, for
 * kelp_dataset_read(). ret_indices is uint64[range.count].
 */
void kelp_schedule_indices(const struct kelp_schedule *schedule, struct kelp_schedule_range range,
                           uint64_t *ret_indices);

/* The piece number `piece` of `pieces`, cut as even as lanes are (train.accumulate). */
struct kelp_schedule_range kelp_schedule_piece(struct kelp_schedule_range samples, uint32_t piece,
                                               uint32_t pieces);

/*
 * What is computed at once of a lane, from position `first` on: the next piece of the lane where
 * the entry is a training step, else a block of at most cut->block samples. first is the lane's
 * first position, or the end of the piece before; count is 0 when none are left.
 */
struct kelp_schedule_cut {
    uint32_t pieces; /* train.accumulate */
    uint64_t block;
};
struct kelp_schedule_range kelp_schedule_next_piece(const struct kelp_schedule *schedule,
                                                    uint32_t lane, uint64_t first,
                                                    const struct kelp_schedule_cut *cut);

/* 64 bits for a program that draws random numbers as it computes a lane of a training step: the
 * same wherever the lane is computed. */
uint64_t kelp_schedule_lane_seed(uint64_t seed, uint64_t step, uint32_t lane);

/* The most samples that one lane has in any training step. */
uint64_t kelp_schedule_lane_samples_max(const struct kelp_job *job);

/*
 * Split lanes [first, first + count) into maximal aligned nodes, in lane order. Returns how many;
 * first + count is at most KELP_JOB_LANES_MAX.
 */
uint32_t kelp_schedule_split(uint32_t first, uint32_t count,
                             struct kelp_schedule_node ret_nodes[KELP_SCHEDULE_NODES_MAX]);

#endif
