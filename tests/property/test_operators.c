/* Operators of one row or element against plain functions in double, over random shapes, in every
 * instruction set. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/models/operator_check.h"
#include "tests/lib/suite.h"

#define SEEDS 24

/* ---- functions of one element ---- */

struct unary_sizes {
    enum kelp_unary_kind kind;
    uint64_t count;
};

static double plain_function(enum kelp_unary_kind kind, double x)
{
    switch (kind) {
    case KELP_UNARY_RELU:
        return x > 0.0 ? x : 0.0;
    case KELP_UNARY_GELU:
        return x * 0.5 * erfc(-x / sqrt(2.0));
    case KELP_UNARY_ELU:
        return x > 0.0 ? x : expm1(x);
    case KELP_UNARY_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case KELP_UNARY_TANH:
        return tanh(x);
    }
    return NAN;
}

static void plain_unary(const void *sizes, const double *const *inputs, double *output)
{
    const struct unary_sizes *s = sizes;
    for (uint64_t i = 0; i < s->count; i++) {
        output[i] = plain_function(s->kind, inputs[0][i]);
    }
}

static void run_unary(const struct kelp_loops *loops, const void *sizes, const float *const *inputs,
                      float *output, const float *dy, float *const *gradients,
                      enum kelp_write write)
{
    const struct unary_sizes *s = sizes;
    const bool by_x = s->kind == KELP_UNARY_GELU;
    kelp__cpu_table(loops)->unary(
        NULL,
        &(struct kelp_unary){.kind = s->kind, .x = inputs[0], .y = output, .count = s->count});
    kelp__cpu_table(loops)->unary_gradient(
        NULL, &(struct kelp_unary_gradient){.kind = s->kind,
                                            .x = by_x ? inputs[0] : NULL,
                                            .y = by_x ? NULL : output,
                                            .dy = dy,
                                            .dx = gradients[0],
                                            .count = s->count,
                                            .write = write});
}

KELP_LOOP_TEST(test_unary, 0, SEEDS)
{
    for (int kind = KELP_UNARY_RELU; kind <= (int)KELP_UNARY_TANH; kind++) {
        const struct unary_sizes sizes = {(enum kelp_unary_kind)kind,
                                          kelp_operator_size(_i, 1, 0, 70)};
        kelp_operator_check(&(struct kelp_operator_check){.what = "unary",
                                                          .seed = _i,
                                                          .sizes = &sizes,
                                                          .plain = plain_unary,
                                                          .run = run_unary,
                                                          .input_count = 1,
                                                          .counts = {sizes.count},
                                                          .low = {-6.0f},
                                                          .high = {6.0f},
                                                          .output_count = sizes.count});
    }
}

/* In place: y is x, and dx is dy. */
KELP_TEST(test_unary_in_place)
{
    for (int kind = KELP_UNARY_RELU; kind <= (int)KELP_UNARY_TANH; kind++) {
        float *x = kelp_operator_floats(7, 1, 37, -4.0f, 4.0f), y[37], dx[37];
        float *dy = kelp_operator_floats(7, 2, 37, -1.0f, 1.0f);
        struct kelp_unary unary = {.kind = (enum kelp_unary_kind)kind, .x = x, .y = y, .count = 37};
        struct kelp_unary_gradient gradient = {
            .kind = (enum kelp_unary_kind)kind, .x = x, .y = y, .dy = dy, .dx = dx, .count = 37};
        kelp__cpu_table(kelp__loops())->unary(NULL, &unary);
        kelp__cpu_table(kelp__loops())->unary_gradient(NULL, &gradient);
        gradient.dx = dy;
        kelp__cpu_table(kelp__loops())->unary_gradient(NULL, &gradient);
        ck_assert_mem_eq(dx, dy, sizeof(dx));
        unary.y = x;
        kelp__cpu_table(kelp__loops())->unary(NULL, &unary);
        ck_assert_mem_eq(x, y, sizeof(y));
        free(x);
        free(dy);
    }
}

/* ---- softmax ---- */

struct softmax_sizes {
    uint64_t rows;
    uint32_t columns, queries, offset;
    bool logarithm, causal;
};

