#include "cli/launch/monitor.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cli/checkpoint/checkpoint_request.h"
#include "common/base/clock.h"

struct kelp_monitor {
    struct kelp_job_client *client; /* the thread's own once it runs */
    pthread_t thread;
    bool thread_runs;
    int news_fd;
    int stop_fd;
    pthread_mutex_t lock;          /* guards newest and newest_ms */
    Kelp__V1__StatusReply *newest; /* not taken yet, or NULL */
    uint64_t newest_ms;            /* when it was asked for */
    atomic_bool pause;             /* wanted */
    struct kelp_request request;   /* the thread's: for that */
    uint64_t press_ms;             /* not earlier, after a checkpoint that failed */
};

static void raise_event(int fd)
{
    uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof(one));

    (void)written; /* fails when it is raised already, which is as good */
}

/* The reader is woken without an answer too: it may have to say that there is none. */
static void publish(struct kelp_monitor *monitor, Kelp__V1__StatusReply *reply, uint64_t asked_ms)
{
    Kelp__V1__StatusReply *old = NULL;

    (void)pthread_mutex_lock(&monitor->lock);
    if (reply) {
        old = monitor->newest;
        monitor->newest = reply;
        monitor->newest_ms = asked_ms;
    }
    (void)pthread_mutex_unlock(&monitor->lock);
    kelp_job_client_status_free(old);
    raise_event(monitor->news_fd);
}

/* Ask for the checkpoint unless that is under way. */
static void press_for_pause(struct kelp_monitor *monitor, const Kelp__V1__StatusReply *reply)
{
    uint64_t serial = 0;
    enum kelp_request_news news = kelp_request_take(&monitor->request, reply);

    if (news == KELP_REQUEST_REFUSED && monitor->press_ms == 0) {
        monitor->press_ms = kelp_clock_ms() + KELP_MONITOR_REFUSED_MS;
    }
    if (news == KELP_REQUEST_WAITS || strcmp(reply->state, "paused") == 0 ||
        kelp_clock_ms() < monitor->press_ms) {
        return;
    }
    monitor->press_ms = 0;
    if (kelp_job_client_checkpoint(monitor->client, true, KELP_MONITOR_DEADLINE_MS, &serial,
                                   NULL) == KELP_OK) {
        kelp_request_made(&monitor->request, serial);
    }
}

/* False when the monitor is to stop. */
static bool wait_period(struct kelp_monitor *monitor)
{
    struct pollfd item = {.fd = monitor->stop_fd, .events = POLLIN};

    return poll(&item, 1, KELP_MONITOR_PERIOD_MS) <= 0;
}

static void *monitor_thread(void *user)
{
    struct kelp_monitor *monitor = user;

    do {
        Kelp__V1__StatusReply *reply = NULL;
        uint64_t asked_ms = kelp_clock_ms();
        /* Who does not answer is a matter of the status's age: nobody needs the error. */
        kelp_status status =
            kelp_job_client_status(monitor->client, KELP_MONITOR_DEADLINE_MS, &reply, NULL);
        if (status == KELP_OK && atomic_load(&monitor->pause)) {
            press_for_pause(monitor, reply);
        }
        publish(monitor, reply, asked_ms);
    } while (wait_period(monitor));
    return NULL;
}

void kelp_monitor_pause(struct kelp_monitor *monitor)
{
    atomic_store(&monitor->pause, true);
}

kelp_status kelp_monitor_start(const char *etcd_urls, const char *job,
                               struct kelp_monitor **ret_monitor, struct kelp_error *reterr)
{
    struct kelp_monitor *monitor = calloc(1, sizeof(*monitor));

    if (!monitor) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    (void)pthread_mutex_init(&monitor->lock, NULL);
    monitor->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    monitor->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    kelp_status status = KELP_OK;
    if (monitor->news_fd < 0 || monitor->stop_fd < 0) {
        status = kelp_fail(reterr, KELP_ERR_IO, "eventfd: %s", strerror(errno));
    }
    if (status == KELP_OK) {
        status = kelp_job_client_open(etcd_urls, job, &monitor->client, reterr);
    }
    if (status == KELP_OK) {
        int error = pthread_create(&monitor->thread, NULL, monitor_thread, monitor);
        monitor->thread_runs = error == 0;
        if (error != 0) {
            status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "pthread_create: %s", strerror(error));
        }
    }
    if (status != KELP_OK) {
        kelp_monitor_stop(monitor);
        return status;
    }
    *ret_monitor = monitor;
    return KELP_OK;
}

void kelp_monitor_stop(struct kelp_monitor *monitor)
{
    if (!monitor) {
        return;
    }
    if (monitor->thread_runs) {
        raise_event(monitor->stop_fd);
        (void)pthread_join(monitor->thread, NULL);
    }
    kelp_job_client_close(monitor->client);
    kelp_job_client_status_free(monitor->newest);
    if (monitor->news_fd >= 0) {
        (void)close(monitor->news_fd);
    }
    if (monitor->stop_fd >= 0) {
        (void)close(monitor->stop_fd);
    }
    (void)pthread_mutex_destroy(&monitor->lock);
    free(monitor);
}

int kelp_monitor_fd(const struct kelp_monitor *monitor)
{
    return monitor->news_fd;
}

Kelp__V1__StatusReply *kelp_monitor_take(struct kelp_monitor *monitor, uint64_t *ret_asked_ms)
{
    uint64_t count;
    ssize_t got = read(monitor->news_fd, &count, sizeof(count));

    (void)got; /* nothing raised: newest is NULL then */
    (void)pthread_mutex_lock(&monitor->lock);
    Kelp__V1__StatusReply *reply = monitor->newest;
    *ret_asked_ms = monitor->newest_ms;
    monitor->newest = NULL;
    (void)pthread_mutex_unlock(&monitor->lock);
    return reply;
}
