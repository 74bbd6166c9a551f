/* Runs the streams of the fake device in a random order. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "tests/lib/fake/fake_internal.h"
#include "tests/lib/fake/fake_memory.h"

struct fake_gpu fake_gpu = {.lock = PTHREAD_MUTEX_INITIALIZER};

void fake_enter(void)
{
    (void)pthread_mutex_lock(&fake_gpu.lock);
}

void fake_leave(void)
{
    (void)pthread_mutex_unlock(&fake_gpu.lock);
}

/* ---- drawing ---- */

static uint32_t draw(uint32_t below)
{
    fake_gpu.draws += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t bits = fake_gpu.draws;
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((bits >> 32) * below >> 32);
}

void fake_device_seed(uint64_t seed)
{
    fake_enter();
    fake_gpu.drawn = seed != 0;
    fake_gpu.seed = seed;
    fake_gpu.draws = seed;
    fake_gpu.mood_end = 0;
    fake_leave();
}

/* Alternate between a GPU that lags behind and one that keeps up, each for a while. */
static bool something_runs(void)
{
    static const uint32_t moods[] = {0, 1, 8, 32};
    if (!fake_gpu.drawn) {
        return false;
    }
    if (fake_gpu.mood_end == 0) {
        fake_gpu.mood = moods[draw(KELP_ARRAY_COUNT(moods))];
        fake_gpu.mood_end = 1 + draw(256);
    }
    fake_gpu.mood_end--;
    return draw(32) < fake_gpu.mood;
}

/* ---- mistakes ---- */

const char *fake_name_of(const struct fake_operation *operation)
{
    switch (operation->kind) {
    case FAKE_COPY_IN:
        return "copy_in";
    case FAKE_COPY_OUT:
        return "copy_out";
    case FAKE_OPERATOR:
        return fake_operators[operation->index].name;
    case FAKE_AFTER:
        break;
    }
    return "after";
}

static void describe(const struct fake_operation *operation, char *text, size_t size)
{
    const char *name = fake_name_of(operation);
    Dl_info program;
    if (dladdr(operation->caller, &program) == 0 || !program.dli_fname) {
        (void)snprintf(text, size, "%s", name);
        return;
    }
    const char *slash = strrchr(program.dli_fname, '/');
    (void)snprintf(text, size, "%s at %s+0x%zx", name, slash ? slash + 1 : program.dli_fname,
                   (size_t)((uintptr_t)operation->caller - (uintptr_t)program.dli_fbase - 1));
}

void fake_note(struct fake_stream *stream, const struct fake_operation *operation,
               const char *format, ...)
{
    char what[160], why[160];
    va_list values;
    if (stream->failed.status != KELP_OK) {
        return;
    }
    describe(operation, what, sizeof(what));
    va_start(values, format);
    (void)vsnprintf(why, sizeof(why), format, values);
    va_end(values);
    (void)kelp_fail(&stream->failed, KELP_ERR_DEVICE, "fake device: %s: %s", what, why);
}

/* ---- running ---- */

/* Find `bytes` bytes of the device's memory; NULL: noted as a mistake. */
static void *find(struct fake_stream *stream, const struct fake_operation *operation,
                  const char *name, const void *pointer, size_t bytes)
{
    const char *why = "";
    void *memory = fake_memory_find(pointer, bytes, &why);
    if (!memory) {
        fake_note(stream, operation, "%s %p is %s", name, pointer, why);
    }
    return memory;
}

void fake_check_source(struct fake_stream *stream, const struct fake_operation *operation)
{
    const struct fake_copy *copy = &operation->u.copy;
    if (XXH3_64bits(copy->host, copy->bytes) != copy->hash) {
        fake_note(stream, operation, "its source, %zu bytes at %p, changed before wait()",
                  copy->bytes, copy->host);
    }
}

static void run_copy_in(struct fake_stream *stream, struct fake_operation *operation)
{
    const struct fake_copy *copy = &operation->u.copy;
    void *to = find(stream, operation, "its target", copy->device, copy->bytes);
    fake_check_source(stream, operation);
    if (to) {
        memcpy(to, copy->host, copy->bytes);
    }
}

static void run_copy_out(struct fake_stream *stream, struct fake_operation *operation)
{
    struct fake_copy *copy = &operation->u.copy;
    const void *from = find(stream, operation, "its source", copy->device, copy->bytes);
    if (!from) {
        return;
    }
    copy->staged = malloc(copy->bytes);
    if (!copy->staged) {
        fake_note(stream, operation, "out of memory");
        return;
    }
    memcpy(copy->staged, from, copy->bytes);
}

/* The same arguments with host pointers. False: noted as a mistake. */
static bool translate(struct fake_stream *stream, const struct fake_operation *operation,
                      union fake_arguments *ret)
{
    *ret = operation->u.arguments;
    for (const struct fake_operand *operand = fake_operators[operation->index].operands;
         operand->name; operand++) {
        char *at = (char *)ret + operand->offset;
        void *pointer = NULL;
        memcpy(&pointer, at, sizeof(pointer));
        if (!pointer) {
            continue;
        }
        pointer = find(stream, operation, operand->name, pointer, 0);
        if (!pointer) {
            return false;
        }
        memcpy(at, &pointer, sizeof(pointer));
    }
    if (operation->index == FAKE_OPERATOR_criterion) {
        ret->criterion.quantiles = operation->quantiles;
    }
    return true;
}

static void run_operator(struct fake_stream *stream, const struct fake_operation *operation)
{
    union fake_arguments arguments;
    if (translate(stream, operation, &arguments)) {
        fake_operators[operation->index].run(stream->cpu, &arguments);
    }
}

static void run_next(struct fake_stream *stream)
{
    struct fake_operation *operation = &stream->queue.all[stream->done++];
    switch (operation->kind) {
    case FAKE_COPY_IN:
        run_copy_in(stream, operation);
        break;
    case FAKE_COPY_OUT:
        run_copy_out(stream, operation);
        break;
    case FAKE_OPERATOR:
        run_operator(stream, operation);
        break;
    case FAKE_AFTER:
        break;
    }
}

/* What the stream must wait for first; NULL: nothing. */
static const struct fake_wanted *waits_for(const struct fake_stream *stream)
{
    const struct fake_operation *operation = &stream->queue.all[stream->done];
    const struct fake_wanted *after = &operation->u.after;
    return operation->kind == FAKE_AFTER && after->other &&
                   after->other->retired + after->other->done < after->number
               ? after
               : NULL;
}

static bool is_ready(const struct fake_stream *stream)
{
    return stream->done < stream->queue.count && !waits_for(stream);
}

/* A random stream that can run an operation; NULL: none can. */
static struct fake_stream *draw_stream(void)
{
    uint32_t count = 0;
    for (const struct fake_stream *stream = fake_gpu.streams; stream; stream = stream->next) {
        count += is_ready(stream);
    }
    uint32_t chosen = count != 0 ? draw(count) : 0;
    for (struct fake_stream *stream = fake_gpu.streams; stream; stream = stream->next) {
        if (is_ready(stream) && chosen-- == 0) {
            return stream;
        }
    }
    return NULL;
}

void fake_run_until(struct fake_stream *stream, size_t end)
{
    while (stream->done < end) {
        struct fake_stream *next = fake_gpu.drawn ? draw_stream() : stream;
        while (waits_for(next)) {
            next = waits_for(next)->other;
        }
        run_next(next);
    }
}

void fake_let_run(void)
{
    while (something_runs()) {
        struct fake_stream *stream = draw_stream();
        if (!stream) {
            break;
        }
        run_next(stream);
    }
}
