/*
 * One bidirectional stream, client or server side.
 *
 * Happy path: start() hands gRPC the initial metadata, a read, and a watch for the end (client: the
 * status, server: the close). Each read that completes runs the message callback and is then
 * started again, so that message callbacks of one stream never run in parallel. Sending is a pump:
 * whoever sets `sending` owns the write side and hands gRPC one message after the other; the flag
 * and not the lock is held meanwhile, because releasing sent memory calls back into our users.
 *
 * The end: read and watch have completed and nobody holds the stream: closed() runs, as the last of
 * the callbacks. A write to a stopped peer may stay in gRPC beyond that, until keep-alive ends the
 * connection: the memory of the stream, and what it sends, live on until then, without the user
 * noticing.
 *
 *     open --close(OK)--> draining --queue empty--> finishing --peer answers, close timer--> closed
 *       \------------------ peer ends, cancel, break, deadline -----------------------------/
 */
#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rpc/rpc_shared_internal.h"
#include "common/rpc/rpc_stream_internal.h"

/* ---- life ---- */

static void read_done(struct kelp__rpc_op *op, bool success);
static void start_done(struct kelp__rpc_op *op, bool success);
static void pump_due(struct kelp__rpc_op *op, bool success);
static void send_done(struct kelp__rpc_op *op, bool success);
static void finish_done(struct kelp__rpc_op *op, bool success);

struct kelp_rpc_stream *kelp__rpc_stream_create(struct kelp_rpc_loop *loop, grpc_call *call,
                                                struct kelp_rpc_server *server, const char *peer,
                                                size_t message_bytes_max)
{
    struct kelp_rpc_stream *stream = calloc(1, sizeof(*stream));
    char *peer_copy = strdup(peer);

    if (!stream || !peer_copy) {
        free(stream);
        free(peer_copy);
        grpc_call_unref(call);
        return NULL;
    }
    stream->loop = loop;
    stream->server = server;
    stream->call = call;
    stream->peer = peer_copy;
    stream->message_bytes_max = message_bytes_max;
    stream->start_op.done = start_done;
    stream->read_op.done = read_done;
    stream->watch_op.done = kelp__rpc_stream_watched;
    stream->pump_op.done = pump_due;
    stream->send_op.done = send_done;
    stream->finish_op.done = finish_done;
    stream->start_op.anywhere = stream->pump_op.anywhere = true;
    stream->send_op.anywhere = stream->finish_op.anywhere = true;
    grpc_metadata_array_init(&stream->initial_metadata);
    grpc_metadata_array_init(&stream->trailing_metadata);
    stream->details = grpc_empty_slice();
    stream->connection.fd = -1;
    stream->unanswered = UINT_MAX;
    stream->holds = 1;
    (void)pthread_mutex_init(&stream->lock, NULL);
    if (server) {
        stream->queue.queues = kelp__rpc_server_queues(server);
        kelp__rpc_server_hold(server);
    }
    return stream;
}

static void stream_free(struct kelp_rpc_stream *stream)
{
    struct kelp_rpc_server *server = stream->server;

    grpc_metadata_array_destroy(&stream->initial_metadata);
    grpc_metadata_array_destroy(&stream->trailing_metadata);
    grpc_slice_unref(stream->details);
    grpc_call_unref(stream->call);
    (void)pthread_mutex_destroy(&stream->lock);
    free(stream->queue.ring);
    free(stream->peer);
    free(stream);
    if (server) {
        kelp__rpc_server_unhold(server);
    }
}

/* Throw away what waits. Called without the lock held by the last holder, or by a breaker who set
 * `broken`, after which nothing is queued. */
static void drop_queue(struct kelp_rpc_stream *stream)
{
    for (;;) {
        size_t bytes = 0;
        (void)pthread_mutex_lock(&stream->lock);
        struct kelp_rpc_message *message = kelp__rpc_queue_pop(&stream->queue, &bytes);
        kelp__rpc_queue_done(&stream->queue, bytes);
        (void)pthread_mutex_unlock(&stream->lock);
        if (!message) {
            return;
        }
        kelp_rpc_message_unref(message);
    }
}

