#include "cli/launch/launcher.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cluster/run_client.h"
#include "cli/cluster/status_view.h"
#include "cli/launch/launcher_internal.h"
#include "common/base/clock.h"
#include "common/program/options/options.h"

#define SILENT_MS 3000 /* without an answer of the coordinator before the display says so */

const char *kelp__launch_etcd_url(const struct kelp_launcher *launcher)
{
    return launcher->launch->etcd_url ? launcher->launch->etcd_url : launcher->etcd_url;
}

/* ---- starting ------------------------------------------------------------------------------ */

/* True when the run has been asked to stop. */
static bool stopping(const struct kelp_launcher *launcher)
{
    return kelp_guard_stage(launcher->guard) == KELP_GUARD_STOP;
}

static bool asked_to_stop(void *user)
{
    return stopping(user);
}

/* For the shared memory of a node's processes. They have ports, so they can do without it unless
 * the job demands it. */
static kelp_status make_shm_folder(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    const enum kelp_transport kind = launcher->launch->job->transport.kind;
    struct kelp_error error;

    if (kind == KELP_TRANSPORT_GRPC || launcher->launch->shm_folder) {
        return KELP_OK;
    }
    const kelp_status status =
        kelp_socket_folder_make(launcher->sockets, &launcher->sockets_held, &error);
    return status == KELP_OK || kind == KELP_TRANSPORT_AUTO
               ? KELP_OK
               : kelp_fail(reterr, status, "transport.kind: shm: %s; --shm-folder names a folder",
                           error.text);
}

/* Remove what a killed launcher left. */
static kelp_status make_sockets(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    struct kelp_run_cluster before;

    if (launcher->launch->node && launcher->launch->certs) {
        return make_shm_folder(launcher, reterr);
    }
    if (!launcher->launch->node &&
        kelp_run_cluster_read(launcher->launch->run->path, &before, NULL) == KELP_OK) {
        kelp_socket_folder_remove(before.sockets);
    }
    return kelp_socket_folder_make(launcher->sockets, &launcher->sockets_held, reterr);
}

static kelp_status start_etcd(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    char folder[KELP_RUN_PATH_MAX + 64];
    char log[KELP_RUN_PATH_MAX + 64];
    const char *run = launcher->launch->run->path;

    (void)snprintf(folder, sizeof(folder), "%s/etcd", run);
    (void)snprintf(log, sizeof(log), "%s/logs/etcd.log", run);
    /* On a socket even if our processes have ports: no other host needs it. */
    struct kelp_etcd_server_options options = {.data_folder = folder,
                                               .log_path = log,
                                               .program = launcher->launch->etcd_program,
                                               .socket_folder = launcher->sockets,
                                               .client_port = launcher->etcd_port,
                                               .given_up = asked_to_stop,
                                               .user = launcher};
    kelp_status status = kelp_etcd_server_start(&options, &launcher->etcd, reterr);
    if (status == KELP_OK) {
        launcher->etcd_port = kelp_etcd_server_port(launcher->etcd);
        launcher->etcd_start_ms = kelp_clock_ms();
        (void)snprintf(launcher->etcd_url, sizeof(launcher->etcd_url), "%s",
                       kelp_etcd_server_url(launcher->etcd));
    }
    return status;
}

/* MAX workers, less those that --at adds later, but no fewer than the job needs to begin. */
static uint32_t workers_at_start(const struct kelp_launch *launch)
{
    uint32_t later = kelp_trials_added_workers(launch->trials);
    uint32_t most = launch->job->cluster.workers.max;
    uint32_t least = launch->job->cluster.workers.min;

    return most > later && most - later > least ? most - later : least;
}

/* NULL: no process has ports, or those with ports do not share memory. */
static const char *shm_folder(const struct kelp_launcher *launcher)
{
    const struct kelp_launch *launch = launcher->launch;

    if (!launch->node || !launch->certs) {
        return NULL;
    }
    return launch->shm_folder             ? launch->shm_folder
           : launcher->sockets[0] != '\0' ? launcher->sockets
                                          : NULL;
}

