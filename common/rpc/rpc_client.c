/*
 * The client: a channel is one connection; streams and blocking unary calls on it.
 *
 * gRPC moves a connection's bytes only in a queue that something on the channel belongs to. Between
 * two streams nothing would, and a connection attempt could not even fail; so a channel always
 * watches its own state in the loop's queue.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/address.h"
#include "common/log/log.h"
#include "common/rpc/rpc_internal.h"
#include "common/rpc/rpc_shared_internal.h"
#include "common/rpc/rpc_sockets.h"

/* One blocking call, with its own queue. Its write can be stuck behind a stopped peer after the
 * call has ended; then the channel keeps it until it is closed. */
struct unary {
    struct unary *next;
    grpc_completion_queue *queue;
    grpc_call *call;
    grpc_byte_buffer *sent;
    grpc_byte_buffer *received;
    grpc_metadata_array initial_metadata;
    grpc_metadata_array trailing_metadata;
    grpc_status_code code;
    grpc_slice details;
    char write_tag, read_tag, status_tag; /* only their addresses are used */
};

/* The standing watch. Outlives its channel by one completion. */
struct watcher {
    struct kelp__rpc_op op;
    pthread_mutex_t lock;  /* guards channel */
    grpc_channel *channel; /* NULL: closed */
    grpc_completion_queue *queue;
};

struct retired {
    struct retired *next;
    grpc_channel *channel;
    struct watcher *watcher;
};

struct kelp_rpc_channel {
    struct kelp_rpc_loop *loop;
    struct kelp_rpc_carrier *carrier; /* NULL: the thread that runs the loop moves its bytes */
    char *target;
    enum kelp_role server;
    bool secure;
    size_t message_bytes_max;
    pthread_mutex_t lock; /* guards what follows */
    grpc_channel *channel;
    struct watcher *watcher;
    uint64_t version;      /* of the credentials that it shows */
    struct retired *first; /* channels with older credentials, whose streams may still run */
    struct unary *stuck;
    int64_t attempt_us; /* when the last attempt to connect was started by us */
};

/* ---- channel ---- */

static grpc_completion_queue *queue_of(const struct kelp_rpc_channel *channel)
{
    return channel->carrier ? kelp__rpc_carrier_queue(channel->carrier) : channel->loop->queue;
}

static void watch(struct watcher *watcher)
{
    grpc_connectivity_state state = grpc_channel_check_connectivity_state(watcher->channel, 0);

    atomic_store(&watcher->op.armed, true);
    grpc_channel_watch_connectivity_state(
        watcher->channel, state, gpr_inf_future(GPR_CLOCK_MONOTONIC), watcher->queue, &watcher->op);
}

static void watched(struct kelp__rpc_op *op, bool success)
{
    struct watcher *watcher = KELP_CONTAINER_OF(op, struct watcher, op);

    (void)success;
    (void)pthread_mutex_lock(&watcher->lock);
    bool closed = !watcher->channel;
    if (!closed) {
        watch(watcher);
    }
    (void)pthread_mutex_unlock(&watcher->lock);
    if (closed) {
        (void)pthread_mutex_destroy(&watcher->lock);
        free(watcher);
    }
}

static void watcher_start(struct watcher *watcher, grpc_completion_queue *queue,
                          grpc_channel *channel)
{
    watcher->op.done = watched;
    watcher->queue = queue;
    watcher->channel = channel;
    (void)pthread_mutex_init(&watcher->lock, NULL);
    watch(watcher);
}

/* Destroying the channel completes the watch. */
static void watcher_stop(struct watcher *watcher)
{
    (void)pthread_mutex_lock(&watcher->lock);
    watcher->channel = NULL;
    (void)pthread_mutex_unlock(&watcher->lock);
}