/* The end that the client got with RECV_STATUS. */
static void judge_client(struct kelp_rpc_stream *stream)
{
    char text[KELP_RPC_TEXT_MAX + 1];
    int length = (int)(GRPC_SLICE_LENGTH(stream->details) < KELP_RPC_TEXT_MAX
                           ? GRPC_SLICE_LENGTH(stream->details)
                           : KELP_RPC_TEXT_MAX);

    (void)snprintf(text, sizeof(text), "%.*s", length,
                   (const char *)GRPC_SLICE_START_PTR(stream->details));
    stream->status = kelp__rpc_status_from_grpc(stream->code, &stream->trailing_metadata);
    (void)snprintf(stream->text, sizeof(stream->text), "%s", kelp__rpc_cause(text));
}

/* The status and text that closed() reports. The owner's own word comes first. */
static void judge(struct kelp_rpc_stream *stream)
{
    if (stream->owner_closed) {
        return;
    }
    if (stream->timed_out) {
        stream->status = KELP_ERR_TIMEOUT;
        (void)snprintf(stream->text, sizeof(stream->text), "no message from %s in time",
                       stream->peer);
    } else if (!stream->server) {
        judge_client(stream);
    } else if (stream->cancelled) {
        stream->status = KELP_ERR_UNREACHABLE;
        (void)snprintf(stream->text, sizeof(stream->text), "%s is gone or cancelled the stream",
                       stream->peer);
    }
}

static void report_closed(struct kelp_rpc_stream *stream)
{
    drop_queue(stream);
    if (stream->events) {
        judge(stream);
        stream->events->closed(stream, stream->status, stream->text, stream->user);
    }
}

/* The analyser does not follow the counts and takes any release for the last one.
 * NOLINTBEGIN(clang-analyzer-unix.Malloc) */

/* Drop a hold (is_write: a write operation) and do what was waiting for it. */
void kelp__rpc_stream_let_go(struct kelp_rpc_stream *stream, bool is_write)
{
    (void)pthread_mutex_lock(&stream->lock);
    unsigned *count = is_write ? &stream->writes : &stream->holds;
    assert(*count > 0);
    (*count)--;
    bool report = !is_write && stream->holds == 0;
    if (report) {
        assert(!stream->closed);
        stream->closed = true;
        stream->broken = true;
        stream->writes++; /* ours, so that the memory stays while closed() runs */
    }
    bool last = stream->closed && stream->writes == 0;
    (void)pthread_mutex_unlock(&stream->lock);

    if (report) {
        report_closed(stream);
        kelp__rpc_stream_let_go(stream, true);
    } else if (last) {
        stream_free(stream);
    }
}

void kelp__rpc_stream_release(struct kelp_rpc_stream *stream)
{
    kelp__rpc_stream_let_go(stream, false);
}

/* ---- sending ---- */

static void send_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                         bool more)
{
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};

    stream->sent = kelp__rpc_message_to_buffer(message);
    kelp_rpc_message_unref(message);
    op.data.send_message.send_message = stream->sent;
    /* If more messages follow, this one need not be sent alone. */
    op.flags = more ? GRPC_WRITE_BUFFER_HINT : 0;
    kelp__rpc_start(stream->call, &op, 1, &stream->send_op);
}

static void send_finish(struct kelp_rpc_stream *stream)
{
    grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};

    if (stream->server) {
        kelp__rpc_trailer_op(&stream->trailer, stream->status, stream->text, &op);
    }
    kelp__rpc_start(stream->call, &op, 1, &stream->finish_op);
}

/* Give the next operation to gRPC. The caller owns the write side, and gives it up if there is
 * none. */
void kelp__rpc_stream_pump(struct kelp_rpc_stream *stream)
{
    struct kelp_rpc_message *message = NULL;
    bool finish = false;

    (void)pthread_mutex_lock(&stream->lock);
    assert(stream->sending);
    if (stream->queue.count > 0 && !stream->broken && stream->unanswered > 0) {
        stream->unanswered -= stream->unanswered < UINT_MAX ? 1 : 0;
        message = kelp__rpc_queue_pop(&stream->queue, &stream->sent_bytes);
    } else if (stream->finish_wanted && !stream->finished && !stream->broken &&
               stream->queue.count == 0) {
        finish = true;
        stream->finished = true;
    }
    stream->sending = message || finish;
    stream->writes += stream->sending ? 1 : 0;
    bool more = stream->queue.count > 0 && stream->unanswered > 0;
    (void)pthread_mutex_unlock(&stream->lock);

    if (message) {
        send_message(stream, message, more);
    } else if (finish) {
        send_finish(stream);
    }
}

