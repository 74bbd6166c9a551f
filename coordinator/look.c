#include "coordinator/look.h"

#include "coordinator/parts.h"

_Static_assert(KELP_FIGURE_EVENTS_LAST - KELP_FIGURE_EVENTS + 1 == KELP_EVENT_KIND_COUNT,
               "each kind of event has a figure");
_Static_assert(KELP_FIGURE_JOB_SLOW_SHARD - KELP_FIGURE_JOB_SLOW_READING ==
                   KELP_SLOW_SHARD - KELP_SLOW_READING,
               "each part in which somebody is slow has a figure");

/* ---- the job, as its leader knows it ---- */

/* Reset the figures that only a leader knows. */
static void forget_job(struct kelp_figures *figures)
{
    for (int i = KELP_FIGURE_JOB_STARTING; i <= KELP_FIGURE_JOB_SLOW_SHARD; i++) {
        kelp_figures_set(figures, (enum kelp_figure)i, KELP_FIGURE_NONE);
    }
}

static void set_slow(const struct kelp_term *term, struct kelp_figures *figures)
{
    struct kelp_membership_slow found;

    (void)kelp_membership_slowest(&term->membership, term->now_ms, &found);
    for (int part = KELP_SLOW_READING; part < KELP_SLOW_PART_COUNT; part++) {
        kelp_figures_set(
            figures, (enum kelp_figure)(KELP_FIGURE_JOB_SLOW_READING + part - KELP_SLOW_READING),
            (int)found.slow.part == part ? found.slow.excess_us : 0);
    }
}

static enum kelp_figure state_figure(const struct kelp_term *term)
{
    switch (term->placement.state) {
    case KELP_PLACEMENT_RUNNING:
        return KELP_FIGURE_JOB_RUNNING;
    case KELP_PLACEMENT_DONE:
        return KELP_FIGURE_JOB_DONE;
    case KELP_PLACEMENT_PAUSED:
        return KELP_FIGURE_JOB_PAUSED;
    case KELP_PLACEMENT_FAILED:
        return KELP_FIGURE_JOB_FAILED;
    case KELP_PLACEMENT_WAITING:
    case KELP_PLACEMENT_OPENING:
    case KELP_PLACEMENT_LOADING:
    case KELP_PLACEMENT_STATE_COUNT:
        break;
    }
    return KELP_FIGURE_JOB_STARTING;
}

static void set_state(const struct kelp_term *term, struct kelp_figures *figures)
{
    for (int i = KELP_FIGURE_JOB_STARTING; i <= KELP_FIGURE_JOB_FAILED; i++) {
        kelp_figures_set(figures, (enum kelp_figure)i, i == (int)state_figure(term) ? 1 : 0);
    }
}

/* Samples of the training split in the first `step` steps. */
static uint64_t samples_before(const struct kelp_job *job, const struct kelp_plan *plan,
                               uint64_t step)
{
    const uint64_t samples = plan->samples[KELP_SPLIT_TRAIN];
    const uint64_t steps = kelp_control_steps_per_epoch(job, plan);

    return steps > 0 ? step / steps * samples + step % steps * job->train.batch_size : 0;
}

static void set_progress(const struct kelp_term *term, struct kelp_figures *figures)
{
    const struct kelp_control_word *word = &term->progress.word;
    const struct kelp_job *job = term->options.job;
    const bool planned = term->offer.state != KELP_PLAN_NONE;

    if (term->progress.word_known) {
        kelp_figures_set(figures, KELP_FIGURE_JOB_VERSION, word->version);
        kelp_figures_set(figures, KELP_FIGURE_JOB_STEP, word->step);
        kelp_figures_set(figures, KELP_FIGURE_JOB_EPOCH, word->epoch);
    }
    if (planned) {
        kelp_figures_set(figures, KELP_FIGURE_JOB_STEPS_PLANNED,
                         kelp_control_total_steps(job, term->offer.plan));
    }
    if (planned && term->progress.word_known) {
        kelp_figures_set(figures, KELP_FIGURE_JOB_SAMPLES,
                         samples_before(job, term->offer.plan, word->step));
    }
    kelp_figures_set(figures, KELP_FIGURE_JOB_RECOMPUTED, term->steps.recomputed);
    kelp_figures_set(figures, KELP_FIGURE_JOB_CONFLICTS, term->conflicts);
}

static void set_members(const struct kelp_term *term, struct kelp_figures *figures)
{
    const struct kelp_membership *members = &term->membership;
    uint64_t troubled = 0;

    for (uint32_t i = 0; i < members->count; i++) {
        const struct kelp_member *member = &members->members[i];
        troubled += member->kind == KELP_MEMBER_WORKER &&
                    (member->troubled || (member->tried && member->proofs_needed > 1));
    }
    kelp_figures_set(figures, KELP_FIGURE_JOB_WORKERS, members->counts[KELP_MEMBER_WORKER]);
    kelp_figures_set(figures, KELP_FIGURE_JOB_WORKERS_TROUBLED, troubled);
    kelp_figures_set(figures, KELP_FIGURE_JOB_SHARDS, members->counts[KELP_MEMBER_SHARD]);
    if (term->reading.done) {
        kelp_figures_set(figures, KELP_FIGURE_JOB_WORKERS_WANTED, term->size.now.workers_max);
        kelp_figures_set(figures, KELP_FIGURE_JOB_SHARDS_WANTED, term->size.now.shards);
    }
}

