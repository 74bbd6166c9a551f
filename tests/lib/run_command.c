#include "tests/lib/run_command.h"

#include <check.h>
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/lib/run_train.h"

#define SAYS_TIMEOUT_MS 60000
#define FILE_MAX        (1u << 20)
#define ARGS_MAX        64
#define POLL_MS         20
#define PROCESSES_MAX   64

void kelp_test_folder_init(struct kelp_test_folder *folder)
{
    const char *base = getenv("TMPDIR");

    ck_assert_int_lt(
        snprintf(folder->path, sizeof(folder->path), "%s/kelp-cli-XXXXXX", base ? base : "/tmp"),
        (int)sizeof(folder->path));
    ck_assert_ptr_nonnull(mkdtemp(folder->path));
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

void kelp_test_folder_fini(struct kelp_test_folder *folder)
{
    if (!getenv("KELP_KEEP_RUNS")) {
        (void)nftw(folder->path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    }
}

/* A whole file, from /proc too (whose files have no size); "" when it cannot be read. */
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

void kelp_test_command_start(struct kelp_test_command *command, const char *folder,
                             const char *const *args)
{
    static unsigned number;
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
    (void)snprintf(command->mark, sizeof(command->mark), "KELPTEST_MARK=%ld-%u-%llu",
                   (long)getpid(), number++, (unsigned long long)kelp_clock_ms());
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

    kelp_test_command_run(&command, folder, args, SAYS_TIMEOUT_MS);
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

void kelp_test_command_await(const struct kelp_test_command *command, const char *text,
                             uint32_t timeout_ms)
{
    uint64_t end_ms = kelp_clock_ms() + timeout_ms;
    bool found = false;

    while (!found) {
        char *err = kelp_test_command_peek(command);
        found = strstr(err, text) != NULL;
        ck_assert_msg(found || kelp_clock_ms() < end_ms, "kelp did not say '%s' within %u ms:\n%s",
                      text, timeout_ms, err);
        free(err);
        if (!found) {
            (void)usleep(POLL_MS * 1000);
        }
    }
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

static bool has_mark(const char *pid, const char *mark)
{
    char path[64];
    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), "/proc/%.20s/environ", pid);
    char *text = read_file(path, &bytes);
    bool found = memmem(text, bytes, mark, strlen(mark)) != NULL;
    free(text);
    return found; /* a zombie's environment is empty */
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

void kelp_test_command_gone(const struct kelp_test_command *command, uint32_t wait_ms)
{
    pid_t pids[PROCESSES_MAX];
    char line[512] = "";
    uint64_t end_ms = kelp_clock_ms() + wait_ms;

    for (;;) {
        size_t count = kelp_test_command_processes(command, pids, PROCESSES_MAX);
        if (count == 0) {
            return;
        }
        command_line(pids[0], line, sizeof(line));
        ck_assert_msg(kelp_clock_ms() < end_ms, "%zu processes are left, one is %ld: %s", count,
                      (long)pids[0], line);
        (void)usleep(POLL_MS * 1000);
    }
}
