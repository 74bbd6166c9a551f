/*
 * Expressions: trees drawn at random are printed as text, with the fewest parentheses that keep
 * their meaning or with many, and the compiled text has the value that the tree has by itself.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "tests/lib/suite.h"
#include "worker/data/text/expression.h"
#include "worker/data/text/plain_math.h"

#define TREES     20000
#define NODES_MAX 24
#define SLOTS     4
#define TEXT_MAX  4096

struct dice {
    uint64_t tree;
    uint64_t next;
};

static uint32_t roll(struct dice *dice, uint32_t bound)
{
    uint32_t words[4];
    kelp_philox(dice->tree, KELP_PHILOX_TEST, 7, dice->next++, words);
    return (uint32_t)kelp_philox_below(words[0], words[1], bound);
}

/* From loosest to tightest, as the grammar has them. */
enum level {
    LEVEL_OR,
    LEVEL_AND,
    LEVEL_NOT,
    LEVEL_COMPARE,
    LEVEL_SUM,
    LEVEL_PRODUCT,
    LEVEL_SIGN,
    LEVEL_PRIMARY
};

struct kind {
    const char *text;
    enum level level;
    int operands;
};
static const struct kind kinds[] = {
    {"or", LEVEL_OR, 2},           {"and", LEVEL_AND, 2},      {"not", LEVEL_NOT, 1},
    {"==", LEVEL_COMPARE, 2},      {"!=", LEVEL_COMPARE, 2},   {"<", LEVEL_COMPARE, 2},
    {"<=", LEVEL_COMPARE, 2},      {">", LEVEL_COMPARE, 2},    {">=", LEVEL_COMPARE, 2},
    {"+", LEVEL_SUM, 2},           {"-", LEVEL_SUM, 2},        {"*", LEVEL_PRODUCT, 2},
    {"/", LEVEL_PRODUCT, 2},       {"-", LEVEL_SIGN, 1},       {"abs", LEVEL_PRIMARY, 1},
    {"missing", LEVEL_PRIMARY, 1}, {"min", LEVEL_PRIMARY, 2},  {"max", LEVEL_PRIMARY, 2},
    {"floor", LEVEL_PRIMARY, 1},   {"sqrt", LEVEL_PRIMARY, 1},
};

struct tree {
    int kind; /* of kinds; -1: a constant; -2 - slot: a column */
    double constant;
    struct tree *operands[2];
};

struct forest {
    struct tree nodes[4 * NODES_MAX]; /* two leaves may come of a budget of one */
    int count;
};

static struct tree *grow(struct forest *forest, struct dice *dice, int budget)
{
    struct tree *tree = &forest->nodes[forest->count++];
    *tree = (struct tree){.kind = -1};
    if (budget <= 1) {
        if (roll(dice, 2) == 0) {
            tree->constant = (double)roll(dice, 41) / 4.0;
        } else {
            tree->kind = -2 - (int)roll(dice, SLOTS);
        }
        return tree;
    }
    tree->kind = (int)roll(dice, (uint32_t)(sizeof(kinds) / sizeof(kinds[0])));
    int rest = budget - 1;
    int left = kinds[tree->kind].operands == 2 ? 1 + (int)roll(dice, (uint32_t)rest) : rest;
    left = left < rest || kinds[tree->kind].operands == 1 ? left : rest - 1;
    tree->operands[0] = grow(forest, dice, left);
    if (kinds[tree->kind].operands == 2) {
        tree->operands[1] = grow(forest, dice, rest - left);
    }
    return tree;
}

/* ---- printing ------------------------------------------------------------------------------ */

struct printer {
    char text[TEXT_MAX];
    size_t used;
    struct dice *dice;
    bool generous; /* with parentheses that are not needed */
};

static void put(struct printer *printer, const char *text)
{
    int bytes = snprintf(printer->text + printer->used, TEXT_MAX - printer->used, "%s%s", text,
                         roll(printer->dice, 3) == 0 ? "  " : " ");
    printer->used += (size_t)bytes;
    ck_assert_uint_lt(printer->used, TEXT_MAX);
}

static enum level level_of(const struct tree *tree)
{
    return tree->kind >= 0 ? kinds[tree->kind].level : LEVEL_PRIMARY;
}

static void print(struct printer *printer, const struct tree *tree, enum level least);

