/*
 * The kelp command with a cluster: what a run leaves in its folder, what the other verbs make of
 * it, and that no process outlives it, however it ends.
 */
#include <curl/curl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/etcd/etcd.h"
#include "common/program/etcd_server.h"
#include "tests/lib/cluster/json_fields.h"
#include "tests/lib/cluster/run_command.h"
#include "tests/lib/suite.h"

/* A stop takes 1.8 s (cli/launch/guard.h), longer on a busy machine; nobody waits for so long. */
#define STOP_MS 30000

/* About a second of training. */
static const char short_job[] = "name: short\nseed: 3\n"
                                "model: {kind: dlinear}\n"
                                "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                                "       seq_len: 48, pred_len: 24}\n"
                                "train: {epochs: 3, batch_size: 32}\n"
                                "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                                "checkpoint: {digest_steps: 20}\n";
/* Some seconds: long enough to be killed on the way. */
static const char medium_job[] = "name: medium\nseed: 5\n"
                                 "model: {kind: dlinear}\n"
                                 "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                                 "       seq_len: 48, pred_len: 24}\n"
                                 "train: {epochs: 60, batch_size: 32}\n"
                                 "cluster: {workers: 2, shards: 2, lanes: 4}\n";
/* Longer than any test. */
static const char long_job[] = "name: long\nseed: 3\n"
                               "model: {kind: dlinear}\n"
                               "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                               "       seq_len: 48, pred_len: 24}\n"
                               "train: {epochs: 100000, batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                               "failure: {restart_backoff: 100ms}\n";

static struct kelp_test_folder folder;
static struct kelp_test_command train;
static struct kelp_test_command verb;

static void setup(void)
{
    kelp_test_folder_init(&folder);
    memset(&train, 0, sizeof(train));
    memset(&verb, 0, sizeof(verb));
    (void)kelp_test_write(folder.path, "short.yaml", short_job);
    (void)kelp_test_write(folder.path, "medium.yaml", medium_job);
    (void)kelp_test_write(folder.path, "long.yaml", long_job);
}

static void teardown(void)
{
    kelp_test_command_fini(&train);
    kelp_test_command_fini(&verb);
    kelp_test_folder_fini(&folder);
}

static void sleep_ms(unsigned ms)
{
    struct timespec wait = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    while (nanosleep(&wait, &wait) != 0) {
    }
}

/* Ask the run to end, and wait for it. */
static void stop(int signal_number)
{
    kelp_process_signal(train.process, signal_number);
    (void)kelp_test_command_wait(&train, STOP_MS);
}

static void run_verb(const char *const *args)
{
    kelp_test_command_fini(&verb);
    kelp_test_command_run(&verb, folder.path, args, KELP_TEST_HANG_MS);
}

/* Each line of a file is a JSON object; returns how many look counts. */
static unsigned each_line(const char *name, bool (*look)(const cJSON *line))
{
    char *lines = kelp_test_read(folder.path, name, NULL);
    unsigned count = 0;

    for (char *line = lines; *line;) {
        size_t length = strcspn(line, "\n");
        ck_assert_msg(line[length] == '\n', "%s: the last line is cut", name);
        line[length] = '\0';
        cJSON *json = cJSON_Parse(line);
        ck_assert_msg(json != NULL, "%s: no JSON: %s", name, line);
        count += look(json) ? 1 : 0;
        cJSON_Delete(json);
        line += length + 1;
    }
    free(lines);
    return count;
}

/* Lines of epochs and evaluations count; those of metrics.every stand between them. */
static bool look_at_metrics(const cJSON *line)
{
    static const char *const names[] = {"train/loss", "val/mse", "test/mse"};
    unsigned found = 0;

    ck_assert(kelp_test_number(line, "version") >= 0);
    ck_assert(kelp_test_number(line, "step") > 0);
    ck_assert(kelp_test_number(line, "epoch") >= 1);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        found += cJSON_HasObjectItem(line, names[i]) != 0;
    }
    ck_assert(found == 1 || kelp_test_number(line, "train/step_loss") > 0);
    return found == 1;
}

