/* Maps from the leader: a newer generation is loaded (load.c), changes within the generation are
 * carried out at once. */
#include "ps/service/map_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/base/address.h"
#include "common/log/log.h"

/* ---- a map ---- */

void kelp__service_map_ref(struct service_map *map)
{
    atomic_fetch_add_explicit(&map->refs, 1, memory_order_relaxed);
}

void kelp__service_map_unref(struct service_map *map)
{
    if (!map || atomic_fetch_sub_explicit(&map->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (uint32_t i = 0; map->shards && i < map->shard_count; i++) {
        free(map->shards[i].id);
        free(map->shards[i].address);
    }
    free(map->shards);
    free(map->partitions);
    free(map);
}

uint64_t kelp__service_process(const char *id, uint64_t incarnation)
{
    const uint64_t number = XXH3_64bits_withSeed(id, strlen(id), incarnation);

    return number ? number : 1;
}

/* An index plus 1 of a shard in the map, or 0. */
static bool check_follower(const Kelp__V1__Map *map, uint32_t follower)
{
    return follower <= map->n_shards;
}

static kelp_status check_place(const Kelp__V1__Map *map, const Kelp__V1__PartitionPlace *place,
                               struct kelp_error *reterr)
{
    if (place->primary >= map->n_shards || !check_follower(map, place->backup) ||
        !check_follower(map, place->joiner)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "map puts partition %u on shard %u of %zu",
                         place->partition, place->primary, map->n_shards);
    }
    if (place->backup == place->primary + 1 || place->joiner == place->primary + 1 ||
        (place->backup != 0 && place->backup == place->joiner)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "map puts partition %u on one shard twice",
                         place->partition);
    }
    return KELP_OK;
}

/* Check that the map has each partition of the plan exactly once, on shards that it lists. */
static kelp_status check_map(const struct kelp_service *service, const Kelp__V1__Map *map,
                             struct kelp_error *reterr)
{
    const uint32_t count = service->plan->partition_count;
    bool seen[KELP_PARTITIONS_MAX] = {false};

    if (map->generation == 0) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "map of generation 0: they count from 1");
    }
    if (map->n_partitions != count) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "map has %zu partitions, the plan %u",
                         map->n_partitions, count);
    }
    for (size_t i = 0; i < map->n_shards; i++) {
        if (!kelp_address_is_target(map->shards[i]->address)) {
            return kelp_fail(reterr, KELP_ERR_FORMAT,
                             "map: address '%.255s' of %.63s is not HOST:PORT in numbers, or "
                             "unix:/PATH",
                             map->shards[i]->address, map->shards[i]->shard);
        }
    }
    for (size_t i = 0; i < map->n_partitions; i++) {
        const Kelp__V1__PartitionPlace *place = map->partitions[i];
        if (place->partition >= count || seen[place->partition]) {
            return kelp_fail(reterr, KELP_ERR_FORMAT,
                             "map names partition %u twice, or it is beyond %u", place->partition,
                             count);
        }
        kelp_status status = check_place(map, place, reterr);
        if (status != KELP_OK) {
            return status;
        }
        seen[place->partition] = true;
    }
    return KELP_OK;
}

/* A map may still name the process that this one replaced. */
static bool is_us(const struct kelp_service *service, const Kelp__V1__ShardPlace *shard)
{
    return strcmp(shard->shard, service->options.id) == 0 &&
           shard->incarnation == service->options.incarnation;
}

static bool names_another_of_us(const struct kelp_service *service, const Kelp__V1__Map *map)
{
    for (size_t i = 0; i < map->n_shards; i++) {
        if (strcmp(map->shards[i]->shard, service->options.id) == 0 &&
            !is_us(service, map->shards[i])) {
            return true;
        }
    }
    return false;
}

static bool fill_shard(const struct kelp_service *service, const Kelp__V1__ShardPlace *from,
                       struct service_map_shard *to)
{
    to->id = strdup(from->shard);
    to->address = strdup(from->address);
    to->incarnation = from->incarnation;
    to->process = is_us(service, from) ? 0 : kelp__service_process(from->shard, from->incarnation);
    kelp__v1__shard_place__init(&to->place);
    to->place.shard = to->id;
    to->place.address = to->address;
    to->place.incarnation = to->incarnation;
    return to->id && to->address;
}

