/* Softmax and layer norm. */
#include "tests/lib/cuda/operator_cases.h"

#define TOLERANCE 1e-5
#define FEW       64u

/* ---- softmax ---- */

struct softmax_case {
    struct kelp_softmax softmax;
    bool in_place;
};

static void run_softmax(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    const struct softmax_case *one = arguments;
    struct kelp_softmax softmax = one->softmax;
    softmax.x = buffers[0];
    softmax.y = buffers[one->in_place ? 0 : 1];
    stream->table->softmax(stream, &softmax);
}

/* In place: dx is dy. */
static void run_softmax_gradient(struct kelp_stream *stream, void *const *buffers,
                                 const void *arguments)
{
    const struct softmax_case *one = arguments;
    struct kelp_softmax softmax = one->softmax;
    softmax.y = buffers[0];
    softmax.dy = buffers[1];
    softmax.dx = buffers[one->in_place ? 1 : 2];
    stream->table->softmax_gradient(stream, &softmax);
}

static const char *kind_of(const struct kelp_softmax *softmax)
{
    return softmax->logarithm ? " logarithm" : softmax->causal ? " causal" : "";
}

static void add_softmax(struct operator_cases *cases, struct kelp_softmax softmax, bool in_place)
{
    const struct softmax_case args = {.softmax = softmax, .in_place = in_place};
    const uint64_t count = softmax.rows * softmax.columns;
    struct operator_case *one =
        cases_add(cases, run_softmax, &args, sizeof(args),
                  "softmax%s%s rows=%u columns=%u queries=%u offset=%u", kind_of(&softmax),
                  in_place ? " in place" : "", (unsigned int)softmax.rows, softmax.columns,
                  softmax.queries, softmax.offset);
    one->tolerance = TOLERANCE;
    cases_set_buffer(cases, &one->buffers[0], count,
                     cases_draw(cases, 0, 3) == 0 ? CASE_SIGNED : CASE_MODERATE);
    one->buffers[0].compared = in_place;
    if (!in_place) {
        cases_set_buffer(cases, &one->buffers[1], count, CASE_MODERATE);
        one->buffers[1].compared = true;
    }
}

static void add_softmax_gradient(struct operator_cases *cases, struct kelp_softmax softmax,
                                 bool in_place)
{
    softmax.write = in_place ? KELP_OVERWRITE : cases_draw_write(cases);
    const struct softmax_case args = {.softmax = softmax, .in_place = in_place};
    const uint64_t count = softmax.rows * softmax.columns;
    struct operator_case *one = cases_add(
        cases, run_softmax_gradient, &args, sizeof(args),
        "softmax_gradient%s %s%s rows=%u columns=%u", kind_of(&softmax), case_sign(softmax.write),
        in_place ? " in place" : "", (unsigned int)softmax.rows, softmax.columns);
    one->tolerance = TOLERANCE;
    cases_set_buffer(cases, &one->buffers[0], count, CASE_POSITIVE);
    cases_set_buffer(cases, &one->buffers[1], count,
                     softmax.rows < FEW ? CASE_POSITIVE : CASE_MODERATE);
    one->buffers[1].compared = in_place;
    if (!in_place) {
        cases_set_buffer(cases, &one->buffers[2], count, CASE_MODERATE);
        one->buffers[2].compared = true;
    }
}

/* Each kind, in place and not; gradients do not depend on what was causal. */
static void add_softmax_sizes(struct operator_cases *cases, uint32_t rows, uint32_t columns)
{
    struct kelp_softmax softmax = {.rows = rows, .columns = columns};
    add_softmax(cases, softmax, cases_flip(cases));
    add_softmax_gradient(cases, softmax, cases_flip(cases));
    softmax.logarithm = true;
    add_softmax(cases, softmax, cases_flip(cases));
    add_softmax_gradient(cases, softmax, cases_flip(cases));
    softmax.logarithm = false;
    softmax.causal = true;
    softmax.queries = cases_draw(cases, 1, rows != 0 ? rows : 1);
    softmax.offset = cases_draw(cases, 0, columns / 2);
    add_softmax(cases, softmax, cases_flip(cases));
}

/* ---- layer norm ---- */

static void run_norm(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    struct kelp_layer_norm norm = *(const struct kelp_layer_norm *)arguments;
    norm.x = buffers[0];
    norm.weight = buffers[1];
    norm.bias = buffers[2];
    norm.y = buffers[3];
    norm.mean = buffers[4];
    norm.rstd = buffers[5];
    stream->table->layer_norm(stream, &norm);
}

static void run_norm_gradient(struct kelp_stream *stream, void *const *buffers,
                              const void *arguments)
{
    struct kelp_layer_norm norm = *(const struct kelp_layer_norm *)arguments;
    norm.x = buffers[0];
    norm.weight = buffers[1];
    norm.mean = buffers[2];
    norm.rstd = buffers[3];
    norm.dy = buffers[4];
    norm.dx = buffers[5];
    norm.dweight = buffers[6];
    norm.dbias = buffers[7];
    stream->table->layer_norm_gradient(stream, &norm);
}

static void add_norm(struct operator_cases *cases, uint32_t rows, uint32_t width)
{
    const struct kelp_layer_norm norm = {.rows = rows, .width = width, .eps = 1e-5f};
    struct operator_case *one =
        cases_add(cases, run_norm, &norm, sizeof(norm), "layer_norm rows=%u width=%u", rows, width);
    const uint64_t count = (uint64_t)rows * width;
    one->tolerance = TOLERANCE;
    cases_set_buffer(cases, &one->buffers[0], count, rows < FEW ? CASE_POSITIVE : CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[1], width, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[2], width, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[3], count, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[4], rows, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[5], rows, CASE_MODERATE);
    for (uint32_t i = 3; i < 6; i++) {
        one->buffers[i].compared = true;
    }
}

