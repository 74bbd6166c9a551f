#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ps/core/limits.h"
#include "ps/shard/tensors/capture.h"
#include "tests/lib/suite.h"

#define ELEMENTS 1024
#define BYTES    (ELEMENTS * sizeof(float))
#define SLOTS    2

static struct kelp_extent *extent;
static struct kelp_capture_pool *pool;
static uint64_t step;

static void fill(float *values, float value)
{
    for (size_t i = 0; i < ELEMENTS; i++) {
        values[i] = value;
    }
}

static void set_up(void)
{
    ck_assert_int_eq(kelp_extent_create(ELEMENTS, SLOTS, NULL, &extent, NULL), KELP_OK);
    ck_assert_int_eq(kelp_capture_pool_create(&pool, NULL), KELP_OK);
    kelp_capture_pool_limit(pool, 4);
    step = 0;
    fill(kelp_extent_current(extent), 0.5f);
    fill(kelp_extent_slot(extent, 0), 10);
    fill(kelp_extent_slot(extent, 1), 20);
}

/* What is not given back is a leak, which the address sanitizer finds. */
static void tear_down(void)
{
    kelp_capture_pool_destroy(pool);
    kelp_extent_unref(extent);
}

/* What an apply does: new weights in another buffer, optimizer slots in place. */
static void apply(struct kelp_capture *capture)
{
    ck_assert_int_eq(kelp_capture_detach(capture), KELP_OK);
    float *next = kelp_extent_next(extent);
    ck_assert_ptr_nonnull(next);
    step++;
    fill(next, 100 + (float)step);
    kelp_extent_commit(extent);
    for (size_t i = 0; i < SLOTS; i++) {
        fill(kelp_extent_slot(extent, (uint32_t)i), 1000 + (float)step);
    }
}

static void expect(const struct kelp_capture *capture, float weight, float slot_0, float slot_1)
{
    for (size_t i = 0; i < ELEMENTS; i++) {
        ck_assert(capture->weights[i] == weight);
        ck_assert(capture->slots[0][i] == slot_0);
        ck_assert(capture->slots[1][i] == slot_1);
    }
}

KELP_CASE("capture", .setup = set_up, .teardown = tear_down)

/* However many steps follow, the capture is the state of its moment. */
KELP_TEST(steps_do_not_change_it)
{
    struct kelp_control_state control = {.version = 7};
    struct kelp_capture capture = {0};

    ck_assert_int_eq(kelp_capture_take(&capture, pool, 3, extent, &control), KELP_OK);
    ck_assert_ptr_eq(capture.slots[0], kelp_extent_slot(extent, 0)); /* nothing was copied yet */
    ck_assert(capture.lent);
    control.version = 8;
    for (int i = 0; i < 5; i++) {
        apply(&capture);
        expect(&capture, 0.5f, 10, 20);
    }
    ck_assert(capture.has_control);
    ck_assert_uint_eq(capture.control.version, 7);
    ck_assert_uint_eq(capture.ticket, 3);
    kelp_capture_release(&capture);
    kelp_capture_release(&capture); /* empty: nothing */
}

/* It outlives the partition, copied or live. */
KELP_TEST(outlives_the_partition)
{
    struct kelp_capture captures[2] = {{0}};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(captures); i++) {
        ck_assert_int_eq(kelp_capture_take(&captures[i], pool, 1, extent, NULL), KELP_OK);
    }
    ck_assert_int_eq(kelp_capture_detach(&captures[0]), KELP_OK);
    kelp_extent_unref(extent);
    extent = NULL;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(captures); i++) {
        expect(&captures[i], 0.5f, 10, 20);
        ck_assert(!captures[i].has_control);
    }
    ck_assert_int_eq(kelp_capture_detach(&captures[1]), KELP_OK);
    expect(&captures[1], 0.5f, 10, 20);
    kelp_capture_release(&captures[0]);
    kelp_capture_release(&captures[1]);
}

/* When streams hold too many weight buffers, the weights are copied at once. */
KELP_TEST(weights_that_cannot_be_lent)
{
    struct kelp_extent_loan loans[KELP_PS_WEIGHT_BUFFERS_MAX];
    const float *values;
    size_t count = 0;
    struct kelp_capture capture = {0}, empty = {0};

    while (kelp_extent_lend(extent, KELP_WEIGHTS_CURRENT, &values, &loans[count])) {
        count++;
        apply(&empty);
        ck_assert_uint_lt(count, KELP_PS_WEIGHT_BUFFERS_MAX);
    }
    fill(kelp_extent_slot(extent, 0), 1);
    fill(kelp_extent_slot(extent, 1), 2);
    float now = kelp_extent_current(extent)[0];
    ck_assert_int_eq(kelp_capture_take(&capture, pool, 1, extent, NULL), KELP_OK);
    ck_assert(!capture.lent);
    apply(&capture);
    apply(&capture);
    expect(&capture, now, 1, 2);
    kelp_capture_release(&capture);
    while (count > 0) {
        kelp_extent_return(&loans[--count]);
    }
}

/* Buffers are used again, and idle ones do not pile up beyond the limit. */
KELP_TEST(buffers_are_used_again)
{
    struct kelp_capture captures[4] = {{0}};
    const float *before[SLOTS];

    kelp_capture_pool_fill(pool, SLOTS, BYTES);
    ck_assert_int_eq(kelp_capture_take(&captures[0], pool, 1, extent, NULL), KELP_OK);
    ck_assert_int_eq(kelp_capture_detach(&captures[0]), KELP_OK);
    before[0] = captures[0].slots[0];
    before[1] = captures[0].slots[1];
    kelp_capture_release(&captures[0]);
    ck_assert_int_eq(kelp_capture_take(&captures[0], pool, 2, extent, NULL), KELP_OK);
    ck_assert_int_eq(kelp_capture_detach(&captures[0]), KELP_OK);
    for (size_t i = 0; i < SLOTS; i++) {
        ck_assert(captures[0].slots[i] == before[0] || captures[0].slots[i] == before[1]);
    }
    for (size_t i = 1; i < 4; i++) {
        ck_assert_int_eq(kelp_capture_take(&captures[i], pool, 2, extent, NULL), KELP_OK);
        ck_assert_int_eq(kelp_capture_detach(&captures[i]), KELP_OK);
    }
    for (size_t i = 0; i < 4; i++) {
        kelp_capture_release(&captures[i]); /* eight buffers, four of which are kept */
    }
    kelp_capture_pool_fill(pool, 100, BYTES); /* the limit holds */
    kelp_capture_pool_limit(pool, 0);
}

/* A partition without elements has a control state at most. */
KELP_TEST(hollow)
{
    struct kelp_control_state control = {.version = 7};
    struct kelp_capture capture = {0};
    struct kelp_extent *none = NULL;

    ck_assert_int_eq(kelp_extent_create(0, SLOTS, NULL, &none, NULL), KELP_OK);
    ck_assert_int_eq(kelp_capture_take(&capture, pool, 1, none, &control), KELP_OK);
    ck_assert_int_eq(kelp_capture_detach(&capture), KELP_OK);
    ck_assert_uint_eq(capture.bytes, 0);
    ck_assert(!capture.lent);
    kelp_capture_release(&capture);
    kelp_extent_unref(none);
}
