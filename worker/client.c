/*
 * include/kelp/worker.h: the link to the job and the feed of lanes for programs of one's own. A
 * call at the wrong time is refused here; below it would be a mistake of ours.
 */
#include <assert.h>
#include <curl/curl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/process_name.h"
#include "common/base/sha256.h"
#include "common/base/text.h"
#include "common/program/daemon.h"
#include "common/program/expiry_watch.h"
#include "common/program/shm_option.h"
#include "common/program/version.h"
#include "common/rpc/rpc.h"
#include "common/tensors/digest.h"
#include "kelp/worker.h"
#include "worker/client_options.h"
#include "worker/compute/gradients.h"
#include "worker/compute/limits.h"
#include "worker/compute/predictions.h"
#include "worker/core/ahead.h"
#include "worker/core/schedule.h"
#include "worker/job_link.h"
#include "worker/lane_feed.h"

#define GRACE_MS 5000u
#define BLOCK    256u

/* The structs as they were first; programs of that time know no more. */
#define OPTIONS_LEAST 72u
#define TENSOR_LEAST  40u
#define LANE_LEAST    88u
#define AHEAD_LEAST   40u
#define STRUCT_MOST   4096u

_Static_assert((int)KELP_WORKER_INIT_CONSTANT == KELP_INIT_CONSTANT &&
                   (int)KELP_WORKER_INIT_UNIFORM == KELP_INIT_UNIFORM &&
                   (int)KELP_WORKER_INIT_NORMAL == KELP_INIT_NORMAL &&
                   (int)KELP_WORKER_INIT_FILE == KELP_INIT_FILE,
               "the public kinds are the plan's");
_Static_assert((int)KELP_WORKER_TRAIN == KELP_STEP_TRAIN &&
                   (int)KELP_WORKER_VALIDATE == KELP_STEP_EVALUATE_VAL &&
                   (int)KELP_WORKER_TEST == KELP_STEP_EVALUATE_TEST &&
                   (int)KELP_WORKER_PREDICT == KELP_STEP_PREDICT,
               "the public kinds are the schedule's");
_Static_assert((int)KELP_WORKER_SUM_LOSS == KELP_METRIC_SUM_LOSS &&
                   (int)KELP_WORKER_SUM_SQUARED == KELP_METRIC_SUM_SQUARED &&
                   (int)KELP_WORKER_SUM_ABSOLUTE == KELP_METRIC_SUM_ABSOLUTE &&
                   (int)KELP_WORKER_SUM_ELEMENTS == KELP_METRIC_SUM_ELEMENTS &&
                   (int)KELP_WORKER_SUM_RELATIVE == KELP_METRIC_SUM_RELATIVE &&
                   (int)KELP_WORKER_SUM_RELATIVE_SQUARED == KELP_METRIC_SUM_RELATIVE_SQUARED &&
                   (int)KELP_WORKER_SUM_TARGET == KELP_METRIC_SUM_TARGET &&
                   (int)KELP_WORKER_SUM_TARGET_SQUARED == KELP_METRIC_SUM_TARGET_SQUARED &&
                   (int)KELP_WORKER_SUM_CORRECT == KELP_METRIC_SUM_CORRECT,
               "the public sums are the metrics'");

struct kelp_worker {
    struct kelp_stop stop;
    struct kelp_credentials *credentials; /* NULL: none */
    struct kelp_expiry_watch *expiry;     /* NULL: none */
    struct kelp_job_link *job_link;
    struct kelp_plan plan;
    bool has_data, has_compute;
    bool joining; /* the plan is closed */
    bool joined;
    uint64_t block;
    struct kelp_lane_feed *feed;
    const struct kelp_work *work; /* of the feed; NULL: none yet, or none any more */
    const struct kelp_lane *lane; /* of work; NULL: none is handed out */
    struct {
        struct kelp_prediction_writer *writer; /* of lane; NULL: none yet, or none any more */
        uint64_t done;                         /* samples of lane that it has */
        uint64_t width;                        /* of all lanes; 0: of none yet */
    } predictions;
    bool *cleared; /* of each gradient buffer: held tensors are zero; owned */
    uint32_t cleared_count;
    struct kelp_ahead ahead; /* lanes to come; job NULL: it was not begun */
    int ended;               /* what it ended with; KELP_WORKER_OK: it has not */
};

/* ---- results --------------------------------------------------------------------------------- */

