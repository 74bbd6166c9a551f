#include "tests/lib/cuda/operator_norm.h"

#include <math.h>
#include <stdlib.h>

#define TOLERANCE 1e-5
#define HALF_ULP  0x1p-24 /* of float32, relative */
#define EPS       1e-12f  /* so small that it hides no error of the variance */
#define FAR       100.0
#define RUN       64u /* elements of a row that count as a sample */

/* Layer norm is batch norm of one sample whose channels are the rows, except that weight and
 * bias belong to columns. */

/* How a channel's values are made from noise z with deviation 1. */
enum values {
    FAR_FROM_ZERO, /* 10,000 + z */
    FAR_BELOW,     /* -10,000 + z */
    FIRST_IS_FAR,  /* z, and 100 in the first element of each sample */
    ONE_IS_FAR,    /* z, and 10,000 in the very first element */
    RISING,        /* 10,000 + z, plus one deviation more with each sample */
    CONSTANT,      /* 1234.5678 */
    VALUES
};
static const char *const value_names[VALUES] = {"far from zero", "far below zero", "first is far",
                                                "one is far",    "rising",         "constant"};

static const struct norm_sizes {
    uint32_t samples, channels;
    uint64_t inner;
    enum kelp_layout layout;
    bool rows; /* layer norm */
} norm_sizes[] = {
    {3000, 4, 1, KELP_CHANNELS_FIRST, false}, {1500, 7, 1, KELP_CHANNELS_FIRST, false},
    {20, 8, 200, KELP_CHANNELS_LAST, false},  {3, 2, 8196, KELP_CHANNELS_FIRST, false},
    {60, 3, 131, KELP_CHANNELS_FIRST, false}, {200, 3, 49, KELP_CHANNELS_FIRST, false},
    {1, 9, 15, KELP_CHANNELS_FIRST, true},    {1, 5, 480, KELP_CHANNELS_FIRST, true},
    {1, 2, 3001, KELP_CHANNELS_FIRST, true},  {1, 2, 4097, KELP_CHANNELS_FIRST, true},
    {1, 2, 12300, KELP_CHANNELS_FIRST, true}, {1, 1, 20001, KELP_CHANNELS_FIRST, true},
};

/* Regions of one block of memory, in floats. */
struct regions {
    uint64_t x, y, weight, bias, mean, rstd, scale, statistic_mean, statistic_variance, all;
};

struct norm_check {
    const struct norm_sizes *sizes;
    enum values values;
    struct regions at;
    float *host[2]; /* results of the CPU and of the other device, regions.all each */
    double worst;
    struct kelp_error *reterr;
};

static struct regions regions_of(const struct norm_sizes *sizes)
{
    const uint64_t channels = sizes->channels, all = sizes->samples * channels * sizes->inner;
    const uint64_t weights = sizes->rows ? (sizes->inner + 63) / 64 * 64 : channels;
    struct regions at = {.x = 0, .y = (all + 63) / 64 * 64};
    at.weight = 2 * at.y;
    at.bias = at.weight + weights;
    at.mean = at.bias + weights;
    at.rstd = at.mean + channels;
    at.scale = at.rstd + channels;
    at.statistic_mean = at.scale + 1;
    at.statistic_variance = at.statistic_mean + channels;
    at.all = at.statistic_variance + channels;
    return at;
}

static uint64_t index_of(const struct norm_sizes *sizes, uint32_t sample, uint32_t channel,
                         uint64_t place)
{
    return sizes->layout == KELP_CHANNELS_LAST
               ? (sample * sizes->inner + place) * sizes->channels + channel
               : ((uint64_t)sample * sizes->channels + channel) * sizes->inner + place;
}

/* Nearly normal. */
static double draw_noise(uint64_t *state)
{
    double sum = -6.0;
    for (uint32_t i = 0; i < 12; i++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        sum += (double)(*state >> 40) * 0x1p-24;
    }
    return sum;
}

static float value_of(enum values values, uint32_t sample, uint64_t place, double noise)
{
    switch (values) {
    case FAR_FROM_ZERO:
        return (float)(1e4 + noise);
    case FAR_BELOW:
        return (float)(-1e4 + noise);
    case FIRST_IS_FAR:
        return (float)(place == 0 && sample % 64 == 0 ? FAR : noise);
    case ONE_IS_FAR:
        return (float)(place == 0 && sample == 0 ? 1e4 : noise);
    case RISING:
        return (float)(1e4 + sample + noise);
    default:
        return 1234.5678f;
    }
}

