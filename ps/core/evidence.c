#include "ps/core/evidence.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ps/core/evidence_held.h"
#include "ps/core/limits.h"

/* A token of ours: this bit, the serial of the entry, and the node. */
#define TOKEN_OURS      (UINT64_C(1) << 63)
#define TOKEN_NODE_BITS 11 /* nodes of KELP_JOB_LANES_MAX lanes */
#define TOKEN_NODE_MASK ((UINT64_C(1) << TOKEN_NODE_BITS) - 1)

_Static_assert(2 * KELP_JOB_LANES_MAX <= 1 << TOKEN_NODE_BITS, "a node's index fits in a token");

/* What was said of a node; nodes lie in heap order, as in ps/core/reduction.c. */
struct claim {
    struct kelp_content content;
    uint64_t sums; /* hash of the metric sums */
    uint32_t author;
    uint16_t node;
    bool is_spent; /* its content has been added to its sibling's */
};

/* Small: those of all partitions are gone through in each step. */
struct entry {
    uint64_t serial; /* 0: none */
    uint64_t key;
    struct kelp_control_word word;
    struct claim *claims;
    uint32_t claim_count;
    uint32_t claim_capacity;
    uint64_t digest; /* hash of what was said of the weights; 0: nothing */
    uint32_t digest_author;
    bool is_complete;
    bool is_left_out; /* nothing of it is compared */
    bool is_told;     /* one conflict of an entry is enough */
};

struct kelp_evidence {
    uint32_t lanes;
    uint64_t serial;   /* of the newest entry */
    bool found;        /* a conflict, since the last clear */
    uint64_t disputed; /* serial of the entry whose `dispute` is to be told once its root is known
                          to be finite; 0: none */
    struct kelp_conflict dispute;
    struct entry entries[KELP_PS_EVIDENCE_ENTRIES];
    struct held_list held;
};

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

/* ---- sums of metrics ---- */

static uint64_t mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

/* Zeros at the end do not count, and all values that are not numbers are one. */
static uint64_t hash_sums(const double *sums, uint32_t count)
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

/* Never 0. */
static uint64_t hash_text(const char *text)
{
    uint64_t hash = 0;

    for (; *text != '\0'; text++) {
        hash = mix(hash + (unsigned char)*text + UINT64_C(0x9e3779b97f4a7c15));
    }
    return hash | 1;
}

/* ---- entries and claims ---- */

static uint32_t node_of(const struct kelp_evidence *evidence, uint32_t lane_first,
                        uint32_t lane_count)
{
    return evidence->lanes / lane_count + lane_first / lane_count;
}

static struct entry *entry_of_serial(struct kelp_evidence *evidence, uint64_t serial)
{
    struct entry *entry = &evidence->entries[serial % KELP_PS_EVIDENCE_ENTRIES];

    return serial != 0 && entry->serial == serial ? entry : NULL;
}

/* Keys grow, but not by one: not every entry has claims. */
static struct entry *find_entry(const struct kelp_evidence *evidence, uint64_t key)
{
    for (uint64_t i = 0; i < KELP_PS_EVIDENCE_ENTRIES && i < evidence->serial; i++) {
        const uint64_t serial = evidence->serial - i;
        const struct entry *entry = &evidence->entries[serial % KELP_PS_EVIDENCE_ENTRIES];
        if (entry->serial != serial || entry->key <= key) {
            return entry->serial == serial && entry->key == key ? (struct entry *)entry : NULL;
        }
    }
    return NULL;
}

static struct claim *find_claim(struct entry *entry, uint32_t node)
{
    for (uint32_t i = 0; i < entry->claim_count; i++) {
        if (entry->claims[i].node == node) {
            return &entry->claims[i];
        }
    }
    return NULL;
}

/* A larger node is claimed, which this one is part of. */
static bool is_below_claim(struct entry *entry, uint32_t node)
{
    for (uint32_t i = node / 2; i >= 1; i /= 2) {
        if (find_claim(entry, i)) {
            return true;
        }
    }
    return false;
}

/* False: out of memory. */
static bool add_claim(struct entry *entry, const struct claim *claim)
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

