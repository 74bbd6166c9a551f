/*
 * The server: hands each new call to the method with its path, as a stream or as a unary request.
 *
 * All methods go through gRPC's unregistered calls: the path is compared once per call, and a path
 * that we do not know is answered too.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log/log.h"
#include "common/rpc/rpc_internal.h"
#include "common/rpc/rpc_queue_internal.h"
#include "common/rpc/rpc_shared_internal.h"
#include "common/rpc/rpc_sockets.h"

/* One call that we asked gRPC for. */
struct acceptor {
    struct kelp__rpc_op op;
    struct kelp_rpc_server *server;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
};

struct kelp_rpc_server {
    struct kelp_rpc_loop *loop;
    grpc_server *server;
    struct kelp_rpc_server_options options; /* its address is not used after open */
    uint16_t port;
    bool secure;                            /* callers have certificates */
    char address[KELP_RPC_ADDRESS_MAX + 1]; /* as clients dial it */
    struct acceptor acceptors[KELP_RPC_ACCEPTS];
    struct kelp__rpc_op shutdown_op;
    atomic_bool closing;
    /* Counts acceptors, streams, refusals, requests not yet given to their method, and one for the
     * server itself until its shutdown is complete. */
    atomic_uint holds;
    struct kelp__rpc_queues queues;
    struct kelp__rpc_shared_listener *listener; /* NULL: not through shared memory */
};

void kelp_rpc_server_queue_max(struct kelp_rpc_server *server, size_t bytes)
{
    atomic_store(&server->queues.bytes_max, bytes);
}

struct kelp__rpc_queues *kelp__rpc_server_queues(struct kelp_rpc_server *server)
{
    return &server->queues;
}

void kelp__rpc_server_hold(struct kelp_rpc_server *server)
{
    atomic_fetch_add(&server->holds, 1);
}

void kelp__rpc_server_unhold(struct kelp_rpc_server *server)
{
    /* The thread that closes the server may be another one, and frees the server when it sees 0. */
    struct kelp_rpc_loop *loop = server->loop;
    bool closing = atomic_load(&server->closing);
    unsigned before = atomic_fetch_sub(&server->holds, 1);

    assert(before > 0);
    if (before == 1 && closing) {
        kelp_rpc_loop_wake(loop);
    }
}

/* ---- unary requests ---- */

struct kelp_rpc_request {
    struct kelp_rpc_server *server; /* held until the method has the request */
    const struct kelp_rpc_method *method;
    grpc_call *call;
    atomic_uint holds; /* until it was answered, and the timer's */
    struct kelp_rpc_timer read_timer;
    struct kelp__rpc_op read_op;
    struct kelp__rpc_op answer_op;
    grpc_byte_buffer *received;
    grpc_byte_buffer *sent;
    struct kelp__rpc_trailer trailer;
};

static void request_unhold(struct kelp_rpc_request *request)
{
    if (atomic_fetch_sub(&request->holds, 1) == 1) {
        grpc_call_unref(request->call);
        free(request);
    }
}

static void request_answered(struct kelp__rpc_op *op, bool success)
{
    struct kelp_rpc_request *request = KELP_CONTAINER_OF(op, struct kelp_rpc_request, answer_op);

    (void)success; /* whoever asked is gone: nobody to tell */
    if (request->sent) {
        grpc_byte_buffer_destroy(request->sent);
    }
    kelp__rpc_trailer_fini(&request->trailer);
    request_unhold(request);
}

static void answer(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                   kelp_status status, const char *text)
{
    grpc_op ops[3] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_SEND_MESSAGE}};
    size_t count = 1;

    if (message) {
        request->sent = kelp__rpc_message_to_buffer(message);
        kelp_rpc_message_unref(message);
        ops[count++].data.send_message.send_message = request->sent;
    }
    kelp__rpc_trailer_op(&request->trailer, status, text, &ops[count++]);
    request->answer_op.done = request_answered;
    kelp__rpc_start(request->call, ops, count, &request->answer_op);
}

