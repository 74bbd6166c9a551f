/*
 * The functions that libkelp-cuda.so exports: kernels/cuda_library.c loads the library and calls
 * them. Private to kernels/.
 */
#ifndef KELP_KERNELS_CUDA_ENTRY_H
#define KELP_KERNELS_CUDA_ENTRY_H

#include "kernels/device.h"

/* What its table says, as far as plans without a GPU need it (kernels/plan_device.c). */
#define KELP_CUDA_CHANNELS_LAST true

#define KELP_CUDA_ENTRY "kelp_cuda_entry"
#define KELP_CUDA_LEAVE "kelp_cuda_leave"

#ifdef __cplusplus
extern "C" {
#endif
/* See kelp_device_cuda_create(). */
__attribute__((visibility("default"))) kelp_status
kelp_cuda_entry(uint32_t index, struct kelp_device **ret, struct kelp_error *reterr);
/* See kelp_device_cuda_leave(). */
__attribute__((visibility("default"))) void kelp_cuda_leave(void);
#ifdef __cplusplus
}
#endif

#endif
