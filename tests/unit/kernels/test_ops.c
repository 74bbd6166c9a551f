/* The CPU device: every operator against the plainest possible loop, on awkward sizes; every
 * instruction set and alignment to the same bits; the compute kind. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/device.h"
#include "tests/lib/suite.h"

#define ROOM 6000 /* floats of each buffer */

/* 0, 1, block - 1, block, block + 1, prime, of the blocks of 8, 16 and 32. */
static const uint32_t sizes[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 61, 64, 67};

static struct kelp_device *device;
static struct kelp_stream *stream;
static float *a, *b, *c, *d, *expected, *workspace;

static float *random_floats(uint32_t use)
{
    float *values = malloc(ROOM * sizeof(*values));
    ck_assert_ptr_nonnull(values);
    for (uint32_t i = 0; i < ROOM; i++) {
        uint32_t words[4];
        kelp_philox(3, KELP_PHILOX_TEST, use, i, words);
        values[i] = 2.0f * kelp_philox_float(words[0]) - 1.0f;
    }
    return values;
}

static void setup(void)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_int_eq(kelp_device_cpu_create(1, &device, &error), KELP_OK);
    ck_assert_int_eq(device->table->stream_create(device, &stream, &error), KELP_OK);
    a = random_floats(1);
    b = random_floats(2);
    c = random_floats(3);
    d = random_floats(4);
    expected = random_floats(5);
    workspace = random_floats(6);
}

static void teardown(void)
{
    float *buffers[] = {a, b, c, d, expected, workspace};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(buffers); i++) {
        free(buffers[i]);
    }
    device->table->stream_destroy(stream);
    device->table->destroy(device);
}

static void expect_near(const float *values, const float *wanted, uint64_t count, const char *what,
                        int size)
{
    for (uint64_t i = 0; i < count; i++) {
        ck_assert_msg(fabsf(values[i] - wanted[i]) <= 1e-5f + 1e-5f * fabsf(wanted[i]),
                      "%s, size %d, element %llu: %g, not %g", what, size, (unsigned long long)i,
                      (double)values[i], (double)wanted[i]);
    }
}

KELP_CASE("ops", .setup = setup, .teardown = teardown)

/* Products with each pair of transposes, written over and added to, between rows that do not touch.
 */
KELP_LOOP_TEST(test_matmul, 0, KELP_ARRAY_COUNT(sizes))
{
    const uint32_t m = sizes[_i], n = sizes[(_i * 5 + 3) % (int)KELP_ARRAY_COUNT(sizes)];
    const uint32_t k = sizes[(_i * 3 + 7) % (int)KELP_ARRAY_COUNT(sizes)];
    for (uint32_t way = 0; way < 8; way++) {
        const bool ta = (way & 1) != 0, tb = (way & 2) != 0;
        const struct kelp_matmul matmul = {.transpose_a = ta,
                                           .transpose_b = tb,
                                           .m = m,
                                           .n = n,
                                           .k = k,
                                           .a = a,
                                           .lda = (ta ? m : k) + 2,
                                           .b = b,
                                           .ldb = (tb ? k : n) + 1,
                                           .c = c,
                                           .ldc = n + 3,
                                           .write = way < 4 ? KELP_OVERWRITE : KELP_ACCUMULATE};
        memcpy(expected, c, ROOM * sizeof(float));
        for (uint32_t i = 0; i < m; i++) {
            for (uint32_t j = 0; j < n; j++) {
                double sum = way < 4 ? 0.0 : (double)c[i * matmul.ldc + j];
                for (uint32_t l = 0; l < k; l++) {
                    sum += (double)a[ta ? l * matmul.lda + i : i * matmul.lda + l] *
                           (double)b[tb ? j * matmul.ldb + l : l * matmul.ldb + j];
                }
                expected[i * matmul.ldc + j] = (float)sum;
            }
        }
        stream->table->matmul(stream, &matmul);
        ck_assert_int_eq(stream->table->wait(stream, NULL), KELP_OK);
        expect_near(c, expected, ROOM, "matmul", (int)m);
    }
}

