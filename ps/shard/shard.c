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

/* A writer, which changes what is hosted, waits for present readers and goes before later ones. */
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

void kelp_shard_trace(struct kelp_shard *shard, struct kelp_trace *trace)
{
    shard->trace = trace;
}

/* ---- what is hosted ---- */

/* End one partition: answer its waiting pulls with `status` and release what is pending. */
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

static void add_counts(struct kelp_shard_counts *counts, const struct hosted *hosted)
{
    struct kelp_partition_view view;

    kelp_partition_view(hosted->core, &view);
    counts->pushes += view.pushes;
    counts->duplicates += view.duplicates;
    counts->refusals += view.refusals;
    counts->offers += view.offers;
}

/* Keep the counts of partitions that leave. `lock` is held for writing. */
static void count_gone(struct kelp_shard *shard, const struct kelp_hosting *hosting)
{
    struct hosted *hosted;
    uint32_t at = 0;

    while ((hosted = kelp__hosting_next(hosting, &at)) != NULL) {
        add_counts(&shard->gone, hosted);
    }
}

/* Buffers for a copy of every optimizer slot, and a few more for the writer. */
static void limit_pool(struct kelp_shard *shard)
{
    kelp_capture_pool_limit(shard->pool,
                            kelp_optimizer_slot_count(shard->job) * (shard->hosting->count + 2));
}

static void tell_links_to_all(struct kelp_shard *shard, struct kelp_shard_turn *turn)
{
    struct scene scene = {.shard = shard, .hosting = shard->hosting, .turn = turn};
    uint32_t at = 0;

    while ((scene.hosted = kelp__hosting_next(scene.hosting, &at)) != NULL) {
        kelp__shard_tell_links(&scene);
    }
}

void kelp_shard_install(struct kelp_shard *shard, struct kelp_hosting *hosting,
                        struct kelp_shard_turn *turn)
{
    (void)pthread_mutex_lock(&shard->change_lock);
    (void)pthread_rwlock_wrlock(&shard->lock);
    struct kelp_hosting *before = shard->hosting;
    shard->hosting = hosting;
    limit_pool(shard);
    tell_links_to_all(shard, turn);
    /* Still locked, so that kelp_shard_drop() cannot miss a requester that leaves. */
    retire(shard, before, KELP_ERR_OLD_GENERATION, turn);
    count_gone(shard, before);
    kelp__shard_discard_left(shard, UINT64_MAX);
    (void)pthread_rwlock_unlock(&shard->lock);
    (void)pthread_mutex_unlock(&shard->change_lock);
    kelp_hosting_destroy(before);
}

/* ---- one partition comes or leaves ---- */

/* change_lock is held, so that no other thread changes what is hosted. */
static void attach(const struct scene *scene, const struct kelp_hosting_place *place)
{
    static const struct kelp_partition_start nothing;
    struct kelp_hosting *hosting = scene->hosting;
    struct scene ours = *scene;
    struct kelp_error error = {.text = ""};

    kelp_status status = kelp__hosted_create(hosting, place, &ours.hosted, &error);
    if (status == KELP_OK && place->entry.place != KELP_REPLICA_JOINER) {
        status =
            kelp_fail(&error, KELP_ERR_MISMATCH,
                      "the map says that partition %u is here, and it never was", place->partition);
        kelp__hosted_destroy(ours.hosted);
    }
    if (status != KELP_OK) {
        scene->shard->events->failed(place->partition, status, error.text, scene->shard->user);
        return;
    }
    kelp__hosted_load(hosting, ours.hosted, &nothing);
    (void)pthread_rwlock_wrlock(&scene->shard->lock);
    hosting->by_index[place->partition] = ours.hosted;
    hosting->count++;
    limit_pool(scene->shard);
    kelp__shard_tell_links(&ours);
    (void)pthread_rwlock_unlock(&scene->shard->lock);
}

/* change_lock is held. */
static void detach(const struct scene *scene, struct hosted *hosted)
{
    struct kelp_shard *shard = scene->shard;
    struct scene ours = *scene;

    ours.hosted = hosted;
    (void)pthread_rwlock_wrlock(&shard->lock);
    scene->hosting->by_index[hosted->index] = NULL;
    scene->hosting->count--;
    limit_pool(shard);
    retire_hosted(&ours, KELP_ERR_NOT_PRIMARY);
    add_counts(&shard->gone, hosted);
    kelp__shard_leave_capture(&ours);
    (void)pthread_rwlock_unlock(&shard->lock);
    kelp__hosted_destroy(hosted);
}

