/*
 * A run in the background, seen and stopped by others: kelp ls, logs, status --watch, stop.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cluster/run_client.h"
#include "common/base/files.h"
#include "common/rpc/rpc.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_terminal.h"
#include "tests/lib/etcd/etcd_fixture.h"
#include "tests/lib/suite.h"

/* Longer than any test. */
static const char job_text[] = "name: long\nseed: 3\n"
                               "model: {kind: dlinear}\n"
                               "data: {kind: synthetic, rows: 3000, split: [2000, 400, 400],\n"
                               "       seq_len: 48, pred_len: 24}\n"
                               "train: {epochs: 100000, batch_size: 32}\n"
                               "cluster: {workers: 2, shards: 1, lanes: 4}\n"
                               "checkpoint: {digest_steps: 5, interval: 0s}\n";

static struct kelp_test_folder folder;
static struct kelp_test_command train;

static void setup(void)
{
    kelp_test_folder_init(&folder);
    (void)kelp_test_write(folder.path, "job.yaml", job_text);
    memset(&train, 0, sizeof(train));
}

static void teardown(void)
{
    kelp_test_command_fini(&train);
    kelp_test_folder_fini(&folder);
}

static void says(const char *const *args, int exit_code, const char *text)
{
    kelp_test_command_says(folder.path, args, exit_code, text);
}

static void start(struct kelp_test_command *command, const char *const *args)
{
    memset(command, 0, sizeof(*command));
    kelp_test_command_start(command, folder.path, args);
}

static long bytes_of(const char *path)
{
    FILE *file = fopen(path, "re");
    long bytes = 0;

    if (file) {
        (void)fseek(file, 0, SEEK_END);
        bytes = ftell(file);
        (void)fclose(file);
    }
    return bytes;
}

/* Training has begun, with this key set: there are digests on record. */
static void start_training_of(const char *key)
{
    char path[300];

    start(&train, (const char *[]){"train", "job.yaml", "--run", "runs/one", "--set", key, NULL});
    (void)snprintf(path, sizeof(path), "%s/runs/one/digests.jsonl", folder.path);
    KELP_TEST_AWAIT_FROM(&train, bytes_of(path) > 0, "training does not begin");
}

static void start_training(void)
{
    start_training_of("train.lr=0.001");
}

/* Lines of daemons begin with their time; each is no older than the one before. */
static unsigned check_order(char *text)
{
    char before[24] = "";
    unsigned count = 0;

    for (char *line = text; *line;) {
        size_t length = strcspn(line, "\n");
        ck_assert_msg(length > 23 && line[10] == 'T', "no time: %.*s", (int)length, line);
        ck_assert_msg(strncmp(before, line, 23) <= 0, "%s before %.*s", before, (int)length, line);
        memcpy(before, line, 23);
        before[23] = '\0';
        count++;
        line += length + (line[length] != '\0');
    }
    return count;
}

KELP_CASE("control", .timeout_s = 2 * KELP_TEST_HANG_S, .setup = setup, .teardown = teardown)

/* Others see the run while it goes on; who follows it comes to an end with it; a stop pauses it, in
 * order, and says how to go on. */
