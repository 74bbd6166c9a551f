/*
 * A process with threads cannot move into a user namespace, and libraries start threads before
 * main(). So the program unshare(1) makes the namespace, and executes this program in it from the
 * beginning, as the same user and with the rights of that namespace's root.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/chaos/network/network_internal.h"
#include "common/process/process.h"
#include "common/process/process_again.h"

static const char *const begun_again[] = {"KELP_USER_NAMESPACE=1", NULL};

kelp_status kelp__network_refused(const char *what, int error, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                     "hosts need network namespaces, which this machine does not permit: %s: %s; "
                     "run as root, or on a kernel that allows user namespaces",
                     what, strerror(error));
}

/* Would the kernel let this user have one? 0 or an errno, by a child that has no threads. */
static int try_user_namespace(void)
{
    int wait_status = 0;
    pid_t child = fork();

    if (child == 0) {
        _exit(unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 ? 0 : errno);
    }
    if (child < 0) {
        return errno;
    }
    while (waitpid(child, &wait_status, 0) < 0) {
        if (errno != EINTR) {
            return errno;
        }
    }
    return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : EPERM; /* killed by a filter */
}

/* unshare … PROGRAM and the words that this process was started with. Returns an errno. */
static int execute_again(char **own)
{
    static const char *const by[] = {"unshare",     "--user", "--map-current-user",
                                     "--keep-caps", "--",     NULL};
    char tool[KELP_PROCESS_PATH_MAX];
    char program[KELP_PROCESS_PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    size_t count = 1;

    if (length <= 0 || kelp_process_find(by[0], tool, NULL) != KELP_OK) {
        return ENOENT;
    }
    program[length] = '\0';
    for (char **word = own; *word; word++) {
        count++;
    }
    const char **words = calloc(KELP_ARRAY_COUNT(by) + count, sizeof(*words));
    char **environment = kelp_process_own_environment(begun_again);
    if (words && environment) {
        memcpy(words, by, sizeof(by));
        words[KELP_ARRAY_COUNT(by) - 1] = program;
        memcpy(words + KELP_ARRAY_COUNT(by), own + 1, (count - 1) * sizeof(*words));
        (void)execve(tool, (char *const *)(uintptr_t)words, environment);
    }
    const int error = errno;
    free(environment);
    free(words);
    return error;
}

static kelp_status begin_again(struct kelp_error *reterr)
{
    char *text = NULL;
    int error = try_user_namespace();

    if (error != 0) {
        return kelp__network_refused(error == ENOSPC ? "a user namespace (user.max_user_namespaces)"
                                                     : "a user namespace",
                                     error, reterr);
    }
    char **own = kelp_process_own_words(&text);
    error = own ? execute_again(own) : errno;
    free(own);
    free(text);
    return kelp__network_refused("the program unshare", error, reterr);
}

kelp_status kelp__network_leave_network(struct kelp_error *reterr)
{
    if (unshare(CLONE_NEWNET) == 0) {
        return KELP_OK;
    }
    return errno == EPERM && !kelp_process_has_variables(begun_again)
               ? begin_again(reterr)
               : kelp__network_refused("a network namespace", errno, reterr);
}
