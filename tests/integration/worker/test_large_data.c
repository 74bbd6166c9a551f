/*
 * Training on a file that no worker has room for: workers read rows as they need them, ahead of
 * time in a thread, and the digest is the same for any number of workers, also when one dies.
 *
 * KELP_LARGE_MB=20000 tries a file of that size; most of it is a hole, which costs no disk.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define WIDTH      8191u /* bytes of an input; a target of one byte follows */
#define DEFAULT_MB 330u
/* What a worker may have beside the model and the libraries: far less than the file. */
#define WORKER_KIB_MAX (100 * 1024)

static struct kelp_run run;
static char job_path[512];
static char rows_path[512];
static uint64_t row_count;

/* Row r begins with a few bytes that follow from r, and ends with a target that follows from them.
 */
static void write_rows(void)
{
    const char *megabytes = getenv("KELP_LARGE_MB");
    row_count = (megabytes ? strtoull(megabytes, NULL, 10) : DEFAULT_MB) * 1000000 / (WIDTH + 1);
    uint64_t every = row_count / 4000 + 1; /* the others are a hole */
    FILE *file = fopen(rows_path, "wb");
    ck_assert_ptr_nonnull(file);
    for (uint64_t row = 0; row < row_count; row += every) {
        const uint8_t bytes[] = {(uint8_t)row, (uint8_t)(row * 7), (uint8_t)(row * 13)};
        ck_assert_int_eq(fseek(file, (long)(row * (WIDTH + 1)), SEEK_SET), 0);
        ck_assert_uint_eq(fwrite(bytes, 1, sizeof(bytes), file), sizeof(bytes));
        ck_assert_int_eq(fseek(file, (long)(row * (WIDTH + 1) + WIDTH), SEEK_SET), 0);
        ck_assert_int_ne(fputc(bytes[0] / 2 + bytes[1] / 4, file), EOF);
    }
    ck_assert_int_eq(fflush(file), 0);
    ck_assert_int_eq(ftruncate(fileno(file), (off_t)(row_count * (WIDTH + 1))), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void setup(void)
{
    char text[2048];
    kelp_run_prepare(&run);
    (void)snprintf(rows_path, sizeof(rows_path), "%s/rows", run.folder);
    write_rows();
    (void)snprintf(
        text, sizeof(text),
        "name: large\nseed: 4\n"
        "model: {kind: mlp, hidden: [8]}\n"
        "data: {kind: binary, path: \"%s\", cache: cache, dtype: uint8, input_shape: [%u],"
        " fractions: [0.9, 0.1], random_split: true}\n"
        "train: {max_steps: 40, batch_size: 64, lr: 0.000001, evaluate: false}\n"
        "cluster: {workers: 2, lanes: 8}\n",
        rows_path, WIDTH);
    (void)snprintf(job_path, sizeof(job_path), "%s", kelp_test_write(run.folder, "job.yaml", text));
}

static void teardown(void)
{
    ck_assert_int_eq(unlink(rows_path), 0);
    kelp_run_fini(&run);
}

/* VmHWM of a process in KiB; 0 when it is gone. */
static long peak_kib(pid_t pid)
{
    char path[64], line[256];
    long kib = 0;
    (void)snprintf(path, sizeof(path), "/proc/%ld/status", (long)pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file) && sscanf(line, "VmHWM: %ld", &kib) != 1) {
    }
    if (file) {
        ck_assert_int_eq(fclose(file), 0);
    }
    return kib;
}

/* Run it in a folder of that name and print its digest into digest; the most memory that the first
 * worker was seen with is returned. */
static long train(const char *name, const char *workers, const char *fault, char digest[64])
{
    struct kelp_test_command command;
    const char *const args[] = {
        "train", job_path, "--run", name, "--workers", workers, fault ? "--fault" : NULL,
        fault,   NULL};
    long most_kib = 0;
    kelp_test_command_start(&command, run.folder, args);
    pid_t worker = 0;
    /* The worker is there until the command takes it away at its end. */
    KELP_TEST_AWAIT_FROM(&command,
                         (worker = kelp_test_command_find(&command, "kelp-worker", "worker-0")) > 0,
                         "no worker");
    for (long kib; (kib = peak_kib(worker)) > 0;) {
        most_kib = kib > most_kib ? kib : most_kib;
        kelp_test_look_later();
    }
    (void)kelp_test_command_wait(&command, KELP_TEST_HANG_MS);
    ck_assert_msg(command.exit_code == 0, "exit %d: %s", command.exit_code, command.err);
    const char *line = strstr(command.out, "digest ");
    ck_assert_ptr_nonnull(line);
    ck_assert_int_eq(sscanf(line, "digest %63s", digest), 1);
    kelp_test_command_fini(&command);
    return most_kib;
}

KELP_CASE("train", .timeout_s = 600, .setup = setup, .teardown = teardown)

KELP_TEST(larger_than_what_a_worker_may_have)
{
    char one[64], three[64];
    long kib = train("one", "1", NULL, one);
    printf("a file of %llu MB, a worker of %ld MiB\n",
           (unsigned long long)(row_count * (WIDTH + 1) / 1000000), kib / 1024);
    ck_assert_int_gt(kib, 0);
    ck_assert_int_lt(kib, WORKER_KIB_MAX);
    ck_assert_uint_gt(row_count * (WIDTH + 1) / 1024, 3 * (uint64_t)WORKER_KIB_MAX);
    (void)train("three", "3", "worker-1:kill@step=20", three);
    ck_assert_str_eq(one, three);
}
