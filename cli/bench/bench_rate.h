/*
 * What one way of pushing and pulling came to, and how it is printed. Pure but for where it prints.
 */
#ifndef KELP_CLI_BENCH_BENCH_RATE_H
#define KELP_CLI_BENCH_BENCH_RATE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Who pushes and pulls, and how much at a time. */
struct kelp_bench_pattern {
    uint64_t bytes; /* that a worker pushes, and pulls, in one operation: a multiple of 64 */
    uint32_t workers;
    uint32_t shards;
    uint64_t time_us; /* how long it is measured */
};

struct kelp_bench_rate {
    const char *way; /* static: "copy", "grpc" */
    bool limit;      /* without Kelp: what it can come near to */
    uint64_t bytes;  /* of the pattern */
    double gb_per_s; /* both ways, all workers together */
    double operations_per_s;
    double p50_us, p99_us;  /* of an operation */
    double cpu_s_per_gb;    /* of all processes together */
    double thread_s_per_gb; /* of the busiest thread; not of a limit */
};

void kelp_bench_rate_head(const char *of_what, FILE *out);
/* copy_gb_per_s: what memory alone does; 0: not said. */
void kelp_bench_rate_row(const struct kelp_bench_rate *rate, double copy_gb_per_s, FILE *out);
/* An object, without a line break. */
void kelp_bench_rate_json(const struct kelp_bench_rate *rate, FILE *out);

#endif