/* NULL without memory. */
static grpc_channel *dial(const struct kelp_rpc_channel *channel)
{
    struct kelp__rpc_args args;
    char host[KELP_ROLE_HOST_MAX + 1];
    grpc_channel_credentials *credentials = kelp__rpc_channel_credentials(
        channel->secure ? channel->loop->credentials : NULL, channel->server);

    if (!credentials) {
        return NULL;
    }
    kelp__rpc_args_common(&args, channel->loop, channel->message_bytes_max);
    kelp__rpc_args_add(&args, GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, KELP_RPC_CONNECT_MS);
    kelp__rpc_args_add(&args, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, KELP_RPC_CONNECT_MS);
    kelp__rpc_args_add(&args, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, KELP_RPC_CONNECT_MS);
    /* One connection per channel: gRPC would share one among channels to the same address. */
    kelp__rpc_args_add(&args, GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    kelp__rpc_args_add(&args, GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    kelp_role_host(channel->server, host);
    if (channel->secure) {
        kelp__rpc_args_add_text(&args, GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, host);
    }
    grpc_channel_args list = {.num_args = args.count, .args = args.list};
    grpc_channel *made = grpc_channel_create(channel->target, credentials, &list);
    grpc_channel_credentials_release(credentials);
    return made;
}

/* The newest version of the loop's credentials; 0: they are not used. */
static uint64_t refresh(const struct kelp_rpc_channel *channel)
{
    struct kelp_error error = {.status = KELP_OK};
    uint64_t version =
        channel->secure ? kelp_credentials_refresh(channel->loop->credentials, &error) : 0;

    if (error.status != KELP_OK) {
        kelp_log_warn("certificates not reloaded, the previous ones stay in use reason=\"%s\"",
                      error.text);
    }
    return version;
}

/* Connect with the credentials of that version; existing streams continue. False: no memory. */
static bool redial_locked(struct kelp_rpc_channel *channel, uint64_t version)
{
    struct retired *old = channel->channel ? calloc(1, sizeof(*old)) : NULL;
    struct watcher *watcher = calloc(1, sizeof(*watcher));
    grpc_channel *made = watcher && (old || !channel->channel) ? dial(channel) : NULL;

    if (!made) {
        free(old);
        free(watcher);
        return false;
    }
    if (old) {
        *old = (struct retired){
            .next = channel->first, .channel = channel->channel, .watcher = channel->watcher};
        channel->first = old;
    }
    channel->channel = made;
    channel->watcher = watcher;
    channel->version = version;
    watcher_start(watcher, queue_of(channel), made);
    return true;
}

/* To be used for a new stream or call. */
static grpc_channel *newest(struct kelp_rpc_channel *channel)
{
    uint64_t version = refresh(channel);

    (void)pthread_mutex_lock(&channel->lock);
    if (version != channel->version) {
        (void)redial_locked(channel, version); /* without memory the one before will do */
    }
    grpc_channel *newest = channel->channel;
    (void)pthread_mutex_unlock(&channel->lock);
    return newest;
}

static kelp_status open_channel(struct kelp_rpc_loop *loop, struct kelp_rpc_carrier *carrier,
                                const char *address, enum kelp_role server,
                                size_t message_bytes_max, struct kelp_rpc_channel **ret_channel,
                                struct kelp_error *reterr)
{
    if (!kelp_address_is_target(address) || strlen(address) > KELP_RPC_ADDRESS_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "address '%.255s' is not HOST:PORT in numbers, or unix:/PATH", address);
    }
    struct kelp_rpc_channel *channel = calloc(1, sizeof(*channel));
    char *target = kelp__rpc_address_target(address);
    if (!channel || !target) {
        free(channel);
        free(target);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a connection to %s", address);
    }
    channel->loop = loop;
    channel->carrier = carrier;
    channel->target = target;
    channel->server = server;
    channel->secure = loop->credentials && !kelp__rpc_address_is_local(address);
    channel->message_bytes_max = message_bytes_max;
    (void)pthread_mutex_init(&channel->lock, NULL);
    if (kelp__rpc_address_is_local(address)) {
        kelp__rpc_sockets_local(message_bytes_max);
    }
    if (!redial_locked(channel, refresh(channel))) {
        (void)pthread_mutex_destroy(&channel->lock);
        free(channel);
        free(target);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a connection to %s", address);
    }
    *ret_channel = channel;
    return KELP_OK;
}

kelp_status kelp_rpc_channel_open(struct kelp_rpc_loop *loop, const char *address,
                                  enum kelp_role server, size_t message_bytes_max,
                                  struct kelp_rpc_channel **ret_channel, struct kelp_error *reterr)
{
    return open_channel(loop, NULL, address, server, message_bytes_max, ret_channel, reterr);
}

kelp_status kelp_rpc_channel_open_carried(struct kelp_rpc_carrier *carrier, const char *address,
                                          enum kelp_role server, size_t message_bytes_max,
                                          struct kelp_rpc_channel **ret_channel,
                                          struct kelp_error *reterr)
{
    return open_channel(kelp__rpc_carrier_loop(carrier), carrier, address, server,
                        message_bytes_max, ret_channel, reterr);
}

/* A stream is wanted: do not wait for the end of a back-off. True if an attempt was started. */
static bool try_again(struct kelp_rpc_channel *channel, grpc_channel *newest)
{
    if (grpc_channel_check_connectivity_state(newest, 1) != GRPC_CHANNEL_TRANSIENT_FAILURE) {
        return false;
    }
    (void)pthread_mutex_lock(&channel->lock);
    int64_t now_us = kelp__rpc_now_us();
    bool due = now_us - channel->attempt_us >= INT64_C(1000) * KELP_RPC_RECONNECT_MS;
    channel->attempt_us = due ? now_us : channel->attempt_us;
    (void)pthread_mutex_unlock(&channel->lock);
    if (due) {
        grpc_channel_reset_connect_backoff(newest);
    }
    return due;
}

/* The same for a caller whose loop does not run: give the attempt a moment in a queue of its own.
 */
static void try_again_blocking(struct kelp_rpc_channel *channel, grpc_channel *newest)
{
    if (!try_again(channel, newest)) {
        return;
    }
    grpc_completion_queue *queue = grpc_completion_queue_create_for_next(NULL);
    gpr_timespec until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                      gpr_time_from_millis(KELP_RPC_RECONNECT_MS, GPR_TIMESPAN));
    grpc_channel_watch_connectivity_state(newest, GRPC_CHANNEL_TRANSIENT_FAILURE, until, queue,
                                          queue);
    (void)grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_completion_queue_shutdown(queue);
    (void)grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_completion_queue_destroy(queue);
}

