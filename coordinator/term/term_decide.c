/*
 * Placement and checkpointer, and what they tell each other: every decision of a term passes here.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/term/term_internal.h"

void kelp__term_tell(const struct kelp_term *term, struct kelp_event event)
{
    event.generation = term->placement.map.generation;
    event.serial = term->placement.map.serial;
    kelp_outside_tell(&term->outside, &event);
}

/* ---- what others are to know ---- */

struct kelp_link_view kelp__term_shard_view(const struct kelp_term *term)
{
    return (struct kelp_link_view){
        .map = &term->placement.map,
        .manifest = kelp_keeper_manifest(&term->keeper, &term->placement.map),
        .plan = term->offer.state == KELP_PLAN_WRITTEN,
        .checkpointer = &term->keeper.machine,
        .placement = &term->placement,
        .verdict = term->departure.verdict,
        .records_after = term->progress.records_after,
        .records_safe = kelp__term_safe_version(term),
        .heartbeat = term->heartbeat,
    };
}

void kelp__term_update_shards(struct kelp_term *term, bool beat)
{
    const struct kelp_link_view view = kelp__term_shard_view(term);
    kelp_shard_links_update(&term->links, &term->outside, &view, beat);
    for (const struct kelp_link *link = term->links.first; link; link = link->next) {
        if (link->leave_sent) {
            kelp_placement_let_go(&term->placement, link->shard.id, link->shard.incarnation);
        }
    }
}

void kelp__term_depart(struct kelp_term *term)
{
    if (kelp_departure_look(&term->departure, &term->placement, &term->keeper.machine)) {
        kelp_outside_log(&term->outside, KELP_LOG_INFO,
                         "all shards are told to end: a checkpoint comes first step=%" PRIu64,
                         term->progress.word.step);
        kelp__term_checkpoint(term,
                              (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_REQUEST});
        term->departure.serial = term->keeper.machine.requested;
    }
}

static struct kelp_session_view worker_view(const struct kelp_term *term)
{
    return (struct kelp_session_view){
        .map = kelp_placement_loaded_map(&term->placement),
        .membership = &term->membership,
        .targets = &term->size.now,
        .leave = term->end.ended || kelp_checkpointer_holds(&term->keeper.machine),
    };
}

void kelp__term_update_workers(struct kelp_term *term)
{
    const struct kelp_session_view view = worker_view(term);
    kelp_worker_sessions_update(&term->sessions, &term->outside, &view);
}

void kelp__term_update_worker(const struct kelp_term *term, struct kelp_session *session)
{
    const struct kelp_session_view view = worker_view(term);
    kelp_session_update(session, &term->outside, &view);
}

/* ---- the job's state ---- */

void kelp__term_try_state(struct kelp_term *term)
{
    const struct kelp_job_state *due = kelp_job_end_due(&term->end, term->now_ms);
    if (term->elected && due && term->outside.effects->write_state(due, term->outside.user)) {
        kelp_job_end_sent(&term->end);
    }
}

void kelp__term_try_scale(struct kelp_term *term)
{
    const struct kelp_targets *due = kelp_size_due(&term->size, term->now_ms);
    if (!term->elected || !due || !kelp_reading_settled(&term->reading)) {
        return;
    }
    const struct kelp_scale scale = {.targets = *due,
                                     .of_job = kelp_targets_of_job(term->options.job)};
    if (term->outside.effects->write_scale(&scale, term->outside.user)) {
        kelp_size_sent(&term->size);
    }
}

