#include "tests/sim/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/supervisor.h"

struct sim_coordinator *sim_coordinator_of(const struct sim_process *process)
{
    return process->state;
}

const char *sim_coordinator_reason(const struct sim_process *process)
{
    const struct sim_coordinator *coordinator = sim_coordinator_of(process);
    return coordinator->leading ? coordinator->placement.reason : "stands by";
}

void sim_coordinator_request(const struct sim_process *process, bool pause)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    if (!coordinator->leading || !coordinator->read ||
        coordinator->placement.state == KELP_PLACEMENT_PAUSED) {
        return;
    }
    sim_coordinator_touch(coordinator);
    coordinator->sim->counts[SIM_COUNT_PAUSED] += pause ? 1 : 0;
    sim_say(coordinator->sim, process, "is asked for a checkpoint%s",
            pause ? " and to let the job rest then" : "");
    sim_checkpoints_apply(coordinator, (struct kelp_checkpointer_event){
                                           .kind = KELP_CHECKPOINTER_REQUEST, .pause = pause});
}

void sim_coordinator_touch(struct sim_coordinator *coordinator)
{
    coordinator->now_ms = sim_ms(coordinator->sim);
}

/* ---- placement ---------------------------------------------------------------------------------
 */

void sim_coordinator_report_state(struct sim_coordinator *coordinator)
{
    const struct kelp_placement *placement = &coordinator->placement;
    const char *name = kelp_placement_state_text(placement->state);
    sim_say(coordinator->sim, coordinator->process, "job is %s: %s", name, placement->reason);
    if (coordinator->found_end[0] == '\0' || kelp_placement_settled(placement)) {
        sim_leader_write_state(coordinator, name);
    }
}

/* Snapshots are taken while the map is loaded everywhere; the last ones are kept in order after the
 * end too. */
static void stop_checkpoints(struct sim_coordinator *coordinator)
{
    const struct kelp_placement *placement = &coordinator->placement;
    if (coordinator->checkpointer.running && placement->state != KELP_PLACEMENT_RUNNING &&
        placement->state != KELP_PLACEMENT_DONE) {
        sim_checkpoints_apply(coordinator,
                              (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_STOPPED,
                                                               .text = placement->reason});
    }
}

static void carry_out(struct sim_coordinator *coordinator, uint32_t actions)
{
    const struct kelp_map *map = &coordinator->placement.map;
    if ((actions & KELP_DO_MAP_TO_SHARDS) != 0) {
        kelp_progress_restart(&coordinator->progress, map->generation);
        sim_checkpoints_generation(coordinator, coordinator->opened);
        coordinator->opened = false;
        sim_links_update(coordinator);
    }
    if ((actions & KELP_DO_MAP_TO_WORKERS) != 0) {
        sim_sessions_map_changed(coordinator);
        sim_sessions_update(coordinator, false);
        sim_checkpoints_apply(coordinator,
                              (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_RUNNING});
    }
    stop_checkpoints(coordinator);
    if ((actions & KELP_DO_DAMAGED) != 0) {
        coordinator->sim->counts[SIM_COUNT_CHECKPOINT_DAMAGED]++;
        sim_checkpoints_apply(coordinator,
                              (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_DAMAGED,
                                                               .version = map->restore_version});
    }
    if ((actions & KELP_DO_RESIGN) != 0) {
        coordinator->resigning = true; /* not in the middle of an event */
    }
    if ((actions & KELP_DO_STATE) != 0) {
        sim_coordinator_report_state(coordinator);
    }
    if ((actions & KELP_DO_READ_MAP) != 0) {
        coordinator->map_wanted = true;
        coordinator->map_at_ms = coordinator->now_ms;
    }
    if ((actions & KELP_DO_WRITE_MAP) != 0) {
        sim_checkpoints_open(coordinator);
    }
}

static void judge_found_end(struct sim_coordinator *coordinator)
{
    const struct kelp_placement *placement = &coordinator->placement;
    bool failed = strcmp(coordinator->found_end, "failed") == 0;
    bool paused = strcmp(coordinator->found_end, "paused") == 0;
    if (placement->map.generation > coordinator->found_generation) {
        coordinator->found_end[0] = '\0';
        sim_coordinator_report_state(coordinator);
    } else if (placement->state == KELP_PLACEMENT_RUNNING) {
        coordinator->found_end[0] = '\0';
        coordinator->ended = true;
        if (failed) {
            sim_coordinator_fail_job(coordinator, "as etcd says");
            return;
        }
        if (paused) {
            sim_coordinator_place(coordinator,
                                  (struct kelp_placement_event){.kind = KELP_PLACEMENT_PAUSE,
                                                                .text = "as etcd says"});
            return;
        }
        sim_coordinator_place(
            coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_FINISHED,
                                                       .generation = placement->map.generation});
    }
}

