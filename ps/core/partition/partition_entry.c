/* How an entry of a partition completes: its root is complete, the root is applied, and the next
 * entry begins. */
#include <assert.h>

#include "ps/core/partition/partition_internal.h"

bool kelp__partition_has_given_up(const struct kelp_partition *partition)
{
    return kelp__partition_holds_control(partition) &&
           kelp_control_gives_up(&partition->control, partition->job, partition->plan);
}

void kelp__partition_derive_word(struct kelp_partition *partition)
{
    kelp_control_word(&partition->control, partition->job, partition->plan, &partition->word);
    partition->has_word = true;
    assert(partition->word.version == partition->control.version);
    assert(partition->word.step == partition->control.step);
    partition->version = partition->control.version;
}

void kelp__partition_begin_entry(struct kelp_partition *partition)
{
    partition->digest[0] = '\0';
    partition->word_disputed = false;
    partition->early_word.version = 0;
    if (partition->decision) {
        kelp_decision_begin(partition->decision);
    }
    if (kelp__partition_holds_control(partition)) {
        kelp__partition_derive_word(partition);
    } else {
        partition->has_word = false;
    }
}

static void give_up(struct kelp_partition *partition, struct kelp_actions *actions)
{
    struct kelp_action *action = kelp__actions_add(actions, KELP_ACTION_GIVE_UP);

    action->give_up.steps = partition->control.step;
    action->give_up.skipped = partition->control.steps_skipped;
    kelp__partition_move(partition, KELP_PARTITION_FAILED);
}

/* Sums of the current entry: those that the primary forwarded, or those of the tree. */
static const double *entry_sums(const struct kelp_partition *partition)
{
    uint64_t root;
    const double *sums;
    const struct kelp_root *kept = kelp__partition_kept(partition);

    if (kept && kept->held == kelp__partition_held(partition)) {
        return kept->sums;
    }
    bool complete = kelp_reduction_root(partition->reduction, &root, &sums);
    assert(complete);
    return complete ? sums : NULL;
}

/* Advance the control state of partition 0. */
static void advance_control(struct kelp_partition *partition, bool skipped,
                            struct kelp_actions *actions)
{
    struct kelp_record *record = &kelp__actions_add(actions, KELP_ACTION_RECORD)->record;
    const double *sums = entry_sums(partition);

    if (skipped) {
        kelp_control_skip(&partition->control, partition->job, partition->plan, sums,
                          partition->digest, record);
    } else {
        kelp_control_apply(&partition->control, partition->job, partition->plan, sums,
                           partition->digest, record);
    }
    assert(partition->control.version == partition->word.version + 1);
}

void kelp__partition_advance(struct kelp_partition *partition, bool skipped,
                             struct kelp_actions *actions)
{
    assert(partition->has_word);
    struct kelp_control_word completed = partition->word;

    if (kelp__partition_holds_control(partition)) {
        advance_control(partition, skipped, actions);
    }
    kelp_reduction_clear(partition->reduction, actions);
    kelp__partition_complete_evidence(partition, &completed, skipped, actions);
    kelp_cover_complete(partition->cover, completed.kind, partition->now_us);
    if (completed.kind == KELP_STEP_TRAIN) {
        partition->older_word = completed;
        actions->made_step = true;
        partition->step++;
        partition->has_older = true;
    }
    assert(!kelp__partition_holds_control(partition) || partition->control.step == partition->step);
    if (!kelp__partition_holds_control(partition)) {
        partition->version = completed.version + 1;
    }
    partition->is_applied = false;
    kelp__partition_begin_entry(partition);
}

void kelp__partition_show(struct kelp_partition *partition, struct kelp_actions *actions)
{
    if (kelp__partition_has_given_up(partition)) {
        give_up(partition, actions);
        return;
    }
    if (kelp__partition_must_stop(partition)) {
        kelp__partition_move(partition, KELP_PARTITION_FAILED);
        return;
    }
    kelp__partition_settle_snapshot(partition, actions);
    kelp__partition_answer_waiting(partition, actions);
}

void kelp__partition_finish(struct kelp_partition *partition, bool skipped,
                            struct kelp_actions *actions)
{
    if (kelp__partition_is_followed(partition)) {
        partition->is_applied = true;
        partition->is_skipped = skipped;
        kelp__partition_move(partition, KELP_PARTITION_SYNCING);
        kelp__partition_replicate(partition, actions);
        return;
    }
    if (partition->phase != KELP_PARTITION_COLLECTING) {
        kelp__partition_move(partition, KELP_PARTITION_COLLECTING);
    }
    kelp__partition_advance(partition, skipped, actions);
    kelp__partition_show(partition, actions);
}

