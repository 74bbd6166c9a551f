/*
 * The portable compute kind: matrix products by one set of OpenBLAS's kernels, that for processors
 * with AVX2 and FMA, whatever else the processor has. OpenBLAS chooses its set when it is loaded,
 * so this only checks; common/program/portable.h has the environment that makes it choose.
 *
 * Private to kernels/ and its tests.
 */
#ifndef KELP_KERNELS_CPU_PORTABLE_H
#define KELP_KERNELS_CPU_PORTABLE_H

#include <stdbool.h>

#include "kernels/device.h"

#define KELP_PORTABLE_CORE "Haswell"

struct kelp_portable_facts {
    bool avx2, fma;   /* the processor and the system have them */
    const char *core; /* the kernels that OpenBLAS runs; borrowed */
};

/* Of this processor and this process. */
void kelp__portable_facts(struct kelp_portable_facts *ret_facts);

/* Can it compute portably? Errors: KELP_ERR_INVALID, whose text says what is missing. */
kelp_status kelp__portable_check(const struct kelp_portable_facts *facts,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif
