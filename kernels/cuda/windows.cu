/*
 * Pooling, a thread for each element of what is written: of y forward, of dx in the gradients,
 * where it goes through the windows that hold the element in the order in which the CPU's loops
 * meet them (kernels/cpu/loops_window.c). With the channels last a thread has four neighbouring
 * channels, where that many are together. See kernels/operators.h for what each operator does.
 *
 * Kernels come in forms for windows of a few fixed sizes, whose loops the compiler unrolls; so that
 * nothing keeps it from loading all values first, what lies outside is loaded from somewhere inside
 * and not used.
 */
#include "kernels/cuda/window.cuh"

/* ---- elements ---- */

/* Of a thread: neighbouring channels with the channels last, or one element. */
template <typename number, int count> struct some {
    number of[count];
};

template <int count>
static __device__ __forceinline__ struct some<float, count> load(const float *x) {
    if constexpr (count == 4) {
        const float4 four = kelp__cuda_load(x, true);
        return {{four.x, four.y, four.z, four.w}};
    } else {
        return {{x[0]}};
    }
}

template <int count>
static __device__ __forceinline__ struct some<uint32_t, count> load(const uint32_t *x) {
    if constexpr (count == 4) {
        const uint4 four = *reinterpret_cast<const uint4 *>(x);
        return {{four.x, four.y, four.z, four.w}};
    } else {
        return {{x[0]}};
    }
}

template <int count>
static __device__ __forceinline__ void store(float *y, const struct some<float, count> &values)
{
    if constexpr (count == 4) {
        kelp__cuda_store(y, make_float4(values.of[0], values.of[1], values.of[2], values.of[3]),
                         true);
    } else {
        y[0] = values.of[0];
    }
}

template <int count>
static __device__ __forceinline__ void store(uint32_t *y,
                                             const struct some<uint32_t, count> &values)
{
    if constexpr (count == 4) {
        *reinterpret_cast<uint4 *>(y) =
            make_uint4(values.of[0], values.of[1], values.of[2], values.of[3]);
    } else {
        y[0] = values.of[0];
    }
}

template <typename number, int count>
static __device__ __forceinline__ struct some<number, count> all_of(number value) {
    struct some<number, count> ret;
    KELP_CUDA_UNROLL_ALL
    for (int n = 0; n < count; n++) {
        ret.of[n] = value;
    }
    return ret;
}

/* How elements of images stand. A kernel is made for `lanes` channels a thread, or for 0: channels
 * first. */
struct channels {
    uint32_t count;
    struct kelp__cuda_divider by_lanes; /* threads for one place of an image */
};
template <int lanes> static constexpr int width = lanes != 0 ? lanes : 1;

/* From one place of an image to the next one. */
template <int lanes>
static __device__ __forceinline__ uint32_t step_of(const struct channels &channels)
{
    return lanes != 0 ? channels.count : 1;
}

/* What thread i writes: where that is in its image, and where the first element of the other image
 * is that it has to do with. */
struct element {
    struct kelp__cuda_place place;
    uint64_t other;
};
template <int lanes>
static __device__ __forceinline__ struct element
element_of(const struct kelp__cuda_plane &own, const struct kelp__cuda_plane &other,
           const struct channels &channels, uint32_t i)
{
    struct element element;
    if constexpr (lanes == 0) {
        element.place = kelp__cuda_place_of(own, i);
        element.other = (uint64_t)element.place.plane * other.elements;
    } else {
        const uint32_t at = kelp__cuda_divide(channels.by_lanes, i);
        const uint32_t channel = (i - at * channels.by_lanes.by) * lanes;
        element.place = kelp__cuda_place_of(own, at);
        element.other = (uint64_t)element.place.plane * other.elements * channels.count + channel;
    }
    return element;
}

/* ---- forward ---- */

/* A kernel of side by side; 0: of any size. Only what is larger than all before is taken, and NaN
 * once. */
