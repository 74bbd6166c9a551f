/* Shared by the programs of bench/. The code that starts clusters is made for tests and reports to
 * Check, so each measurement is a Check test. */
#ifndef KELP_TESTS_LIB_BENCH_SUITE_H
#define KELP_TESTS_LIB_BENCH_SUITE_H

#include <check.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * The part of a job file for a model that is large but cheap: (dim + 1) * 4 MiB of weights, with
 * dim given as text, of which each sample uses one row. Its data is in the table below, 240
 * samples.
 */
#define KELP_BENCH_WIDE(dim)                                                                       \
    "model: {kind: deepfm, embedding_dim: " dim ", hidden: []}\n"                                  \
    "data: {kind: table, path: table.csv, categories: [c], columns: [x], targets: [y], "           \
    "vocab: [1048576]}\n"
void kelp_bench_write_table(const char *folder);

/* User and system time of a process in seconds; 0 if there is no such process. It depends less on
 * how busy the machine is than elapsed time does. */
double kelp_bench_cpu_s(pid_t pid);

/* Sorts; count is at least 1. */
double kelp_bench_median(double *values, size_t count);

/* Run the measurements in this process, one after the other and without a timeout, and print the
 * failures. Returns their number. */
int kelp_bench_run(const char *name, const TTest *const *measurements, size_t count);

#endif
