/*
 * What the files of a model share: model.c (building, evaluating) and model_train.c (training where
 * the device has memory of its own).
 */
#ifndef KELP_WORKER_MODEL_MODEL_INTERNAL_H
#define KELP_WORKER_MODEL_MODEL_INTERNAL_H

#include "kernels/device.h"
#include "worker/model/graph/graph.h"
#include "worker/model/level_sums.h"
#include "worker/model/mirror.h"
#include "worker/model/model.h"

#define MODEL_PENDING_MAX (KELP_GRAPH_PENDING_MAX * KELP_MODEL_STREAMS_MAX)

/* What computes one piece after the other: on a stream, in memory of its own. */
struct model_arena {
    struct kelp_stream *stream;
    struct kelp_graph *graph;
    /* Where the device has memory of its own: */
    float *gradient; /* owned device memory, float32[gradient_count]; NULL until it is needed */
    uint64_t gradient_count;
    bool has_gradient; /* what it holds was computed since the host's was bound */
    bool bound;        /* the graph has the mirror's weights, at the offsets of the model */
    bool bound_gradient;
    uint64_t uploads; /* of the model, that the stream is behind */
};

/* A piece that was begun and is not finished. */
struct model_pending {
    struct kelp_model_piece piece;
    struct kelp_model_sum sum; /* that piece.sum points to */
    struct kelp_graph_run run; /* of a block, all there is */
    uint32_t arena;
    bool brings;     /* a gradient to the host, */
    float *gradient; /* here */
};

struct kelp_model {
    struct kelp_device *device;
    struct kelp_stream *copies; /* beside those of arenas; NULL on the CPU */
    struct model_arena arenas[KELP_MODEL_STREAMS_MAX];
    uint32_t arena_count;
    uint32_t batch_max;
    uint64_t input_count; /* elements of one sample */
    uint64_t target_count;
    struct kelp_shape output_shape;
    uint64_t output_count;
    uint64_t seed;
    struct kelp_tensor *tensors;
    uint32_t tensor_count;
    /* What is bound, and where its tensors lie. */
    uint64_t *offsets; /* owned, [tensor_count] */
    uint64_t flat_count;
    const float *weights; /* borrowed, as the gradient */
    float *gradient;      /* NULL: none */
    /* Where the device has memory of its own: */
    struct kelp__mirror mirror;
    struct {
        uint64_t count; /* of all weights at once, so far */
        struct kelp_stream *stream;
        uint64_t mark; /* behind the last one */
    } uploads;
    struct kelp__level_sums sums;
    struct {
        struct kelp_stream *stream; /* of the last additions to the sums; NULL: none yet */
        uint64_t mark;
    } summed;
    struct model_pending pending[MODEL_PENDING_MAX]; /* in turn */
    uint32_t pending_first, pending_count;
    uint32_t next;               /* the arena of the next piece */
    struct model_pending *begun; /* being enqueued */
    bool sum_begun;              /* of it: the sums' additions that are due before it */
};

/* What the graph is about to read is where it reads it: the gradient so far, which accumulate adds
 * to, and the weights, unless they are to arrive while it runs. Errors: KELP_ERR_NO_MEMORY,
 * KELP_ERR_DEVICE. */
kelp_status kelp__model_upload(struct kelp_model *model, struct model_arena *arena, bool arriving,
                               bool accumulate, struct kelp_error *reterr);

#endif
