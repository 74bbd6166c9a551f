#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "common/base/clock.h"
#include "common/etcd/etcd_internal.h"

/*
 * The background thread: it takes posts from other threads, fires timers, lets curl transfer,
 * reports finished transfers and passes received lines to the watches. Then it sleeps in
 * curl_multi_poll() until a socket, a timer or a post (curl_multi_wakeup) needs attention.
 */

enum {
    LOOP_POLL_MAX_MS = 60000, /* longest sleep without timers */
    CONNECTIONS_MAX = 8,      /* idle ones kept for reuse */
};

int64_t kelp__etcd_now_ms(void)
{
    return (int64_t)kelp_clock_ms();
}

/* ---- timers ---- */

void kelp__etcd_timer_init(struct kelp_etcd *etcd, struct etcd_timer *timer,
                           void (*fire)(void *user), void *user)
{
    timer->at_ms = INT64_MAX;
    timer->fire = fire;
    timer->user = user;
    LIST_INSERT_HEAD(&etcd->timers, timer, link);
}

void kelp__etcd_timer_fini(struct etcd_timer *timer)
{
    if (timer->fire) {
        LIST_REMOVE(timer, link);
        timer->fire = NULL;
    }
}

static struct etcd_timer *next_timer(const struct kelp_etcd *etcd)
{
    struct etcd_timer *next = NULL;
    struct etcd_timer *timer;

    LIST_FOREACH(timer, &etcd->timers, link)
    {
        if (!next || timer->at_ms < next->at_ms) {
            next = timer;
        }
    }
    return next;
}

/* One at a time, with a new search each time, because firing one may end others. */
static void fire_timers(struct kelp_etcd *etcd)
{
    int64_t now_ms = kelp__etcd_now_ms();
    struct etcd_timer *timer;

    while ((timer = next_timer(etcd)) && timer->at_ms <= now_ms) {
        timer->at_ms = INT64_MAX;
        timer->fire(timer->user);
    }
}

/* ---- transfers ---- */

/* NULL: out of memory. token: added as a header, or NULL. */
static struct curl_slist *make_headers(bool chunked, const char *token)
{
    const char *const lines[] = {
        "Content-Type: application/json",
        /* Empty: no "Expect: 100-continue", which would cost large requests a round trip. */
        "Expect:",
        token,
        chunked ? "Transfer-Encoding: chunked" : NULL,
        /* Go's HTTP/1.1 server reads a whole request before it answers, unless the connection
         * will be closed afterwards: only then do both directions flow at once. */
        chunked ? "Connection: close" : NULL,
    };
    struct curl_slist *headers = NULL;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(lines); i++) {
        struct curl_slist *longer = lines[i] ? curl_slist_append(headers, lines[i]) : headers;
        if (!longer) {
            curl_slist_free_all(headers);
            return NULL;
        }
        headers = longer;
    }
    return headers;
}

kelp_status kelp__etcd_transfer_prepare(struct kelp_etcd *etcd, struct etcd_transfer *transfer,
                                        const char *path, size_t endpoint)
{
    CURL *curl = curl_easy_init();

    assert(!transfer->curl);
    if (!curl) {
        return KELP_ERR_NO_MEMORY;
    }
    transfer->curl = curl;
    kelp_status status = kelp_etcd_endpoint_apply(curl, etcd->endpoints[endpoint], path);
    if (status != KELP_OK) {
        return status;
    }
    if (etcd->certificates) {
        status = kelp_etcd_certificates_apply(curl, etcd->certificates);
        if (status != KELP_OK) {
            return status;
        }
    }
    (void)curl_easy_setopt(curl, CURLOPT_PRIVATE, transfer);
    (void)curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(curl, CURLOPT_POST, 1L);
    transfer->headers = make_headers(transfer->streams, etcd->token);
    if (!transfer->headers) {
        return KELP_ERR_NO_MEMORY;
    }
    (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, transfer->headers);
    (void)curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)ETCD_CONNECT_MS);
    return KELP_OK;
}

