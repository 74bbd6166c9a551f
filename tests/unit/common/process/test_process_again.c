/*
 * A program that executes itself again: what stays, what is replaced, and what cannot be.
 */
#include "common/process/process_again.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/program/portable.h"
#include "tests/lib/suite.h"

#define VARIABLE "KELP_TEST_AGAIN" /* the descriptor that a child reports to */
#define OTHER    "KELP_TEST_OTHER"

extern char **environ;

static size_t count_named(const char *name)
{
    size_t count = 0;

    for (char **entry = environ; *entry; entry++) {
        count += strncmp(*entry, name, strlen(name)) == 0 && (*entry)[strlen(name)] == '=';
    }
    return count;
}

static size_t count_words(char *const *words)
{
    size_t count = 0;

    while (words && words[count]) {
        count++;
    }
    return count;
}

static void before(void)
{
    const char *fd = getenv(VARIABLE), *other = getenv(OTHER);

    if (fd) {
        char *text = NULL;
        char **words = kelp_process_own_words(&text);
        (void)dprintf((int)strtol(fd, NULL, 10), "%ld %zu %zu %s", (long)getpid(),
                      count_words(words), count_named(OTHER), other ? other : "");
        free(words);
        free(text);
        _exit(0);
    }
}

/* A child that begins again with the variables; what it then says, or why it does not. Returns the
 * child's id. */
static pid_t begin_again(const char *variable, char *text, size_t text_bytes)
{
    char again[64];
    const char *const variables[] = {again, variable, NULL};
    struct kelp_error error = {.text = ""};
    size_t used = 0;
    ssize_t count;
    int fds[2];

    ck_assert_int_eq(pipe(fds), 0);
    (void)snprintf(again, sizeof(again), VARIABLE "=%d", fds[1]);
    const pid_t child = fork();
    if (child == 0) {
        kelp_status status = kelp_process_again(variables, &error);
        (void)dprintf(fds[1], "%s: %s", kelp_status_name(status), error.text);
        _exit(1);
    }
    (void)close(fds[1]);
    while ((count = read(fds[0], text + used, text_bytes - 1 - used)) > 0) {
        used += (size_t)count;
    }
    text[used] = '\0';
    (void)close(fds[0]);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    return child;
}

KELP_SUITE(.before = before)
KELP_CASE("process_again", .timeout_s = 60)

/* The id and the words stay, and each variable is there once, as it was asked for. */
KELP_TEST(the_same_process_in_another_environment)
{
    char text[600], expected[600], *own = NULL;
    char **words = kelp_process_own_words(&own);

    ck_assert_ptr_nonnull(words);
    ck_assert_uint_ge(count_words(words), 1);
    ck_assert_int_eq(setenv(OTHER, "old", 1), 0);
    const pid_t child = begin_again(OTHER "=new", text, sizeof(text));
    (void)snprintf(expected, sizeof(expected), "%ld %zu 1 new", (long)child, count_words(words));
    ck_assert_str_eq(text, expected);
    ck_assert_str_eq(getenv(OTHER), "old");
    free(words);
    free(own);
}

/* What the system refuses is said, and the process goes on as it was. */
KELP_TEST(what_the_system_refuses)
{
    const size_t bytes = 1 << 20; /* of one variable; Linux takes 128 KiB */
    char *variable = malloc(bytes), text[600];

    ck_assert_ptr_nonnull(variable);
    memset(variable, 'x', bytes - 1);
    variable[bytes - 1] = '\0';
    memcpy(variable, OTHER "=", strlen(OTHER "="));
    (void)begin_again(variable, text, sizeof(text));
    ck_assert_msg(strstr(text, "cannot execute this program again: ") != NULL &&
                      strstr(text, strerror(E2BIG)) != NULL,
                  "%s", text);
    free(variable);
}

/* The first entry of a name counts, its whole name and its whole value. */
KELP_TEST(what_the_environment_has)
{
    char first[] = "A=1", second[] = "A=2", longer[] = "AB=3", empty[] = "C=";
    char *entries[] = {longer, first, second, empty, NULL};
    char **saved = environ;

    environ = entries;
    ck_assert(kelp_process_has_variables((const char *[]){"A=1", "AB=3", "C=", NULL}));
    ck_assert(kelp_process_has_variables((const char *[]){NULL}));
    ck_assert(!kelp_process_has_variables((const char *[]){"A=2", NULL}));
    ck_assert(!kelp_process_has_variables((const char *[]){"A=", NULL}));
    ck_assert(!kelp_process_has_variables((const char *[]){"A=1", "B=3", NULL}));
    char **laid = kelp_process_own_environment((const char *[]){"A=4", "D=5", NULL});
    ck_assert_ptr_nonnull(laid);
    ck_assert_str_eq(laid[0], "AB=3");
    ck_assert_str_eq(laid[1], "C=");
    ck_assert_str_eq(laid[2], "A=4");
    ck_assert_str_eq(laid[3], "D=5");
    ck_assert_ptr_null(laid[4]);
    environ = saved;
    free(laid);
}

/* A portable job needs it until the environment is the one that it asks for; others never do. */
KELP_TEST(who_needs_it)
{
    struct kelp_job native = {.cluster = {.compute = KELP_COMPUTE_NATIVE}};
    struct kelp_job portable = {.cluster = {.compute = KELP_COMPUTE_PORTABLE}};

    ck_assert_int_eq(setenv("OPENBLAS_CORETYPE", "SkylakeX", 1), 0);
    ck_assert(!kelp_portable_needs_again(&native));
    ck_assert(kelp_portable_needs_again(&portable));
    ck_assert_int_eq(unsetenv("OPENBLAS_CORETYPE"), 0);
    ck_assert(!kelp_portable_needs_again(&native));
    ck_assert(kelp_portable_needs_again(&portable));
    ck_assert_int_eq(setenv("OPENBLAS_CORETYPE", "Haswell", 1), 0);
    ck_assert(!kelp_portable_needs_again(&native));
    ck_assert(!kelp_portable_needs_again(&portable));
}
