/* The processes of a host are those whose network is the host's, whoever started them. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/chaos/network/network_internal.h"
#include "common/base/clock.h"

#define PROCESSES_MAX 256  /* of one look */
#define GONE_MS       5000 /* to be gone after SIGKILL */

static bool is_there(const struct stat *wanted, pid_t pid)
{
    struct stat own;
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/%ld/ns/net", (long)pid);
    return stat(path, &own) == 0 && own.st_ino == wanted->st_ino && own.st_dev == wanted->st_dev;
}

/* A descriptor of the process, or -1: it is not on the host. The number may be another's by the
 * time that it is held: it is looked at once more. */
static int hold(const struct stat *wanted, pid_t pid)
{
    if (pid <= 0 || pid == getpid() || !is_there(wanted, pid)) {
        return -1;
    }
    int fd = pidfd_open(pid, 0);
    if (fd >= 0 && !is_there(wanted, pid)) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* Kill all that are there now; how many, each in items. */
static uint32_t kill_once(const struct stat *wanted, DIR *processes, struct pollfd *items)
{
    uint32_t count = 0;

    rewinddir(processes);
    for (struct dirent *entry = readdir(processes); entry && count < PROCESSES_MAX;
         entry = readdir(processes)) {
        int fd = hold(wanted, (pid_t)strtol(entry->d_name, NULL, 10));
        if (fd >= 0) {
            (void)pidfd_send_signal(fd, SIGKILL, NULL, 0); /* gone by itself: as good */
            items[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
        }
    }
    return count;
}

/* True: all have ended before that time. */
static bool await_ends(struct pollfd *items, uint32_t count, uint64_t end_ms)
{
    bool ended = true;

    for (uint32_t i = 0; i < count; i++) {
        uint64_t now = kelp_clock_ms();
        ended = poll(&items[i], 1, now < end_ms ? (int)(end_ms - now) : 0) == 1 && ended;
        (void)close(items[i].fd);
    }
    return ended;
}

/* Again and again, as a process may have started one that was not seen. */
static kelp_status kill_all(const struct stat *wanted, DIR *processes, uint32_t *ret_count,
                            uint32_t host, struct kelp_error *reterr)
{
    struct pollfd items[PROCESSES_MAX];
    uint64_t end_ms = kelp_clock_ms() + GONE_MS;
    uint32_t count = kill_once(wanted, processes, items);

    *ret_count = 0;
    while (count > 0) {
        *ret_count += count;
        if (!await_ends(items, count, end_ms)) {
            return kelp_fail(reterr, KELP_ERR_TIMEOUT,
                             "a process on host-%" PRIu32 " is still there %d s after SIGKILL",
                             host, GONE_MS / 1000);
        }
        count = kill_once(wanted, processes, items);
    }
    return KELP_OK;
}

kelp_status kelp_network_kill(const struct kelp_network *network, uint32_t host,
                              uint32_t *ret_count, struct kelp_error *reterr)
{
    struct stat wanted;

    if (fstat(network->list[host].namespace_fd, &wanted) < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot look at host-%" PRIu32 ": %s", host,
                         strerror(errno));
    }
    DIR *processes = opendir("/proc");
    if (!processes) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot list processes: %s", strerror(errno));
    }
    kelp_status status = kill_all(&wanted, processes, ret_count, host, reterr);
    (void)closedir(processes);
    return status;
}
