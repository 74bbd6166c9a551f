/*
 * Pooling, a thread for each element of what is written: of y forward, of dx in the gradients,
 * where it goes through the windows that hold the element in the order in which the CPU's loops
 * meet them (kernels/cpu/loops/loops_window.c). A thread has four neighbours, where rows, or with
 * the channels last channels, are whole fours. See kernels/operators.h for what each operator does.
 *
 * Kernels come in forms for windows of a few fixed sizes, whose loops the compiler unrolls; so that
 * nothing keeps it from loading all values first, what lies outside is loaded from somewhere inside
 * and not used.
 */
#include "kernels/cuda/window.cuh"

/* ---- elements ---- */

/* Of a thread. */
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

/* What a thread has: an element or four of a row, channels first; or of a place's channels one or
 * four. */
enum share {
    ELEMENT,
    ROW,
    CHANNEL,
    CHANNELS
};
template <enum share share> static constexpr int width = share == ROW || share == CHANNELS ? 4 : 1;
template <enum share share>
static constexpr bool channels_last = share == CHANNEL || share == CHANNELS;

struct channels {
    uint32_t count;
    struct kelp__cuda_divider by_threads; /* that one place of an image takes */
};

/* What thread i writes: where the first of it is in its image, and where the first element of the
 * other image is that it has to do with. */
struct element {
    struct kelp__cuda_place place;
    uint64_t other;
};
template <enum share share>
static __device__ __forceinline__ struct element
element_of(const struct kelp__cuda_plane &own, const struct kelp__cuda_plane &other,
           const struct channels &channels, uint32_t i)
{
    struct element element;
    if constexpr (channels_last<share>) {
        const uint32_t at = kelp__cuda_divide(channels.by_threads, i);
        const uint32_t channel = (i - at * channels.by_threads.by) * width<share>;
        element.place = kelp__cuda_place_of(own, at);
        element.other = (uint64_t)element.place.plane * other.elements * channels.count + channel;
    } else {
        element.place = kelp__cuda_place_of(own, i * width<share>);
        element.other = (uint64_t)element.place.plane * other.elements;
    }
    return element;
}

/* What is found at these offsets in the plane of the other image, of which all are the same with
 * the channels last. */
template <enum share share, typename number>
static __device__ __forceinline__ struct some<number, width<share>>
find(const number *from, const struct some<uint32_t, width<share>> &at,
     const struct channels &channels) {
    if constexpr (channels_last<share>) {
        return load<width<share>>(from + (uint64_t)at.of[0] * channels.count);
    } else {
        struct some<number, width<share>> ret;
        KELP_CUDA_UNROLL_ALL
        for (int n = 0; n < width<share>; n++) {
            ret.of[n] = from[at.of[n]];
        }
        return ret;
    }
}

/* How far the n-th of a thread's elements is in the row from the first one. */
template <enum share share>
static __device__ __forceinline__ int along(int n)
{
    return channels_last<share> ? 0 : n;
}

/* ---- forward ---- */

/* Where an element of a window stands, for each of a thread's windows, and whether it is inside. */
template <enum share share> struct tap {
    struct some<uint32_t, width<share>> at;
    struct some<bool, width<share>> inside;
};
template <enum share share>
static __device__ __forceinline__ struct tap<share>
tap_of(const struct kelp__cuda_window &window, int row, int column,
       const struct some<uint32_t, width<share>> &otherwise) {
    struct tap<share> tap;
    KELP_CUDA_UNROLL_ALL
    for (int n = 0; n < width<share>; n++) {
        const int there = column + along<share>(n) * window.stride[1];
        tap.inside.of[n] = kelp__cuda_is_inside(window.input, row, there);
        tap.at.of[n] =
            tap.inside.of[n] ? kelp__cuda_offset(window.input, row, there) : otherwise.of[n];
    }
    return tap;
}

/* A kernel of side by side; 0: of any size. Only what is larger than all before is taken, and NaN
 * once. */