static bool look_at_digests(const cJSON *line)
{
    ck_assert_uint_eq(strlen(kelp_test_text(line, "digest")), 32);
    ck_assert(kelp_test_number(line, "step") >= 0);
    return true;
}

KELP_CASE("cluster", .timeout_s = 2 * KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

/* Everything that a finished run's folder shall hold is there, whole and consistent. */
KELP_TEST(test_run_folder)
{
    char digest[64];
    pid_t pids[16];

    kelp_test_command_run(&train, folder.path,
                          (const char *[]){"train", "short.yaml", "--run", "runs/one", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_msg(train.exit_code == 0, "exit %d: %s", train.exit_code, train.err);
    ck_assert_uint_eq(kelp_test_command_processes(&train, pids, KELP_ARRAY_COUNT(pids)), 0);
    cJSON *result = kelp_test_read_json(folder.path, "runs/one/result.json");
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
    ck_assert_ptr_nonnull(strstr(train.out, digest));

    ck_assert_uint_eq(each_line("runs/one/metrics.jsonl", look_at_metrics), 9);
    ck_assert_uint_ge(each_line("runs/one/digests.jsonl", look_at_digests), 3 * 61 / 20);
    cJSON_Delete(kelp_test_read_json(folder.path, "runs/one/cluster.json"));
    char etcd[300]; /* the data of its own, which nothing needs any more */
    (void)snprintf(etcd, sizeof(etcd), "%s/runs/one/etcd", folder.path);
    ck_assert_int_ne(access(etcd, F_OK), 0);
    static const char *const logs[] = {"coordinator-0", "shard-0",  "shard-1",
                                       "worker-0",      "worker-1", "etcd"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(logs); i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "runs/one/logs/%s.log", logs[i]);
        free(kelp_test_read(folder.path, name, NULL));
    }
    run_verb((const char *[]){"train", "runs/one/job.yaml", "--print-config", NULL});
    ck_assert_int_eq(verb.exit_code, 0);
    run_verb((const char *[]){"digest", "runs/one", NULL});
    ck_assert_str_eq(verb.out, digest);
    run_verb((const char *[]){"digest", "runs/one/model.safetensors", NULL});
    ck_assert_str_eq(verb.out, digest);
    run_verb((const char *[]){"digest", NULL});
    ck_assert_str_eq(verb.out, digest);
    run_verb((const char *[]){"export", "--out", "copy.safetensors", NULL});
    ck_assert_int_eq(verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(verb.out, digest));
    run_verb((const char *[]){"status", NULL});
    ck_assert_int_eq(verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(verb.out, "short: done after 183 steps"));
    run_verb((const char *[]){"status", "runs/one", "-o", "json", NULL});
    cJSON *again = cJSON_Parse(verb.out);
    ck_assert(cJSON_Compare(result, again, 1));
    cJSON_Delete(again);
    cJSON_Delete(result);

    /* A second run does not touch it; resuming it finds it done. */
    run_verb((const char *[]){"train", "short.yaml", "--run", "runs/one", NULL});
    ck_assert_int_eq(verb.exit_code, 2);
    run_verb((const char *[]){"train", "--resume", NULL});
    ck_assert_int_eq(verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(verb.out, digest));
}

/* Without --run, a run gets a folder of its own, and runs/latest follows; two at once are two. */
KELP_TEST(test_two_runs_at_once)
{
    char path[300];
    char target[64] = "";
    struct kelp_test_command other = {0};

    kelp_test_command_start(&train, folder.path, (const char *[]){"train", "short.yaml", NULL});
    kelp_test_command_start(&other, folder.path, (const char *[]){"train", "short.yaml", NULL});
    (void)kelp_test_command_wait(&train, KELP_TEST_HANG_MS);
    (void)kelp_test_command_wait(&other, KELP_TEST_HANG_MS);
    ck_assert_msg(train.exit_code == 0, "exit %d: %s", train.exit_code, train.err);
    ck_assert_msg(other.exit_code == 0, "exit %d: %s", other.exit_code, other.err);
    const char *ours = strstr(train.out, "digest ");
    const char *theirs = strstr(other.out, "digest ");
    ck_assert_ptr_nonnull(ours);
    ck_assert_ptr_nonnull(theirs);
    ck_assert_int_eq(strncmp(ours, theirs, strcspn(ours, "\n")), 0);
    ck_assert_str_ne(strstr(ours, "run "), strstr(theirs, "run "));
    (void)snprintf(path, sizeof(path), "%s/runs/latest", folder.path);
    ck_assert_int_gt(readlink(path, target, sizeof(target) - 1), 0);
    ck_assert_ptr_eq(strstr(target, "short-"), target);
    kelp_test_command_fini(&other);
}

/* Two runs cannot share a folder, not even to resume it. */
KELP_TEST(test_folder_in_use)
{
    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    kelp_test_command_await(&train, "step ");
    run_verb((const char *[]){"train", "--resume", "--run", "r", NULL});
    ck_assert_int_eq(verb.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(verb.err, "in use"));
    stop(SIGINT);
}

static const unsigned moments_ms[] = {0, 30, 100, 200, 300, 450, 700, 1500};

/* Ctrl-C at any moment: it ends, with one line that says how to go on, nothing left. */
KELP_LOOP_TEST(test_interrupt, 0, KELP_ARRAY_COUNT(moments_ms))
{
    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    sleep_ms(moments_ms[_i]);
    stop(SIGINT);
    kelp_test_command_gone(&train);
    if (strstr(train.err, "kelp: run ")) {
        ck_assert_msg(train.exit_code == 130, "exit %d: %s", train.exit_code, train.err);
    } else {
        ck_assert_int_eq(train.exit_code, -1); /* before there was anything to stop */
    }
}

/* SIGTERM is a stop in order, without a checkpoint when none is waited for, and the run can go on
 * afterwards. */
KELP_TEST(test_terminate)
{
    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", "--pause-timeout",
                                             "0s", "--set", "checkpoint.interval=0s", NULL});
    kelp_test_command_await(&train, "step ");
    stop(SIGTERM);
    ck_assert_int_eq(train.exit_code, 128 + SIGTERM);
    ck_assert_ptr_nonnull(strstr(train.err, "no checkpoint yet, so it begins again at step 0"));
    ck_assert_ptr_nonnull(strstr(train.err, "--resume --run r"));
    kelp_test_command_gone(&train);
    cJSON *result = kelp_test_read_json(folder.path, "r/result.json");
    ck_assert_str_eq(kelp_test_text(result, "status"), "stopped");
    cJSON_Delete(result);
    run_verb((const char *[]){"status", NULL});
    ck_assert_int_eq(verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(verb.out, "--resume"));
}

