/*
 * Finds races between a kernel's threads on the emulated device (emulated_device.h), if the kernels
 * are compiled with -fsanitize=thread and kelp_cuda_races is linked: each memory access is then
 * reported to the runtime, which knows what barriers order. So races are found in any order of
 * threads.
 *
 * A race is two accesses to the same two bytes in one launch by different threads, of which at
 * least one writes, without a barrier between them: __syncthreads(), or __syncwarp() in a warp.
 * Accesses of different blocks are never ordered. Shuffles and votes do not order memory: CUDA does
 * not promise that. Two atomic operations are not a race, nor are two writes of the same value.
 *
 * Reported like a race are also: memory of the host, which a GPU does not reach; global memory that
 * nothing has written since it was allocated; and shared memory that its block has not written,
 * which on a GPU holds what was left there.
 */
#ifndef KELP_TESTS_LIB_CUDA_EMULATED_RACES_H
#define KELP_TESTS_LIB_CUDA_EMULATED_RACES_H

#include <stdbool.h>
#include <stdint.h>

/* Called in the middle of a kernel, which cannot continue: must not return. text: one line, with
 * both accesses as PROGRAM+OFFSET for `addr2line -e`. NULL, the initial state: print the text
 * and abort(). */
void kelp_cuda_races_handler(void (*handler)(const char *text));

/* The barriers reached since the program began, with their source lines. */
struct kelp_cuda_barrier {
    const char *file;
    uint32_t line;
    bool warp; /* __syncwarp() */
    uint64_t reached;
};
uint32_t kelp_cuda_barrier_count(void);
struct kelp_cuda_barrier kelp_cuda_barrier(uint32_t index);
/* From now on threads do not wait at this barrier. UINT32_MAX: at every barrier. */
void kelp_cuda_barrier_remove(uint32_t index);

/* Kernels with and without a race, for tests of the search itself (races/planted.cu). */
uint32_t kelp_cuda_planted_count(void);
struct kelp_cuda_planted {
    const char *name;
    bool races;
};
struct kelp_cuda_planted kelp_cuda_planted(uint32_t index);
void kelp_cuda_planted_run(uint32_t index);

#endif
