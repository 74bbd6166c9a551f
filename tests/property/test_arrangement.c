/*
 * Arrangements of random small clusters, carried out move by move: each move has an allowed shape,
 * the end is balanced, and the copies made are as few as the best of all goals, tried one by one,
 * needs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/core/arrangement/arrangement.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire_split.h"

#define NOBODY         KELP_MAP_NOBODY
#define SHARDS_MAX     6
#define PARTITIONS_MAX 24

struct cluster {
    struct kelp_map map; /* names all shards, in the order of `shards` */
    struct kelp_arrangement_shard shards[SHARDS_MAX];
    struct kelp_arrangement_replica replicas[PARTITIONS_MAX];
    struct kelp_arrangement_input input;
    struct kelp_arrangement_pair avoided[SHARDS_MAX * SHARDS_MAX];
    struct kelp_test_random random;
    uint32_t attached;
};

static uint32_t pick(struct cluster *cluster, uint32_t below)
{
    return (uint32_t)kelp_test_random_below(&cluster->random, below);
}

static void make(struct cluster *cluster, uint64_t seed, uint32_t shards, uint32_t partitions)
{
    *cluster = (struct cluster){.random = {seed * 2 + 1}};
    ck_assert_int_eq(kelp_map_init(&cluster->map, shards, partitions, NULL), KELP_OK);
    cluster->map.generation = 1;
    cluster->map.serial = 1;
    for (uint32_t i = 0; i < shards; i++) {
        struct kelp_map_shard *at = &cluster->map.shards[i];
        (void)snprintf(at->id, sizeof(at->id), "shard-%u", i);
        at->incarnation = 100 + i;
        cluster->shards[i].at = at;
    }
    cluster->input = (struct kelp_arrangement_input){
        .map = &cluster->map,
        .shards = cluster->shards,
        .shard_count = shards,
        .replicas = cluster->replicas,
        .shards_wanted = shards,
        .replicas_wanted = 1,
        .joiners_max = 1 + pick(cluster, 4),
        .joiners_each = 1 + pick(cluster, 3),
        .leads_max = 1 + pick(cluster, 3),
    };
}

static void put_anywhere(struct cluster *cluster)
{
    uint32_t shards = cluster->map.shard_count;
    for (uint32_t i = 0; i < cluster->map.partition_count; i++) {
        struct kelp_map_partition *entry = &cluster->map.partitions[i];
        entry->map_epoch = 1;
        entry->primary = pick(cluster, shards);
        if (shards > 1 && pick(cluster, 3) > 0 && cluster->input.replicas_wanted > 1) {
            entry->backup = (entry->primary + 1 + pick(cluster, shards - 1)) % shards;
        }
    }
}

static void fini(struct cluster *cluster)
{
    kelp_map_fini(&cluster->map);
}

/* ---- carrying out ---- */

static bool same(struct kelp_arrangement_entry a, uint32_t primary, uint32_t backup,
                 uint32_t joiner)
{
    return a.primary == primary && a.backup == backup && a.joiner == joiner;
}

/* The shapes of arrangement.h. */
static bool is_allowed(const struct kelp_map_partition *now,
                       const struct kelp_arrangement_move *move, bool caught_up)
{
    uint32_t p = now->primary;
    uint32_t b = now->backup;
    uint32_t j = now->joiner;
    struct kelp_arrangement_entry entry = move->entry;
    switch (move->kind) {
    case KELP_ARRANGEMENT_ATTACH:
        return j == NOBODY && entry.joiner != NOBODY && same(entry, p, b, entry.joiner) &&
               entry.joiner != p && entry.joiner != b;
    case KELP_ARRANGEMENT_DROP:
        return j != NOBODY && same(entry, p, b, NOBODY);
    case KELP_ARRANGEMENT_PROMOTE:
        return caught_up && j != NOBODY && same(entry, j, b == NOBODY ? p : b, NOBODY);
    case KELP_ARRANGEMENT_HAND_OVER:
        return caught_up && j != NOBODY && b != NOBODY && same(entry, b, j, NOBODY);
    case KELP_ARRANGEMENT_TAKE_OVER:
        return caught_up && j != NOBODY && same(entry, p, j, NOBODY);
    case KELP_ARRANGEMENT_EXCHANGE:
        return j == NOBODY && b != NOBODY && same(entry, b, p, NOBODY);
    case KELP_ARRANGEMENT_DETACH:
        return j == NOBODY && b != NOBODY && same(entry, p, NOBODY, NOBODY);
    case KELP_ARRANGEMENT_KIND_COUNT:
        break;
    }
    return false;
}

static bool is_avoided(const struct cluster *cluster, uint32_t primary, uint32_t follower)
{
    for (uint32_t i = 0; i < cluster->input.avoided_count; i++) {
        if (cluster->avoided[i].primary == cluster->map.shards[primary].incarnation &&
            cluster->avoided[i].follower == cluster->map.shards[follower].incarnation) {
            return true;
        }
    }
    return false;
}

