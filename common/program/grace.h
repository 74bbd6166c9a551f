/*
 * The time that a daemon has to end gracefully, once it was asked to. When it is over the process
 * ends without the rest: what is left undone must be of the kind that a kill may leave undone.
 */
#ifndef KELP_COMMON_PROGRAM_GRACE_H
#define KELP_COMMON_PROGRAM_GRACE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* In the caller's memory. */
struct kelp_grace {
    uint32_t ms;
    void (*over)(void *user); /* the time is over; on a thread of its own */
    void *user;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t change;
    bool begun;
    bool ended;
};

void kelp_grace_init(struct kelp_grace *grace, uint32_t ms, void (*over)(void *user), void *user);
/* The time begins, or has begun: in ms over() is called, once. Any thread. */
void kelp_grace_begin(struct kelp_grace *grace);
/* The process ends gracefully: over() is not called any more. */
void kelp_grace_fini(struct kelp_grace *grace);

#endif
