/*
 * A worker of one's own: a multi-layer perceptron with a forward and a backward pass of its own,
 * which takes part in a job through libkelp-worker.so. Matrix products are OpenBLAS's, everything
 * else is here. It is kelp-worker's model.kind mlp with train.loss mse on data.kind binary,
 * operation for operation: the weights have the same bits.
 *
 *     make
 *     ./mlp --write-rows rows.bin
 *     kelp train mlp.yaml --worker-program ./mlp
 */
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kelp/worker.h>

#define LAYERS_MAX 16
#define TEXT_MAX   4096

struct layer {
    uint64_t in, out;
    uint64_t weight, bias; /* where they begin in weights and gradient */
    float *output;         /* [block][out], behind the ReLU but for the last layer */
    float *slope;          /* [block][out], of the loss by output */
};

struct program {
    struct kelp_worker *worker;
    float *rows; /* [row_count][inputs + outputs] */
    uint64_t row_count;
    uint64_t counts[3]; /* of rows: to train, to validate and to test with, in this order */
    uint64_t inputs, outputs;
    struct layer layers[LAYERS_MAX];
    uint32_t layer_count;
    uint64_t block; /* samples at once at most */
    float *input;   /* [block][inputs] */
    float *target;  /* [block][outputs] */
    uint64_t *indices;
};

static int fail(const char *what)
{
    fprintf(stderr, "mlp: %s\n", what);
    return KELP_WORKER_INVALID;
}

static int fail_as_told(int result)
{
    fprintf(stderr, "mlp: %s\n", kelp_worker_error());
    return result;
}

static int no_memory(void)
{
    fprintf(stderr, "mlp: out of memory\n");
    return KELP_WORKER_FAILED;
}

/* ---- the job --------------------------------------------------------------------------------- */

/* "[16, 16]", or "16", as numbers. Returns how many; 0: none, or too many. */
static uint32_t numbers_of(const struct kelp_worker *worker, const char *key, double *numbers,
                           uint32_t most)
{
    char text[TEXT_MAX];
    uint32_t count = 0;

    if (kelp_worker_setting(worker, key, text, sizeof(text)) != KELP_WORKER_OK) {
        return 0;
    }
    for (char *at = text; *at != '\0';) {
        char *end;
        const double number = strtod(at, &end);
        if (end == at) {
            at++; /* a bracket, a comma or a blank */
            continue;
        }
        if (count == most) {
            return 0;
        }
        numbers[count++] = number;
        at = end;
    }
    return count;
}

static int is_set_to(const struct kelp_worker *worker, const char *key, const char *expected)
{
    char text[TEXT_MAX];

    return kelp_worker_setting(worker, key, text, sizeof(text)) == KELP_WORKER_OK &&
           strcmp(text, expected) == 0;
}

/* What is not computed here is refused, not left out. */
static int check_job(const struct kelp_worker *worker)
{
    static const char *const needed[][2] = {
        {"model.kind", "mlp"},         {"train.loss", "mse"},      {"data.kind", "binary"},
        {"data.dtype", "float32"},     {"data.normalize", "none"}, {"data.limit", "0"},
        {"data.val_path", ""},         {"data.test_path", ""},     {"data.test_every", "0"},
        {"data.random_split", "false"}};
    char text[128];

    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        if (!is_set_to(worker, needed[i][0], needed[i][1])) {
            snprintf(text, sizeof(text), "the job must have %s: %s", needed[i][0], needed[i][1]);
            return fail(text);
        }
    }
    return KELP_WORKER_OK;
}

static int read_layers(struct program *program)
{
    double widths[LAYERS_MAX] = {0}, in = 0, out = 0;

    if (numbers_of(program->worker, "data.input_shape", &in, 1) != 1 ||
        numbers_of(program->worker, "data.target_shape", &out, 1) != 1) {
        return fail("data.input_shape and data.target_shape must have one dimension");
    }
    const uint32_t hidden = numbers_of(program->worker, "model.hidden", widths, LAYERS_MAX - 1);
    program->inputs = (uint64_t)in;
    program->outputs = (uint64_t)out;
    widths[hidden] = out;
    program->layer_count = hidden + 1;
    for (uint32_t i = 0; i <= hidden; i++) {
        program->layers[i].in = i == 0 ? program->inputs : program->layers[i - 1].out;
        program->layers[i].out = (uint64_t)widths[i];
    }
    return KELP_WORKER_OK;
}

