#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/invariants.h"
#include "tests/sim/processes/shard_control.h"
#include "tests/sim/processes/shard_replicas.h"
#include "tests/sim/processes/shard_snapshot.h"

/* ---- gradients ---- */

static struct sim_gradient *gradient_of(struct sim_hosting *hosting, uint64_t handle)
{
    if (handle == 0 || handle > hosting->gradient_count || !hosting->gradients[handle - 1].used) {
        sim_fail(hosting->shard->sim, "gradients are used while they live",
                 "%s names gradient %llu, which does not exist", hosting->shard->process->id,
                 (unsigned long long)handle);
    }
    return &hosting->gradients[handle - 1];
}

const struct sim_gradient *sim_hosting_values(struct sim_hosting *hosting, uint64_t handle)
{
    return gradient_of(hosting, handle);
}

uint64_t sim_hosting_gradient(struct sim_hosting *hosting, const float *values, size_t count,
                              uint32_t lanes)
{
    size_t at = 0;
    while (at < hosting->gradient_count && hosting->gradients[at].used) {
        at++;
    }
    if (at == hosting->gradient_count) {
        hosting->gradients = sim_grow(hosting->gradients, at, &hosting->gradient_capacity,
                                      sizeof(*hosting->gradients));
        hosting->gradient_count++;
    }
    hosting->gradients[at] = (struct sim_gradient){.used = true, .lanes = lanes};
    memcpy(hosting->gradients[at].values, values, count * sizeof(float));
    return at + 1;
}

static void release(struct sim_hosting *hosting, uint64_t handle)
{
    gradient_of(hosting, handle)->used = false;
}

/* Lanes of [first, first + count) that have samples. */
static uint32_t lanes_with_samples(const struct sim *sim, const struct kelp_control_word *word,
                                   uint32_t first, uint32_t count)
{
    uint32_t lanes = sim->job.cluster.lanes;
    uint32_t mask = 0;
    for (uint32_t lane = first; lane < first + count; lane++) {
        if ((lane + 1) * word->sample_count / lanes > lane * word->sample_count / lanes) {
            mask |= 1u << lane;
        }
    }
    return mask;
}

/* ---- work: now, or with a time of its own ---- */

struct work {
    struct sim_hosting *hosting; /* a reference */
    struct sim_hosted *hosted;
    uint64_t life; /* of the hosted partition */
    struct kelp_action action;
    uint64_t handle;                  /* MERGE: the sum */
    struct kelp_decision_share share; /* MEASURE */
};

static void drop_work(void *data)
{
    struct work *work = data;
    sim_hosting_unref(work->hosting);
    free(work);
}

/* Before each event: for what it starts or ends. */
void sim_hosting_tell_time(const struct sim_hosting *hosting, const struct sim_hosted *hosted)
{
    kelp_partition_clock(hosted->core, hosting->shard->sim->now + SIM_SECOND);
}

void sim_must(kelp_status status)
{
    if (status != KELP_OK) {
        abort(); /* the only error of these calls */
    }
}

static struct kelp_content content_of(const float *values, size_t count)
{
    struct kelp_content content = {.low = 1, .high = count};
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        content.low = sim_mix(content.low + bits);
    }
    return content;
}

static void tell_digest(const struct sim_hosted *hosted, const struct kelp_action *action)
{
    const struct kelp_content content =
        content_of(hosted->weights[hosted->current], hosted->range.count);
    kelp_partition_digested(hosted->core, action->apply.token, &content);
}

static void commit_apply(struct sim_hosting *hosting, struct sim_hosted *hosted, uint64_t life,
                         const struct kelp_action *action)
{
    struct kelp_actions *actions = &hosting->actions;
    if (!hosting->retired && hosted->life == life) {
        hosted->current = 1 - hosted->current;
        memcpy(hosted->momentum, hosted->momentum_next, sizeof(hosted->momentum));
        hosted->step++;
        sim_invariants_applied(hosting->shard->process, hosting, hosted);
    }
    if (action->apply.wants_digest) {
        tell_digest(hosted, action);
    }
    sim_must(kelp_partition_applied(hosted->core, action->apply.token, true, actions));
}

