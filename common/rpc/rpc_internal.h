/*
 * What the files of the rpc module share. Nothing outside common/rpc_*.c includes this.
 *
 * One completion queue per loop. A tag is a pointer to a struct kelp__rpc_op, which lives until its
 * single completion; ops are embedded in the object they work for, and that object counts its
 * pending ones.
 */
#ifndef KELP_COMMON_RPC_RPC_INTERNAL_H
#define KELP_COMMON_RPC_RPC_INTERNAL_H

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/slice_buffer.h>
#include <grpc/support/alloc.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/base/limits.h"
#include "common/rpc/rpc.h"
#include "common/rpc/rpc_trust.h"

/* ---- operations ---- */

struct kelp__rpc_op {
    void (*done)(struct kelp__rpc_op *op, bool success);
    /* True while gRPC has it. Release on arming and acquire on completion order our memory between
     * the two threads, and a tag that came twice would be seen. */
    atomic_bool armed;
    bool anywhere; /* a carrier's thread may dispatch it: it runs no callback of the loop's */
    /* Between its completion and its dispatch, in a loop with shared memory. */
    struct kelp__rpc_op *next;
    bool success;
};

/* Hand a batch with op as its tag to gRPC. It must not fail: an error is a mistake of ours. */
void kelp__rpc_start(grpc_call *call, const grpc_op *ops, size_t op_count, struct kelp__rpc_op *op);

/* The operation of an event that another thread may dispatch: what was done before it was armed has
 * been done for this one. */
struct kelp__rpc_op *kelp__rpc_completed(const grpc_event *event);
/* Its completion came. */
void kelp__rpc_dispatch(struct kelp__rpc_op *op, bool success);

/* ---- loop ---- */

/* A call that is never started: a batch without operations on it completes at once, which is how a
 * thread puts an event into the queue (the C API has no alarms). */
grpc_call *kelp__rpc_post_call_create(struct kelp_rpc_loop *loop, grpc_completion_queue *queue);
/* Signals are for the threads of the program. */
bool kelp__rpc_thread_start(pthread_t *thread, void *(*run)(void *user), void *user);

struct kelp__rpc_shared; /* rpc_shared_internal.h */

struct kelp_rpc_timer {
    struct kelp_rpc_loop *loop;
    struct kelp_rpc_timer *previous, *next; /* in the loop's list, by deadline */
    int64_t deadline_us;
    int64_t period_us; /* 0: once, and the memory is not touched after function() was called */
    void (*function)(void *user);
    void *user;
    bool queued, running, stopped;
    bool together; /* due at multiples of the period */
};

struct kelp_rpc_loop {
    grpc_completion_queue *queue;
    _Atomic(struct kelp__rpc_shared *) shared; /* NULL: it waits for gRPC alone */
    grpc_channel *post_channel;
    grpc_call *post_call; /* kelp__rpc_post_call_create() */
    struct kelp_rpc_carrier *carriers;
    struct kelp__rpc_op wake_op;
    atomic_bool wake_pending;
    atomic_uint keepalive_ms;
    atomic_uint keepalive_timeout_ms;
    struct kelp_credentials *credentials; /* NULL: no TLS */
    const char *shm_folder;               /* where those at ports meet for it; NULL: nowhere */
    struct kelp__rpc_fetch *fetches;      /* of its servers */
    atomic_int waiters;                   /* threads that may block in the queue */
    atomic_int_fast64_t next_due_us;      /* deadline of the first timer; INT64_MAX: none */
    pthread_mutex_t timers_lock;          /* guards the list and the timers' flags */
    struct kelp_rpc_timer *first, *last;
};

int64_t kelp__rpc_now_us(void);
/* Timers inside other objects, for once. unset: true if it will not fire any more. */
void kelp__rpc_timer_set(struct kelp_rpc_loop *loop, struct kelp_rpc_timer *timer, uint32_t in_ms,
                         void (*function)(void *user), void *user);
bool kelp__rpc_timer_unset(struct kelp_rpc_timer *timer);

/* ---- carriers (rpc_carrier.c) ---- */

struct kelp_rpc_loop *kelp__rpc_carrier_loop(const struct kelp_rpc_carrier *carrier);
grpc_completion_queue *kelp__rpc_carrier_queue(const struct kelp_rpc_carrier *carrier);
/* It is dispatched soon, where it may be. */
void kelp__rpc_carrier_post(struct kelp_rpc_carrier *carrier, struct kelp__rpc_op *op);
/* Their channels and streams are closed. What completed waits to be dispatched. */
void kelp__rpc_carriers_end(struct kelp_rpc_loop *loop);

