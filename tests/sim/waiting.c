#include "tests/sim/waiting.h"

#include <inttypes.h>

#include "tests/sim/processes/coordinator.h"
#include "tests/sim/processes/shard.h"
#include "tests/sim/processes/worker.h"

static void say_shard(struct sim *sim, const struct sim_process *process)
{
    const struct sim_shard *shard = sim_shard_of(process);
    static const char *const phases[KELP_PARTITION_PHASE_COUNT] = {
        "absent",  "collecting", "measuring", "deciding", "applying",
        "syncing", "filling",    "following", "failed"};
    for (uint32_t i = 0; shard->hosting && i < shard->hosting->partition_count; i++) {
        struct kelp_partition_view view;
        if (!shard->hosting->by_index[i]) {
            continue;
        }
        kelp_partition_view(shard->hosting->hosted[i].core, &view);
        sim_say(sim, process,
                "partition %u of generation %" PRIu64 " is %s at step %" PRIu64 ", version %" PRIu64
                ": %u nodes are "
                "there, %u pulls wait, it holds %" PRIu64 " in epoch %" PRIu64,
                shard->hosting->hosted[i].index, view.generation, phases[view.phase], view.step,
                view.version, view.pending, view.waiting, view.held, view.map_epoch);
    }
}

static void say_worker(struct sim *sim, const struct sim_process *process)
{
    const struct sim_worker *worker = sim_worker_of(process);
    struct kelp_stepper_view view;
    uint32_t links = 0;
    kelp_stepper_view(worker->stepper, &view);
    for (uint32_t i = 0; i < SIM_WORKER_LINKS_MAX; i++) {
        links += worker->links[i].stream != 0 ? 1 : 0;
    }
    sim_say(sim, process,
            "%s; version %" PRIu64 " of generation %" PRIu64
            ", lanes [%u, +%u)%s, %u streams, %s%s",
            kelp_sync_state_name(view.sync), view.word.version, view.generation, view.lane_first,
            view.lane_count, view.spare ? " (a spare)" : "", links,
            worker->join ? "in the cluster" : "without a coordinator",
            worker->computing ? ", computing" : "");
}

void sim_waiting_fail(struct sim *sim)
{
    sim_say(sim, NULL, "the run does not end. Who waits:");
    for (unsigned i = 0; i < sim->process_count; i++) {
        const struct sim_process *process = &sim->processes[i];
        if (process->incarnation == 0) {
            sim_say(sim, process, process->over ? "is over" : "does not run");
            continue;
        }
        switch (process->role) {
        case SIM_COORDINATOR:
            sim_say(sim, process, "%s", sim_coordinator_reason(process));
            break;
        case SIM_SHARD:
            say_shard(sim, process);
            break;
        case SIM_WORKER:
            say_worker(sim, process);
            break;
        }
    }
    sim_fail(sim, "progress", "the run has not ended %.0f s after its last fault",
             (double)(sim->now - sim->profile.faults_end) / 1e6);
}