/* A result that was NaN before is gone after writing over it. */
KELP_TEST(test_matmul_overwrites_nan)
{
    for (uint32_t k = 0; k < 3; k++) {
        const struct kelp_matmul matmul = {
            .m = 3, .n = 5, .k = k, .a = a, .lda = k, .b = b, .ldb = 5, .c = c, .ldc = 5};
        for (uint32_t i = 0; i < 15; i++) {
            c[i] = NAN;
        }
        stream->table->matmul(stream, &matmul);
        for (uint32_t i = 0; i < 15; i++) {
            ck_assert(!isnan(c[i]));
        }
    }
}

/* Sizes that OpenBLAS cannot take are an error of the stream, once, and not a crash. */
KELP_TEST(test_matmul_too_large)
{
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_matmul matmul = {.m = 1,
                                       .n = 1,
                                       .k = 1,
                                       .a = a,
                                       .lda = (uint64_t)INT_MAX + 1,
                                       .b = b,
                                       .ldb = 1,
                                       .c = c,
                                       .ldc = 1};
    stream->table->matmul(stream, &matmul);
    ck_assert_int_eq(stream->table->wait(stream, &error), KELP_ERR_DEVICE);
    ck_assert_ptr_nonnull(strstr(error.text, "matrix product"));
    ck_assert_int_eq(stream->table->wait(stream, &error), KELP_OK);
}

KELP_LOOP_TEST(test_bias, 0, KELP_ARRAY_COUNT(sizes))
{
    const uint32_t columns = sizes[_i], rows = sizes[(_i * 3 + 2) % (int)KELP_ARRAY_COUNT(sizes)];
    const struct kelp_bias bias = {
        .matrix = a, .ld = columns + 5, .rows = rows, .columns = columns, .bias = b};
    struct kelp_bias_gradient gradient = {
        .matrix = a, .ld = columns + 5, .rows = rows, .columns = columns, .bias = b};
    memcpy(expected, a, ROOM * sizeof(float));
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t col = 0; col < columns; col++) {
            expected[r * bias.ld + col] = a[r * bias.ld + col] + b[col];
        }
    }
    stream->table->bias_add(stream, &bias);
    ck_assert_mem_eq(a, expected, ROOM * sizeof(float));
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        gradient.write = accumulate == 1 ? KELP_ACCUMULATE : KELP_OVERWRITE;
        memcpy(expected, b, ROOM * sizeof(float));
        for (uint32_t col = 0; col < columns; col++) {
            float sum = 0.0f;
            for (uint32_t r = 0; r < rows; r++) {
                sum = sum + a[r * bias.ld + col];
            }
            expected[col] = accumulate == 1 ? b[col] + sum : sum;
        }
        stream->table->bias_gradient(stream, &gradient);
        ck_assert_mem_eq(b, expected, ROOM * sizeof(float));
    }
}

KELP_LOOP_TEST(test_elementwise, 0, KELP_ARRAY_COUNT(sizes))
{
    const uint64_t count = sizes[_i];
    const struct kelp_device_table *table = stream->table;
    a[3] = 0.0f;
    for (uint64_t i = 0; i < count; i++) {
        c[i] = a[i] + b[i];
    }
    table->add(stream, d, a, b, count);
    ck_assert_mem_eq(d, c, count * sizeof(float));
    for (uint64_t i = 0; i < count; i++) {
        c[i] = a[i] - b[i];
    }
    table->subtract(stream, d, a, b, count);
    ck_assert_mem_eq(d, c, count * sizeof(float));
    for (uint64_t i = 0; i < count; i++) {
        const float product = 0.3f * a[i];
        c[i] = d[i] + product;
    }
    table->axpy(stream, d, 0.3f, a, count);
    ck_assert_mem_eq(d, c, count * sizeof(float));
    for (uint64_t i = 0; i < count; i++) {
        c[i] = a[i] > 0.0f ? a[i] : 0.0f;
        expected[i] = a[i] > 0.0f ? b[i] : 0.0f;
        workspace[i] = d[i] + expected[i];
    }
    struct kelp_unary_gradient gradient = {
        .y = c, .dy = b, .dx = d, .count = count, .write = KELP_ACCUMULATE};
    table->unary_gradient(stream, &gradient);
    ck_assert_mem_eq(d, workspace, count * sizeof(float));
    table->unary(stream, &(struct kelp_unary){.x = a, .y = a, .count = count});
    ck_assert_mem_eq(a, c, count * sizeof(float));
    gradient = (struct kelp_unary_gradient){.y = a, .dy = b, .dx = b, .count = count};
    table->unary_gradient(stream, &gradient);
    ck_assert_mem_eq(b, expected, count * sizeof(float));
    const float behind = d[count];
    table->fill(stream, d, 2.5f, count);
    for (uint64_t i = 0; i < count; i++) {
        ck_assert_float_eq(d[i], 2.5f);
    }
    ck_assert_float_eq(d[count], behind);
}

