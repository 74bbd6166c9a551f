#include "common/shm/spin.h"

#define SAVED_NS_MAX (KELP_SHM_SPIN_SAVED_US * UINT64_C(1000))

void kelp_shm_spin_init(struct kelp_shm_spin *spin, uint64_t now_us)
{
    *spin = (struct kelp_shm_spin){.saved_ns = SAVED_NS_MAX, .at_us = now_us};
}

uint32_t kelp_shm_spin_begin(struct kelp_shm_spin *spin, uint64_t now_us)
{
    const uint64_t passed_us = now_us - spin->at_us;
    const uint64_t full_us = SAVED_NS_MAX / 1000 * KELP_SHM_SPIN_PART;

    spin->at_us = now_us;
    spin->saved_ns += passed_us < full_us ? passed_us * 1000 / KELP_SHM_SPIN_PART : SAVED_NS_MAX;
    spin->saved_ns = spin->saved_ns < SAVED_NS_MAX ? spin->saved_ns : SAVED_NS_MAX;
    return spin->saved_ns >= KELP_SHM_SPIN_US * UINT64_C(1000) ? KELP_SHM_SPIN_US : 0;
}

void kelp_shm_spin_end(struct kelp_shm_spin *spin, uint64_t looked_us, bool found)
{
    const uint64_t looked_ns = looked_us * 1000;

    if (!found) {
        spin->saved_ns -= looked_ns < spin->saved_ns ? looked_ns : spin->saved_ns;
    }
}