/* The partition stays, perhaps in another role. */
static void enter(const struct scene *scene, const struct kelp_hosting_place *place)
{
    struct hosted *hosted = scene->hosting->by_index[place->partition];
    struct scene ours = *scene;

    ours.hosted = hosted;
    (void)pthread_mutex_lock(&hosted->lock);
    hosted->entry = place->entry;
    hosted->primary = place->primary;
    kelp_partition_clock(hosted->core, scene->turn->now_us);
    kelp__shard_follow(&ours,
                       kelp_partition_enter(hosted->core, &place->entry, &scene->turn->actions));
    (void)pthread_mutex_unlock(&hosted->lock);
}

static bool names(const struct kelp_hosting_place *places, uint32_t count, uint32_t partition)
{
    for (uint32_t i = 0; i < count; i++) {
        if (places[i].partition == partition) {
            return true;
        }
    }
    return false;
}

void kelp_shard_enter(struct kelp_shard *shard, uint64_t generation,
                      const struct kelp_hosting_place *places, uint32_t place_count,
                      struct kelp_shard_turn *turn)
{
    struct scene scene = {.shard = shard, .turn = turn};
    struct hosted *hosted;
    uint32_t at = 0;

    (void)pthread_mutex_lock(&shard->change_lock);
    scene.hosting =
        shard->hosting && shard->hosting->generation == generation ? shard->hosting : NULL;
    while ((hosted = kelp__hosting_next(scene.hosting, &at)) != NULL) {
        if (!names(places, place_count, hosted->index)) {
            detach(&scene, hosted);
        }
    }
    for (uint32_t i = 0; scene.hosting && i < place_count; i++) {
        if (scene.hosting->by_index[places[i].partition]) {
            enter(&scene, &places[i]);
        } else {
            attach(&scene, &places[i]);
        }
    }
    (void)pthread_mutex_unlock(&shard->change_lock);
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
    free(shard->links);
    (void)pthread_rwlock_destroy(&shard->lock);
    (void)pthread_mutex_destroy(&shard->change_lock);
    (void)pthread_mutex_destroy(&shard->left_lock);
    (void)pthread_mutex_destroy(&shard->spares_lock);
    kelp_spares_fini(&shard->spares);
    kelp_shard_turn_fini(&turn);
    free(shard);
}

/* ---- status ---- */

/* How many versions the backup is behind. */
static uint64_t lag_of(const struct kelp_partition_view *view)
{
    const bool leads = view->place == KELP_REPLICA_PRIMARY && view->replication.has_backup;

    return leads && view->held > view->replication.backup_held
               ? view->held - view->replication.backup_held
               : 0;
}

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
        if (view.place == KELP_REPLICA_PRIMARY) {
            ret_view->led[ret_view->led_count++] = hosted->index;
        }
        ret_view->pushes += view.pushes;
        ret_view->duplicates += view.duplicates;
        ret_view->refusals += view.refusals;
        ret_view->waiting += view.waiting;
        ret_view->offers += view.offers;
        ret_view->pending += view.pending;
        if (lag_of(&view) > ret_view->lag) {
            ret_view->lag = lag_of(&view);
        }
        if (hosted->index == 0 && view.place == KELP_REPLICA_PRIMARY) {
            ret_view->has_word = view.has_word;
            ret_view->word = view.word;
        }
    }
    if (hosting) {
        ret_view->generation = hosting->generation;
    }
    ret_view->counts = shard->gone;
    ret_view->counts.pushes += ret_view->pushes;
    ret_view->counts.duplicates += ret_view->duplicates;
    ret_view->counts.refusals += ret_view->refusals;
    ret_view->counts.offers += ret_view->offers;
    (void)pthread_rwlock_unlock(&shard->lock);
}

void kelp_shard_standing(struct kelp_shard *shard, struct kelp_standing *ret_standing)
{
    struct hosted *hosted;
    uint32_t at = 0;

    *ret_standing = (struct kelp_standing){.known = false};
    (void)pthread_rwlock_rdlock(&shard->lock);
    const struct kelp_hosting *hosting = shard->hosting;
    while ((hosted = kelp__hosting_next(hosting, &at)) != NULL) {
        struct kelp_partition_view view;
        (void)pthread_mutex_lock(&hosted->lock);
        kelp_partition_view(hosted->core, &view);
        (void)pthread_mutex_unlock(&hosted->lock);
        kelp_standing_add(ret_standing, hosted->index, &view);
    }
    ret_standing->generation = hosting ? hosting->generation : 0;
    (void)pthread_rwlock_unlock(&shard->lock);
}