/* A daemon that does not end by itself does not keep the run from ending. */
KELP_TEST(test_interrupt_with_a_stopped_child)
{
    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    kelp_test_command_await(&train, "step ");
    (void)kelp_test_command_signal(&train, "kelp-ps", "shard-0", SIGSTOP);
    (void)kelp_test_command_signal(&train, "etcd", "--data-dir", SIGSTOP);
    kelp_process_signal(train.process, SIGINT);
    kelp_test_command_await(&train, "kelp: pausing: "); /* which it cannot */
    stop(SIGINT);
    kelp_test_command_gone(&train);
}

/* SIGKILL of the launcher at any moment leaves no process. */
KELP_LOOP_TEST(test_kill, 0, KELP_ARRAY_COUNT(moments_ms))
{
    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    sleep_ms(moments_ms[_i]);
    kelp_process_signal(train.process, SIGKILL);
    (void)kelp_test_command_wait(&train, KELP_TEST_HANG_MS);
    ck_assert_int_eq(train.exit_code, -1);
    kelp_test_command_gone(&train);
}

/* A run whose launcher was killed is not running, says so, and goes on to the same bits. */
KELP_TEST(test_resume_after_kill)
{
    struct kelp_test_command quiet = {0};
    char digest[64];

    kelp_test_command_run(&quiet, folder.path,
                          (const char *[]){"train", "medium.yaml", "--run", "quiet", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_int_eq(quiet.exit_code, 0);
    const char *found = strstr(quiet.out, "digest ");
    ck_assert_ptr_nonnull(found);
    (void)snprintf(digest, sizeof(digest), "%.*s", (int)strcspn(found, "\n"), found);
    kelp_test_command_fini(&quiet);

    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "medium.yaml", "--run", "r", NULL});
    /* Any line of progress with a loss: which epochs it names depends on the machine. */
    kelp_test_command_await(&train, "/60 loss 0.");
    kelp_process_signal(train.process, SIGKILL);
    (void)kelp_test_command_wait(&train, KELP_TEST_HANG_MS);
    run_verb((const char *[]){"status", "r", NULL});
    ck_assert_int_eq(verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(verb.out, "not running"));
    run_verb((const char *[]){"digest", "r", NULL});
    ck_assert_int_eq(verb.exit_code, 2);
    run_verb((const char *[]){"train", "medium.yaml", "--resume", "--run", "r", "--set",
                              "train.lr=0.1", NULL});
    ck_assert_int_eq(verb.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(verb.err, "differs"));

    kelp_test_command_fini(&verb);
    kelp_test_command_run(
        &verb, folder.path,
        (const char *[]){"train", "--resume", "--run", "r", "--workers", "3", NULL},
        KELP_TEST_HANG_MS);
    ck_assert_msg(verb.exit_code == 0, "exit %d: %s", verb.exit_code, verb.err);
    ck_assert_msg(strstr(verb.out, digest) != NULL, "not %s: %s", digest, verb.out);
    ck_assert_uint_eq(each_line("r/metrics.jsonl", look_at_metrics), 3 * 60);
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

    kelp_test_command_run(&train, folder.path,
                          (const char *[]){"train", "medium.yaml", "--run", "quiet", "--workers",
                                           "1", "--shards", "1", NULL},
                          KELP_TEST_HANG_MS);
    digest_of(&train, expected);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(trials); i++) {
        const char *args[16] = {"train", "medium.yaml", "--run",
                                run,     "--set",       "failure.restart_backoff=100ms"};
        char lines[32];
        (void)snprintf(run, sizeof(run), "run-%zu", i);
        for (size_t arg = 0; trials[i][arg]; arg++) {
            args[6 + arg] = trials[i][arg];
        }
        kelp_test_command_fini(&train);
        kelp_test_command_run(&train, folder.path, args, KELP_TEST_HANG_MS);
        digest_of(&train, digest);
        ck_assert_msg(strcmp(digest, expected) == 0, "%s %s: %s, not %s", args[6], args[7], digest,
                      expected);
        (void)snprintf(lines, sizeof(lines), "%s/metrics.jsonl", run);
        ck_assert_uint_eq(each_line(lines, look_at_metrics), 3 * 60);
    }
}

