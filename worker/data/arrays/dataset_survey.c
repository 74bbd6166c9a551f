/*
 * The look through all rows of arrays before training. One pass in row order, so that its sums are
 * the same on every machine, and a file larger than memory is read once: what came out of it is
 * kept, so that a worker that is started again, or beside others, need not do it too.
 */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/digest.h"
#include "worker/data/arrays/dataset_arrays.h"
#include "worker/data/arrays/survey_facts.h"
#include "worker/data/data_cache.h"

/* Elements that are read and converted at once. */
#define PIECE_ELEMS 16384u
/* Bytes that are read at once from a file that is not in memory: rows may be tiny. */
#define WINDOW_BYTES (1u << 20)

/* Statistics of one input column: by Welford's updates, or smallest and largest. */
struct column_sums {
    double mean;
    double squares; /* of the distances from the mean */
    double min, max;
};

/* Rows [first, first + count) of a file, ready to be looked at. */
struct window {
    const struct kelp_array_file *file;
    uint64_t first;
    uint64_t count;
    const uint8_t *bytes;
    uint8_t scratch[WINDOW_BYTES];
};

struct survey {
    const struct kelp_job *job;
    struct kelp_arrays *arrays;
    struct kelp_digest digest;
    uint64_t fitted;          /* training samples to take statistics of: the first ones */
    struct column_sums *sums; /* [columns], or NULL: no statistics are asked for */
    uint64_t rounds;          /* values of each column in sums */
    uint32_t class_max;       /* classes are below it */
    uint32_t class_largest;
    double doubles[PIECE_ELEMS];
    uint8_t scratch[PIECE_ELEMS * KELP_ELEMENT_BYTES_MAX];
    struct window windows[2]; /* inputs, targets */
};

/* What is wrong, and in which row of which file it is. */
struct place {
    const char *path;
    uint64_t row;
    uint64_t elem;
};

/* Bytes of a row; the rows after it are read with it. */
static kelp_status fetch(struct survey *survey, struct window *window,
                         const struct kelp_array_view *view, const struct place *place,
                         size_t count, const uint8_t **ret_bytes)
{
    const struct kelp_array *array = kelp_array_file_array(view->file);
    uint64_t first = (view->first + place->elem) * kelp_element_bytes(array->element);
    if (array->row_bytes > WINDOW_BYTES) {
        return kelp_array_file_read(view->file, place->row, first, count, survey->scratch,
                                    ret_bytes);
    }
    if (window->file != view->file || place->row - window->first >= window->count) {
        uint64_t rows = WINDOW_BYTES / array->row_bytes, rest = array->dims[0] - place->row;
        window->file = view->file;
        window->first = place->row;
        window->count = rows < rest ? rows : rest;
        kelp_status status = kelp_array_file_read(view->file, place->row, 0,
                                                  (size_t)(window->count * array->row_bytes),
                                                  window->scratch, &window->bytes);
        if (status != KELP_OK) {
            return status;
        }
    }
    *ret_bytes = window->bytes + (place->row - window->first) * array->row_bytes + first;
    return KELP_OK;
}

static kelp_status check_finite(const struct survey *survey, const struct place *place,
                                size_t count, struct kelp_error *reterr)
{
    for (size_t i = 0; i < count; i++) {
        /* As float32, in which the model computes. */
        if (!isfinite((float)survey->doubles[i])) {
            return kelp_fail(reterr, KELP_ERR_FORMAT,
                             "%s: row %" PRIu64 ": element %" PRIu64
                             " is %g; numbers must be finite in float32",
                             place->path, place->row, (place->elem + i), survey->doubles[i]);
        }
    }
    return KELP_OK;
}

static kelp_status check_class(struct survey *survey, const struct place *place,
                               struct kelp_error *reterr)
{
    double value = survey->doubles[0];
    if (!(value >= 0.0) || value >= (double)survey->class_max || value != floor(value)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: row %" PRIu64
                         ": class %.10g; classes are whole numbers from 0 to %u%s",
                         place->path, place->row, value, survey->class_max - 1,
                         survey->arrays->class_max > 0 ? " (model.classes)" : "");
    }
    if ((uint32_t)value > survey->class_largest) {
        survey->class_largest = (uint32_t)value;
    }
    return KELP_OK;
}

