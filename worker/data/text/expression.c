#include "worker/data/text/expression.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "worker/data/text/calendar.h"
#include "worker/data/text/expression_internal.h"
#include "worker/data/text/plain_math.h"

void kelp_expression_destroy(struct kelp_expression *expression)
{
    free(expression);
}

/* Missing and false is false, missing or true is true: the missing side cannot change the
 * result. */
static double both(double a, double b)
{
    if (a == 0.0 || b == 0.0) {
        return 0.0;
    }
    return isnan(a) || isnan(b) ? (double)NAN : 1.0;
}

static double either(double a, double b)
{
    if ((!isnan(a) && a != 0.0) || (!isnan(b) && b != 0.0)) {
        return 1.0;
    }
    return isnan(a) || isnan(b) ? (double)NAN : 0.0;
}

/* Neither value is missing. */
static double compare(enum kelp_operation code, double a, double b)
{
    switch (code) {
    case KELP_OPERATION_EQUAL:
        return a == b ? 1.0 : 0.0;
    case KELP_OPERATION_NOT_EQUAL:
        return a != b ? 1.0 : 0.0;
    case KELP_OPERATION_LESS:
        return a < b ? 1.0 : 0.0;
    case KELP_OPERATION_LESS_EQUAL:
        return a <= b ? 1.0 : 0.0;
    case KELP_OPERATION_GREATER:
        return a > b ? 1.0 : 0.0;
    case KELP_OPERATION_GREATER_EQUAL:
        return a >= b ? 1.0 : 0.0;
    default:
        assert(false);
        return (double)NAN;
    }
}

static double combine(enum kelp_operation code, double a, double b)
{
    if (code == KELP_OPERATION_AND) {
        return both(a, b);
    }
    if (code == KELP_OPERATION_OR) {
        return either(a, b);
    }
    if (isnan(a) || isnan(b)) {
        return (double)NAN;
    }
    switch (code) {
    case KELP_OPERATION_ADD:
        return a + b;
    case KELP_OPERATION_SUBTRACT:
        return a - b;
    case KELP_OPERATION_MULTIPLY:
        return a * b;
    case KELP_OPERATION_DIVIDE:
        return a / b;
    case KELP_OPERATION_MIN:
        return a < b ? a : b;
    case KELP_OPERATION_MAX:
        return a > b ? a : b;
    default:
        return compare(code, a, b);
    }
}

static double calendar_part(enum kelp_operation code, double seconds)
{
    if (seconds < (double)KELP_CALENDAR_MIN || seconds > (double)KELP_CALENDAR_MAX) {
        return (double)NAN;
    }
    struct kelp_calendar date = kelp_calendar_split((int64_t)floor(seconds));
    switch (code) {
    case KELP_OPERATION_MINUTE:
        return (double)date.minute;
    case KELP_OPERATION_HOUR:
        return (double)date.hour;
    case KELP_OPERATION_WEEKDAY:
        return (double)date.weekday;
    case KELP_OPERATION_DAY:
        return (double)date.day;
    case KELP_OPERATION_MONTH:
        return (double)date.month;
    case KELP_OPERATION_YEAR:
        return (double)date.year;
    default:
        assert(false);
        return (double)NAN;
    }
}

static double apply(enum kelp_operation code, double x)
{
    if (code == KELP_OPERATION_MISSING) {
        return isnan(x) ? 1.0 : 0.0;
    }
    if (isnan(x)) {
        return x;
    }
    switch (code) {
    case KELP_OPERATION_NOT:
        return x == 0.0 ? 1.0 : 0.0;
    case KELP_OPERATION_NEGATE:
        return -x;
    case KELP_OPERATION_ABS:
        return fabs(x);
    case KELP_OPERATION_FLOOR:
        return floor(x);
    case KELP_OPERATION_SQRT:
        return sqrt(x);
    case KELP_OPERATION_LOG:
        return kelp_plain_log(x);
    case KELP_OPERATION_SIN:
        return kelp_plain_sin(x);
    case KELP_OPERATION_COS:
        return kelp_plain_cos(x);
    case KELP_OPERATION_SECONDS:
        return x;
    default:
        return calendar_part(code, x);
    }
}

double kelp_expression_value(const struct kelp_expression *expression, const double *slots)
{
    double stack[KELP_EXPRESSION_STACK_MAX];
    uint32_t used = 0;
    for (uint32_t i = 0; i < expression->count; i++) {
        const struct kelp_operation_entry *entry = &expression->entries[i];
        double value;
        switch (kelp__expression_operation_takes(entry->code)) {
        case 0:
            value = entry->code == KELP_OPERATION_SLOT ? slots[entry->slot] : entry->constant;
            break;
        case 1:
            value = apply(entry->code, stack[--used]);
            break;
        default:
            used -= 2;
            value = combine(entry->code, stack[used], stack[used + 1]);
            break;
        }
        stack[used++] = isfinite(value) ? value : (double)NAN;
    }
    assert(used == 1);
    return stack[0];
}
