#include "tests/lib/cluster/shard_worker.h"

#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

/* ---- requests ------------------------------------------------------------------------------ */

void shard_request_init(struct shard_request *request, uint64_t generation)
{
    memset(request, 0, sizeof(*request));
    kelp__v1__exchange_request__init(&request->message);
    request->message.generation = generation;
    request->message.push = request->push_pointers;
    request->message.pull = request->pull_pointers;
}

void shard_request_hello(struct shard_request *request, const struct shard_fixture *fixture)
{
    shard_hello(fixture, &request->hello, "worker-7");
    request->message.hello = &request->hello;
}

void shard_request_word(struct shard_request *request, const struct kelp_control_word *word)
{
    kelp_wire_put_word(word, &request->word);
    request->message.word = &request->word;
}

Kelp__V1__PushItem *shard_request_push(struct shard_request *request,
                                       const struct shard_fixture *fixture, uint32_t partition,
                                       bool with_gradient)
{
    struct kelp_slice_range range = kelp_plan_partition(&fixture->plan, partition);
    ck_assert_uint_lt(request->message.n_push, KELP_ARRAY_COUNT(request->pushes));
    Kelp__V1__PushItem *item = &request->pushes[request->message.n_push];

    kelp__v1__push_item__init(item);
    item->partition = partition;
    item->map_epoch = request->message.generation;
    item->lane_count = 4;
    if (with_gradient) {
        item->offset = range.first * sizeof(float);
        item->length = range.count * sizeof(float);
    }
    request->push_pointers[request->message.n_push++] = item;
    return item;
}

void shard_request_sums(struct shard_request *request, Kelp__V1__PushItem *item)
{
    item->n_sums = kelp_metric_sum_trim(request->sums, KELP_METRIC_SUM_COUNT);
    item->sums = request->sums;
    item->digest = (char *)(uintptr_t)SHARD_WORKER_DIGEST;
}

Kelp__V1__PullItem *shard_request_pull(struct shard_request *request, uint32_t partition,
                                       Kelp__V1__PullMode mode, uint64_t target)
{
    ck_assert_uint_lt(request->message.n_pull, KELP_ARRAY_COUNT(request->pulls));
    Kelp__V1__PullItem *item = &request->pulls[request->message.n_pull];

    kelp__v1__pull_item__init(item);
    item->partition = partition;
    item->map_epoch = request->message.generation;
    item->mode = mode;
    item->step = target;
    item->version = target;
    request->pull_pointers[request->message.n_pull++] = item;
    return item;
}

void shard_request_pull_all(struct shard_request *request, const struct shard_fixture *fixture,
                            Kelp__V1__PullMode mode, uint64_t target)
{
    for (uint32_t p = 0; p < fixture->plan.partition_count; p++) {
        (void)shard_request_pull(request, p, mode, target);
    }
}

void shard_request_push_lanes(struct shard_request *request, const struct shard_fixture *fixture,
                              uint32_t lane_first, uint32_t lane_count, bool with_gradient)
{
    uint32_t partitions = with_gradient ? fixture->plan.partition_count : 1;

    for (uint32_t p = 0; p < partitions; p++) {
        Kelp__V1__PushItem *item = shard_request_push(request, fixture, p, with_gradient);
        item->lane_first = lane_first;
        item->lane_count = lane_count;
        if (p == 0) {
            request->sums[KELP_METRIC_SUM_SAMPLES] = lane_count * 2;
            request->sums[KELP_METRIC_SUM_LOSS] = lane_count;
            shard_request_sums(request, item);
        }
    }
}

/* ---- answers ------------------------------------------------------------------------------- */

Kelp__V1__ExchangeReply *shard_worker_take_reply(struct shard_stream *worker,
                                                 struct kelp_rpc_message **ret_message,
                                                 struct kelp_wire_payload *ret_payload)
{
    for (;;) {
        struct kelp_rpc_message *message = NULL;
        Kelp__V1__ExchangeReply *reply =
            shard_stream_take(worker, &kelp__v1__exchange_reply__descriptor, &message, ret_payload);
        if (reply->n_offer == 0 || reply->n_answer + reply->n_refused > 0) {
            if (ret_message) {
                *ret_message = message;
            } else {
                kelp_rpc_message_unref(message);
            }
            return reply;
        }
        kelp__v1__exchange_reply__free_unpacked(reply, NULL);
        kelp_rpc_message_unref(message);
    }
}

