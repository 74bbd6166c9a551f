#include "tests/sim/faults.h"

#include <stdlib.h>

#include "tests/sim/invariants.h"
#include "tests/sim/outside/disk.h"
#include "tests/sim/outside/etcd.h"
#include "tests/sim/outside/network.h"
#include "tests/sim/processes/coordinator.h"
#include "tests/sim/processes/shard.h"
#include "tests/sim/processes/supervisor.h"
#include "tests/sim/processes/worker.h"

#define PROGRESS_US (3 * SIM_SECOND)
#define CALM_US     (8 * SIM_SECOND) /* between two faults: longer than a cut and what follows */

struct sim_faults {
    bool split;
    bool away;
    bool over;
};

struct sim_faults *sim_faults_create(void)
{
    return sim_alloc(sizeof(struct sim_faults));
}

void sim_faults_destroy(struct sim_faults *faults)
{
    free(faults);
}

bool sim_faults_over(const struct sim *sim)
{
    return sim->faults->over;
}

/* Soon, before anybody noticed; or later than any timeout; or in between. */
static uint64_t some_time(struct sim *sim, uint64_t longest_us)
{
    switch (sim_draw(sim, 3)) {
    case 0:
        return sim_draw(sim, 50 * SIM_MS);
    case 1:
        return sim_draw(sim, longest_us / 6 + 1);
    default:
        return sim_draw(sim, longest_us);
    }
}

static struct sim_process *pick(struct sim *sim, enum sim_role role)
{
    unsigned count = 0;
    for (unsigned i = 0; i < sim->process_count; i++) {
        count += sim->processes[i].role == role ? 1 : 0;
    }
    struct sim_process *process = sim_find(sim, role, (unsigned)sim_draw(sim, count));
    return process->incarnation != 0 ? process : NULL;
}

static void kill_one(struct sim *sim, enum sim_role role, enum sim_count count)
{
    struct sim_process *process = pick(sim, role);
    if (process) {
        sim->counts[count]++;
        sim_supervisor_kill(sim, process, false, some_time(sim, 6 * SIM_SECOND));
    }
}

/* Some are asked to end, as by SIGTERM. */
static void end_worker(struct sim *sim)
{
    const bool asks = sim_mix(sim->seed + sim->now) % 3 == 0;
    struct sim_process *process = asks ? pick(sim, SIM_WORKER) : NULL;
    if (!asks) {
        kill_one(sim, SIM_WORKER, SIM_COUNT_CRASH_WORKER);
    } else if (process && !process->paused) {
        sim->counts[SIM_COUNT_ASKED_WORKER]++;
        sim_worker_ask_to_end(process);
    }
}

static void kill_workers(struct sim *sim)
{
    for (unsigned i = 0; i < sim->process_count; i++) {
        struct sim_process *process = &sim->processes[i];
        if (process->role == SIM_WORKER && process->incarnation != 0) {
            sim->counts[SIM_COUNT_CRASH_WORKER]++;
            sim_supervisor_kill(sim, process, false, some_time(sim, 3 * SIM_SECOND));
        }
    }
}

static void wake(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_process *sleeper = &sim->processes[number];
    (void)process;
    (void)data;
    if (sleeper->paused) {
        sim_say(sim, sleeper, "goes on");
        sim_process_wake(sim, sleeper);
    }
}

static void pause_one(struct sim *sim)
{
    struct sim_process *process = &sim->processes[sim_draw(sim, sim->process_count)];
    if (process->incarnation != 0 && !process->paused) {
        sim->counts[SIM_COUNT_PAUSE]++;
        sim_say(sim, process, "is stopped");
        sim_process_pause(process);
        sim_after(sim, some_time(sim, 6 * SIM_SECOND),
                  &(struct sim_call){.run = wake, .number = process->place});
    }
}

static void power_loss(struct sim *sim, unsigned host, bool all)
{
    sim_say(sim, NULL, all ? "loses power" : "host %u loses power", host);
    for (unsigned i = 0; i < sim->process_count; i++) {
        struct sim_process *process = &sim->processes[i];
        if ((all || process->host == host) && process->incarnation != 0) {
            sim_supervisor_kill(sim, process, true, 100 * SIM_MS + some_time(sim, 5 * SIM_SECOND));
        }
    }
    sim_disk_power_loss(sim, host, all);
    sim_invariants_power_lost(sim);
    if (all && sim_draw(sim, 2) == 0) {
        sim->counts[SIM_COUNT_STORAGE_AWAY]++;
        sim_disk_away(sim, sim->now + some_time(sim, 8 * SIM_SECOND));
    }
}

