/*
 * Convolutions by cuDNN on the emulated device, with a double in cuDNN's place
 * (tests/lib/cuda/emulated_cudnn.h): against the CPU's, in both layouts, and what is done where
 * cuDNN has nothing that may be taken, is not there, or fails.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "tests/lib/cuda/emulated_cudnn.h"
#include "tests/lib/cuda/emulated_device.h"
#include "tests/lib/cuda/operator_cases.h"
#include "tests/lib/models/channels_last.h"
#include "tests/lib/suite.h"

#define ORDERS 3 /* of threads, besides the ascending one; KELP_CUDA_ORDERS has another number */

static struct case_devices devices;

static void create_emulated(void)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_msg(kelp_device_cuda_create_emulated(&devices.other, &error) == KELP_OK, "%s",
                  error.text);
}

static void open_streams(void)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_int_eq(channels_last_cpu_create(&devices.cpu, &error), KELP_OK);
    ck_assert_int_eq(devices.cpu->table->stream_create(devices.cpu, &devices.cpu_stream, &error),
                     KELP_OK);
    ck_assert_int_eq(
        devices.other->table->stream_create(devices.other, &devices.other_stream, &error), KELP_OK);
}

static void setup(void)
{
    struct kelp_error error = {KELP_OK, ""};
    devices = (struct case_devices){.cpu = NULL};
    kelp_cuda_emulated_order(0);
    emulated_cudnn_reset();
    create_emulated();
    ck_assert_msg(devices.other->table->set_cudnn(devices.other, KELP_CUDNN_ALWAYS, &error) ==
                      KELP_OK,
                  "%s", error.text);
    open_streams();
}

static void teardown(void)
{
    devices.cpu->table->stream_destroy(devices.cpu_stream);
    devices.other->table->stream_destroy(devices.other_stream);
    devices.cpu->table->destroy(devices.cpu);
    devices.other->table->destroy(devices.other);
    ck_assert_uint_eq(kelp_cuda_emulated_overruns(), 0);
}

KELP_CASE("cudnn_emulated", .timeout_s = 120, .setup = setup, .teardown = teardown)

/* ---- against the CPU ------------------------------------------------------------------------- */

static void draw_order(void *user, uint32_t run)
{
    (void)user;
    kelp_cuda_emulated_order(run);
}

static uint32_t order_count(void)
{
    const char *text = getenv("KELP_CUDA_ORDERS");
    return text ? (uint32_t)strtoul(text, NULL, 10) : ORDERS;
}

/* All convolutions of the CUDA device's cases; orders that differ give the same bits. */
static void check_convolutions(enum kelp_product_precision precision, bool aligned, uint32_t orders)
{
    struct operator_cases cases;
    uint32_t checked = 0;
    devices.before_run = draw_order;
    operator_cases_init(&cases, 1);
    cases_windows(&cases, false);
    cases_set_precision(&cases, precision);
    if (aligned) {
        cases_align(&cases);
    }
    for (uint32_t i = 0; i < cases.count; i++) {
        struct kelp_error error = {KELP_OK, ""};
        if (strncmp(cases.cases[i].name, "conv2d ", 7) == 0) {
            checked++;
            ck_assert_msg(operator_case_check(&cases.cases[i], &devices, 1, orders, &error) ==
                              KELP_OK,
                          "%s", error.text);
        }
    }
    ck_assert_uint_gt(checked, 40);
    operator_cases_fini(&cases);
}

static void use_precision(enum kelp_product_precision precision)
{
    struct kelp_error error = {KELP_OK, ""};
    devices.other->table->stream_destroy(devices.other_stream);
    ck_assert_int_eq(devices.other->table->set_precision(devices.other, precision, &error),
                     KELP_OK);
    ck_assert_int_eq(
        devices.other->table->stream_create(devices.other, &devices.other_stream, &error), KELP_OK);
}

