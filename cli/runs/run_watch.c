#include "cli/runs/run_watch.h"

#include <poll.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "cli/run/run_dir.h"

static void add(const struct kelp_run_watch *watch, const char *run_path, const char *name,
                uint32_t events)
{
    char path[KELP_RUN_PATH_MAX + 64];

    if (kelp_run_dir_path(run_path, name, path, sizeof(path), NULL) == KELP_OK) {
        (void)inotify_add_watch(watch->fd, path, events); /* else it looks now and then */
    }
}

void kelp_run_watch_open(struct kelp_run_watch *watch, const char *run_path, bool logs)
{
    watch->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (watch->fd < 0) {
        return;
    }
    /* The lock was open for writing by the run alone: who only looks does not write. */
    add(watch, run_path, KELP_RUN_LOCK, IN_CLOSE_WRITE);
    if (logs) {
        add(watch, run_path, "logs", IN_MODIFY | IN_CREATE);
    }
}

void kelp_run_watch_close(struct kelp_run_watch *watch)
{
    if (watch->fd >= 0) {
        (void)close(watch->fd);
        watch->fd = -1;
    }
}

void kelp_run_watch_wait(struct kelp_run_watch *watch, uint32_t wait_ms)
{
    struct pollfd item = {.fd = watch->fd, .events = POLLIN};
    char events[4096];

    /* A negative descriptor is passed over: this is a sleep then. */
    if (poll(&item, 1, (int)wait_ms) > 0) {
        while (read(watch->fd, events, sizeof(events)) > 0) {
        }
    }
}