static kelp_status init_children(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    const struct kelp_launch *launch = launcher->launch;
    const struct kelp_job *job = launch->job;
    struct kelp_children_options options = {
        .bin_folder = launch->bin_folder,
        .worker_program = launch->worker_program,
        .run_path = launch->run->path,
        .etcd_url = kelp__launch_etcd_url(launcher),
        .job = job->name,
        .log_level = launch->log_level,
        .listen = launch->listen,
        .sockets = launch->node && launch->certs ? "" : launcher->sockets,
        .shm_folder = shm_folder(launcher),
        .certs = launcher->roles[0] != '\0' ? launcher->roles : NULL,
        .spec_sha256 = launcher->spec_sha256,
        .gpus = launch->gpus,
        .force = launch->force,
        .host = launch->node ? launch->node->host : NULL,
        .zone = launch->node ? launch->node->zone : NULL,
        .metrics_host = launch->node ? launch->node->metrics_host : NULL,
        .metrics_port = launch->node ? launch->node->metrics_port : 0,
        .paths = launch->node ? launch->node->paths : NULL,
        .apart = launch->node && launch->node->apart,
        .trials = &launcher->trials,
        .trace_steps = launch->trace ? launch->trace_steps : 0,
        .display = launcher->display,
        /* With several hosts, only the coordinator knows whether enough processes are left. */
        .workers_min = launch->node ? 0 : job->cluster.workers.min,
        .policy = {.max_failures = job->failure.max_failures,
                   .window_ms = job->failure.window_ms,
                   .backoff_ms = job->failure.restart_backoff_ms,
                   .restart = !launch->no_restart}};

    return kelp_children_init(&launcher->children, &options, reterr);
}

static kelp_status start_children(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    const struct kelp_launch *launch = launcher->launch;
    const struct {
        enum kelp_child_kind kind;
        uint32_t count;
    } wanted[] = {
        {KELP_CHILD_COORDINATOR, launch->coordinators},
        {KELP_CHILD_SHARD, launch->node ? launch->node->shards.least : launch->job->cluster.shards},
        {KELP_CHILD_WORKER, launch->node ? launch->node->workers.least : workers_at_start(launch)}};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(wanted); i++) {
        for (uint32_t number = 0; number < wanted[i].count; number++) {
            kelp_status status = kelp_children_add(&launcher->children, wanted[i].kind, reterr);
            if (status != KELP_OK) {
                return status;
            }
        }
    }
    return KELP_OK;
}

static kelp_status start_all(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    const char *spec = launcher->launch->spec;
    const bool node = launcher->launch->node;
    kelp_status status = kelp_sha256(spec, strlen(spec), launcher->spec_sha256, reterr);

    if (status == KELP_OK && !node) {
        status = kelp__launch_remember(launcher, reterr);
    }
    if (status == KELP_OK) {
        status = make_sockets(launcher, reterr);
    }
    if (status == KELP_OK) {
        status = kelp__launch_make_certs(launcher, reterr);
    }
    if (status == KELP_OK && !launcher->launch->etcd_url) {
        status = start_etcd(launcher, reterr);
    }
    if (status == KELP_OK) {
        status = kelp__launch_begin_trace(launcher, reterr);
    }
    if (status == KELP_OK) {
        status = init_children(launcher, reterr);
    }
    if (status == KELP_OK && !node) {
        status = kelp__launch_write_cluster(launcher, reterr);
    }
    if (status == KELP_OK && launcher->launch->etcd_url) {
        status = kelp__launch_client(launcher, &launcher->client, reterr);
    }
    if (status == KELP_OK && !stopping(launcher)) {
        status = kelp__launch_join(launcher, reterr);
    }
    if (status == KELP_OK && !stopping(launcher)) {
        status = node ? kelp__launch_node_begin(launcher, reterr)
                      : kelp__launch_submit(launcher, reterr);
    }
    if (status == KELP_OK && !stopping(launcher)) {
        status = kelp_monitor_start(kelp__launch_etcd_url(launcher), launcher->launch->job->name,
                                    kelp__launch_certs(launcher), &launcher->monitor, reterr);
    }
    if (status == KELP_OK && !stopping(launcher)) {
        status = start_children(launcher, reterr);
    }
    return status;
}

/* ---- running ------------------------------------------------------------------------------- */

/* Our etcd is down for this reason: decide when to restart it. */
static kelp_status retry_etcd(struct kelp_launcher *launcher, const char *why, uint64_t lived_ms,
                              struct kelp_error *reterr)
{
    uint64_t now = kelp_clock_ms();
    struct kelp_children *children = &launcher->children;
    struct kelp_supervise_policy policy = children->options.policy;
    char limit[128];
    uint32_t delay_ms = 0;
    struct kelp_supervise_end end = {.now_ms = now, .lived_ms = lived_ms};

