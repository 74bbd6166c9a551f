#include "cli/chaos/chaos_run.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/chaos/chaos_follow.h"
#include "cli/chaos/chaos_progress.h"
#include "cli/chaos/chaos_target.h"
#include "cli/cluster/run_client.h"
#include "cli/launch/launcher.h"
#include "common/base/clock.h"
#include "common/etcd/etcd_endpoint.h"
#include "common/program/run_certs.h"

#define PATH_BYTES (KELP_RUN_PATH_MAX + 64)
#define TICK_MS    200 /* without an event */
#define LOOPBACK   "127.0.0.1"

struct run {
    const struct kelp_chaos_options *options;
    struct kelp_chaos_report *report;
    struct kelp_chaos_follow follow;
    struct kelp_chaos_target target;
    bool done[KELP_CHAOS_FAULTS_MAX];
    uint64_t
        tried_step[KELP_CHAOS_FAULTS_MAX]; /* a fault that hit nothing waits for a later step */
    bool pausing; /* `kelp train` was asked to pause; it is resumed afterwards */
    char run_path[PATH_BYTES];
    char log_path[PATH_BYTES];
    char etcd_folder[PATH_BYTES];
    char etcd_log[PATH_BYTES];
    char url[KELP_ETCD_ENDPOINT_MAX + 1];
    char sockets[KELP_SOCKET_FOLDER_MAX + 1]; /* private folder of etcd; "": not made yet */
    int sockets_held;                         /* kelp_socket_folder_make() */
    /* If everything listens on ports, which can be split: the address and the certificates;
     * otherwise "". */
    char certs[KELP_CREDENTIALS_PATH_MAX + 1]; /* a folder for each role in it, and that of: */
    char etcd_certs[KELP_CREDENTIALS_PATH_MAX + 1];
    char operator_certs[KELP_CREDENTIALS_PATH_MAX + 1];
    char coordinators[16];
    struct kelp_faultdisk_environment disk;
    const char *environment[4];
};

static bool stopping(const struct kelp_chaos_options *options)
{
    return kelp_guard_stage(options->guard) == KELP_GUARD_STOP;
}

static kelp_status stopped(struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_CLOSED, "stopped by a signal");
}

/* ---- the quiet run ------------------------------------------------------------------------- */

kelp_status kelp_chaos_quiet(const struct kelp_chaos_options *options,
                             struct kelp_result *ret_result, struct kelp_error *reterr)
{
    char run_path[PATH_BYTES];
    char log_path[PATH_BYTES];
    char job_path[PATH_BYTES];
    struct kelp_chaos_progress progress = {.run_path = run_path,
                                           .log_path = log_path,
                                           .display = options->display,
                                           .batch_size = options->batch_size};
    struct kelp_chaos_child train = {.verb = "train",
                                     .bin_folder = options->bin_folder,
                                     .log_path = log_path,
                                     .look = kelp_chaos_progress_show,
                                     .user = &progress,
                                     .look_ms = KELP_CHAOS_PROGRESS_MS};
    const char *args[] = {job_path,
                          "--run",
                          run_path,
                          "--log-level",
                          options->log_level,
                          options->etcd_program ? "--etcd-program" : NULL,
                          options->etcd_program,
                          NULL};

    (void)snprintf(run_path, sizeof(run_path), "%s/quiet", options->folder);
    (void)snprintf(log_path, sizeof(log_path), "%s/quiet.log", options->folder);
    (void)snprintf(job_path, sizeof(job_path), "%s/job.yaml", options->folder);
    kelp_status status = kelp_chaos_child_run(&train, args, options->guard, reterr);
    kelp_chaos_progress_close(&progress);
    if (status == KELP_OK) {
        status = kelp_run_result_read(run_path, ret_result, reterr);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "the quiet run");
    }
    return status;
}

/* ---- the run with faults ------------------------------------------------------------------- */

static kelp_status start_train(struct run *run, bool resume, struct kelp_error *reterr)
{
    char job_path[PATH_BYTES];
    const char *args[KELP_CHAOS_CHILD_ARGS_MAX] = {resume ? "--resume" : job_path,
                                                   "--run",
                                                   run->run_path,
                                                   "--etcd",
                                                   run->url,
                                                   "--coordinators",
                                                   run->coordinators,
                                                   "--log-level",
                                                   run->options->log_level,
                                                   run->options->ports ? "--listen" : NULL,
                                                   LOOPBACK,
                                                   "--certs",
                                                   run->certs,
                                                   NULL};

    (void)snprintf(job_path, sizeof(job_path), "%s/job.yaml", run->options->folder);
    return kelp_chaos_child_start(&run->target.train, args, reterr);
}

