/* Two workers that differ: what is compared, and what a partition does when it finds a
 * difference. */
#include <string.h>

#include "ps/core/partition/partition_internal.h"

/* The key of an entry: its version in partition 0, its training step in the others. */
static uint64_t key_of(const struct kelp_partition *partition, const struct kelp_control_word *word)
{
    return kelp__partition_holds_control(partition) ? word->version : word->step;
}

bool kelp__partition_must_stop(const struct kelp_partition *partition)
{
    return partition->job->failure.on_conflict == KELP_CONFLICT_STOP &&
           (partition->has_conflict ||
            (partition->evidence && kelp_evidence_found(partition->evidence)));
}

void kelp__partition_push_taken(struct kelp_partition *partition, const struct kelp_push *push,
                                struct kelp_actions *actions)
{
    const uint64_t key = key_of(partition, push->word);
    struct kelp_reduction_node node;

    if (!partition->evidence) {
        return;
    }
    kelp_evidence_taken(partition->evidence, key, push, actions);
    while (kelp_reduction_pop(partition->reduction, push->lane_first, push->lane_count, &node)) {
        kelp_evidence_replaced(partition->evidence, key, &node, actions);
    }
}

/* The key of the current entry. */
static uint64_t current_key(const struct kelp_partition *partition)
{
    return kelp__partition_holds_control(partition) ? partition->version : partition->step;
}

void kelp__partition_nodes_formed(struct kelp_partition *partition)
{
    struct kelp_reduction_node node;

    for (uint32_t i = 0;
         partition->evidence && i < kelp_reduction_formed_count(partition->reduction); i++) {
        kelp_reduction_formed(partition->reduction, i, &node);
        kelp_evidence_formed(partition->evidence, current_key(partition), &node);
    }
}

void kelp__partition_node_merged(struct kelp_partition *partition, uint64_t token, uint64_t handle,
                                 struct kelp_actions *actions)
{
    struct kelp_reduction_node node;

    if (partition->evidence && kelp_reduction_expects(partition->reduction, token, &node)) {
        kelp_evidence_summed(partition->evidence, current_key(partition), &node, handle, actions);
    }
}

void kelp__partition_push_dropped(struct kelp_partition *partition, const struct kelp_push *push,
                                  struct kelp_actions *actions)
{
    if (!partition->evidence ||
        !kelp_evidence_dropped(partition->evidence, key_of(partition, push->word), push, actions)) {
        kelp__actions_add_release(actions, push->handle);
    }
}

void kelp__partition_complete_evidence(struct kelp_partition *partition,
                                       const struct kelp_control_word *word, bool skipped,
                                       struct kelp_actions *actions)
{
    if (partition->evidence) {
        kelp_evidence_complete(partition->evidence, key_of(partition, word), !skipped, actions);
    }
}

uint32_t kelp_partition_claims(const struct kelp_partition *partition,
                               const struct kelp_control_word *word,
                               struct kelp_node_claim *ret_claims)
{
    return partition->evidence
               ? kelp_evidence_tell(partition->evidence, key_of(partition, word), ret_claims)
               : 0;
}

uint32_t kelp_partition_known(const struct kelp_partition *partition, uint32_t back,
                              struct kelp_control_word *ret_word,
                              struct kelp_node_claim *ret_claims)
{
    return partition->evidence
               ? kelp_evidence_known(partition->evidence, back, ret_word, ret_claims)
               : 0;
}

void kelp__partition_hear_known(struct kelp_partition *partition,
                                const struct kelp_replica_state *state,
                                struct kelp_actions *actions)
{
    for (uint32_t i = 0; i < state->known_count; i++) {
        kelp__partition_hear_claims(partition, &state->known[i], actions);
    }
    if (partition->evidence) {
        kelp_evidence_filled(partition->evidence, state->held);
    }
}

void kelp__partition_hear_claims(struct kelp_partition *partition,
                                 const struct kelp_forward *forward, struct kelp_actions *actions)
{
    if (partition->evidence && forward->claim_count > 0) {
        kelp_evidence_told(partition->evidence, key_of(partition, &forward->word), forward,
                           actions);
    }
}

