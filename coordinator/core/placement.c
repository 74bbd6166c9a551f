#include "coordinator/core/placement.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

#define BIT(state) (1u << (state))

static const struct {
    const char *text;
    uint32_t next; /* states that may follow */
} states[KELP_PLACEMENT_STATE_COUNT] = {
    [KELP_PLACEMENT_WAITING] = {"starting", BIT(KELP_PLACEMENT_OPENING) |
                                                BIT(KELP_PLACEMENT_LOADING) |
                                                BIT(KELP_PLACEMENT_FAILED)},
    [KELP_PLACEMENT_OPENING] = {"starting", BIT(KELP_PLACEMENT_WAITING) |
                                                BIT(KELP_PLACEMENT_LOADING) |
                                                BIT(KELP_PLACEMENT_FAILED)},
    [KELP_PLACEMENT_LOADING] = {"starting", BIT(KELP_PLACEMENT_WAITING) |
                                                BIT(KELP_PLACEMENT_RUNNING) |
                                                BIT(KELP_PLACEMENT_FAILED)},
    [KELP_PLACEMENT_RUNNING] = {"running", BIT(KELP_PLACEMENT_WAITING) | BIT(KELP_PLACEMENT_DONE) |
                                               BIT(KELP_PLACEMENT_PAUSED) |
                                               BIT(KELP_PLACEMENT_FAILED)},
    [KELP_PLACEMENT_DONE] = {"done", BIT(KELP_PLACEMENT_WAITING)},
    [KELP_PLACEMENT_PAUSED] = {"paused", 0},
    [KELP_PLACEMENT_FAILED] = {"failed", 0},
};

static void move_to(struct kelp_placement *placement, enum kelp_placement_state state,
                    uint32_t *actions)
{
    assert((states[placement->state].next & BIT(state)) != 0);
    placement->state = state;
    *actions |= KELP_DO_STATE;
}

bool kelp_placement_settled(const struct kelp_placement *placement)
{
    return placement->state == KELP_PLACEMENT_DONE || placement->state == KELP_PLACEMENT_PAUSED ||
           placement->state == KELP_PLACEMENT_FAILED;
}

KELP_PRINTF(3, 4)
static void say(struct kelp_placement *placement, uint32_t *actions, const char *format, ...)
{
    char text[sizeof(placement->reason)];
    va_list args;
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is right above */
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (strcmp(text, placement->reason) != 0) {
        memcpy(placement->reason, text, sizeof(text));
        *actions |= KELP_DO_STATE;
    }
}

kelp_status kelp_placement_init(struct kelp_placement *placement,
                                const struct kelp_placement_options *options,
                                struct kelp_error *reterr)
{
    *placement = (struct kelp_placement){.options = *options};
    if (options->shards == 0 || options->shards > KELP_COORDINATOR_SHARDS_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "cluster.shards=%u; allowed are 1 to %d",
                         options->shards, KELP_COORDINATOR_SHARDS_MAX);
    }
    placement->shards = calloc(KELP_COORDINATOR_SHARDS_MAX, sizeof(*placement->shards));
    if (placement->shards == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the shard table");
    }
    (void)snprintf(placement->reason, sizeof(placement->reason), "reading the map from etcd");
    return KELP_OK;
}

void kelp_placement_fini(struct kelp_placement *placement)
{
    kelp_map_fini(&placement->map);
    kelp_map_fini(&placement->next);
    free(placement->shards);
    *placement = (struct kelp_placement){0};
}

const char *kelp_placement_state_text(enum kelp_placement_state state)
{
    assert(state < KELP_PLACEMENT_STATE_COUNT);
    return states[state].text;
}

const struct kelp_map *kelp_placement_loaded_map(const struct kelp_placement *placement)
{
    bool loaded =
        placement->state == KELP_PLACEMENT_RUNNING ||
        ((placement->state == KELP_PLACEMENT_DONE || placement->state == KELP_PLACEMENT_PAUSED) &&
         placement->map.generation > 0);
    return loaded ? &placement->map : NULL;
}

static struct kelp_placement_shard *find(const struct kelp_placement *placement, const char *id)
{
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        if (strcmp(placement->shards[i].at.id, id) == 0) {
            return &placement->shards[i];
        }
    }
    return NULL;
}

const struct kelp_placement_shard *kelp_placement_find(const struct kelp_placement *placement,
                                                       const char *id)
{
    return find(placement, id);
}

