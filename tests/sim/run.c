#include "tests/sim/run.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/faults.h"
#include "tests/sim/invariants.h"
#include "tests/sim/outside/disk.h"
#include "tests/sim/outside/etcd.h"
#include "tests/sim/outside/network.h"
#include "tests/sim/processes/coordinator.h"
#include "tests/sim/processes/launcher.h"
#include "tests/sim/processes/supervisor.h"
#include "tests/sim/profile.h"
#include "tests/sim/waiting.h"

#define STARTS_US      (100 * SIM_MS)
#define EVENTS_BETWEEN 16                /* before somebody looks whether it is over */
#define BOUND_US       (90 * SIM_SECOND) /* besides the time that the steps themselves take */

/* An assertion of a core has failed: a broken invariant like any other. */
static struct sim *running;

static void on_abort(int number)
{
    (void)number;
    if (running) {
        (void)snprintf(running->failure, sizeof(running->failure),
                       "an assertion of the code under test (its text is above)");
        siglongjmp(running->failed, 1);
    }
}

static void start(struct sim *sim, struct sim_process *nobody, void *data, uint64_t number)
{
    (void)nobody;
    (void)data;
    if (sim->processes[number].incarnation == 0 && !sim->processes[number].retired) {
        sim_supervisor_start(sim, &sim->processes[number]);
    }
}

static struct sim *create(uint64_t seed, struct sim_story *story)
{
    struct sim *sim = sim_alloc(sizeof(*sim));
    sim->seed = seed;
    sim->random = seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
    sim->story = story;
    sim_profile_draw(sim);
    sim->network = sim_network_create();
    sim->etcd = sim_etcd_create();
    sim->disk = sim_disk_create();
    sim->faults = sim_faults_create();
    sim->invariants = sim_invariants_create();
    sim->reference = sim_reference_create(sim);
    return sim;
}

static void destroy(struct sim *sim)
{
    for (unsigned i = 0; i < sim->process_count; i++) {
        sim_supervisor_forget(sim, &sim->processes[i]);
    }
    sim_world_fini(sim);
    for (size_t i = 0; i < sim->manifest_count; i++) {
        sim_manifest_unref(sim->manifests[i]);
    }
    free(sim->manifests);
    sim_network_destroy(sim->network);
    sim_etcd_destroy(sim->etcd);
    sim_disk_destroy(sim->disk);
    sim_faults_destroy(sim->faults);
    sim_invariants_destroy(sim->invariants);
    sim_reference_destroy(sim->reference);
    free(sim);
}

/* Somebody stops what is left of a job that rests, and starts everything again. */
static void resume(struct sim *sim, struct sim_process *nobody, void *data, uint64_t number)
{
    (void)nobody;
    (void)data;
    (void)number;
    sim_say(sim, NULL, "resumes the job");
    for (unsigned i = 0; i < sim->process_count; i++) {
        struct sim_process *process = &sim->processes[i];
        if (process->incarnation != 0) {
            sim_supervisor_kill(sim, process, false, sim_draw(sim, SIM_SECOND));
        }
    }
    sim->resuming = false;
}

/* Done is written, and every worker has heard of it. */
static bool is_over(struct sim *sim)
{
    sim_invariants_look(sim);
    if (sim_job_state(sim, "failed") && (sim->lie.found || sim->lie.reported)) {
        return true;
    }
    if (sim_job_state(sim, "failed")) {
        sim_fail(sim, "the job does not fail", "its state in etcd is failed");
    }
    if (sim_job_state(sim, "paused") && !sim->resuming) {
        sim->resuming = true;
        sim_after(sim, SIM_SECOND + sim_draw(sim, 2 * SIM_SECOND),
                  &(struct sim_call){.run = resume});
    }
    if (!sim_job_state(sim, "done")) {
        return false;
    }
    for (unsigned i = 0; i < sim->process_count; i++) {
        const struct sim_process *process = &sim->processes[i];
        if (process->role == SIM_WORKER && !process->over && !process->retired) {
            return false;
        }
    }
    sim_invariants_done(sim);
    return true;
}

static void live(struct sim *sim)
{
    uint64_t steps = kelp_control_total_steps(&sim->job, &sim->plan);
    uint64_t work_us = steps * sim->job.cluster.lanes * sim->profile.lane_us;
    uint64_t bound_us = sim->profile.faults_end + 4 * work_us + BOUND_US;
    sim_profile_say(sim);
    for (unsigned i = 0; i < sim->process_count; i++) {
        sim_after(sim, sim_draw(sim, STARTS_US), &(struct sim_call){.run = start, .number = i});
    }
    sim_launcher_begin(sim);
    sim_faults_begin(sim);
    while (!is_over(sim)) {
        for (int i = 0; i < EVENTS_BETWEEN; i++) {
            if (!sim_next(sim) || sim->now > bound_us) {
                sim_waiting_fail(sim);
            }
        }
    }
    sim_say(sim, NULL, "is over: %s",
            sim->lie.found || sim_job_state(sim, "failed") ? "two workers differ"
            : sim->lie.apart ? "partitions were apart, and the digest is that of the quiet run"
            : sim_invariants_may_miss_lie(sim) ? "what would show a lie may be lost"
                                               : "the digest is that of the quiet run");
}

bool sim_run(uint64_t seed, struct sim_story *story, uint64_t counts[SIM_COUNT_COUNT],
             char ret_failure[512])
{
    struct sim *sim = create(seed, story);
    (void)signal(SIGABRT, on_abort);
    running = sim;
    if (sigsetjmp(sim->failed, 1) != 0) {
        running = NULL;
        memcpy(ret_failure, sim->failure, sizeof(sim->failure));
        return false;
    }
    live(sim);
    running = NULL;
    for (int i = 0; i < SIM_COUNT_COUNT; i++) {
        counts[i] += sim->counts[i];
    }
    destroy(sim);
    return true;
}
