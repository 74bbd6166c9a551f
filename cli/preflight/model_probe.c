#include "cli/preflight/model_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/process/process.h"
#include "worker/model/derive.h"

/* What the child leaves, in memory that both have. */
struct answer {
    bool there;
    kelp_status status;
    struct kelp_error error;
};

/* A library that calls exit() ends the child alone: what the parent wants done at its end is not
 * done here. */
static void leave(int exit_status, void *nothing)
{
    (void)nothing;
    _exit(exit_status);
}

/* The child: its end closes the pipe. */
static _Noreturn void build(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                            pid_t parent, struct answer *answer)
{
    struct kelp_model *model = NULL;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)on_exit(leave, NULL);
    if (getppid() == parent) {
        answer->status = kelp_derive_model(job, shape, &model, &answer->error);
        answer->there = true;
    }
    _exit(0); /* nothing of the parent's is flushed or freed twice */
}

/* Until the pipe's other end is closed; false when limit_ms have passed. */
static bool await_end(int fd, uint32_t limit_ms)
{
    const uint64_t end_ms = kelp_clock_ms() + limit_ms;

    for (;;) {
        uint64_t now = kelp_clock_ms();
        struct pollfd item = {.fd = fd, .events = POLLIN};
        int ready = poll(&item, 1, now < end_ms ? (int)(end_ms - now) : 0);
        if (ready > 0 || (ready == 0 && now >= end_ms) || (ready < 0 && errno != EINTR)) {
            return ready != 0;
        }
    }
}

static int reap(pid_t child)
{
    int wait_status = 0;

    while (waitpid(child, &wait_status, 0) < 0 && errno == EINTR) {
    }
    return wait_status;
}

static kelp_status judge(const struct kelp_job *job, const struct answer *answer, int wait_status,
                         struct kelp_error *reterr)
{
    const char *plugin = job->model.plugin;
    char how[64];

    if (answer->there && WIFEXITED(wait_status)) {
        if (answer->status != KELP_OK && reterr) {
            *reterr = answer->error;
        }
        return answer->status;
    }
    kelp_process_describe(wait_status, how, sizeof(how));
    if (WIFEXITED(wait_status)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "model.plugin: %s ended the process while it built the model (%s); a "
                         "model must report errors with api->fail()",
                         plugin, how);
    }
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "model.plugin: %s crashed while it built the model: %s", plugin, how);
}

static kelp_status watch(const struct kelp_job *job, const struct answer *answer, pid_t child,
                         int fd, uint32_t limit_ms, struct kelp_error *reterr)
{
    bool ended = await_end(fd, limit_ms);

    if (!ended) {
        (void)kill(child, SIGKILL);
    }
    int wait_status = reap(child);
    return ended ? judge(job, answer, wait_status, reterr)
                 : kelp_fail(reterr, KELP_ERR_INVALID,
                             "model.plugin: %s has not built the model within %g s",
                             job->model.plugin, limit_ms / 1000.0);
}

/* The child of this process builds, the process waits. */
static kelp_status probe(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                         uint32_t limit_ms, struct answer *answer, struct kelp_error *reterr)
{
    int ends[2];
    const pid_t parent = getpid();

    if (pipe2(ends, O_CLOEXEC) < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot make a pipe: %s", strerror(errno));
    }
    (void)fflush(NULL); /* what is buffered is printed by one of both */
    const pid_t child = fork();
    if (child == 0) {
        (void)close(ends[0]);
        build(job, shape, parent, answer);
    }
    (void)close(ends[1]);
    kelp_status status =
        child < 0 ? kelp_fail(reterr, KELP_ERR_IO, "cannot start a process: %s", strerror(errno))
                  : watch(job, answer, child, ends[0], limit_ms, reterr);
    (void)close(ends[0]);
    return status;
}

kelp_status kelp_model_probe(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                             uint32_t limit_ms, struct kelp_error *reterr)
{
    if (job->model.kind != KELP_MODEL_PLUGIN) {
        return KELP_OK;
    }
    struct answer *answer =
        mmap(NULL, sizeof(*answer), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (answer == MAP_FAILED) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = probe(job, shape, limit_ms, answer, reterr);
    (void)munmap(answer, sizeof(*answer));
    return status;
}
