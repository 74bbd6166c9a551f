/* Texts that are printed into memory, and lists of names in messages. */
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/text.h"
#include "tests/lib/suite.h"

static void print_word(const void *what, FILE *out)
{
    (void)fputs(what, out);
}

/* What is printed comes back whole, up to the limit, and is refused beyond it. */
KELP_TEST(print_within_a_limit)
{
    struct kelp_error error = {.text = ""};
    char *text = NULL;
    ck_assert_int_eq(kelp_text_print(print_word, "kelp", 4, &text, &error), KELP_OK);
    ck_assert_str_eq(text, "kelp");
    free(text);
    text = NULL;
    ck_assert_int_eq(kelp_text_print(print_word, "kelps", 4, &text, &error), KELP_ERR_LIMIT);
    ck_assert_str_eq(error.text, "takes 5 bytes, over 4");
    ck_assert_ptr_null(text);
}

/* A list names what there is room for; the mark of more comes once, and nothing behind it. */
KELP_TEST(list_of_names)
{
    char list[16] = "";
    kelp_text_list_add(list, sizeof(list), "ab");
    kelp_text_list_add(list, sizeof(list), "cd");
    ck_assert_str_eq(list, "ab, cd");
    kelp_text_list_add(list, sizeof(list), "a long name");
    kelp_text_list_add(list, sizeof(list), "e");
    ck_assert_str_eq(list, "ab, cd, …");

    char one[16] = "";
    kelp_text_list_add(one, sizeof(one), "longer than the list is");
    ck_assert_str_eq(one, "…");
}

static kelp_status add_up(const cJSON *json, void *into, struct kelp_error *reterr)
{
    uint64_t *sum = into;
    uint64_t value = 0;
    kelp_status status = kelp_json_element_u64(json, 100, &value, reterr);
    *sum += value;
    return status;
}

static kelp_status add_all(const cJSON *json, void *into, struct kelp_error *reterr)
{
    return kelp_json_each(json, add_up, into, reterr);
}

/* Elements are read in their order until one fails; what is no JSON is not read at all. */
KELP_TEST(json_each)
{
    static const char good[] = "[1, 20, 3]", bad[] = "[1, 200, 3]", none[] = "[1, ";
    struct kelp_error error = {.text = ""};
    uint64_t sum = 0;
    ck_assert_int_eq(kelp_json_read(good, strlen(good), add_all, &sum, &error), KELP_OK);
    ck_assert_uint_eq(sum, 24);
    sum = 0;
    ck_assert_int_eq(kelp_json_read(bad, strlen(bad), add_all, &sum, &error), KELP_ERR_FORMAT);
    ck_assert_str_eq(error.text, "not an integer from 0 to 100");
    ck_assert_uint_eq(sum, 1);
    sum = 0;
    ck_assert_int_eq(kelp_json_read(none, strlen(none), add_all, &sum, &error), KELP_ERR_FORMAT);
    ck_assert_uint_eq(sum, 0);
    ck_assert_int_eq(kelp_json_each(NULL, add_up, &sum, &error), KELP_OK);
}
