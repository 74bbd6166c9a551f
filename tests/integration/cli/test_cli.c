/*
 * The kelp command where no cluster comes up: help, mistakes in options, jobs and data, run folders
 * that are taken, etcd that is missing. Each mistake is one line on standard error, and leaves
 * nothing behind.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define TIMEOUT_MS KELP_TEST_HANG_MS

static struct kelp_test_folder folder;
static struct kelp_test_command command;

static void setup(void)
{
    kelp_test_folder_init(&folder);
    memset(&command, 0, sizeof(command));
}

static void teardown(void)
{
    kelp_test_command_fini(&command);
    kelp_test_folder_fini(&folder);
}

static void run(const char *const *args)
{
    kelp_test_command_fini(&command);
    kelp_test_command_run(&command, folder.path, args, TIMEOUT_MS);
}

/* Files that stand in the folder, hidden ones (this test's own) left out. */
static unsigned entries(void)
{
    DIR *open_folder = opendir(folder.path);
    unsigned count = 0;

    ck_assert_ptr_nonnull(open_folder);
    for (struct dirent *entry = readdir(open_folder); entry; entry = readdir(open_folder)) {
        count += entry->d_name[0] != '.';
    }
    (void)closedir(open_folder);
    return count;
}

/* One line on standard error that holds `expected`, nothing on standard output, this exit status.
 */
static void check_complaint(int exit_code, const char *expected)
{
    const char *line_end = strchr(command.err, '\n');

    ck_assert_msg(command.exit_code == exit_code, "exit %d, not %d: %s", command.exit_code,
                  exit_code, command.err);
    ck_assert_str_eq(command.out, "");
    ck_assert_msg(line_end != NULL && line_end[1] == '\0', "not one line: '%s'", command.err);
    ck_assert_msg(strstr(command.err, expected) != NULL, "'%s' is not in: %s", expected,
                  command.err);
}

/* What every job must say. */
#define KINDS "model: {kind: dlinear}\ndata: {kind: synthetic}\n"

KELP_CASE("cli", .timeout_s = KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

/* --help goes to standard output, fits 80 columns, names two examples, and exits with 0. */
KELP_TEST(test_help)
{
    static const char *const verbs[] = {"train", "status",  "checkpoint", "digest", "export",
                                        "data",  "predict", "evaluate",   "model",  "init"};

    run((const char *[]){"--help", NULL});
    ck_assert_int_eq(command.exit_code, 0);
    ck_assert_str_eq(command.err, "");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(verbs); i++) {
        char name[32];
        run((const char *[]){"--help", NULL});
        ck_assert_ptr_nonnull(strstr(command.out, verbs[i]));
        run((const char *[]){verbs[i], "--help", NULL});
        ck_assert_int_eq(command.exit_code, 0);
        ck_assert_str_eq(command.err, "");
        (void)snprintf(name, sizeof(name), "Usage: kelp %s", verbs[i]);
        ck_assert_ptr_eq(strstr(command.out, name), command.out);
        (void)snprintf(name, sizeof(name), "\n  kelp %s", verbs[i]);
        const char *example = strstr(command.out, name);
        ck_assert_ptr_nonnull(example);
        ck_assert_ptr_nonnull(strstr(example + 1, name));
        for (const char *line = command.out; *line; line += strcspn(line, "\n") + 1) {
            ck_assert_msg(strcspn(line, "\n") <= 80, "too wide: %.*s", (int)strcspn(line, "\n"),
                          line);
        }
    }
    run((const char *[]){"--version", NULL});
    ck_assert_int_eq(command.exit_code, 0);
    ck_assert_ptr_eq(strstr(command.out, "kelp "), command.out);
}

