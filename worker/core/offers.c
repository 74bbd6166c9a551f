#include "worker/core/offers.h"

#include <assert.h>
#include <string.h>

/* Where offers of this entry are kept, or a place that can be used for them; NULL: none. */
static struct kelp_offered *place_of(struct kelp_offers *offers,
                                     const struct kelp_control_word *word)
{
    struct kelp_offered *oldest = &offers->versions[0];

    for (uint32_t i = 0; i < KELP_OFFERS_VERSIONS; i++) {
        struct kelp_offered *offered = &offers->versions[i];
        if (offered->used && offered->word.version == word->version) {
            return offered;
        }
        if (!offered->used || (oldest->used && offered->word.version < oldest->word.version)) {
            oldest = offered;
        }
    }
    return !oldest->used || oldest->word.version < word->version ? oldest : NULL;
}

bool kelp_offers_add(struct kelp_offers *offers, const struct kelp_control_word *word,
                     uint32_t first, uint32_t count)
{
    struct kelp_offered *offered = place_of(offers, word);

    assert(first <= KELP_JOB_LANES_MAX && count <= KELP_JOB_LANES_MAX - first);
    if (!offered) {
        return false;
    }
    if (!offered->used || !kelp_control_word_equal(&offered->word, word)) {
        *offered = (struct kelp_offered){.used = true, .word = *word};
    }
    memset(offered->lanes + first, 1, count);
    return true;
}

void kelp_offers_fetched(struct kelp_offers *offers, const struct kelp_control_word *word)
{
    bool later = false;

    for (uint32_t i = 0; i < KELP_OFFERS_VERSIONS; i++) {
        const struct kelp_offered *offered = &offers->versions[i];
        if (offered->used && kelp_control_word_equal(&offered->word, word)) {
            return;
        }
        later = later || (offered->used && offered->word.step > word->step);
    }
    if (later) {
        (void)kelp_offers_add(offers, word, 0, 1); /* fits: two later entries are never open */
    }
}

void kelp_offers_clear(struct kelp_offers *offers)
{
    for (uint32_t i = 0; i < KELP_OFFERS_VERSIONS; i++) {
        offers->versions[i].used = false;
    }
}

bool kelp_offers_find(const struct kelp_offers *offers, const struct kelp_control_word *word,
                      const uint8_t computed[KELP_JOB_LANES_MAX], uint32_t *ret_first,
                      uint32_t *ret_count)
{
    for (uint32_t i = 0; i < KELP_OFFERS_VERSIONS; i++) {
        const struct kelp_offered *offered = &offers->versions[i];
        if (!offered->used || !kelp_control_word_equal(&offered->word, word)) {
            continue;
        }
        uint32_t first = 0;
        while (first < KELP_JOB_LANES_MAX && (!offered->lanes[first] || computed[first])) {
            first++;
        }
        uint32_t end = first;
        while (end < KELP_JOB_LANES_MAX && offered->lanes[end] && !computed[end]) {
            end++;
        }
        *ret_first = first;
        *ret_count = end - first;
        return end > first;
    }
    return false;
}