/* A job that fails ends with exit status 4 and the reason; resumed, it tries again. */
KELP_TEST(test_failed_job)
{
    kelp_test_command_run(&train, folder.path,
                          (const char *[]){"train", "short.yaml", "--set", "train.optimizer=sgd",
                                           "--set", "train.lr=1000", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_msg(train.exit_code == 4, "exit %d: %s", train.exit_code, train.err);
    ck_assert_ptr_nonnull(strstr(train.err, "not finite"));
    kelp_test_command_gone(&train);
    cJSON *result = kelp_test_read_json(folder.path, "runs/latest/result.json");
    ck_assert_str_eq(kelp_test_text(result, "status"), "failed");
    ck_assert_ptr_nonnull(strstr(kelp_test_text(result, "reason"), "not finite"));
    cJSON_Delete(result);
    run_verb((const char *[]){"status", NULL});
    ck_assert_int_eq(verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(verb.out, "not finite"));
    run_verb((const char *[]){"train", "--resume", NULL});
    ck_assert_int_eq(verb.exit_code, 4);
    ck_assert_ptr_nonnull(strstr(verb.err, "step "));
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

    (void)kelp_test_write(folder.path, "other.yaml", job);
    run_verb((const char *[]){"data", "generate", "--out", "data.csv", "--rows", "3000", NULL});
    ck_assert_int_eq(verb.exit_code, 0);
    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "other.yaml", "--run", "r", "--at",
                                             "step=10000:add-worker", NULL});
    kelp_test_command_await(&train, "step ");
    run_verb((const char *[]){"data", "generate", "--out", "data.csv", "--rows", "3000", "--seed",
                              "9", NULL});
    ck_assert_int_eq(verb.exit_code, 0);
    (void)kelp_test_command_wait(&train, KELP_TEST_HANG_MS);
    ck_assert_msg(train.exit_code == 2, "exit %d: %s", train.exit_code, train.err);
    ck_assert_msg(strstr(train.err, "worker-1: data.path '") != NULL, "%s", train.err);
    ck_assert_ptr_nonnull(strstr(train.err, "data.csv': the data are not what the run began with "
                                            "(data fingerprint "));
    ck_assert_ptr_nonnull(strstr(train.err, "bring the files back, or start a new run"));
    kelp_test_command_gone(&train);
}