kelp_status kelp__etcd_transfer_start(struct kelp_etcd *etcd, struct etcd_transfer *transfer)
{
    return curl_multi_add_handle(etcd->multi, transfer->curl) == CURLM_OK ? KELP_OK
                                                                          : KELP_ERR_NO_MEMORY;
}

void kelp__etcd_transfer_end(struct kelp_etcd *etcd, struct etcd_transfer *transfer)
{
    if (transfer->curl) {
        (void)curl_multi_remove_handle(etcd->multi, transfer->curl); /* also when not added */
        curl_easy_cleanup(transfer->curl);
        curl_slist_free_all(transfer->headers);
        transfer->curl = NULL;
        transfer->headers = NULL;
    }
}

void kelp__etcd_endpoint_failed(struct kelp_etcd *etcd, size_t endpoint)
{
    if (etcd->endpoint == endpoint) {
        etcd->endpoint = (endpoint + 1) % etcd->endpoint_count;
    }
}

static void report_ended(struct kelp_etcd *etcd)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(etcd->multi, &left))) {
        struct etcd_transfer *transfer = NULL;
        CURLcode code = message->data.result; /* message is freed with the handle */
        if (message->msg == CURLMSG_DONE) {
            (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
            transfer->ended(transfer, code);
        }
    }
}

/* ---- the thread ---- */

static void run_posts(struct kelp_etcd *etcd)
{
    struct etcd_post *post;

    (void)pthread_mutex_lock(&etcd->lock);
    while ((post = TAILQ_FIRST(&etcd->posts))) {
        TAILQ_REMOVE(&etcd->posts, post, link);
        (void)pthread_mutex_unlock(&etcd->lock);
        post->run(etcd, post->user);
        (void)pthread_mutex_lock(&etcd->lock);
        post->done = true;
        (void)pthread_cond_broadcast(&etcd->changed);
    }
    (void)pthread_mutex_unlock(&etcd->lock);
}

static int poll_ms(const struct kelp_etcd *etcd)
{
    const struct etcd_timer *timer = next_timer(etcd);
    int64_t wait_ms = LOOP_POLL_MAX_MS;

    if (timer && timer->at_ms != INT64_MAX) {
        wait_ms = timer->at_ms - kelp__etcd_now_ms();
    }
    return wait_ms < 0 ? 0 : wait_ms > LOOP_POLL_MAX_MS ? LOOP_POLL_MAX_MS : (int)wait_ms;
}

static void *run_thread(void *user)
{
    struct kelp_etcd *etcd = user;
    int running;

    (void)prctl(PR_SET_NAME, "kelp-etcd");
    do {
        run_posts(etcd);
        fire_timers(etcd);
        (void)curl_multi_perform(etcd->multi, &running);
        report_ended(etcd);
        kelp__etcd_watches_work(etcd);
        if (!etcd->closing || etcd->call_count > 0) {
            /* Returns at once if a post has come in the meantime. */
            (void)curl_multi_poll(etcd->multi, NULL, 0, poll_ms(etcd), NULL);
        }
    } while (!etcd->closing || etcd->call_count > 0);
    return NULL;
}

void kelp__etcd_run(struct kelp_etcd *etcd, void (*run)(struct kelp_etcd *etcd, void *user),
                    void *user)
{
    struct etcd_post post = {.run = run, .user = user};

    assert(!pthread_equal(pthread_self(), etcd->thread)); /* it would wait for itself */
    (void)pthread_mutex_lock(&etcd->lock);
    TAILQ_INSERT_TAIL(&etcd->posts, &post, link);
    (void)curl_multi_wakeup(etcd->multi);
    while (!post.done) {
        (void)pthread_cond_wait(&etcd->changed, &etcd->lock);
    }
    (void)pthread_mutex_unlock(&etcd->lock);
}

/* ---- open and close ---- */

