/*
 * The disk that fails, under itself: this program runs again with kelp-faultdisk.so preloaded, does
 * one of the acts below in the root, and what it saw and what a loss of power leaves is compared.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/files.h"
#include "tests/lib/disk/power_loss.h"
#include "tests/lib/suite.h"

#define MUST(call)                                                                                 \
    do {                                                                                           \
        struct kelp_error error = {.text = ""};                                                    \
        kelp_status status_of_call = (call);                                                       \
        ck_assert_msg(status_of_call == KELP_OK, "%s: %s", #call, error.text);                     \
    } while (0)

/* ---- acts, in the child -----------------------------------------------------------------------
 */

static int open_file(const char *name)
{
    return open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
}

static int put(const char *name, const char *text, bool sync)
{
    int fd = open_file(name);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) ||
        (sync && fsync(fd) != 0)) {
        return 1;
    }
    return close(fd) != 0;
}

static int sync_folder(const char *name)
{
    int fd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || fsync(fd) != 0 || close(fd) != 0;
}

static int act_unsynced(void)
{
    return put("new", "hello", false) || sync_folder(".");
}

static int act_no_entry(void)
{
    return put("new", "hello", true);
}

static int act_whole(void)
{
    return put("new", "hello", true) || sync_folder(".");
}

static int act_append(void)
{
    int fd = open("old", O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 || write(fd, " synced", 7) != 7 || fdatasync(fd) != 0 ||
        write(fd, " lost", 5) != 5) {
        return 1;
    }
    return close(fd) != 0;
}

static int act_rename(void)
{
    return put("old.new", "replaced", true) || rename("old.new", "old");
}

static int act_rename_synced(void)
{
    return act_rename() || sync_folder(".");
}

/* The data of the file that is renamed was never synced: the classic mistake. */
static int act_rename_without_data(void)
{
    return put("old.new", "replaced", false) || rename("old.new", "old") || sync_folder(".");
}

static int act_remove(void)
{
    return unlink("old");
}

static int act_remove_synced(void)
{
    return unlink("old") || sync_folder(".");
}

static int act_folder(void)
{
    return mkdir("a", 0755) || mkdir("a/b", 0755) || put("a/b/file", "deep", true) ||
           symlink("b/file", "a/link") || link("a/b/file", "a/hard") || sync_folder("a/b") ||
           sync_folder("a");
}

static int act_folder_synced(void)
{
    return act_folder() || sync_folder(".");
}

/* A folder that moves keeps what is in it. */
static int act_move_folder(void)
{
    return act_folder() || rename("a", "z") || sync_folder(".");
}

/* The number of a removed file's inode comes again. */
static int act_number_again(void)
{
    for (int i = 0; i < 20; i++) {
        if (put("first", "of the first", true) || unlink("first")) {
            return 1;
        }
    }
    return put("second", "of the second", false) || sync_folder(".");
}

