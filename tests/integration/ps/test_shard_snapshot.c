/*
 * Snapshots and restores of real kelp-ps processes, driven by a scripted coordinator and a scripted
 * worker: training goes on from a snapshot to the same bits, on any number of shards.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/faultdisk/faultdisk.h"
#include "common/training/manifest.h"
#include "tests/lib/cluster/run_command.h"
#include "tests/lib/cluster/shard_client.h"
#include "tests/lib/suite.h"

#define ELEMENTS   5000 /* five partitions, the last one shorter */
#define SAMPLES    32   /* four steps of 8 an epoch */
#define SHARDS_MAX 3
#define DIGEST     "00112233445566778899aabbccddeeff"

/* ---- the cluster -------------------------------------------------------------------------------
 */

static struct kelp_test_folder folder;
static char run_path[160];
static struct shard_fixture first; /* owns etcd and the job */
static struct shard_fixture joined[2 * SHARDS_MAX];
static uint32_t joined_count;

/* Shards that host one generation, and a worker. */
struct cluster {
    struct shard_fixture *shards[SHARDS_MAX];
    uint32_t count;
    uint64_t generation;
    struct shard_stream control[SHARDS_MAX];
    struct shard_stream worker[SHARDS_MAX];
    struct kelp_control_word word;
    float *weights; /* the newest */
    char *plan_text;
    bool elsewhere; /* maps name another shard than ours */
};

static void set_up(const char *optimizer, const char *momentum, const char *epochs)
{
    const char *const settings[] = {"train.optimizer",
                                    optimizer,
                                    "train.epochs",
                                    epochs,
                                    "train.lr",
                                    "0.125",
                                    "failure.storage_wait",
                                    "3s",
                                    momentum ? "train.momentum" : NULL,
                                    momentum,
                                    NULL};

    kelp_test_folder_init(&folder);
    (void)snprintf(run_path, sizeof(run_path), "%s/run", folder.path);
    ck_assert_int_eq(mkdir(run_path, 0755), 0);
    ck_assert_int_eq(setenv("KELP_RUN", run_path, 1), 0);
    shard_fixture_start(&first, settings, ELEMENTS, SAMPLES);
    joined_count = 0;
}

static void set_up_momentum(void)
{
    set_up("sgd", "0.5", "2");
}

static void tear_down(void)
{
    while (joined_count > 0) {
        shard_fixture_leave(&joined[--joined_count], false);
    }
    shard_fixture_stop(&first);
    kelp_test_folder_fini(&folder);
}

/* Fresh processes; the first cluster has shard-0 as well. */
static void gather(struct cluster *cluster, uint32_t count, bool with_first)
{
    memset(cluster, 0, sizeof(*cluster));
    if (with_first) {
        cluster->shards[cluster->count++] = &first;
    }
    while (cluster->count < count) {
        char id[16];
        (void)snprintf(id, sizeof(id), "shard-%u", joined_count + 1);
        shard_fixture_join(&joined[joined_count], &first, id);
        cluster->shards[cluster->count++] = &joined[joined_count++];
    }
    cluster->weights = calloc(first.plan.flat_count, sizeof(float));
    ck_assert_ptr_nonnull(cluster->weights);
}

static uint32_t host_of(const struct cluster *cluster, uint32_t partition)
{
    return partition % cluster->count;
}

/* A map of this generation to one shard; restore: its manifest's text and version, or NULL. */
static void send_map(struct cluster *cluster, uint32_t to, bool with_hello, const char *manifest,
                     uint64_t restore_version)
{
    uint32_t count = first.plan.partition_count;
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Hello hello;
    Kelp__V1__Map map = KELP__V1__MAP__INIT;
    Kelp__V1__ShardPlace shards[SHARDS_MAX];
    Kelp__V1__ShardPlace *shard_pointers[SHARDS_MAX];
    Kelp__V1__PartitionPlace *places = calloc(count, sizeof(*places));
    Kelp__V1__PartitionPlace **pointers = calloc(count, sizeof(*pointers));

    ck_assert_ptr_nonnull(places);
    ck_assert_ptr_nonnull(pointers);
    for (uint32_t i = 0; i < cluster->count; i++) {
        kelp__v1__shard_place__init(&shards[i]);
        shards[i].shard = cluster->elsewhere ? "elsewhere" : cluster->shards[i]->id;
        shards[i].incarnation = cluster->shards[i]->incarnation;
        shards[i].address = cluster->shards[i]->address;
        shard_pointers[i] = &shards[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        kelp__v1__partition_place__init(&places[i]);
        places[i].partition = i;
        places[i].map_epoch = cluster->generation;
        places[i].primary = host_of(cluster, i);
        pointers[i] = &places[i];
    }
    map.generation = cluster->generation;
    map.restore_version = restore_version;
    map.n_shards = cluster->count;
    map.shards = shard_pointers;
    map.n_partitions = count;
    map.partitions = pointers;
    if (with_hello) {
        shard_hello(&first, &hello, "coordinator-1");
        command.hello = &hello;
        command.plan = first.plan_text;
    }
    command.map = &map;
    command.manifest = (char *)(uintptr_t)(manifest ? manifest : "");
    shard_stream_send(&cluster->control[to], &command.base, NULL, 0);
    free(places);
    free(pointers);
}

static void await_loaded(struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        uint64_t loaded = 0;
        while (loaded != cluster->generation) {
            Kelp__V1__ShardReport *report = shard_take_report(&cluster->control[i]);
            ck_assert_msg(report->status == KELP_OK, "%s", report->error);
            loaded = report->loaded_generation;
            kelp__v1__shard_report__free_unpacked(report, NULL);
        }
    }
}

