#include "ps/core/evidence/evidence_internal.h"

#include <assert.h>
#include <stdlib.h>

/* A token of the evidence: this bit, the entry's serial, and the node. */
#define TOKEN_OURS      (UINT64_C(1) << 63)
#define TOKEN_TREE      (UINT64_C(1) << 62) /* for a node of the tree, whose content is not held */
#define TOKEN_NODE_BITS 11                  /* nodes of KELP_JOB_LANES_MAX lanes */
#define TOKEN_NODE_MASK ((UINT64_C(1) << TOKEN_NODE_BITS) - 1)

_Static_assert(2 * KELP_JOB_LANES_MAX <= 1 << TOKEN_NODE_BITS, "a node's index fits in a token");

struct kelp_evidence *kelp_evidence_create(uint32_t lanes)
{
    struct kelp_evidence *evidence = calloc(1, sizeof(*evidence));

    if (evidence) {
        evidence->lanes = lanes;
    }
    return evidence;
}

void kelp_evidence_destroy(struct kelp_evidence *evidence)
{
    if (!evidence) {
        return;
    }
    for (size_t i = 0; i < KELP_PS_EVIDENCE_ENTRIES; i++) {
        free(evidence->entries[i].claims);
    }
    kelp__held_fini(&evidence->held);
    free(evidence);
}

size_t kelp_evidence_actions_max(void)
{
    return KELP_PS_EVIDENCE_HELD_MAX + 8;
}

/* ---- entries ---- */

static uint32_t node_of(const struct kelp_evidence *evidence, uint32_t lane_first,
                        uint32_t lane_count)
{
    return evidence->lanes / lane_count + lane_first / lane_count;
}

struct entry *kelp__evidence_entry(struct kelp_evidence *evidence, uint64_t serial)
{
    struct entry *entry = &evidence->entries[serial % KELP_PS_EVIDENCE_ENTRIES];

    return serial != 0 && entry->serial == serial ? entry : NULL;
}

/* Mostly one of the newest. */
struct entry *kelp__evidence_find(const struct kelp_evidence *evidence, uint64_t key)
{
    for (uint64_t i = 0; i < KELP_PS_EVIDENCE_ENTRIES && i < evidence->serial; i++) {
        const uint64_t serial = evidence->serial - i;
        const struct entry *entry = &evidence->entries[serial % KELP_PS_EVIDENCE_ENTRIES];
        if (entry->serial == serial && entry->key == key) {
            return (struct entry *)entry;
        }
    }
    return NULL;
}

void kelp_evidence_clear(struct kelp_evidence *evidence, struct kelp_actions *actions)
{
    kelp__held_discard_all(&evidence->held, 0, actions);
    evidence->found = false;
    evidence->disputed = 0;
    for (size_t i = 0; i < KELP_PS_EVIDENCE_ENTRIES; i++) {
        evidence->entries[i].serial = 0;
    }
}

/* ---- comparing ---- */

static void tell(struct kelp_evidence *evidence, struct entry *entry,
                 const struct kelp_conflict *conflict, struct kelp_actions *actions)
{
    if (!entry->is_told) {
        entry->is_told = true;
        evidence->found = true;
        kelp__actions_add(actions, KELP_ACTION_CONFLICT)->conflict = *conflict;
    }
}

static struct kelp_authors one(uint32_t author)
{
    return (struct kelp_authors){.of = {author}, .count = 1};
}

static struct kelp_conflict conflict_of(const struct entry *entry, enum kelp_conflict_kind kind,
                                        struct kelp_authors first, struct kelp_authors second)
{
    return (struct kelp_conflict){.kind = kind,
                                  .version = entry->word.version,
                                  .step = entry->word.step,
                                  .first = first,
                                  .second = second};
}

