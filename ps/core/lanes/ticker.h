/*
 * When a shard looks next for entries that are late (kelp_partition_tick()). Pure: the shell owns
 * the timer. While nobody sends anything and nothing can become late, no timer runs.
 *
 * Threads: one caller at a time.
 */
#ifndef KELP_PS_CORE_LANES_TICKER_H
#define KELP_PS_CORE_LANES_TICKER_H

#include <stdbool.h>
#include <stdint.h>

/* All zero: nothing happened yet. */
struct kelp_ticker {
    uint32_t period_ms; /* of the timer; 0: it does not run */
    bool soon;          /* the next look is soon enough for whatever a message began */
};

/* A message came: perhaps its sender waits now, or what it waits for begins. These functions
 * answer true when the timer is to be set to period_ms. */
bool kelp_ticker_heard(struct kelp_ticker *ticker);
/* A look begins at now_us: messages that come from here on may be missed by it. */
void kelp_ticker_look(struct kelp_ticker *ticker);
/* It is over; next_us: when the next one is due, UINT64_MAX: never. now_us: when it began. */
bool kelp_ticker_looked(struct kelp_ticker *ticker, uint64_t now_us, uint64_t next_us);
/* The timer could not be set: it does not run. */
void kelp_ticker_stopped(struct kelp_ticker *ticker);

#endif
