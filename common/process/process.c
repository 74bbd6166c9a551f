#include "common/process/process.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"

#define DESCRIPTORS_MAX (1u << 20) /* Linux's own limit where nobody has raised it */

extern char **environ;

struct kelp_process {
    pid_t pid;
    int pidfd;
    bool ended;
    int wait_status;
};

/* The step before exec at which the child failed, reported through the pipe. */
enum stage { STAGE_FOLDER, STAGE_DESCRIPTORS, STAGE_EXEC };

struct child_report {
    enum stage stage;
    int error;
};

/* Everything the child needs, prepared before fork: afterwards only async-signal-safe calls are
 * allowed, because other threads may have held any lock. */
struct child_plan {
    const struct kelp_process_options *options;
    const char *path;
    char **environment;
    pid_t parent;
    int report_fd;
};

static const char *environment_value(const char *name)
{
    size_t length = strlen(name);

    for (char **entry = environ; entry && *entry; entry++) {
        if (strncmp(*entry, name, length) == 0 && (*entry)[length] == '=') {
            return *entry + length + 1;
        }
    }
    return NULL;
}

static bool executable_file(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

kelp_status kelp_process_find(const char *name, char ret_path[KELP_PROCESS_PATH_MAX],
                              struct kelp_error *reterr)
{
    const char *search = environment_value("PATH");

    if (strlen(name) >= KELP_PROCESS_PATH_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "program name is longer than %d bytes",
                         KELP_PROCESS_PATH_MAX - 1);
    }
    if (strchr(name, '/')) {
        memcpy(ret_path, name, strlen(name) + 1);
        return KELP_OK;
    }
    while (search && *search) {
        size_t length = strcspn(search, ":");
        char path[KELP_PROCESS_PATH_MAX];
        int written = snprintf(path, sizeof(path), "%.*s/%s", (int)length, search, name);
        if (length > 0 && written > 0 && (size_t)written < sizeof(path) && executable_file(path)) {
            memcpy(ret_path, path, (size_t)written + 1);
            return KELP_OK;
        }
        search += length + (search[length] == ':');
    }
    return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "program '%s' is not on PATH", name);
}

/* Is the name of "NAME=value" in the list? Names end at '=' or at the end; a trailing '*' in the
 * list matches the rest. */
static bool entry_listed(const char *entry, const char *const *list)
{
    size_t name_length = strcspn(entry, "=");

    for (; list && *list; list++) {
        size_t length = strcspn(*list, "=");
        if (length > 0 && (*list)[length - 1] == '*') {
            if (name_length >= length - 1 && strncmp(entry, *list, length - 1) == 0) {
                return true;
            }
        } else if (length == name_length && strncmp(entry, *list, length) == 0) {
            return true;
        }
    }
    return false;
}

/* The child's environment: an owned array of borrowed strings. */
static char **environment_build(const struct kelp_process_options *options)
{
    size_t count = 0;

    for (char **entry = environ; entry && *entry; entry++) {
        count++;
    }
    for (const char *const *entry = options->set_environment; entry && *entry; entry++) {
        count++;
    }
    char **environment = calloc(count + 1, sizeof(*environment));
    if (!environment) {
        return NULL;
    }
    size_t used = 0;
    for (char **entry = environ; entry && *entry; entry++) {
        if (!entry_listed(*entry, options->unset_environment) &&
            !entry_listed(*entry, options->set_environment)) {
            environment[used++] = *entry;
        }
    }
    for (const char *const *entry = options->set_environment; entry && *entry; entry++) {
        environment[used++] = (char *)(uintptr_t)*entry; /* execve() does not write to it */
    }
    assert(used <= count);
    return environment;
}

_Noreturn static void child_fail(const struct child_plan *plan, enum stage stage)
{
    struct child_report report = {.stage = stage, .error = errno};
    ssize_t written = write(plan->report_fd, &report, sizeof(report));

    (void)written; /* no one else to tell */
    _exit(127);
}

/* A descriptor above the standard ones for the source of `standard`, so that the three dup2
 * calls that follow cannot overwrite each other's sources. */
