/* Batch norm: training, with running statistics, and its gradient. */
#include "tests/lib/cuda/operator_cases.h"

#define TOLERANCE 1e-5
#define FEW       64u

static void run_forward(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    struct kelp_batch_norm norm = *(const struct kelp_batch_norm *)arguments;
    norm.x = buffers[0];
    norm.weight = buffers[1];
    norm.bias = buffers[2];
    norm.y = buffers[3];
    norm.running_mean = buffers[4];
    norm.running_variance = buffers[5];
    norm.mean = buffers[6];
    norm.rstd = buffers[7];
    norm.statistic_scale = buffers[8];
    norm.statistic_mean = buffers[9];
    norm.statistic_variance = buffers[10];
    stream->table->batch_norm(stream, &norm);
}

static void run_gradient(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    struct kelp_batch_norm norm = *(const struct kelp_batch_norm *)arguments;
    norm.x = buffers[0];
    norm.weight = buffers[1];
    norm.mean = buffers[2];
    norm.rstd = buffers[3];
    norm.dy = buffers[4];
    norm.dx = buffers[5];
    norm.dweight = buffers[6];
    norm.dbias = buffers[7];
    stream->table->batch_norm_gradient(stream, &norm);
}

struct sizes {
    uint32_t samples, channels, inner;
    enum kelp_layout layout;
};

static const char *layout_of(struct sizes sizes)
{
    return sizes.layout == KELP_CHANNELS_LAST ? " last" : "";
}

static uint64_t count_of(struct sizes sizes)
{
    return (uint64_t)sizes.samples * sizes.channels * sizes.inner;
}

/* statistics: bit 0 of the mean, bit 1 of the variance. */
static void add_training(struct operator_cases *cases, struct sizes sizes, uint32_t statistics)
{
    const struct kelp_batch_norm norm = {.samples = sizes.samples,
                                         .channels = sizes.channels,
                                         .inner = sizes.inner,
                                         .layout = sizes.layout,
                                         .eps = 1e-5f,
                                         .training = true,
                                         .write_statistic = cases_draw_write(cases)};
    struct operator_case *one =
        cases_add(cases, run_forward, &norm, sizeof(norm),
                  "batch_norm training%s%s%s samples=%u channels=%u inner=%u%s",
                  (statistics & 1) != 0 ? " mean" : "", (statistics & 2) != 0 ? " variance" : "",
                  case_sign(norm.write_statistic), sizes.samples, sizes.channels, sizes.inner,
                  layout_of(sizes));
    const uint32_t channels = sizes.channels;
    one->tolerance = TOLERANCE;
    cases_set_buffer(cases, &one->buffers[0], count_of(sizes),
                     channels < FEW ? CASE_POSITIVE : CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[1], channels, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[2], channels, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[3], count_of(sizes), CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[6], channels, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[7], channels, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[8], 1, CASE_POSITIVE);
    cases_set_buffer(cases, &one->buffers[9], (statistics & 1) != 0 ? channels : 0, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[10], (statistics & 2) != 0 ? channels : 0, CASE_MODERATE);
    one->buffers[3].compared = one->buffers[6].compared = one->buffers[7].compared = true;
    one->buffers[9].compared = one->buffers[10].compared = true;
}

/* There are no sums, so the results must be equal bit by bit. */
static void add_running(struct operator_cases *cases, struct sizes sizes)
{
    const struct kelp_batch_norm norm = {.samples = sizes.samples,
                                         .channels = sizes.channels,
                                         .inner = sizes.inner,
                                         .layout = sizes.layout,
                                         .eps = 1e-5f};
    struct operator_case *one = cases_add(
        cases, run_forward, &norm, sizeof(norm), "batch_norm samples=%u channels=%u inner=%u%s",
        sizes.samples, sizes.channels, sizes.inner, layout_of(sizes));
    cases_set_buffer(cases, &one->buffers[0], count_of(sizes), CASE_SIGNED);
    cases_set_buffer(cases, &one->buffers[1], sizes.channels, CASE_SIGNED);
    cases_set_buffer(cases, &one->buffers[2], sizes.channels, CASE_SIGNED);
    cases_set_buffer(cases, &one->buffers[3], count_of(sizes), CASE_SIGNED);
    cases_set_buffer(cases, &one->buffers[4], sizes.channels, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[5], sizes.channels, CASE_POSITIVE);
    one->buffers[3].compared = true;
}

