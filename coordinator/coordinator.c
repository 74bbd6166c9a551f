/*
 * The process as a whole. The server is bound first, so that a port in use is reported at once;
 * then leading.c waits for the spec and stands for election. Workers join (service.c), the first
 * one's plan goes to etcd (plan_offer.c), shards register (leader.c) and are connected to
 * (shard_link.c). Whatever happens is an event for the placement machine, whose actions are carried
 * out in kelp_coordinator_place(). One timer drives heartbeats, silence and retries.
 */
#include "coordinator/coordinator.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"
#include "coordinator/checkpointing.h"
#include "coordinator/leading.h"
#include "coordinator/plan_offer.h"
#include "coordinator/records.h"
#include "coordinator/shard_link.h"
#include "coordinator/worker_sessions.h"

#define PROTOCOL 1

void kelp_coordinator_touch(struct kelp_coordinator *coordinator)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail with this clock */
    coordinator->now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Something is wrong that neither waiting nor another process can mend. */
void kelp_coordinator_give_up(struct kelp_coordinator *coordinator, const char *text)
{
    kelp_log_error("%s", text);
    coordinator->exit_code = 2;
    coordinator->stopping = true;
}

/* ---- small services for the shell's files -----------------------------------------------------
 */

void kelp_coordinator_hello(struct kelp_coordinator *coordinator, Kelp__V1__Hello *ret_hello)
{
    kelp__v1__hello__init(ret_hello);
    ret_hello->job = (char *)coordinator->options.job; /* only read by the encoder */
    ret_hello->spec_digest = coordinator->spec_digest;
    ret_hello->id = (char *)coordinator->options.id; /* only read by the encoder */
    ret_hello->incarnation = coordinator->options.incarnation;
    ret_hello->protocol = PROTOCOL;
}

kelp_status kelp_coordinator_check_hello(const struct kelp_coordinator *coordinator,
                                         const Kelp__V1__Hello *hello, struct kelp_error *reterr)
{
    if (hello == NULL) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "the first message carries no hello");
    }
    if (hello->protocol != PROTOCOL) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "speaks protocol %u; this is %d",
                         hello->protocol, PROTOCOL);
    }
    if (!kelp_member_id_valid(hello->id)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "id is not 1 to %d letters, digits, '-', '_' or '.'",
                         KELP_COORDINATOR_ID_MAX);
    }
    if (strcmp(hello->job, coordinator->options.job) != 0) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH, "%s belongs to job %.63s, this is job %s",
                         hello->id, hello->job, coordinator->options.job);
    }
    if (hello->spec_digest != coordinator->spec_digest) {
        return kelp_fail(
            reterr, KELP_ERR_MISMATCH,
            "%s has another specification of job %s: digest %016" PRIx64 ", here %016" PRIx64,
            hello->id, coordinator->options.job, hello->spec_digest, coordinator->spec_digest);
    }
    return KELP_OK;
}

/* ---- placement --------------------------------------------------------------------------------
 */

void kelp_coordinator_report_state(struct kelp_coordinator *coordinator)
{
    const struct kelp_placement *placement = &coordinator->placement;
    struct kelp_job_state state = {.version = coordinator->progress.word.version,
                                   .step = coordinator->progress.word.step,
                                   .steps_recomputed = coordinator->steps_recomputed};
    const char *name = kelp_placement_state_text(placement->state);
    (void)snprintf(state.state, sizeof(state.state), "%s", name);
    (void)snprintf(state.reason, sizeof(state.reason), "%s", placement->reason);
    kelp_log(placement->state == KELP_PLACEMENT_FAILED ? KELP_LOG_ERROR : KELP_LOG_INFO,
             "job state=%s reason=\"%s\" generation=%" PRIu64, name, state.reason,
             placement->map.generation);
    if (coordinator->ended) {
        return; /* that is on record, and stays */
    }
    if (coordinator->found_end.state[0] == '\0' || kelp_placement_settled(placement)) {
        kelp_leader_write_state(coordinator->leader, &state);
    }
}

static void write_map(struct kelp_coordinator *coordinator)
{
    if (kelp_checkpointing_open(coordinator) != KELP_OK) {
        kelp_coordinator_place(coordinator,
                               (struct kelp_placement_event){.kind = KELP_PLACEMENT_WRITTEN,
                                                             .result = KELP_WRITTEN_NOT});
    }
}

