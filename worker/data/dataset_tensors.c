/*
 * Samples from tensors of a safetensors file: row i of each tensor belongs to sample i. Float
 * tensors are used as they are; int64 ones are categories (inputs) or classes (the target).
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/digest.h"
#include "common/tensors/safetensors.h"
#include "worker/data/dataset_strided.h"

_Static_assert(KELP_SAMPLE_RANK_MAX + 1 >= KELP_SAFETENSORS_RANK_MAX,
               "a tensor without its first dimension is a sample");

struct tensor_key {
    const char *key; /* of the job file */
    const char *name;
};

/* The tensors to read, the target last. */
struct tensors {
    const struct kelp_safetensors *file;
    const struct kelp_safetensors_tensor *items[KELP_SAMPLE_INPUTS_MAX + 1];
    uint32_t input_count;
    uint64_t samples;
};

static const struct kelp_safetensors_tensor *target_of(const struct tensors *tensors)
{
    return tensors->items[tensors->input_count];
}

static kelp_status find_tensor(struct tensors *tensors, uint32_t index,
                               const struct tensor_key *key, struct kelp_error *reterr)
{
    const struct kelp_safetensors_tensor *tensor = kelp_safetensors_find(tensors->file, key->name);
    if (!tensor) {
        char names[256];
        kelp_safetensors_names(tensors->file, names, sizeof(names));
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "tensor %s: no such tensor; set %s to one of: %s", key->name, key->key,
                         names);
    }
    if (tensor->dtype == KELP_DTYPE_F64) {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "tensor %s: is F64; samples must be F32, F16 or BF16, or I64 for categories",
            key->name);
    }
    if (tensor->rank == 0 || tensor->elem_count == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "tensor %s: holds no samples; its shape must be [samples, ...] with "
                         "no dimension of 0",
                         key->name);
    }
    if (index > 0 && tensor->shape[0] != tensors->samples) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "tensor %s has %" PRIu64 " samples, tensor %s %" PRIu64
                         "; their first dimensions "
                         "must be equal",
                         tensors->items[0]->name, tensors->samples, tensor->name, tensor->shape[0]);
    }
    tensors->items[index] = tensor;
    tensors->samples = tensor->shape[0];
    return KELP_OK;
}

/* data.input_name has one name per line. may_lack: the target may be missing, and is NULL then. */
static kelp_status find_tensors(struct tensors *tensors, const struct kelp_job *job, bool may_lack,
                                struct kelp_error *reterr)
{
    char names[sizeof(job->data.input_name)];
    memcpy(names, job->data.input_name, sizeof(names));
    char *rest = names;
    for (const char *name; (name = strsep(&rest, "\n")) != NULL;) {
        const struct tensor_key key = {"data.input_name", name};
        if (tensors->input_count == KELP_SAMPLE_INPUTS_MAX) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "data.input_name: more than %d inputs",
                             KELP_SAMPLE_INPUTS_MAX);
        }
        const kelp_status status = find_tensor(tensors, tensors->input_count, &key, reterr);
        if (status != KELP_OK) {
            return status;
        }
        tensors->input_count++;
    }
    const struct tensor_key key = {"data.target_name", job->data.target_name};
    if (may_lack && !kelp_safetensors_find(tensors->file, key.name)) {
        return KELP_OK;
    }
    return find_tensor(tensors, tensors->input_count, &key, reterr);
}

/* Copy whole numbers of an int64 tensor as float32, which is exact for allowed values, and the
 * largest of each column (last dimension) to ret_largest. */
static kelp_status copy_categories(const struct kelp_safetensors_tensor *tensor, uint64_t columns,
                                   float *values, uint32_t *ret_largest, struct kelp_error *reterr)
{
    memset(ret_largest, 0, (size_t)columns * sizeof(*ret_largest));
    for (uint64_t i = 0; i < tensor->elem_count; i++) {
        int64_t value;
        memcpy(&value, tensor->data + i * sizeof(value), sizeof(value));
        if (value < 0 || value >= KELP_SAMPLE_CATEGORIES_MAX) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "tensor %s: row %" PRIu64 ": category %" PRId64
                             "; categories are 0 to %u",
                             tensor->name, (i / (tensor->elem_count / tensor->shape[0])), value,
                             KELP_SAMPLE_CATEGORIES_MAX - 1);
        }
        values[i] = (float)value;
        if ((uint32_t)value > ret_largest[i % columns]) {
            ret_largest[i % columns] = (uint32_t)value;
        }
    }
    return KELP_OK;
}

/* Set the category sizes of one tensor: given ones (data.vocab) must be large enough; others
 * come from the data. */