/* With what is listed first, which may not be taken, they would be refused or not be listed. */
KELP_LOOP_TEST(as_on_the_cpu, KELP_PRODUCT_FLOAT32, KELP_PRODUCT_BFLOAT16 + 1)
{
    const enum kelp_product_precision precision = (enum kelp_product_precision)_i;
    const struct emulated_cudnn *cudnn = emulated_cudnn();
    use_precision(precision);
    check_convolutions(precision, true, order_count());
    for (int direction = 0; direction < KELP_CUDNN_DIRECTIONS; direction++) {
        ck_assert_uint_gt(cudnn->run_count[direction], 40);
        ck_assert_int_eq(cudnn->math[direction], precision == KELP_PRODUCT_FLOAT32
                                                     ? KELP_CUDNN_MATH_FMA
                                                     : KELP_CUDNN_MATH_DEFAULT);
    }
    ck_assert_int_eq(cudnn->algorithm[KELP_CUDNN_FORWARD],
                     KELP_CUDNN_FORWARD_IMPLICIT_PRECOMP_GEMM);
    ck_assert_int_eq(cudnn->algorithm[KELP_CUDNN_DATA], KELP_CUDNN_DATA_1);
    ck_assert_int_eq(cudnn->algorithm[KELP_CUDNN_FILTER], KELP_CUDNN_FILTER_1);
}

/* What is not at 16 bytes is not given to it: the double would refuse. */
KELP_TEST(wherever_operands_lie)
{
    check_convolutions(KELP_PRODUCT_FLOAT32, false, 0);
}

/* A direction without an algorithm that may be taken is computed by Kelp. */
KELP_LOOP_TEST(without_a_deterministic_algorithm, 0, KELP_CUDNN_DIRECTIONS * 2)
{
    struct emulated_cudnn *cudnn = emulated_cudnn();
    const int without = _i / 2;
    for (int i = 0; i < cudnn->counts[without]; i++) {
        cudnn->lists[without][i].determinism = 0;
    }
    cudnn->counts[without] = _i % 2 == 0 ? cudnn->counts[without] : -1;
    check_convolutions(KELP_PRODUCT_FLOAT32, true, 0);
    for (int direction = 0; direction < KELP_CUDNN_DIRECTIONS; direction++) {
        ck_assert(direction == without ? cudnn->run_count[direction] == 0
                                       : cudnn->run_count[direction] > 40);
    }
}

/* ---- one convolution ------------------------------------------------------------------------- */

/* The same numbers as the CPU has them, and as a device with the channels last does. */
struct image {
    uint32_t samples, channels, sides[2];
};

static uint64_t count_of(const struct image *image)
{
    return (uint64_t)image->samples * image->channels * image->sides[0] * image->sides[1];
}

static void turn(const struct image *image, const float *first, float *last, bool back)
{
    const uint64_t plane = (uint64_t)image->sides[0] * image->sides[1];
    for (uint64_t i = 0; i < count_of(image); i++) {
        const uint64_t within = i % plane, row = i / plane;
        const uint64_t sample = row / image->channels, channel = row % image->channels;
        const uint64_t turned = (sample * plane + within) * image->channels + channel;
        if (back) {
            last[i] = first[turned];
        } else {
            last[turned] = first[i];
        }
    }
}

enum { X, WEIGHT, BIAS, Y, DY, DX, DWEIGHT, ARRAYS };
struct convolution {
    struct kelp_conv2d_shape shape;
    uint32_t samples;
    enum kelp_write write;
    struct image x, y;
    uint64_t counts[ARRAYS];
    float *values[ARRAYS]; /* on the host, channels first */
};

static void convolution_init(struct convolution *one, const uint32_t sizes[7], uint32_t groups)
{
    struct kelp_window *window = &one->shape.window;
    uint32_t bits = 1;
    *one = (struct convolution){.samples = sizes[0]};
    one->shape.groups = groups;
    one->shape.samples_max = sizes[0] + 2;
    one->shape.channels_out = sizes[6];
    window->channels = sizes[1];
    for (int side = 0; side < 2; side++) {
        window->input[side] = sizes[2] + (uint32_t)side;
        window->kernel[side] = sizes[3];
        window->stride[side] = sizes[4];
        window->padding[side] = sizes[5];
        window->output[side] = (window->input[side] + 2 * sizes[5] - sizes[3]) / sizes[4] + 1;
    }
    one->x = (struct image){sizes[0], sizes[1], {window->input[0], window->input[1]}};
    one->y = (struct image){sizes[0], sizes[6], {window->output[0], window->output[1]}};
    one->counts[X] = one->counts[DX] = count_of(&one->x);
    one->counts[Y] = one->counts[DY] = count_of(&one->y);
    one->counts[WEIGHT] = one->counts[DWEIGHT] =
        (uint64_t)sizes[6] * (sizes[1] / groups) * sizes[3] * sizes[3];
    one->counts[BIAS] = sizes[6];
    for (int i = 0; i < ARRAYS; i++) {
        one->values[i] = calloc(one->counts[i], sizeof(float));
        ck_assert_ptr_nonnull(one->values[i]);
        for (uint64_t j = 0; j < one->counts[i]; j++) {
            bits = bits * 1664525u + 1013904223u;
            one->values[i][j] = (float)(bits >> 8) * 0x1p-24f + 0.1f;
        }
    }
}

