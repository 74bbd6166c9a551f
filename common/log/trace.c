#include "common/log/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/log/trace_internal.h"

enum { WAITING, OPEN, OVER };

/* ---- life ------------------------------------------------------------------------------------ */

static kelp_status check_folder(const char *path, struct kelp_error *reterr)
{
    char folder[PATH_MAX] = ".";
    const char *slash = strrchr(path, '/');

    if (strlen(path) + sizeof(".new") > sizeof(folder)) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--trace: the path is too long");
    }
    if (slash) { /* "/" for files directly in it */
        (void)snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path) + 1, path);
    }
    return access(folder, W_OK | X_OK) == 0
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID, "--trace '%s': no file can be made there: %s",
                           path, strerror(errno));
}

kelp_status kelp_trace_open(const struct kelp_trace_options *options, struct kelp_trace **ret_trace,
                            struct kelp_error *reterr)
{
    kelp_status status = check_folder(options->path, reterr);

    if (status != KELP_OK) {
        return status;
    }
    struct kelp_trace *trace = calloc(1, sizeof(*trace));
    if (!trace || pthread_key_create(&trace->key, NULL) != 0) {
        free(trace);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "--trace: out of memory");
    }
    (void)snprintf(trace->path, sizeof(trace->path), "%s", options->path);
    (void)snprintf(trace->process, sizeof(trace->process), "%s", options->process);
    trace->steps = options->steps;
    atomic_init(&trace->state, WAITING);
    atomic_init(&trace->first, UINT64_MAX);
    (void)pthread_mutex_init(&trace->lock, NULL);
    *ret_trace = trace;
    return KELP_OK;
}

void kelp_trace_finish(struct kelp_trace *trace)
{
    if (trace && atomic_exchange(&trace->state, OVER) != OVER) {
        kelp__trace_write(trace);
    }
}

void kelp_trace_close(struct kelp_trace *trace)
{
    if (!trace) {
        return;
    }
    for (unsigned i = 0; i < atomic_load(&trace->buffer_count); i++) {
        free(trace->buffers[i]->events);
        free(trace->buffers[i]);
    }
    (void)pthread_key_delete(trace->key);
    (void)pthread_mutex_destroy(&trace->lock);
    free(trace);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void raise_to(atomic_ullong *value, uint64_t least)
{
    unsigned long long before = atomic_load(value);

    while (before < least && !atomic_compare_exchange_weak(value, &before, least)) {
    }
}

void kelp_trace_step(struct kelp_trace *trace, uint64_t step)
{
    if (!trace || atomic_load_explicit(&trace->state, memory_order_relaxed) == OVER) {
        return;
    }
    unsigned long long first = UINT64_MAX;
    if (atomic_compare_exchange_strong(&trace->first, &first, step + KELP_TRACE_STEPS_SKIP)) {
        return;
    }
    if (step >= first + trace->steps) {
        kelp_trace_finish(trace);
    } else if (step >= first) {
        int waiting = WAITING;
        raise_to(&trace->last, step);
        (void)atomic_compare_exchange_strong(&trace->state, &waiting, OPEN);
    }
}

/* ---- spans ----------------------------------------------------------------------------------- */

static struct kelp__trace_buffer *buffer_make(struct kelp_trace *trace)
{
    struct kelp__trace_buffer *buffer = calloc(1, sizeof(*buffer));

    if (!buffer) {
        return NULL;
    }
    buffer->events = calloc(KELP_TRACE_SPANS_MAX, sizeof(*buffer->events));
    (void)pthread_mutex_lock(&trace->lock);
    const unsigned count = atomic_load(&trace->buffer_count);
    const bool room = buffer->events && count < KELP_TRACE_THREADS_MAX &&
                      pthread_setspecific(trace->key, buffer) == 0;
    if (room) {
        trace->buffers[count] = buffer;
        atomic_store(&trace->buffer_count, count + 1);
    }
    (void)pthread_mutex_unlock(&trace->lock);
    if (!room) {
        free(buffer->events);
        free(buffer);
    }
    return room ? buffer : NULL;
}

static bool is_open(const struct kelp_trace *trace)
{
    return atomic_load_explicit(&trace->state, memory_order_relaxed) == OPEN;
}

uint64_t kelp__trace_now(const struct kelp_trace *trace)
{
    return is_open(trace) ? kelp_clock_ns() : 0;
}

void kelp__trace_add(struct kelp_trace *trace, uint64_t begin_ns,
                     const struct kelp_trace_span *span)
{
    if (!is_open(trace) || span->partition >= KELP_TRACE_PARTITIONS_MAX) {
        return;
    }
    struct kelp__trace_buffer *buffer = pthread_getspecific(trace->key);
    buffer = buffer ? buffer : buffer_make(trace);
    const unsigned count = buffer ? atomic_load_explicit(&buffer->count, memory_order_relaxed) : 0;
    if (!buffer || count == KELP_TRACE_SPANS_MAX) {
        atomic_fetch_add_explicit(buffer ? &buffer->dropped : &trace->dropped, 1,
                                  memory_order_relaxed);
        return;
    }
    struct kelp__trace_event *event = &buffer->events[count];
    event->begin_ns = begin_ns;
    event->span = *span;
    event->span.end_ns = span->end_ns > 0 ? span->end_ns : kelp_clock_ns();
    if (span->track == KELP_TRACE_THREAD) {
        buffer->last_ns = event->span.end_ns;
    }
    atomic_store_explicit(&buffer->count, count + 1, memory_order_release);
}

void kelp_trace_gap(struct kelp_trace *trace, const struct kelp_trace_span *span)
{
    if (!trace || !is_open(trace)) {
        return;
    }
    const struct kelp__trace_buffer *buffer = pthread_getspecific(trace->key);
    if (buffer && buffer->last_ns > 0) {
        kelp__trace_add(trace, buffer->last_ns, span);
    }
}
