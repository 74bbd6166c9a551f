/*
 * The life of the process. The server is bound first, so that a port in use is reported at once.
 * Then this coordinator waits for the specification and stands for election.
 */
#include "coordinator/coordinator.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "coordinator/common/term_now.h"
#include "coordinator/effects.h"
#include "coordinator/etcd_events.h"
#include "coordinator/look.h"
#include "coordinator/parts.h"

static void watch_anew(struct kelp_coordinator *coordinator)
{
    struct kelp_error error;
    kelp_leadership_starved(&coordinator->leadership);
    if (!coordinator->identity.job &&
        kelp_leader_watch_spec(coordinator->leader, &error) != KELP_OK) {
        const struct kelp_outside *outside = &coordinator->leadership.options.outside;
        outside->effects->give_up(error.text, outside->user);
    }
}

/* Do shards that are also told to end need this coordinator, with no standby to take over? */
static bool is_needed(const struct kelp_coordinator *coordinator)
{
    const struct kelp_term *term = coordinator->leadership.term;
    const uint64_t told_ms_ago = kelp_clock_ms() - coordinator->told_ms;
    bool alone = coordinator->followers.count == 0 || told_ms_ago < KELP_COORDINATOR_HEAR_MS;
    return term && alone && told_ms_ago < coordinator->options.grace_ms &&
           kelp_departure_holds_leader(&term->placement, told_ms_ago);
}

static void on_tick(void *user)
{
    struct kelp_coordinator *coordinator = user;
    (void)kelp_term_now(&coordinator->leadership);
    (void)kelp_shard_streams_sweep(&coordinator->shards);
    if (kelp_leader_lost_event(coordinator->leader)) {
        watch_anew(coordinator);
    }
    kelp_leader_tick(coordinator->leader);
    kelp_leadership_tick(&coordinator->leadership);
    kelp_follower_streams_tick(&coordinator->followers);
    kelp_coordinator_look(coordinator);
    coordinator->stopping =
        coordinator->stopping || (coordinator->told_ms != 0 && !is_needed(coordinator));
}

/* ---- opening ---- */

static kelp_status open_server(struct kelp_coordinator *coordinator, struct kelp_error *reterr)
{
    struct kelp_rpc_server_options server = {
        .address = coordinator->options.serving->listen,
        .advertise = kelp_serving_advertise(coordinator->options.serving),
        .message_bytes_max = KELP_COORDINATOR_MESSAGE_BYTES,
        .hello = true,
        .sparing = true,
        .refused = kelp_worker_streams_count_refused,
        .user = &coordinator->workers,
    };
    server.methods = kelp_worker_streams_methods(&server.method_count);
    kelp_status status =
        kelp_rpc_server_open(coordinator->loop, &server, &coordinator->server, reterr);
    if (status == KELP_OK) {
        kelp_rpc_server_queue_max(coordinator->server, KELP_COORDINATOR_QUEUE_BYTES);
        (void)snprintf(coordinator->address, sizeof(coordinator->address), "%s",
                       kelp_rpc_server_address(coordinator->server));
    }
    return status;
}

static kelp_status open_etcd(struct kelp_coordinator *coordinator, struct kelp_error *reterr)
{
    const struct kelp_leader_options leader = {
        .loop = coordinator->loop,
        .tasks = coordinator->tasks,
        .endpoints = coordinator->options.etcd,
        .certs = kelp_credentials_folder(coordinator->options.credentials),
        .job = coordinator->options.job,
        .id = coordinator->options.id,
        .run_folder = coordinator->options.run_folder,
        .force = coordinator->options.force,
        .incarnation = coordinator->options.incarnation,
        .proof_digest = coordinator->identity.proof_digest,
        .serving = coordinator->options.serving,
    };
    return kelp_leader_open(&leader, &kelp_coordinator_etcd_events, coordinator,
                            &coordinator->leader, reterr);
}