static void convolution_fini(struct convolution *one)
{
    for (int i = 0; i < ARRAYS; i++) {
        free(one->values[i]);
    }
}

static const struct image *image_of(const struct convolution *one, int array)
{
    return array == X || array == DX ? &one->x : array == Y || array == DY ? &one->y : NULL;
}

/* Bytes of conv2d_scratch() that no algorithm of the double takes. */
static uint64_t unused_scratch(void)
{
    size_t most = 0;
    for (int direction = 0; direction < KELP_CUDNN_DIRECTIONS; direction++) {
        for (int i = 0; i < emulated_cudnn()->counts[direction]; i++) {
            const size_t bytes = emulated_cudnn()->lists[direction][i].workspace;
            most = bytes <= KELP_CUDNN_WORKSPACE_MAX && bytes > most ? bytes : most;
        }
    }
    return KELP_CUDNN_WORKSPACE_MAX - most;
}

/* Enqueues it, and what comes of it goes to `results`; recorded and replayed once, if so. */
static kelp_status run_on(struct kelp_stream *stream, const struct convolution *one,
                          enum kelp_layout layout, bool recorded, float *results[ARRAYS],
                          struct kelp_error *reterr)
{
    const struct kelp_device_table *table = stream->table;
    struct kelp_conv2d_shape shape = one->shape;
    struct kelp_conv2d *conv = NULL;
    float *memory[ARRAYS];
    void *workspace = NULL;
    shape.window.layout = layout;
    ck_assert_int_eq(table->conv2d_create(stream->device, &shape, &conv, reterr), KELP_OK);
    ck_assert_int_eq(table->alloc(stream->device, table->conv2d_workspace(conv) * sizeof(float),
                                  &workspace, reterr),
                     KELP_OK);
    for (int i = 0; i < ARRAYS; i++) {
        void *place = NULL;
        ck_assert_int_eq(
            table->alloc(stream->device, one->counts[i] * sizeof(float), &place, reterr), KELP_OK);
        memory[i] = place;
        memcpy(results[i], one->values[i], one->counts[i] * sizeof(float));
        if (layout == KELP_CHANNELS_LAST && image_of(one, i)) {
            turn(image_of(one, i), one->values[i], results[i], false);
        }
        table->copy_in(stream, place, results[i], one->counts[i] * sizeof(float));
    }
    const struct kelp_conv2d_run run = {.conv = conv,
                                        .samples = one->samples,
                                        .x = memory[X],
                                        .weight = memory[WEIGHT],
                                        .bias = memory[BIAS],
                                        .y = memory[Y],
                                        .workspace = workspace,
                                        .dy = memory[DY],
                                        .dx = memory[DX],
                                        .dweight = memory[DWEIGHT],
                                        .write_x = one->write,
                                        .write_weight = one->write};
    struct kelp_recording *recording = NULL;
    if (recorded) {
        table->record_begin(stream);
    }
    (void)kelp_cuda_emulated_largest();
    table->conv2d(stream, &run);
    table->conv2d_gradient(stream, &run);
    if (table->conv2d_scratch && table->conv2d_scratch(conv) != 0) {
        ck_assert_uint_le(kelp_cuda_emulated_largest() + unused_scratch(),
                          table->conv2d_scratch(conv));
    }
    if (recorded) {
        ck_assert_int_eq(table->record_end(stream, &recording, reterr), KELP_OK);
        table->replay(stream, recording);
    }
    for (int i = 0; i < ARRAYS; i++) {
        table->copy_out(stream, results[i], memory[i], one->counts[i] * sizeof(float));
    }
    const kelp_status status = table->wait(stream, reterr);
    table->recording_destroy ? table->recording_destroy(recording) : (void)0;
    for (int i = 0; i < ARRAYS; i++) {
        float *turned = calloc(one->counts[i], sizeof(float));
        ck_assert_ptr_nonnull(turned);
        if (layout == KELP_CHANNELS_LAST && image_of(one, i)) {
            turn(image_of(one, i), results[i], turned, true);
            memcpy(results[i], turned, one->counts[i] * sizeof(float));
        }
        free(turned);
        table->free(stream->device, memory[i]);
    }
    table->free(stream->device, workspace);
    table->conv2d_destroy(conv);
    return status;
}

