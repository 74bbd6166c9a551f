/*
 * gpu: what the CUDA device does per second. Operators against the bandwidth of the GPU's memory,
 * products, copies to and from the host, launches.
 *
 * usage: gpu [--rounds N] [--copy-gbs X] [NAME ...]
 *
 * A number is the median of N rounds (9), each as many launches as take ROUND_SECONDS, from the
 * first one's enqueuing to wait(). Bytes are those that must be read and written if each is touched
 * once, and a row stays in a cache until all of it was read; twice what no cache holds until then:
 * batch norm's inputs, and those of layer norm's gradient where rows are too long to keep.
 * The last column compares with X, what a copy within the GPU's memory reaches (read and
 * written bytes, 1e9 a second); without it, with the operator `copy`. NAME: those alone whose names
 * begin so, and no copies to the host.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu/gpu.h"
#include "common/base/clock.h"

#define EXIT_SKIPPED  77
#define ROUND_SECONDS 0.02
#define ROUNDS_MAX    1000u

#define MI             (1024u * 1024u)
#define SLOT_COUNT     (128u * MI) /* floats of the large buffers: far more than a cache holds */
#define SMALL_COUNT    (4u * MI)
#define PATTERN_COUNT  (16u * MI)
#define COUNT          (64u * MI) /* floats of one array */
#define LONG_ROWS      65536u
#define BIG_SIDE       8192u
#define TABLE_ROWS     100000u
#define TABLE_IDS      1000000u
#define TABLE_WIDTH    64u
#define CLASSES        1000u
#define TRANSFER_BYTES (64u * MI)

static const struct kelp_window max_window = {
    .channels = 64,
    .input = {112, 112},
    .kernel = {3, 3},
    .stride = {2, 2},
    .padding = {1, 1},
    .output = {56, 56},
};
static const struct kelp_window average_window = {
    .channels = 64, .input = {112, 112}, .kernel = {2, 2}, .stride = {2, 2}, .output = {56, 56}};
#define POOL_SAMPLES 128u
#define POOL_INPUT   (POOL_SAMPLES * 64.0 * 112 * 112)
#define POOL_OUTPUT  (POOL_SAMPLES * 64.0 * 56 * 56)

#define NORM_SAMPLES  256u
#define NORM_CHANNELS 64u
#define NORM_INNER    (56u * 56u)
#define NORM_COUNT    ((double)NORM_SAMPLES * NORM_CHANNELS * NORM_INNER)

static struct kelp_device *device;
static struct kelp_stream *stream;
static uint32_t rounds = 9;
static double ceiling_gbs; /* 0: not known */

/* Device memory. x and dy are read alone; scale holds 1. */
static struct {
    float *x, *dy, *out, *more;               /* float32[SLOT_COUNT] */
    float *weight, *bias, *small, *small_two; /* float32[SMALL_COUNT] */
    float *ids, *classes, *scale;
    uint32_t *chosen, *positions;
    uint64_t *seed_step;
    double *sums;
} memory;

void gpu_fail(const struct kelp_error *error)
{
    fprintf(stderr, "gpu: %s\n", error->text);
    exit(1);
}

static void wait_for(struct kelp_stream *on)
{
    struct kelp_error error = {KELP_OK, ""};
    if (on->table->wait(on, &error) != KELP_OK) {
        gpu_fail(&error);
    }
}

static void wait_all(void)
{
    wait_for(stream);
}

static double now(void)
{
    return 1e-6 * (double)kelp_clock_us();
}

/* ---- measuring ------------------------------------------------------------------------------- */

static double seconds_of(struct kelp_stream *on, void (*run)(const void *), const void *argument,
                         uint64_t launches)
{
    const double begin = now();
    for (uint64_t i = 0; i < launches; i++) {
        run(argument);
    }
    wait_for(on);
    return now() - begin;
}

static int compare_doubles(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare_doubles);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

double gpu_measure(struct kelp_stream *on, void (*run)(const void *), const void *argument)
{
    static double times[ROUNDS_MAX];
    uint64_t launches = 1;
    (void)seconds_of(on, run, argument, 3); /* loads the kernels */
    for (double taken = 0.0; taken < ROUND_SECONDS;) {
        taken = seconds_of(on, run, argument, launches);
        launches *= taken < ROUND_SECONDS ? 2 : 1;
    }
    for (uint32_t i = 0; i < rounds; i++) {
        times[i] = seconds_of(on, run, argument, launches) / (double)launches;
    }
    return median(times, rounds);
}

static double measure(void (*run)(const void *), const void *argument)
{
    return gpu_measure(stream, run, argument);
}

