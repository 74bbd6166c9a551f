/*
 * The partition map: which incarnation of which shard hosts each partition, and in which part
 * (docs/PROTOCOL.md). Pure; coordinator/etcd/map_json.h reads and writes it as text.
 *
 * A generation starts from one version of the model. Within it entries change: each change of an
 * entry counts its map epoch up, each write of the map its serial. Generation and serial together
 * order maps.
 */
#ifndef KELP_COORDINATOR_CORE_MAP_H
#define KELP_COORDINATOR_CORE_MAP_H

#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/core/limits.h"

#define KELP_MAP_NONCE_MAX 47         /* bytes */
#define KELP_MAP_NOBODY    UINT32_MAX /* no backup, no joiner */

struct kelp_map_shard {
    char id[KELP_COORDINATOR_ID_MAX + 1];
    char address[KELP_COORDINATOR_ADDRESS_MAX + 1];
    char zone[KELP_COORDINATOR_ID_MAX + 1]; /* what fails together, as an id; "": not said */
    uint64_t incarnation;
};

struct kelp_map_partition {
    uint64_t map_epoch; /* changes of this entry, from 1 */
    uint32_t primary;   /* index into shards; the other two as well, or KELP_MAP_NOBODY */
    uint32_t backup;
    uint32_t joiner; /* gets the copy, to become primary or backup */
};

struct kelp_map {
    uint64_t generation; /* 0: there is no map yet */
    uint64_t serial;     /* changes within the generation, from 1 */
    uint64_t restore_version;
    char nonce[KELP_MAP_NONCE_MAX + 1]; /* of the write: tells a lost answer from a failure */
    uint32_t shard_count;
    struct kelp_map_shard *shards; /* owned */
    uint32_t partition_count;
    struct kelp_map_partition *partitions; /* owned */
};

/* Room for so many, all zero, without backup and joiner; generation 0. Errors: KELP_ERR_LIMIT,
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp_map_init(struct kelp_map *map, uint32_t shard_count, uint32_t partition_count,
                          struct kelp_error *reterr) KELP_MUST_USE;
void kelp_map_fini(struct kelp_map *map);
kelp_status kelp_map_copy(const struct kelp_map *map, struct kelp_map *ret_copy) KELP_MUST_USE;

/*
 * The map of the generation after `before`, of serial 1: partitions spread contiguously over the
 * shards in the order given, counts differing by at most one, without backups. A partition keeps
 * its map epoch when the same incarnation goes on hosting it alone and counts up otherwise.
 * Errors: KELP_ERR_INVALID (no shard), KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_map_spread(const struct kelp_map *before, const struct kelp_map_shard *shards,
                            uint32_t shard_count, uint32_t partition_count,
                            struct kelp_map *ret_map, struct kelp_error *reterr) KELP_MUST_USE;

/* Everything a map from outside must fulfil: counts, indices, ids, addresses, no shard twice, no
 * shard in two parts of one entry. */
kelp_status kelp_map_check(const struct kelp_map *map, struct kelp_error *reterr) KELP_MUST_USE;

/* The index of the shard, which is added if it is not there. Errors: KELP_ERR_LIMIT,
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp_map_add(struct kelp_map *map, const struct kelp_map_shard *shard,
                         uint32_t *ret_index, struct kelp_error *reterr) KELP_MUST_USE;
/* The epoch of a partition's entry in a generation that follows `before`. */
uint64_t kelp_map_next_epoch(const struct kelp_map *before, uint32_t partition,
                             const struct kelp_map_shard *primary, uint32_t backup);
/* Take out shards that are in no entry. */
void kelp_map_drop_idle(struct kelp_map *map);

/* Is a the older of two maps? */
bool kelp_map_older(const struct kelp_map *a, const struct kelp_map *b);

/* Index of the shard of that id, or -1. */
int32_t kelp_map_find(const struct kelp_map *map, const char *id);
/* Partitions whose primary is the shard of that index. */
uint32_t kelp_map_load(const struct kelp_map *map, uint32_t shard);

/* "shard-2" before "shard-10": by length, then by bytes. Total, so that placement is determined. */
int kelp_map_compare_ids(const char *a, const char *b);

#endif