/* Snapshots are taken while the map is loaded everywhere; the last ones are kept in order after the
 * end too. */
static void stop_checkpoints(struct kelp_coordinator *coordinator, bool lost)
{
    const struct kelp_placement *placement = &coordinator->placement;
    char text[KELP_COORDINATOR_REASON_MAX + 32];
    (void)snprintf(text, sizeof(text), "%s%s", lost ? placement->loss : placement->reason,
                   lost ? " was lost" : "");
    if (coordinator->checkpointer.running && placement->state != KELP_PLACEMENT_RUNNING &&
        placement->state != KELP_PLACEMENT_DONE) {
        kelp_checkpointing_apply(coordinator, (struct kelp_checkpointer_event){
                                                  .kind = KELP_CHECKPOINTER_STOPPED, .text = text});
    }
}

static void leave_damaged(struct kelp_coordinator *coordinator)
{
    const struct kelp_placement *placement = &coordinator->placement;
    uint64_t version = placement->map.restore_version;
    kelp_log_error("%s", placement->reason);
    kelp_checkpointing_apply(
        coordinator,
        (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_DAMAGED, .version = version});
    if (kelp_committed_list_newest(&coordinator->checkpointer.list) == NULL) {
        kelp_log_error("no checkpoint can be restored: starting again from version 0");
    }
}

static void carry_out(struct kelp_coordinator *coordinator, uint32_t actions)
{
    const struct kelp_map *map = &coordinator->placement.map;
    if ((actions & KELP_DO_COUNT_LOSS) != 0) {
        coordinator->shard_losses++;
        kelp_log_warn("shard lost shard=%s generation=%" PRIu64, coordinator->placement.loss,
                      map->generation);
    }
    if ((actions & KELP_DO_MAP_TO_SHARDS) != 0) {
        kelp_log_info("map taken generation=%" PRIu64 " shards=%u partitions=%u", map->generation,
                      map->shard_count, map->partition_count);
        kelp_checkpointing_generation(coordinator, coordinator->opened);
        coordinator->opened = false;
        kelp_progress_restart(&coordinator->progress, map->generation);
        kelp_link_update(coordinator);
    }
    if ((actions & KELP_DO_MAP_TO_WORKERS) != 0) {
        kelp_service_map_changed(coordinator);
        kelp_service_update(coordinator, false);
        kelp_checkpointing_apply(
            coordinator, (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_RUNNING});
    }
    stop_checkpoints(coordinator, (actions & KELP_DO_COUNT_LOSS) != 0);
    if ((actions & KELP_DO_STATE) != 0) {
        kelp_coordinator_report_state(coordinator);
    }
    if ((actions & KELP_DO_READ_MAP) != 0) {
        coordinator->map_wanted = true;
        coordinator->map_at_ms = coordinator->now_ms;
    }
    if ((actions & KELP_DO_WRITE_MAP) != 0) {
        write_map(coordinator);
    }
    if ((actions & KELP_DO_DAMAGED) != 0) {
        leave_damaged(coordinator);
    }
    if ((actions & KELP_DO_RESIGN) != 0) {
        coordinator->resigning = true; /* not in the middle of an event */
    }
}

/* Is the end that we found in etcd final? */
static void judge_found_end(struct kelp_coordinator *coordinator)
{
    const struct kelp_placement *placement = &coordinator->placement;
    struct kelp_job_state end = coordinator->found_end;
    if (placement->map.generation > coordinator->found_generation) {
        kelp_log_warn("etcd says %s, but the shards of then are gone: computing again", end.state);
        coordinator->found_end.state[0] = '\0';
        kelp_coordinator_report_state(coordinator);
    } else if (placement->state == KELP_PLACEMENT_RUNNING) {
        coordinator->found_end.state[0] = '\0';
        coordinator->ended = true;
        if (strcmp(end.state, "failed") == 0) {
            kelp_coordinator_place(
                coordinator,
                (struct kelp_placement_event){.kind = KELP_PLACEMENT_STOPPED, .text = end.reason});
        } else if (strcmp(end.state, "paused") == 0) {
            kelp_coordinator_place(
                coordinator,
                (struct kelp_placement_event){.kind = KELP_PLACEMENT_PAUSE, .text = end.reason});
        } else {
            kelp_coordinator_place(coordinator, (struct kelp_placement_event){
                                                    .kind = KELP_PLACEMENT_FINISHED,
                                                    .generation = placement->map.generation,
                                                });
        }
    }
}

