/*
 * Reading the next samples in a thread of its own while the model computes with these: for data
 * sets whose samples come from a disk. What is asked for is a guess; a wrong one costs a read and
 * changes nothing, since what is taken is compared with what is wanted.
 *
 * Threads: one caller at a time.
 */
#ifndef KELP_WORKER_COMPUTE_PREFETCH_H
#define KELP_WORKER_COMPUTE_PREFETCH_H

#include "worker/data/dataset.h"

struct kelp_prefetch;

/* Where samples are read to. */
struct kelp_sample_memory {
    void *(*alloc)(void *user, size_t bytes); /* NULL: there is none */
    void (*free)(void *user, void *memory);   /* NULL: nothing */
    /* Before what a batch was given is written again, input or target: waits for whoever still
     * reads it. NULL: nobody does, once another batch is asked for. */
    void (*release)(void *user, const float *memory);
    void *user;
};

/* Which samples. indices is borrowed until return. */
struct kelp_prefetch_batch {
    enum kelp_split split;
    const uint64_t *indices; /* valid ones of the split */
    uint32_t count;          /* at most count_max */
};

/* dataset and what memory->user is are borrowed until kelp_prefetch_destroy(). Errors:
 * KELP_ERR_NO_MEMORY, KELP_ERR_IO (no thread can be started). */
kelp_status kelp_prefetch_create(const struct kelp_dataset *dataset, uint32_t count_max,
                                 const struct kelp_sample_memory *memory,
                                 struct kelp_prefetch **ret_prefetch,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* Waits for the read that is in progress. NULL does nothing. */
void kelp_prefetch_destroy(struct kelp_prefetch *prefetch);

/* Read these soon. Forgotten when the thread still reads others, or when others are asked for
 * before they are taken. Never waits for a read. */
void kelp_prefetch_ask(struct kelp_prefetch *prefetch, const struct kelp_prefetch_batch *batch);

/*
 * If exactly these were asked for: wait until they are read, give the caller their buffers and keep
 * the caller's instead. *input and *target are of the same memory and have room for count_max
 * samples. True with
 * *ret_status set to what reading came to; false, with nothing changed, when others or none were
 * asked for.
 */
bool kelp_prefetch_take(struct kelp_prefetch *prefetch, const struct kelp_prefetch_batch *batch,
                        float **input, float **target, kelp_status *ret_status);

/* Have exactly these been asked for, and read? Does not wait. */
bool kelp_prefetch_is_read(struct kelp_prefetch *prefetch, const struct kelp_prefetch_batch *batch);

#endif