/* Another worker's content for the node; true: it agrees with the claim. */
static bool agrees(struct kelp_evidence *evidence, struct entry *entry, struct claim *claim,
                   const struct claim *other, struct kelp_actions *actions)
{
    const bool same_content = kelp__claim_same_content(&claim->content, &other->content);
    uint32_t level_first = 1;

    assert(claim->node == other->node);
    if (claim->is_coming && claim->sums == other->sums) {
        claim->is_doubted = true;
        claim->author = other->author;
        claim->content = other->content;
        return true;
    }
    if (same_content && claim->sums == other->sums) {
        return true;
    }
    while (2 * level_first <= claim->node) {
        level_first *= 2;
    }
    struct kelp_conflict conflict = conflict_of(
        entry, same_content ? KELP_CONFLICT_SUMS : KELP_CONFLICT_GRADIENT,
        kelp__claim_authors(entry, claim, true), kelp__claim_authors(entry, other, false));
    conflict.lane_count = evidence->lanes / level_first;
    conflict.lane_first = (claim->node - level_first) * conflict.lane_count;
    if (same_content || entry->is_complete) {
        tell(evidence, entry, &conflict, actions);
    } else if (evidence->disputed != entry->serial) {
        evidence->disputed = entry->serial;
        evidence->dispute = conflict;
    }
    return false;
}

/* The content of the held node became known; true: it equals the claim, now or earlier. */
static bool derive(struct kelp_evidence *evidence, struct entry *entry, const struct held *held,
                   const struct kelp_content *content, struct kelp_actions *actions)
{
    const struct claim other = {.content = *content,
                                .sums = kelp__hash_sums(held->sums, held->sum_count),
                                .author = held->author,
                                .node = (uint16_t)held->node,
                                .is_sum = true};
    struct claim *claim = kelp__claim_find(entry, held->node);

    return claim ? agrees(evidence, entry, claim, &other, actions) : kelp__claim_add(entry, &other);
}

static uint64_t token_of(const struct entry *entry, uint32_t node)
{
    return TOKEN_OURS | entry->serial << TOKEN_NODE_BITS | node;
}

/* The sibling is there too: the two become their parent, which takes the place of `held`. */
static void join(const struct entry *entry, struct held *held, struct held *sibling,
                 struct kelp_actions *actions)
{
    const bool is_left = held->node % 2 == 0;
    const struct held *left = is_left ? held : sibling;
    const struct held *right = is_left ? sibling : held;
    const uint64_t left_handle = left->handle;
    const uint64_t right_handle = right->handle;

    if (!kelp__held_add_sums(held, left, right)) {
        kelp__held_discard(held, actions);
        return;
    }
    sibling->state = HELD_NONE;
    sibling->handle = KELP_HANDLE_NONE;
    held->node /= 2;
    if (left_handle == KELP_HANDLE_NONE || right_handle == KELP_HANDLE_NONE) {
        held->handle = left_handle != KELP_HANDLE_NONE ? left_handle : right_handle;
        return;
    }
    held->handle = KELP_HANDLE_NONE;
    held->state = HELD_MERGING;
    struct kelp_action *action = kelp__actions_add(actions, KELP_ACTION_MERGE);
    action->merge.left = left_handle;
    action->merge.right = right_handle;
    action->merge.token = token_of(entry, held->node);
    action->merge.is_root = false; /* it is compared, not applied */
}

/* The held node is ready: add it to its sibling, up to the node that is claimed above. */
static void climb(struct kelp_evidence *evidence, struct entry *entry, struct held *held,
                  struct kelp_actions *actions)
{
    while (held->state == HELD_READY) {
        struct held *sibling =
            kelp__held_find(&evidence->held, entry->serial, held->node ^ 1, HELD_READY, NULL);
        if (!kelp__claim_is_above(entry, held->node) ||
            kelp__held_find(&evidence->held, entry->serial, held->node, HELD_READY, held)) {
            kelp__held_discard(held, actions);
            return;
        }
        if (!sibling) {
            return;
        }
        struct claim *ours = kelp__claim_find(entry, held->node);
        struct claim *theirs = kelp__claim_find(entry, sibling->node);
        assert(ours && theirs); /* what is ready is claimed */
        struct kelp_content content = {.low = ours->content.low | theirs->content.low,
                                       .high = ours->content.high | theirs->content.high};
        ours->is_spent = true;
        theirs->is_spent = true;
        join(entry, held, sibling, actions);
        /* One of the two is empty and counts as zeros, so the other's content is that of both. */
        if (held->state == HELD_READY && !derive(evidence, entry, held, &content, actions)) {
            kelp__held_discard(held, actions);
        }
    }
}

