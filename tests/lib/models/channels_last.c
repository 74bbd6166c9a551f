#include "tests/lib/models/channels_last.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TURNS_MAX 4 /* image arrays of one operator */

/* The CPU's table, and the one with our operators. All devices share both. */
static const struct kelp_device_table *cpu;
static struct kelp_device_table table;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- transposing ----------------------------------------------------------------------------- */

/* An array of images with elements of 4 bytes, and a copy with channels first. */
struct turn {
    void *last;
    uint32_t *first;
    uint64_t samples, channels, plane;
    bool written; /* the operator writes it, and may read its old values */
};
struct turns {
    struct turn all[TURNS_MAX];
    uint32_t count;
};

static uint64_t plane_of(const uint32_t sides[2])
{
    return (uint64_t)sides[0] * sides[1];
}

/* Convert between the layouts. Moves bytes only, because elements may have any type. */
static void move_all(const struct turn *turn, bool to_first)
{
    for (uint64_t s = 0; s < turn->samples; s++) {
        for (uint64_t c = 0; c < turn->channels; c++) {
            for (uint64_t i = 0; i < turn->plane; i++) {
                const uint64_t sample = s * turn->channels * turn->plane;
                char *last = (char *)turn->last + 4 * (sample + i * turn->channels + c);
                uint32_t *first = turn->first + sample + c * turn->plane + i;
                memcpy(to_first ? (void *)first : (void *)last,
                       to_first ? (const void *)last : (const void *)first, 4);
            }
        }
    }
}

/* The array with channels first; NULL stays NULL. */
static void *turned(struct turns *turns, const void *last, bool written, uint64_t samples,
                    uint64_t channels, uint64_t plane)
{
    const uint64_t count = samples * channels * plane;
    if (!last) {
        return NULL;
    }
    struct turn *turn = &turns->all[turns->count++];
    *turn = (struct turn){.last = (void *)(uintptr_t)last,
                          .first = malloc((size_t)count * sizeof(uint32_t) + 1),
                          .samples = samples,
                          .channels = channels,
                          .plane = plane,
                          .written = written};
    if (!turn->first) {
        (void)fprintf(stderr, "channels_last: out of memory\n");
        abort();
    }
    move_all(turn, true);
    return turn->first;
}

static void turn_back(struct turns *turns)
{
    for (uint32_t i = 0; i < turns->count; i++) {
        if (turns->all[i].written) {
            move_all(&turns->all[i], false);
        }
        free(turns->all[i].first);
    }
}

/* ---- pooling --------------------------------------------------------------------------------- */

#define POOL_X(field, written)                                                                     \
    pool.field =                                                                                   \
        turned(&turns, p->field, written, p->samples, window->channels, plane_of(window->input))
#define POOL_Y(field, written)                                                                     \
    pool.field =                                                                                   \
        turned(&turns, p->field, written, p->samples, window->channels, plane_of(window->output))

static void max_pool(struct kelp_stream *stream, const struct kelp_max_pool *p)
{
    struct kelp_max_pool pool = *p;
    struct turns turns = {.count = 0};
    const struct kelp_window *window = &p->window;
    if (window->layout == KELP_CHANNELS_LAST) {
        pool.window.layout = KELP_CHANNELS_FIRST;
        POOL_X(x, false);
        POOL_Y(y, true);
        POOL_Y(chosen, true);
    }
    cpu->max_pool(stream, &pool);
    turn_back(&turns);
}

static void max_pool_gradient(struct kelp_stream *stream, const struct kelp_max_pool *p)
{
    struct kelp_max_pool pool = *p;
    struct turns turns = {.count = 0};
    const struct kelp_window *window = &p->window;
    if (window->layout == KELP_CHANNELS_LAST) {
        pool.window.layout = KELP_CHANNELS_FIRST;
        POOL_Y(chosen, false);
        POOL_Y(dy, false);
        POOL_X(dx, true);
    }
    cpu->max_pool_gradient(stream, &pool);
    turn_back(&turns);
}

static void average_pool(struct kelp_stream *stream, const struct kelp_average_pool *p)
{
    struct kelp_average_pool pool = *p;
    struct turns turns = {.count = 0};
    const struct kelp_window *window = &p->window;
    if (window->layout == KELP_CHANNELS_LAST) {
        pool.window.layout = KELP_CHANNELS_FIRST;
        POOL_X(x, false);
        POOL_Y(y, true);
    }
    cpu->average_pool(stream, &pool);
    turn_back(&turns);
}

static void average_pool_gradient(struct kelp_stream *stream, const struct kelp_average_pool *p)
{
    struct kelp_average_pool pool = *p;
    struct turns turns = {.count = 0};
    const struct kelp_window *window = &p->window;
    if (window->layout == KELP_CHANNELS_LAST) {
        pool.window.layout = KELP_CHANNELS_FIRST;
        POOL_Y(dy, false);
        POOL_X(dx, true);
    }
    cpu->average_pool_gradient(stream, &pool);
    turn_back(&turns);
}

