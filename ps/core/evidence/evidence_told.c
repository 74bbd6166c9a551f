/* What followers are told of the evidence, and what a follower hears of its primary. */
#include "ps/core/evidence/evidence_internal.h"

uint32_t kelp_evidence_tell(const struct kelp_evidence *evidence, uint64_t key,
                            struct kelp_node_claim *ret_claims)
{
    const struct entry *entry = kelp__evidence_find(evidence, key);

    return entry ? kelp__claims_tell(entry, ret_claims, KELP_PS_EVIDENCE_TOLD_MAX) : 0;
}

uint32_t kelp_evidence_known(const struct kelp_evidence *evidence, uint32_t back,
                             struct kelp_control_word *ret_word, struct kelp_node_claim *ret_claims)
{
    const uint64_t serial = evidence->serial > back ? evidence->serial - back : 0;
    const struct entry *entry = &evidence->entries[serial % KELP_PS_EVIDENCE_ENTRIES];

    if (serial == 0 || entry->serial != serial || !entry->is_complete || entry->is_left_out) {
        return 0;
    }
    *ret_word = entry->word;
    return kelp__claims_tell(entry, ret_claims, KELP_PS_EVIDENCE_TOLD_MAX);
}

void kelp_evidence_filled(struct kelp_evidence *evidence, uint64_t key)
{
    for (uint32_t i = 0; i < KELP_PS_EVIDENCE_ENTRIES; i++) {
        struct entry *entry = &evidence->entries[i];
        entry->is_complete = entry->is_complete || (entry->serial != 0 && entry->key < key);
    }
}

void kelp_evidence_demote(struct kelp_evidence *evidence, struct kelp_actions *actions)
{
    struct entry *newest = kelp__evidence_entry(evidence, evidence->serial);

    kelp__held_discard_all(&evidence->held, 0, actions);
    evidence->disputed = 0;
    if (newest && !newest->is_complete) {
        newest->is_left_out = true;
        newest->claim_count = 0;
    }
}

void kelp_evidence_told(struct kelp_evidence *evidence, uint64_t key,
                        const struct kelp_forward *forward, struct kelp_actions *actions)
{
    struct entry *entry = kelp__evidence_find(evidence, key);

    if (entry && (entry->is_complete || !entry->is_left_out)) {
        return;
    }
    if (!entry) {
        entry = kelp__evidence_open(evidence, key, &forward->word, actions);
    }
    entry->is_left_out = false;
    for (uint32_t i = 0; i < forward->claim_count; i++) {
        const struct kelp_node_claim *told = &forward->claims[i];
        const struct claim claim = {.content = {.low = told->content},
                                    .sums = told->sums,
                                    .author = told->author,
                                    .node = (uint16_t)told->node,
                                    .is_sum = told->is_sum,
                                    .is_taken = told->is_taken};
        if (told->node > 0 && told->node < 2 * evidence->lanes &&
            !kelp__claim_find(entry, told->node)) {
            (void)kelp__claim_add(entry, &claim); /* out of memory: the claim is not compared */
        }
    }
}
