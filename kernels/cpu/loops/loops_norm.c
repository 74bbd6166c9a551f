/*
 * Layer norm and batch norm; kernels/operators.h describes each.
 *
 * Sums over many samples are float32 within blocks of at most NORM_BLOCK elements, and double over
 * the sums of blocks: nearly as exact as double, and nearly as fast as float32.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/loops/sums.h"

#define NORM_BLOCK 64u
#define STRIP      32u

void KELP_LOOP(layer_norm)(struct kelp_stream *stream, const struct kelp_layer_norm *norm)
{
    const uint32_t width = norm->width;
    const float *weight = norm->weight, *bias = norm->bias;
    for (uint64_t r = 0; r < norm->rows && width != 0; r++) {
        const float *x = norm->x + r * width;
        float *restrict y = norm->y + r * width;
        const float mean = kelp__sums_row_sum(x, width) / (float)width;
        for (uint32_t c = 0; c < width; c++) {
            y[c] = x[c] - mean;
        }
        const float variance = kelp__sums_row_dot(y, y, width) / (float)width;
        const float rstd = 1.0f / sqrtf(variance + norm->eps);
        for (uint32_t c = 0; c < width; c++) {
            y[c] = y[c] * rstd * weight[c] + bias[c];
        }
        norm->mean[r] = mean;
        norm->rstd[r] = rstd;
    }
}

INLINE void layer_norm_dx(const struct kelp_layer_norm *norm, const bool accumulate)
{
    const uint32_t width = norm->width;
    const float *weight = norm->weight;
    for (uint64_t r = 0; r < norm->rows; r++) {
        const float *x = norm->x + r * width, *dy = norm->dy + r * width;
        float *restrict dx = norm->dx + r * width;
        const float mean = norm->mean[r], rstd = norm->rstd[r];
        const uint32_t whole = width - width % LANES;
        eight sums = {0}, dots = {0}, values, g8, scale;
        for (uint32_t c = 0; c < whole; c += LANES) {
            memcpy(&values, x + c, sizeof(values));
            memcpy(&g8, dy + c, sizeof(g8));
            memcpy(&scale, weight + c, sizeof(scale));
            g8 = g8 * scale;
            sums = sums + g8;
            dots = dots + g8 * ((values - mean) * rstd);
        }
        float sum = kelp__sums_add_up(&sums), dot = kelp__sums_add_up(&dots);
        for (uint32_t c = whole; c < width; c++) {
            const float g = dy[c] * weight[c];
            sum = sum + g;
            dot = dot + g * ((x[c] - mean) * rstd);
        }
        sum = sum / (float)width;
        dot = dot / (float)width;
        for (uint32_t c = 0; c < width; c++) {
            const float g = dy[c] * weight[c];
            const float value = rstd * (g - sum - (x[c] - mean) * rstd * dot);
            dx[c] = accumulate ? dx[c] + value : value;
        }
    }
}

/* Sums of dy and of dy times the normalised x for a strip of columns, rows ascending. */
INLINE void layer_norm_strip(const struct kelp_layer_norm *norm, uint32_t first,
                             const uint32_t width)
{
    double dweight[STRIP] = {0}, dbias[STRIP] = {0};
    for (uint64_t begin = 0; begin < norm->rows; begin += NORM_BLOCK) {
        const uint64_t end = norm->rows - begin < NORM_BLOCK ? norm->rows : begin + NORM_BLOCK;
        float dots[STRIP] = {0}, sums[STRIP] = {0};
        for (uint64_t r = begin; r < end; r++) {
            const float *x = norm->x + r * norm->width + first;
            const float *dy = norm->dy + r * norm->width + first;
            const float mean = norm->mean[r], rstd = norm->rstd[r];
            for (uint32_t c = 0; c < width; c++) {
                dots[c] = dots[c] + dy[c] * ((x[c] - mean) * rstd);
                sums[c] = sums[c] + dy[c];
            }
        }
        for (uint32_t c = 0; c < width; c++) {
            dweight[c] = dweight[c] + (double)dots[c];
            dbias[c] = dbias[c] + (double)sums[c];
        }
    }
    for (uint32_t c = 0; norm->dweight && c < width; c++) {
        float *to = &norm->dweight[first + c];
        *to = norm->write_weight == KELP_ACCUMULATE ? *to + (float)dweight[c] : (float)dweight[c];
    }
    for (uint32_t c = 0; norm->dbias && c < width; c++) {
        float *to = &norm->dbias[first + c];
        *to = norm->write_bias == KELP_ACCUMULATE ? *to + (float)dbias[c] : (float)dbias[c];
    }
}

