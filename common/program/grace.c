#include "common/program/grace.h"

#include <errno.h>
#include <time.h>

#include "common/log/log.h"

void kelp_grace_init(struct kelp_grace *grace, uint32_t ms, void (*over)(void *user), void *user)
{
    pthread_condattr_t attributes;

    *grace = (struct kelp_grace){.ms = ms, .over = over, .user = user};
    (void)pthread_mutex_init(&grace->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&grace->change, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

static void *run(void *user)
{
    struct kelp_grace *grace = user;
    struct timespec until;
    int waited = 0;

    (void)clock_gettime(CLOCK_MONOTONIC, &until); /* cannot fail for this clock */
    until.tv_sec += grace->ms / 1000;
    until.tv_nsec += (long)(grace->ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&grace->lock);
    while (!grace->ended && waited != ETIMEDOUT) {
        waited = pthread_cond_timedwait(&grace->change, &grace->lock, &until);
    }
    bool over = !grace->ended;
    (void)pthread_mutex_unlock(&grace->lock);
    if (over) {
        grace->over(grace->user);
    }
    return NULL;
}

void kelp_grace_begin(struct kelp_grace *grace)
{
    (void)pthread_mutex_lock(&grace->lock);
    if (!grace->begun) {
        grace->begun = pthread_create(&grace->thread, NULL, run, grace) == 0;
        if (!grace->begun) {
            kelp_log_error("no thread to watch the grace period: it does not end by itself");
        }
    }
    (void)pthread_mutex_unlock(&grace->lock);
}

void kelp_grace_fini(struct kelp_grace *grace)
{
    (void)pthread_mutex_lock(&grace->lock);
    grace->ended = true;
    bool begun = grace->begun;
    (void)pthread_cond_signal(&grace->change);
    (void)pthread_mutex_unlock(&grace->lock);
    if (begun) {
        (void)pthread_join(grace->thread, NULL);
    }
    (void)pthread_cond_destroy(&grace->change);
    (void)pthread_mutex_destroy(&grace->lock);
}
