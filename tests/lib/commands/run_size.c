#include "tests/lib/commands/run_size.h"

#include <string.h>

#include "cli/cluster/run_client.h"

Kelp__V1__StatusReply *kelp_run_ask(const char *run_folder)
{
    struct kelp_job_client *client = NULL;
    Kelp__V1__StatusReply *reply = NULL;

    if (kelp_run_client_open(run_folder, &client, NULL) != KELP_OK ||
        kelp_job_client_status(client, 1000, &reply, NULL) != KELP_OK) {
        reply = NULL;
    }
    kelp_job_client_close(client);
    return reply;
}

bool kelp_run_has_size(const struct kelp_run *run, struct kelp_run_size size)
{
    Kelp__V1__StatusReply *reply = kelp_run_ask(run->run_folder);
    uint32_t used = 0, working = 0, backups = 0;
    bool good = reply && strcmp(reply->state, "running") == 0;

    for (size_t i = 0; good && i < reply->n_shards; i++) {
        const Kelp__V1__ShardInfo *shard = reply->shards[i];
        used += shard->partitions > 0 ? 1 : 0;
        backups += shard->backups;
        good = shard->joining == 0 && (shard->partitions == 0 ||
                                       shard->partitions >= reply->map->n_partitions / size.shards);
    }
    for (size_t i = 0; good && i < reply->n_workers; i++) {
        working += reply->workers[i]->lane_count > 0 ? 1 : 0;
    }
    good = good && used == size.shards && working == size.workers &&
           backups == (size.replicas - 1) * reply->map->n_partitions;
    kelp_job_client_status_free(reply);
    return good;
}

void kelp_run_await_size(const struct kelp_run *run, struct kelp_run_size size)
{
    KELP_TEST_AWAIT_FROM(&run->command, kelp_run_has_size(run, size),
                         "it does not get to %u shards and %u workers", size.shards, size.workers);
}

uint32_t kelp_run_shards_used(const char *run_folder)
{
    Kelp__V1__StatusReply *reply = kelp_run_ask(run_folder);
    uint32_t used = 0;

    for (size_t i = 0; reply && i < reply->n_shards; i++) {
        used += reply->shards[i]->partitions > 0 ? 1 : 0;
    }
    kelp_job_client_status_free(reply);
    return used;
}

uint32_t kelp_run_joining(const char *run_folder)
{
    Kelp__V1__StatusReply *reply = kelp_run_ask(run_folder);
    uint32_t joining = 0;

    for (size_t i = 0; reply && i < reply->n_shards; i++) {
        joining += reply->shards[i]->joining;
    }
    kelp_job_client_status_free(reply);
    return joining;
}