void KELP_LOOP(layer_norm_gradient)(struct kelp_stream *stream, const struct kelp_layer_norm *norm)
{
    if (norm->dweight || norm->dbias) {
        uint32_t c = 0;
        for (; c + STRIP <= norm->width; c += STRIP) {
            layer_norm_strip(norm, c, STRIP);
        }
        if (c < norm->width) {
            layer_norm_strip(norm, c, norm->width - c);
        }
    }
    if (norm->dx && norm->write_x == KELP_ACCUMULATE) {
        layer_norm_dx(norm, true);
    } else if (norm->dx) {
        layer_norm_dx(norm, false);
    }
}

/* The two values that batch norm sums over a channel. */
enum batch_sum {
    SUM_X,       /* x and 0 */
    SUM_SQUARES, /* (x - mean)^2 and 0 */
    SUM_GRADIENT /* dy and dy (x - mean) */
};
struct channel_sums {
    double first[STRIP], second[STRIP];
};

INLINE void sum_element(const enum batch_sum kind, float x, float dy, float mean, float *first,
                        float *second)
{
    if (kind == SUM_X) {
        *first = *first + x;
    } else if (kind == SUM_SQUARES) {
        *first = *first + (x - mean) * (x - mean);
    } else {
        *first = *first + dy;
        *second = *second + dy * (x - mean);
    }
}

/* The same for eight elements. */
INLINE void sum_vector(const enum batch_sum kind, const float *x, const float *dy, float mean,
                       eight *first, eight *second)
{
    eight values, slopes;
    memcpy(&values, x, sizeof(values));
    if (kind == SUM_X) {
        *first = *first + values;
    } else if (kind == SUM_SQUARES) {
        *first = *first + (values - mean) * (values - mean);
    } else {
        memcpy(&slopes, dy, sizeof(slopes));
        *first = *first + slopes;
        *second = *second + slopes * (values - mean);
    }
}

/* A strip of channels whose inner size is 1: samples ascending, all channels of the strip at
 * once. */
INLINE void sum_columns(const struct kelp_batch_norm *norm, const enum batch_sum kind,
                        uint32_t channel, const uint32_t width, const float *mean,
                        struct channel_sums *ret)
{
    *ret = (struct channel_sums){{0}, {0}};
    for (uint64_t begin = 0; begin < norm->samples; begin += NORM_BLOCK) {
        const uint64_t end =
            norm->samples - begin < NORM_BLOCK ? norm->samples : begin + NORM_BLOCK;
        float first[STRIP] = {0}, second[STRIP] = {0};
        for (uint64_t s = begin; s < end; s++) {
            const float *x = norm->x + s * norm->channels + channel;
            const float *dy = kind == SUM_GRADIENT ? norm->dy + s * norm->channels + channel : x;
            for (uint32_t c = 0; c < width; c++) {
                sum_element(kind, x[c], dy[c], mean[c], &first[c], &second[c]);
            }
        }
        for (uint32_t c = 0; c < width; c++) {
            ret->first[c] = ret->first[c] + (double)first[c];
            ret->second[c] = ret->second[c] + (double)second[c];
        }
    }
}

/* One channel of planes: eight running sums for each block, sample after sample. */
#define PLANE_BLOCK UINT64_C(512) /* eight times NORM_BLOCK */
INLINE void sum_planes(const struct kelp_batch_norm *norm, const enum batch_sum kind,
                       uint32_t channel, float mean, double ret[2])
{
    ret[0] = ret[1] = 0.0;
    for (uint32_t s = 0; s < norm->samples; s++) {
        const uint64_t plane = ((uint64_t)s * norm->channels + channel) * norm->inner;
        for (uint64_t begin = 0; begin < norm->inner; begin += PLANE_BLOCK) {
            const float *x = norm->x + plane + begin;
            const float *dy = kind == SUM_GRADIENT ? norm->dy + plane + begin : x;
            const uint64_t left = norm->inner - begin;
            const uint64_t count = left < PLANE_BLOCK ? left : PLANE_BLOCK;
            const uint64_t whole = count - count % LANES;
            eight first = {0}, second = {0};
            for (uint64_t i = 0; i < whole; i += LANES) {
                sum_vector(kind, x + i, dy + i, mean, &first, &second);
            }
            float sum = kelp__sums_add_up(&first), other = kelp__sums_add_up(&second);
            for (uint64_t i = whole; i < count; i++) {
                sum_element(kind, x[i], dy[i], mean, &sum, &other);
            }
            ret[0] = ret[0] + (double)sum;
            ret[1] = ret[1] + (double)other;
        }
    }
}

