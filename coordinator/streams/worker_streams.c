#include "coordinator/streams/worker_streams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "coordinator/common/term_now.h"
#include "coordinator/streams/status_reply.h"
#include "coordinator/streams/wire_map.h"
#include "proto/wire.h"

struct kelp_worker_stream {
    struct kelp_worker_streams *streams;
    struct kelp_rpc_stream *stream;
    struct kelp_worker_stream *next;
    struct kelp_session *session; /* of the term; NULL: none, or not any more */
    bool identified;              /* its first message has come */
    char id[KELP_COORDINATOR_ID_MAX + 1];
};

/* ---- sending ---- */

static void log_end(struct kelp_worker_stream *stream, const char *what, kelp_status status,
                    const char *reason)
{
    const char *peer = kelp_rpc_stream_peer(stream->stream);
    unsigned held = 0;

    if (kelp_log_gate_pass(&stream->streams->refusals, peer, status, &held)) {
        kelp_log_warn("%s worker=%s peer=%s reason=\"%s\" more_before=%u", what, stream->id, peer,
                      reason, held);
    }
}

static void send(struct kelp_worker_stream *stream, const Kelp__V1__WorkerCommand *command)
{
    struct kelp_rpc_message *message = NULL;
    struct kelp_error error;
    kelp_status status = kelp_wire_encode(&command->base, &message, &error);
    if (status == KELP_OK) {
        status = kelp_rpc_stream_send(stream->stream, message);
    }
    if (status != KELP_OK && status != KELP_ERR_CLOSED) {
        log_end(stream, "command not sent", status, kelp_status_text(status));
        kelp_rpc_stream_close(stream->stream, status, kelp_status_text(status));
    }
}

bool kelp_worker_stream_full(const struct kelp_worker_stream *stream)
{
    return kelp_rpc_stream_queued(stream->stream) > KELP_COORDINATOR_QUEUED_MAX;
}

void kelp_worker_stream_send(struct kelp_worker_stream *stream,
                             const struct kelp_session_news *news)
{
    Kelp__V1__WorkerCommand command = KELP__V1__WORKER_COMMAND__INIT;
    Kelp__V1__Hello hello;
    struct kelp_wire_map map = {.shards = NULL};
    if (news->hello) {
        kelp_identity_hello(stream->streams->identity, &hello);
        command.hello = &hello;
    }
    if (news->map) {
        kelp_status status = kelp_wire_map_init(&map, news->map);
        if (status != KELP_OK) {
            kelp_log_warn("map not sent: out of memory");
            kelp_rpc_stream_close(stream->stream, status, kelp_status_text(status));
            return;
        }
        command.map = &map.message;
    }
    command.has_assignment = news->has_lanes;
    command.assignment_epoch = news->assignment_epoch;
    command.lane_first = news->lanes.first;
    command.lane_count = news->lanes.count;
    command.rests = news->rests;
    command.error = (char *)(uintptr_t)(news->waits ? news->waits : ""); /* only read */
    command.leave = news->leave;
    command.drain = news->drain;
    command.beat_ms = news->beat_ms;
    send(stream, &command);
    kelp_wire_map_fini(&map);
}

void kelp_worker_stream_close(struct kelp_worker_stream *stream, kelp_status status,
                              const char *text)
{
    stream->session = NULL;
    kelp_rpc_stream_close(stream->stream, status, text);
}

void kelp_worker_streams_count_refused(void *server_user)
{
    struct kelp_worker_streams *streams = server_user;
    kelp_figures_add(streams->figures, KELP_FIGURE_COORDINATOR_STREAMS_REFUSED, 1);
}

/* The request cannot be read, or not be answered. */
static void refuse_request(struct kelp_worker_streams *streams, struct kelp_rpc_request *request,
                           const struct kelp_error *error)
{
    kelp_worker_streams_count_refused(streams);
    kelp_rpc_request_fail(request, error->status, error->text);
}

void kelp_worker_stream_refuse(struct kelp_worker_stream *stream, bool hello, kelp_status status,
                               const char *text)
{
    Kelp__V1__WorkerCommand command = KELP__V1__WORKER_COMMAND__INIT;
    Kelp__V1__Hello ours;
    kelp_worker_streams_count_refused(stream->streams);
    log_end(stream, "worker refused", status, text);
    kelp_identity_hello(stream->streams->identity, &ours);
    command.hello = hello ? &ours : NULL;
    command.status = status;
    command.error = (char *)text; /* only read by the encoder */
    send(stream, &command);
    kelp_worker_stream_close(stream, status, text);
}

