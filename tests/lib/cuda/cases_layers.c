/* Operators with several products: linear layers with each function, with and without bias, rows
 * that do not touch where there is no function, and each gradient wanted or not. */
#include "tests/lib/cuda/operator_cases.h"

#define TOLERANCE 1e-5

/* ---- linear ---- */

enum linear_buffer { X, WEIGHT, BIAS, SUMS, Y, DY, DSUMS, DX, DWEIGHT, DBIAS };

static void set_linear(struct kelp_linear *linear, void *const *buffers)
{
    linear->x = buffers[X];
    linear->weight = buffers[WEIGHT];
    linear->bias = buffers[BIAS];
    linear->sums = buffers[SUMS];
    linear->y = buffers[Y];
}

static void run_linear(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    struct kelp_linear linear = *(const struct kelp_linear *)arguments;
    set_linear(&linear, buffers);
    stream->table->linear(stream, &linear);
}

/* Without a buffer for it dsums is written over dy. */
static void run_linear_gradient(struct kelp_stream *stream, void *const *buffers,
                                const void *arguments)
{
    struct kelp_linear linear = *(const struct kelp_linear *)arguments;
    set_linear(&linear, buffers);
    linear.dy = buffers[DY];
    linear.dsums = buffers[DSUMS] ? buffers[DSUMS] : buffers[DY];
    linear.dx = buffers[DX];
    linear.dweight = buffers[DWEIGHT];
    linear.dbias = buffers[DBIAS];
    stream->table->linear_gradient(stream, &linear);
}

/* Elements of rows that lie ld apart, with nothing behind the last. */
static uint64_t extent(uint32_t rows, uint32_t columns, uint64_t ld)
{
    return rows == 0 || columns == 0 ? 0 : (rows - 1) * ld + columns;
}

static void set(struct operator_cases *cases, struct operator_case *one, uint32_t which,
                uint64_t count, enum case_content content, bool compared)
{
    cases_set_buffer(cases, &one->buffers[which], count, content);
    one->buffers[which].compared = compared;
}

static const char *function_of(const struct kelp_linear *linear)
{
    static const char *const names[] = {"relu", "gelu", "elu", "sigmoid", "tanh"};
    return linear->activated ? names[linear->activation] : "none";
}

static void add_forward(struct operator_cases *cases, const struct kelp_linear *linear, bool bias)
{
    const uint32_t rows = linear->rows, in = linear->in, out = linear->out;
    const bool kept = linear->activated && linear->activation == KELP_UNARY_GELU;
    struct operator_case *one =
        cases_add(cases, run_linear, linear, sizeof(*linear), "linear %s%s rows=%u in=%u out=%u",
                  function_of(linear), bias ? "" : " without bias", rows, in, out);
    const bool few = (uint64_t)rows * out < 64; /* see cases_products.c */
    one->tolerance = TOLERANCE;
    set(cases, one, X, extent(rows, in, linear->x_ld), few ? CASE_POSITIVE : CASE_MODERATE, false);
    set(cases, one, WEIGHT, (uint64_t)out * in, few ? CASE_POSITIVE : CASE_MODERATE, false);
    set(cases, one, BIAS, bias ? out : 0, few ? CASE_POSITIVE : CASE_MODERATE, false);
    set(cases, one, SUMS, kept ? (uint64_t)rows * out : 0, CASE_MODERATE, true);
    set(cases, one, Y, extent(rows, out, linear->y_ld), CASE_MODERATE, true);
}

static void add_gradient(struct operator_cases *cases, struct kelp_linear linear)
{
    const uint32_t rows = linear.rows, in = linear.in, out = linear.out;
    const bool kept = linear.activated && linear.activation == KELP_UNARY_GELU;
    const bool apart = linear.activated && cases_flip(cases);
    const bool dx = cases_draw(cases, 0, 3) != 0, dweight = cases_draw(cases, 0, 3) != 0;
    const bool dbias = cases_draw(cases, 0, 3) != 0;
    linear.write_x = cases_draw_write(cases);
    linear.write_weight = cases_draw_write(cases);
    linear.write_bias = cases_draw_write(cases);
    struct operator_case *one =
        cases_add(cases, run_linear_gradient, &linear, sizeof(linear),
                  "linear_gradient %s rows=%u in=%u out=%u dx%s dweight%s dbias%s",
                  function_of(&linear), rows, in, out, dx ? case_sign(linear.write_x) : " no",
                  dweight ? case_sign(linear.write_weight) : " no",
                  dbias ? case_sign(linear.write_bias) : " no");
    const uint64_t y_count = (uint64_t)rows * out;
    const uint64_t least = in < out ? in : out;
    const bool few = least * rows < 64 || least * in < 64 || out < 64;
    const enum case_content content = few ? CASE_POSITIVE : CASE_MODERATE;
    one->tolerance = TOLERANCE;
    set(cases, one, X, extent(rows, in, linear.x_ld), content, false);
    set(cases, one, WEIGHT, (uint64_t)out * in, content, false);
    set(cases, one, SUMS, kept ? y_count : 0, content, false);
    set(cases, one, Y, linear.activated && !kept ? y_count : 0, content, false);
    set(cases, one, DY, extent(rows, out, linear.y_ld), content, linear.activated && !apart);
    set(cases, one, DSUMS, apart ? y_count : 0, content, true);
    set(cases, one, DX, dx ? extent(rows, in, linear.x_ld) : 0, content, true);
    set(cases, one, DWEIGHT, dweight ? (uint64_t)out * in : 0, content, true);
    set(cases, one, DBIAS, dbias ? out : 0, content, true);
}

/* kind: past the functions, none. */
static void add_linear(struct operator_cases *cases, uint32_t kind, uint32_t rows, uint32_t in,
                       uint32_t out)
{
    struct kelp_linear linear = {.rows = rows, .in = in, .out = out, .y_ld = out};
    linear.activated = kind <= KELP_UNARY_TANH;
    linear.activation = linear.activated ? (enum kelp_unary_kind)kind : KELP_UNARY_RELU;
    linear.x_ld = in + (cases_flip(cases) ? cases_draw(cases, 1, 9) : 0);
    if (!linear.activated && cases_flip(cases)) {
        linear.y_ld += cases_draw(cases, 1, 9);
    }
    add_forward(cases, &linear, cases_draw(cases, 0, 3) != 0);
    add_gradient(cases, linear);
}

void cases_layers(struct operator_cases *cases, bool large)
{
    for (uint32_t kind = KELP_UNARY_RELU; kind <= KELP_UNARY_TANH + 1; kind++) {
        add_linear(cases, kind, 1, 1, 1);
        add_linear(cases, kind, cases_draw(cases, 1, 40), cases_draw(cases, 1, 30),
                   4 * cases_draw(cases, 1, 12));
        add_linear(cases, kind, cases_draw(cases, 1, 40), cases_draw(cases, 1, 30),
                   cases_draw(cases, 1, 50));
        add_linear(cases, kind, cases_draw(cases, 600, 700), cases_draw(cases, 1, 4),
                   cases_draw(cases, 1, 9)); /* the rows' sums in parts */
        add_linear(cases, kind, 0, 3, 5);
        add_linear(cases, kind, 5, 3, 0);
        add_linear(cases, kind, 5, 0, 3);
        if (large) {
            add_linear(cases, kind, cases_draw(cases, 300, 600), cases_draw(cases, 200, 1100),
                       cases_draw(cases, 200, 1100));
            add_linear(cases, kind, cases_draw(cases, 20000, 30000), cases_draw(cases, 1, 70),
                       4 * cases_draw(cases, 1, 40));
        }
    }
}
