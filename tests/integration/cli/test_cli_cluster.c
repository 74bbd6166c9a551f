/*
 * The kelp command with a cluster: what a run leaves in its folder, and what the other verbs make
 * of it.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/etcd/etcd.h"
#include "tests/lib/commands/cli_runs.h"
#include "tests/lib/suite.h"

static bool look_at_digests(const cJSON *line)
{
    ck_assert_uint_eq(strlen(kelp_test_text(line, "digest")), 32);
    ck_assert(kelp_test_number(line, "step") >= 0);
    return true;
}

KELP_CASE("cluster", .timeout_s = 2 * KELP_TEST_HANG_S, .setup = runs_setup,
          .teardown = runs_teardown)

/* Everything that a finished run's folder shall hold is there, whole and consistent. */
KELP_TEST(test_run_folder)
{
    char digest[64];
    pid_t pids[16];

    kelp_test_command_run(&runs.train, runs.folder.path,
                          (const char *[]){"train", "short.yaml", "--run", "runs/one", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_msg(runs.train.exit_code == 0, "exit %d: %s", runs.train.exit_code, runs.train.err);
    ck_assert_uint_eq(kelp_test_command_processes(&runs.train, pids, KELP_ARRAY_COUNT(pids)), 0);
    cJSON *result = kelp_test_read_json(runs.folder.path, "runs/one/result.json");
    ck_assert_str_eq(kelp_test_text(result, "status"), "done");
    ck_assert(kelp_test_number(result, "epoch") == 3);
    ck_assert(kelp_test_number(result, "step") == 3 * 61);
    ck_assert(kelp_test_number(result, "steps_per_s") > 0);
    ck_assert(kelp_test_number(result, "wall_s") > 0);
    const cJSON *metrics = cJSON_GetObjectItemCaseSensitive(result, "metrics");
    ck_assert(kelp_test_number(metrics, "train/loss") > 0);
    ck_assert(kelp_test_number(metrics, "val/mse") > 0);
    ck_assert(kelp_test_number(metrics, "val/mae") > 0);
    ck_assert(kelp_test_number(metrics, "test/mse") > 0);
    ck_assert(kelp_test_number(metrics, "test/mae") > 0);
    (void)snprintf(digest, sizeof(digest), "%s\n", kelp_test_text(result, "digest"));
    ck_assert_uint_eq(strlen(digest), 33);
    ck_assert_ptr_nonnull(strstr(runs.train.out, digest));

    ck_assert_uint_eq(runs_each_line("runs/one/metrics.jsonl", runs_look_at_metrics), 9);
    ck_assert_uint_ge(runs_each_line("runs/one/digests.jsonl", look_at_digests), 3 * 61 / 20);
    cJSON_Delete(kelp_test_read_json(runs.folder.path, "runs/one/cluster.json"));
    char etcd[300]; /* the data of its own, which nothing needs any more */
    (void)snprintf(etcd, sizeof(etcd), "%s/runs/one/etcd", runs.folder.path);
    ck_assert_int_ne(access(etcd, F_OK), 0);
    static const char *const logs[] = {"coordinator-0", "shard-0",  "shard-1",
                                       "worker-0",      "worker-1", "etcd"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(logs); i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "runs/one/logs/%s.log", logs[i]);
        free(kelp_test_read(runs.folder.path, name, NULL));
    }
    runs_verb((const char *[]){"train", "runs/one/job.yaml", "--print-config", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    runs_verb((const char *[]){"digest", "runs/one", NULL});
    ck_assert_str_eq(runs.verb.out, digest);
    runs_verb((const char *[]){"digest", "runs/one/model.safetensors", NULL});
    ck_assert_str_eq(runs.verb.out, digest);
    runs_verb((const char *[]){"digest", NULL});
    ck_assert_str_eq(runs.verb.out, digest);
    runs_verb((const char *[]){"export", "--out", "copy.safetensors", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(runs.verb.out, digest));
    runs_verb((const char *[]){"status", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(runs.verb.out, "short: done after 183 steps"));
    runs_verb((const char *[]){"status", "runs/one", "-o", "json", NULL});
    cJSON *again = cJSON_Parse(runs.verb.out);
    ck_assert(cJSON_Compare(result, again, 1));
    cJSON_Delete(again);
    cJSON_Delete(result);

    /* A second run does not touch it; resuming it finds it done. */
    runs_verb((const char *[]){"train", "short.yaml", "--run", "runs/one", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 2);
    runs_verb((const char *[]){"train", "--resume", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(runs.verb.out, digest));
}

/* Without --run, a run gets a folder of its own, and runs/latest follows; two at once are two. */
KELP_TEST(test_two_runs_at_once)
{
    char path[300];
    char target[64] = "";
    struct kelp_test_command other = {0};

    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "short.yaml", NULL});
    kelp_test_command_start(&other, runs.folder.path,
                            (const char *[]){"train", "short.yaml", NULL});
    (void)kelp_test_command_wait(&runs.train, KELP_TEST_HANG_MS);
    (void)kelp_test_command_wait(&other, KELP_TEST_HANG_MS);
    ck_assert_msg(runs.train.exit_code == 0, "exit %d: %s", runs.train.exit_code, runs.train.err);
    ck_assert_msg(other.exit_code == 0, "exit %d: %s", other.exit_code, other.err);
    const char *ours = strstr(runs.train.out, "digest ");
    const char *theirs = strstr(other.out, "digest ");
    ck_assert_ptr_nonnull(ours);
    ck_assert_ptr_nonnull(theirs);
    ck_assert_int_eq(strncmp(ours, theirs, strcspn(ours, "\n")), 0);
    ck_assert_str_ne(strstr(ours, "run "), strstr(theirs, "run "));
    (void)snprintf(path, sizeof(path), "%s/runs/latest", runs.folder.path);
    ck_assert_int_gt(readlink(path, target, sizeof(target) - 1), 0);
    ck_assert_ptr_eq(strstr(target, "short-"), target);
    kelp_test_command_fini(&other);
}

/* Two runs cannot share a folder, not even to resume it. */
KELP_TEST(test_folder_in_use)
{
    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    kelp_test_command_await(&runs.train, "step ");
    runs_verb((const char *[]){"train", "--resume", "--run", "r", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(runs.verb.err, "in use"));
    runs_stop(SIGINT);
}

/* The digest that a finished `kelp train` printed. */
static void digest_of(const struct kelp_test_command *command, char digest[33])
{
    const char *found = strstr(command->out, "digest ");

    ck_assert_msg(command->exit_code == 0, "exit %d: %s", command->exit_code, command->err);
    ck_assert_ptr_nonnull(found);
    found += strlen("digest ") + strspn(found + strlen("digest "), " ");
    (void)snprintf(digest, 33, "%.32s", found);
}

/* What `kelp train` can do to its own processes: none of it changes the digest or loses a line. */
KELP_TEST(test_trials)
{
    static const char *const trials[][5] = {
        {"--fault", "worker-1:kill@step=700", NULL},
        {"--fault", "worker-0:kill-pushing@step=701", NULL},
        {"--no-restart", "--fault", "worker-1:kill@step=702", NULL},
        {"--at", "step=300:add-worker", NULL},
        {"--at", "step=800:kill=shard-1", NULL},
        {"--at", "step=800:kill=coordinator-0", NULL},
        {"--coordinators", "2", "--at", "step=800:kill=coordinator-0", NULL},
    };
    char expected[33];
    char digest[33];
    char run[16];

    kelp_test_command_run(&runs.train, runs.folder.path,
                          (const char *[]){"train", "medium.yaml", "--run", "quiet", "--workers",
                                           "1", "--shards", "1", NULL},
                          KELP_TEST_HANG_MS);
    digest_of(&runs.train, expected);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(trials); i++) {
        const char *args[16] = {"train", "medium.yaml", "--run",
                                run,     "--set",       "failure.restart_backoff=100ms"};
        char lines[32];
        (void)snprintf(run, sizeof(run), "run-%zu", i);
        for (size_t arg = 0; trials[i][arg]; arg++) {
            args[6 + arg] = trials[i][arg];
        }
        kelp_test_command_fini(&runs.train);
        kelp_test_command_run(&runs.train, runs.folder.path, args, KELP_TEST_HANG_MS);
        digest_of(&runs.train, digest);
        ck_assert_msg(strcmp(digest, expected) == 0, "%s %s: %s, not %s", args[6], args[7], digest,
                      expected);
        (void)snprintf(lines, sizeof(lines), "%s/metrics.jsonl", run);
        ck_assert_uint_eq(runs_each_line(lines, runs_look_at_metrics), 3 * 60);
    }
}

/* A job that fails ends with exit status 4 and the reason; resumed, it tries again. */
KELP_TEST(test_failed_job)
{
    kelp_test_command_run(&runs.train, runs.folder.path,
                          (const char *[]){"train", "short.yaml", "--set", "train.optimizer=sgd",
                                           "--set", "train.lr=1000", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_msg(runs.train.exit_code == 4, "exit %d: %s", runs.train.exit_code, runs.train.err);
    ck_assert_ptr_nonnull(strstr(runs.train.err, "not finite"));
    kelp_test_command_gone(&runs.train);
    cJSON *result = kelp_test_read_json(runs.folder.path, "runs/latest/result.json");
    ck_assert_str_eq(kelp_test_text(result, "status"), "failed");
    ck_assert_ptr_nonnull(strstr(kelp_test_text(result, "reason"), "not finite"));
    cJSON_Delete(result);
    runs_verb((const char *[]){"status", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(runs.verb.out, "not finite"));
    runs_verb((const char *[]){"train", "--resume", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 4);
    ck_assert_ptr_nonnull(strstr(runs.verb.err, "step "));
}

/* A worker whose data differs from the others' ends the run with its reason: exit status 2. */
KELP_TEST(test_other_data)
{
    static const char job[] = "name: other\n"
                              "model: {kind: dlinear}\n"
                              "data: {kind: csv, path: data.csv, split: [2000, 400, 400],\n"
                              "       seq_len: 48, pred_len: 24}\n"
                              "train: {epochs: 100000, batch_size: 32}\n"
                              "cluster: {workers: 1:2, lanes: 4}\n";

    (void)kelp_test_write(runs.folder.path, "other.yaml", job);
    runs_verb((const char *[]){"data", "generate", "--out", "data.csv", "--rows", "3000", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "other.yaml", "--run", "r", "--at",
                                             "step=10000:add-worker", NULL});
    kelp_test_command_await(&runs.train, "step ");
    runs_verb((const char *[]){"data", "generate", "--out", "data.csv", "--rows", "3000", "--seed",
                               "9", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    (void)kelp_test_command_wait(&runs.train, KELP_TEST_HANG_MS);
    ck_assert_msg(runs.train.exit_code == 2, "exit %d: %s", runs.train.exit_code, runs.train.err);
    ck_assert_msg(strstr(runs.train.err, "worker-1: data.path '") != NULL, "%s", runs.train.err);
    ck_assert_ptr_nonnull(strstr(runs.train.err,
                                 "data.csv': the data is not what the run began with "
                                 "(data fingerprint "));
    ck_assert_ptr_nonnull(strstr(runs.train.err, "bring the files back, or start a new run"));
    kelp_test_command_gone(&runs.train);
}

/* The job as that etcd holds it; owned by the caller (free()). */
static char *spec_in_etcd(const char *url, const char *key)
{
    struct kelp_etcd *etcd = NULL;
    struct kelp_etcd_range range = {0};

    ck_assert_int_eq(kelp_etcd_open(url, &etcd, NULL), KELP_OK);
    ck_assert_int_eq(kelp_etcd_get(etcd, key, 5000, &range, NULL), KELP_OK);
    ck_assert_uint_eq(range.count, 1);
    char *text = strdup(range.pairs[0].value);
    ck_assert_ptr_nonnull(text);
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(etcd);
    return text;
}

/* A resume that fails puts back what an etcd that others use holds of the job. */
KELP_TEST(test_failed_resume_external_etcd)
{
    struct kelp_etcd_server *server = runs_start_etcd();
    const char *url = kelp_etcd_server_url(server);
    char digest[33];
    char again[33];

    runs_verb((const char *[]){"train", "short.yaml", "--run", "r", "--etcd", url, NULL});
    digest_of(&runs.verb, digest);
    runs_verb((const char *[]){"stop", "short", "--etcd", url, NULL});
    ck_assert_int_eq(runs.verb.exit_code, 2);
    ck_assert_str_eq(runs.verb.err, "kelp: etcd has no job 'short' that kelp node runs; a run of "
                                    "kelp train is stopped on its machine, by kelp stop RUN\n");
    runs_verb((const char *[]){"wait", "short", "--etcd", url, NULL}); /* for ever */
    ck_assert_int_eq(runs.verb.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(runs.verb.err, "kelp: kelp node does not run job 'short'"));
    char *spec = spec_in_etcd(url, "/kelp/short/spec");
    char *state = spec_in_etcd(url, "/kelp/short/state");
    runs_verb((const char *[]){"train", "--resume", "--run", "r", "--etcd", url, "--set",
                               "data.seq_len=24", "--set", "train.epochs=5", "--force", NULL});
    ck_assert_msg(runs.verb.exit_code == 4 || runs.verb.exit_code == 2, "exit %d: %s",
                  runs.verb.exit_code, runs.verb.err);
    ck_assert_ptr_nonnull(strstr(runs.verb.err, "the run is unchanged"));
    ck_assert_ptr_null(strstr(runs.verb.err, "continues it"));
    char *spec_now = spec_in_etcd(url, "/kelp/short/spec");
    char *state_now = spec_in_etcd(url, "/kelp/short/state");
    ck_assert_str_eq(spec_now, spec);
    ck_assert_str_eq(state_now, state);
    runs_verb((const char *[]){"train", "--resume", "--run", "r", "--etcd", url, NULL});
    digest_of(&runs.verb, again);
    ck_assert_str_eq(again, digest);
    runs_verb((const char *[]){"train", "--resume", "--run", "r", "--etcd", url, "--set",
                               "train.epochs=4", NULL});
    ck_assert_msg(runs.verb.exit_code == 0, "exit %d: %s", runs.verb.exit_code, runs.verb.err);
    free(spec);
    free(state);
    free(spec_now);
    free(state_now);
    kelp_etcd_server_stop(server, 1000);
}

/* An etcd that is there already: the job's prefix must be free, or the same job's to resume. */
KELP_TEST(test_external_etcd)
{
    struct kelp_etcd_server *server = runs_start_etcd();
    char digest[33];
    char again[33];

    const char *url = kelp_etcd_server_url(server);
    kelp_test_command_run(
        &runs.train, runs.folder.path,
        (const char *[]){"train", "short.yaml", "--run", "r", "--etcd", url, NULL},
        KELP_TEST_HANG_MS);
    digest_of(&runs.train, digest);
    kelp_test_command_gone(&runs.train);
    runs_verb((const char *[]){"train", "short.yaml", "--run", "other", "--etcd", url, NULL});
    ck_assert_int_eq(runs.verb.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(runs.verb.err, "'short'"));
    runs_verb((const char *[]){"train", "short.yaml", "--run", "other", "--etcd", url, "--set",
                               "name=another", NULL});
    digest_of(&runs.verb, again);
    ck_assert_str_eq(digest, again);
    kelp_etcd_server_stop(server, 1000);
}

/* A running job is shown and exported without being disturbed. */
KELP_TEST(test_live_verbs)
{
    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    kelp_test_command_await(&runs.train, "step ");
    runs_verb((const char *[]){"status", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(runs.verb.out, "running"));
    ck_assert_ptr_nonnull(strstr(runs.verb.out, "worker-1"));
    ck_assert_ptr_nonnull(strstr(runs.verb.out, "shard-1"));
    for (const char *line = runs.verb.out; *line; line += strcspn(line, "\n") + 1) {
        ck_assert_uint_le(strcspn(line, "\n"), 80);
    }
    runs_verb((const char *[]){"status", "r", "-o", "json", NULL});
    cJSON *status = cJSON_Parse(runs.verb.out);
    ck_assert_ptr_nonnull(status);
    ck_assert_str_eq(kelp_test_text(status, "status"), "running");
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(status, "workers")), 2);
    cJSON *shards = cJSON_GetObjectItem(status, "shards");
    ck_assert_int_eq(cJSON_GetArraySize(shards), 2);
    ck_assert_int_gt(cJSON_GetObjectItem(cJSON_GetArrayItem(shards, 1), "partitions")->valueint, 0);
    ck_assert_int_eq(cJSON_GetObjectItem(cJSON_GetArrayItem(shards, 1), "backups")->valueint, 0);
    ck_assert_int_eq(cJSON_GetObjectItem(status, "map_serial")->valueint, 1);
    cJSON_Delete(status);
    runs_verb((const char *[]){"export", "r", "--out", "now.safetensors", NULL});
    ck_assert_msg(runs.verb.exit_code == 0, "exit %d: %s", runs.verb.exit_code, runs.verb.err);
    const char *digest = strstr(runs.verb.out, "digest ");
    ck_assert_ptr_nonnull(digest);
    digest += strlen("digest ");
    char exported[64];
    (void)snprintf(exported, sizeof(exported), "%s", digest);
    runs_verb((const char *[]){"digest", "now.safetensors", NULL});
    ck_assert_str_eq(runs.verb.out, exported);
    runs_verb((const char *[]){"export", "r", "--out", "long.yaml/x", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 2);
    runs_await_training();
    runs_stop(SIGINT);
}

/* Is that step's digest on record? Records reach the file a moment later. */
static bool on_record(unsigned long long step, const char *digest)
{
    char *records = kelp_test_read(runs.folder.path, "r/digests.jsonl", NULL);
    char wanted[64];

    (void)snprintf(wanted, sizeof(wanted), "\"step\":%llu,", step);
    const char *line = strstr(records, wanted);
    bool found = line && memmem(line, strcspn(line, "\n"), digest, strlen(digest));
    free(records);
    return found;
}

/* What is exported from a running job are the weights of one step, in all partitions: their digest
 * is the one that the workers reported for that step. */
KELP_TEST(test_live_export)
{
    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", "--set",
                                             "checkpoint.digest_steps=1", NULL});
    kelp_test_command_await(&runs.train, "step ");
    for (int i = 0; i < 5; i++) {
        char digest[33] = "";
        unsigned long long step = 0;
        runs_verb((const char *[]){"export", "r", "--out", "now.safetensors", NULL});
        ck_assert_msg(runs.verb.exit_code == 0, "exit %d: %s", runs.verb.exit_code, runs.verb.err);
        /* NOLINTNEXTLINE(cert-err34-c): the count is checked */
        ck_assert_int_eq(
            sscanf(runs.verb.out, "now.safetensors: step %llu, digest %32s", &step, digest), 2);
        KELP_TEST_AWAIT_FROM(&runs.train, on_record(step, digest),
                             "step %llu is not on record with %s", step, digest);
    }
    runs_stop(SIGINT);
}
