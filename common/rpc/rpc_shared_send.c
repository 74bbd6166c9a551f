/*
 * Sending through shared memory.
 *
 * The thread that sends a message also transfers it, as far as there is room. The first segment,
 * which has the fields, is copied into the ring. The peer reads the rest in place: where it was
 * lent, if that is in an area; otherwise in an area of ours, into which it is copied once, and
 * which is reused after the peer has released it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rpc/rpc_shared_stream_internal.h"
#include "common/shm/layout.h"

#define COPIED_MAX (KELP_SHM_COPIED_MAX - sizeof(struct kelp__rpc_head))
/* Areas kept for reuse: usually as many as a step has pieces. */
#define IDLE_MAX 32

/* ---- memory ---- */

void kelp__rpc_bounce_free(struct kelp__rpc_bounce *bounce)
{
    kelp_shm_area_retire(bounce->area);
    kelp_shm_area_unref(bounce->area);
    free(bounce);
}

/* Take an area of at least so many bytes. NULL: out of memory. */
static struct kelp__rpc_bounce *bounce_take(struct kelp_rpc_shared_stream *shared, size_t bytes)
{
    size_t room = 64u << 10;

    for (struct kelp__rpc_bounce **at = &shared->idle; *at; at = &(*at)->next) {
        struct kelp__rpc_bounce *bounce = *at;
        if (kelp_shm_area_length(bounce->area) >= bytes) {
            *at = bounce->next;
            shared->idle_count--;
            return bounce;
        }
    }
    while (room < bytes) {
        room *= 2;
    }
    struct kelp__rpc_bounce *bounce = calloc(1, sizeof(*bounce));
    if (!bounce || kelp_shm_area_create(room, &bounce->area, NULL) != KELP_OK) {
        free(bounce);
        return NULL;
    }
    bounce->shared = shared;
    return bounce;
}

/* A server's answers wait for a slow reader instead of taking memory for each reader. A client's
 * messages do not wait: a shard may hold them until other clients have sent theirs. */
static bool may_lend(const struct kelp_rpc_shared_stream *shared, size_t bytes)
{
    return !shared->stream.server || shared->lent_bytes == 0 ||
           shared->lent_bytes + bytes <= KELP_RPC_SHARED_LENT_MAX;
}

/* The peer has released it (read), or has gone and may still read. */
static void bounce_done(void *user, bool read)
{
    struct kelp__rpc_bounce *bounce = user;
    struct kelp_rpc_shared_stream *shared = bounce->shared;

    shared->lent_bytes -= kelp_shm_area_length(bounce->area);
    if (!read || shared->idle_count == IDLE_MAX) {
        kelp__rpc_bounce_free(bounce);
        return;
    }
    bounce->next = shared->idle;
    shared->idle = bounce;
    shared->idle_count++;
}

/* ---- sending; the stream's lock is held ---- */

/* Copy the segments from `first` on, concatenated. */
static void gather(const struct kelp_rpc_message *message, size_t first, uint8_t *to)
{
    for (size_t i = first; i < kelp_rpc_message_segment_count(message); i++) {
        const struct kelp_rpc_segment segment = kelp_rpc_message_segment(message, i);
        memcpy(to, segment.bytes, segment.length);
        to += segment.length;
    }
}

static kelp_status put_small(struct kelp_rpc_shared_stream *shared,
                             const struct kelp_rpc_message *message)
{
    const struct kelp__rpc_head head = {.kind = KELP__RPC_KIND_MESSAGE};
    struct kelp_shm_part parts[KELP_SHM_PARTS_MAX];
    const size_t count = kelp_rpc_message_segment_count(message);

    parts[0] = (struct kelp_shm_part){.bytes = &head, .length = sizeof(head)};
    for (size_t i = 0; i < count; i++) {
        const struct kelp_rpc_segment segment = kelp_rpc_message_segment(message, i);
        parts[1 + i] = (struct kelp_shm_part){.bytes = segment.bytes, .length = segment.length};
    }
    return kelp_shm_channel_send(shared->channel, parts, 1 + count, NULL, NULL, NULL);
}

