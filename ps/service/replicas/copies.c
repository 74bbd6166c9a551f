/* Copies for joiners: one partition at a time, each at full speed; pauses between them keep to
 * cluster.move_rate. */
#include <stdlib.h>
#include <string.h>

#include "ps/service/exchange_internal.h"
#include "ps/service/replicas/links_internal.h"

/* The newest wish of a partition replaces the one before. replicas->lock is held. */
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
    atomic_store(&replicas->copying[partition].sent, 0);
    atomic_store(&replicas->copying[partition].total, bytes);
    if (!wish) {
        kelp__service_control_failed(partition, KELP_ERR_NO_MEMORY, "no memory for a copy", user);
    }
    kelp__service_replicas_hurry(service);
}

void kelp__service_copy(struct kelp_replica_copy *content, uint64_t process, void *user)
{
    struct kelp_service *service = user;
    struct kelp__service_link *link = kelp__service_link_take(service, process);
    struct link_copy *copy = kelp__service_copy_make(service, content);

    if (!copy) {
        kelp__service_control_failed(0, KELP_ERR_NO_MEMORY, "no memory for a copy", service);
    } else if (link) {
        (void)pthread_mutex_lock(&link->lock);
        if (link->is_up) {
            kelp__service_link_send(link, false); /* roots from before the copy go first */
            kelp__service_link_add_copy(link, copy);
            copy = NULL;
        }
        (void)pthread_mutex_unlock(&link->lock);
    }
    kelp__service_copy_free(copy); /* not NULL: the link is down, and the copy useless */
    if (link) {
        kelp__service_link_unref(link);
    }
}

/* Take the first wish whose link is idle; wishes of busy links stay. replicas->lock is held. */
static bool take_wish(struct kelp_service *service, struct service_wish *ret_wish)
{
    struct kelp__service_replicas *replicas = service->replicas;

    for (size_t i = 0; i < replicas->wish_count; i++) {
        if (kelp__service_links_idle(service, replicas->wishes[i].process)) {
            *ret_wish = replicas->wishes[i];
            replicas->wish_count--;
            memmove(&replicas->wishes[i], &replicas->wishes[i + 1],
                    (replicas->wish_count - i) * sizeof(replicas->wishes[0]));
            return true;
        }
    }
    return false;
}

static bool next_wish(struct kelp_service *service, uint64_t now_us, struct service_wish *ret_wish)
{
    struct kelp__service_replicas *replicas = service->replicas;

    (void)pthread_mutex_lock(&replicas->lock);
    const bool found = now_us >= replicas->next_copy_us && take_wish(service, ret_wish);
    if (found) {
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
