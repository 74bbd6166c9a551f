#include "worker/data/text/decimal.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/status.h"

/* Bytes of a number's text; a longer one is refused. */
#define NUMBER_MAX 255

/* A parsed number: digits * 10^exponent. */
struct decimal {
    bool negative;
    uint64_t digits;
    int32_t exponent;
    bool exact; /* all digits are in `digits`, which is at most 2^53 */
};

/* Read digits into number; returns how many. scale is -1 after the decimal point, otherwise 0. */
static size_t scan_digits(const char **at, const char *end, int32_t scale, struct decimal *number)
{
    const char *start = *at;
    for (; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
        uint64_t digit = (uint64_t)(**at - '0');
        if (number->digits <= ((1ull << 53) - 9) / 10) {
            number->digits = number->digits * 10 + digit;
            number->exponent += scale;
        } else {
            number->exact = false;
        }
    }
    return (size_t)(*at - start);
}

static bool scan_exponent(const char **at, const char *end, struct decimal *number)
{
    if (*at == end || (**at != 'e' && **at != 'E')) {
        return true;
    }
    (*at)++;
    bool negative = *at < end && **at == '-';
    if (*at < end && (**at == '-' || **at == '+')) {
        (*at)++;
    }
    const char *start = *at;
    int32_t exponent = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
        exponent = exponent < 100000 ? exponent * 10 + (**at - '0') : exponent;
    }
    number->exponent += negative ? -exponent : exponent;
    return *at > start;
}

/* [sign] digits [. digits] [e [sign] digits], at least one digit, nothing else. */
static bool scan_number(const char *text, size_t bytes, struct decimal *number)
{
    const char *at = text;
    const char *end = text + bytes;
    *number = (struct decimal){.exact = true};
    if (at < end && (*at == '-' || *at == '+')) {
        number->negative = *at == '-';
        at++;
    }
    size_t digit_count = scan_digits(&at, end, 0, number);
    if (at < end && *at == '.') {
        at++;
        digit_count += scan_digits(&at, end, -1, number);
    }
    return digit_count > 0 && scan_exponent(&at, end, number) && at == end;
}

static const double powers_of_ten[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                       1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                       1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static double value_of(const char *text, size_t bytes, const struct decimal *number,
                       locale_t c_locale)
{
    int32_t exponent = number->exponent;
    if (number->exact && exponent >= -22 && exponent <= 22) {
        double magnitude = (double)number->digits;
        magnitude = exponent < 0 ? magnitude / powers_of_ten[-exponent]
                                 : magnitude * powers_of_ten[exponent];
        return number->negative ? -magnitude : magnitude;
    }
    char copy[NUMBER_MAX + 1];
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return strtod_l(copy, NULL, c_locale);
}

/* In any letter case, with or without a sign. */
static bool is_not_finite_word(const char *text, size_t bytes)
{
    static const char *const words[] = {"nan", "inf", "infinity", "-nan", "-inf", "-infinity"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(words); i++) {
        if (bytes == strlen(words[i]) && strncasecmp(text, words[i], bytes) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

enum kelp_decimal kelp_decimal_parse(const char *text, size_t bytes, locale_t c_locale,
                                     double *ret_value)
{
    while (bytes > 0 && is_blank(*text)) {
        text++;
        bytes--;
    }
    while (bytes > 0 && is_blank(text[bytes - 1])) {
        bytes--;
    }
    if (bytes == 0) {
        return KELP_DECIMAL_EMPTY;
    }
    if (is_not_finite_word(text, bytes)) {
        return KELP_DECIMAL_NOT_FINITE;
    }
    struct decimal number;
    if (bytes > NUMBER_MAX || !scan_number(text, bytes, &number)) {
        return KELP_DECIMAL_NO_NUMBER;
    }
    double value = value_of(text, bytes, &number, c_locale);
    if (!isfinite(value)) {
        return KELP_DECIMAL_RANGE;
    }
    *ret_value = value;
    return KELP_DECIMAL_OK;
}

const char *kelp_decimal_problem(enum kelp_decimal result)
{
    switch (result) {
    case KELP_DECIMAL_OK:
        return "is a number";
    case KELP_DECIMAL_EMPTY:
        return "is empty";
    case KELP_DECIMAL_NO_NUMBER:
        return "is not a number";
    case KELP_DECIMAL_NOT_FINITE:
        return "is not finite";
    case KELP_DECIMAL_RANGE:
        return "is out of range";
    }
    return "is not a number";
}
