/*
 * For checking fixtures in this process: a report with one line per case, and the checks of single
 * operators, losses and optimizers. tests/golden/test_golden_ops.c adds the models.
 */
#ifndef KELP_TESTS_LIB_GOLDEN_GOLDEN_REPORT_H
#define KELP_TESTS_LIB_GOLDEN_GOLDEN_REPORT_H

#include "kernels/device.h"
#include "tests/lib/golden/golden.h"

/* Counts of the current case and of all so far. A check is one compared tensor. */
struct kelp_golden_report {
    const struct kelp_golden_file *file;
    const char *case_name;
    uint32_t passed, skipped, failed;
    uint32_t total_passed, total_skipped, total_failed;
    uint32_t files_checked;
};

void kelp_golden_case_begin(struct kelp_golden_report *report, const char *case_name);
/* Print the line, with a note at its end; nothing for a case without checks. */
void kelp_golden_case_end(struct kelp_golden_report *report, const char *note);
void kelp_golden_fail(struct kelp_golden_report *report, const char *text);
/* Compare with the named tensor; does nothing if the file lacks it. */
void kelp_golden_check(struct kelp_golden_report *report, const char *name, const float *values,
                       uint64_t count, const struct kelp_golden_tolerance *tolerance);
/* The same for a single number, with the tolerance of values. */
void kelp_golden_check_scalar(struct kelp_golden_report *report, const char *name, double value);

/* Zeroed memory, never NULL. */
void *kelp_golden_allocate(uint64_t count, size_t elem_bytes);
void kelp_golden_print(char name[KELP_GOLDEN_NAME_SIZE], const char *format, ...) KELP_PRINTF(2, 3);
bool kelp_golden_has(const struct kelp_golden_file *file, const char *name);

/* Check the file if it holds single operations, losses, metrics, a decomposition or optimizers with
 * given gradients; false if it holds none of these. */
bool kelp_golden_check_single(struct kelp_golden_report *report, struct kelp_stream *stream);

/* The same for a single layer or part of a model, and for a model's activations. */
bool kelp_golden_check_piece(struct kelp_golden_report *report, struct kelp_stream *stream);
bool kelp_golden_check_activations(struct kelp_golden_report *report, struct kelp_stream *stream);

#endif