void kelp__term_report_state(struct kelp_term *term)
{
    const struct kelp_placement *placement = &term->placement;
    const char *name = kelp_placement_state_text(placement->state);
    struct kelp_job_state state = {.version = term->progress.word.version,
                                   .step = term->progress.word.step,
                                   .steps_recomputed = term->steps.recomputed};
    (void)snprintf(state.state, sizeof(state.state), "%s", name);
    (void)snprintf(state.reason, sizeof(state.reason), "%s", placement->reason);
    kelp_outside_log(&term->outside,
                     placement->state == KELP_PLACEMENT_FAILED ? KELP_LOG_ERROR : KELP_LOG_INFO,
                     "job state=%s reason=\"%s\" generation=%" PRIu64, name, state.reason,
                     placement->map.generation);
    if (strcmp(term->end.state.state, state.state) != 0) {
        kelp__term_tell(term, (struct kelp_event){.kind = KELP_EVENT_STATE,
                                                  .who = name,
                                                  .why = placement->reason,
                                                  .has_step = true,
                                                  .step = state.step});
    }
    kelp_job_end_report(&term->end, &state, kelp_placement_settled(placement));
    kelp__term_try_state(term);
}

void kelp__term_judge_end(struct kelp_term *term)
{
    struct kelp_job_state end;
    struct kelp_placement_event event = {.kind = KELP_PLACEMENT_FINISHED,
                                         .finished = term->placement.map.generation};
    switch (kelp_job_end_judge(&term->end, &term->placement, kelp__term_finished(term), &end)) {
    case KELP_VERDICT_NONE:
        return;
    case KELP_VERDICT_AGAIN:
        kelp_outside_log(&term->outside, KELP_LOG_WARN,
                         "etcd says %s, but shards that held the model are gone: computing again",
                         end.state);
        kelp__term_report_state(term);
        return;
    case KELP_VERDICT_FINAL:
        break;
    }
    if (strcmp(end.state, "failed") == 0) {
        event =
            (struct kelp_placement_event){.kind = KELP_PLACEMENT_STOPPED, .stopped = end.reason};
    } else if (strcmp(end.state, "paused") == 0) {
        event = (struct kelp_placement_event){.kind = KELP_PLACEMENT_PAUSE, .pause = end.reason};
    }
    kelp__term_place(term, event);
}

/* For the reason of a failure: how to go on. */
static const char *resume_hint(const struct kelp_term *term, char text[256])
{
    const struct kelp_committed *newest = kelp_committed_list_newest(&term->keeper.machine.list);
    char from[96] = "from the beginning, since there is no checkpoint";
    if (newest) {
        (void)snprintf(from, sizeof(from), "from its checkpoint of step %" PRIu64, newest->step);
    }
    (void)snprintf(text, 256, "kelp train --resume goes on %s", from);
    return text;
}

/* ---- what the placement wants ---- */

/* Steps that are computed a second time. */
static void count_recomputed(struct kelp_term *term, uint64_t restored)
{
    const struct kelp_outside *outside = &term->outside;
    uint64_t recorded = outside->effects->recorded_step(outside->user);
    uint64_t from = kelp_step_count_restore(&term->steps, restored, recorded);
    const char *lost = term->placement.loss;
    char why[KELP_COORDINATOR_ID_MAX + 16] = "";
    if (lost[0] != '\0') {
        (void)snprintf(why, sizeof(why), "%s was lost", lost);
    }
    kelp__term_tell(term, (struct kelp_event){.kind = KELP_EVENT_GENERATION,
                                              .why = why,
                                              .has_step = true,
                                              .step = restored,
                                              .recomputed = from > restored ? from - restored : 0});
    if (from > 0) {
        kelp_outside_log(outside, KELP_LOG_WARN,
                         "going back from_step=%" PRIu64 " to_step=%" PRIu64, from, restored);
    }
}

/* What came first counted, although another worker said something else. When the same step is
 * computed again, another one may come first. */
static bool may_differ(const struct kelp_term *term)
{
    return term->options.job->failure.on_conflict == KELP_CONFLICT_FIRST &&
           (term->conflicts > 0 || term->placement.blocks > 0);
}