static struct kelp_etcd_server *start_own_etcd(void)
{
    struct kelp_error error = {.text = ""};
    struct kelp_etcd_server *server = NULL;
    char data[256];
    char log[256];

    (void)snprintf(data, sizeof(data), "%s/etcd", folder.path);
    (void)snprintf(log, sizeof(log), "%s/etcd.log", folder.path);
    struct kelp_etcd_server_options options = {.data_folder = data, .log_path = log};
    ck_assert_int_eq(curl_global_init(CURL_GLOBAL_DEFAULT), CURLE_OK);
    ck_assert_msg(kelp_etcd_server_start(&options, &server, &error) == KELP_OK, "%s", error.text);
    return server;
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
    struct kelp_etcd_server *server = start_own_etcd();
    const char *url = kelp_etcd_server_url(server);
    char digest[33];
    char again[33];

    run_verb((const char *[]){"train", "short.yaml", "--run", "r", "--etcd", url, NULL});
    digest_of(&verb, digest);
    char *spec = spec_in_etcd(url, "/kelp/short/spec");
    char *state = spec_in_etcd(url, "/kelp/short/state");
    run_verb((const char *[]){"train", "--resume", "--run", "r", "--etcd", url, "--set",
                              "data.seq_len=24", "--set", "train.epochs=5", "--force", NULL});
    ck_assert_msg(verb.exit_code == 4 || verb.exit_code == 2, "exit %d: %s", verb.exit_code,
                  verb.err);
    ck_assert_ptr_nonnull(strstr(verb.err, "nothing of the run has changed"));
    char *spec_now = spec_in_etcd(url, "/kelp/short/spec");
    char *state_now = spec_in_etcd(url, "/kelp/short/state");
    ck_assert_str_eq(spec_now, spec);
    ck_assert_str_eq(state_now, state);
    run_verb((const char *[]){"train", "--resume", "--run", "r", "--etcd", url, NULL});
    digest_of(&verb, again);
    ck_assert_str_eq(again, digest);
    run_verb((const char *[]){"train", "--resume", "--run", "r", "--etcd", url, "--set",
                              "train.epochs=4", NULL});
    ck_assert_msg(verb.exit_code == 0, "exit %d: %s", verb.exit_code, verb.err);
    free(spec);
    free(state);
    free(spec_now);
    free(state_now);
    kelp_etcd_server_stop(server, 1000);
}

/* An etcd that is there already: the job's prefix must be free, or the same job's to resume. */
KELP_TEST(test_external_etcd)
{
    struct kelp_etcd_server *server = start_own_etcd();
    char digest[33];
    char again[33];

    const char *url = kelp_etcd_server_url(server);
    kelp_test_command_run(
        &train, folder.path,
        (const char *[]){"train", "short.yaml", "--run", "r", "--etcd", url, NULL},
        KELP_TEST_HANG_MS);
    digest_of(&train, digest);
    kelp_test_command_gone(&train);
    run_verb((const char *[]){"train", "short.yaml", "--run", "other", "--etcd", url, NULL});
    ck_assert_int_eq(verb.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(verb.err, "'short'"));
    run_verb((const char *[]){"train", "short.yaml", "--run", "other", "--etcd", url, "--set",
                              "name=another", NULL});
    digest_of(&verb, again);
    ck_assert_str_eq(digest, again);
    kelp_etcd_server_stop(server, 1000);
}

static const struct {
    const char *program;
    const char *id;
} victims[] = {{"kelp-worker", "worker-1"},
               {"kelp-ps", "shard-0"},
               {"kelp-coordinator", "coordinator-0"},
               {"etcd", "--data-dir"}};

