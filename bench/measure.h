/* Shared by the measurements of single calls. */
#ifndef KELP_BENCH_MEASURE_H
#define KELP_BENCH_MEASURE_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/status.h"

#define MIN_SECONDS 0.2
#define MIN_BATCHES 3
static inline double now(void)
{
    return 1e-6 * (double)kelp_clock_us();
}

/* Seconds of one call: the best of at least MIN_BATCHES batches of a millisecond or more, which
 * together take MIN_SECONDS or more. */
static inline double measure(void (*call)(void *), void *argument)
{
    double best = 1e9;
    uint64_t repeat = 1;
    uint32_t batches = 0;
    const double end = now() + MIN_SECONDS;
    do {
        const double begin = now();
        for (uint64_t i = 0; i < repeat; i++) {
            call(argument);
        }
        const double taken = now() - begin;
        if (taken < 1e-3) {
            repeat *= 2;
            continue;
        }
        batches++;
        best = taken / (double)repeat < best ? taken / (double)repeat : best;
    } while (now() < end || batches < MIN_BATCHES);
    return best;
}

static inline void fail(const struct kelp_error *error)
{
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, error->text);
    exit(1);
}

static inline float *floats(uint64_t count)
{
    float *values = aligned_alloc(64, (count * sizeof(*values) + 63) / 64 * 64);
    if (values == NULL) {
        fprintf(stderr, "%s: out of memory\n", program_invocation_short_name);
        exit(1);
    }
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)((i * 2654435761u) % 2001) / 1000.0f - 1.0f;
    }
    return values;
}

#endif
