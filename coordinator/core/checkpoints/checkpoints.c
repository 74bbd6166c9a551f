#include "coordinator/core/checkpoints/checkpoints_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

kelp_status kelp_checkpointer_init(struct kelp_checkpointer *checkpoints,
                                   const struct kelp_checkpointer_options *options,
                                   struct kelp_error *reterr)
{
    *checkpoints = (struct kelp_checkpointer){
        .options = *options,
        .margin = 1,
        .serial = options->first_serial,
        .requested = options->first_serial,
    };
    return kelp_committed_list_init(&checkpoints->list, &options->policy, reterr);
}

void kelp_checkpointer_fini(struct kelp_checkpointer *checkpoints)
{
    kelp_committed_list_fini(&checkpoints->list);
    kelp_map_fini(&checkpoints->map);
    kelp_map_fini(&checkpoints->newer);
    free(checkpoints->shards);
    free(checkpoints->parts);
    *checkpoints = (struct kelp_checkpointer){.state = KELP_CHECKPOINTER_IDLE};
}

bool kelp_checkpointer_holds(const struct kelp_checkpointer *checkpoints)
{
    bool for_pause = checkpoints->for_request && checkpoints->pause_serial != 0 &&
                     checkpoints->pause_serial <= checkpoints->for_serial;
    /* Partitions are never more than one step apart: when one is past the step, all have completed
     * it. */
    return checkpoints->state != KELP_CHECKPOINTER_IDLE && for_pause && checkpoints->word_known &&
           checkpoints->word.step > checkpoints->order.step;
}

bool kelp_checkpointer_owes(const struct kelp_checkpointer *checkpoints,
                            bool ret_owes[KELP_PARTITIONS_MAX])
{
    const struct kelp_map *map = &checkpoints->map;
    bool any = false;
    if (checkpoints->state != KELP_CHECKPOINTER_ORDERED) {
        return false;
    }
    for (uint32_t i = 0; i < map->partition_count; i++) {
        ret_owes[i] = !checkpoints->shards[map->partitions[i].primary].captured;
        any = any || ret_owes[i];
    }
    return any;
}

/* Whether the current order still needs something from this shard of its map. */
static bool needs(const struct kelp_checkpointer *checkpoints, uint32_t shard)
{
    return checkpoints->state == KELP_CHECKPOINTER_ORDERED &&
           kelp_map_load(&checkpoints->map, shard) > 0 && !checkpoints->shards[shard].durable;
}

bool kelp_checkpointer_needs(const struct kelp_checkpointer *checkpoints, const char *id,
                             uint64_t incarnation)
{
    const struct kelp_map *map = &checkpoints->map;
    int32_t index = kelp_map_find(map, id);
    return index >= 0 && map->shards[index].incarnation == incarnation &&
           needs(checkpoints, (uint32_t)index);
}

bool kelp_checkpointer_pauses(const struct kelp_checkpointer *checkpoints)
{
    return checkpoints->pause_serial != 0 || checkpoints->paused;
}

struct kelp_checkpointer_restore
kelp_checkpointer_restores(const struct kelp_checkpointer *checkpoints)
{
    const struct kelp_committed *newest = kelp_committed_list_newest(&checkpoints->list);
    return (struct kelp_checkpointer_restore){
        .version = newest ? newest->version : 0,
        .final = checkpoints->ended && newest && newest->version == checkpoints->word.version,
        .undecided = checkpoints->undecided,
    };
}

/* ---- ordering ---- */

static void try_order(struct kelp_checkpointer *checkpoints, uint64_t now_ms,
                      struct kelp_checkpointer_actions *actions)
{
    struct kelp__checkpointer_due due;
    const struct kelp_committed *newest = kelp_committed_list_newest(&checkpoints->list);
    /* The step too: a job with more epochs numbers its versions as one that ended before did. */
    bool here = newest && checkpoints->word_known && newest->version == checkpoints->word.version &&
                newest->step == checkpoints->word.step;
    if (!checkpoints->running || !checkpoints->listed || !checkpoints->word_known ||
        checkpoints->paused) {
        return;
    }
    if (checkpoints->finished && !checkpoints->ended && checkpoints->word.kind == KELP_STEP_DONE &&
        (here || !checkpoints->options.at_end)) {
        kelp__checkpointer_end(checkpoints, actions);
    }
    if (checkpoints->changes || checkpoints->overtaken > checkpoints->serial ||
        now_ms < checkpoints->not_before_ms ||
        !kelp__checkpointer_due_now(checkpoints, now_ms, &due)) {
        return;
    }
    if (due.for_request && here) {
        kelp__checkpointer_answer(checkpoints, checkpoints->requested, newest->step, actions);
    } else if (!here || due.step > checkpoints->word.step) {
        kelp__checkpointer_place_order(checkpoints, &due, actions);
    }
}