static void plain_softmax(const void *sizes, const double *const *inputs, double *output)
{
    const struct softmax_sizes *s = sizes;
    for (uint64_t r = 0; r < s->rows; r++) {
        const double *x = inputs[0] + r * s->columns;
        const uint64_t end = s->causal ? r % s->queries + s->offset + 1 : s->columns;
        double sum = 0.0;
        for (uint64_t c = 0; c < s->columns && c < end; c++) {
            sum += exp(x[c]);
        }
        for (uint64_t c = 0; c < s->columns; c++) {
            const double value = s->logarithm ? x[c] - log(sum) : exp(x[c]) / sum;
            output[r * s->columns + c] = c < end ? value : 0.0;
        }
    }
}

static void run_softmax(const struct kelp_loops *loops, const void *sizes,
                        const float *const *inputs, float *output, const float *dy,
                        float *const *gradients, enum kelp_write write)
{
    const struct softmax_sizes *s = sizes;
    const struct kelp_softmax softmax = {.x = inputs[0],
                                         .y = output,
                                         .rows = s->rows,
                                         .columns = s->columns,
                                         .logarithm = s->logarithm,
                                         .causal = s->causal,
                                         .queries = s->queries,
                                         .offset = s->offset,
                                         .dy = dy,
                                         .dx = gradients[0],
                                         .write = write};
    kelp__cpu_table(loops)->softmax(NULL, &softmax);
    kelp__cpu_table(loops)->softmax_gradient(NULL, &softmax);
}

KELP_LOOP_TEST(test_softmax, 0, SEEDS)
{
    for (int way = 0; way < 3; way++) {
        struct softmax_sizes sizes = {.columns = kelp_operator_size(_i, 1, 1, 40),
                                      .queries = kelp_operator_size(_i, 2, 1, 4),
                                      .offset = kelp_operator_size(_i, 3, 0, 9),
                                      .logarithm = way == 1,
                                      .causal = way == 2};
        sizes.rows = sizes.queries * kelp_operator_size(_i, 4, 0, 4);
        const uint64_t count = sizes.rows * sizes.columns;
        kelp_operator_check(&(struct kelp_operator_check){.what = "softmax",
                                                          .seed = _i,
                                                          .sizes = &sizes,
                                                          .plain = plain_softmax,
                                                          .run = run_softmax,
                                                          .input_count = 1,
                                                          .counts = {count},
                                                          .low = {-5.0f},
                                                          .high = {5.0f},
                                                          .output_count = count});
    }
}

/* Rows beyond a block, values beyond the range of exp(), and y in x's place. */
KELP_TEST(test_softmax_large)
{
    for (int way = 0; way < 2; way++) {
        const uint32_t columns = 5000;
        float *x = kelp_operator_floats(1, 1, 3ull * columns, -900.0f, 900.0f);
        const struct kelp_softmax softmax = {
            .x = x, .y = x, .rows = 3, .columns = columns, .logarithm = way == 1};
        kelp__cpu_table(kelp__loops())->softmax(NULL, &softmax);
        for (uint64_t r = 0; r < 3; r++) {
            double sum = 0.0;
            for (uint32_t c = 0; c < columns; c++) {
                const double y = (double)x[r * columns + c];
                sum += way == 1 ? exp(y) : y;
            }
            ck_assert_double_eq_tol(sum, 1.0, 1e-4);
        }
        free(x);
    }
}

/* ---- gated linear unit ---- */

struct row_sizes {
    uint64_t rows;
    uint32_t width;
};

static void plain_glu(const void *sizes, const double *const *inputs, double *output)
{
    const struct row_sizes *s = sizes;
    for (uint64_t r = 0; r < s->rows; r++) {
        const double *x = inputs[0] + r * 2 * s->width;
        for (uint32_t c = 0; c < s->width; c++) {
            output[r * s->width + c] = x[c] / (1.0 + exp(-x[s->width + c]));
        }
    }
}

