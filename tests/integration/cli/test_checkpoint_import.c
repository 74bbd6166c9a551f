/*
 * `kelp checkpoint import` and `rm`: manifests in the run's private etcd go before their data and
 * come after it, and the newest good checkpoint is not removed by mistake.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/run/run_dir.h"
#include "common/base/files.h"
#include "common/etcd/etcd.h"
#include "common/program/etcd_server.h"
#include "tests/lib/cluster/checkpoint_make.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define ETCD_MS 10000

static const char job_text[] =
    "name: import\n"
    "seed: 11\n"
    "model: {kind: dlinear}\n"
    "data: {kind: synthetic, seq_len: 24, pred_len: 12, rows: 700, split: [500, 100, 100]}\n"
    "train: {epochs: 2, batch_size: 40, optimizer: adam, lr: 0.005}\n"
    "cluster: {workers: 1, shards: 2, lanes: 4}\n"
    "checkpoint: {digest_steps: 5, interval: 0s, at_end: false}\n";

static struct kelp_test_folder folder;
static char run_path[160];
static char backup_path[160]; /* a checkpoint of step 10, elsewhere */

static void says(const char *const *args, int exit_code, const char *text)
{
    kelp_test_command_says(folder.path, args, exit_code, text);
}

static void ok(kelp_status status, const struct kelp_error *error)
{
    ck_assert_msg(status == KELP_OK, "%s", error->text);
}

static void remove_tree(const char *path)
{
    struct kelp_error error;

    ok(kelp_files_remove(path, &error), &error);
}

static void make_checkpoint(uint64_t step)
{
    char path[1300];

    kelp_test_checkpoint_at(run_path, step, false, path, sizeof(path));
}

static bool there(const char *name)
{
    char path[400];

    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, name);
    return access(path, F_OK) == 0;
}

/* The run's etcd, started by the test: how many keys begin so? */
static size_t etcd_keys(const char *prefix)
{
    struct kelp_etcd_server *server = NULL;
    struct kelp_etcd *etcd = NULL;
    struct kelp_etcd_range range;
    struct kelp_error error;
    char data[200];
    char log[200];

    (void)snprintf(data, sizeof(data), "%s/etcd", run_path);
    (void)snprintf(log, sizeof(log), "%s/logs/etcd.log", run_path);
    const struct kelp_etcd_server_options options = {.data_folder = data, .log_path = log};
    ok(kelp_etcd_server_start(&options, &server, &error), &error);
    ok(kelp_etcd_open(kelp_etcd_server_url(server), &etcd, &error), &error);
    ok(kelp_etcd_get_prefix(etcd, prefix, ETCD_MS, &range, &error), &error);
    size_t count = range.count;
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(etcd);
    kelp_etcd_server_stop(server, 2000);
    return count;
}

static void setup(void)
{
    static const char *const args[] = {"train", "job.yaml", "--run", "run", NULL};
    char path[200];

    kelp_test_folder_init(&folder);
    (void)snprintf(run_path, sizeof(run_path), "%s/run", folder.path);
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
    says(args, 0, "done");
    (void)snprintf(path, sizeof(path), "%s/backup", folder.path);
    ck_assert_int_eq(mkdir(path, 0777), 0);
    (void)snprintf(backup_path, sizeof(backup_path), "%s/backup/step-10.g1", folder.path);
}

static void teardown(void)
{
    kelp_test_folder_fini(&folder);
}

/* Checkpoints of every test are its own. Made in the test's process: RocksDB's threads would not
 * live on in a fork. */
static void make_backup(void)
{
    char path[1300];

    (void)snprintf(path, sizeof(path), "%s/checkpoints", run_path);
    remove_tree(path);
    remove_tree(backup_path);
    kelp_test_checkpoint_at(run_path, 10, false, path, sizeof(path));
    ck_assert_int_eq(rename(path, backup_path), 0);
}

KELP_CASE("checkpoint_import", .timeout_s = 2 * KELP_TEST_HANG_S, .begin = setup, .end = teardown,
          .setup = make_backup)

/* The newest one whose data is good stays without --force, whatever damaged ones are above it. */
KELP_TEST(rm_keeps_the_newest_good_one)
{
    static const char *const rm_old[] = {"checkpoint", "rm", "step-5.g1", "--run", "run", NULL};
    static const char *const rm_good[] = {"checkpoint", "rm", "step-10.g1", "--run", "run", NULL};
    static const char *const rm_damaged[] = {"checkpoint", "rm", "newest", "--run", "run", NULL};
    static const char *const rm_force[] = {"checkpoint", "rm",      "step-10.g1", "--run",
                                           "run",        "--force", NULL};
    char path[400];

    make_checkpoint(5);
    make_checkpoint(10);
    make_checkpoint(15);
    (void)snprintf(path, sizeof(path), "%s/checkpoints/step-15.g1/plan.json", run_path);
    ck_assert_int_eq(unlink(path), 0);
    says(rm_old, 0, "step-5.g1: removed");
    ck_assert(!there("run/checkpoints/step-5.g1"));
    says(rm_good, 2, "step-10.g1 is the newest good checkpoint");
    ck_assert(there("run/checkpoints/step-10.g1/manifest.json"));
    says(rm_damaged, 0, "step-15.g1: removed");
    says(rm_force, 0, "step-10.g1: removed");
    ck_assert(!there("run/checkpoints/step-10.g1"));
}

