/* Partitions come, start from a checkpoint or from nothing, change their place, and leave. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/invariants.h"
#include "tests/sim/processes/shard_replicas.h"

/* Steps after a lie in which the others push what it is compared with, as a rule. */
#define COMPARED_STEPS 2

/* Where a partition starts: from its part of a checkpoint, or from w_0. */
static void start_from(struct sim_hosted *hosted, const struct sim *sim,
                       const struct sim_manifest *manifest, const struct sim_part *part,
                       struct kelp_partition_start *start)
{
    float flat[SIM_FLAT_MAX];
    if (!part) {
        sim_model_initialise(sim, flat);
        memcpy(hosted->weights[0], &flat[hosted->range.first], hosted->range.count * sizeof(float));
        return;
    }
    memcpy(hosted->weights[0], part->weights, sizeof(hosted->weights[0]));
    memcpy(hosted->momentum, part->momentum, sizeof(hosted->momentum));
    hosted->step = manifest->step;
    start->step = manifest->step;
    start->version = manifest->version;
    start->control = part->has_control ? &part->control : NULL;
}

static struct sim_hosted *slot_of(struct sim_hosting *hosting, uint32_t partition)
{
    struct sim *sim = hosting->shard->sim;
    struct sim_hosted *hosted = &hosting->hosted[partition];
    hosted->index = partition;
    hosted->range = sim_slice(sim, partition);
    struct kelp_partition_config config = {.index = partition,
                                           .replicated = true,
                                           .hollow = hosted->range.count == 0,
                                           .job = &sim->job,
                                           .plan = &sim->plan};
    if (!hosted->core) {
        sim_must(kelp_partition_create(&config, &hosted->core, NULL));
    }
    return hosted;
}

static void host(struct sim_hosting *hosting, uint32_t partition,
                 const struct kelp_replica_entry *entry, const struct sim_manifest *manifest,
                 const struct sim_part *part)
{
    struct sim_hosted *hosted = slot_of(hosting, partition);
    struct kelp_partition_start start = {.generation = hosting->generation,
                                         .map_epoch = entry->map_epoch,
                                         .place = entry->place,
                                         .backup = entry->backup,
                                         .joiner = entry->joiner};
    hosted->map_epoch = entry->map_epoch;
    hosted->life++;
    hosted->filling = 0;
    hosting->by_index[partition] = hosted;
    if (entry->place != KELP_REPLICA_JOINER) {
        start_from(hosted, hosting->shard->sim, manifest, part, &start);
    }
    kelp_partition_load(hosted->core, &start);
}

/* The partition's part of the checkpoint; NULL: *ret_status says why. */
static const struct sim_part *read_part(const struct sim *sim, const struct sim_manifest *manifest,
                                        uint32_t partition, kelp_status *ret_status,
                                        char ret_text[80])
{
    const struct sim_manifest_part *wanted = &manifest->parts[partition];
    const char *name = manifest->storages[wanted->storage];
    const struct sim_storage *storage = sim_storage_find(sim, manifest->folder, name);
    (void)snprintf(ret_text, 80, "%s", name);
    if (!storage) {
        *ret_status = KELP_ERR_NOT_FOUND;
        return NULL;
    }
    struct sim_part part = storage->parts[partition];
    sim_part_digest(&part);
    if (!part.there || strcmp(part.digest, wanted->digest) != 0) {
        *ret_status = KELP_ERR_CORRUPT;
        return NULL;
    }
    return &storage->parts[partition];
}

static bool is_here(const struct sim_shard *shard, const struct kelp_map *map, uint32_t at)
{
    return at != KELP_MAP_NOBODY && map->shards[at].incarnation == shard->process->incarnation;
}

static uint64_t process_at(const struct kelp_map *map, uint32_t at)
{
    return at == KELP_MAP_NOBODY ? 0 : map->shards[at].incarnation;
}

