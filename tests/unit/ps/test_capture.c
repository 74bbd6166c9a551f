#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ps/core/limits.h"
#include "ps/shard/capture.h"
#include "tests/lib/suite.h"

#define ELEMENTS 1024
#define BYTES    (ELEMENTS * sizeof(float))
#define SLOTS    2

static struct kelp_weights *weights;
static struct kelp_capture_pool *pool;
static float slots[SLOTS][ELEMENTS];
static uint64_t step;

static void fill(float *values, float value)
{
    for (size_t i = 0; i < ELEMENTS; i++) {
        values[i] = value;
    }
}

static void set_up(void)
{
    uint64_t count = ELEMENTS;

    ck_assert_int_eq(kelp_weights_create(&count, 1, &weights, NULL), KELP_OK);
    ck_assert_int_eq(kelp_capture_pool_create(&pool, NULL), KELP_OK);
    kelp_capture_pool_limit(pool, 4);
    step = 0;
    fill(kelp_weights_current(weights, 0), 0.5f);
    fill(slots[0], 10);
    fill(slots[1], 20);
}

/* The pool's destroy asserts that all buffers came back, and so does the weights' reference count
 * under the address sanitizer. */
static void tear_down(void)
{
    kelp_capture_pool_destroy(pool);
    kelp_weights_unref(weights);
}

static struct kelp_capture_source source(void)
{
    return (struct kelp_capture_source){
        .weights = weights, .bytes = BYTES, .slot_count = SLOTS, .slots = {slots[0], slots[1]}};
}

/* What an apply does: new weights in another slot, optimizer slots in place. */
static void apply(struct kelp_capture *capture)
{
    ck_assert_int_eq(kelp_capture_detach(capture), KELP_OK);
    float *next = kelp_weights_next(weights, 0, step++);
    ck_assert_ptr_nonnull(next);
    fill(next, 100 + (float)step);
    kelp_weights_commit(weights, 0);
    for (size_t i = 0; i < SLOTS; i++) {
        fill(slots[i], 1000 + (float)step);
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
    struct kelp_capture_source from = source();

    ck_assert_int_eq(kelp_capture_take(&capture, pool, 3, &from, &control), KELP_OK);
    ck_assert_ptr_eq(capture.slots[0], slots[0]); /* nothing was copied yet */
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

/* Detached, it outlives the partition's memory. */
KELP_TEST(outlives_the_generation)
{
    struct kelp_capture capture = {0};
    struct kelp_capture_source from = source();

    ck_assert_int_eq(kelp_capture_take(&capture, pool, 1, &from, NULL), KELP_OK);
    ck_assert_int_eq(kelp_capture_detach(&capture), KELP_OK);
    kelp_weights_unref(weights);
    weights = NULL;
    memset(slots, 0, sizeof(slots));
    expect(&capture, 0.5f, 10, 20);
    ck_assert(!capture.has_control);
    kelp_capture_release(&capture);
}

/* When streams hold too many weight slots, the weights are copied at once. */
KELP_TEST(weights_that_cannot_be_lent)
{
    struct kelp_weights_loan loans[KELP_PS_WEIGHT_SLOTS_MAX];
    const float *values;
    size_t count = 0;
    struct kelp_capture capture = {0}, empty = {0};
    struct kelp_capture_source from = source();

    while (kelp_weights_lend(weights, 0, KELP_WEIGHTS_CURRENT, &values, &loans[count])) {
        count++;
        apply(&empty);
        ck_assert_uint_lt(count, KELP_PS_WEIGHT_SLOTS_MAX);
    }
    fill(slots[0], 1);
    fill(slots[1], 2);
    float now = kelp_weights_current(weights, 0)[0];
    ck_assert_int_eq(kelp_capture_take(&capture, pool, 1, &from, NULL), KELP_OK);
    ck_assert(!capture.lent);
    apply(&capture);
    apply(&capture);
    expect(&capture, now, 1, 2);
    kelp_capture_release(&capture);
    while (count > 0) {
        kelp_weights_return(&loans[--count]);
    }
}

/* Buffers are used again, and idle ones do not pile up beyond the limit. */
KELP_TEST(buffers_are_used_again)
{
    struct kelp_capture captures[4] = {{0}};
    struct kelp_capture_source from = source();
    const float *before[SLOTS];

    kelp_capture_pool_fill(pool, SLOTS, BYTES);
    ck_assert_int_eq(kelp_capture_take(&captures[0], pool, 1, &from, NULL), KELP_OK);
    ck_assert_int_eq(kelp_capture_detach(&captures[0]), KELP_OK);
    before[0] = captures[0].slots[0];
    before[1] = captures[0].slots[1];
    kelp_capture_release(&captures[0]);
    ck_assert_int_eq(kelp_capture_take(&captures[0], pool, 2, &from, NULL), KELP_OK);
    ck_assert_int_eq(kelp_capture_detach(&captures[0]), KELP_OK);
    for (size_t i = 0; i < SLOTS; i++) {
        ck_assert(captures[0].slots[i] == before[0] || captures[0].slots[i] == before[1]);
    }
    for (size_t i = 1; i < 4; i++) {
        ck_assert_int_eq(kelp_capture_take(&captures[i], pool, 2, &from, NULL), KELP_OK);
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
    struct kelp_capture_source from = {.weights = weights, .slot_count = SLOTS};

    ck_assert_int_eq(kelp_capture_take(&capture, pool, 1, &from, &control), KELP_OK);
    ck_assert_int_eq(kelp_capture_detach(&capture), KELP_OK);
    ck_assert_uint_eq(capture.bytes, 0);
    ck_assert(!capture.lent);
    kelp_capture_release(&capture);
}