/* A usage mistake names the nearest thing that would have been right. */
KELP_TEST(test_usage_mistakes)
{
    static const struct {
        const char *args[8];
        const char *expected;
    } cases[] = {
        {{NULL}, "kelp --help"},
        {{"trian", NULL}, "'train'"},
        {{"frobnicate", NULL}, "kelp --help"},
        {{"--workers", "2", NULL}, "before the verb"},
        {{"train", NULL}, "job file"},
        {{"train", "a.yaml", "b.yaml", NULL}, "b.yaml"},
        {{"train", "job.yaml", "--worker", "2", NULL}, "--workers"},
        {{"train", "job.yaml", "--workers", NULL}, "--workers"},
        {{"train", "job.yaml", "--workers", "two", NULL}, "two"},
        {{"train", "job.yaml", "--workers", "3:2", NULL}, "3:2"},
        {{"train", "job.yaml", "--workers", "0", NULL}, "1 to 1024"},
        {{"train", "job.yaml", "--shards=1x", NULL}, "1x"},
        {{"train", "job.yaml", "--set", "train.lr", NULL}, "KEY=VALUE"},
        {{"train", "job.yaml", "--set", "train.lrr=1", NULL}, "train.lr"},
        {{"train", "job.yaml", "--set", "train.lr=fast", NULL}, "train.lr"},
        {{"train", "job.yaml", "--fault", "worker-1", NULL}, "worker-N:FAULT@step=N"},
        {{"train", "job.yaml", "--fault", "worker-1:trip@step=5", NULL},
         "kill, kill-pushing, stall"},
        {{"train", "job.yaml", "--fault", "shard-0:kill@step=5", NULL}, "worker-N"},
        {{"train", "job.yaml", "--etcd", "not a url", NULL}, "not a url"},
        {{"train", "job.yaml", "--at", "100:add-worker", NULL}, "step=100"},
        {{"train", "job.yaml", "--log-level", "loud", NULL}, "debug"},
        {{"train", "missing.yaml", NULL}, "missing.yaml"},
        {{"train", ".", NULL}, "."},
        {{"train", "--resume", NULL}, "nothing to resume"},
        {{"train", "--resume", "--run", "nowhere", NULL}, "nowhere"},
        {{"status", NULL}, "runs/latest"},
        {{"status", "nowhere", NULL}, "nowhere"},
        {{"status", "-o", "xml", NULL}, "json"},
        {{"status", "--timeout", "5", NULL}, "5"},
        {{"checkpoint", NULL}, "runs/latest"},
        {{"checkpoint", "nowhere", NULL}, "nowhere"},
        {{"checkpoint", "--etcd", "http://127.0.0.1:1", NULL}, "name of a job"},
        {{"digest", NULL}, "runs/latest"},
        {{"digest", "missing.safetensors", NULL}, "missing.safetensors"},
        {{"digest", "job.yaml", NULL}, "job.yaml"},
        {{"export", "--out", "x", NULL}, "runs/latest"},
        {{"export", NULL}, "--out"},
        {{"data", "--out", "x.csv", NULL}, "generate"},
        {{"data", "delete", "--out", "x.csv", NULL}, "generate"},
        {{"data", "generate", NULL}, "--out"},
        {{"data", "generate", "--out", "x.csv", "--rows", "0", NULL}, "--rows"},
    };

    (void)kelp_test_write(folder.path, "job.yaml", KINDS);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        run(cases[i].args);
        check_complaint(2, cases[i].expected);
        ck_assert_uint_eq(entries(), 1);
    }
}

