#include "cli/launch/guard.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"

struct kelp_guard {
    int (*work)(struct kelp_guard *guard, void *user);
    void *user;
    int signal_fd; /* a byte for each signal, its number */
    int stage_fd;  /* eventfd, raised when the stage changes */
    int done_fd;   /* eventfd, raised when the work has returned */
    atomic_int signal_number;
    atomic_int stage;         /* enum kelp_guard_stage */
    atomic_uint wind_down_ms; /* 0: any signal stops */
    int exit_status;          /* written by the work's thread before done_fd is raised */
};

void kelp_guard_winds_down(struct kelp_guard *guard, uint32_t wind_down_ms)
{
    atomic_store(&guard->wind_down_ms, wind_down_ms);
}

int kelp_guard_fd(const struct kelp_guard *guard)
{
    return guard->stage_fd;
}

enum kelp_guard_stage kelp_guard_stage(struct kelp_guard *guard)
{
    uint64_t count;
    ssize_t got = read(guard->stage_fd, &count, sizeof(count));

    (void)got; /* nothing raised: the stage has not changed */
    return (enum kelp_guard_stage)atomic_load(&guard->stage);
}

int kelp_guard_signal(const struct kelp_guard *guard)
{
    return atomic_load(&guard->signal_number);
}

static void raise_event(int fd)
{
    uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof(one));

    assert(written == (ssize_t)sizeof(one)); /* an eventfd below its limit takes it */
}

static void *work_thread(void *user)
{
    struct kelp_guard *guard = user;

    guard->exit_status = guard->work(guard, guard->user);
    raise_event(guard->done_fd);
    return NULL;
}

_Noreturn static void end_at_once(int signal_number)
{
    static const char text[] = "\nkelp: ended at once; what was running is killed\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);

    (void)written; /* the process ends anyway */
    _exit(128 + signal_number);
}

/* Go to the stage; returns when its time is over. */
static int64_t enter(struct kelp_guard *guard, enum kelp_guard_stage stage, uint32_t stage_ms)
{
    atomic_store(&guard->stage, (int)stage);
    raise_event(guard->stage_fd);
    return (int64_t)kelp_clock_ms() + stage_ms;
}

/* A signal has come, or the stage's time is over (number 0): what now? Returns the deadline. */
static int64_t advance(struct kelp_guard *guard, int number)
{
    uint32_t wind_down_ms = atomic_load(&guard->wind_down_ms);

    if (atomic_load(&guard->stage) == KELP_GUARD_STOP) {
        end_at_once(number != 0 ? number : kelp_guard_signal(guard));
    }
    if (number != 0) {
        atomic_store(&guard->signal_number, number);
    }
    if (atomic_load(&guard->stage) == KELP_GUARD_RUN && number != 0 && number != SIGQUIT &&
        wind_down_ms > 0) {
        return enter(guard, KELP_GUARD_WIND_DOWN, wind_down_ms);
    }
    return enter(guard, KELP_GUARD_STOP, KELP_GUARD_GRACE_MS);
}

/* Returns when the work is done. */
static void wait_for_work(struct kelp_guard *guard)
{
    int64_t deadline_ms = 0; /* 0: none */

    for (;;) {
        struct pollfd items[2] = {{.fd = guard->done_fd, .events = POLLIN},
                                  {.fd = guard->signal_fd, .events = POLLIN}};
        int64_t left_ms = deadline_ms == 0 ? -1 : deadline_ms - (int64_t)kelp_clock_ms();
        if (deadline_ms != 0 && left_ms <= 0) {
            deadline_ms = advance(guard, 0);
            continue;
        }
        if (poll(items, 2, (int)left_ms) < 0) {
            assert(errno == EINTR);
            continue;
        }
        if (items[0].revents) {
            return;
        }
        unsigned char number;
        if (items[1].revents && read(guard->signal_fd, &number, 1) == 1) {
            deadline_ms = advance(guard, number);
        }
    }
}

/* For the handler alone, which gets no argument of ours (docs/ARCHITECTURE.md, "Globals"). */
static pthread_t waiting_thread;
static int signal_pipe_end;

/*
 * The main thread takes signals, all threads of ours block them. Libraries start threads before
 * anything can be blocked (OpenBLAS when it is loaded): one that gets a signal passes it on.
 */
static void on_signal(int number)
{
    int error = errno;

    if (pthread_equal(pthread_self(), waiting_thread)) {
        unsigned char byte = (unsigned char)number;
        ssize_t written = write(signal_pipe_end, &byte, 1);
        (void)written; /* a full pipe holds plenty of them */
    } else {
        (void)pthread_kill(waiting_thread, number);
    }
    errno = error;
}

static sigset_t guarded_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGQUIT);
    sigaddset(&set, SIGHUP);
    return set;
}

bool kelp_guard_survives_terminal(void)
{
    struct sigaction action = {.sa_handler = SIG_DFL};

    return sigaction(SIGHUP, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/* Blocked until kelp_guard_run() has made the work's thread, which inherits that. */
static kelp_status catch_signals(struct kelp_guard *guard, struct kelp_error *reterr)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigset_t set = guarded_signals();
    int fds[2];

    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "pipe: %s", strerror(errno));
    }
    guard->signal_fd = fds[0];
    signal_pipe_end = fds[1];
    waiting_thread = pthread_self();
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL); /* fails for a bad first argument alone */
    (void)signal(SIGPIPE, SIG_IGN); /* a reader of our output that goes away must not end the run */
    for (size_t i = 0; i < KELP_ARRAY_COUNT(numbers); i++) {
        if (numbers[i] != SIGHUP || !kelp_guard_survives_terminal()) {
            (void)sigaction(numbers[i], &action, NULL);
        }
    }
    return KELP_OK;
}

static kelp_status open_events(struct kelp_guard *guard, struct kelp_error *reterr)
{
    guard->stage_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    guard->done_fd = eventfd(0, EFD_CLOEXEC);
    if (guard->stage_fd < 0 || guard->done_fd < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "eventfd: %s", strerror(errno));
    }
    return catch_signals(guard, reterr);
}

static void close_if_open(int fd)
{
    if (fd >= 0) {
        (void)close(fd);
    }
}

kelp_status kelp_guard_run(int (*work)(struct kelp_guard *guard, void *user), void *user,
                           int *ret_exit_status, struct kelp_error *reterr)
{
    struct kelp_guard guard = {
        .work = work, .user = user, .signal_fd = -1, .stage_fd = -1, .done_fd = -1};
    sigset_t set = guarded_signals();
    pthread_t thread;

    kelp_status status = open_events(&guard, reterr);
    if (status == KELP_OK) {
        int error = pthread_create(&thread, NULL, work_thread, &guard);
        (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
        if (error != 0) {
            status = kelp_fail(reterr, KELP_ERR_NO_MEMORY,
                               "cannot start a thread: %s; see ulimit -u", strerror(error));
        }
    }
    if (status == KELP_OK) {
        wait_for_work(&guard);
        (void)pthread_join(thread, NULL); /* it is returning: done_fd was its last act */
        *ret_exit_status = guard.exit_status;
    }
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL); /* the command is ending */
    /* The pipe stays open: a library's thread may be in the handler still. */
    close_if_open(guard.stage_fd);
    close_if_open(guard.done_fd);
    return status;
}
