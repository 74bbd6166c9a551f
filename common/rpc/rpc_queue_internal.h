/*
 * Messages of one stream that wait to be sent, in order; and how much memory those of all streams
 * of a server may take, so that readers who do not read are ended instead of kept.
 *
 * Threads: the caller's lock guards a queue; what queues share is atomic.
 */
#ifndef KELP_COMMON_RPC_RPC_QUEUE_INTERNAL_H
#define KELP_COMMON_RPC_RPC_QUEUE_INTERNAL_H

#include <stdatomic.h>

#include "common/rpc/rpc.h"

/* Of a server. */
struct kelp__rpc_queues {
    _Atomic size_t bytes_max; /* 0: no bound */
    _Atomic size_t bytes;
    _Atomic size_t count; /* queues that have some */
};

struct kelp__rpc_queue {
    struct kelp__rpc_queues *queues; /* NULL: not counted, on a client */
    struct kelp_rpc_message **ring;  /* of size places */
    size_t size, first, count;
    size_t bytes; /* memory of the messages, and of the one that is being sent */
};

/* Errors: KELP_ERR_LIMIT (all together have more than the bound, and this one more than its part),
 * KELP_ERR_NO_MEMORY. The message is transferred on success only. */
kelp_status kelp__rpc_queue_push(struct kelp__rpc_queue *queue,
                                 struct kelp_rpc_message *message) KELP_MUST_USE;
/* The oldest message; NULL: none. *ret_bytes count until kelp__rpc_queue_done(). */
struct kelp_rpc_message *kelp__rpc_queue_pop(struct kelp__rpc_queue *queue, size_t *ret_bytes);
void kelp__rpc_queue_done(struct kelp__rpc_queue *queue, size_t bytes);

#endif
