/* The loss of a partition's last replica leads to another generation: check_loss(), wait_or_open(),
 * open_generation(). The states are drawn in placement.h. */
#include "coordinator/core/placement/placement.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/core/placement/placement_internal.h"

/* ---- life ---- */

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
    if (!placement->shards) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the shard table");
    }
    (void)snprintf(placement->reason, sizeof(placement->reason), "reading the map from etcd");
    return KELP_OK;
}

void kelp_placement_fini(struct kelp_placement *placement)
{
    kelp_map_fini(&placement->map);
    kelp_map_fini(&placement->next);
    kelp_replicas_fini(&placement->replicas);
    free(placement->shards);
    *placement = (struct kelp_placement){0};
}

bool kelp_placement_settled(const struct kelp_placement *placement)
{
    return placement->state == KELP_PLACEMENT_DONE || placement->state == KELP_PLACEMENT_PAUSED ||
           placement->state == KELP_PLACEMENT_FAILED;
}

const char *kelp_placement_state_text(enum kelp_placement_state state)
{
    static const char *const texts[KELP_PLACEMENT_STATE_COUNT] = {
        [KELP_PLACEMENT_WAITING] = "starting", [KELP_PLACEMENT_OPENING] = "starting",
        [KELP_PLACEMENT_LOADING] = "starting", [KELP_PLACEMENT_RUNNING] = "running",
        [KELP_PLACEMENT_DONE] = "done",        [KELP_PLACEMENT_PAUSED] = "paused",
        [KELP_PLACEMENT_FAILED] = "failed",
    };
    assert(state < KELP_PLACEMENT_STATE_COUNT);
    return texts[state];
}

bool kelp_placement_changes(const struct kelp_placement *placement)
{
    return placement->change != KELP_CHANGE_NONE || placement->promotion_waits;
}

const struct kelp_map *kelp_placement_loaded_map(const struct kelp_placement *placement)
{
    bool loaded =
        placement->state == KELP_PLACEMENT_RUNNING ||
        ((placement->state == KELP_PLACEMENT_DONE || placement->state == KELP_PLACEMENT_PAUSED) &&
         placement->map.generation > 0);
    return loaded && placement->told ? &placement->map : NULL;
}

/* ---- opening ---- */

/* A restore continues without missing shards once they were waited for long enough: first those
 * that the job had, then additional ones that it should have now, which may come later too. The
 * first start needs all of them. */
static bool enough_shards(struct kelp_placement *placement, uint32_t count, uint64_t now_ms)
{
    if (count >= placement->options.shards) {
        return true;
    }
    if (count == 0 || placement->map.generation == 0) {
        return false;
    }
    uint32_t away = 0;
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        const struct kelp_placement_shard *shard =
            kelp__placement_find(placement, placement->map.shards[i].id);
        bool ready = kelp__placement_ready(shard);
        if (!ready && !kelp__placement_overdue(placement, shard, now_ms)) {
            placement->growth_ms = 0;
            return false;
        }
        away += ready ? 0 : 1;
    }
    if (count + away >= placement->options.shards) {
        return true;
    }
    placement->growth_ms = placement->growth_ms == 0 ? now_ms : placement->growth_ms;
    return now_ms >= placement->growth_ms + placement->options.shard_wait_ms;
}

static void say_missing_shards(struct kelp_placement *placement, uint32_t count,
                               struct kelp_placement_actions *actions)
{
    char names[160] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < placement->map.shard_count && used < sizeof(names) - 80; i++) {
        const struct kelp_placement_shard *shard =
            kelp__placement_find(placement, placement->map.shards[i].id);
        if (!kelp__placement_ready(shard)) {
            int wrote = snprintf(names + used, sizeof(names) - used, "%s%s",
                                 used == 0 ? ": " : ", ", shard->at.id);
            used += wrote > 0 ? (size_t)wrote : 0;
        }
    }
    if (placement->growth_ms != 0) {
        (void)snprintf(names, sizeof(names), ", for %g s at most: it had %u before",
                       placement->options.shard_wait_ms / 1000.0, placement->map.shard_count);
    }
    kelp__placement_say(placement, actions, "waiting for %u of %u shards%s",
                        placement->options.shards - count, placement->options.shards, names);
}

