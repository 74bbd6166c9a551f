/* What the files that compute lanes share: lanes.c starts and finishes them, lanes_train.c and
 * lanes_forward.c compute them in pieces, lanes_create.c sets up the memory. */
#ifndef KELP_WORKER_COMPUTE_LANES_INTERNAL_H
#define KELP_WORKER_COMPUTE_LANES_INTERNAL_H

#include "worker/compute/lanes.h"
#include "worker/compute/predictions.h"
#include "worker/compute/sample_reader.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

#define KELP__LANES_STARTED_MAX (KELP_MODEL_STREAMS_MAX + 1)

/* A lane that was started and is not finished. */
struct kelp__lanes_started {
    uint32_t lane;
    struct kelp_gradient *gradient;
    const struct kelp_lanes_ready *ready;  /* NULL: nobody asks */
    uint32_t pieces;                       /* pieces that the model has begun and not finished */
    struct kelp_prediction_writer *writer; /* of predictions; NULL: none */
    uint64_t samples;                      /* of predictions */
};

/* Where a block's predictions come to. */
struct kelp__lanes_output {
    float *values; /* owned, of the model's host memory: [batch_max][output_count] */
    uint64_t count;
};

struct kelp_lanes {
    const struct kelp_job *job;
    struct kelp_dataset *dataset;
    struct kelp_model *model;
    struct kelp_plan plan;
    struct kelp_control_word word; /* of the entry in work, as what follows */
    const float *weights;
    bool bound; /* the model has them */
    struct kelp_sample_reader *reader;
    uint64_t output_count;
    struct kelp__lanes_output
        *outputs; /* [output_max], of blocks in turn; run.mode predict alone */
    uint32_t output_max, output_first, outputs_out; /* the last: that are pending */
    struct kelp_target_scale *scales;               /* room for those of one sample */
    double *factors;                                /* [batch_max]; NULL: errors have no unit */
    struct kelp_lanes_work work;                    /* so far */
    struct kelp__lanes_started started[KELP__LANES_STARTED_MAX]; /* in turn */
    uint32_t started_first, started_count;
    const struct kelp__lanes_started *told; /* whose gradient is being completed */
    struct kelp_schedule_node node;         /* kelp_lanes_within(); count 0: none */
    struct kelp_trace *trace;               /* NULL: none */
    bool (*await)(void *user, uint64_t first, uint64_t count); /* NULL: weights are there */
    void *await_user;
};

/* ---- lanes.c --------------------------------------------------------------------------------- */

/* Hand the entry's weights to the model, once for all of its lanes, and the gradient to be written
 * (NULL: none). */
void kelp__lanes_bind(struct kelp_lanes *lanes, float *gradient);

/* The piece of a lane that is computed at once, from position `first` of the entry's samples on. */
struct kelp_schedule_range kelp__lanes_piece(const struct kelp_lanes *lanes, uint32_t lane,
                                             uint64_t first);

/* The samples of a piece. ret_batch: the reader's, as kelp_sample_reader_read() says. */
kelp_status kelp__lanes_read(struct kelp_lanes *lanes, uint32_t lane,
                             struct kelp_schedule_range samples,
                             struct kelp_sample_batch *ret_batch, struct kelp_error *reterr);

/* For the model's `idle`, user: the lanes. While the device computes, the samples that probably
 * come next are read and brought there. */
void kelp__lanes_on_idle(void *user);

/* Add a piece's sums (training: the scalars alone), or its predictions, to its lane: in the order
 * in which pieces were begun. */
kelp_status kelp__lanes_take_piece(struct kelp_lanes *lanes, struct kelp__lanes_started *lane,
                                   const double *sums, struct kelp_error *reterr);

/* Wait for the oldest piece that the model has, and take it. */
kelp_status kelp__lanes_finish_piece(struct kelp_lanes *lanes, struct kelp_error *reterr);

/* ---- lanes_train.c, lanes_forward.c ---------------------------------------------------------- */

/* Compute a lane's samples (at least one), or enqueue them on a device. Errors: those of reading
 * samples and of the model; kelp__lanes_predict(): of its file. */
kelp_status kelp__lanes_train(struct kelp_lanes *lanes, uint32_t lane,
                              const struct kelp_schedule_range *samples,
                              struct kelp__lanes_started *started, struct kelp_error *reterr);
kelp_status kelp__lanes_evaluate(struct kelp_lanes *lanes, uint32_t lane,
                                 const struct kelp_schedule_range *samples,
                                 struct kelp__lanes_started *started, struct kelp_error *reterr);
kelp_status kelp__lanes_predict(struct kelp_lanes *lanes, uint32_t lane,
                                const struct kelp_schedule_range *samples,
                                struct kelp__lanes_started *started, struct kelp_error *reterr);

#endif