uint32_t shard_worker_take_answers(struct shard_stream *worker, uint64_t step, float *weights,
                                   struct kelp_control_word *ret_word)
{
    struct kelp_rpc_message *message;
    struct kelp_wire_payload payload;
    Kelp__V1__ExchangeReply *reply = shard_worker_take_reply(worker, &message, &payload);

    ck_assert_msg(reply->status == KELP_OK, "%s", reply->error);
    ck_assert_uint_eq(reply->n_refused, 0);
    for (size_t i = 0; i < reply->n_answer; i++) {
        const Kelp__V1__PullAnswer *answer = reply->answer[i];
        struct kelp_slice_range range =
            kelp_plan_partition(&worker->fixture->plan, answer->partition);
        ck_assert_int_eq(answer->status, KELP_OK);
        ck_assert_uint_eq(answer->step, step);
        ck_assert_uint_eq(answer->length, range.count * sizeof(float));
        ck_assert_uint_le(answer->offset + answer->length, payload.length);
        kelp_wire_payload_copy(&payload, (size_t)answer->offset, (size_t)answer->length,
                               weights + range.first);
        if (answer->partition == 0) {
            ck_assert_ptr_nonnull(answer->word);
            ck_assert(kelp_wire_get_word(answer->word, ret_word));
        }
    }
    uint32_t count = (uint32_t)reply->n_answer;
    kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    kelp_rpc_message_unref(message);
    return count;
}

uint32_t shard_worker_take_weights(struct shard_stream *worker, uint64_t step, float *weights,
                                   struct kelp_control_word *ret_word)
{
    uint32_t partitions = worker->fixture->plan.partition_count;
    uint32_t replies = 0;

    for (uint32_t taken = 0; taken < partitions; replies++) {
        taken += shard_worker_take_answers(worker, step, weights, ret_word);
        ck_assert_uint_le(taken, partitions);
    }
    return replies;
}

/* ---- a worker ------------------------------------------------------------------------------ */

size_t shard_worker_flat_bytes(const struct shard_fixture *fixture)
{
    return (size_t)fixture->plan.flat_count * sizeof(float);
}

float *shard_worker_new_flat(const struct shard_fixture *fixture)
{
    float *values = calloc(1, shard_worker_flat_bytes(fixture));
    ck_assert_ptr_nonnull(values);
    return values;
}

void shard_worker_gradient(const struct shard_fixture *fixture, float *gradient, uint32_t lane,
                           uint64_t step)
{
    for (uint64_t i = 0; i < fixture->plan.flat_count; i++) {
        gradient[i] = (float)((i * 37 + lane * 1001 + step * 77) % 1009) / 997.0f - 0.5f;
    }
}

void shard_worker_open(struct shard_stream *worker, struct shard_fixture *fixture,
                       uint64_t generation, float *weights, struct kelp_control_word *ret_word)
{
    struct shard_request request;

    shard_stream_open(worker, fixture, "Exchange");
    shard_request_init(&request, generation);
    shard_request_hello(&request, fixture);
    shard_request_pull_all(&request, fixture, KELP__V1__PULL_MODE__PULL_CURRENT, 0);
    shard_stream_send(worker, &request.message.base, NULL, 0);
    (void)shard_worker_take_weights(worker, 0, weights, ret_word);
}

void shard_worker_push_lane(struct shard_stream *worker, const struct kelp_control_word *word,
                            uint32_t lane, bool pull)
{
    struct shard_request request;
    float *gradient = shard_worker_new_flat(worker->fixture);

    shard_worker_gradient(worker->fixture, gradient, lane, word->step);
    shard_request_init(&request, 1);
    shard_request_word(&request, word);
    shard_request_push_lanes(&request, worker->fixture, lane, 1, true);
    if (pull) {
        shard_request_pull_all(&request, worker->fixture, KELP__V1__PULL_MODE__PULL_STEP,
                               word->step + 1);
    }
    shard_stream_send(worker, &request.message.base, gradient,
                      shard_worker_flat_bytes(worker->fixture));
    free(gradient);
}
