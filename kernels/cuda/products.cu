/*
 * Matrix products, by cuBLASLt. The library is loaded when a device is created, so that one build
 * serves machines with and without it.
 *
 * Which of its kernels takes a product is its heuristic's first answer for the product's sizes, the
 * alignment of its operands and a fixed workspace, on a device of that kind: never a measurement.
 * Kernels that split k may add the parts up in a second step alone, in a fixed order. A stream
 * keeps the answers, so that each is asked for once.
 *
 * Operands and results are float32 in memory, and so are sums. With the device's precision cuBLASLt
 * may read operands as TensorFloat-32 or bfloat16; without it that is not allowed.
 */
#include <cublasLt.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/library.cuh"

#define WORKSPACE_BYTES                                                                            \
    ((size_t)32 << 20)      /* what NVIDIA recommends for Hopper; others need less                 \
                             */
#define PLANS_MAX     4096u /* past these a stream forgets all of them */
#define ALIGNMENT_MAX 16u   /* bytes; more changes no kernel */

/* ---- the library ----------------------------------------------------------------------------- */

#define LIBRARY_FUNCTIONS(X)                                                                       \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)                                                                 \
    X(cublasLtMatrixLayoutSetAttribute)

struct library {
    bool complete;
    char missing[64]; /* the function that it lacks */
#define LIBRARY_ENTRY(name) decltype(&::name) name;
    LIBRARY_FUNCTIONS(LIBRARY_ENTRY)
#undef LIBRARY_ENTRY
};

#define TEXT_OF(number)  TEXT_OF_(number)
#define TEXT_OF_(number) #number
#define LIBRARY_NAME     "libcublasLt.so." TEXT_OF(CUBLAS_VER_MAJOR)

static struct library load_library(void)
{
    struct library library;
    memset(&library, 0, sizeof(library));
    void *handle = kelp__cuda_library_open(LIBRARY_NAME, CUBLAS_VER_MAJOR);
    if (!handle) {
        return library;
    }
#define LIBRARY_FIND(name) kelp__cuda_library_find(handle, #name, &library.name, library.missing);
    LIBRARY_FUNCTIONS(LIBRARY_FIND)
#undef LIBRARY_FIND
    library.complete = library.missing[0] == '\0';
    return library;
}

static const struct library *the_library(void)
{
    static const struct library library = load_library(); /* once; C++ sees to threads */
    return &library;
}

kelp_status kelp__cuda_products_load(struct kelp_error *reterr)
{
    const struct library *library = the_library();
    if (library->complete) {
        return KELP_OK;
    }
    if (library->missing[0] != '\0') {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "%s has no %s: cuBLASLt of CUDA %d is needed",
                         LIBRARY_NAME, library->missing, CUBLAS_VER_MAJOR);
    }
    return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                     "%s is neither on the library path nor in /usr/local/cuda/lib64",
                     LIBRARY_NAME);
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* All that decides how a product is computed. No padding: compared byte by byte. */
struct product {
    uint64_t lda, ldb, ldc, stride_a, stride_b, stride_c;
    uint32_t m, n, k, batch;
    uint32_t transpose_a, transpose_b, accumulate;
    uint32_t align_a, align_b, align_c; /* bytes */
};

struct plan {
    struct product product;
    bool used;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
};

struct kelp__cuda_products {
    cublasLtHandle_t handle;
    cublasComputeType_t arithmetic;
    void *workspace;    /* NULL until the first product: a stream may do nothing but copy */
    struct plan *plans; /* open addressing */
    uint32_t count, capacity;
};

static void plan_fini(struct plan *plan)
{
    const struct library *library = the_library();
    if (plan->operation) {
        (void)library->cublasLtMatmulDescDestroy(plan->operation);
    }
    cublasLtMatrixLayout_t layouts[] = {plan->a, plan->b, plan->c};
    for (cublasLtMatrixLayout_t layout : layouts) {
        if (layout) {
            (void)library->cublasLtMatrixLayoutDestroy(layout);
        }
    }
    memset(plan, 0, sizeof(*plan));
}

/* A matrix as it lies in memory: `rows` rows that are ld elements apart. cuBLASLt counts by
 * columns, so it sees the transposed one. */
static bool describe_matrix(cublasLtMatrixLayout_t *ret, uint32_t rows, uint32_t columns,
                            uint64_t ld, uint32_t batch, uint64_t stride)
{
    const struct library *library = the_library();
    const int32_t count = static_cast<int32_t>(batch);
    const int64_t distance = static_cast<int64_t>(stride);
    return library->cublasLtMatrixLayoutCreate(ret, CUDA_R_32F, columns, rows,
                                               static_cast<int64_t>(ld)) == CUBLAS_STATUS_SUCCESS &&
           library->cublasLtMatrixLayoutSetAttribute(*ret, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                     &count,
                                                     sizeof(count)) == CUBLAS_STATUS_SUCCESS &&
           library->cublasLtMatrixLayoutSetAttribute(
               *ret, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &distance, sizeof(distance)) ==
               CUBLAS_STATUS_SUCCESS;
}

