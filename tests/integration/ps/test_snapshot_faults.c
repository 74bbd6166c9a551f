/*
 * Snapshots on disks that fail: this program runs again under kelp-faultdisk.so and writes one, and
 * each of its calls fails in turn, or is the last before the power goes. What is left is nothing or
 * whole, and an older snapshot beside it is as it was.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/files.h"
#include "ps/storage/snapshot_store.h"
#include "tests/lib/disk/power_loss.h"
#include "tests/lib/suite.h"

#define PARTS      3
#define ITEM_BYTES (KELP_SNAPSHOT_CHUNK_BYTES / 4)
#define OLDER      "checkpoints/step-10.g1/shard-0.1"
#define NEWER      "checkpoints/step-20.g1/shard-0.1"
#define FOLDER_ENV "KELP_TEST_FOLDER"

/* Each call in its turn; under sanitizers, where a process takes ten times as long, some of them.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STRIDE 5
#else
#define STRIDE 1
#endif

static struct kelp_error error;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        kelp_status status_of_call = (call);                                                       \
        ck_assert_msg(status_of_call == KELP_OK, "%s: %s", #call, error.text);                     \
    } while (0)

/* ---- one snapshot, told by its step -----------------------------------------------------------
 */

static unsigned char bytes[ITEM_BYTES];

static void fill(uint64_t step, uint32_t partition)
{
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (unsigned char)((i * 2654435761u >> 7) + step * 31 + partition);
    }
}

/* As ps/storage/snapshot_store.h has it, computed by hand. */
static void digest_of(uint64_t step, uint32_t partition, char ret_hex[KELP_DIGEST_HEX_BYTES])
{
    struct kelp_digest digest;
    const uint32_t kind = KELP_SNAPSHOT_WEIGHTS;
    const uint64_t count = sizeof(bytes);
    fill(step, partition);
    kelp_digest_init(&digest);
    kelp_digest_update(&digest, &kind, sizeof(kind));
    kelp_digest_update(&digest, &count, sizeof(count));
    kelp_digest_update(&digest, bytes, sizeof(bytes));
    kelp_digest_hex(&digest, ret_hex);
}

static kelp_status write_parts(struct kelp_snapshot_writer *writer, uint64_t step)
{
    kelp_status status = KELP_OK;
    for (uint32_t p = 0; p < PARTS && status == KELP_OK; p++) {
        char found[KELP_DIGEST_HEX_BYTES];
        char wanted[KELP_DIGEST_HEX_BYTES];
        uint64_t total = 0;
        digest_of(step, p, wanted);
        /* Not adjacent: more than one file. */
        status = kelp_snapshot_writer_part(writer, 2 * p, &error);
        if (status == KELP_OK) {
            status = kelp_snapshot_writer_item(writer, KELP_SNAPSHOT_WEIGHTS, bytes, sizeof(bytes),
                                               &error);
        }
        if (status == KELP_OK) {
            kelp_snapshot_writer_digest(writer, found, &total);
            ck_assert_str_eq(found, wanted);
            ck_assert_uint_eq(total, sizeof(bytes));
        }
    }
    return status;
}

static kelp_status write_snapshot(const char *path, uint64_t step)
{
    const struct kelp_snapshot_id id = {.generation = 1, .step = step};
    struct kelp_snapshot_writer *writer = NULL;
    kelp_status status = kelp_snapshot_writer_open(path, &id, &writer, &error);
    if (status != KELP_OK) {
        return status;
    }
    status = write_parts(writer, step);
    if (status != KELP_OK) {
        kelp_snapshot_writer_abandon(writer);
        return status;
    }
    return kelp_snapshot_writer_finish(writer, &error);
}

static kelp_status read_snapshot(const char *path, uint64_t step)
{
    const struct kelp_snapshot_id id = {.generation = 1, .step = step};
    struct kelp_snapshot_reader *reader = NULL;
    kelp_status status = kelp_snapshot_reader_open(path, &id, &reader, &error);
    if (status != KELP_OK) {
        return status;
    }
    for (uint32_t p = 0; p < PARTS && status == KELP_OK; p++) {
        char digest[KELP_DIGEST_HEX_BYTES];
        digest_of(step, p, digest);
        status = kelp_snapshot_reader_part(reader, 2 * p, &error);
        if (status == KELP_OK) {
            status = kelp_snapshot_reader_item(reader, KELP_SNAPSHOT_WEIGHTS, bytes, sizeof(bytes),
                                               &error);
        }
        if (status == KELP_OK) {
            status = kelp_snapshot_reader_check(reader, digest, &error);
        }
    }
    kelp_snapshot_reader_close(reader);
    return status;
}

/* ---- processes --------------------------------------------------------------------------------
 * The whole program runs under the library; faults are on while a child of it lives. Only children
 * use RocksDB, whose threads would not follow a fork.
 */

static char folder[1024];
static struct kelp_faultdisk *disk;
static uint64_t faults_hit; /* in the run before */

enum what { WRITE, READ };

static int exit_of(kelp_status status)
{
    return -(int)status; /* codes are small negative numbers */
}

