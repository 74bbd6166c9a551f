/* Sums over rows and columns, weighted sums, moving averages. */
#include "tests/lib/cuda/operator_cases.h"

#define TOLERANCE 1e-5
/* In very long sums the CPU's result is less exact: it has few running sums in float32. */
#define LONG_SUM       100000u
#define LONG_TOLERANCE 1e-4
#define FEW            64u

/* The terms of `sums` sums: a few sums may all be near zero, with no large one to scale the
 * tolerance by, so they get positive terms. */
static enum case_content content_for(struct operator_cases *cases, uint64_t sums)
{
    const enum case_content signed_ones = cases_flip(cases) ? CASE_SIGNED : CASE_MODERATE;
    return sums < FEW ? CASE_POSITIVE : signed_ones;
}

/* Sometimes 1, a multiple of four, or odd. */
static uint32_t draw_side(struct operator_cases *cases, uint32_t most)
{
    switch (cases_draw(cases, 0, 5)) {
    case 0:
        return 1;
    case 1:
        return 2 * cases_draw(cases, 0, (most - 1) / 2) + 1;
    case 2:
        return most < 4 ? most : 4 * cases_draw(cases, 1, most / 4);
    default:
        return cases_draw(cases, 1, most);
    }
}

/* ---- the gradient of a bias ---- */

static void run_bias(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    struct kelp_bias_gradient bias = *(const struct kelp_bias_gradient *)arguments;
    bias.matrix = buffers[0];
    bias.bias = buffers[1];
    stream->table->bias_gradient(stream, &bias);
}

static void add_bias(struct operator_cases *cases, uint32_t rows, uint32_t columns)
{
    const uint32_t more = cases_flip(cases) ? 4 * cases_draw(cases, 0, 3) : cases_draw(cases, 1, 9);
    const struct kelp_bias_gradient bias = {
        .ld = columns + more, .rows = rows, .columns = columns, .write = cases_draw_write(cases)};
    struct operator_case *one =
        cases_add(cases, run_bias, &bias, sizeof(bias), "bias_gradient %s rows=%u columns=%u ld=%u",
                  case_sign(bias.write), rows, columns, columns + more);
    const uint64_t count = rows != 0 ? (rows - 1) * bias.ld + columns : 0;
    one->tolerance = rows < LONG_SUM ? TOLERANCE : LONG_TOLERANCE;
    cases_set_buffer(cases, &one->buffers[0], count, content_for(cases, columns));
    cases_set_buffer(cases, &one->buffers[1], columns, CASE_POSITIVE);
    one->buffers[1].compared = true;
}

/* ---- reduce ---- */

static void run_reduce(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    struct kelp_reduce reduce = *(const struct kelp_reduce *)arguments;
    reduce.x = buffers[0];
    reduce.y = buffers[1];
    stream->table->reduce(stream, &reduce);
}

static void add_reduce(struct operator_cases *cases, uint32_t outer, uint32_t middle,
                       uint32_t inner)
{
    const struct kelp_reduce reduce = {.outer = outer,
                                       .middle = middle,
                                       .inner = inner,
                                       .scale = cases_flip(cases) ? 1.0f : 0.3f,
                                       .write = cases_draw_write(cases)};
    const uint64_t sums = (uint64_t)outer * inner;
    struct operator_case *one =
        cases_add(cases, run_reduce, &reduce, sizeof(reduce),
                  "reduce %s outer=%u middle=%u inner=%u scale=%g", case_sign(reduce.write), outer,
                  middle, inner, (double)reduce.scale);
    one->tolerance = middle < LONG_SUM ? TOLERANCE : LONG_TOLERANCE;
    cases_set_buffer(cases, &one->buffers[0], sums * middle, content_for(cases, sums));
    cases_set_buffer(cases, &one->buffers[1], sums, CASE_POSITIVE);
    one->buffers[1].compared = true;
}

/* ---- weighted sums ---- */

static void run_weighted(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    struct kelp_weighted_sum sum = *(const struct kelp_weighted_sum *)arguments;
    sum.weights = buffers[0];
    sum.x = buffers[1];
    sum.y = buffers[2];
    stream->table->weighted_sum(stream, &sum);
}

static void run_weighted_gradient(struct kelp_stream *stream, void *const *buffers,
                                  const void *arguments)
{
    struct kelp_weighted_sum sum = *(const struct kelp_weighted_sum *)arguments;
    sum.weights = buffers[0];
    sum.x = buffers[1];
    sum.dy = buffers[2];
    sum.dweights = buffers[3];
    sum.dx = buffers[4];
    stream->table->weighted_sum_gradient(stream, &sum);
}

