/* Convolution of the CPU device: random shapes against the plainest possible loops in
 * double, written over and added to; every instruction set to the same bits. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/loops/loops.h"
#include "tests/unit/kernels/windows.h"

struct convolution {
    struct kelp_conv2d_shape shape;
    uint64_t x, y, weight; /* elements */
    struct kelp_conv2d_run run;
    float *bias;
};

static struct kelp_conv2d_shape random_shape(uint32_t seed)
{
    struct kelp_conv2d_shape shape = {.window = random_window(seed), .samples_max = SAMPLES};
    shape.groups = random_below(seed, 3) == 0 ? 1 + random_below(seed, 4) : 1;
    shape.window.channels = shape.groups * (1 + random_below(seed, seed % 3 == 0 ? 24 : 9));
    shape.channels_out = shape.groups * (1 + random_below(seed, 9));
    return shape;
}

static void convolution_init(struct convolution *c, const struct kelp_conv2d_shape *shape,
                             uint32_t samples)
{
    struct kelp_error error = {KELP_OK, ""};
    const uint64_t channels_in = shape->window.channels / shape->groups;
    *c = (struct convolution){.shape = *shape,
                              .x = samples * shape->window.channels * plane(shape->window.input),
                              .y = samples * shape->channels_out * plane(shape->window.output),
                              .weight =
                                  shape->channels_out * channels_in * plane(shape->window.kernel)};
    ck_assert_msg(device->table->conv2d_create(device, shape, &c->run.conv, &error) == KELP_OK,
                  "%s", error.text);
    c->bias = floats(shape->channels_out);
    c->run.samples = samples;
    c->run.x = floats(c->x);
    c->run.weight = floats(c->weight);
    c->run.y = floats(c->y);
    c->run.dy = floats(c->y);
    c->run.workspace = floats(device->table->conv2d_workspace(c->run.conv));
    c->run.dx = floats(c->x);
    c->run.dweight = floats(c->weight);
    c->run.dbias = floats(shape->channels_out);
}

static void convolution_fini(struct convolution *c)
{
    const void *buffers[] = {c->run.x,  c->run.weight,  c->run.y,     c->run.dy, c->run.workspace,
                             c->run.dx, c->run.dweight, c->run.dbias, c->bias};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(buffers); i++) {
        free((void *)(uintptr_t)buffers[i]);
    }
    device->table->conv2d_destroy(c->run.conv);
}

/* Calls visit() with the elements of x, weight and y that belong to each product. */
struct product {
    uint64_t x, weight, y;
};
static void each_product(const struct convolution *c,
                         void (*visit)(const struct product *, const struct convolution *,
                                       double *),
                         double *sums)
{
    const struct kelp_window *window = &c->shape.window;
    const uint64_t in = window->channels / c->shape.groups;
    const uint64_t out = c->shape.channels_out / c->shape.groups, kernel = plane(window->kernel);
    for (uint64_t s = 0; s < c->run.samples; s++) {
        for (uint64_t channel = 0; channel < c->shape.channels_out; channel++) {
            for (uint64_t o = 0; o < plane(window->output); o++) {
                for (uint64_t i = 0; i < in * kernel; i++) {
                    const int64_t at = meets(window, o, i % kernel);
                    const uint64_t from = channel / out * in + i / kernel;
                    const struct product product = {
                        .x = (s * window->channels + from) * plane(window->input) + (uint64_t)at,
                        .weight = channel * in * kernel + i,
                        .y = (s * c->shape.channels_out + channel) * plane(window->output) + o};
                    if (at >= 0) {
                        visit(&product, c, sums);
                    }
                }
            }
        }
    }
}

static void visit_y(const struct product *p, const struct convolution *c, double *y)
{
    y[p->y] += (double)c->run.x[p->x] * (double)c->run.weight[p->weight];
}

static void visit_dx(const struct product *p, const struct convolution *c, double *dx)
{
    dx[p->x] += (double)c->run.dy[p->y] * (double)c->run.weight[p->weight];
}

static void visit_dweight(const struct product *p, const struct convolution *c, double *dweight)
{
    dweight[p->weight] += (double)c->run.dy[p->y] * (double)c->run.x[p->x];
}

static double *expected_y(const struct convolution *c)
{
    const uint64_t output = plane(c->shape.window.output);
    double *y = doubles(NULL, c->y);
    for (uint64_t i = 0; c->run.bias != NULL && i < c->y; i++) {
        y[i] = (double)c->run.bias[i / output % c->shape.channels_out];
    }
    each_product(c, visit_y, y);
    return y;
}

