/*
 * What `kelp bench worker` tells the process that started it, on its standard output: a byte when
 * its measurement begins, and at its end this and so many samples. Both are the same program.
 */
#ifndef KELP_CLI_BENCH_BENCH_REPORT_H
#define KELP_CLI_BENCH_BENCH_REPORT_H

#include <stdint.h>

#define KELP_BENCH_BEGUN 'b'

struct kelp_bench_report {
    uint64_t operations;
    uint64_t bytes; /* both ways */
    double wall_s;
    double cpu_s;
    uint64_t sample_count; /* at most KELP_BENCH_SAMPLES_MAX floats of microseconds follow */
};

#endif
