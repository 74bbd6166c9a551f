/* What a simulated coordinator finds in etcd and on disk, and the manifests that it makes. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/invariants.h"
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

static void list_folders(struct sim *sim, struct kelp_found *found)
{
    const char *folder;
    size_t capacity = 0;
    for (size_t i = 0; (folder = sim_checkpoint_folder(sim, i)) != NULL; i++) {
        found->folders.names = sim_grow(found->folders.names, found->folders.count, &capacity,
                                        sizeof(found->folders.names[0]));
        (void)snprintf(found->folders.names[found->folders.count++],
                       sizeof(found->folders.names[0]), "%s", folder);
    }
}

/* Those that no manifest names are kept. */
static void sift_folders(struct kelp_found *found)
{
    size_t kept = 0;
    for (size_t i = 0; i < found->folders.count; i++) {
        if (!is_named(found, found->folders.names[i])) {
            memmove(found->folders.names[kept++], found->folders.names[i],
                    sizeof(found->folders.names[0]));
        }
    }
    found->folders.count = kept;
}

static void read_manifests(struct sim *sim, struct kelp_found *found)
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

static int64_t revision_of(const struct sim_key *key)
{
    return key ? key->mod_revision : 0;
}

void sim_coordinator_read_part(struct sim *sim, struct sim_process *process)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct sim_task *task = &coordinator->etcd.tasks[0];
    struct kelp_found *found = &task->found;
    const struct sim_key *key = NULL;
    switch (task->stage) {
    case SIM_READ_PLAN:
        task->plan_there = sim_etcd_look(sim, "plan") != NULL;
        break;
    case SIM_READ_MAP:
        key = sim_etcd_look(sim, "map");
        coordinator->map_revision = revision_of(key);
        coordinator->map_generation =
            key ? ((const struct sim_map *)key->value->content)->map.generation : 0;
        if (key && kelp_map_copy(&((const struct sim_map *)key->value->content)->map,
                                 &found->map) != KELP_OK) {
            abort();
        }
        break;
    case SIM_READ_STATE:
        key = sim_etcd_look(sim, "state");
        coordinator->state_revision = revision_of(key);
        found->has_state = key != NULL;
        if (key) {
            found->state = *(const struct kelp_job_state *)key->value->content;
        }
        break;
    case SIM_READ_SCALE:
        key = sim_etcd_look(sim, "scale");
        coordinator->scale_revision = revision_of(key);
        found->has_scale = key != NULL;
        if (key) {
            found->scale = *(const struct kelp_scale *)key->value->content;
        }
        break;
    case SIM_READ_FENCE:
        coordinator->fence_revision = revision_of(sim_etcd_look(sim, "fence"));
        break;
    case SIM_READ_MANIFESTS:
        read_manifests(sim, found);
        break;
    case SIM_READ_ELECTION:
        key = sim_etcd_look(sim, "coordinator");
        task->still_elected = task->revision != 0 && key && key->create_revision == task->revision;
        break;
    case SIM_READ_STAGE_COUNT:
        break;
    }
}

static bool next_stage(struct sim_task *task)
{
    if (task->kind != SIM_TASK_READ && task->kind != SIM_TASK_READ_MAP) {
        return false;
    }
    task->stage++;
    if (task->stage == SIM_READ_STATE && task->kind == SIM_TASK_READ_MAP) {
        task->stage = SIM_READ_FENCE;
    }
    return task->stage < (task->kind == SIM_TASK_READ ? SIM_READ_STAGE_COUNT : SIM_READ_ELECTION);
}

/* Folders are listed before the manifests are read, and are ours to remove when we are still
 * elected after that: a successor may have ordered what lies there, and commit it. */
bool sim_coordinator_use_part(struct sim *sim, struct sim_task *task)
{
    if (task->kind == SIM_TASK_READ && task->stage == SIM_READ_FENCE) {
        list_folders(sim, &task->found);
    } else if (task->kind == SIM_TASK_READ && task->stage == SIM_READ_MANIFESTS) {
        sift_folders(&task->found);
    } else if (task->kind == SIM_TASK_READ && task->stage == SIM_READ_ELECTION &&
               !task->still_elected) {
        task->status = KELP_ERR_NOT_LEADER;
    }
    return next_stage(task);
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
    uint32_t places[KELP_COORDINATOR_SHARDS_MAX];
    manifest->storage_count = kelp_checkpointer_storages(from, places);
    (void)snprintf(manifest->folder, sizeof(manifest->folder), "%s", from->order.folder);
    for (uint32_t i = 0; i < from->map.shard_count; i++) {
        if (places[i] != KELP_MAP_NOBODY) {
            (void)snprintf(manifest->storages[places[i]], sizeof(manifest->storages[places[i]]),
                           "%s", from->shards[i].storage);
        }
    }
    for (uint32_t i = 0; i < from->map.partition_count; i++) {
        manifest->parts[i].storage = places[from->parts[i].shard];
        memcpy(manifest->parts[i].digest, from->parts[i].digest, sizeof(manifest->parts[i].digest));
        sim_invariants_stored(coordinator->sim,
                              &(struct kelp_snapshot_order){.serial = from->order.serial,
                                                            .generation = from->order.generation},
                              i, manifest->storages[manifest->parts[i].storage]);
    }
    to_committed(coordinator->sim, manifest, ret_committed);
    sim_manifest_unref(manifest); /* the register has it */
    return KELP_OK;
}
