#include "coordinator/worker_sessions.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "coordinator/checkpointing.h"
#include "coordinator/plan_offer.h"
#include "coordinator/status_reply.h"
#include "coordinator/wire_map.h"
#include "proto/wire.h"

enum session_state {
    SESSION_NEW,    /* no hello yet */
    SESSION_HELD,   /* waits until etcd has been read */
    SESSION_MEMBER, /* has a key in the membership */
    SESSION_CLOSING
};

struct kelp_session {
    struct kelp_coordinator *coordinator;
    struct kelp_rpc_stream *stream;
    struct kelp_session *next;
    enum session_state state;
    uint64_t opened_ms;
    uint64_t key;                  /* of the membership */
    Kelp__V1__WorkerReport *hello; /* first message; owned; kept until its plan is settled */
    char id[KELP_COORDINATOR_ID_MAX + 1];
    bool hello_sent;
    uint64_t generation_sent; /* of the map; 0: none */
    bool lanes_sent;
    struct kelp_lane_range lanes; /* as sent */
    bool leave_sent;
};

/* ---- sending ----------------------------------------------------------------------------------
 */

static void session_send(struct kelp_session *session, const Kelp__V1__WorkerCommand *command)
{
    struct kelp_rpc_message *message = NULL;
    struct kelp_error error;
    kelp_status status = kelp_wire_encode(&command->base, &message, &error);
    if (status == KELP_OK) {
        status = kelp_rpc_stream_send(session->stream, message);
    }
    if (status != KELP_OK && status != KELP_ERR_CLOSED) {
        kelp_log_warn("command not sent worker=%s error=%s", session->id, kelp_status_text(status));
        kelp_rpc_stream_close(session->stream, status, kelp_status_text(status));
    }
}

static void session_close(struct kelp_session *session, kelp_status status, const char *text)
{
    session->state = SESSION_CLOSING;
    kelp_rpc_stream_close(session->stream, status, text);
}

/* Say why, then close: the worker gives up for good. */
static void refuse(struct kelp_session *session, kelp_status status, const char *text)
{
    Kelp__V1__WorkerCommand command = KELP__V1__WORKER_COMMAND__INIT;
    Kelp__V1__Hello hello;
    kelp_log_warn("worker refused worker=%s peer=%s reason=\"%s\"", session->id,
                  kelp_rpc_stream_peer(session->stream), text);
    kelp_coordinator_hello(session->coordinator, &hello);
    command.hello = session->hello_sent ? NULL : &hello;
    command.status = status;
    command.error = (char *)text; /* only read by the encoder */
    session_send(session, &command);
    session_close(session, status, text);
}

/* Put what the worker does not know yet into command; true if there is anything. */
static bool add_news(struct kelp_session *session, const struct kelp_wire_map *map,
                     Kelp__V1__WorkerCommand *command)
{
    struct kelp_coordinator *coordinator = session->coordinator;
    bool news = false;
    if (map != NULL && session->generation_sent != map->message.generation) {
        command->map = (Kelp__V1__Map *)&map->message; /* only read by the encoder */
        session->generation_sent = map->message.generation;
        news = true;
    }
    struct kelp_lane_range lanes =
        kelp_assignment_of(&coordinator->membership.assignment, session->key);
    if (!session->lanes_sent || lanes.first != session->lanes.first ||
        lanes.count != session->lanes.count) {
        command->has_assignment = 1;
        command->assignment_epoch = coordinator->membership.assignment.epoch;
        command->lane_first = lanes.first;
        command->lane_count = lanes.count;
        session->lanes = lanes;
        session->lanes_sent = true;
        news = true;
    }
    bool leave = coordinator->ended || kelp_checkpointer_holds(&coordinator->checkpointer);
    if (leave && !session->leave_sent) {
        command->leave = 1;
        session->leave_sent = true;
        news = true;
    }
    return news;
}

static void session_update(struct kelp_session *session, const struct kelp_wire_map *map, bool beat)
{
    Kelp__V1__WorkerCommand command = KELP__V1__WORKER_COMMAND__INIT;
    Kelp__V1__Hello hello;
    bool news = false;
    if (session->state != SESSION_HELD && session->state != SESSION_MEMBER) {
        return;
    }
    if (kelp_rpc_stream_queued(session->stream) > KELP_COORDINATOR_QUEUED_MAX) {
        return; /* it does not read: silence will end it */
    }
    if (session->state == SESSION_MEMBER) {
        news = add_news(session, map, &command);
    }
    if (!session->hello_sent) {
        kelp_coordinator_hello(session->coordinator, &hello);
        command.hello = &hello;
        session->hello_sent = true;
        news = true;
    }
    if (beat || news) {
        command.heartbeat = beat ? session->coordinator->heartbeat : 0;
        session_send(session, &command);
    }
}

