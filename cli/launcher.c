#include "cli/launcher.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/children.h"
#include "cli/ledger.h"
#include "cli/model_file.h"
#include "cli/monitor.h"
#include "cli/status_view.h"
#include "cli/train_job.h"
#include "common/etcd_server.h"
#include "common/options.h"

#define POLL_ROOM (KELP_CHILDREN_MAX + 3)
#define SILENT_MS 3000 /* without an answer of the coordinator before people are told */

struct launcher {
    const struct kelp_launch *launch;
    struct kelp_guard *guard;
    struct kelp_display *display;
    struct kelp_result *result;
    struct kelp_etcd_server *etcd; /* NULL: an etcd that is not ours */
    const char *etcd_url;
    struct kelp_monitor *monitor;
    struct kelp_children children;
    struct kelp_trials trials; /* with what has happened already */
    struct kelp_rate rate;
    struct kelp_ledger ledger;
    Kelp__V1__StatusReply *status; /* newest, or NULL */
    uint64_t status_ms;
    uint32_t etcd_failures;
    struct pollfd items[POLL_ROOM];
};

static uint64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- starting ---------------------------------------------------------------------------------
 */

static kelp_status start_etcd(struct launcher *launcher, uint16_t port, struct kelp_error *reterr)
{
    char folder[KELP_RUN_PATH_MAX + 64];
    char log[KELP_RUN_PATH_MAX + 64];
    const char *run = launcher->launch->run->path;

    (void)snprintf(folder, sizeof(folder), "%s/etcd", run);
    (void)snprintf(log, sizeof(log), "%s/logs/etcd.log", run);
    struct kelp_etcd_server_options options = {.data_folder = folder,
                                               .log_path = log,
                                               .program = launcher->launch->etcd_program,
                                               .client_port = port};
    kelp_status status = kelp_etcd_server_start(&options, &launcher->etcd, reterr);
    if (status == KELP_OK) {
        launcher->etcd_url = kelp_etcd_server_url(launcher->etcd);
    }
    return status;
}

static kelp_status write_cluster(const struct launcher *launcher, struct kelp_error *reterr)
{
    char text[1024];

    /* Neither the job's name nor a URL that etcd's client took holds quotes. */
    (void)snprintf(text, sizeof(text), "{\"job\":\"%s\",\"etcd\":\"%s\",\"pid\":%ld}\n",
                   launcher->launch->job->name, launcher->etcd_url, (long)getpid());
    return kelp_run_dir_write(launcher->launch->run, "cluster.json", text, reterr);
}

/* The job that stands in etcd must be this one, whoever put it there; what may differ in a resumed
 * run (kelp_train_job_same()) is replaced: nothing of the run is up that could have read it. */
static kelp_status renew_spec(struct kelp_client *client, const char *key,
                              const struct kelp_launch *launch, struct kelp_error *reterr)
{
    char *spec = NULL;
    uint64_t ours = 0;
    uint64_t theirs = 0;

    kelp_status status = kelp_client_get(client, "spec", KELP_LAUNCH_ETCD_MS, &spec, reterr);
    if (status != KELP_OK) {
        return status;
    }
    bool same = strcmp(spec, launch->spec) == 0;
    status = kelp_train_job_digest("the job in etcd", spec, &theirs, reterr);
    free(spec);
    if (status == KELP_OK) {
        status = kelp_train_job_digest("the job", launch->spec, &ours, reterr);
    }
    if (status == KELP_OK && ours != theirs) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "etcd holds another job named '%s'; choose another name, or resume with "
                         "the job as it was",
                         launch->job->name);
    }
    if (status == KELP_OK && !same) {
        status = kelp_etcd_put(kelp_client_etcd(client), key, launch->spec, 0, KELP_LAUNCH_ETCD_MS,
                               reterr);
    }
    return status;
}

