#include "cli/describe/man_page.h"

#include <ctype.h>
#include <string.h>

#include "cli/describe/roff.h"
#include "cli/verbs.h"

/* A phrase as a sentence. */
static void put_sentence(FILE *out, const char *phrase)
{
    char first[2] = {(char)toupper((unsigned char)phrase[0]), '\0'};

    kelp_roff_put(out, first);
    kelp_roff_put_between(out, "", phrase + 1, ".\n");
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
    kelp_roff_put_between(out, "\\fB\\-\\-", option->name, "\\fR");
    if (value[0] != '\0') {
        kelp_roff_put_between(out, " \\fI", value, "\\fR");
    }
    (void)fputc('\n', out);
    kelp_roff_put(out, option->help);
    if (notes[0] != '\0') {
        kelp_roff_put_between(out, " (", notes, ")");
    }
    (void)fputs(".\n", out);
    if (variable[0] != '\0') {
        kelp_roff_put_between(out, "Environment: \\fB", variable, "\\fR.\n");
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
        kelp_roff_put_between(out, ".SS \"", group, "\"\n");
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
        kelp_roff_put_between(out, ".TP\n.BR ", page, " (1)\n");
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
    kelp_roff_put(out, kelp_command_exit_statuses);
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
        kelp_roff_put_between(out, ".BR ", name, " (1)");
        separator = ",\n";
    }
    (void)fputs(separator, out);
    (void)fputs(".BR kelp\\-job (5)\n", out);
    kelp_roff_elsewhere(out);
}

void kelp_man_page_print(const struct kelp_page_list *list, size_t index, FILE *out)
{
    const struct kelp_page *page = &list->pages[index];
    const struct kelp_program *program = page->program;
    char name[KELP_PAGE_NAME_MAX + 1];

    kelp_page_name(program, name);
    kelp_roff_title(out, name, 1);
    kelp_roff_put_between(out, ".SH NAME\n", name, " \\- ");
    kelp_roff_put_between(out, "", program->summary, "\n");
    kelp_roff_put_between(out, ".SH SYNOPSIS\n.B ", program->name, "\n");
    (void)fputs(page->of || !page->verbs ? "" : "\\fIVERB\\fR\n", out);
    (void)fputs("[\\fIoptions\\fR]\n", out);
    if (program->positional) {
        kelp_roff_put_between(out, "", program->positional, "\n");
    }
    (void)fputs(".SH DESCRIPTION\n", out);
    put_sentence(out, program->summary);
    if (page->verbs) {
        print_verbs(page->verbs, out);
    }
    print_options(program, out);
    print_ends(out);
    if (program->examples) {
        kelp_roff_put_between(out, ".SH EXAMPLES\n.EX\n", program->examples, ".EE\n");
    }
    print_see_also(list, index, out);
}
