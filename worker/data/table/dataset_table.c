/*
 * Rows of CSV files, a sample each: categories, then numbers, then targets, prepared end to end in
 * one record.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/dataset_internal.h"
#include "worker/data/dataset_split.h"
#include "worker/data/table/table_card.h"
#include "worker/data/table/table_class_fit.h"
#include "worker/data/table/table_prepare.h"

/* ---- preparing ------------------------------------------------------------------------------- */

/* What the training split says of each column. */
struct fitted {
    struct kelp_splits splits;
    struct kelp_fit fits[KELP_TABLE_COLUMNS_MAX];
    struct kelp_target_scale scales[KELP_TABLE_COLUMNS_MAX];
    uint32_t *words[KELP_TABLE_WORDS_MAX]; /* number of the raw word in the training split; owned */
    struct kelp_words learned[KELP_TABLE_WORDS_MAX]; /* words by that number; owned */
    uint32_t vocab[KELP_TABLE_WORDS_MAX];
};

static uint64_t training_row(const void *context, uint64_t index)
{
    return kelp_splits_row(context, KELP_SPLIT_TRAIN, index);
}

static kelp_status fit_numbers(const struct kelp_table_input *input, struct fitted *fitted,
                               struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = input->schema;
    const struct kelp_table_rows rows = {.at = training_row,
                                         .context = &fitted->splits,
                                         .count = fitted->splits.rows[KELP_SPLIT_TRAIN].count};
    kelp_table_fit(input, &rows, 0, schema->number_count, fitted->fits);
    for (uint32_t i = 0; i < schema->number_count; i++) {
        enum kelp_normalize_kind kind = i < schema->column_count
                                            ? input->job->data.normalize
                                            : input->job->data.normalize_target;
        kelp_status status =
            kelp_table_scale(input, i, &fitted->fits[i], kind, &fitted->scales[i], reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

/* Words that the training split does not have are the number behind the others where there is room
 * for one, else 0. */
static uint32_t unknown_word(uint32_t known, uint32_t size)
{
    return size > known ? known : 0;
}

/* Number the words of a column as they first come in the training split. */
static kelp_status number_words(const struct kelp_table_input *input, struct fitted *fitted,
                                uint32_t word, struct kelp_error *reterr)
{
    const struct kelp_table_raw *raw = input->raw;
    const struct kelp_job *job = input->job;
    uint32_t all = raw->words[word].count;
    uint32_t *numbers = malloc(((size_t)all + 1) * sizeof(*numbers));
    if (!numbers) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %u categories", all);
    }
    fitted->words[word] = numbers;
    memset(numbers, 0xff, ((size_t)all + 1) * sizeof(*numbers));
    struct kelp_words *learned = &fitted->learned[word];
    for (uint64_t i = 0; i < fitted->splits.rows[KELP_SPLIT_TRAIN].count; i++) {
        uint32_t index =
            kelp_table_raw_word(raw, kelp_splits_row(&fitted->splits, KELP_SPLIT_TRAIN, i), word);
        kelp_status status = numbers[index] != UINT32_MAX
                                 ? KELP_OK
                                 : kelp_words_add(learned, kelp_words_at(&raw->words[word], index),
                                                  &numbers[index], reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    uint32_t given = job->data.vocab_count > 0 ? job->data.vocab[word] : learned->count;
    if (given < learned->count) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: column %s: has %u categories in the training split, but data.vocab "
                         "gives it %u",
                         job->data.path, input->schema->words[word].name, learned->count, given);
    }
    for (uint32_t i = 0; i < all; i++) {
        numbers[i] = numbers[i] == UINT32_MAX ? unknown_word(learned->count, given) : numbers[i];
    }
    fitted->vocab[word] = given;
    return KELP_OK;
}

/* The numbers that the words had when the model was trained. */
static kelp_status map_card_words(const struct kelp_table_input *input, struct fitted *fitted,
                                  uint32_t word, struct kelp_error *reterr)
{
    const struct kelp_card_category *category = &input->dataset->card->categories[word];
    const struct kelp_words *words = &input->raw->words[word];
    uint32_t *numbers = malloc(((size_t)words->count + 1) * sizeof(*numbers));
    if (!numbers) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %u categories",
                         words->count);
    }
    fitted->words[word] = numbers;
    for (uint32_t i = 0; i < words->count; i++) {
        if (!kelp_words_find(&category->words, kelp_words_at(words, i), &numbers[i])) {
            numbers[i] = unknown_word(category->words.count, category->size);
        }
    }
    fitted->vocab[word] = category->size;
    return KELP_OK;
}

