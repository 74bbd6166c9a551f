/*
 * Streams through shared memory: the same contract as over gRPC (rpc.h), for processes of one user
 * on one host.
 *
 * The end: what is queued, then a frame with status and text, then the end of the socket. Whoever
 * dies leaves that out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/rpc/rpc_shared_stream_internal.h"
#include "common/shm/shm_socket.h"

#define SOCKET_PATH_MAX 107

struct kelp__rpc_shared *kelp__rpc_shared_loop(const struct kelp_rpc_shared_stream *shared)
{
    return atomic_load(&shared->stream.loop->shared);
}

static void unref(struct kelp_rpc_shared_stream *shared)
{
    if (atomic_fetch_sub_explicit(&shared->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    struct kelp_rpc_server *server = shared->stream.server;
    (void)pthread_mutex_destroy(&shared->stream.lock);
    free(shared->stream.queue.ring);
    free(shared->stream.peer);
    free(shared->opening);
    free(shared);
    if (server) {
        kelp__rpc_server_unhold(server);
    }
}

void kelp__rpc_shared_look(struct kelp_rpc_shared_stream *shared)
{
    kelp__rpc_source_kick(kelp__rpc_shared_loop(shared), &shared->source);
    unref(shared);
}

/* ---- the end ---- */

static void on_late(void *user)
{
    struct kelp_rpc_shared_stream *shared = user;

    (void)pthread_mutex_lock(&shared->stream.lock);
    shared->stream.timed_out = !shared->stream.closing && !shared->stream.broken;
    kelp__rpc_shared_break_off(shared);
    (void)pthread_mutex_unlock(&shared->stream.lock);
    kelp__rpc_shared_look(shared); /* the timer's reference */
}

static void set_timer(struct kelp_rpc_shared_stream *shared, struct kelp_rpc_timer *timer,
                      uint32_t in_ms)
{
    atomic_fetch_add(&shared->refs, 1);
    kelp__rpc_timer_set(shared->stream.loop, timer, in_ms, on_late, shared);
}

static void unset_timer(struct kelp_rpc_shared_stream *shared, struct kelp_rpc_timer *timer)
{
    if (kelp__rpc_timer_unset(timer)) {
        unref(shared);
    }
}

void kelp__rpc_shared_stream_close(struct kelp_rpc_shared_stream *shared, kelp_status status,
                                   const char *text)
{
    struct kelp_rpc_stream *stream = &shared->stream;

    (void)pthread_mutex_lock(&stream->lock);
    const bool first = !stream->closing && !stream->broken;
    stream->closing = true;
    if (first) {
        atomic_fetch_add(&shared->refs, 1); /* until we have looked */
        stream->owner_closed = true;
        stream->status = status;
        (void)snprintf(stream->text, sizeof(stream->text), "%.*s", KELP_RPC_TEXT_MAX,
                       text ? text : "");
        if (!stream->server && status != KELP_OK) {
            kelp__rpc_shared_break_off(shared); /* cancelled: the other side finds the end */
        } else {
            set_timer(shared, &stream->close_timer, KELP_RPC_CLOSE_MS);
            kelp__rpc_shared_send_end(shared);
        }
    }
    (void)pthread_mutex_unlock(&stream->lock);
    if (first) {
        kelp__rpc_shared_look(shared);
    }
}

/* The status and text that closed() reports, when the owner has not said them. */
static void judge(struct kelp_rpc_stream *stream, bool peer_ended)
{
    if (stream->owner_closed || peer_ended) {
        return;
    }
    if (stream->timed_out) {
        stream->status = KELP_ERR_TIMEOUT;
        (void)snprintf(stream->text, sizeof(stream->text), "no message from %s in time",
                       stream->peer);
    } else if (stream->status == KELP_OK) {
        stream->status = KELP_ERR_UNREACHABLE;
        (void)snprintf(stream->text, sizeof(stream->text), "%s is gone or cancelled the stream",
                       stream->peer);
    }
}

