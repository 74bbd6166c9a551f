#include "ps/core/partition_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/state_table.h"
#include "ps/core/limits.h"

/* Actions of one event besides those of the tree and the answers: release, refuse, apply, record,
 * snapshot. */
#define ACTIONS_BESIDES 8

static const struct kelp_state phases[KELP_PARTITION_PHASE_COUNT] = {
    [KELP_PARTITION_ABSENT] = {"absent", KELP_STATE_BIT(KELP_PARTITION_COLLECTING)},
    [KELP_PARTITION_COLLECTING] = {"collecting", KELP_STATE_BIT(KELP_PARTITION_APPLYING) |
                                                     KELP_STATE_BIT(KELP_PARTITION_MEASURING) |
                                                     KELP_STATE_BIT(KELP_PARTITION_FAILED) |
                                                     KELP_STATE_BIT(KELP_PARTITION_ABSENT)},
    [KELP_PARTITION_MEASURING] = {"measuring", KELP_STATE_BIT(KELP_PARTITION_DECIDING) |
                                                   KELP_STATE_BIT(KELP_PARTITION_FAILED) |
                                                   KELP_STATE_BIT(KELP_PARTITION_ABSENT)},
    [KELP_PARTITION_DECIDING] = {"deciding", KELP_STATE_BIT(KELP_PARTITION_COLLECTING) |
                                                 KELP_STATE_BIT(KELP_PARTITION_APPLYING) |
                                                 KELP_STATE_BIT(KELP_PARTITION_FAILED) |
                                                 KELP_STATE_BIT(KELP_PARTITION_ABSENT)},
    [KELP_PARTITION_APPLYING] = {"applying", KELP_STATE_BIT(KELP_PARTITION_COLLECTING) |
                                                 KELP_STATE_BIT(KELP_PARTITION_FAILED) |
                                                 KELP_STATE_BIT(KELP_PARTITION_ABSENT)},
    [KELP_PARTITION_FAILED] = {"failed", KELP_STATE_BIT(KELP_PARTITION_ABSENT)},
};

static const struct kelp_state_table phase_table = KELP_STATE_TABLE(phases);

static void move_to(struct kelp_partition *partition, enum kelp_partition_phase phase)
{
    partition->phase =
        (enum kelp_partition_phase)kelp_state_move(&phase_table, partition->phase, phase);
}

/* Whatever one event may append, so that no event fails half-way. */
kelp_status kelp__partition_reserve(const struct kelp_partition *partition,
                                    struct kelp_actions *actions)
{
    return kelp__actions_reserve(actions, kelp_reduction_actions_max(partition->reduction) +
                                              partition->waiting_count +
                                              kelp_evidence_actions_max() + ACTIONS_BESIDES);
}

void kelp__partition_stop_if_needed(struct kelp_partition *partition, struct kelp_actions *actions)
{
    const bool waits = partition->phase == KELP_PARTITION_COLLECTING ||
                       partition->phase == KELP_PARTITION_DECIDING;

    if (waits && kelp__partition_must_stop(partition)) {
        kelp_reduction_clear(partition->reduction, actions);
        move_to(partition, KELP_PARTITION_FAILED);
    }
}

/* ---- life ---- */

/* Room for the decisions of a job that needs them. */
static kelp_status prepare_decisions(struct kelp_partition *partition, struct kelp_error *reterr)
{
    if (!kelp_control_decides(partition->job)) {
        return KELP_OK;
    }
    partition->decision_count = kelp_step_decision_count(partition->job, partition->plan);
    partition->decided = calloc((size_t)partition->decision_count + 1, sizeof(double));
    if (!partition->decided) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for decisions of %u values",
                         partition->decision_count);
    }
    if (partition->index != 0) {
        return KELP_OK;
    }
    partition->share_authors = calloc(partition->plan->partition_count, sizeof(uint32_t));
    return partition->share_authors
               ? kelp_decision_create(partition->job, partition->plan, &partition->decision, reterr)
               : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the shares of %u partitions",
                           partition->plan->partition_count);
}