static void work_done(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct work *work = data;
    struct sim_hosting *hosting = work->hosting;
    (void)sim;
    (void)process;
    (void)number;
    sim_hosting_tell_time(hosting, work->hosted);
    if (work->action.kind == KELP_ACTION_MERGE) {
        sim_must(kelp_partition_merged(work->hosted->core, work->action.merge.token, work->handle,
                                       &hosting->actions));
    } else if (work->action.kind == KELP_ACTION_MEASURE) {
        sim_must(kelp_partition_measured(work->hosted->core, work->action.apply.token, &work->share,
                                         &hosting->actions));
    } else {
        commit_apply(hosting, work->hosted, work->life, &work->action);
    }
    sim_hosting_run(hosting, work->hosted);
    if (!hosting->retired) {
        sim_shard_heard(hosting->shard); /* the program does such work before it looks */
        sim_shard_end_turn(hosting->shard);
    }
    drop_work(work);
}

static void defer(struct sim_hosting *hosting, struct sim_hosted *hosted,
                  const struct kelp_action *action, uint64_t handle,
                  const struct kelp_decision_share *share)
{
    struct sim *sim = hosting->shard->sim;
    struct work *work = sim_alloc(sizeof(*work));
    *work = (struct work){.hosting = hosting,
                          .hosted = hosted,
                          .life = hosted->life,
                          .action = *action,
                          .handle = handle};
    if (share) {
        work->share = *share;
    }
    hosting->refs++;
    sim_after(
        sim, sim_draw(sim, 3 * SIM_MS),
        &(struct sim_call){
            .process = hosting->shard->process, .run = work_done, .data = work, .drop = drop_work});
}

/* ---- actions ---- */

static void do_merge(struct sim_hosting *hosting, struct sim_hosted *hosted,
                     const struct kelp_action *action)
{
    struct sim *sim = hosting->shard->sim;
    struct sim_gradient left = *gradient_of(hosting, action->merge.left);
    struct sim_gradient right = *gradient_of(hosting, action->merge.right);
    release(hosting, action->merge.left);
    release(hosting, action->merge.right);
    sim_invariants_merged(hosting->shard->process, hosted->index, left.lanes, right.lanes);
    for (size_t i = 0; i < hosted->range.count; i++) {
        left.values[i] += right.values[i];
    }
    uint64_t sum =
        sim_hosting_gradient(hosting, left.values, hosted->range.count, left.lanes | right.lanes);
    if (sim->profile.deferred) {
        defer(hosting, hosted, action, sum, NULL);
        return;
    }
    sim_must(kelp_partition_merged(hosted->core, action->merge.token, sum, &hosting->actions));
}

/* The partition's share in the decision about the step. */
static void do_measure(struct sim_hosting *hosting, struct sim_hosted *hosted,
                       const struct kelp_action *action)
{
    struct sim *sim = hosting->shard->sim;
    const float *gradient =
        hosted->range.count > 0 ? gradient_of(hosting, action->apply.root)->values : NULL;
    struct kelp_decision_share share;
    sim_model_measure(sim, hosted->range, gradient, &share);
    if (sim->profile.deferred) {
        defer(hosting, hosted, action, 0, &share);
        return;
    }
    sim_must(kelp_partition_measured(hosted->core, action->apply.token, &share, &hosting->actions));
}

/* The step is skipped: the current weights are those before it too. */
static void do_repeat(struct sim_hosting *hosting, struct sim_hosted *hosted)
{
    memcpy(hosted->weights[1 - hosted->current], hosted->weights[hosted->current],
           sizeof(hosted->weights[0]));
    hosted->step++;
    hosting->shard->sim->counts[SIM_COUNT_SKIPPED] += hosted->index == 0 ? 1 : 0;
    sim_invariants_applied(hosting->shard->process, hosting, hosted);
}

