#include "tests/lib/commands/run_command.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/files.h"

#define GONE_MS       15000
#define FILE_MAX      (1u << 20)
#define READ_MAX      (64u << 20)
#define ARGS_MAX      64
#define POLL_MS       5
#define PROCESSES_MAX 64

void kelp_test_look_later(void)
{
    const struct timespec pause = {.tv_nsec = POLL_MS * 1000000};

    (void)nanosleep(&pause, NULL);
}

void kelp_test_program(const char *name, char *path, size_t path_bytes)
{
    const char *bin = getenv("KELP_BIN");
    ck_assert_msg(bin != NULL, "KELP_BIN is not set: run this test through ctest");
    ck_assert_int_lt(snprintf(path, path_bytes, "%s/%s", bin, name), (int)path_bytes);
}

/* ---- files ------------------------------------------------------------------------------------
 */

void kelp_test_folder_init(struct kelp_test_folder *folder)
{
    const char *base = getenv("TMPDIR");

    ck_assert_int_lt(
        snprintf(folder->path, sizeof(folder->path), "%s/kelp-test-XXXXXX", base ? base : "/tmp"),
        (int)sizeof(folder->path));
    ck_assert_ptr_nonnull(mkdtemp(folder->path));
}

void kelp_test_folder_fini(struct kelp_test_folder *folder)
{
    if (!getenv("KELP_KEEP_RUNS")) {
        (void)kelp_files_remove(folder->path, NULL); /* leftovers stay in TMPDIR */
    }
}

const char *kelp_test_write(const char *folder, const char *name, const char *text)
{
    static char path[512];
    ck_assert_int_lt(snprintf(path, sizeof(path), "%s/%s", folder, name), (int)sizeof(path));
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

char *kelp_test_read(const char *folder, const char *name, size_t *ret_bytes)
{
    struct kelp_error error = {.text = ""};
    char path[512];
    char *text = NULL;
    size_t bytes = 0;

    ck_assert_int_lt(snprintf(path, sizeof(path), "%s/%s", folder, name), (int)sizeof(path));
    ck_assert_msg(kelp_files_read(path, READ_MAX, &text, &bytes, &error) == KELP_OK, "%s",
                  error.text);
    if (ret_bytes) {
        *ret_bytes = bytes;
    }
    return text;
}

/* Read a whole file, also of /proc (whose files have no size); "": it cannot be read. */
static char *read_file(const char *path, size_t *ret_bytes)
{
    char *text = calloc(1, FILE_MAX);
    size_t used = 0;

    ck_assert_ptr_nonnull(text);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && used < FILE_MAX - 1) {
        ssize_t got = read(fd, text + used, FILE_MAX - 1 - used);
        if (got <= 0) {
            break;
        }
        used += (size_t)got;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    if (ret_bytes) {
        *ret_bytes = used;
    }
    return text;
}

/* ---- commands ---------------------------------------------------------------------------------
 */

static int open_output(char *path, size_t path_bytes, const char *folder, const char *kind)
{
    static unsigned number;

    ck_assert_int_lt(
        snprintf(path, path_bytes, "%s/.%s-%ld-%u", folder, kind, (long)getpid(), number++),
        (int)path_bytes);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    return fd;
}

void kelp_test_command_mark(struct kelp_test_command *command)
{
    static unsigned number;

    (void)snprintf(command->mark, sizeof(command->mark), "KELPTEST_MARK=%ld-%u-%llu",
                   (long)getpid(), number++, (unsigned long long)kelp_clock_ms());
}

void kelp_test_command_start(struct kelp_test_command *command, const char *folder,
                             const char *const *args)
{
    char program[512];
    const char *argv[ARGS_MAX + 2] = {program};
    const char *environment[] = {command->mark, NULL};
    struct kelp_error error = {.text = ""};

    memset(command, 0, sizeof(*command));
    kelp_test_program("kelp", program, sizeof(program));
    for (size_t i = 0; args[i]; i++) {
        ck_assert_uint_lt(i, ARGS_MAX);
        argv[i + 1] = args[i];
    }
    kelp_test_command_mark(command);
    int out = open_output(command->out_path, sizeof(command->out_path), folder, "out");
    int err = open_output(command->err_path, sizeof(command->err_path), folder, "err");
    struct kelp_process_options options = {.argv = argv,
                                           .set_environment = environment,
                                           .folder = folder,
                                           .stdout_fd = out,
                                           .stderr_fd = err};
    kelp_status status = kelp_process_start(&options, &command->process, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    (void)close(out);
    (void)close(err);
}

uint64_t kelp_test_command_wait(struct kelp_test_command *command, uint32_t timeout_ms)
{
    int wait_status = 0;
    uint64_t begin = kelp_clock_ms();

    kelp_status status = kelp_process_wait(command->process, timeout_ms, &wait_status);
    uint64_t waited = kelp_clock_ms() - begin;
    command->out = read_file(command->out_path, NULL);
    command->err = read_file(command->err_path, NULL);
    ck_assert_msg(status == KELP_OK, "kelp did not end within %u ms; it said:\n%s%s", timeout_ms,
                  command->out, command->err);
    command->exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
    return waited;
}

void kelp_test_command_run(struct kelp_test_command *command, const char *folder,
                           const char *const *args, uint32_t timeout_ms)
{
    kelp_test_command_start(command, folder, args);
    (void)kelp_test_command_wait(command, timeout_ms);
}

void kelp_test_command_says(const char *folder, const char *const *args, int exit_code,
                            const char *text)
{
    struct kelp_test_command command;

    kelp_test_command_run(&command, folder, args, KELP_TEST_HANG_MS);
    ck_assert_msg(command.exit_code == exit_code, "exit %d, not %d; output:\n%s%s",
                  command.exit_code, exit_code, command.out, command.err);
    ck_assert_msg(strstr(command.out, text) != NULL || strstr(command.err, text) != NULL,
                  "'%s' is not said:\n%s%s", text, command.out, command.err);
    kelp_test_command_fini(&command);
}

char *kelp_test_command_peek(const struct kelp_test_command *command)
{
    return read_file(command->err_path, NULL);
}

bool kelp_test_command_ended(const struct kelp_test_command *command)
{
    return command != NULL && kelp_process_wait(command->process, 0, NULL) != KELP_ERR_TIMEOUT;
}

static bool has_said(const struct kelp_test_command *command, const char *text)
{
    char *said = kelp_test_command_peek(command);
    bool found = strstr(said, text) != NULL;
    free(said);
    return found;
}

void kelp_test_command_await(const struct kelp_test_command *command, const char *text)
{
    KELP_TEST_AWAIT_FROM(command, has_said(command, text), "kelp did not say '%s', but:\n%s", text,
                         kelp_test_command_peek(command));
}

void kelp_test_command_fini(struct kelp_test_command *command)
{
    kelp_process_destroy(command->process);
    (void)unlink(command->out_path);
    (void)unlink(command->err_path);
    free(command->out);
    free(command->err);
    command->process = NULL;
    command->out = NULL;
    command->err = NULL;
}

/* ---- processes --------------------------------------------------------------------------------
 */

static bool has_mark(const char *pid, const char *mark)
{
    char path[64];
    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), "/proc/%.20s/environ", pid);
    char *text = read_file(path, &bytes);
    bool found = memmem(text, bytes, mark, strlen(mark)) != NULL;
    free(text);
    return found; /* false for a zombie, whose environment is empty */
}