/* The map is now the placement's; opened: by this leader. */
static void begin_generation(struct kelp_term *term, bool opened)
{
    const struct kelp_map *map = &term->placement.map;
    const struct kelp_committed *from =
        kelp_committed_list_find(&term->keeper.machine.list, map->restore_version);
    uint64_t restored = from ? from->step : 0;
    static const struct kelp_plan no_plan;
    const struct kelp_plan *plan = term->offer.plan ? term->offer.plan : &no_plan;
    struct kelp__keeper_visit visit;
    term->hold = (struct kelp_term_hold){.opened = opened, .forgets = opened && may_differ(term)};
    if (term->hold.forgets) {
        kelp_progress_forget(&term->progress, map->restore_version, term->records.filing);
    }
    if (from) {
        kelp_outside_log(&term->outside, KELP_LOG_INFO,
                         "restoring step=%" PRIu64 " version=%" PRIu64
                         " folder=%s generation=%" PRIu64,
                         from->step, from->version, from->folder, map->generation);
    }
    kelp__term_keeper_begin(term, &visit);
    if (opened) {
        kelp_keeper_opened(&term->keeper, &visit.call, map->restore_version);
        count_recomputed(term, restored);
    } else {
        kelp_step_count_restored(&term->steps, restored);
    }
    kelp_keeper_apply(
        &term->keeper, &visit.call,
        (struct kelp_checkpointer_event){
            .kind = KELP_CHECKPOINTER_GENERATION,
            .generation = {.map = map,
                           .opened = opened,
                           .schedule = kelp_checkpointer_schedule_of(term->options.job, plan)}});
    kelp__term_keeper_end(term, &visit);
    kelp_progress_restart(&term->progress, map->generation);
    if (opened && !term->end.ended) { /* what the job came to stays */
        kelp_progress_go_back(&term->progress);
    }
    kelp__term_update_shards(term, false);
}

static void map_to_workers(struct kelp_term *term)
{
    kelp__term_tell(term, (struct kelp_event){.kind = KELP_EVENT_LOADED,
                                              .timed = true,
                                              .took_ms = term->now_ms - term->cause_ms});
    kelp_worker_sessions_map_changed(&term->sessions);
    kelp__term_update_workers(term);
    kelp__term_checkpoint(term,
                          (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_RUNNING});
}

/* Snapshots are taken while the map is loaded everywhere; after the end the last ones are still
 * kept properly. */
static void stop_checkpoints(struct kelp_term *term, const char *lost)
{
    const struct kelp_placement *placement = &term->placement;
    char text[KELP_COORDINATOR_REASON_MAX + 32];
    (void)snprintf(text, sizeof(text), "%s%s", lost ? lost : placement->reason,
                   lost ? " was lost" : "");
    if (term->keeper.machine.running && placement->state != KELP_PLACEMENT_RUNNING &&
        placement->state != KELP_PLACEMENT_DONE) {
        kelp__term_checkpoint(term, (struct kelp_checkpointer_event){
                                        .kind = KELP_CHECKPOINTER_STOPPED, .stopped = text});
    }
}

/* The loss of a shard may be the event that sends a commit once more. Wait for its answer before
 * opening a generation, which would remove that checkpoint again. */
static void write_map(struct kelp_term *term)
{
    const struct kelp_outside *outside = &term->outside;
    struct kelp_opening opening;
    kelp_keeper_opening(&term->keeper, &term->placement.next, &opening);
    if (!kelp_reading_settled(&term->reading) || term->keeper.machine.undecided ||
        !outside->effects->write_map(&opening, outside->user)) {
        kelp__term_place(term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_WRITTEN,
                                                             .written = KELP_WRITTEN_NOT});
    }
}

static void leave_damaged(struct kelp_term *term, uint64_t version)
{
    struct kelp__keeper_visit visit;
    kelp_outside_log(&term->outside, KELP_LOG_ERROR, "%s", term->placement.reason);
    kelp__term_keeper_begin(term, &visit);
    kelp_keeper_damaged(&term->keeper, &visit.call, version);
    kelp__term_keeper_end(term, &visit);
}

