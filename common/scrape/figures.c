#include "common/scrape/figures.h"

#include <inttypes.h>

#include "common/base/clock.h"
#include "common/scrape/limits.h"

/* ---- the table ---- */

const struct kelp_figure_row kelp_figure_rows[KELP_FIGURE_COUNT] = {
    [KELP_FIGURE_READY] = {"kelp_ready", NULL, KELP_FIGURE_GAUGE, KELP_FIGURE_OF_ALL, 1,
                           "1 if the process takes part in the job, as /readyz says"},
    [KELP_FIGURE_LOOP_SILENT] = {"kelp_loop_silent_seconds", NULL, KELP_FIGURE_GAUGE,
                                 KELP_FIGURE_OF_ALL, 1000,
                                 "Time since the process's event loop last ran"},
    [KELP_FIGURE_CPU] = {"kelp_process_cpu_seconds_total", NULL, KELP_FIGURE_COUNTER,
                         KELP_FIGURE_OF_ALL, 1000000, "User and system CPU time of all threads"},
    [KELP_FIGURE_MEMORY] = {"kelp_process_resident_memory_bytes", NULL, KELP_FIGURE_GAUGE,
                            KELP_FIGURE_OF_ALL, 1, "Resident memory of the process"},
    [KELP_FIGURE_STARTED] = {"kelp_process_start_time_seconds", NULL, KELP_FIGURE_GAUGE,
                             KELP_FIGURE_OF_ALL, 1000,
                             "Start time of the process, since the Unix epoch"},
    [KELP_FIGURE_CERTIFICATE_END] = {"kelp_certificate_expiry_timestamp_seconds", NULL,
                                     KELP_FIGURE_GAUGE, KELP_FIGURE_OF_ALL, 1,
                                     "Expiry of the certificate, since the Unix epoch"},
    [KELP_FIGURE_SCRAPES] = {"kelp_scrape_requests_total", NULL, KELP_FIGURE_COUNTER,
                             KELP_FIGURE_OF_ALL, 1, "Requests answered at --metrics"},
    [KELP_FIGURE_SCRAPES_REFUSED] = {"kelp_scrape_refused_total", NULL, KELP_FIGURE_COUNTER,
                                     KELP_FIGURE_OF_ALL, 1,
                                     "Connections cut off and requests refused at --metrics"},
    [KELP_FIGURE_SHARD_LED] = {"kelp_shard_partitions", "place=\"primary\"", KELP_FIGURE_GAUGE,
                               KELP_FIGURE_OF_PS, 1, "Partitions on this shard"},
    [KELP_FIGURE_SHARD_FOLLOWED] = {"kelp_shard_partitions", "place=\"follower\"",
                                    KELP_FIGURE_GAUGE, KELP_FIGURE_OF_PS, 1, NULL},
    [KELP_FIGURE_SHARD_GENERATION] = {"kelp_shard_generation", NULL, KELP_FIGURE_GAUGE,
                                      KELP_FIGURE_OF_PS, 1, "Generation being served"},
    [KELP_FIGURE_SHARD_STEP] = {"kelp_shard_step", NULL, KELP_FIGURE_GAUGE, KELP_FIGURE_OF_PS, 1,
                                "Training steps completed by the partition furthest behind"},
    [KELP_FIGURE_SHARD_PENDING] = {"kelp_shard_pending_nodes", NULL, KELP_FIGURE_GAUGE,
                                   KELP_FIGURE_OF_PS, 1,
                                   "Gradient nodes waiting for their siblings"},
    [KELP_FIGURE_SHARD_WAITING] = {"kelp_shard_waiting_pulls", NULL, KELP_FIGURE_GAUGE,
                                   KELP_FIGURE_OF_PS, 1, "Pulls waiting for the next weights"},
    [KELP_FIGURE_SHARD_LAG] = {"kelp_shard_replica_lag_versions", NULL, KELP_FIGURE_GAUGE,
                               KELP_FIGURE_OF_PS, 1,
                               "Versions by which the slowest backup of partitions led here lags"},
    [KELP_FIGURE_SHARD_PUSHES] = {"kelp_shard_pushes_total", NULL, KELP_FIGURE_COUNTER,
                                  KELP_FIGURE_OF_PS, 1, "Gradient nodes pushed to this shard"},
    [KELP_FIGURE_SHARD_DUPLICATES] = {"kelp_shard_duplicate_pushes_total", NULL,
                                      KELP_FIGURE_COUNTER, KELP_FIGURE_OF_PS, 1,
                                      "Pushes of lanes that were already known"},
    [KELP_FIGURE_SHARD_REFUSALS] = {"kelp_shard_refused_pushes_total", NULL, KELP_FIGURE_COUNTER,
                                    KELP_FIGURE_OF_PS, 1, "Pushes refused"},
    [KELP_FIGURE_SHARD_OFFERS] = {"kelp_shard_offered_lanes_total", NULL, KELP_FIGURE_COUNTER,
                                  KELP_FIGURE_OF_PS, 1, "Late lanes offered to other workers"},
    [KELP_FIGURE_SHARD_RECEIVED] = {"kelp_shard_received_bytes_total", NULL, KELP_FIGURE_COUNTER,
                                    KELP_FIGURE_OF_PS, 1,
                                    "Bytes received from workers and primaries"},
    [KELP_FIGURE_SHARD_SENT] = {"kelp_shard_sent_bytes_total", NULL, KELP_FIGURE_COUNTER,
                                KELP_FIGURE_OF_PS, 1, "Bytes sent to workers and followers"},
    [KELP_FIGURE_SHARD_COPIED] = {"kelp_shard_copied_bytes_total", NULL, KELP_FIGURE_COUNTER,
                                  KELP_FIGURE_OF_PS, 1,
                                  "Bytes of partitions copied to other shards"},
    [KELP_FIGURE_SHARD_CONFLICTS] = {"kelp_shard_conflicts_total", NULL, KELP_FIGURE_COUNTER,
                                     KELP_FIGURE_OF_PS, 1,
                                     "Conflicts between workers (failure.on_conflict: first)"},
    [KELP_FIGURE_SHARD_STREAMS_REFUSED] = {"kelp_shard_refused_streams_total", NULL,
                                           KELP_FIGURE_COUNTER, KELP_FIGURE_OF_PS, 1,
                                           "Streams and calls refused or cut off"},
    [KELP_FIGURE_WORKER_GENERATION] = {"kelp_worker_generation", NULL, KELP_FIGURE_GAUGE,
                                       KELP_FIGURE_OF_WORKER, 1, "Generation the worker is in"},
    [KELP_FIGURE_WORKER_VERSION] = {"kelp_worker_version", NULL, KELP_FIGURE_GAUGE,
                                    KELP_FIGURE_OF_WORKER, 1, "Entry of the schedule in progress"},
    [KELP_FIGURE_WORKER_STEP] = {"kelp_worker_step", NULL, KELP_FIGURE_GAUGE, KELP_FIGURE_OF_WORKER,
                                 1, "Training steps completed before that entry"},
    [KELP_FIGURE_WORKER_ASSIGNED] = {"kelp_worker_assigned_lanes", NULL, KELP_FIGURE_GAUGE,
                                     KELP_FIGURE_OF_WORKER, 1,
                                     "Lanes assigned to the worker; 0 for a spare"},
    [KELP_FIGURE_WORKER_ENTRIES] = {"kelp_worker_entries_total", NULL, KELP_FIGURE_COUNTER,
                                    KELP_FIGURE_OF_WORKER, 1,
                                    "Entries for which the worker computed lanes"},
    [KELP_FIGURE_WORKER_LANES] = {"kelp_worker_lanes_total", NULL, KELP_FIGURE_COUNTER,
                                  KELP_FIGURE_OF_WORKER, 1, "Lanes computed"},
    [KELP_FIGURE_WORKER_LATE_LANES] = {"kelp_worker_late_lanes_total", NULL, KELP_FIGURE_COUNTER,
                                       KELP_FIGURE_OF_WORKER, 1,
                                       "Lanes computed for other workers that were late"},
    [KELP_FIGURE_WORKER_SAMPLES] = {"kelp_worker_samples_total", NULL, KELP_FIGURE_COUNTER,
                                    KELP_FIGURE_OF_WORKER, 1, "Samples computed"},
    [KELP_FIGURE_WORKER_DATA] = {"kelp_worker_seconds_total", "part=\"data\"", KELP_FIGURE_COUNTER,
                                 KELP_FIGURE_OF_WORKER, 1000000,
                                 "Time reading samples, computing, encoding and waiting"},
    [KELP_FIGURE_WORKER_COMPUTE] = {"kelp_worker_seconds_total", "part=\"compute\"",
                                    KELP_FIGURE_COUNTER, KELP_FIGURE_OF_WORKER, 1000000, NULL},
    [KELP_FIGURE_WORKER_PUSH] = {"kelp_worker_seconds_total", "part=\"push\"", KELP_FIGURE_COUNTER,
                                 KELP_FIGURE_OF_WORKER, 1000000, NULL},
    [KELP_FIGURE_WORKER_WAIT] = {"kelp_worker_seconds_total", "part=\"wait\"", KELP_FIGURE_COUNTER,
                                 KELP_FIGURE_OF_WORKER, 1000000, NULL},
    [KELP_FIGURE_WORKER_RECEIVED] = {"kelp_worker_received_bytes_total", NULL, KELP_FIGURE_COUNTER,
                                     KELP_FIGURE_OF_WORKER, 1, "Bytes received from shards"},
    [KELP_FIGURE_WORKER_SENT] = {"kelp_worker_sent_bytes_total", NULL, KELP_FIGURE_COUNTER,
                                 KELP_FIGURE_OF_WORKER, 1, "Bytes sent to shards"},
    [KELP_FIGURE_WORKER_REFUSALS] = {"kelp_worker_refused_pushes_total", NULL, KELP_FIGURE_COUNTER,
                                     KELP_FIGURE_OF_WORKER, 1, "Pushes refused by shards"},
    [KELP_FIGURE_LEADS] = {"kelp_coordinator_leads", NULL, KELP_FIGURE_GAUGE,
                           KELP_FIGURE_OF_COORDINATOR, 1, "1 if this coordinator leads"},
    [KELP_FIGURE_ELECTED] = {"kelp_coordinator_elected", NULL, KELP_FIGURE_GAUGE,
                             KELP_FIGURE_OF_COORDINATOR, 1,
                             "1 if this coordinator holds the election's key in etcd"},
    [KELP_FIGURE_TERMS] = {"kelp_coordinator_terms_total", NULL, KELP_FIGURE_COUNTER,
                           KELP_FIGURE_OF_COORDINATOR, 1, "Times this coordinator became leader"},
    [KELP_FIGURE_STANDBYS] = {"kelp_coordinator_followers", NULL, KELP_FIGURE_GAUGE,
                              KELP_FIGURE_OF_COORDINATOR, 1,
                              "Standby coordinators following this one"},
    [KELP_FIGURE_ETCD_TROUBLES] = {"kelp_coordinator_etcd_troubles_total", NULL,
                                   KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1,
                                   "Failed or unexpected answers from etcd"},
    [KELP_FIGURE_COORDINATOR_STREAMS_REFUSED] = {"kelp_coordinator_refused_streams_total", NULL,
                                                 KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1,
                                                 "Streams and calls refused or cut off"},
    [KELP_FIGURE_CHECKPOINT_TIME] = {"kelp_coordinator_checkpoint_seconds_total", NULL,
                                     KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1000,
                                     "Time from order to commit of checkpoints"},
    [KELP_FIGURE_CHECKPOINT_BYTES] = {"kelp_coordinator_checkpoint_bytes_total", NULL,
                                      KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1,
                                      "Bytes of committed checkpoints"},
    [KELP_FIGURE_FAILOVER_TIME] = {"kelp_coordinator_promotion_seconds_total", NULL,
                                   KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1000,
                                   "Time from a shard's loss until its backups led"},
    [KELP_FIGURE_EVENTS] = {"kelp_coordinator_events_total", "event=\"leader\"",
                            KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1,
                            "Changes, by the names of kelp events"},
    [KELP_FIGURE_EVENTS + 1] = {"kelp_coordinator_events_total", "event=\"leader-ended\"",
                                KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 2] = {"kelp_coordinator_events_total", "event=\"worker-joined\"",
                                KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 3] = {"kelp_coordinator_events_total", "event=\"worker-left\"",
                                KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 4] = {"kelp_coordinator_events_total", "event=\"worker-lost\"",
                                KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 5] = {"kelp_coordinator_events_total", "event=\"shard-joined\"",
                                KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 6] = {"kelp_coordinator_events_total", "event=\"shard-lost\"",
                                KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 7] = {"kelp_coordinator_events_total", "event=\"draining\"",
                                KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 8] = {"kelp_coordinator_events_total", "event=\"drained\"",
                                KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 9] = {"kelp_coordinator_events_total", "event=\"generation\"",
                                KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 10] = {"kelp_coordinator_events_total", "event=\"promoted\"",
                                 KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 11] = {"kelp_coordinator_events_total", "event=\"moved\"",
                                 KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 12] = {"kelp_coordinator_events_total", "event=\"loaded\"",
                                 KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 13] = {"kelp_coordinator_events_total", "event=\"checkpoint\"",
                                 KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 14] = {"kelp_coordinator_events_total", "event=\"checkpoint-failed\"",
                                 KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_EVENTS + 15] = {"kelp_coordinator_events_total", "event=\"state\"",
                                 KELP_FIGURE_COUNTER, KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_JOB_STARTING] = {"kelp_job_state", "state=\"starting\"", KELP_FIGURE_GAUGE,
                                  KELP_FIGURE_OF_COORDINATOR, 1,
                                  "1 for the state that the job is in"},
    [KELP_FIGURE_JOB_RUNNING] = {"kelp_job_state", "state=\"running\"", KELP_FIGURE_GAUGE,
                                 KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_JOB_PAUSED] = {"kelp_job_state", "state=\"paused\"", KELP_FIGURE_GAUGE,
                                KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_JOB_DONE] = {"kelp_job_state", "state=\"done\"", KELP_FIGURE_GAUGE,
                              KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_JOB_FAILED] = {"kelp_job_state", "state=\"failed\"", KELP_FIGURE_GAUGE,
                                KELP_FIGURE_OF_COORDINATOR, 1, NULL},
    [KELP_FIGURE_JOB_GENERATION] = {"kelp_job_generation", NULL, KELP_FIGURE_GAUGE,
                                    KELP_FIGURE_OF_COORDINATOR, 1,
                                    "Generation of the partition map"},
    [KELP_FIGURE_JOB_VERSION] = {"kelp_job_version", NULL, KELP_FIGURE_GAUGE,
                                 KELP_FIGURE_OF_COORDINATOR, 1,
                                 "Completed entries of the schedule"},
    [KELP_FIGURE_JOB_STEP] = {"kelp_job_step", NULL, KELP_FIGURE_GAUGE, KELP_FIGURE_OF_COORDINATOR,
                              1, "Completed training steps"},
    [KELP_FIGURE_JOB_STEPS_PLANNED] = {"kelp_job_steps_planned", NULL, KELP_FIGURE_GAUGE,
                                       KELP_FIGURE_OF_COORDINATOR, 1,
                                       "Training steps of the whole job"},
    [KELP_FIGURE_JOB_EPOCH] = {"kelp_job_epoch", NULL, KELP_FIGURE_GAUGE,
                               KELP_FIGURE_OF_COORDINATOR, 1, "Epoch in progress, from 0"},
    [KELP_FIGURE_JOB_SAMPLES] =
        {"kelp_job_samples", NULL, KELP_FIGURE_GAUGE, KELP_FIGURE_OF_COORDINATOR, 1,
         "Training samples of the completed steps; decreases with a restore"},
    [KELP_FIGURE_JOB_WORKERS] = {"kelp_job_workers", NULL, KELP_FIGURE_GAUGE,
                                 KELP_FIGURE_OF_COORDINATOR, 1, "Workers connected"},
    [KELP_FIGURE_JOB_WORKERS_WANTED] = {"kelp_job_workers_wanted", NULL, KELP_FIGURE_GAUGE,
                                        KELP_FIGURE_OF_COORDINATOR, 1, "Workers wanted"},
    [KELP_FIGURE_JOB_WORKERS_TROUBLED] = {"kelp_job_workers_troubled", NULL, KELP_FIGURE_GAUGE,
                                          KELP_FIGURE_OF_COORDINATOR, 1,
                                          "Workers that are stuck or have done no work"},
    [KELP_FIGURE_JOB_SHARDS] = {"kelp_job_shards", NULL, KELP_FIGURE_GAUGE,
                                KELP_FIGURE_OF_COORDINATOR, 1, "Shards connected"},
    [KELP_FIGURE_JOB_SHARDS_WANTED] = {"kelp_job_shards_wanted", NULL, KELP_FIGURE_GAUGE,
                                       KELP_FIGURE_OF_COORDINATOR, 1, "Shards wanted"},
    [KELP_FIGURE_JOB_PARTITIONS] = {"kelp_job_partitions", NULL, KELP_FIGURE_GAUGE,
                                    KELP_FIGURE_OF_COORDINATOR, 1, "Partitions of the weights"},
    [KELP_FIGURE_JOB_UNBACKED] = {"kelp_job_partitions_unbacked", NULL, KELP_FIGURE_GAUGE,
                                  KELP_FIGURE_OF_COORDINATOR, 1,
                                  "Partitions that lack a backup in sync"},
    [KELP_FIGURE_JOB_JOINING] = {"kelp_job_partitions_moving", NULL, KELP_FIGURE_GAUGE,
                                 KELP_FIGURE_OF_COORDINATOR, 1,
                                 "Partitions being copied to another shard"},
    [KELP_FIGURE_JOB_LAG] = {"kelp_job_replica_lag_versions", NULL, KELP_FIGURE_GAUGE,
                             KELP_FIGURE_OF_COORDINATOR, 1,
                             "Versions by which the slowest follower lags"},
    [KELP_FIGURE_JOB_RECOMPUTED] = {"kelp_job_steps_recomputed", NULL, KELP_FIGURE_GAUGE,
                                    KELP_FIGURE_OF_COORDINATOR, 1,
                                    "Training steps recomputed because of restores, over the run"},
    [KELP_FIGURE_JOB_CHECKPOINT_STEP] = {"kelp_job_checkpoint_step", NULL, KELP_FIGURE_GAUGE,
                                         KELP_FIGURE_OF_COORDINATOR, 1,
                                         "Training steps in the newest committed checkpoint"},
    [KELP_FIGURE_JOB_CHECKPOINT_TIME] = {"kelp_job_checkpoint_timestamp_seconds", NULL,
                                         KELP_FIGURE_GAUGE, KELP_FIGURE_OF_COORDINATOR, 1000,
                                         "Unix time of the newest checkpoint's commit"},
    [KELP_FIGURE_JOB_CHECKPOINTS] = {"kelp_job_checkpoints_committed", NULL, KELP_FIGURE_GAUGE,
                                     KELP_FIGURE_OF_COORDINATOR, 1,
                                     "Checkpoints committed since this coordinator became leader"},
    [KELP_FIGURE_JOB_CHECKPOINTS_FAILED] =
        {"kelp_job_checkpoints_failed", NULL, KELP_FIGURE_GAUGE, KELP_FIGURE_OF_COORDINATOR, 1,
         "Checkpoints failed since this coordinator became leader"},
    [KELP_FIGURE_JOB_CONFLICTS] =
        {"kelp_job_conflicts", NULL, KELP_FIGURE_GAUGE, KELP_FIGURE_OF_COORDINATOR, 1,
         "Conflicts between two workers' gradients, as shards reported them"},
    [KELP_FIGURE_JOB_SLOW_READING] = {"kelp_job_slow_seconds", "part=\"reading\"",
                                      KELP_FIGURE_GAUGE, KELP_FIGURE_OF_COORDINATOR, 1000000,
                                      "Time that the slowest worker or shard adds to a step"},
    [KELP_FIGURE_JOB_SLOW_COMPUTING] = {"kelp_job_slow_seconds", "part=\"computing\"",
                                        KELP_FIGURE_GAUGE, KELP_FIGURE_OF_COORDINATOR, 1000000,
                                        NULL},
    [KELP_FIGURE_JOB_SLOW_PUSHING] = {"kelp_job_slow_seconds", "part=\"pushing\"",
                                      KELP_FIGURE_GAUGE, KELP_FIGURE_OF_COORDINATOR, 1000000, NULL},
    [KELP_FIGURE_JOB_SLOW_SHARD] = {"kelp_job_slow_seconds", "part=\"shard\"", KELP_FIGURE_GAUGE,
                                    KELP_FIGURE_OF_COORDINATOR, 1000000, NULL},
};