static void print_bare(struct printer *printer, const struct tree *tree)
{
    static const char *const names[SLOTS] = {"a", "long_name", "`odd name`", "d4"};
    char number[32];
    if (tree->kind == -1) {
        (void)snprintf(number, sizeof(number), "%.17g", tree->constant);
        put(printer, number);
        return;
    }
    if (tree->kind < -1) {
        put(printer, names[-2 - tree->kind]);
        return;
    }
    const struct kind *kind = &kinds[tree->kind];
    if (kind->level == LEVEL_PRIMARY) {
        put(printer, kind->text);
        put(printer, "(");
        print(printer, tree->operands[0], LEVEL_OR);
        if (kind->operands == 2) {
            put(printer, ",");
            print(printer, tree->operands[1], LEVEL_OR);
        }
        put(printer, ")");
        return;
    }
    if (kind->operands == 1) {
        put(printer, kind->text);
        print(printer, tree->operands[0], kind->level == LEVEL_SIGN ? LEVEL_PRIMARY : LEVEL_NOT);
        return;
    }
    /* From the left: only the right operand of the same level needs parentheses; comparisons take
     * sums alone. */
    bool compare = kind->level == LEVEL_COMPARE;
    print(printer, tree->operands[0], compare ? LEVEL_SUM : kind->level);
    put(printer, kind->text);
    print(printer, tree->operands[1], (enum level)(kind->level + 1));
}

static void print(struct printer *printer, const struct tree *tree, enum level least)
{
    bool enclose = level_of(tree) < least || (printer->generous && roll(printer->dice, 2) == 0);
    if (enclose) {
        put(printer, "(");
    }
    print_bare(printer, tree);
    if (enclose) {
        put(printer, ")");
    }
}

/* ---- the tree's own value ------------------------------------------------------------------- */

static double truth(bool condition)
{
    return condition ? 1.0 : 0.0;
}

static double value_of(const struct tree *tree, const double *slots)
{
    if (tree->kind == -1) {
        return tree->constant;
    }
    if (tree->kind < -1) {
        return slots[-2 - tree->kind];
    }
    const char *text = kinds[tree->kind].text;
    double a = value_of(tree->operands[0], slots);
    double b = tree->operands[1] != NULL ? value_of(tree->operands[1], slots) : 0.0;
    double result = (double)NAN;
    if (strcmp(text, "missing") == 0) {
        return truth(isnan(a));
    }
    if (strcmp(text, "and") == 0 && (a == 0.0 || b == 0.0)) {
        return 0.0;
    }
    if (strcmp(text, "or") == 0 && ((!isnan(a) && a != 0.0) || (!isnan(b) && b != 0.0))) {
        return 1.0;
    }
    if (isnan(a) || isnan(b)) {
        return result;
    }
    const char *const names[] = {"or", "and", "not", "==",  "!=",  "<",   "<=",    ">",   ">=",
                                 "+",  "*",   "/",   "abs", "min", "max", "floor", "sqrt"};
    const double results[] = {
        0.0,           1.0,          truth(a == 0.0), truth(a == b), truth(a != b), truth(a < b),
        truth(a <= b), truth(a > b), truth(a >= b),   a + b,         a * b,         a / b,
        fabs(a),       fmin(a, b),   fmax(a, b),      floor(a),      sqrt(a)};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        result = strcmp(names[i], text) == 0 ? results[i] : result;
    }
    if (strcmp(text, "-") == 0) {
        result = tree->operands[1] != NULL ? a - b : -a;
    }
    return isfinite(result) ? result : (double)NAN;
}

/* ---- tests --------------------------------------------------------------------------------- */

static kelp_status give_slot(void *context, const struct kelp_expression_column *column,
                             uint32_t *ret_slot, struct kelp_error *reterr)
{
    static const char *const names[SLOTS] = {"a", "long_name", "odd name", "d4"};
    (void)context;
    for (uint32_t i = 0; i < SLOTS; i++) {
        bool known = column->view == KELP_VIEW_NUMBER || column->view == KELP_VIEW_ANY;
        if (strcmp(names[i], column->name) == 0 && known) {
            *ret_slot = i;
            return KELP_OK;
        }
    }
    return kelp_fail(reterr, KELP_ERR_INVALID, "no column %s", column->name);
}

static double compiled_value(const char *text, const double *slots)
{
    const struct kelp_expression_columns columns = {.slot = give_slot};
    struct kelp_expression *expression = NULL;
    struct kelp_error error = {0};
    kelp_status status = kelp_expression_compile(text, &columns, &expression, &error);
    ck_assert_msg(status == KELP_OK, "%s: %s", text, error.text);
    double value = kelp_expression_value(expression, slots);
    kelp_expression_destroy(expression);
    return value;
}

KELP_CASE("expression", .timeout_s = 60)

