#include "common/rpc/spin.h"

#define NS_PER_US     INT64_C(1000)
#define SAVED_NS_MAX  (KELP_SPIN_SAVED_US * NS_PER_US)
#define LOOKED_US_MAX UINT64_C(1000000) /* older debts are forgotten */

static void save(struct kelp_spin *spin, int64_t ns)
{
    spin->saved_ns += ns;
    spin->saved_ns = spin->saved_ns < SAVED_NS_MAX ? spin->saved_ns : SAVED_NS_MAX;
}

void kelp_spin_init(struct kelp_spin *spin, uint32_t look_us, uint64_t now_us)
{
    *spin = (struct kelp_spin){.look_us = look_us, .saved_ns = SAVED_NS_MAX, .at_us = now_us};
}

uint32_t kelp_spin_begin(struct kelp_spin *spin, uint64_t now_us)
{
    const uint64_t passed_us = now_us - spin->at_us;
    const uint64_t full_us = (LOOKED_US_MAX + KELP_SPIN_SAVED_US) * KELP_SPIN_PART;

    spin->at_us = now_us;
    save(spin, (int64_t)(passed_us < full_us ? passed_us : full_us) * NS_PER_US / KELP_SPIN_PART);
    return spin->saved_ns >= KELP_SPIN_US * NS_PER_US ? spin->look_us : 0;
}

void kelp_spin_end(struct kelp_spin *spin, uint64_t looked_us, bool found)
{
    const uint64_t cost_us = looked_us < LOOKED_US_MAX ? looked_us : LOOKED_US_MAX;

    if (found && looked_us <= KELP_SPIN_US) {
        save(spin, KELP_SPIN_WORTH_US * NS_PER_US);
    } else {
        save(spin, -(int64_t)cost_us * NS_PER_US);
    }
}