static void run_glu(const struct kelp_loops *loops, const void *sizes, const float *const *inputs,
                    float *output, const float *dy, float *const *gradients, enum kelp_write write)
{
    const struct row_sizes *s = sizes;
    const struct kelp_glu glu = {.x = inputs[0],
                                 .y = output,
                                 .rows = s->rows,
                                 .width = s->width,
                                 .dy = dy,
                                 .dx = gradients[0],
                                 .write = write};
    kelp__cpu_table(loops)->glu(NULL, &glu);
    kelp__cpu_table(loops)->glu_gradient(NULL, &glu);
}

KELP_LOOP_TEST(test_glu, 0, SEEDS)
{
    const struct row_sizes sizes = {kelp_operator_size(_i, 1, 0, 7),
                                    kelp_operator_size(_i, 2, 0, 35)};
    const uint64_t count = sizes.rows * sizes.width;
    kelp_operator_check(&(struct kelp_operator_check){.what = "glu",
                                                      .seed = _i,
                                                      .sizes = &sizes,
                                                      .plain = plain_glu,
                                                      .run = run_glu,
                                                      .input_count = 1,
                                                      .counts = {2 * count},
                                                      .low = {-3.0f},
                                                      .high = {3.0f},
                                                      .output_count = count});
}

/* ---- the LSTM's cell ---- */

static double plain_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* gates [batch, 4 hidden], c_before [batch, hidden]; output h [batch, hidden], then c. */
static void plain_lstm_cell(const void *sizes, const double *const *inputs, double *output)
{
    const struct row_sizes *s = sizes;
    const uint64_t hidden = s->width;
    for (uint64_t b = 0; b < s->rows; b++) {
        const double *gates = inputs[0] + b * 4 * hidden, *before = inputs[1] + b * hidden;
        for (uint64_t j = 0; j < hidden; j++) {
            const double c = plain_sigmoid(gates[hidden + j]) * before[j] +
                             plain_sigmoid(gates[j]) * tanh(gates[2 * hidden + j]);
            output[b * hidden + j] = plain_sigmoid(gates[3 * hidden + j]) * tanh(c);
            output[(s->rows + b) * hidden + j] = c;
        }
    }
}

/* The operator has no way to accumulate: done here, so that the check's second run holds. */
static void run_lstm_cell(const struct kelp_loops *loops, const void *sizes,
                          const float *const *inputs, float *output, const float *dy,
                          float *const *gradients, enum kelp_write write)
{
    const struct row_sizes *s = sizes;
    const uint64_t count = s->rows * s->width;
    float *gates = malloc(4 * count * sizeof(*gates)), *dgates = malloc(4 * count * sizeof(*gates));
    float *dc = malloc(count * sizeof(*dc));
    memcpy(gates, inputs[0], 4 * count * sizeof(*gates));
    memcpy(dc, dy + count, count * sizeof(*dc));
    const struct kelp_lstm_cell cell = {.batch = (uint32_t)s->rows,
                                        .hidden = s->width,
                                        .gates = gates,
                                        .c_before = inputs[1],
                                        .c = output + count,
                                        .h = output,
                                        .h_ld = s->width,
                                        .dh = dy,
                                        .dh_ld = s->width,
                                        .dc = dc,
                                        .dgates = dgates};
    kelp__cpu_table(loops)->lstm_cell(NULL, &cell);
    kelp__cpu_table(loops)->lstm_cell_gradient(NULL, &cell);
    for (uint64_t i = 0; i < 4 * count; i++) {
        gradients[0][i] = write == KELP_ACCUMULATE ? gradients[0][i] + dgates[i] : dgates[i];
    }
    for (uint64_t i = 0; i < count; i++) {
        gradients[1][i] = write == KELP_ACCUMULATE ? gradients[1][i] + dc[i] : dc[i];
    }
    free(gates);
    free(dgates);
    free(dc);
}

KELP_LOOP_TEST(test_lstm_cell, 0, SEEDS)
{
    const struct row_sizes sizes = {kelp_operator_size(_i, 1, 1, 5),
                                    kelp_operator_size(_i, 2, 1, 19)};
    const uint64_t count = sizes.rows * sizes.width;
    kelp_operator_check(&(struct kelp_operator_check){.what = "lstm_cell",
                                                      .seed = _i,
                                                      .sizes = &sizes,
                                                      .plain = plain_lstm_cell,
                                                      .run = run_lstm_cell,
                                                      .input_count = 2,
                                                      .counts = {4 * count, count},
                                                      .low = {-3.0f, -1.0f},
                                                      .high = {3.0f, 1.0f},
                                                      .output_count = 2 * count});
}

