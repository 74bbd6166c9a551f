#include "ps/core/partition/partition_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/state_table.h"
#include "ps/core/limits.h"

/* Actions of one event other than those of the tree and the answers: release, refuse, apply,
 * record, snapshot. */
#define ACTIONS_BESIDES 8
/* Of a partition with followers, or that follows: a question, a root and a report for each of
 * two followers, a copy, and the release of the kept root. Each queued root of a follower is
 * released, applied, recorded and acknowledged. */
#define ACTIONS_OF_REPLICAS (16 + 5 * KELP_PS_FORWARDS_QUEUED_MAX)

static const struct kelp_state phases[KELP_PARTITION_PHASE_COUNT] = {
    [KELP_PARTITION_ABSENT] = {"absent", KELP_STATE_BIT(KELP_PARTITION_COLLECTING) |
                                             KELP_STATE_BIT(KELP_PARTITION_FILLING) |
                                             KELP_STATE_BIT(KELP_PARTITION_FOLLOWING)},
    [KELP_PARTITION_COLLECTING] = {"collecting", KELP_STATE_BIT(KELP_PARTITION_APPLYING) |
                                                     KELP_STATE_BIT(KELP_PARTITION_MEASURING) |
                                                     KELP_STATE_BIT(KELP_PARTITION_SYNCING) |
                                                     KELP_STATE_BIT(KELP_PARTITION_FOLLOWING) |
                                                     KELP_STATE_BIT(KELP_PARTITION_FAILED) |
                                                     KELP_STATE_BIT(KELP_PARTITION_ABSENT)},
    [KELP_PARTITION_MEASURING] = {"measuring", KELP_STATE_BIT(KELP_PARTITION_DECIDING) |
                                                   KELP_STATE_BIT(KELP_PARTITION_FOLLOWING) |
                                                   KELP_STATE_BIT(KELP_PARTITION_FAILED) |
                                                   KELP_STATE_BIT(KELP_PARTITION_ABSENT)},
    [KELP_PARTITION_DECIDING] = {"deciding", KELP_STATE_BIT(KELP_PARTITION_COLLECTING) |
                                                 KELP_STATE_BIT(KELP_PARTITION_APPLYING) |
                                                 KELP_STATE_BIT(KELP_PARTITION_SYNCING) |
                                                 KELP_STATE_BIT(KELP_PARTITION_FOLLOWING) |
                                                 KELP_STATE_BIT(KELP_PARTITION_FAILED) |
                                                 KELP_STATE_BIT(KELP_PARTITION_ABSENT)},
    [KELP_PARTITION_APPLYING] = {"applying", KELP_STATE_BIT(KELP_PARTITION_COLLECTING) |
                                                 KELP_STATE_BIT(KELP_PARTITION_SYNCING) |
                                                 KELP_STATE_BIT(KELP_PARTITION_FOLLOWING) |
                                                 KELP_STATE_BIT(KELP_PARTITION_FAILED) |
                                                 KELP_STATE_BIT(KELP_PARTITION_ABSENT)},
    [KELP_PARTITION_SYNCING] = {"syncing", KELP_STATE_BIT(KELP_PARTITION_COLLECTING) |
                                               KELP_STATE_BIT(KELP_PARTITION_FOLLOWING) |
                                               KELP_STATE_BIT(KELP_PARTITION_FAILED) |
                                               KELP_STATE_BIT(KELP_PARTITION_ABSENT)},
    [KELP_PARTITION_FILLING] = {"filling", KELP_STATE_BIT(KELP_PARTITION_FOLLOWING) |
                                               KELP_STATE_BIT(KELP_PARTITION_FAILED) |
                                               KELP_STATE_BIT(KELP_PARTITION_ABSENT)},
    [KELP_PARTITION_FOLLOWING] = {"following", KELP_STATE_BIT(KELP_PARTITION_APPLYING) |
                                                   KELP_STATE_BIT(KELP_PARTITION_SYNCING) |
                                                   KELP_STATE_BIT(KELP_PARTITION_FILLING) |
                                                   KELP_STATE_BIT(KELP_PARTITION_FAILED) |
                                                   KELP_STATE_BIT(KELP_PARTITION_ABSENT)},
    [KELP_PARTITION_FAILED] = {"failed", KELP_STATE_BIT(KELP_PARTITION_ABSENT)},
};

static const struct kelp_state_table phase_table = KELP_STATE_TABLE(phases);

