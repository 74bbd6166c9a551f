#include "tests/sim/profile.h"

#include <string.h>

#include "tests/sim/faults.h"
#include "tests/sim/model.h"

static void draw_job(struct sim *sim)
{
    struct kelp_job *job = &sim->job;
    *job = (struct kelp_job){.name = "job", .seed = sim_draw(sim, 1000)};
    job->data.shuffle = sim_draw(sim, 2) == 0;
    job->train.epochs = (uint32_t)sim_between(sim, 1, 3);
    job->train.batch_size = (uint32_t)sim_between(sim, 1, 24);
    job->train.drop_last = sim_draw(sim, 4) == 0;
    job->train.lr = 0.0625;
    job->train.evaluate = sim_draw(sim, 3) > 0;
    job->train.schedule = sim_draw(sim, 2) == 0 ? KELP_SCHEDULE_CONSTANT : KELP_SCHEDULE_TYPE1;
    job->cluster.lanes = 1u << sim_draw(sim, 5);
    job->cluster.shards = (uint32_t)sim_between(sim, 1, SIM_SHARDS_MAX);
    job->cluster.max_shards = SIM_SHARDS_MAX;
    /* Not drawn: what a seed draws besides stays as it is. */
    job->cluster.replicas = job->cluster.shards > 1 && sim_mix(sim->seed + 43) % 3 == 0 ? 2 : 1;
    job->transport.connect_timeout_ms = 1000;
    job->transport.piece_bytes = SIM_BLOCK << sim_mix(job->seed + 37) % 8; /* not drawn, too */
    job->transport.streams =
        sim_mix(job->seed + 47) % 2 == 0 ? 1 : 2 + job->seed % 2; /* likewise */
    job->failure.detect_ms = 1000;
    job->failure.shard_wait_ms = (uint32_t)sim_between(sim, 200, 2000);
    job->failure.on_nan = sim_draw(sim, 4) == 0 ? KELP_NAN_SKIP : KELP_NAN_STOP;
    /* Not drawn: what a seed draws besides stays as it is. */
    job->train.clip_norm = sim_mix(job->seed + 31) % 6 == 0 ? 0.03125 : 0;
    job->metrics.every = (uint32_t)(sim_mix(job->seed + 41) % 5); /* not drawn, too */
    job->checkpoint.digest_steps = (uint32_t)sim_draw(sim, 6);
    job->checkpoint.steps = (uint32_t)sim_draw(sim, 8);
    job->checkpoint.interval_ms = sim_draw(sim, 3) == 0 ? 1000 : 0;
    job->checkpoint.epochs = (uint32_t)sim_draw(sim, 2);
    job->checkpoint.at_end = sim_draw(sim, 3) > 0;
    job->checkpoint.keep_last = (uint32_t)sim_between(sim, 1, 3);
    job->checkpoint.keep_best = (uint32_t)sim_draw(sim, 3);
}

static void draw_plan(struct sim *sim)
{
    struct kelp_plan *plan = &sim->plan;
    uint32_t partitions = (uint32_t)sim_between(sim, 1, SIM_PARTITIONS_MAX);
    uint64_t steps = sim_between(sim, 4, 20); /* of an epoch, about */
    *plan = (struct kelp_plan){.partition_count = partitions};
    /* Up to two blocks for each, so that the last partitions are sometimes empty. */
    plan->flat_count = SIM_BLOCK * sim_between(sim, 1, partitions + partitions / 2);
    plan->samples[KELP_SPLIT_TRAIN] =
        steps * sim->job.train.batch_size + sim_draw(sim, sim->job.train.batch_size);
    plan->samples[KELP_SPLIT_VAL] = sim_draw(sim, 12);
    plan->samples[KELP_SPLIT_TEST] = sim_draw(sim, 12);
}

/* When parts are measured, and what may end training before its last epoch. */
static void draw_turns(struct sim *sim)
{
    struct kelp_job *job = &sim->job;
    uint64_t steps = kelp_control_steps_per_epoch(job, &sim->plan);
    if (job->seed % 8 == 7) {
        job->run.mode = job->seed % 16 == 7 ? KELP_RUN_EVALUATE : KELP_RUN_PREDICT;
        job->run.part = (enum kelp_run_part)(job->seed / 16 % KELP_SPLIT_COUNT);
    }
    job->train.evaluate_epochs = (uint32_t)sim_draw(sim, 3);
    job->train.evaluate_steps = sim_draw(sim, 3) == 0 ? (uint32_t)sim_between(sim, 1, 9) : 0;
    job->train.max_steps =
        sim_draw(sim, 4) == 0 ? sim_between(sim, 1, steps * job->train.epochs) : 0;
    bool turns = job->train.evaluate_epochs > 0 || job->train.evaluate_steps > 0;
    if (turns && sim_draw(sim, 3) == 0) {
        job->train.patience = (uint32_t)sim_between(sim, 1, 3);
    }
    if (turns && sim_draw(sim, 3) == 0) {
        job->train.schedule = KELP_SCHEDULE_PLATEAU;
        job->train.plateau_patience = (uint32_t)sim_draw(sim, 2);
        job->train.plateau_factor = 0.5;
    }
    /* No worker derives a plan that the job cannot be done with, and no leader takes one. */
    if (kelp_control_check(job, &sim->plan, NULL) != KELP_OK) {
        sim->plan.samples[KELP_SPLIT_VAL] = 5;
        sim->plan.samples[KELP_SPLIT_TEST] = 7;
    }
}

