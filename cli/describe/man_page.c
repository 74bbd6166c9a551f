#include "cli/describe/man_page.h"

#include <ctype.h>
#include <string.h>

#include "cli/verbs.h"
#include "common/program/version.h"

/* Text of a page: what groff takes for its own is escaped, minus signs stay what they are. */
static void put(FILE *out, const char *text)
{
    bool line_begins = true;

    for (; *text != '\0'; text++) {
        if (line_begins && (*text == '.' || *text == '\'')) {
            (void)fputs("\\&", out);
        }
        if (*text == '\\') {
            (void)fputs("\\e", out);
        } else if (*text == '-') {
            (void)fputs("\\-", out);
        } else {
            (void)fputc(*text, out);
        }
        line_begins = *text == '\n';
    }
}

/* BEFORE TEXT AFTER, of which TEXT alone is escaped. */
static void put_between(FILE *out, const char *before, const char *text, const char *after)
{
    (void)fputs(before, out);
    put(out, text);
    (void)fputs(after, out);
}

/* A phrase as a sentence. */
static void put_sentence(FILE *out, const char *phrase)
{
    char first[2] = {(char)toupper((unsigned char)phrase[0]), '\0'};

    put(out, first);
    put_between(out, "", phrase + 1, ".\n");
}

static void print_option(const struct kelp_option *option, FILE *out)
{
    char value[KELP_OPTION_VALUE_MAX + 1], notes[KELP_OPTION_NOTES_MAX + 1];
    char variable[KELP_OPTION_VARIABLE_MAX + 1];

    kelp_option_value(option, value);
    kelp_option_notes(option, notes);
    kelp_option_variable(option, variable);
    (void)fputs(".TP\n", out);
    if (option->letter != '\0') {
        (void)fprintf(out, "\\fB\\-%c\\fR, ", option->letter);
    }
    put_between(out, "\\fB\\-\\-", option->name, "\\fR");
    if (value[0] != '\0') {
        put_between(out, " \\fI", value, "\\fR");
    }
    (void)fputc('\n', out);
    put(out, option->help);
    if (notes[0] != '\0') {
        put_between(out, " (", notes, ")");
    }
    (void)fputs(".\n", out);
    if (variable[0] != '\0') {
        put_between(out, "Environment: \\fB", variable, "\\fR.\n");
    }
}

static void print_options(const struct kelp_program *program, FILE *out)
{
    (void)fputs(".SH OPTIONS\n", out);
    for (size_t i = 0; i < program->option_count; i++) {
        const char *group = kelp_option_group(&program->options[i]);
        if (!kelp_option_first_of_group(program, i)) {
            continue;
        }
        put_between(out, ".SS \"", group, "\"\n");
        for (size_t j = i; j < program->option_count; j++) {
            if (strcmp(kelp_option_group(&program->options[j]), group) == 0) {
                print_option(&program->options[j], out);
            }
        }
    }
    (void)fputs(".SS Help\n.TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nPrint a summary and exit.\n"
                ".TP\n\\fB\\-\\-version\\fR\nPrint version, commit and libraries, and exit.\n",
                out);
}

static void print_verbs(const struct kelp_verb *const *verbs, FILE *out)
{
    (void)fputs(".SH VERBS\n", out);
    for (size_t i = 0; verbs[i]; i++) {
        char page[KELP_PAGE_NAME_MAX + 1];
        kelp_page_name(verbs[i]->program, page);
        put_between(out, ".TP\n.BR ", page, " (1)\n");
        put_sentence(out, verbs[i]->summary);
    }
}

static void print_ends(FILE *out)
{
    (void)fputs(".SH ENVIRONMENT\n"
                "Options that may be given once can be set in the environment: "
                "\\fBKELP_\\fIOPTION\\fR in upper case, dashes as underscores.\n"
                "The command line takes precedence.\n"
                ".SH EXIT STATUS\n",
                out);
    put(out, kelp_command_exit_statuses);
}

/* Pages around it: of the verb that it belongs to, its own verbs' being listed already. */
static void print_see_also(const struct kelp_page_list *list, size_t index, FILE *out)
{
    const char *separator = "";

    (void)fputs(".SH SEE ALSO\n", out);
    for (size_t i = 0; i < list->count; i++) {
        const struct kelp_page *page = &list->pages[i];
        char name[KELP_PAGE_NAME_MAX + 1];
        if (i == index || (page->of && page->program != list->pages[index].of)) {
            continue;
        }
        kelp_page_name(page->program, name);
        (void)fputs(separator, out);
        put_between(out, ".BR ", name, " (1)");
        separator = ",\n";
    }
    (void)fputs("\n.PP\n"
                "The folder \\fIshare/doc/kelp\\fR of the installation holds the reference of the "
                "command line (docs/CLI.md), of job files (docs/JOB.md), and the rest.\n"
                "Examples of jobs are in \\fIshare/kelp/examples\\fR.\n",
                out);
}

void kelp_man_page_print(const struct kelp_page_list *list, size_t index, FILE *out)
{
    const struct kelp_page *page = &list->pages[index];
    const struct kelp_program *program = page->program;
    char name[KELP_PAGE_NAME_MAX + 1];

    kelp_page_name(program, name);
    (void)fputs(".TH \"", out);
    for (const char *c = name; *c != '\0'; c++) {
        (void)fputc(toupper((unsigned char)*c), out);
    }
    (void)fprintf(out, "\" 1 \"\" \"Kelp %s\" \"Kelp\"\n", kelp_version());
    put_between(out, ".SH NAME\n", name, " \\- ");
    put_between(out, "", program->summary, "\n");
    put_between(out, ".SH SYNOPSIS\n.B ", program->name, "\n");
    (void)fputs(page->of || !page->verbs ? "" : "\\fIVERB\\fR\n", out);
    (void)fputs("[\\fIoptions\\fR]\n", out);
    if (program->positional) {
        put_between(out, "", program->positional, "\n");
    }
    (void)fputs(".SH DESCRIPTION\n", out);
    put_sentence(out, program->summary);
    if (page->verbs) {
        print_verbs(page->verbs, out);
    }
    print_options(program, out);
    print_ends(out);
    if (program->examples) {
        put_between(out, ".SH EXAMPLES\n.EX\n", program->examples, ".EE\n");
    }
    print_see_also(list, index, out);
}