static void results_init(const struct convolution *one, float *results[ARRAYS])
{
    for (int i = 0; i < ARRAYS; i++) {
        results[i] = calloc(one->counts[i], sizeof(float));
        ck_assert_ptr_nonnull(results[i]);
    }
}

static void results_fini(float *results[ARRAYS])
{
    for (int i = 0; i < ARRAYS; i++) {
        free(results[i]);
    }
}

static void compare(const struct convolution *one, float *expected[ARRAYS], float *given[ARRAYS])
{
    for (int i = 0; i < ARRAYS; i++) {
        for (uint64_t j = 0; j < one->counts[i]; j++) {
            ck_assert_msg(fabsf(expected[i][j] - given[i][j]) <= 1e-5f * fabsf(expected[i][j]),
                          "array %d, element %llu: %g, not %g", i, (unsigned long long)j,
                          (double)given[i][j], (double)expected[i][j]);
        }
    }
}

static const uint32_t sizes[][7] = {
    /* samples, channels, input, kernel, stride, padding, channels out */
    {3, 4, 9, 3, 1, 1, 8},
    {2, 8, 7, 1, 2, 0, 4},
    {1, 3, 11, 5, 2, 2, 6},
    {2, 6, 6, 2, 1, 0, 6},
};

/* Both layouts, with and without what was there before, recorded and not. */
KELP_LOOP_TEST(both_layouts, 0, KELP_ARRAY_COUNT(sizes) * 8)
{
    const enum kelp_layout layout = _i % 2 == 0 ? KELP_CHANNELS_FIRST : KELP_CHANNELS_LAST;
    struct convolution one;
    struct kelp_error error = {KELP_OK, ""};
    float *expected[ARRAYS], *given[ARRAYS];
    convolution_init(&one, sizes[_i / 8], 1);
    one.write = _i / 2 % 2 == 0 ? KELP_OVERWRITE : KELP_ACCUMULATE;
    results_init(&one, expected);
    results_init(&one, given);
    ck_assert_int_eq(run_on(devices.cpu_stream, &one, KELP_CHANNELS_FIRST, false, expected, &error),
                     KELP_OK);
    if (_i / 4 % 2 == 1) { /* what is recorded ran before */
        ck_assert_int_eq(run_on(devices.other_stream, &one, layout, false, given, &error), KELP_OK);
    }
    ck_assert_msg(run_on(devices.other_stream, &one, layout, _i / 4 % 2 == 1, given, &error) ==
                      KELP_OK,
                  "%s", error.text);
    compare(&one, expected, given);
    for (int direction = 0; direction < KELP_CUDNN_DIRECTIONS; direction++) {
        ck_assert_uint_gt(emulated_cudnn()->run_count[direction], 0);
    }
    results_fini(expected);
    results_fini(given);
    convolution_fini(&one);
}

/* Groups of several channels are turned too; of one channel, nothing is. */
KELP_LOOP_TEST(groups_with_the_channels_last, 0, 2)
{
    static const uint32_t grouped[7] = {2, 6, 8, 3, 1, 1, 12};
    struct convolution one;
    struct kelp_error error = {KELP_OK, ""};
    float *expected[ARRAYS], *given[ARRAYS];
    convolution_init(&one, grouped, _i == 0 ? 2 : 6);
    results_init(&one, expected);
    results_init(&one, given);
    ck_assert_int_eq(run_on(devices.cpu_stream, &one, KELP_CHANNELS_FIRST, false, expected, &error),
                     KELP_OK);
    ck_assert_msg(run_on(devices.other_stream, &one, KELP_CHANNELS_LAST, false, given, &error) ==
                      KELP_OK,
                  "%s", error.text);
    compare(&one, expected, given);
    results_fini(expected);
    results_fini(given);
    convolution_fini(&one);
}

/* An algorithm is chosen when the convolution is made, and for other samples when they first come.
 */