void kelp__partition_move(struct kelp_partition *partition, enum kelp_partition_phase phase)
{
    partition->phase =
        (enum kelp_partition_phase)kelp_state_move(&phase_table, partition->phase, phase);
}

/* Reserve what one event may append, so that no event fails half-way. */
kelp_status kelp__partition_reserve(const struct kelp_partition *partition,
                                    struct kelp_actions *actions)
{
    const size_t replicas = partition->replication ? ACTIONS_OF_REPLICAS : 0;

    return kelp__actions_reserve(
        actions, kelp_reduction_actions_max(partition->reduction) + partition->waiting_count +
                     kelp_evidence_actions_max() + ACTIONS_BESIDES + replicas);
}

void kelp__partition_stop_if_needed(struct kelp_partition *partition, struct kelp_actions *actions)
{
    const bool waits = partition->phase == KELP_PARTITION_COLLECTING ||
                       partition->phase == KELP_PARTITION_DECIDING;

    if (waits && kelp__partition_must_stop(partition)) {
        kelp_reduction_clear(partition->reduction, actions);
        kelp__partition_move(partition, KELP_PARTITION_FAILED);
    }
}

/* ---- life ---- */

/* Allocate the state of decisions, for a job that needs them. */
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
        partition->early = calloc((size_t)partition->decision_count + 1, sizeof(double));
        return partition->early
                   ? KELP_OK
                   : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for decisions of %u values",
                               partition->decision_count);
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
    if (status == KELP_OK && config->replicated) {
        status = kelp__partition_prepare_replicas(partition);
    }
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
        kelp_replication_destroy(partition->replication);
        free(partition->decided);
        free(partition->early);
        free(partition->candidates);
        free(partition->waiting);
        free(partition);
    }
}

void kelp_partition_load(struct kelp_partition *partition, const struct kelp_partition_start *start)
{
    assert(start->generation > 0);
    assert(partition->waiting_count == 0);
    assert(kelp_reduction_pending(partition->reduction) == 0);

    kelp__partition_move(partition, start->place == KELP_REPLICA_PRIMARY ? KELP_PARTITION_COLLECTING
                                    : start->place == KELP_REPLICA_JOINER
                                        ? KELP_PARTITION_FILLING
                                        : KELP_PARTITION_FOLLOWING);
    partition->place = start->place;
    partition->filling.stream = 0;
    partition->digest_of = (struct kelp_weights_digest){.held = 0};
    partition->is_applied = false;
    partition->early_word.version = 0;
    assert(partition->replication ||
           (start->place == KELP_REPLICA_PRIMARY && start->backup == 0 && start->joiner == 0));
    if (partition->replication) {
        kelp_replication_enter(partition->replication, start->backup, start->joiner);
    }
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
        kelp__partition_derive_word(partition);
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
    if (partition->replication) {
        kelp_replication_clear(partition->replication, actions);
    }
    /* An apply under way reads its root until applied() comes. The root is still released here; the
     * shell carries actions out in order and keeps what it reads. */
    kelp_reduction_clear(partition->reduction, actions);
    if (partition->evidence) {
        kelp_evidence_clear(partition->evidence, actions);
    }
    kelp__partition_move(partition, KELP_PARTITION_ABSENT);
    partition->generation = 0;
    partition->is_applied = false;
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
    if (partition->place != KELP_REPLICA_PRIMARY) {
        *ret_why = "this shard follows";
        return KELP_ERR_NOT_PRIMARY;
    }
    return KELP_OK;
}

/*
 * Within a step the versions are: evaluation entries first, then the training entry, which ends the
 * step. So no word of the step has a later version than the TRAIN word. Only that one is kept here,
 * because evaluations do not concern the partition.
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
        return KELP_OK; /* a late evaluation word */
    }
    return kelp_control_word_equal(word, &partition->word) ? KELP_OK : KELP_ERR_CONTROL_WORD;
}

/* A word is learned only from a push that was taken, so a word alone cannot cause correct pushes
 * to be refused. */
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

/* ---- the view ---- */

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
        .place = partition->place,
        .held = kelp__partition_held(partition) + (partition->is_applied ? 1 : 0),
    };
    if (partition->replication) {
        kelp_replication_view(partition->replication, &ret_view->replication);
    }
}

const struct kelp_best *kelp_partition_best(const struct kelp_partition *partition)
{
    bool known = kelp__partition_holds_control(partition) &&
                 partition->phase != KELP_PARTITION_ABSENT && partition->control.best.known;
    return known ? &partition->control.best : NULL;
}
