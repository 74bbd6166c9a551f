/*
 * kernels: what the CPU device does per second. A table of operators and optimizers, then a step
 * (forward, loss, backward) of the models that the targets are set for.
 *
 * usage: kernels [THREADS | optimizers]
 */
#include <cblas.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/training/plan.h"
#include "kernels/device.h"
#include "kernels/update.h"
#include "worker/model/model.h"

#define MIN_SECONDS 0.2
#define MIN_BATCHES 3
/* Arrays start this far from one another within a page: equal alignment costs a factor of 2 to 3.
 */
#define STAGGER (4096 + 320)

static double now(void)
{
    return 1e-6 * (double)kelp_clock_us();
}

/* Seconds of one call: the best of at least MIN_BATCHES batches of a millisecond or more, which
 * together take MIN_SECONDS or more. */
static double measure(void (*call)(void *), void *argument)
{
    double best = 1e9;
    uint64_t repeat = 1;
    uint32_t batches = 0;
    const double end = now() + MIN_SECONDS;
    do {
        const double begin = now();
        for (uint64_t i = 0; i < repeat; i++) {
            call(argument);
        }
        const double taken = now() - begin;
        if (taken < 1e-3) {
            repeat *= 2;
            continue;
        }
        batches++;
        best = taken / (double)repeat < best ? taken / (double)repeat : best;
    } while (now() < end || batches < MIN_BATCHES);
    return best;
}

static void fail(const struct kelp_error *error)
{
    fprintf(stderr, "kernels: %s\n", error->text);
    exit(1);
}

static float *floats(uint64_t count)
{
    float *values = aligned_alloc(64, (count * sizeof(*values) + 63) / 64 * 64);
    if (values == NULL) {
        fprintf(stderr, "kernels: out of memory\n");
        exit(1);
    }
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)((i * 2654435761u) % 2001) / 1000.0f - 1.0f;
    }
    return values;
}

/* ---- operators ---- */

struct product {
    struct kelp_stream *stream;
    struct kelp_matmul matmul;
};

static void run_product(void *argument)
{
    struct product *product = argument;
    product->stream->table->matmul(product->stream, &product->matmul);
}

static void bench_product(struct kelp_stream *stream, uint32_t m, uint32_t n, uint32_t k,
                          bool transpose_a, bool transpose_b)
{
    float *a = floats((uint64_t)m * k), *b = floats((uint64_t)k * n), *c = floats((uint64_t)m * n);
    struct product product = {stream,
                              {.transpose_a = transpose_a,
                               .transpose_b = transpose_b,
                               .m = m,
                               .n = n,
                               .k = k,
                               .a = a,
                               .lda = transpose_a ? m : k,
                               .b = b,
                               .ldb = transpose_b ? k : n,
                               .c = c,
                               .ldc = n}};
    const double seconds = measure(run_product, &product);
    char name[64];
    (void)snprintf(name, sizeof(name), "matmul %ux%ux%u %c%c", m, n, k, transpose_a ? 'T' : 'N',
                   transpose_b ? 'T' : 'N');
    printf("%-32s %10.2f us %8.1f GFLOP/s\n", name, seconds * 1e6,
           2e-9 * (double)m * n * k / seconds);
    free(a);
    free(b);
    free(c);
}

struct convolution {
    struct kelp_stream *stream;
    struct kelp_conv2d_run run;
    bool gradient;
};

static void run_convolution(void *argument)
{
    struct convolution *convolution = argument;
    if (convolution->gradient) {
        convolution->stream->table->conv2d_gradient(convolution->stream, &convolution->run);
    } else {
        convolution->stream->table->conv2d(convolution->stream, &convolution->run);
    }
}

/* Columns: channels in, image side, channels out, kernel, stride, padding. */
static const uint32_t convolutions[][6] = {
    {1, 28, 32, 3, 1, 0},   {32, 26, 64, 3, 1, 0},  {1, 28, 64, 7, 2, 3},   {64, 7, 64, 3, 1, 1},
    {64, 7, 128, 3, 2, 1},  {64, 7, 128, 1, 2, 0},  {128, 4, 128, 3, 1, 1}, {128, 4, 256, 3, 2, 1},
    {256, 2, 256, 3, 1, 1}, {256, 2, 512, 3, 2, 1}, {512, 1, 512, 3, 1, 1}, {64, 56, 64, 3, 1, 1}};
#define CONVOLUTION_SAMPLES 128u

