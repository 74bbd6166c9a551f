/*
 * The plain product for one instruction set. A panel of b's columns is copied into the order in
 * which vectors are loaded; a tile of c stays in registers while k runs.
 *
 * Fused operations are explicit: what a compiler fuses by itself depends on its optimisations.
 * tests/unit/kernels/test_plain.c compares with fmaf().
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/plain.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

/* A tile of c: ROWS rows of VECTORS vectors, as many as the registers hold beside a row of b. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define ROWS         8u
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#define ROWS         4u
#else
#define VECTOR_BYTES 16
#define ROWS         4u
#endif
#define VECTORS 3u
#define WIDTH   ((uint32_t)(VECTORS * VECTOR_BYTES / sizeof(float)))

typedef float vector __attribute__((vector_size(VECTOR_BYTES), may_alias));

/* sum + x y, elementwise. A macro, because vector arguments of functions depend on the ABI. */
#if defined(__AVX512F__)
#define FUSED                   true
#define MULTIPLY_ADD(x, y, sum) ((vector)_mm512_fmadd_ps((__m512)(x), (__m512)(y), (__m512)(sum)))
#elif defined(__AVX2__) && defined(__FMA__)
#define FUSED                   true
#define MULTIPLY_ADD(x, y, sum) ((vector)_mm256_fmadd_ps((__m256)(x), (__m256)(y), (__m256)(sum)))
#else
#define FUSED                   false
#define MULTIPLY_ADD(x, y, sum) ((sum) + (x) * (y))
#endif

/* Rows of op(a): element (row, at) is a[rows[row] + at * step]. */
struct tile_rows {
    const float *a;
    uint64_t rows[ROWS];
    uint64_t step;
};

static void compute_tile(const struct tile_rows *left, const vector *panel, uint32_t k,
                         float tile[ROWS][WIDTH])
{
    const float *rows[ROWS];
    vector sums[ROWS][VECTORS] = {0};
    for (uint32_t row = 0; row < ROWS; row++) {
        rows[row] = left->a + left->rows[row];
    }
    for (uint64_t at = 0; at < k; at++, panel += VECTORS) {
        for (uint32_t row = 0; row < ROWS; row++) {
            const vector factor = rows[row][at * left->step] - (vector){0};
            for (uint32_t i = 0; i < VECTORS; i++) {
                sums[row][i] = MULTIPLY_ADD(factor, panel[i], sums[row][i]);
            }
        }
    }
    for (uint32_t row = 0; row < ROWS; row++) {
        for (uint32_t i = 0; i < VECTORS; i++) {
            ((vector *)tile[row])[i] = sums[row][i];
        }
    }
}

/* Copy columns `first` and up of op(b), [k, WIDTH]; 0 beyond the last one. */
static void copy_panel(const struct kelp_matmul *p, uint32_t first, uint32_t columns, float *panel)
{
    const uint64_t column_step = p->transpose_b ? p->ldb : 1;
    const uint64_t step = p->transpose_b ? 1 : p->ldb;
    for (uint64_t at = 0; at < p->k; at++, panel += WIDTH) {
        const float *from = p->b + first * column_step + at * step;
        for (uint32_t column = 0; column < columns; column++) {
            panel[column] = from[column * column_step];
        }
        memset(panel + columns, 0, (WIDTH - columns) * sizeof(*panel));
    }
}

static void write_tile(const struct kelp_matmul *p, float tile[ROWS][WIDTH], uint32_t first_row,
                       uint32_t first, uint32_t columns)
{
    for (uint32_t row = 0; row < ROWS && first_row + row < p->m; row++) {
        float *c = p->c + (uint64_t)(first_row + row) * p->ldc + first;
        for (uint32_t column = 0; column < columns; column++) {
            c[column] =
                p->write == KELP_ACCUMULATE ? c[column] + tile[row][column] : tile[row][column];
        }
    }
}

static void compute_panel(const struct kelp_matmul *p, uint32_t first, uint32_t columns,
                          const float *panel)
{
    const uint64_t row_step = p->transpose_a ? 1 : p->lda;
    struct tile_rows left = {.a = p->a, .step = p->transpose_a ? p->lda : 1};
    float tile[ROWS][WIDTH] __attribute__((aligned(VECTOR_BYTES)));
    for (uint32_t row = 0; row < p->m; row += ROWS) {
        for (uint32_t i = 0; i < ROWS; i++) { /* beyond the end, repeat the last row */
            left.rows[i] = (row + i < p->m ? row + i : p->m - 1) * row_step;
        }
        compute_tile(&left, (const vector *)(const void *)panel, p->k, tile);
        write_tile(p, tile, row, first, columns);
    }
}

static kelp_status run(const struct kelp_matmul *p)
{
    if (p->m == 0 || p->n == 0) {
        return KELP_OK;
    }
    float *panel =
        aligned_alloc(VECTOR_BYTES, ((size_t)p->k * WIDTH + WIDTH) * sizeof(*panel)); /* never 0 */
    if (!panel) {
        return KELP_ERR_NO_MEMORY;
    }
    for (uint32_t first = 0; first < p->n; first += WIDTH) {
        const uint32_t columns = p->n - first < WIDTH ? p->n - first : WIDTH;
        copy_panel(p, first, columns, panel);
        compute_panel(p, first, columns, panel);
    }
    free(panel);
    return KELP_OK;
}

#define TEXT2(word) #word
#define TEXT(word)  TEXT2(word)
extern const struct kelp_plain KELP_LOOPS_NAME(kelp__plain);
const struct kelp_plain KELP_LOOPS_NAME(kelp__plain) = {
    .name = TEXT(KELP_LOOPS_VARIANT), .fused = FUSED, .run = run};