kelp_status kelp_rpc_stream_open(struct kelp_rpc_channel *channel,
                                 const struct kelp_rpc_stream_options *options,
                                 struct kelp_rpc_stream **ret_stream, struct kelp_error *reterr)
{
    grpc_channel *to = newest(channel);
    (void)try_again(channel, to);
    /* The path is copied: gRPC may look at it after we returned. */
    grpc_slice method = grpc_slice_from_copied_string(options->path);
    grpc_call *call =
        grpc_channel_create_call(to, NULL, GRPC_PROPAGATE_DEFAULTS, queue_of(channel), method, NULL,
                                 gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_slice_unref(method);
    struct kelp_rpc_stream *stream = kelp__rpc_stream_create(
        channel->loop, call, NULL, channel->target, channel->message_bytes_max);
    if (!stream) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a stream to %s",
                         channel->target);
    }
    kelp__rpc_stream_set_carrier(stream, channel->carrier);
    *ret_stream = stream; /* before callbacks can run */
    if (options->hello) {
        kelp__rpc_stream_expect_answer(stream);
    }
    kelp__rpc_stream_begin(stream);
    kelp__rpc_stream_read(stream, options->events, options->user, options->first_message_ms);
    kelp__rpc_stream_release(stream);
    return KELP_OK;
}

kelp_status kelp_rpc_stream_open_shared(struct kelp_rpc_channel *channel,
                                        const struct kelp_rpc_stream_options *options,
                                        struct kelp_rpc_stream **ret_stream,
                                        struct kelp_error *reterr)
{
    return kelp__rpc_shared_connect(channel->loop, channel->target, channel->message_bytes_max,
                                    options, ret_stream, reterr);
}

/* ---- unary calls ---- */

static void unary_free(struct unary *unary)
{
    grpc_completion_queue_shutdown(unary->queue);
    while (grpc_completion_queue_pluck(unary->queue, &unary->status_tag,
                                       gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL)
               .type != GRPC_QUEUE_SHUTDOWN) {
    }
    if (unary->sent) {
        grpc_byte_buffer_destroy(unary->sent);
    }
    if (unary->received) {
        grpc_byte_buffer_destroy(unary->received);
    }
    grpc_metadata_array_destroy(&unary->initial_metadata);
    grpc_metadata_array_destroy(&unary->trailing_metadata);
    grpc_slice_unref(unary->details);
    grpc_call_unref(unary->call);
    grpc_completion_queue_destroy(unary->queue);
    free(unary);
}

