/* Operators that move, select and add up elements, over random shapes, in every instruction set:
 * copy, reduce, embedding, dropout, and batches of matrix products. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "tests/lib/models/operator_check.h"
#include "tests/lib/suite.h"

#define SEEDS 40

/* ---- copy ---- */

/* Random dimensions of y, dense, and of x in another order, with a stride of 0 now and then. */
static struct kelp_copy random_copy(int seed, uint64_t *ret_x_count, uint64_t *ret_y_count)
{
    struct kelp_copy copy = {.rank = kelp_operator_size(seed, 1, 0, KELP_COPY_RANK_MAX),
                             .scale = seed % 3 == 0 ? 1.0f : 0.5f};
    uint32_t order[KELP_COPY_RANK_MAX];
    uint64_t stride = 1;
    for (uint32_t i = 0; i < copy.rank; i++) {
        copy.dims[i] = kelp_operator_size(seed, 10 + i, seed % 10 == 9 ? 0 : 1, i < 2 ? 21 : 4);
        order[i] = i;
    }
    for (uint32_t i = 0; i < copy.rank; i++) { /* a shuffle */
        const uint32_t other = kelp_operator_size(seed, 20 + i, i, copy.rank - 1);
        const uint32_t kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (uint32_t i = copy.rank; i-- > 0; stride *= copy.dims[i]) {
        copy.y_strides[i] = stride;
    }
    *ret_y_count = stride;
    stride = kelp_operator_size(seed, 2, 1, 2); /* x may have holes */
    for (uint32_t i = 0; i < copy.rank; i++) {
        const uint32_t at = seed % 4 == 0 ? copy.rank - 1 - i : order[i];
        if (kelp_operator_size(seed, 30 + i, 0, 5) == 0) {
            continue; /* repeated: stride 0 */
        }
        copy.x_strides[at] = stride;
        stride *= copy.dims[at];
    }
    *ret_x_count = stride;
    return copy;
}

static void plain_copy(const struct kelp_copy *copy, uint64_t y_count, float *y)
{
    for (uint64_t i = 0; i < y_count; i++) {
        uint64_t left = i, x = 0;
        for (uint32_t d = copy->rank; d-- > 0; left /= copy->dims[d]) {
            x += left % copy->dims[d] * copy->x_strides[d];
        }
        const float value = copy->scale * copy->x[x];
        y[i] = copy->write == KELP_ACCUMULATE ? y[i] + value : value;
    }
}

KELP_LOOP_TEST(test_copy, 0, 5 * SEEDS)
{
    uint64_t x_count, y_count;
    struct kelp_copy copy = random_copy(_i, &x_count, &y_count);
    float *x = kelp_operator_floats(_i, 3, x_count, -1.0f, 1.0f);
    copy.x = x;
    for (uint32_t variant = 0; kelp__loops_variant(variant) != NULL; variant++) {
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            float *y = kelp_operator_floats(_i, 4, y_count, -1.0f, 1.0f);
            float *wanted = kelp_operator_floats(_i, 4, y_count, -1.0f, 1.0f);
            copy.write = accumulate == 1 ? KELP_ACCUMULATE : KELP_OVERWRITE;
            copy.y = y;
            plain_copy(&copy, y_count, wanted);
            kelp__cpu_table(kelp__loops_variant(variant))->copy(NULL, &copy);
            for (uint64_t i = 0; i < y_count; i++) {
                if (y[i] != wanted[i]) {
                    ck_abort_msg("seed %d, element %llu: %g, not %g", _i, (unsigned long long)i,
                                 (double)y[i], (double)wanted[i]);
                }
            }
            free(y);
            free(wanted);
        }
    }
    free(x);
}

/* Into every other element of y: the ones between stay. */
KELP_TEST(test_copy_with_holes)
{
    const float x[6] = {1, 2, 3, 4, 5, 6};
    float y[12] = {0};
    const struct kelp_copy copy = {.rank = 2,
                                   .dims = {2, 3},
                                   .x = x,
                                   .x_strides = {3, 1},
                                   .y = y,
                                   .y_strides = {2, 4},
                                   .scale = 1.0f};
    const float wanted[12] = {1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6, 0};
    kelp__cpu_table(kelp__loops())->copy(NULL, &copy);
    ck_assert_mem_eq(y, wanted, sizeof(y));
}

/* ---- reduce ---- */

