#include "tests/lib/cluster/coordinator_peers.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/training/control.h"
#include "proto/wire.h"

#define CALL_MS    5000
#define MESSAGE    (4u << 20)
#define JOB        "demo"
#define JOIN       "/kelp.v1.Coordinator/Join"
#define STATUS     "/kelp.v1.Coordinator/Status"
#define CHECKPOINT "/kelp.v1.Coordinator/Checkpoint"
#define CONTROL    "/kelp.v1.ParameterServer/Control"
#define PARTITIONS 16 /* of the plan below */

static uint64_t next_incarnation(void)
{
    static uint64_t last = 1000;
    return ++last;
}

/* ---- the world --------------------------------------------------------------------------------
 */

static void make_spec(struct peers *peers, const char *detect)
{
    struct kelp_error error = {.text = ""};
    struct kelp_job_file *file = kelp_job_file_create();
    const char *settings[][2] = {
        {"name", JOB},
        {"model.kind", "dlinear"},
        {"data.kind", "synthetic"},
        {"train.epochs", "1000"}, /* 2000 steps: no order is cut to the last one */
        {"cluster.lanes", "8"},
        {"cluster.workers", "2"},
        {"cluster.shards", "2"},
        {"failure.detect", detect},
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(settings); i++) {
        kelp_status status =
            kelp_job_file_set(file, settings[i][0], settings[i][1], KELP_ORIGIN_FLAG, &error);
        ck_assert_msg(status == KELP_OK, "%s", error.text);
    }
    ck_assert_msg(kelp_job_file_finish(file, &error) == KELP_OK, "%s", error.text);
    ck_assert_int_eq(kelp_job_file_print(file, false, &peers->spec, &error), KELP_OK);
    peers->spec_digest = kelp_job_file_digest(file);
    kelp_job_file_destroy(file);
}

