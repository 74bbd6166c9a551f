/* Replaces suite.c in builds without Check: each test runs in its own process, with a timeout. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/suite.h"

#define EXIT_SKIPPED      77 /* as CTest expects */
#define DEFAULT_TIMEOUT_S 60.0
#define TESTS_MAX         256u

struct planned_test {
    const struct kelp_suite_case *in;
    const TTest *test;
    int first, end;
    bool aborts;
};
static struct {
    struct planned_test tests[TESTS_MAX];
    unsigned count;
    const struct kelp_suite_case *in; /* the case of the tests that are added next */
    const struct kelp_suite_options *options;
    const char *running;
} program;

void kelp__suite_add_case(const struct kelp_suite_case *suite_case)
{
    program.in = suite_case;
}

static void add(const struct planned_test *test)
{
    static const struct kelp_suite_case all = {.name = "all"};

    if (!program.in) {
        program.in = &all;
    }
    if (program.in->proof) {
        return;
    }
    if (program.count == TESTS_MAX) {
        (void)fprintf(stderr, "more than %u tests\n", TESTS_MAX);
        abort();
    }
    program.tests[program.count] = *test;
    program.tests[program.count++].in = program.in;
}

void kelp__suite_add_test(const TTest *test, int first, int end)
{
    add(&(struct planned_test){.test = test, .first = first, .end = end});
}

void kelp__suite_add_abort_test(const TTest *test)
{
    add(&(struct planned_test){.test = test, .end = 1, .aborts = true});
}

void kelp__suite_set(const struct kelp_suite_options *options)
{
    program.options = options;
}

void kelp_suite_skip(const char *why, ...)
{
    va_list arguments;

    (void)fputs("skipped: ", stdout);
    va_start(arguments, why);
    (void)vprintf(why, arguments);
    va_end(arguments);
    (void)fputc('\n', stdout);
    exit(EXIT_SKIPPED);
}

int kelp_suite_seed(void)
{
    const char *seed = getenv("KELP_SEED");
    return seed ? (int)strtol(seed, NULL, 10) : -1;
}

_Noreturn void kelp__check_fail(const char *file, int line, const char *format, ...)
{
    va_list arguments;

    printf("%s:%d: %s: ", file, line, program.running);
    va_start(arguments, format);
    (void)vprintf(format, arguments);
    va_end(arguments);
    (void)fputc('\n', stdout);
    exit(EXIT_FAILURE);
}

static void run_here(const struct planned_test *test, int index)
{
    program.running = test->test->name;
    if (test->in->setup) {
        test->in->setup();
    }
    test->test->fn(index);
    if (test->in->teardown) {
        test->in->teardown();
    }
}

/* True: the test ended as expected. */
static bool run_apart(const struct planned_test *test, int index)
{
    int status = 0;

    (void)fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        const double limit = test->in->timeout_s > 0 ? test->in->timeout_s : DEFAULT_TIMEOUT_S;
        (void)alarm((unsigned)limit + 1);
        run_here(test, index);
        exit(EXIT_SUCCESS);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (pid > 0 && WIFSIGNALED(status) && !(test->aborts && WTERMSIG(status) == SIGABRT)) {
        printf("%s:%d: %s: ended by signal %d (%d: it took too long)\n", test->test->file,
               test->test->line, test->test->name, WTERMSIG(status), SIGALRM);
        return false;
    }
    return pid > 0 && (test->aborts ? WIFSIGNALED(status) : status == 0);
}

static bool runs_apart(void)
{
    const char *fork_status = getenv("CK_FORK");

    return !(program.options && program.options->no_fork) &&
           (!fork_status || strcmp(fork_status, "no") != 0);
}

static unsigned run_test(const struct planned_test *test, unsigned *done)
{
    unsigned failed = 0;

    for (int index = test->first; index < test->end; index++) {
        if (runs_apart()) {
            failed += run_apart(test, index) ? 0 : 1;
        } else if (!test->aborts) {
            run_here(test, index);
        }
        ++*done;
    }
    return failed;
}

int kelp_suite_run(void)
{
    unsigned done = 0, failed = 0;

    if (program.count == 0) {
        kelp_suite_skip("it has no tests");
    }
    if (program.options && program.options->before) {
        program.options->before();
    }
    for (unsigned i = 0; i < program.count; i++) {
        const struct planned_test *test = &program.tests[i];
        const bool begins = i == 0 || test->in != test[-1].in;
        const bool ends = i + 1 == program.count || test->in != test[1].in;
        if (begins && test->in->begin) {
            test->in->begin();
        }
        failed += run_test(test, &done);
        if (ends && test->in->end) {
            test->in->end();
        }
    }
    if (program.options && program.options->after) {
        program.options->after();
    }
    printf("%u tests, %u failed\n", done, failed);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