static void carry_out(struct cluster *cluster, const struct kelp_arrangement_move *move)
{
    struct kelp_map_partition *entry = &cluster->map.partitions[move->partition];
    struct kelp_arrangement_replica *replica = &cluster->replicas[move->partition];
    ck_assert_msg(is_allowed(entry, move, replica->caught_up), "partition %u: %s from %d,%d,%d",
                  move->partition, kelp_arrangement_kind_text(move->kind), (int)entry->primary,
                  (int)entry->backup, (int)entry->joiner);
    ck_assert(!replica->captured || move->entry.primary == entry->primary);
    if (move->kind == KELP_ARRANGEMENT_ATTACH) {
        ck_assert(!is_avoided(cluster, move->entry.primary, move->entry.joiner));
        cluster->attached++;
    }
    entry->map_epoch++;
    entry->primary = move->entry.primary;
    entry->backup = move->entry.backup;
    entry->joiner = move->entry.joiner;
    replica->caught_up = false;
}

static uint32_t check_joiners(const struct cluster *cluster)
{
    uint32_t joiners = 0;
    uint32_t sent[SHARDS_MAX] = {0};
    for (uint32_t i = 0; i < cluster->map.partition_count; i++) {
        const struct kelp_map_partition *entry = &cluster->map.partitions[i];
        if (entry->joiner != NOBODY) {
            joiners++;
            ck_assert_uint_le(++sent[entry->primary], cluster->input.joiners_each);
        }
    }
    ck_assert_uint_le(joiners, cluster->input.joiners_max);
    return joiners;
}

static void check_leads(const struct cluster *cluster, const struct kelp_arrangement_move *moves,
                        uint32_t count)
{
    uint32_t leads = 0;
    for (uint32_t i = 0; i < count; i++) {
        bool joined = moves[i].kind == KELP_ARRANGEMENT_PROMOTE ||
                      moves[i].kind == KELP_ARRANGEMENT_HAND_OVER; /* others go along one way */
        leads += joined ? 1 : 0;
    }
    ck_assert_uint_le(leads, cluster->input.leads_max);
}

/* Some joiners catch up, some primaries owe a snapshot for a while. */
static void let_time_pass(struct cluster *cluster, bool captures)
{
    for (uint32_t i = 0; i < cluster->map.partition_count; i++) {
        struct kelp_arrangement_replica *replica = &cluster->replicas[i];
        replica->caught_up = replica->caught_up ||
                             (cluster->map.partitions[i].joiner != NOBODY && pick(cluster, 2) == 0);
        replica->captured = captures && pick(cluster, 4) == 0;
    }
}

/* Until nothing is left to do. */
static void settle(struct cluster *cluster)
{
    struct kelp_arrangement_move moves[PARTITIONS_MAX];
    uint32_t idle = 0;
    for (uint32_t round = 0; idle < 8; round++) {
        uint32_t count = 0;
        ck_assert_msg(round < 40 * PARTITIONS_MAX, "does not end");
        ck_assert_int_eq(kelp_arrangement_next(&cluster->input, moves, &count), KELP_OK);
        check_leads(cluster, moves, count);
        for (uint32_t i = 0; i < count; i++) {
            carry_out(cluster, &moves[i]);
        }
        idle = check_joiners(cluster) + count == 0 ? idle + 1 : 0;
        let_time_pass(cluster, idle == 0 && round < 8 * PARTITIONS_MAX);
    }
}

/* ---- what the end must be ---- */

struct counts {
    uint32_t all[SHARDS_MAX], primaries[SHARDS_MAX], backups[SHARDS_MAX];
};

static bool is_used(const struct cluster *cluster, uint32_t shard)
{
    return !cluster->shards[shard].draining;
}

static const char *zone_of(const struct cluster *cluster, uint32_t shard)
{
    return cluster->map.shards[shard].zone;
}

/* The zone with more than half of the shards that are used, if there is another; else NULL. */
static const char *largest_zone(const struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->map.shard_count; i++) {
        uint32_t used = 0;
        uint32_t members = 0;
        for (uint32_t k = 0; k < cluster->map.shard_count; k++) {
            used += is_used(cluster, k) ? 1 : 0;
            members += is_used(cluster, k) && strcmp(zone_of(cluster, i), zone_of(cluster, k)) == 0;
        }
        if (is_used(cluster, i) && 2 * members > used && members < used) {
            return zone_of(cluster, i);
        }
    }
    return NULL;
}

static bool has_zones(const struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->map.shard_count; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (is_used(cluster, i) && is_used(cluster, k) &&
                strcmp(zone_of(cluster, i), zone_of(cluster, k)) != 0) {
                return true;
            }
        }
    }
    return false;
}

