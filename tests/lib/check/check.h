/*
 * The part of Check that the tests of kernels use, for machines where nothing can be installed
 * (KELP_PARTS=kernels). Elsewhere <check.h> is Check's own. tests/lib/check/suite_plain.c runs the
 * tests.
 */
#ifndef KELP_TESTS_LIB_CHECK_CHECK_H
#define KELP_TESTS_LIB_CHECK_CHECK_H

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const char *name;
    void (*fn)(int index);
    const char *file;
    int line;
} TTest;

#define CK_ATTRIBUTE_UNUSED __attribute__((unused))

/* Print where and what failed, and end the test. */
_Noreturn void kelp__check_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define ck_abort_msg(...) kelp__check_fail(__FILE__, __LINE__, __VA_ARGS__)
#define ck_assert_msg(condition, ...)                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            kelp__check_fail(__FILE__, __LINE__, __VA_ARGS__);                                     \
        }                                                                                          \
    } while (0)
#define ck_assert(condition) ck_assert_msg(condition, "%s", #condition)

/* Both sides are evaluated once. */
#define KELP__CHECK_PAIR(type, text, x, operation, y)                                              \
    do {                                                                                           \
        const type check_x = (x), check_y = (y);                                                   \
        ck_assert_msg(check_x operation check_y, "%s %s %s: " text " and " text, #x, #operation,   \
                      #y, check_x, check_y);                                                       \
    } while (0)

#define ck_assert_int_eq(x, y)    KELP__CHECK_PAIR(intmax_t, "%" PRIdMAX, x, ==, y)
#define ck_assert_int_ge(x, y)    KELP__CHECK_PAIR(intmax_t, "%" PRIdMAX, x, >=, y)
#define ck_assert_uint_eq(x, y)   KELP__CHECK_PAIR(uintmax_t, "%" PRIuMAX, x, ==, y)
#define ck_assert_uint_ne(x, y)   KELP__CHECK_PAIR(uintmax_t, "%" PRIuMAX, x, !=, y)
#define ck_assert_uint_lt(x, y)   KELP__CHECK_PAIR(uintmax_t, "%" PRIuMAX, x, <, y)
#define ck_assert_uint_le(x, y)   KELP__CHECK_PAIR(uintmax_t, "%" PRIuMAX, x, <=, y)
#define ck_assert_uint_gt(x, y)   KELP__CHECK_PAIR(uintmax_t, "%" PRIuMAX, x, >, y)
#define ck_assert_float_eq(x, y)  KELP__CHECK_PAIR(float, "%.9g", x, ==, y)
#define ck_assert_float_ne(x, y)  KELP__CHECK_PAIR(float, "%.9g", x, !=, y)
#define ck_assert_double_eq(x, y) KELP__CHECK_PAIR(double, "%.17g", x, ==, y)
#define ck_assert_ptr_ne(x, y)    ck_assert((const void *)(x) != (const void *)(y))
#define ck_assert_ptr_null(x)     ck_assert((const void *)(x) == NULL)
#define ck_assert_ptr_nonnull(x)  ck_assert((const void *)(x) != NULL)

#define ck_assert_float_eq_tol(x, y, tolerance)                                                    \
    ck_assert_double_eq_tol((double)(x), (double)(y), (double)(tolerance))
#define ck_assert_double_eq_tol(x, y, tolerance)                                                   \
    do {                                                                                           \
        const double check_x = (x), check_y = (y);                                                 \
        ck_assert_msg(fabs(check_x - check_y) < (tolerance), "%s near %s: %.17g and %.17g", #x,    \
                      #y, check_x, check_y);                                                       \
    } while (0)
#define ck_assert_float_nan(x)      ck_assert(isnan(x))
#define ck_assert_float_infinite(x) ck_assert(isinf(x))
#define ck_assert_double_nan(x)     ck_assert(isnan(x))
#define ck_assert_str_eq(x, y)                                                                     \
    do {                                                                                           \
        const char *check_x = (x), *check_y = (y);                                                 \
        ck_assert_msg(strcmp(check_x, check_y) == 0, "%s is %s: %s and %s", #x, #y, check_x,       \
                      check_y);                                                                    \
    } while (0)
#define ck_assert_mem_eq(x, y, bytes)                                                              \
    ck_assert_msg(memcmp(x, y, bytes) == 0, "%s and %s differ", #x, #y)

#endif