template <int side, int lanes>
static __global__ void max_pool(struct kelp__cuda_window window, struct channels channels,
                                const float *x, float *y, uint32_t *chosen, uint32_t count)
{
    const uint32_t step = step_of<lanes>(channels);
    const int rows = side != 0 ? side : window.kernel[0];
    const int columns = side != 0 ? side : window.kernel[1];
    KELP_CUDA_FOR (i, count) {
        const struct element element =
            element_of<lanes>(window.output, window.input, channels, (uint32_t)i);
        const struct kelp__cuda_place place = element.place;
        const float *from = x + element.other;
        const int row = place.row * window.stride[0] - window.padding[0];
        const int column = place.column * window.stride[1] - window.padding[1];
        const uint32_t first =
            kelp__cuda_offset(window.input, row > 0 ? row : 0, column > 0 ? column : 0);
        /* Stays when nothing is larger: the first is chosen. */
        auto best = all_of<float, width<lanes>>(-__builtin_inff());
        auto best_at = all_of<uint32_t, width<lanes>>(first);
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < rows; r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < columns; c++) {
                const bool inside = kelp__cuda_is_inside(window.input, row + r, column + c);
                const uint32_t at =
                    inside ? kelp__cuda_offset(window.input, row + r, column + c) : first;
                const auto value = load<width<lanes>>(from + (uint64_t)at * step);
                KELP_CUDA_UNROLL_ALL
                for (int n = 0; n < width<lanes>; n++) {
                    const bool take =
                        inside & !(value.of[n] <= best.of[n]) & (best.of[n] == best.of[n]);
                    best.of[n] = take ? value.of[n] : best.of[n];
                    best_at.of[n] = take ? at : best_at.of[n];
                }
            }
        }
        store(y + i * width<lanes>, best);
        store(chosen + i * width<lanes>, best_at);
    }
}

template <int side, int lanes>
static __global__ void average_pool(struct kelp__cuda_window window, struct channels channels,
                                    const float *x, float *y, float divisor, uint32_t count)
{
    const uint32_t step = step_of<lanes>(channels);
    const int rows = side != 0 ? side : window.kernel[0];
    const int columns = side != 0 ? side : window.kernel[1];
    KELP_CUDA_FOR (i, count) {
        const struct element element =
            element_of<lanes>(window.output, window.input, channels, (uint32_t)i);
        const struct kelp__cuda_place place = element.place;
        const float *from = x + element.other;
        const int row = place.row * window.stride[0] - window.padding[0];
        const int column = place.column * window.stride[1] - window.padding[1];
        auto sum = all_of<float, width<lanes>>(0.0f);
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < rows; r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < columns; c++) {
                const bool inside = kelp__cuda_is_inside(window.input, row + r, column + c);
                const uint32_t at =
                    inside ? kelp__cuda_offset(window.input, row + r, column + c) : 0;
                const auto value = load<width<lanes>>(from + (uint64_t)at * step);
                KELP_CUDA_UNROLL_ALL
                for (int n = 0; n < width<lanes>; n++) {
                    sum.of[n] = inside ? sum.of[n] + value.of[n] : sum.of[n];
                }
            }
        }
        KELP_CUDA_UNROLL_ALL
        for (int n = 0; n < width<lanes>; n++) {
            sum.of[n] = sum.of[n] / divisor;
        }
        store(y + i * width<lanes>, sum);
    }
}

/* ---- gradients ---- */

/* The outputs [begin, begin + count) of a side whose windows hold the input at `at`. */
struct span {
    int begin, count;
};
static __device__ __forceinline__ struct span span_of(const struct kelp__cuda_window &window,
                                                      int side, int at)
{
    const int kernel = window.kernel[side];
    const int padded = at + window.padding[side];
    const int last = (int)kelp__cuda_divide(window.by_stride[side], (uint32_t)padded);
    const int end = last + 1 < window.output.sides[side] ? last + 1 : window.output.sides[side];
    /* The first window that does not end before the input. */
    const int begin =
        padded < kernel
            ? 0
            : (int)kelp__cuda_divide(window.by_stride[side], (uint32_t)(padded - kernel)) + 1;
    return {begin, end - begin};
}

/* The offset of window (r, c) of those that hold an input; 0 where there are not so many. */
static __device__ __forceinline__ uint32_t output_of(const struct kelp__cuda_window &window,
                                                     struct span rows, struct span columns, int r,
                                                     int c)
{
    return r < rows.count && c < columns.count
               ? kelp__cuda_offset(window.output, rows.begin + r, columns.begin + c)
               : 0;
}

/* What is added to. */
template <int count>
static __device__ __forceinline__ struct some<float, count> gradient_before(const float *dx,
                                                                            enum kelp_write write) {
    return write == KELP_ACCUMULATE ? load<count>(dx) : all_of<float, count>(0.0f);
}

/* At most most by most windows hold an element; 0: any number. */
template <int most, int lanes>
static __global__ void max_pool_gradient(struct kelp__cuda_window window, struct channels channels,
                                         const uint32_t *chosen, const float *dy, float *dx,
                                         enum kelp_write write, uint32_t count)
{
    const uint32_t step = step_of<lanes>(channels);
    KELP_CUDA_FOR (i, count) {
        const struct element element =
            element_of<lanes>(window.input, window.output, channels, (uint32_t)i);
        const struct kelp__cuda_place place = element.place;
        const struct span rows = span_of(window, 0, place.row);
        const struct span columns = span_of(window, 1, place.column);
        auto sum = gradient_before<width<lanes>>(dx + i * width<lanes>, write);
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < (most != 0 ? most : rows.count); r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < (most != 0 ? most : columns.count); c++) {
                const bool holds = r < rows.count && c < columns.count;
                const uint64_t at =
                    element.other + (uint64_t)output_of(window, rows, columns, r, c) * step;
                const auto picked = load<width<lanes>>(chosen + at);
                const auto value = load<width<lanes>>(dy + at);
                KELP_CUDA_UNROLL_ALL
                for (int n = 0; n < width<lanes>; n++) {
                    const bool takes = (picked.of[n] == place.within) & holds;
                    sum.of[n] = takes ? sum.of[n] + value.of[n] : sum.of[n];
                }
            }
        }
        store(dx + i * width<lanes>, sum);
    }
}