/* For a loss that takes targets from 0 to 1. */
static kelp_status check_probabilities(const struct survey *survey, const struct place *place,
                                       size_t count, struct kelp_error *reterr)
{
    const struct kelp_target_place target = {
        .path = place->path, .row = place->row, .of = "", .column = ""};
    kelp_status status = KELP_OK;
    for (size_t i = 0; i < count && status == KELP_OK; i++) {
        status = kelp__dataset_check_probability(survey->job, &target, survey->doubles[i], reterr);
    }
    return status;
}

/* A row holds all columns a whole number of times, so all have equally many values after it. */
static void add_statistics(struct survey *survey, uint64_t first, size_t count)
{
    uint64_t columns = survey->arrays->columns;
    uint64_t column = first % columns;
    double share = 1.0 / (double)(survey->rounds + 1);
    for (size_t i = 0; i < count; i++) {
        struct column_sums *sums = &survey->sums[column];
        double value = survey->doubles[i];
        double off = value - sums->mean;
        sums->mean += off * share;
        sums->squares += off * (value - sums->mean);
        sums->min = value < sums->min ? value : sums->min;
        sums->max = value > sums->max ? value : sums->max;
        if (++column == columns) {
            column = 0;
            survey->rounds++;
            share = 1.0 / (double)(survey->rounds + 1);
        }
    }
}

static kelp_status survey_view(struct survey *survey, const struct kelp_array_view *view,
                               bool input, bool fitted, uint64_t row, struct kelp_error *reterr)
{
    if (!view->file) {
        return KELP_OK;
    }
    const struct kelp_array *array = kelp_array_file_array(view->file);
    uint64_t size = kelp_element_bytes(array->element);
    bool classes = !input && survey->arrays->classes;
    bool probabilities = !input && !classes && kelp__dataset_targets_are_probabilities(survey->job);
    bool numbers = kelp_element_is_float(array->element) || classes || probabilities || fitted;
    for (uint64_t done = 0; done < view->count; done += PIECE_ELEMS) {
        const struct place place = {kelp_array_file_path(view->file), row, done};
        const uint8_t *bytes = NULL;
        uint64_t rest = view->count - done;
        size_t count = rest < PIECE_ELEMS ? (size_t)rest : PIECE_ELEMS;
        kelp_status status = fetch(survey, &survey->windows[input ? 0 : 1], view, &place,
                                   count * (size_t)size, &bytes);
        if (status != KELP_OK) {
            return kelp_fail(reterr, status, "%s: row %" PRIu64 " cannot be read: %s", place.path,
                             row, kelp_status_text(status));
        }
        kelp_digest_update(&survey->digest, bytes, count * (size_t)size);
        if (numbers) {
            kelp_array_doubles(array, bytes, count, survey->doubles);
            status = classes ? check_class(survey, &place, reterr)
                             : check_finite(survey, &place, count, reterr);
            if (status == KELP_OK && probabilities) {
                status = check_probabilities(survey, &place, count, reterr);
            }
        }
        if (status != KELP_OK) {
            return status;
        }
        if (fitted) {
            add_statistics(survey, done, count);
        }
    }
    return KELP_OK;
}

static void describe_view(struct survey *survey, const struct kelp_array_view *view)
{
    const uint64_t about[] = {
        view->file ? (uint64_t)kelp_array_file_array(view->file)->element : UINT64_MAX,
        view->file && kelp_array_file_array(view->file)->big_endian,
        view->count,
    };
    kelp_digest_update(&survey->digest, about, sizeof(about));
}

/* Rows are read in the order of the file, whatever order the splits have. */
static bool is_fitted(const struct survey *survey, uint64_t row)
{
    uint64_t sample = 0;
    return kelp_splits_find(&survey->arrays->splits, KELP_SPLIT_TRAIN, row, &sample) &&
           sample < survey->fitted;
}

