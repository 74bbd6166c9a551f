#include "common/program/options/version.h"

#include <stdbool.h>

const char *kelp_version(void)
{
    return KELP_VERSION;
}

const char *kelp_version_commit(void)
{
    return kelp__commit ? kelp__commit : "unknown commit";
}

/* The loops that kernels/CMakeLists.txt compiles, and the ones that kernels/cpu/loops/loops.c
 * chooses. */
static void print_loops(FILE *out)
{
#ifdef __x86_64__
    (void)fprintf(out, "loops      base, AVX2; this machine runs %s\n",
                  __builtin_cpu_supports("avx2") ? "AVX2" : "base");
    (void)fprintf(out, "BLAS       %s; AVX-512 %s on this machine\n", KELP_BLAS,
                  __builtin_cpu_supports("avx512f") ? "is there" : "is not there");
#else
    (void)fprintf(out, "loops      base\nBLAS       %s\n", KELP_BLAS);
#endif
}

void kelp_version_print(const char *program, FILE *out)
{
    (void)fprintf(out, "%s %s (%s)\n", program, kelp_version(), kelp_version_commit());
    (void)fprintf(out, "compiler   %s\n", KELP_COMPILER);
    print_loops(out);
    (void)fprintf(out, "CUDA       no\nlibraries  %s\netcd       API v3 over HTTP\n",
                  KELP_LIBRARIES);
}
