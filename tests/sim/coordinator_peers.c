#include <string.h>

#include "tests/sim/coordinator.h"

/* ---- workers -----------------------------------------------------------------------------------
 */

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

/* ---- shards ------------------------------------------------------------------------------------
 */

static struct sim_link *link_on(struct sim_coordinator *coordinator, uint64_t stream)
{
    for (size_t i = 0; i < SIM_SHARDS_MAX; i++) {
        if (coordinator->links[i].used && coordinator->links[i].stream == stream) {
            return &coordinator->links[i];
        }
    }
    return NULL;
}

/* The order under way, or that the one before is given up, if the shard has the map that it is for
 * and does not know it yet. */
static bool add_order(const struct sim_coordinator *coordinator, struct sim_link *link,
                      struct sim_shard_command *command)
{
    const struct kelp_checkpointer *checkpointer = &coordinator->checkpointer;
    const struct kelp_checkpointer_order *order = &checkpointer->order;
    bool under_way = checkpointer->state == KELP_CHECKPOINTER_ORDERED;
    bool news = under_way ? link->order_sent != order->serial
                          : link->order_sent != 0 && link->order_sent == checkpointer->given_up;
    if (!news || kelp_map_find(&checkpointer->map, link->shard.id) < 0 ||
        link->generation_sent != checkpointer->map.generation) {
        return false;
    }
    command->has_order = true;
    command->order.serial = under_way ? order->serial : 0;
    command->order.generation = checkpointer->map.generation;
    command->order.step = order->step;
    (void)snprintf(command->folder, sizeof(command->folder), "%s", order->folder);
    link->order_sent = command->order.serial;
    return true;
}

static void link_update(struct sim_coordinator *coordinator, struct sim_link *link, bool beat)
{
    const struct kelp_map *map = &coordinator->placement.map;
    bool news = false;
    if (!link->used || link->stream == 0 || !link->greeted) {
        return;
    }
    struct sim_shard_command *command = sim_message_create(SIM_SHARD_COMMAND, sizeof(*command));
    if (!link->plan_sent && coordinator->plan == SIM_PLAN_WRITTEN) {
        command->plan = true;
        link->plan_sent = true;
        news = true;
    }
    if (map->generation > 0 && link->generation_sent != map->generation && link->plan_sent) {
        struct sim_manifest *manifest = sim_checkpoints_manifest(coordinator);
        command->map = sim_map_create(map);
        command->manifest = manifest ? sim_manifest_ref(manifest) : NULL;
        link->generation_sent = map->generation;
        link->map_heartbeat = coordinator->heartbeat + 1;
        news = true;
    }
    news = add_order(coordinator, link, command) || news;
    if (!news && !beat) {
        sim_message_unref(&command->base);
        return;
    }
    command->heartbeat = beat ? coordinator->heartbeat : 0;
    sim_stream_send(coordinator->sim, link->stream, SIM_CLIENT, command);
}

void sim_links_update(struct sim_coordinator *coordinator)
{
    for (size_t i = 0; i < SIM_SHARDS_MAX; i++) {
        link_update(coordinator, &coordinator->links[i], false);
    }
}

static void link_open(struct sim_coordinator *coordinator, struct sim_link *link)
{
    struct sim_shard_command *hello = sim_message_create(SIM_SHARD_COMMAND, sizeof(*hello));
    link->stream = sim_stream_open(coordinator->sim, coordinator->process,
                                   sim_find_id(coordinator->sim, link->shard.id), SIM_CONTROL,
                                   KELP_COORDINATOR_FIRST_MS);
    link->generation_sent = 0;
    link->order_sent = 0;
    link->plan_sent = coordinator->plan == SIM_PLAN_WRITTEN;
    hello->hello = true;
    hello->plan = link->plan_sent;
    hello->records_after = coordinator->progress.records_after;
    sim_stream_send(coordinator->sim, link->stream, SIM_CLIENT, hello);
}

/* The stream's closed() finds no link any more. */
static void link_close(struct sim_coordinator *coordinator, struct sim_link *link)
{
    if (link->stream != 0) {
        sim_stream_close(coordinator->sim, link->stream, SIM_CLIENT);
        link->stream = 0;
    }
}

/* broken: the shard's side ended the stream. */
static void disconnected(struct sim_coordinator *coordinator, struct sim_link *link, bool broken)
{
    if (!link->greeted) {
        return;
    }
    link->greeted = false;
    kelp_membership_remove(&coordinator->membership, link->key, false);
    sim_coordinator_place(coordinator,
                          (struct kelp_placement_event){.kind = KELP_PLACEMENT_DISCONNECTED,
                                                        .id = link->shard.id,
                                                        .broken = broken});
}

void sim_links_set(struct sim_coordinator *coordinator, const struct kelp_map_shard *shard)
{
    struct sim_link *link = NULL;
    for (size_t i = 0; i < SIM_SHARDS_MAX; i++) {
        struct sim_link *at = &coordinator->links[i];
        bool its = at->used && strcmp(at->shard.id, shard->id) == 0;
        if (its || (!at->used && !link)) {
            link = at;
        }
    }
    if (!link) {
        sim_fail(coordinator->sim, "the simulator", "more shards than there are");
    }
    if (link->used && link->shard.incarnation == shard->incarnation) {
        return;
    }
    if (link->used) {
        disconnected(coordinator, link, false);
        link_close(coordinator, link);
    }
    *link = (struct sim_link){.used = true, .shard = *shard};
    link_open(coordinator, link);
}

