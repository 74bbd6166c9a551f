/*
 * Decoders under libFuzzer: the targets, seeds and words of tests/lib/fuzz.h, with inputs that are
 * kept when they reach new code. Only the preset `fuzz` (clang) has it; tests/fuzz.sh runs it.
 */
#ifndef KELP_TESTS_LIB_FUZZ_GUIDED_H
#define KELP_TESTS_LIB_FUZZ_GUIDED_H

#include <stdbool.h>

#include "tests/lib/fuzz.h"

/* Whether KELP_FUZZ_SECONDS asks for it. */
bool kelp_fuzz_guided_wanted(void);

/* Run the target for KELP_FUZZ_SECONDS (half an hour at most) in a process of its own. The corpus
 * grows in corpus/PROGRAM.NAME beside the program and stays for the next run; the input that fails
 * lies there too, as crash-*, leak-*, oom-* or timeout-*. Fails the Check test with it. With
 * KELP_FUZZ_TARGET=NAME all others are left out. */
void kelp_fuzz_guided_run(const struct kelp_fuzz *fuzz);

#endif
