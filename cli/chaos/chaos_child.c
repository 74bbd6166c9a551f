#include "cli/chaos/chaos_child.h"

#include <assert.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/run/log_tail.h"
#include "common/base/environment.h"
#include "common/program/options/options.h"

#define ENVIRONMENT_MAX 8 /* entries that a child is given */
#define PYTHON_BYTES    (KELP_PROCESS_PATH_MAX + sizeof("KELP_PYTHON="))

/* That of the child: what it is given, and the Python that runs a job's script. */
static void choose_environment(const struct kelp_chaos_child *child, char python[PYTHON_BYTES],
                               const char *environment[ENVIRONMENT_MAX + 2])
{
    int count = 0;

    for (; child->environment && child->environment[count]; count++) {
        assert(count < ENVIRONMENT_MAX);
        environment[count] = child->environment[count];
    }
    (void)snprintf(python, PYTHON_BYTES, "KELP_PYTHON=%.*s", KELP_PROCESS_PATH_MAX,
                   kelp_environment_python());
    environment[count++] = python;
    environment[count] = NULL;
}

kelp_status kelp_chaos_child_start(struct kelp_chaos_child *child, const char *const *args,
                                   struct kelp_error *reterr)
{
    char program[KELP_PROCESS_PATH_MAX];
    const char *argv[KELP_CHAOS_CHILD_ARGS_MAX + 3] = {program, child->verb};
    /* What KELP_ variables ask for stands in the job already. */
    static const char *const unset[] = {"KELP_*", NULL};
    const char *environment[ENVIRONMENT_MAX + 2];
    char python[PYTHON_BYTES];
    int count = 2;
    int fd = -1;

    int length = snprintf(program, sizeof(program), "%s/kelp", child->bin_folder);
    if (length < 0 || (size_t)length >= sizeof(program)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path of kelp is too long");
    }
    for (; *args && count < KELP_CHAOS_CHILD_ARGS_MAX + 2; args++) {
        argv[count++] = *args;
    }
    kelp_status status = kelp_log_open(child->log_path, &fd, &child->log_from, reterr);
    if (status != KELP_OK) {
        return status;
    }
    choose_environment(child, python, environment);
    struct kelp_process_options options = {.argv = argv,
                                           .set_environment = environment,
                                           .unset_environment = unset,
                                           .stdout_fd = fd,
                                           .stderr_fd = fd};
    status = kelp_process_start(&options, &child->process, reterr);
    (void)close(fd);
    return status;
}

static kelp_status status_of_exit(int exit_status)
{
    switch (exit_status) {
    case KELP_EXIT_USAGE:
        return KELP_ERR_INVALID;
    case KELP_EXIT_UNREACHABLE:
        return KELP_ERR_UNREACHABLE;
    default:
        return KELP_ERR_CLOSED;
    }
}

kelp_status kelp_chaos_child_end(struct kelp_chaos_child *child, int wait_status,
                                 struct kelp_error *reterr)
{
    char how[64];
    char words[256];

    kelp_process_destroy(child->process);
    child->process = NULL;
    if (WIFEXITED(wait_status) &&
        (WEXITSTATUS(wait_status) == KELP_EXIT_OK || WEXITSTATUS(wait_status) == 128 + SIGTERM)) {
        return KELP_OK; /* done, or paused as it was asked to */
    }
    kelp_process_describe(wait_status, how, sizeof(how));
    kelp_log_tail_read(child->log_path, child->log_from, words, sizeof(words));
    return kelp_fail(
        reterr, WIFEXITED(wait_status) ? status_of_exit(WEXITSTATUS(wait_status)) : KELP_ERR_CLOSED,
        "kelp %s %s: %s", child->verb, how, words[0] ? words : "it logged nothing");
}

void kelp_chaos_child_kill(struct kelp_chaos_child *child)
{
    kelp_process_destroy(child->process);
    child->process = NULL;
}

kelp_status kelp_chaos_child_run(struct kelp_chaos_child *child, const char *const *args,
                                 struct kelp_guard *guard, struct kelp_error *reterr)
{
    int wait_status = 0;
    kelp_status status = kelp_chaos_child_start(child, args, reterr);

    if (status != KELP_OK) {
        return status;
    }
    while (kelp_process_wait(child->process, 0, &wait_status) != KELP_OK) {
        struct pollfd items[2] = {
            {.fd = kelp_guard_fd(guard), .events = POLLIN},
            {.fd = kelp_process_fd(child->process), .events = POLLIN},
        };
        if (kelp_guard_stage(guard) == KELP_GUARD_STOP) {
            kelp_chaos_child_kill(child);
            return kelp_fail(reterr, KELP_ERR_CLOSED, "stopped by a signal");
        }
        if (poll(items, 2, child->look ? child->look_ms : -1) == 0) {
            child->look(child->user);
        }
    }
    return kelp_chaos_child_end(child, wait_status, reterr);
}
