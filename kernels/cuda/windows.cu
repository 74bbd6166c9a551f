/*
 * Pooling, a thread for each element of what is written: of y forward, of dx in the gradients,
 * where it goes through the windows that hold the element in the order in which the CPU's loops
 * meet them (kernels/cpu/loops_window.c). See kernels/operators.h for what each operator does.
 *
 * Kernels come in forms for windows of a few fixed sizes, whose loops the compiler unrolls; so that
 * nothing keeps it from loading all values first, what lies outside is loaded from somewhere inside
 * and not used.
 */
#include "kernels/cuda/window.cuh"

/* ---- forward ---- */

/* A kernel of side by side; 0: of any size. Only what is larger than all before is taken, and NaN
 * once. */
template <int side>
static __global__ void max_pool(struct kelp__cuda_window window, const float *x, float *y,
                                uint32_t *chosen, uint32_t count)
{
    const int rows = side != 0 ? side : window.kernel[0];
    const int columns = side != 0 ? side : window.kernel[1];
    KELP_CUDA_FOR (i, count) {
        const struct kelp__cuda_place place = kelp__cuda_place_of(window.output, (uint32_t)i);
        const float *from = x + (uint64_t)place.plane * window.input.elements;
        const int row = place.row * window.stride[0] - window.padding[0];
        const int column = place.column * window.stride[1] - window.padding[1];
        const uint32_t first =
            kelp__cuda_offset(window.input, row > 0 ? row : 0, column > 0 ? column : 0);
        float best = -__builtin_inff(); /* stays when nothing is larger: the first is chosen */
        uint32_t best_at = first;
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < rows; r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < columns; c++) {
                const bool inside = kelp__cuda_is_inside(window.input, row + r, column + c);
                const uint32_t at =
                    inside ? kelp__cuda_offset(window.input, row + r, column + c) : first;
                const float value = from[at];
                const bool take = inside & !(value <= best) & (best == best);
                best = take ? value : best;
                best_at = take ? at : best_at;
            }
        }
        y[i] = best;
        chosen[i] = best_at;
    }
}

template <int side>
static __global__ void average_pool(struct kelp__cuda_window window, const float *x, float *y,
                                    float divisor, uint32_t count)
{
    const int rows = side != 0 ? side : window.kernel[0];
    const int columns = side != 0 ? side : window.kernel[1];
    KELP_CUDA_FOR (i, count) {
        const struct kelp__cuda_place place = kelp__cuda_place_of(window.output, (uint32_t)i);
        const float *from = x + (uint64_t)place.plane * window.input.elements;
        const int row = place.row * window.stride[0] - window.padding[0];
        const int column = place.column * window.stride[1] - window.padding[1];
        float sum = 0.0f;
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < rows; r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < columns; c++) {
                const bool inside = kelp__cuda_is_inside(window.input, row + r, column + c);
                const float value =
                    from[inside ? kelp__cuda_offset(window.input, row + r, column + c) : 0];
                sum = inside ? sum + value : sum;
            }
        }
        y[i] = sum / divisor;
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

/* At most most by most windows hold an element; 0: any number. */
template <int most>
static __global__ void max_pool_gradient(struct kelp__cuda_window window, const uint32_t *chosen,
                                         const float *dy, float *dx, enum kelp_write write,
                                         uint32_t count)
{
    KELP_CUDA_FOR (i, count) {
        const struct kelp__cuda_place place = kelp__cuda_place_of(window.input, (uint32_t)i);
        const uint64_t plane = (uint64_t)place.plane * window.output.elements;
        const struct span rows = span_of(window, 0, place.row);
        const struct span columns = span_of(window, 1, place.column);
        float sum = write == KELP_ACCUMULATE ? dx[i] : 0.0f;
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < (most != 0 ? most : rows.count); r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < (most != 0 ? most : columns.count); c++) {
                const bool holds = r < rows.count && c < columns.count;
                const uint64_t at = plane + output_of(window, rows, columns, r, c);
                const bool takes = (chosen[at] == place.within) & holds;
                const float value = dy[at];
                sum = takes ? sum + value : sum;
            }
        }
        dx[i] = sum;
    }
}

/* Divisions end in branches, which loads do not pass: those of a fixed number come before all. */
template <int most>
static __global__ void average_pool_gradient(struct kelp__cuda_window window, const float *dy,
                                             float *dx, float divisor, enum kelp_write write,
                                             uint32_t count)
{
    KELP_CUDA_FOR (i, count) {
        const struct kelp__cuda_place place = kelp__cuda_place_of(window.input, (uint32_t)i);
        const float *from = dy + (uint64_t)place.plane * window.output.elements;
        const struct span rows = span_of(window, 0, place.row);
        const struct span columns = span_of(window, 1, place.column);
        float sum = write == KELP_ACCUMULATE ? dx[i] : 0.0f;
        float values[most != 0 ? most * most : 1];
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < most; r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < most; c++) {
                values[r * most + c] = from[output_of(window, rows, columns, r, c)];
            }
        }
        KELP_CUDA_UNROLL_ALL
        for (int r = 0; r < (most != 0 ? most : rows.count); r++) {
            KELP_CUDA_UNROLL_ALL
            for (int c = 0; c < (most != 0 ? most : columns.count); c++) {
                const float value =
                    most != 0 ? values[r * most + c] : from[output_of(window, rows, columns, r, c)];
                const float share = value / divisor;
                sum = r < rows.count && c < columns.count ? sum + share : sum;
            }
        }
        dx[i] = sum;
    }
}

