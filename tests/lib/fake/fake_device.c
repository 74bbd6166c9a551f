#include "tests/lib/fake/fake_device.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "tests/lib/fake/fake_memory.h"
#include "tests/lib/fake/fake_operators.h"
#include "tests/lib/fake/fake_order.h"
#include "tests/lib/models/channels_last.h"

#define ALIGNMENT 256 /* as a GPU's */

struct fake_device {
    struct kelp_device base;
    struct kelp_device_table table;
    struct kelp_device *cpu;
};

enum kind { COPY_IN, COPY_OUT, OPERATOR, AFTER };
struct copy {
    void *device, *host;
    size_t bytes;
    uint64_t hash; /* in: of the source, when it was queued */
    void *staged;  /* out: the bytes, until the host gets them; NULL: it did not run */
};

struct wanted {
    struct fake_stream *other; /* NULL: it is gone, and so done */
    uint64_t number;           /* of its operations, so many are done */
};

/* What was queued; it stays until its stream is waited for. */
struct operation {
    enum kind kind;
    enum fake_operator_index index;
    const void *caller; /* where it was queued */
    union {
        struct copy copy;
        union fake_arguments arguments;
        struct wanted after;
    } u;
    double quantiles[KELP_JOB_LIST_MAX]; /* criterion */
};

struct operations {
    struct operation *all;
    size_t count, capacity;
};

struct kelp_recording {
    struct fake_stream *stream;
    struct operations operations;
    uint64_t end; /* of its last replay, in all that the stream was given */
};

struct fake_stream {
    struct kelp_stream base;
    struct kelp_stream *cpu;
    struct fake_stream *next; /* of the process */
    struct operations queue;
    size_t done;                     /* of them, the first ones have run */
    size_t handed_over;              /* and of these, the first ones are the host's again */
    uint64_t retired;                /* those that are not in the queue any more */
    uint32_t place;                  /* fake_order.h */
    uint64_t place_begin;            /* its position before the first operation */
    struct kelp_error failed;        /* the first mistake since the last wait */
    struct kelp_recording *recorded; /* between record_begin() and record_end() */
    uint32_t recordings;             /* that are there */
};

/* Of the process. The lock is for all of it, for the streams that it leads to, and for memory. */
static struct {
    pthread_mutex_t lock;
    struct fake_stream *streams;
    bool drawn; /* otherwise everything waits for its wait() */
    uint64_t seed;
    uint64_t draws;    /* the generator's state */
    uint32_t mood;     /* of 32 calls, so many let something run */
    uint32_t mood_end; /* after so many calls, another mood */
    bool unrecorded;   /* new devices offer no recordings */
    bool first_alone;  /* and take images with their channels first alone */
    struct fake_device_counts counts;
} gpu = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void enter(void)
{
    (void)pthread_mutex_lock(&gpu.lock);
}

static void leave(void)
{
    (void)pthread_mutex_unlock(&gpu.lock);
}

/* ---- drawing ---- */

static uint32_t draw(uint32_t below)
{
    gpu.draws += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t bits = gpu.draws;
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((bits >> 32) * below >> 32);
}

void fake_device_seed(uint64_t seed)
{
    enter();
    gpu.drawn = seed != 0;
    gpu.seed = seed;
    gpu.draws = seed;
    gpu.mood_end = 0;
    leave();
}

/* Now a GPU that is late, now one that keeps up: each for a while. */
static bool something_runs(void)
{
    static const uint32_t moods[] = {0, 1, 8, 32};
    if (!gpu.drawn) {
        return false;
    }
    if (gpu.mood_end == 0) {
        gpu.mood = moods[draw(KELP_ARRAY_COUNT(moods))];
        gpu.mood_end = 1 + draw(256);
    }
    gpu.mood_end--;
    return draw(32) < gpu.mood;
}

/* ---- mistakes ---- */