static kelp_status set_vocab(struct kelp_sample_tensor *shape, const char *name,
                             const uint32_t *largest, const uint32_t *given,
                             struct kelp_error *reterr)
{
    for (uint32_t c = 0; c < shape->vocab_count; c++) {
        shape->vocab[c] = given ? given[c] : largest[c] + 1;
        if (largest[c] >= shape->vocab[c]) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "tensor %s: has category %u in column %u, but data.vocab gives it %u; "
                             "categories count from 0",
                             name, largest[c], c, shape->vocab[c]);
        }
    }
    return KELP_OK;
}

static void set_shape(struct kelp_sample_tensor *shape,
                      const struct kelp_safetensors_tensor *tensor)
{
    shape->rank = tensor->rank - 1;
    memcpy(shape->dims, tensor->shape + 1, shape->rank * sizeof(uint64_t));
}

/* How many category sizes an int64 input has: one for each column. */
static kelp_status count_columns(struct kelp_sample_tensor *shape,
                                 const struct kelp_safetensors_tensor *tensor,
                                 struct kelp_error *reterr)
{
    const uint64_t columns = shape->rank > 0 ? shape->dims[shape->rank - 1] : 1;
    if (columns > KELP_SAMPLE_VOCAB_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "tensor %s: has %" PRIu64 " columns of categories; at most %d fit",
                         tensor->name, columns, KELP_SAMPLE_VOCAB_MAX);
    }
    shape->vocab_count = (uint32_t)columns;
    return KELP_OK;
}

/* Set the shapes of all tensors, and the total number of category sizes of the inputs. */
static kelp_status set_shapes(const struct tensors *tensors, struct kelp_sample_shape *shape,
                              uint32_t *ret_vocab_count, struct kelp_error *reterr)
{
    *ret_vocab_count = 0;
    shape->input_count = tensors->input_count;
    for (uint32_t i = 0; i < tensors->input_count; i++) {
        set_shape(&shape->inputs[i], tensors->items[i]);
        if (tensors->items[i]->dtype == KELP_DTYPE_I64) {
            const kelp_status status = count_columns(&shape->inputs[i], tensors->items[i], reterr);
            if (status != KELP_OK) {
                return status;
            }
            *ret_vocab_count += shape->inputs[i].vocab_count;
        }
    }
    if (!target_of(tensors)) {
        return KELP_OK; /* the model gives the shape */
    }
    set_shape(&shape->target, target_of(tensors));
    if (target_of(tensors)->dtype == KELP_DTYPE_I64) {
        if (shape->target.rank != 0) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "tensor %s: is I64, so a class for each sample: its shape must be "
                             "[samples]",
                             target_of(tensors)->name);
        }
        shape->target.vocab_count = 1;
    }
    return KELP_OK;
}

static kelp_status allocate(struct kelp_dataset *dataset, uint64_t samples,
                            struct kelp_error *reterr)
{
    const uint64_t input_stride = kelp_sample_input_count(&dataset->info.shape);
    const uint64_t target_stride = kelp_sample_target_count(&dataset->info.shape);
    uint64_t input = 0, target = 0, count = 0;
    if (__builtin_mul_overflow(input_stride, samples, &input) ||
        __builtin_mul_overflow(target_stride, samples, &target) ||
        __builtin_add_overflow(input, target, &count)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the tensors are too large");
    }
    struct kelp_strided *strided = NULL;
    const kelp_status status = kelp__dataset_make_strided(dataset, count, &strided, reterr);
    if (status != KELP_OK) {
        return status;
    }
    strided->input_stride = input_stride;
    strided->target_stride = target_stride;
    strided->input = strided->values;
    strided->target = strided->values + input;
    return KELP_OK;
}

/*
 * Copy one tensor's rows into the samples' records: `count` elements each, `stride` apart. The
 * file's numbers may have any alignment and the file may change, so they are copied.
 */
static kelp_status copy_tensor(const struct kelp_safetensors_tensor *tensor,
                               struct kelp_sample_tensor *shape, const uint32_t *given,
                               float *record, uint64_t stride, struct kelp_error *reterr)
{
    const uint64_t samples = tensor->shape[0], count = tensor->elem_count / samples;
    uint32_t largest[KELP_SAMPLE_VOCAB_MAX];
    float *values = calloc((size_t)tensor->elem_count, sizeof(*values));
    if (!values) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %" PRIu64 " elements",
                         tensor->elem_count);
    }
    kelp_status status;
    if (shape->vocab_count > 0) {
        status = copy_categories(tensor, shape->vocab_count, values, largest, reterr);
        if (status == KELP_OK) {
            status = set_vocab(shape, tensor->name, largest, given, reterr);
        }
    } else {
        status = kelp_safetensors_floats(tensor, 0, tensor->elem_count, values, reterr);
    }
    for (uint64_t i = 0; i < samples && status == KELP_OK; i++) {
        memcpy(record + i * stride, values + i * count, (size_t)count * sizeof(*values));
    }
    free(values);
    return status;
}