static struct kelp_authors one(uint32_t author)
{
    return (struct kelp_authors){.of = {author}, .count = 1};
}

static void tell(struct kelp_partition *partition, const struct kelp_conflict *conflict,
                 struct kelp_actions *actions)
{
    kelp__actions_add(actions, KELP_ACTION_CONFLICT)->conflict = *conflict;
    /* Because of an open word the leader opens another generation, in which the partition starts
     * anew. */
    partition->has_conflict |= conflict->kind != KELP_CONFLICT_OPEN_WORD;
}

/* Not for partition 0: it computes its word, so a worker with another word is wrong. */
void kelp__partition_word_differs(struct kelp_partition *partition, const struct kelp_push *push,
                                  struct kelp_actions *actions)
{
    if (kelp__partition_holds_control(partition) || !partition->has_word ||
        partition->word_disputed) {
        return;
    }
    partition->word_disputed = true;
    const bool is_open = partition->phase != KELP_PARTITION_APPLYING && !partition->is_applied;
    tell(partition,
         &(struct kelp_conflict){.kind = is_open ? KELP_CONFLICT_OPEN_WORD : KELP_CONFLICT_WORD,
                                 .version = partition->word.version,
                                 .step = partition->word.step,
                                 .first = one(partition->word_author),
                                 .second = one(push->author)},
         actions);
}

void kelp__partition_share_differs(struct kelp_partition *partition,
                                   const struct kelp_share_push *push, struct kelp_actions *actions)
{
    if (partition->has_conflict) {
        return;
    }
    tell(partition,
         &(struct kelp_conflict){.kind = KELP_CONFLICT_SHARE,
                                 .version = partition->word.version,
                                 .step = partition->word.step,
                                 .share = push->partition,
                                 .first = one(partition->share_authors[push->partition]),
                                 .second = one(push->author)},
         actions);
}

/* The decision about the step before came with a word from one worker only: compare another's. */
void kelp__partition_compare_decision(struct kelp_partition *partition,
                                      const struct kelp_pull *pull, struct kelp_actions *actions)
{
    const struct kelp_control_word *heard = &partition->heard;
    const struct kelp_step_decision *other = &pull->decision;

    if (heard->version == 0 || heard->step != pull->word->step) {
        return;
    }
    const bool both_known = other->count > 0 && other->count == partition->decided_count;
    const bool same_values = !both_known || memcmp(partition->decided, other->values,
                                                   other->count * sizeof(other->values[0])) == 0;
    const bool same_word =
        heard->version != pull->word->version || kelp_control_word_equal(heard, pull->word);
    /* Words of all entries up to the next training step say whether the step before was skipped. */
    if (same_values && same_word && heard->skipped == pull->word->skipped) {
        return;
    }
    tell(partition,
         &(struct kelp_conflict){.kind = KELP_CONFLICT_DECISION,
                                 .version = heard->version,
                                 .step = heard->step,
                                 .first = one(partition->heard_author),
                                 .second = one(pull->author)},
         actions);
    partition->heard.version = 0; /* one report is enough */
}

void kelp__partition_compare_early(struct kelp_partition *partition, const struct kelp_pull *pull,
                                   struct kelp_actions *actions)
{
    const struct kelp_control_word *heard = &partition->early_word;
    const struct kelp_step_decision *other = &pull->decision;
    const bool same_values =
        heard->skipped || other->count == 0 ||
        memcmp(partition->early, other->values, other->count * sizeof(other->values[0])) == 0;

    if (heard->skipped == pull->word->skipped && same_values) {
        return;
    }
    tell(partition,
         &(struct kelp_conflict){.kind = KELP_CONFLICT_DECISION,
                                 .version = heard->version,
                                 .step = heard->step,
                                 .first = one(partition->early_author),
                                 .second = one(pull->author)},
         actions);
}