/* ---- events ---- */

struct entry *kelp__evidence_open(struct kelp_evidence *evidence, uint64_t key,
                                  const struct kelp_control_word *word,
                                  struct kelp_actions *actions)
{
    struct entry *entry = &evidence->entries[++evidence->serial % KELP_PS_EVIDENCE_ENTRIES];
    struct claim *claims = entry->claims;
    const uint32_t capacity = entry->claim_capacity;

    if (entry->serial != 0) {
        kelp__held_discard_all(&evidence->held, entry->serial, actions);
    }
    *entry = (struct entry){.serial = evidence->serial,
                            .key = key,
                            .word = *word,
                            .claims = claims,
                            .claim_capacity = capacity};
    return entry;
}

/* True if nobody sent a different digest of the weights before. */
static bool same_digest(struct kelp_evidence *evidence, struct entry *entry,
                        const struct kelp_push *push, struct kelp_actions *actions)
{
    if (!entry->word.digest_due || push->lane_first != 0 || !push->digest) {
        return true;
    }
    const uint64_t digest = kelp__hash_text(push->digest);
    if (entry->digest == 0) {
        entry->digest = digest;
        entry->digest_author = push->author;
    }
    if (entry->digest == digest) {
        return true;
    }
    const struct kelp_conflict conflict =
        conflict_of(entry, KELP_CONFLICT_DIGEST, one(entry->digest_author), one(push->author));
    tell(evidence, entry, &conflict, actions);
    return false;
}

static struct claim claim_of(const struct kelp_evidence *evidence, const struct kelp_push *push)
{
    return (struct claim){.content = push->content,
                          .sums = kelp__hash_sums(push->sums, push->sum_count),
                          .author = push->author,
                          .node = (uint16_t)node_of(evidence, push->lane_first, push->lane_count)};
}

void kelp_evidence_taken(struct kelp_evidence *evidence, uint64_t key, const struct kelp_push *push,
                         struct kelp_actions *actions)
{
    struct entry *entry = kelp__evidence_entry(evidence, evidence->serial);
    struct claim claim = claim_of(evidence, push);

    if (!entry || entry->key != key) {
        entry = kelp__evidence_open(evidence, key, push->word, actions);
    }
    for (uint32_t i = 0; i < entry->claim_count; i++) {
        if (kelp__node_is_below(entry->claims[i].node, claim.node)) {
            entry->claims[i].is_taken = false; /* it is replaced */
        }
    }
    claim.is_taken = true;
    (void)same_digest(evidence, entry, push, actions);
    (void)kelp__claim_add(entry, &claim); /* without memory it is not compared */
}

/* Start a COMPARE; an empty node needs no computation. */
static void ask_content(struct kelp_evidence *evidence, const struct entry *entry,
                        struct held *held, struct kelp_actions *actions)
{
    const uint64_t token = token_of(entry, held->node);

    held->state = HELD_COMPARING;
    if (held->handle == KELP_HANDLE_NONE) {
        kelp_evidence_compared(evidence, token, &(struct kelp_content){0}, actions);
        return;
    }
    struct kelp_action *action = kelp__actions_add(actions, KELP_ACTION_COMPARE);
    action->compare.handle = held->handle;
    action->compare.token = token;
}

/* The node has content; if its sibling is empty, that is the parent's content too. */
static bool is_empty(const struct claim *claim)
{
    return claim->content.low == 0 && claim->content.high == 0 && !claim->is_coming;
}

