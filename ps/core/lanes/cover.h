/*
 * When an entry is late, and who is asked to compute what is missing of it (docs/ARCHITECTURE.md,
 * "The life of a lost worker"). Pure: it belongs to ps/core/partition/partition.h, which tells it
 * the time.
 *
 * An entry is late when it has taken three times the median of the last entries of its kind, and at
 * least 12 ms. Whoever gets the offer then computes for about one more median. So a lost worker
 * costs no more than the larger of 4 medians and 20 ms.
 *
 * Each lane is offered to one candidate at a time. Only when an offer has expired does it go to
 * another one, for twice as long: a cluster that is slow by itself is asked ever more rarely.
 *
 * The time of an entry to which an offer contributed is not kept. It says nothing about how long
 * entries take, and each covered entry would make the next one wait longer.
 */
#ifndef KELP_PS_CORE_LANES_COVER_H
#define KELP_PS_CORE_LANES_COVER_H

#include "common/training/control.h"
#include "ps/core/partition_events.h"

#define KELP_COVER_MEDIANS  3     /* an entry is late after so many */
#define KELP_COVER_FLOOR_US 12000 /* and not earlier: below it stand scheduling and wake-ups */
/* Where no entry of the kind was seen yet: an entry is late after three times what its first node
 * took, and this. */
#define KELP_COVER_UNKNOWN_US 20000
/* Nothing of the kind was seen, and nobody has sent a node. */
#define KELP_COVER_SILENT_US 1000000
/* The longest median that is believed of another process. */
#define KELP_COVER_PACE_US_MAX 86400000000
/* An offer's longest life. */
#define KELP_COVER_OFFER_US_MAX 10000000

struct kelp_cover;

/* lanes is a power of two. NULL: out of memory. */
struct kelp_cover *kelp_cover_create(uint32_t lanes);
void kelp_cover_destroy(struct kelp_cover *cover);

/* A generation begins: nothing is known any more. */
void kelp_cover_restart(struct kelp_cover *cover);
/* Somebody works on the first entry of a generation. Later calls do nothing. */
void kelp_cover_begin(struct kelp_cover *cover, uint64_t now_us);
/* The current entry begins only now, and its length will not be known: the partition was not told
 * of entries that went before it. */
void kelp_cover_begin_late(struct kelp_cover *cover, uint64_t now_us);
/* A node of the current entry was taken in from this requester. */
void kelp_cover_pushed(struct kelp_cover *cover, uint64_t requester, uint32_t lane_first,
                       uint32_t lane_count, uint64_t now_us);
/* The current entry, of this kind, is complete, and the next one begins. */
void kelp_cover_complete(struct kelp_cover *cover, enum kelp_step_kind kind, uint64_t now_us);
void kelp_cover_pace(const struct kelp_cover *cover, struct kelp_pace *ret_pace);
/* What another process saw of the same entries: it counts as one, where none was seen here. */
void kelp_cover_hear_pace(struct kelp_cover *cover, const struct kelp_pace *pace);
/* The requester is gone: what was offered to it may be offered to others at once. */
void kelp_cover_gone(struct kelp_cover *cover, uint64_t requester);

/* When the current entry, of this kind, is late; UINT64_MAX: nobody works on it yet. */
uint64_t kelp_cover_late_us(const struct kelp_cover *cover, enum kelp_step_kind kind);

/* Somebody who could compute more. */
struct kelp_cover_candidate {
    uint64_t requester;
    uint64_t rank; /* candidates are asked in this order: the same for all partitions, so that they
                      ask the same one for the same lanes */
};

struct kelp_cover_offer {
    uint64_t requester;
    uint32_t lane_first; /* aligned */
    uint32_t lane_count;
};

/* What decides about the offers of a late entry. */
struct kelp_cover_need {
    const struct kelp_control_word *word;
    uint64_t now_us;
    const uint8_t *missing;                  /* [lanes], 1: nobody has sent it */
    struct kelp_cover_candidate *candidates; /* reordered; a requester may be there twice */
    size_t count;
};

/*
 * Offer the lanes that are missing and not out with anybody to the candidates: maximal aligned
 * nodes, but small enough that all candidates get some. ret_offers has room for all lanes.
 * *ret_next_us: when the first of all offers that are out expires; UINT64_MAX: there are none.
 */
uint32_t kelp_cover_choose(struct kelp_cover *cover, const struct kelp_cover_need *need,
                           struct kelp_cover_offer *ret_offers, uint64_t *ret_next_us);

#endif