void sim_coordinator_place(struct sim_coordinator *coordinator, struct kelp_placement_event event)
{
    struct kelp_error error;
    uint32_t actions = 0;
    event.now_ms = coordinator->now_ms;
    if (kelp_placement_apply(&coordinator->placement, &event, &actions, &error) != KELP_OK) {
        sim_fail(coordinator->sim, "placement takes every event", "%s", error.text);
    }
    carry_out(coordinator, actions);
    if (coordinator->found_end[0] != '\0') {
        judge_found_end(coordinator);
    }
}

void sim_coordinator_count_workers(struct sim_coordinator *coordinator)
{
    sim_coordinator_place(coordinator,
                          (struct kelp_placement_event){
                              .kind = KELP_PLACEMENT_WORKERS,
                              .worker_count = coordinator->membership.counts[KELP_MEMBER_WORKER]});
}

void sim_coordinator_fail_job(struct sim_coordinator *coordinator, const char *reason)
{
    sim_coordinator_place(
        coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_STOPPED, .text = reason});
}

/* ---- leading -----------------------------------------------------------------------------------
 */

static void try_read(struct sim_coordinator *coordinator)
{
    if (!coordinator->reading && coordinator->now_ms >= coordinator->read_at_ms) {
        coordinator->reading = true;
        coordinator->read_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
        sim_leader_submit(coordinator, SIM_TASK_READ);
    }
}

static void lead(struct sim_coordinator *coordinator)
{
    const struct kelp_job *job = &coordinator->sim->job;
    struct kelp_placement_options options = {.shards = job->cluster.shards,
                                             .workers_min = job->cluster.workers.min,
                                             .shard_wait_ms = job->failure.shard_wait_ms,
                                             .writer = coordinator->process->incarnation * 1000 +
                                                       ++coordinator->terms};
    if (kelp_membership_init(&coordinator->membership, job->cluster.lanes, job->failure.detect_ms,
                             NULL) != KELP_OK ||
        kelp_placement_init(&coordinator->placement, &options, NULL) != KELP_OK) {
        abort();
    }
    sim_checkpoints_init(coordinator);
    coordinator->opened = false;
    coordinator->resigning = false;
    coordinator->last_generation = 0;
    sim_say(coordinator->sim, coordinator->process, "leads");
    coordinator->sim->counts[SIM_COUNT_LEADER]++;
    coordinator->leading = true;
    coordinator->read = false;
    coordinator->reread = false;
    coordinator->reading = false;
    coordinator->ended = false;
    coordinator->found_end[0] = '\0';
    coordinator->map_wanted = false;
    coordinator->plan = SIM_PLAN_NONE;
    coordinator->plan_in_flight = false;
    coordinator->finish_generation = 0;
    coordinator->finish_on_file = false;
    coordinator->read_at_ms = 0;
    sim_leader_watch_shards(coordinator);
    try_read(coordinator);
}

void sim_leading_end(struct sim_coordinator *coordinator, const char *why)
{
    if (!coordinator->leading) {
        return;
    }
    sim_say(coordinator->sim, coordinator->process, "leads no more: %s", why);
    coordinator->leading = false;
    sim_leader_step_down(coordinator);
    sim_sessions_close_all(coordinator);
    sim_links_close_all(coordinator);
    sim_checkpoints_fini(coordinator);
    kelp_progress_fini(&coordinator->progress);
    kelp_placement_fini(&coordinator->placement);
    kelp_membership_fini(&coordinator->membership);
}

void sim_leading_resign(struct sim_coordinator *coordinator)
{
    sim_leading_end(coordinator, "cut off from all shards");
    sim_leader_resign(coordinator);
    coordinator->stand_at_ms = coordinator->now_ms + KELP_COORDINATOR_CUT_OFF_MS;
}

void sim_leading_elected(struct sim_coordinator *coordinator)
{
    if (!coordinator->leading) {
        lead(coordinator);
        return;
    }
    sim_say(coordinator->sim, coordinator->process, "is elected again");
    coordinator->read_at_ms = 0;
    coordinator->reread = coordinator->read;
    try_read(coordinator);
}

