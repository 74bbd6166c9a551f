/*
 * Threads that transfer the bytes of some channels, each with its own completion queue.
 *
 * gRPC reads and writes a connection's socket, and encrypts, in any thread that waits in a queue of
 * the connection. So a carrier waits in the queue of its channels. A completion there goes the way
 * of all events of the loop, unless any thread may handle it: the write that follows another needs
 * no loop.
 */
#include <assert.h>
#include <signal.h>
#include <stdlib.h>

#include "common/rpc/rpc_shared_internal.h"

struct kelp_rpc_carrier {
    struct kelp_rpc_loop *loop;
    struct kelp_rpc_carrier *next; /* in the loop's list */
    grpc_completion_queue *queue;
    grpc_call *post_call;
    pthread_t thread;
};

static void *carry(void *user)
{
    struct kelp_rpc_carrier *carrier = user;
    struct kelp__rpc_shared *shared = atomic_load(&carrier->loop->shared);

    for (;;) {
        const grpc_event event =
            grpc_completion_queue_next(carrier->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) {
            return NULL;
        }
        assert(event.type == GRPC_OP_COMPLETE);
        struct kelp__rpc_op *op = kelp__rpc_completed(&event);
        if (op->anywhere) {
            kelp__rpc_dispatch(op, event.success != 0);
        } else {
            kelp__rpc_shared_put(shared, op, event.success != 0);
        }
    }
}

kelp_status kelp_rpc_carrier_start(struct kelp_rpc_loop *loop,
                                   struct kelp_rpc_carrier **ret_carrier, struct kelp_error *reterr)
{
    kelp_status status = kelp__rpc_shared_begin(loop, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_rpc_carrier *carrier = calloc(1, sizeof(*carrier));
    if (!carrier) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a thread of connections");
    }
    carrier->loop = loop;
    carrier->queue = grpc_completion_queue_create_for_next(NULL);
    carrier->post_call = kelp__rpc_post_call_create(loop, carrier->queue);
    if (!kelp__rpc_thread_start(&carrier->thread, carry, carrier)) {
        grpc_call_unref(carrier->post_call);
        grpc_completion_queue_shutdown(carrier->queue);
        grpc_completion_queue_destroy(carrier->queue);
        free(carrier);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no thread for connections");
    }
    carrier->next = loop->carriers;
    loop->carriers = carrier;
    *ret_carrier = carrier;
    return KELP_OK;
}

struct kelp_rpc_loop *kelp__rpc_carrier_loop(const struct kelp_rpc_carrier *carrier)
{
    return carrier->loop;
}

grpc_completion_queue *kelp__rpc_carrier_queue(const struct kelp_rpc_carrier *carrier)
{
    return carrier->queue;
}

void kelp__rpc_carrier_post(struct kelp_rpc_carrier *carrier, struct kelp__rpc_op *op)
{
    kelp__rpc_start(carrier->post_call, NULL, 0, op);
}

void kelp__rpc_carriers_end(struct kelp_rpc_loop *loop)
{
    while (loop->carriers) {
        struct kelp_rpc_carrier *carrier = loop->carriers;
        loop->carriers = carrier->next;
        grpc_call_unref(carrier->post_call);
        grpc_completion_queue_shutdown(carrier->queue);
        (void)pthread_join(carrier->thread, NULL);
        grpc_completion_queue_destroy(carrier->queue);
        free(carrier);
    }
}
