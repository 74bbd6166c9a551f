#include "worker/trainer.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/log.h"
#include "worker/dataset.h"
#include "worker/derive.h"
#include "worker/gradients.h"
#include "worker/model.h"
#include "worker/schedule.h"

#define STALL_S 3

struct kelp_trainer {
    struct kelp_worker *worker;
    const struct kelp_job *job;
    struct kelp_dataset *dataset;
    struct kelp_model *model;
    struct kelp_plan plan;
    struct kelp_schedule schedule; /* of the entry in work */
    uint32_t batch_max;
    bool faulted;      /* the fault has happened */
    uint64_t *indices; /* [batch_max] */
    float *input;      /* [batch_max][input dims] */
    float *target;     /* [batch_max][target dims] */
};

kelp_status kelp_worker_fault_parse(const char *text, struct kelp_worker_fault *ret_fault,
                                    struct kelp_error *reterr)
{
    static const struct {
        const char *prefix;
        int kind;
    } kinds[] = {{"kill@step=", KELP_FAULT_KILL},
                 {"kill-pushing@step=", KELP_FAULT_KILL_PUSHING},
                 {"stall@step=", KELP_FAULT_STALL}};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(kinds); i++) {
        size_t length = strlen(kinds[i].prefix);
        if (strncmp(text, kinds[i].prefix, length) != 0 || text[length] < '0' ||
            text[length] > '9') {
            continue;
        }
        char *end;
        errno = 0;
        unsigned long long step = strtoull(text + length, &end, 10);
        if (errno == 0 && *end == '\0') {
            ret_fault->kind = kinds[i].kind;
            ret_fault->step = step;
            return KELP_OK;
        }
    }
    return kelp_fail(
        reterr, KELP_ERR_INVALID,
        "fault \"%s\" is not known; allowed: kill@step=N, kill-pushing@step=N, stall@step=N", text);
}

/* ---- one lane
 * -------------------------------------------------------------------------------------- */

/* Read samples at these positions of the entry into input and target. */
static kelp_status read_samples(struct kelp_trainer *trainer, struct kelp_schedule_range range,
                                struct kelp_error *reterr)
{
    enum kelp_part part = trainer->schedule.part;
    assert(range.count <= trainer->batch_max);
    kelp_schedule_indices(&trainer->schedule, range, trainer->indices);
    kelp_status status = kelp_dataset_read(trainer->dataset, part, trainer->indices,
                                           (uint32_t)range.count, trainer->input, trainer->target);
    if (status != KELP_OK) {
        return kelp_fail(reterr, status, "positions [%llu, +%llu) of part %d cannot be read",
                         (unsigned long long)range.first, (unsigned long long)range.count,
                         (int)part);
    }
    return KELP_OK;
}

static kelp_status train_lane(struct kelp_trainer *trainer, const struct kelp_work *work,
                              const struct kelp_schedule_range *samples,
                              struct kelp_gradient *gradient, struct kelp_error *reterr)
{
    kelp_status status = read_samples(trainer, *samples, reterr);
    if (status != KELP_OK) {
        return status;
    }
    kelp_model_bind(trainer->model, &trainer->plan, work->weights, gradient->values);
    gradient->present = true;
    return kelp_model_train(trainer->model, trainer->input, trainer->target,
                            (uint32_t)samples->count, (double)work->word.sample_count,
                            gradient->sums, reterr);
}

