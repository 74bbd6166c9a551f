/*
 * A process's part of a trace: a line that describes it, followed by events in the format of
 * Chrome's trace files. A comma precedes each event, so that parts can be concatenated into one
 * array.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/base/json.h"
#include "common/log/log.h"
#include "common/log/trace_internal.h"

#define BOOT_ID "/proc/sys/kernel/random/boot_id"

/* Track numbers: threads come first, then the others by partition. */
#define TRACKS_EACH 100000u

/* Identifies the clock: parts with the same name share it. */
static void read_clock_name(char *name, size_t bytes)
{
    FILE *in = fopen(BOOT_ID, "re");

    if (!in || !fgets(name, (int)bytes, in)) {
        name[0] = '\0';
    }
    if (in) {
        (void)fclose(in);
    }
    name[strcspn(name, "\n")] = '\0';
}

static unsigned track_number(unsigned thread, const struct kelp_trace_span *span)
{
    return span->track == KELP_TRACE_THREAD ? thread + 1
                                            : (unsigned)span->track * TRACKS_EACH + span->partition;
}

/* Print a track's name, and its number as its position. */
static void print_track(FILE *out, unsigned track, const char *name, unsigned number)
{
    (void)fprintf(out,
                  ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"name\":\"thread_name\","
                  "\"args\":{\"name\":\"%s %u\"}}",
                  (int)getpid(), track, name, number);
    (void)fprintf(out,
                  ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"name\":\"thread_sort_index\","
                  "\"args\":{\"sort_index\":%u}}",
                  (int)getpid(), track, track);
}

static void print_process(FILE *out, const char *name)
{
    (void)fprintf(out, ",\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":",
                  (int)getpid());
    kelp_json_print_string(out, name);
    (void)fprintf(out, "}}");
}

/* Microseconds with three decimals. */
static void print_time(FILE *out, const char *name, uint64_t ns)
{
    (void)fprintf(out, ",\"%s\":%" PRIu64 ".%03u", name, ns / 1000, (unsigned)(ns % 1000));
}

static void print_span(FILE *out, unsigned track, const struct kelp__trace_event *event)
{
    const struct kelp_trace_span *span = &event->span;
    const uint64_t took_ns = span->end_ns > event->begin_ns ? span->end_ns - event->begin_ns : 0;

    (void)fprintf(out, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%u,\"name\":", (int)getpid(), track);
    kelp_json_print_string(out, span->name);
    print_time(out, "ts", event->begin_ns);
    print_time(out, "dur", took_ns);
    (void)fprintf(out, ",\"args\":{");
    const char *before = "";
    if (span->step != KELP_TRACE_NO_STEP) {
        (void)fprintf(out, "\"step\":%" PRIu64, span->step);
        before = ",";
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(span->arguments); i++) {
        if (span->arguments[i].name) {
            (void)fprintf(out, "%s\"%s\":%" PRIu64, before, span->arguments[i].name,
                          span->arguments[i].value);
            before = ",";
        }
    }
    (void)fprintf(out, "}}");
}

/* A track is named before its first span. */
static void print_buffer(FILE *out, const struct kelp_trace *trace, unsigned thread,
                         bool named[][KELP_TRACE_PARTITIONS_MAX])
{
    static const char *const names[] = {[KELP_TRACE_THREAD] = "thread",
                                        [KELP_TRACE_PUSH] = "push of partition",
                                        [KELP_TRACE_PULL] = "pull of partition",
                                        [KELP_TRACE_PARTITION] = "partition"};
    const struct kelp__trace_buffer *buffer = trace->buffers[thread];
    const unsigned count = atomic_load_explicit(&buffer->count, memory_order_acquire);

    for (unsigned i = 0; i < count; i++) {
        const struct kelp_trace_span *span = &buffer->events[i].span;
        const uint32_t index = span->track == KELP_TRACE_THREAD ? thread : span->partition;
        const unsigned track = track_number(thread, span);
        if (!named[span->track][index]) {
            named[span->track][index] = true;
            print_track(out, track, names[span->track],
                        span->track == KELP_TRACE_THREAD ? thread + 1 : index);
        }
        print_span(out, track, &buffer->events[i]);
    }
}

static uint64_t count_dropped(const struct kelp_trace *trace, unsigned threads)
{
    uint64_t dropped = atomic_load(&trace->dropped);

    for (unsigned i = 0; i < threads; i++) {
        dropped += atomic_load(&trace->buffers[i]->dropped);
    }
    return dropped;
}

static void print_part(const void *what, FILE *out)
{
    const struct kelp_trace *trace = what;
    const unsigned threads = atomic_load(&trace->buffer_count);
    const uint64_t first = atomic_load(&trace->first);
    const uint64_t last = atomic_load(&trace->last);
    bool named[4][KELP_TRACE_PARTITIONS_MAX] = {{false}};
    char clock[64];

    read_clock_name(clock, sizeof(clock));
    kelp_json_print_member(out, "{", "process", trace->process);
    kelp_json_print_member(out, ",", "clock", clock);
    (void)fprintf(out, ",\"first\":%" PRIu64 ",\"steps\":%" PRIu64 ",\"dropped\":%" PRIu64 "}\n",
                  threads > 0 ? first : 0, threads > 0 ? last - first + 1 : 0,
                  count_dropped(trace, threads));
    print_process(out, trace->process);
    for (unsigned i = 0; i < threads; i++) {
        print_buffer(out, trace, i, named);
    }
}

void kelp__trace_write(const struct kelp_trace *trace)
{
    struct kelp_error error;

    if (kelp_files_print(trace->path, print_part, trace, &error) != KELP_OK) {
        kelp_log_error("no trace: %s", error.text);
        return;
    }
    kelp_log_info("trace written path=%s dropped=%" PRIu64, trace->path,
                  count_dropped(trace, atomic_load(&trace->buffer_count)));
}