static kelp_status put_large(struct kelp_rpc_shared_stream *shared,
                             const struct kelp_rpc_message *message)
{
    const struct kelp__rpc_head head = {.kind = KELP__RPC_KIND_MESSAGE};
    struct kelp_rpc_segment fields = kelp_rpc_message_segment(message, 0);
    const size_t copied = fields.length <= COPIED_MAX ? 1 : 0; /* segments copied into the ring */
    const size_t length = kelp_rpc_message_length(message) - (copied > 0 ? fields.length : 0);

    kelp_shm_channel_collect(shared->channel);
    if (!may_lend(shared, length)) {
        kelp_shm_channel_want(shared->channel);
        kelp_shm_channel_collect(shared->channel); /* released before they saw the wish */
    }
    struct kelp__rpc_bounce *bounce = may_lend(shared, length) ? bounce_take(shared, length) : NULL;
    if (!bounce) {
        return may_lend(shared, length) ? KELP_ERR_NO_MEMORY : KELP_ERR_BUSY;
    }
    shared->lent_bytes += kelp_shm_area_length(bounce->area);
    const struct kelp_shm_part parts[] = {
        {.bytes = &head, .length = sizeof(head)},
        {.bytes = fields.bytes, .length = copied > 0 ? fields.length : 0},
        {.bytes = kelp_shm_area_bytes(bounce->area), .length = length, .area = bounce->area}};
    gather(message, copied, kelp_shm_area_bytes(bounce->area));
    kelp_status status = kelp_shm_channel_send(shared->channel, parts, KELP_ARRAY_COUNT(parts),
                                               bounce_done, bounce, NULL);
    if (status == KELP_OK) {
        kelp_shm_area_settle(bounce->area); /* only this peer reads it */
    } else {
        bounce_done(bounce, true);
    }
    return status;
}

/* Can its segments be read in place? All except a few small ones lie in areas. */
static bool is_in_areas(const struct kelp_rpc_message *message)
{
    const size_t count = kelp_rpc_message_segment_count(message);
    size_t copied = 0;

    if (!message->lent || count >= KELP_SHM_PARTS_MAX) {
        return false;
    }
    for (size_t i = 0; i < count && copied <= COPIED_MAX; i++) {
        if (!kelp__rpc_message_area(message, i)) {
            copied += kelp_rpc_message_segment(message, i).length;
        }
    }
    return copied <= COPIED_MAX;
}

static void lent_done(void *user, bool read)
{
    struct kelp_rpc_message *message = user;

    if (!read) {
        kelp__rpc_message_unread(message);
    }
    kelp_rpc_message_unref(message);
}

/* Errors: as kelp_shm_channel_send(); KELP_ERR_LIMIT: a copy may be sent instead. */
static kelp_status put_lent(struct kelp_rpc_shared_stream *shared, struct kelp_rpc_message *message)
{
    const struct kelp__rpc_head head = {.kind = KELP__RPC_KIND_MESSAGE};
    struct kelp_shm_part parts[KELP_SHM_PARTS_MAX];
    const size_t count = kelp_rpc_message_segment_count(message);

    parts[0] = (struct kelp_shm_part){.bytes = &head, .length = sizeof(head)};
    for (size_t i = 0; i < count; i++) {
        const struct kelp_rpc_segment segment = kelp_rpc_message_segment(message, i);
        parts[1 + i] = (struct kelp_shm_part){.bytes = segment.bytes,
                                              .length = segment.length,
                                              .area = kelp__rpc_message_area(message, i)};
    }
    kelp_rpc_message_ref(message); /* until it is released */
    kelp_status status =
        kelp_shm_channel_send(shared->channel, parts, 1 + count, lent_done, message, NULL);
    if (status != KELP_OK) {
        kelp_rpc_message_unref(message);
    }
    return status;
}

static kelp_status put(struct kelp_rpc_shared_stream *shared, struct kelp_rpc_message *message)
{
    if (kelp_rpc_message_length(message) <= COPIED_MAX &&
        kelp_rpc_message_segment_count(message) < KELP_SHM_PARTS_MAX) {
        return put_small(shared, message);
    }
    kelp_status status = is_in_areas(message) ? put_lent(shared, message) : KELP_ERR_LIMIT;
    return status == KELP_ERR_LIMIT ? put_large(shared, message) : status;
}

