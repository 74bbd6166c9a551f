/* Time and processor time of this process, finer than operations of a microsecond. */
#ifndef KELP_CLI_BENCH_BENCH_CLOCK_H
#define KELP_CLI_BENCH_BENCH_CLOCK_H

/* CLOCK_MONOTONIC, microseconds. */
double kelp_bench_now_us(void);

/* Processor time of all threads of this process so far, seconds. */
double kelp_bench_own_cpu_s(void);

#endif
