/* Quantiles of the normal distribution against the values of other programs, and against the
 * distribution function of the C library. */
#include <math.h>
#include <stdlib.h>

#include "common/tensors/normal.h"
#include "tests/lib/suite.h"

/* Python's statistics.NormalDist().inv_cdf(). */
KELP_TEST(test_values)
{
    static const struct {
        double probability, quantile;
    } cases[] = {
        {0.5, 0.0},
        {0.6, 0.2533471031357998},
        {0.925, 1.439531470938456},
        {0.9250001, 1.4395321773759004},
        {0.99, 2.3263478740408408},
        {0.999999, 4.753424308817089},
        {0.9999999998835847, 6.337957754553789},
        {1.1641532182693481e-10, -6.337957754553789},
        {0.3, -0.5244005127080407},
        {0.0749, -1.4402382675279632},
        {1e-09, -5.9978070150076865},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ck_assert_double_eq_tol(kelp_normal_quantile(cases[i].probability), cases[i].quantile,
                                1e-13);
    }
}

/* It is the inverse of the distribution function all the way, ascending and odd. */
KELP_TEST(test_inverse)
{
    double before = -INFINITY;

    for (int i = 1; i < 4096; i++) {
        const double p = i / 4096.0;
        const double x = kelp_normal_quantile(p);
        ck_assert_double_gt(x, before);
        before = x;
        ck_assert_double_eq_tol(0.5 * erfc(-x / sqrt(2.0)), p, 4e-15);
        ck_assert_double_eq_tol(kelp_normal_quantile(1.0 - p), -x, 1e-13);
    }
    for (double p = 0.4; p > 0x1p-33; p *= 0.7) { /* relative to the tail */
        const double x = kelp_normal_quantile(p);
        ck_assert_double_eq_tol(0.5 * erfc(-x / sqrt(2.0)) / p, 1.0, 1e-13);
    }
}
