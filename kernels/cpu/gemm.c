#include "kernels/cpu/gemm.h"

#include <cblas.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"

/* Below so many multiplications oneDNN's preparation costs more than its vectors gain. */
#define TINY_PRODUCT 8192
/* What OpenBLAS maps for each of its threads at the first product. */
#define OPENBLAS_BUFFER_BYTES ((size_t)128 << 20)
#define OPENBLAS_BUFFERS_MAX  64 /* at most so many are checked */

static bool has_openblas_avx512(void)
{
    static const char *const cores[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cores); i++) {
        if (strcmp(openblas_get_corename(), cores[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* OpenBLAS retries for ever if it cannot map its buffers, so check that it can. */
static kelp_status check_room(uint32_t threads, struct kelp_error *reterr)
{
    void *rooms[OPENBLAS_BUFFERS_MAX];
    const uint32_t wanted = threads < OPENBLAS_BUFFERS_MAX ? threads : OPENBLAS_BUFFERS_MAX;
    uint32_t count = 0;

    while (count < wanted) {
        rooms[count] = mmap(NULL, OPENBLAS_BUFFER_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (rooms[count] == MAP_FAILED) {
            break;
        }
        count++;
    }
    for (uint32_t i = 0; i < count; i++) {
        (void)munmap(rooms[i], OPENBLAS_BUFFER_BYTES);
    }
    return count == wanted
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                           "OpenBLAS needs %zu MiB more of address space, and this process cannot "
                           "have that much; see ulimit -v, ulimit -d and vm.overcommit_memory",
                           wanted * (OPENBLAS_BUFFER_BYTES >> 20));
}

static kelp_status set_all_threads(uint32_t threads, struct kelp_error *reterr)
{
    const kelp_status status = check_room(threads, reterr);
    if (status != KELP_OK) {
        return status;
    }
    openblas_set_num_threads((int)threads);
    if (openblas_get_num_threads() != (int)threads) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%u threads: this OpenBLAS runs %d at most",
                         threads, openblas_get_num_threads());
    }
    if (kelp__onednn_threads_max() < threads) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%u threads: OpenMP runs %u at most; see OMP_THREAD_LIMIT", threads,
                         kelp__onednn_threads_max());
    }
    return KELP_OK;
}

kelp_status kelp__gemm_init(struct kelp_gemm *gemm, uint32_t threads, struct kelp_error *reterr)
{
    const kelp_status status = set_all_threads(threads, reterr);
    if (status != KELP_OK) {
        return status;
    }
    /* An OpenBLAS older than the processor does not use its AVX-512 and is half as fast as
     * oneDNN; without AVX-512 the two are about equal. */
    *gemm = (struct kelp_gemm){.threads = threads,
                               .onednn = kelp__onednn_has_avx512() && !has_openblas_avx512()};
    return KELP_OK;
}

kelp_status kelp__gemm_init_portable(struct kelp_gemm *gemm, uint32_t threads,
                                     struct kelp_error *reterr)
{
    struct kelp_portable_facts facts;
    kelp__portable_facts(&facts);
    kelp_status status = kelp__portable_check(&facts, reterr);
    if (status == KELP_OK) {
        status = set_all_threads(threads, reterr);
    }
    if (status == KELP_OK) {
        *gemm = (struct kelp_gemm){.threads = threads, .portable = true};
    }
    return status;
}

void kelp__gemm_describe(const struct kelp_gemm *gemm, char text[KELP_GEMM_TEXT_SIZE])
{
    /* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...": the second word is the version. */
    char version[32] = "?";
    (void)sscanf(openblas_get_config(), "%*s %31s", version); /* "?" stays when there is none */
    char onednn[KELP_ONEDNN_TEXT_SIZE];
    if (gemm->portable) {
        (void)snprintf(text, KELP_GEMM_TEXT_SIZE, "openblas-%.16s %.24s", version,
                       openblas_get_corename());
        return;
    }
    kelp__onednn_describe(onednn);
    (void)snprintf(text, KELP_GEMM_TEXT_SIZE, "openblas-%.16s %.24s %.40s", version,
                   openblas_get_corename(), onednn);
}

static bool fits_blas(const struct kelp_matmul *p)
{
    return p->m <= INT_MAX && p->n <= INT_MAX && p->k <= INT_MAX && p->lda <= INT_MAX &&
           p->ldb <= INT_MAX && p->ldc <= INT_MAX;
}

/* OpenBLAS has one thread count for the process; devices used in turn may need different ones. */
static void set_threads(uint32_t threads)
{
    if (openblas_get_num_threads() != (int)threads) {
        openblas_set_num_threads((int)threads);
    }
}

kelp_status kelp__gemm_run(const struct kelp_gemm *gemm, const struct kelp_matmul *p)
{
    if (!fits_blas(p)) {
        return KELP_ERR_DEVICE;
    }
    if (p->m == 0 || p->n == 0) {
        return KELP_OK;
    }
    if (p->k == 0) { /* OpenBLAS refuses an ld of 0 */
        for (uint32_t row = 0; p->write == KELP_OVERWRITE && row < p->m; row++) {
            memset(p->c + row * p->ldc, 0, p->n * sizeof(float));
        }
        return KELP_OK;
    }
    if (gemm->onednn && (uint64_t)p->m * p->n >= TINY_PRODUCT / p->k) {
        return kelp__onednn_product(p, gemm->threads);
    }
    set_threads(gemm->threads);
    cblas_sgemm(CblasRowMajor, p->transpose_a ? CblasTrans : CblasNoTrans,
                p->transpose_b ? CblasTrans : CblasNoTrans, (int)p->m, (int)p->n, (int)p->k, 1.0f,
                p->a, (int)p->lda, p->b, (int)p->ldb, p->write == KELP_ACCUMULATE ? 1.0f : 0.0f,
                p->c, (int)p->ldc);
    return KELP_OK;
}
