/*
 * The clock of a coordinator: read first thing in each callback of the loop.
 */
#ifndef KELP_COORDINATOR_COMMON_TERM_NOW_H
#define KELP_COORDINATOR_COMMON_TERM_NOW_H

#include "coordinator/term/leadership.h"

/* Milliseconds since the epoch, for people. */
uint64_t kelp_unix_ms(void);
/* Tell it the time; then its term, or NULL: it does not lead. */
struct kelp_term *kelp_term_now(struct kelp_leadership *leadership);

#endif
