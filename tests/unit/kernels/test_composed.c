/* The CPU's operators that are composed of others: against those, with the same bits, or against
 * the plainest possible loops in double. */
#include <math.h>
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

/* ---- lstm ---- */

#define TIME_MAX   5u
#define HIDDEN_MAX 9u

/* Of one sequence, in double: the activated gates, c, h and tanh(c) of each step. */
struct plain_step {
    double gates[4][HIDDEN_MAX], c[HIDDEN_MAX], h[HIDDEN_MAX], squashed[HIDDEN_MAX];
};

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static void plain_step(const struct kelp_lstm *p, const float *x, const double *h, const double *c,
                       struct plain_step *to)
{
    for (uint32_t g = 0; g < 4; g++) {
        for (uint32_t j = 0; j < p->hidden; j++) {
            const uint32_t row = g * p->hidden + j;
            double sum = (double)p->bias_ih[row] + (double)p->bias_hh[row];
            for (uint32_t i = 0; i < p->in; i++) {
                sum += (double)x[i] * (double)p->weight_ih[row * p->in + i];
            }
            for (uint32_t i = 0; i < p->hidden; i++) {
                sum += h[i] * (double)p->weight_hh[row * p->hidden + i];
            }
            to->gates[g][j] = g == 2 ? tanh(sum) : sigmoid(sum);
        }
    }
    for (uint32_t j = 0; j < p->hidden; j++) {
        to->c[j] = to->gates[1][j] * c[j] + to->gates[0][j] * to->gates[2][j];
        to->squashed[j] = tanh(to->c[j]);
        to->h[j] = to->gates[3][j] * to->squashed[j];
    }
}

/* Gradients of one batch, in double. */
struct plain_gradients {
    double x[ROOM], h[ROOM], c[ROOM], weight_ih[ROOM], weight_hh[ROOM], bias[ROOM];
};

/* From the gradients of a step's h and c to those of its sums, and of what came into it. */
static void plain_step_gradient(const struct kelp_lstm *p, const struct plain_step *step,
                                const float *x, const double *h_before, const double *c_before,
                                double *dx, double *dh, double *dc, struct plain_gradients *to)
{
    double sums[4][HIDDEN_MAX];
    for (uint32_t j = 0; j < p->hidden; j++) {
        const double in = step->gates[0][j], forget = step->gates[1][j];
        const double update = step->gates[2][j], out = step->gates[3][j], t = step->squashed[j];
        const double total = dc[j] + dh[j] * out * (1.0 - t * t);
        sums[0][j] = total * update * in * (1.0 - in);
        sums[1][j] = total * c_before[j] * forget * (1.0 - forget);
        sums[2][j] = total * in * (1.0 - update * update);
        sums[3][j] = dh[j] * t * out * (1.0 - out);
        dc[j] = total * forget;
        dh[j] = 0.0;
    }
    for (uint32_t row = 0; row < 4 * p->hidden; row++) {
        const double sum = sums[row / p->hidden][row % p->hidden];
        to->bias[row] += sum;
        for (uint32_t i = 0; i < p->in; i++) {
            to->weight_ih[row * p->in + i] += sum * (double)x[i];
            dx[i] += sum * (double)p->weight_ih[row * p->in + i];
        }
        for (uint32_t i = 0; i < p->hidden; i++) {
            to->weight_hh[row * p->hidden + i] += sum * h_before[i];
            dh[i] += sum * (double)p->weight_hh[row * p->hidden + i];
        }
    }
}

/* Sequence b: y's values to `y`, and added to the gradients. */
static void plain_sequence(const struct kelp_lstm *p, uint32_t b, double *y,
                           struct plain_gradients *to)
{
    struct plain_step steps[TIME_MAX + 1] = {0}; /* the first: what is before the sequence */
    const uint64_t hidden = p->hidden, first = (uint64_t)b * p->time;
    double *dh = to->h + b * hidden, *dc = to->c + b * hidden;
    for (uint32_t j = 0; j < p->hidden; j++) {
        steps[0].h[j] = (double)p->h_first[b * hidden + j];
        steps[0].c[j] = (double)p->c_first[b * hidden + j];
    }
    for (uint32_t t = 0; t < p->time; t++) {
        double *of_step = y + (first + t) * 2 * hidden;
        plain_step(p, p->x + (first + t) * p->in, steps[t].h, steps[t].c, &steps[t + 1]);
        memcpy(of_step, steps[t + 1].h, hidden * sizeof(double));
        memcpy(of_step + hidden, steps[t + 1].c, hidden * sizeof(double));
    }
    for (uint32_t t = p->time; t-- > 0;) {
        const uint64_t at = first + t;
        for (uint32_t j = 0; j < p->hidden; j++) {
            dh[j] += (double)p->dy[at * 2 * hidden + j];
            dc[j] += (double)p->dy[at * 2 * hidden + hidden + j];
        }
        plain_step_gradient(p, &steps[t + 1], p->x + at * p->in, steps[t].h, steps[t].c,
                            to->x + at * p->in, dh, dc, to);
    }
}

