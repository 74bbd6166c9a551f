#include "ps/core/evidence/evidence_claims.h"

#include <stdlib.h>
#include <string.h>

/* ---- sums of metrics ---- */

static uint64_t mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

uint64_t kelp__hash_sums(const double *sums, uint32_t count)
{
    uint64_t hash = 0;

    while (count > 0 && sums[count - 1] == 0.0) {
        count--;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        if (sums[i] == sums[i]) {
            memcpy(&bits, &sums[i], sizeof(bits));
        } else {
            bits = UINT64_MAX;
        }
        hash = mix(hash + bits + UINT64_C(0x9e3779b97f4a7c15));
    }
    return hash;
}

uint64_t kelp__hash_text(const char *text)
{
    uint64_t hash = 0;

    for (; *text != '\0'; text++) {
        hash = mix(hash + (unsigned char)*text + UINT64_C(0x9e3779b97f4a7c15));
    }
    return hash | 1;
}

struct claim *kelp__claim_find(struct entry *entry, uint32_t node)
{
    for (uint32_t i = 0; i < entry->claim_count; i++) {
        if (entry->claims[i].node == node) {
            return &entry->claims[i];
        }
    }
    return NULL;
}

bool kelp__claim_is_above(struct entry *entry, uint32_t node)
{
    for (uint32_t i = node / 2; i >= 1; i /= 2) {
        const struct claim *claim = kelp__claim_find(entry, i);
        if (claim && !claim->is_sum) {
            return true;
        }
    }
    return false;
}

bool kelp__claim_add(struct entry *entry, const struct claim *claim)
{
    if (entry->claim_count == entry->claim_capacity) {
        const uint32_t capacity = entry->claim_capacity ? 2 * entry->claim_capacity : 4;
        struct claim *claims = realloc(entry->claims, capacity * sizeof(*claims));
        if (!claims) {
            return false;
        }
        entry->claims = claims;
        entry->claim_capacity = capacity;
    }
    entry->claims[entry->claim_count++] = *claim;
    return true;
}

bool kelp__claim_same_content(const struct kelp_content *a, const struct kelp_content *b)
{
    const bool is_short = a->high == 0 || b->high == 0;

    return is_short ? (uint32_t)a->low == (uint32_t)b->low : a->low == b->low && a->high == b->high;
}

/* Followers are told the low 32 bits of a content, and zero means an empty node: a content that is
 * not empty but has these bits zero cannot be told. */
static bool can_be_told(const struct claim *claim)
{
    const struct kelp_content *content = &claim->content;

    return !claim->is_coming && ((uint32_t)content->low != 0 || content->high == 0);
}

static uint32_t tell_kind(const struct entry *entry, bool of_sums,
                          struct kelp_node_claim *ret_claims, uint32_t max)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < entry->claim_count && count < max; i++) {
        const struct claim *claim = &entry->claims[i];
        if (claim->is_sum == of_sums && can_be_told(claim)) {
            ret_claims[count++] = (struct kelp_node_claim){.node = claim->node,
                                                           .author = claim->author,
                                                           .is_sum = claim->is_sum,
                                                           .is_taken = claim->is_taken,
                                                           .content = (uint32_t)claim->content.low,
                                                           .sums = claim->sums};
        }
    }
    return count;
}

uint32_t kelp__claims_tell(const struct entry *entry, struct kelp_node_claim *ret_claims,
                           uint32_t max)
{
    const uint32_t pushed = tell_kind(entry, false, ret_claims, max);

    return pushed + tell_kind(entry, true, ret_claims + pushed, max - pushed);
}

static void add_author(struct kelp_authors *authors, uint32_t author)
{
    for (uint32_t i = 0; i < authors->count; i++) {
        if (authors->of[i] == author) {
            return;
        }
    }
    if (authors->count == KELP_AUTHORS_MAX) {
        authors->more = true;
        return;
    }
    authors->of[authors->count++] = author;
}

bool kelp__node_is_below(uint32_t node, uint32_t above)
{
    while (node > above) {
        node /= 2;
    }
    return node == above;
}

struct kelp_authors kelp__claim_authors(const struct entry *entry, const struct claim *claim,
                                        bool of_taken)
{
    struct kelp_authors authors = {.count = 0};

    for (uint32_t i = 0; claim->is_sum && i < entry->claim_count; i++) {
        const struct claim *part = &entry->claims[i];
        if (!part->is_sum && part->is_taken == of_taken &&
            kelp__node_is_below(part->node, claim->node)) {
            add_author(&authors, part->author);
        }
    }
    if (authors.count == 0) {
        add_author(&authors, claim->author);
    }
    return authors;
}
