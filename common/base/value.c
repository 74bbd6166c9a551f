#include "common/base/value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_MAX 64 /* bytes of what was typed that an error repeats */
#define WORD_MAX  63

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit size_units[] = {
    {"GiB", UINT64_C(1) << 30}, {"MiB", UINT64_C(1) << 20}, {"KiB", UINT64_C(1) << 10}, {"B", 1}};
static const struct unit duration_units[] = {{"m", 60000}, {"s", 1000}, {"ms", 1}};

kelp_status kelp_value_bool(const char *text, bool *ret_value, struct kelp_error *reterr)
{
    bool yes = strcmp(text, "true") == 0;

    if (!yes && strcmp(text, "false") != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "'%.*s' is not true or false", SHOWN_MAX, text);
    }
    *ret_value = yes;
    return KELP_OK;
}

/* Digits at text, to a number; the bytes used, or 0 when there are none or it overflows. */
static size_t read_digits(const char *text, uint64_t *ret_value)
{
    uint64_t value = 0;
    size_t used = 0;

    for (; text[used] >= '0' && text[used] <= '9'; used++) {
        if (__builtin_mul_overflow(value, UINT64_C(10), &value) ||
            __builtin_add_overflow(value, (uint64_t)(text[used] - '0'), &value)) {
            return 0;
        }
    }
    *ret_value = value;
    return used;
}

kelp_status kelp_value_u64(const char *text, uint64_t min, uint64_t max, uint64_t *ret_value,
                           struct kelp_error *reterr)
{
    uint64_t value = 0;
    size_t used = read_digits(text, &value);

    if (used == 0 || text[used] != '\0' || value < min || value > max) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "'%.*s' is not an integer from %" PRIu64 " to %" PRIu64, SHOWN_MAX, text,
                         min, max);
    }
    *ret_value = value;
    return KELP_OK;
}

kelp_status kelp_value_i64(const char *text, int64_t min, int64_t max, int64_t *ret_value,
                           struct kelp_error *reterr)
{
    bool negative = text[0] == '-';
    uint64_t magnitude = 0;
    size_t used = read_digits(text + negative, &magnitude);
    bool fits = used > 0 && text[negative + used] == '\0' && magnitude <= INT64_MAX;
    int64_t value = fits ? (negative ? -(int64_t)magnitude : (int64_t)magnitude) : 0;

    if (!fits || value < min || value > max) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "'%.*s' is not an integer from %" PRId64 " to %" PRId64, SHOWN_MAX, text,
                         min, max);
    }
    *ret_value = value;
    return KELP_OK;
}

kelp_status kelp_value_double(const char *text, double min, double max, double *ret_value,
                              struct kelp_error *reterr)
{
    char *end = NULL;
    bool decimal = text[0] != '\0' && strspn(text, "0123456789+-.eE") == strlen(text);
    double value = decimal ? strtod(text, &end) : 0;

    /* Overflow gives infinity, which no range holds. */
    if (!decimal || *end != '\0' || !(value >= min && value <= max)) {
        char low[KELP_VALUE_TEXT_MAX], high[KELP_VALUE_TEXT_MAX];
        kelp_value_print_double(min, low);
        kelp_value_print_double(max, high);
        return kelp_fail(reterr, KELP_ERR_INVALID, "'%.*s' is not a number from %s to %s",
                         SHOWN_MAX, text, low, high);
    }
    *ret_value = value;
    return KELP_OK;
}

/* A whole number with a unit. False when it is not that, or overflows. */
static bool read_with_unit(const char *text, const struct unit *units, size_t unit_count,
                           uint64_t *ret_value)
{
    uint64_t number;
    size_t used = read_digits(text, &number);

    for (size_t i = 0; used > 0 && i < unit_count; i++) {
        if (strcmp(text + used, units[i].name) == 0) {
            return !__builtin_mul_overflow(number, units[i].factor, ret_value);
        }
    }
    return false;
}

static void print_with_unit(uint64_t value, const struct unit *units, size_t unit_count, char *text)
{
    size_t i = value == 0 ? unit_count - 1 : 0;

    while (value % units[i].factor != 0) {
        i++; /* ends: the last factor is 1 */
    }
    (void)snprintf(text, KELP_VALUE_TEXT_MAX, "%" PRIu64 "%s", value / units[i].factor,
                   units[i].name);
}

kelp_status kelp_value_size(const char *text, uint64_t min, uint64_t max, uint64_t *ret_bytes,
                            struct kelp_error *reterr)
{
    uint64_t value = 0;

    if (!read_with_unit(text, size_units, KELP_ARRAY_COUNT(size_units), &value) || value < min ||
        value > max) {
        char low[KELP_VALUE_TEXT_MAX], high[KELP_VALUE_TEXT_MAX];
        kelp_value_print_size(min, low);
        kelp_value_print_size(max, high);
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "'%.*s' is not a size from %s to %s (a whole number with B, KiB, MiB or "
                         "GiB)",
                         SHOWN_MAX, text, low, high);
    }
    *ret_bytes = value;
    return KELP_OK;
}

kelp_status kelp_value_duration(const char *text, uint64_t min, uint64_t max, uint64_t *ret_ms,
                                struct kelp_error *reterr)
{
    uint64_t value = 0;

