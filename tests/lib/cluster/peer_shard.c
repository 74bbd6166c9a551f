/* A scripted shard: accepts maps and orders, and reports what a test wants. */
#include "tests/lib/cluster/coordinator_peers_internal.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/training/control.h"
#include "proto/wire.h"

/* The answer to the newest order, with everything it points to. */
struct snapshot {
    Kelp__V1__SnapshotReport report;
    Kelp__V1__SnapshotPart parts[64];
    Kelp__V1__SnapshotPart *pointers[64];
    Kelp__V1__ControlWord word;
    char storage[96];
    char digest[33];
};

/* Not answered yet: the answer is held, or training has not reached the order's step. */
static bool takes_longer(const struct peer_shard *shard)
{
    return shard->hold || (shard->stands > 0 && shard->order_step > shard->stands);
}

static void fill_snapshot(const struct peer_shard *shard, struct snapshot *snapshot)
{
    Kelp__V1__SnapshotReport *report = &snapshot->report;
    kelp__v1__snapshot_report__init(report);
    report->serial = shard->order_serial;
    report->generation = shard->order_generation;
    report->step = shard->order_step;
    report->state = shard->answer == 0 ? KELP__V1__SNAPSHOT_STATE__SNAPSHOT_DURABLE
                                       : (Kelp__V1__SnapshotState)shard->answer;
    if (takes_longer(shard)) {
        report->state = KELP__V1__SNAPSHOT_STATE__SNAPSHOT_TAKING;
    }
    report->current_step = shard->order_step + 5;
    report->error = (char *)(shard->disk_says == NULL ? "" : shard->disk_says);
    if (report->state != KELP__V1__SNAPSHOT_STATE__SNAPSHOT_DURABLE) {
        return;
    }
    (void)snprintf(snapshot->storage, sizeof(snapshot->storage), "%s.%" PRIx64, shard->id,
                   shard->incarnation);
    memset(snapshot->digest, shard->digest_of == 0 ? '5' : shard->digest_of, 32);
    snapshot->digest[32] = '\0';
    report->storage = snapshot->storage;
    for (uint32_t i = 0; i < shard->part_count; i++) {
        kelp__v1__snapshot_part__init(&snapshot->parts[i]);
        snapshot->parts[i].partition = shard->parts[i];
        snapshot->parts[i].bytes = 4096;
        snapshot->parts[i].digest = snapshot->digest;
        snapshot->pointers[i] = &snapshot->parts[i];
    }
    report->n_part = shard->part_count;
    report->part = snapshot->pointers;
    if (shard->part_count > 0 && shard->parts[0] == 0) {
        kelp__v1__control_word__init(&snapshot->word);
        snapshot->word.step = shard->order_step;
        snapshot->word.version =
            shard->order_step == shard->word_step ? shard->word_version : shard->order_step;
        snapshot->word.kind = shard->order_step == shard->word_step && shard->word_kind != 0
                                  ? shard->word_kind
                                  : KELP_STEP_TRAIN;
        report->word = &snapshot->word;
    }
}

/* Write a folder with one file, as a shard would. */
static void write_snapshot(const struct peer_shard *shard)
{
    char path[512];
    struct kelp_error error = {.text = ""};
    if (takes_longer(shard) || shard->answer != 0 || shard->part_count == 0) {
        return;
    }
    (void)snprintf(path, sizeof(path), "%s/checkpoints/%s/%s.%" PRIx64, shard->peers->folder,
                   shard->order_folder, shard->id, shard->incarnation);
    ck_assert_msg(kelp_files_make_folder(path, &error) == KELP_OK, "%s", error.text);
    size_t length = strlen(path);
    (void)snprintf(path + length, sizeof(path) - length, "/data");
    if (kelp_files_write(path, "x", 1, &error) != KELP_OK) {
        path[length] = '\0'; /* removed because the leader gave the order up? */
        ck_assert_msg(access(path, F_OK) != 0, "%s", error.text);
    }
}

