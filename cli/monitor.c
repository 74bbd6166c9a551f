#include "cli/monitor.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct kelp_monitor {
    struct kelp_client *client; /* the thread's own once it runs */
    pthread_t thread;
    bool thread_runs;
    int news_fd;
    int stop_fd;
    pthread_mutex_t lock;          /* guards newest and silence */
    Kelp__V1__StatusReply *newest; /* not taken yet, or NULL */
    struct kelp_error silence;
};

static void raise_event(int fd)
{
    uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof(one));

    (void)written; /* fails when it is raised already, which is as good */
}

static void publish(struct kelp_monitor *monitor, Kelp__V1__StatusReply *reply,
                    const struct kelp_error *silence)
{
    Kelp__V1__StatusReply *old = NULL;

    (void)pthread_mutex_lock(&monitor->lock);
    if (reply) {
        old = monitor->newest;
        monitor->newest = reply;
    }
    monitor->silence = *silence;
    (void)pthread_mutex_unlock(&monitor->lock);
    kelp_client_status_free(old);
    raise_event(monitor->news_fd);
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
        struct kelp_error silence = {.status = KELP_OK};
        kelp_status status =
            kelp_client_status(monitor->client, KELP_MONITOR_DEADLINE_MS, &reply, &silence);
        silence.status = status;
        publish(monitor, status == KELP_OK ? reply : NULL, &silence);
    } while (wait_period(monitor));
    return NULL;
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
        status = kelp_client_open(etcd_urls, job, &monitor->client, reterr);
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
    kelp_client_close(monitor->client);
    kelp_client_status_free(monitor->newest);
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

Kelp__V1__StatusReply *kelp_monitor_take(struct kelp_monitor *monitor,
                                         struct kelp_error *ret_silence)
{
    uint64_t count;
    ssize_t got = read(monitor->news_fd, &count, sizeof(count));

    (void)got; /* nothing raised: newest is NULL then */
    (void)pthread_mutex_lock(&monitor->lock);
    Kelp__V1__StatusReply *reply = monitor->newest;
    monitor->newest = NULL;
    if (ret_silence) {
        *ret_silence = monitor->silence;
    }
    (void)pthread_mutex_unlock(&monitor->lock);
    return reply;
}
