#include "cli/chaos/chaos_process.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/process/proc_file.h"

#define TEXT_MAX        8192         /* of a command line or a status */
#define ENVIRONMENT_MAX (256u << 10) /* bytes of one that are looked at */
#define DEPTH_MAX       16           /* of processes started by processes */

/* A file of /proc/PID, NUL-terminated; its length, 0 when it cannot be read. */
static size_t read_proc(pid_t pid, const char *name, char text[TEXT_MAX])
{
    char path[64];

    (void)snprintf(path, sizeof(path), "%ld/%s", (long)pid, name);
    return kelp_proc_file_read(path, text, TEXT_MAX);
}

struct stat_line {
    char state;
    pid_t parent;
    uint64_t start_ticks; /* since the machine started */
};

/* "PID (NAME) STATE PPID …": the name may hold anything, also ")". Field 3 is the state, 4 the
 * parent, 22 the start. */
static bool read_stat(pid_t pid, struct stat_line *ret_line)
{
    char text[TEXT_MAX];
    uint64_t fields[23] = {0};

    if (read_proc(pid, "stat", text) == 0) {
        return false;
    }
    char *at = strrchr(text, ')');
    if (!at || at[1] != ' ' || at[2] == '\0') {
        return false;
    }
    char state = at[2];
    at += 3;
    for (int field = 4; field <= 22; field++) {
        char *end = at;
        fields[field] = strtoull(at, &end, 10);
        if (end == at) {
            return false;
        }
        at = end;
    }
    *ret_line =
        (struct stat_line){.state = state, .parent = (pid_t)fields[4], .start_ticks = fields[22]};
    return true;
}

static uint64_t age_ms(const struct stat_line *line)
{
    struct timespec now;
    long hertz = sysconf(_SC_CLK_TCK);

    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    uint64_t now_in_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    uint64_t start = hertz > 0 ? line->start_ticks * 1000 / (uint64_t)hertz : 0;
    return now_in_ms > start ? now_in_ms - start : 0;
}

/* Programs of one's own get it so. */
static bool read_id_variable(pid_t pid, char id[KELP_CHAOS_ID_MAX + 1])
{
    static const char name[] = "KELP_ID=";
    char path[64];
    char *text = malloc(ENVIRONMENT_MAX);
    bool found = false;

    (void)snprintf(path, sizeof(path), "%ld/environ", (long)pid);
    size_t length = text ? kelp_proc_file_read(path, text, ENVIRONMENT_MAX) : 0;
    for (size_t at = 0; at < length && !found; at += strlen(text + at) + 1) {
        found = strncmp(text + at, name, sizeof(name) - 1) == 0;
        if (found) {
            (void)snprintf(id, KELP_CHAOS_ID_MAX + 1, "%s", text + at + sizeof(name) - 1);
        }
    }
    free(text);
    return found;
}

/* What follows "--id" on the command line. */
static bool read_id(pid_t pid, char id[KELP_CHAOS_ID_MAX + 1])
{
    char text[TEXT_MAX];
    size_t length = read_proc(pid, "cmdline", text);
    bool next = false;

    for (size_t at = 0; at < length; at += strlen(text + at) + 1) {
        if (next) {
            (void)snprintf(id, KELP_CHAOS_ID_MAX + 1, "%s", text + at);
            return true;
        }
        next = strcmp(text + at, "--id") == 0;
    }
    return read_id_variable(pid, id);
}

static bool has_id(pid_t pid, const char *id)
{
    char its[KELP_CHAOS_ID_MAX + 1];

    return read_id(pid, its) && strcmp(its, id) == 0;
}

static bool is_child(pid_t pid, pid_t parent, const char *id, struct stat_line *ret_line)
{
    return read_stat(pid, ret_line) && ret_line->parent == parent && ret_line->state != 'Z' &&
           ret_line->state != 'X' && (!id || has_id(pid, id));
}

static pid_t pid_of(const char *name)
{
    return isdigit((unsigned char)name[0]) ? (pid_t)strtol(name, NULL, 10) : 0;
}

/* Is it a process that is looked for, or one that such a process has started? */
static bool belongs(const struct kelp_chaos_search *search, pid_t pid)
{
    struct stat_line line;
    char id[KELP_CHAOS_ID_MAX + 1];

    for (uint32_t depth = 0; depth < DEPTH_MAX && pid > 1 && read_stat(pid, &line); depth++) {
        for (uint32_t i = 0; i < search->parent_count; i++) {
            if (line.parent == search->parents[i]) {
                return read_id(pid, id) && search->wanted(id, search->user);
            }
        }
        pid = line.parent;
    }
    return false;
}

