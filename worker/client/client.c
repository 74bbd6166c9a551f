/*
 * include/kelp/worker.h: the link to the job and the feed of lanes, for programs of users. Calls at
 * a wrong time are refused here; the layers below assert that there are none.
 */
#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/process_name.h"
#include "common/base/sha256.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/program/daemon.h"
#include "common/program/expiry_watch.h"
#include "common/program/shm_option.h"
#include "common/rpc/rpc.h"
#include "common/tensors/digest.h"
#include "worker/client/client_internal.h"
#include "worker/client/client_options.h"

#define GRACE_MS 5000u
#define BLOCK    256u

#define OPTIONS_LEAST 72u /* size of the struct in its first version */

static bool global_ready;

int kelp_worker_global_init(void)
{
    if (global_ready) {
        return KELP_WORKER_OK;
    }
    kelp_rpc_global_several_loops();
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        return kelp__client_no_memory("libcurl");
    }
    kelp_rpc_global_init();
    global_ready = true;
    return KELP_WORKER_OK;
}

uint64_t kelp_worker_hash(const void *bytes, size_t count)
{
    return kelp_digest_bytes(bytes, count);
}

/* ---- opening --------------------------------------------------------------------------------- */

int kelp_worker_options_read(struct kelp_worker_options *options, int *argc, char **argv)
{
    struct kelp_worker_options known;
    struct kelp_error error;

    int result =
        kelp__client_take("kelp_worker_options", &known, sizeof(known), OPTIONS_LEAST, options);
    if (result == KELP_WORKER_OK) {
        result = kelp__client_result(kelp_client_options_read(&known, argc, argv, &error), &error);
    }
    if (result == KELP_WORKER_OK) {
        memcpy(options, &known, known.size < sizeof(known) ? known.size : sizeof(known));
    }
    return result;
}

static int level_of(const char *name, enum kelp_log_level *ret_level)
{
    char names[64] = "";

    *ret_level = KELP_LOG_INFO;
    for (int i = 0; name && kelp_log_level_names[i]; i++) {
        if (strcmp(name, kelp_log_level_names[i]) == 0) {
            *ret_level = (enum kelp_log_level)i;
            return KELP_WORKER_OK;
        }
        kelp_text_list_add(names, sizeof(names), kelp_log_level_names[i]);
    }
    return name ? kelp__client_invalid("log_level \"%.40s\" is none of %s", name, names)
                : KELP_WORKER_OK;
}

static int check_options(const struct kelp_worker_options *options)
{
    if (!global_ready) {
        return kelp__client_invalid(
            "kelp_worker_open(): kelp_worker_global_init() comes before it");
    }
    if (!options->etcd || !options->job || !options->id) {
        return kelp__client_invalid("etcd, job and id are needed");
    }
    if (!kelp_process_name_valid(options->job) || !kelp_process_name_valid(options->id)) {
        return kelp__client_invalid("job and id are 1 to %d letters, digits, '-', '_' or '.'",
                                    KELP_JOB_NAME_MAX);
    }
    if (options->spec_sha256 && !kelp_sha256_is(options->spec_sha256)) {
        return kelp__client_invalid("spec_sha256 is 64 hexadecimal digits in lower case");
    }
    return options->reserved == 0 ? KELP_WORKER_OK : kelp__client_invalid("reserved must be 0");
}

static kelp_status open_certs(struct kelp_worker *worker, const struct kelp_worker_options *options,
                              struct kelp_error *reterr)
{
    if (!options->certs) {
        return KELP_OK;
    }
    kelp_status status = kelp_credentials_open(options->certs, &worker->credentials, reterr);
    if (status == KELP_OK) {
        status = kelp_daemon_check_own(worker->credentials, KELP_ROLE_WORKER, options->job,
                                       options->id, reterr);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "certs");
        return status;
    }
    return kelp_expiry_watch_start(worker->credentials, &worker->expiry, reterr);
}