KELP_LOOP_TEST(test_reduce, 0, SEEDS)
{
    const uint64_t outer = kelp_operator_size(_i, 1, 0, 5),
                   middle = kelp_operator_size(_i, 2, 0, 50);
    const uint64_t inner = _i % 2 == 0 ? 1 : kelp_operator_size(_i, 3, 0, 70);
    float *x = kelp_operator_floats(_i, 4, outer * middle * inner, -1.0f, 1.0f);
    float *first = kelp_operator_floats(_i, 5, outer * inner, -1.0f, 1.0f);
    const float *before = kelp_operator_floats(_i, 5, outer * inner, -1.0f, 1.0f);
    for (uint32_t variant = 0; kelp__loops_variant(variant) != NULL; variant++) {
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            float *y = kelp_operator_floats(_i, 5, outer * inner, -1.0f, 1.0f);
            const struct kelp_reduce reduce = {.x = x,
                                               .y = y,
                                               .outer = outer,
                                               .middle = middle,
                                               .inner = inner,
                                               .scale = 0.5f,
                                               .write = accumulate == 1 ? KELP_ACCUMULATE
                                                                        : KELP_OVERWRITE};
            kelp__cpu_table(kelp__loops_variant(variant))->reduce(NULL, &reduce);
            for (uint64_t i = 0; i < outer * inner; i++) {
                double sum = accumulate == 1 ? (double)before[i] : 0.0;
                for (uint64_t m = 0; m < middle; m++) {
                    sum += 0.5 * (double)x[(i / inner * middle + m) * inner + i % inner];
                }
                ck_assert_double_eq_tol((double)y[i], sum, 1e-5);
                ck_assert(variant == 0 || accumulate == 1 || y[i] == first[i]);
                first[i] = accumulate == 0 ? y[i] : first[i];
            }
            free(y);
        }
    }
    free(x);
    free(first);
    free((void *)(uintptr_t)before);
}

/* ---- embedding ---- */

struct embedding_sizes {
    uint64_t rows, stride;
    uint32_t vocab, width;
};

/* The ids are an input without gradient, the table is the other one. */
static void plain_embedding(const void *sizes, const double *const *inputs, double *output)
{
    const struct embedding_sizes *s = sizes;
    for (uint64_t i = 0; i < s->rows * s->width; i++) {
        const uint64_t id = (uint64_t)inputs[0][i / s->width * s->stride];
        output[i] = inputs[1][id * s->width + i % s->width];
    }
}

static void run_embedding(const struct kelp_loops *loops, const void *sizes,
                          const float *const *inputs, float *output, const float *dy,
                          float *const *gradients, enum kelp_write write)
{
    const struct embedding_sizes *s = sizes;
    const uint64_t count = (uint64_t)s->vocab * s->width;
    struct kelp__cpu_stream stream = {.fault = {.what = KELP_LOOP_FINE}};
    /* Added row by row: only from zero is twice as much exactly twice. */
    float *dtable = kelp_operator_floats(0, 1, count, 1.0f, 2.0f);
    struct kelp_embedding embedding = {.ids = inputs[0],
                                       .ids_stride = s->stride,
                                       .rows = s->rows,
                                       .vocab = s->vocab,
                                       .width = s->width,
                                       .table = inputs[1],
                                       .y = output,
                                       .dy = dy,
                                       .dtable = dtable,
                                       .write = KELP_OVERWRITE};
    kelp__cpu_table(loops)->embedding(&stream.base, &embedding);
    kelp__cpu_table(loops)->embedding_gradient(&stream.base, &embedding);
    for (uint64_t i = 0; i < count; i++) {
        gradients[1][i] = write == KELP_ACCUMULATE ? gradients[1][i] + dtable[i] : dtable[i];
    }
    ck_assert_int_eq(stream.fault.what, KELP_LOOP_FINE);
    free(dtable);
}

KELP_LOOP_TEST(test_embedding, 0, SEEDS)
{
    const struct embedding_sizes sizes = {.rows = kelp_operator_size(_i, 1, 0, 30),
                                          .stride = kelp_operator_size(_i, 2, 1, 3),
                                          .vocab = kelp_operator_size(_i, 3, 1, 12),
                                          .width = kelp_operator_size(_i, 4, 1, 11)};
    const uint64_t ids_count = sizes.rows * sizes.stride;
    float *ids = kelp_operator_floats(_i, 5, ids_count, 0.0f, (float)sizes.vocab);
    for (uint64_t i = 0; i < ids_count; i++) {
        ids[i] = floorf(ids[i]);
    }
    kelp_operator_check(
        &(struct kelp_operator_check){.what = "embedding",
                                      .seed = _i,
                                      .sizes = &sizes,
                                      .plain = plain_embedding,
                                      .run = run_embedding,
                                      .input_count = 2,
                                      .counts = {ids_count, (uint64_t)sizes.vocab * sizes.width},
                                      .constant = {true},
                                      .given = {ids},
                                      .low = {0.0f, -1.0f},
                                      .high = {0.0f, 1.0f},
                                      .output_count = sizes.rows * sizes.width});
    free(ids);
}

