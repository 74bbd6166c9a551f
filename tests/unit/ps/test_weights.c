#include <stdint.h>
#include <stdlib.h>

#include "ps/core/limits.h"
#include "ps/shard/weights.h"
#include "tests/lib/suite.h"

static const uint64_t counts[] = {32, 16, 0, 48};
#define COUNT 4

static struct kelp_weights *weights;

static void set_up(void)
{
    ck_assert_int_eq(kelp_weights_create(counts, COUNT, &weights, NULL), KELP_OK);
}

static void tear_down(void)
{
    kelp_weights_unref(weights);
}

/* One step of slice `place`: the next weights are all `value`. */
static void step_to(uint32_t place, uint64_t step, float value)
{
    float *next = kelp_weights_next(weights, place, step);

    ck_assert_ptr_nonnull(next);
    ck_assert_ptr_ne(next, kelp_weights_current(weights, place));
    for (uint64_t i = 0; i < counts[place]; i++) {
        next[i] = value;
    }
    kelp_weights_commit(weights, place);
    ck_assert_ptr_eq(kelp_weights_current(weights, place), next);
}

KELP_CASE("all", .setup = set_up, .teardown = tear_down)

/* Slices of one step lie next to each other, zeroed at first, each cache line aligned. */
KELP_TEST(slices_are_adjacent)
{
    for (uint64_t step = 0; step < 4; step++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            float *values = kelp_weights_current(weights, i);
            ck_assert_uint_eq((uintptr_t)values % 64, 0);
            if (i + 1 < COUNT) {
                ck_assert_ptr_eq(values + counts[i], kelp_weights_current(weights, i + 1));
            }
            if (step == 0 && counts[i] > 0) {
                ck_assert_float_eq(values[0], 0.0f);
            }
        }
        for (uint32_t i = COUNT; i > 0; i--) {
            step_to(i - 1, step, (float)step + 1);
        }
    }
}

/* The older weights can be read until the next ones are begun. */
KELP_TEST(older_weights)
{
    const float *values;
    struct kelp_weights_loan loan;

    step_to(0, 0, 1.0f);
    step_to(0, 1, 2.0f);
    ck_assert(kelp_weights_lend(weights, 0, KELP_WEIGHTS_OLDER, &values, &loan));
    ck_assert_float_eq(values[31], 1.0f);
    kelp_weights_return(&loan);
    ck_assert(kelp_weights_lend(weights, 0, KELP_WEIGHTS_CURRENT, &values, &loan));
    ck_assert_float_eq(values[0], 2.0f);
    kelp_weights_return(&loan);
}

/* What is lent keeps its values, however many steps follow; slow readers never stop training. */
KELP_TEST(loans_are_not_overwritten)
{
    struct kelp_weights_loan loans[64];
    const float *values[64];
    float expected[64];
    size_t lent = 0, refused = 0;

    for (uint64_t step = 0; step < 64; step++) {
        if (kelp_weights_lend(weights, 0, KELP_WEIGHTS_CURRENT, &values[lent], &loans[lent])) {
            expected[lent++] = (float)step;
        } else {
            refused++;
            ck_assert_float_eq(values[lent][5], (float)step); /* to be copied */
        }
        step_to(0, step, (float)step + 1);
        for (size_t i = 0; i < lent; i++) {
            ck_assert_float_eq(values[i][5], expected[i]);
        }
    }
    ck_assert_uint_eq(lent, KELP_PS_WEIGHT_SLOTS_MAX - 2);
    ck_assert_uint_gt(refused, 0);
    for (size_t i = 0; i < lent; i++) {
        kelp_weights_return(&loans[i]);
    }
    ck_assert(kelp_weights_lend(weights, 0, KELP_WEIGHTS_CURRENT, &values[0], &loans[0]));
    kelp_weights_return(&loans[0]);
}

/* Loans of slices that follow one another join; others do not. */
KELP_TEST(loans_join)
{
    struct kelp_weights_loan loans[COUNT];
    const float *values[COUNT];
    size_t bytes;

    for (uint32_t i = 0; i < COUNT; i++) {
        ck_assert(kelp_weights_lend(weights, i, KELP_WEIGHTS_CURRENT, &values[i], &loans[i]));
    }
    ck_assert(!kelp_weights_loan_join(&loans[0], &loans[3]));
    ck_assert(!kelp_weights_loan_join(&loans[1], &loans[0]));
    ck_assert(kelp_weights_loan_join(&loans[0], &loans[1]));
    ck_assert(kelp_weights_loan_join(&loans[0], &loans[2]));
    ck_assert(kelp_weights_loan_join(&loans[0], &loans[3]));
    ck_assert_ptr_eq(kelp_weights_loan_bytes(&loans[0], &bytes), values[0]);
    ck_assert_uint_eq(bytes, 96 * sizeof(float));
    step_to(1, 0, 1.0f);
    step_to(1, 1, 2.0f); /* its preferred slot is still lent */
    ck_assert_float_eq(values[1][0], 0.0f);
    kelp_weights_return(&loans[0]);

    ck_assert(kelp_weights_lend(weights, 0, KELP_WEIGHTS_CURRENT, &values[0], &loans[0]));
    ck_assert(kelp_weights_lend(weights, 1, KELP_WEIGHTS_CURRENT, &values[1], &loans[1]));
    ck_assert(!kelp_weights_loan_join(&loans[0], &loans[1])); /* of another block */
    kelp_weights_return(&loans[0]);
    kelp_weights_return(&loans[1]);
}

/* Loans outlive their generation. */
KELP_TEST(loans_keep_the_memory)
{
    struct kelp_weights_loan loan;
    const float *values;

    step_to(3, 0, 7.0f);
    ck_assert(kelp_weights_lend(weights, 3, KELP_WEIGHTS_CURRENT, &values, &loan));
    kelp_weights_unref(weights);
    ck_assert_float_eq(values[47], 7.0f);
    kelp_weights_return(&loan);
    weights = NULL;
}

/* Memory that was reserved is what a step takes when a slot is lent; contents are not touched. */
KELP_TEST(reserved_blocks)
{
    struct kelp_weights_loan loan;
    const float *values;

    step_to(0, 0, 1);
    kelp_weights_reserve(weights, KELP_PS_WEIGHT_SLOTS_MIN);
    ck_assert_float_eq(kelp_weights_current(weights, 0)[0], 1);
    ck_assert(kelp_weights_lend(weights, 0, KELP_WEIGHTS_CURRENT, &values, &loan));
    step_to(0, 1, 2);
    step_to(0, 2, 3);
    kelp_weights_reserve(weights, KELP_PS_WEIGHT_SLOTS_MAX);
    ck_assert_float_eq(kelp_weights_current(weights, 0)[0], 3);
    ck_assert_float_eq(values[0], 1);
    kelp_weights_ref(weights);
    kelp_weights_unref(weights);
    kelp_weights_return(&loan);
}