static void take_answers(struct cluster *cluster, uint32_t from, uint64_t step)
{
    struct kelp_rpc_message *message;
    struct kelp_wire_payload payload;
    uint32_t expected = 0;

    for (uint32_t p = 0; p < first.plan.partition_count; p++) {
        expected += host_of(cluster, p) == from ? 1 : 0;
    }
    while (expected > 0) {
        Kelp__V1__ExchangeReply *reply = shard_stream_take(
            &cluster->worker[from], &kelp__v1__exchange_reply__descriptor, &message, &payload);
        ck_assert_msg(reply->status == KELP_OK, "%s", reply->error);
        ck_assert_uint_eq(reply->n_refused, 0);
        for (size_t i = 0; i < reply->n_answer; i++) {
            const Kelp__V1__PullAnswer *answer = reply->answer[i];
            struct kelp_slice_range range = kelp_plan_partition(&first.plan, answer->partition);
            ck_assert_int_eq(answer->status, KELP_OK);
            ck_assert_uint_eq(answer->step, step);
            ck_assert_uint_eq(answer->length, range.count * sizeof(float));
            kelp_wire_payload_copy(&payload, (size_t)answer->offset, (size_t)answer->length,
                                   cluster->weights + range.first);
            if (answer->partition == 0) {
                ck_assert(kelp_wire_take_word(answer->word, &cluster->word));
            }
            expected--;
        }
        kelp__v1__exchange_reply__free_unpacked(reply, NULL);
        kelp_rpc_message_unref(message);
    }
}

/* Room for what one shard is sent for one entry. */
struct request {
    Kelp__V1__ExchangeRequest message;
    Kelp__V1__Hello hello;
    Kelp__V1__ControlWord word;
    Kelp__V1__PushItem pushes[64];
    Kelp__V1__PushItem *push_pointers[64];
    Kelp__V1__PullItem pulls[64];
    Kelp__V1__PullItem *pull_pointers[64];
    double sums[KELP_METRIC_SUM_COUNT];
};

static void request_init(const struct cluster *cluster, struct request *request)
{
    memset(request, 0, sizeof(*request));
    kelp__v1__exchange_request__init(&request->message);
    request->message.generation = cluster->generation;
    request->message.push = request->push_pointers;
    request->message.pull = request->pull_pointers;
}

static void add_push(const struct cluster *cluster, struct request *request, uint32_t partition,
                     bool with_gradient)
{
    struct kelp_slice_range range = kelp_plan_partition(&first.plan, partition);
    Kelp__V1__PushItem *item = &request->pushes[request->message.n_push];

    kelp__v1__push_item__init(item);
    item->partition = partition;
    item->map_epoch = cluster->generation;
    item->lane_count = 4;
    if (with_gradient) {
        item->offset = range.first * sizeof(float);
        item->length = range.count * sizeof(float);
    }
    if (partition == 0) {
        request->sums[KELP_METRIC_SUM_SAMPLES] = 8;
        request->sums[KELP_METRIC_SUM_LOSS] = 16.0 / (double)(cluster->word.version + 1);
        request->sums[KELP_METRIC_SUM_SQUARED] = 3;
        request->sums[KELP_METRIC_SUM_ELEMENTS] = (double)(cluster->word.version + 7);
        item->n_sums = kelp_metric_sum_trim(request->sums, KELP_METRIC_SUM_COUNT);
        item->sums = request->sums;
        item->digest = (char *)(uintptr_t)DIGEST;
    }
    request->push_pointers[request->message.n_push++] = item;
    kelp_wire_put_word(&cluster->word, &request->word);
    request->message.word = &request->word;
}

static void add_pull(const struct cluster *cluster, struct request *request, uint32_t partition,
                     Kelp__V1__PullMode mode, uint64_t target)
{
    Kelp__V1__PullItem *item = &request->pulls[request->message.n_pull];

    kelp__v1__pull_item__init(item);
    item->partition = partition;
    item->map_epoch = cluster->generation;
    item->mode = mode;
    item->step = target;
    item->version = target;
    request->pull_pointers[request->message.n_pull++] = item;
}

static void open_worker(struct cluster *cluster, uint64_t step)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        struct request request;
        shard_stream_open(&cluster->worker[i], cluster->shards[i], "Exchange");
        request_init(cluster, &request);
        shard_hello(&first, &request.hello, "worker-7");
        request.message.hello = &request.hello;
        for (uint32_t p = i; p < first.plan.partition_count; p += cluster->count) {
            add_pull(cluster, &request, p, KELP__V1__PULL_MODE__PULL_CURRENT, 0);
        }
        shard_stream_send(&cluster->worker[i], &request.message.base, NULL, 0);
        take_answers(cluster, i, step);
    }
}

static void open_control(struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        shard_stream_open(&cluster->control[i], cluster->shards[i], "Control");
    }
}

/* From S_0. */
static void begin(struct cluster *cluster, uint64_t generation)
{
    cluster->generation = generation;
    open_control(cluster);
    for (uint32_t i = 0; i < cluster->count; i++) {
        send_map(cluster, i, true, NULL, 0);
    }
    await_loaded(cluster);
    open_worker(cluster, 0);
}