kelp_status kelp_partition_create(const struct kelp_partition_config *config,
                                  struct kelp_partition **ret_partition, struct kelp_error *reterr)
{
    struct kelp_partition *partition = calloc(1, sizeof(*partition));

    if (!partition) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a partition");
    }
    partition->index = config->index;
    partition->hollow = config->hollow;
    partition->job = config->job;
    partition->plan = config->plan;
    partition->lanes = config->job->cluster.lanes;
    partition->reduction = kelp_reduction_create(partition->lanes, config->index == 0);
    partition->cover = kelp_cover_create(partition->lanes);
    const bool compares = !config->job->cluster.mixed;
    partition->evidence = compares ? kelp_evidence_create(partition->lanes) : NULL;
    kelp_status status = prepare_decisions(partition, reterr);
    if (status == KELP_OK &&
        (!partition->reduction || !partition->cover || (compares && !partition->evidence))) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a partition of %u lanes",
                           config->job->cluster.lanes);
    }
    if (status != KELP_OK) {
        kelp_partition_destroy(partition);
        return status;
    }
    *ret_partition = partition;
    return KELP_OK;
}

void kelp_partition_destroy(struct kelp_partition *partition)
{
    if (partition) {
        kelp_reduction_destroy(partition->reduction);
        kelp_cover_destroy(partition->cover);
        kelp_evidence_destroy(partition->evidence);
        free(partition->share_authors);
        kelp_decision_destroy(partition->decision);
        free(partition->decided);
        free(partition->candidates);
        free(partition->waiting);
        free(partition);
    }
}

/* Partition 0: the word follows from the state. */
static void derive_word(struct kelp_partition *partition)
{
    kelp_control_word(&partition->control, partition->job, partition->plan, &partition->word);
    partition->has_word = true;
    assert(partition->word.version == partition->control.version);
    assert(partition->word.step == partition->control.step);
    partition->version = partition->control.version;
}

void kelp_partition_load(struct kelp_partition *partition, const struct kelp_partition_start *start)
{
    assert(start->generation > 0);
    assert(partition->waiting_count == 0);
    assert(kelp_reduction_pending(partition->reduction) == 0);

    move_to(partition, KELP_PARTITION_COLLECTING);
    partition->generation = start->generation;
    partition->map_epoch = start->map_epoch;
    partition->step = start->step;
    partition->version = start->version;
    partition->has_older = false;
    partition->has_word = false;
    partition->digest[0] = '\0';
    partition->snapshot.serial = 0;
    kelp_cover_restart(partition->cover);
    partition->has_share = false;
    partition->decided_count = 0;
    partition->heard.version = 0;
    partition->word_disputed = false;
    partition->has_conflict = false;
    if (partition->decision) {
        kelp_decision_begin(partition->decision);
    }
    if (kelp__partition_holds_control(partition)) {
        if (start->control) {
            partition->control = *start->control;
        } else {
            kelp_control_init(&partition->control, partition->job, partition->plan);
        }
        derive_word(partition);
        assert(partition->version == start->version);
        assert(partition->control.step == start->step);
    }
}

kelp_status kelp_partition_unload(struct kelp_partition *partition, kelp_status status,
                                  struct kelp_actions *actions)
{
    assert(status != KELP_OK);
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    if (partition->phase == KELP_PARTITION_ABSENT) {
        return KELP_OK;
    }
    kelp__partition_end_waiting(partition, status, actions);
    /* The root of an apply under way is read until applied() comes; it is released here, and the
     * shell, which carries actions out in order, keeps what it still reads. */
    kelp_reduction_clear(partition->reduction, actions);
    if (partition->evidence) {
        kelp_evidence_clear(partition->evidence, actions);
    }
    move_to(partition, KELP_PARTITION_ABSENT);
    partition->generation = 0;
    partition->snapshot.serial = 0;
    return KELP_OK;
}

/* ---- fences and words ---- */

