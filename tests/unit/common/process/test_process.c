#include "common/base/clock.h"
#include "common/process/process.h"
#include "tests/lib/suite.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct kelp_error error;

static struct kelp_process *start_shell(const char *script, int stdout_fd)
{
    const char *argv[] = {"sh", "-c", script, NULL};
    struct kelp_process_options options = {
        .argv = argv, .stdout_fd = stdout_fd, .stderr_fd = KELP_PROCESS_INHERIT};
    struct kelp_process *process = NULL;
    kelp_status status = kelp_process_start(&options, &process, &error);

    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return process;
}

/* Run a script and return what it wrote and its wait status. */
static int run(const struct kelp_process_options *base, const char *script, char *text,
               size_t text_bytes)
{
    const char *argv[] = {"sh", "-c", script, NULL};
    struct kelp_process_options options = *base;
    struct kelp_process *process = NULL;
    int fds[2];
    int wait_status = -1;
    size_t used = 0;
    ssize_t got;

    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    options.argv = argv;
    options.stdout_fd = fds[1];
    options.stderr_fd = fds[1];
    kelp_status status = kelp_process_start(&options, &process, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    (void)close(fds[1]);
    while (used + 1 < text_bytes && (got = read(fds[0], text + used, text_bytes - 1 - used)) > 0) {
        used += (size_t)got;
    }
    text[used] = '\0';
    (void)close(fds[0]);
    ck_assert_int_eq(kelp_process_wait(process, 10000, &wait_status), KELP_OK);
    kelp_process_destroy(process);
    return wait_status;
}

KELP_SUITE(.fork_each = true)
KELP_CASE("process", .timeout_s = 60)

/* Output goes where it should, the exit status comes back, and again when asked again. */
KELP_TEST(output_and_status)
{
    char text[256];
    struct kelp_process_options base = {0};
    int wait_status =
        run(&base, "echo out; echo err >&2; read x || echo no input; exit 7", text, sizeof(text));

    ck_assert(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 7);
    ck_assert_str_eq(text, "out\nerr\nno input\n");
    kelp_process_describe(wait_status, text, sizeof(text));
    ck_assert_str_eq(text, "exited with status 7");

    struct kelp_process *process = start_shell("kill -9 $$", KELP_PROCESS_NULL);
    ck_assert_int_eq(kelp_process_wait(process, 10000, &wait_status), KELP_OK);
    ck_assert_int_eq(kelp_process_wait(process, 0, &wait_status), KELP_OK);
    kelp_process_describe(wait_status, text, sizeof(text));
    ck_assert_str_eq(text, "killed by signal 9 (Killed)");
    kelp_process_destroy(process);
}

/* Environment: set over, taken out by name and by beginning; the working folder. */
KELP_TEST(environment_and_folder)
{
    static const char *const set[] = {"KELP_T_SET=new", "KELP_T_PUT=x=y", NULL};
    static const char *const unset[] = {"KELP_T_GONE", "KELP_TX_*", NULL};
    struct kelp_process_options base = {
        .set_environment = set, .unset_environment = unset, .folder = "/tmp"};
    char text[256];

    ck_assert_int_eq(setenv("KELP_T_SET", "old", 1), 0);
    ck_assert_int_eq(setenv("KELP_T_GONE", "1", 1), 0);
    ck_assert_int_eq(setenv("KELP_T_GONE_NOT", "1", 1), 0);
    ck_assert_int_eq(setenv("KELP_TX_1", "1", 1), 0);
    (void)run(&base,
              "echo $KELP_T_SET,$KELP_T_PUT,${KELP_T_GONE-none},$KELP_T_GONE_NOT,${KELP_TX_1-none};"
              "pwd",
              text, sizeof(text));
    ck_assert_str_eq(text, "new,x=y,none,1,none\n/tmp\n");
}

/* A child gets its three standard descriptors and no other, whatever the parent has open. */
KELP_TEST(no_descriptor_leaks)
{
    struct kelp_process_options base = {0};
    char text[256];

    ck_assert_int_ge(open("/dev/null", O_RDONLY), 3); /* without O_CLOEXEC */
    ck_assert_int_ge(dup2(1, 200), 0);
    (void)run(&base, "ls /proc/self/fd | tr '\\n' ' '", text, sizeof(text));
    ck_assert_str_eq(text, "0 1 2 3 "); /* 3 is ls reading the folder */
}

/* From now on this system call does not exist, as in an older kernel. */
static void forbid(uint32_t call)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = KELP_ARRAY_COUNT(code), .filter = code};

    ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

