/* Fixtures of single operations: "<case>/input/<i>", "output", "grad_output", "grad_input/<i>". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/golden/golden_single.h"

#define INPUTS_MAX 3

/* A case in memory; Kelp computes result and gradient. */
struct operation {
    struct kelp_golden_report *report;
    struct kelp_stream *stream;
    const char *name;
    const struct kelp_safetensors_tensor *shape[INPUTS_MAX], *output_shape;
    uint32_t inputs;
    float *input[INPUTS_MAX], *gradient[INPUTS_MAX], *result, *grad_output;
    uint64_t input_count[INPUTS_MAX], output_count;
};

static bool operation_read(struct operation *op)
{
    char name[KELP_GOLDEN_NAME_SIZE];
    const struct kelp_golden_file *file = op->report->file;
    for (uint32_t i = 0; i < INPUTS_MAX; i++) {
        kelp_golden_print(name, "%.120s/input/%u", op->name, i);
        op->shape[i] = kelp_safetensors_find(file->tensors, name);
        if (op->shape[i] == NULL) {
            break;
        }
        op->input[i] = kelp_golden_floats(file, name, &op->input_count[i]);
        op->gradient[i] = kelp_golden_allocate(op->input_count[i], sizeof(float));
        op->inputs++;
    }
    kelp_golden_print(name, "%.120s/output", op->name);
    op->output_shape = kelp_safetensors_find(file->tensors, name);
    kelp_golden_print(name, "%.120s/grad_output", op->name);
    op->grad_output = kelp_golden_floats(file, name, &op->output_count);
    op->result = kelp_golden_allocate(op->output_count, sizeof(float));
    return op->inputs > 0 && op->input[0] != NULL && op->output_shape != NULL &&
           op->grad_output != NULL && op->output_shape->elem_count == op->output_count;
}

static void operation_fini(struct operation *op)
{
    for (uint32_t i = 0; i < INPUTS_MAX; i++) {
        free(op->input[i]);
        free(op->gradient[i]);
    }
    free(op->result);
    free(op->grad_output);
}

static void operation_compare(const struct operation *op)
{
    char name[KELP_GOLDEN_NAME_SIZE];
    kelp_golden_print(name, "%.120s/output", op->name);
    kelp_golden_check(op->report, name, op->result, op->output_count, &kelp_golden_values);
    for (uint32_t i = 0; i < op->inputs; i++) {
        kelp_golden_print(name, "%.120s/grad_input/%u", op->name, i);
        kelp_golden_check(op->report, name, op->gradient[i], op->input_count[i],
                          &kelp_golden_values);
    }
    if (op->stream->table->wait(op->stream, NULL) != KELP_OK) {
        kelp_golden_fail(op->report, "the stream has failed");
    }
}

static uint32_t last_dimension(const struct kelp_safetensors_tensor *shape)
{
    return shape->rank > 0 ? (uint32_t)shape->shape[shape->rank - 1] : 1;
}

static bool run_unary(struct operation *op, enum kelp_unary_kind kind)
{
    const struct kelp_unary unary = {
        .kind = kind, .x = op->input[0], .y = op->result, .count = op->output_count};
    const struct kelp_unary_gradient gradient = {.kind = kind,
                                                 .x = op->input[0],
                                                 .y = op->result,
                                                 .dy = op->grad_output,
                                                 .dx = op->gradient[0],
                                                 .count = op->output_count};
    if (op->input_count[0] != op->output_count) {
        return false;
    }
    op->stream->table->unary(op->stream, &unary);
    op->stream->table->unary_gradient(op->stream, &gradient);
    return true;
}

static bool run_relu(struct operation *op)
{
    return run_unary(op, KELP_UNARY_RELU);
}

static bool run_gelu(struct operation *op)
{
    return run_unary(op, KELP_UNARY_GELU);
}

static bool run_elu(struct operation *op)
{
    return run_unary(op, KELP_UNARY_ELU);
}

static bool run_sigmoid(struct operation *op)
{
    return run_unary(op, KELP_UNARY_SIGMOID);
}

static bool run_tanh(struct operation *op)
{
    return run_unary(op, KELP_UNARY_TANH);
}

static bool run_softmax(struct operation *op)
{
    const uint32_t columns = last_dimension(op->shape[0]);
    const struct kelp_softmax softmax = {.x = op->input[0],
                                         .y = op->result,
                                         .rows = op->output_count / columns,
                                         .columns = columns,
                                         .logarithm = strstr(op->name, "log") != NULL,
                                         .dy = op->grad_output,
                                         .dx = op->gradient[0]};
    if (op->input_count[0] != op->output_count) {
        return false;
    }
    op->stream->table->softmax(op->stream, &softmax);
    op->stream->table->softmax_gradient(op->stream, &softmax);
    return true;
}

