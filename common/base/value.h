/*
 * Strict reading of values that people type, in job files, on command lines and in the environment:
 * the whole text must be the value, and an error says what was found, what is allowed, and what was
 * probably meant. Pure.
 *
 * All return KELP_ERR_INVALID on a mistake and leave *ret_value alone.
 */
#ifndef KELP_COMMON_BASE_VALUE_H
#define KELP_COMMON_BASE_VALUE_H

#include <stdint.h>

#include "common/base/status.h"

struct kelp_range {
    uint32_t min;
    uint32_t max;
};

#define KELP_VALUE_TEXT_MAX 64 /* bytes that a printed value takes, NUL included */

/* "true" or "false"; also "True", "TRUE" and so on, as in YAML. */
kelp_status kelp_value_bool(const char *text, bool *ret_value,
                            struct kelp_error *reterr) KELP_MUST_USE;
/* Decimal digits only: no sign, no blanks, no exponent. */
kelp_status kelp_value_u64(const char *text, uint64_t min, uint64_t max, uint64_t *ret_value,
                           struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_value_i64(const char *text, int64_t min, int64_t max, int64_t *ret_value,
                           struct kelp_error *reterr) KELP_MUST_USE;
/* A decimal number: no "inf", "nan" or hexadecimal. */
kelp_status kelp_value_double(const char *text, double min, double max, double *ret_value,
                              struct kelp_error *reterr) KELP_MUST_USE;
/* Bytes: "512B", "64KiB", "4MiB", "1GiB". Limits in bytes. */
kelp_status kelp_value_size(const char *text, uint64_t min, uint64_t max, uint64_t *ret_bytes,
                            struct kelp_error *reterr) KELP_MUST_USE;
/* Milliseconds: "250ms", "2s", "5m", "1h". Limits in milliseconds. */
kelp_status kelp_value_duration(const char *text, uint64_t min, uint64_t max, uint64_t *ret_ms,
                                struct kelp_error *reterr) KELP_MUST_USE;
/* "MIN:MAX", or "N" for N:N, with min <= MIN <= MAX <= max. */
kelp_status kelp_value_range(const char *text, uint32_t min, uint32_t max,
                             struct kelp_range *ret_range, struct kelp_error *reterr) KELP_MUST_USE;
/* One of choices (ends with NULL): its index. */
kelp_status kelp_value_choice(const char *text, const char *const *choices, uint32_t *ret_index,
                              struct kelp_error *reterr) KELP_MUST_USE;
/* A text of at most bytes_max bytes: UTF-8 without control characters or line breaks. */
kelp_status kelp_value_text(const char *text, size_t bytes_max,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* Print a value as the functions above read it: the shortest text that gives the same number, the
 * largest unit that divides it. */
void kelp_value_print_double(double value, char text[KELP_VALUE_TEXT_MAX]);
void kelp_value_print_size(uint64_t bytes, char text[KELP_VALUE_TEXT_MAX]);
void kelp_value_print_duration(uint64_t ms, char text[KELP_VALUE_TEXT_MAX]);

/*
 * Edits (insert, delete, replace, swap neighbours) from one word to the other; for "did you mean".
 * Words of over 63 bytes count as far from everything (UINT32_MAX).
 */
uint32_t kelp_value_distance(const char *a, const char *b);
/* True when a distance is small enough to suggest `word` for what was typed. */
bool kelp_value_near(uint32_t distance, const char *word);
/* The nearest of words (ends with NULL) in any case, or NULL when none is near. */
const char *kelp_value_nearest(const char *typed, const char *const *words);

#endif