/* ---- operators ------------------------------------------------------------------------------- */

static void run_copy(const void *argument)
{
    const uint64_t count = *(const uint64_t *)argument;
    const struct kelp_copy copy = {.rank = 1,
                                   .dims = {count},
                                   .x = memory.x,
                                   .x_strides = {1},
                                   .y = memory.out,
                                   .y_strides = {1},
                                   .scale = 1.0f};
    stream->table->copy(stream, &copy);
}

/* [32, 512, 16, 256] with its two middle sides exchanged, as heads are. */
static void run_copy_heads(const void *argument)
{
    const struct kelp_copy copy = {.rank = 4,
                                   .dims = {32, 16, 512, 256},
                                   .x = memory.x,
                                   .x_strides = {512 * 16 * 256, 256, 16 * 256, 1},
                                   .y = memory.out,
                                   .y_strides = {512 * 16 * 256, 512 * 256, 256, 1},
                                   .scale = 1.0f};
    (void)argument;
    stream->table->copy(stream, &copy);
}

static void run_fill(const void *argument)
{
    (void)argument;
    stream->table->fill(stream, memory.out, 0.5f, COUNT);
}

static void run_axpy(const void *argument)
{
    (void)argument;
    stream->table->axpy(stream, memory.out, 1e-6f, memory.x, COUNT);
}

static void run_add(const void *argument)
{
    (void)argument;
    stream->table->add(stream, memory.out, memory.x, memory.dy, COUNT);
}

static void run_multiply(const void *argument)
{
    const struct kelp_multiply multiply = {
        .a = memory.x, .b = memory.dy, .y = memory.out, .count = COUNT};
    (void)argument;
    stream->table->multiply(stream, &multiply);
}

static void run_unary(const void *argument)
{
    const struct kelp_unary unary = {.kind = *(const enum kelp_unary_kind *)argument,
                                     .x = memory.x,
                                     .y = memory.out,
                                     .count = COUNT};
    stream->table->unary(stream, &unary);
}

static void run_gelu_gradient(const void *argument)
{
    const struct kelp_unary_gradient gradient = {
        .kind = KELP_UNARY_GELU, .x = memory.x, .dy = memory.dy, .dx = memory.out, .count = COUNT};
    (void)argument;
    stream->table->unary_gradient(stream, &gradient);
}

static void run_bias_add(const void *argument)
{
    const struct kelp_bias bias = {.matrix = memory.out,
                                   .ld = COUNT / LONG_ROWS,
                                   .rows = LONG_ROWS,
                                   .columns = COUNT / LONG_ROWS,
                                   .bias = memory.bias};
    (void)argument;
    stream->table->bias_add(stream, &bias);
}

static void run_bias_gradient(const void *argument)
{
    const struct kelp_bias_gradient gradient = {.matrix = memory.dy,
                                                .ld = COUNT / LONG_ROWS,
                                                .rows = LONG_ROWS,
                                                .columns = COUNT / LONG_ROWS,
                                                .bias = memory.small};
    (void)argument;
    stream->table->bias_gradient(stream, &gradient);
}

/* A layer of no inputs: zeros in the place of its product, and what follows that. */
static void run_linear(const void *argument)
{
    const struct kelp_linear linear = {.rows = LONG_ROWS,
                                       .out = COUNT / LONG_ROWS,
                                       .bias = memory.bias,
                                       .activated = true,
                                       .activation = *(const enum kelp_unary_kind *)argument,
                                       .sums = memory.more,
                                       .y = memory.out,
                                       .y_ld = COUNT / LONG_ROWS};
    stream->table->linear(stream, &linear);
}

/* All but the products. */
static void run_linear_gradient(const void *argument)
{
    const struct kelp_linear linear = {.rows = LONG_ROWS,
                                       .out = COUNT / LONG_ROWS,
                                       .activated = true,
                                       .activation = *(const enum kelp_unary_kind *)argument,
                                       .sums = memory.x,
                                       .y = memory.x,
                                       .y_ld = COUNT / LONG_ROWS,
                                       .dy = memory.dy,
                                       .dsums = memory.out,
                                       .dbias = memory.small};
    stream->table->linear_gradient(stream, &linear);
}

/* Images to their channels last, and samples of three channels. */
static const struct kelp_transpose turns[] = {
    {.batch = POOL_SAMPLES, .rows = 64, .columns = 112 * 112},
    {.batch = 4096, .rows = 3, .columns = 64 * 64}};
static void run_turn(const void *argument)
{
    struct kelp_transpose turn = *(const struct kelp_transpose *)argument;
    turn.x = memory.x;
    turn.y = memory.out;
    stream->table->transpose(stream, &turn);
}

