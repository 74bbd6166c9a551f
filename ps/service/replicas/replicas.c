/* What all streams between shards share: one timer, and the report for the leader. */
#include "ps/service/replicas/replicas_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"

/* NULL and half-built objects are allowed. */
static void free_all(struct kelp__service_replicas *replicas)
{
    if (replicas) {
        kelp__service_peers_destroy(replicas->peers);
        free(replicas->wishes);
        free(replicas->fresh);
        free(replicas->rows);
        free(replicas);
    }
}

kelp_status kelp__service_replicas_open(struct kelp_service *service, struct kelp_error *reterr)
{
    struct kelp__service_replicas *replicas = calloc(1, sizeof(*replicas));

    if (replicas) {
        replicas->fresh = calloc(KELP_PARTITIONS_MAX, sizeof(*replicas->fresh));
        replicas->rows = calloc(KELP_PARTITIONS_MAX, sizeof(*replicas->rows));
        replicas->peers = kelp__service_peers_create();
    }
    if (!replicas || !replicas->fresh || !replicas->rows || !replicas->peers) {
        free_all(replicas);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for replicas");
    }
    (void)pthread_mutex_init(&replicas->lock, NULL);
    (void)pthread_mutex_init(&replicas->look_lock, NULL);
    service->replicas = replicas;
    return KELP_OK;
}

void kelp__service_replicas_stop(struct kelp_service *service)
{
    struct kelp__service_replicas *replicas = service->replicas;

    if (!replicas) {
        return;
    }
    (void)pthread_mutex_lock(&replicas->lock);
    replicas->closing = true;
    kelp_rpc_timer_stop(replicas->timer);
    replicas->timer = NULL;
    (void)pthread_mutex_unlock(&replicas->lock);
    kelp__service_links_stop(service);
    while (atomic_load(&replicas->posted)) {
        (void)kelp_rpc_loop_run(service->options.loop, 1000);
    }
}

void kelp__service_replicas_close(struct kelp_service *service)
{
    struct kelp__service_replicas *replicas = service->replicas;

    if (!replicas) {
        return;
    }
    (void)pthread_mutex_destroy(&replicas->lock);
    (void)pthread_mutex_destroy(&replicas->look_lock);
    free_all(replicas);
    service->replicas = NULL;
}

/* ---- the report for the leader ---- */

/* Has anything changed that the leader waits for? How far followers lag is in the next report
 * anyway. */
static bool has_news(const struct kelp__service_replicas *replicas, size_t count)
{
    bool news = count != replicas->row_count;

    for (size_t i = 0; i < count && !news; i++) {
        const struct kelp_shard_replica *before = &replicas->rows[i];
        const struct kelp_shard_replica *after = &replicas->fresh[i];
        news = before->partition != after->partition || before->map_epoch != after->map_epoch ||
               before->view.backup_in_sync != after->view.backup_in_sync ||
               before->view.joiner_in_sync != after->view.joiner_in_sync;
    }
    return news;
}

/* look_lock is held. */
static void look_at_followers(struct kelp_service *service)
{
    struct kelp__service_replicas *replicas = service->replicas;
    const size_t count = kelp_shard_replicas(service->shard, replicas->fresh, KELP_PARTITIONS_MAX);

    (void)pthread_mutex_lock(&service->control_lock);
    const bool news = has_news(replicas, count);
    memcpy(replicas->rows, replicas->fresh, count * sizeof(*replicas->fresh));
    replicas->row_count = count;
    if (news) {
        struct kelp_shard_event event = {.kind = KELP_SHARD_ON_REPLICAS};
        (void)kelp__service_control_apply(service, &event); /* cannot fail */
    }
    (void)pthread_mutex_unlock(&service->control_lock);
}

/* How many versions the slowest follower is behind. */
static uint64_t lag_of(const struct kelp_shard_replica *row)
{
    const struct kelp_replication_view *view = &row->view;
    uint64_t slowest = row->held;

    if (view->has_backup && view->backup_held < slowest) {
        slowest = view->backup_held;
    }
    if (view->has_joiner && view->joiner_held < slowest) {
        slowest = view->joiner_held;
    }
    return row->held - slowest;
}