static const char *name_of(const struct operation *operation)
{
    switch (operation->kind) {
    case COPY_IN:
        return "copy_in";
    case COPY_OUT:
        return "copy_out";
    case OPERATOR:
        return fake_operators[operation->index].name;
    case AFTER:
        break;
    }
    return "after";
}

static void describe(const struct operation *operation, char *text, size_t size)
{
    const char *name = name_of(operation);
    Dl_info program;
    if (dladdr(operation->caller, &program) == 0 || !program.dli_fname) {
        (void)snprintf(text, size, "%s", name);
        return;
    }
    const char *slash = strrchr(program.dli_fname, '/');
    (void)snprintf(text, size, "%s at %s+0x%zx", name, slash ? slash + 1 : program.dli_fname,
                   (size_t)((uintptr_t)operation->caller - (uintptr_t)program.dli_fbase - 1));
}

static void note(struct fake_stream *stream, const struct operation *operation, const char *format,
                 ...) KELP_PRINTF(3, 4);
static void note(struct fake_stream *stream, const struct operation *operation, const char *format,
                 ...)
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

/* Where `bytes` bytes of the device's memory are; NULL is noted. */
static void *find(struct fake_stream *stream, const struct operation *operation, const char *name,
                  const void *pointer, size_t bytes)
{
    const char *why = "";
    void *memory = fake_memory_find(pointer, bytes, &why);
    if (!memory) {
        note(stream, operation, "%s %p is %s", name, pointer, why);
    }
    return memory;
}

static void check_source(struct fake_stream *stream, const struct operation *operation)
{
    const struct copy *copy = &operation->u.copy;
    if (XXH3_64bits(copy->host, copy->bytes) != copy->hash) {
        note(stream, operation, "its source, %zu bytes at %p, changed before wait()", copy->bytes,
             copy->host);
    }
}

static void run_copy_in(struct fake_stream *stream, struct operation *operation)
{
    const struct copy *copy = &operation->u.copy;
    void *to = find(stream, operation, "its target", copy->device, copy->bytes);
    check_source(stream, operation);
    if (to) {
        memcpy(to, copy->host, copy->bytes);
    }
}

static void run_copy_out(struct fake_stream *stream, struct operation *operation)
{
    struct copy *copy = &operation->u.copy;
    const void *from = find(stream, operation, "its source", copy->device, copy->bytes);
    if (!from) {
        return;
    }
    copy->staged = malloc(copy->bytes);
    if (!copy->staged) {
        note(stream, operation, "out of memory");
        return;
    }
    memcpy(copy->staged, from, copy->bytes);
}

