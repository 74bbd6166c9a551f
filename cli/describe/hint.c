#include "cli/describe/hint.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* By the beginning of a placeholder; the first that fits. */
static const struct {
    const char *begins, *hint;
} kinds[] = {
    {"KEY=VALUE", "set"}, {"KEY", "key"},       {"VERB", "verb"},
    {"RUN", "run"},       {"JOB.yaml", "yaml"}, {"FILE.yaml", "yaml"},
    {"FILE", "file"},     {"DIR", "folder"},    {"FOLDER", "folder"},
};

static void add(char hint[KELP_HINT_MAX + 1], const char *before, const char *word, size_t bytes)
{
    size_t used = strlen(hint);

    (void)snprintf(hint + used, KELP_HINT_MAX + 1 - used, "%s%s%.*s", used > 0 ? " " : "", before,
                   (int)bytes, word);
}

/* One of the words between two '|': literally what to type when it has a small first letter. */
static void add_word(char hint[KELP_HINT_MAX + 1], const char *word, size_t bytes)
{
    if (bytes > 0 && (islower((unsigned char)word[0]) || word[0] == '-')) {
        add(hint, "=", word, bytes);
        return;
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(kinds); i++) {
        if (strncmp(word, kinds[i].begins, strlen(kinds[i].begins)) == 0) {
            add(hint, "", kinds[i].hint, strlen(kinds[i].hint));
            return;
        }
    }
}

static void read_words(const char *text, size_t bytes, char hint[KELP_HINT_MAX + 1])
{
    hint[0] = '\0';
    for (const char *end = text + bytes; text < end;) {
        const char *bar = memchr(text, '|', (size_t)(end - text));
        const char *stop = bar ? bar : end;
        add_word(hint, text, (size_t)(stop - text));
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
        read_words(option->placeholder, strlen(option->placeholder), hint);
    } else if (option->type != KELP_OPTION_FLAG) {
        add(hint, "", "none", 4);
    }
}

bool kelp_hint_positional(const char **text, struct kelp_hint_position *ret_position)
{
    const char *word = *text + strspn(*text, " ");
    size_t bytes = strcspn(word, " ");

    *text = word + bytes;
    if (bytes == 0) {
        return false;
    }
    ret_position->repeats = bytes > 3 && strncmp(word + bytes - 3, "...", 3) == 0;
    bytes -= ret_position->repeats ? 3 : 0;
    if (word[0] == '[') {
        word++;
        bytes -= 2;
    }
    read_words(word, bytes, ret_position->hint);
    return true;
}