KELP_TEST(seen_and_stopped)
{
    struct kelp_test_command followers[3];

    start_training();
    says((const char *[]){"ls", NULL}, 0, "running");
    says((const char *[]){"ls", "runs/one", "-o", "csv", NULL}, 0, "one,runs/one,long,running,");
    start(&followers[0], (const char *[]){"logs", "-f", NULL});
    start(&followers[1], (const char *[]){"status", "one", "--watch", "-o", "json", NULL});
    start(&followers[2], (const char *[]){"events", "-f", NULL});
    KELP_TEST_AWAIT_FROM(&followers[0], bytes_of(followers[0].out_path) > 0, "no line followed");
    KELP_TEST_AWAIT_FROM(&followers[1], bytes_of(followers[1].out_path) > 0, "nothing watched");
    KELP_TEST_AWAIT_FROM(&followers[2], bytes_of(followers[2].out_path) > 0, "no event followed");
    says((const char *[]){"stop", NULL}, 0, "state      paused at step ");
    (void)kelp_test_command_wait(&train, KELP_TEST_HANG_MS);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(followers); i++) {
        (void)kelp_test_command_wait(&followers[i], KELP_TEST_HANG_MS);
        ck_assert_msg(followers[i].exit_code == 0, "%s", followers[i].err);
    }
    ck_assert_ptr_nonnull(strstr(followers[1].out, "\"left_s\":"));
    ck_assert_ptr_nonnull(strstr(followers[1].out, "\"paused\""));
    ck_assert_ptr_nonnull(strstr(followers[2].out, " worker-joined      worker-0\n"));
    ck_assert_ptr_nonnull(strstr(followers[2].out, " state              paused step "));
    says((const char *[]){"events", "one", "-o", "json", NULL}, 0, "\"event\":\"loaded\"");

    /* Of the end: every line, the newest ones, one process, a kind of them. */
    struct kelp_test_command logs;
    memset(&logs, 0, sizeof(logs));
    kelp_test_command_run(&logs, folder.path, (const char *[]){"logs", NULL}, KELP_TEST_HANG_MS);
    ck_assert_uint_gt(check_order(logs.out), 5);
    ck_assert_uint_eq(strlen(logs.out), strlen(followers[0].out)); /* in some order */
    kelp_test_command_fini(&logs);
    memset(&logs, 0, sizeof(logs));
    kelp_test_command_run(&logs, folder.path,
                          (const char *[]){"logs", "worker", "--lines", "3", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_uint_eq(check_order(logs.out), 3);
    ck_assert_ptr_null(strstr(logs.out, "ps/shard"));
    kelp_test_command_fini(&logs);
    says((const char *[]){"logs", "etcd", "-f", NULL}, 0, "\"ts\":");
    says((const char *[]){"stop", NULL}, 0, "continue   kelp train --resume --run runs/one");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(followers); i++) {
        kelp_test_command_fini(&followers[i]);
    }
}

static unsigned count_of(const char *text, const char *part)
{
    unsigned count = 0;

    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part)) {
        count++;
    }
    return count;
}

/* What `kelp status --watch` leaves on a small terminal, once it has drawn its table so often and
 * then was ended. Owned (free()). */
static char *watch(unsigned tables, bool by_keys, int exit_status)
{
    const struct kelp_test_terminal_options small = {.lines = 9, .columns = 40};
    struct kelp_test_terminal terminal;

    kelp_test_terminal_start(&terminal, folder.path, (const char *[]){"status", "--watch", NULL},
                             &small);
    kelp_test_terminal_await(&terminal, "\r\n...\r\n", tables); /* cut to the terminal */
    if (by_keys) {
        kelp_test_terminal_type(&terminal, KELP_TEST_CTRL_C);
    } else {
        says((const char *[]){"stop", NULL}, 0, "state      paused at step ");
    }
    ck_assert_int_eq(kelp_test_terminal_end(&terminal), exit_status);
    char *seen = kelp_test_terminal_seen(&terminal);
    kelp_test_terminal_fini(&terminal);
    return seen;
}

