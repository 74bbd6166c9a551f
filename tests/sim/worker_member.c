/* A simulated worker's stream to the coordinator (worker/coordinator_link.c): a thread of its own
 * in the program, so that it answers also while lanes are computed. */
#include <stdlib.h>

#include "tests/sim/worker.h"

#define RETRY_US (100 * SIM_MS)

static void try_connect(struct sim_worker *worker);

static void report(struct sim_worker *worker, uint64_t heartbeat, bool hello)
{
    struct sim_worker_report *message = sim_message_create(SIM_WORKER_REPORT, sizeof(*message));
    message->incarnation = hello ? worker->process->incarnation : 0;
    message->heartbeat = heartbeat;
    message->assignment_epoch = worker->news.assignment_epoch;
    message->version = worker->word.version;
    message->generation = worker->map ? worker->map->map.generation : 0;
    sim_stream_send(worker->sim, worker->join, SIM_CLIENT, message);
}

static void retry(struct sim *sim, struct sim_process *process, void *data, uint64_t number);

static void start_retrying(struct sim_worker *worker)
{
    if (!worker->retrying) {
        worker->retrying = true;
        sim_after(worker->sim, RETRY_US,
                  &(struct sim_call){.process = worker->process, .run = retry});
    }
}

static void retry(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_worker *worker = process->state;
    (void)sim;
    (void)data;
    (void)number;
    worker->retrying = false;
    try_connect(worker);
    if (worker->join == 0) {
        start_retrying(worker);
    }
}

static void try_connect(struct sim_worker *worker)
{
    if (worker->join != 0 || worker->leader < 0 || worker->news.leave) {
        return;
    }
    worker->connected_to = worker->leader;
    worker->join =
        sim_stream_open(worker->sim, worker->process, &worker->sim->processes[worker->leader],
                        SIM_JOIN, worker->sim->job.transport.connect_timeout_ms);
    report(worker, 0, true);
}

static void on_message(struct sim *sim, struct sim_process *process, uint64_t stream,
                       struct sim_message *message, bool stray)
{
    struct sim_worker *worker = process->state;
    const struct sim_worker_command *command = (const struct sim_worker_command *)message;
    (void)sim;
    (void)stray; /* join streams are not doubled */
    if (stream != worker->join) {
        return;
    }
    if (command->map) {
        sim_map_unref(worker->news.map);
        worker->news.map = sim_map_ref(command->map);
    }
    if (command->has_assignment) {
        worker->news.has_assignment = true;
        worker->news.assignment_epoch = command->assignment_epoch;
        worker->news.lane_first = command->lane_first;
        worker->news.lane_count = command->lane_count;
    }
    worker->news.leave = worker->news.leave || command->leave;
    if (command->heartbeat > 0) {
        report(worker, command->heartbeat, false);
    }
    if (command->map || command->has_assignment || command->leave) {
        worker->news.any = true;
        sim_worker_turn(worker); /* may end the process */
    }
}

static void on_closed(struct sim *sim, struct sim_process *process, uint64_t stream, bool broken)
{
    struct sim_worker *worker = process->state;
    (void)sim;
    (void)broken;
    if (stream == worker->join) {
        worker->join = 0;
        start_retrying(worker);
    }
}

const struct sim_stream_events sim_join_client = {.message = on_message, .closed = on_closed};

/* ---- who leads ---------------------------------------------------------------------------------
 */

static void on_leader(struct sim *sim, struct sim_process *process, const struct sim_key *key)
{
    struct sim_worker *worker = process->state;
    worker->leader = (int)key->value->place;
    if (worker->join != 0 && worker->leader != worker->connected_to) {
        sim_stream_close(sim, worker->join, SIM_CLIENT);
        return;
    }
    try_connect(worker);
}

static void on_leader_gone(struct sim *sim, struct sim_process *process, const char *key)
{
    (void)sim; /* its stream breaks by itself if it is dead */
    (void)process;
    (void)key;
}

static const struct sim_watch_events leader_events = {.changed = on_leader,
                                                      .removed = on_leader_gone};

void sim_worker_join_cluster(struct sim_worker *worker)
{
    (void)sim_etcd_watch(worker->sim, worker->process, "coordinator", &leader_events);
}
