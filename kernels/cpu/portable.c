#include "kernels/cpu/portable.h"

#include <cblas.h>
#include <string.h>

void kelp__portable_facts(struct kelp_portable_facts *ret_facts)
{
    *ret_facts = (struct kelp_portable_facts){.core = openblas_get_corename()};
#ifdef __x86_64__
    ret_facts->avx2 = __builtin_cpu_supports("avx2") != 0;
    ret_facts->fma = __builtin_cpu_supports("fma") != 0;
#endif
}

kelp_status kelp__portable_check(const struct kelp_portable_facts *facts, struct kelp_error *reterr)
{
    if (!facts->avx2 || !facts->fma) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "cluster.compute: portable needs a processor with AVX2 and FMA "
                         "(x86-64-v3), and this one has no %s",
                         facts->avx2 ? "FMA" : "AVX2");
    }
    if (strcmp(facts->core, KELP_PORTABLE_CORE) != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "cluster.compute: portable needs OpenBLAS's kernels " KELP_PORTABLE_CORE
                         ", and this process runs %.32s: start it with "
                         "OPENBLAS_CORETYPE=" KELP_PORTABLE_CORE
                         " in its environment, and with an OpenBLAS that has all kernels "
                         "(DYNAMIC_ARCH)",
                         facts->core);
    }
    return KELP_OK;
}