static double *expected_dbias(const struct convolution *c)
{
    const uint64_t output = plane(c->shape.window.output);
    double *dbias =
        doubles(c->run.write_bias == KELP_ACCUMULATE ? c->run.dbias : NULL, c->shape.channels_out);
    for (uint64_t i = 0; i < c->y; i++) {
        dbias[i / output % c->shape.channels_out] += (double)c->run.dy[i];
    }
    return dbias;
}

static void fill_nan(float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        values[i] = NAN;
    }
}

static void check_convolution(const struct kelp_conv2d_shape *shape, uint32_t samples)
{
    struct convolution c;
    convolution_init(&c, shape, samples);
    for (uint32_t way = 0; way < 2; way++) {
        const enum kelp_write write = way == 0 ? KELP_OVERWRITE : KELP_ACCUMULATE;
        c.run.bias = way == 0 ? c.bias : NULL;
        c.run.write_x = c.run.write_weight = c.run.write_bias = write;
        double *y = expected_y(&c), *dbias = expected_dbias(&c);
        double *dx = doubles(write == KELP_ACCUMULATE ? c.run.dx : NULL, c.x);
        double *dweight = doubles(write == KELP_ACCUMULATE ? c.run.dweight : NULL, c.weight);
        each_product(&c, visit_dx, dx);
        each_product(&c, visit_dweight, dweight);
        if (write == KELP_OVERWRITE) { /* what was there does not matter, even if it is NaN */
            fill_nan(c.run.y, c.y);
            fill_nan(c.run.dx, c.x);
            fill_nan(c.run.dweight, c.weight);
            fill_nan(c.run.workspace, device->table->conv2d_workspace(c.run.conv));
        }
        stream->table->conv2d(stream, &c.run);
        stream->table->conv2d_gradient(stream, &c.run);
        ck_assert_int_eq(stream->table->wait(stream, NULL), KELP_OK);
        expect_near(c.run.y, y, c.y, 1e-4, "output");
        expect_near(c.run.dx, dx, c.x, 1e-4, "gradient of x");
        /* Its sums are as long as the outputs are many. */
        expect_near(c.run.dweight, dweight, c.weight, 1e-4 + 1e-8 * (double)c.y,
                    "gradient of the weight");
        expect_near(c.run.dbias, dbias, shape->channels_out, 1e-4, "gradient of the bias");
    }
    convolution_fini(&c);
}

KELP_CASE("conv", .setup = setup, .teardown = teardown)

/* Output and gradients of random shapes, for as many samples as planned and for fewer. */
KELP_LOOP_TEST(test_convolution, 0, 30)
{
    const struct kelp_conv2d_shape shape = random_shape((uint32_t)_i);
    check_convolution(&shape, SAMPLES);
    check_convolution(&shape, 1);
}

/* Convolutions as the models that Kelp brings have them, with fewer channels. */
KELP_TEST(test_known_shapes)
{
    static const struct {
        uint32_t in, out, side, kernel, stride, padding;
    } shapes[] = {{1, 32, 28, 3, 1, 0}, {32, 9, 26, 3, 1, 0}, {1, 16, 28, 7, 2, 3},
                  {64, 32, 7, 3, 1, 1}, {64, 24, 7, 3, 2, 1}, {64, 32, 7, 1, 2, 0},
                  {64, 32, 4, 3, 1, 1}, {32, 64, 2, 3, 1, 1}, {64, 64, 1, 3, 1, 1}};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(shapes); i++) {
        const uint32_t side = shapes[i].side, kernel = shapes[i].kernel;
        const uint32_t stride = shapes[i].stride, padding = shapes[i].padding;
        const uint32_t output = (side + 2 * padding - kernel) / stride + 1;
        const struct kelp_conv2d_shape shape = {.window = {.channels = shapes[i].in,
                                                           .input = {side, side},
                                                           .kernel = {kernel, kernel},
                                                           .stride = {stride, stride},
                                                           .padding = {padding, padding},
                                                           .output = {output, output}},
                                                .channels_out = shapes[i].out,
                                                .groups = 1,
                                                .samples_max = 2};
        check_convolution(&shape, side < 8 ? 2 : 1);
    }
}

/* More samples than are worked on at a time. */
KELP_TEST(test_many_samples)
{
    const struct kelp_conv2d_shape shape = {.window = {.channels = 16,
                                                       .input = {56, 56},
                                                       .kernel = {2, 1},
                                                       .stride = {1, 1},
                                                       .padding = {1, 0},
                                                       .output = {57, 56}},
                                            .channels_out = 1,
                                            .groups = 1,
                                            .samples_max = 21};
    check_convolution(&shape, 21);
}

