/*
 * The hosts of a job: how its processes are shared out to them, and what etcd has of one.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/host/hosts.h"
#include "tests/lib/suite.h"

static struct kelp_error error;

static void shares(const struct kelp_room *rooms, size_t count, uint32_t wanted,
                   const uint32_t *expected, uint32_t total)
{
    uint32_t got[8];

    ck_assert_uint_eq(kelp_share_out(rooms, count, wanted, got), total);
    for (size_t i = 0; i < count; i++) {
        ck_assert_uint_eq(got[i], expected[i]);
    }
}

/* As evenly as the hosts have room for. */
KELP_TEST(test_share_even)
{
    const struct kelp_room rooms[] = {{0, 4}, {1, 2}, {0, 4}};

    shares(rooms, 3, 0, (const uint32_t[]){0, 1, 0}, 1);
    shares(rooms, 3, 2, (const uint32_t[]){1, 1, 0}, 2);
    shares(rooms, 3, 5, (const uint32_t[]){2, 2, 1}, 5);
    shares(rooms, 3, 8, (const uint32_t[]){3, 2, 3}, 8);
    shares(rooms, 3, 99, (const uint32_t[]){4, 2, 4}, 10);
}

/* What a host runs in any case counts for the others. */
KELP_TEST(test_share_fixed)
{
    const struct kelp_room rooms[] = {{3, 3}, {0, 5}, {0, 0}};

    shares(rooms, 3, 2, (const uint32_t[]){3, 0, 0}, 3);
    shares(rooms, 3, 4, (const uint32_t[]){3, 1, 0}, 4);
    ck_assert_uint_eq(kelp_share_out(NULL, 0, 4, NULL), 0);
}

KELP_TEST(test_entry_returns)
{
    const struct kelp_hosts_entry host = {.host = "node-1",
                                          .shards = {1, 2},
                                          .workers = {0, 8},
                                          .kernel = "8a2c pid:[4026531836]",
                                          .pid = 77,
                                          .nonce = 0x1234};
    struct kelp_hosts_entry read;
    char *text = NULL;

    ck_assert_int_eq(kelp_hosts_print(&host, &text, &error), KELP_OK);
    ck_assert_int_eq(kelp_hosts_parse("/kelp/fare/hosts/node-1", text, &read, &error), KELP_OK);
    ck_assert_str_eq(read.host, host.host);
    ck_assert_str_eq(read.kernel, host.kernel);
    ck_assert_uint_eq(read.shards.least, 1);
    ck_assert_uint_eq(read.shards.most, 2);
    ck_assert_uint_eq(read.workers.least, 0);
    ck_assert_uint_eq(read.workers.most, 8);
    ck_assert_uint_eq(read.pid, 77);
    ck_assert_uint_eq(read.nonce, 0x1234);
    free(text);
}

static void refused(const char *key, const char *text, const char *why)
{
    struct kelp_hosts_entry host;

    ck_assert_int_eq(kelp_hosts_parse(key, text, &host, &error), KELP_ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(error.text, why));
}

#define ENTRY(shards_min, workers_max)                                                             \
    "{\"shards_min\":" shards_min                                                                  \
    ",\"shards_max\":1,\"workers_min\":0,\"workers_max\":" workers_max                             \
    ",\"pid\":1,\"nonce\":\"0000000000000001\",\"kernel\":\"k\"}"

KELP_TEST(test_entry_refused)
{
    refused("/kelp/fare/hosts/a b", ENTRY("1", "1"), "names no host");
    refused("/kelp/fare/hosts/", ENTRY("1", "1"), "names no host");
    refused("/kelp/fare/hosts/abcdefghijklmnopqrstu", ENTRY("1", "1"), "names no host");
    refused("/kelp/fare/hosts/a", ENTRY("2", "1"), "shards_min");
    refused("/kelp/fare/hosts/a", ENTRY("1", "1025"), "workers_max");
    refused("/kelp/fare/hosts/a", "{}", "shards_max");
    refused("/kelp/fare/hosts/a", "[", "hosts/a");
}

KELP_TEST(test_names)
{
    struct kelp_hosts_entry hosts[] = {{.host = "a"}, {.host = "b"}, {.host = "c"}};
    const struct kelp_hosts_list list = {.hosts = hosts, .count = 3};
    char text[32], cut[5];

    kelp_hosts_names(&list, text, sizeof(text));
    ck_assert_str_eq(text, "a, b, c");
    kelp_hosts_names(&list, cut, sizeof(cut));
    ck_assert_str_eq(cut, "a, b");
}
