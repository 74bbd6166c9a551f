#include "common/base/clock.h"

#include <errno.h>
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

bool kelp_clock_wait(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t until_ms)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ms / 1000),
                                   .tv_nsec = (long)(until_ms % 1000) * 1000000};

    return pthread_cond_clockwait(condition, lock, CLOCK_MONOTONIC, &until) != ETIMEDOUT;
}