static kelp_status survey_source(struct survey *survey, const struct kelp_array_source *source,
                                 bool first, struct kelp_error *reterr)
{
    kelp_digest_update(&survey->digest, &source->rows, sizeof(source->rows));
    describe_view(survey, &source->input);
    describe_view(survey, &source->target);
    for (uint64_t row = 0; row < source->rows; row++) {
        bool fitted = first && survey->sums && is_fitted(survey, row);
        kelp_status status = survey_view(survey, &source->input, true, fitted, row, reterr);
        if (status == KELP_OK) {
            status = survey_view(survey, &source->target, false, false, row, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

static kelp_status allocate_scales(struct kelp_arrays *arrays, struct kelp_error *reterr)
{
    if (arrays->normalize == KELP_NORMALIZE_NONE) {
        return KELP_OK;
    }
    arrays->shift = calloc((size_t)arrays->columns, sizeof(*arrays->shift));
    arrays->factor = calloc((size_t)arrays->columns, sizeof(*arrays->factor));
    return arrays->shift && arrays->factor
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %" PRIu64 " columns",
                           arrays->columns);
}

/* The scales in the model's card. */
static kelp_status copy_card_scales(const struct kelp_dataset *dataset, const struct kelp_job *job,
                                    struct kelp_error *reterr)
{
    struct kelp_arrays *arrays = dataset->state;
    const struct kelp_card_columns *columns = &dataset->card->inputs;
    if (columns->count != (arrays->shift ? arrays->columns : 0)) {
        return kelp_fail(
            reterr, KELP_ERR_MISMATCH,
            "data.normalize: the model in %s has scales of %u columns, the inputs have "
            "%" PRIu64 " to scale",
            job->model.init, columns->count, arrays->shift ? arrays->columns : 0);
    }
    for (uint32_t i = 0; i < columns->count; i++) {
        arrays->shift[i] = columns->items[i].number.shift;
        arrays->factor[i] = columns->items[i].number.factor;
    }
    return KELP_OK;
}

/* A column that does not vary is only shifted. */
static kelp_status set_scales(struct survey *survey, struct kelp_error *reterr)
{
    struct kelp_arrays *arrays = survey->arrays;
    if (!survey->sums) {
        return KELP_OK;
    }
    for (uint64_t column = 0; column < arrays->columns; column++) {
        const struct column_sums *sums = &survey->sums[column];
        bool standard = arrays->normalize == KELP_NORMALIZE_STANDARD;
        double width =
            standard ? sqrt(sums->squares / (double)survey->rounds) : sums->max - sums->min;
        arrays->shift[column] = standard ? sums->mean : sums->min;
        arrays->factor[column] = width > 0.0 ? 1.0 / width : 1.0;
        if (!isfinite(arrays->factor[column]) || !isfinite(arrays->shift[column])) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "data.normalize: column %" PRIu64
                             " of the inputs is too large or varies too "
                             "little in the training split",
                             column);
        }
    }
    return KELP_OK;
}

static kelp_status look_through(struct survey *survey, struct kelp_error *reterr)
{
    struct kelp_arrays *arrays = survey->arrays;
    if (arrays->normalize != KELP_NORMALIZE_NONE && survey->fitted > 0) {
        assert(arrays->columns > 0);
        survey->sums = calloc((size_t)arrays->columns, sizeof(*survey->sums));
        if (!survey->sums) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %" PRIu64 " columns",
                             arrays->columns);
        }
        for (uint64_t column = 0; column < arrays->columns; column++) {
            survey->sums[column].min = INFINITY;
            survey->sums[column].max = -INFINITY;
        }
    }
    for (int i = 0; i < KELP_SPLIT_COUNT; i++) {
        kelp_status status = survey_source(survey, &arrays->sources[i], i == 0, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return set_scales(survey, reterr);
}

static bool is_streamed(const struct kelp_arrays *arrays)
{
    bool streamed = false;
    for (int i = 0; i < KELP_SPLIT_COUNT; i++) {
        for (int f = 0; f < 2; f++) {
            const struct kelp_array_file *file = arrays->sources[i].files[f];
            streamed |= file && kelp_array_file_resident_bytes(file) == 0;
        }
    }
    return streamed;
}

/* The key of these arrays' facts in the cache; false if they may still change unnoticed. */
static bool make_key(const struct survey *survey, struct kelp_digest *key)
{
    const struct kelp_arrays *arrays = survey->arrays;
    const uint64_t settings[] = {
        survey->fitted,  survey->class_max,
        arrays->classes, (uint64_t)arrays->normalize,
        arrays->columns, kelp__dataset_targets_are_probabilities(survey->job)};
    bool settled = true;
    kelp_digest_init(key);
    kelp_data_cache_add_text(key, "survey 2");
    kelp_digest_update(key, settings, sizeof(settings));
    kelp_digest_update(key, &arrays->splits, sizeof(arrays->splits));
    for (int i = 0; i < KELP_SPLIT_COUNT; i++) {
        const struct kelp_array_source *source = &arrays->sources[i];
        const uint64_t layout[] = {source->rows, source->input.first, source->input.count,
                                   source->target.first, source->target.count};
        kelp_digest_update(key, layout, sizeof(layout));
        for (size_t f = 0; f < KELP_ARRAY_COUNT(source->files); f++) {
            const struct kelp_array_file *file = source->files[f];
            if (file) {
                const struct kelp_array *array = kelp_array_file_array(file);
                kelp_data_cache_add_number(key, (uint64_t)array->element);
                kelp_data_cache_add_number(key, array->data_at);
                settled &= kelp_array_file_identify(file, key);
            }
        }
    }
    return settled;
}

/* Read all rows, unless that was done before and there are too many to repeat it. */
static kelp_status find_facts(struct survey *survey, const struct kelp_job *job, bool streamed,
                              struct kelp_survey_facts *facts, struct kelp_error *reterr)
{
    struct kelp_arrays *arrays = survey->arrays;
    struct kelp_data_cache cache = {.usable = false};
    struct kelp_digest key;
    kelp_status status = KELP_OK;
    if (streamed && make_key(survey, &key)) {
        status = kelp_data_cache_open(&cache, job, &key, reterr);
    }
    if (status != KELP_OK || (cache.usable && kelp_survey_facts_load(cache.path, facts))) {
        return status;
    }
    kelp_digest_init(&survey->digest);
    status = look_through(survey, reterr);
    if (status != KELP_OK) {
        return status;
    }
    kelp_digest_update(&survey->digest, &arrays->splits, sizeof(arrays->splits));
    facts->fingerprint = kelp_digest_short(&survey->digest);
    facts->class_largest = survey->class_largest;
    if (cache.usable) {
        kelp_survey_facts_save(cache.path, facts);
    }
    return KELP_OK;
}

static void set_info(struct kelp_dataset *dataset, const struct kelp_survey_facts *facts)
{
    struct kelp_arrays *arrays = dataset->state;
    dataset->info.fingerprint = facts->fingerprint;
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        dataset->info.samples[split] = arrays->splits.rows[split].count;
        for (uint32_t f = 0; f < KELP_ARRAY_COUNT(arrays->sources[split].files); f++) {
            const struct kelp_array_file *file = arrays->sources[split].files[f];
            dataset->info.memory_bytes += !file ? 0 : kelp_array_file_resident_bytes(file);
        }
    }
    if (arrays->classes) {
        struct kelp_sample_tensor *target = &dataset->info.shape.target;
        target->vocab_count = 1;
        target->vocab[0] = arrays->class_max > 0 ? arrays->class_max : facts->class_largest + 1;
    }
}

