/*
 * Well-formed messages that mean anything, to real daemons, by each role: the daemons live, stay
 * small, go on answering, and end in order.
 *
 *     KELP_FUZZ_MESSAGES=1000000 test_semantic_fuzz    (an hour)      KELP_SEED=7: another sequence
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/lib/attack/speaker.h"
#include "tests/lib/cluster/coordinator_demo.h"
#include "tests/lib/cluster/shard_worker.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"

#define ELEMENTS    5000 /* four partitions, the last one shorter */
#define SAMPLES     1600
#define MESSAGES    3000
#define BLOCK       50 /* messages between two looks at the daemon */
#define RSS_MAX_KIB (200L << 10)
#define TIMEOUT_S   7200 /* for an hour by hand */
#define ANSWER_MS   30000

static unsigned message_count(void)
{
    const char *text = getenv("KELP_FUZZ_MESSAGES");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    unsigned few = MESSAGES / 4;
#else
    unsigned few = MESSAGES;
#endif

    return text ? (unsigned)strtoul(text, NULL, 10) : few;
}

static uint64_t seed(uint64_t offset)
{
    int given = kelp_suite_seed();
    return (given >= 0 ? (uint64_t)given : 1) * 1000 + offset;
}

/* The most memory that a process has had; 0 when it is gone. */
static long peak_kib(pid_t pid)
{
    char path[64], line[256];
    long kib = 0;

    (void)snprintf(path, sizeof(path), "/proc/%ld/status", (long)pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file) && sscanf(line, "VmHWM: %ld", &kib) != 1) {
    }
    if (file) {
        (void)fclose(file);
    }
    return kib;
}

static void expect_small(struct kelp_process *process)
{
    long kib = peak_kib(kelp_process_pid(process));

    (void)printf("most memory: %ld KiB\n", kib);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    ck_assert_int_lt(kib, RSS_MAX_KIB);
#endif
}

static void expect_answers(const char *address, const char *path)
{
    const struct kelp_http2_target target = {.address = address};
    struct kelp_http2 *client = kelp_http2_open(&target);
    uint32_t stream = kelp_http2_call(client, path);

    (void)kelp_http2_send(client, stream, NULL, 0, 0);
    kelp_http2_finish(client, stream);
    kelp_http2_run(client, stream, ANSWER_MS);
    struct kelp_http2_answer answer = kelp_http2_answer(client, stream);
    ck_assert_msg(answer.messages == 1, "%s is not answered: gRPC's status %d", path,
                  answer.grpc_status);
    kelp_http2_close(client);
}

static void print_counts(const char *who, const struct kelp_speaker *speaker)
{
    struct kelp_speaker_counts counts = kelp_speaker_counts(speaker);

    (void)printf("%s: %llu messages on %llu streams of %llu connections, %llu answers\n", who,
                 (unsigned long long)counts.messages, (unsigned long long)counts.streams,
                 (unsigned long long)counts.connections, (unsigned long long)counts.answers);
    ck_assert_uint_gt(counts.answers, counts.messages / 100); /* or it is not understood */
}

KELP_SUITE(.before = etcd_fixture_require)

/* ---- a shard -------------------------------------------------------------------------------- */

static struct shard_fixture fixture;

static void shard_setup(void)
{
    static const char *const settings[] = {"train.epochs", "1000", NULL};

    shard_fixture_start(&fixture, settings, ELEMENTS, SAMPLES);
}

static void shard_teardown(void)
{
    shard_fixture_stop(&fixture);
}

/* How far the messages came. */
static void print_shard(void)
{
    const struct kelp_http2_target target = {.address = fixture.address};
    struct kelp_http2 *client = kelp_http2_open(&target);
    uint32_t stream = kelp_http2_call(client, "/kelp.v1.ParameterServer/Status");
    size_t count = 0;

    (void)kelp_http2_send(client, stream, NULL, 0, 0);
    kelp_http2_finish(client, stream);
    kelp_http2_run(client, stream, ANSWER_MS);
    const uint8_t *bytes = kelp_http2_newest(client, stream, &count);
    ck_assert_ptr_nonnull(bytes);
    Kelp__V1__ShardStatusReply *reply = kelp__v1__shard_status_reply__unpack(NULL, count, bytes);
    ck_assert_ptr_nonnull(reply);
    (void)printf("generation %llu, step %llu, pushes %llu, duplicates %llu, refusals %llu\n",
                 (unsigned long long)reply->generation, (unsigned long long)reply->step,
                 (unsigned long long)reply->pushes, (unsigned long long)reply->duplicates,
                 (unsigned long long)reply->refusals);
    kelp__v1__shard_status_reply__free_unpacked(reply, NULL);
    kelp_http2_close(client);
}

