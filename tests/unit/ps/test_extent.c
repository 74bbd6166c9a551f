#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ps/core/limits.h"
#include "ps/shard/tensors/extent.h"
#include "tests/lib/suite.h"

#define COUNT 32
#define SLOTS 2

static struct kelp_extent *extent;

static void set_up(void)
{
    ck_assert_int_eq(kelp_extent_create(COUNT, SLOTS, NULL, &extent, NULL), KELP_OK);
}

static void tear_down(void)
{
    kelp_extent_unref(extent);
}

/* One step: the next weights are all `value`. */
static void step_to(float value)
{
    float *next = kelp_extent_next(extent);

    ck_assert_ptr_nonnull(next);
    ck_assert_ptr_ne(next, kelp_extent_current(extent));
    for (size_t i = 0; i < COUNT; i++) {
        next[i] = value;
    }
    kelp_extent_commit(extent);
    ck_assert_ptr_eq(kelp_extent_current(extent), next);
}

#define LARGE (KELP_PS_AREA_BYTES_MIN / sizeof(float))

static struct kelp_area_pool *pool;

static void set_up_shared(void)
{
    pool = kelp_area_pool_create();
    ck_assert_ptr_nonnull(pool);
}

static void tear_down_shared(void)
{
    kelp_area_pool_unref(pool);
}

KELP_CASE("shared", .setup = set_up_shared, .teardown = tear_down_shared)

/* Weights that others of this host read lie in areas: large ones each in its own, small ones
 * together. */
KELP_TEST(areas)
{
    struct kelp_extent *extents[4];
    struct kelp_shm_area *areas[4];
    const float *values[4];

    for (size_t i = 0; i < 4; i++) {
        struct kelp_extent_loan loan;
        ck_assert_int_eq(
            kelp_extent_create(i < 2 ? LARGE : LARGE - 16, SLOTS, pool, &extents[i], NULL),
            KELP_OK);
        ck_assert_uint_eq((uintptr_t)kelp_extent_current(extents[i]) % 64, 0);
        ck_assert_float_eq(kelp_extent_current(extents[i])[LARGE - 17], 0.0f);
        ck_assert(kelp_extent_lend(extents[i], KELP_WEIGHTS_CURRENT, &values[i], &loan));
        areas[i] = kelp_extent_loan_area(&loan);
        ck_assert_ptr_nonnull(areas[i]);
        kelp_extent_return(&loan);
    }
    ck_assert_ptr_ne(areas[0], areas[1]);
    ck_assert_ptr_ne(areas[0], areas[2]);
    ck_assert_ptr_eq(areas[2], areas[3]);
    ck_assert(values[2] + LARGE - 16 <= values[3] || values[3] + LARGE - 16 <= values[2]);
    for (size_t i = 0; i < 4; i++) {
        kelp_extent_unref(extents[i]);
    }
}

/* A buffer that somebody may read for ever is never written again: the next weights get another. */
KELP_LOOP_TEST(abandoned, 0, 2)
{
    const size_t count = _i == 0 ? LARGE : 32;
    const float *values;
    struct kelp_extent_loan loan;

    ck_assert_int_eq(kelp_extent_create(count, SLOTS, pool, &extent, NULL), KELP_OK);
    kelp_extent_current(extent)[0] = 1.0f;
    ck_assert(kelp_extent_lend(extent, KELP_WEIGHTS_CURRENT, &values, &loan));
    struct kelp_shm_area *area = kelp_extent_loan_area(&loan);
    kelp_shm_area_ref(area); /* as a channel does, whose other side has it mapped */
    kelp_extent_abandon(&loan);
    ck_assert_ptr_eq(kelp_extent_current(extent), values); /* it is what it was */
    for (int step = 0; step < 6; step++) {
        float *next = kelp_extent_next(extent);
        ck_assert_ptr_nonnull(next);
        ck_assert(next + count <= values || next >= values + count);
        next[0] = 2.0f;
        kelp_extent_commit(extent);
    }
    ck_assert_float_eq(values[0], 1.0f);
    ck_assert_int_eq(kelp__shm_area_is_retired(area), _i == 0);
    kelp_extent_unref(extent);
    kelp_shm_area_unref(area);
}

