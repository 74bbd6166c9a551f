/*
 * How long training stands still when a process is lost: from the kill to the next completed step,
 * detection, restart and restore included, as the shard itself tells its steps. An MLP with 10 MB
 * of state (weights and Adam's slots), or DLinear on ETTh1 where ../shared/data has it; one shard,
 * two workers, a checkpoint every second.
 *
 *     recovery [--rounds N] [--etcd-down SECONDS] [--replicas 1|2] [--job mlp|etth1]
 *              [--only worker|shard|shard-silent|shard-hangs|shard-and-leader|coordinator|leader|
 *                      leader-hangs|etcd]
 *
 * With two replicas there are two shards, each the backup of the other. They are lost in turn, and
 * the other one tells its steps. No generation may be opened then, and no step computed again.
 * `shard-silent`: all its packets are dropped, in a network namespace, which needs root.
 *
 * `leader` and `leader-hangs` (SIGSTOP) measure until another coordinator says that training goes
 * on with all shards, whose maps it has taken then.
 *
 * Exit status 1 when a median or a worst time is over its limit.
 */
#include <curl/curl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "cli/chaos/chaos_net.h"
#include "cli/cluster/run_client.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/program/etcd_server.h"
#include "common/rpc/rpc.h"
#include "tests/lib/bench_suite.h"
#include "tests/lib/cluster/shard_look.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/shared_files.h"

#define ROUNDS_MAX 100
#define ROUNDS_EACH                                                                                \
    4 /* of one cluster: a child that keeps dying young is started later each time */
#define WORKERS     2 /* of job_text */
#define JOB         "bench-recovery"
#define LOOK_US     1000    /* between looks at the step */
#define LOOKS_CUT   20      /* looks from one cut to the next */
#define SETTLE_US   1500000 /* a standby that was started again hears the leader by then */
#define PATIENCE_MS 30000   /* nothing here takes so long in order */

/* Children that keep dying young are our doing here: the back-off is short, and ROUNDS_EACH. */
#define REST                                                                                       \
    "workers: 2, shards: 1}\n"                                                                     \
    "failure: {max_failures: -1, restart_backoff: 10ms}\n"                                         \
    "checkpoint: {interval: 1s}\n"

static const struct job {
    const char *name;
    const char *what;
    const char *text;
    const char *data; /* a file in the folder of data; NULL: none */
    bool alone;       /* also with one replica */
} jobs[] = {
    {"mlp", "an MLP with 10 MB of state",
     "name: " JOB "\nseed: 1\n"
     "model: {kind: mlp, hidden: [900, 800]}\n"
     "data: {kind: synthetic}\n"
     "train: {epochs: 100000, batch_size: 32, evaluate: false}\n"
     "cluster: {lanes: 2, " REST,
     NULL, true},
    {"etth1", "DLinear on ETTh1",
     "name: " JOB "\nseed: 2021\n"
     "model: {kind: dlinear}\n"
     "data: {kind: csv}\n"
     "train: {epochs: 100000, batch_size: 32, lr: 0.005, evaluate: false}\n"
     "cluster: {lanes: 8, " REST,
     "ett/ETTh1.csv", false},
};

static unsigned rounds = 20;
static unsigned etcd_down_s = 10;
static const char *only;
static const char *only_job;
static const struct job *job;
static unsigned replicas = 1;
static bool ports;                    /* at loopback, with certificates; else sockets */
static char seen_shard[] = "shard-0"; /* whose steps are looked at */
static bool over_limit;

static struct kelp_test_folder folder;
static struct kelp_etcd_server *etcd;
static struct kelp_test_command train;
static struct kelp_job_client *client;
static struct kelp_shard_look shard;
static bool cuts; /* packets can be dropped here */
static struct kelp_chaos_split split;
static pid_t cut_off; /* whose packets are dropped; 0: nobody's */

static double now_s(void)
{
    return 1e-6 * (double)kelp_clock_us();
}

/* ---- looking ----------------------------------------------------------------------------------
 */

