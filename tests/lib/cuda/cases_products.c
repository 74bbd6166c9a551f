/* Matrix products: each pair of transposes, overwriting and accumulating, single and in batches. */
#include "tests/lib/cuda/operator_cases.h"

#define TOLERANCE 1e-5

/* How the matrices of a batch are spaced. */
enum spacing {
    ONE_AFTER_ANOTHER,
    INTERLEAVED, /* rows of all matrices side by side, like the heads of attention */
    SAME_ONE     /* stride 0 */
};

/* A matrix as it is stored. */
struct extent {
    uint64_t rows, columns, ld, stride, count;
};

static void run_product(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    struct kelp_matmul product = *(const struct kelp_matmul *)arguments;
    product.a = buffers[0];
    product.b = buffers[1];
    product.c = buffers[2];
    stream->table->matmul(stream, &product);
}

static struct extent lay_out(struct operator_cases *cases, uint64_t rows, uint64_t columns,
                             uint32_t batch, enum spacing spacing)
{
    const uint32_t more = cases_flip(cases) ? cases_draw(cases, 1, 9) : 0;
    const uint64_t matrices = batch != 0 ? batch : 1;
    struct extent extent = {.rows = rows, .columns = columns, .ld = columns + more};
    if (rows == 0 || columns == 0) {
        return extent;
    }
    if (spacing == INTERLEAVED) {
        extent.ld = matrices * columns + more;
        extent.stride = columns;
    } else if (spacing == ONE_AFTER_ANOTHER) {
        extent.stride = rows * extent.ld + (cases_flip(cases) ? cases_draw(cases, 1, 33) : 0);
    }
    /* Nothing after the last element, where a guard lies. */
    extent.count = (matrices - 1) * extent.stride + (rows - 1) * extent.ld + columns;
    return extent;
}

/* The caller sets transposes, write, m, n, k and batch. */
static void add_product(struct operator_cases *cases, struct kelp_matmul product,
                        enum spacing spacing_a, enum spacing spacing_b, enum spacing spacing_c)
{
    const uint32_t m = product.m, n = product.n, k = product.k, batch = product.batch;
    const bool ta = product.transpose_a, tb = product.transpose_b;
    const struct extent a = lay_out(cases, ta ? k : m, ta ? m : k, batch, spacing_a);
    const struct extent b = lay_out(cases, tb ? n : k, tb ? k : n, batch, spacing_b);
    const struct extent c = lay_out(cases, m, n, batch, spacing_c);
    product.lda = a.ld;
    product.ldb = b.ld;
    product.ldc = c.ld;
    product.stride_a = a.stride;
    product.stride_b = b.stride;
    product.stride_c = c.stride;
    struct operator_case *one =
        cases_add(cases, run_product, &product, sizeof(product),
                  "matmul %c%c %ux%ux%u%s batch=%u ld=%u,%u,%u stride=%u,%u,%u", ta ? 'T' : 'N',
                  tb ? 'T' : 'N', m, n, k, product.write == KELP_ACCUMULATE ? " +=" : "", batch,
                  (unsigned int)a.ld, (unsigned int)b.ld, (unsigned int)c.ld,
                  (unsigned int)a.stride, (unsigned int)b.stride, (unsigned int)c.stride);
    one->tolerance = TOLERANCE;
    /* A few sums may all be near zero, with no large one to scale the tolerance by. */
    const bool few = (uint64_t)m * n < 64;
    const enum case_content signed_ones = cases_flip(cases) ? CASE_SIGNED : CASE_MODERATE;
    cases_set_buffer(cases, &one->buffers[0], a.count, few ? CASE_POSITIVE : signed_ones);
    cases_set_buffer(cases, &one->buffers[1], b.count, few ? CASE_POSITIVE : CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[2], c.count, few ? CASE_POSITIVE : CASE_MODERATE);
    one->buffers[2].compared = true;
}

