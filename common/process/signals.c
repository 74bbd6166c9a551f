#include "common/process/signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct kelp_signals {
    pthread_t thread;
    void (*stop)(int signal_number, void *user);
    void *user;
    int ended; /* atomic: kelp_signals_stop() sent the signal that woke the thread */
};

/* The waiting thread, for the handler only (docs/ARCHITECTURE.md, "Globals"). */
static pthread_t waiting_thread;

/* Libraries start threads before main() blocks signals (OpenBLAS does when it is loaded). The
 * kernel may deliver a signal to one of these, which then passes it on. */
static void pass_on(int number)
{
    (void)pthread_kill(waiting_thread, number);
}

static sigset_t stop_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    return set;
}

static void *wait_for_signals(void *user)
{
    struct kelp_signals *signals = user;
    sigset_t set = stop_signals();
    for (;;) {
        int number;
        if (sigwait(&set, &number) != 0) {
            continue;
        }
        if (__atomic_load_n(&signals->ended, __ATOMIC_ACQUIRE)) {
            return NULL;
        }
        signals->stop(number, signals->user);
    }
}

kelp_status kelp_signals_start(void (*stop)(int signal_number, void *user), void *user,
                               struct kelp_signals **ret_signals, struct kelp_error *reterr)
{
    sigset_t set = stop_signals();
    struct kelp_signals *signals = calloc(1, sizeof(*signals));
    if (!signals) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "signals: out of memory");
    }
    signals->stop = stop;
    signals->user = user;
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL); /* fails only for a bad first argument */
    if (pthread_create(&signals->thread, NULL, wait_for_signals, signals) != 0) {
        free(signals);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "signals: no thread");
    }
    waiting_thread = signals->thread;
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
    *ret_signals = signals;
    return KELP_OK;
}

void kelp_signals_stop(struct kelp_signals *signals)
{
    if (!signals) {
        return;
    }
    __atomic_store_n(&signals->ended, 1, __ATOMIC_RELEASE);
    (void)signal(SIGTERM, SIG_IGN); /* the waiting thread will be gone */
    (void)signal(SIGINT, SIG_IGN);
    (void)pthread_kill(signals->thread, SIGTERM); /* the thread exists until it is joined */
    (void)pthread_join(signals->thread, NULL);
    free(signals);
}
