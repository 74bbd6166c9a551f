#include "common/base/value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/text.h"
#include "common/base/utf8.h"

#define SHOWN_MAX 64 /* bytes of the input that an error repeats */

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit size_units[] = {
    {"GiB", UINT64_C(1) << 30}, {"MiB", UINT64_C(1) << 20}, {"KiB", UINT64_C(1) << 10}, {"B", 1}};
static const struct unit duration_units[] = {{"m", 60000}, {"s", 1000}, {"ms", 1}, {"h", 3600000}};
#define DURATION_PRINTED 3 /* durations are printed in the first three units */

/* Other spellings of a unit. */
struct alias {
    const char *typed; /* in any case */
    const char *unit;
};

static const struct alias size_aliases[] = {
    {"b", "B"},    {"bytes", "B"}, {"k", "KiB"}, {"kb", "KiB"}, {"kib", "KiB"}, {"m", "MiB"},
    {"mb", "MiB"}, {"mib", "MiB"}, {"g", "GiB"}, {"gb", "GiB"}, {"gib", "GiB"}, {NULL, NULL}};
static const struct alias duration_aliases[] = {
    {"sec", "s"},   {"secs", "s"},   {"second", "s"},  {"seconds", "s"}, {"min", "m"},
    {"mins", "m"},  {"minute", "m"}, {"minutes", "m"}, {"hr", "h"},      {"hour", "h"},
    {"hours", "h"}, {"msec", "ms"},  {"millis", "ms"}, {"s", "s"},       {"m", "m"},
    {"h", "h"},     {"ms", "ms"},    {NULL, NULL}};

struct scale {
    const struct unit *units;
    size_t unit_count;
    const struct alias *aliases; /* ended by NULL */
};

static const struct scale sizes = {size_units, KELP_ARRAY_COUNT(size_units), size_aliases};
static const struct scale durations = {duration_units, KELP_ARRAY_COUNT(duration_units),
                                       duration_aliases};

/* Append "; did you mean WORD?" to an error; nothing if word is "". */
static kelp_status suggest(struct kelp_error *reterr, const char *word)
{
    if (reterr && word[0] != '\0') {
        size_t used = strlen(reterr->text);
        (void)snprintf(reterr->text + used, sizeof(reterr->text) - used, "; did you mean %.63s?",
                       word);
    }
    return KELP_ERR_INVALID;
}

static bool is_one_of(const char *text, const char *const *words)
{
    while (*words && strcasecmp(text, *words) != 0) {
        words++;
    }
    return *words != NULL;
}

/* YAML's three spellings: true, True, TRUE. */
static bool is_word(const char *text, const char *lower, const char *title, const char *upper)
{
    return strcmp(text, lower) == 0 || strcmp(text, title) == 0 || strcmp(text, upper) == 0;
}

kelp_status kelp_value_bool(const char *text, bool *ret_value, struct kelp_error *reterr)
{
    static const char *const like_true[] = {"true", "yes", "y", "on", "1", "t", NULL};
    static const char *const like_false[] = {"false", "no", "n", "off", "0", "f", NULL};
    static const char *const words[] = {"true", "false", NULL};
    bool yes = is_word(text, "true", "True", "TRUE");

    if (!yes && !is_word(text, "false", "False", "FALSE")) {
        (void)kelp_fail(reterr, KELP_ERR_INVALID, "'%.*s' is not true or false", SHOWN_MAX, text);
        const char *nearest = kelp_value_nearest(text, words);
        return suggest(reterr, nearest                       ? nearest
                               : is_one_of(text, like_true)  ? "true"
                               : is_one_of(text, like_false) ? "false"
                                                             : "");
    }
    *ret_value = yes;
    return KELP_OK;
}

/* Read digits as a number. Returns the bytes used; 0: no digits, or overflow. */
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

