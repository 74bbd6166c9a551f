/*
 * Runs decoders under libFuzzer, with the targets, seeds and words of tests/lib/fuzz.h. Inputs that
 * reach new code are kept. Only the preset `fuzz` (clang) has it; tests/fuzz.sh runs it.
 */
#ifndef KELP_TESTS_LIB_FUZZ_GUIDED_H
#define KELP_TESTS_LIB_FUZZ_GUIDED_H

#include <stdbool.h>

#include "tests/lib/fuzz.h"

/* Whether KELP_FUZZ_SECONDS is set. */
bool kelp_fuzz_guided_wanted(void);

/* Run the target for KELP_FUZZ_SECONDS (at most half an hour) in a process of its own. The corpus
 * grows in corpus/PROGRAM.NAME next to the program and stays for the next run. An input that fails
 * is stored there too, as crash-*, leak-*, oom-* or timeout-*, and fails the Check test. With
 * KELP_FUZZ_TARGET=NAME all other targets are skipped. */
void kelp_fuzz_guided_run(const struct kelp_fuzz *fuzz);

#endif
