/*
 * Remote calls over gRPC C core: bidirectional streams and unary calls, server and client.
 *
 * Everything that happens is reported by callbacks, and callbacks run only inside
 * kelp_rpc_loop_run(): whoever calls it owns the thread. A program with one loop and one thread
 * needs no locks. A loop may be run by several threads at once; then callbacks of *different*
 * streams run in parallel, those of one stream never do.
 *
 * Liveness: gRPC's arguments (keep-alive, frame sizes, no proxy, no retries) are set here and
 * nowhere else. A unary call has a deadline; a stream has one until its first message arrives, and
 * keep-alive plus the owner's heartbeats after that. Connections live only while the loop is run: a
 * program that does not run it for KELP_RPC_KEEPALIVE_TIMEOUT_MS loses them.
 *
 * Foreign errors stop here: grpc_status_code and grpc_call_error become kelp_status.
 */
#ifndef KELP_COMMON_RPC_RPC_H
#define KELP_COMMON_RPC_RPC_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/rpc/spin.h"
#include "common/tls/credentials.h"

struct kelp_shm_area;

/* ---- messages ---- */

/* Bytes of one message as a list of borrowed segments. Reference-counted, any thread. */
struct kelp_rpc_message;

struct kelp_rpc_segment {
    const uint8_t *bytes;
    size_t length;
};

/* Called exactly once, when gRPC no longer reads the memory of an added segment: soon after it was
 * sent; when the peer stopped reading, once keep-alive has ended the connection, which may be as
 * late as in kelp_rpc_global_fini(). Any thread; may be inside any kelp_rpc call; must not call
 * back into the stream. */
typedef void (*kelp_rpc_release)(void *user);

struct kelp_rpc_message *kelp_rpc_message_create(void); /* NULL: out of memory */
/* Copy bytes to the end. */
kelp_status kelp_rpc_message_copy(struct kelp_rpc_message *message, const void *bytes,
                                  size_t length) KELP_MUST_USE;
/* Add length bytes for the caller to fill in at once (the pointer moves with the next addition).
 * NULL: KELP_RPC_MESSAGE_BYTES_MAX would be exceeded. */
void *kelp_rpc_message_extend(struct kelp_rpc_message *message, size_t length);
/* Add bytes without copying; they stay valid and unchanged until release(user). On an error release
 * is not called. Errors: KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_rpc_message_borrow(struct kelp_rpc_message *message, const void *bytes,
                                    size_t length, kelp_rpc_release release,
                                    void *user) KELP_MUST_USE;

/* Memory that is added without copying, and is told of its readers: through shared memory others
 * read it where it is, and may go on when their stream has ended. */
struct kelp_rpc_loan {
    const void *bytes;
    size_t length;
    struct kelp_shm_area *area; /* in which the bytes lie, borrowed; NULL: in none, so that shared
                                   memory gets a copy */
    /* As a kelp_rpc_release. read: nobody reads it any more. False: somebody may do so for ever,
     * and it must never be written again. */
    void (*returned)(void *user, bool read);
    void *user;
};
/* As kelp_rpc_message_borrow(). Errors: KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_rpc_message_lend(struct kelp_rpc_message *message,
                                  const struct kelp_rpc_loan *loan) KELP_MUST_USE;
void kelp_rpc_message_ref(struct kelp_rpc_message *message);
void kelp_rpc_message_unref(struct kelp_rpc_message *message);
size_t kelp_rpc_message_length(const struct kelp_rpc_message *message);
size_t kelp_rpc_message_segment_count(const struct kelp_rpc_message *message);
struct kelp_rpc_segment kelp_rpc_message_segment(const struct kelp_rpc_message *message,
                                                 size_t index);

/* ---- loop ---- */