    if (!read_with_unit(text, duration_units, KELP_ARRAY_COUNT(duration_units), &value) ||
        value < min || value > max) {
        char low[KELP_VALUE_TEXT_MAX], high[KELP_VALUE_TEXT_MAX];
        kelp_value_print_duration(min, low);
        kelp_value_print_duration(max, high);
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "'%.*s' is not a duration from %s to %s (a whole number with ms, s or m)",
                         SHOWN_MAX, text, low, high);
    }
    *ret_ms = value;
    return KELP_OK;
}

kelp_status kelp_value_range(const char *text, uint32_t min, uint32_t max,
                             struct kelp_range *ret_range, struct kelp_error *reterr)
{
    uint64_t low = 0, high = 0;
    size_t used = read_digits(text, &low);
    bool right = used > 0;

    if (right && text[used] == ':') {
        size_t more = read_digits(text + used + 1, &high);
        right = more > 0 && text[used + 1 + more] == '\0';
    } else {
        right = right && text[used] == '\0';
        high = low;
    }
    if (!right || low < min || high > max || low > high) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "'%.*s' is not a number or MIN:MAX from %" PRIu32 " to %" PRIu32,
                         SHOWN_MAX, text, min, max);
    }
    *ret_range = (struct kelp_range){.min = (uint32_t)low, .max = (uint32_t)high};
    return KELP_OK;
}

kelp_status kelp_value_choice(const char *text, const char *const *choices, uint32_t *ret_index,
                              struct kelp_error *reterr)
{
    char list[256] = "";
    size_t used = 0;

    for (uint32_t i = 0; choices[i]; i++) {
        if (strcmp(text, choices[i]) == 0) {
            *ret_index = i;
            return KELP_OK;
        }
        if (used < sizeof(list)) {
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "",
                                     choices[i]);
        }
    }
    return kelp_fail(reterr, KELP_ERR_INVALID, "'%.*s' is not one of %s", SHOWN_MAX, text, list);
}

/* One UTF-8 character at text, to its code point; its length, or 0 when it is malformed. */
static size_t read_character(const unsigned char *text, uint32_t *ret_point)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = text[0] < 0x80             ? 1
                    : (text[0] & 0xe0) == 0xc0 ? 2
                    : (text[0] & 0xf0) == 0xe0 ? 3
                    : (text[0] & 0xf8) == 0xf0 ? 4
                                               : 0;
    uint32_t point = length == 1 ? text[0] : length > 0 ? text[0] & (0x7fu >> length) : 0;

    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) { /* a NUL ends it here too */
            return 0;
        }
        point = point << 6 | (text[i] & 0x3f);
    }
    *ret_point = point;
    return length > 0 && point >= smallest[length] ? length : 0;
}

/* What YAML can hold within one line of a quoted scalar. */
static bool printable(uint32_t point)
{
    return (point >= 0x20 && point <= 0x7e) ||
           (point >= 0xa0 && point <= 0xd7ff && point != 0x2028 && point != 0x2029) ||
           (point >= 0xe000 && point <= 0xfffd && point != 0xfeff) ||
           (point >= 0x10000 && point <= 0x10ffff);
}

kelp_status kelp_value_text(const char *text, size_t bytes_max, struct kelp_error *reterr)
{
    const unsigned char *at = (const unsigned char *)text;

    if (strlen(text) > bytes_max) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "'%.*s…' is longer than %zu bytes", SHOWN_MAX,
                         text, bytes_max);
    }
    while (*at != '\0') {
        uint32_t point = 0;
        size_t length = read_character(at, &point);
        if (length == 0 || !printable(point)) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "byte %zu is not printable UTF-8 (line breaks and control characters "
                             "are not allowed)",
                             (size_t)(at - (const unsigned char *)text));
        }
        at += length;
    }
    return KELP_OK;
}

void kelp_value_print_double(double value, char text[KELP_VALUE_TEXT_MAX])
{
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, KELP_VALUE_TEXT_MAX, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            return;
        }
    }
}

void kelp_value_print_size(uint64_t bytes, char text[KELP_VALUE_TEXT_MAX])
{
    print_with_unit(bytes, size_units, KELP_ARRAY_COUNT(size_units), text);
}

void kelp_value_print_duration(uint64_t ms, char text[KELP_VALUE_TEXT_MAX])
{
    print_with_unit(ms, duration_units, KELP_ARRAY_COUNT(duration_units), text);
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t kelp_value_distance(const char *a, const char *b)
{
    /* Optimal string alignment: three rows of the table are enough. */
    uint32_t rows[3][WORD_MAX + 1];
    size_t a_bytes = strlen(a), b_bytes = strlen(b);

    if (a_bytes > WORD_MAX || b_bytes > WORD_MAX) {
        return UINT32_MAX;
    }
    for (uint32_t j = 0; j <= b_bytes; j++) {
        rows[0][j] = j;
    }
    for (uint32_t i = 1; i <= a_bytes; i++) {
        uint32_t *row = rows[i % 3];
        const uint32_t *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (uint32_t j = 1; j <= b_bytes; j++) {
            uint32_t changed = above[j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0);
            row[j] = min_u32(changed, 1 + min_u32(above[j], row[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                row[j] = min_u32(row[j], above2[j - 2] + 1);
            }
        }
    }
    return rows[a_bytes % 3][b_bytes];
}

bool kelp_value_near(uint32_t distance, const char *word)
{
    size_t third = (strlen(word) + 2) / 3;

    return distance <= (third < 3 ? third : 3);
}