/* So it is where ranges of descriptors cannot be marked. */
KELP_TEST(no_descriptor_leaks_on_older_kernels)
{
    struct kelp_process_options base = {0};
    char text[256];

    forbid(SYS_close_range);
    ck_assert_int_ge(open("/dev/null", O_RDONLY), 3); /* without O_CLOEXEC */
    ck_assert_int_ge(dup2(1, 200), 0);
    (void)run(&base, "ls /proc/self/fd | tr '\\n' ' '", text, sizeof(text));
    ck_assert_str_eq(text, "0 1 2 3 ");
}

/* Without descriptors of processes nothing is started, and that is said. */
KELP_TEST(no_descriptors_of_processes)
{
    const char *argv[] = {"true", NULL};
    const struct kelp_process_options options = {.argv = argv};
    struct kelp_process *process = NULL;

    forbid(SYS_pidfd_open);
    ck_assert_int_eq(kelp_process_start(&options, &process, &error), KELP_ERR_IO);
    ck_assert_ptr_nonnull(strstr(error.text, "it needs Linux 5.4, and a container's filter of"));
}

/* Signals that the parent blocks or ignores are neither in the child, which leads its own group. */
KELP_TEST(signals_and_group)
{
    struct kelp_process_options base = {0};
    char text[256];
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    ck_assert_int_eq(sigprocmask(SIG_BLOCK, &set, NULL), 0);
    ck_assert(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    (void)run(&base, "grep -E 'SigBlk|SigIgn' /proc/self/status | tr -d '\\n\\t'", text,
              sizeof(text));
    ck_assert_str_eq(text, "SigBlk:0000000000000000SigIgn:0000000000000000");
    (void)run(&base, "test $(cut -d' ' -f5 /proc/$$/stat) = $$ && echo own", text, sizeof(text));
    ck_assert_str_eq(text, "own\n");
}

/* What cannot be started is an error at once, with its name. */
KELP_TEST(cannot_start)
{
    static const struct {
        const char *program;
        const char *folder;
        kelp_status status;
    } rows[] = {
        {"/nonexistent/program", NULL, KELP_ERR_NOT_FOUND},
        {"kelp-no-such-program", NULL, KELP_ERR_NOT_FOUND},
        {"/etc/passwd", NULL, KELP_ERR_INVALID},
        {"/tmp", NULL, KELP_ERR_INVALID},
        {"/bin/true", "/nonexistent/folder", KELP_ERR_NOT_FOUND},
    };

    for (size_t i = 0; i < KELP_ARRAY_COUNT(rows); i++) {
        const char *argv[] = {rows[i].program, NULL};
        struct kelp_process_options options = {.argv = argv,
                                               .folder = rows[i].folder,
                                               .stdout_fd = KELP_PROCESS_NULL,
                                               .stderr_fd = KELP_PROCESS_NULL};
        struct kelp_process *process;
        ck_assert_int_eq(kelp_process_start(&options, &process, &error), rows[i].status);
        ck_assert_ptr_nonnull(
            strstr(error.text, rows[i].folder ? rows[i].folder : rows[i].program));
    }
    /* The program is not what is missing. */
    const char *argv[] = {"/bin/true", NULL};
    struct kelp_process_options options = {
        .argv = argv, .stdout_fd = 1 << 20, .stderr_fd = KELP_PROCESS_NULL};
    struct kelp_process *process;
    ck_assert_int_eq(kelp_process_start(&options, &process, &error), KELP_ERR_IO);
    ck_assert_str_eq(error.text,
                     "cannot open /dev/null and the log of '/bin/true': Bad file descriptor");
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1); /* and no child is left */
    ck_assert_int_eq(errno, ECHILD);
}