/* Called once the threads exist. */
static void init_parts(struct kelp_coordinator *coordinator)
{
    const struct kelp_coordinator_options *options = &coordinator->options;
    const struct kelp_leadership_options leadership = {
        .effects = &kelp_coordinator_leadership_effects,
        .outside = {.effects = &kelp_coordinator_term_effects, .user = coordinator},
        .id = options->id,
        .incarnation = options->incarnation,
        .no_checkpoints = options->no_checkpoints,
        .force = options->force,
    };
    coordinator->peers_lines = (struct kelp_log_gate)KELP_LOG_GATE_OF(KELP_COORDINATOR_PEER_LINES);
    kelp_leadership_init(&coordinator->leadership, &leadership);
    coordinator->identity = (struct kelp_identity){
        .job_name = options->job, .id = options->id, .incarnation = options->incarnation};
    coordinator->records = (struct kelp_record_files){.run_folder = options->run_folder,
                                                      .disk = coordinator->disk,
                                                      .leadership = &coordinator->leadership};
    coordinator->folders = (struct kelp_checkpoint_folders){.run_folder = options->run_folder,
                                                            .disk = coordinator->disk,
                                                            .leadership = &coordinator->leadership,
                                                            .identity = &coordinator->identity};
    coordinator->events = (struct kelp_event_log){
        .run_folder = options->run_folder, .leader = options->id, .disk = coordinator->disk};
    coordinator->workers =
        (struct kelp_worker_streams){.leadership = &coordinator->leadership,
                                     .identity = &coordinator->identity,
                                     .followers = &coordinator->followers,
                                     .figures = options->figures,
                                     .refusals = KELP_LOG_GATE_INIT,
                                     .requests = KELP_LOG_GATE_OF(KELP_COORDINATOR_REQUEST_LINES)};
    coordinator->shards = (struct kelp_shard_streams){.loop = coordinator->loop,
                                                      .leadership = &coordinator->leadership,
                                                      .identity = &coordinator->identity,
                                                      .plan = &coordinator->plan};
    coordinator->followers = (struct kelp_follower_streams){.leadership = &coordinator->leadership,
                                                            .identity = &coordinator->identity,
                                                            .figures = options->figures};
    coordinator->leaders = (struct kelp_leader_streams){.loop = coordinator->loop,
                                                        .leadership = &coordinator->leadership,
                                                        .identity = &coordinator->identity};
}

kelp_status kelp_coordinator_open(struct kelp_coordinator *coordinator, struct kelp_error *reterr)
{
    kelp_status status = open_server(coordinator, reterr);
    if (status == KELP_OK) {
        status = kelp_task_thread_start(coordinator->loop, &coordinator->tasks, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_task_thread_start(coordinator->loop, &coordinator->disk, reterr);
    }
    if (status == KELP_OK) {
        init_parts(coordinator);
        status = kelp_identity_draw(&coordinator->identity, reterr);
    }
    if (status == KELP_OK) {
        status = open_etcd(coordinator, reterr);
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

/* ---- life ---- */

kelp_status kelp_coordinator_create(const struct kelp_coordinator_options *options,
                                    struct kelp_coordinator **ret_coordinator,
                                    struct kelp_error *reterr)
{
    struct kelp_coordinator *coordinator = calloc(1, sizeof(*coordinator));
    if (!coordinator) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the coordinator");
    }
    coordinator->options = *options;
    kelp_status status = kelp_rpc_loop_create(&coordinator->loop, reterr);
    if (status != KELP_OK) {
        free(coordinator);
        return status;
    }
    kelp_rpc_loop_credentials(coordinator->loop, options->credentials);
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

static void end_in_order(void *user)
{
    struct kelp_coordinator *coordinator = user;
    coordinator->told_ms = kelp_clock_ms();
    coordinator->stopping = coordinator->stopping || !is_needed(coordinator);
}

static void post(struct kelp_coordinator *coordinator, void (*what)(void *user))
{
    kelp_status status = kelp_rpc_loop_post(coordinator->loop, what, coordinator);
    if (status != KELP_OK) {
        kelp_log_error("stop not delivered error=\"%s\"", kelp_status_text(status));
    }
}

void kelp_coordinator_end(struct kelp_coordinator *coordinator)
{
    post(coordinator, end_in_order);
}

void kelp_coordinator_stop(struct kelp_coordinator *coordinator)
{
    post(coordinator, stop);
}

void kelp_coordinator_destroy(struct kelp_coordinator *coordinator)
{
    if (!coordinator) {
        return;
    }
    if (coordinator->timer) {
        kelp_rpc_timer_stop(coordinator->timer);
    }
    (void)kelp_term_now(&coordinator->leadership);
    kelp_leadership_end(&coordinator->leadership, "stopping");
    if (coordinator->tasks) {
        kelp_task_thread_stop(coordinator->tasks);
    }
    if (coordinator->disk) {
        kelp_task_thread_stop(coordinator->disk);
    }
    if (coordinator->leader) {
        kelp_leader_close(coordinator->leader);
    }
    kelp_leader_streams_unfollow(&coordinator->leaders);
    while (!kelp_shard_streams_sweep(&coordinator->shards) || coordinator->leaders.count > 0) {
        (void)kelp_rpc_loop_run(coordinator->loop, 10);
    }
    kelp_rpc_server_close(coordinator->server);
    kelp_rpc_loop_destroy(coordinator->loop);
    kelp_leader_destroy(coordinator->leader);
    kelp_task_thread_destroy(coordinator->tasks);
    kelp_task_thread_destroy(coordinator->disk);
    kelp_identity_fini(&coordinator->identity);
    free(coordinator);
}
