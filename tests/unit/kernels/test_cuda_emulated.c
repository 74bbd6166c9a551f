/*
 * The CUDA device's kernels without a GPU (tests/lib/cuda/emulated_device.h): every operator
 * against the CPU's, and in drawn orders of a kernel's threads, which must all give the same bits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bfloat16.h"
#include "kernels/device.h"
#include "tests/lib/cuda/emulated_device.h"
#include "tests/lib/cuda/operator_cases.h"
#include "tests/lib/cuda/operator_faults.h"
#include "tests/lib/cuda/operator_norm.h"
#include "tests/lib/models/channels_last.h"
#include "tests/lib/suite.h"

#define SEEDS 1 /* of the cases' sizes and values, from KELP_CUDA_SEED (0) on */
/* Orders besides the ascending one, or KELP_CUDA_ORDERS. In any of them test_cuda_races finds
 * races. */
#define ORDERS      10
#define ORDERS_MOST 100 /* of what is a test for each */

static struct case_devices devices;
static uint32_t expected_overruns; /* of memory, by the test */

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
    ck_assert_int_eq(channels_last_cpu_create(&devices.cpu, &error), KELP_OK);
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
    ck_assert_uint_eq(kelp_cuda_emulated_overruns(), expected_overruns);
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

/* An operator that writes one float more than it asked for is found, though one before it asked for
 * more, and while it is recorded. */
KELP_TEST(more_scratch_than_asked_for)
{
    const struct kelp_device_table *table = devices.other->table;
    struct kelp_stream *stream = devices.other_stream;
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_recording *recording = NULL;
    kelp_cuda_emulated_write_scratch(stream, 1000, 1000);
    kelp_cuda_emulated_write_scratch(stream, 100, 100);
    kelp_cuda_emulated_write_scratch(stream, 1000, 1000);
    ck_assert_uint_eq(kelp_cuda_emulated_overruns(), 0);
#ifndef __SANITIZE_ADDRESS__ /* it ends the process there */
    kelp_cuda_emulated_write_scratch(stream, 100, 101);
    kelp_cuda_emulated_write_scratch(stream, 1000, 1000);
    ck_assert_uint_eq(kelp_cuda_emulated_overruns(), 1);
    expected_overruns = 2; /* the other one when the stream goes */
#endif
    table->record_begin(stream);
    kelp_cuda_emulated_write_scratch(stream, 50, 50 + expected_overruns / 2);
    kelp_cuda_emulated_write_scratch(stream, 60, 60);
    ck_assert_int_eq(table->record_end(stream, &recording, &error), KELP_OK);
    table->replay(stream, recording);
    ck_assert_int_eq(table->wait(stream, &error), KELP_OK);
    table->recording_destroy(recording);
}

/* As many marks as a gradient of a GiB has parts are waited for where they were made, and not where
 * a later one was. */
KELP_TEST(marks_are_kept_apart)
{
    enum { MARKS = 1024 };
    const struct kelp_device_table *table = devices.other->table;
    uint64_t marks[MARKS], first = 0;
    for (uint32_t i = 0; i < MARKS; i++) {
        marks[i] = table->mark(devices.other_stream);
    }
    for (uint32_t i = 0; i < MARKS; i++) {
        ck_assert(table->wait_mark(devices.other_stream, marks[i]));
        first = i == 0 ? kelp_cuda_emulated_waited() : first;
        ck_assert_uint_eq(kelp_cuda_emulated_waited(), first + i);
    }
}

/* What CUDA keeps for the process goes when the process says so, and comes back with a device. */
KELP_TEST(a_process_leaves_the_gpu)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert(kelp_cuda_emulated_has_context());
    devices.other->table->stream_destroy(devices.other_stream);
    devices.other->table->destroy(devices.other);
    ck_assert(kelp_cuda_emulated_has_context());
    kelp_cuda_emulated_leave();
    ck_assert(!kelp_cuda_emulated_has_context());
    kelp_cuda_emulated_leave();
    ck_assert_int_eq(kelp_device_cuda_create_emulated(&devices.other, &error), KELP_OK);
    ck_assert(kelp_cuda_emulated_has_context());
    ck_assert_int_eq(
        devices.other->table->stream_create(devices.other, &devices.other_stream, &error), KELP_OK);
    check_group(groups[0], 0);
}