static void say_opening(struct kelp_placement *placement, uint32_t count,
                        struct kelp_placement_actions *actions)
{
    char fewer[64] = "";
    if (count < placement->options.shards) {
        (void)snprintf(fewer, sizeof(fewer), " on %u of %u shards, and more once they come", count,
                       placement->options.shards);
    }
    kelp__placement_say(placement, actions, "opening generation %llu%s",
                        (unsigned long long)placement->next.generation, fewer);
}

static kelp_status open_generation(struct kelp_placement *placement,
                                   struct kelp_placement_actions *actions,
                                   struct kelp_error *reterr)
{
    struct kelp_map_shard *chosen = calloc(placement->options.shards, sizeof(*chosen));
    if (!chosen) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a map");
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < placement->shard_count && count < placement->options.shards; i++) {
        if (kelp__placement_usable(placement, &placement->shards[i])) {
            chosen[count++] = placement->shards[i].at;
        }
    }
    struct kelp_map next;
    kelp_status status =
        kelp_map_spread(&placement->map, chosen, count, placement->partition_count, &next, reterr);
    free(chosen);
    if (status == KELP_OK && placement->options.replicas > 1) {
        status = kelp__placement_lay_out(placement, &next, reterr);
        if (status != KELP_OK) {
            kelp_map_fini(&next);
        }
    }
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
    kelp__placement_name_write(placement, &next);
    kelp_map_fini(&placement->next);
    placement->next = next;
    kelp__placement_move(placement, KELP_PLACEMENT_OPENING, actions);
    say_opening(placement, count, actions);
    placement->growth_ms = 0;
    kelp__placement_want(actions, KELP_PLACEMENT_DO_WRITE_MAP);
    return KELP_OK;
}

static kelp_status wait_or_open(struct kelp_placement *placement, uint64_t now_ms,
                                struct kelp_placement_actions *actions, struct kelp_error *reterr)
{
    uint32_t count = kelp__placement_usable_count(placement);
    if (placement->choosing || placement->change != KELP_CHANGE_NONE) {
        return KELP_OK;
    }
    if (!placement->map_read && placement->missing[0] != '\0') {
        kelp__placement_say(placement, actions, "waiting for %s", placement->missing);
    } else if (!placement->map_read) {
        kelp__placement_say(placement, actions, "reading the map from etcd");
    } else if (placement->map.generation == 0 &&
               placement->worker_count < placement->options.workers_min) {
        const char *program = placement->options.program;
        kelp__placement_say(placement, actions, "waiting for %u of %u workers%s%s%s",
                            placement->options.workers_min - placement->worker_count,
                            placement->options.workers_min, program[0] ? ": " : "", program,
                            program[0] ? " starts (imports, data)" : "");
    } else if (placement->partition_count == 0) {
        kelp__placement_say(placement, actions, "waiting for the plan to be in etcd");
    } else if (!enough_shards(placement, count, now_ms)) {
        say_missing_shards(placement, count, actions);
    } else if (placement->undecided) {
        kelp__placement_say(placement, actions,
                            "waiting for etcd to say whether the last checkpoint is committed");
    } else if (now_ms >= placement->not_before_ms) {
        return open_generation(placement, actions, reterr);
    }
    return KELP_OK;
}

/* ---- checks ---- */

/* Whether a shard is lost, and with it the last replica of a partition. */
static bool check_loss(struct kelp_placement *placement, uint64_t now_ms,
                       enum kelp_failover_verdict verdict, struct kelp_placement_actions *actions)
{
    const char *gone = kelp__placement_first_lost(placement, now_ms);
    if (!gone || verdict != KELP_FAILOVER_NOBODY) {
        return false;
    }
    struct kelp_placement_shard *shard = kelp__placement_find(placement, gone);
    shard->silent = kelp_placement_silent(placement, shard, now_ms);
    (void)snprintf(placement->loss, sizeof(placement->loss), "%s", gone);
    kelp__placement_move(placement, KELP_PLACEMENT_WAITING, actions);
    kelp__placement_say(placement, actions, "%s is lost", gone);
    kelp__placement_want_loss(actions, placement->loss);
    return true;
}