struct kelp_rpc_loop;
kelp_status kelp_rpc_loop_create(struct kelp_rpc_loop **ret_loop,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* All servers, channels, streams and timers of the loop must be closed; drains what is left. NULL
 * does nothing. */
void kelp_rpc_loop_destroy(struct kelp_rpc_loop *loop);

/* Milliseconds between pings on a silent connection, and until an unanswered one breaks it, for
 * servers and channels opened from now on. A program that always runs its loop may shorten the
 * defaults (KELP_RPC_KEEPALIVE_MS, _TIMEOUT_MS), which leave time to compute. */
void kelp_rpc_loop_keepalive(struct kelp_rpc_loop *loop, uint32_t time_ms, uint32_t timeout_ms);

/* What is opened from now on at a port uses mutual TLS: servers ask each client for a certificate,
 * and channels show these and ask the server for its own. Unix sockets need none: whoever can open
 * them is the same user. Borrowed until the loop is destroyed; NULL: none. */
void kelp_rpc_loop_credentials(struct kelp_rpc_loop *loop, struct kelp_credentials *credentials);

/* Servers and clients opened from now on, of ports, meet in that folder for shared memory: a server
 * of 10.0.0.5:4242 at FOLDER/10.0.0.5:4242.shm. Each may see the folder at another path. Borrowed
 * until the loop is destroyed; NULL, the beginning: they do not meet. */
void kelp_rpc_loop_shm_folder(struct kelp_rpc_loop *loop, const char *folder);

/* Handle at most one event; wait for it up to timeout_ms (0: only look; -1: until
 * kelp_rpc_loop_wake or an event). Returns true if one was handled. */
bool kelp_rpc_loop_run(struct kelp_rpc_loop *loop, int timeout_ms);
/* Look before waiting, as long as that pays (spin.h): for a program that expects an event right
 * now. The spin is the thread's own. */
bool kelp_rpc_loop_run_spin(struct kelp_rpc_loop *loop, struct kelp_spin *spin, int timeout_ms);
/* Make one waiting (or the next) kelp_rpc_loop_run return. Any thread, not a signal handler. */
void kelp_rpc_loop_wake(struct kelp_rpc_loop *loop);
/* Run function(user) inside the loop soon. Any thread. */
kelp_status kelp_rpc_loop_post(struct kelp_rpc_loop *loop, void (*function)(void *user),
                               void *user) KELP_MUST_USE;

/* A thread that carries channels (kelp_rpc_channel_open_carried()) until the loop is destroyed. No
 * other thread runs the loop meanwhile. Errors: KELP_ERR_NO_MEMORY. */
struct kelp_rpc_carrier;
kelp_status kelp_rpc_carrier_start(struct kelp_rpc_loop *loop,
                                   struct kelp_rpc_carrier **ret_carrier,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* A repeating timer; the callback runs in the loop. stop: the callback does not run any more after
 * it returned, when called from the loop's thread. */
struct kelp_rpc_timer;
kelp_status kelp_rpc_timer_start(struct kelp_rpc_loop *loop, uint32_t period_ms,
                                 void (*function)(void *user), void *user,
                                 struct kelp_rpc_timer **ret_timer) KELP_MUST_USE;
/* The same at the multiples of the period on this host's clock, so that timers of all its processes
 * are due together: whoever hears them wakes up once. */
kelp_status kelp_rpc_timer_start_together(struct kelp_rpc_loop *loop, uint32_t period_ms,
                                          void (*function)(void *user), void *user,
                                          struct kelp_rpc_timer **ret_timer) KELP_MUST_USE;
void kelp_rpc_timer_stop(struct kelp_rpc_timer *timer);

/* ---- streams ---- */

struct kelp_rpc_stream;

struct kelp_rpc_stream_events {
    /* A message arrived; borrowed until the callback returns, kelp_rpc_message_ref() to keep it. */
    void (*message)(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user);
    /* The last callback of the stream, exactly once: status is KELP_OK when the peer ended it in
     * order. The stream is freed after it returned. */
    void (*closed)(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                   void *user);
};

/* Send; the message is transferred even on an error. Messages leave in order; at most
 * KELP_RPC_SEND_QUEUE_MAX wait, of message_bytes_max each, and on a server as many bytes as
 * kelp_rpc_server_queue_max() says (more: KELP_ERR_LIMIT). After close or a break: KELP_ERR_CLOSED.
 * Any thread. */
kelp_status kelp_rpc_stream_send(struct kelp_rpc_stream *stream,
                                 struct kelp_rpc_message *message) KELP_MUST_USE;
/* Client: half-close, then cancel. Server: finish with status and text. What is queued is sent
 * first unless status is an error on the client. closed() follows. Any thread; twice is harmless.
 */
void kelp_rpc_stream_close(struct kelp_rpc_stream *stream, kelp_status status, const char *text);
/* Messages queued and not yet handed to gRPC. */
size_t kelp_rpc_stream_queued(struct kelp_rpc_stream *stream);
/* "ipv4:127.0.0.1:51234"; borrowed for the life of the stream. */
const char *kelp_rpc_stream_peer(struct kelp_rpc_stream *stream);
/* Of a stream that a server took: the name in the peer's certificate. NULL: the connection has
 * none, which is a unix socket or a server without credentials. Borrowed. */
const struct kelp_spiffe *kelp_rpc_stream_name(struct kelp_rpc_stream *stream);
/* On a server that expects a hello: the peer's was accepted, so its connection is no stranger's any
 * more. */
void kelp_rpc_stream_trust(struct kelp_rpc_stream *stream);
/* May that peer call itself id? Errors: KELP_ERR_DENIED. */
kelp_status kelp_rpc_stream_check_id(struct kelp_rpc_stream *stream, const char *id,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/* ---- server ---- */

#define KELP_RPC_ADDRESS_MAX 255 /* bytes of "HOST:PORT" or "unix:/PATH" */

struct kelp_rpc_server;

/* A unary request waiting for its answer: answer exactly once, from any thread. */
struct kelp_rpc_request;
void kelp_rpc_request_answer(struct kelp_rpc_request *request,
                             struct kelp_rpc_message *answer /* transferred */);
void kelp_rpc_request_fail(struct kelp_rpc_request *request, kelp_status status, const char *text);
/* Who asks: "ipv4:127.0.0.1:51234", cut to size. Before it is answered. */
void kelp_rpc_request_peer(const struct kelp_rpc_request *request, char *text, size_t text_bytes);

struct kelp_rpc_method {
    const char *path; /* "/kelp.v1.ParameterServer/Exchange" */
    /* KELP_ROLE_BIT()s of those who may call it. On a connection with TLS the server refuses all
     * others, and those of another job, with KELP_ERR_DENIED before the method sees them. */
    unsigned roles;
    /* A stream method: accept decides the events and the user data of a new stream; returning NULL
     * refuses it. */
    const struct kelp_rpc_stream_events *(*accept)(struct kelp_rpc_stream *stream,
                                                   void *server_user, void **ret_user);
    bool shared; /* a stream method: may come through shared memory (options.shared) */
    /* A unary method; message is borrowed until it returns. */
    void (*unary)(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                  void *server_user);
};

struct kelp_rpc_server_options {
    /* "127.0.0.1:0" (port 0 is a free one) or "unix:/PATH": a socket in the file system, which
     * must be where nobody else can put one. What a dead process left there is replaced. */
    const char *address;
    /* What clients dial instead, "203.0.113.7" or with a port, when it is known elsewhere by
     * another address; a numeric one. NULL: as it listens. */
    const char *advertise;
    size_t message_bytes_max;
    /* The first message of each stream is a hello: without one in KELP_RPC_HELLO_MS it is ended. At
     * a port, connections without an accepted one (kelp_rpc_stream_trust()) may send few bytes:
     * KELP_RPC_STRANGER_BYTES, and what all of them share. */
    bool hello;
    /* Bytes that gRPC may buffer for all connections; 0: KELP_RPC_MEMORY_PART of the machine's.
     * When they are used up, gRPC ends streams and takes no connection until there is room. */
    size_t memory_max;
    /* Processes of this host and user may reach methods that are so marked through shared memory as
     * well, when the address is a socket, or one beside it is in the folder of
     * kelp_rpc_loop_shm_folder(). Each side asks the system for the other's user. */
    bool shared;
    /* Thousands of connections with few bytes on each: it reads in small pieces, pings rarely, and
     * measures no bandwidth (KELP_RPC_SPARING_READ_BYTES, KELP_RPC_KEEPALIVE_MANY_MS). */
    bool sparing;
    bool must_share; /* where that is not to be had, there is no server: KELP_ERR_UNSUPPORTED */
    const struct kelp_rpc_method *methods; /* borrowed for the life of the server */
    size_t method_count;
    /* A call was refused before any method saw it: there is none of its path, or the caller may not
     * call it. In the loop, of several calls in parallel. NULL: nobody counts them. */
    void (*refused)(void *server_user);
    void *user;
};

/* Errors: KELP_ERR_EXISTS (address in use; the text names it), KELP_ERR_UNREACHABLE (this host does
 * not have it), KELP_ERR_INVALID, KELP_ERR_NO_MEMORY. */
kelp_status kelp_rpc_server_open(struct kelp_rpc_loop *loop,
                                 const struct kelp_rpc_server_options *options,
                                 struct kelp_rpc_server **ret_server,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* The port that was bound; 1 for a unix socket. */
uint16_t kelp_rpc_server_port(const struct kelp_rpc_server *server);
/* May processes of this host come through shared memory? */
bool kelp_rpc_server_shares(const struct kelp_rpc_server *server);
/* What clients dial: "127.0.0.1:41234", "unix:/PATH". A host is given as numbers; one that stands
 * for every interface (0.0.0.0) as the first that is up and not loopback. Borrowed. */
const char *kelp_rpc_server_address(const struct kelp_rpc_server *server);
/* Bytes of memory that may wait for readers, in all streams of the server together; what messages
 * borrow does not count. Beyond it a stream that has more than its part takes no message, which is
 * all of it when only one waits. 0, the beginning: no bound. Any thread. */
void kelp_rpc_server_queue_max(struct kelp_rpc_server *server, size_t bytes);
/* Refuse new calls, cancel the running ones, wait (running the loop) until all callbacks ended;
 * frees the server. Not from a callback. A request that has not been answered yet must still be,
 * before the loop is destroyed. NULL does nothing. */
void kelp_rpc_server_close(struct kelp_rpc_server *server);

/* ---- client ---- */

/* A connection to one address. It reconnects by itself, and at once when a stream or call is
 * opened (at most every KELP_RPC_RECONNECT_MS); streams do not: their owner opens another after
 * closed(), and tries again when that one finds nobody. */
struct kelp_rpc_channel;
/* address: numbers with a port, or a socket (kelp_address_is_target()), so that no resolver has to
 * be waited for. Errors: KELP_ERR_INVALID (another one), KELP_ERR_NO_MEMORY. server: with TLS, the
 * role that its certificate must have, in the job of our own; whoever else answers at that address
 * counts as unreachable, and the log says why. */
kelp_status kelp_rpc_channel_open(struct kelp_rpc_loop *loop, const char *address,
                                  enum kelp_role server, size_t message_bytes_max,
                                  struct kelp_rpc_channel **ret_channel,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* The same, and a thread of its own moves the bytes of its streams (and of other channels that it
 * carries) from and to their sockets, with TLS what that costs. Callbacks run in the loop as ever.
 * For large messages: each costs the loop a wake-up more. */
kelp_status kelp_rpc_channel_open_carried(struct kelp_rpc_carrier *carrier, const char *address,
                                          enum kelp_role server, size_t message_bytes_max,
                                          struct kelp_rpc_channel **ret_channel,
                                          struct kelp_error *reterr) KELP_MUST_USE;
/* All its streams must have reported closed() (from inside the last closed() is fine). NULL does
 * nothing. */
void kelp_rpc_channel_close(struct kelp_rpc_channel *channel);

/* Open a stream. If no message arrives within first_message_ms, it closes with KELP_ERR_TIMEOUT; a
 * peer that cannot be reached gives KELP_ERR_UNREACHABLE. Sending may begin at once. */
struct kelp_rpc_stream_options {
    const char *path; /* borrowed until the call returns */
    uint32_t first_message_ms;
    const struct kelp_rpc_stream_events *events;
    void *user;
    /* The first message is a hello that the server answers: the next wait for its answer here,
     * since a server takes few bytes of those that it does not know. */
    bool hello;
};
kelp_status kelp_rpc_stream_open(struct kelp_rpc_channel *channel,
                                 const struct kelp_rpc_stream_options *options,
                                 struct kelp_rpc_stream **ret_stream,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* The same through shared memory: the channel's address is a socket of this host, or has one in
 * the folder of kelp_rpc_loop_shm_folder(). What it is made of, nobody else sees; but a peer that
 * is stopped is only noticed by its owner's heartbeats. No other thread runs the loop, unless a
 * server of it is reached so. Errors: KELP_ERR_UNREACHABLE (it is not offered there),
 * KELP_ERR_BUSY, KELP_ERR_DENIED (another user's), KELP_ERR_NO_MEMORY. */
kelp_status kelp_rpc_stream_open_shared(struct kelp_rpc_channel *channel,
                                        const struct kelp_rpc_stream_options *options,
                                        struct kelp_rpc_stream **ret_stream,
                                        struct kelp_error *reterr) KELP_MUST_USE;

/* One unary call, blocking: runs on a private completion queue, so it needs no running loop.
 * *ret_answer is owned (unref). Errors: KELP_ERR_TIMEOUT, KELP_ERR_UNREACHABLE, or what the server
 * said. */
kelp_status kelp_rpc_call(struct kelp_rpc_channel *channel, const char *path,
                          struct kelp_rpc_message *request /* transferred */, uint32_t deadline_ms,
                          struct kelp_rpc_message **ret_answer,
                          struct kelp_error *reterr) KELP_MUST_USE;

/* grpc_init and the allocator settings of FACTS; once, in main(), before threads start. */
void kelp_rpc_global_init(void);
/* Before it and before any thread (it sets an environment variable), in a program with more than
 * one loop, each run by a thread of its own: gRPC otherwise lets one thread wait for all sockets of
 * the process, which hands what is another loop's to that one's thread, a wake-up more for each
 * message. For programs with tens of connections, since each wait then looks at all of them. */
void kelp_rpc_global_several_loops(void);
/* When all is closed. All borrowed memory has been given back when it returns. */
void kelp_rpc_global_fini(void);

#endif