/* All of the model's; that columns agree was checked (kelp_table_card_fits()). */
static kelp_status copy_card_fit(const struct kelp_table_input *input, struct fitted *fitted,
                                 struct kelp_error *reterr)
{
    const struct kelp_model_card *card = input->dataset->card;
    uint32_t inputs = input->schema->column_count;
    kelp_status status =
        kelp_splits_init(&fitted->splits, input->job, input->raw->file_rows, reterr);
    if (status == KELP_OK) {
        status = kelp_table_classes_fit(input, &fitted->splits, reterr);
    }
    kelp_table_card_take(&card->inputs, fitted->fits, fitted->scales);
    kelp_table_card_take(&card->targets, fitted->fits + inputs, fitted->scales + inputs);
    for (uint32_t i = 0; i < input->schema->word_count && status == KELP_OK; i++) {
        status = map_card_words(input, fitted, i, reterr);
    }
    return status;
}

/* The card of what was fitted; words change hands. */
static kelp_status describe_fit(const struct kelp_table_input *input, struct fitted *fitted,
                                struct kelp_model_card *card, struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = input->schema;
    const struct kelp_table_numbers inputs = {
        .count = schema->column_count, .fits = fitted->fits, .scales = fitted->scales};
    const struct kelp_table_numbers targets = {.first = schema->column_count,
                                               .count = schema->target_count,
                                               .fits = fitted->fits + schema->column_count,
                                               .scales = fitted->scales + schema->column_count};
    card->kind = KELP_DATA_TABLE;
    card->classes = input->raw->classes.names;
    input->raw->classes.names = (struct kelp_words){0};
    card->categories = calloc((size_t)schema->word_count + 1, sizeof(*card->categories));
    if (!card->categories) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < schema->word_count; i++) {
        struct kelp_card_category *category = &card->categories[card->category_count++];
        memcpy(category->name, schema->words[i].name, sizeof(category->name));
        category->size = fitted->vocab[i];
        category->words = fitted->learned[i];
        fitted->learned[i] = (struct kelp_words){0};
    }
    kelp_status status = kelp_table_card_put(&inputs, schema, &card->inputs, reterr);
    return status == KELP_OK ? kelp_table_card_put(&targets, schema, &card->targets, reterr)
                             : status;
}

/* The card's text; "" where the fit is a model's. */
static kelp_status print_fit(const struct kelp_table_input *input, struct fitted *fitted,
                             char **ret_text, struct kelp_error *reterr)
{
    struct kelp_model_card card = {.job = NULL};
    if (input->dataset->card) {
        *ret_text = strdup("");
        return *ret_text ? KELP_OK : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = describe_fit(input, fitted, &card, reterr);
    if (status == KELP_OK) {
        status = kelp_table_card_text(&card, ret_text, reterr);
    }
    kelp_model_card_fini(&card);
    return status;
}

static kelp_status fit(const struct kelp_table_input *input, struct fitted *fitted,
                       struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = input->schema;
    const struct kelp_job *job = input->job;
    if (input->dataset->card) {
        return copy_card_fit(input, fitted, reterr);
    }
    if (job->data.vocab_count > 0 && job->data.vocab_count != schema->word_count) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.vocab: has %u sizes, but data.categories has %u columns; give one "
                         "for each",
                         job->data.vocab_count, schema->word_count);
    }
    kelp_status status = kelp_splits_init(&fitted->splits, job, input->raw->file_rows, reterr);
    if (status == KELP_OK) {
        status = kelp_table_classes_fit(input, &fitted->splits, reterr);
    }
    if (status == KELP_OK) {
        status = fit_numbers(input, fitted, reterr);
    }
    for (uint32_t i = 0; i < schema->word_count && status == KELP_OK; i++) {
        status = number_words(input, fitted, i, reterr);
    }
    return status;
}

