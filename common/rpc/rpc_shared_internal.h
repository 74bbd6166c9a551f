/*
 * A loop that waits for more than one queue of gRPC's, and its streams through shared memory.
 *
 * gRPC's queue can only be waited for by itself. So a thread of the loop waits there, and hands
 * each event to whoever runs the loop, who waits for descriptors: of a channel each, of listeners,
 * and one for events. A loop without any of these, nor a carrier, has no such thread and waits in
 * the queue itself.
 *
 *     asleep --its descriptor can be read, kick--> awake --is taken--> running --nothing more-->
 * awake awake --the loop is about to wait, rest--> asleep
 *
 * Threads: a source runs on one at a time. Its functions but `run` are called under the lock.
 */
#ifndef KELP_COMMON_RPC_RPC_SHARED_INTERNAL_H
#define KELP_COMMON_RPC_RPC_SHARED_INTERNAL_H

#include "common/rpc/rpc_internal.h"

enum kelp__rpc_ran {
    KELP__RPC_RAN,   /* there may be more */
    KELP__RPC_TIRED, /* nothing is left */
    KELP__RPC_GONE,  /* it was removed, and may be freed */
};

struct kelp__rpc_source {
    int fd;
    /* Is there something to do, without asking the descriptor? NULL: never. */
    bool (*ready)(struct kelp__rpc_source *source);
    /* About to sleep. False: something has come. NULL: it may. */
    bool (*rest)(struct kelp__rpc_source *source);
    void (*wake)(struct kelp__rpc_source *source); /* NULL: nothing */
    /* Do one thing. */
    enum kelp__rpc_ran (*run)(struct kelp__rpc_source *source);

    /* Of the loop. */
    uint64_t name;
    struct kelp__rpc_source *previous, *next;
    enum { KELP__RPC_ASLEEP, KELP__RPC_AWAKE, KELP__RPC_RUNNING } state;
    bool kicked;
};

/* From now on the loop waits so; again: nothing. No other thread runs the loop meanwhile. */
kelp_status kelp__rpc_shared_begin(struct kelp_rpc_loop *loop,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* No source is left, but streams that end now. The loop runs no more. */
void kelp__rpc_shared_end(struct kelp_rpc_loop *loop);
/* Whoever runs the loop dispatches it. Any thread. */
void kelp__rpc_shared_put(struct kelp__rpc_shared *shared, struct kelp__rpc_op *op, bool success);
/* Do at most one thing that is there; false: there is none. */
bool kelp__rpc_shared_run(struct kelp__rpc_shared *shared);
/* until_us 0: only look. True: something came, and there may be more. */
bool kelp__rpc_shared_wait(struct kelp__rpc_shared *shared, int64_t until_us);

/* Errors: KELP_ERR_NO_MEMORY. It runs first thing. */
kelp_status kelp__rpc_source_add(struct kelp__rpc_shared *shared,
                                 struct kelp__rpc_source *source) KELP_MUST_USE;
/* From its own run. */
void kelp__rpc_source_remove(struct kelp__rpc_shared *shared, struct kelp__rpc_source *source);
/* Call visit(source, user) for each, under the lock; then kick it. */
void kelp__rpc_source_each(struct kelp__rpc_shared *shared,
                           void (*visit)(struct kelp__rpc_source *source, void *user), void *user);
/* It has something to do. Any thread. */
void kelp__rpc_source_kick(struct kelp__rpc_shared *shared, struct kelp__rpc_source *source);

/* ---- streams (rpc_shared_stream.c): what rpc.h says of those over gRPC ---- */

struct kelp_rpc_shared_stream;

kelp_status kelp__rpc_shared_stream_send(struct kelp_rpc_shared_stream *shared,
                                         struct kelp_rpc_message *message) KELP_MUST_USE;
void kelp__rpc_shared_stream_close(struct kelp_rpc_shared_stream *shared, kelp_status status,
                                   const char *text);

/* A client's, to the server at that address of the channel. Errors: KELP_ERR_UNREACHABLE,
 * KELP_ERR_BUSY, KELP_ERR_DENIED, KELP_ERR_NO_MEMORY. */
kelp_status kelp__rpc_shared_connect(struct kelp_rpc_loop *loop, const char *target,
                                     size_t message_bytes_max,
                                     const struct kelp_rpc_stream_options *options,
                                     struct kelp_rpc_stream **ret_stream,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/* ---- servers ---- */

struct kelp__rpc_shared_listener;

/* Where processes of this host reach that server, by what clients dial, through shared memory.
 * False: it has a port and the loop no folder, or the path is too long. */
bool kelp__rpc_shared_path(const struct kelp_rpc_loop *loop, const char *address,
                           char path[KELP_RPC_ADDRESS_MAX + 1]);
/* address: what clients dial. Errors: those of kelp_shm_listen(), KELP_ERR_NO_MEMORY. */
kelp_status kelp__rpc_shared_listen(struct kelp_rpc_loop *loop, struct kelp_rpc_server *server,
                                    const char *address,
                                    const struct kelp_rpc_server_options *options,
                                    struct kelp__rpc_shared_listener **ret_listener,
                                    struct kelp_error *reterr) KELP_MUST_USE;
/* Nobody is taken any more, and all that it took are cancelled. They end in the loop, as it does
 * itself; the server is held until then. NULL does nothing. */
void kelp__rpc_shared_unlisten(struct kelp__rpc_shared_listener *listener);

#endif
