#include "tests/lib/cluster/shard_cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/lib/cluster/shard_worker.h"
#include "tests/lib/suite.h"

#define ELEMENTS 5000 /* four partitions, the last one shorter */
#define SAMPLES  32   /* four steps of 8 in an epoch */

struct shard_bench shard_bench;

/* ---- processes and generations ------------------------------------------------------------- */

void shard_cluster_set_up(const char *optimizer, const char *momentum, const char *epochs)
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

    kelp_test_folder_init(&shard_bench.folder);
    (void)snprintf(shard_bench.run, sizeof(shard_bench.run), "%s/run", shard_bench.folder.path);
    ck_assert_int_eq(mkdir(shard_bench.run, 0755), 0);
    ck_assert_int_eq(setenv("KELP_RUN", shard_bench.run, 1), 0);
    shard_fixture_start(&shard_bench.first, settings, ELEMENTS, SAMPLES);
    shard_bench.joined_count = 0;
}

void shard_cluster_set_up_momentum(void)
{
    shard_cluster_set_up("sgd", "0.5", "2");
}

void shard_cluster_tear_down(void)
{
    while (shard_bench.joined_count > 0) {
        shard_fixture_leave(&shard_bench.joined[--shard_bench.joined_count], false);
    }
    shard_fixture_stop(&shard_bench.first);
    kelp_test_folder_fini(&shard_bench.folder);
}

void shard_cluster_gather(struct shard_cluster *cluster, uint32_t count, bool with_first)
{
    memset(cluster, 0, sizeof(*cluster));
    if (with_first) {
        cluster->shards[cluster->count++] = &shard_bench.first;
    }
    while (cluster->count < count) {
        char id[16];
        (void)snprintf(id, sizeof(id), "shard-%u", shard_bench.joined_count + 1);
        shard_fixture_join(&shard_bench.joined[shard_bench.joined_count], &shard_bench.first, id);
        cluster->shards[cluster->count++] = &shard_bench.joined[shard_bench.joined_count++];
    }
    cluster->weights = calloc(shard_bench.first.plan.flat_count, sizeof(float));
    ck_assert_ptr_nonnull(cluster->weights);
}

uint32_t shard_cluster_host_of(const struct shard_cluster *cluster, uint32_t partition)
{
    return partition % cluster->count;
}

void shard_cluster_send_map(struct shard_cluster *cluster, uint32_t to, bool with_hello,
                            const char *manifest, uint64_t restore_version)
{
    uint32_t count = shard_bench.first.plan.partition_count;
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Hello hello;
    Kelp__V1__Map map = KELP__V1__MAP__INIT;
    Kelp__V1__ShardPlace shards[SHARD_CLUSTER_MAX];
    Kelp__V1__ShardPlace *shard_pointers[SHARD_CLUSTER_MAX];
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
        places[i].primary = shard_cluster_host_of(cluster, i);
        pointers[i] = &places[i];
    }
    map.generation = cluster->generation;
    map.restore_version = restore_version;
    map.n_shards = cluster->count;
    map.shards = shard_pointers;
    map.n_partitions = count;
    map.partitions = pointers;
    if (with_hello) {
        shard_hello(&shard_bench.first, &hello, "coordinator-1");
        command.hello = &hello;
        command.proof = (char *)(uintptr_t)SHARD_PROOF; /* only read */
        command.plan = shard_bench.first.plan_text;
    }
    command.map = &map;
    command.manifest = (char *)(uintptr_t)(manifest ? manifest : "");
    shard_stream_send(&cluster->control[to], &command.base, NULL, 0);
    free(places);
    free(pointers);
}

void shard_cluster_await_loaded(struct shard_cluster *cluster)
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

/* ---- a worker ---------------------------------------------------------------------------------
 */

static void take_answers(struct shard_cluster *cluster, uint32_t from, uint64_t step)
{
    uint32_t expected = 0;

    for (uint32_t p = 0; p < shard_bench.first.plan.partition_count; p++) {
        expected += shard_cluster_host_of(cluster, p) == from ? 1 : 0;
    }
    for (uint32_t taken = 0; taken < expected;) {
        taken += shard_worker_take_answers(&cluster->worker[from], step, cluster->weights,
                                           &cluster->word);
    }
}