static void set_map(const struct kelp_term *term, struct kelp_figures *figures)
{
    const struct kelp_placement *placement = &term->placement;
    const struct kelp_map *map = &placement->map;
    const bool backed = term->options.job->cluster.replicas > 1;
    uint64_t unbacked = 0;
    uint64_t joining = 0;
    uint64_t lag = 0;

    for (uint32_t i = 0; i < map->partition_count; i++) {
        const struct kelp_replica_report *report = kelp_replicas_of(&placement->replicas, map, i);
        const struct kelp_map_partition *entry = &map->partitions[i];
        const bool in_sync = entry->backup != KELP_MAP_NOBODY && report && report->backup_in_sync;
        unbacked += backed && !in_sync ? 1 : 0;
        joining += entry->joiner != KELP_MAP_NOBODY ? 1 : 0;
        lag = report && report->lag > lag ? report->lag : lag;
    }
    kelp_figures_set(figures, KELP_FIGURE_JOB_GENERATION, map->generation);
    kelp_figures_set(figures, KELP_FIGURE_JOB_PARTITIONS, map->partition_count);
    kelp_figures_set(figures, KELP_FIGURE_JOB_UNBACKED, unbacked);
    kelp_figures_set(figures, KELP_FIGURE_JOB_JOINING, joining);
    kelp_figures_set(figures, KELP_FIGURE_JOB_LAG, lag);
}

static void set_checkpoints(const struct kelp_term *term, struct kelp_figures *figures)
{
    const struct kelp_checkpointer *from = &term->keeper.machine;
    const struct kelp_committed *newest = kelp_committed_list_newest(&from->list);

    kelp_figures_set(figures, KELP_FIGURE_JOB_CHECKPOINTS, from->committed);
    kelp_figures_set(figures, KELP_FIGURE_JOB_CHECKPOINTS_FAILED, from->failed);
    if (newest) {
        kelp_figures_set(figures, KELP_FIGURE_JOB_CHECKPOINT_STEP, newest->step);
        kelp_figures_set(figures, KELP_FIGURE_JOB_CHECKPOINT_TIME, newest->unix_ms);
    }
}

/* ---- the coordinator ---- */

static const char *why_not_ready(const struct kelp_coordinator *coordinator)
{
    const struct kelp_leadership *leadership = &coordinator->leadership;
    const struct kelp_standby *standby = &leadership->standby;

    if (!coordinator->identity.job) {
        return "the job is not in etcd yet";
    }
    if (leadership->term || (standby->state == KELP_STANDBY_LISTENING && standby->spoke)) {
        return NULL;
    }
    return "it neither leads nor hears who does";
}

void kelp_coordinator_look(struct kelp_coordinator *coordinator)
{
    struct kelp_figures *figures = coordinator->options.figures;
    const struct kelp_leadership *leadership = &coordinator->leadership;
    const struct kelp_term *term = leadership->term;

    if (!figures) {
        return;
    }
    kelp_figures_beat(figures);
    kelp_figures_ready(figures, why_not_ready(coordinator));
    kelp_figures_set(figures, KELP_FIGURE_LEADS, term ? 1 : 0);
    kelp_figures_set(figures, KELP_FIGURE_ELECTED, leadership->elected ? 1 : 0);
    kelp_figures_set(figures, KELP_FIGURE_TERMS, leadership->terms);
    kelp_figures_set(figures, KELP_FIGURE_STANDBYS, coordinator->followers.count);
    if (!term) {
        forget_job(figures);
        return;
    }
    set_state(term, figures);
    set_progress(term, figures);
    set_members(term, figures);
    set_slow(term, figures);
    set_map(term, figures);
    set_checkpoints(term, figures);
}

void kelp_coordinator_look_at(struct kelp_coordinator *coordinator, const struct kelp_event *event)
{
    struct kelp_figures *figures = coordinator->options.figures;

    kelp_figures_add(figures, (enum kelp_figure)(KELP_FIGURE_EVENTS + (int)event->kind), 1);
    if (event->kind == KELP_EVENT_CHECKPOINT) {
        kelp_figures_add(figures, KELP_FIGURE_CHECKPOINT_TIME, event->took_ms);
        kelp_figures_observe(figures, KELP_HISTOGRAM_CHECKPOINT, 1000 * (uint64_t)event->took_ms);
        kelp_figures_add(figures, KELP_FIGURE_CHECKPOINT_BYTES, coordinator->checkpoint_bytes);
    }
    if (event->kind == KELP_EVENT_PROMOTED && event->timed) {
        kelp_figures_add(figures, KELP_FIGURE_FAILOVER_TIME, event->took_ms);
    }
}
