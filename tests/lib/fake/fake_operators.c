#include "tests/lib/fake/fake_operators.h"

/* ---- operands ---- */

#define IS_WRITTEN(type, field)                                                                    \
    _Generic(((struct type *)NULL)->field, const float *                                           \
             : false, const double *                                                               \
             : false, const uint32_t *                                                             \
             : false, const uint64_t *                                                             \
             : false, default                                                                      \
             : true)
#define AT(type, field)                                                                            \
    {                                                                                              \
#field, offsetof(struct type, field), IS_WRITTEN(type, field)                              \
    }
#define OPERANDS(type, ...)                                                                        \
    static const struct fake_operand type##_operands[] = {__VA_ARGS__, {NULL, 0, false}};

OPERANDS(fake_flat, AT(fake_flat, y), AT(fake_flat, a), AT(fake_flat, b))
OPERANDS(kelp_matmul, AT(kelp_matmul, a), AT(kelp_matmul, b), AT(kelp_matmul, c))
OPERANDS(kelp_linear, AT(kelp_linear, x), AT(kelp_linear, weight), AT(kelp_linear, bias),
         AT(kelp_linear, sums), AT(kelp_linear, y), AT(kelp_linear, dy), AT(kelp_linear, dsums),
         AT(kelp_linear, dx), AT(kelp_linear, dweight), AT(kelp_linear, dbias))
OPERANDS(kelp_lstm, AT(kelp_lstm, x), AT(kelp_lstm, h_first), AT(kelp_lstm, c_first),
         AT(kelp_lstm, weight_ih), AT(kelp_lstm, weight_hh), AT(kelp_lstm, bias_ih),
         AT(kelp_lstm, bias_hh), AT(kelp_lstm, y), AT(kelp_lstm, kept), AT(kelp_lstm, dy),
         AT(kelp_lstm, workspace), AT(kelp_lstm, dx), AT(kelp_lstm, dh_first),
         AT(kelp_lstm, dc_first), AT(kelp_lstm, dweight_ih), AT(kelp_lstm, dweight_hh),
         AT(kelp_lstm, dbias_ih), AT(kelp_lstm, dbias_hh))
OPERANDS(kelp_bias, AT(kelp_bias, matrix), AT(kelp_bias, bias))
OPERANDS(kelp_bias_gradient, AT(kelp_bias_gradient, matrix), AT(kelp_bias_gradient, bias))
OPERANDS(kelp_moving_average, AT(kelp_moving_average, x), AT(kelp_moving_average, y),
         AT(kelp_moving_average, workspace))
OPERANDS(kelp_transpose, AT(kelp_transpose, x), AT(kelp_transpose, y))
OPERANDS(kelp_unary, AT(kelp_unary, x), AT(kelp_unary, y))
OPERANDS(kelp_unary_gradient, AT(kelp_unary_gradient, x), AT(kelp_unary_gradient, y),
         AT(kelp_unary_gradient, dy), AT(kelp_unary_gradient, dx))
OPERANDS(kelp_multiply, AT(kelp_multiply, a), AT(kelp_multiply, b), AT(kelp_multiply, y))
OPERANDS(kelp_copy, AT(kelp_copy, x), AT(kelp_copy, y))
OPERANDS(kelp_reduce, AT(kelp_reduce, x), AT(kelp_reduce, y))
OPERANDS(kelp_weighted_sum, AT(kelp_weighted_sum, weights), AT(kelp_weighted_sum, x),
         AT(kelp_weighted_sum, y), AT(kelp_weighted_sum, dy), AT(kelp_weighted_sum, dweights),
         AT(kelp_weighted_sum, dx))
OPERANDS(kelp_softmax, AT(kelp_softmax, x), AT(kelp_softmax, y), AT(kelp_softmax, dy),
         AT(kelp_softmax, dx))
OPERANDS(kelp_glu, AT(kelp_glu, x), AT(kelp_glu, y), AT(kelp_glu, dy), AT(kelp_glu, dx))
OPERANDS(kelp_layer_norm, AT(kelp_layer_norm, x), AT(kelp_layer_norm, weight),
         AT(kelp_layer_norm, bias), AT(kelp_layer_norm, y), AT(kelp_layer_norm, mean),
         AT(kelp_layer_norm, rstd), AT(kelp_layer_norm, dy), AT(kelp_layer_norm, dx),
         AT(kelp_layer_norm, dweight), AT(kelp_layer_norm, dbias))