template <int side, enum share share>
static __global__ void max_pool(struct kelp__cuda_window window, struct channels channels,
                                const float *x, float *y, uint32_t *chosen, uint32_t count)
{
    constexpr int of_thread = width<share>;
    const int rows = side != 0 ? side : window.kernel[0];
    const int columns = side != 0 ? side : window.kernel[1];
    KELP_CUDA_FOR (i, count) {
        const struct element element =
            element_of<share>(window.output, window.input, channels, (uint32_t)i);
        const struct kelp__cuda_place place = element.place;
        const float *from = x + element.other;
        const int row = place.row * window.stride[0] - window.padding[0];
        const int column = place.column * window.stride[1] - window.padding[1];
        /* Stays when nothing is larger: the first is chosen. */
        auto best = all_of<float, of_thread>(-__builtin_inff());
        struct some<uint32_t, of_thread> first;
        KELP_CUDA_UNROLL_ALL
        for (int n = 0; n < of_thread; n++) {
            const int there = column + along<share>(n) * window.stride[1];
            first.of[n] = kelp__cuda_offset(window.input, row > 0 ? row : 0, there > 0 ? there : 0);
        }
        auto best_at = first;
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < rows; r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < columns; c++) {
                const auto tap = tap_of<share>(window, row + r, column + c, first);
                const auto value = find<share>(from, tap.at, channels);
                KELP_CUDA_UNROLL_ALL
                for (int n = 0; n < of_thread; n++) {
                    const bool take = tap.inside.of[n] & !(value.of[n] <= best.of[n]) &
                                      (best.of[n] == best.of[n]);
                    best.of[n] = take ? value.of[n] : best.of[n];
                    best_at.of[n] = take ? tap.at.of[n] : best_at.of[n];
                }
            }
        }
        store(y + i * of_thread, best);
        store(chosen + i * of_thread, best_at);
    }
}

template <int side, enum share share>
static __global__ void average_pool(struct kelp__cuda_window window, struct channels channels,
                                    const float *x, float *y, float divisor, uint32_t count)
{
    constexpr int of_thread = width<share>;
    const int rows = side != 0 ? side : window.kernel[0];
    const int columns = side != 0 ? side : window.kernel[1];
    KELP_CUDA_FOR (i, count) {
        const struct element element =
            element_of<share>(window.output, window.input, channels, (uint32_t)i);
        const struct kelp__cuda_place place = element.place;
        const float *from = x + element.other;
        const int row = place.row * window.stride[0] - window.padding[0];
        const int column = place.column * window.stride[1] - window.padding[1];
        auto sum = all_of<float, of_thread>(0.0f);
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < rows; r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < columns; c++) {
                const auto tap =
                    tap_of<share>(window, row + r, column + c, all_of<uint32_t, of_thread>(0));
                const auto value = find<share>(from, tap.at, channels);
                KELP_CUDA_UNROLL_ALL
                for (int n = 0; n < of_thread; n++) {
                    sum.of[n] = tap.inside.of[n] ? sum.of[n] + value.of[n] : sum.of[n];
                }
            }
        }
        KELP_CUDA_UNROLL_ALL
        for (int n = 0; n < of_thread; n++) {
            sum.of[n] = sum.of[n] / divisor;
        }
        store(y + i * of_thread, sum);
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

/* The windows that hold a thread's inputs. */
template <enum share share> struct spans {
    struct span rows;
    struct some<struct span, width<share>> columns;
    int columns_most; /* of one input */
};
template <enum share share>
static __device__ __forceinline__ struct spans<share>
spans_of(const struct kelp__cuda_window &window, const struct kelp__cuda_place &place) {
    struct spans<share> spans;
    spans.rows = span_of(window, 0, place.row);
    spans.columns_most = 0;
    KELP_CUDA_UNROLL_ALL
    for (int n = 0; n < width<share>; n++) {
        const struct span columns = span_of(window, 1, place.column + along<share>(n));
        spans.columns.of[n] = columns;
        spans.columns_most =
            columns.count > spans.columns_most ? columns.count : spans.columns_most;
    }
    return spans;
}

/* Window (r, c) of those that hold an input: its offset, and whether there are so many; 0 where
 * there are not. */
template <enum share share>
static __device__ __forceinline__ struct tap<share>
output_of(const struct kelp__cuda_window &window, const struct spans<share> &spans, int r, int c) {
    struct tap<share> tap;
    KELP_CUDA_UNROLL_ALL
    for (int n = 0; n < width<share>; n++) {
        const struct span columns = spans.columns.of[n];
        tap.inside.of[n] = r < spans.rows.count && c < columns.count;
        tap.at.of[n] = tap.inside.of[n] ? kelp__cuda_offset(window.output, spans.rows.begin + r,
                                                            columns.begin + c)
                                        : 0;
    }
    return tap;
}

/* What is added to. */
template <int count>
static __device__ __forceinline__ struct some<float, count> gradient_before(const float *dx,
                                                                            enum kelp_write write) {
    return write == KELP_ACCUMULATE ? load<count>(dx) : all_of<float, count>(0.0f);
}

