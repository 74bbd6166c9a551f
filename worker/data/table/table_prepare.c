#include "worker/data/table/table_prepare.h"

#include <math.h>

#include "worker/data/data_cache.h"
#include "worker/data/table/table_card.h"

/* Add every setting of the job that affects the prepared rows. If the rules themselves change,
 * change the magic in worker/data/table/prepared.c. */
static void add_job(struct kelp_digest *key, const struct kelp_job *job)
{
    const char *const texts[] = {job->data.columns, job->data.categories, job->data.known,
                                 job->data.targets, job->data.derive,     job->data.filter,
                                 job->data.time,    job->data.group};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(texts); i++) {
        kelp_data_cache_add_text(key, texts[i]);
    }
    const uint64_t numbers[] = {
        (uint64_t)job->data.kind,          (uint64_t)job->data.missing,
        (uint64_t)job->data.normalize,     (uint64_t)job->data.normalize_target,
        job->data.split[KELP_SPLIT_TRAIN], job->data.split[KELP_SPLIT_VAL],
        job->data.split[KELP_SPLIT_TEST],  job->data.test_every,
        job->data.fraction_count,          job->data.vocab_count};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(numbers); i++) {
        kelp_data_cache_add_number(key, numbers[i]);
    }
    if (job->data.random_split) {
        kelp_data_cache_add_text(key, "random");
        kelp_data_cache_add_number(key, job->seed);
    }
    kelp_digest_update(key, job->data.fractions,
                       job->data.fraction_count * sizeof(*job->data.fractions));
    kelp_digest_update(key, job->data.vocab, job->data.vocab_count * sizeof(*job->data.vocab));
}

static kelp_status add_files(struct kelp_digest *key, const struct kelp_table_input *input,
                             struct kelp_error *reterr)
{
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        kelp_data_cache_add_number(key, input->files[split].count);
        for (uint32_t i = 0; i < input->files[split].count; i++) {
            kelp_status status =
                kelp_data_cache_add_file(key, input->files[split].paths[i], reterr);
            if (status != KELP_OK) {
                return status;
            }
        }
    }
    return KELP_OK;
}

/* Add what a model was fitted with, and which rows are read for its use. */
static void add_card(struct kelp_digest *key, const struct kelp_table_input *input)
{
    const struct kelp_dataset *dataset = input->dataset;
    if (!dataset->card) {
        return;
    }
    kelp_data_cache_add_text(key, "card");
    const uint64_t numbers[] = {dataset->card_digest, (uint64_t)input->job->run.mode,
                                input->schema->unlabelled};
    kelp_digest_update(key, numbers, sizeof(numbers));
    for (uint32_t i = 0; i < input->schema->source_count; i++) {
        kelp_data_cache_add_number(key, input->schema->sources[i].absent);
    }
}

/* A file that no split needs is not opened: a model may outlive its training data. */
static bool is_needed(const struct kelp_table_input *input, int split)
{
    if (input->job->data.kind == KELP_DATA_PANEL && kelp__dataset_is_whole(input->job)) {
        return split == KELP_SPLIT_TEST;
    }
    return split == KELP_SPLIT_TRAIN
               ? kelp__dataset_wants_path(input->dataset, input->job)
               : kelp__dataset_wants(input->dataset, input->job, (enum kelp_split)split);
}

static kelp_status find_files(struct kelp_table_input *input, struct kelp_error *reterr)
{
    const struct kelp_job *job = input->job;
    const char *const keys[KELP_SPLIT_COUNT] = {"data.path", "data.val_path", "data.test_path"};
    const char *const paths[KELP_SPLIT_COUNT] = {job->data.path, job->data.val_path,
                                                 job->data.test_path};
    if (job->data.path[0] == '\0' && is_needed(input, KELP_SPLIT_TRAIN)) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "data.path: is not set; it must name CSV files");
    }
    kelp_status status = KELP_OK;
    for (int split = 0; split < KELP_SPLIT_COUNT && status == KELP_OK; split++) {
        if (paths[split][0] != '\0' && is_needed(input, split)) {
            status = kelp_table_files_find(keys[split], paths[split], &input->files[split], reterr);
        }
    }
    return status;
}

enum kelp_missing_policy kelp_table_missing(const struct kelp_table_input *input)
{
    const struct kelp_job *job = input->job;
    bool forecasts = job->data.kind == KELP_DATA_PANEL && kelp__dataset_is_whole(job) &&
                     job->run.mode == KELP_RUN_PREDICT;
    bool strict = job->data.missing == KELP_MISSING_ERROR || job->data.missing == KELP_MISSING_DROP;
    return forecasts && strict ? KELP_MISSING_MEAN : job->data.missing;
}

