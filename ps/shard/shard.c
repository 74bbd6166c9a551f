#include "ps/shard/shard.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ps/core/limits.h"
#include "ps/shard/shard_internal.h"

void kelp_shard_turn_fini(struct kelp_shard_turn *turn)
{
    kelp_actions_fini(&turn->actions);
}

kelp_status kelp_shard_create(const struct kelp_job *job, const struct kelp_shard_events *events,
                              void *user, struct kelp_shard **ret_shard, struct kelp_error *reterr)
{
    struct kelp_shard *shard = calloc(1, sizeof(*shard));

    if (!shard) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the shard");
    }
    shard->job = job;
    shard->events = events;
    shard->user = user;
    kelp_status status = kelp_capture_pool_create(&shard->pool, reterr);
    if (status != KELP_OK) {
        free(shard);
        return status;
    }
    (void)pthread_rwlock_init(&shard->lock, NULL);
    (void)pthread_mutex_init(&shard->spares_lock, NULL);
    *ret_shard = shard;
    return KELP_OK;
}

/* ---- install ---- */

/* End the generation: answers those who wait, releases what is pending. */
static void retire(struct kelp_shard *shard, struct kelp_hosting *hosting,
                   struct kelp_shard_turn *turn)
{
    for (uint32_t i = 0; i < hosting->count; i++) {
        struct scene scene = {
            .shard = shard, .hosting = hosting, .hosted = &hosting->hosted[i], .turn = turn};
        if (kelp_partition_unload(scene.hosted->core, KELP_ERR_OLD_GENERATION, &turn->actions) !=
            KELP_OK) {
            kelp__shard_report_failure(&scene, KELP_ERR_NO_MEMORY, "no memory to end a generation");
        }
        kelp__shard_run_actions(&scene);
    }
}

/* A copy of every optimizer slot, and a few that the writer has. */
static uint32_t buffers_needed(const struct kelp_hosting *hosting)
{
    return hosting->slot_count * (hosting->count + 2);
}

void kelp_shard_install(struct kelp_shard *shard, struct kelp_hosting *hosting,
                        struct kelp_shard_turn *turn)
{
    (void)pthread_rwlock_wrlock(&shard->lock);
    struct kelp_hosting *before = shard->hosting;
    shard->hosting = hosting;
    kelp_capture_pool_limit(shard->pool, buffers_needed(hosting));
    if (before) {
        /* Still locked, so that a requester who leaves cannot be missed by kelp_shard_drop(). */
        retire(shard, before, turn);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
    kelp_hosting_destroy(before);
}

void kelp_shard_destroy(struct kelp_shard *shard)
{
    struct kelp_shard_turn turn = {0};

    if (!shard) {
        return;
    }
    if (shard->hosting) {
        for (uint32_t i = 0; i < shard->hosting->count; i++) {
            struct hosted *hosted = &shard->hosting->hosted[i];
            struct scene scene = {
                .shard = shard, .hosting = shard->hosting, .hosted = hosted, .turn = &turn};
            if (kelp_partition_unload(hosted->core, KELP_ERR_CLOSED, &turn.actions) == KELP_OK) {
                kelp__shard_run_actions(&scene);
            }
        }
    }
    kelp_hosting_destroy(shard->hosting);
    kelp_capture_pool_destroy(shard->pool);
    (void)pthread_rwlock_destroy(&shard->lock);
    (void)pthread_mutex_destroy(&shard->spares_lock);
    kelp_spares_fini(&shard->spares);
    kelp_shard_turn_fini(&turn);
    free(shard);
}

/* ---- the data path ---- */

/* 0: none. */
static uint64_t generation_of(const struct kelp_hosting *hosting)
{
    return hosting ? hosting->generation : 0;
}

static kelp_status no_such_partition(const struct kelp_hosting *hosting, uint32_t partition,
                                     struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_INVALID, "partition %u: the job has %u", partition,
                     hosting->partition_count);
}

static kelp_status push_hosted(struct kelp_shard *shard, struct hosted *hosted,
                               const struct kelp_shard_push *push, struct kelp_shard_turn *turn,
                               struct kelp_error *reterr)
{
    struct scene scene = {
        .shard = shard, .hosting = shard->hosting, .hosted = hosted, .turn = turn};
    struct kelp_push core = push->push;
    uint64_t bytes = hosted->range.count * sizeof(float);