KELP_CASE("all", .setup = set_up, .teardown = tear_down)

/* Weights and slots are zero at first, aligned to cache lines, and at different places of a page.
 */
KELP_TEST(arrays)
{
    const float *arrays[] = {kelp_extent_current(extent), kelp_extent_slot(extent, 0),
                             kelp_extent_slot(extent, 1)};

    ck_assert_uint_eq(kelp_extent_bytes(extent), COUNT * sizeof(float));
    ck_assert_uint_eq(kelp_extent_slot_count(extent), SLOTS);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(arrays); i++) {
        ck_assert_uint_eq((uintptr_t)arrays[i] % 64, 0);
        for (size_t e = 0; e < COUNT; e++) {
            ck_assert_float_eq(arrays[i][e], 0.0f);
        }
        for (size_t j = 0; j < i; j++) {
            ck_assert_uint_ne((uintptr_t)arrays[i] % 4096, (uintptr_t)arrays[j] % 4096);
        }
    }
}

/* The older weights can be read until the next ones are begun. */
KELP_TEST(older_weights)
{
    const float *values;
    struct kelp_extent_loan loan;

    step_to(1.0f);
    step_to(2.0f);
    ck_assert(kelp_extent_lend(extent, KELP_WEIGHTS_OLDER, &values, &loan));
    ck_assert_float_eq(values[31], 1.0f);
    kelp_extent_return(&loan);
    ck_assert(kelp_extent_lend(extent, KELP_WEIGHTS_CURRENT, &values, &loan));
    ck_assert_float_eq(values[0], 2.0f);
    kelp_extent_return(&loan);
}

/* A step that changes nothing: both labels have the same weights. */
KELP_TEST(repeated_weights)
{
    const float *values[2];
    struct kelp_extent_loan loans[2];

    step_to(1.0f);
    kelp_extent_repeat(extent);
    ck_assert(kelp_extent_lend(extent, KELP_WEIGHTS_OLDER, &values[0], &loans[0]));
    ck_assert(kelp_extent_lend(extent, KELP_WEIGHTS_CURRENT, &values[1], &loans[1]));
    ck_assert_ptr_eq(values[0], values[1]);
    kelp_extent_return(&loans[0]);
    kelp_extent_return(&loans[1]);
}

/* What is lent keeps its values, however many steps follow; slow readers never stop training. */
KELP_TEST(loans_are_not_overwritten)
{
    struct kelp_extent_loan loans[64];
    const float *values[64];
    float expected[64];
    size_t lent = 0, refused = 0;

    for (uint64_t step = 0; step < 64; step++) {
        if (kelp_extent_lend(extent, KELP_WEIGHTS_CURRENT, &values[lent], &loans[lent])) {
            expected[lent++] = (float)step;
        } else {
            refused++;
            ck_assert_float_eq(values[lent][5], (float)step); /* to be copied */
        }
        step_to((float)step + 1);
        for (size_t i = 0; i < lent; i++) {
            ck_assert_float_eq(values[i][5], expected[i]);
        }
    }
    ck_assert_uint_eq(lent, KELP_PS_WEIGHT_BUFFERS_MAX - 2);
    ck_assert_uint_gt(refused, 0);
    for (size_t i = 0; i < lent; i++) {
        kelp_extent_return(&loans[i]);
    }
    ck_assert(kelp_extent_lend(extent, KELP_WEIGHTS_CURRENT, &values[0], &loans[0]));
    kelp_extent_return(&loans[0]);
}