bool kelp_chaos_process_computes(const struct kelp_chaos_search *search)
{
    DIR *folder = opendir("/proc");
    bool computes = false;

    if (!folder) {
        return false;
    }
    for (struct dirent *entry = readdir(folder); entry && !computes; entry = readdir(folder)) {
        struct stat_line line;
        pid_t pid = pid_of(entry->d_name);
        computes = pid > 0 && read_stat(pid, &line) && (line.state == 'R' || line.state == 'D') &&
                   belongs(search, pid);
    }
    (void)closedir(folder);
    return computes;
}

/* The children, at most `room`; those with the id alone when it is not NULL. */
static uint32_t list_children(pid_t parent, const char *id, pid_t *pids, uint32_t room)
{
    DIR *folder = opendir("/proc");
    uint32_t count = 0;

    if (!folder) {
        return 0;
    }
    for (struct dirent *entry = readdir(folder); entry && count < room; entry = readdir(folder)) {
        struct stat_line line;
        pid_t pid = pid_of(entry->d_name);
        if (pid > 0 && is_child(pid, parent, id, &line)) {
            pids[count++] = pid;
        }
    }
    (void)closedir(folder);
    return count;
}

static kelp_status hold(pid_t pid, pid_t parent, const char *id,
                        struct kelp_chaos_process *ret_process)
{
    struct stat_line line;
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0U);

    if (pidfd < 0) {
        return errno == ENOSYS ? KELP_ERR_UNSUPPORTED : KELP_ERR_NOT_FOUND;
    }
    /* The number may have gone to another process before it was held: look again. */
    if (!is_child(pid, parent, id, &line)) {
        (void)close(pidfd);
        return KELP_ERR_NOT_FOUND;
    }
    *ret_process = (struct kelp_chaos_process){.pid = pid, .pidfd = pidfd, .age_ms = age_ms(&line)};
    return KELP_OK;
}

kelp_status kelp_chaos_process_find(pid_t parent, const char *id,
                                    struct kelp_chaos_process *ret_process)
{
    pid_t pid = 0;

    if (list_children(parent, id, &pid, 1) == 0) {
        return KELP_ERR_NOT_FOUND;
    }
    return hold(pid, parent, id, ret_process);
}

kelp_status kelp_chaos_process_hold(pid_t pid, struct kelp_chaos_process *ret_process)
{
    return hold(pid, getpid(), NULL, ret_process);
}

bool kelp_chaos_process_signal(const struct kelp_chaos_process *process, int signal_number)
{
    return syscall(SYS_pidfd_send_signal, process->pidfd, signal_number, NULL, 0U) == 0;
}

bool kelp_chaos_process_ended(const struct kelp_chaos_process *process)
{
    struct pollfd item = {.fd = process->pidfd, .events = POLLIN};

    return poll(&item, 1, 0) > 0;
}

void kelp_chaos_process_close(struct kelp_chaos_process *process)
{
    if (process->pidfd >= 0) {
        (void)close(process->pidfd);
        process->pidfd = -1;
    }
}

static bool wait_gone(const struct kelp_chaos_process *process, uint64_t end_ms)
{
    struct pollfd item = {.fd = process->pidfd, .events = POLLIN};
    uint64_t now = kelp_clock_ms();

    return poll(&item, 1, now < end_ms ? (int)(end_ms - now) : 0) > 0;
}

kelp_status kelp_chaos_kill_family(pid_t parent, uint32_t wait_ms, uint32_t *ret_count,
                                   struct kelp_error *reterr)
{
    pid_t *pids = calloc(KELP_CHAOS_CHILDREN_MAX, sizeof(*pids));
    struct kelp_chaos_process *held = calloc(KELP_CHAOS_CHILDREN_MAX, sizeof(*held));
    uint64_t end_ms = kelp_clock_ms() + wait_ms;
    uint32_t count = 0;
    kelp_status status = KELP_OK;

    if (!pids || !held) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        goto free_lists;
    }
    uint32_t found = list_children(parent, NULL, pids, KELP_CHAOS_CHILDREN_MAX);
    for (uint32_t i = 0; i < found; i++) {
        count += hold(pids[i], parent, NULL, &held[count]) == KELP_OK;
    }
    (void)kill(parent, SIGKILL); /* our own child, not waited for yet: the number is still its */
    for (uint32_t i = 0; i < count; i++) {
        (void)kelp_chaos_process_signal(&held[i], SIGKILL);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!wait_gone(&held[i], end_ms) && status == KELP_OK) {
            status =
                kelp_fail(reterr, KELP_ERR_TIMEOUT, "process %ld does not die", (long)held[i].pid);
        }
        kelp_chaos_process_close(&held[i]);
    }
    *ret_count = count;
free_lists:
    free(pids);
    free(held);
    return status;
}
