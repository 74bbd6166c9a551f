/* Offers of one partition: when to ask ps/core/lanes/cover.h, about which lanes, and to whom
 * they go. */
#include <stdlib.h>
#include <string.h>

#include "ps/core/partition/partition_internal.h"

void kelp_partition_clock(struct kelp_partition *partition, uint64_t now_us)
{
    /* Threads of a shard may read the clock in one order and get the lock in another. */
    partition->now_us = now_us > partition->now_us ? now_us : partition->now_us;
}

/* A pull that waits for the end of the current entry: its worker has finished its lanes. */
static bool waits_for_next(const struct kelp_partition *partition, const struct waiting_pull *pull)
{
    return pull->mode == KELP_PULL_VERSION
               ? pull->target == partition->version + 1
               : pull->mode == KELP_PULL_STEP && pull->target == partition->step + 1;
}

static kelp_status candidates_reserve(struct kelp_partition *partition, size_t count)
{
    if (count <= partition->candidate_capacity) {
        return KELP_OK;
    }
    struct kelp_cover_candidate *candidates =
        realloc(partition->candidates, count * sizeof(*candidates));
    if (!candidates) {
        return KELP_ERR_NO_MEMORY;
    }
    partition->candidates = candidates;
    partition->candidate_capacity = count;
    return KELP_OK;
}

/* Collect the workers that could compute more into partition->candidates. */
static size_t collect_candidates(struct kelp_partition *partition,
                                 const struct kelp_cover_candidate *spares, size_t spare_count)
{
    size_t count = 0;

    for (size_t i = 0; i < partition->waiting_count; i++) {
        if (partition->phase == KELP_PARTITION_COLLECTING &&
            waits_for_next(partition, &partition->waiting[i])) {
            partition->candidates[count++] = (struct kelp_cover_candidate){
                .requester = partition->waiting[i].requester, .rank = partition->waiting[i].rank};
        }
    }
    for (size_t i = 0; i < spare_count; i++) {
        partition->candidates[count++] = spares[i];
    }
    return count;
}

/* The partition may offer lanes of an entry if it knows the word and takes part in the entry. */
static bool may_offer(const struct kelp_partition *partition)
{
    if ((partition->phase != KELP_PARTITION_COLLECTING &&
         partition->phase != KELP_PARTITION_DECIDING) ||
        !partition->has_word || partition->word.kind == KELP_STEP_DONE) {
        return false;
    }
    return kelp__partition_holds_control(partition) || partition->word.kind == KELP_STEP_TRAIN;
}

/*
 * While a decision is late, no lane is missing, but the workers that carry shares and words may all
 * be gone. A spare carries them once it takes part in the step; it is asked to by an offer of lane
 * 0.
 */
static uint32_t find_missing(const struct kelp_partition *partition, uint8_t *ret_missing)
{
    if (partition->phase == KELP_PARTITION_COLLECTING) {
        return kelp_reduction_missing(partition->reduction, ret_missing);
    }
    memset(ret_missing, 0, partition->lanes);
    ret_missing[0] = 1;
    return 1;
}

static kelp_status offer_missing(struct kelp_partition *partition,
                                 const struct kelp_cover_candidate *spares, size_t spare_count,
                                 struct kelp_actions *actions, uint64_t *ret_next_us)
{
    uint8_t missing[KELP_JOB_LANES_MAX];
    struct kelp_cover_offer offers[KELP_JOB_LANES_MAX];

    if (kelp__actions_reserve(actions, partition->lanes) != KELP_OK ||
        candidates_reserve(partition, partition->waiting_count + spare_count) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    struct kelp_cover_need need = {.word = &partition->word,
                                   .now_us = partition->now_us,
                                   .missing = missing,
                                   .candidates = partition->candidates,
                                   .count = collect_candidates(partition, spares, spare_count)};
    *ret_next_us = UINT64_MAX;
    if (need.count == 0 || find_missing(partition, missing) == 0) {
        return KELP_OK;
    }
    uint32_t count = kelp_cover_choose(partition->cover, &need, offers, ret_next_us);
    for (uint32_t i = 0; i < count; i++) {
        kelp__actions_add(actions, KELP_ACTION_OFFER)->offer =
            (struct kelp_offer){.requester = offers[i].requester,
                                .word = partition->word,
                                .lane_first = offers[i].lane_first,
                                .lane_count = offers[i].lane_count};
        partition->offers += offers[i].lane_count;
    }
    return KELP_OK;
}

kelp_status kelp_partition_tick(struct kelp_partition *partition,
                                const struct kelp_cover_candidate *spares, size_t spare_count,
                                struct kelp_actions *actions, uint64_t *ret_next_us)
{
    *ret_next_us = UINT64_MAX;
    if (!may_offer(partition)) {
        return KELP_OK;
    }
    if (spare_count > 0) { /* spares are ready, even if no worker has begun the entry */
        kelp_cover_begin(partition->cover, partition->now_us);
    }
    uint64_t late_us = kelp_cover_late_us(partition->cover, partition->word.kind);
    if (partition->now_us < late_us) {
        *ret_next_us = late_us;
        return KELP_OK;
    }
    return offer_missing(partition, spares, spare_count, actions, ret_next_us);
}
