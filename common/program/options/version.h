/*
 * What --version prints: version, commit, compiler, what was built in, and versions of libraries.
 */
#ifndef KELP_COMMON_PROGRAM_OPTIONS_VERSION_H
#define KELP_COMMON_PROGRAM_OPTIONS_VERSION_H

#include <stdio.h>

/* "0.1.0". */
const char *kelp_version(void);

/* "abc1234"; "abc1234-dirty" when tracked files differed from it; "unknown commit" in builds
 * without git, and in programs that are not products (tests). */
const char *kelp_version_commit(void);

/* "PROGRAM 0.1.0 (abc1234)" as the first line, then a line for each of the rest. */
void kelp_version_print(const char *program, FILE *out);

/* Generated at build time (common/program/options/commit.cmake) and linked into programs alone: a
 * commit must not make every test link again. Elsewhere its address is NULL. */
extern const char kelp__commit[] __attribute__((weak));

#endif