/* For kelp_worker_error(): a thread that has no worker yet may fail too. */
static _Thread_local char error_text[sizeof(((struct kelp_error *)NULL)->text)];

const char *kelp_worker_version(void)
{
    return kelp_version();
}

const char *kelp_worker_error(void)
{
    return error_text;
}

int kelp_worker_exit_status(int result)
{
    if (result >= 0) {
        return KELP_EXIT_OK;
    }
    return result == KELP_WORKER_INVALID ? KELP_EXIT_USAGE : KELP_EXIT_FAILED;
}

static int result_of(kelp_status status, const struct kelp_error *error)
{
    if (status == KELP_OK) {
        return KELP_WORKER_OK;
    }
    (void)snprintf(error_text, sizeof(error_text), "%s", error->text);
    return kelp_daemon_exit_code(status) == KELP_EXIT_USAGE ? KELP_WORKER_INVALID
                                                            : KELP_WORKER_FAILED;
}

KELP_PRINTF(1, 2) static int invalid(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(error_text, sizeof(error_text), format, args);
    va_end(args);
    return KELP_WORKER_INVALID;
}

static int no_memory(const char *where)
{
    (void)snprintf(error_text, sizeof(error_text), "%s: out of memory", where);
    return KELP_WORKER_FAILED;
}

/* The caller's struct as we know it: what an older program does not have is zero, and what a newer
 * one has beyond it must be. */
static int take_struct(const char *where, void *ret, size_t known, size_t least, const void *given)
{
    size_t size;

    memcpy(&size, given, sizeof(size));
    if (size < least || size > STRUCT_MOST) {
        return invalid("%s: size is %zu; it must be the size of the struct", where, size);
    }
    for (size_t i = known; i < size; i++) {
        if (((const char *)given)[i] != 0) {
            return invalid("%s: the program asks for more than libkelp-worker %s has", where,
                           kelp_version());
        }
    }
    memset(ret, 0, known);
    memcpy(ret, given, size < known ? size : known);
    return KELP_WORKER_OK;
}

static bool global_ready;