/* What is not a number does not become one. */
KELP_TEST(test_nan_stays)
{
    const float scale = 1.0f;
    double sums[KELP_LOSS_SUMS];
    a[0] = NAN;
    a[1] = INFINITY;
    stream->table->unary(stream, &(struct kelp_unary){.x = a, .y = b, .count = 2});
    ck_assert_float_nan(b[0]);
    ck_assert_float_infinite(b[1]);
    static const enum kelp_loss_kind kinds[] = {
        KELP_LOSS_MSE, KELP_LOSS_MAE,      KELP_LOSS_SMOOTH_L1,      KELP_LOSS_HUBER,
        KELP_LOSS_BCE, KELP_LOSS_QUANTILE, KELP_LOSS_BCE_WITH_LOGITS};
    const double quantile = 0.5;
    for (size_t k = 0; k < KELP_ARRAY_COUNT(kinds); k++) {
        const struct kelp_criterion criterion = {.kind = kinds[k],
                                                 .output = a,
                                                 .target = d,
                                                 .samples = 1,
                                                 .elements = 2,
                                                 .target_elements = 2,
                                                 .beta = 1.0,
                                                 .quantiles = &quantile,
                                                 .quantile_count = 1,
                                                 .gradient_scale = &scale,
                                                 .gradient = c,
                                                 .sums = sums};
        stream->table->criterion(stream, &criterion);
        ck_assert_msg(isnan(c[0]), "loss %d", (int)kinds[k]);
        ck_assert_double_nan(sums[KELP_LOSS_SUM_LOSS]);
        ck_assert_double_nan(sums[KELP_LOSS_SUM_SQUARED]);
    }
}

static double replicated(const float *row, int64_t at, uint32_t length)
{
    return (double)row[at < 0 ? 0 : (at >= length ? length - 1 : at)];
}

/* The average and its gradient, kernels shorter and longer than the row. */
KELP_LOOP_TEST(test_moving_average, 0, KELP_ARRAY_COUNT(sizes))
{
    const uint32_t length = sizes[_i], rows = 3;
    for (uint32_t width = 1; width < 30; width += 4) {
        struct kelp_moving_average average = {.x = a,
                                              .y = c,
                                              .rows = rows,
                                              .length = length,
                                              .kernel_size = width,
                                              .workspace = workspace};
        const int64_t half = (width - 1) / 2;
        const uint64_t count = (uint64_t)rows * length;
        ck_assert_uint_le(kelp_moving_average_workspace(length, width), ROOM);
        double gradient[3 * 67] = {0};
        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t t = 0; t < length; t++) {
                double sum = 0.0;
                for (int64_t at = (int64_t)t - half; at <= (int64_t)t + half; at++) {
                    sum += replicated(a + r * length, at, length);
                    const int64_t from = at < 0 ? 0 : (at >= length ? length - 1 : at);
                    gradient[r * length + (uint32_t)from] += (double)a[r * length + t] / width;
                }
                expected[r * length + t] = (float)(sum / width);
            }
        }
        stream->table->moving_average(stream, &average);
        expect_near(c, expected, count, "moving average", (int)length);
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            average.write = accumulate == 1 ? KELP_ACCUMULATE : KELP_OVERWRITE;
            for (uint64_t i = 0; i < count; i++) {
                expected[i] = (float)(gradient[i] + (accumulate == 1 ? (double)c[i] : 0.0));
            }
            stream->table->moving_average_gradient(stream, &average);
            expect_near(c, expected, count, "its gradient", (int)length);
        }
    }
}