/* wanted: bit 0 dx, bit 1 dweight, bit 2 dbias. */
static void add_gradient(struct operator_cases *cases, struct sizes sizes, uint32_t wanted)
{
    const uint32_t channels = sizes.channels;
    const struct kelp_batch_norm norm = {.samples = sizes.samples,
                                         .channels = channels,
                                         .inner = sizes.inner,
                                         .layout = sizes.layout,
                                         .training = true,
                                         .write_x = cases_draw_write(cases),
                                         .write_weight = cases_draw_write(cases),
                                         .write_bias = cases_draw_write(cases)};
    struct operator_case *one = cases_add(
        cases, run_gradient, &norm, sizeof(norm),
        "batch_norm_gradient%s%s%s%s%s%s samples=%u channels=%u inner=%u%s",
        (wanted & 1) != 0 ? " dx" : "", (wanted & 1) != 0 ? case_sign(norm.write_x) : "",
        (wanted & 2) != 0 ? " dweight" : "", (wanted & 2) != 0 ? case_sign(norm.write_weight) : "",
        (wanted & 4) != 0 ? " dbias" : "", (wanted & 4) != 0 ? case_sign(norm.write_bias) : "",
        sizes.samples, channels, sizes.inner, layout_of(sizes));
    one->tolerance = TOLERANCE;
    cases_set_buffer(cases, &one->buffers[0], count_of(sizes), CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[1], channels, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[2], channels, CASE_POSITIVE);
    cases_set_buffer(cases, &one->buffers[3], channels, CASE_POSITIVE);
    cases_set_buffer(cases, &one->buffers[4], count_of(sizes),
                     channels < FEW ? CASE_POSITIVE : CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[5], (wanted & 1) != 0 ? count_of(sizes) : 0,
                     CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[6], (wanted & 2) != 0 ? channels : 0, CASE_MODERATE);
    cases_set_buffer(cases, &one->buffers[7], (wanted & 4) != 0 ? channels : 0, CASE_MODERATE);
    for (uint32_t i = 5; i < 8; i++) {
        one->buffers[i].compared = true;
    }
}

static void add_layout(struct operator_cases *cases, const struct sizes sizes)
{
    add_training(cases, sizes, 3);
    add_training(cases, sizes, cases_draw(cases, 0, 2));
    add_running(cases, sizes);
    add_gradient(cases, sizes, 7);
    add_gradient(cases, sizes, cases_draw(cases, 1, 6));
}

/* In both layouts if they differ. */
static void add_sizes(struct operator_cases *cases, uint32_t samples, uint32_t channels,
                      uint32_t inner)
{
    add_layout(cases, (struct sizes){samples, channels, inner, KELP_CHANNELS_FIRST});
    if (inner != 1 && channels != 1) {
        add_layout(cases, (struct sizes){samples, channels, inner, KELP_CHANNELS_LAST});
    }
}

static void add_small(struct operator_cases *cases)
{
    for (uint32_t i = 0; i < 2; i++) {
        add_sizes(cases, cases_draw(cases, 2, 60), cases_draw(cases, 1, 40), 1);
        add_sizes(cases, cases_draw(cases, 2, 60), 4 * cases_draw(cases, 1, 10), 1);
        add_sizes(cases, cases_draw(cases, 1, 9), cases_draw(cases, 1, 9),
                  cases_draw(cases, 2, 70));
        add_sizes(cases, cases_draw(cases, 1, 9), cases_draw(cases, 1, 9),
                  4 * cases_draw(cases, 1, 20));
    }
    add_sizes(cases, 1, 3, 1);
    add_sizes(cases, cases_draw(cases, 2, 9), cases_draw(cases, 129, 140), 1);
    add_sizes(cases, 2, 3, cases_draw(cases, 1025, 1500));
    add_sizes(cases, 1, 2, 4 * cases_draw(cases, 300, 500));
    add_sizes(cases, cases_draw(cases, 2, 4), 4 * cases_draw(cases, 9, 12),
              cases_draw(cases, 5, 30));
}

/* Sizes at which samples are split into parts, and planes into segments. */
static void add_split(struct operator_cases *cases)
{
    add_sizes(cases, cases_draw(cases, 2100, 3000), 5, 1);
    add_sizes(cases, cases_draw(cases, 260, 290), 60, 1);
    add_sizes(cases, cases_draw(cases, 260, 400), 3, 16);
    add_sizes(cases, cases_draw(cases, 20, 40), 2, 131);
    add_sizes(cases, 1, 2, cases_draw(cases, 8193, 9000));
    add_sizes(cases, 3, 1, 8196);
}

/* Without elements, gradients of weights are zero, and nothing else is written. */
static void add_empty(struct operator_cases *cases)
{
    add_sizes(cases, 0, 5, 1);
    add_sizes(cases, 0, 5, 9);
    add_sizes(cases, 3, 5, 0);
    add_sizes(cases, 3, 0, 7);
}

static void add_large(struct operator_cases *cases)
{
    add_sizes(cases, 100000, 64, 1);
    add_sizes(cases, 3001, 1026, 1);
    add_sizes(cases, 4096, 2048, 1);
    add_sizes(cases, 1000000, 3, 1);
    add_sizes(cases, 64, 64, 56 * 56 / 4);
    add_sizes(cases, 128, 512, 49);
    add_sizes(cases, 32, 3, 224 * 224);
    add_sizes(cases, 500, 1000, 16);
    add_sizes(cases, 2000, 130, 3);
}

void cases_batch_norm(struct operator_cases *cases, bool large)
{
    add_small(cases);
    add_split(cases);
    add_empty(cases);
    if (large) {
        add_large(cases);
    }
}
