/* What a real kelp-ps refuses of coordinators and workers: strangers, garbage, another model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cluster/shard_worker.h"
#include "tests/lib/suite.h"

#define ELEMENTS 5000 /* four partitions, the last one shorter */
#define SAMPLES  16   /* two steps of 8 an epoch */

static struct shard_fixture fixture;
static struct shard_stream control;

static void set_up(void)
{
    static const char *const settings[] = {"train.epochs", "1", NULL};

    shard_fixture_start(&fixture, settings, ELEMENTS, SAMPLES);
    shard_stream_open(&control, &fixture, "Control");
}

static void tear_down(void)
{
    shard_stream_close(&control);
    shard_fixture_stop(&fixture);
}

KELP_SUITE(.before = etcd_fixture_require)

static void take_empty_reply(struct shard_stream *worker)
{
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(worker, NULL, NULL);
    ck_assert_int_eq(reply->status, KELP_OK);
    ck_assert_uint_eq(reply->n_answer, 0);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
}

KELP_CASE("refusals", .timeout_s = 60, .setup = set_up, .teardown = tear_down)

/* Nothing is loaded: workers are asked to come back. */
KELP_TEST(nothing_loaded)
{
    struct shard_stream worker;
    struct shard_request request;

    shard_stream_open(&worker, &fixture, "Exchange");
    shard_request_init(&request, 0);
    shard_request_hello(&request, &fixture);
    shard_stream_send(&worker, &request.message.base, NULL, 0);
    take_empty_reply(&worker); /* a hello is answered */
    shard_request_init(&request, 1);
    (void)shard_request_pull(&request, 0, KELP__V1__PULL_MODE__PULL_CURRENT, 0);
    shard_stream_send(&worker, &request.message.base, NULL, 0);
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(&worker, NULL, NULL);
    ck_assert_int_eq(reply->answer[0]->status, KELP_ERR_BUSY);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    shard_stream_close(&worker);
}

static const struct {
    const char *method;
    const char *job;
    bool other_digest;
    uint32_t protocol;
    bool missing;
    kelp_status status;
    const char *text;
    const char *version; /* NULL: none, as of a client that is not Kelp's */
} hellos[] = {
    {"Exchange", "other", false, 1, false, KELP_ERR_MISMATCH, "worker-1 belongs to job other, but ",
     NULL},
    {"Exchange", "shards", true, 1, false, KELP_ERR_MISMATCH, "has another text of job shards",
     NULL},
    {"Exchange", "shards", false, 9, false, KELP_ERR_MISMATCH, "worker-1 speaks protocol 9, but ",
     NULL},
    {"Exchange", "shards", false, 1, true, KELP_ERR_FORMAT, "must carry a hello", NULL},
    {"Exchange", "shards", false, 1, false, KELP_ERR_MISMATCH, "worker-1 has version 0.0.9, but ",
     "0.0.9"},
    {"Control", "other", false, 1, false, KELP_ERR_MISMATCH, "worker-1 belongs to job other, but ",
     NULL},
    {"Control", "shards", true, 1, false, KELP_ERR_MISMATCH, "has another text of job shards",
     NULL},
    {"Control", "shards", false, 9, false, KELP_ERR_MISMATCH, "worker-1 speaks protocol 9, but ",
     NULL},
    {"Control", "shards", false, 1, true, KELP_ERR_FORMAT, "must carry a hello", NULL},
    {"Control", "shards", false, 1, false, KELP_ERR_MISMATCH, "worker-1 has version 0.0.9, but ",
     "0.0.9"},
};

