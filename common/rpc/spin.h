/*
 * How long a thread polls before it sleeps. Waking a sleeping thread costs 40 to 400 us here, so a
 * short poll often saves time. Polling has a budget: it grows by 0.5 % of the time that passes, and
 * by what each successful poll saved. A poll that finds nothing, or overruns because others have
 * the processor, is charged all its time, into debt if need be. So an idle process spends less than
 * one per cent of a processor on polling, whatever wakes it, and one on a busy machine sleeps at
 * once. Pure: the caller has the clock.
 */
#ifndef KELP_COMMON_RPC_SPIN_H
#define KELP_COMMON_RPC_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define KELP_SPIN_US       150u  /* longest poll; a small step of a shard takes 30 */
#define KELP_SPIN_ONCE_US  1u    /* for servers: yield the processor once */
#define KELP_SPIN_WORTH_US 40u   /* saved by a successful poll */
#define KELP_SPIN_SAVED_US 3000u /* largest budget: twenty polls in vain, after silence */
#define KELP_SPIN_PART     200u  /* one us of polling per this many us */

struct kelp_spin {
    uint32_t look_us; /* longest poll */
    int64_t saved_ns; /* budget; < 0: debt */
    uint64_t at_us;   /* when it was last updated */
};

/* Start with the full budget. look_us: KELP_SPIN_US or KELP_SPIN_ONCE_US. */
void kelp_spin_init(struct kelp_spin *spin, uint32_t look_us, uint64_t now_us);
/* Microseconds that the wait which begins now may poll; 0: sleep at once. */
uint32_t kelp_spin_begin(struct kelp_spin *spin, uint64_t now_us);
/* The poll took looked_us; found: it found an event. */
void kelp_spin_end(struct kelp_spin *spin, uint64_t looked_us, bool found);

#endif
