/*
 * Compares an operator with a plain forward function in double: the output must be near to it,
 * gradients near to its central differences, and every instruction set must give the same bits.
 */
#ifndef KELP_TESTS_LIB_MODELS_OPERATOR_CHECK_H
#define KELP_TESTS_LIB_MODELS_OPERATOR_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/loops/loops.h"

#define KELP_OPERATOR_INPUTS_MAX 4

/* Uniform in [low, high), as many as count, in memory of exactly that size so that a sanitizer sees
 * what lies beyond; the caller frees. */
float *kelp_operator_floats(int seed, uint32_t use, uint64_t count, float low, float high);
/* A whole number in [low, high], from (seed, use). */
uint32_t kelp_operator_size(int seed, uint32_t use, uint32_t low, uint32_t high);

struct kelp_operator_check {
    const char *what;
    int seed;
    const void *sizes; /* the argument of the two functions below */
    /* The operator in double. */
    void (*plain)(const void *sizes, const double *const *inputs, double *output);
    /* The operator of one instruction set: writes output and, by write, every gradient that is not
     * NULL. */
    void (*run)(const struct kelp_loops *loops, const void *sizes, const float *const *inputs,
                float *output, const float *dy, float *const *gradients, enum kelp_write write);
    uint32_t input_count;
    uint64_t counts[KELP_OPERATOR_INPUTS_MAX];
    bool constant[KELP_OPERATOR_INPUTS_MAX];                             /* has no gradient */
    float low[KELP_OPERATOR_INPUTS_MAX], high[KELP_OPERATOR_INPUTS_MAX]; /* of the random values */
    /* Inputs made by the test; NULL: random ones. */
    const float *given[KELP_OPERATOR_INPUTS_MAX];
    uint64_t output_count;
    double tolerance; /* relative to 1 or the largest value; 0: 1e-5, gradients 10 times as much */
};
/* Fails the Check test that runs. Accumulating must give exactly twice what overwriting gave. */
void kelp_operator_check(const struct kelp_operator_check *check);

#endif