/* NULL: out of memory. */
static struct service_map *make_map(const struct kelp_service *service, const Kelp__V1__Map *from)
{
    struct service_map *map = calloc(1, sizeof(*map));
    bool ready = map != NULL;

    if (ready) {
        atomic_init(&map->refs, 1);
        map->generation = from->generation;
        map->serial = from->serial;
        map->restore_version = from->restore_version;
        map->shard_count = (uint32_t)from->n_shards;
        map->partition_count = (uint32_t)from->n_partitions;
        map->shards = calloc(from->n_shards + 1, sizeof(*map->shards));
        map->partitions = calloc(from->n_partitions + 1, sizeof(*map->partitions));
        ready = map->shards && map->partitions;
    }
    for (size_t i = 0; ready && i < from->n_shards; i++) {
        ready = fill_shard(service, from->shards[i], &map->shards[i]);
    }
    for (size_t i = 0; ready && i < from->n_partitions; i++) {
        const Kelp__V1__PartitionPlace *place = from->partitions[i];
        /* 0 means none; minus 1 it is SERVICE_NOBODY. */
        map->partitions[place->partition] =
            (struct service_map_partition){.map_epoch = place->map_epoch,
                                           .primary = place->primary,
                                           .backup = place->backup - 1,
                                           .joiner = place->joiner - 1};
    }
    if (!ready) {
        kelp__service_map_unref(map);
        return NULL;
    }
    return map;
}

/* ---- what a map means for this shard ---- */

static bool is_here(const struct service_map *map, uint32_t shard)
{
    return shard != SERVICE_NOBODY && map->shards[shard].process == 0;
}

static uint64_t process_of(const struct service_map *map, uint32_t shard)
{
    return shard == SERVICE_NOBODY ? 0 : map->shards[shard].process;
}

uint32_t kelp__service_map_places(const struct service_map *map,
                                  struct kelp_hosting_place *ret_places)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < map->partition_count; i++) {
        const struct service_map_partition *partition = &map->partitions[i];
        struct kelp_hosting_place place = {
            .partition = i,
            .primary = map->shards[partition->primary].process,
            .entry = {.map_epoch = partition->map_epoch, .place = KELP_REPLICA_NOBODY}};
        if (is_here(map, partition->primary)) {
            place.entry.place = KELP_REPLICA_PRIMARY;
            place.entry.backup = process_of(map, partition->backup);
            place.entry.joiner = process_of(map, partition->joiner);
        } else if (is_here(map, partition->backup)) {
            place.entry.place = KELP_REPLICA_BACKUP;
        } else if (is_here(map, partition->joiner)) {
            place.entry.place = KELP_REPLICA_JOINER;
        }
        if (place.entry.place != KELP_REPLICA_NOBODY) {
            ret_places[count++] = place;
        }
    }
    return count;
}

bool kelp__service_map_reads(const struct service_map *map)
{
    for (uint32_t i = 0; i < map->partition_count; i++) {
        const struct service_map_partition *partition = &map->partitions[i];
        if (is_here(map, partition->primary) || is_here(map, partition->backup)) {
            return true;
        }
    }
    return false;
}

const Kelp__V1__ShardPlace *kelp__service_map_tell(const struct service_map *map,
                                                   uint64_t generation, uint32_t partition,
                                                   uint64_t *ret_map_epoch)
{
    if (!map || map->generation != generation || partition >= map->partition_count) {
        return NULL;
    }
    *ret_map_epoch = map->partitions[partition].map_epoch;
    return &map->shards[map->partitions[partition].primary].place;
}

/* Make the map the one that replies tell to peers. The map is transferred. */
static void tell_map(struct kelp_service *service, struct service_map *map)
{
    (void)pthread_mutex_lock(&service->told_lock);
    struct service_map *before = service->told;
    service->told = map;
    (void)pthread_mutex_unlock(&service->told_lock);
    kelp__service_map_unref(before);
}