/* Gradients that nobody wants are not touched, and without samples they are nothing. */
KELP_TEST(test_parts_of_gradient)
{
    const struct kelp_conv2d_shape shape = random_shape(7);
    struct convolution c;
    convolution_init(&c, &shape, SAMPLES);
    struct kelp_conv2d_run run = c.run;
    double *dx = doubles(NULL, c.x);
    each_product(&c, visit_dx, dx);
    run.dweight = run.dbias = NULL;
    stream->table->conv2d_gradient(stream, &run);
    expect_near(run.dx, dx, c.x, 1e-4, "gradient of x alone");
    run = c.run;
    run.samples = 0;
    stream->table->conv2d(stream, &run);
    stream->table->conv2d_gradient(stream, &run);
    ck_assert_int_eq(stream->table->wait(stream, NULL), KELP_OK);
    expect_near(run.dweight, doubles(NULL, c.weight), c.weight, 0.0, "gradient of no samples");
    expect_near(run.dbias, doubles(NULL, shape.channels_out), shape.channels_out, 0.0,
                "gradient of no samples");
    convolution_fini(&c);
}

/* Another workspace, another run: the same bits. */
KELP_LOOP_TEST(test_repeats, 0, 6)
{
    const struct kelp_conv2d_shape shape = random_shape((uint32_t)_i);
    struct convolution first, second;
    convolution_init(&first, &shape, SAMPLES);
    random_use = 1000;
    convolution_init(&second, &shape, SAMPLES);
    memcpy((float *)(uintptr_t)second.run.x, first.run.x, first.x * sizeof(float));
    memcpy((float *)(uintptr_t)second.run.weight, first.run.weight, first.weight * sizeof(float));
    memcpy((float *)(uintptr_t)second.run.dy, first.run.dy, first.y * sizeof(float));
    struct convolution *both[] = {&first, &second};
    for (uint32_t i = 0; i < 2; i++) {
        stream->table->conv2d(stream, &both[i]->run);
        stream->table->conv2d_gradient(stream, &both[i]->run);
    }
    ck_assert_mem_eq(first.run.y, second.run.y, first.y * sizeof(float));
    ck_assert_mem_eq(first.run.dx, second.run.dx, first.x * sizeof(float));
    ck_assert_mem_eq(first.run.dweight, second.run.dweight, first.weight * sizeof(float));
    ck_assert_mem_eq(first.run.dbias, second.run.dbias, shape.channels_out * sizeof(float));
    convolution_fini(&first);
    convolution_fini(&second);
}

/* Where buffers begin does not change a product, nor what was in the result before. */
KELP_LOOP_TEST(test_products_anywhere, 0, 4)
{
    static const uint32_t sizes[][3] = {{37, 67, 131}, {64, 16, 6}, {216, 64, 32}, {1, 96, 300}};
    const uint32_t m = sizes[_i][0], n = sizes[_i][1], k = sizes[_i][2];
    const float *a = floats((uint64_t)m * k), *b = floats((uint64_t)k * n);
    float *first = floats((uint64_t)m * n);
    for (uint32_t way = 0; way < 4; way++) {
        for (uint32_t shift = 0; shift < 4; shift++) {
            float *shifted_a = floats((uint64_t)m * k + shift) + shift;
            float *shifted_b = floats((uint64_t)k * n + shift) + shift;
            float *c = floats((uint64_t)m * n + shift) + shift;
            memcpy(shifted_a, a, (uint64_t)m * k * sizeof(*a));
            memcpy(shifted_b, b, (uint64_t)k * n * sizeof(*b));
            fill_nan(c, (uint64_t)m * n);
            const struct kelp_matmul product = {.transpose_a = (way & 1) != 0,
                                                .transpose_b = (way & 2) != 0,
                                                .m = m,
                                                .n = n,
                                                .k = k,
                                                .a = shifted_a,
                                                .lda = (way & 1) != 0 ? m : k,
                                                .b = shifted_b,
                                                .ldb = (way & 2) != 0 ? k : n,
                                                .c = c,
                                                .ldc = n};
            stream->table->matmul(stream, &product);
            ck_assert_int_eq(stream->table->wait(stream, NULL), KELP_OK);
            if (shift == 0) {
                memcpy(first, c, (uint64_t)m * n * sizeof(*c));
                ck_assert(!isnan(first[0]));
            }
            ck_assert_mem_eq(c, first, (uint64_t)m * n * sizeof(*c));
            free(shifted_a - shift);
            free(shifted_b - shift);
            free(c - shift);
        }
    }
    free((void *)(uintptr_t)a);
    free((void *)(uintptr_t)b);
    free(first);
}

