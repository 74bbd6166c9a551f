/*
 * Weights and gradient of a model whose device has memory of its own: copies there, and when they
 * are brought up to date. On the CPU there is none: the graph works on the host's.
 *
 * Private to worker/model. Threads: the model's.
 */
#ifndef KELP_WORKER_MODEL_MIRROR_H
#define KELP_WORKER_MODEL_MIRROR_H

#include "kernels/device.h"

struct kelp__mirror {
    float *weights, *gradient; /* owned device memory, float32[count]; NULL until they are needed */
    uint64_t count;
    bool has_weights;  /* those that are bound */
    bool has_gradient; /* what the gradient holds was computed since it was bound */
};

/* All zero is a mirror too. device: the one of the calls before. */
void kelp__mirror_fini(struct kelp__mirror *mirror, struct kelp_device *device);

/* Memory for `count` elements, the same from call to call; with_gradient: for both vectors. The
 * gradient begins as zeros, which its padding keeps. Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE.
 */
kelp_status kelp__mirror_prepare(struct kelp__mirror *mirror, struct kelp_stream *stream,
                                 uint64_t count, bool with_gradient, struct kelp_error *reterr);

/* Enqueue the copy of what a run needs and the device does not have yet: the weights, and unless
 * it is NULL the gradient so far. */
void kelp__mirror_upload(struct kelp__mirror *mirror, struct kelp_stream *stream,
                         const float *weights, const float *gradient);

/* The gradient to the host. Errors: those of the stream's wait(). */
kelp_status kelp__mirror_download(struct kelp__mirror *mirror, struct kelp_stream *stream,
                                  float *gradient, struct kelp_error *reterr);

#endif
