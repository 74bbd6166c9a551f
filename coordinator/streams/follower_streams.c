#include "coordinator/streams/follower_streams.h"

#include <stdlib.h>

#include "common/log/log.h"
#include "coordinator/common/term_now.h"
#include "proto/wire.h"

struct kelp_follower_stream {
    struct kelp_follower_streams *streams;
    struct kelp_rpc_stream *stream;
    struct kelp_follower_stream *next;
    bool greeted; /* its hello was accepted */
};

static void beat(struct kelp_follower_stream *follower, bool first)
{
    const struct kelp_follower_streams *streams = follower->streams;
    Kelp__V1__FollowReply reply = KELP__V1__FOLLOW_REPLY__INIT;
    struct kelp_rpc_message *message = NULL;
    Kelp__V1__Hello hello;
    if (first) {
        kelp_identity_hello(streams->identity, &hello);
        reply.hello = &hello;
    }
    reply.heartbeat = streams->heartbeat;
    kelp_status status = kelp_wire_encode(&reply.base, &message, NULL);
    if (status == KELP_OK) {
        status = kelp_rpc_stream_send(follower->stream, message);
    }
    if (status != KELP_OK && status != KELP_ERR_CLOSED) {
        kelp_rpc_stream_close(follower->stream, status, kelp_status_text(status));
    }
}

static kelp_status check(const struct kelp_follower_stream *follower,
                         const Kelp__V1__FollowRequest *request, struct kelp_error *reterr)
{
    kelp_status status = kelp_identity_check(follower->streams->identity, request->hello, reterr);
    return status == KELP_OK
               ? kelp_rpc_stream_check_id(follower->stream, request->hello->id, reterr)
               : status;
}

/* Refuse a caller that is not a coordinator of this job, or breaks the protocol. */
static void refuse(const struct kelp_follower_stream *follower, kelp_status status,
                   const char *text)
{
    kelp_figures_add(follower->streams->figures, KELP_FIGURE_COORDINATOR_STREAMS_REFUSED, 1);
    kelp_rpc_stream_close(follower->stream, status, text);
}

static void on_message(struct kelp_rpc_stream *rpc, struct kelp_rpc_message *message, void *user)
{
    struct kelp_follower_stream *follower = user;
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;
    struct kelp_error error;
    if (follower->greeted) {
        refuse(follower, KELP_ERR_FORMAT, "a hello is all that Follow takes");
        return;
    }
    kelp_status status =
        kelp_wire_decode(message, &kelp__v1__follow_request__descriptor,
                         KELP_COORDINATOR_MESSAGE_BYTES, &fields, &payload, &error);
    if (status == KELP_OK) {
        status = check(follower, (Kelp__V1__FollowRequest *)(void *)fields, &error);
        protobuf_c_message_free_unpacked(fields, NULL);
    }
    if (status != KELP_OK) {
        refuse(follower, status, error.text);
        return;
    }
    kelp_rpc_stream_trust(rpc);
    follower->greeted = true;
    beat(follower, true);
}

static void on_closed(struct kelp_rpc_stream *rpc, kelp_status status, const char *text, void *user)
{
    struct kelp_follower_stream *follower = user;
    struct kelp_follower_stream **at = &follower->streams->first;
    (void)rpc;
    (void)status;
    (void)text;
    while (*at != follower) {
        at = &(*at)->next;
    }
    *at = follower->next;
    follower->streams->count--;
    free(follower);
}

static const struct kelp_rpc_stream_events stream_events = {.message = on_message,
                                                            .closed = on_closed};

const struct kelp_rpc_stream_events *
kelp_follower_streams_accept(struct kelp_follower_streams *streams, struct kelp_rpc_stream *rpc,
                             void **ret_user)
{
    struct kelp_follower_stream *follower = calloc(1, sizeof(*follower));
    if (!follower) {
        return NULL;
    }
    follower->streams = streams;
    follower->stream = rpc;
    follower->next = streams->first;
    streams->first = follower;
    streams->count++;
    *ret_user = follower;
    if (!kelp_term_now(streams->leadership)) {
        kelp_rpc_stream_close(rpc, KELP_ERR_NOT_LEADER, "this coordinator does not lead");
    } else if (streams->count > KELP_COORDINATOR_FOLLOWERS_MAX) {
        refuse(follower, KELP_ERR_LIMIT, "too many coordinators stand by");
    }
    return &stream_events;
}

void kelp_follower_streams_tick(struct kelp_follower_streams *streams)
{
    if (!streams->leadership->term) {
        return;
    }
    streams->heartbeat++;
    for (struct kelp_follower_stream *follower = streams->first; follower;
         follower = follower->next) {
        if (follower->greeted &&
            kelp_rpc_stream_queued(follower->stream) < KELP_COORDINATOR_QUEUED_MAX) {
            beat(follower, false);
        }
    }
}

void kelp_follower_streams_end(struct kelp_follower_streams *streams)
{
    for (struct kelp_follower_stream *follower = streams->first; follower;
         follower = follower->next) {
        kelp_rpc_stream_close(follower->stream, KELP_ERR_NOT_LEADER,
                              "this coordinator leads no more");
    }
}
