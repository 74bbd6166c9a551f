/* A simulated coordinator's streams to shards (coordinator/shard_link.c). */
#include <string.h>

#include "tests/sim/coordinator.h"

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
    command->give_up = !under_way;
    command->order.serial = under_way ? order->serial : checkpointer->given_up;
    command->order.generation = checkpointer->map.generation;
    command->order.step = order->step;
    (void)snprintf(command->folder, sizeof(command->folder), "%s", order->folder);
    link->order_sent = under_way ? order->serial : 0;
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
                                                        .incarnation = link->shard.incarnation,
                                                        .generation = report->loaded_generation});
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
