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

kelp_status kelp__compute_kind_answer_layers(struct answer *answer, struct kelp_error *reterr)
{
    return linears(answer, reterr);
}
