/*
 * The part of the known-answer computation that goes through convolution and pooling.
 */
#include "kernels/compute_kind_internal.h"

#define SAMPLES 2u
#define GROUPS  2u
#define OUT     14u /* channels */

/* Where results stand in c. */
#define AT_Y       0u
#define AT_DX      2000u
#define AT_DWEIGHT 8000u
#define AT_DBIAS   14000u

/* Borders of every kind: odd sizes, padding on one side alone, a stride that does not divide. */
static struct kelp_window window_of(uint32_t channels, enum kelp_layout layout)
{
    return (struct kelp_window){.channels = channels,
                                .input = {7, 9},
                                .kernel = {3, 2},
                                .stride = {1, 2},
                                .padding = {1, 0},
                                .output = {7, 4},
                                .layout = layout};
}

static uint64_t plane(const uint32_t sides[2])
{
    return (uint64_t)sides[0] * sides[1];
}

static kelp_status digest_floats(struct answer *answer, const float *from, uint64_t count,
                                 struct kelp_error *reterr)
{
    return kelp__compute_kind_answer_digest(answer, from, count * sizeof(*from), reterr);
}

static kelp_status run_convolution(struct answer *answer, const struct kelp_conv2d_shape *shape,
                                   struct kelp_conv2d_run *run, struct kelp_error *reterr)
{
    const struct kelp_window *window = &shape->window;
    const struct kelp_device_table *table = answer->stream->table;
    float *c = answer->c;
    run->samples = SAMPLES;
    run->x = answer->a;
    run->weight = answer->b;
    run->bias = answer->b + AT_DBIAS;
    run->dy = answer->b + AT_DWEIGHT;
    run->y = c + AT_Y;
    run->dx = c + AT_DX;
    run->dweight = c + AT_DWEIGHT;
    run->dbias = c + AT_DBIAS;
    table->conv2d(answer->stream, run);
    table->conv2d_gradient(answer->stream, run);
    run->write_x = run->write_weight = run->write_bias = KELP_ACCUMULATE;
    table->conv2d_gradient(answer->stream, run);
    const struct {
        const float *from;
        uint64_t count;
    } results[] = {{run->y, SAMPLES * OUT * plane(window->output)},
                   {run->dx, (uint64_t)SAMPLES * window->channels * plane(window->input)},
                   {run->dweight, OUT * (window->channels / shape->groups) * plane(window->kernel)},
                   {run->dbias, OUT}};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(results); i++) {
        const kelp_status status = digest_floats(answer, results[i].from, results[i].count, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

static kelp_status convolution(struct answer *answer, uint32_t channels, enum kelp_layout layout,
                               struct kelp_error *reterr)
{
    const struct kelp_conv2d_shape shape = {.window = window_of(channels, layout),
                                            .channels_out = OUT,
                                            .groups = GROUPS,
                                            .samples_max = SAMPLES};
    const struct kelp_device_table *table = answer->stream->table;
    struct kelp_conv2d_run run = {.conv = NULL};
    void *workspace = NULL;
    kelp_status status = table->conv2d_create(answer->device, &shape, &run.conv, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = table->alloc(answer->device, table->conv2d_workspace(run.conv) * sizeof(float),
                          &workspace, reterr);
    if (status == KELP_OK) {
        run.workspace = workspace;
        status = run_convolution(answer, &shape, &run, reterr);
        table->free(answer->device, workspace);
    }
    table->conv2d_destroy(run.conv);
    return status;
}

static kelp_status pools(struct answer *answer, enum kelp_layout layout, struct kelp_error *reterr)
{
    const struct kelp_device_table *table = answer->stream->table;
    const struct kelp_window window = window_of(OUT, layout);
    const uint64_t in = SAMPLES * OUT * plane(window.input);
    const uint64_t out = SAMPLES * OUT * plane(window.output);
    const struct kelp_max_pool max = {.window = window,
                                      .samples = SAMPLES,
                                      .x = answer->a,
                                      .y = answer->c + AT_Y,
                                      .chosen = (uint32_t *)(void *)answer->workspace,
                                      .dy = answer->b,
                                      .dx = answer->c + AT_DX};
    const struct kelp_average_pool average = {.window = window,
                                              .samples = SAMPLES,
                                              .x = answer->b,
                                              .y = answer->c + AT_DWEIGHT,
                                              .dy = answer->c + AT_Y,
                                              .dx = answer->c + AT_DX,
                                              .write = KELP_ACCUMULATE};
    table->max_pool(answer->stream, &max);
    table->max_pool_gradient(answer->stream, &max);
    table->average_pool(answer->stream, &average);
    table->average_pool_gradient(answer->stream, &average);
    kelp_status status =
        kelp__compute_kind_answer_digest(answer, answer->workspace, out * sizeof(uint32_t), reterr);
    if (status == KELP_OK) {
        status = digest_floats(answer, answer->c + AT_DWEIGHT, out, reterr);
    }
    return status == KELP_OK ? digest_floats(answer, answer->c + AT_DX, in, reterr) : status;
}

/* Few channels and many: devices may have a way of their own for each. */
static kelp_status windows(struct answer *answer, enum kelp_layout layout,
                           struct kelp_error *reterr)
{
    static const uint32_t channels[] = {GROUPS * 3, GROUPS * 19};
    kelp_status status = KELP_OK;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(channels) && status == KELP_OK; i++) {
        status = convolution(answer, channels[i], layout, reterr);
    }
    return status == KELP_OK ? pools(answer, layout, reterr) : status;
}

kelp_status kelp__compute_kind_answer_windows(struct answer *answer, struct kelp_error *reterr)
{
    const kelp_status status = windows(answer, KELP_CHANNELS_FIRST, reterr);
    return status == KELP_OK && answer->stream->table->channels_last
               ? windows(answer, KELP_CHANNELS_LAST, reterr)
               : status;
}