/* The first share of the rows is there to train, and so on. */
static void split_rows(struct program *program)
{
    double shares[3] = {0}, share = 0;
    uint64_t border = 0;

    (void)numbers_of(program->worker, "data.fractions", shares, 3);
    for (int i = 0; i < 3; i++) {
        share += shares[i];
        const uint64_t end = (uint64_t)floor((double)program->row_count * share + 0.5);
        program->counts[i] = end - border;
        border = end;
    }
}

static int read_rows(struct program *program)
{
    const size_t row_bytes = (size_t)(program->inputs + program->outputs) * sizeof(float);
    char path[TEXT_MAX];

    if (kelp_worker_setting(program->worker, "data.path", path, sizeof(path)) != KELP_WORKER_OK) {
        return fail_as_told(KELP_WORKER_INVALID);
    }
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0 || ftell(file) <= 0) {
        if (file) {
            fclose(file);
        }
        return fail("data.path cannot be read");
    }
    program->row_count = (uint64_t)ftell(file) / row_bytes;
    rewind(file);
    program->rows = malloc(program->row_count * row_bytes + 1);
    const int whole = program->rows && fread(program->rows, row_bytes, program->row_count, file) ==
                                           program->row_count;
    fclose(file);
    split_rows(program);
    return whole ? KELP_WORKER_OK : fail("data.path cannot be read");
}

/* ---- the plan -------------------------------------------------------------------------------- */

static int plan_tensor(struct program *program, uint32_t layer, const char *what, uint32_t rank)
{
    const struct layer *of = &program->layers[layer];
    const uint64_t shape[2] = {of->out, of->in};
    char name[32];

    snprintf(name, sizeof(name), "fc%u.%s", (unsigned)layer + 1, what);
    const struct kelp_worker_tensor tensor = {.size = sizeof(tensor),
                                              .name = name,
                                              .shape = shape,
                                              .rank = rank,
                                              .init = KELP_WORKER_INIT_UNIFORM,
                                              .init_a = (float)(1.0 / sqrt((double)of->in))};
    return kelp_worker_plan_tensor(program->worker, &tensor);
}

/* Which OpenBLAS this is, and a product that it made. */
static int plan_compute(struct program *program)
{
    enum { SIZE = 24 };
    float a[SIZE * SIZE], product[SIZE * SIZE];
    char kind[128];

    for (int i = 0; i < SIZE * SIZE; i++) {
        a[i] = 1.0f / (float)(i + 1);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, SIZE, SIZE, SIZE, 1.0f, a, SIZE, a, SIZE,
                0.0f, product, SIZE);
    snprintf(kind, sizeof(kind), "mlp.c 1, %.100s", openblas_get_config());
    return kelp_worker_plan_compute(program->worker, kind,
                                    kelp_worker_hash(product, sizeof(product)));
}

static int join(struct program *program)
{
    struct kelp_worker *worker = program->worker;
    const uint64_t bytes =
        program->row_count * (program->inputs + program->outputs) * sizeof(float);

    int result = kelp_worker_plan_data(worker, program->counts[0], program->counts[1],
                                       program->counts[2], kelp_worker_hash(program->rows, bytes));
    if (result == KELP_WORKER_OK) {
        result = plan_compute(program);
    }
    for (uint32_t i = 0; result == KELP_WORKER_OK && i < program->layer_count; i++) {
        result = plan_tensor(program, i, "weight", 2);
        if (result == KELP_WORKER_OK) {
            result = plan_tensor(program, i, "bias", 1);
        }
    }
    if (result == KELP_WORKER_OK) {
        result = kelp_worker_plan_block(worker, program->block);
    }
    if (result == KELP_WORKER_OK) {
        result = kelp_worker_join(worker);
    }
    for (uint32_t i = 0; result == KELP_WORKER_OK && i < program->layer_count; i++) {
        program->layers[i].weight = kelp_worker_offset(worker, 2 * i);
        program->layers[i].bias = kelp_worker_offset(worker, 2 * i + 1);
    }
    return result == KELP_WORKER_OK ? result : fail_as_told(result);
}

