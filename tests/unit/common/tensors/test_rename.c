/* Rules that give the tensors of a file other names. */
#include <string.h>

#include "common/tensors/rename.h"
#include "tests/lib/suite.h"

struct renamed {
    const char *rules, *name, *other;
    size_t rule;
};

/* Beginnings and patterns; the first rule that fits counts, and letter case does. */
KELP_TEST(names)
{
    static const struct renamed cases[] = {
        {"", "a.weight", "a.weight", KELP_RENAME_NONE},
        {"a.=b.", "a.weight", "b.weight", 0},
        {"a.=", "a.weight", "weight", 0},
        {"A.=b.", "a.weight", "a.weight", KELP_RENAME_NONE},
        {"b=c", "a.b", "a.b", KELP_RENAME_NONE},
        {"a.weight=fc.weight", "a.weight", "fc.weight", 0},
        {"*=net.*", "a.weight", "net.a.weight", 0},
        {"*.gamma=*.weight\n*.beta=*.bias", "norm.1.beta", "norm.1.bias", 1},
        {"*.gamma=*.weight", "norm.gamma.x", "norm.gamma.x", KELP_RENAME_NONE},
        {"layers.*.fc=fc.*", "layers.12.fc", "fc.12", 0},
        {"ab*bc=x*", "abc", "abc", KELP_RENAME_NONE}, /* both ends do not overlap */
        {"a.=x.\na.b.=y.", "a.b.c", "x.b.c", 0},
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        char text[64];
        struct kelp_error error = {.text = ""};
        ck_assert_msg(kelp_rename_check(cases[i].rules, &error) == KELP_OK, "%s", error.text);
        ck_assert_uint_eq(kelp_rename(cases[i].rules, cases[i].name, text, sizeof(text)),
                          cases[i].rule);
        ck_assert_str_eq(text, cases[i].other);
    }
}

/* A name that is too long is cut, and never more is written than there is room for. */
KELP_TEST(long_names)
{
    char text[8] = "1234567";
    ck_assert_uint_eq(kelp_rename("a=bcdefgh", "axyz", text, 6), 0);
    ck_assert_str_eq(text, "bcdef");
    ck_assert_int_eq(text[6], '7');
}

/* What is no rule is refused and named. */
KELP_TEST(refusals)
{
    static const char *const bad[] = {"a",    "=b",     "a=b=c",  "a*=b",
                                      "a=b*", "a**=b*", "a*=b**", "a=b\nc"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        struct kelp_error error = {.text = ""};
        ck_assert_msg(kelp_rename_check(bad[i], &error) == KELP_ERR_INVALID, "%s", bad[i]);
        ck_assert_ptr_nonnull(strstr(error.text, "is not OLD=NEW"));
    }
}
