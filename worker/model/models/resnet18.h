/* ResNet18 stage by stage, so that what comes out of each can be looked at. */
#ifndef KELP_WORKER_MODEL_MODELS_RESNET18_H
#define KELP_WORKER_MODEL_MODELS_RESNET18_H

#include "worker/model/graph/graph.h"

enum kelp__resnet18_stage {
    KELP__RESNET18_CONV1,
    KELP__RESNET18_BN1,
    KELP__RESNET18_RELU,
    KELP__RESNET18_MAXPOOL,
    KELP__RESNET18_LAYER1,
    KELP__RESNET18_LAYER2,
    KELP__RESNET18_LAYER3,
    KELP__RESNET18_LAYER4,
    KELP__RESNET18_AVGPOOL,
};

/* The image x through all stages up to and including `last`. */
uint32_t kelp__resnet18_features(struct kelp_graph *graph, uint32_t x,
                                 enum kelp__resnet18_stage last);

#endif
