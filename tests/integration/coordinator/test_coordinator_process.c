/* Real kelp-coordinator processes with a real etcd; workers and shards are scripted. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/base/clock.h"
#include "common/training/control.h"
#include "tests/lib/cluster/coordinator_peers.h"
#include "tests/lib/suite.h"

static struct peers peers;
static struct peer_shard shards[2];
static struct peer_worker workers[3];

static void set_up(const char *detect)
{
    peers_start(&peers, detect);
    memset(shards, 0, sizeof(shards));
    memset(workers, 0, sizeof(workers));
    shards[0].id = "shard-0";
    shards[1].id = "shard-1";
    workers[0].id = "worker-0";
    workers[1].id = "worker-1";
    workers[2].id = "worker-2";
}

/* Whoever is silent for so long is lost: never since a machine is slow. */
static void setup(void)
{
    set_up("2m");
}

static void setup_impatient(void)
{
    set_up("1s");
}

static void teardown(void)
{
    for (int i = 0; i < 3; i++) {
        if (workers[i].timer != NULL) {
            peer_worker_stop(&workers[i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        if (shards[i].server != NULL) {
            peer_shard_stop(&shards[i]);
        }
    }
    peers_stop(&peers);
}

/* ---- what tests wait for ----------------------------------------------------------------------
 */

static bool both_run(void *user)
{
    const uint64_t *generation = user;
    return workers[0].generation == *generation && workers[1].generation == *generation &&
           workers[0].assigned && workers[1].assigned &&
           workers[0].lane_count + workers[1].lane_count == 8;
}

static void start_all(void)
{
    uint64_t generation = 1;
    peers_coordinator(&peers, 0, NULL);
    for (int i = 0; i < 2; i++) {
        peer_shard_start(&peers, &shards[i]);
        peer_worker_start(&peers, &workers[i]);
    }
    peers_wait(&peers, both_run, &generation, "both workers to have map and lanes");
}

static bool has_all_lanes(void *user)
{
    const struct peer_worker *worker = user;
    return worker->lane_first == 0 && worker->lane_count == 8;
}

static bool was_refused(void *user)
{
    const struct peer_worker *worker = user;
    return worker->status != KELP_OK && worker->stream == NULL;
}

static bool leaves(void *user)
{
    const struct peer_worker *worker = user;
    return worker->leave;
}

/* The leader's Status, once it says what is wanted. */
struct asked {
    Kelp__V1__StatusReply *reply; /* the latest; owned */
    bool (*wanted)(const Kelp__V1__StatusReply *reply);
};

static bool status_says(void *user)
{
    struct asked *asked = user;
    char address[256];
    if (asked->reply != NULL) {
        kelp__v1__status_reply__free_unpacked(asked->reply, NULL);
    }
    peers_leader(&peers, address);
    asked->reply = address[0] == '\0' ? NULL : peers_status(&peers, address);
    return asked->reply != NULL && (asked->wanted == NULL || asked->wanted(asked->reply));
}

static Kelp__V1__StatusReply *status_when(bool (*wanted)(const Kelp__V1__StatusReply *reply),
                                          const char *what)
{
    struct asked asked = {.reply = NULL, .wanted = wanted};
    peers_wait(&peers, status_says, &asked, what);
    return asked.reply;
}

static Kelp__V1__StatusReply *status(void)
{
    return status_when(NULL, "a leader that answers Status");
}

static void wait_for_end(uint32_t index, int expected)
{
    int wait_status = 0;
    ck_assert_int_eq(kelp_process_wait(peers.coordinators[index], PEERS_HANG_MS, &wait_status),
                     KELP_OK);
    ck_assert(WIFEXITED(wait_status));
    ck_assert_int_eq(WEXITSTATUS(wait_status), expected);
}

/* ---- tests ------------------------------------------------------------------------------------
 */

static bool lanes_are_counted(const Kelp__V1__StatusReply *reply)
{
    return reply->n_workers == 2 && reply->workers[0]->lanes_computed == 3;
}

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("cluster", .timeout_s = 60, .setup = setup, .teardown = teardown)

/* From nothing to running: plan, map and state stand in etcd, the lanes are shared, Status tells.
 */
KELP_TEST(starts_up)
{
    start_all();
    char *plan = peers_get(&peers, "plan");
    char *expected = peers_plan(1);
    ck_assert_str_eq(plan, expected);
    free(plan);
    free(expected);
    char *map = peers_get(&peers, "map");
    ck_assert_ptr_nonnull(strstr(map, "\"generation\":1,\"restore_version\":0,"));
    free(map);
    ck_assert_uint_eq(shards[0].generation, 1);
    ck_assert_uint_eq(workers[0].shards, 2);
    ck_assert_uint_eq(workers[0].primary_incarnation, shards[0].incarnation);
    Kelp__V1__StatusReply *reply = status_when(lanes_are_counted, "the lanes that were computed");
    ck_assert_str_eq(reply->state, "running");
    ck_assert_str_eq(reply->reason, "");
    ck_assert_str_eq(reply->job, "demo");
    ck_assert_str_eq(reply->leader, "coordinator-0");
    ck_assert_uint_eq(reply->n_workers, 2);
    ck_assert_uint_eq(reply->workers[0]->lane_count, 4);
    ck_assert_uint_eq(reply->workers[0]->lanes_computed, 3);
    ck_assert_uint_eq(reply->n_shards, 2);
    ck_assert_uint_eq(reply->shards[1]->partitions, 8);
    ck_assert(reply->shards[1]->connected);
    ck_assert_uint_eq(reply->map->n_partitions, 16);
    ck_assert_uint_gt(reply->total_steps, 0);
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    kelp_process_signal(peers.coordinators[0], SIGTERM);
    wait_for_end(0, 0);
}

static bool one_is_missing(const Kelp__V1__StatusReply *reply)
{
    return strcmp(reply->reason, "waiting for 1 of 2 workers") == 0;
}

static bool beats(void *user)
{
    const struct peer_worker *worker = user;
    return worker->heartbeats >= 5;
}

/* Until all are there, Status says for whom it waits. */
KELP_TEST(says_whom_it_waits_for)
{
    peers_coordinator(&peers, 0, NULL);
    peer_worker_start(&peers, &workers[0]);
    Kelp__V1__StatusReply *reply = status_when(one_is_missing, "the missing worker to be named");
    ck_assert_str_eq(reply->state, "starting");
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    peers_wait(&peers, beats, &workers[0], "heartbeats");
    ck_assert_uint_eq(workers[0].maps, 0);
}

static void expect_one_loss(void)
{
    peers_wait(&peers, has_all_lanes, &workers[0], "worker-0 to have all lanes");
    Kelp__V1__StatusReply *reply = status();
    ck_assert_uint_eq(reply->worker_losses, 1);
    ck_assert_str_eq(reply->state, "running");
    kelp__v1__status_reply__free_unpacked(reply, NULL);
}

/* A worker whose stream breaks is replaced at once: failure.detect is longer than a test waits. */
KELP_TEST(lost_worker)
{
    start_all();
    peer_worker_stop(&workers[1]);
    workers[1].timer = NULL;
    expect_one_loss();
}

KELP_CASE("impatient", .timeout_s = 60, .setup = setup_impatient, .teardown = teardown)

/* One that is silent is replaced after failure.detect. */
KELP_TEST(silent_worker)
{
    start_all();
    uint64_t begun = kelp_clock_ms();
    workers[1].mute = true;
    workers[1].stay = true;
    expect_one_loss();
    ck_assert_uint_ge(kelp_clock_ms() - begun, 800);
}

static bool three_share(void *user)
{
    (void)user;
    return workers[0].lane_count + workers[1].lane_count + workers[2].lane_count == 8 &&
           workers[2].generation == 1 && workers[2].lane_count > 0;
}

KELP_CASE("cluster", .timeout_s = 60, .setup = setup, .teardown = teardown)

/* A worker that joins later gets lanes and the map without anybody being restarted. */
KELP_TEST(late_worker)
{
    start_all();
    peer_worker_start(&peers, &workers[2]);
    peers_wait(&peers, three_share, NULL, "three workers to share the lanes");
    ck_assert_uint_eq(workers[0].maps, 1);
}

/* Another data set, another job, another specification: one clear line each, and the others go on.
 */
KELP_LOOP_TEST(strangers_are_refused, 0, 3)
{
    start_all();
    char *plan = peers_plan(2);
    const char *expected[] = {"data fingerprint", "belongs to job other",
                              "another specification of job demo"};
    if (_i == 0) {
        workers[2].plan = plan;
    } else if (_i == 1) {
        workers[2].job = "other";
    } else {
        workers[2].spec_digest = 12345;
    }
    peer_worker_start(&peers, &workers[2]);
    peers_wait(&peers, was_refused, &workers[2], "the refusal");
    ck_assert_int_eq(workers[2].status, KELP_ERR_MISMATCH);
    ck_assert_msg(strstr(workers[2].error, expected[_i]) != NULL, "%s", workers[2].error);
    ck_assert(!workers[2].assigned);
    ck_assert_uint_eq(workers[0].lane_count, 4);
    free(plan);
}

/* Bytes that are no protobuf, and a plan that is none, end that stream alone. */
KELP_TEST(garbage_is_refused)
{
    start_all();
    workers[2].plan = "{\"samples\":";
    peer_worker_start(&peers, &workers[2]);
    peers_wait(&peers, was_refused, &workers[2], "the refusal");
    ck_assert_ptr_nonnull(strstr(workers[2].error, "the worker's plan"));
    peer_worker_stop(&workers[2]);
    workers[2].timer = NULL;
    struct kelp_rpc_message *message = kelp_rpc_message_create();
    ck_assert_int_eq(kelp_rpc_message_copy(message, "\xff\xff\xff\xff\xff", 5), KELP_OK);
    ck_assert_int_eq(kelp_rpc_stream_send(workers[1].stream, message), KELP_OK);
    peers_wait(&peers, was_refused, &workers[1], "the refusal");
    ck_assert_int_eq(workers[1].status, KELP_ERR_FORMAT);
    peers_wait(&peers, has_all_lanes, &workers[0], "worker-0 to have all lanes");
}

static bool share_after_replacement(void *user)
{
    (void)user;
    return workers[2].lane_count == 4 && workers[0].lane_count == 4;
}

/* A second process with the same id takes the place of the first, which is told to end. */
KELP_TEST(same_id_replaces)
{
    start_all();
    workers[2].id = "worker-1";
    peer_worker_start(&peers, &workers[2]);
    peers_wait(&peers, was_refused, &workers[1], "the older one's end");
    ck_assert_int_eq(workers[1].status, KELP_ERR_EXISTS);
    peers_wait(&peers, share_after_replacement, NULL, "the newer one to have its lanes");
    Kelp__V1__StatusReply *reply = status();
    ck_assert_uint_eq(reply->n_workers, 2);
    ck_assert_uint_eq(reply->worker_losses, 0);
    kelp__v1__status_reply__free_unpacked(reply, NULL);
}

static bool stream_ended(void *user)
{
    const struct peer_shard *shard = user;
    return shard->refused > 0;
}

static bool shard_is_missing(const Kelp__V1__StatusReply *reply)
{
    return strcmp(reply->reason, "waiting for 1 of 2 shards") == 0;
}

/* A shard of another job is not taken. */
KELP_TEST(strange_shard_is_refused)
{
    peers_coordinator(&peers, 0, NULL);
    shards[1].job = "other";
    for (int i = 0; i < 2; i++) {
        peer_shard_start(&peers, &shards[i]);
        peer_worker_start(&peers, &workers[i]);
    }
    peers_wait(&peers, stream_ended, &shards[1], "the shard's stream to be closed");
    Kelp__V1__StatusReply *reply = status_when(shard_is_missing, "the missing shard to be told");
    ck_assert(peers_logged(&peers, 0, "shard-1 belongs to job other"));
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    ck_assert_uint_eq(shards[1].generation, 0);
}

/* A shard that is started again is a new generation with the new incarnation. */
KELP_TEST(restarted_shard)
{
    uint64_t generation = 2;
    start_all();
    peer_shard_stop(&shards[0]);
    peer_shard_start(&peers, &shards[0]);
    peers_wait(&peers, both_run, &generation, "the workers to have generation 2");
    ck_assert_uint_eq(workers[0].primary_incarnation, shards[0].incarnation);
    ck_assert_uint_eq(shards[1].generation, 2);
    Kelp__V1__StatusReply *reply = status();
    ck_assert_uint_eq(reply->shard_losses, 1);
    ck_assert_uint_eq(reply->map->partitions[0]->map_epoch, 2);
    ck_assert_uint_eq(reply->map->partitions[15]->map_epoch, 1);
    kelp__v1__status_reply__free_unpacked(reply, NULL);
}

/* A shard that stays away: after failure.shard_wait its partitions go to the other one. */
KELP_TEST(lost_shard)
{
    uint64_t generation = 2;
    start_all();
    peer_shard_stop(&shards[1]);
    peer_shard_unregister(&shards[1]);
    peers_wait(&peers, both_run, &generation, "the workers to have generation 2");
    ck_assert_uint_eq(workers[0].shards, 1);
    ck_assert_uint_eq(shards[0].generation, 2);
}

static bool standby_leads(void *user)
{
    uint32_t *index = user;
    return peers_logged(&peers, *index, "leading address");
}

static bool stands_by(void *user)
{
    uint32_t *index = user;
    return peers_logged(&peers, *index, "standing by leader=");
}

static bool rejoined(void *user)
{
    (void)user;
    return workers[0].stream != NULL && workers[1].stream != NULL && workers[0].maps == 2 &&
           workers[1].maps == 2 && workers[0].lane_count + workers[1].lane_count == 8;
}

/* The leader dies: the standby leads, keeps map and generation, and restores nothing. */
KELP_TEST(standby_takes_over)
{
    uint32_t standby = 1;
    start_all();
    peers_coordinator(&peers, 1, NULL);
    peers_wait(&peers, stands_by, &standby, "the second one to stand by");
    ck_assert(!peers_logged(&peers, 1, "leading address"));
    char *before = peers_get(&peers, "map");
    peers_coordinator_kill(&peers, 0);
    peers_wait(&peers, standby_leads, &standby, "the standby to lead");
    peers_wait(&peers, rejoined, NULL, "the workers to be back with map and lanes");
    char *after = peers_get(&peers, "map");
    ck_assert_str_eq(before, after);
    ck_assert_uint_eq(workers[0].generation, 1);
    ck_assert_uint_eq(shards[0].generation, 1);
    Kelp__V1__StatusReply *reply = status();
    ck_assert_str_eq(reply->leader, "coordinator-1");
    ck_assert_str_eq(reply->state, "running");
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    free(before);
    free(after);
}

/* A leader that is told to stop resigns before it ends: the standby need not wait for the lease. */
KELP_TEST(leader_resigns)
{
    uint32_t standby = 1;
    char before[256], after[256];
    start_all();
    peers_coordinator(&peers, 1, NULL);
    peers_wait(&peers, stands_by, &standby, "the second one to stand by");
    peers_leader(&peers, before);
    kelp_process_signal(peers.coordinators[0], SIGTERM);
    wait_for_end(0, 0);
    peers_leader(&peers, after);
    ck_assert_str_ne(before, after);
    peers_wait(&peers, standby_leads, &standby, "the standby to lead");
}

static bool led_again(void *user)
{
    (void)user;
    return peers_logged(&peers, 0, "going on leading generation=1");
}

static bool has_beaten(void *user)
{
    const uint64_t *wanted = user;
    return workers[0].heartbeats >= *wanted;
}

/* etcd is away for longer than the lease: heartbeats and assignments go on, nobody is lost, and the
 * leader goes on when etcd is back. */
KELP_TEST(etcd_is_away)
{
    start_all();
    etcd_fixture_kill(&peers.etcd);
    uint64_t wanted = workers[0].heartbeats + 30;
    peers_run(&peers, 5000);
    peers_wait(&peers, has_beaten, &wanted, "30 heartbeats");
    ck_assert_uint_eq(workers[0].closes, 0);
    peer_worker_stop(&workers[1]);
    workers[1].timer = NULL;
    peers_wait(&peers, has_all_lanes, &workers[0], "worker-0 to have all lanes");
    etcd_fixture_restart(&peers.etcd);
    peers_wait(&peers, led_again, NULL, "the leader to be elected again");
    ck_assert_uint_eq(workers[0].closes, 0);
    ck_assert_uint_eq(workers[0].maps, 1);
    ck_assert_uint_eq(shards[0].generation, 1);
}

/* ---- records ----------------------------------------------------------------------------------
 */

struct entry {
    Kelp__V1__Record record;
    Kelp__V1__ControlWord word;
    Kelp__V1__Measures metrics;
};
static double measured[KELP_METRIC_COUNT] = {0.25};

static void fill(struct entry *entry, uint64_t version, uint32_t kind, char *digest)
{
    kelp__v1__record__init(&entry->record);
    kelp__v1__control_word__init(&entry->word);
    entry->word.version = version;
    entry->word.step = version;
    entry->word.kind = kind;
    entry->word.lr = 0.5;
    entry->record.word = &entry->word;
    kelp__v1__measures__init(&entry->metrics);
    entry->metrics.present = 1;
    entry->metrics.n_value = KELP_METRIC_COUNT;
    entry->metrics.value = (double *)measured;
    entry->record.measures = &entry->metrics;
    entry->record.digest = digest;
    entry->record.epoch_end = kind == KELP_STEP_TRAIN;
    entry->record.epoch_loss = 0.125;
}

static char digest_a[] = "0123456789abcdef0123456789abcdef";
static char digest_b[] = "fedcba9876543210fedcba9876543210";

static bool on_file(void *user)
{
    const char *text = user;
    char *digests = peers_file(&peers, "digests.jsonl");
    bool found = strstr(digests, text) != NULL;
    free(digests);
    return found;
}

/* Records reach the files once and in order; after the last one the state is done, and workers
 * leave. The coordinator stays for Status. */
KELP_TEST(job_ends)
{
    struct entry entries[2];
    Kelp__V1__Record *records[2] = {&entries[0].record, &entries[1].record};
    start_all();
    fill(&entries[0], 1, KELP_STEP_TRAIN, digest_a);
    fill(&entries[1], 2, KELP_STEP_FINISH, digest_b);
    peer_shard_records(&shards[0], records, 1);
    peer_shard_records(&shards[0], records, 2); /* the first one again */
    for (int i = 0; i < 2; i++) {
        peers_wait(&peers, leaves, &workers[i], "the worker to be told to leave");
    }
    char *state = peers_get(&peers, "state");
    ck_assert_ptr_nonnull(strstr(state, "\"state\":\"done\""));
    char *metrics = peers_file(&peers, "metrics.jsonl");
    ck_assert_str_eq(metrics,
                     "{\"version\":1,\"step\":2,\"epoch\":1,\"train/loss\":0.125,\"lr\":0.5}\n");
    char *digests = peers_file(&peers, "digests.jsonl");
    ck_assert_str_eq(digests, "{\"version\":1,\"step\":1,\"epoch\":0,"
                              "\"digest\":\"0123456789abcdef0123456789abcdef\"}\n"
                              "{\"version\":2,\"step\":2,\"epoch\":1,"
                              "\"digest\":\"fedcba9876543210fedcba9876543210\"}\n");
    Kelp__V1__StatusReply *reply = status();
    ck_assert_str_eq(reply->state, "done");
    ck_assert_str_eq(reply->digest, digest_b);
    ck_assert_double_eq(reply->epoch_loss, 0.125);
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    free(state);
    free(metrics);
    free(digests);
}

/* The whole schedule, as the shards would report it. */
static void finish_job(void)
{
    struct entry entry;
    Kelp__V1__Record *records[1] = {&entry.record};
    start_all();
    fill(&entry, 2, KELP_STEP_FINISH, digest_b);
    peer_shard_records(&shards[0], records, 1);
    for (int i = 0; i < 2; i++) {
        peers_wait(&peers, leaves, &workers[i], "the worker to be told to leave");
    }
}

/* A leader that comes after the end keeps it, as long as the shards that hold the model live. */
KELP_TEST(end_is_final)
{
    finish_job();
    peers_coordinator_kill(&peers, 0);
    peers_coordinator(&peers, 1, NULL);
    peer_worker_start(&peers, &workers[2]);
    peers_wait(&peers, leaves, &workers[2], "the late worker to be told to leave");
    Kelp__V1__StatusReply *reply = status();
    ck_assert_str_eq(reply->leader, "coordinator-1");
    ck_assert_str_eq(reply->state, "done");
    ck_assert_uint_eq(reply->generation, 1);
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    char *state = peers_get(&peers, "state");
    ck_assert_ptr_nonnull(strstr(state, "\"state\":\"done\""));
    free(state);
}

static bool second_generation(void *user)
{
    (void)user;
    return workers[2].generation == 2;
}

/* When they are gone, so is the model: the job is computed again, to the same bits. */
KELP_TEST(end_without_model)
{
    finish_job();
    peers_coordinator_kill(&peers, 0);
    for (int i = 0; i < 2; i++) {
        peer_shard_stop(&shards[i]);
        peer_shard_start(&peers, &shards[i]);
    }
    peers_coordinator(&peers, 1, NULL);
    peer_worker_start(&peers, &workers[2]);
    peers_wait(&peers, second_generation, NULL, "the new worker to have generation 2");
    ck_assert(!workers[2].leave);
    Kelp__V1__StatusReply *reply = status();
    ck_assert_str_eq(reply->state, "running");
    kelp__v1__status_reply__free_unpacked(reply, NULL);
}

/* The same version with another digest after a restore: the job fails and says which. */
KELP_TEST(other_bits_fail_the_job)
{
    struct entry entry;
    Kelp__V1__Record *records[1] = {&entry.record};
    uint64_t generation = 2;
    start_all();
    fill(&entry, 1, KELP_STEP_TRAIN, digest_a);
    peer_shard_records(&shards[0], records, 1);
    peers_wait(&peers, on_file, digest_a, "the digest to be on file");
    peer_shard_stop(&shards[0]);
    peer_shard_start(&peers, &shards[0]);
    peers_wait(&peers, both_run, &generation, "the workers to have generation 2");
    fill(&entry, 1, KELP_STEP_TRAIN, digest_b);
    peer_shard_records(&shards[0], records, 1);
    peers_wait(&peers, leaves, &workers[0], "the worker to be told to leave");
    Kelp__V1__StatusReply *reply = status();
    ck_assert_str_eq(reply->state, "failed");
    ck_assert_ptr_nonnull(strstr(reply->reason, "the same step gave other bits"));
    kelp__v1__status_reply__free_unpacked(reply, NULL);
}

/* A shard that cannot go on (a gradient that is not finite) fails the job with its words. */
KELP_TEST(shard_reports_failure)
{
    start_all();
    shards[1].status = KELP_ERR_INVALID;
    (void)snprintf(shards[1].error, sizeof(shards[1].error), "gradient of step 7 is not finite");
    peers_wait(&peers, leaves, &workers[0], "the worker to be told to leave");
    char *state = peers_get(&peers, "state");
    ck_assert_ptr_nonnull(strstr(state, "\"state\":\"failed\""));
    ck_assert_ptr_nonnull(strstr(state, "shard-1: gradient of step 7 is not finite"));
    free(state);
}

/* ---- mistakes of whoever starts it ------------------------------------------------------------
 */

/* One line that names the address, and exit code 2. */
KELP_TEST(port_in_use)
{
    char listen[64];
    peer_shard_start(&peers, &shards[0]);
    (void)snprintf(listen, sizeof(listen), "127.0.0.1:%u", kelp_rpc_server_port(shards[0].server));
    peers_coordinator(&peers, 0, listen);
    wait_for_end(0, 2);
    char *log = peers_file(&peers, "coordinator-0.log");
    ck_assert_ptr_nonnull(strstr(log, listen));
    ck_assert_ptr_nonnull(strstr(log, "in use"));
    ck_assert_ptr_eq(strchr(log, '\n'), log + strlen(log) - 1);
    free(log);
}

/* A specification that is none: the line of the job file's reader, and exit code 2. */
KELP_TEST(bad_spec)
{
    struct kelp_error error;
    ck_assert_int_eq(
        kelp_etcd_put(peers.client, "/kelp/demo/spec", "name: demo\nlanes: 8\n", 0, 5000, &error),
        KELP_OK);
    peers_coordinator(&peers, 0, NULL);
    wait_for_end(0, 2);
    ck_assert(peers_logged(&peers, 0, "/kelp/demo/spec:2"));
}