static void find_shard(void)
{
    kelp_shard_look_find(&shard, client, seen_shard);
}

static bool look(struct kelp_shard_look_at *ret_look)
{
    return kelp_shard_look(&shard, ret_look);
}

/* The longest time without a new step from now on, seconds, over so long. */
static double longest_gap(double watch_s)
{
    double end = now_s() + watch_s;
    double last = now_s();
    double gap = 0;
    struct kelp_shard_look_at before = {0};
    struct kelp_shard_look_at seen;
    for (unsigned looks = 0; now_s() < end; looks++) {
        if (cut_off > 0 && looks % LOOKS_CUT == 0) {
            /* With what it has opened since; while it is started, it has nothing open. */
            kelp_status status = kelp_chaos_split_renew(&split, cut_off, NULL);
            ck_assert_int_eq(status, KELP_OK);
        }
        if (look(&seen) && (seen.step != before.step || seen.generation != before.generation)) {
            double now = now_s();
            gap = before.generation != 0 && now - last > gap ? now - last : gap;
            last = now;
            before = seen;
        }
        (void)usleep(LOOK_US);
    }
    return now_s() - last > gap ? now_s() - last : gap;
}

/* Is each partition backed up, and was training never sent back? */
static bool backed_up(const Kelp__V1__StatusReply *reply)
{
    size_t backups = 0;
    ck_assert_uint_eq(reply->generation, 1);
    ck_assert_uint_eq(reply->steps_recomputed, 0);
    for (size_t i = 0; i < reply->n_shards; i++) {
        backups += reply->shards[i]->backups;
    }
    return backups == reply->map->n_partitions;
}

/* Training goes on, led by a coordinator that answers, with all workers and backups, and a
 * checkpoint of this generation is there. */
static void await_order(void)
{
    double end = now_s() + PATIENCE_MS / 1000.0;
    bool good = false;
    while (!good) {
        Kelp__V1__StatusReply *reply = NULL;
        ck_assert_msg(now_s() < end, "training does not go on; kelp train said:\n%s",
                      kelp_test_command_peek(&train));
        if (kelp_job_client_status(client, 1000, &reply, NULL) == KELP_OK) {
            good = strcmp(reply->state, "running") == 0 && reply->n_workers == WORKERS &&
                   reply->checkpoint != NULL &&
                   reply->checkpoint->generation == reply->generation &&
                   (replicas == 1 || backed_up(reply));
            kelp_job_client_status_free(reply);
        }
        (void)usleep(20000);
    }
    find_shard();
}

static void kill_child(const char *program, const char *id)
{
    pid_t pid = kelp_test_command_find(&train, program, id);
    ck_assert_msg(pid > 0, "no %s %s runs", program, id);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
}

/* ---- what is measured -------------------------------------------------------------------------
 */

/* Either of them: the seats, and with them the lanes, move at each loss. A step that the dead
 * worker had its part in may be completed behind the kill, so the longest gap counts, not the next
 * step. */
static double lose_worker(void)
{
    static unsigned turn;
    kill_child("kelp-worker", turn++ % WORKERS == 0 ? "worker-0" : "worker-1");
    return longest_gap(2); /* the restart and its first lanes included */
}

/* Seconds from the kill to the first step that is completed after the restore. */
static double lose_shard(void)
{
    struct kelp_shard_look_at before;
    struct kelp_shard_look_at after = {0};
    struct kelp_shard_look_at first = {0};
    ck_assert(look(&before));
    kill_child("kelp-ps", "shard-0");
    double start = now_s();
    while (first.generation <= before.generation || after.step <= first.step) {
        ck_assert_msg(now_s() - start < PATIENCE_MS / 1000.0, "no step after the loss of a shard");
        (void)usleep(LOOK_US);
        if (!look(&after)) {
            find_shard();
        } else if (first.generation <= before.generation) {
            first = after;
        }
    }
    return now_s() - start;
}

