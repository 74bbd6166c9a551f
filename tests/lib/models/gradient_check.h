/*
 * Compares gradients with differences of the loss, for property tests. Failures fail the Check
 * test.
 */
#ifndef KELP_TESTS_LIB_MODELS_GRADIENT_CHECK_H
#define KELP_TESTS_LIB_MODELS_GRADIENT_CHECK_H

#include <stdbool.h>
#include <stdint.h>

/* A test's stream of random numbers. */
struct source {
    uint64_t seed;
    uint64_t index;
};
uint32_t source_below(struct source *source, uint32_t bound);
/* In [-1, 1). */
float source_uniform(struct source *source);
/* float32[count], each in [-1, 1); free(). */
float *source_floats(struct source *source, uint64_t count);

/* A loss as a function of weights, which it reads itself. */
struct objective {
    double (*loss)(void *context);
    void *context;
    double scale;  /* largest element of the gradient */
    uint64_t seed; /* for messages */
};

/* The largest element of a gradient; never 0. */
double gradient_scale(const float *gradient, uint64_t count);

/* Check that `gradient` is the loss's derivative with respect to *weight, as far as differences
 * can tell; `what` and element are for the message. *weight is restored. */
void gradient_check(const struct objective *objective, float *weight, double gradient,
                    const char *what, uint64_t element);

#endif
