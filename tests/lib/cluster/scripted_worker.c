#include "tests/lib/cluster/scripted_worker.h"

#include <check.h>
#include <stdlib.h>

/* Workers send messages of about this size (transport.piece_bytes). */
#define MESSAGE_BYTES (4u << 20)

static void fill_request(struct scripted_worker *worker, uint64_t generation, uint32_t lane)
{
    static double sums[KELP_METRIC_SUM_COUNT] = {1, 16};
    const struct kelp_plan *plan = &worker->stream.fixture->plan;
    Kelp__V1__ExchangeRequest *request = &worker->request;

    for (uint32_t p = 0; p < plan->partition_count; p++) {
        struct kelp_slice_range range = kelp_plan_partition(plan, p);
        Kelp__V1__PushItem *push = &worker->pushes[p];
        kelp__v1__push_item__init(push);
        push->partition = p;
        push->map_epoch = generation;
        push->lane_first = lane;
        push->lane_count = 1;
        push->length = range.count * sizeof(float);
        if (p == 0) {
            push->n_sums = kelp_metric_sum_trim(sums, KELP_METRIC_SUM_COUNT);
            push->sums = sums;
        }
        request->push[p] = push;
        kelp__v1__pull_item__init(&worker->pulls[p]);
        worker->pulls[p].partition = p;
        worker->pulls[p].map_epoch = generation;
        request->pull[p] = &worker->pulls[p];
    }
    request->generation = generation;
    request->n_push = plan->partition_count;
    request->n_pull = plan->partition_count;
}

/* Partitions [first, *ret_end) that fit into one message. Returns the bytes of their slices. */
static size_t next_message(const struct kelp_plan *plan, uint32_t first, uint32_t *ret_end)
{
    size_t bytes = 0;
    uint32_t end = first;

    while (end < plan->partition_count) {
        size_t more = (size_t)kelp_plan_partition(plan, end).count * sizeof(float);
        if (end > first && bytes + more > MESSAGE_BYTES) {
            break;
        }
        bytes += more;
        end++;
    }
    *ret_end = end;
    return bytes;
}

void scripted_worker_send(struct scripted_worker *worker, const struct kelp_control_word *word,
                          const float *gradient)
{
    const struct kelp_plan *plan = &worker->stream.fixture->plan;
    Kelp__V1__ExchangeRequest request = worker->request;
    Kelp__V1__ControlWord wire;
    uint32_t end = 0;

    kelp_wire_put_word(word, &wire);
    request.word = &wire;
    for (uint32_t first = 0; first < plan->partition_count; first = end) {
        uint64_t origin = kelp_plan_partition(plan, first).first;
        size_t bytes = next_message(plan, first, &end);
        for (uint32_t p = first; p < end; p++) {
            worker->pushes[p].offset =
                (kelp_plan_partition(plan, p).first - origin) * sizeof(float);
            worker->pulls[p].mode = KELP__V1__PULL_MODE__PULL_STEP;
            worker->pulls[p].step = word->step + 1;
        }
        request.push = worker->request.push + first;
        request.pull = worker->request.pull + first;
        request.n_push = end - first;
        request.n_pull = end - first;
        shard_stream_send(&worker->stream, &request.base, gradient + origin, bytes);
    }
}

void scripted_worker_take(struct scripted_worker *worker, struct kelp_control_word *ret_word)
{
    uint32_t answers = 0;

    while (answers < worker->stream.fixture->plan.partition_count) {
        Kelp__V1__ExchangeReply *reply =
            shard_stream_take(&worker->stream, &kelp__v1__exchange_reply__descriptor, NULL, NULL);
        ck_assert_msg(reply->status == KELP_OK, "%s", reply->error);
        ck_assert_uint_eq(reply->n_refused, 0);
        for (size_t i = 0; i < reply->n_answer; i++) {
            ck_assert_int_eq(reply->answer[i]->status, KELP_OK);
            if (reply->answer[i]->word) {
                ck_assert(kelp_wire_get_word(reply->answer[i]->word, ret_word));
            }
        }
        answers += (uint32_t)reply->n_answer;
        kelp__v1__exchange_reply__free_unpacked(reply, NULL);
    }
}

void scripted_worker_open(struct scripted_worker *worker, struct shard_fixture *fixture,
                          uint64_t generation, uint32_t lane, struct kelp_control_word *ret_word)
{
    size_t count = fixture->plan.partition_count;
    Kelp__V1__Hello hello;

    kelp__v1__exchange_request__init(&worker->request);
    worker->pushes = calloc(count, sizeof(*worker->pushes));
    worker->pulls = calloc(count, sizeof(*worker->pulls));
    worker->request.push = calloc(count, sizeof(*worker->request.push));
    worker->request.pull = calloc(count, sizeof(*worker->request.pull));
    ck_assert(worker->pushes && worker->pulls && worker->request.push && worker->request.pull);
    shard_stream_open(&worker->stream, fixture, "Exchange");
    fill_request(worker, generation, lane);
    shard_hello(fixture, &hello, "scripted");
    worker->request.hello = &hello;
    worker->request.n_push = 0;
    shard_stream_send(&worker->stream, &worker->request.base, NULL, 0);
    scripted_worker_take(worker, ret_word);
    worker->request.hello = NULL;
    worker->request.n_push = count;
}

void scripted_worker_close(struct scripted_worker *worker)
{
    shard_stream_close(&worker->stream);
    free(worker->pushes);
    free(worker->pulls);
    free(worker->request.push);
    free(worker->request.pull);
}
