/* Records and the end of the job with real kelp-coordinator processes and a real etcd; workers and
 * shards are scripted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/faultdisk/faultdisk.h"
#include "common/training/control.h"
#include "tests/lib/cluster/coordinator_demo.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("cluster", .timeout_s = 60, .setup = demo_setup, .teardown = demo_teardown)

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
    char *digests = peers_file(&demo.peers, "digests.jsonl");
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
    demo_start();
    fill(&entries[0], 1, KELP_STEP_TRAIN, digest_a);
    fill(&entries[1], 2, KELP_STEP_FINISH, digest_b);
    peer_shard_records(&demo.shards[0], records, 1);
    peer_shard_records(&demo.shards[0], records, 2); /* the first one again */
    for (int i = 0; i < 2; i++) {
        peers_wait(&demo.peers, demo_leaves, &demo.workers[i], "the worker to be told to leave");
    }
    char *state = peers_get(&demo.peers, "state");
    ck_assert_ptr_nonnull(strstr(state, "\"state\":\"done\""));
    char *metrics = peers_file(&demo.peers, "metrics.jsonl");
    ck_assert_str_eq(metrics,
                     "{\"version\":1,\"step\":2,\"epoch\":1,\"train/loss\":0.125,\"lr\":0.5}\n");
    char *digests = peers_file(&demo.peers, "digests.jsonl");
    ck_assert_str_eq(digests, "{\"version\":1,\"step\":1,\"epoch\":0,"
                              "\"digest\":\"0123456789abcdef0123456789abcdef\"}\n"
                              "{\"version\":2,\"step\":2,\"epoch\":1,"
                              "\"digest\":\"fedcba9876543210fedcba9876543210\"}\n");
    Kelp__V1__StatusReply *reply = demo_status();
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
    demo_start();
    fill(&entry, 2, KELP_STEP_FINISH, digest_b);
    peer_shard_records(&demo.shards[0], records, 1);
    for (int i = 0; i < 2; i++) {
        peers_wait(&demo.peers, demo_leaves, &demo.workers[i], "the worker to be told to leave");
    }
}

static bool shard_heard_hello(void *before)
{
    return demo.shards[0].hellos > *(const uint32_t *)before;
}

static bool has_digest_a(const Kelp__V1__StatusReply *reply)
{
    return strcmp(reply->digest, digest_a) == 0 && strcmp(reply->state, "starting") != 0;
}

/* A leader that comes after the end keeps it, as long as the shards that hold the model live. It
 * says so once it has heard what the job came to: a shard sends all records, from the first. */
KELP_TEST(end_is_final)
{
    struct entry entries[2];
    Kelp__V1__Record *records[2] = {&entries[0].record, &entries[1].record};
    finish_job();
    peers_coordinator_kill(&demo.peers, 0);
    uint32_t hellos = demo.shards[0].hellos;
    peers_coordinator(&demo.peers, 1, NULL);
    peers_wait(&demo.peers, shard_heard_hello, &hellos, "the new leader's stream");
    fill(&entries[0], 1, KELP_STEP_TRAIN, digest_a);
    fill(&entries[1], 2, KELP_STEP_FINISH, digest_b);
    peer_shard_records(&demo.shards[0], records, 1);
    Kelp__V1__StatusReply *early =
        demo_status_when(has_digest_a, "the first record, and the map loaded");
    ck_assert_str_eq(early->state, "running");
    kelp__v1__status_reply__free_unpacked(early, NULL);
    peer_shard_records(&demo.shards[0], &records[1], 1);
    peer_worker_start(&demo.peers, &demo.workers[2]);
    peers_wait(&demo.peers, demo_leaves, &demo.workers[2], "the late worker to be told to leave");
    Kelp__V1__StatusReply *reply = demo_status();
    ck_assert_str_eq(reply->leader, "coordinator-1");
    ck_assert_str_eq(reply->state, "done");
    ck_assert_str_eq(reply->digest, digest_b);
    ck_assert_uint_eq(reply->generation, 1);
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    char *state = peers_get(&demo.peers, "state");
    ck_assert_ptr_nonnull(strstr(state, "\"state\":\"done\""));
    free(state);
}

static bool second_generation(void *user)
{
    (void)user;
    return demo.workers[2].generation == 2;
}

/* When they are gone, so is the model: the job is computed again, to the same bits. */
KELP_TEST(end_without_model)
{
    finish_job();
    peers_coordinator_kill(&demo.peers, 0);
    for (int i = 0; i < 2; i++) {
        peer_shard_stop(&demo.shards[i]);
        peer_shard_start(&demo.peers, &demo.shards[i]);
    }
    peers_coordinator(&demo.peers, 1, NULL);
    peer_worker_start(&demo.peers, &demo.workers[2]);
    peers_wait(&demo.peers, second_generation, NULL, "the new worker to have generation 2");
    ck_assert(!demo.workers[2].leave);
    Kelp__V1__StatusReply *reply = demo_status();
    ck_assert_str_eq(reply->state, "running");
    kelp__v1__status_reply__free_unpacked(reply, NULL);
}

