#include "kernels/cpu/loops/loops.h"

/* The tables of one variant. loops_optimizer.c may be compiled for wider vectors than
 * loops_window.c and loops_bfloat16.c. */
#define TABLES(variant, operators_of)                                                              \
    extern const struct kelp_optimizer_loops kelp__optimizer_loops_##variant;                      \
    extern const struct kelp_window_loops kelp__window_loops_##operators_of;                       \
    extern const struct kelp_bfloat16_loops kelp__bfloat16_loops_##operators_of;                   \
    static const struct kelp_loops loops_##variant = {                                             \
        .name = #variant,                                                                          \
        .operators = #operators_of,                                                                \
        .optimizer = &kelp__optimizer_loops_##variant,                                             \
        .window = &kelp__window_loops_##operators_of,                                              \
        .bfloat16 = &kelp__bfloat16_loops_##operators_of,                                          \
    }

TABLES(base, base);
#ifdef KELP_LOOPS_AVX2
TABLES(avx2, avx2);
TABLES(avx512, avx2);
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
    if (index == 2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512vl")) {
        return &loops_avx512;
    }
#endif
    return NULL;
}

const struct kelp_loops *kelp__loops(void)
{
    const struct kelp_loops *fastest = &loops_base, *next;

    for (uint32_t index = 1; (next = kelp__loops_variant(index)) != NULL; index++) {
        fastest = next;
    }
    return fastest;
}
