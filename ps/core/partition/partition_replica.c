/* A replicated partition: what the primary sends its followers, what it hears from them, and how
 * its place changes (ps/core/partition/replication.h). */
#include <assert.h>

#include "ps/core/partition/partition_internal.h"

/* How far the partition has applied, in the count of kelp__partition_held(). */
static uint64_t applied_held(const struct kelp_partition *partition)
{
    return kelp__partition_held(partition) + (partition->is_applied ? 1 : 0);
}

kelp_status kelp__partition_prepare_replicas(struct kelp_partition *partition)
{
    if (partition->replication) {
        return KELP_OK;
    }
    return kelp_replication_create(kelp__partition_holds_control(partition),
                                   partition->decision_count, &partition->replication);
}

/* ---- the primary ---- */

/* Take the current entry's root out of the tree and keep it. */
static void keep_root(struct kelp_partition *partition, bool skipped, struct kelp_actions *actions)
{
    const bool trains = partition->word.kind == KELP_STEP_TRAIN; /* else no decision is about it */
    uint64_t handle;
    const double *sums;
    bool complete = kelp_reduction_root(partition->reduction, &handle, &sums);

    assert(complete);
    (void)complete;
    if (!skipped) {
        handle = kelp_reduction_take_root(partition->reduction);
    }
    kelp_replication_keep(partition->replication, kelp__partition_held(partition),
                          &(struct kelp_forward){.word = partition->word,
                                                 .handle = skipped ? KELP_HANDLE_NONE : handle,
                                                 .skipped = skipped,
                                                 .sums = sums,
                                                 .sum_count = sums ? KELP_METRIC_SUM_COUNT : 0,
                                                 .digest = partition->digest,
                                                 .decision = {trains ? partition->decided_count : 0,
                                                              partition->decided}},
                          actions);
}

static void forward_kept(struct kelp_partition *partition, struct kelp_actions *actions)
{
    const struct kelp_root *root = kelp_replication_kept(partition->replication);
    const struct kelp_follower *follower;

    while ((follower = kelp_replication_serve(partition->replication)) != NULL) {
        struct kelp_action *action = kelp__actions_add(actions, KELP_ACTION_FORWARD);
        action->forward.process = follower->process;
        action->forward.forward = (struct kelp_forward){
            .generation = partition->generation,
            .map_epoch = partition->map_epoch,
            .word = root->word,
            .handle = root->handle,
            .skipped = root->skipped,
            .sums = root->sums,
            .sum_count = root->sums ? kelp_metric_sum_trim(root->sums, KELP_METRIC_SUM_COUNT) : 0,
            .digest = root->digest,
            .decision = {root->decision_count, root->decision}};
    }
}

void kelp__partition_forward(struct kelp_partition *partition, bool skipped,
                             struct kelp_actions *actions)
{
    if (kelp__partition_is_followed(partition)) {
        keep_root(partition, skipped, actions);
        forward_kept(partition, actions);
    } else if (partition->replication) {
        kelp_replication_drop_kept(partition->replication, actions);
    }
}

static void add_copy_action(const struct kelp_partition *partition, enum kelp_action_kind kind,
                            const struct kelp_follower *joiner, struct kelp_actions *actions)
{
    struct kelp_action *action = kelp__actions_add(actions, kind);

    action->copy.process = joiner->process;
    action->copy.map_epoch = partition->map_epoch;
    if (kind != KELP_ACTION_COPY) {
        action->copy.state = (struct kelp_replica_state){.has_older = partition->has_older};
        return;
    }
    action->copy.state =
        (struct kelp_replica_state){.held = kelp__partition_held(partition),
                                    .step = partition->step,
                                    .version = partition->version,
                                    .has_older = partition->has_older,
                                    .decided = {partition->decided_count, partition->decided}};
    kelp_cover_pace(partition->cover, &action->copy.state.pace);
    if (kelp__partition_holds_control(partition)) {
        action->copy.state.control = partition->control;
        action->copy.state.older_word = partition->older_word;
    }
}

