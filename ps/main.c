/* kelp-ps: one shard of a job's parameter server. */
#include <curl/curl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/process_name.h"
#include "common/base/random_id.h"
#include "common/etcd/etcd.h"
#include "common/job/job.h"
#include "common/log/log.h"
#include "common/process/signals.h"
#include "common/program/daemon.h"
#include "common/program/expiry_watch.h"
#include "common/program/grace.h"
#include "common/program/options/map_option.h"
#include "common/program/options/options.h"
#include "common/program/options/trace_option.h"
#include "common/program/shm_option.h"
#include "common/rpc/rpc.h"
#include "common/scrape/limits.h"
#include "common/scrape/scrape.h"
#include "ps/core/limits.h"
#include "ps/etcd_leader.h"
#include "ps/etcd_registration.h"
#include "ps/ps_program.h"
#include "ps/service/shard_service.h"

struct daemon {
    const char *etcd_url;
    const char *job_name;
    const char *id;
    struct kelp_serving serving;
    const char *run;
    const char *zone;
    const char *shm_folder;               /* NULL: none */
    const char *spec_sha256;              /* NULL: any */
    struct kelp_path_map paths;           /* where files of the job lie on this machine */
    struct kelp_credentials *credentials; /* NULL: no TLS */
    uint32_t threads;                     /* 0: the number of streams that a worker opens */
    uint64_t incarnation;
    char address[300];
    struct kelp_etcd *etcd;
    struct kelp_job_file *job_file;
    struct kelp_rpc_loop *loop;
    struct kelp_service *service;
    struct kelp_leader_watch *leader;
    struct kelp_registration *registration;
    struct kelp_scrape *scrape;  /* NULL: no metrics are served */
    struct kelp_rpc_timer *look; /* likewise */
    struct kelp_trace *trace;    /* NULL: not traced */
    atomic_bool replaced;
    atomic_bool asked;         /* a signal asked to stop */
    struct kelp_error refused; /* why the registration ends this process; guarded by lock */
    struct kelp_grace grace;

    struct kelp_stop stop;
    pthread_mutex_t lock; /* guards loop and service while they are being set */
};

/* ---- the end ---- */

static void request_stop(struct daemon *daemon)
{
    kelp_stop_raise(&daemon->stop);
    (void)pthread_mutex_lock(&daemon->lock);
    if (daemon->loop) {
        kelp_rpc_loop_wake(daemon->loop);
    }
    (void)pthread_mutex_unlock(&daemon->lock);
}

/* Ask the leader to drain the shard. False: there is nothing to drain. */
static bool drains(struct daemon *daemon)
{
    (void)pthread_mutex_lock(&daemon->lock);
    bool asked =
        daemon->service && !kelp_stop_raised(&daemon->stop) && kelp_service_leave(daemon->service);
    (void)pthread_mutex_unlock(&daemon->lock);
    return asked;
}

/* SIGTERM drains the shard first; any other signal, or a second one, stops it at once. */
static void on_signal(int signal_number, void *user)
{
    struct daemon *daemon = user;
    bool first = !atomic_exchange(&daemon->asked, true);

    if (signal_number == SIGTERM && first && drains(daemon)) {
        kelp_log_info("is drained before it stops signal=%d grace_ms=%u", signal_number,
                      daemon->grace.ms);
        kelp_grace_begin(&daemon->grace);
        return;
    }
    kelp_log_info("stopping signal=%d", signal_number);
    request_stop(daemon);
}

static void on_may_leave(const char *why, void *user)
{
    kelp_log_info("may leave why=\"%s\"", why);
    request_stop(user);
}

static void on_doubt_leader(void *user)
{
    const struct daemon *daemon = user;

    if (daemon->leader) {
        kelp_leader_watch_doubt(daemon->leader);
    }
}

/* The state that the shard still holds is lost, as after a kill. */
static void on_grace_over(void *user)
{
    struct daemon *daemon = user;
    char text[96] = "its streams are open";

    (void)pthread_mutex_lock(&daemon->lock);
    if (daemon->service) {
        kelp_service_describe(daemon->service, text, sizeof(text));
    }
    (void)pthread_mutex_unlock(&daemon->lock);
    kelp_log_warn("gives up after its grace period ms=%u: %s", daemon->grace.ms, text);
    request_stop(daemon);
}

static void on_replaced(void *user)
{
    struct daemon *daemon = user;

    atomic_store(&daemon->replaced, true);
    request_stop(daemon);
}

static void on_refused(const struct kelp_error *why, void *user)
{
    struct daemon *daemon = user;

    (void)pthread_mutex_lock(&daemon->lock);
    daemon->refused = *why;
    (void)pthread_mutex_unlock(&daemon->lock);
    request_stop(daemon);
}

static void on_leader_known(const char *proof_digest, void *user)
{
    struct daemon *daemon = user;

    kelp_service_leader(daemon->service, proof_digest);
}

/* ---- start ---- */

