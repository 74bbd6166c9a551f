#include "coordinator/shard_link.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "coordinator/checkpointing.h"
#include "coordinator/records.h"
#include "coordinator/wire_map.h"
#include "proto/wire.h"

#define CONTROL_PATH "/kelp.v1.ParameterServer/Control"

struct kelp_link {
    struct kelp_coordinator *coordinator;
    struct kelp_link *next;
    struct kelp_map_shard shard; /* as registered */
    struct kelp_rpc_channel *channel;
    struct kelp_rpc_stream *stream; /* NULL: none, or closing was reported */
    bool closing;                   /* we closed the stream; closed() is on its way */
    bool unwanted;                  /* free it when the stream has ended */
    bool moved;                     /* the channel goes to an old address */
    bool said;                      /* its trouble is in the log */
    bool greeted;                   /* its hello was checked */
    uint64_t key;                   /* of the membership, when greeted */
    bool plan_sent;
    uint64_t generation_sent;
    uint64_t map_heartbeat; /* reports that repeat this one know of that map */
    uint64_t order_sent;    /* serial */
    char failure[160];      /* the latest error reported, so that it is logged once */
};

/* ---- sending ----------------------------------------------------------------------------------
 */

static void link_close_stream(struct kelp_link *link, kelp_status status, const char *text)
{
    if (link->stream != NULL && !link->closing) {
        link->closing = true;
        kelp_rpc_stream_close(link->stream, status, text);
    }
}

static void link_send(struct kelp_link *link, const Kelp__V1__ShardCommand *command)
{
    struct kelp_rpc_message *message = NULL;
    struct kelp_error error;
    kelp_status status = kelp_wire_encode(&command->base, &message, &error);
    if (status == KELP_OK) {
        status = kelp_rpc_stream_send(link->stream, message);
    }
    if (status != KELP_OK && status != KELP_ERR_CLOSED) {
        kelp_log_warn("command not sent shard=%s error=%s", link->shard.id,
                      kelp_status_text(status));
        link_close_stream(link, status, kelp_status_text(status));
    }
}

static void send_hello(struct kelp_link *link)
{
    struct kelp_coordinator *coordinator = link->coordinator;
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Hello hello;
    kelp_coordinator_hello(coordinator, &hello);
    command.hello = &hello;
    command.spec = coordinator->spec;
    if (coordinator->plan_state == KELP_PLAN_WRITTEN) {
        command.plan = coordinator->plan_text;
        link->plan_sent = true;
    }
    command.records_after = coordinator->progress.records_after;
    link_send(link, &command);
}

/* The order under way, or that the one before is given up, if the shard has the map that it is for
 * and does not know it yet. */
static bool add_order(struct kelp_link *link, Kelp__V1__SnapshotOrder *ret_order)
{
    const struct kelp_checkpointer *checkpointer = &link->coordinator->checkpointer;
    const struct kelp_checkpointer_order *order = &checkpointer->order;
    bool under_way = checkpointer->state == KELP_CHECKPOINTER_ORDERED;
    bool news = under_way ? link->order_sent != order->serial
                          : link->order_sent != 0 && link->order_sent == checkpointer->given_up;
    if (!news || kelp_map_find(&checkpointer->map, link->shard.id) < 0 ||
        link->generation_sent != checkpointer->map.generation) {
        return false;
    }
    kelp__v1__snapshot_order__init(ret_order);
    ret_order->serial = under_way ? order->serial : checkpointer->given_up;
    ret_order->give_up = !under_way;
    ret_order->generation = checkpointer->map.generation;
    ret_order->step = order->step;
    ret_order->folder = (char *)order->folder; /* only read by the encoder */
    link->order_sent = under_way ? order->serial : 0;
    return true;
}

/* What the shard does not know yet, and a heartbeat if wanted. */
static void link_update(struct kelp_link *link, bool beat)
{
    struct kelp_coordinator *coordinator = link->coordinator;
    const struct kelp_map *map = &coordinator->placement.map;
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__SnapshotOrder order;
    struct kelp_wire_map wire = {.shards = NULL};
    bool news = false;
    if (link->stream == NULL || link->closing || !link->greeted ||
        kelp_rpc_stream_queued(link->stream) > KELP_COORDINATOR_QUEUED_MAX) {
        return;
    }
    if (!link->plan_sent && coordinator->plan_state == KELP_PLAN_WRITTEN) {
        command.plan = coordinator->plan_text;
        link->plan_sent = true;
        news = true;
    }
    if (map->generation > 0 && link->generation_sent != map->generation && link->plan_sent &&
        kelp_wire_map_init(&wire, map) == KELP_OK) {
        command.map = &wire.message;
        command.manifest = (char *)kelp_checkpointing_manifest(coordinator); /* only read */
        link->generation_sent = map->generation;
        link->map_heartbeat = coordinator->heartbeat + 1;
        news = true;
    }
    if (add_order(link, &order)) {
        command.snapshot = &order;
        news = true;
    }
    if (news || beat) {
        command.heartbeat = beat ? coordinator->heartbeat : 0;
        link_send(link, &command);
    }
    kelp_wire_map_fini(&wire);
}

