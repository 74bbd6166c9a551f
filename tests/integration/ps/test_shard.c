/* A real kelp-ps trains, driven by a scripted coordinator and scripted workers. */
#include <stdlib.h>
#include <string.h>

#include "kernels/optimizer.h"
#include "tests/lib/cluster/shard_worker.h"
#include "tests/lib/suite.h"

#define ELEMENTS 5000 /* four partitions, the last one shorter */
#define SAMPLES  16   /* two steps of 8 an epoch */

#define ELEMENTS_LENT 100000 /* of slices that are sent without being copied */

static struct shard_fixture fixture;
static struct shard_stream control;
static bool several_threads;

static void start(uint64_t elements)
{
    static const char *const settings[] = {"train.epochs", "1", NULL};

    shard_fixture_start(&fixture, settings, elements, SAMPLES);
    shard_stream_open(&control, &fixture, "Control");
}

static void set_up(void)
{
    start(ELEMENTS);
}

static void set_up_lent(void)
{
    start(ELEMENTS_LENT);
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

KELP_SUITE(.before = etcd_fixture_require)

/* The answers to a pull of everything come as one reply; with several threads in the shard, as few.
 */
static void take_weights(struct shard_stream *worker, uint64_t step, float *weights,
                         struct kelp_control_word *ret_word)
{
    uint32_t replies = shard_worker_take_weights(worker, step, weights, ret_word);

    ck_assert(replies == 1 || several_threads);
}

static void initial_weights(float *weights)
{
    ck_assert_int_eq(kelp_plan_initialise(&fixture.plan, fixture.job, NULL,
                                          (struct kelp_slice_range){0, fixture.plan.flat_count},
                                          weights, NULL),
                     KELP_OK);
}

/* What the shard must arrive at: ((0+1)+(2+3)) and the optimizer. */
static void reference_step(float *weights, float *next, uint64_t step)
{
    float *lanes[4];

    for (uint32_t lane = 0; lane < 4; lane++) {
        lanes[lane] = shard_worker_new_flat(&fixture);
        shard_worker_gradient(&fixture, lanes[lane], lane, step);
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

/* Push the sums of an evaluation or of the end, and take the next word. */
static void complete_entry(struct shard_stream *worker, struct kelp_control_word *word)
{
    struct shard_request request;

    shard_request_init(&request, 1);
    shard_request_word(&request, word);
    shard_request_push_lanes(&request, &fixture, 0, 4, false);
    (void)shard_request_pull(&request, 0, KELP__V1__PULL_MODE__PULL_VERSION, word->version + 1);
    request.pulls[0].holds = true;
    request.pulls[0].held_step = word->step;
    shard_stream_send(worker, &request.message.base, NULL, 0);
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(worker, NULL, NULL);
    ck_assert_int_eq(reply->status, KELP_OK);
    ck_assert_uint_eq(reply->n_answer, 1);
    ck_assert_uint_eq(reply->answer[0]->length, 0);
    ck_assert(kelp_wire_get_word(reply->answer[0]->word, word));
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
}

static void collect_records(struct kelp_record *records, size_t *count, size_t wanted)
{
    while (*count < wanted) {
        Kelp__V1__ShardReport *report = shard_take_report(&control);
        ck_assert_int_eq(report->status, KELP_OK);
        for (size_t i = 0; i < report->n_records; i++) {
            ck_assert_uint_lt(*count, wanted);
            ck_assert(kelp_wire_get_record(report->records[i], &records[(*count)++]));
        }
        kelp__v1__shard_report__free_unpacked(report, NULL);
    }
}

KELP_CASE("training", .timeout_s = 60, .setup = set_up, .teardown = tear_down)

/* Two workers train to the end: the weights are those of the reference to the bit, each step costs
 * each worker one message, and the records arrive. */
KELP_TEST(whole_job)
{
    struct shard_stream workers[2];
    struct kelp_control_word word;
    struct kelp_record records[4];
    size_t record_count = 0;
    float *weights = shard_worker_new_flat(&fixture), *reference = shard_worker_new_flat(&fixture),
          *next = shard_worker_new_flat(&fixture);

    shard_load(&control, 1);
    for (size_t i = 0; i < 2; i++) {
        shard_worker_open(&workers[i], &fixture, 1, weights, &word);
    }
    initial_weights(reference);
    ck_assert_mem_eq(weights, reference, shard_worker_flat_bytes(&fixture));
    for (uint64_t step = 0; step < 2; step++) {
        ck_assert_uint_eq(word.version, step);
        ck_assert_uint_eq(word.kind, KELP_STEP_TRAIN);
        shard_worker_push_lane(&workers[0], &word, 3, false);
        shard_worker_push_lane(&workers[0], &word, 1, true);
        shard_worker_push_lane(&workers[1], &word, 0, false);
        shard_worker_push_lane(&workers[1], &word, 2, true);
        reference_step(reference, next, step);
        for (size_t i = 0; i < 2; i++) {
            memset(weights, 0, shard_worker_flat_bytes(&fixture));
            take_weights(&workers[i], step + 1, weights, &word);
            ck_assert_mem_eq(weights, next, shard_worker_flat_bytes(&fixture));
            ck_assert_uint_eq(workers[i].message_count, 0);
        }
        memcpy(reference, next, shard_worker_flat_bytes(&fixture));
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
    command.proof = (char *)(uintptr_t)SHARD_PROOF; /* only read */
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
    float *weights = shard_worker_new_flat(&fixture), *reference = shard_worker_new_flat(&fixture),
          *next = shard_worker_new_flat(&fixture);

    shard_load(&control, 1);
    for (size_t i = 0; i < WORKERS; i++) {
        shard_worker_open(&workers[i], &fixture, 1, weights, &word);
    }
    initial_weights(reference);
    for (uint64_t step = 0; step < 2; step++) {
        for (uint32_t lane = 0; lane < 4; lane++) {
            for (uint32_t i = 0; i < WORKERS; i++) {
                shard_worker_push_lane(&workers[i], &word, (lane + i) % 4, lane == 3);
            }
        }
        shard_stream_close(&workers[0]); /* maybe while it is answered */
        reference_step(reference, next, step);
        for (size_t i = 1; i < WORKERS; i++) {
            take_weights(&workers[i], step + 1, weights, &word);
            ck_assert_mem_eq(weights, next, shard_worker_flat_bytes(&fixture));
        }
        memcpy(reference, next, shard_worker_flat_bytes(&fixture));
        shard_stream_open(&workers[0], &fixture, "Exchange");
        struct shard_request request;
        shard_request_init(&request, 1);
        shard_request_hello(&request, &fixture);
        shard_request_pull_all(&request, &fixture, KELP__V1__PULL_MODE__PULL_CURRENT, 0);
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

/* Pulls of the next step, from one worker. */
struct wish {
    uint32_t first;
    uint32_t count; /* 0: all that follow */
    bool holds;     /* the weights of the first */
};

static uint32_t wish_count(const struct wish *wish)
{
    return wish->count ? wish->count : fixture.plan.partition_count - wish->first;
}

/* The shard knows of it when this returns. */
static void make_wish(struct shard_stream *worker, const struct wish *wish)
{
    struct shard_request request;

    shard_request_init(&request, 1);
    for (uint32_t i = 0; i < wish_count(wish); i++) {
        Kelp__V1__PullItem *item =
            shard_request_pull(&request, wish->first + i, KELP__V1__PULL_MODE__PULL_STEP, 1);
        item->holds = i == 0 && wish->holds;
        item->held_step = 1;
    }
    shard_stream_send(worker, &request.message.base, NULL, 0);
    shard_request_init(&request, 1);
    (void)shard_request_pull(&request, 0, KELP__V1__PULL_MODE__PULL_CURRENT, 0);
    shard_stream_send(worker, &request.message.base, NULL, 0);
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(worker, NULL, NULL);
    ck_assert_uint_eq(reply->n_answer, 1);
    ck_assert_uint_eq(reply->answer[0]->step, 0);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
}

static void check_wish(struct shard_stream *worker, const struct wish *wish, const float *expected)
{
    struct kelp_rpc_message *message;
    struct kelp_wire_payload payload;
    float *weights = shard_worker_new_flat(&fixture);
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(worker, &message, &payload);

    ck_assert_uint_eq(reply->n_refused, 0);
    ck_assert_uint_eq(reply->n_answer, wish_count(wish));
    for (uint32_t i = 0; i < wish_count(wish); i++) {
        const Kelp__V1__PullAnswer *answer = reply->answer[i];
        const struct kelp_slice_range range = kelp_plan_partition(&fixture.plan, wish->first + i);
        const size_t bytes = i == 0 && wish->holds ? 0 : range.count * sizeof(float);
        ck_assert_int_eq(answer->status, KELP_OK);
        ck_assert_uint_eq(answer->partition, wish->first + i);
        ck_assert_uint_eq(answer->step, 1);
        ck_assert_uint_eq(answer->length, bytes);
        ck_assert_int_eq(answer->word != NULL, answer->partition == 0);
        kelp_wire_payload_copy(&payload, (size_t)answer->offset, bytes, weights);
        ck_assert(memcmp(weights, expected + range.first, bytes) == 0);
    }
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    kelp_rpc_message_unref(message);
    free(weights);
}

/* Workers that wait for one step get what each has asked for, though some have asked for the same.
 */
KELP_TEST(wishes)
{
    static const struct wish wishes[] = {{.first = 0},
                                         {.first = 0},
                                         {.first = 1},
                                         {.first = 0, .holds = true},
                                         {.first = 0},
                                         {.first = 1, .holds = true},
                                         {.first = 1, .holds = true},
                                         {.first = 0, .count = 1},
                                         {.first = 2, .count = 2},
                                         {.first = 2, .count = 2}};
    struct shard_stream workers[KELP_ARRAY_COUNT(wishes)];
    struct shard_stream pushing;
    struct kelp_control_word word;
    float *weights = shard_worker_new_flat(&fixture), *next = shard_worker_new_flat(&fixture);

    shard_load(&control, 1);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(wishes); i++) {
        shard_worker_open(&workers[i], &fixture, 1, weights, &word);
        make_wish(&workers[i], &wishes[i]);
    }
    shard_worker_open(&pushing, &fixture, 1, weights, &word);
    reference_step(weights, next, 0);
    for (uint32_t lane = 0; lane < 4; lane++) {
        shard_worker_push_lane(&pushing, &word, lane, lane == 3);
    }
    take_weights(&pushing, 1, weights, &word);
    ck_assert_mem_eq(weights, next, shard_worker_flat_bytes(&fixture));
    for (size_t i = 0; i < KELP_ARRAY_COUNT(wishes); i++) {
        check_wish(&workers[i], &wishes[i], next);
        shard_stream_close(&workers[i]);
    }
    shard_stream_close(&pushing);
    free(weights);
    free(next);
}

/* A worker that leaves half-way takes nothing with it: another computes its lanes. */
KELP_TEST(worker_leaves)
{
    struct shard_stream first, second;
    struct kelp_control_word word;
    float *weights = shard_worker_new_flat(&fixture), *reference = shard_worker_new_flat(&fixture),
          *next = shard_worker_new_flat(&fixture);

    shard_load(&control, 1);
    shard_worker_open(&first, &fixture, 1, weights, &word);
    shard_worker_open(&second, &fixture, 1, weights, &word);
    shard_worker_push_lane(&first, &word, 0, true);
    shard_stream_close(&first);
    for (uint32_t lane = 0; lane < 4; lane++) {
        shard_worker_push_lane(&second, &word, lane, lane == 3);
    }
    initial_weights(reference);
    reference_step(reference, next, 0);
    take_weights(&second, 1, weights, &word);
    ck_assert_mem_eq(weights, next, shard_worker_flat_bytes(&fixture));
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
    float *weights = shard_worker_new_flat(&fixture), *reference = shard_worker_new_flat(&fixture);

    shard_load(&control, 1);
    shard_worker_open(&worker, &fixture, 1, weights, &word);
    shard_worker_push_lane(&worker, &word, 0, true);
    shard_load(&control, 2);
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(&worker, NULL, NULL);
    ck_assert_uint_eq(reply->n_answer, fixture.plan.partition_count);
    for (size_t i = 0; i < reply->n_answer; i++) { /* which may leave as the last of generation 1 */
        ck_assert_int_eq(reply->answer[i]->status, KELP_ERR_OLD_GENERATION);
    }
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);

    shard_worker_push_lane(&worker, &word, 0, false); /* of generation 1 */
    reply = shard_worker_take_reply(&worker, NULL, NULL);
    ck_assert_uint_eq(reply->n_refused, fixture.plan.partition_count);
    ck_assert_int_eq(reply->refused[0]->status, KELP_ERR_OLD_GENERATION);
    ck_assert_uint_eq(reply->refused[0]->map_epoch, 2);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);

    struct shard_request request;
    shard_request_init(&request, 3); /* of one that the shard has not heard of */
    (void)shard_request_pull(&request, 0, KELP__V1__PULL_MODE__PULL_CURRENT, 0);
    shard_stream_send(&worker, &request.message.base, NULL, 0);
    reply = shard_worker_take_reply(&worker, NULL, NULL);
    ck_assert_int_eq(reply->answer[0]->status, KELP_ERR_BUSY);
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);

    shard_request_init(&request, 2);
    shard_request_pull_all(&request, &fixture, KELP__V1__PULL_MODE__PULL_CURRENT, 0);
    shard_stream_send(&worker, &request.message.base, NULL, 0);
    take_weights(&worker, 0, weights, &word);
    initial_weights(reference);
    ck_assert_mem_eq(weights, reference, shard_worker_flat_bytes(&fixture));
    shard_stream_close(&worker);
    free(weights);
    free(reference);
}

KELP_CASE("threads", .timeout_s = 60, .setup = set_up_threads, .teardown = tear_down)

KELP_TEST_AGAIN(whole_job)
KELP_TEST_AGAIN(new_generation)
KELP_TEST_AGAIN(many_workers)
KELP_TEST_AGAIN(wishes)

KELP_CASE("lent", .timeout_s = 60, .setup = set_up_lent, .teardown = tear_down)

KELP_TEST_AGAIN(whole_job)
KELP_TEST_AGAIN(many_workers)
KELP_TEST_AGAIN(wishes)
