#include "worker/core/schedule.h"

#include <assert.h>
#include <inttypes.h>

_Static_assert(KELP_JOB_LANES_MAX == 1u << (KELP_SCHEDULE_NODES_MAX / 2),
               "a range of lanes splits into two nodes of each size below the whole at most");

_Static_assert((int)KELP_RUN_PART_TRAIN == KELP_SPLIT_TRAIN &&
                   (int)KELP_RUN_PART_VAL == KELP_SPLIT_VAL &&
                   (int)KELP_RUN_PART_TEST == KELP_SPLIT_TEST,
               "run.part names a split");

static enum kelp_split part_of(const struct kelp_job *job, enum kelp_step_kind kind)
{
    switch (kind) {
    case KELP_STEP_EVALUATE_VAL:
        return KELP_SPLIT_VAL;
    case KELP_STEP_EVALUATE_TEST:
        return KELP_SPLIT_TEST;
    case KELP_STEP_PREDICT:
        return (enum kelp_split)job->run.part;
    case KELP_STEP_TRAIN:
    case KELP_STEP_FINISH:
    case KELP_STEP_DONE:
        break;
    }
    return KELP_SPLIT_TRAIN;
}

/* How many samples may follow word->sample_first. */
static uint64_t sample_count_max(const struct kelp_job *job,
                                 const uint64_t samples[KELP_SPLIT_COUNT],
                                 const struct kelp_control_word *word)
{
    if (word->kind == KELP_STEP_FINISH || word->kind == KELP_STEP_DONE) {
        return 0;
    }
    uint64_t present = samples[part_of(job, word->kind)];
    uint64_t rest = word->sample_first < present ? present - word->sample_first : 0;
    bool batch = word->kind == KELP_STEP_TRAIN || word->kind == KELP_STEP_PREDICT;
    if (batch && rest > job->train.batch_size) {
        return job->train.batch_size;
    }
    return rest;
}

kelp_status kelp_schedule_init(struct kelp_schedule *schedule, const struct kelp_job *job,
                               const uint64_t samples[KELP_SPLIT_COUNT],
                               const struct kelp_control_word *word, struct kelp_error *reterr)
{
    assert(job->cluster.lanes > 0);
    assert((job->cluster.lanes & (job->cluster.lanes - 1)) == 0);
    enum kelp_split split = part_of(job, word->kind);
    if (word->sample_count > sample_count_max(job, samples, word) ||
        samples[split] > KELP_PERMUTATION_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "control word of version %" PRIu64 " asks for samples %" PRIu64
                         " to %" PRIu64 " of %" PRIu64,
                         word->version, word->sample_first,
                         (word->sample_first + word->sample_count), samples[split]);
    }
    *schedule = (struct kelp_schedule){
        .split = split,
        .lanes = job->cluster.lanes,
        .sample_first = word->sample_first,
        .sample_count = word->sample_count,
        .training = word->kind == KELP_STEP_TRAIN,
        .shuffled = word->kind == KELP_STEP_TRAIN && job->data.shuffle && word->sample_count > 0,
    };
    if (schedule->shuffled) {
        kelp_permutation_init(&schedule->permutation, job->seed, word->epoch, samples[split]);
    }
    return KELP_OK;
}

/* floor(lane * count / lanes), in parts that cannot overflow. */
static uint64_t lane_border(uint64_t count, uint32_t lane, uint32_t lanes)
{
    return count / lanes * lane + count % lanes * lane / lanes;
}

struct kelp_schedule_range kelp_schedule_lane(const struct kelp_schedule *schedule, uint32_t lane)
{
    assert(lane < schedule->lanes);
    uint64_t first = lane_border(schedule->sample_count, lane, schedule->lanes);
    uint64_t end = lane_border(schedule->sample_count, lane + 1, schedule->lanes);
    return (struct kelp_schedule_range){.first = first, .count = end - first};
}

struct kelp_schedule_range kelp_schedule_piece(struct kelp_schedule_range samples, uint32_t piece,
                                               uint32_t pieces)
{
    assert(piece < pieces);
    uint64_t first = lane_border(samples.count, piece, pieces);
    uint64_t end = lane_border(samples.count, piece + 1, pieces);
    return (struct kelp_schedule_range){.first = samples.first + first, .count = end - first};
}

struct kelp_schedule_range kelp_schedule_next_piece(const struct kelp_schedule *schedule,
                                                    uint32_t lane, uint64_t first,
                                                    const struct kelp_schedule_cut *cut)
{
    const struct kelp_schedule_range samples = kelp_schedule_lane(schedule, lane);
    assert(first >= samples.first);
    assert(first <= samples.first + samples.count);
    const uint64_t rest = samples.first + samples.count - first;
    if (!schedule->training) {
        return (struct kelp_schedule_range){.first = first,
                                            .count = rest < cut->block ? rest : cut->block};
    }
    for (uint32_t i = 0; i < cut->pieces; i++) {
        const struct kelp_schedule_range piece = kelp_schedule_piece(samples, i, cut->pieces);
        if (piece.first == first && piece.count > 0) {
            return piece;
        }
    }
    return (struct kelp_schedule_range){.first = first};
}

uint64_t kelp_schedule_lane_seed(uint64_t seed, uint64_t step, uint32_t lane)
{
    uint32_t words[4];
    kelp_philox(seed, KELP_PHILOX_LANE, lane, step, words);
    return (uint64_t)words[0] << 32 | words[1];
}

void kelp_schedule_indices(const struct kelp_schedule *schedule, struct kelp_schedule_range range,
                           uint64_t *ret_indices)
{
    assert(range.first <= schedule->sample_count);
    assert(range.count <= schedule->sample_count - range.first);
    for (uint64_t i = 0; i < range.count; i++) {
        uint64_t position = schedule->sample_first + range.first + i;
        ret_indices[i] =
            schedule->shuffled ? kelp_permutation_at(&schedule->permutation, position) : position;
    }
}

uint64_t kelp_schedule_lane_samples_max(const struct kelp_job *job)
{
    assert(job->cluster.lanes > 0);
    return ((uint64_t)job->train.batch_size + job->cluster.lanes - 1) / job->cluster.lanes;
}

uint32_t kelp_schedule_split(uint32_t first, uint32_t count,
                             struct kelp_schedule_node ret_nodes[KELP_SCHEDULE_NODES_MAX])
{
    assert(first <= KELP_JOB_LANES_MAX);
    assert(count <= KELP_JOB_LANES_MAX - first);
    uint32_t node_count = 0;
    while (count > 0) {
        /* As large as its place allows (lowest set bit of first), but not past the end. */
        uint32_t size = first != 0 ? first & -first : KELP_JOB_LANES_MAX;
        while (size > count) {
            size /= 2;
        }
        assert(node_count < KELP_SCHEDULE_NODES_MAX);
        ret_nodes[node_count++] = (struct kelp_schedule_node){.first = first, .count = size};
        first += size;
        count -= size;
    }
    return node_count;
}