void kelp_rpc_request_answer(struct kelp_rpc_request *request, struct kelp_rpc_message *message)
{
    answer(request, message, KELP_OK, NULL);
}

void kelp_rpc_request_peer(const struct kelp_rpc_request *request, char *text, size_t text_bytes)
{
    char *peer = grpc_call_get_peer(request->call);
    (void)snprintf(text, text_bytes, "%s", peer); /* may be cut */
    gpr_free(peer);
}

void kelp_rpc_request_fail(struct kelp_rpc_request *request, kelp_status status, const char *text)
{
    answer(request, NULL, status == KELP_OK ? KELP_ERR_INTERNAL : status, text);
}

/* Half a message or none: the read ends without a message. */
static void request_late(void *user)
{
    struct kelp_rpc_request *request = user;

    (void)grpc_call_cancel(request->call, NULL);
    request_unhold(request);
}

static void request_read(struct kelp__rpc_op *op, bool success)
{
    struct kelp_rpc_request *request = KELP_CONTAINER_OF(op, struct kelp_rpc_request, read_op);
    struct kelp_rpc_server *server = request->server;
    struct kelp_rpc_message *message = NULL;

    if (kelp__rpc_timer_unset(&request->read_timer)) {
        request_unhold(request);
    }
    if (success && request->received) {
        message = kelp__rpc_message_from_buffer(request->received);
    }
    if (message) {
        request->method->unary(request, message, server->options.user);
        kelp_rpc_message_unref(message);
    } else {
        kelp_rpc_request_fail(request, KELP_ERR_FORMAT, "no request message, or a compressed one");
    }
    kelp__rpc_server_unhold(server);
}

/* refusal NULL: none. */
static void request_start(struct kelp_rpc_server *server, const struct kelp_rpc_method *method,
                          grpc_call *call, const struct kelp_error *refusal)
{
    struct kelp_rpc_request *request = calloc(1, sizeof(*request));

    if (!request) {
        (void)grpc_call_cancel(call, NULL);
        grpc_call_unref(call);
        return;
    }
    request->server = server;
    request->method = method;
    request->call = call;
    atomic_init(&request->holds, 1);
    if (refusal) {
        kelp_rpc_request_fail(request, refusal->status, refusal->text);
        return;
    }
    grpc_op read = {.op = GRPC_OP_RECV_MESSAGE};
    read.data.recv_message.recv_message = &request->received;
    request->read_op.done = request_read;
    kelp__rpc_server_hold(server);
    atomic_fetch_add(&request->holds, 1);
    kelp__rpc_timer_set(server->loop, &request->read_timer, KELP_RPC_HELLO_MS, request_late,
                        request);
    kelp__rpc_start(call, &read, 1, &request->read_op);
}

/* ---- accepting ---- */

static void nothing_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                            void *user)
{
    (void)stream;
    (void)message;
    (void)user;
}

static void nothing_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                           void *user)
{
    (void)stream;
    (void)status;
    (void)text;
    (void)user;
}

static const struct kelp_rpc_stream_events refused_events = {.message = nothing_message,
                                                             .closed = nothing_closed};

/* Who calls. */
struct origin {
    char *peer; /* gRPC's */
    struct kelp__rpc_connection connection;
    struct kelp__rpc_caller caller; /* without a name: there is no certificate */
};

static const struct kelp_rpc_stream_events *ask_method(const struct kelp_rpc_server *server,
                                                       const struct kelp_rpc_method *method,
                                                       struct kelp_rpc_stream *stream,
                                                       void **ret_user)
{
    const struct kelp_rpc_stream_events *events =
        method->accept(stream, server->options.user, ret_user);

    if (!events) {
        kelp_rpc_stream_close(stream, KELP_ERR_UNSUPPORTED, "stream refused");
        events = &refused_events;
    }
    return events;
}

