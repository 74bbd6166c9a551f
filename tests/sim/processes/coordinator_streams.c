/* A simulated coordinator's streams: messages out by what a term wants told, and what comes in. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/invariants.h"
#include "tests/sim/processes/coordinator.h"

/* ---- to shards ---- */

static void *link_create(struct kelp_link *link, void *user)
{
    struct sim_coordinator *coordinator = user;
    for (size_t i = 0; i < SIM_SHARDS_MAX; i++) {
        if (!coordinator->links[i].used) {
            coordinator->links[i] = (struct sim_link_end){.used = true, .link = link};
            return &coordinator->links[i];
        }
    }
    sim_fail(coordinator->sim, "the simulator", "more shards than there are");
}

static void link_destroy(void *end, void *user)
{
    struct sim_link_end *link = end;
    (void)user;
    link->used = false;
}

static bool is_full(void *end, void *user)
{
    (void)end;
    (void)user;
    return false;
}

static void name_captures(struct sim *sim, const struct kelp_map *map, uint32_t shard,
                          struct sim_shard_command *command)
{
    command->order_incarnation = map->shards[shard].incarnation;
    for (uint32_t i = 0; i < map->partition_count; i++) {
        if (map->partitions[i].primary == shard) {
            command->order_partitions[command->order_count++] = i;
            sim_invariants_named(sim, &command->order, i, command->order_incarnation);
        }
    }
}

static void link_send(void *data, const struct kelp_link_news *news, void *user)
{
    struct sim_coordinator *coordinator = user;
    const struct sim_link_end *end = data;
    struct sim_shard_command *command = sim_message_create(SIM_SHARD_COMMAND, sizeof(*command));
    command->hello = news->hello;
    command->proof = coordinator->process->incarnation;
    command->plan = news->plan;
    command->records_after = news->records_after;
    (void)snprintf(command->leave, sizeof(command->leave), "%s", news->leave ? news->leave : "");
    command->heartbeat = news->heartbeat;
    if (news->map) {
        command->map = sim_map_create(news->map);
        command->manifest =
            news->manifest[0] == '\0'
                ? NULL
                : sim_manifest_ref(sim_manifest_find(coordinator->sim, news->manifest));
    }
    if (news->has_order) {
        command->has_order = true;
        command->give_up = news->give_up;
        command->order.serial = news->order.serial;
        command->order.generation = news->order.generation;
        command->order.step = news->order.step;
        (void)snprintf(command->folder, sizeof(command->folder), "%s", news->order.folder);
        if (!news->give_up) {
            name_captures(coordinator->sim, news->order_map, news->order_shard, command);
        }
    }
    sim_stream_send(coordinator->sim, end->stream, SIM_CLIENT, command);
}

static kelp_status link_open(void *data, const struct kelp_map_shard *shard,
                             const struct kelp_link_news *hello, struct kelp_error *reterr,
                             void *user)
{
    struct sim_coordinator *coordinator = user;
    struct sim_link_end *end = data;
    (void)reterr;
    end->greeted = false;
    end->stream = sim_stream_open(coordinator->sim, coordinator->process,
                                  sim_find_id(coordinator->sim, shard->id), SIM_CONTROL,
                                  KELP_COORDINATOR_FIRST_MS);
    link_send(end, hello, user);
    return KELP_OK;
}

/* The stream's closed() finds no link any more. */
static void link_close(void *data, kelp_status status, const char *text, void *user)
{
    struct sim_coordinator *coordinator = user;
    struct sim_link_end *end = data;
    (void)status;
    (void)text;
    if (!coordinator->dead) {
        sim_stream_close(coordinator->sim, end->stream, SIM_CLIENT);
    }
    end->stream = 0;
}

static struct sim_link_end *link_on(struct sim_coordinator *coordinator, uint64_t stream)
{
    for (size_t i = 0; i < SIM_SHARDS_MAX; i++) {
        if (coordinator->links[i].used && coordinator->links[i].stream == stream) {
            return &coordinator->links[i];
        }
    }
    return NULL;
}

static void greet(struct kelp_term *term, struct sim_link_end *end,
                  const struct sim_shard_report *report)
{
    bool same = report->incarnation == end->link->shard.incarnation;
    struct kelp_link_hello hello = {.status = same ? KELP_OK : KELP_ERR_MISMATCH,
                                    .text = "another incarnation answers",
                                    .loaded_generation = report->loaded_generation};
    end->greeted = kelp_term_shard_hello(term, end->link, &hello);
}

static bool record_at(const void *records, size_t index, struct kelp_record *ret_record)
{
    *ret_record = ((const struct kelp_record *)records)[index];
    return true;
}

