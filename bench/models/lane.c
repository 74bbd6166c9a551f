#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "bench/models/lane.h"
#include "common/base/clock.h"
#include "tests/lib/commands/run_command.h"
#include "worker/data/dataset.h"
#include "worker/model/derive.h"

static void expect_ok(kelp_status status, const char *what, const struct kelp_error *error)
{
    ck_assert_msg(status == KELP_OK, "%s: %s", what, error->text);
}

static float *floats(uint64_t count)
{
    float *values = calloc(count + 1, sizeof(*values));
    ck_assert_ptr_nonnull(values);
    return values;
}

/* From which the GPU copies while the host goes on, as a worker's. */
static float *pinned(const struct lane *lane, uint64_t count)
{
    float *values = kelp_model_host_alloc(lane->model, (size_t)(count + 1) * sizeof(*values));
    ck_assert_ptr_nonnull(values);
    return values;
}

static void lane_read_samples(struct lane *lane, const struct kelp_dataset *dataset)
{
    const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
    lane->shape = info->shape;
    lane->samples = info->samples[KELP_SPLIT_TRAIN];
    lane->input_count = kelp_sample_input_count(&info->shape);
    lane->target_count = kelp_sample_target_count(&info->shape);
    lane->input = pinned(lane, lane->samples * lane->input_count);
    lane->target = pinned(lane, lane->samples * lane->target_count);
    for (uint64_t i = 0; i < lane->samples; i++) {
        ck_assert_int_eq(kelp_dataset_read(dataset, KELP_SPLIT_TRAIN, &i, 1,
                                           lane->input + i * lane->input_count,
                                           lane->target + i * lane->target_count),
                         KELP_OK);
    }
}

static const struct kelp_job *lane_read_job(struct lane *lane, const char *text)
{
    struct kelp_error error = {KELP_OK, ""};
    lane->file = kelp_job_file_create();
    ck_assert_ptr_nonnull(lane->file);
    kelp_status status = kelp_job_file_parse(lane->file, "job.yaml", text, strlen(text), &error);
    if (status == KELP_OK) {
        status = kelp_job_file_set(lane->file, "train.precision", options.precision,
                                   KELP_ORIGIN_FLAG, &error);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_finish(lane->file, &error);
    }
    expect_ok(status, "job", &error);
    return kelp_job_file_job(lane->file);
}

/* Model, plan and initial weights, as a worker and its shards make them. */
static void lane_build(struct lane *lane, const struct kelp_job *job)
{
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_dataset *dataset = NULL;
    expect_ok(kelp_dataset_open(job, &dataset, &error), "data", &error);
    expect_ok(kelp_derive_model(job, &kelp_dataset_info(dataset)->shape, &lane->model, &error),
              "model", &error);
    expect_ok(kelp_derive_plan(job, dataset, lane->model, &lane->plan, &error), "plan", &error);
    lane_read_samples(lane, dataset);
    kelp_dataset_close(dataset);
    lane->weights = pinned(lane, lane->plan.flat_count);
    lane->gradient = floats(lane->plan.flat_count);
    const struct kelp_slice_range all = {0, lane->plan.flat_count};
    expect_ok(kelp_plan_initialise(&lane->plan, job, NULL, all, lane->weights, &error), "weights",
              &error);
    kelp_model_bind(lane->model, &lane->plan, lane->weights, lane->gradient);
}

void lane_init(struct lane *lane, const struct bench_model *model, uint32_t batch)
{
    struct kelp_test_folder folder;
    char data[400], job[2000];
    *lane = (struct lane){.batch = batch};
    kelp_test_folder_init(&folder);
    (void)snprintf(data, sizeof(data), "%s/samples.safetensors", folder.path);
    models_write_samples(model, data);
    models_write_job(model, data, batch, "lanes: 1, workers: 1, shards: 1, device: cuda", job,
                     sizeof(job));
    lane_build(lane, lane_read_job(lane, job));
    kelp_test_folder_fini(&folder);
}

