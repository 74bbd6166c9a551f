/* A simulated worker's stream to the coordinator: kelp_joining decides. It is a thread of its own
 * in the program, so that it reports also while lanes are computed. */
#include "tests/sim/processes/worker.h"

static void take_event(struct sim_worker *worker, const struct kelp_joining_event *event);

static void send_report(struct sim_worker *worker, const struct kelp_joining_report *from)
{
    struct sim_worker_report *message = sim_message_create(SIM_WORKER_REPORT, sizeof(*message));
    message->incarnation = from->hello ? worker->process->incarnation : 0;
    message->same = from->same;
    message->assignment_epoch = from->assignment_epoch;
    message->progress = from->progress;
    message->trouble = from->trouble[0] != '\0';
    sim_stream_send(worker->sim, worker->join, SIM_CLIENT, message);
}

static void retry(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)sim;
    (void)data;
    (void)number;
    take_event(process->state, &(struct kelp_joining_event){.kind = KELP_JOINING_RETRY});
}

static void beat_later(struct sim_worker *worker);

static void beat(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_worker *worker = process->state;
    struct kelp_stepper_trouble trouble;
    (void)data;
    if (number != worker->beats) {
        return;
    }
    beat_later(worker);
    kelp_stepper_trouble(worker->stepper, sim->now / SIM_MS, &trouble);
    kelp_joining_trouble(&worker->joining, trouble.lasts ? "cannot reach a shard" : "");
    take_event(worker, &(struct kelp_joining_event){.kind = KELP_JOINING_BEAT});
}

static void beat_later(struct sim_worker *worker)
{
    if (worker->beat_ms > 0) {
        sim_after(
            worker->sim, worker->beat_ms * SIM_MS,
            &(struct sim_call){.process = worker->process, .run = beat, .number = worker->beats});
    }
}

/* True: the worker's loop is to go round. */
static bool carry_out(struct sim_worker *worker, const struct kelp_joining_action *action)
{
    struct sim *sim = worker->sim;

    switch (action->kind) {
    case KELP_JOINING_CONNECT:
        worker->join =
            sim_stream_open(sim, worker->process, sim_find_id(sim, worker->joining.connected_to),
                            SIM_JOIN, sim->job.transport.connect_timeout_ms);
        break;
    case KELP_JOINING_CLOSE:
        sim_stream_close(sim, worker->join, SIM_CLIENT);
        break;
    case KELP_JOINING_REPORT:
        send_report(worker, &action->report);
        break;
    case KELP_JOINING_RETRY_LATER:
        sim_after(sim, action->after_ms * SIM_MS,
                  &(struct sim_call){.process = worker->process, .run = retry});
        break;
    case KELP_JOINING_BEAT_EVERY:
        worker->beat_ms = action->after_ms;
        worker->beats++;
        beat_later(worker);
        break;
    case KELP_JOINING_TELL:
        return true;
    case KELP_JOINING_DROP_MAP:
        sim_map_unref(action->map);
        break;
    }
    return false;
}

static void take_event(struct sim_worker *worker, const struct kelp_joining_event *event)
{
    struct kelp_joining_actions actions;
    bool tell = false;

    kelp_joining_event(&worker->joining, event, &actions);
    for (size_t i = 0; i < actions.count; i++) {
        tell = carry_out(worker, &actions.items[i]) || tell;
    }
    if (tell) {
        sim_worker_turn(worker); /* may end the process */
    }
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
    take_event(worker, &(struct kelp_joining_event){
                           .kind = KELP_JOINING_COMMAND,
                           .command = {
                               .map = command->map ? sim_map_ref(command->map) : NULL,
                               .map_generation = command->map ? command->map->map.generation : 0,
                               .map_serial = command->map ? command->map->map.serial : 0,
                               .has_assignment = command->has_assignment,
                               .assignment_epoch = command->assignment_epoch,
                               .lane_first = command->lane_first,
                               .lane_count = command->lane_count,
                               .rests = command->rests,
                               .leave = command->leave,
                               .drain = command->drain,
                               .status = command->status,
                               .error = "refused",
                               .beat_ms = command->beat_ms,
                           }});
}

static void on_closed(struct sim *sim, struct sim_process *process, uint64_t stream, bool broken)
{
    struct sim_worker *worker = process->state;
    (void)sim;
    (void)broken;
    if (stream == worker->join) {
        worker->join = 0;
        take_event(worker, &(struct kelp_joining_event){.kind = KELP_JOINING_CLOSED});
    }
}

const struct sim_stream_events sim_join_client = {.message = on_message, .closed = on_closed};

/* ---- who leads ------------------------------------------------------------------------------- */

static void on_leader(struct sim *sim, struct sim_process *process, const struct sim_key *key)
{
    take_event(process->state,
               &(struct kelp_joining_event){.kind = KELP_JOINING_LEADER,
                                            .leader = sim->processes[key->value->place].id});
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