static void heal(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)process;
    (void)data;
    (void)number;
    if (sim->faults->split) {
        sim_say(sim, NULL, "the network split heals");
        sim->faults->split = false;
        sim_network_heal(sim);
    }
}

/* Host number profile.hosts is etcd's. */
static void split(struct sim *sim)
{
    uint32_t side = (uint32_t)sim_draw(sim, UINT64_C(1) << (sim->profile.hosts + 1));
    if (sim->faults->split) {
        return;
    }
    sim->counts[SIM_COUNT_SPLIT]++;
    sim_say(sim, NULL, "the network splits: hosts %x (of %u, the last is etcd's) are cut off", side,
            sim->profile.hosts + 1);
    sim->faults->split = true;
    sim_network_split(sim, side);
    sim_after(sim, some_time(sim, 8 * SIM_SECOND), &(struct sim_call){.run = heal});
}

/* ---- one-way cuts ---- */

/* In calm runs: an entry is completed soon after the network is whole, or none is left. */
static void check_progress(struct sim *sim, struct sim_process *nobody, void *data, uint64_t number)
{
    (void)nobody;
    (void)data;
    if (sim->progressed_us < number && sim_job_state(sim, "running") &&
        !sim_journal_finished(sim)) {
        sim_fail(sim, "progress after a cut is mended", "no entry was completed for %.1f s",
                 (double)(sim->now - number) / 1e6);
    }
}

static void mend(struct sim *sim, struct sim_process *nobody, void *data, uint64_t number)
{
    const unsigned from = (unsigned)number / SIM_PROCESSES_MAX;
    const unsigned to = (unsigned)number % SIM_PROCESSES_MAX;
    (void)nobody;
    (void)data;
    sim_say(sim, NULL, "what %s sends reaches %s again", sim->processes[from].id,
            sim->processes[to].id);
    sim_network_mend(sim, from, to);
    const uint64_t entry_us = 2 * sim->job.cluster.lanes * sim->profile.lane_us;
    if (sim->profile.calm && entry_us <= SIM_SECOND) { /* else it is the entry that takes long */
        sim_after(sim, PROGRESS_US + entry_us,
                  &(struct sim_call){.run = check_progress, .number = sim->now});
    }
}

/* Between two shards, a shard and a coordinator, a shard and a worker, or any two. */
static void cut(struct sim *sim)
{
    struct sim_process *one = pick(sim, SIM_SHARD);
    struct sim_process *peer;
    switch (sim_draw(sim, 4)) {
    case 0:
        peer = pick(sim, SIM_SHARD);
        break;
    case 1:
        peer = pick(sim, SIM_COORDINATOR);
        break;
    case 2:
        peer = pick(sim, SIM_WORKER);
        break;
    default:
        one = pick(sim, SIM_COORDINATOR);
        peer = &sim->processes[sim_draw(sim, sim->process_count)];
        break;
    }
    const bool back = sim_draw(sim, 2) == 0;
    const struct sim_process *from = back ? peer : one;
    const struct sim_process *to = back ? one : peer;
    const uint64_t lasts_us = some_time(sim, sim->profile.calm ? 3 * SIM_SECOND : 8 * SIM_SECOND);
    if (!one || !peer || one == peer || !sim_network_cut(sim, from->place, to->place)) {
        return;
    }
    sim->counts[SIM_COUNT_CUT]++;
    sim_say(sim, NULL, "what %s sends reaches %s no more", from->id, to->id);
    sim_after(
        sim, lasts_us,
        &(struct sim_call){.run = mend, .number = from->place * SIM_PROCESSES_MAX + to->place});
}

/* ---- etcd ---- */

static void etcd_back(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)process;
    (void)data;
    (void)number;
    if (sim->faults->away) {
        sim_say(sim, NULL, "etcd is back");
        sim->faults->away = false;
        sim_etcd_away(sim, false);
    }
}

static void etcd_away(struct sim *sim)
{
    if (sim->faults->away) {
        return;
    }
    sim->counts[SIM_COUNT_ETCD_DOWN]++;
    sim_say(sim, NULL, "etcd goes away");
    sim->faults->away = true;
    sim_etcd_away(sim, true);
    sim_after(sim, some_time(sim, 10 * SIM_SECOND), &(struct sim_call){.run = etcd_back});
}