void lane_fini(struct lane *lane)
{
    kelp_model_drop(lane->model);
    kelp_model_host_free(lane->model, lane->input);
    kelp_model_host_free(lane->model, lane->target);
    kelp_model_host_free(lane->model, lane->weights);
    kelp_model_destroy(lane->model);
    kelp_plan_fini(&lane->plan);
    kelp_job_file_destroy(lane->file);
    free(lane->gradient);
}

static struct kelp_model_piece lane_piece(const struct lane *lane)
{
    const uint64_t at = lane->step * lane->batch % (lane->samples - lane->batch + 1);
    return (struct kelp_model_piece){.input = lane->input + at * lane->input_count,
                                     .target = lane->target + at * lane->target_count,
                                     .count = lane->batch,
                                     .batch_total = lane->batch,
                                     .step = lane->step};
}

void lane_step(struct lane *lane)
{
    struct kelp_error error = {KELP_OK, ""};
    double sums[KELP_METRIC_SUM_COUNT];
    const struct kelp_model_piece piece = lane_piece(lane);
    kelp_model_bind_gradient(lane->model, lane->gradient);
    expect_ok(kelp_model_train(lane->model, &piece, sums, &error), "train", &error);
    lane->step++;
}

void lane_step_anew(struct lane *lane)
{
    kelp_model_bind(lane->model, &lane->plan, lane->weights, lane->gradient);
    lane_step(lane);
}

static void finish_oldest(struct lane *lane)
{
    struct kelp_error error = {KELP_OK, ""};
    double sums[KELP_METRIC_SUM_COUNT];
    expect_ok(kelp_model_finish(lane->model, sums, &error), "train", &error);
}

/* The next lane's samples, while this one is computed. */
static void stage_next(void *user)
{
    struct lane *lane = user;
    lane->step++;
    const struct kelp_model_piece next = lane_piece(lane);
    kelp_model_stage(lane->model, next.input, next.target, next.count);
}

void lane_node(struct lane *lane)
{
    struct kelp_error error = {KELP_OK, ""};
    for (uint32_t i = 0; i < NODE_LANES; i++) {
        const struct kelp_model_sum sum = {
            .lane = i, .begins = i == 0, .ends = i + 1 == NODE_LANES};
        struct kelp_model_piece piece = lane_piece(lane);
        piece.sum = &sum;
        piece.idle = stage_next;
        piece.user = lane;
        while (kelp_model_pending(lane->model) == kelp_model_ahead(lane->model) ||
               !kelp_model_may_begin(lane->model, &piece)) {
            finish_oldest(lane);
        }
        kelp_model_bind_gradient(lane->model, lane->gradient);
        expect_ok(kelp_model_begin(lane->model, &piece, &error), "train", &error);
    }
    while (kelp_model_pending(lane->model) > 0) {
        finish_oldest(lane);
    }
}

double lane_rate(struct lane *lane, void (*call)(struct lane *lane))
{
    for (unsigned i = 0; i < LANE_STEPS; i++) {
        call(lane);
    }
    const uint64_t begin_us = kelp_clock_us();
    double seconds = 0;
    unsigned calls = 0;
    while (calls < LANE_STEPS || seconds < LANE_SECONDS) {
        call(lane);
        calls++;
        seconds = (double)(kelp_clock_us() - begin_us) / 1e6;
    }
    return calls / seconds;
}

double lane_rate_ahead(struct lane *lane)
{
    double best = 0;
    lane_node(lane);
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t begin_us = kelp_clock_us();
        double seconds = 0;
        unsigned nodes = 0;
        while (nodes == 0 || seconds < LANE_SECONDS) {
            lane_node(lane);
            nodes++;
            seconds = (double)(kelp_clock_us() - begin_us) / 1e6;
        }
        best = nodes * NODE_LANES / seconds > best ? nodes * NODE_LANES / seconds : best;
    }
    return best;
}

double lane_rate_beside(struct lane *lane)
{
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_job *job = kelp_job_file_job(lane->file);
    kelp_model_stage(lane->model, NULL, NULL, 0);
    expect_ok(kelp_model_widen(lane->model, job, &lane->shape, 2, &error), "streams", &error);
    return lane_rate_ahead(lane);
}