static struct kelp_conflict conflict_of(const struct entry *entry, enum kelp_conflict_kind kind,
                                        uint32_t first, uint32_t second)
{
    return (struct kelp_conflict){.kind = kind,
                                  .version = entry->word.version,
                                  .step = entry->word.step,
                                  .first = first,
                                  .second = second};
}

/* Somebody says this of the node too; true: it agrees with the claim. */
static bool agrees(struct kelp_evidence *evidence, struct entry *entry, const struct claim *claim,
                   const struct claim *other, bool is_sum, struct kelp_actions *actions)
{
    const bool same_content =
        claim->content.low == other->content.low && claim->content.high == other->content.high;
    uint32_t level_first = 1;

    assert(claim->node == other->node);
    if (same_content && claim->sums == other->sums) {
        return true;
    }
    while (2 * level_first <= claim->node) {
        level_first *= 2;
    }
    struct kelp_conflict conflict =
        conflict_of(entry, same_content ? KELP_CONFLICT_SUMS : KELP_CONFLICT_GRADIENT,
                    claim->author, other->author);
    conflict.lane_count = evidence->lanes / level_first;
    conflict.lane_first = (claim->node - level_first) * conflict.lane_count;
    conflict.is_sum = is_sum;
    if (same_content || entry->is_complete) {
        tell(evidence, entry, &conflict, actions);
    } else if (evidence->disputed != entry->serial) {
        evidence->disputed = entry->serial;
        evidence->dispute = conflict;
    }
    return false;
}

/* The content of the held node is known; true: it is claimed like that, now or before. */
static bool derive(struct kelp_evidence *evidence, struct entry *entry, const struct held *held,
                   const struct kelp_content *content, struct kelp_actions *actions)
{
    const struct claim other = {.content = *content,
                                .sums = hash_sums(held->sums, held->sum_count),
                                .author = held->author,
                                .node = (uint16_t)held->node};
    const struct claim *claim = find_claim(entry, held->node);

    return claim ? agrees(evidence, entry, claim, &other, held->is_sum, actions)
                 : add_claim(entry, &other);
}

static uint64_t token_of(const struct entry *entry, uint32_t node)
{
    return TOKEN_OURS | entry->serial << TOKEN_NODE_BITS | node;
}

/* The sibling is there too: they become their parent, in the place of `held`. */
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
    held->is_sum = held->is_sum || sibling->is_sum || held->author != sibling->author;
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
}

/* The held node is ready: add it to its sibling, up to what is claimed above. */
static void climb(struct kelp_evidence *evidence, struct entry *entry, struct held *held,
                  struct kelp_actions *actions)
{
    while (held->state == HELD_READY) {
        struct held *sibling =
            kelp__held_find(&evidence->held, entry->serial, held->node ^ 1, HELD_READY, NULL);
        if (!is_below_claim(entry, held->node) ||
            kelp__held_find(&evidence->held, entry->serial, held->node, HELD_READY, held)) {
            kelp__held_discard(held, actions);
            return;
        }
        if (!sibling) {
            return;
        }
        struct claim *ours = find_claim(entry, held->node);
        struct claim *theirs = find_claim(entry, sibling->node);
        assert(ours && theirs); /* what is ready is claimed */
        struct kelp_content content = {.low = ours->content.low | theirs->content.low,
                                       .high = ours->content.high | theirs->content.high};
        ours->is_spent = true;
        theirs->is_spent = true;
        join(entry, held, sibling, actions);
        /* One of the two is empty, and has zeros: the other's content is that of both. */
        if (held->state == HELD_READY && !derive(evidence, entry, held, &content, actions)) {
            kelp__held_discard(held, actions);
        }
    }
}

/* ---- events ---- */

static struct entry *open_entry(struct kelp_evidence *evidence, uint64_t key,
                                const struct kelp_control_word *word, struct kelp_actions *actions)
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

/* True: nobody said another digest of the weights before. */
static bool same_digest(struct kelp_evidence *evidence, struct entry *entry,
                        const struct kelp_push *push, struct kelp_actions *actions)
{
    if (!entry->word.digest_due || push->lane_first != 0 || !push->digest) {
        return true;
    }
    const uint64_t digest = hash_text(push->digest);
    if (entry->digest == 0) {
        entry->digest = digest;
        entry->digest_author = push->author;
    }
    if (entry->digest == digest) {
        return true;
    }
    const struct kelp_conflict conflict =
        conflict_of(entry, KELP_CONFLICT_DIGEST, entry->digest_author, push->author);
    tell(evidence, entry, &conflict, actions);
    return false;
}

