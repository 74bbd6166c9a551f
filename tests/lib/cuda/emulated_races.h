/*
 * Races between a kernel's threads on the emulated device (emulated_device.h), where the kernels
 * are compiled with -fsanitize=thread and kelp_cuda_races is linked: each access to memory is told
 * to the runtime then, which knows what barriers order. So a race is found whatever the order that
 * threads run in.
 *
 * A race is two accesses to the same two bytes in one launch, of different threads, of which one
 * writes, without a barrier between them: __syncthreads(), or __syncwarp() in a warp. Between
 * blocks nothing orders. Shuffles and votes order no memory: CUDA does not say that they do. Two
 * atomic operations are no race, nor are two writes of the same value.
 *
 * Reported like a race are also: memory of the host, which a GPU does not reach; global memory that
 * nothing has written since it was allocated; and shared memory that its block has not written,
 * which on a GPU holds what was left there.
 */
#ifndef KELP_TESTS_LIB_CUDA_EMULATED_RACES_H
#define KELP_TESTS_LIB_CUDA_EMULATED_RACES_H

#include <stdbool.h>
#include <stdint.h>

/* Called in the middle of a kernel, whose work cannot go on: must not return. text: one line, with
 * both accesses as PROGRAM+OFFSET for `addr2line -e`. NULL, as at the beginning: the text is
 * printed and the process ends by abort(). */
void kelp_cuda_races_handler(void (*handler)(const char *text));

/* The barriers that were reached since the program began, by their lines in the sources. */
struct kelp_cuda_barrier {
    const char *file;
    uint32_t line;
    bool warp; /* __syncwarp() */
    uint64_t reached;
};
uint32_t kelp_cuda_barrier_count(void);
struct kelp_cuda_barrier kelp_cuda_barrier(uint32_t index);
/* From now on the threads do not wait there. UINT32_MAX: at all. */
void kelp_cuda_barrier_remove(uint32_t index);

/* Kernels with and without a race, to try it on (races/planted.cu). */
uint32_t kelp_cuda_planted_count(void);
struct kelp_cuda_planted {
    const char *name;
    bool races;
};
struct kelp_cuda_planted kelp_cuda_planted(uint32_t index);
void kelp_cuda_planted_run(uint32_t index);

#endif
