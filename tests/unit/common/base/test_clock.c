/* Waiting by the monotonic clock, while the date is set. */
#include "common/base/clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/suite.h"

#define AHEAD_S                                                                                    \
    3600 /* what the date is ahead of the kernel's: as it was before it was set back               \
          */
#define WAIT_MS 50
#define LATE_MS 20000 /* a busy machine is late, and not by an hour */

/* In place of libc's, for all of this program. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    const long failed = syscall(SYS_clock_gettime, clock, now);

    if (failed == 0 && clock == CLOCK_REALTIME) {
        now->tv_sec += AHEAD_S;
    }
    return (int)failed;
}

KELP_CASE("clock")

/* A wait lasts as long as it is to, though the date is set back by an hour after its end was
 * computed. */
KELP_TEST(the_date_ends_no_wait_and_makes_none_longer)
{
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const uint64_t begin_ms = kelp_clock_ms();

    (void)pthread_mutex_lock(&lock);
    while (kelp_clock_wait(&never, &lock, begin_ms + WAIT_MS)) {
    }
    (void)pthread_mutex_unlock(&lock);
    ck_assert_uint_ge(kelp_clock_ms(), begin_ms + WAIT_MS);
    ck_assert_uint_lt(kelp_clock_ms(), begin_ms + LATE_MS);
}

/* What is over when it begins ends at once. */
KELP_TEST(an_end_that_is_past_is_over)
{
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

    (void)pthread_mutex_lock(&lock);
    ck_assert(!kelp_clock_wait(&never, &lock, kelp_clock_ms()));
    ck_assert(!kelp_clock_wait(&never, &lock, 0));
    (void)pthread_mutex_unlock(&lock);
}
