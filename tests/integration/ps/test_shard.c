/* A real kelp-ps, driven by a scripted coordinator and scripted workers. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/optimizer.h"
#include "tests/lib/cluster/shard_client.h"
#include "tests/lib/suite.h"

#define ELEMENTS 5000 /* five partitions, the last one shorter */
#define SAMPLES  16   /* two steps of 8 an epoch */

static struct shard_fixture fixture;
static struct shard_stream control;
static bool several_threads;

static void set_up(void)
{
    static const char *const settings[] = {"train.epochs", "1", NULL};

    shard_fixture_start(&fixture, settings, ELEMENTS, SAMPLES);
    shard_stream_open(&control, &fixture, "Control");
}

/* The same with several threads in the shard. */
static void set_up_threads(void)
{
    ck_assert_int_eq(setenv("KELP_THREADS", "4", 1), 0);
    several_threads = true;
    set_up();
}

static void tear_down(void)
{
    shard_stream_close(&control);
    shard_fixture_stop(&fixture);
}

/* ---- a worker ----------------------------------------------------------------------------------
 */

static size_t flat_bytes(void)
{
    return (size_t)fixture.plan.flat_count * sizeof(float);
}

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

static void request_init(struct request *request, uint64_t generation, bool with_hello)
{
    memset(request, 0, sizeof(*request));
    kelp__v1__exchange_request__init(&request->message);
    request->message.generation = generation;
    request->message.push = request->push_pointers;
    request->message.pull = request->pull_pointers;
    if (with_hello) {
        shard_hello(&fixture, &request->hello, "worker-7");
        request->message.hello = &request->hello;
    }
}

static void request_word(struct request *request, const struct kelp_control_word *word)
{
    kelp_wire_put_word(word, &request->word);
    request->message.word = &request->word;
}

/* Push lanes of all partitions: the payload is the flat vector. */
static void request_push(struct request *request, uint32_t lane_first, uint32_t lane_count,
                         bool with_gradient)
{
    for (uint32_t p = 0; p < fixture.plan.partition_count; p++) {
        struct kelp_slice_range range = kelp_plan_partition(&fixture.plan, p);
        Kelp__V1__PushItem *item = &request->pushes[request->message.n_push];
        kelp__v1__push_item__init(item);
        item->partition = p;
        item->map_epoch = request->message.generation;
        item->lane_first = lane_first;
        item->lane_count = lane_count;
        if (with_gradient) {
            item->offset = range.first * sizeof(float);
            item->length = range.count * sizeof(float);
        }
        if (p == 0) {
            request->sums[KELP_METRIC_SUM_SAMPLES] = lane_count * 2;
            request->sums[KELP_METRIC_SUM_LOSS] = lane_count;
            item->n_sums = kelp_metric_sum_trim(request->sums, KELP_METRIC_SUM_COUNT);
            item->sums = request->sums;
            item->digest = (char *)(uintptr_t) "00112233445566778899aabbccddeeff";
        }
        request->push_pointers[request->message.n_push++] = item;
        if (!with_gradient) {
            break; /* evaluation: partition 0 alone */
        }
    }
}

static void request_pull(struct request *request, Kelp__V1__PullMode mode, uint64_t target,
                         uint32_t partitions)
{
    for (uint32_t p = 0; p < partitions; p++) {
        Kelp__V1__PullItem *item = &request->pulls[request->message.n_pull];
        kelp__v1__pull_item__init(item);
        item->partition = p;
        item->map_epoch = request->message.generation;
        item->mode = mode;
        item->step = target;
        item->version = target;
        request->pull_pointers[request->message.n_pull++] = item;
    }
}

static Kelp__V1__ExchangeReply *take_reply(struct shard_stream *worker,
                                           struct kelp_rpc_message **ret_message,
                                           struct kelp_wire_payload *ret_payload)
{
    return shard_stream_take(worker, &kelp__v1__exchange_reply__descriptor, ret_message,
                             ret_payload);
}

static uint32_t take_answers(struct shard_stream *worker, uint64_t step, float *weights,
                             struct kelp_control_word *ret_word)
{
    struct kelp_rpc_message *message;
    struct kelp_wire_payload payload;
    Kelp__V1__ExchangeReply *reply = take_reply(worker, &message, &payload);

