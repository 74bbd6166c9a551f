#include "bench/gpu/candidates.h"

#ifndef KELP_BENCH_CUBLASLT

double gpu_best_candidate(const struct gpu_operands *operands, const struct gpu_product *product,
                          enum kelp_product_precision precision)
{
    (void)operands, (void)product, (void)precision;
    return 0.0;
}

#else

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>

#include "common/base/clock.h"

#define CANDIDATES      16
#define WORKSPACE_BYTES ((size_t)32 << 20) /* as kernels/cuda/products.cu */
#define ROUNDS          3
#define ROUND_SECONDS   0.004

#define TEXT_OF(number)  TEXT_OF_(number)
#define TEXT_OF_(number) #number
#define LIBRARY_NAME     "libcublasLt.so." TEXT_OF(CUBLAS_VER_MAJOR)

#define FUNCTIONS(X)                                                                               \
    X(cublasLtCreate)                                                                              \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)

static struct {
    cublasLtHandle_t handle; /* NULL: not loaded yet */
    int (*synchronize)(void);
#define ENTRY(name) __typeof__(&(name)) name;
    FUNCTIONS(ENTRY)
#undef ENTRY
} lt;

static _Noreturn void fail(const char *what)
{
    struct kelp_error error;
    (void)kelp_fail(&error, KELP_ERR_DEVICE, "cuBLASLt's candidates: %s", what);
    gpu_fail(&error);
}

static void check(cublasStatus_t status, const char *what)
{
    if (status != CUBLAS_STATUS_SUCCESS) {
        fail(what);
    }
}

static void *find(void *library, const char *name)
{
    void *function = library ? dlsym(library, name) : NULL;
    if (!function) {
        fail(name);
    }
    return function;
}

/* Load the libraries that the device uses. */
static void load(void)
{
    void *library = dlopen(LIBRARY_NAME, RTLD_NOW);
    library = library ? library : dlopen("/usr/local/cuda/lib64/" LIBRARY_NAME, RTLD_NOW);
#define LOAD(name) *(void **)&lt.name = find(library, #name);
    FUNCTIONS(LOAD)
#undef LOAD
    *(void **)&lt.synchronize = find(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxSynchronize");
    check(lt.cublasLtCreate(&lt.handle), "cublasLtCreate");
}

/* A product as cuBLASLt sees it: column-major, so that its A is our B. */
struct described {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    const struct gpu_operands *operands;
};

static cublasComputeType_t arithmetic_of(enum kelp_product_precision precision)
{
    return precision == KELP_PRODUCT_TF32       ? CUBLAS_COMPUTE_32F_FAST_TF32
           : precision == KELP_PRODUCT_BFLOAT16 ? CUBLAS_COMPUTE_32F_FAST_16BF
                                                : CUBLAS_COMPUTE_32F;
}

static cublasLtMatrixLayout_t layout_of(uint32_t rows, uint32_t columns)
{
    cublasLtMatrixLayout_t layout = NULL;
    check(lt.cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, columns, rows, columns), "a layout");
    return layout;
}

static struct described describe(const struct gpu_operands *operands,
                                 const struct gpu_product *product,
                                 enum kelp_product_precision precision)
{
    const cublasOperation_t a = product->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t b = product->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    struct described described = {.operands = operands};
    check(lt.cublasLtMatmulDescCreate(&described.operation, arithmetic_of(precision), CUDA_R_32F),
          "a product");
    check(lt.cublasLtMatmulDescSetAttribute(described.operation, CUBLASLT_MATMUL_DESC_TRANSA, &b,
                                            sizeof(b)),
          "a transposition");
    check(lt.cublasLtMatmulDescSetAttribute(described.operation, CUBLASLT_MATMUL_DESC_TRANSB, &a,
                                            sizeof(a)),
          "a transposition");
    described.a = product->transpose_a ? layout_of(product->k, product->m)
                                       : layout_of(product->m, product->k);
    described.b = product->transpose_b ? layout_of(product->n, product->k)
                                       : layout_of(product->k, product->n);
    described.c = layout_of(product->m, product->n);
    return described;
}

static void release(const struct described *described)
{
    (void)lt.cublasLtMatrixLayoutDestroy(described->a);
    (void)lt.cublasLtMatrixLayoutDestroy(described->b);
    (void)lt.cublasLtMatrixLayoutDestroy(described->c);
    (void)lt.cublasLtMatmulDescDestroy(described->operation);
}

static int ask(const struct described *described, cublasLtMatmulHeuristicResult_t *results)
{
    const size_t workspace = WORKSPACE_BYTES;
    const uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreference_t preference = NULL;
    int found = 0;
    check(lt.cublasLtMatmulPreferenceCreate(&preference), "a preference");
    check(lt.cublasLtMatmulPreferenceSetAttribute(
              preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)),
          "the workspace");
    check(lt.cublasLtMatmulPreferenceSetAttribute(preference,
                                                  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                  &reductions, sizeof(reductions)),
          "the reductions");
    check(lt.cublasLtMatmulAlgoGetHeuristic(lt.handle, described->operation, described->b,
                                            described->a, described->c, described->c, preference,
                                            CANDIDATES, results, &found),
          "the heuristic");
    (void)lt.cublasLtMatmulPreferenceDestroy(preference);
    return found;
}

/* 0: the algorithm does not run. */
static double seconds_of(const struct described *described, const cublasLtMatmulAlgo_t *algorithm,
                         uint64_t launches)
{
    const struct gpu_operands *operands = described->operands;
    const float one = 1.0f, zero = 0.0f;
    const uint64_t begin = kelp_clock_us();
    for (uint64_t i = 0; i < launches; i++) {
        if (lt.cublasLtMatmul(lt.handle, described->operation, &one, operands->dy, described->b,
                              operands->x, described->a, &zero, operands->out, described->c,
                              operands->out, described->c, algorithm, operands->workspace,
                              WORKSPACE_BYTES, NULL) != CUBLAS_STATUS_SUCCESS) {
            return 0.0;
        }
    }
    if (lt.synchronize() != 0) {
        fail("a kernel failed");
    }
    return 1e-6 * (double)(kelp_clock_us() - begin);
}

/* The fastest run suffices; a median would cost more rounds. */
static double measure(const struct described *described, const cublasLtMatmulAlgo_t *algorithm)
{
    uint64_t launches = 1;
    double best = seconds_of(described, algorithm, 2) / 2; /* loads the kernel */
    if (best == 0.0) {
        return 0.0;
    }
    for (double taken = 0.0; taken < ROUND_SECONDS;) {
        taken = seconds_of(described, algorithm, launches);
        launches *= taken < ROUND_SECONDS ? 2 : 1;
    }
    for (int i = 0; i < ROUNDS; i++) {
        const double each = seconds_of(described, algorithm, launches) / (double)launches;
        best = i == 0 || each < best ? each : best;
    }
    return best;
}

double gpu_best_candidate(const struct gpu_operands *operands, const struct gpu_product *product,
                          enum kelp_product_precision precision)
{
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    double best = 0.0;
    if (!lt.handle) {
        load();
    }
    const struct described described = describe(operands, product, precision);
    const int found = ask(&described, results);
    for (int i = 0; i < found; i++) {
        const double seconds =
            results[i].state == CUBLAS_STATUS_SUCCESS ? measure(&described, &results[i].algo) : 0.0;
        best = seconds > 0.0 && (best == 0.0 || seconds < best) ? seconds : best;
    }
    release(&described);
    return best;
}

#endif
