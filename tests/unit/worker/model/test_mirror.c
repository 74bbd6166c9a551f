/* A gradient that leaves a device while the rest of it is computed, on the fake device. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/fake/fake_device.h"
#include "tests/lib/suite.h"
#include "worker/model/mirror.h"

#define SEEDS 8
#define MIB   ((uint64_t)1 << 18) /* elements of 1 MiB */
#define COUNT (4 * MIB + 10)

static struct kelp_device *device;
static struct kelp_stream *stream, *copies;
static struct kelp__mirror mirror;
static float *computed; /* the device's gradient */
static float *gradient; /* the host's */

static void setup(void)
{
    struct kelp_error error = {KELP_OK, ""};
    mirror = (struct kelp__mirror){0};
    gradient = calloc(COUNT, sizeof(*gradient));
    ck_assert_ptr_nonnull(gradient);
    ck_assert_msg(fake_device_create(&device, &error) == KELP_OK, "%s", error.text);
    ck_assert_int_eq(device->table->stream_create(device, &stream, &error), KELP_OK);
    ck_assert_int_eq(device->table->stream_create(device, &copies, &error), KELP_OK);
    ck_assert_msg(kelp__mirror_prepare(&mirror, device, COUNT, &error) == KELP_OK, "%s",
                  error.text);
    void *memory = NULL;
    ck_assert_int_eq(device->table->alloc(device, COUNT * sizeof(float), &memory, &error), KELP_OK);
    computed = memory;
}

static void teardown(void)
{
    kelp__mirror_fini(&mirror, device);
    device->table->free(device, computed);
    device->table->stream_destroy(copies);
    device->table->stream_destroy(stream);
    device->table->destroy(device);
    free(gradient);
}

KELP_CASE("mirror", .timeout_s = 60, .setup = setup, .teardown = teardown)

/* Tensors with their first elements; what is told is in parts of 1 MiB at least, but for the last
 * one. */
static const uint64_t firsts[] = {0, 100, MIB, MIB + 1, 3 * MIB, 3 * MIB + 50};
static const uint32_t told[] = {4, 3, 0};
#define TENSORS ((uint32_t)KELP_ARRAY_COUNT(firsts))

static uint32_t told_count;

static float value_of(uint64_t element, uint32_t round)
{
    uint32_t tensor = 0;
    while (tensor + 1 < TENSORS && firsts[tensor + 1] <= element) {
        tensor++;
    }
    return (float)(10 * (round + 1) + tensor);
}

/* What is complete is there, and nothing else is yet. */
static void tell(void *user, uint32_t index)
{
    const uint32_t *round = user;
    ck_assert_uint_lt(told_count, KELP_ARRAY_COUNT(told));
    ck_assert_uint_eq(index, told[told_count]);
    told_count++;
    uint64_t right = 0; /* a ck_assert() for each takes minutes */
    for (uint64_t i = firsts[index]; i < COUNT; i++) {
        right += gradient[i] == value_of(i, *round);
    }
    ck_assert_uint_eq(right, COUNT - firsts[index]);
    ck_assert(index == 0 || gradient[firsts[index] - 1] != value_of(firsts[index] - 1, *round));
}

static void enqueue(uint32_t round)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_msg(kelp__mirror_begin(&mirror, device, &error) == KELP_OK, "%s", error.text);
    for (uint32_t i = TENSORS; i-- > 0;) {
        const uint64_t end = i + 1 < TENSORS ? firsts[i + 1] : COUNT;
        device->table->fill(stream, computed + firsts[i], value_of(firsts[i], round),
                            end - firsts[i]);
        kelp__mirror_leave(&mirror, stream, copies, computed, i, firsts[i]);
    }
}

static kelp_status arrive(uint32_t *round)
{
    struct kelp_error error = {KELP_OK, ""};
    return kelp__mirror_arrive(&mirror, stream, copies, gradient, tell, round, &error);
}

static void expect_arrival(uint32_t round)
{
    struct kelp_error error = {KELP_OK, ""};
    told_count = 0;
    enqueue(round);
    ck_assert_int_eq(arrive(&round), KELP_OK);
    ck_assert_uint_eq(told_count, KELP_ARRAY_COUNT(told));
    ck_assert_msg(device->table->wait(stream, &error) == KELP_OK, "%s", error.text);
}

KELP_LOOP_TEST(parts_are_told_as_they_come, 0, SEEDS)
{
    fake_device_seed((uint64_t)_i);
    for (uint32_t round = 0; round < 3; round++) {
        expect_arrival(round);
    }
}

/* What is computed next in the same memory waits for the copies. */
KELP_LOOP_TEST(the_next_gradient_waits, 0, SEEDS)
{
    struct kelp_error error = {KELP_OK, ""};
    uint32_t round = 0;
    fake_device_seed((uint64_t)_i);
    told_count = 0;
    enqueue(round);
    device->table->fill(stream, computed, -1.0f, COUNT);
    ck_assert_int_eq(arrive(&round), KELP_OK);
    ck_assert_uint_eq(told_count, KELP_ARRAY_COUNT(told));
    ck_assert_msg(device->table->wait(stream, &error) == KELP_OK, "%s", error.text);
}