    ck_assert_msg(reply->status == KELP_OK, "%s", reply->error);
    ck_assert_uint_eq(reply->n_refused, 0);
    for (size_t i = 0; i < reply->n_answer; i++) {
        const Kelp__V1__PullAnswer *answer = reply->answer[i];
        struct kelp_slice_range range = kelp_plan_partition(&fixture.plan, answer->partition);
        ck_assert_int_eq(answer->status, KELP_OK);
        ck_assert_uint_eq(answer->step, step);
        ck_assert_uint_eq(answer->length, range.count * sizeof(float));
        ck_assert_uint_le(answer->offset + answer->length, payload.length);
        kelp_wire_payload_copy(&payload, (size_t)answer->offset, (size_t)answer->length,
                               weights + range.first);
        if (answer->partition == 0) {
            ck_assert_ptr_nonnull(answer->word);
            ck_assert(kelp_wire_take_word(answer->word, ret_word));
        }
    }
    uint32_t count = (uint32_t)reply->n_answer;
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    kelp_rpc_message_unref(message);
    return count;
}

/* The answers to a pull of everything: weights into `weights`, the word into *ret_word. They come
 * as one reply; with several threads in the shard, as few. */
static void take_weights(struct shard_stream *worker, uint64_t step, float *weights,
                         struct kelp_control_word *ret_word)
{
    uint32_t taken = take_answers(worker, step, weights, ret_word);

    ck_assert(taken == fixture.plan.partition_count || several_threads);
    while (taken < fixture.plan.partition_count) {
        taken += take_answers(worker, step, weights, ret_word);
    }
    ck_assert_uint_eq(taken, fixture.plan.partition_count);
}

static void take_empty_reply(struct shard_stream *worker)
{
    Kelp__V1__ExchangeReply *reply = take_reply(worker, NULL, NULL);
    ck_assert_int_eq(reply->status, KELP_OK);
    ck_assert_uint_eq(reply->n_answer, 0);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
}

static float *new_flat(void)
{
    float *values = calloc(1, flat_bytes());
    ck_assert_ptr_nonnull(values);
    return values;
}

static void initial_weights(float *weights)
{
    ck_assert_int_eq(kelp_plan_initialise(&fixture.plan, fixture.job, NULL,
                                          (struct kelp_slice_range){0, fixture.plan.flat_count},
                                          weights, NULL),
                     KELP_OK);
}

static void make_gradient(float *gradient, uint32_t lane, uint64_t step)
{
    for (uint64_t i = 0; i < fixture.plan.flat_count; i++) {
        gradient[i] = (float)((i * 37 + lane * 1001 + step * 77) % 1009) / 997.0f - 0.5f;
    }
}

/* What the shard must arrive at: ((0+1)+(2+3)) and the optimizer. */
static void reference_step(float *weights, float *next, uint64_t step)
{
    float *lanes[4];

    for (uint32_t lane = 0; lane < 4; lane++) {
        lanes[lane] = new_flat();
        make_gradient(lanes[lane], lane, step);
    }
    kelp_vector_add(lanes[0], lanes[1], fixture.plan.flat_count);
    kelp_vector_add(lanes[2], lanes[3], fixture.plan.flat_count);
    kelp_vector_add(lanes[0], lanes[2], fixture.plan.flat_count);
    struct kelp_optimizer_step prepared;
    struct kelp_optimizer_buffers buffers = {
        .weights = weights, .gradient = lanes[0], .weights_next = next};
    kelp_optimizer_prepare(&prepared, fixture.job, fixture.job->train.lr, step + 1);
    ck_assert(kelp_optimizer_apply(&prepared, &buffers, fixture.plan.flat_count));
    for (uint32_t lane = 0; lane < 4; lane++) {
        free(lanes[lane]);
    }
}

/* A worker that said hello and holds the weights. */
static void worker_open(struct shard_stream *worker, uint64_t generation, float *weights,
                        struct kelp_control_word *word)
{
    struct request request;

    shard_stream_open(worker, &fixture, "Exchange");
    request_init(&request, generation, true);
    request_pull(&request, KELP__V1__PULL_MODE__PULL_CURRENT, 0, fixture.plan.partition_count);
    shard_stream_send(worker, &request.message.base, NULL, 0);
    take_weights(worker, 0, weights, word);
}

