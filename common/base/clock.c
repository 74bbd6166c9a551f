#include "common/base/clock.h"

#include <time.h>

static struct timespec now(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time); /* cannot fail for this clock */
    return time;
}

uint64_t kelp_clock_ms(void)
{
    struct timespec time = now();
    return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

uint64_t kelp_clock_us(void)
{
    struct timespec time = now();
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

uint64_t kelp_clock_ns(void)
{
    struct timespec time = now();
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}
