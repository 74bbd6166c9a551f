/*
 * What each event of a placement changes; what follows from it is placement.c's.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/state_table.h"
#include "coordinator/core/placement_internal.h"

/* ---- saying and moving ---- */

static const struct kelp_state states[KELP_PLACEMENT_STATE_COUNT] = {
    [KELP_PLACEMENT_WAITING] = {"waiting", KELP_STATE_BIT(KELP_PLACEMENT_OPENING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_LOADING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_FAILED)},
    [KELP_PLACEMENT_OPENING] = {"opening", KELP_STATE_BIT(KELP_PLACEMENT_WAITING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_LOADING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_FAILED)},
    [KELP_PLACEMENT_LOADING] = {"loading", KELP_STATE_BIT(KELP_PLACEMENT_WAITING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_RUNNING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_FAILED)},
    [KELP_PLACEMENT_RUNNING] = {"running", KELP_STATE_BIT(KELP_PLACEMENT_WAITING) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_DONE) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_PAUSED) |
                                               KELP_STATE_BIT(KELP_PLACEMENT_FAILED)},
    [KELP_PLACEMENT_DONE] = {"done", KELP_STATE_BIT(KELP_PLACEMENT_WAITING)},
    [KELP_PLACEMENT_PAUSED] = {"paused", 0},
    [KELP_PLACEMENT_FAILED] = {"failed", 0},
};
static const struct kelp_state_table table = KELP_STATE_TABLE(states);

static void insert(struct kelp_placement_actions *actions, struct kelp_placement_action action)
{
    uint32_t at = 0;
    while (at < actions->count && actions->items[at].kind < action.kind) {
        at++;
    }
    if (at == actions->count || actions->items[at].kind != action.kind) {
        memmove(&actions->items[at + 1], &actions->items[at],
                (actions->count - at) * sizeof(actions->items[0]));
        actions->count++;
    }
    actions->items[at] = action;
}

void kelp__placement_want(struct kelp_placement_actions *actions,
                          enum kelp_placement_action_kind kind)
{
    insert(actions, (struct kelp_placement_action){.kind = kind});
}

void kelp__placement_want_loss(struct kelp_placement_actions *actions, const char *lost)
{
    insert(actions,
           (struct kelp_placement_action){.kind = KELP_PLACEMENT_DO_COUNT_LOSS, .lost = lost});
}

void kelp__placement_move(struct kelp_placement *placement, enum kelp_placement_state state,
                          struct kelp_placement_actions *actions)
{
    placement->state = kelp_state_move(&table, placement->state, state);
    kelp__placement_want(actions, KELP_PLACEMENT_DO_STATE);
}

void kelp__placement_say(struct kelp_placement *placement, struct kelp_placement_actions *actions,
                         const char *format, ...)
{
    char text[sizeof(placement->reason)];
    va_list args;
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is right above */
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (strcmp(text, placement->reason) != 0) {
        memcpy(placement->reason, text, sizeof(text));
        kelp__placement_want(actions, KELP_PLACEMENT_DO_STATE);
    }
}

/* The job cannot go on; hint says where it stood and how to resume it. */
void kelp__placement_fail(struct kelp_placement *placement,
                          const struct kelp_placement_event *event,
                          struct kelp_placement_actions *actions, const char *id, const char *text)
{
    kelp__placement_move(placement, KELP_PLACEMENT_FAILED, actions);
    kelp__placement_say(placement, actions, "%s%s%.250s%s%s", id, id[0] == '\0' ? "" : ": ", text,
                        event->hint ? "; " : "", event->hint ? event->hint : "");
}

/* ---- maps ---- */

/* Make map (not empty) the current one. Each of its shards gets an entry, so that one that never
 * shows up is noticed too. */
static kelp_status adopt_map(struct kelp_placement *placement, struct kelp_map *map,
                             uint64_t now_ms, struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < map->shard_count; i++) {
        if (!kelp__placement_shard_of(placement, map->shards[i].id, now_ms)) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "more than %d shards",
                             KELP_COORDINATOR_SHARDS_MAX);
        }
    }
    assert(map->generation >= placement->map.generation);
    kelp_map_fini(&placement->map);
    placement->map = *map;
    *map = (struct kelp_map){0};
    return KELP_OK;
}

static kelp_status on_map_read(struct kelp_placement *placement,
                               const struct kelp_placement_event *event,
                               struct kelp_placement_actions *actions, struct kelp_error *reterr)
{
    if (placement->state != KELP_PLACEMENT_WAITING || placement->map_read) {
        return KELP_OK;
    }
    if (event->map_read->generation > placement->map.generation) {
        kelp_status status = adopt_map(placement, event->map_read, event->now_ms, reterr);
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
    if (placement->state != KELP_PLACEMENT_OPENING) {
        return KELP_OK; /* the job ended meanwhile */
    }
    switch (event->written) {
    case KELP_WRITTEN_OK: {
        kelp_status status = adopt_map(placement, &placement->next, event->now_ms, reterr);
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
    insert(actions, (struct kelp_placement_action){.kind = KELP_PLACEMENT_DO_DAMAGED,
                                                   .damaged = placement->map.restore_version});
}

/* Something that may pass, as a host without memory: tried again, later each time. A disk that
 * cannot be read is the checkpoint's fault in the end. */
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

/* A damaged checkpoint is left for the one before it. A fault of the job stays; anything else may
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

/* Two workers differ about what a step is. Nothing of it has been applied where that was found, so
 * another generation mends it; whoever does it again and again ends the job. */
static void on_blocked(struct kelp_placement *placement, const struct kelp_placement_event *event,
                       struct kelp_placement_actions *actions)
{
    if (placement->state != KELP_PLACEMENT_RUNNING && placement->state != KELP_PLACEMENT_LOADING) {
        return;
    }
    if (++placement->blocks > KELP_COORDINATOR_BLOCK_TRIES) {
        kelp__placement_fail(placement, event, actions, event->load_failed.id,
                             event->load_failed.text);
        return;
    }
    kelp__placement_move(placement, KELP_PLACEMENT_WAITING, actions);
    kelp__placement_say(placement, actions, "%s: %.250s", event->load_failed.id,
                        event->load_failed.text);
    placement->not_before_ms = event->now_ms + KELP_COORDINATOR_LOAD_RETRY_MS;
}

/* What a shard serves already, perhaps of an etcd that has been emptied since. */
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
        shard->silent = false; /* whoever started it has seen to the one before */
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

/* The shard, if this incarnation of it is the one that is connected; else NULL. */
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

kelp_status kelp__placement_take(struct kelp_placement *placement,
                                 const struct kelp_placement_event *event,
                                 struct kelp_placement_actions *actions, struct kelp_error *reterr)
{
    switch (event->kind) {
    case KELP_PLACEMENT_MAP_READ:
        return on_map_read(placement, event, actions, reterr);
    case KELP_PLACEMENT_PLAN:
        placement->partition_count = event->partition_count;
        break;
    case KELP_PLACEMENT_WORKERS:
        placement->worker_count = event->worker_count;
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
