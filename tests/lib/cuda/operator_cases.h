/*
 * Cases of operators that run on the CPU and on another device, whose results are compared:
 * elementwise operators bit by bit, sums within a tolerance. The content of a case is random, from
 * a seed.
 *
 * A case describes its buffers, and has a function that puts them into the operator's arguments.
 * All buffers, also outputs, start with the same random values on both devices, and lie between
 * guards that must not be written to.
 */
#ifndef KELP_TESTS_LIB_CUDA_OPERATOR_CASES_H
#define KELP_TESTS_LIB_CUDA_OPERATOR_CASES_H

#include "kernels/device.h"

#define CASE_BUFFERS_MAX 16

/* Initial elements of a buffer. */
enum case_content {
    CASE_SIGNED,   /* float32, -1 to 1, also tiny values and a few exact zeros */
    CASE_MODERATE, /* float32, -2 to 2 */
    CASE_POSITIVE, /* float32, 0.05 to 1 */
    CASE_SMALL,    /* float32, -0.25 to 0.25 */
    CASE_IDS,      /* float32, whole numbers below `limit` */
    CASE_NUMBERS,  /* uint32, below `limit`; limit 0: any */
    CASE_DOUBLES,  /* float64, 0 */
};
struct case_buffer {
    uint64_t count; /* elements; 0: the operator gets NULL */
    enum case_content content;
    uint32_t limit;
    bool compared;      /* an output */
    uint32_t misplaced; /* starts this many elements after an aligned address */
};
struct operator_case {
    char name[96]; /* "softmax rows=3 columns=77 causal" */
    struct case_buffer buffers[CASE_BUFFERS_MAX];
    /* 0: outputs must be equal bit by bit; otherwise |a - b| <= tolerance max(largest |a| of the
     * buffer, 1e-6) for each element. */
    double tolerance;
    bool unrecorded; /* run() does more than enqueue operators, so it cannot be recorded */
    /* Enqueue; buffers[i] is buffer i on the stream's device. */
    void (*run)(struct kelp_stream *stream, void *const *buffers, const void *arguments);
    /* Further arguments of run(), copied by cases_add(). */
    unsigned char arguments[512];
};

struct operator_cases {
    struct operator_case *cases; /* owned */
    uint32_t count, capacity;
    uint64_t seed; /* of all sizes: use only cases_draw() */
};
void operator_cases_init(struct operator_cases *cases, uint64_t seed);
void operator_cases_fini(struct operator_cases *cases);
/* A random whole number from low to high, inclusive. */
uint32_t cases_draw(struct operator_cases *cases, uint32_t low, uint32_t high);
bool cases_flip(struct operator_cases *cases);
/* Add a case; all zero except the name (printf), run and a copy of arguments. */
struct operator_case *cases_add(struct operator_cases *cases,
                                void (*run)(struct kelp_stream *, void *const *, const void *),
                                const void *arguments, size_t arguments_size, const char *format,
                                ...) __attribute__((format(printf, 5, 6)));

/* `count` elements at an aligned address, or a few elements after one. */
void cases_set_buffer(struct operator_cases *cases, struct case_buffer *buffer, uint64_t count,
                      enum case_content content);
enum kelp_write cases_draw_write(struct operator_cases *cases);
/* Tolerance for products whose operands are read in that precision. */
double cases_precision_tolerance(enum kelp_product_precision precision);
/* Set the tolerance of cases that have one to that of the precision. */
void cases_set_precision(struct operator_cases *cases, enum kelp_product_precision precision);
/* Align all buffers. */
void cases_align(struct operator_cases *cases);
/* "+=" or "=", for names. */
const char *case_sign(enum kelp_write write);

/* X(name): cases_NAME() adds the cases of some files of kernels/cuda. `large`: also sizes that
 * fill a device, which take too long on an emulated one. */
#define OPERATOR_GROUPS(X)                                                                         \
    X(elements)                                                                                    \
    X(shape)                                                                                       \
    X(sums)                                                                                        \
    X(rows)                                                                                        \
    X(batch_norm)                                                                                  \
    X(embedding)                                                                                   \
    X(criterion)                                                                                   \
    X(updates)                                                                                     \
    X(windows)                                                                                     \
    X(products)                                                                                    \
    X(layers)
#define OPERATOR_GROUP_DECLARE(name) void cases_##name(struct operator_cases *cases, bool large);
OPERATOR_GROUPS(OPERATOR_GROUP_DECLARE)
#undef OPERATOR_GROUP_DECLARE
/* Sorts more rows than the tiles that a block of KELP_CUDA_THREADS threads sums in one round. */
void cases_many_tiles(struct operator_cases *cases);

/*
 * Run a case on both devices and compare; then run it `repeats` more times on `other`, which must
 * give the same bits each time; every second time it is replayed if `other` can record. seed: of
 * the buffers' contents. Errors: KELP_ERR_MISMATCH, with the case, the buffer, the element and both
 * values; errors of a stream's wait().
 */
struct case_devices {
    struct kelp_device *cpu, *other;
    struct kelp_stream *cpu_stream, *other_stream;
    /* Called before each run on `other`, with 0 to repeats; may be NULL. */
    void (*before_run)(void *user, uint32_t run);
    void *user;
    /* Raised to the largest difference of a case with a tolerance, relative to the buffer's
     * largest value; may be NULL. */
    double *worst;
};
kelp_status operator_case_check(const struct operator_case *one, const struct case_devices *devices,
                                uint64_t seed, uint32_t repeats, struct kelp_error *reterr);

#endif
