/* The matrix products of a build without OpenBLAS and oneDNN (kernels/cpu/plain.h). */
#include <limits.h>
#include <stdio.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/plain.h"

kelp_status kelp__gemm_init(struct kelp_gemm *gemm, uint32_t threads, struct kelp_error *reterr)
{
    if (threads != 1) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%u threads: the plain matrix product of this build runs 1 at most",
                         threads);
    }
    *gemm = (struct kelp_gemm){.threads = threads};
    return KELP_OK;
}

kelp_status kelp__gemm_init_portable(struct kelp_gemm *gemm, uint32_t threads,
                                     struct kelp_error *reterr)
{
    (void)gemm;
    (void)threads;
    return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                     "cluster.compute: portable needs OpenBLAS, and this build is without it "
                     "(KELP_PARTS=kernels)");
}

void kelp__gemm_describe(const struct kelp_gemm *gemm, char text[KELP_GEMM_TEXT_SIZE])
{
    (void)gemm;
    (void)snprintf(text, KELP_GEMM_TEXT_SIZE, "plain %s%s", kelp__plain()->name,
                   kelp__plain()->fused ? " fma" : "");
}

kelp_status kelp__gemm_run(const struct kelp_gemm *gemm, const struct kelp_matmul *p)
{
    (void)gemm;
    if (p->m > INT_MAX || p->n > INT_MAX || p->k > INT_MAX || p->lda > INT_MAX ||
        p->ldb > INT_MAX || p->ldc > INT_MAX) {
        return KELP_ERR_DEVICE; /* as with OpenBLAS */
    }
    return kelp__plain()->run(p);
}