/* ---- other events ---- */

static kelp_status copy_map(struct kelp_checkpointer *checkpoints, const struct kelp_map *map,
                            struct kelp_error *reterr)
{
    struct kelp_map copy = {0};
    struct kelp_checkpointer_shard *shards = calloc(KELP_COORDINATOR_SHARDS_MAX, sizeof(*shards));
    struct kelp_checkpointer_pending_part *parts =
        calloc((size_t)map->partition_count + 1, sizeof(*parts));
    if (!shards || !parts || kelp_map_copy(map, &copy) != KELP_OK) {
        free(shards);
        free(parts);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a map of %u partitions",
                         map->partition_count);
    }
    kelp_map_fini(&checkpoints->map);
    kelp_map_fini(&checkpoints->newer);
    free(checkpoints->shards);
    free(checkpoints->parts);
    checkpoints->map = copy;
    checkpoints->shards = shards;
    checkpoints->parts = parts;
    return KELP_OK;
}

/* This leader opened it: the transaction removed the manifests above the restored version. */
static void drop_above(struct kelp_checkpointer *checkpoints, uint64_t version)
{
    struct kelp_committed_list *list = &checkpoints->list;
    while (list->count > 0 && list->entries[list->count - 1].version > version) {
        kelp_committed_list_remove(list, list->entries[list->count - 1].version);
    }
}

static kelp_status on_generation(struct kelp_checkpointer *checkpoints,
                                 const struct kelp_checkpointer_event *event,
                                 struct kelp_checkpointer_actions *actions,
                                 struct kelp_error *reterr)
{
    const struct kelp_map *map = event->generation.map;
    if (map->generation <= checkpoints->map.generation) {
        return KELP_OK;
    }
    if (checkpoints->state != KELP_CHECKPOINTER_IDLE) {
        kelp__checkpointer_say_trouble(checkpoints, actions,
                                       "checkpoint of step %" PRIu64
                                       " was abandoned: generation %" PRIu64 " was opened",
                                       checkpoints->order.step, map->generation);
        kelp__checkpointer_abandon(checkpoints, KELP__INTERRUPTED, event->now_ms, actions);
    }
    kelp_status status = copy_map(checkpoints, map, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (event->generation.opened) {
        drop_above(checkpoints, map->restore_version);
    }
    const struct kelp_committed *from =
        kelp_committed_list_find(&checkpoints->list, map->restore_version);
    checkpoints->restored_step = from ? from->step : 0;
    checkpoints->last_step = checkpoints->restored_step;
    checkpoints->schedule = event->generation.schedule;
    checkpoints->names_free = event->generation.opened;
    checkpoints->running = false;
    checkpoints->finished = false;
    checkpoints->paused = false; /* the cause of this generation overtook it */
    checkpoints->ended = false;
    checkpoints->end_tries = 0;
    checkpoints->word_known = false;
    checkpoints->past_step = 0;
    checkpoints->again = false;
    checkpoints->margin = 1;
    checkpoints->rate = 0;
    /* A checkpoint whose commit was pending when that was decided is gone with it. */
    kelp__checkpointer_want(actions, KELP_CHECKPOINTER_DO_RESTORE);
    return KELP_OK;
}

static const struct kelp_map *newest_map(const struct kelp_checkpointer *checkpoints)
{
    return checkpoints->newer.generation > 0 ? &checkpoints->newer : &checkpoints->map;
}

static bool has_process(const struct kelp_map *map, const char *id, uint64_t incarnation)
{
    int32_t index = kelp_map_find(map, id);
    return index >= 0 && map->shards[index].incarnation == incarnation;
}

/* What a process captured is lost with it. */
static void lose_order(struct kelp_checkpointer *checkpoints, uint64_t now_ms,
                       struct kelp_checkpointer_actions *actions)
{
    kelp__checkpointer_say_trouble(checkpoints, actions,
                                   "checkpoint of step %" PRIu64 " was abandoned: a shard was lost",
                                   checkpoints->order.step);
    kelp__checkpointer_abandon(checkpoints, KELP__INTERRUPTED, now_ms, actions);
    checkpoints->again = true;
}

/* Whether a process that the order needs is in the previous map and not in the new one. */
static bool loses_needed(const struct kelp_checkpointer *checkpoints, const struct kelp_map *after)
{
    const struct kelp_map *before = newest_map(checkpoints);
    for (uint32_t i = 0; i < checkpoints->map.shard_count; i++) {
        const struct kelp_map_shard *shard = &checkpoints->map.shards[i];
        if (needs(checkpoints, i) && has_process(before, shard->id, shard->incarnation) &&
            !has_process(after, shard->id, shard->incarnation)) {
            return true;
        }
    }
    return false;
}

/* The current order uses the map of the time when it was made, whoever has joined or moved
 * since. */
static kelp_status on_changed(struct kelp_checkpointer *checkpoints,
                              const struct kelp_checkpointer_event *event,
                              struct kelp_checkpointer_actions *actions, struct kelp_error *reterr)
{
    struct kelp_map copy;
    if (event->changed.map->generation != checkpoints->map.generation) {
        return KELP_OK;
    }
    if (kelp_map_copy(event->changed.map, &copy) != KELP_OK) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a map");
    }
    bool lost = event->changed.fails_over ||
                (event->changed.loses && loses_needed(checkpoints, event->changed.map));
    kelp_map_fini(&checkpoints->newer);
    checkpoints->newer = copy;
    if (checkpoints->state == KELP_CHECKPOINTER_ORDERED && lost) {
        lose_order(checkpoints, event->now_ms, actions);
    }
    return KELP_OK;
}

