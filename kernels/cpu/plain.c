#include "kernels/cpu/plain.h"

#include <stddef.h>

extern const struct kelp_plain kelp__plain_base;
#ifdef KELP_LOOPS_AVX2
extern const struct kelp_plain kelp__plain_avx2, kelp__plain_avx512;
#endif

const struct kelp_plain *kelp__plain_variant(uint32_t index)
{
    if (index == 0) {
        return &kelp__plain_base;
    }
#ifdef KELP_LOOPS_AVX2
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (index == 1 && avx2) {
        return &kelp__plain_avx2;
    }
    if (index == 2 && avx2 && __builtin_cpu_supports("avx512f")) {
        return &kelp__plain_avx512;
    }
#endif
    return NULL;
}

const struct kelp_plain *kelp__plain(void)
{
    const struct kelp_plain *fastest = kelp__plain_variant(0), *next;

    for (uint32_t index = 1; (next = kelp__plain_variant(index)) != NULL; index++) {
        fastest = next;
    }
    return fastest;
}