void kelp_link_update(struct kelp_coordinator *coordinator)
{
    for (struct kelp_link *link = coordinator->links; link != NULL; link = link->next) {
        link_update(link, false);
    }
}

void kelp_link_order(struct kelp_coordinator *coordinator)
{
    kelp_link_update(coordinator);
}

/* ---- receiving --------------------------------------------------------------------------------
 */

static kelp_status check_shard_hello(const struct kelp_link *link, const Kelp__V1__Hello *hello,
                                     struct kelp_error *reterr)
{
    kelp_status status = kelp_coordinator_check_hello(link->coordinator, hello, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (strcmp(hello->id, link->shard.id) != 0 || hello->incarnation != link->shard.incarnation) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "%s of incarnation %" PRIu64 " answers at %s, not %s of %" PRIu64,
                         hello->id, hello->incarnation, link->shard.address, link->shard.id,
                         link->shard.incarnation);
    }
    return KELP_OK;
}

static void greet(struct kelp_link *link, const Kelp__V1__ShardReport *report)
{
    struct kelp_coordinator *coordinator = link->coordinator;
    struct kelp_member_joined joined = {
        .kind = KELP_MEMBER_SHARD, .id = link->shard.id, .incarnation = link->shard.incarnation};
    struct kelp_error error;
    uint64_t replaced = 0;
    kelp_status status = check_shard_hello(link, report->hello, &error);
    if (status == KELP_OK) {
        status = kelp_membership_join(&coordinator->membership, &joined, coordinator->now_ms,
                                      &link->key, &replaced, &error);
    }
    if (status != KELP_OK) {
        kelp_log(link->said ? KELP_LOG_DEBUG : KELP_LOG_WARN,
                 "shard refused shard=%s reason=\"%s\"", link->shard.id, error.text);
        link->said = true;
        link_close_stream(link, status, error.text);
        return;
    }
    link->greeted = true;
    link->said = false;
    kelp_log_info("shard connected shard=%s incarnation=%" PRIu64 " address=%s", link->shard.id,
                  link->shard.incarnation, link->shard.address);
    kelp_coordinator_place(coordinator,
                           (struct kelp_placement_event){.kind = KELP_PLACEMENT_CONNECTED,
                                                         .id = link->shard.id,
                                                         .incarnation = link->shard.incarnation,
                                                         .generation = report->loaded_generation});
    link_update(link, false);
}

static void take_failure(struct kelp_link *link, const Kelp__V1__ShardReport *report)
{
    struct kelp_coordinator *coordinator = link->coordinator;
    bool running = coordinator->placement.state == KELP_PLACEMENT_RUNNING;
    bool known = kelp_status_known(report->status);
    kelp_status status = known ? (kelp_status)report->status : KELP_ERR_FORMAT;
    if (strncmp(link->failure, report->error, sizeof(link->failure) - 1) != 0) {
        (void)snprintf(link->failure, sizeof(link->failure), "%s", report->error);
        kelp_log_error("shard reports a failure shard=%s status=%s text=\"%s\"", link->shard.id,
                       kelp_status_name(status), report->error);
    }
    if (running) {
        char reason[KELP_COORDINATOR_REASON_MAX + 1];
        (void)snprintf(reason, sizeof(reason), "%s: %s", link->shard.id, report->error);
        kelp_coordinator_fail_job(coordinator, reason);
        return;
    }
    kelp_coordinator_place(coordinator,
                           (struct kelp_placement_event){.kind = KELP_PLACEMENT_LOAD_FAILED,
                                                         .id = link->shard.id,
                                                         .incarnation = link->shard.incarnation,
                                                         .status = status,
                                                         .text = report->error});
}

/* Does it speak of the map that it was sent last? What it says of a generation before must not be
 * taken for the one that it is to load. */