static void shard_report(struct peer_shard *shard, bool with_hello, Kelp__V1__Record **records,
                         size_t count)
{
    Kelp__V1__WorkerWork work = KELP__V1__WORKER_WORK__INIT;
    Kelp__V1__WorkerWork *workers[] = {&work};
    Kelp__V1__ShardReport report = KELP__V1__SHARD_REPORT__INIT;
    Kelp__V1__Hello hello;
    Kelp__V1__ControlWord word = KELP__V1__CONTROL_WORD__INIT;
    struct snapshot snapshot;
    if (shard->stream == NULL) {
        return;
    }
    peer_fill_hello(&hello, shard->job, shard->peers->spec_digest, shard->id, shard->incarnation);
    if (shard->version != NULL) {
        hello.version = (char *)(uintptr_t)shard->version; /* only read */
    }
    report.hello = with_hello ? &hello : NULL;
    report.heartbeat = shard->heartbeats;
    report.loaded_generation = shard->loaded;
    report.status = shard->status;
    report.error = shard->error;
    report.n_records = count;
    report.records = records;
    report.waiting = shard->waiting;
    if (shard->worked) {
        work.id = (char *)(uintptr_t)shard->worked; /* only read */
        work.lanes = 1;
        report.n_work = 1;
        report.work = workers;
    }
    if (shard->has_word) {
        word.version = shard->word_version;
        word.step = shard->word_step;
        word.kind = shard->word_kind;
        report.word = &word;
    }
    if (count > 0 && !shard->has_word) {
        report.word = records[count - 1]->word;
    }
    if (shard->order_serial != 0) {
        fill_snapshot(shard, &snapshot);
        report.snapshot = &snapshot.report;
    }
    peer_send_message(shard->stream, &report.base);
}

static void take_order(struct peer_shard *shard, const Kelp__V1__SnapshotOrder *order)
{
    if (order->give_up) {
        shard->given_up += order->serial == shard->order_serial;
        shard->order_serial = order->serial == shard->order_serial ? 0 : shard->order_serial;
        return;
    }
    if (order->serial == shard->order_serial) {
        return;
    }
    ck_assert_str_eq(order->shard, shard->id); /* it leads them: no other shard captures them */
    ck_assert_uint_eq(order->incarnation, shard->incarnation);
    ck_assert_uint_eq(order->n_partition, shard->part_count);
    ck_assert_mem_eq(order->partition, shard->parts,
                     order->n_partition * sizeof(order->partition[0]));
    shard->orders++;
    shard->order_serial = order->serial;
    shard->order_generation = order->generation;
    shard->order_step = order->step;
    (void)snprintf(shard->order_folder, sizeof(shard->order_folder), "%s", order->folder);
    write_snapshot(shard);
}

static void take_map(struct peer_shard *shard, const Kelp__V1__ShardCommand *command)
{
    const Kelp__V1__Map *map = command->map;
    shard->generation = map->generation;
    shard->loaded = shard->slow ? shard->loaded : map->generation;
    shard->order_serial = 0;
    shard->part_count = 0;
    (void)snprintf(shard->manifest, sizeof(shard->manifest), "%s", command->manifest);
    for (size_t i = 0; i < map->n_partitions; i++) {
        if (map->shards[map->partitions[i]->primary]->incarnation == shard->incarnation) {
            ck_assert_uint_lt(shard->part_count, KELP_ARRAY_COUNT(shard->parts));
            shard->parts[shard->part_count++] = map->partitions[i]->partition;
        }
    }
}

static void shard_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                          void *user)
{
    struct peer_shard *shard = user;
    Kelp__V1__ShardCommand *command = peer_decode(message, &kelp__v1__shard_command__descriptor);
    bool first = command->hello != NULL;
    if (first) {
        ck_assert_str_eq(command->spec, shard->peers->spec);
        shard->stream = stream;
        shard->hellos++;
        shard->records_after = command->records_after;
    }
    shard->plan = shard->plan || command->plan[0] != '\0';
    if (command->map != NULL) {
        ck_assert(shard->plan); /* the plan comes first */
        take_map(shard, command);
    }
    if (command->snapshot != NULL) {
        take_order(shard, command->snapshot);
    }
    shard->heartbeats += command->heartbeat > 0 ? 1 : 0;
    if (stream == shard->stream) {
        shard_report(shard, first, NULL, 0);
    }
    kelp__v1__shard_command__free_unpacked(command, NULL);
}

