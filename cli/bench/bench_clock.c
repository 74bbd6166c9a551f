#include "cli/bench/bench_clock.h"

#include <time.h>

static double read_s(clockid_t clock)
{
    struct timespec time;

    (void)clock_gettime(clock, &time); /* both of them are there on Linux */
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

double kelp_bench_now_us(void)
{
    return 1e6 * read_s(CLOCK_MONOTONIC);
}

double kelp_bench_own_cpu_s(void)
{
    return read_s(CLOCK_PROCESS_CPUTIME_ID);
}
