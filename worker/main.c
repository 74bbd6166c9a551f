/*
 * kelp-worker: computes gradients of one job. The link to the job (worker/job_link.h) and the
 * trainer do the work.
 */
#include <curl/curl.h>
#include <inttypes.h>
#include <unistd.h>

#include "common/log/log.h"
#include "common/process/signals.h"
#include "common/program/daemon.h"
#include "common/program/expiry_watch.h"
#include "common/program/grace.h"
#include "common/program/options/map_option.h"
#include "common/program/options/options.h"
#include "common/program/options/trace_option.h"
#include "common/program/portable.h"
#include "common/program/shm_option.h"
#include "common/rpc/rpc.h"
#include "common/scrape/scrape.h"
#include "worker/job_link.h"
#include "worker/model/footprint.h"
#include "worker/trainer.h"
#include "worker/worker_program.h"

struct stop_context {
    struct kelp_job_link *job_link; /* atomic */
    struct kelp_stop stop;
    struct kelp_grace grace;
};

/* Lanes that were not sent will be computed again by others. */
static void give_up(void *user)
{
    const struct stop_context *context = user;
    kelp_log_warn("gives up after its grace period ms=%u: not all lanes that it computed were sent",
                  context->grace.ms);
    _exit(KELP_EXIT_OK);
}

/* Runs on the signals' thread. */
static void on_signal(int signal_number, void *user)
{
    struct stop_context *context = user;
    kelp_log_info("stopping signal=%d", signal_number);
    kelp_stop_raise(&context->stop);
    kelp_grace_begin(&context->grace);
    struct kelp_job_link *job_link = __atomic_load_n(&context->job_link, __ATOMIC_ACQUIRE);
    if (job_link) {
        kelp_job_link_wake(job_link);
    }
}

/* A library is opened only if whoever started this worker allowed it: a job in etcd alone
 * cannot. */
static kelp_status check_plugin(const struct kelp_job *job, const char *spec_sha256,
                                struct kelp_error *reterr)
{
    if (job->model.kind == KELP_MODEL_PROGRAM) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "the job is computed by the program %.300s, not by kelp-worker",
                         job->model.python[0] ? job->model.python : job->model.program);
    }
    if (job->model.kind != KELP_MODEL_PLUGIN || (spec_sha256 && job->model.plugin_sha256[0])) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_DENIED,
                     "the job in etcd names the library %.200s (model.plugin): %s",
                     job->model.plugin,
                     spec_sha256 ? "it must also have model.plugin_sha256, which kelp train writes"
                                 : "start the worker with --spec-sha256; its value is spec_sha256 "
                                   "in the run's cluster.json");
}

static kelp_status work(struct kelp_job_link *job_link, const struct kelp_options *values,
                        struct kelp_stop *stop, struct kelp_trainer **ret_trainer,
                        struct kelp_error *reterr)
{
    struct kelp_worker_fault fault = {.kind = KELP_FAULT_NONE};
    kelp_status status =
        check_plugin(kelp_job_link_job(job_link), kelp_options_text(values, "spec-sha256"), reterr);