/* ---- stream events ---- */

static void on_hello(struct kelp_worker_stream *stream, struct kelp_term *term,
                     const Kelp__V1__WorkerReport *report)
{
    struct kelp_error error;
    stream->identified = true;
    kelp_status status = kelp_identity_check(stream->streams->identity, report->hello, &error);
    if (status == KELP_OK) {
        status = kelp_rpc_stream_check_id(stream->stream, report->hello->id, &error);
    }
    if (status != KELP_OK) {
        kelp_term_worker_refused(term, stream->session, status, error.text);
        return;
    }
    kelp_rpc_stream_trust(stream->stream);
    const struct kelp_spiffe *name = kelp_rpc_stream_name(stream->stream);
    const struct kelp_session_hello hello = {.id = report->hello->id,
                                             .incarnation = report->hello->incarnation,
                                             .named = name && name->id[0] != '\0',
                                             .plan = report->plan,
                                             .peer = kelp_rpc_stream_peer(stream->stream)};
    (void)snprintf(stream->id, sizeof(stream->id), "%s", hello.id);
    kelp_term_worker_hello(term, stream->session, &hello);
}

/* False: there are no times, or they were not measured. */
static bool times_of(const Kelp__V1__WorkerTimes *from, struct kelp_worker_times *ret_times)
{
    if (!from || strlen(from->shard) >= sizeof(ret_times->shard)) {
        return false;
    }
    *ret_times = (struct kelp_worker_times){
        .serial = from->serial,
        .steps = from->steps,
        .lanes = from->lanes,
        .length_us = from->length_us,
        .read_us = from->read_us,
        .compute_us = from->compute_us,
        .push_us = from->push_us,
        .wait_us = from->wait_us,
        .alone_us = from->alone_us,
    };
    (void)snprintf(ret_times->shard, sizeof(ret_times->shard), "%s", from->shard);
    return kelp_worker_times_valid(ret_times);
}

static void on_report(struct kelp_worker_stream *stream, struct kelp_term *term,
                      const Kelp__V1__WorkerReport *report)
{
    struct kelp_worker_times times;
    const struct kelp_member_heard heard = {
        .lanes_computed = report->lanes_computed,
        .busy_us = report->busy_us,
        .version = report->version,
        .generation = report->generation,
        .assignment_epoch = report->assignment_epoch,
        .trouble = report->trouble,
        .times = times_of(report->times, &times) ? &times : NULL,
    };
    kelp_term_worker_heard(term, stream->session, report->news ? &heard : NULL);
}

static void on_message(struct kelp_rpc_stream *rpc, struct kelp_rpc_message *message, void *user)
{
    struct kelp_worker_stream *stream = user;
    struct kelp_term *term = kelp_term_now(stream->streams->leadership);
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;
    struct kelp_error error;
    (void)rpc;
    if (!stream->session) {
        return;
    }
    if (stream->identified && kelp_rpc_message_length(message) == 0) { /* many of these come */
        kelp_term_worker_heard(term, stream->session, NULL);
        return;
    }
    kelp_status status =
        kelp_wire_decode(message, &kelp__v1__worker_report__descriptor,
                         KELP_COORDINATOR_MESSAGE_BYTES, &fields, &payload, &error);
    if (status != KELP_OK) {
        kelp_term_worker_refused(term, stream->session, status, error.text);
        return;
    }
    Kelp__V1__WorkerReport *report = (Kelp__V1__WorkerReport *)(void *)fields;
    if (stream->identified) {
        on_report(stream, term, report);
    } else {
        on_hello(stream, term, report);
    }
    kelp__v1__worker_report__free_unpacked(report, NULL);
}

static void unlink_stream(struct kelp_worker_stream *stream)
{
    struct kelp_worker_stream **at = &stream->streams->first;
    while (*at != stream) {
        at = &(*at)->next;
    }
    *at = stream->next;
    stream->streams->count--;
}

static void on_closed(struct kelp_rpc_stream *rpc, kelp_status status, const char *text, void *user)
{
    struct kelp_worker_stream *stream = user;
    struct kelp_term *term = kelp_term_now(stream->streams->leadership);
    (void)rpc;
    unlink_stream(stream);
    if (stream->session) {
        kelp_term_worker_closed(term, stream->session, status != KELP_OK, text);
    }
    free(stream);
}

static const struct kelp_rpc_stream_events stream_events = {.message = on_message,
                                                            .closed = on_closed};