KELP_LOOP_TEST(test_transpose, 0, KELP_ARRAY_COUNT(sizes))
{
    const uint32_t rows = sizes[_i], columns = sizes[(_i * 5 + 4) % (int)KELP_ARRAY_COUNT(sizes)];
    const uint32_t batch = rows * columns > 1000 ? 1 : 3;
    struct kelp_transpose transpose = {
        .x = a, .y = c, .batch = batch, .rows = rows, .columns = columns};
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        transpose.write = accumulate == 1 ? KELP_ACCUMULATE : KELP_OVERWRITE;
        memcpy(expected, c, ROOM * sizeof(float));
        for (uint32_t m = 0; m < batch; m++) {
            for (uint32_t r = 0; r < rows; r++) {
                for (uint32_t col = 0; col < columns; col++) {
                    const uint32_t to = (m * columns + col) * rows + r;
                    const float value = a[(m * rows + r) * columns + col];
                    expected[to] = accumulate == 1 ? c[to] + value : value;
                }
            }
        }
        stream->table->transpose(stream, &transpose);
        ck_assert_mem_eq(c, expected, ROOM * sizeof(float));
    }
}

/* All loops of one variant, one after the other, into `result`. */
static size_t run_all(const struct kelp_device_table *table, uint32_t shift, uint32_t size,
                      float *result)
{
    float *x = calloc(4 * ROOM, sizeof(*x));
    ck_assert_ptr_nonnull(x);
    float *y = x + ROOM + shift, *z = x + 2 * ROOM + shift, *space = x + 3 * ROOM + shift;
    const uint32_t rows = 5, count = rows * size;
    memcpy(x + shift, a, count * sizeof(float));
    memcpy(y, b, count * sizeof(float));
    table->add(NULL, z, x + shift, y, count);
    table->axpy(NULL, z, 0.7f, y, count);
    table->subtract(NULL, z, z, x + shift, count);
    const struct kelp_bias bias = {
        .matrix = z, .ld = size, .rows = rows, .columns = size, .bias = y};
    const struct kelp_bias_gradient bias_gradient = {
        .matrix = z, .ld = size, .rows = rows, .columns = size, .bias = y};
    table->bias_add(NULL, &bias);
    table->unary(NULL, &(struct kelp_unary){.x = z, .y = x + shift, .count = count});
    table->unary_gradient(
        NULL, &(struct kelp_unary_gradient){
                  .y = x + shift, .dy = z, .dx = z, .count = count, .write = KELP_ACCUMULATE});
    table->bias_gradient(NULL, &bias_gradient);
    const struct kelp_moving_average average = {.x = z,
                                                .y = x + shift,
                                                .rows = rows,
                                                .length = size,
                                                .kernel_size = 13,
                                                .workspace = space,
                                                .write = KELP_ACCUMULATE};
    if (size != 0) {
        table->moving_average_gradient(NULL, &average);
        table->moving_average(NULL, &average);
    }
    const struct kelp_transpose transpose = {
        .x = x + shift, .y = z, .batch = 1, .rows = rows, .columns = size};
    table->transpose(NULL, &transpose);
    memcpy(result, z, count * sizeof(float));
    free(x);
    return count * sizeof(float);
}

/* Every instruction set gives the same bits, wherever the buffers begin. */
KELP_LOOP_TEST(test_variants_agree, 0, KELP_ARRAY_COUNT(sizes))
{
    static float first[ROOM], other[ROOM];
    const size_t bytes = run_all(kelp__cpu_table(kelp__loops_variant(0)), 0, sizes[_i], first);
    const struct kelp_loops *variant;
    for (uint32_t n = 0; (variant = kelp__loops_variant(n)) != NULL; n++) {
        for (uint32_t shift = 0; shift < 9; shift += 3) {
            (void)run_all(kelp__cpu_table(variant), shift, sizes[_i], other);
            ck_assert_msg(memcmp(first, other, bytes) == 0, "%s, shift %u", variant->name, shift);
        }
    }
}