/* The whole number meant by a text like "1e3", "3.0" or "1_000"; "": none. */
static void near_whole(const char *text, uint64_t min, uint64_t max, char word[KELP_VALUE_TEXT_MAX])
{
    char digits[KELP_VALUE_TEXT_MAX], *end = NULL;
    size_t used = 0;

    word[0] = '\0';
    for (; *text != '\0' && used + 1 < sizeof(digits); text++) {
        if (*text != '_' && *text != ',') {
            digits[used++] = *text;
        }
    }
    digits[used] = '\0';
    if (*text != '\0' || used == 0 || strspn(digits, "0123456789.eE+") != used) {
        return;
    }
    double value = strtod(digits, &end);
    if (*end == '\0' && value >= (double)min && value <= (double)max && value < 0x1p53 &&
        value == (double)(uint64_t)value) {
        (void)snprintf(word, KELP_VALUE_TEXT_MAX, "%" PRIu64, (uint64_t)value);
    }
}

static void refuse_whole(const char *text, uint64_t min, uint64_t max, struct kelp_error *reterr)
{
    if (max == UINT64_MAX) {
        (void)kelp_fail(reterr, KELP_ERR_INVALID,
                        "'%.*s' is not an integer from %" PRIu64 " upwards", SHOWN_MAX, text, min);
    } else {
        (void)kelp_fail(reterr, KELP_ERR_INVALID,
                        "'%.*s' is not an integer from %" PRIu64 " to %" PRIu64, SHOWN_MAX, text,
                        min, max);
    }
}

kelp_status kelp_value_u64(const char *text, uint64_t min, uint64_t max, uint64_t *ret_value,
                           struct kelp_error *reterr)
{
    uint64_t value = 0;
    size_t used = read_digits(text, &value);

    if (used == 0 || text[used] != '\0' || value < min || value > max) {
        char word[KELP_VALUE_TEXT_MAX];
        near_whole(text, min, max, word);
        refuse_whole(text, min, max, reterr);
        return suggest(reterr, word);
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

/* "0,01" means 0.01 in many countries; "": the text has another form. */
static void near_decimal(const char *text, double min, double max, char word[KELP_VALUE_TEXT_MAX])
{
    const char *comma = strchr(text, ',');
    double value = 0;

    word[0] = '\0';
    if (comma && strlen(text) < KELP_VALUE_TEXT_MAX) {
        char decimal[KELP_VALUE_TEXT_MAX];
        (void)snprintf(decimal, sizeof(decimal), "%s", text);
        decimal[comma - text] = '.';
        if (kelp_value_double(decimal, min, max, &value, NULL) == KELP_OK) {
            (void)snprintf(word, KELP_VALUE_TEXT_MAX, "%s", decimal);
        }
    }
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
        (void)kelp_fail(reterr, KELP_ERR_INVALID, "'%.*s' is not a number from %s to %s", SHOWN_MAX,
                        text, low, high);
        near_decimal(text, min, max, low);
        return suggest(reterr, low);
    }
    *ret_value = value;
    return KELP_OK;
}

/* Read a whole number with a unit. False: it is not one, or overflows. */
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

/* The value with unit meant by a text like "4MB" or "10 min"; "": none. */
static void near_unit(const char *text, const struct scale *scale, uint64_t min, uint64_t max,
                      char word[KELP_VALUE_TEXT_MAX])
{
    const struct alias *alias = scale->aliases;
    uint64_t number = 0, value = 0;
    size_t used = read_digits(text, &number);
    const char *unit = text + used + strspn(text + used, " ");

    while (alias->typed && strcasecmp(unit, alias->typed) != 0) {
        alias++;
    }
    word[0] = '\0';
    if (used > 0 && alias->typed) {
        (void)snprintf(word, KELP_VALUE_TEXT_MAX, "%" PRIu64 "%s", number, alias->unit);
        if (!read_with_unit(word, scale->units, scale->unit_count, &value) || value < min ||
            value > max) {
            word[0] = '\0';
        }
    }
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
        (void)kelp_fail(reterr, KELP_ERR_INVALID,
                        "'%.*s' is not a size from %s to %s (a whole number with B, KiB, MiB or "
                        "GiB)",
                        SHOWN_MAX, text, low, high);
        near_unit(text, &sizes, min, max, low);
        return suggest(reterr, low);
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
        (void)kelp_fail(reterr, KELP_ERR_INVALID,
                        "'%.*s' is not a duration from %s %s%s (a whole number with ms, s, m or h)",
                        SHOWN_MAX, text, low, max == UINT64_MAX ? "upwards" : "to ",
                        max == UINT64_MAX ? "" : high);
        near_unit(text, &durations, min, max, low);
        return suggest(reterr, low);
    }
    *ret_ms = value;
    return KELP_OK;
}

