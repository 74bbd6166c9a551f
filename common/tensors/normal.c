#include "common/tensors/normal.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>

#include "common/base/status.h"

#define CENTRAL   0.425    /* largest |p - 1/2| of the central rational function */
#define CENTRAL_2 0.180625 /* its square */
#define TAIL      1.6      /* centre of the tail's rational function */

/* Coefficients from the constant term on, of numerators and denominators. */
static const double central_over[] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                                      1.9715909503065514427e3, 1.3731693765509461125e4,
                                      4.5921953931549871457e4, 6.7265770927008700853e4,
                                      3.3430575583588128105e4, 2.5090809287301226727e3};
static const double central_under[] = {1.0,
                                       4.2313330701600911252e1,
                                       6.8718700749205790830e2,
                                       5.3941960214247511077e3,
                                       2.1213794301586595867e4,
                                       3.9307895800092710610e4,
                                       2.8729085735721942674e4,
                                       5.2264952788528545610e3};
static const double tail_over[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                   5.76949722146069140550e0,  3.64784832476320460504e0,
                                   1.27045825245236838258e0,  2.41780725177450611770e-1,
                                   2.27238449892691845833e-2, 7.74545014278341407640e-4};
static const double tail_under[] = {1.0,
                                    2.05319162663775882187e0,
                                    1.67638483018380384940e0,
                                    6.89767334985100004550e-1,
                                    1.48103976427480074590e-1,
                                    1.51986665636164571966e-2,
                                    5.47593808499534494600e-4,
                                    1.05075007164441684324e-9};

#define TERMS KELP_ARRAY_COUNT(central_over)

static double ratio(const double *over, const double *under, double x)
{
    double a = over[TERMS - 1], b = under[TERMS - 1];

    for (size_t i = TERMS - 1; i-- > 0;) {
        a = a * x + over[i];
        b = b * x + under[i];
    }
    return a / b;
}

/* The logarithm of x > 0, by the series of artanh around 1. */
static double logarithm(double x)
{
    const double ln2_high = 0x1.62e42fefa38p-1, ln2_low = 0x1.ef35793c7673p-45;
    int exponent;
    double m = frexp(x, &exponent); /* [1/2, 1) */

    if (m < 0.70710678118654752) {
        m = m + m;
        exponent--;
    }
    double s = (m - 1.0) / (m + 1.0);
    double square = s * s, sum = 0.0;
    for (int k = 25; k >= 3; k -= 2) { /* |s| < 0.172: the omitted terms are below 1e-20 */
        sum = (sum + 1.0 / k) * square;
    }
    double e = (double)exponent;
    return e * ln2_high + (2.0 * (s + s * sum) + e * ln2_low);
}

double kelp_normal_quantile(double probability)
{
    double q = probability - 0.5;

    assert(probability >= 0x1p-34 && probability <= 1.0 - 0x1p-34);
    if (fabs(q) <= CENTRAL) {
        return q * ratio(central_over, central_under, CENTRAL_2 - q * q);
    }
    double tail = q < 0.0 ? probability : 1.0 - probability;
    double x = ratio(tail_over, tail_under, sqrt(-logarithm(tail)) - TAIL);
    return q < 0.0 ? -x : x;
}
