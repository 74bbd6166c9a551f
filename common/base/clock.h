/*
 * The monotonic clock of this machine: it measures durations and never goes back. It says nothing
 * about the date. Pure code takes the time as an argument or in an event; it does not call this.
 * Threads: any. Errors: none, the clock always answers.
 */
#ifndef KELP_COMMON_BASE_CLOCK_H
#define KELP_COMMON_BASE_CLOCK_H

#include <stdint.h>

uint64_t kelp_clock_ms(void);
uint64_t kelp_clock_us(void);
uint64_t kelp_clock_ns(void);

#endif