/* Two bounds for each power of ten, since each bound is a series for each label of each process.
 * Steps take from 0.1 ms to half a minute. */
static const struct kelp_histogram_bound step_bounds[KELP_HISTOGRAM_BOUNDS] = {
    {100, "0.0001"}, {300, "0.0003"}, {1000, "0.001"},  {3000, "0.003"},
    {10000, "0.01"}, {30000, "0.03"}, {100000, "0.1"},  {300000, "0.3"},
    {1000000, "1"},  {3000000, "3"},  {10000000, "10"}, {30000000, "30"},
};

/* Checkpoints of a hundredth of a second to an hour. */
static const struct kelp_histogram_bound checkpoint_bounds[KELP_HISTOGRAM_BOUNDS] = {
    {10000, "0.01"},    {30000, "0.03"},    {100000, "0.1"},      {300000, "0.3"},
    {1000000, "1"},     {3000000, "3"},     {10000000, "10"},     {30000000, "30"},
    {100000000, "100"}, {300000000, "300"}, {1000000000, "1000"}, {3600000000, "3600"},
};

const struct kelp_histogram_row kelp_histogram_rows[KELP_HISTOGRAM_COUNT] = {
    [KELP_HISTOGRAM_SHARD_STEP] =
        {"kelp_shard_step_seconds", NULL, KELP_FIGURE_OF_PS, step_bounds,
         "Time from a partition's first push of a step to its new weights"},
    [KELP_HISTOGRAM_WORKER_DATA] = {"kelp_worker_step_seconds", "part=\"data\"",
                                    KELP_FIGURE_OF_WORKER, step_bounds,
                                    "Time of a step: samples, computing, encoding, waiting"},
    [KELP_HISTOGRAM_WORKER_COMPUTE] = {"kelp_worker_step_seconds", "part=\"compute\"",
                                       KELP_FIGURE_OF_WORKER, step_bounds, NULL},
    [KELP_HISTOGRAM_WORKER_PUSH] = {"kelp_worker_step_seconds", "part=\"push\"",
                                    KELP_FIGURE_OF_WORKER, step_bounds, NULL},
    [KELP_HISTOGRAM_WORKER_WAIT] = {"kelp_worker_step_seconds", "part=\"wait\"",
                                    KELP_FIGURE_OF_WORKER, step_bounds, NULL},
    [KELP_HISTOGRAM_CHECKPOINT] = {"kelp_coordinator_checkpoint_duration_seconds", NULL,
                                   KELP_FIGURE_OF_COORDINATOR, checkpoint_bounds,
                                   "Time from order to commit of checkpoints"},
};

