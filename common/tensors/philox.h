/*
 * Random numbers that depend on nothing but where they are used: Philox4x32-10, a counter-based
 * generator, and a keyed permutation for the order of samples. Pure; any thread.
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC11).
 */
#ifndef KELP_COMMON_TENSORS_PHILOX_H
#define KELP_COMMON_TENSORS_PHILOX_H

#include <stdint.h>

/* What a number is for. Two uses never share a number; values are for ever, or digests change. */
enum kelp_philox_use {
    KELP_PHILOX_INIT = 1,        /* initial weights: stream is the tensor's index */
    KELP_PHILOX_PERMUTATION = 2, /* order of samples: stream is the epoch */
    KELP_PHILOX_DATA = 3,        /* generated data: stream is the column */
    KELP_PHILOX_DROPOUT = 4,     /* stream is the operator; index holds step and element */
    KELP_PHILOX_TEST = 5,        /* tests and benchmarks */
    KELP_PHILOX_CHAOS = 6,       /* faults of `kelp chaos`: index is the fault and what is drawn */
    KELP_PHILOX_LANE = 7, /* seeds for programs of one's own: stream is the lane, index the step */
};

/* The raw function: ten rounds over a 128-bit counter with a 64-bit key. */
void kelp_philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t ret_words[4]);

/* Four words: the index-th block of (seed, use, stream). */
void kelp_philox(uint64_t seed, enum kelp_philox_use use, uint32_t stream, uint64_t index,
                 uint32_t ret_words[4]);

/* Uniform in [0, 1): 24 bits of the word, each a multiple of 2^-24. */
float kelp_philox_float(uint32_t word);
/* Uniform in [0, bound), bound > 0; the bias is below bound / 2^64. */
uint64_t kelp_philox_below(uint32_t high, uint32_t low, uint64_t bound);

#define KELP_PERMUTATION_ROUNDS 8
#define KELP_PERMUTATION_MAX    (UINT64_C(1) << 62)

/*
 * A bijection of [0, n) chosen by (seed, epoch): position in the epoch to sample number. A Feistel
 * network over a rectangle of at least n cells, walked until it lands below n, so that any position
 * is found alone, without a table.
 */
struct kelp_permutation {
    uint64_t n;
    uint64_t sides[2]; /* of the rectangle, each at most 2^31; sides[0] * sides[1] >= n */
    uint64_t keys[KELP_PERMUTATION_ROUNDS];
};

/* n is at most KELP_PERMUTATION_MAX. */
void kelp_permutation_init(struct kelp_permutation *permutation, uint64_t seed, uint32_t epoch,
                           uint64_t n);
/* position < n. */
uint64_t kelp_permutation_at(const struct kelp_permutation *permutation, uint64_t position);
/* And back: the position of a number below n. */
uint64_t kelp_permutation_find(const struct kelp_permutation *permutation, uint64_t number);

#endif
