#include <assert.h>

#include "kernels/cpu/composed.h"
#include "kernels/linear_products.h"

static uint64_t count_of(const struct kelp_linear *p)
{
    assert(p->y_ld == p->out);
    return (uint64_t)p->rows * p->out;
}

void kelp__cpu_linear(struct kelp_stream *stream, const struct kelp_linear *p)
{
    const bool kept = p->activated && p->activation == KELP_UNARY_GELU;
    float *sums = kept ? p->sums : p->y;
    const struct kelp_matmul product = kelp__linear_sums(p, sums);
    stream->table->matmul(stream, &product);
    if (p->bias) {
        const struct kelp_bias bias = {
            .matrix = sums, .ld = p->y_ld, .rows = p->rows, .columns = p->out, .bias = p->bias};
        stream->table->bias_add(stream, &bias);
    }
    if (p->activated) {
        const struct kelp_unary unary = {
            .kind = p->activation, .x = sums, .y = p->y, .count = count_of(p)};
        stream->table->unary(stream, &unary);
    }
}

/* The gradient with respect to the sums before the activation, [rows, y_ld]. */
static const float *sums_gradient(struct kelp_stream *stream, const struct kelp_linear *p)
{
    if (!p->activated) {
        return p->dy;
    }
    const struct kelp_unary_gradient gradient = {.kind = p->activation,
                                                 .x = p->sums,
                                                 .y = p->y,
                                                 .dy = p->dy,
                                                 .dx = p->dsums,
                                                 .count = count_of(p)};
    stream->table->unary_gradient(stream, &gradient);
    return p->dsums;
}

void kelp__cpu_linear_gradient(struct kelp_stream *stream, const struct kelp_linear *p)
{
    const float *dsums = sums_gradient(stream, p);
    if (p->dweight) {
        const struct kelp_matmul product = kelp__linear_dweight(p, dsums);
        stream->table->matmul(stream, &product);
    }
    if (p->dbias) {
        const struct kelp_bias_gradient bias = {.matrix = dsums,
                                                .ld = p->y_ld,
                                                .rows = p->rows,
                                                .columns = p->out,
                                                .bias = p->dbias,
                                                .write = p->write_bias};
        stream->table->bias_gradient(stream, &bias);
    }
    if (p->dx) {
        const struct kelp_matmul product = kelp__linear_dx(p, dsums);
        stream->table->matmul(stream, &product);
    }
}
