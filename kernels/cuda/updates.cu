/*
 * Optimizer updates, element by element, with the CPU's formulas (kernels/cpu/loops/updates.h) and
 * bits. A job's weights are updated by its shards, on the CPU; of a GPU the known answer alone asks
 * for them (kernels/compute_kind_rows.c).
 */
#include "kernels/cuda/groups.cuh"

#include "kernels/cpu/loops/updates.h"

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

static __device__ __forceinline__ float4 load(const float *x, uint64_t left, bool whole)
{
    if (!x) {
        return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    return whole ? kelp__cuda_load(x, true) : kelp__cuda_load_some(x, left);
}

static __device__ __forceinline__ void store(float *y, float4 value, uint64_t left, bool whole)
{
    if (!y) {
        return;
    }
    if (whole) {
        kelp__cuda_store(y, value, true);
    } else {
        kelp__cuda_put_some(y, value, left, KELP_OVERWRITE);
    }
}

/* Four neighbours a thread. */
template <bool vector> static __global__ void update(const struct kelp_optimizer_run p)
{
    bool bad = false;
    KELP_CUDA_FOR (i, (p.count + 3) / 4) {
        const uint64_t at = 4 * i, left = p.count - at;
        const bool whole = vector && left >= 4;
        float *slots[KELP_OPTIMIZER_SLOTS_MAX];
        float4 values[KELP_OPTIMIZER_SLOTS_MAX], w = load(p.weights + at, left, whole);
        const float4 g = load(p.gradient + at, left, whole); /* 0 behind the last: finite */
        KELP_CUDA_UNROLL_ALL
        for (int n = 0; n < KELP_OPTIMIZER_SLOTS_MAX; n++) {
            slots[n] = p.slots[n] ? p.slots[n] + at : NULL;
            values[n] = load(slots[n], left, whole);
        }
        struct slots x = {values[0].x, values[1].x, values[2].x};
        struct slots y = {values[0].y, values[1].y, values[2].y};
        struct slots z = {values[0].z, values[1].z, values[2].z};
        struct slots last = {values[0].w, values[1].w, values[2].w};
        w = make_float4(element(&p.step, g.x, w.x, &x), element(&p.step, g.y, w.y, &y),
                        element(&p.step, g.z, w.z, &z), element(&p.step, g.w, w.w, &last));
        bad = bad || (kelp__update_not_finite(g.x) | kelp__update_not_finite(g.y) |
                      kelp__update_not_finite(g.z) | kelp__update_not_finite(g.w)) != 0;
        store(p.weights_next + at, w, left, whole);
        store(slots[0], make_float4(x.a, y.a, z.a, last.a), left, whole);
        store(slots[1], make_float4(x.b, y.b, z.b, last.b), left, whole);
        store(slots[2], make_float4(x.c, y.c, z.c, last.c), left, whole);
    }
    if (bad) {
        (void)atomicOr(p.not_finite, 1u);
    }
}

void kelp__cuda_optimizer(struct kelp_stream *stream, const struct kelp_optimizer_run *p)
{
    const bool vector = kelp__cuda_aligned(p->weights) && kelp__cuda_aligned(p->gradient) &&
                        kelp__cuda_aligned(p->weights_next) && kelp__cuda_aligned(p->slots[0]) &&
                        kelp__cuda_aligned(p->slots[1]) && kelp__cuda_aligned(p->slots[2]);
    void (*const kernel)(const struct kelp_optimizer_run) = vector ? update<true> : update<false>;
    KELP_CUDA_LAUNCH(stream, kernel, kelp__cuda_blocks((p->count + 3) / 4), KELP_CUDA_THREADS, *p);
}
