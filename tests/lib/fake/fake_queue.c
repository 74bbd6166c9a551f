/* Operations on a stream of the fake device are queued, and checked against other streams. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "tests/lib/fake/fake_internal.h"
#include "tests/lib/fake/fake_memory.h"
#include "tests/lib/fake/fake_order.h"

struct fake_operation *fake_queue_add(struct fake_stream *stream, struct fake_operations *to)
{
    if (to->count == to->capacity) {
        const size_t capacity = to->capacity != 0 ? 2 * to->capacity : 64;
        struct fake_operation *larger = realloc(to->all, capacity * sizeof(*larger));
        if (!larger) {
            if (stream->failed.status == KELP_OK) {
                (void)kelp_fail(&stream->failed, KELP_ERR_NO_MEMORY, "fake device: out of memory");
            }
            return NULL;
        }
        to->all = larger;
        to->capacity = capacity;
    }
    struct fake_operation *operation = &to->all[to->count++];
    memset(operation, 0, sizeof(*operation));
    if (to == &stream->queue) {
        fake_order_next(stream->place);
    }
    return operation;
}

static void touch_one(struct fake_stream *stream, const struct fake_operation *operation,
                      const char *name, const struct fake_touch *touch)
{
    const char *other = NULL;
    if (fake_order_touch(stream->place, touch, &other)) {
        fake_note(stream, operation,
                  "%s 0x%" PRIxPTR
                  " is of %s on another stream too, and neither comes after the other",
                  name, touch->address, other);
    }
}

void fake_queue_touch(struct fake_stream *stream, const struct fake_operation *operation)
{
    struct fake_touch touch = {.bytes = 1, .name = fake_name_of(operation)};
    if (operation->kind == FAKE_COPY_IN || operation->kind == FAKE_COPY_OUT) {
        touch.address = (uintptr_t)operation->u.copy.device;
        touch.bytes = operation->u.copy.bytes;
        touch.writes = operation->kind == FAKE_COPY_IN;
        touch_one(stream, operation, touch.writes ? "its target" : "its source", &touch);
        return;
    }
    for (const struct fake_operand *operand = fake_operators[operation->index].operands;
         operand->name; operand++) {
        void *pointer = NULL;
        memcpy(&pointer, (const char *)&operation->u.arguments + operand->offset, sizeof(pointer));
        touch.address = (uintptr_t)pointer;
        touch.writes = operand->written;
        if (pointer) {
            touch_one(stream, operation, operand->name, &touch);
        }
    }
}

static void enqueue_copy(struct kelp_stream *base, enum fake_kind kind,
                         const struct fake_copy *copy, const void *caller)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    if (copy->bytes == 0) {
        return;
    }
    fake_enter();
    if (stream->recorded) {
        const struct fake_operation wrong = {.kind = kind, .caller = caller};
        fake_note(stream, &wrong, "operators alone are recorded");
        fake_leave();
        return;
    }
    struct fake_operation *operation = fake_queue_add(stream, &stream->queue);
    if (operation) {
        operation->kind = kind;
        operation->caller = caller;
        operation->u.copy = *copy;
        fake_queue_touch(stream, operation);
        fake_let_run();
    }
    fake_leave();
}

static void enqueue_operator(struct kelp_stream *base, enum fake_operator_index index,
                             const void *arguments, size_t bytes, const void *caller)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    fake_enter();
    struct fake_operation *operation =
        fake_queue_add(stream, stream->recorded ? &stream->recorded->operations : &stream->queue);
    if (operation) {
        operation->kind = FAKE_OPERATOR;
        operation->index = index;
        operation->caller = caller;
        memcpy(&operation->u.arguments, arguments, bytes);
        if (index == FAKE_OPERATOR_criterion && operation->u.arguments.criterion.quantiles) {
            const struct kelp_criterion *criterion = &operation->u.arguments.criterion;
            memcpy(operation->quantiles, criterion->quantiles,
                   criterion->quantile_count * sizeof(double));
        }
        if (!stream->recorded) {
            fake_queue_touch(stream, operation);
            fake_let_run();
        }
    }
    fake_leave();
}

static void queue_copy_in(struct kelp_stream *stream, void *to, const void *host_from, size_t bytes)
{
    const struct fake_copy copy = {.device = to,
                                   .host = (void *)(uintptr_t)host_from,
                                   .bytes = bytes,
                                   .hash = XXH3_64bits(host_from, bytes)};
    enqueue_copy(stream, FAKE_COPY_IN, &copy, __builtin_return_address(0));
}

static void queue_copy_out(struct kelp_stream *stream, void *host_to, const void *from,
                           size_t bytes)
{
    const struct fake_copy copy = {
        .device = (void *)(uintptr_t)from, .host = host_to, .bytes = bytes};
    if (bytes != 0) {
        memset(host_to, FAKE_POISON, bytes);
    }
    enqueue_copy(stream, FAKE_COPY_OUT, &copy, __builtin_return_address(0));
}

static void queue_fill(struct kelp_stream *stream, float *values, float value, uint64_t count)
{
    const struct fake_flat flat = {.y = values, .scalar = value, .count = count};
    enqueue_operator(stream, FAKE_OPERATOR_fill, &flat, sizeof(flat), __builtin_return_address(0));
}

static void queue_axpy(struct kelp_stream *stream, float *y, float alpha, const float *x,
                       uint64_t count)
{
    const struct fake_flat flat = {.y = y, .scalar = alpha, .a = x, .count = count};
    enqueue_operator(stream, FAKE_OPERATOR_axpy, &flat, sizeof(flat), __builtin_return_address(0));
}

static void queue_add(struct kelp_stream *stream, float *y, const float *a, const float *b,
                      uint64_t count)
{
    const struct fake_flat flat = {.y = y, .a = a, .b = b, .count = count};
    enqueue_operator(stream, FAKE_OPERATOR_add, &flat, sizeof(flat), __builtin_return_address(0));
}

static void queue_subtract(struct kelp_stream *stream, float *y, const float *a, const float *b,
                           uint64_t count)
{
    const struct fake_flat flat = {.y = y, .a = a, .b = b, .count = count};
    enqueue_operator(stream, FAKE_OPERATOR_subtract, &flat, sizeof(flat),
                     __builtin_return_address(0));
}

#define QUEUE(name, type)                                                                          \
    static void queue_##name(struct kelp_stream *stream, const struct type *arguments)             \
    {                                                                                              \
        enqueue_operator(stream, FAKE_OPERATOR_##name, arguments, sizeof(*arguments),              \
                         __builtin_return_address(0));                                             \
    }
FAKE_STRUCT_OPERATORS(QUEUE)

void fake_queue_table(struct kelp_device_table *table)
{
    table->copy_in = queue_copy_in;
    table->copy_out = queue_copy_out;
#define FAKE_ENTRY(name, ...) table->name = queue_##name;
    KELP_PRODUCT_OPERATORS(FAKE_ENTRY)
    KELP_OPERATORS(FAKE_ENTRY)
#undef FAKE_ENTRY
    table->conv2d = queue_conv2d;
    table->conv2d_gradient = queue_conv2d_gradient;
}
