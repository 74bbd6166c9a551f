/*
 * A trace of a few training steps: spans of time, for people who ask where it goes (kelp train
 * --trace). NULL stands for a trace that is off: then a measuring point is one branch. Nothing that
 * is computed depends on a trace.
 *
 *     WAITING   until KELP_TRACE_STEPS_SKIP steps after the first that is seen
 *     OPEN      for so many steps as were asked for: each thread writes its spans into a buffer of
 *               its own, and what does not fit is counted
 *     OVER      the process has written its part, a file that others are put together with
 *
 * Spans of one track must nest or be apart. Those of a thread do so by themselves, since each is
 * added when it ends. Times are of CLOCK_MONOTONIC, which is one for all processes of a machine.
 *
 * Threads: any.
 */
#ifndef KELP_COMMON_LOG_TRACE_H
#define KELP_COMMON_LOG_TRACE_H

#include <stdint.h>

#include "common/base/status.h"

struct kelp_trace;

struct kelp_trace_options {
    const char *path;    /* of the part */
    const char *process; /* "worker-0" */
    uint32_t steps;      /* 1 to KELP_TRACE_STEPS_MAX */
};

/* Options are copied. *ret_trace is owned, kelp_trace_close(). Errors: KELP_ERR_INVALID (no file
 * can be made there), KELP_ERR_NO_MEMORY. */
kelp_status kelp_trace_open(const struct kelp_trace_options *options, struct kelp_trace **ret_trace,
                            struct kelp_error *reterr) KELP_MUST_USE;
/* The end of the process is near: write the part, if that was not done yet. */
void kelp_trace_finish(struct kelp_trace *trace);
/* No thread uses it any more. NULL does nothing. */
void kelp_trace_close(struct kelp_trace *trace);

/* Something of this training step begins: it may open the trace, or end it, which writes the part.
 * NULL does nothing. */
void kelp_trace_step(struct kelp_trace *trace, uint64_t step);

enum kelp_trace_track {
    KELP_TRACE_THREAD, /* the calling thread's */
    /* Of a partition: what lasts beyond a call. */
    KELP_TRACE_PUSH,
    KELP_TRACE_PULL,
    KELP_TRACE_PARTITION,
};

struct kelp_trace_argument {
    const char *name; /* NULL: none */
    uint64_t value;
};

#define KELP_TRACE_NO_STEP UINT64_MAX /* of no step in particular */

/* Names are borrowed until kelp_trace_finish() has returned. */
struct kelp_trace_span {
    const char *name;
    enum kelp_trace_track track;
    uint32_t partition; /* whose track it is */
    uint64_t step;
    struct kelp_trace_argument arguments[3];
    uint64_t end_ns; /* 0: now */
};

/* The time, or 0 where the trace is not open. */
uint64_t kelp__trace_now(const struct kelp_trace *trace);
void kelp__trace_add(struct kelp_trace *trace, uint64_t begin_ns,
                     const struct kelp_trace_span *span);

static inline uint64_t kelp_trace_begin(const struct kelp_trace *trace)
{
    return trace ? kelp__trace_now(trace) : 0;
}

/* begin_ns: of kelp_trace_begin(). A span that began before the trace was open is left out. */
static inline void kelp_trace_end(struct kelp_trace *trace, uint64_t begin_ns,
                                  const struct kelp_trace_span *span)
{
    if (begin_ns > 0) {
        kelp__trace_add(trace, begin_ns, span);
    }
}

/* The calling thread has done nothing since its last span: a span of that. */
void kelp_trace_gap(struct kelp_trace *trace, const struct kelp_trace_span *span);

#endif
