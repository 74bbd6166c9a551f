/*
 * Model cards, damaged: each input is refused, or is a card whose lists hold together and whose
 * text is a fixed point.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/fuzz.h"
#include "tests/lib/suite.h"
#include "worker/data/model_card.h"

#define INPUTS 30000

static const struct kelp_fuzz_seed seeds[] = {
    KELP_FUZZ_TEXT(
        "{\"format\":1,\"kind\":\"table\",\"fingerprint\":\"0123456789abcdef\",\"inputs\":["
        "{\"name\":\"distance\",\"shift\":4.9702615537499915,\"factor\":2.9,\"fill\":4.97},"
        "{\"name\":\"hour\",\"shift\":0,\"factor\":1,\"fill\":null}],\"targets\":["
        "{\"name\":{\"hex\":\"66e972\"},\"shift\":-1e-9,\"factor\":8.9e300,\"fill\":0.1}],"
        "\"categories\":[{\"name\":\"zone\",\"size\":6,\"words\":[\"JFK\",\"\",{\"hex\":\"ff\"}]}],"
        "\"sample\":{\"inputs\":[{\"shape\":[1],\"categories\":[6]},{\"shape\":[2]}],"
        "\"target\":{\"shape\":[]}},\"quantiles\":[0.1,0.5,0.9],\"job\":\"name: a\\n\"}"),
    KELP_FUZZ_TEXT(
        "{\"format\":1,\"kind\":\"panel\",\"fingerprint\":\"0000000000000000\",\"inputs\":[],"
        "\"known\":[{\"name\":\"hour\",\"shift\":0,\"factor\":1,\"fill\":11.5}],"
        "\"targets\":[{\"name\":\"rides\",\"shift\":0,\"factor\":1,\"fill\":null}],"
        "\"series\":[{\"name\":\"east\",\"targets\":[{\"shift\":1,\"factor\":2,\"fill\":3}]},"
        "{\"name\":\"west\",\"targets\":[{\"shift\":4,\"factor\":5,\"fill\":6}]}],"
        "\"windows\":{\"seq_len\":12,\"pred_len\":4},\"sample\":{\"inputs\":[{\"shape\":[],"
        "\"categories\":[2]}],\"target\":{\"shape\":[4]}},\"job\":\"\"}"),
    KELP_FUZZ_TEXT("{\"format\":1,\"kind\":\"npy\",\"fingerprint\":\"00000000000000ff\","
                   "\"inputs\":[{\"name\":\"\",\"shift\":1,\"scale\":0.5,\"fill\":null}],"
                   "\"sample\":{\"inputs\":[{\"shape\":[1]}],\"target\":{\"shape\":[],"
                   "\"categories\":[10]}},\"job\":\"x\"}"),
};
static const char *const words[] = {
    "\"inputs\":[",
    "\"series\":[",
    "\"words\":[",
    "\"size\":0",
    "\"factor\":0",
    "\"factor\":-1",
    "{\"hex\":\"00\"}",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "true",
    "-1",
    "1e400",
    "\\u0000",
    "9007199254740993",
    "[[[[[[[[[[[[",
    "\"JFK\",",
    "\"west\"",
    "\"panel\"",
    "16777217",
};

static const char *check_number(const struct kelp_card_number *number)
{
    return isfinite(number->shift) && isfinite(number->factor) && number->factor > 0.0 &&
                   !isinf(number->fill)
               ? NULL
               : "a number that is not finite";
}

static const char *check_columns(const struct kelp_card_columns *columns)
{
    const char *wrong = NULL;
    for (uint32_t i = 0; i < columns->count && !wrong; i++) {
        wrong = check_number(&columns->items[i].number);
    }
    return wrong;
}

static const char *check_card(const struct kelp_model_card *card)
{
    const char *wrong = check_columns(&card->inputs);
    wrong = wrong ? wrong : check_columns(&card->known);
    wrong = wrong ? wrong : check_columns(&card->targets);
    for (uint32_t i = 0; i < card->category_count && !wrong; i++) {
        bool fits = card->categories[i].words.count <= card->categories[i].size;
        wrong = fits ? NULL : "more words than categories";
    }
    size_t count = (size_t)card->series.count * card->targets.count;
    for (size_t i = 0; i < count && !wrong; i++) {
        wrong = check_number(&card->series_targets[i]);
    }
    if (!wrong &&
        (card->shape.input_count == 0 || card->shape.input_count > KELP_SAMPLE_INPUTS_MAX)) {
        wrong = "a number of inputs out of range";
    }
    return wrong;
}

/* Its text gives the same text. */
static const char *check_text(const struct kelp_model_card *card)
{
    struct kelp_model_card again;
    struct kelp_error error;
    char *text = NULL, *second = NULL;
    if (kelp_model_card_print(card, &text, &error) != KELP_OK) {
        return "cannot be printed";
    }
    const char *wrong = "its own text is refused";
    if (kelp_model_card_parse(text, strlen(text), &again, &error) == KELP_OK) {
        wrong = kelp_model_card_print(&again, &second, &error) != KELP_OK
                    ? "cannot be printed twice"
                : strcmp(text, second) != 0 ? "another text"
                                            : NULL;
        kelp_model_card_fini(&again);
    }
    free(text);
    free(second);
    return wrong;
}

static const char *try_card(const uint8_t *bytes, size_t count)
{
    struct kelp_model_card card;
    struct kelp_error error = {.text = ""};
    if (kelp_model_card_parse((const char *)bytes, count, &card, &error) != KELP_OK) {
        return error.text[0] != '\0' ? NULL : "refused without a word";
    }
    const char *wrong = check_card(&card);
    wrong = wrong ? wrong : check_text(&card);
    kelp_model_card_fini(&card);
    return wrong;
}

KELP_CASE("model card", .timeout_s = 120)
KELP_FUZZ_TEST(damaged_cards, INPUTS, seeds, words, try_card)
