#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/value.h"
#include "common/job/job_options.h"

static kelp_status read_name(const struct kelp_job_key *key, const char *text,
                             struct kelp_error *reterr)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "-_.";

    if (text[0] == '\0' || strlen(text) >= key->bytes || strspn(text, allowed) != strlen(text) ||
        text[0] == '-' || text[0] == '.') {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "'%.64s' is not 1 to %zu letters, digits, '-', '_' or '.', the first one "
                         "a letter, digit or '_'",
                         text, key->bytes - 1);
    }
    return KELP_OK;
}

/* The next entry of "[a, b, c]" or "a, b, c", without surrounding blanks. NULL at the end. */
static const char *next_entry(const char *text, char *entry, size_t entry_bytes)
{
    text += strspn(text, " ");
    size_t length = strcspn(text, ",");
    size_t trimmed = length;
    while (trimmed > 0 && text[trimmed - 1] == ' ') {
        trimmed--;
    }
    (void)snprintf(entry, entry_bytes, "%.*s", (int)(trimmed < entry_bytes ? trimmed : 0), text);
    return text[length] == ',' ? text + length + 1 : NULL;
}

#define LIST_BYTES_MAX 1023

/* "[a, b]" or "a, b" to "a, b"; *ret_rest is the start of the first entry, NULL if there is
 * none. */
static kelp_status open_list(const char *text, char inner[LIST_BYTES_MAX + 1],
                             const char **ret_rest, struct kelp_error *reterr)
{
    size_t bytes = strlen(text);
    bool bracketed = bytes >= 2 && text[0] == '[' && text[bytes - 1] == ']';

    if (bytes > LIST_BYTES_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "the list is longer than %d bytes",
                         LIST_BYTES_MAX);
    }
    bytes -= bracketed ? 2 : 0;
    memcpy(inner, text + bracketed, bytes);
    inner[bytes] = '\0';
    *ret_rest = inner[strspn(inner, " ")] != '\0' ? inner : NULL;
    return KELP_OK;
}

/* Read at most count_max whole numbers; *ret_count: how many. */
static kelp_status read_list(const struct kelp_job_key *key, const char *text, uint64_t *values,
                             size_t count_max, size_t *ret_count, struct kelp_error *reterr)
{
    char inner[LIST_BYTES_MAX + 1], entry[32];
    const char *rest = NULL;
    size_t count = 0;

    kelp_status status = open_list(text, inner, &rest, reterr);
    while (status == KELP_OK && rest) {
        if (count == count_max) {
            return kelp_fail(reterr, KELP_ERR_INVALID, "more than %zu entries", count_max);
        }
        rest = next_entry(rest, entry, sizeof(entry));
        status = kelp_value_u64(entry, key->min, key->max, &values[count++], reterr);
    }
    *ret_count = count;
    return status;
}

/*
 * Read one entry of a list of texts, quoted ("a, \\"b\\"") or plain up to a comma outside
 * parentheses, and append it at *end. Returns what follows; NULL: malformed.
 */
static const char *read_entry(const char *text, char **end, const char *limit)
{
    size_t depth = 0;
    char *first = *end;

    if (*text == '"') {
        for (text++; *text != '"'; text++) {
            text += *text == '\\';
            if (*text == '\0' || *end == limit) {
                return NULL;
            }
            *(*end)++ = *text;
        }
        return text + 1 + strspn(text + 1, " ");
    }
    for (; *text != '\0' && (*text != ',' || depth > 0); text++) {
        depth += *text == '(';
        depth -= *text == ')' && depth > 0;
        if (*end == limit) {
            return NULL;
        }
        *(*end)++ = *text;
    }
    while (*end > first && (*end)[-1] == ' ') {
        (*end)--;
    }
    return text;
}

/* Convert "[a, b]", "a, b" or "[]" to texts separated by line feeds. */
static kelp_status read_texts(const struct kelp_job_key *key, const char *text, char *field,
                              struct kelp_error *reterr)
{
    char inner[KELP_JOB_TEXTS_MAX + 1], joined[KELP_JOB_TEXTS_MAX + 1];
    size_t bytes = strlen(text);
    bool bracketed = bytes >= 2 && text[0] == '[' && text[bytes - 1] == ']';
    kelp_status status = kelp_value_text(text, sizeof(inner) - 1, reterr);