static void add_push(const struct shard_cluster *cluster, struct shard_request *request,
                     uint32_t partition, bool with_gradient)
{
    Kelp__V1__PushItem *item =
        shard_request_push(request, &shard_bench.first, partition, with_gradient);

    if (partition == 0) {
        request->sums[KELP_METRIC_SUM_SAMPLES] = 8;
        request->sums[KELP_METRIC_SUM_LOSS] = 16.0 / (double)(cluster->word.version + 1);
        request->sums[KELP_METRIC_SUM_SQUARED] = 3;
        request->sums[KELP_METRIC_SUM_ELEMENTS] = (double)(cluster->word.version + 7);
        shard_request_sums(request, item);
    }
    shard_request_word(request, &cluster->word);
}

void shard_cluster_open_worker(struct shard_cluster *cluster, uint64_t step)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        struct shard_request request;
        shard_stream_open(&cluster->worker[i], cluster->shards[i], "Exchange");
        shard_request_init(&request, cluster->generation);
        shard_request_hello(&request, &shard_bench.first);
        for (uint32_t p = i; p < shard_bench.first.plan.partition_count; p += cluster->count) {
            (void)shard_request_pull(&request, p, KELP__V1__PULL_MODE__PULL_CURRENT, 0);
        }
        shard_stream_send(&cluster->worker[i], &request.message.base, NULL, 0);
        take_answers(cluster, i, step);
    }
}

void shard_cluster_open_control(struct shard_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        shard_stream_open(&cluster->control[i], cluster->shards[i], "Control");
    }
}

void shard_cluster_begin(struct shard_cluster *cluster, uint64_t generation)
{
    cluster->generation = generation;
    shard_cluster_open_control(cluster);
    for (uint32_t i = 0; i < cluster->count; i++) {
        shard_cluster_send_map(cluster, i, true, NULL, 0);
    }
    shard_cluster_await_loaded(cluster);
    shard_cluster_open_worker(cluster, 0);
}

void shard_cluster_end(struct shard_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        if (cluster->worker[i].fixture) {
            shard_stream_close(&cluster->worker[i]);
        }
        shard_stream_close(&cluster->control[i]);
    }
    free(cluster->weights);
}

static void train_step(struct shard_cluster *cluster)
{
    size_t bytes = (size_t)shard_bench.first.plan.flat_count * sizeof(float);
    float *gradient = malloc(bytes);
    uint64_t step = cluster->word.step + 1;

    ck_assert_ptr_nonnull(gradient);
    shard_worker_gradient(&shard_bench.first, gradient, 0, cluster->word.step);
    for (uint32_t i = 0; i < cluster->count; i++) {
        struct shard_request request;
        shard_request_init(&request, cluster->generation);
        for (uint32_t p = i; p < shard_bench.first.plan.partition_count; p += cluster->count) {
            add_push(cluster, &request, p, true);
            (void)shard_request_pull(&request, p, KELP__V1__PULL_MODE__PULL_STEP, step);
        }
        shard_stream_send(&cluster->worker[i], &request.message.base, gradient, bytes);
    }
    for (uint32_t i = cluster->count; i > 0; i--) { /* partition 0 with its word comes last */
        take_answers(cluster, i - 1, step);
    }
    free(gradient);
}

/* Complete an entry that does not change weights. */
static void pass_entry(struct shard_cluster *cluster)
{
    struct shard_request request;

    shard_request_init(&request, cluster->generation);
    add_push(cluster, &request, 0, false);
    (void)shard_request_pull(&request, 0, KELP__V1__PULL_MODE__PULL_VERSION,
                             cluster->word.version + 1);
    request.pulls[0].holds = true;
    request.pulls[0].held_step = cluster->word.step;
    shard_stream_send(&cluster->worker[0], &request.message.base, NULL, 0);
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(&cluster->worker[0], NULL, NULL);
    ck_assert_int_eq(reply->status, KELP_OK);
    ck_assert_uint_eq(reply->n_answer, 1);
    ck_assert(kelp_wire_get_word(reply->answer[0]->word, &cluster->word));
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
}

void shard_cluster_train_to(struct shard_cluster *cluster, uint64_t version)
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

void shard_cluster_expect_weights(const struct shard_cluster *a, const struct shard_cluster *b)
{
    ck_assert_uint_eq(a->word.step, b->word.step);
    ck_assert_mem_eq(a->weights, b->weights,
                     (size_t)shard_bench.first.plan.flat_count * sizeof(float));
}