static void draw(const struct norm_check *check, float *host)
{
    const struct norm_sizes *sizes = check->sizes;
    uint64_t state = check->values + 1;
    for (uint64_t i = 0; i < check->at.all; i++) {
        host[i] = 0.0f;
    }
    for (uint32_t c = 0; c < sizes->channels; c++) {
        for (uint32_t s = 0; s < sizes->samples; s++) {
            for (uint64_t i = 0; i < sizes->inner; i++) {
                const uint32_t run = sizes->rows ? (uint32_t)i / RUN : s;
                host[check->at.x + index_of(sizes, s, c, i)] =
                    value_of(check->values, run, sizes->rows ? i % RUN : i, draw_noise(&state));
            }
        }
    }
    for (uint64_t i = 0; i < (sizes->rows ? sizes->inner : sizes->channels); i++) {
        host[check->at.weight + i] = 0.75f + 0.125f * (float)(i % 8);
        host[check->at.bias + i] = 0.25f * (float)(i % 8) - 0.5f;
    }
    host[check->at.scale] = 1.0f;
}

static void run_batch_norm(const struct norm_check *check, struct kelp_stream *stream, float *room)
{
    const struct norm_sizes *sizes = check->sizes;
    const struct regions *at = &check->at;
    stream->table->batch_norm(
        stream, &(struct kelp_batch_norm){.x = room + at->x,
                                          .weight = room + at->weight,
                                          .bias = room + at->bias,
                                          .y = room + at->y,
                                          .samples = sizes->samples,
                                          .channels = sizes->channels,
                                          .inner = sizes->inner,
                                          .layout = sizes->layout,
                                          .eps = EPS,
                                          .training = true,
                                          .mean = room + at->mean,
                                          .rstd = room + at->rstd,
                                          .statistic_scale = room + at->scale,
                                          .statistic_mean = room + at->statistic_mean,
                                          .statistic_variance = room + at->statistic_variance});
}

static void run_layer_norm(const struct norm_check *check, struct kelp_stream *stream, float *room)
{
    const struct regions *at = &check->at;
    stream->table->layer_norm(stream,
                              &(struct kelp_layer_norm){.x = room + at->x,
                                                        .weight = room + at->weight,
                                                        .bias = room + at->bias,
                                                        .y = room + at->y,
                                                        .mean = room + at->mean,
                                                        .rstd = room + at->rstd,
                                                        .rows = check->sizes->channels,
                                                        .width = (uint32_t)check->sizes->inner,
                                                        .eps = EPS});
}

static kelp_status compute(const struct norm_check *check, struct kelp_device *device,
                           struct kelp_stream *stream, float *host)
{
    const struct regions *at = &check->at;
    void *memory = NULL;
    kelp_status status =
        device->table->alloc(device, at->all * sizeof(float), &memory, check->reterr);
    if (status != KELP_OK) {
        return status;
    }
    float *room = memory;
    stream->table->copy_in(stream, room, host, at->all * sizeof(float));
    (check->sizes->rows ? run_layer_norm : run_batch_norm)(check, stream, room);
    stream->table->copy_out(stream, host, room, at->all * sizeof(float));
    status = stream->table->wait(stream, check->reterr);
    device->table->free(device, memory);
    return status;
}

/* Results of one channel in float64. */
struct exact {
    double mean, variance, unbiased, rstd;
};

static struct exact exact_of(const struct norm_check *check, uint32_t channel)
{
    const struct norm_sizes *sizes = check->sizes;
    const float *x = check->host[1] + check->at.x;
    const double count = (double)sizes->samples * (double)sizes->inner;
    long double sum = 0.0L, squares = 0.0L;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t s = 0; s < sizes->samples; s++) {
            for (uint64_t i = 0; i < sizes->inner; i++) {
                const long double value = x[index_of(sizes, s, channel, i)];
                sum += pass == 0 ? value : 0.0L;
                squares += pass == 1 ? (value - sum / count) * (value - sum / count) : 0.0L;
            }
        }
    }
    const double variance = (double)(squares / count);
    return (struct exact){(double)(sum / count), variance, (double)(squares / (count - 1.0)),
                          1.0 / sqrt(variance + (double)EPS)};
}

/* `allowed`: by how much `got` may differ. */
static kelp_status compare(struct norm_check *check, const char *what, uint32_t channel, double got,
                           double wanted, double allowed)
{
    const double share = fabs(got - wanted) / allowed * TOLERANCE;
    check->worst = share > check->worst ? share : check->worst;
    if (fabs(got - wanted) <= allowed) {
        return KELP_OK;
    }
    const struct norm_sizes *sizes = check->sizes;
    return kelp_fail(check->reterr, KELP_ERR_MISMATCH,
                     "%s of values %s, %ux%ux%u%s: %s of channel %u is %.9g, not %.9g",
                     sizes->rows ? "layer_norm" : "batch_norm", value_names[check->values],
                     sizes->samples, sizes->channels, (unsigned int)sizes->inner,
                     sizes->layout == KELP_CHANNELS_LAST ? " last" : "", what, channel, got,
                     wanted);
}