struct service_map *kelp__service_told(struct kelp_service *service)
{
    (void)pthread_mutex_lock(&service->told_lock);
    struct service_map *map = service->told;
    if (map) {
        kelp__service_map_ref(map);
    }
    (void)pthread_mutex_unlock(&service->told_lock);
    return map;
}

struct kelp_shard_led kelp__service_led(const struct kelp_shard_view *view)
{
    return (struct kelp_shard_led){.partitions = view->led,
                                   .partition_count = view->led_count,
                                   .word = view->has_word ? &view->word : NULL,
                                   .best = view->has_word ? &view->best : NULL};
}

kelp_status kelp__service_map_take(struct kelp_service *service, const Kelp__V1__Map *from,
                                   const char *manifest, struct kelp_shard_command *command,
                                   struct kelp_error *reterr)
{
    if (!service->plan) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "map without a plan");
    }
    kelp_status status = check_map(service, from, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_shard_control_judge(service->control, from->generation, from->serial,
                                      names_another_of_us(service, from));
    if (status == KELP_ERR_MISMATCH) {
        kelp_log_warn("map names another incarnation of this shard: not taken generation=%" PRIu64,
                      from->generation);
    }
    if (status != KELP_OK) {
        return KELP_OK; /* not for us, known already, or from a deposed leader */
    }
    struct service_map *map = make_map(service, from);
    if (!map) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a map");
    }
    const bool reads = kelp__service_map_reads(map);
    if (!kelp_shard_control_changes(service->control, map->generation, reads)) {
        status = kelp__service_load_want(service, map, manifest, reterr);
    }
    if (status != KELP_OK) {
        kelp__service_map_unref(map);
        return status;
    }
    service->map_due = true;
    command->map_generation = map->generation;
    command->map_serial = map->serial;
    command->map_reads = reads;
    kelp_log_info("map taken generation=%" PRIu64 " serial=%" PRIu64, map->generation, map->serial);
    tell_map(service, map);
    return KELP_OK;
}

/* The newest map that is not carried out yet, referenced; NULL: none. */
static struct service_map *take_due(struct kelp_service *service)
{
    struct service_map *map = NULL;

    (void)pthread_mutex_lock(&service->control_lock);
    if (service->map_due) {
        service->map_due = false;
        map = kelp__service_told(service);
    }
    (void)pthread_mutex_unlock(&service->control_lock);
    return map;
}

static void carry_out(struct kelp_service *service, const struct service_map *map,
                      struct kelp__service_turn *turn, struct kelp_shard_view *view)
{
    struct kelp_hosting_place places[KELP_PARTITIONS_MAX];
    const uint32_t count = kelp__service_map_places(map, places);

    kelp_shard_enter(service->shard, map->generation, places, count,
                     kelp__service_turn_shard(turn));
    kelp__service_links_follow(service, map);
    kelp_shard_view(service->shard, view);
    struct kelp_shard_event event = {
        .kind = KELP_SHARD_ON_ENTERED,
        .entered = {map->generation, map->serial, kelp__service_led(view)}};
    (void)kelp__service_control_apply_locked(service, &event); /* cannot fail */
}

void kelp__service_map_carry_out(struct kelp_service *service)
{
    /* One at a time, so that an older map never follows a newer one. */
    (void)pthread_mutex_lock(&service->orders_lock);
    struct service_map *map = take_due(service);
    struct kelp__service_turn *turn = map ? kelp__service_turn_take(service) : NULL;
    struct kelp_shard_view *view = map ? malloc(sizeof(*view)) : NULL;
    if (turn && view) {
        carry_out(service, map, turn, view);
    } else if (map) {
        kelp__service_control_failed(0, KELP_ERR_NO_MEMORY, "no memory for a map", service);
    }
    (void)pthread_mutex_unlock(&service->orders_lock);
    if (turn) {
        kelp__service_turn_finish(service, turn);
        kelp__service_keep_ticking(service); /* a version may have become visible */
    }
    free(view);
    kelp__service_map_unref(map);
}