/* Another job, another text of it, another protocol or version: refused in clear words. */
KELP_LOOP_TEST(hello_is_checked, 0, KELP_ARRAY_COUNT(hellos))
{
    struct shard_stream stream;
    Kelp__V1__Hello hello;
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    bool exchange = strcmp(hellos[_i].method, "Exchange") == 0;

    shard_hello(&fixture, &hello, "worker-1");
    hello.job = (char *)(uintptr_t)hellos[_i].job;
    hello.spec_digest += hellos[_i].other_digest;
    hello.protocol = hellos[_i].protocol;
    if (hellos[_i].version) {
        hello.version = (char *)(uintptr_t)hellos[_i].version; /* only read */
    }
    request.hello = hellos[_i].missing ? NULL : &hello;
    command.hello = request.hello;
    command.proof = (char *)(uintptr_t)SHARD_PROOF; /* only read */
    shard_stream_open(&stream, &fixture, hellos[_i].method);
    shard_stream_send(&stream, exchange ? &request.base : &command.base, NULL, 0);
    if (exchange) {
        Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(&stream, NULL, NULL);
        ck_assert_int_eq(reply->status, hellos[_i].status);
        ck_assert_ptr_nonnull(strstr(reply->error, hellos[_i].text));
        kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    } else {
        Kelp__V1__ShardReport *report = shard_take_report(&stream);
        ck_assert_int_eq(report->status, hellos[_i].status);
        ck_assert_ptr_nonnull(strstr(report->error, hellos[_i].text));
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
    shard_stream_await_closed(&stream);
    ck_assert_int_eq(stream.status, hellos[_i].status);
    ck_assert_ptr_nonnull(strstr(stream.text, hellos[_i].text));
    shard_stream_close(&stream);
}

/* Bytes that are no message end their stream and nothing else. */
KELP_TEST(garbage)
{
    struct shard_stream stream;
    uint8_t bytes[600];
    uint32_t state = 12345;

    shard_load(&control, 1);
    for (int round = 0; round < 40; round++) {
        for (size_t i = 0; i < sizeof(bytes); i++) {
            state = state * 1664525u + 1013904223u;
            bytes[i] = (uint8_t)(state >> 24);
        }
        bytes[0] |= 7; /* a wire type that does not exist: never a message by chance */
        shard_stream_open(&stream, &fixture, round % 2 == 0 ? "Exchange" : "Control");
        shard_stream_send_raw(&stream, bytes, 1 + state % sizeof(bytes));
        shard_stream_await_closed(&stream);
        ck_assert_int_ne(stream.status, KELP_OK);
        shard_stream_close(&stream);
    }
    float *weights = shard_worker_new_flat(&fixture);
    struct kelp_control_word word;
    shard_worker_open(&stream, &fixture, 1, weights, &word);
    shard_stream_close(&stream);
    free(weights);
}

/* A message cut off at any byte ends its stream, or is one that says less. */
KELP_TEST(truncated)
{
    struct shard_request request;
    struct kelp_control_word word = {.kind = KELP_STEP_TRAIN, .sample_count = 8, .lr = 0.5};
    uint8_t bytes[1024];

    shard_load(&control, 1);
    shard_request_init(&request, 1);
    shard_request_hello(&request, &fixture);
    shard_request_word(&request, &word);
    shard_request_push_lanes(&request, &fixture, 0, 4, true);
    request.message.payload.data = (uint8_t *)(uintptr_t) "12345678";
    request.message.payload.len = 8;
    size_t length = protobuf_c_message_get_packed_size(&request.message.base);
    ck_assert_uint_le(length, sizeof(bytes));
    (void)protobuf_c_message_pack(&request.message.base, bytes);
    for (size_t cut = 1; cut < length; cut += 7) {
        struct shard_stream stream;
        shard_stream_open(&stream, &fixture, "Exchange");
        shard_stream_send_raw(&stream, bytes, cut);
        while (!stream.closed && stream.message_count == 0) {
            (void)kelp_rpc_loop_run(fixture.loop, 100);
        }
        shard_stream_close(&stream);
    }
    ck_assert_int_eq(kelp_process_wait(fixture.process, 0, NULL), KELP_ERR_TIMEOUT);
}

enum defect {
    OFFSET_BEYOND,
    LENGTH_BEYOND,
    OFFSET_OVERFLOW,
    WRONG_LENGTH,
    NO_SUCH_PARTITION,
    NO_WORD,
    BAD_KIND,
    BAD_SUMS,
    BAD_TABLE,
    BAD_PUSH_KIND,
    BAD_PULL_TABLE,
    LONG_DECISION,
    LONG_PART,
    DEFECT_COUNT
};

/* Requests that mean another model, or nothing: the stream ends with a text, nothing is taken. */
KELP_LOOP_TEST(defects_end_the_stream, 0, DEFECT_COUNT)
{
    struct shard_stream worker;
    struct kelp_control_word word;
    struct shard_request request;
    static double
        zeros[KELP_METRIC_SUM_COUNT + KELP_STEP_DECISION_MAX + 1]; /* more than any may be */
    Kelp__V1__StepPart part = KELP__V1__STEP_PART__INIT, *parts[] = {&part};
    float *weights = shard_worker_new_flat(&fixture);

    shard_load(&control, 1);
    shard_worker_open(&worker, &fixture, 1, weights, &word);
    shard_request_init(&request, 1);
    shard_request_word(&request, &word);
    shard_request_push_lanes(&request, &fixture, 0, 4, true);
    Kelp__V1__PushItem *item = &request.pushes[0];
    switch ((enum defect)_i) {
    case OFFSET_BEYOND:
        item->offset = shard_worker_flat_bytes(&fixture) + 1;
        item->length = 0;
        break;
    case LENGTH_BEYOND:
        item->offset = shard_worker_flat_bytes(&fixture) - 4;
        break;
    case OFFSET_OVERFLOW:
        item->offset = UINT64_MAX - 3;
        break;
    case WRONG_LENGTH:
        item->length -= 4;
        break;
    case NO_SUCH_PARTITION:
        item->partition = 1000000;
        break;
    case NO_WORD:
        request.message.word = NULL;
        break;
    case BAD_KIND:
        request.word.kind = 77;
        break;
    case BAD_SUMS:
        item->n_sums = KELP_METRIC_SUM_COUNT + 1;
        item->sums = zeros;
        break;
    case BAD_TABLE:
        item->table = 1;
        break;
    case BAD_PUSH_KIND:
        item->kind = KELP_PRECISION_BFLOAT16; /* the job has float32 */
        break;
    case BAD_PULL_TABLE:
        request.message.n_push = 0;
        (void)shard_request_pull(&request, 0, KELP__V1__PULL_MODE__PULL_CURRENT, 0);
        request.pulls[0].table = 4;
        break;
    case LONG_DECISION:
        request.message.n_push = 0;
        request.message.n_decision = KELP_STEP_DECISION_MAX + 1;
        request.message.decision = zeros;
        break;
    case LONG_PART:
        request.message.n_push = 0;
        request.message.n_part = 1;
        request.message.part = parts;
        part.partition = 1;
        part.n_values = KELP_DECISION_SHARE_VALUES_MAX + 1;
        part.values = zeros;
        break;
    case DEFECT_COUNT:
        break;
    }
    shard_stream_send(&worker, &request.message.base, weights, shard_worker_flat_bytes(&fixture));
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(&worker, NULL, NULL);
    ck_assert_int_ne(reply->status, KELP_OK);
    ck_assert_uint_gt(strlen(reply->error), 5);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    shard_stream_await_closed(&worker);
    shard_stream_close(&worker);

    float *again = shard_worker_new_flat(&fixture);
    shard_worker_open(&worker, &fixture, 1, again, &word); /* still at step 0 */
    ck_assert_mem_eq(weights, again, shard_worker_flat_bytes(&fixture));
    shard_stream_close(&worker);
    free(weights);
    free(again);
}

/* Items that are wrong by themselves are refused one by one; the stream lives. */
KELP_TEST(items_are_refused)
{
    static const uint32_t bad[][2] = {{1, 2}, {0, 3}, {4, 4}, {0, 0}, {0, 8}};
    struct shard_stream worker;
    struct kelp_control_word word;
    struct shard_request request;
    float *weights = shard_worker_new_flat(&fixture);

    shard_load(&control, 1);
    shard_worker_open(&worker, &fixture, 1, weights, &word);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        shard_request_init(&request, 1);
        shard_request_word(&request, &word);
        shard_request_push_lanes(&request, &fixture, bad[i][0], bad[i][1], true);
        shard_stream_send(&worker, &request.message.base, weights,
                          shard_worker_flat_bytes(&fixture));
        Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(&worker, NULL, NULL);
        ck_assert_int_eq(reply->status, KELP_OK);
        ck_assert_uint_eq(reply->n_refused, fixture.plan.partition_count);
        ck_assert_int_eq(reply->refused[0]->status, KELP_ERR_INVALID);
        kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    }
    struct kelp_control_word other = word;
    other.lr = 0.125;
    shard_request_init(&request, 1);
    shard_request_word(&request, &other);
    shard_request_push_lanes(&request, &fixture, 0, 4, true);
    shard_stream_send(&worker, &request.message.base, weights, shard_worker_flat_bytes(&fixture));
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(&worker, NULL, NULL);
    ck_assert_int_eq(reply->refused[0]->status, KELP_ERR_CONTROL_WORD);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    shard_stream_close(&worker);
    free(weights);
}

