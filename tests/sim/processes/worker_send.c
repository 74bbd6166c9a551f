/* A simulated worker's messages to shards: what the stepper says, as a sim_request. */
#include <string.h>

#include "tests/sim/processes/worker.h"

static void put_pushes(const struct kelp_stepper_message *message, struct sim_request *request)
{
    request->pushes = sim_alloc((message->push_count + 1) * sizeof(*request->pushes));
    for (size_t i = 0; i < message->push_count; i++) {
        const struct kelp_stepper_push *push = &message->pushes[i];
        struct sim_node *node = push->node->content;
        node->refs++;
        node->sent = true;
        request->pushes[request->push_count++] = (struct sim_push){
            .partition = push->partition, .map_epoch = push->map_epoch, .node = node};
    }
}

static void put_shares(const struct kelp_stepper_message *message, struct sim_request *request)
{
    request->shares = sim_alloc((message->share_count + 1) * sizeof(*request->shares));
    for (size_t i = 0; i < message->share_count; i++) {
        const struct kelp_stepper_share *share = &message->shares[i];
        request->shares[request->share_count++] = (struct sim_share_push){
            .partition = share->partition, .map_epoch = share->map_epoch, .share = *share->share};
    }
}

static void put_pulls(const struct kelp_stepper_message *message, struct sim_request *request)
{
    request->pulls = sim_alloc((message->pull_count + 1) * sizeof(*request->pulls));
    for (size_t i = 0; i < message->pull_count; i++) {
        request->pulls[request->pull_count++] = (struct sim_pull){
            .map_epoch = message->pulls[i].map_epoch, .pull = message->pulls[i].pull};
    }
}

void sim_worker_send(struct sim_worker *worker, const struct kelp_stepper_message *message)
{
    const struct sim_worker_link *link = &worker->links[message->shard];
    if (link->stream == 0) {
        return;
    }
    struct sim_request *request = sim_message_create(SIM_REQUEST, sizeof(*request));
    request->generation = message->generation;
    request->helps = message->helps;
    request->rank = sim_mix(worker->process->place + 1);
    request->has_word = message->has_word;
    if (message->has_word) {
        request->word = message->word;
        request->decision.count = message->decision.count;
        for (size_t i = 0; i < message->decision.count; i++) {
            request->decision.values[i] = message->decision.values[i];
        }
    }
    put_pushes(message, request);
    put_shares(message, request);
    put_pulls(message, request);
    sim_stream_send(worker->sim, link->stream, SIM_CLIENT, request);
}
