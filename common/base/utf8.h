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

/*
 * Columns of a terminal that the text takes. The same rule in every locale: wide characters of East
 * Asia and emoji take two; combining marks and what has no width of its own take none; all others
 * one, and so does each byte of what is malformed.
 */
size_t kelp_utf8_columns(const char *text);

/* The field width for printf's "%*s" or "%-*s", which counts bytes, that gives the text so many
 * columns at least. */
int kelp_utf8_field(const char *text, size_t columns);

#endif