static void run_transpose(const void *argument)
{
    const struct kelp_transpose transpose = {
        .x = memory.x, .y = memory.out, .batch = 1, .rows = BIG_SIDE, .columns = BIG_SIDE};
    (void)argument;
    stream->table->transpose(stream, &transpose);
}

static void run_reduce_rows(const void *argument)
{
    const struct kelp_reduce reduce = {.x = memory.x,
                                       .y = memory.small,
                                       .outer = LONG_ROWS,
                                       .middle = COUNT / LONG_ROWS,
                                       .inner = 1,
                                       .scale = 0.5f};
    (void)argument;
    stream->table->reduce(stream, &reduce);
}

static void run_reduce_columns(const void *argument)
{
    const struct kelp_reduce reduce = {.x = memory.x,
                                       .y = memory.small,
                                       .outer = 1,
                                       .middle = LONG_ROWS,
                                       .inner = COUNT / LONG_ROWS,
                                       .scale = 0.5f};
    (void)argument;
    stream->table->reduce(stream, &reduce);
}

/* The argument of what takes rows: their length. */
static const uint32_t row_widths[] = {512, 8192, 33000, 33001};
#define ROW_COUNT(width) (LONG_ROWS * 512u / (width))

static struct kelp_softmax softmax(const uint32_t *width)
{
    return (struct kelp_softmax){.x = memory.x,
                                 .y = memory.out,
                                 .rows = ROW_COUNT(*width),
                                 .columns = *width,
                                 .dy = memory.dy,
                                 .dx = memory.more};
}

static void run_softmax(const void *argument)
{
    const struct kelp_softmax forward = softmax(argument);
    stream->table->softmax(stream, &forward);
}

static void run_softmax_gradient(const void *argument)
{
    const struct kelp_softmax gradient = softmax(argument);
    stream->table->softmax_gradient(stream, &gradient);
}

static void run_glu(const void *argument)
{
    const struct kelp_glu glu = {
        .x = memory.x, .y = memory.out, .rows = LONG_ROWS, .width = COUNT / LONG_ROWS / 2};
    (void)argument;
    stream->table->glu(stream, &glu);
}

static struct kelp_layer_norm layer_norm(const uint32_t *width)
{
    return (struct kelp_layer_norm){.x = memory.x,
                                    .weight = memory.weight,
                                    .bias = memory.bias,
                                    .y = memory.out,
                                    .mean = memory.small,
                                    .rstd = memory.small_two,
                                    .rows = ROW_COUNT(*width),
                                    .width = *width,
                                    .eps = 1e-5f,
                                    .dy = memory.dy,
                                    .dx = memory.out,
                                    .dweight = memory.more,
                                    .dbias = memory.more + *width};
}

static void run_layer_norm(const void *argument)
{
    const struct kelp_layer_norm forward = layer_norm(argument);
    stream->table->layer_norm(stream, &forward);
}

static void run_layer_norm_gradient(const void *argument)
{
    const struct kelp_layer_norm gradient = layer_norm(argument);
    stream->table->layer_norm_gradient(stream, &gradient);
}

/* The argument of what takes images: how they stand. */
static const enum kelp_layout channels_first = KELP_CHANNELS_FIRST;
static const enum kelp_layout channels_last = KELP_CHANNELS_LAST;

static struct kelp_batch_norm batch_norm(const enum kelp_layout *layout)
{
    return (struct kelp_batch_norm){.x = memory.x,
                                    .weight = memory.weight,
                                    .bias = memory.bias,
                                    .y = memory.out,
                                    .samples = NORM_SAMPLES,
                                    .channels = NORM_CHANNELS,
                                    .inner = NORM_INNER,
                                    .layout = *layout,
                                    .eps = 1e-5f,
                                    .training = true,
                                    .mean = memory.small,
                                    .rstd = memory.small_two,
                                    .statistic_scale = memory.scale,
                                    .dy = memory.dy,
                                    .dx = memory.out,
                                    .dweight = memory.more,
                                    .dbias = memory.more + NORM_CHANNELS};
}

static void run_batch_norm(const void *argument)
{
    const struct kelp_batch_norm forward = batch_norm(argument);
    stream->table->batch_norm(stream, &forward);
}

static void run_batch_norm_gradient(const void *argument)
{
    const struct kelp_batch_norm gradient = batch_norm(argument);
    stream->table->batch_norm_gradient(stream, &gradient);
}