/* One pass over a batch or a row loses no digits of its variance. */
KELP_TEST(norms_are_exact)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_msg(operator_norm_check(&devices, NULL, &error) == KELP_OK, "%s", error.text);
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

/* An update says whether a gradient was finite, and adds nothing to what was said before. */
KELP_TEST(a_gradient_that_is_not_finite)
{
    const float bad[] = {INFINITY, -INFINITY, NAN, 1.0f};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        struct kelp_stream *stream = devices.other_stream;
        struct kelp_error error = {KELP_OK, ""};
        float values[5] = {1.0f, 2.0f, 0.5f, bad[i], 0.0f}; /* weights, gradient, none of it bad */
        void *memory = NULL;
        ck_assert_int_eq(
            devices.other->table->alloc(devices.other, 8 * sizeof(float), &memory, &error),
            KELP_OK);
        float *room = memory;
        stream->table->copy_in(stream, room, values, sizeof(values));
        stream->table->optimizer(
            stream, &(struct kelp_optimizer_run){
                        .step = {.kind = KELP_OPTIMIZER_SGD, .scale = 1.0f, .lr = 0.5f},
                        .count = 2,
                        .weights = room,
                        .gradient = room + 2,
                        .weights_next = room + 5,
                        .not_finite = (void *)(room + 4)});
        uint32_t not_finite = 2;
        float next = 0.0f;
        stream->table->copy_out(stream, &not_finite, room + 4, sizeof(not_finite));
        stream->table->copy_out(stream, &next, room + 5, sizeof(next));
        ck_assert_int_eq(stream->table->wait(stream, &error), KELP_OK);
        ck_assert_uint_eq(not_finite, i < 3);
        ck_assert_float_eq(next, 0.75f);
        devices.other->table->free(devices.other, memory);
    }
}

/* ---- precision ------------------------------------------------------------------------------- */

static const enum kelp_product_precision precisions[] = {KELP_PRODUCT_FLOAT32, KELP_PRODUCT_TF32,
                                                         KELP_PRODUCT_BFLOAT16};
static const char *const precision_names[] = {"float32", "tf32", "bfloat16"};

/* From now on the other device computes so. */
static void use_precision(enum kelp_product_precision precision)
{
    struct kelp_error error = {KELP_OK, ""};
    devices.other->table->stream_destroy(devices.other_stream);
    ck_assert_msg(devices.other->table->set_precision(devices.other, precision, &error) == KELP_OK,
                  "%s", error.text);
    ck_assert_int_eq(
        devices.other->table->stream_create(devices.other, &devices.other_stream, &error), KELP_OK);
}

/* x 1, a product of one by one. */
static float times_one(float x)
{
    struct kelp_stream *stream = devices.other_stream;
    struct kelp_error error = {KELP_OK, ""};
    float values[3] = {x, 1.0f, 0.0f};
    void *memory = NULL;
    ck_assert_int_eq(devices.other->table->alloc(devices.other, sizeof(values), &memory, &error),
                     KELP_OK);
    float *a = memory;
    stream->table->copy_in(stream, a, values, sizeof(values));
    stream->table->matmul(
        stream,
        &(struct kelp_matmul){
            .m = 1, .n = 1, .k = 1, .a = a, .lda = 1, .b = a + 1, .ldb = 1, .c = a + 2, .ldc = 1});
    stream->table->copy_out(stream, values, a, sizeof(values));
    ck_assert_int_eq(stream->table->wait(stream, &error), KELP_OK);
    devices.other->table->free(devices.other, memory);
    return values[2];
}