/* ---- numbers ---- */

void kelp_figures_init(struct kelp_figures *figures)
{
    *figures = (struct kelp_figures){.why_not_ready = "it starts"};
    for (int i = 0; i < KELP_FIGURE_COUNT; i++) {
        const bool gauge = kelp_figure_rows[i].type == KELP_FIGURE_GAUGE;
        figures->values[i] = gauge && i != KELP_FIGURE_READY ? KELP_FIGURE_NONE : 0;
    }
}

void kelp_figures_set(struct kelp_figures *figures, enum kelp_figure figure, uint64_t value)
{
    if (figures) {
        __atomic_store_n(&figures->values[figure], value, __ATOMIC_RELAXED);
    }
}

void kelp_figures_add(struct kelp_figures *figures, enum kelp_figure figure, uint64_t value)
{
    if (figures) {
        (void)__atomic_fetch_add(&figures->values[figure], value, __ATOMIC_RELAXED);
    }
}

uint64_t kelp_figures_get(const struct kelp_figures *figures, enum kelp_figure figure)
{
    return __atomic_load_n(&figures->values[figure], __ATOMIC_RELAXED);
}

void kelp_figures_observe(struct kelp_figures *figures, enum kelp_histogram histogram, uint64_t us)
{
    const struct kelp_histogram_bound *bounds = kelp_histogram_rows[histogram].bounds;
    int at = 0;

    if (!figures) {
        return;
    }
    while (at < KELP_HISTOGRAM_BOUNDS && us > bounds[at].us) {
        at++;
    }
    (void)__atomic_fetch_add(&figures->histograms[histogram].counts[at], 1, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&figures->histograms[histogram].sum_us, us, __ATOMIC_RELAXED);
}