/* Maps that cannot be are refused, with the reason. */
KELP_TEST(maps_are_checked)
{
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Hello hello;
    Kelp__V1__Map map = KELP__V1__MAP__INIT;
    struct shard_stream other;

    shard_hello(&fixture, &hello, "coordinator-9");
    map.generation = 1;
    command.hello = &hello;
    command.proof = (char *)(uintptr_t)SHARD_PROOF; /* only read */
    command.map = &map;
    shard_stream_open(&other, &fixture, "Control"); /* no plan yet */
    shard_stream_send(&other, &command.base, NULL, 0);
    shard_stream_await_closed(&other);
    ck_assert_ptr_nonnull(strstr(other.text, "without a plan"));
    shard_stream_close(&other);

    command.plan = fixture.plan_text;
    shard_stream_open(&other, &fixture, "Control"); /* no partitions */
    shard_stream_send(&other, &command.base, NULL, 0);
    shard_stream_await_closed(&other);
    ck_assert_ptr_nonnull(strstr(other.text, "partitions"));
    shard_stream_close(&other);

    command.plan = (char *)(uintptr_t) "{}";
    shard_stream_open(&other, &fixture, "Control"); /* another plan */
    shard_stream_send(&other, &command.base, NULL, 0);
    shard_stream_await_closed(&other);
    ck_assert_int_eq(other.status, KELP_ERR_MISMATCH);
    shard_stream_close(&other);
    shard_load(&control, 1);
}