void sim_links_tick(struct sim_coordinator *coordinator)
{
    for (size_t i = 0; i < SIM_SHARDS_MAX; i++) {
        struct sim_link *link = &coordinator->links[i];
        if (link->used && !kelp_placement_find(&coordinator->placement, link->shard.id)) {
            link_close(coordinator, link); /* it has left */
            link->used = false;
        }
        if (link->used && link->stream == 0) {
            link_open(coordinator, link);
        } else {
            link_update(coordinator, link, true);
        }
    }
}

void sim_links_lose(struct sim_coordinator *coordinator, uint64_t key)
{
    for (size_t i = 0; i < SIM_SHARDS_MAX; i++) {
        struct sim_link *link = &coordinator->links[i];
        if (link->used && link->greeted && link->key == key) {
            sim_say(coordinator->sim, coordinator->process, "finds %s silent", link->shard.id);
            disconnected(coordinator, link, false);
            link_close(coordinator, link);
        }
    }
}

void sim_links_close_all(struct sim_coordinator *coordinator)
{
    for (size_t i = 0; i < SIM_SHARDS_MAX; i++) {
        link_close(coordinator, &coordinator->links[i]);
        coordinator->links[i].used = false;
    }
}

static void greet(struct sim_coordinator *coordinator, struct sim_link *link,
                  const struct sim_shard_report *report)
{
    struct kelp_member_joined joined = {
        .kind = KELP_MEMBER_SHARD, .id = link->shard.id, .incarnation = link->shard.incarnation};
    uint64_t replaced = 0;
    if (report->incarnation != link->shard.incarnation ||
        kelp_membership_join(&coordinator->membership, &joined, coordinator->now_ms, &link->key,
                             &replaced, NULL) != KELP_OK) {
        link_close(coordinator, link);
        return;
    }
    link->greeted = true;
    sim_say(coordinator->sim, coordinator->process, "is connected to %s", link->shard.id);
    sim_coordinator_place(coordinator,
                          (struct kelp_placement_event){.kind = KELP_PLACEMENT_CONNECTED,
                                                        .id = link->shard.id,
                                                        .incarnation = link->shard.incarnation});
    link_update(coordinator, link, false);
}

static void take_failure(struct sim_coordinator *coordinator, const struct sim_link *link,
                         const struct sim_shard_report *report)
{
    if (coordinator->placement.state == KELP_PLACEMENT_RUNNING) {
        sim_coordinator_fail_job(coordinator, report->error);
        return;
    }
    sim_coordinator_place(coordinator,
                          (struct kelp_placement_event){.kind = KELP_PLACEMENT_LOAD_FAILED,
                                                        .id = link->shard.id,
                                                        .incarnation = link->shard.incarnation,
                                                        .status = report->status,
                                                        .text = report->error});
}

/* Does it speak of the map that it was sent last? */
static bool is_current(const struct sim_coordinator *coordinator, const struct sim_link *link,
                       const struct sim_shard_report *report)
{
    const struct kelp_placement *placement = &coordinator->placement;
    if (link->generation_sent == 0) {
        return placement->map_read && placement->map.generation == 0;
    }
    return report->heartbeat >= link->map_heartbeat;
}

static void take_waiting(struct sim_coordinator *coordinator, const struct sim_link *link,
                         const char *text)
{
    const struct kelp_placement_shard *placed =
        kelp_placement_find(&coordinator->placement, link->shard.id);
    if (placed && strncmp(placed->waiting, text, sizeof(placed->waiting) - 1) != 0) {
        sim_coordinator_place(coordinator,
                              (struct kelp_placement_event){.kind = KELP_PLACEMENT_STORAGE,
                                                            .id = link->shard.id,
                                                            .incarnation = link->shard.incarnation,
                                                            .text = text});
    }
}

static void take_report(struct sim_coordinator *coordinator, struct sim_link *link,
                        const struct sim_shard_report *report)
{
    const struct kelp_placement *placement = &coordinator->placement;
    const struct kelp_placement_shard *placed = kelp_placement_find(placement, link->shard.id);
    kelp_membership_heard(&coordinator->membership, link->key, NULL, coordinator->now_ms);
    if (placed && report->loaded_generation != 0 &&
        placed->loaded_generation != report->loaded_generation) {
        sim_coordinator_place(
            coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_LOADED,
                                                       .id = link->shard.id,
                                                       .incarnation = link->shard.incarnation,
                                                       .generation = report->loaded_generation});
    }
    bool current = is_current(coordinator, link, report);
    if (report->status != KELP_OK && current) {
        take_failure(coordinator, link, report);
    }
    if (current) {
        take_waiting(coordinator, link, report->waiting);
    }
    sim_checkpoints_report(coordinator, &link->shard, &report->snapshot);
    placed = kelp_placement_find(placement, link->shard.id);
    if (placed &&
        (!placement->map_read || placed->loaded_generation == placement->map.generation)) {
        sim_records_take(coordinator, report, placed->loaded_generation);
    }
}

static void on_shard_report(struct sim *sim, struct sim_process *process, uint64_t stream,
                            struct sim_message *message, bool stray)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_link *link = link_on(coordinator, stream);
    const struct sim_shard_report *report = (const struct sim_shard_report *)message;
    (void)sim;
    (void)stray; /* control streams are not doubled */
    sim_coordinator_touch(coordinator);
    if (!link) {
        return;
    }
    if (!link->greeted) {
        greet(coordinator, link, report);
    }
    if (link->greeted && link->stream == stream) {
        take_report(coordinator, link, report);
    }
}

static void on_shard_closed(struct sim *sim, struct sim_process *process, uint64_t stream,
                            bool broken)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_link *link = link_on(coordinator, stream);
    (void)sim;
    sim_coordinator_touch(coordinator);
    if (link) {
        link->stream = 0;
        disconnected(coordinator, link, broken);
    }
}

const struct sim_stream_events sim_control_client = {.message = on_shard_report,
                                                     .closed = on_shard_closed};
