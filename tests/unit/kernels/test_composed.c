/* The CPU's operators that are composed of others, against those: the same bits. */
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "kernels/device.h"
#include "tests/lib/suite.h"

#define ROOM  8000 /* floats of each buffer */
#define SEEDS 40

static struct kelp_device *device;
static struct kelp_stream *stream;
static uint32_t use; /* of the next buffer */

static void setup(void)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_int_eq(kelp_device_cpu_create(1, &device, &error), KELP_OK);
    ck_assert_int_eq(device->table->stream_create(device, &stream, &error), KELP_OK);
}

static void teardown(void)
{
    device->table->stream_destroy(stream);
    device->table->destroy(device);
}

static uint32_t draw(uint32_t low, uint32_t high)
{
    uint32_t words[4];
    kelp_philox(3, KELP_PHILOX_TEST, use++, 0, words);
    return low + words[0] % (high - low + 1);
}

static float *drawn(void)
{
    float *values = malloc(ROOM * sizeof(*values));
    ck_assert_ptr_nonnull(values);
    for (uint32_t i = 0; i < ROOM; i++) {
        uint32_t words[4];
        kelp_philox(3, KELP_PHILOX_TEST, use, i, words);
        values[i] = 2.0f * kelp_philox_float(words[0]) - 1.0f;
    }
    use++;
    return values;
}

static float *copied(const float *values)
{
    float *copy = malloc(ROOM * sizeof(*copy));
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, values, ROOM * sizeof(*copy));
    return copy;
}

KELP_CASE("composed", .setup = setup, .teardown = teardown)

/* ---- linear ---- */

static struct kelp_linear draw_linear(float *sums, float *y)
{
    const uint32_t kind = draw(KELP_UNARY_RELU, KELP_UNARY_TANH + 1);
    struct kelp_linear linear = {.rows = draw(1, 30), .in = draw(1, 40), .out = draw(1, 40)};
    linear.activated = kind <= KELP_UNARY_TANH;
    linear.activation = (enum kelp_unary_kind)(kind % (KELP_UNARY_TANH + 1));
    linear.x = drawn();
    linear.x_ld = linear.in + draw(0, 3);
    linear.weight = drawn();
    linear.bias = draw(0, 3) == 0 ? NULL : drawn();
    linear.sums = sums;
    linear.y = y;
    linear.y_ld = linear.out + (linear.activated ? 0 : draw(0, 3));
    return linear;
}

/* Into y, and the sums into `sums`. */
static void plain_linear(const struct kelp_linear *p, float *sums, float *y)
{
    const struct kelp_matmul product = {.transpose_b = true,
                                        .m = p->rows,
                                        .n = p->out,
                                        .k = p->in,
                                        .a = p->x,
                                        .lda = p->x_ld,
                                        .b = p->weight,
                                        .ldb = p->in,
                                        .c = sums,
                                        .ldc = p->y_ld};
    const struct kelp_bias bias = {
        .matrix = sums, .ld = p->y_ld, .rows = p->rows, .columns = p->out, .bias = p->bias};
    const struct kelp_unary unary = {
        .kind = p->activation, .x = sums, .y = y, .count = (uint64_t)p->rows * p->out};
    stream->table->matmul(stream, &product);
    if (p->bias) {
        stream->table->bias_add(stream, &bias);
    }
    if (p->activated) {
        stream->table->unary(stream, &unary);
    } else {
        memcpy(y, sums, ROOM * sizeof(*y));
    }
}

KELP_LOOP_TEST(linear, 0, SEEDS)
{
    use = 1000 * (uint32_t)_i;
    float *y = drawn(), *sums = copied(y), *y_wanted = copied(y), *sums_wanted = copied(y);
    const struct kelp_linear linear = draw_linear(sums, y);
    plain_linear(&linear, sums_wanted, y_wanted);
    stream->table->linear(stream, &linear);
    ck_assert_mem_eq(y, y_wanted, ROOM * sizeof(*y));
    if (linear.activated && linear.activation == KELP_UNARY_GELU) {
        ck_assert_mem_eq(sums, sums_wanted, ROOM * sizeof(*sums));
    }
    free((void *)linear.x);
    free((void *)linear.weight);
    free((void *)linear.bias);
    free(y);
    free(sums);
    free(y_wanted);
    free(sums_wanted);
}

