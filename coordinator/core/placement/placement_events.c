/*
 * The changes that each event makes to a placement; placement.c has the consequences.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "coordinator/core/placement/placement_internal.h"

/* ---- maps ---- */

static kelp_status on_map_read(struct kelp_placement *placement,
                               const struct kelp_placement_event *event,
                               struct kelp_placement_actions *actions, struct kelp_error *reterr)
{
    if (placement->change == KELP_CHANGE_READING) {
        return kelp__placement_change_read(placement, event->map_read, event->now_ms, actions,
                                           reterr);
    }
    if (placement->state != KELP_PLACEMENT_WAITING || placement->map_read) {
        return KELP_OK;
    }
    if (event->map_read->generation > placement->map.generation) {
        kelp_status status =
            kelp__placement_adopt(placement, event->map_read, event->now_ms, reterr);
        if (status != KELP_OK) {
            return status;
        }
        placement->map_read = true;
        kelp__placement_move(placement, KELP_PLACEMENT_LOADING, actions);
        kelp__placement_want(actions, KELP_PLACEMENT_DO_MAP_TO_SHARDS);
    }
    placement->map_read = true;
    return KELP_OK;
}

static kelp_status on_written(struct kelp_placement *placement,
                              const struct kelp_placement_event *event,
                              struct kelp_placement_actions *actions, struct kelp_error *reterr)
{
    if (placement->change == KELP_CHANGE_WRITING) {
        return kelp__placement_change_written(placement, event->written, event->now_ms, actions,
                                              reterr);
    }
    if (placement->state != KELP_PLACEMENT_OPENING) {
        return KELP_OK; /* the job ended meanwhile */
    }
    switch (event->written) {
    case KELP_WRITTEN_OK: {
        kelp_status status =
            kelp__placement_adopt(placement, &placement->next, event->now_ms, reterr);
        if (status != KELP_OK) {
            return status;
        }
        kelp__placement_move(placement, KELP_PLACEMENT_LOADING, actions);
        kelp__placement_want(actions, KELP_PLACEMENT_DO_MAP_TO_SHARDS);
        return KELP_OK;
    }
    case KELP_WRITTEN_NOT:
        placement->not_before_ms = event->now_ms + KELP_COORDINATOR_RETRY_MS;
        break;
    case KELP_WRITTEN_UNKNOWN:
        placement->not_before_ms = event->now_ms + KELP_COORDINATOR_RETRY_MS;
        placement->map_read = false;
        kelp__placement_want(actions, KELP_PLACEMENT_DO_READ_MAP);
        break;
    }
    kelp__placement_move(placement, KELP_PLACEMENT_WAITING, actions);
    kelp__placement_say(placement, actions,
                        "etcd did not take the map of generation %llu; trying again",
                        (unsigned long long)placement->next.generation);
    return KELP_OK;
}

/* ---- shards ---- */

/* Start from the checkpoint before it. */
static void leave_checkpoint(struct kelp_placement *placement,
                             const struct kelp_placement_event *event, const char *why,
                             struct kelp_placement_actions *actions)
{
    kelp__placement_move(placement, KELP_PLACEMENT_WAITING, actions);
    kelp__placement_say(placement, actions, "the checkpoint of version %llu %s: %s: %.250s",
                        (unsigned long long)placement->map.restore_version, why,
                        event->load_failed.id, event->load_failed.text);
    placement->choosing = true;
    kelp__placement_act(actions,
                        (struct kelp_placement_action){.kind = KELP_PLACEMENT_DO_DAMAGED,
                                                       .damaged = placement->map.restore_version});
}

/* A fault that may pass, such as a host without memory, is retried, later each time. A disk that
 * cannot be read counts as the checkpoint's fault in the end. */
