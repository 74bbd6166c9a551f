/*
 * What the fake device knows about each operator: which arguments are device memory, and how the
 * CPU runs it.
 */
#ifndef KELP_TESTS_LIB_FAKE_FAKE_OPERATORS_H
#define KELP_TESTS_LIB_FAKE_FAKE_OPERATORS_H

#include "kernels/device.h"

/* X(operator, argument struct): the operators of kernels/device.h that take one. */
#define FAKE_STRUCT_OPERATORS(X)                                                                   \
    X(matmul, kelp_matmul)                                                                         \
    X(linear, kelp_linear)                                                                         \
    X(linear_gradient, kelp_linear)                                                                \
    X(lstm, kelp_lstm)                                                                             \
    X(lstm_gradient, kelp_lstm)                                                                    \
    X(bias_add, kelp_bias)                                                                         \
    X(bias_gradient, kelp_bias_gradient)                                                           \
    X(moving_average, kelp_moving_average)                                                         \
    X(moving_average_gradient, kelp_moving_average)                                                \
    X(transpose, kelp_transpose)                                                                   \
    X(unary, kelp_unary)                                                                           \
    X(unary_gradient, kelp_unary_gradient)                                                         \
    X(multiply, kelp_multiply)                                                                     \
    X(copy, kelp_copy)                                                                             \
    X(reduce, kelp_reduce)                                                                         \
    X(weighted_sum, kelp_weighted_sum)                                                             \
    X(weighted_sum_gradient, kelp_weighted_sum)                                                    \
    X(softmax, kelp_softmax)                                                                       \
    X(softmax_gradient, kelp_softmax)                                                              \
    X(glu, kelp_glu)                                                                               \
    X(glu_gradient, kelp_glu)                                                                      \
    X(layer_norm, kelp_layer_norm)                                                                 \
    X(layer_norm_gradient, kelp_layer_norm)                                                        \
    X(batch_norm, kelp_batch_norm)                                                                 \
    X(batch_norm_gradient, kelp_batch_norm)                                                        \
    X(dropout, kelp_dropout)                                                                       \
    X(embedding, kelp_embedding)                                                                   \
    X(embedding_gradient, kelp_embedding)                                                          \
    X(lstm_cell, kelp_lstm_cell)                                                                   \
    X(lstm_cell_gradient, kelp_lstm_cell)                                                          \
    X(max_pool, kelp_max_pool)                                                                     \
    X(max_pool_gradient, kelp_max_pool)                                                            \
    X(average_pool, kelp_average_pool)                                                             \
    X(average_pool_gradient, kelp_average_pool)                                                    \
    X(optimizer, kelp_optimizer_run)                                                               \
    X(criterion, kelp_criterion)                                                                   \
    X(conv2d, kelp_conv2d_run)                                                                     \
    X(conv2d_gradient, kelp_conv2d_run)

/* Arguments of the others: fill(y, scalar, count), axpy(y, scalar, a, count), add and
 * subtract(y, a, b, count). */
struct fake_flat {
    float *y;
    float scalar;
    const float *a, *b;
    uint64_t count;
};

union fake_arguments {
    struct fake_flat flat;
#define FAKE_ARGUMENTS(name, type) struct type name;
    FAKE_STRUCT_OPERATORS(FAKE_ARGUMENTS)
#undef FAKE_ARGUMENTS
};

/* A device memory argument of an operator, which may be NULL. */
struct fake_operand {
    const char *name; /* NULL: the end of the list */
    size_t offset;    /* of the pointer, in the arguments */
    bool written;     /* may be written */
};

struct fake_operator {
    const char *name;
    const struct fake_operand *operands;
    /* arguments: with host pointers. */
    void (*run)(struct kelp_stream *cpu, const union fake_arguments *arguments);
};

enum fake_operator_index {
    FAKE_OPERATOR_fill,
    FAKE_OPERATOR_axpy,
    FAKE_OPERATOR_add,
    FAKE_OPERATOR_subtract,
#define FAKE_INDEX(name, type) FAKE_OPERATOR_##name,
    FAKE_STRUCT_OPERATORS(FAKE_INDEX)
#undef FAKE_INDEX
        FAKE_OPERATOR_COUNT
};
extern const struct fake_operator fake_operators[FAKE_OPERATOR_COUNT];

#endif