/* NULL: there are no ports. */
static const char *operator_certs(const struct run *run)
{
    return run->options->ports ? run->operator_certs : NULL;
}

static void set_paths(struct run *run)
{
    const char *folder = run->options->folder;

    (void)snprintf(run->run_path, sizeof(run->run_path), "%s/chaos", folder);
    (void)snprintf(run->log_path, sizeof(run->log_path), "%s/chaos.log", folder);
    (void)snprintf(run->etcd_folder, sizeof(run->etcd_folder), "%s/etcd", folder);
    (void)snprintf(run->etcd_log, sizeof(run->etcd_log), "%s/etcd.log", folder);
    (void)snprintf(run->coordinators, sizeof(run->coordinators), "%" PRIu32,
                   run->options->coordinators);
    run->target.coordinators = run->options->coordinators;
    run->target.shards = run->options->shards;
    run->target.workers = run->options->workers;
    run->target.replicas = run->options->replicas;
    run->target.asks = (struct kelp_chaos_asks){
        .etcd = run->url, .job = run->options->job, .certs = operator_certs(run)};
    run->target.train = (struct kelp_chaos_child){
        .verb = "train", .bin_folder = run->options->bin_folder, .log_path = run->log_path};
}

/* The library stands before all processes of `kelp train`; what it may hit lies in checkpoints/,
 * which they make themselves: the folder beside the run's stands for it. */