static void load_again(struct kelp_placement *placement, const struct kelp_placement_event *event,
                       struct kelp_placement_actions *actions)
{
    uint64_t pause_ms = KELP_COORDINATOR_LOAD_RETRY_MS;
    if (placement->failed_version != placement->map.restore_version) {
        placement->load_failures = 0;
        placement->failed_version = placement->map.restore_version;
    }
    placement->load_failures++;
    if (event->load_failed.status == KELP_ERR_IO && placement->map.restore_version > 0 &&
        placement->load_failures >= KELP_COORDINATOR_LOAD_TRIES) {
        placement->load_failures = 0;
        leave_checkpoint(placement, event, "cannot be read", actions);
        return;
    }
    for (uint32_t i = 1; i < placement->load_failures && pause_ms < KELP_COORDINATOR_PAUSE_MAX_MS;
         i++) {
        pause_ms *= 2;
    }
    kelp__placement_move(placement, KELP_PLACEMENT_WAITING, actions);
    kelp__placement_say(placement, actions, "%s could not load: %s", event->load_failed.id,
                        event->load_failed.text);
    placement->not_before_ms = event->now_ms + pause_ms;
}

/* A damaged checkpoint is skipped for the previous one. A fault of the job stays; anything else may
 * pass, and another generation is tried. */
static void on_load_failed(struct kelp_placement *placement,
                           const struct kelp_placement_event *event,
                           struct kelp_placement_actions *actions)
{
    enum kelp_status_group group = kelp_status_group(event->load_failed.status);
    bool loading = placement->state == KELP_PLACEMENT_LOADING; /* else another shard has said so */
    if (group == KELP_GROUP_DATA && placement->map.restore_version > 0) {
        if (loading) {
            leave_checkpoint(placement, event, "is damaged", actions);
        }
    } else if (group == KELP_GROUP_DATA || group == KELP_GROUP_CALLER) {
        kelp__placement_fail(placement, event, actions, event->load_failed.id,
                             event->load_failed.text);
    } else if (loading) {
        load_again(placement, event, actions);
    }
}

/* The generation cannot continue, and a new one repairs it. If that happens again and again, the
 * job ends. */
static void block(struct kelp_placement *placement, const struct kelp_placement_event *event,
                  const char *id, const char *text, struct kelp_placement_actions *actions)
{
    if (++placement->blocks > KELP_COORDINATOR_BLOCK_TRIES) {
        kelp__placement_fail(placement, event, actions, id, text);
        return;
    }
    kelp__placement_move(placement, KELP_PLACEMENT_WAITING, actions);
    kelp__placement_say(placement, actions, "%s: %.250s", id, text);
    placement->not_before_ms = event->now_ms + KELP_COORDINATOR_LOAD_RETRY_MS;
}

/* Two workers differ about the word of a step. Nothing of the step was applied where that was
 * found. */
static void on_blocked(struct kelp_placement *placement, const struct kelp_placement_event *event,
                       struct kelp_placement_actions *actions)
{
    if (placement->state == KELP_PLACEMENT_RUNNING || placement->state == KELP_PLACEMENT_LOADING) {
        block(placement, event, event->load_failed.id, event->load_failed.text, actions);
    }
}

/* A generation that a shard already serves, perhaps from an etcd that has been emptied since. */
static void note_served(struct kelp_placement *placement, uint64_t generation)
{
    if (generation > placement->served_generation && generation < KELP_JSON_INTEGER_MAX) {
        placement->served_generation = generation;
    }
}

static kelp_status no_room(struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_LIMIT, "more than %d shards registered",
                     KELP_COORDINATOR_SHARDS_MAX);
}

static kelp_status on_registered(struct kelp_placement *placement,
                                 const struct kelp_placement_event *event,
                                 struct kelp_error *reterr)
{
    const struct kelp_map_shard *at = event->registered;
    struct kelp_placement_shard *shard = kelp__placement_shard_of(placement, at->id, event->now_ms);
    if (!shard) {
        return no_room(reterr);
    }
    if (shard->at.incarnation != at->incarnation) {
        shard->silent = false; /* its starter has taken care of the previous process */
    }
    shard->at = *at;
    shard->registered = true;
    return KELP_OK;
}