static kelp_status set_certificates(struct kelp_etcd *etcd, const char *folder,
                                    struct kelp_error *reterr)
{
    for (size_t i = 0; i < etcd->endpoint_count; i++) {
        if (!kelp_etcd_endpoint_is_safe(etcd->endpoints[i])) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "etcd endpoint '%s' is not encrypted: with --certs it must be "
                             "https://HOST:PORT or unix:/PATH",
                             etcd->endpoints[i]);
        }
    }
    etcd->certificates = calloc(1, sizeof(*etcd->certificates));
    etcd->login_folder = strdup(folder);
    return etcd->certificates && etcd->login_folder
               ? kelp_etcd_certificates_init(etcd->certificates, folder, reterr)
               : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

static void free_client(struct kelp_etcd *etcd)
{
    curl_multi_cleanup(etcd->multi);
    kelp__etcd_forget_token(etcd);
    free(etcd->login_folder);
    (void)pthread_cond_destroy(&etcd->changed);
    (void)pthread_mutex_destroy(&etcd->lock);
    free(etcd->endpoints);
    free(etcd->certificates);
    free(etcd);
}

/* The program's other threads handle signals. */
static int start_thread(struct kelp_etcd *etcd)
{
    sigset_t all;
    sigset_t before;

    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&etcd->thread, NULL, run_thread, etcd);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

kelp_status kelp_etcd_open(const char *endpoints, struct kelp_etcd **ret_etcd,
                           struct kelp_error *reterr)
{
    return kelp_etcd_open_certified(endpoints, NULL, ret_etcd, reterr);
}

kelp_status kelp_etcd_open_certified(const char *endpoints, const char *folder,
                                     struct kelp_etcd **ret_etcd, struct kelp_error *reterr)
{
    struct kelp_etcd *etcd = calloc(1, sizeof(*etcd));

    if (!etcd) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    LIST_INIT(&etcd->timers);
    LIST_INIT(&etcd->leases);
    LIST_INIT(&etcd->watches);
    LIST_INIT(&etcd->elections);
    TAILQ_INIT(&etcd->posts);
    (void)pthread_mutex_init(&etcd->lock, NULL);
    (void)pthread_cond_init(&etcd->changed, NULL);
    etcd->multi = curl_multi_init();
    LIST_INIT(&etcd->waiting);
    kelp_status status =
        kelp_etcd_endpoints_parse(endpoints, &etcd->endpoints, &etcd->endpoint_count, reterr);
    if (status == KELP_OK && folder) {
        status = set_certificates(etcd, folder, reterr);
    }
    if (status == KELP_OK && !etcd->multi) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    if (status == KELP_OK) {
        (void)curl_multi_setopt(etcd->multi, CURLMOPT_MAXCONNECTS, (long)CONNECTIONS_MAX);
        if (start_thread(etcd) != 0) {
            status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no thread for the etcd client");
        }
    }
    if (status != KELP_OK) {
        free_client(etcd);
        return status;
    }
    *ret_etcd = etcd;
    return KELP_OK;
}

static void begin_close(struct kelp_etcd *etcd, void *user)
{
    struct kelp_etcd_election *election;
    struct kelp_etcd_watch *watch;
    struct kelp_etcd_lease *lease;

    (void)user;
    while ((election = LIST_FIRST(&etcd->elections))) {
        kelp__etcd_revoke(etcd, kelp__etcd_election_end(election));
    }
    while ((watch = LIST_FIRST(&etcd->watches))) {
        kelp__etcd_watch_end(watch);
    }
    while ((lease = LIST_FIRST(&etcd->leases))) {
        kelp__etcd_revoke(etcd, kelp__etcd_lease_end(lease));
    }
    kelp__etcd_login_cancel(etcd);
    etcd->closing = true; /* the thread ends with the last revocation */
}

void kelp_etcd_close(struct kelp_etcd *etcd)
{
    if (!etcd) {
        return;
    }
    kelp__etcd_run(etcd, begin_close, NULL);
    (void)pthread_join(etcd->thread, NULL);
    assert(LIST_EMPTY(&etcd->timers));
    free_client(etcd);
}
