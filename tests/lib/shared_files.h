/*
 * Files next to the source tree that may be missing: real data sets and reference fixtures. A test
 * that needs a missing file reports that and counts as skipped.
 */
#ifndef KELP_TESTS_LIB_SHARED_FILES_H
#define KELP_TESTS_LIB_SHARED_FILES_H

#include <stdbool.h>

#define KELP_TEST_PATH_MAX 1024

/* The path of a file in the folder KELP_DATA, by default ../shared/data next to the source tree.
 * False if the file is missing; path is set anyway. */
bool kelp_test_data_file(const char *name, char path[KELP_TEST_PATH_MAX]);
/* The same for KELP_REFERENCE, by default ../shared/reference. */
bool kelp_test_reference_file(const char *name, char path[KELP_TEST_PATH_MAX]);

#endif