void kelp_rpc_channel_close(struct kelp_rpc_channel *channel)
{
    if (!channel) {
        return;
    }
    while (channel->stuck) {
        struct unary *unary = channel->stuck;
        channel->stuck = unary->next;
        /* Keep-alive bounds this. */
        (void)grpc_completion_queue_pluck(unary->queue, &unary->write_tag,
                                          gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        unary_free(unary);
    }
    while (channel->first) {
        struct retired *old = channel->first;
        channel->first = old->next;
        watcher_stop(old->watcher);
        grpc_channel_destroy(old->channel);
        free(old);
    }
    watcher_stop(channel->watcher);
    grpc_channel_destroy(channel->channel);
    (void)pthread_mutex_destroy(&channel->lock);
    free(channel->target);
    free(channel);
}

static void start(struct unary *unary, const grpc_op *ops, size_t count, void *tag)
{
    grpc_call_error error = grpc_call_start_batch(unary->call, ops, count, tag, NULL);

    assert(error == GRPC_CALL_OK);
    (void)error;
}

static struct unary *unary_start(grpc_channel *to, const char *path,
                                 const struct kelp_rpc_message *request, uint32_t deadline_ms)
{
    struct unary *unary = calloc(1, sizeof(*unary));
    if (!unary) {
        return NULL;
    }
    grpc_metadata_array_init(&unary->initial_metadata);
    grpc_metadata_array_init(&unary->trailing_metadata);
    unary->details = grpc_empty_slice();
    unary->queue = grpc_completion_queue_create_for_pluck(NULL);
    grpc_slice method = grpc_slice_from_copied_string(path);
    gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(deadline_ms, GPR_TIMESPAN));
    unary->call = grpc_channel_create_call(to, NULL, GRPC_PROPAGATE_DEFAULTS, unary->queue, method,
                                           NULL, deadline, NULL);
    grpc_slice_unref(method);
    unary->sent = kelp__rpc_message_to_buffer(request);

    /* Receive only the status: together with a write, it would come only after the write. */
    grpc_op status = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    status.data.recv_status_on_client.trailing_metadata = &unary->trailing_metadata;
    status.data.recv_status_on_client.status = &unary->code;
    status.data.recv_status_on_client.status_details = &unary->details;
    grpc_op writes[3] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                         {.op = GRPC_OP_SEND_MESSAGE},
                         {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT}};
    writes[1].data.send_message.send_message = unary->sent;
    grpc_op reads[2] = {{.op = GRPC_OP_RECV_INITIAL_METADATA}, {.op = GRPC_OP_RECV_MESSAGE}};
    reads[0].data.recv_initial_metadata.recv_initial_metadata = &unary->initial_metadata;
    reads[1].data.recv_message.recv_message = &unary->received;
    start(unary, writes, 3, &unary->write_tag);
    start(unary, reads, 2, &unary->read_tag);
    start(unary, &status, 1, &unary->status_tag);
    return unary;
}

static kelp_status unary_result(struct kelp_rpc_channel *channel, struct unary *unary,
                                struct kelp_rpc_message **ret_answer, struct kelp_error *reterr)
{
    kelp_status status = kelp__rpc_status_from_grpc(unary->code, &unary->trailing_metadata);

    if (status != KELP_OK) {
        char text[KELP_RPC_TEXT_MAX + 1];
        size_t length = GRPC_SLICE_LENGTH(unary->details);
        (void)snprintf(text, sizeof(text), "%.*s",
                       (int)(length < KELP_RPC_TEXT_MAX ? length : KELP_RPC_TEXT_MAX),
                       (const char *)GRPC_SLICE_START_PTR(unary->details));
        return kelp_fail(reterr, status, "%s: %s", channel->target, kelp__rpc_cause(text));
    }
    struct kelp_rpc_message *answer = NULL;
    if (unary->received) {
        answer = kelp__rpc_message_from_buffer(unary->received);
        unary->received = NULL;
    }
    if (!answer) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: no answer message, or a compressed one",
                         channel->target);
    }
    *ret_answer = answer;
    return KELP_OK;
}

kelp_status kelp_rpc_call(struct kelp_rpc_channel *channel, const char *path,
                          struct kelp_rpc_message *request, uint32_t deadline_ms,
                          struct kelp_rpc_message **ret_answer, struct kelp_error *reterr)
{
    grpc_channel *to = newest(channel);
    try_again_blocking(channel, to);
    struct unary *unary = unary_start(to, path, request, deadline_ms);
    gpr_timespec never = gpr_inf_future(GPR_CLOCK_MONOTONIC);

    kelp_rpc_message_unref(request);
    if (!unary) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a call to %s", channel->target);
    }
    /* The deadline ends both of these. */
    (void)grpc_completion_queue_pluck(unary->queue, &unary->status_tag, never, NULL);
    (void)grpc_completion_queue_pluck(unary->queue, &unary->read_tag, never, NULL);
    kelp_status status = unary_result(channel, unary, ret_answer, reterr);

    gpr_timespec now = gpr_now(GPR_CLOCK_MONOTONIC);
    grpc_event event = grpc_completion_queue_pluck(unary->queue, &unary->write_tag, now, NULL);
    if (event.type == GRPC_OP_COMPLETE) {
        unary_free(unary);
    } else {
        (void)pthread_mutex_lock(&channel->lock);
        unary->next = channel->stuck;
        channel->stuck = unary;
        (void)pthread_mutex_unlock(&channel->lock);
    }
    return status;
}