kelp_status kelp__dataset_survey_arrays(struct kelp_dataset *dataset, const struct kelp_job *job,
                                        struct kelp_error *reterr)
{
    struct kelp_arrays *arrays = dataset->state;
    struct survey *survey = calloc(1, sizeof(*survey));
    if (!survey) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    uint64_t train = arrays->splits.rows[KELP_SPLIT_TRAIN].count;
    survey->job = job;
    survey->arrays = arrays;
    survey->fitted = job->data.limit > 0 && job->data.limit < train ? job->data.limit : train;
    survey->fitted = dataset->card ? 0 : survey->fitted;
    survey->class_max = arrays->class_max > 0 ? arrays->class_max : KELP_SAMPLE_CATEGORIES_MAX;
    dataset->info.streamed = is_streamed(arrays);
    kelp_status status = allocate_scales(arrays, reterr);
    if (status == KELP_OK && dataset->card) {
        status = copy_card_scales(dataset, job, reterr);
    }
    bool fits = arrays->shift && !dataset->card;
    struct kelp_survey_facts facts = {
        .columns = fits ? arrays->columns : 0, .shift = arrays->shift, .factor = arrays->factor};
    if (status == KELP_OK) {
        status = find_facts(survey, job, dataset->info.streamed, &facts, reterr);
    }
    if (status == KELP_OK) {
        set_info(dataset, &facts);
    }
    free(survey->sums);
    free(survey);
    return status;
}
