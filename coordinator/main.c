/*
 * kelp-coordinator: membership, lane assignment and the partition map of one job. One leads, any
 * number stand by.
 */
#include <curl/curl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

#include "common/base/random_id.h"
#include "common/log/log.h"
#include "common/process/signals.h"
#include "common/program/daemon.h"
#include "common/program/expiry_watch.h"
#include "common/program/options/options.h"
#include "common/rpc/rpc.h"
#include "common/scrape/scrape.h"
#include "coordinator/coordinator.h"
#include "coordinator/coordinator_program.h"

static kelp_status set_up(const struct kelp_options *given,
                          struct kelp_coordinator_options *ret_options, struct kelp_error *reterr)
{
    struct stat info;
    struct kelp_coordinator_options options = {
        .etcd = kelp_options_text(given, "etcd"),
        .job = kelp_options_text(given, "job"),
        .id = kelp_options_text(given, "id"),
        .run_folder = kelp_options_text(given, "run"),
        .spec_sha256 = kelp_options_text(given, "spec-sha256"),
        .no_checkpoints = kelp_options_flag(given, "no-checkpoints"),
        .force = kelp_options_flag(given, "force"),
        .grace_ms = (uint32_t)kelp_options_duration_ms(given, "grace"),
    };
    if (stat(options.run_folder, &info) != 0 || !S_ISDIR(info.st_mode)) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "--run: %s is not a folder",
                         options.run_folder);
    }
    kelp_status status = kelp_random_id(&options.incarnation, reterr);
    if (status == KELP_OK) {
        *ret_options = options;
    }
    return status;
}

/* The stopper waits for signals before any other thread exists; one may come before there is a
 * coordinator to stop. */
struct stopper {
    pthread_mutex_t lock; /* guards the rest */
    struct kelp_coordinator *coordinator;
    bool stopped;
    bool told;             /* asked to end in order */
    struct kelp_stop stop; /* raised if there is no coordinator yet */
};

/* SIGTERM ends the coordinator in order; any other signal, or a second one, ends it at once. */
static void on_signal(int signal_number, void *user)
{
    struct stopper *stopper = user;
    kelp_log_info("stopping signal=%d", signal_number);
    (void)pthread_mutex_lock(&stopper->lock);
    if (signal_number == SIGTERM && !stopper->told && stopper->coordinator) {
        stopper->told = true;
        kelp_coordinator_end(stopper->coordinator);
    } else {
        stopper->stopped = true;
        kelp_stop_raise(&stopper->stop);
        if (stopper->coordinator) {
            kelp_coordinator_stop(stopper->coordinator);
        }
    }
    (void)pthread_mutex_unlock(&stopper->lock);
}

/* Send signals to the coordinator from now on, also one that came before; NULL: to none. */
static void set_stopped(struct stopper *stopper, struct kelp_coordinator *coordinator)
{
    (void)pthread_mutex_lock(&stopper->lock);
    stopper->coordinator = coordinator;
    if (stopper->stopped && coordinator) {
        kelp_coordinator_stop(coordinator);
    }
    (void)pthread_mutex_unlock(&stopper->lock);
}

static int serve(const struct kelp_coordinator_options *options, struct stopper *stopper)
{
    struct kelp_coordinator *coordinator = NULL;
    struct kelp_expiry_watch *expiry = NULL;
    struct kelp_error error;
    int exit_code = KELP_EXIT_FAILED;
    kelp_status status = kelp_expiry_watch_start(options->credentials, &expiry, &error);
    if (status == KELP_OK) {
        status = kelp_daemon_find_address(options->serving, &stopper->stop, &error);
    }
    if (status == KELP_OK) {
        status = kelp_coordinator_create(options, &coordinator, &error);
    }
    if (status == KELP_OK) {
        status = kelp_coordinator_open(coordinator, &error);
    }
    if (status == KELP_OK) {
        set_stopped(stopper, coordinator);
        exit_code = kelp_coordinator_run(coordinator);
        set_stopped(stopper, NULL);
    } else if (status == KELP_ERR_TIMEOUT && kelp_stop_raised(&stopper->stop)) {
        exit_code = KELP_EXIT_OK; /* stopped before it knew where to listen */
    } else {
        (void)fprintf(stderr, "kelp-coordinator: %s\n", error.text);
        exit_code = kelp_daemon_exit_code(status);
    }
    kelp_coordinator_destroy(coordinator);
    kelp_expiry_watch_stop(expiry);
    return exit_code;
}

static int serve_with_signals(const struct kelp_coordinator_options *options)
{
    struct stopper stopper = {.lock = PTHREAD_MUTEX_INITIALIZER, .stop = KELP_STOP_INIT};
    struct kelp_signals *signals = NULL;
    struct kelp_error error;
    if (kelp_signals_start(on_signal, &stopper, &signals, &error) != KELP_OK) {
        (void)fprintf(stderr, "kelp-coordinator: %s\n", error.text);
        return KELP_EXIT_FAILED;
    }
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    kelp_rpc_global_init();
    int exit_code = serve(options, &stopper);
    kelp_rpc_global_fini();
    curl_global_cleanup();
    kelp_signals_stop(signals);
    return exit_code;
}

int main(int argc, char **argv)
{
    struct kelp_options *given = NULL;
    struct kelp_coordinator_options options;
    struct kelp_serving serving;
    struct kelp_scrape *scrape = NULL;
    struct kelp_error error;
    int exit_code = KELP_EXIT_OK;
    if (!kelp_options_read(&kelp_coordinator_program, argc, argv, &given, &exit_code)) {
        return exit_code;
    }
    if (!kelp_daemon_begin(&kelp_coordinator_program, given, "coordinator")) {
        kelp_options_destroy(given);
        return KELP_EXIT_USAGE;
    }
    if (set_up(given, &options, &error) != KELP_OK) {
        (void)fprintf(stderr, "kelp-coordinator: %s\n", error.text);
        kelp_options_destroy(given);
        return KELP_EXIT_USAGE;
    }
    if (!kelp_daemon_credentials(&kelp_coordinator_program, given, KELP_ROLE_COORDINATOR,
                                 &options.credentials) ||
        !kelp_daemon_may_listen(&kelp_coordinator_program, given, options.credentials, &serving) ||
        !kelp_scrape_begin(&kelp_coordinator_program, given,
                           &(struct kelp_scrape_process){KELP_FIGURE_OF_COORDINATOR, "coordinator",
                                                         options.credentials},
                           &scrape)) {
        kelp_credentials_close(options.credentials);
        kelp_options_destroy(given);
        return KELP_EXIT_USAGE;
    }
    options.serving = &serving;
    options.figures = kelp_scrape_figures(scrape);
    (void)signal(SIGPIPE, SIG_IGN);
    exit_code = serve_with_signals(&options);
    kelp_scrape_close(scrape);
    kelp_credentials_close(options.credentials);
    kelp_options_destroy(given);
    return exit_code;
}
