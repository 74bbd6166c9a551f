/*
 * How long somebody who waits looks before he sleeps. Waking a thread that sleeps costs 70 to 400
 * us here, so a short look often saves time. One that finds nothing is wasted, and comes out of
 * savings: half a hundredth of the time that passes, and no more than KELP_SHM_SPIN_SAVED_US. So a
 * process for which nothing comes spends less than one per cent of a processor on it, whatever
 * wakes it. Pure: the caller has the clock.
 */
#ifndef KELP_COMMON_SHM_SPIN_H
#define KELP_COMMON_SHM_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define KELP_SHM_SPIN_US       40u  /* at most, each time */
#define KELP_SHM_SPIN_SAVED_US 800u /* twenty looks for nothing, after silence */
#define KELP_SHM_SPIN_PART     200u /* one us of looking for so many us */

struct kelp_shm_spin {
    uint64_t saved_ns;
    uint64_t at_us; /* when it was counted */
};

/* With all that can be saved. */
void kelp_shm_spin_init(struct kelp_shm_spin *spin, uint64_t now_us);
/* Microseconds that the wait which begins now may look; 0: sleep at once. */
uint32_t kelp_shm_spin_begin(struct kelp_shm_spin *spin, uint64_t now_us);
/* The look took so long; found: something came. */
void kelp_shm_spin_end(struct kelp_shm_spin *spin, uint64_t looked_us, bool found);

#endif
