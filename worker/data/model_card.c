#include "worker/data/model_card_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/text.h"

const char *const kelp__card_kinds[KELP_DATA_BINARY + 1] = {
    [KELP_DATA_CSV] = "csv",         [KELP_DATA_SYNTHETIC] = "synthetic",
    [KELP_DATA_TENSORS] = "tensors", [KELP_DATA_TABLE] = "table",
    [KELP_DATA_PANEL] = "panel",     [KELP_DATA_IDX] = "idx",
    [KELP_DATA_NPY] = "npy",         [KELP_DATA_BINARY] = "binary",
};

bool kelp__card_multiplies(enum kelp_data_kind kind)
{
    return kind == KELP_DATA_NPY || kind == KELP_DATA_BINARY;
}

/* ---- life ------------------------------------------------------------------------------------ */

void kelp_model_card_fini(struct kelp_model_card *card)
{
    for (uint32_t i = 0; i < card->category_count; i++) {
        kelp_words_fini(&card->categories[i].words);
    }
    kelp_words_fini(&card->series);
    kelp_words_fini(&card->classes);
    free(card->categories);
    free(card->inputs.items);
    free(card->known.items);
    free(card->targets.items);
    free(card->series_targets);
    free(card->job);
    *card = (struct kelp_model_card){.job = NULL};
}

kelp_status kelp_card_columns_init(struct kelp_card_columns *columns, uint64_t count,
                                   struct kelp_error *reterr)
{
    if (count > KELP_MODEL_CARD_COLUMNS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "%" PRIu64 " columns; a model carries the scales of at most %u", count,
                         KELP_MODEL_CARD_COLUMNS_MAX);
    }
    columns->items = calloc((size_t)count + 1, sizeof(*columns->items));
    if (!columns->items) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %" PRIu64 " columns",
                         count);
    }
    columns->count = (uint32_t)count;
    for (uint32_t i = 0; i < columns->count; i++) {
        columns->items[i].number = (struct kelp_card_number){.factor = 1.0, .fill = (double)NAN};
    }
    return KELP_OK;
}

kelp_status kelp_model_card_add_series_targets(struct kelp_model_card *card,
                                               struct kelp_error *reterr)
{
    size_t count = (size_t)card->series.count * card->targets.count;
    card->series_targets = calloc(count + 1, sizeof(*card->series_targets));
    return card->series_targets ? KELP_OK
                                : kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                                            "out of memory for %u series", card->series.count);
}

/* ---- printing -------------------------------------------------------------------------------- */

struct printer {
    FILE *out;
    bool arrays; /* numbers are multiplied, not divided */
};

/* Length of the UTF-8 sequence at text; 0: not UTF-8. */
static size_t utf8_length(const unsigned char *text)
{
    static const struct {
        unsigned char mask, lead;
        size_t bytes;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 1, 0},
                 {0xe0, 0xc0, 2, 0x80},
                 {0xf0, 0xe0, 3, 0x800},
                 {0xf8, 0xf0, 4, 0x10000}};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(forms); i++) {
        if ((text[0] & forms[i].mask) != forms[i].lead) {
            continue;
        }
        uint32_t code = text[0] & (unsigned char)~forms[i].mask;
        for (size_t at = 1; at < forms[i].bytes; at++) {
            if ((text[at] & 0xc0) != 0x80) {
                return 0;
            }
            code = code << 6 | (text[at] & 0x3f);
        }
        bool surrogate = code >= 0xd800 && code <= 0xdfff;
        return code >= forms[i].least && code <= 0x10ffff && !surrogate ? forms[i].bytes : 0;
    }
    return 0;
}

static bool is_utf8(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at != '\0') {
        size_t bytes = utf8_length(at);
        if (bytes == 0) {
            return false;
        }
        at += bytes;
    }
    return true;
}

/* JSON is UTF-8; text in another encoding becomes {"hex": "e9"}. */
static void print_text(FILE *out, const char *text)
{
    if (is_utf8(text)) {
        kelp_json_print_string(out, text);
        return;
    }
    (void)fputs("{\"hex\":\"", out);
    for (const char *c = text; *c != '\0'; c++) {
        (void)fprintf(out, "%02x", (unsigned char)*c);
    }
    (void)fputs("\"}", out);
}

static void print_number(const struct printer *printer, const struct kelp_card_number *number)
{
    FILE *out = printer->out;
    (void)fputs("\"shift\":", out);
    kelp_json_print_double(out, number->shift);
    (void)fprintf(out, ",\"%s\":", printer->arrays ? "scale" : "factor");
    kelp_json_print_double(out, number->factor);
    (void)fputs(",\"fill\":", out);
    kelp_json_print_double(out, number->fill);
}

static void print_columns(const struct printer *printer, const char *key,
                          const struct kelp_card_columns *columns)
{
    FILE *out = printer->out;
    if (columns->count == 0) {
        return;
    }
    (void)fprintf(out, ",\n  \"%s\": [", key);
    for (uint32_t i = 0; i < columns->count; i++) {
        (void)fprintf(out, "%s\n    {\"name\":", i > 0 ? "," : "");
        print_text(out, columns->items[i].name);
        (void)fputc(',', out);
        print_number(printer, &columns->items[i].number);
        (void)fputc('}', out);
    }
    (void)fputc(']', out);
}