/* ---- health ---- */

void kelp_figures_beat(struct kelp_figures *figures)
{
    if (figures) {
        __atomic_store_n(&figures->beat_ms, kelp_clock_ms(), __ATOMIC_RELAXED);
    }
}

static uint64_t beat_ms(const struct kelp_figures *figures)
{
    return __atomic_load_n(&figures->beat_ms, __ATOMIC_RELAXED);
}

/* Milliseconds since the loop ran; it has begun to. */
static uint64_t silence_ms(const struct kelp_figures *figures)
{
    const uint64_t then_ms = beat_ms(figures);
    const uint64_t now_ms = kelp_clock_ms();

    return now_ms > then_ms ? now_ms - then_ms : 0;
}

bool kelp_figures_healthy(const struct kelp_figures *figures)
{
    return beat_ms(figures) == 0 || silence_ms(figures) < KELP_SCRAPE_LOOP_MS;
}

void kelp_figures_ready(struct kelp_figures *figures, const char *why)
{
    if (figures) {
        __atomic_store_n(&figures->why_not_ready, why, __ATOMIC_RELAXED);
        kelp_figures_set(figures, KELP_FIGURE_READY, why ? 0 : 1);
    }
}

const char *kelp_figures_why_not_ready(const struct kelp_figures *figures)
{
    return __atomic_load_n(&figures->why_not_ready, __ATOMIC_RELAXED);
}