static void draw_cluster(struct sim *sim)
{
    struct sim_profile *profile = &sim->profile;
    profile->shards = sim->job.cluster.shards;
    profile->workers = profile->quiet ? 1 : (unsigned)sim_between(sim, 1, SIM_WORKERS_MAX);
    profile->hosts = (unsigned)sim_between(sim, 1, 4);
    profile->idler = profile->workers > 1 && sim_mix(sim->seed + 5) % 6 == 0; /* not drawn */
    profile->zones = (unsigned)(sim_mix(sim->seed + 73) % 4);                 /* not drawn */
    profile->turning = sim_draw(sim, 2) == 0;
    profile->parts = sim_mix(sim->seed + 107) % 2 == 0;  /* not drawn */
    profile->ahead = sim_mix(sim->seed + 109) % 2 == 0;  /* neither */
    profile->disk_us = SIM_MS << (2 * sim_draw(sim, 5)); /* 1 to 256 ms */
    profile->deferred = sim_draw(sim, 2) == 0;
    profile->latency_us = sim_draw(sim, 4) == 0 ? 20 * SIM_MS : SIM_MS;
    sim->job.cluster.workers.min = (uint32_t)sim_between(sim, 1, profile->workers);
    sim->job.cluster.workers.max = profile->workers;
    /* A quiet run takes some seconds, so that faults meet training. */
    uint64_t steps = kelp_control_total_steps(&sim->job, &sim->plan);
    if (sim->job.run.mode != KELP_RUN_TRAIN) {
        steps = 10 + kelp_control_predict_blocks(&sim->job, &sim->plan);
    }
    uint64_t quiet_us = sim_between(sim, SIM_SECOND, 6 * SIM_SECOND);
    profile->lane_us = quiet_us * profile->workers / (steps * sim->job.cluster.lanes) + 1;
}

static uint32_t often_none(struct sim *sim, uint32_t most)
{
    return sim_draw(sim, 2) == 0 ? 0 : (uint32_t)sim_draw(sim, most);
}

static void draw_faults(struct sim *sim)
{
    struct sim_profile *profile = &sim->profile;
    profile->faults_end = sim_between(sim, 2 * SIM_SECOND, 20 * SIM_SECOND);
    profile->fault_gap = sim_between(sim, 50 * SIM_MS, 3 * SIM_SECOND);
    profile->late_rate = often_none(sim, 1000);
    profile->lost_rate = often_none(sim, 60);
    profile->double_rate = often_none(sim, 1000);
    profile->etcd_rate = often_none(sim, 300);
    profile->disk_rate = often_none(sim, 50);
    profile->sluggish = sim_mix(sim->seed) % 4 == 0; /* not drawn, as above */
    static const uint32_t usual[SIM_FAULT_COUNT] = {
        [SIM_FAULT_KILL_WORKER] = 10,     [SIM_FAULT_KILL_WORKERS] = 4, [SIM_FAULT_KILL_SHARD] = 6,
        [SIM_FAULT_KILL_COORDINATOR] = 6, [SIM_FAULT_PAUSE] = 8,        [SIM_FAULT_POWER_HOST] = 2,
        [SIM_FAULT_POWER_ALL] = 1,        [SIM_FAULT_SPLIT] = 5,        [SIM_FAULT_DAMAGE] = 2,
        [SIM_FAULT_REQUEST] = 4,          [SIM_FAULT_PAUSE_JOB] = 1,    [SIM_FAULT_ETCD] = 4,
        [SIM_FAULT_STREAM] = 12,
    };
    for (int i = 0; i <= SIM_FAULT_PAUSE_JOB; i++) {
        profile->weights[i] = sim_draw(sim, 4) == 0 ? 0 : usual[i];
    }
    profile->weights[SIM_FAULT_STREAM]++;               /* something */
    profile->scales = sim_mix(sim->seed + 71) % 3 == 0; /* not drawn */
    profile->weights[SIM_FAULT_SCALE] = profile->scales ? 12 : 0;
    profile->cuts = sim_mix(sim->seed + 79) % 4 == 0; /* neither */
    profile->weights[SIM_FAULT_CUT] = profile->cuts ? 12 : 0;
    profile->weights[SIM_FAULT_DRAIN] = sim_mix(sim->seed + 101) % 3 == 0 ? 8 : 0;
}