/* For the reason of a failure: where the job stood, and how to go on. */
static const char *resume_hint(struct kelp_coordinator *coordinator, char text[256])
{
    const struct kelp_progress *progress = &coordinator->progress;
    const struct kelp_committed *newest =
        kelp_committed_list_newest(&coordinator->checkpointer.list);
    char from[96] = "from the beginning, since there is no checkpoint";
    if (newest != NULL) {
        (void)snprintf(from, sizeof(from), "from its checkpoint of step %" PRIu64, newest->step);
    }
    (void)snprintf(text, 256,
                   "it was at step %" PRIu64 " (version %" PRIu64
                   "); kelp train --resume goes on %s",
                   progress->word.step, progress->word.version, from);
    return text;
}

void kelp_coordinator_place(struct kelp_coordinator *coordinator, struct kelp_placement_event event)
{
    struct kelp_error error;
    char hint[256];
    uint32_t actions = 0;
    event.now_ms = coordinator->now_ms;
    if (coordinator->found_end.state[0] == '\0' && !coordinator->ended) { /* else it says so */
        event.hint = resume_hint(coordinator, hint);
    }
    kelp_status status = kelp_placement_apply(&coordinator->placement, &event, &actions, &error);
    if (status != KELP_OK) {
        kelp_log_error("placement refused an event error=\"%s\"", error.text);
    }
    carry_out(coordinator, actions);
    if (coordinator->found_end.state[0] != '\0') {
        judge_found_end(coordinator);
    }
}

void kelp_coordinator_count_workers(struct kelp_coordinator *coordinator)
{
    kelp_coordinator_place(coordinator,
                           (struct kelp_placement_event){
                               .kind = KELP_PLACEMENT_WORKERS,
                               .worker_count = coordinator->membership.counts[KELP_MEMBER_WORKER]});
}

void kelp_coordinator_fail_job(struct kelp_coordinator *coordinator, const char *reason)
{
    kelp_coordinator_place(
        coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_STOPPED, .text = reason});
}

/* ---- time -------------------------------------------------------------------------------------
 */

static void lose_silent(struct kelp_coordinator *coordinator)
{
    uint64_t lost[64];
    uint32_t count = kelp_membership_tick(&coordinator->membership, coordinator->now_ms, lost,
                                          KELP_ARRAY_COUNT(lost));
    for (uint32_t i = 0; i < count; i++) {
        const struct kelp_member *member = kelp_membership_find(&coordinator->membership, lost[i]);
        if (member == NULL) {
            continue;
        }
        if (member->kind == KELP_MEMBER_WORKER) {
            kelp_service_lose(coordinator, lost[i]);
        } else {
            kelp_link_lose(coordinator, lost[i]);
        }
    }
}

static void on_tick(void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    kelp_leader_tick(coordinator->leader, coordinator->now_ms);
    kelp_service_tick(coordinator);
    kelp_link_tick(coordinator);
    kelp_leading_stand(coordinator);
    if (!coordinator->leading) {
        return;
    }
    if (coordinator->resigning) {
        coordinator->resigning = false;
        kelp_leading_resign(coordinator);
        return;
    }
    kelp_leading_tick(coordinator);
    kelp_offer_tick(coordinator);
    lose_silent(coordinator);
    kelp_records_tick(coordinator);
    kelp_coordinator_place(coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_TICK});
    kelp_checkpointing_apply(coordinator,
                             (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_TICK});
    coordinator->heartbeat++;
    kelp_service_update(coordinator, true);
}

/* ---- life -------------------------------------------------------------------------------------
 */

/* host:port as others reach it: the host that we were told, with the port that was bound. */
static kelp_status set_address(struct kelp_coordinator *coordinator, struct kelp_error *reterr)
{
    const char *listen = coordinator->options.listen;
    const char *colon = strrchr(listen, ':');
    char host[KELP_COORDINATOR_ADDRESS_MAX + 1];
    assert(colon != NULL); /* it was bound */
    size_t length = (size_t)(colon - listen);
    if (length >= sizeof(host) - 8) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--listen: the host's name is too long");
    }
    memcpy(host, listen, length);
    host[length] = '\0';
    if ((strcmp(host, "0.0.0.0") == 0 || strcmp(host, "[::]") == 0) &&
        gethostname(host, sizeof(host) - 8) != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--listen: this host has no name");
    }
    int wrote = snprintf(coordinator->address, sizeof(coordinator->address), "%s:%u", host,
                         kelp_rpc_server_port(coordinator->server));
    assert(wrote > 0 && (size_t)wrote < sizeof(coordinator->address));
    return KELP_OK;
}