void sim_leading_superseded(struct sim_coordinator *coordinator, const char *by)
{
    if (coordinator->leading) {
        sim_say(coordinator->sim, coordinator->process, "hears that %s leads", by);
        sim_leading_end(coordinator, "another coordinator leads");
    }
}

static void start_over(struct sim_coordinator *coordinator, const char *why)
{
    sim_leading_end(coordinator, why);
    lead(coordinator);
}

static void plan_settled(struct sim_coordinator *coordinator)
{
    coordinator->plan = SIM_PLAN_WRITTEN;
    sim_coordinator_place(
        coordinator,
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_PLAN,
                                      .partition_count = coordinator->sim->plan.partition_count});
    sim_links_update(coordinator);
}

static bool is_end(const char *state)
{
    return strcmp(state, "done") == 0 || strcmp(state, "failed") == 0 ||
           strcmp(state, "paused") == 0;
}

static void take_over(struct sim_coordinator *coordinator, struct sim_found *found)
{
    coordinator->read = true;
    sim_say(coordinator->sim, coordinator->process, "has read etcd: generation %llu, state %s",
            (unsigned long long)found->map.generation, found->state);
    if (found->map.generation > 0 && is_end(found->state)) {
        memcpy(coordinator->found_end, found->state, sizeof(coordinator->found_end));
        coordinator->found_generation = found->map.generation;
    }
    sim_checkpoints_found(coordinator, found, true);
    if (found->plan) {
        plan_settled(coordinator);
    }
    sim_coordinator_place(coordinator, (struct kelp_placement_event){
                                           .kind = KELP_PLACEMENT_MAP_READ, .map = &found->map});
    sim_sessions_review(coordinator);
}

static void compare_found(struct sim_coordinator *coordinator, const struct sim_found *found)
{
    const struct kelp_placement *placement = &coordinator->placement;
    bool same = found->map.generation == placement->map.generation &&
                strcmp(found->map.nonce, placement->map.nonce) == 0;
    bool opening = placement->state == KELP_PLACEMENT_OPENING &&
                   found->map.generation == placement->next.generation &&
                   strcmp(found->map.nonce, placement->next.nonce) == 0;
    if (!same && !opening) {
        start_over(coordinator, "the map in etcd is not ours");
        return;
    }
    sim_checkpoints_found(coordinator, found, false);
    sim_coordinator_report_state(coordinator);
}

static void on_read(struct sim_coordinator *coordinator, struct sim_task *task)
{
    coordinator->reading = false;
    if (task->status != KELP_OK) {
        coordinator->read_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
        return;
    }
    if (coordinator->read) {
        coordinator->reread = false;
        compare_found(coordinator, &task->found);
    } else {
        take_over(coordinator, &task->found);
    }
}

static void on_map_written(struct sim_coordinator *coordinator, const struct sim_task *task)
{
    enum kelp_placement_written result = KELP_WRITTEN_UNKNOWN;
    if (task->status == KELP_OK && task->succeeded) {
        result = KELP_WRITTEN_OK;
        coordinator->sim->counts[SIM_COUNT_GENERATION]++;
    } else if (task->status == KELP_ERR_UNREACHABLE || task->status == KELP_ERR_NOT_LEADER) {
        result = KELP_WRITTEN_NOT;
    }
    sim_say(coordinator->sim, coordinator->process, "map of generation %llu: %s",
            (unsigned long long)task->map.generation,
            result == KELP_WRITTEN_OK    ? "written"
            : result == KELP_WRITTEN_NOT ? "not written"
                                         : "perhaps written");
    coordinator->opened = result == KELP_WRITTEN_OK;
    sim_coordinator_place(coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_WRITTEN,
                                                                     .result = result});
}

static void on_map_read(struct sim_coordinator *coordinator, struct sim_task *task)
{
    if (task->status != KELP_OK) {
        coordinator->map_wanted = true;
        coordinator->map_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
        return;
    }
    sim_checkpoints_found(coordinator, &task->found, false);
    sim_coordinator_place(
        coordinator,
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_MAP_READ, .map = &task->found.map});
}

static void on_plan_written(struct sim_coordinator *coordinator, const struct sim_task *task)
{
    coordinator->plan_in_flight = false;
    if (task->status != KELP_OK || !task->found.plan) {
        coordinator->plan_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
        return;
    }
    plan_settled(coordinator);
    sim_sessions_review(coordinator);
}