/* The sums of the `width` channels from `channel` on. */
INLINE void channel_sums(const struct kelp_batch_norm *norm, const enum batch_sum kind,
                         uint32_t channel, uint32_t width, const float *mean,
                         struct channel_sums *ret)
{
    if (norm->inner == 1 && width == STRIP) {
        sum_columns(norm, kind, channel, STRIP, mean, ret);
        return;
    }
    if (norm->inner == 1) {
        sum_columns(norm, kind, channel, width, mean, ret);
        return;
    }
    for (uint32_t c = 0; c < width; c++) {
        double sums[2];
        sum_planes(norm, kind, channel + c, mean[c], sums);
        ret->first[c] = sums[0];
        ret->second[c] = sums[1];
    }
}

/* y = (x - mean) a + b for the channels of a strip, in every sample. */
struct affine {
    float mean[STRIP], a[STRIP], b[STRIP];
};
INLINE void affine_rows(const struct kelp_batch_norm *norm, uint32_t channel, const uint32_t width,
                        const struct affine *affine)
{
    for (uint32_t s = 0; s < norm->samples; s++) {
        const float *x = norm->x + (uint64_t)s * norm->channels + channel;
        float *restrict y = norm->y + (uint64_t)s * norm->channels + channel;
        for (uint32_t c = 0; c < width; c++) {
            y[c] = (x[c] - affine->mean[c]) * affine->a[c] + affine->b[c];
        }
    }
}

static void affine_planes(const struct kelp_batch_norm *norm, uint32_t channel, uint32_t width,
                          const struct affine *affine)
{
    for (uint32_t s = 0; s < norm->samples; s++) {
        for (uint32_t c = 0; c < width; c++) {
            const uint64_t plane = ((uint64_t)s * norm->channels + channel + c) * norm->inner;
            const float *restrict x = norm->x + plane;
            float *restrict y = norm->y + plane;
            const float mean = affine->mean[c], a = affine->a[c], b = affine->b[c];
            for (uint64_t i = 0; i < norm->inner; i++) {
                y[i] = (x[i] - mean) * a + b;
            }
        }
    }
}

static void affine_strip(const struct kelp_batch_norm *norm, uint32_t channel, uint32_t width,
                         const struct affine *affine)
{
    if (norm->inner != 1) {
        affine_planes(norm, channel, width, affine);
    } else if (width == STRIP) {
        affine_rows(norm, channel, STRIP, affine);
    } else {
        affine_rows(norm, channel, width, affine);
    }
}

static void write_statistic(const struct kelp_batch_norm *norm, float *to, double value)
{
    const float scaled = *norm->statistic_scale * (float)value;
    *to = norm->write_statistic == KELP_ACCUMULATE ? *to + scaled : scaled;
}

/* Mean, deviation and running statistics of a strip of channels. */
static void batch_statistics(const struct kelp_batch_norm *norm, uint32_t channel, uint32_t width)
{
    const double count = (double)norm->samples * (double)norm->inner;
    float zeros[STRIP] = {0};
    struct channel_sums sums;
    channel_sums(norm, SUM_X, channel, width, zeros, &sums);
    for (uint32_t c = 0; c < width; c++) {
        norm->mean[channel + c] = (float)(sums.first[c] / count);
        if (norm->statistic_mean) {
            write_statistic(norm, &norm->statistic_mean[channel + c], sums.first[c] / count);
        }
    }
    channel_sums(norm, SUM_SQUARES, channel, width, norm->mean + channel, &sums);
    for (uint32_t c = 0; c < width; c++) {
        norm->rstd[channel + c] = (float)(1.0 / sqrt(sums.first[c] / count + (double)norm->eps));
        if (norm->statistic_variance) {
            write_statistic(norm, &norm->statistic_variance[channel + c],
                            sums.first[c] / (count - 1.0));
        }
    }
}

static void batch_norm_strip(const struct kelp_batch_norm *norm, uint32_t channel, uint32_t width)
{
    struct affine affine;
    if (norm->training) {
        batch_statistics(norm, channel, width);
    }
    for (uint32_t c = 0; c < width; c++) {
        const uint32_t i = channel + c;
        const float rstd =
            norm->training
                ? norm->rstd[i]
                : (float)(1.0 / sqrt((double)norm->running_variance[i] + (double)norm->eps));
        affine.mean[c] = norm->training ? norm->mean[i] : norm->running_mean[i];
        affine.a[c] = rstd * norm->weight[i];
        affine.b[c] = norm->bias[i];
    }
    affine_strip(norm, channel, width, &affine);
}