/* The world is kind but for these faults. */
static void spare(struct sim *sim)
{
    struct sim_profile *profile = &sim->profile;
    memset(profile->weights, 0, sizeof(profile->weights));
    profile->cuts = profile->scales = profile->sluggish = false;
    profile->late_rate = profile->lost_rate = profile->etcd_rate = profile->disk_rate = 0;
    sim->job.cluster.replicas = sim->job.cluster.shards > 1 ? 2 : 1;
}

/* In some runs processes are killed and nothing else goes wrong. Not drawn, as above. */
static void plan_kills(struct sim *sim)
{
    struct sim_profile *profile = &sim->profile;
    if (profile->quiet || sim_mix(sim->seed + 89) % 8 != 0) {
        return;
    }
    const bool sluggish = profile->sluggish;
    const bool scales = profile->scales;
    spare(sim);
    profile->kills = true;
    profile->sluggish = sluggish;
    profile->scales = scales;
    profile->stuck = sim_mix(sim->seed + 97) % 3 == 0;
    profile->weights[SIM_FAULT_SCALE] = scales ? 2 : 0;
    profile->weights[SIM_FAULT_KILL_SHARD] = 4;
    profile->weights[SIM_FAULT_KILL_WORKER] = 1;
    profile->weights[SIM_FAULT_KILL_COORDINATOR] = profile->stuck ? 3 : 1;
}

/* In some runs only cuts go wrong, one at a time, in a job that takes longer. Not drawn, as above.
 */
static void plan_calm(struct sim *sim)
{
    struct sim_profile *profile = &sim->profile;
    if (profile->quiet || sim_mix(sim->seed + 83) % 16 != 0) {
        return;
    }
    spare(sim);
    profile->weights[SIM_FAULT_CUT] = 1;
    profile->cuts = profile->calm = true;
    profile->kills = profile->stuck = false;
    sim->plan.samples[KELP_SPLIT_TRAIN] *= 3; /* of an epoch */
}

/* In some runs processes are drained and the size changes, and nothing goes wrong. Not drawn, as
 * above. */
static void plan_gentle(struct sim *sim)
{
    struct sim_profile *profile = &sim->profile;
    if (profile->quiet || profile->calm || profile->kills || sim_mix(sim->seed + 103) % 16 != 0) {
        return;
    }
    const bool scales = profile->scales;
    spare(sim);
    profile->gentle = true;
    profile->scales = scales;
    profile->weights[SIM_FAULT_DRAIN] = 3;
    profile->weights[SIM_FAULT_SCALE] = scales ? 1 : 0;
    sim->plan.samples[KELP_SPLIT_TRAIN] *= 3; /* of an epoch */
}

/*
 * In some runs a worker lies once, to one of the partitions, early. Else no step is skipped, and
 * nobody dies; but shards do in half of the runs, where replicas go on, and other sizes are asked
 * for. Then the others push all lanes of that step, so that the lie is found. Or it rushes
 * partition 0: that is found likewise, or partitions are apart. Not drawn, as above.
 */
