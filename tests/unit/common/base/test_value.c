#include <stdlib.h>
#include <string.h>

#include "common/base/value.h"
#include "tests/lib/suite.h"

static struct kelp_error error;

/* Whole numbers: the whole text, within the range, without overflow. */
KELP_TEST(test_integers)
{
    static const char *const wrong[] = {"",
                                        " 1",
                                        "1 ",
                                        "+1",
                                        "-1",
                                        "1.0",
                                        "1e3",
                                        "0x10",
                                        "65",
                                        "0",
                                        "1k",
                                        "one",
                                        "18446744073709551616"};
    uint64_t value = 7;
    int64_t number = 7;

    ck_assert_int_eq(kelp_value_u64("64", 1, 64, &value, &error), KELP_OK);
    ck_assert_uint_eq(value, 64);
    ck_assert_int_eq(kelp_value_u64("18446744073709551615", 0, UINT64_MAX, &value, &error),
                     KELP_OK);
    ck_assert_uint_eq(value, UINT64_MAX);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(wrong); i++) {
        ck_assert_msg(kelp_value_u64(wrong[i], 1, 64, &value, &error) == KELP_ERR_INVALID, "%s",
                      wrong[i]);
    }
    ck_assert_str_eq(error.text, "'18446744073709551616' is not an integer from 1 to 64");
    ck_assert_uint_eq(value, UINT64_MAX);
    ck_assert_int_eq(kelp_value_i64("-1", -1, 5, &number, &error), KELP_OK);
    ck_assert_int_eq(number, -1);
    ck_assert_int_eq(kelp_value_i64("-2", -1, 5, &number, &error), KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_value_i64("--1", -1, 5, &number, &error), KELP_ERR_INVALID);
    ck_assert_int_eq(kelp_value_i64("-", -1, 5, &number, &error), KELP_ERR_INVALID);
}

KELP_TEST(test_doubles)
{
    static const char *const wrong[] = {"",      "nan", "inf", "0x1p3", "1e999",
                                        "1.2.3", "1 ",  "-1",  "2.1",   "1,5"};
    double value = 0;

    ck_assert_int_eq(kelp_value_double("5e-3", 0, 2, &value, &error), KELP_OK);
    ck_assert_double_eq(value, 0.005);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(wrong); i++) {
        ck_assert_msg(kelp_value_double(wrong[i], 0, 2, &value, &error) == KELP_ERR_INVALID, "%s",
                      wrong[i]);
    }
    ck_assert_str_eq(error.text, "'1,5' is not a number from 0 to 2; did you mean 1.5?");
}

/* Sizes and durations need their unit. */
KELP_TEST(test_units)
{
    static const char *const wrong[] = {"4",   "MiB",    "4mb",         "4 MiB",
                                        "4MB", "1.5MiB", "99999999GiB", "17179869184GiB"};
    uint64_t value = 0;

    ck_assert_int_eq(kelp_value_size("4MiB", 1, 1 << 30, &value, &error), KELP_OK);
    ck_assert_uint_eq(value, 4 << 20);
    ck_assert_int_eq(kelp_value_size("100B", 1, 1 << 30, &value, &error), KELP_OK);
    ck_assert_uint_eq(value, 100);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(wrong); i++) {
        ck_assert_msg(kelp_value_size(wrong[i], 1, 1 << 30, &value, &error) == KELP_ERR_INVALID,
                      "%s", wrong[i]);
    }
    ck_assert_ptr_nonnull(strstr(error.text, "a size from 1B to 1GiB"));
    ck_assert_int_eq(kelp_value_duration("2s", 1, 60000, &value, &error), KELP_OK);
    ck_assert_uint_eq(value, 2000);
    ck_assert_int_eq(kelp_value_duration("1m", 1, 60000, &value, &error), KELP_OK);
    ck_assert_int_eq(kelp_value_duration("250", 1, 60000, &value, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "a duration from 1ms to 1m"));
    ck_assert_int_eq(kelp_value_duration("61s", 1, 60000, &value, &error), KELP_ERR_INVALID);
}