/* In LOADING: whether storage was waited for long enough. */
static bool check_storage(struct kelp_placement *placement,
                          const struct kelp_placement_event *event,
                          struct kelp_placement_actions *actions)
{
    const struct kelp_placement_shard *shard = NULL;
    char text[2 * KELP_COORDINATOR_WAITING_MAX];
    if (!kelp__placement_missing_storage(placement, event->now_ms, &shard)) {
        return false;
    }
    (void)snprintf(text, sizeof(text), "waited %u s for %s (failure.storage_wait)",
                   placement->options.storage_wait_ms / 1000, shard->waiting);
    kelp__placement_fail(placement, event, actions, shard->at.id, text);
    return true;
}

/* In WAITING, before the map is read: the same for the folder from which a checkpoint must be
 * chosen. */
static bool check_missing(struct kelp_placement *placement,
                          const struct kelp_placement_event *event,
                          struct kelp_placement_actions *actions)
{
    uint32_t limit_ms = placement->options.storage_wait_ms;
    char text[2 * KELP_COORDINATOR_WAITING_MAX];
    if (placement->map_read || placement->missing[0] == '\0' || limit_ms == 0 ||
        event->now_ms < placement->missing_ms + limit_ms) {
        return false;
    }
    (void)snprintf(text, sizeof(text), "waited %u s for %s (failure.storage_wait)", limit_ms / 1000,
                   placement->missing);
    kelp__placement_fail(placement, event, actions, "", text);
    return true;
}

