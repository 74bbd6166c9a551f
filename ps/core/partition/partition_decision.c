/* Decisions about a step: the partition measures its share; partition 0 adds up all shares, the
 * others hear the result (ps/core/partition/decision.h). */
#include <assert.h>
#include <string.h>

#include "ps/core/partition/partition_internal.h"

/* The decision about the current step is known: to skip the step, or the values in `decided`. */
static void decide(struct kelp_partition *partition, bool skip, struct kelp_actions *actions)
{
    uint64_t root;
    const double *sums;
    bool complete = kelp_reduction_root(partition->reduction, &root, &sums);

    assert(partition->phase == KELP_PARTITION_DECIDING);
    assert(complete);
    partition->decided_count = skip ? 0 : partition->decision_count;
    kelp__partition_forward(partition, skip, actions);
    if (!skip && complete) {
        kelp__partition_begin_apply(partition, root, actions);
        return;
    }
    (void)kelp__actions_add(actions, KELP_ACTION_REPEAT);
    kelp__partition_finish(partition, true, actions);
}

void kelp__partition_decide_if_known(struct kelp_partition *partition, struct kelp_actions *actions)
{
    bool skip;

    if (partition->phase == KELP_PARTITION_DECIDING && partition->decision &&
        kelp_decision_made(partition->decision, &skip, partition->decided)) {
        decide(partition, skip, actions);
    }
}

/* Partitions other than 0: a decision that was heard while lanes were still missing is about
 * this step; one about an earlier step would have ended with it. */
static void decide_as_heard(struct kelp_partition *partition, struct kelp_actions *actions)
{
    const struct kelp_control_word word = partition->early_word;

    if (partition->phase != KELP_PARTITION_DECIDING || word.version == 0) {
        return;
    }
    partition->early_word.version = 0;
    if (word.version <= partition->word.version) {
        return; /* the word does not come after this step: its sender was wrong */
    }
    assert(word.step == partition->step + 1);
    if (!word.skipped && partition->decision_count > 0) {
        memcpy(partition->decided, partition->early,
               partition->decision_count * sizeof(partition->decided[0]));
    }
    partition->heard = word;
    partition->heard_author = partition->early_author;
    decide(partition, word.skipped, actions);
}

kelp_status kelp_partition_measured(struct kelp_partition *partition, uint64_t token,
                                    const struct kelp_decision_share *share,
                                    struct kelp_actions *actions)
{
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    if (partition->phase != KELP_PARTITION_MEASURING || token != partition->apply_serial) {
        return KELP_OK; /* unloaded before the result came */
    }
    if (share->values[KELP_DECISION_SHARE_FINITE] == 0.0 &&
        partition->job->failure.on_nan != KELP_NAN_SKIP) {
        kelp_reduction_clear(partition->reduction, actions);
        kelp__partition_move(partition, KELP_PARTITION_FAILED);
        return KELP_OK;
    }
    kelp__partition_move(partition, KELP_PARTITION_DECIDING);
    partition->has_share = true;
    partition->share_step = partition->step;
    partition->share = *share;
    if (partition->decision) {
        kelp_status status = kelp_decision_add(partition->decision, partition->index, share);
        assert(status == KELP_OK); /* the shell's are well-formed, nobody else sends ours */
        (void)status;
    }
    kelp__partition_answer_waiting(partition, actions);
    kelp__partition_decide_if_known(partition, actions);
    decide_as_heard(partition, actions);
    return KELP_OK;
}

/* The current step is not decided yet; a promoted partition may still wait for its followers. */
static bool awaits_decision(const struct kelp_partition *partition)
{
    return partition->phase == KELP_PARTITION_COLLECTING ||
           partition->phase == KELP_PARTITION_MEASURING ||
           partition->phase == KELP_PARTITION_DECIDING ||
           (partition->phase == KELP_PARTITION_SYNCING && !partition->is_applied);
}

/* A partition other than 0 hears the word of a later version, which includes the decision. The
 * word is not repeated, so it is kept until the step is complete. */
void kelp__partition_hear_decision(struct kelp_partition *partition, const struct kelp_pull *pull,
                                   struct kelp_actions *actions)
{
    const struct kelp_control_word *word = pull->word;
    const struct kelp_step_decision *heard = &pull->decision;

    if (!partition->early || word->step != partition->step + 1 || !awaits_decision(partition)) {
        return;
    }
    if ((partition->has_word && word->version <= partition->word.version) ||
        (!word->skipped && heard->count != partition->decision_count)) {
        return; /* a word without the decision, from a worker that has not asked for it */
    }
    if (partition->early_word.version != 0) {
        kelp__partition_compare_early(partition, pull, actions);
        return;
    }
    if (!word->skipped && heard->count > 0) {
        memcpy(partition->early, heard->values, heard->count * sizeof(partition->early[0]));
    }
    partition->early_word = *word;
    partition->early_author = pull->author;
    decide_as_heard(partition, actions);
}