/* The same arguments with pointers that the CPU can follow. False: noted. */
static bool translate(struct fake_stream *stream, const struct operation *operation,
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

static void run_operator(struct fake_stream *stream, const struct operation *operation)
{
    union fake_arguments arguments;
    if (translate(stream, operation, &arguments)) {
        fake_operators[operation->index].run(stream->cpu, &arguments);
    }
}

static void run_next(struct fake_stream *stream)
{
    struct operation *operation = &stream->queue.all[stream->done++];
    switch (operation->kind) {
    case COPY_IN:
        run_copy_in(stream, operation);
        break;
    case COPY_OUT:
        run_copy_out(stream, operation);
        break;
    case OPERATOR:
        run_operator(stream, operation);
        break;
    case AFTER:
        break;
    }
}

/* What it has to wait for first; NULL: nothing. */
static const struct wanted *waits_for(const struct fake_stream *stream)
{
    const struct operation *operation = &stream->queue.all[stream->done];
    const struct wanted *after = &operation->u.after;
    return operation->kind == AFTER && after->other &&
                   after->other->retired + after->other->done < after->number
               ? after
               : NULL;
}

static bool is_ready(const struct fake_stream *stream)
{
    return stream->done < stream->queue.count && !waits_for(stream);
}

/* One that has something that may run; NULL: none has. */
static struct fake_stream *draw_stream(void)
{
    uint32_t count = 0;
    for (const struct fake_stream *stream = gpu.streams; stream; stream = stream->next) {
        count += is_ready(stream);
    }
    uint32_t chosen = count != 0 ? draw(count) : 0;
    for (struct fake_stream *stream = gpu.streams; stream; stream = stream->next) {
        if (is_ready(stream) && chosen-- == 0) {
            return stream;
        }
    }
    return NULL;
}

/* Until the first `end` of the stream are done, and so what they wait for; others go on meanwhile.
 */
static void run_until(struct fake_stream *stream, size_t end)
{
    while (stream->done < end) {
        struct fake_stream *next = gpu.drawn ? draw_stream() : stream;
        while (waits_for(next)) {
            next = waits_for(next)->other;
        }
        run_next(next);
    }
}

/* ---- queueing ---- */

/* The last of them, all zero; NULL: noted. */
static struct operation *add(struct fake_stream *stream, struct operations *to)
{
    if (to->count == to->capacity) {
        const size_t capacity = to->capacity != 0 ? 2 * to->capacity : 64;
        struct operation *larger = realloc(to->all, capacity * sizeof(*larger));
        if (!larger) {
            if (stream->failed.status == KELP_OK) {
                (void)kelp_fail(&stream->failed, KELP_ERR_NO_MEMORY, "fake device: out of memory");
            }
            return NULL;
        }
        to->all = larger;
        to->capacity = capacity;
    }
    struct operation *operation = &to->all[to->count++];
    memset(operation, 0, sizeof(*operation));
    if (to == &stream->queue) {
        fake_order_next(stream->place);
    }
    return operation;
}

static void touch_one(struct fake_stream *stream, const struct operation *operation,
                      const char *name, const struct fake_touch *touch)
{
    const char *other = NULL;
    if (fake_order_touch(stream->place, touch, &other)) {
        note(stream, operation,
             "%s 0x%" PRIxPTR " is of %s on another stream too, and neither comes after the other",
             name, touch->address, other);
    }
}

/* The memory that what was queued last reads and writes. */
static void touch(struct fake_stream *stream, const struct operation *operation)
{
    struct fake_touch touch = {.bytes = 1, .name = name_of(operation)};
    if (operation->kind == COPY_IN || operation->kind == COPY_OUT) {
        touch.address = (uintptr_t)operation->u.copy.device;
        touch.bytes = operation->u.copy.bytes;
        touch.writes = operation->kind == COPY_IN;
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

static void let_run(void)
{
    while (something_runs()) {
        struct fake_stream *stream = draw_stream();
        if (!stream) {
            break;
        }
        run_next(stream);
    }
}

static void enqueue_copy(struct kelp_stream *base, enum kind kind, const struct copy *copy,
                         const void *caller)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    if (copy->bytes == 0) {
        return;
    }
    enter();
    if (stream->recorded) {
        const struct operation wrong = {.kind = kind, .caller = caller};
        note(stream, &wrong, "operators alone are recorded");
        leave();
        return;
    }
    struct operation *operation = add(stream, &stream->queue);
    if (operation) {
        operation->kind = kind;
        operation->caller = caller;
        operation->u.copy = *copy;
        touch(stream, operation);
        let_run();
    }
    leave();
}

static void enqueue_operator(struct kelp_stream *base, enum fake_operator_index index,
                             const void *arguments, size_t bytes, const void *caller)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    enter();
    struct operation *operation =
        add(stream, stream->recorded ? &stream->recorded->operations : &stream->queue);
    if (operation) {
        operation->kind = OPERATOR;
        operation->index = index;
        operation->caller = caller;
        memcpy(&operation->u.arguments, arguments, bytes);
        if (index == FAKE_OPERATOR_criterion && operation->u.arguments.criterion.quantiles) {
            const struct kelp_criterion *criterion = &operation->u.arguments.criterion;
            memcpy(operation->quantiles, criterion->quantiles,
                   criterion->quantile_count * sizeof(double));
        }
        if (!stream->recorded) {
            touch(stream, operation);
            let_run();
        }
    }
    leave();
}

static void copy_in(struct kelp_stream *stream, void *to, const void *host_from, size_t bytes)
{
    const struct copy copy = {.device = to,
                              .host = (void *)(uintptr_t)host_from,
                              .bytes = bytes,
                              .hash = XXH3_64bits(host_from, bytes)};
    enqueue_copy(stream, COPY_IN, &copy, __builtin_return_address(0));
}

static void copy_out(struct kelp_stream *stream, void *host_to, const void *from, size_t bytes)
{
    const struct copy copy = {.device = (void *)(uintptr_t)from, .host = host_to, .bytes = bytes};
    if (bytes != 0) {
        memset(host_to, FAKE_POISON, bytes);
    }
    enqueue_copy(stream, COPY_OUT, &copy, __builtin_return_address(0));
}

static void fill(struct kelp_stream *stream, float *values, float value, uint64_t count)
{
    const struct fake_flat flat = {.y = values, .scalar = value, .count = count};
    enqueue_operator(stream, FAKE_OPERATOR_fill, &flat, sizeof(flat), __builtin_return_address(0));
}

static void axpy(struct kelp_stream *stream, float *y, float alpha, const float *x, uint64_t count)
{
    const struct fake_flat flat = {.y = y, .scalar = alpha, .a = x, .count = count};
    enqueue_operator(stream, FAKE_OPERATOR_axpy, &flat, sizeof(flat), __builtin_return_address(0));
}

static void add_arrays(struct kelp_stream *stream, float *y, const float *a, const float *b,
                       uint64_t count)
{
    const struct fake_flat flat = {.y = y, .a = a, .b = b, .count = count};
    enqueue_operator(stream, FAKE_OPERATOR_add, &flat, sizeof(flat), __builtin_return_address(0));
}

static void subtract(struct kelp_stream *stream, float *y, const float *a, const float *b,
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
#define queue_fill     fill
#define queue_axpy     axpy
#define queue_add      add_arrays
#define queue_subtract subtract

/* ---- streams ---- */

static bool is_poison(const unsigned char *bytes, size_t count)
{
    return count == 0 || (bytes[0] == FAKE_POISON && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* Of the first `end`: what the host did with its memory meanwhile; then what it asked for. */
static void hand_over(struct fake_stream *stream, size_t end)
{
    for (size_t i = stream->handed_over; i < end; i++) {
        const struct operation *operation = &stream->queue.all[i];
        if (operation->kind == COPY_IN) {
            check_source(stream, operation);
        } else if (operation->kind == COPY_OUT &&
                   !is_poison(operation->u.copy.host, operation->u.copy.bytes)) {
            note(stream, operation, "its target, %zu bytes at %p, changed before wait()",
                 operation->u.copy.bytes, operation->u.copy.host);
        }
    }
    for (; stream->handed_over < end; stream->handed_over++) {
        const struct operation *operation = &stream->queue.all[stream->handed_over];
        if (operation->kind == COPY_OUT && operation->u.copy.staged) {
            memcpy(operation->u.copy.host, operation->u.copy.staged, operation->u.copy.bytes);
            free(operation->u.copy.staged);
        }
    }
}

static void finish(struct fake_stream *stream)
{
    run_until(stream, stream->queue.count);
    hand_over(stream, stream->queue.count);
    fake_order_waited(stream->place, stream->place_begin + stream->retired + stream->queue.count);
    stream->retired += stream->queue.count;
    stream->queue.count = 0;
    stream->done = 0;
    stream->handed_over = 0;
}

/* A call that is a mistake while operators are recorded. */
static void check_unrecorded(struct fake_stream *stream, const char *call)
{
    if (stream->recorded && stream->failed.status == KELP_OK) {
        (void)kelp_fail(&stream->failed, KELP_ERR_DEVICE,
                        "fake device: %s: operators alone are recorded", call);
    }
}

static uint64_t stream_mark(struct kelp_stream *base)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    check_unrecorded(stream, "mark");
    return stream->retired + stream->queue.count; /* the caller's own to change */
}

static uint64_t waits_left; /* until the GPU is lost; 0: it is not */
static void (*tell_lost)(void);
static bool is_lost;

/* After a wait, if there was something to wait for. */
static void count_idle(bool waited)
{
    const struct fake_stream *stream = gpu.streams;
    while (stream && stream->done == stream->queue.count) {
        stream = stream->next;
    }
    gpu.counts.idle += waited && !stream;
}

static bool stream_wait_mark(struct kelp_stream *base, uint64_t mark)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    enter();
    check_unrecorded(stream, "wait_mark");
    if (mark > stream->retired + stream->handed_over) {
        const bool waited = stream->retired + stream->done < mark;
        run_until(stream, (size_t)(mark - stream->retired));
        hand_over(stream, (size_t)(mark - stream->retired));
        fake_order_waited(stream->place, stream->place_begin + mark);
        count_idle(waited);
    }
    const bool fine = stream->failed.status == KELP_OK && !is_lost;
    leave();
    return fine;
}

static void stream_after(struct kelp_stream *base, struct kelp_stream *other_base, uint64_t mark)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    struct fake_stream *other = (struct fake_stream *)other_base;
    enter();
    check_unrecorded(stream, "after");
    struct operation *operation = add(stream, &stream->queue);
    if (operation) {
        operation->kind = AFTER;
        operation->u.after = (struct wanted){.other = other, .number = mark};
        fake_order_after(stream->place, other->place, other->place_begin + mark);
        let_run();
    }
    leave();
}

void fake_device_lose(uint64_t waits, void (*lost)(void))
{
    enter();
    waits_left = waits;
    tell_lost = lost;
    leave();
}

static void count_wait(void)
{
    if (waits_left == 0 || is_lost || --waits_left > 0) {
        return;
    }
    is_lost = true;
    if (tell_lost) {
        tell_lost();
    }
}

static kelp_status stream_wait(struct kelp_stream *base, struct kelp_error *reterr)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    enter();
    check_unrecorded(stream, "wait");
    const bool waited = stream->done < stream->queue.count;
    finish(stream);
    count_idle(waited);
    count_wait();
    struct kelp_error failed = stream->failed, cpu = {KELP_OK, ""};
    if (is_lost) {
        (void)kelp_fail(&failed, KELP_ERR_DEVICE, "the GPU does not answer any more");
    }
    stream->failed.status = KELP_OK;
    if (stream->cpu->table->wait(stream->cpu, &cpu) != KELP_OK && failed.status == KELP_OK) {
        failed = cpu;
    }
    leave();
    return failed.status == KELP_OK ? KELP_OK : kelp_fail(reterr, failed.status, "%s", failed.text);
}