static void stream_start(struct kelp_rpc_server *server, const struct kelp_rpc_method *method,
                         grpc_call *call, const struct origin *origin)
{
    /* The peer of a unix socket has no name: gRPC says "unix:". */
    struct kelp_rpc_stream *stream = kelp__rpc_stream_create(
        server->loop, call, server,
        strcmp(origin->peer, "unix:") == 0 ? "a process of this host" : origin->peer,
        server->options.message_bytes_max);
    if (!stream) {
        return;
    }
    kelp__rpc_stream_set_connection(stream, &origin->connection);
    kelp__rpc_stream_set_caller(stream, &origin->caller);
    void *user = NULL;
    kelp__rpc_stream_begin(stream);
    const struct kelp_rpc_stream_events *events = ask_method(server, method, stream, &user);
    kelp__rpc_stream_read(stream, events, user, server->options.hello ? KELP_RPC_HELLO_MS : 0);
    kelp__rpc_stream_release(stream);
}

static void accept_next(struct acceptor *acceptor)
{
    struct kelp_rpc_server *server = acceptor->server;

    acceptor->call = NULL;
    grpc_call_details_init(&acceptor->details);
    grpc_metadata_array_init(&acceptor->metadata);
    atomic_store(&acceptor->op.armed, true);
    grpc_call_error error = grpc_server_request_call(
        server->server, &acceptor->call, &acceptor->details, &acceptor->metadata,
        server->loop->queue, server->loop->queue, &acceptor->op);
    assert(error == GRPC_CALL_OK);
    (void)error;
}

static const struct kelp_rpc_method *find_method(const struct kelp_rpc_server *server,
                                                 const grpc_call_details *details)
{
    for (size_t i = 0; i < server->options.method_count; i++) {
        if (grpc_slice_str_cmp(details->method, server->options.methods[i].path) == 0) {
            return &server->options.methods[i];
        }
    }
    return NULL;
}

const struct kelp_rpc_stream_events *kelp__rpc_server_welcome(struct kelp_rpc_server *server,
                                                              const char *path,
                                                              struct kelp_rpc_stream *stream,
                                                              void **ret_user)
{
    for (size_t i = 0; i < server->options.method_count; i++) {
        const struct kelp_rpc_method *method = &server->options.methods[i];
        if (method->shared && strcmp(method->path, path) == 0) {
            return ask_method(server, method, stream, ret_user);
        }
    }
    kelp_rpc_stream_close(stream, KELP_ERR_UNSUPPORTED, "no such method through shared memory");
    return &refused_events;
}

/* Processes of this host may connect without gRPC; if they cannot, they use gRPC. */
static kelp_status offer_shared(struct kelp_rpc_server *server, struct kelp_error *reterr)
{
    const struct kelp_rpc_server_options *options = &server->options;
    const bool place = kelp__rpc_address_is_local(options->address) || server->loop->shm_folder;
    struct kelp_error error;

    if (!options->must_share && !(options->shared && place)) {
        return KELP_OK;
    }
    if (kelp__rpc_shared_listen(server->loop, server, server->address, options, &server->listener,
                                &error) == KELP_OK) {
        return KELP_OK;
    }
    if (options->must_share) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "shared memory cannot be offered: %s",
                         error.text);
    }
    kelp_log_warn("shared memory is not offered reason=\"%s\"", error.text);
    return KELP_OK;
}

/* Check whether the peer may call the method. Errors: those of kelp__rpc_judge(). */
static kelp_status identify(struct kelp_rpc_server *server, const struct kelp_rpc_method *method,
                            grpc_call *call, struct origin *origin, struct kelp_error *reterr)
{
    if (!server->secure) {
        return KELP_OK;
    }
    kelp__rpc_caller_read(call, &origin->caller);
    return kelp__rpc_judge(kelp_credentials_name(server->loop->credentials), &origin->caller,
                           method, origin->peer, reterr);
}

