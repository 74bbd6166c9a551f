#include "kernels/cpu/loops.h"

/* The tables of one variant: kernels/cpu/device.c, loops_optimizer.c, loops_window.c. */
#define TABLES(variant)                                                                            \
    extern const struct kelp_device_table kelp__cpu_table_##variant;                               \
    extern const struct kelp_optimizer_loops kelp__optimizer_loops_##variant;                      \
    extern const struct kelp_window_loops kelp__window_loops_##variant;                            \
    static const struct kelp_loops loops_##variant = {                                             \
        .name = #variant,                                                                          \
        .table = &kelp__cpu_table_##variant,                                                       \
        .optimizer = &kelp__optimizer_loops_##variant,                                             \
        .window = &kelp__window_loops_##variant,                                                   \
    }

TABLES(base);
#ifdef KELP_LOOPS_AVX2
TABLES(avx2);
#endif

const struct kelp_loops *kelp__loops_variant(uint32_t index)
{
    if (index == 0) {
        return &loops_base;
    }
#ifdef KELP_LOOPS_AVX2
    if (index == 1 && __builtin_cpu_supports("avx2")) {
        return &loops_avx2;
    }
#endif
    return NULL;
}

const struct kelp_loops *kelp__loops(void)
{
    const struct kelp_loops *fastest = kelp__loops_variant(1);
    return fastest ? fastest : &loops_base;
}