struct kelp_replica_entry sim_hosting_entry(const struct sim_shard *shard,
                                            const struct kelp_map *map, uint32_t partition,
                                            uint64_t *ret_primary)
{
    const struct kelp_map_partition *entry = &map->partitions[partition];
    struct kelp_replica_entry seen = {.map_epoch = entry->map_epoch, .place = KELP_REPLICA_NOBODY};
    *ret_primary = process_at(map, entry->primary);
    if (is_here(shard, map, entry->primary)) {
        *ret_primary = 0;
        seen.place = KELP_REPLICA_PRIMARY;
        seen.backup = process_at(map, entry->backup);
        seen.joiner = process_at(map, entry->joiner);
    } else if (is_here(shard, map, entry->backup)) {
        seen.place = KELP_REPLICA_BACKUP;
    } else if (is_here(shard, map, entry->joiner)) {
        seen.place = KELP_REPLICA_JOINER;
    }
    return seen;
}

/* A partition that is not here, and is to be. Its slot is free, unless older work goes on. */
static void arrive(struct sim_hosting *hosting, uint32_t partition,
                   const struct kelp_replica_entry *entry, uint64_t primary)
{
    if (entry->place != KELP_REPLICA_JOINER) {
        sim_fail(hosting->shard->sim, "only who has the state leads or is a backup",
                 "%s gets partition %u without having had it", hosting->shard->process->id,
                 partition);
    }
    memset(hosting->hosted[partition].weights, 0, sizeof(hosting->hosted[partition].weights));
    host(hosting, partition, entry, NULL, NULL);
    hosting->hosted[partition].primary = primary;
    sim_replicas_name_links(hosting, &hosting->hosted[partition]);
}

/* Lanes [first, first + count), a bit each. */
static uint32_t lanes_of(uint32_t first, uint32_t count)
{
    return ((1u << count) - 1) << first;
}

uint32_t sim_lie_unseen(const struct sim_lie *lie)
{
    const bool is_word_seen = lie->about_word && lie->came != 0;

    return is_word_seen ? 0 : lanes_of(lie->lane_first, lie->lane_count) & ~lie->came;
}

/* Duplicates that wait for their siblings do not go to the next primary, nor does what was found,
 * nor what came of a step that was not complete. */
void sim_hosting_lose_evidence(const struct sim_hosting *hosting)
{
    struct sim_lie *lie = &hosting->shard->sim->lie;
    const struct sim_hosted *hosted = hosting->by_index[lie->partition];

    if (!hosted || hosted->primary != 0) {
        return;
    }
    if (lie->told) {
        lie->lost = lie->lost || lie->found || sim_lie_unseen(lie) != 0 ||
                    hosted->step <= lie->step + COMPARED_STEPS;
    } else {
        lie->came = 0;
    }
}

void sim_lie_pushed(const struct sim_process *process, const struct sim_request *request,
                    const struct sim_push *push, bool refused)
{
    struct sim_lie *lie = &process->sim->lie;
    const uint32_t lanes = lanes_of(push->node->lane_first, push->node->lane_count);

    if (push->partition != lie->partition || request->word.kind != KELP_STEP_TRAIN ||
        request->word.step != lie->step || request->generation < lie->generation ||
        push->node->is_lie) {
        return;
    }
    if (request->generation > lie->generation) {
        lie->generation = request->generation;
        lie->came = lie->refused = 0;
    }
    *(refused ? &lie->refused : &lie->came) |= lanes;
}

void sim_hosting_enter(struct sim_hosting *hosting, const struct kelp_map *map)
{
    for (uint32_t p = 0; p < map->partition_count; p++) {
        uint64_t primary;
        const struct kelp_replica_entry entry = sim_hosting_entry(hosting->shard, map, p, &primary);
        struct sim_hosted *hosted = hosting->by_index[p];
        if (!hosted && entry.place != KELP_REPLICA_NOBODY) {
            arrive(hosting, p, &entry, primary);
        }
        if (!hosted || entry.map_epoch <= hosted->map_epoch) {
            continue;
        }
        if (primary != 0 && p == hosting->shard->sim->lie.partition) {
            sim_hosting_lose_evidence(hosting);
        }
        hosted->map_epoch = entry.map_epoch;
        hosted->primary = primary;
        hosted->filling = 0;
        sim_replicas_stop_copy(hosted);
        sim_hosting_tell_time(hosting, hosted);
        sim_must(kelp_partition_enter(hosted->core, &entry, &hosting->actions));
        if (entry.place == KELP_REPLICA_NOBODY) {
            hosting->by_index[p] = NULL;
            hosted->life++;
        }
        sim_hosting_run(hosting, hosted);
    }
}

