#include "coordinator/common/term_now.h"

#include <time.h>

#include "common/base/clock.h"

uint64_t kelp_unix_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail with this clock */
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

struct kelp_term *kelp_term_now(struct kelp_leadership *leadership)
{
    kelp_leadership_touch(leadership, kelp_clock_ms());
    return leadership->term;
}
