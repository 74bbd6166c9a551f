/*
 * LSTM layers: one step's cells, and whole sequences. A sequence's input products are one for all
 * steps, and so are the sums of its weights' gradients. What is left for a step is a product with
 * the state and a kernel for all of its gates.
 *
 * Gates are kept by sequence, [batch][time][4 hidden], as x and y are; cell states are y's.
 */
#include <assert.h>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/groups.cuh"

/* ---- cells ------------------------------------------------------------------------------------
 *
 * Kernels over rows take a type `number`, float or float4: with the second, the columns and the
 * distances between rows are counted in fours.
 */

/* The cells of a step: gates hold the sums but for the biases, which may be NULL. Rows are so far
 * apart as their *_ld says. */
struct cells {
    uint32_t batch, hidden;
    float *gates;
    const float *bias_ih, *bias_hh;
    const float *c_before;
    float *c, *h;
    uint64_t gates_ld, c_before_ld, c_ld, h_ld;
};

/* The row's and the column's element of an array of rows. */
template <typename number>
static __device__ __forceinline__ number *element(float *rows, uint64_t ld, uint64_t row,
                                                  uint64_t column)
{
    return reinterpret_cast<number *>(rows + row * ld) + column;
}
template <typename number>
static __device__ __forceinline__ number element(const float *rows, uint64_t ld, uint64_t row,
                                                 uint64_t column)
{
    return reinterpret_cast<const number *>(rows + row * ld)[column];
}

template <typename number>
static __device__ __forceinline__ number gate_sum(const struct cells &p, const number *gates,
                                                  uint64_t at)
{
    const auto add = [](float a, float b) { return a + b; };
    if (!p.bias_ih) {
        return gates[at];
    }
    const number *bias_ih = reinterpret_cast<const number *>(p.bias_ih);
    const number *bias_hh = reinterpret_cast<const number *>(p.bias_hh);
    return kelp__cuda_each(add, gates[at], kelp__cuda_each(add, bias_ih[at], bias_hh[at]));
}

template <typename number> static __global__ void run_cells(const struct cells p)
{
    const uint64_t hidden = p.hidden / (sizeof(number) / sizeof(float));
    const auto sigmoid = [](float x) { return kelp__math_sigmoid(x); };
    const auto tanh = [](float x) { return kelp__math_tanh(x); };
    KELP_CUDA_FOR (i, p.batch * hidden) {
        const uint64_t row = i / hidden, column = i - row * hidden;
        number *gates = element<number>(p.gates, p.gates_ld, row, 0);
        const uint64_t at[4] = {column, hidden + column, 2 * hidden + column, 3 * hidden + column};
        const number before = element<number>(p.c_before, p.c_before_ld, row, column);
        const number in = kelp__cuda_each(sigmoid, gate_sum(p, gates, at[0]));
        const number forget = kelp__cuda_each(sigmoid, gate_sum(p, gates, at[1]));
        const number update = kelp__cuda_each(tanh, gate_sum(p, gates, at[2]));
        const number out = kelp__cuda_each(sigmoid, gate_sum(p, gates, at[3]));
        const number c =
            kelp__cuda_each([](float f, float b, float n, float u) { return f * b + n * u; },
                            forget, before, in, update);
        gates[at[0]] = in;
        gates[at[1]] = forget;
        gates[at[2]] = update;
        gates[at[3]] = out;
        *element<number>(p.c, p.c_ld, row, column) = c;
        *element<number>(p.h, p.h_ld, row, column) =
            kelp__cuda_each([](float o, float x) { return o * kelp__math_tanh(x); }, out, c);
    }
}

static bool fours(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    return (a | b | c | d) % 4 == 0;
}

static void launch_cells(struct kelp_stream *stream, const struct cells *p)
{
    const uint64_t count = (uint64_t)p->batch * p->hidden;
    if (fours(p->hidden, p->gates_ld, p->c_before_ld, p->c_ld) && p->h_ld % 4 == 0 &&
        kelp__cuda_aligned(p->gates) && kelp__cuda_aligned(p->bias_ih) &&
        kelp__cuda_aligned(p->bias_hh) && kelp__cuda_aligned(p->c_before) &&
        kelp__cuda_aligned(p->c) && kelp__cuda_aligned(p->h)) {
        KELP_CUDA_LAUNCH(stream, run_cells<float4>, kelp__cuda_blocks(count / 4), KELP_CUDA_THREADS,
                         *p);
    } else {
        KELP_CUDA_LAUNCH(stream, run_cells<float>, kelp__cuda_blocks(count), KELP_CUDA_THREADS, *p);
    }
}