/* y [rows, out] = x [rows, in] W^T + b */
static bool run_linear(struct operation *op)
{
    if (op->inputs != 3) {
        return false;
    }
    const struct kelp_device_table *table = op->stream->table;
    const uint32_t out = (uint32_t)op->input_count[2], in = (uint32_t)op->input_count[1] / out;
    const uint32_t rows = (uint32_t)op->input_count[0] / in;
    const struct kelp_matmul forward = {.transpose_b = true,
                                        .m = rows,
                                        .n = out,
                                        .k = in,
                                        .a = op->input[0],
                                        .lda = in,
                                        .b = op->input[1],
                                        .ldb = in,
                                        .c = op->result,
                                        .ldc = out};
    const struct kelp_matmul input_gradient = {.m = rows,
                                               .n = in,
                                               .k = out,
                                               .a = op->grad_output,
                                               .lda = out,
                                               .b = op->input[1],
                                               .ldb = in,
                                               .c = op->gradient[0],
                                               .ldc = in};
    const struct kelp_matmul weight_gradient = {.transpose_a = true,
                                                .m = out,
                                                .n = in,
                                                .k = rows,
                                                .a = op->grad_output,
                                                .lda = out,
                                                .b = op->input[0],
                                                .ldb = in,
                                                .c = op->gradient[1],
                                                .ldc = in};
    const struct kelp_bias bias = {
        .matrix = op->result, .ld = out, .rows = rows, .columns = out, .bias = op->input[2]};
    const struct kelp_bias_gradient bias_gradient = {.matrix = op->grad_output,
                                                     .ld = out,
                                                     .rows = rows,
                                                     .columns = out,
                                                     .bias = op->gradient[2]};
    table->matmul(op->stream, &forward);
    table->bias_add(op->stream, &bias);
    table->matmul(op->stream, &input_gradient);
    table->matmul(op->stream, &weight_gradient);
    table->bias_gradient(op->stream, &bias_gradient);
    return true;
}

/* x [samples, channels] or [samples, channels, height, width], in training. */
static bool run_batch_norm(struct operation *op)
{
    const struct kelp_safetensors_tensor *x = op->shape[0];
    if (op->inputs != 3 || x->rank < 2 || op->input_count[0] != op->output_count) {
        return false;
    }
    const uint32_t samples = (uint32_t)x->shape[0], channels = (uint32_t)x->shape[1];
    const float one = 1.0f;
    float *statistics = kelp_golden_allocate(2ull * channels, sizeof(float));
    const struct kelp_batch_norm norm = {.x = op->input[0],
                                         .weight = op->input[1],
                                         .bias = op->input[2],
                                         .y = op->result,
                                         .samples = samples,
                                         .channels = channels,
                                         .inner = op->output_count / samples / channels,
                                         .eps = 1e-5f,
                                         .training = true,
                                         .mean = statistics,
                                         .rstd = statistics + channels,
                                         .statistic_scale = &one,
                                         .dy = op->grad_output,
                                         .dx = op->gradient[0],
                                         .dweight = op->gradient[1],
                                         .dbias = op->gradient[2]};
    op->stream->table->batch_norm(op->stream, &norm);
    op->stream->table->batch_norm_gradient(op->stream, &norm);
    free(statistics);
    return true;
}

/* The number after "_<letter>" in the case's name ("_s2", "_p1"). */
static uint32_t setting(const char *case_name, const char *word, uint32_t otherwise)
{
    const char *at = strstr(case_name, word);
    unsigned value = 0;
    return at != NULL && sscanf(at + strlen(word), "%u", &value) == 1 ? value : otherwise;
}

/* The window over x [samples, channels, height, width], or over [samples, channels, width] as
 * images of one row; a stride of 0 means the kernel's size. */
static bool window_of(const struct operation *op, const uint32_t kernel[2], uint32_t stride,
                      struct kelp_window *ret)
{
    const struct kelp_safetensors_tensor *x = op->shape[0], *y = op->output_shape;
    if (x->rank < 3 || x->rank != y->rank) {
        return false;
    }
    *ret = (struct kelp_window){.channels = (uint32_t)x->shape[1], .input = {1, 1}};
    for (uint32_t side = 4 - x->rank; side < 2; side++) {
        const uint32_t dimension = x->rank - 2 + side;
        ret->input[side] = (uint32_t)x->shape[dimension];
    }
    for (uint32_t side = 0; side < 2; side++) {
        ret->kernel[side] = kernel[side];
        ret->stride[side] = stride != 0 ? stride : kernel[side];
        ret->padding[side] = ret->input[side] > 1 ? setting(op->name, "_p", 0) : 0;
        ret->output[side] =
            (ret->input[side] + 2 * ret->padding[side] - kernel[side]) / ret->stride[side] + 1;
    }
    return true;
}

/* "<word>_3x3" or "<word>_25": sides of the kernel. */
static bool kernel_of(const struct operation *op, uint32_t ret[2])
{
    const char *at = strchr(op->name, '_');
    unsigned height = 0, width = 0;
    const int found = at != NULL ? sscanf(at, "_%ux%u", &height, &width) : 0;
    ret[0] = found == 2 ? height : 1;
    ret[1] = found == 2 ? width : height;
    return found > 0;
}