static void plan_lie(struct sim *sim)
{
    struct sim_profile *profile = &sim->profile;
    const uint64_t dice = sim_mix(sim->seed + 59);
    const uint32_t lanes = sim->job.cluster.lanes;
    const uint64_t steps = kelp_control_total_steps(&sim->job, &sim->plan);
    uint32_t partitions = 0; /* that have elements */
    while (partitions < sim->plan.partition_count && sim_slice(sim, partitions).count > 0) {
        partitions++;
    }
    if (profile->quiet || profile->calm || profile->kills || profile->gentle || dice % 8 != 3 ||
        sim->job.run.mode != KELP_RUN_TRAIN || profile->workers < 2 || partitions < 2 ||
        steps < 6) {
        return;
    }
    const bool rushes = dice % 16 == 11;
    const bool moves = !rushes && sim->job.cluster.shards > 1 && (dice >> 4) % 2 == 0;
    memset(profile->weights, 0, sizeof(profile->weights));
    profile->weights[SIM_FAULT_PAUSE] = 1;
    profile->scales = profile->scales && !rushes;
    profile->weights[SIM_FAULT_SCALE] = profile->scales ? 1 : 0;
    profile->weights[SIM_FAULT_KILL_SHARD] = moves ? 1 : 0;
    profile->sluggish = false;
    profile->deferred = false; /* a sum under way that a lie replaces is lost */
    profile->lost_rate = profile->etcd_rate = profile->disk_rate = 0;
    sim->job.cluster.workers.min = profile->workers;
    sim->job.cluster.replicas = moves ? 2 : 1;
    sim->job.failure.on_nan = KELP_NAN_STOP;
    sim->job.train.clip_norm = 0;
    sim->job.checkpoint.steps = sim->job.checkpoint.interval_ms = sim->job.checkpoint.epochs = 0;
    sim->job.checkpoint.at_end = false;
    uint32_t count = lanes >> (dice >> 8) % 3;
    count = count > 0 ? count : 1;
    sim->lie = (struct sim_lie){.planned = true,
                                .about_word = (dice >> 12) % 4 == 0,
                                .step = (dice >> 16) % 3,
                                .partition = 1 + (uint32_t)((dice >> 20) % (partitions - 1)),
                                .lane_first = (uint32_t)((dice >> 28) % (lanes / count)) * count,
                                .lane_count = count,
                                .delay_us = (dice >> 40) % (2 * profile->lane_us)};
    if (rushes) {
        sim->lie.rushes = true;
        sim->job.failure.on_conflict =
            (dice >> 32) % 4 == 0 ? KELP_CONFLICT_STOP : KELP_CONFLICT_FIRST;
        sim->job.train.patience = 0; /* the job is as long as ever */
        sim->lie.about_word = false;
        sim->lie.partition = 0;
        sim->lie.lane_first = 0;
        sim->lie.lane_count = lanes;
        sim->lie.pushes = 3 + (uint32_t)((dice >> 20) % 8);
        sim->lie.gap_us = 1 + 2 * profile->latency_us;
    }
}

static void add_process(struct sim *sim, enum sim_role role, unsigned index, const char *name)
{
    struct sim_process *process = &sim->processes[sim->process_count];
    *process = (struct sim_process){.sim = sim,
                                    .role = role,
                                    .index = index,
                                    .place = sim->process_count++,
                                    .host = (unsigned)sim_draw(sim, sim->profile.hosts)};
    process->retired = (role == SIM_SHARD && index >= sim->profile.shards) ||
                       (role == SIM_WORKER && index >= sim->profile.workers);
    (void)snprintf(process->id, sizeof(process->id), "%s-%u", name, index);
}

void sim_profile_draw(struct sim *sim)
{
    sim->profile.quiet = sim_draw(sim, 20) == 0;
    draw_job(sim);
    draw_plan(sim);
    draw_turns(sim);
    draw_cluster(sim);
    if (!sim->profile.quiet) {
        draw_faults(sim);
    }
    plan_kills(sim);
    plan_calm(sim);
    plan_gentle(sim);
    plan_lie(sim);
    for (unsigned i = 0; i < SIM_COORDINATORS; i++) {
        add_process(sim, SIM_COORDINATOR, i, "coordinator");
    }
    for (unsigned i = 0; i < sim->profile.shards; i++) {
        add_process(sim, SIM_SHARD, i, "shard");
    }
    for (unsigned i = 0; i < sim->profile.workers; i++) {
        add_process(sim, SIM_WORKER, i, "worker");
    }
    for (unsigned i = sim->profile.shards; sim->profile.scales && i < SIM_SHARDS_MAX; i++) {
        add_process(sim, SIM_SHARD, i, "shard");
    }
    for (unsigned i = sim->profile.workers; sim->profile.scales && i < SIM_WORKERS_MAX; i++) {
        add_process(sim, SIM_WORKER, i, "worker");
    }
}

void sim_profile_say(struct sim *sim)
{
    const struct sim_profile *profile = &sim->profile;
    sim_say(sim, NULL, "%u lanes, %u partitions, %u shards, %u workers (%u at least), %u hosts%s",
            sim->job.cluster.lanes, sim->plan.partition_count, profile->shards, profile->workers,
            sim->job.cluster.workers.min, profile->hosts, profile->quiet ? ", no faults" : "");
    sim_say(sim, NULL, "%llu training steps in %u epochs, evaluations %s",
            (unsigned long long)kelp_control_total_steps(&sim->job, &sim->plan),
            sim->job.train.epochs, sim->job.train.evaluate ? "on" : "off");
    sim_say(sim, NULL, "faults until %.1f s; of 10000 messages %u late, %u lost, %u doubled",
            (double)profile->faults_end / 1e6, profile->late_rate, profile->lost_rate,
            profile->double_rate);
}