static struct kelp_conv2d_shape convolution_shape(const uint32_t sizes[6])
{
    const uint32_t side = (sizes[1] + 2 * sizes[5] - sizes[3]) / sizes[4] + 1;
    return (struct kelp_conv2d_shape){.window = {.channels = sizes[0],
                                                 .input = {sizes[1], sizes[1]},
                                                 .kernel = {sizes[3], sizes[3]},
                                                 .stride = {sizes[4], sizes[4]},
                                                 .padding = {sizes[5], sizes[5]},
                                                 .output = {side, side}},
                                      .channels_out = sizes[2],
                                      .groups = 1,
                                      .samples_max = CONVOLUTION_SAMPLES};
}

/* Multiplications with padding count: they are what a convolution is said to cost. The ratio is to
 * OpenBLAS's product of two matrices 1024x1024. The gradient of a first layer has no dx. */
static void bench_convolution(struct kelp_stream *stream, const uint32_t sizes[6],
                              double product_per_second)
{
    const struct kelp_conv2d_shape shape = convolution_shape(sizes);
    const struct kelp_window *window = &shape.window;
    const uint64_t weight = (uint64_t)sizes[0] * sizes[2] * sizes[3] * sizes[3];
    const uint64_t output = (uint64_t)window->output[0] * window->output[1];
    const uint64_t x_count = (uint64_t)CONVOLUTION_SAMPLES * sizes[0] * sizes[1] * sizes[1];
    const uint64_t y_count = CONVOLUTION_SAMPLES * sizes[2] * output;
    struct convolution convolution = {.stream = stream, .run = {.samples = CONVOLUTION_SAMPLES}};
    struct kelp_error error = {KELP_OK, ""};
    if (stream->table->conv2d_create(stream->device, &shape, &convolution.run.conv, &error) !=
        KELP_OK) {
        fail(&error);
    }
    float *x = floats(x_count), *y = floats(y_count), *weights = floats(weight);
    float *dx = floats(x_count), *dy = floats(y_count), *dweights = floats(weight);
    float *workspace = floats(stream->table->conv2d_workspace(convolution.run.conv));
    convolution.run.x = x;
    convolution.run.y = y;
    convolution.run.weight = weights;
    convolution.run.workspace = workspace;
    convolution.run.dy = dy;
    convolution.run.dx = sizes[0] == 1 ? NULL : dx;
    convolution.run.dweight = dweights;
    const double forward = measure(run_convolution, &convolution);
    convolution.gradient = true;
    const double gradient = measure(run_convolution, &convolution);
    const double products = (double)CONVOLUTION_SAMPLES * (double)(weight * output);
    const double parts = sizes[0] == 1 ? 2e-9 : 4e-9;
    char name[64];
    (void)snprintf(name, sizeof(name), "conv2d %ux%ux%u to %u, %ux%u/%u", sizes[0], sizes[1],
                   sizes[1], sizes[2], sizes[3], sizes[3], sizes[4]);
    printf("%-32s %10.2f us %8.1f GFLOP/s %5.2f   gradient %10.2f us %8.1f GFLOP/s %5.2f\n", name,
           forward * 1e6, 2e-9 * products / forward, 2 * products / forward / product_per_second,
           gradient * 1e6, parts * products / gradient,
           parts * 1e9 * products / gradient / product_per_second);
    stream->table->conv2d_destroy(convolution.run.conv);
    float *buffers[] = {x, y, weights, dx, dy, dweights, workspace};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(buffers); i++) {
        free(buffers[i]);
    }
}

struct blas {
    const float *a, *b;
    float *c;
};

static void run_blas(void *argument)
{
    struct blas *blas = argument;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1024, 1024, 1024, 1.0f, blas->a, 1024,
                blas->b, 1024, 0.0f, blas->c, 1024);
}

static double blas_per_second(void)
{
    float *a = floats(1u << 20), *b = floats(1u << 20), *c = floats(1u << 20);
    struct blas blas = {a, b, c};
    const double seconds = measure(run_blas, &blas);
    free(a);
    free(b);
    free(c);
    return 2.0 * 1024 * 1024 * 1024 / seconds;
}

static void bench_convolutions(struct kelp_stream *stream)
{
    const double product = blas_per_second();
    printf("%-32s %10.2f us %8.1f GFLOP/s\n", "OpenBLAS 1024x1024x1024", 2.147e15 / product,
           1e-9 * product);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(convolutions); i++) {
        bench_convolution(stream, convolutions[i], product);
    }
}