static int make_room(struct program *program)
{
    double batch = 0;

    /* A piece of a lane is no larger than a batch. */
    (void)numbers_of(program->worker, "train.batch_size", &batch, 1);
    program->block = batch > 256 ? (uint64_t)batch : 256;
    program->input = calloc(program->block * program->inputs, sizeof(float));
    program->target = calloc(program->block * program->outputs, sizeof(float));
    program->indices = calloc(program->block, sizeof(*program->indices));
    int there = program->input && program->target && program->indices;
    for (uint32_t i = 0; i < program->layer_count; i++) {
        struct layer *layer = &program->layers[i];
        layer->output = calloc(program->block * layer->out, sizeof(float));
        layer->slope = calloc(program->block * layer->out, sizeof(float));
        there = there && layer->output && layer->slope;
    }
    return there ? KELP_WORKER_OK : no_memory();
}

/* ---- a piece --------------------------------------------------------------------------------- */

static int read_piece(struct program *program, const struct kelp_worker_lane *lane, uint64_t first,
                      uint64_t count)
{
    const uint64_t width = program->inputs + program->outputs;
    uint64_t part = 0;

    for (uint32_t kind = KELP_WORKER_TRAIN; kind < lane->kind; kind++) {
        part += program->counts[kind - KELP_WORKER_TRAIN];
    }
    const int result = kelp_worker_indices(program->worker, first, count, program->indices);
    for (uint64_t i = 0; result == KELP_WORKER_OK && i < count; i++) {
        const float *row = program->rows + (part + program->indices[i]) * width;
        memcpy(program->input + i * program->inputs, row, program->inputs * sizeof(float));
        memcpy(program->target + i * program->outputs, row + program->inputs,
               program->outputs * sizeof(float));
    }
    return result;
}

/* output = relu(input W^T + b); the last layer has no ReLU. */
static void forward(struct program *program, const float *weights, uint64_t count)
{
    const float *input = program->input;

    for (uint32_t n = 0; n < program->layer_count; n++) {
        const struct layer *layer = &program->layers[n];
        const int last = n + 1 == program->layer_count;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)count, (int)layer->out,
                    (int)layer->in, 1.0f, input, (int)layer->in, weights + layer->weight,
                    (int)layer->in, 0.0f, layer->output, (int)layer->out);
        for (uint64_t i = 0; i < count * layer->out; i++) {
            const float y = layer->output[i] + weights[layer->bias + i % layer->out];
            layer->output[i] = !last && y <= 0.0f ? 0.0f : y;
        }
        input = layer->output;
    }
}

/* The sums of the loss, and its slope by the outputs: of the mean over the step's samples. */
static void compare(struct program *program, const struct kelp_worker_lane *lane, uint64_t count)
{
    struct layer *last = &program->layers[program->layer_count - 1];
    const double elements = (double)program->outputs;
    const float scale = (float)((double)(float)(1.0 / (double)lane->step_samples) / elements);
    double loss = 0, squared = 0, absolute = 0;

    for (uint64_t s = 0; s < count; s++) {
        double of_sample = 0;
        for (uint64_t i = s * program->outputs; i < (s + 1) * program->outputs; i++) {
            const float d = last->output[i] - program->target[i];
            last->slope[i] = scale * (2.0f * d);
            of_sample += (double)d * (double)d;
            absolute += fabs((double)d);
        }
        loss += of_sample / elements;
        squared += of_sample;
    }
    kelp_worker_add(program->worker, KELP_WORKER_SUM_LOSS, loss);
    if (lane->kind != KELP_WORKER_TRAIN) {
        kelp_worker_add(program->worker, KELP_WORKER_SUM_SQUARED, squared);
        kelp_worker_add(program->worker, KELP_WORKER_SUM_ABSOLUTE, absolute);
        kelp_worker_add(program->worker, KELP_WORKER_SUM_ELEMENTS, elements * (double)count);
    }
}