void kelp__cuda_lstm_cell(struct kelp_stream *stream, const struct kelp_lstm_cell *p)
{
    const struct cells cells = {.batch = p->batch,
                                .hidden = p->hidden,
                                .gates = p->gates,
                                .bias_ih = NULL,
                                .bias_hh = NULL,
                                .c_before = p->c_before,
                                .c = p->c,
                                .h = p->h,
                                .gates_ld = 4 * (uint64_t)p->hidden,
                                .c_before_ld = p->hidden,
                                .c_ld = p->hidden,
                                .h_ld = p->h_ld};
    launch_cells(stream, &cells);
}

/* The gradient of a step's cells. dh and dc come from two sides: from the step after it, dense, and
 * from the layer's output; either side may be NULL. dc gets that of the cells before. */
struct cell_slopes {
    uint32_t batch, hidden;
    const float *gates, *c_before, *c;
    const float *dh_after, *dh_out;
    const float *dc_after, *dc_out;
    float *dc, *dgates;
    uint64_t gates_ld, c_before_ld, c_ld, out_ld, dgates_ld;
};

/* What an activated gate's gradient is multiplied with on the way to the sum before it. */
static __device__ __forceinline__ float sigmoid_slope(float y)
{
    return y * (1.0f - y);
}

/* What comes from both sides together. */
template <typename number>
static __device__ __forceinline__ number both(const float *after, uint64_t hidden_floats,
                                              const float *out, uint64_t out_ld, uint64_t row,
                                              uint64_t column)
{
    if (!after) {
        return element<number>(out, out_ld, row, column);
    }
    const number first = element<number>(after, hidden_floats, row, column);
    return out ? kelp__cuda_each([](float a, float b) { return a + b; }, first,
                                 element<number>(out, out_ld, row, column))
               : first;
}

template <typename number> static __global__ void cells_slopes(const struct cell_slopes p)
{
    const uint64_t hidden = p.hidden / (sizeof(number) / sizeof(float));
    KELP_CUDA_FOR (i, p.batch * hidden) {
        const uint64_t row = i / hidden, column = i - row * hidden;
        const number *gates = reinterpret_cast<const number *>(p.gates + row * p.gates_ld) + column;
        number *dgates = element<number>(p.dgates, p.dgates_ld, row, column);
        const number in = gates[0], forget = gates[hidden], update = gates[2 * hidden];
        const number out = gates[3 * hidden];
        const number before = element<number>(p.c_before, p.c_before_ld, row, column);
        const number dh = both<number>(p.dh_after, p.hidden, p.dh_out, p.out_ld, row, column);
        const number dc = both<number>(p.dc_after, p.hidden, p.dc_out, p.out_ld, row, column);
        const number t = kelp__cuda_each([](float c) { return kelp__math_tanh(c); },
                                         element<number>(p.c, p.c_ld, row, column));
        const number total = kelp__cuda_each(
            [](float d, float h, float o, float tanh) { return d + h * o * (1.0f - tanh * tanh); },
            dc, dh, out, t);
        dgates[0] = kelp__cuda_each(
            [](float d, float u, float n) { return d * u * sigmoid_slope(n); }, total, update, in);
        dgates[hidden] =
            kelp__cuda_each([](float d, float b, float f) { return d * b * sigmoid_slope(f); },
                            total, before, forget);
        dgates[2 * hidden] = kelp__cuda_each(
            [](float d, float n, float u) { return d * n * (1.0f - u * u); }, total, in, update);
        dgates[3 * hidden] = kelp__cuda_each(
            [](float h, float tanh, float o) { return h * tanh * sigmoid_slope(o); }, dh, t, out);
        *element<number>(p.dc, p.hidden, row, column) =
            kelp__cuda_each([](float d, float f) { return d * f; }, total, forget);
    }
}

static void launch_slopes(struct kelp_stream *stream, const struct cell_slopes *p)
{
    const uint64_t count = (uint64_t)p->batch * p->hidden;
    if (fours(p->hidden, p->gates_ld, p->c_before_ld, p->c_ld) &&
        fours(p->out_ld, p->dgates_ld, 0, 0) && kelp__cuda_aligned(p->gates) &&
        kelp__cuda_aligned(p->c_before) && kelp__cuda_aligned(p->c) &&
        kelp__cuda_aligned(p->dh_after) && kelp__cuda_aligned(p->dh_out) &&
        kelp__cuda_aligned(p->dc_after) && kelp__cuda_aligned(p->dc_out) &&
        kelp__cuda_aligned(p->dc) && kelp__cuda_aligned(p->dgates)) {
        KELP_CUDA_LAUNCH(stream, cells_slopes<float4>, kelp__cuda_blocks(count / 4),
                         KELP_CUDA_THREADS, *p);
    } else {
        KELP_CUDA_LAUNCH(stream, cells_slopes<float>, kelp__cuda_blocks(count), KELP_CUDA_THREADS,
                         *p);
    }
}

