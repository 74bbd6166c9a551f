/* What the programs of bench/ share. What starts clusters is made for tests and reports by Check,
 * so a measurement is a Check test. */
#ifndef KELP_TESTS_LIB_BENCH_SUITE_H
#define KELP_TESTS_LIB_BENCH_SUITE_H

#include <check.h>
#include <stddef.h>

/* Sorts; count is at least 1. */
double kelp_bench_median(double *values, size_t count);

/* Run the measurements in this process, one after the other, without a timeout, and print what
 * failed. How many did. */
int kelp_bench_run(const char *name, const TTest *const *measurements, size_t count);

#endif
