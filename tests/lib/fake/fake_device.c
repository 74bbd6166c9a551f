#include "tests/lib/fake/fake_device.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/fake/fake_internal.h"
#include "tests/lib/fake/fake_memory.h"
#include "tests/lib/fake/fake_order.h"
#include "tests/lib/models/channels_last.h"

#define ALIGNMENT 256 /* as a GPU's */

/* ---- streams ---- */

static bool is_poison(const unsigned char *bytes, size_t count)
{
    return count == 0 || (bytes[0] == FAKE_POISON && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* Of the first `end`: what the host did with its memory meanwhile; then what it asked for. */
static void hand_over(struct fake_stream *stream, size_t end)
{
    for (size_t i = stream->handed_over; i < end; i++) {
        const struct fake_operation *operation = &stream->queue.all[i];
        if (operation->kind == FAKE_COPY_IN) {
            fake_check_source(stream, operation);
        } else if (operation->kind == FAKE_COPY_OUT &&
                   !is_poison(operation->u.copy.host, operation->u.copy.bytes)) {
            fake_note(stream, operation, "its target, %zu bytes at %p, changed before wait()",
                      operation->u.copy.bytes, operation->u.copy.host);
        }
    }
    for (; stream->handed_over < end; stream->handed_over++) {
        const struct fake_operation *operation = &stream->queue.all[stream->handed_over];
        if (operation->kind == FAKE_COPY_OUT && operation->u.copy.staged) {
            memcpy(operation->u.copy.host, operation->u.copy.staged, operation->u.copy.bytes);
            free(operation->u.copy.staged);
        }
    }
}

static void finish(struct fake_stream *stream)
{
    fake_run_until(stream, stream->queue.count);
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
    const struct fake_stream *stream = fake_gpu.streams;
    while (stream && stream->done == stream->queue.count) {
        stream = stream->next;
    }
    fake_gpu.counts.idle += waited && !stream;
}

static bool stream_wait_mark(struct kelp_stream *base, uint64_t mark)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    fake_enter();
    check_unrecorded(stream, "wait_mark");
    if (mark > stream->retired + stream->handed_over) {
        const bool waited = stream->retired + stream->done < mark;
        fake_run_until(stream, (size_t)(mark - stream->retired));
        hand_over(stream, (size_t)(mark - stream->retired));
        fake_order_waited(stream->place, stream->place_begin + mark);
        count_idle(waited);
    }
    const bool fine = stream->failed.status == KELP_OK && !is_lost;
    fake_leave();
    return fine;
}

static void stream_after(struct kelp_stream *base, struct kelp_stream *other_base, uint64_t mark)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    struct fake_stream *other = (struct fake_stream *)other_base;
    fake_enter();
    check_unrecorded(stream, "after");
    struct fake_operation *operation = fake_queue_add(stream, &stream->queue);
    if (operation) {
        operation->kind = FAKE_AFTER;
        operation->u.after = (struct fake_wanted){.other = other, .number = mark};
        fake_order_after(stream->place, other->place, other->place_begin + mark);
        fake_let_run();
    }
    fake_leave();
}

void fake_device_lose(uint64_t waits, void (*lost)(void))
{
    fake_enter();
    waits_left = waits;
    tell_lost = lost;
    fake_leave();
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
    fake_enter();
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
    fake_leave();
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
    fake_enter();
    stream->next = fake_gpu.streams;
    fake_gpu.streams = stream;
    stream->place = fake_order_open();
    stream->place_begin = fake_order_position(stream->place);
    fake_leave();
    *ret = &stream->base;
    return KELP_OK;
}