/* Given category sizes of an input, from the model or data.vocab; NULL: they come from the data. */
static const uint32_t *given_sizes(const struct kelp_dataset *dataset, const struct kelp_job *job,
                                   uint32_t input, uint32_t vocab_used)
{
    const struct kelp_sample_tensor *shape = &dataset->info.shape.inputs[input];
    const struct kelp_model_card *card = dataset->card;
    if (card && input < card->shape.input_count &&
        card->shape.inputs[input].vocab_count == shape->vocab_count) {
        return card->shape.inputs[input].vocab;
    }
    return job->data.vocab_count > 0 ? job->data.vocab + vocab_used : NULL;
}

static kelp_status copy_tensors(struct kelp_dataset *dataset, const struct tensors *tensors,
                                const struct kelp_job *job, struct kelp_error *reterr)
{
    struct kelp_sample_shape *shape = &dataset->info.shape;
    struct kelp_strided *strided = dataset->state;
    float *record = strided->values;
    uint32_t vocab_used = 0;
    for (uint32_t i = 0; i < tensors->input_count; i++) {
        const uint32_t *given = given_sizes(dataset, job, i, vocab_used);
        const kelp_status status = copy_tensor(tensors->items[i], &shape->inputs[i], given, record,
                                               strided->input_stride, reterr);
        if (status != KELP_OK) {
            return status;
        }
        record += kelp_sample_tensor_count(&shape->inputs[i]);
        vocab_used += shape->inputs[i].vocab_count;
    }
    if (!target_of(tensors)) { /* to be predicted: reads as 0 */
        return KELP_OK;
    }
    const struct kelp_model_card *card = dataset->card;
    bool classes = card && card->shape.target.vocab_count > 0;
    return copy_tensor(
        target_of(tensors), &shape->target, classes ? card->shape.target.vocab : NULL,
        strided->values + strided->input_stride * tensors->samples, strided->target_stride, reterr);
}

static uint64_t compute_fingerprint(const struct tensors *tensors)
{
    struct kelp_digest digest;
    kelp_digest_init(&digest);
    uint32_t count = tensors->input_count + (target_of(tensors) ? 1 : 0);
    for (uint32_t i = 0; i < count; i++) {
        const struct kelp_safetensors_tensor *tensor = tensors->items[i];
        const uint64_t rank = tensor->rank;
        kelp_digest_update(&digest, &rank, sizeof(rank));
        kelp_digest_update(&digest, tensor->shape, tensor->rank * sizeof(uint64_t));
        kelp_digest_update(&digest, tensor->data, (size_t)tensor->data_bytes);
    }
    return kelp_digest_short(&digest);
}

static kelp_status open_samples(struct kelp_dataset *dataset, const struct kelp_job *job,
                                const struct kelp_safetensors *file, struct kelp_error *reterr)
{
    struct tensors tensors = {.file = file};
    uint32_t vocab_count = 0;
    bool may_lack = dataset->card && job->run.mode == KELP_RUN_PREDICT;
    kelp_status status = find_tensors(&tensors, job, may_lack, reterr);
    if (status == KELP_OK && !target_of(&tensors)) {
        dataset->info.shape.target = dataset->card->shape.target;
        dataset->info.no_targets[KELP_SPLIT_TRAIN] = true;
        dataset->info.no_targets[KELP_SPLIT_TEST] = true;
    }
    if (status == KELP_OK) {
        status = set_shapes(&tensors, &dataset->info.shape, &vocab_count, reterr);
    }
    if (status == KELP_OK && job->data.vocab_count > 0 && job->data.vocab_count != vocab_count) {
        status = kelp_fail(reterr, KELP_ERR_INVALID,
                           "the int64 inputs have %u columns of categories, but data.vocab has %u "
                           "sizes",
                           vocab_count, job->data.vocab_count);
    }
    if (status == KELP_OK) {
        status = allocate(dataset, tensors.samples, reterr);
    }
    if (status == KELP_OK) {
        dataset->info.samples[kelp__dataset_is_whole(job) ? KELP_SPLIT_TEST : KELP_SPLIT_TRAIN] =
            tensors.samples;
        dataset->info.fingerprint = compute_fingerprint(&tensors);
        status = copy_tensors(dataset, &tensors, job, reterr);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s", kelp_safetensors_path(file));
    }
    return status;
}

kelp_status kelp__dataset_open_tensors(struct kelp_dataset *dataset, const struct kelp_job *job,
                                       struct kelp_error *reterr)
{
    const char *path = kelp__dataset_is_whole(job) ? job->data.test_path : job->data.path;
    if (path[0] == '\0') {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "data.path: is not set; data.kind tensors needs the path of a safetensors file");
    }
    struct kelp_safetensors *file = NULL;
    kelp_status status = kelp_safetensors_open(path, &file, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = open_samples(dataset, job, file, reterr);
    kelp_safetensors_close(file);
    return status;
}
