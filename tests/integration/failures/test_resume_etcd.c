/*
 * An etcd that knows other checkpoints of a job than the folder of the run that is resumed: those
 * of another run of that name, or of an earlier state of this one. Nothing waits for what will not
 * come.
 */
#include <stdio.h>

#include "common/base/files.h"
#include "tests/lib/commands/run_watch.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

static const char job_text[] = "name: again\nseed: 3\n"
                               "model: {kind: mlp, hidden: [16]}\n"
                               "data: {kind: synthetic}\n"
                               "train: {epochs: 100, batch_size: 128}\n"
                               "cluster: {workers: 1, shards: 1, lanes: 2}\n"
                               "checkpoint: {digest_steps: 20, steps: 100, interval: 0s}\n";

static struct kelp_run run;

static void setup(void)
{
    kelp_run_prepare_job(&run, job_text);
}

static void teardown(void)
{
    kelp_run_fini(&run);
}

static void says(int exit_code, const char *text, const char *const *args)
{
    kelp_test_command_says(run.folder, args, exit_code, text);
}

KELP_CASE("resume_etcd", .setup = setup, .teardown = teardown, .timeout_s = 2 * KELP_TEST_HANG_S)

/* A run is not resumed with an etcd that knows another run of the job. It is once that is
 * forgotten. */
KELP_TEST(etcd_of_another_run)
{
    struct etcd_fixture etcd;

    etcd_fixture_require();
    etcd_fixture_start(&etcd);
    const char *const with[] = {"--etcd", etcd.url, "--set", "train.epochs=5", NULL};
    const char *const resume[] = {"train",  "--resume", "--run",          "own", "--etcd",
                                  etcd.url, "--set",    "train.epochs=5", NULL};
    const char *const submit[] = {"submit", "--resume", "--run",          "own", "--etcd",
                                  etcd.url, "--set",    "train.epochs=5", NULL};
    kelp_run_start(&run, "job.yaml", with);
    kelp_run_finish(&run, 0);
    says(0, "done after",
         (const char *[]){"train", "job.yaml", "--run", "own", "--set", "train.epochs=4", NULL});
    says(2, "the newest checkpoint of job 'again' in etcd is step-335.g1", resume);
    says(2, "kelp free", submit);
    says(0, "state      done", (const char *[]){"free", "again", "--etcd", etcd.url, NULL});
    says(0, "done after 335 steps, 5 epochs", resume);
    etcd_fixture_stop(&etcd);
}

/* A run that was killed has its own etcd's data still. When its newest checkpoints have gone, it
 * goes back to the one before them. */
KELP_TEST(own_etcd_of_before)
{
    struct kelp_run quiet;
    char digest[33] = "";

    kelp_run_prepare_job(&quiet, job_text);
    kelp_run_start(&quiet, "job.yaml", NULL);
    kelp_run_finish(&quiet, 0);
    kelp_run_expect_digest(&quiet, "quiet", digest);
    kelp_run_fini(&quiet);
    kelp_run_start(&run, "job.yaml", NULL);
    const struct kelp_run_checkpoint first =
        kelp_run_await_checkpoint(&run, (struct kelp_run_wanted){.step = 1});
    (void)kelp_run_await_checkpoint(&run, (struct kelp_run_wanted){.step = first.step + 1});
    kelp_test_command_kill_all(&run.command);
    const struct kelp_run_checkpoint newest =
        kelp_run_newest(&run, (struct kelp_run_wanted){.step = 0});
    ck_assert_int_eq(kelp_files_remove(newest.path, NULL), KELP_OK);
    kelp_run_resume(&run, NULL, 0);
    kelp_run_expect_digest(&run, "set back by hand", digest);
}
