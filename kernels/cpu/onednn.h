/*
 * The adapter of oneDNN, for its C APIs 2.6 and 3.1. Private to kernels/.
 */
#ifndef KELP_KERNELS_CPU_ONEDNN_H
#define KELP_KERNELS_CPU_ONEDNN_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/operators.h"

#define KELP_ONEDNN_TEXT_SIZE 48

/* Version and the instruction set that it uses here: "onednn-2.6.3 avx512_core". */
void kelp__onednn_describe(char text[KELP_ONEDNN_TEXT_SIZE]);
bool kelp__onednn_has_avx512(void);

/* The most that OpenMP gives (OMP_THREAD_LIMIT). With fewer than it asked for, oneDNN's results are
 * not what they should be. */
uint32_t kelp__onednn_threads_max(void);

/* One matrix product with sizes that are not 0. Errors: KELP_ERR_NO_MEMORY, KELP_ERR_DEVICE. */
kelp_status kelp__onednn_product(const struct kelp_matmul *product, uint32_t threads) KELP_MUST_USE;

#endif