/* What operands lose: nothing, 13 bits, 16 bits, to the nearest and ties to the even one. */
KELP_TEST(operands_are_rounded)
{
    const float tf32_tie = 1.0f + 0x1p-11f, bfloat16_tie = 1.0f + 0x1p-8f;
    ck_assert_float_eq(times_one(tf32_tie), tf32_tie);
    use_precision(KELP_PRODUCT_TF32);
    ck_assert_float_eq(times_one(tf32_tie), 1.0f);
    ck_assert_float_eq(times_one(1.0f + 0x3p-11f), 1.0f + 0x2p-10f);
    ck_assert_float_eq(times_one(bfloat16_tie), bfloat16_tie);
    ck_assert(isinf(times_one(INFINITY)));
    use_precision(KELP_PRODUCT_BFLOAT16);
    ck_assert_float_eq(times_one(bfloat16_tie), 1.0f);
    for (uint32_t i = 1; i < 2000; i++) {
        float x = (float)(int32_t)(i * 2654435761u) * 0x1p-31f;
        const float given = times_one(x);
        kelp_bfloat16_round(&x, 1);
        ck_assert_float_eq(given, x);
    }
}

#define PIXELS 2000u

/* x 1 for each of them, a convolution of images of one element with the channels last. */
static void times_one_by_tiles(const float x[PIXELS], float y[PIXELS])
{
    const struct kelp_conv2d_shape shape = {
        .window = {.channels = 1,
                   .input = {1, 1},
                   .kernel = {1, 1},
                   .stride = {1, 1},
                   .output = {1, 1},
                   .layout = KELP_CHANNELS_LAST},
        .channels_out = 1,
        .groups = 1,
        .samples_max = PIXELS,
    };
    const struct kelp_device_table *table = devices.other->table;
    struct kelp_stream *stream = devices.other_stream;
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_conv2d_run run = {.samples = PIXELS};
    const float one = 1.0f;
    void *memory = NULL;
    ck_assert_int_eq(table->conv2d_create(devices.other, &shape, &run.conv, &error), KELP_OK);
    const uint64_t workspace = table->conv2d_workspace(run.conv);
    ck_assert_int_eq(
        table->alloc(devices.other, (2 * PIXELS + 1 + workspace) * sizeof(float), &memory, &error),
        KELP_OK);
    float *room = memory;
    run.x = room;
    run.y = room + PIXELS;
    run.weight = room + 2 * PIXELS;
    run.workspace = room + 2 * PIXELS + 1;
    table->copy_in(stream, room, x, PIXELS * sizeof(float));
    table->copy_in(stream, room + 2 * PIXELS, &one, sizeof(one));
    table->conv2d(stream, &run);
    table->copy_out(stream, y, run.y, PIXELS * sizeof(float));
    ck_assert_int_eq(table->wait(stream, &error), KELP_OK);
    table->free(devices.other, memory);
    table->conv2d_destroy(run.conv);
}

/* What operands of tensor cores lose in tiles: tf32 rounds ties away from zero. */
KELP_TEST(operands_of_tiles_are_rounded)
{
    float x[PIXELS], y[PIXELS];
    for (uint32_t i = 0; i < PIXELS; i++) {
        x[i] = (float)(int32_t)(i * 2654435761u) * 0x1p-31f;
    }
    x[0] = 1.0f + 0x1p-11f;
    x[1] = -1.0f - 0x3p-11f;
    x[2] = INFINITY;
    x[3] = 0x1.fffffep127f;
    times_one_by_tiles(x, y);
    ck_assert_mem_eq(x, y, sizeof(x));
    use_precision(KELP_PRODUCT_TF32);
    times_one_by_tiles(x, y);
    ck_assert_float_eq(y[0], 1.0f + 0x1p-10f);
    ck_assert_float_eq(y[1], -1.0f - 0x2p-10f);
    ck_assert(isinf(y[2]) && isinf(y[3]));
    for (uint32_t i = 4; i < PIXELS; i++) {
        const float scale = ldexpf(1.0f, ilogbf(x[i]) - 10); /* of its last place */
        ck_assert_float_eq(fmodf(y[i], scale), 0.0f);
        ck_assert(fabsf(y[i] - x[i]) <= scale / 2);
    }
    use_precision(KELP_PRODUCT_BFLOAT16);
    times_one_by_tiles(x, y);
    kelp_bfloat16_round(x, PIXELS);
    ck_assert_mem_eq(x, y, sizeof(x));
}