static bool prefer(cublasLtMatmulPreference_t preference,
                   cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t size)
{
    return the_library()->cublasLtMatmulPreferenceSetAttribute(preference, attribute, value,
                                                               size) == CUBLAS_STATUS_SUCCESS;
}

/* The heuristic's first answer. In its words A is our B, and B our A. */
static bool choose(const struct kelp__cuda_products *products, struct plan *plan)
{
    const struct library *library = the_library();
    const uint64_t workspace = WORKSPACE_BYTES;
    const uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct product *product = &plan->product;
    cublasLtMatmulPreference_t preference = NULL;
    if (library->cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) {
        return false;
    }
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    const bool chosen = prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                               sizeof(workspace)) &&
                        prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                               sizeof(reductions)) &&
                        prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                               &product->align_b, sizeof(product->align_b)) &&
                        prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               &product->align_a, sizeof(product->align_a)) &&
                        prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                               &product->align_c, sizeof(product->align_c)) &&
                        prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                               &product->align_c, sizeof(product->align_c)) &&
                        library->cublasLtMatmulAlgoGetHeuristic(
                            products->handle, plan->operation, plan->b, plan->a, plan->c, plan->c,
                            preference, 1, &result, &found) == CUBLAS_STATUS_SUCCESS &&
                        found == 1 && result.state == CUBLAS_STATUS_SUCCESS;
    (void)library->cublasLtMatmulPreferenceDestroy(preference);
    if (chosen) {
        plan->algorithm = result.algo;
    }
    return chosen;
}

static bool plan_init(const struct kelp__cuda_products *products, struct plan *plan,
                      const struct product *product)
{
    const struct library *library = the_library();
    const cublasOperation_t a = product->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t b = product->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    memset(plan, 0, sizeof(*plan));
    plan->product = *product;
    plan->used =
        library->cublasLtMatmulDescCreate(&plan->operation, products->arithmetic, CUDA_R_32F) ==
            CUBLAS_STATUS_SUCCESS &&
        library->cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, &b,
                                                sizeof(b)) == CUBLAS_STATUS_SUCCESS &&
        library->cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB, &a,
                                                sizeof(a)) == CUBLAS_STATUS_SUCCESS &&
        describe_matrix(&plan->a, product->transpose_a ? product->k : product->m,
                        product->transpose_a ? product->m : product->k, product->lda,
                        product->batch, product->stride_a) &&
        describe_matrix(&plan->b, product->transpose_b ? product->n : product->k,
                        product->transpose_b ? product->k : product->n, product->ldb,
                        product->batch, product->stride_b) &&
        describe_matrix(&plan->c, product->m, product->n, product->ldc, product->batch,
                        product->stride_c) &&
        choose(products, plan);
    if (!plan->used) {
        plan_fini(plan);
    }
    return plan->used;
}

