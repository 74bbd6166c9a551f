/* What the programs of bench/ share. What starts clusters is made for tests and reports by Check,
 * so a measurement is a Check test. */
#ifndef KELP_TESTS_LIB_BENCH_SUITE_H
#define KELP_TESTS_LIB_BENCH_SUITE_H

#include <check.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * The part of a job file that makes it all bytes: a model of (dim + 1) * 4 MiB, given as text, of
 * which a sample needs a row. Its data are in the table below, 240 samples.
 */
#define KELP_BENCH_WIDE(dim)                                                                       \
    "model: {kind: deepfm, embedding_dim: " dim ", hidden: []}\n"                                  \
    "data: {kind: table, path: table.csv, categories: [c], columns: [x], targets: [y], "           \
    "vocab: [1048576]}\n"
void kelp_bench_write_table(const char *folder);

/* User and system time of a process, seconds; 0: there is none. A busy machine changes it less than
 * what the clock says. */
double kelp_bench_cpu_s(pid_t pid);

/* Sorts; count is at least 1. */
double kelp_bench_median(double *values, size_t count);

/* Run the measurements in this process, one after the other, without a timeout, and print what
 * failed. How many did. */
int kelp_bench_run(const char *name, const TTest *const *measurements, size_t count);

#endif