/* For a shard that is still in the map, the placement will report it. */
static void on_gone(struct kelp_checkpointer *checkpoints,
                    const struct kelp_checkpointer_event *event,
                    struct kelp_checkpointer_actions *actions)
{
    const char *id = event->gone.id;
    uint64_t incarnation = event->gone.incarnation;
    if (kelp_checkpointer_needs(checkpoints, id, incarnation) &&
        !has_process(newest_map(checkpoints), id, incarnation)) {
        lose_order(checkpoints, event->now_ms, actions);
    }
}

static void on_running(struct kelp_checkpointer *checkpoints, uint64_t now_ms)
{
    struct kelp_committed *from =
        kelp_committed_list_find(&checkpoints->list, checkpoints->map.restore_version);
    if (from) {
        from->restored = true;
    }
    checkpoints->running = true;
    checkpoints->last_ms = now_ms;
    checkpoints->step_ms = now_ms;
}

static void on_progress(struct kelp_checkpointer *checkpoints, const struct kelp_control_word *word,
                        uint64_t now_ms)
{
    if (!checkpoints->word_known) {
        checkpoints->rate_step = word->step;
        checkpoints->rate_ms = now_ms;
    }
    if (!checkpoints->word_known || word->step > checkpoints->word.step) {
        checkpoints->step_ms = now_ms;
    }
    if (now_ms >= checkpoints->rate_ms + 50 && word->step >= checkpoints->rate_step) {
        double rate =
            (double)(word->step - checkpoints->rate_step) / (double)(now_ms - checkpoints->rate_ms);
        /* Smoothed, since reports come in bursts on a busy host; the first one is taken as it is.
         * An order that is too late costs another order; a margin that is too large costs steps. */
        checkpoints->rate = checkpoints->rate == 0 ? rate : 0.7 * checkpoints->rate + 0.3 * rate;
        checkpoints->rate_step = word->step;
        checkpoints->rate_ms = now_ms;
    }
    checkpoints->word_known = true;
    checkpoints->word = *word;
}

static void on_request(struct kelp_checkpointer *checkpoints, bool pause)
{
    checkpoints->requested++;
    if (pause) {
        checkpoints->pause_serial = checkpoints->requested;
    }
    if (checkpoints->state == KELP_CHECKPOINTER_ORDERED && !checkpoints->reached) {
        checkpoints->for_request = true; /* a step that no partition has reached is new enough */
        checkpoints->for_serial = checkpoints->requested;
    }
}

static void on_sent(struct kelp_checkpointer *checkpoints,
                    struct kelp_checkpointer_actions *actions)
{
    if (checkpoints->state == KELP_CHECKPOINTER_WRITING && checkpoints->committing &&
        !checkpoints->undecided) {
        checkpoints->undecided = true;
        kelp__checkpointer_want(actions, KELP_CHECKPOINTER_DO_RESTORE);
    }
}

