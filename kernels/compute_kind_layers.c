/*
 * The part of the known-answer computation that goes through operators with several products,
 * forward and backward.
 */
#include "kernels/compute_kind_internal.h"

static kelp_status digest_floats(struct answer *answer, const float *from, uint64_t count,
                                 struct kelp_error *reterr)
{
    return kelp__compute_kind_answer_digest(answer, from, count * sizeof(*from), reterr);
}

/* Of [ROWS, COLUMNS] to [ROWS, DEPTH]: with each function, and with none and no bias. */
static kelp_status linears(struct answer *answer, struct kelp_error *reterr)
{
    const uint64_t x_count = (uint64_t)ROWS * COLUMNS, y_count = (uint64_t)ROWS * DEPTH;
    const uint64_t weights = (uint64_t)DEPTH * COLUMNS;
    kelp_status status = KELP_OK;
    for (int kind = KELP_UNARY_RELU; kind <= (int)KELP_UNARY_TANH + 1 && status == KELP_OK;
         kind++) {
        const bool activated = kind <= (int)KELP_UNARY_TANH;
        const enum kelp_write write = kind % 2 == 0 ? KELP_OVERWRITE : KELP_ACCUMULATE;
        const struct kelp_linear linear = {
            .rows = ROWS,
            .in = COLUMNS,
            .out = DEPTH,
            .x = answer->a,
            .x_ld = COLUMNS,
            .weight = answer->b,
            .bias = activated ? answer->b + weights : NULL,
            .activated = activated,
            .activation = activated ? (enum kelp_unary_kind)kind : KELP_UNARY_RELU,
            .sums = answer->workspace + y_count,
            .y = answer->workspace,
            .y_ld = DEPTH,
            .dy = answer->a + x_count,
            .dsums = answer->workspace + 2 * y_count,
            .dx = answer->c,
            .dweight = answer->c + x_count,
            .dbias = activated ? answer->c + x_count + weights : NULL,
            .write_x = write,
            .write_weight = write,
            .write_bias = write};
        answer->stream->table->linear(answer->stream, &linear);
        answer->stream->table->linear_gradient(answer->stream, &linear);
        status = digest_floats(answer, linear.y, y_count, reterr);
        if (status == KELP_OK) {
            status = digest_floats(answer, answer->c, x_count + weights + DEPTH, reterr);
        }
    }
    return status;
}

#define BATCH  5u
#define TIME   7u
#define IN     9u
#define HIDDEN 13u

/* All that an LSTM reads stands in a and b, and y, what it keeps and its workspace in the
 * workspace. */
static kelp_status lstms(struct answer *answer, struct kelp_error *reterr)
{
    const uint64_t gates = 4 * (uint64_t)HIDDEN, states = (uint64_t)BATCH * HIDDEN;
    const uint64_t x_count = (uint64_t)BATCH * TIME * IN, y_count = 2 * states * TIME;
    const uint64_t weights = gates * (IN + HIDDEN + 2);
    kelp_status status = KELP_OK;
    for (uint32_t way = 0; way < 2 && status == KELP_OK; way++) {
        const enum kelp_write write = way == 0 ? KELP_OVERWRITE : KELP_ACCUMULATE;
        float *y = answer->workspace, *kept = y + y_count;
        float *dx = answer->c, *dh = dx + x_count, *dc = dh + states, *dweights = dc + states;
        const float *h = answer->a + x_count, *dy = h + 2 * states;
        const struct kelp_lstm lstm = {.batch = BATCH,
                                       .time = TIME,
                                       .in = IN,
                                       .hidden = HIDDEN,
                                       .x = answer->a,
                                       .h_first = h,
                                       .c_first = h + states,
                                       .weight_ih = answer->b,
                                       .weight_hh = answer->b + gates * IN,
                                       .bias_ih = answer->b + gates * (IN + HIDDEN),
                                       .bias_hh = answer->b + gates * (IN + HIDDEN + 1),
                                       .y = y,
                                       .kept = kept,
                                       .dy = dy,
                                       .workspace = kept + states * kelp_lstm_kept(TIME),
                                       .dx = dx,
                                       .dh_first = dh,
                                       .dc_first = dc,
                                       .dweight_ih = dweights,
                                       .dweight_hh = dweights + gates * IN,
                                       .dbias_ih = dweights + gates * (IN + HIDDEN),
                                       .dbias_hh = dweights + gates * (IN + HIDDEN + 1),
                                       .write_x = write,
                                       .write_h = write,
                                       .write_c = write,
                                       .write_weight_ih = write,
                                       .write_weight_hh = write,
                                       .write_bias_ih = write,
                                       .write_bias_hh = write};
        answer->stream->table->lstm(answer->stream, &lstm);
        answer->stream->table->lstm_gradient(answer->stream, &lstm);
        status = digest_floats(answer, y, y_count, reterr);
        if (status == KELP_OK) {
            status = digest_floats(answer, answer->c, x_count + 2 * states + weights, reterr);
        }
    }
    return status;
}

kelp_status kelp__compute_kind_answer_layers(struct answer *answer, struct kelp_error *reterr)
{
    const kelp_status status = linears(answer, reterr);
    return status == KELP_OK ? lstms(answer, reterr) : status;
}