void kelp__cuda_lstm_cell_gradient(struct kelp_stream *stream, const struct kelp_lstm_cell *p)
{
    const struct cell_slopes slopes = {.batch = p->batch,
                                       .hidden = p->hidden,
                                       .gates = p->gates,
                                       .c_before = p->c_before,
                                       .c = p->c,
                                       .dh_after = NULL,
                                       .dh_out = p->dh,
                                       .dc_after = p->dc,
                                       .dc_out = NULL,
                                       .dc = p->dc,
                                       .dgates = p->dgates,
                                       .gates_ld = 4 * (uint64_t)p->hidden,
                                       .c_before_ld = p->hidden,
                                       .c_ld = p->hidden,
                                       .out_ld = p->dh_ld,
                                       .dgates_ld = 4 * (uint64_t)p->hidden};
    launch_slopes(stream, &slopes);
}

/* ---- sequences ------------------------------------------------------------------------------- */

struct sizes {
    uint64_t gates;          /* of one step and sequence, in elements */
    uint64_t gates_ld, y_ld; /* from one sequence to the next */
    uint32_t rows;           /* steps of all sequences */
};

static struct sizes sizes_of(const struct kelp_lstm *p)
{
    assert(p->time != 0);
    const uint64_t gates = 4 * (uint64_t)p->hidden;
    return {gates, p->time * gates, (uint64_t)p->time * 2 * p->hidden, p->batch * p->time};
}

/* h or c, `first` elements behind the begin of a row of y, before step t, and the distance of its
 * rows. */
static const float *state_before(const struct kelp_lstm *p, const float *at_first, uint64_t first,
                                 uint32_t t, uint64_t *ret_ld)
{
    *ret_ld = t == 0 ? p->hidden : sizes_of(p).y_ld;
    return t == 0 ? at_first : p->y + (uint64_t)(t - 1) * 2 * p->hidden + first;
}

void kelp__cuda_lstm(struct kelp_stream *stream, const struct kelp_lstm *p)
{
    const struct sizes sizes = sizes_of(p);
    struct kelp_matmul input = {}, state = {};
    input.transpose_b = true;
    input.m = sizes.rows;
    input.n = 4 * p->hidden;
    input.k = p->in;
    input.a = p->x;
    input.lda = p->in;
    input.b = p->weight_ih;
    input.ldb = p->in;
    input.c = p->kept;
    input.ldc = sizes.gates;
    kelp__cuda_matmul(stream, &input);
    state.transpose_b = true;
    state.m = p->batch;
    state.n = 4 * p->hidden;
    state.k = p->hidden;
    state.b = p->weight_hh;
    state.ldb = p->hidden;
    state.ldc = sizes.gates_ld;
    state.write = KELP_ACCUMULATE;
    struct cells cells = {};
    cells.batch = p->batch;
    cells.hidden = p->hidden;
    cells.bias_ih = p->bias_ih;
    cells.bias_hh = p->bias_hh;
    cells.gates_ld = sizes.gates_ld;
    cells.c_ld = cells.h_ld = sizes.y_ld;
    for (uint32_t t = 0; t < p->time; t++) {
        state.a = state_before(p, p->h_first, 0, t, &state.lda);
        state.c = cells.gates = p->kept + t * sizes.gates;
        cells.c_before = state_before(p, p->c_first, p->hidden, t, &cells.c_before_ld);
        cells.h = p->y + (uint64_t)t * 2 * p->hidden;
        cells.c = cells.h + p->hidden;
        kelp__cuda_matmul(stream, &state);
        launch_cells(stream, &cells);
    }
}

/* The steps from the last to the first: dgates of all of them, dc before the first, and dh, which
 * goes to where it is wanted. */
static void cells_gradient(struct kelp_stream *stream, const struct kelp_lstm *p, float *dgates,
                           float *dh, float *dc)
{
    const struct sizes sizes = sizes_of(p);
    struct cell_slopes slopes = {};
    struct kelp_matmul before = {};
    slopes.batch = p->batch;
    slopes.hidden = p->hidden;
    slopes.dc = dc;
    slopes.gates_ld = slopes.dgates_ld = sizes.gates_ld;
    slopes.c_ld = slopes.out_ld = sizes.y_ld;
    before.m = p->batch;
    before.n = p->hidden;
    before.k = 4 * p->hidden;
    before.lda = sizes.gates_ld;
    before.b = p->weight_hh;
    before.ldb = p->hidden;
    before.ldc = p->hidden;
    for (uint32_t t = p->time; t-- > 0;) {
        const uint64_t at = (uint64_t)t * 2 * p->hidden;
        slopes.gates = p->kept + t * sizes.gates;
        slopes.dgates = dgates + t * sizes.gates;
        slopes.c_before = state_before(p, p->c_first, p->hidden, t, &slopes.c_before_ld);
        slopes.c = p->y + at + p->hidden;
        slopes.dh_out = p->dy + at;
        slopes.dc_out = slopes.dh_out + p->hidden;
        launch_slopes(stream, &slopes);
        slopes.dh_after = dh;
        slopes.dc_after = dc;
        before.a = slopes.dgates;
        before.c = t != 0 ? dh : p->dh_first;
        before.write = t != 0 ? KELP_OVERWRITE : p->write_h;
        if (before.c) {
            kelp__cuda_matmul(stream, &before);
        }
    }
}