    assert(key->bytes == sizeof(joined));
    if (status != KELP_OK) {
        return status;
    }
    (void)snprintf(inner, sizeof(inner), "%.*s", (int)(bracketed ? bytes - 2 : bytes),
                   text + bracketed);
    char *end = joined;
    for (const char *rest = inner + strspn(inner, " "); *rest != '\0';) {
        const char *first = end;
        rest = read_entry(rest, &end, joined + sizeof(joined) - 2);
        if (!rest || (*rest != '\0' && *rest != ',') || end == first) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "'%.64s' is not a list of texts: [a, b], each one in double quotes "
                             "where it holds a comma or a bracket",
                             text);
        }
        if (*rest == ',') {
            rest += 1 + strspn(rest + 1, " ");
            *end++ = '\n';
            if (*rest == '\0') {
                return kelp_fail(reterr, KELP_ERR_INVALID, "'%.64s': the last text is empty", text);
            }
        }
    }
    *end = '\0';
    memset(field, 0, key->bytes);
    memcpy(field, joined, (size_t)(end - joined) + 1);
    return KELP_OK;
}

static kelp_status read_numbers(const struct kelp_job_key *key, const char *text,
                                struct kelp_job *job, struct kelp_error *reterr)
{
    char inner[LIST_BYTES_MAX + 1], entry[KELP_VALUE_TEXT_MAX];
    double values[KELP_JOB_LIST_MAX] = {0};
    const char *rest = NULL;
    uint32_t count = 0;

