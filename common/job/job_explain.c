/* Explains a key on the command line, from the table of job keys. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/text.h"
#include "common/job/job_options.h"

#define LINE_WIDTH   100
#define NAME_COLUMN  28
#define VALUE_COLUMN 18

/* Does the key itself, or its section, have that name? */
static bool is_named(const struct kelp_job_key *key, const char *name)
{
    size_t bytes = strlen(name);

    return strncmp(key->name, name, bytes) == 0 &&
           (key->name[bytes] == '\0' || key->name[bytes] == '.');
}

/* The table's texts have Markdown backticks for the reference page. */
static void print_plain(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text != '`') {
            (void)fputc(*text, out);
        }
    }
}

/* Indent, and break at spaces. */
static void print_lines(FILE *out, const char *text)
{
    int column = 0;

    while (*text != '\0') {
        int word = (int)strcspn(text, " ");
        if (column == 0 || column + 1 + word > LINE_WIDTH) {
            column = fprintf(out, "%s    %.*s", column > 0 ? "\n" : "", word, text);
        } else {
            column += fprintf(out, " %.*s", word, text);
        }
        text += word;
        text += *text == ' ';
    }
    (void)fputc('\n', out);
}

/* Print the choices of only_with with which the key has a meaning. */
static void print_only_with(FILE *out, const struct kelp_job_key *key, const char *before,
                            const char *between)
{
    const struct kelp_job_key *other = &kelp__job_keys[kelp__job_key_find(key->only_with)];
    const char *separator = before;

    for (uint32_t i = 0; other->choices[i]; i++) {
        if (key->only_values & (1u << i)) {
            (void)fprintf(out, "%s%s", separator, other->choices[i]);
            separator = between;
        }
    }
}

static const char *default_of(const struct kelp_job_key *key)
{
    return key->required ? "required" : key->default_text[0] == '\0' ? "empty" : key->default_text;
}

static const char *on_resume(const struct kelp_job_key *key)
{
    static const char *const changes[] = {[KELP_JOB_STAYS] = "On resume: it must stay as it is.",
                                          [KELP_JOB_CHANGES] = "On resume: it may differ.",
                                          [KELP_JOB_GROWS] = "On resume: it may grow."};

    return changes[key->change];
}

static void print_key(FILE *out, const struct kelp_job_key *key, const char *allowed)
{
    (void)fprintf(out, "%s: %s; %s%s\n", key->name, allowed, key->required ? "" : "default ",
                  default_of(key));
    struct kelp_text text;
    char *help = NULL;
    size_t bytes;
    if (kelp_text_open(&text, NULL) != KELP_OK) {
        return; /* the caller's text fails, too */
    }
    print_plain(text.out, key->help);
    (void)fputs(".", text.out);
    if (key->only_with) {
        (void)fprintf(text.out, " Only with %s", key->only_with);
        print_only_with(text.out, key, " ", " or ");
        (void)fputs(".", text.out);
    }
    if (kelp_text_close(&text, &help, &bytes, NULL) == KELP_OK) {
        print_lines(out, help);
        free(help);
    }
    (void)fprintf(out, "    %s\n", on_resume(key));
}

/* "train.lr 0.005 Learning rate", cut at the line's width. */
static void print_row(FILE *out, const struct kelp_job_key *key)
{
    int used = fprintf(out, "  %-*s %-*s ", NAME_COLUMN, key->name, VALUE_COLUMN, default_of(key));
    const char *end = strstr(key->help, ". ");
    size_t bytes = end ? (size_t)(end - key->help) : strlen(key->help);

    for (const char *c = key->help; bytes > 0 && used < LINE_WIDTH; c++, bytes--) {
        used += *c != '`' ? fputc(*c, out) != EOF : 0;
    }
    (void)fputs(bytes > 0 ? "…\n" : "\n", out);
}

static void print_json(FILE *out, const struct kelp_job_key *key, const char *allowed)
{
    static const char *const changes[] = {[KELP_JOB_STAYS] = "stays",
                                          [KELP_JOB_CHANGES] = "may change",
                                          [KELP_JOB_GROWS] = "may grow"};

    kelp_json_print_member(out, "{", "key", key->name);
    kelp_json_print_member(out, ",", "allowed", allowed);
    if (!key->required) {
        kelp_json_print_member(out, ",", "default", key->default_text);
    }
    kelp_json_print_member(out, ",", "on_resume", changes[key->change]);
    if (key->only_with) {
        kelp_json_print_member(out, ",", "only_with", key->only_with);
        (void)fputs(",\"only_values\":[", out);
        print_only_with(out, key, "\"", "\",\"");
        (void)fputs("\"]", out);
    }
    (void)fputs(",\"help\":\"", out);
    print_plain(out, key->help); /* the table has no quotes or line breaks */
    (void)fputs("\"}", out);
}

static void cut_backticks(char *text)
{
    char *end = text;

    for (; *text != '\0'; text++) {
        if (*text != '`') {
            *end++ = *text;
        }
    }
    *end = '\0';
}

/* The key's values, owned; NULL when out of memory. */
static char *allowed_of(const struct kelp_job_key *key)
{
    struct kelp_text text;
    char *bytes = NULL;
    size_t count;

    if (kelp_text_open(&text, NULL) == KELP_OK) {
        kelp__job_key_print_allowed(text.out, key);
        if (kelp_text_close(&text, &bytes, &count, NULL) != KELP_OK) {
            return NULL;
        }
        cut_backticks(bytes);
    }
    return bytes;
}

enum form { FORM_ROWS, FORM_KEYS, FORM_JSON };

static kelp_status print_one(FILE *out, const struct kelp_job_key *key, enum form form, bool first)
{
    char *allowed = allowed_of(key);

    if (!allowed) {
        return KELP_ERR_NO_MEMORY;
    }
    if (form == FORM_JSON) {
        (void)fputs(first ? "" : ",\n ", out);
        print_json(out, key, allowed);
    } else if (form == FORM_KEYS) {
        (void)fputs(first ? "" : "\n", out);
        print_key(out, key, allowed);
    } else {
        print_row(out, key);
    }
    free(allowed);
    return KELP_OK;
}

kelp_status kelp_job_explain(const char *name, bool json, char **ret_text,
                             struct kelp_error *reterr)
{
    enum form form = json ? FORM_JSON : name ? FORM_KEYS : FORM_ROWS;
    struct kelp_text text;
    size_t count = 0, bytes;
    kelp_status status = kelp_text_open(&text, reterr);

    if (status != KELP_OK) {
        return status;
    }
    (void)fputs(json ? "[" : "", text.out);
    for (size_t i = 0; i < kelp__job_key_count && status == KELP_OK; i++) {
        if (!name || is_named(&kelp__job_keys[i], name)) {
            status = print_one(text.out, &kelp__job_keys[i], form, count++ == 0);
        }
    }
    (void)fputs(json ? "]\n" : "", text.out);
    if (status != KELP_OK || count == 0) {
        kelp_text_discard(&text);
        return count == 0 ? kelp__job_key_unknown(name, reterr)
                          : kelp_fail(reterr, status, "out of memory");
    }
    return kelp_text_close(&text, ret_text, &bytes, reterr);
}