/* While a run goes on nothing is removed, nor imported. */
KELP_TEST(a_run_that_goes_on_is_left_alone)
{
    static const char *const rm[] = {"checkpoint", "rm", "step-5.g1", "--run", "run", NULL};
    static const char *const import[] = {"checkpoint", "import", "backup/step-10.g1",
                                         "--run",      "run",    NULL};
    struct kelp_run_dir run;
    struct kelp_error error;

    make_checkpoint(5);
    make_checkpoint(10);
    ok(kelp_run_dir_resume(run_path, &run, &error), &error);
    says(rm, 2, "is still running");
    says(import, 2, "is in use by a running command");
    kelp_run_dir_close(&run);
    ck_assert(there("run/checkpoints/step-5.g1/manifest.json"));
}

/* What is imported is in the run's etcd too, so that the leader goes by it; what is removed is gone
 * from there, behind a fence. */
KELP_TEST(import_and_rm_go_through_etcd)
{
    static const char *const import[] = {"checkpoint", "import", "backup/step-10.g1/",
                                         "--run",      "run",    NULL};
    static const char *const verify[] = {"checkpoint", "verify", "--run", "run", NULL};
    static const char *const rm[] = {"checkpoint", "rm",      "step-10.g1", "--run",
                                     "run",        "--force", NULL};

    ck_assert_uint_eq(etcd_keys("/kelp/import/checkpoint/"), 0);
    says(import, 0, "continue with kelp train --resume --run run");
    says(verify, 0, "step-10.g1: good");
    ck_assert_uint_eq(etcd_keys("/kelp/import/checkpoint/10"), 1);
    says(import, 2, "exists: the run has that checkpoint already");
    says(rm, 0, "step-10.g1: removed");
    ck_assert_uint_eq(etcd_keys("/kelp/import/checkpoint/"), 0);
    ck_assert_uint_eq(etcd_keys("/kelp/import/checkpoint_fence"), 1);
    ck_assert(!there("run/checkpoints/step-10.g1"));
    ck_assert(!there("run/checkpoints/.removed-step-10.g1"));
}

/* A folder that is no run yet becomes one, which goes on to the digest of the first run. */
KELP_TEST(import_makes_a_run)
{
    static const char *const import[] = {"checkpoint", "import", "backup/step-10.g1",
                                         "--run",      "fresh",  NULL};
    static const char *const ls[] = {"checkpoint", "ls", "fresh", NULL};
    static const char *const resume[] = {"train", "--resume", "--run", "fresh", NULL};
    static const char *const diff[] = {"diff", "run", "fresh", NULL};
    char path[400];
    char *text = NULL;
    size_t count = 0;
    struct kelp_error error;

    says(import, 0, "step-10.g1: imported into fresh");
    says(ls, 0, "step-10.g1");
    says(resume, 0, "done");
    says(diff, 0, "same ");
    /* Nothing before the checkpoint was computed again. */
    (void)snprintf(path, sizeof(path), "%s/fresh/digests.jsonl", folder.path);
    ok(kelp_files_read(path, 1 << 20, &text, &count, &error), &error);
    ck_assert_ptr_null(strstr(text, "\"step\":5,"));
    ck_assert_ptr_nonnull(strstr(text, "\"step\":15,"));
    free(text);
}

/* What cannot be imported is refused in one line, and leaves nothing behind. */
KELP_TEST(import_refuses)
{
    static const char *const elsewhere[] = {"checkpoint", "verify", "backup/step-10.g1", NULL};
    static const char *const weights[] = {"checkpoint", "import", "run/model.safetensors",
                                          "--run",      "run",    NULL};
    static const char *const other_folder[] = {"checkpoint", "import", "backup",
                                               "--run",      "run",    NULL};
    static const char *const damaged[] = {"checkpoint", "import",  "damaged/step-10.g1",
                                          "--run",      "nowhere", NULL};
    static const char *const train[] = {"train", "job.yaml", "--run", "other",
                                        "--set", "seed=12",  NULL};
    static const char *const other_job[] = {"checkpoint", "import", "backup/step-10.g1",
                                            "--run",      "other",  NULL};
    static const char *const forced[] = {
        "checkpoint", "import", "backup/step-10.g1", "--run", "other", "--force", NULL};
    char path[400];
    char made[1300];
    struct kelp_error error;

    says(elsewhere, 0, "step-10.g1: good");
    says(weights, 2, "with weights alone, kelp train JOB --set model.init=FILE");
    says(other_folder, 2, "is not a checkpoint");

    kelp_test_checkpoint_at(run_path, 10, false, made, sizeof(made));
    (void)snprintf(path, sizeof(path), "%s/damaged", folder.path);
    ok(kelp_files_make_folder(path, &error), &error);
    (void)snprintf(path, sizeof(path), "%s/damaged/step-10.g1", folder.path);
    ck_assert_int_eq(rename(made, path), 0);
    (void)snprintf(path, sizeof(path), "%s/damaged/step-10.g1/shard-1.aaaaaaaaaaaaaaaa",
                   folder.path);
    remove_tree(path);
    says(damaged, 1, "is damaged: it is not imported");
    ck_assert(!there("nowhere"));

    says(train, 0, "done");
    says(other_job, 2, "seed 11 -> 12");
    ck_assert(!there("other/checkpoints/step-10.g1"));
    says(forced, 0, "step-10.g1: imported into other");
}
