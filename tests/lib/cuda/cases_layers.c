/* Operators with several products: linear layers with each function, with and without bias, with
 * gaps between rows where there is no function, and LSTMs, with each combination of wanted
 * gradients. */
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

/* Without a buffer for dsums, it overwrites dy. */
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

/* Elements of rows that are ld apart, with nothing after the last. */
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

/* kind: a value after the functions means none. */
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

/* ---- lstm ---- */

/* All weights and biases are one buffer, and so are their gradients. */
enum lstm_buffer {
    LSTM_X,
    LSTM_H,
    LSTM_C,
    LSTM_WEIGHTS,
    LSTM_Y,
    LSTM_KEPT,
    LSTM_DY,
    LSTM_WORKSPACE,
    LSTM_DX,
    LSTM_DH,
    LSTM_DC,
    LSTM_DWEIGHTS
};

/* The gradient reads what the forward pass of the same device kept. */
static void run_lstm(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    struct kelp_lstm lstm = *(const struct kelp_lstm *)arguments;
    const uint64_t gates = 4 * (uint64_t)lstm.hidden;
    const float *weights = buffers[LSTM_WEIGHTS];
    float *dweights = buffers[LSTM_DWEIGHTS];
    lstm.x = buffers[LSTM_X];
    lstm.h_first = buffers[LSTM_H];
    lstm.c_first = buffers[LSTM_C];
    lstm.weight_ih = weights;
    lstm.weight_hh = weights + gates * lstm.in;
    lstm.bias_ih = lstm.weight_hh + gates * lstm.hidden;
    lstm.bias_hh = lstm.bias_ih + gates;
    lstm.y = buffers[LSTM_Y];
    lstm.kept = buffers[LSTM_KEPT];
    stream->table->lstm(stream, &lstm);
    lstm.dy = buffers[LSTM_DY];
    lstm.workspace = buffers[LSTM_WORKSPACE];
    lstm.dx = buffers[LSTM_DX];
    lstm.dh_first = buffers[LSTM_DH];
    lstm.dc_first = buffers[LSTM_DC];
    if (dweights) {
        lstm.dweight_ih = dweights;
        lstm.dweight_hh = dweights + gates * lstm.in;
        lstm.dbias_ih = lstm.dweight_hh + gates * lstm.hidden;
        lstm.dbias_hh = lstm.dbias_ih + gates;
    }
    if (lstm.dy) {
        stream->table->lstm_gradient(stream, &lstm);
    }
}

static void add_lstm(struct operator_cases *cases, uint32_t batch, uint32_t time, uint32_t in,
                     uint32_t hidden)
{
    const bool gradient = cases_draw(cases, 0, 3) != 0;
    const bool dx = gradient && cases_draw(cases, 0, 3) != 0;
    const bool dh = gradient && cases_draw(cases, 0, 3) != 0;
    const bool dc = gradient && cases_draw(cases, 0, 3) != 0;
    const bool dweights = gradient && cases_draw(cases, 0, 3) != 0;
    const uint64_t x_count = (uint64_t)batch * time * in, states = (uint64_t)batch * hidden;
    const uint64_t y_count = 2 * states * time;
    const uint64_t weights = 4 * (uint64_t)hidden * ((uint64_t)in + hidden + 2);
    struct kelp_lstm lstm = {.batch = batch, .time = time, .in = in, .hidden = hidden};
    lstm.write_x = cases_draw_write(cases);
    lstm.write_h = cases_draw_write(cases);
    lstm.write_c = cases_draw_write(cases);
    lstm.write_weight_ih = cases_draw_write(cases);
    lstm.write_weight_hh = cases_draw_write(cases);
    lstm.write_bias_ih = cases_draw_write(cases);
    lstm.write_bias_hh = cases_draw_write(cases);
    struct operator_case *one = cases_add(
        cases, run_lstm, &lstm, sizeof(lstm), "lstm batch=%u time=%u in=%u hidden=%u%s%s%s%s%s",
        batch, time, in, hidden, gradient ? " gradient" : "", dx ? " dx" : "", dh ? " dh" : "",
        dc ? " dc" : "", dweights ? " dweights" : "");
    one->tolerance = TOLERANCE;
    set(cases, one, LSTM_X, x_count, CASE_MODERATE, false);
    set(cases, one, LSTM_H, states, CASE_MODERATE, false);
    set(cases, one, LSTM_C, states, CASE_MODERATE, false);
    set(cases, one, LSTM_WEIGHTS, weights, CASE_SMALL, false);
    set(cases, one, LSTM_Y, y_count, CASE_MODERATE, true);
    set(cases, one, LSTM_KEPT, states * kelp_lstm_kept(time), CASE_MODERATE, false);
    set(cases, one, LSTM_DY, gradient ? y_count : 0, CASE_POSITIVE, false);
    set(cases, one, LSTM_WORKSPACE, gradient ? states * kelp_lstm_workspace(time) : 0,
        CASE_MODERATE, false);
    set(cases, one, LSTM_DX, dx ? x_count : 0, CASE_MODERATE, true);
    set(cases, one, LSTM_DH, dh ? states : 0, CASE_MODERATE, true);
    set(cases, one, LSTM_DC, dc ? states : 0, CASE_MODERATE, true);
    set(cases, one, LSTM_DWEIGHTS, dweights ? weights : 0, CASE_MODERATE, true);
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
                   cases_draw(cases, 17, 32)); /* sums of rows in parts */
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
    add_lstm(cases, 1, 1, 1, 1);
    add_lstm(cases, 0, 3, 2, 4);
    for (uint32_t i = 0; i < 6; i++) {
        add_lstm(cases, cases_draw(cases, 1, 7), cases_draw(cases, 1, 6), cases_draw(cases, 1, 9),
                 cases_draw(cases, 1, 20));
        add_lstm(cases, cases_draw(cases, 1, 7), cases_draw(cases, 1, 6), cases_draw(cases, 1, 9),
                 4 * cases_draw(cases, 1, 6));
    }
    if (large) {
        add_lstm(cases, cases_draw(cases, 20, 70), cases_draw(cases, 20, 60),
                 cases_draw(cases, 1, 70), 4 * cases_draw(cases, 4, 16));
        add_lstm(cases, cases_draw(cases, 200, 300), cases_draw(cases, 5, 10),
                 cases_draw(cases, 100, 300), cases_draw(cases, 100, 300));
    }
}