/* One of the two shards, in turn; the other one is looked at. */
static pid_t next_victim(void)
{
    static unsigned turn;
    const char *victim = turn % 2 == 0 ? "shard-0" : "shard-1";
    seen_shard[sizeof(seen_shard) - 2] = turn++ % 2 == 0 ? '1' : '0';
    find_shard();
    pid_t pid = kelp_test_command_find(&train, "kelp-ps", victim);
    ck_assert_msg(pid > 0, "no %s runs", victim);
    return pid;
}

static double lose_replica_by(int number, double watch_s)
{
    pid_t pid = next_victim();
    ck_assert_int_eq(kill(pid, number), 0);
    double gap = longest_gap(watch_s);
    if (number == SIGSTOP) {
        (void)kill(pid, SIGKILL); /* unless the launcher has done so */
    }
    return gap;
}

static double lose_replica(void)
{
    return lose_replica_by(SIGKILL, 2); /* with the copies for the one that is started again */
}

static double stop_replica(void)
{
    return lose_replica_by(SIGSTOP, 4);
}

/* Nobody hears it, and it hears nobody, until it is killed. */
static double cut_off_replica(void)
{
    struct kelp_error error = {.text = ""};

    cut_off = next_victim();
    const double gap = longest_gap(4);
    (void)kill(cut_off, SIGKILL); /* unless the launcher has done so */
    cut_off = 0;
    ck_assert_msg(kelp_chaos_split_heal(&split, &error) == KELP_OK, "%s", error.text);
    return gap;
}

/* The name of who leads, by etcd; "": nobody. */
static void find_leader(char id[64])
{
    char *text = NULL;
    cJSON *json = NULL;
    id[0] = '\0';
    if (kelp_job_client_get(client, "coordinator", 1000, &text, NULL) == KELP_OK &&
        kelp_json_parse(text, strlen(text), &json, NULL) == KELP_OK &&
        kelp_json_string(json, "id", id, 64, NULL) != KELP_OK) {
        id[0] = '\0';
    }
    cJSON_Delete(json);
    free(text);
}

static double lose_coordinator(void)
{
    char leader[64];
    find_leader(leader);
    kill_child("kelp-coordinator", leader);
    return longest_gap(5); /* past the old leader's lease */
}

/* Does another one than that lead, and training goes on? It is asked for only once it is another,
 * since one that is stopped would let us wait. */
static bool another_leads(const char *before)
{
    Kelp__V1__StatusReply *reply = NULL;
    char now[64];
    find_leader(now);
    if (now[0] == '\0' || strcmp(now, before) == 0 ||
        kelp_job_client_status(client, 200, &reply, NULL) != KELP_OK) {
        return false;
    }
    bool good = strcmp(reply->state, "running") == 0 && reply->n_shards > 0;
    for (size_t i = 0; i < reply->n_shards; i++) {
        good = good && reply->shards[i]->connected;
    }
    kelp_job_client_status_free(reply);
    return good;
}

/* Both coordinators have been there for longer than it takes to hear one another. */
static double replace_leader(int number)
{
    char leader[64];
    find_leader(leader);
    pid_t pid = kelp_test_command_find(&train, "kelp-coordinator", leader);
    ck_assert_msg(pid > 0, "no leader runs");
    (void)usleep(SETTLE_US);
    double start = now_s();
    ck_assert_int_eq(kill(pid, number), 0);
    while (!another_leads(leader)) {
        ck_assert_msg(now_s() - start < PATIENCE_MS / 1000.0, "nobody leads");
        (void)usleep(LOOK_US);
    }
    double seconds = now_s() - start;
    if (number == SIGSTOP) {
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
    }
    return seconds;
}

static double lose_leader_and_replica(void)
{
    char leader[64];
    find_leader(leader);
    (void)usleep(SETTLE_US);
    kill_child("kelp-coordinator", leader);
    return lose_replica_by(SIGKILL, 4);
}

static double kill_leader(void)
{
    return replace_leader(SIGKILL);
}

static double stop_leader(void)
{
    return replace_leader(SIGSTOP);
}

