/* What the files of streams through shared memory share: rpc_shared_stream.c, their life and what
 * comes; rpc_shared_send.c; rpc_shared_server.c. */
#ifndef KELP_COMMON_RPC_RPC_SHARED_STREAM_INTERNAL_H
#define KELP_COMMON_RPC_RPC_SHARED_STREAM_INTERNAL_H

#include "common/rpc/rpc_shared_internal.h"
#include "common/rpc/rpc_stream_internal.h"
#include "common/shm/shm_channel.h"

/* The first part of each frame. */
struct kelp__rpc_head {
    uint32_t kind;
    int32_t status; /* of an end */
};
enum {
    KELP__RPC_KIND_MESSAGE = 1,
    KELP__RPC_KIND_END = 2,
    KELP__RPC_KIND_OPEN = 3, /* a client's first frame, with the method's path */
};

/* An area for one message at a time. */
struct kelp__rpc_bounce {
    struct kelp__rpc_bounce *next;
    struct kelp_rpc_shared_stream *shared;
    struct kelp_shm_area *area;
};

struct kelp_rpc_shared_stream {
    struct kelp_rpc_stream stream; /* its lock guards what follows, and the sending side */
    struct kelp__rpc_source source;
    struct kelp_shm_channel *channel;
    char *opening;                    /* a client's: the path, until it was sent */
    bool hello;                       /* a server's: its first message has to come soon too */
    struct kelp_rpc_message *pending; /* taken from the queue, and not sent yet */
    size_t pending_bytes;             /* that it counts in the queue */
    struct kelp__rpc_bounce *idle;
    unsigned idle_count;
    size_t lent_bytes; /* of areas that the other side reads */
    bool ended;        /* nothing more is to be waited for */
    bool peer_ended;
    atomic_uint refs; /* of the loop, and of each timer */
};

struct kelp__rpc_shared *kelp__rpc_shared_loop(const struct kelp_rpc_shared_stream *shared);

/* Without callbacks yet. The socket is used up. */
kelp_status kelp__rpc_shared_stream_create(struct kelp_rpc_loop *loop, int socket,
                                           size_t message_bytes_max, const char *peer,
                                           struct kelp_rpc_shared_stream **ret_shared,
                                           struct kelp_error *reterr) KELP_MUST_USE;
/* Callbacks may run from here on. On an error none does, and the stream is the caller's. events:
 * NULL for a server's, which gets them with the method. */
kelp_status kelp__rpc_shared_stream_begin(struct kelp_rpc_shared_stream *shared,
                                          const struct kelp_rpc_stream_events *events, void *user,
                                          uint32_t first_message_ms) KELP_MUST_USE;
/* It never began. */
void kelp__rpc_shared_stream_drop(struct kelp_rpc_shared_stream *shared);
/* End all streams of the server. */
void kelp__rpc_shared_cancel(struct kelp__rpc_shared *shared, const struct kelp_rpc_server *server);

/* Look at it soon. The caller has a reference, with which it ends here: the stream may be over. */
void kelp__rpc_shared_look(struct kelp_rpc_shared_stream *shared);
/* The stream's lock is taken for all of these. Send what waits, as far as there is room. */
void kelp__rpc_shared_flush(struct kelp_rpc_shared_stream *shared);
/* The same, and then status and text; nothing is left to do when that was sent. */
void kelp__rpc_shared_send_end(struct kelp_rpc_shared_stream *shared);
/* Nothing more is sent, nor waited for. */
void kelp__rpc_shared_break_off(struct kelp_rpc_shared_stream *shared);
void kelp__rpc_bounce_free(struct kelp__rpc_bounce *bounce);

#endif