static void add_apply(struct kelp_partition *partition, enum kelp_action_kind kind, uint64_t root,
                      struct kelp_actions *actions)
{
    struct kelp_action *action = kelp__actions_add(actions, kind);

    action->apply.root = root;
    action->apply.token = ++partition->apply_serial;
    action->apply.word = partition->word;
    action->apply.decision = (struct kelp_step_decision){.count = partition->decided_count,
                                                         .values = partition->decided};
}

void kelp__partition_begin_apply(struct kelp_partition *partition, uint64_t root,
                                 struct kelp_actions *actions)
{
    kelp__partition_move(partition, KELP_PARTITION_APPLYING);
    partition->has_older = false; /* the next weights go into the buffer of the older ones */
    add_apply(partition, KELP_ACTION_APPLY, root, actions);
    actions->items[actions->count - 1].apply.wants_digest = kelp__partition_wants_digest(partition);
}

void kelp__partition_after_reduction(struct kelp_partition *partition, struct kelp_actions *actions)
{
    uint64_t root;
    const double *sums;

    if (!kelp_reduction_root(partition->reduction, &root, &sums) ||
        !kelp__partition_may_forward(partition)) {
        return;
    }
    assert(partition->has_word);
    if (partition->word.kind != KELP_STEP_TRAIN) {
        assert(kelp__partition_holds_control(partition));
        assert(root == KELP_HANDLE_NONE);
        kelp__partition_forward(partition, false, actions);
        kelp__partition_finish(partition, false, actions);
        return;
    }
    /* A step has at least one sample, as judge_content() checks. */
    assert(root != KELP_HANDLE_NONE || partition->hollow);
    if (kelp_control_decides(partition->job)) {
        kelp__partition_move(partition, KELP_PARTITION_MEASURING);
        partition->decided_count = 0; /* every worker knows the decision of the step before */
        add_apply(partition, KELP_ACTION_MEASURE, root, actions);
    } else {
        kelp__partition_forward(partition, false, actions);
        kelp__partition_begin_apply(partition, root, actions);
    }
}

kelp_status kelp_partition_merged(struct kelp_partition *partition, uint64_t token, uint64_t handle,
                                  struct kelp_actions *actions)
{
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    if (kelp_evidence_owns(token)) {
        assert(partition->evidence);
        kelp_evidence_merged(partition->evidence, token, handle, actions);
        kelp__partition_stop_if_needed(partition, actions);
        return KELP_OK;
    }
    kelp__partition_node_merged(partition, token, handle, actions);
    kelp_reduction_merged(partition->reduction, token, handle, actions);
    kelp__partition_nodes_formed(partition);
    if (partition->phase == KELP_PARTITION_COLLECTING) {
        kelp__partition_after_reduction(partition, actions);
    }
    return KELP_OK;
}

kelp_status kelp_partition_compared(struct kelp_partition *partition, uint64_t token,
                                    const struct kelp_content *content,
                                    struct kelp_actions *actions)
{
    assert(partition->evidence && kelp_evidence_owns(token));
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    kelp_evidence_compared(partition->evidence, token, content, actions);
    kelp__partition_stop_if_needed(partition, actions);
    return KELP_OK;
}

void kelp_partition_digested(struct kelp_partition *partition, uint64_t token,
                             const struct kelp_content *content)
{
    if (partition->phase == KELP_PARTITION_APPLYING && token == partition->apply_serial) {
        partition->digest_of =
            (struct kelp_weights_digest){.held = kelp__partition_held(partition) + 1,
                                         .step = partition->step + 1,
                                         .content = *content};
    }
}

kelp_status kelp_partition_applied(struct kelp_partition *partition, uint64_t token, bool finite,
                                   struct kelp_actions *actions)
{
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    if (partition->phase != KELP_PARTITION_APPLYING || token != partition->apply_serial) {
        return KELP_OK; /* unloaded before the result came */
    }
    if (!finite) {
        kelp_reduction_clear(partition->reduction, actions);
        kelp__partition_move(partition, KELP_PARTITION_FAILED);
    } else if (partition->place == KELP_REPLICA_PRIMARY) {
        kelp__partition_finish(partition, false, actions);
    } else {
        kelp__partition_followed(partition, false, actions);
    }
    return KELP_OK;
}
