/* Pooling of the CPU device: random shapes against the plainest possible loops in double, with NaN
 * and infinities. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/kernels/windows.h"

KELP_CASE("pool", .setup = setup, .teardown = teardown)

/* Small whole numbers, so that windows have equal largest ones; NaN and infinities among them. */
static void make_awkward(float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        values[i] = rintf(values[i] * 3.0f);
        values[i] = i % 29 == 11 ? NAN : (i % 13 == 5 ? -INFINITY : values[i]);
    }
}

static uint64_t expected_choice(const struct kelp_window *window, const float *x, uint64_t output)
{
    int64_t best = -1;
    for (uint64_t k = 0; k < plane(window->kernel); k++) {
        const int64_t at = meets(window, output, k);
        if (at >= 0 && (best < 0 || x[at] > x[best] || (isnan(x[at]) && !isnan(x[best])))) {
            best = at;
        }
    }
    ck_assert_int_ge(best, 0);
    return (uint64_t)best;
}

KELP_LOOP_TEST(test_max_pool, 0, 30)
{
    struct kelp_max_pool pool = {.window = random_window((uint32_t)_i), .samples = SAMPLES};
    pool.window.channels = 1 + random_below((uint32_t)_i, 20);
    const uint64_t planes = (uint64_t)SAMPLES * pool.window.channels;
    const uint64_t in = plane(pool.window.input), out = plane(pool.window.output);
    float *x = floats(planes * in), *y = floats(planes * out), *dy = floats(planes * out);
    float *dx = floats(planes * in);
    uint32_t *chosen = malloc(planes * out * sizeof(*chosen));
    ck_assert_ptr_nonnull(chosen);
    make_awkward(x, planes * in);
    pool.x = x;
    pool.y = y;
    pool.chosen = chosen;
    pool.dy = dy;
    pool.dx = dx;
    stream->table->max_pool(stream, &pool);
    for (uint64_t i = 0; i < planes * out; i++) {
        const float *from = x + i / out * in;
        ck_assert_uint_eq(chosen[i], expected_choice(&pool.window, from, i % out));
        ck_assert_mem_eq(&y[i], &from[chosen[i]], sizeof(float));
    }
    for (uint32_t way = 0; way < 2; way++) {
        pool.write = way == 0 ? KELP_OVERWRITE : KELP_ACCUMULATE;
        double *wanted = doubles(way == 0 ? NULL : dx, planes * in);
        for (uint64_t i = 0; i < planes * out; i++) {
            wanted[i / out * in + chosen[i]] += (double)dy[i];
        }
        stream->table->max_pool_gradient(stream, &pool);
        expect_near(dx, wanted, planes * in, 1e-5, "gradient of max pooling");
    }
    free(x);
    free(y);
    free(dy);
    free(dx);
    free(chosen);
}

KELP_LOOP_TEST(test_average_pool, 0, 30)
{
    struct kelp_average_pool pool = {.window = random_window((uint32_t)_i), .samples = SAMPLES};
    pool.window.channels = 1 + random_below((uint32_t)_i, 20);
    const uint64_t planes = (uint64_t)SAMPLES * pool.window.channels;
    const uint64_t in = plane(pool.window.input), out = plane(pool.window.output);
    const uint64_t kernel = plane(pool.window.kernel);
    float *x = floats(planes * in), *y = floats(planes * out), *dy = floats(planes * out);
    float *dx = floats(planes * in);
    pool.x = x;
    pool.y = y;
    pool.dy = dy;
    pool.dx = dx;
    for (uint32_t way = 0; way < 2; way++) {
        pool.write = way == 0 ? KELP_OVERWRITE : KELP_ACCUMULATE;
        double *wanted = doubles(NULL, planes * out);
        double *wanted_dx = doubles(way == 0 ? NULL : dx, planes * in);
        for (uint64_t i = 0; i < planes * out * kernel; i++) {
            const uint64_t to = i / kernel;
            const int64_t at = meets(&pool.window, to % out, i % kernel);
            if (at >= 0) {
                wanted[to] += (double)x[to / out * in + (uint64_t)at] / (double)kernel;
                wanted_dx[to / out * in + (uint64_t)at] += (double)dy[to] / (double)kernel;
            }
        }
        stream->table->average_pool(stream, &pool);
        stream->table->average_pool_gradient(stream, &pool);
        expect_near(y, wanted, planes * out, 1e-5, "average pooling");
        expect_near(dx, wanted_dx, planes * in, 1e-5, "gradient of average pooling");
    }
    free(x);
    free(y);
    free(dy);
    free(dx);
}