/* The kind names what decides the bits; the answer is the same every time and on another stream. */
KELP_TEST(test_compute_kind)
{
    char kind[KELP_COMPUTE_KIND_SIZE], again[KELP_COMPUTE_KIND_SIZE];
    uint64_t answer = 0, answer_again = 1;
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_int_eq(kelp_compute_kind(device, kind, &answer, &error), KELP_OK);
    ck_assert_int_eq(kelp_compute_kind(device, again, &answer_again, &error), KELP_OK);
    ck_assert_str_eq(kind, again);
    ck_assert_uint_eq(answer, answer_again);
    ck_assert_uint_ne(answer, 0);
    ck_assert_ptr_nonnull(strstr(kind, "threads=1"));
    ck_assert_ptr_nonnull(strstr(kind, kelp__loops()->operators));
}

/* Of several failures wait() reports the first; after that the stream is as new. */
KELP_TEST(test_first_bad_id)
{
    static const float ids[] = {0.0f, 7.0f, -1.0f, 9.0f};
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_embedding embedding = {
        .ids = ids, .ids_stride = 1, .rows = 3, .vocab = 5, .width = 2, .table = a, .y = b};
    device->table->embedding(stream, &embedding);
    embedding.ids = ids + 3;
    embedding.rows = 1;
    device->table->embedding(stream, &embedding);
    ck_assert_int_eq(device->table->wait(stream, &error), KELP_ERR_INVALID);
    ck_assert_str_eq(error.text, "category 7: the embedding's table has rows 0 to 4");
    ck_assert_int_eq(device->table->wait(stream, &error), KELP_OK);
}

static const struct kelp_device_table *cpu_table;
static struct kelp_device_table failing_table;
static uint32_t allocations_left; /* before alloc() fails */

static kelp_status counted_alloc(struct kelp_device *on, size_t bytes, void **ret,
                                 struct kelp_error *reterr)
{
    if (allocations_left == 0) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory");
    }
    allocations_left--;
    return cpu_table->alloc(on, bytes, ret, reterr);
}

/* Any allocation of the known-answer computation may fail: the status says so, nothing is lost. */
KELP_TEST(test_compute_kind_without_memory)
{
    char kind[KELP_COMPUTE_KIND_SIZE] = "untouched";
    uint64_t answer = 42;
    struct kelp_error error = {KELP_OK, ""};
    uint32_t count = 0;
    cpu_table = device->table;
    failing_table = *cpu_table;
    failing_table.alloc = counted_alloc;
    device->table = &failing_table;
    for (kelp_status status = KELP_ERR_NO_MEMORY; status != KELP_OK; count++) {
        ck_assert_str_eq(kind, "untouched");
        ck_assert_uint_eq(answer, 42);
        ck_assert_int_eq(status, KELP_ERR_NO_MEMORY);
        allocations_left = count;
        status = kelp_compute_kind(device, kind, &answer, &error);
    }
    ck_assert_uint_gt(count, 1);
    ck_assert_uint_ne(answer, 42);
}

KELP_TEST(test_device_memory)
{
    struct kelp_error error = {KELP_OK, ""};
    void *memory = NULL;
    ck_assert_int_eq(device->table->alloc(device, 3, &memory, &error), KELP_OK);
    ck_assert_uint_eq((uintptr_t)memory % KELP_DEVICE_ALIGN, 0);
    device->table->free(device, memory);
    device->table->free(device, NULL);
    ck_assert_int_eq(device->table->alloc(device, SIZE_MAX, &memory, &error), KELP_ERR_NO_MEMORY);
    struct kelp_device *other = NULL;
    ck_assert_int_eq(kelp_device_cpu_create(0, &other, &error), KELP_ERR_INVALID);
    ck_assert_ptr_null(other);
}
