#include "cli/runs/run_holder.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli/cluster/run_client.h"
#include "cli/run/run_dir.h"
#include "common/base/clock.h"
#include "common/base/value.h"

#define PID_MAX (1 << 22) /* Linux has no larger process numbers */

/* What the holder has written into the lock; a run that an earlier version began says it in
 * cluster.json alone. */
static pid_t pid_of(const char *run_path)
{
    struct kelp_run_cluster cluster;
    uint64_t pid = 0;
    char *text = NULL;

    if (kelp_run_dir_read(run_path, KELP_RUN_LOCK, &text, NULL) == KELP_OK) {
        text[strcspn(text, "\n")] = '\0';
        if (kelp_value_u64(text, 1, PID_MAX, &pid, NULL) != KELP_OK) {
            pid = 0;
        }
        free(text);
    }
    if (pid == 0 && kelp_run_cluster_read(run_path, &cluster, NULL) == KELP_OK) {
        pid = (uint64_t)cluster.pid;
    }
    return (pid_t)pid;
}

/* Has the process the lock open? Daemons and commands that look get no descriptor of it. */
static bool has_open(pid_t pid, const char *run_path)
{
    char path[KELP_RUN_PATH_MAX + 64];
    char folder[64];
    struct stat lock;
    struct stat info;
    bool found = false;

    (void)snprintf(folder, sizeof(folder), "/proc/%ld/fd", (long)pid);
    DIR *stream = opendir(folder);
    if (!stream) {
        return false;
    }
    if (kelp_run_dir_path(run_path, KELP_RUN_LOCK, path, sizeof(path), NULL) == KELP_OK &&
        stat(path, &lock) == 0) {
        for (struct dirent *entry = readdir(stream); entry && !found; entry = readdir(stream)) {
            found = fstatat(dirfd(stream), entry->d_name, &info, 0) == 0 &&
                    info.st_dev == lock.st_dev && info.st_ino == lock.st_ino;
        }
    }
    (void)closedir(stream);
    return found;
}

kelp_status kelp_run_holder_open(const char *run_path, struct kelp_run_holder *ret_holder,
                                 struct kelp_error *reterr)
{
    struct kelp_run_holder holder = {.fd = -1};

    if (!kelp_run_dir_running(run_path)) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "'%s' is not running", run_path);
    }
    holder.pid = pid_of(run_path);
    if (holder.pid > 0) {
        holder.fd = (int)syscall(SYS_pidfd_open, holder.pid, 0);
    }
    if (holder.fd < 0 || !has_open(holder.pid, run_path)) {
        kelp_run_holder_close(&holder);
        return kelp_fail(reterr, KELP_ERR_UNREACHABLE,
                         "the process that runs '%s' cannot be found: it belongs to another "
                         "machine, container or user",
                         run_path);
    }
    *ret_holder = holder;
    return KELP_OK;
}

void kelp_run_holder_close(struct kelp_run_holder *holder)
{
    if (holder->fd >= 0) {
        (void)close(holder->fd);
        holder->fd = -1;
    }
}

kelp_status kelp_run_holder_signal(const struct kelp_run_holder *holder, int signal_number,
                                   struct kelp_error *reterr)
{
    if (syscall(SYS_pidfd_send_signal, holder->fd, signal_number, NULL, 0) == 0 || errno == ESRCH) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_UNREACHABLE, "process %ld cannot be asked to stop: %s",
                     (long)holder->pid, strerror(errno));
}

kelp_status kelp_run_holder_wait(const struct kelp_run_holder *holder, uint32_t timeout_ms,
                                 struct kelp_error *reterr)
{
    uint64_t deadline_ms = kelp_clock_ms() + timeout_ms;
    struct pollfd item = {.fd = holder->fd, .events = POLLIN};

    for (;;) {
        uint64_t now = kelp_clock_ms();
        if (now >= deadline_ms) {
            return kelp_fail(reterr, KELP_ERR_TIMEOUT, "process %ld still runs after %" PRIu32 " s",
                             (long)holder->pid, timeout_ms / 1000);
        }
        if (poll(&item, 1, (int)(deadline_ms - now)) > 0) {
            return KELP_OK;
        }
    }
}