static void run_dropout(const void *argument)
{
    const struct kelp_dropout dropout = {.x = memory.x,
                                         .y = memory.out,
                                         .samples = LONG_ROWS,
                                         .elements = COUNT / LONG_ROWS,
                                         .p = 0.1f,
                                         .seed_step = memory.seed_step,
                                         .positions = memory.positions};
    (void)argument;
    stream->table->dropout(stream, &dropout);
}

static struct kelp_embedding embedding(void)
{
    return (struct kelp_embedding){.ids = memory.ids,
                                   .ids_stride = 1,
                                   .rows = TABLE_IDS,
                                   .vocab = TABLE_ROWS,
                                   .width = TABLE_WIDTH,
                                   .table = memory.x,
                                   .y = memory.out,
                                   .dy = memory.dy,
                                   .dtable = memory.more};
}

static void run_embedding(const void *argument)
{
    const struct kelp_embedding forward = embedding();
    (void)argument;
    stream->table->embedding(stream, &forward);
}

static void run_embedding_gradient(const void *argument)
{
    const struct kelp_embedding gradient = embedding();
    (void)argument;
    stream->table->embedding_gradient(stream, &gradient);
}

static struct kelp_max_pool max_pool(const enum kelp_layout *layout)
{
    struct kelp_window window = max_window;
    window.layout = *layout;
    return (struct kelp_max_pool){.window = window,
                                  .samples = POOL_SAMPLES,
                                  .x = memory.x,
                                  .y = memory.out,
                                  .chosen = memory.chosen,
                                  .dy = memory.dy,
                                  .dx = memory.more};
}

static void run_max_pool(const void *argument)
{
    const struct kelp_max_pool forward = max_pool(argument);
    stream->table->max_pool(stream, &forward);
}

static void run_max_pool_gradient(const void *argument)
{
    const struct kelp_max_pool gradient = max_pool(argument);
    stream->table->max_pool_gradient(stream, &gradient);
}

static struct kelp_average_pool average_pool(const enum kelp_layout *layout)
{
    struct kelp_window window = average_window;
    window.layout = *layout;
    return (struct kelp_average_pool){.window = window,
                                      .samples = POOL_SAMPLES,
                                      .x = memory.x,
                                      .y = memory.out,
                                      .dy = memory.dy,
                                      .dx = memory.more};
}

static void run_average_pool(const void *argument)
{
    const struct kelp_average_pool forward = average_pool(argument);
    stream->table->average_pool(stream, &forward);
}

static void run_average_pool_gradient(const void *argument)
{
    const struct kelp_average_pool gradient = average_pool(argument);
    stream->table->average_pool_gradient(stream, &gradient);
}

/* With the gradient, and the loss alone of the sums: as in training. */
static void run_criterion(const void *argument)
{
    const enum kelp_loss_kind kind = *(const enum kelp_loss_kind *)argument;
    const bool classes = kind == KELP_LOSS_CROSS_ENTROPY;
    const struct kelp_criterion criterion = {.kind = kind,
                                             .output = memory.x,
                                             .target = classes ? memory.classes : memory.dy,
                                             .samples = LONG_ROWS,
                                             .elements = CLASSES,
                                             .target_elements = classes ? 1 : CLASSES,
                                             .gradient_scale = memory.scale,
                                             .gradient = memory.out,
                                             .sums = memory.sums,
                                             .loss_alone = true,
                                             .workspace = classes ? memory.more : NULL};
    stream->table->criterion(stream, &criterion);
}

static void run_classes(const void *argument)
{
    const struct kelp_criterion criterion = {.kind = KELP_LOSS_CROSS_ENTROPY,
                                             .output = memory.x,
                                             .target = memory.classes,
                                             .samples = 2000,
                                             .elements = 32000,
                                             .target_elements = 1,
                                             .gradient_scale = memory.scale,
                                             .gradient = memory.out,
                                             .sums = memory.sums,
                                             .loss_alone = true,
                                             .workspace = memory.more};
    (void)argument;
    stream->table->criterion(stream, &criterion);
}

#define ADAM_COUNT (16u * MI)
static void run_adam(const void *argument)
{
    const struct kelp_optimizer_run run = {
        .step = {.kind = KELP_OPTIMIZER_ADAM,
                 .scale = 1.0f,
                 .beta1 = 0.9f,
                 .beta2 = 0.999f,
                 .eps = 1e-8f,
                 .step_size = 1e-3f,
                 .bias2_sqrt = 1.0f,
                 .one_minus_beta1 = 0.1f,
                 .one_minus_beta2 = 0.001f},
        .count = ADAM_COUNT,
        .weights = memory.x,
        .gradient = memory.dy,
        .weights_next = memory.out,
        .slots = {memory.more, memory.more + ADAM_COUNT},
        .not_finite = memory.chosen,
    };
    (void)argument;
    stream->table->optimizer(stream, &run);
}