KELP_TEST(random_trees)
{
    uint64_t missing = 0;
    for (uint64_t number = 0; number < TREES; number++) {
        struct dice dice = {.tree = number};
        struct forest forest = {.count = 0};
        struct tree *tree = grow(&forest, &dice, 1 + (int)roll(&dice, NODES_MAX));
        double slots[SLOTS];
        for (int i = 0; i < SLOTS; i++) {
            slots[i] = roll(&dice, 8) == 0 ? (double)NAN : (double)roll(&dice, 17) / 2.0 - 4.0;
        }
        struct printer printer = {.dice = &dice, .generous = number % 2 == 1};
        print(&printer, tree, LEVEL_OR);
        double expected = value_of(tree, slots);
        double value = compiled_value(printer.text, slots);
        missing += isnan(expected) ? 1 : 0;
        if (isnan(expected) ? !isnan(value) : value != expected) {
            ck_abort_msg("tree %llu: %s is %.17g, not %.17g", (unsigned long long)number,
                         printer.text, value, expected);
        }
    }
    ck_assert_uint_gt(missing, TREES / 20);
    ck_assert_uint_lt(missing, TREES * 19 / 20);
}

/* Against the C library, which is right to its last digit or so; what it depends on (the machine)
 * is why it is not used itself. */
KELP_TEST(functions)
{
    for (int i = -200000; i <= 200000; i++) {
        double x = (double)i * 0.37;
        if (fabs(kelp_plain_sin(x) - sin(x)) > 4e-16 || fabs(kelp_plain_cos(x) - cos(x)) > 4e-16) {
            ck_abort_msg("sin or cos of %.17g: %.17g %.17g", x, kelp_plain_sin(x),
                         kelp_plain_cos(x));
        }
    }
    for (int i = 1; i <= 200000; i++) {
        double x = (double)i * (double)i * 1.7e-9;
        double expected = log(x);
        if (fabs(kelp_plain_log(x) - expected) > 4e-16 * fmax(fabs(expected), 0.5)) {
            ck_abort_msg("log of %.17g: %.17g, not %.17g", x, kelp_plain_log(x), expected);
        }
    }
    ck_assert(kelp_plain_log(1.0) == 0.0 && kelp_plain_sin(0.0) == 0.0 &&
              kelp_plain_cos(0.0) == 1.0);
    ck_assert(isnan(kelp_plain_log(0.0)) && isnan(kelp_plain_log(-1.0)));
    ck_assert(isnan(kelp_plain_sin(2e6)) && isnan(kelp_plain_cos(INFINITY)));
    ck_assert(fabs(kelp_plain_log(5e-324) - log(5e-324)) < 1e-12);
}

struct mistake {
    const char *text;
    const char *expected;
};
static const struct mistake mistakes[] = {
    {"", "at the end"},
    {"a +", "at the end"},
    {"a = 3", "equality is written =="},
    {"(a + 3", "closing parenthesis"},
    {"a b", "should end here"},
    {"a 3", "should end here"},
    {"nonsense(a)", "no such function"},
    {"min(a)", "min and max need two"},
    {"abs(a, 3)", "closing parenthesis"},
    {"b + 1", "no column b"},
    {"1.2.3", "is not a number"},
    {"1e999", "is not a number"},
    {"'text'", "can only be compared"},
    {"a + 'text'", "can only be compared"},
    {"`a", "quote is not closed"},
    {"a < 2 < 3", "should end here"},
    {"a ; 2", "should end here"},
    {"- - a", "expected"},
    {"a and", "at the end"},
    {"not", "at the end"},
    {"a == ''", "empty"},
};

KELP_LOOP_TEST(mistake_in_a_text, 0, (sizeof(mistakes) / sizeof(mistakes[0])))
{
    const struct kelp_expression_columns columns = {.slot = give_slot};
    struct kelp_expression *expression = NULL;
    struct kelp_error error = {0};
    const struct mistake *mistake = &mistakes[_i];
    ck_assert_int_ne(kelp_expression_compile(mistake->text, &columns, &expression, &error),
                     KELP_OK);
    ck_assert_ptr_null(expression);
    ck_assert_msg(strstr(error.text, mistake->expected) != NULL, "%s: %s", mistake->text,
                  error.text);
}

/* Too long or too deep is a limit, not a crash. */
KELP_TEST(limits)
{
    const struct kelp_expression_columns columns = {.slot = give_slot};
    struct kelp_expression *expression = NULL;
    char text[4001];
    memset(text, '(', 4000);
    text[4000] = '\0';
    ck_assert_int_eq(kelp_expression_compile(text, &columns, &expression, NULL), KELP_ERR_LIMIT);
    for (int i = 0; i < 4000; i += 2) {
        memcpy(text + i, "1+", 2);
    }
    text[3999] = '\0';
    ck_assert_int_eq(kelp_expression_compile(text, &columns, &expression, NULL), KELP_ERR_LIMIT);
}