struct gradients {
    float *dsums, *dx, *dweight, *dbias;
};

static void plain_linear_gradient(const struct kelp_linear *p, const struct gradients *to)
{
    const struct kelp_unary_gradient unary = {.kind = p->activation,
                                              .x = p->sums,
                                              .y = p->y,
                                              .dy = p->dy,
                                              .dx = to->dsums,
                                              .count = (uint64_t)p->rows * p->out};
    const float *dsums = p->activated ? to->dsums : p->dy;
    const struct kelp_matmul weight = {.transpose_a = true,
                                       .m = p->out,
                                       .n = p->in,
                                       .k = p->rows,
                                       .a = dsums,
                                       .lda = p->y_ld,
                                       .b = p->x,
                                       .ldb = p->x_ld,
                                       .c = to->dweight,
                                       .ldc = p->in,
                                       .write = p->write_weight};
    const struct kelp_bias_gradient bias = {.matrix = dsums,
                                            .ld = p->y_ld,
                                            .rows = p->rows,
                                            .columns = p->out,
                                            .bias = to->dbias,
                                            .write = p->write_bias};
    const struct kelp_matmul x = {.m = p->rows,
                                  .n = p->in,
                                  .k = p->out,
                                  .a = dsums,
                                  .lda = p->y_ld,
                                  .b = p->weight,
                                  .ldb = p->in,
                                  .c = to->dx,
                                  .ldc = p->x_ld,
                                  .write = p->write_x};
    if (p->activated) {
        stream->table->unary_gradient(stream, &unary);
    }
    stream->table->matmul(stream, &weight);
    stream->table->bias_gradient(stream, &bias);
    stream->table->matmul(stream, &x);
}

/* dsums in a place of its own, and in dy's. */
KELP_LOOP_TEST(linear_gradient, 0, 2 * SEEDS)
{
    use = 1000 * (uint32_t)_i + 500;
    float *y = drawn(), *sums = drawn(), *dy = drawn(), *room = drawn();
    struct kelp_linear linear = draw_linear(sums, y);
    const struct gradients wanted = {copied(room), drawn(), drawn(), drawn()};
    linear.dy = dy;
    linear.write_x = draw(0, 1) == 0 ? KELP_OVERWRITE : KELP_ACCUMULATE;
    linear.write_weight = draw(0, 1) == 0 ? KELP_OVERWRITE : KELP_ACCUMULATE;
    linear.write_bias = draw(0, 1) == 0 ? KELP_OVERWRITE : KELP_ACCUMULATE;
    linear.dsums = _i % 2 == 0 ? room : dy;
    linear.dx = copied(wanted.dx);
    linear.dweight = copied(wanted.dweight);
    linear.dbias = copied(wanted.dbias);
    plain_linear_gradient(&linear, &wanted);
    stream->table->linear_gradient(stream, &linear);
    const size_t count = (size_t)linear.rows * linear.out;
    if (linear.activated) {
        ck_assert_mem_eq(linear.dsums, wanted.dsums, count * sizeof(float));
    }
    ck_assert_mem_eq(linear.dx, wanted.dx, ROOM * sizeof(float));
    ck_assert_mem_eq(linear.dweight, wanted.dweight, ROOM * sizeof(float));
    ck_assert_mem_eq(linear.dbias, wanted.dbias, ROOM * sizeof(float));
    float *all[] = {y,
                    sums,
                    dy,
                    room,
                    wanted.dsums,
                    wanted.dx,
                    wanted.dweight,
                    wanted.dbias,
                    linear.dx,
                    linear.dweight,
                    linear.dbias,
                    (float *)linear.x,
                    (float *)linear.weight,
                    (float *)linear.bias};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(all); i++) {
        free(all[i]);
    }
}