/* Of this term alone. */
void sim_leading_task_done(struct sim_coordinator *coordinator, struct sim_task *task)
{
    sim_coordinator_touch(coordinator);
    switch (task->kind) {
    case SIM_TASK_READ:
        on_read(coordinator, task);
        break;
    case SIM_TASK_READ_MAP:
        on_map_read(coordinator, task);
        break;
    case SIM_TASK_PLAN:
        on_plan_written(coordinator, task);
        break;
    case SIM_TASK_MAP:
        on_map_written(coordinator, task);
        break;
    case SIM_TASK_COMMIT:
        sim_checkpoints_committed(coordinator, task);
        break;
    case SIM_TASK_REMOVE:
        sim_checkpoints_removed(coordinator, task);
        break;
    case SIM_TASK_DESCRIBE:
        sim_checkpoints_described(coordinator, task->serial);
        break;
    case SIM_TASK_REMOVE_FOLDER:
        break;
    case SIM_TASK_SYNC:
        coordinator->finish_on_file = coordinator->finish_on_file || task->finish;
        sim_records_tell_finish(coordinator);
        break;
    case SIM_TASK_STATE: /* coordinator_etcd.c */
        break;
    }
}

void sim_leading_state_written(struct sim_coordinator *coordinator, const char *state)
{
    sim_coordinator_touch(coordinator);
    if (!coordinator->ended && is_end(state)) {
        coordinator->ended = true;
        sim_sessions_update(coordinator, false);
    }
}

/* ---- time --------------------------------------------------------------------------------------
 */

static void lose_silent(struct sim_coordinator *coordinator)
{
    uint64_t lost[64];
    uint32_t count = kelp_membership_tick(&coordinator->membership, coordinator->now_ms, lost,
                                          KELP_ARRAY_COUNT(lost));
    for (uint32_t i = 0; i < count; i++) {
        const struct kelp_member *member = kelp_membership_find(&coordinator->membership, lost[i]);
        if (member && member->kind == KELP_MEMBER_WORKER) {
            sim_sessions_lose(coordinator, lost[i]);
        } else if (member) {
            sim_links_lose(coordinator, lost[i]);
        }
    }
}

static void offer_plan(struct sim_coordinator *coordinator)
{
    if (coordinator->plan == SIM_PLAN_OFFERED && !coordinator->plan_in_flight &&
        coordinator->placement.state != KELP_PLACEMENT_FAILED &&
        coordinator->now_ms >= coordinator->plan_at_ms) {
        coordinator->plan_in_flight = true;
        coordinator->plan_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
        sim_leader_submit(coordinator, SIM_TASK_PLAN);
    }
}

static void on_tick(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)data;
    (void)number;
    sim_after(sim, KELP_COORDINATOR_TICK_MS * SIM_MS,
              &(struct sim_call){.process = process, .run = on_tick});
    sim_coordinator_touch(coordinator);
    sim_leader_tick(coordinator);
    if (!coordinator->leading) {
        return;
    }
    if (coordinator->resigning) {
        coordinator->resigning = false;
        sim_leading_resign(coordinator);
        return;
    }
    sim_links_tick(coordinator);
    if (!coordinator->read || coordinator->reread) {
        try_read(coordinator);
    }
    if (coordinator->map_wanted && coordinator->now_ms >= coordinator->map_at_ms) {
        coordinator->map_wanted = false;
        sim_leader_submit(coordinator, SIM_TASK_READ_MAP);
    }
    offer_plan(coordinator);
    lose_silent(coordinator);
    sim_records_tick(coordinator);
    sim_coordinator_place(coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_TICK});
    sim_checkpoints_apply(coordinator,
                          (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_TICK});
    coordinator->heartbeat++;
    sim_sessions_update(coordinator, true);
}

/* ---- life --------------------------------------------------------------------------------------
 */

void sim_coordinator_start(struct sim *sim, struct sim_process *process)
{
    struct sim_coordinator *coordinator = sim_alloc(sizeof(*coordinator));
    coordinator->sim = sim;
    coordinator->process = process;
    coordinator->term = 1;
    process->state = coordinator;
    sim_coordinator_touch(coordinator);
    sim_leader_open(coordinator);
    sim_after(sim, sim_draw(sim, KELP_COORDINATOR_TICK_MS * SIM_MS),
              &(struct sim_call){.process = process, .run = on_tick});
}

void sim_coordinator_forget(struct sim_process *process)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    if (coordinator->leading) {
        sim_checkpoints_fini(coordinator);
        kelp_progress_fini(&coordinator->progress);
        kelp_placement_fini(&coordinator->placement);
        kelp_membership_fini(&coordinator->membership);
    }
    sim_leader_forget_tasks(coordinator);
    free(coordinator);
    process->state = NULL;
}