static kelp_status prepare_disk(struct run *run, struct kelp_error *reterr)
{
    static const char below[] = "/chaos/checkpoints";
    char control[PATH_BYTES];
    char logs[PATH_BYTES];
    struct kelp_faultdisk_paths paths = {
        .library = run->options->disk_library, .control = control, .root = logs};

    (void)snprintf(control, sizeof(control), "%s/disk", run->options->folder);
    (void)snprintf(logs, sizeof(logs), "%s/logs", run->options->folder);
    kelp_status status = kelp_faultdisk_open(control, &run->target.disk, reterr);
    if (status == KELP_OK) {
        status = kelp_faultdisk_environment(&paths, &run->disk, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    char *end = strrchr(run->disk.root, '/');
    assert(end); /* a real path */
    if ((size_t)(end - run->disk.root) + sizeof(below) > sizeof(run->disk.root)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the run folder's path is too long");
    }
    memcpy(end, below, sizeof(below));
    run->environment[0] = run->disk.preload;
    run->environment[1] = run->disk.control;
    run->environment[2] = run->disk.root;
    run->target.train.environment = run->environment;
    return KELP_OK;
}

/* All commands of the run have the same certificates, so that it can be resumed. */
static kelp_status make_certs(struct run *run, struct kelp_error *reterr)
{
    char own[KELP_RUN_CERTS_MAX + 1];

    kelp_run_certs_path(run->sockets, own);
    (void)snprintf(run->certs, sizeof(run->certs), "%s",
                   run->options->certs ? run->options->certs : own);
    (void)snprintf(run->etcd_certs, sizeof(run->etcd_certs), "%.*s/%s", KELP_LAUNCH_CERTS_MAX,
                   run->certs, kelp_role_names[KELP_ROLE_ETCD]);
    (void)snprintf(run->operator_certs, sizeof(run->operator_certs), "%.*s/%s",
                   KELP_LAUNCH_CERTS_MAX, run->certs, kelp_role_names[KELP_ROLE_OPERATOR]);
    return run->options->certs ? KELP_OK
                               : kelp_run_certs_make(run->sockets, run->options->job, reterr);
}

static kelp_status start(struct run *run, struct kelp_error *reterr)
{
    set_paths(run);
    kelp_status status = run->options->disk_library ? prepare_disk(run, reterr) : KELP_OK;
    struct kelp_etcd_server_options etcd = {.data_folder = run->etcd_folder,
                                            .log_path = run->etcd_log,
                                            .socket_folder = run->sockets,
                                            .certs = run->options->ports ? run->etcd_certs : NULL,
                                            .program = run->options->etcd_program};
    if (status == KELP_OK) {
        status = kelp_socket_folder_make(run->sockets, &run->sockets_held, reterr);
    }
    if (status == KELP_OK && run->options->ports) {
        status = make_certs(run, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_chaos_etcd_open(&etcd, &run->target.etcd, reterr);
    }
    if (status == KELP_OK) {
        (void)snprintf(run->url, sizeof(run->url), "%s", kelp_chaos_etcd_url(run->target.etcd));
        status = kelp_chaos_follow_start(&run->follow, run->url, run->options->job,
                                         operator_certs(run), reterr);
    }
    return status == KELP_OK ? start_train(run, false, reterr) : status;
}

/* Faults that never found anything to hit. */
static void say_missed(const struct run *run)
{
    char text[KELP_CHAOS_TEXT_MAX];

    for (uint32_t i = 0; i < run->options->fault_count; i++) {
        if (!run->done[i]) {
            kelp_chaos_fault_print(&run->options->faults[i], text);
            (void)printf("   not done  step %-8" PRIu32 " %s\n", run->options->faults[i].step,
                         text);
        }
    }
}

static void read_news(struct run *run)
{
    kelp_chaos_follow_read(&run->follow);
    run->target.status = run->follow.status;
    run->target.status_ms = run->follow.status_ms;
    run->target.progress_ms = run->follow.progress_ms;
}

/* After a kill it is resumed at once; after a pause, when it has ended. */
static kelp_status do_everything(struct run *run, const struct kelp_chaos_fault *fault,
                                 bool *ret_done, struct kelp_error *reterr)
{
    *ret_done = kelp_chaos_target_works(&run->target, kelp_clock_ms()) &&
                (fault->kind == KELP_CHAOS_KILL || !run->pausing);
    if (!*ret_done) {
        return KELP_OK;
    }
    if (fault->kind == KELP_CHAOS_RESTART) {
        run->pausing = true;
        kelp_process_signal(run->target.train.process, SIGTERM);
        return KELP_OK;
    }
    run->pausing = false;
    return kelp_chaos_target_kill_all(&run->target, reterr);
}

/* Remove the keys of dead processes, as `kelp train` does with an etcd of its own; otherwise their
 * leases would have to expire. Processes that die one by one test the waiting for leases. */
static kelp_status forget_dead(const struct run *run, struct kelp_error *reterr)
{
    static const char *const names[] = {"coordinator", "ps/"};
    struct kelp_job_client *client = NULL;

    kelp_status status =
        kelp_job_client_open(run->url, run->options->job, operator_certs(run), &client, reterr);
    for (size_t i = 0; status == KELP_OK && i < KELP_ARRAY_COUNT(names); i++) {
        status = kelp_job_client_forget(client, names[i], KELP_LAUNCH_ETCD_MS, reterr);
    }
    kelp_job_client_close(client);
    return status;
}

static kelp_status resume_everything(struct run *run, struct kelp_error *reterr)
{
    kelp_status status = kelp_chaos_etcd_start(run->target.etcd, reterr);

    if (status == KELP_OK) {
        status = forget_dead(run, reterr);
    }
    return status == KELP_OK ? start_train(run, true, reterr) : status;
}

static kelp_status try_fault(struct run *run, uint32_t index, struct kelp_error *reterr)
{
    const struct kelp_chaos_fault *fault = &run->options->faults[index];
    struct kelp_chaos_try attempt = {.fault = fault,
                                     .now_ms = kelp_clock_ms(),
                                     .event = run->report->event_count,
                                     .name = "everything"};
    bool everything = fault->role == KELP_CHAOS_EVERYTHING;

    run->tried_step[index] = run->report->newest.step;
    kelp_status status = everything ? do_everything(run, fault, &attempt.done, reterr)
                                    : kelp_chaos_target_do(&run->target, &attempt, reterr);
    if (attempt.done) {
        run->done[index] = true;
        kelp_chaos_report_fault(run->report, fault, attempt.name, everything || attempt.alone,
                                attempt.now_ms);
        if (!attempt.leaves) {
            kelp_chaos_report_gone(run->report, attempt.event, attempt.now_ms);
        }
        run->follow.alive_ms = attempt.now_ms + fault->for_ms;
    }
    if (status == KELP_OK && attempt.done && everything && !run->pausing) {
        status = resume_everything(run, reterr);
    }
    return status;
}

/* One fault at a time, the earliest that is due; one that hit nothing waits for another step. */
static kelp_status do_faults(struct run *run, struct kelp_error *reterr)
{
    for (uint32_t i = 0;
         i < run->options->fault_count && kelp_chaos_follow_unfinished(&run->follow); i++) {
        uint64_t step = run->report->newest.step;
        if (run->options->faults[i].step > step) {
            return KELP_OK;
        }
        if (run->done[i] || run->tried_step[i] == step) {
            continue;
        }
        kelp_status status = try_fault(run, i, reterr);
        if (status != KELP_OK || run->done[i]) {
            return status;
        }
    }
    return KELP_OK;
}

static void wait_for_event(struct run *run)
{
    struct pollfd items[4] = {
        {.fd = kelp_guard_fd(run->options->guard), .events = POLLIN},
        {.fd = kelp_chaos_watch_fd(run->follow.watch), .events = POLLIN},
        {.fd = kelp_monitor_fd(run->follow.monitor), .events = POLLIN},
        {.fd = kelp_process_fd(run->target.train.process), .events = POLLIN},
    };

    (void)poll(items, 4, kelp_chaos_target_wait_ms(&run->target, kelp_clock_ms(), TICK_MS));
}

/* `kelp train` has ended. A run that was asked to pause is resumed, unless it was done before it
 * paused. */
static kelp_status handle_end(struct run *run, int wait_status, bool *ret_over,
                              struct kelp_error *reterr)
{
    *ret_over = true;
    kelp_status status = kelp_chaos_child_end(&run->target.train, wait_status, reterr);
    if (status != KELP_OK || !run->pausing) {
        return status;
    }
    run->pausing = false;
    struct kelp_result *result = calloc(1, sizeof(*result));
    if (!result) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    status = kelp_run_result_read(run->run_path, result, reterr);
    if (status == KELP_ERR_NOT_FOUND) { /* killed before, and resumed in vain */
        status = KELP_OK;
    }
    if (status == KELP_OK && strcmp(result->status, "done") != 0) {
        *ret_over = false;
        status = forget_dead(run, reterr);
        status = status == KELP_OK ? start_train(run, true, reterr) : status;
    }
    free(result);
    return status;
}

static kelp_status tend(struct run *run, struct kelp_error *reterr)
{
    kelp_status status = kelp_chaos_target_tend(&run->target, kelp_clock_ms(), reterr);

    while (run->target.gone_count > 0) {
        kelp_chaos_report_gone(run->report, run->target.gone[--run->target.gone_count],
                               kelp_clock_ms());
    }
    if (status == KELP_OK) {
        status = do_faults(run, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    const pid_t train = kelp_process_pid(run->target.train.process);
    const struct kelp_chaos_stall stall = {.limit_ms = run->options->stall_ms,
                                           .run_path = run->run_path,
                                           .parents = &train,
                                           .parent_count = 1};
    return kelp_chaos_follow_stall(&run->follow, &stall, reterr);
}

/* Until `kelp train` ends by itself. */
static kelp_status follow(struct run *run, struct kelp_error *reterr)
{
    int wait_status = 0;
    bool over = false;
    kelp_status status = KELP_OK;

    while (status == KELP_OK && !over) {
        read_news(run);
        if (kelp_process_wait(run->target.train.process, 0, &wait_status) == KELP_OK) {
            status = handle_end(run, wait_status, &over, reterr);
        } else if (stopping(run->options)) {
            status = stopped(reterr);
        } else {
            status = tend(run, reterr);
        }
        if (status == KELP_OK && !over) {
            wait_for_event(run);
        }
    }
    return status;
}

/* `kelp train` may have been killed at the end: it removes nothing then. */
static void remove_sockets(const struct run *run)
{
    struct kelp_run_cluster cluster;

    if (kelp_run_cluster_read(run->run_path, &cluster, NULL) == KELP_OK) {
        kelp_socket_folder_remove(cluster.sockets);
    }
    if (run->sockets_held >= 0) {
        (void)close(run->sockets_held);
    }
    kelp_socket_folder_remove(run->sockets);
}

kelp_status kelp_chaos_run(const struct kelp_chaos_options *options,
                           struct kelp_chaos_report *report, struct kelp_result *ret_result,
                           struct kelp_error *reterr)
{
    struct run *run = calloc(1, sizeof(*run));

    if (!run) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    assert(options->fault_count <= KELP_CHAOS_FAULTS_MAX);
    run->options = options;
    run->report = report;
    run->follow.report = report;
    run->follow.display = options->display;
    run->sockets_held = -1;
    kelp_status status = start(run, reterr);
    if (status == KELP_OK) {
        status = follow(run, reterr);
        report->wall_s = (double)(kelp_clock_ms() - report->start_ms) / 1000;
        kelp_chaos_follow_finish(&run->follow);
        say_missed(run);
    }
    if (status == KELP_OK) {
        status = kelp_run_result_read(run->run_path, ret_result, reterr);
    }
    kelp_chaos_follow_stop(&run->follow);
    kelp_chaos_target_fini(&run->target);
    remove_sockets(run);
    free(run);
    return status;
}