    kelp_status status = open_list(text, inner, &rest, reterr);
    while (status == KELP_OK && rest) {
        if (count == KELP_JOB_LIST_MAX) {
            return kelp_fail(reterr, KELP_ERR_INVALID, "more than %d entries", KELP_JOB_LIST_MAX);
        }
        rest = next_entry(rest, entry, sizeof(entry));
        status =
            kelp_value_double(entry, key->number_min, key->number_max, &values[count++], reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    memcpy((char *)job + key->offset, values, sizeof(values));
    memcpy((char *)job + key->count_offset, &count, sizeof(count));
    return KELP_OK;
}

static kelp_status read_widths(const struct kelp_job_key *key, const char *text,
                               struct kelp_job *job, struct kelp_error *reterr)
{
    uint64_t values[KELP_JOB_LIST_MAX];
    uint32_t widths[KELP_JOB_LIST_MAX] = {0};
    size_t count = 0;
    kelp_status status = read_list(key, text, values, KELP_JOB_LIST_MAX, &count, reterr);

    if (status != KELP_OK) {
        return status;
    }
    for (size_t i = 0; i < count; i++) {
        widths[i] = (uint32_t)values[i];
    }
    uint32_t short_count = (uint32_t)count;
    memcpy((char *)job + key->offset, widths, sizeof(widths));
    memcpy((char *)job + key->count_offset, &short_count, sizeof(short_count));
    return KELP_OK;
}

static kelp_status read_split(const struct kelp_job_key *key, const char *text,
                              struct kelp_job *job, struct kelp_error *reterr)
{
    uint64_t values[3];
    size_t count = 0;
    kelp_status status = read_list(key, text, values, 3, &count, reterr);

    if (status == KELP_OK && count != 3) {
        status =
            kelp_fail(reterr, KELP_ERR_INVALID,
                      "%zu entries, not 3: rows of the training, validation and test split", count);
    }
    if (status == KELP_OK) {
        memcpy((char *)job + key->offset, values, sizeof(values));
    }
    return status;
}

static kelp_status read_text(const struct kelp_job_key *key, const char *text, char *field,
                             struct kelp_error *reterr)
{
    kelp_status status = key->type == KELP_JOB_NAME ? read_name(key, text, reterr)
                                                    : kelp_value_text(text, key->bytes - 1, reterr);

    if (status == KELP_OK) {
        memset(field, 0, key->bytes);
        memcpy(field, text, strlen(text) + 1);
    }
    return status;
}

/* Read a whole number of any integer type. */
static kelp_status read_whole(const struct kelp_job_key *key, const char *text, uint64_t *ret_value,
                              struct kelp_error *reterr)
{
    if (key->type == KELP_JOB_SIZE) {
        return kelp_value_size(text, key->min, key->max, ret_value, reterr);
    }
    if (key->type == KELP_JOB_DURATION) {
        return kelp_value_duration(text, key->min, key->max, ret_value, reterr);
    }
    return kelp_value_u64(text, key->min, key->max, ret_value, reterr);
}

static kelp_status read_u32(const struct kelp_job_key *key, const char *text, char *field,
                            struct kelp_error *reterr)
{
    uint64_t whole = 0;
    kelp_status status = read_whole(key, text, &whole, reterr);
    uint32_t value = (uint32_t)whole;

    if (status == KELP_OK) {
        memcpy(field, &value, sizeof(value));
    }
    return status;
}

static kelp_status read_i32(const struct kelp_job_key *key, const char *text, char *field,
                            struct kelp_error *reterr)
{
    int64_t whole = 0;
    kelp_status status = kelp_value_i64(text, -1, (int64_t)key->max, &whole, reterr);
    int32_t value = (int32_t)whole;

    if (status == KELP_OK) {
        memcpy(field, &value, sizeof(value));
    }
    return status;
}

/* Read the name of a sum in "val/NAME", if the key allows one; whether it exists is checked
 * later. */
static bool read_sum(const struct kelp_job_key *key, const char *text, struct kelp_job *job,
                     uint32_t *ret_index)
{
    static const char before[] = "val/";
    const char *name = text + sizeof(before) - 1;

    if (key->sum_offset == 0 || strncmp(text, before, sizeof(before) - 1) != 0 || name[0] == '\0' ||
        strlen(name) > KELP_JOB_SUM_NAME_MAX) {
        return false;
    }
    for (*ret_index = 0; key->choices[*ret_index]; (*ret_index)++) {
        if (strcmp(key->choices[*ret_index], text) == 0) {
            return false;
        }
    }
    memcpy((char *)job + key->sum_offset, name, strlen(name) + 1);
    return true;
}

static kelp_status read_choice(const struct kelp_job_key *key, const char *text,
                               struct kelp_job *job, struct kelp_error *reterr)
{
    char *field = (char *)job + key->offset;
    uint32_t index = 0;

    if (read_sum(key, text, job, &index)) {
        memcpy(field, &index, sizeof(index));
        return KELP_OK;
    }
    kelp_status status = kelp_value_choice(text, key->choices, &index, reterr);
    if (status == KELP_OK && key->sum_offset > 0) {
        memset((char *)job + key->sum_offset, 0, KELP_JOB_SUM_NAME_MAX + 1);
    }
    if (status == KELP_OK) {
        memcpy(field, &index, sizeof(index));
    }
    return status;
}

kelp_status kelp__job_key_read(const struct kelp_job_key *key, const char *text,
                               struct kelp_job *job, struct kelp_error *reterr)
{
    /* Fields have the types of the table, so the casts below are valid. */
    char *field = (char *)job + key->offset;

    switch (key->type) {
    case KELP_JOB_BOOL:
        return kelp_value_bool(text, (bool *)(void *)field, reterr);
    case KELP_JOB_U32:
    case KELP_JOB_SIZE:
    case KELP_JOB_DURATION:
        return read_u32(key, text, field, reterr);
    case KELP_JOB_U64:
        return read_whole(key, text, (uint64_t *)(void *)field, reterr);
    case KELP_JOB_I32:
        return read_i32(key, text, field, reterr);
    case KELP_JOB_DOUBLE:
        return kelp_value_double(text, key->number_min, key->number_max, (double *)(void *)field,
                                 reterr);
    case KELP_JOB_NAME:
    case KELP_JOB_TEXT:
    case KELP_JOB_PATH:
        return read_text(key, text, field, reterr);
    case KELP_JOB_RANGE:
        return kelp_value_range(text, (uint32_t)key->min, (uint32_t)key->max,
                                (struct kelp_range *)(void *)field, reterr);
    case KELP_JOB_CHOICE:
        return read_choice(key, text, job, reterr);
    case KELP_JOB_WIDTHS:
        return read_widths(key, text, job, reterr);
    case KELP_JOB_SPLIT:
        return read_split(key, text, job, reterr);
    case KELP_JOB_NUMBERS:
        return read_numbers(key, text, job, reterr);
    case KELP_JOB_TEXTS:
        return read_texts(key, text, field, reterr);
    }
    assert(false && "job key type");
    return KELP_ERR_INTERNAL;
}