static void on_evaluated(struct kelp_checkpointer *checkpoints,
                         const struct kelp_checkpointer_event *event)
{
    struct kelp_checkpointer_evaluation *evaluation =
        &checkpoints->evaluations[checkpoints->evaluation_next];
    evaluation->step = event->evaluated.step;
    memcpy(evaluation->metric, event->evaluated.metric, sizeof(evaluation->metric));
    checkpoints->evaluation_next =
        (checkpoints->evaluation_next + 1) % KELP_COORDINATOR_EVALUATIONS_MAX;
    if (checkpoints->evaluation_count < KELP_COORDINATOR_EVALUATIONS_MAX) {
        checkpoints->evaluation_count++;
    }
}

static kelp_status take(struct kelp_checkpointer *checkpoints,
                        const struct kelp_checkpointer_event *event,
                        struct kelp_checkpointer_actions *actions, struct kelp_error *reterr)
{
    struct kelp_committed *damaged = NULL;
    switch (event->kind) {
    case KELP_CHECKPOINTER_LISTED:
        return kelp__checkpointer_on_list(checkpoints, event, actions, reterr);
    case KELP_CHECKPOINTER_GENERATION:
        return on_generation(checkpoints, event, actions, reterr);
    case KELP_CHECKPOINTER_CHANGED:
        return on_changed(checkpoints, event, actions, reterr);
    case KELP_CHECKPOINTER_GONE:
        on_gone(checkpoints, event, actions);
        break;
    case KELP_CHECKPOINTER_RUNNING:
        on_running(checkpoints, event->now_ms);
        break;
    case KELP_CHECKPOINTER_STOPPED:
        checkpoints->running = false;
        if (checkpoints->state == KELP_CHECKPOINTER_ORDERED) {
            kelp__checkpointer_say_trouble(checkpoints, actions,
                                           "checkpoint of step %" PRIu64 " was abandoned: %s",
                                           checkpoints->order.step, event->stopped);
            kelp__checkpointer_abandon(checkpoints, KELP__INTERRUPTED, event->now_ms, actions);
        }
        break;
    case KELP_CHECKPOINTER_PROGRESS:
        on_progress(checkpoints, event->progress, event->now_ms);
        break;
    case KELP_CHECKPOINTER_EVALUATED:
        on_evaluated(checkpoints, event);
        kelp_committed_list_evaluated(&checkpoints->list, event->evaluated.step,
                                      event->evaluated.metric);
        break;
    case KELP_CHECKPOINTER_REQUEST:
        on_request(checkpoints, event->request.pause);
        break;
    case KELP_CHECKPOINTER_REPORT:
        kelp__checkpointer_on_report(checkpoints, event->report, event->now_ms, actions);
        break;
    case KELP_CHECKPOINTER_SENT:
        on_sent(checkpoints, actions);
        break;
    case KELP_CHECKPOINTER_COMMITTED:
        return kelp__checkpointer_on_committed(checkpoints, event, actions, reterr);
    case KELP_CHECKPOINTER_REMOVED:
        kelp__checkpointer_on_removed(checkpoints, event);
        break;
    case KELP_CHECKPOINTER_DAMAGED:
        damaged = kelp_committed_list_find(&checkpoints->list, event->damaged);
        if (damaged) {
            damaged->damaged = true;
            kelp__checkpointer_want(actions, KELP_CHECKPOINTER_DO_RESTORE);
        }
        break;
    case KELP_CHECKPOINTER_FINISHED:
        checkpoints->finished = true;
        break;
    case KELP_CHECKPOINTER_TICK:
    case KELP_CHECKPOINTER_EVENT_COUNT:
        break;
    }
    return KELP_OK;
}

/* ---- time ---- */

/* The next order goes by the map as it is. */
static void take_newer_map(struct kelp_checkpointer *checkpoints)
{
    if (checkpoints->newer.generation > 0) {
        kelp_map_fini(&checkpoints->map);
        checkpoints->map = checkpoints->newer;
        checkpoints->newer = (struct kelp_map){0};
    }
}

static bool all_durable(const struct kelp_checkpointer *checkpoints)
{
    for (uint32_t i = 0; i < checkpoints->map.shard_count; i++) {
        if (needs(checkpoints, i)) {
            return false;
        }
    }
    return true;
}

