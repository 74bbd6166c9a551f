/*
 * The values of a plan's tensors: the initial values S_0, and their digest.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/tensors/digest.h"
#include "common/tensors/normal.h"
#include "common/tensors/philox.h"
#include "common/tensors/safetensors.h"
#include "common/training/plan.h"
#include "common/training/plan_init.h"

/* Elements `range` of a uniform tensor. Element i is word i % 4 of block i / 4. */
static void fill_uniform(uint64_t seed, uint32_t tensor_index, float a,
                         struct kelp_slice_range range, float *values)
{
    uint32_t words[4] = {0};

    for (uint64_t i = range.first; i < range.first + range.count; i++) {
        if (i == range.first || i % 4 == 0) {
            kelp_philox(seed, KELP_PHILOX_INIT, tensor_index, i / 4, words);
        }
        values[i - range.first] = (2.0f * kelp_philox_float(words[i % 4]) - 1.0f) * a;
    }
}

/* Elements `range` of a normal tensor, words as for a uniform one. A word in the
 * middle of its interval is never 0 or 1, and gives values up to 6.2 standard deviations. */
static void fill_normal(uint64_t seed, uint32_t tensor_index, float a,
                        struct kelp_slice_range range, float *values)
{
    uint32_t words[4] = {0};

    for (uint64_t i = range.first; i < range.first + range.count; i++) {
        if (i == range.first || i % 4 == 0) {
            kelp_philox(seed, KELP_PHILOX_INIT, tensor_index, i / 4, words);
        }
        double probability = ((double)words[i % 4] + 0.5) * 0x1p-32;
        values[i - range.first] = (float)(kelp_normal_quantile(probability) * (double)a);
    }
}

/* "[2, 3]", cut if it does not fit. */
static void print_dims(const uint64_t *dims, uint32_t rank, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "[");

    for (uint32_t i = 0; i < rank && used < text_bytes; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%" PRIu64, i > 0 ? ", " : "",
                                 dims[i]);
    }
    if (used < text_bytes) {
        (void)snprintf(text + used, text_bytes - used, "]");
    }
}

static kelp_status refuse_shape(const struct kelp_tensor *tensor,
                                const struct kelp_safetensors_tensor *found, const char *path,
                                struct kelp_error *reterr)
{
    char ours[96], theirs[96];

    print_dims(tensor->shape, tensor->rank, ours, sizeof(ours));
    print_dims(found->shape, found->rank, theirs, sizeof(theirs));
    return kelp_fail(reterr, KELP_ERR_MISMATCH,
                     "%s: tensor %s has shape %s, but the job's model %s; are model and data keys "
                     "those that the weights were trained with?",
                     path, found->name, theirs, ours);
}

/* Find the tensor in the file. NULL without an error: a running statistic that the file lacks,
 * which starts as usual. */
static kelp_status find_in_file(const struct kelp_tensor *tensor, const struct kelp_job *job,
                                const struct kelp_safetensors *init_data,
                                const struct kelp_safetensors_tensor **ret_found,
                                struct kelp_error *reterr)
{
    kelp_status status = kelp__init_find(init_data, job, tensor->name, ret_found, reterr);

    if (status != KELP_OK) {
        return status;
    }
    if (!*ret_found) {
        return tensor->statistic && tensor->momentum > 0 && job->run.mode == KELP_RUN_TRAIN
                   ? KELP_OK
                   : kelp__init_lacks(init_data, job, tensor->name, reterr);
    }
    if ((*ret_found)->rank != tensor->rank ||
        memcmp((*ret_found)->shape, tensor->shape, tensor->rank * sizeof(tensor->shape[0])) != 0) {
        return refuse_shape(tensor, *ret_found, kelp_safetensors_path(init_data), reterr);
    }
    if ((*ret_found)->dtype == KELP_DTYPE_I64) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH, "%s: tensor %s is I64; weights are floats",
                         kelp_safetensors_path(init_data), (*ret_found)->name);
    }
    return KELP_OK;
}

static void fill_constant(float value, uint64_t count, float *values)
{
    for (uint64_t i = 0; i < count; i++) {
        values[i] = value;
    }
}