/* The last callback; the stream is gone then. */
static void finish(struct kelp_rpc_shared_stream *shared)
{
    struct kelp_rpc_stream *stream = &shared->stream;
    struct kelp_rpc_message *message;

    kelp__rpc_source_remove(kelp__rpc_shared_loop(shared), &shared->source);
    unset_timer(shared, &stream->first_message_timer);
    unset_timer(shared, &stream->close_timer);
    (void)pthread_mutex_lock(&stream->lock);
    stream->broken = true;
    stream->closed = true;
    kelp_shm_channel_close(shared->channel); /* what is lent comes back here */
    while ((message = shared->pending
                          ? shared->pending
                          : kelp__rpc_queue_pop(&stream->queue, &shared->pending_bytes))) {
        kelp__rpc_queue_done(&stream->queue, shared->pending_bytes);
        kelp_rpc_message_unref(message);
        shared->pending = NULL;
    }
    while (shared->idle) {
        struct kelp__rpc_bounce *bounce = shared->idle;
        shared->idle = bounce->next;
        kelp__rpc_bounce_free(bounce);
    }
    judge(stream, shared->peer_ended);
    (void)pthread_mutex_unlock(&stream->lock);
    if (stream->events) {
        stream->events->closed(stream, stream->status, stream->text, stream->user);
    }
    unref(shared);
}

/* ---- receiving ---- */

/* A received message, as long as slices of it live. */
struct kept {
    atomic_uint refs;
    struct kelp_shm_message *message;
};

static void kept_unref(void *user)
{
    struct kept *kept = user;

    if (atomic_fetch_sub_explicit(&kept->refs, 1, memory_order_acq_rel) == 1) {
        kelp_shm_message_release(kept->message);
        free(kept);
    }
}

/* Its parts but the head, where they lie. The message is used up. NULL: out of memory. */
static struct kelp_rpc_message *wrap(struct kelp_shm_message *from)
{
    struct kept *kept = calloc(1, sizeof(*kept));
    struct kelp_rpc_message *message = kept ? kelp_rpc_message_create() : NULL;
    bool whole = message != NULL;

    if (!message) {
        free(kept);
        kelp_shm_message_release(from);
        return NULL;
    }
    atomic_init(&kept->refs, 1);
    kept->message = from;
    for (size_t i = 1; i < kelp_shm_message_part_count(from) && whole; i++) {
        const struct kelp_shm_bytes part = kelp_shm_message_part(from, i);
        if (part.length == 0) {
            continue;
        }
        atomic_fetch_add_explicit(&kept->refs, 1, memory_order_relaxed);
        whole =
            kelp_rpc_message_borrow(message, part.bytes, part.length, kept_unref, kept) == KELP_OK;
        if (!whole) {
            kept_unref(kept);
        }
    }
    kept_unref(kept);
    if (!whole) {
        kelp_rpc_message_unref(message);
        return NULL;
    }
    return message;
}

/* The other side's last word. */
static void hear_end(struct kelp_rpc_shared_stream *shared, const struct kelp__rpc_head *head,
                     const struct kelp_shm_message *message)
{
    struct kelp_rpc_stream *stream = &shared->stream;

    (void)pthread_mutex_lock(&stream->lock);
    if (!stream->owner_closed) {
        const struct kelp_shm_bytes text = kelp_shm_message_part_count(message) > 1
                                               ? kelp_shm_message_part(message, 1)
                                               : (struct kelp_shm_bytes){0};
        const int length = text.length < KELP_RPC_TEXT_MAX ? (int)text.length : KELP_RPC_TEXT_MAX;
        stream->status =
            kelp_status_known(head->status) ? (kelp_status)head->status : KELP_ERR_FORMAT;
        (void)snprintf(stream->text, sizeof(stream->text), "%.*s", length,
                       text.bytes ? (const char *)text.bytes : "");
        shared->peer_ended = true;
    }
    kelp__rpc_shared_break_off(shared);
    (void)pthread_mutex_unlock(&stream->lock);
}

static void break_with(struct kelp_rpc_shared_stream *shared, kelp_status status, const char *text)
{
    struct kelp_rpc_stream *stream = &shared->stream;

    (void)pthread_mutex_lock(&stream->lock);
    if (!stream->owner_closed && !stream->timed_out && stream->status == KELP_OK) {
        stream->status = status;
        (void)snprintf(stream->text, sizeof(stream->text), "%s", text);
    }
    kelp__rpc_shared_break_off(shared);
    (void)pthread_mutex_unlock(&stream->lock);
}

/* A client's first frame: which method it wants. */
static void hear_open(struct kelp_rpc_shared_stream *shared, const struct kelp__rpc_head *head,
                      const struct kelp_shm_message *message)
{
    struct kelp_rpc_stream *stream = &shared->stream;
    const struct kelp_shm_bytes path = kelp_shm_message_part_count(message) > 1
                                           ? kelp_shm_message_part(message, 1)
                                           : (struct kelp_shm_bytes){0};
    char text[KELP_RPC_PATH_MAX + 1];

    if (head->kind != KELP__RPC_KIND_OPEN || path.length == 0 || path.length > KELP_RPC_PATH_MAX) {
        break_with(shared, KELP_ERR_FORMAT, "shared memory: a stream that names no method");
        return;
    }
    memcpy(text, path.bytes, path.length);
    text[path.length] = '\0';
    if (!shared->hello) {
        unset_timer(shared, &stream->first_message_timer);
    }
    stream->events = kelp__rpc_server_welcome(stream->server, text, stream, &stream->user);
}

