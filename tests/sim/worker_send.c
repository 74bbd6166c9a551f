/* What a simulated worker sends to shards (worker/exchange_link.c). */
#include <string.h>

#include "tests/sim/worker.h"

static void collect_pushes(struct sim_worker *worker, const struct sim_worker_link *link,
                           bool resend, struct sim_request *request)
{
    const struct kelp_map *map = &worker->map->map;
    bool train = worker->word.kind == KELP_STEP_TRAIN;
    request->pushes =
        sim_alloc((worker->pushed_count * map->partition_count + 1) * sizeof(*request->pushes));
    for (uint32_t p = train ? map->partition_count : 1; p > 0; p--) { /* the last first */
        if (strcmp(map->shards[map->partitions[p - 1].primary].id, link->shard->id) != 0) {
            continue;
        }
        for (size_t i = 0; i < worker->pushed_count; i++) {
            if (worker->pushed[i]->sent && !resend) {
                continue;
            }
            worker->pushed[i]->refs++;
            request->pushes[request->push_count++] =
                (struct sim_push){.partition = p - 1,
                                  .map_epoch = map->partitions[p - 1].map_epoch,
                                  .node = worker->pushed[i]};
        }
    }
}

static bool hosts(const struct sim_worker *worker, const struct sim_worker_link *link,
                  uint32_t partition)
{
    const struct kelp_map *map = &worker->map->map;
    return strcmp(map->shards[map->partitions[partition].primary].id, link->shard->id) == 0;
}

/* To the host of partition 0: all the others' parts, once they are there. */
static void collect_parts(struct sim_worker *worker, const struct sim_worker_link *link,
                          struct sim_request *request)
{
    const struct kelp_map *map = &worker->map->map;
    if (!hosts(worker, link, 0) || !kelp_sync_parts_due(worker->sync)) {
        return;
    }
    request->parts = sim_alloc(map->partition_count * sizeof(*request->parts));
    for (uint32_t p = 1; p < map->partition_count; p++) {
        request->parts[request->part_count++] =
            (struct sim_part_push){.partition = p,
                                   .map_epoch = map->partitions[0].map_epoch,
                                   .part = *kelp_sync_part(worker->sync, p)};
    }
}

static void collect_pulls(struct sim_worker *worker, const struct sim_worker_link *link,
                          struct sim_request *request)
{
    const struct kelp_map *map = &worker->map->map;
    struct kelp_sync_pull pull;
    request->pulls = sim_alloc(2 * (size_t)map->partition_count * sizeof(*request->pulls));
    for (uint32_t p = 0; p < map->partition_count; p++) {
        while (hosts(worker, link, p) && kelp_sync_pull(worker->sync, p, &pull)) {
            request->pulls[request->pull_count++] =
                (struct sim_pull){.map_epoch = map->partitions[p].map_epoch, .pull = pull};
        }
    }
}

static struct sim_request *new_request(struct sim_worker *worker,
                                       const struct kelp_control_word *word)
{
    struct sim_request *request = sim_message_create(SIM_REQUEST, sizeof(*request));
    request->generation = worker->map->map.generation;
    request->has_word = word != NULL;
    if (word) {
        request->word = *word;
    }
    request->helps = worker->spare;
    request->rank = sim_mix(worker->process->place + 1);
    return request;
}

void sim_worker_send(struct sim_worker *worker, struct sim_worker_link *link, bool resend)
{
    if (link->stream == 0) {
        return;
    }
    bool news = worker->spare != link->helps;
    link->helps = worker->spare;
    struct sim_request *request = new_request(worker, worker->working ? &worker->word : NULL);
    if (worker->working) {
        collect_pushes(worker, link, resend, request);
    }
    if (worker->working && !worker->spare) {
        collect_parts(worker, link, request);
    }
    struct kelp_step_decision decision;
    const struct kelp_control_word *word =
        worker->spare ? NULL : kelp_sync_news(worker->sync, &decision);
    if (word && (request->push_count > 0 || request->part_count > 0)) {
        sim_stream_send(worker->sim, link->stream, SIM_CLIENT, request);
        request = new_request(worker, word); /* pulls go with another word */
    } else if (word) {
        request->has_word = true;
        request->word = *word;
    }
    if (word) {
        request->decision.count = decision.count;
        memcpy(request->decision.values, decision.values,
               decision.count * sizeof(decision.values[0]));
    }
    if (!worker->spare) {
        collect_pulls(worker, link, request);
    }
    if (request->push_count == 0 && request->part_count == 0 && request->pull_count == 0 && !news) {
        sim_message_unref(&request->base);
        return;
    }
    sim_stream_send(worker->sim, link->stream, SIM_CLIENT, request);
}

void sim_worker_send_all(struct sim_worker *worker)
{
    for (uint32_t i = 0; i < worker->link_count; i++) {
        sim_worker_send(worker, &worker->links[i], false);
    }
    for (size_t i = 0; i < worker->pushed_count; i++) {
        worker->pushed[i]->sent = true;
    }
}