static void serve(struct kelp_rpc_server *server, const grpc_call_details *details, grpc_call *call)
{
    const struct kelp_rpc_method *method = find_method(server, details);
    struct origin origin = {.peer = grpc_call_get_peer(call)};
    struct kelp_error error;
    kelp_status status = KELP_OK;

    origin.connection = kelp__rpc_trust_find(origin.peer);
    kelp__rpc_trust_called(&origin.connection);
    if (!method || atomic_load(&server->closing)) {
        status = kelp_fail(&error, KELP_ERR_UNSUPPORTED,
                           method ? "server is closing" : "no such method");
    } else {
        status = identify(server, method, call, &origin, &error);
    }
    if (status != KELP_OK && !atomic_load(&server->closing) && server->options.refused) {
        server->options.refused(server->options.user);
    }
    if (status == KELP_OK && method->accept) {
        stream_start(server, method, call, &origin);
    } else {
        request_start(server, method, call, status == KELP_OK ? NULL : &error);
    }
    gpr_free(origin.peer);
}

static void accepted(struct kelp__rpc_op *op, bool success)
{
    struct acceptor *acceptor = KELP_CONTAINER_OF(op, struct acceptor, op);
    struct kelp_rpc_server *server = acceptor->server;
    grpc_call *call = acceptor->call;
    grpc_call_details details = acceptor->details;

    grpc_metadata_array_destroy(&acceptor->metadata);
    if (success) {
        accept_next(acceptor); /* before the callback, so that calls are accepted in parallel */
        serve(server, &details, call);
    } else {
        kelp__rpc_server_unhold(server); /* shut down */
    }
    grpc_call_details_destroy(&details);
}

/* ---- open and close ---- */

/* What gRPC may buffer. Owned. */
static grpc_resource_quota *create_quota(size_t memory_max)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    grpc_resource_quota *quota = grpc_resource_quota_create("kelp");

    if (memory_max == 0 && pages > 0 && page > 0) {
        memory_max = (size_t)pages / KELP_RPC_MEMORY_PART * (size_t)page;
    }
    if (memory_max > 0) {
        grpc_resource_quota_resize(quota, memory_max);
    }
    return quota;
}

/* Nine tenths of the memory that gRPC keeps for a connection are room for reads of
 * KELP_RPC_READ_BYTES. */
static void spare(struct kelp__rpc_args *args)
{
    kelp__rpc_args_change(args, GRPC_ARG_KEEPALIVE_TIME_MS, KELP_RPC_KEEPALIVE_MANY_MS);
    kelp__rpc_args_change(args, GRPC_ARG_TCP_READ_CHUNK_SIZE, KELP_RPC_SPARING_READ_BYTES);
    kelp__rpc_args_add(args, GRPC_ARG_HTTP2_BDP_PROBE, 0);
}

/* *ret_port 0: it could not listen. */
static grpc_server *create_listening(struct kelp_rpc_loop *loop, const char *address, bool secure,
                                     const struct kelp_rpc_server_options *options, int *ret_port)
{
    struct kelp__rpc_args args;

    kelp__rpc_args_common(&args, loop, options->message_bytes_max);
    if (options->sparing) {
        spare(&args);
    }
    /* Without this, two servers on one port share it silently, taking turns. */
    kelp__rpc_args_add(&args, GRPC_ARG_ALLOW_REUSEPORT, 0);
    kelp__rpc_args_add(&args, GRPC_ARG_MAX_CONCURRENT_STREAMS, KELP_RPC_STREAMS_PER_CONNECTION);
    kelp__rpc_args_add(&args, GRPC_ARG_MAX_METADATA_SIZE, KELP_RPC_METADATA_BYTES);
    kelp__rpc_args_add(&args, GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, KELP_RPC_HANDSHAKE_MS);
    /* Our clients ping more often than gRPC allows by default. */
    kelp__rpc_args_add(&args, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                       KELP_RPC_PING_APART_MS);
    kelp__rpc_args_add(&args, GRPC_ARG_HTTP2_MAX_PING_STRIKES, KELP_RPC_PING_STRIKES);

    grpc_resource_quota *quota = create_quota(options->memory_max);
    kelp__rpc_args_add_pointer(&args, GRPC_ARG_RESOURCE_QUOTA, quota,
                               grpc_resource_quota_arg_vtable());
    grpc_channel_args list = {.num_args = args.count, .args = args.list};
    grpc_server *server = grpc_server_create(&list, NULL);
    grpc_resource_quota_unref(quota);
    grpc_server_credentials *credentials = kelp__rpc_server_credentials(loop, secure);
    *ret_port = credentials ? grpc_server_add_http2_port(server, address, credentials) : 0;
    grpc_server_credentials_release(credentials);
    return server;
}