struct average {
    struct kelp_stream *stream;
    struct kelp_moving_average average;
    bool gradient;
};

static void run_average(void *argument)
{
    struct average *average = argument;
    if (average->gradient) {
        average->stream->table->moving_average_gradient(average->stream, &average->average);
    } else {
        average->stream->table->moving_average(average->stream, &average->average);
    }
}

static void bench_average(struct kelp_stream *stream, uint32_t rows, uint32_t length, bool gradient)
{
    const uint64_t count = (uint64_t)rows * length;
    float *x = floats(count), *y = floats(count);
    float *workspace = floats(kelp_moving_average_workspace(length, 25));
    struct average average = {
        stream,
        {.x = x, .y = y, .rows = rows, .length = length, .kernel_size = 25, .workspace = workspace},
        gradient};
    const double seconds = measure(run_average, &average);
    char name[64];
    (void)snprintf(name, sizeof(name), "moving average%s %ux%u k 25", gradient ? " gradient" : "",
                   rows, length);
    printf("%-32s %10.2f us %8.2f ns per value\n", name, seconds * 1e6,
           seconds * 1e9 / (double)count);
    free(x);
    free(y);
    free(workspace);
}

struct losses {
    struct kelp_stream *stream;
    struct kelp_criterion criterion;
};

static void run_loss(void *argument)
{
    struct losses *losses = argument;
    losses->stream->table->criterion(losses->stream, &losses->criterion);
}

static void bench_loss(struct kelp_stream *stream, uint32_t samples, uint64_t elements)
{
    const uint64_t count = samples * elements;
    float *output = floats(count), *target = floats(count), *gradient = floats(count);
    double *sums = calloc((uint64_t)samples * KELP_LOSS_SUMS, sizeof(*sums));
    const float scale = 0.5f;
    struct losses losses = {stream,
                            {.kind = KELP_LOSS_MSE,
                             .output = output,
                             .target = target,
                             .samples = samples,
                             .elements = elements,
                             .target_elements = elements,
                             .loss_alone = true,
                             .gradient_scale = &scale,
                             .gradient = gradient,
                             .sums = sums}};
    const double seconds = measure(run_loss, &losses);
    char name[64];
    (void)snprintf(name, sizeof(name), "mse loss and gradient %ux%llu", samples,
                   (unsigned long long)elements);
    printf("%-32s %10.2f us %8.2f ns per value\n", name, seconds * 1e6,
           seconds * 1e9 / (double)count);
    free(output);
    free(target);
    free(gradient);
    free(sums);
}

/* ---- optimizers ---- */

#define UPDATE_THREADS 2
#define UPDATE_ROUNDS  5
#define UPDATE_SECONDS 0.01 /* of one round of one case, or one call */

enum update_way {
    WAY_COPY,   /* memcpy */
    WAY_SUM,    /* d += s */
    WAY_UPDATE, /* of a gradient that lies in memory */
    WAY_APART,  /* of two terms: they are added up, then an update */
    WAY_FUSED,  /* the same in one pass */
};

/* What is compared, in one run and by turns: machines are noisy. */
struct update_case {
    const char *name;
    enum update_way way;
    struct kelp_job job;
    double best[UPDATE_THREADS]; /* seconds of a call */
};

/* One thread's slice. */
struct update_slice {
    const struct update_case *of;
    struct kelp_plan plan;
    struct kelp_tensor tensor;
    struct kelp_update update;
    struct kelp_optimizer_step step;
    struct kelp_optimizer_buffers buffers;
    struct kelp_gradient_terms terms;
    float *sum;
    char *memory;
    uint64_t count, repeat;
    pthread_barrier_t *barrier;
};

static void open_slice(struct update_slice *slice, uint64_t count)
{
    const uint64_t stride = count * sizeof(float) + STAGGER;
    float *arrays[5 + KELP_OPTIMIZER_SLOTS_MAX];

    *slice = (struct update_slice){.count = count};
    slice->memory = (char *)floats(KELP_ARRAY_COUNT(arrays) * (stride / sizeof(float)));
    for (size_t i = 0; i < KELP_ARRAY_COUNT(arrays); i++) {
        arrays[i] = (float *)(void *)(slice->memory + i * stride);
    }
    slice->sum = arrays[2];
    slice->terms = (struct kelp_gradient_terms){.left = arrays[3], .right = arrays[4]};
    slice->buffers =
        (struct kelp_optimizer_buffers){.weights = arrays[0], .weights_next = arrays[1]};
    for (uint32_t s = 0; s < KELP_OPTIMIZER_SLOTS_MAX; s++) {
        slice->buffers.slots[s] = arrays[5 + s];
        memset(arrays[5 + s], 0, count * sizeof(float));
    }
}