/* Rows are added to what is there. */
KELP_TEST(test_embedding_accumulates)
{
    const float ids[3] = {1, 0, 1}, dy[3] = {1, 10, 100};
    float dtable[2] = {1000, 2000};
    struct kelp__cpu_stream stream = {.fault = {.what = KELP_LOOP_FINE}};
    const struct kelp_embedding embedding = {.ids = ids,
                                             .ids_stride = 1,
                                             .rows = 3,
                                             .vocab = 2,
                                             .width = 1,
                                             .dy = dy,
                                             .dtable = dtable,
                                             .write = KELP_ACCUMULATE};
    kelp__cpu_table(kelp__loops())->embedding_gradient(&stream.base, &embedding);
    ck_assert_float_eq(dtable[0], 1010.0f);
    ck_assert_float_eq(dtable[1], 2101.0f);
}

/* An id that is no row of the table is an error of the stream, once, and reads nothing. */
KELP_TEST(test_embedding_bad_id)
{
    static const float bad[] = {5.0f, -1.0f, 0.5f, 1e30f, NAN, INFINITY, -INFINITY};
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_device *device;
    struct kelp_stream *stream;
    ck_assert_int_eq(kelp_device_cpu_create(1, &device, &error), KELP_OK);
    ck_assert_int_eq(device->table->stream_create(device, &stream, &error), KELP_OK);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        const float ids[3] = {4.0f, bad[i], 0.0f}, dy[6] = {1, 1, 1, 1, 1, 1};
        float *table = kelp_operator_floats(1, 1, 10, -1.0f, 1.0f), y[6], dtable[10];
        const struct kelp_embedding embedding = {.ids = ids,
                                                 .ids_stride = 1,
                                                 .rows = 3,
                                                 .vocab = 5,
                                                 .width = 2,
                                                 .table = table,
                                                 .y = y,
                                                 .dy = dy,
                                                 .dtable = dtable};
        stream->table->embedding(stream, &embedding);
        ck_assert_int_eq(stream->table->wait(stream, &error), KELP_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(error.text, "rows 0 to 4"));
        ck_assert_int_eq(stream->table->wait(stream, &error), KELP_OK);
        ck_assert(y[2] == 0.0f && y[3] == 0.0f && y[4] == table[0]);
        stream->table->embedding_gradient(stream, &embedding);
        ck_assert_int_eq(stream->table->wait(stream, &error), KELP_ERR_INVALID);
        ck_assert(dtable[0] == 1.0f && dtable[8] == 1.0f && dtable[2] == 0.0f);
        free(table);
    }
    stream->table->stream_destroy(stream);
    device->table->destroy(device);
}

/* ---- dropout ---- */