void kelp_service_update(struct kelp_coordinator *coordinator, bool beat)
{
    struct kelp_wire_map wire;
    const struct kelp_map *map = kelp_placement_loaded_map(&coordinator->placement);
    if (map != NULL && kelp_wire_map_init(&wire, map) != KELP_OK) {
        kelp_log_warn("map not sent: out of memory");
        map = NULL; /* the next heartbeat tries again */
    }
    for (struct kelp_session *session = coordinator->sessions; session != NULL;
         session = session->next) {
        session_update(session, map == NULL ? NULL : &wire, beat);
    }
    if (map != NULL) {
        kelp_wire_map_fini(&wire);
    }
}

void kelp_service_map_changed(struct kelp_coordinator *coordinator)
{
    for (struct kelp_session *session = coordinator->sessions; session != NULL;
         session = session->next) {
        session->generation_sent = 0;
    }
}

/* ---- joining ----------------------------------------------------------------------------------
 */

static struct kelp_session *session_of(struct kelp_coordinator *coordinator, uint64_t key)
{
    struct kelp_session *session = coordinator->sessions;
    while (session != NULL && (session->state != SESSION_MEMBER || session->key != key)) {
        session = session->next;
    }
    return session;
}

static void replace(struct kelp_session *older, uint64_t by_incarnation)
{
    if (older->hello != NULL && older->hello->hello->incarnation == by_incarnation) {
        session_close(older, KELP_ERR_CLOSED, "the worker has opened another stream");
        return;
    }
    refuse(older, KELP_ERR_EXISTS, "another worker with the same id has joined");
}

/* Is this plan the job's? The first one becomes it. */
static kelp_status check_plan(struct kelp_coordinator *coordinator, const char *text,
                              struct kelp_error *reterr)
{
    struct kelp_plan plan;
    char line[sizeof(reterr->text)];
    if (coordinator->plan_state == KELP_PLAN_NONE) {
        return kelp_offer_plan(coordinator, text, reterr);
    }
    if (strcmp(text, coordinator->plan_text) == 0) {
        return KELP_OK;
    }
    kelp_status status = kelp_plan_parse(text, strlen(text), &plan, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "the worker's plan");
        return status;
    }
    bool differs = kelp_plan_difference(&coordinator->plan, &plan, coordinator->job->cluster.mixed,
                                        line, sizeof(line));
    kelp_plan_fini(&plan);
    return differs ? kelp_fail(reterr, KELP_ERR_MISMATCH, "%s", line) : KELP_OK;
}

static void admit(struct kelp_session *session)
{
    struct kelp_coordinator *coordinator = session->coordinator;
    const Kelp__V1__Hello *hello = session->hello->hello;
    struct kelp_member_joined joined = {
        .kind = KELP_MEMBER_WORKER, .id = hello->id, .incarnation = hello->incarnation};
    struct kelp_error error;
    uint64_t replaced = 0;
    kelp_status status = check_plan(coordinator, session->hello->plan, &error);
    if (status == KELP_OK) {
        status = kelp_membership_join(&coordinator->membership, &joined, coordinator->now_ms,
                                      &session->key, &replaced, &error);
    }
    if (status != KELP_OK) {
        refuse(session, status, error.text);
        return;
    }
    struct kelp_session *older = replaced == 0 ? NULL : session_of(coordinator, replaced);
    if (older != NULL) {
        replace(older, hello->incarnation);
    }
    session->state = SESSION_MEMBER;
    kelp_log_info("worker joined worker=%s incarnation=%" PRIu64 " peer=%s workers=%u", session->id,
                  hello->incarnation, kelp_rpc_stream_peer(session->stream),
                  coordinator->membership.counts[KELP_MEMBER_WORKER]);
    kelp_coordinator_count_workers(coordinator);
    kelp_service_update(coordinator, false);
}

/* The plan in etcd is settled: a member's own copy is not needed any more. */
static void drop_plan(struct kelp_session *session)
{
    free(session->hello->plan);
    session->hello->plan = NULL;
}

void kelp_service_review(struct kelp_coordinator *coordinator)
{
    struct kelp_session *next = NULL;
    for (struct kelp_session *session = coordinator->sessions; session != NULL; session = next) {
        next = session->next;
        if (session->state == SESSION_HELD) {
            admit(session);
        } else if (session->state == SESSION_MEMBER && session->hello->plan != NULL) {
            struct kelp_error error;
            kelp_status status = check_plan(coordinator, session->hello->plan, &error);
            if (status != KELP_OK) {
                kelp_membership_remove(&coordinator->membership, session->key, false);
                refuse(session, status, error.text);
                kelp_coordinator_count_workers(coordinator);
            } else if (coordinator->plan_state == KELP_PLAN_WRITTEN) {
                drop_plan(session);
            }
        }
    }
    kelp_service_update(coordinator, false);
}

