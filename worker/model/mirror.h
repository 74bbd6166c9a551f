/*
 * The weights of a model whose device has memory of its own: a copy there, and when it is brought
 * up to date; and how gradients come from there. On the CPU there is none: the graph works on the
 * host's.
 *
 * Private to worker/model. Threads: the model's.
 */
#ifndef KELP_WORKER_MODEL_MIRROR_H
#define KELP_WORKER_MODEL_MIRROR_H

#include "kernels/device.h"

/* A part of the gradient that leaves the device while the rest is computed. */
struct kelp__mirror_part {
    uint64_t first, count; /* elements */
    uint32_t index;        /* of the first tensor in it */
    uint64_t computed;     /* mark of the stream that computes it, behind the part */
    uint64_t mark;         /* of the copies, behind its copy */
};

/* Tensors whose weights come to the device together. */
struct kelp__mirror_group {
    uint32_t first, end; /* tensors */
    uint64_t from, to;   /* elements */
    bool there;
};

struct kelp__mirror {
    float *weights; /* owned device memory, float32[count]; NULL until it is needed */
    float *leaving; /* owned host memory that copies go to, likewise */
    struct kelp__mirror_part *parts; /* owned; room for all of the gradient */
    uint32_t part_count;
    bool leaves;                       /* parts were enqueued whose copies were not waited for */
    struct kelp__mirror_group *groups; /* owned; room for one of each tensor */
    uint32_t *group_of;                /* owned; of each tensor */
    uint32_t group_count;
    bool brought; /* a group, since the copies were waited for */
    uint64_t brought_mark;
    uint64_t count;
    bool has_weights; /* those that are bound */
};

/* All zero is a mirror too. device: the one of the calls before. */
void kelp__mirror_fini(struct kelp__mirror *mirror, struct kelp_device *device);

/* Memory for `count` elements, the same from call to call. Errors: KELP_ERR_NO_MEMORY,
 * KELP_ERR_DEVICE. */
kelp_status kelp__mirror_prepare(struct kelp__mirror *mirror, struct kelp_device *device,
                                 uint64_t count, struct kelp_error *reterr) KELP_MUST_USE;

/* Enqueue the copy of all weights, which the mirror does not have yet. */
void kelp__mirror_upload(struct kelp__mirror *mirror, struct kelp_stream *stream,
                         const float *weights);

/*
 * Weights group by group, of 1 MiB or more, on a stream of their own: init once; lay_out, when
 * other weights are bound (offsets: of the tensors, ascending); then, where has_weights is false,
 * bring for each group that is about to be read, whose weights are there, and settle behind the
 * run: it waits for the copies and sets has_weights if all groups were brought.
 *
 * Errors of init: KELP_ERR_NO_MEMORY; of settle: those of the copies' wait().
 */
kelp_status kelp__mirror_init(struct kelp__mirror *mirror, uint32_t tensor_count,
                              struct kelp_error *reterr) KELP_MUST_USE;
void kelp__mirror_lay_out(struct kelp__mirror *mirror, const uint64_t *offsets,
                          uint32_t tensor_count, uint64_t count);
void kelp__mirror_bring(struct kelp__mirror *mirror, struct kelp__mirror_group *group,
                        struct kelp_stream *stream, struct kelp_stream *copies,
                        const float *weights);
kelp_status kelp__mirror_settle(struct kelp__mirror *mirror, struct kelp_stream *copies,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Have all groups been brought, though they may be on their way? */
bool kelp__mirror_is_there(const struct kelp__mirror *mirror);

/*
 * A gradient to the host while it is computed, in parts of 1 MiB or more, one gradient at a time:
 * begin, before the backward pass is enqueued; leave, as soon as all that completes the tensors
 * from index on is enqueued, with falling indices, 0 at last (first: the tensor's first element),
 * where is_due() says that it would enqueue a copy, from the same device memory `gradient`; arrive,
 * before the stream is waited for. Parts are copied on the stream `copies` while `stream` goes on
 * to compute; what is enqueued there behind the last part runs after all copies. arrive() waits for
 * each part, writes it to the host's `gradient`, and tells the index (NULL: nobody). Once either
 * stream has failed, nothing more is told; it returns the failure of the copies. abandon() waits
 * for the copies of a gradient that will not arrive.
 *
 * Errors of begin: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE; of arrive: those of the copies' wait().
 */
kelp_status kelp__mirror_begin(struct kelp__mirror *mirror, struct kelp_device *device,
                               struct kelp_error *reterr) KELP_MUST_USE;
uint64_t
kelp__mirror_left(const struct kelp__mirror *mirror); /* elements from there on have left */
bool kelp__mirror_is_due(const struct kelp__mirror *mirror, uint32_t index, uint64_t first);
void kelp__mirror_leave(struct kelp__mirror *mirror, struct kelp_stream *stream,
                        struct kelp_stream *copies, const float *gradient, uint32_t index,
                        uint64_t first);
kelp_status kelp__mirror_arrive(struct kelp__mirror *mirror, struct kelp_stream *stream,
                                struct kelp_stream *copies, float *gradient,
                                void (*tell)(void *user, uint32_t index), void *user,
                                struct kelp_error *reterr) KELP_MUST_USE;
void kelp__mirror_abandon(struct kelp__mirror *mirror, struct kelp_stream *copies);

#endif
