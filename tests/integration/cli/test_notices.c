/*
 * What is allowed and hardly meant is said once when a run starts; what cannot be meant is refused
 * before there is a folder for it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"

#define ROWS 60

static struct kelp_test_folder folder;
static struct kelp_test_command command;

static void setup(void)
{
    char text[ROWS * 16];
    size_t used = (size_t)snprintf(text, sizeof(text), "x,y\n");
    kelp_test_folder_init(&folder);
    memset(&command, 0, sizeof(command));
    for (int row = 0; row < ROWS; row++) {
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%d,%d\n", row, row * row % 7);
    }
    (void)kelp_test_write(folder.path, "table.csv", text);
    (void)kelp_test_write(folder.path, "job.yaml",
                          "name: notices\nmodel: {kind: mlp, hidden: [4]}\n"
                          "data: {kind: table, path: table.csv, derive: ['z = 2 * y + x'],\n"
                          "       columns: [x, y, z], targets: [y], fractions: [0.5, 0.5]}\n"
                          "train: {epochs: 6, batch_size: 64, lr: 0, patience: 1}\n"
                          "cluster: {workers: 3, lanes: 2}\n");
}

static void teardown(void)
{
    kelp_test_command_fini(&command);
    kelp_test_folder_fini(&folder);
}

static void train(const char *option, const char *value)
{
    kelp_test_command_fini(&command);
    kelp_test_command_run(
        &command, folder.path,
        (const char *[]){"train", "job.yaml", "--run", "run", "--no-plots", option, value, NULL},
        KELP_TEST_HANG_MS);
}

static void said_once(const char *text)
{
    const char *at = strstr(command.err, text);
    ck_assert_msg(at != NULL, "'%s' is not said:\n%s", text, command.err);
    ck_assert_msg(!strstr(at + 1, text), "'%s' is said twice:\n%s", text, command.err);
}

KELP_CASE("notices", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

KELP_TEST(said_at_the_start)
{
    ck_assert_int_eq(setenv("KELP_TRAIN_LRR", "1", 1), 0);
    ck_assert_int_eq(setenv("KELP_TRAIN_LR", "", 1), 0);
    train("--at", "step=5:add-worker"); /* of 6; without a better evaluation it ends before */
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    said_once("environment KELP_TRAIN_LRR: not a job key, so it is ignored; did you mean "
              "KELP_TRAIN_LR?");
    said_once("train.batch_size 64 is more than the 30 training samples");
    said_once("3 workers for 2 lanes (cluster.lanes): 1 of them");
    said_once("y is in data.targets and in data.columns");
    said_once("z in data.columns is computed from y, which is in data.targets");
    said_once("--at step=5 did not happen: the run ended at step ");
    ck_assert_ptr_null(strstr(command.err, "KELP_TEST_PROGRAMS"));
    ck_assert_ptr_null(strstr(command.err, "KELP_NO_PLOTS"));
}

/* A fault at a step that an early end left out is told. */
KELP_TEST(fault_that_did_not_happen)
{
    ck_assert_int_eq(setenv("KELP_CLUSTER_WORKERS", "1", 1), 0);
    train("--fault", "worker-0:kill@step=5"); /* of 6, as above */
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    said_once("--fault worker-0:kill@step=5 did not happen: the run ended at step ");
}

/* One that came about is not, however little is logged. */
KELP_TEST(fault_that_happened)
{
    ck_assert_int_eq(setenv("KELP_CLUSTER_WORKERS", "1", 1), 0);
    ck_assert_int_eq(setenv("KELP_LOG_LEVEL", "error", 1), 0);
    train("--fault", "worker-0:kill@step=1");
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    ck_assert_msg(!strstr(command.err, "did not happen"), "%s", command.err);
    ck_assert_msg(strstr(command.err, "worker-0"), "%s", command.err); /* it died */
}

KELP_TEST(refused_at_the_start)
{
    static const struct {
        const char *option, *value, *text;
    } cases[] = {
        {"--fault", "worker-9:kill@step=2",
         "--fault worker-9: the run has no such process; its last one is worker-2"},
        {"--fault", "worker-0:kill@step=7", "--fault step=7: the job has 6 steps"},
        {"--at", "step=999999:add-worker", "--at step=999999: the job has 6 steps"},
        {"--at", "step=2:kill=shard-1", "--at kill shard-1: the run has no such process"},
    };
    char path[200];
    (void)snprintf(path, sizeof(path), "%s/run", folder.path);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        train(cases[i].option, cases[i].value);
        ck_assert_msg(command.exit_code == 2, "exit %d: %s", command.exit_code, command.err);
        said_once(cases[i].text);
        ck_assert_int_ne(access(path, F_OK), 0);
    }
}