    policy.restart = true; /* --no-restart is for the daemons, none of which starts without etcd */
    if (kelp_supervise(&policy, &end, &launcher->etcd_supervise, &children->failures, &delay_ms) ==
        KELP_SUPERVISE_GIVE_UP) {
        kelp_supervise_limit_text(&policy, limit, sizeof(limit));
        launcher->gave_up = true;
        return kelp_fail(reterr, KELP_ERR_LIMIT, "etcd %s, and %s; see %s/logs/etcd.log", why,
                         limit, launcher->launch->run->path);
    }
    launcher->etcd_start_ms = now + delay_ms;
    kelp_display_say(launcher->display, "etcd %s; it is started again in %" PRIu32 " ms", why,
                     delay_ms);
    return KELP_OK;
}

/* A private etcd that died comes back at the same address with the same data; training goes on
 * meanwhile, also when it does not come back at once. */
static kelp_status tend_etcd(struct kelp_launcher *launcher, uint64_t now,
                             struct kelp_error *reterr)
{
    char how[64];
    struct kelp_error error;
    int wait_status = 0;

    if (launcher->launch->etcd_url) {
        return KELP_OK;
    }
    if (launcher->etcd) {
        if (kelp_process_wait(kelp_etcd_server_process(launcher->etcd), 0, &wait_status) !=
            KELP_OK) {
            return KELP_OK;
        }
        kelp_process_describe(wait_status, how, sizeof(how));
        kelp_etcd_server_stop(launcher->etcd, 0);
        launcher->etcd = NULL;
        return retry_etcd(launcher, how, now - launcher->etcd_start_ms, reterr);
    }
    if (launcher->etcd_start_ms > now || start_etcd(launcher, &error) == KELP_OK) {
        return KELP_OK;
    }
    kelp_error_prefix(&error, "does not start");
    return retry_etcd(launcher, error.text, 0, reterr);
}