static void add_weighted(struct operator_cases *cases, uint32_t rows, uint32_t count,
                         uint32_t width)
{
    const struct kelp_weighted_sum sum = {.rows = rows, .count = count, .width = width};
    const uint64_t weights = (uint64_t)rows * count;
    struct operator_case *one =
        cases_add(cases, run_weighted, &sum, sizeof(sum), "weighted_sum rows=%u count=%u width=%u",
                  rows, count, width);
    cases_set_buffer(cases, &one->buffers[0], weights, CASE_SIGNED);
    cases_set_buffer(cases, &one->buffers[1], weights * width, CASE_SIGNED);
    cases_set_buffer(cases, &one->buffers[2], (uint64_t)rows * width, CASE_SIGNED);
    one->buffers[2].compared = true; /* bit by bit: both sum in ascending order */
}

/* wanted: bit 0 dweights, bit 1 dx. Each is compared in its own cases, because dx has no sums. */
static void add_weighted_gradient(struct operator_cases *cases, uint32_t rows, uint32_t count,
                                  uint32_t width, uint32_t wanted)
{
    const struct kelp_weighted_sum sum = {.rows = rows,
                                          .count = count,
                                          .width = width,
                                          .write_weights = cases_draw_write(cases),
                                          .write_x = cases_draw_write(cases)};
    const uint64_t weights = (uint64_t)rows * count, y = (uint64_t)rows * width;
    struct operator_case *one = cases_add(
        cases, run_weighted_gradient, &sum, sizeof(sum),
        "weighted_sum_gradient%s%s%s%s rows=%u count=%u width=%u",
        (wanted & 1) != 0 ? " dweights" : "", (wanted & 1) != 0 ? case_sign(sum.write_weights) : "",
        (wanted & 2) != 0 ? " dx" : "", (wanted & 2) != 0 ? case_sign(sum.write_x) : "", rows,
        count, width);
    const enum case_content content = content_for(cases, weights);
    one->tolerance = (wanted & 1) != 0 ? TOLERANCE : 0.0;
    cases_set_buffer(cases, &one->buffers[0], weights, CASE_SIGNED);
    cases_set_buffer(cases, &one->buffers[1], weights * width, content);
    cases_set_buffer(cases, &one->buffers[2], y, content == CASE_SIGNED ? CASE_MODERATE : content);
    cases_set_buffer(cases, &one->buffers[3], (wanted & 1) != 0 ? weights : 0, CASE_POSITIVE);
    cases_set_buffer(cases, &one->buffers[4], (wanted & 2) != 0 ? weights * width : 0,
                     CASE_MODERATE);
    one->buffers[3].compared = one->buffers[4].compared = true;
}

static void add_weighted_sizes(struct operator_cases *cases, uint32_t rows, uint32_t count,
                               uint32_t width)
{
    add_weighted(cases, rows, count, width);
    for (uint32_t wanted = 1; wanted < 4; wanted++) {
        add_weighted_gradient(cases, rows, count, width, wanted);
    }
}

/* ---- moving averages ---- */

static void run_average(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    struct kelp_moving_average average = *(const struct kelp_moving_average *)arguments;
    average.x = buffers[0];
    average.y = buffers[1];
    average.workspace = buffers[2];
    stream->table->moving_average(stream, &average);
}

static void run_average_gradient(struct kelp_stream *stream, void *const *buffers,
                                 const void *arguments)
{
    struct kelp_moving_average average = *(const struct kelp_moving_average *)arguments;
    average.x = buffers[0];
    average.y = buffers[1];
    average.workspace = buffers[2];
    stream->table->moving_average_gradient(stream, &average);
}

static void add_average(struct operator_cases *cases, uint32_t rows, uint32_t length,
                        uint32_t kernel_size)
{
    for (uint32_t way = 0; way < 3; way++) {
        const struct kelp_moving_average average = {.rows = rows,
                                                    .length = length,
                                                    .kernel_size = kernel_size,
                                                    .write = way == 2 ? KELP_ACCUMULATE
                                                                      : KELP_OVERWRITE};
        struct operator_case *one = cases_add(
            cases, way == 0 ? run_average : run_average_gradient, &average, sizeof(average),
            "moving_average%s %s rows=%u length=%u kernel_size=%u", way == 0 ? "" : "_gradient",
            case_sign(average.write), rows, length, kernel_size);
        cases_set_buffer(cases, &one->buffers[0], (uint64_t)rows * length, CASE_SIGNED);
        cases_set_buffer(cases, &one->buffers[1], (uint64_t)rows * length, CASE_SIGNED);
        cases_set_buffer(cases, &one->buffers[2],
                         kelp_moving_average_workspace(length, kernel_size), CASE_SIGNED);
        one->buffers[1].compared = true;
    }
}

/* ---- all of them ---- */

