#include "cli/launch/detach.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/launch/guard.h"
#include "cli/run/log_tail.h"
#include "cli/run/run_dir.h"
#include "cli/verb/verb.h"
#include "common/base/value.h"
#include "common/process/process_again.h"

#define VARIABLE  "KELP_DETACHED_REPORT" /* the descriptor of the pipe */
#define REPORT_FD 3
#define LOG       "logs/train.log"

/* ---- starting ------------------------------------------------------------------------------ */

/* Of the child, 0: not started yet, and what it is sent; for the handler alone
 * (docs/ARCHITECTURE.md, "Globals"). */
static volatile pid_t detached_pid;
static volatile sig_atomic_t passed_on;

/* Who waits is asked to end: the run is, and what it came to is said. */
static void pass_on(int number)
{
    passed_on = number;
    if (detached_pid > 0) {
        (void)kill(detached_pid, number);
    }
}

/* Before the child is there: threads of libraries would let a signal end us alone. */
static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(numbers); i++) {
        if (numbers[i] != SIGHUP || !kelp_guard_survives_terminal()) {
            (void)sigaction(numbers[i], &action, NULL);
        }
    }
}

static void pass_on_to(pid_t pid)
{
    detached_pid = pid;
    if (passed_on != 0) {
        (void)kill(pid, passed_on);
    }
}

static int spawn(char **words, char **environment, int report_fd, bool keep_input, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;

    sigemptyset(&none);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawnattr_init(&attributes);
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
    (void)posix_spawn_file_actions_adddup2(&actions, report_fd, REPORT_FD);
    if (!keep_input) {
        (void)posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    }
    int error = posix_spawn(ret_pid, "/proc/self/exe", &actions, &attributes, words, environment);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* The command once more; *ret_fd is the end of its pipe. Returns errno. */
static int start(bool keep_input, pid_t *ret_pid, int *ret_fd)
{
    static const char *const variables[] = {VARIABLE "=3", NULL};
    char *text = NULL;
    char **words = kelp_process_own_words(&text);
    char **environment = words ? kelp_process_own_environment(variables) : NULL;
    int fds[2] = {-1, -1};
    int error = environment ? 0 : errno;

    if (error == 0 && pipe2(fds, O_CLOEXEC) < 0) {
        error = errno;
    }
    /* dup2() of a descriptor to itself would keep its O_CLOEXEC. */
    if (error == 0 && fds[1] == REPORT_FD) {
        fds[1] = fcntl(REPORT_FD, F_DUPFD_CLOEXEC, REPORT_FD + 1);
        error = fds[1] < 0 ? errno : 0;
        (void)close(REPORT_FD);
    }
    if (error == 0) {
        error = spawn(words, environment, fds[1], keep_input, ret_pid);
    }
    if (fds[1] >= 0) {
        (void)close(fds[1]);
    }
    free(environment);
    free(words);
    free(text);
    *ret_fd = fds[0];
    return error;
}

/* ---- waiting ------------------------------------------------------------------------------- */

struct reports {
    char run_path[KELP_RUN_PATH_MAX + 1];
    bool started;
};

static void read_report(struct reports *reports, const char *line)
{
    if (strncmp(line, "run ", 4) == 0) {
        (void)snprintf(reports->run_path, sizeof(reports->run_path), "%.*s", KELP_RUN_PATH_MAX,
                       line + 4);
        (void)kelp_complain(KELP_EXIT_OK, "run %s", reports->run_path);
    } else if (strcmp(line, "started") == 0) {
        reports->started = true;
    }
}

static void read_reports(int fd, struct reports *reports)
{
    char line[KELP_RUN_PATH_MAX + 16];
    FILE *in = fdopen(fd, "r");

    if (!in) {
        (void)close(fd);
        return;
    }
    while (!reports->started && fgets(line, sizeof(line), in)) {
        line[strcspn(line, "\n")] = '\0';
        read_report(reports, line);
    }
    (void)fclose(in);
}

/* It ended without having started: what it said last is in its log, once it had one. */
static int tell_end(pid_t pid, const struct reports *reports)
{
    char path[KELP_RUN_PATH_MAX + 64];
    char words[1024] = "";
    int wait_status = 0;

    while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
    int exit_status =
        WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
    if (reports->run_path[0] == '\0') { /* it has said all itself, if it could */
        return WIFEXITED(wait_status)
                   ? exit_status
                   : kelp_complain(exit_status, "it was ended before the run began");
    }
    if (exit_status == KELP_EXIT_OK) {
        (void)printf("%s\n", reports->run_path);
        return exit_status;
    }
    if (kelp_run_dir_path(reports->run_path, LOG, path, sizeof(path), NULL) == KELP_OK) {
        kelp_log_tail_read(path, 0, words, sizeof(words));
    }
    return kelp_complain(exit_status, "%s",
                         strncmp(words, "kelp: ", 6) == 0 ? words + 6 : "the run was killed");
}

static void tell_started(pid_t pid, const char *run_path)
{
    (void)kelp_complain(KELP_EXIT_OK,
                        "training has started in process %ld; kelp status --watch %s shows it, "
                        "kelp stop %s ends it",
                        (long)pid, run_path, run_path);
    (void)printf("%s\n", run_path);
}

int kelp_detach_start(bool keep_input)
{
    struct reports reports = {.started = false};
    pid_t pid = -1;
    int fd = -1;

    catch_signals();
    int error = start(keep_input, &pid, &fd);
    if (error != 0) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return kelp_complain(KELP_EXIT_FAILED, "cannot start the run in the background: %s%s",
                             strerror(error),
                             access("/proc/self/exe", F_OK) == 0 ? "" : "; /proc must be mounted");
    }
    pass_on_to(pid);
    read_reports(fd, &reports);
    if (!reports.started || passed_on != 0) {
        return tell_end(pid, &reports);
    }
    tell_started(pid, reports.run_path);
    return KELP_EXIT_OK;
}

/* ---- in the background --------------------------------------------------------------------- */

int kelp_detach_take(void)
{
    const char *text = getenv(VARIABLE);
    uint64_t fd = 0;

    if (!text || kelp_value_u64(text, REPORT_FD, REPORT_FD, &fd, NULL) != KELP_OK) {
        return -1;
    }
    (void)unsetenv(VARIABLE);
    return fcntl((int)fd, F_SETFD, FD_CLOEXEC) == 0 ? (int)fd : -1;
}

void kelp_detach_leave(int fd)
{
    (void)fcntl(fd, F_SETFD, 0);
    (void)setenv(VARIABLE, "3", 1); /* without memory the command in the foreground hears an end */
}

static void report(int fd, const char *text)
{
    (void)signal(SIGPIPE, SIG_IGN); /* who waited may be gone; the run goes on */
    (void)dprintf(fd, "%s\n", text);
}

kelp_status kelp_detach_report_run(int fd, const char *run_path, struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    char line[KELP_RUN_PATH_MAX + 16];
    long from = 0;
    int log_fd = -1;

    kelp_status status = kelp_run_dir_path(run_path, LOG, path, sizeof(path), reterr);
    if (status == KELP_OK) {
        status = kelp_log_open(path, &log_fd, &from, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    (void)snprintf(line, sizeof(line), "run %s", run_path);
    report(fd, line);
    (void)fflush(NULL);
    (void)dup2(log_fd, STDOUT_FILENO);
    (void)dup2(log_fd, STDERR_FILENO);
    (void)close(log_fd);
    return KELP_OK;
}

void kelp_detach_report_started(int fd)
{
    report(fd, "started");
    (void)close(fd);
}