static kelp_status write_row(const struct kelp_table_input *input, const struct fitted *fitted,
                             uint64_t row, struct kelp_prepared_writer *writer,
                             struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = input->schema;
    float values[KELP_TABLE_WORDS_MAX + KELP_TABLE_COLUMNS_MAX];
    for (uint32_t i = 0; i < schema->word_count; i++) {
        values[i] = (float)fitted->words[i][kelp_table_raw_word(input->raw, row, i)];
    }
    const struct kelp_table_numbers numbers = {
        .count = schema->number_count, .fits = fitted->fits, .scales = fitted->scales};
    kelp_status status =
        kelp_table_values(input, row, &numbers, &values[schema->word_count], reterr);
    if (status != KELP_OK) {
        return status;
    }
    return kelp_prepared_floats(writer, values, schema->word_count + schema->number_count, reterr);
}

static kelp_status write_all(const struct kelp_table_input *input, struct fitted *fitted,
                             struct kelp_spool *spool, struct kelp_prepared *ret_prepared,
                             struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = input->schema;
    struct kelp_prepared_parts parts = {
        .shape = {.rows = input->raw->row_count,
                  .widths = {schema->word_count + schema->number_count, 0},
                  .target_count = schema->target_count,
                  .scale_rows = 1,
                  .vocab_count = schema->word_count},
        .scales = fitted->scales + schema->column_count};
    memcpy(parts.shape.file_rows, input->raw->file_rows, sizeof(parts.shape.file_rows));
    memcpy(parts.shape.vocab, fitted->vocab, sizeof(fitted->vocab));
    struct kelp_prepared_writer writer;
    char *card = NULL;
    kelp_status status = print_fit(input, fitted, &card, reterr);
    if (status == KELP_OK) {
        status = kelp_prepared_begin(&writer, spool, &parts, reterr);
    }
    for (uint64_t row = 0; row < input->raw->row_count && status == KELP_OK; row++) {
        status = write_row(input, fitted, row, &writer, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_prepared_end(&writer, card, ret_prepared, reterr);
    }
    free(card);
    return status;
}

static kelp_status arrange(const struct kelp_table_input *input, struct kelp_spool *spool,
                           struct kelp_prepared *ret_prepared, struct kelp_error *reterr)
{
    struct fitted *fitted = calloc(1, sizeof(*fitted));
    if (!fitted) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = fit(input, fitted, reterr);
    if (status == KELP_OK) {
        status = write_all(input, fitted, spool, ret_prepared, reterr);
    }
    for (int i = 0; i < KELP_TABLE_WORDS_MAX; i++) {
        free(fitted->words[i]);
        kelp_words_fini(&fitted->learned[i]);
    }
    free(fitted);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

struct table {
    struct kelp_spool spool;
    struct kelp_prepared prepared;
    struct kelp_splits splits;
};

static const float *record_at(const struct table *table, enum kelp_split split, uint64_t index)
{
    return table->prepared.planes[0] +
           kelp_splits_row(&table->splits, split, index) * table->prepared.shape->widths[0];
}

static kelp_status read_table(const struct kelp_dataset *dataset, enum kelp_split split,
                              const uint64_t *indices, uint32_t count, float *input, float *target)
{
    const struct table *table = dataset->state;
    for (uint32_t i = 0; i < count; i++) {
        const float *record = record_at(table, split, indices[i]);
        memcpy(input + i * dataset->input_count, record,
               (size_t)dataset->input_count * sizeof(*input));
        memcpy(target + i * dataset->target_count, record + dataset->input_count,
               (size_t)dataset->target_count * sizeof(*target));
    }
    return KELP_OK;
}

static kelp_status describe_table(const struct kelp_dataset *dataset, struct kelp_model_card *card,
                                  struct kelp_error *reterr)
{
    const struct table *table = dataset->state;
    return kelp_table_card_of(&table->prepared, card, reterr);
}

static void close_table(void *state)
{
    struct table *table = state;
    kelp_spool_fini(&table->spool);
    free(table);
}

/* ---- opening --------------------------------------------------------------------------------- */

static void set_shape(struct kelp_dataset *dataset, const struct kelp_table_schema *schema,
                      const struct kelp_prepared *prepared)
{
    struct kelp_sample_shape *shape = &dataset->info.shape;
    if (schema->word_count > 0) {
        struct kelp_sample_tensor *words = &shape->inputs[shape->input_count++];
        words->rank = 1;
        words->dims[0] = schema->word_count;
        words->vocab_count = schema->word_count;
        memcpy(words->vocab, prepared->shape->vocab, sizeof(words->vocab));
    }
    if (schema->column_count > 0) {
        struct kelp_sample_tensor *numbers = &shape->inputs[shape->input_count++];
        numbers->rank = 1;
        numbers->dims[0] = schema->column_count;
    }
    shape->target.rank = schema->target_count > 1 ? 1 : 0;
    shape->target.dims[0] = schema->target_count > 1 ? schema->target_count : 0;
}

/* Before the files are read. */
static kelp_status check_loss(const struct kelp_job *job, const struct kelp_table_schema *schema,
                              struct kelp_error *reterr)
{
    if (!kelp__dataset_learns_classes(job) ||
        (schema->target_count == 1 && job->data.normalize_target == KELP_NORMALIZE_NONE)) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "data.targets: the loss takes classes, so one column that is not scaled");
}

/* Rows are looked at until each class was seen, which are few of them as a rule. */
static kelp_status find_untrained(struct kelp_dataset *dataset, const struct table *table,
                                  struct kelp_error *reterr)
{
    uint64_t rows = table->splits.rows[KELP_SPLIT_TRAIN].count;
    uint64_t width = table->prepared.shape->widths[0];
    uint32_t number = 0, left = dataset->classes.count;
    bool *seen = calloc((size_t)left + 1, sizeof(*seen));
    kelp_status status = KELP_OK;
    if (!seen) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %u classes", left);
    }
    for (uint64_t i = 0; i < rows && left > 0; i++) {
        uint32_t class = (uint32_t)record_at(table, KELP_SPLIT_TRAIN, i)[width - 1];
        left -= class < dataset->classes.count && !seen[class] ? 1 : 0;
        seen[class < dataset->classes.count ? class : dataset->classes.count] = true;
    }
    for (uint32_t i = 0; i < dataset->classes.count && status == KELP_OK; i++) {
        status = seen[i] ? KELP_OK
                         : kelp_words_add(&dataset->untrained_classes,
                                          kelp_words_at(&dataset->classes, i), &number, reterr);
    }
    free(seen);
    return status;
}