/* ---- the text ---- */

void kelp_figures_print_label(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"') {
            (void)fputc('\\', out);
        }
        if (*text == '\n') {
            (void)fputs("\\n", out);
        } else {
            (void)fputc(*text, out);
        }
    }
}

static void print_label(FILE *out, const char *before, const char *name, const char *text)
{
    (void)fprintf(out, "%s%s=\"", before, name);
    kelp_figures_print_label(out, text);
    (void)fputc('"', out);
}

static void print_process(const struct kelp_figures_process *process, FILE *out)
{
    (void)fputs("# HELP kelp_build_info What the process was built from; always 1\n"
                "# TYPE kelp_build_info gauge\n",
                out);
    print_label(out, "kelp_build_info{", "version", process->version);
    print_label(out, ",", "commit", process->commit);
    (void)fputs("} 1\n"
                "# HELP kelp_process_info Who the process is; always 1\n"
                "# TYPE kelp_process_info gauge\n",
                out);
    print_label(out, "kelp_process_info{", "kelp_job", process->job);
    print_label(out, ",", "role", process->role);
    print_label(out, ",", "id", process->id);
    (void)fputs("} 1\n", out);
}

static void print_value(uint64_t value, uint32_t scale, FILE *out)
{
    const uint64_t whole = value / scale;
    const unsigned part = (unsigned)(value % scale);

    switch (scale) {
    case 1000:
        (void)fprintf(out, "%" PRIu64 ".%03u\n", whole, part);
        break;
    case 1000000:
        (void)fprintf(out, "%" PRIu64 ".%06u\n", whole, part);
        break;
    default:
        (void)fprintf(out, "%" PRIu64 "\n", whole);
    }
}

