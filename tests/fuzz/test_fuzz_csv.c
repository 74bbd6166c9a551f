/*
 * The CSV reader on damaged tables: whatever the bytes, it gives finite numbers in the promised
 * shape or one line of error, and touches nothing outside the text (the sanitizers watch). Each
 * input follows from its number, which a failure names.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "tests/lib/suite.h"
#include "worker/data/dataset_series.h"

#define INPUT_COUNT 100000
#define INPUT_MAX   600

static const char *const corpus[] = {
    "date,HUFL,OT\n2016-07-01 00:00:00,5.827000141143799,30.5310001373291\n"
    "2016-07-01 01:00:00,5.692999839782715,27.78700065612793\n",
    "\xef\xbb\xbf\"date\",\"a\"\"b\",OT\r\n\"x,y\",1e-3,-4.5\r\n\"\",+7,.5E2\r\n\r\n",
    "OT\n1\n2\n3\n4",
    "a,OT,b,c,d,e,f,g\n,1,,,,,,\n,179769313486231570000e288,,,,,,\n,4.9e-324,,,,,,\n",
    "date,OT\nd,nan\n",
};
/* What tables are made of, so that changes hit what the reader looks at. */
static const char alphabet[] = "0123456789+-.eE,,,\"\"\n\n\r \t;xnaif\xef\xbb\xbf\xff";

struct dice {
    uint64_t input;
    uint64_t next;
};

static size_t roll(struct dice *dice, size_t bound)
{
    uint32_t words[4];
    kelp_philox(dice->input, KELP_PHILOX_TEST, 1, dice->next++, words);
    return (size_t)kelp_philox_below(words[0], words[1], bound);
}

static char random_byte(struct dice *dice)
{
    size_t at = roll(dice, sizeof(alphabet) + 8);
    return at < sizeof(alphabet) ? alphabet[at] : (char)roll(dice, 256); /* with the NUL */
}

/* One change: overwrite, insert, delete, cut off, or repeat a piece. */
static size_t change(struct dice *dice, char *text, size_t bytes)
{
    size_t at = roll(dice, bytes + 1);
    size_t piece = 1 + roll(dice, 12);
    switch (roll(dice, 5)) {
    case 0:
        if (at < bytes) {
            text[at] = random_byte(dice);
        }
        return bytes;
    case 1:
        if (bytes < INPUT_MAX) {
            memmove(text + at + 1, text + at, bytes - at);
            text[at] = random_byte(dice);
            bytes++;
        }
        return bytes;
    case 2:
        piece = piece < bytes - at ? piece : bytes - at;
        memmove(text + at, text + at + piece, bytes - at - piece);
        return bytes - piece;
    case 3:
        return roll(dice, 8) == 0 ? at : bytes;
    default:
        piece = piece < bytes - at ? piece : bytes - at;
        if (bytes + piece <= INPUT_MAX) {
            memmove(text + at + piece, text + at, bytes - at);
            bytes += piece;
        }
        return bytes;
    }
}

static void check_series(const struct kelp_series *series, const char *target, uint64_t input)
{
    ck_assert_msg(series->column_count > 0, "input %llu", (unsigned long long)input);
    ck_assert_msg(target == NULL || series->column_count == 1, "input %llu",
                  (unsigned long long)input);
    for (uint64_t i = 0; i < series->row_count * series->column_count; i++) {
        ck_assert_msg(isfinite(series->values[i]), "input %llu", (unsigned long long)input);
    }
    for (uint32_t i = 0; i < series->column_count; i++) {
        ck_assert_uint_le(strlen(series->column_names[i]), KELP_CSV_COLUMN_NAME_MAX);
    }
}

static bool parse_input(uint64_t input)
{
    struct dice dice = {.input = input};
    const char *seed = corpus[input % KELP_ARRAY_COUNT(corpus)];
    /* Exactly as long as the text: a byte read past its end is found. */
    char scratch[INPUT_MAX + 1];
    size_t bytes = strlen(seed);
    memcpy(scratch, seed, bytes);
    for (size_t changes = roll(&dice, 6); changes > 0; changes--) {
        bytes = change(&dice, scratch, bytes);
    }
    char *text = malloc(bytes > 0 ? bytes : 1);
    ck_assert_ptr_nonnull(text);
    memcpy(text, scratch, bytes);
    const char *target = input % 3 == 0 ? NULL : "OT";
    struct kelp_series series = {0};
    struct kelp_error error = {0};
    kelp_status status = kelp_series_parse("fuzz.csv", text, bytes, target, &series, &error);
    free(text);
    if (status == KELP_OK) {
        check_series(&series, target, input);
        kelp_series_fini(&series);
        return true;
    }
    ck_assert_msg(strncmp(error.text, "fuzz.csv:", 9) == 0 && strchr(error.text, '\n') == NULL,
                  "input %llu: %s", (unsigned long long)input, error.text);
    ck_assert_ptr_null(series.values);
    return false;
}

KELP_CASE("csv", .timeout_s = 120)

KELP_TEST(damaged_tables)
{
    uint64_t accepted = 0;
    for (uint64_t input = 0; input < INPUT_COUNT; input++) {
        accepted += parse_input(input) ? 1 : 0;
    }
    /* Neither a reader that refuses all nor one that takes all would pass. */
    ck_assert_uint_gt(accepted, INPUT_COUNT / 20);
    ck_assert_uint_lt(accepted, INPUT_COUNT * 19 / 20);
}
