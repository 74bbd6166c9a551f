#include "cli/verb/verb.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const kelp_verb_outputs[] = {"text", "json", NULL};

const struct kelp_verb *kelp_verb_find(const struct kelp_verb *const *verbs, const char *name)
{
    while (*verbs && strcmp((*verbs)->name, name) != 0) {
        verbs++;
    }
    return *verbs;
}

int kelp_verb_run(const struct kelp_verb *verb, int argc, char **argv)
{
    const struct kelp_verb *below =
        verb->verbs && argc > 1 ? kelp_verb_find(verb->verbs, argv[1]) : NULL;
    struct kelp_options *given = NULL;
    int exit_status = KELP_EXIT_OK;

    if (below) {
        return kelp_verb_run(below, argc - 1, argv + 1);
    }
    if (kelp_options_read(verb->program, argc, argv, &given, &exit_status)) {
        exit_status = verb->work(given);
        kelp_options_destroy(given);
    }
    return exit_status;
}

int kelp_complain(int exit_status, const char *format, ...)
{
    va_list arguments;

    (void)fputs("kelp: ", stderr);
    va_start(arguments, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): started on the line above */
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
    return exit_status;
}

const char *kelp_verb_typed(const struct kelp_options *given)
{
    return kelp_options_positional_count(given) > 0 ? kelp_options_positional(given, 0) : NULL;
}

int kelp_verb_print(kelp_status status, char *text, const struct kelp_error *error)
{
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error->text);
    }
    (void)fputs(text, stdout);
    free(text);
    return KELP_EXIT_OK;
}

bool kelp_verb_json(const struct kelp_options *given)
{
    return kelp_options_choice(given, "output") == 1;
}

int kelp_verb_exit_status(kelp_status status)
{
    switch (status) {
    case KELP_ERR_UNREACHABLE:
    case KELP_ERR_TIMEOUT:
        return KELP_EXIT_UNREACHABLE;
    case KELP_ERR_IO:
    case KELP_ERR_NO_SPACE:
    case KELP_ERR_NO_MEMORY:
        return KELP_EXIT_FAILED;
    default:
        return KELP_EXIT_USAGE;
    }
}