/* A warp's lanes hold of a tensor core's operands and sums what the PTX ISA says. All numbers are
 * small and whole. */
KELP_LOOP_TEST(tensor_cores_deal_operands_as_ptx_says, 0, 2)
{
    enum { ROWS = 16, COLUMNS = 8, K_MOST = 16 };
    const struct kelp_device_table *table = devices.other->table;
    struct kelp_stream *stream = devices.other_stream;
    struct kelp_error error = {KELP_OK, ""};
    const uint32_t k = _i != 0 ? 16 : 8;
    float host[ROWS * K_MOST + K_MOST * COLUMNS + ROWS * COLUMNS], sums[ROWS * COLUMNS];
    float *a = host, *b = a + ROWS * k, *c = b + k * COLUMNS;
    void *memory = NULL;
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(host); i++) {
        host[i] = (float)((i * 7 + i / 5) % 31) - 15.0f;
    }
    ck_assert_int_eq(table->alloc(devices.other, sizeof(host), &memory, &error), KELP_OK);
    float *there = memory;
    table->copy_in(stream, there, host, sizeof(host));
    kelp_cuda_emulated_multiply(stream, _i != 0, there, there + (b - host), there + (c - host));
    table->copy_out(stream, sums, there + (c - host), sizeof(sums));
    ck_assert_int_eq(table->wait(stream, &error), KELP_OK);
    for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
        float sum = c[i];
        for (uint32_t j = 0; j < k; j++) {
            sum = sum + a[i / COLUMNS * k + j] * b[j * COLUMNS + i % COLUMNS];
        }
        ck_assert_float_eq(sums[i], sum);
    }
    table->free(devices.other, memory);
}

/* Products and convolutions are as near to the CPU's as their operands allow, in all orders. */
KELP_LOOP_TEST(products_of_rounded_operands, 1, KELP_ARRAY_COUNT(precisions))
{
    static void (*const with_products[])(struct operator_cases *, bool) = {cases_products,
                                                                           cases_windows};
    use_precision(precisions[_i]);
    for (size_t group = 0; group < KELP_ARRAY_COUNT(with_products); group++) {
        struct operator_cases cases;
        uint64_t order_seed = 1;
        devices.before_run = draw_order;
        devices.user = &order_seed;
        operator_cases_init(&cases, first_seed());
        with_products[group](&cases, false);
        cases_set_precision(&cases, precisions[_i]);
        for (uint32_t i = 0; i < cases.count; i++) {
            struct kelp_error error = {KELP_OK, ""};
            ck_assert_msg(operator_case_check(&cases.cases[i], &devices, first_seed(), 1, &error) ==
                              KELP_OK,
                          "%s: %s", precision_names[_i], error.text);
        }
        operator_cases_fini(&cases);
    }
}

/* The kind names the precision, and the known answer is another one. */
KELP_TEST(the_kind_names_the_precision)
{
    uint64_t answers[KELP_ARRAY_COUNT(precisions)];
    for (size_t i = 0; i < KELP_ARRAY_COUNT(precisions); i++) {
        char text[KELP_COMPUTE_KIND_SIZE];
        struct kelp_error error = {KELP_OK, ""};
        use_precision(precisions[i]);
        ck_assert_int_eq(kelp_compute_kind(devices.other, text, &answers[i], &error), KELP_OK);
        ck_assert_str_eq(strrchr(text, ' ') + 1, precision_names[i]);
    }
    ck_assert_uint_ne(answers[0], answers[1]);
    ck_assert_uint_ne(answers[1], answers[2]);
    ck_assert_uint_ne(answers[0], answers[2]);
}