KELP_TEST(test_ranges)
{
    static const char *const wrong[] = {"", ":", "2:", ":2", "5:2", "0:2", "2:9", "1:2:3", "2-3"};
    struct kelp_range range;

    ck_assert_int_eq(kelp_value_range("2:8", 1, 8, &range, &error), KELP_OK);
    ck_assert_uint_eq(range.min, 2);
    ck_assert_uint_eq(range.max, 8);
    ck_assert_int_eq(kelp_value_range("3", 1, 8, &range, &error), KELP_OK);
    ck_assert_uint_eq(range.min, 3);
    ck_assert_uint_eq(range.max, 3);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(wrong); i++) {
        ck_assert_msg(kelp_value_range(wrong[i], 1, 8, &range, &error) == KELP_ERR_INVALID, "%s",
                      wrong[i]);
    }
}

KELP_TEST(test_choices)
{
    static const char *const choices[] = {"sgd", "adam", NULL};
    uint32_t index = 9;
    bool flag;

    ck_assert_int_eq(kelp_value_choice("adam", choices, &index, &error), KELP_OK);
    ck_assert_uint_eq(index, 1);
    ck_assert_int_eq(kelp_value_choice("Adam", choices, &index, &error), KELP_ERR_INVALID);
    ck_assert_str_eq(error.text, "'Adam' is not one of sgd, adam; did you mean adam?");
    ck_assert_int_eq(kelp_value_bool("true", &flag, &error), KELP_OK);
    ck_assert(flag);
    ck_assert_int_eq(kelp_value_bool("yes", &flag, &error), KELP_ERR_INVALID);
}

/* Text is UTF-8 that a YAML scalar can hold on one line. */
KELP_TEST(test_text)
{
    static const char *const wrong[] = {"a\nb",
                                        "\t",
                                        "\x7f",
                                        "\xff",
                                        "\xc0\xaf",
                                        "\xe2\x82",
                                        "\xed\xa0\x80",
                                        "\xc2\x85",
                                        "\xe2\x80\xa8",
                                        "\xef\xbb\xbf",
                                        "\x80",
                                        "\xf5\x80\x80\x80",
                                        "\xf8\x88\x80\x80\x80"};

    ck_assert_int_eq(kelp_value_text("Öl temp \xf0\x9f\x8c\xb1", 64, &error), KELP_OK);
    ck_assert_int_eq(kelp_value_text("", 64, &error), KELP_OK);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(wrong); i++) {
        ck_assert_msg(kelp_value_text(wrong[i], 64, &error) == KELP_ERR_INVALID, "case %zu", i);
    }
    ck_assert_int_eq(kelp_value_text("12345", 4, &error), KELP_ERR_INVALID);
}

/* What is printed reads back as the same value. */
KELP_TEST(test_printing)
{
    static const double numbers[] = {0.005, 1.0 / 3, 1e-8, 0, 1e300, 0.1 + 0.2, -2.5};
    char text[KELP_VALUE_TEXT_MAX];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(numbers); i++) {
        kelp_value_print_double(numbers[i], text);
        ck_assert_double_eq(strtod(text, NULL), numbers[i]);
    }
    kelp_value_print_double(0.005, text);
    ck_assert_str_eq(text, "0.005");
    kelp_value_print_size(4 << 20, text);
    ck_assert_str_eq(text, "4MiB");
    kelp_value_print_size(1025, text);
    ck_assert_str_eq(text, "1025B");
    kelp_value_print_size(0, text);
    ck_assert_str_eq(text, "0B");
    kelp_value_print_duration(90000, text);
    ck_assert_str_eq(text, "90s");
    kelp_value_print_duration(0, text);
    ck_assert_str_eq(text, "0ms");
}

KELP_TEST(test_distance)
{
    ck_assert_uint_eq(kelp_value_distance("", ""), 0);
    ck_assert_uint_eq(kelp_value_distance("abc", ""), 3);
    ck_assert_uint_eq(kelp_value_distance("kitten", "sitting"), 3);
    ck_assert_uint_eq(kelp_value_distance("epohcs", "epochs"), 1);
    ck_assert_uint_eq(kelp_value_distance("batchsize", "batch_size"), 1);
    ck_assert(kelp_value_near(1, "lr"));
    ck_assert(!kelp_value_near(2, "lr"));
    ck_assert(kelp_value_near(3, "batch_size"));
}
