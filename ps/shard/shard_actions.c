/* Carries out the partitions' actions on their tensors. */
#include <inttypes.h>
#include <stdio.h>

#include "common/log/log.h"
#include "ps/shard/shard_internal.h"

void kelp__shard_report_failure(const struct scene *scene, kelp_status status, const char *text)
{
    scene->shard->events->failed(scene->hosted->index, status, text, scene->shard->user);
}

/* False if the gradient must be in memory: Lamb reads it more than once, and a rounded sum is
 * written to memory anyway. */
static bool reads_terms(const struct scene *scene)
{
    const struct kelp_job *job = scene->hosting->job;

    return job->train.optimizer != KELP_OPTIMIZER_LAMB &&
           job->transport.precision == KELP_PRECISION_FLOAT32;
}

static kelp_status do_merge(const struct scene *scene, const struct kelp_action *action)
{
    const uint64_t begin_ns = kelp_trace_begin(scene->shard->trace);
    struct kelp_gradients *gradients = scene->hosting->gradients;
    uint64_t sum = action->merge.is_root && reads_terms(scene)
                       ? kelp_gradients_join(gradients, action->merge.left, action->merge.right)
                       : kelp_gradients_merge(gradients, action->merge.left, action->merge.right);

    kelp__shard_trace_did(scene, begin_ns, "reduce");
    if (sum == KELP_HANDLE_NONE) {
        return KELP_ERR_NO_MEMORY;
    }
    return kelp_partition_merged(scene->hosted->core, action->merge.token, sum,
                                 &scene->turn->actions);
}

void kelp__shard_give_up_snapshot(const struct scene *scene, uint64_t ticket)
{
    scene->shard->events->snapshot_failed(ticket, KELP_ERR_NO_MEMORY,
                                          "no memory to keep a partition's state for a snapshot",
                                          scene->shard->user);
}

void kelp__shard_keep_for_snapshot(const struct scene *scene)
{
    struct kelp_capture *capture = &scene->hosted->capture;

    if (kelp_capture_detach(capture) != KELP_OK) {
        uint64_t ticket = capture->ticket;
        kelp_capture_release(capture);
        kelp__shard_give_up_snapshot(scene, ticket);
    }
}

static void do_snapshot(const struct scene *scene, const struct kelp_action *action)
{
    struct hosted *hosted = scene->hosted;
    uint64_t ticket = action->snapshot.serial;
    bool has_control = action->snapshot.has_control;

    kelp_capture_release(&hosted->capture); /* of a capture that was discarded */
    if (kelp_capture_take(&hosted->capture, scene->shard->pool, ticket, hosted->extent,
                          has_control ? &action->snapshot.control : NULL) != KELP_OK) {
        kelp__shard_give_up_snapshot(scene, ticket);
    } else if (!scene->shard->events->snapshot_taken(ticket, hosted->index,
                                                     has_control ? &action->snapshot.word : NULL,
                                                     scene->shard->user)) {
        kelp_capture_release(&hosted->capture);
    }
}

static void report_not_finite(const struct scene *scene, uint64_t step)
{
    char text[160];

    (void)snprintf(text, sizeof(text),
                   "the gradient of step %" PRIu64 " is not finite in partition %u; nothing of it "
                   "was applied there",
                   step, scene->hosted->index);
    kelp__shard_report_failure(scene, KELP_ERR_INVALID, text);
}

static void do_give_up(const struct scene *scene, const struct kelp_action *action)
{
    char text[256];

    (void)snprintf(text, sizeof(text),
                   "%" PRIu64 " of %" PRIu64 " training steps were skipped, since their gradient "
                   "was not finite; look for extreme values in the data, or lower train.lr, or set "
                   "train.clip_norm",
                   action->give_up.skipped, action->give_up.steps);
    kelp__shard_report_failure(scene, KELP_ERR_INVALID, text);
}

/* One pass over a partition's arrays, for MEASURE or APPLY. */
struct pass {
    struct kelp_optimizer_step step;
    struct kelp_optimizer_buffers buffers;
    uint64_t digest[2]; /* of the root, if it has terms and the pass also does a COMPARE */
};

/* Open what the pass reads. keeps: the root is read again later. compare: as in tell_content().
 * False: out of memory. */
static bool open_pass(const struct scene *scene, const struct kelp_action *action,
                      const struct kelp_action *compare, bool keeps, struct pass *pass)
{
    struct kelp_hosting *hosting = scene->hosting;
    const struct hosted *hosted = scene->hosted;
    const struct kelp_control_word *word = &action->apply.word;

    pass->buffers = (struct kelp_optimizer_buffers){.weights = kelp_extent_current(hosted->extent)};
    for (uint32_t i = 0; i < kelp_extent_slot_count(hosted->extent); i++) {
        pass->buffers.slots[i] = kelp_extent_slot(hosted->extent, i);
    }
    kelp_optimizer_prepare(&pass->step, hosting->job, word->lr, word->step + 1);
    if (!reads_terms(scene)) {
        pass->buffers.gradient = kelp_gradients_values(hosting->gradients, action->apply.root);
        return pass->buffers.gradient != NULL;
    }
    if (!kelp_gradients_read(hosting->gradients, action->apply.root, keeps, &pass->buffers)) {
        return false;
    }
    pass->buffers.terms.digest = compare ? pass->digest : NULL;
    return true;
}