void kelp_evidence_formed(struct kelp_evidence *evidence, uint64_t key,
                          const struct kelp_reduction_node *node)
{
    struct entry *entry = kelp__evidence_find(evidence, key);
    const uint32_t index = node_of(evidence, node->lane_first, node->lane_count);
    const struct claim *left = entry ? kelp__claim_find(entry, 2 * index) : NULL;
    const struct claim *right = entry ? kelp__claim_find(entry, 2 * index + 1) : NULL;

    if (!left || !right || kelp__claim_find(entry, index)) {
        return;
    }
    const struct claim *child = is_empty(left) ? right : left;
    struct claim claim = {.sums = kelp__hash_sums(node->sums, node->sum_count),
                          .author = child->author,
                          .node = (uint16_t)index,
                          .is_sum = true,
                          .is_coming = node->is_merging || child->is_coming};
    if (!claim.is_coming) {
        claim.content = child->content;
    }
    (void)kelp__claim_add(entry, &claim);
}

void kelp_evidence_summed(struct kelp_evidence *evidence, uint64_t key,
                          const struct kelp_reduction_node *node, uint64_t handle,
                          struct kelp_actions *actions)
{
    const struct entry *entry = kelp__evidence_find(evidence, key);

    if (entry) {
        struct kelp_action *action = kelp__actions_add(actions, KELP_ACTION_COMPARE);
        action->compare.handle = handle;
        action->compare.token =
            TOKEN_TREE | token_of(entry, node_of(evidence, node->lane_first, node->lane_count));
    }
}

/* The content of a sum in the tree is known, and so is that of sums of it and empty nodes. */
static void fill_in(struct kelp_evidence *evidence, struct entry *entry, uint32_t node,
                    const struct kelp_content *content, struct kelp_actions *actions)
{
    struct claim *claim = kelp__claim_find(entry, node);

    while (claim && claim->is_coming) {
        const struct claim other = *claim;
        claim->is_coming = false;
        claim->is_doubted = false;
        claim->content = *content;
        if (other.is_doubted) {
            struct claim pushed = other;
            pushed.is_sum = false;
            (void)agrees(evidence, entry, claim, &pushed, actions);
        }
        const struct claim *sibling = kelp__claim_find(entry, claim->node ^ 1);
        claim = sibling && is_empty(sibling) ? kelp__claim_find(entry, claim->node / 2) : NULL;
    }
}

void kelp_evidence_replaced(struct kelp_evidence *evidence, uint64_t key,
                            const struct kelp_reduction_node *node, struct kelp_actions *actions)
{
    struct entry *entry = kelp__evidence_find(evidence, key);
    struct held *held =
        entry ? kelp__held_make_room(&evidence->held, entry->serial, actions) : NULL;

    if (!held || !kelp__held_keep_sums(held, node->sums, node->sum_count)) {
        kelp__actions_add_release(actions, node->handle);
        return;
    }
    held->serial = entry->serial;
    held->node = node_of(evidence, node->lane_first, node->lane_count);
    held->handle = node->handle;
    const struct claim *claim = kelp__claim_find(entry, held->node);
    if (claim && !claim->is_coming) {
        held->author = claim->author;
        held->state = HELD_READY;
        climb(evidence, entry, held, actions);
        return;
    }
    held->author = entry->claims[0].author;
    ask_content(evidence, entry, held, actions);
}

/* Keep the content until its sum can be compared; false: it is useless, or there is no room. */
static bool keep(struct kelp_evidence *evidence, struct entry *entry, uint32_t node,
                 const struct kelp_push *push, struct kelp_actions *actions)
{
    if (!kelp__claim_is_above(entry, node) ||
        kelp__held_find(&evidence->held, entry->serial, node, HELD_READY, NULL)) {
        return false;
    }
    struct held *held = kelp__held_make_room(&evidence->held, entry->serial, actions);
    if (!held || !kelp__held_keep_sums(held, push->sums, push->sum_count)) {
        return false;
    }
    held->state = HELD_READY;
    held->serial = entry->serial;
    held->node = node;
    held->author = push->author;
    held->handle = push->handle;
    climb(evidence, entry, held, actions);
    return true;
}