/* The wait status; a child that ends by itself exits with exit_of(its status). */
static int run(enum what what, const char *path, uint64_t step)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        kelp_status status = what == WRITE ? write_snapshot(path, step) : read_snapshot(path, step);
        if (status != KELP_OK && getenv("KELP_TEST_VERBOSE") != NULL) {
            (void)dprintf(STDERR_FILENO, "%s: %s\n", kelp_status_name(status), error.text);
        }
        _exit(exit_of(status));
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

static int run_with(enum kelp_faultdisk_mode mode, uint64_t after, uint64_t count, enum what what,
                    const char *path, uint64_t step)
{
    const struct kelp_faultdisk_fault fault = {.mode = mode, .after = after, .count = count};
    kelp_faultdisk_set(disk, &fault);
    int status = run(what, path, step);
    faults_hit = kelp_faultdisk_hits(disk);
    kelp_faultdisk_set(disk, &(struct kelp_faultdisk_fault){.mode = KELP_FAULTDISK_OK});
    return status;
}

static kelp_status ended_with(int status)
{
    ck_assert_msg(WIFEXITED(status), "ended by signal %d", WTERMSIG(status));
    return (kelp_status)-WEXITSTATUS(status);
}

static void expect_whole(const char *path, uint64_t step)
{
    kelp_status status = ended_with(run(READ, path, step));
    ck_assert_msg(status == KELP_OK, "%s: %s", path, kelp_status_name(status));
}

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "%s", getenv(FOLDER_ENV));
    ck_assert_int_eq(chdir(folder), 0);
    MUST(kelp_faultdisk_open("control", &disk, &error));
    ck_assert_int_eq(run(WRITE, "root/" OLDER, 10), 0);
    MUST(kelp_power_begin("shadow", "root", &error));
}

static void teardown(void)
{
    kelp_faultdisk_close(disk);
    MUST(kelp_files_remove("root/checkpoints", &error));
}

/* ---- tests ------------------------------------------------------------------------------------
 */

static bool is_there(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0;
}

/* Nothing is left of it. */
static void expect_nothing(uint64_t n)
{
    ck_assert_msg(!is_there("root/" NEWER), "call %llu", (unsigned long long)n);
    ck_assert_msg(!is_there("root/" NEWER ".writing"), "call %llu", (unsigned long long)n);
}

/* Success is success: calls whose failure does not matter (room that is taken ahead, RocksDB's log
 * for people) let it go on. True: it failed. */
static bool failed_with(int status, kelp_status wanted, uint64_t n)
{
    kelp_status found = ended_with(status);
    if (found == KELP_OK) {
        expect_whole("root/" NEWER, 20);
        MUST(kelp_files_remove("root/" NEWER, &error));
        return false;
    }
    ck_assert_msg(found == wanted, "call %llu: %s", (unsigned long long)n, kelp_status_name(found));
    return true;
}

KELP_CASE("faults", .timeout_s = 240, .setup = setup, .teardown = teardown)

/* The disk is full from the n-th call on; and when there is room again, it works. */
KELP_TEST(full_disk)
{
    uint64_t n = 0;
    uint64_t failed = 0;
    do {
        int status = run_with(KELP_FAULTDISK_FULL, n, 0, WRITE, "root/" NEWER, 20);
        failed += failed_with(status, KELP_ERR_NO_SPACE, n);
        expect_nothing(n);
        n += STRIDE;
    } while (faults_hit > 0);
    ck_assert_uint_gt(n, 50);
    ck_assert_uint_ge(failed * STRIDE * 10, n * 6);
    expect_whole("root/" OLDER, 10);
    ck_assert_int_eq(run(WRITE, "root/" NEWER, 20), 0);
    expect_whole("root/" NEWER, 20);
}

/* One call fails. */
KELP_TEST(one_error)
{
    uint64_t n = 0;
    uint64_t failed = 0;
    do {
        int status = run_with(KELP_FAULTDISK_ERROR, n, 1, WRITE, "root/" NEWER, 20);
        failed += failed_with(status, KELP_ERR_IO, n);
        expect_nothing(n);
        n += STRIDE;
    } while (faults_hit > 0);
    ck_assert_uint_ge(failed * STRIDE * 2, n);
    expect_whole("root/" OLDER, 10);
}

/* The disk is broken from the n-th call on: nothing can be removed then, but what has the name of a
 * snapshot is one. */
KELP_TEST(broken_disk)
{
    uint64_t n = 0;
    do {
        kelp_status status =
            ended_with(run_with(KELP_FAULTDISK_ERROR, n, 0, WRITE, "root/" NEWER, 20));
        ck_assert(status == KELP_OK || status == KELP_ERR_IO);
        if (is_there("root/" NEWER)) {
            expect_whole("root/" NEWER, 20);
        }
        MUST(kelp_files_remove("root/" NEWER, &error));
        n += STRIDE;
    } while (faults_hit > 0);
    ck_assert_uint_gt(n, 50);
    expect_whole("root/" OLDER, 10);
}