static kelp_status stream_create(struct kelp_device *base, struct kelp_stream **ret,
                                 struct kelp_error *reterr)
{
    struct kelp_device *cpu = ((struct fake_device *)base)->cpu;
    struct fake_stream *stream = calloc(1, sizeof(*stream));
    if (!stream) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate a stream");
    }
    const kelp_status status = cpu->table->stream_create(cpu, &stream->cpu, reterr);
    if (status != KELP_OK) {
        free(stream);
        return status;
    }
    stream->base = (struct kelp_stream){.table = base->table, .device = base};
    enter();
    stream->next = gpu.streams;
    gpu.streams = stream;
    stream->place = fake_order_open();
    stream->place_begin = fake_order_position(stream->place);
    leave();
    *ret = &stream->base;
    return KELP_OK;
}

/* Others do not wait for it any more. */
static void forget_wanted(const struct fake_stream *gone)
{
    for (struct fake_stream *stream = gpu.streams; stream; stream = stream->next) {
        for (size_t i = stream->done; i < stream->queue.count; i++) {
            struct operation *operation = &stream->queue.all[i];
            if (operation->kind == AFTER && operation->u.after.other == gone) {
                operation->u.after.other = NULL;
            }
        }
    }
}

static void stream_destroy(struct kelp_stream *base)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    if (!stream) {
        return;
    }
    enter();
    finish(stream);
    struct fake_stream **link = &gpu.streams;
    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
    forget_wanted(stream);
    fake_order_close(stream->place);
    leave();
    if (stream->recordings != 0) {
        (void)kelp_fail(&stream->failed, KELP_ERR_DEVICE,
                        "fake device: a stream went before %u of its recordings",
                        stream->recordings);
    }
    if (stream->failed.status == KELP_ERR_DEVICE) { /* nobody will ask for it */
        (void)fprintf(stderr, "%s\n", stream->failed.text);
        abort();
    }
    stream->cpu->table->stream_destroy(stream->cpu);
    free(stream->queue.all);
    free(stream);
}

