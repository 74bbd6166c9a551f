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

/* ---- texts ----------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(const char *hex, char *text, size_t text_bytes)
{
    size_t bytes = strlen(hex) / 2;
    if (strlen(hex) % 2 != 0 || bytes >= text_bytes) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        int high = hex_digit(hex[2 * i]);
        int low = hex_digit(hex[2 * i + 1]);
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

static kelp_status read_words(const cJSON *list, const char *where, struct kelp_words *words,
                              struct kelp_error *reterr)
{
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, list)
    {
        char word[KELP_TABLE_WORD_MAX + 1];
        uint32_t expected = words->count;
        uint32_t number = 0;
        kelp_status status = read_text(item, where, word, sizeof(word), reterr);
        if (status == KELP_OK) {
            status = kelp_words_add(words, word, &number, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
        if (number != expected) {
            return bad(where, "a word stands there twice", reterr);
        }
    }
    return KELP_OK;
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

static kelp_status read_columns(const cJSON *json, const char *key, enum kelp_data_kind kind,
                                struct kelp_card_columns *columns, struct kelp_error *reterr)
{
    const cJSON *list = NULL;
    const cJSON *item = NULL;
    uint32_t count = 0;
    kelp_status status = find_list(json, key, KELP_MODEL_CARD_COLUMNS_MAX, &list, &count, reterr);
    if (status == KELP_OK) {
        status = kelp_card_columns_init(columns, count, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_card_column *column = columns->items;
    cJSON_ArrayForEach(item, list)
    {
        status =
            read_text(member(item, "name"), "name", column->name, sizeof(column->name), reterr);
        if (status == KELP_OK) {
            status = read_number(item, kind, &column->number, reterr);
        }
        if (status != KELP_OK) {
            kelp_error_prefix(reterr, "%s", key);
            return status;
        }
        column++;
    }
    return KELP_OK;
}

/* ---- categories and series ------------------------------------------------------------------- */

