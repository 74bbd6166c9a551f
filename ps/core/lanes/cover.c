/* When an entry is late, and which worker gets which lanes (cover.h); partition_offers.c asks. */
#include "ps/core/lanes/cover.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define HISTORY 15 /* durations whose median is taken: odd, and few enough to follow a change */
#define NEVER   UINT64_MAX

struct history {
    uint64_t durations_us[HISTORY]; /* a ring */
    uint32_t count;
    uint32_t next;
};

struct lane {
    uint64_t requester; /* to which the lane was offered last */
    uint64_t until_us;  /* the lane is not offered again before */
    uint32_t offers;    /* of the lane in the current entry */
};

struct kelp_cover {
    uint32_t lanes;
    bool begun;        /* begun_us is set */
    bool exact;        /* the entry was seen from its start, so its duration counts */
    bool helped;       /* a worker pushed a node that was offered to it */
    bool offered;      /* lanes are offered and not pushed yet */
    bool has_first;    /* first_us is set */
    uint64_t begun_us; /* when the current entry began */
    uint64_t first_us; /* when its first node came */
    struct history histories[KELP_PACE_KINDS];
    struct lane of_lane[];
};

struct kelp_cover *kelp_cover_create(uint32_t lanes)
{
    struct kelp_cover *cover =
        calloc(1, sizeof(*cover) + (size_t)lanes * sizeof(cover->of_lane[0]));

    if (cover) {
        cover->lanes = lanes;
    }
    return cover;
}

void kelp_cover_destroy(struct kelp_cover *cover)
{
    free(cover);
}

/* ---- durations ---- */

static void forget_offers(struct kelp_cover *cover)
{
    cover->helped = false;
    cover->has_first = false;
    if (cover->offered) {
        memset(cover->of_lane, 0, (size_t)cover->lanes * sizeof(cover->of_lane[0]));
        cover->offered = false;
    }
}

void kelp_cover_restart(struct kelp_cover *cover)
{
    memset(cover->histories, 0, sizeof(cover->histories));
    cover->begun = false;
    cover->exact = false;
    forget_offers(cover);
}

void kelp_cover_begin(struct kelp_cover *cover, uint64_t now_us)
{
    if (!cover->begun) {
        kelp_cover_begin_late(cover, now_us); /* workers start one by one: not measured */
    }
}

void kelp_cover_begin_late(struct kelp_cover *cover, uint64_t now_us)
{
    cover->begun = true;
    cover->exact = false;
    cover->begun_us = now_us;
}

static void keep_duration(struct history *history, uint64_t duration_us)
{
    history->durations_us[history->next] = duration_us;
    history->next = (history->next + 1) % HISTORY;
    history->count += history->count < HISTORY;
}

void kelp_cover_complete(struct kelp_cover *cover, enum kelp_step_kind kind, uint64_t now_us)
{
    if (cover->begun && cover->exact && !cover->helped && now_us >= cover->begun_us) {
        keep_duration(&cover->histories[kind], now_us - cover->begun_us);
    }
    forget_offers(cover);
    cover->begun = true;
    cover->exact = true;
    cover->begun_us = now_us;
}

static int compare_durations(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a;
    uint64_t right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

static uint64_t median(const struct history *history)
{
    uint64_t sorted[HISTORY];

    assert(history->count > 0);
    memcpy(sorted, history->durations_us, history->count * sizeof(sorted[0]));
    qsort(sorted, history->count, sizeof(sorted[0]), compare_durations);
    return sorted[history->count / 2];
}

void kelp_cover_pace(const struct kelp_cover *cover, struct kelp_pace *ret_pace)
{
    for (uint32_t i = 0; i < KELP_PACE_KINDS; i++) {
        const struct history *history = &cover->histories[i];
        ret_pace->median_us[i] = history->count > 0 ? median(history) : 0;
    }
}

void kelp_cover_hear_pace(struct kelp_cover *cover, const struct kelp_pace *pace)
{
    for (uint32_t i = 0; i < KELP_PACE_KINDS; i++) {
        const uint64_t heard_us = pace->median_us[i];
        if (cover->histories[i].count == 0 && heard_us > 0 && heard_us <= KELP_COVER_PACE_US_MAX) {
            keep_duration(&cover->histories[i], heard_us);
        }
    }
}

/* How long the current entry may take before it is late. */
static uint64_t patience_us(const struct kelp_cover *cover, enum kelp_step_kind kind)
{
    const struct history *history = &cover->histories[kind];

    if (history->count > 0) {
        uint64_t allowed = KELP_COVER_MEDIANS * median(history);
        return allowed > KELP_COVER_FLOOR_US ? allowed : KELP_COVER_FLOOR_US;
    }
    if (cover->has_first && cover->first_us >= cover->begun_us) {
        return KELP_COVER_UNKNOWN_US + KELP_COVER_MEDIANS * (cover->first_us - cover->begun_us);
    }
    return KELP_COVER_SILENT_US;
}

uint64_t kelp_cover_late_us(const struct kelp_cover *cover, enum kelp_step_kind kind)
{
    return cover->begun ? cover->begun_us + patience_us(cover, kind) : NEVER;
}

/* ---- offers ---- */

void kelp_cover_pushed(struct kelp_cover *cover, uint64_t requester, uint32_t lane_first,
                       uint32_t lane_count, uint64_t now_us)
{
    assert(lane_first + lane_count <= cover->lanes);
    if (!cover->has_first) {
        cover->has_first = true;
        cover->first_us = now_us;
    }
    for (uint32_t i = lane_first; cover->offered && i < lane_first + lane_count; i++) {
        cover->helped |= cover->of_lane[i].offers > 0 && cover->of_lane[i].requester == requester;
    }
}

void kelp_cover_gone(struct kelp_cover *cover, uint64_t requester)
{
    for (uint32_t i = 0; cover->offered && i < cover->lanes; i++) {
        if (cover->of_lane[i].requester == requester) {
            cover->of_lane[i].until_us = 0;
        }
    }
}

static int compare_candidates(const void *a, const void *b)
{
    const struct kelp_cover_candidate *left = a;
    const struct kelp_cover_candidate *right = b;

    if (left->rank != right->rank) {
        return left->rank < right->rank ? -1 : 1;
    }
    return (left->requester > right->requester) - (left->requester < right->requester);
}

/* Sort the candidates and remove duplicates. Returns how many remain. */
static size_t sort_candidates(struct kelp_cover_candidate *candidates, size_t count)
{
    size_t kept = 0;

    qsort(candidates, count, sizeof(candidates[0]), compare_candidates);
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || candidates[kept - 1].requester != candidates[i].requester) {
            candidates[kept++] = candidates[i];
        }
    }
    return kept;
}