static void hear(struct kelp_rpc_shared_stream *shared, struct kelp_shm_message *from)
{
    struct kelp_rpc_stream *stream = &shared->stream;
    const struct kelp_shm_bytes first = kelp_shm_message_part(from, 0);
    struct kelp__rpc_head head = {0};

    if (first.length == sizeof(head)) {
        memcpy(&head, first.bytes, sizeof(head));
    }
    if (!stream->events) {
        hear_open(shared, &head, from);
        kelp_shm_message_release(from);
        return;
    }
    if (head.kind != KELP__RPC_KIND_MESSAGE) {
        if (head.kind == KELP__RPC_KIND_END) {
            hear_end(shared, &head, from);
        } else {
            break_with(shared, KELP_ERR_FORMAT, "shared memory: a frame of an unknown kind");
        }
        kelp_shm_message_release(from);
        return;
    }
    if (!stream->read_before) {
        stream->read_before = true;
        unset_timer(shared, &stream->first_message_timer);
    }
    struct kelp_rpc_message *message = wrap(from);
    (void)pthread_mutex_lock(&stream->lock);
    const bool deliver = !stream->closing;
    (void)pthread_mutex_unlock(&stream->lock);
    if (!message) {
        break_with(shared, KELP_ERR_NO_MEMORY, "shared memory: no memory for a message");
    } else if (deliver) {
        stream->events->message(stream, message, stream->user);
    }
    kelp_rpc_message_unref(message);
}

static enum kelp__rpc_ran run_stream(struct kelp__rpc_source *source)
{
    struct kelp_rpc_shared_stream *shared =
        KELP_CONTAINER_OF(source, struct kelp_rpc_shared_stream, source);
    struct kelp_rpc_stream *stream = &shared->stream;
    struct kelp_shm_message *message = NULL;
    struct kelp_error error = {.text = ""};

    (void)pthread_mutex_lock(&stream->lock);
    kelp_shm_channel_collect(shared->channel);
    kelp_shm_channel_sweep(shared->channel);
    if (stream->owner_closed && !shared->ended) {
        kelp__rpc_shared_send_end(shared);
    } else {
        kelp__rpc_shared_flush(shared);
    }
    const bool ended = shared->ended;
    (void)pthread_mutex_unlock(&stream->lock);
    if (ended) {
        finish(shared);
        return KELP__RPC_GONE;
    }
    kelp_status status = kelp_shm_channel_receive(shared->channel, &message, &error);
    if (status == KELP_ERR_BUSY) {
        return KELP__RPC_TIRED;
    }
    if (status == KELP_OK) {
        hear(shared, message);
    } else if (status == KELP_ERR_CLOSED) {
        (void)pthread_mutex_lock(&stream->lock);
        kelp__rpc_shared_break_off(shared);
        (void)pthread_mutex_unlock(&stream->lock);
    } else {
        break_with(shared, status, error.text);
    }
    return KELP__RPC_RAN;
}

static bool stream_ready(struct kelp__rpc_source *source)
{
    return kelp_shm_channel_has_message(
        KELP_CONTAINER_OF(source, struct kelp_rpc_shared_stream, source)->channel);
}

static bool stream_rest(struct kelp__rpc_source *source)
{
    return kelp_shm_channel_rest(
        KELP_CONTAINER_OF(source, struct kelp_rpc_shared_stream, source)->channel);
}

static void stream_wake(struct kelp__rpc_source *source)
{
    kelp_shm_channel_wake(
        KELP_CONTAINER_OF(source, struct kelp_rpc_shared_stream, source)->channel);
}

/* ---- opening ---- */

/* The socket is used up. */
kelp_status kelp__rpc_shared_stream_create(struct kelp_rpc_loop *loop, int socket,
                                           size_t message_bytes_max, const char *peer,
                                           struct kelp_rpc_shared_stream **ret_shared,
                                           struct kelp_error *reterr)
{
    struct kelp_rpc_shared_stream *shared = calloc(1, sizeof(*shared));
    char *name = strdup(peer);

