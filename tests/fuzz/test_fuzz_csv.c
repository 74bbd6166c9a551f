/*
 * The CSV reader on damaged tables: whatever the bytes, it gives finite numbers in the promised
 * shape or one line of error, and touches nothing outside the text (the sanitizers watch). Each
 * input follows from its number, which a failure names.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/fuzz.h"
#include "tests/lib/suite.h"
#include "worker/data/dataset_series.h"

#define INPUTS 100000

static const struct kelp_fuzz_seed seeds[] = {
    KELP_FUZZ_TEXT("date,HUFL,OT\n2016-07-01 00:00:00,5.827000141143799,30.5310001373291\n"
                   "2016-07-01 01:00:00,5.692999839782715,27.78700065612793\n"),
    KELP_FUZZ_TEXT(
        "\xef\xbb\xbf\"date\",\"a\"\"b\",OT\r\n\"x,y\",1e-3,-4.5\r\n\"\",+7,.5E2\r\n\r\n"),
    KELP_FUZZ_TEXT("OT\n1\n2\n3\n4"),
    KELP_FUZZ_TEXT(
        "a,OT,b,c,d,e,f,g\n,1,,,,,,\n,179769313486231570000e288,,,,,,\n,4.9e-324,,,,,,\n"),
    KELP_FUZZ_TEXT("date,OT\nd,nan\n"),
};
/* What tables are made of, so that changes hit what the reader looks at. */
static const char *const words[] = {
    "0",    "9",  "+", "-", ".", "e",   "E",   ",",  ",,",           "\"",   "\"\"",  "\n",
    "\r\n", "\t", " ", ";", "x", "nan", "inf", "OT", "\xef\xbb\xbf", "\xff", "1e308", "e-400"};

static uint64_t accepted;

static const char *check_series(const struct kelp_series *series, const char *target)
{
    if (series->column_count == 0 || (target != NULL && series->column_count != 1)) {
        return "a number of columns that nobody asked for";
    }
    for (uint64_t i = 0; i < series->row_count * series->column_count; i++) {
        if (!isfinite(series->values[i])) {
            return "a value that is not finite";
        }
    }
    for (uint32_t i = 0; i < series->column_count; i++) {
        if (strlen(series->column_names[i]) > KELP_CSV_COLUMN_NAME_MAX) {
            return "a name that is too long";
        }
    }
    return NULL;
}

static const char *parse(const char *text, size_t count, const char *target)
{
    struct kelp_series series = {0};
    struct kelp_error error = {0};
    kelp_status status = kelp_series_parse("fuzz.csv", text, count, target, &series, &error);

    if (status == KELP_OK) {
        const char *wrong = check_series(&series, target);
        kelp_series_fini(&series);
        accepted++;
        return wrong;
    }
    if (series.values != NULL) {
        return "values in spite of an error";
    }
    return strncmp(error.text, "fuzz.csv:", 9) == 0 && strchr(error.text, '\n') == NULL
               ? NULL
               : "no line that names the file";
}

/* All columns, or the one of that name. */
static const char *parse_both(const uint8_t *bytes, size_t count)
{
    const char *wrong = parse((const char *)bytes, count, NULL);
    return wrong != NULL ? wrong : parse((const char *)bytes, count, "OT");
}

KELP_CASE("csv", .timeout_s = 120)

KELP_TEST(damaged_tables)
{
    static const struct kelp_fuzz fuzz = {.name = "tables",
                                          .seeds = seeds,
                                          .seed_count = KELP_ARRAY_COUNT(seeds),
                                          .words = words,
                                          .word_count = KELP_ARRAY_COUNT(words),
                                          .target = parse_both};

    accepted = 0;
    if (kelp_fuzz_run(&fuzz, 0, INPUTS)) {
        /* Neither a reader that refuses all nor one that takes all would pass. */
        ck_assert_uint_gt(accepted, INPUTS / 10);
        ck_assert_uint_lt(accepted, 2 * INPUTS * 19 / 20);
    }
}
