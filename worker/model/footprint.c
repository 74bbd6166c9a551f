#include "worker/model/footprint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/optimizer.h"
#include "worker/core/schedule.h"
#include "worker/core/stepper.h"
#include "worker/model/graph/graph.h"

/* A worker that has joined an empty job: touched code and libraries (mainly gRPC and OpenBLAS),
 * stacks, and OpenBLAS's own buffer. */
#define PROCESS_BYTES (UINT64_C(33) << 20)

/* On a GPU: CUDA's context with our kernels and those of cuBLASLt, its workspace and scratch
 * memory. An estimate, since it differs between GPUs and drivers. */
#define DEVICE_LIBRARY_BYTES (UINT64_C(640) << 20)
/* The part of it that each stream needs: cuBLASLt's workspace and scratch memory, from the first
 * product on. */
#define STREAM_LIBRARY_BYTES (UINT64_C(40) << 20)

/* Buffers that a node of so many lanes needs during its computation: one for each level. */
static uint32_t levels(uint32_t lanes)
{
    uint32_t count = 1;
    while (lanes > 1) {
        lanes /= 2;
        count++;
    }
    return count;
}

/* Gradient buffers that a worker with these lanes holds at most: pushed ones stay until the
 * version is over, while the next node is computed. */
static uint32_t buffers_of(uint32_t lane_first, uint32_t lane_count)
{
    struct kelp_schedule_node nodes[KELP_SCHEDULE_NODES_MAX];
    const uint32_t count = kelp_schedule_split(lane_first, lane_count, nodes);
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t held = i + levels(nodes[i].count);
        most = held > most ? held : most;
    }
    return most;
}

/* On a device: the gradient that is computed, and waiting sums (worker/model/level_sums.h). */
static uint32_t device_buffers_of(uint32_t lane_first, uint32_t lane_count)
{
    struct kelp_schedule_node nodes[KELP_SCHEDULE_NODES_MAX];
    const uint32_t count = kelp_schedule_split(lane_first, lane_count, nodes);
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t held = levels(nodes[i].count);
        most = held > most ? held : most;
    }
    return most;
}

/* The most buffers of any worker, at the smallest number of workers. */
static uint32_t most_buffers(const struct kelp_job *job, uint32_t (*of)(uint32_t, uint32_t))
{
    const uint32_t workers = job->cluster.workers.min, lanes = job->cluster.lanes;
    uint32_t most = 1;
    for (uint32_t i = 0; i < workers; i++) {
        const uint32_t first = (uint32_t)((uint64_t)lanes * i / workers);
        const uint32_t end = (uint32_t)((uint64_t)lanes * (i + 1) / workers);
        const uint32_t held = end == first ? 0 : of(first, end - first);
        most = held > most ? held : most;
    }
    return most;
}

/* Values in another precision than float32 are packed beside the gradient before they are sent. */
static uint64_t packed_bytes(const struct kelp_job *job, const struct kelp_plan *plan)
{
    const enum kelp_precision precision = job->transport.precision;
    return precision == KELP_PRECISION_FLOAT32 ? 0
                                               : plan->flat_count * kelp_precision_bytes(precision);
}

/* For a GPU's worker: host memory for gradients that arrive while the GPU computes
 * (worker/model/mirror.h), and for those of lanes that begin before the first is finished. */
static uint64_t pending_bytes(const struct kelp_job *job, const struct kelp_plan *plan,
                              const struct kelp_model *model)
{
    if (job->cluster.device == KELP_DEVICE_CPU || job->run.mode != KELP_RUN_TRAIN) {
        return 0;
    }
    const uint64_t flat = plan->flat_count * sizeof(float);
    return flat + (kelp_model_ahead(model) - 1) * (flat + packed_bytes(job, plan));
}

/* Memory for predictions: of as many blocks as are computed at once. */
static uint64_t output_bytes(const struct kelp_job *job, const struct kelp_model *model)
{
    const struct kelp_shape *shape = kelp_model_output(model);
    uint64_t count = kelp_model_blocks_max(model) * (uint64_t)kelp_model_batch_max(model);
    for (uint32_t i = 0; i < shape->rank; i++) {
        count *= shape->dims[i];
    }
    return job->run.mode == KELP_RUN_PREDICT ? count * sizeof(float) : 0;
}

void kelp_footprint(const struct kelp_job *job, const struct kelp_plan *plan,
                    const struct kelp_model *model, const struct kelp_dataset *dataset,
                    struct kelp_footprint *ret_footprint)
{
    struct kelp_graph_memory memory;
    const uint64_t flat = plan->flat_count * sizeof(float);
    kelp_graph_memory(kelp_model_graph(model), &memory);
    struct kelp_footprint footprint = {
        .weights = 2 * flat,
        .gradients = most_buffers(job, buffers_of) * (flat + packed_bytes(job, plan)) +
                     pending_bytes(job, plan, model),
        /* on a GPU: see kelp_footprint_device() */
        .activations = job->cluster.device == KELP_DEVICE_CPU ? memory.total : 0,
        .batch = output_bytes(job, model),
        .messages = flat,
        .process = PROCESS_BYTES};
    if (dataset) {
        const struct kelp_dataset_info *info = kelp_dataset_info(dataset);
        const uint64_t sample =
            kelp_sample_input_count(&info->shape) + kelp_sample_target_count(&info->shape);
        const uint64_t batches = job->cluster.device == KELP_DEVICE_CPU ? 1 : 2; /* and the next */
        footprint.batch +=
            batches * kelp_model_batch_max(model) * (sample * sizeof(float) + sizeof(uint64_t));
        footprint.data = info->memory_bytes;
    }
    footprint.total = footprint.weights + footprint.gradients + footprint.activations +
                      footprint.batch + footprint.data + footprint.messages + footprint.process;
    *ret_footprint = footprint;
}