struct kelp_shard_led sim_hosting_led(const struct sim_hosting *hosting,
                                      uint32_t partitions[SIM_PARTITIONS_MAX],
                                      struct kelp_partition_view *ret_view)
{
    struct kelp_shard_led led = {.partitions = partitions};
    for (uint32_t p = 0; p < hosting->partition_count; p++) {
        struct kelp_partition_view view;
        if (!hosting->by_index[p]) {
            continue;
        }
        kelp_partition_view(hosting->hosted[p].core, &view);
        if (view.place != KELP_REPLICA_PRIMARY) {
            continue;
        }
        partitions[led.partition_count++] = p;
        if (p == 0) {
            *ret_view = view;
            led.word = &ret_view->word;
            led.best = kelp_partition_best(hosting->hosted[0].core);
        }
    }
    return led;
}

struct kelp_standing sim_hosting_standing(const struct sim_hosting *hosting)
{
    struct kelp_standing standing = {.generation = hosting ? hosting->generation : 0};
    for (uint32_t p = 0; hosting && p < hosting->partition_count; p++) {
        struct kelp_partition_view view;
        if (hosting->by_index[p]) {
            kelp_partition_view(hosting->hosted[p].core, &view);
            kelp_standing_add(&standing, p, &view);
        }
    }
    return standing;
}

struct sim_hosting *sim_hosting_create(struct sim_shard *shard, const struct kelp_map *map,
                                       const struct sim_manifest *manifest, kelp_status *ret_status,
                                       char ret_text[80])
{
    struct sim_hosting *hosting = sim_alloc(sizeof(*hosting));
    hosting->refs = 1;
    hosting->shard = shard;
    hosting->generation = map->generation;
    hosting->partition_count = map->partition_count;
    for (uint32_t p = 0; p < map->partition_count; p++) {
        uint64_t primary;
        const struct kelp_replica_entry entry = sim_hosting_entry(shard, map, p, &primary);
        const struct sim_part *part = NULL;
        if (entry.place == KELP_REPLICA_NOBODY) {
            continue;
        }
        if (manifest && entry.place != KELP_REPLICA_JOINER) {
            part = read_part(shard->sim, manifest, p, ret_status, ret_text);
            if (!part) {
                sim_hosting_destroy(hosting);
                return NULL;
            }
        }
        host(hosting, p, &entry, manifest, part);
        hosting->hosted[p].primary = primary;
    }
    *ret_status = KELP_OK;
    return hosting;
}

void sim_hosting_unref(struct sim_hosting *hosting)
{
    if (--hosting->refs > 0) {
        return;
    }
    for (uint32_t i = 0; i < hosting->partition_count; i++) {
        kelp_partition_destroy(hosting->hosted[i].core);
        sim_replicas_stop_copy(&hosting->hosted[i]);
    }
    kelp_actions_fini(&hosting->actions);
    free(hosting->gradients);
    free(hosting);
}

void sim_hosting_retire(struct sim_hosting *hosting)
{
    hosting->retired = true;
    for (uint32_t i = 0; i < hosting->partition_count; i++) {
        struct sim_hosted *hosted = hosting->by_index[i];
        if (!hosted) {
            continue;
        }
        sim_must(kelp_partition_unload(hosted->core, KELP_ERR_OLD_GENERATION, &hosting->actions));
        sim_hosting_run(hosting, hosted);
    }
    for (size_t i = 0; i < hosting->gradient_count && hosting->refs == 1; i++) {
        if (hosting->gradients[i].used) {
            sim_fail(hosting->shard->sim, "gradients are given back",
                     "%s ends generation %llu and still holds a gradient",
                     hosting->shard->process->id, (unsigned long long)hosting->generation);
        }
    }
    sim_hosting_unref(hosting);
}

void sim_hosting_destroy(struct sim_hosting *hosting)
{
    if (hosting) {
        hosting->retired = true;
        sim_hosting_unref(hosting);
    }
}