static kelp_status do_compare(const struct scene *scene, const struct kelp_action *action)
{
    struct kelp_content content;

    if (!kelp_gradients_content(scene->hosting->gradients, action->compare.handle, &content)) {
        return KELP_ERR_NO_MEMORY;
    }
    return kelp_partition_compared(scene->hosted->core, action->compare.token, &content,
                                   &scene->turn->actions);
}

/* Answer the COMPARE that was left to the pass, before the result of the pass, as if it had come
 * first. compare NULL: there was none. */
static kelp_status tell_content(const struct scene *scene, const struct kelp_action *compare,
                                const struct pass *pass)
{
    if (!compare) {
        return KELP_OK;
    }
    if (!pass->buffers.terms.left) { /* the root was in memory already */
        return do_compare(scene, compare);
    }
    return kelp_partition_compared(
        scene->hosted->core, compare->compare.token,
        &(struct kelp_content){.low = pass->digest[0], .high = pass->digest[1]},
        &scene->turn->actions);
}

/* Measure the partition's share, which is needed before the step is applied or skipped. */
static kelp_status do_measure(const struct scene *scene, const struct kelp_action *action,
                              const struct kelp_action *compare)
{
    const struct hosted *hosted = scene->hosted;
    const bool skips = scene->hosting->job->failure.on_nan == KELP_NAN_SKIP;
    const uint64_t step_number = action->apply.word.step, token = action->apply.token;
    struct kelp_decision_share share = {.count = 1, .values = {[KELP_DECISION_SHARE_FINITE] = 1.0}};

    if (hosted->range.count > 0) {
        struct pass pass;
        if (!open_pass(scene, action, compare, true, &pass)) {
            return KELP_ERR_NO_MEMORY;
        }
        const uint64_t begin_ns = kelp_trace_begin(scene->shard->trace);
        kelp_update_measure(&hosted->update, &pass.step, &pass.buffers, &share);
        kelp__shard_trace_did(scene, begin_ns, "measure");
        kelp_gradients_was_read(scene->hosting->gradients, action->apply.root);
        if (tell_content(scene, compare, &pass) != KELP_OK) {
            return KELP_ERR_NO_MEMORY;
        }
    }
    const bool finite = share.values[KELP_DECISION_SHARE_FINITE] != 0.0;
    if (!finite && skips) {
        kelp_log_warn("gradient is not finite: its step will be skipped partition=%u step=%" PRIu64,
                      hosted->index, step_number);
    } else if (!finite) {
        report_not_finite(scene, step_number);
    }
    return kelp_partition_measured(hosted->core, token, &share, &scene->turn->actions);
}

static void tell_digest(const struct hosted *hosted, uint64_t token)
{
    uint64_t words[2];

    kelp_vector_digest(kelp_extent_current(hosted->extent), kelp_extent_bytes(hosted->extent),
                       words);
    kelp_partition_digested(hosted->core, token,
                            &(struct kelp_content){.low = words[0], .high = words[1]});
}

static kelp_status do_apply(const struct scene *scene, const struct kelp_action *action,
                            const struct kelp_action *compare)
{
    struct hosted *hosted = scene->hosted;
    const uint64_t step_number = action->apply.word.step, token = action->apply.token;
    const bool wants_digest = action->apply.wants_digest;
    /* A follower keeps the root until the next one comes, but not the primary's message that
     * holds it. */
    const bool keeps = hosted->entry.place != KELP_REPLICA_PRIMARY;
    bool finite = true;

    if (hosted->range.count > 0) {
        struct pass pass;
        bool ready = open_pass(scene, action, compare, keeps, &pass);
        pass.buffers.weights_next = kelp_extent_next(hosted->extent);
        if (!ready || !pass.buffers.weights_next) {
            return KELP_ERR_NO_MEMORY;
        }
        kelp__shard_keep_for_snapshot(scene);
        const uint64_t begin_ns = kelp_trace_begin(scene->shard->trace);
        finite =
            kelp_update_apply(&hosted->update, &pass.step, &action->apply.decision, &pass.buffers);
        kelp__shard_trace_did(scene, begin_ns, "update");
        if (keeps) {
            kelp_gradients_was_read(scene->hosting->gradients, action->apply.root);
        }
        if (finite) {
            kelp_extent_commit(hosted->extent);
        }
        if (tell_content(scene, compare, &pass) != KELP_OK) {
            return KELP_ERR_NO_MEMORY;
        }
        if (finite && wants_digest) {
            tell_digest(hosted, token);
        }
    }
    if (!finite) {
        report_not_finite(scene, step_number);
    }
    return kelp_partition_applied(hosted->core, token, finite, &scene->turn->actions);
}

