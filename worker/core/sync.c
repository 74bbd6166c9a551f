#include "worker/core/sync.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/state_table.h"

#define NO_STEP UINT64_MAX

struct slot {
    bool ask;          /* a pull must be sent */
    bool answered;     /* SCANNING: the partition has answered */
    uint64_t latest;   /* the newest step that it has */
    bool ask_share;    /* the share of the decision must be asked for */
    bool has_share;    /* the share has come and is in shares */
    uint64_t gathered; /* step of its weights in the "next" vector; NO_STEP: none */
};

struct kelp_sync {
    enum kelp_sync_state state;
    bool following;  /* GATHERING the step after `held`, not a scan's result */
    uint64_t target; /* GATHERING: the step to hold */
    bool have_held;  /* `held` is valid: its weights are in the current vector */
    struct kelp_control_word held;
    bool have_word; /* `word` is valid: it came with partition 0's newest answer */
    struct kelp_control_word word;
    bool decides;                       /* the job's training steps need decisions */
    struct kelp_decision_share *shares; /* owned; [partition_count] if decides */
    double *decided;                    /* owned; the decision that came with `word` */
    uint32_t decided_count;
    uint32_t decided_capacity;
    bool shares_due;  /* all shares have come and are not sent yet */
    uint32_t missing; /* partitions without weights of `target` */
    uint32_t partition_count;
    struct slot slots[];
};

static const struct kelp_state states[] = {
    [KELP_SYNC_SCANNING] = {"scanning", KELP_STATE_BIT(KELP_SYNC_SCANNING) |
                                            KELP_STATE_BIT(KELP_SYNC_GATHERING)},
    [KELP_SYNC_GATHERING] = {"gathering", KELP_STATE_BIT(KELP_SYNC_SCANNING) |
                                              KELP_STATE_BIT(KELP_SYNC_HOLDING)},
    [KELP_SYNC_HOLDING] = {"holding", KELP_STATE_BIT(KELP_SYNC_SCANNING) |
                                          KELP_STATE_BIT(KELP_SYNC_GATHERING)},
};
static const struct kelp_state_table table = KELP_STATE_TABLE(states);

static void move_to(struct kelp_sync *sync, enum kelp_sync_state state)
{
    sync->state = kelp_state_move(&table, sync->state, state);
}

const char *kelp_sync_state_name(enum kelp_sync_state state)
{
    return kelp_state_name(&table, state);
}

struct kelp_sync *kelp_sync_create(uint32_t partition_count)
{
    assert(partition_count > 0);
    struct kelp_sync *sync =
        calloc(1, sizeof(*sync) + (size_t)partition_count * sizeof(sync->slots[0]));
    if (sync) {
        sync->partition_count = partition_count;
        kelp_sync_restart(sync);
    }
    return sync;
}

void kelp_sync_destroy(struct kelp_sync *sync)
{
    if (sync) {
        free(sync->shares);
        free(sync->decided);
        free(sync);
    }
}

kelp_status kelp_sync_decide(struct kelp_sync *sync, uint32_t value_count)
{
    assert(!sync->decides);
    sync->shares = calloc(sync->partition_count, sizeof(*sync->shares));
    sync->decided = calloc((size_t)value_count + 1, sizeof(*sync->decided));
    if (!sync->shares || !sync->decided) {
        return KELP_ERR_NO_MEMORY; /* kelp_sync_destroy() frees the rest */
    }
    sync->decided_capacity = value_count;
    sync->decides = true;
    return KELP_OK;
}

static void scan(struct kelp_sync *sync)
{
    sync->shares_due = false;
    move_to(sync, KELP_SYNC_SCANNING);
    sync->following = false;
    sync->have_word = false;
    for (uint32_t p = 0; p < sync->partition_count; p++) {
        sync->slots[p] = (struct slot){.ask = true, .gathered = NO_STEP};
    }
}

void kelp_sync_restart(struct kelp_sync *sync)
{
    sync->have_held = false;
    scan(sync);
}

enum kelp_sync_state kelp_sync_state(const struct kelp_sync *sync)
{
    return sync->state;
}

static void count_missing(struct kelp_sync *sync)
{
    sync->missing = 0;
    for (uint32_t p = 0; p < sync->partition_count; p++) {
        sync->missing += sync->slots[p].gathered != sync->target;
    }
}

/* Once every partition has answered: choose the lowest step and ask for what is missing. */
static void settle(struct kelp_sync *sync)
{
    uint64_t lowest = NO_STEP;
    for (uint32_t p = 0; p < sync->partition_count; p++) {
        if (!sync->slots[p].answered) {
            return;
        }
        lowest = sync->slots[p].latest < lowest ? sync->slots[p].latest : lowest;
    }
    move_to(sync, KELP_SYNC_GATHERING);
    sync->target = lowest;
    for (uint32_t p = 0; p < sync->partition_count; p++) {
        sync->slots[p].ask = sync->slots[p].gathered != lowest;
    }
    if (sync->have_word && sync->word.step != lowest) {
        sync->have_word = false;
        sync->slots[0].ask = true;
    }
    count_missing(sync);
}