static void show_if_everywhere(struct kelp_partition *partition, struct kelp_actions *actions)
{
    if (partition->phase != KELP_PARTITION_SYNCING ||
        !kelp_replication_covers(partition->replication, applied_held(partition))) {
        return;
    }
    kelp__partition_move(partition, KELP_PARTITION_COLLECTING);
    if (partition->is_applied) {
        kelp__partition_advance(partition, partition->is_skipped, actions);
    }
    kelp__partition_show(partition, actions);
}

static void report_in_sync(struct kelp_partition *partition, struct kelp_actions *actions)
{
    const struct kelp_follower *follower;

    while ((follower = kelp_replication_count_in(partition->replication,
                                                 applied_held(partition))) != NULL) {
        struct kelp_action *action = kelp__actions_add(actions, KELP_ACTION_IN_SYNC);
        action->in_sync.process = follower->process;
        action->in_sync.map_epoch = partition->map_epoch;
    }
}

/* ---- do replicas compute the same? ---- */

/* The result must be the same on all replicas. */
static bool is_compared(const struct kelp_partition *partition, uint64_t steps)
{
    if (steps < KELP_PS_COMPARE_STEPS) {
        return (steps & (steps - 1)) == 0;
    }
    return (steps + partition->index) % KELP_PS_COMPARE_STEPS == 0;
}

bool kelp__partition_wants_digest(const struct kelp_partition *partition)
{
    const bool has_others =
        partition->place != KELP_REPLICA_PRIMARY || kelp__partition_is_followed(partition);

    return has_others && !partition->hollow && !partition->job->cluster.mixed &&
           is_compared(partition, partition->step + 1);
}

static bool same_content(const struct kelp_content *a, const struct kelp_content *b)
{
    return a->low == b->low && a->high == b->high;
}

/* A follower whose weights differ from ours. NULL: none among those that have reported. */
static const struct kelp_follower *find_other(const struct kelp_partition *partition)
{
    const struct kelp_weights_digest *ours = &partition->digest_of;
    const struct kelp_content none = {0};
    const struct kelp_follower *follower;

    if (same_content(&ours->content, &none) || ours->held != applied_held(partition)) {
        return NULL;
    }
    for (uint32_t i = 0; (follower = kelp_replication_follower(partition->replication, i)); i++) {
        if (follower->holds && follower->held == ours->held &&
            !same_content(&follower->digest, &none) &&
            !same_content(&follower->digest, &ours->content)) {
            return follower;
        }
    }
    return NULL;
}

/* True: replicas differ, and the partition fails before anybody sees its weights. */
static bool stops_over_digests(struct kelp_partition *partition, struct kelp_actions *actions)
{
    const struct kelp_follower *other = find_other(partition);

    if (other) {
        kelp__actions_add(actions, KELP_ACTION_DIFFERS)->differs = (struct kelp_difference){
            .process = other->process, .ours = partition->digest_of, .theirs = other->digest};
        kelp__partition_move(partition, KELP_PARTITION_FAILED);
    }
    return other != NULL;
}

void kelp__partition_replicate(struct kelp_partition *partition, struct kelp_actions *actions)
{
    const struct kelp_follower *joiner;

    if (!partition->replication || partition->place != KELP_REPLICA_PRIMARY ||
        partition->phase == KELP_PARTITION_ABSENT || partition->phase == KELP_PARTITION_FAILED) {
        return;
    }
    if (stops_over_digests(partition, actions)) {
        return;
    }
    forward_kept(partition, actions);
    report_in_sync(partition, actions);
    show_if_everywhere(partition, actions);
    joiner = kelp_replication_want_copy(partition->replication);
    if (joiner) {
        add_copy_action(partition, KELP_ACTION_WANT_COPY, joiner, actions);
    }
    if (partition->phase != KELP_PARTITION_COLLECTING) {
        return;
    }
    joiner = kelp_replication_begin_copy(partition->replication, kelp__partition_held(partition));
    if (joiner) {
        add_copy_action(partition, KELP_ACTION_COPY, joiner, actions);
    }
    kelp__partition_after_reduction(partition, actions); /* it may wait for the joiner */
}

