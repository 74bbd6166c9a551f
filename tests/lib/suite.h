/*
 * A test program is its tests: each KELP_TEST() registers itself, in the order of the file, and a
 * common main() runs them with Check. So no test can be written and not run.
 *
 *     KELP_CASE("refusals", .timeout_s = 30, .setup = open_store, .teardown = close_store)
 *
 *     KELP_TEST(a_wrong_length_is_refused)
 *     {
 *         ck_assert_int_eq(...);
 *     }
 *
 *     KELP_LOOP_TEST(each_mistake, 0, KELP_ARRAY_COUNT(mistakes))
 *     {
 *         ... mistakes[_i] ...
 *     }
 *
 * KELP_CASE() begins a test case, for CK_RUN_CASE and for fixtures; the tests after it belong to
 * it. Tests before the first one are in a case named after the program. KELP_SUITE() sets what
 * holds for the whole program. Exit status: 0, 1 when a test failed, 77 when `before` said that it
 * is skipped.
 *
 * Each test is forked. Where KELP_TEST_ONE_PROCESS is set, a program's tests run in one process,
 * without time limits of their own, unless it has KELP_ABORT_TEST() or says fork_each.
 *
 * A case with `.proof = true` takes minutes, and is run by hand: KELP_PROOF=NAME runs the proof of
 * that name and nothing else, KELP_PROOF=all each of them.
 */
#ifndef KELP_TESTS_LIB_SUITE_H
#define KELP_TESTS_LIB_SUITE_H

#include <check.h>
#include <stdbool.h>

struct kelp_suite_case {
    const char *name;
    double timeout_s;                       /* limit of each test; 0: Check's default */
    void (*setup)(void), (*teardown)(void); /* around each test, in its process */
    void (*begin)(void), (*end)(void);      /* once around the case, in the program's process */
    bool proof;                             /* runs only if KELP_PROOF names it */
};

struct kelp_suite_options {
    bool no_fork;   /* tests share the program's memory, since later ones compare results of earlier
                       ones */
    bool fork_each; /* fork always, because a test changes state that the next one starts with */
    /* Runs before the tests: prepares, or ends the program with kelp_suite_skip(). */
    void (*before)(void);
    void (*after)(void);
};

/* Called by the macros below before main(). */
void kelp__suite_add_case(const struct kelp_suite_case *suite_case);
void kelp__suite_add_test(const TTest *test, int first, int end);
void kelp__suite_add_abort_test(const TTest *test);
void kelp__suite_set(const struct kelp_suite_options *options);

/* End the program as skipped: "skipped: WHY" and status 77. */
_Noreturn void kelp_suite_skip(const char *why, ...) __attribute__((format(printf, 1, 2)));

/* The value of KELP_SEED, to test one seed; -1 if it is not set. */
int kelp_suite_seed(void);

/* Called by the common main(); a program with arguments of its own calls it from its own main(). */
int kelp_suite_run(void);

#define KELP__SUITE_JOIN2(a, b) a##b
#define KELP__SUITE_JOIN(a, b)  KELP__SUITE_JOIN2(a, b)
#define KELP__SUITE_BEFORE_MAIN                                                                    \
    __attribute__((constructor)) static void KELP__SUITE_JOIN(kelp__suite_at_, __LINE__)(void)

#define KELP_CASE(case_name, ...)                                                                  \
    KELP__SUITE_BEFORE_MAIN                                                                        \
    {                                                                                              \
        static const struct kelp_suite_case suite_case = {.name = (case_name), __VA_ARGS__};       \
        kelp__suite_add_case(&suite_case);                                                         \
    }

#define KELP_SUITE(...)                                                                            \
    KELP__SUITE_BEFORE_MAIN                                                                        \
    {                                                                                              \
        static const struct kelp_suite_options suite_options = {__VA_ARGS__};                      \
        kelp__suite_set(&suite_options);                                                           \
    }

/* The test gets its number as _i, from first up to, but not including, end. */
#define KELP_LOOP_TEST(name, first, end)                                                           \
    static void name(int _i);                                                                      \
    KELP__SUITE_BEFORE_MAIN                                                                        \
    {                                                                                              \
        static const TTest test = {#name, name, __FILE__, __LINE__};                               \
        kelp__suite_add_test(&test, (int)(first), (int)(end));                                     \
    }                                                                                              \
    static void name(int _i CK_ATTRIBUTE_UNUSED)

#define KELP_TEST(name) KELP_LOOP_TEST(name, 0, 1)

/* Run the test of that name again in the current case. */
#define KELP_TEST_AGAIN(name) KELP_LOOP_TEST_AGAIN(name, 0, 1)
#define KELP_LOOP_TEST_AGAIN(name, first, end)                                                     \
    KELP__SUITE_BEFORE_MAIN                                                                        \
    {                                                                                              \
        static const TTest test = {#name, name, __FILE__, __LINE__};                               \
        kelp__suite_add_test(&test, (int)(first), (int)(end));                                     \
    }

/* A test that must end with abort(), as a failed assertion does. Not run with CK_FORK=no. */
#define KELP_ABORT_TEST(name)                                                                      \
    static void name(int _i);                                                                      \
    KELP__SUITE_BEFORE_MAIN                                                                        \
    {                                                                                              \
        static const TTest test = {#name, name, __FILE__, __LINE__};                               \
        kelp__suite_add_abort_test(&test);                                                         \
    }                                                                                              \
    static void name(int _i CK_ATTRIBUTE_UNUSED)

#endif