static kelp_status fill_from_file(const struct kelp_tensor *tensor, const struct kelp_job *job,
                                  const struct kelp_safetensors *init_data,
                                  struct kelp_slice_range range, float *values,
                                  struct kelp_error *reterr)
{
    const struct kelp_safetensors_tensor *found = NULL;

    if (!init_data) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "tensor %s comes from model.init, which is "
                         "not open",
                         tensor->name);
    }
    kelp_status status = find_in_file(tensor, job, init_data, &found, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (!found) {
        fill_constant(tensor->init_a, range.count, values);
        return KELP_OK;
    }
    return kelp_safetensors_floats(found, range.first, range.count, values, reterr);
}

kelp_status kelp_plan_check_init(const struct kelp_plan *plan, const struct kelp_job *job,
                                 const struct kelp_safetensors *init_data,
                                 struct kelp_error *reterr)
{
    kelp_status status = kelp__init_check_map(init_data, job, reterr);

    for (uint32_t i = 0; i < plan->tensor_count && status == KELP_OK; i++) {
        const struct kelp_safetensors_tensor *found = NULL;
        if (plan->tensors[i].init == KELP_INIT_FILE) {
            status = find_in_file(&plan->tensors[i], job, init_data, &found, reterr);
        }
    }
    return status;
}

/* The source of values. */
struct filling {
    const struct kelp_plan *plan;
    const struct kelp_job *job;
    const struct kelp_safetensors *init_data;
};

/* Elements `range` of a tensor. */
static kelp_status fill(const struct filling *from, uint32_t tensor_index,
                        struct kelp_slice_range range, float *values, struct kelp_error *reterr)
{
    const struct kelp_tensor *tensor = &from->plan->tensors[tensor_index];
    uint64_t seed = from->job->seed;

    switch (tensor->init) {
    case KELP_INIT_CONSTANT:
        fill_constant(tensor->init_a, range.count, values);
        return KELP_OK;
    case KELP_INIT_UNIFORM:
        fill_uniform(seed, tensor_index, tensor->init_a, range, values);
        return KELP_OK;
    case KELP_INIT_NORMAL:
        fill_normal(seed, tensor_index, tensor->init_a, range, values);
        return KELP_OK;
    case KELP_INIT_FILE:
        return fill_from_file(tensor, from->job, from->init_data, range, values, reterr);
    }
    assert(false && "init kind");
    return KELP_ERR_INTERNAL;
}

kelp_status kelp_plan_initialise(const struct kelp_plan *plan, const struct kelp_job *job,
                                 const struct kelp_safetensors *init_data,
                                 struct kelp_slice_range range, float *values,
                                 struct kelp_error *reterr)
{
    const struct filling from = {plan, job, init_data};
    kelp_status status = KELP_OK;

    assert(range.first <= plan->flat_count);
    assert(range.count <= plan->flat_count - range.first);
    if (range.count == 0) {
        return KELP_OK;
    }
    memset(values, 0, range.count * sizeof(*values)); /* padding between tensors is zero */
    for (uint32_t i = 0; i < plan->tensor_count && status == KELP_OK; i++) {
        const struct kelp_tensor *tensor = &plan->tensors[i];
        uint64_t first = tensor->offset > range.first ? tensor->offset : range.first;
        uint64_t tensor_end = tensor->offset + tensor->elem_count;
        uint64_t range_end = range.first + range.count;
        uint64_t end = tensor_end < range_end ? tensor_end : range_end;
        if (first < end) {
            status = fill(&from, i, (struct kelp_slice_range){first - tensor->offset, end - first},
                          values + (first - range.first), reterr);
        }
    }
    return status;
}

void kelp_plan_digest(const struct kelp_plan *plan, const float *flat, char ret_hex[33])
{
    struct kelp_digest digest;

    kelp_digest_init(&digest);
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const struct kelp_tensor *tensor = &plan->tensors[i];
        kelp_digest_tensor(&digest, tensor->name, tensor->rank, tensor->shape);
        kelp_digest_update(&digest, flat + tensor->offset, tensor->elem_count * sizeof(*flat));
    }
    kelp_digest_hex(&digest, ret_hex);
}
