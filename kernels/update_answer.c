#include "kernels/update_answer.h"

#include <string.h>
#include <xxhash.h>

#include "kernels/optimizer.h"

#define COUNT 67u /* full and partial blocks of every vector width */
#define STEPS 3u

struct slice {
    float weights[2][COUNT]; /* of this step and of the next */
    float gradient[COUNT];
    float slots[KELP_OPTIMIZER_SLOTS_MAX][COUNT];
};

/* Values in [-1, 1) with all mantissa bits in use. */
static void fill(float *values, uint32_t use)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t bits = (i + 1) * 2654435761u + use * 40503u;
        bits ^= bits >> 15;
        bits *= 2246822519u;
        bits ^= bits >> 13;
        values[i] = (float)(int32_t)bits * 0x1p-31f;
    }
}

/* Weights after some steps, and the slots: the results of an optimizer. */
static uint64_t train(const struct kelp_job *job, struct slice *slice, uint64_t seed)
{
    memset(slice, 0, sizeof(*slice));
    fill(slice->weights[0], 1);
    for (uint32_t k = 0; k < kelp_optimizer_slot_count(job); k++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            slice->slots[k][i] = kelp_optimizer_slot_start(job, k);
        }
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        float more[COUNT];
        struct kelp_optimizer_step prepared;
        struct kelp_optimizer_buffers buffers = {.weights = slice->weights[step % 2],
                                                 .gradient = slice->gradient,
                                                 .weights_next = slice->weights[(step + 1) % 2]};
        for (uint32_t k = 0; k < KELP_OPTIMIZER_SLOTS_MAX; k++) {
            buffers.slots[k] = slice->slots[k];
        }
        fill(slice->gradient, 2 + 2 * step);
        fill(more, 3 + 2 * step);
        kelp_vector_add(slice->gradient, more, COUNT);
        kelp_optimizer_prepare(&prepared, job, job->train.lr, step + 1);
        prepared.scale = 0.7f;
        (void)kelp_optimizer_apply(&prepared, &buffers, COUNT); /* all is finite */
    }
    return XXH3_64bits_withSeed(slice, sizeof(*slice), seed);
}

uint64_t kelp_update_answer(void)
{
    /* lamb's own part is ratios of norms (kernels/update.h); its moments are adam's. */
    static const enum kelp_optimizer_kind kinds[] = {
        KELP_OPTIMIZER_SGD,     KELP_OPTIMIZER_ADAM,    KELP_OPTIMIZER_ADAMW,
        KELP_OPTIMIZER_RMSPROP, KELP_OPTIMIZER_ADAGRAD, KELP_OPTIMIZER_ADADELTA};
    struct slice slice;
    uint64_t answer = 0;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(kinds); i++) {
        struct kelp_job job = {.train = {.optimizer = kinds[i],
                                         .lr = 0.01,
                                         .momentum = 0.9,
                                         .weight_decay = 0.1,
                                         .beta1 = 0.9,
                                         .beta2 = 0.999,
                                         .alpha = 0.99,
                                         .rho = 0.9}};
        answer = train(&job, &slice, answer);
    }
    return answer;
}