static bool hear_scanned(struct kelp_sync *sync, struct slot *slot,
                         const struct kelp_sync_answer *answer)
{
    slot->answered = true;
    slot->latest = answer->current_step;
    bool keep = answer->status == KELP_OK && answer->has_weights;
    slot->gathered = keep ? answer->step : NO_STEP;
    if (answer->word && answer->status == KELP_OK) {
        sync->word = *answer->word;
        sync->have_word = true;
    }
    settle(sync);
    return keep;
}

/* ---- decisions ------------------------------------------------------------------------------- */

static bool deciding(const struct kelp_sync *sync)
{
    return sync->decides && sync->state == KELP_SYNC_GATHERING && sync->following &&
           sync->held.kind == KELP_STEP_TRAIN && !sync->have_word;
}

static bool all_shares(const struct kelp_sync *sync)
{
    for (uint32_t p = 1; p < sync->partition_count; p++) {
        if (!sync->slots[p].has_share) {
            return false;
        }
    }
    return sync->partition_count > 1;
}

static void keep_share(struct kelp_sync *sync, struct slot *slot,
                       const struct kelp_sync_answer *answer)
{
    if (!deciding(sync) || answer->status != KELP_OK || answer->partition == 0 ||
        answer->step != sync->held.step || answer->value_count == 0 ||
        answer->value_count > KELP_DECISION_SHARE_VALUES_MAX || slot->has_share) {
        return;
    }
    struct kelp_decision_share *kept = &sync->shares[answer->partition];
    kept->count = answer->value_count;
    memcpy(kept->values, answer->values, answer->value_count * sizeof(kept->values[0]));
    slot->has_share = true;
    sync->shares_due = all_shares(sync);
}

/* The next word is known, and so is its decision: tell it to partitions that wait. */
static void spread_decision(struct kelp_sync *sync)
{
    sync->shares_due = false;
    for (uint32_t p = 1; sync->decides && p < sync->partition_count; p++) {
        struct slot *slot = &sync->slots[p];
        slot->ask_share = false;
        slot->ask =
            slot->ask || (sync->held.kind == KELP_STEP_TRAIN && slot->gathered != sync->target);
    }
}

const struct kelp_control_word *kelp_sync_news(const struct kelp_sync *sync,
                                               struct kelp_step_decision *ret_decision)
{
    bool known =
        sync->decides && sync->state == KELP_SYNC_GATHERING && sync->following && sync->have_word;

    *ret_decision = (struct kelp_step_decision){.count = known ? sync->decided_count : 0,
                                                .values = sync->decided};
    return known ? &sync->word : NULL;
}

bool kelp_sync_shares_due(struct kelp_sync *sync)
{
    bool due = sync->shares_due;

    sync->shares_due = false;
    return due;
}