/* Generations that a leader could open. */
static void teach_maps(struct kelp_speaker *speaker)
{
    static Kelp__V1__PartitionPlace places[8];
    static Kelp__V1__PartitionPlace *place_pointers[8];
    static Kelp__V1__ShardPlace shard = KELP__V1__SHARD_PLACE__INIT;
    static Kelp__V1__ShardPlace *shards[] = {&shard};
    static Kelp__V1__Map maps[6];

    shard.shard = fixture.id;
    shard.incarnation = fixture.incarnation;
    shard.address = fixture.address;
    for (uint32_t p = 0; p < fixture.plan.partition_count; p++) {
        kelp__v1__partition_place__init(&places[p]);
        places[p].partition = p;
        places[p].map_epoch = 1;
        place_pointers[p] = &places[p];
    }
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(maps); i++) {
        kelp__v1__map__init(&maps[i]);
        maps[i].generation = i + 1;
        maps[i].n_shards = 1;
        maps[i].shards = shards;
        maps[i].n_partitions = fixture.plan.partition_count;
        maps[i].partitions = place_pointers;
        kelp_dice_teach(kelp_speaker_dice(speaker), &maps[i].base);
    }
}

/* A step by one worker, as it would be right at the begin. */
static void teach_step(struct kelp_speaker *speaker)
{
    static struct shard_request request;
    static Kelp__V1__SnapshotOrder order = KELP__V1__SNAPSHOT_ORDER__INIT;
    static uint32_t partitions[KELP_PARTITIONS_MAX];
    static uint8_t gradient[(ELEMENTS + 16) * sizeof(float)];
    float *weights = shard_worker_new_flat(&fixture);
    struct shard_stream worker;
    struct kelp_control_word word;

    shard_worker_open(&worker, &fixture, 1, weights, &word);
    shard_stream_close(&worker);
    free(weights);

    shard_request_init(&request, 1);
    shard_request_pull_all(&request, &fixture, KELP__V1__PULL_MODE__PULL_CURRENT, 0);
    shard_request_push_lanes(&request, &fixture, 0, 4, true);
    shard_request_word(&request, &word);
    request.message.payload = (ProtobufCBinaryData){sizeof(gradient), gradient};
    order.serial = 1;
    order.generation = 1;
    order.step = 4;
    order.shard = fixture.id;
    order.incarnation = fixture.incarnation;
    order.partition = partitions;
    order.n_partition = fixture.plan.partition_count;
    for (uint32_t i = 0; i < fixture.plan.partition_count; i++) {
        partitions[i] = i;
    }
    kelp_dice_teach(kelp_speaker_dice(speaker), &request.message.base);
    kelp_dice_teach(kelp_speaker_dice(speaker), &order.base);
}

static void fuzz_shard(const struct kelp_speaker_options *options, const char *who, bool leads)
{
    struct kelp_speaker *speaker = kelp_speaker_open(options);
    struct shard_stream control;

    ck_assert_ptr_nonnull(speaker);
    shard_stream_open(&control, &fixture, "Control");
    shard_load(&control, 1);
    teach_step(speaker);
    if (leads) {
        teach_maps(speaker);
    }
    for (unsigned said = 0; said < message_count(); said += BLOCK) {
        kelp_speaker_say(speaker, BLOCK);
        ck_assert_msg(kelp_process_wait(fixture.process, 0, NULL) == KELP_ERR_TIMEOUT,
                      "the shard ended after %u messages", said + BLOCK);
    }
    expect_answers(fixture.address, "/kelp.v1.ParameterServer/Status");
    expect_small(fixture.process);
    print_shard();
    print_counts(who, speaker);
    kelp_speaker_close(speaker);
    shard_stream_close(&control);
}

KELP_CASE("shard", .timeout_s = TIMEOUT_S, .setup = shard_setup, .teardown = shard_teardown)

static const char *const worker_ids[] = {"worker-0", "worker-1", "worker-2", NULL};
static const char *const leader_ids[] = {"coordinator-0", "coordinator-1", NULL};

KELP_TEST(shard_by_workers)
{
    static const char *const paths[] = {"/kelp.v1.ParameterServer/Exchange",
                                        "/kelp.v1.ParameterServer/Exchange",
                                        "/kelp.v1.ParameterServer/Status", NULL};
    const struct kelp_dice_text texts[] = {{"digest", SHARD_WORKER_DIGEST}};

    fuzz_shard(&(struct kelp_speaker_options){.target = {.address = fixture.address},
                                              .paths = paths,
                                              .ids = worker_ids,
                                              .job = "shards",
                                              .spec_digest = kelp_job_file_digest(fixture.job_file),
                                              .texts = texts,
                                              .text_count = KELP_ARRAY_COUNT(texts),
                                              .seed = seed(1)},
               "workers", false);
}