static bool ready(const struct kelp_placement_shard *shard)
{
    return shard->registered && shard->connected &&
           shard->connected_incarnation == shard->at.incarnation;
}

/* The entry of that id, a new one in the order of names if need be; NULL: the table is full. */
static struct kelp_placement_shard *shard_of(struct kelp_placement *placement, const char *id,
                                             uint64_t now_ms)
{
    struct kelp_placement_shard *shard = find(placement, id);
    if (shard != NULL || placement->shard_count == KELP_COORDINATOR_SHARDS_MAX) {
        return shard;
    }
    uint32_t at = 0;
    while (at < placement->shard_count &&
           kelp_map_compare_ids(placement->shards[at].at.id, id) < 0) {
        at++;
    }
    shard = &placement->shards[at];
    memmove(shard + 1, shard, (placement->shard_count - at) * sizeof(*shard));
    *shard = (struct kelp_placement_shard){.changed_ms = now_ms};
    (void)snprintf(shard->at.id, sizeof(shard->at.id), "%s", id);
    placement->shard_count++;
    return shard;
}

/* ---- what a shard of the map is doing ---------------------------------------------------------
 */

static bool overdue(const struct kelp_placement *placement,
                    const struct kelp_placement_shard *shard, uint64_t now_ms)
{
    return now_ms >= shard->changed_ms &&
           now_ms - shard->changed_ms >= placement->options.shard_wait_ms;
}

static bool lost(const struct kelp_placement *placement, const struct kelp_map_shard *mapped,
                 uint64_t now_ms)
{
    const struct kelp_placement_shard *shard = find(placement, mapped->id);
    assert(shard != NULL); /* taking a map makes an entry for each of its shards */
    if (shard->registered && shard->at.incarnation != mapped->incarnation) {
        return true;
    }
    return (!shard->registered || shard->broken) && !shard->connected &&
           overdue(placement, shard, now_ms);
}

bool kelp_placement_silent(const struct kelp_placement *placement,
                           const struct kelp_placement_shard *shard, uint64_t now_ms)
{
    int32_t index = kelp_map_find(&placement->map, shard->at.id);
    bool ours = index >= 0 && shard->at.incarnation == placement->map.shards[index].incarnation;
    return shard->silent ||
           (ours && !shard->connected && !shard->broken && overdue(placement, shard, now_ms));
}

static bool hosts(const struct kelp_placement *placement, const struct kelp_map_shard *mapped)
{
    const struct kelp_placement_shard *shard = find(placement, mapped->id);
    return shard != NULL && shard->connected && shard->connected_incarnation == mapped->incarnation;
}

static const char *first_lost(const struct kelp_placement *placement, uint64_t now_ms)
{
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        if (lost(placement, &placement->map.shards[i], now_ms)) {
            return placement->map.shards[i].id;
        }
    }
    return NULL;
}

static const char *first_unreached(const struct kelp_placement *placement)
{
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        if (!hosts(placement, &placement->map.shards[i])) {
            return placement->map.shards[i].id;
        }
    }
    return NULL;
}

static const char *first_unloaded(const struct kelp_placement *placement)
{
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        const struct kelp_placement_shard *shard = find(placement, placement->map.shards[i].id);
        if (shard->loaded_generation != placement->map.generation) {
            return shard->at.id;
        }
    }
    return NULL;
}

/* ---- the states -------------------------------------------------------------------------------
 */

static uint32_t ready_count(const struct kelp_placement *placement)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        count += ready(&placement->shards[i]) ? 1 : 0;
    }
    return count;
}

/* A restore goes on without the shards that were waited for long enough; the first start needs all
 * of them. */
static bool enough_shards(const struct kelp_placement *placement, uint32_t count, uint64_t now_ms)
{
    if (count >= placement->options.shards) {
        return true;
    }
    if (count == 0 || placement->map.generation == 0) {
        return false;
    }
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        const struct kelp_placement_shard *shard = find(placement, placement->map.shards[i].id);
        if (!ready(shard) && !overdue(placement, shard, now_ms)) {
            return false;
        }
    }
    return true;
}