    if (push->length != 0 && push->length != bytes) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "push to partition %u has %" PRIu64 " bytes; the partition has %" PRIu64,
                         hosted->index, push->length, bytes);
    }
    core.handle = KELP_HANDLE_NONE;
    if (push->length > 0) {
        core.handle = kelp_gradients_receive(scene.hosting->gradients, push->payload,
                                             (size_t)push->offset, hosted->range.count);
        if (core.handle == KELP_HANDLE_NONE) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a pushed gradient");
        }
        if (!shard->job->cluster.mixed) { /* where nothing is compared */
            core.content = kelp_gradients_content(core.handle);
        }
    }
    (void)pthread_mutex_lock(&hosted->lock);
    kelp_partition_clock(hosted->core, turn->now_us);
    kelp_status status = kelp_partition_push(hosted->core, &core, &turn->actions);
    if (status == KELP_OK && turn->actions.taken_lanes > 0) {
        shard->events->worked(core.author, turn->actions.taken_lanes, shard->user);
    }
    if (status == KELP_OK) {
        kelp__shard_run_actions(&scene);
    }
    (void)pthread_mutex_unlock(&hosted->lock);
    if (status != KELP_OK) {
        if (core.handle != KELP_HANDLE_NONE) {
            kelp_gradients_release(scene.hosting->gradients, core.handle);
        }
        return kelp_fail(reterr, status, "no memory for a pushed gradient");
    }
    return KELP_OK;
}

