/*
 * From the map, the shards that live and the wanted size to the next changes of entries. Pure.
 *
 * First the goal: which shards each partition is to lie on. It is balanced: shards differ by one
 * replica at most, by one primary and by one backup. No two replicas of a partition are on one
 * shard, nor in one zone where there are two zones. (A zone with more than half of the shards
 * holds one replica of each partition; balance holds inside it and outside it then.) Among all
 * such goals it is one that needs the fewest copies, found by flow of least cost
 * (arrangement_goal.c). Primaries are balanced by exchanging roles, which copies nothing
 * (arrangement_roles.c).
 *
 * Then the changes that lead there and are safe now (arrangement.c):
 *
 *     {P,B,-}  attach     {P,B,J}      the map names the joiner before anything is copied
 *     {P,B,J}  promote    {J,B,-}      J has caught up, P has to leave
 *     {P,-,J}  promote    {J,P,-}      ... without a backup the old primary stays as one
 *     {P,B,J}  hand over  {B,J,-}      J has caught up, P has to leave and B is to lead
 *     {P,B,J}  take over  {P,J,-}      J has caught up and becomes the backup
 *     {P,B,-}  exchange   {B,P,-}      a backup has all that was ever visible
 *     {P,B,-}  detach     {P,-,-}      the backup is not wanted any more
 *     {P,B,J}  drop       {P,B,-}      the joiner is gone, or is not wanted any more
 *
 * Where the goal wants a joiner that its primary does not reach (`avoided`), another shard joins:
 * in another zone if there is one. It becomes the backup and stays until the pair may be tried
 * again, balanced or not. A primary that is drained lets such a backup lead instead.
 *
 * Nothing is remembered: each call looks at the map alone. A joiner counts as a copy that is there,
 * so that each attach makes the goal cheaper by one copy, and the whole takes no more copies than
 * the first goal needed. What a lost primary or backup leaves is not planned: its entry is left
 * alone until a failover has changed it.
 */
#ifndef KELP_COORDINATOR_CORE_ARRANGEMENT_ARRANGEMENT_H
#define KELP_COORDINATOR_CORE_ARRANGEMENT_ARRANGEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/core/map.h"

#define KELP_ARRANGEMENT_REPLICAS_MAX 2

/* A shard that lives. They come in the order of their names (kelp_map_compare_ids()). */
struct kelp_arrangement_shard {
    const struct kelp_map_shard *at; /* borrowed for the call; zone "" is one like any other */
    bool draining;                   /* it is to end with nothing */
};

/* Two processes, by their incarnations, that do not reach each other: the first is no primary of
 * the second for now. */
struct kelp_arrangement_pair {
    uint64_t primary;
    uint64_t follower;
};

/* What is known of a partition beside its entry. */
struct kelp_arrangement_replica {
    bool caught_up; /* its primary has reported the joiner in sync, in the entry's epoch */
    bool captured;  /* its primary owes a snapshot: no planned change of it */
};

struct kelp_arrangement_input {
    const struct kelp_map *map;
    const struct kelp_arrangement_shard *shards;
    uint32_t shard_count;
    const struct kelp_arrangement_replica *replicas; /* of each partition */
    const struct kelp_arrangement_pair *avoided;
    uint32_t avoided_count;
    uint32_t shards_wanted;   /* at least 1; more that live stay idle */
    uint32_t replicas_wanted; /* 1 or 2; fewer where there is no room */
    uint32_t joiners_max;     /* at a time; shards copy their partitions one after the other */
    uint32_t joiners_each;    /* of one primary */
    uint32_t leads_max;       /* partitions that get another primary at a time: steps wait for it */
    bool still; /* nothing is attached: the job pauses, or a snapshot waits to be ordered */
};

enum kelp_arrangement_kind {
    KELP_ARRANGEMENT_DROP,
    KELP_ARRANGEMENT_PROMOTE,
    KELP_ARRANGEMENT_HAND_OVER,
    KELP_ARRANGEMENT_TAKE_OVER,
    KELP_ARRANGEMENT_EXCHANGE,
    KELP_ARRANGEMENT_DETACH,
    KELP_ARRANGEMENT_ATTACH,
    KELP_ARRANGEMENT_KIND_COUNT
};

/* Indices into the input's shards, KELP_MAP_NOBODY for none. */
struct kelp_arrangement_entry {
    uint32_t primary, backup, joiner;
};

struct kelp_arrangement_move {
    enum kelp_arrangement_kind kind;
    uint32_t partition;
    struct kelp_arrangement_entry entry; /* as it is to be */
};

/*
 * The next changes, at most one for each partition. Attaching comes last: partitions without a
 * backup first, then those that must leave a shard.
 *
 * ret_moves  room for one of each partition.
 * ret_count  0: the map is as it is to be, or a joiner is waited for, or nothing may be done now.
 *
 * Errors: KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_arrangement_next(const struct kelp_arrangement_input *input,
                                  struct kelp_arrangement_move *ret_moves,
                                  uint32_t *ret_count) KELP_MUST_USE;

/*
 * Entries of a generation that opens: primaries contiguous over the shards that are used, counts
 * differing by at most one, and backups as above. shards, shard_count, shards_wanted and
 * replicas_wanted of the input are looked at.
 *
 * ret_entries  of each partition; room for partition_count of them. Joiners are none.
 *
 * Errors: KELP_ERR_INVALID (no shard), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_arrangement_open(const struct kelp_arrangement_input *input,
                                  uint32_t partition_count,
                                  struct kelp_arrangement_entry *ret_entries) KELP_MUST_USE;

/* "attach", "promote", ... for people. */
const char *kelp_arrangement_kind_text(enum kelp_arrangement_kind kind);

#endif