/* Push one lane and ask for the next step. */
static void push_lane(struct shard_stream *worker, const struct kelp_control_word *word,
                      uint32_t lane, bool pull)
{
    struct request request;
    float *gradient = new_flat();

    make_gradient(gradient, lane, word->step);
    request_init(&request, 1, false);
    request_word(&request, word);
    request_push(&request, lane, 1, true);
    if (pull) {
        request_pull(&request, KELP__V1__PULL_MODE__PULL_STEP, word->step + 1,
                     fixture.plan.partition_count);
    }
    shard_stream_send(worker, &request.message.base, gradient, flat_bytes());
    free(gradient);
}

/* ---- training ----------------------------------------------------------------------------------
 */

/* Push the sums of an evaluation or of the end, and take the next word. */
static void complete_entry(struct shard_stream *worker, struct kelp_control_word *word)
{
    struct request request;

    request_init(&request, 1, false);
    request_word(&request, word);
    request_push(&request, 0, 4, false);
    request_pull(&request, KELP__V1__PULL_MODE__PULL_VERSION, word->version + 1, 1);
    request.pulls[0].holds = true;
    request.pulls[0].held_step = word->step;
    shard_stream_send(worker, &request.message.base, NULL, 0);
    Kelp__V1__ExchangeReply *reply = take_reply(worker, NULL, NULL);
    ck_assert_int_eq(reply->status, KELP_OK);
    ck_assert_uint_eq(reply->n_answer, 1);
    ck_assert_uint_eq(reply->answer[0]->length, 0);
    ck_assert(kelp_wire_take_word(reply->answer[0]->word, word));
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
}