static uint64_t hash_of(const struct product *product)
{
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(product);
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (size_t i = 0; i < sizeof(*product); i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return hash ^ hash >> 32;
}

/* Where the product's plan is, or would be. */
static struct plan *place_of(struct plan *plans, uint32_t capacity, const struct product *product)
{
    uint64_t i = hash_of(product);
    for (;; i++) {
        struct plan *plan = &plans[i % capacity];
        if (!plan->used || memcmp(&plan->product, product, sizeof(*product)) == 0) {
            return plan;
        }
    }
}

static void forget_plans(struct kelp__cuda_products *products)
{
    for (uint32_t i = 0; i < products->capacity; i++) {
        if (products->plans[i].used) {
            plan_fini(&products->plans[i]);
        }
    }
    products->count = 0;
}

/* At most half of the places are used. */
static bool make_room(struct kelp__cuda_products *products)
{
    if (products->count >= PLANS_MAX) {
        forget_plans(products);
    }
    if (2 * (products->count + 1) <= products->capacity) {
        return true;
    }
    const uint32_t capacity = products->capacity != 0 ? 2 * products->capacity : 64;
    struct plan *plans = static_cast<struct plan *>(calloc(capacity, sizeof(*plans)));
    if (!plans) {
        return false;
    }
    for (uint32_t i = 0; i < products->capacity; i++) {
        if (products->plans[i].used) {
            *place_of(plans, capacity, &products->plans[i].product) = products->plans[i];
        }
    }
    free(products->plans);
    products->plans = plans;
    products->capacity = capacity;
    return true;
}

/* NULL, and the failure noted, where there is none. */
static const struct plan *plan_of(struct kelp__cuda_stream *stream, const struct product *product)
{
    struct kelp__cuda_products *products = stream->products;
    if (!make_room(products)) {
        kelp__cuda_fail(stream, KELP_ERR_NO_MEMORY, "a matrix product found no memory");
        return NULL;
    }
    struct plan *plan = place_of(products->plans, products->capacity, product);
    if (plan->used) {
        return plan;
    }
    if (!plan_init(products, plan, product)) {
        kelp__cuda_fail(stream, KELP_ERR_DEVICE, "cuBLASLt has no kernel for a matrix product");
        return NULL;
    }
    products->count++;
    return plan;
}

/* ---- life ------------------------------------------------------------------------------------ */

static cublasComputeType_t arithmetic_of(enum kelp_product_precision precision)
{
    switch (precision) {
    case KELP_PRODUCT_TF32:
        return CUBLAS_COMPUTE_32F_FAST_TF32;
    case KELP_PRODUCT_BFLOAT16:
        return CUBLAS_COMPUTE_32F_FAST_16BF;
    case KELP_PRODUCT_FLOAT32:
        break;
    }
    return CUBLAS_COMPUTE_32F;
}

kelp_status kelp__cuda_products_create(enum kelp_product_precision precision,
                                       struct kelp__cuda_products **ret, struct kelp_error *reterr)
{
    struct kelp__cuda_products *products =
        static_cast<struct kelp__cuda_products *>(calloc(1, sizeof(*products)));
    if (!products) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a stream");
    }
    products->arithmetic = arithmetic_of(precision);
    if (the_library()->cublasLtCreate(&products->handle) != CUBLAS_STATUS_SUCCESS) {
        kelp__cuda_products_destroy(products);
        return kelp_fail(reterr, KELP_ERR_DEVICE, "cuBLASLt does not start on this GPU");
    }
    *ret = products;
    return KELP_OK;
}

void kelp__cuda_products_destroy(struct kelp__cuda_products *products)
{
    if (!products) {
        return;
    }
    forget_plans(products);
    if (products->handle) {
        (void)the_library()->cublasLtDestroy(products->handle);
    }
    (void)cudaFree(products->workspace);
    free(products->plans);
    free(products);
}

/* ---- what decides the bits ------------------------------------------------------------------- */

/* Products that models have, as y = x w^T: rows of x, of w, and their length. Few: each is asked
 * for when a worker starts, with its two gradients. */
static const uint32_t listed[][3] = {{32, 256, 336}, {64, 96, 512}, {512, 4096, 4096}};

static const cublasLtMatmulAlgoConfigAttributes_t settings[] = {
    CUBLASLT_ALGO_CONFIG_ID,
    CUBLASLT_ALGO_CONFIG_TILE_ID,
    CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
    CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
    CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
    CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
    CUBLASLT_ALGO_CONFIG_STAGES_ID,
    CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID,
    CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
};

/* The two of 16 bits leave the rest of the value zero. */
static uint64_t setting_of(const cublasLtMatmulAlgo_t *algorithm,
                           cublasLtMatmulAlgoConfigAttributes_t setting)
{
    uint32_t value = 0;
    size_t written = 0;
    const bool narrow = setting == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ||
                        setting == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
    return the_library()->cublasLtMatmulAlgoConfigGetAttribute(
               algorithm, setting, &value, narrow ? sizeof(uint16_t) : sizeof(value), &written) ==
                   CUBLAS_STATUS_SUCCESS
               ? value
               : UINT64_MAX;
}

static uint32_t hash_choice(const struct kelp__cuda_products *products,
                            const struct product *product, uint32_t hash)
{
    struct plan plan;
    if (!plan_init(products, &plan, product)) {
        return kelp__cuda_hash(hash, UINT64_MAX);
    }
    for (const cublasLtMatmulAlgoConfigAttributes_t setting : settings) {
        hash = kelp__cuda_hash(hash, setting_of(&plan.algorithm, setting));
    }
    plan_fini(&plan);
    return hash;
}

static struct product dense(uint32_t m, uint32_t n, uint32_t k, bool transpose_a, bool transpose_b)
{
    struct product product = {};
    product.m = m;
    product.n = n;
    product.k = k;
    product.batch = 1;
    product.transpose_a = transpose_a ? 1 : 0;
    product.transpose_b = transpose_b ? 1 : 0;
    product.lda = transpose_a ? m : k;
    product.ldb = transpose_b ? k : n;
    product.ldc = n;
    product.align_a = product.align_b = product.align_c = ALIGNMENT_MAX;
    return product;
}

