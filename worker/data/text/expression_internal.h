/* What an expression is compiled to: operations over a stack of doubles. */
#ifndef KELP_WORKER_DATA_TEXT_EXPRESSION_INTERNAL_H
#define KELP_WORKER_DATA_TEXT_EXPRESSION_INTERNAL_H

#include "worker/data/text/expression.h"

/* Operations of an expression, values on its stack, and parentheses in one another: what people
 * write has tens. */
#define KELP_EXPRESSION_OPS_MAX   512
#define KELP_EXPRESSION_STACK_MAX 64
#define KELP_EXPRESSION_DEPTH_MAX 64

enum kelp_operation {
    KELP_OPERATION_CONSTANT,
    KELP_OPERATION_SLOT,
    /* Of two values. */
    KELP_OPERATION_ADD,
    KELP_OPERATION_SUBTRACT,
    KELP_OPERATION_MULTIPLY,
    KELP_OPERATION_DIVIDE,
    KELP_OPERATION_EQUAL,
    KELP_OPERATION_NOT_EQUAL,
    KELP_OPERATION_LESS,
    KELP_OPERATION_LESS_EQUAL,
    KELP_OPERATION_GREATER,
    KELP_OPERATION_GREATER_EQUAL,
    KELP_OPERATION_AND,
    KELP_OPERATION_OR,
    KELP_OPERATION_MIN,
    KELP_OPERATION_MAX,
    /* Of one value. */
    KELP_OPERATION_NOT,
    KELP_OPERATION_NEGATE,
    KELP_OPERATION_MISSING,
    KELP_OPERATION_ABS,
    KELP_OPERATION_FLOOR,
    KELP_OPERATION_SQRT,
    KELP_OPERATION_LOG,
    KELP_OPERATION_SIN,
    KELP_OPERATION_COS,
    KELP_OPERATION_SECONDS,
    KELP_OPERATION_MINUTE,
    KELP_OPERATION_HOUR,
    KELP_OPERATION_WEEKDAY,
    KELP_OPERATION_DAY,
    KELP_OPERATION_MONTH,
    KELP_OPERATION_YEAR,
};

struct kelp_operation_entry {
    enum kelp_operation code;
    uint32_t slot;
    double constant;
};

struct kelp_expression {
    uint32_t count;
    struct kelp_operation_entry entries[KELP_EXPRESSION_OPS_MAX];
};

/* Values that an operation takes from the stack; it puts one there. */
static inline uint32_t kelp__expression_operation_takes(enum kelp_operation code)
{
    if (code < KELP_OPERATION_ADD) {
        return 0;
    }
    return code < KELP_OPERATION_NOT ? 2 : 1;
}

#endif
