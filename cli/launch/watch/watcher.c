#include "cli/launch/watch/watcher.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct kelp_watcher {
    struct kelp_watcher_options options;
    pthread_t thread;
    bool thread_runs;
    int news_fd;
    int stop_fd;
    pthread_mutex_t lock;
};

static void raise_event(int fd)
{
    uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof(one));

    (void)written; /* fails when it is raised already, which is as good */
}

static void *watcher_thread(void *user)
{
    struct kelp_watcher *watcher = user;
    struct pollfd stop = {.fd = watcher->stop_fd, .events = POLLIN};

    do {
        watcher->options.look(watcher->options.user);
    } while (poll(&stop, 1, (int)watcher->options.period_ms) <= 0);
    return NULL;
}

kelp_status kelp_watcher_create(const struct kelp_watcher_options *options,
                                struct kelp_watcher **ret_watcher, struct kelp_error *reterr)
{
    struct kelp_watcher *watcher = calloc(1, sizeof(*watcher));

    if (!watcher) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    watcher->options = *options;
    (void)pthread_mutex_init(&watcher->lock, NULL);
    watcher->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    watcher->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (watcher->news_fd < 0 || watcher->stop_fd < 0) {
        kelp_status status = kelp_fail(reterr, KELP_ERR_IO, "eventfd: %s", strerror(errno));
        kelp_watcher_stop(watcher);
        return status;
    }
    *ret_watcher = watcher;
    return KELP_OK;
}

kelp_status kelp_watcher_start(struct kelp_watcher *watcher, struct kelp_error *reterr)
{
    int error = pthread_create(&watcher->thread, NULL, watcher_thread, watcher);

    watcher->thread_runs = error == 0;
    return error == 0 ? KELP_OK
                      : kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                                  "cannot start a thread: %s; see ulimit -u", strerror(error));
}

void kelp_watcher_stop(struct kelp_watcher *watcher)
{
    if (!watcher) {
        return;
    }
    if (watcher->thread_runs) {
        raise_event(watcher->stop_fd);
        (void)pthread_join(watcher->thread, NULL);
    }
    if (watcher->news_fd >= 0) {
        (void)close(watcher->news_fd);
    }
    if (watcher->stop_fd >= 0) {
        (void)close(watcher->stop_fd);
    }
    (void)pthread_mutex_destroy(&watcher->lock);
    free(watcher);
}

void kelp_watcher_lock(struct kelp_watcher *watcher)
{
    (void)pthread_mutex_lock(&watcher->lock);
}

void kelp_watcher_unlock(struct kelp_watcher *watcher)
{
    (void)pthread_mutex_unlock(&watcher->lock);
}

void kelp_watcher_raise(struct kelp_watcher *watcher)
{
    raise_event(watcher->news_fd);
}

void kelp_watcher_collect(struct kelp_watcher *watcher)
{
    uint64_t count;
    ssize_t got = read(watcher->news_fd, &count, sizeof(count));

    (void)got; /* nothing raised: there is nothing to take */
    kelp_watcher_lock(watcher);
}

int kelp_watcher_fd(const struct kelp_watcher *watcher)
{
    return watcher->news_fd;
}
