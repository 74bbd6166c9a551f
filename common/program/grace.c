#include "common/program/grace.h"

#include "common/base/clock.h"
#include "common/log/log.h"

void kelp_grace_init(struct kelp_grace *grace, uint32_t ms, void (*over)(void *user), void *user)
{
    *grace = (struct kelp_grace){.ms = ms, .over = over, .user = user};
    (void)pthread_mutex_init(&grace->lock, NULL);
    (void)pthread_cond_init(&grace->change, NULL);
}

static void *run(void *user)
{
    struct kelp_grace *grace = user;
    const uint64_t until_ms = kelp_clock_ms() + grace->ms;

    (void)pthread_mutex_lock(&grace->lock);
    while (!grace->ended && kelp_clock_wait(&grace->change, &grace->lock, until_ms)) {
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
