#include "coordinator/streams/leader_streams.h"

#include <stdlib.h>

#include "common/log/log.h"
#include "coordinator/common/term_now.h"
#include "proto/wire.h"

#define FOLLOW_PATH "/kelp.v1.Coordinator/Follow"

struct kelp_leader_stream {
    struct kelp_leader_streams *streams;
    struct kelp_rpc_channel *channel;
    struct kelp_rpc_stream *stream;
    uint64_t incarnation; /* of the process that should answer */
    bool greeted;
    bool stranger; /* another process answered */
};

static kelp_status greet(struct kelp_leader_stream *leader, const Kelp__V1__Hello *hello,
                         struct kelp_error *reterr)
{
    kelp_status status = kelp_identity_check(leader->streams->identity, hello, reterr);
    if (status == KELP_OK && hello->incarnation != leader->incarnation) {
        status = kelp_fail(reterr, KELP_ERR_MISMATCH, "another process answers in its place");
    }
    leader->greeted = status == KELP_OK;
    return status;
}

static void on_message(struct kelp_rpc_stream *rpc, struct kelp_rpc_message *message, void *user)
{
    struct kelp_leader_stream *leader = user;
    struct kelp_leader_streams *streams = leader->streams;
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;
    struct kelp_error error;
    (void)kelp_term_now(streams->leadership);
    if (streams->current != leader || leader->stranger) {
        return;
    }
    kelp_status status =
        kelp_wire_decode(message, &kelp__v1__follow_reply__descriptor,
                         KELP_COORDINATOR_MESSAGE_BYTES, &fields, &payload, &error);
    if (status == KELP_OK && !leader->greeted) {
        status = greet(leader, ((const Kelp__V1__FollowReply *)(void *)fields)->hello, &error);
    }
    protobuf_c_message_free_unpacked(fields, NULL);
    if (status == KELP_OK) {
        kelp_leadership_leader_heard(streams->leadership);
        return;
    }
    leader->stranger = true;
    kelp_log_warn("who answers for the leader is not taken error=\"%s\"", error.text);
    kelp_rpc_stream_close(rpc, status, error.text);
}

/* Does the way the stream ended show that the leader lives? */
static bool is_answer(kelp_status status)
{
    return status != KELP_ERR_UNREACHABLE && status != KELP_ERR_TIMEOUT &&
           status != KELP_ERR_CLOSED && status != KELP_ERR_NOT_LEADER && status != KELP_OK;
}

static void on_closed(struct kelp_rpc_stream *rpc, kelp_status status, const char *text, void *user)
{
    struct kelp_leader_stream *leader = user;
    struct kelp_leader_streams *streams = leader->streams;
    bool alive = !leader->stranger && is_answer(status);
    bool wanted = streams->current == leader;
    (void)rpc;
    (void)kelp_term_now(streams->leadership);
    kelp_rpc_channel_close(leader->channel);
    free(leader);
    streams->count--;
    if (wanted) {
        kelp_log_debug("the stream to the leader has ended status=%s reason=\"%s\"",
                       kelp_status_name(status), text);
        streams->current = NULL;
        kelp_leadership_leader_lost(streams->leadership, alive);
    }
}

static const struct kelp_rpc_stream_events stream_events = {.message = on_message,
                                                            .closed = on_closed};

static kelp_status say_hello(struct kelp_leader_stream *leader)
{
    Kelp__V1__FollowRequest request = KELP__V1__FOLLOW_REQUEST__INIT;
    struct kelp_rpc_message *message = NULL;
    Kelp__V1__Hello hello;
    kelp_identity_hello(leader->streams->identity, &hello);
    request.hello = &hello;
    kelp_status status = kelp_wire_encode(&request.base, &message, NULL);
    return status == KELP_OK ? kelp_rpc_stream_send(leader->stream, message) : status;
}

/* Open a channel for this stream: one that has lost its peer would wait before it retries. */
static kelp_status open_stream(struct kelp_leader_stream *leader, const char *address,
                               struct kelp_error *reterr)
{
    kelp_status status =
        kelp_rpc_channel_open(leader->streams->loop, address, KELP_ROLE_COORDINATOR,
                              KELP_COORDINATOR_MESSAGE_BYTES, &leader->channel, reterr);
    if (status == KELP_OK) {
        status = kelp_rpc_stream_open(
            leader->channel,
            &(struct kelp_rpc_stream_options){.path = FOLLOW_PATH,
                                              .first_message_ms = KELP_COORDINATOR_FIRST_MS,
                                              .hello = true,
                                              .events = &stream_events,
                                              .user = leader},
            &leader->stream, reterr);
    }
    return status;
}

bool kelp_leader_streams_follow(struct kelp_leader_streams *streams,
                                const struct kelp_holder *holder)
{
    struct kelp_leader_stream *leader = calloc(1, sizeof(*leader));
    struct kelp_error error;
    kelp_leader_streams_unfollow(streams);
    if (!leader) {
        kelp_log_warn("the leader is not followed: out of memory");
        return false;
    }
    leader->streams = streams;
    leader->incarnation = holder->incarnation;
    if (open_stream(leader, holder->address, &error) != KELP_OK) {
        kelp_log_warn("the leader is not followed error=\"%s\"", error.text);
        kelp_rpc_channel_close(leader->channel);
        free(leader);
        return false;
    }
    streams->current = leader;
    streams->count++;
    if (say_hello(leader) != KELP_OK) { /* ends the stream */
        kelp_rpc_stream_close(leader->stream, KELP_ERR_NO_MEMORY, "no hello");
    }
    return true;
}

void kelp_leader_streams_unfollow(struct kelp_leader_streams *streams)
{
    if (streams->current) {
        kelp_rpc_stream_close(streams->current->stream, KELP_ERR_CLOSED, "not wanted any more");
        streams->current = NULL;
    }
}