/* ---- launches ---- */

static uint64_t plane_of(const uint32_t sides[2])
{
    return (uint64_t)sides[0] * sides[1];
}

/* Planes of one launch, 0 when there is nothing to do or it cannot be done. */
static uint64_t planes_at_once(struct kelp_stream *stream, const struct kelp_window *window)
{
    const uint64_t input = plane_of(window->input), output = plane_of(window->output);
    if (input == 0 || output == 0 || plane_of(window->kernel) == 0) {
        return 0;
    }
    if (!kelp__cuda_window_fits(window)) {
        kelp__cuda_fail(kelp__cuda_stream_of(stream), KELP_ERR_DEVICE,
                        "the images of a pooling have more than 2^31 - 1 elements");
        return 0;
    }
    return INT_MAX / (input > output ? input : output);
}

/* How many windows hold an input at most, in each direction; 0: not the same in both. */
static uint32_t most_of(const struct kelp_window *window)
{
    const uint32_t rows = (window->kernel[0] - 1) / window->stride[0] + 1;
    const uint32_t columns = (window->kernel[1] - 1) / window->stride[1] + 1;
    return rows == columns ? rows : 0;
}

/* A range of planes: where it begins in x and y, and how many elements it has there. */
struct part {
    uint64_t x, y;
    uint32_t input, output;
};
static struct part part_of(const struct kelp_window *window, uint64_t first, uint64_t planes,
                           uint64_t at_once)
{
    const uint64_t count = planes - first < at_once ? planes - first : at_once;
    const uint64_t input = plane_of(window->input), output = plane_of(window->output);
    return {first * input, first * output, (uint32_t)(count * input), (uint32_t)(count * output)};
}

void kelp__cuda_max_pool(struct kelp_stream *stream, const struct kelp_max_pool *p)
{
    const uint64_t at_once = planes_at_once(stream, &p->window);
    const uint64_t planes = at_once != 0 ? (uint64_t)p->samples * p->window.channels : 0;
    for (uint64_t first = 0; first < planes; first += at_once) {
        const struct part part = part_of(&p->window, first, planes, at_once);
        const struct kelp__cuda_window window = kelp__cuda_window_of(&p->window);
        KELP_CUDA_LAUNCH_FORM(stream, max_pool, kelp__cuda_window_side(&p->window), part.output,
                              window, p->x + part.x, p->y + part.y, p->chosen + part.y,
                              part.output);
    }
}

void kelp__cuda_max_pool_gradient(struct kelp_stream *stream, const struct kelp_max_pool *p)
{
    const uint64_t at_once = planes_at_once(stream, &p->window);
    const uint64_t planes = at_once != 0 ? (uint64_t)p->samples * p->window.channels : 0;
    for (uint64_t first = 0; first < planes; first += at_once) {
        const struct part part = part_of(&p->window, first, planes, at_once);
        const struct kelp__cuda_window window = kelp__cuda_window_of(&p->window);
        KELP_CUDA_LAUNCH_FORM(stream, max_pool_gradient, most_of(&p->window), part.input, window,
                              p->chosen + part.y, p->dy + part.y, p->dx + part.x, p->write,
                              part.input);
    }
}

void kelp__cuda_average_pool(struct kelp_stream *stream, const struct kelp_average_pool *p)
{
    const uint64_t at_once = planes_at_once(stream, &p->window);
    const uint64_t planes = at_once != 0 ? (uint64_t)p->samples * p->window.channels : 0;
    const float divisor = (float)plane_of(p->window.kernel);
    for (uint64_t first = 0; first < planes; first += at_once) {
        const struct part part = part_of(&p->window, first, planes, at_once);
        const struct kelp__cuda_window window = kelp__cuda_window_of(&p->window);
        KELP_CUDA_LAUNCH_FORM(stream, average_pool, kelp__cuda_window_side(&p->window), part.output,
                              window, p->x + part.x, p->y + part.y, divisor, part.output);
    }
}

void kelp__cuda_average_pool_gradient(struct kelp_stream *stream, const struct kelp_average_pool *p)
{
    const uint64_t at_once = planes_at_once(stream, &p->window);
    const uint64_t planes = at_once != 0 ? (uint64_t)p->samples * p->window.channels : 0;
    const float divisor = (float)plane_of(p->window.kernel);
    for (uint64_t first = 0; first < planes; first += at_once) {
        const struct part part = part_of(&p->window, first, planes, at_once);
        const struct kelp__cuda_window window = kelp__cuda_window_of(&p->window);
        KELP_CUDA_LAUNCH_FORM(stream, average_pool_gradient, most_of(&p->window), part.input,
                              window, p->dy + part.y, p->dx + part.x, divisor, p->write,
                              part.input);
    }
}