static void do_apply(struct sim_hosting *hosting, struct sim_hosted *hosted,
                     const struct kelp_action *action)
{
    struct sim *sim = hosting->shard->sim;
    const struct kelp_control_word *word = &action->apply.word;
    float *next = hosted->weights[1 - hosted->current];
    uint32_t lanes = 0;

    for (size_t i = 0; i < SIM_SLICE_MAX; i++) {
        next[i] = NAN; /* the buffer of w_{v-1}: whoever still reads it shall see */
    }
    if (hosted->range.count > 0) {
        const struct sim_gradient *root = gradient_of(hosting, action->apply.root);
        lanes = root->lanes;
        memcpy(hosted->momentum_next, hosted->momentum, sizeof(hosted->momentum));
        const struct kelp_step_decision *decision = &action->apply.decision;
        sim_model_apply(word, decision->count > 0 ? decision->values[0] : 1.0, root->values,
                        hosted->range.count, hosted->weights[hosted->current], next,
                        hosted->momentum_next);
        sim_invariants_root(hosting->shard->process, hosted->index, word, lanes,
                            lanes_with_samples(sim, word, 0, sim->job.cluster.lanes));
    }
    if (sim->profile.deferred) {
        defer(hosting, hosted, action, 0, NULL);
        return;
    }
    commit_apply(hosting, hosted, hosted->life, action);
}

static void do_answer(struct sim_hosting *hosting, struct sim_hosted *hosted,
                      const struct kelp_answer *core)
{
    struct sim_answer answer = {
        .partition = hosted->index, .map_epoch = hosted->map_epoch, .core = *core};
    if (core->value_count > SIM_VALUES_MAX) {
        abort(); /* the plans are small */
    }
    answer.values.count = core->value_count;
    if (core->value_count > 0) {
        memcpy(answer.values.values, core->values, core->value_count * sizeof(core->values[0]));
    }
    if (core->send != KELP_WEIGHTS_NONE) {
        unsigned at = core->send == KELP_WEIGHTS_CURRENT ? hosted->current : 1 - hosted->current;
        answer.has_weights = hosted->range.count > 0;
        memcpy(answer.weights, hosted->weights[at], sizeof(answer.weights));
    }
    sim_shard_answer(hosting->shard, &answer);
}

static void do_snapshot(struct sim_hosting *hosting, struct sim_hosted *hosted,
                        const struct kelp_action *action)
{
    struct sim_part *part = &hosted->capture;
    *part = (struct sim_part){.there = true,
                              .has_control = action->snapshot.has_control,
                              .control = action->snapshot.control};
    memcpy(part->weights, hosted->weights[hosted->current], hosted->range.count * sizeof(float));
    memcpy(part->momentum, hosted->momentum, hosted->range.count * sizeof(float));
    sim_part_digest(part);
    sim_invariants_captured(hosting->shard->process, hosted, action->snapshot.step);
    bool wanted = sim_snapshot_taken(hosting->shard, action->snapshot.serial, hosted->index,
                                     part->has_control ? &action->snapshot.word : NULL);
    hosted->capture_ticket = wanted ? action->snapshot.serial : 0;
}

static void do_compare(struct sim_hosting *hosting, struct sim_hosted *hosted,
                       const struct kelp_action *action)
{
    struct kelp_content content =
        content_of(gradient_of(hosting, action->compare.handle)->values, hosted->range.count);
    sim_must(
        kelp_partition_compared(hosted->core, action->compare.token, &content, &hosting->actions));
}

static bool names(const struct kelp_authors *authors, uint32_t author)
{
    bool found = false;
    for (uint32_t i = 0; i < authors->count; i++) {
        found = found || authors->of[i] == author;
    }
    return found;
}

/* Somebody has lied, and is one of those. */
static void do_conflict(struct sim_hosting *hosting, const struct kelp_conflict *conflict)
{
    struct sim *sim = hosting->shard->sim;
    const uint32_t liar = sim_find(sim, SIM_WORKER, 0)->place + 1;
    const bool is_open = conflict->kind == KELP_CONFLICT_OPEN_WORD;
    if ((sim->lie.told || sim->lie.mended) &&
        (names(&conflict->first, liar) || names(&conflict->second, liar))) {
        sim->counts[is_open ? SIM_COUNT_WORD_MENDED : SIM_COUNT_LIAR_FOUND]++;
        sim->lie.told = !is_open; /* nothing was applied: all is well again */
        sim->lie.mended = is_open;
        sim->lie.found = !is_open;
        if (!is_open && sim->job.failure.on_conflict == KELP_CONFLICT_FIRST) {
            return;
        }
        sim->lie.reported = sim->lie.reported || !is_open;
        (void)sim_control_apply(hosting->shard,
                                &(struct kelp_shard_event){
                                    .kind = KELP_SHARD_ON_FAILURE,
                                    .failure = {is_open ? KELP_ERR_CONTROL_WORD : KELP_ERR_MISMATCH,
                                                "two workers differ"}});
        return;
    }
    sim_fail(hosting->shard->sim, "honest workers agree",
             "%s finds conflict %d of authors %u and %u in version %llu, lanes %u+%u",
             hosting->shard->process->id, (int)conflict->kind, conflict->first.of[0],
             conflict->second.of[0], (unsigned long long)conflict->version, conflict->lane_first,
             conflict->lane_count);
}