static void collect_records(struct kelp_record *records, size_t *count, size_t wanted)
{
    while (*count < wanted) {
        Kelp__V1__ShardReport *report = shard_take_report(&control);
        ck_assert_int_eq(report->status, KELP_OK);
        for (size_t i = 0; i < report->n_records; i++) {
            ck_assert_uint_lt(*count, wanted);
            ck_assert(kelp_wire_take_record(report->records[i], &records[(*count)++]));
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
}

KELP_SUITE(.before = etcd_fixture_require)

KELP_CASE("training", .timeout_s = 60, .setup = set_up, .teardown = tear_down)

/* Two workers train to the end: the weights are those of the reference to the bit, each step costs
 * each worker one message, and the records arrive. */
KELP_TEST(whole_job)
{
    struct shard_stream workers[2];
    struct kelp_control_word word;
    struct kelp_record records[4];
    size_t record_count = 0;
    float *weights = new_flat(), *reference = new_flat(), *next = new_flat();

    shard_load(&control, 1);
    for (size_t i = 0; i < 2; i++) {
        worker_open(&workers[i], 1, weights, &word);
    }
    initial_weights(reference);
    ck_assert_mem_eq(weights, reference, flat_bytes());
    for (uint64_t step = 0; step < 2; step++) {
        ck_assert_uint_eq(word.version, step);
        ck_assert_uint_eq(word.kind, KELP_STEP_TRAIN);
        push_lane(&workers[0], &word, 3, false);
        push_lane(&workers[0], &word, 1, true);
        push_lane(&workers[1], &word, 0, false);
        push_lane(&workers[1], &word, 2, true);
        reference_step(reference, next, step);
        for (size_t i = 0; i < 2; i++) {
            memset(weights, 0, flat_bytes());
            take_weights(&workers[i], step + 1, weights, &word);
            ck_assert_mem_eq(weights, next, flat_bytes());
            ck_assert_uint_eq(workers[i].message_count, 0);
        }
        memcpy(reference, next, flat_bytes());
    }
    ck_assert_uint_eq(word.kind, KELP_STEP_EVALUATE_VAL);
    complete_entry(&workers[0], &word);
    ck_assert_uint_eq(word.kind, KELP_STEP_EVALUATE_TEST);
    complete_entry(&workers[1], &word);
    ck_assert_uint_eq(word.kind, KELP_STEP_FINISH);
    complete_entry(&workers[0], &word);
    ck_assert_uint_eq(word.kind, KELP_STEP_DONE);

    collect_records(records, &record_count, 4);
    ck_assert(records[0].epoch_end);
    ck_assert_uint_eq(records[0].word.version, 1);
    ck_assert_double_eq(records[0].epoch_loss, 0.5);
    ck_assert_uint_eq(records[1].word.kind, KELP_STEP_EVALUATE_VAL);
    ck_assert_uint_eq(records[2].word.kind, KELP_STEP_EVALUATE_TEST);
    ck_assert_str_eq(records[3].digest, "00112233445566778899aabbccddeeff");

    /* A leader that comes later is told what it lacks, and where things stand. */
    struct shard_stream later;
    shard_stream_open(&later, &fixture, "Control");
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Hello hello;
    shard_hello(&fixture, &hello, "coordinator-2");
    command.hello = &hello;
    command.records_after = 3;
    command.heartbeat = 41;
    shard_stream_send(&later, &command.base, NULL, 0);
    Kelp__V1__ShardReport *report = shard_take_report(&later);
    ck_assert_uint_eq(report->heartbeat, 41);
    ck_assert_uint_eq(report->loaded_generation, 1);
    ck_assert_uint_eq(report->n_records, 2);
    ck_assert_uint_eq(report->word->kind, KELP_STEP_DONE);
    ck_assert_uint_eq(report->latest_train->word->version, 1);
    ck_assert_ptr_nonnull(report->hello);
    ck_assert_uint_eq(report->hello->incarnation, fixture.incarnation);
    kelp__v1__shard_report__free_unpacked(report, NULL);
    shard_stream_close(&later);

    shard_stream_close(&workers[0]);
    shard_stream_close(&workers[1]);
    free(weights);
    free(reference);
    free(next);
}

/* All lanes from everyone at once, over and over, some leaving without a word: duplicates are
 * dropped, everyone gets the same weights. */
KELP_TEST(many_workers)
{
    enum { WORKERS = 6 };
    struct shard_stream workers[WORKERS];
    struct kelp_control_word word;
    float *weights = new_flat(), *reference = new_flat(), *next = new_flat();

    shard_load(&control, 1);
    for (size_t i = 0; i < WORKERS; i++) {
        worker_open(&workers[i], 1, weights, &word);
    }
    initial_weights(reference);
    for (uint64_t step = 0; step < 2; step++) {
        for (uint32_t lane = 0; lane < 4; lane++) {
            for (uint32_t i = 0; i < WORKERS; i++) {
                push_lane(&workers[i], &word, (lane + i) % 4, lane == 3);
            }
        }
        shard_stream_close(&workers[0]); /* maybe while it is answered */
        reference_step(reference, next, step);
        for (size_t i = 1; i < WORKERS; i++) {
            take_weights(&workers[i], step + 1, weights, &word);
            ck_assert_mem_eq(weights, next, flat_bytes());
        }
        memcpy(reference, next, flat_bytes());
        shard_stream_open(&workers[0], &fixture, "Exchange");
        struct request request;
        request_init(&request, 1, true);
        request_pull(&request, KELP__V1__PULL_MODE__PULL_CURRENT, 0, fixture.plan.partition_count);
        shard_stream_send(&workers[0], &request.message.base, NULL, 0);
        take_weights(&workers[0], step + 1, weights, &word);
    }
    for (size_t i = 0; i < WORKERS; i++) {
        shard_stream_close(&workers[i]);
    }
    free(weights);
    free(reference);
    free(next);
}

/* A worker that leaves half-way takes nothing with it: another computes its lanes. */
KELP_TEST(worker_leaves)
{
    struct shard_stream first, second;
    struct kelp_control_word word;
    float *weights = new_flat(), *reference = new_flat(), *next = new_flat();

    shard_load(&control, 1);
    worker_open(&first, 1, weights, &word);
    worker_open(&second, 1, weights, &word);
    push_lane(&first, &word, 0, true);
    shard_stream_close(&first);
    for (uint32_t lane = 0; lane < 4; lane++) {
        push_lane(&second, &word, lane, lane == 3);
    }
    initial_weights(reference);
    reference_step(reference, next, 0);
    take_weights(&second, 1, weights, &word);
    ck_assert_mem_eq(weights, next, flat_bytes());
    shard_stream_close(&second);
    free(weights);
    free(reference);
    free(next);
}

/* A new generation starts again from S_0, and tells those who wait. */
KELP_TEST(new_generation)
{
    struct shard_stream worker;
    struct kelp_control_word word;
    float *weights = new_flat(), *reference = new_flat();

    shard_load(&control, 1);
    worker_open(&worker, 1, weights, &word);
    push_lane(&worker, &word, 0, true);
    shard_load(&control, 2);
    Kelp__V1__ExchangeReply *reply = take_reply(&worker, NULL, NULL);
    ck_assert_uint_eq(reply->n_answer, fixture.plan.partition_count);
    ck_assert_uint_eq(reply->generation, 2);
    for (size_t i = 0; i < reply->n_answer; i++) {
        ck_assert_int_eq(reply->answer[i]->status, KELP_ERR_OLD_GENERATION);
    }
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);

    push_lane(&worker, &word, 0, false); /* of generation 1 */
    reply = take_reply(&worker, NULL, NULL);
    ck_assert_uint_eq(reply->n_refused, fixture.plan.partition_count);
    ck_assert_int_eq(reply->refused[0]->status, KELP_ERR_OLD_GENERATION);
    ck_assert_uint_eq(reply->refused[0]->map_epoch, 2);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);

    struct request request;
    request_init(&request, 3, false); /* of one that the shard has not heard of */
    request_pull(&request, KELP__V1__PULL_MODE__PULL_CURRENT, 0, 1);
    shard_stream_send(&worker, &request.message.base, NULL, 0);
    reply = take_reply(&worker, NULL, NULL);
    ck_assert_int_eq(reply->answer[0]->status, KELP_ERR_BUSY);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);

    request_init(&request, 2, false);
    request_pull(&request, KELP__V1__PULL_MODE__PULL_CURRENT, 0, fixture.plan.partition_count);
    shard_stream_send(&worker, &request.message.base, NULL, 0);
    take_weights(&worker, 0, weights, &word);
    initial_weights(reference);
    ck_assert_mem_eq(weights, reference, flat_bytes());
    shard_stream_close(&worker);
    free(weights);
    free(reference);
}

