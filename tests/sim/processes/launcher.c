#include "tests/sim/processes/launcher.h"

#include "tests/sim/processes/coordinator.h"
#include "tests/sim/processes/shard.h"
#include "tests/sim/processes/supervisor.h"
#include "tests/sim/processes/worker.h"

#define LOOK_US (200 * SIM_MS)

/* The last one that is to run; or, retired, the first one that is not. NULL: there is none. */
static struct sim_process *find(struct sim *sim, enum sim_role role, bool retired)
{
    struct sim_process *found = NULL;
    for (unsigned i = 0; i < sim->process_count; i++) {
        struct sim_process *process = &sim->processes[i];
        bool fits = process->role == role && process->retired == retired;
        if (fits && (!found || !retired || process->index < found->index)) {
            found = process;
        }
    }
    return found;
}

static unsigned count(const struct sim *sim, enum sim_role role)
{
    unsigned wanted = 0;
    for (unsigned i = 0; i < sim->process_count; i++) {
        wanted += sim->processes[i].role == role && !sim->processes[i].retired ? 1 : 0;
    }
    return wanted;
}

static void start(struct sim *sim, struct sim_process *nobody, void *data, uint64_t number)
{
    struct sim_process *process = &sim->processes[number];
    (void)nobody;
    (void)data;
    if (process->incarnation == 0 && !process->retired) {
        process->over = false;
        sim_supervisor_start(sim, process);
    }
}

static void grow(struct sim *sim, enum sim_role role, unsigned wanted)
{
    while (count(sim, role) < wanted) {
        struct sim_process *process = find(sim, role, true);
        process->retired = false;
        sim_after(sim, sim_draw(sim, SIM_SECOND),
                  &(struct sim_call){.run = start, .number = process->place});
    }
}

static void end_worker(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)sim;
    (void)data;
    (void)number;
    sim_worker_ask_to_end(process);
}

static void follow_workers(struct sim *sim, unsigned wanted)
{
    grow(sim, SIM_WORKER, wanted);
    while (count(sim, SIM_WORKER) > wanted) {
        struct sim_process *process = find(sim, SIM_WORKER, false);
        process->retired = true;
        if (process->incarnation != 0) {
            sim_after(sim, 0, &(struct sim_call){.process = process, .run = end_worker});
        }
    }
}

static void end_shard(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)sim;
    (void)data;
    (void)number;
    sim_shard_ask_to_end(process);
}

/* It hosts nothing, as the leader says. */
static struct sim_process *find_empty(struct sim *sim, const struct kelp_map *map)
{
    struct sim_process *found = NULL;
    for (unsigned i = 0; i < sim->process_count; i++) {
        struct sim_process *process = &sim->processes[i];
        if (process->role == SIM_SHARD && !process->retired &&
            kelp_map_find(map, process->id) < 0) {
            found = process;
        }
    }
    return found;
}

/* Shards that somebody else has asked to end: others must be there to get what they have. */
static unsigned count_leaving(const struct sim *sim)
{
    unsigned leaving = 0;
    for (unsigned i = 0; i < sim->process_count; i++) {
        const struct sim_process *process = &sim->processes[i];
        const struct sim_shard *shard = process->state;
        leaving += process->role == SIM_SHARD && process->incarnation != 0 && !process->retired &&
                           shard->leaving
                       ? 1
                       : 0;
    }
    return leaving;
}

/* A shard goes once it is empty. */
static void follow_shards(struct sim *sim, const struct kelp_placement *placement, unsigned wanted)
{
    struct sim_process *process;
    grow(sim, SIM_SHARD, wanted);
    const unsigned most = wanted + count_leaving(sim);
    while (placement->state == KELP_PLACEMENT_RUNNING && count(sim, SIM_SHARD) > most &&
           (process = find_empty(sim, &placement->map)) != NULL) {
        process->retired = true;
        if (process->incarnation != 0) {
            sim_after(sim, 0, &(struct sim_call){.process = process, .run = end_shard});
        }
    }
}

static void look(struct sim *sim, struct sim_process *nobody, void *data, uint64_t number)
{
    (void)nobody;
    (void)data;
    (void)number;
    for (unsigned i = 0; i < SIM_COORDINATORS; i++) {
        const struct sim_process *process = sim_find(sim, SIM_COORDINATOR, i);
        const struct kelp_term *term =
            process->incarnation != 0 && !process->paused ? sim_coordinator_status(process) : NULL;
        if (term) {
            follow_workers(sim, term->size.now.workers_max);
            follow_shards(sim, &term->placement, term->size.now.shards);
        }
    }
    sim_after(sim, LOOK_US, &(struct sim_call){.run = look});
}

void sim_launcher_begin(struct sim *sim)
{
    if (sim->profile.scales) {
        sim_after(sim, LOOK_US, &(struct sim_call){.run = look});
    }
}