/* The largest node size that leaves a node for every candidate. */
static uint32_t node_max(uint32_t lanes, size_t candidates)
{
    uint32_t size = 1;

    while (2 * (uint64_t)size * candidates <= lanes) {
        size *= 2;
    }
    return size;
}

/* Lanes of the largest aligned node at `first` whose lanes are all open; 0: lane `first` is not
 * open. */
static uint32_t open_node(const uint8_t *open, uint32_t lanes, uint32_t first, uint32_t size_max)
{
    uint32_t size = 1;

    if (!open[first]) {
        return 0;
    }
    while (2 * size <= size_max && first % (2 * size) == 0 && first + 2 * size <= lanes &&
           memchr(open + first + size, 0, size) == NULL) {
        size *= 2;
    }
    return size;
}

/* Choose the candidate for a node: it rotates with the entry and the node, and moves on when the
 * candidate before did not push the node. */
static uint64_t pick(const struct kelp_cover *cover, const struct kelp_cover_need *need,
                     size_t count, uint32_t first, uint32_t node)
{
    const struct lane *lane = &cover->of_lane[first];
    size_t at = (size_t)((need->word->version + node + lane->offers) % count);

    if (lane->offers > 0 && need->candidates[at].requester == lane->requester) {
        at = (at + 1) % count;
    }
    return need->candidates[at].requester;
}

static uint64_t life_us(uint64_t first_us, uint32_t offers)
{
    uint64_t life = first_us;

    for (uint32_t i = 0; i < offers && life < KELP_COVER_OFFER_US_MAX; i++) {
        life *= 2;
    }
    return life < KELP_COVER_OFFER_US_MAX ? life : KELP_COVER_OFFER_US_MAX;
}

static uint64_t first_expiry(const struct kelp_cover *cover, const uint8_t *missing)
{
    uint64_t next_us = NEVER;

    for (uint32_t i = 0; i < cover->lanes; i++) {
        if (missing[i] && cover->of_lane[i].offers > 0 && cover->of_lane[i].until_us < next_us) {
            next_us = cover->of_lane[i].until_us;
        }
    }
    return next_us;
}

/* Mark the lanes that are missing and not offered to anybody. */
static uint32_t mark_open(const struct kelp_cover *cover, const struct kelp_cover_need *need,
                          uint8_t *open)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < cover->lanes; i++) {
        open[i] = need->missing[i] && cover->of_lane[i].until_us <= need->now_us;
        count += open[i];
    }
    return count;
}

uint32_t kelp_cover_choose(struct kelp_cover *cover, const struct kelp_cover_need *need,
                           struct kelp_cover_offer *ret_offers, uint64_t *ret_next_us)
{
    uint64_t first_us = patience_us(cover, need->word->kind);
    uint8_t open[KELP_JOB_LANES_MAX];
    size_t count = sort_candidates(need->candidates, need->count);
    uint32_t open_count = mark_open(cover, need, open);
    uint32_t offers = 0;

    assert(cover->lanes <= KELP_JOB_LANES_MAX);
    for (uint32_t first = 0; count > 0 && first < cover->lanes;) {
        uint32_t size = open_node(open, cover->lanes, first, node_max(open_count, count));
        if (size == 0) {
            first++;
            continue;
        }
        uint64_t requester = pick(cover, need, count, first, offers);
        for (uint32_t i = first; i < first + size; i++) {
            struct lane *lane = &cover->of_lane[i];
            lane->until_us = need->now_us + life_us(first_us, lane->offers);
            lane->requester = requester;
            lane->offers++;
        }
        cover->offered = true;
        ret_offers[offers++] = (struct kelp_cover_offer){
            .requester = requester, .lane_first = first, .lane_count = size};
        first += size;
    }
    *ret_next_us = first_expiry(cover, need->missing);
    return offers;
}