static kelp_status read_category(const cJSON *item, struct kelp_card_category *category,
                                 struct kelp_error *reterr)
{
    const cJSON *words = NULL;
    kelp_status status =
        read_text(member(item, "name"), "name", category->name, sizeof(category->name), reterr);
    if (status == KELP_OK) {
        status = kelp_json_u32(item, "size", KELP_SAMPLE_CATEGORIES_MAX, &category->size, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_array(item, "words", KELP_SAMPLE_CATEGORIES_MAX, &words, reterr);
    }
    if (status == KELP_OK) {
        status = read_words(words, "words", &category->words, reterr);
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
    const cJSON *item = NULL;
    uint32_t count = 0;
    kelp_status status = find_list(json, "categories", KELP_TABLE_WORDS_MAX, &list, &count, reterr);
    if (status == KELP_OK && count > 0) {
        card->categories = calloc(count, sizeof(*card->categories));
        if (!card->categories) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        }
    }
    cJSON_ArrayForEach(item, list)
    {
        if (status == KELP_OK) {
            status = read_category(item, &card->categories[card->category_count++], reterr);
            kelp_error_prefix(status == KELP_OK ? NULL : reterr, "categories");
        }
    }
    return status;
}

static kelp_status read_series_targets(const cJSON *item, const struct kelp_model_card *card,
                                       struct kelp_card_number *numbers, struct kelp_error *reterr)
{
    const cJSON *list = NULL;
    const cJSON *target = NULL;
    kelp_status status =
        kelp_json_array(item, "targets", KELP_MODEL_CARD_COLUMNS_MAX, &list, reterr);
    if (status == KELP_OK && (uint32_t)cJSON_GetArraySize(list) != card->targets.count) {
        status = bad("targets", "are not as many as the model's", reterr);
    }
    cJSON_ArrayForEach(target, list)
    {
        if (status == KELP_OK) {
            status = read_number(target, card->kind, numbers++, reterr);
        }
    }
    return status;
}

static kelp_status read_series_name(const cJSON *item, struct kelp_model_card *card,
                                    struct kelp_error *reterr)
{
    char name[KELP_TABLE_WORD_MAX + 1];
    uint32_t expected = card->series.count;
    uint32_t number = 0;
    kelp_status status = read_text(member(item, "name"), "name", name, sizeof(name), reterr);
    if (status == KELP_OK) {
        status = kelp_words_add(&card->series, name, &number, reterr);
    }
    return status == KELP_OK && number != expected ? bad("name", "stands there twice", reterr)
                                                   : status;
}

static kelp_status read_series(const cJSON *json, struct kelp_model_card *card,
                               struct kelp_error *reterr)
{
    const cJSON *list = NULL;
    const cJSON *item = NULL;
    uint32_t count = 0;
    kelp_status status = find_list(json, "series", KELP_PANEL_SERIES_MAX, &list, &count, reterr);
    cJSON_ArrayForEach(item, list)
    {
        status = status == KELP_OK ? read_series_name(item, card, reterr) : status;
    }
    if (status == KELP_OK && count > 0) {
        status = kelp_model_card_add_series_targets(card, reterr);
    }
    struct kelp_card_number *numbers = card->series_targets;
    cJSON_ArrayForEach(item, list)
    {
        if (status == KELP_OK) {
            status = read_series_targets(item, card, numbers, reterr);
            numbers += card->targets.count;
        }
    }
    kelp_error_prefix(status == KELP_OK ? NULL : reterr, "series");
    return status;
}

/* ---- the shape of a sample ------------------------------------------------------------------- */

static kelp_status read_dims(const cJSON *item, struct kelp_sample_tensor *tensor,
                             struct kelp_error *reterr)
{
    const cJSON *list = NULL;
    const cJSON *entry = NULL;
    uint64_t elems = 1;
    kelp_status status = kelp_json_array(item, "shape", KELP_SAMPLE_RANK_MAX, &list, reterr);
    cJSON_ArrayForEach(entry, list)
    {
        if (status != KELP_OK) {
            break;
        }
        uint64_t *dim = &tensor->dims[tensor->rank++];
        status = kelp_json_element_u64(entry, UINT64_C(1) << 40, dim, reterr);
        if (status == KELP_OK &&
            (__builtin_mul_overflow(elems, *dim, &elems) || elems > UINT64_C(1) << 48)) {
            status = bad("shape", "has too many elements", reterr);
        }
    }
    return status;
}

static kelp_status read_tensor(const cJSON *item, struct kelp_sample_tensor *tensor,
                               struct kelp_error *reterr)
{
    const cJSON *list = NULL;
    const cJSON *entry = NULL;
    uint32_t count = 0;
    *tensor = (struct kelp_sample_tensor){.rank = 0};
    kelp_status status = read_dims(item, tensor, reterr);
    if (status == KELP_OK) {
        status = find_list(item, "categories", KELP_SAMPLE_VOCAB_MAX, &list, &count, reterr);
    }
    cJSON_ArrayForEach(entry, list)
    {
        uint64_t size = 0;
        if (status == KELP_OK) {
            status = kelp_json_element_u64(entry, KELP_SAMPLE_CATEGORIES_MAX, &size, reterr);
            tensor->vocab[tensor->vocab_count++] = (uint32_t)size;
        }
        if (status == KELP_OK && size == 0) {
            status = bad("categories", "a size is 0", reterr);
        }
    }
    return status;
}

static kelp_status read_sample(const cJSON *json, struct kelp_model_card *card,
                               struct kelp_error *reterr)
{
    struct kelp_sample_shape *shape = &card->shape;
    const cJSON *sample = member(json, "sample");
    const cJSON *list = NULL;
    const cJSON *item = NULL;
    kelp_status status = kelp_json_array(sample, "inputs", KELP_SAMPLE_INPUTS_MAX, &list, reterr);
    cJSON_ArrayForEach(item, list)
    {
        if (status == KELP_OK) {
            status = read_tensor(item, &shape->inputs[shape->input_count++], reterr);
        }
    }
    if (status == KELP_OK && shape->input_count == 0) {
        status = bad("inputs", "are none", reterr);
    }
    if (status == KELP_OK) {
        status = read_tensor(member(sample, "target"), &shape->target, reterr);
    }
    kelp_error_prefix(status == KELP_OK ? NULL : reterr, "sample");
    return status;
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
    kelp_error_prefix(status == KELP_OK ? NULL : reterr, "windows");
    return status;
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
    kelp_error_prefix(status == KELP_OK ? NULL : reterr, "image");
    return status;
}

static kelp_status read_quantiles(const cJSON *json, struct kelp_model_card *card,
                                  struct kelp_error *reterr)
{
    const cJSON *list = NULL;
    const cJSON *item = NULL;
    kelp_status status =
        find_list(json, "quantiles", KELP_JOB_LIST_MAX, &list, &card->quantile_count, reterr);
    uint32_t index = 0;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0.0 && item->valuedouble <= 1.0)) {
            return bad("quantiles", "one is no number from 0 to 1", reterr);
        }
        card->quantiles[index++] = item->valuedouble;
    }
    return status;
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
    return KELP_OK;
}

static kelp_status read_fit(const cJSON *json, struct kelp_model_card *card,
                            struct kelp_error *reterr)
{
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
    return status == KELP_OK ? read_series(json, card, reterr) : status;
}

static kelp_status read_all(const cJSON *json, struct kelp_model_card *card,
                            struct kelp_error *reterr)
{
    static kelp_status (*const parts[])(const cJSON *, struct kelp_model_card *,
                                        struct kelp_error *) = {
        read_fit, read_windows, read_image, read_quantiles, read_job, read_sample};
    kelp_status status = KELP_OK;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(parts) && status == KELP_OK; i++) {
        status = parts[i](json, card, reterr);
    }
    return status == KELP_OK ? check_counts(card, reterr) : status;
}

static kelp_status parse(const char *text, size_t text_bytes,
                         kelp_status (*read)(const cJSON *, struct kelp_model_card *,
                                             struct kelp_error *),
                         struct kelp_model_card *ret_card, struct kelp_error *reterr)
{
    struct kelp_model_card card = {.job = NULL};
    cJSON *json = NULL;
    if (text_bytes > KELP_MODEL_CARD_BYTES_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "has %zu bytes; at most %u are read", text_bytes,
                         KELP_MODEL_CARD_BYTES_MAX);
    }
    kelp_status status = kelp_json_parse(text, text_bytes, &json, reterr);
    if (status == KELP_OK) {
        status = read(json, &card, reterr);
        cJSON_Delete(json);
    }
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