static void start_etcd(uint16_t port)
{
    char data[256], log_path[256];
    struct kelp_error error;
    (void)snprintf(data, sizeof(data), "%s/etcd", folder.path);
    (void)snprintf(log_path, sizeof(log_path), "%s/etcd.log", folder.path);
    struct kelp_etcd_server_options options = {
        .data_folder = data, .log_path = log_path, .client_port = port};
    ck_assert_msg(kelp_etcd_server_start(&options, &etcd, &error) == KELP_OK, "%s", error.text);
}

static double lose_etcd(void)
{
    uint16_t port = kelp_etcd_server_port(etcd);
    kelp_etcd_server_stop(etcd, 0);
    etcd = NULL;
    double away = longest_gap(etcd_down_s);
    start_etcd(port);
    double back = longest_gap(5);
    return back > away ? back : away;
}

static const struct part {
    const char *name;
    const char *what;
    double (*lose)(void);
    double limit_s;    /* of the median */
    double worst_s;    /* of the worst; 0: none */
    unsigned replicas; /* 0: with any number */
    bool ports;        /* for packets that can be dropped */
} parts[] = {
    {"worker", "longest gap", lose_worker, 0.3, 0, 0, false},
    {"shard", "killed to next step", lose_shard, 1.5, 0, 1, false},
    {"shard", "longest gap", lose_replica, 0.2, 0.8, 2, false},
    {"shard-hangs", "longest gap", stop_replica, 1.5, 0, 2, false},
    {"shard-and-leader", "longest gap", lose_leader_and_replica, 2.0, 0, 2, false},
    {"coordinator", "longest gap", lose_coordinator, 0.1, 0, 0, false},
    {"leader", "killed to next leader", kill_leader, 1.0, 0, 0, false},
    {"leader-hangs", "stopped to next leader", stop_leader, 1.0, 0, 0, false},
    {"etcd", "longest gap", lose_etcd, 0.1, 0, 0, false},
    {"shard-silent", "longest gap", cut_off_replica, 1.5, 0, 2, true},
};

static void start_train(void)
{
    char data[KELP_TEST_PATH_MAX];
    char path[KELP_TEST_PATH_MAX + 16];
    const char *args[24] = {"train", "job.yaml", "--run", "run", "--coordinators", "2", "--shards",
                            replicas == 2 ? "2" : "1", "--set",
                            replicas == 2 ? "cluster.replicas=2" : "cluster.replicas=1",
                            /* With ports, an etcd of the run's own, which stays at its socket. */
                            ports ? "--listen" : "--etcd",
                            ports ? "127.0.0.1" : kelp_etcd_server_url(etcd)};
    size_t count = 12;

    if (job->data != NULL && kelp_test_data_file(job->data, data)) {
        (void)snprintf(path, sizeof(path), "data.path=%s", data);
        args[count++] = "--set";
        args[count++] = path;
    }
    kelp_test_command_start(&train, folder.path, args);
}

/* Once the run can be asked. */
static void open_client(void)
{
    struct kelp_run_cluster cluster;
    struct kelp_error error = {.text = ""};
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/run", folder.path);
    KELP_TEST_AWAIT_FROM(&train, kelp_run_client_open(path, &client, &error) == KELP_OK, "%s",
                         error.text);
    ck_assert_int_eq(kelp_run_cluster_read(path, &cluster, &error), KELP_OK);
    kelp_shard_look_init(&shard, cluster.certs);
}

static void set_up(void)
{
    kelp_test_folder_init(&folder);
    start_etcd(0);
    (void)kelp_test_write(folder.path, "job.yaml", job->text);
    start_train();
    open_client();
}

static void tear_down(void)
{
    kelp_process_signal(train.process, SIGINT);
    (void)kelp_test_command_wait(&train, PATIENCE_MS);
    kelp_test_command_fini(&train);
    kelp_shard_look_fini(&shard);
    kelp_job_client_close(client);
    client = NULL;
    kelp_etcd_server_stop(etcd, 1000);
    kelp_test_folder_fini(&folder);
}

