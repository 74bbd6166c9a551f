/* Requests of workers: pushes, pulls, shares of decisions, and offers of late lanes. */
#include <assert.h>
#include <inttypes.h>

#include "ps/shard/shard_internal.h"

/* ---- one partition ---- */

bool kelp__shard_lock(struct scene *scene, uint32_t partition)
{
    struct kelp_shard *shard = scene->shard;

    (void)pthread_rwlock_rdlock(&shard->lock);
    scene->hosting = shard->hosting;
    scene->hosted = scene->hosting && partition < scene->hosting->partition_count
                        ? scene->hosting->by_index[partition]
                        : NULL;
    if (!scene->hosted) {
        (void)pthread_rwlock_unlock(&shard->lock);
        return false;
    }
    (void)pthread_mutex_lock(&scene->hosted->lock);
    return true;
}

void kelp__shard_unlock(const struct scene *scene)
{
    (void)pthread_mutex_unlock(&scene->hosted->lock);
    (void)pthread_rwlock_unlock(&scene->shard->lock);
}

void kelp__shard_follow(const struct scene *scene, kelp_status status)
{
    if (status != KELP_OK) {
        kelp__shard_report_failure(scene, status, "no memory for what another shard says");
    }
    kelp__shard_run_actions(scene);
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

/* The partition judged the push: note when its step began, and how far the push is behind. */
static void time_push(const struct scene *scene, const struct kelp_push *push, uint64_t now_us)
{
    const uint32_t lanes = scene->turn->actions.taken_lanes;
    struct hosted *hosted = scene->hosted;

    if (push->word->kind == KELP_STEP_TRAIN && lanes > 0 &&
        (push->word->version != hosted->step.version || hosted->step.since_us == 0)) {
        hosted->step.version = push->word->version;
        hosted->step.since_us = now_us;
        hosted->step.open = true;
        kelp__shard_trace_open(scene);
    }
    if (hosted->index != 0) {
        return;
    }
    struct kelp_shard_work work = {.author = push->author,
                                   .lanes = lanes,
                                   .timed = push->word->kind == KELP_STEP_TRAIN &&
                                            hosted->step.since_us > 0 &&
                                            push->word->version == hosted->step.version,
                                   .version = push->word->version};
    work.behind_us =
        work.timed && now_us > hosted->step.since_us ? now_us - hosted->step.since_us : 0;
    if (work.lanes > 0 || work.timed) {
        scene->shard->events->worked(&work, scene->shard->user);
    }
}

static kelp_status push_hosted(struct kelp_shard *shard, struct hosted *hosted,
                               const struct kelp_shard_push *push, struct kelp_shard_turn *turn,
                               struct kelp_error *reterr)
{
    struct scene scene = {
        .shard = shard, .hosting = shard->hosting, .hosted = hosted, .turn = turn};
    struct kelp_push core = push->push;
    uint64_t bytes = hosted->range.count * kelp_precision_bytes(shard->job->transport.precision);

    if (push->length != 0 && push->length != bytes) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "push to partition %u has %" PRIu64 " bytes; the partition has %" PRIu64,
                         hosted->index, push->length, bytes);
    }
    core.handle = KELP_HANDLE_NONE;
    if (push->length > 0) {
        const uint64_t begin_ns = kelp_trace_begin(shard->trace);
        core.handle = kelp_gradients_receive(scene.hosting->gradients, push->payload,
                                             (size_t)push->offset, hosted->range.count);
        if (core.handle == KELP_HANDLE_NONE) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a pushed gradient");
        }
        if (!shard->job->cluster.mixed) { /* mixed jobs compare nothing */
            bool known =
                kelp_gradients_content(scene.hosting->gradients, core.handle, &core.content);
            assert(known); /* only the content of a merge can be unknown */
            (void)known;
        }
        kelp__shard_trace_did(&scene, begin_ns, "receive");
    }
    (void)pthread_mutex_lock(&hosted->lock);
    kelp_partition_clock(hosted->core, turn->now_us);
    kelp_status status = kelp_partition_push(hosted->core, &core, &turn->actions);
    if (status == KELP_OK) {
        time_push(&scene, &core, turn->now_us);
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
        again_us = scene->turn->now_us; /* out of memory: the next tick tries again */
    }
    (void)pthread_mutex_unlock(&hosted->lock);
    *next_us = again_us < *next_us ? again_us : *next_us;
}

void kelp_shard_tick(struct kelp_shard *shard, struct kelp_shard_turn *turn, uint64_t *ret_next_us)
{
    *ret_next_us = UINT64_MAX;
    (void)pthread_rwlock_rdlock(&shard->lock);
    /* Held to the end, so that no offer goes to a dropped spare. */
    (void)pthread_mutex_lock(&shard->spares_lock);
    struct scene scene = {.shard = shard, .hosting = shard->hosting, .turn = turn};
    uint32_t at = 0;
    while ((scene.hosted = kelp__hosting_next(scene.hosting, &at)) != NULL) {
        tick_hosted(&scene, ret_next_us);
    }
    (void)pthread_mutex_unlock(&shard->spares_lock);
    (void)pthread_rwlock_unlock(&shard->lock);
}

void kelp_shard_drop(struct kelp_shard *shard, uint64_t requester)
{
    struct hosted *hosted;
    uint32_t at = 0;

    (void)pthread_mutex_lock(&shard->spares_lock);
    kelp_spares_remove(&shard->spares, requester);
    (void)pthread_mutex_unlock(&shard->spares_lock);
    (void)pthread_rwlock_rdlock(&shard->lock);
    while ((hosted = kelp__hosting_next(shard->hosting, &at)) != NULL) {
        (void)pthread_mutex_lock(&hosted->lock);
        kelp_partition_drop(hosted->core, requester);
        (void)pthread_mutex_unlock(&hosted->lock);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
}