/* "2-8" and "2..8" mean 2:8. */
static kelp_status refuse_range(const char *text, uint32_t min, uint32_t max,
                                struct kelp_error *reterr)
{
    uint64_t low = 0, high = 0;
    char word[KELP_VALUE_TEXT_MAX] = "";
    size_t used = read_digits(text, &low);
    size_t between = strspn(text + used, "-., ");
    size_t more = read_digits(text + used + between, &high);

    if (used > 0 && between > 0 && more > 0 && text[used + between + more] == '\0' && low >= min &&
        low <= high && high <= max) {
        (void)snprintf(word, sizeof(word), "%" PRIu64 ":%" PRIu64, low, high);
    }
    return suggest(reterr, word);
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
    if (right && low > high && high >= min && low <= max) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "'%.*s': MIN is larger than MAX; did you mean %" PRIu64 ":%" PRIu64 "?",
                         SHOWN_MAX, text, high, low);
    }
    if (!right || low < min || high > max || low > high) {
        (void)kelp_fail(reterr, KELP_ERR_INVALID,
                        "'%.*s' is not a number or MIN:MAX from %" PRIu32 " to %" PRIu32, SHOWN_MAX,
                        text, min, max);
        return refuse_range(text, min, max, reterr);
    }
    *ret_range = (struct kelp_range){.min = (uint32_t)low, .max = (uint32_t)high};
    return KELP_OK;
}

kelp_status kelp_value_choice(const char *text, const char *const *choices, uint32_t *ret_index,
                              struct kelp_error *reterr)
{
    char list[256] = "";

    for (uint32_t i = 0; choices[i]; i++) {
        if (strcmp(text, choices[i]) == 0) {
            *ret_index = i;
            return KELP_OK;
        }
        kelp_text_list_add(list, sizeof(list), choices[i]);
    }
    const char *nearest = kelp_value_nearest(text, choices);
    (void)kelp_fail(reterr, KELP_ERR_INVALID, "'%.*s' is not one of %s", SHOWN_MAX, text, list);
    return suggest(reterr, nearest ? nearest : "");
}

/* What YAML can express within one line of a quoted scalar. */
static bool printable(uint32_t point)
{
    return (point >= 0x20 && point <= 0x7e) ||
           (point >= 0xa0 && point <= 0xd7ff && point != 0x2028 && point != 0x2029) ||
           (point >= 0xe000 && point <= 0xfffd && point != 0xfeff) ||
           (point >= 0x10000 && point <= 0x10ffff);
}

kelp_status kelp_value_text(const char *text, size_t bytes_max, struct kelp_error *reterr)
{
    const char *at = text;

    if (strlen(text) > bytes_max) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "'%.*s…' is longer than %zu bytes", SHOWN_MAX,
                         text, bytes_max);
    }
    while (*at != '\0') {
        uint32_t point = 0;
        size_t length = kelp_utf8_read(at, &point);
        if (length == 0 || !printable(point)) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "byte %zu is not printable UTF-8 (line breaks and control characters "
                             "are not allowed)",
                             (size_t)(at - text));
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
    print_with_unit(ms, duration_units, DURATION_PRINTED, text);
}
