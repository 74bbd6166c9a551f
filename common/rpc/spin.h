/*
 * How long somebody who waits looks before he sleeps. Waking a thread that sleeps costs 40 to 400
 * us here, so a short look often saves time. It is paid out of savings: half a hundredth of the
 * time that passes, and what each look that found something has saved. One that finds nothing, or
 * takes longer than it may since others have the processor, costs all its time, on credit if need
 * be. So a process for which nothing comes spends less than one per cent of a processor on it,
 * whatever wakes it, and one on a busy machine sleeps at once. Pure: the caller has the clock.
 */
#ifndef KELP_COMMON_RPC_SPIN_H
#define KELP_COMMON_RPC_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define KELP_SPIN_US       150u  /* at most, each time: a small step of a shard takes 30 */
#define KELP_SPIN_ONCE_US  1u    /* of who serves others: they get the processor once */
#define KELP_SPIN_WORTH_US 40u   /* what a look that finds something saves */
#define KELP_SPIN_SAVED_US 3000u /* twenty looks for nothing, after silence */
#define KELP_SPIN_PART     200u  /* one us of looking for so many us */

struct kelp_spin {
    uint32_t look_us; /* each time */
    int64_t saved_ns; /* < 0: debts */
    uint64_t at_us;   /* when it was counted */
};

/* With all that can be saved. look_us: KELP_SPIN_US or KELP_SPIN_ONCE_US. */
void kelp_spin_init(struct kelp_spin *spin, uint32_t look_us, uint64_t now_us);
/* Microseconds that the wait which begins now may look; 0: sleep at once. */
uint32_t kelp_spin_begin(struct kelp_spin *spin, uint64_t now_us);
/* The look took so long; found: something came. */
void kelp_spin_end(struct kelp_spin *spin, uint64_t looked_us, bool found);

#endif