/* ---- addresses ---- */

/* Can a server listen at address ("HOST:PORT", "unix:/PATH")? gRPC only says that it could not: a
 * socket of ours is tried first, and says why. bound is what gRPC is to listen at: numbers, so that
 * a name stands for one address. dial is what clients are told: "unix:/PATH", or the host as
 * numbers, whose port kelp__rpc_address_add_port() adds once it is bound.
 * Errors: KELP_ERR_EXISTS (in use; the text names it), KELP_ERR_UNREACHABLE (not an address of this
 * host), KELP_ERR_INVALID. */
kelp_status kelp__rpc_address_try(const char *address, char bound[KELP_RPC_ADDRESS_MAX + 1],
                                  char dial[KELP_RPC_ADDRESS_MAX + 1],
                                  struct kelp_error *reterr) KELP_MUST_USE;
void kelp__rpc_address_add_port(char dial[KELP_RPC_ADDRESS_MAX + 1], uint16_t port);
/* That, or what is advertised instead (may be NULL), with the port if that has none. */
void kelp__rpc_address_advertise(char dial[KELP_RPC_ADDRESS_MAX + 1], const char *advertise,
                                 uint16_t port);
/* "127.0.0.1:1" to "ipv4:127.0.0.1:1", so that no resolver and none of its timers is involved.
 * Owned; NULL without memory. */
char *kelp__rpc_address_target(const char *address);

bool kelp__rpc_address_is_local(const char *address); /* "unix:/PATH" */

/* ---- TLS (rpc_tls.c) ---- */

/* NULL: out of memory. secure false, credentials NULL: without TLS. */
grpc_server_credentials *kelp__rpc_server_credentials(struct kelp_rpc_loop *loop, bool secure);
grpc_channel_credentials *kelp__rpc_channel_credentials(struct kelp_credentials *credentials,
                                                        enum kelp_role server);
void kelp__rpc_fetches_free(struct kelp_rpc_loop *loop);
/* Who calls, by the certificate of the handshake. */
struct kelp__rpc_caller {
    bool has_name;
    struct kelp_spiffe name;
    int64_t until_s; /* when the certificate ends; 0: it cannot be read */
};
void kelp__rpc_caller_read(grpc_call *call, struct kelp__rpc_caller *ret_caller);
/* May they call the method? Logs the refusal. Errors: KELP_ERR_DENIED; KELP_ERR_UNREACHABLE: the
 * certificate has ended since the handshake, and another one would do. */
kelp_status kelp__rpc_judge(const struct kelp_spiffe *own, const struct kelp__rpc_caller *caller,
                            const struct kelp_rpc_method *method, const char *address,
                            struct kelp_error *reterr) KELP_MUST_USE;
/* A stream ends, since its caller's certificate has; no more than a line a second. */
void kelp__rpc_log_expired(const char *address);
/* A handshake that failed, for the log; no more than a line a second. */
void kelp__rpc_log_handshake(const char *why);

/* ---- messages ---- */

struct kelp_rpc_message {
    atomic_uint refs;
    size_t borrowed; /* bytes that are not ours */
    grpc_slice_buffer slices;
    struct kelp__rpc_lent *lent; /* newest first; freed with their slices */
};

/* Wait until all borrowed memory of the process was given back. Returns how many segments are not
 * after timeout_ms. One caller at a time. */
size_t kelp__rpc_borrowed_await(uint32_t timeout_ms);

/* The area in which a segment lies; NULL: in none. */
struct kelp_shm_area *kelp__rpc_message_area(const struct kelp_rpc_message *message, size_t index);
/* Somebody may read what was lent for ever. Any thread with a reference. */
void kelp__rpc_message_unread(struct kelp_rpc_message *message);

/* Memory that it takes while it waits to be sent; what is borrowed is there anyway. */
size_t kelp__rpc_message_weight(const struct kelp_rpc_message *message);

/* A new byte buffer that shares the message's slices. */
grpc_byte_buffer *kelp__rpc_message_to_buffer(const struct kelp_rpc_message *message);
/* Takes the slices out of buffer and destroys it. NULL: out of memory, or a compressed message
 * (which no client of ours sends, and which we do not advertise). */
