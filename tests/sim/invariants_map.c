/* Invariants of the map in etcd, and what they are kept in; the list is in invariants.c. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/faults.h"
#include "tests/sim/invariants_internal.h"

#define MOVE_US (20 * SIM_SECOND) /* the longest that somebody joins, once all is well */
#define LOOK_US SIM_SECOND

struct sim_invariants *sim_invariants_create(void)
{
    return sim_alloc(sizeof(struct sim_invariants));
}

void sim_invariants_destroy(struct sim_invariants *invariants)
{
    if (invariants) {
        sim_map_unref(invariants->map);
        free(invariants->generations);
        free(invariants->primaries);
        free(invariants->orders);
        free(invariants);
    }
}

struct generation *sim__invariants_generation(struct sim *sim, uint64_t number)
{
    struct sim_invariants *all = sim->invariants;
    while (all->generation_count < number) {
        all->generations = sim_grow(all->generations, all->generation_count,
                                    &all->generation_capacity, sizeof(*all->generations));
        memset(&all->generations[all->generation_count++], 0, sizeof(*all->generations));
    }
    return &all->generations[number - 1];
}

/* ---- a generation ----------------------------------------------------------------------------
 */

static bool is_damaged(struct sim *sim, const struct sim_manifest *manifest)
{
    for (uint32_t p = 0; p < sim->plan.partition_count; p++) {
        const struct sim_storage *storage =
            sim_storage_look(sim, manifest->folder, manifest->storages[manifest->parts[p].storage]);
        if (!storage || storage->parts[p].garbled) {
            return true;
        }
    }
    return false;
}

static void check_restored(struct sim *sim, const struct sim_map *opened)
{
    const struct kelp_map *map = &opened->map;
    const struct sim_key *key;
    bool there = map->restore_version == 0;
    for (size_t i = 0; (key = sim_etcd_list(sim, "checkpoint/", i)) != NULL; i++) {
        const struct sim_manifest *manifest = key->value->content;
        there = there || manifest->version == map->restore_version;
        /* One that is committed after the generation was decided on goes with it. */
        bool known = manifest->committed_us < opened->asked_us;
        if (manifest->version > map->restore_version && known && !is_damaged(sim, manifest)) {
            sim_fail(sim, "the newest good checkpoint is restored",
                     "generation %llu starts from version %llu; there is %llu",
                     (unsigned long long)map->generation, (unsigned long long)map->restore_version,
                     (unsigned long long)manifest->version);
        }
    }
    if (!there) {
        sim_fail(sim, "what is restored is there", "generation %llu starts from version %llu",
                 (unsigned long long)map->generation, (unsigned long long)map->restore_version);
    }
}

/* The process of an entry, if it is there with the partition in this generation; else NULL. */
static const struct sim_hosted *replica_of(struct sim *sim, const struct kelp_map *map, uint32_t at,
                                           uint32_t partition)
{
    if (at == KELP_MAP_NOBODY) {
        return NULL;
    }
    const struct sim_process *process = sim_find_id(sim, map->shards[at].id);
    if (process->incarnation != map->shards[at].incarnation) {
        return NULL;
    }
    const struct sim_hosting *hosting = sim_shard_of(process)->hosting;
    return hosting && hosting->generation == map->generation ? hosting->by_index[partition] : NULL;
}

/* In runs where processes are killed and nothing else goes wrong. */
static void check_needed(struct sim *sim, const struct kelp_map *opened)
{
    const struct kelp_map *before = sim->invariants->map ? &sim->invariants->map->map : NULL;
    if (!sim->profile.kills || !before) {
        return;
    }
    for (uint32_t p = 0; p < before->partition_count; p++) {
        const struct kelp_map_partition *entry = &before->partitions[p];
        if (!replica_of(sim, before, entry->primary, p) &&
            !replica_of(sim, before, entry->backup, p)) {
            return;
        }
    }
    sim_fail(sim, "a generation is opened when some partition has no replica left",
             "generation %llu is opened, and each has one", (unsigned long long)opened->generation);
}

/* ---- entries ----------------------------------------------------------------------------------
 */

