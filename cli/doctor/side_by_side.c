#include "cli/doctor/side_by_side.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

struct looks {
    void (*look)(size_t index, void *user);
    void *user;
    size_t count;
    atomic_size_t next;
};

static void *work(void *user)
{
    struct looks *looks = user;

    for (size_t i = atomic_fetch_add(&looks->next, 1); i < looks->count;
         i = atomic_fetch_add(&looks->next, 1)) {
        looks->look(i, looks->user);
    }
    return NULL;
}

void kelp_side_by_side(size_t count, void (*look)(size_t index, void *user), void *user)
{
    struct looks looks = {.look = look, .user = user, .count = count};
    pthread_t threads[KELP_SIDE_BY_SIDE_MAX];
    size_t started = 0;

    while (started + 1 < count && started < KELP_SIDE_BY_SIDE_MAX &&
           pthread_create(&threads[started], NULL, work, &looks) == 0) {
        started++;
    }
    (void)work(&looks); /* this thread takes its part */
    for (size_t i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

struct one {
    void (*look)(void *user);
    void *user;
};

static void *look_once(void *user)
{
    const struct one one = *(struct one *)user;

    free(user);
    one.look(one.user);
    return NULL;
}

bool kelp_side_wait(void (*look)(void *user), void *user, uint64_t end_ms)
{
    const struct timespec end = {.tv_sec = (time_t)(end_ms / 1000),
                                 .tv_nsec = (long)(end_ms % 1000) * 1000000};
    struct one *one = malloc(sizeof(*one));
    pthread_t thread;

    if (one) {
        *one = (struct one){.look = look, .user = user};
    }
    if (!one || pthread_create(&thread, NULL, look_once, one) != 0) {
        free(one);
        look(user);
        return true;
    }
    if (pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &end) == 0) {
        return true;
    }
    (void)pthread_detach(thread);
    return false;
}