struct kelp_rpc_message *kelp__rpc_message_from_buffer(grpc_byte_buffer *buffer);

/* ---- status ---- */

grpc_status_code kelp__rpc_status_to_grpc(kelp_status status);
/* trailing: may carry the exact kelp_status in "kelp-status". */
kelp_status kelp__rpc_status_from_grpc(grpc_status_code code, const grpc_metadata_array *trailing);

/* What gRPC says of a connection that could not be made or broke, for people; another text as it
 * is. */
const char *kelp__rpc_cause(const char *text);

/* The trailers of an answer with an error; fini after the batch was started. */
struct kelp__rpc_trailer {
    grpc_metadata metadata;
    grpc_slice details;
    char value[16];
};
void kelp__rpc_trailer_op(struct kelp__rpc_trailer *trailer, kelp_status status, const char *text,
                          grpc_op *ret_op);
void kelp__rpc_trailer_fini(struct kelp__rpc_trailer *trailer);

/* ---- arguments ---- */

#define KELP__RPC_ARGS_MAX 32
struct kelp__rpc_args {
    grpc_arg list[KELP__RPC_ARGS_MAX];
    size_t count;
};
/* What both sides set: sizes, keep-alive, and everything that is switched off. */
void kelp__rpc_args_common(struct kelp__rpc_args *args, const struct kelp_rpc_loop *loop,
                           size_t message_bytes_max);
void kelp__rpc_args_add(struct kelp__rpc_args *args, const char *key, int value);
/* Another value of a key that is there. */
void kelp__rpc_args_change(struct kelp__rpc_args *args, const char *key, int value);
/* text stays valid until the arguments were used. */
void kelp__rpc_args_add_text(struct kelp__rpc_args *args, const char *key, const char *text);
void kelp__rpc_args_add_pointer(struct kelp__rpc_args *args, const char *key, void *pointer,
                                const grpc_arg_pointer_vtable *vtable);

/* ---- streams ---- */

/* call is transferred; peer is copied. server: NULL on the client. NULL: out of memory (the call is
 * released then). The stream is born with one hold, so that it cannot end before its creator is
 * ready: kelp__rpc_stream_release(). */
struct kelp_rpc_stream *kelp__rpc_stream_create(struct kelp_rpc_loop *loop, grpc_call *call,
                                                struct kelp_rpc_server *server, const char *peer,
                                                size_t message_bytes_max);
/* On the server, before any callback: what it came on, and whose certificate the peer has, with
 * which the stream ends. */
void kelp__rpc_stream_set_connection(struct kelp_rpc_stream *stream,
                                     const struct kelp__rpc_connection *connection);
void kelp__rpc_stream_set_caller(struct kelp_rpc_stream *stream,
                                 const struct kelp__rpc_caller *caller);
/* On the client, before anything is sent: in whose queue the call is; NULL: in the loop's. */
void kelp__rpc_stream_set_carrier(struct kelp_rpc_stream *stream, struct kelp_rpc_carrier *carrier);
/* On the client, before anything is sent: kelp_rpc_stream_options.hello. */
void kelp__rpc_stream_expect_answer(struct kelp_rpc_stream *stream);
/* Send the initial metadata and watch for the end: sending may begin. */
void kelp__rpc_stream_begin(struct kelp_rpc_stream *stream);
/* Start to read; callbacks may run from here on. first_message_ms 0: no deadline. */
void kelp__rpc_stream_read(struct kelp_rpc_stream *stream,
                           const struct kelp_rpc_stream_events *events, void *user,
                           uint32_t first_message_ms);
void kelp__rpc_stream_release(struct kelp_rpc_stream *stream);

/* The method of that path for a stream through shared memory, and the owner's user data; as for
 * calls. */
const struct kelp_rpc_stream_events *kelp__rpc_server_welcome(struct kelp_rpc_server *server,
                                                              const char *path,
                                                              struct kelp_rpc_stream *stream,
                                                              void **ret_user);
/* What its streams share. */
struct kelp__rpc_queues *kelp__rpc_server_queues(struct kelp_rpc_server *server);
/* A stream of the server came or is gone. */
void kelp__rpc_server_hold(struct kelp_rpc_server *server);
void kelp__rpc_server_unhold(struct kelp_rpc_server *server);

#endif