static struct claim claim_of(const struct kelp_evidence *evidence, const struct kelp_push *push)
{
    return (struct claim){.content = push->content,
                          .sums = hash_sums(push->sums, push->sum_count),
                          .author = push->author,
                          .node = (uint16_t)node_of(evidence, push->lane_first, push->lane_count)};
}

void kelp_evidence_taken(struct kelp_evidence *evidence, uint64_t key, const struct kelp_push *push,
                         struct kelp_actions *actions)
{
    struct entry *entry = entry_of_serial(evidence, evidence->serial);
    const struct claim claim = claim_of(evidence, push);

    if (!entry || entry->key != key) {
        entry = open_entry(evidence, key, push->word, actions);
    }
    (void)same_digest(evidence, entry, push, actions);
    (void)add_claim(entry, &claim); /* without memory it is not compared */
}

/* COMPARE; nothing has to be computed of an empty node. */
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

void kelp_evidence_replaced(struct kelp_evidence *evidence, uint64_t key,
                            const struct kelp_reduction_node *node, struct kelp_actions *actions)
{
    struct entry *entry = find_entry(evidence, key);
    struct held *held =
        entry ? kelp__held_make_room(&evidence->held, entry->serial, actions) : NULL;

    if (!held || !kelp__held_keep_sums(held, node->sums, node->sum_count)) {
        kelp__actions_add_release(actions, node->handle);
        return;
    }
    held->serial = entry->serial;
    held->node = node_of(evidence, node->lane_first, node->lane_count);
    held->handle = node->handle;
    held->is_sum = false;
    const struct claim *claim = find_claim(entry, held->node);
    if (claim) {
        held->author = claim->author;
        held->state = HELD_READY;
        climb(evidence, entry, held, actions);
        return;
    }
    held->is_sum = true; /* of smaller nodes: the first of their authors stands for all */
    held->author = entry->claims[0].author;
    ask_content(evidence, entry, held, actions);
}

/* Keep the content until it adds up; false: it is of no use, or there is no room. */
static bool keep(struct kelp_evidence *evidence, struct entry *entry, uint32_t node,
                 const struct kelp_push *push, struct kelp_actions *actions)
{
    if (!is_below_claim(entry, node) ||
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
    held->is_sum = false;
    held->handle = push->handle;
    climb(evidence, entry, held, actions);
    return true;
}

bool kelp_evidence_dropped(struct kelp_evidence *evidence, uint64_t key,
                           const struct kelp_push *push, struct kelp_actions *actions)
{
    struct entry *entry = find_entry(evidence, key);

    if (!entry || entry->is_left_out) {
        return false;
    }
    const struct claim other = claim_of(evidence, push);
    struct claim *claim = find_claim(entry, other.node);
    if (!kelp_control_word_equal(push->word, &entry->word)) {
        const struct kelp_conflict conflict =
            conflict_of(entry, KELP_CONFLICT_WORD,
                        entry->claim_count > 0 ? entry->claims[0].author : 0, push->author);
        tell(evidence, entry, &conflict, actions);
        return false;
    }
    if (!same_digest(evidence, entry, push, actions)) {
        return false;
    }
    if (claim ? !agrees(evidence, entry, claim, &other, false, actions) || claim->is_spent
              : !add_claim(entry, &other)) {
        return false;
    }
    return keep(evidence, entry, other.node, push, actions);
}

void kelp_evidence_complete(struct kelp_evidence *evidence, uint64_t key, bool finite,
                            struct kelp_actions *actions)
{
    struct entry *entry = find_entry(evidence, key);

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

static struct held *of_token(struct kelp_evidence *evidence, uint64_t token, enum held_state state,
                             struct entry **ret_entry)
{
    const uint64_t serial = (token & ~TOKEN_OURS) >> TOKEN_NODE_BITS;

    assert(kelp_evidence_owns(token));
    *ret_entry = entry_of_serial(evidence, serial);
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
