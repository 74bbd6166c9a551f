/* Snapshots: orders for the partitions, and the captures that they leave for the writer. */
#include <stdlib.h>

#include "ps/core/limits.h"
#include "ps/shard/shard_internal.h"

static void hand_order(const struct scene *scene, const struct kelp_snapshot_order *order)
{
    (void)pthread_mutex_lock(&scene->hosted->lock);
    if (kelp_partition_snapshot(scene->hosted->core, order, &scene->turn->actions) == KELP_OK) {
        kelp__shard_run_actions(scene);
    } else {
        kelp__shard_give_up_snapshot(scene, order->serial);
    }
    (void)pthread_mutex_unlock(&scene->hosted->lock);
}

void kelp_shard_snapshot(struct kelp_shard *shard, const struct kelp_snapshot_order *order,
                         const uint32_t *partitions, size_t count, struct kelp_shard_turn *turn)
{
    struct scene scene = {.shard = shard, .turn = turn};

    (void)pthread_rwlock_rdlock(&shard->lock);
    scene.hosting = shard->hosting;
    for (size_t i = 0; scene.hosting && i < count; i++) {
        bool known = partitions[i] < scene.hosting->partition_count;
        scene.hosted = known ? scene.hosting->by_index[partitions[i]] : NULL;
        if (scene.hosted) {
            hand_order(&scene, order);
        }
    }
    (void)pthread_rwlock_unlock(&shard->lock);
}

/* The next extent from *at on, referenced; NULL: none. */
static struct kelp_extent *next_extent(struct kelp_shard *shard, uint32_t *at)
{
    (void)pthread_rwlock_rdlock(&shard->lock);
    const struct hosted *hosted = kelp__hosting_next(shard->hosting, at);
    struct kelp_extent *extent = hosted ? hosted->extent : NULL;
    if (extent) {
        kelp_extent_ref(extent);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
    return extent;
}

void kelp_shard_snapshot_prepare(struct kelp_shard *shard)
{
    struct kelp_extent *extent;
    uint32_t count = 0;
    size_t bytes_max = 0;
    uint32_t at = 0;

    while ((extent = next_extent(shard, &at)) != NULL) {
        const size_t bytes = kelp_extent_bytes(extent);
        if (bytes > 0) {
            kelp_extent_reserve(extent, KELP_PS_WEIGHT_BUFFERS_MIN);
            count += kelp_extent_slot_count(extent);
        }
        bytes_max = bytes > bytes_max ? bytes : bytes_max;
        kelp_extent_unref(extent);
    }
    kelp_capture_pool_fill(shard->pool, count, bytes_max);
}

/* ---- captures left by partitions ---- */

void kelp__shard_leave_capture(const struct scene *scene)
{
    struct kelp_shard *shard = scene->shard;
    struct kelp_capture *capture = &scene->hosted->capture;

    if (!capture->pool) {
        return;
    }
    struct left_capture *left = malloc(sizeof(*left));
    if (!left) {
        kelp__shard_give_up_snapshot(scene, capture->ticket);
        return;
    }
    left->partition = scene->hosted->index;
    left->capture = *capture;
    *capture = (struct kelp_capture){0};
    (void)pthread_mutex_lock(&shard->left_lock);
    left->next = shard->left;
    shard->left = left;
    (void)pthread_mutex_unlock(&shard->left_lock);
}

void kelp__shard_discard_left(struct kelp_shard *shard, uint64_t ticket)
{
    (void)pthread_mutex_lock(&shard->left_lock);
    struct left_capture **at = &shard->left;
    while (*at) {
        struct left_capture *left = *at;
        if (left->capture.ticket > ticket) {
            at = &left->next;
            continue;
        }
        *at = left->next;
        kelp_capture_release(&left->capture);
        free(left);
    }
    (void)pthread_mutex_unlock(&shard->left_lock);
}

static kelp_status take_left(struct kelp_shard *shard, uint64_t ticket, uint32_t partition,
                             struct kelp_capture *ret_capture)
{
    struct left_capture *found = NULL;

    (void)pthread_mutex_lock(&shard->left_lock);
    for (struct left_capture **at = &shard->left; *at; at = &(*at)->next) {
        if ((*at)->partition == partition && (*at)->capture.ticket == ticket) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    (void)pthread_mutex_unlock(&shard->left_lock);
    if (!found) {
        return KELP_ERR_NOT_FOUND;
    }
    *ret_capture = found->capture;
    free(found);
    return KELP_OK;
}

/* ---- what the writer takes ---- */

/* The partition is locked. */
static kelp_status take_capture(struct hosted *hosted, uint64_t ticket,
                                struct kelp_capture *ret_capture)
{
    if (!hosted->capture.pool || hosted->capture.ticket != ticket) {
        return KELP_ERR_NOT_FOUND;
    }
    kelp_status status = kelp_capture_detach(&hosted->capture);
    if (status == KELP_OK) {
        *ret_capture = hosted->capture;
        hosted->capture = (struct kelp_capture){0};
    }
    return status;
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
        status = take_capture(hosted, ticket, ret_capture);
        (void)pthread_mutex_unlock(&hosted->lock);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
    if (status == KELP_ERR_NOT_FOUND) {
        status = take_left(shard, ticket, partition, ret_capture);
    }
    if (status != KELP_OK) {
        return kelp_fail(reterr, status, "partition %u: %s", partition,
                         status == KELP_ERR_NOT_FOUND ? "its state is not kept any more"
                                                      : "no memory for its state");
    }
    return KELP_OK;
}

void kelp_shard_snapshot_discard(struct kelp_shard *shard, uint64_t ticket)
{
    struct hosted *hosted;
    uint32_t at = 0;

    (void)pthread_rwlock_rdlock(&shard->lock);
    while ((hosted = kelp__hosting_next(shard->hosting, &at)) != NULL) {
        (void)pthread_mutex_lock(&hosted->lock);
        if (hosted->capture.pool && hosted->capture.ticket <= ticket) {
            kelp_capture_release(&hosted->capture);
        }
        (void)pthread_mutex_unlock(&hosted->lock);
    }
    (void)pthread_rwlock_unlock(&shard->lock);
    kelp__shard_discard_left(shard, ticket);
}
