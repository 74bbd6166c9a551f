/* Private to the known-answer computation (kernels/compute_kind*.c). */
#ifndef KELP_KERNELS_COMPUTE_KIND_INTERNAL_H
#define KELP_KERNELS_COMPUTE_KIND_INTERNAL_H

#include "kernels/device.h"

/* Sizes that meet full and partial blocks of every vector width and of OpenBLAS's kernels. */
#define ROWS    37u
#define COLUMNS 67u
#define DEPTH   131u
#define KERNEL  25u

#define MATRIX_COUNT ((size_t)DEPTH * DEPTH) /* the largest operand or result */
#define BUFFER_COUNT 4

struct answer {
    struct kelp_device *device;
    struct kelp_stream *stream;
    float *a, *b, *c, *workspace; /* device memory, float32[MATRIX_COUNT] each */
    double *sums;                 /* device memory, float64[ROWS * KELP_LOSS_SUMS] */
    void *host;                   /* room for any of them */
    uint64_t hash;
};

/* Values in [-1, 1) with all mantissa bits in use. */
kelp_status kelp__compute_kind_answer_operand(struct answer *answer, float *to, uint32_t use,
                                              struct kelp_error *reterr) KELP_MUST_USE;
/* Results into the answer: whole 4-byte words. */
kelp_status kelp__compute_kind_answer_digest(struct answer *answer, const void *from, size_t bytes,
                                             struct kelp_error *reterr) KELP_MUST_USE;
/* Every operator of rows and elements that a model is made of. */
kelp_status kelp__compute_kind_answer_rows(struct answer *answer,
                                           struct kelp_error *reterr) KELP_MUST_USE;
/* Convolution and pooling. */
kelp_status kelp__compute_kind_answer_windows(struct answer *answer,
                                              struct kelp_error *reterr) KELP_MUST_USE;
/* Linear layers and LSTMs. */
kelp_status kelp__compute_kind_answer_layers(struct answer *answer,
                                             struct kelp_error *reterr) KELP_MUST_USE;

#endif
