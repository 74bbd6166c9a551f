/*
 * Files in a test's folder, and commands there that must succeed, for tests that move models and
 * data.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_TEST_FILES_H
#define KELP_TESTS_LIB_COMMANDS_TEST_FILES_H

#include <stddef.h>

#include "common/base/status.h"

/* A text under construction; the test owns text (allocated in full). */
#define KELP_TEST_TEXT_BYTES (1u << 20)
struct kelp_test_text {
    char *text;
    size_t used;
};
void kelp_test_add(struct kelp_test_text *table, const char *format, ...) KELP_PRINTF(2, 3);

/* Run `kelp ARGS` in a folder; the test fails if its exit status is not 0. */
void kelp_test_run_ok(const char *folder, const char *const *args);

/* Files and folders of FOLDER, by name: compare two files of over 100 bytes, move, copy, make and
 * remove. Each fails the test on an error. */
void kelp_test_expect_same(const char *folder, const char *name, const char *other);
void kelp_test_move(const char *folder, const char *from, const char *to);
void kelp_test_copy(const char *folder, const char *from, const char *to);
void kelp_test_make_folder(const char *folder, const char *name);
void kelp_test_remove(const char *folder, const char *name);

#endif
