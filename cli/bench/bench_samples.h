/*
 * How long operations took: a bounded number of samples, and their quantiles. Pure.
 */
#ifndef KELP_CLI_BENCH_BENCH_SAMPLES_H
#define KELP_CLI_BENCH_BENCH_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

#define KELP_BENCH_SAMPLES_MAX 32768u /* of one worker; beyond it every second one is dropped */

/* All zero at first. */
struct kelp_bench_samples {
    uint32_t count;
    uint32_t thinned; /* times that every second one was dropped: one of 2^thinned is kept */
    uint64_t seen;
    float us[KELP_BENCH_SAMPLES_MAX];
};

void kelp_bench_samples_add(struct kelp_bench_samples *samples, double us);

/* What a share `part` of the values is at or below; sorts them. 0 where there are none. */
double kelp_bench_quantile(float *values, size_t count, double part);

#endif
