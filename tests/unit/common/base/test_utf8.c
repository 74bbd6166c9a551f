/* Characters of UTF-8, and the columns that they take in a table. */
#include <stdio.h>
#include <string.h>

#include "common/base/status.h"
#include "common/base/utf8.h"
#include "tests/lib/suite.h"

/* Letters, wide characters, marks that stand on the letter before, and bytes that are none. */
KELP_TEST(columns)
{
    static const struct {
        const char *text;
        size_t columns;
    } known[] = {
        {"", 0},        {"abc", 3},        {"\u00b0C", 2},    {"\u00fcber", 4}, {"\u6771\u4eac", 4},
        {"e\u0301", 1}, {"\uff76", 1},     {"\U0001f600", 2}, {"\xff\xfe", 2},  {"a\xe6\x9d", 3},
        {"\u20ac", 1},  {"\U00020000", 2}, {"\uac00", 2},     {"\u200b", 0},    {"\u0416", 1}};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(known); i++) {
        ck_assert_msg(kelp_utf8_columns(known[i].text) == known[i].columns, "%s: %zu",
                      known[i].text, kelp_utf8_columns(known[i].text));
    }
}

/* printf counts bytes: what it prints has the columns all the same. */
KELP_TEST(fields)
{
    static const char *const texts[] = {"", "x", "\u00e5\u00e4\u00f6", "\u6771\u4eac", "e\u0301"};
    char line[64];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(texts); i++) {
        (void)snprintf(line, sizeof(line), "%-*s", kelp_utf8_field(texts[i], 8), texts[i]);
        ck_assert_uint_eq(kelp_utf8_columns(line), 8);
        (void)snprintf(line, sizeof(line), "%*s", kelp_utf8_field(texts[i], 8), texts[i]);
        ck_assert_uint_eq(kelp_utf8_columns(line), 8);
        ck_assert_int_eq(strcmp(line + strlen(line) - strlen(texts[i]), texts[i]), 0);
        (void)snprintf(line, sizeof(line), "%*s", kelp_utf8_field(texts[i], 0), texts[i]);
        ck_assert_str_eq(line, texts[i]);
    }
}