static void say_missing_shards(struct kelp_placement *placement, uint32_t count, uint32_t *actions)
{
    char names[160] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < placement->map.shard_count && used < sizeof(names) - 80; i++) {
        const struct kelp_placement_shard *shard = find(placement, placement->map.shards[i].id);
        if (!ready(shard)) {
            int wrote = snprintf(names + used, sizeof(names) - used, "%s%s",
                                 used == 0 ? ": " : ", ", shard->at.id);
            used += wrote > 0 ? (size_t)wrote : 0;
        }
    }
    say(placement, actions, "waiting for %u of %u shards%s", placement->options.shards - count,
        placement->options.shards, names);
}

static kelp_status open_generation(struct kelp_placement *placement, uint32_t *actions,
                                   struct kelp_error *reterr)
{
    struct kelp_map_shard *chosen = calloc(placement->options.shards, sizeof(*chosen));
    if (chosen == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a map");
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < placement->shard_count && count < placement->options.shards; i++) {
        if (ready(&placement->shards[i])) {
            chosen[count++] = placement->shards[i].at;
        }
    }
    struct kelp_map next;
    kelp_status status =
        kelp_map_spread(&placement->map, chosen, count, placement->partition_count, &next, reterr);
    free(chosen);
    if (status != KELP_OK) {
        return status;
    }
    next.restore_version = placement->restore_version;
    if (next.generation <= placement->restore_generation) {
        next.generation = placement->restore_generation + 1; /* imported: names must not repeat */
    }
    if (next.generation <= placement->served_generation) {
        next.generation = placement->served_generation + 1; /* shards take newer maps alone */
    }
    assert(next.generation > placement->map.generation);
    (void)snprintf(next.nonce, sizeof(next.nonce), "%016llx-%llu",
                   (unsigned long long)placement->options.writer,
                   (unsigned long long)++placement->writes);
    kelp_map_fini(&placement->next);
    placement->next = next;
    move_to(placement, KELP_PLACEMENT_OPENING, actions);
    say(placement, actions, "opening generation %llu", (unsigned long long)next.generation);
    *actions |= KELP_DO_WRITE_MAP;
    return KELP_OK;
}

static kelp_status wait_or_open(struct kelp_placement *placement, uint64_t now_ms,
                                uint32_t *actions, struct kelp_error *reterr)
{
    uint32_t count = ready_count(placement);
    if (placement->choosing) {
        return KELP_OK;
    }
    if (!placement->map_read && placement->missing[0] != '\0') {
        say(placement, actions, "waiting for %s", placement->missing);
    } else if (!placement->map_read) {
        say(placement, actions, "reading the map from etcd");
    } else if (placement->map.generation == 0 &&
               placement->worker_count < placement->options.workers_min) {
        say(placement, actions, "waiting for %u of %u workers",
            placement->options.workers_min - placement->worker_count,
            placement->options.workers_min);
    } else if (placement->partition_count == 0) {
        say(placement, actions, "waiting for the plan to be in etcd");
    } else if (!enough_shards(placement, count, now_ms)) {
        say_missing_shards(placement, count, actions);
    } else if (placement->undecided) {
        say(placement, actions, "waiting for etcd to say whether the last checkpoint is committed");
    } else if (now_ms >= placement->not_before_ms) {
        return open_generation(placement, actions, reterr);
    }
    return KELP_OK;
}

/* In LOADING and RUNNING: is a shard of the map lost? */
static bool check_loss(struct kelp_placement *placement, uint64_t now_ms, uint32_t *actions)
{
    const char *gone = first_lost(placement, now_ms);
    if (gone == NULL) {
        return false;
    }
    struct kelp_placement_shard *shard = find(placement, gone);
    shard->silent = kelp_placement_silent(placement, shard, now_ms);
    (void)snprintf(placement->loss, sizeof(placement->loss), "%s", gone);
    move_to(placement, KELP_PLACEMENT_WAITING, actions);
    say(placement, actions, "%s is lost", gone);
    *actions |= KELP_DO_COUNT_LOSS;
    return true;
}

/* The job cannot go on; hint says where it stood and how to resume it. */
static void fail(struct kelp_placement *placement, const struct kelp_placement_event *event,
                 uint32_t *actions, const char *id, const char *text)
{
    move_to(placement, KELP_PLACEMENT_FAILED, actions);
    say(placement, actions, "%s%s%.250s%s%s", id, id[0] == '\0' ? "" : ": ", text,
        event->hint == NULL ? "" : "; ", event->hint == NULL ? "" : event->hint);
}

