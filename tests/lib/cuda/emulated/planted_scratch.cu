/* An operator that writes more scratch memory than it asks for, for tests that must find it. */
#include "kernels/cuda/cuda.cuh"

extern "C" {
#include "tests/lib/cuda/emulated_device.h"
}

static __global__ void write_all(float *to, uint64_t count)
{
    KELP_CUDA_FOR (i, count) {
        to[i] = 1.0f;
    }
}

void kelp_cuda_emulated_write_scratch(struct kelp_stream *stream, uint64_t asked, uint64_t written)
{
    float *to = static_cast<float *>(
        kelp__cuda_scratch(kelp__cuda_stream_of(stream), asked * sizeof(float)));
    if (to) {
        KELP_CUDA_LAUNCH(stream, write_all, kelp__cuda_blocks(written), KELP_CUDA_THREADS, to,
                         written);
    }
}
