#include "tests/lib/attack/plays.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/status.h"
#include "proto/kelp.pb-c.h"

#define PARTITIONS 2
#define IDLE       30 /* workers without work */
#define BEATS      20
#define HELLO_MS   30 /* wait for the answer to a hello, which is not read */

#define TEXT(text) ((char *)(uintptr_t)(text)) /* messages are only read */

static const char *played_job = "";
static const char *played_plan = "";
static uint64_t played_digest;

void kelp_plays_name(const char *job, uint64_t spec_digest, const char *plan)
{
    played_plan = plan;
    played_job = job;
    played_digest = spec_digest;
}

static void fill_hello(Kelp__V1__Hello *hello, const char *id)
{
    kelp__v1__hello__init(hello);
    hello->job = TEXT(played_job);
    hello->spec_digest = played_digest;
    hello->id = TEXT(id);
    hello->incarnation = 7;
    hello->protocol = 1;
}

/* Joins with the id of an existing worker, and a plan without samples. */
void kelp_play_join(struct kelp_http2 *client, uint32_t stream)
{
    Kelp__V1__WorkerReport report = KELP__V1__WORKER_REPORT__INIT;
    Kelp__V1__Hello hello;

    fill_hello(&hello, "worker-0");
    report.hello = &hello;
    report.plan = TEXT("{\"samples\":[0,0,0],\"data_fingerprint\":\"0000000000000001\","
                       "\"compute_kind\":\"none\",\"compute_answer\":\"0000000000000001\","
                       "\"partitions\":1,\"tensors\":[]}");
    (void)kelp_http2_send_message(client, stream, &report.base);
}

/* Reports that it has what the newest command tells: a worker that reports this is not lost. */
static void report_on(struct kelp_http2 *client, uint32_t stream)
{
    Kelp__V1__WorkerReport report = KELP__V1__WORKER_REPORT__INIT;
    size_t count = 0;
    const uint8_t *bytes = kelp_http2_newest(client, stream, &count);
    Kelp__V1__WorkerCommand *command =
        bytes ? kelp__v1__worker_command__unpack(NULL, count, bytes) : NULL;

    if (command) {
        report.news = true;
        report.assignment_epoch = command->assignment_epoch;
        report.generation = 1;
        (void)kelp_http2_send_message(client, stream, &report.base);
        kelp__v1__worker_command__free_unpacked(command, NULL);
    }
}

void kelp_play_join_idle(struct kelp_http2 *client, uint32_t stream)
{
    uint32_t streams[IDLE] = {stream};

    for (unsigned i = 0; i < IDLE; i++) {
        Kelp__V1__WorkerReport report = KELP__V1__WORKER_REPORT__INIT;
        Kelp__V1__Hello hello;
        char id[32];
        (void)snprintf(id, sizeof(id), "idle-%u", i);
        fill_hello(&hello, id);
        report.hello = &hello;
        report.plan = TEXT(played_plan);
        streams[i] = i > 0 ? kelp_http2_call(client, "/kelp.v1.Coordinator/Join") : stream;
        (void)kelp_http2_send_message(client, streams[i], &report.base);
        kelp_http2_await(client, streams[i], 1, HELLO_MS);
    }
    for (unsigned beat = 0; beat < BEATS; beat++) {
        kelp_http2_run(client, 0, HELLO_MS);
        for (unsigned i = 0; i < IDLE; i++) {
            report_on(client, streams[i]);
        }
    }
}

/* Opens a generation that makes the current one old, with the partitions at the attacker's
 * address. */
void kelp_play_open_generation(struct kelp_http2 *client, uint32_t stream)
{
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Map map = KELP__V1__MAP__INIT;
    Kelp__V1__ShardPlace place = KELP__V1__SHARD_PLACE__INIT;
    Kelp__V1__ShardPlace *places[] = {&place};
    Kelp__V1__Hello hello;

    fill_hello(&hello, "coordinator-0");
    place.shard = TEXT("shard-0");
    place.incarnation = 7;
    place.address = TEXT("127.0.0.1:1");
    map.generation = UINT64_C(1) << 40;
    map.n_shards = 1;
    map.shards = places;
    command.hello = &hello;
    command.map = &map;
    (void)kelp_http2_send_message(client, stream, &command.base);
}

/* Sends an order after which no order of the leader would be accepted. */
void kelp_play_order_last(struct kelp_http2 *client, uint32_t stream)
{
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__SnapshotOrder order = KELP__V1__SNAPSHOT_ORDER__INIT;
    Kelp__V1__Hello hello;

    fill_hello(&hello, "coordinator-0");
    order.serial = UINT64_MAX;
    order.generation = 1;
    order.step = UINT64_MAX;
    order.folder = TEXT("step-1.g1");
    command.hello = &hello;
    command.snapshot = &order;
    (void)kelp_http2_send_message(client, stream, &command.base);
}

