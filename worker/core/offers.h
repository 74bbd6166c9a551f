/*
 * Lanes of late entries that shards have offered to this worker. Pure.
 *
 * Partitions offer on their own, so the same lanes come several times, and two versions may be open
 * at once: one partition lacks lanes of v while another, which has them, waits for v + 1, for which
 * nobody has the weights yet. Both are kept; of older ones nothing is left to do.
 */
#ifndef KELP_WORKER_CORE_OFFERS_H
#define KELP_WORKER_CORE_OFFERS_H

#include <stdint.h>

#include "common/training/control.h"

#define KELP_OFFERS_VERSIONS 2

/* In the caller's memory; all zero: none. */
struct kelp_offers {
    struct kelp_offered {
        bool used;
        struct kelp_control_word word;
        uint8_t lanes[KELP_JOB_LANES_MAX]; /* 1: offered */
    } versions[KELP_OFFERS_VERSIONS];
};

/* Lanes [first, first + count), at most KELP_JOB_LANES_MAX, of the entry `word`. False: there are
 * offers of later entries, and no room. */
bool kelp_offers_add(struct kelp_offers *offers, const struct kelp_control_word *word,
                     uint32_t first, uint32_t count);
/*
 * A spare has fetched weights for an offer, and holds the entry `word`. When that offer was of a
 * later step, and there is none of this one, some partition lags and asks nobody, since it never
 * got the word: those who had it died. Then lane 0 of `word` is added: pushing it brings the word,
 * and the partition offers what else it lacks.
 */
void kelp_offers_fetched(struct kelp_offers *offers, const struct kelp_control_word *word);
/* A new generation: nothing of the old one counts. */
void kelp_offers_clear(struct kelp_offers *offers);

/* The first run of lanes offered of the entry `word` for which computed[lane] is 0. */
bool kelp_offers_find(const struct kelp_offers *offers, const struct kelp_control_word *word,
                      const uint8_t computed[KELP_JOB_LANES_MAX], uint32_t *ret_first,
                      uint32_t *ret_count);

#endif