static kelp_status apply_timed(struct kelp_launcher *launcher, uint64_t step,
                               struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < launcher->trials.timed_count; i++) {
        struct kelp_timed *timed = &launcher->trials.timed[i];
        if (timed->done || step < timed->step) {
            continue;
        }
        timed->done = true;
        if (timed->action == KELP_TIMED_KILL) {
            bool found = kelp_children_kill(&launcher->children, timed->id);
            kelp_display_say(launcher->display, "step %" PRIu64 ": %s %s", step, timed->id,
                             found ? "is killed, as requested"
                                   : "is not running, so nothing is killed");
            continue;
        }
        kelp_display_say(launcher->display, "step %" PRIu64 ": one more worker, as requested",
                         step);
        kelp_status status = kelp_children_add(&launcher->children, KELP_CHILD_WORKER, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

/* Events are for people: a disk that takes none does not end the run. */
static void follow_events(struct kelp_launcher *launcher)
{
    struct kelp_error error;

    if (launcher->events.fd >= 0 && kelp_event_file_follow(&launcher->events, &error) != KELP_OK) {
        kelp_display_say(launcher->display, "%s; no more events are written", error.text);
        kelp_event_file_close(&launcher->events);
    }
}

static void open_events(struct kelp_launcher *launcher)
{
    const struct kelp_job *job = launcher->launch->job;
    struct kelp_error error;

    launcher->events.fd = -1;
    if (job->metrics.tensorboard && job->run.mode == KELP_RUN_TRAIN &&
        kelp_event_file_open(launcher->launch->run->path, &launcher->events, &error) != KELP_OK) {
        kelp_display_say(launcher->display, "%s; no events are written", error.text);
    }
}

/* The job's progress in the unit that it counts: training steps, or entries of any kind. */
static uint64_t progress(const struct kelp_launcher *launcher)
{
    const Kelp__V1__ControlWord *word = launcher->status->word;
    uint64_t entries = launcher->launch->entries;

    if (entries == 0) {
        return word->step;
    }
    return word->version < entries ? word->version : entries;
}

/* Translate the status from training into what this job does. */
static void count_entries(const struct kelp_launcher *launcher, struct kelp_meter *meter)
{
    const struct kelp_launch *launch = launcher->launch;
    double per_second = kelp_rate_recent(&launcher->rate);

    meter->what = launch->entry_name;
    meter->step = launcher->status->word ? progress(launcher) : 0;
    meter->total_steps = launch->entries;
    meter->epochs = 0;
    meter->left_s = per_second > 0 ? (double)(launch->entries - meter->step) / per_second : -1;
}

static void show(struct kelp_launcher *launcher, uint64_t now)
{
    struct kelp_meter meter = {.reason = "the cluster starts", .left_s = -1};

    if (launcher->status) {
        kelp_status_meter(launcher->status, launcher->launch->job->train.batch_size,
                          kelp_rate_recent(&launcher->rate), &meter);
        if (launcher->launch->entries > 0) {
            count_entries(launcher, &meter);
        }
        if (now - launcher->status_ms > SILENT_MS) {
            meter.running = false;
            meter.reason = "the coordinator does not answer";
        } else if (launcher->launch->node && launcher->node.over_ms > 0) {
            meter.running = false;
            meter.reason = "the job is over, and its result is being written";
        }
    }
    launcher->children.begun = launcher->children.begun || meter.running;
    if (meter.running && !launcher->training && !kelp__launch_unheld(launcher)) {
        launcher->training = true;
        if (launcher->launch->on_training) {
            launcher->launch->on_training(launcher->launch->user);
        }
    }
    kelp_display_update(launcher->display, &meter, now);
    if (launcher->launch->manager) {
        char line[KELP_METER_TEXT_MAX];
        kelp_meter_line(&meter, line, sizeof(line));
        kelp_manager_alive(launcher->launch->manager, now, line);
    }
}

/* Kill shards that the coordinator does not hear although their processes live. A process that
 * hangs must end, also so that it cannot come back as if nothing had happened. */
static void fence(struct kelp_launcher *launcher, uint64_t asked_ms)
{
    for (size_t i = 0; i < launcher->status->n_silent; i++) {
        const Kelp__V1__ShardInfo *shard = launcher->status->silent[i];
        if (kelp_children_fence(&launcher->children, shard->shard, asked_ms, shard->silent_ms)) {
            kelp_display_say(launcher->display,
                             "%.63s has been silent for %.1f s; it is killed and started again",
                             shard->shard, (double)shard->silent_ms / 1000);
        }
    }
}

static kelp_status read_status(struct kelp_launcher *launcher, uint64_t now,
                               struct kelp_error *reterr)
{
    uint64_t asked_ms = 0;
    Kelp__V1__StatusReply *status = kelp_monitor_read(launcher->monitor, &asked_ms);

    if (!status) {
        return KELP_OK;
    }
    kelp_job_client_status_free(launcher->status);
    launcher->status = status;
    launcher->status_ms = now;
    launcher->status_asked_ms = asked_ms;
    kelp_ledger_add(&launcher->ledger, status);
    kelp__launch_tell_news(launcher);
    fence(launcher, asked_ms);
    kelp_status followed = kelp__launch_follow_size(launcher, now, reterr);
    if (followed != KELP_OK) {
        return followed;
    }
    if (!status->word) {
        kelp_rate_add(&launcher->rate, 0, now);
        return KELP_OK;
    }
    if (launcher->launch->entries == 0) {
        kelp_rate_begin(&launcher->rate, status->restore_step);
    }
    /* The end is noticed up to one poll late: leave it out of the rate once there is enough
     * data. */
    uint64_t total =
        launcher->launch->entries > 0 ? launcher->launch->entries : status->total_steps;
    bool last = total > 0 && progress(launcher) >= total;
    if (!last || launcher->rate.highest_ms - launcher->rate.first_ms < KELP_RATE_SHORT_MS) {
        kelp_rate_add(&launcher->rate, progress(launcher), now);
    }
    kelp__launch_tell_damage(launcher);
    return apply_timed(launcher, status->word->step, reterr);
}

/* Milliseconds until a restart is due, -1 when none is. */
static int wait_ms(const struct kelp_launcher *launcher, uint64_t now)
{
    int children_ms = kelp_children_wait_ms(&launcher->children, now);

    if (launcher->launch->etcd_url || launcher->etcd) {
        return children_ms;
    }
    int etcd_ms = launcher->etcd_start_ms <= now ? 0 : (int)(launcher->etcd_start_ms - now);
    return children_ms < 0 || etcd_ms < children_ms ? etcd_ms : children_ms;
}

static void wait_for_event(struct kelp_launcher *launcher)
{
    struct pollfd *items = launcher->items;
    uint32_t count = 0;

    items[count++] = (struct pollfd){.fd = kelp_guard_fd(launcher->guard), .events = POLLIN};
    items[count++] = (struct pollfd){.fd = kelp_monitor_fd(launcher->monitor), .events = POLLIN};
    if (launcher->etcd) {
        items[count++] = (struct pollfd){
            .fd = kelp_process_fd(kelp_etcd_server_process(launcher->etcd)), .events = POLLIN};
    }
    count += kelp_children_poll(&launcher->children, items + count, KELP_LAUNCH_POLL_ROOM - count);
    /* The monitor's answers (or their absence) come several times a second. */
    (void)poll(items, count, wait_ms(launcher, kelp_clock_ms()));
}

bool kelp__launch_state_is(const struct kelp_launcher *launcher, const char *state)
{
    return launcher->status && strcmp(launcher->status->state, state) == 0;
}

/* There is nothing to save: shards must first restore what they had. */
static bool nothing_to_save(const struct kelp_launcher *launcher)
{
    return !launcher->status || kelp__launch_state_is(launcher, "starting");
}

/* On a signal: continue until a checkpoint has saved everything. False if there is nothing to
 * save. */
static bool wind_down(struct kelp_launcher *launcher, uint64_t now)
{
    if (launcher->launch->node) {
        return kelp__launch_node_leaves(launcher);
    }
    if (launcher->pausing || kelp_guard_stage(launcher->guard) != KELP_GUARD_WIND_DOWN) {
        return true;
    }
    if (launcher->signal_ms == 0) {
        launcher->signal_ms = now;
    }
    /* Training may have begun after the request. */
    if (kelp__launch_state_is(launcher, "starting") &&
        launcher->status_asked_ms < launcher->signal_ms && now - launcher->signal_ms < SILENT_MS) {
        return true;
    }
    launcher->pausing = true;
    if (nothing_to_save(launcher)) {
        return false;
    }
    kelp_display_say(launcher->display,
                     "pausing: the run stops once a checkpoint is written, at the latest in %u s; "
                     "a second signal (Ctrl-C) stops it at once",
                     launcher->launch->pause_ms / 1000);
    kelp_monitor_pause(launcher->monitor);
    return true;
}

static bool ended(struct kelp_launcher *launcher, uint64_t now)
{
    if (launcher->launch->node) {
        return kelp__launch_node_ended(launcher, now);
    }
    return kelp__launch_state_is(launcher, "done") || kelp__launch_state_is(launcher, "failed") ||
           (launcher->pausing && kelp__launch_state_is(launcher, "paused"));
}

/* Run until the job is done, failed or paused, a stop is requested, or an error occurs. */
static kelp_status run(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    kelp_guard_winds_down(launcher->guard, launcher->launch->pause_ms);
    while (!stopping(launcher)) {
        uint64_t now = kelp_clock_ms();
        kelp_status status = read_status(launcher, now, reterr);
        if (status != KELP_OK || ended(launcher, now) || !wind_down(launcher, now)) {
            return status;
        }
        if (launcher->launch->node) {
            kelp__launch_node_hold(launcher, now);
        } else {
            kelp__launch_go_on(launcher, now);
        }
        status = launcher->hosts ? kelp_hosts_tend(launcher->hosts, now, reterr)
                                 : tend_etcd(launcher, now, reterr);
        if (status == KELP_OK) {
            status = kelp_children_tend(&launcher->children, now, &launcher->gave_up, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
        show(launcher, now);
        follow_events(launcher);
        wait_for_event(launcher);
    }
    return KELP_OK;
}

/* ---- ending -------------------------------------------------------------------------------- */

/* No coordinator is left that could take over the run. */
static void settle_run(struct kelp_launcher *launcher)
{
    bool written = !launcher->result->unheld;

    launcher->result->unheld = kelp__launch_unheld(launcher);
    if (launcher->launch->node) {
        return; /* what waits is for the job's next start */
    }
    if (launcher->result->unheld) {
        kelp__launch_undo(launcher);
    } else if (!written) { /* it took hold while it was stopped */
        kelp__launch_write_result(launcher);
    }
}

static void tell_idle(const struct kelp_launcher *launcher, const char *trial)
{
    if (launcher->launch->job->run.mode == KELP_RUN_TRAIN) {
        kelp_display_say(launcher->display, "%s did not happen: the run ended at step %" PRIu64,
                         trial, launcher->result->step);
    } else {
        kelp_display_say(launcher->display, "%s did not happen before the end", trial);
    }
}

/* Report actions of --at and --fault that did not happen. */
static void tell_idle_trials(const struct kelp_launcher *launcher)
{
    const struct kelp_trials *trials = &launcher->trials;
    char trial[KELP_TRIAL_ID_MAX + KELP_TRIAL_SPEC_MAX + 16];

    for (uint32_t i = 0; i < trials->timed_count; i++) {
        if (!trials->timed[i].done) {
            (void)snprintf(trial, sizeof(trial), "--at step=%" PRIu64, trials->timed[i].step);
            tell_idle(launcher, trial);
        }
    }
    for (uint32_t i = 0; i < trials->fault_count; i++) {
        const struct kelp_fault *fault = &trials->faults[i];
        if (!kelp_children_faulted(&launcher->children, fault)) {
            (void)snprintf(trial, sizeof(trial), "--fault %s:%s", fault->id, fault->spec);
            tell_idle(launcher, trial);
        }
    }
}

static void stop_all(struct kelp_launcher *launcher)
{
    kelp_children_stop(&launcher->children, KELP_LAUNCH_GRACE_MS);
    kelp__launch_write_trace(launcher);
    settle_run(launcher);
    if (launcher->gave_up && !launcher->result->unheld && !launcher->launch->node) {
        kelp__launch_put_failure(launcher, launcher->result->reason);
    }
    kelp_monitor_stop(launcher->monitor);
    bool spare = !launcher->launch->etcd_url && kelp__launch_etcd_spare(launcher);
    kelp_etcd_server_stop(launcher->etcd, KELP_LAUNCH_ETCD_GRACE_MS);
    if (launcher->sockets_held >= 0) {
        (void)close(launcher->sockets_held);
    }
    kelp_socket_folder_remove(launcher->sockets);
    if (spare) {
        kelp__launch_remove_etcd(launcher);
    }
    kelp__launch_node_fini(launcher);
    kelp_hosts_leave(launcher->hosts);
    kelp_job_client_close(launcher->client);
    kelp_job_client_status_free(launcher->status);
    free(launcher->cluster_before);
    free(launcher->spec_before);
    free(launcher->state_before);
}

int kelp_launcher_run(const struct kelp_launch *launch, struct kelp_guard *guard,
                      struct kelp_display *display, struct kelp_result *result)
{
    struct kelp_launcher *launcher = calloc(1, sizeof(*launcher));
    struct kelp_error error = {.status = KELP_OK};

    if (!launcher) {
        (void)snprintf(result->status, sizeof(result->status), "failed");
        (void)snprintf(result->reason, sizeof(result->reason), "out of memory");
        return KELP_EXIT_FAILED;
    }
    launcher->launch = launch;
    launcher->guard = guard;
    launcher->display = display;
    launcher->result = result;
    launcher->trials = *launch->trials;
    launcher->sockets_held = -1;
    launcher->node.held.lock_fd = -1;
    launcher->events.fd = -1;
    kelp__v1__targets__init(&launcher->size);
    launcher->size.workers_min = launch->job->cluster.workers.min;
    launcher->size.workers_max = launch->job->cluster.workers.max;
    launcher->size.shards = launch->job->cluster.shards;
    kelp_damage_init(&launcher->damage, launch->run->path);
    (void)snprintf(result->job, sizeof(result->job), "%s", launch->job->name);
    if (!launch->node) {
        open_events(launcher);
    }
    kelp_status status = start_all(launcher, &error);
    if (status == KELP_OK && !stopping(launcher)) {
        status = run(launcher, &error);
    }
    if (launch->node && kelp__launch_node_writes(launcher)) {
        open_events(launcher);
    }
    follow_events(
        launcher); /* the coordinator has written everything before it reports that it is done */
    kelp_event_file_close(&launcher->events);
    int exit_status = launch->node ? kelp__launch_node_conclude(launcher, status, &error)
                                   : kelp__launch_conclude(launcher, status, &error);
    tell_idle_trials(launcher);
    kelp_display_clear(display);
    result->unheld = kelp__launch_unheld(launcher);
    if (!result->unheld && !launch->node) {
        kelp__launch_write_result(launcher);
    }
    stop_all(launcher);
    if (exit_status == KELP_EXIT_OK && strcmp(result->status, "done") == 0) {
        (void)snprintf(result->after, sizeof(result->after), "%s", launcher->children.after);
        exit_status =
            launcher->children.after_failed && !launch->node ? KELP_EXIT_USAGE : KELP_EXIT_OK;
    }
    free(launcher);
    return exit_status;
}
