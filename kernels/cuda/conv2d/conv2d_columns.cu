/*
 * What goes into a convolution's products, and what becomes of their results: columns out of x and
 * back into dx, dy and y between their own order and the wide form, y's bias. A launch counts its
 * elements in 31 bits, as conv2d.cu takes no more samples at a time.
 */
#include "kernels/cuda/conv2d/conv2d.cuh"

/* ---- columns --------------------------------------------------------------------------------- */

/* The order in which threads take planes, (outer, inner), and where these stand: in columns planes
 * of neighbouring threads stand next to each other. */
struct order {
    struct kelp__cuda_divider inner;
    uint64_t x[2], columns[2]; /* distances, outer and inner */
    uint64_t row;              /* of columns */
};
struct planes {
    uint64_t x, columns; /* where they begin */
};
static __device__ __forceinline__ struct planes planes_of(const struct order &order, uint32_t plane)
{
    const uint32_t outer = kelp__cuda_divide(order.inner, plane);
    const uint32_t inner = plane - outer * order.inner.by;
    return {outer * order.x[0] + inner * order.x[1],
            outer * order.columns[0] + inner * order.columns[1]};
}

/* A thread takes a position of the output and an input channel, and writes what each kernel
 * position meets there: a kernel of side by side, 0: of any size. */
template <int side>
static __global__ void unfold(struct kelp__cuda_window window, struct order order,
                              const float *__restrict__ x, float *__restrict__ columns,
                              uint32_t count)
{
    const int height = side != 0 ? side : window.kernel[0];
    const int width = side != 0 ? side : window.kernel[1];
    KELP_CUDA_FOR (i, count) {
        const struct kelp__cuda_place place = kelp__cuda_place_of(window.output, (uint32_t)i);
        const struct planes planes = planes_of(order, place.plane);
        const float *from = x + planes.x;
        float *to = columns + planes.columns + place.within;
        const int row = place.row * window.stride[0] - window.padding[0];
        const int column = place.column * window.stride[1] - window.padding[1];
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < height; r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < width; c++) {
                const bool inside = kelp__cuda_is_inside(window.input, row + r, column + c);
                const float value =
                    from[inside ? kelp__cuda_offset(window.input, row + r, column + c) : 0];
                *to = inside ? value : 0.0f;
                to += order.row;
            }
        }
    }
}

/* The output of a side whose window has the padded position at kernel position 0. */
struct meeting {
    int output;
    bool is; /* there is such an output */
};
static __device__ __forceinline__ struct meeting meeting_of(const struct kelp__cuda_window &window,
                                                            int side, int position)
{
    const int output = (int)kelp__cuda_divide(window.by_stride[side], (uint32_t)position);
    return {output, position >= 0 && output * window.stride[side] == position &&
                        output < window.output.sides[side]};
}

/* The reverse: a thread takes an element of dx, and adds up what unfold() would have copied it to,
 * kernel positions ascending. */
template <int side>
static __global__ void fold(struct kelp__cuda_window window, struct order order,
                            const float *__restrict__ columns, float *__restrict__ dx,
                            enum kelp_write write, uint32_t count)
{
    const int height = side != 0 ? side : window.kernel[0];
    const int width = side != 0 ? side : window.kernel[1];
    KELP_CUDA_FOR (i, count) {
        const struct kelp__cuda_place place = kelp__cuda_place_of(window.input, (uint32_t)i);
        const struct planes planes = planes_of(order, place.plane);
        const float *from = columns + planes.columns;
        float *to = dx + planes.x + place.within;
        const int row = place.row + window.padding[0], column = place.column + window.padding[1];
        float sum = write == KELP_ACCUMULATE ? *to : 0.0f;
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < height; r++) {
            const struct meeting rows = meeting_of(window, 0, row - r);
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < width; c++) {
                const struct meeting meeting = meeting_of(window, 1, column - c);
                const bool is = rows.is && meeting.is;
                const float value =
                    from[is ? kelp__cuda_offset(window.output, rows.output, meeting.output) : 0];
                sum = is ? sum + value : sum;
                from += order.row;
            }
        }
        *to = sum;
    }
}