/* As somebody does who reaches the coordinator. */
static void ask_for_pause(const char *run_path)
{
    struct kelp_job_client *client = NULL;
    struct kelp_error error = {.text = ""};
    uint64_t serial = 0;

    kelp_rpc_global_init();
    kelp_status status = kelp_run_client_open(run_path, &client, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    status = kelp_job_client_checkpoint(client, true, 10000, &serial, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    kelp_job_client_close(client);
    kelp_rpc_global_fini();
}

static bool has_worker(const char *run_path, const char *id)
{
    struct kelp_job_client *client = NULL;
    Kelp__V1__StatusReply *reply = NULL;
    bool found = false;

    kelp_rpc_global_init();
    ck_assert_int_eq(kelp_run_client_open(run_path, &client, NULL), KELP_OK);
    if (kelp_job_client_status(client, 1000, &reply, NULL) == KELP_OK) {
        for (size_t i = 0; i < reply->n_workers && !found; i++) {
            found = strcmp(reply->workers[i]->id, id) == 0;
        }
        kelp_job_client_status_free(reply);
    }
    kelp_job_client_close(client);
    kelp_rpc_global_fini();
    return found;
}

/* Lines of `kelp train` that tell of such a pause. */
static unsigned pauses_told(void)
{
    size_t bytes = 0;
    char *text = kelp_test_read("", train.err_path, &bytes);
    unsigned told = count_of(text, "by a request that did not come from this command");

    free(text);
    return told;
}

/* A pause that `kelp train` did not ask for is told, and does not end the run. Twice, and with all
 * workers. */
KELP_TEST(paused_by_somebody_else)
{
    char run_path[300];
    char path[340];

    start_training();
    (void)snprintf(run_path, sizeof(run_path), "%s/runs/one", folder.path);
    (void)snprintf(path, sizeof(path), "%s/digests.jsonl", run_path);
    for (unsigned i = 1; i <= 2; i++) {
        ask_for_pause(run_path);
        KELP_TEST_AWAIT_FROM(&train, pauses_told() == i, "the pause is not told");
        long before = bytes_of(path);
        KELP_TEST_AWAIT_FROM(&train, bytes_of(path) > before + 2000, "the run does not go on");
    }
    KELP_TEST_AWAIT_FROM(&train, has_worker(run_path, "worker-1"), "worker-1 is not back");
    says((const char *[]){"status", "one", NULL}, 0, "worker-1");
    says((const char *[]){"logs", "coordinator-0", "--run", "one", NULL}, 0,
         "pause asked for peer=");
    says((const char *[]){"stop", NULL}, 0, "state      paused at step ");
}

/* On a terminal, however small, each table is drawn over the one before. Ctrl-C ends the look and
 * not the run; with the run, what it came to takes the place of the table. */
KELP_TEST(watched_on_a_terminal)
{
    start_training();
    char *seen = watch(3, true, 128 + SIGINT);
    /* Ctrl-C takes what is on its way to the terminal: the last table need not be there. */
    ck_assert_msg(count_of(seen, "run        runs/one") <= 1, "%s", seen);
    free(seen);
    says((const char *[]){"ls", NULL}, 0, "running");
    seen = watch(3, false, 0);
    ck_assert_msg(count_of(seen, "run        runs/one") == 1, "%s", seen);
    ck_assert_msg(count_of(seen, "state  ") == 0, "%s", seen);
    ck_assert_msg(count_of(seen, "long: paused after ") == 1, "%s", seen);
    free(seen);
    (void)kelp_test_command_wait(&train, KELP_TEST_HANG_MS);
}

/* A run that was killed: its etcd goes when that is asked for, and the run goes on without it. */
KELP_TEST(killed_and_cleared)
{
    const char *const clear[] = {"gc", "--leftovers", "--yes", NULL};

    start_training();
    says(clear, 0, "there is nothing to remove"); /* it goes on */
    kelp_test_command_kill_all(&train);
    says((const char *[]){"gc", "--leftovers", "--dry-run", NULL}, 0, "runs/one/etcd");
    says((const char *[]){"gc", "--leftovers", "--yes", "-o", "json", NULL}, 0,
         "\"removed\":true}]");
    says((const char *[]){"gc", "--leftovers", "-o", "json", NULL}, 0, "{\"items\":[]}");
    says((const char *[]){"train", "--resume", "--detach", "--run", "one", NULL}, 0,
         "training has started"); /* a name, as other verbs take it */
    says((const char *[]){"stop", NULL}, 0, "run        runs/one");
}

/* --now does not wait for a checkpoint, and is not a kill: the run says what it came to. */
KELP_TEST(stopped_at_once)
{
    start_training();
    says((const char *[]){"stop", "one", "--now", NULL}, 0, "state      stopped at step ");
    (void)kelp_test_command_wait(&train, KELP_TEST_HANG_MS);
}

/* In the background: the folder is printed once training has started, and the run goes on without
 * the command; its own words are in its log. */
KELP_TEST(detached)
{
    kelp_test_command_run(
        &train, folder.path,
        (const char *[]){"train", "--detach", "job.yaml", "--run", "runs/back", NULL},
        KELP_TEST_HANG_MS);
    ck_assert_msg(train.exit_code == 0, "%s", train.err);
    ck_assert_str_eq(train.out, "runs/back\n");
    ck_assert_ptr_nonnull(strstr(train.err, "training has started"));
    says((const char *[]){"ls", NULL}, 0, "running");
    says((const char *[]){"stop", "back", NULL}, 0, "state      paused at step ");
    says((const char *[]){"logs", "train", "--run", "back", NULL}, 0, "paused at step ");
}

/* A start that fails has the exit status and the reason of the run, before and after it has a
 * folder. */
KELP_TEST(detached_in_vain)
{
    (void)kelp_test_write(folder.path, "bad.yaml", "name: bad\n");
    kelp_test_command_run(&train, folder.path,
                          (const char *[]){"train", "--detach", "bad.yaml", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_int_eq(train.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(train.err, "bad.yaml"));
    ck_assert_str_eq(train.out, "");
    kelp_test_command_fini(&train);
    memset(&train, 0, sizeof(train));
    kelp_test_command_run(&train, folder.path,
                          (const char *[]){"train", "--detach", "job.yaml", "--run", "r",
                                           "--etcd-program", "/bin/true", NULL},
                          KELP_TEST_HANG_MS);
    ck_assert_int_eq(train.exit_code, 3);
    ck_assert_ptr_nonnull(strstr(train.err, "etcd"));
    ck_assert_str_eq(train.out, "");
    says((const char *[]){"ls", "r", NULL}, 0, "failed");
}

/* A port that takes connections and says nothing, as an etcd that is stopped. */
static int open_silent(char url[64])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);

    int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(door, 0);
    ck_assert_int_eq(bind(door, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(door, 64), 0);
    ck_assert_int_eq(getsockname(door, (struct sockaddr *)&address, &length), 0);
    (void)snprintf(url, 64, "http://127.0.0.1:%u", ntohs(address.sin_port));
    return door;
}

/* One line within the time that was given, also where that would be long. */
static void check_unreachable(const char *const *args)
{
    static const char line[] = "kelp: job 'long' cannot be reached: etcd at ";
    struct kelp_test_command verb = {.process = NULL};

    kelp_test_command_run(&verb, folder.path, args, KELP_TEST_HANG_MS / 2);
    ck_assert_msg(verb.exit_code == 3, "%s: exit %d: %s", args[0], verb.exit_code, verb.err);
    ck_assert_msg(strncmp(verb.err, line, sizeof(line) - 1) == 0, "%s: %s", args[0], verb.err);
    kelp_test_command_fini(&verb);
}

KELP_TEST(a_silent_etcd)
{
    char url[64];
    int door = open_silent(url);

    check_unreachable((const char *[]){"status", "long", "--etcd", url, "--timeout", "1s", NULL});
    check_unreachable((const char *[]){"stop", "long", "--etcd", url, "--timeout", "1s", NULL});
    check_unreachable((const char *[]){"drain", "shard-0", "long", "--etcd", url, NULL});
    check_unreachable((const char *[]){"wait", "long", "--etcd", url, NULL});
    (void)close(door);
}

#if !defined(__SANITIZE_THREAD__) /* it holds a handler back while a read blocks */
/* Ctrl-C while it is waited for the start of training ends the run too: before it has a folder, and
 * afterwards. Nothing goes on behind. */
KELP_TEST(detached_and_interrupted)
{
    static const char *const begins[][12] = {
        {"train", "--detach", "-", NULL}, /* waits for its job */
        {"train", "--detach", "job.yaml", "--run", "r", "--etcd-program", "./slow", NULL}};
    const struct kelp_test_terminal_options usual = {.lines = 24, .columns = 80};

    ck_assert_int_eq(
        chmod(kelp_test_write(folder.path, "slow", "#!/bin/sh\nexec sleep 1000\n"), 0755), 0);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(begins); i++) {
        struct kelp_test_terminal terminal;
        pid_t pids[8];
        kelp_test_terminal_start(&terminal, folder.path, begins[i], &usual);
        if (i == 0) {
            KELP_TEST_AWAIT(kelp_test_command_processes(&terminal.command, pids, 8) == 2,
                            "the run does not begin");
        } else {
            kelp_test_terminal_await(&terminal, "run r", 1);
            KELP_TEST_AWAIT(kelp_test_command_find(&terminal.command, "sleep", "1000") > 0,
                            "no etcd is started");
        }
        kelp_test_terminal_type(&terminal, KELP_TEST_CTRL_C);
        ck_assert_int_eq(kelp_test_terminal_end(&terminal), 128 + SIGINT);
        /* A machine that is very slow ends it at once. */
        ck_assert_msg(strstr(terminal.written, i == 0 ? "before the run began" : "ended at once") ||
                          (i == 1 && strstr(terminal.written, "stopped at step 0")),
                      "%s", terminal.written);
        kelp_test_command_gone(&terminal.command);
        kelp_test_terminal_fini(&terminal);
    }
}
#endif

/* Under nohup a run goes on when its terminal closes. */
KELP_TEST(outlives_its_terminal)
{
    const struct kelp_test_terminal_options nohup = {.lines = 24, .columns = 80, .nohup = true};
    struct kelp_test_terminal terminal;
    char path[300];

    kelp_test_terminal_start(&terminal, folder.path,
                             (const char *[]){"train", "job.yaml", "--run", "runs/one", NULL},
                             &nohup);
    (void)snprintf(path, sizeof(path), "%s/runs/one/digests.jsonl", folder.path);
    KELP_TEST_AWAIT(bytes_of(path) > 0, "training does not begin");
    kelp_test_terminal_close(&terminal);
    long before = bytes_of(path);
    KELP_TEST_AWAIT(bytes_of(path) > before + 20000, "training does not go on");
    says((const char *[]){"stop", NULL}, 0, "ends once a checkpoint is written");
    kelp_test_terminal_fini(&terminal);
}

/* A job's name on a shared etcd is free again once nobody uses the job and kelp free was told so.
 */
KELP_TEST(name_freed)
{
    struct etcd_fixture etcd;

    etcd_fixture_start(&etcd);
    const char *const free_job[] = {"free", "long", "--etcd", etcd.url, NULL};
    const char *const begin[] = {"train",  "--detach", "job.yaml", "--etcd",
                                 etcd.url, "--run",    "r",        NULL};
    const char *const other[] = {"train",  "--detach", "job.yaml", "--etcd",
                                 etcd.url, "--run",    "s",        NULL};
    says(free_job, 2, "has no job 'long'; kelp submit puts one there");
    says(begin, 0, "training has started");
    says(free_job, 2, "job 'long' is in use");
    says((const char *[]){"stop", "r", NULL}, 0, "paused");
    says(other, 2, "long");
    says((const char *[]){"free", "long", "--etcd", etcd.url, "--dry-run", NULL}, 0,
         "state      paused at step ");
    says(free_job, 0, "lost ");
    says(other, 0, "training has started");
    says((const char *[]){"stop", "s", NULL}, 0, "paused");
    etcd_fixture_stop(&etcd);
}

/* A run whose folder was removed on the way is not called done. */
KELP_TEST(folder_removed)
{
    char path[300];

    start_training_of("train.max_steps=15000");
    (void)snprintf(path, sizeof(path), "%s/runs/one", folder.path);
    ck_assert_int_eq(kelp_files_remove(path, NULL), KELP_OK);
    (void)kelp_test_command_wait(&train, KELP_TEST_HANG_MS);
    ck_assert_int_eq(train.exit_code, 1);
    ck_assert_msg(strstr(train.err, "was removed or replaced while the run went on") != NULL, "%s",
                  train.err);
}

/* Mistakes are one line. */
KELP_TEST(mistakes)
{
    static const char *const cases[][4] = {
        {"stop", "nowhere", NULL},          {"logs", "worker-7", NULL},
        {"logs", "--run", "nowhere", NULL}, {"ls", "nowhere", NULL},
        {"events", "nowhere", NULL},        {"events", "-o", "csv", NULL},
        {"ls", "--sort", "zebra", NULL},    {"gc", NULL},
        {"gc", "--keep", "1", "nowhere"},   {"metrics", "nowhere", NULL}};

    (void)kelp_test_write(folder.path, "short.yaml", job_text);
    kelp_test_command_run(
        &train, folder.path,
        (const char *[]){"train", "short.yaml", "--set", "train.epochs=1", "--no-plots", NULL},
        KELP_TEST_HANG_MS);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        struct kelp_test_command command;
        memset(&command, 0, sizeof(command));
        const char *args[] = {cases[i][0], cases[i][1], cases[i][2], cases[i][3], NULL};
        kelp_test_command_run(&command, folder.path, args, KELP_TEST_HANG_MS);
        ck_assert_msg(command.exit_code == 2, "%s: exit %d: %s", cases[i][0], command.exit_code,
                      command.err);
        ck_assert_str_eq(command.out, "");
        ck_assert_ptr_eq(strchr(command.err, '\n'), strrchr(command.err, '\n'));
        kelp_test_command_fini(&command);
    }
}

/* The last metric of the run is among its events (test_event_file reads them in full). */
static void expect_events(const char *run)
{
    char path[300];
    bool found = false;

    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, run);
    DIR *stream = opendir(path);
    ck_assert_ptr_nonnull(stream);
    for (struct dirent *entry = readdir(stream); entry; entry = readdir(stream)) {
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            size_t bytes = 0;
            char *text = kelp_test_read(path, entry->d_name, &bytes);
            found = memmem(text, bytes, "test/mse", 8) != NULL;
            free(text);
        }
    }
    (void)closedir(stream);
    ck_assert(found);
}