/* A mistake in the job is told with file, line and key, before anything is started or made. */
KELP_TEST(test_job_mistakes)
{
    static const struct {
        const char *text;
        const char *where;
        const char *what;
    } cases[] = {
        {"name: j\ntrain:\n  epohcs: 3\n", "job.yaml:3", "epochs"},
        {"name: j\ntrain: {lr: -1}\n", "job.yaml:2", "train.lr"},
        {"name: j\ntrain: {batch_size: 1.5}\n", "job.yaml:2", "train.batch_size"},
        {"name: j\nmodel: {kind: resnet}\n", "job.yaml:2", "dlinear"},
        {KINDS "cluster: {lanes: 6}\n", "job.yaml:3", "cluster.lanes"},
        {"name: j\nfailure: {detect: 5}\n", "job.yaml:2", "failure.detect"},
        {"name: [j\n", "job.yaml:", ""},
        {"data: {kind: synthetic}\nmodel: {kind: dlinear, kernel_size: 4}\n", "job.yaml:2",
         "kernel_size"},
        {"model: {kind: dlinear}\ndata: {kind: synthetic, split: [100, 50, 50]}\n", "", "seq_len"},
        {"model: {kind: dlinear}\ndata: {kind: csv}\n", "", "data.path"},
        {"name: a/b\n", "job.yaml:1", "name"},
        {"name: j\n", "job.yaml: model.kind", "\"model: {kind: mlp}\" (one of mlp, dlinear, "},
        {"model: {kind: mlp}\n", "job.yaml: data.kind", "\"data: {kind: csv, path: FILE.csv}\""},
    };

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        (void)kelp_test_write(folder.path, "job.yaml", cases[i].text);
        run((const char *[]){"train", "job.yaml", NULL});
        check_complaint(2, cases[i].what);
        ck_assert_msg(strstr(command.err, cases[i].where) != NULL, "'%s' is not in: %s",
                      cases[i].where, command.err);
        ck_assert_uint_eq(entries(), 1);
    }
}

static const char csv_job[] = "name: csv\n"
                              "data: {kind: csv, path: data.csv, target: OT, features: S,\n"
                              "       seq_len: 4, pred_len: 2, split: [40, 20, 20]}\n"
                              "train: {epochs: 1, batch_size: 4}\n"
                              "model: {kind: dlinear, kernel_size: 3}\n";

/* 100 good rows with `odd` in place of row 50. */
static void write_csv(const char *header, const char *odd)
{
    char text[16384];
    size_t used = (size_t)snprintf(text, sizeof(text), "%s\n", header);

    for (int row = 0; row < 100; row++) {
        if (row == 50) {
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s\n", odd);
        } else {
            used += (size_t)snprintf(text + used, sizeof(text) - used,
                                     "2016-07-%02d %02d:00:00,%d.5,%d.25\n", 1 + row / 24, row % 24,
                                     row, row % 7);
        }
    }
    (void)kelp_test_write(folder.path, "data.csv", text);
}

/* A malformed data file is told with its line and column, and leaves nothing behind. */
KELP_TEST(test_data_mistakes)
{
    static const struct {
        const char *header;
        const char *row;
        const char *expected;
    } cases[] = {
        {"date,HUFL,OT", "2016-07-03 02:00:00,1.5", "data.csv:52"},
        {"date,HUFL,OT", "2016-07-03 02:00:00,1.5,cold", "data.csv:52"},
        {"date,HUFL,OT", "2016-07-03 02:00:00,1.5,nan", "data.csv:52"},
        {"date,HUFL,OT", "2016-07-03 02:00:00,1.5,2.5,3.5", "data.csv:52"},
        {"date,HUFL,oil", "2016-07-03 02:00:00,1.5,2.5", "OT"},
    };

    (void)kelp_test_write(folder.path, "job.yaml", csv_job);
    run((const char *[]){"train", "job.yaml", NULL});
    check_complaint(2, "data.csv");
    ck_assert_uint_eq(entries(), 1);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        write_csv(cases[i].header, cases[i].row);
        run((const char *[]){"train", "job.yaml", NULL});
        check_complaint(2, cases[i].expected);
        ck_assert_uint_eq(entries(), 2);
    }
}