void kelp_footprint_device(const struct kelp_job *job, const struct kelp_plan *plan,
                           const struct kelp_model *model,
                           struct kelp_device_footprint *ret_footprint)
{
    struct kelp_graph_memory memory;
    const uint64_t flat = plan->flat_count * sizeof(float);
    kelp_graph_memory(kelp_model_graph(model), &memory);
    /* In other precisions than float32 the host adds. */
    const uint32_t sums = job->transport.precision == KELP_PRECISION_FLOAT32
                              ? most_buffers(job, device_buffers_of)
                              : 1;
    const uint32_t streams = kelp_model_streams(model), others = streams - 1;
    struct kelp_device_footprint footprint = {
        .weights = flat,
        .gradient = job->run.mode == KELP_RUN_TRAIN ? flat * (sums + others) : 0,
        .activations = memory.total * streams,
        .cudnn = memory.scratch * streams,
        .libraries = DEVICE_LIBRARY_BYTES + others * STREAM_LIBRARY_BYTES};
    footprint.total = footprint.weights + footprint.gradient + footprint.activations +
                      footprint.cudnn + footprint.libraries;
    footprint.later =
        footprint.weights + footprint.gradient + footprint.cudnn + streams * STREAM_LIBRARY_BYTES;
    *ret_footprint = footprint;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (1024.0 * 1024.0 * 1024.0);
}

#define PARTS_SIZE 160

static const char *print_parts(const struct kelp_device_footprint *footprint, char text[PARTS_SIZE])
{
    char cudnn[32] = "";
    if (footprint->cudnn > 0) {
        (void)snprintf(cudnn, sizeof(cudnn), "cuDNN up to %.2f, ", gib(footprint->cudnn));
    }
    (void)snprintf(text, PARTS_SIZE, "weights %.2f, gradient %.2f, activations %.2f, %sCUDA %.2f",
                   gib(footprint->weights), gib(footprint->gradient), gib(footprint->activations),
                   cudnn, gib(footprint->libraries));
    return text;
}

kelp_status kelp_footprint_device_check(const struct kelp_job *job,
                                        const struct kelp_device_footprint *footprint,
                                        uint32_t sharing, uint64_t memory_bytes,
                                        struct kelp_error *reterr)
{
    char who[64] = "a worker takes", parts[PARTS_SIZE];
    if (footprint->total <= memory_bytes / sharing) {
        return KELP_OK;
    }
    if (sharing > 1) {
        (void)snprintf(who, sizeof(who), "%u workers share a GPU, and each takes", sharing);
    }
    const bool without = footprint->total - footprint->cudnn <= memory_bytes / sharing;
    return kelp_fail(reterr, KELP_ERR_LIMIT,
                     "%s %.2f GiB of its GPU's memory (%s), and that has %.2f GiB; take %s%s%s",
                     who, gib(footprint->total), print_parts(footprint, parts), gib(memory_bytes),
                     without ? "cluster.cudnn: never, " : "",
                     sharing > 1 ? "fewer workers, more GPUs, " : "",
                     job->run.mode == KELP_RUN_TRAIN
                         ? "a smaller train.batch_size, more train.accumulate, or a smaller model"
                         : "smaller blocks of samples by --set train.batch_size=N");
}

kelp_status kelp_footprint_device_left(const struct kelp_device_footprint *footprint,
                                       uint64_t free_bytes, struct kelp_error *reterr)
{
    char parts[PARTS_SIZE];
    if (free_bytes == 0 || footprint->later <= free_bytes) {
        return KELP_OK;
    }
    return kelp_fail(
        reterr, KELP_ERR_NO_MEMORY,
        "a worker takes %.2f GiB of its GPU's memory (%s), %.2f of them still, and "
        "%.2f are free; give it a GPU that others leave alone, or fewer workers to each",
        gib(footprint->total), print_parts(footprint, parts), gib(footprint->later),
        gib(free_bytes));
}

uint64_t kelp_footprint_shards(const struct kelp_job *job, const struct kelp_plan *plan)
{
    const uint64_t slots = job->run.mode == KELP_RUN_TRAIN ? kelp_optimizer_slot_count(job) : 0;
    const uint64_t bytes = plan->flat_count * sizeof(float) * (3 + slots) + packed_bytes(job, plan);
    return bytes * job->cluster.replicas;
}

uint64_t kelp_footprint_peak(void)
{
    static const char key[] = "VmHWM:";
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof(line), file)) {
        if (strncmp(line, key, sizeof(key) - 1) == 0) {
            kib = strtoull(line + sizeof(key) - 1, NULL, 10);
        }
    }
    if (file) {
        (void)fclose(file);
    }
    return (uint64_t)kib * 1024;
}