/* Whether the row has the same name as the row before. */
static bool goes_on(int figure)
{
    return figure > 0 && !kelp_figure_rows[figure].help;
}

/* Is a figure of this name told? */
static bool is_told(const struct kelp_figures *figures, int first)
{
    int figure = first;

    do {
        if (kelp_figures_get(figures, (enum kelp_figure)figure) != KELP_FIGURE_NONE) {
            return true;
        }
        figure++;
    } while (figure < KELP_FIGURE_COUNT && goes_on(figure));
    return false;
}

static void print_figure(const struct kelp_figures *figures, int figure, FILE *out)
{
    const struct kelp_figure_row *row = &kelp_figure_rows[figure];
    uint64_t value = kelp_figures_get(figures, (enum kelp_figure)figure);

    if (figure == KELP_FIGURE_LOOP_SILENT && beat_ms(figures) > 0) {
        value = silence_ms(figures);
    }
    if (row->help && (value != KELP_FIGURE_NONE || is_told(figures, figure))) {
        (void)fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", row->name, row->help, row->name,
                      row->type == KELP_FIGURE_GAUGE ? "gauge" : "counter");
    }
    if (value != KELP_FIGURE_NONE) {
        (void)fputs(row->name, out);
        if (row->label) {
            (void)fprintf(out, "{%s}", row->label);
        }
        (void)fputc(' ', out);
        print_value(value, row->scale, out);
    }
}