static kelp_status read_and_arrange(struct kelp_table_input *input, const char *folder,
                                    kelp_table_arrange *arrange, struct kelp_spool *spool,
                                    struct kelp_prepared *ret_prepared, struct kelp_error *reterr)
{
    struct kelp_table_raw raw;
    const struct kelp_table_reading source = {.schema = input->schema,
                                              .files = input->files,
                                              .missing = kelp_table_missing(input),
                                              .folder = folder,
                                              .watch = input->dataset->watch};
    kelp_status status = kelp_table_raw_read(&raw, &source, reterr);
    if (status == KELP_OK) {
        input->raw = &raw;
        status = kelp_spool_open(spool, folder, folder, reterr);
    }
    if (status == KELP_OK) {
        status = arrange(input, spool, ret_prepared, reterr);
    }
    input->raw = NULL;
    kelp_table_raw_fini(&raw);
    return status;
}

static kelp_status prepare(struct kelp_table_input *input, kelp_table_arrange *arrange,
                           struct kelp_spool *spool, struct kelp_prepared *ret_prepared,
                           struct kelp_error *reterr)
{
    struct kelp_digest key;
    struct kelp_data_cache cache;
    kelp_digest_init(&key);
    add_job(&key, input->job);
    add_card(&key, input);
    if (input->schema->has_class) {
        kelp_data_cache_add_text(&key, "classes");
    }
    kelp_status status = add_files(&key, input, reterr);
    if (status == KELP_OK) {
        status = kelp_data_cache_open(&cache, input->job, &key, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (cache.usable && kelp_spool_reopen(spool, cache.path, NULL) == KELP_OK) {
        if (kelp_prepared_look(spool->bytes, spool->count, ret_prepared, NULL) == KELP_OK) {
            return KELP_OK;
        }
        kelp_spool_fini(spool); /* damaged: prepared again below */
    }
    status = read_and_arrange(input, cache.usable ? cache.folder : NULL, arrange, spool,
                              ret_prepared, reterr);
    if (status == KELP_OK && cache.usable) {
        status = kelp_spool_keep(spool, cache.path, reterr);
    }
    return status;
}

kelp_status kelp_table_prepare(const struct kelp_table_input *source, kelp_table_arrange *arrange,
                               struct kelp_spool *spool, struct kelp_prepared *ret_prepared,
                               struct kelp_error *reterr)
{
    *spool = (struct kelp_spool){0};
    struct kelp_table_input input = *source;
    kelp_status status = find_files(&input, reterr);
    if (status == KELP_OK && input.dataset->card) {
        status = kelp_table_card_fits(&input, reterr);
    }
    if (status == KELP_OK) {
        status = prepare(&input, arrange, spool, ret_prepared, reterr);
    }
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        kelp_table_files_fini(&input.files[split]);
    }
    return status;
}

kelp_status kelp_table_foreign(const struct kelp_job *job, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_CORRUPT,
                     "%s: what the cache (data.cache) has for it belongs to another job; remove "
                     "the cache",
                     job->data.path);
}

/* ---- scaling --------------------------------------------------------------------------------- */

void kelp_table_fit(const struct kelp_table_input *input, const struct kelp_table_rows *rows,
                    uint32_t first, uint32_t count, struct kelp_fit *fits)
{
    for (uint64_t i = 0; i < rows->count; i++) {
        uint64_t row = rows->at(rows->context, i);
        for (uint32_t c = 0; c < count; c++) {
            kelp_fit_first(&fits[c], kelp_table_raw_number(input->raw, row, first + c));
        }
    }
    for (uint32_t c = 0; c < count; c++) {
        kelp_fit_first_end(&fits[c]);
    }
    for (uint64_t i = 0; i < rows->count; i++) {
        uint64_t row = rows->at(rows->context, i);
        for (uint32_t c = 0; c < count; c++) {
            kelp_fit_second(&fits[c], kelp_table_raw_number(input->raw, row, first + c));
        }
    }
}

kelp_status kelp_table_scale(const struct kelp_table_input *input, uint32_t number,
                             const struct kelp_fit *fit, enum kelp_normalize_kind kind,
                             struct kelp_target_scale *ret_scale, struct kelp_error *reterr)
{
    const char *name = input->schema->numbers[number].name;
    if (fit->present == 0) {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "%s: column %s: has no value in the training split, so no mean to fill in; "
            "leave the column out, or set data.missing to drop or zero",
            input->job->data.path, name);
    }
    if (!kelp_fit_scale(fit, kind, ret_scale)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: column %s: is constant in the training split, or too large, so that "
                         "it cannot be scaled; leave the column out",
                         input->job->data.path, name);
    }
    return KELP_OK;
}

kelp_status kelp_table_values(const struct kelp_table_input *input, uint64_t row,
                              const struct kelp_table_numbers *numbers, float *ret_values,
                              struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < numbers->count; i++) {
        double value = kelp_table_raw_number(input->raw, row, numbers->first + i);
        ret_values[i] = kelp_fit_apply(&numbers->fits[i], &numbers->scales[i], value);
        if (isfinite(ret_values[i])) {
            continue;
        }
        char place[256];
        kelp_table_raw_place(input->raw, input->files, row, place, sizeof(place));
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "%s: column %s: %.9g is out of range for a sample once it is scaled",
                         place, input->schema->numbers[numbers->first + i].name, value);
    }
    return KELP_OK;
}