/* ---- what is refused ---------------------------------------------------------------------------
 */

KELP_CASE("refusals", .timeout_s = 60, .setup = set_up, .teardown = tear_down)

/* Nothing is loaded: workers are asked to come back. */
KELP_TEST(nothing_loaded)
{
    struct shard_stream worker;
    struct request request;

    shard_stream_open(&worker, &fixture, "Exchange");
    request_init(&request, 0, true);
    shard_stream_send(&worker, &request.message.base, NULL, 0);
    take_empty_reply(&worker); /* a hello is answered */
    request_init(&request, 1, false);
    request_pull(&request, KELP__V1__PULL_MODE__PULL_CURRENT, 0, 1);
    shard_stream_send(&worker, &request.message.base, NULL, 0);
    Kelp__V1__ExchangeReply *reply = take_reply(&worker, NULL, NULL);
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
} hellos[] = {
    {"Exchange", "other", false, 1, false, KELP_ERR_MISMATCH,
     "belongs to job shards, not to other"},
    {"Exchange", "shards", true, 1, false, KELP_ERR_MISMATCH, "has another text of job shards"},
    {"Exchange", "shards", false, 9, false, KELP_ERR_MISMATCH, "speaks protocol 1, not 9"},
    {"Exchange", "shards", false, 1, true, KELP_ERR_FORMAT, "must carry a hello"},
    {"Control", "other", false, 1, false, KELP_ERR_MISMATCH, "belongs to job shards, not to other"},
    {"Control", "shards", true, 1, false, KELP_ERR_MISMATCH, "has another text of job shards"},
    {"Control", "shards", false, 9, false, KELP_ERR_MISMATCH, "speaks protocol 1, not 9"},
    {"Control", "shards", false, 1, true, KELP_ERR_FORMAT, "must carry a hello"},
};

/* Another job, another text of it, another protocol: refused in clear words. */
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
    request.hello = hellos[_i].missing ? NULL : &hello;
    command.hello = request.hello;
    shard_stream_open(&stream, &fixture, hellos[_i].method);
    shard_stream_send(&stream, exchange ? &request.base : &command.base, NULL, 0);
    if (exchange) {
        Kelp__V1__ExchangeReply *reply = take_reply(&stream, NULL, NULL);
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
    float *weights = new_flat();
    struct kelp_control_word word;
    worker_open(&stream, 1, weights, &word);
    shard_stream_close(&stream);
    free(weights);
}

