/* Lanes to nodes: the bits of the tree, whatever lanes are empty, and no buffer is lost. */
#include <math.h>

#include "kernels/bfloat16.h"
#include "tests/lib/suite.h"
#include "worker/compute/node_sum.h"

#define COUNT 16
#define LANES 16

static struct kelp_gradient_pool *pool;

static void begin(enum kelp_precision precision)
{
    pool = kelp_gradient_pool_create(COUNT, precision);
    ck_assert_ptr_nonnull(pool);
}

static float value_of(uint32_t lane, uint32_t element)
{
    const uint32_t number = (lane * COUNT + element + 1) * 2654435761u;
    return (float)(int32_t)number * 0x1p-20f;
}

/* empty: a bit for each lane that has no samples. */
static struct kelp_gradient *lane_of(uint32_t lane, uint32_t empty)
{
    struct kelp_gradient *gradient = kelp_gradient_get(pool);
    ck_assert_ptr_nonnull(gradient);
    gradient->present = (empty >> lane & 1) == 0;
    gradient->sums[0] = gradient->present ? (double)value_of(lane, 0) / 3 : 0.0;
    for (uint32_t i = 0; i < COUNT; i++) {
        gradient->values[i] = value_of(lane, i);
    }
    return gradient;
}

/* The definition: left plus right, down to single lanes. */
static bool tree(uint32_t first, uint32_t count, uint32_t empty, uint32_t element, bool rounded,
                 float *ret_value)
{
    float left = 0, right = 0;
    if (count == 1) {
        *ret_value = value_of(first, element);
        if (rounded) {
            kelp_bfloat16_round(ret_value, 1);
        }
        return (empty >> first & 1) == 0;
    }
    const bool has_left = tree(first, count / 2, empty, element, rounded, &left);
    const bool has_right = tree(first + count / 2, count / 2, empty, element, rounded, &right);
    *ret_value = !has_right ? left : !has_left ? right : left + right;
    if (rounded && has_left && has_right) {
        kelp_bfloat16_round(ret_value, 1);
    }
    return has_left || has_right;
}

static void expect_node(uint32_t first, uint32_t count, uint32_t empty, bool rounded)
{
    struct kelp_node_sum sum;
    struct kelp_gradient *whole = NULL;
    float expected = 0;

    kelp_node_sum_begin(&sum, first, count);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_ptr_null(whole);
        whole = kelp_node_sum_add(&sum, lane_of(first + i, empty));
    }
    ck_assert_ptr_nonnull(whole);
    for (uint32_t i = 0; i < COUNT; i++) {
        ck_assert(tree(first, count, empty, i, rounded, &expected) == whole->present);
        ck_assert(!whole->present || whole->values[i] == expected);
    }
    kelp_gradient_unref(whole);
    for (uint32_t i = 0; i < KELP_NODE_SUM_LEVELS; i++) {
        ck_assert_ptr_null(sum.waiting[i]);
    }
}

/* Each node of sixteen lanes, with every third, or some, or all of them empty. */
KELP_LOOP_TEST(bits_of_the_tree, 0, 2)
{
    static const uint32_t empties[] = {0, 0x9249, 0x00f0, 0x8001, 0xffff, 0x7fff};
    const bool rounded = _i == 1;

    begin(rounded ? KELP_PRECISION_BFLOAT16 : KELP_PRECISION_FLOAT32);
    for (size_t e = 0; e < KELP_ARRAY_COUNT(empties); e++) {
        for (uint32_t count = 1; count <= LANES; count *= 2) {
            for (uint32_t first = 0; first < LANES; first += count) {
                expect_node(first, count, empties[e], rounded);
            }
        }
    }
    kelp_gradient_pool_destroy(pool);
}

/* Lanes whose values are apart: the last one with samples has them all. */
static void expect_apart(uint32_t first, uint32_t count, uint32_t empty)
{
    struct kelp_node_sum sum;
    struct kelp_gradient *whole = NULL;
    uint32_t last = first + count;
    float expected = 0;
    double sum_of_all = 0;

    while (last > first && (empty >> (last - 1) & 1) != 0) {
        last--;
    }
    kelp_node_sum_begin(&sum, first, count);
    for (uint32_t lane = first; lane < first + count; lane++) {
        struct kelp_gradient *gradient = lane_of(lane, empty);
        uint64_t ready = COUNT;
        gradient->apart = gradient->present && lane + 1 < last;
        sum_of_all += gradient->present;
        gradient->sums[1] = gradient->present;
        for (uint32_t i = 0; i < COUNT; i++) {
            (void)tree(first, count, empty, i, false, &expected);
            gradient->values[i] = lane + 1 == last ? expected : NAN;
        }
        if (lane + 1 == first + count && lane + 1 == last) { /* in pieces */
            for (; ready > 3; ready -= 3) {
                (void)kelp_node_sum_add_values(&sum, gradient, ready - 3, 3);
            }
        }
        whole = kelp_node_sum_add_rest(&sum, gradient, ready);
    }
    ck_assert_ptr_nonnull(whole);
    ck_assert(whole->present == (last > first) && whole->sums[1] == sum_of_all);
    for (uint32_t i = 0; whole->present && i < COUNT; i++) {
        (void)tree(first, count, empty, i, false, &expected);
        ck_assert(whole->values[i] == expected);
    }
    kelp_gradient_unref(whole);
}

KELP_TEST(values_that_are_apart)
{
    static const uint32_t empties[] = {0, 0x9249, 0x00f0, 0x8001, 0xffff, 0x7fff, 0x0001, 0xfffe};
    begin(KELP_PRECISION_FLOAT32);
    for (size_t e = 0; e < KELP_ARRAY_COUNT(empties); e++) {
        for (uint32_t count = 1; count <= LANES; count *= 2) {
            for (uint32_t first = 0; first < LANES; first += count) {
                expect_apart(first, count, empties[e]);
            }
        }
    }
    kelp_gradient_pool_destroy(pool);
}

/* A node that is given up gives its buffers back: as many as it had are enough for the next. */
KELP_TEST(dropped)
{
    struct kelp_node_sum sum;
    struct kelp_gradient *again[3];

    begin(KELP_PRECISION_FLOAT32);
    kelp_node_sum_begin(&sum, 8, 8);
    for (uint32_t i = 0; i < 7; i++) {
        ck_assert_ptr_null(kelp_node_sum_add(&sum, lane_of(8 + i, 0)));
    }
    struct kelp_gradient *held[3] = {sum.waiting[0], sum.waiting[1], sum.waiting[2]};
    kelp_node_sum_drop(&sum);
    for (uint32_t i = 0; i < 3; i++) {
        again[i] = kelp_gradient_get(pool);
        ck_assert_ptr_null(sum.waiting[i]);
    }
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert(held[i] == again[0] || held[i] == again[1] || held[i] == again[2]);
        kelp_gradient_unref(again[i]);
    }
    kelp_gradient_pool_destroy(pool);
}