/* Storage is waited for, by name, but perhaps not for ever. */
static const char *missing_storage(const struct kelp_placement *placement, uint64_t now_ms,
                                   const struct kelp_placement_shard **ret_shard)
{
    const struct kelp_placement_shard *waits = NULL;
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        const struct kelp_placement_shard *shard = find(placement, placement->map.shards[i].id);
        if (shard->waiting[0] == '\0' || shard->loaded_generation == placement->map.generation) {
            continue;
        }
        if (waits == NULL) {
            waits = shard;
        }
        uint32_t limit_ms = placement->options.storage_wait_ms;
        if (limit_ms > 0 && now_ms >= shard->waiting_ms + limit_ms) {
            *ret_shard = shard;
            return shard->waiting;
        }
    }
    *ret_shard = waits;
    return NULL;
}

/* In LOADING: has storage been waited for long enough? */
static bool check_storage(struct kelp_placement *placement,
                          const struct kelp_placement_event *event, uint32_t *actions)
{
    const struct kelp_placement_shard *shard = NULL;
    char text[2 * KELP_COORDINATOR_WAITING_MAX];
    if (missing_storage(placement, event->now_ms, &shard) == NULL) {
        return false;
    }
    (void)snprintf(text, sizeof(text), "waited %u s for %s (failure.storage_wait)",
                   placement->options.storage_wait_ms / 1000, shard->waiting);
    fail(placement, event, actions, shard->at.id, text);
    return true;
}

/* In WAITING, before the map is read: the same for what a checkpoint must be chosen by. */
static bool check_missing(struct kelp_placement *placement,
                          const struct kelp_placement_event *event, uint32_t *actions)
{
    uint32_t limit_ms = placement->options.storage_wait_ms;
    char text[2 * KELP_COORDINATOR_WAITING_MAX];
    if (placement->map_read || placement->missing[0] == '\0' || limit_ms == 0 ||
        event->now_ms < placement->missing_ms + limit_ms) {
        return false;
    }
    (void)snprintf(text, sizeof(text), "waited %u s for %s (failure.storage_wait)", limit_ms / 1000,
                   placement->missing);
    fail(placement, event, actions, "", text);
    return true;
}

/* Is it us who are cut off? */
static bool check_cut_off(struct kelp_placement *placement, uint64_t now_ms, uint32_t *actions)
{
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        const struct kelp_placement_shard *shard = find(placement, placement->map.shards[i].id);
        if (shard->connected || shard->broken || !shard->registered ||
            shard->at.incarnation != placement->map.shards[i].incarnation) {
            placement->cut_off_ms = 0;
            return false;
        }
    }
    if (placement->cut_off_ms == 0) {
        placement->cut_off_ms = now_ms;
    }
    if (now_ms < placement->cut_off_ms + KELP_COORDINATOR_CUT_OFF_MS) {
        return false;
    }
    placement->cut_off_ms = 0;
    *actions |= KELP_DO_RESIGN;
    return true;
}

static void load(struct kelp_placement *placement, uint64_t now_ms, uint32_t *actions)
{
    const struct kelp_placement_shard *waits = NULL;
    const char *missing = first_unreached(placement);
    (void)missing_storage(placement, now_ms, &waits);
    if (missing == NULL && waits != NULL) {
        say(placement, actions, "waiting for %s (%s)", waits->waiting, waits->at.id);
        return;
    }
    if (missing == NULL) {
        missing = first_unloaded(placement);
    }
    if (missing != NULL) {
        say(placement, actions, "waiting for %s to load generation %llu", missing,
            (unsigned long long)placement->map.generation);
        return;
    }
    placement->load_failures = 0;
    move_to(placement, KELP_PLACEMENT_RUNNING, actions);
    *actions |= KELP_DO_MAP_TO_WORKERS;
}

static void run(struct kelp_placement *placement, uint32_t *actions)
{
    const char *missing = first_unreached(placement);
    if (missing != NULL) {
        say(placement, actions, "%s does not answer", missing);
    } else if (placement->worker_count == 0) {
        say(placement, actions, "waiting for a worker");
    } else {
        say(placement, actions, "%s", "");
    }
}

/* Is the model of the current map the final one, and all of it there? A finish of a generation
 * before says nothing: parts of that model are lost, and the current one ends with a finish of its
 * own. */
static bool finished(const struct kelp_placement *placement)
{
    return placement->state == KELP_PLACEMENT_RUNNING &&
           placement->finished_generation == placement->map.generation &&
           first_unreached(placement) ==
               NULL; /* perhaps it died, and that is not established yet */
}

