/* Samples of a bench: all of them while they fit, then evenly fewer, and their quantiles. */
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench_samples.h"
#include "tests/lib/suite.h"

static struct kelp_bench_samples samples;

static void setup(void)
{
    memset(&samples, 0, sizeof(samples));
}

KELP_CASE("samples", .setup = setup)

KELP_TEST(quantiles_of_few)
{
    float values[] = {5, 1, 4, 2, 3};

    ck_assert_double_eq(kelp_bench_quantile(values, 5, 0.5), 3);
    ck_assert_double_eq(kelp_bench_quantile(values, 5, 0), 1);
    ck_assert_double_eq(kelp_bench_quantile(values, 5, 0.99), 5);
    ck_assert_double_eq(kelp_bench_quantile(values, 5, 1), 5);
    ck_assert_double_eq(kelp_bench_quantile(values, 0, 0.5), 0);
}

/* However many there are, those that are kept lie equally far apart, and the first is one. */
KELP_TEST(many_are_thinned_evenly)
{
    const uint32_t many = 5 * KELP_BENCH_SAMPLES_MAX + 7;

    for (uint32_t i = 0; i < many; i++) {
        kelp_bench_samples_add(&samples, i);
    }
    ck_assert_uint_eq(samples.seen, many);
    ck_assert_uint_eq(samples.thinned, 3);
    ck_assert_uint_eq(samples.count, (many + 7) / 8);
    for (uint32_t i = 0; i < samples.count; i++) {
        ck_assert_double_eq((double)samples.us[i], 8.0 * i);
    }
}
