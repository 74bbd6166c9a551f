/* Which worker pushed what, as a primary tells its followers: workers have numbers of the
 * primary, whose names it sends first. */
#include <stdlib.h>

#include "ps/service/replicas/replicas_internal.h"

kelp_status kelp__service_author_take(struct kelp_service *service, struct service_author **authors,
                                      const Kelp__V1__Author *author, const char *shard,
                                      struct kelp_error *reterr)
{
    if (author->number == 0 || author->id[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "a worker without a number or a name");
    }
    if (!*authors) {
        *authors = calloc(KELP_PS_AUTHORS_MAX, sizeof(**authors));
    }
    if (!*authors) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for names of workers");
    }
    (*authors)[author->number % KELP_PS_AUTHORS_MAX] = (struct service_author){
        .theirs = author->number, .ours = kelp__service_author_told(service, author->id, shard)};
    return KELP_OK;
}

/* Our number of a worker, from the primary's. 0: unknown. */
static uint32_t author_here(const struct service_author *authors, uint32_t theirs)
{
    const struct service_author *known = authors ? &authors[theirs % KELP_PS_AUTHORS_MAX] : NULL;

    return known && known->theirs == theirs ? known->ours : 0;
}

void kelp__service_claim_put(const struct kelp_node_claim *claim, size_t index,
                             Kelp__V1__Forward *item)
{
    item->claim_node[index] = 4 * claim->node + (claim->is_taken ? 2 : 0) + (claim->is_sum ? 1 : 0);
    item->claim_author[index] = claim->author;
    item->claim_content[index] = claim->content;
    if (item->n_claim_sums > 0) {
        item->claim_sums[index] = claim->sums;
    }
}

kelp_status kelp__service_claims_read(const struct service_author *authors,
                                      const Kelp__V1__Forward *item,
                                      struct kelp_node_claim claims[KELP_PS_EVIDENCE_TOLD_MAX],
                                      struct kelp_error *reterr)
{
    const size_t count = item->n_claim_node;

    if (count > KELP_PS_EVIDENCE_TOLD_MAX || item->n_claim_author != count ||
        item->n_claim_content != count ||
        (item->n_claim_sums != 0 && item->n_claim_sums != count)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "root of partition %u with %zu nodes, %zu authors, %zu digests",
                         item->partition, count, item->n_claim_author, item->n_claim_content);
    }
    for (size_t i = 0; i < count; i++) {
        claims[i] =
            (struct kelp_node_claim){.node = item->claim_node[i] / 4,
                                     .is_taken = (item->claim_node[i] & 2) != 0,
                                     .is_sum = (item->claim_node[i] & 1) != 0,
                                     .author = author_here(authors, item->claim_author[i]),
                                     .content = item->claim_content[i],
                                     .sums = item->n_claim_sums > 0 ? item->claim_sums[i] : 0};
    }
    return KELP_OK;
}

/* Allocate the entries, with their claims behind them. NULL: out of memory. */
static struct kelp_forward *make_known(const Kelp__V1__CopyState *state,
                                       struct kelp_node_claim **ret_claims)
{
    size_t claims = 0;

    for (size_t i = 0; i < state->n_known; i++) {
        claims += state->known[i]->n_claim_node;
    }
    struct kelp_forward *known =
        malloc(state->n_known * sizeof(*known) + claims * sizeof(**ret_claims) + 1);
    *ret_claims = (struct kelp_node_claim *)(void *)(known + state->n_known);
    return known;
}

kelp_status kelp__service_known_read(const struct service_author *authors,
                                     const Kelp__V1__CopyState *state,
                                     struct kelp_forward **ret_known, struct kelp_error *reterr)
{
    struct kelp_node_claim *claims = NULL;
    kelp_status status = KELP_OK;

    if (state->n_known > KELP_PS_EVIDENCE_ENTRIES) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "copy with %zu entries, at most %d",
                         state->n_known, KELP_PS_EVIDENCE_ENTRIES);
    }
    struct kelp_forward *known = make_known(state, &claims);
    if (!known) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a copy");
    }
    for (size_t i = 0; status == KELP_OK && i < state->n_known; i++) {
        const Kelp__V1__Forward *item = state->known[i];
        known[i] =
            (struct kelp_forward){.claims = claims, .claim_count = (uint32_t)item->n_claim_node};
        status = kelp__service_claims_read(authors, item, claims, reterr);
        if (status == KELP_OK && (!item->word || !kelp_wire_get_word(item->word, &known[i].word))) {
            status = kelp_fail(reterr, KELP_ERR_FORMAT, "copy with an entry without a good word");
        }
        claims += item->n_claim_node;
    }
    if (status != KELP_OK) {
        free(known);
        return status;
    }
    *ret_known = known;
    return KELP_OK;
}
