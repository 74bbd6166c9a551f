#include "cli/bench/bench_samples.h"

#include <assert.h>
#include <stdlib.h>

static void thin(struct kelp_bench_samples *samples)
{
    samples->count /= 2;
    for (uint32_t i = 0; i < samples->count; i++) {
        samples->us[i] = samples->us[2 * (size_t)i];
    }
    samples->thinned++;
}

void kelp_bench_samples_add(struct kelp_bench_samples *samples, double us)
{
    const uint64_t number = samples->seen++;

    if (number % (UINT64_C(1) << samples->thinned) != 0) {
        return;
    }
    if (samples->count == KELP_BENCH_SAMPLES_MAX) {
        thin(samples); /* this one is the next of those that are kept */
    }
    samples->us[samples->count++] = (float)us;
}

static int compare(const void *left, const void *right)
{
    const float a = *(const float *)left;
    const float b = *(const float *)right;

    return (a > b) - (a < b);
}

double kelp_bench_quantile(float *values, size_t count, double part)
{
    assert(part >= 0 && part <= 1);
    if (count == 0) {
        return 0;
    }
    qsort(values, count, sizeof(*values), compare);
    const size_t index = (size_t)(part * (double)count);
    return (double)values[index < count ? index : count - 1];
}