static void set_case(struct update_slice *slice, const struct update_case *of)
{
    struct kelp_error error = {KELP_OK, ""};

    slice->of = of;
    slice->tensor = (struct kelp_tensor){.name = "w", .rank = 1, .shape = {slice->count}};
    slice->plan = (struct kelp_plan){.tensors = &slice->tensor, .tensor_count = 1};
    if (kelp_plan_lay_out(&slice->plan, 1, &error) != KELP_OK ||
        kelp_update_init(&slice->update, &of->job, &slice->plan,
                         (struct kelp_slice_range){.count = slice->count}, &error) != KELP_OK) {
        fail(&error);
    }
    kelp_optimizer_prepare(&slice->step, &of->job, of->job.train.lr, 7);
}

static void run_slice(struct update_slice *slice)
{
    const void *left = slice->terms.left, *right = slice->terms.right;
    const struct kelp_step_decision none = {.count = 0};
    struct kelp_optimizer_buffers buffers = slice->buffers;

    switch (slice->of->way) {
    case WAY_COPY:
        memcpy(slice->sum, left, slice->count * sizeof(float));
        return;
    case WAY_SUM:
        kelp_vector_add(slice->sum, left, slice->count);
        return;
    case WAY_UPDATE:
        buffers.gradient = left;
        break;
    case WAY_APART:
        memcpy(slice->sum, left, slice->count * sizeof(float));
        kelp_vector_add(slice->sum, right, slice->count);
        buffers.gradient = slice->sum;
        break;
    case WAY_FUSED:
        buffers.terms = slice->terms;
        break;
    }
    (void)kelp_update_apply(&slice->update, &slice->step, &none, &buffers);
}

static void *run_slices(void *user)
{
    struct update_slice *slice = user;

    (void)pthread_barrier_wait(slice->barrier);
    for (uint64_t i = 0; i < slice->repeat; i++) {
        run_slice(slice);
    }
    return NULL;
}

/* Seconds of a call by so many threads at once. */
static double time_case(struct update_slice *slices, uint32_t threads, uint64_t repeat)
{
    pthread_t others[UPDATE_THREADS];
    pthread_barrier_t barrier;

    (void)pthread_barrier_init(&barrier, NULL, threads);
    for (uint32_t t = 0; t < threads; t++) {
        slices[t].barrier = &barrier;
        slices[t].repeat = repeat;
        if (t > 0 && pthread_create(&others[t], NULL, run_slices, &slices[t]) != 0) {
            fprintf(stderr, "kernels: no thread\n");
            exit(1);
        }
    }
    const double begin = now();
    (void)run_slices(&slices[0]);
    for (uint32_t t = 1; t < threads; t++) {
        (void)pthread_join(others[t], NULL);
    }
    const double seconds = (now() - begin) / (double)repeat;
    (void)pthread_barrier_destroy(&barrier);
    return seconds;
}

static void run_cases(struct update_case *cases, size_t case_count, uint64_t count,
                      uint32_t threads)
{
    struct update_slice slices[UPDATE_THREADS];

    for (uint32_t t = 0; t < threads; t++) {
        open_slice(&slices[t], count / threads / 16 * 16);
    }
    for (uint32_t round = 0; round < UPDATE_ROUNDS; round++) {
        for (size_t i = 0; i < case_count; i++) {
            double *best = &cases[i].best[threads - 1];
            for (uint32_t t = 0; t < threads; t++) {
                set_case(&slices[t], &cases[i]);
            }
            const double once = time_case(slices, threads, 1);
            const double seconds =
                time_case(slices, threads, 1 + (uint64_t)(UPDATE_SECONDS / once));
            *best = round == 0 || seconds < *best ? seconds : *best;
            for (uint32_t t = 0; t < threads; t++) {
                kelp_update_fini(&slices[t].update);
            }
        }
    }
    for (uint32_t t = 0; t < threads; t++) {
        free(slices[t].memory);
    }
}

/* Bytes that a call reads and writes for each element; those that are read because they are
 * written do not count. */
static double traffic(const struct update_case *of)
{
    const double slots = 8.0 * kelp_optimizer_slot_count(&of->job);

    switch (of->way) {
    case WAY_COPY:
        return 8.0;
    case WAY_SUM:
        return 12.0;
    case WAY_UPDATE:
        return 12.0 + slots;
    case WAY_APART:
        return 8.0 + 12.0 + 12.0 + slots;
    case WAY_FUSED:
        return 16.0 + slots;
    }
    return 0.0;
}

