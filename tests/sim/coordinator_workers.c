/* A simulated coordinator's streams of workers (coordinator/worker_sessions.c). */
#include <string.h>

#include "tests/sim/coordinator.h"

static struct sim_session *session_of(struct sim_coordinator *coordinator, uint64_t key)
{
    for (size_t i = 0; i < SIM_SESSIONS_MAX; i++) {
        struct sim_session *session = &coordinator->sessions[i];
        if (session->state == SIM_SESSION_MEMBER && session->key == key) {
            return session;
        }
    }
    return NULL;
}

static struct sim_session *session_on(struct sim_coordinator *coordinator, uint64_t stream)
{
    for (size_t i = 0; i < SIM_SESSIONS_MAX; i++) {
        struct sim_session *session = &coordinator->sessions[i];
        if (session->state != SIM_SESSION_FREE && session->stream == stream) {
            return session;
        }
    }
    return NULL;
}

static void session_close(struct sim_coordinator *coordinator, struct sim_session *session)
{
    session->state = SIM_SESSION_FREE;
    sim_stream_close(coordinator->sim, session->stream, SIM_SERVER);
}

static bool add_news(struct sim_coordinator *coordinator, struct sim_session *session,
                     struct sim_map *map, struct sim_worker_command *command)
{
    const struct kelp_assignment *assignment = &coordinator->membership.assignment;
    struct kelp_lane_range lanes = kelp_assignment_of(assignment, session->key);
    bool news = false;
    if (map && session->generation_sent != map->map.generation) {
        command->map = sim_map_ref(map);
        session->generation_sent = map->map.generation;
        news = true;
    }
    if (!session->lanes_sent || lanes.first != session->lanes.first ||
        lanes.count != session->lanes.count) {
        command->has_assignment = true;
        command->assignment_epoch = assignment->epoch;
        command->lane_first = lanes.first;
        command->lane_count = lanes.count;
        session->lanes = lanes;
        session->lanes_sent = true;
        news = true;
    }
    bool leave = coordinator->ended || kelp_checkpointer_holds(&coordinator->checkpointer);
    if (leave && !session->leave_sent) {
        command->leave = true;
        session->leave_sent = true;
        news = true;
    }
    return news;
}

static void session_update(struct sim_coordinator *coordinator, struct sim_session *session,
                           struct sim_map *map, bool beat)
{
    if (session->state != SIM_SESSION_HELD && session->state != SIM_SESSION_MEMBER) {
        return;
    }
    struct sim_worker_command *command = sim_message_create(SIM_WORKER_COMMAND, sizeof(*command));
    bool news =
        session->state == SIM_SESSION_MEMBER && add_news(coordinator, session, map, command);
    if (!beat && !news) {
        sim_message_unref(&command->base);
        return;
    }
    command->heartbeat = beat ? coordinator->heartbeat : 0;
    sim_stream_send(coordinator->sim, session->stream, SIM_SERVER, command);
}

void sim_sessions_update(struct sim_coordinator *coordinator, bool beat)
{
    const struct kelp_map *loaded = kelp_placement_loaded_map(&coordinator->placement);
    struct sim_map *map = loaded ? sim_map_create(loaded) : NULL;
    for (size_t i = 0; i < SIM_SESSIONS_MAX; i++) {
        session_update(coordinator, &coordinator->sessions[i], map, beat);
    }
    sim_map_unref(map);
}

void sim_sessions_map_changed(struct sim_coordinator *coordinator)
{
    for (size_t i = 0; i < SIM_SESSIONS_MAX; i++) {
        coordinator->sessions[i].generation_sent = 0;
    }
}