static double step_now(void)
{
    run_verb((const char *[]){"status", "r", "-o", "json", "--timeout", "60s", NULL});
    ck_assert_msg(verb.exit_code == 0, "exit %d: %s", verb.exit_code, verb.err);
    cJSON *status = cJSON_Parse(verb.out);
    ck_assert_ptr_nonnull(status);
    double step = kelp_test_number(status, "step");
    cJSON_Delete(status);
    return step;
}

static void training_goes_on(void)
{
    double before = step_now();
    KELP_TEST_AWAIT_FROM(&train, step_now() > before, "training stands still at step %g", before);
}

/* A child that is killed is started again, and training goes on. */
KELP_LOOP_TEST(test_child_restarts, 0, KELP_ARRAY_COUNT(victims))
{
    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    kelp_test_command_await(&train, "step ");
    pid_t pid = kelp_test_command_signal(&train, victims[_i].program, victims[_i].id, SIGKILL);
    pid_t again = 0;
    kelp_test_command_await(&train, "started again");
    KELP_TEST_AWAIT_FROM(
        &train,
        (again = kelp_test_command_find(&train, victims[_i].program, victims[_i].id)) > 0 &&
            again != pid,
        "it is not started again");
    training_goes_on();
    stop(SIGINT);
    kelp_test_command_gone(&train);
}

/* An etcd that dies, and then does not start for a while, costs a run nothing but restarts. */
KELP_TEST(test_etcd_starts_late)
{
    char script[512];
    (void)snprintf(script, sizeof(script),
                   "#!/bin/sh\n"
                   "echo started >> '%s/starts'\n"
                   "case $(wc -l < '%s/starts') in 2|3) echo no such luck; exit 1;; esac\n"
                   "PATH=$PATH:/usr/bin exec etcd \"$@\"\n",
                   folder.path, folder.path);
    const char *path = kelp_test_write(folder.path, "etcd.sh", script);
    ck_assert_int_eq(chmod(path, 0700), 0);
    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", "--etcd-program",
                                             "./etcd.sh", "--set", "failure.restart_backoff=100ms",
                                             NULL});
    kelp_test_command_await(&train, "step ");
    (void)kelp_test_command_signal(&train, "etcd", "--data-dir", SIGKILL);
    kelp_test_command_await(&train, "no such luck; it is started again in 100 ms");
    kelp_test_command_await(&train, "no such luck; it is started again in 200 ms");
    training_goes_on();
    stop(SIGINT);
    cJSON *result = kelp_test_read_json(folder.path, "r/result.json");
    ck_assert_double_eq(cJSON_GetObjectItemCaseSensitive(result, "restarts")->valuedouble, 3);
    cJSON_Delete(result);
}

/* When the restarts are used up the run ends and says what failed, when, and how to go on; so does
 * the job's state in etcd, for whoever looks there. */
KELP_TEST(test_restarts_used_up)
{
    struct kelp_etcd_server *server = start_own_etcd();
    const char *url = kelp_etcd_server_url(server);
    struct kelp_etcd *etcd = NULL;
    struct kelp_etcd_range range = {0};

    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", "--etcd", url,
                                             "--set", "failure.max_failures=0", NULL});
    kelp_test_command_await(&train, "step ");
    (void)kelp_test_command_signal(&train, "kelp-worker", "worker-0", SIGKILL);
    (void)kelp_test_command_wait(&train, KELP_TEST_HANG_MS);
    ck_assert_int_eq(train.exit_code, 4);
    ck_assert_ptr_nonnull(strstr(train.err, "kelp: worker-0 killed by signal 9"));
    ck_assert_ptr_nonnull(strstr(train.err, "failure.max_failures=0"));
    ck_assert_ptr_nonnull(strstr(train.err, "kelp train --resume --run r"));
    kelp_test_command_gone(&train);
    cJSON *result = kelp_test_read_json(folder.path, "r/result.json");
    ck_assert_str_eq(kelp_test_text(result, "status"), "failed");
    ck_assert_int_eq(kelp_etcd_open(url, &etcd, NULL), KELP_OK);
    ck_assert_int_eq(kelp_etcd_get(etcd, "/kelp/long/state", 5000, &range, NULL), KELP_OK);
    ck_assert_uint_eq(range.count, 1);
    cJSON *state = cJSON_Parse(range.pairs[0].value);
    ck_assert_str_eq(kelp_test_text(state, "state"), "failed");
    ck_assert_str_eq(kelp_test_text(state, "reason"), kelp_test_text(result, "reason"));
    cJSON_Delete(state);
    cJSON_Delete(result);
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(etcd);
    kelp_etcd_server_stop(server, 1000);
}