/* Sizes that do not belong together are refused with both of them in the text. */
KELP_TEST(test_refuses)
{
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_conv2d *conv = NULL;
    struct kelp_conv2d_shape shape = random_shape(3);
    shape.window.output[1]++;
    ck_assert_int_eq(device->table->conv2d_create(device, &shape, &conv, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "does not fit together"));
    shape.window.output[1]--;
    shape.groups = shape.window.channels + 1;
    ck_assert_int_eq(device->table->conv2d_create(device, &shape, &conv, &error), KELP_ERR_INVALID);
    shape.groups = 0;
    ck_assert_int_eq(device->table->conv2d_create(device, &shape, &conv, &error), KELP_ERR_INVALID);
    ck_assert_ptr_null(conv);
    device->table->conv2d_destroy(NULL);
}

/* ---- instruction sets ---- */

struct results {
    float *values;
    uint64_t count;
};

static void add_result(struct results *results, const void *values, uint64_t count)
{
    results->values = realloc(results->values, (results->count + count + 1) * sizeof(float));
    ck_assert_ptr_nonnull(results->values);
    memcpy(results->values + results->count, values, count * sizeof(float));
    results->count += count;
}

/* All loops of one variant, buffers `shift` elements after an aligned address. */
static struct results run_all(const struct kelp_loops *variant, uint32_t seed, uint32_t shift)
{
    struct results results = {NULL, 0};
    struct kelp_window window = random_window(seed);
    window.channels = 5;
    const uint64_t in = 5 * plane(window.input), out = 5 * plane(window.output);
    const uint64_t kernel = plane(window.kernel);
    float *x = floats(shift + in), *y = floats(shift + out), *dx = floats(shift + in);
    float *dy = floats(shift + out), *columns = floats(shift + out * kernel);
    uint32_t *chosen = calloc(shift + out, sizeof(*chosen));
    const float *source = floats(in);
    ck_assert_ptr_nonnull(chosen);
    memcpy(x + shift, source, in * sizeof(float));
    memset(dx + shift, 0, in * sizeof(float));
    variant->window->unfold(&window, x + shift, columns + shift);
    add_result(&results, columns + shift, out * kernel);
    variant->window->fold_add(&window, columns + shift, dx + shift);
    add_result(&results, dx + shift, in);
    const struct kelp_average_pool average = {.window = window,
                                              .samples = 1,
                                              .x = x + shift,
                                              .y = y + shift,
                                              .dy = y + shift,
                                              .dx = dx + shift,
                                              .write = KELP_ACCUMULATE};
    kelp__cpu_table(variant)->average_pool(NULL, &average);
    kelp__cpu_table(variant)->average_pool_gradient(NULL, &average);
    add_result(&results, dx + shift, in);
    const struct kelp_max_pool max = {.window = window,
                                      .samples = 1,
                                      .x = dx + shift,
                                      .y = dy + shift,
                                      .chosen = chosen + shift,
                                      .dy = y + shift,
                                      .dx = x + shift,
                                      .write = KELP_ACCUMULATE};
    kelp__cpu_table(variant)->max_pool(NULL, &max);
    kelp__cpu_table(variant)->max_pool_gradient(NULL, &max);
    add_result(&results, dy + shift, out);
    add_result(&results, chosen + shift, out);
    const struct kelp_channels sizes = {1, 5, plane(window.input)};
    float bias[5] = {0};
    variant->window->channel_bias_gradient(bias, x + shift, &sizes, KELP_ACCUMULATE);
    variant->window->channel_bias_add(x + shift, bias, &sizes);
    add_result(&results, x + shift, in);
    free(x);
    free(y);
    free(dx);
    free(dy);
    free(columns);
    free(chosen);
    free((void *)(uintptr_t)source);
    return results;
}

/* Every instruction set gives the same bits, wherever the buffers begin. */
KELP_LOOP_TEST(test_variants_agree, 0, 15)
{
    const struct kelp_loops *variant;
    random_use = 0;
    struct results first = run_all(kelp__loops_variant(0), (uint32_t)_i, 0);
    for (uint32_t n = 0; (variant = kelp__loops_variant(n)) != NULL; n++) {
        for (uint32_t shift = 0; shift < 9; shift += 3) {
            random_use = 0;
            struct results other = run_all(variant, (uint32_t)_i, shift);
            ck_assert_uint_eq(first.count, other.count);
            ck_assert_msg(memcmp(first.values, other.values, first.count * sizeof(float)) == 0,
                          "%s, shift %u", variant->name, shift);
            free(other.values);
        }
    }
    free(first.values);
}
