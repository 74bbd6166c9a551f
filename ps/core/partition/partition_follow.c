/* A partition that follows: the roots of its primary, and the copy that it starts from
 * (ps/core/partition/replication.h). */
#include <string.h>

#include "ps/core/partition/partition_internal.h"

static uint64_t held_of_word(const struct kelp_partition *partition,
                             const struct kelp_control_word *word)
{
    return kelp__partition_holds_control(partition) ? word->version : word->step;
}

void kelp__partition_diverge(struct kelp_partition *partition, struct kelp_actions *actions)
{
    kelp__actions_add(actions, KELP_ACTION_DIVERGES)->diverges = kelp__partition_held(partition);
    kelp_replication_forget_queue(partition->replication, actions);
    kelp__partition_move(partition, KELP_PARTITION_FAILED);
}

/* Can the kept root be the next one for the current state? */
static bool root_fits(const struct kelp_partition *partition, const struct kelp_root *root)
{
    const bool trains = root->word.kind == KELP_STEP_TRAIN;
    const bool decides = trains && kelp_control_decides(partition->job);
    const bool has_gradient = trains && !root->skipped && !partition->hollow;

    if (kelp__partition_holds_control(partition)
            ? !kelp_control_word_equal(&root->word, &partition->word) ||
                  root->word.kind == KELP_STEP_DONE
            : !trains || root->word.version < partition->version) {
        return false;
    }
    return (root->handle != KELP_HANDLE_NONE) == has_gradient && (!root->skipped || decides) &&
           root->decision_count == (decides && !root->skipped ? partition->decision_count : 0);
}

/* Apply the kept root, which belongs to the current state. */
static void follow_kept(struct kelp_partition *partition, struct kelp_actions *actions)
{
    const struct kelp_root *root = kelp_replication_kept(partition->replication);

    if (!root_fits(partition, root)) {
        kelp__partition_diverge(partition, actions);
        return;
    }
    partition->word = root->word;
    partition->has_word = true;
    memcpy(partition->digest, root->digest, sizeof(partition->digest));
    if (root->word.kind == KELP_STEP_TRAIN) {
        partition->heard.version = 0; /* heard as a primary, about the step before */
        partition->decided_count = root->decision_count;
        if (root->decision_count > 0) {
            memcpy(partition->decided, root->decision,
                   root->decision_count * sizeof(partition->decided[0]));
        }
    }
    if (root->word.kind == KELP_STEP_TRAIN && !root->skipped) {
        kelp__partition_begin_apply(partition, root->handle, actions);
        return;
    }
    if (root->skipped) {
        (void)kelp__actions_add(actions, KELP_ACTION_REPEAT);
    }
    kelp__partition_followed(partition, root->skipped, actions);
}

/* If the next root came early, apply it. */
static void follow_queued(struct kelp_partition *partition, struct kelp_actions *actions)
{
    if (partition->phase == KELP_PARTITION_FOLLOWING &&
        kelp_replication_unqueue(partition->replication, kelp__partition_held(partition),
                                 actions)) {
        kelp_cover_begin_late(partition->cover, partition->now_us); /* its duration is no measure */
        follow_kept(partition, actions);
    }
}

void kelp__partition_followed(struct kelp_partition *partition, bool skipped,
                              struct kelp_actions *actions)
{
    kelp__partition_advance(partition, skipped, actions);
    if (partition->phase != KELP_PARTITION_FOLLOWING) {
        kelp__partition_move(partition, KELP_PARTITION_FOLLOWING);
    }
    kelp__partition_state_held(partition, actions);
    follow_queued(partition, actions);
}

/* True: the handle was taken over. */
static bool take_root(struct kelp_partition *partition, const struct kelp_forward *forward,
                      struct kelp_actions *actions)
{
    const uint64_t held = held_of_word(partition, &forward->word);
    const uint64_t ours = kelp__partition_held(partition);

    switch (partition->phase) {
    case KELP_PARTITION_FOLLOWING:
        if (held == ours) {
            kelp_replication_keep(partition->replication, held, forward, actions);
            follow_kept(partition, actions);
            return true;
        }
        if (held < ours) {
            kelp__partition_state_held(partition, actions);
            return false;
        }
        return kelp_replication_queue(partition->replication, held, forward);
    case KELP_PARTITION_APPLYING:
        return held > ours && kelp_replication_queue(partition->replication, held, forward);
    case KELP_PARTITION_FILLING:
        return kelp_replication_queue(partition->replication, held, forward);
    case KELP_PARTITION_ABSENT:
    case KELP_PARTITION_COLLECTING:
    case KELP_PARTITION_MEASURING:
    case KELP_PARTITION_DECIDING:
    case KELP_PARTITION_SYNCING:
    case KELP_PARTITION_FAILED:
    case KELP_PARTITION_PHASE_COUNT:
        break;
    }
    return false;
}