/* "kelp_worker_step_seconds_sum{part="data"} " */
static void print_histogram_name(const struct kelp_histogram_row *row, const char *end, FILE *out)
{
    (void)fprintf(out, "%s_%s", row->name, end);
    if (row->label) {
        (void)fprintf(out, "{%s}", row->label);
    }
    (void)fputc(' ', out);
}

/* Buckets are cumulative, and the count is that of the last bucket, even while other threads
 * add. */
static void print_histogram(const struct kelp_figures *figures, int histogram, FILE *out)
{
    const struct kelp_histogram_row *row = &kelp_histogram_rows[histogram];
    const char *label = row->label ? row->label : "";
    uint64_t count = 0;

    if (row->help) {
        (void)fprintf(out, "# HELP %s %s\n# TYPE %s histogram\n", row->name, row->help, row->name);
    }
    for (int i = 0; i <= KELP_HISTOGRAM_BOUNDS; i++) {
        count += __atomic_load_n(&figures->histograms[histogram].counts[i], __ATOMIC_RELAXED);
        (void)fprintf(out, "%s_bucket{%s%sle=\"%s\"} %" PRIu64 "\n", row->name, label,
                      row->label ? "," : "",
                      i < KELP_HISTOGRAM_BOUNDS ? row->bounds[i].text : "+Inf", count);
    }
    print_histogram_name(row, "sum", out);
    print_value(__atomic_load_n(&figures->histograms[histogram].sum_us, __ATOMIC_RELAXED), 1000000,
                out);
    print_histogram_name(row, "count", out);
    print_value(count, 1, out);
}

void kelp_figures_print(const struct kelp_figures *figures,
                        const struct kelp_figures_process *process, FILE *out)
{
    print_process(process, out);
    for (int i = 0; i < KELP_FIGURE_COUNT; i++) {
        if (kelp_figure_rows[i].of & process->of) {
            print_figure(figures, i, out);
        }
    }
    for (int i = 0; i < KELP_HISTOGRAM_COUNT; i++) {
        if (kelp_histogram_rows[i].of & process->of) {
            print_histogram(figures, i, out);
        }
    }
}