/* dweight = or += dgates^T rows, `width` wide. */
static void weight_gradient(struct kelp_stream *stream, const struct kelp_lstm *p,
                            const float *dgates, const float *rows, uint32_t width, float *dweight,
                            enum kelp_write write)
{
    struct kelp_matmul product = {};
    product.transpose_a = true;
    product.m = 4 * p->hidden;
    product.n = width;
    product.k = sizes_of(p).rows;
    product.a = dgates;
    product.lda = product.m;
    product.b = rows;
    product.ldb = width;
    product.c = dweight;
    product.ldc = width;
    product.write = write;
    kelp__cuda_matmul(stream, &product);
}

static __global__ void states_before(const struct kelp_lstm p, float *to, uint64_t count)
{
    KELP_CUDA_FOR (i, count) {
        const uint64_t row = i / p.hidden, column = i - row * p.hidden;
        to[i] = row % p.time == 0 ? p.h_first[row / p.time * p.hidden + column]
                                  : p.y[(row - 1) * 2 * p.hidden + column];
    }
}

/* h before each step, as the rows of one matrix, in memory that the biases' sums take next. */
static void state_weight_gradient(struct kelp_stream *stream, const struct kelp_lstm *p,
                                  const float *dgates)
{
    const uint64_t count = (uint64_t)sizes_of(p).rows * p->hidden;
    float *rows = static_cast<float *>(
        kelp__cuda_scratch(kelp__cuda_stream_of(stream), (count + 1) * sizeof(*rows)));
    if (rows) {
        KELP_CUDA_LAUNCH(stream, states_before, kelp__cuda_blocks(count), KELP_CUDA_THREADS, *p,
                         rows, count);
        weight_gradient(stream, p, dgates, rows, p->hidden, p->dweight_hh, p->write_weight_hh);
    }
}

static void bias_gradient(struct kelp_stream *stream, const struct kelp_lstm *p,
                          const float *dgates, float *dbias, enum kelp_write write)
{
    const struct sizes sizes = sizes_of(p);
    const struct kelp_bias_gradient bias = {.matrix = dgates,
                                            .ld = sizes.gates,
                                            .rows = sizes.rows,
                                            .columns = 4 * p->hidden,
                                            .bias = dbias,
                                            .write = write};
    if (dbias) {
        kelp__cuda_bias_gradient(stream, &bias);
    }
}

static void input_gradient(struct kelp_stream *stream, const struct kelp_lstm *p,
                           const float *dgates)
{
    const struct sizes sizes = sizes_of(p);
    struct kelp_matmul product = {};
    product.m = sizes.rows;
    product.n = p->in;
    product.k = 4 * p->hidden;
    product.a = dgates;
    product.lda = sizes.gates;
    product.b = p->weight_ih;
    product.ldb = p->in;
    product.c = p->dx;
    product.ldc = p->in;
    product.write = p->write_x;
    kelp__cuda_matmul(stream, &product);
}

static void cell_state_gradient(struct kelp_stream *stream, const struct kelp_lstm *p,
                                const float *dc)
{
    struct kelp_copy copy = {};
    copy.rank = 1;
    copy.dims[0] = (uint64_t)p->batch * p->hidden;
    copy.x = dc;
    copy.x_strides[0] = copy.y_strides[0] = 1;
    copy.y = p->dc_first;
    copy.scale = 1.0f;
    copy.write = p->write_c;
    kelp__cuda_copy(stream, &copy);
}

void kelp__cuda_lstm_gradient(struct kelp_stream *stream, const struct kelp_lstm *p)
{
    float *dgates = p->workspace, *dh = dgates + p->batch * sizes_of(p).gates_ld;
    float *dc = dh + (uint64_t)p->batch * p->hidden;
    cells_gradient(stream, p, dgates, dh, dc);
    if (p->dweight_ih) {
        weight_gradient(stream, p, dgates, p->x, p->in, p->dweight_ih, p->write_weight_ih);
    }
    if (p->dweight_hh) {
        state_weight_gradient(stream, p, dgates);
    }
    bias_gradient(stream, p, dgates, p->dbias_ih, p->write_bias_ih);
    bias_gradient(stream, p, dgates, p->dbias_hh, p->write_bias_hh);
    if (p->dc_first) {
        cell_state_gradient(stream, p, dc);
    }
    if (p->dx) {
        input_gradient(stream, p, dgates);
    }
}
