/*
 * The LSTM layer. Time is the first dimension, so that each step's gates and cell states are dense:
 * gates [time][batch][4 hidden], cells [time][batch][hidden]. Both are kept for the gradient. The
 * workspace holds the gradients with respect to the gates' sums, and those of one step's h and c.
 */
#include "kernels/cpu/composed.h"

struct sizes {
    uint64_t gates_step, cell_step; /* elements of one step */
    uint64_t x_ld, y_ld;            /* between sequences */
};

static struct sizes sizes_of(const struct kelp_lstm *p)
{
    const uint64_t cells = (uint64_t)p->batch * p->hidden;
    return (struct sizes){.gates_step = 4 * cells,
                          .cell_step = cells,
                          .x_ld = (uint64_t)p->time * p->in,
                          .y_ld = (uint64_t)p->time * 2 * p->hidden};
}

static float *cells_of(const struct kelp_lstm *p)
{
    return p->kept + p->time * sizes_of(p).gates_step;
}

/* h before step t, and the distance of its rows. */
static const float *hidden_before(const struct kelp_lstm *p, uint32_t t, uint64_t *ret_ld)
{
    *ret_ld = t == 0 ? p->hidden : sizes_of(p).y_ld;
    return t == 0 ? p->h_first : p->y + (uint64_t)(t - 1) * 2 * p->hidden;
}

