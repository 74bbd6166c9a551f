/*
 * The CUDA device's kernels without a GPU (tests/lib/cuda/emulated_device.h): every operator
 * against the CPU's, and in drawn orders of a kernel's threads, which must all give the same bits.
 */
#include <stdlib.h>

#include "kernels/device.h"
#include "tests/lib/cuda/emulated_device.h"
#include "tests/lib/cuda/operator_cases.h"
#include "tests/lib/cuda/operator_faults.h"
#include "tests/lib/suite.h"

#define SEEDS       1   /* of the cases' sizes and values, from KELP_CUDA_SEED (0) on */
#define ORDERS      20  /* besides the ascending one; KELP_CUDA_ORDERS has another number */
#define ORDERS_MOST 100 /* of what is a test for each */

static struct case_devices devices;

static uint64_t first_seed(void)
{
    const char *text = getenv("KELP_CUDA_SEED");
    return text ? strtoull(text, NULL, 10) : 0;
}

static void setup(void)
{
    struct kelp_error error = {KELP_OK, ""};
    devices = (struct case_devices){.cpu = NULL};
    kelp_cuda_emulated_order(0);
    ck_assert_int_eq(kelp_device_cpu_create(1, &devices.cpu, &error), KELP_OK);
    ck_assert_msg(kelp_device_cuda_create_emulated(&devices.other, &error) == KELP_OK, "%s",
                  error.text);
    ck_assert_int_eq(devices.cpu->table->stream_create(devices.cpu, &devices.cpu_stream, &error),
                     KELP_OK);
    ck_assert_msg(devices.other->table->stream_create(devices.other, &devices.other_stream,
                                                      &error) == KELP_OK,
                  "%s", error.text);
}

static void teardown(void)
{
    devices.cpu->table->stream_destroy(devices.cpu_stream);
    devices.other->table->stream_destroy(devices.other_stream);
    devices.cpu->table->destroy(devices.cpu);
    devices.other->table->destroy(devices.other);
}

KELP_CASE("cuda_emulated", .timeout_s = 120, .setup = setup, .teardown = teardown)

/* The first run is in ascending order, the others each in one of their own. */
static void draw_order(void *user, uint32_t run)
{
    const uint64_t *seed = user;
    kelp_cuda_emulated_order(run == 0 ? 0 : *seed * 1000 + run);
}

static uint32_t order_count(void)
{
    const char *text = getenv("KELP_CUDA_ORDERS");
    return text ? (uint32_t)strtoul(text, NULL, 10) : ORDERS;
}

static void check_group(void (*add)(struct operator_cases *cases, bool large), int index)
{
    struct operator_cases cases;
    const uint64_t seed = first_seed() + (uint64_t)index;
    uint64_t order_seed = seed + 1;
    devices.before_run = draw_order;
    devices.user = &order_seed;
    operator_cases_init(&cases, seed);
    add(&cases, false);
    ck_assert_uint_gt(cases.count, 0);
    for (uint32_t i = 0; i < cases.count; i++) {
        struct kelp_error error = {KELP_OK, ""};
        ck_assert_msg(operator_case_check(&cases.cases[i], &devices, seed, order_count(), &error) ==
                          KELP_OK,
                      "%s", error.text);
    }
    operator_cases_fini(&cases);
}

#define GROUP(group) cases_##group,
static void (*const groups[])(struct operator_cases *cases, bool large) = {OPERATOR_GROUPS(GROUP)};
#define GROUP_COUNT ((int)KELP_ARRAY_COUNT(groups))

KELP_LOOP_TEST(operators, 0, GROUP_COUNT *SEEDS)
{
    check_group(groups[_i % GROUP_COUNT], _i / GROUP_COUNT);
}

/* Whichever thread finds it first, the stream says the same. */
KELP_LOOP_TEST(bad_ids_and_classes, 0, ORDERS_MOST)
{
    struct kelp_error error = {KELP_OK, ""};
    if ((uint32_t)_i >= order_count()) {
        return;
    }
    kelp_cuda_emulated_order((uint64_t)_i);
    ck_assert_msg(operator_faults_check(&devices, &error) == KELP_OK, "%s", error.text);
}

KELP_TEST(too_large_an_allocation)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_msg(operator_memory_check(&devices, &error) == KELP_OK, "%s", error.text);
}

KELP_TEST(marks)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_msg(operator_marks_check(&devices, &error) == KELP_OK, "%s", error.text);
}

KELP_TEST(streams_after_each_other)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_msg(operator_after_check(&devices, &error) == KELP_OK, "%s", error.text);
}

KELP_TEST(the_known_answer_in_all_orders)
{
    char text[KELP_COMPUTE_KIND_SIZE], first_text[KELP_COMPUTE_KIND_SIZE];
    uint64_t answer = 0, first = 0;
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_msg(kelp_compute_kind(devices.other, first_text, &first, &error) == KELP_OK, "%s",
                  error.text);
    for (uint64_t order = 1; order <= order_count(); order++) {
        kelp_cuda_emulated_order(order);
        ck_assert_msg(kelp_compute_kind(devices.other, text, &answer, &error) == KELP_OK, "%s",
                      error.text);
        ck_assert_str_eq(text, first_text);
        ck_assert_uint_eq(answer, first);
    }
}