int kelp_worker_global_init(void)
{
    if (global_ready) {
        return KELP_WORKER_OK;
    }
    kelp_rpc_global_several_loops();
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        return no_memory("libcurl");
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

    int result = take_struct("kelp_worker_options", &known, sizeof(known), OPTIONS_LEAST, options);
    if (result == KELP_WORKER_OK) {
        result = result_of(kelp_client_options_read(&known, argc, argv, &error), &error);
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
    return name ? invalid("log_level \"%.40s\" is none of %s", name, names) : KELP_WORKER_OK;
}

static int check_options(const struct kelp_worker_options *options)
{
    if (!global_ready) {
        return invalid("kelp_worker_open(): kelp_worker_global_init() comes before it");
    }
    if (!options->etcd || !options->job || !options->id) {
        return invalid("etcd, job and id are needed");
    }
    if (!kelp_process_name_valid(options->job) || !kelp_process_name_valid(options->id)) {
        return invalid("job and id are 1 to %d letters, digits, '-', '_' or '.'",
                       KELP_JOB_NAME_MAX);
    }
    if (options->spec_sha256 && !kelp_sha256_is(options->spec_sha256)) {
        return invalid("spec_sha256 is 64 hexadecimal digits in lower case");
    }
    return options->reserved == 0 ? KELP_WORKER_OK : invalid("reserved must be 0");
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
        .grace_ms = grace_ms / 4 * 3, /* the rest is for streams to end */
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

    int result = take_struct("kelp_worker_options", &known, sizeof(known), OPTIONS_LEAST, options);
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
        return no_memory("kelp_worker_open()");
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
        return result_of(status, &error);
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

    return result_of(kelp_job_file_value(file, key, text, bytes, &error), &error);
}

/* ---- the plan -------------------------------------------------------------------------------- */

static int may_plan(const struct kelp_worker *worker, const char *what)
{
    return worker->joining ? invalid("%s: the plan is complete since kelp_worker_join()", what)
                           : KELP_WORKER_OK;
}

int kelp_worker_plan_data(struct kelp_worker *worker, uint64_t train, uint64_t validate,
                          uint64_t test, uint64_t fingerprint)
{
    int result = may_plan(worker, "kelp_worker_plan_data()");
    if (result != KELP_WORKER_OK) {
        return result;
    }
    if (train > KELP_PERMUTATION_MAX || validate > KELP_PERMUTATION_MAX ||
        test > KELP_PERMUTATION_MAX) {
        return invalid("kelp_worker_plan_data(): at most %" PRIu64 " samples are allowed",
                       KELP_PERMUTATION_MAX);
    }
    worker->plan.samples[KELP_SPLIT_TRAIN] = train;
    worker->plan.samples[KELP_SPLIT_VAL] = validate;
    worker->plan.samples[KELP_SPLIT_TEST] = test;
    worker->plan.data_fingerprint = fingerprint;
    worker->has_data = true;
    return KELP_WORKER_OK;
}

/* Printable ASCII, so that it travels as it is and is shown as it is. */
static bool is_plain(const char *text, size_t length_max)
{
    const size_t length = text ? strnlen(text, length_max + 1) : 0;

    for (size_t i = 0; i < length; i++) {
        if (text[i] < ' ' || text[i] > '~') {
            return false;
        }
    }
    return length > 0 && length <= length_max;
}

int kelp_worker_plan_compute(struct kelp_worker *worker, const char *kind, uint64_t answer)
{
    const size_t length_max = sizeof(worker->plan.compute_kind) - 1;
    int result = may_plan(worker, "kelp_worker_plan_compute()");

    if (result == KELP_WORKER_OK && !is_plain(kind, length_max)) {
        result = invalid("kelp_worker_plan_compute(): kind is 1 to %zu printable characters",
                         length_max);
    }
    if (result == KELP_WORKER_OK) {
        (void)snprintf(worker->plan.compute_kind, sizeof(worker->plan.compute_kind), "%s", kind);
        worker->plan.compute_answer = answer;
        worker->has_compute = true;
    }
    return result;
}

int kelp_worker_plan_reasons(struct kelp_worker *worker, const char *reasons)
{
    const size_t length_max = sizeof(worker->plan.compute_reasons) - 1;
    int result = may_plan(worker, "kelp_worker_plan_reasons()");

    if (result == KELP_WORKER_OK && !is_plain(reasons, length_max)) {
        result = invalid("kelp_worker_plan_reasons(): reasons are 1 to %zu printable characters",
                         length_max);
    }
    if (result == KELP_WORKER_OK) {
        (void)snprintf(worker->plan.compute_reasons, sizeof(worker->plan.compute_reasons), "%s",
                       reasons);
    }
    return result;
}

/* Which sum of the job's own that is. */
static int find_sum(const struct kelp_worker *worker, const char *what, const char *name,
                    uint32_t *ret_index)
{
    const struct kelp_job *job = kelp_job_link_job(worker->job_link);

    return name && kelp_job_sum_find(job, name, ret_index)
               ? KELP_WORKER_OK
               : invalid("%s: the job has no sum '%.40s'; name it in model.sums", what,
                         name ? name : "");
}

int kelp_worker_plan_sum(struct kelp_worker *worker, const char *name)
{
    int result = may_plan(worker, "kelp_worker_plan_sum()");
    uint32_t index = 0;

    return result == KELP_WORKER_OK ? find_sum(worker, "kelp_worker_plan_sum()", name, &index)
                                    : result;
}

int kelp_worker_plan_program(struct kelp_worker *worker, uint64_t digest)
{
    int result = may_plan(worker, "kelp_worker_plan_program()");

    if (result == KELP_WORKER_OK) {
        worker->plan.model_digest = digest;
    }
    return result;
}

int kelp_worker_plan_block(struct kelp_worker *worker, uint64_t samples)
{
    int result = may_plan(worker, "kelp_worker_plan_block()");

    if (result == KELP_WORKER_OK && samples == 0) {
        result = invalid("kelp_worker_plan_block(): a block has at least one sample");
    }
    if (result == KELP_WORKER_OK) {
        worker->block = samples;
    }
    return result;
}

static int check_tensor(const struct kelp_worker_tensor *tensor)
{
    if (!is_plain(tensor->name, KELP_TENSOR_NAME_MAX)) {
        return invalid("kelp_worker_plan_tensor(): name is 1 to %d printable characters",
                       KELP_TENSOR_NAME_MAX);
    }
    if (tensor->rank > KELP_TENSOR_RANK_MAX || (tensor->rank > 0 && !tensor->shape)) {
        return invalid("tensor %s: rank is %" PRIu32 "; 0 to %d with a shape are allowed",
                       tensor->name, tensor->rank, KELP_TENSOR_RANK_MAX);
    }
    if (tensor->init > KELP_WORKER_INIT_FILE || !isfinite(tensor->init_a)) {
        return invalid("tensor %s: init is one of enum kelp_worker_init, with a finite init_a",
                       tensor->name);
    }
    if (!(tensor->momentum >= 0 && tensor->momentum <= 1)) {
        return invalid("tensor %s: momentum is 0 to 1", tensor->name);
    }
    if (tensor->held > 1 || tensor->reserved != 0 || (tensor->held && tensor->momentum > 0)) {
        return invalid("tensor %s: held is 0, or 1 with a momentum of 0; reserved is 0",
                       tensor->name);
    }
    return KELP_WORKER_OK;
}

static int add_tensor(struct kelp_plan *plan, const struct kelp_worker_tensor *given)
{
    if (plan->tensor_count == KELP_PLAN_TENSORS_MAX) {
        return invalid("tensor %s: a model has at most %d", given->name, KELP_PLAN_TENSORS_MAX);
    }
    struct kelp_tensor *tensors =
        realloc(plan->tensors, (plan->tensor_count + 1) * sizeof(*tensors));
    if (!tensors) {
        return no_memory(given->name);
    }
    plan->tensors = tensors;
    struct kelp_tensor *tensor = &tensors[plan->tensor_count++];
    memset(tensor, 0, sizeof(*tensor));
    (void)snprintf(tensor->name, sizeof(tensor->name), "%s", given->name);
    tensor->rank = given->rank;
    for (uint32_t i = 0; i < given->rank; i++) {
        tensor->shape[i] = given->shape[i];
    }
    tensor->init = (enum kelp_init_kind)given->init;
    tensor->init_a = given->init_a;
    tensor->statistic = given->momentum > 0 || given->held;
    tensor->momentum = given->momentum;
    return KELP_WORKER_OK;
}

int kelp_worker_plan_tensor(struct kelp_worker *worker, const struct kelp_worker_tensor *tensor)
{
    struct kelp_worker_tensor known;
    int result = may_plan(worker, "kelp_worker_plan_tensor()");

    if (result == KELP_WORKER_OK) {
        result = take_struct("kelp_worker_tensor", &known, sizeof(known), TENSOR_LEAST, tensor);
    }
    if (result == KELP_WORKER_OK) {
        result = check_tensor(&known);
    }
    return result == KELP_WORKER_OK ? add_tensor(&worker->plan, &known) : result;
}

/* Where the job has weights to begin with, a program that says nothing of them takes them all; and
 * what does not train has no others. */
static kelp_status choose_init(struct kelp_plan *plan, const struct kelp_job *job,
                               struct kelp_error *reterr)
{
    const struct kelp_tensor *from_file = NULL;

    for (uint32_t i = 0; i < plan->tensor_count && !from_file; i++) {
        from_file = plan->tensors[i].init == KELP_INIT_FILE ? &plan->tensors[i] : NULL;
    }
    if (from_file && job->model.init[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "tensor %s comes from model.init (KELP_WORKER_INIT_FILE), which the job "
                         "does not set",
                         from_file->name);
    }
    const bool all = !from_file || job->run.mode != KELP_RUN_TRAIN;
    for (uint32_t i = 0; i < plan->tensor_count && all && job->model.init[0] != '\0'; i++) {
        plan->tensors[i].init = KELP_INIT_FILE;
    }
    return KELP_OK;
}

static kelp_status finish_plan(struct kelp_worker *worker, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_link_job(worker->job_link);

    kelp_status status = kelp_control_check(job, &worker->plan, reterr);
    if (status == KELP_OK) {
        status = choose_init(&worker->plan, job, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_plan_lay_out(&worker->plan, job->cluster.max_shards, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_plan_mark_decays(&worker->plan, job, reterr);
    }
    return status;
}

static kelp_status join(struct kelp_worker *worker, struct kelp_error *reterr)
{
    const struct kelp_plan *plan = &worker->plan;

    kelp_status status = finish_plan(worker, reterr);
    if (status == KELP_OK) {
        status = kelp_job_link_join(worker->job_link, plan, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    worker->feed = kelp_lane_feed_create(worker->job_link, plan);
    if (!worker->feed) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "kelp_worker_join(): out of memory");
    }
    kelp_log_info(KELP_WORKER_JOINED "%" PRIu64 " tensors=%u elements=%" PRIu64
                                     " partitions=%u compute=\"%s\"",
                  plan->samples[KELP_SPLIT_TRAIN], plan->tensor_count, plan->flat_count,
                  plan->partition_count, plan->compute_kind);
    return KELP_OK;
}

int kelp_worker_join(struct kelp_worker *worker)
{
    struct kelp_error error;
    int result = may_plan(worker, "kelp_worker_join()");

    if (result != KELP_WORKER_OK) {
        return result;
    }
    if (!worker->has_data || !worker->has_compute || worker->plan.tensor_count == 0) {
        return invalid("kelp_worker_join(): the plan needs kelp_worker_plan_data(), "
                       "kelp_worker_plan_compute() and a tensor");
    }
    worker->joining = true;
    result = result_of(join(worker, &error), &error);
    worker->joined = result == KELP_WORKER_OK;
    return result;
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

/* ---- lanes ----------------------------------------------------------------------------------- */

/* Errors: those of the feed. */
static kelp_status find_lane(struct kelp_worker *worker, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    while (status == KELP_OK && !worker->lane) {
        if (worker->work) {
            status = kelp_lane_feed_lane(worker->feed, &worker->lane, reterr);
        }
        if (status == KELP_OK && !worker->lane) {
            worker->work = NULL;
            status = kelp_lane_feed_wait(worker->feed, &worker->stop, &worker->work, reterr);
        }
    }
    return status;
}

static int lane_result(struct kelp_worker *worker, kelp_status status,
                       const struct kelp_error *error)
{
    if (status == KELP_ERR_CLOSED) {
        kelp_log_info(KELP_WORKER_ENDED);
        return KELP_WORKER_OVER;
    }
    if (status == KELP_ERR_TIMEOUT && kelp_stop_raised(&worker->stop)) {
        return KELP_WORKER_STOPPED;
    }
    return result_of(status, error);
}

/* Nobody writes the gradient of what is held, and it is sent like the others. */
static int clear_held(struct kelp_worker *worker, const struct kelp_gradient *gradient)
{
    if (gradient->number >= worker->cleared_count) {
        bool *cleared = realloc(worker->cleared, (gradient->number + 1u) * sizeof(*cleared));
        if (!cleared) {
            return no_memory("kelp_worker_next_lane()");
        }
        memset(cleared + worker->cleared_count, 0,
               (gradient->number + 1u - worker->cleared_count) * sizeof(*cleared));
        worker->cleared = cleared;
        worker->cleared_count = gradient->number + 1u;
    }
    for (uint32_t i = 0; i < worker->plan.tensor_count && !worker->cleared[gradient->number]; i++) {
        const struct kelp_tensor *tensor = &worker->plan.tensors[i];
        if (tensor->statistic && tensor->momentum == 0.0f) {
            memset(gradient->values + tensor->offset, 0, tensor->elem_count * sizeof(float));
        }
    }
    worker->cleared[gradient->number] = true;
    return KELP_WORKER_OK;
}

static void fill_lane(const struct kelp_worker *worker, struct kelp_worker_lane *ret_lane)
{
    const struct kelp_control_word *word = &worker->work->word;
    const bool trains = word->kind == KELP_STEP_TRAIN;
    const struct kelp_worker_lane lane = {
        .size = ret_lane->size,
        .kind = (uint32_t)word->kind,
        .lane = worker->lane->number,
        .samples = worker->lane->samples.count,
        .step_samples = word->sample_count,
        .step = word->step,
        .epoch = word->epoch,
        .weights_index = worker->work->weights_index,
        .weights = worker->work->weights,
        .gradient = trains ? worker->lane->gradient->values : NULL,
        .gradient_index = trains ? worker->lane->gradient->number : 0,
        .seed = kelp_worker_lane_seed(worker),
        .lr = word->lr,
    };
    memset(ret_lane, 0, lane.size);
    memcpy(ret_lane, &lane, lane.size < sizeof(lane) ? lane.size : sizeof(lane));
}

int kelp_worker_next_lane(struct kelp_worker *worker, struct kelp_worker_lane *ret_lane)
{
    struct kelp_error error;

    if (!worker->joined) {
        return invalid("kelp_worker_next_lane(): kelp_worker_join() comes before it");
    }
    if (worker->ended != KELP_WORKER_OK) {
        return worker->ended;
    }
    if (worker->lane) {
        return invalid("kelp_worker_next_lane(): lane %" PRIu32 " was not submitted",
                       worker->lane->number);
    }
    if (ret_lane->size < LANE_LEAST || ret_lane->size > STRUCT_MOST) {
        return invalid("kelp_worker_lane: size is %zu; it must be the size of the struct",
                       ret_lane->size);
    }
    const kelp_status status = find_lane(worker, &error);
    if (status != KELP_OK) {
        worker->ended = lane_result(worker, status, &error);
        return worker->ended;
    }
    if (worker->work->word.kind == KELP_STEP_TRAIN) {
        worker->ended = clear_held(worker, worker->lane->gradient);
        if (worker->ended != KELP_WORKER_OK) {
            return worker->ended;
        }
    }
    fill_lane(worker, ret_lane);
    return KELP_WORKER_OK;
}

/* A lane that is handed out, or one to come. */
static uint64_t piece_of(const struct kelp_worker *worker, const struct kelp_schedule *schedule,
                         uint32_t lane, uint64_t done)
{
    const struct kelp_schedule_range samples = kelp_schedule_lane(schedule, lane);
    const struct kelp_schedule_cut cut = {
        .pieces = kelp_job_link_job(worker->job_link)->train.accumulate, .block = worker->block};

    return done > samples.count
               ? 0
               : kelp_schedule_next_piece(schedule, lane, samples.first + done, &cut).count;
}

static int indices_of(const char *call, const struct kelp_schedule *schedule, uint32_t lane,
                      struct kelp_schedule_range range, uint64_t *ret_indices)
{
    const struct kelp_schedule_range samples = kelp_schedule_lane(schedule, lane);

    if (range.first > samples.count || range.count > samples.count - range.first) {
        return invalid("%s: samples [%" PRIu64 ", +%" PRIu64 ") of %" PRIu64 " of the lane", call,
                       range.first, range.count, samples.count);
    }
    range.first += samples.first;
    kelp_schedule_indices(schedule, range, ret_indices);
    return KELP_WORKER_OK;
}

uint64_t kelp_worker_piece(const struct kelp_worker *worker, uint64_t done)
{
    return worker->lane
               ? piece_of(worker, kelp_lane_feed_schedule(worker->feed), worker->lane->number, done)
               : 0;
}

int kelp_worker_indices(const struct kelp_worker *worker, uint64_t first, uint64_t count,
                        uint64_t *ret_indices)
{
    if (!worker->lane) {
        return invalid("kelp_worker_indices(): there is no lane");
    }
    return indices_of("kelp_worker_indices()", kelp_lane_feed_schedule(worker->feed),
                      worker->lane->number, (struct kelp_schedule_range){first, count},
                      ret_indices);
}

int kelp_worker_ahead_begin(struct kelp_worker *worker)
{
    if (!worker->lane) {
        return invalid("kelp_worker_ahead_begin(): there is no lane");
    }
    worker->ahead.job = NULL;
    (void)kelp_ahead_begin(&worker->ahead, kelp_job_link_job(worker->job_link), &worker->plan,
                           &worker->work->word, worker->work->lane_first, worker->work->lane_count,
                           worker->lane->number); /* next() says OVER */
    return KELP_WORKER_OK;
}

int kelp_worker_ahead_next(struct kelp_worker *worker, struct kelp_worker_ahead *ret_ahead)
{
    struct kelp_ahead *ahead = &worker->ahead;

    if (ret_ahead->size < AHEAD_LEAST || ret_ahead->size > STRUCT_MOST) {
        return invalid("kelp_worker_ahead: size is %zu; it must be the size of the struct",
                       ret_ahead->size);
    }
    if (!ahead->job || !kelp_ahead_next(ahead)) {
        return KELP_WORKER_OVER;
    }
    const struct kelp_worker_ahead lane = {
        .size = ret_ahead->size,
        .kind = (uint32_t)ahead->word.kind,
        .lane = ahead->lane,
        .samples = kelp_schedule_lane(&ahead->schedule, ahead->lane).count,
        .step = ahead->word.step,
        .seed = kelp_schedule_lane_seed(ahead->job->seed, ahead->word.step, ahead->lane),
    };
    memset(ret_ahead, 0, lane.size);
    memcpy(ret_ahead, &lane, lane.size < sizeof(lane) ? lane.size : sizeof(lane));
    return KELP_WORKER_OK;
}

uint64_t kelp_worker_ahead_piece(const struct kelp_worker *worker, uint64_t done)
{
    return worker->ahead.job ? piece_of(worker, &worker->ahead.schedule, worker->ahead.lane, done)
                             : 0;
}

int kelp_worker_ahead_indices(const struct kelp_worker *worker, uint64_t first, uint64_t count,
                              uint64_t *ret_indices)
{
    if (!worker->ahead.job) {
        return invalid("kelp_worker_ahead_indices(): there is no lane");
    }
    return indices_of("kelp_worker_ahead_indices()", &worker->ahead.schedule, worker->ahead.lane,
                      (struct kelp_schedule_range){first, count}, ret_indices);
}

uint64_t kelp_worker_lane_seed(const struct kelp_worker *worker)
{
    return worker->lane ? kelp_schedule_lane_seed(kelp_job_link_job(worker->job_link)->seed,
                                                  worker->work->word.step, worker->lane->number)
                        : 0;
}

int kelp_worker_add(struct kelp_worker *worker, uint32_t sum, double value)
{
    if (!worker->lane) {
        return invalid("kelp_worker_add(): there is no lane");
    }
    if (sum > KELP_WORKER_SUM_CORRECT || sum == KELP_METRIC_SUM_SAMPLES) {
        return invalid("kelp_worker_add(): %" PRIu32 " is none of enum kelp_worker_sum", sum);
    }
    double *sums = worker->lane->gradient->sums;
    sums[sum] += value;
    if (sum == KELP_METRIC_SUM_SQUARED) {
        sums[KELP_METRIC_SUM_GAVE_SQUARED] = 1;
    } else if (sum == KELP_METRIC_SUM_ABSOLUTE) {
        sums[KELP_METRIC_SUM_GAVE_ABSOLUTE] = 1;
    } else if (sum == KELP_METRIC_SUM_CORRECT) {
        sums[KELP_METRIC_SUM_GAVE_CORRECT] = 1;
    }
    return KELP_WORKER_OK;
}

int kelp_worker_add_named(struct kelp_worker *worker, const char *name, double value)
{
    uint32_t index = 0;

    if (!worker->lane) {
        return invalid("kelp_worker_add_named(): there is no lane");
    }
    int result = find_sum(worker, "kelp_worker_add_named()", name, &index);
    if (result != KELP_WORKER_OK || worker->work->word.kind == KELP_STEP_TRAIN) {
        return result;
    }
    struct kelp_gradient *gradient = worker->lane->gradient;
    gradient->sum_count = KELP_METRIC_SUM_NAMED_END;
    gradient->sums[KELP_METRIC_SUM_NAMED + index] += value;
    gradient->sums[KELP_METRIC_SUM_GAVE_NAMED + index] = 1;
    return KELP_WORKER_OK;
}

/* What training goes by must be among the sums: without it nothing would ever get better. */
static int check_monitored(const struct kelp_job *job, enum kelp_metric metric, const double *sums)
{
    char name[KELP_JOB_SUM_NAME_MAX + 1];
    struct kelp_metrics metrics;

    kelp_metrics_of_given(job, sums, &metrics);
    kelp_metric_name_in(job, metric, name);
    return job->model.kind != KELP_MODEL_PROGRAM || kelp_metrics_have(&metrics, metric)
               ? KELP_WORKER_OK
               : invalid("the job goes by val/%s: the lane has no sums for it", name);
}

static int check_sums(const struct kelp_worker *worker)
{
    const struct kelp_job *job = kelp_job_link_job(worker->job_link);
    const double *sums = worker->lane->gradient->sums;

    if (worker->work->word.kind != KELP_STEP_EVALUATE_VAL) {
        return KELP_WORKER_OK;
    }
    int result = check_monitored(job, kelp_metric_monitored(job), sums);
    if (result == KELP_WORKER_OK && job->checkpoint.keep_best > 0) {
        result = check_monitored(job, kelp_metric_of_keeping(job), sums);
    }
    return result;
}

/* ---- predictions ----------------------------------------------------------------------------- */

static int check_predictions(const struct kelp_worker *worker, uint64_t first, uint64_t count,
                             uint64_t width)
{
    if (!worker->lane || worker->work->word.kind != KELP_STEP_PREDICT) {
        return invalid("kelp_worker_predict(): there is no lane to predict");
    }
    const uint64_t samples = worker->lane->samples.count;
    const uint64_t done = worker->predictions.done;
    if (first != done || count == 0 || count > samples - done) {
        return invalid("kelp_worker_predict(): samples [%" PRIu64 ", +%" PRIu64
                       ") come after %" PRIu64 " of %" PRIu64 " of the lane",
                       first, count, done, samples);
    }
    if (worker->predictions.width != 0 && width != worker->predictions.width) {
        return invalid("kelp_worker_predict(): %" PRIu64 " numbers for a sample, and %" PRIu64
                       " for those before; each sample has the same",
                       width, worker->predictions.width);
    }
    const uint64_t most =
        (KELP_PREDICTION_BYTES_MAX - KELP_PREDICTION_HEADER_BYTES) / sizeof(float) / samples;
    return width == 0 || width > most
               ? invalid("kelp_worker_predict(): %" PRIu64 " numbers for a sample; 1 to %" PRIu64
                         " go with %" PRIu64 " samples in a lane (train.batch_size)",
                         width, most, samples)
               : KELP_WORKER_OK;
}

static kelp_status begin_predictions(struct kelp_worker *worker, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_link_job(worker->job_link);
    const struct kelp_control_word *word = &worker->work->word;
    char folder[sizeof(job->run.dir) + sizeof(KELP_PREDICTIONS_FOLDER) + 1];
    const struct kelp_prediction_part part = {
        .version = word->version,
        .lane = worker->lane->number,
        .first = word->sample_first + worker->lane->samples.first,
        .count = worker->lane->samples.count,
        .values = worker->predictions.width,
    };

    (void)snprintf(folder, sizeof(folder), "%s/%s", job->run.dir, KELP_PREDICTIONS_FOLDER);
    return kelp_prediction_begin(folder, &part, &worker->predictions.writer, reterr);
}

int kelp_worker_predict(struct kelp_worker *worker, uint64_t first, uint64_t count,
                        const float *values, uint64_t width)
{
    struct kelp_error error;
    kelp_status status = KELP_OK;
    const int result = check_predictions(worker, first, count, width);

    if (result != KELP_WORKER_OK) {
        return result;
    }
    worker->predictions.width = width;
    if (!worker->predictions.writer) {
        status = begin_predictions(worker, &error);
    }
    if (status == KELP_OK) {
        status = kelp_prediction_add(worker->predictions.writer, values, count, &error);
    }
    if (status == KELP_OK) {
        worker->predictions.done += count;
    }
    return result_of(status, &error);
}

/* The lane's file is there before anybody hears that the lane is done. */
static int end_predictions(struct kelp_worker *worker)
{
    struct kelp_error error;

    if (worker->work->word.kind != KELP_STEP_PREDICT) {
        return KELP_WORKER_OK;
    }
    if (worker->predictions.done != worker->lane->samples.count) {
        return invalid("kelp_worker_submit(): %" PRIu64 " of the lane's %" PRIu64
                       " samples have a prediction; a program that kelp predict can use calls "
                       "kelp_worker_predict() for them",
                       worker->predictions.done, worker->lane->samples.count);
    }
    const kelp_status status = kelp_prediction_end(worker->predictions.writer, &error);
    worker->predictions.writer = NULL;
    worker->predictions.done = 0;
    return result_of(status, &error);
}

int kelp_worker_submit(struct kelp_worker *worker)
{
    struct kelp_error error;

    if (!worker->lane) {
        return invalid("kelp_worker_submit(): there is no lane");
    }
    struct kelp_gradient *gradient = worker->lane->gradient;
    gradient->present = worker->work->word.kind == KELP_STEP_TRAIN;
    gradient->sums[KELP_METRIC_SUM_SAMPLES] = (double)worker->lane->samples.count;
    int result = check_sums(worker);
    if (result == KELP_WORKER_OK) {
        result = end_predictions(worker);
    }
    if (result != KELP_WORKER_OK) {
        return result;
    }
    worker->lane = NULL;
    worker->ahead.job = NULL;
    worker->ended = result_of(kelp_lane_feed_submit(worker->feed, &error), &error);
    return worker->ended;
}

int kelp_worker_poll(struct kelp_worker *worker)
{
    struct kelp_error error;

    if (!worker->lane) {
        return invalid("kelp_worker_poll(): there is no lane");
    }
    const kelp_status status = kelp_job_link_poll(worker->job_link, &worker->stop, &error);
    if (status == KELP_OK && kelp_stop_raised(&worker->stop)) {
        return KELP_WORKER_STOPPED;
    }
    return lane_result(worker, status, &error);
}

void kelp_worker_spent_reading(struct kelp_worker *worker, uint64_t us)
{
    if (worker->lane) {
        kelp_job_link_spent_reading(worker->job_link, us);
    }
}

void kelp_worker_stop(struct kelp_worker *worker)
{
    kelp_stop_raise(&worker->stop);
    kelp_job_link_wake(worker->job_link);
}
