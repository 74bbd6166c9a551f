#include "kernels/cpu/loops.h"

extern const struct kelp_optimizer_loops kelp__optimizer_loops_base;
extern const struct kelp_operator_loops kelp__operator_loops_base;
extern const struct kelp_window_loops kelp__window_loops_base;
static const struct kelp_loops loops_base = {"base", &kelp__optimizer_loops_base,
                                             &kelp__operator_loops_base, &kelp__window_loops_base};

#ifdef KELP_LOOPS_AVX2
extern const struct kelp_optimizer_loops kelp__optimizer_loops_avx2;
extern const struct kelp_operator_loops kelp__operator_loops_avx2;
extern const struct kelp_window_loops kelp__window_loops_avx2;
static const struct kelp_loops loops_avx2 = {"avx2", &kelp__optimizer_loops_avx2,
                                             &kelp__operator_loops_avx2, &kelp__window_loops_avx2};
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