/* What a stream that has failed computes is of no use, and nobody hears of it. */
KELP_LOOP_TEST(nothing_is_told_of_a_failure, 0, SEEDS)
{
    struct kelp_error error = {KELP_OK, ""};
    uint32_t round = 0;
    float host = 0.0f;
    fake_device_seed((uint64_t)_i);
    told_count = 0;
    device->table->fill(stream, &host, 1.0f, 1);
    enqueue(round);
    ck_assert_int_eq(arrive(&round), KELP_OK); /* of the copies: they had nothing to do with it */
    ck_assert_uint_eq(told_count, 0);
    ck_assert_int_eq(device->table->wait(stream, &error), KELP_ERR_DEVICE);
    expect_arrival(round);
}

/* Copies that fail are told by arrive() alone: the stream that computes has not failed. */
KELP_LOOP_TEST(copies_fail, 0, SEEDS)
{
    struct kelp_error error = {KELP_OK, ""};
    uint32_t round = 0;
    float host = 0.0f;
    fake_device_seed((uint64_t)_i);
    told_count = 0;
    device->table->fill(copies, &host, 1.0f, 1);
    enqueue(round);
    ck_assert_int_eq(arrive(&round), KELP_ERR_DEVICE);
    ck_assert_uint_eq(told_count, 0);
    ck_assert_int_eq(device->table->wait(stream, &error), KELP_OK);
    expect_arrival(round);
}

KELP_CASE("weights", .timeout_s = 60, .setup = setup, .teardown = teardown)

static float *make_weights(float value)
{
    float *weights = malloc(COUNT * sizeof(*weights));
    ck_assert_ptr_nonnull(weights);
    for (uint64_t i = 0; i < COUNT; i++) {
        weights[i] = value;
    }
    return weights;
}

/* The mirror's weights, as the computing stream finds them. */
static void expect_weights(float value)
{
    struct kelp_error error = {KELP_OK, ""};
    float *found = malloc(COUNT * sizeof(*found));
    ck_assert_ptr_nonnull(found);
    device->table->copy_out(stream, found, mirror.weights, COUNT * sizeof(*found));
    ck_assert_msg(device->table->wait(stream, &error) == KELP_OK, "%s", error.text);
    uint64_t right = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        right += found[i] == value;
    }
    ck_assert_uint_eq(right, COUNT);
    free(found);
}

/* Groups of 1 MiB at least, but for the last one; in any order. */
KELP_LOOP_TEST(they_come_group_by_group, 0, SEEDS)
{
    static const uint32_t orders[][3] = {{0, 1, 2}, {2, 0, 1}};
    struct kelp_error error = {KELP_OK, ""};
    fake_device_seed((uint64_t)_i);
    ck_assert_int_eq(kelp__mirror_init(&mirror, TENSORS, &error), KELP_OK);
    for (uint32_t round = 0; round < 3; round++) {
        float *weights = make_weights(1.0f + (float)round);
        kelp__mirror_lay_out(&mirror, firsts, TENSORS, COUNT);
        ck_assert_uint_eq(mirror.group_count, 3);
        ck_assert_uint_eq(mirror.group_of[2], 1);
        ck_assert_uint_eq(mirror.group_of[TENSORS - 1], 2);
        for (uint32_t i = 0; i < 3; i++) {
            ck_assert(!mirror.has_weights);
            kelp__mirror_bring(&mirror, &mirror.groups[orders[_i % 2][i]], stream, copies, weights);
            ck_assert(i == 1 || kelp__mirror_settle(&mirror, copies, &error) == KELP_OK);
        }
        ck_assert(mirror.has_weights);
        expect_weights(1.0f + (float)round);
        free(weights);
    }
}

/* What changes while it is on its way is found at the end of the run. */
KELP_LOOP_TEST(they_change_on_their_way, 0, SEEDS)
{
    struct kelp_error error = {KELP_OK, ""};
    float *weights = make_weights(1.0f);
    fake_device_seed((uint64_t)_i);
    ck_assert_int_eq(kelp__mirror_init(&mirror, TENSORS, &error), KELP_OK);
    kelp__mirror_lay_out(&mirror, firsts, TENSORS, COUNT);
    kelp__mirror_bring(&mirror, &mirror.groups[1], stream, copies, weights);
    weights[mirror.groups[1].from] = 2.0f;
    ck_assert_int_eq(kelp__mirror_settle(&mirror, copies, &error), KELP_ERR_DEVICE);
    ck_assert_msg(strstr(error.text, "changed before wait()") != NULL, "%s", error.text);
    ck_assert(!mirror.has_weights);
    ck_assert_int_eq(device->table->wait(stream, &error), KELP_OK);
    free(weights);
}
