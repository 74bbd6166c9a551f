/* The picture of a bench: a line for each way, whatever the order of sizes, in both panels. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench_plot.h"
#include "tests/lib/suite.h"

static char *draw(const struct kelp_bench_rate *rates, uint32_t count)
{
    struct kelp_error error = {.text = ""};
    char *bytes = NULL;
    size_t length = 0;

    ck_assert_msg(kelp_bench_plot(rates, count, "a title", &bytes, &length, &error) == KELP_OK,
                  "%s", error.text);
    ck_assert_uint_eq(strlen(bytes), length);
    ck_assert_ptr_nonnull(strstr(bytes, "<svg"));
    /* Cairo numbers what it draws on, over all pictures of a process. */
    for (char *at = bytes; (at = strstr(at, "surface"));) {
        at += strlen("surface");
        memset(at, '0', strspn(at, "0123456789"));
    }
    return bytes;
}

/* Not by Check, whose messages would hold both. */
static bool equal(const char *one, const char *other)
{
    return strcmp(one, other) == 0;
}

/* The same rows in another order are the same lines. */
KELP_TEST(order_of_sizes_says_nothing)
{
    const struct kelp_bench_rate rising[] = {
        {.way = "copy", .bytes = 4096, .gb_per_s = 3, .cpu_s_per_gb = 0.1},
        {.way = "grpc", .bytes = 4096, .gb_per_s = 1, .cpu_s_per_gb = 0.5},
        {.way = "copy", .bytes = 8192, .gb_per_s = 5, .cpu_s_per_gb = 0.2},
        {.way = "grpc", .bytes = 8192, .gb_per_s = 2, .cpu_s_per_gb = 0.4}};
    const struct kelp_bench_rate falling[] = {rising[2], rising[3], rising[0], rising[1]};
    char *one = draw(rising, 4);
    char *other = draw(falling, 4);
    char *less = draw(rising, 2);

    ck_assert(equal(one, other));
    ck_assert(!equal(one, less));
    free(one);
    free(other);
    free(less);
}

/* More than there is room for is left out, and not drawn elsewhere. */
KELP_TEST(too_many_rows_are_left_out)
{
    static struct kelp_bench_rate many[KELP_BENCH_ROWS_MAX + 1];
    static const char *const ways[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};

    for (uint32_t i = 0; i <= KELP_BENCH_ROWS_MAX; i++) {
        many[i] = (struct kelp_bench_rate){
            .way = ways[i % 9], .bytes = 4096u * (i + 1), .gb_per_s = i, .cpu_s_per_gb = 1};
    }
    char *all = draw(many, KELP_BENCH_ROWS_MAX + 1);
    char *fitting = draw(many, KELP_BENCH_ROWS_MAX);
    ck_assert(equal(all, fitting));
    free(all);
    free(fitting);
}