/* A folder that holds anything is not taken for a new run, and stays as it is. */
KELP_TEST(test_existing_run_folder)
{
    char path[256];

    (void)kelp_test_write(folder.path, "job.yaml", KINDS);
    (void)snprintf(path, sizeof(path), "%s/there", folder.path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    (void)kelp_test_write(path, "precious", "text");
    run((const char *[]){"train", "job.yaml", "--run", "there", NULL});
    check_complaint(2, "--resume");
    run((const char *[]){"train", "job.yaml", "--run", "job.yaml", NULL});
    check_complaint(2, "job.yaml");
    run((const char *[]){"train", "job.yaml", "--run", "there", "--resume", NULL});
    check_complaint(2, "nothing to resume");
    ck_assert_uint_eq(entries(), 2);
}

/* Without etcd, or with one that does not answer, nothing is started: exit status 3, in time. */
KELP_TEST(test_no_etcd)
{
    (void)kelp_test_write(folder.path, "job.yaml", KINDS);
    run((const char *[]){"train", "job.yaml", "--etcd-program", "/nonexistent/etcd", NULL});
    check_complaint(3, "/nonexistent/etcd");
    ck_assert_uint_eq(entries(), 1);

    kelp_test_command_fini(&command);
    kelp_test_command_start(
        &command, folder.path,
        (const char *[]){"train", "job.yaml", "--etcd", "http://127.0.0.1:1", NULL});
    ck_assert_uint_lt(kelp_test_command_wait(&command, TIMEOUT_MS), 10000);
    check_complaint(3, "http://127.0.0.1:1");
    ck_assert_uint_eq(entries(), 1);
    run((const char *[]){"train", "job.yaml", "--etcd", "nonsense", NULL});
    ck_assert_int_ne(command.exit_code, 0);
    ck_assert_uint_eq(entries(), 1);
}

/* What took effect is printed with where it came from: option over environment over file. */
KELP_TEST(test_print_config)
{
    (void)kelp_test_write(folder.path, "job.yaml",
                          KINDS "train: {lr: 0.25, epochs: 4, batch_size: 64}\n");
    ck_assert_int_eq(setenv("KELP_TRAIN_LR", "0.125", 1), 0);
    ck_assert_int_eq(setenv("KELP_TRAIN_EPOCHS", "7", 1), 0);
    run((const char *[]){"train", "job.yaml", "--print-config", "--set", "train.lr=0.5",
                         "--workers", "2:3", NULL});
    ck_assert_int_eq(unsetenv("KELP_TRAIN_LR"), 0);
    ck_assert_int_eq(unsetenv("KELP_TRAIN_EPOCHS"), 0);
    ck_assert_int_eq(command.exit_code, 0);
    ck_assert_str_eq(command.err, "");
    ck_assert_ptr_nonnull(strstr(command.out, "lr: 0.5 "));
    ck_assert_ptr_nonnull(strstr(command.out, "epochs: 7 "));
    ck_assert_ptr_nonnull(strstr(command.out, "batch_size: 64 "));
    ck_assert_ptr_nonnull(strstr(command.out, "job.yaml:3"));
    ck_assert_ptr_nonnull(strstr(command.out, "# environment"));
    ck_assert_ptr_nonnull(strstr(command.out, "workers: 2:3"));
    ck_assert_uint_eq(entries(), 1);
}

/* The same seed gives the same file, another one another; an unwritable place is one line. */
KELP_TEST(test_data_generate)
{
    char command_line[512];

    run((const char *[]){"data", "generate", "--out", "a.csv", "--rows", "500", "--seed", "3",
                         NULL});
    ck_assert_int_eq(command.exit_code, 0);
    run((const char *[]){"data", "generate", "--out", "b.csv", "--rows", "500", "--seed", "3",
                         NULL});
    run((const char *[]){"data", "generate", "--out", "c.csv", "--rows", "500", "--seed", "4",
                         NULL});
    (void)snprintf(command_line, sizeof(command_line),
                   "cd %s && cmp -s a.csv b.csv && ! cmp -s "
                   "a.csv c.csv && test $(wc -l < a.csv) = 501",
                   folder.path);
    ck_assert_int_eq(system(command_line), 0);
    run((const char *[]){"data", "generate", "--out", "no/such/folder.csv", NULL});
    check_complaint(2, "no file can be made in 'no/such'");
}
