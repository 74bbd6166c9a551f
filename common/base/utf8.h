/*
 * Characters of UTF-8. Pure.
 */
#ifndef KELP_COMMON_BASE_UTF8_H
#define KELP_COMMON_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The character at text, to its code point. Returns its length, or 0 when it is malformed. The text
 * ends with a NUL. */
size_t kelp_utf8_read(const char *text, uint32_t *ret_point);

#endif