void peers_start(struct peers *peers, const char *detect)
{
    struct kelp_error error = {.text = ""};
    memset(peers, 0, sizeof(*peers));
    etcd_fixture_start(&peers->etcd);
    kelp_rpc_global_init();
    peers->client = etcd_fixture_client(&peers->etcd);
    ck_assert_int_eq(kelp_rpc_loop_create(&peers->loop, &error), KELP_OK);
    (void)snprintf(peers->folder, sizeof(peers->folder), "/tmp/kelp-coordinator-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(peers->folder));
    make_spec(peers, detect);
    kelp_status status =
        kelp_etcd_put(peers->client, "/kelp/" JOB "/spec", peers->spec, 0, CALL_MS, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

/* One that still runs stops cleanly when told to: sanitizers speak through its exit code. */
static void stop_coordinator(struct peers *peers, uint32_t index)
{
    struct kelp_process *process = peers->coordinators[index];
    int wait_status = 0;
    if (process == NULL || kelp_process_wait(process, 0, &wait_status) == KELP_OK) {
        return;
    }
    kelp_process_signal(process, SIGTERM);
    ck_assert_int_eq(kelp_process_wait(process, 10000, &wait_status), KELP_OK);
    if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0) {
        char name[64];
        (void)snprintf(name, sizeof(name), "coordinator-%u.log", index);
        ck_abort_msg("coordinator-%u ended with %x:\n%s", index, (unsigned)wait_status,
                     peers_file(peers, name));
    }
}

void peers_stop(struct peers *peers)
{
    for (uint32_t i = 0; i < PEERS_COORDINATORS; i++) {
        stop_coordinator(peers, i);
        kelp_process_destroy(peers->coordinators[i]);
    }
    kelp_rpc_loop_destroy(peers->loop);
    kelp_etcd_close(peers->client);
    etcd_fixture_stop(&peers->etcd);
    ck_assert_int_eq(kelp_files_remove(peers->folder, NULL), KELP_OK);
    free(peers->spec);
}

void peers_coordinator(struct peers *peers, uint32_t index, const char *listen)
{
    struct kelp_error error = {.text = ""};
    char program[512];
    char id[32];
    char log[192];
    const char *bin = getenv("KELP_BIN");
    (void)snprintf(program, sizeof(program), "%s/kelp-coordinator",
                   bin == NULL ? "build/release/bin" : bin);
    (void)snprintf(id, sizeof(id), "coordinator-%u", index);
    (void)snprintf(log, sizeof(log), "%s/%s.log", peers->folder, id);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    const char *argv[] = {program,
                          "--etcd",
                          peers->coordinators_etcd == NULL ? peers->etcd.url
                                                           : peers->coordinators_etcd,
                          "--job",
                          JOB,
                          "--id",
                          id,
                          "--run",
                          peers->folder,
                          "--listen",
                          listen == NULL ? "127.0.0.1:0" : listen,
                          NULL};
    struct kelp_process_options options = {
        .argv = argv, .stdout_fd = KELP_PROCESS_NULL, .stderr_fd = fd};
    kelp_process_destroy(peers->coordinators[index]);
    kelp_status status = kelp_process_start(&options, &peers->coordinators[index], &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    (void)close(fd);
}

void peers_coordinator_kill(struct peers *peers, uint32_t index)
{
    kelp_process_destroy(peers->coordinators[index]);
    peers->coordinators[index] = NULL;
}

char *peers_get(struct peers *peers, const char *name)
{
    struct kelp_error error = {.text = ""};
    struct kelp_etcd_range range = {0};
    char key[128];
    (void)snprintf(key, sizeof(key), "/kelp/" JOB "/%s", name);
    kelp_status status = kelp_etcd_get(peers->client, key, CALL_MS, &range, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    char *value = strdup(range.count == 0 ? "" : range.pairs[0].value);
    ck_assert_ptr_nonnull(value);
    kelp_etcd_range_fini(&range);
    return value;
}

void peers_leader(struct peers *peers, char address[256])
{
    char *value = peers_get(peers, "coordinator");
    const char *at = strstr(value, "\"address\":\"");
    address[0] = '\0';
    if (at != NULL) {
        at += strlen("\"address\":\"");
        (void)snprintf(address, 256, "%.*s", (int)strcspn(at, "\""), at);
    }
    free(value);
}

char *peers_file(struct peers *peers, const char *name)
{
    char path[192];
    (void)snprintf(path, sizeof(path), "%s/%s", peers->folder, name);
    char *text = calloc(1, 1 << 20);
    ck_assert_ptr_nonnull(text);
    FILE *in = fopen(path, "r");
    if (in != NULL) {
        size_t got = fread(text, 1, (1 << 20) - 1, in);
        ck_assert_uint_lt(got, (1 << 20) - 1);
        (void)fclose(in);
    }
    return text;
}

bool peers_logged(struct peers *peers, uint32_t index, const char *text)
{
    char name[64];
    (void)snprintf(name, sizeof(name), "coordinator-%u.log", index);
    char *log = peers_file(peers, name);
    bool found = strstr(log, text) != NULL;
    free(log);
    return found;
}

void peers_wait(struct peers *peers, bool (*done)(void *user), void *user, const char *what)
{
    uint64_t end = kelp_clock_ms() + PEERS_HANG_MS;
    while (!done(user)) {
        if (kelp_clock_ms() >= end) {
            char *log = peers_file(peers, "coordinator-0.log");
            ck_abort_msg("waited in vain for: %s; coordinator-0 said:\n%s", what, log);
        }
        (void)kelp_rpc_loop_run(peers->loop, 20);
    }
}

void peers_run(struct peers *peers, uint32_t ms)
{
    uint64_t end = kelp_clock_ms() + ms;
    while (kelp_clock_ms() < end) {
        (void)kelp_rpc_loop_run(peers->loop, 10);
    }
}

Kelp__V1__StatusReply *peers_status(struct peers *peers, const char *address)
{
    struct kelp_error error = {.text = ""};
    struct kelp_rpc_channel *channel = NULL;
    struct kelp_rpc_message *request = NULL;
    struct kelp_rpc_message *answer = NULL;
    struct kelp_wire_payload payload;
    ProtobufCMessage *fields = NULL;
    Kelp__V1__StatusRequest wire = KELP__V1__STATUS_REQUEST__INIT;
    ck_assert_int_eq(kelp_wire_encode(&wire.base, &request, &error), KELP_OK);
    ck_assert_int_eq(kelp_rpc_channel_open(peers->loop, address, MESSAGE, &channel, &error),
                     KELP_OK);
    kelp_status status = kelp_rpc_call(channel, STATUS, request, CALL_MS, &answer, &error);
    if (status == KELP_OK) {
        ck_assert_int_eq(kelp_wire_decode(answer, &kelp__v1__status_reply__descriptor, MESSAGE,
                                          &fields, &payload, &error),
                         KELP_OK);
        kelp_rpc_message_unref(answer);
    }
    kelp_rpc_channel_close(channel);
    return (Kelp__V1__StatusReply *)(void *)fields;
}

uint64_t peers_checkpoint(struct peers *peers, bool pause)
{
    struct kelp_error error = {.text = ""};
    struct kelp_rpc_channel *channel = NULL;
    struct kelp_rpc_message *request = NULL;
    struct kelp_rpc_message *answer = NULL;
    struct kelp_wire_payload payload;
    ProtobufCMessage *fields = NULL;
    char address[256];
    Kelp__V1__CheckpointRequest wire = KELP__V1__CHECKPOINT_REQUEST__INIT;
    wire.pause = pause;
    peers_leader(peers, address);
    ck_assert_int_eq(kelp_wire_encode(&wire.base, &request, &error), KELP_OK);
    ck_assert_int_eq(kelp_rpc_channel_open(peers->loop, address, MESSAGE, &channel, &error),
                     KELP_OK);
    kelp_status status = kelp_rpc_call(channel, CHECKPOINT, request, CALL_MS, &answer, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    ck_assert_int_eq(kelp_wire_decode(answer, &kelp__v1__checkpoint_reply__descriptor, MESSAGE,
                                      &fields, &payload, &error),
                     KELP_OK);
    const Kelp__V1__CheckpointReply *reply = (const Kelp__V1__CheckpointReply *)(void *)fields;
    ck_assert_msg(reply->status == KELP_OK, "%s", reply->error);
    uint64_t serial = reply->serial;
    protobuf_c_message_free_unpacked(fields, NULL);
    kelp_rpc_message_unref(answer);
    kelp_rpc_channel_close(channel);
    return serial;
}

char *peers_plan(uint64_t fingerprint)
{
    struct kelp_error error = {.text = ""};
    struct kelp_tensor tensor = {
        .name = "weight", .rank = 1, .shape = {16384}, .init = KELP_INIT_CONSTANT};
    struct kelp_plan plan = {
        .samples = {64, 0, 0},
        .data_fingerprint = fingerprint,
        .compute_kind = "test",
        .compute_answer = 7,
        .tensor_count = 1,
        .tensors = &tensor,
    };
    char *text = NULL;
    ck_assert_int_eq(kelp_plan_lay_out(&plan, 4, &error), KELP_OK);
    ck_assert_uint_eq(plan.partition_count, PARTITIONS);
    ck_assert_int_eq(kelp_plan_print(&plan, &text, &error), KELP_OK);
    return text;
}

static void fill_hello(Kelp__V1__Hello *hello, const char *job, uint64_t digest, const char *id,
                       uint64_t incarnation)
{
    kelp__v1__hello__init(hello);
    hello->job = (char *)(uintptr_t)(job == NULL ? JOB : job);
    hello->spec_digest = digest;
    hello->id = (char *)(uintptr_t)id;
    hello->incarnation = incarnation;
    hello->protocol = 1;
}

static void send_message(struct kelp_rpc_stream *stream, const ProtobufCMessage *fields)
{
    struct kelp_error error = {.text = ""};
    struct kelp_rpc_message *message = NULL;
    ck_assert_int_eq(kelp_wire_encode(fields, &message, &error), KELP_OK);
    kelp_status status = kelp_rpc_stream_send(stream, message);
    ck_assert(status == KELP_OK || status == KELP_ERR_CLOSED);
}

static void *decode(struct kelp_rpc_message *message, const ProtobufCMessageDescriptor *descriptor)
{
    struct kelp_error error = {.text = ""};
    struct kelp_wire_payload payload;
    ProtobufCMessage *fields = NULL;
    kelp_status status = kelp_wire_decode(message, descriptor, MESSAGE, &fields, &payload, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return fields;
}

/* ---- workers ----------------------------------------------------------------------------------
 */

static void worker_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                           void *user)
{
    struct peer_worker *worker = user;
    Kelp__V1__WorkerCommand *command = decode(message, &kelp__v1__worker_command__descriptor);
    if (command->map != NULL) {
        ck_assert_uint_eq(command->map->n_partitions, PARTITIONS);
        worker->maps++;
        worker->generation = command->map->generation;
        worker->shards = (uint32_t)command->map->n_shards;
        worker->primary_incarnation =
            command->map->shards[command->map->partitions[0]->primary]->incarnation;
    }
    if (command->has_assignment) {
        worker->assigned = true;
        worker->lane_first = command->lane_first;
        worker->lane_count = command->lane_count;
    }
    worker->leave = worker->leave || command->leave;
    if (command->status != KELP_OK) {
        worker->status = command->status;
        (void)snprintf(worker->error, sizeof(worker->error), "%s", command->error);
    }
    if (command->heartbeat > 0) {
        Kelp__V1__WorkerReport report = KELP__V1__WORKER_REPORT__INIT;
        worker->heartbeats++;
        report.heartbeat = command->heartbeat;
        report.lanes_computed = 3;
        if (!worker->mute) {
            send_message(stream, &report.base);
        }
    }
    kelp__v1__worker_command__free_unpacked(command, NULL);
}

static void worker_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                          void *user)
{
    struct peer_worker *worker = user;
    (void)stream;
    (void)status;
    (void)text;
    worker->stream = NULL;
    worker->closes++;
}

static const struct kelp_rpc_stream_events worker_events = {.message = worker_message,
                                                            .closed = worker_closed};

static void worker_join(struct peer_worker *worker)
{
    struct kelp_error error = {.text = ""};
    Kelp__V1__WorkerReport report = KELP__V1__WORKER_REPORT__INIT;
    Kelp__V1__Hello hello;
    char *plan = worker->plan == NULL ? peers_plan(1) : strdup(worker->plan);
    ck_assert_int_eq(
        kelp_rpc_stream_open(worker->channel,
                             &(struct kelp_rpc_stream_options){JOIN, 1000, &worker_events, worker},
                             &worker->stream, &error),
        KELP_OK);
    fill_hello(&hello, worker->job,
               worker->spec_digest == 0 ? worker->peers->spec_digest : worker->spec_digest,
               worker->id, worker->incarnation);
    report.hello = &hello;
    report.plan = plan;
    send_message(worker->stream, &report.base);
    free(plan);
}

/* Every 50 ms: join the leader that etcd names, unless we are there or gave up. */
static void worker_look(void *user)
{
    struct peer_worker *worker = user;
    struct kelp_error error = {.text = ""};
    char address[256];
    if (worker->stream != NULL || worker->status != KELP_OK || worker->leave ||
        (worker->stay && worker->closes > 0)) {
        return;
    }
    if (worker->peers->etcd.server != NULL) {
        peers_leader(worker->peers, address);
    } else {
        (void)snprintf(address, sizeof(address), "%s", worker->address);
    }
    if (address[0] == '\0') {
        return;
    }
    if (worker->channel != NULL && strcmp(address, worker->address) != 0) {
        kelp_rpc_channel_close(worker->channel);
        worker->channel = NULL;
    }
    (void)snprintf(worker->address, sizeof(worker->address), "%s", address);
    if (worker->channel == NULL) {
        ck_assert_int_eq(
            kelp_rpc_channel_open(worker->peers->loop, address, MESSAGE, &worker->channel, &error),
            KELP_OK);
    }
    worker_join(worker);
}

void peer_worker_start(struct peers *peers, struct peer_worker *worker)
{
    worker->peers = peers;
    worker->incarnation = next_incarnation();
    ck_assert_int_eq(kelp_rpc_timer_start(peers->loop, 50, worker_look, worker, &worker->timer),
                     KELP_OK);
}

static bool worker_gone(void *user)
{
    const struct peer_worker *worker = user;
    return worker->stream == NULL;
}

void peer_worker_stop(struct peer_worker *worker)
{
    kelp_rpc_timer_stop(worker->timer);
    if (worker->stream != NULL) {
        kelp_rpc_stream_close(worker->stream, KELP_ERR_CLOSED, "dies"); /* cancels the call */
        peers_wait(worker->peers, worker_gone, worker, "the worker's stream to end");
    }
    if (worker->channel != NULL) {
        kelp_rpc_channel_close(worker->channel);
        worker->channel = NULL;
    }
}

/* ---- shards -----------------------------------------------------------------------------------
 */

/* The answer to the newest order, with all that it points to. */
struct snapshot {
    Kelp__V1__SnapshotReport report;
    Kelp__V1__SnapshotPart parts[64];
    Kelp__V1__SnapshotPart *pointers[64];
    Kelp__V1__ControlWord word;
    char storage[96];
    char digest[33];
};

/* Not answered yet: it is held, or training has not come to its step. */
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

/* As a shard would: its folder with one file. */
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
    ck_assert_msg(kelp_files_write(path, "x", 1, &error) == KELP_OK, "%s", error.text);
}

static void shard_report(struct peer_shard *shard, bool with_hello, Kelp__V1__Record **records,
                         size_t count)
{
    Kelp__V1__ShardReport report = KELP__V1__SHARD_REPORT__INIT;
    Kelp__V1__Hello hello;
    Kelp__V1__ControlWord word = KELP__V1__CONTROL_WORD__INIT;
    struct snapshot snapshot;
    if (shard->stream == NULL) {
        return;
    }
    fill_hello(&hello, shard->job, shard->peers->spec_digest, shard->id, shard->incarnation);
    report.hello = with_hello ? &hello : NULL;
    report.heartbeat = shard->heartbeats;
    report.loaded_generation = shard->loaded;
    report.status = shard->status;
    report.error = shard->error;
    report.n_records = count;
    report.records = records;
    report.waiting = shard->waiting;
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
    send_message(shard->stream, &report.base);
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
    Kelp__V1__ShardCommand *command = decode(message, &kelp__v1__shard_command__descriptor);
    bool first = command->hello != NULL;
    if (first) {
        ck_assert_str_eq(command->spec, shard->peers->spec);
        shard->stream = stream;
        shard->hellos++;
        shard->records_after = command->records_after;
    }
    shard->plan = shard->plan || command->plan[0] != '\0';
    if (command->map != NULL) {
        ck_assert(shard->plan); /* never before the plan */
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
    shard->incarnation = next_incarnation();
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