static bool is_current(const struct kelp_link *link, const Kelp__V1__ShardReport *report)
{
    const struct kelp_placement *placement = &link->coordinator->placement;
    if (link->generation_sent == 0) {
        return placement->map_read && placement->map.generation == 0;
    }
    return report->heartbeat >= link->map_heartbeat;
}

static void take_waiting(struct kelp_link *link, const char *text)
{
    const struct kelp_placement_shard *placed =
        kelp_placement_find(&link->coordinator->placement, link->shard.id);
    if (placed == NULL || strncmp(placed->waiting, text, sizeof(placed->waiting) - 1) == 0) {
        return;
    }
    if (text[0] != '\0') {
        kelp_log_warn("shard waits shard=%s for=\"%s\"", link->shard.id, text);
    }
    kelp_coordinator_place(link->coordinator,
                           (struct kelp_placement_event){.kind = KELP_PLACEMENT_STORAGE,
                                                         .id = link->shard.id,
                                                         .incarnation = link->shard.incarnation,
                                                         .text = text});
}

static void take_report(struct kelp_link *link, const Kelp__V1__ShardReport *report)
{
    struct kelp_coordinator *coordinator = link->coordinator;
    const struct kelp_placement_shard *placed =
        kelp_placement_find(&coordinator->placement, link->shard.id);
    kelp_membership_heard(&coordinator->membership, link->key, NULL, coordinator->now_ms);
    if (placed != NULL && report->loaded_generation != 0 &&
        placed->loaded_generation != report->loaded_generation) {
        kelp_coordinator_place(
            coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_LOADED,
                                                       .id = link->shard.id,
                                                       .incarnation = link->shard.incarnation,
                                                       .generation = report->loaded_generation});
    }
    bool current = is_current(link, report);
    if (report->status != KELP_OK && current) {
        take_failure(link, report);
    } else {
        link->failure[0] = '\0';
    }
    if (current) {
        take_waiting(link, report->waiting);
    }
    if (report->snapshot != NULL) {
        kelp_checkpointing_report(coordinator, &link->shard, report->snapshot);
    }
    placed = kelp_placement_find(&coordinator->placement, link->shard.id);
    /* Not from a generation before. A new leader hears shards before it has read the map, and what
     * they send then they do not send again: records of any generation are the same. */
    if (placed != NULL && (!coordinator->placement.map_read ||
                           placed->loaded_generation == coordinator->placement.map.generation)) {
        kelp_records_take(coordinator, report, placed->loaded_generation);
    }
}

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct kelp_link *link = user;
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;
    struct kelp_error error;
    (void)stream;
    kelp_coordinator_touch(link->coordinator);
    if (link->closing) {
        return;
    }
    kelp_status status =
        kelp_wire_decode(message, &kelp__v1__shard_report__descriptor,
                         KELP_COORDINATOR_MESSAGE_BYTES, &fields, &payload, &error);
    if (status != KELP_OK) {
        kelp_log_warn("unreadable report shard=%s error=\"%s\"", link->shard.id, error.text);
        link_close_stream(link, status, error.text);
        return;
    }
    Kelp__V1__ShardReport *report = (Kelp__V1__ShardReport *)(void *)fields;
    if (!link->greeted) {
        greet(link, report);
    }
    if (link->greeted && !link->closing) {
        take_report(link, report);
    }
    kelp__v1__shard_report__free_unpacked(report, NULL);
}

/* broken: the shard's side ended the stream. */
static void disconnected(struct kelp_link *link, bool broken)
{
    struct kelp_coordinator *coordinator = link->coordinator;
    if (!link->greeted) {
        return;
    }
    link->greeted = false;
    kelp_membership_remove(&coordinator->membership, link->key, false);
    kelp_coordinator_place(coordinator,
                           (struct kelp_placement_event){.kind = KELP_PLACEMENT_DISCONNECTED,
                                                         .id = link->shard.id,
                                                         .broken = broken});
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct kelp_link *link = user;
    (void)stream;
    kelp_coordinator_touch(link->coordinator);
    if (!link->unwanted && !link->closing) {
        kelp_log(link->said ? KELP_LOG_DEBUG : KELP_LOG_WARN,
                 "shard does not answer shard=%s address=%s status=%s reason=\"%s\"",
                 link->shard.id, link->shard.address, kelp_status_name(status), text);
        link->said = true;
    }
    bool broken = !link->closing;
    link->stream = NULL;
    link->closing = false;
    if (!link->unwanted) {
        disconnected(link, broken);
    }
}

