#include "tests/lib/cluster/shard_client.h"

#include <check.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/tls/proof.h"

/* ---- the process -------------------------------------------------------------------------------
 */

static void make_job(struct shard_fixture *fixture, const char *const *settings)
{
    static const char *const defaults[] = {"name",
                                           "shards",
                                           "model.kind",
                                           "dlinear",
                                           "data.kind",
                                           "synthetic",
                                           "cluster.lanes",
                                           "4",
                                           "train.optimizer",
                                           "sgd",
                                           "train.lr",
                                           "0.5",
                                           "train.batch_size",
                                           "8",
                                           NULL};
    const char *const *lists[] = {defaults, settings};
    struct kelp_error error = {.text = ""};

    fixture->job_file = kelp_job_file_create();
    ck_assert_ptr_nonnull(fixture->job_file);
    for (size_t list = 0; list < 2; list++) {
        for (const char *const *entry = lists[list]; entry && *entry; entry += 2) {
            kelp_status status =
                kelp_job_file_set(fixture->job_file, entry[0], entry[1], KELP_ORIGIN_FLAG, &error);
            ck_assert_msg(status == KELP_OK, "%s", error.text);
        }
    }
    kelp_status status = kelp_job_file_finish(fixture->job_file, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    fixture->job = kelp_job_file_job(fixture->job_file);
}

static void make_plan(struct shard_fixture *fixture, uint64_t elements, uint64_t samples)
{
    struct kelp_plan *plan = &fixture->plan;
    struct kelp_error error = {.text = ""};

    plan->samples[KELP_SPLIT_TRAIN] = samples;
    plan->samples[KELP_SPLIT_VAL] = 4;
    plan->samples[KELP_SPLIT_TEST] = 4;
    (void)snprintf(plan->compute_kind, sizeof(plan->compute_kind), "test");
    plan->tensor_count = 1;
    plan->tensors = calloc(1, sizeof(*plan->tensors));
    ck_assert_ptr_nonnull(plan->tensors);
    (void)snprintf(plan->tensors[0].name, sizeof(plan->tensors[0].name), "weight");
    plan->tensors[0].rank = 1;
    plan->tensors[0].shape[0] = elements;
    plan->tensors[0].init = KELP_INIT_UNIFORM;
    plan->tensors[0].init_a = 0.25f;
    kelp_status status = kelp_plan_lay_out(plan, fixture->job->cluster.max_shards, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    status = kelp_plan_print(plan, &fixture->plan_text, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

struct kelp_process *shard_fixture_spawn_logged(const struct shard_fixture *fixture, int log_fd)
{
    const char *folder = getenv("KELP_BIN"); /* set by ctest */
    char path[KELP_PROCESS_PATH_MAX];
    struct kelp_process *process = NULL;
    struct kelp_error error = {.text = ""};

    (void)snprintf(path, sizeof(path), "%s/kelp-ps", folder ? folder : "build/release/bin");
    const char *const argv[] = {path,   "--etcd",    fixture->etcd.url, "--job",       "shards",
                                "--id", fixture->id, "--insecure",      "--log-level", "debug",
                                NULL};
    const struct kelp_process_options options = {
        .argv = argv, .stdout_fd = KELP_PROCESS_INHERIT, .stderr_fd = log_fd};
    kelp_status status = kelp_process_start(&options, &process, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    return process;
}

struct kelp_process *shard_fixture_spawn(const struct shard_fixture *fixture)
{
    return shard_fixture_spawn_logged(fixture, getenv("KELP_TEST_VERBOSE") ? KELP_PROCESS_INHERIT
                                                                           : KELP_PROCESS_NULL);
}

/* True when the entry is there and names another incarnation. */
static bool read_entry(struct shard_fixture *fixture, uint64_t not_this)
{
    struct kelp_etcd_range range;
    struct kelp_error error = {.text = ""};
    bool found = false;
    char key[64];

    (void)snprintf(key, sizeof(key), "/kelp/shards/ps/%s", fixture->id);
    if (kelp_etcd_get(fixture->client, key, 2000, &range, &error) != KELP_OK) {
        return false;
    }
    if (range.count == 1) {
        char incarnation[32];
        cJSON *json = NULL;
        ck_assert_int_eq(
            kelp_json_parse(range.pairs[0].value, range.pairs[0].value_bytes, &json, &error),
            KELP_OK);
        ck_assert_int_eq(
            kelp_json_string(json, "incarnation", incarnation, sizeof(incarnation), &error),
            KELP_OK);
        ck_assert_int_eq(
            kelp_json_string(json, "address", fixture->address, sizeof(fixture->address), &error),
            KELP_OK);
        cJSON_Delete(json);
        uint64_t value = strtoull(incarnation, NULL, 10);
        found = value != not_this;
        fixture->incarnation = found ? value : fixture->incarnation;
    }
    kelp_etcd_range_fini(&range);
    return found;
}

void shard_fixture_await_entry(struct shard_fixture *fixture, uint64_t not_this)
{
    uint64_t until = kelp_clock_ms() + SHARD_WAIT_MS;

    while (!read_entry(fixture, not_this)) {
        struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
        ck_assert_msg(kelp_clock_ms() < until, "the shard does not register");
        (void)nanosleep(&pause, NULL);
    }
}

static void open_channel(struct shard_fixture *fixture)
{
    struct kelp_error error = {.text = ""};
    kelp_status status = kelp_rpc_channel_open(fixture->loop, fixture->address, KELP_ROLE_SHARD,
                                               64u << 20, &fixture->channel, &error);

    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

void shard_fixture_lead(struct shard_fixture *fixture, const char *proof)
{
    char digest[KELP_PROOF_HEX + 1];
    char value[256];
    struct kelp_error error = {.text = ""};

    ck_assert_int_eq(kelp_proof_digest(proof, digest, &error), KELP_OK);
    (void)snprintf(value, sizeof(value),
                   "{\"id\":\"coordinator-1\",\"address\":\"127.0.0.1:1\",\"incarnation\":\"77\","
                   "\"proof\":\"%s\"}",
                   digest);
    kelp_status status =
        kelp_etcd_put(fixture->client, "/kelp/shards/coordinator", value, 0, 5000, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

void shard_fixture_start(struct shard_fixture *fixture, const char *const *settings,
                         uint64_t elements, uint64_t samples)
{
    struct kelp_error error = {.text = ""};
    char *spec = NULL;

    memset(fixture, 0, sizeof(*fixture));
    (void)snprintf(fixture->id, sizeof(fixture->id), "shard-0");
    make_job(fixture, settings);
    make_plan(fixture, elements, samples);
    etcd_fixture_start(&fixture->etcd);
    fixture->client = etcd_fixture_client(&fixture->etcd);
    fixture->process = shard_fixture_spawn(fixture); /* waits for the job */
    ck_assert_int_eq(kelp_job_file_print(fixture->job_file, false, &spec, &error), KELP_OK);
    shard_fixture_lead(fixture, SHARD_PROOF);
    kelp_status status = kelp_etcd_put(fixture->client, "/kelp/shards/spec", spec, 0, 5000, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    free(spec);
    shard_fixture_await_entry(fixture, 0);
    kelp_rpc_global_init();
    ck_assert_int_eq(kelp_rpc_loop_create(&fixture->loop, &error), KELP_OK);
    open_channel(fixture);
}

void shard_fixture_join(struct shard_fixture *fixture, const struct shard_fixture *first,
                        const char *id)
{
    *fixture = *first;
    (void)snprintf(fixture->id, sizeof(fixture->id), "%s", id);
    fixture->process = shard_fixture_spawn(fixture);
    shard_fixture_await_entry(fixture, 0);
    open_channel(fixture);
}

/* The process is asked to end when it still runs, and says by its status that nothing was wrong: a
 * sanitizer's findings and leaks give another one. */
static void stop_process(struct shard_fixture *fixture)
{
    int status = 0;

    if (kelp_process_wait(fixture->process, 0, NULL) == KELP_ERR_TIMEOUT) {
        kelp_process_signal(fixture->process, SIGINT); /* without being drained */
        ck_assert_int_eq(kelp_process_wait(fixture->process, SHARD_WAIT_MS, &status), KELP_OK);
        ck_assert(WIFEXITED(status));
        ck_assert_int_eq(WEXITSTATUS(status), 0);
    }
    kelp_process_destroy(fixture->process);
}

void shard_fixture_leave(struct shard_fixture *fixture, bool kill)
{
    kelp_rpc_channel_close(fixture->channel);
    if (kill) {
        kelp_process_destroy(fixture->process);
    } else {
        stop_process(fixture);
    }
}

void shard_fixture_stop(struct shard_fixture *fixture)
{
    kelp_rpc_channel_close(fixture->channel);
    while (kelp_rpc_loop_run(fixture->loop, 10)) {
    }
    kelp_rpc_loop_destroy(fixture->loop);
    kelp_rpc_global_fini();
    stop_process(fixture);
    kelp_etcd_close(fixture->client);
    etcd_fixture_stop(&fixture->etcd);
    kelp_plan_fini(&fixture->plan);
    kelp_job_file_destroy(fixture->job_file);
    free(fixture->plan_text);
}

/* ---- streams -----------------------------------------------------------------------------------
 */

static void on_message(struct kelp_rpc_stream *rpc, struct kelp_rpc_message *message, void *user)
{
    struct shard_stream *stream = user;

    (void)rpc;
    ck_assert_uint_lt(stream->message_count, SHARD_MESSAGES_MAX);
    kelp_rpc_message_ref(message);
    stream->messages[stream->message_count++] = message;
}

static void on_closed(struct kelp_rpc_stream *rpc, kelp_status status, const char *text, void *user)
{
    struct shard_stream *stream = user;

    (void)rpc;
    stream->stream = NULL;
    stream->closed = true;
    stream->status = status;
    (void)snprintf(stream->text, sizeof(stream->text), "%s", text ? text : "");
}

static const struct kelp_rpc_stream_events stream_events = {.message = on_message,
                                                            .closed = on_closed};

void shard_stream_open(struct shard_stream *stream, struct shard_fixture *fixture,
                       const char *method)
{
    char path[128];
    struct kelp_error error = {.text = ""};

    memset(stream, 0, sizeof(*stream));
    stream->fixture = fixture;
    (void)snprintf(path, sizeof(path), "/kelp.v1.ParameterServer/%s", method);
    kelp_status status =
        kelp_rpc_stream_open(fixture->channel,
                             &(struct kelp_rpc_stream_options){.path = path,
                                                               .first_message_ms = SHARD_WAIT_MS,
                                                               .events = &stream_events,
                                                               .user = stream},
                             &stream->stream, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

void shard_stream_await_closed(struct shard_stream *stream)
{
    uint64_t until = kelp_clock_ms() + SHARD_WAIT_MS;

    while (!stream->closed) {
        ck_assert_msg(kelp_clock_ms() < until, "the stream does not end");
        (void)kelp_rpc_loop_run(stream->fixture->loop, 100);
    }
}

void shard_stream_close(struct shard_stream *stream)
{
    if (stream->stream) {
        kelp_rpc_stream_close(stream->stream, KELP_OK, "done");
    }
    shard_stream_await_closed(stream);
    while (stream->message_count > 0) {
        kelp_rpc_message_unref(stream->messages[--stream->message_count]);
    }
}

void shard_stream_send(struct shard_stream *stream, const ProtobufCMessage *fields,
                       const void *payload, size_t payload_bytes)
{
    struct kelp_rpc_message *message = NULL;
    struct kelp_error error = {.text = ""};

    kelp_status status = kelp_wire_encode_payload(fields, payload_bytes, &message, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    ck_assert_int_eq(kelp_rpc_message_copy(message, payload, payload_bytes), KELP_OK);
    ck_assert_int_eq(kelp_rpc_stream_send(stream->stream, message), KELP_OK);
}

void shard_stream_send_raw(struct shard_stream *stream, const void *bytes, size_t length)
{
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    ck_assert_ptr_nonnull(message);
    ck_assert_int_eq(kelp_rpc_message_copy(message, bytes, length), KELP_OK);
    ck_assert_int_eq(kelp_rpc_stream_send(stream->stream, message), KELP_OK);
}

void *shard_stream_take(struct shard_stream *stream, const ProtobufCMessageDescriptor *descriptor,
                        struct kelp_rpc_message **ret_message,
                        struct kelp_wire_payload *ret_payload)
{
    uint64_t until = kelp_clock_ms() + SHARD_WAIT_MS;
    struct kelp_error error = {.text = ""};
    struct kelp_wire_payload payload;
    ProtobufCMessage *fields = NULL;

    while (stream->message_count == 0) {
        ck_assert_msg(!stream->closed, "the stream ended: %s", stream->text);
        ck_assert_msg(kelp_clock_ms() < until, "no message comes");
        (void)kelp_rpc_loop_run(stream->fixture->loop, 100);
    }
    struct kelp_rpc_message *message = stream->messages[0];
    stream->message_count--;
    memmove(stream->messages, stream->messages + 1,
            stream->message_count * sizeof(stream->messages[0]));
    kelp_status status = kelp_wire_decode(message, descriptor, 4u << 20, &fields, &payload, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    if (ret_payload) {
        *ret_payload = payload;
    }
    if (ret_message) {
        *ret_message = message;
    } else {
        kelp_rpc_message_unref(message);
    }
    return fields;
}

void shard_stream_pass(struct shard_stream *stream, uint32_t ms)
{
    int64_t until = (int64_t)kelp_clock_ms() + ms;

    for (int64_t left = ms; left > 0; left = until - (int64_t)kelp_clock_ms()) {
        (void)kelp_rpc_loop_run(stream->fixture->loop, (int)left);
    }
}

/* ---- the coordinator's side --------------------------------------------------------------------
 */

void shard_hello(const struct shard_fixture *fixture, Kelp__V1__Hello *hello, const char *id)
{
    kelp__v1__hello__init(hello);
    hello->job = (char *)(uintptr_t)fixture->job->name;
    hello->spec_digest = kelp_job_file_digest(fixture->job_file);
    hello->id = (char *)(uintptr_t)id;
    hello->incarnation = 77;
    hello->protocol = 1;
}

void shard_send_map(struct shard_stream *control, uint64_t generation, bool with_hello)
{
    struct shard_fixture *fixture = control->fixture;
    uint32_t count = fixture->plan.partition_count;
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Hello hello;
    Kelp__V1__Map map = KELP__V1__MAP__INIT;
    Kelp__V1__ShardPlace shard = KELP__V1__SHARD_PLACE__INIT;
    Kelp__V1__ShardPlace *shards[] = {&shard};
    Kelp__V1__PartitionPlace *places = calloc(count, sizeof(*places));
    Kelp__V1__PartitionPlace **pointers = calloc(count, sizeof(*pointers));

    ck_assert_ptr_nonnull(places);
    ck_assert_ptr_nonnull(pointers);
    for (uint32_t i = 0; i < count; i++) {
        kelp__v1__partition_place__init(&places[i]);
        places[i].partition = i;
        places[i].map_epoch = generation;
        pointers[i] = &places[i];
    }
    shard.shard = (char *)(uintptr_t) "shard-0";
    shard.incarnation = fixture->incarnation;
    shard.address = fixture->address;
    map.generation = generation;
    map.n_shards = 1;
    map.shards = shards;
    map.n_partitions = count;
    map.partitions = pointers;
    if (with_hello) {
        shard_hello(fixture, &hello, "coordinator-1");
        command.hello = &hello;
        command.proof = (char *)(uintptr_t)SHARD_PROOF; /* only read */
        command.plan = fixture->plan_text;
    }
    command.map = &map;
    shard_stream_send(control, &command.base, NULL, 0);
    free(places);
    free(pointers);
}

Kelp__V1__ShardReport *shard_take_report(struct shard_stream *control)
{
    return shard_stream_take(control, &kelp__v1__shard_report__descriptor, NULL, NULL);
}

void shard_load(struct shard_stream *control, uint64_t generation)
{
    uint64_t loaded = 0;

    shard_send_map(control, generation, true);
    while (loaded != generation) {
        Kelp__V1__ShardReport *report = shard_take_report(control);
        ck_assert_msg(report->status == KELP_OK, "%s", report->error);
        loaded = report->loaded_generation;
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
}
