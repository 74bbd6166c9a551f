/*
 * Optimizer updates: one pass over memory, element by element, so that the result does not depend
 * on how the flat vector is cut. Formulas are PyTorch's, operation by operation
 * (torch.optim, 1.13), in float32, with scalars prepared in double. One thing differs: `centered`
 * takes a variance that rounding made negative for zero, where PyTorch's root is NaN.
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

/* What one update needs, prepared once per step: hyper-parameters and the number of this step. */
struct kelp_optimizer_step {
    enum kelp_optimizer_kind kind;
    float scale; /* of the gradient, before anything else; 1 unless it is clipped */
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
/* The value that every element of a slot starts from, of padding and statistics too. */
float kelp_optimizer_slot_start(const struct kelp_job *job, uint32_t slot);

/* step_number counts from 1. `rmsprop` has its alpha, and `adadelta` its rho, in beta2. */
void kelp_optimizer_prepare(struct kelp_optimizer_step *step, const struct kelp_job *job, double lr,
                            uint64_t step_number);
/* The same step without weight decay, for tensors that train.decay_exclude names. */
void kelp_optimizer_leave_decay(struct kelp_optimizer_step *step);

/* A piece of memory, of any length and alignment: floats may straddle two. */
struct kelp_gradient_piece {
    const void *bytes;
    size_t length;
};

/* How a term goes on behind its first piece. All zero: there is nothing behind it. */
struct kelp_gradient_rest {
    const struct kelp_gradient_piece *next; /* as many as the term needs; NULL: it is one piece */
    size_t here;                            /* bytes of the first piece */
};

/* A gradient that nobody has added up yet: left + right, floats of any alignment. Each is read
 * once.
 */
struct kelp_gradient_terms {
    const void *left;
    const void *right; /* NULL: left is all of it */
    struct kelp_gradient_rest left_rest, right_rest;
    float *sum;       /* where it goes besides, and may be left itself; NULL: nowhere */
    uint64_t *digest; /* two words: kelp_vector_digest() of the sum; NULL: it is not wanted */
};

struct kelp_optimizer_buffers {
    const float *weights; /* w_v */
    const float *gradient;
    struct kelp_gradient_terms terms; /* where gradient is NULL: for kernels/update.h alone */
    float *weights_next;              /* w_{v+1}; not overlapping weights */
    float *slots[KELP_OPTIMIZER_SLOTS_MAX];
};
/* Element by element: all kinds but lamb, for which, as for models with other tensors than decaying
 * parameters, kernels/update.h is there. Any alignment is right; 64-byte aligned is fastest.
 * Returns false when a gradient element is not finite (the update is done all the same; the caller
 * decides). */
bool kelp_optimizer_apply(const struct kelp_optimizer_step *step,
                          const struct kelp_optimizer_buffers *buffers, uint64_t count);

/* False when an element is infinite or not a number. */
bool kelp_vector_finite(const float *values, uint64_t count);

/* sum[i] = sum[i] + other[i]; `other` may be unaligned bytes of received floats. */
void kelp_vector_add(float *sum, const void *other, uint64_t count);
/* sum[i] = left[i] + right[i], of which both may be such bytes; sum overlaps neither. */
void kelp_vector_sum(float *sum, const void *left, const void *right, uint64_t count);

/* XXH3-128 of `length` bytes of any alignment: what kelp_digest_bytes_words() gives, faster. */
void kelp_vector_digest(const void *bytes, uint64_t length, uint64_t ret_words[2]);

/* The same of bytes that come in pieces; in the caller's memory, nothing to free. */
struct kelp_vector_digest {
    unsigned char state[640] __attribute__((aligned(64)));
};
void kelp_vector_digest_begin(struct kelp_vector_digest *digest);
void kelp_vector_digest_add(struct kelp_vector_digest *digest, const void *bytes, uint64_t length);
void kelp_vector_digest_end(const struct kelp_vector_digest *digest, uint64_t ret_words[2]);

#endif