/* Takes one of the few streams for leaders, and stays silent. */
void kelp_play_stay_silent(struct kelp_http2 *client, uint32_t stream)
{
    (void)client;
    (void)stream;
}

void kelp_play_pause_job(struct kelp_http2 *client, uint32_t stream)
{
    Kelp__V1__CheckpointRequest request = KELP__V1__CHECKPOINT_REQUEST__INIT;

    request.pause = true;
    (void)kelp_http2_send_message(client, stream, &request.base);
    kelp_http2_finish(client, stream);
}

void kelp_play_look(struct kelp_http2 *client, uint32_t stream)
{
    (void)kelp_http2_send(client, stream, NULL, 0, 0);
    kelp_http2_finish(client, stream);
}

/* A gradient of zeros for all lanes, with an invented control word. */
void kelp_play_push_zeros(struct kelp_http2 *client, uint32_t stream)
{
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;
    Kelp__V1__ControlWord word = KELP__V1__CONTROL_WORD__INIT;
    Kelp__V1__PushItem items[PARTITIONS];
    Kelp__V1__PushItem *pointers[PARTITIONS];
    Kelp__V1__Hello hello;

    fill_hello(&hello, "worker-0");
    word.version = 1;
    word.kind = 1;
    word.sample_count = 32;
    word.lr = 1e6;
    for (uint32_t i = 0; i < PARTITIONS; i++) {
        kelp__v1__push_item__init(&items[i]);
        items[i].partition = i;
        items[i].map_epoch = 1;
        items[i].lane_count = 4;
        pointers[i] = &items[i];
    }
    request.hello = &hello;
    request.generation = 1;
    request.word = &word;
    request.n_push = PARTITIONS;
    request.push = pointers;
    (void)kelp_http2_send_message(client, stream, &request.base);
}

/* As many pulls as fit into a message, all of them empty. */
void kelp_play_pull_nothing(struct kelp_http2 *client, uint32_t stream)
{
    const size_t count = 900000;
    uint8_t *items = malloc(2 * count);

    for (size_t i = 0; items && i < count; i++) {
        items[2 * i] = 0x2a; /* field 5, pull */
        items[2 * i + 1] = 0;
    }
    (void)(items && kelp_http2_send(client, stream, items, 2 * count, 2 * count));
    free(items);
}

/* Half of a large message, before any hello. */
void kelp_play_send_half(struct kelp_http2 *client, uint32_t stream)
{
    static const uint8_t zeros[1u << 20];

    (void)kelp_http2_send(client, stream, zeros, sizeof(zeros), 2 * sizeof(zeros));
}

/* Pulls weights again and again without reading: the connection grants no window. */
void kelp_play_pull_unread(struct kelp_http2 *client, uint32_t stream)
{
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;
    Kelp__V1__PullItem items[64];
    Kelp__V1__PullItem *pointers[64];
    Kelp__V1__Hello hello;

    fill_hello(&hello, "worker-7");
    request.hello = &hello;
    request.generation = 1;
    (void)kelp_http2_send_message(client, stream, &request.base);
    kelp_http2_run(client, stream, HELLO_MS);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(items); i++) {
        kelp__v1__pull_item__init(&items[i]);
        items[i].partition = (uint32_t)(i % PARTITIONS);
        items[i].map_epoch = 1;
        pointers[i] = &items[i];
    }
    request.hello = NULL;
    request.n_pull = KELP_ARRAY_COUNT(items);
    request.pull = pointers;
    for (unsigned i = 0; i < 500 && !kelp_http2_answer(client, stream).ended; i++) {
        (void)kelp_http2_send_message(client, stream, &request.base);
    }
}

/* 40 MiB of headers without an end. */
void kelp_play_flood_headers(struct kelp_http2 *client, uint32_t stream)
{
    static const uint8_t zeros[16384];

    (void)kelp_http2_frame(client, KELP_HTTP2_HEADERS, 0, stream + 2, zeros, 0);
    for (unsigned i = 0; i < 2560 && kelp_http2_alive(client); i++) {
        (void)kelp_http2_frame(client, KELP_HTTP2_CONTINUATION, 0, stream + 2, zeros,
                               sizeof(zeros));
        kelp_http2_run(client, 0, 0);
    }
}

void kelp_play_reset_streams(struct kelp_http2 *client, uint32_t stream)
{
    static const uint8_t cancel[4] = {0, 0, 0, 8};

    (void)stream;
    for (unsigned i = 0; i < 1000 && kelp_http2_alive(client); i++) {
        uint32_t next = kelp_http2_call(client, "/kelp.v1.ParameterServer/Exchange");
        (void)kelp_http2_frame(client, KELP_HTTP2_RST_STREAM, 0, next, cancel, sizeof(cancel));
        kelp_http2_run(client, 0, 0);
    }
}