static void shard_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                         void *user)
{
    struct peer_shard *shard = user;
    (void)status;
    (void)text;
    if (shard->stream == stream) {
        shard->stream = NULL;
    }
    shard->refused++;
}

static const struct kelp_rpc_stream_events shard_events = {.message = shard_message,
                                                           .closed = shard_closed};

static const struct kelp_rpc_stream_events *shard_accept(struct kelp_rpc_stream *stream,
                                                         void *server_user, void **ret_user)
{
    (void)stream;
    *ret_user = server_user;
    return &shard_events;
}

static const struct kelp_rpc_method shard_methods[] = {{.path = CONTROL, .accept = shard_accept}};

void peer_shard_start(struct peers *peers, struct peer_shard *shard)
{
    struct kelp_error error = {.text = ""};
    char key[128];
    char value[128];
    struct kelp_rpc_server_options options = {
        .address = "127.0.0.1:0",
        .message_bytes_max = MESSAGE,
        .methods = shard_methods,
        .method_count = KELP_ARRAY_COUNT(shard_methods),
        .user = shard,
    };
    shard->peers = peers;
    shard->incarnation = peer_next_incarnation();
    ck_assert_int_eq(kelp_rpc_server_open(peers->loop, &options, &shard->server, &error), KELP_OK);
    (void)snprintf(key, sizeof(key), "/kelp/" JOB "/ps/%s", shard->id);
    (void)snprintf(value, sizeof(value),
                   "{\"address\":\"127.0.0.1:%u\",\"incarnation\":\"%" PRIu64 "\"}",
                   kelp_rpc_server_port(shard->server), shard->incarnation);
    ck_assert_int_eq(kelp_etcd_put(peers->client, key, value, 0, CALL_MS, &error), KELP_OK);
}

void peer_shard_snapshot(struct peer_shard *shard)
{
    if (shard->order_serial != 0) {
        write_snapshot(shard);
    }
}

void peer_shard_report(struct peer_shard *shard)
{
    ck_assert_ptr_nonnull(shard->stream);
    shard_report(shard, false, NULL, 0);
}

void peer_shard_word(struct peer_shard *shard, uint64_t version, uint64_t step, uint32_t kind)
{
    shard->has_word = true;
    shard->word_version = version;
    shard->word_step = step;
    shard->word_kind = kind;
    shard->stands = step;
    peer_shard_report(shard);
}

void peer_shard_records(struct peer_shard *shard, Kelp__V1__Record **records, size_t count)
{
    const Kelp__V1__ControlWord *last = records[count - 1]->word;
    ck_assert_ptr_nonnull(shard->stream);
    if (last->kind == KELP_STEP_FINISH) {
        shard->has_word = true;
        shard->word_version = last->version + 1;
        shard->word_step = last->step;
        shard->word_kind = KELP_STEP_DONE;
    }
    shard_report(shard, false, records, count);
}

void peer_shard_stop(struct peer_shard *shard)
{
    kelp_rpc_server_close(shard->server);
    shard->server = NULL;
    shard->stream = NULL;
    shard->loaded = 0;
    shard->plan = false;
    shard->has_word = false;
    shard->order_serial = 0;
}

void peer_shard_unregister(struct peer_shard *shard)
{
    struct kelp_error error = {.text = ""};
    char key[128];
    (void)snprintf(key, sizeof(key), "/kelp/" JOB "/ps/%s", shard->id);
    ck_assert_int_eq(kelp_etcd_delete_prefix(shard->peers->client, key, CALL_MS, &error), KELP_OK);
}