static void end(struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        if (cluster->worker[i].fixture) {
            shard_stream_close(&cluster->worker[i]);
        }
        shard_stream_close(&cluster->control[i]);
    }
    free(cluster->weights);
}

static void make_gradient(float *gradient, uint64_t step)
{
    for (uint64_t i = 0; i < first.plan.flat_count; i++) {
        gradient[i] = (float)((i * 37 + step * 77) % 1009) / 997.0f - 0.5f;
    }
}

static void train_step(struct cluster *cluster)
{
    size_t bytes = (size_t)first.plan.flat_count * sizeof(float);
    float *gradient = malloc(bytes);
    uint64_t step = cluster->word.step + 1;

    ck_assert_ptr_nonnull(gradient);
    make_gradient(gradient, cluster->word.step);
    for (uint32_t i = 0; i < cluster->count; i++) {
        struct request request;
        request_init(cluster, &request);
        for (uint32_t p = i; p < first.plan.partition_count; p += cluster->count) {
            add_push(cluster, &request, p, true);
            add_pull(cluster, &request, p, KELP__V1__PULL_MODE__PULL_STEP, step);
        }
        shard_stream_send(&cluster->worker[i], &request.message.base, gradient, bytes);
    }
    for (uint32_t i = cluster->count; i > 0; i--) { /* partition 0's word last */
        take_answers(cluster, i - 1, step);
    }
    free(gradient);
}

/* An entry that moves no weights. */
static void pass_entry(struct cluster *cluster)
{
    struct request request;

    request_init(cluster, &request);
    add_push(cluster, &request, 0, false);
    add_pull(cluster, &request, 0, KELP__V1__PULL_MODE__PULL_VERSION, cluster->word.version + 1);
    request.pulls[0].holds = true;
    request.pulls[0].held_step = cluster->word.step;
    shard_stream_send(&cluster->worker[0], &request.message.base, NULL, 0);
    Kelp__V1__ExchangeReply *reply =
        shard_stream_take(&cluster->worker[0], &kelp__v1__exchange_reply__descriptor, NULL, NULL);
    ck_assert_int_eq(reply->status, KELP_OK);
    ck_assert_uint_eq(reply->n_answer, 1);
    ck_assert(kelp_wire_take_word(reply->answer[0]->word, &cluster->word));
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
}

/* Until `version` entries are complete. */
static void train_to(struct cluster *cluster, uint64_t version)
{
    while (cluster->word.version < version) {
        if (cluster->word.kind == KELP_STEP_TRAIN) {
            train_step(cluster);
        } else {
            ck_assert_int_ne((int)cluster->word.kind, KELP_STEP_DONE);
            pass_entry(cluster);
        }
    }
}

/* ---- snapshots ---------------------------------------------------------------------------------
 */

static void send_order(struct cluster *cluster, uint32_t shard, Kelp__V1__SnapshotOrder *order)
{
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;

    command.snapshot = order;
    shard_stream_send(&cluster->control[shard], &command.base, NULL, 0);
}

static void order_from(struct cluster *cluster, uint32_t shard, uint64_t serial,
                       uint64_t generation, uint64_t step, const char *name)
{
    Kelp__V1__SnapshotOrder order = KELP__V1__SNAPSHOT_ORDER__INIT;

    order.serial = serial;
    order.generation = generation;
    order.step = step;
    order.folder = (char *)(uintptr_t)name;
    send_order(cluster, shard, &order);
}

static void give_up(struct cluster *cluster, uint32_t shard, uint64_t serial)
{
    Kelp__V1__SnapshotOrder order = KELP__V1__SNAPSHOT_ORDER__INIT;

    order.serial = serial;
    order.generation = cluster->generation;
    order.give_up = true;
    send_order(cluster, shard, &order);
}

static void order_all(struct cluster *cluster, uint64_t serial, uint64_t step, const char *name)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        order_from(cluster, i, serial, cluster->generation, step, name);
    }
}