/* The power goes at the n-th call. What has the name of a snapshot is one, whatever of the unsynced
 * bytes and names the disk has kept; the next attempt works. */
KELP_LOOP_TEST(power, 0, 3)
{
    const struct kelp_power_loss loss = {.seed = (uint64_t)_i};
    uint64_t n = 0;
    do {
        int status = run_with(KELP_FAULTDISK_POWER, n, 0, WRITE, "root/" NEWER, 20);
        ck_assert_msg(faults_hit > 0 ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                     : status == 0,
                      "call %llu: status %x", (unsigned long long)n, status);
        MUST(kelp_power_lose("shadow", "root", &loss, &error));
        ck_assert(faults_hit > 0 || is_there("root/" NEWER));
        if (is_there("root/" NEWER)) {
            expect_whole("root/" NEWER, 20);
        }
        expect_whole("root/" OLDER, 10);
        if (n % 10 == 0) {
            ck_assert_int_eq(run(WRITE, "root/" NEWER, 20), 0);
            expect_whole("root/" NEWER, 20);
        }
        MUST(kelp_files_remove("root/" NEWER, &error));
        MUST(kelp_power_begin("shadow", "root", &error));
        n += STRIDE;
    } while (faults_hit > 0);
    ck_assert_uint_gt(n, 50);
}

/* What was said to be durable is. */
KELP_LOOP_TEST(durable, 0, 4)
{
    const struct kelp_power_loss loss = {.seed = (uint64_t)_i};
    ck_assert_int_eq(run(WRITE, "root/" NEWER, 20), 0);
    MUST(kelp_power_lose("shadow", "root", &loss, &error));
    expect_whole("root/" NEWER, 20);
    expect_whole("root/" OLDER, 10);
}

/* A snapshot that replaces one of its name: the one or the other is there at every moment. */
KELP_LOOP_TEST(power_while_replacing, 0, 2)
{
    const struct kelp_power_loss loss = {.seed = (uint64_t)_i};
    uint64_t n = 0;
    uint64_t replaced = 0;
    for (; replaced < 3; n += STRIDE) {
        (void)run_with(KELP_FAULTDISK_POWER, n, 0, WRITE, "root/" OLDER, 20);
        MUST(kelp_power_lose("shadow", "root", &loss, &error));
        if (run(READ, "root/" OLDER, 20) == 0) {
            replaced++;
            ck_assert_int_eq(run(WRITE, "root/" OLDER, 10), 0);
        }
        expect_whole("root/" OLDER, 10);
    }
    ck_assert_uint_gt(n, 50);
}

/* A disk that cannot be read is not a damaged checkpoint, and not an absent one. */
KELP_TEST(unreadable)
{
    uint64_t n = 0;
    kelp_status status = KELP_ERR_IO;
    for (; status != KELP_OK; n++) {
        status = ended_with(run_with(KELP_FAULTDISK_UNREADABLE, n, 0, READ, "root/" OLDER, 10));
        ck_assert_msg(status == KELP_OK || status == KELP_ERR_IO, "read %llu: %s",
                      (unsigned long long)n, kelp_status_name(status));
    }
    ck_assert_uint_gt(n, 5);
}

/* Again, under the library. In memory where there is room: a thousand snapshots are written. */
static int begin_again(char **argv)
{
    char path[64] = "/dev/shm/kelp-faults-XXXXXX";
    char library[1024];
    char variable[128];
    struct kelp_power_environment environment;
    const struct kelp_faultdisk_paths paths = {
        .library = library, .control = "control", .root = "root"};
    const char *bin = getenv("KELP_BIN");
    if (mkdtemp(path) == NULL) {
        (void)snprintf(path, sizeof(path), "/tmp/kelp-faults-XXXXXX");
    }
    if (bin == NULL || (access(path, F_OK) != 0 && mkdtemp(path) == NULL) || chdir(path) != 0 ||
        mkdir("root", 0755) != 0 || mkdir("shadow", 0755) != 0) {
        (void)fprintf(stderr, "no KELP_BIN, or no folder under /tmp: run the tests by ctest\n");
        return 1;
    }
    (void)snprintf(library, sizeof(library), "%s/kelp-faultdisk.so", bin);
    (void)snprintf(variable, sizeof(variable), FOLDER_ENV "=%s", path);
    if (kelp_faultdisk_open("control", &disk, &error) != KELP_OK ||
        kelp_power_environment(&paths, "shadow", &environment, &error) != KELP_OK) {
        (void)fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    (void)putenv(environment.preload);
    (void)putenv(environment.control);
    (void)putenv(environment.root);
    (void)putenv(environment.shadow);
    (void)putenv(variable);
    (void)execv("/proc/self/exe", argv);
    return 1;
}

int main(int argc, char **argv)
{
    (void)argc;
    if (getenv(FOLDER_ENV) == NULL) {
        return begin_again(argv);
    }
    int status = kelp_suite_run();
    (void)chdir("/");
    (void)kelp_files_remove(getenv(FOLDER_ENV), NULL); /* a folder for temporary files */
    return status;
}
