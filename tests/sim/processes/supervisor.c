#include "tests/sim/processes/supervisor.h"

#include "tests/sim/outside/etcd.h"
#include "tests/sim/outside/network.h"
#include "tests/sim/processes/coordinator.h"
#include "tests/sim/processes/shard.h"
#include "tests/sim/processes/worker.h"

#define AGAIN_US (5 * SIM_SECOND) /* before somebody looks at a job that is over */

static void (*const start[])(struct sim *, struct sim_process *) = {
    [SIM_COORDINATOR] = sim_coordinator_start,
    [SIM_SHARD] = sim_shard_start,
    [SIM_WORKER] = sim_worker_start,
};
static void (*const forget[])(struct sim_process *) = {
    [SIM_COORDINATOR] = sim_coordinator_forget,
    [SIM_SHARD] = sim_shard_forget,
    [SIM_WORKER] = sim_worker_forget,
};

void sim_supervisor_start(struct sim *sim, struct sim_process *process)
{
    sim_process_begin(sim, process);
    sim_say(sim, process, "starts");
    start[process->role](sim, process);
}

/* The state of a process that ended by itself: not while it is in the middle of something. */
static void free_ended(struct sim_process *process)
{
    void *now = process->state;
    if (process->ended_state) {
        process->state = process->ended_state;
        process->ended_state = NULL;
        forget[process->role](process);
        process->state = now;
    }
}

void sim_supervisor_forget(struct sim *sim, struct sim_process *process)
{
    free_ended(process);
    if (process->incarnation != 0) {
        sim_process_end(sim, process);
        forget[process->role](process);
    }
}

static void start_again(struct sim *sim, struct sim_process *nobody, void *data, uint64_t number)
{
    struct sim_process *process = &sim->processes[number];
    (void)nobody;
    (void)data;
    if (process->incarnation != 0 || process->retired) {
        return;
    }
    if (process->over && sim_job_state(sim, "done")) {
        sim_after(sim, AGAIN_US, &(struct sim_call){.run = start_again, .number = number});
        return;
    }
    process->over = false; /* the job was done, and is computed again: workers are needed */
    sim_supervisor_start(sim, process);
}

static void free_state(struct sim *sim, struct sim_process *nobody, void *data, uint64_t number)
{
    (void)nobody;
    (void)data;
    free_ended(&sim->processes[number]);
}

void sim_supervisor_ended(struct sim *sim, struct sim_process *process)
{
    sim_network_process_ended(sim, process, false);
    sim_process_end(sim, process);
    free_ended(process);
    process->ended_state = process->state;
    process->state = NULL;
    sim_after(sim, 0, &(struct sim_call){.run = free_state, .number = process->place});
    sim_after(sim, sim_between(sim, 50 * SIM_MS, SIM_SECOND),
              &(struct sim_call){.run = start_again, .number = process->place});
}

void sim_supervisor_kill(struct sim *sim, struct sim_process *process, bool silent,
                         uint64_t back_after_us)
{
    if (process->incarnation != 0) {
        sim_say(sim, process, "is killed");
        sim_network_process_ended(sim, process, silent);
        sim_supervisor_forget(sim, process);
    }
    sim_after(sim, back_after_us, &(struct sim_call){.run = start_again, .number = process->place});
}