static void fill_snapshot(const struct sim_link_end *end, const struct sim_snapshot_report *from,
                          struct kelp_checkpointer_part parts[SIM_PARTITIONS_MAX],
                          struct kelp_checkpointer_report *ret_report)
{
    static const enum kelp_checkpointer_answer answers[KELP_SNAPSHOT_STATE_COUNT] = {
        [KELP_SNAPSHOT_NONE] = KELP_CHECKPOINTER_ANSWER_NONE,
        [KELP_SNAPSHOT_TAKING] = KELP_CHECKPOINTER_ANSWER_TAKING,
        [KELP_SNAPSHOT_DURABLE] = KELP_CHECKPOINTER_ANSWER_DURABLE,
        [KELP_SNAPSHOT_FAILED] = KELP_CHECKPOINTER_ANSWER_FAILED,
        [KELP_SNAPSHOT_PAST] = KELP_CHECKPOINTER_ANSWER_PAST,
        [KELP_SNAPSHOT_CAPTURED] = KELP_CHECKPOINTER_ANSWER_CAPTURED,
    };
    for (uint32_t i = 0; i < from->part_count; i++) {
        parts[i] = (struct kelp_checkpointer_part){.partition = from->parts[i].partition,
                                                   .bytes = from->parts[i].bytes,
                                                   .digest = from->parts[i].digest};
    }
    *ret_report = (struct kelp_checkpointer_report){.shard = end->link->shard.id,
                                                    .incarnation = end->link->shard.incarnation,
                                                    .serial = from->serial,
                                                    .answer = answers[from->state],
                                                    .error = from->error,
                                                    .storage = from->storage,
                                                    .parts = parts,
                                                    .part_count = from->part_count,
                                                    .word = from->has_word ? &from->word : NULL,
                                                    .current_step = from->current_step};
}

static struct kelp_apart_step step_of(const struct kelp_standing_end *end)
{
    return (struct kelp_apart_step){
        .partition = end->partition, .map_epoch = end->map_epoch, .step = end->step};
}

/* Partitions are apart only where a worker drove them apart; then all is well with the next
 * generation. */
static void blocked(struct sim *sim, const struct kelp_term *term)
{
    if (!sim->lie.told && !sim->lie.mended) {
        sim_fail(sim, "honest workers keep partitions together", "%s", term->placement.reason);
    }
    if (sim->lie.rushes) {
        sim->lie.apart = true;
        sim->lie.found = false; /* nothing of it is left, but perhaps the shard's report */
        sim->counts[SIM_COUNT_APART_MENDED]++;
        sim_say(sim, NULL, "%s", term->placement.reason);
    }
}

static void take_report(struct sim *sim, struct kelp_term *term, struct sim_link_end *end,
                        const struct sim_shard_report *report)
{
    struct kelp_checkpointer_part parts[SIM_PARTITIONS_MAX];
    struct kelp_checkpointer_report snapshot;
    struct kelp_link_peer peers[SIM_SHARDS_MAX];
    for (size_t i = 0; i < report->peer_count; i++) {
        const struct sim_peer_report *peer = &report->peers[i];
        peers[i] = (struct kelp_link_peer){.id = sim->processes[peer->place].id,
                                           .incarnation = peer->incarnation,
                                           .silent_ms = peer->silent_ms,
                                           .broken = peer->broken};
    }
    fill_snapshot(end, &report->snapshot, parts, &snapshot);
    const struct kelp_apart_step lowest = step_of(&report->standing.lowest);
    const struct kelp_apart_step highest = step_of(&report->standing.highest);
    const uint32_t blocks = term->placement.blocks;
    const struct kelp_link_report taken = {.heartbeat = report->heartbeat,
                                           .loaded_generation = report->loaded_generation,
                                           .status = report->status,
                                           .error = report->error,
                                           .waiting = report->waiting,
                                           .snapshot = &snapshot,
                                           .word = report->has_word ? &report->word : NULL,
                                           .map_generation = report->map_generation,
                                           .map_serial = report->map_serial,
                                           .replicas = report->replicas,
                                           .replica_count = report->replica_count,
                                           .peers = peers,
                                           .peer_count = report->peer_count,
                                           .lowest = report->standing.known ? &lowest : NULL,
                                           .highest = report->standing.known ? &highest : NULL,
                                           .leaving = report->leaving,
                                           .record_count = report->record_count,
                                           .record = record_at,
                                           .records = report->records};
    for (unsigned i = 0; i < 32; i++) {
        if (report->workers & 1u << i) {
            char id[24];
            (void)snprintf(id, sizeof(id), "worker-%u", i);
            kelp_term_worker_worked(term, id);
        }
    }
    kelp_term_shard_report(term, end->link, &taken);
    if (term->placement.blocks != blocks) {
        blocked(sim, term);
    }
}

static void on_shard_report(struct sim *sim, struct sim_process *process, uint64_t stream,
                            struct sim_message *message, bool stray)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_link_end *end = link_on(coordinator, stream);
    struct kelp_term *term = sim_coordinator_term(coordinator);
    const struct sim_shard_report *report = (const struct sim_shard_report *)message;
    (void)sim;
    (void)stray; /* control streams are not doubled */
    if (!end) {
        return;
    }
    if (!end->greeted) {
        greet(term, end, report);
    }
    if (end->greeted && end->stream == stream) {
        take_report(sim, term, end, report);
    }
}

