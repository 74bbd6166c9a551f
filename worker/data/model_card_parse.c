/* A model card out of a file: nothing in it is believed. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "worker/data/model_card_internal.h"

static const cJSON *member(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static kelp_status bad(const char *where, const char *what, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: %s", where, what);
}

/* Name the member in what went wrong with it. */
static kelp_status within(const char *where, kelp_status status, struct kelp_error *reterr)
{
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s", where);
    }
    return status;
}

/* A list that may be left out: NULL then. */
static kelp_status find_list(const cJSON *json, const char *name, size_t count_max,
                             const cJSON **ret_list, uint32_t *ret_count, struct kelp_error *reterr)
{
    *ret_list = NULL;
    *ret_count = 0;
    if (!member(json, name)) {
        return KELP_OK;
    }
    kelp_status status = kelp_json_array(json, name, count_max, ret_list, reterr);
    if (status == KELP_OK) {
        *ret_count = (uint32_t)cJSON_GetArraySize(*ret_list);
    }
    return status;
}

/* Each element of a list that must be there. */
static kelp_status read_list(const cJSON *json, const char *name, size_t count_max,
                             kelp_json_reader *read, void *into, struct kelp_error *reterr)
{
    const cJSON *list = NULL;
    kelp_status status = kelp_json_array(json, name, count_max, &list, reterr);
    return status == KELP_OK ? kelp_json_each(list, read, into, reterr) : status;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static bool read_hex(const char *hex, char *text, size_t text_bytes)
{
    size_t bytes = strlen(hex) / 2;
    if (strlen(hex) % 2 != 0 || bytes >= text_bytes) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        int high = kelp_json_hex_digit(hex[2 * i]);
        int low = kelp_json_hex_digit(hex[2 * i + 1]);
        if (high < 0 || low < 0 || high + low == 0) { /* no NUL */
            return false;
        }
        text[i] = (char)(high << 4 | low);
    }
    text[bytes] = '\0';
    return true;
}

static kelp_status read_text(const cJSON *item, const char *where, char *text, size_t text_bytes,
                             struct kelp_error *reterr)
{
    const char *string = cJSON_GetStringValue(item);
    const char *hex = cJSON_IsObject(item) ? cJSON_GetStringValue(member(item, "hex")) : NULL;
    if (string && strlen(string) < text_bytes) {
        memcpy(text, string, strlen(string) + 1);
        return KELP_OK;
    }
    if (hex && read_hex(hex, text, text_bytes)) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: not a text of at most %zu bytes", where,
                     text_bytes - 1);
}

/* A word that is not there yet. */
static kelp_status add_word(const cJSON *item, const char *where, struct kelp_words *words,
                            struct kelp_error *reterr)
{
    char word[KELP_TABLE_WORD_MAX + 1];
    uint32_t expected = words->count;
    uint32_t number = 0;
    kelp_status status = read_text(item, where, word, sizeof(word), reterr);
    if (status == KELP_OK) {
        status = kelp_words_add(words, word, &number, reterr);
    }
    return status == KELP_OK && number != expected ? bad(where, "one stands there twice", reterr)
                                                   : status;
}