static void take_hello(struct kelp_session *session, Kelp__V1__WorkerReport *report)
{
    struct kelp_error error;
    session->hello = report;
    kelp_status status = kelp_coordinator_check_hello(session->coordinator, report->hello, &error);
    if (status != KELP_OK) {
        refuse(session, status, error.text);
        return;
    }
    memcpy(session->id, report->hello->id, strlen(report->hello->id) + 1);
    session->state = SESSION_HELD;
    if (session->coordinator->read) {
        admit(session);
    }
}

/* ---- stream events ----------------------------------------------------------------------------
 */

static void take_report(struct kelp_session *session, const Kelp__V1__WorkerReport *report)
{
    struct kelp_coordinator *coordinator = session->coordinator;
    const struct kelp_member *member = kelp_membership_find(&coordinator->membership, session->key);
    struct kelp_member_heard heard = {
        .lanes_computed = report->lanes_computed,
        .version = report->version,
        .generation = report->generation,
        .assignment_epoch = report->assignment_epoch,
        .trouble = report->trouble,
    };
    if (member != NULL && report->trouble[0] != '\0' &&
        strncmp(member->trouble, report->trouble, sizeof(member->trouble) - 1) != 0) {
        kelp_log_warn("worker in trouble worker=%s trouble=\"%s\"", session->id, report->trouble);
    }
    kelp_membership_heard(&coordinator->membership, session->key, &heard, coordinator->now_ms);
}

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct kelp_session *session = user;
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;
    struct kelp_error error;
    (void)stream;
    kelp_coordinator_touch(session->coordinator);
    if (session->state == SESSION_CLOSING) {
        return;
    }
    kelp_status status =
        kelp_wire_decode(message, &kelp__v1__worker_report__descriptor,
                         KELP_COORDINATOR_MESSAGE_BYTES, &fields, &payload, &error);
    if (status != KELP_OK) {
        refuse(session, status, error.text);
        if (session->key != 0) {
            kelp_membership_remove(&session->coordinator->membership, session->key, true);
            kelp_coordinator_count_workers(session->coordinator);
            kelp_service_update(session->coordinator, false);
        }
        return;
    }
    Kelp__V1__WorkerReport *report = (Kelp__V1__WorkerReport *)(void *)fields;
    if (session->state == SESSION_NEW) {
        take_hello(session, report);
        return; /* keeps the report */
    }
    if (session->state == SESSION_MEMBER) {
        take_report(session, report);
    }
    kelp__v1__worker_report__free_unpacked(report, NULL);
}

static void session_unlink(struct kelp_session *session)
{
    struct kelp_session **at = &session->coordinator->sessions;
    while (*at != session) {
        at = &(*at)->next;
    }
    *at = session->next;
    session->coordinator->session_count--;
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct kelp_session *session = user;
    struct kelp_coordinator *coordinator = session->coordinator;
    (void)stream;
    kelp_coordinator_touch(coordinator);
    session_unlink(session);
    if (session->state == SESSION_MEMBER) {
        bool lost = status != KELP_OK;
        kelp_log(lost ? KELP_LOG_WARN : KELP_LOG_INFO, "worker %s worker=%s reason=\"%s\"",
                 lost ? "lost" : "left", session->id, text);
        kelp_membership_remove(&coordinator->membership, session->key, lost);
        kelp_coordinator_count_workers(coordinator);
        kelp_service_update(coordinator, false);
    }
    if (session->hello != NULL) {
        kelp__v1__worker_report__free_unpacked(session->hello, NULL);
    }
    free(session);
}

static const struct kelp_rpc_stream_events session_events = {.message = on_message,
                                                             .closed = on_closed};

static const struct kelp_rpc_stream_events *on_accept(struct kelp_rpc_stream *stream,
                                                      void *server_user, void **ret_user)
{
    struct kelp_coordinator *coordinator = server_user;
    struct kelp_session *session = calloc(1, sizeof(*session));
    if (session == NULL) {
        return NULL;
    }
    session->coordinator = coordinator;
    session->stream = stream;
    kelp_coordinator_touch(coordinator);
    session->opened_ms = coordinator->now_ms;
    (void)snprintf(session->id, sizeof(session->id), "?");
    session->next = coordinator->sessions;
    coordinator->sessions = session;
    coordinator->session_count++;
    *ret_user = session;
    if (!coordinator->leading) {
        session_close(session, KELP_ERR_NOT_LEADER, "this coordinator does not lead");
    } else if (coordinator->session_count > KELP_COORDINATOR_SESSIONS_MAX) {
        session_close(session, KELP_ERR_LIMIT, "too many streams");
    }
    return &session_events;
}