static const float *cell_before(const struct kelp_lstm *p, uint32_t t)
{
    return t == 0 ? p->c_first : cells_of(p) + (t - 1) * sizes_of(p).cell_step;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* gates = x weight_ih^T plus both biases, for all steps. */
static void input_sums(struct kelp_stream *stream, const struct kelp_lstm *p)
{
    const struct sizes sizes = sizes_of(p);
    for (uint32_t t = 0; t < p->time; t++) {
        const struct kelp_matmul matmul = {.transpose_b = true,
                                           .m = p->batch,
                                           .n = 4 * p->hidden,
                                           .k = p->in,
                                           .a = p->x + (uint64_t)t * p->in,
                                           .lda = sizes.x_ld,
                                           .b = p->weight_ih,
                                           .ldb = p->in,
                                           .c = p->kept + t * sizes.gates_step,
                                           .ldc = 4 * (uint64_t)p->hidden};
        stream->table->matmul(stream, &matmul);
    }
    const float *const biases[] = {p->bias_ih, p->bias_hh};
    for (uint32_t i = 0; i < 2; i++) {
        const struct kelp_bias bias = {.matrix = p->kept,
                                       .ld = 4 * (uint64_t)p->hidden,
                                       .rows = p->time * p->batch,
                                       .columns = 4 * p->hidden,
                                       .bias = biases[i]};
        stream->table->bias_add(stream, &bias);
    }
}

/* gates += h weight_hh^T, and the step's h and c from them. */
static void step_forward(struct kelp_stream *stream, const struct kelp_lstm *p, uint32_t t)
{
    const struct sizes sizes = sizes_of(p);
    uint64_t h_ld;
    const float *h = hidden_before(p, t, &h_ld);
    float *gates = p->kept + t * sizes.gates_step;
    const struct kelp_matmul matmul = {.transpose_b = true,
                                       .m = p->batch,
                                       .n = 4 * p->hidden,
                                       .k = p->hidden,
                                       .a = h,
                                       .lda = h_ld,
                                       .b = p->weight_hh,
                                       .ldb = p->hidden,
                                       .c = gates,
                                       .ldc = 4 * (uint64_t)p->hidden,
                                       .write = KELP_ACCUMULATE};
    const struct kelp_lstm_cell cell = {.batch = p->batch,
                                        .hidden = p->hidden,
                                        .gates = gates,
                                        .c_before = cell_before(p, t),
                                        .c = cells_of(p) + t * sizes.cell_step,
                                        .h = p->y + (uint64_t)t * 2 * p->hidden,
                                        .h_ld = sizes.y_ld};
    stream->table->matmul(stream, &matmul);
    stream->table->lstm_cell(stream, &cell);
}

void kelp__cpu_lstm(struct kelp_stream *stream, const struct kelp_lstm *p)
{
    const struct sizes sizes = sizes_of(p);
    input_sums(stream, p);
    for (uint32_t t = 0; t < p->time; t++) {
        step_forward(stream, p, t);
    }
    const struct kelp_copy cells = {.rank = 3,
                                    .dims = {p->batch, p->time, p->hidden},
                                    .x = cells_of(p),
                                    .x_strides = {p->hidden, sizes.cell_step, 1},
                                    .y = p->y + p->hidden,
                                    .y_strides = {sizes.y_ld, 2 * (uint64_t)p->hidden, 1},
                                    .scale = 1.0f};
    stream->table->copy(stream, &cells);
}

/* ---- gradient -------------------------------------------------------------------------------- */

/* NOLINTBEGIN(readability-non-const-parameter): written through the operators' arguments */

/* to [batch, hidden] = or += the half of dy[:, t] that starts at `first`. */
static void add_output_gradient(struct kelp_stream *stream, const struct kelp_lstm *p, float *to,
                                const float *first, enum kelp_write write)
{
    const struct kelp_copy copy = {.rank = 2,
                                   .dims = {p->batch, p->hidden},
                                   .x = first,
                                   .x_strides = {sizes_of(p).y_ld, 1},
                                   .y = to,
                                   .y_strides = {p->hidden, 1},
                                   .scale = 1.0f,
                                   .write = write};
    stream->table->copy(stream, &copy);
}

/* From the last step to the first: dgates of all steps, and dh and dc before the first. */
static void cells_gradient(struct kelp_stream *stream, const struct kelp_lstm *p, float *dh,
                           float *dc)
{
    const struct sizes sizes = sizes_of(p);
    for (uint32_t t = p->time; t-- > 0;) {
        const enum kelp_write write = t + 1 == p->time ? KELP_OVERWRITE : KELP_ACCUMULATE;
        const float *dy = p->dy + (uint64_t)t * 2 * p->hidden;
        float *dgates = p->workspace + t * sizes.gates_step;
        const struct kelp_lstm_cell cell = {.batch = p->batch,
                                            .hidden = p->hidden,
                                            .gates = p->kept + t * sizes.gates_step,
                                            .c_before = cell_before(p, t),
                                            .c = cells_of(p) + t * sizes.cell_step,
                                            .dh = dh,
                                            .dh_ld = p->hidden,
                                            .dc = dc,
                                            .dgates = dgates};
        const struct kelp_matmul matmul = {.m = p->batch,
                                           .n = p->hidden,
                                           .k = 4 * p->hidden,
                                           .a = dgates,
                                           .lda = 4 * (uint64_t)p->hidden,
                                           .b = p->weight_hh,
                                           .ldb = p->hidden,
                                           .c = dh,
                                           .ldc = p->hidden};
        add_output_gradient(stream, p, dh, dy, write);
        add_output_gradient(stream, p, dc, dy + p->hidden, write);
        stream->table->lstm_cell_gradient(stream, &cell);
        stream->table->matmul(stream, &matmul);
    }
}

/* dweight = or += the sum of dgates^T rows over the steps in ascending order; rows are x or h. */
static void weight_gradient(struct kelp_stream *stream, const struct kelp_lstm *p, bool of_x,
                            float *dweight, enum kelp_write write)
{
    const struct sizes sizes = sizes_of(p);
    const uint32_t width = of_x ? p->in : p->hidden;
    for (uint32_t t = 0; dweight && t < p->time; t++) {
        uint64_t ld = sizes.x_ld;
        const float *rows = of_x ? p->x + (uint64_t)t * p->in : hidden_before(p, t, &ld);
        const struct kelp_matmul matmul = {.transpose_a = true,
                                           .m = 4 * p->hidden,
                                           .n = width,
                                           .k = p->batch,
                                           .a = p->workspace + t * sizes.gates_step,
                                           .lda = 4 * (uint64_t)p->hidden,
                                           .b = rows,
                                           .ldb = ld,
                                           .c = dweight,
                                           .ldc = width,
                                           .write = t == 0 ? write : KELP_ACCUMULATE};
        stream->table->matmul(stream, &matmul);
    }
}

static void bias_gradient(struct kelp_stream *stream, const struct kelp_lstm *p, float *dbias,
                          enum kelp_write write)
{
    const struct kelp_bias_gradient bias = {.matrix = p->workspace,
                                            .ld = 4 * (uint64_t)p->hidden,
                                            .rows = p->time * p->batch,
                                            .columns = 4 * p->hidden,
                                            .bias = dbias,
                                            .write = write};
    if (dbias) {
        stream->table->bias_gradient(stream, &bias);
    }
}

static void state_gradient(struct kelp_stream *stream, const struct kelp_lstm *p,
                           const float *gradient, float *to, enum kelp_write write)
{
    const struct kelp_copy copy = {.rank = 1,
                                   .dims = {sizes_of(p).cell_step},
                                   .x = gradient,
                                   .x_strides = {1},
                                   .y = to,
                                   .y_strides = {1},
                                   .scale = 1.0f,
                                   .write = write};
    if (to) {
        stream->table->copy(stream, &copy);
    }
}

/* NOLINTEND(readability-non-const-parameter) */

/* dx = or += dgates weight_ih, step by step. */
static void input_gradient(struct kelp_stream *stream, const struct kelp_lstm *p)
{
    const struct sizes sizes = sizes_of(p);
    for (uint32_t t = 0; p->dx && t < p->time; t++) {
        const struct kelp_matmul matmul = {.m = p->batch,
                                           .n = p->in,
                                           .k = 4 * p->hidden,
                                           .a = p->workspace + t * sizes.gates_step,
                                           .lda = 4 * (uint64_t)p->hidden,
                                           .b = p->weight_ih,
                                           .ldb = p->in,
                                           .c = p->dx + (uint64_t)t * p->in,
                                           .ldc = sizes.x_ld,
                                           .write = p->write_x};
        stream->table->matmul(stream, &matmul);
    }
}

void kelp__cpu_lstm_gradient(struct kelp_stream *stream, const struct kelp_lstm *p)
{
    const struct sizes sizes = sizes_of(p);
    float *dh = p->workspace + p->time * sizes.gates_step, *dc = dh + sizes.cell_step;
    cells_gradient(stream, p, dh, dc);
    weight_gradient(stream, p, true, p->dweight_ih, p->write_weight_ih);
    weight_gradient(stream, p, false, p->dweight_hh, p->write_weight_hh);
    bias_gradient(stream, p, p->dbias_ih, p->write_bias_ih);
    bias_gradient(stream, p, p->dbias_hh, p->write_bias_hh);
    state_gradient(stream, p, dh, p->dh_first, p->write_h);
    state_gradient(stream, p, dc, p->dc_first, p->write_c);
    input_gradient(stream, p);
}
