#include "worker/links/loop_keeper.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/clock.h"

#define PATIENCE_MS 50u /* the keeper takes the loop after the owner was away this long */

struct kelp_loop_keeper {
    struct kelp_rpc_loop *loop;
    void (*ran)(void *user);
    void *user;
    pthread_t thread;
    atomic_bool wanted; /* the owner wants the loop back */

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    bool away;
    bool paused;
    bool at_once;     /* take the loop without waiting */
    uint64_t away_ms; /* when the owner left */
    bool keeping;     /* the keeper has the loop */
    bool stop;
};

static void keep(struct kelp_loop_keeper *keeper)
{
    while (!atomic_load(&keeper->wanted)) {
        if (kelp_rpc_loop_run(keeper->loop, -1)) {
            keeper->ran(keeper->user);
        }
    }
}

/* The lock is held. */
static void wait_a_while(struct kelp_loop_keeper *keeper)
{
    (void)kelp_clock_wait(&keeper->changed, &keeper->lock, kelp_clock_ms() + PATIENCE_MS);
}

/* The owner may return soon. The lock is held. */
static bool is_early(const struct kelp_loop_keeper *keeper)
{
    return !keeper->at_once && kelp_clock_ms() - keeper->away_ms < PATIENCE_MS;
}

/* The lock is held. */
static void hurry(struct kelp_loop_keeper *keeper)
{
    if (keeper->at_once) {
        (void)pthread_cond_broadcast(&keeper->changed);
    }
}

static void *run(void *user)
{
    struct kelp_loop_keeper *keeper = user;

    (void)pthread_mutex_lock(&keeper->lock);
    while (!keeper->stop) {
        if (!keeper->away || keeper->paused || is_early(keeper)) {
            wait_a_while(keeper);
            continue;
        }
        keeper->keeping = true;
        (void)pthread_mutex_unlock(&keeper->lock);
        keep(keeper);
        (void)pthread_mutex_lock(&keeper->lock);
        keeper->keeping = false;
        (void)pthread_cond_broadcast(&keeper->changed);
    }
    (void)pthread_mutex_unlock(&keeper->lock);
    return NULL;
}

kelp_status kelp_loop_keeper_start(struct kelp_rpc_loop *loop, void (*ran)(void *user), void *user,
                                   struct kelp_loop_keeper **ret_keeper, struct kelp_error *reterr)
{
    struct kelp_loop_keeper *keeper = calloc(1, sizeof(*keeper));

    if (!keeper) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a thread");
    }
    keeper->loop = loop;
    keeper->ran = ran;
    keeper->user = user;
    (void)pthread_mutex_init(&keeper->lock, NULL);
    (void)pthread_cond_init(&keeper->changed, NULL);
    if (pthread_create(&keeper->thread, NULL, run, keeper) != 0) {
        (void)pthread_cond_destroy(&keeper->changed);
        (void)pthread_mutex_destroy(&keeper->lock);
        free(keeper);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no thread for the worker's streams");
    }
    *ret_keeper = keeper;
    return KELP_OK;
}

/* The lock is held. */
static void take_back(struct kelp_loop_keeper *keeper)
{
    if (!keeper->keeping) {
        return;
    }
    atomic_store(&keeper->wanted, true);
    kelp_rpc_loop_wake(keeper->loop);
    while (keeper->keeping) {
        (void)pthread_cond_wait(&keeper->changed, &keeper->lock);
    }
    atomic_store(&keeper->wanted, false);
}

void kelp_loop_keeper_leave(struct kelp_loop_keeper *keeper, bool at_once)
{
    (void)pthread_mutex_lock(&keeper->lock);
    keeper->away = true;
    keeper->paused = false;
    keeper->at_once = at_once;
    keeper->away_ms = kelp_clock_ms();
    hurry(keeper);
    (void)pthread_mutex_unlock(&keeper->lock);
}

void kelp_loop_keeper_return(struct kelp_loop_keeper *keeper)
{
    (void)pthread_mutex_lock(&keeper->lock);
    keeper->away = false;
    take_back(keeper);
    (void)pthread_mutex_unlock(&keeper->lock);
}

void kelp_loop_keeper_pause(struct kelp_loop_keeper *keeper)
{
    (void)pthread_mutex_lock(&keeper->lock);
    keeper->paused = true;
    take_back(keeper);
    (void)pthread_mutex_unlock(&keeper->lock);
}

void kelp_loop_keeper_resume(struct kelp_loop_keeper *keeper)
{
    (void)pthread_mutex_lock(&keeper->lock);
    keeper->paused = false;
    hurry(keeper);
    (void)pthread_mutex_unlock(&keeper->lock);
}

void kelp_loop_keeper_stop(struct kelp_loop_keeper *keeper)
{
    if (!keeper) {
        return;
    }
    (void)pthread_mutex_lock(&keeper->lock);
    keeper->away = false;
    keeper->stop = true;
    take_back(keeper);
    (void)pthread_cond_broadcast(&keeper->changed);
    (void)pthread_mutex_unlock(&keeper->lock);
    (void)pthread_join(keeper->thread, NULL);
    (void)pthread_cond_destroy(&keeper->changed);
    (void)pthread_mutex_destroy(&keeper->lock);
    free(keeper);
}