/* Is it us who are cut off? */
static bool check_cut_off(struct kelp_placement *placement, uint64_t now_ms,
                          struct kelp_placement_actions *actions)
{
    for (uint32_t i = 0; i < placement->map.shard_count; i++) {
        const struct kelp_placement_shard *shard =
            kelp__placement_find(placement, placement->map.shards[i].id);
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
    kelp__placement_want(actions, KELP_PLACEMENT_DO_RESIGN);
    return true;
}

/* ---- the states ---- */

static void load(struct kelp_placement *placement, uint64_t now_ms,
                 struct kelp_placement_actions *actions)
{
    const struct kelp_placement_shard *waits = NULL;
    const char *missing = kelp__placement_first_unreached(placement);
    (void)kelp__placement_missing_storage(placement, now_ms, &waits);
    if (!missing && waits) {
        kelp__placement_say(placement, actions, "waiting for %s (%s)", waits->waiting,
                            waits->at.id);
        return;
    }
    if (!missing) {
        missing = kelp__placement_first_unloaded(placement);
    }
    if (missing) {
        kelp__placement_say(placement, actions, "waiting for %s to load generation %llu", missing,
                            (unsigned long long)placement->map.generation);
        return;
    }
    placement->load_failures = 0;
    placement->told = placement->told || placement->map.serial == 1; /* who loaded it has it */
    kelp__placement_move(placement, KELP_PLACEMENT_RUNNING, actions);
    kelp__placement_want(actions, KELP_PLACEMENT_DO_MAP_TO_WORKERS);
}

static void run(struct kelp_placement *placement, struct kelp_placement_actions *actions)
{
    const char *missing = kelp__placement_first_unreached(placement);
    if (missing) {
        kelp__placement_say(placement, actions, "%s does not answer", missing);
    } else if (placement->worker_count == 0) {
        kelp__placement_say(placement, actions, "waiting for a worker");
    } else if (placement->worker_count < placement->workers_least) {
        kelp__placement_say(placement, actions,
                            "training rests: %u workers are here, and it needs %u",
                            placement->worker_count, placement->workers_least);
    } else {
        kelp__placement_say(placement, actions, "%s", "");
    }
}

/* Whether the current map's model is the final one and complete. A finish of an earlier generation
 * does not count: parts of that model are lost, and the current generation ends with a finish of
 * its own. */
static bool finished(const struct kelp_placement *placement)
{
    return placement->state == KELP_PLACEMENT_RUNNING &&
           placement->finished_generation == placement->map.generation &&
           kelp__placement_first_unreached(placement) ==
               NULL; /* it may have died, which is not established yet */
}

/* Go on as far as the known facts allow. The event that leads to RUNNING does not also lead to
 * DONE, so that the shell sees both. */
static kelp_status advance(struct kelp_placement *placement,
                           const struct kelp_placement_event *event,
                           struct kelp_placement_actions *actions, struct kelp_error *reterr)
{
    uint64_t now_ms = event->now_ms;
    enum kelp_failover_verdict verdict = KELP_FAILOVER_NOTHING;
    bool loaded =
        placement->state == KELP_PLACEMENT_RUNNING || placement->state == KELP_PLACEMENT_DONE;
    if (loaded || placement->state == KELP_PLACEMENT_LOADING) {
        kelp_status status =
            kelp__placement_fail_over(placement, now_ms, actions, &verdict, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    if (placement->state == KELP_PLACEMENT_DONE && placement->restore_final) {
        (void)check_loss(placement, now_ms, verdict, actions);
    }
    if ((placement->state == KELP_PLACEMENT_LOADING ||
         placement->state == KELP_PLACEMENT_RUNNING) &&
        !check_loss(placement, now_ms, verdict, actions) &&
        !check_cut_off(placement, now_ms, actions)) {
        if (finished(placement)) {
            kelp__placement_move(placement, KELP_PLACEMENT_DONE, actions);
            kelp__placement_say(placement, actions, "%s", "");
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
        kelp_status status = kelp__placement_move_partitions(placement, event, actions, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    if (loaded) {
        kelp__placement_tell(placement, now_ms, actions);
    }
    if (placement->state == KELP_PLACEMENT_WAITING && !check_missing(placement, event, actions)) {
        return wait_or_open(placement, now_ms, actions, reterr);
    }
    return KELP_OK;
}

/* Facts that are taken in even after the end: which processes are there, and what a restore would
 * start from. */
static bool outlives_the_end(enum kelp_placement_event_kind kind)
{
    switch (kind) {
    case KELP_PLACEMENT_WORKERS:
    case KELP_PLACEMENT_SIZE:
    case KELP_PLACEMENT_REGISTERED:
    case KELP_PLACEMENT_UNREGISTERED:
    case KELP_PLACEMENT_CONNECTED:
    case KELP_PLACEMENT_DISCONNECTED:
    case KELP_PLACEMENT_STORAGE:
    case KELP_PLACEMENT_LOADED:
    case KELP_PLACEMENT_TAKEN:
    case KELP_PLACEMENT_REPLICAS:
    case KELP_PLACEMENT_DOUBTED:
    case KELP_PLACEMENT_LEAVING:
    case KELP_PLACEMENT_RESTORE:
    case KELP_PLACEMENT_MAP_READ: /* of a change, as WRITTEN */
    case KELP_PLACEMENT_WRITTEN:
        return true;
    case KELP_PLACEMENT_PLAN:
    case KELP_PLACEMENT_LOAD_FAILED:
    case KELP_PLACEMENT_STANDS:
    case KELP_PLACEMENT_BLOCKED:
    case KELP_PLACEMENT_MISSING:
    case KELP_PLACEMENT_FINISHED:
    case KELP_PLACEMENT_PAUSE:
    case KELP_PLACEMENT_STOPPED:
    case KELP_PLACEMENT_TICK:
    case KELP_PLACEMENT_EVENT_COUNT:
        break;
    }
    return false;
}

/* May others have to be drained after it? */
static bool redrains(enum kelp_placement_event_kind kind)
{
    return kind == KELP_PLACEMENT_SIZE || kind == KELP_PLACEMENT_REGISTERED ||
           kind == KELP_PLACEMENT_UNREGISTERED || kind == KELP_PLACEMENT_LEAVING;
}

kelp_status kelp_placement_apply(struct kelp_placement *placement,
                                 const struct kelp_placement_event *event,
                                 struct kelp_placement_actions *ret_actions,
                                 struct kelp_error *reterr)
{
    struct kelp_placement_actions actions = {.count = 0};
    kelp_status status = KELP_OK;
    if (!kelp_placement_settled(placement) || outlives_the_end(event->kind)) {
        status = kelp__placement_take(placement, event, &actions, reterr);
    }
    if (redrains(event->kind)) {
        kelp__placement_find_drained(placement, event->now_ms);
    }
    if (status == KELP_OK &&
        (!kelp_placement_settled(placement) || placement->state == KELP_PLACEMENT_DONE)) {
        status = advance(placement, event, &actions, reterr);
        kelp__placement_forget(placement, event->now_ms);
    }
    if (event->kind == KELP_PLACEMENT_MAP_READ) {
        kelp_map_fini(event->map_read); /* what was not taken */
    }
    *ret_actions = actions;
    return status;
}
