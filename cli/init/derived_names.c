#include "cli/init/derived_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define NAME_BYTES (KELP_CSV_COLUMN_NAME_MAX + 1)

static bool is_word(const char *name)
{
    bool word = isalpha((unsigned char)name[0]) || name[0] == '_';
    for (size_t i = 0; name[i] != '\0'; i++) {
        word = word && (isalnum((unsigned char)name[i]) || name[i] == '_');
    }
    return word;
}

/* A name with '_' for what a plain word may not have. */
static void plain_name(const char *name, char ret_name[NAME_BYTES])
{
    size_t bytes = strlen(name);
    bytes = bytes < NAME_BYTES ? bytes : NAME_BYTES - 1;
    for (size_t i = 0; i < bytes; i++) {
        ret_name[i] = (char)(isalnum((unsigned char)name[i]) ? name[i] : '_');
    }
    ret_name[bytes] = '\0';
}

/* Its plain name can stand for a column: it begins with a letter, and no other column has it. */
static bool has_plain_name(const struct kelp_table_facts *facts, uint32_t column,
                           char ret_name[NAME_BYTES])
{
    char other[NAME_BYTES];
    plain_name(facts->columns[column].name, ret_name);
    bool fits = is_word(ret_name);
    for (uint32_t i = 0; i < facts->column_count && fits; i++) {
        plain_name(facts->columns[i].name, other);
        fits = i == column || strcmp(ret_name, other) != 0;
    }
    return fits;
}

static bool is_taken(const struct kelp_table_facts *facts, const char *name)
{
    for (uint32_t i = 0; i < facts->column_count; i++) {
        if (strcmp(facts->columns[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

void kelp_derived_name(const struct kelp_table_facts *facts, uint32_t column, const char *suffix,
                       char ret_name[NAME_BYTES])
{
    char name[NAME_BYTES];
    bool plain = has_plain_name(facts, column, name) && strlen(name) + strlen(suffix) < NAME_BYTES;
    if (plain) {
        memcpy(ret_name, name, strlen(name));
        memcpy(ret_name + strlen(name), suffix, strlen(suffix) + 1);
    }
    for (uint32_t other = 0; !plain || is_taken(facts, ret_name); other++, plain = true) {
        (void)snprintf(ret_name, NAME_BYTES, "column_%u%s%.*s", column + 1, suffix, (int)other,
                       "________________");
    }
}

void kelp_derived_word_suffix(const struct kelp_column_facts *column, uint32_t word,
                              char ret_suffix[NAME_BYTES])
{
    const char *text = kelp_words_at(&column->words, word);
    char name[NAME_BYTES + 1];
    (void)snprintf(name, sizeof(name), "_%s", text);
    if (is_word(name) && strlen(text) <= 20) {
        (void)snprintf(ret_suffix, NAME_BYTES, "_is_%s", text);
    } else {
        (void)snprintf(ret_suffix, NAME_BYTES, "_is_word_%u", word + 1);
    }
}

void kelp_expression_column_text(const char *name, char ret_text[NAME_BYTES + 2])
{
    static const char *const reserved[] = {
        "and",  "or",  "not",   "pi",   "seconds", "minute", "hour", "day", "weekday", "month",
        "year", "abs", "floor", "sqrt", "log",     "sin",    "cos",  "min", "max",     "missing"};
    bool plain = is_word(name);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(reserved); i++) {
        plain = plain && strcmp(name, reserved[i]) != 0;
    }
    (void)snprintf(ret_text, NAME_BYTES + 2, plain ? "%s" : "`%s`", name);
}

void kelp_expression_literal_text(const char *word, char ret_text[NAME_BYTES + 2])
{
    (void)snprintf(ret_text, NAME_BYTES + 2, strchr(word, '\'') ? "\"%s\"" : "'%s'", word);
}
