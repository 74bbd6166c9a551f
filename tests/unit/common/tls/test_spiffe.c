/* Names in certificates: what is one, and what only looks like one. */
#include <string.h>

#include "common/tls/spiffe.h"
#include "tests/lib/suite.h"

#define NAME63 "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"

/* A name is read and printed as the same text. */
KELP_TEST(there_and_back)
{
    static const char *const names[] = {
        "spiffe://kelp/etth1/worker",
        "spiffe://kelp/etth1/worker/worker-0",
        "spiffe://kelp/a.b_c-D/shard/s",
        "spiffe://kelp/worker/coordinator",
        "spiffe://kelp/etcd",
        "spiffe://kelp/j/etcd/a",
        "spiffe://kelp/" NAME63 "/coordinator/" NAME63,
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        struct kelp_spiffe name;
        char text[KELP_SPIFFE_MAX + 1];
        ck_assert_msg(kelp_spiffe_parse(names[i], strlen(names[i]), &name, NULL) == KELP_OK, "%s",
                      names[i]);
        kelp_spiffe_print(&name, text);
        ck_assert_str_eq(text, names[i]);
    }
}

/* Its parts are told apart, and only as many bytes as said are read. */
KELP_TEST(parts)
{
    struct kelp_spiffe name;
    const char text[] = "spiffe://kelp/etth1/shard/shard-12";

    ck_assert_int_eq(kelp_spiffe_parse(text, strlen(text) - 1, &name, NULL), KELP_OK);
    ck_assert_int_eq(name.role, KELP_ROLE_SHARD);
    ck_assert_str_eq(name.job, "etth1");
    ck_assert_str_eq(name.id, "shard-1");
}

/* Everything else is refused, whatever it resembles. */
KELP_TEST(refusals)
{
    static const char *const names[] = {
        "",
        "spiffe://kelp",
        "spiffe://kelp/",
        "spiffe://kelp/worker",
        "spiffe://kelp/j",
        "spiffe://kelp/j/",
        "spiffe://kelp/j/wrker",
        "spiffe://kelp/j/Worker",
        "spiffe://kelp/j/worker/",
        "spiffe://kelp/j/worker/a/b",
        "spiffe://kelp//worker",
        "spiffe://kelp/./worker",
        "spiffe://kelp/../worker",
        "spiffe://kelp/j/worker/..",
        "spiffe://kelp/j/worker?",
        "spiffe://kelp/j j/worker",
        "spiffe://other/j/worker",
        "SPIFFE://kelp/j/worker",
        "https://kelp/j/worker",
        "spiffe://kelp/" NAME63 "x/worker",
        "spiffe://kelp/j/worker/" NAME63 "x",
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        struct kelp_spiffe name;
        struct kelp_error error;
        ck_assert_msg(kelp_spiffe_parse(names[i], strlen(names[i]), &name, &error) ==
                          KELP_ERR_FORMAT,
                      "%s", names[i]);
        ck_assert_ptr_nonnull(strstr(error.text, "spiffe://kelp/JOB/ROLE[/ID]"));
    }
    struct kelp_spiffe name;
    const char zero[] = "spiffe://kelp/j\0j/worker";
    ck_assert_int_eq(kelp_spiffe_parse(zero, sizeof(zero) - 1, &name, NULL), KELP_ERR_FORMAT);
}

/* A certificate without an id is for every id, one with an id for that alone. */
KELP_TEST(ids)
{
    struct kelp_spiffe name = {.role = KELP_ROLE_WORKER, .job = "j"};

    ck_assert(kelp_spiffe_allows(&name, "worker-0"));
    memcpy(name.id, "worker-0", sizeof("worker-0"));
    ck_assert(kelp_spiffe_allows(&name, "worker-0"));
    ck_assert(!kelp_spiffe_allows(&name, "worker-00"));
    ck_assert(!kelp_spiffe_allows(&name, ""));
}
