/*
 * A device, random numbers and random windows: for the tests of convolution and pooling.
 */
#ifndef KELP_TESTS_UNIT_KERNELS_WINDOWS_H
#define KELP_TESTS_UNIT_KERNELS_WINDOWS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/tensors/philox.h"
#include "kernels/device.h"
#include "tests/lib/suite.h"

#define SAMPLES 3

static struct kelp_device *device;
static struct kelp_stream *stream;
static uint32_t random_use; /* what the next random numbers are drawn for */

static inline void setup(void)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_int_eq(kelp_device_cpu_create(1, &device, &error), KELP_OK);
    ck_assert_int_eq(device->table->stream_create(device, &stream, &error), KELP_OK);
    random_use = 0;
}

static inline void teardown(void)
{
    device->table->stream_destroy(stream);
    device->table->destroy(device);
}

static inline uint32_t random_below(uint32_t seed, uint32_t limit)
{
    uint32_t words[4];
    kelp_philox(seed, KELP_PHILOX_TEST, random_use++, 0, words);
    return words[0] % limit;
}

static inline float *floats(uint64_t count)
{
    float *values = malloc((count + 1) * sizeof(*values));
    ck_assert_ptr_nonnull(values);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t words[4];
        kelp_philox(5, KELP_PHILOX_TEST, random_use, i, words);
        values[i] = 2.0f * kelp_philox_float(words[0]) - 1.0f;
    }
    random_use++;
    return values;
}

static inline double *doubles(const float *from, uint64_t count)
{
    double *values = calloc(count + 1, sizeof(*values));
    ck_assert_ptr_nonnull(values);
    for (uint64_t i = 0; from != NULL && i < count; i++) {
        values[i] = (double)from[i];
    }
    return values;
}

static inline void expect_near(const float *values, double *wanted, uint64_t count,
                               double tolerance, const char *what)
{
    for (uint64_t i = 0; i < count; i++) {
        ck_assert_msg(fabs((double)values[i] - wanted[i]) <= tolerance * (1.0 + fabs(wanted[i])),
                      "%s, element %llu: %g, not %g", what, (unsigned long long)i,
                      (double)values[i], wanted[i]);
    }
    free(wanted);
}

/* A window of up to 11x11 by up to 7x7; kernel 1x1 in a quarter of the seeds. */
static inline struct kelp_window random_window(uint32_t seed)
{
    struct kelp_window window = {.channels = 1};
    const uint32_t largest = random_below(seed, 4) == 0 ? 1 : 7;
    for (uint32_t side = 0; side < 2; side++) {
        window.kernel[side] = 1 + random_below(seed, largest);
        window.stride[side] = 1 + random_below(seed, 3);
        window.padding[side] = random_below(seed, window.kernel[side]);
        const uint32_t least = window.kernel[side] > 2 * window.padding[side]
                                   ? window.kernel[side] - 2 * window.padding[side]
                                   : 1;
        window.input[side] = least + random_below(seed, 12 - least);
        window.output[side] =
            (window.input[side] + 2 * window.padding[side] - window.kernel[side]) /
                window.stride[side] +
            1;
    }
    return window;
}

static inline uint64_t plane(const uint32_t sides[2])
{
    return (uint64_t)sides[0] * sides[1];
}

/* The offset in a plane of the input that output (row, column) meets at kernel position k; -1 in
 * the padding. */
static inline int64_t meets(const struct kelp_window *window, uint64_t output, uint64_t k)
{
    const uint64_t out[2] = {output / window->output[1], output % window->output[1]};
    const uint64_t kernel[2] = {k / window->kernel[1], k % window->kernel[1]};
    int64_t at[2];
    for (uint32_t side = 0; side < 2; side++) {
        at[side] =
            (int64_t)(out[side] * window->stride[side] + kernel[side]) - window->padding[side];
        if (at[side] < 0 || at[side] >= window->input[side]) {
            return -1;
        }
    }
    return at[0] * window->input[1] + at[1];
}

#endif
