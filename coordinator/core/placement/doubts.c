#include "coordinator/core/placement/doubts.h"

#include <stddef.h>

static uint32_t place_of(const struct kelp_doubts *doubts, uint64_t primary, uint64_t follower)
{
    uint32_t at = 0;
    while (at < doubts->count &&
           (doubts->items[at].primary != primary || doubts->items[at].follower != follower)) {
        at++;
    }
    return at;
}

static const struct kelp_doubt *find(const struct kelp_doubts *doubts, uint64_t primary,
                                     uint64_t follower)
{
    uint32_t at = place_of(doubts, primary, follower);
    return at < doubts->count ? &doubts->items[at] : NULL;
}

/* Make room for another pair: drop the one named longest ago. */
static uint32_t make_room(struct kelp_doubts *doubts)
{
    uint32_t oldest = 0;
    if (doubts->count < KELP_COORDINATOR_DOUBTS_MAX) {
        return doubts->count++;
    }
    for (uint32_t i = 1; i < doubts->count; i++) {
        if (doubts->items[i].said_ms < doubts->items[oldest].said_ms) {
            oldest = i;
        }
    }
    return oldest;
}

static bool is_fresh(const struct kelp_doubt *doubt, uint64_t now_ms)
{
    return now_ms < doubt->said_ms + KELP_COORDINATOR_DOUBT_MS;
}

void kelp_doubts_say(struct kelp_doubts *doubts, uint64_t primary, uint64_t follower,
                     uint64_t now_ms)
{
    uint32_t at = place_of(doubts, primary, follower);
    if (at == doubts->count) {
        at = make_room(doubts);
        doubts->items[at] = (struct kelp_doubt){.primary = primary, .follower = follower};
        doubts->items[at].since_ms = now_ms;
    } else if (!is_fresh(&doubts->items[at], now_ms)) {
        doubts->items[at].since_ms = now_ms;
    }
    doubts->items[at].said_ms = now_ms;
}

bool kelp_doubts_last(const struct kelp_doubts *doubts, uint64_t primary, uint64_t follower,
                      uint64_t for_ms, uint64_t now_ms)
{
    const struct kelp_doubt *doubt = find(doubts, primary, follower);
    return doubt && is_fresh(doubt, now_ms) && now_ms >= doubt->since_ms + for_ms;
}

/* A pair that had no trouble for long starts anew with the shortest pause. */
void kelp_doubts_drop(struct kelp_doubts *doubts, uint64_t primary, uint64_t follower,
                      uint64_t now_ms)
{
    uint32_t at = place_of(doubts, primary, follower);
    if (at == doubts->count) {
        return;
    }
    struct kelp_doubt *doubt = &doubts->items[at];
    bool again = doubt->pause_ms > 0 && now_ms < doubt->until_ms + KELP_COORDINATOR_AVOID_MAX_MS;
    doubt->pause_ms = again ? 2 * doubt->pause_ms : KELP_COORDINATOR_AVOID_MS;
    if (doubt->pause_ms > KELP_COORDINATOR_AVOID_MAX_MS) {
        doubt->pause_ms = KELP_COORDINATOR_AVOID_MAX_MS;
    }
    doubt->until_ms = now_ms + doubt->pause_ms;
}

bool kelp_doubts_avoid(const struct kelp_doubts *doubts, uint64_t primary, uint64_t follower,
                       uint64_t now_ms)
{
    const struct kelp_doubt *doubt = find(doubts, primary, follower);
    return doubt && now_ms < doubt->until_ms;
}

uint32_t kelp_doubts_avoided(const struct kelp_doubts *doubts, uint64_t now_ms,
                             struct kelp_arrangement_pair ret_pairs[KELP_COORDINATOR_DOUBTS_MAX],
                             uint64_t *ret_until_ms)
{
    uint32_t count = 0;
    *ret_until_ms = 0;
    for (uint32_t i = 0; i < doubts->count; i++) {
        const struct kelp_doubt *doubt = &doubts->items[i];
        if (now_ms >= doubt->until_ms) {
            continue;
        }
        ret_pairs[count++] =
            (struct kelp_arrangement_pair){.primary = doubt->primary, .follower = doubt->follower};
        if (*ret_until_ms == 0 || doubt->until_ms < *ret_until_ms) {
            *ret_until_ms = doubt->until_ms;
        }
    }
    return count;
}