/* kelp checkpoint; or SIGTERM of kelp train. */
static void request(struct sim *sim, bool pause)
{
    for (unsigned i = 0; i < SIM_COORDINATORS; i++) {
        struct sim_process *process = sim_find(sim, SIM_COORDINATOR, i);
        if (process->incarnation != 0 && !process->paused) {
            sim_coordinator_request(process, pause);
        }
    }
}

/* kelp scale. */
static void scale(struct sim *sim)
{
    const uint32_t lanes = sim->job.cluster.lanes;
    const uint32_t most = lanes < SIM_WORKERS_MAX ? lanes : SIM_WORKERS_MAX;
    struct kelp_targets targets = {0};
    if (sim_draw(sim, 3) > 0) {
        targets.shards = (uint32_t)sim_between(sim, sim->job.cluster.replicas, SIM_SHARDS_MAX);
    }
    if (targets.shards == 0 || sim_draw(sim, 2) == 0) {
        targets.workers_max = (uint32_t)sim_between(sim, 1, most);
        targets.workers_min = (uint32_t)sim_between(sim, 1, targets.workers_max);
    }
    for (unsigned i = 0; i < SIM_COORDINATORS; i++) {
        struct sim_process *process = sim_find(sim, SIM_COORDINATOR, i);
        if (process->incarnation != 0 && !process->paused) {
            sim_coordinator_scale(process, &targets);
        }
    }
}

/* ---- draining ---- */

/* Is somebody asked to let it go? */
static bool is_drained(struct sim *sim, const struct sim_process *shard)
{
    bool drained = false;
    for (unsigned i = 0; i < SIM_COORDINATORS; i++) {
        const struct sim_process *process = sim_find(sim, SIM_COORDINATOR, i);
        const struct kelp_term *term =
            process->incarnation != 0 ? sim_coordinator_status(process) : NULL;
        drained = drained ||
                  (term && (kelp_targets_drain(&term->size.now, shard->id, shard->incarnation) ||
                            kelp_targets_drain(&term->size.wanted, shard->id, shard->incarnation)));
    }
    return drained;
}

/* How many could take over: registered, loaded, and not about to leave. */
static unsigned count_staying(struct sim *sim)
{
    unsigned count = 0;
    for (unsigned i = 0; i < sim->process_count; i++) {
        const struct sim_process *process = &sim->processes[i];
        if (process->role == SIM_SHARD && process->incarnation != 0) {
            const struct sim_shard *shard = sim_shard_of(process);
            count +=
                shard->lease != 0 && !shard->leaving && shard->hosting && !is_drained(sim, process)
                    ? 1
                    : 0;
        }
    }
    return count;
}

/* As when a host ends everything. */
static void ask_all_to_end(struct sim *sim)
{
    for (unsigned i = 0; i < sim->process_count; i++) {
        struct sim_process *process = &sim->processes[i];
        if (process->role == SIM_SHARD && process->incarnation != 0 && !process->paused) {
            sim->counts[SIM_COUNT_ASKED_SHARD]++;
            sim_shard_ask_to_end(process);
        }
    }
}

/* kelp drain, or SIGTERM. Who drains gently leaves somebody. */
static void drain(struct sim *sim)
{
    if (!sim->profile.gentle && sim_mix(sim->seed + sim->now) % 4 == 0) {
        ask_all_to_end(sim);
        return;
    }
    struct sim_process *process = pick(sim, sim_draw(sim, 4) == 0 ? SIM_WORKER : SIM_SHARD);
    const bool asks = sim_draw(sim, 2) == 0;
    if (!process || process->paused) {
        return;
    }
    if (!asks || process->role == SIM_WORKER) {
        for (unsigned i = 0; i < SIM_COORDINATORS; i++) {
            struct sim_process *leader = sim_find(sim, SIM_COORDINATOR, i);
            if (leader->incarnation != 0 && !leader->paused) {
                sim_coordinator_drain(leader, process->id);
            }
        }
    } else if (!sim->profile.gentle || count_staying(sim) > 1) {
        sim->counts[SIM_COUNT_ASKED_SHARD]++;
        sim_shard_ask_to_end(process);
    }
}

