/* The plain matrix product, in each variant: the bits of one sum in the order of k. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "kernels/cpu/plain.h"
#include "tests/lib/suite.h"

#define ROOM 60000u /* floats of each matrix */

/* Of tiles of 4 and 8 rows, of 12, 24 and 48 columns: parts, whole ones, whole ones and a part. */
static const uint32_t rows[] = {0, 1, 3, 4, 5, 8, 9, 37};
static const uint32_t columns[] = {0, 1, 11, 12, 13, 24, 25, 47, 48, 49, 67, 131};
static const uint32_t depths[] = {0, 1, 2, 3, 131, 300};

static float *floats(uint32_t use)
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

static float at(const float *matrix, uint64_t ld, bool transposed, uint32_t row, uint32_t column)
{
    return transposed ? matrix[column * ld + row] : matrix[row * ld + column];
}

static void multiply(const struct kelp_matmul *p, bool fused)
{
    for (uint32_t row = 0; row < p->m; row++) {
        for (uint32_t column = 0; column < p->n; column++) {
            float sum = 0.0f;
            for (uint32_t k = 0; k < p->k; k++) {
                const float x = at(p->a, p->lda, p->transpose_a, row, k);
                const float y = at(p->b, p->ldb, p->transpose_b, k, column);
                sum = fused ? fmaf(x, y, sum) : sum + x * y;
            }
            float *c = p->c + row * p->ldc + column;
            *c = p->write == KELP_ACCUMULATE ? *c + sum : sum;
        }
    }
}

/* Nothing between rows is written to: all of c is compared. */
static void check(const struct kelp_plain *plain, struct kelp_matmul product, const float *start)
{
    float *given = malloc(ROOM * sizeof(*given)), *wanted = malloc(ROOM * sizeof(*wanted));
    ck_assert_ptr_nonnull(given);
    ck_assert_ptr_nonnull(wanted);
    memcpy(given, start, ROOM * sizeof(*given));
    memcpy(wanted, start, ROOM * sizeof(*wanted));
    product.c = given;
    ck_assert_int_eq(plain->run(&product), KELP_OK);
    product.c = wanted;
    multiply(&product, plain->fused);
    ck_assert_msg(memcmp(given, wanted, ROOM * sizeof(*given)) == 0,
                  "%s: m=%u n=%u k=%u %d%d write=%d", plain->name, product.m, product.n, product.k,
                  product.transpose_a, product.transpose_b, product.write);
    free(given);
    free(wanted);
}

KELP_LOOP_TEST(bits_of_a_sum_in_order, 0, 3)
{
    const struct kelp_plain *plain = kelp__plain_variant((uint32_t)_i);
    if (!plain) {
        return; /* not on this processor */
    }
    float *a = floats(1), *b = floats(2), *c = floats(3);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(rows); i++) {
        for (size_t j = 0; j < KELP_ARRAY_COUNT(columns); j++) {
            for (uint32_t way = 0; way < 8; way++) {
                const uint32_t m = rows[i], n = columns[j];
                const uint32_t k = depths[(i + j + way) % KELP_ARRAY_COUNT(depths)];
                const bool turn_a = (way & 1) != 0, turn_b = (way & 2) != 0;
                check(plain,
                      (struct kelp_matmul){.transpose_a = turn_a,
                                           .transpose_b = turn_b,
                                           .m = m,
                                           .n = n,
                                           .k = k,
                                           .a = a + way, /* of any alignment */
                                           .lda = (turn_a ? m : k) + i % 3,
                                           .b = b + 1,
                                           .ldb = (turn_b ? k : n) + i % 2,
                                           .ldc = n + j % 3,
                                           .write = way < 4 ? KELP_OVERWRITE : KELP_ACCUMULATE},
                      c);
            }
        }
    }
    free(a);
    free(b);
    free(c);
}

/* What is not a number reaches those elements alone that it belongs to. */
KELP_TEST(not_a_number_stays_in_its_row)
{
    float *a = floats(1), *b = floats(2), *c = floats(3);
    a[5 * 7 + 3] = NAN; /* row 5 */
    const struct kelp_matmul product = {
        .m = 9, .n = 13, .k = 7, .a = a, .lda = 7, .b = b, .ldb = 13, .c = c, .ldc = 13};
    const struct kelp_plain *plain;
    for (uint32_t index = 0; (plain = kelp__plain_variant(index)) != NULL; index++) {
        ck_assert_int_eq(plain->run(&product), KELP_OK);
        for (uint32_t i = 0; i < 9 * 13; i++) {
            ck_assert_int_eq(isnan(c[i]) != 0, i / 13 == 5);
        }
    }
    free(a);
    free(b);
    free(c);
}