/* The same version with another digest after a restore: the job fails and says which. */
KELP_TEST(other_bits_fail_the_job)
{
    struct entry entry;
    Kelp__V1__Record *records[1] = {&entry.record};
    uint64_t generation = 2;
    demo_start();
    fill(&entry, 1, KELP_STEP_TRAIN, digest_a);
    peer_shard_records(&demo.shards[0], records, 1);
    peers_wait(&demo.peers, on_file, digest_a, "the digest to be on file");
    peer_shard_stop(&demo.shards[0]);
    peer_shard_start(&demo.peers, &demo.shards[0]);
    peers_wait(&demo.peers, demo_both_run, &generation, "the workers to have generation 2");
    fill(&entry, 1, KELP_STEP_TRAIN, digest_b);
    peer_shard_records(&demo.shards[0], records, 1);
    peers_wait(&demo.peers, demo_leaves, &demo.workers[0], "the worker to be told to leave");
    Kelp__V1__StatusReply *reply = demo_status();
    ck_assert_str_eq(reply->state, "failed");
    ck_assert_ptr_nonnull(
        strstr(reply->reason, "the same step gave different bits; kelp verify --replay tells"));
    kelp__v1__status_reply__free_unpacked(reply, NULL);
}

/* A shard that cannot go on (a gradient that is not finite) fails the job with its words. */
KELP_TEST(shard_reports_failure)
{
    demo_start();
    demo.shards[1].status = KELP_ERR_INVALID;
    (void)snprintf(demo.shards[1].error, sizeof(demo.shards[1].error),
                   "gradient of step 7 is not finite");
    peers_wait(&demo.peers, demo_leaves, &demo.workers[0], "the worker to be told to leave");
    char *state = peers_get(&demo.peers, "state");
    ck_assert_ptr_nonnull(strstr(state, "\"state\":\"failed\""));
    ck_assert_ptr_nonnull(strstr(state, "shard-1: gradient of step 7 is not finite"));
    free(state);
}

/* ---- a disk that hangs ---------------------------------------------------------------------- */

static struct kelp_faultdisk *disk;

static void put_environment(const char *entry)
{
    char name[32];
    const char *equals = strchr(entry, '=');
    (void)snprintf(name, sizeof(name), "%.*s", (int)(equals - entry), entry);
    ck_assert_int_eq(setenv(name, equals + 1, 1), 0);
}

/* Of the coordinator's files metrics.jsonl alone is on that disk: its log goes on. */
static void setup_disk(void)
{
    struct kelp_faultdisk_environment environment;
    struct kelp_error error = {.text = ""};
    char library[512], control[128], root[128];
    const char *bin = getenv("KELP_BIN");
    demo_setup();
    (void)snprintf(library, sizeof(library), "%s/kelp-faultdisk.so",
                   bin ? bin : "build/release/bin");
    (void)snprintf(control, sizeof(control), "%s/control", demo.peers.folder);
    (void)snprintf(root, sizeof(root), "%s/metrics.jsonl", demo.peers.folder);
    (void)kelp_test_write(demo.peers.folder, "metrics.jsonl", "");
    kelp_status status = kelp_faultdisk_open(control, &disk, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    const struct kelp_faultdisk_paths paths = {
        .library = library, .control = control, .root = root};
    status = kelp_faultdisk_environment(&paths, &environment, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    put_environment(environment.preload);
    put_environment(environment.control);
    put_environment(environment.root);
}

static void set_disk(enum kelp_faultdisk_mode mode)
{
    kelp_faultdisk_set(disk, &(struct kelp_faultdisk_fault){.mode = mode, .slow_ms = 600000});
}

static void teardown_disk(void)
{
    set_disk(KELP_FAULTDISK_OK);
    demo_teardown();
    kelp_faultdisk_close(disk);
    (void)unsetenv("LD_PRELOAD");
}

static bool disk_is_hit(void *user)
{
    (void)user;
    return kelp_faultdisk_hits(disk) > 0;
}

static bool metrics_on_file(void *user)
{
    (void)user;
    char *metrics = peers_file(&demo.peers, "metrics.jsonl");
    bool found = strstr(metrics, "\"version\":1,") != NULL;
    free(metrics);
    return found;
}

KELP_CASE("disk", .timeout_s = 60, .setup = setup_disk, .teardown = teardown_disk)

/* While a write of the run's records hangs, a lost shard is replaced and Status answers. The job is
 * done only once its last record is on file. */
KELP_TEST(disk_hangs)
{
    struct entry entries[2];
    Kelp__V1__Record *records[2] = {&entries[0].record, &entries[1].record};
    uint64_t generation = 2;
    demo_start();
    set_disk(KELP_FAULTDISK_SLOW);
    fill(&entries[0], 1, KELP_STEP_TRAIN, digest_a);
    fill(&entries[1], 2, KELP_STEP_FINISH, digest_b);
    peer_shard_records(&demo.shards[0], records, 1);
    peers_wait(&demo.peers, disk_is_hit, NULL, "the disk to hang");
    peer_shard_stop(&demo.shards[1]);
    peer_shard_start(&demo.peers, &demo.shards[1]);
    peers_wait(&demo.peers, demo_both_run, &generation, "the workers to have generation 2");
    peer_shard_records(&demo.shards[0], records, 2);
    Kelp__V1__StatusReply *reply = demo_status();
    ck_assert_str_eq(reply->state, "running");
    ck_assert_uint_eq(reply->generation, 2);
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    ck_assert(!metrics_on_file(NULL));
    ck_assert(!demo.workers[0].leave);
    set_disk(KELP_FAULTDISK_OK);
    peers_wait(&demo.peers, metrics_on_file, NULL, "the record to be on file");
    peers_wait(&demo.peers, demo_leaves, &demo.workers[0], "the worker to be told to leave");
}