/* Every line of the metrics as a row; old runs go after a yes, and only then. */
KELP_TEST(metrics_and_gc)
{
    static const char *const names[] = {"a", "b"};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        char run[16];
        (void)snprintf(run, sizeof(run), "runs/%s", names[i]);
        says((const char *[]){"train", "job.yaml", "--run", run, "--set", "train.epochs=1", "--set",
                              "metrics.tensorboard=true", "--no-plots", NULL},
             0, "done");
        expect_events(run);
    }
    says((const char *[]){"metrics", "a", NULL}, 0, "version,step,epoch,");
    says((const char *[]){"metrics", "a", "-o", "json", NULL}, 0, "\"val/loss\":");
    says((const char *[]){"metrics", "a", "--out", "a.csv", NULL}, 0, "");
    free(kelp_test_read(folder.path, "a.csv", NULL));
    says((const char *[]){"gc", "--keep", "1", NULL}, 1, "nothing is removed");
    says((const char *[]){"ls", "runs/a", NULL}, 0, "done");
    says((const char *[]){"gc", "--keep", "1", "--yes", NULL}, 0, "runs/a");
    says((const char *[]){"ls", "runs/b", NULL}, 0, "done");
    says((const char *[]){"ls", "runs/a", NULL}, 2, "runs/a");
    says((const char *[]){"gc", "--keep", "0", "--yes", NULL}, 0, "there is nothing to remove");
}