kelp_status kelp_fence_generation(uint64_t ours, uint64_t theirs)
{
    if (ours == 0 || theirs > ours) {
        return KELP_ERR_BUSY;
    }
    return theirs < ours ? KELP_ERR_OLD_GENERATION : KELP_OK;
}

static kelp_status not_hosted(uint64_t ours, uint64_t theirs)
{
    kelp_status status = kelp_fence_generation(ours, theirs);

    return status == KELP_OK ? KELP_ERR_NOT_PRIMARY : status;
}

struct kelp_refusal kelp_refusal_not_hosted(uint64_t ours, uint64_t theirs, uint64_t requester,
                                            uint64_t version)
{
    return (struct kelp_refusal){.requester = requester,
                                 .status = not_hosted(ours, theirs),
                                 .version = version,
                                 .why = "not hosted here"};
}

struct kelp_answer kelp_answer_not_hosted(uint64_t ours, const struct kelp_pull *pull)
{
    return (struct kelp_answer){.requester = pull->requester,
                                .status = not_hosted(ours, pull->generation),
                                .step = pull->step};
}

kelp_status kelp__partition_check_fences(const struct kelp_partition *partition,
                                         uint64_t generation, uint64_t map_epoch,
                                         const char **ret_why)
{
    kelp_status status = kelp_fence_generation(partition->generation, generation);

    if (status != KELP_OK) {
        *ret_why = partition->phase == KELP_PARTITION_ABSENT ? "the partition is not loaded"
                                                             : "another generation";
        return status;
    }
    assert(partition->phase != KELP_PARTITION_ABSENT);
    if (map_epoch != partition->map_epoch) {
        *ret_why = "another map epoch";
        return map_epoch < partition->map_epoch ? KELP_ERR_OLD_MAP_EPOCH : KELP_ERR_BUSY;
    }
    return KELP_OK;
}

/*
 * Versions of one step: evaluation entries first, then the training entry, which ends the step. So
 * nothing passes a TRAIN word, which alone is kept here: evaluations do not concern the partition.
 */
kelp_status kelp__partition_judge_word(const struct kelp_partition *partition,
                                       const struct kelp_control_word *word)
{
    assert(!kelp__partition_holds_control(partition));
    assert(word->step == partition->step);
    if (!partition->has_word) {
        return word->version < partition->version ? KELP_ERR_CONTROL_WORD : KELP_OK;
    }
    assert(partition->word.kind == KELP_STEP_TRAIN);
    if (word->version < partition->word.version && word->kind != KELP_STEP_TRAIN) {
        return KELP_OK; /* a late one */
    }
    return kelp_control_word_equal(word, &partition->word) ? KELP_OK : KELP_ERR_CONTROL_WORD;
}

/* Only what was taken teaches a word: nobody can make right pushes be refused by words alone. */
void kelp__partition_learn_word(struct kelp_partition *partition, const struct kelp_push *push)
{
    if (kelp__partition_holds_control(partition) || partition->has_word) {
        return;
    }
    if (push->word->version > partition->version) {
        kelp_cover_begin_late(partition->cover, partition->now_us);
    }
    partition->has_word = true;
    partition->word = *push->word;
    partition->word_author = push->author;
    partition->version = push->word->version;
}

/* ---- entries ---- */

bool kelp__partition_has_given_up(const struct kelp_partition *partition)
{
    return kelp__partition_holds_control(partition) &&
           kelp_control_gives_up(&partition->control, partition->job, partition->plan);
}

static void begin_step(struct kelp_partition *partition)
{
    partition->digest[0] = '\0';
    partition->word_disputed = false;
    if (partition->decision) {
        kelp_decision_begin(partition->decision);
    }
    if (kelp__partition_holds_control(partition)) {
        derive_word(partition);
    } else {
        partition->version = partition->word.version + 1;
        partition->has_word = false;
    }
}