static void cause(struct sim *sim, enum sim_fault fault)
{
    switch (fault) {
    case SIM_FAULT_KILL_WORKER:
        end_worker(sim);
        break;
    case SIM_FAULT_KILL_WORKERS:
        kill_workers(sim);
        break;
    case SIM_FAULT_KILL_SHARD:
        kill_one(sim, SIM_SHARD, SIM_COUNT_CRASH_SHARD);
        break;
    case SIM_FAULT_KILL_COORDINATOR:
        kill_one(sim, SIM_COORDINATOR, SIM_COUNT_CRASH_COORDINATOR);
        break;
    case SIM_FAULT_PAUSE:
        pause_one(sim);
        break;
    case SIM_FAULT_POWER_HOST:
        sim->counts[SIM_COUNT_POWER_HOST]++;
        power_loss(sim, (unsigned)sim_draw(sim, sim->profile.hosts), false);
        break;
    case SIM_FAULT_POWER_ALL:
        sim->counts[SIM_COUNT_POWER_ALL]++;
        power_loss(sim, 0, true);
        break;
    case SIM_FAULT_SPLIT:
        split(sim);
        break;
    case SIM_FAULT_ETCD:
        etcd_away(sim);
        break;
    case SIM_FAULT_STREAM:
        sim->counts[SIM_COUNT_STREAM_BROKEN] += sim_network_break_one(sim) ? 1 : 0;
        break;
    case SIM_FAULT_DAMAGE:
        sim->counts[SIM_COUNT_BIT_FLIPPED] += sim_disk_damage(sim) ? 1 : 0;
        break;
    case SIM_FAULT_REQUEST:
        request(sim, false);
        break;
    case SIM_FAULT_PAUSE_JOB:
        request(sim, true);
        break;
    case SIM_FAULT_SCALE:
        scale(sim);
        break;
    case SIM_FAULT_CUT:
        cut(sim);
        break;
    case SIM_FAULT_DRAIN:
        drain(sim);
        break;
    case SIM_FAULT_COUNT:
        break;
    }
}

static enum sim_fault draw_fault(struct sim *sim)
{
    uint64_t all = 0;
    for (int i = 0; i < SIM_FAULT_COUNT; i++) {
        all += sim->profile.weights[i];
    }
    uint64_t dice = sim_draw(sim, all);
    int fault = 0;
    while (dice >= sim->profile.weights[fault]) {
        dice -= sim->profile.weights[fault++];
    }
    return (enum sim_fault)fault;
}

static void end_faults(struct sim *sim)
{
    struct sim_profile *profile = &sim->profile;
    sim_say(sim, NULL, "nothing goes wrong any more");
    profile->late_rate = profile->lost_rate = profile->double_rate = 0;
    profile->etcd_rate = profile->disk_rate = 0;
    profile->sluggish = profile->stuck = false;
    sim_disk_away(sim, 0);
    heal(sim, NULL, NULL, 0);
    sim_network_mend_all(sim);
    etcd_back(sim, NULL, NULL, 0);
    for (unsigned i = 0; i < sim->process_count; i++) {
        wake(sim, NULL, NULL, i);
    }
    sim->faults->over = true;
    sim->healed_us = sim->now;
}

static void kill_writer(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)data;
    (void)number;
    if (sim->faults->over) {
        return;
    }
    sim->counts[SIM_COUNT_CRASH_SHARD]++;
    sim_supervisor_kill(sim, process, false, sim_draw(sim, 50 * SIM_MS));
}

void sim_faults_durable(struct sim *sim, struct sim_process *shard)
{
    if (sim->profile.sluggish && sim_draw(sim, 2) == 0) {
        sim_after(sim, sim_draw(sim, 200 * SIM_MS),
                  &(struct sim_call){.process = shard, .run = kill_writer});
    }
}

static void next_fault(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)process;
    (void)data;
    (void)number;
    if (sim->now >= sim->profile.faults_end) {
        end_faults(sim);
        return;
    }
    cause(sim, draw_fault(sim));
    const uint64_t pause_us = sim->profile.calm ? CALM_US : 0;
    sim_after(sim, pause_us + sim_draw(sim, 2 * sim->profile.fault_gap),
              &(struct sim_call){.run = next_fault});
}

void sim_faults_begin(struct sim *sim)
{
    if (sim->profile.quiet) {
        sim->faults->over = true;
        return;
    }
    sim_after(sim, sim_draw(sim, 2 * sim->profile.fault_gap),
              &(struct sim_call){.run = next_fault});
}
