/*
 * Linear layers: the products are cuBLASLt's, and one kernel on either way does what is left: bias
 * and function forward, the function's gradient and the bias's sums backward. An epilogue of
 * cuBLASLt would save forward's pass over y, but its functions are not the CPU's in the last bit
 * (gelu) and with NaN (relu).
 */
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/groups.cuh"
#include "kernels/linear_products.h"

/* ---- forward --------------------------------------------------------------------------------- */

/* sums += bias; y = f(sums), over rows of a multiple of four where `number` is float4. Only gelu
 * needs the sums again: for the others they are y. */
template <typename number, enum kelp_unary_kind kind>
static __global__ void activate(const struct kelp_linear p)
{
    constexpr uint64_t lanes = sizeof(number) / sizeof(float);
    const uint64_t columns = p.out / lanes;
    number *sums = reinterpret_cast<number *>(kind == KELP_UNARY_GELU ? p.sums : p.y);
    number *y = reinterpret_cast<number *>(p.y);
    const number *bias = reinterpret_cast<const number *>(p.bias);
    const auto add = [](float a, float b) { return a + b; };
    const auto f = [](float x) { return kelp__cuda_unary_function<kind>{}(x, 0.0f, 0.0f); };
    KELP_CUDA_FOR (i, p.rows * columns) {
        number value = sums[i];
        if (bias) {
            value = kelp__cuda_each(add, value, bias[i % columns]);
            if (kind == KELP_UNARY_GELU) {
                sums[i] = value;
            }
        }
        y[i] = kelp__cuda_each(f, value);
    }
}

template <enum kelp_unary_kind kind>
static void launch_activate(struct kelp_stream *stream, const struct kelp_linear *p)
{
    const uint64_t count = (uint64_t)p->rows * p->out;
    const float *sums = kind == KELP_UNARY_GELU ? p->sums : p->y;
    const bool fours = p->out % 4 == 0 && kelp__cuda_aligned(sums) && kelp__cuda_aligned(p->y) &&
                       kelp__cuda_aligned(p->bias);
    if (fours) {
        KELP_CUDA_LAUNCH(stream, (activate<float4, kind>), kelp__cuda_blocks(count / 4),
                         KELP_CUDA_THREADS, *p);
    } else {
        KELP_CUDA_LAUNCH(stream, (activate<float, kind>), kelp__cuda_blocks(count),
                         KELP_CUDA_THREADS, *p);
    }
}

void kelp__cuda_linear(struct kelp_stream *stream, const struct kelp_linear *p)
{
    const bool kept = p->activated && p->activation == KELP_UNARY_GELU;
    const struct kelp_matmul product = kelp__linear_sums(p, kept ? p->sums : p->y);
    kelp__cuda_matmul(stream, &product);
    if (!p->activated) {
        const struct kelp_bias bias = {
            .matrix = p->y, .ld = p->y_ld, .rows = p->rows, .columns = p->out, .bias = p->bias};
        if (p->bias) {
            kelp__cuda_bias_add(stream, &bias);
        }
        return;
    }
    switch (p->activation) {
    case KELP_UNARY_RELU:
        launch_activate<KELP_UNARY_RELU>(stream, p);
        break;
    case KELP_UNARY_GELU:
        launch_activate<KELP_UNARY_GELU>(stream, p);
        break;
    case KELP_UNARY_ELU:
        launch_activate<KELP_UNARY_ELU>(stream, p);
        break;
    case KELP_UNARY_SIGMOID:
        launch_activate<KELP_UNARY_SIGMOID>(stream, p);
        break;
    case KELP_UNARY_TANH:
        launch_activate<KELP_UNARY_TANH>(stream, p);
        break;
    }
}

/* ---- the gradient of function and bias ------------------------------------------------------- */

/* dsums = dy f', and its sums over a part of the rows: to dbias [parts, out]. */
struct slopes {
    const float *v, *dy; /* v: what the function's gradient reads */
    float *dsums, *dbias;
    enum kelp_write write;
    struct kelp__cuda_columns plan;
};

template <enum kelp_unary_kind kind, bool vector>
static __global__ void slope_columns(const struct slopes p)
{
    KELP_CUDA_SHARED float4 partial[KELP_CUDA_THREADS];
    const struct kelp__cuda_columns plan = p.plan;
    const uint32_t lane = threadIdx.x % plan.across, line = threadIdx.x / plan.across;
    const uint64_t c = (blockIdx.x % plan.blocks * plan.across + lane) * 4;
    const uint64_t part = blockIdx.x / plan.blocks, first = part * plan.part_rows;
    const uint64_t last = first + plan.part_rows < plan.rows ? first + plan.part_rows : plan.rows;
    const uint64_t left = c < plan.columns ? plan.columns - c : 0;
    const auto slope = [](float v, float dy) { return kelp__cuda_slope_times<kind>(v, dy); };
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    KELP_CUDA_UNROLL(4)
    KELP_CUDA_STEPS(r, left != 0 ? first + line : last, last, plan.lines)
    {
        const uint64_t at = r * plan.columns + c;
        const float4 v =
            vector ? kelp__cuda_load(p.v + at, true) : kelp__cuda_load_some(p.v + at, left);
        const float4 dy =
            vector ? kelp__cuda_load(p.dy + at, true) : kelp__cuda_load_some(p.dy + at, left);
        const float4 value = kelp__cuda_each(slope, v, dy);
        if (vector) {
            kelp__cuda_store(p.dsums + at, value, true);
        } else {
            kelp__cuda_put_some(p.dsums + at, value, left, KELP_OVERWRITE);
        }
        sum = kelp__cuda_add(sum, value);
    }
    sum = kelp__cuda_lines_sum(sum, plan.across, partial);
    if (line == 0) {
        kelp__cuda_put_some(p.dbias + part * plan.columns + c, sum, left, p.write);
    }
}