/* Go on as far as what is known allows; from RUNNING to DONE not with the event that led to
 * RUNNING, so that the shell sees each of them. */
static kelp_status advance(struct kelp_placement *placement,
                           const struct kelp_placement_event *event, uint32_t *actions,
                           struct kelp_error *reterr)
{
    uint64_t now_ms = event->now_ms;
    if (placement->state == KELP_PLACEMENT_DONE) {
        (void)check_loss(placement, now_ms, actions);
    }
    if ((placement->state == KELP_PLACEMENT_LOADING ||
         placement->state == KELP_PLACEMENT_RUNNING) &&
        !check_loss(placement, now_ms, actions) && !check_cut_off(placement, now_ms, actions)) {
        if (finished(placement)) {
            move_to(placement, KELP_PLACEMENT_DONE, actions);
            say(placement, actions, "%s", "");
            return KELP_OK;
        }
        if (placement->state == KELP_PLACEMENT_LOADING) {
            if (check_storage(placement, event, actions)) {
                return KELP_OK;
            }
            load(placement, now_ms, actions);
        }
    }
    if (placement->state == KELP_PLACEMENT_RUNNING) {
        run(placement, actions);
    }
    if (placement->state == KELP_PLACEMENT_WAITING && !check_missing(placement, event, actions)) {
        return wait_or_open(placement, now_ms, actions, reterr);
    }
    return KELP_OK;
}

/* ---- events -----------------------------------------------------------------------------------
 */

/* Make map (not empty) the current one. Each of its shards gets an entry, so that one that never
 * shows up is noticed too. */