static void admit(struct sim_coordinator *coordinator, struct sim_session *session)
{
    const struct sim_process *worker = &coordinator->sim->processes[session->place];
    struct kelp_member_joined joined = {
        .kind = KELP_MEMBER_WORKER, .id = worker->id, .incarnation = session->incarnation};
    uint64_t replaced = 0;
    if (coordinator->plan == SIM_PLAN_NONE) {
        coordinator->plan = SIM_PLAN_OFFERED;
        coordinator->plan_at_ms = coordinator->now_ms;
    }
    if (kelp_membership_join(&coordinator->membership, &joined, coordinator->now_ms, &session->key,
                             &replaced, NULL) != KELP_OK) {
        session_close(coordinator, session);
        return;
    }
    struct sim_session *older = replaced == 0 ? NULL : session_of(coordinator, replaced);
    if (older) {
        session_close(coordinator, older);
    }
    session->state = SIM_SESSION_MEMBER;
    sim_say(coordinator->sim, coordinator->process, "admits %s", worker->id);
    sim_coordinator_count_workers(coordinator);
    sim_sessions_update(coordinator, false);
}

void sim_sessions_review(struct sim_coordinator *coordinator)
{
    for (size_t i = 0; i < SIM_SESSIONS_MAX; i++) {
        if (coordinator->sessions[i].state == SIM_SESSION_HELD) {
            admit(coordinator, &coordinator->sessions[i]);
        }
    }
    sim_sessions_update(coordinator, false);
}

static void session_lost(struct sim_coordinator *coordinator, uint64_t key)
{
    kelp_membership_remove(&coordinator->membership, key, true);
    sim_coordinator_count_workers(coordinator);
    sim_sessions_update(coordinator, false);
}

void sim_sessions_lose(struct sim_coordinator *coordinator, uint64_t key)
{
    struct sim_session *session = session_of(coordinator, key);
    sim_say(coordinator->sim, coordinator->process, "takes %s for lost: it is silent",
            coordinator->sim->processes[session->place].id);
    session_close(coordinator, session);
    session_lost(coordinator, key);
}

void sim_sessions_close_all(struct sim_coordinator *coordinator)
{
    for (size_t i = 0; i < SIM_SESSIONS_MAX; i++) {
        if (coordinator->sessions[i].state != SIM_SESSION_FREE) {
            session_close(coordinator, &coordinator->sessions[i]);
        }
    }
}

static void on_join(struct sim *sim, struct sim_process *process, uint64_t stream)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    for (size_t i = 0; i < SIM_SESSIONS_MAX && coordinator->leading; i++) {
        if (coordinator->sessions[i].state == SIM_SESSION_FREE) {
            coordinator->sessions[i] =
                (struct sim_session){.state = SIM_SESSION_NEW, .stream = stream};
            return;
        }
    }
    sim_stream_close(sim, stream, SIM_SERVER);
}

static void on_worker_report(struct sim *sim, struct sim_process *process, uint64_t stream,
                             struct sim_message *message, bool stray)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_session *session = session_on(coordinator, stream);
    const struct sim_worker_report *report = (const struct sim_worker_report *)message;
    (void)stray; /* join streams are not doubled */
    sim_coordinator_touch(coordinator);
    if (!session) {
        return;
    }
    if (session->state == SIM_SESSION_NEW) {
        session->place = sim_stream_peer(sim, stream, SIM_SERVER)->place;
        session->incarnation = report->incarnation;
        session->state = SIM_SESSION_HELD;
        if (coordinator->read) {
            admit(coordinator, session);
        }
        return;
    }
    struct kelp_member_heard heard = {.version = report->version,
                                      .generation = report->generation,
                                      .assignment_epoch = report->assignment_epoch};
    if (session->state == SIM_SESSION_MEMBER) {
        kelp_membership_heard(&coordinator->membership, session->key, &heard, coordinator->now_ms);
    }
}

static void on_worker_closed(struct sim *sim, struct sim_process *process, uint64_t stream,
                             bool broken)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_session *session = session_on(coordinator, stream);
    (void)sim;
    (void)broken;
    sim_coordinator_touch(coordinator);
    if (!session) {
        return;
    }
    bool member = session->state == SIM_SESSION_MEMBER;
    session->state = SIM_SESSION_FREE;
    if (member) {
        session_lost(coordinator, session->key);
    }
}

const struct sim_stream_events sim_join_server = {
    .accept = on_join, .message = on_worker_report, .closed = on_worker_closed};