/* A stream may come up between the end of a lease and the next registration. */
static kelp_status on_connected(struct kelp_placement *placement,
                                const struct kelp_placement_event *event, struct kelp_error *reterr)
{
    struct kelp_placement_shard *shard =
        kelp__placement_shard_of(placement, event->connected.id, event->now_ms);
    if (!shard) {
        return no_room(reterr);
    }
    shard->connected = true;
    shard->connected_incarnation = event->connected.incarnation;
    shard->changed_ms = event->now_ms;
    shard->loaded_generation = 0; /* until it says so on this stream */
    shard->taken_generation = 0;
    shard->taken_serial = 0;
    note_served(placement, event->connected.generation);
    shard->waiting[0] = '\0';
    shard->broken = false;
    shard->silent = false;
    return KELP_OK;
}

static void on_disconnected(struct kelp_placement *placement,
                            const struct kelp_placement_event *event)
{
    struct kelp_placement_shard *shard = kelp__placement_find(placement, event->disconnected.id);
    if (shard && shard->connected) {
        shard->connected = false;
        shard->broken = event->disconnected.broken;
        shard->changed_ms = event->now_ms;
    }
}

/* The shard, if this incarnation is the one that is connected; otherwise NULL. */
static struct kelp_placement_shard *speaker(const struct kelp_placement *placement, const char *id,
                                            uint64_t incarnation)
{
    struct kelp_placement_shard *shard = kelp__placement_find(placement, id);
    bool speaks = shard && shard->connected && shard->connected_incarnation == incarnation;
    return speaks ? shard : NULL;
}

static void on_storage(struct kelp_placement *placement, const struct kelp_placement_event *event)
{
    struct kelp_placement_shard *shard =
        speaker(placement, event->storage.id, event->storage.incarnation);
    if (!shard) {
        return;
    }
    if (shard->waiting[0] == '\0') {
        shard->waiting_ms = event->now_ms;
    }
    (void)snprintf(shard->waiting, sizeof(shard->waiting), "%s", event->storage.text);
}

static void on_loaded(struct kelp_placement *placement, const struct kelp_placement_event *event)
{
    struct kelp_placement_shard *shard =
        speaker(placement, event->loaded.id, event->loaded.incarnation);
    if (shard) {
        shard->loaded_generation = event->loaded.generation;
        note_served(placement, event->loaded.generation);
    }
}

static void on_taken(struct kelp_placement *placement, const struct kelp_placement_event *event)
{
    struct kelp_placement_shard *shard =
        speaker(placement, event->taken.id, event->taken.incarnation);
    if (shard) {
        shard->taken_generation = event->taken.generation;
        shard->taken_serial = event->taken.serial;
    }
}

static void on_replicas(struct kelp_placement *placement, const struct kelp_placement_event *event)
{
    const struct kelp_map *map = &placement->map;
    int32_t index = kelp_map_find(map, event->replicas.id);
    if (index < 0 || event->replicas.generation != map->generation ||
        event->replicas.incarnation != map->shards[index].incarnation ||
        !speaker(placement, event->replicas.id, event->replicas.incarnation)) {
        return;
    }
    for (size_t i = 0; i < event->replicas.count; i++) {
        bool news = kelp_replicas_take(&placement->replicas, map, (uint32_t)index,
                                       &event->replicas.reports[i]);
        placement->unarranged = placement->unarranged || news;
    }
}

/* Is it for this shard to say? */
static bool leads(const struct kelp_map *map, uint32_t shard, const struct kelp_apart_step *at)
{
    return at->partition < map->partition_count &&
           map->partitions[at->partition].primary == shard &&
           map->partitions[at->partition].map_epoch == at->map_epoch;
}

