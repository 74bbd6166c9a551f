/* Gradient buffers: reused, and in areas where shards read them in place. */
#include "common/shm/shm_area.h"
#include "kernels/bfloat16.h"
#include "tests/lib/suite.h"
#include "worker/compute/gradients.h"
#include "worker/compute/limits.h"

#define COUNT (KELP_GRADIENT_SHARED_BYTES_MIN / sizeof(float))

static struct kelp_gradient_pool *pool;

static void setup(void)
{
    pool = kelp_gradient_pool_create(COUNT, KELP_PRECISION_FLOAT32);
    ck_assert_ptr_nonnull(pool);
}

static void teardown(void)
{
    kelp_gradient_pool_destroy(pool);
}

static struct kelp_gradient *get(void)
{
    struct kelp_gradient *gradient = kelp_gradient_get(pool);
    ck_assert_ptr_nonnull(gradient);
    ck_assert_uint_eq((uintptr_t)gradient->values % 64, 0);
    return gradient;
}

KELP_CASE("gradients", .setup = setup, .teardown = teardown)

/* The last reference gives a buffer back, which comes again. */
KELP_TEST(reused)
{
    struct kelp_gradient *first = get();
    ck_assert_ptr_null(first->area);
    kelp_gradient_ref(first);
    kelp_gradient_unref(first);
    struct kelp_gradient *second = get();
    ck_assert_ptr_ne(second, first);
    ck_assert_uint_eq(second->number, 1);
    kelp_gradient_unref(first);
    ck_assert_ptr_eq(get(), first);
    ck_assert_uint_eq(first->number, 0);
    kelp_gradient_unref(first);
    kelp_gradient_unref(second);
}

/* Once shards read in place, new buffers lie in areas, zero as any other. */
KELP_TEST(shared)
{
    struct kelp_gradient *before = get();
    kelp_gradient_pool_share(pool);
    struct kelp_gradient *after = get();
    ck_assert_ptr_null(before->area);
    ck_assert_ptr_nonnull(after->area);
    ck_assert_uint_eq(after->number, before->number + 1);
    const char *bytes = kelp_shm_area_bytes(after->area);
    ck_assert((const char *)after->values >= bytes);
    ck_assert((const char *)(after->values + COUNT) <= bytes + kelp_shm_area_length(after->area));
    for (size_t i = 0; i < COUNT; i++) {
        ck_assert_float_eq(after->values[i], 0.0f);
    }
    kelp_gradient_unref(before);
    kelp_gradient_unref(after);
}

/* What somebody may read for ever is written no more: it does not come again. */
KELP_TEST(abandoned)
{
    kelp_gradient_pool_share(pool);
    struct kelp_gradient *gradient = get();
    struct kelp_shm_area *area = gradient->area;
    kelp_shm_area_ref(area);
    kelp_gradient_abandon(gradient);
    kelp_gradient_unref(gradient);
    ck_assert(kelp__shm_area_is_retired(area));
    struct kelp_gradient *next = get();
    ck_assert_ptr_ne(next->area, area);
    kelp_gradient_unref(next);
    kelp_shm_area_unref(area);
}

/* Small ones are copied into a ring: no area is made for them. */
KELP_TEST(small)
{
    struct kelp_gradient_pool *other =
        kelp_gradient_pool_create(COUNT - 16, KELP_PRECISION_FLOAT32);
    kelp_gradient_pool_share(other);
    struct kelp_gradient *gradient = kelp_gradient_get(other);
    ck_assert_ptr_nonnull(gradient);
    ck_assert_ptr_null(gradient->area);
    kelp_gradient_unref(gradient);
    kelp_gradient_pool_destroy(other);
}

static void check_unpacked(const struct kelp_gradient *gradient, uint64_t first, float expected)
{
    float value;
    kelp_bfloat16_unpack(kelp_gradient_bytes(gradient, first), 1, &value);
    ck_assert_float_eq(value, expected);
}

/* As bfloat16 lanes are rounded, and so is each sum; what travels lies in the area, with no sum
 * written over it. As float32 nothing is rounded, and the values travel themselves. */
KELP_LOOP_TEST(what_travels, KELP_PRECISION_FLOAT32, KELP_PRECISION_BFLOAT16 + 1)
{
    const bool rounds = _i == KELP_PRECISION_BFLOAT16;
    struct kelp_gradient_pool *other = kelp_gradient_pool_create(COUNT, (enum kelp_precision)_i);
    kelp_gradient_pool_share(other);
    struct kelp_gradient *left = kelp_gradient_get(other), *right = kelp_gradient_get(other);
    ck_assert(left && right);
    left->present = right->present = true;
    left->values[0] = 1.0f + 1.0f / 1024; /* down to 1 */
    left->values[COUNT - 1] = 256.0f;
    right->values[COUNT - 1] = 1.0f; /* each of the two has few bits, and their sum one more */
    kelp_gradient_round(left, 0, COUNT);
    kelp_gradient_round(right, 0, COUNT);
    ck_assert_float_eq(left->values[0], rounds ? 1.0f : 1.0f + 1.0f / 1024);
    kelp_gradient_merge(left, right);
    ck_assert_float_eq(left->values[COUNT - 1], rounds ? 256.0f : 257.0f);
    kelp_gradient_pack(left, 0, COUNT);
    const char *bytes = kelp_gradient_bytes(left, 0);
    const char *area = kelp_shm_area_bytes(left->area);
    const size_t length = COUNT * kelp_precision_bytes((enum kelp_precision)_i);
    ck_assert(bytes >= area);
    ck_assert(bytes + length <= area + kelp_shm_area_length(left->area));
    ck_assert_ptr_eq(kelp_gradient_bytes(left, COUNT), bytes + length);
    if (rounds) {
        check_unpacked(left, 0, 1.0f);
        check_unpacked(left, COUNT - 1, 256.0f);
        ck_assert(bytes >= (const char *)(left->values + COUNT));
    } else {
        ck_assert_ptr_eq(bytes, left->values);
    }
    kelp_gradient_unref(left);
    kelp_gradient_unref(right);
    kelp_gradient_pool_destroy(other);
}
