#include "cli/chaos/chaos_etcd.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/etcd/etcd_endpoint.h"

enum order { ORDER_NONE, ORDER_TAKE_AWAY, ORDER_KILL, ORDER_START, ORDER_END };

struct kelp_chaos_etcd {
    struct kelp_etcd_server_options options; /* the thread's, as is the server */
    struct kelp_etcd_server *server;
    char url[KELP_ETCD_ENDPOINT_MAX + 1]; /* written before open() returns */
    pthread_t thread;
    pthread_mutex_t lock;  /* guards what follows */
    pthread_cond_t change; /* of order */
    enum order order;      /* NONE: nothing to do, and the last one is done */
    bool in_order;         /* TAKE_AWAY */
    uint32_t away_ms;      /* TAKE_AWAY */
    pid_t pid;
    struct kelp_error error; /* of the last start */
};

/* ---- the thread; the lock is held when each begins and ends -------------------------------- */

static void stop(struct kelp_chaos_etcd *etcd, uint32_t grace_ms)
{
    etcd->pid = 0;
    (void)pthread_mutex_unlock(&etcd->lock);
    kelp_etcd_server_stop(etcd->server, grace_ms);
    etcd->server = NULL;
    (void)pthread_mutex_lock(&etcd->lock);
}

static void start(struct kelp_chaos_etcd *etcd)
{
    struct kelp_error error = {.status = KELP_OK};

    if (etcd->server) {
        return;
    }
    (void)pthread_mutex_unlock(&etcd->lock);
    kelp_status status = kelp_etcd_server_start(&etcd->options, &etcd->server, &error);
    (void)pthread_mutex_lock(&etcd->lock);
    error.status = status;
    etcd->error = error;
    if (status == KELP_OK) {
        etcd->pid = kelp_process_pid(kelp_etcd_server_process(etcd->server));
        etcd->options.client_port = kelp_etcd_server_port(etcd->server);
    }
}

/* Away for as long as it is to be, unless another order comes. */
static void take_away(struct kelp_chaos_etcd *etcd)
{
    const uint64_t end_ms = kelp_clock_ms() + etcd->away_ms;
    bool over = false;

    stop(etcd, etcd->in_order ? KELP_CHAOS_ETCD_GRACE_MS : 0);
    while (etcd->order == ORDER_TAKE_AWAY && !over) {
        over = !kelp_clock_wait(&etcd->change, &etcd->lock, end_ms);
    }
    if (etcd->order == ORDER_TAKE_AWAY) {
        start(etcd);
    }
}

/* True when the thread is to end. */
static bool carry_out(struct kelp_chaos_etcd *etcd)
{
    enum order order = etcd->order;

    switch (order) {
    case ORDER_TAKE_AWAY:
        take_away(etcd);
        break;
    case ORDER_KILL:
    case ORDER_END:
        stop(etcd, 0);
        break;
    case ORDER_START:
        start(etcd);
        break;
    case ORDER_NONE:
        (void)pthread_cond_wait(&etcd->change, &etcd->lock);
        return false;
    }
    if (etcd->order == order) { /* no other came meanwhile */
        etcd->order = ORDER_NONE;
        (void)pthread_cond_broadcast(&etcd->change);
    }
    return order == ORDER_END;
}

static void *etcd_thread(void *user)
{
    struct kelp_chaos_etcd *etcd = user;

    (void)pthread_mutex_lock(&etcd->lock);
    while (!carry_out(etcd)) {
    }
    (void)pthread_mutex_unlock(&etcd->lock);
    return NULL;
}

/* ---- the caller ---------------------------------------------------------------------------- */

/* Give an order, in place of one that is under way, and wait until it is carried out. */
static void order_and_wait(struct kelp_chaos_etcd *etcd, enum order order)
{
    (void)pthread_mutex_lock(&etcd->lock);
    etcd->order = order;
    (void)pthread_cond_broadcast(&etcd->change);
    while (etcd->order != ORDER_NONE) {
        (void)pthread_cond_wait(&etcd->change, &etcd->lock);
    }
    (void)pthread_mutex_unlock(&etcd->lock);
}

kelp_status kelp_chaos_etcd_start(struct kelp_chaos_etcd *etcd, struct kelp_error *reterr)
{
    pid_t pid = 0;

    order_and_wait(etcd, ORDER_START);
    return kelp_chaos_etcd_pid(etcd, &pid, reterr);
}

void kelp_chaos_etcd_kill(struct kelp_chaos_etcd *etcd)
{
    order_and_wait(etcd, ORDER_KILL);
}

static kelp_status make_thread(struct kelp_chaos_etcd *etcd, struct kelp_error *reterr)
{
    (void)pthread_mutex_init(&etcd->lock, NULL);
    (void)pthread_cond_init(&etcd->change, NULL);
    int error = pthread_create(&etcd->thread, NULL, etcd_thread, etcd);
    return error == 0
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "pthread_create: %s", strerror(error));
}

kelp_status kelp_chaos_etcd_open(const struct kelp_etcd_server_options *options,
                                 struct kelp_chaos_etcd **ret_etcd, struct kelp_error *reterr)
{
    struct kelp_chaos_etcd *etcd = calloc(1, sizeof(*etcd));

    if (!etcd) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    etcd->options = *options;
    kelp_status status = make_thread(etcd, reterr);
    if (status != KELP_OK) {
        (void)pthread_cond_destroy(&etcd->change);
        (void)pthread_mutex_destroy(&etcd->lock);
        free(etcd);
        return status;
    }
    status = kelp_chaos_etcd_start(etcd, reterr);
    if (status != KELP_OK) {
        kelp_chaos_etcd_close(etcd);
        return status;
    }
    /* The port or the socket stays, and with it the address. */
    (void)snprintf(etcd->url, sizeof(etcd->url), "%s", kelp_etcd_server_url(etcd->server));
    *ret_etcd = etcd;
    return KELP_OK;
}

void kelp_chaos_etcd_close(struct kelp_chaos_etcd *etcd)
{
    if (!etcd) {
        return;
    }
    order_and_wait(etcd, ORDER_END);
    (void)pthread_join(etcd->thread, NULL);
    (void)pthread_cond_destroy(&etcd->change);
    (void)pthread_mutex_destroy(&etcd->lock);
    free(etcd);
}

const char *kelp_chaos_etcd_url(const struct kelp_chaos_etcd *etcd)
{
    return etcd->url;
}

kelp_status kelp_chaos_etcd_pid(struct kelp_chaos_etcd *etcd, pid_t *ret_pid,
                                struct kelp_error *reterr)
{
    (void)pthread_mutex_lock(&etcd->lock);
    struct kelp_error error = etcd->error;
    *ret_pid = etcd->order == ORDER_NONE ? etcd->pid : 0;
    (void)pthread_mutex_unlock(&etcd->lock);
    return error.status == KELP_OK ? KELP_OK : kelp_fail(reterr, error.status, "%s", error.text);
}

void kelp_chaos_etcd_take_away(struct kelp_chaos_etcd *etcd, bool in_order, uint32_t away_ms)
{
    (void)pthread_mutex_lock(&etcd->lock);
    assert(etcd->order == ORDER_NONE && etcd->pid > 0);
    etcd->order = ORDER_TAKE_AWAY;
    etcd->in_order = in_order;
    etcd->away_ms = away_ms;
    (void)pthread_cond_broadcast(&etcd->change);
    (void)pthread_mutex_unlock(&etcd->lock);
}
