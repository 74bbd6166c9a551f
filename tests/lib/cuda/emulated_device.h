/*
 * The CUDA device without a GPU: the sources of kernels/cuda are compiled for the host, a kernel's
 * threads run one after the other from barrier to barrier, and the CPU computes products. It shows
 * what a kernel reads, writes and sums, and that results do not depend on the order of threads; it
 * shows nothing about speed or a real GPU's memory.
 *
 * Streams run each operator at once in the caller's thread. One caller at a time in a process.
 */
#ifndef KELP_TESTS_LIB_CUDA_EMULATED_DEVICE_H
#define KELP_TESTS_LIB_CUDA_EMULATED_DEVICE_H

#include "kernels/device.h"

/* *ret is owned, table->destroy(). Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE. */
kelp_status kelp_device_cuda_create_emulated(struct kelp_device **ret,
                                             struct kelp_error *reterr) KELP_MUST_USE;

/* From now on the blocks of a grid and the threads of a block run in random orders, new at each
 * launch; the same seed and launches give the same orders. 0, the initial state: in ascending
 * order. */
void kelp_cuda_emulated_order(uint64_t seed);

/*
 * How many blocks of memory were freed whose guards were written to, since the process began. All
 * memory lies between guards, and scratch memory is allocated anew for each operator that asks for
 * another size, in exactly that size. With AddressSanitizer, which ends the process instead: none.
 */
uint32_t kelp_cuda_emulated_overruns(void);
/* Bytes of the largest allocation since the last such call. */
uint64_t kelp_cuda_emulated_largest(void);
/* Which of all marks, in the order of their recording, was waited for last. */
uint64_t kelp_cuda_emulated_waited(void);
/* Has the process a context, as CUDA calls what it keeps of a GPU? And kelp_device_cuda_leave(). */
bool kelp_cuda_emulated_has_context(void);
void kelp_cuda_emulated_leave(void);
/* An operator that asks for so many floats of scratch memory and writes so many. */
void kelp_cuda_emulated_write_scratch(struct kelp_stream *stream, uint64_t asked, uint64_t written);
/* c [16, 8] += a [16, k] b [k, 8] in one instruction of a tensor core, by a warp whose lanes hold
 * what the PTX ISA says: k is 16 with bfloat16, or 8, with tf32. All are device memory. */
void kelp_cuda_emulated_multiply(struct kelp_stream *stream, bool bfloat16, const float *a,
                                 const float *b, float *c);

#endif
