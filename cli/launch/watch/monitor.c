#include "cli/launch/watch/monitor.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cli/checkpoint/checkpoint_request.h"
#include "cli/launch/watch/watcher.h"
#include "common/base/clock.h"

struct kelp_monitor {
    struct kelp_job_client *client; /* the thread's own once it runs */
    struct kelp_watcher *watcher;
    Kelp__V1__StatusReply *newest; /* not taken yet, or NULL; under the watcher's lock */
    uint64_t newest_ms;            /* when it was asked for; likewise */
    atomic_bool pause;             /* wanted */
    struct kelp_request request;   /* the thread's: for that */
    uint64_t press_ms;             /* not earlier, after a checkpoint that failed */
    uint32_t deadline_ms;          /* of the next question */
};

/* The reader is woken without an answer too: it may have to say that there is none. */
static void publish(struct kelp_monitor *monitor, Kelp__V1__StatusReply *reply, uint64_t asked_ms)
{
    Kelp__V1__StatusReply *old = NULL;

    kelp_watcher_lock(monitor->watcher);
    if (reply) {
        old = monitor->newest;
        monitor->newest = reply;
        monitor->newest_ms = asked_ms;
    }
    kelp_watcher_unlock(monitor->watcher);
    kelp_job_client_status_free(old);
    kelp_watcher_raise(monitor->watcher);
}

/* Ask for the checkpoint unless that is under way. */
static void press_for_pause(struct kelp_monitor *monitor, const Kelp__V1__StatusReply *reply)
{
    uint64_t serial = 0;
    enum kelp_request_news news = kelp_request_read(&monitor->request, reply);

    if (news == KELP_REQUEST_REFUSED && monitor->press_ms == 0) {
        monitor->press_ms = kelp_clock_ms() + KELP_MONITOR_REFUSED_MS;
    }
    if (news == KELP_REQUEST_WAITS || strcmp(reply->state, "paused") == 0 ||
        kelp_clock_ms() < monitor->press_ms) {
        return;
    }
    monitor->press_ms = 0;
    if (kelp_job_client_checkpoint(monitor->client, true, monitor->deadline_ms, &serial, NULL) ==
        KELP_OK) {
        kelp_request_made(&monitor->request, serial);
    }
}

/* Learn from a question how long the next one may take. */
static void learn_deadline(struct kelp_monitor *monitor, bool answered, uint64_t took_ms)
{
    uint64_t deadline_ms = answered ? 2 * took_ms : monitor->deadline_ms;

    if (!answered && took_ms >= monitor->deadline_ms) {
        deadline_ms *= 2;
    }
    if (deadline_ms < KELP_MONITOR_DEADLINE_MS) {
        deadline_ms = KELP_MONITOR_DEADLINE_MS;
    }
    if (deadline_ms > KELP_MONITOR_DEADLINE_MOST_MS) {
        deadline_ms = KELP_MONITOR_DEADLINE_MOST_MS;
    }
    monitor->deadline_ms = (uint32_t)deadline_ms;
}

static void look(void *user)
{
    struct kelp_monitor *monitor = user;
    Kelp__V1__StatusReply *reply = NULL;
    uint64_t asked_ms = kelp_clock_ms();

    /* A missing answer shows in the age of the status: the error is not needed. */
    kelp_status status =
        kelp_job_client_status(monitor->client, monitor->deadline_ms, &reply, NULL);
    learn_deadline(monitor, status == KELP_OK, kelp_clock_ms() - asked_ms);
    if (status == KELP_OK && atomic_load(&monitor->pause)) {
        press_for_pause(monitor, reply);
    }
    publish(monitor, reply, asked_ms);
}

void kelp_monitor_pause(struct kelp_monitor *monitor)
{
    atomic_store(&monitor->pause, true);
}

kelp_status kelp_monitor_start(const char *etcd_urls, const char *job, const char *certs,
                               struct kelp_monitor **ret_monitor, struct kelp_error *reterr)
{
    struct kelp_monitor *monitor = calloc(1, sizeof(*monitor));
    const struct kelp_watcher_options options = {
        .look = look, .user = monitor, .period_ms = KELP_MONITOR_PERIOD_MS};

    if (!monitor) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    monitor->deadline_ms = KELP_MONITOR_DEADLINE_MS;
    kelp_status status = kelp_watcher_create(&options, &monitor->watcher, reterr);
    if (status == KELP_OK) {
        status = kelp_job_client_open(etcd_urls, job, certs, &monitor->client, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_watcher_start(monitor->watcher, reterr);
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
    if (monitor) {
        kelp_watcher_stop(monitor->watcher);
        kelp_job_client_close(monitor->client);
        kelp_job_client_status_free(monitor->newest);
        free(monitor);
    }
}

int kelp_monitor_fd(const struct kelp_monitor *monitor)
{
    return kelp_watcher_fd(monitor->watcher);
}

Kelp__V1__StatusReply *kelp_monitor_read(struct kelp_monitor *monitor, uint64_t *ret_asked_ms)
{
    kelp_watcher_collect(monitor->watcher);
    Kelp__V1__StatusReply *reply = monitor->newest;
    *ret_asked_ms = monitor->newest_ms;
    monitor->newest = NULL;
    kelp_watcher_unlock(monitor->watcher);
    return reply;
}