/* A job that failed tries again when it is resumed: what made it fail may be mended. */
static kelp_status forget_failure(struct kelp_client *client, struct kelp_error *reterr)
{
    char key[KELP_CLIENT_KEY_MAX + 1];
    char *state = NULL;

    kelp_status status = kelp_client_get(client, "state", KELP_LAUNCH_ETCD_MS, &state, reterr);
    if (status == KELP_ERR_NOT_FOUND) {
        return KELP_OK;
    }
    if (status == KELP_OK && strstr(state, "\"failed\"")) {
        kelp_client_key(client, "state", key);
        status =
            kelp_etcd_delete_prefix(kelp_client_etcd(client), key, KELP_LAUNCH_ETCD_MS, reterr);
    }
    free(state);
    return status;
}

static kelp_status put_spec(struct kelp_client *client, const struct kelp_launch *launch,
                            struct kelp_error *reterr)
{
    char key[KELP_CLIENT_KEY_MAX + 1];
    bool succeeded = false;
    int64_t revision = 0;

    kelp_client_key(client, "spec", key);
    struct kelp_etcd_compare compare = {.key = key, .what = KELP_ETCD_CREATE_REVISION};
    struct kelp_etcd_operation operation = {.key = key, .value = launch->spec};
    /* Whose value stands there does not matter as long as it is this job's: no nonce. */
    kelp_status status =
        kelp_etcd_transaction(kelp_client_etcd(client), &compare, 1, &operation, 1, NULL,
                              KELP_LAUNCH_ETCD_MS, &succeeded, &revision, reterr);
    if (status == KELP_ERR_TIMEOUT || (status == KELP_OK && !succeeded)) {
        status = renew_spec(client, key, launch, reterr);
    }
    return status;
}

