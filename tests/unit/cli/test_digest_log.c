/* digests.jsonl read back, and where two of them first differ. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/replay/digest_log.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define C "cccccccccccccccccccccccccccccccc"

#define LINE(version, step, digest)                                                                \
    "{\"version\":" #version ",\"step\":" #step ",\"epoch\":1,\"digest\":\"" digest "\"}\n"

static struct kelp_test_folder folder;

static void setup(void)
{
    kelp_test_folder_init(&folder);
}

static void teardown(void)
{
    kelp_test_folder_fini(&folder);
}

static kelp_status read_text(const char *text, struct kelp_digest_log *ret_log,
                             struct kelp_error *reterr)
{
    (void)kelp_test_write(folder.path, "digests.jsonl", text);
    return kelp_digest_log_read(folder.path, ret_log, reterr);
}

static void read_good(const char *text, struct kelp_digest_log *ret_log)
{
    struct kelp_error error = {.status = KELP_OK};

    ck_assert_msg(read_text(text, ret_log, &error) == KELP_OK, "%s", error.text);
}

KELP_CASE("trail", .setup = setup, .teardown = teardown)

/* In the order of versions, each once; a last line that was cut off is left out. */
KELP_TEST(lines_in_order)
{
    struct kelp_digest_log log;

    read_good(LINE(12, 10, B) LINE(5, 5, A) LINE(12, 10, B) LINE(14, 10, B) "{\"version\":20,\"st",
              &log);
    ck_assert_uint_eq(log.count, 3);
    ck_assert_uint_eq(log.lines[0].version, 5);
    ck_assert_uint_eq(log.lines[2].version, 14);
    ck_assert_str_eq(log.lines[1].digest, B);
    kelp_digest_log_fini(&log);
    read_good("", &log);
    ck_assert_uint_eq(log.count, 0);
    kelp_digest_log_fini(&log);
}

/* What is no log is refused, naming file and line or version. */
KELP_TEST(damaged)
{
    static const struct {
        const char *text;
        const char *says;
    } cases[] = {
        {LINE(5, 5, A) "nonsense\n", "line 2"},
        {LINE(5, 5, A) LINE(5, 5, B), "version 5 is there twice"},
        {LINE(5, 5, A) LINE(5, 6, A), "version 5 is there twice"},
        {LINE(5, 5, A) LINE(6, 4, A), "version 6 has a smaller step"},
        {"{\"version\":-1,\"step\":0,\"epoch\":0,\"digest\":\"\"}\n", "line 1: version"},
        {"{\"version\":1,\"step\":0,\"epoch\":0,\"digest\":\"" A "a\"}\n", "line 1: digest"},
    };

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        struct kelp_digest_log log;
        struct kelp_error error = {.status = KELP_OK};
        ck_assert_int_eq(read_text(cases[i].text, &log, &error), KELP_ERR_CORRUPT);
        ck_assert_msg(strstr(error.text, "digests.jsonl") && strstr(error.text, cases[i].says),
                      "case %zu: %s", i, error.text);
    }
}

KELP_TEST(missing)
{
    struct kelp_digest_log log;
    struct kelp_error error = {.status = KELP_OK};

    ck_assert_int_eq(kelp_digest_log_read(folder.path, &log, &error), KELP_ERR_NOT_FOUND);
}

/* By step; by version too where a step has several lines. */
KELP_TEST(find)
{
    struct kelp_digest_log log;

    read_good(LINE(5, 5, A) LINE(10, 9, B) LINE(12, 9, B) LINE(20, 17, C), &log);
    ck_assert_uint_eq(kelp_digest_log_find(&log, 9, 12)->version, 12);
    ck_assert_uint_eq(kelp_digest_log_find(&log, 9, 11)->version, 10);
    ck_assert_uint_eq(kelp_digest_log_find(&log, 17, 20)->version, 20);
    ck_assert_ptr_null(kelp_digest_log_find(&log, 6, 6));
    ck_assert_ptr_null(kelp_digest_log_find(&log, 18, 20));
    kelp_digest_log_fini(&log);
}

static void compare(const char *a_text, const char *b_text,
                    struct kelp_digest_log_comparison *ret_comparison, struct kelp_digest_log *a,
                    struct kelp_digest_log *b)
{
    read_good(a_text, a);
    read_good(b_text, b);
    kelp_digest_log_compare(a, b, ret_comparison);
}

/* Only steps that both have count; the versions of runs that evaluate differently differ. */
KELP_TEST(first_difference)
{
    struct kelp_digest_log_comparison comparison;
    struct kelp_digest_log a;
    struct kelp_digest_log b;

    compare(LINE(5, 5, A) LINE(10, 10, B) LINE(15, 15, C),
            LINE(4, 4, B) LINE(6, 5, A) LINE(12, 10, C) LINE(17, 15, B), &comparison, &a, &b);
    ck_assert_uint_eq(comparison.common, 2);
    ck_assert(comparison.any_equal);
    ck_assert_uint_eq(comparison.equal_step, 5);
    ck_assert_uint_eq(comparison.a->step, 10);
    ck_assert_uint_eq(comparison.b->version, 12);
    kelp_digest_log_fini(&a);
    kelp_digest_log_fini(&b);

    compare(LINE(5, 5, A), LINE(5, 5, A) LINE(10, 10, B), &comparison, &a, &b);
    ck_assert_ptr_null(comparison.a);
    ck_assert_uint_eq(comparison.common, 1);
    kelp_digest_log_fini(&a);
    kelp_digest_log_fini(&b);

    compare(LINE(5, 5, A), LINE(6, 6, A), &comparison, &a, &b);
    ck_assert_ptr_null(comparison.a);
    ck_assert_uint_eq(comparison.common, 0);
    kelp_digest_log_fini(&a);
    kelp_digest_log_fini(&b);
}
