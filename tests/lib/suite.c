#include "tests/lib/suite.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXIT_SKIPPED 77 /* as CTest expects */

static struct {
    Suite *suite;
    TCase *tcase;  /* the case that tests are added to */
    bool left_out; /* tests added next are left out, without a case */
    bool aborts;   /* some tests must end their process */
    const struct kelp_suite_options *options;
} program;

static pid_t unfinished; /* the only process, while its tests run */

static Suite *suite(void)
{
    if (!program.suite) {
        const char *name = program_invocation_short_name;
        program.suite = suite_create(strncmp(name, "test_", 5) == 0 ? name + 5 : name);
    }
    return program.suite;
}

static bool is_wanted(const struct kelp_suite_case *suite_case)
{
    const char *proof = getenv("KELP_PROOF");

    return !proof ? !suite_case->proof
                  : suite_case->proof &&
                        (strcmp(proof, "all") == 0 || strcmp(proof, suite_case->name) == 0);
}

/* CTest says how slow a sanitizer is. A multiplier from the environment takes precedence: a user
 * may want hours of fuzzing. */
static void be_patient(void)
{
    const char *patience = getenv("KELP_TEST_PATIENCE");

    if (patience) {
        (void)setenv("CK_TIMEOUT_MULTIPLIER", patience, 0);
    }
}

void kelp__suite_add_case(const struct kelp_suite_case *suite_case)
{
    program.left_out = !is_wanted(suite_case);
    if (program.left_out) {
        return;
    }
    be_patient();
    program.tcase = tcase_create(suite_case->name);
    if (suite_case->timeout_s > 0) {
        tcase_set_timeout(program.tcase, suite_case->timeout_s);
    }
    if (suite_case->setup || suite_case->teardown) {
        tcase_add_checked_fixture(program.tcase, suite_case->setup, suite_case->teardown);
    }
    if (suite_case->begin || suite_case->end) {
        tcase_add_unchecked_fixture(program.tcase, suite_case->begin, suite_case->end);
    }
    suite_add_tcase(suite(), program.tcase);
}

/* NULL: tests of this case are left out. */
static TCase *current_case(void)
{
    static const struct kelp_suite_case all = {.name = "all"};

    if (!program.tcase && !program.left_out) {
        kelp__suite_add_case(&all);
    }
    return program.left_out ? NULL : program.tcase;
}

void kelp__suite_add_test(const TTest *test, int first, int end)
{
    TCase *tcase = current_case();

    if (tcase) {
        tcase_add_loop_test(tcase, test, first, end);
    }
}

void kelp__suite_add_abort_test(const TTest *test)
{
    const char *fork_status = getenv("CK_FORK");
    TCase *tcase = current_case();

    if (tcase && (!fork_status || strcmp(fork_status, "no") != 0)) {
        tcase_add_test_raise_signal(tcase, test, SIGABRT);
        program.aborts = true;
    }
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

/* A fork of a sanitizer's process takes ten milliseconds: shadow memory is copied, and each
 * child looks for leaks. */
static bool is_one_process(void)
{
    const bool no_fork = program.options && program.options->no_fork;
    const bool fork_each = program.options && program.options->fork_each;

    return no_fork || (getenv("KELP_TEST_ONE_PROCESS") && !fork_each && !program.aborts);
}

/* exit() in a test would skip the tests after it. */
static void fail_unfinished(int status, void *unused)
{
    (void)unused;
    if (unfinished == getpid() && status == EXIT_SUCCESS) {
        (void)fputs("a test called exit(), and those after it did not run\n", stderr);
        (void)fflush(NULL);
        _exit(EXIT_FAILURE);
    }
}

int kelp_suite_run(void)
{
    if (!program.tcase) {
        kelp_suite_skip("it has no proof '%s'", getenv("KELP_PROOF"));
    }
    if (program.options && program.options->before) {
        program.options->before();
    }
    SRunner *runner = srunner_create(suite());
    if (is_one_process()) {
        srunner_set_fork_status(runner, CK_NOFORK);
        unfinished = getpid();
        (void)on_exit(fail_unfinished, NULL);
    }
    srunner_run_all(runner, CK_NORMAL);
    unfinished = 0;
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (program.options && program.options->after) {
        program.options->after();
    }
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- the last assertion that held ------------------------------------------------------------ */

void __real__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line);

/*
 * Each ck_assert that holds reports its location to Check, for the report on a test that is killed
 * by a signal or takes too long: "after this point". Check writes the location to a file each time,
 * and some tests have millions of assertions. So the linker puts this function in between, which
 * passes a location on every few milliseconds.
 */
void __wrap__mark_point(const char *file, int line)
{
    static _Atomic int64_t told_ms = 0;
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    const int64_t now_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (now_ms != atomic_load_explicit(&told_ms, memory_order_relaxed)) {
        atomic_store_explicit(&told_ms, now_ms, memory_order_relaxed);
        __real__mark_point(file, line);
    }
}
