#include <stdlib.h>
#include <string.h>

#include "common/base/status.h"
#include "tests/lib/suite.h"

/* Each listed code has a name, a text and a group, is negative, and is known. */
KELP_TEST(test_list)
{
#define CHECK_STATUS(name, value, group, text)                                                     \
    ck_assert_int_lt(KELP_ERR_##name, 0);                                                          \
    ck_assert_str_eq(kelp_status_name(KELP_ERR_##name), #name);                                    \
    ck_assert_str_eq(kelp_status_text(KELP_ERR_##name), text);                                     \
    ck_assert_int_eq(kelp_status_group(KELP_ERR_##name), KELP_GROUP_##group);                      \
    ck_assert(kelp_status_known(KELP_ERR_##name));
    KELP_STATUS_LIST(CHECK_STATUS)
#undef CHECK_STATUS
    ck_assert(kelp_status_known(KELP_OK));
    ck_assert(!kelp_status_known(1));
    ck_assert(!kelp_status_known(-9999));
}

/* An error is one line whatever it repeats, is cut at its buffer, and needs no place to go. */
KELP_TEST(test_fail)
{
    struct kelp_error error;
    char text[1024];

    ck_assert_int_eq(kelp_fail(&error, KELP_ERR_INVALID, "'%s'", "a\nb\x1b\x7f"), KELP_ERR_INVALID);
    ck_assert_str_eq(error.text, "'a b  '");
    ck_assert_int_eq(error.status, KELP_ERR_INVALID);
    kelp_error_prefix(&error, "line\n%d", 3);
    ck_assert_str_eq(error.text, "line 3: 'a b  '");
    (void)kelp_fail(&error, KELP_ERR_INVALID, "%s", "\xc3\xbc F\xb3 \xc2\x9b \xe2\x82");
    ck_assert_str_eq(error.text, "\xc3\xbc F?    ??");
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    (void)kelp_fail(&error, KELP_ERR_IO, "%s", text);
    ck_assert_uint_eq(strlen(error.text), sizeof(error.text) - 1);
    kelp_error_prefix(&error, "%s", text);
    ck_assert_uint_eq(strlen(error.text), sizeof(error.text) - 1);
    ck_assert_int_eq(kelp_fail(NULL, KELP_ERR_IO, "x"), KELP_ERR_IO);
    kelp_error_prefix(NULL, "x");
}