/* Somebody who does not lead: a generation of 2^40 changes nothing, and eight streams that wait do
 * not lock out who leads next. */
KELP_TEST(who_does_not_lead_waits)
{
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Hello hello;
    Kelp__V1__Map map = KELP__V1__MAP__INIT;
    struct shard_stream strangers[9];
    struct shard_stream next;

    shard_load(&control, 1);
    shard_hello(&fixture, &hello, "coordinator-9");
    map.generation = UINT64_C(1) << 40;
    command.hello = &hello;
    command.plan = fixture.plan_text;
    command.map = &map;
    command.proof = (char *)(uintptr_t) "forged";
    for (size_t i = 0; i < KELP_ARRAY_COUNT(strangers); i++) {
        shard_stream_open(&strangers[i], &fixture, "Control");
        shard_stream_send(&strangers[i], &command.base, NULL, 0);
    }
    shard_load(&control, 2);
    shard_fixture_lead(&fixture, "next");
    command.map = NULL;
    command.proof = (char *)(uintptr_t) "next";
    shard_stream_open(&next, &fixture, "Control");
    shard_stream_send(&next, &command.base, NULL, 0);
    Kelp__V1__ShardReport *report = shard_take_report(&next);
    ck_assert_uint_eq(report->loaded_generation, 2);
    kelp__v1__shard_report__free_unpacked(report, NULL);
    shard_stream_close(&next);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(strangers); i++) {
        ck_assert_uint_eq(strangers[i].message_count, 0); /* not even a report */
        shard_stream_close(&strangers[i]);
    }
}