/* Others do not wait for it any more. */
static void forget_wanted(const struct fake_stream *gone)
{
    for (struct fake_stream *stream = fake_gpu.streams; stream; stream = stream->next) {
        for (size_t i = stream->done; i < stream->queue.count; i++) {
            struct fake_operation *operation = &stream->queue.all[i];
            if (operation->kind == FAKE_AFTER && operation->u.after.other == gone) {
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
    fake_enter();
    finish(stream);
    struct fake_stream **link = &fake_gpu.streams;
    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
    forget_wanted(stream);
    fake_order_close(stream->place);
    fake_leave();
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
    fake_enter();
    fake_gpu.unrecorded = !offered;
    fake_leave();
}

void fake_device_take_channels_last(bool taken)
{
    fake_enter();
    fake_gpu.first_alone = !taken;
    fake_leave();
}

struct fake_device_counts fake_device_counts(void)
{
    fake_enter();
    const struct fake_device_counts counts = fake_gpu.counts;
    fake_leave();
    return counts;
}

static void record_begin(struct kelp_stream *base)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    fake_enter();
    check_unrecorded(stream, "record_begin");
    if (!stream->recorded) {
        stream->recorded = calloc(1, sizeof(*stream->recorded));
    }
    fake_leave();
}

static kelp_status record_end(struct kelp_stream *base, struct kelp_recording **ret,
                              struct kelp_error *reterr)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    fake_enter();
    struct kelp_recording *recording = stream->recorded;
    stream->recorded = NULL;
    if (recording) {
        recording->stream = stream;
        stream->recordings++;
        fake_gpu.counts.recordings++;
    }
    fake_leave();
    if (!recording) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "fake device: out of memory");
    }
    *ret = recording;
    return KELP_OK;
}

static void replay(struct kelp_stream *base, struct kelp_recording *recording)
{
    struct fake_stream *stream = (struct fake_stream *)base;
    fake_enter();
    check_unrecorded(stream, "replay");
    if (recording->stream != stream) {
        if (stream->failed.status == KELP_OK) {
            (void)kelp_fail(&stream->failed, KELP_ERR_DEVICE,
                            "fake device: replay: it was recorded on another stream");
        }
        fake_leave();
        return;
    }
    fake_gpu.counts.replays++;
    for (size_t i = 0; i < recording->operations.count; i++) {
        struct fake_operation *operation = fake_queue_add(stream, &stream->queue);
        if (operation) {
            *operation = recording->operations.all[i];
            fake_gpu.counts.operators++;
            fake_queue_touch(stream, operation);
            fake_let_run();
        }
    }
    recording->end = stream->retired + stream->queue.count;
    fake_leave();
}

static void recording_destroy(struct kelp_recording *recording)
{
    if (!recording) {
        return;
    }
    struct fake_stream *stream = recording->stream;
    fake_enter();
    stream->recordings--;
    if (recording->end > stream->retired + stream->handed_over &&
        stream->failed.status == KELP_OK) {
        (void)kelp_fail(&stream->failed, KELP_ERR_DEVICE,
                        "fake device: recording_destroy: its replays were not waited for");
    }
    fake_leave();
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
    (void)snprintf(all, sizeof(all), "fake seed=%" PRIu64 " recordings=%d %s", fake_gpu.seed,
                   !fake_gpu.unrecorded, of_cpu);
    (void)snprintf(text, KELP_COMPUTE_KIND_SIZE, "%.*s", KELP_COMPUTE_KIND_SIZE - 1, all);
}

static kelp_status device_alloc(struct kelp_device *device, size_t bytes, void **ret,
                                struct kelp_error *reterr)
{
    (void)device;
    fake_enter();
    const kelp_status status = fake_memory_alloc(bytes, ret, reterr);
    fake_leave();
    return status;
}

void fake_device_leave(size_t bytes)
{
    fake_enter();
    fake_memory_limit(bytes);
    fake_leave();
}

static void device_free(struct kelp_device *device, void *memory)
{
    (void)device;
    fake_enter();
    fake_memory_free(memory);
    fake_leave();
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
    .record_begin = record_begin,
    .record_end = record_end,
    .replay = replay,
    .recording_destroy = recording_destroy,
    .conv2d_create = conv2d_create,
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
    device->table = table;
    fake_queue_table(&device->table);
    /* A convolution is the CPU's, and does not know this device. */
    device->table.conv2d_destroy = device->cpu->table->conv2d_destroy;
    device->table.conv2d_workspace = device->cpu->table->conv2d_workspace;
    fake_enter();
    device->table.channels_last = !fake_gpu.first_alone;
    if (fake_gpu.unrecorded) {
        device->table.record_begin = NULL;
        device->table.record_end = NULL;
        device->table.replay = NULL;
        device->table.recording_destroy = NULL;
    }
    fake_leave();
    device->base.table = &device->table;
    *ret = &device->base;
    return KELP_OK;
}