static kelp_status open_link(struct kelp_worker *worker, const struct kelp_worker_options *options,
                             struct kelp_error *reterr)
{
    const uint32_t grace_ms = options->grace_ms > 0 ? options->grace_ms : GRACE_MS;
    const struct kelp_job_link_options link_options = {
        .etcd = options->etcd,
        .job = options->job,
        .id = options->id,
        .credentials = worker->credentials,
        .spec_sha256 = options->spec_sha256,
        .grace_ms = grace_ms / 4 * 3, /* the rest is left for streams to end */
        .shm_folder = options->shm_folder,
    };
    kelp_status status =
        kelp_job_link_open(&link_options, &worker->stop, &worker->job_link, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_job *job = kelp_job_link_job(worker->job_link);
    return job->run.mode == KELP_RUN_PREDICT && job->run.dir[0] == '\0'
               ? kelp_fail(reterr, KELP_ERR_INVALID,
                           "run.dir: is not set; run.mode predict writes into it, see kelp predict")
               : KELP_OK;
}

int kelp_worker_open(const struct kelp_worker_options *options, struct kelp_worker **ret_worker)
{
    struct kelp_worker_options known;
    enum kelp_log_level level;
    struct kelp_error error = {.text = ""};

    int result =
        kelp__client_take("kelp_worker_options", &known, sizeof(known), OPTIONS_LEAST, options);
    if (result == KELP_WORKER_OK) {
        result = check_options(&known);
    }
    if (result == KELP_WORKER_OK) {
        result = level_of(known.log_level, &level);
    }
    if (result != KELP_WORKER_OK) {
        return result;
    }
    struct kelp_worker *worker = calloc(1, sizeof(*worker));
    if (!worker) {
        return kelp__client_no_memory("kelp_worker_open()");
    }
    worker->stop = (struct kelp_stop)KELP_STOP_INIT;
    worker->block = BLOCK;
    kelp_log_init("worker", known.id, level, STDERR_FILENO);
    kelp_status status = open_certs(worker, &known, &error);
    if (status == KELP_OK) {
        status = open_link(worker, &known, &error);
    }
    if (status != KELP_OK) {
        kelp_worker_close(worker);
        return kelp__client_result(status, &error);
    }
    *ret_worker = worker;
    return KELP_WORKER_OK;
}

void kelp_worker_close(struct kelp_worker *worker)
{
    if (!worker) {
        return;
    }
    kelp_prediction_drop(worker->predictions.writer);
    kelp_lane_feed_destroy(worker->feed);
    kelp_job_link_close(worker->job_link);
    kelp_plan_fini(&worker->plan);
    kelp_expiry_watch_stop(worker->expiry);
    kelp_credentials_close(worker->credentials);
    free(worker->cleared);
    free(worker);
}

int kelp_worker_setting(const struct kelp_worker *worker, const char *key, char *text, size_t bytes)
{
    struct kelp_error error;
    const struct kelp_job_file *file = kelp_job_link_file(worker->job_link);

    return kelp__client_result(kelp_job_file_value(file, key, text, bytes, &error), &error);
}

void kelp_worker_stop(struct kelp_worker *worker)
{
    kelp_stop_raise(&worker->stop);
    kelp_job_link_wake(worker->job_link);
}

/* ---- memory ---------------------------------------------------------------------------------- */

uint64_t kelp_worker_elements(const struct kelp_worker *worker)
{
    return worker->joined ? worker->plan.flat_count : 0;
}

uint64_t kelp_worker_offset(const struct kelp_worker *worker, uint32_t tensor)
{
    return worker->joined && tensor < worker->plan.tensor_count
               ? worker->plan.tensors[tensor].offset
               : UINT64_MAX;
}

const float *kelp_worker_weights(const struct kelp_worker *worker, uint32_t which)
{
    return worker->joined && which < 2 ? kelp_job_link_weights(worker->job_link, which) : NULL;
}