static void give_up(struct kelp_partition *partition, struct kelp_actions *actions)
{
    struct kelp_action *action = kelp__actions_add(actions, KELP_ACTION_GIVE_UP);

    action->give_up.steps = partition->control.step;
    action->give_up.skipped = partition->control.steps_skipped;
    move_to(partition, KELP_PARTITION_FAILED);
}

/* The entry is complete: partition 0 moves its control state on, everyone answers who waited. */
static void complete_entry(struct kelp_partition *partition, const double *sums, bool skipped,
                           struct kelp_actions *actions)
{
    assert(partition->has_word);
    struct kelp_control_word completed = partition->word;

    kelp_reduction_clear(partition->reduction, actions);
    kelp__partition_complete_evidence(partition, &completed, skipped, actions);
    kelp_cover_complete(partition->cover, completed.kind, partition->now_us);
    if (completed.kind == KELP_STEP_TRAIN) {
        partition->older_word = completed;
        partition->step++;
        partition->has_older = true;
    }
    if (kelp__partition_holds_control(partition)) {
        struct kelp_action *action = kelp__actions_add(actions, KELP_ACTION_RECORD);
        if (skipped) {
            kelp_control_skip(&partition->control, partition->job, partition->plan, sums,
                              partition->digest, &action->record);
        } else {
            kelp_control_apply(&partition->control, partition->job, partition->plan, sums,
                               partition->digest, &action->record);
        }
        assert(partition->control.version == completed.version + 1);
        assert(partition->control.step == partition->step);
    }
    begin_step(partition);
    if (kelp__partition_has_given_up(partition)) {
        give_up(partition, actions);
        return;
    }
    if (kelp__partition_must_stop(partition)) {
        move_to(partition, KELP_PARTITION_FAILED);
        return;
    }
    kelp__partition_settle_snapshot(partition, actions);
    kelp__partition_answer_waiting(partition, actions);
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

static void begin_apply(struct kelp_partition *partition, uint64_t root,
                        struct kelp_actions *actions)
{
    move_to(partition, KELP_PARTITION_APPLYING);
    partition->has_older = false; /* its buffer takes the next weights */
    add_apply(partition, KELP_ACTION_APPLY, root, actions);
}

void kelp__partition_after_reduction(struct kelp_partition *partition, struct kelp_actions *actions)
{
    uint64_t root;
    const double *sums;

    if (!kelp_reduction_root(partition->reduction, &root, &sums)) {
        return;
    }
    assert(partition->has_word);
    if (partition->word.kind != KELP_STEP_TRAIN) {
        assert(kelp__partition_holds_control(partition));
        assert(root == KELP_HANDLE_NONE);
        complete_entry(partition, sums, false, actions);
        return;
    }
    /* A step has at least one sample: judge_content(). */
    assert(root != KELP_HANDLE_NONE || partition->hollow);
    if (kelp_control_decides(partition->job)) {
        move_to(partition, KELP_PARTITION_MEASURING);
        partition->decided_count = 0; /* that about the step before is known to all */
        add_apply(partition, KELP_ACTION_MEASURE, root, actions);
    } else {
        begin_apply(partition, root, actions);
    }
}

/* ---- decisions ---- */

/* The decision about the current step is known: to leave it out, or what `decided` has. */
static void decide(struct kelp_partition *partition, bool skip, struct kelp_actions *actions)
{
    uint64_t root;
    const double *sums;
    bool complete = kelp_reduction_root(partition->reduction, &root, &sums);

    assert(partition->phase == KELP_PARTITION_DECIDING);
    assert(complete);
    partition->decided_count = skip ? 0 : partition->decision_count;
    if (!skip && complete) {
        begin_apply(partition, root, actions);
        return;
    }
    move_to(partition, KELP_PARTITION_COLLECTING);
    (void)kelp__actions_add(actions, KELP_ACTION_REPEAT);
    complete_entry(partition, sums, true, actions);
}

void kelp__partition_decide_if_known(struct kelp_partition *partition, struct kelp_actions *actions)
{
    bool skip;

    if (partition->phase == KELP_PARTITION_DECIDING && partition->decision &&
        kelp_decision_made(partition->decision, &skip, partition->decided)) {
        decide(partition, skip, actions);
    }
}

kelp_status kelp_partition_measured(struct kelp_partition *partition, uint64_t token,
                                    const struct kelp_decision_share *share,
                                    struct kelp_actions *actions)
{
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    if (partition->phase != KELP_PARTITION_MEASURING || token != partition->apply_serial) {
        return KELP_OK; /* unloaded meanwhile */
    }
    if (share->values[KELP_DECISION_SHARE_FINITE] == 0.0 &&
        partition->job->failure.on_nan != KELP_NAN_SKIP) {
        kelp_reduction_clear(partition->reduction, actions);
        move_to(partition, KELP_PARTITION_FAILED);
        return KELP_OK;
    }
    move_to(partition, KELP_PARTITION_DECIDING);
    partition->has_share = true;
    partition->share_step = partition->step;
    partition->share = *share;
    if (partition->decision) {
        kelp_status status = kelp_decision_add(partition->decision, partition->index, share);
        assert(status == KELP_OK); /* the shell gives well-formed ones, and nobody else gave ours */
        (void)status;
    }
    kelp__partition_answer_waiting(partition, actions);
    kelp__partition_decide_if_known(partition, actions);
    return KELP_OK;
}

/* A partition other than 0 hears the word of a later version: the decision is part of it. */
void kelp__partition_hear_decision(struct kelp_partition *partition, const struct kelp_pull *pull,
                                   struct kelp_actions *actions)
{
    const struct kelp_control_word *word = pull->word;
    const struct kelp_step_decision *heard = &pull->decision;

