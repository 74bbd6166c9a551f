#include "common/base/json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

kelp_status kelp_json_parse(const char *text, size_t text_bytes, cJSON **ret_json,
                            struct kelp_error *reterr)
{
    const char *end = NULL;
    cJSON *json = cJSON_ParseWithLengthOpts(text, text_bytes, &end, false);

    if (!json) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "not JSON (byte %zu)",
                         end ? (size_t)(end - text) : 0);
    }
    for (size_t at = (size_t)(end - text); at < text_bytes; at++) {
        if (!strchr(" \t\r\n", text[at])) {
            cJSON_Delete(json);
            return kelp_fail(reterr, KELP_ERR_FORMAT, "something follows the JSON (byte %zu)", at);
        }
    }
    *ret_json = json;
    return KELP_OK;
}

kelp_status kelp_json_read(const char *text, size_t text_bytes, kelp_json_reader *read, void *into,
                           struct kelp_error *reterr)
{
    cJSON *json = NULL;
    kelp_status status = kelp_json_parse(text, text_bytes, &json, reterr);

    if (status == KELP_OK) {
        status = read(json, into, reterr);
    }
    cJSON_Delete(json);
    return status;
}

kelp_status kelp_json_each(const cJSON *array, kelp_json_reader *read, void *into,
                           struct kelp_error *reterr)
{
    const cJSON *element = NULL;

    cJSON_ArrayForEach(element, array)
    {
        kelp_status status = read(element, into, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

static const cJSON *member(const cJSON *object, const char *name)
{
    return cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, name) : NULL;
}

kelp_status kelp_json_element_u64(const cJSON *element, uint64_t max, uint64_t *ret_value,
                                  struct kelp_error *reterr)
{
    uint64_t limit = max < KELP_JSON_INTEGER_MAX ? max : KELP_JSON_INTEGER_MAX;

    /* The comparison is false for NaN, and comes first because conversion of a value outside the
     * type's range is undefined. */
    if (!cJSON_IsNumber(element) ||
        !(element->valuedouble >= 0 && element->valuedouble <= (double)limit) ||
        element->valuedouble != floor(element->valuedouble)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "not an integer from 0 to %" PRIu64, limit);
    }
    *ret_value = (uint64_t)element->valuedouble;
    return KELP_OK;
}

kelp_status kelp_json_u64(const cJSON *object, const char *name, uint64_t max, uint64_t *ret_value,
                          struct kelp_error *reterr)
{
    kelp_status status = kelp_json_element_u64(member(object, name), max, ret_value, reterr);

    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s", name);
    }
    return status;
}

kelp_status kelp_json_u32(const cJSON *object, const char *name, uint32_t max, uint32_t *ret_value,
                          struct kelp_error *reterr)
{
    uint64_t value = 0;
    kelp_status status = kelp_json_u64(object, name, max, &value, reterr);

    if (status == KELP_OK) {
        *ret_value = (uint32_t)value;
    }
    return status;
}

int kelp_json_hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

kelp_status kelp_json_hex64(const cJSON *object, const char *name, uint64_t *ret_value,
                            struct kelp_error *reterr)
{
    const char *text = cJSON_GetStringValue(member(object, name));
    uint64_t value = 0;
    size_t digits = 0;

    while (text && digits <= 16 && kelp_json_hex_digit(text[digits]) >= 0) {
        value = value << 4 | (uint64_t)kelp_json_hex_digit(text[digits]);
        digits++;
    }
    if (!text || digits != 16 || text[digits] != '\0') {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: not a string of 16 hexadecimal digits",
                         name);
    }
    *ret_value = value;
    return KELP_OK;
}

kelp_status kelp_json_double(const cJSON *object, const char *name, double *ret_value,
                             struct kelp_error *reterr)
{
    const cJSON *item = member(object, name);

    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: not a finite number", name);
    }
    *ret_value = item->valuedouble;
    return KELP_OK;
}

kelp_status kelp_json_string(const cJSON *object, const char *name, char *value, size_t value_bytes,
                             struct kelp_error *reterr)
{
    const char *text = cJSON_GetStringValue(member(object, name));

    if (!text || strlen(text) >= value_bytes) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: not a string of at most %zu bytes", name,
                         value_bytes - 1);
    }
    memcpy(value, text, strlen(text) + 1);
    return KELP_OK;
}

kelp_status kelp_json_array(const cJSON *object, const char *name, size_t count_max,
                            const cJSON **ret_array, struct kelp_error *reterr)
{
    const cJSON *item = member(object, name);

    if (!cJSON_IsArray(item) || (size_t)cJSON_GetArraySize(item) > count_max) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: not an array of at most %zu elements", name,
                         count_max);
    }
    *ret_array = item;
    return KELP_OK;
}

void kelp_json_print_string(FILE *out, const char *text)
{
    (void)fputc('"', out);
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            (void)fprintf(out, "\\%c", *c);
        } else if ((unsigned char)*c < 0x20) {
            (void)fprintf(out, "\\u%04x", (unsigned)*c);
        } else {
            (void)fputc(*c, out);
        }
    }
    (void)fputc('"', out);
}

void kelp_json_print_member(FILE *out, const char *before, const char *name, const char *text)
{
    (void)fprintf(out, "%s\"%s\":", before, name);
    kelp_json_print_string(out, text);
}

void kelp_json_print_double(FILE *out, double value)
{
    (void)fprintf(out, isfinite(value) ? "%.17g" : "null", value);
}

void kelp_json_print_float(FILE *out, float value)
{
    (void)fprintf(out, isfinite(value) ? "%.9g" : "null", (double)value);
}
