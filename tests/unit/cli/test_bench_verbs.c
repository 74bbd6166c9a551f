/* What the verbs of `kelp bench` share: sizes, transports, lanes, and what fits a machine. */
#include <string.h>

#include "cli/bench/bench_verbs.h"
#include "tests/lib/suite.h"

static struct kelp_bench_sizes sizes;
static struct kelp_error error;

static void setup(void)
{
    memset(&sizes, 0, sizeof(sizes));
    memset(&error, 0, sizeof(error));
}

KELP_CASE("verbs", .setup = setup)

KELP_TEST(sizes_are_read_in_their_order)
{
    ck_assert_int_eq(kelp_bench_sizes("256MiB,4KiB,64KiB", "size", &sizes, &error), KELP_OK);
    ck_assert_uint_eq(sizes.count, 3);
    ck_assert_uint_eq(sizes.bytes[0], 256u << 20);
    ck_assert_uint_eq(sizes.bytes[1], 4096);
    ck_assert_uint_eq(sizes.bytes[2], 65536);
}

KELP_TEST(other_sizes_are_refused)
{
    static const char *const wrong[] = {"",     ",",         "4KiB,", "4095B", "257MiB",
                                        "4200", "4KiB;8KiB", "4161B", "4 KiB"};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(wrong); i++) {
        ck_assert_msg(kelp_bench_sizes(wrong[i], "size", &sizes, &error) == KELP_ERR_INVALID, "%s",
                      wrong[i]);
        ck_assert_msg(strncmp(error.text, "--size", 6) == 0, "%s", error.text);
        ck_assert_uint_eq(sizes.count, 0);
    }
}

/* 6 times for each worker and 3 times for the shards: 15 for two. */
KELP_TEST(sizes_must_fit)
{
    ck_assert_int_eq(kelp_bench_sizes("4KiB,64KiB", "size", &sizes, &error), KELP_OK);
    ck_assert_int_eq(kelp_bench_sizes_fit(&sizes, 2, 15 * 65536, &error), KELP_OK);
    ck_assert_int_eq(kelp_bench_sizes_fit(&sizes, 2, 15 * 65536 - 1, &error), KELP_ERR_LIMIT);
    ck_assert_str_eq(error.text, "--size 64KiB with 2 workers takes about 0.0 GiB of memory, but "
                                 "there are only 0.0; use fewer workers or a smaller size");
    ck_assert_int_eq(kelp_bench_sizes_fit(&sizes, 8, UINT64_MAX, &error), KELP_OK);
}

KELP_TEST(files_must_suffice)
{
    ck_assert_int_eq(kelp_bench_crowd_fits(100, 328, &error), KELP_OK);
    ck_assert_int_eq(kelp_bench_crowd_fits(100, 327, &error), KELP_ERR_LIMIT);
    ck_assert_str_eq(error.text, "100 workers take 328 open files, and a process may have 327; use "
                                 "fewer workers, or raise the limit (ulimit -Hn)");
}

/* Each is gRPC and shared memory; others are themselves. */
KELP_TEST(transports)
{
    static const bool expected[4][4] = {{false, true, true, false},
                                        {false, true, false, false},
                                        {false, false, true, false},
                                        {false, false, false, true}};

    for (uint32_t given = 0; given < 4; given++) {
        for (uint32_t t = 1; t < 4; t++) {
            ck_assert_int_eq(kelp_bench_chosen(given, t), expected[given][t]);
        }
    }
}

KELP_TEST(lanes)
{
    static const uint32_t expected[][2] = {{1, 1}, {2, 2}, {3, 4}, {5, 8}, {8, 8}, {1000, 1024}};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(expected); i++) {
        ck_assert_uint_eq(kelp_bench_lanes(expected[i][0]), expected[i][1]);
    }
}