static void print_words(FILE *out, const struct kelp_words *words)
{
    for (uint32_t i = 0; i < words->count; i++) {
        (void)fputs(i > 0 ? "," : "", out);
        print_text(out, kelp_words_at(words, i));
    }
}

static void print_categories(const struct printer *printer, const struct kelp_model_card *card)
{
    FILE *out = printer->out;
    if (card->category_count == 0) {
        return;
    }
    (void)fputs(",\n  \"categories\": [", out);
    for (uint32_t i = 0; i < card->category_count; i++) {
        (void)fprintf(out, "%s\n    {\"name\":", i > 0 ? "," : "");
        print_text(out, card->categories[i].name);
        (void)fprintf(out, ",\"size\":%" PRIu32 ",\"words\":[", card->categories[i].size);
        print_words(out, &card->categories[i].words);
        (void)fputs("]}", out);
    }
    (void)fputc(']', out);
}

static void print_classes(FILE *out, const struct kelp_model_card *card)
{
    if (card->classes.count > 0) {
        (void)fputs(",\n  \"classes\": [", out);
        print_words(out, &card->classes);
        (void)fputc(']', out);
    }
}

static void print_series(const struct printer *printer, const struct kelp_model_card *card)
{
    FILE *out = printer->out;
    if (card->series.count == 0) {
        return;
    }
    (void)fputs(",\n  \"series\": [", out);
    for (uint32_t i = 0; i < card->series.count; i++) {
        (void)fprintf(out, "%s\n    {\"name\":", i > 0 ? "," : "");
        print_text(out, kelp_words_at(&card->series, i));
        (void)fputs(",\"targets\":[", out);
        for (uint32_t t = 0; t < card->targets.count; t++) {
            (void)fputs(t > 0 ? ",{" : "{", out);
            print_number(printer, &card->series_targets[(size_t)i * card->targets.count + t]);
            (void)fputc('}', out);
        }
        (void)fputs("]}", out);
    }
    (void)fputc(']', out);
}

static void print_tensor(FILE *out, const struct kelp_sample_tensor *tensor)
{
    (void)fputs("{\"shape\":[", out);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        (void)fprintf(out, "%s%" PRIu64, i > 0 ? "," : "", tensor->dims[i]);
    }
    (void)fputs(tensor->vocab_count > 0 ? "],\"categories\":[" : "", out);
    for (uint32_t i = 0; i < tensor->vocab_count; i++) {
        (void)fprintf(out, "%s%" PRIu32, i > 0 ? "," : "", tensor->vocab[i]);
    }
    (void)fputs("]}", out);
}

static void print_sample(FILE *out, const struct kelp_sample_shape *shape)
{
    (void)fputs(",\n  \"sample\": {\"inputs\":[", out);
    for (uint32_t i = 0; i < shape->input_count; i++) {
        (void)fputs(i > 0 ? "," : "", out);
        print_tensor(out, &shape->inputs[i]);
    }
    (void)fputs("],\"target\":", out);
    print_tensor(out, &shape->target);
    (void)fputc('}', out);
}

static void print_settings(FILE *out, const struct kelp_model_card *card)
{
    if (card->seq_len > 0) {
        (void)fprintf(out, ",\n  \"windows\": {\"seq_len\":%" PRIu32 ",\"pred_len\":%" PRIu32 "}",
                      card->seq_len, card->pred_len);
    }
    if (card->kind == KELP_DATA_IDX) {
        (void)fputs(",\n  \"image\": {\"mean\":", out);
        kelp_json_print_double(out, card->mean);
        (void)fputs(",\"std\":", out);
        kelp_json_print_double(out, card->std);
        (void)fputc('}', out);
    }
    for (uint32_t i = 0; i < card->quantile_count; i++) {
        (void)fputs(i > 0 ? "," : ",\n  \"quantiles\": [", out);
        kelp_json_print_double(out, card->quantiles[i]);
    }
    (void)fputs(card->quantile_count > 0 ? "]" : "", out);
}

static void print_all(const void *what, FILE *out)
{
    const struct kelp_model_card *card = what;
    const struct printer own = {.out = out, .arrays = kelp__card_multiplies(card->kind)};
    const struct printer *printer = &own;
    (void)fprintf(
        out, "{\n  \"format\": %d,\n  \"kind\": \"%s\",\n  \"fingerprint\": \"%016" PRIx64 "\"",
        KELP__CARD_FORMAT, kelp__card_kinds[card->kind], card->fingerprint);
    print_columns(printer, "inputs", &card->inputs);
    print_columns(printer, "known", &card->known);
    print_columns(printer, "targets", &card->targets);
    print_categories(printer, card);
    print_classes(out, card);
    print_series(printer, card);
    print_sample(out, &card->shape);
    print_settings(out, card);
    kelp_json_print_member(out, ",\n  ", "job", card->job ? card->job : "");
    (void)fputs("\n}\n", out);
}

kelp_status kelp_model_card_print(const struct kelp_model_card *card, char **ret_text,
                                  struct kelp_error *reterr)
{
    kelp_status status =
        kelp_text_print(print_all, card, KELP_MODEL_CARD_BYTES_MAX, ret_text, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "what a model carries of its data");
    }
    return status;
}