static bool run_conv2d(struct operation *op)
{
    const struct kelp_device_table *table = op->stream->table;
    const struct kelp_safetensors_tensor *weight = op->shape[1];
    if (op->inputs < 2 || weight->rank != 4 || op->shape[0]->rank != 4) {
        return false;
    }
    const uint32_t kernel[2] = {(uint32_t)weight->shape[2], (uint32_t)weight->shape[3]};
    const uint32_t samples = (uint32_t)op->shape[0]->shape[0];
    struct kelp_conv2d_shape shape = {.channels_out = (uint32_t)weight->shape[0],
                                      .samples_max = samples};
    struct kelp_conv2d *conv = NULL;
    if (!window_of(op, kernel, setting(op->name, "_s", 1), &shape.window)) {
        return false;
    }
    shape.groups = shape.window.channels / (uint32_t)weight->shape[1];
    if (table->conv2d_create(op->stream->device, &shape, &conv, NULL) != KELP_OK) {
        return false;
    }
    float *workspace = kelp_golden_allocate(table->conv2d_workspace(conv), sizeof(float));
    const struct kelp_conv2d_run run = {.conv = conv,
                                        .samples = samples,
                                        .x = op->input[0],
                                        .weight = op->input[1],
                                        .bias = op->inputs > 2 ? op->input[2] : NULL,
                                        .y = op->result,
                                        .workspace = workspace,
                                        .dy = op->grad_output,
                                        .dx = op->gradient[0],
                                        .dweight = op->gradient[1],
                                        .dbias = op->inputs > 2 ? op->gradient[2] : NULL};
    table->conv2d(op->stream, &run);
    table->conv2d_gradient(op->stream, &run);
    free(workspace);
    table->conv2d_destroy(conv);
    return true;
}

static bool run_max_pool(struct operation *op)
{
    uint32_t kernel[2];
    struct kelp_max_pool pool = {.x = op->input[0],
                                 .y = op->result,
                                 .dy = op->grad_output,
                                 .dx = op->gradient[0],
                                 .samples = (uint32_t)op->shape[0]->shape[0]};
    if (!kernel_of(op, kernel) ||
        !window_of(op, kernel, setting(op->name, "_s", 0), &pool.window)) {
        return false;
    }
    pool.chosen = kelp_golden_allocate(op->output_count, sizeof(*pool.chosen));
    op->stream->table->max_pool(op->stream, &pool);
    op->stream->table->max_pool_gradient(op->stream, &pool);
    free(pool.chosen);
    return true;
}

static bool average_pool(struct operation *op, const uint32_t kernel[2], uint32_t stride)
{
    struct kelp_average_pool pool = {.x = op->input[0],
                                     .y = op->result,
                                     .dy = op->grad_output,
                                     .dx = op->gradient[0],
                                     .samples = (uint32_t)op->shape[0]->shape[0]};
    if (!window_of(op, kernel, stride, &pool.window)) {
        return false;
    }
    op->stream->table->average_pool(op->stream, &pool);
    op->stream->table->average_pool_gradient(op->stream, &pool);
    return true;
}

static bool run_average_pool(struct operation *op)
{
    uint32_t kernel[2];
    return kernel_of(op, kernel) && average_pool(op, kernel, setting(op->name, "_s", 0));
}

/* Pools to one value: the window covers the whole image. */
static bool run_global_average(struct operation *op)
{
    const struct kelp_safetensors_tensor *x = op->shape[0];
    const uint32_t kernel[2] = {x->rank > 3 ? (uint32_t)x->shape[2] : 1, last_dimension(x)};
    return average_pool(op, kernel, 1);
}

static const struct {
    const char *prefix; /* of the case's name */
    bool (*run)(struct operation *op);
} operations[] = {
    {"relu", run_relu},
    {"gelu", run_gelu},
    {"elu", run_elu},
    {"sigmoid", run_sigmoid},
    {"tanh", run_tanh},
    {"softmax", run_softmax},
    {"log_softmax", run_softmax},
    {"linear", run_linear},
    {"batchnorm", run_batch_norm},
    {"conv2d", run_conv2d},
    {"maxpool", run_max_pool},
    {"avgpool", run_average_pool},
    {"adaptive_avgpool_1", run_global_average},
};

void kelp_golden_check_operation(struct kelp_golden_report *report, struct kelp_stream *stream,
                                 const char *case_name)
{
    struct operation op = {.report = report, .stream = stream, .name = case_name};
    bool done = false;
    kelp_golden_case_begin(report, case_name);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(operations) && !done; i++) {
        if (strncmp(case_name, operations[i].prefix, strlen(operations[i].prefix)) == 0) {
            done = true;
            if (operation_read(&op) && operations[i].run(&op)) {
                operation_compare(&op);
            } else {
                kelp_golden_fail(report, "its tensors do not fit the operation");
            }
            operation_fini(&op);
        }
    }
    if (!done) {
        kelp_golden_fail(report, "no such operator");
    }
    kelp_golden_case_end(report, "");
}
