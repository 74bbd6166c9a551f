#include "kernels/cpu/loops.h"

/* The tables of one variant, each from a file loops_*.c of its own. */
#define TABLES(variant)                                                                            \
    extern const struct kelp_optimizer_loops kelp__optimizer_loops_##variant;                      \
    extern const struct kelp_operator_loops kelp__operator_loops_##variant;                        \
    extern const struct kelp_window_loops kelp__window_loops_##variant;                            \
    extern const struct kelp_activation_loops kelp__activation_loops_##variant;                    \
    extern const struct kelp_shape_loops kelp__shape_loops_##variant;                              \
    extern const struct kelp_norm_loops kelp__norm_loops_##variant;                                \
    extern const struct kelp_dropout_loops kelp__dropout_loops_##variant;                          \
    extern const struct kelp_criterion_loops kelp__criterion_loops_##variant;                      \
    static const struct kelp_loops loops_##variant = {                                             \
        .name = #variant,                                                                          \
        .optimizer = &kelp__optimizer_loops_##variant,                                             \
        .operators = &kelp__operator_loops_##variant,                                              \
        .window = &kelp__window_loops_##variant,                                                   \
        .activation = &kelp__activation_loops_##variant,                                           \
        .shape = &kelp__shape_loops_##variant,                                                     \
        .norm = &kelp__norm_loops_##variant,                                                       \
        .dropout = &kelp__dropout_loops_##variant,                                                 \
        .criterion = &kelp__criterion_loops_##variant,                                             \
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
    return fastest != NULL ? fastest : &loops_base;
}