/* A running job is shown and exported without being disturbed. */
KELP_TEST(test_live_verbs)
{
    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    kelp_test_command_await(&train, "step ");
    run_verb((const char *[]){"status", NULL});
    ck_assert_int_eq(verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(verb.out, "running"));
    ck_assert_ptr_nonnull(strstr(verb.out, "worker-1"));
    ck_assert_ptr_nonnull(strstr(verb.out, "shard-1"));
    for (const char *line = verb.out; *line; line += strcspn(line, "\n") + 1) {
        ck_assert_uint_le(strcspn(line, "\n"), 80);
    }
    run_verb((const char *[]){"status", "r", "-o", "json", NULL});
    cJSON *status = cJSON_Parse(verb.out);
    ck_assert_ptr_nonnull(status);
    ck_assert_str_eq(kelp_test_text(status, "status"), "running");
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(status, "workers")), 2);
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(status, "shards")), 2);
    cJSON_Delete(status);
    run_verb((const char *[]){"export", "r", "--out", "now.safetensors", NULL});
    ck_assert_msg(verb.exit_code == 0, "exit %d: %s", verb.exit_code, verb.err);
    const char *digest = strstr(verb.out, "digest ");
    ck_assert_ptr_nonnull(digest);
    digest += strlen("digest ");
    char exported[64];
    (void)snprintf(exported, sizeof(exported), "%s", digest);
    run_verb((const char *[]){"digest", "now.safetensors", NULL});
    ck_assert_str_eq(verb.out, exported);
    run_verb((const char *[]){"export", "r", "--out", "long.yaml/x", NULL});
    ck_assert_int_eq(verb.exit_code, 1);
    training_goes_on();
    stop(SIGINT);
}

/* Is that step's digest on record? Records reach the file a moment later. */
static bool on_record(unsigned long long step, const char *digest)
{
    char *records = kelp_test_read(folder.path, "r/digests.jsonl", NULL);
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
    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", "--set",
                                             "checkpoint.digest_steps=1", NULL});
    kelp_test_command_await(&train, "step ");
    for (int i = 0; i < 5; i++) {
        char digest[33] = "";
        unsigned long long step = 0;
        run_verb((const char *[]){"export", "r", "--out", "now.safetensors", NULL});
        ck_assert_msg(verb.exit_code == 0, "exit %d: %s", verb.exit_code, verb.err);
        /* NOLINTNEXTLINE(cert-err34-c): the count is checked */
        ck_assert_int_eq(sscanf(verb.out, "now.safetensors: step %llu, digest %32s", &step, digest),
                         2);
        KELP_TEST_AWAIT_FROM(&train, on_record(step, digest), "step %llu is not on record with %s",
                             step, digest);
    }
    stop(SIGINT);
}

/* A third signal ends everything at once, or the time for a stop is over: the exit status names the
 * newest one. Nobody reads the result that the run wants to write, so that it cannot end before. */
KELP_TEST(test_third_signal)
{
    char path[300];

    kelp_test_command_start(&train, folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", NULL});
    kelp_test_command_await(&train, "step ");
    (void)snprintf(path, sizeof(path), "%s/r/result.json.new", folder.path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    (void)kelp_test_command_signal(&train, "kelp-ps", "shard-0", SIGSTOP);
    kelp_process_signal(train.process, SIGHUP);
    kelp_test_command_await(&train, "kelp: pausing: ");
    kelp_process_signal(train.process, SIGINT);
    stop(SIGINT);
    ck_assert_int_eq(train.exit_code, 128 + SIGINT);
    ck_assert_ptr_nonnull(strstr(train.err, "ended at once"));
    kelp_test_command_gone(&train);
}
