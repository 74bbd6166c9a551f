/* The models that worker/model/model.c knows: each builds its graph from the job and the shape. */
#ifndef KELP_WORKER_MODEL_MODEL_BUILD_H
#define KELP_WORKER_MODEL_MODEL_BUILD_H

#include "common/job/job.h"
#include "worker/data/sample.h"
#include "worker/model/graph/graph.h"

/*
 * Add the model's input, parameters and layers. ret_target is the target's shape as the model sees
 * it (the same elements as shape's target). Returns the output's node; failures stay in the graph.
 */
typedef uint32_t kelp__model_build(struct kelp_graph *graph, const struct kelp_job *job,
                                   const struct kelp_sample_shape *shape,
                                   struct kelp_shape *ret_target);

kelp__model_build kelp__mlp_build;
kelp__model_build kelp__dlinear_build;
kelp__model_build kelp__nlinear_build;
kelp__model_build kelp__fare_build;
kelp__model_build kelp__convnet_build;
kelp__model_build kelp__resnet18_build;
kelp__model_build kelp__deepfm_build;
kelp__model_build kelp__tft_build;

#endif