/* By the plain generator, element by element. */
KELP_LOOP_TEST(test_dropout, 0, SEEDS)
{
    const uint32_t samples = kelp_operator_size(_i, 1, 0, 4);
    const uint64_t elements = kelp_operator_size(_i, 2, 0, 200);
    const uint64_t seed_step[2] = {UINT64_C(0x123456789abcdef) + (uint64_t)_i,
                                   (uint64_t)_i << 31 | 7};
    const float p = (float)(_i % 5) * 0.2f, scale = 1.0f / (1.0f - p);
    const uint32_t positions[4] = {3, 900, 0, UINT32_MAX};
    float *x = kelp_operator_floats(_i, 3, samples * elements, -1.0f, 1.0f);
    uint64_t key = seed_step[0] + (11 + UINT64_C(1)) * UINT64_C(0x9E3779B97F4A7C15);
    key = (key ^ key >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    key = (key ^ key >> 27) * UINT64_C(0x94D049BB133111EB);
    key = key ^ key >> 31;
    for (uint32_t variant = 0; kelp__loops_variant(variant) != NULL; variant++) {
        float *y = kelp_operator_floats(_i, 4, samples * elements, -1.0f, 1.0f);
        struct kelp_dropout dropout = {.x = x,
                                       .y = y,
                                       .samples = samples,
                                       .elements = elements,
                                       .p = p,
                                       .use = 11,
                                       .seed_step = seed_step,
                                       .positions = positions};
        kelp__cpu_table(kelp__loops_variant(variant))->dropout(NULL, &dropout);
        dropout.write = KELP_ACCUMULATE;
        kelp__cpu_table(kelp__loops_variant(variant))->dropout(NULL, &dropout);
        for (uint64_t i = 0; i < samples * elements; i++) {
            const uint64_t element = i % elements;
            const uint32_t counter[4] = {(uint32_t)(element / 4), positions[i / elements],
                                         (uint32_t)seed_step[1], (uint32_t)(seed_step[1] >> 32)};
            const uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
            uint32_t words[4];
            kelp_philox_block(counter, keys, words);
            const bool kept = (double)words[element % 4] >= (double)p * 0x1p32;
            const float once = kept ? x[i] * scale : 0.0f;
            if (y[i] != once + once) {
                ck_abort_msg("seed %d, element %llu", _i, (unsigned long long)i);
            }
        }
        free(y);
    }
    free(x);
}

/* About p of the elements go, others for each seed, step, layer and position. */
KELP_TEST(test_dropout_share)
{
    enum { COUNT = 20000 };
    float *x = kelp_operator_floats(1, 1, COUNT, 1.0f, 2.0f);
    float *first = malloc(COUNT * sizeof(*first)), *y = malloc(COUNT * sizeof(*y));
    for (int change = 0; change < 5; change++) {
        const uint64_t seed_step[2] = {change == 1 ? 2 : 1, change == 2 ? 8 : 7};
        const uint32_t position = change == 3 ? 1 : 0;
        const struct kelp_dropout dropout = {.x = x,
                                             .y = y,
                                             .samples = 1,
                                             .elements = COUNT,
                                             .p = 0.3f,
                                             .use = change == 4 ? 1 : 0,
                                             .seed_step = seed_step,
                                             .positions = &position};
        kelp__cpu_table(kelp__loops())->dropout(NULL, &dropout);
        uint32_t gone = 0, same = 0;
        for (uint32_t i = 0; i < COUNT; i++) {
            gone += y[i] == 0.0f ? 1 : 0;
            same += change > 0 && (y[i] == 0.0f) == (first[i] == 0.0f) ? 1 : 0;
        }
        memcpy(first, y, change == 0 ? COUNT * sizeof(*y) : 0);
        ck_assert_double_eq_tol((double)gone / COUNT, 0.3, 0.015);
        /* Independent masks agree where both keep or both drop: 0.7^2 + 0.3^2. */
        ck_assert(change == 0 || fabs((double)same / COUNT - 0.58) < 0.02);
    }
    free(x);
    free(y);
    free(first);
}

/* ---- batches of matrix products ---- */

KELP_LOOP_TEST(test_matmul_batch, 0, SEEDS)
{
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_device *device;
    struct kelp_stream *stream;
    ck_assert_int_eq(kelp_device_cpu_create(1, &device, &error), KELP_OK);
    ck_assert_int_eq(device->table->stream_create(device, &stream, &error), KELP_OK);
    const uint32_t batch = kelp_operator_size(_i, 1, 0, 4), m = kelp_operator_size(_i, 2, 0, 9);
    const uint32_t n = kelp_operator_size(_i, 3, 0, 9), k = kelp_operator_size(_i, 4, 0, 9);
    const uint32_t times = batch != 0 ? batch : 1;
    const bool shared_b = _i % 2 == 0, tb = _i % 3 == 0;
    float *a = kelp_operator_floats(_i, 5, (uint64_t)times * m * k, -1.0f, 1.0f);
    float *b = kelp_operator_floats(_i, 6, (uint64_t)times * k * n, -1.0f, 1.0f);
    float *c = kelp_operator_floats(_i, 7, (uint64_t)times * m * n, -1.0f, 1.0f);
    const struct kelp_matmul matmul = {.transpose_b = tb,
                                       .m = m,
                                       .n = n,
                                       .k = k,
                                       .a = a,
                                       .lda = k,
                                       .b = b,
                                       .ldb = tb ? k : n,
                                       .c = c,
                                       .ldc = n,
                                       .batch = batch,
                                       .stride_a = (uint64_t)m * k,
                                       .stride_b = shared_b ? 0 : (uint64_t)k * n,
                                       .stride_c = (uint64_t)m * n};
    stream->table->matmul(stream, &matmul);
    ck_assert_int_eq(stream->table->wait(stream, &error), KELP_OK);
    for (uint64_t i = 0; i < (uint64_t)times * m * n; i++) {
        const uint64_t t = i / n / m, row = i / n % m, column = i % n;
        const float *one_b = b + t * matmul.stride_b;
        double sum = 0.0;
        for (uint64_t l = 0; l < k; l++) {
            sum += (double)a[(t * m + row) * k + l] *
                   (double)(tb ? one_b[column * k + l] : one_b[l * n + column]);
        }
        ck_assert_double_eq_tol((double)c[i], sum, 1e-5);
    }
    free(a);
    free(b);
    free(c);
    stream->table->stream_destroy(stream);
    device->table->destroy(device);
}
