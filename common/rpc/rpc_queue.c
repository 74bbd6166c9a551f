#include "common/rpc/rpc_queue_internal.h"

#include <stdlib.h>

#include "common/rpc/rpc_internal.h"

/* May so many more bytes wait here? */
static bool has_room(const struct kelp__rpc_queue *queue, size_t more)
{
    const size_t max = atomic_load_explicit(&queue->queues->bytes_max, memory_order_relaxed);
    const size_t count = atomic_load_explicit(&queue->queues->count, memory_order_relaxed);

    return max == 0 || queue->bytes <= max / (count > 0 ? count : 1) ||
           atomic_load_explicit(&queue->queues->bytes, memory_order_relaxed) + more <= max;
}

static bool grow(struct kelp__rpc_queue *queue)
{
    size_t size = queue->size ? queue->size * 2 : 8;
    struct kelp_rpc_message **ring = calloc(size, sizeof(struct kelp_rpc_message *));

    if (!ring) {
        return false;
    }
    for (size_t i = 0; i < queue->count; i++) {
        ring[i] = queue->ring[(queue->first + i) % queue->size];
    }
    free(queue->ring);
    queue->ring = ring;
    queue->size = size;
    queue->first = 0;
    return true;
}

kelp_status kelp__rpc_queue_push(struct kelp__rpc_queue *queue, struct kelp_rpc_message *message)
{
    const size_t bytes = kelp__rpc_message_weight(message);

    if (queue->count >= KELP_RPC_SEND_QUEUE_MAX || (queue->queues && !has_room(queue, bytes))) {
        return KELP_ERR_LIMIT;
    }
    if (queue->count == queue->size && !grow(queue)) {
        return KELP_ERR_NO_MEMORY;
    }
    queue->ring[(queue->first + queue->count) % queue->size] = message;
    queue->count++;
    if (queue->queues) {
        atomic_fetch_add_explicit(&queue->queues->count, queue->bytes == 0 ? 1 : 0,
                                  memory_order_relaxed);
        atomic_fetch_add_explicit(&queue->queues->bytes, bytes, memory_order_relaxed);
    }
    queue->bytes += bytes;
    return KELP_OK;
}

struct kelp_rpc_message *kelp__rpc_queue_pop(struct kelp__rpc_queue *queue, size_t *ret_bytes)
{
    if (queue->count == 0) {
        return NULL;
    }
    struct kelp_rpc_message *message = queue->ring[queue->first];
    queue->first = (queue->first + 1) % queue->size;
    queue->count--;
    *ret_bytes = kelp__rpc_message_weight(message);
    return message;
}

void kelp__rpc_queue_done(struct kelp__rpc_queue *queue, size_t bytes)
{
    queue->bytes -= bytes;
    if (queue->queues && bytes > 0) {
        atomic_fetch_sub_explicit(&queue->queues->bytes, bytes, memory_order_relaxed);
        atomic_fetch_sub_explicit(&queue->queues->count, queue->bytes == 0 ? 1 : 0,
                                  memory_order_relaxed);
    }
}