kelp_status kelp_partition_copy(struct kelp_partition *partition, uint64_t process,
                                struct kelp_actions *actions)
{
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    if (partition->replication && partition->place == KELP_REPLICA_PRIMARY) {
        kelp_replication_permit_copy(partition->replication, process);
        kelp__partition_replicate(partition, actions);
    }
    return KELP_OK;
}

/* ---- questions and acknowledgements ---- */

kelp_status kelp__partition_check_replica(const struct kelp_partition *partition,
                                          uint64_t generation, uint64_t map_epoch)
{
    kelp_status status = kelp_fence_generation(partition->generation, generation);

    if (status == KELP_OK && map_epoch != partition->map_epoch) {
        status = map_epoch < partition->map_epoch ? KELP_ERR_OLD_MAP_EPOCH : KELP_ERR_BUSY;
    }
    return status;
}

void kelp__partition_state_held(const struct kelp_partition *partition,
                                struct kelp_actions *actions)
{
    if (partition->phase != KELP_PARTITION_FOLLOWING &&
        partition->phase != KELP_PARTITION_FILLING) {
        return;
    }
    struct kelp_acknowledgement *said =
        &kelp__actions_add(actions, KELP_ACTION_ACKNOWLEDGE)->acknowledge;
    *said = (struct kelp_acknowledgement){.generation = partition->generation,
                                          .map_epoch = partition->map_epoch,
                                          .holds = partition->phase == KELP_PARTITION_FOLLOWING,
                                          .held = kelp__partition_held(partition)};
    if (said->holds && partition->digest_of.held == said->held) {
        said->digest = partition->digest_of.content;
    }
}

static void ask(const struct kelp_partition *partition, const struct kelp_follower *follower,
                struct kelp_actions *actions)
{
    struct kelp_action *action = kelp__actions_add(actions, KELP_ACTION_ASK);

    action->ask.process = follower->process;
    action->ask.map_epoch = partition->map_epoch;
}

kelp_status kelp_partition_acknowledged(struct kelp_partition *partition,
                                        const struct kelp_acknowledgement *said,
                                        struct kelp_actions *actions)
{
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    if (kelp__partition_check_replica(partition, said->generation, said->map_epoch) == KELP_OK &&
        partition->place == KELP_REPLICA_PRIMARY && partition->replication &&
        kelp_replication_stated(partition->replication, said, applied_held(partition))) {
        kelp__partition_replicate(partition, actions);
    }
    return KELP_OK;
}

kelp_status kelp_partition_asked(struct kelp_partition *partition, uint64_t generation,
                                 uint64_t map_epoch, struct kelp_actions *actions)
{
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    if (kelp__partition_check_replica(partition, generation, map_epoch) == KELP_OK) {
        kelp__partition_state_held(partition, actions);
    }
    return KELP_OK;
}

kelp_status kelp_partition_linked(struct kelp_partition *partition, uint64_t process, bool is_up,
                                  struct kelp_actions *actions)
{
    const struct kelp_follower *follower;

    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    if (!partition->replication || partition->phase == KELP_PARTITION_ABSENT) {
        return KELP_OK;
    }
    if (partition->place != KELP_REPLICA_PRIMARY) {
        kelp_replication_forget_queue(partition->replication, actions);
        if (is_up) {
            kelp__partition_state_held(partition, actions);
        }
        return KELP_OK;
    }
    if (!kelp_replication_linked(partition->replication, process)) {
        return KELP_OK;
    }
    for (uint32_t i = 0; (follower = kelp_replication_follower(partition->replication, i)); i++) {
        if (is_up && follower->process == process) {
            ask(partition, follower, actions);
        }
    }
    kelp__partition_replicate(partition, actions); /* the step may have waited for a joiner */
    return KELP_OK;
}