/* The list may grow while it is worked off. */
void sim_hosting_run(struct sim_hosting *hosting, struct sim_hosted *hosted)
{
    struct kelp_partition_view view;
    for (size_t i = 0; i < hosting->actions.count; i++) {
        struct kelp_action action = hosting->actions.items[i];
        switch (action.kind) {
        case KELP_ACTION_MERGE:
            do_merge(hosting, hosted, &action);
            break;
        case KELP_ACTION_MEASURE:
            do_measure(hosting, hosted, &action);
            break;
        case KELP_ACTION_REPEAT:
            do_repeat(hosting, hosted);
            break;
        case KELP_ACTION_APPLY:
            do_apply(hosting, hosted, &action);
            break;
        case KELP_ACTION_ANSWER:
            do_answer(hosting, hosted, &action.answer);
            break;
        case KELP_ACTION_REFUSE:
            sim_shard_refuse(hosting->shard, hosted->index, &action.refuse);
            break;
        case KELP_ACTION_RELEASE:
            release(hosting, action.release);
            break;
        case KELP_ACTION_RECORD:
            kelp_partition_view(hosted->core, &view);
            sim_invariants_record(hosting->shard->process, &action.record);
            (void)sim_control_apply(
                hosting->shard,
                &(struct kelp_shard_event){
                    .kind = KELP_SHARD_ON_RECORD,
                    .record = {&action.record, &view.word, kelp_partition_best(hosted->core)}});
            break;
        case KELP_ACTION_GIVE_UP:
            sim_fail(hosting->shard->process->sim, "decisions", "%llu of %llu steps are skipped",
                     (unsigned long long)action.give_up.skipped,
                     (unsigned long long)action.give_up.steps);
        case KELP_ACTION_OFFER:
            sim_shard_offer(hosting->shard, hosted->index, &action.offer);
            break;
        case KELP_ACTION_COMPARE:
            do_compare(hosting, hosted, &action);
            break;
        case KELP_ACTION_CONFLICT:
            do_conflict(hosting, &action.conflict);
            break;
        case KELP_ACTION_SNAPSHOT:
            do_snapshot(hosting, hosted, &action);
            break;
        case KELP_ACTION_PAST:
            sim_snapshot_past(hosting->shard, action.past.serial, action.past.step);
            break;
        case KELP_ACTION_FORWARD:
        case KELP_ACTION_ASK:
        case KELP_ACTION_ACKNOWLEDGE:
        case KELP_ACTION_WANT_COPY:
        case KELP_ACTION_COPY:
        case KELP_ACTION_IN_SYNC:
        case KELP_ACTION_DIVERGES:
        case KELP_ACTION_DIFFERS:
            sim_replicas_act(hosting, hosted, &action);
            break;
        }
    }
    hosting->actions.count = 0;
    if (!hosting->retired) {
        sim_invariants_seen(hosting->shard->process, hosting, hosted);
    }
}

/* ---- the data path ---- */

/* Is the push refused? That of another word shows a lie all the same. */
static bool is_refused(const struct kelp_actions *actions)
{
    for (size_t i = 0; i < actions->count; i++) {
        if (actions->items[i].kind == KELP_ACTION_REFUSE) {
            return actions->items[i].refuse.status != KELP_ERR_CONTROL_WORD;
        }
    }
    return false;
}

