#include "tests/lib/models/operator_check.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"

static void *allocate(uint64_t count, size_t elem_bytes)
{
    void *memory = malloc(count * elem_bytes);
    ck_assert(memory != NULL || count == 0);
    return memory;
}

float *kelp_operator_floats(int seed, uint32_t use, uint64_t count, float low, float high)
{
    float *values = allocate(count, sizeof(*values));
    for (uint64_t i = 0; i < count; i++) {
        uint32_t words[4];
        kelp_philox((uint64_t)seed, KELP_PHILOX_TEST, use, i, words);
        values[i] = low + (high - low) * kelp_philox_float(words[0]);
    }
    return values;
}

uint32_t kelp_operator_size(int seed, uint32_t use, uint32_t low, uint32_t high)
{
    uint32_t words[4];
    kelp_philox((uint64_t)seed, KELP_PHILOX_TEST, use, UINT64_MAX, words);
    return low + (uint32_t)kelp_philox_below(words[0], words[1], (uint64_t)high - low + 1);
}

static void fill_nan(float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        values[i] = NAN;
    }
}

static void expect_near(const struct kelp_operator_check *check, const char *of, uint32_t index,
                        const float *values, const double *wanted, uint64_t count, double tolerance)
{
    double largest = 1.0;
    for (uint64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(wanted[i]));
    }
    for (uint64_t i = 0; i < count; i++) {
        if (!(fabs((double)values[i] - wanted[i]) <= tolerance * largest)) {
            ck_abort_msg("%s, seed %d: element %llu of %s %u is %.9g, not %.9g", check->what,
                         check->seed, (unsigned long long)i, of, index, (double)values[i],
                         wanted[i]);
        }
    }
}

/* Inputs, outputs and gradients of one instruction set. */
struct results {
    float *output, *gradients[KELP_OPERATOR_INPUTS_MAX];
};

static void results_init(struct results *results, const struct kelp_operator_check *check)
{
    results->output = allocate(check->output_count, sizeof(float));
    fill_nan(results->output, check->output_count);
    for (uint32_t i = 0; i < KELP_OPERATOR_INPUTS_MAX; i++) {
        results->gradients[i] = NULL;
        if (i < check->input_count && !check->constant[i]) {
            results->gradients[i] = allocate(check->counts[i], sizeof(float));
            fill_nan(results->gradients[i], check->counts[i]);
        }
    }
}

static void results_fini(struct results *results)
{
    free(results->output);
    for (uint32_t i = 0; i < KELP_OPERATOR_INPUTS_MAX; i++) {
        free(results->gradients[i]);
    }
}

static void expect_same_bits(const struct kelp_operator_check *check, const struct results *a,
                             const struct results *b)
{
    ck_assert_msg(check->output_count == 0 ||
                      memcmp(a->output, b->output, check->output_count * sizeof(float)) == 0,
                  "%s, seed %d: other bits", check->what, check->seed);
    for (uint32_t i = 0; i < check->input_count; i++) {
        ck_assert_msg(
            a->gradients[i] == NULL || check->counts[i] == 0 ||
                memcmp(a->gradients[i], b->gradients[i], check->counts[i] * sizeof(float)) == 0,
            "%s, seed %d: other bits of gradient %u", check->what, check->seed, i);
    }
}

/* Run again, accumulating. */
static void expect_accumulates(const struct kelp_operator_check *check,
                               const struct kelp_loops *loops, const float *const *inputs,
                               const float *dy, struct results *results)
{
    float *before[KELP_OPERATOR_INPUTS_MAX] = {NULL};
    for (uint32_t i = 0; i < check->input_count; i++) {
        if (results->gradients[i] != NULL && check->counts[i] != 0) {
            before[i] = allocate(check->counts[i], sizeof(float));
            memcpy(before[i], results->gradients[i], check->counts[i] * sizeof(float));
        }
    }
    check->run(loops, check->sizes, inputs, results->output, dy, results->gradients,
               KELP_ACCUMULATE);
    for (uint32_t i = 0; i < check->input_count; i++) {
        for (uint64_t j = 0; before[i] != NULL && j < check->counts[i]; j++) {
            const float twice = before[i][j] + before[i][j];
            if (results->gradients[i][j] != twice) {
                ck_abort_msg("%s, seed %d: gradient %u is %.9g after adding, not %.9g", check->what,
                             check->seed, i, (double)results->gradients[i][j], (double)twice);
            }
        }
        free(before[i]);
    }
}