kelp_status kelp_coordinator_open(struct kelp_coordinator *coordinator, struct kelp_error *reterr)
{
    struct kelp_rpc_server_options server = {
        .address = coordinator->options.listen,
        .message_bytes_max = KELP_COORDINATOR_MESSAGE_BYTES,
        .user = coordinator,
    };
    server.methods = kelp_service_methods(&server.method_count);
    kelp_status status =
        kelp_rpc_server_open(coordinator->loop, &server, &coordinator->server, reterr);
    if (status == KELP_OK) {
        status = set_address(coordinator, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_task_thread_start(coordinator->loop, &coordinator->tasks, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_task_thread_start(coordinator->loop, &coordinator->disk, reterr);
    }
    if (status == KELP_OK) {
        struct kelp_leader_options leader = {
            .loop = coordinator->loop,
            .tasks = coordinator->tasks,
            .endpoints = coordinator->options.etcd,
            .job = coordinator->options.job,
            .id = coordinator->options.id,
            .run_folder = coordinator->options.run_folder,
            .force = coordinator->options.force,
            .incarnation = coordinator->options.incarnation,
        };
        status = kelp_leader_open(&leader, &kelp_leading_events, coordinator, &coordinator->leader,
                                  reterr);
    }
    if (status == KELP_OK) {
        status = kelp_rpc_timer_start(coordinator->loop, KELP_COORDINATOR_TICK_MS, on_tick,
                                      coordinator, &coordinator->timer);
    }
    if (status == KELP_OK) {
        kelp_log_info("listening, waiting for the job's specification address=%s etcd=%s",
                      coordinator->address, coordinator->options.etcd);
    }
    return status;
}

kelp_status kelp_coordinator_create(const struct kelp_coordinator_options *options,
                                    struct kelp_coordinator **ret_coordinator,
                                    struct kelp_error *reterr)
{
    struct kelp_coordinator *coordinator = calloc(1, sizeof(*coordinator));
    if (coordinator == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the coordinator");
    }
    coordinator->options = *options;
    kelp_coordinator_touch(coordinator);
    kelp_status status = kelp_rpc_loop_create(&coordinator->loop, reterr);
    if (status != KELP_OK) {
        free(coordinator);
        return status;
    }
    *ret_coordinator = coordinator;
    return KELP_OK;
}

int kelp_coordinator_run(struct kelp_coordinator *coordinator)
{
    while (!coordinator->stopping) {
        (void)kelp_rpc_loop_run(coordinator->loop, -1);
    }
    return coordinator->exit_code;
}

static void stop(void *user)
{
    struct kelp_coordinator *coordinator = user;
    coordinator->stopping = true;
}

void kelp_coordinator_stop(struct kelp_coordinator *coordinator)
{
    kelp_status status = kelp_rpc_loop_post(coordinator->loop, stop, coordinator);
    if (status != KELP_OK) {
        kelp_log_error("stop not delivered error=\"%s\"", kelp_status_text(status));
    }
}

void kelp_coordinator_destroy(struct kelp_coordinator *coordinator)
{
    if (coordinator == NULL) {
        return;
    }
    if (coordinator->timer != NULL) {
        kelp_rpc_timer_stop(coordinator->timer);
    }
    kelp_leading_end(coordinator, "stopping");
    if (coordinator->tasks != NULL) {
        kelp_task_thread_stop(coordinator->tasks);
    }
    if (coordinator->disk != NULL) {
        kelp_task_thread_stop(coordinator->disk);
    }
    if (coordinator->leader != NULL) {
        kelp_leader_close(coordinator->leader);
    }
    while (coordinator->links != NULL) {
        (void)kelp_rpc_loop_run(coordinator->loop, 10);
        kelp_link_close_all(coordinator); /* frees those whose stream has ended */
    }
    kelp_rpc_server_close(coordinator->server);
    kelp_rpc_loop_destroy(coordinator->loop);
    kelp_leader_destroy(coordinator->leader);
    kelp_task_thread_destroy(coordinator->tasks);
    kelp_task_thread_destroy(coordinator->disk);
    kelp_job_file_destroy(coordinator->job_file);
    free(coordinator->spec);
    free(coordinator);
}
