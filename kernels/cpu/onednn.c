#include "kernels/cpu/onednn.h"

#include <dnnl.h>
#include <stdio.h>

/* From the OpenMP runtime of oneDNN, whichever compiler builds Kelp. Settings apply to the
 * calling thread. */
extern void omp_set_num_threads(int threads);
extern void omp_set_dynamic(int dynamic);
extern int omp_get_thread_limit(void);

static const char *instruction_set(unsigned isa)
{
    switch (isa) {
    case dnnl_cpu_isa_sse41:
        return "sse41";
    case dnnl_cpu_isa_avx:
        return "avx";
    case dnnl_cpu_isa_avx2:
        return "avx2";
    case dnnl_cpu_isa_avx2_vnni:
        return "avx2_vnni";
    case dnnl_cpu_isa_avx512_core:
        return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
        return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
        return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
        return "avx512_core_amx";
    default:
        return NULL;
    }
}

void kelp__onednn_describe(char text[KELP_ONEDNN_TEXT_SIZE])
{
    const dnnl_version_t *version = dnnl_version();
    const unsigned isa = dnnl_get_effective_cpu_isa();
    const char *name = instruction_set(isa);
    char number[16];
    (void)snprintf(number, sizeof(number), "isa-%x", isa);
    (void)snprintf(text, KELP_ONEDNN_TEXT_SIZE, "onednn-%d.%d.%d %s", version->major,
                   version->minor, version->patch, name ? name : number);
}

bool kelp__onednn_has_avx512(void)
{
    const unsigned isa = dnnl_get_effective_cpu_isa();
    return (isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

uint32_t kelp__onednn_threads_max(void)
{
    const int limit = omp_get_thread_limit();
    return limit > 0 ? (uint32_t)limit : 1;
}

kelp_status kelp__onednn_product(const struct kelp_matmul *p, uint32_t threads)
{
    omp_set_num_threads((int)threads);
    /* With OMP_DYNAMIC the number of threads, and so the bits, would depend on the load. */
    omp_set_dynamic(0);
    const dnnl_status_t status =
        dnnl_sgemm(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', p->m, p->n, p->k, 1.0f,
                   p->a, (dnnl_dim_t)p->lda, p->b, (dnnl_dim_t)p->ldb,
                   p->write == KELP_ACCUMULATE ? 1.0f : 0.0f, p->c, (dnnl_dim_t)p->ldc);
    if (status == dnnl_success) {
        return KELP_OK;
    }
    return status == dnnl_out_of_memory ? KELP_ERR_NO_MEMORY : KELP_ERR_DEVICE;
}