static const char *why_lost(const struct kelp_term *term, const char *shard)
{
    const struct kelp_placement_shard *placed = kelp_placement_find(&term->placement, shard);
    if (!placed || !placed->registered) {
        return "its lease in etcd is gone";
    }
    return placed->broken ? "its process has ended, or another took its place" : "it is silent";
}

static void count_loss(struct kelp_term *term, const char *shard)
{
    const struct kelp_placement_shard *placed = kelp_placement_find(&term->placement, shard);
    term->shard_losses++;
    term->cause_ms = placed && placed->changed_ms > 0 ? placed->changed_ms : term->now_ms;
    kelp__term_tell(term, (struct kelp_event){.kind = KELP_EVENT_SHARD_LOST,
                                              .who = shard,
                                              .why = why_lost(term, shard)});
    kelp_outside_log(&term->outside, KELP_LOG_WARN, "shard lost shard=%s generation=%" PRIu64,
                     shard, term->placement.map.generation);
}

static void map_to_shards(struct kelp_term *term)
{
    const struct kelp_map *map = &term->placement.map;
    bool opened = term->opened;
    kelp_outside_log(&term->outside, KELP_LOG_INFO,
                     "map taken generation=%" PRIu64 " shards=%u partitions=%u", map->generation,
                     map->shard_count, map->partition_count);
    term->opened = false;
    begin_generation(term, opened);
}

void kelp__term_check_gone(struct kelp_term *term, const char *id, uint64_t incarnation)
{
    const struct kelp_placement_shard *placed = kelp_placement_find(&term->placement, id);
    bool here = placed && placed->at.incarnation == incarnation &&
                (placed->registered || placed->connected);
    if (!here) {
        kelp__term_checkpoint(
            term, (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_GONE,
                                                   .gone = {.id = id, .incarnation = incarnation}});
    }
}

/* Processes that the current order needs may have died while the map still named them. If a planned
 * move has since taken a process out of the map, its death is no loss for the placement. */
static void check_gone(struct kelp_term *term)
{
    const struct kelp_map *ordered = &term->keeper.machine.map;
    for (uint32_t i = 0; i < ordered->shard_count; i++) {
        const struct kelp_map_shard shard = ordered->shards[i]; /* the map may be replaced */
        kelp__term_check_gone(term, shard.id, shard.incarnation);
    }
}

/* Within the generation. */
static void change_to_shards(struct kelp_term *term, bool loses, bool fails_over)
{
    const struct kelp_map *map = &term->placement.map;
    kelp_outside_log(&term->outside, KELP_LOG_INFO,
                     "map changed generation=%" PRIu64 " serial=%" PRIu64
                     " shards=%u because=\"%s\"",
                     map->generation, map->serial, map->shard_count, term->placement.because);
    kelp__term_tell(term,
                    (struct kelp_event){.kind = fails_over ? KELP_EVENT_PROMOTED : KELP_EVENT_MOVED,
                                        .why = term->placement.because,
                                        .timed = fails_over,
                                        .took_ms = term->now_ms - term->cause_ms});
    kelp__term_checkpoint(term,
                          (struct kelp_checkpointer_event){
                              .kind = KELP_CHECKPOINTER_CHANGED,
                              .changed = {.map = map, .loses = loses, .fails_over = fails_over}});
    check_gone(term);
    kelp__term_update_shards(term, false);
}

static void write_change(struct kelp_term *term)
{
    const struct kelp_outside *outside = &term->outside;
    if (!kelp_reading_settled(&term->reading) ||
        !outside->effects->change_map(&term->placement.next, outside->user)) {
        kelp__term_place(term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_WRITTEN,
                                                             .written = KELP_WRITTEN_NOT});
    }
}