/* ---- recordings ---- */

void fake_device_offer_recordings(bool offered)
{
    enter();
    gpu.unrecorded = !offered;
    leave();
}

void fake_device_take_channels_last(bool taken)
{
    enter();
    gpu.first_alone = !taken;
    leave();
}

struct fake_device_counts fake_device_counts(void)
{
    enter();
    const struct fake_device_counts counts = gpu.counts;
    leave();
    return counts;
}

static void record_begin(struct kelp_stream *base)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    enter();
    check_unrecorded(stream, "record_begin");
    if (!stream->recorded) {
        stream->recorded = calloc(1, sizeof(*stream->recorded));
    }
    leave();
}

static kelp_status record_end(struct kelp_stream *base, struct kelp_recording **ret,
                              struct kelp_error *reterr)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    enter();
    struct kelp_recording *recording = stream->recorded;
    stream->recorded = NULL;
    if (recording) {
        recording->stream = stream;
        stream->recordings++;
        gpu.counts.recordings++;
    }
    leave();
    if (!recording) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "fake device: out of memory");
    }
    *ret = recording;
    return KELP_OK;
}

static void replay(struct kelp_stream *base, struct kelp_recording *recording)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    enter();
    check_unrecorded(stream, "replay");
    if (recording->stream != stream) {
        if (stream->failed.status == KELP_OK) {
            (void)kelp_fail(&stream->failed, KELP_ERR_DEVICE,
                            "fake device: replay: it was recorded on another stream");
        }
        leave();
        return;
    }
    gpu.counts.replays++;
    for (size_t i = 0; i < recording->operations.count; i++) {
        struct operation *operation = add(stream, &stream->queue);
        if (operation) {
            *operation = recording->operations.all[i];
            gpu.counts.operators++;
            touch(stream, operation);
            let_run();
        }
    }
    recording->end = stream->retired + stream->queue.count;
    leave();
}