static void shutdown_done(struct kelp__rpc_op *op, bool success)
{
    (void)success;
    kelp__rpc_server_unhold(KELP_CONTAINER_OF(op, struct kelp_rpc_server, shutdown_op));
}

kelp_status kelp_rpc_server_open(struct kelp_rpc_loop *loop,
                                 const struct kelp_rpc_server_options *options,
                                 struct kelp_rpc_server **ret_server, struct kelp_error *reterr)
{
    struct kelp_rpc_server *server = calloc(1, sizeof(*server));
    char bound[KELP_RPC_ADDRESS_MAX + 1];
    int port = 0;
    if (!server) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a server");
    }
    kelp_status status = kelp__rpc_address_try(options->address, bound, server->address, reterr);
    if (status != KELP_OK) {
        free(server);
        return status;
    }
    server->loop = loop;
    server->options = *options;
    server->shutdown_op.done = shutdown_done;
    server->secure = loop->credentials && !kelp__rpc_address_is_local(options->address);
    kelp__rpc_sockets_open();
    if (kelp__rpc_address_is_local(options->address)) {
        kelp__rpc_sockets_local(options->message_bytes_max);
    }
    server->server = create_listening(loop, bound, server->secure, options, &port);
    grpc_server_register_completion_queue(server->server, loop->queue, NULL);
    atomic_init(&server->holds, 1);
    if (port <= 0) { /* another process took the port after our check */
        kelp_rpc_server_close(server);
        return kelp_fail(reterr, KELP_ERR_EXISTS, "cannot listen on %s", options->address);
    }
    server->port = (uint16_t)port;
    kelp__rpc_address_advertise(server->address, options->advertise, server->port);
    status = offer_shared(server, reterr);
    if (status != KELP_OK) {
        kelp_rpc_server_close(server);
        return status;
    }
    if (options->hello && !kelp__rpc_address_is_local(options->address)) {
        kelp__rpc_trust_add_server(server->port, options->message_bytes_max);
    }
    grpc_server_start(server->server);
    for (size_t i = 0; i < KELP_RPC_ACCEPTS; i++) {
        server->acceptors[i].op.done = accepted;
        server->acceptors[i].server = server;
        kelp__rpc_server_hold(server);
        accept_next(&server->acceptors[i]);
    }
    *ret_server = server;
    return KELP_OK;
}

bool kelp_rpc_server_shares(const struct kelp_rpc_server *server)
{
    return server->listener != NULL;
}

uint16_t kelp_rpc_server_port(const struct kelp_rpc_server *server)
{
    return server->port;
}

const char *kelp_rpc_server_address(const struct kelp_rpc_server *server)
{
    return server->address;
}

void kelp_rpc_server_close(struct kelp_rpc_server *server)
{
    if (!server) {
        return;
    }
    struct kelp_rpc_loop *loop = server->loop;
    atomic_store(&server->closing, true);
    kelp__rpc_shared_unlisten(server->listener);
    atomic_store(&server->shutdown_op.armed, true);
    grpc_server_shutdown_and_notify(server->server, loop->queue, &server->shutdown_op);
    grpc_server_cancel_all_calls(server->server);
    while (atomic_load(&server->holds) > 0) {
        /* The wait is bounded because another thread may get the last event, and our wake-up with
         * it. */
        (void)kelp_rpc_loop_run(loop, 100);
    }
    grpc_server_destroy(server->server);
    kelp__rpc_trust_remove_server(server->port);
    kelp__rpc_sockets_close();
    free(server);
}