/* In addition a mean may have float32's rounding error; the CPU's that of sums of 64 values. */
static double mean_allowed(const struct exact *exact, bool cpu)
{
    return TOLERANCE * sqrt(exact->variance) + (cpu ? 8 : 1) * HALF_ULP * fabs(exact->mean);
}

static kelp_status compare_statistics(struct norm_check *check, uint32_t channel,
                                      const struct exact *exact, bool cpu)
{
    const struct regions *at = &check->at;
    const float *host = check->host[cpu ? 0 : 1];
    const double allowed = mean_allowed(exact, cpu);
    kelp_status status =
        compare(check, "mean", channel, host[at->mean + channel], exact->mean, allowed);
    if (status == KELP_OK) {
        status = compare(check, "rstd", channel, host[at->rstd + channel], exact->rstd,
                         TOLERANCE * exact->rstd);
    }
    if (status == KELP_OK && !check->sizes->rows) {
        status = compare(check, "running mean", channel, host[at->statistic_mean + channel],
                         exact->mean, allowed);
    }
    if (status == KELP_OK && !check->sizes->rows) {
        status = compare(check, "running variance", channel, host[at->statistic_variance + channel],
                         exact->unbiased, TOLERANCE * exact->unbiased + (double)EPS);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(check->reterr, "%s", cpu ? "on the cpu" : "here");
    }
    return status;
}

/* Only of the other device: the CPU subtracts the rounded mean. */
static kelp_status compare_y(struct norm_check *check, uint32_t channel, const struct exact *exact)
{
    const struct norm_sizes *sizes = check->sizes;
    const float *host = check->host[1];
    double largest = 0.0, worst = 0.0;
    for (uint32_t s = 0; s < sizes->samples; s++) {
        for (uint64_t i = 0; i < sizes->inner; i++) {
            const uint64_t at = index_of(sizes, s, channel, i), of = sizes->rows ? i : channel;
            const double weight = host[check->at.weight + of], bias = host[check->at.bias + of];
            const double wanted =
                ((double)host[check->at.x + at] - exact->mean) * exact->rstd * weight + bias;
            const double off = fabs((double)host[check->at.y + at] - wanted);
            largest = fmax(largest, fmax(fabs(wanted), fabs(bias)));
            worst = off <= worst ? worst : off; /* NaN, too */
        }
    }
    return compare(check, "what y is off by", channel, worst, 0.0, TOLERANCE * largest);
}

static kelp_status check_one(struct norm_check *check, const struct case_devices *devices)
{
    draw(check, check->host[0]);
    draw(check, check->host[1]);
    kelp_status status = compute(check, devices->cpu, devices->cpu_stream, check->host[0]);
    if (status == KELP_OK) {
        status = compute(check, devices->other, devices->other_stream, check->host[1]);
    }
    for (uint32_t c = 0; c < check->sizes->channels && status == KELP_OK; c++) {
        const struct exact exact = exact_of(check, c);
        const double worst = check->worst;
        /* Not where the CPU is inexact: its variance of constants is not 0, its layer norm sums
         * in float32. */
        if (check->values != CONSTANT && !check->sizes->rows) {
            status = compare_statistics(check, c, &exact, true);
        }
        check->worst = worst; /* only the other device counts */
        if (status == KELP_OK) {
            status = compare_statistics(check, c, &exact, false);
        }
        if (status == KELP_OK) {
            status = compare_y(check, c, &exact);
        }
    }
    return status;
}

kelp_status operator_norm_check(const struct case_devices *devices, double *ret_worst,
                                struct kelp_error *reterr)
{
    struct norm_check check = {.worst = 0.0, .reterr = reterr};
    kelp_status status = KELP_OK;
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(norm_sizes) * VALUES && status == KELP_OK; i++) {
        check.sizes = &norm_sizes[i / VALUES];
        check.values = (enum values)(i % VALUES);
        check.at = regions_of(check.sizes);
        check.host[0] = malloc(check.at.all * sizeof(float));
        check.host[1] = malloc(check.at.all * sizeof(float));
        status = check.host[0] && check.host[1]
                     ? check_one(&check, devices)
                     : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        free(check.host[0]);
        free(check.host[1]);
    }
    if (ret_worst) {
        *ret_worst = check.worst;
    }
    return status;
}
