#include "cli/describe/completion_tables.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "cli/describe/hint.h"
#include "common/job/job_words.h"

#define POSITIONS_MAX 9 /* the scripts take a later one for this one */

/* A table is a function that prints lines, by the one argument that it is given. */
static const struct grammar {
    const char *begin_before, *begin_after; /* the function's name in between */
    const char *pattern_before, *pattern_or, *pattern_after;
    const char *case_end;
    const char *end;
    const char *apostrophe, *backslash; /* within single quotes */
} grammars[] = {
    [KELP_SHELL_POSIX] = {.begin_before = "",
                          .begin_after = "() {\n    case \"$1\" in\n",
                          .pattern_before = "    ",
                          .pattern_or = " | ",
                          .pattern_after = ")\n",
                          .case_end = "        ;;\n",
                          .end = "    esac\n}\n",
                          .apostrophe = "'\\''",
                          .backslash = "\\"},
    [KELP_SHELL_FISH] = {.begin_before = "function ",
                         .begin_after = "\n    switch \"$argv[1]\"\n",
                         .pattern_before = "        case ",
                         .pattern_or = " ",
                         .pattern_after = "\n",
                         .case_end = "",
                         .end = "    end\nend\n",
                         .apostrophe = "\\'",
                         .backslash = "\\\\"},
};

struct writer {
    const struct grammar *grammar;
    FILE *out;
    uint32_t patterns; /* of the case that begins */
};

static void begin(const struct writer *writer, const char *name)
{
    (void)fprintf(writer->out, "%s%s%s", writer->grammar->begin_before, name,
                  writer->grammar->begin_after);
}

static void end(const struct writer *writer)
{
    (void)fputs(writer->grammar->end, writer->out);
}

static void put_quoted(const struct writer *writer, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            (void)fputs(writer->grammar->apostrophe, writer->out);
        } else if (*text == '\\') {
            (void)fputs(writer->grammar->backslash, writer->out);
        } else {
            (void)fputc(*text, writer->out);
        }
    }
}

/* A pattern of the case that begins: PATH, or PATH WHAT. */
static void pattern(struct writer *writer, const char *path, const char *what)
{
    (void)fprintf(writer->out, "%s'%s%s%s'",
                  writer->patterns++ == 0 ? writer->grammar->pattern_before
                                          : writer->grammar->pattern_or,
                  path, what[0] != '\0' ? " " : "", what);
}

static void patterns_end(struct writer *writer)
{
    (void)fputs(writer->grammar->pattern_after, writer->out);
    writer->patterns = 0;
}

/* WORD, or WORD, a tab and what it means. */
static void line(const struct writer *writer, const char *dashes, const char *word,
                 const char *meaning)
{
    (void)fprintf(writer->out, "        printf '%%s\\n' '%s", dashes);
    put_quoted(writer, word);
    if (meaning) {
        (void)fputc('\t', writer->out);
        put_quoted(writer, meaning);
    }
    (void)fputs("'\n", writer->out);
}

static void case_end(const struct writer *writer)
{
    (void)fputs(writer->grammar->case_end, writer->out);
}

/* `kelp help VERB` is no verb of the tables. */
static bool has_help(const struct kelp_page *page)
{
    return page->verbs && !page->of;
}

static void print_verbs(struct writer *writer, const struct kelp_page_list *list)
{
    begin(writer, "_kelp_verbs");
    for (size_t i = 0; i < list->count; i++) {
        const struct kelp_page *page = &list->pages[i];
        if (!page->verbs) {
            continue;
        }
        pattern(writer, page->program->name, "");
        patterns_end(writer);
        for (size_t j = 0; page->verbs[j]; j++) {
            line(writer, "", page->verbs[j]->name, page->verbs[j]->summary);
        }
        if (has_help(page)) {
            line(writer, "", "help", "describe a verb");
        }
        case_end(writer);
    }
    end(writer);
}

static void print_options(struct writer *writer, const struct kelp_page_list *list)
{
    begin(writer, "_kelp_options");
    for (size_t i = 0; i < list->count; i++) {
        const struct kelp_program *program = list->pages[i].program;
        pattern(writer, program->name, "");
        patterns_end(writer);
        for (size_t j = 0; j < program->option_count; j++) {
            const struct kelp_option *option = &program->options[j];
            const char letter[2] = {option->letter, '\0'};
            line(writer, "--", option->name, option->help);
            if (letter[0] != '\0') {
                line(writer, "-", letter, option->help);
            }
        }
        line(writer, "--", "help", "print a summary and exit");
        line(writer, "--", "version", "print version, commit and libraries, and exit");
        case_end(writer);
    }
    end(writer);
}

static void print_option_hints(struct writer *writer, const struct kelp_program *program)
{
    for (size_t i = 0; i < program->option_count; i++) {
        const struct kelp_option *option = &program->options[i];
        char hint[KELP_HINT_MAX + 1], what[80];
        kelp_hint_option(option, hint);
        if (hint[0] == '\0') {
            continue;
        }
        (void)snprintf(what, sizeof(what), "--%s", option->name);
        pattern(writer, program->name, what);
        if (option->letter != '\0') {
            (void)snprintf(what, sizeof(what), "-%c", option->letter);
            pattern(writer, program->name, what);
        }
        patterns_end(writer);
        line(writer, "", hint, NULL);
        case_end(writer);
    }
}

static void print_positional_hints(struct writer *writer, const struct kelp_program *program)
{
    struct kelp_hint_position position = {.repeats = false};
    const char *text = program->positional;

    for (uint32_t i = 1; text && kelp_hint_positional(program, &text, &position); i++) {
        for (uint32_t at = i; at <= (position.repeats ? POSITIONS_MAX : i); at++) {
            char what[12];
            (void)snprintf(what, sizeof(what), "%" PRIu32, at);
            pattern(writer, program->name, what);
        }
        patterns_end(writer);
        line(writer, "", position.hint, NULL);
        case_end(writer);
    }
}

static void print_hints(struct writer *writer, const struct kelp_page_list *list)
{
    begin(writer, "_kelp_hint");
    for (size_t i = 0; i < list->count; i++) {
        print_option_hints(writer, list->pages[i].program);
        print_positional_hints(writer, list->pages[i].program);
        if (has_help(&list->pages[i])) {
            pattern(writer, list->pages[i].program->name, "help 1");
            patterns_end(writer);
            line(writer, "", "verb", NULL);
            case_end(writer);
        }
    }
    end(writer);
}

static void print_keys(struct writer *writer)
{
    struct kelp_job_words words;

    begin(writer, "_kelp_keys");
    pattern(writer, "", "");
    patterns_end(writer);
    for (size_t i = 0; kelp_job_words(i, &words); i++) {
        line(writer, "", words.name, words.help);
    }
    case_end(writer);
    end(writer);
}

static void print_choices(struct writer *writer)
{
    struct kelp_job_words words;

    begin(writer, "_kelp_choices");
    for (size_t i = 0; kelp_job_words(i, &words); i++) {
        if (!words.choices) {
            continue;
        }
        pattern(writer, words.name, "");
        patterns_end(writer);
        for (size_t j = 0; words.choices[j]; j++) {
            line(writer, "", words.choices[j], NULL);
        }
        case_end(writer);
    }
    end(writer);
}

void kelp_completion_tables_print(const struct kelp_page_list *list, enum kelp_shell shell,
                                  FILE *out)
{
    struct writer writer = {.grammar = &grammars[shell], .out = out};

    print_verbs(&writer, list);
    print_options(&writer, list);
    print_hints(&writer, list);
    print_keys(&writer);
    print_choices(&writer);
}