static void measure(const struct part *part)
{
    double seconds[ROUNDS_MAX];

    for (unsigned i = 0; i < rounds; i++) {
        if (i > 0 && i % ROUNDS_EACH == 0) {
            tear_down();
            set_up();
        }
        await_order();
        seconds[i] = part->lose();
    }
    await_order(); /* after the last one too */
    const double median = kelp_bench_median(seconds, rounds);
    const double worst = seconds[rounds - 1];
    const bool over = median > part->limit_s || (part->worst_s > 0 && worst > part->worst_s);
    over_limit = over_limit || over;
    printf("%-16s %-22s %7u %8.3f s %8.3f s %8.3f s%s\n", part->name, part->what, rounds, median,
           worst, part->limit_s, over ? "  OVER" : "");
    (void)fflush(stdout);
}

static bool applies(const struct part *part)
{
    return (part->replicas == 0 || part->replicas == replicas) &&
           (only == NULL || strcmp(only, part->name) == 0);
}

/* Those that need ports, or those that do not, on one cluster. */
static void measure_parts(bool with_ports)
{
    size_t count = 0;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(parts); i++) {
        count += applies(&parts[i]) && parts[i].ports == with_ports ? 1 : 0;
    }
    if (count == 0) {
        return;
    }
    ports = with_ports;
    set_up();
    await_order();
    printf("%s, %u replicas, 2 workers, a checkpoint every second%s; longest gap between\n"
           "steps while nothing is lost: %.3f s\n",
           job->what, replicas, ports ? ", ports with TLS" : "", longest_gap(5));
    printf("%-16s %-22s %7s %10s %10s %10s\n", "LOST", "MEASURE", "ROUNDS", "MEDIAN", "WORST",
           "LIMIT");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(parts); i++) {
        if (applies(&parts[i]) && parts[i].ports == with_ports) {
            measure(&parts[i]);
        }
    }
    printf("\n");
    tear_down();
}

static void measure_job(void)
{
    char path[KELP_TEST_PATH_MAX];

    if (job->data != NULL && !kelp_test_data_file(job->data, path)) {
        printf("skipped: %s, there is no %s\n", job->what, path);
        return;
    }
    measure_parts(false);
    if (cuts) {
        measure_parts(true);
    }
}

/* The spares that run `kelp train` are made for tests: they report by Check, so they need one. */
START_TEST(recovery)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(jobs); i++) {
        job = &jobs[i];
        if ((replicas == 2 || job->alone) &&
            (only_job == NULL || strcmp(only_job, job->name) == 0)) {
            measure_job();
        }
    }
}
END_TEST

static bool parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0) {
            rounds = (unsigned)strtoul(argv[i + 1], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--etcd-down") == 0) {
            etcd_down_s = (unsigned)strtoul(argv[i + 1], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--replicas") == 0) {
            replicas = (unsigned)strtoul(argv[i + 1], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--job") == 0) {
            only_job = argv[i + 1];
        } else if (i + 1 < argc && strcmp(argv[i], "--only") == 0) {
            only = argv[i + 1];
        } else {
            return false;
        }
    }
    return rounds >= 1 && rounds <= ROUNDS_MAX && replicas >= 1 && replicas <= 2;
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        (void)fprintf(stderr,
                      "usage: recovery [--rounds 1..%d] [--etcd-down SECONDS] [--replicas 1|2] "
                      "[--job mlp|etth1] [--only LOST]\n",
                      ROUNDS_MAX);
        return 2;
    }
    (void)setenv("KELP_BIN", KELP_BIN_DIR, 0);
    (void)setenv("KELP_SOURCE", KELP_SOURCE_DIR, 0);
    struct kelp_error error;
    cuts = replicas == 2 && kelp_chaos_net_enter(&error) == KELP_OK;
    if (replicas == 2 && !cuts) {
        printf("skipped: shard-silent, %s\n", error.text);
    }
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
    kelp_rpc_global_init();
    int failed = kelp_bench_run("recovery", &recovery, 1);
    kelp_rpc_global_fini();
    curl_global_cleanup();
    return failed == 0 && !over_limit ? 0 : 1;
}