    if (status == KELP_OK && kelp_options_text(values, "fault")) {
        status = kelp_worker_fault_parse(kelp_options_text(values, "fault"), &fault, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_trainer_create(job_link, ret_trainer, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_trainer_run(*ret_trainer, &fault, stop, reterr);
    }
    kelp_trace_finish(kelp_job_link_trace(job_link)); /* before the layers' names are freed */
    if (status == KELP_ERR_NO_MEMORY &&
        kelp_job_link_job(job_link)->cluster.device == KELP_DEVICE_CUDA) {
        return KELP_ERR_DEVICE; /* GPU memory: other processes may use it */
    }
    return status;
}

/* NULL: not requested. */
struct watchers {
    struct kelp_figures *figures;
    struct kelp_trace *trace;
};

/* *ret_again: nothing was computed, and main() must execute the program anew. */
static kelp_status run(const struct kelp_options *values, struct kelp_credentials *credentials,
                       const struct kelp_path_map *paths, const struct watchers *watchers,
                       bool *ret_again, struct kelp_error *reterr)
{
    struct stop_context context = {.stop = KELP_STOP_INIT};
    const uint32_t grace_ms = (uint32_t)kelp_options_duration_ms(values, "grace");
    struct kelp_signals *signals = NULL;
    struct kelp_job_link *job_link = NULL;
    struct kelp_trainer *trainer = NULL;
    struct kelp_expiry_watch *expiry = NULL;
    const struct kelp_job_link_options link_options = {
        .etcd = kelp_options_text(values, "etcd"),
        .job = kelp_options_text(values, "job"),
        .id = kelp_options_text(values, "id"),
        .credentials = credentials,
        .spec_sha256 = kelp_options_text(values, "spec-sha256"),
        .grace_ms = grace_ms / 4 * 3, /* the rest is left for streams to end */
        .figures = watchers->figures,
        .trace = watchers->trace,
        .paths = paths,
        .shm_folder = kelp_options_text(values, KELP_SHM_FOLDER),
    };
    kelp_grace_init(&context.grace, grace_ms, give_up, &context);
    kelp_rpc_global_several_loops(); /* membership has its own; set before any thread */
    kelp_status status = kelp_signals_start(on_signal, &context, &signals, reterr);
    if (status == KELP_OK) {
        (void)curl_global_init(CURL_GLOBAL_DEFAULT);
        kelp_rpc_global_init();
        status = kelp_expiry_watch_start(credentials, &expiry, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_link_open(&link_options, &context.stop, &job_link, reterr);
    }
    if (status == KELP_OK) {
        *ret_again = kelp_portable_needs_again(kelp_job_link_job(job_link));
    }
    if (status == KELP_OK && !*ret_again) {
        __atomic_store_n(&context.job_link, job_link, __ATOMIC_RELEASE);
        status = work(job_link, values, &context.stop, &trainer, reterr);
    }
    if (!*ret_again) {
        kelp_log_info("ends peak_memory_bytes=%" PRIu64, kelp_footprint_peak());
        kelp_signals_stop(signals); /* before what its callback uses is freed */
    }
    kelp_job_link_close(job_link);
    kelp_trainer_destroy(trainer);
    kelp_expiry_watch_stop(expiry);
    kelp_rpc_global_fini();
    curl_global_cleanup();
    if (*ret_again) { /* kept until now so that no signal is lost; its callback has no worker */
        kelp_signals_stop(signals);
        *ret_again = !kelp_stop_raised(&context.stop);
    }
    kelp_grace_fini(&context.grace);
    return status == KELP_ERR_TIMEOUT && kelp_stop_raised(&context.stop) ? KELP_OK : status;
}

int main(int argc, char **argv)
{
    struct kelp_options *values = NULL;
    struct kelp_credentials *credentials = NULL;
    struct kelp_scrape *scrape = NULL;
    struct watchers watchers = {NULL, NULL};
    struct kelp_path_map paths;
    const char *shm_folder = NULL; /* only for the options; run() reads it again */
    struct kelp_error error = {.text = ""};
    int exit_code;

    if (!kelp_options_read(&kelp_worker_program, argc, argv, &values, &exit_code)) {
        return exit_code;
    }
    if (!kelp_daemon_begin(&kelp_worker_program, values, "worker") ||
        !kelp_map_option_begin(&kelp_worker_program, values, &paths) ||
        !kelp_shm_option_begin(&kelp_worker_program, values, &shm_folder) ||
        !kelp_daemon_credentials(&kelp_worker_program, values, KELP_ROLE_WORKER, &credentials) ||
        !kelp_scrape_begin(
            &kelp_worker_program, values,
            &(struct kelp_scrape_process){KELP_FIGURE_OF_WORKER, "worker", credentials}, &scrape) ||
        !kelp_trace_option_begin(&kelp_worker_program, values, &watchers.trace)) {
        kelp_scrape_close(scrape);
        kelp_credentials_close(credentials);
        kelp_options_destroy(values);
        return KELP_EXIT_USAGE;
    }
    bool again = false;
    watchers.figures = kelp_scrape_figures(scrape);
    kelp_status status = run(values, credentials, &paths, &watchers, &again, &error);
    kelp_trace_close(watchers.trace);
    kelp_scrape_close(scrape);
    kelp_credentials_close(credentials);
    if (again) {
        kelp_log_info("begins again: its job has cluster.compute: portable");
        status = kelp_portable_again(&error);
    }
    if (status != KELP_OK) {
        kelp_log_error("%s", error.text);
    }
    kelp_options_destroy(values);
    return kelp_daemon_exit_code(status);
}