static void run_reduce_few(const void *argument)
{
    const struct kelp_reduce reduce = {
        .x = memory.x, .y = memory.out, .outer = 512, .middle = 8, .inner = 16384, .scale = 0.5f};
    (void)argument;
    stream->table->reduce(stream, &reduce);
}

static const uint64_t copy_counts[] = {COUNT, SLOT_COUNT};
static const enum kelp_unary_kind relu = KELP_UNARY_RELU, gelu = KELP_UNARY_GELU;
static const enum kelp_loss_kind mse = KELP_LOSS_MSE, cross_entropy = KELP_LOSS_CROSS_ENTROPY;

/* `values` are the floats that must be read and written. */
static const struct measurement {
    const char *name;
    void (*run)(const void *argument);
    const void *argument;
    double values;
} measurements[] = {
    {"copy 64 Mi", run_copy, &copy_counts[0], 2.0 * COUNT},
    {"copy 128 Mi", run_copy, &copy_counts[1], 2.0 * SLOT_COUNT},
    {"copy [32, 512, 16, 256], middle sides exchanged", run_copy_heads, NULL, 2.0 * COUNT},
    {"fill 64 Mi", run_fill, NULL, COUNT},
    {"axpy 64 Mi", run_axpy, NULL, 3.0 * COUNT},
    {"add 64 Mi", run_add, NULL, 3.0 * COUNT},
    {"multiply 64 Mi", run_multiply, NULL, 3.0 * COUNT},
    {"relu 64 Mi", run_unary, &relu, 2.0 * COUNT},
    {"gelu 64 Mi", run_unary, &gelu, 2.0 * COUNT},
    {"gelu gradient 64 Mi", run_gelu_gradient, NULL, 3.0 * COUNT},
    {"bias_add 65536x1024", run_bias_add, NULL, 2.0 * COUNT},
    {"bias_gradient 65536x1024", run_bias_gradient, NULL, COUNT},
    {"zeros, bias and relu 65536x1024", run_linear, &relu, 3.0 * COUNT},
    {"relu and bias_gradient 65536x1024", run_linear_gradient, &relu, 3.0 * COUNT},
    {"gelu and bias_gradient 65536x1024", run_linear_gradient, &gelu, 3.0 * COUNT},
    {"transpose 8192x8192", run_transpose, NULL, 2.0 * BIG_SIDE *BIG_SIDE},
    {"transpose 128x[64, 112 112]", run_turn, &turns[0], 2.0 * POOL_INPUT},
    {"transpose 4096x[3, 64 64]", run_turn, &turns[1], 2.0 * 4096 * 3 * 64 * 64},
    {"reduce rows of 65536x1024", run_reduce_rows, NULL, COUNT},
    {"reduce columns of 65536x1024", run_reduce_columns, NULL, COUNT},
    {"softmax 65536x512", run_softmax, &row_widths[0], 2.0 * 65536 * 512},
    {"softmax gradient 65536x512", run_softmax_gradient, &row_widths[0], 3.0 * 65536 * 512},
    {"softmax 4096x8192", run_softmax, &row_widths[1], 2.0 * 4096 * 8192},
    {"softmax gradient 4096x8192", run_softmax_gradient, &row_widths[1], 3.0 * 4096 * 8192},
    {"softmax 1016x33000", run_softmax, &row_widths[2], 2.0 * 1016 * 33000},
    {"softmax gradient 1016x33000", run_softmax_gradient, &row_widths[2], 3.0 * 1016 * 33000},
    {"softmax 1016x33001", run_softmax, &row_widths[3], 2.0 * 1016 * 33001},
    {"softmax gradient 1016x33001", run_softmax_gradient, &row_widths[3], 3.0 * 1016 * 33001},
    {"glu 65536x1024", run_glu, NULL, 1.5 * COUNT},
    {"layer_norm 65536x512", run_layer_norm, &row_widths[0], 2.0 * 65536 * 512},
    {"layer_norm gradient 65536x512", run_layer_norm_gradient, &row_widths[0], 3.0 * 65536 * 512},
    {"layer_norm 4096x8192", run_layer_norm, &row_widths[1], 2.0 * 4096 * 8192},
    {"layer_norm gradient 4096x8192", run_layer_norm_gradient, &row_widths[1], 5.0 * 4096 * 8192},
    {"layer_norm 1016x33000", run_layer_norm, &row_widths[2], 2.0 * 1016 * 33000},
    {"layer_norm gradient 1016x33000", run_layer_norm_gradient, &row_widths[2], 5.0 * 1016 * 33000},
    {"batch_norm 256x64x3136", run_batch_norm, &channels_first, 3.0 * NORM_COUNT},
    {"batch_norm gradient 256x64x3136", run_batch_norm_gradient, &channels_first, 5.0 * NORM_COUNT},
    {"batch_norm 256x3136x64", run_batch_norm, &channels_last, 3.0 * NORM_COUNT},
    {"batch_norm gradient 256x3136x64", run_batch_norm_gradient, &channels_last, 5.0 * NORM_COUNT},
    {"dropout 65536x1024", run_dropout, NULL, 2.0 * COUNT},
    {"embedding 10^6 of 10^5, width 64", run_embedding, NULL,
     1.0 * TABLE_WIDTH *(TABLE_IDS + TABLE_ROWS) + TABLE_IDS},
    {"embedding gradient 10^6 of 10^5, width 64", run_embedding_gradient, NULL,
     1.0 * TABLE_WIDTH *(TABLE_IDS + TABLE_ROWS) + TABLE_IDS},
    {"max_pool 3x3/2 128x64x112x112", run_max_pool, &channels_first, POOL_INPUT + 2 * POOL_OUTPUT},
    {"max_pool gradient 3x3/2 128x64x112x112", run_max_pool_gradient, &channels_first,
     POOL_INPUT + 2 * POOL_OUTPUT},
    {"average_pool 2x2/2 128x64x112x112", run_average_pool, &channels_first,
     POOL_INPUT + POOL_OUTPUT},
    {"average_pool gradient 2x2/2 128x64x112x112", run_average_pool_gradient, &channels_first,
     POOL_INPUT + POOL_OUTPUT},
    {"max_pool 3x3/2 128x112x112x64", run_max_pool, &channels_last, POOL_INPUT + 2 * POOL_OUTPUT},
    {"max_pool gradient 3x3/2 128x112x112x64", run_max_pool_gradient, &channels_last,
     POOL_INPUT + 2 * POOL_OUTPUT},
    {"average_pool 2x2/2 128x112x112x64", run_average_pool, &channels_last,
     POOL_INPUT + POOL_OUTPUT},
    {"average_pool gradient 2x2/2 128x112x112x64", run_average_pool_gradient, &channels_last,
     POOL_INPUT + POOL_OUTPUT},
    {"mse and gradient 65536x1000", run_criterion, &mse, 3.0 * LONG_ROWS *CLASSES},
    {"cross_entropy and gradient 65536x1000", run_criterion, &cross_entropy,
     2.0 * LONG_ROWS *CLASSES},
    {"cross_entropy and gradient 2000x32000", run_classes, NULL, 2.0 * 2000 * 32000},
    {"adam 16 Mi", run_adam, NULL, 7.0 * ADAM_COUNT},
    {"reduce columns of 512 of [8, 16384]", run_reduce_few, NULL, COUNT + 512.0 * 16384},
};