static kelp_status submit(struct launcher *launcher, struct kelp_error *reterr)
{
    struct kelp_client *client = NULL;

    kelp_status status =
        kelp_client_open(launcher->etcd_url, launcher->launch->job->name, &client, reterr);
    if (status == KELP_OK) {
        status = put_spec(client, launcher->launch, reterr);
        if (status == KELP_OK && launcher->launch->resume) {
            status = forget_failure(client, reterr);
        }
        kelp_client_close(client);
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

static kelp_status start_children(struct launcher *launcher, struct kelp_error *reterr)
{
    const struct kelp_launch *launch = launcher->launch;
    const struct {
        enum kelp_child_kind kind;
        uint32_t count;
    } wanted[] = {{KELP_CHILD_COORDINATOR, launch->coordinators},
                  {KELP_CHILD_SHARD, launch->job->cluster.shards},
                  {KELP_CHILD_WORKER, workers_at_start(launch)}};
    struct kelp_children_options options = {
        .bin_folder = launch->bin_folder,
        .run_path = launch->run->path,
        .etcd_url = launcher->etcd_url,
        .job = launch->job->name,
        .log_level = launch->log_level,
        .trials = &launcher->trials,
        .display = launcher->display,
        .workers_min = launch->job->cluster.workers.min,
        .policy = {.max_failures = launch->job->failure.max_failures,
                   .backoff_ms = launch->job->failure.restart_backoff_ms,
                   .restart = !launch->no_restart}};

    kelp_children_init(&launcher->children, &options);
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

/* True when the run has been asked to stop. */
static bool stopping(const struct launcher *launcher)
{
    return kelp_guard_signal(launcher->guard) != 0;
}

static kelp_status start_all(struct launcher *launcher, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    launcher->etcd_url = launcher->launch->etcd_url;
    if (!launcher->etcd_url) {
        status = start_etcd(launcher, 0, reterr);
    }
    if (status == KELP_OK) {
        status = write_cluster(launcher, reterr);
    }
    if (status == KELP_OK && !stopping(launcher)) {
        status = submit(launcher, reterr);
    }
    if (status == KELP_OK && !stopping(launcher)) {
        status = kelp_monitor_start(launcher->etcd_url, launcher->launch->job->name,
                                    &launcher->monitor, reterr);
    }
    if (status == KELP_OK && !stopping(launcher)) {
        status = start_children(launcher, reterr);
    }
    return status;
}

/* ---- running ----------------------------------------------------------------------------------
 */

/* A private etcd that died comes back at the same address with the same data; training goes on
 * meanwhile. */
static kelp_status tend_etcd(struct launcher *launcher, struct kelp_error *reterr)
{
    char how[64];
    int wait_status = 0;

    if (!launcher->etcd || kelp_process_wait(kelp_etcd_server_process(launcher->etcd), 0,
                                             &wait_status) == KELP_ERR_TIMEOUT) {
        return KELP_OK;
    }
    kelp_process_describe(wait_status, how, sizeof(how));
    kelp_display_say(launcher->display, "etcd %s; it is started again", how);
    uint16_t port = kelp_etcd_server_port(launcher->etcd);
    kelp_etcd_server_stop(launcher->etcd, 0);
    launcher->etcd = NULL;
    launcher->etcd_failures++;
    int32_t allowed = launcher->launch->job->failure.max_failures;
    if (allowed >= 0 && launcher->etcd_failures > (uint32_t)allowed) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "etcd %s, and failure.max_failures=%d restarts are used up; see "
                         "%s/logs/etcd.log",
                         how, allowed, launcher->launch->run->path);
    }
    return start_etcd(launcher, port, reterr);
}

static kelp_status apply_timed(struct launcher *launcher, uint64_t step, struct kelp_error *reterr)
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
                             found ? "is killed, as asked for" : "does not run, nothing to kill");
            continue;
        }
        kelp_display_say(launcher->display, "step %" PRIu64 ": one more worker, as asked for",
                         step);
        kelp_status status = kelp_children_add(&launcher->children, KELP_CHILD_WORKER, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

static void show(struct launcher *launcher, uint64_t now)
{
    struct kelp_meter meter = {.reason = "the cluster starts", .left_s = -1};

    if (launcher->status) {
        kelp_status_meter(launcher->status, launcher->launch->job->train.batch_size,
                          kelp_rate_recent(&launcher->rate), &meter);
        if (now - launcher->status_ms > SILENT_MS) {
            meter.running = false;
            meter.reason = "the coordinator does not answer";
        }
    }
    kelp_display_update(launcher->display, &meter, now);
}

static kelp_status take_status(struct launcher *launcher, uint64_t now, struct kelp_error *reterr)
{
    Kelp__V1__StatusReply *status = kelp_monitor_take(launcher->monitor, NULL);

    if (!status) {
        return KELP_OK;
    }
    kelp_client_status_free(launcher->status);
    launcher->status = status;
    launcher->status_ms = now;
    kelp_ledger_take(&launcher->ledger, status);
    if (!status->word) {
        kelp_rate_add(&launcher->rate, 0, now);
        return KELP_OK;
    }
    /* The end is seen up to one question late: it does not count once there is enough to go by. */
    bool last = status->total_steps > 0 && status->word->step >= status->total_steps;
    if (!last || launcher->rate.highest_ms - launcher->rate.first_ms < KELP_RATE_SHORT_MS) {
        kelp_rate_add(&launcher->rate, status->word->step, now);
    }
    return apply_timed(launcher, status->word->step, reterr);
}

static void wait_for_event(struct launcher *launcher)
{
    struct pollfd *items = launcher->items;
    uint32_t count = 0;

    items[count++] = (struct pollfd){.fd = kelp_guard_stop_fd(launcher->guard), .events = POLLIN};
    items[count++] = (struct pollfd){.fd = kelp_monitor_fd(launcher->monitor), .events = POLLIN};
    if (launcher->etcd) {
        items[count++] = (struct pollfd){
            .fd = kelp_process_fd(kelp_etcd_server_process(launcher->etcd)), .events = POLLIN};
    }
    count += kelp_children_poll(&launcher->children, items + count, POLL_ROOM - count);
    /* The monitor's answers (or their absence) come several times a second. */
    (void)poll(items, count, kelp_children_wait_ms(&launcher->children, now_ms()));
}

static bool state_is(const struct launcher *launcher, const char *state)
{
    return launcher->status && strcmp(launcher->status->state, state) == 0;
}

/* Until the job is done or failed, a stop is asked for, or an error ends the run. */
static kelp_status run(struct launcher *launcher, struct kelp_error *reterr)
{
    while (!stopping(launcher)) {
        uint64_t now = now_ms();
        kelp_status status = take_status(launcher, now, reterr);
        if (status != KELP_OK || state_is(launcher, "done") || state_is(launcher, "failed")) {
            return status;
        }
        status = tend_etcd(launcher, reterr);
        if (status == KELP_OK) {
            status = kelp_children_tend(&launcher->children, now, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
        show(launcher, now);
        wait_for_event(launcher);
    }
    return KELP_OK;
}

/* ---- ending -----------------------------------------------------------------------------------
 */

/* The model as the shards have it must be the one that the workers reported the digest of. */
static kelp_status save_model(struct launcher *launcher, struct kelp_error *reterr)
{
    const struct kelp_launch *launch = launcher->launch;
    struct kelp_client *client = NULL;
    struct kelp_plan plan;
    float *flat = NULL;
    uint64_t step = 0;
    char path[KELP_RUN_PATH_MAX + 64];
    char digest[KELP_DIGEST_HEX_BYTES];

    kelp_status status = kelp_client_open(launcher->etcd_url, launch->job->name, &client, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_model_fetch(client, launch->spec_digest, KELP_LAUNCH_PULL_MS, &plan, &flat, &step,
                              reterr);
    kelp_client_close(client);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "cannot fetch the model: ");
        return status;
    }
    kelp_plan_digest(&plan, flat, digest);
    if (strcmp(digest, launcher->status->digest) != 0) {
        status = kelp_fail(reterr, KELP_ERR_CORRUPT,
                           "the shards' weights have digest %s, the workers reported %s", digest,
                           launcher->status->digest);
    }
    if (status == KELP_OK) {
        status =
            kelp_run_dir_path(launch->run->path, "model.safetensors", path, sizeof(path), reterr);
    }
    if (status == KELP_OK) {
        status = kelp_model_write(path, &plan, flat, launch->job->name, step, reterr);
    }
    free(flat);
    kelp_plan_fini(&plan);
    return status;
}

static void write_result(struct launcher *launcher)
{
    struct kelp_error error;
    char *text = NULL;

    launcher->result->wall_s = (double)(now_ms() - launcher->launch->start_ms) / 1000;
    kelp_status status = kelp_result_print(launcher->result, &text, &error);
    if (status == KELP_OK) {
        status = kelp_run_dir_write(launcher->launch->run, "result.json", text, &error);
    }
    if (status != KELP_OK) {
        kelp_display_say(launcher->display, "%s", error.text);
    }
    free(text);
}

static int exit_status_of(kelp_status status)
{
    switch (status) {
    case KELP_ERR_INVALID:
    case KELP_ERR_MISMATCH:
        return KELP_EXIT_USAGE;
    case KELP_ERR_UNREACHABLE:
    case KELP_ERR_TIMEOUT:
    case KELP_ERR_NOT_FOUND:
        return KELP_EXIT_UNREACHABLE;
    default:
        return KELP_EXIT_FAILED;
    }
}

static void set_outcome(struct kelp_result *result, const char *status, const char *reason)
{
    (void)snprintf(result->status, sizeof(result->status), "%s", status);
    (void)snprintf(result->reason, sizeof(result->reason), "%s", reason);
}

static void stop_all(struct launcher *launcher)
{
    kelp_children_stop(&launcher->children, KELP_LAUNCH_GRACE_MS);
    kelp_monitor_stop(launcher->monitor);
    launcher->monitor = NULL;
    kelp_etcd_server_stop(launcher->etcd, KELP_LAUNCH_ETCD_GRACE_MS);
    launcher->etcd = NULL;
    kelp_client_status_free(launcher->status);
    launcher->status = NULL;
}

/* What it came to: fills result->status and reason, returns the exit status. */
static int conclude(struct launcher *launcher, kelp_status status, struct kelp_error *error)
{
    struct kelp_result *result = launcher->result;

    if (launcher->status) {
        kelp_status_result(launcher->status, result);
    }
    result->restarts = launcher->children.failures + launcher->etcd_failures;
    result->steps_per_s = kelp_rate_whole(&launcher->rate);
    kelp_ledger_result(&launcher->ledger, result);
    if (stopping(launcher)) {
        set_outcome(result, "stopped", "");
        return kelp_guard_signal(launcher->guard) == SIGINT ? 128 + SIGINT : KELP_EXIT_OK;
    }
    if (status == KELP_OK && state_is(launcher, "failed")) {
        set_outcome(result, "failed", launcher->status->reason);
        return KELP_EXIT_JOB_FAILED;
    }
    if (status == KELP_OK) {
        assert(launcher->status); /* run() ends in order when the state says done, or on a stop */
        status = save_model(launcher, error);
    }
    if (status != KELP_OK && stopping(launcher)) {
        set_outcome(result, "stopped", "");
        return kelp_guard_signal(launcher->guard) == SIGINT ? 128 + SIGINT : KELP_EXIT_OK;
    }
    if (status != KELP_OK) {
        set_outcome(result, "failed", error->text);
        return exit_status_of(status);
    }
    set_outcome(result, "done", "");
    return KELP_EXIT_OK;
}

int kelp_launcher_run(const struct kelp_launch *launch, struct kelp_guard *guard,
                      struct kelp_display *display, struct kelp_result *result)
{
    struct launcher *launcher = calloc(1, sizeof(*launcher));
    struct kelp_error error = {.status = KELP_OK};

    if (!launcher) {
        set_outcome(result, "failed", "out of memory");
        return KELP_EXIT_FAILED;
    }
    launcher->launch = launch;
    launcher->guard = guard;
    launcher->display = display;
    launcher->result = result;
    launcher->trials = *launch->trials;
    (void)snprintf(result->job, sizeof(result->job), "%s", launch->job->name);
    kelp_status status = start_all(launcher, &error);
    if (status == KELP_OK && !stopping(launcher)) {
        status = run(launcher, &error);
    }
    int exit_status = conclude(launcher, status, &error);
    kelp_display_clear(display);
    write_result(launcher);
    stop_all(launcher);
    free(launcher);
    return exit_status;
}

kelp_status kelp_launcher_check_etcd(const char *etcd_url, const char *job, bool resume,
                                     struct kelp_error *reterr)
{
    struct kelp_etcd *etcd = NULL;
    struct kelp_etcd_range range = {0};
    char prefix[KELP_CLIENT_KEY_MAX + 1];

    kelp_status status = kelp_etcd_open(etcd_url, &etcd, reterr);
    if (status != KELP_OK) {
        return status;
    }
    (void)snprintf(prefix, sizeof(prefix), "/kelp/%s/", job);
    status = kelp_etcd_get_prefix(etcd, prefix, KELP_LAUNCH_ETCD_MS, &range, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "etcd at %s: ", etcd_url);
    } else if (range.count > 0 && !resume) {
        status = kelp_fail(reterr, KELP_ERR_EXISTS,
                           "etcd at %s has a job '%s' already; go on with it by --resume, or "
                           "choose another name",
                           etcd_url, job);
    }
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(etcd);
    return status;
}