/* Shards that are there, if each of them leads partitions, in the first generation; else 0. */
static size_t shards_used(void)
{
    char run_path[300];
    struct kelp_job_client *client = NULL;
    Kelp__V1__StatusReply *reply = NULL;
    size_t used = 0;
    size_t there = 0;

    (void)snprintf(run_path, sizeof(run_path), "%s/runs/one", folder.path);
    kelp_rpc_global_init();
    if (kelp_run_client_open(run_path, &client, NULL) == KELP_OK &&
        kelp_job_client_status(client, 1000, &reply, NULL) == KELP_OK) {
        ck_assert_uint_le(reply->generation, 1);
        there = reply->n_shards;
        for (size_t i = 0; i < there; i++) {
            used += reply->shards[i]->partitions > 0 ? 1 : 0;
        }
    }
    kelp_job_client_status_free(reply);
    kelp_job_client_close(client);
    kelp_rpc_global_fini();
    return used == there ? used : 0;
}

/* Workers that the leader has lanes for, and training goes on; 0 while nobody answers. */
static size_t workers_there(void)
{
    char run_path[300];
    struct kelp_job_client *client = NULL;
    Kelp__V1__StatusReply *reply = NULL;
    size_t count = 0;

    (void)snprintf(run_path, sizeof(run_path), "%s/runs/one", folder.path);
    kelp_rpc_global_init();
    if (kelp_run_client_open(run_path, &client, NULL) == KELP_OK &&
        kelp_job_client_status(client, 1000, &reply, NULL) == KELP_OK) {
        for (size_t i = 0; i < reply->n_workers; i++) {
            count += reply->workers[i]->lane_count > 0 ? 1 : 0;
        }
        count = strcmp(reply->state, "running") == 0 ? count : 0;
    }
    kelp_job_client_status_free(reply);
    kelp_job_client_close(client);
    kelp_rpc_global_fini();
    return count;
}