void kelp_service_lose(struct kelp_coordinator *coordinator, uint64_t key)
{
    struct kelp_session *session = session_of(coordinator, key);
    assert(session != NULL);
    kelp_log_warn("worker lost worker=%s reason=\"silent for %u ms\"", session->id,
                  coordinator->job->failure.detect_ms);
    kelp_membership_remove(&coordinator->membership, key, true);
    session_close(session, KELP_ERR_TIMEOUT, "silent for too long");
    kelp_coordinator_count_workers(coordinator);
    kelp_service_update(coordinator, false);
}

void kelp_service_tick(struct kelp_coordinator *coordinator)
{
    for (struct kelp_session *session = coordinator->sessions; session != NULL;
         session = session->next) {
        if (session->state == SESSION_NEW &&
            coordinator->now_ms > session->opened_ms + KELP_COORDINATOR_HELLO_MS) {
            session_close(session, KELP_ERR_TIMEOUT, "no hello");
        }
    }
}

void kelp_service_close_all(struct kelp_coordinator *coordinator)
{
    for (struct kelp_session *session = coordinator->sessions; session != NULL;
         session = session->next) {
        if (session->state == SESSION_MEMBER) {
            kelp_membership_remove(&coordinator->membership, session->key, false);
        }
        if (session->state != SESSION_CLOSING) {
            session_close(session, KELP_ERR_NOT_LEADER, "this coordinator does not lead any more");
        }
    }
}

/* ---- methods ----------------------------------------------------------------------------------
 */

static void on_status(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                      void *server_user)
{
    struct kelp_coordinator *coordinator = server_user;
    struct kelp_rpc_message *answer = NULL;
    struct kelp_error error;
    (void)message; /* the request has no fields */
    kelp_coordinator_touch(coordinator);
    if (!coordinator->leading) {
        kelp_rpc_request_fail(request, KELP_ERR_NOT_LEADER, "this coordinator does not lead");
        return;
    }
    kelp_status status = kelp_status_reply(coordinator, &answer, &error);
    if (status != KELP_OK) {
        kelp_rpc_request_fail(request, status, error.text);
        return;
    }
    kelp_rpc_request_answer(request, answer);
}

/* Only taken here: how it ended is seen in Status. */
static kelp_status take_request(struct kelp_coordinator *coordinator, bool pause,
                                uint64_t *ret_serial, struct kelp_error *reterr)
{
    const struct kelp_placement *placement = &coordinator->placement;
    if (!coordinator->read) {
        return kelp_fail(reterr, KELP_ERR_BUSY, "the leader has not read the job's state yet");
    }
    if (placement->state == KELP_PLACEMENT_FAILED || placement->state == KELP_PLACEMENT_PAUSED) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "the job is %s: %.300s",
                         kelp_placement_state_text(placement->state), placement->reason);
    }
    kelp_checkpointing_apply(coordinator, (struct kelp_checkpointer_event){
                                              .kind = KELP_CHECKPOINTER_REQUEST, .pause = pause});
    *ret_serial = coordinator->checkpointer.requested;
    return KELP_OK;
}

static void on_checkpoint(struct kelp_rpc_request *request, struct kelp_rpc_message *message,
                          void *server_user)
{
    struct kelp_coordinator *coordinator = server_user;
    Kelp__V1__CheckpointReply reply = KELP__V1__CHECKPOINT_REPLY__INIT;
    struct kelp_rpc_message *answer = NULL;
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;
    struct kelp_error error = {.text = ""};
    kelp_coordinator_touch(coordinator);
    if (!coordinator->leading) {
        kelp_rpc_request_fail(request, KELP_ERR_NOT_LEADER, "this coordinator does not lead");
        return;
    }
    kelp_status status =
        kelp_wire_decode(message, &kelp__v1__checkpoint_request__descriptor,
                         KELP_COORDINATOR_MESSAGE_BYTES, &fields, &payload, &error);
    if (status == KELP_OK) {
        const Kelp__V1__CheckpointRequest *asked =
            (const Kelp__V1__CheckpointRequest *)(void *)fields;
        reply.status = take_request(coordinator, asked->pause, &reply.serial, &error);
        reply.error = error.text;
        protobuf_c_message_free_unpacked(fields, NULL);
        status = kelp_wire_encode(&reply.base, &answer, &error);
    }
    if (status != KELP_OK) {
        kelp_rpc_request_fail(request, status, error.text);
        return;
    }
    kelp_rpc_request_answer(request, answer);
}

static const struct kelp_rpc_method methods[] = {
    {.path = "/kelp.v1.Coordinator/Join", .accept = on_accept},
    {.path = "/kelp.v1.Coordinator/Status", .unary = on_status},
    {.path = "/kelp.v1.Coordinator/Checkpoint", .unary = on_checkpoint},
};

const struct kelp_rpc_method *kelp_service_methods(size_t *ret_count)
{
    *ret_count = KELP_ARRAY_COUNT(methods);
    return methods;
}