/* The shard that keeps the order waiting for too long, once training has reached its step. */
static void check_waiting(struct kelp_checkpointer *checkpoints, uint64_t now_ms,
                          struct kelp_checkpointer_actions *actions)
{
    for (uint32_t i = 0; i < checkpoints->map.shard_count; i++) {
        const struct kelp_checkpointer_shard *shard = &checkpoints->shards[i];
        uint64_t limit_ms = shard->heard ? KELP_COORDINATOR_WRITE_MS : KELP_COORDINATOR_ANSWER_MS;
        if (needs(checkpoints, i) && now_ms >= checkpoints->reached_ms + limit_ms) {
            kelp__checkpointer_say_trouble(
                checkpoints, actions, "checkpoint of step %" PRIu64 ": %s %s within %" PRIu64 " s",
                checkpoints->order.step, checkpoints->map.shards[i].id,
                shard->heard ? "did not finish writing" : "did not take the order",
                limit_ms / 1000);
            kelp__checkpointer_abandon(checkpoints, KELP__FAILED, now_ms, actions);
            return;
        }
    }
}

static void wait_for_shards(struct kelp_checkpointer *checkpoints, uint64_t now_ms,
                            struct kelp_checkpointer_actions *actions)
{
    struct kelp__checkpointer_due due;
    if (checkpoints->word_known && checkpoints->word.step >= checkpoints->order.step) {
        kelp__checkpointer_reach(checkpoints, now_ms);
    }
    if (all_durable(checkpoints)) {
        kelp__checkpointer_conclude(checkpoints, now_ms, actions);
    } else if (checkpoints->reached) {
        check_waiting(checkpoints, now_ms, actions);
    } else if (checkpoints->order.step > kelp__checkpointer_last_step(checkpoints)) {
        /* Training has ended early, before it. */
        kelp__checkpointer_abandon(checkpoints, KELP__LATE, now_ms, actions);
    } else if (checkpoints->for_request && kelp__checkpointer_stands_still(checkpoints, now_ms) &&
               kelp__checkpointer_due_now(checkpoints, now_ms, &due) &&
               due.step < checkpoints->order.step) {
        /* Training stopped before the order's step: order again at the current step. */
        kelp__checkpointer_abandon(checkpoints, KELP__LATE, now_ms, actions);
    } else if (checkpoints->changes && kelp__checkpointer_stands_still(checkpoints, now_ms)) {
        /* A change of the map waits for the order, but its step does not come. */
        kelp__checkpointer_abandon(checkpoints, KELP__LATE, now_ms, actions);
        checkpoints->again = true;
    }
}

static void advance(struct kelp_checkpointer *checkpoints, uint64_t now_ms,
                    struct kelp_checkpointer_actions *actions)
{
    if (checkpoints->state == KELP_CHECKPOINTER_ORDERED) {
        wait_for_shards(checkpoints, now_ms, actions);
    }
    if (checkpoints->state == KELP_CHECKPOINTER_WRITING && !checkpoints->committing &&
        now_ms >= checkpoints->commit_ms) {
        checkpoints->committing = true;
        kelp__checkpointer_want(actions, KELP_CHECKPOINTER_DO_COMMIT);
    }
    if (checkpoints->state == KELP_CHECKPOINTER_IDLE) {
        take_newer_map(checkpoints);
        try_order(checkpoints, now_ms, actions);
    }
    kelp__checkpointer_try_remove(checkpoints, now_ms, actions);
}

/* Of several ends the first one counts. */
static void keep_one_end(struct kelp_checkpointer_actions *actions)
{
    uint32_t kept = 0;
    bool ends = false;
    for (uint32_t i = 0; i < actions->count; i++) {
        enum kelp_checkpointer_action_kind kind = actions->items[i].kind;
        bool end = kind == KELP_CHECKPOINTER_DO_FAIL || kind == KELP_CHECKPOINTER_DO_END ||
                   kind == KELP_CHECKPOINTER_DO_PAUSE;
        if (!end || !ends) {
            actions->items[kept++] = actions->items[i];
        }
        ends = ends || end;
    }
    actions->count = kept;
}

kelp_status kelp_checkpointer_apply(struct kelp_checkpointer *checkpoints,
                                    const struct kelp_checkpointer_event *event,
                                    struct kelp_checkpointer_actions *ret_actions,
                                    struct kelp_error *reterr)
{
    struct kelp_checkpointer_actions actions = {.count = 0};
    checkpoints->changes = event->changes;
    kelp_status status = take(checkpoints, event, &actions, reterr);
    if (status == KELP_OK) {
        advance(checkpoints, event->now_ms, &actions);
    }
    keep_one_end(&actions);
    *ret_actions = actions;
    return status;
}