/* Names that changed are other data, also where their numbers did not. */
static void add_names(struct kelp_dataset *dataset)
{
    struct kelp_digest digest;
    if (dataset->classes.count == 0) {
        return;
    }
    kelp_digest_init(&digest);
    kelp_digest_update(&digest, &dataset->info.fingerprint, sizeof(dataset->info.fingerprint));
    for (uint32_t i = 0; i < dataset->classes.count; i++) {
        const char *name = kelp_words_at(&dataset->classes, i);
        kelp_digest_update(&digest, name, strlen(name) + 1);
    }
    dataset->info.fingerprint = kelp_digest_short(&digest);
}

/* Where they are names. */
static kelp_status name_classes(struct kelp_dataset *dataset, const struct table *table,
                                struct kelp_error *reterr)
{
    struct kelp_model_card card = {.job = NULL};
    if (dataset->card || table->prepared.card_bytes == 0) {
        return KELP_OK;
    }
    kelp_status status = kelp_table_card_of(&table->prepared, &card, reterr);
    dataset->classes = card.classes;
    card.classes = (struct kelp_words){0};
    kelp_model_card_fini(&card);
    add_names(dataset);
    return status == KELP_OK ? find_untrained(dataset, table, reterr) : status;
}

/* Losses over classes need whole numbers from 0; the largest one says how many there are. */
static kelp_status set_classes(struct kelp_dataset *dataset, const struct table *table,
                               const struct kelp_job *job, const struct kelp_table_schema *schema,
                               struct kelp_error *reterr)
{
    const struct kelp_model_card *card = dataset->card;
    uint64_t width = table->prepared.shape->widths[0];
    /* A model knows so many classes; else the largest one says. */
    float end = card ? (float)card->shape.target.vocab[0] : (float)KELP_SAMPLE_CATEGORIES_MAX;
    float largest = 0.0f;
    for (uint64_t row = 0; row < table->prepared.shape->rows; row++) {
        float value = table->prepared.planes[0][row * width + width - 1];
        if (!(value >= 0.0f) || value >= end || floorf(value) != value) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "%s: column %s: %.9g is not a class; the loss takes classes, whole "
                             "numbers from 0%s",
                             job->data.path, kelp_table_schema_target(schema, 0), (double)value,
                             card ? " to the largest one of the training data" : "");
        }
        largest = value > largest ? value : largest;
    }
    dataset->info.shape.target.vocab_count = 1;
    dataset->info.shape.target.vocab[0] = card ? (uint32_t)end : (uint32_t)largest + 1;
    return schema->has_class ? name_classes(dataset, table, reterr) : KELP_OK;
}

