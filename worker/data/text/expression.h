/*
 * Expressions over the columns of a table, as data.derive and data.filter have them:
 *
 *   seconds(dropoff) - seconds(pickup)
 *   fare > 0 and (zone == "JFK" or not missing(tip))
 *
 * From loosest to tightest: or; and; not; == != < <= > >=; + -; * /; a sign; numbers, columns,
 * calls, parentheses. A column whose name is not a word stands in `backticks`. Conditions are 1 or
 * 0. What has no value (an empty field, 1 / 0, log(-1)) is missing, and so is what is computed from
 * it, but for `0 and`, `1 or` and missing(x). Pure: no I/O, no locale.
 */
#ifndef KELP_WORKER_DATA_TEXT_EXPRESSION_H
#define KELP_WORKER_DATA_TEXT_EXPRESSION_H

#include <stdint.h>

#include "common/base/status.h"

/* What a column is read as. */
enum kelp_expression_view {
    KELP_VIEW_NUMBER,
    KELP_VIEW_TIME, /* seconds since 1970: the argument of hour(), seconds(), ... */
    KELP_VIEW_TEXT, /* 1 when the field is `literal`, else 0 */
    KELP_VIEW_ANY,  /* not read: the argument of missing() */
};

struct kelp_expression_column {
    const char *name;
    enum kelp_expression_view view;
    const char *literal; /* KELP_VIEW_TEXT */
};

/* Who gives columns their slots in the array that kelp_expression_value() reads. */
struct kelp_expression_columns {
    kelp_status (*slot)(void *context, const struct kelp_expression_column *column,
                        uint32_t *ret_slot, struct kelp_error *reterr);
    void *context;
};

struct kelp_expression;

/*
 * *ret_expression is owned by the caller (kelp_expression_destroy()). The error says where:
 * "at 'tip >': ...". Errors: KELP_ERR_INVALID, KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY, those of slot.
 */
kelp_status kelp_expression_compile(const char *text, const struct kelp_expression_columns *columns,
                                    struct kelp_expression **ret_expression,
                                    struct kelp_error *reterr) KELP_MUST_USE;
void kelp_expression_destroy(struct kelp_expression *expression); /* NULL is ignored */

/* NaN: missing, in slots and as the value; else finite. Allocates nothing. */
double kelp_expression_value(const struct kelp_expression *expression, const double *slots);

/* The name in front of "name = expression": *ret_bytes of it from *ret_name on, the expression at
 * *ret_text. Errors: KELP_ERR_INVALID. */
kelp_status kelp_expression_named(const char *text, const char **ret_name, size_t *ret_bytes,
                                  const char **ret_text, struct kelp_error *reterr) KELP_MUST_USE;

#endif