static void carry_out(struct kelp_term *term, const struct kelp_placement_action *action)
{
    switch (action->kind) {
    case KELP_PLACEMENT_DO_COUNT_LOSS:
        count_loss(term, action->lost);
        break;
    case KELP_PLACEMENT_DO_MAP_TO_SHARDS:
        map_to_shards(term);
        break;
    case KELP_PLACEMENT_DO_CHANGE_TO_SHARDS:
        change_to_shards(term, action->change.loses, action->change.fails_over);
        break;
    case KELP_PLACEMENT_DO_MAP_TO_WORKERS:
        map_to_workers(term);
        break;
    case KELP_PLACEMENT_DO_CHANGE_TO_WORKERS:
        kelp__term_update_workers(term);
        break;
    case KELP_PLACEMENT_DO_STATE:
        kelp__term_report_state(term);
        break;
    case KELP_PLACEMENT_DO_READ_MAP:
        kelp_reading_want_map(&term->reading, term->now_ms);
        break;
    case KELP_PLACEMENT_DO_WRITE_MAP:
        write_map(term);
        break;
    case KELP_PLACEMENT_DO_WRITE_CHANGE:
        write_change(term);
        break;
    case KELP_PLACEMENT_DO_DAMAGED:
        leave_damaged(term, action->damaged);
        break;
    case KELP_PLACEMENT_DO_RESIGN:
        term->cut_off = true; /* not in the middle of an event */
        break;
    case KELP_PLACEMENT_ACTION_COUNT:
        break;
    }
}

/* Checkpoints stop before the reason is published: between the maps and the state. */
static bool tells(const struct kelp_placement_action *action)
{
    return action->kind >= KELP_PLACEMENT_DO_STATE;
}

void kelp__term_place(struct kelp_term *term, struct kelp_placement_event event)
{
    struct kelp_error error;
    struct kelp_placement_actions actions;
    const char *lost = NULL;
    char hint[256];
    uint32_t next = 0;
    bool owes[KELP_PARTITIONS_MAX];
    event.now_ms = term->now_ms;
    event.owes = kelp_checkpointer_owes(&term->keeper.machine, owes) ? owes : NULL;
    event.still = kelp_checkpointer_pauses(&term->keeper.machine);
    if (!term->end.found && !term->end.ended) { /* else it says so */
        event.hint = resume_hint(term, hint);
    }
    kelp_status status = kelp_placement_apply(&term->placement, &event, &actions, &error);
    if (status != KELP_OK) {
        kelp_outside_log(&term->outside, KELP_LOG_ERROR, "placement refused an event error=\"%s\"",
                         error.text);
    }
    for (; next < actions.count && !tells(&actions.items[next]); next++) {
        if (actions.items[next].kind == KELP_PLACEMENT_DO_COUNT_LOSS) {
            lost = actions.items[next].lost;
        }
        carry_out(term, &actions.items[next]);
    }
    stop_checkpoints(term, lost);
    for (; next < actions.count; next++) {
        carry_out(term, &actions.items[next]);
    }
    kelp__term_judge_end(term);
}

void kelp__term_fail_job(struct kelp_term *term, const char *reason)
{
    kelp__term_place(
        term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_STOPPED, .stopped = reason});
}

/* ---- what the checkpointer wants ---- */

/* Where the next generation starts. */
static void tell_restore(struct kelp_term *term, const struct kelp_checkpointer_restore *restore)
{
    const struct kelp_placement *placement = &term->placement;
    uint64_t generation = term->keeper.last_generation;
    if (restore->version != placement->restore_version ||
        restore->undecided != placement->undecided || generation != placement->restore_generation ||
        placement->choosing || restore->final != placement->restore_final) {
        kelp__term_place(
            term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_RESTORE,
                                                .restore = {.version = restore->version,
                                                            .generation = generation,
                                                            .final = restore->final,
                                                            .undecided = restore->undecided}});
    }
}

static void tell_end(struct kelp_term *term)
{
    const struct kelp_checkpointer *checkpointer = &term->keeper.machine;
    const struct kelp_checkpointer_restore restore = kelp_checkpointer_restores(checkpointer);
    tell_restore(term, &restore); /* the newest one is of the final state */
    if (checkpointer->trouble[0] != '\0') {
        kelp_outside_log(&term->outside, KELP_LOG_ERROR,
                         "the job is done without a checkpoint of its final state reason=\"%s\"",
                         checkpointer->trouble);
    }
    kelp__term_place(term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_FINISHED,
                                                         .finished = checkpointer->map.generation});
}

