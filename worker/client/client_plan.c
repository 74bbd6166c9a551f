/* The plan of a program's model and data, up to joining the job. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "worker/client/client_internal.h"

#define TENSOR_LEAST 40u /* size of the struct in its first version */

_Static_assert((int)KELP_WORKER_INIT_CONSTANT == KELP_INIT_CONSTANT &&
                   (int)KELP_WORKER_INIT_UNIFORM == KELP_INIT_UNIFORM &&
                   (int)KELP_WORKER_INIT_NORMAL == KELP_INIT_NORMAL &&
                   (int)KELP_WORKER_INIT_FILE == KELP_INIT_FILE,
               "the public kinds are the plan's");

static int may_plan(const struct kelp_worker *worker, const char *what)
{
    return worker->joining
               ? kelp__client_invalid("%s: the plan is complete since kelp_worker_join()", what)
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
        return kelp__client_invalid("kelp_worker_plan_data(): at most %" PRIu64
                                    " samples are allowed",
                                    KELP_PERMUTATION_MAX);
    }
    worker->plan.samples[KELP_SPLIT_TRAIN] = train;
    worker->plan.samples[KELP_SPLIT_VAL] = validate;
    worker->plan.samples[KELP_SPLIT_TEST] = test;
    worker->plan.data_fingerprint = fingerprint;
    worker->has_data = true;
    return KELP_WORKER_OK;
}

/* Printable ASCII, so that it can be sent and shown unchanged. */
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
        result = kelp__client_invalid(
            "kelp_worker_plan_compute(): kind is 1 to %zu printable characters", length_max);
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
        result = kelp__client_invalid(
            "kelp_worker_plan_reasons(): reasons are 1 to %zu printable characters", length_max);
    }
    if (result == KELP_WORKER_OK) {
        (void)snprintf(worker->plan.compute_reasons, sizeof(worker->plan.compute_reasons), "%s",
                       reasons);
    }
    return result;
}

int kelp_worker_plan_sum(struct kelp_worker *worker, const char *name)
{
    int result = may_plan(worker, "kelp_worker_plan_sum()");
    uint32_t index = 0;

    return result == KELP_WORKER_OK
               ? kelp__client_find_sum(worker, "kelp_worker_plan_sum()", name, &index)
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
        result = kelp__client_invalid("kelp_worker_plan_block(): a block has at least one sample");
    }
    if (result == KELP_WORKER_OK) {
        worker->block = samples;
    }
    return result;
}

static int check_tensor(const struct kelp_worker_tensor *tensor)
{
    if (!is_plain(tensor->name, KELP_TENSOR_NAME_MAX)) {
        return kelp__client_invalid(
            "kelp_worker_plan_tensor(): name is 1 to %d printable characters",
            KELP_TENSOR_NAME_MAX);
    }
    if (tensor->rank > KELP_TENSOR_RANK_MAX || (tensor->rank > 0 && !tensor->shape)) {
        return kelp__client_invalid("tensor %s: rank is %" PRIu32
                                    "; 0 to %d with a shape are allowed",
                                    tensor->name, tensor->rank, KELP_TENSOR_RANK_MAX);
    }
    if (tensor->init > KELP_WORKER_INIT_FILE || !isfinite(tensor->init_a)) {
        return kelp__client_invalid(
            "tensor %s: init is one of enum kelp_worker_init, with a finite init_a", tensor->name);
    }
    if (!(tensor->momentum >= 0 && tensor->momentum <= 1)) {
        return kelp__client_invalid("tensor %s: momentum is 0 to 1", tensor->name);
    }
    if (tensor->held > 1 || tensor->reserved != 0 || (tensor->held && tensor->momentum > 0)) {
        return kelp__client_invalid(
            "tensor %s: held is 0, or 1 with a momentum of 0; reserved is 0", tensor->name);
    }
    return KELP_WORKER_OK;
}

static int add_tensor(struct kelp_plan *plan, const struct kelp_worker_tensor *given)
{
    if (plan->tensor_count == KELP_PLAN_TENSORS_MAX) {
        return kelp__client_invalid("tensor %s: a model has at most %d", given->name,
                                    KELP_PLAN_TENSORS_MAX);
    }
    struct kelp_tensor *tensors =
        realloc(plan->tensors, (plan->tensor_count + 1) * sizeof(*tensors));
    if (!tensors) {
        return kelp__client_no_memory(given->name);
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
        result =
            kelp__client_take("kelp_worker_tensor", &known, sizeof(known), TENSOR_LEAST, tensor);
    }
    if (result == KELP_WORKER_OK) {
        result = check_tensor(&known);
    }
    return result == KELP_WORKER_OK ? add_tensor(&worker->plan, &known) : result;
}

/* If the job has initial weights and the program does not say which tensors take them, all do. A
 * job that does not train has no other weights. */
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
    kelp_log_always(KELP_LOG_INFO,
                    KELP_WORKER_JOINED "%" PRIu64 " tensors=%u elements=%" PRIu64
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
        return kelp__client_invalid("kelp_worker_join(): the plan needs kelp_worker_plan_data(), "
                                    "kelp_worker_plan_compute() and a tensor");
    }
    worker->joining = true;
    result = kelp__client_result(join(worker, &error), &error);
    worker->joined = result == KELP_WORKER_OK;
    return result;
}