static struct order order_of(const struct kelp_conv2d *conv,
                             const struct kelp__cuda_conv2d_layout *columns, bool by_sample,
                             uint32_t samples)
{
    const struct kelp_window *window = &conv->shape.window;
    const uint64_t input = kelp__conv2d_plane(window->input);
    const uint64_t channel = kelp__conv2d_plane(window->kernel) * columns->row; /* in columns */
    if (by_sample) {
        return {kelp__cuda_divider_of(window->channels),
                {conv->x, input},
                {columns->sample, channel},
                columns->row};
    }
    return {
        kelp__cuda_divider_of(samples), {input, conv->x}, {channel, columns->sample}, columns->row};
}

static const float *x_of(const struct kelp__cuda_conv2d_chunk *chunk)
{
    return chunk->run->x + chunk->first * chunk->conv->x;
}

const float *kelp__cuda_conv2d_unfold(struct kelp_stream *stream,
                                      const struct kelp__cuda_conv2d_chunk *chunk, bool by_sample)
{
    const struct kelp_conv2d *conv = chunk->conv;
    const struct kelp_window *window = &conv->shape.window;
    if (by_sample && conv->direct) {
        return x_of(chunk);
    }
    const struct kelp__cuda_conv2d_layout columns =
        kelp__cuda_conv2d_columns_of(conv, by_sample, chunk->samples);
    const uint32_t count = chunk->samples * window->channels * conv->output;
    KELP_CUDA_LAUNCH_FORM(stream, unfold, kelp__cuda_window_side(window), count,
                          kelp__cuda_window_of(window),
                          order_of(conv, &columns, by_sample, chunk->samples), x_of(chunk),
                          chunk->run->workspace, count);
    return chunk->run->workspace;
}

void kelp__cuda_conv2d_fold(struct kelp_stream *stream, const struct kelp__cuda_conv2d_chunk *chunk,
                            const struct kelp__cuda_conv2d_layout *columns, bool by_sample)
{
    const struct kelp_conv2d_run *run = chunk->run;
    const struct kelp_conv2d *conv = chunk->conv;
    const struct kelp_window *window = &conv->shape.window;
    const uint32_t count = (uint32_t)(chunk->samples * conv->x);
    KELP_CUDA_LAUNCH_FORM(stream, fold, kelp__cuda_window_side(window), count,
                          kelp__cuda_window_of(window),
                          order_of(conv, columns, by_sample, chunk->samples), run->workspace,
                          run->dx + chunk->first * conv->x, run->write_x, count);
}

/* ---- planes of the output -------------------------------------------------------------------- */

/* An element of y or dy, [samples][channels][output], and its place in the wide form. */
struct wide_place {
    uint32_t channel;
    uint64_t at;
};
struct wide {
    struct kelp__cuda_divider by_output, by_channels;
    uint64_t row;
};
static __device__ __forceinline__ struct wide_place wide_place_of(const struct wide &wide,
                                                                  uint32_t i)
{
    const uint32_t plane = kelp__cuda_divide(wide.by_output, i);
    const uint32_t sample = kelp__cuda_divide(wide.by_channels, plane);
    const uint32_t channel = plane - sample * wide.by_channels.by;
    const uint32_t within = i - plane * wide.by_output.by;
    return {channel, channel * wide.row + (uint64_t)sample * wide.by_output.by + within};
}

static __global__ void turn_to_wide(struct wide wide, const float *dy, float *turned,
                                    uint32_t count)
{
    KELP_CUDA_FOR (i, count) {
        turned[wide_place_of(wide, (uint32_t)i).at] = dy[i];
    }
}