kelp_status kelp_shard_push(struct kelp_shard *shard, const struct kelp_shard_push *push,
                            struct kelp_shard_turn *turn, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    assert(push->offset <= push->payload->length || push->length == 0);
    (void)pthread_rwlock_rdlock(&shard->lock);
    struct kelp_hosting *hosting = shard->hosting;
    if (hosting && push->partition >= hosting->partition_count) {
        status = no_such_partition(hosting, push->partition, reterr);
    } else if (!hosting || !hosting->by_index[push->partition]) {
        struct kelp_refusal refusal =
            kelp_refusal_not_hosted(generation_of(hosting), push->push.generation,
                                    push->push.requester, push->push.word->version);
        shard->events->refused(push->partition, &refusal, turn->user, shard->user);
    } else {
        status = push_hosted(shard, hosting->by_index[push->partition], push, turn, reterr);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
    return status;
}

kelp_status kelp_shard_pull(struct kelp_shard *shard, uint32_t partition,
                            const struct kelp_pull *pull, struct kelp_shard_turn *turn,
                            struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    (void)pthread_rwlock_rdlock(&shard->lock);
    struct kelp_hosting *hosting = shard->hosting;
    if (hosting && partition >= hosting->partition_count) {
        status = no_such_partition(hosting, partition, reterr);
    } else if (!hosting || !hosting->by_index[partition]) {
        struct kelp_shard_answer answer = {
            .partition = partition, .core = kelp_answer_not_hosted(generation_of(hosting), pull)};
        shard->events->answer(&answer, turn->user, shard->user);
    } else {
        struct hosted *hosted = hosting->by_index[partition];
        struct scene scene = {.shard = shard, .hosting = hosting, .hosted = hosted, .turn = turn};
        (void)pthread_mutex_lock(&hosted->lock);
        kelp_partition_clock(hosted->core, turn->now_us);
        status = kelp_partition_pull(hosted->core, pull, &turn->actions);
        if (status == KELP_OK) {
            kelp__shard_run_actions(&scene);
        } else {
            status = kelp_fail(reterr, status, "no memory for a waiting pull");
        }
        (void)pthread_mutex_unlock(&hosted->lock);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
    return status;
}

kelp_status kelp_shard_share(struct kelp_shard *shard, const struct kelp_share_push *push,
                             struct kelp_shard_turn *turn, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    (void)pthread_rwlock_rdlock(&shard->lock);
    struct kelp_hosting *hosting = shard->hosting;
    if (!hosting || !hosting->by_index[0]) {
        struct kelp_refusal refusal = kelp_refusal_not_hosted(
            generation_of(hosting), push->generation, push->requester, push->word->version);
        shard->events->refused(0, &refusal, turn->user, shard->user);
    } else {
        struct hosted *hosted = hosting->by_index[0];
        struct scene scene = {.shard = shard, .hosting = hosting, .hosted = hosted, .turn = turn};
        (void)pthread_mutex_lock(&hosted->lock);
        kelp_partition_clock(hosted->core, turn->now_us);
        status = kelp_partition_share(hosted->core, push, &turn->actions);
        if (status == KELP_OK) {
            kelp__shard_run_actions(&scene);
        } else {
            status = kelp_fail(reterr, status, "no memory for a share of a decision");
        }
        (void)pthread_mutex_unlock(&hosted->lock);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
    return status;
}

/* ---- offers ---- */

kelp_status kelp_shard_spare(struct kelp_shard *shard, const struct kelp_cover_candidate *spare,
                             bool helps)
{
    kelp_status status = KELP_OK;

    (void)pthread_mutex_lock(&shard->spares_lock);
    if (helps) {
        status = kelp_spares_add(&shard->spares, spare);
    } else {
        kelp_spares_remove(&shard->spares, spare->requester);
    }
    (void)pthread_mutex_unlock(&shard->spares_lock);
    return status;
}

static void tick_hosted(const struct scene *scene, uint64_t *next_us)
{
    struct kelp_shard *shard = scene->shard;
    struct hosted *hosted = scene->hosted;
    uint64_t again_us = UINT64_MAX;

    (void)pthread_mutex_lock(&hosted->lock);
    kelp_partition_clock(hosted->core, scene->turn->now_us);
    if (kelp_partition_tick(hosted->core, shard->spares.items, shard->spares.count,
                            &scene->turn->actions, &again_us) == KELP_OK) {
        kelp__shard_run_actions(scene);
    } else {
        again_us = scene->turn->now_us; /* no memory: nothing is lost, the next tick tries again */
    }
    (void)pthread_mutex_unlock(&hosted->lock);
    *next_us = again_us < *next_us ? again_us : *next_us;
}

void kelp_shard_tick(struct kelp_shard *shard, struct kelp_shard_turn *turn, uint64_t *ret_next_us)
{
    *ret_next_us = UINT64_MAX;
    (void)pthread_rwlock_rdlock(&shard->lock);
    /* Held to the end, so that no offer goes to a spare that has been dropped. */
    (void)pthread_mutex_lock(&shard->spares_lock);
    struct kelp_hosting *hosting = shard->hosting;
    for (uint32_t i = 0; hosting && i < hosting->count; i++) {
        struct scene scene = {
            .shard = shard, .hosting = hosting, .hosted = &hosting->hosted[i], .turn = turn};
        tick_hosted(&scene, ret_next_us);
    }
    (void)pthread_mutex_unlock(&shard->spares_lock);
    (void)pthread_rwlock_unlock(&shard->lock);
}

void kelp_shard_drop(struct kelp_shard *shard, uint64_t requester)
{
    (void)pthread_mutex_lock(&shard->spares_lock);
    kelp_spares_remove(&shard->spares, requester);
    (void)pthread_mutex_unlock(&shard->spares_lock);
    (void)pthread_rwlock_rdlock(&shard->lock);
    struct kelp_hosting *hosting = shard->hosting;
    for (uint32_t i = 0; hosting && i < hosting->count; i++) {
        (void)pthread_mutex_lock(&hosting->hosted[i].lock);
        kelp_partition_drop(hosting->hosted[i].core, requester);
        (void)pthread_mutex_unlock(&hosting->hosted[i].lock);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
}

/* ---- snapshots ---- */

void kelp_shard_snapshot(struct kelp_shard *shard, const struct kelp_snapshot_order *order,
                         struct kelp_shard_turn *turn)
{
    (void)pthread_rwlock_rdlock(&shard->lock);
    struct kelp_hosting *hosting = shard->hosting;
    for (uint32_t i = 0; hosting && i < hosting->count; i++) {
        struct hosted *hosted = &hosting->hosted[i];
        struct scene scene = {.shard = shard, .hosting = hosting, .hosted = hosted, .turn = turn};
        (void)pthread_mutex_lock(&hosted->lock);
        if (kelp_partition_snapshot(hosted->core, order, &turn->actions) == KELP_OK) {
            kelp__shard_run_actions(&scene);
        } else {
            kelp__shard_give_up_snapshot(&scene, order->serial);
        }
        (void)pthread_mutex_unlock(&hosted->lock);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
}

void kelp_shard_snapshot_prepare(struct kelp_shard *shard)
{
    struct kelp_weights *weights = NULL;
    uint32_t count = 0;
    size_t bytes = 0;

    (void)pthread_rwlock_rdlock(&shard->lock);
    struct kelp_hosting *hosting = shard->hosting;
    for (uint32_t i = 0; hosting && i < hosting->count; i++) {
        size_t ours = (size_t)hosting->hosted[i].range.count * sizeof(float);
        count += ours > 0 ? hosting->slot_count : 0;
        bytes = ours > bytes ? ours : bytes;
    }
    if (bytes > 0) {
        weights = hosting->weights;
        kelp_weights_ref(weights);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
    if (weights) {
        kelp_weights_reserve(weights, KELP_PS_WEIGHT_SLOTS_MIN);
        kelp_capture_pool_fill(shard->pool, count, bytes);
        kelp_weights_unref(weights);
    }
}

kelp_status kelp_shard_snapshot_part(struct kelp_shard *shard, uint64_t ticket, uint32_t partition,
                                     struct kelp_capture *ret_capture, struct kelp_error *reterr)
{
    kelp_status status = KELP_ERR_NOT_FOUND;

    (void)pthread_rwlock_rdlock(&shard->lock);
    struct kelp_hosting *hosting = shard->hosting;
    struct hosted *hosted =
        hosting && partition < hosting->partition_count ? hosting->by_index[partition] : NULL;
    if (hosted) {
        (void)pthread_mutex_lock(&hosted->lock);
        if (hosted->capture.pool && hosted->capture.ticket == ticket) {
            status = kelp_capture_detach(&hosted->capture);
        }
        if (status == KELP_OK) {
            *ret_capture = hosted->capture;
            hosted->capture = (struct kelp_capture){0};
        }
        (void)pthread_mutex_unlock(&hosted->lock);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
    if (status != KELP_OK) {
        return kelp_fail(reterr, status, "partition %u: %s", partition,
                         status == KELP_ERR_NOT_FOUND ? "its state is not kept any more"
                                                      : "no memory for its state");
    }
    return KELP_OK;
}

void kelp_shard_snapshot_discard(struct kelp_shard *shard, uint64_t ticket)
{
    (void)pthread_rwlock_rdlock(&shard->lock);
    struct kelp_hosting *hosting = shard->hosting;
    for (uint32_t i = 0; hosting && i < hosting->count; i++) {
        struct hosted *hosted = &hosting->hosted[i];
        (void)pthread_mutex_lock(&hosted->lock);
        if (hosted->capture.pool && hosted->capture.ticket <= ticket) {
            kelp_capture_release(&hosted->capture);
        }
        (void)pthread_mutex_unlock(&hosted->lock);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
}

/* ---- status ---- */

void kelp_shard_view(struct kelp_shard *shard, struct kelp_shard_view *ret_view)
{
    memset(ret_view, 0, sizeof(*ret_view));
    (void)pthread_rwlock_rdlock(&shard->lock);
    struct kelp_hosting *hosting = shard->hosting;
    for (uint32_t i = 0; hosting && i < hosting->count; i++) {
        struct hosted *hosted = &hosting->hosted[i];
        struct kelp_partition_view view;
        (void)pthread_mutex_lock(&hosted->lock);
        kelp_partition_view(hosted->core, &view);
        const struct kelp_best *best = kelp_partition_best(hosted->core);
        if (best) {
            ret_view->best = *best;
        }
        (void)pthread_mutex_unlock(&hosted->lock);
        ret_view->partitions[i] = hosted->index;
        ret_view->step = i == 0 || view.step < ret_view->step ? view.step : ret_view->step;
        ret_view->pushes += view.pushes;
        ret_view->duplicates += view.duplicates;
        ret_view->refusals += view.refusals;
        ret_view->waiting += view.waiting;
        ret_view->offers += view.offers;
        if (hosted->index == 0) {
            ret_view->has_word = view.has_word;
            ret_view->word = view.word;
        }
    }
    if (hosting) {
        ret_view->generation = hosting->generation;
        ret_view->partition_count = hosting->count;
    }
    (void)pthread_rwlock_unlock(&shard->lock);
}
