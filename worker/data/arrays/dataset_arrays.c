#include "worker/data/arrays/dataset_arrays.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Elements read and converted at once, on the stack. */
#define PIECE_ELEMS 2048u

/* ---- reading --------------------------------------------------------------------------------- */

static kelp_status read_floats(const struct kelp_array_view *view, uint64_t row, float *values)
{
    const struct kelp_array *array = kelp_array_file_array(view->file);
    assert(array->element == KELP_ELEMENT_FLOAT32 && !array->big_endian);
    const uint8_t *bytes = NULL;
    size_t count = (size_t)view->count * sizeof(float);
    kelp_status status = kelp_array_file_read(view->file, row, view->first * sizeof(float), count,
                                              (uint8_t *)values, &bytes);
    if (status == KELP_OK && bytes != (const uint8_t *)values) {
        memcpy(values, bytes, count);
    }
    return status;
}

static void convert(const struct kelp_arrays *arrays, const double *doubles, uint64_t first,
                    size_t count, float *values)
{
    if (!arrays->shift) {
        for (size_t i = 0; i < count; i++) {
            values[i] = (float)doubles[i];
        }
        return;
    }
    uint64_t column = first % arrays->columns;
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)((doubles[i] - arrays->shift[column]) * arrays->factor[column]);
        column = column + 1 == arrays->columns ? 0 : column + 1;
    }
}

/* As PyTorch does: divide, subtract and divide in float32. */
static void convert_image(const struct kelp_arrays *arrays, const double *doubles, size_t count,
                          float *values)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = ((float)doubles[i] / 255.0f - arrays->mean) / arrays->std;
    }
}

static void convert_bytes(const struct kelp_arrays *arrays, const uint8_t *bytes, size_t count,
                          float *values)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = arrays->byte_values[bytes[i]];
    }
}

static kelp_status read_view(const struct kelp_arrays *arrays, const struct kelp_array_view *view,
                             bool input, uint64_t row, float *values)
{
    const struct kelp_array *array = kelp_array_file_array(view->file);
    bool image = input && arrays->images;
    bool scaled = image || (input && arrays->shift);
    if (!scaled && array->element == KELP_ELEMENT_FLOAT32 && !array->big_endian) {
        return read_floats(view, row, values);
    }
    uint64_t size = kelp_element_bytes(array->element);
    for (uint64_t done = 0; done < view->count; done += PIECE_ELEMS) {
        uint8_t scratch[PIECE_ELEMS * KELP_ELEMENT_BYTES_MAX];
        double doubles[PIECE_ELEMS];
        const uint8_t *bytes = NULL;
        uint64_t rest = view->count - done;
        size_t count = rest < PIECE_ELEMS ? (size_t)rest : PIECE_ELEMS;
        kelp_status status = kelp_array_file_read(view->file, row, (view->first + done) * size,
                                                  count * (size_t)size, scratch, &bytes);
        if (status != KELP_OK) {
            return status;
        }
        if (image && array->element == KELP_ELEMENT_UINT8) {
            convert_bytes(arrays, bytes, count, values + done);
            continue;
        }
        kelp_array_doubles(array, bytes, count, doubles);
        if (image) {
            convert_image(arrays, doubles, count, values + done);
        } else if (scaled) {
            convert(arrays, doubles, done, count, values + done);
        } else {
            for (size_t i = 0; i < count; i++) {
                values[done + i] = (float)doubles[i];
            }
        }
    }
    return KELP_OK;
}

static const struct kelp_array_source *find_row(const struct kelp_arrays *arrays, uint64_t *row)
{
    const struct kelp_array_source *source = arrays->sources;
    while (*row >= source->rows) {
        *row -= source->rows;
        source++;
        assert(source < arrays->sources + KELP_SPLIT_COUNT);
    }
    return source;
}

