#include "tests/sim/outside/message.h"

#include <stdlib.h>

#include "tests/sim/world.h"

static void destroy_request(struct sim_message *message)
{
    struct sim_request *request = (struct sim_request *)message;
    for (size_t i = 0; i < request->push_count; i++) {
        sim_node_unref(request->pushes[i].node);
    }
    free(request->pushes);
    free(request->shares);
    free(request->pulls);
}

static void destroy_reply(struct sim_message *message)
{
    struct sim_reply *reply = (struct sim_reply *)message;
    free(reply->answers);
    free(reply->refusals);
    free(reply->offers);
}

static void destroy_shard_command(struct sim_message *message)
{
    struct sim_shard_command *command = (struct sim_shard_command *)message;
    sim_map_unref(command->map);
    sim_manifest_unref(command->manifest);
}

static void destroy_shard_report(struct sim_message *message)
{
    free(((struct sim_shard_report *)message)->records);
}

static void destroy_replica(struct sim_message *message)
{
    free(((struct sim_replica_message *)message)->records);
    free(((struct sim_replica_message *)message)->known);
}

static void destroy_worker_command(struct sim_message *message)
{
    sim_map_unref(((struct sim_worker_command *)message)->map);
}

void *sim_message_create(enum sim_message_kind kind, size_t bytes)
{
    static void (*const destroy[])(struct sim_message *) = {
        [SIM_REQUEST] = destroy_request,
        [SIM_REPLY] = destroy_reply,
        [SIM_SHARD_COMMAND] = destroy_shard_command,
        [SIM_SHARD_REPORT] = destroy_shard_report,
        [SIM_WORKER_COMMAND] = destroy_worker_command,
        [SIM_WORKER_REPORT] = NULL,
        [SIM_LEADER_BEAT] = NULL,
        [SIM_REPLICA] = destroy_replica,
    };
    struct sim_message *message = sim_alloc(bytes);
    message->kind = kind;
    message->refs = 1;
    message->destroy = destroy[kind];
    return message;
}

void sim_message_ref(struct sim_message *message)
{
    message->refs++;
}

void sim_message_unref(void *data)
{
    struct sim_message *message = data;
    if (--message->refs == 0) {
        if (message->destroy) {
            message->destroy(message);
        }
        free(message);
    }
}

struct sim_manifest *sim_manifest_create(struct sim *sim)
{
    struct sim_manifest *manifest = sim_alloc(sizeof(*manifest));
    sim->manifests = sim_grow(sim->manifests, sim->manifest_count, &sim->manifest_capacity,
                              sizeof(struct sim_manifest *));
    manifest->refs = 2;
    manifest->number = (uint32_t)sim->manifest_count;
    sim->manifests[sim->manifest_count++] = manifest;
    return manifest;
}

/* Of the state, not of who wrote it where: version and parts. */
uint64_t sim_manifest_digest(const struct sim *sim, const struct sim_manifest *manifest)
{
    uint64_t digest = sim_mix(manifest->version + 1);
    for (uint32_t p = 0; p < sim->plan.partition_count; p++) {
        for (const char *at = manifest->parts[p].digest; *at; at++) {
            digest = sim_mix(digest * 257 + (unsigned char)*at);
        }
    }
    return digest;
}

struct sim_manifest *sim_manifest_find(const struct sim *sim, const char *number)
{
    return sim->manifests[strtoul(number, NULL, 10)];
}

struct sim_manifest *sim_manifest_ref(struct sim_manifest *manifest)
{
    manifest->refs++;
    return manifest;
}

void sim_manifest_unref(struct sim_manifest *manifest)
{
    if (manifest && --manifest->refs == 0) {
        free(manifest);
    }
}

struct sim_map *sim_map_create(const struct kelp_map *map)
{
    struct sim_map *copy = sim_alloc(sizeof(*copy));
    copy->refs = 1;
    if (kelp_map_copy(map, &copy->map) != KELP_OK) {
        abort();
    }
    return copy;
}

struct sim_map *sim_map_ref(struct sim_map *map)
{
    map->refs++;
    return map;
}

void sim_map_unref(struct sim_map *map)
{
    if (map && --map->refs == 0) {
        kelp_map_fini(&map->map);
        free(map);
    }
}