static __global__ void turn_from_wide(struct wide wide, const float *turned, const float *bias,
                                      float *y, uint32_t count)
{
    KELP_CUDA_FOR (i, count) {
        const struct wide_place place = wide_place_of(wide, (uint32_t)i);
        const float value = turned[place.at];
        y[i] = bias ? value + bias[place.channel] : value;
    }
}

static struct wide wide_of(const struct kelp_conv2d *conv, uint64_t row)
{
    return {kelp__cuda_divider_of(conv->output), kelp__cuda_divider_of(conv->shape.channels_out),
            row};
}

const float *kelp__cuda_conv2d_turn_dy(struct kelp_stream *stream,
                                       const struct kelp__cuda_conv2d_chunk *chunk,
                                       const struct kelp__cuda_conv2d_layout *columns)
{
    const struct kelp_conv2d *conv = chunk->conv;
    float *turned = chunk->run->workspace + columns->elements;
    const uint32_t count = (uint32_t)(chunk->samples * conv->y);
    KELP_CUDA_LAUNCH(stream, turn_to_wide, kelp__cuda_blocks(count), KELP_CUDA_THREADS,
                     wide_of(conv, columns->row), chunk->run->dy + chunk->first * conv->y, turned,
                     count);
    return turned;
}

void kelp__cuda_conv2d_turn_y(struct kelp_stream *stream,
                              const struct kelp__cuda_conv2d_chunk *chunk,
                              const struct kelp__cuda_conv2d_layout *columns)
{
    const struct kelp_conv2d_run *run = chunk->run;
    const struct kelp_conv2d *conv = chunk->conv;
    const uint32_t count = (uint32_t)(chunk->samples * conv->y);
    KELP_CUDA_LAUNCH(stream, turn_from_wide, kelp__cuda_blocks(count), KELP_CUDA_THREADS,
                     wide_of(conv, columns->row), run->workspace + columns->elements, run->bias,
                     run->y + chunk->first * conv->y, count);
}

static __global__ void add_bias(struct kelp__cuda_divider by_output,
                                struct kelp__cuda_divider by_channels, const float *bias, float *y,
                                uint32_t count)
{
    KELP_CUDA_FOR (i, count) {
        const uint32_t plane = kelp__cuda_divide(by_output, (uint32_t)i);
        const float value = bias[plane - kelp__cuda_divide(by_channels, plane) * by_channels.by];
        y[i] = y[i] + value;
    }
}

/* The same where four elements stand together; sizes are in fours. */
static __global__ void add_bias_to_fours(struct kelp__cuda_divider by_output,
                                         struct kelp__cuda_divider by_channels, const float *bias,
                                         float4 *y, uint32_t count)
{
    KELP_CUDA_FOR (i, count) {
        const uint32_t plane = kelp__cuda_divide(by_output, (uint32_t)i);
        const float value = bias[plane - kelp__cuda_divide(by_channels, plane) * by_channels.by];
        const float4 before = y[i];
        y[i] = make_float4(before.x + value, before.y + value, before.z + value, before.w + value);
    }
}

void kelp__cuda_conv2d_bias_to(struct kelp_stream *stream, const struct kelp_conv2d *conv,
                               const float *bias, float *y, uint32_t samples)
{
    const uint32_t count = (uint32_t)(samples * conv->y);
    const struct kelp__cuda_divider channels = kelp__cuda_divider_of(conv->shape.channels_out);
    if (conv->output % 4 == 0 && reinterpret_cast<uintptr_t>(y) % sizeof(float4) == 0) {
        KELP_CUDA_LAUNCH(stream, add_bias_to_fours, kelp__cuda_blocks(count / 4), KELP_CUDA_THREADS,
                         kelp__cuda_divider_of(conv->output / 4), channels, bias,
                         reinterpret_cast<float4 *>(y), count / 4);
        return;
    }
    KELP_CUDA_LAUNCH(stream, add_bias, kelp__cuda_blocks(count), KELP_CUDA_THREADS,
                     kelp__cuda_divider_of(conv->output), channels, bias, y, count);
}
