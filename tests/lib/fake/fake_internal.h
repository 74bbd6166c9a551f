/* Shared by the files of the fake device: queued operations, how they run (fake_run.c), how they
 * are queued (fake_queue.c), and the device itself (fake_device.c). */
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
    uint64_t hash; /* copy_in: of the source, when queued */
    void *staged;  /* copy_out: the bytes until the host gets them; NULL: it did not run */
};

struct fake_wanted {
    struct fake_stream *other; /* NULL: destroyed, and so done */
    uint64_t number;           /* so many of its operations must be done */
};

/* A queued operation; it is kept until its stream is waited for. */
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
    uint64_t end; /* of its last replay, in the stream's count of operations */
};

struct fake_stream {
    struct kelp_stream base;
    struct kelp_stream *cpu;
    struct fake_stream *next; /* in the list of the process */
    struct fake_operations queue;
    size_t done;                     /* the first so many have run */
    size_t handed_over;              /* of these the host has the results of so many */
    uint64_t retired;                /* operations removed from the queue */
    uint32_t place;                  /* fake_order.h */
    uint64_t place_begin;            /* its position before the first operation */
    struct kelp_error failed;        /* the first mistake since the last wait */
    struct kelp_recording *recorded; /* between record_begin() and record_end() */
    uint32_t recordings;             /* existing ones */
};

/* One for the process. The lock guards it, its streams, and memory. */
struct fake_gpu {
    pthread_mutex_t lock;
    struct fake_stream *streams;
    bool drawn; /* false: everything waits for its wait() */
    uint64_t seed;
    uint64_t draws;    /* the generator's state */
    uint32_t mood;     /* of 32 calls, so many let an operation run */
    uint32_t mood_end; /* the mood changes after so many calls */
    bool unrecorded;   /* new devices cannot record */
    bool first_alone;  /* new devices accept only channels first */
    struct fake_device_counts counts;
};
extern struct fake_gpu fake_gpu;

void fake_enter(void); /* take the lock, for all functions below */
void fake_leave(void);

/* ---- fake_run.c ---- */

const char *fake_name_of(const struct fake_operation *operation);
/* The stream's next wait() reports the first mistake, with the operation and where it was queued.
 */
void fake_note(struct fake_stream *stream, const struct fake_operation *operation,
               const char *format, ...) KELP_PRINTF(3, 4);
/* Note a mistake if the host has changed the source of a copy to the device. */
void fake_check_source(struct fake_stream *stream, const struct fake_operation *operation);
/* Run the stream's first `end` operations and those that they wait for; others may run
 * meanwhile. */
void fake_run_until(struct fake_stream *stream, size_t end);
/* Run as many operations of any streams as the seed wants; none without a seed. */
void fake_let_run(void);

/* ---- fake_queue.c ---- */

/* Append an operation, all zero. NULL: out of memory, which is noted. */
struct fake_operation *fake_queue_add(struct fake_stream *stream, struct fake_operations *to);
/* Note which memory the last queued operation reads and writes, and whether another stream may
 * access it at the same time. */
void fake_queue_touch(struct fake_stream *stream, const struct fake_operation *operation);
/* Fill in the copies and operators of a stream, which queue. */
void fake_queue_table(struct kelp_device_table *table);

#endif
