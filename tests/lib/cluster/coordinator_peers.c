/* etcd, coordinators, and requests to them. */
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

static void make_spec(struct peers *peers, const char *detect)
{
    struct kelp_error error = {.text = ""};
    struct kelp_job_file *file = kelp_job_file_create();
    const char *settings[][2] = {
        {"name", JOB},
        {"model.kind", "dlinear"},
        {"data.kind", "synthetic"},
        {"train.epochs", "1000"}, /* 2000 steps: no order is moved to the last step */
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

/* A running coordinator must stop cleanly when asked: sanitizers report through its exit code. */
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
                          "--insecure",
                          peers->advertise == NULL ? NULL : "--advertise",
                          peers->advertise,
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
        /* Handle all events that have come: a request may take longer than the next events. */
        (void)kelp_rpc_loop_run(peers->loop, 20);
        for (int i = 0; i < TURN_EVENTS && kelp_rpc_loop_run(peers->loop, 0); i++) {
        }
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
    ck_assert_int_eq(kelp_rpc_channel_open(peers->loop, address, KELP_ROLE_COORDINATOR, MESSAGE,
                                           &channel, &error),
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
    ck_assert_int_eq(kelp_rpc_channel_open(peers->loop, address, KELP_ROLE_COORDINATOR, MESSAGE,
                                           &channel, &error),
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
    ck_assert_int_eq(kelp_plan_lay_out(&plan, PARTITIONS, &error), KELP_OK);
    ck_assert_uint_eq(plan.partition_count, PARTITIONS);
    ck_assert_int_eq(kelp_plan_print(&plan, &text, &error), KELP_OK);
    return text;
}

/* ---- messages ------------------------------------------------------------------------------ */

uint64_t peer_next_incarnation(void)
{
    static uint64_t last = 1000;
    return ++last;
}

void peer_fill_hello(Kelp__V1__Hello *hello, const char *job, uint64_t digest, const char *id,
                     uint64_t incarnation)
{
    kelp__v1__hello__init(hello);
    hello->job = (char *)(uintptr_t)(job == NULL ? JOB : job);
    hello->spec_digest = digest;
    hello->id = (char *)(uintptr_t)id;
    hello->incarnation = incarnation;
    hello->protocol = 1;
}

void peer_send_message(struct kelp_rpc_stream *stream, const ProtobufCMessage *fields)
{
    struct kelp_error error = {.text = ""};
    struct kelp_rpc_message *message = NULL;
    ck_assert_int_eq(kelp_wire_encode(fields, &message, &error), KELP_OK);
    kelp_status status = kelp_rpc_stream_send(stream, message);
    ck_assert(status == KELP_OK || status == KELP_ERR_CLOSED);
}

void *peer_decode(struct kelp_rpc_message *message, const ProtobufCMessageDescriptor *descriptor)
{
    struct kelp_error error = {.text = ""};
    struct kelp_wire_payload payload;
    ProtobufCMessage *fields = NULL;
    kelp_status status = kelp_wire_decode(message, descriptor, MESSAGE, &fields, &payload, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return fields;
}
