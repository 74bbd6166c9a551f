/* A model card as text: exact, and refused when it does not hold together. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/data/model_card.h"

static void add_word(struct kelp_words *words, const char *word)
{
    uint32_t number = 0;
    ck_assert_int_eq(kelp_words_add(words, word, &number, NULL), KELP_OK);
}

/* A table of two inputs, one target and one category. */
static void fill(struct kelp_model_card *card)
{
    *card = (struct kelp_model_card){.kind = KELP_DATA_TABLE, .fingerprint = UINT64_C(1) << 63};
    ck_assert_int_eq(kelp_card_columns_init(&card->inputs, 2, NULL), KELP_OK);
    ck_assert_int_eq(kelp_card_columns_init(&card->targets, 1, NULL), KELP_OK);
    memcpy(card->inputs.items[0].name, "a \"b\"", 6);
    card->inputs.items[0].number = (struct kelp_card_number){0.1, nextafter(3, 4), -1e-300};
    memcpy(card->targets.items[0].name, "caf\xe9", 5); /* not UTF-8 */
    card->categories = calloc(1, sizeof(*card->categories));
    ck_assert_ptr_nonnull(card->categories);
    card->category_count = 1;
    card->categories[0].size = 5;
    memcpy(card->categories[0].name, "zone", 5);
    add_word(&card->categories[0].words, "Z\xc3\xbcrich");
    add_word(&card->categories[0].words, "\xff");
    add_word(&card->categories[0].words, "");
    add_word(&card->classes, "caf\xe9");
    add_word(&card->classes, "tea \"black\"");
    card->shape = (struct kelp_sample_shape){
        .input_count = 2,
        .inputs = {{.rank = 1, .dims = {1}, .vocab_count = 1, .vocab = {5}},
                   {.rank = 1, .dims = {2}}},
        .target = {.vocab_count = 1, .vocab = {2}}};
    card->job = strdup("name: x\n");
}

KELP_CASE("text")

/* Every double comes back, and every byte of a word. */
KELP_TEST(comes_back_exactly)
{
    struct kelp_model_card card, again;
    struct kelp_error error;
    char *text = NULL, difference[256];
    fill(&card);
    ck_assert_int_eq(kelp_model_card_print(&card, &text, &error), KELP_OK);
    ck_assert_msg(kelp_model_card_parse(text, strlen(text), &again, &error) == KELP_OK, "%s",
                  error.text);
    for (uint32_t i = 0; i < 2; i++) {
        const struct kelp_card_column *before = &card.inputs.items[i];
        const struct kelp_card_column *after = &again.inputs.items[i];
        ck_assert_str_eq(before->name, after->name);
        ck_assert_mem_eq(&before->number.shift, &after->number.shift, sizeof(double));
        ck_assert_mem_eq(&before->number.factor, &after->number.factor, sizeof(double));
    }
    ck_assert_double_eq(again.inputs.items[0].number.fill, -1e-300);
    ck_assert(isnan(again.inputs.items[1].number.fill));
    ck_assert_str_eq(again.targets.items[0].name, "caf\xe9");
    ck_assert_uint_eq(again.categories[0].words.count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_str_eq(kelp_words_at(&card.categories[0].words, i),
                         kelp_words_at(&again.categories[0].words, i));
    }
    ck_assert_uint_eq(again.classes.count, 2);
    ck_assert_str_eq(kelp_words_at(&again.classes, 0), "caf\xe9");
    ck_assert_str_eq(kelp_words_at(&again.classes, 1), "tea \"black\"");
    ck_assert(again.fingerprint == card.fingerprint);
    ck_assert_str_eq(again.job, "name: x\n");
    ck_assert(kelp_sample_shape_same(&card.shape, &again.shape, difference, sizeof(difference)));
    again.shape.inputs[1].dims[0] = 3;
    ck_assert(!kelp_sample_shape_same(&again.shape, &card.shape, difference, sizeof(difference)));
    ck_assert_str_eq(difference, "an input of [3], not [2]");
    kelp_model_card_fini(&card);
    kelp_model_card_fini(&again);
    free(text);
}

/* Replace a part of the text, and say what is refused then. */
static void refuses(const char *part, const char *by, kelp_status expected, const char *says)
{
    struct kelp_model_card card, again;
    struct kelp_error error = {.text = ""};
    char *text = NULL, changed[4096];
    fill(&card);
    ck_assert_int_eq(kelp_model_card_print(&card, &text, &error), KELP_OK);
    const char *at = strstr(text, part);
    ck_assert_msg(at, "%s is not in %s", part, text);
    (void)snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text, by,
                   at + strlen(part));
    ck_assert_int_eq(kelp_model_card_parse(changed, strlen(changed), &again, &error), expected);
    ck_assert_msg(strstr(error.text, says), "'%s' is not in '%s'", says, error.text);
    kelp_model_card_fini(&card);
    free(text);
}

KELP_TEST(refuses_what_does_not_hold)
{
    refuses("\"format\": 1", "\"format\": 2", KELP_ERR_UNSUPPORTED, "another version");
    refuses("\"table\"", "\"tables\"", KELP_ERR_FORMAT, "kind");
    refuses("\"factor\":1,", "\"factor\":0,", KELP_ERR_FORMAT, "not above 0");
    refuses("\"shift\":0,", "\"shift\":1e999,", KELP_ERR_FORMAT, "shift");
    refuses("\"size\":5", "\"size\":2", KELP_ERR_FORMAT, "less than there are words");
    refuses("{\"hex\":\"ff\"}", "\"\"", KELP_ERR_FORMAT, "twice");
    refuses("{\"hex\":\"ff\"}", "{\"hex\":\"00\"}", KELP_ERR_FORMAT, "not a text");
    refuses("\"table\"", "\"panel\"", KELP_ERR_FORMAT, "windows");
    refuses("\"table\"", "\"idx\"", KELP_ERR_FORMAT, "image");
    refuses("\"classes\": [", "\"classes\": [\"a third\",", KELP_ERR_FORMAT, "classes");
    refuses("\"classes\": [", "\"classes\": [\"tea \\\"black\\\"\",", KELP_ERR_FORMAT, "twice");
    refuses("\"classes\": [", "\"classes\": [7,", KELP_ERR_FORMAT, "classes: ");
    refuses("\"inputs\":[{\"shape\"", "\"input\":[{\"shape\"", KELP_ERR_FORMAT, "sample");
}
