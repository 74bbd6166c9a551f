#include "cli/replay/replay.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/update.h"
#include "ps/core/partition/decision.h"
#include "worker/compute/gradients.h"
#include "worker/compute/lanes.h"

struct kelp_replay {
    const struct kelp_job *job;
    struct kelp_lanes *lanes;
    const struct kelp_plan *plan; /* of lanes */
    struct kelp_update *updates;  /* owned; of each partition */
    struct kelp_decision *decision;
    double *decided; /* owned; its values */
    struct kelp_gradient_pool *pool;
    struct kelp_model_state state;
    float *weights_next; /* owned; changes places with state.weights at each training step */
};

static kelp_status prepare_updates(struct kelp_replay *replay, struct kelp_error *reterr)
{
    const struct kelp_plan *plan = replay->plan;
    uint32_t values = kelp_step_decision_count(replay->job, plan);
    kelp_status status = kelp_decision_create(replay->job, plan, &replay->decision, reterr);

    if (status != KELP_OK) {
        return status;
    }
    replay->updates = calloc(plan->partition_count, sizeof(*replay->updates));
    replay->decided = calloc((size_t)values + 1, sizeof(*replay->decided));
    if (!replay->updates || !replay->decided) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for updates of %" PRIu32 " slices",
                         plan->partition_count);
    }
    for (uint32_t p = 0; status == KELP_OK && p < plan->partition_count; p++) {
        status = kelp_update_init(&replay->updates[p], replay->job, plan,
                                  kelp_plan_partition(plan, p), reterr);
    }
    return status;
}

kelp_status kelp_replay_create(const struct kelp_job *job, struct kelp_replay **ret_replay,
                               struct kelp_error *reterr)
{
    struct kelp_replay *replay = calloc(1, sizeof(*replay));

    if (!replay) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    replay->job = job;
    kelp_status status = kelp_lanes_create(job, &replay->lanes, reterr);
    if (status != KELP_OK) {
        goto destroy;
    }
    replay->plan = kelp_lanes_plan(replay->lanes);
    replay->pool = kelp_gradient_pool_create(replay->plan->flat_count, job->transport.precision);
    replay->weights_next = kelp_model_state_vector(replay->plan);
    if (!replay->pool || !replay->weights_next) {
        status =
            kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a model of %" PRIu64 " elements",
                      replay->plan->flat_count);
        goto destroy;
    }
    status = prepare_updates(replay, reterr);
    if (status != KELP_OK) {
        goto destroy;
    }
    status = kelp_model_state_init(&replay->state, job, replay->plan, reterr);
    if (status != KELP_OK) {
        goto destroy;
    }
    status = kelp_model_state_begin(&replay->state, reterr);
    if (status == KELP_OK) {
        *ret_replay = replay;
        return KELP_OK;
    }
destroy:
    kelp_replay_destroy(replay);
    return status;
}

void kelp_replay_destroy(struct kelp_replay *replay)
{
    if (!replay) {
        return;
    }
    kelp_model_state_fini(&replay->state);
    for (uint32_t p = 0; replay->updates && p < replay->plan->partition_count; p++) {
        kelp_update_fini(&replay->updates[p]);
    }
    free(replay->updates);
    free(replay->decided);
    kelp_decision_destroy(replay->decision);
    free(replay->weights_next);
    kelp_gradient_pool_destroy(replay->pool);
    kelp_lanes_destroy(replay->lanes);
    free(replay);
}

const struct kelp_plan *kelp_replay_plan(const struct kelp_replay *replay)
{
    return replay->plan;
}

struct kelp_model_state *kelp_replay_state(struct kelp_replay *replay)
{
    return &replay->state;
}

void kelp_replay_digest(const struct kelp_replay *replay, char ret_hex[KELP_DIGEST_HEX_BYTES])
{
    kelp_plan_digest(replay->plan, replay->state.weights, ret_hex);
}

/* ---- one entry ----------------------------------------------------------------------------- */

static struct kelp_gradient *gradient_buffer(void *user)
{
    return kelp_gradient_get(user);
}

/* The first tensor with an element that is not finite; NULL: none. */
static const char *tensor_not_finite(const struct kelp_plan *plan, const float *gradient)
{
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const struct kelp_tensor *tensor = &plan->tensors[i];
        if (!kelp_vector_finite(gradient + tensor->offset, tensor->elem_count)) {
            return tensor->name;
        }
    }
    return NULL;
}

/* Say where it comes from: lane by lane, since a sum keeps no trace of that. */
static kelp_status not_finite(struct kelp_replay *replay, const struct kelp_control_word *word,
                              const struct kelp_gradient *sum, struct kelp_error *reterr)
{
    const struct kelp_lanes_buffers buffers = {.get = gradient_buffer, .user = replay->pool};
    const char *name = tensor_not_finite(replay->plan, sum->values);

    for (uint32_t lane = 0; lane < replay->job->cluster.lanes; lane++) {
        struct kelp_gradient *gradient = NULL;
        kelp_status status = kelp_lanes_node(replay->lanes, lane, 1, &buffers, &gradient, reterr);
        if (status != KELP_OK) {
            return status;
        }
        const char *tensor =
            gradient->present ? tensor_not_finite(replay->plan, gradient->values) : NULL;
        kelp_gradient_unref(gradient);
        if (tensor) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "the gradient of step %" PRIu64
                             " is not finite: first in lane %u, tensor %s",
                             word->step, lane, tensor);
        }
    }
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "the gradient of step %" PRIu64
                     " is not finite: the sum over the lanes is too large in tensor %s",
                     word->step, name ? name : "?");
}