/* This shard's lowest partition and the furthest one cannot be brought together. */
static void say_apart(struct kelp_placement *placement, const struct kelp_placement_event *event,
                      struct kelp_placement_actions *actions)
{
    const struct kelp_apart_step *lowest = &event->stands.said.lowest;
    const struct kelp_apart_step *highest = &placement->apart.highest;
    const struct kelp_map *map = &placement->map;
    char text[256];
    (void)snprintf(
        text, sizeof(text),
        "partition %u stays at step %llu while partition %u (%s) is at step %llu and has "
        "no weights of step %llu any more: a worker has pushed steps that it cannot have "
        "computed",
        lowest->partition, (unsigned long long)lowest->step, highest->partition,
        map->shards[map->partitions[highest->partition].primary].id,
        (unsigned long long)highest->step, (unsigned long long)lowest->step);
    block(placement, event, event->stands.id, text, actions);
}

static void on_stands(struct kelp_placement *placement, const struct kelp_placement_event *event,
                      struct kelp_placement_actions *actions)
{
    const struct kelp_apart_said *said = &event->stands.said;
    const struct kelp_map *map = &placement->map;
    int32_t index = kelp_map_find(map, event->stands.id);
    struct kelp_placement_shard *shard =
        speaker(placement, event->stands.id, event->stands.incarnation);
    if (!shard || index < 0 || placement->state != KELP_PLACEMENT_RUNNING ||
        said->generation != map->generation ||
        event->stands.incarnation != map->shards[index].incarnation ||
        !leads(map, (uint32_t)index, &said->lowest) ||
        !leads(map, (uint32_t)index, &said->highest)) {
        return;
    }
    if (kelp_apart_hear(&placement->apart, &shard->behind, said)) {
        say_apart(placement, event, actions);
    }
}

static void on_doubted(struct kelp_placement *placement, const struct kelp_placement_event *event)
{
    struct kelp_placement_shard *shard = kelp__placement_find(placement, event->doubted.id);
    if (shard) {
        shard->doubted_incarnation = event->doubted.incarnation;
        shard->doubted_ms = event->now_ms;
    }
    if (event->doubted.silent) {
        kelp_doubts_say(&placement->doubts, event->doubted.by, event->doubted.incarnation,
                        event->now_ms);
    }
}

static void on_leaving(struct kelp_placement *placement, const struct kelp_placement_event *event)
{
    struct kelp_placement_shard *shard =
        speaker(placement, event->leaving.id, event->leaving.incarnation);
    if (shard) {
        shard->leaving = event->leaving.incarnation;
    }
}

static void on_size(struct kelp_placement *placement, const struct kelp_placement_event *event)
{
    assert(event->size.drain_count <= KELP_COORDINATOR_DRAINS_MAX);
    placement->options.workers_min = event->size.workers_min;
    placement->workers_least = event->size.workers_least;
    placement->options.shards = event->size.shards;
    placement->drain_count = event->size.drain_count;
    for (uint32_t i = 0; i < event->size.drain_count; i++) {
        placement->drains[i] = event->size.drains[i];
    }
}

static void on_unregistered(struct kelp_placement *placement, const char *id)
{
    struct kelp_placement_shard *shard = kelp__placement_find(placement, id);
    if (shard) {
        shard->registered = false;
    }
}

/* ---- the job ---- */

static void on_restore(struct kelp_placement *placement, const struct kelp_placement_event *event)
{
    placement->restore_version = event->restore.version;
    placement->restore_generation = event->restore.generation;
    placement->restore_final = event->restore.final;
    placement->choosing = false;
    placement->undecided = event->restore.undecided;
}

static void on_missing(struct kelp_placement *placement, const struct kelp_placement_event *event)
{
    if (placement->missing[0] == '\0') {
        placement->missing_ms = event->now_ms;
    }
    (void)snprintf(placement->missing, sizeof(placement->missing), "%s", event->missing);
}