template <enum kelp_unary_kind kind>
static void launch_slopes(struct kelp_stream *stream, const struct slopes *p)
{
    const uint64_t blocks = p->plan.parts * p->plan.blocks;
    if (p->plan.columns % 4 == 0 && kelp__cuda_aligned(p->v) && kelp__cuda_aligned(p->dy) &&
        kelp__cuda_aligned(p->dsums)) {
        KELP_CUDA_LAUNCH(stream, (slope_columns<kind, true>), blocks, KELP_CUDA_THREADS, *p);
    } else {
        KELP_CUDA_LAUNCH(stream, (slope_columns<kind, false>), blocks, KELP_CUDA_THREADS, *p);
    }
}

static void launch_slopes_of(struct kelp_stream *stream, enum kelp_unary_kind kind,
                             const struct slopes *p)
{
    switch (kind) {
    case KELP_UNARY_RELU:
        launch_slopes<KELP_UNARY_RELU>(stream, p);
        break;
    case KELP_UNARY_GELU:
        launch_slopes<KELP_UNARY_GELU>(stream, p);
        break;
    case KELP_UNARY_ELU:
        launch_slopes<KELP_UNARY_ELU>(stream, p);
        break;
    case KELP_UNARY_SIGMOID:
        launch_slopes<KELP_UNARY_SIGMOID>(stream, p);
        break;
    case KELP_UNARY_TANH:
        launch_slopes<KELP_UNARY_TANH>(stream, p);
        break;
    }
}

/* False, and a failure noted: there is no memory for the parts' sums. */
static bool slopes_and_bias(struct kelp_stream *stream, const struct kelp_linear *p)
{
    struct slopes slopes = {.v = p->activation == KELP_UNARY_GELU ? p->sums : p->y,
                            .dy = p->dy,
                            .dsums = p->dsums,
                            .dbias = p->dbias,
                            .write = p->write_bias,
                            .plan = kelp__cuda_plan_columns(1, p->rows, p->out)};
    const uint64_t parts = slopes.plan.parts;
    if (parts == 1) {
        launch_slopes_of(stream, p->activation, &slopes);
        return true;
    }
    slopes.dbias = static_cast<float *>(
        kelp__cuda_scratch(kelp__cuda_stream_of(stream), parts * p->out * sizeof(*slopes.dbias)));
    if (!slopes.dbias) {
        return false;
    }
    slopes.write = KELP_OVERWRITE;
    launch_slopes_of(stream, p->activation, &slopes);
    kelp__cuda_add_rows(stream, slopes.dbias, parts, p->out, p->dbias, p->write_bias);
    return true;
}

/* What leads from dy to dsums and dbias. False: as above. */
static bool element_gradients(struct kelp_stream *stream, const struct kelp_linear *p)
{
    struct kelp_unary_gradient unary = {};
    unary.kind = p->activation;
    unary.x = p->sums;
    unary.y = p->y;
    unary.dy = p->dy;
    unary.dx = p->dsums;
    unary.count = (uint64_t)p->rows * p->out;
    const struct kelp_bias_gradient bias = {.matrix = p->dy,
                                            .ld = p->y_ld,
                                            .rows = p->rows,
                                            .columns = p->out,
                                            .bias = p->dbias,
                                            .write = p->write_bias};
    if (p->activated && p->dbias) {
        return slopes_and_bias(stream, p);
    }
    if (p->activated) {
        kelp__cuda_unary_gradient(stream, &unary);
    } else if (p->dbias) {
        kelp__cuda_bias_gradient(stream, &bias);
    }
    return true;
}

void kelp__cuda_linear_gradient(struct kelp_stream *stream, const struct kelp_linear *p)
{
    const float *dsums = p->activated ? p->dsums : p->dy;
    if (!element_gradients(stream, p)) {
        return;
    }
    if (p->dweight) {
        const struct kelp_matmul product = kelp__linear_dweight(p, dsums);
        kelp__cuda_matmul(stream, &product);
    }
    if (p->dx) {
        const struct kelp_matmul product = kelp__linear_dx(p, dsums);
        kelp__cuda_matmul(stream, &product);
    }
}