/* values = (before, where they are added to) + wanted. */
static void expect(const char *what, const float *values, const float *before,
                   enum kelp_write write, const double *wanted, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const double value = wanted[i] + (write == KELP_ACCUMULATE ? (double)before[i] : 0.0);
        ck_assert_msg(fabs((double)values[i] - value) <= 1e-5 * (1.0 + fabs(value)),
                      "%s[%llu]: %.9g, not %.9g", what, (unsigned long long)i, (double)values[i],
                      value);
    }
    ck_assert_mem_eq(values + count, before + count, (ROOM - count) * sizeof(float));
}

enum lstm_gradient { OF_X, OF_H, OF_C, OF_WEIGHT_IH, OF_WEIGHT_HH, OF_BIAS_IH, OF_BIAS_HH, OF_ALL };

KELP_LOOP_TEST(lstm, 0, SEEDS)
{
    use = 1000 * (uint32_t)_i + 250;
    struct kelp_lstm lstm = {.batch = draw(1, 6),
                             .time = draw(1, TIME_MAX),
                             .in = draw(1, 11),
                             .hidden = draw(1, HIDDEN_MAX)};
    float *buffers[11], *gradients[OF_ALL], *before[OF_ALL];
    enum kelp_write writes[OF_ALL];
    for (size_t i = 0; i < KELP_ARRAY_COUNT(buffers); i++) {
        buffers[i] = drawn();
    }
    for (uint32_t i = 0; i < OF_ALL; i++) {
        gradients[i] = drawn();
        before[i] = copied(gradients[i]);
        writes[i] = draw(0, 1) == 0 ? KELP_OVERWRITE : KELP_ACCUMULATE;
    }
    lstm.x = buffers[0];
    lstm.h_first = buffers[1];
    lstm.c_first = buffers[2];
    lstm.weight_ih = buffers[3];
    lstm.weight_hh = buffers[4];
    lstm.bias_ih = buffers[5];
    lstm.bias_hh = buffers[6];
    lstm.y = buffers[7];
    lstm.kept = buffers[8];
    lstm.dy = buffers[9];
    lstm.workspace = buffers[10];
    lstm.dx = gradients[OF_X];
    lstm.dh_first = gradients[OF_H];
    lstm.dc_first = gradients[OF_C];
    lstm.dweight_ih = gradients[OF_WEIGHT_IH];
    lstm.dweight_hh = gradients[OF_WEIGHT_HH];
    lstm.dbias_ih = gradients[OF_BIAS_IH];
    lstm.dbias_hh = gradients[OF_BIAS_HH];
    lstm.write_x = writes[OF_X];
    lstm.write_h = writes[OF_H];
    lstm.write_c = writes[OF_C];
    lstm.write_weight_ih = writes[OF_WEIGHT_IH];
    lstm.write_weight_hh = writes[OF_WEIGHT_HH];
    lstm.write_bias_ih = writes[OF_BIAS_IH];
    lstm.write_bias_hh = writes[OF_BIAS_HH];

    double *y = calloc(ROOM, sizeof(*y));
    struct plain_gradients *wanted = calloc(1, sizeof(*wanted));
    float *y_before = copied(lstm.y);
    ck_assert_ptr_nonnull(y);
    ck_assert_ptr_nonnull(wanted);
    for (uint32_t b = 0; b < lstm.batch; b++) {
        plain_sequence(&lstm, b, y, wanted);
    }
    stream->table->lstm(stream, &lstm);
    stream->table->lstm_gradient(stream, &lstm);
    const uint64_t states = (uint64_t)lstm.batch * lstm.hidden, gates = 4 * (uint64_t)lstm.hidden;
    const double *const plain[OF_ALL] = {wanted->x,         wanted->h,         wanted->c,
                                         wanted->weight_ih, wanted->weight_hh, wanted->bias,
                                         wanted->bias};
    const uint64_t counts[OF_ALL] = {states / lstm.hidden * lstm.time * lstm.in,
                                     states,
                                     states,
                                     gates * lstm.in,
                                     gates * lstm.hidden,
                                     gates,
                                     gates};
    static const char *const names[OF_ALL] = {"dx",         "dh_first", "dc_first", "dweight_ih",
                                              "dweight_hh", "dbias_ih", "dbias_hh"};
    expect("y", lstm.y, y_before, KELP_OVERWRITE, y, states * 2 * lstm.time);
    for (uint32_t i = 0; i < OF_ALL; i++) {
        expect(names[i], gradients[i], before[i], writes[i], plain[i], counts[i]);
        free(gradients[i]);
        free(before[i]);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(buffers); i++) {
        free(buffers[i]);
    }
    free(y_before);
    free(wanted);
    free(y);
}
