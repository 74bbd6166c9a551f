/*
 * Optimizer updates, element by element, with the CPU's formulas (kernels/cpu/updates.h) and bits.
 */
#include "kernels/cuda/cuda.cuh"

#include "kernels/cpu/updates.h"

struct slots {
    float a, b, c;
};

static __device__ __forceinline__ float element(const struct kelp_optimizer_step *step, float g,
                                                float w, struct slots *slots)
{
    const bool decays = step->weight_decay != 0.0f, momentum = step->momentum != 0.0f;
    switch (step->kind) {
    case KELP_OPTIMIZER_SGD: {
        const struct kelp__sgd_flags flags = {decays, momentum, step->nesterov, step->first};
        return kelp__update_sgd(step, flags, g, w, &slots->a);
    }
    case KELP_OPTIMIZER_ADAM:
    case KELP_OPTIMIZER_ADAMW: {
        const enum kelp__decay_kind decay = !decays ? KELP_DECAY_NONE
                                            : step->kind == KELP_OPTIMIZER_ADAMW
                                                ? KELP_DECAY_WEIGHTS
                                                : KELP_DECAY_GRADIENT;
        return kelp__update_adam(step, decay, step->amsgrad, g, w, &slots->a, &slots->b, &slots->c);
    }
    case KELP_OPTIMIZER_ADAGRAD:
        return kelp__update_adagrad(step, decays, g, w, &slots->a);
    case KELP_OPTIMIZER_RMSPROP: {
        const struct kelp__rmsprop_flags flags = {decays, step->centered, momentum};
        float m = slots->b, a = momentum ? slots->c : slots->b;
        w = kelp__update_rmsprop(step, flags, g, w, &slots->a, &m, &a);
        slots->c = a;
        slots->b = momentum ? m : a;
        return w;
    }
    case KELP_OPTIMIZER_ADADELTA:
        return kelp__update_adadelta(step, decays, g, w, &slots->a, &slots->b);
    case KELP_OPTIMIZER_LAMB:
        break;
    }
    return w;
}

static __global__ void update(const struct kelp_optimizer_run p)
{
    bool bad = false;
    KELP_CUDA_FOR (i, p.count) {
        struct slots slots = {p.slots[0] ? p.slots[0][i] : 0.0f, p.slots[1] ? p.slots[1][i] : 0.0f,
                              p.slots[2] ? p.slots[2][i] : 0.0f};
        const float g = p.gradient[i];
        bad = bad || kelp__update_not_finite(g) != 0;
        p.weights_next[i] = element(&p.step, g, p.weights[i], &slots);
        if (p.slots[0]) {
            p.slots[0][i] = slots.a;
        }
        if (p.slots[1]) {
            p.slots[1][i] = slots.b;
        }
        if (p.slots[2]) {
            p.slots[2][i] = slots.c;
        }
    }
    if (bad) {
        (void)atomicOr(p.not_finite, 1u);
    }
}

void kelp__cuda_optimizer(struct kelp_stream *stream, const struct kelp_optimizer_run *p)
{
    KELP_CUDA_LAUNCH(stream, update, kelp__cuda_blocks(p->count), KELP_CUDA_THREADS, *p);
}
