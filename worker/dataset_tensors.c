/* Samples from two tensors of a safetensors file: row i of each makes sample i. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "common/safetensors.h"
#include "worker/dataset_internal.h"

_Static_assert(KELP_SAMPLE_RANK_MAX + 1 >= KELP_SAFETENSORS_RANK_MAX,
               "a tensor without its first dimension is a sample");

struct tensor_key {
    const char *key; /* of the job file */
    const char *name;
};

static kelp_status find_tensor(const struct kelp_safetensors *file, const struct tensor_key *key,
                               const struct kelp_safetensors_tensor **ret_tensor,
                               struct kelp_error *reterr)
{
    const char *path = kelp_safetensors_path(file);
    const struct kelp_safetensors_tensor *tensor = kelp_safetensors_find(file, key->name);
    if (tensor == NULL) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: tensor %s: no such tensor; %s must name one of the %zu of the file",
                         path, key->name, key->key, kelp_safetensors_count(file));
    }
    if (tensor->dtype != KELP_DTYPE_F32) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%s: tensor %s: is %s; samples must be F32",
                         path, key->name, kelp_dtype_name(tensor->dtype));
    }
    if (tensor->rank == 0 || tensor->elem_count == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: tensor %s: holds no samples; its shape must be [samples, ...] with "
                         "no dimension of 0",
                         path, key->name);
    }
    *ret_tensor = tensor;
    return KELP_OK;
}

static void set_shape(struct kelp_dataset *dataset, const struct kelp_safetensors_tensor *input,
                      const struct kelp_safetensors_tensor *target)
{
    struct kelp_sample_shape *shape = &dataset->info.shape;
    shape->input_count = 1;
    shape->inputs[0].rank = input->rank - 1;
    shape->target.rank = target->rank - 1;
    memcpy(shape->inputs[0].dims, input->shape + 1, shape->inputs[0].rank * sizeof(uint64_t));
    memcpy(shape->target.dims, target->shape + 1, shape->target.rank * sizeof(uint64_t));
    dataset->info.samples[KELP_PART_TRAIN] = input->shape[0];
    dataset->input_count = dataset->input_stride = kelp_sample_input_count(shape);
    dataset->target_count = dataset->target_stride = kelp_sample_target_count(shape);
}

static uint64_t take_fingerprint(const struct kelp_safetensors_tensor *input,
                                 const struct kelp_safetensors_tensor *target)
{
    struct kelp_digest digest;
    kelp_digest_init(&digest);
    const struct kelp_safetensors_tensor *const tensors[] = {input, target};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(tensors); i++) {
        const uint64_t rank = tensors[i]->rank;
        kelp_digest_update(&digest, &rank, sizeof(rank));
        kelp_digest_update(&digest, tensors[i]->shape, tensors[i]->rank * sizeof(uint64_t));
        kelp_digest_update(&digest, tensors[i]->data, (size_t)tensors[i]->data_bytes);
    }
    return kelp_digest_short(&digest);
}

/* The file's floats may have any alignment, and the file may change: copy them. */
static kelp_status copy_values(struct kelp_dataset *dataset,
                               const struct kelp_safetensors_tensor *input,
                               const struct kelp_safetensors_tensor *target,
                               struct kelp_error *reterr)
{
    uint64_t count = 0;
    if (__builtin_add_overflow(input->elem_count, target->elem_count, &count) ||
        count > SIZE_MAX / sizeof(float)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the tensors are too large");
    }
    dataset->values = calloc((size_t)count, sizeof(*dataset->values));
    if (dataset->values == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %llu elements",
                         (unsigned long long)count);
    }
    dataset->input = dataset->values;
    dataset->target = dataset->values + input->elem_count;
    kelp_status status =
        kelp_safetensors_floats(input, 0, input->elem_count, dataset->values, reterr);
    if (status != KELP_OK) {
        return status;
    }
    return kelp_safetensors_floats(target, 0, target->elem_count,
                                   dataset->values + input->elem_count, reterr);
}

static kelp_status open_samples(struct kelp_dataset *dataset, const struct kelp_job *job,
                                const struct kelp_safetensors *file, struct kelp_error *reterr)
{
    const struct tensor_key input_key = {"data.input_name", job->data.input_name};
    const struct tensor_key target_key = {"data.target_name", job->data.target_name};
    const struct kelp_safetensors_tensor *input = NULL;
    const struct kelp_safetensors_tensor *target = NULL;
    kelp_status status = find_tensor(file, &input_key, &input, reterr);
    if (status == KELP_OK) {
        status = find_tensor(file, &target_key, &target, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    assert(input != NULL);
    assert(target != NULL);
    if (input->shape[0] != target->shape[0]) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: tensor %s has %llu samples, tensor %s %llu; their first dimensions "
                         "must be equal",
                         kelp_safetensors_path(file), input->name,
                         (unsigned long long)input->shape[0], target->name,
                         (unsigned long long)target->shape[0]);
    }
    set_shape(dataset, input, target);
    dataset->info.fingerprint = take_fingerprint(input, target);
    status = copy_values(dataset, input, target, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s", kelp_safetensors_path(file));
    }
    return status;
}

kelp_status kelp__dataset_open_tensors(struct kelp_dataset *dataset, const struct kelp_job *job,
                                       struct kelp_error *reterr)
{
    if (job->data.path[0] == '\0') {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "data.path: is not set; data.kind tensors needs the path of a safetensors file");
    }
    struct kelp_safetensors *file = NULL;
    kelp_status status = kelp_safetensors_open(job->data.path, &file, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = open_samples(dataset, job, file, reterr);
    kelp_safetensors_close(file);
    return status;
}
