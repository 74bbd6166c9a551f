/* Lanes that are added up on a device, on the fake one: the bits of the tree, whatever lanes are
 * missing, and no more memory than it has levels. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/fake/fake_device.h"
#include "tests/lib/suite.h"
#include "worker/model/level_sums.h"

#define SEEDS 6
#define COUNT 16u
#define LANES 16u

static struct kelp_device *device;
static struct kelp_stream *stream;
static struct kelp__level_sums sums;
static float *gradient; /* on the device, of the lane in work */
static struct kelp_error error;

static void setup(void)
{
    void *memory = NULL;
    error = (struct kelp_error){KELP_OK, ""};
    sums = (struct kelp__level_sums){.count = 0};
    ck_assert_int_eq(fake_device_create(&device, &error), KELP_OK);
    ck_assert_int_eq(device->table->stream_create(device, &stream, &error), KELP_OK);
    ck_assert_int_eq(device->table->alloc(device, COUNT * sizeof(float), &memory, &error), KELP_OK);
    gradient = memory;
}

static void teardown(void)
{
    kelp__level_sums_fini(&sums, device);
    device->table->free(device, gradient);
    device->table->stream_destroy(stream);
    device->table->destroy(device);
}

static float value_of(uint32_t lane, uint32_t element)
{
    const uint32_t number = (lane * COUNT + element + 1) * 2654435761u;
    return (float)(int32_t)number * 0x1p-20f;
}

/* The definition: left plus right, down to single lanes. lanes: a bit for each that is there. */
static bool tree(uint32_t first, uint32_t count, uint32_t lanes, uint32_t element, float *ret_value)
{
    float left = 0, right = 0;
    if (count == 1) {
        *ret_value = value_of(first, element);
        return (lanes >> first & 1) != 0;
    }
    const bool has_left = tree(first, count / 2, lanes, element, &left);
    const bool has_right = tree(first + count / 2, count / 2, lanes, element, &right);
    *ret_value = !has_right ? left : !has_left ? right : left + right;
    return has_left || has_right;
}

/* The lane's gradient, computed on the device. */
static void compute(uint32_t lane)
{
    float values[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        values[i] = value_of(lane, i);
    }
    device->table->copy_in(stream, gradient, values, sizeof(values));
    ck_assert_msg(device->table->wait(stream, &error) == KELP_OK, "%s", error.text);
}

/* Whole, or in pieces from the last one on. */
static void add_last(bool in_pieces, float results[COUNT])
{
    const uint64_t piece = in_pieces ? 5 : COUNT;
    for (uint64_t end = COUNT; end > 0;) {
        const uint64_t first = end > piece ? end - piece : 0;
        kelp__level_sums_add(&sums, stream, gradient, first, end - first);
        end = first;
    }
    device->table->copy_out(stream, results, gradient, COUNT * sizeof(float));
    ck_assert_msg(device->table->wait(stream, &error) == KELP_OK, "%s", error.text);
}

static void expect_node(uint32_t first, uint32_t count, uint32_t lanes, bool in_pieces)
{
    float results[COUNT], expected = 0;
    uint32_t last = first + count;
    while (last > first && (lanes >> (last - 1) & 1) == 0) {
        last--;
    }
    kelp__level_sums_begin(&sums);
    for (uint32_t lane = first; lane + 1 < last; lane++) {
        if ((lanes >> lane & 1) != 0) {
            ck_assert_int_eq(kelp__level_sums_reserve(&sums, device, COUNT, &error), KELP_OK);
            kelp__level_sums_advance(&sums, stream, lane);
            compute(lane);
            kelp__level_sums_keep(&sums, stream, gradient, lane);
        }
    }
    if (last == first) {
        return; /* none is there */
    }
    kelp__level_sums_advance(&sums, stream, last - 1);
    compute(last - 1);
    add_last(in_pieces, results);
    for (uint32_t i = 0; i < COUNT; i++) {
        ck_assert(tree(first, count, lanes, i, &expected));
        ck_assert_msg(results[i] == expected, "lanes %x, [%u, +%u)", lanes, first, count);
    }
}

KELP_CASE("level_sums", .timeout_s = 60, .setup = setup, .teardown = teardown)

/* Each node of sixteen lanes, of which all, or some, or none are there. */
KELP_LOOP_TEST(bits_of_the_tree, 0, SEEDS)
{
    static const uint32_t lanes[] = {0xffff, 0x6db6, 0xff0f, 0x7ffe, 0x0000,
                                     0x8000, 0x1001, 0x0d41, 0xaaaa, 0x0fff};
    fake_device_seed((uint64_t)_i);
    for (size_t l = 0; l < KELP_ARRAY_COUNT(lanes); l++) {
        for (uint32_t count = 1; count <= LANES; count *= 2) {
            for (uint32_t first = 0; first < LANES; first += count) {
                expect_node(first, count, lanes[l], l % 2 == 1);
            }
        }
    }
    kelp__level_sums_begin(&sums);
    ck_assert_uint_le(sums.unused_count, 5); /* for sixteen lanes */
}