static void on_pause(struct kelp_placement *placement, const char *why,
                     struct kelp_placement_actions *actions)
{
    if (placement->state == KELP_PLACEMENT_RUNNING) {
        kelp__placement_move(placement, KELP_PLACEMENT_PAUSED, actions);
        kelp__placement_say(placement, actions, "%s", why);
    }
}

/* Whether partitions may have to be moved after the event. */
static bool rearranges(const struct kelp_placement *placement,
                       const struct kelp_placement_event *event)
{
    enum kelp_placement_event_kind kind = event->kind;
    bool due = placement->look_ms != 0 && event->now_ms >= placement->look_ms;
    return kind == KELP_PLACEMENT_SIZE || kind == KELP_PLACEMENT_REGISTERED ||
           kind == KELP_PLACEMENT_UNREGISTERED || kind == KELP_PLACEMENT_CONNECTED ||
           (kind == KELP_PLACEMENT_TICK && due);
}

kelp_status kelp__placement_take(struct kelp_placement *placement,
                                 const struct kelp_placement_event *event,
                                 struct kelp_placement_actions *actions, struct kelp_error *reterr)
{
    placement->unarranged = placement->unarranged || rearranges(placement, event);
    switch (event->kind) {
    case KELP_PLACEMENT_MAP_READ:
        return on_map_read(placement, event, actions, reterr);
    case KELP_PLACEMENT_PLAN:
        placement->partition_count = event->partition_count;
        break;
    case KELP_PLACEMENT_WORKERS:
        placement->worker_count = event->worker_count;
        break;
    case KELP_PLACEMENT_SIZE:
        on_size(placement, event);
        break;
    case KELP_PLACEMENT_REGISTERED:
        return on_registered(placement, event, reterr);
    case KELP_PLACEMENT_UNREGISTERED:
        on_unregistered(placement, event->unregistered);
        break;
    case KELP_PLACEMENT_CONNECTED:
        return on_connected(placement, event, reterr);
    case KELP_PLACEMENT_DISCONNECTED:
        on_disconnected(placement, event);
        break;
    case KELP_PLACEMENT_STORAGE:
        on_storage(placement, event);
        break;
    case KELP_PLACEMENT_LOADED:
        on_loaded(placement, event);
        break;
    case KELP_PLACEMENT_TAKEN:
        on_taken(placement, event);
        break;
    case KELP_PLACEMENT_REPLICAS:
        on_replicas(placement, event);
        break;
    case KELP_PLACEMENT_STANDS:
        on_stands(placement, event, actions);
        break;
    case KELP_PLACEMENT_DOUBTED:
        on_doubted(placement, event);
        break;
    case KELP_PLACEMENT_LEAVING:
        on_leaving(placement, event);
        break;
    case KELP_PLACEMENT_LOAD_FAILED:
        if (speaker(placement, event->load_failed.id, event->load_failed.incarnation)) {
            on_load_failed(placement, event, actions);
        }
        break;
    case KELP_PLACEMENT_BLOCKED:
        if (speaker(placement, event->load_failed.id, event->load_failed.incarnation)) {
            on_blocked(placement, event, actions);
        }
        break;
    case KELP_PLACEMENT_MISSING:
        on_missing(placement, event);
        break;
    case KELP_PLACEMENT_RESTORE:
        on_restore(placement, event);
        break;
    case KELP_PLACEMENT_WRITTEN:
        return on_written(placement, event, actions, reterr);
    case KELP_PLACEMENT_FINISHED:
        if (event->finished > placement->finished_generation) {
            placement->finished_generation = event->finished;
        }
        break;
    case KELP_PLACEMENT_PAUSE:
        on_pause(placement, event->pause, actions);
        break;
    case KELP_PLACEMENT_STOPPED:
        kelp__placement_fail(placement, event, actions, "", event->stopped);
        break;
    case KELP_PLACEMENT_TICK:
    case KELP_PLACEMENT_EVENT_COUNT:
        break;
    }
    return KELP_OK;
}