/* The caller counts as a write. */
static void pump_due(struct kelp__rpc_op *op, bool success)
{
    struct kelp_rpc_stream *stream = KELP_CONTAINER_OF(op, struct kelp_rpc_stream, pump_op);

    (void)success;
    kelp__rpc_stream_pump(stream);
    kelp__rpc_stream_let_go(stream, true);
}

static void send_done(struct kelp__rpc_op *op, bool success)
{
    struct kelp_rpc_stream *stream = KELP_CONTAINER_OF(op, struct kelp_rpc_stream, send_op);

    grpc_byte_buffer_destroy(stream->sent);
    stream->sent = NULL;
    (void)pthread_mutex_lock(&stream->lock);
    stream->broken = stream->broken || !success; /* the watch will say why */
    kelp__rpc_queue_done(&stream->queue, stream->sent_bytes);
    (void)pthread_mutex_unlock(&stream->lock);
    kelp__rpc_stream_pump(stream);
    kelp__rpc_stream_let_go(stream, true);
}

static void finish_done(struct kelp__rpc_op *op, bool success)
{
    struct kelp_rpc_stream *stream = KELP_CONTAINER_OF(op, struct kelp_rpc_stream, finish_op);

    (void)success; /* the watch tells */
    if (stream->server) {
        kelp__rpc_trailer_fini(&stream->trailer);
    }
    kelp__rpc_stream_let_go(stream, true);
}

static void start_done(struct kelp__rpc_op *op, bool success)
{
    struct kelp_rpc_stream *stream = KELP_CONTAINER_OF(op, struct kelp_rpc_stream, start_op);

    (void)success;
    kelp__rpc_stream_let_go(stream, true);
}

kelp_status kelp_rpc_stream_send(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message)
{
    kelp_status status = KELP_OK;
    bool start = false;

    if (stream->shared) {
        return kelp__rpc_shared_stream_send(stream->shared, message);
    }
    (void)pthread_mutex_lock(&stream->lock);
    if (stream->closing || stream->broken) {
        status = KELP_ERR_CLOSED;
    } else if (kelp_rpc_message_length(message) > stream->message_bytes_max) {
        status = KELP_ERR_LIMIT;
    } else {
        status = kelp__rpc_queue_push(&stream->queue, message);
    }
    if (status == KELP_OK && !stream->sending) {
        stream->sending = true;
        start = true;
        stream->writes++; /* until kelp__rpc_stream_pump() returned */
    }
    (void)pthread_mutex_unlock(&stream->lock);

    if (status != KELP_OK) {
        kelp_rpc_message_unref(message);
    }
    if (start && stream->carrier) {
        kelp__rpc_carrier_post(stream->carrier, &stream->pump_op);
    } else if (start) {
        pump_due(&stream->pump_op, true);
    }
    return status;
}

/* ---- receiving ---- */

static void start_read(struct kelp_rpc_stream *stream)
{
    grpc_op ops[2] = {{.op = GRPC_OP_RECV_MESSAGE}, {.op = GRPC_OP_RECV_INITIAL_METADATA}};
    bool with_metadata = !stream->server && !stream->read_before;

    stream->received = NULL;
    ops[0].data.recv_message.recv_message = &stream->received;
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &stream->initial_metadata;
    kelp__rpc_start(stream->call, ops, with_metadata ? 2 : 1, &stream->read_op);
}

/* The peer will send nothing more. A server answers with its end, after what is queued. */
static void read_ended(struct kelp_rpc_stream *stream)
{
    if (stream->server) {
        (void)pthread_mutex_lock(&stream->lock);
        stream->closing = true;
        stream->finish_wanted = true;
        bool start = !stream->sending;
        stream->sending = true;
        (void)pthread_mutex_unlock(&stream->lock);
        if (start) {
            kelp__rpc_stream_pump(stream);
        }
    }
    kelp__rpc_stream_let_go(stream, false);
}

/* The peer answered: send what waited for that. */
static void first_heard(struct kelp_rpc_stream *stream)
{
    (void)pthread_mutex_lock(&stream->lock);
    stream->unanswered = UINT_MAX;
    bool start = !stream->sending;
    stream->sending = true;
    (void)pthread_mutex_unlock(&stream->lock);
    if (start) {
        kelp__rpc_stream_pump(stream); /* the read's hold keeps the stream */
    }
}