/* At most most by most windows hold an element; 0: any number. */
template <int most, enum share share>
static __global__ void max_pool_gradient(struct kelp__cuda_window window, struct channels channels,
                                         const uint32_t *chosen, const float *dy, float *dx,
                                         enum kelp_write write, uint32_t count)
{
    constexpr int of_thread = width<share>;
    KELP_CUDA_FOR (i, count) {
        const struct element element =
            element_of<share>(window.input, window.output, channels, (uint32_t)i);
        const auto spans = spans_of<share>(window, element.place);
        auto sum = gradient_before<of_thread>(dx + i * of_thread, write);
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < (most != 0 ? most : spans.rows.count); r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < (most != 0 ? most : spans.columns_most); c++) {
                const auto tap = output_of<share>(window, spans, r, c);
                const auto picked = find<share>(chosen + element.other, tap.at, channels);
                const auto value = find<share>(dy + element.other, tap.at, channels);
                KELP_CUDA_UNROLL_ALL
                for (int n = 0; n < of_thread; n++) {
                    const uint32_t within = element.place.within + (uint32_t)along<share>(n);
                    const bool takes = (picked.of[n] == within) & tap.inside.of[n];
                    sum.of[n] = takes ? sum.of[n] + value.of[n] : sum.of[n];
                }
            }
        }
        store(dx + i * of_thread, sum);
    }
}

/* Divisions end in branches, which loads do not pass: those of a fixed number come before all. */
template <int most, enum share share>
static __global__ void average_pool_gradient(struct kelp__cuda_window window,
                                             struct channels channels, const float *dy, float *dx,
                                             float divisor, enum kelp_write write, uint32_t count)
{
    constexpr int of_thread = width<share>;
    KELP_CUDA_FOR (i, count) {
        const struct element element =
            element_of<share>(window.input, window.output, channels, (uint32_t)i);
        const float *from = dy + element.other;
        const auto spans = spans_of<share>(window, element.place);
        auto sum = gradient_before<of_thread>(dx + i * of_thread, write);
        struct some<float, of_thread> values[most != 0 ? most * most : 1];
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < most; r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < most; c++) {
                const auto tap = output_of<share>(window, spans, r, c);
                values[r * most + c] = find<share>(from, tap.at, channels);
            }
        }
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < (most != 0 ? most : spans.rows.count); r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < (most != 0 ? most : spans.columns_most); c++) {
                const auto tap = output_of<share>(window, spans, r, c);
                const auto value =
                    most != 0 ? values[r * most + c] : find<share>(from, tap.at, channels);
                KELP_CUDA_UNROLL_ALL
                for (int n = 0; n < of_thread; n++) {
                    const float part = value.of[n] / divisor;
                    sum.of[n] = tap.inside.of[n] ? sum.of[n] + part : sum.of[n];
                }
            }
        }
        store(dx + i * of_thread, sum);
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
    enum share share;
    struct channels channels;
    struct kelp__cuda_window window;
};

static enum share share_of(const struct kelp_window *window, bool aligned, uint32_t row)
{
    if (window->layout == KELP_CHANNELS_LAST) {
        return aligned && window->channels % 4 == 0 ? CHANNELS : CHANNEL;
    }
    return aligned && row % 4 == 0 ? ROW : ELEMENT;
}

/* aligned: fours can be loaded and stored at once. row: elements of a row of what is written. Of
 * count 0 where there is nothing to do, or it cannot be done. */
static struct images images_of(struct kelp_stream *stream, const struct kelp_window *window,
                               uint32_t samples, bool aligned, uint32_t row)
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
    images.share = share_of(window, aligned, row);
    if (last) {
        images.channels = {window->channels,
                           kelp__cuda_divider_of(images.share == CHANNELS ? window->channels / 4
                                                                          : window->channels)};
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
    const uint32_t each = images.share == ROW || images.share == CHANNELS ? 4 : 1;
    return {first * images.input, first * images.output, (uint32_t)(count * images.input / each),
            (uint32_t)(count * images.output / each)};
}