/* ---- weighted sum, multiply ---- */

struct sum_sizes {
    uint32_t rows, count, width;
};

static void plain_weighted_sum(const void *sizes, const double *const *inputs, double *output)
{
    const struct sum_sizes *s = sizes;
    memset(output, 0, (uint64_t)s->rows * s->width * sizeof(*output));
    for (uint64_t r = 0; r < s->rows; r++) {
        for (uint64_t i = 0; i < s->count; i++) {
            for (uint64_t d = 0; d < s->width; d++) {
                output[r * s->width + d] +=
                    inputs[0][r * s->count + i] * inputs[1][(r * s->count + i) * s->width + d];
            }
        }
    }
}

static void run_weighted_sum(const struct kelp_loops *loops, const void *sizes,
                             const float *const *inputs, float *output, const float *dy,
                             float *const *gradients, enum kelp_write write)
{
    const struct sum_sizes *s = sizes;
    const struct kelp_weighted_sum sum = {.weights = inputs[0],
                                          .x = inputs[1],
                                          .y = output,
                                          .rows = s->rows,
                                          .count = s->count,
                                          .width = s->width,
                                          .dy = dy,
                                          .dweights = gradients[0],
                                          .dx = gradients[1],
                                          .write_weights = write,
                                          .write_x = write};
    kelp__cpu_table(loops)->weighted_sum(NULL, &sum);
    kelp__cpu_table(loops)->weighted_sum_gradient(NULL, &sum);
}

KELP_LOOP_TEST(test_weighted_sum, 0, SEEDS)
{
    const struct sum_sizes sizes = {kelp_operator_size(_i, 1, 0, 6),
                                    kelp_operator_size(_i, 2, 1, 6),
                                    kelp_operator_size(_i, 3, 1, 37)};
    const uint64_t rows = sizes.rows, weights = rows * sizes.count;
    kelp_operator_check(&(struct kelp_operator_check){.what = "weighted_sum",
                                                      .seed = _i,
                                                      .sizes = &sizes,
                                                      .plain = plain_weighted_sum,
                                                      .run = run_weighted_sum,
                                                      .input_count = 2,
                                                      .counts = {weights, weights * sizes.width},
                                                      .low = {-1.0f, -1.0f},
                                                      .high = {1.0f, 1.0f},
                                                      .output_count = rows * sizes.width});
}

static void plain_multiply(const void *sizes, const double *const *inputs, double *output)
{
    for (uint64_t i = 0; i < *(const uint64_t *)sizes; i++) {
        output[i] = inputs[0][i] * inputs[1][i];
    }
}

static void run_multiply(const struct kelp_loops *loops, const void *sizes,
                         const float *const *inputs, float *output, const float *dy,
                         float *const *gradients, enum kelp_write write)
{
    struct kelp_multiply multiply = {
        .a = inputs[0], .b = inputs[1], .y = output, .count = *(const uint64_t *)sizes};
    kelp__cpu_table(loops)->multiply(NULL, &multiply);
    for (uint32_t i = 0; i < 2; i++) {
        multiply.a = dy;
        multiply.b = inputs[1 - i];
        multiply.y = gradients[i];
        multiply.write = write;
        kelp__cpu_table(loops)->multiply(NULL, &multiply);
    }
}

KELP_LOOP_TEST(test_multiply, 0, SEEDS)
{
    const uint64_t count = kelp_operator_size(_i, 1, 0, 70);
    kelp_operator_check(&(struct kelp_operator_check){.what = "multiply",
                                                      .seed = _i,
                                                      .sizes = &count,
                                                      .plain = plain_multiply,
                                                      .run = run_multiply,
                                                      .input_count = 2,
                                                      .counts = {count, count},
                                                      .low = {-2.0f, -2.0f},
                                                      .high = {2.0f, 2.0f},
                                                      .output_count = count});
}