KELP_TEST(chosen_once_for_a_number_of_samples)
{
    struct emulated_cudnn *cudnn = emulated_cudnn();
    const struct kelp_device_table *table = devices.other->table;
    struct convolution one;
    struct kelp_conv2d *conv = NULL;
    struct kelp_error error = {KELP_OK, ""};
    void *memory = NULL;
    convolution_init(&one, sizes[0], 1);
    ck_assert_int_eq(
        table->alloc(devices.other, (one.counts[X] + one.counts[WEIGHT]) * 32, &memory, &error),
        KELP_OK);
    cudnn->list_count[KELP_CUDNN_FORWARD] = 0;
    ck_assert_int_eq(table->conv2d_create(devices.other, &one.shape, &conv, &error), KELP_OK);
    ck_assert_uint_eq(cudnn->list_count[KELP_CUDNN_FORWARD], 1);
    static const uint32_t samples[] = {5, 5, 3, 3, 5, 1}, lists[] = {1, 1, 2, 2, 2, 3};
    table->fill(devices.other_stream, memory, 0.5f, (one.counts[X] + one.counts[WEIGHT]) * 8);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(samples); i++) {
        float *room = memory;
        const struct kelp_conv2d_run run = {.conv = conv,
                                            .samples = samples[i],
                                            .x = room,
                                            .weight = room,
                                            .y = room + 4 * one.counts[X]};
        table->conv2d(devices.other_stream, &run);
        ck_assert_uint_eq(cudnn->list_count[KELP_CUDNN_FORWARD], lists[i]);
        ck_assert_uint_eq(cudnn->run_count[KELP_CUDNN_FORWARD], i + 1);
    }
    ck_assert_int_eq(table->wait(devices.other_stream, &error), KELP_OK);
    table->conv2d_destroy(conv);
    table->free(devices.other, memory);
    convolution_fini(&one);
}

/* Handles of a device and of its streams, descriptors of a convolution and of its plans. */
KELP_TEST(nothing_is_left)
{
    struct emulated_cudnn *cudnn = emulated_cudnn();
    const uint32_t handles = cudnn->handles, descriptors = cudnn->descriptors;
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_device *device = NULL;
    struct kelp_stream *streams[2];
    struct convolution one;
    float *given[ARRAYS];
    convolution_init(&one, sizes[0], 1);
    results_init(&one, given);
    ck_assert_int_eq(kelp_device_cuda_create_emulated(&device, &error), KELP_OK);
    ck_assert_int_eq(device->table->set_cudnn(device, KELP_CUDNN_ALWAYS, &error), KELP_OK);
    ck_assert_uint_eq(cudnn->handles, handles + 1);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(device->table->stream_create(device, &streams[i], &error), KELP_OK);
        ck_assert_uint_eq(cudnn->handles, handles + 1 + (uint32_t)i); /* not before it is used */
        ck_assert_int_eq(run_on(streams[i], &one, KELP_CHANNELS_LAST, false, given, &error),
                         KELP_OK);
        ck_assert_uint_eq(cudnn->handles, handles + 2 + (uint32_t)i);
        ck_assert_uint_eq(cudnn->descriptors, descriptors);
    }
    device->table->stream_destroy(streams[0]);
    device->table->stream_destroy(streams[1]);
    ck_assert_uint_eq(cudnn->handles, handles + 1);
    device->table->destroy(device);
    ck_assert_uint_eq(cudnn->handles, handles);
    results_fini(given);
    convolution_fini(&one);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

KELP_TEST(a_convolution_that_is_refused)
{
    struct convolution one;
    struct kelp_error error = {KELP_OK, ""};
    float *given[ARRAYS];
    convolution_init(&one, sizes[0], 1);
    results_init(&one, given);
    emulated_cudnn()->runs = false;
    ck_assert_int_eq(run_on(devices.other_stream, &one, KELP_CHANNELS_FIRST, false, given, &error),
                     KELP_ERR_DEVICE);
    ck_assert_str_eq(error.text, "a convolution was refused by cuDNN");
    emulated_cudnn()->runs = true;
    ck_assert_int_eq(run_on(devices.other_stream, &one, KELP_CHANNELS_FIRST, false, given, &error),
                     KELP_OK);
    results_fini(given);
    convolution_fini(&one);
}

KELP_TEST(a_heuristic_that_fails)
{
    struct convolution one;
    struct kelp_conv2d *conv = NULL;
    struct kelp_error error = {KELP_OK, ""};
    convolution_init(&one, sizes[0], 1);
    emulated_cudnn()->counts[KELP_CUDNN_FILTER] = -2;
    ck_assert_int_eq(devices.other->table->conv2d_create(devices.other, &one.shape, &conv, &error),
                     KELP_ERR_DEVICE);
    ck_assert_str_eq(error.text, "cuDNN refuses a convolution of 4x9x10 by 3x3 to 8 channels");
    convolution_fini(&one);
}