void kelp__rpc_shared_break_off(struct kelp_rpc_shared_stream *shared)
{
    shared->stream.broken = true;
    shared->ended = true;
}

static kelp_status put_opening(struct kelp_rpc_shared_stream *shared)
{
    const struct kelp__rpc_head head = {.kind = KELP__RPC_KIND_OPEN};
    const struct kelp_shm_part parts[] = {
        {.bytes = &head, .length = sizeof(head)},
        {.bytes = shared->opening, .length = strlen(shared->opening)}};

    return kelp_shm_channel_send(shared->channel, parts, KELP_ARRAY_COUNT(parts), NULL, NULL, NULL);
}

/* Send waiting messages as far as there is room. */
void kelp__rpc_shared_flush(struct kelp_rpc_shared_stream *shared)
{
    struct kelp_rpc_stream *stream = &shared->stream;

    if (shared->opening && !stream->broken) {
        const kelp_status status = put_opening(shared);
        if (status == KELP_ERR_BUSY) {
            return;
        }
        free(shared->opening);
        shared->opening = NULL;
        stream->broken = status != KELP_OK; /* receiving reports the end */
    }
    while (!stream->broken) {
        if (!shared->pending) {
            shared->pending = kelp__rpc_queue_pop(&stream->queue, &shared->pending_bytes);
        }
        if (!shared->pending) {
            return;
        }
        kelp_status status = put(shared, shared->pending);
        if (status == KELP_ERR_BUSY) {
            return;
        }
        kelp__rpc_queue_done(&stream->queue, shared->pending_bytes);
        kelp_rpc_message_unref(shared->pending);
        shared->pending = NULL;
        if (status != KELP_OK && status != KELP_ERR_CLOSED) {
            stream->status = status;
            (void)snprintf(stream->text, sizeof(stream->text), "shared memory: %s",
                           kelp_status_text(status));
            kelp__rpc_shared_break_off(shared);
        } else if (status == KELP_ERR_CLOSED) {
            stream->broken = true; /* receiving reports what was sent before, then the end */
        }
    }
}

/* Send the end after the queued messages; nothing follows it. */
void kelp__rpc_shared_send_end(struct kelp_rpc_shared_stream *shared)
{
    struct kelp_rpc_stream *stream = &shared->stream;
    const struct kelp__rpc_head head = {.kind = KELP__RPC_KIND_END, .status = stream->status};
    const struct kelp_shm_part parts[] = {{.bytes = &head, .length = sizeof(head)},
                                          {.bytes = stream->text, .length = strlen(stream->text)}};

    kelp__rpc_shared_flush(shared);
    if (stream->broken) {
        shared->ended = true;
    } else if (!shared->pending && stream->queue.count == 0 && !shared->ended) {
        kelp_status status = kelp_shm_channel_send(shared->channel, parts, 2, NULL, NULL, NULL);
        shared->ended = status != KELP_ERR_BUSY;
    }
}

kelp_status kelp__rpc_shared_stream_send(struct kelp_rpc_shared_stream *shared,
                                         struct kelp_rpc_message *message)
{
    struct kelp_rpc_stream *stream = &shared->stream;
    kelp_status status = KELP_OK;
    bool kick = false;

    (void)pthread_mutex_lock(&stream->lock);
    if (stream->closing || stream->broken) {
        status = KELP_ERR_CLOSED;
    } else if (kelp_rpc_message_length(message) > stream->message_bytes_max) {
        status = KELP_ERR_LIMIT;
    } else {
        status = kelp__rpc_queue_push(&stream->queue, message);
    }
    if (status == KELP_OK) {
        kelp__rpc_shared_flush(shared);
        kick = stream->broken;
        atomic_fetch_add(&shared->refs, kick ? 1 : 0);
    }
    (void)pthread_mutex_unlock(&stream->lock);
    if (status != KELP_OK) {
        kelp_rpc_message_unref(message);
    }
    if (kick) {
        kelp__rpc_shared_look(shared);
    }
    return status;
}
