/*
 * What a GPU runs in some time, kernel by kernel, by CUPTI of the CUDA toolkit.
 */
#ifndef KELP_BENCH_MODELS_TRACE_H
#define KELP_BENCH_MODELS_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct trace_kernel {
    char *name;
    uint64_t count;
    double seconds; /* the sum of all */
};

/* Kernels, copies and what sets memory. */
struct trace {
    double window;                /* seconds from the first one's begin to the last one's end ... */
    double running;               /* ... in which at least one runs ... */
    double kernels;               /* ... and at least one kernel */
    uint64_t lost;                /* records that CUPTI had no room for */
    struct trace_kernel *by_name; /* the longest first */
    size_t count;
};

/* False, once with a line why: this was built without CUPTI, or it is not there. */
bool trace_begin(void);
/* What was seen so far does not count. The GPU must be idle. */
void trace_forget(void);
/* The GPU must be idle. *ret: end with trace_fini(). */
void trace_end(struct trace *ret);
void trace_fini(struct trace *trace);

#endif
