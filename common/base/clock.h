/*
 * The monotonic clock of this machine: it measures durations and never goes back. It says nothing
 * about the date. Pure code takes the time as an argument or in an event; it does not call this.
 * Threads: any. Errors: none, the clock always answers.
 */
#ifndef KELP_COMMON_BASE_CLOCK_H
#define KELP_COMMON_BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

uint64_t kelp_clock_ms(void);
uint64_t kelp_clock_us(void);
uint64_t kelp_clock_ns(void);

/*
 * Wait for a condition until kelp_clock_ms() is until_ms; lock is the caller's, as in
 * pthread_cond_wait(). False: the time is over. A date that is set, back or forward, changes
 * nothing: pthread_cond_timedwait() goes by the date unless the condition was made otherwise.
 */
bool kelp_clock_wait(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t until_ms);

#endif