size_t kelp_test_command_processes(const struct kelp_test_command *command, pid_t *pids,
                                   size_t room)
{
    DIR *folder = opendir("/proc");
    size_t count = 0;

    ck_assert_ptr_nonnull(folder);
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        if (isdigit((unsigned char)entry->d_name[0]) && has_mark(entry->d_name, command->mark) &&
            count < room) {
            pids[count++] = (pid_t)strtol(entry->d_name, NULL, 10);
        }
    }
    (void)closedir(folder);
    return count;
}

static void command_line(pid_t pid, char *text, size_t text_bytes)
{
    char path[64];
    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), "/proc/%ld/cmdline", (long)pid);
    char *line = read_file(path, &bytes);
    for (size_t i = 0; i + 1 < bytes; i++) {
        line[i] = line[i] == '\0' ? ' ' : line[i];
    }
    (void)snprintf(text, text_bytes, "%s", line);
    free(line);
}

pid_t kelp_test_command_find(const struct kelp_test_command *command, const char *text,
                             const char *other)
{
    pid_t pids[PROCESSES_MAX];
    char line[4096];
    size_t count = kelp_test_command_processes(command, pids, PROCESSES_MAX);

    for (size_t i = 0; i < count; i++) {
        command_line(pids[i], line, sizeof(line));
        if (strstr(line, text) && strstr(line, other)) {
            return pids[i];
        }
    }
    return 0;
}

pid_t kelp_test_command_signal(const struct kelp_test_command *command, const char *text,
                               const char *other, int signal_number)
{
    pid_t pid = kelp_test_command_find(command, text, other);

    ck_assert_msg(pid > 0, "no process %s %s; kelp said:\n%s", text, other,
                  kelp_test_command_peek(command));
    ck_assert_int_eq(kill(pid, signal_number), 0);
    return pid;
}

void kelp_test_command_kill_all(struct kelp_test_command *command)
{
    pid_t pids[PROCESSES_MAX];
    size_t count = kelp_test_command_processes(command, pids, PROCESSES_MAX);

    ck_assert_uint_ge(count, 5); /* kelp, etcd, a coordinator, a shard, a worker */
    for (size_t i = 0; i < count; i++) {
        (void)kill(pids[i], SIGKILL); /* some end because others have ended */
    }
    (void)kelp_test_command_wait(command, KELP_TEST_HANG_MS);
    ck_assert_int_eq(command->exit_code, -1);
    kelp_test_command_gone(command);
}

void kelp_test_command_gone(const struct kelp_test_command *command)
{
    pid_t pids[PROCESSES_MAX];
    char line[512] = "";
    uint64_t end_ms = kelp_clock_ms() + GONE_MS;

    for (;;) {
        size_t count = kelp_test_command_processes(command, pids, PROCESSES_MAX);
        if (count == 0) {
            return;
        }
        command_line(pids[0], line, sizeof(line));
        ck_assert_msg(kelp_clock_ms() < end_ms, "%zu processes are left, one is %ld: %s", count,
                      (long)pids[0], line);
        kelp_test_look_later();
    }
}
