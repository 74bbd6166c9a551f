/* The text of an expression, by recursive descent: one function for each level of binding. */
#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/text/decimal.h"
#include "worker/data/text/expression_internal.h"
#include "worker/data/text/limits.h"

#define LITERAL_MAX 63 /* bytes of a text to compare with */

struct compiler {
    const char *text;
    const char *at; /* what follows the token */
    const char *token;
    size_t bytes; /* of the token; 0 at the end */
    const struct kelp_expression_columns *columns;
    struct kelp_expression *expression;
    uint32_t stack; /* values on the stack after the operations so far */
    uint32_t depth; /* of recursion */
    locale_t locale;
    struct kelp_error *reterr;
};

static kelp_status parse_or(struct compiler *compiler);

/* ---- tokens ---------------------------------------------------------------------------------- */

static kelp_status wrong(const struct compiler *compiler, const char *what)
{
    if (compiler->bytes == 0) {
        return kelp_fail(compiler->reterr, KELP_ERR_INVALID, "at the end: %s", what);
    }
    return kelp_fail(compiler->reterr, KELP_ERR_INVALID, "at '%.40s': %s", compiler->token, what);
}

static bool is_word_start(char c)
{
    return isalpha((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

static bool is_word(char c)
{
    return is_word_start(c) || isdigit((unsigned char)c);
}

/* Digits, a point, an exponent with its sign. */
static size_t number_bytes(const char *text)
{
    size_t bytes = 0;
    while (isdigit((unsigned char)text[bytes]) || text[bytes] == '.' ||
           ((text[bytes] == 'e' || text[bytes] == 'E') && bytes > 0) ||
           ((text[bytes] == '-' || text[bytes] == '+') && bytes > 0 &&
            (text[bytes - 1] == 'e' || text[bytes - 1] == 'E'))) {
        bytes++;
    }
    return bytes;
}

static size_t token_bytes(const char *text)
{
    if (*text == '\0') {
        return 0;
    }
    if (*text == '`' || *text == '"' || *text == '\'') {
        const char *close = strchr(text + 1, *text);
        return close ? (size_t)(close - text) + 1 : 1;
    }
    if (isdigit((unsigned char)*text) || *text == '.') {
        return number_bytes(text);
    }
    size_t bytes = 0;
    while (is_word(text[bytes])) {
        bytes++;
    }
    if (bytes > 0) {
        return bytes;
    }
    bool two = strchr("=!<>", *text) && text[1] == '=';
    return two ? 2 : 1;
}

static void next_token(struct compiler *compiler)
{
    while (*compiler->at == ' ' || *compiler->at == '\t') {
        compiler->at++;
    }
    compiler->token = compiler->at;
    compiler->bytes = token_bytes(compiler->at);
    compiler->at += compiler->bytes;
}

static bool token_is(const struct compiler *compiler, const char *text)
{
    return compiler->bytes == strlen(text) && memcmp(compiler->token, text, compiler->bytes) == 0;
}

static bool take(struct compiler *compiler, const char *text)
{
    if (!token_is(compiler, text)) {
        return false;
    }
    next_token(compiler);
    return true;
}

static bool token_is_quoted(const struct compiler *compiler)
{
    return compiler->bytes > 0 && (*compiler->token == '"' || *compiler->token == '\'');
}

/* A column's name: a word that is not one of ours, or anything in backticks. */
static bool token_is_name(const struct compiler *compiler)
{
    if (compiler->bytes == 0 || token_is(compiler, "and") || token_is(compiler, "or") ||
        token_is(compiler, "not")) {
        return false;
    }
    return *compiler->token == '`' || is_word_start(*compiler->token);
}

/* The token without its quotes, in a buffer of size + 1 bytes. */
static kelp_status copy_token(const struct compiler *compiler, char *text, size_t size)
{
    const char *start = compiler->token;
    size_t bytes = compiler->bytes;
    if (*start == '`' || *start == '"' || *start == '\'') {
        if (bytes < 2) {
            return wrong(compiler, "the quote is not closed");
        }
        start++;
        bytes -= 2;
    }
    if (bytes == 0 || bytes > size) {
        return wrong(compiler, bytes == 0 ? "the name is empty" : "the name is too long");
    }
    memcpy(text, start, bytes);
    text[bytes] = '\0';
    return KELP_OK;
}

/* ---- operations ------------------------------------------------------------------------------ */

static kelp_status emit(struct compiler *compiler, struct kelp_operation_entry entry)
{
    struct kelp_expression *expression = compiler->expression;
    uint32_t takes = kelp__expression_operation_takes(entry.code);
    assert(compiler->stack >= takes);
    if (expression->count == KELP_EXPRESSION_OPS_MAX ||
        compiler->stack - takes == KELP_EXPRESSION_STACK_MAX) {
        return kelp_fail(compiler->reterr, KELP_ERR_LIMIT, "the expression is too long");
    }
    expression->entries[expression->count++] = entry;
    compiler->stack = compiler->stack - takes + 1;
    return KELP_OK;
}

static kelp_status emit_code(struct compiler *compiler, enum kelp_operation code)
{
    return emit(compiler, (struct kelp_operation_entry){.code = code});
}

static kelp_status emit_column(struct compiler *compiler,
                               const struct kelp_expression_column *column)
{
    uint32_t slot = 0;
    kelp_status status =
        compiler->columns->slot(compiler->columns->context, column, &slot, compiler->reterr);
    return status == KELP_OK
               ? emit(compiler,
                      (struct kelp_operation_entry){.code = KELP_OPERATION_SLOT, .slot = slot})
               : status;
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct function {
    const char *name;
    enum kelp_operation code;
    enum kelp_expression_view view; /* of a column alone as its argument */
};
static const struct function functions[] = {
    {"abs", KELP_OPERATION_ABS, KELP_VIEW_NUMBER},
    {"floor", KELP_OPERATION_FLOOR, KELP_VIEW_NUMBER},
    {"sqrt", KELP_OPERATION_SQRT, KELP_VIEW_NUMBER},
    {"log", KELP_OPERATION_LOG, KELP_VIEW_NUMBER},
    {"sin", KELP_OPERATION_SIN, KELP_VIEW_NUMBER},
    {"cos", KELP_OPERATION_COS, KELP_VIEW_NUMBER},
    {"missing", KELP_OPERATION_MISSING, KELP_VIEW_ANY},
    {"min", KELP_OPERATION_MIN, KELP_VIEW_NUMBER},
    {"max", KELP_OPERATION_MAX, KELP_VIEW_NUMBER},
    {"seconds", KELP_OPERATION_SECONDS, KELP_VIEW_TIME},
    {"minute", KELP_OPERATION_MINUTE, KELP_VIEW_TIME},
    {"hour", KELP_OPERATION_HOUR, KELP_VIEW_TIME},
    {"weekday", KELP_OPERATION_WEEKDAY, KELP_VIEW_TIME},
    {"day", KELP_OPERATION_DAY, KELP_VIEW_TIME},
    {"month", KELP_OPERATION_MONTH, KELP_VIEW_TIME},
    {"year", KELP_OPERATION_YEAR, KELP_VIEW_TIME},
};

static const struct function *find_function(const char *name)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(functions); i++) {
        if (strcmp(functions[i].name, name) == 0) {
            return &functions[i];
        }
    }
    return NULL;
}

/* The token behind the current one, white space aside, begins with this. */
static bool follows(const struct compiler *compiler, char c)
{
    const char *p = compiler->at;
    while (*p == ' ' || *p == '\t') {
        p++;
    }
    return *p == c;
}

/* An argument that is a column alone: "hour(" was taken, "pickup)" follows. */
static kelp_status parse_column(struct compiler *compiler, enum kelp_expression_view view)
{
    char name[KELP_CSV_COLUMN_NAME_MAX + 1];
    kelp_status status = copy_token(compiler, name, sizeof(name) - 1);
    if (status != KELP_OK) {
        return status;
    }
    next_token(compiler);
    return emit_column(compiler, &(struct kelp_expression_column){.name = name, .view = view});
}

static kelp_status parse_call(struct compiler *compiler, const char *name)
{
    const struct function *function = find_function(name);
    if (!function) {
        return wrong(compiler, "no such function; there are abs, cos, day, floor, hour, log, max, "
                               "min, minute, missing, month, seconds, sin, sqrt, weekday, year");
    }
    next_token(compiler);
    next_token(compiler); /* the parenthesis */
    bool alone = token_is_name(compiler) && follows(compiler, ')');
    kelp_status status = alone && function->view != KELP_VIEW_NUMBER
                             ? parse_column(compiler, function->view)
                             : parse_or(compiler);
    if (status == KELP_OK && kelp__expression_operation_takes(function->code) == 2) {
        if (!take(compiler, ",")) {
            return wrong(compiler, "min and max need two values with a comma between them");
        }
        status = parse_or(compiler);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (!take(compiler, ")")) {
        return wrong(compiler, "a closing parenthesis is missing here");
    }
    return emit_code(compiler, function->code);
}

/* ---- levels, from the tightest --------------------------------------------------------------- */

static kelp_status parse_number(struct compiler *compiler)
{
    double value = 0.0;
    if (kelp_decimal_parse(compiler->token, compiler->bytes, compiler->locale, &value) !=
        KELP_DECIMAL_OK) {
        return wrong(compiler, "is not a number");
    }
    next_token(compiler);
    return emit(compiler,
                (struct kelp_operation_entry){.code = KELP_OPERATION_CONSTANT, .constant = value});
}

static kelp_status parse_name(struct compiler *compiler)
{
    char name[KELP_CSV_COLUMN_NAME_MAX + 1];
    kelp_status status = copy_token(compiler, name, sizeof(name) - 1);
    if (status != KELP_OK) {
        return status;
    }
    bool word = *compiler->token != '`';
    if (word && follows(compiler, '(')) {
        return parse_call(compiler, name);
    }
    next_token(compiler);
    if (word && strcmp(name, "pi") == 0) {
        return emit(compiler, (struct kelp_operation_entry){.code = KELP_OPERATION_CONSTANT,
                                                            .constant = 3.14159265358979323846});
    }
    return emit_column(compiler,
                       &(struct kelp_expression_column){.name = name, .view = KELP_VIEW_NUMBER});
}

static kelp_status parse_primary(struct compiler *compiler)
{
    if (compiler->bytes > 0 &&
        (isdigit((unsigned char)*compiler->token) || *compiler->token == '.')) {
        return parse_number(compiler);
    }
    if (token_is_name(compiler)) {
        return parse_name(compiler);
    }
    if (token_is_quoted(compiler)) {
        return wrong(compiler, "a text can only be compared with a column, as column == 'text'");
    }
    if (!take(compiler, "(")) {
        return wrong(compiler, "a number, a column, a function or a parenthesis is expected");
    }
    kelp_status status = parse_or(compiler);
    if (status == KELP_OK && !take(compiler, ")")) {
        return wrong(compiler, "a closing parenthesis is missing here");
    }
    return status;
}

static kelp_status parse_sign(struct compiler *compiler)
{
    if (!take(compiler, "-")) {
        (void)take(compiler, "+"); /* changes nothing */
        return parse_primary(compiler);
    }
    kelp_status status = parse_primary(compiler);
    return status == KELP_OK ? emit_code(compiler, KELP_OPERATION_NEGATE) : status;
}

struct infix {
    const char *text;
    enum kelp_operation code;
};

/* operand { infix operand }, from the left. */
static kelp_status parse_chain(struct compiler *compiler, const struct infix *infixes, size_t count,
                               kelp_status (*operand)(struct compiler *))
{
    kelp_status status = operand(compiler);
    while (status == KELP_OK) {
        size_t found = 0;
        while (found < count && !token_is(compiler, infixes[found].text)) {
            found++;
        }
        if (found == count) {
            return KELP_OK;
        }
        next_token(compiler);
        status = operand(compiler);
        if (status == KELP_OK) {
            status = emit_code(compiler, infixes[found].code);
        }
    }
    return status;
}

static kelp_status parse_product(struct compiler *compiler)
{
    static const struct infix infixes[] = {{"*", KELP_OPERATION_MULTIPLY},
                                           {"/", KELP_OPERATION_DIVIDE}};
    return parse_chain(compiler, infixes, KELP_ARRAY_COUNT(infixes), parse_sign);
}

static kelp_status parse_sum(struct compiler *compiler)
{
    static const struct infix infixes[] = {{"+", KELP_OPERATION_ADD},
                                           {"-", KELP_OPERATION_SUBTRACT}};
    return parse_chain(compiler, infixes, KELP_ARRAY_COUNT(infixes), parse_product);
}

/* column == 'text' and column != 'text'; *ret_done is false, and nothing was taken, for others. */
static kelp_status parse_text_test(struct compiler *compiler, bool *ret_done)
{
    const struct compiler before = *compiler;
    *ret_done = false;
    if (!token_is_name(compiler)) {
        return KELP_OK;
    }
    char name[KELP_CSV_COLUMN_NAME_MAX + 1];
    char literal[LITERAL_MAX + 1];
    kelp_status status = copy_token(compiler, name, sizeof(name) - 1);
    if (status != KELP_OK) {
        return status;
    }
    next_token(compiler);
    bool equal = token_is(compiler, "==");
    bool compared = equal || token_is(compiler, "!=");
    next_token(compiler);
    if (!compared || !token_is_quoted(compiler)) {
        compiler->at = before.at;
        compiler->token = before.token;
        compiler->bytes = before.bytes;
        return KELP_OK;
    }
    *ret_done = true;
    status = copy_token(compiler, literal, sizeof(literal) - 1);
    if (status != KELP_OK) {
        return status;
    }
    next_token(compiler);
    status = emit_column(compiler, &(struct kelp_expression_column){
                                       .name = name, .view = KELP_VIEW_TEXT, .literal = literal});
    return status == KELP_OK && !equal ? emit_code(compiler, KELP_OPERATION_NOT) : status;
}

/* One comparison: a < b < c would compare a truth with c. */
static kelp_status parse_comparison(struct compiler *compiler)
{
    static const struct infix infixes[] = {
        {"==", KELP_OPERATION_EQUAL},  {"!=", KELP_OPERATION_NOT_EQUAL},
        {"<", KELP_OPERATION_LESS},    {"<=", KELP_OPERATION_LESS_EQUAL},
        {">", KELP_OPERATION_GREATER}, {">=", KELP_OPERATION_GREATER_EQUAL},
    };
    bool done = false;
    kelp_status status = parse_text_test(compiler, &done);
    if (status != KELP_OK || done) {
        return status;
    }
    status = parse_sum(compiler);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(infixes) && status == KELP_OK; i++) {
        if (take(compiler, infixes[i].text)) {
            status = parse_sum(compiler);
            return status == KELP_OK ? emit_code(compiler, infixes[i].code) : status;
        }
    }
    return status;
}

static kelp_status parse_not(struct compiler *compiler)
{
    uint32_t count = 0;
    while (take(compiler, "not")) {
        count++;
    }
    kelp_status status = parse_comparison(compiler);
    for (uint32_t i = 0; i < count && status == KELP_OK; i++) {
        status = emit_code(compiler, KELP_OPERATION_NOT);
    }
    return status;
}

static kelp_status parse_and(struct compiler *compiler)
{
    static const struct infix infix = {"and", KELP_OPERATION_AND};
    return parse_chain(compiler, &infix, 1, parse_not);
}

/* Every recursion passes here, so that its depth is bounded here. */
static kelp_status parse_or(struct compiler *compiler)
{
    static const struct infix infix = {"or", KELP_OPERATION_OR};
    if (compiler->depth == KELP_EXPRESSION_DEPTH_MAX) {
        return kelp_fail(compiler->reterr, KELP_ERR_LIMIT,
                         "more than %d parentheses in one another", KELP_EXPRESSION_DEPTH_MAX);
    }
    compiler->depth++;
    kelp_status status = parse_chain(compiler, &infix, 1, parse_and);
    compiler->depth--;
    return status;
}

/* ---- whole ----------------------------------------------------------------------------------- */

static kelp_status parse_whole(struct compiler *compiler)
{
    next_token(compiler);
    kelp_status status = parse_or(compiler);
    if (status == KELP_OK && token_is(compiler, "=")) {
        return wrong(compiler, "equality is written ==");
    }
    if (status == KELP_OK && compiler->bytes > 0) {
        return wrong(compiler, "the expression should end here, or go on with an operator");
    }
    return status;
}

kelp_status kelp_expression_compile(const char *text, const struct kelp_expression_columns *columns,
                                    struct kelp_expression **ret_expression,
                                    struct kelp_error *reterr)
{
    struct compiler compiler = {.text = text, .at = text, .columns = columns, .reterr = reterr};
    compiler.expression = calloc(1, sizeof(*compiler.expression));
    compiler.locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    kelp_status status = KELP_ERR_NO_MEMORY;
    if (!compiler.expression || compiler.locale == (locale_t)0) {
        status = kelp_fail(reterr, status, "out of memory");
    } else {
        status = parse_whole(&compiler);
    }
    if (compiler.locale != (locale_t)0) {
        freelocale(compiler.locale);
    }
    if (status != KELP_OK) {
        kelp_expression_destroy(compiler.expression);
        return status;
    }
    assert(compiler.stack == 1);
    *ret_expression = compiler.expression;
    return KELP_OK;
}

kelp_status kelp_expression_named(const char *text, const char **ret_name, size_t *ret_bytes,
                                  const char **ret_text, struct kelp_error *reterr)
{
    while (*text == ' ' || *text == '\t') {
        text++;
    }
    const char *equals = strchr(text, '=');
    size_t bytes = 0;
    while (is_word(text[bytes])) {
        bytes++;
    }
    const char *behind = text + bytes;
    while (*behind == ' ' || *behind == '\t') {
        behind++;
    }
    if (bytes == 0 || bytes > KELP_CSV_COLUMN_NAME_MAX || !is_word_start(*text) ||
        behind != equals || equals[1] == '=') {
        return kelp_fail(reterr, KELP_ERR_INVALID, "'%.40s' is not of the form name = expression",
                         text);
    }
    *ret_name = text;
    *ret_bytes = bytes;
    *ret_text = equals + 1;
    return KELP_OK;
}