static void do_answer(const struct scene *scene, const struct kelp_action *action)
{
    struct kelp_shard_answer answer = {.partition = scene->hosted->index,
                                       .map_epoch = scene->hosted->entry.map_epoch,
                                       .core = action->answer};

    if (answer.core.send != KELP_WEIGHTS_NONE && scene->hosted->range.count > 0) {
        const float *values;
        answer.lent =
            kelp_extent_lend(scene->hosted->extent, answer.core.send, &values, &answer.loan);
        answer.weights = values;
        answer.bytes = kelp_extent_bytes(scene->hosted->extent);
    }
    scene->shard->events->answer(&answer, scene->turn->user, scene->shard->user);
}

static void do_record(const struct scene *scene, const struct kelp_action *action)
{
    struct kelp_partition_view view;

    kelp_partition_view(scene->hosted->core, &view);
    scene->shard->events->record(&action->record, &view.word,
                                 kelp_partition_best(scene->hosted->core), scene->shard->user);
}

/* Does the next action read the root of the COMPARE at `index` anyway? */
static bool is_left_to_next(const struct kelp_actions *actions, size_t index)
{
    const struct kelp_action *compare = &actions->items[index], *next = compare + 1;

    return index + 1 < actions->count &&
           (next->kind == KELP_ACTION_APPLY || next->kind == KELP_ACTION_MEASURE) &&
           next->apply.root == compare->compare.handle;
}

static void tell_step(const struct scene *scene)
{
    struct hosted *hosted = scene->hosted;

    if (hosted->step.open && hosted->entry.place == KELP_REPLICA_PRIMARY) {
        scene->shard->events->stepped(hosted->index, hosted->step.since_us, scene->shard->user);
        kelp__shard_trace_made(scene);
    }
    hosted->step.open = false;
}

void kelp__shard_run_actions(const struct scene *scene)
{
    struct kelp_actions *actions = &scene->turn->actions;
    size_t pass_at = SIZE_MAX; /* index of a pass that also does the COMPARE before it */

    for (size_t i = 0; i < actions->count; i++) {
        /* An event may append to the list and move it; the action is not read after that. */
        const struct kelp_action *action = &actions->items[i];
        kelp_status status = KELP_OK;
        switch (action->kind) {
        case KELP_ACTION_MERGE:
            status = do_merge(scene, action);
            break;
        case KELP_ACTION_MEASURE:
            status = do_measure(scene, action, i == pass_at ? action - 1 : NULL);
            break;
        case KELP_ACTION_REPEAT:
            kelp_extent_repeat(scene->hosted->extent);
            break;
        case KELP_ACTION_APPLY:
            status = do_apply(scene, action, i == pass_at ? action - 1 : NULL);
            break;
        case KELP_ACTION_ANSWER:
            do_answer(scene, action);
            break;
        case KELP_ACTION_REFUSE:
            scene->shard->events->refused(scene->hosted->index, &action->refuse, scene->turn->user,
                                          scene->shard->user);
            break;
        case KELP_ACTION_RELEASE:
            kelp_gradients_release(scene->hosting->gradients, action->release);
            break;
        case KELP_ACTION_RECORD:
            do_record(scene, action);
            break;
        case KELP_ACTION_GIVE_UP:
            do_give_up(scene, action);
            break;
        case KELP_ACTION_SNAPSHOT:
            do_snapshot(scene, action);
            break;
        case KELP_ACTION_PAST:
            scene->shard->events->snapshot_past(action->past.serial, action->past.step,
                                                scene->shard->user);
            break;
        case KELP_ACTION_OFFER:
            scene->shard->events->offer(scene->hosted->index, scene->hosted->entry.map_epoch,
                                        &action->offer, scene->turn->user, scene->shard->user);
            break;
        case KELP_ACTION_COMPARE:
            if (is_left_to_next(actions, i)) {
                pass_at = i + 1;
            } else {
                status = do_compare(scene, action);
            }
            break;
        case KELP_ACTION_CONFLICT:
            scene->shard->events->conflict(scene->hosted->index, &action->conflict,
                                           scene->shard->user);
            break;
        case KELP_ACTION_FORWARD:
        case KELP_ACTION_ASK:
        case KELP_ACTION_ACKNOWLEDGE:
        case KELP_ACTION_WANT_COPY:
        case KELP_ACTION_COPY:
        case KELP_ACTION_IN_SYNC:
        case KELP_ACTION_DIVERGES:
        case KELP_ACTION_DIFFERS:
            status = kelp__shard_replicate(scene, action);
            break;
        }
        if (status != KELP_OK) {
            kelp__shard_report_failure(scene, status, "no memory to add up or apply gradients");
        }
    }
    actions->count = 0;
    if (actions->made_step) {
        tell_step(scene);
    }
    actions->made_step = false;
}