static void add_small(struct operator_cases *cases)
{
    for (uint32_t i = 0; i < 6; i++) {
        add_bias(cases, draw_side(cases, 70), draw_side(cases, 200));
        add_reduce(cases, draw_side(cases, 9), draw_side(cases, 70), draw_side(cases, 30));
        add_reduce(cases, draw_side(cases, 40), draw_side(cases, 400), 1);
        add_weighted_sizes(cases, draw_side(cases, 9), draw_side(cases, 9), draw_side(cases, 140));
        add_average(cases, draw_side(cases, 9), draw_side(cases, 200),
                    2 * cases_draw(cases, 0, 20) + 1);
    }
    add_average(cases, 3, 1, 9);
    add_average(cases, 2, 2, 7);
    add_average(cases, 2, 40, 101);
    add_weighted_sizes(cases, 1, 3, 1300);
    add_weighted_sizes(cases, 2, 2, 2048);
}

/* Sums that are split into parts, and a block for each row. */
static void add_split(struct operator_cases *cases)
{
    add_bias(cases, cases_draw(cases, 200, 300), 64);
    add_bias(cases, cases_draw(cases, 2100, 3300), 5);
    add_bias(cases, cases_draw(cases, 2100, 3300), 8);
    add_bias(cases, cases_draw(cases, 4100, 6000), 1);
    add_bias(cases, cases_draw(cases, 100, 140), cases_draw(cases, 129, 140));
    /* So many parts that narrow blocks add them up. */
    add_bias(cases, cases_draw(cases, 4400, 4600), 100);
    add_bias(cases, cases_draw(cases, 9000, 9400), cases_draw(cases, 65, 71));
    add_reduce(cases, 2, cases_draw(cases, 4400, 4600), 100);
    add_reduce(cases, 3, cases_draw(cases, 1030, 1100), 6);
    add_reduce(cases, 2, cases_draw(cases, 260, 300), 32);
    add_reduce(cases, 4, cases_draw(cases, 1025, 2000), 1);
    add_reduce(cases, 4, 4 * cases_draw(cases, 300, 500), 1);
    add_reduce(cases, 1, cases_draw(cases, 16400, 20000), 1);
    add_reduce(cases, 2, 4 * cases_draw(cases, 2100, 2400), 1);
}

/* Sums of nothing give zeros, or keep the old values; without outputs nothing is written. */
static void add_empty(struct operator_cases *cases)
{
    for (uint32_t i = 0; i < 2; i++) {
        add_bias(cases, 0, 9);
        add_reduce(cases, 3, 0, 1);
        add_reduce(cases, 3, 0, 4);
    }
    add_bias(cases, 9, 0);
    add_reduce(cases, 0, 5, 4);
    add_reduce(cases, 0, 5, 1);
    add_reduce(cases, 5, 5, 0);
    add_weighted_sizes(cases, 0, 3, 4);
    add_weighted_sizes(cases, 3, 0, 4);
    add_weighted_sizes(cases, 3, 4, 0);
    add_average(cases, 0, 7, 3);
    add_average(cases, 3, 0, 3);
}

static void add_large(struct operator_cases *cases)
{
    add_bias(cases, 200000, 48);
    add_bias(cases, 30001, 257);
    add_bias(cases, 2048, 4096);
    add_bias(cases, 500, 20000);
    add_bias(cases, 300000, 3);
    add_bias(cases, 3, 2000003);
    add_reduce(cases, 1, 10000000, 1);
    add_reduce(cases, 7, 1000003, 1);
    add_reduce(cases, 100000, 96, 1);
    add_reduce(cases, 1000000, 7, 1);
    add_reduce(cases, 5000, 1700, 1);
    add_reduce(cases, 4000, 100, 21);
    add_reduce(cases, 64, 1000, 128);
    add_reduce(cases, 300000, 10, 3);
    add_reduce(cases, 2, 60000, 66);
    add_reduce(cases, 8, 20, 65536);
    add_reduce(cases, 1, 700, 100000);
    add_reduce(cases, 6, 100, 20001);
    add_weighted_sizes(cases, 1024, 12, 512);
    add_weighted_sizes(cases, 100000, 4, 17);
    add_weighted_sizes(cases, 10, 100, 4097);
    add_average(cases, 20000, 336, 25);
    add_average(cases, 3, 1000000, 25);
    add_average(cases, 50, 20000, 1001);
}

void cases_sums(struct operator_cases *cases, bool large)
{
    add_small(cases);
    add_split(cases);
    add_empty(cases);
    /* So many sums that a thread computes four of them. */
    add_reduce(cases, 256, 2, 1024);
    add_weighted(cases, 256, 2, 1024);
    if (large) {
        add_large(cases);
    }
}
