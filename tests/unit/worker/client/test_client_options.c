/* The command line of a worker of one's own: what is the library's is taken out of it. */
#include <stdlib.h>
#include <string.h>

#include "kelp/worker.h"
#include "tests/lib/suite.h"
#include "worker/client/client_options.h"

#define WORDS_MAX 24

static char *words[WORDS_MAX + 1];
static int count;

static void type(const char *const *typed)
{
    for (count = 0; typed[count]; count++) {
        words[count] = (char *)(uintptr_t)typed[count];
    }
    words[count] = NULL;
}

/* Ours go, in both forms and wherever they stand; the others stay in order, and whatever follows
 * "--". */
KELP_TEST(taken_out)
{
    struct kelp_worker_options options = {.size = sizeof(options)};
    struct kelp_error error = {.text = ""};

    type((const char *const[]){"prog", "--epochs", "3", "--etcd", "http://127.0.0.1:1", "in.bin",
                               "--job=a", "--id", "b", "--jobs", "--log-level=warn", "--grace",
                               "2s", "--", "--id", "c", NULL});
    ck_assert_msg(kelp_client_options_read(&options, &count, words, &error) == KELP_OK, "%s",
                  error.text);
    ck_assert_str_eq(options.etcd, "http://127.0.0.1:1");
    ck_assert_str_eq(options.job, "a");
    ck_assert_str_eq(options.id, "b");
    ck_assert_str_eq(options.log_level, "warn");
    ck_assert_uint_eq(options.grace_ms, 2000);
    ck_assert_ptr_null(options.certs);
    static const char *const left[] = {"prog",   "--epochs", "3",    "in.bin",
                                       "--jobs", "--",       "--id", "c"};
    ck_assert_int_eq(count, KELP_ARRAY_COUNT(left));
    for (size_t i = 0; i < KELP_ARRAY_COUNT(left); i++) {
        ck_assert_str_eq(words[i], left[i]);
    }
    ck_assert_ptr_null(words[count]);
}

/* What is not given comes from the environment. */
KELP_TEST(from_the_environment)
{
    struct kelp_worker_options options = {.size = sizeof(options)};

    ck_assert_int_eq(setenv("KELP_ETCD", "http://127.0.0.1:2", 1), 0);
    ck_assert_int_eq(setenv("KELP_ID", "x", 1), 0);
    type((const char *const[]){"prog", "--job", "a", "--id", "b", NULL});
    ck_assert_int_eq(kelp_client_options_read(&options, &count, words, NULL), KELP_OK);
    ck_assert_str_eq(options.etcd, "http://127.0.0.1:2");
    ck_assert_str_eq(options.id, "b");
    ck_assert_int_eq(count, 1);
    ck_assert_int_eq(unsetenv("KELP_ETCD") | unsetenv("KELP_ID"), 0);
}

/* A mistake is one line, and leaves the command line as it was. */
KELP_TEST(mistakes)
{
    static const struct {
        const char *typed[8];
        const char *words;
    } cases[] = {
        {{"prog", "--etcd", "u", "--job", "a", NULL}, "--id NAME is missing"},
        {{"prog", "--etcd", "u", "--id", "a", "--job", NULL}, "--job"},
        {{"prog", "--log-level=loud", "--etcd=u", "--id=a", "--job=a", NULL}, "loud"},
        {{"prog", "--grace=soon", "--etcd=u", "--id=a", "--job=a", NULL}, "soon"},
        {{"prog", "--shm-folder=near", "--etcd=u", "--id=a", "--job=a", NULL}, "absolute path"},
    };
    struct kelp_worker_options options = {.size = sizeof(options)};
    struct kelp_error error;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        type(cases[i].typed);
        const int before = count;
        ck_assert_int_eq(kelp_client_options_read(&options, &count, words, &error),
                         KELP_ERR_INVALID);
        ck_assert_msg(strstr(error.text, cases[i].words), "%s", error.text);
        ck_assert_int_eq(count, before);
        ck_assert_str_eq(words[1], cases[i].typed[1]);
    }
}