/* Traffic, and that of one thread as a share of memcpy's, of two as a share of d += s. */
static void print_case(const struct update_case *of, const struct update_case *copy,
                       const struct update_case *sum, uint64_t count)
{
    const double bytes = traffic(of) * (double)count;
    const double one = bytes / of->best[0], two = bytes / of->best[1];

    printf("%-20s %10llu %10.2f us %6.1f GB/s %5.2f of memcpy   2 threads %10.2f us %6.1f GB/s "
           "%5.2f of d += s\n",
           of->name, (unsigned long long)count, of->best[0] * 1e6, 1e-9 * one,
           one / (8.0 * (double)count / copy->best[0]), of->best[1] * 1e6, 1e-9 * two,
           two / (12.0 * (double)count / sum->best[1]));
}

static struct kelp_job update_job(enum kelp_optimizer_kind optimizer, double momentum)
{
    return (struct kelp_job){.train = {.optimizer = optimizer,
                                       .momentum = momentum,
                                       .lr = 1e-6,
                                       .beta1 = 0.9,
                                       .beta2 = 0.999,
                                       .alpha = 0.99,
                                       .rho = 0.9,
                                       .eps = 1e-8}};
}

static void bench_updates(void)
{
    static const uint64_t counts[] = {18624, 1u << 20, 16u << 20};
    const struct kelp_job sgd = update_job(KELP_OPTIMIZER_SGD, 0.0);
    const struct kelp_job momentum = update_job(KELP_OPTIMIZER_SGD, 0.9);
    const struct kelp_job adam = update_job(KELP_OPTIMIZER_ADAM, 0.0);
    struct update_case cases[] = {
        {.name = "memcpy", .way = WAY_COPY},
        {.name = "d += s", .way = WAY_SUM},
        {.name = "sgd", .way = WAY_UPDATE, .job = sgd},
        {.name = "momentum", .way = WAY_UPDATE, .job = momentum},
        {.name = "adam", .way = WAY_UPDATE, .job = adam},
        {.name = "adagrad", .way = WAY_UPDATE, .job = update_job(KELP_OPTIMIZER_ADAGRAD, 0.0)},
        {.name = "rmsprop", .way = WAY_UPDATE, .job = update_job(KELP_OPTIMIZER_RMSPROP, 0.0)},
        {.name = "adadelta", .way = WAY_UPDATE, .job = update_job(KELP_OPTIMIZER_ADADELTA, 0.0)},
        {.name = "sums, then sgd", .way = WAY_APART, .job = sgd},
        {.name = "sgd of sums", .way = WAY_FUSED, .job = sgd},
        {.name = "sums, then adam", .way = WAY_APART, .job = adam},
        {.name = "adam of sums", .way = WAY_FUSED, .job = adam},
    };

    for (size_t i = 0; i < KELP_ARRAY_COUNT(counts); i++) {
        for (uint32_t threads = 1; threads <= UPDATE_THREADS; threads++) {
            run_cases(cases, KELP_ARRAY_COUNT(cases), counts[i], threads);
        }
        for (size_t k = 0; k < KELP_ARRAY_COUNT(cases); k++) {
            print_case(&cases[k], &cases[0], &cases[1], counts[i]);
        }
    }
}

/* ---- models ---- */

struct training {
    struct kelp_model *model;
    const float *input, *target;
    uint32_t batch;
};

static void run_training(void *argument)
{
    struct training *training = argument;
    double sums[KELP_METRIC_SUM_COUNT];
    struct kelp_error error = {KELP_OK, ""};
    if (kelp_model_train(training->model,
                         &(struct kelp_model_piece){.input = training->input,
                                                    .target = training->target,
                                                    .count = training->batch,
                                                    .batch_total = training->batch},
                         sums, &error) != KELP_OK) {
        fail(&error);
    }
}

static void run_evaluation(void *argument)
{
    struct training *training = argument;
    double sums[KELP_METRIC_SUM_COUNT];
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_model_evaluation what = {
        .input = training->input, .target = training->target, .count = training->batch};
    if (kelp_model_evaluate(training->model, &what, sums, &error) != KELP_OK) {
        fail(&error);
    }
}

