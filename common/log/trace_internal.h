/* What trace.c and trace_write.c share; nobody else includes it. */
#ifndef KELP_COMMON_LOG_TRACE_INTERNAL_H
#define KELP_COMMON_LOG_TRACE_INTERNAL_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/base/limits.h"
#include "common/log/trace.h"

#define KELP__TRACE_PROCESS_MAX 127

struct kelp__trace_event {
    uint64_t begin_ns;
    struct kelp_trace_span span; /* with its end */
};

/* Of one thread, which alone adds to it. */
struct kelp__trace_buffer {
    atomic_uint count; /* those below it are complete */
    atomic_ulong dropped;
    uint64_t last_ns;                 /* when its last span ended */
    struct kelp__trace_event *events; /* KELP_TRACE_SPANS_MAX */
};

struct kelp_trace {
    char path[PATH_MAX];
    char process[KELP__TRACE_PROCESS_MAX + 1];
    uint32_t steps;
    pthread_key_t key; /* a thread's buffer */
    atomic_int state;
    atomic_ullong first;  /* the first step that is traced; UINT64_MAX: not known yet */
    atomic_ullong last;   /* the last one seen; while it is OPEN */
    atomic_ulong dropped; /* of threads without a buffer */
    pthread_mutex_t lock; /* guards adding to what follows */
    struct kelp__trace_buffer *buffers[KELP_TRACE_THREADS_MAX];
    atomic_uint buffer_count;
};

/* Write the part; no memory, or a full disk, is told to the log. */
void kelp__trace_write(const struct kelp_trace *trace);

#endif