/* ---- batch norm ------------------------------------------------------------------------------ */

#define NORM(field, written)                                                                       \
    norm.field = turned(&turns, p->field, written, p->samples, p->channels, p->inner)

static void batch_norm(struct kelp_stream *stream, const struct kelp_batch_norm *p)
{
    struct kelp_batch_norm norm = *p;
    struct turns turns = {.count = 0};
    if (p->layout == KELP_CHANNELS_LAST) {
        norm.layout = KELP_CHANNELS_FIRST;
        NORM(x, false);
        NORM(y, true);
    }
    cpu->batch_norm(stream, &norm);
    turn_back(&turns);
}

static void batch_norm_gradient(struct kelp_stream *stream, const struct kelp_batch_norm *p)
{
    struct kelp_batch_norm norm = *p;
    struct turns turns = {.count = 0};
    if (p->layout == KELP_CHANNELS_LAST) {
        norm.layout = KELP_CHANNELS_FIRST;
        NORM(x, false);
        NORM(dy, false);
        NORM(dx, true);
    }
    cpu->batch_norm_gradient(stream, &norm);
    turn_back(&turns);
}

/* ---- convolution ----------------------------------------------------------------------------- */

struct kelp_conv2d {
    struct kelp_conv2d *of_cpu; /* owned */
    struct kelp_conv2d_shape shape;
};

static kelp_status conv2d_create(struct kelp_device *device, const struct kelp_conv2d_shape *shape,
                                 struct kelp_conv2d **ret, struct kelp_error *reterr)
{
    struct kelp_conv2d *conv = calloc(1, sizeof(*conv));
    struct kelp_conv2d_shape first = *shape;
    if (!conv) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a convolution");
    }
    conv->shape = *shape;
    first.window.layout = KELP_CHANNELS_FIRST;
    const kelp_status status = cpu->conv2d_create(device, &first, &conv->of_cpu, reterr);
    if (status != KELP_OK) {
        free(conv);
        return status;
    }
    *ret = conv;
    return KELP_OK;
}

static void conv2d_destroy(struct kelp_conv2d *conv)
{
    if (conv) {
        cpu->conv2d_destroy(conv->of_cpu);
        free(conv);
    }
}

static uint64_t conv2d_workspace(const struct kelp_conv2d *conv)
{
    return cpu->conv2d_workspace(conv->of_cpu);
}

#define CONV_X(field, written)                                                                     \
    run.field =                                                                                    \
        turned(&turns, p->field, written, p->samples, window->channels, plane_of(window->input))
#define CONV_Y(field, written)                                                                     \
    run.field = turned(&turns, p->field, written, p->samples, p->conv->shape.channels_out,         \
                       plane_of(window->output))

static void conv2d(struct kelp_stream *stream, const struct kelp_conv2d_run *p)
{
    struct kelp_conv2d_run run = *p;
    struct turns turns = {.count = 0};
    const struct kelp_window *window = &p->conv->shape.window;
    run.conv = p->conv->of_cpu;
    if (window->layout == KELP_CHANNELS_LAST) {
        CONV_X(x, false);
        CONV_Y(y, true);
    }
    cpu->conv2d(stream, &run);
    turn_back(&turns);
}

static void conv2d_gradient(struct kelp_stream *stream, const struct kelp_conv2d_run *p)
{
    struct kelp_conv2d_run run = *p;
    struct turns turns = {.count = 0};
    const struct kelp_window *window = &p->conv->shape.window;
    run.conv = p->conv->of_cpu;
    if (window->layout == KELP_CHANNELS_LAST) {
        CONV_X(x, false);
        CONV_Y(dy, false);
        CONV_X(dx, true);
    }
    cpu->conv2d_gradient(stream, &run);
    turn_back(&turns);
}

/* ---- the device ------------------------------------------------------------------------------ */

static void make_table(const struct kelp_device_table *of_cpu)
{
    (void)pthread_mutex_lock(&lock);
    if (!cpu) {
        cpu = of_cpu;
        table = *of_cpu;
        table.channels_last = true;
        table.max_pool = max_pool;
        table.max_pool_gradient = max_pool_gradient;
        table.average_pool = average_pool;
        table.average_pool_gradient = average_pool_gradient;
        table.batch_norm = batch_norm;
        table.batch_norm_gradient = batch_norm_gradient;
        table.conv2d_create = conv2d_create;
        table.conv2d_destroy = conv2d_destroy;
        table.conv2d_workspace = conv2d_workspace;
        table.conv2d = conv2d;
        table.conv2d_gradient = conv2d_gradient;
    }
    assert(cpu == of_cpu);
    (void)pthread_mutex_unlock(&lock);
}

kelp_status channels_last_cpu_create(struct kelp_device **ret, struct kelp_error *reterr)
{
    const kelp_status status = kelp_device_cpu_create(1, ret, reterr);
    if (status == KELP_OK) {
        make_table((*ret)->table);
        (*ret)->table = &table;
    }
    return status;
}
