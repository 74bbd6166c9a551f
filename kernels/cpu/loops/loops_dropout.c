/*
 * Dropout: Philox4x32-10 (common/tensors/philox.h has the scalar one) for many blocks at once.
 * kernels/operators.h says which elements are kept.
 */
#include <assert.h>

#include "kernels/cpu/loops/functions.h"
#include "kernels/cpu/loops/loops.h"

#define ROUNDS 10
#define BLOCKS 16u /* computed together, so that the rounds fill vector registers */

struct counters {
    uint32_t word[4][BLOCKS];
};

INLINE void philox_blocks(struct counters *restrict c, uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < BLOCKS; i++) {
            const uint64_t first = UINT64_C(0xD2511F53) * c->word[0][i];
            const uint64_t second = UINT64_C(0xCD9E8D57) * c->word[2][i];
            c->word[0][i] = (uint32_t)(second >> 32) ^ c->word[1][i] ^ k0;
            c->word[1][i] = (uint32_t)second;
            c->word[2][i] = (uint32_t)(first >> 32) ^ c->word[3][i] ^ k1;
            c->word[3][i] = (uint32_t)first;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* The finaliser of SplitMix64 makes keys of neighbouring seeds and uses unrelated. */
static uint64_t mixed_key(uint64_t seed, uint32_t use)
{
    uint64_t h = seed + (use + UINT64_C(1)) * UINT64_C(0x9E3779B97F4A7C15);
    h = (h ^ h >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    h = (h ^ h >> 27) * UINT64_C(0x94D049BB133111EB);
    return h ^ h >> 31;
}

struct dropout_run {
    uint64_t key, step;
    uint32_t threshold;
    float scale;
    bool accumulate;
};

/* factors[i]: of element 4 first + i of the sample. */
INLINE void block_factors(const struct dropout_run *run, uint32_t position, uint32_t first,
                          float factors[4 * BLOCKS])
{
    struct counters c;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        c.word[0][i] = first + i;
        c.word[1][i] = position;
        c.word[2][i] = (uint32_t)run->step;
        c.word[3][i] = (uint32_t)(run->step >> 32);
    }
    philox_blocks(&c, run->key);
    for (uint32_t w = 0; w < 4; w++) {
        for (uint32_t i = 0; i < BLOCKS; i++) {
            factors[4 * i + w] = c.word[w][i] >= run->threshold ? run->scale : 0.0f;
        }
    }
}

INLINE void apply_factors(const struct dropout_run *run, const float *factors, const float *x,
                          float *y, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const float value = factors[i] == 0.0f ? 0.0f : x[i] * run->scale;
        y[i] = run->accumulate ? y[i] + value : value;
    }
}

void KELP_LOOP(dropout)(struct kelp_stream *stream, const struct kelp_dropout *dropout)
{
    assert(dropout->p >= 0.0f && dropout->p < 1.0f);
    assert(dropout->elements / 4 < UINT32_MAX / 2);
    const struct dropout_run run = {
        .key = mixed_key(dropout->seed_step[0], dropout->use),
        .step = dropout->seed_step[1],
        .threshold = (uint32_t)((double)dropout->p * 0x1p32),
        .scale = 1.0f / (1.0f - dropout->p),
        .accumulate = dropout->write == KELP_ACCUMULATE,
    };
    for (uint32_t s = 0; s < dropout->samples; s++) {
        const float *x = dropout->x + s * dropout->elements;
        float *y = dropout->y + s * dropout->elements;
        for (uint64_t i = 0; i < dropout->elements; i += 4 * (uint64_t)BLOCKS) {
            float factors[4 * BLOCKS];
            const uint64_t left = dropout->elements - i;
            block_factors(&run, dropout->positions[s], (uint32_t)(i / 4), factors);
            if (left >= 4 * (uint64_t)BLOCKS) {
                apply_factors(&run, factors, x + i, y + i, 4 * BLOCKS);
            } else {
                apply_factors(&run, factors, x + i, y + i, (uint32_t)left);
            }
        }
    }
}