void KELP_LOOP(batch_norm)(struct kelp_stream *stream, const struct kelp_batch_norm *norm)
{
    assert(norm->layout == KELP_CHANNELS_FIRST);
    if (norm->samples == 0 || norm->inner == 0) {
        return;
    }
    for (uint32_t c = 0; c < norm->channels; c += STRIP) {
        const uint32_t left = norm->channels - c;
        batch_norm_strip(norm, c, left < STRIP ? left : STRIP);
    }
}

/* dx = (dy - a - (x - mean) b) scale for the channels of a strip, in every sample. */
struct input_gradient {
    float mean[STRIP], a[STRIP], b[STRIP], scale[STRIP];
};

INLINE void gradient_rows(const struct kelp_batch_norm *norm, uint32_t channel,
                          const uint32_t width, const struct input_gradient *g,
                          const bool accumulate)
{
    for (uint32_t s = 0; s < norm->samples; s++) {
        const uint64_t row = (uint64_t)s * norm->channels + channel;
        const float *x = norm->x + row, *dy = norm->dy + row;
        float *restrict dx = norm->dx + row;
        for (uint32_t c = 0; c < width; c++) {
            const float value = (dy[c] - g->a[c] - (x[c] - g->mean[c]) * g->b[c]) * g->scale[c];
            dx[c] = accumulate ? dx[c] + value : value;
        }
    }
}

INLINE void gradient_planes(const struct kelp_batch_norm *norm, uint32_t channel, uint32_t width,
                            const struct input_gradient *g, const bool accumulate)
{
    for (uint32_t s = 0; s < norm->samples; s++) {
        for (uint32_t c = 0; c < width; c++) {
            const uint64_t plane = ((uint64_t)s * norm->channels + channel + c) * norm->inner;
            const float *x = norm->x + plane, *dy = norm->dy + plane;
            float *restrict dx = norm->dx + plane;
            const float mean = g->mean[c], a = g->a[c], b = g->b[c], scale = g->scale[c];
            for (uint64_t i = 0; i < norm->inner; i++) {
                const float value = (dy[i] - a - (x[i] - mean) * b) * scale;
                dx[i] = accumulate ? dx[i] + value : value;
            }
        }
    }
}

static void input_gradient_strip(const struct kelp_batch_norm *norm, uint32_t channel,
                                 uint32_t width, const struct input_gradient *g)
{
    const bool accumulate = norm->write_x == KELP_ACCUMULATE;
    if (norm->inner != 1 && accumulate) {
        gradient_planes(norm, channel, width, g, true);
    } else if (norm->inner != 1) {
        gradient_planes(norm, channel, width, g, false);
    } else if (width == STRIP && !accumulate) {
        gradient_rows(norm, channel, STRIP, g, false);
    } else {
        gradient_rows(norm, channel, width, g, accumulate);
    }
}

static void batch_norm_gradient_strip(const struct kelp_batch_norm *norm, uint32_t channel,
                                      uint32_t width)
{
    const double count = (double)norm->samples * (double)norm->inner;
    struct channel_sums sums;
    struct input_gradient g;
    channel_sums(norm, SUM_GRADIENT, channel, width, norm->mean + channel, &sums);
    for (uint32_t c = 0; c < width; c++) {
        const uint32_t i = channel + c;
        /* Without samples no forward pass wrote rstd, and the sums are 0. */
        const double rstd = count > 0.0 ? (double)norm->rstd[i] : 0.0;
        const float dweight = (float)(sums.second[c] * rstd), dbias = (float)sums.first[c];
        if (norm->dweight) {
            float *to = &norm->dweight[i];
            *to = norm->write_weight == KELP_ACCUMULATE ? *to + dweight : dweight;
        }
        if (norm->dbias) {
            float *to = &norm->dbias[i];
            *to = norm->write_bias == KELP_ACCUMULATE ? *to + dbias : dbias;
        }
        g.mean[c] = norm->mean[i];
        g.a[c] = (float)(sums.first[c] / count);
        g.b[c] = (float)(sums.second[c] * rstd * rstd / count);
        g.scale[c] = norm->rstd[i] * norm->weight[i];
    }
    if (norm->dx) {
        input_gradient_strip(norm, channel, width, &g);
    }
}

void KELP_LOOP(batch_norm_gradient)(struct kelp_stream *stream, const struct kelp_batch_norm *norm)
{
    assert(norm->layout == KELP_CHANNELS_FIRST);
    for (uint32_t c = 0; c < norm->channels; c += STRIP) {
        const uint32_t left = norm->channels - c;
        batch_norm_gradient_strip(norm, c, left < STRIP ? left : STRIP);
    }
}