/* The form for that share, and for this size (1, 2 or 3; or any). */
#define LAUNCH_SIZES(stream, form, share, size, count, ...)                                        \
    do {                                                                                           \
        const uint64_t blocks_of_ = kelp__cuda_blocks(count);                                      \
        switch (size) {                                                                            \
        case 1:                                                                                    \
            KELP_CUDA_LAUNCH(stream, (form<1, share>), blocks_of_, KELP_CUDA_THREADS,              \
                             __VA_ARGS__);                                                         \
            break;                                                                                 \
        case 2:                                                                                    \
            KELP_CUDA_LAUNCH(stream, (form<2, share>), blocks_of_, KELP_CUDA_THREADS,              \
                             __VA_ARGS__);                                                         \
            break;                                                                                 \
        case 3:                                                                                    \
            KELP_CUDA_LAUNCH(stream, (form<3, share>), blocks_of_, KELP_CUDA_THREADS,              \
                             __VA_ARGS__);                                                         \
            break;                                                                                 \
        default:                                                                                   \
            KELP_CUDA_LAUNCH(stream, (form<0, share>), blocks_of_, KELP_CUDA_THREADS,              \
                             __VA_ARGS__);                                                         \
            break;                                                                                 \
        }                                                                                          \
    } while (0)
#define LAUNCH(stream, form, images, size, count, ...)                                             \
    do {                                                                                           \
        switch ((images).share) {                                                                  \
        case ROW:                                                                                  \
            LAUNCH_SIZES(stream, form, ROW, size, count, (images).window, (images).channels,       \
                         __VA_ARGS__, count);                                                      \
            break;                                                                                 \
        case CHANNELS:                                                                             \
            LAUNCH_SIZES(stream, form, CHANNELS, size, count, (images).window, (images).channels,  \
                         __VA_ARGS__, count);                                                      \
            break;                                                                                 \
        case ELEMENT:                                                                              \
            LAUNCH_SIZES(stream, form, ELEMENT, size, count, (images).window, (images).channels,   \
                         __VA_ARGS__, count);                                                      \
            break;                                                                                 \
        case CHANNEL:                                                                              \
            KELP_CUDA_LAUNCH(stream, (form<0, CHANNEL>), kelp__cuda_blocks(count),                 \
                             KELP_CUDA_THREADS, (images).window, (images).channels, __VA_ARGS__,   \
                             count);                                                               \
            break;                                                                                 \
        }                                                                                          \
    } while (0)

void kelp__cuda_max_pool(struct kelp_stream *stream, const struct kelp_max_pool *p)
{
    const bool aligned =
        kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->y) && kelp__cuda_aligned(p->chosen);
    const struct images images =
        images_of(stream, &p->window, p->samples, aligned, p->window.output[1]);
    for (uint64_t first = 0; first < images.count; first += images.at_once) {
        const struct part part = part_of(images, first);
        LAUNCH(stream, max_pool, images, kelp__cuda_window_side(&p->window), part.output,
               p->x + part.x, p->y + part.y, p->chosen + part.y);
    }
}

void kelp__cuda_max_pool_gradient(struct kelp_stream *stream, const struct kelp_max_pool *p)
{
    const bool aligned =
        kelp__cuda_aligned(p->chosen) && kelp__cuda_aligned(p->dy) && kelp__cuda_aligned(p->dx);
    const struct images images =
        images_of(stream, &p->window, p->samples, aligned, p->window.input[1]);
    for (uint64_t first = 0; first < images.count; first += images.at_once) {
        const struct part part = part_of(images, first);
        LAUNCH(stream, max_pool_gradient, images, most_of(&p->window), part.input,
               p->chosen + part.y, p->dy + part.y, p->dx + part.x, p->write);
    }
}

void kelp__cuda_average_pool(struct kelp_stream *stream, const struct kelp_average_pool *p)
{
    const float divisor = (float)plane_of(p->window.kernel);
    const bool aligned = kelp__cuda_aligned(p->x) && kelp__cuda_aligned(p->y);
    const struct images images =
        images_of(stream, &p->window, p->samples, aligned, p->window.output[1]);
    for (uint64_t first = 0; first < images.count; first += images.at_once) {
        const struct part part = part_of(images, first);
        LAUNCH(stream, average_pool, images, kelp__cuda_window_side(&p->window), part.output,
               p->x + part.x, p->y + part.y, divisor);
    }
}

void kelp__cuda_average_pool_gradient(struct kelp_stream *stream, const struct kelp_average_pool *p)
{
    const float divisor = (float)plane_of(p->window.kernel);
    const bool aligned = kelp__cuda_aligned(p->dy) && kelp__cuda_aligned(p->dx);
    const struct images images =
        images_of(stream, &p->window, p->samples, aligned, p->window.input[1]);
    for (uint64_t first = 0; first < images.count; first += images.at_once) {
        const struct part part = part_of(images, first);
        LAUNCH(stream, average_pool_gradient, images, most_of(&p->window), part.input,
               p->dy + part.y, p->dx + part.x, divisor, p->write);
    }
}