/* Each call that may fail, once; exit status: 1 + the number of those that did not. */
static int act_fail(int error)
{
    int wrong = 0;
    struct iovec piece = {.iov_base = "x", .iov_len = 1};
    int fd = open("old", O_RDWR | O_CLOEXEC);
    int folder = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    FILE *stream = fdopen(dup(fd), "r+");
#define FAILS(call)                                                                                \
    do {                                                                                           \
        errno = 0;                                                                                 \
        if ((call) == 0 || errno != error) {                                                       \
            (void)dprintf(STDERR_FILENO, "%s: errno %d\n", #call, errno);                          \
            wrong++;                                                                               \
        }                                                                                          \
    } while (0)
    FAILS(open_file("new") >= 0 ? 0 : -1);
    FAILS(openat(folder, "new", O_CREAT | O_WRONLY, 0600) >= 0 ? 0 : -1);
    FAILS(creat("new", 0600) >= 0 ? 0 : -1);
    FAILS(fopen("new", "w") != NULL ? 0 : -1);
    FAILS(write(fd, "x", 1) == 1 ? 0 : -1);
    FAILS(pwrite(fd, "x", 1, 0) == 1 ? 0 : -1);
    FAILS(writev(fd, &piece, 1) == 1 ? 0 : -1);
    FAILS(pwritev(fd, &piece, 1, 0) == 1 ? 0 : -1);
    FAILS(fwrite("x", 1, 1, stream) == 1 ? 0 : -1);
    FAILS(fflush(stream));
    FAILS(ftruncate(fd, 100));
    FAILS(fallocate(fd, 0, 0, 100));
    FAILS(fsync(fd));
    FAILS(fdatasync(fd));
    FAILS(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
    FAILS(fsync(folder));
    FAILS(mkdir("folder", 0700));
    FAILS(mkdirat(folder, "folder", 0700));
    FAILS(link("old", "other"));
    FAILS(rename("old", "other"));
    FAILS(renameat(folder, "old", folder, "other"));
    FAILS(renameat2(folder, "old", folder, "other", 0));
    wrong += posix_fallocate(fd, 0, 100) != error;
    if (error == EIO) {
        FAILS(unlink("old"));
        FAILS(unlinkat(folder, "old", 0));
        FAILS(rmdir("old"));
    }
    return wrong == 0 ? 0 : 1 + wrong;
}

static int act_full(void)
{
    return act_fail(ENOSPC);
}

static int act_error(void)
{
    return act_fail(EIO);
}

static int act_unreadable(void)
{
    char byte;
    int fd = open("old", O_RDONLY | O_CLOEXEC);
    return read(fd, &byte, 1) != -1 || errno != EIO || pread(fd, &byte, 1, 0) != -1 || errno != EIO;
}

/* Outside the root everything works; reading works while the disk is full. */
static int act_elsewhere(void)
{
    char byte;
    int fd = open("old", O_RDONLY | O_CLOEXEC);
    int pipes[2];
    return read(fd, &byte, 1) != 1 || put("../elsewhere", "x", true) || pipe(pipes) != 0 ||
           write(pipes[1], "x", 1) != 1 || read(pipes[0], &byte, 1) != 1;
}

/* Exit status: 100 + writes that passed before one failed, and later ones that failed. */
static int act_writes(void)
{
    int fd = open("old", O_WRONLY | O_CLOEXEC);
    int first = -1;
    int failed = 0;
    for (int i = 0; i < 20; i++) {
        if (write(fd, "x", 1) != 1) {
            first = first < 0 ? i : first;
            failed++;
        }
    }
    return 100 + first * 4 + (failed > 3 ? 3 : failed);
}

static const struct act {
    const char *name;
    int (*run)(void);
} acts[] = {
    {"unsynced", act_unsynced},
    {"no_entry", act_no_entry},
    {"whole", act_whole},
    {"append", act_append},
    {"rename", act_rename},
    {"rename_synced", act_rename_synced},
    {"rename_without_data", act_rename_without_data},
    {"remove", act_remove},
    {"remove_synced", act_remove_synced},
    {"folder", act_folder},
    {"folder_synced", act_folder_synced},
    {"move_folder", act_move_folder},
    {"number_again", act_number_again},
    {"full", act_full},
    {"error", act_error},
    {"unreadable", act_unreadable},
    {"elsewhere", act_elsewhere},
    {"writes", act_writes},
};

/* ---- the parent -------------------------------------------------------------------------------
 */

static char folder[] = "/tmp/kelp-disk-XXXXXX";
static struct kelp_faultdisk *disk;
static char library[1024];

static void setup(void)
{
    const char *bin = getenv("KELP_BIN");
    ck_assert_msg(bin != NULL, "KELP_BIN is not set; run the tests by ctest");
    (void)snprintf(library, sizeof(library), "%s/kelp-faultdisk.so", bin);
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-disk-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(mkdir("root", 0755), 0);
    MUST(kelp_files_write("root/old", "old", 3, &error));
    MUST(kelp_faultdisk_open("control", &disk, &error));
    MUST(kelp_power_begin("shadow", "root", &error));
}

static void teardown(void)
{
    kelp_faultdisk_close(disk);
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(kelp_files_remove(folder, NULL), KELP_OK);
}

static void set(enum kelp_faultdisk_mode mode, uint64_t after, uint64_t count)
{
    const struct kelp_faultdisk_fault fault = {
        .mode = mode, .after = after, .count = count, .slow_ms = 20};
    kelp_faultdisk_set(disk, &fault);
}

/* The wait status of the act. */
static int run(const char *act)
{
    struct kelp_power_environment environment;
    const struct kelp_faultdisk_paths paths = {
        .library = library, .control = "control", .root = "root"};
    MUST(kelp_power_environment(&paths, "shadow", &environment, &error));
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        char *variables[] = {environment.preload, environment.control, environment.root,
                             environment.shadow, NULL};
        char *arguments[] = {"act", (char *)(uintptr_t)act, NULL};
        (void)chdir("root");
        (void)execve("/proc/self/exe", arguments, variables);
        _exit(127);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return status;
}

static void run_well(const char *act)
{
    int status = run(act);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status %x", act, status);
}

static void lose_power(uint64_t seed)
{
    const struct kelp_power_loss loss = {.seed = seed};
    MUST(kelp_power_lose("shadow", "root", &loss, &error));
}

/* NULL: it is not there. */
static void expect(const char *name, const char *text)
{
    char path[256];
    char *bytes = NULL;
    size_t count = 0;
    (void)snprintf(path, sizeof(path), "root/%s", name);
    kelp_status status = kelp_files_read(path, 4096, &bytes, &count, NULL);
    if (text == NULL) {
        ck_assert_msg(status == KELP_ERR_NOT_FOUND, "%s is there", name);
        return;
    }
    ck_assert_msg(status == KELP_OK, "%s is not there", name);
    ck_assert_msg(strcmp(bytes, text) == 0, "%s is '%s' instead of '%s'", name, bytes, text);
    free(bytes);
}

static const struct outcome {
    const char *act;
    const char *files[8]; /* name, text, name, text… */
} outcomes[] = {
    {"unsynced", {"old", "old", "new", ""}},
    {"no_entry", {"old", "old", "new", NULL}},
    {"whole", {"old", "old", "new", "hello"}},
    {"append", {"old", "old synced"}},
    {"rename", {"old", "old", "old.new", NULL}},
    {"rename_synced", {"old", "replaced", "old.new", NULL}},
    {"rename_without_data", {"old", "", "old.new", NULL}},
    {"remove", {"old", "old"}},
    {"remove_synced", {"old", NULL}},
    {"folder", {"a/b/file", NULL}},
    {"folder_synced", {"a/b/file", "deep", "a/link", "deep", "a/hard", "deep"}},
    {"move_folder", {"z/b/file", "deep", "a/b/file", NULL, "z/link", "deep"}},
    {"number_again", {"first", NULL, "second", ""}},
};

KELP_CASE("disk", .setup = setup, .teardown = teardown)

/* After a loss of power there is what was synced, and nothing else; again after a second one. */
KELP_LOOP_TEST(power, 0, KELP_ARRAY_COUNT(outcomes))
{
    const struct outcome *outcome = &outcomes[_i];
    run_well(outcome->act);
    for (int round = 0; round < 2; round++) {
        lose_power(0);
        for (size_t i = 0; i < 8 && outcome->files[i] != NULL; i += 2) {
            expect(outcome->files[i], outcome->files[i + 1]);
        }
    }
}

/* What was not synced may be there all the same; over many seeds both are seen, and what was
 * synced is always there. */
KELP_TEST(power_by_chance)
{
    int old = 0;
    int replaced = 0;
    int lost = 0;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        char *bytes = NULL;
        size_t count = 0;
        MUST(kelp_files_write("root/old", "old", 3, &error));
        MUST(kelp_power_begin("shadow", "root", &error));
        run_well("rename");
        lose_power(seed);
        MUST(kelp_files_read("root/old", 64, &bytes, &count, &error));
        old += strcmp(bytes, "old") == 0;
        replaced += strcmp(bytes, "replaced") == 0;
        free(bytes);
    }
    ck_assert_int_eq(old + replaced, 24);
    ck_assert_int_gt(old, 0);
    ck_assert_int_gt(replaced, 0);
    for (uint64_t seed = 1; seed <= 24; seed++) {
        char *bytes = NULL;
        size_t count = 0;
        MUST(kelp_files_write("root/old", "old", 3, &error));
        MUST(kelp_power_begin("shadow", "root", &error));
        run_well("append");
        lose_power(seed);
        MUST(kelp_files_read("root/old", 64, &bytes, &count, &error));
        ck_assert_int_eq(strncmp(bytes, "old synced", 10), 0);
        lost += count == 10;
        free(bytes);
    }
    ck_assert_int_gt(lost, 0);
    ck_assert_int_lt(lost, 24);
}

/* Folders of programs that are not seen stay as they are. */
KELP_TEST(power_keeps)
{
    static const char *const keep[] = {"kept", "none"};
    const struct kelp_power_loss loss = {.keep = keep, .keep_count = 2};
    MUST(kelp_files_make_folder("root/kept", &error));
    MUST(kelp_files_write("root/kept/file", "x", 1, &error));
    MUST(kelp_files_write("root/lost", "x", 1, &error));
    MUST(kelp_power_lose("shadow", "root", &loss, &error));
    expect("kept/file", "x");
    expect("lost", NULL);
    expect("old", "old");
    expect("none", NULL);
}

/* Each call fails as the mode says, and nothing has happened. */
KELP_TEST(modes)
{
    set(KELP_FAULTDISK_FULL, 0, 0);
    run_well("full");
    ck_assert_uint_ge(kelp_faultdisk_hits(disk), 20);
    set(KELP_FAULTDISK_ERROR, 0, 0);
    run_well("error");
    set(KELP_FAULTDISK_UNREADABLE, 0, 0);
    run_well("unreadable");
    set(KELP_FAULTDISK_FULL, 0, 0);
    run_well("elsewhere");
    set(KELP_FAULTDISK_OK, 0, 0);
    run_well("whole");
    expect("old", "old");
    expect("new", "hello");
    ck_assert_uint_eq(kelp_faultdisk_calls(disk), 0);
}

/* The n-th call fails, as many as were asked for, and the calls are counted. */
KELP_TEST(count_down)
{
    set(KELP_FAULTDISK_ERROR, 5, 1);
    ck_assert_int_eq(WEXITSTATUS(run("writes")), 100 + 5 * 4 + 1);
    ck_assert_uint_eq(kelp_faultdisk_calls(disk), 20);
    ck_assert_uint_eq(kelp_faultdisk_hits(disk), 1);
    set(KELP_FAULTDISK_FULL, 18, 0);
    ck_assert_int_eq(WEXITSTATUS(run("writes")), 100 + 18 * 4 + 2);
    set(KELP_FAULTDISK_COUNT, 0, 0);
    ck_assert_int_eq(WEXITSTATUS(run("writes")), 100 - 4);
    ck_assert_uint_eq(kelp_faultdisk_calls(disk), 20);
    ck_assert_uint_eq(kelp_faultdisk_hits(disk), 0);
}

/* The n-th call does not take effect, and is the last one. */
KELP_TEST(power_at_call)
{
    set(KELP_FAULTDISK_POWER, 3, 0);
    int status = run("writes");
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    expect("old", "xxx");
    lose_power(0);
    expect("old", "old");
}

KELP_TEST(slow)
{
    struct timespec begin;
    struct timespec end;
    set(KELP_FAULTDISK_SLOW, 0, 0);
    (void)clock_gettime(CLOCK_MONOTONIC, &begin);
    ck_assert_int_eq(WEXITSTATUS(run("writes")), 100 - 4);
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds =
        (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    ck_assert_double_ge(seconds, 20 * 0.020);
}

/* What cannot work is refused by name. */
KELP_TEST(refusals)
{
    struct kelp_power_environment environment;
    struct kelp_error error;
    struct kelp_faultdisk *other = NULL;
    struct kelp_faultdisk_paths paths = {.library = library, .control = "root/old", .root = "root"};
    ck_assert_int_eq(kelp_power_environment(&paths, "shadow", &environment, &error),
                     KELP_ERR_INVALID);
    paths.control = "none";
    ck_assert_int_eq(kelp_power_environment(&paths, "shadow", &environment, &error),
                     KELP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "none"));
    ck_assert_int_eq(kelp_faultdisk_open("root/old", &other, &error), KELP_ERR_FORMAT);
}

int main(int argc, char **argv)
{
    if (argc == 2) {
        for (size_t i = 0; i < KELP_ARRAY_COUNT(acts); i++) {
            if (strcmp(argv[1], acts[i].name) == 0) {
                return acts[i].run();
            }
        }
        return 126;
    }
    return kelp_suite_run();
}