static bool level(const struct cluster *cluster, const uint32_t *counts, const char *zone,
                  bool inside)
{
    uint32_t least = UINT32_MAX;
    uint32_t most = 0;
    for (uint32_t i = 0; i < cluster->map.shard_count; i++) {
        if (is_used(cluster, i) && (!zone || (strcmp(zone_of(cluster, i), zone) == 0) == inside)) {
            least = counts[i] < least ? counts[i] : least;
            most = counts[i] > most ? counts[i] : most;
        }
    }
    return least == UINT32_MAX || most - least <= 1;
}

static bool is_level(const struct cluster *cluster, const struct counts *counts)
{
    const char *zone = cluster->input.replicas_wanted > 1 ? largest_zone(cluster) : NULL;
    if (zone) {
        return level(cluster, counts->all, zone, true) && level(cluster, counts->all, zone, false);
    }
    return level(cluster, counts->all, NULL, true) &&
           level(cluster, counts->primaries, NULL, true) &&
           level(cluster, counts->backups, NULL, true);
}

static void check_end(const struct cluster *cluster)
{
    struct counts counts = {0};
    uint32_t used = 0;
    for (uint32_t i = 0; i < cluster->map.shard_count; i++) {
        used += is_used(cluster, i) ? 1 : 0;
    }
    for (uint32_t i = 0; i < cluster->map.partition_count; i++) {
        const struct kelp_map_partition *entry = &cluster->map.partitions[i];
        ck_assert_uint_eq(entry->joiner, NOBODY);
        ck_assert(is_used(cluster, entry->primary));
        counts.all[entry->primary]++;
        counts.primaries[entry->primary]++;
        ck_assert_int_eq(entry->backup != NOBODY, cluster->input.replicas_wanted > 1 && used > 1);
        if (entry->backup != NOBODY) {
            ck_assert(is_used(cluster, entry->backup));
            ck_assert_uint_ne(entry->primary, entry->backup);
            ck_assert(!has_zones(cluster) || strcmp(zone_of(cluster, entry->primary),
                                                    zone_of(cluster, entry->backup)) != 0);
            counts.all[entry->backup]++;
            counts.backups[entry->backup]++;
        }
    }
    ck_assert(is_level(cluster, &counts));
}

/* ---- the oracle ---- */

struct oracle {
    const struct cluster *cluster;
    struct counts counts;
    uint32_t replicas;
    uint32_t best;
};

static uint32_t copies(const struct kelp_map_partition *entry, uint32_t shard)
{
    return shard == NOBODY || shard == entry->primary || shard == entry->backup ? 0 : 1;
}

static void try_from(struct oracle *oracle, uint32_t partition, uint32_t made);

static void try_pair(struct oracle *oracle, uint32_t partition, uint32_t made, uint32_t primary,
                     uint32_t backup)
{
    const struct kelp_map_partition *entry = &oracle->cluster->map.partitions[partition];
    struct counts *counts = &oracle->counts;
    counts->all[primary]++;
    counts->primaries[primary]++;
    if (backup != NOBODY) {
        counts->all[backup]++;
        counts->backups[backup]++;
    }
    try_from(oracle, partition + 1, made + copies(entry, primary) + copies(entry, backup));
    counts->all[primary]--;
    counts->primaries[primary]--;
    if (backup != NOBODY) {
        counts->all[backup]--;
        counts->backups[backup]--;
    }
}

static void try_from(struct oracle *oracle, uint32_t partition, uint32_t made)
{
    const struct cluster *cluster = oracle->cluster;
    if (made >= oracle->best) {
        return;
    }
    if (partition == cluster->map.partition_count) {
        if (is_level(cluster, &oracle->counts)) {
            oracle->best = made;
        }
        return;
    }
    for (uint32_t p = 0; p < cluster->map.shard_count; p++) {
        if (!is_used(cluster, p)) {
            continue;
        }
        if (oracle->replicas == 1) {
            try_pair(oracle, partition, made, p, NOBODY);
        }
        for (uint32_t b = 0; oracle->replicas > 1 && b < cluster->map.shard_count; b++) {
            if (b != p && is_used(cluster, b) &&
                (!has_zones(cluster) || strcmp(zone_of(cluster, p), zone_of(cluster, b)) != 0)) {
                try_pair(oracle, partition, made, p, b);
            }
        }
    }
}

/* The fewest copies with which any balanced end is reached. */
static uint32_t fewest(const struct cluster *cluster)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < cluster->map.shard_count; i++) {
        used += is_used(cluster, i) ? 1 : 0;
    }
    struct oracle oracle = {
        .cluster = cluster,
        .replicas = used < cluster->input.replicas_wanted ? used : cluster->input.replicas_wanted,
        .best = UINT32_MAX};
    try_from(&oracle, 0, 0);
    ck_assert_uint_ne(oracle.best, UINT32_MAX);
    return oracle.best;
}