/* The unidentified stream that has waited longest; NULL: all are identified. */
static struct kelp_worker_stream *find_silent(const struct kelp_worker_streams *streams)
{
    struct kelp_worker_stream *oldest = NULL;
    for (struct kelp_worker_stream *stream = streams->first; stream; stream = stream->next) {
        if (stream->session && !stream->identified) {
            oldest = stream; /* the newest come first */
        }
    }
    return oldest;
}

/* A new stream came. False: it is one too many, and none can be closed for it. */
static bool make_room(struct kelp_worker_streams *streams, struct kelp_term *term)
{
    if (streams->count <= KELP_COORDINATOR_SESSIONS_MAX) {
        return true;
    }
    struct kelp_worker_stream *silent = find_silent(streams);
    if (silent) {
        kelp_term_worker_refused(term, silent->session, KELP_ERR_LIMIT,
                                 "too many streams: one that said nothing gives way");
    }
    return silent != NULL;
}

static const struct kelp_rpc_stream_events *on_accept(struct kelp_rpc_stream *rpc,
                                                      void *server_user, void **ret_user)
{
    struct kelp_worker_streams *streams = server_user;
    struct kelp_term *term = kelp_term_now(streams->leadership);
    struct kelp_worker_stream *stream = calloc(1, sizeof(*stream));
    if (!stream) {
        return NULL;
    }
    stream->streams = streams;
    stream->stream = rpc;
    (void)snprintf(stream->id, sizeof(stream->id), "?");
    stream->next = streams->first;
    streams->first = stream;
    streams->count++;
    *ret_user = stream;
    if (!term) {
        kelp_rpc_stream_close(rpc, KELP_ERR_NOT_LEADER, "this coordinator does not lead");
    } else if (!make_room(streams, term)) {
        kelp_worker_streams_count_refused(streams);
        kelp_rpc_stream_close(rpc, KELP_ERR_LIMIT, "too many streams");
    } else {
        stream->session = kelp_term_worker_opened(term, stream);
        if (!stream->session) {
            kelp_rpc_stream_close(rpc, KELP_ERR_NO_MEMORY, "no memory for a session");
        }
    }
    return &stream_events;
}

static const struct kelp_rpc_stream_events *on_follow(struct kelp_rpc_stream *rpc,
                                                      void *server_user, void **ret_user)
{
    const struct kelp_worker_streams *streams = server_user;
    return kelp_follower_streams_accept(streams->followers, rpc, ret_user);
}

/* ---- calls ---- */

static void on_status(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                      void *server_user)
{
    struct kelp_worker_streams *streams = server_user;
    struct kelp_term *term = kelp_term_now(streams->leadership);
    struct kelp_rpc_message *answer = NULL;
    struct kelp_error error;
    (void)message; /* the request has no fields */
    if (!term) {
        kelp_rpc_request_fail(request, KELP_ERR_NOT_LEADER, "this coordinator does not lead");
        return;
    }
    kelp_status status = kelp_status_reply(term, streams->identity, &answer, &error);
    if (status != KELP_OK) {
        kelp_rpc_request_fail(request, status, error.text);
        return;
    }
    kelp_rpc_request_answer(request, answer);
}

enum request { ASKED_CHECKPOINT, ASKED_PAUSE, ASKED_SIZE, ASKED_DRAIN };

static void tell_asked(struct kelp_worker_streams *streams, const struct kelp_rpc_request *request,
                       enum request what, kelp_status status)
{
    static const char *const texts[] = {"checkpoint", "pause", "another size", "a drain"};
    char peer[128];
    unsigned held = 0;
    kelp_rpc_request_peer(request, peer, sizeof(peer));
    if (kelp_log_gate_pass(&streams->requests, peer, (int)what, &held)) {
        kelp_log_info("%s asked for peer=%s status=%s more_before=%u", texts[what], peer,
                      kelp_status_name(status), held);
    }
}