static kelp_status take_map(struct kelp_placement *placement, struct kelp_map *map, uint64_t now_ms,
                            struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < map->shard_count; i++) {
        if (shard_of(placement, map->shards[i].id, now_ms) == NULL) {
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
                               const struct kelp_placement_event *event, uint32_t *actions,
                               struct kelp_error *reterr)
{
    if (placement->state != KELP_PLACEMENT_WAITING || placement->map_read) {
        return KELP_OK;
    }
    if (event->map->generation > placement->map.generation) {
        kelp_status status = take_map(placement, event->map, event->now_ms, reterr);
        if (status != KELP_OK) {
            return status;
        }
        placement->map_read = true;
        move_to(placement, KELP_PLACEMENT_LOADING, actions);
        *actions |= KELP_DO_MAP_TO_SHARDS;
    }
    placement->map_read = true;
    return KELP_OK;
}

static kelp_status on_written(struct kelp_placement *placement,
                              const struct kelp_placement_event *event, uint32_t *actions,
                              struct kelp_error *reterr)
{
    if (placement->state != KELP_PLACEMENT_OPENING) {
        return KELP_OK; /* the job ended meanwhile */
    }
    switch (event->result) {
    case KELP_WRITTEN_OK: {
        kelp_status status = take_map(placement, &placement->next, event->now_ms, reterr);
        if (status != KELP_OK) {
            return status;
        }
        move_to(placement, KELP_PLACEMENT_LOADING, actions);
        *actions |= KELP_DO_MAP_TO_SHARDS;
        return KELP_OK;
    }
    case KELP_WRITTEN_NOT:
        placement->not_before_ms = event->now_ms + KELP_COORDINATOR_RETRY_MS;
        break;
    case KELP_WRITTEN_UNKNOWN:
        placement->not_before_ms = event->now_ms + KELP_COORDINATOR_RETRY_MS;
        placement->map_read = false;
        *actions |= KELP_DO_READ_MAP;
        break;
    }
    move_to(placement, KELP_PLACEMENT_WAITING, actions);
    say(placement, actions, "etcd did not take the map of generation %llu; trying again",
        (unsigned long long)placement->next.generation);
    return KELP_OK;
}

/* Start from the checkpoint before it. */
static void leave_checkpoint(struct kelp_placement *placement,
                             const struct kelp_placement_event *event, const char *why,
                             uint32_t *actions)
{
    move_to(placement, KELP_PLACEMENT_WAITING, actions);
    say(placement, actions, "the checkpoint of version %llu %s: %s: %.250s",
        (unsigned long long)placement->map.restore_version, why, event->id, event->text);
    placement->choosing = true;
    *actions |= KELP_DO_DAMAGED;
}

/* Something that may pass, as a host without memory: tried again, later each time. A disk that
 * cannot be read is the checkpoint's fault in the end. */
static void load_again(struct kelp_placement *placement, const struct kelp_placement_event *event,
                       uint32_t *actions)
{
    uint64_t pause_ms = KELP_COORDINATOR_LOAD_RETRY_MS;
    if (placement->failed_version != placement->map.restore_version) {
        placement->load_failures = 0;
        placement->failed_version = placement->map.restore_version;
    }
    placement->load_failures++;
    if (event->status == KELP_ERR_IO && placement->map.restore_version > 0 &&
        placement->load_failures >= KELP_COORDINATOR_LOAD_TRIES) {
        placement->load_failures = 0;
        leave_checkpoint(placement, event, "cannot be read", actions);
        return;
    }
    for (uint32_t i = 1; i < placement->load_failures && pause_ms < KELP_COORDINATOR_PAUSE_MAX_MS;
         i++) {
        pause_ms *= 2;
    }
    move_to(placement, KELP_PLACEMENT_WAITING, actions);
    say(placement, actions, "%s could not load: %s", event->id, event->text);
    placement->not_before_ms = event->now_ms + pause_ms;
}

/* A damaged checkpoint is left for the one before it. A fault of the job stays; anything else may
 * pass, and another generation is tried. */
static void on_load_failed(struct kelp_placement *placement,
                           const struct kelp_placement_event *event, uint32_t *actions)
{
    enum kelp_status_group group = kelp_status_group(event->status);
    bool loading = placement->state == KELP_PLACEMENT_LOADING; /* else another shard has said so */
    if (group == KELP_GROUP_DATA && placement->map.restore_version > 0) {
        if (loading) {
            leave_checkpoint(placement, event, "is damaged", actions);
        }
    } else if (group == KELP_GROUP_DATA || group == KELP_GROUP_CALLER) {
        fail(placement, event, actions, event->id, event->text);
    } else if (loading) {
        load_again(placement, event, actions);
    }
}

/* What a shard serves already, perhaps of an etcd that has been emptied since. */
static void note_served(struct kelp_placement *placement, uint64_t generation)
{
    if (generation > placement->served_generation && generation < KELP_JSON_INTEGER_MAX) {
        placement->served_generation = generation;
    }
}

static kelp_status on_shard(struct kelp_placement *placement,
                            const struct kelp_placement_event *event, uint32_t *actions,
                            struct kelp_error *reterr)
{
    const char *id = event->kind == KELP_PLACEMENT_REGISTERED ? event->shard->id : event->id;
    /* A stream may come up between the end of a lease and the next registration. */
    bool comes =
        event->kind == KELP_PLACEMENT_REGISTERED || event->kind == KELP_PLACEMENT_CONNECTED;
    struct kelp_placement_shard *shard =
        comes ? shard_of(placement, id, event->now_ms) : find(placement, id);
    if (shard == NULL) {
        return comes ? kelp_fail(reterr, KELP_ERR_LIMIT, "more than %d shards registered",
                                 KELP_COORDINATOR_SHARDS_MAX)
                     : KELP_OK;
    }
    bool speaks = shard->connected && shard->connected_incarnation == event->incarnation;
    if (event->kind == KELP_PLACEMENT_REGISTERED) {
        if (shard->at.incarnation != event->shard->incarnation) {
            shard->silent = false; /* whoever started it has seen to the one before */
        }
        shard->at = *event->shard;
        shard->registered = true;
    } else if (event->kind == KELP_PLACEMENT_UNREGISTERED) {
        shard->registered = false;
    } else if (event->kind == KELP_PLACEMENT_CONNECTED) {
        shard->connected = true;
        shard->connected_incarnation = event->incarnation;
        shard->changed_ms = event->now_ms;
        shard->loaded_generation = 0; /* until it says so on this stream */
        note_served(placement, event->generation);
        shard->waiting[0] = '\0';
        shard->broken = false;
        shard->silent = false;
    } else if (event->kind == KELP_PLACEMENT_DISCONNECTED && shard->connected) {
        shard->connected = false;
        shard->broken = event->broken;
        shard->changed_ms = event->now_ms;
    } else if (event->kind == KELP_PLACEMENT_STORAGE && speaks) {
        if (shard->waiting[0] == '\0') {
            shard->waiting_ms = event->now_ms;
        }
        (void)snprintf(shard->waiting, sizeof(shard->waiting), "%s", event->text);
    } else if (event->kind == KELP_PLACEMENT_LOADED && speaks) {
        shard->loaded_generation = event->generation;
        note_served(placement, event->generation);
    } else if (event->kind == KELP_PLACEMENT_LOAD_FAILED && speaks) {
        on_load_failed(placement, event, actions);
    }
    return KELP_OK;
}

/* Shards that left for good need no entry: not registered, not connected, in no map. */
static void forget(struct kelp_placement *placement)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        const struct kelp_placement_shard *shard = &placement->shards[i];
        bool wanted = shard->registered || shard->connected || shard->silent ||
                      kelp_map_find(&placement->map, shard->at.id) >= 0 ||
                      (placement->state == KELP_PLACEMENT_OPENING &&
                       kelp_map_find(&placement->next, shard->at.id) >= 0);
        if (wanted) {
            if (kept != i) {
                placement->shards[kept] = *shard;
            }
            kept++;
        }
    }
    placement->shard_count = kept;
}