KELP_TEST(shard_by_leaders)
{
    static const char *const paths[] = {
        "/kelp.v1.ParameterServer/Control", "/kelp.v1.ParameterServer/Control",
        "/kelp.v1.ParameterServer/Control", "/kelp.v1.ParameterServer/Exchange",
        "/kelp.v1.ParameterServer/Status",  NULL};
    const struct kelp_dice_text texts[] = {
        {"plan", fixture.plan_text}, {"shard", fixture.id}, {"address", fixture.address},
        {"folder", "step-8.g1"},     {"leave", ""}, /* a leader may end a shard */
        {"proof", SHARD_PROOF}};

    fuzz_shard(&(struct kelp_speaker_options){.target = {.address = fixture.address},
                                              .paths = paths,
                                              .ids = leader_ids,
                                              .job = "shards",
                                              .spec_digest = kelp_job_file_digest(fixture.job_file),
                                              .texts = texts,
                                              .text_count = KELP_ARRAY_COUNT(texts),
                                              .seed = seed(2)},
               "leaders", true);
}

/* ---- a coordinator -------------------------------------------------------------------------- */

/* Of what shards report: what they say, and what else could be said. */
static void report_as_shards(struct kelp_speaker *speaker)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(demo.shards); i++) {
        struct kelp_rpc_message *message = NULL;
        ProtobufCMessage *report =
            demo.shards[i].stream
                ? kelp_dice_roll(kelp_speaker_dice(speaker), &kelp__v1__shard_report__descriptor)
                : NULL;
        if (report && kelp_wire_encode(report, &message, NULL) == KELP_OK) {
            kelp_status status = kelp_rpc_stream_send(demo.shards[i].stream, message);
            ck_assert(status == KELP_OK || status == KELP_ERR_CLOSED);
        }
        if (report) {
            protobuf_c_message_free_unpacked(report, NULL);
        }
    }
}

static bool ended(void)
{
    return kelp_process_wait(demo.peers.coordinators[0], 0, NULL) != KELP_ERR_TIMEOUT;
}

/* What a shard reports may end a job, but only in order. */
static void expect_end_in_order(void)
{
    int wait_status = 0;

    ck_assert_int_eq(kelp_process_wait(demo.peers.coordinators[0], 0, &wait_status), KELP_OK);
    if (!WIFEXITED(wait_status) || peers_logged(&demo.peers, 0, "Sanitizer")) {
        ck_abort_msg("the coordinator ended with %x:\n%s", (unsigned)wait_status,
                     peers_file(&demo.peers, "coordinator-0.log"));
    }
}

static void fuzz_coordinator(const char *const *paths, const char *who, bool by_shards,
                             uint64_t number)
{
    char *plan = peers_plan(1);
    char address[256];
    const struct kelp_dice_text texts[] = {
        {"plan", plan}, {"digest", SHARD_WORKER_DIGEST}, {"storage", "shard-0.3e9"}};

    demo_start();
    peers_leader(&demo.peers, address);
    struct kelp_speaker *speaker =
        kelp_speaker_open(&(struct kelp_speaker_options){.target = {.address = address},
                                                         .paths = paths,
                                                         .ids = worker_ids,
                                                         .job = "demo",
                                                         .spec_digest = demo.peers.spec_digest,
                                                         .texts = texts,
                                                         .text_count = KELP_ARRAY_COUNT(texts),
                                                         .seed = seed(number)});
    ck_assert_ptr_nonnull(speaker);
    for (unsigned said = 0; said < message_count() && !ended(); said += BLOCK) {
        for (unsigned i = 0; i < BLOCK && !ended(); i += BLOCK / 2) {
            kelp_speaker_say(speaker, BLOCK / 2);
            if (by_shards) {
                report_as_shards(speaker);
            }
            peers_run(&demo.peers, 1);
        }
    }
    ck_assert(by_shards || !ended());
    if (ended()) {
        expect_end_in_order();
    } else {
        expect_answers(address, "/kelp.v1.Coordinator/Status");
        expect_small(demo.peers.coordinators[0]);
    }
    print_counts(who, speaker);
    kelp_speaker_close(speaker);
    free(plan);
}

KELP_CASE("coordinator", .timeout_s = TIMEOUT_S, .setup = demo_setup, .teardown = demo_teardown)

/* Whatever workers say, the coordinator goes on. */
KELP_TEST(coordinator_by_workers)
{
    static const char *const paths[] = {"/kelp.v1.Coordinator/Join", "/kelp.v1.Coordinator/Join",
                                        "/kelp.v1.Coordinator/Status", NULL};

    fuzz_coordinator(paths, "workers", false, 3);
}

KELP_LOOP_TEST(coordinator_by_operators_and_shards, 0, 2)
{
    static const char *const paths[] = {"/kelp.v1.Coordinator/Join", "/kelp.v1.Coordinator/Status",
                                        "/kelp.v1.Coordinator/Checkpoint", NULL};

    fuzz_coordinator(paths, "operators and shards", true, 4 + (uint64_t)_i);
}
