/*
 * Processor time of single threads: the busiest one bounds what more processors can do.
 */
#ifndef KELP_CLI_BENCH_BENCH_THREADS_H
#define KELP_CLI_BENCH_BENCH_THREADS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/status.h"

#define KELP_BENCH_THREADS_MAX 1024

struct kelp_bench_threads {
    size_t count;
    struct {
        int64_t id; /* the kernel's */
        double cpu_s;
    } items[KELP_BENCH_THREADS_MAX];
};

/* Add those of a process; one that is gone has none. What does not fit is left out, the newest
 * threads first. */
void kelp_bench_threads_add(struct kelp_bench_threads *threads, pid_t pid);
/* The most that any thread has spent between the two. */
double kelp_bench_threads_busiest_s(const struct kelp_bench_threads *before,
                                    const struct kelp_bench_threads *after);

#endif