static kelp_status take(struct kelp_placement *placement, const struct kelp_placement_event *event,
                        uint32_t *actions, struct kelp_error *reterr)
{
    switch (event->kind) {
    case KELP_PLACEMENT_MAP_READ:
        return on_map_read(placement, event, actions, reterr);
    case KELP_PLACEMENT_PLAN:
        placement->partition_count = event->partition_count;
        return KELP_OK;
    case KELP_PLACEMENT_WORKERS:
        placement->worker_count = event->worker_count;
        return KELP_OK;
    case KELP_PLACEMENT_REGISTERED:
    case KELP_PLACEMENT_UNREGISTERED:
    case KELP_PLACEMENT_CONNECTED:
    case KELP_PLACEMENT_DISCONNECTED:
    case KELP_PLACEMENT_STORAGE:
    case KELP_PLACEMENT_LOADED:
    case KELP_PLACEMENT_LOAD_FAILED:
        return on_shard(placement, event, actions, reterr);
    case KELP_PLACEMENT_WRITTEN:
        return on_written(placement, event, actions, reterr);
    case KELP_PLACEMENT_FINISHED:
        if (event->generation > placement->finished_generation) {
            placement->finished_generation = event->generation;
        }
        return KELP_OK;
    case KELP_PLACEMENT_MISSING:
        if (placement->missing[0] == '\0') {
            placement->missing_ms = event->now_ms;
        }
        (void)snprintf(placement->missing, sizeof(placement->missing), "%s", event->text);
        return KELP_OK;
    case KELP_PLACEMENT_RESTORE:
        placement->restore_version = event->version;
        placement->restore_generation = event->generation;
        placement->restore_final = event->final;
        placement->choosing = false;
        placement->undecided = event->undecided;
        return KELP_OK;
    case KELP_PLACEMENT_PAUSE:
        if (placement->state == KELP_PLACEMENT_RUNNING) {
            move_to(placement, KELP_PLACEMENT_PAUSED, actions);
            say(placement, actions, "%s", event->text);
        }
        return KELP_OK;
    case KELP_PLACEMENT_STOPPED:
        fail(placement, event, actions, "", event->text);
        return KELP_OK;
    case KELP_PLACEMENT_TICK:
    case KELP_PLACEMENT_EVENT_COUNT:
        return KELP_OK;
    }
    return KELP_OK;
}

kelp_status kelp_placement_apply(struct kelp_placement *placement,
                                 const struct kelp_placement_event *event, uint32_t *ret_actions,
                                 struct kelp_error *reterr)
{
    uint32_t actions = 0;
    kelp_status status = KELP_OK;
    bool world = event->kind == KELP_PLACEMENT_RESTORE ||
                 (event->kind >= KELP_PLACEMENT_WORKERS && event->kind <= KELP_PLACEMENT_LOADED);
    if (!kelp_placement_settled(placement) || world) {
        status = take(placement, event, &actions, reterr);
    }
    bool reopens = placement->state == KELP_PLACEMENT_DONE && placement->restore_final;
    if (status == KELP_OK && (!kelp_placement_settled(placement) || reopens)) {
        status = advance(placement, event, &actions, reterr);
        forget(placement);
    }
    if (event->kind == KELP_PLACEMENT_MAP_READ) {
        kelp_map_fini(event->map); /* what was not taken */
    }
    *ret_actions = actions;
    return status;
}
