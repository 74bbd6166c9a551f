/*
 * The known-answer computation: fixed operands from integer arithmetic, every operator on awkward
 * sizes, and one digest over the results.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/compute_kind_internal.h"

/* A multiplicative hash of the index. */
kelp_status kelp__compute_kind_answer_operand(struct answer *answer, float *to, uint32_t use,
                                              struct kelp_error *reterr)
{
    float *values = answer->host;
    for (uint32_t i = 0; i < MATRIX_COUNT; i++) {
        uint32_t bits = (i + 1) * 2654435761u + use * 40503u;
        bits ^= bits >> 15;
        bits *= 2246822519u;
        bits ^= bits >> 13;
        values[i] = (float)(int32_t)bits * 0x1p-31f;
    }
    answer->stream->table->copy_in(answer->stream, to, values, MATRIX_COUNT * sizeof(*values));
    return answer->stream->table->wait(answer->stream,
                                       reterr); /* for `host`, which is used again */
}

/* Each step maps different words, and different hashes before it, to different hashes. */
static uint64_t hash_words(uint64_t hash, const uint32_t *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

kelp_status kelp__compute_kind_answer_digest(struct answer *answer, const void *from, size_t bytes,
                                             struct kelp_error *reterr)
{
    answer->stream->table->copy_out(answer->stream, answer->host, from, bytes);
    const kelp_status status = answer->stream->table->wait(answer->stream, reterr);
    if (status == KELP_OK) {
        answer->hash = hash_words(answer->hash, answer->host, bytes / sizeof(uint32_t));
    }
    return status;
}

static kelp_status matmuls(struct answer *answer, struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < 8; i++) {
        const bool transpose_a = (i & 1) != 0, transpose_b = (i & 2) != 0;
        const struct kelp_matmul matmul = {
            .transpose_a = transpose_a,
            .transpose_b = transpose_b,
            .m = ROWS,
            .n = COLUMNS,
            .k = DEPTH,
            .a = answer->a,
            .lda = transpose_a ? ROWS : DEPTH,
            .b = answer->b,
            .ldb = transpose_b ? DEPTH : COLUMNS,
            .c = answer->c,
            .ldc = COLUMNS,
            .write = i < 4 ? KELP_OVERWRITE : KELP_ACCUMULATE,
        };
        answer->stream->table->matmul(answer->stream, &matmul);
        const kelp_status status = kelp__compute_kind_answer_digest(
            answer, answer->c, (size_t)ROWS * COLUMNS * sizeof(float), reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

static kelp_status elementwise(struct answer *answer, struct kelp_error *reterr)
{
    struct kelp_stream *stream = answer->stream;
    const size_t count = (size_t)ROWS * COLUMNS;
    float *a = answer->a, *b = answer->b, *c = answer->c;
    const struct kelp_bias bias = {
        .matrix = c, .ld = COLUMNS, .rows = ROWS, .columns = COLUMNS, .bias = b};
    const struct kelp_bias_gradient bias_gradient = {
        .matrix = c, .ld = COLUMNS, .rows = ROWS, .columns = COLUMNS, .bias = b};
    const struct kelp_unary relu = {.kind = KELP_UNARY_RELU, .x = c, .y = a, .count = count};
    const struct kelp_unary_gradient relu_gradient = {
        .kind = KELP_UNARY_RELU, .y = a, .dy = c, .dx = c, .count = count};
    const struct kelp_moving_average average = {.x = c,
                                                .y = b,
                                                .rows = ROWS,
                                                .length = COLUMNS,
                                                .kernel_size = KERNEL,
                                                .workspace = answer->workspace};
    const struct kelp_transpose transpose = {
        .x = b, .y = a, .batch = 1, .rows = ROWS, .columns = COLUMNS};

    stream->table->bias_add(stream, &bias);
    stream->table->axpy(stream, c, 0.3f, a, count);
    stream->table->unary(stream, &relu);
    stream->table->unary_gradient(stream, &relu_gradient);
    stream->table->bias_gradient(stream, &bias_gradient);
    stream->table->subtract(stream, c, c, b, count);
    stream->table->moving_average(stream, &average);
    stream->table->moving_average_gradient(stream, &average);
    stream->table->transpose(stream, &transpose);
    stream->table->add(stream, a, a, b, count);
    return kelp__compute_kind_answer_digest(answer, a, count * sizeof(float), reterr);
}

static kelp_status answer_init(struct answer *answer, struct kelp_device *device,
                               struct kelp_error *reterr)
{
    *answer = (struct answer){.device = device};
    float **buffers[BUFFER_COUNT] = {&answer->a, &answer->b, &answer->c, &answer->workspace};
    for (uint32_t i = 0; i < BUFFER_COUNT; i++) {
        void *memory = NULL;
        const kelp_status status =
            device->table->alloc(device, MATRIX_COUNT * sizeof(float), &memory, reterr);
        if (status != KELP_OK) {
            return status;
        }
        *buffers[i] = memory;
    }
    void *sums = NULL;
    kelp_status status =
        device->table->alloc(device, (size_t)ROWS * KELP_LOSS_SUMS * sizeof(double), &sums, reterr);
    if (status != KELP_OK) {
        return status;
    }
    answer->sums = sums;
    answer->host = malloc(MATRIX_COUNT * sizeof(float));
    if (!answer->host) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    return device->table->stream_create(device, &answer->stream, reterr);
}

static void answer_fini(struct answer *answer)
{
    const struct kelp_device_table *table = answer->device->table;
    table->stream_destroy(answer->stream);
    table->free(answer->device, answer->a);
    table->free(answer->device, answer->b);
    table->free(answer->device, answer->c);
    table->free(answer->device, answer->workspace);
    table->free(answer->device, answer->sums);
    free(answer->host);
}

kelp_status kelp_compute_kind(struct kelp_device *device, char text[KELP_COMPUTE_KIND_SIZE],
                              uint64_t *ret_answer, struct kelp_error *reterr)
{
    struct answer answer;
    static kelp_status (*const parts[])(struct answer *, struct kelp_error *) = {
        matmuls, elementwise, kelp__compute_kind_answer_rows, kelp__compute_kind_answer_windows,
        kelp__compute_kind_answer_layers};
    kelp_status status = answer_init(&answer, device, reterr);
    if (status != KELP_OK) {
        goto out;
    }
    status = kelp__compute_kind_answer_operand(&answer, answer.a, 1, reterr);
    if (status == KELP_OK) {
        status = kelp__compute_kind_answer_operand(&answer, answer.b, 2, reterr);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(parts) && status == KELP_OK; i++) {
        status = parts[i](&answer, reterr);
    }
    if (status != KELP_OK) {
        goto out;
    }
    *ret_answer = answer.hash;
    device->table->describe(device, text);
out:
    answer_fini(&answer);
    return status;
}