static kelp_status read_arrays(const struct kelp_dataset *dataset, enum kelp_split split,
                               const uint64_t *indices, uint32_t count, float *input, float *target)
{
    const struct kelp_arrays *arrays = dataset->state;
    kelp_status status = KELP_OK;
    for (uint32_t i = 0; i < count && status == KELP_OK; i++) {
        uint64_t row = kelp_splits_row(&arrays->splits, split, indices[i]);
        const struct kelp_array_source *source = find_row(arrays, &row);
        status = read_view(arrays, &source->input, true, row, input + i * dataset->input_count);
        if (!source->target.file) {
            memset(target + i * dataset->target_count, 0,
                   (size_t)dataset->target_count * sizeof(*target));
        } else if (status == KELP_OK) {
            status =
                read_view(arrays, &source->target, false, row, target + i * dataset->target_count);
        }
    }
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

static kelp_status describe_arrays(const struct kelp_dataset *dataset, struct kelp_model_card *card,
                                   struct kelp_error *reterr)
{
    const struct kelp_arrays *arrays = dataset->state;
    kelp_status status =
        kelp_card_columns_init(&card->inputs, arrays->shift ? arrays->columns : 0, reterr);
    for (uint32_t i = 0; i < card->inputs.count && status == KELP_OK; i++) {
        card->inputs.items[i].number.shift = arrays->shift[i];
        card->inputs.items[i].number.factor = arrays->factor[i];
    }
    return status;
}

static void close_arrays(void *state)
{
    struct kelp_arrays *arrays = state;
    for (int i = 0; i < KELP_SPLIT_COUNT; i++) {
        kelp_array_file_close(arrays->sources[i].files[0]);
        kelp_array_file_close(arrays->sources[i].files[1]);
    }
    free(arrays->shift);
    free(arrays->factor);
    free(arrays);
}

kelp_status kelp__dataset_make_arrays(struct kelp_dataset *dataset, const struct kelp_job *job,
                                      struct kelp_arrays **ret_arrays, struct kelp_error *reterr)
{
    static const struct kelp_dataset_functions functions = {
        .read = read_arrays, .describe = describe_arrays, .close = close_arrays};
    struct kelp_arrays *arrays = calloc(1, sizeof(*arrays));
    if (!arrays) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    arrays->mean = (float)job->data.mean;
    arrays->std = (float)job->data.std;
    for (int i = 0; i < 256; i++) {
        arrays->byte_values[i] = ((float)i / 255.0f - arrays->mean) / arrays->std;
    }
    dataset->functions = &functions;
    dataset->state = arrays;
    *ret_arrays = arrays;
    return KELP_OK;
}

uint32_t kelp__dataset_class_max(const struct kelp_dataset *dataset, const struct kelp_job *job)
{
    if (dataset->card && dataset->card->shape.target.vocab_count > 0) {
        return dataset->card->shape.target.vocab[0];
    }
    bool counted = job->model.kind == KELP_MODEL_CONVNET || job->model.kind == KELP_MODEL_RESNET18;
    return counted ? job->model.classes : 0;
}

kelp_status kelp__dataset_finish_rows(struct kelp_dataset *dataset, const struct kelp_job *job,
                                      struct kelp_error *reterr)
{
    struct kelp_arrays *arrays = dataset->state;
    const struct kelp_sample_shape *shape = &dataset->info.shape;
    const struct kelp_sample_tensor *input = &shape->inputs[0];
    uint64_t rows[KELP_SPLIT_COUNT];
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        rows[split] = arrays->sources[split].rows;
    }
    kelp_status status = kelp_splits_init(&arrays->splits, job, rows, reterr);
    if (status != KELP_OK) {
        return status;
    }
    arrays->classes = kelp__dataset_learns_classes(job) && shape->target.rank == 0;
    arrays->class_max = kelp__dataset_class_max(dataset, job);
    arrays->normalize = job->data.normalize;
    arrays->columns = input->rank > 0 ? input->dims[input->rank - 1] : 1;
    return kelp__dataset_survey_arrays(dataset, job, reterr);
}