/* A message cut off at any byte ends its stream, or is one that says less. */
KELP_TEST(truncated)
{
    struct request request;
    struct kelp_control_word word = {.kind = KELP_STEP_TRAIN, .sample_count = 8, .lr = 0.5};
    uint8_t bytes[1024];

    shard_load(&control, 1);
    request_init(&request, 1, true);
    request_word(&request, &word);
    request_push(&request, 0, 4, true);
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
    struct request request;
    static double
        zeros[KELP_METRIC_SUM_COUNT + KELP_STEP_DECISION_MAX + 1]; /* more than any may be */
    Kelp__V1__StepPart part = KELP__V1__STEP_PART__INIT, *parts[] = {&part};
    float *weights = new_flat();

    shard_load(&control, 1);
    worker_open(&worker, 1, weights, &word);
    request_init(&request, 1, false);
    request_word(&request, &word);
    request_push(&request, 0, 4, true);
    Kelp__V1__PushItem *item = &request.pushes[0];
    switch ((enum defect)_i) {
    case OFFSET_BEYOND:
        item->offset = flat_bytes() + 1;
        item->length = 0;
        break;
    case LENGTH_BEYOND:
        item->offset = flat_bytes() - 4;
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
    case BAD_PULL_TABLE:
        request.message.n_push = 0;
        request_pull(&request, KELP__V1__PULL_MODE__PULL_CURRENT, 0, 1);
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
    shard_stream_send(&worker, &request.message.base, weights, flat_bytes());
    Kelp__V1__ExchangeReply *reply = take_reply(&worker, NULL, NULL);
    ck_assert_int_ne(reply->status, KELP_OK);
    ck_assert_uint_gt(strlen(reply->error), 5);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    shard_stream_await_closed(&worker);
    shard_stream_close(&worker);

    float *again = new_flat();
    worker_open(&worker, 1, again, &word); /* still at step 0 */
    ck_assert_mem_eq(weights, again, flat_bytes());
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
    struct request request;
    float *weights = new_flat();

    shard_load(&control, 1);
    worker_open(&worker, 1, weights, &word);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(bad); i++) {
        request_init(&request, 1, false);
        request_word(&request, &word);
        request_push(&request, bad[i][0], bad[i][1], true);
        shard_stream_send(&worker, &request.message.base, weights, flat_bytes());
        Kelp__V1__ExchangeReply *reply = take_reply(&worker, NULL, NULL);
        ck_assert_int_eq(reply->status, KELP_OK);
        ck_assert_uint_eq(reply->n_refused, fixture.plan.partition_count);
        ck_assert_int_eq(reply->refused[0]->status, KELP_ERR_INVALID);
        kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    }
    struct kelp_control_word other = word;
    other.lr = 0.125;
    request_init(&request, 1, false);
    request_word(&request, &other);
    request_push(&request, 0, 4, true);
    shard_stream_send(&worker, &request.message.base, weights, flat_bytes());
    Kelp__V1__ExchangeReply *reply = take_reply(&worker, NULL, NULL);
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

/* A gradient that is not finite: nothing is applied, and the leader is told at which step. */
KELP_TEST(not_finite)
{
    struct shard_stream worker;
    struct kelp_control_word word;
    struct request request;
    float *weights = new_flat();

    shard_load(&control, 1);
    worker_open(&worker, 1, weights, &word);
    float *gradient = new_flat();
    gradient[ELEMENTS - 1] = NAN; /* the last partition */
    request_init(&request, 1, false);
    request_word(&request, &word);
    request_push(&request, 0, 4, true);
    shard_stream_send(&worker, &request.message.base, gradient, flat_bytes());
    for (;;) {
        Kelp__V1__ShardReport *report = shard_take_report(&control);
        bool told = report->status != KELP_OK;
        if (told) {
            ck_assert_ptr_nonnull(strstr(report->error, "step 0 is not finite in partition 4"));
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
        if (told) {
            break;
        }
    }
    request_init(&request, 1, false);
    request_pull(&request, KELP__V1__PULL_MODE__PULL_CURRENT, 0, 5);
    shard_stream_send(&worker, &request.message.base, NULL, 0);
    Kelp__V1__ExchangeReply *reply = take_reply(&worker, NULL, NULL);
    ck_assert_uint_eq(reply->answer[4]->step, 0);
    ck_assert_uint_eq(reply->answer[3]->step, 1);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    shard_stream_close(&worker);
    free(weights);
    free(gradient);
}

/* ---- the process -------------------------------------------------------------------------------
 */

static void assert_exit(struct kelp_process *process, int code)
{
    int status = 0;

    ck_assert_int_eq(kelp_process_wait(process, SHARD_WAIT_MS, &status), KELP_OK);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), code);
}

KELP_CASE("process", .timeout_s = 60, .setup = set_up, .teardown = tear_down)