kelp_status kelp_partition_forwarded(struct kelp_partition *partition,
                                     const struct kelp_forward *forward,
                                     struct kelp_actions *actions)
{
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    if (kelp__partition_check_replica(partition, forward->generation, forward->map_epoch) !=
            KELP_OK ||
        partition->place == KELP_REPLICA_PRIMARY || forward->sum_count > KELP_METRIC_SUM_COUNT ||
        forward->decision.count > partition->decision_count) {
        kelp__actions_add_release(actions, forward->handle);
        return KELP_OK;
    }
    if (held_of_word(partition, &forward->word) >= kelp__partition_held(partition)) {
        kelp__partition_hear_claims(partition, forward, actions); /* before its entry completes */
    }
    if (!take_root(partition, forward, actions)) {
        kelp__actions_add_release(actions, forward->handle);
    }
    return KELP_OK;
}

/* A piece must be the first of a copy, or belong to the copy that was begun. */
static kelp_status check_piece(const struct kelp_partition *partition,
                               const struct kelp_copy_piece *piece)
{
    const struct kelp_copy_piece *begun = &partition->filling;

    if (piece->is_first || (begun->stream == piece->stream && begun->held == piece->held)) {
        return KELP_OK;
    }
    return begun->stream != 0 && begun->stream != piece->stream ? KELP_ERR_INVALID
                                                                : KELP_ERR_FORMAT;
}

kelp_status kelp_partition_fill(struct kelp_partition *partition,
                                const struct kelp_copy_piece *piece, struct kelp_actions *actions)
{
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    kelp_status status =
        kelp__partition_check_replica(partition, piece->generation, piece->map_epoch);
    if (status != KELP_OK) {
        return status;
    }
    const bool lags = partition->phase == KELP_PARTITION_FOLLOWING && piece->is_first &&
                      kelp__partition_held(partition) < piece->held;
    if (!lags && partition->phase != KELP_PARTITION_FILLING) {
        return KELP_ERR_INVALID;
    }
    status = check_piece(partition, piece);
    if (status != KELP_OK) {
        return status;
    }
    if (lags) {
        kelp_replication_drop_kept(partition->replication, actions);
        partition->has_older = false;
        kelp__partition_move(partition, KELP_PARTITION_FILLING);
    }
    if (piece->is_first) {
        partition->filling = *piece;
    }
    return KELP_OK;
}

static bool state_fits(const struct kelp_partition *partition,
                       const struct kelp_replica_state *state)
{
    if (!kelp__partition_holds_control(partition)) {
        return state->held == state->step;
    }
    return state->held == state->version && state->control.version == state->version &&
           state->control.step == state->step &&
           (state->decided.count == 0 || state->decided.count == partition->decision_count);
}

kelp_status kelp_partition_filled(struct kelp_partition *partition,
                                  const struct kelp_copy_piece *piece,
                                  const struct kelp_replica_state *state,
                                  struct kelp_actions *actions)
{
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    if (kelp__partition_check_replica(partition, piece->generation, piece->map_epoch) != KELP_OK ||
        partition->phase != KELP_PARTITION_FILLING || check_piece(partition, piece) != KELP_OK ||
        piece->held != state->held || !state_fits(partition, state)) {
        return KELP_ERR_INVALID;
    }
    partition->filling.stream = 0;
    partition->step = state->step;
    partition->version = state->version;
    partition->has_older = state->has_older;
    partition->heard.version = 0;
    kelp_cover_hear_pace(partition->cover, &state->pace);
    if (kelp__partition_holds_control(partition)) {
        partition->control = state->control;
        partition->older_word = state->older_word;
        partition->decided_count = state->decided.count;
        if (state->decided.count > 0) {
            memcpy(partition->decided, state->decided.values,
                   state->decided.count * sizeof(partition->decided[0]));
        }
    }
    kelp__partition_hear_known(partition, state, actions);
    kelp__partition_begin_entry(partition);
    kelp__partition_move(partition, KELP_PARTITION_FOLLOWING);
    kelp__partition_state_held(partition, actions);
    follow_queued(partition, actions);
    return KELP_OK;
}