static int child_source(int wanted, int standard)
{
    int fd = wanted;

    if (wanted == KELP_PROCESS_NULL) {
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    } else if (wanted == KELP_PROCESS_INHERIT) {
        fd = standard;
    }
    return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

/* Mark the descriptors that the parent did not mark, so that exec closes them, also the report
 * pipe. Linux before 5.11 cannot mark a range, and a container's filter of system calls may forbid
 * it. */
static void child_mark_others(void)
{
    struct rlimit limit;

    if (close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0) {
        return;
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > DESCRIPTORS_MAX) {
        limit.rlim_cur = DESCRIPTORS_MAX;
    }
    for (int fd = 3; fd < (int)limit.rlim_cur; fd++) {
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* most are not open */
    }
}

static void child_descriptors(const struct child_plan *plan)
{
    int sources[3] = {child_source(KELP_PROCESS_NULL, STDIN_FILENO),
                      child_source(plan->options->stdout_fd, STDOUT_FILENO),
                      child_source(plan->options->stderr_fd, STDERR_FILENO)};

    for (int fd = 0; fd < 3; fd++) {
        if (sources[fd] < 0 || dup2(sources[fd], fd) < 0) {
            child_fail(plan, STAGE_DESCRIPTORS);
        }
    }
    child_mark_others();
}

static void child_signals(void)
{
    sigset_t none;

    for (int number = 1; number < NSIG; number++) {
        (void)signal(number, SIG_DFL); /* fails for SIGKILL, SIGSTOP and libc's own */
    }
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

_Noreturn static void child_run(const struct child_plan *plan)
{
    (void)setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != plan->parent) {
        _exit(127); /* the parent died before the request took effect */
    }
    if (plan->options->folder && chdir(plan->options->folder) < 0) {
        child_fail(plan, STAGE_FOLDER);
    }
    child_descriptors(plan);
    child_signals();
    (void)execve(plan->path, (char *const *)(uintptr_t)plan->options->argv, plan->environment);
    child_fail(plan, STAGE_EXEC);
}

static pid_t fork_child(const struct child_plan *plan)
{
    sigset_t all;
    sigset_t before;

    /* No handler of the parent may run in the child before they are reset. */
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    if (pid == 0) {
        child_run(plan);
    }
    int error = errno;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return pid;
}

static kelp_status report_status(const struct child_report *report, const struct child_plan *plan,
                                 struct kelp_error *reterr)
{
    const char *what = report->stage == STAGE_FOLDER ? plan->options->folder : plan->path;
    kelp_status status = KELP_ERR_IO;

    if (report->stage != STAGE_DESCRIPTORS &&
        (report->error == ENOENT || report->error == ENOTDIR)) {
        status = KELP_ERR_NOT_FOUND;
    } else if (report->error == EACCES || report->error == ENOEXEC) {
        status = KELP_ERR_INVALID;
    }
    return kelp_fail(reterr, status, "cannot %s '%s': %s",
                     report->stage == STAGE_FOLDER        ? "enter folder"
                     : report->stage == STAGE_DESCRIPTORS ? "open /dev/null and the log of"
                                                          : "execute",
                     what, strerror(report->error));
}

static ssize_t read_retry(int fd, void *bytes, size_t count)
{
    ssize_t got;

    do {
        got = read(fd, bytes, count);
    } while (got < 0 && errno == EINTR);
    return got;
}

static void reap(pid_t pid)
{
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

static kelp_status start_planned(struct child_plan *plan, struct kelp_process *process,
                                 struct kelp_error *reterr)
{
    int pipe_fds[2];
    struct child_report report;

    if (pipe2(pipe_fds, O_CLOEXEC) < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "pipe: %s", strerror(errno));
    }
    plan->report_fd = pipe_fds[1];
    process->pid = fork_child(plan);
    int error = errno;
    (void)close(pipe_fds[1]);
    if (process->pid < 0) {
        (void)close(pipe_fds[0]);
        return kelp_fail(reterr, KELP_ERR_IO, "fork: %s", strerror(error));
    }
    ssize_t got = read_retry(pipe_fds[0], &report, sizeof(report)); /* ends at exec */
    (void)close(pipe_fds[0]);
    if (got == (ssize_t)sizeof(report)) {
        reap(process->pid);
        return report_status(&report, plan, reterr);
    }
    process->pidfd = pidfd_open(process->pid, 0);
    if (process->pidfd < 0) {
        kelp_status status =
            kelp_fail(reterr, KELP_ERR_IO,
                      "pidfd_open: %s; it needs Linux 5.4, and a container's filter of system "
                      "calls (seccomp) must allow it",
                      strerror(errno));
        (void)kill(process->pid, SIGKILL);
        reap(process->pid);
        return status;
    }
    return KELP_OK;
}

kelp_status kelp_process_start(const struct kelp_process_options *options,
                               struct kelp_process **ret_process, struct kelp_error *reterr)
{
    char path[KELP_PROCESS_PATH_MAX];
    struct child_plan plan = {.options = options, .path = path, .parent = getpid()};

    assert(options->argv && options->argv[0]);
    kelp_status status = kelp_process_find(options->argv[0], path, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_process *process = calloc(1, sizeof(*process));
    plan.environment = environment_build(options);
    if (!process || !plan.environment) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    } else {
        status = start_planned(&plan, process, reterr);
    }
    free(plan.environment);
    if (status != KELP_OK) {
        free(process);
        return status;
    }
    *ret_process = process;
    return KELP_OK;
}

void kelp_process_destroy(struct kelp_process *process)
{
    if (!process) {
        return;
    }
    kelp_process_stop(process, 0);
    (void)close(process->pidfd);
    free(process);
}

pid_t kelp_process_pid(const struct kelp_process *process)
{
    return process->pid;
}

int kelp_process_fd(const struct kelp_process *process)
{
    return process->pidfd;
}

/* Wait until the pidfd is readable (true), or the time is over. */
static bool wait_readable(int fd, uint32_t wait_ms)
{
    int64_t end_ms = (int64_t)kelp_clock_ms() + wait_ms;

    for (;;) {
        int64_t left_ms = end_ms - (int64_t)kelp_clock_ms();
        struct pollfd item = {.fd = fd, .events = POLLIN};
        int ready = poll(&item, 1, left_ms <= 0 ? 0 : left_ms > 60000 ? 60000 : (int)left_ms);
        if (ready > 0) {
            return true;
        }
        if (left_ms <= 0 && (ready == 0 || errno != EINTR)) {
            return false;
        }
    }
}

kelp_status kelp_process_wait(struct kelp_process *process, uint32_t wait_ms, int *ret_wait_status)
{
    if (!process->ended) {
        if (!wait_readable(process->pidfd, wait_ms)) {
            return KELP_ERR_TIMEOUT;
        }
        pid_t got;
        do {
            got = waitpid(process->pid, &process->wait_status, 0);
        } while (got < 0 && errno == EINTR);
        process->ended = true; /* even if it was reaped elsewhere */
        if (got < 0) {
            process->wait_status = 0;
            return KELP_ERR_IO;
        }
    }
    if (ret_wait_status) {
        *ret_wait_status = process->wait_status;
    }
    return KELP_OK;
}

void kelp_process_signal(struct kelp_process *process, int signal_number)
{
    if (!process->ended) {
        /* The pidfd cannot reach another process that reuses the number. */
        (void)pidfd_send_signal(process->pidfd, signal_number, NULL, 0);
    }
}

void kelp_process_stop(struct kelp_process *process, uint32_t grace_ms)
{
    if (process->ended) {
        return;
    }
    if (grace_ms > 0) {
        kelp_process_signal(process, SIGTERM);
        if (kelp_process_wait(process, grace_ms, NULL) != KELP_ERR_TIMEOUT) {
            return;
        }
    }
    /* Not reaped yet, so its number still identifies the process group. */
    (void)kill(-process->pid, SIGKILL);
    while (kelp_process_wait(process, 60000, NULL) == KELP_ERR_TIMEOUT) {
        kelp_process_signal(process, SIGKILL);
    }
}

void kelp_process_describe(int wait_status, char *text, size_t text_bytes)
{
    if (WIFSIGNALED(wait_status)) {
        int number = WTERMSIG(wait_status);
        const char *name = sigdescr_np(number);
        (void)snprintf(text, text_bytes, "killed by signal %d (%s)", number,
                       name ? name : "unknown");
    } else {
        (void)snprintf(text, text_bytes, "exited with status %d", WEXITSTATUS(wait_status));
    }
}