/* Workers come and go as asked for; what cannot be is refused, and changes nothing. The size is
 * kept over a resume, unless the job has another one. */
KELP_TEST(scaled)
{
    start_training();
    says((const char *[]){"scale", "--workers", "3", NULL}, 0, "workers    3:3");
    KELP_TEST_AWAIT_FROM(&train, workers_there() == 3, "no third worker");
    says((const char *[]){"scale", "--shards", "3", NULL}, 0, "shards     3");
    KELP_TEST_AWAIT_FROM(&train, shards_used() == 3, "partitions do not move");
    says((const char *[]){"scale", "--shards", "1", NULL}, 0, "shards     1");
    KELP_TEST_AWAIT_FROM(&train, shards_used() == 1, "partitions do not come back");
    says((const char *[]){"scale", "--shards", "2", NULL}, 0, "shards     2");
    says((const char *[]){"scale", "--shards", "0", NULL}, 2, "--shards: '0' is not");
    says((const char *[]){"scale", "one", "--workers", "5", NULL}, 2, "the job has 4 lanes");
    says((const char *[]){"scale", "--workers", "0", NULL}, 2, "--workers: '0' is not");
    says((const char *[]){"scale", NULL}, 2,
         "give the new number of processes with --workers or --shards");
    says((const char *[]){"scale", "--workers", "1:4", NULL}, 0, "workers    1:4");
    KELP_TEST_AWAIT_FROM(&train, workers_there() == 4, "no fourth worker");
    says((const char *[]){"scale", "--workers", "1", NULL}, 0, "workers    1:1");
    KELP_TEST_AWAIT_FROM(&train, workers_there() == 1, "workers stay");
    says((const char *[]){"stop", NULL}, 0, "state      paused at step ");
    says((const char *[]){"train", "--resume", "--detach", "--run", "one", NULL}, 0,
         "training has started");
    KELP_TEST_AWAIT_FROM(&train, workers_there() == 1, "the size is forgotten");
    says((const char *[]){"stop", NULL}, 0, "state      paused at step ");
    says((const char *[]){"train", "--resume", "--detach", "--run", "one", "--workers", "3", NULL},
         0, "training has started");
    KELP_TEST_AWAIT_FROM(&train, workers_there() == 3, "the job's own size counts for nothing");
    says((const char *[]){"stop", NULL}, 0, "state      paused at step ");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they need address space */
/* Under a limit on address space, in KiB. */
static void says_within(const char *limit, const char *command, int exit_code, const char *text)
{
    char program[512], script[800];
    const char *const argv[] = {"sh", "-c", script, NULL};
    struct kelp_process *process = NULL;
    struct kelp_error error = {.text = ""};
    int wait_status = -1;

    kelp_test_program("kelp", program, sizeof(program));
    (void)snprintf(script, sizeof(script), "ulimit -v %s; exec %s %s 2>said", limit, program,
                   command);
    const struct kelp_process_options options = {.argv = argv,
                                                 .folder = folder.path,
                                                 .stdout_fd = KELP_PROCESS_INHERIT,
                                                 .stderr_fd = KELP_PROCESS_INHERIT};
    ck_assert_msg(kelp_process_start(&options, &process, &error) == KELP_OK, "%s", error.text);
    ck_assert_int_eq(kelp_process_wait(process, KELP_TEST_HANG_MS, &wait_status), KELP_OK);
    kelp_process_destroy(process);
    char *said = kelp_test_read(folder.path, "said", NULL);
    ck_assert_msg(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == exit_code &&
                      strstr(said, text),
                  "status %d: %s", wait_status, said);
    free(said);
}

/* It ends, with a line, also where threads of libraries find no memory; etcd is not even tried. */
KELP_TEST(little_address_space)
{
    says_within("200000", "ls", 0, "there are no runs");
    says_within("200000", "train job.yaml", 1, "OpenBLAS needs 128 MiB more of address space");
    says_within("4000000", "train job.yaml", 2,
                "the limit on address space is 4000000 KiB, and etcd needs 12582912");
}
#endif
