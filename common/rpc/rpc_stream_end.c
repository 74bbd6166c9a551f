/* How a stream ends: by its owner, its peer or a deadline, or with its caller's certificate. */
#include <stdio.h>
#include <time.h>

#include "common/rpc/rpc_shared_internal.h"
#include "common/rpc/rpc_stream_internal.h"

#define EXPIRY_LOOK_S 86400

/* The analyser does not follow reference counts, and takes any release for the last one.
 * NOLINTBEGIN(clang-analyzer-unix.Malloc) */

void kelp__rpc_stream_stop_timer(struct kelp_rpc_stream *stream, struct kelp_rpc_timer *timer)
{
    if (kelp__rpc_timer_unset(timer)) {
        kelp__rpc_stream_let_go(stream, false);
    }
}

/* The call has ended: stop the timers. */
void kelp__rpc_stream_watched(struct kelp__rpc_op *op, bool success)
{
    struct kelp_rpc_stream *stream = KELP_CONTAINER_OF(op, struct kelp_rpc_stream, watch_op);

    (void)success;
    (void)pthread_mutex_lock(&stream->lock);
    stream->broken = true; /* messages read before may still be delivered */
    (void)pthread_mutex_unlock(&stream->lock);
    kelp__rpc_stream_stop_timer(stream, &stream->close_timer);
    kelp__rpc_stream_stop_timer(stream, &stream->expiry_timer);
    kelp__rpc_stream_let_go(stream, false);
}

void kelp__rpc_stream_late(void *user)
{
    struct kelp_rpc_stream *stream = user;

    (void)pthread_mutex_lock(&stream->lock);
    stream->timed_out = !stream->closing && !stream->broken;
    stream->closing = true;
    (void)pthread_mutex_unlock(&stream->lock);
    (void)grpc_call_cancel(stream->call, NULL); /* harmless after the end */
    kelp__rpc_stream_let_go(stream, false);
}

static void close_late(void *user)
{
    struct kelp_rpc_stream *stream = user;

    (void)grpc_call_cancel(stream->call, NULL);
    kelp__rpc_stream_let_go(stream, false);
}

void kelp_rpc_stream_close(struct kelp_rpc_stream *stream, kelp_status status, const char *text)
{
    if (stream->shared) {
        kelp__rpc_shared_stream_close(stream->shared, status, text);
        return;
    }
    (void)pthread_mutex_lock(&stream->lock);
    if (stream->closing || stream->broken) {
        stream->closing = true; /* if broken, the status found by the watch stays */
        (void)pthread_mutex_unlock(&stream->lock);
        return;
    }
    stream->closing = true;
    stream->owner_closed = true;
    stream->status = status;
    (void)snprintf(stream->text, sizeof(stream->text), "%.*s", KELP_RPC_TEXT_MAX, text ? text : "");
    bool cancel = !stream->server && status != KELP_OK;
    stream->broken = cancel;
    stream->finish_wanted = !cancel;
    bool start = !cancel && !stream->sending;
    stream->sending = stream->sending || start;
    if (!cancel) {
        stream->holds++;
        kelp__rpc_timer_set(stream->loop, &stream->close_timer, KELP_RPC_CLOSE_MS, close_late,
                            stream);
    }
    stream->writes++; /* holds the call until we are done */
    (void)pthread_mutex_unlock(&stream->lock);

    if (cancel) {
        (void)grpc_call_cancel_with_status(stream->call, kelp__rpc_status_to_grpc(status),
                                           "closed by its owner", NULL);
    } else if (start) {
        kelp__rpc_stream_pump(stream);
    }
    kelp__rpc_stream_let_go(stream, true);
}

/* ---- the caller's certificate ---- */

static void expired(void *user);

/* Check again when the certificate expires, at the latest in a day, since clocks are set. The
 * timer holds a reference. */
void kelp__rpc_stream_await_expiry(struct kelp_rpc_stream *stream)
{
    const int64_t left_s = stream->caller.until_s - (int64_t)time(NULL);
    const int64_t wait_s = left_s < 0 ? 0 : left_s < EXPIRY_LOOK_S ? left_s : EXPIRY_LOOK_S;

    kelp__rpc_timer_set(stream->loop, &stream->expiry_timer, (uint32_t)wait_s * 1000, expired,
                        stream);
}

static void expired(void *user)
{
    struct kelp_rpc_stream *stream = user;
    const bool ends = (int64_t)time(NULL) >= stream->caller.until_s;

    (void)pthread_mutex_lock(&stream->lock);
    const bool again = !ends && !stream->broken; /* otherwise the watch has stopped the timer */
    if (again) {
        kelp__rpc_stream_await_expiry(stream);
    }
    (void)pthread_mutex_unlock(&stream->lock);
    if (ends) {
        kelp__rpc_log_expired(stream->peer);
        kelp_rpc_stream_close(stream, KELP_ERR_UNREACHABLE, "the certificate has ended");
    }
    if (!again) {
        kelp__rpc_stream_let_go(stream, false);
    }
}

/* NOLINTEND(clang-analyzer-unix.Malloc) */