kelp_status kelp__cuda_products_describe(enum kelp_product_precision precision, char *text,
                                         size_t size, struct kelp_error *reterr)
{
    const size_t version = the_library()->cublasLtGetVersion(); /* 130101: 13.1.1 */
    uint32_t hash = KELP_CUDA_HASH;
    struct kelp__cuda_products *products = NULL;
    const kelp_status status = kelp__cuda_products_create(precision, &products, reterr);
    if (status != KELP_OK) {
        return status;
    }
    for (const uint32_t *one : listed) {
        const struct product all[] = {
            dense(one[0], one[1], one[2], false, true),  /* y = x w^T */
            dense(one[0], one[2], one[1], false, false), /* dx = dy w */
            dense(one[1], one[2], one[0], true, false),  /* dw = dy^T x */
        };
        for (const struct product &product : all) {
            hash = hash_choice(products, &product, hash);
        }
    }
    kelp__cuda_products_destroy(products);
    (void)snprintf(text, size, "cublaslt-%zu.%zu.%zu %08x", version / 10000, version / 100 % 100,
                   version % 100, hash);
    return KELP_OK;
}

/* ---- a product ------------------------------------------------------------------------------- */

static uint32_t alignment_of(const void *pointer)
{
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    const uint32_t lowest = static_cast<uint32_t>(address & (~address + 1) & UINT32_MAX);
    return lowest == 0 || lowest > ALIGNMENT_MAX ? ALIGNMENT_MAX : lowest;
}

/* NULL, and a failure noted: there is no memory for it. The stream's device is the thread's. */
static void *workspace_of(struct kelp__cuda_stream *stream)
{
    struct kelp__cuda_products *products = stream->products;
    if (!products->workspace) {
        const cudaError_t error = cudaMalloc(&products->workspace, WORKSPACE_BYTES);
        if (error != cudaSuccess) {
            (void)cudaGetLastError();
            kelp__cuda_note(stream, error);
        }
    }
    return products->workspace;
}

/* The sum of no products. */
static __global__ void clear(float *c, uint64_t ldc, uint64_t stride, uint32_t m, uint32_t n,
                             uint64_t count)
{
    KELP_CUDA_FOR (i, count) {
        const uint64_t row = i / n;
        c[row / m * stride + row % m * ldc + i % n] = 0.0f;
    }
}

void kelp__cuda_matmul(struct kelp_stream *base, const struct kelp_matmul *p)
{
    struct kelp__cuda_stream *stream = kelp__cuda_stream_of(base);
    const uint32_t batch = p->batch != 0 ? p->batch : 1;
    const bool accumulate = p->write == KELP_ACCUMULATE;
    if (p->m == 0 || p->n == 0) {
        return;
    }
    if (p->k == 0) {
        const uint64_t count = accumulate ? 0 : (uint64_t)batch * p->m * p->n;
        KELP_CUDA_LAUNCH(base, clear, kelp__cuda_blocks(count), KELP_CUDA_THREADS, p->c, p->ldc,
                         p->stride_c, p->m, p->n, count);
        return;
    }
    if (p->m > INT32_MAX || p->n > INT32_MAX || p->k > INT32_MAX || batch > INT32_MAX) {
        kelp__cuda_fail(stream, KELP_ERR_DEVICE, "a matrix product has more than 2147483647 rows");
        return;
    }
    struct product product;
    memset(&product, 0, sizeof(product));
    product.lda = p->lda;
    product.ldb = p->ldb;
    product.ldc = p->ldc;
    product.stride_a = batch > 1 ? p->stride_a : 0;
    product.stride_b = batch > 1 ? p->stride_b : 0;
    product.stride_c = batch > 1 ? p->stride_c : 0;
    product.m = p->m;
    product.n = p->n;
    product.k = p->k;
    product.batch = batch;
    product.transpose_a = p->transpose_a;
    product.transpose_b = p->transpose_b;
    product.accumulate = accumulate;
    product.align_a = alignment_of(p->a);
    product.align_b = alignment_of(p->b);
    product.align_c = alignment_of(p->c);
    const struct plan *plan = plan_of(stream, &product);
    if (!plan || !kelp__cuda_may_launch(stream, 1)) {
        return;
    }
    void *workspace = workspace_of(stream);
    if (!workspace) {
        return;
    }
    const float alpha = 1.0f, beta = accumulate ? 1.0f : 0.0f;
    if (the_library()->cublasLtMatmul(stream->products->handle, plan->operation, &alpha, p->b,
                                      plan->b, p->a, plan->a, &beta, p->c, plan->c, p->c, plan->c,
                                      &plan->algorithm, workspace, WORKSPACE_BYTES,
                                      stream->handle) != CUBLAS_STATUS_SUCCESS) {
        kelp__cuda_fail(stream, KELP_ERR_DEVICE, "a matrix product was refused by cuBLASLt");
    }
}