/* ---- tests ---- */

static void set_zones(struct cluster *cluster, uint32_t zones)
{
    for (uint32_t i = 0; i < cluster->map.shard_count && zones > 0; i++) {
        (void)snprintf(cluster->map.shards[i].zone, sizeof(cluster->map.shards[i].zone), "z%u",
                       pick(cluster, zones));
    }
}

static void drain_some(struct cluster *cluster)
{
    for (uint32_t i = 1; i < cluster->map.shard_count; i++) {
        cluster->shards[i].draining = pick(cluster, 4) == 0;
    }
}

KELP_CASE("fewest copies", .timeout_s = 120)

/* A thousand clusters in each loop, small enough to try every end. */
KELP_LOOP_TEST(as_few_copies_as_any_goal_needs, 0, 12)
{
    for (uint32_t i = 0; i < 250; i++) {
        struct cluster cluster;
        uint64_t seed = (uint64_t)_i * 250 + i + 1;
        uint32_t shards = 1 + (uint32_t)(seed % 4);
        uint32_t partitions = 1 + (uint32_t)(seed / 4 % (shards == 4 ? 5 : 6));
        make(&cluster, seed, shards, partitions);
        cluster.input.replicas_wanted = 1 + pick(&cluster, 2);
        set_zones(&cluster, pick(&cluster, 4));
        put_anywhere(&cluster);
        drain_some(&cluster);
        uint32_t least = fewest(&cluster);
        settle(&cluster);
        check_end(&cluster);
        ck_assert_msg(cluster.attached == least, "seed %llu: %u copies, %u would do",
                      (unsigned long long)seed, cluster.attached, least);
        fini(&cluster);
    }
}

KELP_CASE("balance", .timeout_s = 120)

/* Larger ones, which grow, shrink and drain again and again. */
KELP_LOOP_TEST(ends_balanced_whatever_comes, 0, 8)
{
    for (uint32_t i = 0; i < 100; i++) {
        struct cluster cluster;
        uint64_t seed = (uint64_t)_i * 100 + i + 1;
        make(&cluster, seed, 1 + (uint32_t)(seed % SHARDS_MAX), PARTITIONS_MAX);
        cluster.input.replicas_wanted = 1 + pick(&cluster, 2);
        set_zones(&cluster, pick(&cluster, 4));
        put_anywhere(&cluster);
        for (uint32_t change = 0; change < 4; change++) {
            drain_some(&cluster);
            settle(&cluster);
            check_end(&cluster);
        }
        uint32_t attached = cluster.attached;
        settle(&cluster);
        ck_assert_uint_eq(cluster.attached, attached); /* it rests */
        fini(&cluster);
    }
}

/* ---- pairs that do not reach each other ---- */

static void avoid_some(struct cluster *cluster)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < cluster->map.shard_count; i++) {
        for (uint32_t k = 0; k < cluster->map.shard_count; k++) {
            if (i != k && pick(cluster, 4) == 0) {
                cluster->avoided[count++] =
                    (struct kelp_arrangement_pair){.primary = cluster->map.shards[i].incarnation,
                                                   .follower = cluster->map.shards[k].incarnation};
            }
        }
    }
    cluster->input.avoided = cluster->avoided;
    cluster->input.avoided_count = count;
}

/* Whoever reaches a shard that is used has a backup. */
static void check_backups(const struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->map.partition_count; i++) {
        const struct kelp_map_partition *entry = &cluster->map.partitions[i];
        bool reaches = false;
        for (uint32_t k = 0; k < cluster->map.shard_count; k++) {
            reaches = reaches || (k != entry->primary && is_used(cluster, k) &&
                                  !is_avoided(cluster, entry->primary, k));
        }
        ck_assert(!reaches || entry->backup != NOBODY);
    }
}

KELP_CASE("detours", .timeout_s = 120)

/* It comes to rest, with backups; once all reach each other again it is as if nothing had been. */
KELP_LOOP_TEST(goes_round_pairs_that_fail, 0, 8)
{
    for (uint32_t i = 0; i < 100; i++) {
        struct cluster cluster;
        uint64_t seed = (uint64_t)_i * 100 + i + 1;
        make(&cluster, seed, 1 + (uint32_t)(seed % SHARDS_MAX), PARTITIONS_MAX);
        cluster.input.replicas_wanted = 2;
        set_zones(&cluster, pick(&cluster, 4));
        put_anywhere(&cluster);
        for (uint32_t change = 0; change < 4; change++) {
            drain_some(&cluster);
            avoid_some(&cluster);
            settle(&cluster);
            check_backups(&cluster);
        }
        cluster.input.avoided_count = 0;
        settle(&cluster);
        check_end(&cluster);
        fini(&cluster);
    }
}
