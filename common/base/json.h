/*
 * Small, strict spares over cJSON, and for printing JSON by hand. What comes from outside is
 * checked here: a missing member, another type, a number out of range is KELP_ERR_FORMAT and the
 * text names the member.
 *
 * 64-bit numbers that may pass 2^53 travel as strings of 16 hexadecimal digits.
 */
#ifndef KELP_COMMON_BASE_JSON_H
#define KELP_COMMON_BASE_JSON_H

#include <cjson/cJSON.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"

#define KELP_JSON_INTEGER_MAX (UINT64_C(1) << 53)

/* Parse exactly one value; nothing but white space may follow. *ret_json is owned
 * (cJSON_Delete()). */
kelp_status kelp_json_parse(const char *text, size_t text_bytes, cJSON **ret_json,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* Reads a value into something of the caller's. */
typedef kelp_status kelp_json_reader(const cJSON *json, void *into, struct kelp_error *reterr);

/* Parse a text, read its value, and forget it. */
kelp_status kelp_json_read(const char *text, size_t text_bytes, kelp_json_reader *read, void *into,
                           struct kelp_error *reterr) KELP_MUST_USE;
/* Read each element of an array (NULL: none) in its order, until one fails. */
kelp_status kelp_json_each(const cJSON *array, kelp_json_reader *read, void *into,
                           struct kelp_error *reterr) KELP_MUST_USE;

/* An integer in [0, max], max at most KELP_JSON_INTEGER_MAX. */
kelp_status kelp_json_u64(const cJSON *object, const char *name, uint64_t max, uint64_t *ret_value,
                          struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_json_u32(const cJSON *object, const char *name, uint32_t max, uint32_t *ret_value,
                          struct kelp_error *reterr) KELP_MUST_USE;
/* What a hexadecimal digit is worth; -1: it is none (capitals are none). */
int kelp_json_hex_digit(char c);
/* A string of exactly 16 hexadecimal digits. */
kelp_status kelp_json_hex64(const cJSON *object, const char *name, uint64_t *ret_value,
                            struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_json_double(const cJSON *object, const char *name, double *ret_value,
                             struct kelp_error *reterr) KELP_MUST_USE;
/* A string of fewer than value_bytes bytes, copied. */
kelp_status kelp_json_string(const cJSON *object, const char *name, char *value, size_t value_bytes,
                             struct kelp_error *reterr) KELP_MUST_USE;
/* *ret_array is borrowed from object. */
kelp_status kelp_json_array(const cJSON *object, const char *name, size_t count_max,
                            const cJSON **ret_array, struct kelp_error *reterr) KELP_MUST_USE;
/* The value of an array's element, as kelp_json_u64 has it. */
kelp_status kelp_json_element_u64(const cJSON *element, uint64_t max, uint64_t *ret_value,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* Print text as a JSON string, quotes included. Bytes over 127 pass as they are (UTF-8). */
void kelp_json_print_string(FILE *out, const char *text);
/* A member that is a string, behind what stands before it ("{" or ","). */
void kelp_json_print_member(FILE *out, const char *before, const char *name, const char *text);
/* Print a double with 17 significant digits, null when it is not finite (JSON has no such number).
 */
void kelp_json_print_double(FILE *out, double value);
/* The same for a float, with 9 significant digits. */
void kelp_json_print_float(FILE *out, float value);

#endif
