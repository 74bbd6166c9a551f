/* Copies for joiners: one partition at a time at full speed, cluster.move_rate between them. */
#include <stdlib.h>
#include <string.h>

#include "ps/service/service_exchange_internal.h"
#include "ps/service/service_replicas_internal.h"

void kelp__service_copying_unref(struct service_copying *copying)
{
    if (copying && atomic_fetch_sub_explicit(&copying->refs, 1, memory_order_acq_rel) == 1) {
        free(copying);
    }
}

/* replicas->lock is held. The newest wish of a partition takes the place of the one before. */
static struct service_wish *place_for(struct kelp__service_replicas *replicas, uint32_t partition)
{
    for (size_t i = 0; i < replicas->wish_count; i++) {
        if (replicas->wishes[i].partition == partition) {
            return &replicas->wishes[i];
        }
    }
    if (replicas->wish_count == replicas->wish_capacity) {
        const size_t capacity = replicas->wish_capacity ? 2 * replicas->wish_capacity : 16;
        if (!kelp__service_resize((void **)&replicas->wishes, capacity,
                                  sizeof(*replicas->wishes))) {
            return NULL;
        }
        replicas->wish_capacity = capacity;
    }
    return &replicas->wishes[replicas->wish_count++];
}

void kelp__service_want_copy(uint32_t partition, uint64_t process, size_t bytes, void *user)
{
    struct kelp_service *service = user;
    struct kelp__service_replicas *replicas = service->replicas;

    (void)pthread_mutex_lock(&replicas->lock);
    struct service_wish *wish = place_for(replicas, partition);
    if (wish) {
        *wish = (struct service_wish){.partition = partition, .process = process, .bytes = bytes};
    }
    (void)pthread_mutex_unlock(&replicas->lock);
    atomic_store(&replicas->copying->partitions[partition].sent, 0);
    atomic_store(&replicas->copying->partitions[partition].total, bytes);
    if (!wish) {
        kelp__service_control_failed(partition, KELP_ERR_NO_MEMORY, "no memory for a copy", user);
    }
    kelp__service_replicas_hurry(service);
}

void kelp__service_copy(struct kelp_replica_copy *copy, uint64_t process, void *user)
{
    kelp__service_links_copy(user, copy, process);
}

static bool next_wish(struct kelp_service *service, uint64_t now_us, struct service_wish *ret_wish)
{
    struct kelp__service_replicas *replicas = service->replicas;

    (void)pthread_mutex_lock(&replicas->lock);
    bool found = replicas->wish_count > 0 && now_us >= replicas->next_copy_us &&
                 atomic_load(&replicas->copying->bytes) == 0;
    if (found) {
        *ret_wish = replicas->wishes[0];
        replicas->wish_count--;
        memmove(&replicas->wishes[0], &replicas->wishes[1],
                replicas->wish_count * sizeof(replicas->wishes[0]));
        replicas->next_copy_us =
            now_us + 1000000 * (uint64_t)ret_wish->bytes / service->options.job->cluster.move_rate;
    }
    (void)pthread_mutex_unlock(&replicas->lock);
    return found;
}

void kelp__service_copies_tick(struct kelp_service *service, uint64_t now_us)
{
    struct kelp__service_turn *turn;
    struct service_wish wish;

    if (!next_wish(service, now_us, &wish)) {
        return;
    }
    turn = kelp__service_turn_take(service);
    if (turn) {
        kelp_shard_copy(service->shard, wish.partition, wish.process,
                        kelp__service_turn_shard(turn));
        kelp__service_turn_finish(service, turn);
    } else {
        kelp__service_want_copy(wish.partition, wish.process, wish.bytes, service);
    }
}
