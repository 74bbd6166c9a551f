/* What a simulated coordinator finds in etcd and on disk, and the manifests that it makes. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/outside/disk.h"
#include "tests/sim/processes/coordinator.h"

/* The list carries manifests as texts; here they are numbers in the world's register. */
static void to_committed(struct sim *sim, const struct sim_manifest *manifest,
                         struct kelp_committed *ret_committed)
{
    char number[24];
    *ret_committed = (struct kelp_committed){
        .version = manifest->version, .step = manifest->step, .generation = manifest->generation};
    (void)snprintf(ret_committed->state_digest, sizeof(ret_committed->state_digest), "%032llx",
                   (unsigned long long)sim_manifest_digest(sim, manifest));
    (void)snprintf(ret_committed->folder, sizeof(ret_committed->folder), "%s", manifest->folder);
    (void)snprintf(number, sizeof(number), "%u", manifest->number);
    ret_committed->manifest = strdup(number);
    if (!ret_committed->manifest) {
        abort();
    }
}

static int compare_versions(const void *a, const void *b)
{
    const struct kelp_committed *left = a;
    const struct kelp_committed *right = b;
    return left->version < right->version ? -1 : left->version > right->version;
}

static bool is_named(const struct kelp_found *found, const char *folder)
{
    for (uint32_t i = 0; i < found->checkpoint_count; i++) {
        if (strcmp(found->checkpoints[i].folder, folder) == 0) {
            return true;
        }
    }
    return false;
}

/* Those that no manifest names. */
void sim_coordinator_read_folders(struct sim *sim, struct kelp_found *found)
{
    const char *folder;
    size_t capacity = 0;
    for (size_t i = 0; (folder = sim_checkpoint_folder(sim, i)) != NULL; i++) {
        if (!is_named(found, folder)) {
            found->folders.names = sim_grow(found->folders.names, found->folders.count, &capacity,
                                            sizeof(found->folders.names[0]));
            (void)snprintf(found->folders.names[found->folders.count++],
                           sizeof(found->folders.names[0]), "%s", folder);
        }
    }
}

void sim_coordinator_read_manifests(struct sim *sim, struct kelp_found *found)
{
    const struct sim_key *key;
    size_t capacity = 0;
    for (size_t i = 0; (key = sim_etcd_list(sim, "checkpoint/", i)) != NULL; i++) {
        if (found->checkpoint_count == SIM_MANIFESTS_MAX) {
            sim_fail(sim, "retention", "%u checkpoints are in etcd", SIM_MANIFESTS_MAX);
        }
        found->checkpoints = sim_grow(found->checkpoints, found->checkpoint_count, &capacity,
                                      sizeof(found->checkpoints[0]));
        struct kelp_committed *committed = &found->checkpoints[found->checkpoint_count++];
        to_committed(sim, key->value->content, committed);
        committed->revision = key->mod_revision;
        if (committed->generation > found->last_generation) {
            found->last_generation = committed->generation;
        }
    }
    if (found->checkpoint_count > 0) {
        qsort(found->checkpoints, found->checkpoint_count, sizeof(found->checkpoints[0]),
              compare_versions);
    }
}

void sim_coordinator_found_fini(struct kelp_found *found)
{
    kelp_map_fini(&found->map);
    for (uint32_t i = 0; i < found->checkpoint_count; i++) {
        free(found->checkpoints[i].manifest);
    }
    free(found->checkpoints);
    free(found->folders.names);
    *found = (struct kelp_found){.plan = NULL};
}

kelp_status sim_coordinator_make_manifest(const struct kelp_checkpointer *from,
                                          struct kelp_committed *ret_committed,
                                          struct kelp_error *reterr, void *user)
{
    struct sim_coordinator *coordinator = user;
    struct sim_manifest *manifest = sim_manifest_create(coordinator->sim);
    (void)reterr;
    manifest->version = from->saved.version;
    manifest->step = from->saved.step;
    manifest->generation = from->order.generation;
    manifest->storage_count = from->map.shard_count;
    (void)snprintf(manifest->folder, sizeof(manifest->folder), "%s", from->order.folder);
    for (uint32_t i = 0; i < from->map.shard_count; i++) {
        (void)snprintf(manifest->storages[i], sizeof(manifest->storages[i]), "%s",
                       from->shards[i].storage);
    }
    for (uint32_t i = 0; i < from->map.partition_count; i++) {
        manifest->parts[i].storage = from->parts[i].shard;
        memcpy(manifest->parts[i].digest, from->parts[i].digest, sizeof(manifest->parts[i].digest));
    }
    to_committed(coordinator->sim, manifest, ret_committed);
    sim_manifest_unref(manifest); /* the register has it */
    return KELP_OK;
}
