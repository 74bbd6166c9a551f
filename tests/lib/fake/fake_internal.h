/* What the files of the fake device share: what is queued, who runs it (fake_run.c), how it gets
 * there (fake_queue.c), and the device itself (fake_device.c). */
#ifndef KELP_TESTS_LIB_FAKE_FAKE_INTERNAL_H
#define KELP_TESTS_LIB_FAKE_FAKE_INTERNAL_H

#include <pthread.h>

#include "tests/lib/fake/fake_device.h"
#include "tests/lib/fake/fake_operators.h"

struct fake_device {
    struct kelp_device base;
    struct kelp_device_table table;
    struct kelp_device *cpu;
};

enum fake_kind { FAKE_COPY_IN, FAKE_COPY_OUT, FAKE_OPERATOR, FAKE_AFTER };
struct fake_copy {
    void *device, *host;
    size_t bytes;
    uint64_t hash; /* in: of the source, when it was queued */
    void *staged;  /* out: the bytes, until the host gets them; NULL: it did not run */
};

struct fake_wanted {
    struct fake_stream *other; /* NULL: it is gone, and so done */
    uint64_t number;           /* of its operations, so many are done */
};

/* What was queued; it stays until its stream is waited for. */
struct fake_operation {
    enum fake_kind kind;
    enum fake_operator_index index;
    const void *caller; /* where it was queued */
    union {
        struct fake_copy copy;
        union fake_arguments arguments;
        struct fake_wanted after;
    } u;
    double quantiles[KELP_JOB_LIST_MAX]; /* criterion */
};

struct fake_operations {
    struct fake_operation *all;
    size_t count, capacity;
};

struct kelp_recording {
    struct fake_stream *stream;
    struct fake_operations operations;
    uint64_t end; /* of its last replay, in all that the stream was given */
};

struct fake_stream {
    struct kelp_stream base;
    struct kelp_stream *cpu;
    struct fake_stream *next; /* of the process */
    struct fake_operations queue;
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
struct fake_gpu {
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
};
extern struct fake_gpu fake_gpu;

void fake_enter(void); /* take the lock; what follows is called with it */
void fake_leave(void);

/* ---- fake_run.c ---- */

const char *fake_name_of(const struct fake_operation *operation);
/* The stream's next wait() reports the first mistake, with the operation and where it was queued.
 */
void fake_note(struct fake_stream *stream, const struct fake_operation *operation,
               const char *format, ...) KELP_PRINTF(3, 4);
/* Has the host changed what a copy to the device reads? Noted. */
void fake_check_source(struct fake_stream *stream, const struct fake_operation *operation);
/* Run the first `end` of the stream, and so what they wait for; others go on meanwhile. */
void fake_run_until(struct fake_stream *stream, size_t end);
/* Run as much of any stream as the seed says; nothing without one. */
void fake_let_run(void);

/* ---- fake_queue.c ---- */

/* Append an operation, all zero. NULL: there is no memory, which is noted. */
struct fake_operation *fake_queue_add(struct fake_stream *stream, struct fake_operations *to);
/* Note which memory the operation that was queued last reads and writes, and whether another stream
 * may be at it at the same time. */
void fake_queue_touch(struct fake_stream *stream, const struct fake_operation *operation);
/* The copies and operators of a stream, which queue. */
void fake_queue_table(struct kelp_device_table *table);

#endif