static kelp_status start(struct daemon *daemon, struct kelp_error *reterr)
{
    struct kelp_rpc_loop *loop = NULL;
    kelp_status status = kelp_random_id(&daemon->incarnation, reterr);

    if (status == KELP_OK) {
        status = kelp_etcd_open_certified(
            daemon->etcd_url, kelp_credentials_folder(daemon->credentials), &daemon->etcd, reterr);
    }
    if (status == KELP_OK) {
        const struct kelp_daemon_job job = {daemon->job_name, daemon->spec_sha256, &daemon->paths};
        status = kelp_daemon_read_job(daemon->etcd, &job, &daemon->stop, &daemon->job_file, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_daemon_find_address(&daemon->serving, &daemon->stop, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_rpc_loop_create(&loop, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    kelp_rpc_loop_credentials(loop, daemon->credentials);
    kelp_rpc_loop_shm_folder(loop, daemon->shm_folder);
    (void)pthread_mutex_lock(&daemon->lock);
    daemon->loop = loop;
    (void)pthread_mutex_unlock(&daemon->lock);
    struct kelp_service_options options = {.loop = loop,
                                           .job = kelp_job_file_job(daemon->job_file),
                                           .spec_digest = kelp_job_file_digest(daemon->job_file),
                                           .id = daemon->id,
                                           .incarnation = daemon->incarnation,
                                           .listen = daemon->serving.listen,
                                           .advertise = kelp_serving_advertise(&daemon->serving),
                                           .run = daemon->run,
                                           .figures = kelp_scrape_figures(daemon->scrape),
                                           .trace = daemon->trace,
                                           .may_leave = on_may_leave,
                                           .refused = on_refused,
                                           .doubt_leader = on_doubt_leader,
                                           .user = daemon};
    struct kelp_service *service = NULL;
    status = kelp_service_open(&options, &service, reterr);
    if (status != KELP_OK) {
        return status;
    }
    (void)pthread_mutex_lock(&daemon->lock);
    daemon->service = service;
    (void)pthread_mutex_unlock(&daemon->lock);
    (void)snprintf(daemon->address, sizeof(daemon->address), "%s",
                   kelp_service_address(daemon->service));
    kelp_log_info("serving job=%s address=%s incarnation=%" PRIu64, daemon->job_name,
                  daemon->address, daemon->incarnation);
    return KELP_OK;
}

/* Watch the leader, and register. */
static kelp_status meet(struct daemon *daemon, struct kelp_error *reterr)
{
    const struct kelp_leader_watch_options leader = {.etcd = daemon->etcd,
                                                     .loop = daemon->loop,
                                                     .job = daemon->job_name,
                                                     .known = on_leader_known,
                                                     .user = daemon};
    kelp_status status = kelp_leader_watch_open(&leader, &daemon->leader, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_registration_options entry = {
        .etcd = daemon->etcd,
        .job = daemon->job_name,
        .shard = daemon->id,
        .address = daemon->address,
        .serving = &daemon->serving,
        .incarnation = daemon->incarnation,
        .zone = daemon->zone,
        .mixed = kelp_job_file_job(daemon->job_file)->cluster.mixed,
        .replaced = on_replaced,
        .refused = on_refused,
        .user = daemon};
    return kelp_registration_open(&entry, &daemon->registration, reterr);
}

/* ---- metrics ---- */

static void on_look(void *user)
{
    struct daemon *daemon = user;
    const char *why = kelp_service_look(daemon->service);

    kelp_figures_beat(kelp_scrape_figures(daemon->scrape));
    kelp_figures_ready(
        kelp_scrape_figures(daemon->scrape),
        kelp_registration_holds(daemon->registration) ? why : "its entry does not stand in etcd");
}

static kelp_status watch(struct daemon *daemon, struct kelp_error *reterr)
{
    if (daemon->scrape && kelp_rpc_timer_start(daemon->loop, KELP_SCRAPE_LOOK_MS, on_look, daemon,
                                               &daemon->look) != KELP_OK) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "--metrics: no memory for a timer");
    }
    return KELP_OK;
}

/* ---- running ---- */

static void *serve(void *user)
{
    struct daemon *daemon = user;
    struct kelp_spin spin;

    kelp_spin_init(&spin, KELP_SPIN_ONCE_US, kelp_clock_us());
    while (!kelp_stop_raised(&daemon->stop)) {
        (void)kelp_rpc_loop_run_spin(daemon->loop, &spin, -1);
    }
    kelp_rpc_loop_wake(daemon->loop); /* so that the next thread ends, too */
    return NULL;
}

static void serve_on_all_threads(struct daemon *daemon)
{
    pthread_t threads[KELP_PS_THREADS_MAX];
    const uint32_t wanted = daemon->threads > 0
                                ? daemon->threads
                                : kelp_job_file_job(daemon->job_file)->transport.streams;
    uint32_t started = 0;

    while (started + 1 < wanted) {
        if (pthread_create(&threads[started], NULL, serve, daemon) != 0) {
            kelp_log_warn("fewer threads than asked for threads=%u", started + 1);
            break;
        }
        started++;
    }
    (void)serve(daemon);
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

static void finish(struct daemon *daemon)
{
    if (daemon->look) {
        kelp_rpc_timer_stop(daemon->look);
    }
    kelp_leader_watch_close(daemon->leader);
    kelp_registration_close(daemon->registration);
    (void)pthread_mutex_lock(&daemon->lock);
    struct kelp_service *service = daemon->service;
    daemon->service = NULL;
    (void)pthread_mutex_unlock(&daemon->lock);
    kelp_service_close(service);
    (void)pthread_mutex_lock(&daemon->lock);
    struct kelp_rpc_loop *loop = daemon->loop;
    daemon->loop = NULL;
    (void)pthread_mutex_unlock(&daemon->lock);
    kelp_rpc_loop_destroy(loop);
    kelp_leader_watch_destroy(daemon->leader);
    kelp_job_file_destroy(daemon->job_file);
    kelp_etcd_close(daemon->etcd);
}

static int run(struct daemon *daemon)
{
    struct kelp_signals *signals = NULL;
    struct kelp_expiry_watch *expiry = NULL;
    struct kelp_error error = {.text = ""};
    kelp_status status = kelp_signals_start(on_signal, daemon, &signals, &error);

    if (status == KELP_OK) {
        (void)curl_global_init(CURL_GLOBAL_DEFAULT);
        kelp_rpc_global_init();
        status = kelp_expiry_watch_start(daemon->credentials, &expiry, &error);
        if (status == KELP_OK) {
            status = start(daemon, &error);
        }
        if (status == KELP_OK) {
            status = meet(daemon, &error);
        }
        if (status == KELP_OK) {
            status = watch(daemon, &error);
        }
        if (status == KELP_OK) {
            serve_on_all_threads(daemon);
        }
        kelp_trace_finish(daemon->trace);
        finish(daemon);
        if (status == KELP_OK && daemon->refused.status != KELP_OK) {
            error = daemon->refused;
            status = error.status;
        }
        kelp_expiry_watch_stop(expiry);
        kelp_rpc_global_fini();
        curl_global_cleanup();
    }
    kelp_signals_stop(signals);
    kelp_grace_fini(&daemon->grace);
    if (status == KELP_ERR_TIMEOUT && kelp_stop_raised(&daemon->stop)) {
        return KELP_EXIT_OK; /* asked to stop before there was a job */
    }
    if (status != KELP_OK) {
        kelp_log_error("%s", error.text);
    }
    return atomic_load(&daemon->replaced) ? KELP_EXIT_FAILED : kelp_daemon_exit_code(status);
}

static bool check_zone(const char *zone)
{
    bool good = zone[0] == '\0' || kelp_process_name_valid(zone);

    if (!good) {
        (void)fprintf(stderr, "%s: --zone is 1 to %d letters, digits, '-', '_' or '.'\n",
                      kelp_ps_program.name, KELP_JOB_NAME_MAX);
    }
    return good;
}

int main(int argc, char **argv)
{
    struct kelp_options *options;
    struct daemon daemon = {.stop = KELP_STOP_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};
    int exit_code;

    if (!kelp_options_read(&kelp_ps_program, argc, argv, &options, &exit_code)) {
        return exit_code;
    }
    daemon.etcd_url = kelp_options_text(options, "etcd");
    daemon.job_name = kelp_options_text(options, "job");
    daemon.id = kelp_options_text(options, "id");
    daemon.run = kelp_options_text(options, "run");
    daemon.zone = kelp_options_text(options, "zone");
    daemon.spec_sha256 = kelp_options_text(options, "spec-sha256");
    daemon.threads = kelp_options_given(options, "threads")
                         ? (uint32_t)kelp_options_integer(options, "threads")
                         : 0;
    kelp_grace_init(&daemon.grace, (uint32_t)kelp_options_duration_ms(options, "grace"),
                    on_grace_over, &daemon);
    exit_code = KELP_EXIT_USAGE;
    if (kelp_daemon_begin(&kelp_ps_program, options, "ps") && check_zone(daemon.zone) &&
        kelp_map_option_begin(&kelp_ps_program, options, &daemon.paths) &&
        kelp_shm_option_begin(&kelp_ps_program, options, &daemon.shm_folder) &&
        kelp_daemon_credentials(&kelp_ps_program, options, KELP_ROLE_SHARD, &daemon.credentials) &&
        kelp_daemon_may_listen(&kelp_ps_program, options, daemon.credentials, &daemon.serving) &&
        kelp_scrape_begin(
            &kelp_ps_program, options,
            &(struct kelp_scrape_process){KELP_FIGURE_OF_PS, "ps", daemon.credentials},
            &daemon.scrape) &&
        kelp_trace_option_begin(&kelp_ps_program, options, &daemon.trace)) {
        exit_code = run(&daemon);
    }
    kelp_trace_close(daemon.trace);
    kelp_scrape_close(daemon.scrape);
    kelp_credentials_close(daemon.credentials);
    kelp_options_destroy(options);
    return exit_code;
}