static const struct kelp_rpc_stream_events link_events = {.message = on_message,
                                                          .closed = on_closed};

/* ---- life -------------------------------------------------------------------------------------
 */

static void link_open(struct kelp_link *link)
{
    struct kelp_error error;
    if (link->channel != NULL && link->moved) {
        kelp_rpc_channel_close(link->channel);
        link->channel = NULL;
    }
    link->moved = false;
    kelp_status status = KELP_OK;
    if (link->channel == NULL) {
        status = kelp_rpc_channel_open(link->coordinator->loop, link->shard.address,
                                       KELP_COORDINATOR_MESSAGE_BYTES, &link->channel, &error);
    }
    if (status == KELP_OK) {
        status = kelp_rpc_stream_open(link->channel, CONTROL_PATH, KELP_COORDINATOR_FIRST_MS,
                                      &link_events, link, &link->stream, &error);
    }
    if (status != KELP_OK) {
        kelp_log(link->said ? KELP_LOG_DEBUG : KELP_LOG_WARN,
                 "cannot connect shard=%s address=%s error=\"%s\"", link->shard.id,
                 link->shard.address, error.text);
        link->said = true;
        link->stream = NULL;
        return;
    }
    link->plan_sent = false;
    link->generation_sent = 0;
    link->order_sent = 0;
    send_hello(link);
}

void kelp_link_set(struct kelp_coordinator *coordinator, const struct kelp_map_shard *shard)
{
    struct kelp_link *link = coordinator->links;
    while (link != NULL && (link->unwanted || strcmp(link->shard.id, shard->id) != 0)) {
        link = link->next;
    }
    if (link == NULL) {
        link = calloc(1, sizeof(*link));
        if (link == NULL) {
            kelp_log_error("no memory for a shard shard=%s", shard->id);
            return;
        }
        link->coordinator = coordinator;
        link->next = coordinator->links;
        coordinator->links = link;
    } else if (link->shard.incarnation == shard->incarnation &&
               strcmp(link->shard.address, shard->address) == 0) {
        return;
    } else {
        disconnected(link, false);
        link_close_stream(link, KELP_ERR_CLOSED, "another incarnation has registered");
        link->moved = true;
        link->said = false;
    }
    link->shard = *shard;
    if (link->stream == NULL) {
        link_open(link);
    }
}

/* Free the links that nobody wants and whose stream has ended. */
static void sweep(struct kelp_coordinator *coordinator)
{
    struct kelp_link **at = &coordinator->links;
    while (*at != NULL) {
        struct kelp_link *link = *at;
        if (!link->unwanted || link->stream != NULL) {
            at = &link->next;
            continue;
        }
        *at = link->next;
        if (link->channel != NULL) {
            kelp_rpc_channel_close(link->channel);
        }
        free(link);
    }
}

void kelp_link_tick(struct kelp_coordinator *coordinator)
{
    sweep(coordinator);
    for (struct kelp_link *link = coordinator->links; link != NULL; link = link->next) {
        if (!link->unwanted &&
            kelp_placement_find(&coordinator->placement, link->shard.id) == NULL) {
            kelp_log_info("shard forgotten: it has left shard=%s", link->shard.id);
            link->unwanted = true;
            link_close_stream(link, KELP_OK, "");
        }
        if (link->unwanted) {
            continue;
        }
        if (link->stream == NULL) {
            link_open(link);
        } else {
            link_update(link, true);
        }
    }
}

void kelp_link_lose(struct kelp_coordinator *coordinator, uint64_t key)
{
    struct kelp_link *link = coordinator->links;
    while (link != NULL && (!link->greeted || link->key != key)) {
        link = link->next;
    }
    assert(link != NULL);
    kelp_log_warn("shard is silent shard=%s address=%s", link->shard.id, link->shard.address);
    disconnected(link, false);
    link_close_stream(link, KELP_ERR_TIMEOUT, "silent for too long");
}

void kelp_link_close_all(struct kelp_coordinator *coordinator)
{
    for (struct kelp_link *link = coordinator->links; link != NULL; link = link->next) {
        if (link->greeted) {
            kelp_membership_remove(&coordinator->membership, link->key, false);
            link->greeted = false;
        }
        link->unwanted = true;
        link_close_stream(link, KELP_OK, "");
    }
    sweep(coordinator);
}
