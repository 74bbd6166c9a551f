/*
 * The operators of the benchmark gpu that memory bounds. Bytes are those that must be read and
 * written if each is touched once, and a row stays in a cache until all of it was read; twice what
 * no cache holds until then: batch norm's inputs, and those of layer norm's gradient where rows are
 * too long to keep.
 */
#include <stdio.h>
#include <string.h>

#include "bench/gpu/gpu.h"

#define COUNT       (64u * GPU_MI) /* floats of one array */
#define BIG_SIDE    8192u
#define TABLE_WIDTH 64u

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

static struct kelp_stream *stream;
static struct gpu_memory memory;

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
                                   .ld = COUNT / GPU_ROWS,
                                   .rows = GPU_ROWS,
                                   .columns = COUNT / GPU_ROWS,
                                   .bias = memory.bias};
    (void)argument;
    stream->table->bias_add(stream, &bias);
}

static void run_bias_gradient(const void *argument)
{
    const struct kelp_bias_gradient gradient = {.matrix = memory.dy,
                                                .ld = COUNT / GPU_ROWS,
                                                .rows = GPU_ROWS,
                                                .columns = COUNT / GPU_ROWS,
                                                .bias = memory.small};
    (void)argument;
    stream->table->bias_gradient(stream, &gradient);
}

/* Short rows, many of them: what a second launch adds up counts. */
static void run_bias_gradient_narrow(const void *argument)
{
    const struct kelp_bias_gradient gradient = {
        .matrix = memory.dy, .ld = 64, .rows = COUNT / 64, .columns = 64, .bias = memory.small};
    (void)argument;
    stream->table->bias_gradient(stream, &gradient);
}

/* A layer of no inputs: zeros in the place of its product, and what follows that. */
static void run_linear(const void *argument)
{
    const struct kelp_linear linear = {.rows = GPU_ROWS,
                                       .out = COUNT / GPU_ROWS,
                                       .bias = memory.bias,
                                       .activated = true,
                                       .activation = *(const enum kelp_unary_kind *)argument,
                                       .sums = memory.more,
                                       .y = memory.out,
                                       .y_ld = COUNT / GPU_ROWS};
    stream->table->linear(stream, &linear);
}

/* All but the products. */
static void run_linear_gradient(const void *argument)
{
    const struct kelp_linear linear = {.rows = GPU_ROWS,
                                       .out = COUNT / GPU_ROWS,
                                       .activated = true,
                                       .activation = *(const enum kelp_unary_kind *)argument,
                                       .sums = memory.x,
                                       .y = memory.x,
                                       .y_ld = COUNT / GPU_ROWS,
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
                                       .outer = GPU_ROWS,
                                       .middle = COUNT / GPU_ROWS,
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
                                       .middle = GPU_ROWS,
                                       .inner = COUNT / GPU_ROWS,
                                       .scale = 0.5f};
    (void)argument;
    stream->table->reduce(stream, &reduce);
}

/* The argument of what takes rows: their length. */
static const uint32_t row_widths[] = {512, 8192, 33000, 33001};
#define ROW_COUNT(width) (GPU_ROWS * 512u / (width))

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
        .x = memory.x, .y = memory.out, .rows = GPU_ROWS, .width = COUNT / GPU_ROWS / 2};
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

/* As a transformer has it. */
static void run_layer_norm_gradient_small(const void *argument)
{
    static const uint32_t width = 768;
    struct kelp_layer_norm gradient = layer_norm(&width);
    gradient.rows = 8192;
    (void)argument;
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
                                         .samples = GPU_ROWS,
                                         .elements = COUNT / GPU_ROWS,
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
                                   .rows = GPU_TABLE_IDS,
                                   .vocab = GPU_TABLE_ROWS,
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
                                             .samples = GPU_ROWS,
                                             .elements = GPU_CLASSES,
                                             .target_elements = classes ? 1 : GPU_CLASSES,
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

#define ADAM_COUNT (16u * GPU_MI)
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

static const uint64_t copy_counts[] = {COUNT, GPU_SLOT_COUNT};
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
    {"copy 128 Mi", run_copy, &copy_counts[1], 2.0 * GPU_SLOT_COUNT},
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
    {"bias_gradient 1048576x64", run_bias_gradient_narrow, NULL, COUNT},
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
    {"layer_norm gradient 8192x768 (in a cache)", run_layer_norm_gradient_small, NULL,
     3.0 * 8192 * 768},
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
     1.0 * TABLE_WIDTH *(GPU_TABLE_IDS + GPU_TABLE_ROWS) + GPU_TABLE_IDS},
    {"embedding gradient 10^6 of 10^5, width 64", run_embedding_gradient, NULL,
     1.0 * TABLE_WIDTH *(GPU_TABLE_IDS + GPU_TABLE_ROWS) + GPU_TABLE_IDS},
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
    {"mse and gradient 65536x1000", run_criterion, &mse, 3.0 * GPU_ROWS *GPU_CLASSES},
    {"cross_entropy and gradient 65536x1000", run_criterion, &cross_entropy,
     2.0 * GPU_ROWS *GPU_CLASSES},
    {"cross_entropy and gradient 2000x32000", run_classes, NULL, 2.0 * 2000 * 32000},
    {"adam 16 Mi", run_adam, NULL, 7.0 * ADAM_COUNT},
    {"reduce columns of 512 of [8, 16384]", run_reduce_few, NULL, COUNT + 512.0 * 16384},
};

double gpu_bench_operators(struct kelp_stream *on, const struct gpu_memory *room, char **names,
                           int name_count, double copy_gbs)
{
    const bool measured = copy_gbs == 0.0; /* by the operator copy, which comes first */
    stream = on;
    memory = *room;
    run_max_pool(&channels_first); /* its gradient reads what it has chosen */
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
        const double seconds = gpu_measure(stream, one->run, one->argument);
        const double gbs = 1e-9 * bytes / seconds;
        copy_gbs = measured && one->run == run_copy && gbs > copy_gbs ? gbs : copy_gbs;
        printf("| %s | %.0f | %.1f | %.0f | %.1f %% |\n", one->name, bytes / GPU_MI, seconds * 1e6,
               gbs, 100.0 * gbs / copy_gbs);
        (void)fflush(stdout);
    }
    return copy_gbs;
}
