/* What the files of a stream share: rpc_stream.c, its life, and rpc_stream_end.c. */
#ifndef KELP_COMMON_RPC_RPC_STREAM_INTERNAL_H
#define KELP_COMMON_RPC_RPC_STREAM_INTERNAL_H

#include "common/rpc/rpc_internal.h"
#include "common/rpc/rpc_queue_internal.h"

struct kelp_rpc_stream {
    /* Through shared memory: of that (rpc_shared_stream.c), which uses what is not gRPC's. */
    struct kelp_rpc_shared_stream *shared;
    struct kelp_rpc_loop *loop;
    struct kelp_rpc_carrier *carrier; /* whose thread sends; NULL: whoever has something to send */
    struct kelp_rpc_server *server;   /* NULL on the client */
    size_t message_bytes_max;         /* of what we send; the peer has a limit of its own */
    grpc_call *call;
    char *peer;
    struct kelp__rpc_caller caller;         /* on a server; no name: there is no certificate */
    struct kelp__rpc_connection connection; /* on a server */
    const struct kelp_rpc_stream_events *events;
    void *user;

    struct kelp__rpc_op start_op;
    struct kelp__rpc_op read_op;
    struct kelp__rpc_op watch_op;
    struct kelp__rpc_op pump_op; /* of a carrier */
    struct kelp__rpc_op send_op;
    struct kelp__rpc_op finish_op;
    struct kelp_rpc_timer first_message_timer;
    struct kelp_rpc_timer close_timer;
    struct kelp_rpc_timer expiry_timer; /* of the caller's certificate */

    /* Where batches put their results. */
    grpc_byte_buffer *received;
    grpc_metadata_array initial_metadata;
    grpc_metadata_array trailing_metadata;
    grpc_status_code code;
    grpc_slice details;
    int cancelled;
    grpc_byte_buffer *sent;
    struct kelp__rpc_trailer trailer;
    bool read_before; /* by the read operation only */

    pthread_mutex_t lock; /* guards everything below */
    unsigned holds;       /* read, watch, timers and the creator: closed() waits for them */
    unsigned writes;      /* start, send and finish operations: the memory waits for them too */
    struct kelp__rpc_queue queue;
    size_t sent_bytes;   /* that the message in `sent` counts in it */
    bool sending;        /* the write side is owned by somebody */
    unsigned unanswered; /* messages that may leave before the peer's first; UINT_MAX: all */
    bool closing;        /* no more messages to or from the owner */
    bool finish_wanted;  /* end the write side when the queue is empty */
    bool finished;       /* that was handed to gRPC */
    bool broken;         /* nothing can be sent any more */
    bool closed;         /* closed() was or is being called */
    bool owner_closed;   /* the owner's status is the stream's */
    bool timed_out;
    kelp_status status;
    char text[KELP_RPC_TEXT_MAX + 1];
};

/* Drop a hold (is_write: a write operation) and do what was waiting for it. */
void kelp__rpc_stream_let_go(struct kelp_rpc_stream *stream, bool is_write);
/* Hand the next thing to gRPC; the caller owns the write side, and gives it up if there is none. */
void kelp__rpc_stream_pump(struct kelp_rpc_stream *stream);

/* ---- rpc_stream_end.c ---- */

/* The call has ended. */
void kelp__rpc_stream_watched(struct kelp__rpc_op *op, bool success);
/* The timer does not run any more, and has let go. */
void kelp__rpc_stream_stop_timer(struct kelp_rpc_stream *stream, struct kelp_rpc_timer *timer);
/* Timers, with a hold each: no first message has come; the caller's certificate ends. */
void kelp__rpc_stream_late(void *user);
void kelp__rpc_stream_await_expiry(struct kelp_rpc_stream *stream);

#endif