/* The request is only accepted here; Status shows the outcome. */
static void on_checkpoint(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                          void *server_user)
{
    struct kelp_worker_streams *streams = server_user;
    struct kelp_term *term = kelp_term_now(streams->leadership);
    Kelp__V1__CheckpointReply reply = KELP__V1__CHECKPOINT_REPLY__INIT;
    struct kelp_rpc_message *answer = NULL;
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;
    struct kelp_error error = {.text = ""};
    if (!term) {
        kelp_rpc_request_fail(request, KELP_ERR_NOT_LEADER, "this coordinator does not lead");
        return;
    }
    kelp_status status =
        kelp_wire_decode(message, &kelp__v1__checkpoint_request__descriptor,
                         KELP_COORDINATOR_MESSAGE_BYTES, &fields, &payload, &error);
    if (status == KELP_OK) {
        const Kelp__V1__CheckpointRequest *asked =
            (const Kelp__V1__CheckpointRequest *)(void *)fields;
        reply.status = kelp_term_request(term, asked->pause, &reply.serial, &error);
        reply.error = error.text;
        tell_asked(streams, request, asked->pause ? ASKED_PAUSE : ASKED_CHECKPOINT, reply.status);
        protobuf_c_message_free_unpacked(fields, NULL);
        status = kelp_wire_encode(&reply.base, &answer, &error);
    }
    if (status != KELP_OK) {
        refuse_request(streams, request, &error);
        return;
    }
    kelp_rpc_request_answer(request, answer);
}

static kelp_status scale_or_drain(struct kelp_term *term, const Kelp__V1__ScaleRequest *asked,
                                  struct kelp_error *reterr)
{
    const Kelp__V1__Targets *targets = asked->targets;
    struct kelp_targets request = {.drain_count = 0};
    kelp_status status = KELP_OK;
    if (targets) {
        request.workers_min = targets->workers_min;
        request.workers_max = targets->workers_max;
        request.shards = targets->shards;
    }
    if (targets || asked->drain[0] == '\0') {
        status = kelp_term_scale(term, &request, reterr);
    }
    return status == KELP_OK && asked->drain[0] != '\0'
               ? kelp_term_drain(term, asked->drain, reterr)
               : status;
}

/* Likewise: Status shows when it is in etcd. */
static kelp_status scale(struct kelp_term *term, struct kelp_rpc_message *message,
                         Kelp__V1__ScaleReply *reply, enum request *ret_what,
                         struct kelp_error *reterr)
{
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;
    kelp_status status =
        kelp_wire_decode(message, &kelp__v1__scale_request__descriptor,
                         KELP_COORDINATOR_MESSAGE_BYTES, &fields, &payload, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const Kelp__V1__ScaleRequest *asked = (const Kelp__V1__ScaleRequest *)(void *)fields;
    *ret_what = asked->drain[0] != '\0' ? ASKED_DRAIN : ASKED_SIZE;
    reply->status = scale_or_drain(term, asked, reterr);
    protobuf_c_message_free_unpacked(fields, NULL);
    return KELP_OK;
}

static void on_scale(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                     void *server_user)
{
    struct kelp_worker_streams *streams = server_user;
    struct kelp_term *term = kelp_term_now(streams->leadership);
    Kelp__V1__ScaleReply reply = KELP__V1__SCALE_REPLY__INIT;
    struct kelp_rpc_message *answer = NULL;
    struct kelp_error error = {.text = ""};
    if (!term) {
        kelp_rpc_request_fail(request, KELP_ERR_NOT_LEADER, "this coordinator does not lead");
        return;
    }
    enum request what = ASKED_SIZE;
    kelp_status status = scale(term, message, &reply, &what, &error);
    if (status == KELP_OK) {
        reply.error = error.text;
        tell_asked(streams, request, what, (kelp_status)reply.status);
        status = kelp_wire_encode(&reply.base, &answer, &error);
    }
    if (status != KELP_OK) {
        refuse_request(streams, request, &error);
        return;
    }
    kelp_rpc_request_answer(request, answer);
}

static const struct kelp_rpc_method methods[] = {
    {.path = "/kelp.v1.Coordinator/Join",
     .roles = KELP_ROLE_BIT(KELP_ROLE_WORKER),
     .accept = on_accept},
    {.path = "/kelp.v1.Coordinator/Status",
     .roles = KELP_ROLE_BIT(KELP_ROLE_OPERATOR) | KELP_ROLE_BIT(KELP_ROLE_READER),
     .unary = on_status},
    {.path = "/kelp.v1.Coordinator/Checkpoint",
     .roles = KELP_ROLE_BIT(KELP_ROLE_OPERATOR),
     .unary = on_checkpoint},
    {.path = "/kelp.v1.Coordinator/Scale",
     .roles = KELP_ROLE_BIT(KELP_ROLE_OPERATOR),
     .unary = on_scale},
    {.path = "/kelp.v1.Coordinator/Follow",
     .roles = KELP_ROLE_BIT(KELP_ROLE_COORDINATOR),
     .accept = on_follow},
};

const struct kelp_rpc_method *kelp_worker_streams_methods(size_t *ret_count)
{
    *ret_count = KELP_ARRAY_COUNT(methods);
    return methods;
}