/* Into the gradient, or, of all pieces of a lane but the first, onto it. */
static void backward(struct program *program, const struct kelp_worker_lane *lane, uint64_t count,
                     int first)
{
    for (uint32_t n = program->layer_count; n-- > 0;) {
        const struct layer *layer = &program->layers[n];
        const float *input = n == 0 ? program->input : program->layers[n - 1].output;
        float *bias = lane->gradient + layer->bias;

        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)layer->out, (int)layer->in,
                    (int)count, 1.0f, layer->slope, (int)layer->out, input, (int)layer->in,
                    first ? 0.0f : 1.0f, lane->gradient + layer->weight, (int)layer->in);
        for (uint64_t c = 0; c < layer->out; c++) {
            float sum = 0;
            for (uint64_t r = 0; r < count; r++) {
                sum += layer->slope[r * layer->out + c];
            }
            bias[c] = first ? sum : bias[c] + sum;
        }
        if (n > 0) {
            float *slope = program->layers[n - 1].slope;
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)count, (int)layer->in,
                        (int)layer->out, 1.0f, layer->slope, (int)layer->out,
                        lane->weights + layer->weight, (int)layer->in, 0.0f, slope, (int)layer->in);
            for (uint64_t i = 0; i < count * layer->in; i++) {
                slope[i] = input[i] > 0.0f ? slope[i] : 0.0f;
            }
        }
    }
}

/* ---- the worker ------------------------------------------------------------------------------ */

static int compute(struct program *program, const struct kelp_worker_lane *lane)
{
    uint64_t count;

    for (uint64_t done = 0; (count = kelp_worker_piece(program->worker, done)) > 0; done += count) {
        const int result = read_piece(program, lane, done, count);
        if (result != KELP_WORKER_OK) {
            return result;
        }
        forward(program, lane->weights, count);
        compare(program, lane, count);
        if (lane->kind == KELP_WORKER_TRAIN) {
            backward(program, lane, count, done == 0);
        }
    }
    return kelp_worker_submit(program->worker);
}

static int work(struct program *program)
{
    struct kelp_worker_lane lane = {.size = sizeof(lane)};
    int result;

    while ((result = kelp_worker_next_lane(program->worker, &lane)) == KELP_WORKER_OK) {
        result = compute(program, &lane);
        if (result != KELP_WORKER_OK) {
            break;
        }
    }
    return result >= 0 ? result : fail_as_told(result);
}

static int run(struct program *program)
{
    double threads = 1;

    int result = check_job(program->worker);
    if (result == KELP_WORKER_OK) {
        result = read_layers(program);
    }
    if (result == KELP_WORKER_OK) {
        result = read_rows(program);
    }
    if (result == KELP_WORKER_OK) {
        result = make_room(program);
    }
    if (result == KELP_WORKER_OK) {
        (void)numbers_of(program->worker, "cluster.lane_threads", &threads, 1);
        openblas_set_num_threads((int)threads);
        result = join(program);
    }
    return result == KELP_WORKER_OK ? work(program) : result;
}

static void free_program(struct program *program)
{
    for (uint32_t i = 0; i < program->layer_count; i++) {
        free(program->layers[i].output);
        free(program->layers[i].slope);
    }
    free(program->input);
    free(program->target);
    free(program->indices);
    free(program->rows);
}

/* A thousand rows of eight numbers and two that follow from them. */
static int write_rows(const char *path)
{
    FILE *file = fopen(path, "wb");
    uint32_t state = 1;
    int whole = file != NULL;

    for (int row = 0; whole && row < 1000; row++) {
        float values[10];
        for (int i = 0; i < 8; i++) {
            state = state * 1664525u + 1013904223u;
            values[i] = (float)(int32_t)state * 0x1p-31f;
        }
        values[8] = values[0] * values[1] + values[2];
        values[9] = fabsf(values[3]) - values[4];
        whole = fwrite(values, sizeof(values), 1, file) == 1;
    }
    if (file && fclose(file) != 0) {
        whole = 0;
    }
    return whole ? EXIT_SUCCESS : (perror(path), EXIT_FAILURE);
}

int main(int argc, char **argv)
{
    struct kelp_worker_options options = {.size = sizeof(options)};
    struct program program = {.worker = NULL};

    if (argc == 3 && strcmp(argv[1], "--write-rows") == 0) {
        return write_rows(argv[2]);
    }
    int result = kelp_worker_global_init();
    if (result == KELP_WORKER_OK) {
        result = kelp_worker_options_read(&options, &argc, argv);
    }
    if (result == KELP_WORKER_OK && argc > 1) {
        return kelp_worker_exit_status(fail("it takes the options of a worker alone"));
    }
    if (result == KELP_WORKER_OK) {
        result = kelp_worker_open(&options, &program.worker);
    }
    result = result == KELP_WORKER_OK ? run(&program) : fail_as_told(result);
    kelp_worker_close(program.worker);
    free_program(&program);
    return kelp_worker_exit_status(result);
}