    if (kelp__partition_holds_control(partition) || partition->phase != KELP_PARTITION_DECIDING ||
        word->step != partition->step + 1 || word->version <= partition->word.version) {
        return;
    }
    if (!word->skipped && heard->count != partition->decision_count) {
        return; /* the word alone, which somebody acts by who has not asked what was decided */
    }
    if (!word->skipped && heard->count > 0) {
        memcpy(partition->decided, heard->values, heard->count * sizeof(partition->decided[0]));
    }
    partition->heard = *word;
    partition->heard_author = pull->author;
    decide(partition, word->skipped, actions);
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

kelp_status kelp_partition_applied(struct kelp_partition *partition, uint64_t token, bool finite,
                                   struct kelp_actions *actions)
{
    uint64_t root;
    const double *sums;

    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    if (partition->phase != KELP_PARTITION_APPLYING || token != partition->apply_serial) {
        return KELP_OK; /* unloaded meanwhile */
    }
    bool complete = kelp_reduction_root(partition->reduction, &root, &sums);
    assert(complete);
    if (!finite || !complete) {
        kelp_reduction_clear(partition->reduction, actions);
        move_to(partition, KELP_PARTITION_FAILED);
        return KELP_OK;
    }
    move_to(partition, KELP_PARTITION_COLLECTING);
    complete_entry(partition, sums, false, actions);
    return KELP_OK;
}

void kelp_partition_view(const struct kelp_partition *partition,
                         struct kelp_partition_view *ret_view)
{
    *ret_view = (struct kelp_partition_view){
        .phase = partition->phase,
        .generation = partition->generation,
        .map_epoch = partition->map_epoch,
        .step = partition->step,
        .version = partition->version,
        .has_older = partition->has_older,
        .pending = kelp_reduction_pending(partition->reduction),
        .waiting = (uint32_t)partition->waiting_count,
        .pushes = partition->pushes,
        .duplicates = partition->duplicates,
        .refusals = partition->refusals,
        .offers = partition->offers,
        .has_word = partition->has_word,
        .word = partition->word,
    };
}

const struct kelp_best *kelp_partition_best(const struct kelp_partition *partition)
{
    bool known = kelp__partition_holds_control(partition) &&
                 partition->phase != KELP_PARTITION_ABSENT && partition->control.best.known;
    return known ? &partition->control.best : NULL;
}