bool kelp_evidence_dropped(struct kelp_evidence *evidence, uint64_t key,
                           const struct kelp_push *push, struct kelp_actions *actions)
{
    struct entry *entry = kelp__evidence_find(evidence, key);

    if (!entry || entry->is_left_out) {
        return false;
    }
    const struct claim other = claim_of(evidence, push);
    struct claim *claim = kelp__claim_find(entry, other.node);
    if (!kelp_control_word_equal(push->word, &entry->word)) {
        const struct kelp_conflict conflict = conflict_of(
            entry, KELP_CONFLICT_WORD, one(entry->claim_count > 0 ? entry->claims[0].author : 0),
            one(push->author));
        tell(evidence, entry, &conflict, actions);
        return false;
    }
    if (!same_digest(evidence, entry, push, actions)) {
        return false;
    }
    if (claim ? !agrees(evidence, entry, claim, &other, actions) || claim->is_spent
              : !kelp__claim_add(entry, &other)) {
        return false;
    }
    return keep(evidence, entry, other.node, push, actions);
}

void kelp_evidence_complete(struct kelp_evidence *evidence, uint64_t key, bool finite,
                            struct kelp_actions *actions)
{
    struct entry *entry = kelp__evidence_find(evidence, key);

    if (!entry) {
        return;
    }
    entry->is_complete = true;
    if (!finite) {
        entry->is_left_out = true;
        entry->claim_count = 0;
        kelp__held_discard_all(&evidence->held, entry->serial, actions);
    } else if (evidence->disputed == entry->serial) {
        tell(evidence, entry, &evidence->dispute, actions);
    }
}

bool kelp_evidence_owns(uint64_t token)
{
    return (token & TOKEN_OURS) != 0;
}

static uint64_t serial_of(uint64_t token)
{
    return (token & ~(TOKEN_OURS | TOKEN_TREE)) >> TOKEN_NODE_BITS;
}

static struct held *of_token(struct kelp_evidence *evidence, uint64_t token, enum held_state state,
                             struct entry **ret_entry)
{
    const uint64_t serial = serial_of(token);

    assert(kelp_evidence_owns(token));
    *ret_entry = kelp__evidence_entry(evidence, serial);
    return *ret_entry ? kelp__held_find(&evidence->held, serial,
                                        (uint32_t)(token & TOKEN_NODE_MASK), state, NULL)
                      : NULL;
}

void kelp_evidence_merged(struct kelp_evidence *evidence, uint64_t token, uint64_t handle,
                          struct kelp_actions *actions)
{
    struct entry *entry;
    struct held *held = of_token(evidence, token, HELD_MERGING, &entry);

    if (!held) {
        kelp__actions_add_release(actions, handle);
        return;
    }
    held->handle = handle;
    ask_content(evidence, entry, held, actions);
}

void kelp_evidence_compared(struct kelp_evidence *evidence, uint64_t token,
                            const struct kelp_content *content, struct kelp_actions *actions)
{
    struct entry *entry;

    if ((token & TOKEN_TREE) != 0) {
        entry = kelp__evidence_entry(evidence, serial_of(token));
        if (entry) {
            fill_in(evidence, entry, (uint32_t)(token & TOKEN_NODE_MASK), content, actions);
        }
        return;
    }
    struct held *held = of_token(evidence, token, HELD_COMPARING, &entry);
    if (!held) {
        return; /* nobody needs it any more */
    }
    held->state = HELD_READY;
    if (derive(evidence, entry, held, content, actions)) {
        climb(evidence, entry, held, actions);
    } else {
        kelp__held_discard(held, actions);
    }
}

bool kelp_evidence_found(const struct kelp_evidence *evidence)
{
    return evidence->found;
}