/* ---- the host -------------------------------------------------------------------------------- */

/* A copy of TRANSFER_BYTES, in pieces. */
struct transfer {
    const char *name;
    bool in, pinned;
    size_t piece;
    void *host;
};

static void run_transfer(const void *argument)
{
    const struct transfer *transfer = argument;
    char *host = transfer->host, *more = (char *)memory.more;
    for (size_t at = 0; at < TRANSFER_BYTES; at += transfer->piece) {
        if (transfer->in) {
            stream->table->copy_in(stream, more + at, host + at, transfer->piece);
        } else {
            stream->table->copy_out(stream, host + at, more + at, transfer->piece);
        }
    }
}

static void run_tiny(const void *argument)
{
    (void)argument;
    stream->table->fill(stream, memory.small, 0.5f, 1);
}

static void run_tiny_and_wait(const void *argument)
{
    run_tiny(argument);
    wait_all();
}

/* The last column compares with one copy of pinned memory, which comes first. */
static void bench_host(void)
{
    static struct transfer transfers[] = {
        {"copy_in 64 MiB of pinned memory", true, true, TRANSFER_BYTES, NULL},
        {"copy_in 64 x 1 MiB of pinned memory", true, true, MI, NULL},
        {"copy_in 64 MiB of ordinary memory", true, false, TRANSFER_BYTES, NULL},
        {"copy_out 64 MiB to pinned memory", false, true, TRANSFER_BYTES, NULL},
        {"copy_out 64 x 1 MiB to pinned memory", false, true, MI, NULL},
        {"copy_out 64 MiB to ordinary memory", false, false, TRANSFER_BYTES, NULL},
    };
    struct kelp_error error = {KELP_OK, ""};
    void *pinned = NULL, *ordinary = malloc(TRANSFER_BYTES);
    if (ordinary == NULL) {
        gpu_fail(&(struct kelp_error){KELP_ERR_NO_MEMORY, "out of memory"});
    }
    if (device->table->host_alloc(device, TRANSFER_BYTES, &pinned, &error) != KELP_OK) {
        gpu_fail(&error);
    }
    memset(ordinary, 0, TRANSFER_BYTES); /* the kernel gives the pages now */
    memset(pinned, 0, TRANSFER_BYTES);
    double pinned_gbs = 0.0;
    printf("\n| the host | us | GB/s | of a pinned copy |\n|---|--:|--:|--:|\n");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(transfers); i++) {
        struct transfer *transfer = &transfers[i];
        transfer->host = transfer->pinned ? pinned : ordinary;
        const double seconds = measure(run_transfer, transfer);
        const double gbs = 1e-9 * TRANSFER_BYTES / seconds;
        pinned_gbs = transfer->pinned && transfer->piece == TRANSFER_BYTES ? gbs : pinned_gbs;
        printf("| %s | %.1f | %.1f | %.1f %% |\n", transfer->name, seconds * 1e6, gbs,
               100.0 * gbs / pinned_gbs);
    }
    printf("| one of many launches | %.2f | | |\n", measure(run_tiny, NULL) * 1e6);
    printf("| a launch and wait() | %.2f | | |\n", measure(run_tiny_and_wait, NULL) * 1e6);
    device->table->host_free(device, pinned);
    free(ordinary);
}

