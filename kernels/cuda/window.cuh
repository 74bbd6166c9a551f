/*
 * Windows over images, for kernels with one thread for each element of an image: where an element
 * stands, and which windows hold it. Private to kernels/cuda.
 */
#ifndef KELP_KERNELS_CUDA_WINDOW_CUH
#define KELP_KERNELS_CUDA_WINDOW_CUH

#include <limits.h>

#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/groups.cuh"

/* An image of one channel, height before width. */
struct kelp__cuda_plane {
    int sides[2];
    uint32_t elements;
    struct kelp__cuda_divider by_plane, by_width;
};
/* A struct kelp_window as kernels need it. */
struct kelp__cuda_window {
    struct kelp__cuda_plane input, output;
    int kernel[2], stride[2], padding[2];
    struct kelp__cuda_divider by_stride[2];
};

/* Positions are ints, padding included, and elements of a plane fit into one. */
static inline bool kelp__cuda_window_fits(const struct kelp_window *window)
{
    bool fits = (uint64_t)window->input[0] * window->input[1] <= INT_MAX &&
                (uint64_t)window->output[0] * window->output[1] <= INT_MAX;
    for (unsigned int side = 0; side < 2; side++) {
        fits = fits && window->input[side] + 2 * (uint64_t)window->padding[side] <= INT_MAX &&
               window->kernel[side] <= INT_MAX && window->stride[side] <= INT_MAX;
    }
    return fits;
}

static inline struct kelp__cuda_plane kelp__cuda_plane_of(const uint32_t sides[2])
{
    const uint32_t elements = sides[0] * sides[1];
    return {{(int)sides[0], (int)sides[1]},
            elements,
            kelp__cuda_divider_of(elements),
            kelp__cuda_divider_of(sides[1])};
}

/* Of a window that fits and has no side of zero. */
static inline struct kelp__cuda_window kelp__cuda_window_of(const struct kelp_window *window)
{
    return {kelp__cuda_plane_of(window->input),
            kelp__cuda_plane_of(window->output),
            {(int)window->kernel[0], (int)window->kernel[1]},
            {(int)window->stride[0], (int)window->stride[1]},
            {(int)window->padding[0], (int)window->padding[1]},
            {kelp__cuda_divider_of(window->stride[0]), kelp__cuda_divider_of(window->stride[1])}};
}

/* Where element i of many planes stands. */
struct kelp__cuda_place {
    uint32_t plane, within; /* the element within its plane */
    int row, column;
};
static __device__ __forceinline__ struct kelp__cuda_place
kelp__cuda_place_of(const struct kelp__cuda_plane &plane, uint32_t i)
{
    struct kelp__cuda_place place;
    place.plane = kelp__cuda_divide(plane.by_plane, i);
    place.within = i - place.plane * plane.elements;
    const uint32_t row = kelp__cuda_divide(plane.by_width, place.within);
    place.row = (int)row;
    place.column = (int)(place.within - row * (uint32_t)plane.sides[1]);
    return place;
}

static __device__ __forceinline__ bool kelp__cuda_is_inside(const struct kelp__cuda_plane &plane,
                                                            int row, int column)
{
    return row >= 0 && row < plane.sides[0] && column >= 0 && column < plane.sides[1];
}

/* The element's offset in its plane, if it is inside. */
static __device__ __forceinline__ uint32_t kelp__cuda_offset(const struct kelp__cuda_plane &plane,
                                                             int row, int column)
{
    return (uint32_t)row * (uint32_t)plane.sides[1] + (uint32_t)column;
}

/* The side of a kernel that is as high as wide; 0: it is not. */
static inline uint32_t kelp__cuda_window_side(const struct kelp_window *window)
{
    return window->kernel[0] == window->kernel[1] ? window->kernel[0] : 0;
}

/* Launch `form`, a template by a size, for `count` elements: the one made for size 1, 2 or 3, or
 * the one for 0, which takes any. */
#define KELP_CUDA_LAUNCH_FORM(stream, form, size, count, ...)                                      \
    do {                                                                                           \
        const uint64_t form_blocks_ = kelp__cuda_blocks(count);                                    \
        switch (size) {                                                                            \
        case 1:                                                                                    \
            KELP_CUDA_LAUNCH(stream, form<1>, form_blocks_, KELP_CUDA_THREADS, __VA_ARGS__);       \
            break;                                                                                 \
        case 2:                                                                                    \
            KELP_CUDA_LAUNCH(stream, form<2>, form_blocks_, KELP_CUDA_THREADS, __VA_ARGS__);       \
            break;                                                                                 \
        case 3:                                                                                    \
            KELP_CUDA_LAUNCH(stream, form<3>, form_blocks_, KELP_CUDA_THREADS, __VA_ARGS__);       \
            break;                                                                                 \
        default:                                                                                   \
            KELP_CUDA_LAUNCH(stream, form<0>, form_blocks_, KELP_CUDA_THREADS, __VA_ARGS__);       \
            break;                                                                                 \
        }                                                                                          \
    } while (0)

#endif