/* Divisions end in branches, which loads do not pass: those of a fixed number come before all. */
template <int most, int lanes>
static __global__ void average_pool_gradient(struct kelp__cuda_window window,
                                             struct channels channels, const float *dy, float *dx,
                                             float divisor, enum kelp_write write, uint32_t count)
{
    const uint32_t step = step_of<lanes>(channels);
    KELP_CUDA_FOR (i, count) {
        const struct element element =
            element_of<lanes>(window.input, window.output, channels, (uint32_t)i);
        const float *from = dy + element.other;
        const struct span rows = span_of(window, 0, element.place.row);
        const struct span columns = span_of(window, 1, element.place.column);
        auto sum = gradient_before<width<lanes>>(dx + i * width<lanes>, write);
        struct some<float, width<lanes>> values[most != 0 ? most * most : 1];
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < most; r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < most; c++) {
                const uint32_t at = output_of(window, rows, columns, r, c);
                values[r * most + c] = load<width<lanes>>(from + (uint64_t)at * step);
            }
        }
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < (most != 0 ? most : rows.count); r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < (most != 0 ? most : columns.count); c++) {
                const uint32_t at = output_of(window, rows, columns, r, c);
                const auto value = most != 0 ? values[r * most + c]
                                             : load<width<lanes>>(from + (uint64_t)at * step);
                const bool holds = r < rows.count && c < columns.count;
                KELP_CUDA_UNROLL_ALL
                for (int n = 0; n < width<lanes>; n++) {
                    const float share = value.of[n] / divisor;
                    sum.of[n] = holds ? sum.of[n] + share : sum.of[n];
                }
            }
        }
        store(dx + i * width<lanes>, sum);
    }
}

/* ---- launches ---- */

static uint64_t plane_of(const uint32_t sides[2])
{
    return (uint64_t)sides[0] * sides[1];
}

/* How many windows hold an input at most, in each direction; 0: not the same in both. */
static uint32_t most_of(const struct kelp_window *window)
{
    const uint32_t rows = (window->kernel[0] - 1) / window->stride[0] + 1;
    const uint32_t columns = (window->kernel[1] - 1) / window->stride[1] + 1;
    return rows == columns ? rows : 0;
}

/* Images, planes or whole samples, in parts whose elements are counted in 31 bits. */
struct images {
    uint64_t input, output; /* elements of one */
    uint64_t count, at_once;
    uint32_t lanes;
    struct channels channels;
    struct kelp__cuda_window window;
};

/* fours: four neighbouring channels are loaded at once. Of count 0 where there is nothing to do, or
 * it cannot be done. */
static struct images images_of(struct kelp_stream *stream, const struct kelp_window *window,
                               uint32_t samples, bool fours)
{
    const bool last = window->layout == KELP_CHANNELS_LAST;
    const uint32_t together = last ? window->channels : 1;
    struct images images = {};
    images.input = plane_of(window->input) * together;
    images.output = plane_of(window->output) * together;
    if (images.input == 0 || images.output == 0 || plane_of(window->kernel) == 0) {
        return images;
    }
    const uint64_t most = images.input > images.output ? images.input : images.output;
    if (!kelp__cuda_window_fits(window) || most > INT_MAX) {
        kelp__cuda_fail(kelp__cuda_stream_of(stream), KELP_ERR_DEVICE,
                        "the images of a pooling have more than 2^31 - 1 elements");
        return images;
    }
    images.count = last ? samples : (uint64_t)samples * window->channels;
    images.at_once = INT_MAX / most;
    images.window = kelp__cuda_window_of(window);
    if (last) {
        images.lanes = fours && window->channels % 4 == 0 ? 4 : 1;
        images.channels = {window->channels,
                           kelp__cuda_divider_of(window->channels / images.lanes)};
    }
    return images;
}

/* A range of images: where it begins in x and y, and how many threads its elements take. */
struct part {
    uint64_t x, y;
    uint32_t input, output;
};
static struct part part_of(const struct images &images, uint64_t first)
{
    const uint64_t left = images.count - first;
    const uint64_t count = left < images.at_once ? left : images.at_once;
    const uint32_t lanes = images.lanes != 0 ? images.lanes : 1;
    return {first * images.input, first * images.output, (uint32_t)(count * images.input / lanes),
            (uint32_t)(count * images.output / lanes)};
}