static void tell_pause(struct kelp_term *term, uint64_t step)
{
    char text[128];
    (void)snprintf(text, sizeof(text),
                   "paused at step %" PRIu64 "; kelp train --resume goes on from it", step);
    kelp__term_place(term,
                     (struct kelp_placement_event){.kind = KELP_PLACEMENT_PAUSE, .pause = text});
}

static void follow(struct kelp_term *term, const struct kelp_checkpointer_action *action)
{
    switch (action->kind) {
    case KELP_CHECKPOINTER_DO_ORDER:
        kelp__term_update_shards(term, false);
        break;
    case KELP_CHECKPOINTER_DO_RESTORE: {
        const struct kelp_checkpointer_restore restore =
            kelp_checkpointer_restores(&term->keeper.machine); /* it may have changed since */
        tell_restore(term, &restore);
        break;
    }
    case KELP_CHECKPOINTER_DO_FAIL:
        kelp__term_fail_job(term, action->text);
        break;
    case KELP_CHECKPOINTER_DO_END:
        tell_end(term);
        break;
    case KELP_CHECKPOINTER_DO_PAUSE:
        tell_pause(term, action->step);
        break;
    case KELP_CHECKPOINTER_DO_SAY:
    case KELP_CHECKPOINTER_DO_DISCARD:
    case KELP_CHECKPOINTER_DO_REMOVE:
    case KELP_CHECKPOINTER_DO_COMMIT:
    case KELP_CHECKPOINTER_ACTION_COUNT:
        break; /* the keeper's */
    }
}

void kelp__term_keeper_begin(struct kelp_term *term, struct kelp__keeper_visit *visit)
{
    visit->held = kelp_checkpointer_holds(&term->keeper.machine);
    visit->requests.count = 0;
    visit->call = (struct kelp_keeper_call){.outside = &term->outside,
                                            .now_ms = term->now_ms,
                                            .election = term->election,
                                            .settled = kelp_reading_settled(&term->reading),
                                            .changes = kelp_placement_changes(&term->placement),
                                            .filed = kelp__term_filed_version(term),
                                            .requests = &visit->requests};
}

void kelp__term_keeper_end(struct kelp_term *term, const struct kelp__keeper_visit *visit)
{
    for (uint32_t i = 0; i < visit->requests.count; i++) {
        follow(term, &visit->requests.items[i]);
    }
    if (!visit->held && kelp_checkpointer_holds(&term->keeper.machine)) {
        kelp__term_update_workers(term);
    }
}

void kelp__term_checkpoint(struct kelp_term *term, struct kelp_checkpointer_event event)
{
    struct kelp__keeper_visit visit;
    kelp__term_keeper_begin(term, &visit);
    kelp_keeper_apply(&term->keeper, &visit.call, event);
    kelp__term_keeper_end(term, &visit);
}

/* ---- the size ---- */

void kelp__term_resize(struct kelp_term *term)
{
    const struct kelp_targets *now = &term->size.now;
    /* The remaining processes recompute what was lost after the end. */
    uint32_t least = term->sent_away ? 1 : kelp_targets_least_workers(now);
    kelp_outside_log(&term->outside, KELP_LOG_INFO, "size workers=%u:%u shards=%u",
                     now->workers_min, now->workers_max, now->shards);
    kelp_membership_rest_below(&term->membership, least, term->now_ms);
    kelp__term_place(term,
                     (struct kelp_placement_event){.kind = KELP_PLACEMENT_SIZE,
                                                   .size = {.workers_min = now->workers_min,
                                                            .workers_least = least,
                                                            .shards = now->shards,
                                                            .drains = now->drains,
                                                            .drain_count = now->drain_count}});
    kelp__term_update_shards(term, false);
    kelp__term_update_workers(term);
}
