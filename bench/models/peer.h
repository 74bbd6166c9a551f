/*
 * torch_models.py, which measures on a GPU what it is asked to.
 */
#ifndef KELP_BENCH_MODELS_PEER_H
#define KELP_BENCH_MODELS_PEER_H

#include "bench/models/models.h"

/* Without PyTorch or a GPU for it, that is said, and there is nothing to ask. */
void peer_start(void);
void peer_stop(void);

/* Steps a second; 0: none. */
struct peer_steps {
    double copied, resident; /* with the gradient copied to the host, and left on the GPU */
    bool deterministic;
};
/* In `seconds` for each of the two. */
struct peer_steps peer_ask(const struct bench_model *model, uint32_t batch, double seconds);

#endif