static kelp_status read_word(const cJSON *item, void *words, struct kelp_error *reterr)
{
    return add_word(item, "words", words, reterr);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static kelp_status read_number(const cJSON *item, enum kelp_data_kind kind,
                               struct kelp_card_number *number, struct kelp_error *reterr)
{
    const char *factor = kelp__card_multiplies(kind) ? "scale" : "factor";
    const cJSON *fill = cJSON_IsObject(item) ? member(item, "fill") : NULL;
    kelp_status status = kelp_json_double(item, "shift", &number->shift, reterr);
    if (status == KELP_OK) {
        status = kelp_json_double(item, factor, &number->factor, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (!(number->factor > 0.0)) {
        return bad(factor, "is not above 0", reterr);
    }
    number->fill = (double)NAN;
    return cJSON_IsNull(fill) ? KELP_OK : kelp_json_double(item, "fill", &number->fill, reterr);
}

/* Where what is read next goes. */
struct place {
    enum kelp_data_kind kind;
    uint32_t target_count;
    struct kelp_card_column *column;
    struct kelp_card_number *number;
};

static kelp_status read_column(const cJSON *item, void *into, struct kelp_error *reterr)
{
    struct place *next = into;
    struct kelp_card_column *column = next->column++;
    kelp_status status =
        read_text(member(item, "name"), "name", column->name, sizeof(column->name), reterr);
    return status == KELP_OK ? read_number(item, next->kind, &column->number, reterr) : status;
}

static kelp_status read_columns(const cJSON *json, const char *key, enum kelp_data_kind kind,
                                struct kelp_card_columns *columns, struct kelp_error *reterr)
{
    const cJSON *list = NULL;
    uint32_t count = 0;
    kelp_status status = find_list(json, key, KELP_MODEL_CARD_COLUMNS_MAX, &list, &count, reterr);
    if (status == KELP_OK) {
        status = kelp_card_columns_init(columns, count, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    struct place next = {.kind = kind, .column = columns->items};
    return within(key, kelp_json_each(list, read_column, &next, reterr), reterr);
}

/* ---- categories and series ------------------------------------------------------------------- */

static kelp_status read_category(const cJSON *item, void *into, struct kelp_error *reterr)
{
    struct kelp_model_card *card = into;
    struct kelp_card_category *category = &card->categories[card->category_count++];
    kelp_status status =
        read_text(member(item, "name"), "name", category->name, sizeof(category->name), reterr);
    if (status == KELP_OK) {
        status = kelp_json_u32(item, "size", KELP_SAMPLE_CATEGORIES_MAX, &category->size, reterr);
    }
    if (status == KELP_OK) {
        status = read_list(item, "words", KELP_SAMPLE_CATEGORIES_MAX, read_word, &category->words,
                           reterr);
    }
    if (status == KELP_OK && (category->size == 0 || category->words.count > category->size)) {
        status = bad("size", "is 0, or less than there are words", reterr);
    }
    return status;
}

static kelp_status read_categories(const cJSON *json, struct kelp_model_card *card,
                                   struct kelp_error *reterr)
{
    const cJSON *list = NULL;
    uint32_t count = 0;
    kelp_status status = find_list(json, "categories", KELP_TABLE_WORDS_MAX, &list, &count, reterr);
    if (status != KELP_OK || count == 0) {
        return status;
    }
    card->categories = calloc(count, sizeof(*card->categories));
    if (!card->categories) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    return within("categories", kelp_json_each(list, read_category, card, reterr), reterr);
}

static kelp_status read_classes(const cJSON *json, struct kelp_model_card *card,
                                struct kelp_error *reterr)
{
    const cJSON *list = NULL;
    uint32_t count = 0;
    kelp_status status =
        find_list(json, "classes", KELP_SAMPLE_CATEGORIES_MAX, &list, &count, reterr);
    return status == KELP_OK && count > 0
               ? within("classes", kelp_json_each(list, read_word, &card->classes, reterr), reterr)
               : status;
}

static kelp_status read_series_target(const cJSON *item, void *into, struct kelp_error *reterr)
{
    struct place *next = into;
    return read_number(item, next->kind, next->number++, reterr);
}

static kelp_status read_series_targets(const cJSON *item, void *into, struct kelp_error *reterr)
{
    const struct place *next = into;
    const cJSON *list = NULL;
    kelp_status status =
        kelp_json_array(item, "targets", KELP_MODEL_CARD_COLUMNS_MAX, &list, reterr);
    if (status == KELP_OK && (uint32_t)cJSON_GetArraySize(list) != next->target_count) {
        status = bad("targets", "are not as many as the model's", reterr);
    }
    return status == KELP_OK ? kelp_json_each(list, read_series_target, into, reterr) : status;
}

static kelp_status read_series_name(const cJSON *item, void *into, struct kelp_error *reterr)
{
    struct kelp_model_card *card = into;
    return add_word(member(item, "name"), "name", &card->series, reterr);
}

static kelp_status read_series(const cJSON *json, struct kelp_model_card *card,
                               struct kelp_error *reterr)
{
    const cJSON *list = NULL;
    uint32_t count = 0;
    kelp_status status = find_list(json, "series", KELP_PANEL_SERIES_MAX, &list, &count, reterr);
    if (status == KELP_OK) {
        status = kelp_json_each(list, read_series_name, card, reterr);
    }
    if (status == KELP_OK && count > 0) {
        status = kelp_model_card_add_series_targets(card, reterr);
    }
    if (status == KELP_OK) {
        struct place next = {.kind = card->kind,
                             .target_count = card->targets.count,
                             .number = card->series_targets};
        status = kelp_json_each(list, read_series_targets, &next, reterr);
    }
    return within("series", status, reterr);
}

/* ---- the shape of a sample ------------------------------------------------------------------- */

static kelp_status read_dim(const cJSON *item, void *into, struct kelp_error *reterr)
{
    struct kelp_sample_tensor *tensor = into;
    uint64_t elems = 1;
    kelp_status status =
        kelp_json_element_u64(item, UINT64_C(1) << 40, &tensor->dims[tensor->rank++], reterr);
    for (uint32_t i = 0; i < tensor->rank && status == KELP_OK; i++) {
        if (__builtin_mul_overflow(elems, tensor->dims[i], &elems) || elems > UINT64_C(1) << 48) {
            status = bad("shape", "has too many elements", reterr);
        }
    }
    return status;
}

static kelp_status read_vocab(const cJSON *item, void *into, struct kelp_error *reterr)
{
    struct kelp_sample_tensor *tensor = into;
    uint64_t size = 0;
    kelp_status status = kelp_json_element_u64(item, KELP_SAMPLE_CATEGORIES_MAX, &size, reterr);
    tensor->vocab[tensor->vocab_count++] = (uint32_t)size;
    return status == KELP_OK && size == 0 ? bad("categories", "a size is 0", reterr) : status;
}

static kelp_status read_tensor(const cJSON *item, struct kelp_sample_tensor *tensor,
                               struct kelp_error *reterr)
{
    const cJSON *list = NULL;
    uint32_t count = 0;
    *tensor = (struct kelp_sample_tensor){.rank = 0};
    kelp_status status = read_list(item, "shape", KELP_SAMPLE_RANK_MAX, read_dim, tensor, reterr);
    if (status == KELP_OK) {
        status = find_list(item, "categories", KELP_SAMPLE_VOCAB_MAX, &list, &count, reterr);
    }
    return status == KELP_OK ? kelp_json_each(list, read_vocab, tensor, reterr) : status;
}

static kelp_status read_input(const cJSON *item, void *into, struct kelp_error *reterr)
{
    struct kelp_sample_shape *shape = into;
    return read_tensor(item, &shape->inputs[shape->input_count++], reterr);
}

static kelp_status read_sample(const cJSON *json, struct kelp_model_card *card,
                               struct kelp_error *reterr)
{
    struct kelp_sample_shape *shape = &card->shape;
    const cJSON *sample = member(json, "sample");
    kelp_status status =
        read_list(sample, "inputs", KELP_SAMPLE_INPUTS_MAX, read_input, shape, reterr);
    if (status == KELP_OK && shape->input_count == 0) {
        status = bad("inputs", "are none", reterr);
    }
    if (status == KELP_OK) {
        status = read_tensor(member(sample, "target"), &shape->target, reterr);
    }
    return within("sample", status, reterr);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static kelp_status read_windows(const cJSON *json, struct kelp_model_card *card,
                                struct kelp_error *reterr)
{
    const cJSON *windows = member(json, "windows");
    if (!windows) {
        return KELP_OK;
    }
    kelp_status status = kelp_json_u32(windows, "seq_len", UINT32_MAX, &card->seq_len, reterr);
    if (status == KELP_OK) {
        status = kelp_json_u32(windows, "pred_len", UINT32_MAX, &card->pred_len, reterr);
    }
    if (status == KELP_OK && (card->seq_len == 0 || card->pred_len == 0)) {
        status = bad("seq_len, pred_len", "one is 0", reterr);
    }
    return within("windows", status, reterr);
}

static kelp_status read_image(const cJSON *json, struct kelp_model_card *card,
                              struct kelp_error *reterr)
{
    const cJSON *image = member(json, "image");
    if (card->kind != KELP_DATA_IDX) {
        return KELP_OK;
    }
    kelp_status status = kelp_json_double(image, "mean", &card->mean, reterr);
    if (status == KELP_OK) {
        status = kelp_json_double(image, "std", &card->std, reterr);
    }
    return within("image", status, reterr);
}

static kelp_status read_quantile(const cJSON *item, void *into, struct kelp_error *reterr)
{
    struct kelp_model_card *card = into;
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0.0 && item->valuedouble <= 1.0)) {
        return bad("quantiles", "one is not a number from 0 to 1", reterr);
    }
    card->quantiles[card->quantile_count++] = item->valuedouble;
    return KELP_OK;
}

static kelp_status read_quantiles(const cJSON *json, struct kelp_model_card *card,
                                  struct kelp_error *reterr)
{
    const cJSON *list = NULL;
    uint32_t count = 0;
    kelp_status status = find_list(json, "quantiles", KELP_JOB_LIST_MAX, &list, &count, reterr);
    return status == KELP_OK ? kelp_json_each(list, read_quantile, card, reterr) : status;
}

static kelp_status read_job(const cJSON *json, struct kelp_model_card *card,
                            struct kelp_error *reterr)
{
    const char *job = cJSON_GetStringValue(member(json, "job"));
    if (!job) {
        return bad("job", "is not a string", reterr);
    }
    if (job[0] == '\0') {
        return KELP_OK;
    }
    card->job = strdup(job);
    return card->job ? KELP_OK : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

static kelp_status read_head(const cJSON *json, struct kelp_model_card *card,
                             struct kelp_error *reterr)
{
    char kind[32];
    uint32_t format = 0;
    uint32_t index = 0;
    kelp_status status = kelp_json_u32(json, "format", UINT32_MAX, &format, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (format != KELP__CARD_FORMAT) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "is of format %u, this Kelp reads %d: it is from another version", format,
                         KELP__CARD_FORMAT);
    }
    status = kelp_json_hex64(json, "fingerprint", &card->fingerprint, reterr);
    if (status == KELP_OK) {
        status = kelp_json_string(json, "kind", kind, sizeof(kind), reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    while (index < KELP_ARRAY_COUNT(kelp__card_kinds) &&
           strcmp(kind, kelp__card_kinds[index]) != 0) {
        index++;
    }
    card->kind = (enum kelp_data_kind)index;
    return index < KELP_ARRAY_COUNT(kelp__card_kinds) ? KELP_OK
                                                      : bad("kind", "is no kind of data", reterr);
}

/* What samples are made with must be all there: who fills them counts on it. */
static kelp_status check_counts(const struct kelp_model_card *card, struct kelp_error *reterr)
{
    bool windows = card->kind == KELP_DATA_CSV || card->kind == KELP_DATA_SYNTHETIC ||
                   card->kind == KELP_DATA_PANEL;
    if (windows && card->seq_len == 0) {
        return bad("windows", "are missing", reterr);
    }
    if (windows && card->targets.count == 0) {
        return bad("targets", "are missing", reterr);
    }
    if (card->kind == KELP_DATA_PANEL && card->series.count == 0) {
        return bad("series", "are missing", reterr);
    }
    if (card->kind != KELP_DATA_PANEL && card->series.count > 0) {
        return bad("series", "go with a panel alone", reterr);
    }
    const struct kelp_sample_tensor *target = &card->shape.target;
    if (card->classes.count > 0 &&
        (card->kind != KELP_DATA_TABLE || card->targets.count != 1 || target->vocab_count != 1 ||
         target->vocab[0] != card->classes.count)) {
        return bad("classes", "are not as many as the target of a table has", reterr);
    }
    return KELP_OK;
}

static kelp_status read_fit(const cJSON *json, void *into, struct kelp_error *reterr)
{
    struct kelp_model_card *card = into;
    kelp_status status = read_head(json, card, reterr);
    if (status == KELP_OK) {
        status = read_columns(json, "inputs", card->kind, &card->inputs, reterr);
    }
    if (status == KELP_OK) {
        status = read_columns(json, "known", card->kind, &card->known, reterr);
    }
    if (status == KELP_OK) {
        status = read_columns(json, "targets", card->kind, &card->targets, reterr);
    }
    if (status == KELP_OK) {
        status = read_categories(json, card, reterr);
    }
    if (status == KELP_OK) {
        status = read_classes(json, card, reterr);
    }
    return status == KELP_OK ? read_series(json, card, reterr) : status;
}

static kelp_status read_all(const cJSON *json, void *into, struct kelp_error *reterr)
{
    static kelp_status (*const parts[])(const cJSON *, struct kelp_model_card *,
                                        struct kelp_error *) = {
        read_windows, read_image, read_quantiles, read_job, read_sample};
    struct kelp_model_card *card = into;
    kelp_status status = read_fit(json, card, reterr);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(parts) && status == KELP_OK; i++) {
        status = parts[i](json, card, reterr);
    }
    return status == KELP_OK ? check_counts(card, reterr) : status;
}

static kelp_status parse(const char *text, size_t text_bytes, kelp_json_reader *read,
                         struct kelp_model_card *ret_card, struct kelp_error *reterr)
{
    struct kelp_model_card card = {.job = NULL};
    if (text_bytes > KELP_MODEL_CARD_BYTES_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "has %zu bytes; at most %u are read", text_bytes,
                         KELP_MODEL_CARD_BYTES_MAX);
    }
    kelp_status status = kelp_json_read(text, text_bytes, read, &card, reterr);
    if (status != KELP_OK) {
        kelp_model_card_fini(&card);
        return status;
    }
    *ret_card = card;
    return KELP_OK;
}

kelp_status kelp_model_card_parse(const char *text, size_t text_bytes,
                                  struct kelp_model_card *ret_card, struct kelp_error *reterr)
{
    return parse(text, text_bytes, read_all, ret_card, reterr);
}

kelp_status kelp_model_card_parse_fit(const char *text, size_t text_bytes,
                                      struct kelp_model_card *ret_card, struct kelp_error *reterr)
{
    return parse(text, text_bytes, read_fit, ret_card, reterr);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void print_shape(const struct kelp_sample_tensor *tensor, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "[");
    for (uint32_t i = 0; i < tensor->rank && used < text_bytes; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%" PRIu64, i > 0 ? ", " : "",
                                 tensor->dims[i]);
    }
    if (used < text_bytes) {
        (void)snprintf(text + used, text_bytes - used, "]");
    }
}

static bool tensor_same(const struct kelp_sample_tensor *have,
                        const struct kelp_sample_tensor *want)
{
    bool same = have->rank == want->rank && have->vocab_count == want->vocab_count;
    for (uint32_t i = 0; same && i < have->rank; i++) {
        same = have->dims[i] == want->dims[i];
    }
    for (uint32_t i = 0; same && i < have->vocab_count; i++) {
        same = have->vocab[i] == want->vocab[i];
    }
    return same;
}

bool kelp_sample_shape_same(const struct kelp_sample_shape *have,
                            const struct kelp_sample_shape *want, char *text, size_t text_bytes)
{
    char has[128], wants[128];
    if (have->input_count != want->input_count) {
        (void)snprintf(text, text_bytes, "%u inputs, not %u", have->input_count, want->input_count);
        return false;
    }
    for (uint32_t i = 0; i <= have->input_count; i++) {
        bool input = i < have->input_count;
        const struct kelp_sample_tensor *ours = input ? &have->inputs[i] : &have->target;
        const struct kelp_sample_tensor *theirs = input ? &want->inputs[i] : &want->target;
        if (!tensor_same(ours, theirs)) {
            print_shape(ours, has, sizeof(has));
            print_shape(theirs, wants, sizeof(wants));
            (void)snprintf(text, text_bytes, "%s of %s, not %s%s", input ? "an input" : "a target",
                           has, wants, strcmp(has, wants) == 0 ? " of as many categories" : "");
            return false;
        }
    }
    return true;
}