    if (!shared || !name) {
        free(shared);
        free(name);
        (void)close(socket);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a stream");
    }
    kelp_status status = kelp_shm_channel_open(
        socket, message_bytes_max + sizeof(struct kelp__rpc_head), &shared->channel, reterr);
    if (status != KELP_OK) {
        free(shared);
        free(name);
        return status;
    }
    shared->stream.shared = shared;
    shared->stream.loop = loop;
    shared->stream.peer = name;
    shared->stream.message_bytes_max = message_bytes_max;
    shared->stream.connection.fd = -1;
    (void)pthread_mutex_init(&shared->stream.lock, NULL);
    atomic_init(&shared->refs, 1);
    shared->source = (struct kelp__rpc_source){.fd = kelp_shm_channel_socket(shared->channel),
                                               .ready = stream_ready,
                                               .rest = stream_rest,
                                               .wake = stream_wake,
                                               .run = run_stream};
    *ret_shared = shared;
    return KELP_OK;
}

/* It never began, or has ended. */
void kelp__rpc_shared_stream_drop(struct kelp_rpc_shared_stream *shared)
{
    unset_timer(shared, &shared->stream.first_message_timer);
    kelp_shm_channel_close(shared->channel);
    unref(shared);
}

/* Callbacks may run from here on. On an error none does, and the stream is the caller's. */
kelp_status kelp__rpc_shared_stream_begin(struct kelp_rpc_shared_stream *shared,
                                          const struct kelp_rpc_stream_events *events, void *user,
                                          uint32_t first_message_ms)
{
    shared->stream.events = events;
    shared->stream.user = user;
    if (first_message_ms > 0) {
        set_timer(shared, &shared->stream.first_message_timer, first_message_ms);
    }
    return kelp__rpc_source_add(kelp__rpc_shared_loop(shared), &shared->source);
}

bool kelp__rpc_shared_path(const struct kelp_rpc_loop *loop, const char *address,
                           char path[KELP_RPC_ADDRESS_MAX + 1])
{
    static const char *const schemes[] = {"unix:", "ipv4:", "ipv6:"};
    const bool local = kelp__rpc_address_is_local(address);
    const char *rest = address;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(schemes); i++) {
        const size_t length = strlen(schemes[i]);
        rest = strncmp(address, schemes[i], length) == 0 ? address + length : rest;
    }
    if (!local && !loop->shm_folder) {
        return false;
    }
    return snprintf(path, KELP_RPC_ADDRESS_MAX + 1, "%s%s%s.shm", local ? "" : loop->shm_folder,
                    local ? "" : "/", rest) <= SOCKET_PATH_MAX;
}

kelp_status kelp__rpc_shared_connect(struct kelp_rpc_loop *loop, const char *target,
                                     size_t message_bytes_max,
                                     const struct kelp_rpc_stream_options *options,
                                     struct kelp_rpc_stream **ret_stream, struct kelp_error *reterr)
{
    char path[KELP_RPC_ADDRESS_MAX + 1];
    struct kelp_rpc_shared_stream *shared = NULL;
    int socket = -1;

    if (!kelp__rpc_shared_path(loop, target, path)) {
        return kelp_fail(reterr, KELP_ERR_UNREACHABLE,
                         "%s is a port, and there is no folder to meet in (--shm-folder)", target);
    }
    kelp_status status = kelp__rpc_shared_begin(loop, reterr);
    if (status == KELP_OK) {
        status = kelp_shm_connect(path, &socket, reterr);
    }
    if (status == KELP_OK) {
        status = kelp__rpc_shared_stream_create(loop, socket, message_bytes_max, target, &shared,
                                                reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    shared->opening = strdup(options->path);
    if (!shared->opening) {
        kelp__rpc_shared_stream_drop(shared);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a stream");
    }
    *ret_stream = &shared->stream; /* before callbacks can run */
    status = kelp__rpc_shared_stream_begin(shared, options->events, options->user,
                                           options->first_message_ms);
    if (status != KELP_OK) {
        kelp__rpc_shared_stream_drop(shared);
        return kelp_fail(reterr, status, "no memory for a stream");
    }
    return KELP_OK;
}

/* ---- all of a server's ---- */

static void cancel(struct kelp__rpc_source *source, void *server)
{
    if (source->run != run_stream) {
        return;
    }
    struct kelp_rpc_shared_stream *shared =
        KELP_CONTAINER_OF(source, struct kelp_rpc_shared_stream, source);
    if (shared->stream.server == server) {
        (void)pthread_mutex_lock(&shared->stream.lock);
        kelp__rpc_shared_break_off(shared);
        (void)pthread_mutex_unlock(&shared->stream.lock);
    }
}

void kelp__rpc_shared_cancel(struct kelp__rpc_shared *shared, const struct kelp_rpc_server *server)
{
    kelp__rpc_source_each(shared, cancel, (void *)(uintptr_t)server);
}