/* ---- the program ----------------------------------------------------------------------------- */

static void *allocate(uint64_t bytes)
{
    struct kelp_error error = {KELP_OK, ""};
    void *ret = NULL;
    if (device->table->alloc(device, bytes, &ret, &error) != KELP_OK) {
        gpu_fail(&error);
    }
    return ret;
}

/* With the pattern again and again. */
static float *allocate_floats(const float *pattern, uint64_t count)
{
    float *ret = allocate(count * sizeof(*ret));
    for (uint64_t i = 0; i < count; i += PATTERN_COUNT) {
        const uint64_t some = count - i < PATTERN_COUNT ? count - i : PATTERN_COUNT;
        stream->table->copy_in(stream, ret + i, pattern, some * sizeof(*ret));
    }
    wait_all();
    return ret;
}

/* Whole numbers below limit. */
static float *allocate_numbers(uint64_t count, uint32_t limit)
{
    float *host = malloc(count * sizeof(*host));
    if (host == NULL) {
        gpu_fail(&(struct kelp_error){KELP_ERR_NO_MEMORY, "out of memory"});
    }
    uint64_t bits = limit;
    for (uint64_t i = 0; i < count; i++) {
        bits = bits * 6364136223846793005u + 1442695040888963407u;
        host[i] = (float)((bits >> 33) % limit);
    }
    float *ret = allocate(count * sizeof(*ret));
    stream->table->copy_in(stream, ret, host, count * sizeof(*ret));
    wait_all();
    free(host);
    return ret;
}

static void prepare(const float *pattern)
{
    const float one = 1.0f;
    const uint64_t seed_step[2] = {1, 2};
    memory.x = allocate_floats(pattern, SLOT_COUNT);
    memory.dy = allocate_floats(pattern, SLOT_COUNT);
    memory.out = allocate_floats(pattern, SLOT_COUNT);
    memory.more = allocate_floats(pattern, SLOT_COUNT);
    memory.weight = allocate_floats(pattern, SMALL_COUNT);
    memory.bias = allocate_floats(pattern, SMALL_COUNT);
    memory.small = allocate_floats(pattern, SMALL_COUNT);
    memory.small_two = allocate_floats(pattern, SMALL_COUNT);
    memory.ids = allocate_numbers(TABLE_IDS, TABLE_ROWS);
    memory.classes = allocate_numbers(LONG_ROWS, CLASSES);
    memory.positions = (uint32_t *)(void *)allocate_numbers(LONG_ROWS, LONG_ROWS); /* any will do */
    memory.scale = allocate(sizeof(one));
    memory.seed_step = allocate(sizeof(seed_step));
    memory.chosen = allocate((uint64_t)POOL_OUTPUT * sizeof(*memory.chosen));
    memory.sums = allocate((uint64_t)LONG_ROWS * KELP_LOSS_SUMS * sizeof(*memory.sums));
    stream->table->copy_in(stream, memory.scale, &one, sizeof(one));
    stream->table->copy_in(stream, memory.seed_step, seed_step, sizeof(seed_step));
    run_max_pool(&channels_first); /* its gradient reads what it has chosen */
    wait_all();
}

