/*
 * Optimizer updates: one pass over memory, element by element, so that the result does not depend
 * on how the flat vector is divided. Formulas are PyTorch's, operation by operation
 * (torch.optim, 1.13), in float32, with scalars prepared in double. One exception: `centered`
 * treats a variance that rounding made negative as zero, where PyTorch's root is NaN.
 *
 * Out of place: w' goes to another buffer than w (the shard keeps w_v readable); slots are updated
 * in place.
 */
#ifndef KELP_KERNELS_OPTIMIZER_H
#define KELP_KERNELS_OPTIMIZER_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"

#define KELP_OPTIMIZER_SLOTS_MAX 3

/* The scalars of one update, prepared once per step from hyper-parameters and step number. */
struct kelp_optimizer_step {
    enum kelp_optimizer_kind kind;
    float scale; /* of the gradient, applied first; 1 unless it is clipped */
    float lr, momentum, dampening, weight_decay, beta1, beta2, eps;
    bool nesterov, amsgrad, centered;
    bool first; /* step number is 1: momentum starts as the gradient */
    /* adam: lr / (1 - beta1^t); lamb: 1 / (1 - beta1^t); adagrad: lr / (1 + (t - 1) lr_decay) */
    float step_size;
    float bias2_sqrt; /* adam, lamb: sqrt(1 - beta2^t) */
    float one_minus_beta1, one_minus_beta2, one_minus_dampening;
    float decay_factor; /* adamw: 1 - lr * weight_decay */
};

/* Slots (float32 vectors as long as the weights) that the job's optimizer keeps. */
uint32_t kelp_optimizer_slot_count(const struct kelp_job *job);
/* PyTorch's name of a slot: "momentum_buffer", "exp_avg", "exp_avg_sq" … */
const char *kelp_optimizer_slot_name(const struct kelp_job *job, uint32_t slot);
/* The initial value of every element of a slot, including padding and statistics. */
float kelp_optimizer_slot_start(const struct kelp_job *job, uint32_t slot);

/* Fill *step. step_number counts from 1. beta2 holds alpha of `rmsprop` and rho of `adadelta`. */
void kelp_optimizer_prepare(struct kelp_optimizer_step *step, const struct kelp_job *job, double lr,
                            uint64_t step_number);
/* The same step without weight decay, for tensors that train.decay_exclude names. */
void kelp_optimizer_leave_decay(struct kelp_optimizer_step *step);

/* A piece of memory, of any length and alignment: a float may straddle two pieces. */
struct kelp_gradient_piece {
    const void *bytes;
    size_t length;
};

/* The pieces of a term after its first one. All zero: there are none. */
struct kelp_gradient_rest {
    const struct kelp_gradient_piece *next; /* as many as the term needs; NULL: it is one piece */
    size_t here;                            /* bytes of the first piece */
};

/* A gradient as a sum that has not been computed yet: left + right, floats of any alignment, each
 * read once. */
struct kelp_gradient_terms {
    const void *left;
    const void *right; /* NULL: left is the gradient */
    struct kelp_gradient_rest left_rest, right_rest;
    float *sum;       /* also store the sum here; may be left. NULL: do not store it */
    uint64_t *digest; /* two words: kelp_vector_digest() of the sum; NULL: not computed */
};

struct kelp_optimizer_buffers {
    const float *weights; /* w_v */
    const float *gradient;
    struct kelp_gradient_terms terms; /* if gradient is NULL; only for kernels/update.h */
    float *weights_next;              /* w_{v+1}; not overlapping weights */
    float *slots[KELP_OPTIMIZER_SLOTS_MAX];
};
/* Update `count` elements, for all kinds but lamb; lamb, and models with other tensors than
 * decaying parameters, need kernels/update.h. Any alignment is right; 64 bytes is fastest. Returns
 * false if a gradient element is not finite (the update is done nevertheless; the caller decides).
 */
bool kelp_optimizer_apply(const struct kelp_optimizer_step *step,
                          const struct kelp_optimizer_buffers *buffers, uint64_t count);

/* False if an element is infinite or NaN. */
bool kelp_vector_finite(const float *values, uint64_t count);

/* sum[i] = sum[i] + other[i]; `other` may be unaligned bytes of received floats. */
void kelp_vector_add(float *sum, const void *other, uint64_t count);
/* sum[i] = left[i] + right[i]; both may be unaligned bytes. sum overlaps neither. */
void kelp_vector_sum(float *sum, const void *left, const void *right, uint64_t count);

/* XXH3-128 of `length` bytes of any alignment: as kelp_digest_bytes_words(), but faster. */
void kelp_vector_digest(const void *bytes, uint64_t length, uint64_t ret_words[2]);

/* The same for bytes in pieces. The state is in the caller's memory; nothing to free. */
struct kelp_vector_digest {
    unsigned char state[640] __attribute__((aligned(64)));
};
void kelp_vector_digest_begin(struct kelp_vector_digest *digest);
void kelp_vector_digest_add(struct kelp_vector_digest *digest, const void *bytes, uint64_t length);
void kelp_vector_digest_end(const struct kelp_vector_digest *digest, uint64_t ret_words[2]);

#endif