KELP_TEST(a_stream_on_which_it_does_not_start)
{
    struct convolution one;
    struct kelp_error error = {KELP_OK, ""};
    float *given[ARRAYS];
    convolution_init(&one, sizes[0], 1);
    results_init(&one, given);
    emulated_cudnn()->starts = false;
    ck_assert_int_eq(run_on(devices.other_stream, &one, KELP_CHANNELS_FIRST, false, given, &error),
                     KELP_ERR_DEVICE);
    ck_assert_str_eq(error.text, "cuDNN does not start on this GPU");
    results_fini(given);
    convolution_fini(&one);
}

/* A device without streams. */
static void with_another_device(enum kelp_cudnn wanted, kelp_status expected, const char *text,
                                char kind[KELP_COMPUTE_KIND_SIZE])
{
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_device *device = NULL;
    ck_assert_int_eq(kelp_device_cuda_create_emulated(&device, &error), KELP_OK);
    ck_assert_int_eq(device->table->set_cudnn(device, wanted, &error), expected);
    if (expected != KELP_OK) {
        ck_assert_str_eq(error.text, text);
    }
    device->table->describe(device, kind);
    device->table->destroy(device);
}

KELP_TEST(where_it_is_not_there)
{
    char kind[KELP_COMPUTE_KIND_SIZE];
    emulated_cudnn()->found = false;
    with_another_device(KELP_CUDNN_AUTO, KELP_OK, "", kind);
    ck_assert_ptr_null(strstr(kind, "cudnn"));
    with_another_device(KELP_CUDNN_ALWAYS, KELP_ERR_NOT_FOUND, "the emulated device has no cuDNN",
                        kind);
    with_another_device(KELP_CUDNN_NEVER, KELP_OK, "", kind);
    ck_assert_ptr_null(strstr(kind, "cudnn"));
}

/* It is not taken for one that is not there: the job would have another kind on this machine. */
KELP_TEST(where_it_does_not_start)
{
    char kind[KELP_COMPUTE_KIND_SIZE];
    const char *text = "cuDNN does not start on this GPU (status 1001)";
    emulated_cudnn()->starts = false;
    with_another_device(KELP_CUDNN_AUTO, KELP_ERR_DEVICE, text, kind);
    with_another_device(KELP_CUDNN_ALWAYS, KELP_ERR_DEVICE, text, kind);
    with_another_device(KELP_CUDNN_NEVER, KELP_OK, "", kind);
}

/* Its version, and a hash of what it chooses, before the precision. */
KELP_TEST(the_kind_names_it)
{
    char kind[KELP_COMPUTE_KIND_SIZE], other[KELP_COMPUTE_KIND_SIZE];
    with_another_device(KELP_CUDNN_NEVER, KELP_OK, "", kind);
    ck_assert_ptr_null(strstr(kind, "cudnn"));
    with_another_device(KELP_CUDNN_AUTO, KELP_OK, "", kind);
    const char *named = strstr(kind, " cudnn-9.99.99 ");
    ck_assert_ptr_nonnull(named);
    ck_assert_uint_eq(strlen(named), strlen(" cudnn-9.99.99 0123abcd float32"));
    with_another_device(KELP_CUDNN_ALWAYS, KELP_OK, "", other);
    ck_assert_str_eq(kind, other);
    emulated_cudnn()->lists[KELP_CUDNN_FORWARD][2].determinism = 0; /* another one is chosen */
    with_another_device(KELP_CUDNN_AUTO, KELP_OK, "", other);
    ck_assert(strcmp(kind, other) != 0);
    ck_assert_ptr_nonnull(strstr(other, " cudnn-9.99.99 "));
}

KELP_TEST(the_known_answer_in_all_orders)
{
    char text[KELP_COMPUTE_KIND_SIZE];
    uint64_t answer = 0, first = 0;
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_int_eq(kelp_compute_kind(devices.other, text, &first, &error), KELP_OK);
    ck_assert_uint_gt(emulated_cudnn()->run_count[KELP_CUDNN_FORWARD], 0);
    for (uint64_t order = 1; order <= order_count(); order++) {
        kelp_cuda_emulated_order(order);
        ck_assert_int_eq(kelp_compute_kind(devices.other, text, &answer, &error), KELP_OK);
        ck_assert_uint_eq(answer, first);
    }
}
