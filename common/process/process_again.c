#include "common/process/process_again.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARGUMENTS_MAX (1 << 20) /* bytes */
#define WORDS_MAX     4096
#define PROGRAM_MAX   4096 /* bytes of the program's path */

extern char **environ;

static ssize_t read_command_line(char *text)
{
    FILE *in = fopen("/proc/self/cmdline", "re");

    if (!in) {
        return -1;
    }
    const size_t bytes = fread(text, 1, ARGUMENTS_MAX + 1, in);
    (void)fclose(in); /* it was only read */
    errno = bytes == 0 ? EIO : E2BIG;
    return bytes > 0 && bytes <= ARGUMENTS_MAX ? (ssize_t)bytes : -1;
}

char **kelp_process_own_words(char **ret_text)
{
    char **words = calloc(WORDS_MAX + 1, sizeof(*words));
    char *text = calloc(1, ARGUMENTS_MAX + 2);
    ssize_t bytes = -1;
    size_t count = 0;

    errno = ENOMEM;
    if (words && text) {
        bytes = read_command_line(text);
    }
    for (size_t at = 0; bytes > 0 && at < (size_t)bytes; at += strlen(text + at) + 1) {
        if (count == WORDS_MAX) {
            errno = E2BIG;
            bytes = -1;
            break;
        }
        words[count++] = text + at;
    }
    if (bytes < 0) {
        free(words);
        free(text);
        return NULL;
    }
    *ret_text = text;
    return words;
}

/* Do both have the same name before '='? */
static bool same_name(const char *entry, const char *variable)
{
    const size_t length = strcspn(variable, "=");

    return strncmp(entry, variable, length) == 0 && entry[length] == '=';
}

static bool is_laid_over(const char *entry, const char *const *variables)
{
    for (; *variables; variables++) {
        if (same_name(entry, *variables)) {
            return true;
        }
    }
    return false;
}

char **kelp_process_own_environment(const char *const *variables)
{
    size_t count = 1, used = 0;

    for (char **entry = environ; *entry; entry++) {
        count++;
    }
    for (const char *const *entry = variables; *entry; entry++) {
        count++;
    }
    char **entries = calloc(count, sizeof(*entries));
    for (char **entry = environ; entries && *entry; entry++) {
        if (!is_laid_over(*entry, variables)) {
            entries[used++] = *entry;
        }
    }
    for (const char *const *entry = variables; entries && *entry; entry++) {
        entries[used++] = (char *)(uintptr_t)*entry; /* execve() does not write to it */
    }
    return entries;
}

bool kelp_process_has_variables(const char *const *variables)
{
    for (; *variables; variables++) {
        char *const *entry = environ;
        while (*entry && !same_name(*entry, *variables)) { /* of several, the first one counts */
            entry++;
        }
        if (!*entry || strcmp(*entry, *variables) != 0) {
            return false;
        }
    }
    return true;
}

kelp_status kelp_process_again(const char *const *variables, struct kelp_error *reterr)
{
    char program[PROGRAM_MAX];
    char *text = NULL;
    /* Execute it by its path, so that ps(1) shows its name. */
    const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    char **words = length > 0 ? kelp_process_own_words(&text) : NULL;
    char **environment = words ? kelp_process_own_environment(variables) : NULL;

    if (environment) {
        program[length] = '\0';
        (void)execve(program, words, environment);
    }
    const int error = errno;
    free(environment);
    free(words);
    free(text);
    return kelp_fail(reterr, error == ENOMEM ? KELP_ERR_NO_MEMORY : KELP_ERR_IO,
                     "cannot execute this program again: %s%s", strerror(error),
                     length < 0 ? " (/proc/self/exe); /proc must be mounted" : "");
}
