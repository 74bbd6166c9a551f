#include "cli/describe/hint.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* By the beginning of a placeholder; the first that fits. */
static const struct {
    const char *begins, *hint;
} kinds[] = {
    {"KEY=VALUE", "set"}, {"KEY", "key"},        {"VERB", "verb"},   {"RUN", "run"},
    {"JOB.yaml", "yaml"}, {"FILE.yaml", "yaml"}, {"SCRIPT", "file"}, {"FILE", "file"},
    {"DIR", "folder"},    {"FOLDER", "folder"},
};

static void add(char hint[KELP_HINT_MAX + 1], const char *before, const char *word, size_t bytes)
{
    size_t used = strlen(hint);

    (void)snprintf(hint + used, KELP_HINT_MAX + 1 - used, "%s%s%.*s", used > 0 ? " " : "", before,
                   (int)bytes, word);
}

/* Literally what to type: "show", "newest", and not "step=N:DO". */
static bool is_literal(const char *word, size_t bytes)
{
    return bytes > 0 && strspn(word, "abcdefghijklmnopqrstuvwxyz-.") >= bytes;
}

/* One of the words between two '|'. A NAME is that of a checkpoint where checkpoints are named. */
static void add_word(char hint[KELP_HINT_MAX + 1], const char *word, size_t bytes,
                     bool names_checkpoints)
{
    if (is_literal(word, bytes)) {
        add(hint, "=", word, bytes);
        return;
    }
    if (names_checkpoints && bytes == 4 && memcmp(word, "NAME", 4) == 0) {
        add(hint, "", "checkpoint", 10);
        return;
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(kinds); i++) {
        if (strncmp(word, kinds[i].begins, strlen(kinds[i].begins)) == 0) {
            add(hint, "", kinds[i].hint, strlen(kinds[i].hint));
            return;
        }
    }
}

static void read_words(const char *text, size_t bytes, bool names_checkpoints,
                       char hint[KELP_HINT_MAX + 1])
{
    hint[0] = '\0';
    for (const char *end = text + bytes; text < end;) {
        const char *bar = memchr(text, '|', (size_t)(end - text));
        const char *stop = bar ? bar : end;
        add_word(hint, text, (size_t)(stop - text), names_checkpoints);
        text = stop + 1;
    }
    if (hint[0] == '\0') {
        add(hint, "", "none", 4);
    }
}

void kelp_hint_option(const struct kelp_option *option, char hint[KELP_HINT_MAX + 1])
{
    hint[0] = '\0';
    if (option->type == KELP_OPTION_CHOICE) {
        for (size_t i = 0; option->choices[i]; i++) {
            add(hint, "=", option->choices[i], strlen(option->choices[i]));
        }
    } else if (option->type == KELP_OPTION_TEXT && option->placeholder) {
        read_words(option->placeholder, strlen(option->placeholder),
                   strcmp(option->name, "checkpoint") == 0, hint);
    } else if (option->type != KELP_OPTION_FLAG) {
        add(hint, "", "none", 4);
    }
}

bool kelp_hint_positional(const struct kelp_program *program, const char **text,
                          struct kelp_hint_position *ret_position)
{
    static const char checkpoints[] = "kelp checkpoint";
    const char *word = *text + strspn(*text, " ");
    size_t bytes = strcspn(word, " ");

    *text = word + bytes;
    if (bytes == 0) {
        return false;
    }
    /* "[NAME|FOLDER]...", "[FOLDER...]", "NAME..." */
    ret_position->repeats = false;
    while (bytes > 0 && strchr(".]", word[bytes - 1])) {
        ret_position->repeats = ret_position->repeats || word[bytes - 1] == '.';
        bytes--;
    }
    if (bytes > 0 && word[0] == '[') {
        word++;
        bytes--;
    }
    read_words(word, bytes, strncmp(program->name, checkpoints, strlen(checkpoints)) == 0,
               ret_position->hint);
    return true;
}