static struct kelp_optimizer_buffers slice_buffers(const struct kelp_replay *replay,
                                                   const struct kelp_gradient *gradient,
                                                   uint32_t partition)
{
    const struct kelp_model_state *state = &replay->state;
    const uint64_t first = kelp_plan_partition(replay->plan, partition).first;
    struct kelp_optimizer_buffers buffers = {.weights = state->weights + first,
                                             .gradient = gradient->values + first,
                                             .weights_next = replay->weights_next + first};

    for (uint32_t i = 0; i < state->slot_count; i++) {
        buffers.slots[i] = state->slots[i] + first;
    }
    return buffers;
}

/* What the shares of all slices decide; the gradient is finite. */
static void decide(struct kelp_replay *replay, const struct kelp_optimizer_step *step,
                   const struct kelp_gradient *gradient)
{
    bool made = false, skip = false;

    kelp_decision_begin(replay->decision);
    for (uint32_t p = 0; p < replay->plan->partition_count; p++) {
        struct kelp_optimizer_buffers buffers = slice_buffers(replay, gradient, p);
        struct kelp_decision_share share;
        kelp_update_measure(&replay->updates[p], step, &buffers, &share);
        kelp_status status = kelp_decision_add(replay->decision, p, &share);
        assert(status == KELP_OK); /* it is our own */
        (void)status;
    }
    made = kelp_decision_made(replay->decision, &skip, replay->decided);
    assert(made && !skip);
    (void)made;
}

/* As the shards do with each of their slices. */
static void apply(struct kelp_replay *replay, const struct kelp_control_word *word,
                  const struct kelp_gradient *gradient)
{
    struct kelp_model_state *state = &replay->state;
    struct kelp_step_decision decision = {.values = replay->decided};
    struct kelp_optimizer_step step;
    bool applied = true;

    kelp_optimizer_prepare(&step, replay->job, word->lr, word->step + 1);
    decision.count = kelp_step_decision_count(replay->job, replay->plan);
    if (kelp_control_decides(replay->job)) {
        decide(replay, &step, gradient);
    }
    for (uint32_t p = 0; p < replay->plan->partition_count; p++) {
        struct kelp_optimizer_buffers buffers = slice_buffers(replay, gradient, p);
        applied = kelp_update_apply(&replay->updates[p], &step, &decision, &buffers) && applied;
    }
    assert(applied);
    float *before = state->weights;
    state->weights = replay->weights_next;
    replay->weights_next = before;
}

/* Complete the entry: c_{v+1}, after a training step w_{v+1}. */
static kelp_status complete(struct kelp_replay *replay, const struct kelp_control_word *word,
                            const struct kelp_gradient *gradient, const char *digest,
                            struct kelp_record *ret_record, struct kelp_error *reterr)
{
    struct kelp_control_state *control = &replay->state.control;
    bool finite = true;

    if (word->kind == KELP_STEP_TRAIN) {
        assert(gradient->present); /* a training step has samples */
        finite = kelp_vector_finite(gradient->values, replay->plan->flat_count);
    }
    if (!finite && replay->job->failure.on_nan != KELP_NAN_SKIP) {
        return not_finite(replay, word, gradient, reterr);
    }
    if (!finite) {
        kelp_control_skip(control, replay->job, replay->plan, gradient->sums, digest, ret_record);
        return KELP_OK;
    }
    if (word->kind == KELP_STEP_TRAIN) {
        apply(replay, word, gradient);
    }
    kelp_control_apply(control, replay->job, replay->plan, gradient->sums, digest, ret_record);
    return KELP_OK;
}

kelp_status kelp_replay_entry(struct kelp_replay *replay, struct kelp_record *ret_record,
                              struct kelp_error *reterr)
{
    struct kelp_model_state *state = &replay->state;
    struct kelp_gradient *gradient = NULL;
    struct kelp_control_word word;
    char digest[KELP_DIGEST_HEX_BYTES] = "";

    const struct kelp_lanes_buffers buffers = {.get = gradient_buffer, .user = replay->pool};
    assert(state->control.kind != KELP_STEP_DONE);
    kelp_control_word(&state->control, replay->job, replay->plan, &word);
    if (word.digest_due) {
        kelp_replay_digest(replay, digest);
    }
    kelp_status status = kelp_lanes_begin(replay->lanes, &word, state->weights, reterr);
    if (status == KELP_OK) {
        status = kelp_lanes_node(replay->lanes, 0, replay->job->cluster.lanes, &buffers, &gradient,
                                 reterr);
    }
    if (status == KELP_OK) {
        status = complete(replay, &word, gradient, digest, ret_record, reterr);
    }
    kelp_gradient_unref(gradient);
    return status;
}

kelp_status kelp_replay_to_step(struct kelp_replay *replay, uint64_t step,
                                struct kelp_error *reterr)
{
    const struct kelp_control_state *control = &replay->state.control;
    struct kelp_record record;
    kelp_status status = KELP_OK;

    while (status == KELP_OK && control->kind != KELP_STEP_DONE &&
           (control->step < step || control->kind != KELP_STEP_TRAIN)) {
        status = kelp_replay_entry(replay, &record, reterr);
    }
    return status;
}