static void fill_row(const struct kelp__service_replicas *replicas,
                     const struct kelp_shard_replica *row, Kelp__V1__ReplicaReport *ret_item)
{
    kelp__v1__replica_report__init(ret_item);
    ret_item->partition = row->partition;
    ret_item->map_epoch = row->map_epoch;
    ret_item->backup_in_sync = row->view.backup_in_sync;
    ret_item->joiner_in_sync = row->view.joiner_in_sync;
    ret_item->lag = lag_of(row);
    if (row->view.has_joiner) {
        ret_item->copied = atomic_load(&replicas->copying[row->partition].sent);
        ret_item->to_copy = atomic_load(&replicas->copying[row->partition].total);
    }
}

Kelp__V1__ReplicaReport **kelp__service_replicas_report(struct kelp_service *service,
                                                        struct kelp__service_told *told,
                                                        size_t *ret_count)
{
    const struct kelp__service_replicas *replicas = service->replicas;
    const size_t row_count = replicas->row_count;
    Kelp__V1__ReplicaReport **reports = NULL;
    size_t count = 0;

    *ret_count = 0;
    if (row_count > 0) {
        reports = malloc(row_count * (sizeof(*reports) + sizeof(**reports)));
    }
    if (!reports) {
        return NULL; /* out of memory: in the next report */
    }
    Kelp__V1__ReplicaReport *items = (Kelp__V1__ReplicaReport *)(void *)(reports + row_count);
    for (size_t i = 0; i < row_count; i++) {
        fill_row(replicas, &replicas->rows[i], &items[count]);
        if (kelp__service_told_take(told, &items[count])) {
            reports[count] = &items[count];
            count++;
        }
    }
    *ret_count = count;
    return reports;
}

Kelp__V1__PeerReport **kelp__service_peer_reports(struct kelp_service *service, size_t *ret_count)
{
    return kelp__service_peers_report(service->replicas->peers, ret_count);
}

/* ---- from time to time ---- */

/* Time since the last look, at most two ticks: any more was a pause of this process. look_lock
 * is held. */
static uint32_t passed_ms(struct kelp__service_replicas *replicas, uint64_t now_us)
{
    const uint64_t passed_us = now_us - replicas->looked_us;
    const uint64_t most_us = 2 * KELP_PS_REPLICA_TICK_MS * UINT64_C(1000);
    const uint32_t counted_ms = (uint32_t)((passed_us < most_us ? passed_us : most_us) / 1000);

    replicas->looked_us += passed_us < most_us ? UINT64_C(1000) * counted_ms : passed_us;
    return counted_ms;
}

static void look(struct kelp_service *service)
{
    const uint64_t now_us = kelp_clock_us();

    (void)pthread_mutex_lock(&service->replicas->look_lock);
    kelp__service_links_tick(service, now_us, passed_ms(service->replicas, now_us));
    kelp__service_copies_tick(service, now_us);
    look_at_followers(service);
    (void)pthread_mutex_unlock(&service->replicas->look_lock);
}

static void on_timer(void *user)
{
    look(user);
}

static void on_post(void *user)
{
    struct kelp_service *service = user;

    atomic_store(&service->replicas->posted, false);
    look(service);
}

void kelp__service_replicas_hurry(struct kelp_service *service)
{
    if (!atomic_exchange(&service->replicas->posted, true) &&
        kelp_rpc_loop_post(service->options.loop, on_post, service) != KELP_OK) {
        atomic_store(&service->replicas->posted, false); /* out of memory: the timer also looks */
    }
}

void kelp__service_in_sync(uint32_t partition, void *user)
{
    (void)partition; /* the report covers all partitions */
    kelp__service_replicas_hurry(user);
}

void kelp__service_replicas_tick(struct kelp_service *service)
{
    struct kelp__service_replicas *replicas = service->replicas;

    (void)pthread_mutex_lock(&replicas->lock);
    if (!replicas->timer && !replicas->closing &&
        kelp_rpc_timer_start(service->options.loop, KELP_PS_REPLICA_TICK_MS, on_timer, service,
                             &replicas->timer) != KELP_OK) {
        kelp_log_error("no memory for a timer: broken links to other shards stay broken");
    }
    (void)pthread_mutex_unlock(&replicas->lock);
}