/* wanted: bit 0 dx, bit 1 dweight, bit 2 dbias. */
static void add_norm_gradient(struct operator_cases *cases, uint32_t rows, uint32_t width,
                              uint32_t wanted)
{
    const struct kelp_layer_norm norm = {.rows = rows,
                                         .width = width,
                                         .write_x = cases_draw_write(cases),
                                         .write_weight = cases_draw_write(cases),
                                         .write_bias = cases_draw_write(cases)};
    struct operator_case *one = cases_add(
        cases, run_norm_gradient, &norm, sizeof(norm),
        "layer_norm_gradient%s%s%s%s%s%s rows=%u width=%u", (wanted & 1) != 0 ? " dx" : "",
        (wanted & 1) != 0 ? case_sign(norm.write_x) : "", (wanted & 2) != 0 ? " dweight" : "",
        (wanted & 2) != 0 ? case_sign(norm.write_weight) : "", (wanted & 4) != 0 ? " dbias" : "",
        (wanted & 4) != 0 ? case_sign(norm.write_bias) : "", rows, width);
    const uint64_t count = (uint64_t)rows * width;
    const enum case_content content = rows < FEW || width < FEW ? CASE_POSITIVE : CASE_MODERATE;
    one->tolerance = TOLERANCE;
    cases_set_buffer(cases, &one->buffers[0], count, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[1], width, content);
    cases_set_buffer(cases, &one->buffers[2], rows, CASE_POSITIVE);
    cases_set_buffer(cases, &one->buffers[3], rows, CASE_POSITIVE);
    cases_set_buffer(cases, &one->buffers[4], count, content);
    cases_set_buffer(cases, &one->buffers[5], (wanted & 1) != 0 ? count : 0, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[6], (wanted & 2) != 0 ? width : 0, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[7], (wanted & 4) != 0 ? width : 0, CASE_MODERATE);
    for (uint32_t i = 5; i < 8; i++) {
        one->buffers[i].compared = true;
    }
}

static void add_norm_sizes(struct operator_cases *cases, uint32_t rows, uint32_t width)
{
    add_norm(cases, rows, width);
    add_norm_gradient(cases, rows, width, 7);
    if (width <= 1024) {
        add_norm_gradient(cases, rows, width, cases_draw(cases, 1, 6));
    }
}

/* ---- all of them ---- */

static void add_sizes(struct operator_cases *cases, uint32_t rows, uint32_t columns)
{
    add_softmax_sizes(cases, rows, columns);
    add_norm_sizes(cases, rows, columns);
}

/* So many rows that one pass computes a gradient's sums over rows and over columns. */
static void add_many_rows(struct operator_cases *cases)
{
    add_norm_sizes(cases, cases_draw(cases, 2048, 2100), cases_draw(cases, 5, 16));
    add_norm_sizes(cases, cases_draw(cases, 512, 600), 4 * cases_draw(cases, 9, 16));
    add_norm_sizes(cases, cases_draw(cases, 128, 150), cases_draw(cases, 130, 256));
    add_norm_sizes(cases, cases_draw(cases, 64, 90), 4 * cases_draw(cases, 65, 128));
    add_norm_sizes(cases, cases_draw(cases, 32, 40), cases_draw(cases, 513, 1024));
    add_norm_sizes(cases, cases_draw(cases, 8, 12), cases_draw(cases, 2049, 4096));
    add_norm_sizes(cases, cases_draw(cases, 8, 12), 4 * cases_draw(cases, 513, 1024));
}

/* Rows of each size class of a group of threads, divisible and not. */
static void add_small(struct operator_cases *cases)
{
    static const uint32_t limits[] = {1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 5000};
    for (uint32_t i = 0; i + 1 < KELP_ARRAY_COUNT(limits); i++) {
        const uint32_t low = limits[i], high = limits[i + 1];
        const uint32_t most = high <= 32 ? 70 : high <= 128 ? 20 : 3;
        add_sizes(cases, cases_draw(cases, 1, most), cases_draw(cases, low, high));
        add_sizes(cases, cases_draw(cases, 1, most), cases_draw(cases, low / 4 + 1, high / 4) * 4);
    }
    add_sizes(cases, 2, cases_draw(cases, 4097, 8192));
    add_sizes(cases, 2, 4 * cases_draw(cases, 2049, 5000)); /* several chunks of a long row */
    add_sizes(cases, 1, 2 * cases_draw(cases, 6145, 8191) + 1);
    add_norm_sizes(cases, cases_draw(cases, 1030, 1200), 5);
    add_norm_sizes(cases, cases_draw(cases, 300, 320), 64);
    add_many_rows(cases);
    add_sizes(cases, 1, 1);
    add_sizes(cases, 0, 5);
    add_sizes(cases, 5, 0);
}

static void add_large(struct operator_cases *cases)
{
    add_sizes(cases, 100000, 10);
    add_sizes(cases, 60000, 96);
    add_sizes(cases, 8192, 768);
    add_sizes(cases, 5000, 1000);
    add_sizes(cases, 4001, 1025);
    add_sizes(cases, 2000, 3000);
    add_sizes(cases, 300, 33001);
    add_sizes(cases, 3, 1000000);
}

void cases_rows(struct operator_cases *cases, bool large)
{
    add_small(cases);
    if (large) {
        add_large(cases);
    }
}
