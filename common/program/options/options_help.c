#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/value.h"
#include "common/program/options/options.h"

#define HELP_COLUMN 30
#define HELP_WIDTH  80

const char *kelp_option_group(const struct kelp_option *option)
{
    return option->group ? option->group : "Options";
}

void kelp_option_value(const struct kelp_option *option, char text[KELP_OPTION_VALUE_MAX + 1])
{
    const size_t text_bytes = KELP_OPTION_VALUE_MAX + 1;
    static const char *const by_type[] = {
        [KELP_OPTION_FLAG] = "",         [KELP_OPTION_TEXT] = "TEXT",
        [KELP_OPTION_INTEGER] = "N",     [KELP_OPTION_DURATION] = "DURATION",
        [KELP_OPTION_RANGE] = "MIN:MAX", [KELP_OPTION_CHOICE] = "",
    };
    size_t used = 0;

    text[0] = '\0';
    if (option->placeholder || option->type != KELP_OPTION_CHOICE) {
        (void)snprintf(text, text_bytes, "%s",
                       option->placeholder ? option->placeholder : by_type[option->type]);
        return;
    }
    for (size_t i = 0; option->choices[i] && used < text_bytes; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", i > 0 ? "|" : "",
                                 option->choices[i]);
    }
}

/* "1 to 64", "1ms to 10m", or nothing for types without a range. */
static void bounds(const struct kelp_option *option, char *text, size_t text_bytes)
{
    char low[KELP_VALUE_TEXT_MAX], high[KELP_VALUE_TEXT_MAX];

    text[0] = '\0';
    if (option->max == 0) {
        return;
    }
    if (option->type == KELP_OPTION_INTEGER || option->type == KELP_OPTION_RANGE) {
        (void)snprintf(low, sizeof(low), "%" PRIu64, option->min);
        (void)snprintf(high, sizeof(high), "%" PRIu64, option->max);
    } else if (option->type == KELP_OPTION_DURATION) {
        kelp_value_print_duration(option->min, low);
        kelp_value_print_duration(option->max, high);
    } else {
        return;
    }
    (void)snprintf(text, text_bytes, "%s to %s", low, high);
}

/* Print text from `column` on, broken at spaces so that lines stay within HELP_WIDTH. */
static void print_wrapped(FILE *out, const char *text)
{
    size_t column = HELP_COLUMN;

    while (*text != '\0') {
        size_t word = strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + word > HELP_WIDTH) {
            (void)fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            (void)fputc(' ', out);
            column++;
        }
        (void)fprintf(out, "%.*s", (int)word, text);
        column += word;
        text += word + strspn(text + word, " ");
    }
    (void)fputc('\n', out);
}

static void print_option(FILE *out, const char *name, char letter, const char *value,
                         const char *help)
{
    char head[KELP_OPTION_VALUE_MAX + 80] = "";
    char letter_text[8] = "    ";

    if (letter != '\0') {
        (void)snprintf(letter_text, sizeof(letter_text), "-%c, ", letter);
    }
    (void)snprintf(head, sizeof(head), "  %s--%s%s%s", letter_text, name,
                   value[0] != '\0' ? " " : "", value);
    if (strlen(head) + 2 > HELP_COLUMN) {
        (void)fprintf(out, "%s\n%*s", head, HELP_COLUMN, "");
    } else {
        (void)fprintf(out, "%-*s", HELP_COLUMN, head);
    }
    print_wrapped(out, help);
}

/* Append a note, separated from the one before. */
static void note(char text[KELP_OPTION_NOTES_MAX + 1], const char *before, const char *what)
{
    size_t used = strlen(text);

    (void)snprintf(text + used, KELP_OPTION_NOTES_MAX + 1 - used, "%s%s%s", used > 0 ? "; " : "",
                   before, what);
}

void kelp_option_notes(const struct kelp_option *option, char text[KELP_OPTION_NOTES_MAX + 1])
{
    char range[2 * KELP_VALUE_TEXT_MAX + 8];

    text[0] = '\0';
    bounds(option, range, sizeof(range));
    if (range[0] != '\0') {
        note(text, "", range);
    }
    if (option->required) {
        note(text, "", "required");
    }
    if (option->repeatable) {
        note(text, "", "may be repeated");
    }
    if (option->default_text && option->default_text[0] != '\0' &&
        option->type != KELP_OPTION_FLAG) {
        note(text, "default ", option->default_text);
    }
}

static void print_listed(FILE *out, const struct kelp_option *option)
{
    char value[KELP_OPTION_VALUE_MAX + 1], notes[KELP_OPTION_NOTES_MAX + 1], help[768];

    kelp_option_value(option, value);
    kelp_option_notes(option, notes);
    if (notes[0] != '\0') {
        (void)snprintf(help, sizeof(help), "%s (%s)", option->help, notes);
    } else {
        (void)snprintf(help, sizeof(help), "%s", option->help);
    }
    print_option(out, option->name, option->letter, value, help);
}

bool kelp_option_first_of_group(const struct kelp_program *program, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (strcmp(kelp_option_group(&program->options[i]),
                   kelp_option_group(&program->options[index])) == 0) {
            return false;
        }
    }
    return true;
}

void kelp_options_help(const struct kelp_program *program, FILE *out)
{
    (void)fprintf(out, "Usage: %s [options]%s%s\n\n%s: %s.\n", program->name,
                  program->positional ? " " : "", program->positional ? program->positional : "",
                  program->name, program->summary);
    for (size_t i = 0; i < program->option_count; i++) {
        const char *group = kelp_option_group(&program->options[i]);
        if (!kelp_option_first_of_group(program, i)) {
            continue;
        }
        (void)fprintf(out, "\n%s:\n", group);
        for (size_t j = i; j < program->option_count; j++) {
            if (strcmp(kelp_option_group(&program->options[j]), group) == 0) {
                print_listed(out, &program->options[j]);
            }
        }
    }
    (void)fputs("\nHelp:\n", out);
    print_option(out, "help", 'h', "", "print this and exit");
    print_option(out, "version", '\0', "", "print the version and exit");
    (void)fputs("\nOptions can also be set in the environment, as KELP_<OPTION> in upper case "
                "with\nunderscores (except repeatable ones); the command line takes precedence.\n",
                out);
    if (program->examples) {
        (void)fprintf(out, "\nExamples:\n%s", program->examples);
    }
}
