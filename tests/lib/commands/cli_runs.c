#include "tests/lib/commands/cli_runs.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

struct cli_runs runs;

/* About a second of training. */
static const char short_job[] = "name: short\nseed: 3\n"
                                "model: {kind: dlinear}\n"
                                "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                                "       seq_len: 48, pred_len: 24}\n"
                                "train: {epochs: 3, batch_size: 32}\n"
                                "cluster: {workers: 2, shards: 2, lanes: 4}\n"
                                "checkpoint: {digest_steps: 20}\n";
/* Some seconds: long enough to be killed in between. */
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

void runs_setup(void)
{
    kelp_test_folder_init(&runs.folder);
    memset(&runs.train, 0, sizeof(runs.train));
    memset(&runs.verb, 0, sizeof(runs.verb));
    (void)kelp_test_write(runs.folder.path, "short.yaml", short_job);
    (void)kelp_test_write(runs.folder.path, "medium.yaml", medium_job);
    (void)kelp_test_write(runs.folder.path, "long.yaml", long_job);
}

void runs_teardown(void)
{
    kelp_test_command_fini(&runs.train);
    kelp_test_command_fini(&runs.verb);
    kelp_test_folder_fini(&runs.folder);
}

void runs_stop(int signal_number)
{
    kelp_process_signal(runs.train.process, signal_number);
    (void)kelp_test_command_wait(&runs.train, STOP_MS);
}

void runs_verb(const char *const *args)
{
    kelp_test_command_fini(&runs.verb);
    kelp_test_command_run(&runs.verb, runs.folder.path, args, KELP_TEST_HANG_MS);
}

unsigned runs_each_line(const char *name, bool (*look)(const cJSON *line))
{
    char *lines = kelp_test_read(runs.folder.path, name, NULL);
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

bool runs_look_at_metrics(const cJSON *line)
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

struct kelp_etcd_server *runs_start_etcd(void)
{
    struct kelp_error error = {.text = ""};
    struct kelp_etcd_server *server = NULL;
    char data[256];
    char log[256];

    (void)snprintf(data, sizeof(data), "%s/etcd", runs.folder.path);
    (void)snprintf(log, sizeof(log), "%s/etcd.log", runs.folder.path);
    struct kelp_etcd_server_options options = {.data_folder = data, .log_path = log};
    ck_assert_int_eq(curl_global_init(CURL_GLOBAL_DEFAULT), CURLE_OK);
    ck_assert_msg(kelp_etcd_server_start(&options, &server, &error) == KELP_OK, "%s", error.text);
    return server;
}

double runs_step_now(void)
{
    runs_verb((const char *[]){"status", "r", "-o", "json", "--timeout", "60s", NULL});
    ck_assert_msg(runs.verb.exit_code == 0, "exit %d: %s", runs.verb.exit_code, runs.verb.err);
    cJSON *status = cJSON_Parse(runs.verb.out);
    ck_assert_ptr_nonnull(status);
    double step = kelp_test_number(status, "step");
    cJSON_Delete(status);
    return step;
}

void runs_await_training(void)
{
    double before = runs_step_now();
    KELP_TEST_AWAIT_FROM(&runs.train, runs_step_now() > before, "training stands still at step %g",
                         before);
}
