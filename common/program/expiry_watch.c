#include "common/program/expiry_watch.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/log/log.h"

#define LOOK_MS UINT64_C(3600000)
#define DAY_S   INT64_C(86400)

struct kelp_expiry_watch {
    struct kelp_credentials *credentials;
    int64_t told_s; /* last warning; used by the thread; 0: none */
    pthread_t thread;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t change;
    bool stopped;
};

/* Warn if the certificate ends soon. False: it does not. */
static bool tell_of(const struct kelp_certificate *certificate, const char *what, int64_t now_s,
                    const char *folder)
{
    char until[KELP_CERTIFICATE_DATE_BYTES];
    const bool over = certificate->until_s < now_s;

    if (!kelp_certificate_ends_soon(certificate, now_s)) {
        return false;
    }
    kelp_certificate_date(certificate->until_s, until);
    kelp_log_warn("the %s %s until=%s days_left=%" PRId64 " folder=%s", what,
                  over ? "has ended: no new connection is accepted"
                       : "ends soon: write a new one over it",
                  until, over ? 0 : (certificate->until_s - now_s) / DAY_S, folder);
    return true;
}

static void tell(struct kelp_expiry_watch *watch)
{
    const int64_t now_s = (int64_t)time(NULL);
    const char *folder = kelp_credentials_folder(watch->credentials);
    struct kelp_certificate own, authority;
    struct kelp_error error;

    (void)kelp_credentials_refresh(watch->credentials, &error);
    if (error.status != KELP_OK) {
        kelp_log_warn("certificates not reloaded, the previous ones stay in use reason=\"%s\"",
                      error.text);
    }
    if (watch->told_s != 0 && now_s - watch->told_s < DAY_S) {
        return;
    }
    kelp_credentials_certificates(watch->credentials, &own, &authority);
    bool told = tell_of(&own, "certificate", now_s, folder);
    told = tell_of(&authority, "authority", now_s, folder) || told;
    watch->told_s = told ? now_s : watch->told_s;
}

static void *look(void *user)
{
    struct kelp_expiry_watch *watch = user;

    (void)pthread_mutex_lock(&watch->lock);
    while (!watch->stopped) {
        (void)pthread_mutex_unlock(&watch->lock);
        tell(watch);
        const uint64_t next_ms = kelp_clock_ms() + LOOK_MS;
        (void)pthread_mutex_lock(&watch->lock);
        while (!watch->stopped && kelp_clock_wait(&watch->change, &watch->lock, next_ms)) {
        }
    }
    (void)pthread_mutex_unlock(&watch->lock);
    return NULL;
}

/* Another thread waits for signals. */
static int start_thread(struct kelp_expiry_watch *watch)
{
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&watch->thread, NULL, look, watch);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void destroy(struct kelp_expiry_watch *watch)
{
    (void)pthread_cond_destroy(&watch->change);
    (void)pthread_mutex_destroy(&watch->lock);
    free(watch);
}

kelp_status kelp_expiry_watch_start(struct kelp_credentials *credentials,
                                    struct kelp_expiry_watch **ret_watch, struct kelp_error *reterr)
{
    *ret_watch = NULL;
    if (!credentials) {
        return KELP_OK;
    }
    struct kelp_expiry_watch *watch = calloc(1, sizeof(*watch));
    if (!watch) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    watch->credentials = credentials;
    (void)pthread_mutex_init(&watch->lock, NULL);
    (void)pthread_cond_init(&watch->change, NULL);
    int error = start_thread(watch);
    if (error != 0) {
        destroy(watch);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no thread: %s", strerror(error));
    }
    *ret_watch = watch;
    return KELP_OK;
}

void kelp_expiry_watch_stop(struct kelp_expiry_watch *watch)
{
    if (!watch) {
        return;
    }
    (void)pthread_mutex_lock(&watch->lock);
    watch->stopped = true;
    (void)pthread_cond_signal(&watch->change);
    (void)pthread_mutex_unlock(&watch->lock);
    (void)pthread_join(watch->thread, NULL);
    destroy(watch);
}