/* sum of dy y(inputs) */
static double weighed_output(const struct kelp_operator_check *check, const double *const *inputs,
                             const float *dy, double *output)
{
    double sum = 0.0;
    check->plain(check->sizes, inputs, output);
    for (uint64_t i = 0; i < check->output_count; i++) {
        sum += (double)dy[i] * output[i];
    }
    return sum;
}

static void expect_gradients(const struct kelp_operator_check *check, double **inputs,
                             const float *dy, double *output, const struct results *results,
                             double tolerance)
{
    const double h = 1e-5;
    for (uint32_t i = 0; i < check->input_count; i++) {
        if (results->gradients[i] == NULL) {
            continue;
        }
        double *wanted = allocate(check->counts[i], sizeof(*wanted));
        for (uint64_t j = 0; j < check->counts[i]; j++) {
            const double value = inputs[i][j];
            inputs[i][j] = value + h;
            const double above = weighed_output(check, (const double *const *)inputs, dy, output);
            inputs[i][j] = value - h;
            const double below = weighed_output(check, (const double *const *)inputs, dy, output);
            inputs[i][j] = value;
            wanted[j] = (above - below) / (2.0 * h);
        }
        expect_near(check, "gradient", i, results->gradients[i], wanted, check->counts[i],
                    tolerance);
        free(wanted);
    }
}

void kelp_operator_check(const struct kelp_operator_check *check)
{
    const double tolerance = check->tolerance != 0.0 ? check->tolerance : 1e-5;
    float *inputs[KELP_OPERATOR_INPUTS_MAX] = {NULL};
    double *plain_inputs[KELP_OPERATOR_INPUTS_MAX] = {NULL};
    float *dy = kelp_operator_floats(check->seed, 99, check->output_count, -1.0f, 1.0f);
    double *output = allocate(check->output_count, sizeof(*output));
    struct results first;
    for (uint32_t i = 0; i < check->input_count; i++) {
        inputs[i] = kelp_operator_floats(check->seed, 100 + i, check->counts[i], check->low[i],
                                         check->high[i]);
        plain_inputs[i] = allocate(check->counts[i], sizeof(double));
        for (uint64_t j = 0; j < check->counts[i]; j++) {
            inputs[i][j] = check->given[i] != NULL ? check->given[i][j] : inputs[i][j];
            plain_inputs[i][j] = (double)inputs[i][j];
        }
    }
    const float *const *operands = (const float *const *)inputs;
    results_init(&first, check);
    check->run(kelp__loops_variant(0), check->sizes, operands, first.output, dy, first.gradients,
               KELP_OVERWRITE);
    for (uint32_t variant = 1; kelp__loops_variant(variant) != NULL; variant++) {
        struct results other;
        results_init(&other, check);
        check->run(kelp__loops_variant(variant), check->sizes, operands, other.output, dy,
                   other.gradients, KELP_OVERWRITE);
        expect_same_bits(check, &first, &other);
        expect_accumulates(check, kelp__loops_variant(variant), operands, dy, &other);
        results_fini(&other);
    }
    check->plain(check->sizes, (const double *const *)plain_inputs, output);
    expect_near(check, "output", 0, first.output, output, check->output_count, tolerance);
    expect_gradients(check, plain_inputs, dy, output, &first, 10.0 * tolerance);
    expect_accumulates(check, kelp__loops_variant(0), operands, dy, &first);
    results_fini(&first);
    for (uint32_t i = 0; i < check->input_count; i++) {
        free(inputs[i]);
        free(plain_inputs[i]);
    }
    free(dy);
    free(output);
}