/* Several are waited for together; which one ended shows. */
KELP_TEST(poll_several)
{
    struct kelp_process *slow = start_shell("exec sleep 60", KELP_PROCESS_NULL);
    struct kelp_process *quick = start_shell("exit 3", KELP_PROCESS_NULL);
    struct pollfd items[2] = {{.fd = kelp_process_fd(slow), .events = POLLIN},
                              {.fd = kelp_process_fd(quick), .events = POLLIN}};
    int wait_status;

    ck_assert_int_eq(poll(items, 2, 10000), 1);
    ck_assert(items[0].revents == 0 && items[1].revents != 0);
    ck_assert_int_eq(kelp_process_wait(quick, 0, &wait_status), KELP_OK);
    ck_assert_int_eq(WEXITSTATUS(wait_status), 3);
    uint64_t start_ms = kelp_clock_ms();
    ck_assert_int_eq(kelp_process_wait(slow, 0, NULL), KELP_ERR_TIMEOUT);
    ck_assert_int_eq(kelp_process_wait(slow, 100, NULL), KELP_ERR_TIMEOUT);
    ck_assert_uint_ge(kelp_clock_ms() - start_ms, 100);
    kelp_process_destroy(quick);
    kelp_process_destroy(slow);
}

/* A polite one ends by SIGTERM at once; a stubborn one by SIGKILL after its grace, its own children
 * with it. */
KELP_TEST(stop)
{
    int fds[2];
    char byte;
    int wait_status = 0;
    struct kelp_process *polite = start_shell("exec sleep 60", KELP_PROCESS_NULL);
    uint64_t start_ms = kelp_clock_ms();

    kelp_process_stop(polite, 10000);
    ck_assert_uint_lt(kelp_clock_ms() - start_ms, 5000);
    ck_assert_int_eq(kelp_process_wait(polite, 0, &wait_status), KELP_OK);
    ck_assert(WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGTERM);
    kelp_process_signal(polite, SIGTERM); /* nobody is hit */
    kelp_process_destroy(polite);

    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    struct kelp_process *stubborn =
        start_shell("trap '' TERM; sleep 60 & echo x; wait; wait; sleep 60", fds[1]);
    (void)close(fds[1]);
    ck_assert_int_eq(read(fds[0], &byte, 1), 1);
    start_ms = kelp_clock_ms();
    kelp_process_stop(stubborn, 200);
    ck_assert_uint_ge(kelp_clock_ms() - start_ms, 200);
    ck_assert_uint_lt(kelp_clock_ms() - start_ms, 5000);
    ck_assert_int_eq(kelp_process_wait(stubborn, 0, &wait_status), KELP_OK);
    ck_assert(WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL);
    /* The pipe ends only when the grandchild is gone too. */
    struct pollfd item = {.fd = fds[0], .events = POLLIN};
    do {
        ck_assert_int_eq(poll(&item, 1, 10000), 1);
    } while (read(fds[0], &byte, 1) > 0);
    kelp_process_destroy(stubborn);
    (void)close(fds[0]);
}

/* The parent is killed with SIGKILL: the child does not outlive it. */
KELP_TEST(dies_with_its_parent)
{
    int fds[2];
    char byte;

    ck_assert_int_eq(pipe(fds), 0);
    pid_t parent = fork();
    if (parent == 0) {
        struct kelp_process *child = start_shell("echo x; exec sleep 60", fds[1]);
        ck_assert_ptr_nonnull(child);
        (void)close(fds[1]);
        for (;;) {
            (void)pause();
        }
    }
    ck_assert_int_gt(parent, 0);
    (void)close(fds[1]);
    ck_assert_int_eq(read(fds[0], &byte, 1), 1); /* the child runs */
    ck_assert_int_eq(kill(parent, SIGKILL), 0);
    ck_assert_int_eq(waitpid(parent, NULL, 0), parent);
    struct pollfd item = {.fd = fds[0], .events = POLLIN};
    do {
        ck_assert_int_eq(poll(&item, 1, 10000), 1);
    } while (read(fds[0], &byte, 1) > 0); /* it ends when nobody has the other end any more */
    (void)close(fds[0]);
}

KELP_TEST(find)
{
    char path[KELP_PROCESS_PATH_MAX];

    ck_assert_int_eq(setenv("PATH", "/nonexistent::/etc:/bin", 1), 0);
    ck_assert_int_eq(kelp_process_find("sh", path, &error), KELP_OK);
    ck_assert_str_eq(path, "/bin/sh");
    ck_assert_int_eq(kelp_process_find("passwd-", path, &error), KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(setenv("PATH", "/", 1), 0); /* a folder is no program */
    ck_assert_int_eq(kelp_process_find("tmp", path, &error), KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(kelp_process_find("./x", path, &error), KELP_OK);
    ck_assert_str_eq(path, "./x");
}