/* Loans outlive their partition. */
KELP_TEST(loans_keep_the_memory)
{
    struct kelp_extent_loan loan;
    const float *values;
    size_t bytes;

    step_to(7.0f);
    ck_assert(kelp_extent_lend(extent, KELP_WEIGHTS_CURRENT, &values, &loan));
    kelp_extent_unref(extent);
    ck_assert_float_eq(values[31], 7.0f);
    ck_assert_ptr_eq(kelp_extent_loan_bytes(&loan, &bytes), values);
    ck_assert_uint_eq(bytes, COUNT * sizeof(float));
    kelp_extent_return(&loan);
    extent = NULL;
}

/* Memory that was reserved is what a step takes when a buffer is lent; contents are not touched. */
KELP_TEST(reserved_buffers)
{
    struct kelp_extent_loan loan;
    const float *values;

    step_to(1);
    kelp_extent_reserve(extent, KELP_PS_WEIGHT_BUFFERS_MIN);
    ck_assert_float_eq(kelp_extent_current(extent)[0], 1);
    ck_assert(kelp_extent_lend(extent, KELP_WEIGHTS_CURRENT, &values, &loan));
    step_to(2);
    step_to(3);
    kelp_extent_reserve(extent, KELP_PS_WEIGHT_BUFFERS_MAX);
    ck_assert_float_eq(kelp_extent_current(extent)[0], 3);
    ck_assert_float_eq(values[0], 1);
    kelp_extent_ref(extent);
    kelp_extent_unref(extent);
    kelp_extent_return(&loan);
}

/* A copy that comes in takes the place of both weights, and of nothing that is still being sent. */
KELP_TEST(refilled_weights)
{
    struct kelp_extent_loan loans[2];
    const float *values[2];

    step_to(1);
    ck_assert(kelp_extent_lend(extent, KELP_WEIGHTS_CURRENT, &values[0], &loans[0]));
    ck_assert(kelp_extent_lend(extent, KELP_WEIGHTS_OLDER, &values[1], &loans[1]));
    ck_assert(kelp_extent_refill(extent));
    ck_assert_ptr_ne(kelp_extent_current(extent), kelp_extent_older(extent));
    kelp_extent_current(extent)[0] = 8;
    kelp_extent_older(extent)[0] = 7;
    ck_assert_float_eq(values[0][0], 1);
    ck_assert_float_eq(values[1][0], 0);
    kelp_extent_return(&loans[0]);
    kelp_extent_return(&loans[1]);
    step_to(9);
    ck_assert_float_eq(kelp_extent_older(extent)[0], 8);
}

/* A partition without elements has no bytes, and needs none. */
KELP_TEST(hollow)
{
    struct kelp_extent *none = NULL;

    ck_assert_int_eq(kelp_extent_create(0, SLOTS, NULL, &none, NULL), KELP_OK);
    ck_assert_uint_eq(kelp_extent_bytes(none), 0);
    kelp_extent_unref(none);
}

/* Has the mapping around this address been asked to be in huge pages? */
static bool wants_huge_pages(const void *address)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    bool inside = false, wants = false;

    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof(line), maps)) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) {
            inside = begin <= (uintptr_t)address && (uintptr_t)address < end;
        } else if (inside && strncmp(line, "VmFlags:", 8) == 0) {
            wants = strstr(line, " hg") != NULL;
        }
    }
    (void)fclose(maps);
    return wants;
}

/* Large arrays ask for huge pages, and lie at different places of a page as all do; small ones
 * would waste most of one. */
KELP_TEST(huge_pages)
{
    struct kelp_extent *large;

    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0) {
        return; /* there are none */
    }
    ck_assert_int_eq(kelp_extent_create(2u << 20, SLOTS, NULL, &large, NULL), KELP_OK);
    const float *current = kelp_extent_current(large), *slot = kelp_extent_slot(large, 0);
    ck_assert(wants_huge_pages(current + (1u << 20)));
    ck_assert(wants_huge_pages(slot + (1u << 20)));
    ck_assert(!wants_huge_pages(kelp_extent_current(extent)));
    ck_assert_uint_ne((uintptr_t)current % 4096, (uintptr_t)slot % 4096);
    kelp_extent_unref(large);
}