static void bench_model(const char *name, const struct kelp_job *job,
                        const struct kelp_sample_shape *shape, uint32_t batch)
{
    struct training training = {.batch = batch};
    struct kelp_plan plan = {.tensor_count = 0};
    struct kelp_error error = {KELP_OK, ""};
    if (kelp_model_create(job, shape, batch, &training.model, &error) != KELP_OK) {
        fail(&error);
    }
    const struct kelp_tensor *tensors = kelp_model_tensors(training.model, &plan.tensor_count);
    plan.tensors = malloc(plan.tensor_count * sizeof(*tensors));
    if (plan.tensors == NULL) {
        fail(&error);
    }
    memcpy(plan.tensors, tensors, plan.tensor_count * sizeof(*tensors));
    if (kelp_plan_lay_out(&plan, 4, &error) != KELP_OK) {
        fail(&error);
    }
    float *weights = floats(plan.flat_count), *gradient = floats(plan.flat_count);
    float *input = floats(kelp_sample_input_count(shape) * batch);
    float *target = floats(kelp_sample_target_count(shape) * batch);
    training.input = input;
    training.target = target;
    kelp_model_bind(training.model, &plan, weights, gradient);
    const double train = measure(run_training, &training);
    const double evaluate = measure(run_evaluation, &training);
    printf("%-38s %10.1f us a step %10.1f us evaluation\n", name, train * 1e6, evaluate * 1e6);
    kelp_model_destroy(training.model);
    kelp_plan_fini(&plan);
    free(weights);
    free(gradient);
    free(input);
    free(target);
}

static void bench_models(uint32_t threads)
{
    struct kelp_job job = {.model = {.kind = KELP_MODEL_DLINEAR, .kernel_size = 25},
                           .cluster = {.lane_threads = threads}};
    struct kelp_sample_shape shape = {.input_count = 1,
                                      .inputs[0] = {.rank = 2, .dims = {96, 1}},
                                      .target = {.rank = 2, .dims = {96, 1}}};
    bench_model("dlinear 96 to 96, 1 channel, batch 32", &job, &shape, 32);
    shape.inputs[0].dims[0] = 336;
    shape.inputs[0].dims[1] = shape.target.dims[1] = 7;
    bench_model("dlinear 336 to 96, 7 channels, batch 32", &job, &shape, 32);
    job.model.individual = true;
    bench_model("the same, a map per channel", &job, &shape, 32);
    job.model.kind = KELP_MODEL_MLP;
    job.model.hidden_count = 2;
    job.model.hidden[0] = job.model.hidden[1] = 256;
    shape = (struct kelp_sample_shape){.input_count = 1,
                                       .inputs[0] = {.rank = 1, .dims = {96}},
                                       .target = {.rank = 1, .dims = {96}}};
    bench_model("mlp 96, 256, 256, 96, batch 32", &job, &shape, 32);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "optimizers") == 0) {
        bench_updates();
        return 0;
    }
    char *end = NULL;
    const unsigned long threads = argc > 1 ? strtoul(argv[1], &end, 10) : 1;
    struct kelp_device *device = NULL;
    struct kelp_stream *stream = NULL;
    struct kelp_error error = {KELP_OK, ""};
    char kind[KELP_COMPUTE_KIND_SIZE];
    uint64_t answer = 0;
    if (argc > 2 || (end != NULL && *end != '\0') || threads > 1024) {
        fprintf(stderr, "usage: kernels [THREADS | optimizers]\n");
        return 2;
    }
    if (kelp_device_cpu_create((uint32_t)threads, &device, &error) != KELP_OK ||
        device->table->stream_create(device, &stream, &error) != KELP_OK ||
        kelp_compute_kind(device, kind, &answer, &error) != KELP_OK) {
        fail(&error);
    }
    printf("%s, known answer %016llx\n\n", kind, (unsigned long long)answer);
    bench_product(stream, 32, 96, 96, false, true);
    bench_product(stream, 96, 96, 32, true, false);
    bench_product(stream, 224, 96, 336, false, true);
    bench_product(stream, 96, 336, 224, true, false);
    bench_product(stream, 1024, 1024, 1024, false, false);
    printf("\n");
    bench_convolutions(stream);
    printf("\n");
    bench_average(stream, 32, 96, false);
    bench_average(stream, 32, 96, true);
    bench_average(stream, 224, 336, false);
    bench_loss(stream, 32, 96);
    printf("\n");
    bench_updates();
    printf("\n");
    bench_models((uint32_t)threads);
    device->table->stream_destroy(stream);
    device->table->destroy(device);
    return 0;
}