/* Often 1, and sizes that do not fill tiles. */
static uint32_t draw_side(struct operator_cases *cases, uint32_t most)
{
    switch (cases_draw(cases, 0, 5)) {
    case 0:
        return 1;
    case 1:
        return 2 * cases_draw(cases, 0, (most - 1) / 2) + 1;
    case 2:
        return 4 * cases_draw(cases, 1, most / 4);
    default:
        return cases_draw(cases, 1, most);
    }
}

/* The eight combinations of transposes and write. */
static struct kelp_matmul way_of(uint32_t way)
{
    return (struct kelp_matmul){.transpose_a = (way & 1) != 0,
                                .transpose_b = (way & 2) != 0,
                                .write = (way & 4) != 0 ? KELP_ACCUMULATE : KELP_OVERWRITE};
}

static void add_drawn(struct operator_cases *cases, uint32_t way, uint32_t most)
{
    struct kelp_matmul product = way_of(way);
    product.m = draw_side(cases, most);
    product.n = draw_side(cases, most);
    product.k = draw_side(cases, most);
    add_product(cases, product, ONE_AFTER_ANOTHER, ONE_AFTER_ANOTHER, ONE_AFTER_ANOTHER);
}

static void add_sizes(struct operator_cases *cases, uint32_t way, uint32_t m, uint32_t n,
                      uint32_t k)
{
    struct kelp_matmul product = way_of(way);
    product.m = m;
    product.n = n;
    product.k = k;
    add_product(cases, product, ONE_AFTER_ANOTHER, ONE_AFTER_ANOTHER, ONE_AFTER_ANOTHER);
}

static void add_batch(struct operator_cases *cases, uint32_t way, uint32_t batch, uint32_t most)
{
    struct kelp_matmul product = way_of(way);
    product.m = draw_side(cases, most);
    product.n = draw_side(cases, most);
    product.k = draw_side(cases, most);
    product.batch = batch;
    add_product(cases, product, (enum spacing)cases_draw(cases, ONE_AFTER_ANOTHER, SAME_ONE),
                (enum spacing)cases_draw(cases, ONE_AFTER_ANOTHER, SAME_ONE),
                (enum spacing)cases_draw(cases, ONE_AFTER_ANOTHER, INTERLEAVED));
}

/* Sums of nothing give zeros, or keep the old values; without outputs nothing is written. */
static void add_empty(struct operator_cases *cases, uint32_t way)
{
    add_sizes(cases, way, 5, 7, 0);
    add_sizes(cases, way, 0, 7, 3);
    add_sizes(cases, way, 5, 0, 3);
    struct kelp_matmul batch = way_of(way);
    batch.m = 3;
    batch.n = 5;
    batch.batch = 4;
    add_product(cases, batch, ONE_AFTER_ANOTHER, ONE_AFTER_ANOTHER, INTERLEAVED);
}

static void add_large(struct operator_cases *cases, uint32_t way)
{
    add_drawn(cases, way, 2048);
    add_sizes(cases, way, cases_draw(cases, 1, 3), cases_draw(cases, 1, 3),
              cases_draw(cases, 10000, 20000));
    add_sizes(cases, way, cases_draw(cases, 1, 64), cases_draw(cases, 1000, 2048),
              cases_draw(cases, 1000, 2048));
    add_sizes(cases, way, cases_draw(cases, 1000, 2048), cases_draw(cases, 1, 64),
              cases_draw(cases, 1000, 2048));
    add_sizes(cases, way, cases_draw(cases, 16, 256), cases_draw(cases, 16, 256),
              cases_draw(cases, 1000, 20000));
    add_batch(cases, way, cases_draw(cases, 32, 128), 160);
}

void cases_products(struct operator_cases *cases, bool large)
{
    for (uint32_t way = 0; way < 8; way++) {
        for (uint32_t i = 0; i < 5; i++) {
            add_drawn(cases, way, 70);
        }
        for (uint32_t i = 0; i < 4; i++) {
            add_batch(cases, way, cases_draw(cases, 0, 7), 40);
        }
        add_empty(cases, way);
        if (large) {
            add_large(cases, way);
        }
    }
    if (large) {
        add_sizes(cases, 0, 2048, 2048, 2048);
        add_sizes(cases, 7, 2047, 2045, 2043);
    }
}
