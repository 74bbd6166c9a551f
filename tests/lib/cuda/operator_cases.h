/*
 * Cases of operators that are run on the CPU and on another device, and compared: element-wise ones
 * bit by bit, sums within a tolerance. What a case is made of is drawn from a seed.
 *
 * A case names its buffers, and a function that puts them into the operator's arguments. All
 * buffers, outputs too, begin with the same drawn values on both devices, and lie between guards
 * that nothing may write to.
 */
#ifndef KELP_TESTS_LIB_CUDA_OPERATOR_CASES_H
#define KELP_TESTS_LIB_CUDA_OPERATOR_CASES_H

#include "kernels/device.h"

#define CASE_BUFFERS_MAX 16

/* What a buffer's elements begin with. */
enum case_content {
    CASE_SIGNED, /* float32, -1 to 1, with a few exact zeros, as large numbers and tiny ones too */
    CASE_MODERATE, /* float32, -2 to 2 */
    CASE_POSITIVE, /* float32, 0.05 to 1 */
    CASE_SMALL,    /* float32, -0.25 to 0.25 */
    CASE_IDS,      /* float32, whole numbers below `limit` */
    CASE_NUMBERS,  /* uint32, below `limit`, any if that is 0 */
    CASE_DOUBLES,  /* float64, 0 */
};
struct case_buffer {
    uint64_t count; /* elements; 0: the operator gets NULL */
    enum case_content content;
    uint32_t limit;
    bool compared;      /* an output */
    uint32_t misplaced; /* begins that many elements behind an aligned place */
};
struct operator_case {
    char name[96]; /* "softmax rows=3 columns=77 causal" */
    struct case_buffer buffers[CASE_BUFFERS_MAX];
    /* Outputs are equal bit by bit if this is 0; else |a - b| <= tolerance max(largest |a| of the
     * buffer, 1e-6), element by element. */
    double tolerance;
    bool unrecorded; /* run() does more than enqueue operators */
    /* Enqueue: buffers[i] is where buffer i lies on the device of the stream. */
    void (*run)(struct kelp_stream *stream, void *const *buffers, const void *arguments);
    /* What run() needs besides, copied by cases_add(). */
    unsigned char arguments[512];
};

struct operator_cases {
    struct operator_case *cases; /* owned */
    uint32_t count, capacity;
    uint64_t seed; /* of the sizes: use cases_draw() alone */
};
void operator_cases_init(struct operator_cases *cases, uint64_t seed);
void operator_cases_fini(struct operator_cases *cases);
/* A whole number from low to high, both included. */
uint32_t cases_draw(struct operator_cases *cases, uint32_t low, uint32_t high);
bool cases_flip(struct operator_cases *cases);
/* The new case, all zero but for the name (printf), run and a copy of arguments. */
struct operator_case *cases_add(struct operator_cases *cases,
                                void (*run)(struct kelp_stream *, void *const *, const void *),
                                const void *arguments, size_t arguments_size, const char *format,
                                ...) __attribute__((format(printf, 5, 6)));

/* `count` elements that begin at an aligned place, or a few elements behind one. */
void cases_set_buffer(struct operator_cases *cases, struct case_buffer *buffer, uint64_t count,
                      enum case_content content);
enum kelp_write cases_draw_write(struct operator_cases *cases);
/* What the results of products may differ by, of operands that are read in that precision. */
double cases_precision_tolerance(enum kelp_product_precision precision);
/* The cases whose results may differ may do so by that. */
void cases_set_precision(struct operator_cases *cases, enum kelp_product_precision precision);
/* All buffers begin at aligned places. */
void cases_align(struct operator_cases *cases);
/* "+=" or "=", for names. */
const char *case_sign(enum kelp_write write);

/* X(name): cases_NAME() adds the cases of some files of kernels/cuda; `large`: sizes that fill a
 * device too, which takes an emulated one too long. */
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
/* Sorts more rows than a block of KELP_CUDA_THREADS threads adds up the tiles of in one round. */
void cases_many_tiles(struct operator_cases *cases);

/*
 * Run a case on both devices and compare; then `repeats` times more on `other`, which must give the
 * same bits each time; every second time it is replayed, where `other` records. seed: of the
 * buffers' contents. Errors: KELP_ERR_MISMATCH, with the case,
 * the buffer, the element and both values in words; what a stream's wait() says.
 */
struct case_devices {
    struct kelp_device *cpu, *other;
    struct kelp_stream *cpu_stream, *other_stream;
    /* Before each run on `other`, 0 to repeats; NULL: nothing. */
    void (*before_run)(void *user, uint32_t run);
    void *user;
    /* Raised to the largest difference of a case with a tolerance, as a share of the buffer's
     * largest value; NULL: not wanted. */
    double *worst;
};
kelp_status operator_case_check(const struct operator_case *one, const struct case_devices *devices,
                                uint64_t seed, uint32_t repeats, struct kelp_error *reterr);

#endif
