#include "ps/core/evidence/evidence_held.h"

#include <stdlib.h>
#include <string.h>

void kelp__held_discard(struct held *held, struct kelp_actions *actions)
{
    if (held->state != HELD_MERGING && held->handle != KELP_HANDLE_NONE) {
        kelp__actions_add_release(actions, held->handle);
    }
    held->state = HELD_NONE;
    held->handle = KELP_HANDLE_NONE;
}

struct held *kelp__held_find(struct held_list *list, uint64_t serial, uint32_t node,
                             enum held_state state, const struct held *but)
{
    for (size_t i = 0; i < KELP_PS_EVIDENCE_HELD_MAX; i++) {
        struct held *held = &list->items[i];
        if (held->state == state && held->serial == serial && held->node == node && held != but) {
            return held;
        }
    }
    return NULL;
}

struct held *kelp__held_make_room(struct held_list *list, uint64_t serial,
                                  struct kelp_actions *actions)
{
    struct held *oldest = NULL;

    for (size_t i = 0; i < KELP_PS_EVIDENCE_HELD_MAX; i++) {
        struct held *held = &list->items[i];
        if (held->state == HELD_NONE) {
            list->is_used = true;
            return held;
        }
        if (held->serial < serial && (!oldest || held->serial < oldest->serial)) {
            oldest = held;
        }
    }
    if (oldest) {
        kelp__held_discard(oldest, actions);
    }
    return oldest;
}

void kelp__held_discard_all(struct held_list *list, uint64_t serial, struct kelp_actions *actions)
{
    if (!list->is_used) {
        return;
    }
    for (size_t i = 0; i < KELP_PS_EVIDENCE_HELD_MAX; i++) {
        struct held *held = &list->items[i];
        if (held->state != HELD_NONE && (serial == 0 || held->serial == serial)) {
            kelp__held_discard(held, actions);
        }
    }
}

/* False: out of memory. */
bool kelp__held_keep_sums(struct held *held, const double *sums, uint32_t count)
{
    held->sum_count = count;
    if (count == 0) {
        return true;
    }
    if (!held->sums) {
        held->sums = calloc(KELP_METRIC_SUM_COUNT, sizeof(held->sums[0]));
    }
    if (held->sums) {
        memcpy(held->sums, sums, count * sizeof(sums[0]));
    }
    return held->sums != NULL;
}

bool kelp__held_add_sums(struct held *sum, const struct held *left, const struct held *right)
{
    const uint32_t count = left->sum_count > right->sum_count ? left->sum_count : right->sum_count;

    if (count > 0 && !sum->sums) {
        sum->sums = calloc(KELP_METRIC_SUM_COUNT, sizeof(sum->sums[0]));
        if (!sum->sums) {
            return false;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        const double of_left = i < left->sum_count ? left->sums[i] : 0.0;
        const double of_right = i < right->sum_count ? right->sums[i] : 0.0;
        sum->sums[i] = of_left + of_right;
    }
    sum->sum_count = count;
    return true;
}

void kelp__held_fini(struct held_list *list)
{
    for (size_t i = 0; i < KELP_PS_EVIDENCE_HELD_MAX; i++) {
        free(list->items[i].sums);
    }
}