/* ---- changes of the entry ---- */

/* The partition is no longer primary. An apply under way ends and counts. */
static void demote(struct kelp_partition *partition, struct kelp_actions *actions)
{
    kelp__partition_end_waiting(partition, KELP_ERR_NOT_PRIMARY, actions);
    partition->snapshot.serial = 0;
    partition->has_share = false;
    if (partition->phase == KELP_PARTITION_APPLYING || partition->phase == KELP_PARTITION_FAILED) {
        return;
    }
    if (partition->is_applied) {
        kelp__partition_advance(partition, partition->is_skipped, actions);
    } else {
        kelp_reduction_clear(partition->reduction, actions);
        kelp__partition_begin_entry(partition);
    }
    partition->apply_serial++; /* discards the result of a measurement under way */
    if (partition->evidence) {
        kelp_evidence_demote(partition->evidence, actions);
    }
    kelp__partition_move(partition, KELP_PARTITION_FOLLOWING);
}

/* A new primary shows nothing before its own followers have acknowledged that they hold it. */
static void promote(struct kelp_partition *partition, struct kelp_actions *actions)
{
    kelp_replication_forget_queue(partition->replication, actions);
    /* Roots came at the rate at which entries end, so this is a fair start for the next entry. */
    kelp_cover_begin_late(partition->cover, partition->now_us);
    if (partition->phase == KELP_PARTITION_FOLLOWING) {
        kelp__partition_move(partition, KELP_PARTITION_SYNCING);
    } else if (partition->phase == KELP_PARTITION_FILLING) {
        kelp__partition_diverge(partition, actions);
    }
}

static void begin_epoch(struct kelp_partition *partition, struct kelp_actions *actions)
{
    const struct kelp_follower *follower;

    if (partition->place != KELP_REPLICA_PRIMARY) {
        kelp_replication_forget_queue(partition->replication, actions);
        kelp__partition_state_held(partition, actions);
        return;
    }
    /* An apply that began without followers: the new followers will lack its root. */
    const struct kelp_root *kept = kelp_replication_kept(partition->replication);
    if (partition->phase == KELP_PARTITION_APPLYING &&
        !(kept && kept->held == kelp__partition_held(partition)) &&
        kelp__partition_is_followed(partition)) {
        keep_root(partition, false, actions);
    }
    for (uint32_t i = 0; (follower = kelp_replication_follower(partition->replication, i)); i++) {
        ask(partition, follower, actions);
    }
    kelp__partition_replicate(partition, actions);
}

kelp_status kelp_partition_enter(struct kelp_partition *partition,
                                 const struct kelp_replica_entry *entry,
                                 struct kelp_actions *actions)
{
    const enum kelp_replica_place before = partition->place;

    if (partition->phase == KELP_PARTITION_ABSENT || entry->map_epoch <= partition->map_epoch) {
        return KELP_OK;
    }
    if (entry->place == KELP_REPLICA_NOBODY) {
        return kelp_partition_unload(partition, KELP_ERR_NOT_PRIMARY, actions);
    }
    if (((entry->place != KELP_REPLICA_PRIMARY || entry->backup != 0 || entry->joiner != 0) &&
         kelp__partition_prepare_replicas(partition) != KELP_OK) ||
        kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    partition->map_epoch = entry->map_epoch;
    partition->place = entry->place;
    if (!partition->replication) {
        return KELP_OK;
    }
    const bool leads = entry->place == KELP_REPLICA_PRIMARY;
    kelp_replication_enter(partition->replication, leads ? entry->backup : 0,
                           leads ? entry->joiner : 0);
    if (before == KELP_REPLICA_PRIMARY && !leads) {
        demote(partition, actions);
    } else if (before != KELP_REPLICA_PRIMARY && leads) {
        promote(partition, actions);
    }
    begin_epoch(partition, actions);
    return KELP_OK;
}