static void on_shard_closed(struct sim *sim, struct sim_process *process, uint64_t stream,
                            bool broken)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_link_end *end = link_on(coordinator, stream);
    struct kelp_term *term = sim_coordinator_term(coordinator);
    (void)sim;
    if (end) {
        end->stream = 0;
        kelp_term_shard_closed(term, end->link, broken, KELP_ERR_CLOSED, "its stream has ended");
    }
}

const struct sim_stream_events sim_control_client = {.message = on_shard_report,
                                                     .closed = on_shard_closed};

/* ---- of workers ---- */

static void session_send(void *data, const struct kelp_session_news *news, void *user)
{
    struct sim_coordinator *coordinator = user;
    const struct sim_session_end *end = data;
    struct sim_worker_command *command = sim_message_create(SIM_WORKER_COMMAND, sizeof(*command));
    command->map = news->map ? sim_map_create(news->map) : NULL;
    command->has_assignment = news->has_lanes;
    command->assignment_epoch = news->assignment_epoch;
    command->lane_first = news->lanes.first;
    command->lane_count = news->lanes.count;
    command->rests = news->rests;
    command->leave = news->leave;
    command->drain = news->drain;
    command->beat_ms = news->beat_ms;
    sim_stream_send(coordinator->sim, end->stream, SIM_SERVER, command);
}

static void session_close(void *data, kelp_status status, const char *text, void *user)
{
    struct sim_coordinator *coordinator = user;
    struct sim_session_end *end = data;
    uint64_t stream = end->stream;
    (void)status;
    (void)text;
    *end = (struct sim_session_end){.stream = 0};
    if (!coordinator->dead) {
        sim_stream_close(coordinator->sim, stream, SIM_SERVER);
    }
}

static void session_refuse(void *end, bool hello, kelp_status status, const char *text, void *user)
{
    (void)hello;
    session_close(end, status, text, user);
}

static struct sim_session_end *session_on(struct sim_coordinator *coordinator, uint64_t stream)
{
    for (size_t i = 0; i < SIM_SESSIONS_MAX; i++) {
        if (coordinator->sessions[i].stream == stream) {
            return &coordinator->sessions[i];
        }
    }
    return NULL;
}

static void on_join(struct sim *sim, struct sim_process *process, uint64_t stream)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct kelp_term *term = sim_coordinator_term(coordinator);
    struct sim_session_end *end = session_on(coordinator, 0);
    if (!term || !end) {
        sim_stream_close(sim, stream, SIM_SERVER);
        return;
    }
    end->stream = stream;
    end->session = kelp_term_worker_opened(term, end);
    if (!end->session) {
        abort();
    }
}

static void on_worker_report(struct sim *sim, struct sim_process *process, uint64_t stream,
                             struct sim_message *message, bool stray)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_session_end *end = session_on(coordinator, stream);
    struct kelp_term *term = sim_coordinator_term(coordinator);
    const struct sim_worker_report *report = (const struct sim_worker_report *)message;
    (void)stray; /* join streams are not doubled */
    if (!end) {
        return;
    }
    if (!end->greeted) {
        const struct sim_process *worker = sim_stream_peer(sim, stream, SIM_SERVER);
        end->greeted = true;
        kelp_term_worker_hello(term, end->session,
                               &(struct kelp_session_hello){.id = worker->id,
                                                            .incarnation = report->incarnation,
                                                            .plan = "",
                                                            .peer = worker->id});
        return;
    }
    const struct kelp_member_heard heard = {.lanes_computed = report->progress.lanes_computed,
                                            .busy_us = report->progress.busy_us,
                                            .version = report->progress.version,
                                            .generation = report->progress.generation,
                                            .assignment_epoch = report->assignment_epoch,
                                            .trouble = report->trouble ? "trouble" : ""};
    kelp_term_worker_heard(term, end->session, report->same ? NULL : &heard);
}

static void on_worker_closed(struct sim *sim, struct sim_process *process, uint64_t stream,
                             bool broken)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_session_end *end = session_on(coordinator, stream);
    struct kelp_term *term = sim_coordinator_term(coordinator);
    (void)sim;
    (void)broken;
    if (end) {
        struct kelp_session *session = end->session;
        *end = (struct sim_session_end){.stream = 0};
        kelp_term_worker_closed(term, session, true, "its stream has ended");
    }
}

const struct sim_stream_events sim_join_server = {
    .accept = on_join, .message = on_worker_report, .closed = on_worker_closed};

void sim_coordinator_stream_effects(struct kelp_term_effects *effects)
{
    effects->link_create = link_create;
    effects->link_destroy = link_destroy;
    effects->link_open = link_open;
    effects->link_full = is_full;
    effects->link_send = link_send;
    effects->link_close = link_close;
    effects->session_full = is_full;
    effects->session_send = session_send;
    effects->session_refuse = session_refuse;
    effects->session_close = session_close;
}