static void read_done(struct kelp__rpc_op *op, bool success)
{
    struct kelp_rpc_stream *stream = KELP_CONTAINER_OF(op, struct kelp_rpc_stream, read_op);

    if (!stream->read_before) {
        stream->read_before = true;
        kelp__rpc_stream_stop_timer(stream, &stream->first_message_timer);
        first_heard(stream);
    }
    if (!success || !stream->received) {
        read_ended(stream);
        return;
    }
    kelp__rpc_trust_heard(&stream->connection);
    struct kelp_rpc_message *message = kelp__rpc_message_from_buffer(stream->received);
    (void)pthread_mutex_lock(&stream->lock);
    bool deliver = !stream->closing;
    (void)pthread_mutex_unlock(&stream->lock);
    if (!message) {
        kelp_rpc_stream_close(stream, KELP_ERR_UNSUPPORTED, "compressed message");
    } else if (deliver) {
        stream->events->message(stream, message, stream->user);
    }
    kelp_rpc_message_unref(message);
    start_read(stream);
}

/* ---- small things ---- */

void kelp__rpc_stream_begin(struct kelp_rpc_stream *stream)
{
    grpc_op initial = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    grpc_op watch = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

    stream->holds++; /* the watch's hold; the stream is not known elsewhere yet */
    stream->writes++;
    if (stream->caller.has_name) {
        stream->holds++;
        kelp__rpc_stream_await_expiry(stream);
    }
    if (stream->server) {
        watch.data.recv_close_on_server.cancelled = &stream->cancelled;
    } else {
        watch.op = GRPC_OP_RECV_STATUS_ON_CLIENT;
        watch.data.recv_status_on_client.trailing_metadata = &stream->trailing_metadata;
        watch.data.recv_status_on_client.status = &stream->code;
        watch.data.recv_status_on_client.status_details = &stream->details;
    }
    kelp__rpc_start(stream->call, &initial, 1, &stream->start_op);
    kelp__rpc_start(stream->call, &watch, 1, &stream->watch_op);
}

void kelp__rpc_stream_read(struct kelp_rpc_stream *stream,
                           const struct kelp_rpc_stream_events *events, void *user,
                           uint32_t first_message_ms)
{
    stream->events = events;
    stream->user = user;
    (void)pthread_mutex_lock(&stream->lock);
    stream->holds += first_message_ms > 0 ? 2 : 1;
    (void)pthread_mutex_unlock(&stream->lock);
    if (first_message_ms > 0) {
        kelp__rpc_timer_set(stream->loop, &stream->first_message_timer, first_message_ms,
                            kelp__rpc_stream_late, stream);
    }
    start_read(stream);
}

size_t kelp_rpc_stream_queued(struct kelp_rpc_stream *stream)
{
    (void)pthread_mutex_lock(&stream->lock);
    size_t count = stream->queue.count;
    (void)pthread_mutex_unlock(&stream->lock);
    return count;
}

const char *kelp_rpc_stream_peer(struct kelp_rpc_stream *stream)
{
    return stream->peer;
}

void kelp__rpc_stream_set_connection(struct kelp_rpc_stream *stream,
                                     const struct kelp__rpc_connection *connection)
{
    stream->connection = *connection;
}

void kelp_rpc_stream_trust(struct kelp_rpc_stream *stream)
{
    kelp__rpc_trust_grant(&stream->connection);
}

void kelp__rpc_stream_set_carrier(struct kelp_rpc_stream *stream, struct kelp_rpc_carrier *carrier)
{
    stream->carrier = carrier;
}

void kelp__rpc_stream_expect_answer(struct kelp_rpc_stream *stream)
{
    stream->unanswered = 1;
}

void kelp__rpc_stream_set_caller(struct kelp_rpc_stream *stream,
                                 const struct kelp__rpc_caller *caller)
{
    stream->caller = *caller;
}

const struct kelp_spiffe *kelp_rpc_stream_name(struct kelp_rpc_stream *stream)
{
    return stream->caller.has_name ? &stream->caller.name : NULL;
}

/* NOLINTEND(clang-analyzer-unix.Malloc) */
