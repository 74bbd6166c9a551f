/*
 * Remote calls over gRPC C core: bidirectional streams and unary calls, server and client.
 *
 * Events are reported by callbacks, which run only inside kelp_rpc_loop_run(), on the caller's
 * thread. A program with one loop and one thread needs no locks. Several threads may run a loop at
 * once; then callbacks of *different* streams run in parallel, those of one stream never do.
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
 * sent, or, if the peer stopped reading, once keep-alive has ended the connection, possibly as late
 * as in kelp_rpc_global_fini(). Called on any thread, possibly inside any kelp_rpc call; must not
 * call back into the stream. */
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

/* Memory that is added without copying, with a report about its readers: through shared memory
 * peers read it in place, and may continue after their stream has ended. */
struct kelp_rpc_loan {
    const void *bytes;
    size_t length;
    struct kelp_shm_area *area; /* in which the bytes lie, borrowed; NULL: in none, so that shared
                                   memory gets a copy */
    /* As kelp_rpc_release. read: nobody reads it any more. False: somebody may read it forever, and
     * it must never be written again. */
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

/* Servers and channels opened from now on at a port use mutual TLS: both sides show a certificate.
 * Unix sockets need none, since only the same user can open them. Borrowed until the loop is
 * destroyed; NULL: none. */
void kelp_rpc_loop_credentials(struct kelp_rpc_loop *loop, struct kelp_credentials *credentials);

/* Folder of the shared-memory sockets of ports, for servers and clients opened from now on: a
 * server at 10.0.0.5:4242 has FOLDER/10.0.0.5:4242.shm. Each process may see the folder at another
 * path. Borrowed until the loop is destroyed; NULL, the default: none. */
void kelp_rpc_loop_shm_folder(struct kelp_rpc_loop *loop, const char *folder);

/* Handle at most one event; wait for it up to timeout_ms (0: do not wait; -1: until
 * kelp_rpc_loop_wake() or an event). Returns true if one was handled. */
bool kelp_rpc_loop_run(struct kelp_rpc_loop *loop, int timeout_ms);
/* Poll before waiting, as long as that pays (spin.h): for a program that expects an event right
 * now. The spin belongs to the calling thread. */
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

/* A repeating timer; the callback runs in the loop. After kelp_rpc_timer_stop() returned on the
 * loop's thread, the callback does not run any more. */
struct kelp_rpc_timer;
kelp_status kelp_rpc_timer_start(struct kelp_rpc_loop *loop, uint32_t period_ms,
                                 void (*function)(void *user), void *user,
                                 struct kelp_rpc_timer **ret_timer) KELP_MUST_USE;
/* The same at multiples of the period on this host's clock, so that timers of all its processes are
 * due together, and the receiver of their messages wakes up once. */
kelp_status kelp_rpc_timer_start_together(struct kelp_rpc_loop *loop, uint32_t period_ms,
                                          void (*function)(void *user), void *user,
                                          struct kelp_rpc_timer **ret_timer) KELP_MUST_USE;
void kelp_rpc_timer_stop(struct kelp_rpc_timer *timer);

/* ---- streams ---- */

struct kelp_rpc_stream;

struct kelp_rpc_stream_events {
    /* A message arrived; borrowed until the callback returns, kelp_rpc_message_ref() to keep it. */
    void (*message)(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user);
    /* The last callback of the stream, exactly once: status is KELP_OK if the peer ended it
     * normally. The stream is freed after it returned. */
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
/* Of a server's stream: the name in the peer's certificate. NULL: none (a unix socket, or a server
 * without credentials). Borrowed. */
const struct kelp_spiffe *kelp_rpc_stream_name(struct kelp_rpc_stream *stream);
/* On a server that expects a hello: the peer's hello was accepted, which lifts the limits of
 * unidentified connections. */
void kelp_rpc_stream_trust(struct kelp_rpc_stream *stream);
/* May the peer use this id? Errors: KELP_ERR_DENIED. */
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
/* The caller's address, "ipv4:127.0.0.1:51234", cut to size. Call before answering. */
void kelp_rpc_request_peer(const struct kelp_rpc_request *request, char *text, size_t text_bytes);

struct kelp_rpc_method {
    const char *path; /* "/kelp.v1.ParameterServer/Exchange" */
    /* KELP_ROLE_BIT()s of the roles that may call it. On a connection with TLS the server refuses
     * all other roles, and other jobs, with KELP_ERR_DENIED before the method sees the call. */
    unsigned roles;
    /* A stream method: accept() returns the events and the user data of a new stream, or NULL to
     * refuse it. */
    const struct kelp_rpc_stream_events *(*accept)(struct kelp_rpc_stream *stream,
                                                   void *server_user, void **ret_user);
    bool shared; /* a stream method: also offered through shared memory (options.shared) */
    /* A unary method; message is borrowed until it returns. */
    void (*unary)(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                  void *server_user);
};

struct kelp_rpc_server_options {
    /* "127.0.0.1:0" (port 0: a free one) or "unix:/PATH", which must be in a folder where nobody
     * else can create a socket. A socket left by a dead process is replaced. */
    const char *address;
    /* The address that clients dial, if it differs: numeric, "203.0.113.7", or with a port. NULL:
     * as it listens. */
    const char *advertise;
    size_t message_bytes_max;
    /* The first message of each stream is a hello; without one within KELP_RPC_HELLO_MS the stream
     * is ended. At a port, connections without an accepted hello (kelp_rpc_stream_trust()) may send
     * only KELP_RPC_STRANGER_BYTES, and what all of them share. */
    bool hello;
    /* Bytes that gRPC may buffer for all connections; 0: KELP_RPC_MEMORY_PART of the machine's.
     * When they are used up, gRPC ends streams and accepts no connection until there is room. */
    size_t memory_max;
    /* Also offer methods marked `shared` through shared memory to processes of this host and user,
     * if the address is a unix socket, or kelp_rpc_loop_shm_folder() is set. Each side asks the
     * kernel for the other's user. */
    bool shared;
    /* Thousands of connections with few bytes on each: it reads in small pieces, pings rarely, and
     * measures no bandwidth (KELP_RPC_SPARING_READ_BYTES, KELP_RPC_KEEPALIVE_MANY_MS). */
    bool sparing;
    bool must_share; /* fail with KELP_ERR_UNSUPPORTED if shared memory is not available */
    const struct kelp_rpc_method *methods; /* borrowed for the life of the server */
    size_t method_count;
    /* A call was refused before a method saw it: unknown path, or the caller may not call it. Runs
     * in the loop, possibly for several calls in parallel. NULL: not counted. */
    void (*refused)(void *server_user);
    void *user;
};

/* *ret_server is owned (kelp_rpc_server_close()). Errors: KELP_ERR_EXISTS (address in use; the text
 * names it), KELP_ERR_UNREACHABLE (this host does not have it), KELP_ERR_UNSUPPORTED (must_share),
 * KELP_ERR_INVALID, KELP_ERR_NO_MEMORY. */
kelp_status kelp_rpc_server_open(struct kelp_rpc_loop *loop,
                                 const struct kelp_rpc_server_options *options,
                                 struct kelp_rpc_server **ret_server,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* The port that was bound; 1 for a unix socket. */
uint16_t kelp_rpc_server_port(const struct kelp_rpc_server *server);
/* Is shared memory offered to processes of this host? */
bool kelp_rpc_server_shares(const struct kelp_rpc_server *server);
/* What clients dial: "127.0.0.1:41234", "unix:/PATH". A host is given as numbers; one that stands
 * for every interface (0.0.0.0) as the first that is up and not loopback. Borrowed. */
const char *kelp_rpc_server_address(const struct kelp_rpc_server *server);
/* Bytes that may be queued for readers, in all streams of the server together; memory that messages
 * borrow does not count. Beyond it a stream that has more than its fair share accepts no message; a
 * single waiting stream may have all. 0, the default: no limit. Any thread. */
void kelp_rpc_server_queue_max(struct kelp_rpc_server *server, size_t bytes);
/* Refuse new calls, cancel the running ones, wait (running the loop) until all callbacks ended;
 * frees the server. Not from a callback. A request that has not been answered yet must still be,
 * before the loop is destroyed. NULL does nothing. */
void kelp_rpc_server_close(struct kelp_rpc_server *server);

/* ---- client ---- */

/* A connection to one address. It reconnects by itself, and at once when a stream or call is opened
 * (at most every KELP_RPC_RECONNECT_MS). Streams do not: their owner opens another after closed(),
 * and retries if that one fails. */
struct kelp_rpc_channel;
/* address: numeric with a port, or a socket (kelp_address_is_target()), so that no resolver is
 * needed. server: with TLS, the role that its certificate must have, in our own job; any other peer
 * counts as unreachable, and the log says why. *ret_channel is owned (kelp_rpc_channel_close()).
 * Errors: KELP_ERR_INVALID (another form of address), KELP_ERR_NO_MEMORY. */
kelp_status kelp_rpc_channel_open(struct kelp_rpc_loop *loop, const char *address,
                                  enum kelp_role server, size_t message_bytes_max,
                                  struct kelp_rpc_channel **ret_channel,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* The same, but the carrier's thread moves (and with TLS encrypts) the bytes of its channels'
 * streams. Callbacks still run in the loop. For large messages: each costs the loop another
 * wake-up.
 */
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
    /* The first message is a hello that the server answers. Later messages are held back until
     * then, since a server accepts only few bytes from unidentified connections. */
    bool hello;
};
kelp_status kelp_rpc_stream_open(struct kelp_rpc_channel *channel,
                                 const struct kelp_rpc_stream_options *options,
                                 struct kelp_rpc_stream **ret_stream,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* The same through shared memory: the channel's address is a socket of this host, or has one in the
 * folder of kelp_rpc_loop_shm_folder(). The stream behaves like any other, except that only the
 * owner's heartbeats notice a stopped peer. No other thread may run the loop, unless a server of
 * the loop offers shared memory. Errors: KELP_ERR_UNREACHABLE (it is not offered there),
 * KELP_ERR_BUSY, KELP_ERR_DENIED (another user's), KELP_ERR_NO_MEMORY. */
kelp_status kelp_rpc_stream_open_shared(struct kelp_rpc_channel *channel,
                                        const struct kelp_rpc_stream_options *options,
                                        struct kelp_rpc_stream **ret_stream,
                                        struct kelp_error *reterr) KELP_MUST_USE;

/* One blocking unary call on a private completion queue; needs no running loop. *ret_answer is
 * owned (kelp_rpc_message_unref()). Errors: KELP_ERR_TIMEOUT, KELP_ERR_UNREACHABLE, or the
 * server's. */
kelp_status kelp_rpc_call(struct kelp_rpc_channel *channel, const char *path,
                          struct kelp_rpc_message *request /* transferred */, uint32_t deadline_ms,
                          struct kelp_rpc_message **ret_answer,
                          struct kelp_error *reterr) KELP_MUST_USE;

/* grpc_init() and malloc's settings; once, in main(), before threads start. */
void kelp_rpc_global_init(void);
/* Call before kelp_rpc_global_init() and before any thread (it sets an environment variable), in a
 * program with several loops, each run by its own thread. Otherwise gRPC lets one thread wait for
 * all sockets of the process and hand events to the others, another wake-up per message. For
 * programs with tens of connections, since each wait then polls all of them. */
void kelp_rpc_global_several_loops(void);
/* Call once everything is closed. All borrowed memory has been released when it returns. */
void kelp_rpc_global_fini(void);

#endif