static kelp_status evaluate_lane(struct kelp_trainer *trainer, const struct kelp_work *work,
                                 const struct kelp_schedule_range *samples,
                                 struct kelp_gradient *gradient, struct kelp_error *reterr)
{
    kelp_model_bind(trainer->model, &trainer->plan, work->weights, NULL);
    for (uint64_t done = 0; done < samples->count;) {
        double sums[KELP_METRIC_COUNT];
        uint64_t rest = samples->count - done;
        uint32_t count = rest < trainer->batch_max ? (uint32_t)rest : trainer->batch_max;
        struct kelp_schedule_range block = {.first = samples->first + done, .count = count};
        kelp_status status = read_samples(trainer, block, reterr);
        if (status == KELP_OK) {
            status = kelp_model_evaluate(trainer->model, trainer->input, trainer->target, count,
                                         sums, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
        for (int i = 0; i < KELP_METRIC_COUNT; i++) {
            gradient->sums[i] += sums[i];
        }
        done += count;
    }
    return KELP_OK;
}

static kelp_status compute_lane(struct kelp_trainer *trainer, const struct kelp_work *work,
                                uint32_t lane, struct kelp_gradient *gradient,
                                struct kelp_error *reterr)
{
    struct kelp_schedule_range samples = kelp_schedule_lane(&trainer->schedule, lane);

    if (samples.count == 0) {
        return KELP_OK; /* an empty node, the identity of the tree */
    }
    switch (work->word.kind) {
    case KELP_STEP_TRAIN:
        return train_lane(trainer, work, &samples, gradient, reterr);
    case KELP_STEP_EVALUATE_VAL:
    case KELP_STEP_EVALUATE_TEST:
        return evaluate_lane(trainer, work, &samples, gradient, reterr);
    case KELP_STEP_FINISH:
    case KELP_STEP_DONE:
        break;
    }
    return KELP_OK;
}

/* ---- one node: its lanes' sum in tree order
 * ----------------------------------------------------------- */

static kelp_status compute_node(struct kelp_trainer *trainer, const struct kelp_work *work,
                                uint32_t lane_first, uint32_t lane_count,
                                struct kelp_gradient **ret_gradient, struct kelp_error *reterr)
{
    struct kelp_gradient *left = NULL;
    struct kelp_gradient *right = NULL;
    kelp_status status;

    if (lane_count == 1) {
        left = kelp_worker_gradient(trainer->worker);
        if (!left) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a gradient");
        }
        status = compute_lane(trainer, work, lane_first, left, reterr);
    } else {
        uint32_t half = lane_count / 2;
        status = compute_node(trainer, work, lane_first, half, &left, reterr);
        if (status != KELP_OK) {
            return status;
        }
        status = compute_node(trainer, work, lane_first + half, half, &right, reterr);
        if (status == KELP_OK) {
            kelp_gradient_merge(left, right);
            kelp_gradient_unref(right);
        }
    }
    if (status != KELP_OK) {
        kelp_gradient_unref(left);
        return status;
    }
    *ret_gradient = left;
    return KELP_OK;
}

static void fail_if_asked(struct kelp_trainer *trainer, const struct kelp_work *work,
                          const struct kelp_worker_fault *fault)
{
    if (fault->kind == KELP_FAULT_NONE || trainer->faulted || work->word.kind != KELP_STEP_TRAIN ||
        work->word.step < fault->step) {
        return;
    }
    trainer->faulted = true;
    kelp_log_warn("failing as asked step=%llu", (unsigned long long)work->word.step);
    if (fault->kind == KELP_FAULT_STALL) {
        struct timespec stall = {.tv_sec = STALL_S};
        (void)nanosleep(&stall, NULL); /* being late is the fault */
        return;
    }
    if (fault->kind == KELP_FAULT_KILL_PUSHING) {
        kelp_worker_send_half(trainer->worker);
    }
    (void)raise(SIGKILL);
}

static kelp_status compute(struct kelp_trainer *trainer, const struct kelp_work *work,
                           const struct kelp_worker_fault *fault, struct kelp_error *reterr)
{
    struct kelp_schedule_node nodes[KELP_SCHEDULE_NODES_MAX];
    uint32_t node_count = kelp_schedule_split(work->lane_first, work->lane_count, nodes);
    char digest[33] = "";
    kelp_status status = kelp_schedule_init(&trainer->schedule, trainer->job, trainer->plan.samples,
                                            &work->word, reterr);

    if (work->word.digest_due && work->lane_first == 0) {
        kelp_plan_digest(&trainer->plan, work->weights, digest);
    }
    for (uint32_t i = 0; i < node_count && status == KELP_OK; i++) {
        struct kelp_node node = {
            .lane_first = nodes[i].first,
            .lane_count = nodes[i].count,
            .digest = i == 0 && digest[0] ? digest : NULL,
        };
        status =
            compute_node(trainer, work, node.lane_first, node.lane_count, &node.gradient, reterr);
        if (status == KELP_OK) {
            status = kelp_worker_push(trainer->worker, &node, reterr);
        }
    }
    if (status != KELP_OK) {
        return status;
    }
    fail_if_asked(trainer, work, fault);
    return KELP_OK;
}

/* ---- life
 * ------------------------------------------------------------------------------------------------
 */

static kelp_status prepare(struct kelp_trainer *trainer, struct kelp_error *reterr)
{
    kelp_status status = kelp_dataset_open(trainer->job, &trainer->dataset, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_sample_shape *shape = &kelp_dataset_info(trainer->dataset)->shape;
    trainer->batch_max = kelp_batch_max(trainer->job);
    status = kelp_model_create(trainer->job, shape, trainer->batch_max, &trainer->model, reterr);
    if (status == KELP_OK) {
        status = kelp_derive_plan(trainer->job, trainer->dataset, trainer->model, &trainer->plan,
                                  reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    size_t input_count = (size_t)kelp_sample_input_count(shape);
    size_t target_count = (size_t)kelp_sample_target_count(shape);
    trainer->indices = calloc(trainer->batch_max, sizeof(*trainer->indices));
    trainer->input = calloc(trainer->batch_max, input_count * sizeof(float));
    trainer->target = calloc(trainer->batch_max, target_count * sizeof(float));
    if (!trainer->indices || !trainer->input || !trainer->target) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for batches of %u samples",
                         trainer->batch_max);
    }
    return KELP_OK;
}

static kelp_status work_until_over(struct kelp_trainer *trainer,
                                   const struct kelp_worker_fault *fault, struct kelp_stop *stop,
                                   struct kelp_error *reterr)
{
    for (;;) {
        struct kelp_work work;
        kelp_status status = kelp_worker_next(trainer->worker, stop, &work, reterr);
        if (status == KELP_ERR_CLOSED || (status == KELP_ERR_TIMEOUT && kelp_stop_raised(stop))) {
            return KELP_OK;
        }
        if (status == KELP_OK) {
            status = compute(trainer, &work, fault, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
    }
}

kelp_status kelp_trainer_create(struct kelp_worker *worker, struct kelp_trainer **ret_trainer,
                                struct kelp_error *reterr)
{
    struct kelp_trainer *trainer = calloc(1, sizeof(*trainer));
    if (!trainer) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "trainer: out of memory");
    }
    trainer->worker = worker;
    trainer->job = kelp_worker_job(worker);
    kelp_status status = prepare(trainer, reterr);
    if (status != KELP_OK) {
        kelp_trainer_destroy(trainer);
        return status;
    }
    *ret_trainer = trainer;
    return KELP_OK;
}

kelp_status kelp_trainer_run(struct kelp_trainer *trainer, const struct kelp_worker_fault *fault,
                             struct kelp_stop *stop, struct kelp_error *reterr)
{
    kelp_status status = kelp_worker_join(trainer->worker, &trainer->plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    kelp_log_info("joined samples=%llu tensors=%u elements=%llu partitions=%u compute=\"%s\"",
                  (unsigned long long)trainer->plan.samples[KELP_PART_TRAIN],
                  trainer->plan.tensor_count, (unsigned long long)trainer->plan.flat_count,
                  trainer->plan.partition_count, trainer->plan.compute_kind);
    return work_until_over(trainer, fault, stop, reterr);
}

void kelp_trainer_destroy(struct kelp_trainer *trainer)
{
    if (!trainer) {
        return;
    }
    free(trainer->indices);
    free(trainer->input);
    free(trainer->target);
    kelp_plan_fini(&trainer->plan);
    kelp_model_destroy(trainer->model);
    kelp_dataset_close(trainer->dataset);
    free(trainer);
}
