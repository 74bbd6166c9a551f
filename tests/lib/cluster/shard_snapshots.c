#include "tests/lib/cluster/shard_snapshots.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

/* Fill in the partitions that the shard leads; `partitions` has room for all. */
static void name_process(const struct shard_cluster *cluster, uint32_t shard, uint32_t *partitions,
                         Kelp__V1__SnapshotOrder *order)
{
    const struct shard_fixture *fixture = cluster->shards[shard];

    order->shard = (char *)(uintptr_t)fixture->id;
    order->incarnation = fixture->incarnation;
    order->partition = partitions;
    for (uint32_t i = 0; i < fixture->plan.partition_count && !cluster->elsewhere; i++) {
        if (shard_cluster_host_of(cluster, i) == shard) {
            partitions[order->n_partition++] = i;
        }
    }
}

static void send_order(struct shard_cluster *cluster, uint32_t shard,
                       Kelp__V1__SnapshotOrder *order)
{
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;

    command.snapshot = order;
    shard_stream_send(&cluster->control[shard], &command.base, NULL, 0);
}

void shard_cluster_order_from(struct shard_cluster *cluster, uint32_t shard, uint64_t serial,
                              uint64_t generation, uint64_t step, const char *name)
{
    Kelp__V1__SnapshotOrder order = KELP__V1__SNAPSHOT_ORDER__INIT;
    uint32_t partitions[KELP_PARTITIONS_MAX];

    name_process(cluster, shard, partitions, &order);
    order.serial = serial;
    order.generation = generation;
    order.step = step;
    order.folder = (char *)(uintptr_t)name;
    send_order(cluster, shard, &order);
}

void shard_cluster_give_up(struct shard_cluster *cluster, uint32_t shard, uint64_t serial)
{
    Kelp__V1__SnapshotOrder order = KELP__V1__SNAPSHOT_ORDER__INIT;

    order.serial = serial;
    order.generation = cluster->generation;
    order.give_up = true;
    send_order(cluster, shard, &order);
}

void shard_cluster_order(struct shard_cluster *cluster, uint64_t serial, uint64_t step,
                         const char *name)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        shard_cluster_order_from(cluster, i, serial, cluster->generation, step, name);
    }
}

/* Wait until the shard reports the end of this order. The report is owned. */
static Kelp__V1__ShardReport *await_snapshot(struct shard_cluster *cluster, uint32_t shard,
                                             uint64_t serial)
{
    for (;;) {
        Kelp__V1__ShardReport *report = shard_take_report(&cluster->control[shard]);
        ck_assert_msg(report->status == KELP_OK, "%s", report->error);
        if (report->snapshot && report->snapshot->serial == serial &&
            report->snapshot->state != KELP__V1__SNAPSHOT_STATE__SNAPSHOT_TAKING &&
            report->snapshot->state != KELP__V1__SNAPSHOT_STATE__SNAPSHOT_CAPTURED) {
            return report;
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
}

void shard_cluster_commit(struct shard_cluster *cluster, uint64_t serial, const char *name,
                          struct kelp_manifest *manifest)
{
    ck_assert_int_eq(
        kelp_manifest_init(manifest, cluster->count, shard_bench.first.plan.partition_count, NULL),
        KELP_OK);
    (void)snprintf(manifest->job, sizeof(manifest->job), "%s", shard_bench.first.job->name);
    (void)snprintf(manifest->folder, sizeof(manifest->folder), "%s", name);
    (void)snprintf(manifest->nonce, sizeof(manifest->nonce), "n-%" PRIu64, serial);
    manifest->spec_digest = kelp_job_file_digest(shard_bench.first.job_file);
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
            ck_assert_uint_eq(shard_cluster_host_of(cluster, snapshot->part[p]->partition), i);
            part->storage = i;
            part->bytes = snapshot->part[p]->bytes;
            memcpy(part->digest, snapshot->part[p]->digest, sizeof(part->digest));
        }
        ck_assert_int_eq(snapshot->word != NULL, i == 0);
        if (snapshot->word) {
            struct kelp_control_word word;
            ck_assert(kelp_wire_get_word(snapshot->word, &word));
            ck_assert_uint_eq(word.step, snapshot->step);
            manifest->version = word.version;
            manifest->epochs = kelp_control_word_epochs(&word);
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
}

char *shard_cluster_manifest_text(const struct kelp_manifest *manifest)
{
    char *text = NULL;
    struct kelp_error error = {.text = ""};
    kelp_status status = kelp_manifest_print(manifest, &text, &error);

    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return text;
}

void shard_cluster_send_restore(struct shard_cluster *cluster, const struct kelp_manifest *manifest,
                                bool with_hello)
{
    char *text = shard_cluster_manifest_text(manifest);

    for (uint32_t i = 0; i < cluster->count; i++) {
        shard_cluster_send_map(cluster, i, with_hello, text, manifest->version);
    }
    free(text);
}

void shard_cluster_restore(struct shard_cluster *cluster, uint64_t generation,
                           const struct kelp_manifest *manifest)
{
    cluster->generation = generation;
    shard_cluster_open_control(cluster);
    shard_cluster_send_restore(cluster, manifest, true);
    shard_cluster_await_loaded(cluster);
    shard_cluster_open_worker(cluster, manifest->step);
    ck_assert_uint_eq(cluster->word.version, manifest->version);
}

void shard_cluster_expect_parts(const struct kelp_manifest *a, const struct kelp_manifest *b)
{
    for (uint32_t p = 0; p < a->part_count; p++) {
        ck_assert_str_eq(a->parts[p].digest, b->parts[p].digest);
        ck_assert_uint_eq(a->parts[p].bytes, b->parts[p].bytes);
    }
}

unsigned shard_cluster_entries_of(const char *name)
{
    char path[400];
    unsigned count = 0;

    (void)snprintf(path, sizeof(path), "%s/" KELP_CHECKPOINTS_FOLDER "/%s", shard_bench.run, name);
    DIR *entries = opendir(path);
    for (const struct dirent *entry; entries && (entry = readdir(entries));) {
        count += entry->d_name[0] != '.';
    }
    if (entries) {
        (void)closedir(entries);
    }
    return count;
}

void shard_cluster_expect_end(struct shard_cluster *cluster, uint64_t serial,
                              Kelp__V1__SnapshotState state, kelp_status status)
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