OPERANDS(kelp_batch_norm, AT(kelp_batch_norm, x), AT(kelp_batch_norm, weight),
         AT(kelp_batch_norm, bias), AT(kelp_batch_norm, y), AT(kelp_batch_norm, running_mean),
         AT(kelp_batch_norm, running_variance), AT(kelp_batch_norm, mean),
         AT(kelp_batch_norm, rstd), AT(kelp_batch_norm, statistic_scale),
         AT(kelp_batch_norm, statistic_mean), AT(kelp_batch_norm, statistic_variance),
         AT(kelp_batch_norm, dy), AT(kelp_batch_norm, dx), AT(kelp_batch_norm, dweight),
         AT(kelp_batch_norm, dbias))
OPERANDS(kelp_dropout, AT(kelp_dropout, x), AT(kelp_dropout, y), AT(kelp_dropout, seed_step),
         AT(kelp_dropout, positions))
OPERANDS(kelp_embedding, AT(kelp_embedding, ids), AT(kelp_embedding, table), AT(kelp_embedding, y),
         AT(kelp_embedding, dy), AT(kelp_embedding, dtable))
OPERANDS(kelp_lstm_cell, AT(kelp_lstm_cell, gates), AT(kelp_lstm_cell, c_before),
         AT(kelp_lstm_cell, c), AT(kelp_lstm_cell, h), AT(kelp_lstm_cell, dh),
         AT(kelp_lstm_cell, dc), AT(kelp_lstm_cell, dgates))
OPERANDS(kelp_max_pool, AT(kelp_max_pool, x), AT(kelp_max_pool, y), AT(kelp_max_pool, chosen),
         AT(kelp_max_pool, dy), AT(kelp_max_pool, dx))
OPERANDS(kelp_average_pool, AT(kelp_average_pool, x), AT(kelp_average_pool, y),
         AT(kelp_average_pool, dy), AT(kelp_average_pool, dx))
OPERANDS(kelp_optimizer_run, AT(kelp_optimizer_run, weights), AT(kelp_optimizer_run, gradient),
         AT(kelp_optimizer_run, weights_next), AT(kelp_optimizer_run, slots[0]),
         AT(kelp_optimizer_run, slots[1]), AT(kelp_optimizer_run, slots[2]),
         AT(kelp_optimizer_run, not_finite))
/* quantiles lie on the host and are valid only during the call. */
OPERANDS(kelp_criterion, AT(kelp_criterion, output), AT(kelp_criterion, target),
         AT(kelp_criterion, gradient_scale), AT(kelp_criterion, gradient), AT(kelp_criterion, sums),
         AT(kelp_criterion, workspace))
OPERANDS(kelp_conv2d_run, AT(kelp_conv2d_run, x), AT(kelp_conv2d_run, weight),
         AT(kelp_conv2d_run, bias), AT(kelp_conv2d_run, y), AT(kelp_conv2d_run, workspace),
         AT(kelp_conv2d_run, dy), AT(kelp_conv2d_run, dx), AT(kelp_conv2d_run, dweight),
         AT(kelp_conv2d_run, dbias))

/* ---- running ---- */

static void run_fill(struct kelp_stream *cpu, const union fake_arguments *arguments)
{
    const struct fake_flat *flat = &arguments->flat;
    cpu->table->fill(cpu, flat->y, flat->scalar, flat->count);
}

static void run_axpy(struct kelp_stream *cpu, const union fake_arguments *arguments)
{
    const struct fake_flat *flat = &arguments->flat;
    cpu->table->axpy(cpu, flat->y, flat->scalar, flat->a, flat->count);
}

static void run_add(struct kelp_stream *cpu, const union fake_arguments *arguments)
{
    const struct fake_flat *flat = &arguments->flat;
    cpu->table->add(cpu, flat->y, flat->a, flat->b, flat->count);
}

static void run_subtract(struct kelp_stream *cpu, const union fake_arguments *arguments)
{
    const struct fake_flat *flat = &arguments->flat;
    cpu->table->subtract(cpu, flat->y, flat->a, flat->b, flat->count);
}

#define RUN(name, type)                                                                            \
    static void run_##name(struct kelp_stream *cpu, const union fake_arguments *arguments)         \
    {                                                                                              \
        cpu->table->name(cpu, &arguments->name);                                                   \
    }
FAKE_STRUCT_OPERATORS(RUN)

#define FLAT(name)        {#name, fake_flat_operands, run_##name},
#define ENTRY(name, type) {#name, type##_operands, run_##name},
const struct fake_operator fake_operators[FAKE_OPERATOR_COUNT] = {
    FLAT(fill) FLAT(axpy) FLAT(add) FLAT(subtract) FAKE_STRUCT_OPERATORS(ENTRY)};