/* A gradient that is not finite: nothing is applied, and the leader is told at which step. */
KELP_TEST(not_finite)
{
    struct shard_stream worker;
    struct kelp_control_word word;
    struct shard_request request;
    float *weights = shard_worker_new_flat(&fixture);

    shard_load(&control, 1);
    shard_worker_open(&worker, &fixture, 1, weights, &word);
    float *gradient = shard_worker_new_flat(&fixture);
    gradient[ELEMENTS - 1] = NAN; /* the last partition */
    shard_request_init(&request, 1);
    shard_request_word(&request, &word);
    shard_request_push_lanes(&request, &fixture, 0, 4, true);
    shard_stream_send(&worker, &request.message.base, gradient, shard_worker_flat_bytes(&fixture));
    for (;;) {
        Kelp__V1__ShardReport *report = shard_take_report(&control);
        bool told = report->status != KELP_OK;
        if (told) {
            ck_assert_ptr_nonnull(strstr(report->error, "step 0 is not finite in partition 3"));
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
        if (told) {
            break;
        }
    }
    shard_request_init(&request, 1);
    shard_request_pull_all(&request, &fixture, KELP__V1__PULL_MODE__PULL_CURRENT, 0);
    shard_stream_send(&worker, &request.message.base, NULL, 0);
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(&worker, NULL, NULL);
    ck_assert_uint_eq(reply->answer[3]->step, 0);
    ck_assert_uint_eq(reply->answer[2]->step, 1);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    shard_stream_close(&worker);
    free(weights);
    free(gradient);
}

static void push_all(struct shard_stream *worker, const struct kelp_control_word *word,
                     const float *gradient, const char *id)
{
    struct shard_request request;

    shard_request_init(&request, 1);
    if (id) {
        shard_request_hello(&request, &fixture);
        request.hello.id = (char *)(uintptr_t)id; /* only read */
    }
    shard_request_word(&request, word);
    shard_request_push_lanes(&request, &fixture, 0, 4, true);
    shard_stream_send(worker, &request.message.base, gradient, shard_worker_flat_bytes(&fixture));
}

/* One worker pushes zeros for all lanes; when another one pushes the gradient, the leader is told
 * who differs, and the shard stays where it is. */
KELP_TEST(workers_differ)
{
    struct shard_stream worker, liar;
    struct kelp_control_word word;
    char text[512] = "";

    shard_load(&control, 1);
    float *weights = shard_worker_new_flat(&fixture);
    shard_worker_open(&worker, &fixture, 1, weights, &word);
    shard_stream_open(&liar, &fixture, "Exchange");
    float *gradient = shard_worker_new_flat(&fixture);
    push_all(&liar, &word, gradient, "worker-9");
    take_empty_reply(&liar);
    gradient[ELEMENTS - 1] = 1.0f; /* the last partition */
    push_all(&worker, &word, gradient, NULL);
    while (text[0] == '\0') {
        Kelp__V1__ShardReport *report = shard_take_report(&control);
        if (report->status != KELP_OK) {
            ck_assert_int_eq(report->status, KELP_ERR_MISMATCH);
            (void)snprintf(text, sizeof(text), "%s", report->error);
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
    ck_assert_msg(strstr(text, "worker-9 and worker-7 sent different gradients of lanes 0 to 3 in "
                               "step 0 (partition 3)"),
                  "%s", text);
    shard_stream_close(&worker);
    shard_stream_close(&liar);
    free(weights);
    free(gradient);
}

/* ---- an older map ---------------------------------------------------------------------------- */

/* The second map of generation 1: partition 0 has another epoch, partition 1 another primary. */
static void change_map(void)
{
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Map map = KELP__V1__MAP__INIT;
    Kelp__V1__ShardPlace shards[2];
    Kelp__V1__ShardPlace *shard_pointers[] = {&shards[0], &shards[1]};
    Kelp__V1__PartitionPlace places[64];
    Kelp__V1__PartitionPlace *pointers[64];

    for (uint32_t i = 0; i < 2; i++) {
        kelp__v1__shard_place__init(&shards[i]);
        shards[i].shard = (char *)(uintptr_t)(i == 0 ? "shard-0" : "shard-9"); /* only read */
        shards[i].address = i == 0 ? fixture.address : (char *)(uintptr_t) "127.0.0.1:9";
        shards[i].incarnation = i == 0 ? fixture.incarnation : 99;
    }
    for (uint32_t i = 0; i < fixture.plan.partition_count; i++) {
        kelp__v1__partition_place__init(&places[i]);
        places[i].partition = i;
        places[i].map_epoch = i < 2 ? 2 : 1;
        places[i].primary = i == 1 ? 1 : 0;
        pointers[i] = &places[i];
    }
    map.generation = 1;
    map.serial = 2;
    map.n_shards = 2;
    map.shards = shard_pointers;
    map.n_partitions = fixture.plan.partition_count;
    map.partitions = pointers;
    command.map = &map;
    shard_stream_send(&control, &command.base, NULL, 0);
    for (uint64_t serial = 0; serial < 2;) {
        Kelp__V1__ShardReport *report = shard_take_report(&control);
        serial = report->map_serial;
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
}

/* Nobody waits for a resolver: a map with a name in it is not taken, and the report says so. */
KELP_TEST(names_are_not_dialled)
{
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Map map = KELP__V1__MAP__INIT;
    Kelp__V1__ShardPlace place = KELP__V1__SHARD_PLACE__INIT, *place_pointer = &place;
    Kelp__V1__PartitionPlace places[64], *pointers[64];
    char text[300] = "";

    shard_load(&control, 1);
    place.shard = (char *)(uintptr_t) "shard-9"; /* only read, as the address */
    place.address = (char *)(uintptr_t) "ps.example.org:9";
    place.incarnation = 99;
    for (uint32_t i = 0; i < fixture.plan.partition_count; i++) {
        kelp__v1__partition_place__init(&places[i]);
        places[i].partition = i;
        places[i].map_epoch = 2;
        pointers[i] = &places[i];
    }
    map.generation = 1;
    map.serial = 2;
    map.n_shards = 1;
    map.shards = &place_pointer;
    map.n_partitions = fixture.plan.partition_count;
    map.partitions = pointers;
    command.map = &map;
    shard_stream_send(&control, &command.base, NULL, 0);
    while (text[0] == '\0') {
        Kelp__V1__ShardReport *report = shard_take_report(&control);
        if (report->status != KELP_OK) {
            ck_assert_int_eq(report->status, KELP_ERR_FORMAT);
            (void)snprintf(text, sizeof(text), "%s", report->error);
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
    ck_assert_str_eq(text, "map: address 'ps.example.org:9' of shard-9 is not HOST:PORT in "
                           "numbers, or unix:/PATH");
}

/* A worker that has missed a change is told the newer entries, with the processes to ask. */
KELP_TEST(newer_entries_are_told)
{
    static const struct {
        kelp_status status;
        uint64_t incarnation;
    } expected[] = {{KELP_ERR_OLD_MAP_EPOCH, 0}, {KELP_ERR_NOT_PRIMARY, 99}};
    struct shard_stream worker;
    struct shard_request request;
    struct kelp_control_word word;

    shard_load(&control, 1);
    float *weights = shard_worker_new_flat(&fixture);
    shard_worker_open(&worker, &fixture, 1, weights, &word);
    change_map();
    shard_request_init(&request, 1);
    shard_request_word(&request, &word);
    for (uint32_t p = 0; p < 2; p++) {
        (void)shard_request_push(&request, &fixture, p, true);
        (void)shard_request_pull(&request, p, KELP__V1__PULL_MODE__PULL_STEP, 1);
    }
    shard_stream_send(&worker, &request.message.base, weights, shard_worker_flat_bytes(&fixture));
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(&worker, NULL, NULL);
    ck_assert_uint_eq(reply->n_refused, 2);
    ck_assert_uint_eq(reply->n_answer, 2);
    for (uint32_t p = 0; p < 2; p++) {
        uint64_t incarnation = p == 0 ? fixture.incarnation : expected[p].incarnation;
        ck_assert_int_eq(reply->refused[p]->status, expected[p].status);
        ck_assert_uint_eq(reply->refused[p]->map_epoch, 2);
        ck_assert_ptr_nonnull(reply->refused[p]->primary);
        ck_assert_uint_eq(reply->refused[p]->primary->incarnation, incarnation);
        ck_assert_int_eq(reply->answer[p]->status, expected[p].status);
        ck_assert_uint_eq(reply->answer[p]->map_epoch, 2);
        ck_assert_ptr_nonnull(reply->answer[p]->primary);
        ck_assert_uint_eq(reply->answer[p]->primary->incarnation, incarnation);
    }
    ck_assert_str_eq(reply->refused[1]->primary->address, "127.0.0.1:9");
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    shard_stream_close(&worker);
    free(weights);
}

/* ---- gradients as bfloat16 ---- */

static void set_up_bfloat16(void)
{
    static const char *const settings[] = {"train.epochs", "1", "transport.precision", "bfloat16",
                                           NULL};

    shard_fixture_start(&fixture, settings, ELEMENTS, SAMPLES);
    shard_stream_open(&control, &fixture, "Control");
}

KELP_CASE("bfloat16", .timeout_s = 60, .setup = set_up_bfloat16, .teardown = tear_down)

static const struct {
    uint32_t kind;
    uint32_t element_bytes;
    const char *text;
} elements[] = {
    {KELP_PRECISION_FLOAT32, 4, "push to table 0, kind 0: there is only the flat vector (0, 1)"},
    {KELP_PRECISION_BFLOAT16, 4, "push to partition 0 has 5056 bytes; the partition has 2528"},
    {7, 2, "push to table 0, kind 7: there is only the flat vector (0, 1)"},
};

/* A push says what its elements are, and has as many bytes as so many of them have. */
KELP_LOOP_TEST(elements_are_those_of_the_job, 0, KELP_ARRAY_COUNT(elements))
{
    struct shard_stream worker;
    struct kelp_control_word word;
    struct shard_request request;
    float *weights = shard_worker_new_flat(&fixture);

    shard_load(&control, 1);
    shard_worker_open(&worker, &fixture, 1, weights, &word);
    shard_request_init(&request, 1);
    shard_request_word(&request, &word);
    shard_request_push_lanes(&request, &fixture, 0, 4, true);
    for (size_t i = 0; i < request.message.n_push; i++) {
        request.pushes[i].kind = elements[_i].kind;
        request.pushes[i].length = request.pushes[i].length / 4 * elements[_i].element_bytes;
    }
    shard_stream_send(&worker, &request.message.base, weights, shard_worker_flat_bytes(&fixture));
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(&worker, NULL, NULL);
    ck_assert_int_ne(reply->status, KELP_OK);
    ck_assert_msg(strstr(reply->error, elements[_i].text) != NULL, "%s", reply->error);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    shard_stream_await_closed(&worker);
    shard_stream_close(&worker);
    free(weights);
}