/* The form for that many lanes, and with more than one of them or none for this size (1, 2 or 3; or
 * any). */
#define LAUNCH_SIZES(stream, form, lanes, size, count, ...)                                        \
    do {                                                                                           \
        const uint64_t blocks_of_ = kelp__cuda_blocks(count);                                      \
        switch (size) {                                                                            \
        case 1:                                                                                    \
            KELP_CUDA_LAUNCH(stream, (form<1, lanes>), blocks_of_, KELP_CUDA_THREADS,              \
                             __VA_ARGS__);                                                         \
            break;                                                                                 \
        case 2:                                                                                    \
            KELP_CUDA_LAUNCH(stream, (form<2, lanes>), blocks_of_, KELP_CUDA_THREADS,              \
                             __VA_ARGS__);                                                         \
            break;                                                                                 \
        case 3:                                                                                    \
            KELP_CUDA_LAUNCH(stream, (form<3, lanes>), blocks_of_, KELP_CUDA_THREADS,              \
                             __VA_ARGS__);                                                         \
            break;                                                                                 \
        default:                                                                                   \
            KELP_CUDA_LAUNCH(stream, (form<0, lanes>), blocks_of_, KELP_CUDA_THREADS,              \
                             __VA_ARGS__);                                                         \
            break;                                                                                 \
        }                                                                                          \
    } while (0)
#define LAUNCH(stream, form, images, size, count, ...)                                             \
    do {                                                                                           \
        if ((images).lanes == 0) {                                                                 \
            LAUNCH_SIZES(stream, form, 0, size, count, (images).window, (images).channels,         \
                         __VA_ARGS__, count);                                                      \
        } else if ((images).lanes == 4) {                                                          \
            LAUNCH_SIZES(stream, form, 4, size, count, (images).window, (images).channels,         \
                         __VA_ARGS__, count);                                                      \
        } else {                                                                                   \
            KELP_CUDA_LAUNCH(stream, (form<0, 1>), kelp__cuda_blocks(count), KELP_CUDA_THREADS,    \
                             (images).window, (images).channels, __VA_ARGS__, count);              \
        }                                                                                          \
    } while (0)

void kelp__cuda_max_pool(struct kelp_stream *stream, const struct kelp_max_pool *p)
{
    const bool fours =
        kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->y) && kelp__cuda_aligned(p->chosen);
    const struct images images = images_of(stream, &p->window, p->samples, fours);
    for (uint64_t first = 0; first < images.count; first += images.at_once) {
        const struct part part = part_of(images, first);
        LAUNCH(stream, max_pool, images, kelp__cuda_window_side(&p->window), part.output,
               p->x + part.x, p->y + part.y, p->chosen + part.y);
    }
}

void kelp__cuda_max_pool_gradient(struct kelp_stream *stream, const struct kelp_max_pool *p)
{
    const bool fours =
        kelp__cuda_aligned(p->chosen) && kelp__cuda_aligned(p->dy) && kelp__cuda_aligned(p->dx);
    const struct images images = images_of(stream, &p->window, p->samples, fours);
    for (uint64_t first = 0; first < images.count; first += images.at_once) {
        const struct part part = part_of(images, first);
        LAUNCH(stream, max_pool_gradient, images, most_of(&p->window), part.input,
               p->chosen + part.y, p->dy + part.y, p->dx + part.x, p->write);
    }
}

void kelp__cuda_average_pool(struct kelp_stream *stream, const struct kelp_average_pool *p)
{
    const float divisor = (float)plane_of(p->window.kernel);
    const struct images images = images_of(stream, &p->window, p->samples,
                                           kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->y));
    for (uint64_t first = 0; first < images.count; first += images.at_once) {
        const struct part part = part_of(images, first);
        LAUNCH(stream, average_pool, images, kelp__cuda_window_side(&p->window), part.output,
               p->x + part.x, p->y + part.y, divisor);
    }
}

void kelp__cuda_average_pool_gradient(struct kelp_stream *stream, const struct kelp_average_pool *p)
{
    const float divisor = (float)plane_of(p->window.kernel);
    const struct images images = images_of(stream, &p->window, p->samples,
                                           kelp__cuda_aligned(p->dy) && kelp__cuda_aligned(p->dx));
    for (uint64_t first = 0; first < images.count; first += images.at_once) {
        const struct part part = part_of(images, first);
        LAUNCH(stream, average_pool_gradient, images, most_of(&p->window), part.input,
               p->dy + part.y, p->dx + part.x, divisor, p->write);
    }
}