static void recording_destroy(struct kelp_recording *recording)
{
    if (!recording) {
        return;
    }
    struct fake_stream *stream = recording->stream;
    enter();
    stream->recordings--;
    if (recording->end > stream->retired + stream->handed_over &&
        stream->failed.status == KELP_OK) {
        (void)kelp_fail(&stream->failed, KELP_ERR_DEVICE,
                        "fake device: recording_destroy: its replays were not waited for");
    }
    leave();
    free(recording->operations.all);
    free(recording);
}

/* ---- the device ---- */

static void device_destroy(struct kelp_device *base)
{
    struct fake_device *device = (struct fake_device *)base;
    device->cpu->table->destroy(device->cpu);
    free(device);
}

static void device_describe(const struct kelp_device *base, char text[KELP_COMPUTE_KIND_SIZE])
{
    const struct kelp_device *cpu = ((const struct fake_device *)base)->cpu;
    char of_cpu[KELP_COMPUTE_KIND_SIZE];
    cpu->table->describe(cpu, of_cpu);
    char all[2 * KELP_COMPUTE_KIND_SIZE];
    (void)snprintf(all, sizeof(all), "fake seed=%" PRIu64 " recordings=%d %s", gpu.seed,
                   !gpu.unrecorded, of_cpu);
    (void)snprintf(text, KELP_COMPUTE_KIND_SIZE, "%.*s", KELP_COMPUTE_KIND_SIZE - 1, all);
}