/* SIGTERM: exit 0, and the entry in etcd is gone. Streams that are open do not hold it up. */
KELP_TEST(stops_on_sigterm)
{
    struct kelp_etcd_range range;
    struct shard_stream worker;
    struct kelp_control_word word;
    float *weights = new_flat();

    shard_load(&control, 1);
    worker_open(&worker, 1, weights, &word);
    push_lane(&worker, &word, 0, true);
    kelp_process_signal(fixture.process, SIGTERM);
    assert_exit(fixture.process, 0);
    ck_assert_int_eq(kelp_etcd_get(fixture.client, "/kelp/shards/ps/shard-0", 2000, &range, NULL),
                     KELP_OK);
    ck_assert_uint_eq(range.count, 0);
    kelp_etcd_range_fini(&range);
    shard_stream_close(&worker);
    free(weights);
}

/* A second process of the same name takes over; the first one ends with 1. */
KELP_TEST(is_replaced)
{
    uint64_t before = fixture.incarnation;
    struct kelp_process *second = shard_fixture_spawn(&fixture);

    assert_exit(fixture.process, 1);
    shard_fixture_await_entry(&fixture, before);
    ck_assert_int_eq(kelp_process_wait(second, 0, NULL), KELP_ERR_TIMEOUT);
    kelp_process_signal(second, SIGTERM);
    assert_exit(second, 0);
    kelp_process_destroy(second);
}

/* etcd goes away and comes back: steps go on, the entry comes back. */
KELP_TEST(etcd_goes_away)
{
    struct shard_stream worker;
    struct kelp_control_word word;
    float *weights = new_flat();

    shard_load(&control, 1);
    worker_open(&worker, 1, weights, &word);
    etcd_fixture_kill(&fixture.etcd);
    for (uint32_t lane = 0; lane < 4; lane++) {
        push_lane(&worker, &word, lane, lane == 3);
    }
    take_weights(&worker, 1, weights, &word);
    shard_stream_pass(&worker, 6000); /* longer than the lease lives */
    etcd_fixture_restart(&fixture.etcd);
    uint64_t incarnation = fixture.incarnation;
    ck_assert_int_eq(kelp_etcd_delete_prefix(fixture.client, "/kelp/shards/ps/", 10000, NULL),
                     KELP_OK); /* what is left of the old lease */
    shard_fixture_await_entry(&fixture, 0);
    ck_assert_uint_eq(fixture.incarnation, incarnation);
    shard_stream_close(&worker);
    free(weights);
}

/* An address that is taken: exit 2, and who serves there goes on. */
KELP_TEST(address_in_use)
{
    ck_assert_int_eq(setenv("KELP_LISTEN", fixture.address, 1), 0);
    struct kelp_process *second = shard_fixture_spawn(&fixture);
    assert_exit(second, 2);
    kelp_process_destroy(second);
    shard_load(&control, 1);
}

/* The end does not wait for an etcd that is away. */
KELP_TEST(stops_without_etcd)
{
    shard_load(&control, 1);
    etcd_fixture_kill(&fixture.etcd);
    kelp_process_signal(fixture.process, SIGTERM);
    assert_exit(fixture.process, 0);
}

static double processor_seconds(pid_t pid)
{
    char path[64];
    char text[1024] = "";
    unsigned long user = 0, kernel = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(text, sizeof(text), file));
    (void)fclose(file);
    const char *fields = strrchr(text, ')');
    ck_assert_ptr_nonnull(fields);
    ck_assert_int_eq(
        sscanf(fields, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel), 2);
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

/* Waiting costs nothing, heartbeats aside. */
KELP_TEST(waiting_is_free)
{
    struct shard_stream worker;
    struct kelp_control_word word;
    float *weights = new_flat();

    shard_load(&control, 1);
    worker_open(&worker, 1, weights, &word);
    push_lane(&worker, &word, 0, true);
    shard_stream_pass(&worker, 500);
    double before = processor_seconds(kelp_process_pid(fixture.process));
    shard_stream_pass(&worker, 3000);
    double used = processor_seconds(kelp_process_pid(fixture.process)) - before;
    ck_assert_double_le(used, 0.03); /* 1 % */
    shard_stream_close(&worker);
    free(weights);
}

KELP_CASE("threads", .timeout_s = 60, .setup = set_up_threads, .teardown = tear_down)

KELP_TEST_AGAIN(whole_job)
KELP_TEST_AGAIN(new_generation)
KELP_TEST_AGAIN(many_workers)
KELP_TEST_AGAIN(stops_on_sigterm)