static void release(void)
{
    void *all[] = {memory.x,     memory.dy,     memory.out,       memory.more,      memory.weight,
                   memory.bias,  memory.small,  memory.small_two, memory.ids,       memory.classes,
                   memory.scale, memory.chosen, memory.positions, memory.seed_step, memory.sums};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(all); i++) {
        device->table->free(device, all[i]);
    }
}

static void bench_operators(char **names, int name_count)
{
    const bool measured = ceiling_gbs == 0.0; /* by the operator copy, which comes first */
    printf("| operator | MiB | us | GB/s | of a copy |\n|---|--:|--:|--:|--:|\n");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(measurements); i++) {
        const struct measurement *one = &measurements[i];
        bool wanted = name_count == 0 || (measured && one->run == run_copy);
        for (int j = 0; j < name_count; j++) {
            wanted = wanted || strncmp(one->name, names[j], strlen(names[j])) == 0;
        }
        if (!wanted) {
            continue;
        }
        const double bytes = one->values * sizeof(float);
        const double seconds = measure(one->run, one->argument);
        const double gbs = 1e-9 * bytes / seconds;
        ceiling_gbs = measured && one->run == run_copy && gbs > ceiling_gbs ? gbs : ceiling_gbs;
        printf("| %s | %.0f | %.1f | %.0f | %.1f %% |\n", one->name, bytes / MI, seconds * 1e6, gbs,
               100.0 * gbs / ceiling_gbs);
        (void)fflush(stdout);
    }
}

static float *make_pattern(void)
{
    float *pattern = malloc(PATTERN_COUNT * sizeof(*pattern));
    if (pattern == NULL) {
        gpu_fail(&(struct kelp_error){KELP_ERR_NO_MEMORY, "out of memory"});
    }
    for (uint64_t i = 0; i < PATTERN_COUNT; i++) {
        pattern[i] = (float)((i * 2654435761u) % 2001) / 1000.0f - 1.0f;
    }
    return pattern;
}

static void bench_all(char **names, int name_count)
{
    char text[KELP_COMPUTE_KIND_SIZE];
    float *pattern = make_pattern();
    prepare(pattern);
    device->table->describe(device, text);
    printf("%s, medians of %u rounds, ", text, rounds);
    if (ceiling_gbs > 0.0) {
        printf("a copy reaches %.0f GB/s\n\n", ceiling_gbs);
    } else {
        printf("compared with the fastest copy below\n\n");
    }
    bench_operators(names, name_count);
    if (name_count == 0) {
        const struct gpu_operands operands = {.x = memory.x,
                                              .weight = memory.weight,
                                              .dy = memory.dy,
                                              .out = memory.out,
                                              .workspace = memory.more,
                                              .copy_gbs = ceiling_gbs};
        bench_host();
        gpu_bench_products(&operands);
        gpu_bench_convolutions(&operands);
    }
    release();
    free(pattern);
}

/* How many arguments the options were; -1: they are wrong. */
static int parse(int argc, char **argv)
{
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        char *end = NULL;
        const double number = strtod(argv[i + 1], &end);
        if (end == argv[i + 1] || *end != '\0') {
            return -1;
        }
        if (strcmp(argv[i], "--rounds") == 0 && number >= 1 && number <= ROUNDS_MAX) {
            rounds = (uint32_t)number;
        } else if (strcmp(argv[i], "--copy-gbs") == 0 && number > 0) {
            ceiling_gbs = number;
        } else {
            return -1;
        }
    }
    return i < argc && strncmp(argv[i], "--", 2) == 0 ? -1 : i;
}

int main(int argc, char **argv)
{
    struct kelp_error error = {KELP_OK, ""};
    const int first = parse(argc, argv);
    if (first < 0) {
        fprintf(stderr, "usage: gpu [--rounds N] [--copy-gbs X] [NAME ...]\n");
        return 2;
    }
    const kelp_status status = kelp_device_cuda_create(0, &device, &error);
    if (status == KELP_ERR_NOT_FOUND || status == KELP_ERR_UNSUPPORTED) {
        printf("skipped: %s\n", error.text);
        return EXIT_SKIPPED;
    }
    if (status != KELP_OK || device->table->stream_create(device, &stream, &error) != KELP_OK) {
        gpu_fail(&error);
    }
    bench_all(argv + first, argc - first);
    device->table->stream_destroy(stream);
    device->table->destroy(device);
    return 0;
}