static kelp_status device_alloc(struct kelp_device *device, size_t bytes, void **ret,
                                struct kelp_error *reterr)
{
    (void)device;
    enter();
    const kelp_status status = fake_memory_alloc(bytes, ret, reterr);
    leave();
    return status;
}

void fake_device_leave(size_t bytes)
{
    enter();
    fake_memory_limit(bytes);
    leave();
}

static void device_free(struct kelp_device *device, void *memory)
{
    (void)device;
    enter();
    fake_memory_free(memory);
    leave();
}

static kelp_status device_host_alloc(struct kelp_device *device, size_t bytes, void **ret,
                                     struct kelp_error *reterr)
{
    (void)device;
    const size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    void *memory =
        rounded < bytes ? NULL : aligned_alloc(ALIGNMENT, rounded != 0 ? rounded : ALIGNMENT);
    if (!memory) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate %zu bytes", bytes);
    }
    memset(memory, FAKE_POISON, bytes);
    *ret = memory;
    return KELP_OK;
}

static void device_host_free(struct kelp_device *device, void *memory)
{
    (void)device;
    free(memory);
}

static kelp_status conv2d_create(struct kelp_device *base, const struct kelp_conv2d_shape *shape,
                                 struct kelp_conv2d **ret, struct kelp_error *reterr)
{
    struct kelp_device *cpu = ((struct fake_device *)base)->cpu;
    return cpu->table->conv2d_create(cpu, shape, ret, reterr);
}

static const struct kelp_device_table table = {
    .name = "fake",
    .alignment = ALIGNMENT,
    .host_memory = false,
    .destroy = device_destroy,
    .describe = device_describe,
    .alloc = device_alloc,
    .free = device_free,
    .host_alloc = device_host_alloc,
    .host_free = device_host_free,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .wait = stream_wait,
    .mark = stream_mark,
    .wait_mark = stream_wait_mark,
    .after = stream_after,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .record_begin = record_begin,
    .record_end = record_end,
    .replay = replay,
    .recording_destroy = recording_destroy,
#define FAKE_ENTRY(name, ...) .name = queue_##name,
    KELP_PRODUCT_OPERATORS(FAKE_ENTRY) KELP_OPERATORS(FAKE_ENTRY)
#undef FAKE_ENTRY
        .conv2d_create = conv2d_create,
    .conv2d = queue_conv2d,
    .conv2d_gradient = queue_conv2d_gradient,
};

kelp_status fake_device_create(struct kelp_device **ret, struct kelp_error *reterr)
{
    struct fake_device *device = calloc(1, sizeof(*device));
    if (!device) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "cannot allocate the fake device");
    }
    const kelp_status status = channels_last_cpu_create(&device->cpu, reterr);
    if (status != KELP_OK) {
        free(device);
        return status;
    }
    device->table = table; /* a convolution is the CPU's, and does not know this device */
    device->table.conv2d_destroy = device->cpu->table->conv2d_destroy;
    device->table.conv2d_workspace = device->cpu->table->conv2d_workspace;
    enter();
    device->table.channels_last = !gpu.first_alone;
    if (gpu.unrecorded) {
        device->table.record_begin = NULL;
        device->table.record_end = NULL;
        device->table.replay = NULL;
        device->table.recording_destroy = NULL;
    }
    leave();
    device->base.table = &device->table;
    *ret = &device->base;
    return KELP_OK;
}
