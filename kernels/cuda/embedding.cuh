/*
 * How embedding.cu sorts rows by their id: pairs of a key and a row's number, in the order of their
 * keys, those of one key staying in order.
 *
 * Private to kernels/cuda.
 */
#ifndef KELP_KERNELS_CUDA_EMBEDDING_CUH
#define KELP_KERNELS_CUDA_EMBEDDING_CUH

#include "kernels/cuda/cuda.cuh"

/* Rows of one sort; more are taken one sort after the other. */
#define KELP_CUDA_SORTED_MAX (UINT64_C(1) << 30)

/* Device memory of a sort: keys and rows, which passes move to and fro, and what they count. */
struct kelp__cuda_sort_memory {
    uint32_t *keys[2], *rows[2], *counts, *totals;
};

/* Memory for up to `count` rows, at most KELP_CUDA_SORTED_MAX: the operator's scratch memory.
 * False: there is none, a failure was noted. */
bool kelp__cuda_sort_memory_find(struct kelp_stream *stream, uint64_t count,
                                 struct kelp__cuda_sort_memory *ret);

/* Sorts keys[0][0..count), numbers from 0 to `largest`, and the numbers 0, 1, ... of their rows.
 * count: 1 to what the memory was found for. The return value, 0 or 1, is where the last pass left
 * the result: keys and rows of that index. */
unsigned int kelp__cuda_sort(struct kelp_stream *stream,
                             const struct kelp__cuda_sort_memory *memory, uint32_t count,
                             uint32_t largest);

#endif
