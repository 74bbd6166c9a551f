#include "tests/lib/models/gradient_check.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "common/tensors/philox.h"

#define DIFFERENCE 4e-3f

uint32_t source_below(struct source *source, uint32_t bound)
{
    uint32_t words[4];
    kelp_philox(source->seed, KELP_PHILOX_TEST, 11, source->index++, words);
    return (uint32_t)kelp_philox_below(words[0], words[1], bound);
}

float source_uniform(struct source *source)
{
    uint32_t words[4];
    kelp_philox(source->seed, KELP_PHILOX_TEST, 11, source->index++, words);
    return 2.0f * kelp_philox_float(words[0]) - 1.0f;
}

float *source_floats(struct source *source, uint64_t count)
{
    float *values = malloc((size_t)(count + 1) * sizeof(*values));
    ck_assert_ptr_nonnull(values);
    for (uint64_t i = 0; i < count; i++) {
        values[i] = source_uniform(source);
    }
    return values;
}

double gradient_scale(const float *gradient, uint64_t count)
{
    double max = 1e-3;
    for (uint64_t i = 0; i < count; i++) {
        max = fmax(max, fabs((double)gradient[i]));
    }
    return max;
}

static double loss_at(const struct objective *objective, float *weight, float value)
{
    const float saved = *weight;
    *weight = value;
    const double loss = objective->loss(objective->context);
    *weight = saved;
    return loss;
}

/*
 * The gradient lies between the two one-sided differences or, near a kink (ReLU, MAE), equals one
 * of them. So it may differ from the central difference by half of their difference.
 */
static bool compare(const struct objective *objective, float *weight, double gradient, float h)
{
    const double here = loss_at(objective, weight, *weight);
    const double left = (here - loss_at(objective, weight, *weight - h)) / (double)h;
    const double right = (loss_at(objective, weight, *weight + h) - here) / (double)h;
    const double disagreement = fabs(right - left);
    const double noise = 2e-6 * (1.0 + fabs(here)) / (double)h;
    const double off = fabs((left + right) / 2.0 - gradient);
    return off <= 0.55 * disagreement + 0.002 * objective->scale + noise;
}

/* Two kinks close together invalidate the differences, but not those over a shorter distance. */
void gradient_check(const struct objective *objective, float *weight, double gradient,
                    const char *what, uint64_t element)
{
    bool right = false;
    for (uint32_t attempt = 0; !right && attempt < 3; attempt++) {
        right = compare(objective, weight, gradient, DIFFERENCE / (float)(1u << (2 * attempt)));
    }
    ck_assert_msg(right, "%s, seed %llu, element %llu: gradient %g", what,
                  (unsigned long long)objective->seed, (unsigned long long)element, gradient);
}
