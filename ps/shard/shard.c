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

/* Changes of what is hosted wait for those who use it, and come before those who would. */
static void init_lock(pthread_rwlock_t *lock)
{
    pthread_rwlockattr_t attributes;

    (void)pthread_rwlockattr_init(&attributes);
    (void)pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    (void)pthread_rwlock_init(lock, &attributes);
    (void)pthread_rwlockattr_destroy(&attributes);
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
    init_lock(&shard->lock);
    (void)pthread_mutex_init(&shard->change_lock, NULL);
    (void)pthread_mutex_init(&shard->left_lock, NULL);
    (void)pthread_mutex_init(&shard->spares_lock, NULL);
    *ret_shard = shard;
    return KELP_OK;
}

/* ---- what is hosted ---- */

/* End one partition: answers those who wait with `status`, releases what is pending. */
static void retire_hosted(const struct scene *scene, kelp_status status)
{
    if (kelp_partition_unload(scene->hosted->core, status, &scene->turn->actions) != KELP_OK) {
        kelp__shard_report_failure(scene, KELP_ERR_NO_MEMORY, "no memory to end a partition");
    }
    kelp__shard_run_actions(scene);
}

static void retire(struct kelp_shard *shard, struct kelp_hosting *hosting, kelp_status status,
                   struct kelp_shard_turn *turn)
{
    struct scene scene = {.shard = shard, .hosting = hosting, .turn = turn};
    uint32_t at = 0;

    while ((scene.hosted = kelp__hosting_next(hosting, &at)) != NULL) {
        retire_hosted(&scene, status);
    }
}

/* Buffers for a copy of every optimizer slot, and a few that the writer has. */
static void limit_pool(struct kelp_shard *shard)
{
    kelp_capture_pool_limit(shard->pool,
                            kelp_optimizer_slot_count(shard->job) * (shard->hosting->count + 2));
}

void kelp_shard_install(struct kelp_shard *shard, struct kelp_hosting *hosting,
                        struct kelp_shard_turn *turn)
{
    (void)pthread_mutex_lock(&shard->change_lock);
    (void)pthread_rwlock_wrlock(&shard->lock);
    struct kelp_hosting *before = shard->hosting;
    shard->hosting = hosting;
    limit_pool(shard);
    /* Still locked, so that a requester who leaves cannot be missed by kelp_shard_drop(). */
    retire(shard, before, KELP_ERR_OLD_GENERATION, turn);
    kelp__shard_discard_left(shard, UINT64_MAX);
    (void)pthread_rwlock_unlock(&shard->lock);
    (void)pthread_mutex_unlock(&shard->change_lock);
    kelp_hosting_destroy(before);
}

static bool serves(const struct kelp_shard *shard, uint64_t generation)
{
    return shard->hosting && shard->hosting->generation == generation;
}

kelp_status kelp_shard_attach(struct kelp_shard *shard, uint64_t generation,
                              const struct kelp_hosting_place *place, struct kelp_error *reterr)
{
    struct hosted *hosted = NULL;
    kelp_status status = KELP_ERR_OLD_GENERATION;

    (void)pthread_mutex_lock(&shard->change_lock);
    struct kelp_hosting *hosting = shard->hosting; /* nobody else changes it meanwhile */
    if (!serves(shard, generation)) {
        (void)kelp_fail(reterr, status, "generation %" PRIu64 " is not served", generation);
    } else if (hosting->by_index[place->partition]) {
        status =
            kelp_fail(reterr, KELP_ERR_EXISTS, "partition %u is hosted already", place->partition);
    } else {
        status = kelp__hosted_create(hosting, place, &hosted, reterr);
    }
    if (status == KELP_OK) {
        (void)pthread_rwlock_wrlock(&shard->lock);
        hosting->by_index[place->partition] = hosted;
        hosting->count++;
        limit_pool(shard);
        (void)pthread_rwlock_unlock(&shard->lock);
    }
    (void)pthread_mutex_unlock(&shard->change_lock);
    return status;
}

void kelp_shard_detach(struct kelp_shard *shard, uint64_t generation, uint32_t partition,
                       struct kelp_shard_turn *turn)
{
    struct scene scene = {.shard = shard, .turn = turn};

    (void)pthread_mutex_lock(&shard->change_lock);
    (void)pthread_rwlock_wrlock(&shard->lock);
    if (serves(shard, generation)) {
        scene.hosting = shard->hosting;
        scene.hosted = scene.hosting->by_index[partition];
    }
    if (scene.hosted) {
        scene.hosting->by_index[partition] = NULL;
        scene.hosting->count--;
        limit_pool(shard);
        retire_hosted(&scene, KELP_ERR_OLD_MAP_EPOCH);
        kelp__shard_leave_capture(&scene);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
    (void)pthread_mutex_unlock(&shard->change_lock);
    kelp__hosted_destroy(scene.hosted);
}

void kelp_shard_destroy(struct kelp_shard *shard)
{
    struct kelp_shard_turn turn = {0};

    if (!shard) {
        return;
    }
    retire(shard, shard->hosting, KELP_ERR_CLOSED, &turn);
    kelp__shard_discard_left(shard, UINT64_MAX);
    kelp_hosting_destroy(shard->hosting);
    kelp_capture_pool_destroy(shard->pool);
    (void)pthread_rwlock_destroy(&shard->lock);
    (void)pthread_mutex_destroy(&shard->change_lock);
    (void)pthread_mutex_destroy(&shard->left_lock);
    (void)pthread_mutex_destroy(&shard->spares_lock);
    kelp_spares_fini(&shard->spares);
    kelp_shard_turn_fini(&turn);
    free(shard);
}

/* ---- status ---- */

void kelp_shard_view(struct kelp_shard *shard, struct kelp_shard_view *ret_view)
{
    struct hosted *hosted;
    uint32_t at = 0;

    memset(ret_view, 0, sizeof(*ret_view));
    (void)pthread_rwlock_rdlock(&shard->lock);
    const struct kelp_hosting *hosting = shard->hosting;
    while ((hosted = kelp__hosting_next(hosting, &at)) != NULL) {
        struct kelp_partition_view view;
        (void)pthread_mutex_lock(&hosted->lock);
        kelp_partition_view(hosted->core, &view);
        const struct kelp_best *best = kelp_partition_best(hosted->core);
        if (best) {
            ret_view->best = *best;
        }
        (void)pthread_mutex_unlock(&hosted->lock);
        if (ret_view->partition_count == 0 || view.step < ret_view->step) {
            ret_view->step = view.step;
        }
        ret_view->partitions[ret_view->partition_count++] = hosted->index;
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
    }
    (void)pthread_rwlock_unlock(&shard->lock);
}