/* Whoever may lead from now on has what was shown. */
static void check_heir(struct sim *sim, const struct kelp_map *map, uint32_t at, uint32_t partition)
{
    const struct line *line = &sim__invariants_generation(sim, map->generation)->lines[partition];
    const struct sim_hosted *hosted = replica_of(sim, map, at, partition);
    struct kelp_partition_view view;
    if (!hosted) {
        return; /* dead: nobody will hear of it */
    }
    kelp_partition_view(hosted->core, &view);
    if (view.phase == KELP_PARTITION_FILLING || view.held < line->shown) {
        sim_fail(sim, "whoever may be promoted has what was shown",
                 "partition %u of %s has %llu%s; %llu was shown", partition, map->shards[at].id,
                 (unsigned long long)view.held,
                 view.phase == KELP_PARTITION_FILLING ? " in part" : "",
                 (unsigned long long)line->shown);
    }
}

static void note_joiner(struct sim *sim, const struct kelp_map *map, uint32_t partition)
{
    struct joiner *joiner = &sim->invariants->joiners[partition];
    const uint32_t at = map->partitions[partition].joiner;
    const uint64_t process = at == KELP_MAP_NOBODY ? 0 : map->shards[at].incarnation;
    if (process != joiner->process) {
        *joiner = (struct joiner){.process = process, .since_us = sim->now};
    }
}

void sim_invariants_opened(struct sim *sim, struct sim_map *opened)
{
    const struct kelp_map *map = &opened->map;
    if (map->generation != sim->invariants->opened) {
        check_restored(sim, opened);
        check_needed(sim, map);
    }
    sim->invariants->opened = map->generation;
    for (uint32_t p = 0; p < map->partition_count; p++) {
        note_joiner(sim, map, p);
        if (map->serial > 1) {
            check_heir(sim, map, map->partitions[p].primary, p);
            check_heir(sim, map, map->partitions[p].backup, p);
        }
    }
    sim_map_unref(sim->invariants->map);
    sim->invariants->map = sim_map_ref(opened);
}

/* Nobody takes over: what the job had made when it was asked to end is in a checkpoint. */
static void check_saved(const struct sim_process *process, const char *why)
{
    static const char saved[] = "saved at step ";
    const struct sim_shard *shard = sim_shard_of(process);
    const char *at = strstr(why, saved);
    if (at && shard->hosting && shard->hosting->generation == shard->asked_generation &&
        strtoull(at + strlen(saved), NULL, 10) < shard->asked_step) {
        sim_fail(process->sim, "what all shards leave is saved", "%s was at step %llu: %s",
                 process->id, (unsigned long long)shard->asked_step, why);
    }
}

/* Empty, it leads nothing and is nobody's backup, as far as it has heard. A map that was written
 * since the leader let it go may name it: that is a loss like any other. */
void sim_invariants_leaves(const struct sim_process *process, const char *why)
{
    const struct sim_map *known = sim_shard_of(process)->map;
    check_saved(process, why);
    for (uint32_t p = 0; known && p < known->map.partition_count; p++) {
        const struct kelp_map_partition *entry = &known->map.partitions[p];
        const uint64_t primary = known->map.shards[entry->primary].incarnation;
        const uint64_t backup =
            entry->backup == KELP_MAP_NOBODY ? 0 : known->map.shards[entry->backup].incarnation;
        if (strstr(why, "on other shards") &&
            (primary == process->incarnation || backup == process->incarnation)) {
            sim_fail(process->sim, "a drained shard is empty", "%s leaves and has partition %u",
                     process->id, p);
        }
    }
}

void sim_invariants_look(struct sim *sim)
{
    struct sim_invariants *all = sim->invariants;
    if (sim->now < all->moves_us + LOOK_US) {
        return;
    }
    all->moves_us = sim->now;
    if (!sim_faults_over(sim) || !sim_job_state(sim, "running")) {
        return;
    }
    for (uint32_t p = 0; p < sim->plan.partition_count; p++) {
        const struct joiner *joiner = &all->joiners[p];
        const uint64_t since_us =
            joiner->since_us > sim->healed_us ? joiner->since_us : sim->healed_us;
        if (joiner->process != 0 && sim->now > since_us + MOVE_US) {
            sim_fail(sim, "moves end", "somebody joins partition %u for %.1f s", p,
                     (double)(sim->now - joiner->since_us) / 1e6);
        }
    }
}
