/*
 * Decimal numbers from text, correctly rounded and the same in every locale. Pure.
 *
 * Most take a short path that is exact: up to 2^53 as digits and a power of ten up to 10^22 are
 * both doubles without error, so one multiplication or division rounds correctly (Clinger, "How to
 * read floating point numbers accurately"). The others go to strtod in the C locale.
 */
#ifndef KELP_WORKER_DATA_TEXT_DECIMAL_H
#define KELP_WORKER_DATA_TEXT_DECIMAL_H

#include <locale.h>
#include <stddef.h>

enum kelp_decimal {
    KELP_DECIMAL_OK,
    KELP_DECIMAL_EMPTY,      /* nothing but blanks */
    KELP_DECIMAL_NO_NUMBER,  /* anything else than [sign] digits [. digits] [e [sign] digits] */
    KELP_DECIMAL_NOT_FINITE, /* nan, inf, infinity: a number, but none to learn from */
    KELP_DECIMAL_RANGE,      /* beyond what a double holds */
};

/*
 * Parse all of text, blanks around it aside. c_locale is newlocale(LC_ALL_MASK, "C", 0). *ret_value
 * is finite, and set with KELP_DECIMAL_OK alone.
 */
enum kelp_decimal kelp_decimal_parse(const char *text, size_t bytes, locale_t c_locale,
                                     double *ret_value);

/* "is empty", "is not a number", ... for errors. */
const char *kelp_decimal_problem(enum kelp_decimal result);

#endif