const struct kelp_decision_share *kelp_sync_share(const struct kelp_sync *sync, uint32_t partition)
{
    assert(partition < sync->partition_count);
    return &sync->shares[partition];
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Keep the decision about the step before the word that came. */
static void keep_decision(struct kelp_sync *sync, const struct kelp_sync_answer *answer)
{
    bool fits = answer->value_count <= sync->decided_capacity; /* otherwise of another job */

    sync->decided_count = fits ? answer->value_count : 0;
    if (sync->decided_count > 0) {
        memcpy(sync->decided, answer->values, sync->decided_count * sizeof(sync->decided[0]));
    }
}

/* Partition 0 answered with the word after the held one. False: it is too far ahead to follow. */
static bool hear_word(struct kelp_sync *sync, const struct kelp_sync_answer *answer)
{
    const struct kelp_control_word *word = answer->word;

    if (!sync->following) {
        if (word->step == sync->target) {
            sync->word = *word;
            sync->have_word = true;
        }
        return true;
    }
    if (word->version <= sync->held.version) {
        return true; /* answers an older pull */
    }
    /* After a held evaluation a training step has passed, which another partition may still
     * lack. Perhaps no worker is left that knows its word, so waiting for the partition could
     * take for ever. */
    bool missed = sync->held.kind != KELP_STEP_TRAIN && word->step != sync->held.step;
    if (missed || (word->step != sync->held.step && word->step != sync->held.step + 1)) {
        return false;
    }
    sync->word = *word;
    sync->have_word = true;
    keep_decision(sync, answer);
    spread_decision(sync);
    return true;
}

static bool hear_gathered(struct kelp_sync *sync, struct slot *slot,
                          const struct kelp_sync_answer *answer)
{
    if (answer->status != KELP_OK) {
        scan(sync); /* not readable any more: the others have gone on */
        return false;
    }
    if (answer->word && !hear_word(sync, answer)) {
        scan(sync);
        return false;
    }
    if (!answer->has_weights || answer->step != sync->target || slot->gathered == sync->target) {
        return false;
    }
    slot->gathered = answer->step;
    assert(sync->missing > 0);
    sync->missing--;
    return true;
}

bool kelp_sync_take(struct kelp_sync *sync, const struct kelp_sync_answer *answer)
{
    assert(answer->partition < sync->partition_count);
    struct slot *slot = &sync->slots[answer->partition];

    if (answer->is_share) {
        keep_share(sync, slot, answer);
        return false;
    }
    switch (sync->state) {
    case KELP_SYNC_SCANNING:
        return !slot->answered && hear_scanned(sync, slot, answer);
    case KELP_SYNC_GATHERING:
        return hear_gathered(sync, slot, answer);
    case KELP_SYNC_HOLDING:
        return false;
    }
    return false;
}

bool kelp_sync_complete(struct kelp_sync *sync, struct kelp_control_word *ret_word, bool *ret_swap)
{
    if (sync->state != KELP_SYNC_GATHERING || !sync->have_word || sync->word.step != sync->target) {
        return false;
    }
    bool same_weights = sync->following && sync->target == sync->held.step;
    if (!same_weights && sync->missing > 0) {
        return false;
    }
    move_to(sync, KELP_SYNC_HOLDING);
    sync->held = sync->word;
    sync->have_held = true;
    sync->have_word = false;
    for (uint32_t p = 0; p < sync->partition_count; p++) {
        sync->slots[p].ask = false;
        sync->slots[p].ask_share = false;
    }
    *ret_word = sync->held;
    *ret_swap = !same_weights;
    return true;
}

bool kelp_sync_begun(const struct kelp_sync *sync, struct kelp_control_word *ret_word)
{
    if (sync->state != KELP_SYNC_GATHERING || !sync->following || !sync->have_word ||
        sync->word.step != sync->target || sync->target == sync->held.step ||
        sync->slots[0].gathered != sync->target) {
        return false;
    }
    *ret_word = sync->word;
    return true;
}

void kelp_sync_next(struct kelp_sync *sync)
{
    assert(sync->state == KELP_SYNC_HOLDING);
    assert(sync->have_held);
    bool train = sync->held.kind == KELP_STEP_TRAIN;

    move_to(sync, KELP_SYNC_GATHERING);
    sync->following = true;
    sync->have_word = false;
    sync->target = sync->held.step + (train ? 1 : 0);
    for (uint32_t p = 0; p < sync->partition_count; p++) {
        sync->slots[p].gathered = NO_STEP;
        sync->slots[p].ask = p == 0 || train;
        sync->slots[p].ask_share = sync->decides && train && p > 0;
        sync->slots[p].has_share = false;
    }
    sync->shares_due = false;
    count_missing(sync);
}

bool kelp_sync_offered(struct kelp_sync *sync, uint64_t step)
{
    if (sync->state != KELP_SYNC_GATHERING || sync->following || step >= sync->target) {
        return false;
    }
    scan(sync);
    return true;
}

void kelp_sync_reask(struct kelp_sync *sync, uint32_t partition)
{
    assert(partition < sync->partition_count);
    struct slot *slot = &sync->slots[partition];

    switch (sync->state) {
    case KELP_SYNC_SCANNING:
        slot->ask = !slot->answered;
        break;
    case KELP_SYNC_GATHERING: {
        bool same_weights = sync->following && sync->target == sync->held.step;
        slot->ask = (!same_weights && slot->gathered != sync->target) ||
                    (partition == 0 && !sync->have_word);
        slot->ask_share = deciding(sync) && partition > 0 && !slot->has_share;
        sync->shares_due =
            sync->shares_due || (partition == 0 && deciding(sync) && all_shares(sync));
        break;
    }
    case KELP_SYNC_HOLDING:
        break;
    }
}

bool kelp_sync_pull(struct kelp_sync *sync, uint32_t partition, struct kelp_sync_pull *ret_pull)
{
    assert(partition < sync->partition_count);
    struct slot *slot = &sync->slots[partition];

    *ret_pull = (struct kelp_sync_pull){.partition = partition};
    if (!slot->ask && slot->ask_share) {
        slot->ask_share = false;
        ret_pull->mode = KELP_SYNC_PULL_SHARE;
        ret_pull->step = sync->held.step;
        return true;
    }
    if (!slot->ask) {
        return false;
    }
    slot->ask = false;
    if (sync->state == KELP_SYNC_SCANNING) {
        ret_pull->mode = KELP_SYNC_PULL_CURRENT;
    } else if (partition == 0 && sync->following) {
        ret_pull->mode = KELP_SYNC_PULL_VERSION;
        ret_pull->version = sync->held.version + 1;
        ret_pull->step = sync->target;
        ret_pull->holds = true;
        ret_pull->held_step = sync->held.step;
    } else {
        ret_pull->mode = KELP_SYNC_PULL_STEP;
        ret_pull->step = sync->target;
    }
    return true;
}