void sim_hosting_push(struct sim_hosting *hosting, uint64_t stream,
                      const struct sim_request *request, const struct sim_push *push)
{
    struct sim *sim = hosting->shard->sim;
    struct sim_hosted *hosted = hosting->by_index[push->partition];
    const struct sim_node *node = push->node;
    struct kelp_push core = {
        .requester = stream,
        .author = request->author,
        .generation = request->generation,
        .map_epoch = push->map_epoch,
        .word = &request->word,
        .lane_first = node->lane_first,
        .lane_count = node->lane_count,
        .sums = push->partition == 0 ? node->sums : NULL,
        .sum_count =
            push->partition == 0 ? kelp_metric_sum_trim(node->sums, KELP_METRIC_SUM_SCALARS) : 0,
        .digest = node->digest};
    if (node->present && hosted->range.count > 0) {
        core.handle = sim_hosting_gradient(
            hosting, &node->values[hosted->range.first], hosted->range.count,
            lanes_with_samples(sim, &request->word, node->lane_first, node->lane_count));
        core.content = content_of(&node->values[hosted->range.first], hosted->range.count);
    }
    sim_hosting_tell_time(hosting, hosted);
    sim_must(kelp_partition_push(hosted->core, &core, &hosting->actions));
    sim_lie_pushed(hosting->shard->process, request, push, is_refused(&hosting->actions));
    if (push->partition == 0 && hosting->actions.taken_lanes > 0) {
        hosting->shard->worked |= 1u << sim_stream_peer(sim, stream, SIM_SERVER)->index;
    }
    sim_hosting_run(hosting, hosted);
}

void sim_hosting_share(struct sim_hosting *hosting, uint64_t stream,
                       const struct sim_request *request, const struct sim_share_push *share)
{
    struct sim_hosted *hosted = hosting->by_index[0];
    struct kelp_share_push core = {.requester = stream,
                                   .author = request->author,
                                   .generation = request->generation,
                                   .map_epoch = share->map_epoch,
                                   .word = &request->word,
                                   .partition = share->partition,
                                   .share = share->share};
    sim_hosting_tell_time(hosting, hosted);
    sim_must(kelp_partition_share(hosted->core, &core, &hosting->actions));
    sim_hosting_run(hosting, hosted);
}

void sim_hosting_pull(struct sim_hosting *hosting, uint64_t stream,
                      const struct sim_request *request, const struct sim_pull *pull)
{
    struct sim_hosted *hosted = hosting->by_index[pull->pull.partition];
    struct kelp_pull core = {
        .requester = stream,
        .author = request->author,
        .generation = request->generation,
        .map_epoch = pull->map_epoch,
        .word = request->has_word ? &request->word : NULL,
        .decision = {.count = request->decision.count, .values = request->decision.values},
        .mode = (enum kelp_pull_mode)pull->pull.mode,
        .step = pull->pull.step,
        .version = pull->pull.version,
        .holds = pull->pull.holds,
        .held_step = pull->pull.held_step,
        .rank = request->rank};
    sim_hosting_tell_time(hosting, hosted);
    sim_must(kelp_partition_pull(hosted->core, &core, &hosting->actions));
    sim_hosting_run(hosting, hosted);
}

void sim_hosting_snapshot(struct sim_hosting *hosting, const struct kelp_snapshot_order *order,
                          const uint32_t *partitions, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct sim_hosted *hosted = hosting->by_index[partitions[i]];
        if (!hosted) {
            continue;
        }
        sim_hosting_tell_time(hosting, hosted);
        sim_must(kelp_partition_snapshot(hosted->core, order, &hosting->actions));
        sim_hosting_run(hosting, hosted);
    }
}

void sim_hosting_drop(struct sim_hosting *hosting, uint64_t stream)
{
    for (uint32_t i = 0; i < hosting->partition_count; i++) {
        if (hosting->by_index[i]) {
            sim_hosting_tell_time(hosting, &hosting->hosted[i]);
            kelp_partition_drop(hosting->hosted[i].core, stream);
        }
    }
}

void sim_hosting_tick(struct sim_hosting *hosting, uint64_t *ret_next_us)
{
    const struct sim_shard *shard = hosting->shard;
    *ret_next_us = UINT64_MAX;
    for (uint32_t i = 0; i < hosting->partition_count; i++) {
        struct sim_hosted *hosted = hosting->by_index[i];
        if (!hosted) {
            continue;
        }
        uint64_t next_us;
        sim_hosting_tell_time(hosting, hosted);
        sim_must(kelp_partition_tick(hosted->core, shard->spares.items, shard->spares.count,
                                     &hosting->actions, &next_us));
        sim_hosting_run(hosting, hosted);
        *ret_next_us = next_us < *ret_next_us ? next_us : *ret_next_us;
    }
    *ret_next_us -= *ret_next_us == UINT64_MAX ? 0 : SIM_SECOND; /* sim_hosting_tell_time() */
}