static kelp_status set_targets(struct kelp_dataset *dataset, const struct table *table,
                               const struct kelp_job *job, const struct kelp_table_schema *schema,
                               struct kelp_error *reterr)
{
    kelp_status status = kelp__dataset_name_targets(dataset, schema->target_count, reterr);
    if (status != KELP_OK) {
        return status;
    }
    for (uint32_t i = 0; i < schema->target_count; i++) {
        const char *name = kelp_table_schema_target(schema, i);
        memcpy(dataset->names[i], name, strlen(name) + 1);
        dataset->scales[i] = table->prepared.scales[i];
    }
    return kelp__dataset_learns_classes(job) ? set_classes(dataset, table, job, schema, reterr)
                                             : KELP_OK;
}

/* Whatever a cache holds, categories are in range: models look rows up by them. */
static bool belongs(const struct table *table, const struct kelp_table_schema *schema)
{
    const struct kelp_prepared_shape *shape = table->prepared.shape;
    bool same = shape->widths[0] == schema->word_count + schema->number_count &&
                shape->target_count == schema->target_count &&
                shape->vocab_count == schema->word_count;
    for (uint64_t row = 0; same && row < shape->rows; row++) {
        const float *record = table->prepared.planes[0] + row * shape->widths[0];
        for (uint32_t i = 0; i < shape->vocab_count; i++) {
            same = same && record[i] >= 0.0f && record[i] < (float)shape->vocab[i] &&
                   floorf(record[i]) == record[i];
        }
    }
    return same;
}

static kelp_status open_prepared(struct kelp_dataset *dataset, struct table *table,
                                 const struct kelp_job *job, struct kelp_table_schema *schema,
                                 struct kelp_error *reterr)
{
    const struct kelp_table_input source = {.dataset = dataset, .job = job, .schema = schema};
    kelp_status status =
        kelp_table_prepare(&source, arrange, &table->spool, &table->prepared, reterr);
    if (status == KELP_OK) {
        status = kelp_splits_init(&table->splits, job, table->prepared.shape->file_rows, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (!belongs(table, schema)) {
        return kelp_table_foreign(job, reterr);
    }
    struct kelp_digest digest;
    kelp_digest_init(&digest);
    kelp_digest_update(&digest, &table->prepared.digest, sizeof(table->prepared.digest));
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        dataset->info.samples[split] = table->splits.rows[split].count;
        dataset->info.no_targets[split] = schema->unlabelled;
    }
    kelp_digest_update(&digest, &table->splits, sizeof(table->splits));
    dataset->info.fingerprint = kelp_digest_short(&digest);
    dataset->info.memory_bytes = table->spool.count; /* a mapping: all of it was looked at */
    dataset->info.streamed = table->spool.count > KELP_ARRAY_RESIDENT_MAX;
    set_shape(dataset, schema, &table->prepared);
    return set_targets(dataset, table, job, schema, reterr);
}

kelp_status kelp__dataset_open_table(struct kelp_dataset *dataset, const struct kelp_job *job,
                                     struct kelp_error *reterr)
{
    static const struct kelp_dataset_functions functions = {
        .read = read_table, .describe = describe_table, .close = close_table};
    struct kelp_table_schema *schema = NULL;
    kelp_status status = kelp_table_schema_create(job, &schema, reterr);
    if (status == KELP_OK) {
        status = check_loss(job, schema, reterr);
    }
    struct table *table = status == KELP_OK ? calloc(1, sizeof(*table)) : NULL;
    if (status != KELP_OK) { /* said */
    } else if (!table) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    } else {
        dataset->functions = &functions;
        dataset->state = table;
        status = open_prepared(dataset, table, job, schema, reterr);
    }
    kelp_table_schema_destroy(schema);
    return status;
}