/* Until the shard reports the end of this order; owned. */
static Kelp__V1__ShardReport *await_snapshot(struct cluster *cluster, uint32_t shard,
                                             uint64_t serial)
{
    for (;;) {
        Kelp__V1__ShardReport *report = shard_take_report(&cluster->control[shard]);
        ck_assert_msg(report->status == KELP_OK, "%s", report->error);
        if (report->snapshot && report->snapshot->serial == serial &&
            report->snapshot->state > KELP__V1__SNAPSHOT_STATE__SNAPSHOT_TAKING) {
            return report;
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
}

/* Fails the test unless all parts become durable; what a leader would commit. */
static void commit(struct cluster *cluster, uint64_t serial, const char *name,
                   struct kelp_manifest *manifest)
{
    ck_assert_int_eq(kelp_manifest_init(manifest, cluster->count, first.plan.partition_count, NULL),
                     KELP_OK);
    (void)snprintf(manifest->job, sizeof(manifest->job), "%s", first.job->name);
    (void)snprintf(manifest->folder, sizeof(manifest->folder), "%s", name);
    (void)snprintf(manifest->nonce, sizeof(manifest->nonce), "n-%" PRIu64, serial);
    manifest->spec_digest = kelp_job_file_digest(first.job_file);
    manifest->generation = cluster->generation;
    for (uint32_t i = 0; i < cluster->count; i++) {
        Kelp__V1__ShardReport *report = await_snapshot(cluster, i, serial);
        const Kelp__V1__SnapshotReport *snapshot = report->snapshot;
        ck_assert_msg(snapshot->state == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_DURABLE, "%s",
                      snapshot->error);
        manifest->step = snapshot->step;
        (void)snprintf(manifest->storages[i], sizeof(manifest->storages[i]), "%s",
                       snapshot->storage);
        for (size_t p = 0; p < snapshot->n_part; p++) {
            struct kelp_manifest_part *part = &manifest->parts[snapshot->part[p]->partition];
            ck_assert_uint_eq(host_of(cluster, snapshot->part[p]->partition), i);
            part->storage = i;
            part->bytes = snapshot->part[p]->bytes;
            memcpy(part->digest, snapshot->part[p]->digest, sizeof(part->digest));
        }
        ck_assert_int_eq(snapshot->word != NULL, i == 0);
        if (snapshot->word) {
            struct kelp_control_word word;
            ck_assert(kelp_wire_take_word(snapshot->word, &word));
            ck_assert_uint_eq(word.step, snapshot->step);
            manifest->version = word.version;
            manifest->epochs = kelp_control_word_epochs(&word);
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
}

static char *manifest_text(const struct kelp_manifest *manifest)
{
    char *text = NULL;
    struct kelp_error error = {.text = ""};
    kelp_status status = kelp_manifest_print(manifest, &text, &error);

    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return text;
}

static void send_restore(struct cluster *cluster, const struct kelp_manifest *manifest,
                         bool with_hello)
{
    char *text = manifest_text(manifest);

    for (uint32_t i = 0; i < cluster->count; i++) {
        send_map(cluster, i, with_hello, text, manifest->version);
    }
    free(text);
}

static void restore(struct cluster *cluster, uint64_t generation,
                    const struct kelp_manifest *manifest)
{
    cluster->generation = generation;
    open_control(cluster);
    send_restore(cluster, manifest, true);
    await_loaded(cluster);
    open_worker(cluster, manifest->step);
    ck_assert_uint_eq(cluster->word.version, manifest->version);
}

static void expect_same_weights(const struct cluster *a, const struct cluster *b)
{
    ck_assert_uint_eq(a->word.step, b->word.step);
    ck_assert_mem_eq(a->weights, b->weights, (size_t)first.plan.flat_count * sizeof(float));
}

static void expect_same_parts(const struct kelp_manifest *a, const struct kelp_manifest *b)
{
    for (uint32_t p = 0; p < a->part_count; p++) {
        ck_assert_str_eq(a->parts[p].digest, b->parts[p].digest);
        ck_assert_uint_eq(a->parts[p].bytes, b->parts[p].bytes);
    }
}

/* Entries of the folder of a checkpoint. */
static unsigned entries_of(const char *name)
{
    char path[400];
    unsigned count = 0;

    (void)snprintf(path, sizeof(path), "%s/" KELP_CHECKPOINTS_FOLDER "/%s", run_path, name);
    DIR *entries = opendir(path);
    for (const struct dirent *entry; entries && (entry = readdir(entries));) {
        count += entry->d_name[0] != '.';
    }
    if (entries) {
        (void)closedir(entries);
    }
    return count;
}

/* ---- going on from a snapshot ------------------------------------------------------------------
 */

struct shape {
    const char *optimizer;
    const char *momentum;
    uint32_t from; /* shards */
    uint32_t to;
};

static const struct shape shapes[] = {
    {"sgd", "0.5", 1, 2}, {"adam", NULL, 2, 3}, {"adamw", NULL, 3, 1}, {"sgd", NULL, 2, 2}};

KELP_CASE("bits", .timeout_s = 120)

/* Taken while steps go on, restored onto another number of processes: the same bits as the run that
 * was never disturbed. Taken at rest: the same parts. */
KELP_LOOP_TEST(goes_on_to_the_same_bits, 0, KELP_ARRAY_COUNT(shapes))
{
    const struct shape *shape = &shapes[_i];
    struct cluster before, after;
    struct kelp_manifest manifest, again, rest;

    set_up(shape->optimizer, shape->momentum, "2");
    gather(&before, shape->from, true);
    begin(&before, 1);
    train_to(&before, 1);
    order_all(&before, 9, 3, "step-3.g1");
    train_to(&before, 8); /* two evaluations after step 4, then two steps more */
    commit(&before, 9, "step-3.g1", &manifest);
    ck_assert_uint_eq(manifest.step, 3);
    ck_assert_uint_eq(manifest.version, 3);

    gather(&after, shape->to, false);
    restore(&after, 2, &manifest);
    order_all(&after, 1, 3, "step-3.g2"); /* at rest: nothing of the state was lost or added */
    commit(&after, 1, "step-3.g2", &again);
    expect_same_parts(&manifest, &again);
    train_to(&after, 8);
    expect_same_weights(&before, &after);

    order_all(&before, 10, 6, "step-6.g1");
    commit(&before, 10, "step-6.g1", &rest);
    ck_assert_uint_eq(rest.version, 8);
    kelp_manifest_fini(&again);
    order_all(&after, 2, 6, "step-6.g2");
    commit(&after, 2, "step-6.g2", &again);
    expect_same_parts(&rest, &again);
    kelp_manifest_fini(&manifest);
    kelp_manifest_fini(&again);
    kelp_manifest_fini(&rest);
    end(&before);
    end(&after);
    tear_down();
}

KELP_CASE("orders", .timeout_s = 120, .setup = set_up_momentum, .teardown = tear_down)

/* Between evaluations and at the end: the control state says where, and a job that is done stays
 * done. */
KELP_TEST(evaluations_and_the_end)
{
    struct cluster cluster, after;
    struct kelp_manifest middle, done;

    gather(&cluster, 1, true);
    begin(&cluster, 1);
    train_to(&cluster, 5);
    ck_assert_int_eq((int)cluster.word.kind, KELP_STEP_EVALUATE_TEST);
    order_all(&cluster, 1, 4, "step-4.g1");
    commit(&cluster, 1, "step-4.g1", &middle);
    ck_assert_uint_eq(middle.version, 5);
    train_to(&cluster, 13);
    ck_assert_int_eq((int)cluster.word.kind, KELP_STEP_DONE);
    order_all(&cluster, 2, 8, "step-8.g1");
    commit(&cluster, 2, "step-8.g1", &done);
    ck_assert_uint_eq(done.version, 13);

    gather(&after, 2, false);
    restore(&after, 2, &middle);
    ck_assert_int_eq((int)after.word.kind, KELP_STEP_EVALUATE_TEST);
    train_to(&after, 13);
    expect_same_weights(&cluster, &after);
    end(&after);
    gather(&after, 1, false);
    restore(&after, 3, &done);
    ck_assert_int_eq((int)after.word.kind, KELP_STEP_DONE);
    expect_same_weights(&cluster, &after);
    end(&after);
    end(&cluster);
    kelp_manifest_fini(&middle);
    kelp_manifest_fini(&done);
}

/* ---- orders ------------------------------------------------------------------------------------
 */

static void expect_end(struct cluster *cluster, uint64_t serial, Kelp__V1__SnapshotState state,
                       kelp_status status)
{
    Kelp__V1__ShardReport *report = await_snapshot(cluster, 0, serial);

    ck_assert_int_eq(report->snapshot->state, state);
    ck_assert_int_eq(report->snapshot->status, status);
    ck_assert_int_eq(report->snapshot->error[0] == '\0', status == KELP_OK);
    ck_assert_uint_eq(report->snapshot->n_part, 0);
    if (state == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_PAST) {
        ck_assert_uint_gt(report->snapshot->current_step, report->snapshot->step);
    }
    kelp__v1__shard_report__free_unpacked(report, NULL);
}

/* Whatever becomes of an order, the next one finds the shard ready, and nothing is left of it. */
KELP_TEST(orders_that_come_to_nothing)
{
    struct cluster cluster;
    struct kelp_manifest manifest;

    gather(&cluster, 1, true);
    begin(&cluster, 1);
    train_to(&cluster, 2);
    order_all(&cluster, 1, 1, "step-1.g1");
    expect_end(&cluster, 1, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_PAST, KELP_OK);
    order_all(&cluster, 2, 9, "step-9.g1");
    give_up(&cluster, 0, 1); /* not what is under way: ignored */
    give_up(&cluster, 0, 2);
    expect_end(&cluster, 2, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED, KELP_ERR_CLOSED);
    order_all(&cluster, 3, 2, "../elsewhere");
    expect_end(&cluster, 3, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED, KELP_ERR_FORMAT);
    order_from(&cluster, 0, 4, 7, 2, "step-2.g7"); /* of a generation that is not here yet */
    expect_end(&cluster, 4, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED, KELP_ERR_BUSY);
    order_all(&cluster, 5, 4, "step-4.g1");
    order_all(&cluster, 6, 3, "step-3.g1"); /* instead of it */
    train_to(&cluster, 4);
    commit(&cluster, 6, "step-3.g1", &manifest);
    ck_assert_uint_eq(entries_of("step-3.g1"), 1);
    ck_assert_uint_eq(entries_of("step-1.g1") + entries_of("step-4.g1"), 0);
    kelp_manifest_fini(&manifest);
    end(&cluster);
}

/* A new generation ends what is under way, and orders of the one before are not heard any more. */
KELP_TEST(generations_end_snapshots)
{
    struct cluster cluster;
    struct kelp_manifest manifest;

    gather(&cluster, 1, true);
    begin(&cluster, 1);
    order_all(&cluster, 1, 5, "step-5.g1");
    train_to(&cluster, 1);
    shard_stream_close(&cluster.worker[0]);
    cluster.generation = 2;
    send_map(&cluster, 0, false, NULL, 0);
    expect_end(&cluster, 1, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED, KELP_ERR_OLD_GENERATION);
    await_loaded(&cluster);
    open_worker(&cluster, 0);
    order_from(&cluster, 0, 2, 1, 1, "step-1.g1");
    order_all(&cluster, 3, 1, "step-1.g2");
    train_to(&cluster, 1);
    commit(&cluster, 3, "step-1.g2", &manifest);
    ck_assert_uint_eq(entries_of("step-1.g1"), 0);
    kelp_manifest_fini(&manifest);
    end(&cluster);
}

/* A start without a place for checkpoints says so. */
KELP_TEST(without_a_run)
{
    struct cluster cluster;

    ck_assert_int_eq(setenv("KELP_RUN", "", 1), 0);
    gather(&cluster, 1, false);
    begin(&cluster, 1);
    order_all(&cluster, 1, 0, "step-0.g1");
    expect_end(&cluster, 1, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED, KELP_ERR_UNSUPPORTED);
    end(&cluster);
}

/* What a former start of the shard left unfinished is removed; nothing else is. */
KELP_TEST(leftovers_are_removed)
{
    static const char *const names[] = {"shard-1.00000000000000aa.writing",
                                        "shard-1.00000000000000aa",
                                        "shard-11.00000000000000aa.writing"};
    struct cluster cluster;
    char path[400];

    (void)snprintf(path, sizeof(path), "%s/" KELP_CHECKPOINTS_FOLDER, run_path);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    (void)snprintf(path, sizeof(path), "%s/" KELP_CHECKPOINTS_FOLDER "/step-7.g1", run_path);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        (void)snprintf(path, sizeof(path), "%s/" KELP_CHECKPOINTS_FOLDER "/step-7.g1/%s", run_path,
                       names[i]);
        ck_assert_int_eq(mkdir(path, 0755), 0);
    }
    gather(&cluster, 1, false); /* shard-1 */
    begin(&cluster, 1);
    order_all(&cluster, 1, 0, "step-0.g1"); /* the thread has come so far */
    struct kelp_manifest manifest;
    commit(&cluster, 1, "step-0.g1", &manifest);
    ck_assert_uint_eq(entries_of("step-7.g1"), 2);
    (void)snprintf(path, sizeof(path), "%s/" KELP_CHECKPOINTS_FOLDER "/step-7.g1/%s", run_path,
                   names[0]);
    ck_assert_int_ne(access(path, F_OK), 0);
    kelp_manifest_fini(&manifest);
    end(&cluster);
}

/* ---- storage -----------------------------------------------------------------------------------
 */

/* A checkpoint of step 2 on one shard, and where its one storage lies. */
static void make_checkpoint(struct kelp_manifest *manifest, char *path, size_t path_bytes)
{
    struct cluster cluster;

    gather(&cluster, 1, true);
    begin(&cluster, 1);
    order_all(&cluster, 1, 2, "step-2.g1");
    train_to(&cluster, 2);
    commit(&cluster, 1, "step-2.g1", manifest);
    end(&cluster);
    (void)snprintf(path, path_bytes, "%s/" KELP_CHECKPOINTS_FOLDER "/step-2.g1/%s", run_path,
                   manifest->storages[0]);
}

/* Until a report says that it waits; the text. */
static void await_waiting(struct cluster *cluster, const char *name)
{
    for (bool waits = false; !waits;) {
        Kelp__V1__ShardReport *report = shard_take_report(&cluster->control[0]);
        ck_assert_msg(report->status == KELP_OK, "%s", report->error);
        ck_assert_uint_ne(report->loaded_generation, cluster->generation);
        waits = report->waiting[0] != '\0';
        if (waits) {
            ck_assert_ptr_nonnull(strstr(report->waiting, name));
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
}

/* A report comes that says why it cannot go on. */
static void await_failure(struct cluster *cluster, kelp_status status, const char *name,
                          const char *other)
{
    for (bool failed = false; !failed;) {
        Kelp__V1__ShardReport *report = shard_take_report(&cluster->control[0]);
        ck_assert_uint_ne(report->loaded_generation, cluster->generation);
        failed = report->status != KELP_OK;
        if (failed) {
            ck_assert_int_eq(report->status, status);
            ck_assert_msg(strstr(report->error, name) && strstr(report->error, other), "%s",
                          report->error);
            ck_assert_str_eq(report->waiting, "");
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
}

/* Storage that is not there yet is waited for by name, and found when it comes. */
KELP_TEST(storage_that_comes_late)
{
    struct cluster cluster;
    struct kelp_manifest manifest;
    char path[500], away[500];

    make_checkpoint(&manifest, path, sizeof(path));
    (void)snprintf(away, sizeof(away), "%s/away", run_path);
    ck_assert_int_eq(rename(path, away), 0);
    gather(&cluster, 1, false);
    cluster.generation = 2;
    open_control(&cluster);
    send_restore(&cluster, &manifest, true);
    await_waiting(&cluster, manifest.storages[0]);
    ck_assert_int_eq(rename(away, path), 0);
    await_loaded(&cluster);
    open_worker(&cluster, 2);
    ck_assert_uint_eq(cluster.word.version, 2);
    kelp_manifest_fini(&manifest);
    end(&cluster);
}

/* A newer map ends the wait; so does failure.storage_wait, which is said. */
KELP_TEST(storage_that_never_comes)
{
    struct cluster cluster;
    struct kelp_manifest manifest;
    char path[500], away[500];

    make_checkpoint(&manifest, path, sizeof(path));
    (void)snprintf(away, sizeof(away), "%s/away", run_path);
    ck_assert_int_eq(rename(path, away), 0);
    gather(&cluster, 1, false);
    cluster.generation = 2;
    open_control(&cluster);
    send_restore(&cluster, &manifest, true);
    await_waiting(&cluster, manifest.storages[0]);
    cluster.generation = 3;
    send_map(&cluster, 0, false, NULL, 0);
    await_loaded(&cluster); /* and no failure was reported */
    cluster.generation = 4;
    send_restore(&cluster, &manifest, false);
    await_waiting(&cluster, manifest.storages[0]);
    await_failure(&cluster, KELP_ERR_NOT_FOUND, "step-2.g1", manifest.storages[0]);
    kelp_manifest_fini(&manifest);
    end(&cluster);
}

/* The process can be stopped while it waits. */
KELP_TEST(stop_while_waiting)
{
    struct cluster cluster;
    struct kelp_manifest manifest;
    char path[500], away[500];

    make_checkpoint(&manifest, path, sizeof(path));
    (void)snprintf(away, sizeof(away), "%s/away", run_path);
    ck_assert_int_eq(rename(path, away), 0);
    gather(&cluster, 1, false);
    cluster.generation = 2;
    open_control(&cluster);
    send_restore(&cluster, &manifest, true);
    await_waiting(&cluster, manifest.storages[0]);
    end(&cluster);
    kelp_manifest_fini(&manifest);
}

/* Flip one bit in the middle of the largest file of a folder. */
static void damage(const char *path)
{
    char name[900] = "";
    struct stat stat_buffer;
    off_t largest = 0;
    DIR *entries = opendir(path);

    ck_assert_ptr_nonnull(entries);
    for (const struct dirent *entry; (entry = readdir(entries));) {
        char file[800];
        (void)snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
        if (stat(file, &stat_buffer) == 0 && S_ISREG(stat_buffer.st_mode) &&
            stat_buffer.st_size > largest) {
            largest = stat_buffer.st_size;
            (void)snprintf(name, sizeof(name), "%s", file);
        }
    }
    (void)closedir(entries);
    int fd = open(name, O_RDWR);
    unsigned char byte;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, largest / 2), 1);
    byte ^= 4;
    ck_assert_int_eq(pwrite(fd, &byte, 1, largest / 2), 1);
    ck_assert_int_eq(close(fd), 0);
}

/* Damage is said, with its place, and never loaded; the checkpoint before it still is. */
KELP_TEST(damage_is_found)
{
    struct cluster cluster;
    struct kelp_manifest manifest;
    char path[500], digest[KELP_DIGEST_HEX_BYTES];

    make_checkpoint(&manifest, path, sizeof(path));
    gather(&cluster, 1, false);
    cluster.generation = 2;
    open_control(&cluster);
    memcpy(digest, manifest.parts[1].digest, sizeof(digest));
    memset(manifest.parts[1].digest, '0', sizeof(digest) - 1);
    send_restore(&cluster, &manifest, true);
    memcpy(manifest.parts[1].digest, digest, sizeof(digest));
    await_failure(&cluster, KELP_ERR_CORRUPT, "step-2.g1", "partition 1");
    cluster.generation = 3;
    send_restore(&cluster, &manifest, false);
    await_loaded(&cluster);
    damage(path);
    cluster.generation = 4;
    send_restore(&cluster, &manifest, false);
    await_failure(&cluster, KELP_ERR_CORRUPT, "step-2.g1", manifest.storages[0]);
    kelp_manifest_fini(&manifest);
    end(&cluster);
}

/* A map that restores needs the manifest of that version; a model of another size is no damage. */
KELP_TEST(manifests_are_checked)
{
    struct cluster cluster;
    struct kelp_manifest manifest;
    char path[500];

    make_checkpoint(&manifest, path, sizeof(path));
    gather(&cluster, 1, false);
    cluster.generation = 2;
    char *text = manifest_text(&manifest);
    const char *const texts[] = {"", "{}", text};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(texts); i++) {
        open_control(&cluster);
        send_map(&cluster, 0, true, texts[i], 1); /* the manifest is of version 2 */
        shard_stream_await_closed(&cluster.control[0]);
        ck_assert_int_eq(cluster.control[0].status, KELP_ERR_FORMAT);
        shard_stream_close(&cluster.control[0]);
    }
    free(text);
    open_control(&cluster);
    manifest.part_count--;
    send_restore(&cluster, &manifest, true);
    await_failure(&cluster, KELP_ERR_MISMATCH, "step-2.g1", "partitions");
    manifest.part_count++;
    /* As many bytes as another optimizer's state would have. */
    cluster.generation = 3;
    manifest.parts[1].bytes *= 2;
    send_restore(&cluster, &manifest, false);
    await_failure(&cluster, KELP_ERR_MISMATCH, "step-2.g1", "optimizer");
    kelp_manifest_fini(&manifest);
    end(&cluster);
}

/* A shard that comes back when the restored checkpoint has been removed hosts nothing, and takes
 * the map without a manifest. */
KELP_TEST(nothing_to_restore)
{
    struct cluster cluster;

    gather(&cluster, 1, false);
    cluster.generation = 3;
    cluster.elsewhere = true;
    open_control(&cluster);
    send_map(&cluster, 0, true, NULL, 2);
    await_loaded(&cluster);
    end(&cluster);
}

/* ---- disks -------------------------------------------------------------------------------------
 */

static struct kelp_faultdisk *disk;

static void put_environment(const char *entry)
{
    char name[32];
    const char *equals = strchr(entry, '=');

    (void)snprintf(name, sizeof(name), "%.*s", (int)(equals - entry), entry);
    ck_assert_int_eq(setenv(name, equals + 1, 1), 0);
}

/* Shards that are gathered from now on write to a disk that does what the test says. */
static void preload_disk(void)
{
    static struct kelp_faultdisk_environment environment;
    struct kelp_error error = {.text = ""};
    char library[500], control[200];
    const char *bin = getenv("KELP_BIN");

    (void)snprintf(library, sizeof(library), "%s/kelp-faultdisk.so",
                   bin ? bin : "build/release/bin");
    (void)snprintf(control, sizeof(control), "%s/control", folder.path);
    kelp_status status = kelp_faultdisk_open(control, &disk, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    struct kelp_faultdisk_paths paths = {.library = library, .control = control, .root = run_path};
    status = kelp_faultdisk_environment(&paths, &environment, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    put_environment(environment.preload);
    put_environment(environment.control);
    put_environment(environment.root);
}

static void set_up_disk(void)
{
    set_up("adam", NULL, "2");
    preload_disk();
}

static void tear_down_disk(void)
{
    kelp_faultdisk_close(disk);
    (void)unsetenv("LD_PRELOAD");
    tear_down();
}

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

KELP_CASE("disks", .timeout_s = 120, .setup = set_up_disk, .teardown = tear_down_disk)

/* Full, broken: the snapshot fails, with the reason, training goes on to the same bits, and the
 * next snapshot works once the disk does. */
KELP_TEST(disks_that_fail)
{
    static const struct {
        enum kelp_faultdisk_mode mode;
        kelp_status status;
    } faults[] = {{KELP_FAULTDISK_FULL, KELP_ERR_NO_SPACE}, {KELP_FAULTDISK_ERROR, KELP_ERR_IO}};
    struct cluster cluster, calm;
    struct kelp_manifest manifest, other;

    gather(&cluster, 1, false);
    begin(&cluster, 1);
    for (uint64_t i = 0; i < KELP_ARRAY_COUNT(faults); i++) {
        /* One in the beginning, one somewhere in the middle. */
        struct kelp_faultdisk_fault fault = {.mode = faults[i].mode, .after = i * 6};
        kelp_faultdisk_set(disk, &fault);
        order_all(&cluster, i + 1, i + 1, "step-x");
        train_to(&cluster, i + 2);
        expect_end(&cluster, i + 1, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED, faults[i].status);
        ck_assert_uint_gt(kelp_faultdisk_hits(disk), 0);
    }
    kelp_faultdisk_set(disk, &(struct kelp_faultdisk_fault){.mode = KELP_FAULTDISK_OK});
    order_all(&cluster, 9, 3, "step-3.g1");
    commit(&cluster, 9, "step-3.g1", &manifest);
    gather(&calm, 1, false);
    begin(&calm, 1);
    train_to(&calm, 3);
    order_all(&calm, 1, 3, "calm");
    commit(&calm, 1, "calm", &other);
    expect_same_parts(&manifest, &other);
    kelp_manifest_fini(&manifest);
    kelp_manifest_fini(&other);
    end(&cluster);
    end(&calm);
}

/* A slow disk: steps do not wait for it, and what they overwrite was copied before. */
KELP_TEST(slow_disks)
{
    struct kelp_faultdisk_fault slow = {.mode = KELP_FAULTDISK_SLOW, .slow_ms = 40};
    struct cluster cluster, calm;
    struct kelp_manifest manifest, other;

    gather(&cluster, 2, false);
    begin(&cluster, 1);
    kelp_faultdisk_set(disk, &slow);
    order_all(&cluster, 1, 1, "step-1.g1");
    int64_t began = now_ms();
    train_to(&cluster, 6);
    int64_t trained = now_ms() - began;
    commit(&cluster, 1, "step-1.g1", &manifest);
    int64_t written = now_ms() - began;
    ck_assert_msg(trained < written, "six entries took %d ms, the snapshot %d", (int)trained,
                  (int)written);
    order_all(&cluster, 2, 4, "step-4.g1"); /* it is behind the first one's buffers */
    kelp_faultdisk_set(disk, &(struct kelp_faultdisk_fault){.mode = KELP_FAULTDISK_OK});
    gather(&calm, 1, false);
    begin(&calm, 1);
    train_to(&calm, 1);
    order_all(&calm, 1, 1, "calm");
    commit(&calm, 1, "calm", &other);
    expect_same_parts(&manifest, &other);
    kelp_manifest_fini(&other);
    train_to(&calm, 4);
    order_all(&calm, 2, 4, "calm-4");
    train_to(&calm, 6);
    kelp_manifest_fini(&manifest);
    commit(&cluster, 2, "step-4.g1", &manifest);
    ck_assert_uint_eq(manifest.version, 6);
    expect_same_weights(&cluster, &calm);
    kelp_manifest_fini(&manifest);
    end(&cluster);
    end(&calm);
}

/* Given up while the disk hangs: nothing is left, and the next one is written. */
KELP_TEST(given_up_on_a_slow_disk)
{
    struct kelp_faultdisk_fault slow = {.mode = KELP_FAULTDISK_SLOW, .slow_ms = 300};
    struct cluster cluster;
    struct kelp_manifest manifest;

    gather(&cluster, 1, false);
    begin(&cluster, 1);
    kelp_faultdisk_set(disk, &slow);
    order_all(&cluster, 1, 1, "step-1.g1");
    train_to(&cluster, 2);
    give_up(&cluster, 0, 1);
    expect_end(&cluster, 1, KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED, KELP_ERR_CLOSED);
    kelp_faultdisk_set(disk, &(struct kelp_faultdisk_fault){.mode = KELP_FAULTDISK_OK});
    order_all(&cluster, 2, 2, "step-2.g1");
    give_up(&cluster, 0, 1); /* of a leader that was deposed meanwhile: not its successor's */
    commit(&cluster, 2, "step-2.g1", &manifest);
    ck_assert_uint_eq(entries_of("step-1.g1"), 0);
    kelp_manifest_fini(&manifest);
    end(&cluster);
}
