/*
 * What the convolution's files share: conv2d.cu, with the products, and conv2d_columns.cu, which
 * makes their operands and takes their results apart. The forms are explained in conv2d.cu. Images
 * with the channels last go by tiles: conv2d_gather.cu, conv2d_weight.cu; or by channels, where
 * groups have few of them: conv2d_channels.cu.
 *
 * Private to kernels/cuda/conv2d.
 */
#ifndef KELP_KERNELS_CUDA_CONV2D_CONV2D_CUH
#define KELP_KERNELS_CUDA_CONV2D_CONV2D_CUH

extern "C" {
#include "kernels/conv2d_sizes.h"
}
#include "kernels/cuda/window.cuh"

struct kelp_conv2d : kelp__cuda_conv2d {
    struct kelp__cuda_cudnn_conv *cudnn; /* NULL: all of it is computed here */
};

/* Some samples of a run. */
struct kelp__cuda_conv2d_chunk {
    const struct kelp_conv2d_run *run;
    const struct kelp_conv2d *conv;
    uint32_t first, samples;
};

/* x's columns, in the workspace unless x is what they would be: where they begin. */
const float *kelp__cuda_conv2d_unfold(struct kelp_stream *stream,
                                      const struct kelp__cuda_conv2d_chunk *chunk, bool by_sample);
/* dx = or += the columns in the workspace, back to where unfolding would have taken them from. */
void kelp__cuda_conv2d_fold(struct kelp_stream *stream, const struct kelp__cuda_conv2d_chunk *chunk,
                            const struct kelp__cuda_conv2d_layout *columns, bool by_sample);

/* The wide form of dy and y, [channels_out][samples * output], stands behind the columns in the
 * workspace, with rows of one length. dy is turned into it: where it begins. */
const float *kelp__cuda_conv2d_turn_dy(struct kelp_stream *stream,
                                       const struct kelp__cuda_conv2d_chunk *chunk,
                                       const struct kelp__cuda_conv2d_layout *columns);
/* y = what stands there, turned back, plus the bias if there is one. */
void kelp__cuda_conv2d_turn_y(struct kelp_stream *stream,
                              const struct kelp__cuda_conv2d_chunk *chunk,
                              const struct kelp__cuda_conv2d_layout *columns);

/* y += bias [channels_out], for y [samples][channels_out][output]. */
void kelp__cuda_conv2d_bias_to(struct kelp_stream *stream, const struct kelp_conv2d *conv,
                               const float *bias, float *y, uint32_t samples);

/* By tiles. y, with its bias; dx = or +=; dweight = or +=, as `write` says. Workspace: of a run. */
void kelp__cuda_conv2d_tiles_y(struct kelp_stream *stream,
                               const struct kelp__cuda_conv2d_chunk *chunk);
void kelp__cuda_conv2d_tiles_dx(struct kelp_stream *stream,
                                const struct kelp__cuda_conv2d_chunk *chunk);
void kelp__cuda_conv2d_tiles_dweight(struct kelp_stream *stream,
                                     const struct kelp__cuda_conv2d_chunk *chunk,
                                     enum kelp_write write);

/* By channels, likewise. */
void kelp__cuda_conv2d_channels_y(struct kelp_stream *stream,
                                  const struct kelp__cuda_conv2d_chunk *chunk);
void kelp__cuda_conv2d_channels_dx(struct kelp_stream *stream,
                                   const struct kelp__cuda_conv2d_chunk *chunk);
void kelp__cuda_conv2d_channels_dweight(struct kelp_stream *stream,
                                        const struct kelp__cuda_conv2d_chunk *chunk,
                                        enum kelp_write write);

#endif
